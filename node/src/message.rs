//! What two hosts say to each other about one unit.
//!
//! Always true: a message moves no right. It makes another host look at the vault, or let go of a
//! unit by a record of its own; so a message that is lost, late, or said twice costs time only.
//! Parsing never panics on foreign bytes.

use alloc::string::String;
use alloc::vec::Vec;
use engine::types::Uuid;

/// Longest text for people.
pub const TEXT_BYTES_MAX: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// A client of the sender wants the unit that the receiver owns by this record.
    Take { number: u64 },
    /// The owner does not let go of it, and why.
    Denied { why: String },
    /// The owner brings what is dirty to the origin first; so many bytes are left.
    Draining { bytes: u64 },
    /// There is a newer record than the receiver may know.
    Newer { number: u64 },
    /// The receiver is no owner by what the sender knows of the vault.
    NotMine { number: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    pub unit: Uuid,
    pub body: Body,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no message between hosts")]
pub struct Malformed;

impl Message {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::from(self.unit.0);
        let (kind, number, text) = match &self.body {
            Body::Take { number } => (1, *number, ""),
            Body::Denied { why } => (2, 0, why.as_str()),
            Body::Draining { bytes } => (3, *bytes, ""),
            Body::Newer { number } => (4, *number, ""),
            Body::NotMine { number } => (5, *number, ""),
        };
        bytes.push(kind);
        bytes.extend(number.to_le_bytes());
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        bytes.extend(&text.as_bytes()[..end]);
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<Message, Malformed> {
        let (unit, rest) = bytes.split_first_chunk::<16>().ok_or(Malformed)?;
        let (&kind, rest) = rest.split_first().ok_or(Malformed)?;
        let (number, text) = rest.split_first_chunk::<8>().ok_or(Malformed)?;
        let number = u64::from_le_bytes(*number);
        if text.len() > TEXT_BYTES_MAX || (kind != 2 && !text.is_empty()) {
            return Err(Malformed);
        }
        let text = core::str::from_utf8(text).map_err(|_| Malformed)?;
        let body = match kind {
            1 => Body::Take { number },
            2 if number == 0 => Body::Denied { why: text.into() },
            3 => Body::Draining { bytes: number },
            4 => Body::Newer { number },
            5 => Body::NotMine { number },
            _ => return Err(Malformed),
        };
        let unit = Uuid(*unit);
        Ok(Message { unit, body })
    }
}
