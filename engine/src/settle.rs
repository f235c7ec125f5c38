//! Settling a ledger: reading it and finishing the journal it points to.
//!
//! Always true: a journal is applied only when the ledger says *apply*, when every byte of it is
//! whole, and when size and modification time of the image still fit; then all of it is applied,
//! synced, and the ledger says so. Applying it again gives the same image. Runs before anything
//! else touches the origin, on any thread, and is what `origin replay` does.

use crate::adversary::{Bug, Mark, has, mark};
use crate::engine::OpenError;
use crate::event::{Device, Stat};
use crate::format::journal::{self, Journal, payload_at};
use crate::format::ledger::{LEDGER_BYTES, LEDGER_SLOTS, LOSS_ACCEPTED, Ledger, Progress};
use crate::format::record::EntryKind;
use crate::media::Media;
use crate::types::{SECTOR_BYTES, VolumeId};
use alloc::format;
use alloc::vec::Vec;

/// Applying a journal may change the image's modification time for so long.
const APPLY_NS_MAX: u64 = 3_600_000_000_000;

/// A ledger that was read and whose pending journal was finished.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// `None`: there is no ledger yet.
    pub ledger: Option<Ledger>,
    /// Entries of a journal that were applied by this call.
    pub journal_entries_applied: u64,
    /// The image as it is now, if it can be told.
    pub origin: Option<Stat>,
}

impl Settled {
    /// The administrator goes on without what the ledger says is dirty: from the state that was
    /// destaged last. A cut that an in-place destage had begun counts as reached, so that none of
    /// its serials is given again. The claim that follows `attach` starts a new generation, for
    /// which whatever a lost cache still has is void.
    pub fn accept_loss(&mut self) {
        let Some(ledger) = &mut self.ledger else {
            return;
        };
        if ledger.dirty {
            ledger.compatible |= LOSS_ACCEPTED;
        }
        ledger.dirty = false;
        if let Progress::Cut(upto) = ledger.progress {
            ledger.destaged = ledger.destaged.max(upto);
            ledger.progress = Progress::Idle;
        }
    }
}

/// What lies beside an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginInfo {
    pub ledger: Ledger,
    /// Of a pending journal: its entries, or what is wrong with it.
    pub journal: Option<Result<u64, OpenError>>,
}

/// Reads the ledger beside the origin of `volume` and finishes a pending journal, on any thread
/// that holds the origin's lock, before `attach`.
pub fn settle(media: &mut dyn Media, volume: VolumeId) -> Result<Settled, OpenError> {
    let Some(mut ledger) = read_ledger(media, volume)? else {
        return Ok(Settled {
            origin: media.stat(Device::Origin(volume)).ok(),
            ..Settled::default()
        });
    };
    let Progress::Apply { upto, .. } = ledger.progress else {
        return Ok(Settled {
            ledger: Some(ledger),
            journal_entries_applied: 0,
            origin: media.stat(Device::Origin(volume)).ok(),
        });
    };
    let stat = check_image(media, volume, &ledger)?;
    let journal = read_journal(media, volume, &ledger)?;
    check_payload(media, volume, &journal)?;
    // Applying changes the modification time, and may be cut short: the next one must know.
    // The clock over there is read off the ledger, which is written for it.
    ledger.mtime_limit_ns = ledger.mtime_limit_ns.max(stat.mtime_ns);
    write_ledger(media, volume, &mut ledger)?;
    let clock = media
        .stat(Device::Ledger(volume))
        .map_err(|_| OpenError::Io("the ledger"))?;
    let began = stat.mtime_ns.max(clock.mtime_ns).max(clock.now_ns);
    ledger.mtime_limit_ns = began.saturating_add(APPLY_NS_MAX);
    write_ledger(media, volume, &mut ledger)?;
    mark(Mark::JournalReplayed);
    if !has(Bug::SkipReplay) {
        apply(media, volume, &journal)?;
    }
    if !has(Bug::SkipReplaySync) {
        let synced = media.sync(Device::Origin(volume));
        synced.map_err(|_| OpenError::Io("the origin"))?;
    }
    ledger.progress = Progress::Idle;
    ledger.destaged = upto;
    write_ledger(media, volume, &mut ledger)?;
    let journal_entries_applied = journal.entries.len() as u64;
    Ok(Settled {
        ledger: Some(ledger),
        journal_entries_applied,
        // Just written: nothing that was kept of it counts.
        origin: None,
    })
}

