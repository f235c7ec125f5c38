//! The files of an image: the top, and below each qcow2 file its backing.
//!
//! Always true: 1 to 64 files; only the last one has no backing, and only it may be raw.
//! Deliberately absent: how backings are found and opened.

use crate::error::Error;
use crate::format::header::Header;
use crate::limits;
use crate::types::{FileId, FileIndex, SECTOR_BYTES};
use alloc::boxed::Box;
use alloc::vec::Vec;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// Its bytes are the guest's.
    Raw,
    Qcow2(Box<Header>),
}

/// One file of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Under which its tables are kept.
    pub id: FileId,
    /// Its length. Who lets it grow says so here.
    pub file_bytes: u64,
    /// The disk that a plan makes room for, where the file still says a smaller one.
    pub grows_to: Option<u64>,
    pub format: Format,
}

impl File {
    /// What the guest would see of this file: whole sectors, the last one filled with zeroes.
    pub fn size_bytes(&self) -> u64 {
        match &self.format {
            Format::Raw => self
                .file_bytes
                .div_ceil(SECTOR_BYTES)
                .saturating_mul(SECTOR_BYTES),
            Format::Qcow2(header) => self.grows_to.unwrap_or(header.size_bytes),
        }
    }

    pub fn header(&self) -> Option<&Header> {
        match &self.format {
            Format::Raw => None,
            Format::Qcow2(header) => Some(header),
        }
    }

    /// The same, for who writes the file.
    pub fn header_mut(&mut self) -> Option<&mut Header> {
        match &mut self.format {
            Format::Raw => None,
            Format::Qcow2(header) => Some(header),
        }
    }
}

/// All files of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    files: Vec<File>,
}

impl Chain {
    /// From the top down. A file that cannot be read is refused, and so is a file below one that
    /// has no backing.
    pub fn new(files: Vec<File>) -> Result<Chain, Error> {
        if files.is_empty() || files.len() > limits::CHAIN_FILES_MAX {
            return Err(Error::Deep(files.len()));
        }
        let last = files.len() - 1;
        for (index, file) in files.iter().enumerate() {
            let header = file.header();
            header.map_or(Ok(()), Header::is_readable)?;
            let backed = header.is_some_and(|it| it.backing.is_some());
            if backed != (index < last) {
                return Err(Error::Backing(index));
            }
        }
        Ok(Chain { files })
    }

    /// The disk that the guest sees.
    pub fn size_bytes(&self) -> u64 {
        self.files[0].size_bytes()
    }

    /// From the top down.
    pub fn files(&self) -> &[File] {
        &self.files
    }

    /// A file that some [`FileIndex`] of this chain names.
    pub fn file(&self, index: FileIndex) -> &File {
        &self.files[usize::from(index.0)]
    }

    /// The same, to change its length.
    pub fn file_mut(&mut self, index: FileIndex) -> &mut File {
        &mut self.files[usize::from(index.0)]
    }
}
