//! One desktop: how much it owes, and what it is in the middle of.
//!
//! Owns its rate, its bursts, boot, login and settling. Always true: what it makes in the long run
//! is its rate, since it goes on owing while it is off. Deliberately absent: what a request is.

use super::layout::{BLOCK_BYTES, Layout};
use super::parameters::{Parameters, Pattern};
use super::published::{
    BOOT_MS, BOOT_READS, BOOT_WRITES, DAY_S, DIVERGED_BYTES, HEAVY, KNOWLEDGE, LOGIN, Phase, TASK,
};
use super::random::Random;
use super::reads::Reader;
use super::week;
use super::writes::{REWRITTEN, Written};

/// A login is over after so long.
pub const LOGIN_S: u64 = 90;
/// After the boot in the first night a desktop settles: it fills its page file, unpacks and scans.
const SETTLE_S: u64 = 4 * 3600;
/// It writes more than is still missing then, since what is new makes more be rewritten.
const SETTLED: f64 = 1.25;
/// Boots after the image was published come within so long.
const REFRESH_S: u64 = 3600;
/// The plateau of a desktop's divergence is so far from the mean at most.
const DIVERGED_SPREAD: f64 = 0.15;
/// What is added to the plateau in a day, and of a few desktops.
const GROWTH_PER_DAY: f64 = 0.04;
const GROWTH_PER_DAY_FEW: f64 = 0.2;
/// One in so many is one of them.
const FEW: usize = 25;
/// Bytes of an ordinary write in the week.
const WRITE_BYTES: f64 = 18_500.0;
/// Of what is owed so much goes out in a second, while the desktop is on.
const BURST: f64 = 0.3;
/// The golden ratio: any stretch of desktops has the same mix of rates.
const STRIDE: f64 = 0.618_033_988_749_894_8;
/// More is never held back.
const OWED_MAX: f64 = 600.0;

/// What a desktop's user does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Desk,
    Task,
    Knowledge,
    Heavy,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Desk => "desk",
            Kind::Task => "task",
            Kind::Knowledge => "knowledge",
            Kind::Heavy => "heavy",
        }
    }

    pub const fn phase(self) -> Option<&'static Phase> {
        match self {
            Kind::Desk => None,
            Kind::Task => Some(&TASK),
            Kind::Knowledge => Some(&KNOWLEDGE),
            Kind::Heavy => Some(&HEAVY),
        }
    }
}

/// A desktop that starts: how far it is.
pub struct Boot {
    pub from_ms: u64,
    pub reads: u64,
    pub writes: u64,
}

impl Boot {
    /// Reads and writes that are due before this time.
    pub fn due(&self, now_ms: u64) -> (u64, u64) {
        let passed = now_ms.saturating_sub(self.from_ms).min(BOOT_MS);
        let reads = BOOT_READS * passed / BOOT_MS;
        let writes = reads as f64 * BOOT_WRITES / (1.0 - BOOT_WRITES);
        (reads, writes as u64)
    }
}

pub struct Desktop {
    pub kind: Kind,
    pub active: bool,
    /// Requests per second, before the time of day.
    pub rate: f64,
    owed: f64,
    on: bool,
    phase_left_s: u64,
    pub arrival_s: u64,
    daily_s: u64,
    pub boot: Option<Boot>,
    /// Logins begin at a second; `u64::MAX` for none.
    pub login_from_s: u64,
    login_rate: f64,
    login_owed: f64,
    settle_from_s: u64,
    /// Writes each second while it settles, and what is owed of them.
    settle_rate: f64,
    settle_owed: f64,
    plateau_blocks: f64,
    growth_per_day: f64,
    pub readers: [Reader; 4],
    pub written: Written,
    pub random: Random,
    /// Reads that it has not seen before, owed.
    pub unseen: f64,
}

/// One of `count`, spread evenly over a range.
fn spread(low: f64, high: f64, at: usize, count: usize) -> f64 {
    low + (high - low) * (at as f64 + 0.5) / count as f64
}

/// What a desktop of the office asks for in a day, in requests.
fn requests_of_day(day: u64, rate: f64, active: bool) -> f64 {
    let seconds = (0..DAY_S).step_by(60);
    let sum: f64 = seconds
        .map(|second| week::activity(day * DAY_S + second, active, 9 * 3600))
        .sum();
    sum * 60.0 * rate + week::DAILY_REQUESTS
}

