//! Destage of an image that allocates, by a planner that no format has: blocks lie backwards in
//! their file, each where nothing is until it is written.

use super::{Host, STAT, fine, none, spec};
use crate::engine::Settled;
use crate::event::{Command, Device, Event, Io, IoError, Op, Purpose, Refusal, Tuning, VolumeSpec};
use crate::format::ledger::Progress;
use crate::image::{Image, Mark, Named};
use crate::layout::Holds;
use crate::origin::{
    Errand, Extent, FileIndex, Lies, Map, Missing, Piece, Planned, Planner, Rank, Resolved, When,
    Work,
};
use crate::snapshot::State;
use crate::types::{BLOCK_SECTORS, DestageMode, Policy, RequestId, Span, Uuid, VolumeId};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// The file is shorter than what a look says of it.
pub(super) const BLOCKS: u64 = 32 * super::MIB / 4096;
/// The header is one block; the table has a byte for each block of the disk; then come the blocks.
pub(super) const TABLE_AT: u64 = 4096;
pub(super) const DATA_AT: u64 = TABLE_AT + BLOCKS;
const MAGIC: u8 = 0xB5;

/// A file that has no block, as a writer of this format makes it.
pub(super) fn empty_file() -> Vec<u8> {
    let mut file = vec![0; DATA_AT as usize];
    file[0] = MAGIC;
    file
}

pub(super) fn place(block: u64) -> u64 {
    DATA_AT + (BLOCKS - 1 - block) * 4096
}

#[derive(Default)]
pub(super) struct Backwards {
    /// Sectors of the table that were seen, for readers and for the plan.
    seen: BTreeMap<u64, Vec<u8>>,
    planned: BTreeMap<u64, Vec<u8>>,
    changed: BTreeMap<u64, Vec<u8>>,
    /// One that it cannot make sense of.
    broken: bool,
    /// What a block has before it gets its place lies here, for a plan alone.
    below_at: Option<u64>,
}

const SECTOR: u64 = 512;

impl Backwards {
    pub(super) fn over(below_at: u64) -> Backwards {
        Backwards {
            below_at: Some(below_at),
            ..Backwards::default()
        }
    }

    pub(super) fn broken() -> Backwards {
        Backwards {
            broken: true,
            ..Backwards::default()
        }
    }

    fn missing(sector: u64) -> Missing {
        let offset = (TABLE_AT + sector * SECTOR) / 4096 * 4096;
        Missing {
            file: FileIndex::TOP,
            offset,
            bytes: 4096,
            wanted: sector,
        }
    }

    fn has(seen: &BTreeMap<u64, Vec<u8>>, block: u64) -> Result<bool, Missing> {
        let sector = block / SECTOR;
        let bytes = seen.get(&sector).ok_or(Backwards::missing(sector))?;
        Ok(bytes[(block % SECTOR) as usize] == 1)
    }
}

impl Map for Backwards {
    fn resolve(&mut self, span: Span) -> Resolved {
        let mut extents = Vec::new();
        let mut at = span.sector;
        while at < span.end() {
            let block = at / BLOCK_SECTORS;
            let end = span.end().min((block + 1) * BLOCK_SECTORS);
            let lies = match Backwards::has(&self.seen, block) {
                Err(missing) => return Resolved::Missing(extents, missing),
                Ok(false) => Lies::Nowhere,
                Ok(true) => Lies::At {
                    file: FileIndex::TOP,
                    offset: place(block) + at % BLOCK_SECTORS * SECTOR,
                },
            };
            let span = Span::new(at, end - at);
            extents.push(Extent { span, lies });
            at = end;
        }
        Resolved::Ready(extents)
    }

    fn supply(&mut self, missing: Missing, bytes: &[u8]) {
        let from = (missing.wanted * SECTOR + TABLE_AT - missing.offset) as usize;
        let sector = bytes[from..from + SECTOR as usize].to_vec();
        self.seen.insert(missing.wanted, sector);
    }

    fn tables(&self) -> &[Uuid] {
        const NAMES: [Uuid; 1] = [Uuid([0xB5; 16])];
        &NAMES
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn set_bytes_max(&mut self, _: u64) {}

    fn planner(&mut self) -> Option<&mut dyn Planner> {
        Some(self)
    }
}

impl Planner for Backwards {
    fn cluster_bytes(&self) -> u64 {
        4096
    }

    fn begin(&mut self, _: Mark) {
        self.planned.clear();
        self.changed.clear();
    }

    fn begin_ordered(&mut self) {
        self.planned.clear();
        self.changed.clear();
    }

    fn in_place(&mut self, _: Span) -> Option<Vec<(Span, u64)>> {
        None
    }

    fn written_through(&mut self, _: &[(u64, &[u8])]) -> Vec<(u64, u64)> {
        self.reached()
    }

