//! Bytes that outlive the process. Nothing outside this folder knows an offset.
//!
//! Always true: every structure starts with a [`Prefix`] (magic, version, kind, checksum); the
//! checksum covers the whole structure with its own field as zero; reserved bytes are zero and
//! checked; an unknown incompatible bit refuses, an unknown compatible bit is kept. Parsing
//! checks everything before it returns anything, and never panics on foreign bytes. Deliberately
//! absent: where a structure lies and when it is written; that is the log's and the ledger's.

pub mod checkpoint;
pub mod fill;
pub mod footer;
pub mod journal;
pub mod ledger;
pub mod record;
pub mod stage;
pub mod superblock;

use crate::types::Uuid;
use alloc::vec::Vec;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of everything Tenuto writes.
pub const MAGIC: [u8; 8] = *b"TENUTO\r\n";
/// Version of all structures of this release.
pub const VERSION: u16 = 1;

/// What a structure is. Zero is invalid, so that a block of zeroes is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    Superblock = 1,
    Checkpoint = 2,
    Record = 3,
    Footer = 4,
    Ledger = 5,
    Journal = 6,
    Stage = 7,
    FillRecord = 8,
    FillFooter = 9,
    InlineRecord = 10,
    VaultRecord = 11,
    Pointer = 12,
}

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    #[error("not written by tenuto")]
    Magic,
    #[error("written by version {0}, this program reads version 1")]
    Version(u16),
    #[error("of another kind")]
    Kind,
    #[error("checksum does not match")]
    Checksum,
    #[error("belongs to another cache or volume")]
    Foreign,
    #[error("has a feature this program does not know (bits {0:#x})")]
    Incompatible(u64),
    #[error("reserved bytes are not zero")]
    Reserved,
    #[error("field {0} is out of range")]
    Field(&'static str),
    #[error("too short")]
    Short,
}

/// The first 16 bytes of every structure.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Prefix {
    pub magic: [u8; 8],
    pub version: U16,
    pub kind: U16,
    pub checksum: U32,
}

pub const PREFIX_BYTES: usize = 16;
pub(crate) const CHECKSUM_AT: usize = 12;
const _: () = assert!(size_of::<Prefix>() == PREFIX_BYTES);
const _: () = assert!(core::mem::offset_of!(Prefix, checksum) == CHECKSUM_AT);

impl Prefix {
    pub fn new(kind: Kind) -> Prefix {
        Prefix {
            magic: MAGIC,
            version: U16::new(VERSION),
            kind: U16::new(kind as u16),
            checksum: U32::new(0),
        }
    }
}

static CASTAGNOLI: crc::Crc<u32, crc::Table<16>> =
    crc::Crc::<u32, crc::Table<16>>::new(&crc::CRC_32_ISCSI);

/// CRC-32C of control bytes. Payload is summed by the host, with the same polynomial.
pub fn checksum(parts: &[&[u8]]) -> u32 {
    let mut digest = CASTAGNOLI.digest();
    for part in parts {
        digest.update(part);
    }
    digest.finalize()
}

/// Checksum of a structure whose own checksum field counts as zero.
fn sealed_sum(bytes: &[u8]) -> u32 {
    checksum(&[&bytes[..CHECKSUM_AT], &[0; 4], &bytes[PREFIX_BYTES..]])
}

/// Writes the checksum into a finished structure.
pub fn seal(bytes: &mut [u8]) {
    assert!(
        bytes.len() >= PREFIX_BYTES,
        "a structure begins with a prefix"
    );
    let sum = sealed_sum(bytes);
    bytes[CHECKSUM_AT..PREFIX_BYTES].copy_from_slice(&sum.to_le_bytes());
}

/// Checks magic, version, kind and checksum of a structure that fills `bytes`.
pub fn check(bytes: &[u8], kind: Kind) -> Result<(), FormatError> {
    check_prefix(bytes, kind)?;
    let stored = &bytes[CHECKSUM_AT..PREFIX_BYTES];
    if stored != sealed_sum(bytes).to_le_bytes() {
        return Err(FormatError::Checksum);
    }
    Ok(())
}

/// Checks magic, version and kind only, for structures that are summed in parts.
fn check_prefix(bytes: &[u8], kind: Kind) -> Result<(), FormatError> {
    let (prefix, _) = Prefix::ref_from_prefix(bytes).map_err(|_| FormatError::Short)?;
    if prefix.magic != MAGIC {
        return Err(FormatError::Magic);
    }
    if prefix.version.get() != VERSION {
        return Err(FormatError::Version(prefix.version.get()));
    }
    if prefix.kind.get() != kind as u16 {
        return Err(FormatError::Kind);
    }
    Ok(())
}

/// A reserved area that must be zero.
pub fn zeroes(bytes: &[u8]) -> Result<(), FormatError> {
    if bytes.iter().all(|&byte| byte == 0) {
        Ok(())
    } else {
        Err(FormatError::Reserved)
    }
}

pub fn uuid(bytes: [u8; 16]) -> Uuid {
    Uuid(bytes)
}

/// A short text in a fixed field: one length byte pair outside, UTF-8 inside, zero padded.
pub fn text(bytes: &[u8], len: u16) -> Result<alloc::string::String, FormatError> {
    let len = usize::from(len);
    if len > bytes.len() {
        return Err(FormatError::Field("text length"));
    }
    zeroes(&bytes[len..])?;
    core::str::from_utf8(&bytes[..len])
        .map(Into::into)
        .map_err(|_| FormatError::Field("text"))
}

/// Stores a text that was checked to fit.
pub fn put_text(field: &mut [u8], text: &str) -> u16 {
    assert!(
        text.len() <= field.len(),
        "texts are checked before they reach the format"
    );
    field[..text.len()].copy_from_slice(text.as_bytes());
    text.len() as u16
}

/// A zeroed block with room for a structure.
pub fn block(bytes: usize) -> Vec<u8> {
    alloc::vec![0; bytes]
}
