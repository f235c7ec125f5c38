//! What happened, as one number, and in words on request.
//!
//! Owns the running hash over all events and actions and the counters of a run. Always true: two
//! runs with one hash did the same. Deliberately absent: the contents of requests; the oracle
//! judges those.

use engine::event::{Action, Event, IoError, Op, Refusal};
use std::collections::VecDeque;
use std::fmt;

/// Lines of a story that are kept.
const STORY_LINES_MAX: usize = 60;

/// Counts of one run or of many. Delays are no faults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub operations: u64,
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub zeroes: u64,
    pub destages: u64,
    pub resets: u64,
    pub switches: u64,
    pub disconnects: u64,
    pub refused: u64,
    pub kills: u64,
    pub kills_in_memory: u64,
    pub kills_in_recovery: u64,
    pub power_losses: u64,
    pub losses_in_recovery: u64,
    pub orderly_stops: u64,
    pub late_writes: u64,
    pub cache_write_errors: u64,
    pub cache_sync_errors: u64,
    pub origin_errors: u64,
    pub origin_full: u64,
    pub recovery_errors: u64,
    pub volumes_verified: u64,
    pub origins_verified: u64,
    /// Groups of which all origins were judged together.
    pub cuts_verified: u64,
    pub segments_reused: u64,
    pub checkpoints: u64,
    pub evacuated_bytes: u64,
    pub lines_rotten: u64,
    pub lines_written: u64,
    pub lines_read: u64,
    pub lines_kept: u64,
    pub lines_bad: u64,
    pub lines_retired: u64,
    pub lines_reappended: u64,
    pub images_renewed: u64,
    pub held_writes: u64,
    pub cache_deaths: u64,
    /// Looks at a volume that found it past its log, or held, because of that.
    pub seen_past_log: u64,
    pub seen_held: u64,
    pub scrubs: u64,
    /// Writes under way at a crash that the next daemon found.
    pub found: u64,
    pub scrubbed_bytes: u64,
    pub scrub_dropped_bytes: u64,
    pub cache_read_errors: u64,
    pub writes_lost: u64,
    pub writes_torn: u64,
    pub sectors_garbage: u64,
    pub clock_jumps: u64,
    pub foreign_writes: u64,
    pub images: Images,
    pub moves: u64,
    pub visits: u64,
    pub held_elsewhere: u64,
    /// Volumes held because their stage was gone.
    pub stages_lost: u64,
    pub settles_hit: u64,
    pub detaches: u64,
    pub commits: u64,
    /// By a kill or a power loss, and how many of them had been decided.
    pub commits_cut_short: u64,
    pub commits_decided: u64,
    pub spoiled_blocks: u64,
    pub spoiled_sectors: u64,
    /// Volumes, or recoveries, that told of it.
    pub spoiled_told: u64,
    pub acknowledged: u64,
    pub sizes: Sizes,
    pub steps: u64,
}

/// Images that did not fit, cache files that were gone, and guests that only slept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Images {
    /// Volumes attached to a base that is not raw.
    pub mapped: u64,
    pub moved: u64,
    pub shrunk: u64,
    /// Bases that another program wrote.
    pub written: u64,
    /// While they were not served; volumes that were held for it; and what became of them.
    pub replaced: u64,
    pub refused: u64,
    pub put_back: u64,
    pub kept_images: u64,
    pub kept_logs: u64,
    /// Cache files that were removed, and were gone at the end of a life; losses accepted for that.
    pub caches: u64,
    pub caches_lost: u64,
    pub losses: u64,
    pub sleeps: u64,
    /// Volumes that saw it.
    pub held: u64,
    /// Overlays that lay on another base than the one that was there.
    pub overlays: u64,
    pub tops: Tops,
    pub rests: Rests,
    pub moves: Moves,
}

impl Images {
    fn fields(&mut self) -> impl Iterator<Item = (&'static str, &mut u64)> {
        let fields = [
            ("sleeps", &mut self.sleeps),
            ("cache files removed", &mut self.caches),
            ("caches lost", &mut self.caches_lost),
            ("losses accepted", &mut self.losses),
            ("bases that are not raw", &mut self.mapped),
            ("images replaced", &mut self.replaced),
            ("volumes refused for that", &mut self.refused),
            ("images put back", &mut self.put_back),
            ("images kept", &mut self.kept_images),
            ("logs kept", &mut self.kept_logs),
            ("bases written", &mut self.written),
            ("images moved", &mut self.moved),
            ("images cut short", &mut self.shrunk),
            ("volumes held for their image", &mut self.held),
            ("overlays on another base", &mut self.overlays),
        ];
        let tops = fields.into_iter().chain(self.tops.fields());
        tops.chain(self.rests.fields()).chain(self.moves.fields())
    }
}