    fn plan(&mut self, pieces: &[Piece], work: &mut Vec<Work>) -> Planned {
        if self.broken {
            return Planned::Damaged;
        }
        let block = pieces[0].span.sector / BLOCK_SECTORS;
        let had = match Backwards::has(&self.planned, block) {
            Ok(had) => had,
            Err(missing) => return Planned::Missing(missing),
        };
        let when = if had { When::Journal } else { When::Now };
        let mut at = block * BLOCK_SECTORS;
        let below_at = self.below_at;
        let copy = |from: u64, upto: u64| Work::Copy {
            extent: Extent {
                span: Span::new(from, upto - from),
                lies: below_at.map_or(Lies::Nowhere, |at| Lies::At {
                    file: FileIndex::TOP,
                    offset: at + from % BLOCK_SECTORS * SECTOR,
                }),
            },
            at: place(block) + from % BLOCK_SECTORS * SECTOR,
        };
        for piece in pieces {
            let Span { sector, sectors } = piece.span;
            assert!(sector / BLOCK_SECTORS == block && sector >= at);
            if !had && sector > at {
                work.push(copy(at, sector));
            }
            let to = place(block) + sector % BLOCK_SECTORS * SECTOR;
            work.push(match piece.zero {
                true if had => Work::Zero {
                    at: to,
                    bytes: sectors * SECTOR,
                },
                true => copy(sector, sector + sectors),
                false => Work::Data {
                    span: piece.span,
                    at: to,
                    when,
                },
            });
            at = sector + sectors;
        }
        if !had {
            if at < (block + 1) * BLOCK_SECTORS {
                work.push(copy(at, (block + 1) * BLOCK_SECTORS));
            }
            let sector = self.planned.get_mut(&(block / SECTOR)).expect("just seen");
            sector[(block % SECTOR) as usize] = 1;
            self.changed.insert(block / SECTOR, sector.clone());
        }
        Planned::Done
    }

    fn end(&mut self, work: &mut Vec<Work>) -> Planned {
        for (sector, bytes) in &self.changed {
            work.push(Work::Table {
                at: TABLE_AT + sector * SECTOR,
                bytes: bytes.clone(),
                rank: Rank::Refer,
            });
        }
        Planned::Done
    }

    fn supply(&mut self, missing: Missing, bytes: &[u8]) {
        let from = (missing.wanted * SECTOR + TABLE_AT - missing.offset) as usize;
        let sector = bytes[from..from + SECTOR as usize].to_vec();
        self.planned.insert(missing.wanted, sector);
    }

    fn grown(&mut self, _: u64) {}

    fn guarded(&self, sector: &[u8], guard: bool) -> Option<Vec<u8>> {
        let mut sector = sector.to_vec();
        sector[1] = u8::from(guard);
        (sector[0] == MAGIC).then_some(sector)
    }

    fn marked(&self, sector: &[u8], mark: Mark) -> Vec<u8> {
        let mut sector = sector.to_vec();
        sector[2] = mark.serial.0 as u8;
        sector
    }

    fn growth(&self, size_bytes: u64) -> Option<Span> {
        let (old, new) = (BLOCKS / 2 * BLOCK_SECTORS, size_bytes / SECTOR);
        (new <= BLOCKS * BLOCK_SECTORS).then(|| Span::new(old, BLOCK_SECTORS))
    }

    fn begin_errand(&mut self, mark: Mark, _: &Errand) {
        self.begin(mark);
    }

    fn sized(&self, sector: &[u8], size_bytes: u64) -> Option<Vec<u8>> {
        let mut sector = sector.to_vec();
        sector[8..16].copy_from_slice(&size_bytes.to_be_bytes());
        (sector[0] == MAGIC).then_some(sector)
    }

    fn set_size(&mut self, _: u64) {}

    fn reached(&mut self) -> Vec<(u64, u64)> {
        let changed = core::mem::take(&mut self.changed);
        let ranges = changed.keys().map(|it| (TABLE_AT + it * SECTOR, SECTOR));
        let ranges = ranges.collect();
        self.seen.extend(changed);
        ranges
    }

