//! Settling a ledger: reading it and finishing the journal it points to.
//!
//! Always true: a ledger that was settled is durable, so that whoever writes the next one over the
//! slot before it has this one to fall back to. A journal is applied only when the ledger says
//! *apply*, when every byte of it is whole, and when size and modification time of the image still
//! fit; one that is damaged is told of, and `attach` knows whether the log has what it had; else
//! all of it is applied, synced, and the ledger says so. Applying it again gives the same image, in
//! any order of its entries, which do not overlap; so many requests are in flight together, because
//! a volume waits for all of them. Runs before anything else touches the origin, on any thread, and
//! is what `origin replay` does.

use crate::adversary::{Bug, Mark, has, mark};
use crate::event::{Device, Stat};
use crate::format::journal::{self, Journal, JournalEntry, payload_at};
use crate::format::ledger::{LEDGER_BYTES, LEDGER_SLOTS, Ledger, Progress};
use crate::format::record::EntryKind;
use crate::image::{Finding, Image, Named, compare};
use crate::media::Media;
use crate::open::OpenError;
use crate::types::{SECTOR_BYTES, Uuid, VolumeId};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Applying a journal may change the image's modification time for so long.
const APPLY_NS_MAX: u64 = 3_600_000_000_000;
/// Payload that is read, checked and written together; at least one entry.
const STEP_BYTES: usize = 8 << 20;
/// Longest request to journal or origin, unless one entry is longer.
const REQUEST_BYTES: usize = 256 << 10;

const _: () = assert!(REQUEST_BYTES <= STEP_BYTES, "a request lies in one step");

/// A ledger that was read and whose pending journal was finished, unless that is damaged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// `None`: there is no ledger yet.
    pub ledger: Option<Ledger>,
    /// Entries of a journal that were applied by this call.
    pub journal_entries_applied: u64,
    /// The pending journal is damaged, and nothing of it was applied by this call. Only who has
    /// all of it in a log can go on.
    pub journal_damage: Option<String>,
    /// The pending journal was left as it is, for an engine that serves the volume meanwhile.
    pub journal_left: bool,
    /// The image as it is now, if it can be told.
    pub origin: Option<Stat>,
    /// The administrator goes on with what the log has, though the stage is gone.
    pub without_stage: bool,
    /// What the image is known by, also of one that was written just now.
    pub image: Option<Image>,
    /// The same as the other kind of user knows it: who reads an image that is not raw has one
    /// identity for all its files, who writes it has that of the first, and a print of the rest.
    pub image_otherwise: Option<Image>,
    /// What the log has goes to the image that is there, whichever that is.
    pub overwrite: bool,
    /// What the ledger said to be dirty was given up just now.
    pub loss_accepted: bool,
    /// The host that had the volume before lives, and may be asked for what it has clean of the
    /// image: since it has let go of that, no write has gone there that has no serial.
    pub former: bool,
    /// Another host may still write the image: neither its ledger nor its journal was looked at.
    /// Only who has all that is not there, by the records of a cluster, can go on.
    pub unproved: bool,
}

/// What becomes of a pending journal whose image is not the one it was made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Otherwise {
    /// Nothing, and the volume is not attached.
    #[default]
    Refuse,
    /// The same, but a copy that was made together with its ledger and journal counts: an
    /// administrator has named it.
    TakeCopy,
    /// The image stays as it is; the journal is given up.
    KeepImage,
    /// The journal is applied to the image that is there.
    KeepLog,
}

impl Settled {
    /// The same without a log: a pending journal must be whole.
    pub fn without_log(self) -> Result<Settled, OpenError> {
        match self.journal_damage {
            Some(why) => Err(OpenError::Damaged(why)),
            None => Ok(self),
        }
    }

    /// The administrator goes on without what the ledger says is dirty: from the state that was
    /// destaged last. A cut that an in-place destage had begun counts as reached, so that none of
    /// its serials is given again. The claim that follows `attach` starts a new generation, for
    /// which whatever a lost cache still has is void.
    pub fn accept_loss(&mut self) {
        let Some(ledger) = &mut self.ledger else {
            return;
        };
        self.loss_accepted |= ledger.accept_loss();
    }
}