/// Images that move to another file below them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    pub begun: u64,
    /// Parts of a disk that were ordered to be its image's own.
    pub own: u64,
    pub done: u64,
    /// Those to nothing, and to the file below the backing.
    pub flattened: u64,
    pub merged: u64,
    /// Those that the engine has refused, and those that the host did not bring to their end.
    pub refused: u64,
    pub given_up: u64,
    /// By the end of a life, and how many of them had reached the other file.
    pub cut_short: u64,
    pub reached: u64,
}

impl Moves {
    fn fields(&mut self) -> [(&'static str, &mut u64); 9] {
        [
            ("moves to another backing", &mut self.begun),
            ("parts made own for that", &mut self.own),
            ("of these moves done", &mut self.done),
            ("to nothing", &mut self.flattened),
            ("to what is below the backing", &mut self.merged),
            ("moves refused", &mut self.refused),
            ("moves given up by the host", &mut self.given_up),
            ("moves cut short", &mut self.cut_short),
            ("of these on the other file", &mut self.reached),
        ]
    }
}

/// Images that allocate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tops {
    /// Runs that had one, and volumes that were attached to one.
    pub runs: u64,
    pub attached: u64,
    /// Judged as a crash would leave them; of these under their guard, and with a journal pending.
    pub judged: u64,
    pub guarded: u64,
    pub pending: u64,
    /// Plans that a life ended in the middle of.
    pub cut: u64,
    /// Written anew by another program.
    pub foreign: u64,
    /// Clusters that had leaked, freed when the image was opened.
    pub freed: u64,
}

impl Tops {
    fn fields(&mut self) -> [(&'static str, &mut u64); 8] {
        [
            ("runs with images that allocate", &mut self.runs),
            ("volumes on images that allocate", &mut self.attached),
            ("of their images judged", &mut self.judged),
            ("of these under a guard", &mut self.guarded),
            ("of these with a journal", &mut self.pending),
            ("plans cut short", &mut self.cut),
            ("images that allocate made anew", &mut self.foreign),
            ("clusters that leaked, freed", &mut self.freed),
        ]
    }

    /// Whether each of it was met.
    pub fn is_rich(&self) -> bool {
        self.clone().fields().into_iter().all(|it| *it.1 > 0)
    }
}

/// Images that were brought to rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rests {
    pub begun: u64,
    /// Those that lasted until they were resumed.
    pub kept: u64,
    /// Those that the log did not have room for.
    pub ended: u64,
}

impl Rests {
    fn fields(&mut self) -> [(&'static str, &mut u64); 3] {
        [
            ("rests", &mut self.begun),
            ("of these until they were resumed", &mut self.kept),
            ("rests that ended by themselves", &mut self.ended),
        ]
    }
}

/// Changes of size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    pub changed: u64,
    /// Those to a smaller one.
    pub shrunk: u64,
    /// Those that dirty data forbade.
    pub refused: u64,
    /// By a kill or a power loss, when the image had its new size already.
    pub cut_short: u64,
    /// The same of a smaller one that it had not yet.
    pub ends_doubted: u64,
}

