//! One guest: what it asks of its disk, and what it knows about the answers.
//!
//! Owns the choice of requests, the model of the volume and, where the volume is destaged, the
//! model of its origin: the same writes, judged by what a finished destage promised. Always true:
//! both models number the writes alike. Deliberately absent: how requests reach the engine.

use crate::below::Moving;
use crate::plan::{OriginPlan, VolumePlan};
use crate::replaced::{Laid, Replaced};
use crate::rng::Rng;
use crate::unlinked::CacheLost;
use engine::event::Tuning;
use engine::types::{BufferId, DestageMode, Policy, Tag, VolumeId};
use std::collections::BTreeMap;
use std::fmt;
use workload::check::{Crash, FlushPoint, Initial, Kind, Model, Promise, ReadPoint};

/// What a guest, or its administrator, wants.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    Read {
        sector: u64,
        sectors: u64,
    },
    Write {
        sector: u64,
        sectors: u64,
        fua: bool,
    },
    Flush,
    Discard {
        sector: u64,
        sectors: u64,
        fua: bool,
    },
    WriteZeroes {
        sector: u64,
        sectors: u64,
        fua: bool,
        allocate: bool,
    },
    /// A request that no volume can carry out.
    Outside,
    Disconnect,
    Destage,
    Reset,
    /// Its rings stop as at an end, and then it goes on: it was saved, or moved away and back.
    Sleep,
    Tune(Tuning),
    Switch(Policy),
    /// To so many sectors.
    Resize(u64),
    /// Its image is to rest, and that of its group.
    Quiesce,
    Resume,
    /// The overlay becomes the content of its image.
    Commit,
    /// The next step of a move of its image.
    Move,
    /// Of the whole cache device.
    Scrub,
    /// The volume is given up; nothing of it is owed.
    Detach,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let durable = |fua: bool| if fua { ", durably" } else { "" };
        match *self {
            Request::Read { sector, sectors } => write!(f, "read {sectors} from sector {sector}"),
            Request::Write {
                sector,
                sectors,
                fua,
            } => write!(f, "write {sectors} from sector {sector}{}", durable(fua)),
            Request::Discard {
                sector,
                sectors,
                fua,
            } => write!(f, "discard {sectors} from sector {sector}{}", durable(fua)),
            Request::WriteZeroes {
                sector,
                sectors,
                fua,
                ..
            } => write!(f, "zeroes {sectors} from sector {sector}{}", durable(fua)),
            Request::Tune(tuning) => write!(
                f,
                "tune: write cache {}, destage after {:?} ms",
                tuning.write_cache, tuning.destage_after_ms
            ),
            Request::Switch(policy) => write!(f, "switch to {}", policy.name()),
            Request::Resize(sectors) => write!(f, "resize to {sectors} sectors"),
            ref other => f.write_str(&format!("{other:?}").to_lowercase()),
        }
    }
}

/// A request that waits for its answer.
#[derive(Clone, Debug)]
pub enum Pending {
    Read {
        point: ReadPoint,
        buffer: BufferId,
        /// It was under way while the image was cut short, unnoticed.
        blurred: bool,
    },
    Write {
        serial: u64,
        sector: u64,
        sectors: u64,
        fua: bool,
        buffer: Option<BufferId>,
    },
    Flush {
        point: FlushPoint,
    },
    Outside {
        buffer: BufferId,
    },
    /// Of each member of the group.
    Destage {
        points: Vec<(usize, FlushPoint)>,
    },
    /// Whether the image still fits; behind a destage that has ended only then.
    Look {
        points: Vec<(usize, FlushPoint)>,
    },
    Reset,
    /// It comes back and goes on.
    Wake,
    /// The first half of a reset, or of a sleep, by going and coming back.
    Leave,
    Tune(Tuning),
    Switch(Policy),
    Resize(u64),
    /// Of each member of the group.
    Quiesce {
        points: Vec<(usize, FlushPoint)>,
    },
    Resume,
    /// The volume lets go of its image, before its commit and after it.
    Suspend,
    Commit,
    Move,
    Scrub,
    Detach,
    /// What the log has of a volume that is held is given up.
    Drop,
    /// A part of the check that reads the whole volume.
    Part {
        sector: u64,
        buffer: BufferId,
    },
}