/// What lies beside an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginInfo {
    pub ledger: Ledger,
    /// Of a pending journal: its entries, or what is wrong with it.
    pub journal: Option<Result<u64, OpenError>>,
}

/// Reads the ledger beside the origin of `volume`, makes it durable, and finishes a pending
/// journal, on any thread that holds the origin's lock, before `attach`.
pub fn settle(media: &mut dyn Media, volume: VolumeId) -> Result<Settled, OpenError> {
    settle_or(media, volume, Otherwise::Refuse)
}

/// The same, told what becomes of a journal whose image is another one.
pub fn settle_or(
    media: &mut dyn Media,
    volume: VolumeId,
    otherwise: Otherwise,
) -> Result<Settled, OpenError> {
    settle_for(media, volume, otherwise, None)
}

/// The same for an engine: a journal of its own cache is left to it, if the image fits. `attach`
/// refuses one whose writes its log does not have ([`OpenError::JournalFirst`]).
pub fn settle_for(
    media: &mut dyn Media,
    volume: VolumeId,
    otherwise: Otherwise,
    cache: Option<Uuid>,
) -> Result<Settled, OpenError> {
    // Who does not know its image cannot tell it from another one later.
    let stat = media.stat(Device::Origin(volume));
    let origin = stat.map_err(|_| OpenError::Io("the origin"))?;
    let as_it_is = Settled {
        origin: Some(origin),
        image: origin.image,
        overwrite: otherwise == Otherwise::KeepLog,
        ..Settled::default()
    };
    let Some(mut ledger) = read_ledger(media, volume)? else {
        return Ok(as_it_is);
    };
    sync_left(media, volume, &ledger)?;
    let Progress::Apply { upto, .. } = ledger.progress else {
        return Ok(Settled {
            ledger: Some(ledger),
            ..as_it_is
        });
    };
    let stat = match check_image(media, volume, &ledger, otherwise) {
        Err(OpenError::Image(_)) if otherwise == Otherwise::KeepImage => {
            ledger.progress = Progress::Idle;
            ledger.destaged = upto;
            return Ok(Settled {
                ledger: Some(ledger),
                ..as_it_is
            });
        }
        checked => checked?,
    };
    if cache == Some(ledger.cache) && ledger.dirty && otherwise == Otherwise::Refuse {
        return Ok(Settled {
            ledger: Some(ledger),
            journal_left: true,
            // About to be written: nothing that was kept of it counts.
            origin: None,
            ..as_it_is
        });
    }
    let journal = match read_whole_journal(media, volume, &ledger) {
        Err(OpenError::Damaged(why)) => {
            return Ok(Settled {
                ledger: Some(ledger),
                journal_damage: Some(why),
                ..as_it_is
            });
        }
        other => other?,
    };
    let image = finish(media, volume, &mut ledger, &journal, stat.mtime_ns)?;
    let journal_entries_applied = journal.entries.len() as u64;
    Ok(Settled {
        ledger: Some(ledger),
        journal_entries_applied,
        // Just written: nothing that was kept of it counts.
        origin: None,
        image,
        ..as_it_is
    })
}

