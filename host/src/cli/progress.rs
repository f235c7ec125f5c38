//! Progress of long work: how far it is, how fast, how long it still takes.
//!
//! Owns the meter and its three looks: a bar where standard error is a terminal, JSON lines on
//! standard error with `--json` elsewhere, a plain line now and then else. Always true: standard
//! output is left to the result; nothing shows more than all of it nor a time below zero; what
//! ends soon says nothing where nobody watches. Deliberately absent: the work itself, and how it
//! is ordered. Bytes are counted once, in the unit that the work names (`counted`).
//!
//! Work in this process calls [`Progress::set`] or [`Progress::advance`]. Work that blocks is
//! polled: [`watch`] beside work of this process, [`wait_for_order`] beside an order to a daemon,
//! which goes on there when nobody waits for it any more.

use super::Context;
use crate::config::units::{human_bytes, human_seconds};
use crate::error::{Error, Result, cause};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// The rate is that of this long a while, so that it follows the work without jumping about.
const WINDOW: Duration = Duration::from_secs(10);
/// Looks that a window keeps.
const LOOKS_MAX: usize = 64;
/// A rate of a shorter while says nothing.
const RATE_MIN: Duration = Duration::from_millis(500);
const JSON_PAUSE: Duration = Duration::from_secs(1);
const LINE_PAUSE: Duration = Duration::from_secs(10);
/// Between two looks at polled work, where somebody watches and where not.
const POLL_BAR: Duration = Duration::from_millis(250);
const POLL_LINE: Duration = Duration::from_secs(1);

/// What is being done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// As on the command line: `destage`, `verify`.
    pub verb: &'static str,
    /// The volume, the cache, or a word for several.
    pub object: String,
    /// What the bytes are: "dirty data destaged".
    pub counted: &'static str,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Standing {
    done_bytes: u64,
    total_bytes: Option<u64>,
    bytes_per_second: Option<u64>,
}

impl Standing {
    /// Unknown without a total, and while nothing moves.
    fn remaining_seconds(&self) -> Option<u64> {
        let left = self.total_bytes?.saturating_sub(self.done_bytes);
        match self.bytes_per_second {
            _ if left == 0 => Some(0),
            None | Some(0) => None,
            Some(rate) => Some(left.div_ceil(rate)),
        }
    }

    /// As in "1.5 GiB of 4 GiB, 120 MiB/s, 21 s left (dirty data destaged)": what matters most
    /// comes first, because a terminal may be narrow.
    fn words(&self, counted: &str) -> String {
        let mut text = human_bytes(self.done_bytes);
        if let Some(total) = self.total_bytes {
            text += &format!(" of {}", human_bytes(total));
        }
        if let Some(rate) = self.bytes_per_second {
            text += &format!(", {}/s", human_bytes(rate));
        }
        match self.remaining_seconds() {
            // Syncs and the ledger come behind the last byte.
            Some(0) => text += ", finishing",
            Some(seconds) => text += &format!(", {} left", human_seconds(seconds)),
            None => {}
        }
        text + &format!(" ({counted})")
    }

    fn document(&self, work: &Work) -> Value {
        json!({ "progress": {
            "verb": work.verb,
            "object": work.object,
            "counted": work.counted,
            "done_bytes": self.done_bytes,
            "total_bytes": self.total_bytes,
            "bytes_per_second": self.bytes_per_second,
            "remaining_seconds": self.remaining_seconds(),
        }})
    }
}

/// Turns counts into standings. Time is handed in.
#[derive(Debug)]
struct Meter {
    standing: Standing,
    looks: VecDeque<(Instant, u64)>,
}

impl Meter {
    fn new(now: Instant) -> Meter {
        Meter {
            standing: Standing::default(),
            looks: VecDeque::from([(now, 0)]),
        }
    }

