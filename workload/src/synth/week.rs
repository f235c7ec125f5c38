//! The office's week: who works when, and the plans of its six peaks.
//!
//! Owns the calendar, which begins on a Thursday at 0:00, when the new image has just been
//! published, and for each peak how many requests each desktop makes in each second. Always true:
//! a plan's sum, its greatest second and its heavy desktops are those published, scaled by the
//! number of desktops. Deliberately absent: what the requests are.

use super::published::{DAY_S, DESKTOPS, Period, SECOND_NS};
use super::random::Random;

const HOUR_S: u64 = 3600;
/// Requests per second of a desktop in use, in its working hours, and of one that is not.
pub const ACTIVE_RATE: f64 = 1.6;
pub const IDLE_RATE: f64 = 0.35;

/// From an hour of a working day on: how active a desktop in use is.
const WORKING_DAY: [(f64, f64); 13] = [
    (0.0, 0.25),
    (6.0, 0.30),
    (7.5, 0.45),
    (8.5, 2.4),
    (9.5, 1.0),
    (12.0, 0.55),
    (13.0, 1.0),
    (14.0, 1.2),
    (16.5, 0.9),
    (17.5, 0.5),
    (18.0, 0.35),
    (20.0, 0.30),
    (23.0, 0.25),
];
const WEEKEND: f64 = 0.22;
/// Before its user has come a desktop waits.
const WAITING: f64 = 0.30;
/// Updates of virus signatures, at seven, within so long: requests of each desktop.
pub const DAILY_S: (u64, u64) = (7 * HOUR_S, 300);
pub const DAILY_REQUESTS: f64 = 160.0;

/// Arrivals are normal around nine: nearly all within an hour.
const ARRIVAL_S: f64 = 9.0 * 3600.0;
const ARRIVAL_DEVIATION_S: f64 = 15.0 * 60.0;

/// The greatest second of a peak comes so late in it, and what is around it.
const GREATEST_AT: f64 = 0.4;
const AROUND_GREATEST: [(i64, f64); 6] =
    [(-1, 0.45), (0, 1.0), (1, 0.7), (2, 0.5), (3, 0.3), (4, 0.2)];
/// No other second comes nearer to it than that.
const SECOND_GREATEST: f64 = 0.85;
/// Of a desktop that is not heavy, against one that is not in use.
const LIGHT: f64 = 1.0;
const UNUSED: f64 = 0.15;

pub fn is_weekend(day: u64) -> bool {
    // Thursday, Friday, then two free days.
    matches!(day % 7, 2 | 3)
}

/// When its user comes on this day, in seconds of the day.
pub fn arrival_s(random: &mut Random) -> u64 {
    let from_nine = (random.normal() * ARRIVAL_DEVIATION_S).clamp(-3600.0, 3600.0);
    (ARRIVAL_S + from_nine) as u64
}

/// How active a desktop is in this second of the week, against its own rate.
pub fn activity(second: u64, active: bool, arrival_s: u64) -> f64 {
    let (day, of_day) = (second / DAY_S, second % DAY_S);
    if !active {
        return 1.0;
    }
    if is_weekend(day) {
        return WEEKEND;
    }
    let hour = of_day as f64 / HOUR_S as f64;
    let at = WORKING_DAY.partition_point(|(from, _)| *from <= hour) - 1;
    let usual = WORKING_DAY[at].1;
    if (7.5..11.0).contains(&hour) && of_day < arrival_s {
        return WAITING;
    }
    usual
}

/// Requests of each desktop in each second of a peak.
pub struct Plan {
    pub from_s: u64,
    seconds: usize,
    counts: Vec<u16>,
    /// The desktop's share of reads that it has not seen before.
    pub new_to_desktop: Vec<f64>,
}

impl Plan {
    pub fn new(period: &Period, active: &[bool], intensity: f64, random: &mut Random) -> Plan {
        let desktops = active.len();
        let seconds = (period.duration_ns / SECOND_NS) as usize;
        let scale = desktops as f64 / f64::from(DESKTOPS) * intensity;
        let shares = Shares::new(period, active, random);
        let mut plan = Plan {
            from_s: period.from_ns / SECOND_NS,
            seconds,
            counts: vec![0; desktops * seconds],
            new_to_desktop: shares.new_to_desktop,
        };
        let greatest = period.requests_per_second_max as f64 * scale;
        let mut left = period.requests as f64 * scale;
        let top = (seconds as f64 * GREATEST_AT) as usize;
        let mut totals = vec![0.0; seconds];
        for (offset, part) in AROUND_GREATEST {
            let at = (top as i64 + offset) as usize;
            totals[at] = greatest * part;
            left -= totals[at];
            plan.spread(at, totals[at], &shares.of_desktop);
        }
        let around = (top - 1)..(top + AROUND_GREATEST.len() - 1);
        for (desktop, share) in shares.of_desktop.iter().enumerate() {
            plan.burst(desktop, left * share, &around, &mut totals, random);
        }
        plan.level(greatest * SECOND_GREATEST, &around);
        plan
    }

    pub fn count(&self, desktop: usize, second: u64) -> u64 {
        let at = (second - self.from_s) as usize;
        self.counts[desktop * self.seconds + at].into()
    }

    /// Of all desktops.
    pub fn total(&self, second: u64) -> u64 {
        let at = (second - self.from_s) as usize;
        let counts = self.counts.iter().skip(at).step_by(self.seconds);
        counts.map(|count| u64::from(*count)).sum()
    }

    pub fn end_s(&self) -> u64 {
        self.from_s + self.seconds as u64
    }