/// Applies a journal that was found whole, and says so in the ledger. Returns what the image is
/// known by then.
fn finish(
    media: &mut dyn Media,
    volume: VolumeId,
    ledger: &mut Ledger,
    journal: &Journal,
    mtime_ns: u64,
) -> Result<Option<Image>, OpenError> {
    assert!(
        matches!(ledger.progress, Progress::Apply { upto, .. } if upto == journal.upto),
        "the ledger names the journal"
    );
    // Applying changes the modification time, and may be cut short: the next one must know.
    // The clock over there is read off the ledger, which is written for it.
    ledger.mtime_limit_ns = ledger.mtime_limit_ns.max(mtime_ns);
    write_ledger(media, volume, ledger)?;
    let clock = media
        .stat(Device::Ledger(volume))
        .map_err(|_| OpenError::Io("the ledger"))?;
    let began = mtime_ns.max(clock.mtime_ns).max(clock.now_ns);
    // Never earlier than before: a power loss may bring back a time that was allowed then.
    let limit = began.saturating_add(APPLY_NS_MAX);
    ledger.mtime_limit_ns = ledger.mtime_limit_ns.max(limit);
    write_ledger(media, volume, ledger)?;
    mark(Mark::JournalReplayed);
    if !has(Bug::SkipReplay) {
        apply(media, volume, journal)?;
    }
    if !has(Bug::SkipReplaySync) {
        let synced = media.sync(Device::Origin(volume));
        synced.map_err(|_| OpenError::Io("the origin"))?;
    }
    ledger.progress = Progress::Idle;
    ledger.destaged = journal.upto;
    let image = media.stat(Device::Origin(volume)).ok();
    let image = image.and_then(|origin| origin.image);
    ledger.image = image.map_or(ledger.image.written(), Image::kept);
    write_ledger(media, volume, ledger)?;
    Ok(image)
}

/// Writes the next version of a ledger and syncs it.
fn write_ledger(
    media: &mut dyn Media,
    volume: VolumeId,
    ledger: &mut Ledger,
) -> Result<(), OpenError> {
    ledger.sequence += 1;
    let at = Ledger::slot_at(ledger.sequence);
    let bytes = ledger.encode();
    assert!(Ledger::parse(&bytes).is_ok(), "what is written can be read");
    media
        .write(Device::Ledger(volume), at, &bytes)
        .map_err(|_| OpenError::Io("the ledger"))?;
    sync_ledger(media, volume)
}

fn sync_ledger(media: &mut dyn Media, volume: VolumeId) -> Result<(), OpenError> {
    let synced = media.sync(Device::Ledger(volume));
    synced.map_err(|_| OpenError::Io("the ledger"))
}

/// Syncs what a daemon that has died may have left unsynced: its ledger, because the next one goes
/// over the last that is known to be synced; the image whose size may have changed, because guests
/// are told what it says; and that of a destage in place that was cut short. Where the log that has
/// the rest is lost, guests read that, and it has to stay.
fn sync_left(media: &mut dyn Media, volume: VolumeId, ledger: &Ledger) -> Result<(), OpenError> {
    if !has(Bug::BelieveUnsyncedLedger) {
        sync_ledger(media, volume)?;
    }
    let resized = ledger.image.mtime_ns == 0 && !has(Bug::BelieveUnsyncedSize);
    if resized || matches!(ledger.progress, Progress::Cut(_)) {
        let synced = media.sync(Device::Origin(volume));
        synced.map_err(|_| OpenError::Io("the origin"))?;
    }
    Ok(())
}

/// The bytes of a journal that `settle` would finish, by the ledger alone.
pub fn pending_journal(media: &mut dyn Media, volume: VolumeId) -> Result<Option<u64>, OpenError> {
    let ledger = read_ledger(media, volume)?;
    Ok(ledger.and_then(|ledger| match ledger.progress {
        Progress::Apply { journal_bytes, .. } => Some(journal_bytes),
        _ => None,
    }))
}

/// Looks at ledger and journal without changing anything.
pub fn inspect_origin(
    media: &mut dyn Media,
    volume: VolumeId,
) -> Result<Option<OriginInfo>, OpenError> {
    let Some(ledger) = read_ledger(media, volume)? else {
        return Ok(None);
    };
    let journal = matches!(ledger.progress, Progress::Apply { .. }).then(|| {
        check_image(media, volume, &ledger, Otherwise::TakeCopy)?;
        let journal = read_whole_journal(media, volume, &ledger)?;
        Ok(journal.entries.len() as u64)
    });
    Ok(Some(OriginInfo { ledger, journal }))
}

fn read_ledger(media: &mut dyn Media, volume: VolumeId) -> Result<Option<Ledger>, OpenError> {
    let mut bytes = alloc::vec![0; LEDGER_BYTES * LEDGER_SLOTS as usize];
    media
        .read(Device::Ledger(volume), 0, &mut bytes)
        .map_err(|_| OpenError::Io("the ledger"))?;
    Ledger::parse_file(&bytes).map_err(|error| OpenError::Damaged(format!("ledger {error}")))
}

