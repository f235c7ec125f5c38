//! What is different between two looks, as events.
//!
//! Owns what of a volume is compared, and the words. Always true: a volume that only works (clean,
//! dirty, clean) is no news; what goes wrong is told when it begins and when it ends. The first
//! look is compared with a daemon in order, so that whatever is wrong at a start is told as well.
//! Deliberately absent: clocks, and how often something is told, which is [`super::events`].

use super::events::{Kind, Notice, Severity};
use super::{View, copies, pools, promise};
use crate::config::units::{human_bytes, human_seconds};
use crate::unit::Shown;
use engine::snapshot::{CacheState, State, VolumeSnapshot};
use engine::types::Policy;
use std::collections::BTreeMap;

/// What is compared of a volume.
#[derive(Clone, Default, PartialEq)]
struct Seen {
    trouble: Option<State>,
    past_log: bool,
    base_changed: bool,
    effective: Option<Policy>,
    switching_to: Option<Policy>,
    slowed: bool,
    flow_reason: Option<&'static str>,
    orphan: bool,
    ready: bool,
    group_waits: bool,
    overlay_ended: bool,
    overlay_blocks: u64,
    overlay_full: bool,
    qmp_connected: Option<bool>,
    guest_resets: u64,
    clients: u64,
    checksum_errors: u64,
    origin_errors: u64,
    rests_ended: u64,
    /// Of a volume of the cluster.
    unit: Shown,
    /// The look in which it was last there.
    look: u64,
}

/// The last look, as far as it is compared.
#[derive(Default)]
pub struct Changes {
    volumes: BTreeMap<String, Seen>,
    cache_state: CacheState,
    cache_errors: u64,
    bad_clean_blocks: u64,
    /// Files that were wrong, and how many were told of that were put right.
    files: Vec<String>,
    files_mended: u64,
    pools: BTreeMap<String, pools::Seen>,
    looks: u64,
}

impl Changes {
    /// Takes a look, and tells what is new in it.
    pub fn look(&mut self, view: &View, tell: &mut dyn FnMut(Notice)) {
        if self.looks == 0 {
            started(view, tell);
        }
        self.looks += 1;
        self.cache_device(view, tell);
        self.files(view, tell);
        pools::changes(&mut self.pools, &view.look, tell);
        for volume in view.shown() {
            let mut seen = Seen::of(view, volume);
            seen.look = self.looks;
            match self.volumes.get_mut(&volume.name) {
                Some(before) => {
                    if seen.unit.state == "taking" {
                        // Its record says this host already; whose it was is told when it serves.
                        seen.unit.owner.clone_from(&before.unit.owner);
                    }
                    if *before != seen {
                        Difference {
                            view,
                            volume,
                            before,
                            now: &seen,
                        }
                        .tell(tell);
                    }
                    *before = seen;
                }
                None => {
                    if self.looks > 1 {
                        tell(added(volume));
                    }
                    let before = Seen {
                        clients: seen.clients,
                        ..Seen::in_order(&seen)
                    };
                    Difference {
                        view,
                        volume,
                        before: &before,
                        now: &seen,
                    }
                    .tell(tell);
                    self.volumes.insert(volume.name.clone(), seen);
                }
            }
        }
        let looks = self.looks;
        self.volumes.retain(|name, seen| {
            let there = seen.look == looks;
            if !there {
                tell(gone(name, seen));
            }
            there
        });
    }

    fn files(&mut self, view: &View, tell: &mut dyn FnMut(Notice)) {
        let noticed = &view.look.noticed;
        let mut say = |severity, words: &String| {
            tell(Notice::host(severity, Kind::Files, words.clone()));
        };
        for line in &noticed.lasting {
            if !self.files.contains(line) {
                say(Severity::Error, line);
            }
        }
        for line in &self.files {
            if !noticed.lasting.contains(line) {
                say(Severity::Info, &format!("over: {line}"));
            }
        }
        for (number, line) in &noticed.mended {
            if *number >= self.files_mended {
                say(Severity::Warning, line);
                self.files_mended = number + 1;
            }
        }
        self.files.clone_from(&noticed.lasting);
    }

