//! The ledger beside an origin: who owns the volume and how far it has been destaged.
//!
//! Two slots (at 0 and at 4 KiB) are written in turn; the one with the higher sequence that is
//! whole counts. It is the journal's header as well: the journal beside it means nothing unless
//! the ledger says *apply*. Always true: `destaged` never grows before the bytes it speaks of
//! are synced at the origin.

use super::{FormatError, Kind, PREFIX_BYTES, Prefix, block, check, put_text, seal, text, zeroes};
use crate::image::{Image, Mark, Marked};
use crate::types::{Generation, Serial, Uuid};
use alloc::string::String;
use alloc::vec::Vec;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub const LEDGER_BYTES: usize = 4096;
pub const LEDGER_SLOTS: u64 = 2;
pub const OWNER_BYTES_MAX: usize = 64;
const INCOMPATIBLE_KNOWN: u64 = 0;
/// A compatible bit: a volume that was write-back goes past the log, because that failed or by
/// another policy, and what its guests have written to the origin may not be synced.
pub const PAST_LOG: u64 = 1;
/// A compatible feature: once a loss was accepted, so that serials of an older generation were
/// given again and say nothing of what is at the origin.
pub const LOSS_ACCEPTED: u64 = 2;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LedgerBytes {
    pub prefix: Prefix,
    pub incompatible: U64,
    pub compatible: U64,
    pub sequence: U64,
    pub volume: [u8; 16],
    pub cache: [u8; 16],
    pub machine: [u8; 16],
    pub boot: [u8; 16],
    pub generation: U32,
    pub state: U16,
    pub flags: U16,
    pub destaged: U64,
    pub upto: U64,
    pub journal_sequence: U64,
    pub journal_bytes: U64,
    pub origin_bytes: U64,
    pub mtime_before_ns: U64,
    pub mtime_limit_ns: U64,
    pub replicas: U16,
    pub owner_bytes: U16,
    pub owner: [u8; OWNER_BYTES_MAX],
    pub image_inode: U64,
    pub image_birth_ns: U64,
    pub image_bytes: U64,
    pub image_mtime_ns: U64,
    pub image_below: U64,
    pub mark_serial: U64,
    pub mark_generation: U32,
}

const _: () = assert!(size_of::<LedgerBytes>() == PREFIX_BYTES + 272);
const _: () = assert!(size_of::<LedgerBytes>() <= LEDGER_BYTES);
const _: () = assert!(PAST_LOG & LOSS_ACCEPTED == 0, "a bit has one meaning");
const _: () = assert!(LEDGER_SLOTS == 2, "the ledger before is left whole");

/// What is going on at the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The origin is exactly the state after `destaged`.
    Idle,
    /// The same, and places of the image that nothing in it refers to are being written.
    Prepare,
    /// In-place destage is writing the origin towards this serial.
    Cut(Serial),
    /// The journal with this sequence and length brings the origin to this serial.
    Apply {
        upto: Serial,
        journal_sequence: u64,
        journal_bytes: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    pub sequence: u64,
    pub volume: Uuid,
    /// The cache that may hold dirty data of the volume.
    pub cache: Uuid,
    pub machine: Uuid,
    pub boot: Uuid,
    pub owner: String,
    pub generation: Generation,
    pub destaged: Serial,
    pub progress: Progress,
    /// The owner may hold data that the origin does not have.
    pub dirty: bool,
    pub origin_bytes: u64,
    /// Modification time of the origin before the journal was applied, and the latest one that
    /// applying it can have caused.
    pub mtime_before_ns: u64,
    pub mtime_limit_ns: u64,
    /// The image as it was when the ledger was written; after a destage also its time, which
    /// nobody has changed since. Unknown where the storage does not tell.
    pub image: Image,
    /// Another file may have the place of the image: one with the [mark](Ledger::successor) of
    /// this moment, which was made to stand on what was the image.
    pub may_succeed: bool,
    /// Bits of newer releases that this one keeps.
    pub compatible: u64,
}

const STATE_IDLE: u16 = 1;
const STATE_CUT: u16 = 2;
const STATE_APPLY: u16 = 3;
const STATE_PREPARE: u16 = 4;
const FLAG_DIRTY: u16 = 1;
/// The image has a mark of the volume.
const FLAG_MARKED: u16 = 2;
/// See [`Ledger::may_succeed`].
const FLAG_SUCCESSOR: u16 = 4;
const FLAGS_KNOWN: u16 = FLAG_DIRTY | FLAG_MARKED | FLAG_SUCCESSOR;

