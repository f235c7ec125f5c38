//! What a file stands on, when that becomes another one.
//!
//! Always true: name and format change together. Deliberately absent: whether that file is there,
//! and who reads it.

use super::extension::{BACKING_FORMAT, Extension};
use super::header::Header;
use super::mark::Mark;
use crate::create::BackingFormat;
use crate::types::SECTOR_BYTES;
use alloc::string::{String, ToString};

/// What a file is to stand on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Onto {
    /// It has all of its disk itself.
    Nothing,
    File {
        /// As it shall stand in the file: relative to its directory, or absolute.
        name: String,
        format: BackingFormat,
    },
}

impl Header {
    /// The header of a file that stands there.
    pub(crate) fn set_onto(&mut self, onto: &Onto) {
        let (name, format) = match onto {
            Onto::Nothing => (None, None),
            Onto::File { name, format } => (Some(name.clone()), Some(format.name())),
        };
        let at = self
            .extensions
            .iter()
            .position(|it| it.magic == BACKING_FORMAT);
        self.extensions.retain(|it| it.magic != BACKING_FORMAT);
        if let Some(format) = format {
            let it = Extension {
                magic: BACKING_FORMAT,
                bytes: format.as_bytes().to_vec(),
            };
            self.extensions.insert(at.unwrap_or(0), it);
        }
        self.backing = name;
        self.backing_format = format.map(ToString::to_string);
    }

    /// Whether the first cluster has room for that.
    pub fn has_room_for(&self, onto: &Onto) -> bool {
        let mut moved = self.clone();
        moved.set_onto(onto);
        let bytes = [0; SECTOR_BYTES as usize];
        moved.begin_with(&bytes, &Mark::default()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::create::{Shape, create};

    #[test]
    fn a_name_that_no_reader_takes_has_no_room() {
        let made = create(1 << 30, Shape::Extended, None).expect("it can be made");
        let header = Header::parse(&made.extents[0].bytes, made.file_bytes);
        let header = header.expect("it parses");
        let named = |bytes: usize| Onto::File {
            name: "a".repeat(bytes),
            format: BackingFormat::Raw,
        };
        assert!(header.has_room_for(&Onto::Nothing) && header.has_room_for(&named(1023)));
        assert!(!header.has_room_for(&named(1024)));
    }
}
