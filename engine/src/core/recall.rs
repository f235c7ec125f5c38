//! Bytes that the log of this host does not give any more, from a copy on another host, or from the
//! journal that has them already.
//!
//! ```text
//! owner:  fetch with bad blocks ─▶ Waits ─ a peer that counts has it ─▶ Asked ─ there ─▶ good
//!             │                      ▲ └────── none counts ─────▶ bad      │
//!             │                      └──── not there, some times ◀─────────┤
//!             └ replaced by newer writes ─▶ bad               too often ─▶ bad
//!         a destage that applies its journal reads them there
//! member: ReadCopy ─ all of it is in its epochs ─▶ read of its own log ─▶ reply
//!             └── a sector is not ─▶ gone
//! ```
//! Always true: what is asked for is what a read of the guest would find at that moment, and the
//! peer that is asked has all that was written until then; so its newest bytes are the right ones,
//! or those of a write that the guest has made since. A destage takes them only if that is still
//! what a read would find. A whole block must have the checksum that the log of this host has of
//! it. A fetch ends once, with what is bad in the end. A peer that cannot be asked at present is
//! asked again as long as it counts; one that says that it has not what it should is asked some
//! times. A member answers with all sectors or with none. So many are under way at most.
//! Deliberately absent: connections; images that allocate, which have no copies; what a guest or a
//! destage does with blocks that stay bad.

use super::Core;
use super::read_op::Goal;
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::{COPY_SECTORS_MAX, Device, Event, IoError, Op, Purpose, Refusal};
use crate::fetch::{Fetched, Owner, Want};
use crate::format::journal::{Journal, JournalEntry};
use crate::format::record::EntryKind;
use crate::map::Content;
use crate::memory::{Area, Place, Slice};
use crate::outbox::{Cx, Pending};
use crate::slab::Slab;
use crate::types::{
    BLOCK_BYTES, BLOCK_SECTORS, LogAddr, RequestId, SECTOR_BYTES, Serial, Span, Time, VolumeId,
};
use crate::volume::replication::Source;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Reads of peers under way: fewer than another host has at a time for this one.
const IN_FLIGHT_MAX: usize = 16;
/// How often it is said that a part is not there, and how long it waits in between.
const TRIES_MAX: u32 = 5;
const RETRY_MS: u64 = 200;

/// What peers are asked for, and what is read here for other hosts.
#[derive(Default)]
pub struct Recalls {
    recalls: Slab<Recall>,
    /// Those with parts that wait.
    waiting: VecDeque<u32>,
    in_flight: usize,
    serving: Slab<RequestId>,
}

impl Recalls {
    /// Time alone may bring something to do.
    pub fn has_chores(&self) -> bool {
        !self.waiting.is_empty()
    }
}

/// A fetch whose bad blocks are asked of peers.
struct Recall {
    volume: VolumeId,
    fetched: Fetched,
    /// A peer has them if it has all up to here.
    upto: Serial,
    parts: Vec<Part>,
    /// Parts that are not at their end.
    open: usize,
}

struct Part {
    want: Want,
    from: From,
    sector: u64,
    asked: u32,
    /// How often it was not there.
    tries: u32,
    state: State,
}

/// Where a part may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Peer,
    /// At this place of the journal that is being applied.
    Journal(u64),
    /// What a read finds there by now.
    Map(Option<Content>),
    Nowhere,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waits(Time),
    Asked,
    Over,
}

impl Part {
    fn span(&self) -> Span {
        Span::new(self.sector, self.want.sectors)
    }
}

/// Of which volume a fetch is, if there may be the same elsewhere.
fn volume_of(core: &mut Core, owner: Owner) -> Option<VolumeId> {
    let volume = match owner {
        Owner::Read(read) => core.reading.read(read).volume,
        Owner::Destage { volume, .. } | Owner::Peer { volume, .. } => volume,
        _ => return None,
    };
    core.find(volume)
        .filter(|it| !it.is_replica())
        .map(|_| volume)
}

