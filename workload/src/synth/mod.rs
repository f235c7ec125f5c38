//! Traces of desktops that nobody had to work at: an office's week, and single phases of it.
//!
//! Owns the generator. Always true: the same parameters give the same records; they come in the
//! order of time; a record's path says its class, and each class is one range of the disk; memory
//! depends on desktops and on what they have read and written, never on the length. Deliberately
//! absent: files, clocks, and how fast storage answers: desktops do not wait for it.
//!
//! One second after the other is made for all desktops, sorted and handed out. A desktop owes
//! requests at its rate and makes them in bursts; a [`Mix`] decides what each is and steers its
//! shares of writes, bytes and content seen before.

mod desktop;
mod layout;
mod mix;
mod parameters;
mod pieces;
pub mod published;
mod random;
mod reads;
pub mod rows;
pub mod statistics;
#[cfg(test)]
mod tests;
mod week;
mod writes;

pub use layout::{Class, Durability};
pub use parameters::{DESKTOPS_MAX, Parameters, Pattern, SynthError};
pub use published::Period;

use crate::trace::{NameId, Names, Op, Record};
use desktop::{Desktop, Kind};
use layout::{BLOCK_SECTORS, Layout};
use mix::{Bound, Counts, Mix};
use published::{BOOT_BLOCKS, BOOT_READS, DAY_S, LOGIN, PEAKS, SECOND_NS};
use random::Random;
use reads::{Frontier, Pool};
use statistics::Statistics;
use std::ops::Range;
use week::Plan;

/// The peaks of the week, in the order of the published tables.
pub fn peaks() -> [Period; 6] {
    PEAKS
}

/// A flush follows one of so many small writes.
const WRITES_PER_FLUSH: u64 = 10;
const FLUSH_AFTER_NS: u64 = 40_000;
/// One of so many reads is of what the desktop has written itself.
const READS_PER_OWN: u64 = 30;
/// More reads that should be new are not kept for later.
const OWED_MAX: f64 = 50.0;
/// What passes a cache in the greatest seconds is drawn; the greatest draw is to be what was
/// published.
const PASSING: f64 = 0.95;

/// Which pool of content a mix reads.
#[derive(Clone, Copy, Debug)]
enum Content {
    Week,
    Steady,
    Login,
    Boot,
}

/// The mixes: those of the six peaks, then these.
const USUAL: usize = PEAKS.len();
const LOGGING_IN: usize = USUAL + 1;
const SETTLING: usize = USUAL + 2;
const BOOTING: usize = USUAL + 3;

/// The generator; see the module.
pub struct Synth {
    parameters: Parameters,
    layout: Layout,
    disks: Names,
    desktops: Vec<Desktop>,
    pools: [Pool; 4],
    frontier: Frontier,
    mixes: Vec<Mix>,
    /// Of all mixes together: what the week as a whole is steered by.
    total: Counts,
    plan: Option<(usize, Plan)>,
    /// Of the peak in this second.
    bound: Bound,
    random: Random,
    /// The next one to be made.
    second: u64,
    ready: Vec<Record>,
    at: usize,
    begun: bool,
}

/// Kinds of workers of a pattern, one after the other.
fn kind(pattern: Pattern, at: usize) -> Kind {
    match pattern {
        Pattern::Desktops | Pattern::Boot | Pattern::Login => Kind::Desk,
        Pattern::Office => Kind::Knowledge,
        Pattern::Heavy => Kind::Heavy,
        Pattern::Mixed => match at % 5 {
            0 | 2 => Kind::Task,
            1 | 3 => Kind::Knowledge,
            _ => Kind::Heavy,
        },
    }
}