/// The image must be the one the journal was made for.
fn check_image(
    media: &mut dyn Media,
    volume: VolumeId,
    ledger: &Ledger,
    otherwise: Otherwise,
) -> Result<Stat, OpenError> {
    let stat = media
        .stat(Device::Origin(volume))
        .map_err(|_| OpenError::Io("the origin"))?;
    if stat.size_bytes != ledger.origin_bytes {
        return Err(OpenError::Image(format!(
            "a journal is pending for an image of {} bytes, but it has {}; \
             restore the image the journal belongs to",
            ledger.origin_bytes, stat.size_bytes
        )));
    }
    if otherwise == Otherwise::KeepLog {
        return Ok(stat);
    }
    let image = stat.image.unwrap_or_default();
    let (known, named) = (ledger.image.written(), Named::Unknown);
    let taken = known.is_unknown() || otherwise == Otherwise::TakeCopy || has(Bug::ReplayToAny);
    let same = taken || compare(&known, Some(&image), named) != Finding::Replaced;
    if !same {
        return Err(OpenError::Image(
            "a journal is pending, but the image was replaced by another file since; \
             restore the image the journal belongs to, or run `tenuto origin replay` on a copy \
             of it"
                .into(),
        ));
    }
    if stat.mtime_ns > ledger.mtime_limit_ns {
        return Err(OpenError::Image(
            "a journal is pending, but another program wrote the image since; \
             restore the image the journal belongs to"
                .into(),
        ));
    }
    Ok(stat)
}

/// A journal of which every byte is whole.
fn read_whole_journal(
    media: &mut dyn Media,
    volume: VolumeId,
    ledger: &Ledger,
) -> Result<Journal, OpenError> {
    let journal = read_journal(media, volume, ledger)?;
    check_payload(media, volume, &journal)?;
    Ok(journal)
}

fn read_journal(
    media: &mut dyn Media,
    volume: VolumeId,
    ledger: &Ledger,
) -> Result<Journal, OpenError> {
    let damaged = |why: &dyn core::fmt::Display| {
        OpenError::Damaged(format!("the pending journal is damaged: {why}"))
    };
    let mut header = alloc::vec![0; journal::HEADER_BYTES];
    let device = Device::Journal(volume);
    media
        .read(device, 0, &mut header)
        .map_err(|_| OpenError::Io("the journal"))?;
    let entries = Journal::parse_entries(&header).map_err(|error| damaged(&error))?;
    let mut bytes = alloc::vec![0; payload_at(entries) as usize];
    media
        .read(device, 0, &mut bytes)
        .map_err(|_| OpenError::Io("the journal"))?;
    let journal = Journal::parse(&bytes).map_err(|error| damaged(&error))?;
    check_table(&journal, ledger).map_err(|why| damaged(&why))?;
    Ok(journal)
}

/// A journal must be the one that the ledger names, and lie within its image.
pub fn check_table(journal: &Journal, ledger: &Ledger) -> Result<(), &'static str> {
    let named = Progress::Apply {
        upto: journal.upto,
        journal_sequence: journal.sequence,
        journal_bytes: journal.total_bytes,
    };
    if journal.volume != ledger.volume || named != ledger.progress {
        return Err("it is not the one the ledger speaks of");
    }
    let sectors = ledger.origin_bytes.div_ceil(SECTOR_BYTES);
    let mut entries = journal.entries.iter();
    match entries.any(|entry| entry.span.end() > sectors) {
        true => Err("it reaches beyond the image"),
        false => Ok(()),
    }
}

/// Checks everything before anything is written.
fn check_payload(
    media: &mut dyn Media,
    volume: VolumeId,
    journal: &Journal,
) -> Result<(), OpenError> {
    let mut bytes = Vec::new();
    for step in steps(&journal.entries) {
        read_payload(media, volume, step, &mut bytes)?;
        for (entry, at) in placed(step) {
            let payload = &bytes[at..at + payload_bytes(entry)];
            if crate::format::checksum(&[payload]) != entry.checksum {
                return Err(OpenError::Damaged(format!(
                    "the pending journal is damaged: payload for sector {} does not match",
                    entry.span.sector
                )));
            }
        }
    }
    Ok(())
}