impl Pending {
    /// What it is, in a few words.
    pub fn name(&self) -> String {
        match self {
            Pending::Read { .. } => "read".to_owned(),
            Pending::Write {
                serial,
                buffer: Some(_),
                sectors,
                ..
            } => {
                format!("write #{serial} of {sectors} sectors")
            }
            Pending::Write {
                serial, sectors, ..
            } => {
                format!("zeroes #{serial} of {sectors} sectors")
            }
            Pending::Flush { .. } => "flush".to_owned(),
            Pending::Outside { .. } => "read beyond the end".to_owned(),
            Pending::Destage { .. } => "destage".to_owned(),
            Pending::Look { .. } => "look".to_owned(),
            Pending::Reset => "reset".to_owned(),
            Pending::Leave => "leave".to_owned(),
            Pending::Wake => "wake".to_owned(),
            Pending::Tune(_) => "tune".to_owned(),
            Pending::Switch(policy) => format!("switch to {}", policy.name()),
            Pending::Resize(sectors) => format!("resize to {sectors} sectors"),
            Pending::Quiesce { .. } => "quiesce".to_owned(),
            Pending::Resume => "resume".to_owned(),
            Pending::Suspend => "suspend".to_owned(),
            Pending::Commit => "commit".to_owned(),
            Pending::Move => "move".to_owned(),
            Pending::Scrub => "scrub".to_owned(),
            Pending::Detach => "detach".to_owned(),
            Pending::Drop => "drop".to_owned(),
            Pending::Part { sector, .. } => format!("check from sector {sector}"),
        }
    }

    pub fn buffer(&self) -> Option<BufferId> {
        match self {
            Pending::Read { buffer, .. }
            | Pending::Outside { buffer }
            | Pending::Part { buffer, .. } => Some(*buffer),
            Pending::Write { buffer, .. } => *buffer,
            _ => None,
        }
    }
}

/// A volume that is being read from end to end.
#[derive(Clone, Debug)]
pub struct Whole {
    pub image: Vec<u8>,
    /// First sectors of the parts that are still to be asked for.
    pub todo: Vec<u64>,
    pub tries: u32,
}

pub struct Guest {
    pub plan: VolumePlan,
    pub tag: u64,
    /// What the volume must hold.
    pub model: Model,
    /// What its origin must hold.
    pub origin: Option<Model>,
    pub id: Option<VolumeId>,
    pub connection: u32,
    pub pending: BTreeMap<u32, Pending>,
    /// Serials of writes that a daemon owed an answer when it died. The guest still waits.
    pub owed: Vec<u64>,
    /// Requests of connections that are gone.
    pub gone: BTreeMap<u32, Pending>,
    pub whole: Option<Whole>,
    /// The worst that happened since the volume was last judged.
    pub crash: Option<Crash>,
    pub tuning: Tuning,
    /// When each write was submitted, and acknowledged if it was and was not lost since, by the
    /// clock of the world.
    pub times: Vec<(u64, Option<u64>)>,
    /// As its administrator has ordered it, and had it before that.
    pub policies: [Policy; 2],
    /// Every acknowledgment is durable: the write cache is off, and has been for this write.
    strict: bool,
    numbers: u32,
    depth: usize,
    hot: u64,
    next: u64,
    resetting: bool,
    sleeping: bool,
    /// How far a commit is; its guest is away until its end.
    pub commit: Option<Commit>,
    /// A move of its image to another file; its guest is away until its end.
    pub moving: Option<Moving>,
    /// A change of its size that is wanted or under way.
    pub sizing: Option<Sizing>,
    /// Sectors of its disk that are to go, and may be anything until they are gone: an order to
    /// become smaller was cut short, and is given again.
    pub surplus: u64,
    /// What its disk had there when it was to become smaller.
    pub tail: Vec<u8>,
    /// Its image rests, or is to.
    pub rest: Option<Rest>,
    /// It has become smaller, and was not larger again.
    shrunk: bool,
    /// The end that was before it became larger, to be looked at.
    look: Option<u64>,
    /// Sectors it had at the begin.
    sectors_first: u64,
    /// Its image allocates.
    allocates: bool,
    only_grows: bool,
    /// It has had an answer to its attach in this life.
    pub served: bool,
    /// The cache that had its data is gone.
    pub cache_lost: Option<CacheLost>,
    /// Its image is another one, undecided yet, or what its log had lies over that.
    pub replaced: Option<Replaced>,
    pub laid: Option<Laid>,
    /// What lay over another image is not there yet.
    pub doubts_origin: bool,
    /// The daemon knows its image, and has seen that it does not fit.
    pub knows_image: bool,
    pub misfits: bool,
    /// Its base was written, and the daemon was not told.
    pub stale_base: bool,
    /// Its overlay lies on another base, and its reset is still to come.
    pub awaits_reset: bool,
    /// The last look at it had no answer.
    pub unseen: bool,
    /// Sectors that could not be read after the last copy was destroyed.
    pub lost: u64,
    /// A journal was left to the engine when it was attached.
    pub journal_left: bool,
    rng: Rng,
}

