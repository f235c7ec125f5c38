//! The checkpoints of one volume, from the oldest to the newest.
//!
//! ```text
//!            monday          tuesday            (now)
//!   ──────────┼────────────────┼──────────────────▶
//!             │ bits of monday │ bits of tuesday
//!              frozen            tracked            an increment since monday is both
//!
//! begin ─▶ Making ─▶ confirm ─▶ Tracked ─▶ (a later one is confirmed) Frozen
//!             │                   │  ▲ start
//!             └▶ abandon: gone    ▼  │ orderly stop
//!                                Kept          any ─▶ Lost: what changed is not known
//! ```
//!
//! Owns one file for each in `<state-dir>/checkpoints/<volume>/`, and which bitmaps outlive the
//! daemon. A write sets one bit, whatever the number of checkpoints, and a second one only while a
//! window is open. Always true:
//!
//! - The bits of a checkpoint cover all that changed from before its cut up to the cut of the next
//!   one. The next one's begin before the image is ordered to rest, and those before go on until it
//!   does, so what is in flight at the cut is in both. A bit too many is right, one too few never.
//! - A file says *Kept* only while nothing can change: it says *Tracked*, on media, before the
//!   shard can let a change in.
//! - *Tracked* counts only with the bitmap of that number and of this boot, and with the image that
//!   it had. Where that is not so the checkpoint is lost, and with it all before it, which need its
//!   bits.
//! - A checkpoint whose window did not end by a resume is gone, and those before go on as if it had
//!   never been begun.
//!
//! Deliberately absent: when an image rests, and what is shown to clients.

use super::bitmap::Bitmap;
use super::file::{self, Head, ImageSeen, Reason, State};
use super::live::{Live, Place};
use engine::types::Uuid;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Of one volume.
pub const CHECKPOINTS_MAX: usize = 16;

/// What is known of the image of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// A checksum over its name.
    pub name: u64,
    /// The file under this name, all zero where that tells nothing.
    pub seen: ImageSeen,
}

/// One checkpoint that is there.
#[derive(Debug)]
struct Checkpoint {
    head: Head,
    /// Of one that is tracked.
    live: Option<Arc<Live>>,
}

/// A checkpoint whose window is open.
#[derive(Debug)]
struct Making {
    checkpoint: Checkpoint,
    /// What the newest before it has at the cut.
    before: Option<Bitmap>,
}

/// One checkpoint as it is told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub name: String,
    pub created: u64,
    pub size_bytes: u64,
    pub state: ShownState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownState {
    /// Its window is open.
    Making,
    Valid,
    Lost(Reason),
}

#[derive(Debug)]
pub struct Chain {
    directory: PathBuf,
    place: Place,
    volume: String,
    /// In the order of their sequence.
    all: Vec<Checkpoint>,
    making: Option<Making>,
    origin: Origin,
}

fn damaged(why: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_string())
}

impl Chain {
    /// The directory of the checkpoints of a volume.
    pub fn directory(state_dir: &Path, volume: &str) -> PathBuf {
        state_dir.join("checkpoints").join(volume)
    }

    /// Goes on where an earlier daemon has ended. Nothing changes the volume before this returns.
    pub fn load(state_dir: &Path, place: Place, volume: &str, origin: Origin) -> io::Result<Chain> {
        let mut chain = Chain::read(state_dir, place, volume, origin)?;
        for at in 0..chain.all.len() {
            if let Err(reason) = chain.go_on(at)? {
                chain.lose_one(at, reason)?;
            }
        }
        chain.freeze_older()?;
        // Changes after the newest have no bits, unless it is tracked.
        let gap = chain
            .all
            .last()
            .is_some_and(|it| it.head.state == State::Frozen);
        if gap {
            chain.lose_one(chain.all.len() - 1, Reason::Damaged)?;
        }
        chain.lose_before()?;
        Ok(chain)
    }

    /// The checkpoints of a volume whose changes are not seen here: all are lost.
    pub fn load_lost(
        state_dir: &Path,
        place: Place,
        volume: &str,
        reason: Reason,
    ) -> io::Result<Chain> {
        let mut chain = Chain::read(state_dir, place, volume, Origin::default())?;
        chain.lose(reason)?;
        Ok(chain)
    }