impl Synth {
    pub fn new(parameters: &Parameters) -> Result<Synth, SynthError> {
        parameters.check()?;
        let layout = Layout::new(parameters.disk_bytes);
        let mut random = Random::new(parameters.seed, 0, 0);
        let mut frontier = Frontier::new(&layout);
        let boot = Pool::whole(
            reads::BOOT_SIZES,
            (BOOT_READS, BOOT_BLOCKS),
            &mut frontier,
            &mut random,
        );
        let pools = [
            Pool::new(reads::WEEK_SIZES),
            Pool::new(reads::STEADY_SIZES),
            Pool::new(reads::LOGIN_SIZES),
            boot,
        ];
        let count = parameters.desktops as usize;
        let active = (parameters.active * count as f64).round() as usize;
        // Rates and plateaus are spread evenly over the desktops, in an order of their own.
        let mut places: Vec<usize> = (0..count).collect();
        for at in (1..count).rev() {
            places.swap(at, random.below(at as u64 + 1) as usize);
        }
        let mut disks = Names::default();
        let mut desktops = Vec::new();
        for (at, place) in places.into_iter().enumerate() {
            let kind = kind(parameters.pattern, at);
            disks.id(&format!("{}-{:03}", kind.name(), at + 1));
            let place = (at, place);
            desktops.push(Desktop::new(parameters, &layout, place, kind, at < active));
        }
        let usual = match parameters.pattern {
            Pattern::Desktops | Pattern::Boot | Pattern::Login => Mix::of_week(parameters.desktops),
            Pattern::Office => Mix::of_phase(&published::KNOWLEDGE, Content::Steady),
            Pattern::Heavy | Pattern::Mixed => Mix::of_phase(&published::HEAVY, Content::Steady),
        };
        let mut mixes: Vec<Mix> = PEAKS.iter().map(Mix::of_peak).collect();
        mixes.push(usual);
        mixes.push(Mix::of_phase(&LOGIN, Content::Login));
        mixes.push(Mix::of_settling());
        mixes.push(Mix::of_boot());
        Ok(Synth {
            parameters: parameters.clone(),
            layout,
            disks,
            desktops,
            pools,
            frontier,
            mixes,
            total: Counts::default(),
            plan: None,
            bound: Bound::NONE,
            random,
            second: 0,
            ready: Vec::new(),
            at: 0,
            begun: false,
        })
    }

    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    pub fn disks(&self) -> &Names {
        &self.disks
    }

    pub fn paths(&self) -> &Names {
        self.layout.paths()
    }

    pub fn disk_bytes(&self) -> u64 {
        self.parameters.disk_bytes
    }

    /// From the beginning of each disk: so much is content of the shared image.
    pub fn base_bytes(&self) -> u64 {
        self.layout.base_bytes()
    }

    /// The class of a path of this generator.
    pub fn class_of(&self, path: NameId) -> Class {
        self.layout.class_of(path).unwrap_or(Class::User)
    }

    /// Where a class lies, in sectors; on each desktop the same.
    pub fn ranges(&self, class: Class) -> &[Range<u64>] {
        self.layout.ranges(class)
    }

    /// Empty statistics that fit this trace.
    pub fn statistics(&self) -> Statistics {
        let page_file = self.ranges(Class::PageFile)[0].clone();
        Statistics::new(self.parameters.desktops, self.disk_bytes(), page_file)
    }

    /// Makes the records of the next second.
    fn make_second(&mut self) {
        self.ready.clear();
        self.at = 0;
        let second = self.second;
        self.second += 1;
        let week = self.parameters.pattern == Pattern::Desktops;
        if week {
            self.begin(second);
        }
        self.bound = self.bound(second);
        for at in 0..self.desktops.len() {
            self.make_boot(at, second);
            if let Some((peak, plan)) = &self.plan {
                let (peak, count) = (*peak, plan.count(at, second));
                self.make(at, peak, count, second);
                continue;
            }
            let desktop = &mut self.desktops[at];
            let arrivals = matches!(self.parameters.pattern, Pattern::Boot | Pattern::Login);
            let activity = match (week, arrivals) {
                (true, _) => week::activity(second, desktop.active, desktop.arrival_s),
                (false, arrivals) => f64::from(u8::from(!arrivals)),
            };
            let usual = desktop.requests(second, activity, self.parameters.intensity);
            let usual = if arrivals { 0 } else { usual };
            let login = desktop.login_requests(second);
            let settle = desktop.settle_writes(second);
            self.make(at, USUAL, usual, second);
            self.make(at, LOGGING_IN, login, second);
            self.make_settling(at, settle, second);
        }
        self.ready.sort_by_key(|record| record.time_ns);
    }

    /// In the greatest seconds of a peak most of what is asked for has been read before: programs
    /// start. No more passed a write-through cache than was published.
    fn bound(&self, second: u64) -> Bound {
        let Some((peak, plan)) = &self.plan else {
            return Bound::NONE;
        };
        let desktops = f64::from(self.parameters.desktops) / f64::from(published::DESKTOPS);
        let most = PEAKS[*peak].passing_per_second_max as f64;
        let most = most * desktops * self.parameters.intensity;
        self.mixes[*peak].bound(plan.total(second) as f64, most * PASSING)
    }

