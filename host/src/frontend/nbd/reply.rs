//! The pieces replies are made of: errors, heads, chunks, extents.
//!
//! Always true: a frame is complete in itself, and the payload a caller sends behind one is as
//! long as it says. Deliberately absent: which request a reply belongs to.

use super::proto::{self, chunk};
use engine::event::Refusal;
use std::borrow::Cow;

/// The head of a reply, small enough to lie beside its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    bytes: [u8; Frame::BYTES_MAX],
    length: u8,
}

/// One part of the answer to a read; lengths are never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// The frame is followed by these bytes.
    Data { offset: u64, length: u32 },
    /// Reads as zeroes; nothing follows.
    Hole { offset: u64, length: u32 },
}

/// Allocation of consecutive bytes. The length is never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub length: u64,
    pub state: ExtentState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentState {
    Data,
    /// Allocated, and known to read as zeroes.
    Zero,
    /// Not allocated; reads as zeroes.
    Hole,
    /// Of a bitmap: may have changed, or has not.
    Changed,
    Same,
}

/// What a client is told about a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("operation not permitted")]
    NotPermitted,
    #[error("input/output error")]
    Io,
    #[error("invalid argument")]
    Invalid,
    #[error("no space left")]
    NoSpace,
    #[error("value too large")]
    Overflow,
    #[error("operation not supported")]
    NotSupported,
    #[error("export is being shut down")]
    Shutdown,
}

/// A whole reply that says why; the text is left out where the client cannot read it.
pub fn failure(structured: bool, cookie: u64, error: Error, text: &str) -> Vec<u8> {
    if !structured {
        return proto::simple_head(error.code(), cookie).to_vec();
    }
    let text_bytes = u16::try_from(text.len()).expect("the texts are our own, and short");
    let length = 6 + u32::from(text_bytes);
    let mut out = proto::chunk_head(chunk::DONE, chunk::ERROR, cookie, length).to_vec();
    out.extend_from_slice(&error.code().to_be_bytes());
    out.extend_from_slice(&text_bytes.to_be_bytes());
    out.extend_from_slice(text.as_bytes());
    out
}

/// The extents with their ends at whole blocks. A block that several cut is data, or changed: the
/// state that promises nothing.
pub fn whole_blocks(extents: &[Extent], block_bytes: u64) -> Cow<'_, [Extent]> {
    let whole = |extent: &Extent| extent.length.is_multiple_of(block_bytes);
    if extents.iter().all(whole) {
        return Cow::Borrowed(extents);
    }
    let mut rounded: Vec<Extent> = Vec::new();
    // Bytes of the block that the extents so far have begun, and what it is.
    let (mut begun, mut mixed) = (0, ExtentState::Data);
    for &Extent { length, state } in extents {
        let mut left = length;
        if begun > 0 {
            let more = left.min(block_bytes - begun);
            (begun, left) = (begun + more, left - more);
            mixed = match mixed == state {
                true => state,
                false => state.unsure(),
            };
            if begun < block_bytes {
                continue;
            }
            rounded.push(Extent {
                length: block_bytes,
                state: mixed,
            });
        }
        (begun, mixed) = (left % block_bytes, state);
        if left > begun {
            rounded.push(Extent {
                length: left - begun,
                state,
            });
        }
    }
    // Nothing is known of the rest of a block that the last one only begins.
    if rounded.is_empty() {
        rounded.push(Extent {
            length: block_bytes,
            state: mixed.unsure(),
        });
    }
    Cow::Owned(rounded)
}

/// Joins neighbours of one state, within the first `bytes` and up to a number of extents.
pub fn join(extents: &[Extent], bytes: u32, extents_max: usize) -> Vec<(u32, ExtentState)> {
    let mut joined: Vec<(u32, ExtentState)> = Vec::new();
    let mut left = bytes;
    for extent in extents {
        let length = extent.length.min(u64::from(left)) as u32;
        if length == 0 {
            assert!(extent.length > 0, "an extent is never empty");
            break;
        }
        match joined.last_mut() {
            Some((total, state)) if *state == extent.state => *total += length,
            _ => {
                if joined.len() == extents_max {
                    break;
                }
                joined.push((length, extent.state));
            }
        }
        left -= length;
    }
    joined
}

impl Frame {
    /// The longest is the head of a hole.
    pub const BYTES_MAX: usize = 32;

    pub(super) fn new(parts: &[&[u8]]) -> Frame {
        let mut frame = Frame {
            bytes: [0; Frame::BYTES_MAX],
            length: 0,
        };
        for part in parts {
            let start = usize::from(frame.length);
            let end = start + part.len();
            frame.bytes[start..end].copy_from_slice(part);
            frame.length = end as u8;
        }
        frame
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl ExtentState {
    /// The state of a part about which nothing is promised.
    const fn unsure(self) -> ExtentState {
        match self {
            ExtentState::Data | ExtentState::Zero | ExtentState::Hole => ExtentState::Data,
            ExtentState::Same | ExtentState::Changed => ExtentState::Changed,
        }
    }

    pub(super) const fn flags(self) -> u32 {
        match self {
            ExtentState::Data | ExtentState::Same => 0,
            ExtentState::Changed => proto::STATE_DIRTY,
            ExtentState::Zero => proto::STATE_ZERO,
            ExtentState::Hole => proto::STATE_HOLE | proto::STATE_ZERO,
        }
    }
}

impl Error {
    /// The number on the wire, which is Linux's for the most part.
    pub const fn code(self) -> u32 {
        match self {
            Error::NotPermitted => 1,
            Error::Io => 5,
            Error::Invalid => 22,
            Error::NoSpace => 28,
            Error::Overflow => 75,
            Error::NotSupported => 95,
            Error::Shutdown => 108,
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        match refusal {
            Refusal::Io
            | Refusal::Held
            | Refusal::CacheFailed
            | Refusal::Dirty
            | Refusal::Damaged
            | Refusal::Contradicts
            | Refusal::Busy
            | Refusal::NotQuiesced
            | Refusal::Unproved
            | Refusal::NoRoom => Error::Io,
            Refusal::NoSpace | Refusal::OriginFull => Error::NoSpace,
            Refusal::OutOfRange | Refusal::Policy => Error::Invalid,
            Refusal::ReadOnly => Error::NotPermitted,
            Refusal::Gone => Error::Shutdown,
        }
    }
}