/// A commit under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// Ordered; the guest has to have all its answers first.
    Wanted,
    /// The volume lets go of its image.
    Leaves,
    /// It has the image alone, and is committed.
    Alone,
    /// It lets go of the image again.
    Returns,
}

/// A rest of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    Ordered,
    Rests,
    Ends,
}

/// A change of size. A volume becomes smaller only while its guest asks nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    pub sectors: u64,
    pub step: SizingStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizingStep {
    Wanted,
    /// What is dirty goes to the origin first.
    Destages,
    /// The block that the new end cuts is read before.
    Looks,
    Ordered,
}

impl Guest {
    pub fn new(plan: VolumePlan, origin: &OriginPlan, tag: u64, mut rng: Rng) -> Guest {
        let promise = match plan.policy {
            _ if plan.goes_direct() => Promise::Sectors,
            Policy::Uncached | Policy::WriteThrough => Promise::Sectors,
            Policy::WriteBack => Promise::Prefix,
            Policy::Ephemeral => Promise::Volatile,
        };
        let initial = origin.tag.map_or(Initial::Zero, Initial::Stamped);
        let model = Model::new(tag, origin.sectors, promise, initial);
        Guest {
            tag,
            origin: (plan.switches || plan.policy == Policy::WriteBack).then(|| model.clone()),
            id: None,
            connection: 0,
            pending: BTreeMap::new(),
            owed: Vec::new(),
            gone: BTreeMap::new(),
            whole: None,
            crash: None,
            tuning: plan.tuning,
            times: Vec::new(),
            policies: [plan.policy; 2],
            strict: !plan.tuning.write_cache,
            numbers: 0,
            depth: plan.depth,
            hot: rng.below(origin.sectors),
            next: 0,
            resetting: false,
            sleeping: false,
            commit: None,
            moving: None,
            sizing: None,
            surplus: 0,
            tail: Vec::new(),
            rest: None,
            shrunk: false,
            look: None,
            sectors_first: origin.sectors,
            allocates: origin.top.is_some(),
            only_grows: origin.top.is_some() && !plan.cuts,
            served: false,
            cache_lost: None,
            replaced: None,
            laid: None,
            doubts_origin: false,
            knows_image: false,
            misfits: false,
            stale_base: false,
            awaits_reset: false,
            unseen: false,
            lost: 0,
            journal_left: false,
            model,
            plan,
            rng,
        }
    }

    /// Its origin is written through a journal only.
    pub fn is_atomic(&self) -> bool {
        let atomic = self.plan.tuning.destage == DestageMode::Atomic && self.plan.journal_possible;
        atomic && !self.plan.switches
    }

    /// What the origin promises at any moment.
    pub fn origin_promise(&self) -> Promise {
        if self.is_atomic() {
            Promise::Prefix
        } else {
            Promise::Sectors
        }
    }