/// The sector of its volume where a part of a fetch begins.
fn sector_of(core: &mut Core, owner: Owner, want: &Want) -> Option<u64> {
    match owner {
        Owner::Read(read) => {
            let op = core.reading.read(read);
            match op.goal {
                Goal::Guest { .. } => Some(op.span.sector + want.to.offset / SECTOR_BYTES),
                Goal::Table(_) => None,
            }
        }
        Owner::Destage { volume, job } => core.phase(volume).jobs.get(job).sector_at(want.to),
        Owner::Peer { volume, peer } => {
            let peer = core.volume(volume).replication.find(peer)?;
            peer.sector_read_at(want.to)
        }
        _ => None,
    }
}

/// The entries of the journal that is being applied, from which this fetch may be read as well.
fn journal_of(core: &mut Core, owner: Owner) -> Vec<JournalEntry> {
    let Owner::Destage { volume, .. } = owner else {
        return Vec::new();
    };
    let destage = core.phase(volume);
    let journal = Journal::parse(&destage.table);
    match journal {
        Ok(journal) if destage.applies() && !destage.in_place => journal.entries,
        _ => Vec::new(),
    }
}

/// Cuts a part of a fetch into those that lie together, in the journal or in the newest map.
fn sources(
    core: &mut Core,
    id: VolumeId,
    (span, addr): (Span, LogAddr),
    (journal, guests): (&[JournalEntry], bool),
) -> Vec<(Span, From)> {
    assert!(span.sectors > 0, "a part has something");
    let mut found = Vec::new();
    let mut at = span.sector;
    while at < span.end() {
        let next = journal.partition_point(|it| it.span.end() <= at);
        let entry = journal.get(next).filter(|it| it.span.sector <= at);
        let Some(entry) = entry.filter(|it| it.kind == EntryKind::Write) else {
            break;
        };
        let upto = entry.span.end().min(span.end());
        let offset = entry.offset + (at - entry.span.sector) * SECTOR_BYTES;
        found.push((Span::new(at, upto - at), From::Journal(offset)));
        at = upto;
    }
    if at == span.end() {
        return found;
    }
    let volume = core.volume(id);
    let counts = volume.relies_on_peers();
    let resolved = volume.resolve(span).into_iter();
    let parts = resolved.map(|(part, content)| {
        assert!(part.sector >= span.sector && part.end() <= span.end());
        let newest = is_at(content, addr.plus(part.sector - span.sector));
        let asks = counts && (newest || has(Bug::RecallReplaced));
        let from = match newest {
            false if guests => From::Map(content),
            _ if asks => From::Peer,
            _ => From::Nowhere,
        };
        (part, from)
    });
    parts.collect()
}

/// What a guest reads has another place by now. Gives back a part of it that peers are asked for.
fn read_anew(
    core: &mut Core,
    cx: &mut Cx<'_>,
    read: u32,
    (span, to): (Span, Place),
    content: Option<Content>,
) -> Option<Want> {
    match content {
        Some(Content::Data(addr)) => {
            let sectors = span.sectors;
            return Some(Want { addr, sectors, to });
        }
        Some(Content::Zero { .. }) => cx.memory.zero(to, span.sectors * SECTOR_BYTES),
        // The origin has it.
        None => core.read_uncovered(cx, read, span),
    }
    None
}

/// Of the log there, and of nothing else.
fn is_at(content: Option<Content>, addr: LogAddr) -> bool {
    matches!(content, Some(Content::Data(found)) if found == addr)
}

/// Whether a read would find just these bytes of the log there.
fn is_newest(core: &mut Core, id: VolumeId, span: Span, addr: LogAddr) -> bool {
    let Some(volume) = core.find(id) else {
        return false;
    };
    let is_it = |(part, content): (Span, Option<Content>)| {
        is_at(content, addr.plus(part.sector - span.sector))
    };
    volume.resolve(span).into_iter().all(is_it) || has(Bug::RecallReplaced)
}

/// A fetch has ended, unless something of it may come from elsewhere.
pub(super) fn begin(core: &mut Core, cx: &mut Cx<'_>, fetched: Fetched) {
    if let Some(fetched) = without(core, cx, fetched) {
        core.fetched(cx, fetched);
    }
}

