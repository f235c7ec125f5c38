//! Flow control: the destager is called before a volume is full, then its guests are slowed.
//!
//! ```text
//!        a gauge at 2/3 of its limit         a gauge at its limit
//!   calm ──────────────────────────▶ draining ──────────────────▶ slowing
//!   calm ◀────────────────────────── draining ◀────────────────── slowing
//!               all below 1/3                    all below 4/5
//! ```
//!
//! Three gauges count: dirty writes, dirty bytes, and the expected time to destage them. While
//! slowing, each write is held before it is admitted, so that guests write as fast as the origin
//! takes. Always true: a delay lies between one and four times the average latency of the origin
//! (itself bounded) until the volume is nine tenths full, and never above a second; from one step
//! to the next it grows by a quarter at most. Deliberately absent: queues, timers, devices; the
//! core holds the writes and asks.
//!
//! A controller of the fill alone was tried on paper first: it finds the rate only by filling up,
//! and a guest with one write in flight needs another gain than one with two hundred. By Little's
//! law the writes that are held, divided by the rate wanted, are the delay; the fill only corrects.

use crate::adversary::{Bug, has};
use crate::types::Time;

/// Room in which a state does not fall back at once, in thousandths of a gauge's limit.
const LEVEL_FULL: u64 = 1000;
const LEVEL_DRAIN: u64 = 667;
const LEVEL_CALM: u64 = 333;
const LEVEL_RELEASE: u64 = 800;
/// From this fill on, in thousandths, a delay may exceed four times the latency.
const FILL_STEEP: u64 = 900;
/// Between two steps of the controller.
const STEP_NS: u64 = 10_000_000;
/// The latency that delays are made of, at most: a quarter of the longest delay.
const UNIT_NS_MAX: u64 = DELAY_NS_MAX / 4;
/// Below this a delay is not worth its timer.
const UNIT_NS_MIN: u64 = 20_000;
/// No write is held longer, except by a full volume.
pub const DELAY_NS_MAX: u64 = 1_000_000_000;
/// Taken for the latency when guests must be slowed before any request to the origin has ended.
const LATENCY_GUESS_NS: u64 = 1_000_000;
/// A request that hangs counts as a sample of its age, up to so long.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// A backlog is destaged for so long before its rate is believed.
const RATE_FIRST_NS: u64 = 500_000_000;
const RATE_EVERY_NS: u64 = 100_000_000;
/// Time constant of the measured rate: longer than the pauses between two epochs.
const RATE_TAU_NS: u64 = 2_000_000_000;
/// Epochs are this part of the room while the destager is behind, so that room comes in small
/// portions; not smaller than the bytes that make a destage worth its syncs.
const EPOCHS_PER_ROOM: u64 = 16;
const EPOCH_BLOCKS_MIN: u64 = 1024;
const EPOCHS_CALM: u64 = 4;

const _: () = assert!(LEVEL_CALM < LEVEL_DRAIN && LEVEL_DRAIN < LEVEL_RELEASE);
const _: () = assert!(LEVEL_RELEASE < LEVEL_FULL && FILL_STEEP < 1000);
const _: () = assert!(UNIT_NS_MIN < UNIT_NS_MAX && 4 * UNIT_NS_MAX <= DELAY_NS_MAX);
const _: () = assert!(RATE_EVERY_NS < RATE_FIRST_NS && RATE_FIRST_NS < RATE_TAU_NS);
const _: () = assert!(EPOCHS_CALM <= EPOCHS_PER_ROOM);

/// When flow control starts, as the administrator wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLimits {
    /// `None`: three quarters of the volume's room in the map of dirty extents.
    pub dirty_writes: Option<u64>,
    /// Of the blocks that the volume may keep dirty.
    pub dirty_bytes_percent: u64,
    pub destage_time_ms: u64,
}

impl Default for FlowLimits {
    fn default() -> FlowLimits {
        FlowLimits {
            dirty_writes: None,
            dirty_bytes_percent: 75,
            destage_time_ms: 300_000,
        }
    }
}

/// What the core sees of a volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gauges {
    /// Blocks of the log that it keeps alive, and may keep alive.
    pub dirty_blocks: u64,
    pub room_blocks: u64,
    /// The room is that of a peer, which has less than this host.
    pub peers_limit: bool,
    pub dirty_writes: u64,
    pub dirty_extents: u64,
    pub extents_room: u64,
    /// What must still be destaged before room comes back.
    pub batch_left_blocks: u64,
    /// Blocks of the writes that wait for admission, the next one included.
    pub held_blocks: u64,
    pub queue_depth: u64,
}