    /// The image under an overlay that nobody has any more is another one now.
    pub fn renew(&mut self, tag: u64, image: u64) {
        self.tag = tag;
        let (sectors, promise) = (self.model.sectors(), Promise::Volatile);
        self.model = Model::new(tag, sectors, promise, Initial::Stamped(image));
        self.crash = Some(Crash::PowerLoss);
    }

    /// Both models allow the last write to be there in part.
    pub fn allow_tearing(&mut self) {
        self.model.allow_tearing();
        self.origin.iter_mut().for_each(Model::allow_tearing);
    }

    pub fn number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    /// How long the guest thinks before its next request.
    pub fn pause_ns(&mut self) -> u64 {
        match self.rng.below(1000) {
            0..3 => self.rng.below(5_000_000_000),
            3..20 => self.rng.below(50_000_000),
            20..500 => self.rng.below(500_000),
            _ => 1,
        }
    }

    /// The next request, or none while the guest waits for answers.
    pub fn next(&mut self, disconnect: u64) -> Option<Request> {
        // A reset wants a quiet volume from before its request until its answer.
        let reset = self
            .pending
            .values()
            .any(|pending| matches!(pending, Pending::Reset | Pending::Wake));
        let away = self.commit.is_some() || self.moving.is_some();
        if reset || away || self.pending.len() >= self.depth {
            return None;
        }
        if self.rng.chance(10) {
            self.depth = self.rng.range(1, self.plan.depth as u64 + 1) as usize;
            self.hot = self.rng.below(self.model.sectors());
        }
        if self.resetting {
            return self.reset_when_quiet();
        }
        if self.sleeping || self.plan.sleeps && self.rng.chance(20) {
            // Its rings stop when all is answered.
            self.sleeping = !self.pending.is_empty();
            return (!self.sleeping).then_some(Request::Sleep);
        }
        if let Some(end) = self.look.take() {
            return Some(self.look_at(end));
        }
        if self.plan.rests
            && let Some(order) = self.rest_on()
        {
            return Some(order);
        }
        let idle = self.rest.is_none() && self.sizing.is_none();
        if self.plan.moves && idle && self.rng.chance(40) {
            self.moving = Some(Moving::default());
            return Some(Request::Flush);
        }
        if let Some(sizing) = self.sizing {
            let order = self.resize_on(sizing);
            if order.is_some() || self.is_smaller(sizing) {
                return order;
            }
        }
        let often = if self.shrunk || self.surplus > 0 {
            150
        } else {
            30
        };
        if self.plan.resizes && self.sizing.is_none() && self.rng.chance(often) {
            self.want_size();
            if self.sizing.is_some() {
                return Some(Request::Flush);
            }
        }
        // What a lost connection has sent may overlap with what comes after it.
        let ordered = self.plan.policy != Policy::Uncached && !self.plan.switches;
        if self.rng.chance(disconnect) && ordered {
            return Some(Request::Disconnect);
        }
        self.choose()
    }

    fn rest_on(&mut self) -> Option<Request> {
        match self.rest {
            None if self.rng.chance(20) => {
                self.rest = Some(Rest::Ordered);
                Some(Request::Quiesce)
            }
            Some(Rest::Rests) if self.rng.chance(50) => {
                self.rest = Some(Rest::Ends);
                Some(Request::Resume)
            }
            _ => None,
        }
    }

    fn reset_when_quiet(&mut self) -> Option<Request> {
        if !self.pending.is_empty() {
            return None;
        }
        self.resetting = false;
        // What a lost connection has started may still be under way.
        let quiet = self.gone.is_empty();
        Some(if quiet {
            Request::Reset
        } else {
            Request::Flush
        })
    }