    fn cache_device(&mut self, view: &View, tell: &mut dyn FnMut(Notice)) {
        let engine = &view.look.engine;
        let errors = engine.cache_errors;
        let mut say = |severity, words: String| {
            tell(Notice::host(severity, Kind::CacheDevice, words));
        };
        if engine.cache_state != self.cache_state {
            match engine.cache_state {
                CacheState::Good => say(
                    Severity::Info,
                    format!("the cache device answers again, after {errors} failed requests"),
                ),
                CacheState::Failing => say(
                    Severity::Error,
                    format!("the cache device fails ({errors} requests); flushes wait for it"),
                ),
                CacheState::Failed => say(
                    Severity::Error,
                    "the cache device has failed; write-back volumes do without it".into(),
                ),
                // Told among what was noticed.
                CacheState::Gone => {}
            }
        } else if errors > self.cache_errors && engine.cache_state == CacheState::Good {
            let more = errors - self.cache_errors;
            let words = format!("the cache device has failed {more} requests, and answers");
            say(Severity::Warning, words);
        }
        let bad = engine.lines.bad_blocks;
        if bad > self.bad_clean_blocks {
            let more = bad - self.bad_clean_blocks;
            let words = format!(
                "{more} clean blocks on the cache device had a wrong checksum; they are read \
                 from the origin instead"
            );
            say(Severity::Warning, words);
        }
        (self.cache_state, self.cache_errors) = (engine.cache_state, errors);
        self.bad_clean_blocks = bad;
    }
}

/// What the start has found, before any difference.
fn started(view: &View, tell: &mut dyn FnMut(Notice)) {
    let recovery = &view.look.recovery;
    let shown: Vec<&VolumeSnapshot> = view.shown().collect();
    let dirty: u64 = shown.iter().map(|volume| volume.dirty_bytes).sum();
    let words = format!(
        "tenuto {} has started: {} volumes, {} not at their origins",
        env!("CARGO_PKG_VERSION"),
        shown.len(),
        human_bytes(dirty)
    );
    tell(Notice::host(Severity::Info, Kind::Start, words));
    let words = format!(
        "recovery took {} ms: {} records replayed, {} of torn tail discarded",
        recovery.ms,
        recovery.records_replayed,
        human_bytes(recovery.tail_bytes_discarded)
    );
    tell(Notice::host(Severity::Info, Kind::Recovery, words));
    for line in &recovery.damage {
        let line = line.clone();
        tell(Notice::host(Severity::Error, Kind::Recovery, line));
    }
}

fn added(volume: &VolumeSnapshot) -> Notice {
    let (policy, origin) = (volume.policy.name(), &volume.origin);
    let words = format!("attached as {policy}, origin {origin}");
    Notice::volume(Severity::Info, Kind::Added, &volume.name, words)
}

fn gone(name: &str, seen: &Seen) -> Notice {
    let (kind, words) = match seen.orphan {
        true => (Kind::Orphan, "is no orphan any more: nothing of it is owed"),
        false => (Kind::Removed, "is not attached any more"),
    };
    Notice::volume(Severity::Info, kind, name, words)
}

impl Seen {
    fn of(view: &View, volume: &VolumeSnapshot) -> Seen {
        let watched = view.look.watched.get(&volume.name);
        let overlay = volume.overlay.as_ref();
        Seen {
            trouble: match volume.state {
                State::Clean | State::Dirty => None,
                state => Some(state),
            },
            past_log: volume.past_log,
            base_changed: volume.base_changed || volume.overlay_misfits,
            effective: Some(volume.policy),
            switching_to: volume.switching_to,
            slowed: volume.flow.active,
            flow_reason: volume.flow.reason,
            orphan: view.is_orphan(volume),
            ready: volume.ready,
            group_waits: volume.group_waits && volume.dirty_bytes > 0,
            overlay_ended: overlay.is_some_and(|overlay| overlay.ended),
            overlay_blocks: overlay.map_or(0, |overlay| overlay.ram_blocks + overlay.ssd_blocks),
            overlay_full: overlay.is_some_and(|overlay| overlay.full),
            qmp_connected: watched.map(|watched| watched.connected),
            guest_resets: watched.map_or(0, |watched| watched.resets),
            clients: view.clients(volume.id),
            checksum_errors: volume.counters.checksum_errors,
            origin_errors: volume.counters.origin.errors,
            rests_ended: volume.counters.rests_ended,
            unit: view
                .look
                .units
                .get(&volume.name)
                .cloned()
                .unwrap_or_default(),
            look: 0,
        }
    }

