//! How large anything may be that a file says of itself.
//!
//! Always true: these are the limits of QEMU, or smaller ones where ours are; no memory is taken
//! because a file asks for more than they allow.

/// Clusters of 512 bytes to 2 MiB.
pub const CLUSTER_BITS_MIN: u32 = 9;
pub const CLUSTER_BITS_MAX: u32 = 21;
/// Of files that are written.
pub const CLUSTER_BITS_WRITTEN_MIN: u32 = 12;
/// With 32 subclusters of a sector each.
pub const CLUSTER_BITS_EXTENDED_MIN: u32 = 14;
/// The disk that a guest sees, so that its 64 KiB lines count in 32 bits.
pub const VIRTUAL_BYTES_MAX: u64 = 256 << 40;
pub const L1_BYTES_MAX: u64 = 32 << 20;
pub const REFCOUNT_TABLE_BYTES_MAX: u64 = 8 << 20;
/// Refcounts of 1 to 64 bits.
pub const REFCOUNT_ORDER_MAX: u32 = 6;
pub const EXTENSIONS_MAX: usize = 64;
pub const BACKING_NAME_BYTES_MAX: u32 = 1023;
pub const FEATURE_NAMES_MAX: usize = 192;
pub const SNAPSHOTS_MAX: u32 = 65_536;
pub const SNAPSHOT_EXTRA_BYTES_MAX: u32 = 1024;
pub const SNAPSHOT_TABLE_BYTES_MAX: u64 = 64 << 20;
pub const BITMAPS_MAX: u32 = 65_535;
pub const BITMAP_DIRECTORY_BYTES_MAX: u64 = 64 << 20;
/// Entries of the table of one bitmap.
pub const BITMAP_TABLE_ENTRIES_MAX: u32 = 0x800_0000;
/// Offsets in a file have 56 bits.
pub const OFFSET_END: u64 = 1 << 56;
/// Files of a chain.
pub const CHAIN_FILES_MAX: usize = 64;
/// A compressed cluster is decompressed in one go.
pub const ZSTD_WINDOW_BYTES_MAX: u64 = 4 << 20;
/// Clusters of a file that is checked.
pub const CHECKED_CLUSTERS_MAX: u64 = 1 << 31;