    /// The next step of a change of size, once it can be made.
    fn resize_on(&mut self, sizing: Sizing) -> Option<Request> {
        let quiet = self.pending.is_empty() && self.gone.is_empty();
        let shrinks = self.is_smaller(sizing);
        let (step, request) = match sizing.step {
            SizingStep::Ordered => return None,
            _ if shrinks && !quiet => return None,
            SizingStep::Wanted if shrinks && self.origin.is_some() && self.rng.chance(700) => {
                (SizingStep::Destages, Request::Destage)
            }
            SizingStep::Wanted | SizingStep::Destages if shrinks => {
                (SizingStep::Looks, self.look_at(sizing.sectors))
            }
            _ => (SizingStep::Ordered, Request::Resize(sizing.sectors)),
        };
        self.sizing = Some(Sizing { step, ..sizing });
        // Most of what follows is near the end that was.
        let end = sizing.sectors.min(self.model.sectors());
        self.hot = end.saturating_sub(8);
        Some(request)
    }

    /// What its disk has, with what is to go.
    pub fn sectors(&self) -> u64 {
        self.model.sectors() + self.surplus
    }

    fn is_smaller(&self, sizing: Sizing) -> bool {
        sizing.sectors < self.sectors()
    }

    /// Another size, mostly near this one, and mostly no whole number of blocks.
    fn want_size(&mut self) {
        let now = self.model.sectors();
        if self.surplus > 0 {
            let (sectors, step) = (now, SizingStep::Wanted);
            self.sizing = Some(Sizing { sectors, step });
            return;
        }
        let (least, most) = (self.sectors_first / 2, self.sectors_first * 3 / 2);
        let grows = if self.shrunk { 800 } else { 300 };
        let sectors = match (self.rng.chance(200), self.rng.chance(grows)) {
            (true, _) => self.rng.range(least, most),
            (false, true) => now + self.rng.range(1, 40),
            (false, false) => now.saturating_sub(self.rng.range(1, 40)),
        };
        let sectors = match self.only_grows {
            true => (now + now.abs_diff(sectors)).min(most),
            false => sectors.clamp(least, most),
        };
        self.sizing = (sectors != now || !self.only_grows).then_some(Sizing {
            sectors,
            step: SizingStep::Wanted,
        });
    }

    /// Reads the block that such an end cuts.
    fn look_at(&self, end: u64) -> Request {
        let sector = end.min(self.model.sectors() - 1) / 8 * 8;
        Request::Read {
            sector,
            sectors: (self.model.sectors() - sector).min(8),
        }
    }

    /// A change of size has its answer, or was found after a crash.
    pub fn resized(&mut self, sectors: Option<u64>) {
        self.sizing = None;
        let Some(sectors) = sectors else { return };
        let old = self.model.sectors();
        self.surplus = 0;
        self.shrunk = sectors < old;
        self.look = (sectors > old).then_some(old);
        let models = std::iter::once(&mut self.model).chain(&mut self.origin);
        models.for_each(|model| model.resize(sectors));
    }

    /// Whether its image may lose what is behind the end, and may have lost it already.
    pub fn is_shrinking(&self) -> bool {
        self.kept_sectors().is_some()
    }

    /// What of its disk stays, where it is about to become smaller.
    pub fn kept_sectors(&self) -> Option<u64> {
        let ordered = self.sizing.filter(|it| it.step == SizingStep::Ordered);
        ordered
            .filter(|it| self.is_smaller(*it))
            .map(|it| it.sectors)
    }

    /// An order to become smaller has not come to its end: the disk has its old size, and nothing
    /// is known of what was to go.
    pub fn doubt_end(&mut self) {
        let sizing = self.sizing.take().expect("it was ordered");
        let surplus = self.sectors() - sizing.sectors;
        self.resized(Some(sizing.sectors));
        self.surplus = surplus;
    }

