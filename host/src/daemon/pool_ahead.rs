//! What members of a pool have read of their image is read of the next one before they move.
//!
//! ```text
//! staged ─▶ what the caches have of the image before ─▶ the same places read, a piece at a time
//!                                                        └▶ over ─▶ switched ─▶ let go of
//! ```
//!
//! Two images of one system have most of it at the same places, so what a cache has of the one is
//! what guests will ask the other for: above all what they read when they start. The next image is
//! a volume of its own meanwhile, which is only read, has a name that no other volume can have, and
//! is shown to no client. Always true: a pool switches to an image when it is read ahead of, and
//! not where that has failed; one piece is under way at a time, so guests are hardly held up; no
//! more is read than half of what the cache holds, because guests still use the image before; the
//! volume stays until all members have moved, so that its blocks have a reader. Deliberately
//! absent: which image comes when; see [`super::pools`].

use super::opened::Joining;
use super::volumes::Entry;
use super::{Daemon, VolumeError, VolumeSettings};
use crate::config::units::human_bytes;
use crate::origin::Format;
use crate::pool::members::CloneKind;
use crate::pool::order::Prefetch;
use crate::shard::control::{CommandError, Handle};
use engine::chart::{Cursor, Site};
use engine::event::{Command, Refusal};
use engine::snapshot::Snapshot;
use engine::types::{BLOCK_BYTES, BLOCK_SECTORS, Policy, SECTOR_BYTES, Span, VolumeId};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// What is read at once: a few requests at the origin.
const PIECE_SECTORS: u64 = (256 << 10) / SECTOR_BYTES;
/// Between two attempts, where the daemon has no buffer for it.
const PAUSE: Duration = Duration::from_millis(50);
/// How often a volume that is kept looks whether the daemon stops.
const LOOK: Duration = Duration::from_secs(1);

/// How far the reading of an image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    Reading,
    /// Members find what guests had asked the image before for.
    Over,
    Failed(String),
    /// It is not wanted any more, or the daemon stops.
    GivenUp,
}

/// How far it is, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AheadShown {
    pub read_bytes: u64,
    pub total_bytes: u64,
    pub over: bool,
}

struct State {
    progress: Progress,
    read_sectors: u64,
    /// The volume stays until this is false.
    wanted: bool,
}

/// An image on its way into the cache.
pub(super) struct Ahead {
    pub image: PathBuf,
    total_sectors: u64,
    state: Mutex<State>,
    changed: Condvar,
}

impl Ahead {
    /// One of which nothing is read.
    pub fn ended(image: &Path, progress: Progress) -> Arc<Ahead> {
        Ahead::new(image, progress, 0)
    }

