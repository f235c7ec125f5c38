//! A disk with ext4 or xfs.
