//! What happened to a running daemon: a bounded list that can be followed.
//!
//! Owns the last [`EVENTS_MAX`] events, their numbers, and the promise that something which goes to
//! and fro floods nobody: of one kind and volume at most [`TOLD_MAX`] are told within
//! [`WINDOW_MS`]; the others become one event that carries the newest words and their count.
//! Always true: numbers grow, also from one daemon to the next, because the first one is made of
//! the time; what was lost from the list is counted. Nothing is kept over a restart. Deliberately
//! absent: what is worth an event, which is [`super::changes`], and any answer to one.

use crate::error::{Error, Kind as ErrorKind, Result};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, watch};

/// Some hundred bytes each, so a megabyte or two.
pub const EVENTS_MAX: usize = 4096;
/// Of one kind and volume within one window; enough for there, back, there again.
const TOLD_MAX: u32 = 4;
const WINDOW_MS: u64 = 60_000;
/// Kinds times volumes that are counted at a time. Beyond it volumes share a count.
const WINDOWS_MAX: usize = 16_384;
/// Readers that wait for events at a time.
const WAITING_MAX: usize = 64;
/// Longest wait; a reader asks again.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
/// Words can come from a client (the name of a volume that is not there).
const TEXT_CHARS_MAX: usize = 600;
const NAME_CHARS_MAX: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Info,
    Warning,
    Error,
}

impl Severity {
    pub const ALL: [Severity; 3] = [Severity::Info, Severity::Warning, Severity::Error];

    pub const fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// What an event is about. Names are part of the public interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Start,
    Stop,
    Recovery,
    /// An administrator's order and its outcome.
    Order,
    Added,
    Removed,
    State,
    Policy,
    FlowControl,
    Orphan,
    Client,
    Origin,
    Group,
    Overlay,
    Qmp,
    Checksum,
    CacheDevice,
    /// A file or socket of the daemon that was removed under it.
    Files,
    /// A link to another host of the cluster.
    Peer,
    /// Copies of a volume on other hosts, and a volume that was taken over.
    Replication,
    /// Clones that get another image.
    Pool,
}

impl Kind {
    pub const ALL: [Kind; 21] = [
        Kind::Start,
        Kind::Stop,
        Kind::Recovery,
        Kind::Order,
        Kind::Added,
        Kind::Removed,
        Kind::State,
        Kind::Policy,
        Kind::FlowControl,
        Kind::Orphan,
        Kind::Client,
        Kind::Origin,
        Kind::Group,
        Kind::Overlay,
        Kind::Qmp,
        Kind::Checksum,
        Kind::CacheDevice,
        Kind::Files,
        Kind::Peer,
        Kind::Replication,
        Kind::Pool,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Kind::Start => "start",
            Kind::Stop => "stop",
            Kind::Recovery => "recovery",
            Kind::Order => "order",
            Kind::Added => "added",
            Kind::Removed => "removed",
            Kind::State => "state",
            Kind::Policy => "policy",
            Kind::FlowControl => "flow_control",
            Kind::Orphan => "orphan",
            Kind::Client => "client",
            Kind::Origin => "origin",
            Kind::Group => "group",
            Kind::Overlay => "overlay",
            Kind::Qmp => "qmp",
            Kind::Checksum => "checksum",
            Kind::CacheDevice => "cache_device",
            Kind::Files => "files",
            Kind::Peer => "peer",
            Kind::Replication => "replication",
            Kind::Pool => "pool",
        }
    }
}

/// Something worth telling, before it has a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub severity: Severity,
    pub kind: Kind,
    pub volume: Option<String>,
    /// One line.
    pub message: String,
}

impl Notice {
    pub fn host(severity: Severity, kind: Kind, message: impl Into<String>) -> Notice {
        Notice {
            severity,
            kind,
            volume: None,
            message: message.into(),
        }
    }

    pub fn volume(
        severity: Severity,
        kind: Kind,
        volume: &str,
        message: impl Into<String>,
    ) -> Notice {
        Notice {
            volume: Some(volume.into()),
            ..Notice::host(severity, kind, message)
        }
    }

