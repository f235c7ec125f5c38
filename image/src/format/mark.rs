//! What a file says of the volume that wrote it last: an extension of ours and an autoclear bit.
//!
//! ```text
//! "TNUT" ─▶ volume (16) │ generation (4) │ zero (4) │ serial (8)      all big-endian
//! ```
//!
//! A program that does not know an autoclear bit clears it when it opens the file to write it, so
//! a file whose bit is gone was open in another program. Always true: the extension that is written
//! is the first one, right behind the header and inside the first sector, so each later change of
//! it goes with a write of that sector, which is atomic; nothing else of a header is lost when it
//! is put in, and where the first cluster has no room nothing is changed. Deliberately absent: who
//! compares it with what.

use super::extension::{self, Extension, FEATURE_NAMES};
use super::header::{GUARD, HEAD_BYTES, Header, LAYOUT_BYTES, Layout, OURS};
use super::{be32, be64};
use crate::limits;
use crate::types::SECTOR_BYTES;
use alloc::vec::Vec;
use core::mem::offset_of;

/// "TNUT".
pub const MARK: u32 = 0x544e_5554;
const MARK_BYTES: usize = 32;
/// With its magic number and its length.
const WHOLE_BYTES: usize = 8 + MARK_BYTES;
/// The header goes through a journal with it, so it is no longer than this.
const HEADER_BYTES_MAX: usize = 4096;
const FEATURE_BYTES: usize = 48;

/// Which volume has written the file, and how far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    pub volume: [u8; 16],
    pub generation: u32,
    /// The file has the writes of the volume up to this one.
    pub serial: u64,
}

impl Mark {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.volume.to_vec();
        bytes.extend(self.generation.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(self.serial.to_be_bytes());
        assert_eq!(bytes.len(), MARK_BYTES);
        bytes
    }

    /// The mark of a file with this first sector. `None` if it has none, or if its bit was cleared.
    pub fn of(sector: &[u8]) -> Option<Mark> {
        let header_bytes = marked_at(sector)?;
        let ours = be64(sector, offset_of!(Layout, autoclear)) & OURS != 0;
        let bytes = sector.get(header_bytes + 8..header_bytes + WHOLE_BYTES)?;
        ours.then(|| Mark::parse(bytes)).flatten()
    }

    fn parse(bytes: &[u8]) -> Option<Mark> {
        let mut volume = [0; 16];
        volume.copy_from_slice(bytes.get(..16)?);
        Some(Mark {
            volume,
            generation: be32(bytes, 16),
            serial: be64(bytes, 24),
        })
    }
}

/// Where the extension lies, if that is the first one of the file. Only version 3 has one.
fn marked_at(sector: &[u8]) -> Option<usize> {
    let sector = sector.get(..HEAD_BYTES)?;
    let layout = Layout::of(sector).ok()?;
    let at = layout.header_bytes.get() as usize;
    let first = layout.magic.get() == super::header::MAGIC
        && layout.version.get() == 3
        && at + WHOLE_BYTES <= HEAD_BYTES
        && be32(sector, at) == MARK
        && be32(sector, at + 4) as usize == MARK_BYTES;
    first.then_some(at)
}

impl Header {
    /// The volume that has written the file, if no other program has opened it to write it since.
    pub fn mark(&self) -> Option<Mark> {
        let bytes = extension::find(&self.extensions, MARK)?;
        let ours = self.version >= 3 && self.autoclear & OURS != 0 && bytes.len() == MARK_BYTES;
        ours.then(|| Mark::parse(bytes)).flatten()
    }

    /// The first sector with this mark in the place of the one that it has; as it is if it has
    /// none.
    pub fn with_mark(&self, sector: &[u8], mark: &Mark) -> Vec<u8> {
        let mut bytes = sector.to_vec();
        let Some(at) = marked_at(sector) else {
            return bytes;
        };
        bytes[at + 8..at + WHOLE_BYTES].copy_from_slice(&mark.encode());
        set_bits(&mut bytes, offset_of!(Layout, autoclear), OURS);
        bytes
    }