    fn read_anew(&mut self, sector: &[u8], _: u64) -> bool {
        self.seen.clear();
        sector[0] == MAGIC
    }
}

pub(super) fn attach(host: &mut Host, map: Backwards) -> VolumeId {
    attach_of(host, map, BLOCKS)
}

fn attach_of(host: &mut Host, map: Backwards, blocks: u64) -> VolumeId {
    let mut spec = spec(Policy::WriteBack, "disk");
    spec.size_bytes = blocks * 4096;
    attach_spec(host, map, spec)
}

pub(super) fn attach_spec(host: &mut Host, map: Backwards, spec: VolumeSpec) -> VolumeId {
    let id = host.core.place(&spec.name);
    let file = host.disks.0.entry(Device::Origin(id));
    file.or_insert_with(empty_file);
    let cache = Some(host.core.superblock.cache);
    let otherwise = crate::settle::Otherwise::Refuse;
    let settled = crate::settle::settle_for(&mut host.disks, id, otherwise, cache);
    let settled: Settled = settled.expect("the ledger is whole");
    let map: Box<dyn Map> = Box::new(map);
    let attached = host.core.attach_mapped(id, spec, settled, Some(map));
    attached.expect("it fits");
    host.send(Event::Tick);
    id
}

/// Attaches a disk whose image is known by this; false if it is refused.
pub(super) fn attach_known(host: &mut Host, image: Image) -> bool {
    let mut spec = spec(Policy::WriteBack, "disk");
    spec.size_bytes = BLOCKS * 4096;
    let id = host.core.place(&spec.name);
    let file = host.disks.0.entry(Device::Origin(id));
    file.or_insert_with(empty_file);
    host.stat.image = Some(image);
    host.stat.named = Named::To(image);
    let cache = Some(host.core.superblock.cache);
    let otherwise = crate::settle::Otherwise::Refuse;
    let settled = crate::settle::settle_for(&mut host.disks, id, otherwise, cache);
    let mut settled: Settled = settled.expect("the ledger is whole");
    settled.image = Some(image);
    let map: Box<dyn Map> = Box::new(Backwards::default());
    let attached = host.core.attach_mapped(id, spec, settled, Some(map));
    host.send(Event::Tick);
    attached.is_ok()
}

pub(super) fn with_image() -> (Host, VolumeId) {
    let mut host = Host::new();
    let id = attach(&mut host, Backwards::default());
    (host, id)
}

/// What a program sees that reads the file by itself.
pub(super) fn view(host: &Host, id: VolumeId, block: u64) -> Vec<u8> {
    let file = &host.disks.0[&Device::Origin(id)];
    match file[(TABLE_AT + block) as usize] {
        1 => file[place(block) as usize..][..4096].to_vec(),
        _ => vec![0; 4096],
    }
}

pub(super) fn guard(host: &Host, id: VolumeId) -> u8 {
    host.disks.0[&Device::Origin(id)][1]
}

pub(super) fn end_destage(host: &mut Host, id: VolumeId) {
    let order = host.destage(id);
    host.pass(2_000);
    assert_eq!(host.answer(order), Some(Ok(())), "{:?}", host.state(id));
}

pub(super) fn applies(io: &Io) -> bool {
    io.purpose == Purpose::JournalApply && io.op == Op::Write
}

pub(super) fn writes_now(io: &Io) -> bool {
    io.purpose == Purpose::DestageWrite && io.op == Op::Write && io.offset >= DATA_AT
}

#[test]
fn an_epoch_reaches_an_image_that_allocates_and_is_read_where_it_lies() {
    let (mut host, disk) = with_image();
    assert_eq!(host.read(disk, 4, 1), Some(vec![0; 4096]), "no block yet");
    host.fill(disk, 3, 3);
    host.write_sectors(disk, 10 * BLOCK_SECTORS + 3, 2);
    let want = host.read(disk, 3, 8);
    end_destage(&mut host, disk);
    assert_eq!(guard(&host, disk), 0, "every program opens it");
    assert_eq!(host.ledger(disk).progress, Progress::Idle);
    let found: Vec<u8> = (3..11).flat_map(|it| view(&host, disk, it)).collect();
    assert_eq!(Some(&found), want.as_ref());
    assert_eq!(host.read(disk, 3, 8), want, "by its new tables");
    assert_eq!(host.show(disk).dirty_bytes, 0);
    // In place, over what is there, and zeroes.
    host.fill(disk, 4, 3);
    host.zero(disk, 3, 1);
    let want = host.read(disk, 3, 8);
    host.count(writes_now);
    end_destage(&mut host, disk);
    let found: Vec<u8> = (3..11).flat_map(|it| view(&host, disk, it)).collect();
    assert_eq!(Some(&found), want.as_ref());
    assert_eq!(host.count(writes_now), 1, "one block of them was new");
    assert_eq!(host.read(disk, 3, 8), want);
}

/// Until the ledger says *apply* nothing but free places and the guard are written.
#[test]
fn an_image_that_allocates_is_what_it_was_until_its_journal_counts() {
    let (mut host, disk) = with_image();
    host.fill(disk, 0, 4);
    end_destage(&mut host, disk);
    let before = view(&host, disk, 1);
    host.write_sectors(disk, BLOCK_SECTORS + 1, 3);
    host.fill(disk, 100, 2);
    host.hold(applies);
    let order = host.destage(disk);
    host.pass(1_000);
    assert_eq!(host.answer(order), None);
    assert_eq!(view(&host, disk, 1), before);
    assert_eq!(view(&host, disk, 100), vec![0; 4096]);
    assert_eq!(guard(&host, disk), 1);
    let progress = host.ledger(disk).progress;
    assert!(matches!(progress, Progress::Apply { .. }), "{progress:?}");
    // The daemon ends here, and another one finds it.
    let want = host.read(disk, 0, 4);
    let mut host = host.killed();
    let again = attach(&mut host, Backwards::default());
    assert_eq!(host.read(again, 0, 4), want, "from the log meanwhile");
    host.pass(2_000);
    assert_eq!(
        guard(&host, again),
        0,
        "{:?} {:?}",
        host.state(again),
        host.ledger(again).progress
    );
    assert_eq!(host.ledger(again).progress, Progress::Idle);
    assert_eq!(host.read(again, 0, 4), want, "from the image");
    let found: Vec<u8> = (0..4).flat_map(|it| view(&host, again, it)).collect();
    assert_eq!(Some(found), want);
}

fn set_destage(host: &mut Host, volume: VolumeId, destage: DestageMode) {
    let tuning = Tuning {
        destage,
        ..*host.core.volume(volume).tuning()
    };
    let order = host.order(Command::Tune { volume, tuning });
    assert_eq!(host.answer(order), Some(Ok(())));
}

/// A destage in place writes what has a place there, whose tables stay as they are, and is cut
/// short: the ledger says so until another one has ended.
#[test]
fn an_image_that_allocates_is_between_two_states_only_in_place() {
    let (mut host, disk) = with_image();
    set_destage(&mut host, disk, DestageMode::InPlace);
    host.fill(disk, 0, 4);
    end_destage(&mut host, disk);
    assert_eq!(host.ledger(disk).progress, Progress::Idle);
    let before = view(&host, disk, 2);
    host.write_sectors(disk, BLOCK_SECTORS, 2 * BLOCK_SECTORS);
    host.fill(disk, 100, 2);
    let want = host.read(disk, 0, 4);
    assert_ne!(want.as_ref().map(|it| &it[8192..12288]), Some(&before[..]));
    host.count(writes_now);
    let journal_bytes = host.show(disk).counters.origin.journal_bytes;
    host.hold(|io| io.op == Op::Sync && matches!(io.device, Device::Journal(_)));
    host.destage(disk);
    host.pass(1_000);
    let found: Vec<u8> = (0..4).flat_map(|it| view(&host, disk, it)).collect();
    assert_eq!(Some(&found), want.as_ref(), "they are there");
    assert_eq!(view(&host, disk, 100), vec![0; 4096], "no table says so");
    let journaled = host.show(disk).counters.origin.journal_bytes - journal_bytes;
    // Its header and the sector of the table; the two blocks would be 8 KiB more.
    assert!(journaled <= 12_288, "{journaled} bytes");
    let cut = host.ledger(disk).progress;
    assert!(matches!(cut, Progress::Cut(_)), "{cut:?}");
    // The setting of the next life changes nothing of what is owed.
    let mut host = host.killed();
    let again = attach(&mut host, Backwards::default());
    host.pass(2_000);
    assert_eq!(host.ledger(again).progress, cut, "it is owed");
    assert_eq!(
        guard(&host, again),
        0,
        "what nothing needs does not keep others away"
    );
    assert_eq!(host.read(again, 0, 4), want);
    end_destage(&mut host, again);
    assert_eq!(host.ledger(again).progress, Progress::Idle);
    let found: Vec<u8> = (0..4).flat_map(|it| view(&host, again, it)).collect();
    assert_eq!(Some(found), want);
}

fn reads_journal(io: &Io) -> bool {
    io.op == Op::Read && matches!(io.device, Device::Journal(_))
}

/// A power loss has torn a table that a journal was being applied to. A block that the journal says
/// nothing of is read by the next life before it has replayed the journal.
pub(super) fn read_beside_a_torn_table() -> bool {
    let (mut host, disk) = with_image();
    host.fill(disk, 0, 4);
    host.hold(applies);
    host.destage(disk);
    host.pass(1_000);
    let mut host = host.killed();
    let file = host.disks.0.get_mut(&Device::Origin(disk));
    let file = file.expect("it was written");
    file.resize(place(0) as usize + 4096, 0x66);
    file[TABLE_AT as usize..][..SECTOR as usize].fill(1);
    host.hold(reads_journal);
    let again = attach(&mut host, Backwards::default());
    let early = host.read(again, 300, 1);
    // A client that copies what is told to hold data would leave out what the table hides.
    let holds = |host: &Host| {
        let parts = host.core.layout(again, Span::new(300 * 8, 8), 8);
        parts.expect("the volume is there")[0].holds
    };
    let told = holds(&host);
    host.hold(none);
    host.pass(2_000);
    assert_eq!(host.read(again, 300, 1), Some(vec![0; 4096]));
    assert_eq!(holds(&host), Holds::Origin);
    early.is_none() && told == Holds::Data
}

fn fails_reads_of_bases(io: &Io) -> Option<IoError> {
    let late = io.purpose == Purpose::DestageRead && matches!(io.device, Device::Origin(_));
    (late || writes_now(io)).then_some(IoError::Failed)
}

#[test]
fn a_plan_goes_on_behind_requests_that_failed() {
    let (mut host, disk) = with_image();
    host.fill(disk, 0, 9);
    host.fail(fails_reads_of_bases);
    let order = host.destage(disk);
    host.pass(3_000);
    assert_eq!(host.answer(order), None);
    assert_eq!(host.state(disk).0, State::Stalled);
    host.fail(fine);
    host.pass(3_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert_eq!(Some(view(&host, disk, 8)), host.read(disk, 8, 1));
    assert_eq!(host.state(disk).0, State::Clean);
}

#[test]
fn an_image_that_contradicts_itself_is_told_of_and_nothing_of_it_is_written() {
    let mut host = Host::new();
    let disk = attach(&mut host, Backwards::broken());
    host.fill(disk, 0, 2);
    let before = host.disks.0[&Device::Origin(disk)].clone();
    let order = host.destage(disk);
    host.pass(1_000);
    assert_eq!(host.answer(order), Some(Err(Refusal::Contradicts)));
    host.pass(100_000);
    let (state, reason) = host.state(disk);
    assert_eq!(state, State::Stalled);
    assert!(
        reason.is_some_and(|it| it.contains("contradict")),
        "{reason:?}"
    );
    assert!(before == host.disks.0[&Device::Origin(disk)]);
    assert!(host.read(disk, 0, 2).is_some(), "guests go on");
}

/// The ledger that is being removed takes no step, so a destage would wait for it for ever.
#[test]
fn a_volume_that_goes_begins_no_destage_while_its_ledger_is_being_removed() {
    let mut host = Host::new();
    let disk = attach(&mut host, Backwards::broken());
    host.fill(disk, 0, 2);
    let order = host.destage(disk);
    host.pass(1_000);
    assert_eq!(host.answer(order), Some(Err(Refusal::Contradicts)));
    let removes = |io: &Io| io.op == Op::Remove;
    host.hold(removes);
    let detach = host.order(Command::Detach {
        volume: disk,
        discard_dirty: true,
    });
    host.pass(200_000);
    assert_eq!(host.answer(detach), None);
    host.hold(none);
    host.pass(3_000);
    assert_eq!(host.answer(detach), Some(Ok(())));
}

#[test]
fn a_volume_that_goes_clears_the_guard_that_its_plan_has_set() {
    let (mut host, disk) = with_image();
    host.fill(disk, 0, 2);
    let looks = |io: &Io| io.op == Op::Sync && matches!(io.device, Device::Journal(_));
    host.hold(looks);
    host.destage(disk);
    host.pass(1_000);
    assert_eq!(guard(&host, disk), 1);
    let detach = host.order(Command::Detach {
        volume: disk,
        discard_dirty: true,
    });
    host.hold(none);
    host.pass(3_000);
    assert_eq!(host.answer(detach), Some(Ok(())));
    assert_eq!(guard(&host, disk), 0);
}

#[test]
fn a_guard_that_a_kill_has_left_is_cleared_at_the_next_start() {
    let (mut host, disk) = with_image();
    host.fill(disk, 0, 2);
    let writes = |io: &Io| io.op == Op::Sync && matches!(io.device, Device::Journal(_));
    host.hold(writes);
    host.destage(disk);
    host.pass(1_000);
    assert_eq!(guard(&host, disk), 1);
    assert_eq!(host.ledger(disk).progress, Progress::Prepare);
    let mut host = host.without_power();
    let again = attach(&mut host, Backwards::default());
    host.pass(1_000);
    assert_eq!(guard(&host, again), 0);
    assert_eq!(host.ledger(again).progress, Progress::Idle);
}

#[test]
fn a_size_without_room_and_a_policy_that_forgets_are_refused() {
    let (mut host, disk) = with_image();
    let switch = host.switch(disk, Policy::Ephemeral);
    assert_eq!(host.answer(switch), Some(Err(Refusal::Policy)));
    let resize = host.order(Command::Resize {
        volume: disk,
        size_bytes: BLOCKS * 8192,
    });
    assert_eq!(host.answer(resize), Some(Err(Refusal::OutOfRange)));
    assert_eq!(host.stat, STAT);
}

/// What the file says of the size of the disk, once that has changed.
fn size(host: &Host, id: VolumeId) -> u64 {
    let bytes = &host.disks.0[&Device::Origin(id)][8..16];
    u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}

/// A dirty volume that has half of what its image has room for, and the order to grow.
fn growing(holds: fn(&Io) -> bool) -> (Host, VolumeId, RequestId) {
    let mut host = Host::new();
    let disk = attach_of(&mut host, Backwards::default(), BLOCKS / 2);
    host.fill(disk, 0, 2);
    host.hold(holds);
    let order = host.order(Command::Resize {
        volume: disk,
        size_bytes: BLOCKS * 4096,
    });
    host.pass(1_000);
    (host, disk, order)
}

fn writes_size(io: &Io) -> bool {
    let file = matches!(io.device, Device::Origin(_));
    file && io.purpose == Purpose::Ledger && io.op == Op::Write
}

/// Fails when: a larger disk waits for what is dirty, its header says so before there is room, or
/// a destage begins in between.
#[test]
fn a_dirty_disk_grows_and_its_room_comes_before_its_size() {
    let (mut host, disk, order) = growing(applies);
    assert_eq!((host.answer(order), size(&host, disk)), (None, 0));
    assert_eq!(guard(&host, disk), 1, "a plan makes room");
    host.hold(writes_size);
    host.pass(1_000);
    assert_eq!(host.ledger(disk).progress, Progress::Idle);
    assert_eq!((guard(&host, disk), size(&host, disk)), (0, 0));
    let destage = host.destage(disk);
    host.pass(1_000);
    assert_eq!(
        host.answer(destage),
        None,
        "it would write the header as well"
    );
    assert_eq!(host.show(disk).size_bytes, BLOCKS * 2048);
    host.hold(|_| false);
    host.pass(2_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert_eq!(host.answer(destage), Some(Ok(())));
    assert_eq!(size(&host, disk), BLOCKS * 4096);
    assert_eq!(host.show(disk).size_bytes, BLOCKS * 4096);
    host.fill(disk, BLOCKS - 2, 2);
    end_destage(&mut host, disk);
    assert_ne!(view(&host, disk, BLOCKS - 1), vec![0; 4096]);
}

/// Fails when: what could not be written is told as done, is tried for ever though nothing came of
/// it, or the volume does not go on.
#[test]
fn a_disk_that_cannot_grow_is_as_it_was_and_its_destage_goes_on() {
    let journal = |io: &Io| matches!(io.device, Device::Journal(_)) && io.op == Op::Write;
    let (mut host, disk, order) = growing(journal);
    host.fail(|io| matches!(io.device, Device::Journal(_)).then_some(IoError::NoSpace));
    host.hold(|_| false);
    host.pass(120_000);
    assert_eq!(host.answer(order), Some(Err(Refusal::OriginFull)));
    assert_eq!(host.show(disk).size_bytes, BLOCKS * 2048);
    host.fail(|_| None);
    end_destage(&mut host, disk);

    // A header that may have been written is written until that is sure.
    let (mut host, disk, order) = growing(writes_size);
    host.fail(|io| writes_size(io).then_some(IoError::Failed));
    host.hold(|_| false);
    host.pass(30_000);
    assert_eq!((host.answer(order), size(&host, disk)), (None, 0));
    host.fail(|_| None);
    host.pass(30_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert_eq!(size(&host, disk), BLOCKS * 4096);
    end_destage(&mut host, disk);
}

/// Fails when: a disk that grows waits for the others of its group, which have no part in that.
#[test]
fn a_disk_of_a_group_grows_by_itself_and_the_group_goes_on() {
    let mut host = Host::new();
    let mut member = |name: &str| {
        let mut spec = spec(Policy::WriteBack, name);
        spec.size_bytes = BLOCKS * 2048;
        spec.group = String::from("vm");
        spec.tuning.group_members = 2;
        attach_spec(&mut host, Backwards::default(), spec)
    };
    let (disk, other) = (member("disk"), member("other"));
    assert_eq!(other, VolumeId(1));
    host.fill(other, 0, 2);
    host.hold(|io| io.device == Device::Journal(VolumeId(1)) && io.op == Op::Sync);
    let destage = host.destage(other);
    host.pass(1_000);
    let order = host.order(Command::Resize {
        volume: disk,
        size_bytes: BLOCKS * 4096,
    });
    host.pass(2_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert_eq!(host.answer(destage), None, "its journal is not synced");
    host.hold(|_| false);
    host.pass(5_000);
    assert_eq!(host.answer(destage), Some(Ok(())));
}

/// Fails when: a plan of its own follows one that was cut short in place, whose state the ledger
/// would forget.
#[test]
fn a_disk_grows_when_a_destage_in_place_that_was_cut_short_has_ended() {
    let mut host = Host::new();
    let disk = attach_of(&mut host, Backwards::default(), BLOCKS / 2);
    set_destage(&mut host, disk, DestageMode::InPlace);
    host.fill(disk, 0, 4);
    host.hold(|io| io.op == Op::Sync && matches!(io.device, Device::Journal(_)));
    host.destage(disk);
    host.pass(1_000);
    let mut host = host.killed();
    let again = attach_of(&mut host, Backwards::default(), BLOCKS / 2);
    host.pass(2_000);
    let cut = host.ledger(again).progress;
    assert!(matches!(cut, Progress::Cut(_)), "{cut:?}");
    let order = host.order(Command::Resize {
        volume: again,
        size_bytes: BLOCKS * 4096,
    });
    host.pass(3_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert_eq!(host.ledger(again).progress, Progress::Idle);
    assert_eq!(host.show(again).dirty_bytes, 0, "it has reached its end");
}

fn overwrite_first_byte(host: &mut Host, id: VolumeId, byte: u8) {
    let file = host.disks.0.get_mut(&Device::Origin(id));
    file.expect("it was written")[0] = byte;
}

/// Fails when: what another program has laid over the beginning of the file is written over, or
/// the volume does not go on when its image is restored.
#[test]
fn a_file_that_does_not_begin_with_its_header_any_more_is_told_of_and_left_alone() {
    let (mut host, disk) = with_image();
    host.fill(disk, 0, 2);
    host.hold(applies);
    let order = host.destage(disk);
    host.pass(1_000);
    overwrite_first_byte(&mut host, disk, 0x77);
    host.hold(none);
    host.pass(30_000);
    assert_eq!(host.answer(order), None);
    let (state, reason) = host.state(disk);
    assert_eq!(state, State::Stalled);
    assert!(reason.is_some_and(|it| it.contains("header")), "{reason:?}");
    assert_eq!(host.disks.0[&Device::Origin(disk)][0], 0x77);
    overwrite_first_byte(&mut host, disk, MAGIC);
    host.pass(30_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert_eq!(guard(&host, disk), 0);
    assert_eq!(host.state(disk).0, State::Clean);
}

/// Fails when: a journal of such an image that cannot be read is given up, and its cut is planned
/// once more over a half of it.
#[test]
fn a_pending_journal_that_is_damaged_waits_until_it_is_restored() {
    let (mut host, disk) = with_image();
    host.fill(disk, 0, 3);
    host.hold(applies);
    host.destage(disk);
    host.pass(1_000);
    let want = host.read(disk, 0, 3);
    let mut host = host.killed();
    let journal = Device::Journal(disk);
    let whole = host.disks.0[&journal].clone();
    let bytes = host.disks.0.get_mut(&journal).expect("it was written");
    let last = bytes.iter().rposition(|it| *it != 0).expect("not empty");
    bytes[last] ^= 1;
    let file = host.disks.0[&Device::Origin(disk)].clone();
    let again = attach(&mut host, Backwards::default());
    host.pass(100_000);
    let (state, reason) = host.state(again);
    assert_eq!(state, State::Stalled);
    assert!(
        reason.is_some_and(|it| it.contains("journal")),
        "{reason:?}"
    );
    assert!(file == host.disks.0[&Device::Origin(disk)], "nothing of it");
    assert_eq!(host.read(again, 0, 3), want, "guests go on from the log");
    host.disks.0.insert(journal, whole);
    host.pass(30_000);
    assert_eq!(guard(&host, again), 0);
    assert_eq!(host.read(again, 0, 3), want);
    let found: Vec<u8> = (0..3).flat_map(|it| view(&host, again, it)).collect();
    assert_eq!(Some(found), want);
}

pub(super) fn is_dead(io: &Io) -> Option<IoError> {
    (io.device == Device::Cache && io.op != Op::Read).then_some(IoError::Failed)
}

/// Fails when: a guest does not go on past the log, or what it has written before does not come
/// home, or its flush is never answered.
#[test]
fn guests_of_an_image_that_allocates_write_it_while_the_cache_device_is_dead() {
    let (mut host, disk) = with_image();
    host.fill(disk, 0, 2);
    host.fail(is_dead);
    let flush = host.flush(disk);
    host.pass(20_000);
    assert_eq!(
        host.answer(flush),
        Some(Ok(())),
        "all of it is at the image"
    );
    assert_eq!(host.show(disk).dirty_bytes, 0);
    assert_eq!(Some(view(&host, disk, 1)), host.read(disk, 1, 1));
    let write = host.write_sectors(disk, 64, 8);
    host.pass(1_000);
    assert_eq!(host.answer(write), Some(Ok(())));
    assert_eq!(Some(view(&host, disk, 8)), host.read(disk, 8, 1));
    host.fail(fine);
    host.pass(60_000);
    assert_eq!(host.show(disk).policy, Policy::WriteBack);
    host.fill(disk, 20, 1);
    assert_eq!(host.show(disk).dirty_bytes, 4096, "the log has it");
    end_destage(&mut host, disk);
    assert_eq!(Some(view(&host, disk, 20)), host.read(disk, 20, 1));
}

/// Fails when: the storage is asked for the bytes that it was given for a journal a moment ago.
#[test]
fn what_a_journal_of_this_life_was_made_of_is_not_read_back() {
    let (mut host, disk) = with_image();
    host.fill(disk, 0, 4);
    end_destage(&mut host, disk);
    host.fill(disk, 1, 3);
    host.write_sectors(disk, 200 * BLOCK_SECTORS + 1, 2);
    let want = host.read(disk, 0, 4);
    let reads_journal = |io: &Io| matches!(io.device, Device::Journal(_)) && io.op == Op::Read;
    host.asked.clear();
    end_destage(&mut host, disk);
    assert_eq!(host.count(reads_journal), 0);
    let found: Vec<u8> = (0..4).flat_map(|it| view(&host, disk, it)).collect();
    assert_eq!(Some(found), want);
    // One that a start finds is another log's.
    host.fill(disk, 1, 3);
    host.hold(applies);
    host.destage(disk);
    host.pass(1_000);
    let mut host = host.killed();
    let again = attach(&mut host, Backwards::default());
    host.pass(2_000);
    assert!(host.count(reads_journal) > 0);
    assert_eq!(guard(&host, again), 0);
}

/// What lies beside an image is asked as well, and its header for the guard.
#[test]
fn requests_to_the_journal_the_ledger_and_the_guard_are_counted() {
    let (mut host, disk) = with_image();
    host.fill(disk, 0, 4);
    end_destage(&mut host, disk);
    // Of what has a place the journal has it all.
    host.fill(disk, 1, 3);
    let before = host.show(disk).counters.origin.journal_requests;
    host.asked.clear();
    end_destage(&mut host, disk);
    let beside = host.count(|io| {
        let moves = matches!(io.op, Op::Read | Op::Write);
        let header = matches!(io.device, Device::Origin(_)) && io.bytes == 512 && io.offset == 0;
        moves && (header || matches!(io.device, Device::Journal(_) | Device::Ledger(_)))
    });
    let counted = host.show(disk).counters.origin.journal_requests - before;
    assert!(
        counted >= 8,
        "{counted}: the guard twice, each read and written; two and two beside"
    );
    assert_eq!(counted, beside as u64);
}

/// Fails when: a guard that was cleared, and whose sync has failed, counts as cleared with the next
/// good sync, though the device may never have got it.
#[test]
fn a_header_is_written_again_behind_a_sync_that_has_failed() {
    let header: fn(&Io) -> bool = |io| applies(io) && io.op == Op::Write && io.offset == 0;
    let (mut host, disk) = with_image();
    host.fill(disk, 0, 1);
    host.hold(header);
    host.destage(disk);
    host.pass(2_000);
    assert_eq!(guard(&host, disk), 1);
    host.fail(|io| {
        let sync = io.purpose == Purpose::JournalApply && io.op == Op::Sync;
        sync.then_some(IoError::Failed)
    });
    host.hold(none);
    assert_eq!(guard(&host, disk), 0);
    host.hold(header);
    host.fail(fine);
    host.pass(5_000);
    assert_eq!(host.ledger(disk).progress, Progress::Prepare);
    host.hold(none);
    host.pass(2_000);
    assert_eq!(host.ledger(disk).progress, Progress::Idle);
}

const BELOW_AT: u64 = DATA_AT + 64 * 4096;

fn copies(io: &Io) -> bool {
    io.purpose == Purpose::DestageRead
        && io.op == Op::Read
        && (BELOW_AT..BELOW_AT + 4096).contains(&io.offset)
}

/// Fails when: what is before and what is behind a write are two reads, or what is written is not
/// laid over the read that brings both, or what cannot be read there holds a destage.
#[test]
fn the_rest_of_what_is_written_is_copied_by_one_read() {
    let mut host = Host::new();
    let disk = attach(&mut host, Backwards::over(BELOW_AT));
    let file = host.disks.0.get_mut(&Device::Origin(disk)).expect("a file");
    file.resize((BELOW_AT + 4096) as usize, 0x77);
    host.count(copies);
    for (block, reads) in [(3, 1), (5, 3)] {
        let write = host.write_sectors(disk, block * BLOCK_SECTORS + 2, 2);
        assert_eq!(host.answer(write), Some(Ok(())));
        let written = host.read(disk, block, 1).expect("it is read")[1024..2048].to_vec();
        end_destage(&mut host, disk);
        assert_eq!(host.count(copies), reads);
        let found = view(&host, disk, block);
        assert_eq!(found[..1024], [0x77; 1024]);
        assert_eq!(found[1024..2048], written);
        assert_eq!(found[2048..], [0x77; 2048]);
        // Next time the middle cannot be read: all at once, and then two parts.
        host.fail(|io| {
            let bytes: u64 = io.slices.iter().map(|it| it.bytes).sum();
            (copies(io) && bytes == 4096).then_some(IoError::Failed)
        });
    }
    // Parts that cannot be read are waited for.
    host.fail(|io| copies(io).then_some(IoError::Failed));
    let write = host.write_sectors(disk, 7 * BLOCK_SECTORS + 2, 2);
    assert_eq!(host.answer(write), Some(Ok(())));
    let order = host.destage(disk);
    host.pass(2_000);
    assert_eq!(host.answer(order), None);
    host.fail(fine);
    host.pass(60_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert_eq!(view(&host, disk, 7)[2048..], [0x77; 2048]);
}