impl Desktop {
    pub fn new(
        parameters: &Parameters,
        layout: &Layout,
        (at, place): (usize, usize),
        kind: Kind,
        active: bool,
    ) -> Desktop {
        let count = parameters.desktops as usize;
        let mut random = Random::new(parameters.seed, 1, at as u64);
        let even = (at as f64 * STRIDE).fract();
        let rate = match kind.phase() {
            Some(phase) => spread(phase.low, phase.high, place, count),
            None if active => week::ACTIVE_RATE * (0.8 + 0.4 * even),
            None => week::IDLE_RATE * (0.8 + 0.4 * even),
        };
        // By number, so that as many of them are in use for every seed.
        let few = at % FEW == 3;
        let far = spread(1.0 - DIVERGED_SPREAD, 1.0 + DIVERGED_SPREAD, place, count);
        let plateau_blocks = DIVERGED_BYTES * far * parameters.intensity / BLOCK_BYTES as f64;
        let mut desktop = Desktop {
            kind,
            active,
            rate: rate * parameters.intensity,
            owed: 0.0,
            on: false,
            phase_left_s: random.below(60),
            arrival_s: 0,
            daily_s: week::DAILY_S.0 + random.below(week::DAILY_S.1),
            boot: None,
            login_from_s: u64::MAX,
            login_rate: spread(LOGIN.low, LOGIN.high, place, count) * parameters.intensity,
            login_owed: 0.0,
            settle_from_s: u64::MAX,
            settle_rate: 0.0,
            settle_owed: 0.0,
            plateau_blocks,
            growth_per_day: if few {
                GROWTH_PER_DAY_FEW
            } else {
                GROWTH_PER_DAY
            },
            readers: Default::default(),
            written: Written::new(layout, Random::new(parameters.seed, 2, at as u64)),
            random,
            unseen: 0.0,
        };
        desktop.starts(parameters, (at, place), rate);
        desktop
    }

    /// Boots and logins, by pattern.
    fn starts(&mut self, parameters: &Parameters, (at, place): (usize, usize), rate: f64) {
        let window = parameters.arrivals_ns / super::published::SECOND_NS;
        let mut random = Random::new(parameters.seed, 3, at as u64);
        let arrival = (0.5 + random.normal() / 4.0).clamp(0.0, 1.0) * window as f64;
        let boot = |from_s: f64| Boot {
            from_ms: (from_s * 1000.0) as u64,
            reads: 0,
            writes: 0,
        };
        match parameters.pattern {
            Pattern::Desktops => {
                let from = random.share() * REFRESH_S as f64;
                self.boot = Some(boot(from));
                let usual = requests_of_day(0, rate, self.active) * parameters.intensity;
                let written = usual * 0.65 * WRITE_BYTES / BLOCK_BYTES as f64;
                let new = written * (1.0 - REWRITTEN[2]);
                self.settle_from_s = from as u64 + 60;
                let blocks = (self.plateau_blocks * SETTLED - new).max(0.0);
                self.settle_rate = blocks / super::writes::LARGE_BLOCKS / SETTLE_S as f64;
            }
            Pattern::Boot => self.boot = Some(boot(arrival)),
            Pattern::Login => self.login_from_s = arrival as u64,
            Pattern::Mixed if place % 10 == 3 => self.boot = Some(boot(arrival)),
            Pattern::Mixed if place % 5 == 1 => self.login_from_s = arrival as u64,
            Pattern::Office | Pattern::Heavy | Pattern::Mixed => {}
        }
    }

    /// Blocks that may have diverged by now.
    pub fn diverge_to(&self, second: u64) -> u64 {
        let days = (second as f64 / DAY_S as f64 - 1.0).max(0.0);
        (self.plateau_blocks * (1.0 + self.growth_per_day * days)) as u64
    }

    pub fn begin_day(&mut self, day: u64) {
        self.arrival_s = week::arrival_s(&mut self.random);
        if self.active && !week::is_weekend(day) {
            self.login_from_s = day * DAY_S + self.arrival_s;
        }
    }

    /// Ordinary requests of this second.
    pub fn requests(&mut self, second: u64, activity: f64, intensity: f64) -> u64 {
        self.owed += self.rate * activity;
        if self.kind == Kind::Desk && second % DAY_S == self.daily_s {
            self.owed += week::DAILY_REQUESTS * intensity;
        }
        if self.phase_left_s == 0 {
            self.on = !self.on;
            self.phase_left_s = match self.on {
                true => self.random.between(4, 24),
                false => self.random.between(8, 64),
            };
        }
        self.phase_left_s -= 1;
        if !self.on && self.owed < OWED_MAX {
            return 0;
        }
        let now = (self.owed * BURST).ceil().min(self.owed.floor());
        self.owed -= now;
        now as u64
    }

    pub fn login_requests(&mut self, second: u64) -> u64 {
        if !(self.login_from_s..self.login_from_s.saturating_add(LOGIN_S)).contains(&second) {
            return 0;
        }
        self.login_owed += self.login_rate * (0.5 + self.random.share());
        let now = self.login_owed.floor();
        self.login_owed -= now;
        now as u64
    }

    /// Writes of the first night.
    pub fn settle_writes(&mut self, second: u64) -> u64 {
        if !(self.settle_from_s..self.settle_from_s.saturating_add(SETTLE_S)).contains(&second) {
            return 0;
        }
        self.settle_owed += self.settle_rate;
        // In bursts of some, as services do it.
        if self.settle_owed < 8.0 {
            return 0;
        }
        let now = self.settle_owed.floor();
        self.settle_owed -= now;
        now as u64
    }
}