    /// All extensions but the mark, as they stand behind it.
    fn others(&self) -> Vec<Extension> {
        let others = self.extensions.iter().filter(|it| it.magic != MARK);
        let behind = |it: &Extension| Extension {
            magic: it.magic,
            bytes: match it.magic {
                FEATURE_NAMES => named(&it.bytes),
                _ => it.bytes.clone(),
            },
        };
        others.map(behind).collect()
    }

    /// The file has got this mark by a plan.
    pub(crate) fn accept_mark(&mut self, mark: &Mark) {
        let own = Extension {
            magic: MARK,
            bytes: mark.encode(),
        };
        self.extensions = [own].into_iter().chain(self.others()).collect();
        self.autoclear |= OURS;
    }

    /// The begin of the file, in whole sectors, with a mark put in: made of its first sector and of
    /// what this header has of the rest. It goes through the journal, so it has the guard. `None`
    /// where the first cluster has no room for it.
    pub fn marked(&self, sector: &[u8], mark: &Mark) -> Option<Vec<u8>> {
        self.own_layout(sector)?;
        self.begin_with(sector, mark)
    }

    /// The same of a sector that is known to be the first.
    pub(super) fn begin_with(&self, sector: &[u8], mark: &Mark) -> Option<Vec<u8>> {
        let header_bytes = self.header_bytes as usize;
        let name = self.backing.as_deref().unwrap_or_default();
        let named = name.len() <= limits::BACKING_NAME_BYTES_MAX as usize;
        if self.version < 3 || header_bytes + WHOLE_BYTES > HEAD_BYTES || !named {
            return None;
        }
        let mut bytes = sector.get(..header_bytes)?.to_vec();
        extension::append(&mut bytes, MARK, &mark.encode());
        let others = self.others();
        if others.len() >= limits::EXTENSIONS_MAX {
            return None;
        }
        for it in &others {
            extension::append(&mut bytes, it.magic, &it.bytes);
        }
        extension::append(&mut bytes, extension::END, &[]);
        let at = match self.backing {
            Some(_) => bytes.len() as u64,
            None => 0,
        };
        let place = offset_of!(Layout, backing_at);
        bytes[place..place + 8].copy_from_slice(&at.to_be_bytes());
        let place = offset_of!(Layout, backing_bytes);
        bytes[place..place + 4].copy_from_slice(&(name.len() as u32).to_be_bytes());
        bytes.extend(name.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(SECTOR_BYTES as usize), 0);
        set_bits(&mut bytes, offset_of!(Layout, autoclear), OURS);
        set_bits(&mut bytes, offset_of!(Layout, incompatible), GUARD);
        let room = (self.cluster_bytes() as usize).min(HEADER_BYTES_MAX);
        (bytes.len() <= room).then_some(bytes)
    }
}

/// Feature names with that of the guard, by which a program that refuses the file says why.
fn named(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let ours = extension::guard_name();
    let known = |it: &[u8]| it[..2] == ours[..2];
    if bytes.len().is_multiple_of(FEATURE_BYTES) && !bytes.chunks(FEATURE_BYTES).any(known) {
        bytes.extend(ours);
    }
    bytes
}

fn set_bits(bytes: &mut [u8], at: usize, bits: u64) {
    let bits = be64(bytes, at) | bits;
    bytes[at..at + 8].copy_from_slice(&bits.to_be_bytes());
}