/// What is to be asked for, and where; none if a read has it by now, or waits for it.
fn place(
    core: &mut Core,
    cx: &mut Cx<'_>,
    (owner, volume): (Owner, VolumeId),
    (span, from): (Span, From),
    want: Want,
) -> Option<(Want, From)> {
    let (From::Map(content), Owner::Read(read)) = (from, owner) else {
        return Some((want, from));
    };
    assert!(
        want.sectors == span.sectors,
        "a part is asked for as a whole"
    );
    let anew = read_anew(core, cx, read, (span, want.to), content)?;
    match core.volume(volume).relies_on_peers() {
        true => Some((anew, From::Peer)),
        false => Some((anew, From::Nowhere)),
    }
}

/// Gives a fetch back where nothing of it can come from elsewhere.
fn without(core: &mut Core, cx: &mut Cx<'_>, mut fetched: Fetched) -> Option<Fetched> {
    if !fetched.is_damaged() {
        return Some(fetched);
    }
    let owner = fetched.owner;
    let Some(volume) = volume_of(core, owner) else {
        return Some(fetched);
    };
    let journal = journal_of(core, owner);
    let mut parts = Vec::new();
    for want in core::mem::take(&mut fetched.bad) {
        let Some(sector) = sector_of(core, owner, &want) else {
            fetched.bad.push(want);
            continue;
        };
        let span = Span::new(sector, want.sectors);
        let guests = matches!(owner, Owner::Read(_));
        let found = sources(core, volume, (span, want.addr), (&journal, guests));
        for (span, from) in found {
            let skipped = span.sector - sector;
            let want = Want {
                addr: want.addr.plus(skipped),
                sectors: span.sectors,
                to: want.to.plus(skipped * SECTOR_BYTES),
            };
            match place(core, cx, (owner, volume), (span, from), want) {
                Some((want, From::Nowhere)) => fetched.bad.push(want),
                Some((want, from)) => parts.push(Part {
                    want,
                    from,
                    sector: span.sector,
                    asked: 0,
                    tries: 0,
                    state: State::Waits(cx.now),
                }),
                None => {}
            }
        }
    }
    if parts.is_empty() {
        return Some(fetched);
    }
    assert!(
        parts.iter().all(|part| part.want.sectors > 0),
        "a part has something"
    );
    let upto = core.volume(volume).acked();
    let open = parts.len();
    let recalls = &mut core.replicas.recalls;
    let id = recalls.recalls.insert(Recall {
        volume,
        fetched,
        upto,
        parts,
        open,
    });
    recalls.waiting.push_back(id);
    // What was written last is on its way to them, or goes now.
    core.replicas.mark(volume);
    None
}

/// Asks for what waits, as far as that can be.
pub(super) fn pump(core: &mut Core, cx: &mut Cx<'_>) {
    for _ in 0..core.replicas.recalls.waiting.len() {
        let recalls = &mut core.replicas.recalls;
        if recalls.in_flight >= IN_FLIGHT_MAX {
            return;
        }
        let id = recalls.waiting.pop_front().expect("it was counted");
        if ask(core, cx, id) {
            core.replicas.recalls.waiting.push_back(id);
        }
        end_if_over(core, cx, id);
    }
}

/// Asks for the parts of one that wait. True if some wait still.
fn ask(core: &mut Core, cx: &mut Cx<'_>, id: u32) -> bool {
    let recall = core.replicas.recalls.recalls.get(id);
    let (volume, upto) = (recall.volume, recall.upto);
    let not = match recall.fetched.owner {
        Owner::Peer { peer, .. } => Some(peer),
        _ => None,
    };
    let count = recall.parts.len();
    let mut waits = false;
    for at in 0..count {
        let recalls = &mut core.replicas.recalls;
        let part = &recalls.recalls.get(id).parts[at];
        let State::Waits(until) = part.state else {
            continue;
        };
        let (from, turn) = (part.from, part.asked);
        let may = recalls.in_flight < IN_FLIGHT_MAX && cx.now >= until;
        let source = core
            .find(volume)
            .map(|it| it.replication.source(upto, turn, not));
        match (from, source) {
            (From::Journal(offset), Some(_)) if may => {
                send(core, cx, (id, at), (Device::Journal(volume), offset));
            }
            // None counts any more, so that none must have it.
            (From::Peer, None | Some(Source::Nowhere)) | (_, None) => part_is_bad(core, id, at),
            // It may wait for the one that this is for.
            (From::Peer, Some(Source::Later)) if not.is_some() => part_is_bad(core, id, at),
            (From::Peer, Some(Source::Peer(peer))) if may => {
                let part = &core.replicas.recalls.recalls.get(id).parts[at];
                let offset = part.sector * SECTOR_BYTES;
                send(core, cx, (id, at), (Device::Peer(volume, peer), offset));
            }
            _ => waits = true,
        }
    }
    waits
}