    fn set(&mut self, now: Instant, done_bytes: u64, total_bytes: Option<u64>) {
        let done_bytes = total_bytes.map_or(done_bytes, |total| done_bytes.min(total));
        self.standing.done_bytes = done_bytes;
        self.standing.total_bytes = total_bytes;
        // Looks that come faster than the window needs them replace the last one.
        let apart = WINDOW / LOOKS_MAX as u32;
        let close = self.looks.len() > 1
            && (self.looks.iter().nth_back(1)).is_some_and(|(at, _)| now - *at < apart);
        if close {
            self.looks.pop_back();
        }
        self.looks.push_back((now, done_bytes));
        while self.looks.len() > 2 && now - self.looks[1].0 >= WINDOW {
            self.looks.pop_front();
        }
        let (since, from) = self.looks[0];
        let took = now - since;
        self.standing.bytes_per_second = (took >= RATE_MIN).then(|| {
            let bytes = done_bytes.saturating_sub(from) as f64;
            (bytes / took.as_secs_f64()) as u64
        });
    }
}

/// One look at data on its way to its origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Dirty bytes now.
    pub left_bytes: u64,
    /// Bytes that were ever sent on their way, from any beginning; of those that go through a
    /// journal first, half each time. Zero where nobody knows.
    pub moved_bytes: u64,
}

impl Pending {
    pub fn new(left_bytes: u64, written_bytes: u64, journal: Option<u64>) -> Pending {
        let moved_bytes = match journal {
            Some(journal_bytes) => written_bytes.saturating_add(journal_bytes) / 2,
            None => written_bytes,
        };
        Pending {
            left_bytes,
            moved_bytes,
        }
    }

    pub fn and(self, other: Pending) -> Pending {
        Pending {
            left_bytes: self.left_bytes.saturating_add(other.left_bytes),
            moved_bytes: self.moved_bytes.saturating_add(other.moved_bytes),
        }
    }
}

/// A heap to which others add while it is carried away, in loads that count as gone at their end.
///
/// Everything that goes away counts as done, everything that is there as still to do; what was
/// added and is not carried away yet makes the whole larger. Of the load under way what has moved
/// counts as well. So the whole may grow, what is done never shrinks, and is never more than the
/// whole.
#[derive(Clone, Copy, Debug, Default)]
struct Heap {
    gone: u64,
    done: u64,
    first: Option<Pending>,
    left: u64,
}

impl Heap {
    fn look(&mut self, now: Pending) -> (u64, u64) {
        let first = *self.first.get_or_insert(now);
        self.gone += self.left.saturating_sub(now.left_bytes);
        self.left = now.left_bytes;
        let whole = self.gone + now.left_bytes;
        let moved = now.moved_bytes.saturating_sub(first.moved_bytes);
        // Bytes that were written twice are not done twice.
        let done = moved.clamp(self.gone, whole);
        self.done = done.max(self.done).min(whole);
        (self.done, whole)
    }
}

/// Where progress is shown.
#[derive(Debug)]
enum Look {
    Bar(ProgressBar),
    Json,
    Lines,
    Nowhere,
}

/// Shows how far some work is, until it is dropped.
#[derive(Debug)]
pub struct Progress {
    work: Work,
    meter: Meter,
    heap: Heap,
    look: Look,
    said: Instant,
}

impl Progress {
    /// `total_bytes` may be unknown, and may be told later.
    pub fn new(context: &Context, work: Work, total_bytes: Option<u64>) -> Progress {
        let common = &context.common;
        let look = match (common.quiet, std::io::stderr().is_terminal(), common.json) {
            (1.., ..) => Look::Nowhere,
            (0, true, _) => Look::Bar(bar(&work, total_bytes)),
            (0, false, true) => Look::Json,
            (0, false, false) => Look::Lines,
        };
        let now = Instant::now();
        let mut meter = Meter::new(now);
        meter.standing.total_bytes = total_bytes;
        Progress {
            work,
            meter,
            heap: Heap::default(),
            look,
            said: now,
        }
    }

    /// So many bytes in all are done.
    pub fn set(&mut self, done_bytes: u64, total_bytes: Option<u64>) {
        let now = Instant::now();
        self.meter.set(now, done_bytes, total_bytes);
        self.show(now);
    }

    /// So many bytes more are done.
    pub fn advance(&mut self, bytes: u64) {
        let standing = self.meter.standing;
        self.set(
            standing.done_bytes.saturating_add(bytes),
            standing.total_bytes,
        );
    }

    /// So much is left now, of something that may grow meanwhile.
    pub fn left(&mut self, now: Pending) {
        let (done, total) = self.heap.look(now);
        self.set(done, Some(total));
    }

    /// Clears the bar; the result says the rest.
    pub fn finish(self) {}