    fn new(image: &Path, progress: Progress, total_sectors: u64) -> Arc<Ahead> {
        Arc::new(Ahead {
            image: image.to_owned(),
            total_sectors,
            state: Mutex::new(State {
                progress,
                read_sectors: 0,
                wanted: true,
            }),
            changed: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn progress(&self) -> Progress {
        self.state().progress.clone()
    }

    pub fn shown(&self) -> AheadShown {
        let state = self.state();
        AheadShown {
            read_bytes: state.read_sectors * SECTOR_BYTES,
            total_bytes: self.total_sectors * SECTOR_BYTES,
            over: state.progress == Progress::Over,
        }
    }

    /// Returns when it is over, however.
    pub fn wait(&self) {
        let mut state = self.state();
        while state.progress == Progress::Reading {
            let woken = self.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The volume goes.
    pub fn let_go(&self) {
        let mut state = self.state();
        state.wanted = false;
        if state.progress == Progress::Reading {
            state.progress = Progress::GivenUp;
        }
        drop(state);
        self.changed.notify_all();
    }

    fn end(&self, progress: Progress) {
        let mut state = self.state();
        if state.progress == Progress::Reading {
            state.progress = progress;
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Reads all of it. The image is not read any further where it is not wanted.
    fn read(&self, handle: &Handle, volume: VolumeId, spans: &[Span]) {
        for span in spans {
            let mut at = span.sector;
            while at < span.end() {
                if !self.state().wanted {
                    return;
                }
                let sectors = PIECE_SECTORS.min(span.end() - at);
                match handle.read_ahead(volume, Span::new(at, sectors)) {
                    Ok(()) => {
                        at += sectors;
                        self.state().read_sectors += sectors;
                    }
                    Err(CommandError::Refused(Refusal::Busy)) => thread::sleep(PAUSE),
                    Err(CommandError::Stopped(_) | CommandError::Refused(Refusal::Gone)) => {
                        return self.end(Progress::GivenUp);
                    }
                    Err(error) => {
                        let (image, byte) = (self.image.display(), at * SECTOR_BYTES);
                        let why = format!("{image}: cannot be read at byte {byte}: {error}");
                        return self.end(Progress::Failed(why));
                    }
                }
            }
        }
        self.end(Progress::Over);
    }

    /// Keeps the volume as long as it is wanted, and lets go of it.
    fn keep(&self, handle: &Handle, volume: VolumeId) {
        let mut state = self.state();
        while state.wanted {
            let woken = self.changed.wait_timeout(state, LOOK);
            (state, _) = woken.unwrap_or_else(PoisonError::into_inner);
            let stops = state.wanted && handle.ping().is_err();
            state.wanted &= !stops;
        }
        drop(state);
        let discard_dirty = false;
        let command = Command::Detach {
            volume,
            discard_dirty,
        };
        if let Err(CommandError::Refused(refusal)) = handle.command(command) {
            let image = self.image.display();
            tracing::warn!("{image}: was read ahead, and is not let go of: {refusal}");
        }
    }
}

/// What volumes of this kind are called: the one before may not have gone yet.
fn fresh_name(pool: &str) -> String {
    static NUMBERS: AtomicU32 = AtomicU32::new(0);
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    format!("{pool}{}{number}", crate::pool::INNER)
}

impl Daemon {
    /// Begins to read an image ahead for a pool.
    pub(super) fn begin_ahead(
        &self,
        pool: &str,
        image: &Path,
        prefetch: Prefetch,
        over: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Ahead>, VolumeError> {
        let nothing = || Ok(Ahead::ended(image, Progress::Over));
        if prefetch == Prefetch::None || self.members(pool)?.is_empty() {
            return nothing();
        }
        let spans = match prefetch {
            Prefetch::All => vec![Span::new(0, u64::MAX)],
            _ => self.read_by_members(pool)?,
        };
        if spans.is_empty() {
            return nothing();
        }
        let entry = self.join_inner(pool, image)?;
        let room = room_sectors(&self.handle.snapshot()?.engine);
        let spans = clipped(spans, entry.size_bytes / SECTOR_BYTES, room);
        let total = spans.iter().map(|span| span.sectors).sum();
        let ahead = Ahead::new(image, Progress::Reading, total);
        let (shown, bytes) = (image.display(), ahead.total_sectors * SECTOR_BYTES);
        tracing::info!("pool {pool}: reads {} of {shown} ahead", human_bytes(bytes));
        let (reader, handle, volume) = (ahead.clone(), self.handle.clone(), entry.id);
        let work = move || {
            reader.read(&handle, volume, &spans);
            over();
            reader.keep(&handle, volume);
        };
        let thread = thread::Builder::new().name("pool ahead".into());
        if let Err(error) = thread.spawn(work) {
            self.leave(&entry)?;
            let why = format!("pool {pool}: a thread that reads ahead: {error}");
            return Err(VolumeError::Origin(why));
        }
        Ok(ahead)
    }

    /// Parts of the disk that the caches have of the image that members have.
    fn read_by_members(&self, pool: &str) -> Result<Vec<Span>, VolumeError> {
        let image = self.pools.record(pool)?.image.path;
        let members = self.members(pool)?;
        let mut entries = members.iter().filter_map(|it| self.entry(it));
        // Clones have the blocks of their image; an overlay has those of its own.
        if let Some(clone) = entries.find(|it| it.settings.origin == image) {
            return Ok(self.cached(clone.id));
        }
        match self.join_inner(pool, &image) {
            Ok(entry) => {
                let spans = self.cached(entry.id);
                self.leave(&entry)?;
                Ok(spans)
            }
            Err(error @ VolumeError::Stopped(_)) => Err(error),
            Err(error) => {
                tracing::warn!("pool {pool}: nothing is read ahead: {error}");
                Ok(Vec::new())
            }
        }
    }

    /// Parts of a volume's disk that the caches have of its image.
    fn cached(&self, volume: VolumeId) -> Vec<Span> {
        let mut blocks = Vec::new();
        let mut next = Some(Cursor::START);
        while let Some(from) = next {
            let Ok(page) = self.handle.chart(volume, from) else {
                break;
            };
            let clean = page.spots.into_iter();
            let clean = clean.filter(|it| matches!(it.site, Site::Ram | Site::Ssd));
            blocks.extend(clean.map(|it| it.span.sector / BLOCK_SECTORS));
            next = page.next;
        }
        joined(blocks)
    }

    /// The log knows no more of what a daemon before this one was reading when it ended.
    pub(super) fn forget_read_ahead(&self) -> Result<(), VolumeError> {
        let known = self.handle.snapshot()?.engine.volumes.into_iter();
        let mut inner = known.filter(|it| crate::pool::is_inner(&it.name));
        inner.try_for_each(|it| self.drop_logged(&it.name))
    }

    /// An image of a pool as a volume that no client sees.
    fn join_inner(&self, pool: &str, image: &Path) -> Result<Entry, VolumeError> {
        let members = self.members(pool)?;
        let first = members.iter().find_map(|it| self.entry(it));
        let Some(first) = first else {
            let why = format!("pool {pool}: no member of it is served here");
            return Err(VolumeError::Settings(why));
        };
        let settings = VolumeSettings {
            name: fresh_name(pool),
            origin: image.to_owned(),
            policy: Policy::Ephemeral,
            read_only: true,
            journal_dir: None,
            format: match self.pools.clones(pool) {
                Some(CloneKind::Ephemeral) => first.settings.format,
                _ => Format::Auto,
            },
            group: String::new(),
            limit: Default::default(),
            qmp: None,
            replicas: 0,
            ..first.settings
        };
        let orphan = true;
        let joining = Joining {
            orphan,
            ..Joining::default()
        };
        self.join(settings, joining)
    }
}

/// Half of what the caches hold.
fn room_sectors(engine: &Snapshot) -> u64 {
    let tier = engine.ram_blocks * BLOCK_BYTES;
    engine.log_bytes.max(tier) / 2 / SECTOR_BYTES
}

/// Blocks as the fewest parts of the disk.
fn joined(mut blocks: Vec<u64>) -> Vec<Span> {
    blocks.sort_unstable();
    blocks.dedup();
    let mut spans: Vec<Span> = Vec::new();
    for block in blocks {
        let start = block * BLOCK_SECTORS;
        match spans.last_mut() {
            Some(last) if last.end() == start => last.sectors += BLOCK_SECTORS,
            _ => spans.push(Span::new(start, BLOCK_SECTORS)),
        }
    }
    spans
}

/// What of these lies on a disk of this size, and no more than there is room for.
fn clipped(spans: Vec<Span>, sectors: u64, room: u64) -> Vec<Span> {
    let mut left = room;
    let parts = spans.into_iter().filter_map(|span| {
        let end = span.sector.saturating_add(span.sectors).min(sectors);
        let taken = end.saturating_sub(span.sector).min(left);
        left -= taken;
        (taken > 0).then(|| Span::new(span.sector, taken))
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails when: a block is read twice or not at all, or what is read is larger than the disk or
    /// the room for it.
    #[test]
    fn blocks_become_parts_of_the_disk_within_it_and_within_the_room() {
        let spans = joined(vec![7, 3, 4, 3, 9]);
        let block = |at: u64, blocks: u64| Span::new(at * BLOCK_SECTORS, blocks * BLOCK_SECTORS);
        assert_eq!(spans, [block(3, 2), block(7, 1), block(9, 1)]);
        let disk = 8 * BLOCK_SECTORS;
        assert_eq!(
            clipped(spans.clone(), disk, u64::MAX),
            [block(3, 2), block(7, 1)]
        );
        assert_eq!(clipped(spans, disk, BLOCK_SECTORS), [block(3, 1)]);
        let all = vec![Span::new(0, u64::MAX)];
        assert_eq!(clipped(all, disk, u64::MAX), [block(0, 8)]);
        assert_eq!(joined(Vec::new()), []);
    }
}