    /// An order that came over the admin interface, with its outcome. Who gave it nobody knows.
    pub fn order<T>(what: &str, volume: Option<&str>, result: &Result<T>) -> Notice {
        let (severity, outcome) = match result {
            Ok(_) => (Severity::Info, "done".to_owned()),
            Err(error) => (order_severity(error), error.to_string()),
        };
        Notice {
            severity,
            kind: Kind::Order,
            volume: volume.map(str::to_owned),
            message: format!("order {what}: {outcome}"),
        }
    }

    fn cut(mut self) -> Notice {
        cut(&mut self.message, TEXT_CHARS_MAX);
        if let Some(name) = &mut self.volume {
            cut(name, NAME_CHARS_MAX);
        }
        self
    }
}

/// An order that was refused has changed nothing; one that failed may need somebody.
fn order_severity(error: &Error) -> Severity {
    match error.kind {
        ErrorKind::Failed | ErrorKind::Damaged | ErrorKind::Unreachable => Severity::Error,
        _ => Severity::Warning,
    }
}

fn cut(text: &mut String, chars_max: usize) {
    if let Some((at, _)) = text.char_indices().nth(chars_max) {
        text.truncate(at);
        text.push('…');
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub seq: u64,
    pub unix_ms: u64,
    /// How often it happened; more than 1 for those that were not told one by one.
    pub count: u64,
    pub notice: Notice,
}

impl Event {
    pub fn document(&self) -> Value {
        let time = UNIX_EPOCH + Duration::from_millis(self.unix_ms);
        json!({
            "seq": self.seq,
            "time": humantime::format_rfc3339_millis(time).to_string(),
            "severity": self.notice.severity.name(),
            "kind": self.notice.kind.name(),
            "volume": self.notice.volume,
            "message": self.notice.message,
            "count": self.count,
        })
    }
}

/// Events after a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub events: Vec<Event>,
    /// To ask with for what comes after these.
    pub next: u64,
    /// Events of this daemon after the number asked for that are not in the list any more.
    pub lost: u64,
}

impl Page {
    fn is_empty(&self) -> bool {
        self.events.is_empty() && self.lost == 0
    }

    pub fn document(&self) -> Value {
        let events: Vec<Value> = self.events.iter().map(Event::document).collect();
        json!({ "events": events, "next": self.next, "lost": self.lost })
    }
}

/// How much was told of one kind and volume lately.
struct Window {
    began_ms: u64,
    told: u32,
    folded: Option<(Notice, u64)>,
}

struct List {
    ring: VecDeque<Event>,
    first_seq: u64,
    next_seq: u64,
    windows: BTreeMap<(Kind, Option<String>), Window>,
}

pub struct Events {
    /// A mutex, not a message: held to copy or to append plain data, by the administrator's side
    /// only.
    list: Mutex<List>,
    /// The newest number; whoever waits for events waits for it to change.
    newest: watch::Sender<u64>,
    /// Places for those who wait: each holds a connection, and administrators need some as well.
    places: Semaphore,
}

/// Milliseconds since 1970.
pub fn unix_ms_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