impl Ledger {
    /// Nothing that is dirty is asked for any more. A cut that an in-place destage had begun counts
    /// as reached, so that none of its serials is given again. False if nothing was dirty.
    pub fn accept_loss(&mut self) -> bool {
        let dirty = core::mem::replace(&mut self.dirty, false);
        if dirty {
            self.compatible |= LOSS_ACCEPTED;
        }
        if let Progress::Cut(upto) = self.progress {
            self.destaged = self.destaged.max(upto);
            self.progress = Progress::Idle;
        }
        dirty
    }

    /// From here on the origin may hold writes without a sync. False if that was said before.
    pub fn go_past_log(&mut self) -> bool {
        let new = self.compatible & PAST_LOG == 0;
        self.compatible |= PAST_LOG;
        new
    }

    /// The image has the journal up to this serial, or there was none (0) and only a guard to
    /// clear. What a destage in place has cut short stays so until a journal was applied.
    pub fn reach(&mut self, upto: Serial, progress: Progress) {
        if upto > Serial(0) || !matches!(self.progress, Progress::Cut(_)) {
            self.progress = progress;
        }
        self.destaged = self.destaged.max(upto);
    }

    /// The mark of a file that may take the place of the image now.
    pub fn successor(&self) -> Mark {
        Mark {
            volume: self.volume,
            generation: self.generation,
            serial: self.destaged,
        }
    }

