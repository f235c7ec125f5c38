//! What stands behind the header: extensions, each with a magic number and a length.
//!
//! Owns their list and those that are understood: backing format, feature names, bitmaps, external
//! data file, encryption header. Always true: an unknown one is kept with its bytes, so that a
//! header can be written again without losing it; each magic stands once.

use super::{be32, be64};
use crate::error::Error;
use crate::limits;
use crate::types::Range;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

pub const END: u32 = 0;
pub const BACKING_FORMAT: u32 = 0xe279_2aca;
pub const FEATURE_NAMES: u32 = 0x6803_f857;
pub const BITMAPS: u32 = 0x2385_2875;
pub const DATA_FILE: u32 = 0x4441_5441;
pub const ENCRYPTION: u32 = 0x0537_be77;

const FEATURE_BYTES: usize = 48;
const FEATURE_NAME_BYTES: usize = FEATURE_BYTES - 2;
/// The guard by set and number, and what a program says that does not know it.
pub(crate) const GUARD_NAME: (u8, u8, &str) = (0, 61, "tenuto: run \"tenuto origin replay\"");
const BITMAPS_BYTES: usize = 24;
const ENCRYPTION_BYTES: usize = 16;

/// One extension as it stands in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    pub magic: u32,
    pub bytes: Vec<u8>,
}

/// Which of the three sets of feature bits a name is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureSet {
    Incompatible,
    Compatible,
    Autoclear,
    Unknown(u8),
}

/// What the writer of a file calls a feature bit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureName {
    pub set: FeatureSet,
    pub bit: u8,
    pub name: String,
}

/// Where the directory of dirty bitmaps lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bitmaps {
    pub count: u32,
    pub directory: Range,
}

/// The list from `start` to an end mark or to `end`, both offsets in the first cluster. The sum of
/// a length and its padding never reaches behind `end`.
pub fn parse(cluster: &[u8], start: usize, end: usize) -> Result<Vec<Extension>, Error> {
    let mut found: Vec<Extension> = Vec::new();
    let mut at = start;
    while at < end {
        let magic = be32(cluster, at);
        let wrong = |what| Error::Extension {
            magic,
            at: at as u64,
            what,
        };
        let Some(room) = end.checked_sub(at + 8) else {
            return Err(wrong("cut at the end of the header"));
        };
        let length = be32(cluster, at + 4) as usize;
        if length > room {
            return Err(wrong("longer than the header has room"));
        }
        if magic == END {
            break;
        }
        if found.len() == limits::EXTENSIONS_MAX {
            return Err(Error::ExtensionsMany);
        }
        if found.iter().any(|it| it.magic == magic) {
            let at = at as u64;
            return Err(Error::ExtensionTwice { magic, at });
        }
        let mut bytes = cluster.get(at + 8..).unwrap_or_default().to_vec();
        bytes.resize(length, 0);
        found.push(Extension { magic, bytes });
        at += 8 + length.next_multiple_of(8);
    }
    Ok(found)
}

/// The bytes of this extension, if there is one.
pub fn find(list: &[Extension], magic: u32) -> Option<&[u8]> {
    let found = list.iter().find(|it| it.magic == magic);
    found.map(|it| it.bytes.as_slice())
}

/// Text without NUL.
pub(crate) fn name(bytes: &[u8], what: &'static str) -> Result<String, Error> {
    let text = core::str::from_utf8(bytes).map_err(|_| Error::Name { what })?;
    match text.contains('\0') {
        true => Err(Error::Name { what }),
        false => Ok(text.to_string()),
    }
}

/// Names that are no text are left out: they are only for messages.
pub fn feature_names(bytes: &[u8]) -> Vec<FeatureName> {
    let entries = bytes.chunks_exact(FEATURE_BYTES);
    let named = entries.take(limits::FEATURE_NAMES_MAX).filter_map(|entry| {
        let text = entry.get(2..)?.split(|byte| *byte == 0).next()?;
        let text = core::str::from_utf8(text).ok()?;
        let set = match entry.first()? {
            0 => FeatureSet::Incompatible,
            1 => FeatureSet::Compatible,
            2 => FeatureSet::Autoclear,
            other => FeatureSet::Unknown(*other),
        };
        Some(FeatureName {
            set,
            bit: *entry.get(1)?,
            name: text.to_string(),
        })
    });
    named.collect()
}

/// Only of a file whose autoclear bit says that they are right.
pub fn bitmaps(bytes: &[u8], cluster_bytes: u64, file_bytes: u64) -> Result<Bitmaps, Error> {
    let wrong = |what| Error::Extension {
        magic: BITMAPS,
        at: 0,
        what,
    };
    if bytes.len() != BITMAPS_BYTES {
        return Err(wrong("of another length than 24 bytes"));
    }
    let count = be32(bytes, 0);
    let directory = Range {
        at: be64(bytes, 16),
        bytes: be64(bytes, 8),
    };
    if be32(bytes, 4) != 0 {
        return Err(wrong("with its reserved field set"));
    }
    if count == 0 || count > limits::BITMAPS_MAX {
        return Err(wrong("with no bitmap or more than 65535"));
    }
    if directory.bytes == 0 || directory.bytes > limits::BITMAP_DIRECTORY_BYTES_MAX {
        return Err(wrong(
            "with a directory that is empty or larger than 64 MiB",
        ));
    }
    if directory.at == 0 || !directory.at.is_multiple_of(cluster_bytes) {
        return Err(wrong("with a directory that begins inside a cluster"));
    }
    if !directory.is_inside(file_bytes) {
        return Err(wrong("with a directory behind the end of the file"));
    }
    Ok(Bitmaps { count, directory })
}

/// Where the encryption header lies.
pub fn encryption(bytes: &[u8], cluster_bytes: u64) -> Result<Range, Error> {
    let wrong = |what| Error::Extension {
        magic: ENCRYPTION,
        at: 0,
        what,
    };
    if bytes.len() != ENCRYPTION_BYTES {
        return Err(wrong("of another length than 16 bytes"));
    }
    let range = Range {
        at: be64(bytes, 0),
        bytes: be64(bytes, 8),
    };
    if !range.at.is_multiple_of(cluster_bytes) {
        return Err(wrong(
            "with an encryption header that begins inside a cluster",
        ));
    }
    if !range.is_inside(limits::OFFSET_END) {
        return Err(wrong("with an encryption header behind all files"));
    }
    Ok(range)
}

/// Appends an extension with its padding.
pub fn append(to: &mut Vec<u8>, magic: u32, bytes: &[u8]) {
    to.extend(magic.to_be_bytes());
    to.extend((bytes.len() as u32).to_be_bytes());
    to.extend(bytes);
    to.resize(to.len().next_multiple_of(8), 0);
}

/// What the guard is called in a list of feature names.
pub(crate) fn guard_name() -> Vec<u8> {
    feature_name(GUARD_NAME)
}

/// One entry of that list.
pub(crate) fn feature_name((set, bit, name): (u8, u8, &str)) -> Vec<u8> {
    assert!(name.len() <= FEATURE_NAME_BYTES);
    let mut bytes = vec![set, bit];
    bytes.extend(name.as_bytes());
    bytes.resize(2 + FEATURE_NAME_BYTES, 0);
    bytes
}
