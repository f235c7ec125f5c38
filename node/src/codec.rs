//! Bytes of what hosts say to each other: numbers, identities, texts and short blobs, written one
//! after the other.
//!
//! Always true: reading never panics on foreign bytes, and keeps no more than a limit that its
//! caller gives; what is read is written again as the same bytes. Deliberately absent: what the
//! fields mean, and checksums.

use alloc::string::String;
use alloc::vec::Vec;
use engine::types::Uuid;

/// Why bytes cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    Short,
    Field(&'static str),
}

/// Bytes to write.
pub(crate) struct Out(pub Vec<u8>);

impl Out {
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn uuid(&mut self, id: Uuid) {
        self.0.extend_from_slice(&id.0);
    }

    pub fn text(&mut self, text: &str, max: usize) {
        let mut end = text.len().min(max);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        assert!(end <= usize::from(u16::MAX), "a text is short");
        self.u16(end as u16);
        self.0.extend_from_slice(&text.as_bytes()[..end]);
    }

    pub fn blob(&mut self, bytes: &[u8], max: usize) {
        assert!(bytes.len() <= max, "what is written has its limit");
        self.u16(bytes.len() as u16);
        self.0.extend_from_slice(bytes);
    }
}

/// Foreign bytes that are left to read.
pub(crate) struct In<'a>(pub &'a [u8]);

impl<'a> In<'a> {
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Bad> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Bad::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Bad> {
        self.take(N)?.try_into().map_err(|_| Bad::Short)
    }

    pub fn u8(&mut self) -> Result<u8, Bad> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, Bad> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Bad> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Bad> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn uuid(&mut self) -> Result<Uuid, Bad> {
        self.array().map(Uuid)
    }

    pub fn flag(&mut self, field: &'static str) -> Result<bool, Bad> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Bad::Field(field)),
        }
    }

    /// One line of UTF-8: it is shown to people and stored in lists.
    pub fn text(&mut self, field: &'static str, max: usize) -> Result<String, Bad> {
        let length = usize::from(self.u16()?);
        if length > max {
            return Err(Bad::Field(field));
        }
        let text = core::str::from_utf8(self.take(length)?);
        let text = text.map_err(|_| Bad::Field(field))?;
        match text.chars().any(char::is_control) {
            true => Err(Bad::Field(field)),
            false => Ok(text.into()),
        }
    }

    pub fn blob(&mut self, field: &'static str, max: usize) -> Result<Vec<u8>, Bad> {
        let length = usize::from(self.u16()?);
        if length > max {
            return Err(Bad::Field(field));
        }
        self.take(length).map(<[u8]>::to_vec)
    }
}