impl Events {
    /// Numbers begin at the time times 1,000: no daemon tells a thousand events a millisecond, so
    /// the next daemon begins above them. They stay exact in a double.
    pub fn new(now_ms: u64) -> Events {
        let first = now_ms * 1000;
        let list = List {
            ring: VecDeque::new(),
            first_seq: first + 1,
            next_seq: first + 1,
            windows: BTreeMap::new(),
        };
        Events {
            list: Mutex::new(list),
            newest: watch::Sender::new(first),
            places: Semaphore::new(WAITING_MAX),
        }
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn tell(&self, notice: Notice) {
        self.tell_at(unix_ms_now(), notice);
    }

    pub fn tell_at(&self, now_ms: u64, notice: Notice) {
        let mut list = self.list();
        list.tell(now_ms, notice.cut());
        self.announce(&list);
    }

    /// Tells what was held back and whose window is over.
    pub fn settle(&self, now_ms: u64) {
        let mut list = self.list();
        list.settle(now_ms, false);
        self.announce(&list);
    }

    /// Tells all that was held back: nobody will come to tell it later.
    pub fn settle_all(&self, now_ms: u64) {
        let mut list = self.list();
        list.settle(now_ms, true);
        self.announce(&list);
    }

    fn announce(&self, list: &List) {
        let newest = list.next_seq - 1;
        self.newest.send_if_modified(|known| {
            let changed = *known != newest;
            *known = newest;
            changed
        });
    }

    /// A number above all of ours is of a daemon whose clock was ahead: its asker gets all.
    pub fn after(&self, seq: u64) -> Page {
        let list = self.list();
        let seq = if seq >= list.next_seq { 0 } else { seq };
        let oldest = list.ring.front().map_or(list.next_seq, |event| event.seq);
        let from = list.ring.partition_point(|event| event.seq <= seq);
        Page {
            events: list.ring.range(from..).cloned().collect(),
            next: list.next_seq - 1,
            lost: oldest - (seq + 1).max(list.first_seq).min(oldest),
        }
    }

    /// Readers that wait at present.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        WAITING_MAX - self.places.available_permits()
    }

    /// As [`Events::after`], but waits for so long if there is nothing to tell yet.
    pub async fn wait_after(&self, seq: u64, wait: Duration) -> Result<Page> {
        let mut newest = self.newest.subscribe();
        let page = self.after(seq);
        if !page.is_empty() || wait.is_zero() {
            return Ok(page);
        }
        let Ok(_place) = self.places.try_acquire() else {
            return Err(Error::failed(format!(
                "events: {WAITING_MAX} readers wait already; ask without waiting"
            )));
        };
        // An error of either kind means that nothing came.
        let _ = tokio::time::timeout(wait.min(WAIT_MAX), newest.changed()).await;
        Ok(self.after(seq))
    }
}

impl List {
    fn tell(&mut self, now_ms: u64, notice: Notice) {
        let mut key = (notice.kind, notice.volume.clone());
        if self.windows.len() >= WINDOWS_MAX && !self.windows.contains_key(&key) {
            key.1 = None;
        }
        if self
            .windows
            .get(&key)
            .is_some_and(|known| known.is_over(now_ms))
        {
            self.end_window(now_ms, &key);
        }
        let window = self.windows.entry(key).or_insert(Window {
            began_ms: now_ms,
            told: 0,
            folded: None,
        });
        if window.told < TOLD_MAX {
            window.told += 1;
            self.append(now_ms, notice, 1);
            return;
        }
        let count = window.folded.as_ref().map_or(0, |(_, count)| *count);
        window.folded = Some((notice, count + 1));
    }

    fn settle(&mut self, now_ms: u64, all: bool) {
        let over = self.windows.iter();
        let over = over.filter(|(_, window)| all || window.is_over(now_ms));
        let over: Vec<_> = over.map(|(key, _)| key.clone()).collect();
        for key in over {
            self.end_window(now_ms, &key);
        }
    }

    fn end_window(&mut self, now_ms: u64, key: &(Kind, Option<String>)) {
        let Some(window) = self.windows.get_mut(key) else {
            return;
        };
        match window.folded.take() {
            None => {
                self.windows.remove(key);
            }
            // It has not calmed down: what follows is held back from the start.
            Some((notice, count)) => {
                window.began_ms = now_ms;
                self.append(now_ms, notice, count);
            }
        }
    }

    fn append(&mut self, unix_ms: u64, notice: Notice, count: u64) {
        if self.ring.len() == EVENTS_MAX {
            self.ring.pop_front();
        }
        let seq = self.next_seq;
        self.next_seq += 1;
        self.ring.push_back(Event {
            seq,
            unix_ms,
            count,
            notice,
        });
    }
}