const _: () = assert!(LAYOUT_BYTES + WHOLE_BYTES <= HEAD_BYTES);
const _: () = assert!(
    GUARD == 1 << extension::GUARD_NAME.1,
    "the bit that is named"
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::create::{Backing, BackingFormat, Shape, create};
    use alloc::string::String;

    const MARK_OF: Mark = Mark {
        volume: *b"sixteen bytes ok",
        generation: 3,
        serial: 0x0102_0304_0506,
    };

    /// A new file as its first sectors, and its length.
    fn file(name: &str) -> (Vec<u8>, u64) {
        let backing = Backing {
            name,
            format: BackingFormat::Qcow2,
        };
        let made = create(1 << 30, Shape::Extended, Some(backing)).expect("it can be made");
        let mut bytes = made.extents[0].bytes.clone();
        bytes.resize(8192, 0);
        (bytes, made.file_bytes)
    }

    fn is_named(header: &Header) -> bool {
        let names = header.feature_names();
        names.iter().filter(|it| it.bit == 61).count() == 1
    }

    #[test]
    fn a_mark_is_put_in_and_nothing_of_the_header_is_lost() {
        let (bytes, file_bytes) = file("gold/office-7.qcow2");
        let header = Header::parse(&bytes, file_bytes).expect("it is right");
        assert_eq!((header.mark(), Mark::of(&bytes[..512])), (None, None));
        let marked = header
            .marked(&bytes[..512], &MARK_OF)
            .expect("there is room");
        assert!(marked.len().is_multiple_of(512));
        let mut file = bytes.clone();
        file[..marked.len()].copy_from_slice(&marked);
        let again = Header::parse(&file, file_bytes).expect("it is still right");
        assert_eq!(again.mark(), Some(MARK_OF));
        assert_eq!(Mark::of(&file[..512]), Some(MARK_OF));
        assert!(again.is_guarded() && is_named(&again));
        let plain = |header: &Header| Header {
            incompatible: header.incompatible & !GUARD,
            autoclear: 0,
            extensions: Vec::new(),
            ..header.clone()
        };
        assert_eq!(plain(&again), plain(&header));
        let others = |it: &&extension::Extension| it.magic != MARK;
        let kept: Vec<_> = again.extensions.iter().filter(others).collect();
        assert_eq!(kept, header.extensions.iter().collect::<Vec<_>>());
        // The same once more changes nothing; a later one changes one sector.
        let same = again.marked(&file[..512], &MARK_OF).expect("it has room");
        assert_eq!(same, marked);
        let later = Mark {
            serial: u64::MAX,
            ..MARK_OF
        };
        let sector = again.with_mark(&file[..512], &later);
        assert_eq!(Mark::of(&sector), Some(later));
    }

    /// Fails when: a new file for the place of an image is not known by its mark, is closed to
    /// other programs, or has lost what it stands on.
    #[test]
    fn a_new_file_gets_a_mark_and_no_guard() {
        let longest: String = core::iter::repeat_n('n', 1023).collect();
        for (name, shape) in [("b", Shape::Plain), (&*longest, Shape::Extended)] {
            let format = BackingFormat::Qcow2;
            let new = create(1 << 30, shape, Some(Backing { name, format }));
            let new = new.and_then(|new| new.with_mark(&MARK_OF)).expect("made");
            let header = Header::parse(&new.extents[0].bytes, new.file_bytes).expect("right");
            assert_eq!(header.mark(), Some(MARK_OF));
            assert!(!header.is_guarded() && is_named(&header));
            assert_eq!(header.backing.as_deref(), Some(name));
        }
    }

    #[test]
    fn a_program_that_clears_the_bit_or_moves_the_extension_takes_the_mark_away() {
        let (bytes, file_bytes) = file("base.qcow2");
        let header = Header::parse(&bytes, file_bytes).expect("it is right");
        let marked = header
            .marked(&bytes[..512], &MARK_OF)
            .expect("there is room");
        let mut cleared = marked[..512].to_vec();
        cleared[offset_of!(Layout, autoclear)..][..8].fill(0);
        assert_eq!(Mark::of(&cleared), None);
        assert_eq!(
            Mark::of(&header.with_mark(&cleared, &MARK_OF)),
            Some(MARK_OF)
        );
        // Without a place in the first sector nothing is written.
        assert_eq!(header.with_mark(&bytes[..512], &MARK_OF), bytes[..512]);
        let mut moved = marked[..512].to_vec();
        moved[LAYOUT_BYTES] ^= 1;
        assert_eq!(Mark::of(&moved), None);
    }

    #[test]
    fn a_header_without_room_stays_as_it_is() {
        let long: String = core::iter::repeat_n('n', 1000).collect();
        let (bytes, file_bytes) = file(&long);
        let mut header = Header::parse(&bytes, file_bytes).expect("it is right");
        assert!(header.marked(&bytes[..512], &MARK_OF).is_some());
        header.extensions.push(extension::Extension {
            magic: 0x6161_6161,
            bytes: [7; 3000].to_vec(),
        });
        assert_eq!(header.marked(&bytes[..512], &MARK_OF), None);
        let another = [0; 512];
        assert_eq!(header.marked(&another, &MARK_OF), None);
    }
}