fn send(
    core: &mut Core,
    cx: &mut Cx<'_>,
    (recall, at): (u32, usize),
    (device, offset): (Device, u64),
) {
    mark(Mark::Recalled);
    let recalls = &mut core.replicas.recalls;
    let part = &mut recalls.recalls.get(recall).parts[at];
    (part.state, part.asked) = (State::Asked, part.asked.wrapping_add(1));
    let slices = alloc::vec![Slice {
        place: part.want.to,
        bytes: part.want.sectors * SECTOR_BYTES,
    }];
    recalls.in_flight += 1;
    assert!(recalls.in_flight <= IN_FLIGHT_MAX, "so many at most");
    let part = at as u32;
    let (pending, purpose) = (Pending::Recall { recall, part }, Purpose::Replicate);
    cx.transfer(pending, purpose, device, Op::Read, offset, slices);
}

/// A part has come, or not.
pub(super) fn recalled(
    core: &mut Core,
    cx: &mut Cx<'_>,
    (id, at): (u32, u32),
    result: Result<(), IoError>,
) {
    assert!(core.replicas.recalls.in_flight > 0, "it was asked for");
    core.replicas.recalls.in_flight -= 1;
    let at = at as usize;
    let recall = core.replicas.recalls.recalls.get(id);
    let volume = recall.volume;
    let part = &mut recall.parts[at];
    assert!(part.state == State::Asked, "an answer has a question");
    // Who cannot be asked at present has said nothing.
    part.tries += u32::from(result != Err(IoError::Away));
    let (want, span, tries, from) = (part.want, part.span(), part.tries, part.from);
    let read = match recall.fetched.owner {
        Owner::Read(read) => Some(read),
        _ => None,
    };
    let same = from != From::Peer || is_newest(core, volume, span, want.addr);
    // A guest that writes where it reads may find either.
    let fits = match same {
        true => has_sum(core, cx, &want),
        false => read.is_some(),
    };
    match read.filter(|_| !same) {
        _ if result.is_ok() && fits => part_is_good(core, id, at),
        Some(read) if tries < TRIES_MAX => move_part(core, cx, (id, at), read),
        None if same && tries < TRIES_MAX => part_waits(core, cx, id, at),
        _ => part_is_bad(core, id, at),
    }
    end_if_over(core, cx, id);
}

fn part_is_good(core: &mut Core, id: u32, at: usize) {
    mark(Mark::GaveRecalled);
    let recall = core.replicas.recalls.recalls.get(id);
    assert!(recall.open > 0, "a part ends once");
    (recall.parts[at].state, recall.open) = (State::Over, recall.open - 1);
    let (volume, bytes) = (recall.volume, recall.parts[at].want.sectors * SECTOR_BYTES);
    core.volume(volume).counters.recalled_bytes += bytes;
}

fn part_waits(core: &mut Core, cx: &Cx<'_>, id: u32, at: usize) {
    let recalls = &mut core.replicas.recalls;
    let until = cx.now.plus_millis(RETRY_MS);
    recalls.recalls.get(id).parts[at].state = State::Waits(until);
    if !recalls.waiting.contains(&id) {
        recalls.waiting.push_back(id);
    }
}