    /// The same volume with nothing wrong.
    fn in_order(now: &Seen) -> Seen {
        Seen {
            effective: now.effective,
            ready: now.ready,
            qmp_connected: now.qmp_connected.map(|_| false),
            guest_resets: now.guest_resets,
            overlay_blocks: now.overlay_blocks,
            ..Seen::default()
        }
    }
}

/// One volume in two looks.
struct Difference<'a> {
    view: &'a View,
    volume: &'a VolumeSnapshot,
    before: &'a Seen,
    now: &'a Seen,
}

impl Difference<'_> {
    fn tell(&self, tell: &mut dyn FnMut(Notice)) {
        let mut say = |severity, kind, words: String| {
            tell(Notice::volume(severity, kind, &self.volume.name, words));
        };
        self.state(&mut say);
        self.policy(&mut say);
        self.flow(&mut say);
        self.guest(&mut say);
        self.errors(&mut say);
        for change in copies::changes(&self.before.unit, &self.now.unit) {
            say(change.severity, change.kind, change.words);
        }
    }

    fn state(&self, say: &mut dyn FnMut(Severity, Kind, String)) {
        let (before, now, volume) = (self.before, self.now, self.volume);
        if before.trouble != now.trouble {
            match (before.trouble, now.trouble) {
                (_, Some(State::Away)) => {
                    say(
                        Severity::Info,
                        Kind::State,
                        format!("is away: {}", self.why()),
                    );
                }
                (_, Some(state)) => {
                    let words = format!("is {}: {}", state.name(), self.why());
                    say(Severity::Error, Kind::State, words);
                }
                (Some(state), None) => {
                    let words = format!("is not {} any more; {}", state.name(), self.owed());
                    say(Severity::Info, Kind::State, words);
                }
                (None, None) => {}
            }
        }
        if now.base_changed && !before.base_changed {
            let words = match volume.overlay_misfits {
                true => "its image is another one than its overlay was written on",
                false => "its image was written by another program; what was kept of it is dropped",
            };
            say(Severity::Warning, Kind::Origin, words.into());
        }
        match (before.orphan, now.orphan) {
            (false, true) => say(
                Severity::Warning,
                Kind::Orphan,
                format!("is an orphan: no configuration names it; {}", self.owed()),
            ),
            (true, false) => say(Severity::Info, Kind::Orphan, "is named again".into()),
            _ => {}
        }
        match (before.group_waits, now.group_waits) {
            (false, true) => {
                let group = &volume.group;
                let words = format!("is not destaged: volumes of its group {group} are missing");
                say(Severity::Warning, Kind::Group, words);
            }
            (true, false) => say(
                Severity::Info,
                Kind::Group,
                "waits for its group no more".into(),
            ),
            _ => {}
        }
    }

    fn why(&self) -> String {
        if let Some(held) = self.view.look.held(&self.volume.name) {
            return held.line(self.volume);
        }
        match self.volume.reason {
            Some(reason) => reason.into(),
            None => promise::promise(self.volume, self.view.replication(self.volume)),
        }
    }

    fn owed(&self) -> String {
        match (self.volume.dirty_bytes, self.volume.oldest_dirty_ns) {
            (0, _) => "the origin has every acknowledged write".into(),
            (bytes, None) => format!("{} are not at the origin", human_bytes(bytes)),
            (bytes, Some(nanos)) => format!(
                "{} of up to {} ago are not at the origin",
                human_bytes(bytes),
                human_seconds(nanos / 1_000_000_000)
            ),
        }
    }

    fn policy(&self, say: &mut dyn FnMut(Severity, Kind, String)) {
        let (before, now, volume) = (self.before, self.now, self.volume);
        let name = volume.policy.name();
        if before.past_log != now.past_log {
            let (severity, words) = match now.past_log {
                true => (
                    Severity::Warning,
                    format!("goes past the cache: {}", self.why()),
                ),
                false => (Severity::Info, format!("is {name} again")),
            };
            say(severity, Kind::Policy, words);
        } else if before.effective != now.effective {
            say(Severity::Info, Kind::Policy, format!("is {name} now"));
        } else if let (Some(wanted), None) = (before.switching_to, now.switching_to) {
            let wanted = wanted.name();
            let words = format!("stays {name}: the change to {wanted} did not succeed");
            say(Severity::Warning, Kind::Policy, words);
        }
        if let Some(wanted) = now.switching_to.filter(|_| before.switching_to.is_none()) {
            let words = format!(
                "is changing from {name} to {}; {}",
                wanted.name(),
                self.owed()
            );
            say(Severity::Info, Kind::Policy, words);
        }
    }

    fn flow(&self, say: &mut dyn FnMut(Severity, Kind, String)) {
        match (self.before.slowed, self.now.slowed) {
            (false, true) => {
                let reason = self.volume.flow.reason.unwrap_or("its limits");
                let words = format!("writes are slowed, by {reason}; {}", self.owed());
                say(Severity::Info, Kind::FlowControl, words);
            }
            (true, false) => {
                let words = "writes are not slowed any more".into();
                say(Severity::Info, Kind::FlowControl, words);
            }
            _ => {}
        }
    }

    fn guest(&self, say: &mut dyn FnMut(Severity, Kind, String)) {
        let (before, now) = (self.before, self.now);
        match (before.clients, now.clients) {
            (0, 1..) => say(Severity::Info, Kind::Client, "a client is connected".into()),
            (1.., 0) => say(
                Severity::Info,
                Kind::Client,
                "no client is connected".into(),
            ),
            _ => {}
        }
        match (before.qmp_connected, now.qmp_connected) {
            (Some(true), Some(false)) => {
                let words = "the monitor of its guest is gone; a reset would not be seen";
                say(Severity::Warning, Kind::Qmp, words.into());
            }
            (None | Some(false), Some(true)) => {
                say(
                    Severity::Info,
                    Kind::Qmp,
                    "the monitor of its guest answers".into(),
                );
            }
            _ => {}
        }
        if now.guest_resets > before.guest_resets {
            let words = "its guest started again, and found the overlay reset";
            say(Severity::Info, Kind::Overlay, words.into());
        } else if now.overlay_blocks == 0 && before.overlay_blocks > 0 {
            say(Severity::Info, Kind::Overlay, "its overlay is empty".into());
        }
        match (before.overlay_full, now.overlay_full) {
            (false, true) => {
                let refused = self.volume.counters.overlay_refused;
                let words = format!(
                    "its overlay has no more room: {refused} writes so far were answered with `no \
                     space left`; reset it, or give it or the cache more"
                );
                say(Severity::Error, Kind::Overlay, words);
            }
            (true, false) => {
                let words = "its overlay has room again";
                say(Severity::Info, Kind::Overlay, words.into());
            }
            _ => {}
        }
        if now.overlay_ended && !before.overlay_ended {
            let words = "its guest has ended; the next one finds the overlay reset";
            say(Severity::Info, Kind::Overlay, words.into());
        }
    }

    fn errors(&self, say: &mut dyn FnMut(Severity, Kind, String)) {
        let (before, now) = (self.before, self.now);
        if let Some(more) = more(now.checksum_errors, before.checksum_errors) {
            let words = format!("{more} blocks had a wrong checksum");
            say(Severity::Error, Kind::Checksum, words);
        }
        if let Some(more) = more(now.origin_errors, before.origin_errors) {
            let words = format!("its origin has failed {more} requests");
            say(Severity::Warning, Kind::Origin, words);
        }
        if now.rests_ended > before.rests_ended {
            let words = "its image is written again, because the log needs its room; a copy that \
                         was being made is of no single moment";
            say(Severity::Warning, Kind::Origin, words.into());
        }
        if now.ready && !before.ready {
            say(Severity::Info, Kind::Origin, "its origin is open".into());
        }
    }
}

fn more(now: u64, before: u64) -> Option<u64> {
    now.checked_sub(before).filter(|more| *more > 0)
}