fn apply(media: &mut dyn Media, volume: VolumeId, journal: &Journal) -> Result<(), OpenError> {
    let origin = Device::Origin(volume);
    let mut bytes = Vec::new();
    for step in steps(&journal.entries) {
        for entry in step.iter().filter(|entry| !carries(entry)) {
            let (at, length) = (entry.span.sector, entry.span.sectors);
            let zeroed = media.zero(origin, at * SECTOR_BYTES, length * SECTOR_BYTES);
            zeroed.map_err(|_| OpenError::Io("the origin"))?;
        }
        read_payload(media, volume, step, &mut bytes)?;
        let wanted = placed(step).map(|(entry, _)| {
            let place = entry.span.sector * SECTOR_BYTES;
            (place, payload_bytes(entry))
        });
        let mut rest = &bytes[..];
        let writes = joined(wanted).into_iter().map(|(place, length)| {
            let (now, later) = rest.split_at(length);
            rest = later;
            (place, now)
        });
        let writes: Vec<_> = writes.collect();
        let written = media.write_many(origin, &writes);
        assert!(rest.is_empty(), "all of a step is written");
        written.map_err(|_| OpenError::Io("the origin"))?;
    }
    Ok(())
}

/// What an entry has in the journal beside its line of the table.
pub fn payload_bytes(entry: &JournalEntry) -> usize {
    match entry.kind {
        EntryKind::Write => (entry.span.sectors * SECTOR_BYTES) as usize,
        EntryKind::Zero { .. } => 0,
    }
}

fn carries(entry: &JournalEntry) -> bool {
    payload_bytes(entry) > 0
}

/// Entries in their order, cut where the payload of the next would not fit into one step.
fn steps(entries: &[JournalEntry]) -> impl Iterator<Item = &[JournalEntry]> {
    let mut rest = entries;
    core::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = rest.iter().take_while(|entry| {
            bytes += payload_bytes(entry);
            bytes <= STEP_BYTES
        });
        let count = fits.count().max(1).min(rest.len());
        let (step, later) = rest.split_at(count);
        rest = later;
        (!step.is_empty()).then_some(step)
    })
}

/// The entries of a step that carry payload, and where it lies in the memory of the step.
fn placed(step: &[JournalEntry]) -> impl Iterator<Item = (&JournalEntry, usize)> {
    let carrying = step.iter().filter(|entry| carries(entry));
    carrying.scan(0, |next, entry| {
        let at = *next;
        *next += payload_bytes(entry);
        Some((entry, at))
    })
}

/// Ranges of a device, as few as they make: those that follow each other are one.
fn joined(ranges: impl Iterator<Item = (u64, usize)>) -> Vec<(u64, usize)> {
    let mut joined: Vec<(u64, usize)> = Vec::new();
    for (at, bytes) in ranges {
        assert!(bytes > 0, "a range has bytes");
        match joined.last_mut() {
            Some((start, length))
                if *start + *length as u64 == at && *length + bytes <= REQUEST_BYTES =>
            {
                *length += bytes;
            }
            _ => joined.push((at, bytes)),
        }
    }
    joined
}

/// The payload of a step, one entry behind the other.
fn read_payload(
    media: &mut dyn Media,
    volume: VolumeId,
    step: &[JournalEntry],
    bytes: &mut Vec<u8>,
) -> Result<(), OpenError> {
    bytes.resize(step.iter().map(payload_bytes).sum(), 0);
    let wanted = placed(step).map(|(entry, _)| (entry.offset, payload_bytes(entry)));
    let mut rest = &mut bytes[..];
    let mut reads = Vec::new();
    for (offset, length) in joined(wanted) {
        let (now, later) = rest.split_at_mut(length);
        rest = later;
        reads.push((offset, now));
    }
    assert!(rest.is_empty(), "all of a step is read");
    let read = media.read_many(Device::Journal(volume), &mut reads);
    read.map_err(|_| OpenError::Io("the journal"))
}