impl Sizes {
    fn fields(&mut self) -> [(&'static str, &mut u64); 5] {
        [
            ("resizes", &mut self.changed),
            ("of these to a smaller one", &mut self.shrunk),
            ("shrinks refused", &mut self.refused),
            ("resizes cut short", &mut self.cut_short),
            ("ends of a disk left in doubt", &mut self.ends_doubted),
        ]
    }
}

impl Counters {
    fn fields(&mut self) -> Vec<(&'static str, &mut u64)> {
        let fields = [
            ("operations", &mut self.operations),
            ("reads", &mut self.reads),
            ("writes", &mut self.writes),
            ("flushes", &mut self.flushes),
            ("zeroes", &mut self.zeroes),
            ("destages", &mut self.destages),
            ("resets", &mut self.resets),
            ("switches", &mut self.switches),
            ("disconnects", &mut self.disconnects),
            ("refused", &mut self.refused),
            ("kills", &mut self.kills),
            ("kills in memory", &mut self.kills_in_memory),
            ("kills in recovery", &mut self.kills_in_recovery),
            ("power losses", &mut self.power_losses),
            ("power losses in recovery", &mut self.losses_in_recovery),
            ("orderly stops", &mut self.orderly_stops),
            ("late writes", &mut self.late_writes),
            ("cache write errors", &mut self.cache_write_errors),
            ("cache sync errors", &mut self.cache_sync_errors),
            ("origin errors", &mut self.origin_errors),
            ("origin full", &mut self.origin_full),
            ("recovery errors", &mut self.recovery_errors),
            ("volumes verified", &mut self.volumes_verified),
            ("origins verified", &mut self.origins_verified),
            ("cuts verified", &mut self.cuts_verified),
            ("segments reused", &mut self.segments_reused),
            ("checkpoints", &mut self.checkpoints),
            ("evacuated bytes", &mut self.evacuated_bytes),
            ("lines rotten", &mut self.lines_rotten),
            ("line bytes written", &mut self.lines_written),
            ("line bytes read", &mut self.lines_read),
            ("line blocks kept", &mut self.lines_kept),
            ("line blocks bad", &mut self.lines_bad),
            ("line segments retired", &mut self.lines_retired),
            ("line blocks reappended", &mut self.lines_reappended),
            ("images renewed", &mut self.images_renewed),
            ("held writes", &mut self.held_writes),
            ("cache deaths", &mut self.cache_deaths),
            ("seen past log", &mut self.seen_past_log),
            ("seen held", &mut self.seen_held),
            ("scrubs", &mut self.scrubs),
            ("writes found again", &mut self.found),
            ("scrubbed bytes", &mut self.scrubbed_bytes),
            ("scrub dropped bytes", &mut self.scrub_dropped_bytes),
            ("cache read errors", &mut self.cache_read_errors),
            ("writes lost", &mut self.writes_lost),
            ("writes torn", &mut self.writes_torn),
            ("sectors garbage", &mut self.sectors_garbage),
            ("clock jumps", &mut self.clock_jumps),
            ("foreign writes", &mut self.foreign_writes),
            ("moves", &mut self.moves),
            ("visits", &mut self.visits),
            ("held elsewhere", &mut self.held_elsewhere),
            ("stages lost", &mut self.stages_lost),
            ("kills in journal replay", &mut self.settles_hit),
            ("detaches", &mut self.detaches),
            ("commits", &mut self.commits),
            ("commits cut short", &mut self.commits_cut_short),
            ("of these decided", &mut self.commits_decided),
            ("last copies rotten", &mut self.spoiled_blocks),
            ("sectors lost by that", &mut self.spoiled_sectors),
            ("volumes that told of it", &mut self.spoiled_told),
            ("writes acknowledged", &mut self.acknowledged),
            ("steps", &mut self.steps),
        ];
        let fields = fields.into_iter().chain(self.sizes.fields());
        fields.chain(self.images.fields()).collect()
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Counters) {
        let mut other = other.clone();
        for ((_, mine), (_, theirs)) in self.fields().into_iter().zip(other.fields()) {
            *mine += *theirs;
        }
    }

    /// Faults of all kinds together.
    pub fn faults(&self) -> u64 {
        self.kills
            + self.kills_in_memory
            + self.kills_in_recovery
            + self.power_losses
            + self.losses_in_recovery
            + self.cache_write_errors
            + self.cache_sync_errors
            + self.origin_errors
            + self.origin_full
            + self.recovery_errors
            + self.cache_read_errors
            + self.cache_deaths
            + self.lines_rotten
            + self.writes_lost
            + self.writes_torn
            + self.sectors_garbage
            + self.clock_jumps
            + self.foreign_writes
            + self.images_renewed
            + self.images.moved
            + self.images.shrunk
            + self.images.written
            + self.images.replaced
            + self.images.caches
    }

    /// Whether each sort of fault, and each thing that a host does about it, is among them.
    pub fn is_rich(&self) -> bool {
        let what = [
            self.kills_in_recovery,
            self.settles_hit,
            self.late_writes,
            self.cache_read_errors,
            self.sectors_garbage,
            self.clock_jumps,
            self.foreign_writes,
            self.images_renewed,
            self.images.mapped,
            self.images.moved,
            self.images.shrunk,
            self.images.written,
            self.images.held,
            self.images.replaced,
            self.images.caches_lost,
            self.images.losses,
            self.sizes.shrunk,
            self.moves,
            self.visits,
            self.held_elsewhere,
            self.stages_lost,
            self.cache_deaths,
            self.cuts_verified,
            self.switches,
            self.resets,
            self.evacuated_bytes,
            self.detaches,
            self.lines_bad,
            self.found,
        ];
        what.into_iter().all(|count| count > 0)
    }

    /// Names and values, for tables.
    pub fn list(&self) -> Vec<(&'static str, u64)> {
        self.clone()
            .fields()
            .into_iter()
            .map(|(name, value)| (name, *value))
            .collect()
    }
}

/// The record of a run.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    verbose: bool,
    /// The last deeds and faults, for a reader who wants to know how it came to this.
    story: Option<VecDeque<String>>,
    now: u64,
    pub counters: Counters,
}