/// Which gauge started flow control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    DirtyWrites,
    DirtyBytes,
    DestageTime,
    /// A host with a copy has less room than this one.
    CopyRoom,
}

impl Reason {
    pub const fn name(self) -> &'static str {
        match self {
            Reason::DirtyWrites => "dirty-writes",
            Reason::DirtyBytes => "dirty-bytes",
            Reason::DestageTime => "destage-time",
            Reason::CopyRoom => "copy-room",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Calm,
    Draining,
    Slowing(Reason),
}

/// The controller of one volume.
#[derive(Clone, Debug)]
pub struct Flow {
    state: State,
    /// Blocks that may be admitted before the gauges must be looked at again.
    ease_blocks: u64,
    looked: Time,
    /// An open epoch is sealed at this size.
    epoch_blocks: u64,
    /// Moving averages of the origin's latency, for requests as large as the guest's writes and
    /// as the destager makes them, the least of late, and the samples since the last step.
    latency_ns: u64,
    raw_ns: u64,
    least_ns: u64,
    sum_ns: u64,
    samples: u64,
    oldest: Option<Time>,
    /// Thousandths of blocks per second that reach the origin, measured while there is a backlog.
    rate: Option<u64>,
    moved_halves: u64,
    measured: Time,
    held_blocks: u64,
    /// Average size of a write in sixteenths of a block.
    write_sixteenths: u64,
    delay_ns: u64,
    highest_ns: u64,
    last_due: Time,
    /// The volume was full: writes are released one by one until it is not.
    at_hard_limit: bool,
    not_before: Time,
    /// A timer is set for the first held write.
    pub timer: Option<Time>,
    /// Writes that were held since start.
    pub held_writes: u64,
}

impl Default for Flow {
    fn default() -> Flow {
        Flow {
            state: State::Calm,
            ease_blocks: 0,
            looked: Time(0),
            epoch_blocks: u64::MAX,
            latency_ns: 0,
            raw_ns: 0,
            least_ns: 0,
            sum_ns: 0,
            samples: 0,
            oldest: None,
            rate: None,
            moved_halves: 0,
            measured: Time(0),
            held_blocks: 0,
            write_sixteenths: 0,
            delay_ns: 0,
            highest_ns: 0,
            last_due: Time(0),
            at_hard_limit: false,
            not_before: Time(0),
            timer: None,
            held_writes: 0,
        }
    }
}

impl Flow {
    /// Counts a write that arrives. True when the gauges must be looked at before it is taken;
    /// far from every limit that is one comparison.
    pub fn arrives(&mut self, now: Time, blocks: u64) -> bool {
        assert!(
            self.ease_blocks == 0 || !self.is_active(),
            "who is slowed is looked at for each write"
        );
        if self.ease_blocks >= blocks {
            self.ease_blocks -= blocks;
            return false;
        }
        let mean = self.write_sixteenths;
        self.write_sixteenths = match mean {
            0 => 16 * blocks,
            _ => mean - mean / 16 + blocks,
        };
        !self.is_active() || now.since(self.looked) >= STEP_NS
    }

    /// Takes in the gauges: the state, the delay and the size of epochs follow.
    pub fn look(&mut self, now: Time, limits: &FlowLimits, gauges: &Gauges) {
        let stepped = now.since(self.looked) >= STEP_NS;
        if !self.is_active() || stepped {
            self.average_latency(now);
        }
        self.measure_rate(now);
        let (level, reason) = self.level(limits, gauges);
        self.change_state(now, level, reason);
        let part = (gauges.room_blocks / EPOCHS_PER_ROOM).max(EPOCH_BLOCKS_MIN);
        self.epoch_blocks = match self.state {
            // While there is no hurry, what is written again and again stays in one epoch.
            State::Calm => gauges.room_blocks / EPOCHS_CALM,
            _ => part.min(gauges.room_blocks / EPOCHS_CALM),
        }
        .max(1);
        let high = self.highest(gauges);
        self.highest_ns = high;
        match self.state {
            State::Slowing(_) if stepped || self.delay_ns == 0 => {
                self.steer(level, high, gauges);
                self.ease_blocks = 0;
                self.looked = now;
            }
            State::Slowing(_) => {
                self.ease_blocks = 0;
                self.delay_ns = self.delay_ns.min(high);
            }
            State::Calm => self.ease(LEVEL_DRAIN, now, limits, gauges),
            State::Draining => self.ease(LEVEL_FULL, now, limits, gauges),
        }
        assert!(self.delay_ns <= DELAY_NS_MAX, "no write is held for ever");
        assert!(self.is_active() == (self.delay_ns > 0));
    }