    /// Where the next sequence is written.
    pub fn slot_at(sequence: u64) -> u64 {
        (sequence % LEDGER_SLOTS) * LEDGER_BYTES as u64
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut owner = [0; OWNER_BYTES_MAX];
        let owner_bytes = put_text(&mut owner, &self.owner);
        let (state, upto, journal_sequence, journal_bytes) = match self.progress {
            Progress::Idle => (STATE_IDLE, 0, 0, 0),
            Progress::Prepare => (STATE_PREPARE, 0, 0, 0),
            Progress::Cut(upto) => (STATE_CUT, upto.0, 0, 0),
            Progress::Apply {
                upto,
                journal_sequence,
                journal_bytes,
            } => (STATE_APPLY, upto.0, journal_sequence, journal_bytes),
        };
        let mark = match self.image.marked {
            Marked::By(mark) if mark.volume == self.volume => Some(mark),
            _ => None,
        };
        let dirty = if self.dirty { FLAG_DIRTY } else { 0 };
        let successor = if self.may_succeed { FLAG_SUCCESSOR } else { 0 };
        let marked = mark.map_or(0, |_| FLAG_MARKED);
        let record = LedgerBytes {
            prefix: Prefix::new(Kind::Ledger),
            incompatible: U64::new(0),
            compatible: U64::new(self.compatible),
            sequence: U64::new(self.sequence),
            volume: self.volume.0,
            cache: self.cache.0,
            machine: self.machine.0,
            boot: self.boot.0,
            generation: U32::new(self.generation.0),
            state: U16::new(state),
            flags: U16::new(dirty | marked | successor),
            destaged: U64::new(self.destaged.0),
            upto: U64::new(upto),
            journal_sequence: U64::new(journal_sequence),
            journal_bytes: U64::new(journal_bytes),
            origin_bytes: U64::new(self.origin_bytes),
            mtime_before_ns: U64::new(self.mtime_before_ns),
            mtime_limit_ns: U64::new(self.mtime_limit_ns),
            replicas: U16::new(0),
            owner_bytes: U16::new(owner_bytes),
            owner,
            image_inode: U64::new(self.image.inode),
            image_birth_ns: U64::new(self.image.birth_ns),
            image_bytes: U64::new(self.image.size_bytes),
            image_mtime_ns: U64::new(self.image.mtime_ns),
            image_below: U64::new(self.image.below),
            mark_serial: U64::new(mark.map_or(0, |mark| mark.serial.0)),
            mark_generation: U32::new(mark.map_or(0, |mark| mark.generation.0)),
        };
        let mut bytes = block(LEDGER_BYTES);
        bytes[..size_of::<LedgerBytes>()].copy_from_slice(record.as_bytes());
        seal(&mut bytes);
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<Ledger, FormatError> {
        if bytes.len() != LEDGER_BYTES {
            return Err(FormatError::Short);
        }
        check(bytes, Kind::Ledger)?;
        let (record, rest) = LedgerBytes::ref_from_prefix(bytes).map_err(|_| FormatError::Short)?;
        zeroes(rest)?;
        let unknown = record.incompatible.get() & !INCOMPATIBLE_KNOWN;
        if unknown != 0 {
            return Err(FormatError::Incompatible(unknown));
        }
        if record.flags.get() & !FLAGS_KNOWN != 0 {
            return Err(FormatError::Field("ledger flags"));
        }
        if record.replicas.get() != 0 {
            return Err(FormatError::Field("replicas"));
        }
        let upto = Serial(record.upto.get());
        let progress = match record.state.get() {
            STATE_IDLE => Progress::Idle,
            STATE_PREPARE => Progress::Prepare,
            STATE_CUT => Progress::Cut(upto),
            STATE_APPLY => Progress::Apply {
                upto,
                journal_sequence: record.journal_sequence.get(),
                journal_bytes: record.journal_bytes.get(),
            },
            _ => return Err(FormatError::Field("ledger state")),
        };
        let destaged = Serial(record.destaged.get());
        // The next write has the serial behind it.
        if destaged.0 == u64::MAX {
            return Err(FormatError::Field("ledger serial"));
        }
        let rests = matches!(progress, Progress::Idle | Progress::Prepare);
        if !rests && upto < destaged {
            return Err(FormatError::Field("ledger progress"));
        }
        Ok(Ledger {
            sequence: record.sequence.get(),
            volume: Uuid(record.volume),
            cache: Uuid(record.cache),
            machine: Uuid(record.machine),
            boot: Uuid(record.boot),
            owner: text(&record.owner, record.owner_bytes.get())?,
            generation: Generation(record.generation.get()),
            destaged,
            progress,
            dirty: record.flags.get() & FLAG_DIRTY != 0,
            origin_bytes: record.origin_bytes.get(),
            mtime_before_ns: record.mtime_before_ns.get(),
            mtime_limit_ns: record.mtime_limit_ns.get(),
            image: image_of(record),
            may_succeed: record.flags.get() & FLAG_SUCCESSOR != 0,
            compatible: record.compatible.get(),
        })
    }

    /// The newest whole slot of a ledger file. `Ok(None)` when both slots are blank: there is no
    /// ledger yet. A slot that is neither blank nor whole is a torn write beside a good slot, and
    /// damage without one.
    pub fn parse_file(bytes: &[u8]) -> Result<Option<Ledger>, FormatError> {
        let mut newest: Option<Ledger> = None;
        let mut damage = None;
        for slot in bytes.chunks(LEDGER_BYTES).take(LEDGER_SLOTS as usize) {
            if slot.iter().all(|&byte| byte == 0) {
                continue;
            }
            match Ledger::parse(slot) {
                Ok(ledger)
                    if newest
                        .as_ref()
                        .is_none_or(|old| old.sequence < ledger.sequence) =>
                {
                    newest = Some(ledger);
                }
                Ok(_) => {}
                // A newer program wrote this; its other slot may be an older state of ours.
                Err(error @ (FormatError::Version(_) | FormatError::Incompatible(_))) => {
                    return Err(error);
                }
                Err(error) => damage = Some(error),
            }
        }
        match (newest, damage) {
            (Some(ledger), _) => Ok(Some(ledger)),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }
}

fn image_of(record: &LedgerBytes) -> Image {
    let mark = Mark {
        volume: Uuid(record.volume),
        generation: Generation(record.mark_generation.get()),
        serial: Serial(record.mark_serial.get()),
    };
    Image {
        device: 0,
        inode: record.image_inode.get(),
        birth_ns: record.image_birth_ns.get(),
        size_bytes: record.image_bytes.get(),
        mtime_ns: record.image_mtime_ns.get(),
        lasts: record.image_inode.get() != 0,
        below: record.image_below.get(),
        marked: match record.flags.get() & FLAG_MARKED != 0 {
            true => Marked::By(mark),
            false => Marked::Unknown,
        },
    }
}