    fn show(&mut self, now: Instant) {
        let standing = self.meter.standing;
        let pause = match &self.look {
            Look::Bar(bar) => {
                bar.update(|state| {
                    state.set_len(standing.total_bytes.unwrap_or(0).max(1));
                    state.set_pos(standing.done_bytes);
                });
                bar.set_message(standing.words(self.work.counted));
                return;
            }
            Look::Json => JSON_PAUSE,
            Look::Lines => LINE_PAUSE,
            Look::Nowhere => return,
        };
        if now - self.said < pause {
            return;
        }
        self.said = now;
        let (verb, object) = (self.work.verb, &self.work.object);
        let line = match self.look {
            Look::Json => standing.document(&self.work).to_string(),
            _ => format!(
                "tenuto: {verb} {object}: {}",
                standing.words(self.work.counted)
            ),
        };
        // Whoever does not read how far it is has the work done all the same.
        let _ = writeln!(std::io::stderr(), "{line}");
    }

    fn poll_pause(&self) -> Duration {
        match self.look {
            Look::Bar(_) => POLL_BAR,
            _ => POLL_LINE,
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Look::Bar(bar) = &self.look {
            bar.finish_and_clear();
        }
    }
}

fn bar(work: &Work, total_bytes: Option<u64>) -> ProgressBar {
    let template = match total_bytes {
        Some(_) => "{prefix} [{bar:12}] {percent:>3} % {wide_msg}",
        None => "{prefix} {elapsed} {wide_msg}",
    };
    let bar = counter(0, total_bytes.unwrap_or(0).max(1), template);
    bar.set_prefix(format!("{} {}", work.verb, work.object));
    bar
}

/// A bar of anything else than bytes, hidden where it was asked to be quiet, and by itself where
/// standard error is no terminal.
pub fn counter(quiet: u8, length: u64, template: &str) -> ProgressBar {
    if quiet > 0 {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template)
        .expect("the template has only known keys")
        .progress_chars("=> ");
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    bar.with_style(style)
}

/// Does work that blocks, and looks meanwhile what is left. What nobody knows at present
/// (`None`) changes nothing.
pub fn watch<T>(
    progress: &mut Progress,
    mut left: impl FnMut() -> Option<Pending> + Send,
    work: impl FnOnce() -> T,
) -> T {
    let (ended, end) = mpsc::channel::<()>();
    let pause = progress.poll_pause();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The pause ends early when the work has ended and dropped the other end.
            while end.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
                if let Some(left) = left() {
                    progress.left(left);
                }
            }
        });
        let result = work();
        drop(ended);
        result
    })
}