    /// When a write that arrives now may be admitted; the past while nothing is slowed.
    pub fn due(&mut self, now: Time, blocks: u64) -> Time {
        if !self.is_active() || has(Bug::NeverSlow) {
            return Time(0);
        }
        assert!(
            self.delay_ns > 0 && self.delay_ns <= self.highest_ns,
            "a delay lies below the longest of this fill"
        );
        self.held_writes += 1;
        // Writes that come in a bunch would be released in one, and come back in one.
        let spread = self.gap_ns(blocks) / 2;
        let due = (now.0 + self.delay_ns).max(self.last_due.0 + spread);
        self.last_due = Time(due.min(now.0 + self.highest_ns));
        self.last_due
    }

    /// A write was refused because the volume is full.
    pub fn hit_hard_limit(&mut self) {
        self.at_hard_limit = true;
    }

    /// A write was admitted: behind a wall the next one follows as room comes.
    pub fn admitted(&mut self, now: Time, blocks: u64) {
        if self.at_hard_limit && self.is_active() {
            self.not_before = Time(now.0 + self.gap_ns(blocks));
        }
    }

    /// What the origin takes for a write of this size, never more than its latency.
    fn gap_ns(&self, blocks: u64) -> u64 {
        let gap = |rate: u64| blocks.saturating_mul(1_000_000_000_000) / rate.max(1);
        self.rate.map_or(0, gap).min(self.unit_ns())
    }

    /// When the next write of a full volume may be tried.
    pub fn not_before(&self) -> Time {
        if self.at_hard_limit && self.is_active() {
            self.not_before
        } else {
            Time(0)
        }
    }

    /// A request of so many blocks to the origin has ended; one without any, such as a sync, is
    /// no sample of its latency.
    ///
    /// The destager merges, and a link that is full of its large requests makes each of them wait
    /// for the others. A guest's write would have waited for as many as small as itself, so that
    /// part of the latency counts, but never less than the origin's least.
    pub fn origin_done(&mut self, started: Time, now: Time, blocks: u64) {
        if self.oldest.is_some_and(|oldest| started <= oldest) {
            self.oldest = None;
        }
        if blocks == 0 {
            return;
        }
        let raw = now.since(started).clamp(1, LATENCY_NS_MAX);
        self.raw_ns = match self.raw_ns {
            0 => raw,
            old => old - old / 16 + raw / 16,
        };
        self.least_ns = match self.least_ns {
            0 => raw,
            old => raw.min(old + old / 256),
        };
        let part = match self.write_sixteenths {
            0 => raw,
            size => raw.saturating_mul(size) / (16 * blocks),
        };
        self.sum_ns += part.max(self.least_ns).min(raw);
        self.samples += 1;
    }

    /// Whether a request to the origin has had no answer for so long.
    pub fn is_silent(&self, now: Time, for_ns: u64) -> bool {
        self.oldest
            .is_some_and(|oldest| now.since(oldest) >= for_ns)
    }

    /// The oldest request to the origin that has not ended.
    pub fn outstanding(&mut self, oldest: Option<Time>) {
        self.oldest = oldest;
    }

    /// Halves of blocks on their way to the origin are there: an atomic destage writes each block
    /// twice, and each time counts one.
    pub fn moved(&mut self, halves: u64) {
        self.moved_halves += halves;
    }

    /// The destager is wanted, whatever the age of the data.
    pub fn is_pressing(&self) -> bool {
        self.state != State::Calm
    }

    pub fn is_active(&self) -> bool {
        matches!(self.state, State::Slowing(_))
    }

    /// Size in blocks at which an epoch is sealed.
    pub fn epoch_blocks(&self) -> u64 {
        self.epoch_blocks
    }

    pub fn delay_ns(&self) -> u64 {
        self.delay_ns
    }

    pub fn latency_ns(&self) -> u64 {
        self.latency_ns
    }

    pub fn reason(&self) -> Option<Reason> {
        match self.state {
            State::Slowing(reason) => Some(reason),
            _ => None,
        }
    }

    /// The volume is of another policy now: nothing is owed to an origin.
    pub fn reset(&mut self) {
        *self = Flow {
            held_writes: self.held_writes,
            timer: self.timer,
            ..Flow::default()
        };
    }

    fn unit_ns(&self) -> u64 {
        self.latency_ns.clamp(UNIT_NS_MIN, UNIT_NS_MAX)
    }

