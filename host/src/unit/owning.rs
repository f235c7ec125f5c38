//! What this host has of a unit that it owns with copies, or takes over.
//!
//! Plain data, and what follows from it alone. Always true: there is one stream for a host, also
//! where its copy is not one any more, so that a host that was lost again soon is known.
//! Deliberately absent: what is done with it; see [`super::replicas`], [`super::streams`] and
//! [`super::fetch`].

use crate::shard::control::CommandReply;
use engine::event::Credit;
use engine::types::{PeerId, Serial, Time, Uuid, VolumeId};
use node::copy::Copy;
use node::message::{About, Body};
use node::record::{Holder, Member, Record};
use node::set::{self, Set};
use node::taker::{self, Ownership, Taker};
use node::vault::Outcome;
use node::watch::Watch;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

/// What waits for a thread, or for the log.
pub(super) enum Step {
    /// With the nonce of the record.
    Remembered(Uuid),
    Decided(Uuid, Outcome),
    Prepared(Result<(), String>),
    /// The log has made the copy the volume of the unit.
    Taken(Uuid, Result<Box<Ownership>, String>),
    Seen(Record),
    /// The replica into which a copy is fetched is there.
    Fetching(Result<(VolumeId, Uuid, Box<Copy>), String>),
}

pub(super) enum What {
    Taking(Box<Taker>),
    /// The own copy is being made durable.
    Beginning(Box<Ownership>),
    Set(Box<Set>),
}

/// The stream to one copy.
pub(super) struct Stream {
    pub peer: PeerId,
    pub member: Member,
    pub watch: Watch,
    /// Since when it is open, or not.
    pub open: bool,
    pub since: Instant,
    /// It has ended and is opened again then.
    pub reopen: Option<Instant>,
    /// The log is asked to count it.
    pub counting: Option<CommandReply>,
    pub counted: bool,
    /// What the copy takes when its stream begins; and whether it has no room for what it lacks.
    pub credit: Credit,
    pub short: bool,
    /// The copy had no room, and is dropped.
    pub dropped: bool,
}

/// What a taker fetches.
pub(super) struct Fetch {
    pub owns: Box<Ownership>,
    pub source: Member,
    pub about: About,
    /// Once its replica is there.
    pub volume: Option<VolumeId>,
    pub end: Serial,
    pub moved: Instant,
    /// The last step is under way.
    pub ending: bool,
}

impl Fetch {
    /// Another host with a copy, to which there is a link.
    pub fn other_source(&self, links: &BTreeSet<Uuid>) -> Option<Uuid> {
        let not = [self.source.host, self.owns.own.host];
        let mut members = self.owns.record.members.iter().map(|it| it.host);
        members.find(|host| !not.contains(host) && links.contains(host))
    }
}

/// A unit that is being given to another host, with what is dirty.
pub(super) struct Giving {
    pub to: Holder,
    /// Since when no client is let in; none: it is being tried.
    pub rests: Option<Instant>,
}

/// What this host has of a unit that it owns with copies.
pub(super) struct Owning {
    pub what: What,
    pub own: Uuid,
    pub about: About,
    /// The volume is served.
    pub served: bool,
    /// Its place in the log, while it is served.
    pub volume: Option<VolumeId>,
    pub serving: bool,
    /// It is served with the right to write its image.
    pub drains: bool,
    /// What the host that has the right said before the unit was this host's.
    pub early_word: Option<(Uuid, Body)>,
    /// The host that had the right before, and has said that it lets go of the image.
    pub former: Option<Uuid>,
    pub streams: BTreeMap<Uuid, Stream>,
    pub pending: Vec<(Member, Serial)>,
    pub refused: BTreeMap<Uuid, Instant>,
    /// Hosts that have no room for a copy.
    pub no_room: BTreeSet<Uuid>,
    pub begun: Instant,
    pub asked_by: Option<Uuid>,
    /// It is let go of: everything is at its origin, and its volume is not served.
    pub releasing: bool,
    pub letting_go: bool,
    pub giving: Option<Giving>,
    /// It could not be given then: everything goes to the origin first.
    pub kept: Option<Instant>,
    pub problem: Option<String>,
    /// What the log was told last of answering at the origin, and its answer that is waited for.
    pub told_origin: bool,
    pub telling: Option<CommandReply>,
    /// What another host's copy has, on its way here.
    pub fetch: Option<Fetch>,
    /// So that the machine is fed one event at a time.
    pub events: VecDeque<set::Event>,
    pub feeding: bool,
}

impl Owning {
    pub fn of(what: What, own: Uuid, about: About) -> Owning {
        Owning {
            what,
            own,
            about,
            served: false,
            volume: None,
            serving: false,
            drains: false,
            early_word: None,
            former: None,
            streams: BTreeMap::new(),
            pending: Vec::new(),
            refused: BTreeMap::new(),
            no_room: BTreeSet::new(),
            begun: Instant::now(),
            asked_by: None,
            releasing: false,
            letting_go: false,
            giving: None,
            kept: None,
            problem: None,
            told_origin: false,
            telling: None,
            fetch: None,
            events: VecDeque::new(),
            feeding: false,
        }
    }

    pub fn set(&self) -> Option<&Set> {
        match &self.what {
            What::Set(set) => Some(set),
            _ => None,
        }
    }

    /// No copy has answered yet, and nothing is changed.
    pub fn is_probing(&self) -> bool {
        match &self.what {
            What::Taking(taker) => *taker.state() == taker::State::Probing,
            _ => false,
        }
    }

    /// What is known of the vault.
    pub fn record(&self) -> &Record {
        match &self.what {
            What::Taking(taker) => taker.record(),
            What::Beginning(owns) => &owns.record,
            What::Set(set) => set.record(),
        }
    }

    /// The volume is served, and nothing is under way that lets go of it.
    pub fn rests(&self) -> bool {
        self.served && !self.letting_go && !self.releasing
    }

    /// It is about to be let go of.
    pub fn leaves(&self) -> bool {
        self.letting_go || self.releasing
    }

    /// This host serves it, or is about to.
    pub fn is_here(&self) -> bool {
        self.set().is_some()
    }

    /// The host that may still write its image.
    pub fn waits_for(&self) -> Option<&Holder> {
        self.set().and_then(Set::waits_for)
    }
}

/// A flush or a cut asks this copy.
pub(super) fn asks(owning: &Owning, member: &Member) -> bool {
    let set = owning.set();
    set.is_some_and(|set| set.must_have().contains(member))
}

pub(super) fn now() -> Time {
    Time(crate::ring::monotonic_ns())
}