    fn choose(&mut self) -> Option<Request> {
        let fua = self.rng.chance(100) && !self.plan.spares.fua;
        if self.plan.reader && self.rng.chance(850) {
            let (sector, sectors) = self.span(self.plan.request_sectors_max);
            return Some(Request::Read { sector, sectors });
        }
        let request = match self.rng.below(1000) {
            0..400 if self.plan.zeroes => {
                let (sector, sectors) = self.span(4096);
                Request::Discard {
                    sector,
                    sectors,
                    fua,
                }
            }
            0..500 => {
                let (sector, sectors) = self.span(self.plan.request_sectors_max);
                Request::Write {
                    sector,
                    sectors,
                    fua,
                }
            }
            500..780 => {
                let (sector, sectors) = self.span(self.plan.request_sectors_max);
                Request::Read { sector, sectors }
            }
            780..860 => Request::Flush,
            860..910 => {
                let (sector, sectors) = self.span(4096);
                Request::Discard {
                    sector,
                    sectors,
                    fua,
                }
            }
            910..950 => {
                let (sector, sectors) = self.span(1024);
                Request::WriteZeroes {
                    sector,
                    sectors,
                    fua,
                    allocate: self.rng.chance(500),
                }
            }
            // The end of the volume is not known while it grows.
            950..955 if self.sizing.is_none() && self.surplus == 0 => Request::Outside,
            955..965 => self.retuned(),
            965..985 if self.plan.switches => {
                let all = [Policy::WriteBack, Policy::WriteThrough, Policy::Uncached];
                Request::Switch(self.rng.pick(&all))
            }
            985..990 if self.plan.switches => Request::Destage,
            965..985 if self.plan.policy == Policy::WriteBack => Request::Destage,
            965..975 if self.plan.policy == Policy::Ephemeral && !self.plan.spares.commands => {
                self.resetting = true;
                return self.reset_when_quiet();
            }
            990..992 => Request::Scrub,
            992..1000 if self.plan.commits => {
                self.commit = Some(Commit::Wanted);
                Request::Flush
            }
            _ => Request::Flush,
        };
        let request = self.unless_spared(request);
        let ordered = self.plan.policy != Policy::Uncached && !self.plan.switches;
        let ordered = ordered || !self.overlaps(&request);
        Some(if ordered { request } else { Request::Flush })
    }

    /// What this guest does instead of what it never does.
    fn unless_spared(&self, request: Request) -> Request {
        let spares = &self.plan.spares;
        match request {
            Request::Discard {
                sector,
                sectors,
                fua,
            }
            | Request::WriteZeroes {
                sector,
                sectors,
                fua,
                ..
            } if spares.zeroes => Request::Write {
                sector,
                sectors: sectors.min(self.plan.request_sectors_max),
                fua,
            },
            Request::Destage | Request::Tune(_) | Request::Scrub if spares.commands => {
                Request::Flush
            }
            other => other,
        }
    }

    fn retuned(&mut self) -> Request {
        let ages = [Some(20), Some(200), Some(2000), None];
        let mut tuning = Tuning {
            destage_after_ms: self.rng.pick(&ages),
            ..self.tuning
        };
        tuning.write_cache = self.rng.chance(800);
        if self.plan.journal_possible && !self.is_atomic() {
            tuning.destage = self.rng.pick(&[DestageMode::Atomic, DestageMode::InPlace]);
        }
        Request::Tune(tuning)
    }

    /// Whether a write would fly together with one of the same sectors. Without a cache nothing
    /// orders the two.
    fn overlaps(&self, request: &Request) -> bool {
        let (Request::Write {
            sector, sectors, ..
        }
        | Request::Discard {
            sector, sectors, ..
        }
        | Request::WriteZeroes {
            sector, sectors, ..
        }) = *request
        else {
            return false;
        };
        self.pending.values().any(|pending| match pending {
            Pending::Write {
                sector: other,
                sectors: length,
                ..
            } => sector < other + length && *other < sector + sectors,
            _ => false,
        })
    }

    fn span(&mut self, sectors_max: u64) -> (u64, u64) {
        let total = self.model.sectors();
        let sectors = match self.rng.below(10) {
            0..2 => 1,
            2..5 => self.rng.range(1, 17),
            5..8 => self.rng.range(1, 9) * 8,
            _ => self.rng.range(1, sectors_max + 1),
        };
        let sectors = sectors.min(sectors_max);
        let near = |rng: &mut Rng, hot| hot + rng.below(total / 16);
        let mut sector = match self.rng.below(10) {
            0..6 => near(&mut self.rng, self.hot) % total,
            6..8 => self.next % total,
            _ => self.rng.below(total),
        };
        if self.rng.chance(600) {
            sector -= sector % 8;
        }
        let sectors = sectors.min(total - sector);
        let (sector, sectors) = if self.plan.spares.unaligned {
            // The end of an odd volume is not aligned either.
            let first = sector - sector % 8;
            (first, sectors.next_multiple_of(8).min(total - first))
        } else {
            (sector, sectors)
        };
        self.next = sector + sectors;
        (sector, sectors)
    }