    /// While guests are slowed the average moves by an eighth per step, so that delays, which
    /// follow it faster, never fall below it.
    fn average_latency(&mut self, now: Time) {
        // What hangs will never be a sample by its end, so its age is one.
        let age = self.oldest.map_or(0, |started| now.since(started));
        let age = age.min(LATENCY_NS_MAX);
        if age > 2 * self.raw_ns {
            let part = u128::from(age) * u128::from(self.latency_ns.max(1));
            self.sum_ns += match self.raw_ns {
                0 => age,
                raw => (part / u128::from(raw)).min(u128::from(age)) as u64,
            };
            self.samples += 1;
        }
        if self.samples == 0 {
            return;
        }
        let mean = self.sum_ns / self.samples;
        (self.sum_ns, self.samples) = (0, 0);
        let old = self.latency_ns;
        if old == 0 {
            self.latency_ns = mean;
            return;
        }
        let share = if self.is_active() { 8 } else { 4 };
        let near = old - old / share + mean / share;
        self.latency_ns = if self.is_active() {
            near.clamp(old - old / 8, old + old / 8 + 1)
        } else {
            near
        };
    }

    fn measure_rate(&mut self, now: Time) {
        let elapsed = now.since(self.measured);
        let seen = |flow: &Flow| {
            let halves = u128::from(flow.moved_halves);
            (halves * 500_000_000_000 / u128::from(elapsed.max(1))) as u64
        };
        match (self.state, self.rate) {
            (State::Calm, _) => return,
            (_, None) if elapsed >= RATE_FIRST_NS => self.rate = Some(seen(self)),
            (_, Some(rate)) if elapsed >= RATE_EVERY_NS => {
                let share = elapsed.min(RATE_TAU_NS) / 1000;
                let keep = RATE_TAU_NS / 1000 - share;
                let sum = u128::from(rate) * u128::from(keep)
                    + u128::from(seen(self)) * u128::from(share);
                self.rate = Some((sum / u128::from(RATE_TAU_NS / 1000)) as u64);
            }
            _ => return,
        }
        self.moved_halves = 0;
        self.measured = now;
    }

    /// The gauge that is nearest to its limit, or farthest above it, in thousandths.
    fn level(&self, limits: &FlowLimits, gauges: &Gauges) -> (u64, Reason) {
        let bytes = per_mille(
            gauges.dirty_blocks.saturating_mul(100),
            gauges
                .room_blocks
                .saturating_mul(limits.dirty_bytes_percent),
        );
        let writes = match limits.dirty_writes {
            Some(limit) => per_mille(gauges.dirty_writes, limit),
            None => per_mille(gauges.dirty_extents, gauges.extents_room / 4 * 3),
        };
        let time = per_mille(self.expected_ms(gauges), limits.destage_time_ms);
        let mut worst = (bytes, Reason::DirtyBytes);
        for other in [(writes, Reason::DirtyWrites), (time, Reason::DestageTime)] {
            if other.0 > worst.0 {
                worst = other;
            }
        }
        if gauges.peers_limit && worst.1 != Reason::DestageTime {
            worst.1 = Reason::CopyRoom;
        }
        worst
    }

    /// How long the dirty data will take. Before a rate was measured it follows from the latency,
    /// which is enough to call the destager and too little to slow anybody.
    fn expected_ms(&self, gauges: &Gauges) -> u64 {
        match (self.rate, self.state) {
            (Some(rate), _) => gauges.dirty_blocks.saturating_mul(1_000_000) / rate.max(1),
            (None, State::Calm) => {
                let rounds = 2 * gauges.dirty_extents / gauges.queue_depth.max(1);
                rounds.saturating_mul(self.latency_ns / 1000) / 1000
            }
            (None, _) => 0,
        }
    }

    fn change_state(&mut self, now: Time, level: u64, reason: Reason) {
        self.state = match self.state {
            State::Slowing(_) if level >= LEVEL_RELEASE => State::Slowing(reason),
            State::Draining | State::Slowing(_) if level < LEVEL_CALM => State::Calm,
            State::Draining if level >= LEVEL_FULL => State::Slowing(reason),
            State::Draining | State::Slowing(_) => State::Draining,
            State::Calm if level >= LEVEL_DRAIN => {
                // The rate of an earlier backlog says nothing of this one.
                self.rate = None;
                self.moved_halves = 0;
                self.measured = now;
                if level >= LEVEL_FULL && reason != Reason::DestageTime {
                    State::Slowing(reason)
                } else {
                    State::Draining
                }
            }
            State::Calm => State::Calm,
        };
        if self.is_active() {
            if self.latency_ns == 0 {
                self.latency_ns = LATENCY_GUESS_NS;
            }
        } else {
            self.delay_ns = 0;
            self.held_blocks = 0;
            self.at_hard_limit = false;
        }
    }