    /// One second's sum over all desktops, whole numbers that keep it.
    fn spread(&mut self, at: usize, total: f64, shares: &[f64]) {
        let (mut wanted, mut given) = (0.0, 0_u64);
        for (desktop, share) in shares.iter().enumerate() {
            wanted += total * share;
            let now = (wanted.round() as u64).saturating_sub(given);
            given += now;
            self.counts[desktop * self.seconds + at] = now as u16;
        }
    }

    /// A desktop's requests over its seconds, on and off.
    fn burst(
        &mut self,
        desktop: usize,
        requests: f64,
        around: &std::ops::Range<usize>,
        totals: &mut [f64],
        random: &mut Random,
    ) {
        let mut weights = vec![0.0; self.seconds];
        let (mut on, mut left) = (random.below(2) == 0, 0);
        for (at, weight) in weights.iter_mut().enumerate() {
            if left == 0 {
                on = !on;
                left = match on {
                    true => random.between(5, 30),
                    false => random.between(5, 50),
                };
            }
            left -= 1;
            if !around.contains(&at) {
                *weight = if on { 0.6 + random.share() * 0.8 } else { 0.03 };
            }
        }
        let sum: f64 = weights.iter().sum();
        let (mut wanted, mut given) = (random.share() - 0.5, 0_i64);
        for (at, weight) in weights.iter().enumerate() {
            wanted += requests * weight / sum;
            let now = (wanted.round() as i64 - given).max(0);
            given += now;
            if !around.contains(&at) {
                self.counts[desktop * self.seconds + at] = now as u16;
                totals[at] += now as f64;
            }
        }
    }

    /// Moves what would make another second too great to the desktop's next quiet ones.
    fn level(&mut self, limit: f64, around: &std::ops::Range<usize>) {
        let desktops = self.counts.len() / self.seconds;
        let mut carried = vec![0_u16; desktops];
        for round in 0..2 * self.seconds {
            let at = round % self.seconds;
            if around.contains(&at) {
                continue;
            }
            let column = |desktop: usize| desktop * self.seconds + at;
            let mut total: f64 = (0..desktops)
                .map(|desktop| f64::from(self.counts[column(desktop)]))
                .sum();
            for (desktop, carried) in carried.iter_mut().enumerate() {
                let count = &mut self.counts[desktop * self.seconds + at];
                let (spare, over) = (limit - total, total - limit);
                if over > 0.0 {
                    let moved = (over.ceil() as u16).min(*count / 2);
                    *count -= moved;
                    *carried += moved;
                    total -= f64::from(moved);
                } else if *carried > 0 {
                    let moved = (*carried).min(spare as u16);
                    *count += moved;
                    *carried -= moved;
                    total += f64::from(moved);
                }
            }
            if round >= self.seconds && carried.iter().all(|carried| *carried == 0) {
                return;
            }
        }
    }
}

struct Shares {
    of_desktop: Vec<f64>,
    new_to_desktop: Vec<f64>,
}

impl Shares {
    fn new(period: &Period, active: &[bool], random: &mut Random) -> Shares {
        let desktops = active.len();
        let mut order: Vec<usize> = (0..desktops).collect();
        for at in (1..desktops).rev() {
            order.swap(at, random.below(at as u64 + 1) as usize);
        }
        // Those in use come first.
        order.sort_by_key(|desktop| !active[*desktop]);
        let heavy = (period.heavy_desktops * desktops as f64).round() as usize;
        let heavy = heavy.clamp(1, desktops);
        let few = heavy as f64 / (desktops as f64) < 0.15;
        let together: f64 = if few {
            0.74
        } else {
            heavy_share(heavy, desktops)
        };
        let very = heavy.div_ceil(2);
        let mut of_desktop = vec![0.0; desktops];
        let mut new_to_desktop = vec![1.0 - period.seen_by_desktop; desktops];
        for (at, desktop) in order.iter().enumerate() {
            of_desktop[*desktop] = match (at < heavy, few) {
                // Two desktops alone make more than half of the fourth peak.
                (true, true) if at < very => 0.56 / very as f64,
                (true, true) => 0.18 / (heavy - very) as f64,
                (true, false) => 0.97 + 0.06 * random.share(),
                (false, _) if active[*desktop] => LIGHT * (0.6 + 0.8 * random.share()),
                (false, _) => UNUSED,
            };
        }
        if few {
            // And have seen little of what they read: 26 and 30 % in the trace.
            let left = 1.0 - period.seen_by_desktop;
            let share = if heavy > very { 0.56 } else { 0.74 };
            let new = f64::min(0.72, left / share);
            for (at, desktop) in order.iter().enumerate() {
                let rest = ((left - share * new) / (1.0 - share)).max(0.0);
                new_to_desktop[*desktop] = if at < very { new } else { rest };
            }
        }
        normalize(&mut of_desktop, &order[..heavy], together);
        normalize(&mut of_desktop, &order[heavy..], 1.0 - together);
        Shares {
            of_desktop,
            new_to_desktop,
        }
    }
}

/// Enough that each of them is above 5 % of 55 desktops' requests, or the like of fewer.
fn heavy_share(heavy: usize, desktops: usize) -> f64 {
    let threshold = 0.05 * f64::from(DESKTOPS) / desktops as f64;
    (heavy as f64 * threshold * 1.12).min(0.95)
}

fn normalize(shares: &mut [f64], of: &[usize], to: f64) {
    let sum: f64 = of.iter().map(|at| shares[*at]).sum();
    for at in of {
        shares[*at] *= to / sum;
    }
}