    /// Numbers a write in both models.
    pub fn submit(
        &mut self,
        clock: u64,
        kind: Kind,
        (sector, sectors): (u64, u64),
        fua: bool,
    ) -> u64 {
        self.times.push((clock, None));
        let serial = self.model.submit(kind, sector, sectors, fua || self.strict);
        if let Some(origin) = &mut self.origin {
            let same = origin.submit(kind, sector, sectors, false);
            assert_eq!(serial, same, "both models number alike");
        }
        serial
    }

    /// The name of a write for the next daemon.
    pub fn tag(serial: u64) -> Tag {
        Tag {
            region: 1,
            counter: serial,
        }
    }

    pub fn acknowledge(&mut self, clock: u64, serial: u64) {
        if let Some(times) = self.times.get_mut(serial as usize - 1) {
            times.1 = Some(clock);
        }
        self.model.acknowledge(serial);
        if let Some(origin) = &mut self.origin {
            origin.acknowledge(serial);
        }
    }

    /// A command that changes tunables is on its way: from now on the weaker promise holds.
    pub fn tune_begin(&mut self, tuning: &Tuning) {
        if !tuning.write_cache {
            return;
        }
        self.strict = false;
        for pending in self.pending.values().chain(self.gone.values()) {
            if let Pending::Write {
                serial, fua: false, ..
            } = pending
            {
                self.model.weaken(*serial);
            }
        }
    }

    pub fn tune_done(&mut self, tuning: Tuning) {
        self.strict = !tuning.write_cache;
        self.tuning = tuning;
    }

    /// An order to change the policy has its answer.
    pub fn switch_done(&mut self, done: bool) {
        let [new, old] = self.policies;
        self.policies = if done { [new; 2] } else { [old; 2] };
    }

    /// The policy of the next start: an order without an answer may have been kept, or not.
    pub fn settle_policy(&mut self) -> Policy {
        let policy = self.rng.pick(&self.policies);
        self.settle_on(policy)
    }

    pub fn settle_on(&mut self, policy: Policy) -> Policy {
        self.policies = [policy; 2];
        policy
    }

    /// The connection, or the whole daemon, is gone.
    pub fn disconnected(&mut self) {
        self.connection += 1;
        let tuned = |pending: &Pending| matches!(pending, Pending::Tune(_));
        // A command whose answer never came leaves either setting; the weaker promise is claimed.
        if self.pending.values().any(tuned) {
            self.strict = false;
        }
        self.gone.append(&mut self.pending);
    }

    /// It was told that acknowledged writes may be missing, before anything was served.
    pub fn stage_lost(&mut self) {
        self.crash = self.crash.max(Some(Crash::PowerLoss));
    }

    /// The daemon is gone with everything that was under way.
    pub fn crashed(&mut self, crash: Crash) {
        self.disconnected();
        self.strict = !self.tuning.write_cache;
        let owed = self.gone.values().filter_map(|pending| match pending {
            Pending::Write {
                serial,
                buffer: Some(_),
                ..
            } => Some(*serial),
            _ => None,
        });
        self.owed.extend(owed);
        self.gone.clear();
        self.whole = None;
        self.served = self.id.is_some();
        self.id = None;
        (self.resetting, self.sleeping) = (false, false);
        self.rest = None;
        self.moving = None;
        // Of an image that allocates it is sure when its ledger was settled.
        let unsure = |it: &Sizing| it.step == SizingStep::Ordered && self.allocates;
        self.sizing = self.sizing.filter(unsure);
        (self.knows_image, self.misfits, self.stale_base) = (false, false, false);
        self.crash = self.crash.max(Some(crash));
    }
}