    /// What an earlier daemon has left, as it is.
    fn read(state_dir: &Path, place: Place, volume: &str, origin: Origin) -> io::Result<Chain> {
        let mut chain = Chain {
            directory: Chain::directory(state_dir, volume),
            place,
            volume: volume.to_owned(),
            all: Vec::new(),
            making: None,
            origin,
        };
        chain.read_all()?;
        Ok(chain)
    }

    fn read_all(&mut self) -> io::Result<()> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let path = entry?.path();
            let Some((sequence, name)) = name_in(&path) else {
                // What a write that was cut short has left.
                let _ = fs::remove_file(&path);
                continue;
            };
            let head = match file::read_head(&path)? {
                Ok(head) if head.state == State::Making => {
                    Live::remove_of(&self.place, &self.volume, head.number);
                    fs::remove_file(&path)?;
                    continue;
                }
                Ok(head) if (head.sequence, head.name.as_str()) == (sequence, &name) => head,
                _ => Head {
                    state: State::Lost,
                    reason: Reason::Damaged,
                    sequence,
                    name,
                    volume: self.volume.clone(),
                    ..Head::default()
                },
            };
            self.all.push(Checkpoint { head, live: None });
        }
        self.all.sort_by_key(|it| it.head.sequence);
        Ok(())
    }

    /// One checkpoint at a start, or why it is lost.
    fn go_on(&mut self, at: usize) -> io::Result<Result<(), Reason>> {
        let head = self.all[at].head.clone();
        let same_name = head.origin == self.origin.name;
        match head.state {
            State::Tracked => {
                if !same_name || head.image.inode != self.origin.seen.inode {
                    return Ok(Err(Reason::Image));
                }
                self.origin.seen.below = head.image.below;
                let boot = self.place.boot == head.boot;
                let live = boot.then(|| self.find(&head)).flatten();
                self.all[at].live = live.map(Arc::new);
                Ok(match self.all[at].live {
                    Some(_) => Ok(()),
                    None => Err(Reason::Power),
                })
            }
            State::Kept => {
                self.origin.seen.below = head.image.below;
                if !same_name || head.image != self.origin.seen {
                    return Ok(Err(Reason::Image));
                }
                match self.bitmap_in(&head)? {
                    // What the file says is made another before anything changes.
                    Ok(bitmap) => Ok(self.track_again(at, &bitmap).map_err(|_| Reason::Room)),
                    Err(_) => Ok(Err(Reason::Damaged)),
                }
            }
            State::Frozen => Ok(match self.bitmap_in(&head)? {
                Ok(_) => Ok(()),
                Err(_) => Err(Reason::Damaged),
            }),
            State::Lost => Ok(Ok(())),
            State::Making | State::Live => Ok(Err(Reason::Damaged)),
        }
    }

    fn find(&self, head: &Head) -> Option<Live> {
        Live::find(&self.place, &self.volume, head.number, head.size_bytes)
    }

    fn bits(&self, at: usize) -> io::Result<Bitmap> {
        let Checkpoint { head, live } = &self.all[at];
        match live {
            Some(live) => Ok(live.bitmap()),
            None => self.bitmap_in(head)?.map_err(damaged),
        }
    }

    fn bitmap_in(&self, head: &Head) -> io::Result<Result<Bitmap, file::Wrong>> {
        file::read_bitmap(&self.path(head), head)
    }

    fn path(&self, head: &Head) -> PathBuf {
        let (sequence, name) = (head.sequence, &head.name);
        self.directory.join(format!("{sequence:08}-{name}"))
    }

    fn write(&self, head: &Head, bitmap: Option<&Bitmap>) -> io::Result<()> {
        file::write(&self.path(head), head, bitmap)
    }

    /// A new bitmap that outlives the daemon.
    fn new_live(&self, size_bytes: u64) -> io::Result<Live> {
        let number = Uuid(*uuid::Uuid::new_v4().as_bytes());
        Live::create(&self.place, &self.volume, number, size_bytes)
    }

    /// Lets the bits of a checkpoint be set from here on.
    fn track_again(&mut self, at: usize, bitmap: &Bitmap) -> io::Result<()> {
        let live = self.new_live(bitmap.size_bytes)?;
        live.mark_all_of(bitmap);
        let head = self.tracked(&self.all[at].head, &live);
        if let Err(error) = self.write(&head, None) {
            live.remove();
            return Err(error);
        }
        let live = Some(Arc::new(live));
        self.all[at] = Checkpoint { head, live };
        Ok(())
    }

    /// The head of a checkpoint whose bits are in this memory.
    fn tracked(&self, head: &Head, live: &Live) -> Head {
        let Origin { name, seen } = self.origin;
        Head {
            state: State::Tracked,
            boot: self.place.boot,
            number: live.number,
            size_bytes: live.size_bytes(),
            origin: name,
            image: ImageSeen {
                below: seen.below,
                inode: seen.inode,
                ..ImageSeen::default()
            },
            ..head.clone()
        }
    }

    /// Of several that are tracked, as a crash may leave them, the newest alone goes on.
    fn freeze_older(&mut self) -> io::Result<()> {
        let tracked = |it: &Checkpoint| it.head.state == State::Tracked;
        let Some(newest) = self.all.iter().rposition(tracked) else {
            return Ok(());
        };
        for at in 0..newest {
            if let Some(live) = self.all[at].live.take() {
                self.freeze(at, &live.bitmap(), &live)?;
            }
        }
        Ok(())
    }

    fn freeze(&mut self, at: usize, bitmap: &Bitmap, live: &Live) -> io::Result<()> {
        let head = Head {
            state: State::Frozen,
            size_bytes: bitmap.size_bytes,
            ..self.all[at].head.clone()
        };
        self.write(&head, Some(bitmap))?;
        // The head in the file knows more of the bitmap.
        let head = file::read_head(&self.path(&head))?.map_err(damaged)?;
        self.all[at] = Checkpoint { head, live: None };
        live.remove();
        Ok(())
    }

    fn lose_one(&mut self, at: usize, reason: Reason) -> io::Result<()> {
        let checkpoint = &mut self.all[at];
        if checkpoint.head.state == State::Lost {
            return Ok(());
        }
        match checkpoint.live.take() {
            Some(live) => live.remove(),
            None => Live::remove_of(&self.place, &self.volume, checkpoint.head.number),
        }
        let (name, volume, why) = (&checkpoint.head.name, &self.volume, reason.text());
        tracing::warn!(
            volume = %volume,
            "volume {volume}: checkpoint {name} is lost: {why}; make a full backup"
        );
        checkpoint.head = Head {
            state: State::Lost,
            reason,
            sequence: checkpoint.head.sequence,
            created: checkpoint.head.created,
            size_bytes: checkpoint.head.size_bytes,
            volume: checkpoint.head.volume.clone(),
            name: checkpoint.head.name.clone(),
            ..Head::default()
        };
        self.write(&self.all[at].head, None)
    }

    /// What changed since a checkpoint needs the bits of all later ones.
    fn lose_before(&mut self) -> io::Result<()> {
        let lost = |it: &Checkpoint| it.head.state == State::Lost;
        let newest = self.all.iter().rposition(lost).unwrap_or(0);
        (0..newest).try_for_each(|at| self.lose_one(at, Reason::Later))
    }

    /// All that is there is lost.
    pub fn lose(&mut self, reason: Reason) -> io::Result<()> {
        self.abandon()?;
        (0..self.all.len()).try_for_each(|at| self.lose_one(at, reason))
    }

    /// The bitmaps in which the shard has to mark changes.
    pub fn lives(&self) -> Vec<Arc<Live>> {
        let making = self.making.iter().map(|it| &it.checkpoint);
        let all = self.all.iter().chain(making);
        all.filter_map(|it| it.live.clone()).collect()
    }

    pub fn is_making(&self) -> bool {
        self.making.is_some()
    }

    pub fn has(&self, name: &str) -> bool {
        self.shown().iter().any(|it| it.name == name)
    }

    pub fn is_full(&self) -> bool {
        self.all.len() >= CHECKPOINTS_MAX
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty() && self.making.is_none()
    }

    /// Begins a checkpoint: from the moment in which the shard knows its bitmap changes count for
    /// it.
    pub fn begin(&mut self, name: &str, created: u64, size_bytes: u64) -> io::Result<()> {
        assert!(self.making.is_none(), "one window at a time");
        fs::create_dir_all(&self.directory)?;
        crate::cachedev::sync_directory(&self.directory)?;
        let live = self.new_live(size_bytes)?;
        let newest = self.all.last().map_or(0, |it| it.head.sequence);
        let head = Head {
            created,
            sequence: newest + 1,
            volume: self.volume.clone(),
            name: name.to_owned(),
            ..Head::default()
        };
        let head = Head {
            state: State::Making,
            ..self.tracked(&head, &live)
        };
        if let Err(error) = self.write(&head, None) {
            live.remove();
            return Err(error);
        }
        let live = Some(Arc::new(live));
        let checkpoint = Checkpoint { head, live };
        let before = None;
        self.making = Some(Making { checkpoint, before });
        Ok(())
    }

    /// The image rests: what has changed since each checkpoint up to that, of a disk of this size.
    pub fn at_cut(&mut self, size_bytes: u64) -> io::Result<Vec<(String, Bitmap)>> {
        let newest = self.all.last().and_then(|it| it.live.as_ref());
        let before = newest.map(|live| live.bitmap());
        if let Some(making) = &mut self.making {
            making.before.clone_from(&before);
        }
        self.changes(before, size_bytes)
    }

    /// The same at this moment.
    pub fn changes_now(&self, size_bytes: u64) -> io::Result<Vec<(String, Bitmap)>> {
        let newest = self.all.last().and_then(|it| it.live.as_ref());
        self.changes(newest.map(|live| live.bitmap()), size_bytes)
    }

    fn changes(
        &self,
        newest: Option<Bitmap>,
        size_bytes: u64,
    ) -> io::Result<Vec<(String, Bitmap)>> {
        let mut found = Vec::new();
        let mut newest = newest;
        let mut since = Bitmap::new(size_bytes);
        for checkpoint in self.all.iter().rev() {
            let bits = match checkpoint.head.state {
                State::Frozen => self.bitmap_in(&checkpoint.head)?.map_err(damaged)?,
                State::Tracked => match (newest.take(), &checkpoint.live) {
                    (Some(bitmap), _) => bitmap,
                    (None, Some(live)) => live.bitmap(),
                    (None, None) => break,
                },
                // Those before it are lost as well.
                _ => break,
            };
            since = since.or(&bits, size_bytes);
            found.push((checkpoint.head.name.clone(), since.clone()));
        }
        found.reverse();
        Ok(found)
    }

    /// Its window ended by a resume: the new checkpoint is there, and the one before is frozen.
    pub fn confirm(&mut self) -> io::Result<()> {
        let Some(making) = self.making.take() else {
            return Ok(());
        };
        let Checkpoint { head, live } = making.checkpoint;
        let live = live.expect("what is being made is marked");
        let head = self.tracked(&head, &live);
        if let Err(error) = self.write(&head, None) {
            // What the file says then is either of both; the next start makes no more of it.
            let _ = fs::remove_file(self.path(&head));
            live.remove();
            return Err(error);
        }
        let live = Some(live);
        self.all.push(Checkpoint { head, live });
        let Some(at) = self.all.len().checked_sub(2) else {
            return Ok(());
        };
        if let Some(live) = self.all[at].live.clone() {
            // Until the file is written its bits go on; that is right as well.
            self.freeze(at, &making.before.unwrap_or_else(|| live.bitmap()), &live)?;
        }
        Ok(())
    }

    /// Its window ended otherwise: there is no such checkpoint.
    pub fn abandon(&mut self) -> io::Result<()> {
        let Some(making) = self.making.take() else {
            return Ok(());
        };
        let Checkpoint { head, live } = making.checkpoint;
        if let Some(live) = live {
            live.remove();
        }
        fs::remove_file(self.path(&head))
    }

    /// Forgets a checkpoint; what changed after it counts for the one before. False if there is
    /// none.
    pub fn delete(&mut self, name: &str) -> io::Result<bool> {
        let named = |it: &Checkpoint| it.head.name == name;
        let Some(at) = self.all.iter().position(named) else {
            return Ok(false);
        };
        let valid = |it: &Checkpoint| it.head.state != State::Lost;
        let before = at.checked_sub(1).filter(|before| valid(&self.all[*before]));
        let kept = match before {
            Some(before) if valid(&self.all[at]) => self.absorb(before, at)?,
            _ => false,
        };
        let gone = self.all.remove(at);
        fs::remove_file(self.path(&gone.head))?;
        if let Some(live) = gone.live.filter(|_| !kept) {
            live.remove();
        }
        Ok(true)
    }

    /// A checkpoint gets the bits of the one after it. True if it goes on in that one's memory.
    fn absorb(&mut self, before: usize, at: usize) -> io::Result<bool> {
        let older = self.bits(before)?;
        if let Some(live) = self.all[at].live.clone() {
            live.mark_all_of(&older);
            let head = self.tracked(&self.all[before].head, &live);
            self.write(&head, None)?;
            let live = Some(live);
            self.all[before] = Checkpoint { head, live };
            return Ok(true);
        }
        let newer = self.bitmap_in(&self.all[at].head)?.map_err(damaged)?;
        let size_bytes = older.size_bytes.max(newer.size_bytes);
        let both = older.or(&newer, size_bytes);
        let head = Head {
            size_bytes,
            ..self.all[before].head.clone()
        };
        self.write(&head, Some(&both))?;
        let head = file::read_head(&self.path(&head))?.map_err(damaged)?;
        self.all[before] = Checkpoint { head, live: None };
        Ok(false)
    }

    /// The disk is about to have another size. What it loses, and what it gets, has changed.
    pub fn resizes(&self, old_bytes: u64, new_bytes: u64) {
        let from = old_bytes.min(new_bytes).saturating_sub(1);
        for live in self.lives() {
            live.mark_bytes(from, u64::MAX);
        }
    }

    /// What lies below its image, which is open now. Another thing than before has another disk.
    pub fn stands_on(&mut self, below: u64) -> io::Result<()> {
        let before = std::mem::replace(&mut self.origin.seen.below, below);
        let tracked = self.all.iter().any(|it| it.live.is_some());
        match tracked && before != below {
            true => self.lose(Reason::Image),
            false => Ok(()),
        }
    }

    /// The volume goes on in another file with the same disk.
    pub fn image_is(&mut self, seen: ImageSeen) -> io::Result<()> {
        self.origin.seen = seen;
        for at in 0..self.all.len() {
            if let Some(live) = self.all[at].live.clone() {
                let head = self.tracked(&self.all[at].head, &live);
                self.write(&head, None)?;
                self.all[at].head = head;
            }
        }
        Ok(())
    }

    /// An orderly stop: nothing changes the volume any more, and its image is this one.
    pub fn keep(&mut self, seen: ImageSeen) -> io::Result<()> {
        self.abandon()?;
        for at in 0..self.all.len() {
            let Some(live) = self.all[at].live.take() else {
                continue;
            };
            let head = Head {
                state: State::Kept,
                image: seen,
                ..self.all[at].head.clone()
            };
            self.write(&head, Some(&live.bitmap()))?;
            live.remove();
        }
        Ok(())
    }

    /// The volume is removed.
    pub fn remove_all(&mut self) -> io::Result<()> {
        self.lives().iter().for_each(|live| live.remove());
        (self.making, self.all) = (None, Vec::new());
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    pub fn shown(&self) -> Vec<Shown> {
        let making = self.making.iter().map(|it| &it.checkpoint);
        let all = self.all.iter().chain(making);
        all.map(|Checkpoint { head, .. }| Shown {
            name: head.name.clone(),
            created: head.created,
            size_bytes: head.size_bytes,
            state: match head.state {
                State::Making => ShownState::Making,
                State::Lost => ShownState::Lost(head.reason),
                _ => ShownState::Valid,
            },
        })
        .collect()
    }
}

/// Sequence and name of a checkpoint, from the name of its file.
fn name_in(path: &Path) -> Option<(u64, String)> {
    let text = path.file_name()?.to_str()?;
    let (sequence, name) = text.split_once('-')?;
    let digits = sequence.len() >= 8 && sequence.bytes().all(|byte| byte.is_ascii_digit());
    match digits && !name.is_empty() {
        true => Some((sequence.parse().ok()?, name.to_owned())),
        false => None,
    }
}

#[cfg(test)]
#[path = "chain_tests.rs"]
mod tests;