    /// The longest delay at this fill.
    fn highest(&mut self, gauges: &Gauges) -> u64 {
        let unit = self.unit_ns();
        let fill = per_mille(gauges.dirty_blocks, gauges.room_blocks).min(1000);
        if fill < FILL_STEEP {
            self.at_hard_limit = false;
            return unit + 3 * unit * fill / FILL_STEEP;
        }
        let steep = DELAY_NS_MAX - 4 * unit;
        let highest = 4 * unit + steep * (fill - FILL_STEEP) / (1000 - FILL_STEEP);
        assert!(highest <= DELAY_NS_MAX, "no write is held for ever");
        highest
    }

    /// One step of the delay towards what the measured rate asks for.
    fn steer(&mut self, level: u64, high: u64, gauges: &Gauges) {
        assert!(self.is_active(), "only who is slowed has a delay");
        let unit = self.unit_ns();
        assert!(unit <= high, "no delay is below the latency");
        // Writes come and go in bunches: a look at the wrong moment finds few of those in flight.
        self.held_blocks = gauges
            .held_blocks
            .max(self.held_blocks - self.held_blocks / 16);
        // Above its limit by `over` thousandths: three quarters of the rate's delay at the limit,
        // all of it a third of the way to the steep part, and half as much again beyond.
        let over = level.clamp(LEVEL_FULL, 2 * LEVEL_FULL) - LEVEL_FULL;
        let stretch = 750 + over * 4;
        let wanted = match self.rate {
            None => unit + 3 * unit * over.min(250) / 250,
            Some(rate) => {
                // What is left of the room must last until the epoch under way gives some back.
                let left = gauges.room_blocks.saturating_sub(gauges.dirty_blocks);
                let lasting = left.saturating_mul(875) / gauges.batch_left_blocks.max(1);
                let speed = (1_000_000 / stretch).min(lasting);
                let admitted = u128::from(rate) * u128::from(speed) / 1000;
                let delay = u128::from(self.held_blocks) * 1_000_000_000_000 / admitted.max(1);
                u64::try_from(delay).unwrap_or(u64::MAX)
            }
        };
        let target = wanted.clamp(unit, high);
        self.delay_ns = match self.delay_ns {
            0 => unit,
            old => target.clamp(old / 5 * 4, old + old / 4).min(high),
        };
    }

    /// How much may come before any gauge can be at `level`.
    fn ease(&mut self, level: u64, now: Time, limits: &FlowLimits, gauges: &Gauges) {
        assert!(!self.is_active() && level <= LEVEL_FULL);
        let left = |now: u64, limit: u64| (limit.saturating_mul(level) / 1000).saturating_sub(now);
        let room = gauges
            .room_blocks
            .saturating_mul(limits.dirty_bytes_percent)
            / 100;
        let bytes = left(gauges.dirty_blocks, room);
        let writes = match limits.dirty_writes {
            Some(limit) => left(gauges.dirty_writes, limit),
            // A block that is written adds a few extents at most.
            None => left(gauges.dirty_extents, gauges.extents_room / 4 * 3) / 4,
        };
        self.ease_blocks = bytes.min(writes);
        self.looked = now;
    }
}

/// Each look at the gauges asks four times; a division of 128 bits takes as long as the rest.
fn per_mille(of: u64, limit: u64) -> u64 {
    match of.checked_mul(1000) {
        Some(of) => of / limit.max(1),
        None => (u128::from(of) * 1000 / u128::from(limit.max(1))).min(u128::from(u64::MAX)) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::per_mille;

    #[test]
    fn a_share_is_the_same_on_both_ways_of_dividing() {
        let edge = u64::MAX / 1000;
        let wide = |of: u64, limit: u64| {
            let share = u128::from(of) * 1000 / u128::from(limit.max(1));
            u64::try_from(share).unwrap_or(u64::MAX)
        };
        for of in [0, 1, 999, edge - 1, edge, edge + 1, u64::MAX] {
            for limit in [0, 1, 3, 1000, edge, u64::MAX] {
                assert_eq!(per_mille(of, limit), wide(of, limit), "{of} of {limit}");
            }
        }
    }
}