    /// What begins with this second: a day, a peak.
    fn begin(&mut self, second: u64) {
        if second.is_multiple_of(DAY_S) {
            let day = second / DAY_S;
            for desktop in &mut self.desktops {
                desktop.begin_day(day);
            }
            let (desktop, cluster) = mix::WEEK_NEW[usize::from(day > 0)];
            // A greater office knows its image sooner.
            let office = f64::from(published::DESKTOPS);
            let known = (office / f64::from(self.parameters.desktops)).min(1.0);
            self.mixes[USUAL].new_to_desktop = desktop;
            self.mixes[USUAL].new_to_cluster = cluster * known;
        }
        if self
            .plan
            .as_ref()
            .is_some_and(|(_, plan)| plan.end_s() == second)
        {
            self.plan = None;
        }
        let begins = |period: &Period| period.from_ns == second * SECOND_NS;
        if let Some(at) = PEAKS.iter().position(begins) {
            let active: Vec<bool> = self.desktops.iter().map(|desktop| desktop.active).collect();
            let mut random = Random::new(self.parameters.seed, 4, at as u64);
            let plan = Plan::new(&PEAKS[at], &active, self.parameters.intensity, &mut random);
            for (desktop, new) in self.desktops.iter_mut().zip(&plan.new_to_desktop) {
                desktop.unseen = desktop.random.share() * new;
            }
            self.plan = Some((at, plan));
        }
    }

    fn make(&mut self, at: usize, mix: usize, count: u64, second: u64) {
        for number in 0..count {
            let random = &mut self.desktops[at].random;
            let part = (number as f64 + random.share()) / count as f64;
            let time_ns = second * SECOND_NS + (part * SECOND_NS as f64) as u64;
            let steered = match (mix, self.parameters.pattern) {
                (USUAL, Pattern::Desktops) => &self.total,
                _ => &self.mixes[mix].counts,
            };
            let peak = mix < USUAL;
            let bound = if peak { self.bound } else { Bound::NONE };
            if self.mixes[mix].is_write(steered, bound, random) {
                let large = self.mixes[mix].is_large(steered, random);
                self.write(at, mix, large, time_ns);
            } else {
                self.read(at, mix, time_ns);
            }
        }
    }

    /// Large new writes, the page file's first round among them, and what is read beside them.
    fn make_settling(&mut self, at: usize, writes: u64, second: u64) {
        let mut left = writes;
        let mut number = 0.0;
        while left > 0 {
            let desktop = &mut self.desktops[at];
            let part = (number / (writes as f64 * 3.0)).min(1.0);
            number += 1.0;
            let time_ns = second * SECOND_NS + (part * (SECOND_NS - 1) as f64) as u64;
            let mix = &self.mixes[SETTLING];
            if !mix.is_write(&mix.counts, Bound::NONE, &mut desktop.random) {
                self.read(at, SETTLING, time_ns);
                continue;
            }
            left -= 1;
            let ring = desktop.written.page_file_left() > 0 && desktop.random.below(4) == 0;
            let (block, blocks) = match ring {
                true => desktop.written.page_out(),
                false => desktop.written.fresh((second * 1000) as u32),
            };
            self.push(at, SETTLING, Op::Write, (block, blocks), time_ns);
        }
    }

    fn make_boot(&mut self, at: usize, second: u64) {
        let desktop = &mut self.desktops[at];
        let Some(boot) = &mut desktop.boot else {
            return;
        };
        let from_ns = (second * 1000).max(boot.from_ms) * (SECOND_NS / 1000);
        let end_ns = (second + 1) * SECOND_NS;
        let due = boot.due((second + 1) * 1000);
        let (reads, writes) = (boot.reads..due.0, boot.writes..due.1);
        (boot.reads, boot.writes) = due;
        if due.0 == BOOT_READS {
            desktop.boot = None;
        }
        let place = |number: u64, all: &Range<u64>| {
            from_ns + (end_ns - from_ns) / (all.end - all.start) * (number - all.start)
        };
        for number in reads.clone() {
            let piece = self.pools[Content::Boot as usize].pieces()[number as usize];
            let time_ns = place(number, &reads);
            self.push(at, BOOTING, Op::Read, (piece.block, piece.blocks), time_ns);
        }
        for number in writes.clone() {
            let mix = &self.mixes[BOOTING];
            let large = mix.is_large(&mix.counts, &mut self.desktops[at].random);
            self.write(at, BOOTING, large, place(number, &writes));
        }
    }