impl Window {
    /// A clock that was set back ends it as well.
    fn is_over(&self, now_ms: u64) -> bool {
        now_ms.abs_diff(self.began_ms) >= WINDOW_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START_MS: u64 = 1_800_000_000_000;

    fn stalled(volume: &str, message: &str) -> Notice {
        Notice::volume(Severity::Error, Kind::State, volume, message)
    }

    #[test]
    fn what_goes_to_and_fro_is_one_event_with_a_count_and_its_end_is_told() {
        let events = Events::new(START_MS);
        for turn in 0..100 {
            let word = if turn % 2 == 0 { "stalled" } else { "clean" };
            events.tell_at(START_MS + turn * 100, stalled("a", word));
        }
        events.tell_at(START_MS + 9_999, stalled("b", "stalled"));
        assert_eq!(events.after(0).events.len(), 5, "four of a, one of b");
        events.settle(START_MS + 59_999);
        assert_eq!(events.after(0).events.len(), 5);
        events.settle(START_MS + 60_000);
        let page = events.after(0);
        let last = page.events.last().expect("one more");
        assert_eq!((last.count, last.notice.message.as_str()), (96, "clean"));
        // It goes on, so nothing is told one by one; then it is over, and all is as at first.
        events.tell_at(START_MS + 60_001, stalled("a", "stalled"));
        assert_eq!(events.after(0).events.len(), 6);
        events.settle(START_MS + 120_000);
        events.settle(START_MS + 180_000);
        events.tell_at(START_MS + 180_001, stalled("a", "clean"));
        let counts: Vec<u64> = events.after(0).events.iter().map(|e| e.count).collect();
        assert_eq!(counts, [1, 1, 1, 1, 1, 96, 1, 1]);
    }

    #[test]
    fn a_reader_goes_on_where_it_was_and_is_told_what_it_lost() {
        let events = Events::new(START_MS);
        let beyond = EVENTS_MAX as u64 + 10;
        for turn in 0..beyond {
            events.tell_at(START_MS, stalled(&format!("v{turn}"), "stalled"));
        }
        let all = events.after(0);
        assert_eq!((all.events.len(), all.lost), (EVENTS_MAX, 10));
        assert_eq!(all.next, START_MS * 1000 + beyond);
        let none = events.after(all.next);
        assert_eq!((none.events.len(), none.lost, none.next), (0, 0, all.next));
        let last = events.after(all.next - 1);
        assert_eq!((last.events.len(), last.lost), (1, 0));
        let early = events.after(START_MS * 1000 + 4);
        assert_eq!((early.events.len(), early.lost), (EVENTS_MAX, 6));
        // The next daemon's numbers are higher; an old reader misses nothing of it.
        let next = Events::new(START_MS + 60_000);
        next.tell_at(START_MS + 60_001, stalled("a", "stalled"));
        let page = next.after(all.next);
        assert_eq!((page.events.len(), page.lost), (1, 0));
        // One from the future gets everything.
        assert_eq!(next.after(u64::MAX).events.len(), 1);
    }

    #[test]
    fn an_event_has_its_time_in_utc_and_long_words_are_cut() {
        let events = Events::new(START_MS);
        events.tell_at(START_MS + 7, stalled(&"n".repeat(9999), &"é".repeat(9999)));
        let document = events.after(0).events[0].document();
        assert_eq!(document["time"], "2027-01-15T08:00:00.007Z");
        let chars = |key: &str| document[key].as_str().map(|text| text.chars().count());
        assert_eq!(chars("message"), Some(TEXT_CHARS_MAX + 1));
        assert_eq!(chars("volume"), Some(NAME_CHARS_MAX + 1));
    }

    #[test]
    fn names_that_nobody_knows_do_not_fill_memory() {
        let events = Events::new(START_MS);
        for turn in 0..2 * WINDOWS_MAX {
            events.tell_at(START_MS, stalled(&format!("v{turn}"), "stalled"));
        }
        assert_eq!(events.list().windows.len(), WINDOWS_MAX + 1);
        assert_eq!(events.list().ring.len(), EVENTS_MAX);
    }
}