/// Writes the next version of a ledger and syncs it.
fn write_ledger(
    media: &mut dyn Media,
    volume: VolumeId,
    ledger: &mut Ledger,
) -> Result<(), OpenError> {
    ledger.sequence += 1;
    let at = Ledger::slot_at(ledger.sequence);
    media
        .write(Device::Ledger(volume), at, &ledger.encode())
        .and_then(|()| media.sync(Device::Ledger(volume)))
        .map_err(|_| OpenError::Io("the ledger"))
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
        check_image(media, volume, &ledger)?;
        let journal = read_journal(media, volume, &ledger)?;
        check_payload(media, volume, &journal)?;
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
) -> Result<Stat, OpenError> {
    let stat = media
        .stat(Device::Origin(volume))
        .map_err(|_| OpenError::Io("the origin"))?;
    if stat.size_bytes != ledger.origin_bytes {
        return Err(OpenError::Refused(format!(
            "a journal is pending for an image of {} bytes, but it has {}; \
             restore the image the journal belongs to",
            ledger.origin_bytes, stat.size_bytes
        )));
    }
    if stat.mtime_ns > ledger.mtime_limit_ns {
        return Err(OpenError::Refused(
            "a journal is pending, but another program wrote the image since; \
             restore the image the journal belongs to, \
             or remove ledger and journal to keep it as it is"
                .into(),
        ));
    }
    Ok(stat)
}

fn read_journal(
    media: &mut dyn Media,
    volume: VolumeId,
    ledger: &Ledger,
) -> Result<Journal, OpenError> {
    let Progress::Apply {
        upto,
        journal_sequence,
        journal_bytes,
    } = ledger.progress
    else {
        unreachable!("only called for a pending journal");
    };
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
    let fits = journal.volume == ledger.volume
        && journal.sequence == journal_sequence
        && journal.upto == upto
        && journal.total_bytes == journal_bytes;
    if !fits {
        return Err(damaged(&"it is not the one the ledger speaks of"));
    }
    let sectors = ledger.origin_bytes / SECTOR_BYTES;
    if journal
        .entries
        .iter()
        .any(|entry| entry.span.end() > sectors)
    {
        return Err(damaged(&"it reaches beyond the image"));
    }
    Ok(journal)
}

/// Checks everything before anything is written.
fn check_payload(
    media: &mut dyn Media,
    volume: VolumeId,
    journal: &Journal,
) -> Result<(), OpenError> {
    let mut bytes = Vec::new();
    for entry in journal
        .entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Write)
    {
        bytes.resize((entry.span.sectors * SECTOR_BYTES) as usize, 0);
        media
            .read(Device::Journal(volume), entry.offset, &mut bytes)
            .map_err(|_| OpenError::Io("the journal"))?;
        if crate::format::checksum(&[&bytes]) != entry.checksum {
            return Err(OpenError::Damaged(format!(
                "the pending journal is damaged: payload for sector {} does not match",
                entry.span.sector
            )));
        }
    }
    Ok(())
}

fn apply(media: &mut dyn Media, volume: VolumeId, journal: &Journal) -> Result<(), OpenError> {
    let mut bytes = Vec::new();
    for entry in &journal.entries {
        let at = entry.span.sector * SECTOR_BYTES;
        let length = entry.span.sectors * SECTOR_BYTES;
        let written = match entry.kind {
            EntryKind::Zero { .. } => media.zero(Device::Origin(volume), at, length),
            EntryKind::Write => {
                bytes.resize(length as usize, 0);
                media
                    .read(Device::Journal(volume), entry.offset, &mut bytes)
                    .map_err(|_| OpenError::Io("the journal"))?;
                media.write(Device::Origin(volume), at, &bytes)
            }
        };
        written.map_err(|_| OpenError::Io("the origin"))?;
    }
    Ok(())
}
