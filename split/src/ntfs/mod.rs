//! A disk with NTFS.