/// What a guest reads has another place by now, as the origin, which its copy lacks therefore: it
/// is looked for there.
fn move_part(core: &mut Core, cx: &mut Cx<'_>, (id, at): (u32, usize), read: u32) {
    let recall = core.replicas.recalls.recalls.get(id);
    let (volume, span, tries) = (
        recall.volume,
        recall.parts[at].span(),
        recall.parts[at].tries,
    );
    let to = recall.parts[at].want.to;
    (recall.parts[at].state, recall.open) = (State::Over, recall.open - 1);
    for (sub, content) in core.volume(volume).resolve(span) {
        let to = to.plus((sub.sector - span.sector) * SECTOR_BYTES);
        let Some(want) = read_anew(core, cx, read, (sub, to), content) else {
            continue;
        };
        let recall = core.replicas.recalls.recalls.get(id);
        recall.parts.push(Part {
            want,
            from: From::Peer,
            sector: sub.sector,
            asked: 0,
            tries,
            state: State::Asked,
        });
        recall.open += 1;
        let last = recall.parts.len() - 1;
        part_waits(core, cx, id, last);
    }
}

/// What came is what the log had, as far as it knows a checksum of just that.
fn has_sum(core: &Core, cx: &Cx<'_>, want: &Want) -> bool {
    let whole = want.sectors == BLOCK_SECTORS && want.addr.0.is_multiple_of(BLOCK_SECTORS);
    let sum = |place| cx.memory.checksum(place, BLOCK_BYTES);
    !whole || sum(want.to) == core.log.sum(want.addr) || has(Bug::DropLogSum)
}

fn part_is_bad(core: &mut Core, id: u32, at: usize) {
    let recall = core.replicas.recalls.recalls.get(id);
    assert!(recall.open > 0 && recall.parts[at].state != State::Over);
    (recall.parts[at].state, recall.open) = (State::Over, recall.open - 1);
    let want = recall.parts[at].want;
    recall.fetched.bad.push(want);
}

fn end_if_over(core: &mut Core, cx: &mut Cx<'_>, id: u32) {
    let recalls = &mut core.replicas.recalls;
    if recalls.recalls.get(id).open > 0 {
        return;
    }
    recalls.waiting.retain(|it| *it != id);
    let parts = &recalls.recalls.get(id).parts;
    assert!(
        parts.iter().all(|part| part.state == State::Over),
        "it counts its parts"
    );
    let Recall {
        volume, fetched, ..
    } = recalls.recalls.take(id);
    core.fetched(cx, fetched);
    core.touch(volume);
}

/// The owner of a volume asks for what is kept here of it.
pub(super) fn serve(core: &mut Core, cx: &mut Cx<'_>, asked: &Event) {
    let Event::ReadCopy {
        request,
        volume: id,
        sector,
        sectors,
        buffer,
    } = *asked
    else {
        unreachable!("{asked:?} is no read of a copy");
    };
    let span = Span::new(sector, sectors);
    let kept = core
        .find(id)
        .filter(|it| it.is_replica() && !it.has_damaged_log());
    let inside = |sectors: u64| span.sector < sectors && span.sectors <= sectors - span.sector;
    let fits = (1..=COPY_SECTORS_MAX).contains(&span.sectors);
    let parts = kept
        .filter(|it| fits && inside(it.sectors()))
        .map(|it| it.resolve(span));
    let Some(parts) = parts.filter(|parts| parts.iter().all(|(_, found)| found.is_some())) else {
        return cx.out.reply(request, Err(Refusal::Gone));
    };
    let mut wants = Vec::new();
    for (part, content) in parts {
        let at = (part.sector - span.sector) * SECTOR_BYTES;
        let to = Place::new(Area::Buffer(buffer), at);
        match content {
            Some(Content::Data(addr)) => wants.push(Want {
                addr,
                sectors: part.sectors,
                to,
            }),
            _ => cx.memory.zero(to, part.sectors * SECTOR_BYTES),
        }
    }
    assert!(
        wants.iter().all(|want| want.sectors <= span.sectors),
        "a part is not more than the whole"
    );
    let serving = core.replicas.recalls.serving.insert(request);
    let (owner, purpose) = (Owner::Copy(serving), Purpose::Replicate);
    let parts = (&mut core.log, &mut core.scratch);
    if !core.fetches.start(cx, parts, owner, purpose, &wants) {
        served(core, cx, serving, true);
    }
}

pub(super) fn served(core: &mut Core, cx: &mut Cx<'_>, serving: u32, good: bool) {
    let request = core.replicas.recalls.serving.take(serving);
    let result = if good { Ok(()) } else { Err(Refusal::Gone) };
    cx.out.reply(request, result);
}