/// Waits for an order to a daemon and looks meanwhile what is left. SIGINT ends the
/// waiting, not the order; the error of it ends with `goes_on`.
pub fn wait_for_order<T: Send + 'static>(
    mut progress: Progress,
    mut left: impl FnMut() -> Option<Pending> + Send + 'static,
    order: impl FnOnce() -> Result<T> + Send + 'static,
    goes_on: &str,
) -> Result<T> {
    let failed = |error: std::io::Error| Error::failed(format!("waiting: {}", cause(&error)));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let work = progress.work.clone();
    let (answer, answered) = oneshot::channel();
    let interrupted: Result<Option<Result<T>>> = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        // Detached: after an interrupt nobody waits for it.
        std::thread::spawn(move || {
            // An error means that nobody waits any more.
            let _ = answer.send(order());
        });
        let mut answered = answered;
        let mut ticks = tokio::time::interval(progress.poll_pause());
        loop {
            tokio::select! {
                result = &mut answered => return Ok(result.ok()),
                _ = interrupt.recv() => return Ok(None),
                _ = ticks.tick() => {}
            }
            // Blocks for one reply, on a thread that has nothing else to do.
            let look = tokio::task::spawn_blocking(move || (left(), left));
            let (seen, back) = tokio::select! {
                result = &mut answered => return Ok(result.ok()),
                _ = interrupt.recv() => return Ok(None),
                look = look => look.map_err(|error| Error::failed(error.to_string()))?,
            };
            left = back;
            if let Some(seen) = seen {
                progress.left(seen);
            }
        }
    });
    // A look under way is not waited for either.
    runtime.shutdown_background();
    drop(progress);
    match interrupted? {
        Some(result) => result,
        None => {
            let (verb, object) = (work.verb, work.object);
            let message = format!("{verb} {object}: no longer waited for; {goes_on}");
            Err(Error::failed(message).about(object))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn meter_after(looks: &[(u64, u64, Option<u64>)]) -> Meter {
        let start = Instant::now();
        let mut meter = Meter::new(start);
        for &(millis, done, total) in looks {
            meter.set(start + Duration::from_millis(millis), done, total);
        }
        meter
    }

    #[test]
    fn rate_and_remaining_time_are_those_of_the_last_ten_seconds() {
        let total = Some(1000 * MIB);
        let meter = meter_after(&[
            (1_000, 100 * MIB, total),
            (11_000, 200 * MIB, total),
            (21_000, 300 * MIB, total),
        ]);
        assert_eq!(meter.standing.bytes_per_second, Some(10 * MIB));
        assert_eq!(meter.standing.remaining_seconds(), Some(70));
        let words = meter.standing.words("dirty data destaged");
        assert_eq!(
            words,
            "300 MiB of 1000 MiB, 10 MiB/s, 1 min 10 s left (dirty data destaged)"
        );
    }

    #[test]
    fn many_looks_keep_few_and_the_same_rate() {
        let looks: Vec<_> = (1..=60_000).map(|at| (at, at * 1000, None)).collect();
        let meter = meter_after(&looks);
        assert!(meter.looks.len() <= LOOKS_MAX + 2, "{}", meter.looks.len());
        let rate = meter.standing.bytes_per_second.expect("a rate");
        assert!((990_000..1_010_000).contains(&rate), "{rate}");
        assert_eq!(meter.standing.remaining_seconds(), None);
    }

    #[test]
    fn what_stands_still_has_no_remaining_time_and_what_is_done_has_none_left() {
        let still = meter_after(&[(1_000, MIB, Some(4 * MIB)), (30_000, MIB, Some(4 * MIB))]);
        assert_eq!(still.standing.bytes_per_second, Some(0));
        assert_eq!(still.standing.remaining_seconds(), None);
        let done = meter_after(&[(100, 9 * MIB, Some(4 * MIB))]);
        assert_eq!(done.standing.done_bytes, 4 * MIB, "never more than all");
        assert_eq!(done.standing.remaining_seconds(), Some(0));
        assert_eq!(
            done.standing.words("read"),
            "4 MiB of 4 MiB, finishing (read)"
        );
    }

    #[test]
    fn a_heap_to_which_others_add_never_goes_back_nor_beyond_its_whole() {
        let mut heap = Heap::default();
        let mut last = 0;
        for (left_bytes, moved_bytes, expected) in [
            (100, 1000, (0, 100)),
            (100, 1030, (30, 100)),
            (60, 1040, (40, 100)),
            (90, 1050, (50, 130)),
            (10, 1060, (120, 130)),
            (0, 1500, (130, 130)),
            (50, 1510, (180, 180)),
            (50, 0, (180, 180)),
        ] {
            let pending = Pending {
                left_bytes,
                moved_bytes,
            };
            let (done, total) = heap.look(pending);
            assert_eq!((done, total), expected, "{pending:?}");
            assert!(done >= last && done <= total);
            last = done;
        }
    }

    #[test]
    fn what_goes_through_a_journal_counts_half_there_and_half_at_the_origin() {
        assert_eq!(Pending::new(8, 0, Some(6)).moved_bytes, 3);
        assert_eq!(Pending::new(8, 6, Some(6)).moved_bytes, 6);
        assert_eq!(Pending::new(8, 6, None).moved_bytes, 6);
    }

    #[test]
    fn a_line_of_json_has_its_keys_whatever_is_known() {
        let work = Work {
            verb: "destage",
            object: "desk-001".into(),
            counted: "dirty data destaged",
        };
        let document = Standing::default().document(&work);
        let progress = document["progress"].as_object().expect("an object");
        for key in [
            "verb",
            "object",
            "done_bytes",
            "total_bytes",
            "bytes_per_second",
            "remaining_seconds",
        ] {
            assert!(progress.contains_key(key), "{key}");
        }
        assert_eq!(progress["total_bytes"], Value::Null);
    }
}