    fn write(&mut self, at: usize, mix: usize, large: bool, time_ns: u64) {
        let desktop = &mut self.desktops[at];
        let diverge_to = desktop.diverge_to(time_ns / SECOND_NS);
        let now_ms = (time_ns / (SECOND_NS / 1000)) as u32;
        let place = desktop.written.write(now_ms, large, diverge_to);
        let flushes = !large && desktop.random.below(WRITES_PER_FLUSH) == 0;
        self.push(at, mix, Op::Write, place, time_ns);
        if flushes {
            let mut record = self.ready[self.ready.len() - 1];
            record.op = Op::Flush;
            let second_ends = (time_ns / SECOND_NS + 1) * SECOND_NS - 1;
            record.time_ns = (time_ns + FLUSH_AFTER_NS).min(second_ends);
            record.sector = 0;
            record.sectors = 0;
            self.ready.push(record);
        }
    }

    fn read(&mut self, at: usize, mix: usize, time_ns: u64) {
        let desktop = &mut self.desktops[at];
        let by_peak = self.plan.as_ref().filter(|(peak, _)| *peak == mix);
        let steered = &mut self.mixes[mix];
        let unseen = by_peak.map_or(steered.new_to_desktop, |(_, plan)| {
            plan.new_to_desktop[at] * self.bound.unseen
        });
        desktop.unseen = (desktop.unseen + unseen).min(OWED_MAX);
        steered.undiscovered = (steered.undiscovered + steered.new_to_cluster).min(OWED_MAX);
        let content = steered.content as usize;
        let pool = &mut self.pools[content];
        let reader = &mut desktop.readers[content];
        let mut piece = None;
        if desktop.unseen >= 1.0 {
            if steered.undiscovered < 1.0 {
                piece = pool.follow(at as u16, reader);
            }
            if piece.is_none() {
                let random = &mut self.random;
                piece = pool.discover(&mut self.frontier, at as u16, reader, random);
                steered.undiscovered -= 1.0;
            }
            desktop.unseen -= 1.0;
        } else if desktop.random.below(READS_PER_OWN) == 0
            && let Some(own) = desktop.written.own()
        {
            return self.push(at, mix, Op::Read, own, time_ns);
        }
        let piece = piece
            .or_else(|| pool.again(reader, &mut desktop.random))
            .or_else(|| pool.follow(at as u16, reader))
            .or_else(|| pool.discover(&mut self.frontier, at as u16, reader, &mut self.random));
        // An image that was read to its end, by somebody else alone: nothing is left to say.
        if let Some(piece) = piece {
            self.push(at, mix, Op::Read, (piece.block, piece.blocks), time_ns);
        }
    }

    fn push(&mut self, at: usize, mix: usize, op: Op, (block, blocks): (u32, u16), time_ns: u64) {
        self.mixes[mix].counts.add(op == Op::Write, blocks);
        self.total.add(op == Op::Write, blocks);
        self.ready.push(Record {
            time_ns,
            disk: NameId(at as u32),
            op,
            sector: u64::from(block) * BLOCK_SECTORS,
            sectors: u32::from(blocks) * BLOCK_SECTORS as u32,
            path: Some(self.layout.path_of(block.into())),
        });
    }
}

impl Iterator for Synth {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let from_ns = self.parameters.from_ns;
        let end_ns = from_ns + self.parameters.duration_ns;
        loop {
            while let Some(record) = self.ready.get(self.at) {
                self.at += 1;
                if record.time_ns >= end_ns {
                    return None;
                }
                if record.time_ns < from_ns {
                    continue;
                }
                let mut record = *record;
                let first = !std::mem::replace(&mut self.begun, true);
                if first && self.parameters.pattern == Pattern::Desktops {
                    // Readers count from the first record, which is so the week's beginning.
                    record.time_ns = from_ns;
                }
                return Some(record);
            }
            if self.second * SECOND_NS >= end_ns {
                return None;
            }
            self.make_second();
        }
    }
}
