//! What can be wrong with a file as a whole.
//!
//! Always true: the sentence says what is wrong and where in the file, and it names no file; who
//! opened one puts its name in front. What is wrong with single entries of tables is
//! [`Damage`](crate::resolve::Damage) and the findings of [`check`](crate::check).

use crate::limits;
use alloc::string::String;

/// What a reader can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The file is something else.
    Foreign,
    /// It is right, and this version does not read it.
    Unsupported,
    /// It breaks the format.
    Damaged,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("does not begin as a qcow2 file")]
    NotQcow2,
    #[error("ends after {bytes} bytes, inside its header")]
    Short { bytes: u64 },
    #[error("is qcow2 version {0}; versions 2 and 3 are read")]
    Version(u32),
    #[error("has clusters of 2^{0} bytes; 2^9 to 2^21 are allowed, 2^14 at least with subclusters")]
    ClusterBits(u32),
    #[error("has a header of {0} bytes; 104 to one cluster, in steps of 8, are allowed")]
    HeaderBytes(u32),
    #[error("has a virtual size of {0} bytes; 512 bytes to 256 TiB are read")]
    VirtualSize(u64),
    #[error("has refcounts of 2^{0} bits; 2^6 is the most")]
    RefcountOrder(u32),
    #[error("is encrypted by the unknown method {0}")]
    Encryption(u32),
    #[error("compresses by the unknown method {0}")]
    Compression(u8),
    #[error("says zlib and zstd of its compression: byte 104 and incompatible bit 3 disagree")]
    CompressionBit,
    #[error("needs features that are not known here: {0}")]
    Features(String),
    #[error("has its {what} at offset {at:#x}, which is no multiple of its cluster")]
    Misaligned { what: &'static str, at: u64 },
    #[error("is too large in its {what} of {found}; {most} is the most")]
    TooLarge {
        what: &'static str,
        found: u64,
        most: u64,
    },
    #[error("has its {what} at offset {at:#x} with {bytes} bytes, outside of {room} bytes")]
    Outside {
        what: &'static str,
        at: u64,
        bytes: u64,
        room: u64,
    },
    #[error("has an L1 table of {entries} entries; its size needs {needed}")]
    L1TooSmall { entries: u32, needed: u64 },
    #[error("has no refcount table")]
    NoRefcountTable,
    #[error("has more than {} header extensions", limits::EXTENSIONS_MAX)]
    ExtensionsMany,
    #[error("has the header extension {magic:#010x} twice, again at offset {at}")]
    ExtensionTwice { magic: u32, at: u64 },
    #[error("has at offset {at} the header extension {magic:#010x} {what}")]
    Extension {
        magic: u32,
        at: u64,
        what: &'static str,
    },
    #[error("has a name of its {what} that is not UTF-8 text without NUL")]
    Name { what: &'static str },
    #[error("has its snapshot {number} of {of} wrong at offset {at:#x}: {what}")]
    Snapshot {
        number: u32,
        of: u32,
        at: u64,
        what: &'static str,
    },
    #[error("has at offset {at:#x} a wrong bitmap directory: {what}")]
    Bitmap { at: u64, what: &'static str },
    #[error("keeps its data in an external data file, which is not read in this version")]
    DataFile,
    #[error(
        "keeps its data in an external data file, which is not read in this version, and does not \
         name it"
    )]
    DataFileUnnamed,
    #[error("is encrypted by LUKS, and does not say where the keys are")]
    NoEncryptionHeader,
    #[error("says of an external data file that it is raw, and has none")]
    RawWithoutDataFile,
    #[error("is encrypted, which is not read in this version")]
    Encrypted,
    #[error(
        "is qcow2 version 2, which is only read; `qemu-img amend -o compat=1.1` makes it version 3"
    )]
    WriteVersion,
    #[error("has clusters of {0} bytes, which are only read; 4096 at least are written")]
    WriteClusters(u64),
    #[error("was not closed by who wrote it last; `qemu-img check -r all` repairs its refcounts")]
    WriteDirty,
    #[error("is marked as corrupt, and is only read; `qemu-img check -r all` may repair it")]
    WriteCorrupt,
    #[error("has {0} dirty bitmaps that a write would make wrong, and is only read")]
    WriteBitmaps(u32),
    #[error("has autoclear features that are not known here ({0:#x}), and is only read")]
    WriteAutoclear(u64),
    #[error("is another image than the one that was opened")]
    Another,
    #[error("stands on a chain of {0} files; 1 to {max} are read", max = limits::CHAIN_FILES_MAX)]
    Deep(usize),
    #[error("is no chain: file {0} has a backing and none is given, or the other way round")]
    Backing(usize),
}

impl Error {
    pub const fn kind(&self) -> Kind {
        match self {
            Error::NotQcow2 => Kind::Foreign,
            Error::Version(_)
            | Error::VirtualSize(_)
            | Error::Features(_)
            | Error::Compression(_)
            | Error::Encryption(_)
            | Error::DataFile
            | Error::DataFileUnnamed
            | Error::Encrypted
            | Error::WriteVersion
            | Error::WriteClusters(_)
            | Error::WriteBitmaps(_)
            | Error::WriteAutoclear(_)
            | Error::Deep(_) => Kind::Unsupported,
            _ => Kind::Damaged,
        }
    }
}