impl Trace {
    pub fn new(verbose: bool) -> Trace {
        Trace {
            hash: 0xCBF2_9CE4_8422_2325,
            verbose,
            story: None,
            now: 0,
            counters: Counters::default(),
        }
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn time(&mut self, now: u64) {
        self.now = now;
        self.add(&[now]);
    }

    /// Something the world did, in words that only a reader needs.
    pub fn note(&self, words: fmt::Arguments<'_>) {
        if self.verbose {
            eprintln!(
                "{:>14.6} {:>7} {words}",
                self.now as f64 / 1e6,
                self.counters.steps
            );
        }
    }

    /// Keeps the last deeds and faults from now on.
    pub fn keep_story(&mut self) {
        self.story = Some(VecDeque::new());
    }

    pub fn story(&mut self) -> Vec<String> {
        self.story.take().map(Vec::from).unwrap_or_default()
    }

    /// Whether anybody listens.
    pub fn tells(&self) -> bool {
        self.verbose || self.story.is_some()
    }

    /// A deed or a fault that belongs to the story.
    pub fn tell(&mut self, words: fmt::Arguments<'_>) {
        self.note(words);
        if let Some(story) = &mut self.story {
            if story.len() == STORY_LINES_MAX {
                story.pop_front();
            }
            story.push_back(format!("{:>12.3} ms  {words}", self.now as f64 / 1e6));
        }
    }

    pub fn add(&mut self, numbers: &[u64]) {
        for &number in numbers {
            let mixed = (self.hash ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            self.hash = mixed ^ (mixed >> 32);
        }
    }

    pub fn event(&mut self, event: &Event) {
        self.note(format_args!("-> {event:?}"));
        match *event {
            Event::Read {
                volume,
                request,
                sector,
                sectors,
                buffer,
            } => {
                let from = [1, u64::from(volume.0), u64::from(request.number)];
                self.add(&from);
                self.add(&[sector, sectors, u64::from(buffer.0)]);
            }
            Event::Write {
                volume,
                request,
                sector,
                sectors,
                buffer,
                fua,
                ..
            } => {
                let from = [2, u64::from(volume.0), u64::from(request.number)];
                self.add(&from);
                self.add(&[sector, sectors, u64::from(buffer.0), u64::from(fua)]);
            }
            Event::Flush { volume, request } => {
                self.add(&[3, u64::from(volume.0), u64::from(request.number)]);
            }
            Event::Discard {
                volume,
                request,
                sector,
                sectors,
                fua,
            } => {
                self.add(&[4, u64::from(volume.0), u64::from(request.number)]);
                self.add(&[sector, sectors, u64::from(fua)]);
            }
            Event::WriteZeroes {
                volume,
                request,
                sector,
                sectors,
                fua,
                allocate,
            } => {
                self.add(&[5, u64::from(volume.0), u64::from(request.number)]);
                self.add(&[sector, sectors, u64::from(fua), u64::from(allocate)]);
            }
            Event::Disconnect { connection } => self.add(&[6, u64::from(connection.0)]),
            Event::Zeroed { volume, bytes } => self.add(&[10, u64::from(volume.0), bytes]),
            Event::Done { io, result, .. } => {
                let result = result.map_or_else(|it| 1 + u64::from(it == IoError::NoSpace), |()| 0);
                self.add(&[7, io.0, result]);
            }
            Event::Admin { request, .. } => self.add(&[8, u64::from(request.number)]),
            Event::Tick => self.add(&[9]),
            Event::Replicate { .. } | Event::Replicated { .. } => {
                unreachable!("there are no peers")
            }
            Event::ReadLeft { .. } | Event::ReadCopy { .. } => {
                unreachable!("there are no peers")
            }
        }
    }

    pub fn action(&mut self, action: &Action) {
        self.note(format_args!("<- {action:?}"));
        match action {
            Action::Io(io) => {
                let op = match io.op {
                    Op::Read => 0,
                    Op::Write => 1,
                    Op::Zero { .. } => 2,
                    Op::Sync => 3,
                    Op::Stat => 4,
                    Op::Remove => 5,
                    Op::Resize => 6,
                    Op::Unpack(_) => 7,
                };
                self.add(&[20, io.id.0, op, io.purpose as u64, io.offset, io.bytes]);
                for slice in &io.slices {
                    self.add(&[slice.place.offset, slice.bytes]);
                }
            }
            Action::Reply { request, result } => {
                let result = result.map_or_else(code, |()| 0);
                self.add(&[
                    21,
                    u64::from(request.connection.0),
                    u64::from(request.number),
                    result,
                ]);
            }
            Action::Send { .. } => unreachable!("there are no peers"),
        }
    }
}

fn code(refusal: Refusal) -> u64 {
    1 + refusal as u64
}
