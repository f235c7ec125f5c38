//! Volumes on an image that is not raw: a fake one, which maps its blocks backwards.
//!
//! Its first file has the odd blocks of the volume, in reverse order; the file below has the even
//! ones, in reverse order as well, and a table that says of each group of blocks whether the
//! volume has them at all. Always true: the table has to be read before a group can be found.

use super::{Host, STAT, fine, none, spec};
use crate::engine::{OpenError, Settled};
use crate::event::{Command, Device, Event, Io, IoError, Op, Refusal, Stat, VolumeSpec};
use crate::image::{Image, Named};
use crate::origin::{Codec, Extent, FileIndex, Lies, Map, Missing, Packed, Resolved};
use crate::types::{BLOCK_SECTORS, BufferId, Policy, Span, Uuid, VolumeId};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

const BLOCKS: u64 = 1024;
/// Each byte of the table is about so many blocks, each table about so many groups.
const GROUP: u64 = 16;
const GROUPS: u64 = 16;
const BASE: FileIndex = FileIndex(1);
/// Of a group: there, not there, compressed at the offset of its first block.
const THERE: u8 = 1;
const PACKED: u8 = 2;

/// Where the table of these groups lies in the file below.
fn table_at(group: u64) -> u64 {
    (BLOCKS + group / GROUPS) * 4096
}

struct Backwards {
    names: [Uuid; 2],
    tables: Vec<(u64, Vec<u8>)>,
    /// Tables that it keeps.
    room: usize,
    damaged: bool,
}

fn backwards() -> Backwards {
    Backwards {
        names: [Uuid([11; 16]), Uuid([12; 16])],
        tables: Vec::new(),
        room: 64,
        damaged: false,
    }
}

impl Map for Backwards {
    fn resolve(&mut self, span: Span) -> Resolved {
        if self.damaged {
            return Resolved::Damaged;
        }
        let mut extents = Vec::new();
        let mut sector = span.sector;
        while sector < span.end() {
            let block = sector / BLOCK_SECTORS;
            let offset = table_at(block / GROUP);
            let table = self.tables.iter().find(|(at, _)| *at == offset);
            let Some((_, table)) = table else {
                let missing = Missing {
                    file: BASE,
                    offset,
                    bytes: 4096,
                    wanted: 0,
                };
                return Resolved::Missing(extents, missing);
            };
            let phase = sector % BLOCK_SECTORS;
            let sectors = (BLOCK_SECTORS - phase).min(span.end() - sector);
            let at = (BLOCKS - 1 - block) * 4096 + phase * 512;
            let lies = match table[(block / GROUP % GROUPS) as usize] {
                THERE if block % 2 == 1 => Lies::At {
                    file: FileIndex::TOP,
                    offset: at,
                },
                THERE => Lies::At {
                    file: BASE,
                    offset: at,
                },
                PACKED => Lies::Packed {
                    file: BASE,
                    offset: 77,
                    packed: Packed {
                        codec: Codec::Deflate,
                        packed_bytes: 1000,
                        cluster_bytes: (GROUP * 4096) as u32,
                        skip: ((block % GROUP) * 4096 + phase * 512) as u32,
                    },
                },
                _ => Lies::Nowhere,
            };
            let extent = Extent {
                span: Span::new(sector, sectors),
                lies,
            };
            push(&mut extents, extent);
            sector += sectors;
        }
        Resolved::Ready(extents)
    }

    fn supply(&mut self, missing: Missing, bytes: &[u8]) {
        self.tables.push((missing.offset, bytes.to_vec()));
        let over = self.tables.len().saturating_sub(self.room);
        self.tables.drain(..over);
    }

    fn tables(&self) -> &[Uuid] {
        &self.names
    }

    fn bytes(&self) -> u64 {
        self.tables.len() as u64 * 4096
    }

    fn set_bytes_max(&mut self, _: u64) {}
}

/// Parts of one compressed cluster are one extent.
fn push(extents: &mut Vec<Extent>, extent: Extent) {
    if let Some(last) = extents.last_mut()
        && matches!(last.lies, Lies::Packed { .. })
        && matches!(extent.lies, Lies::Packed { .. })
    {
        last.span.sectors += extent.span.sectors;
        return;
    }
    extents.push(extent);
}

fn byte_of(block: u64) -> u8 {
    (block % 250) as u8 + 1
}

/// A volume on it, with what its groups are.
fn attach(host: &mut Host, spec: VolumeSpec, map: Backwards, groups: &[u8]) -> VolumeId {
    attach_settled(host, spec, map, groups, Settled::default())
}

fn attach_settled(
    host: &mut Host,
    spec: VolumeSpec,
    map: Backwards,
    groups: &[u8],
    settled: Settled,
) -> VolumeId {
    let id = host.core.place(&spec.name);
    for block in 0..BLOCKS {
        let device = match block % 2 {
            1 => Device::Origin(id),
            _ => Device::Base(id, BASE),
        };
        let disk = host.disks.0.entry(device).or_default();
        disk.resize((BLOCKS as usize + 64) * 4096, 0xdd);
        let at = (BLOCKS - 1 - block) as usize * 4096;
        disk[at..at + 4096].fill(byte_of(block));
    }
    let base = host.disks.0.entry(Device::Base(id, BASE)).or_default();
    for (group, kind) in (0..).zip(groups) {
        base[(table_at(group) + group % GROUPS) as usize] = *kind;
    }
    let map: Box<dyn Map> = Box::new(map);
    let attached = host.core.attach_mapped(id, spec, settled, Some(map));
    attached.expect("it fits");
    host.send(Event::Tick);
    id
}

fn on_base(policy: Policy, name: &str) -> VolumeSpec {
    VolumeSpec {
        size_bytes: BLOCKS * 4096 - 1024,
        base_layer: Some(Uuid([9; 16])),
        read_only: policy.is_direct(),
        ..spec(policy, name)
    }
}

fn clone_of_base() -> (Host, VolumeId) {
    let mut host = Host::new();
    let groups = [vec![THERE; 40], vec![0, PACKED], vec![THERE; 22]].concat();
    let id = attach(
        &mut host,
        on_base(Policy::Ephemeral, "clone"),
        backwards(),
        &groups,
    );
    (host, id)
}

fn reads_table(io: &Io) -> bool {
    matches!(io.device, Device::Base(..)) && io.op == Op::Read && io.offset >= BLOCKS * 4096
}

fn reads_data(io: &Io) -> bool {
    let origin = matches!(io.device, Device::Base(..) | Device::Origin(_));
    origin && io.op == Op::Read && !reads_table(io)
}

fn fails_tables(io: &Io) -> Option<IoError> {
    reads_table(io).then_some(IoError::Failed)
}

fn fails_data(io: &Io) -> Option<IoError> {
    reads_data(io).then_some(IoError::Failed)
}

/// Each of these blocks has its own byte.
fn is_right(read: Option<Vec<u8>>, first: u64) -> bool {
    let read = read.expect("it was read");
    let blocks = read.chunks(4096).zip(first..);
    blocks
        .into_iter()
        .all(|(bytes, block)| bytes.iter().all(|byte| *byte == byte_of(block)))
}

#[test]
fn an_image_that_maps_its_blocks_backwards_is_read_through_the_tier_and_past_it() {
    let (mut host, clone) = clone_of_base();
    assert!(is_right(host.read(clone, 3, 5), 3));
    host.count(none);
    assert!(is_right(host.read(clone, 3, 5), 3));
    let asks = |io: &Io| reads_data(io) || reads_table(io);
    assert_eq!(host.count(asks), 0, "it is in the tier");
    // Two groups with one table between them, and one that nothing has.
    assert!(is_right(host.read(clone, 250, 12), 250));
    let nothing = host.read(clone, 40 * GROUP, GROUP).expect("zeroes");
    assert_eq!(nothing, vec![0; GROUP as usize * 4096]);

    let mut host = Host::new();
    let spec = on_base(Policy::Uncached, "disk");
    let disk = attach(&mut host, spec, backwards(), &[THERE; 64]);
    assert!(is_right(host.read(disk, 9, 7), 9));
    assert!(is_right(host.read(disk, 9, 7), 9));
    assert_eq!(host.count(reads_data), 14, "past the tier, block by block");
}

#[test]
fn the_end_of_a_volume_within_a_block_reads_as_far_as_it_goes() {
    let (mut host, clone) = clone_of_base();
    let request = host.request();
    host.send(Event::Read {
        volume: clone,
        request,
        sector: (BLOCKS - 1) * BLOCK_SECTORS,
        sectors: BLOCK_SECTORS - 2,
        buffer: BufferId(0),
    });
    assert_eq!(host.answer(request), Some(Ok(())));
    assert_eq!(host.memory.buffer[0], byte_of(BLOCKS - 1));
}

#[test]
fn a_table_is_read_once_and_who_waits_for_it_holds_no_place_in_the_tier() {
    let (mut host, clone) = clone_of_base();
    host.hold(reads_table);
    let reads: Vec<_> = (0..40).map(|block| host.ask(clone, block, 1)).collect();
    assert_eq!(host.count(reads_table), 1);
    assert_eq!(host.count(reads_data), 0);
    assert_eq!(
        host.core.reading.fills_len(),
        1,
        "only the table is on its way"
    );
    host.hold(none);
    for read in reads {
        assert_eq!(host.answer(read), Some(Ok(())));
    }
}

#[test]
fn a_table_that_the_storage_does_not_give_is_waited_for() {
    let (mut host, clone) = clone_of_base();
    host.fail(fails_tables);
    let read = host.ask(clone, 5, 1);
    host.pass(5_000);
    assert_eq!(host.answer(read), None);
    host.fail(fine);
    host.pass(5_000);
    assert_eq!(host.answer(read), Some(Ok(())));
    assert!(is_right(host.read(clone, 5, 1), 5));
}

#[test]
fn one_part_of_a_fill_that_fails_is_asked_for_again_with_the_others() {
    let (mut host, clone) = clone_of_base();
    // The second of three.
    host.fail(|io| {
        let top = matches!(io.device, Device::Origin(_));
        (top && reads_data(io)).then_some(IoError::Failed)
    });
    let read = host.ask(clone, 8, 3);
    host.pass(1_000);
    assert_eq!(host.answer(read), None);
    host.fail(fine);
    host.pass(1_000);
    assert_eq!(host.answer(read), Some(Ok(())));
    assert!(is_right(host.read(clone, 8, 3), 8));
}

/// Fails when: a read that is longer than the tables at hand begins anew with each of them.
#[test]
fn a_long_read_goes_on_with_room_for_one_table() {
    for policy in [Policy::Ephemeral, Policy::Uncached] {
        let mut host = Host::new();
        let map = Backwards {
            room: 1,
            ..backwards()
        };
        let disk = attach(&mut host, on_base(policy, "disk"), map, &[THERE; 64]);
        // Over the border of two tables, which is no border of blocks that are read together.
        assert!(is_right(host.read(disk, 230, 60), 230));
        host.count(none);
        assert!(is_right(host.read(disk, 500, 40), 500));
        assert!(host.count(reads_table) <= 2);
    }
}

#[test]
fn a_map_that_never_has_enough_ends_the_read_with_an_error() {
    let mut host = Host::new();
    let map = Backwards {
        room: 0,
        ..backwards()
    };
    let clone = attach(
        &mut host,
        on_base(Policy::Ephemeral, "clone"),
        map,
        &[THERE; 64],
    );
    let read = host.ask(clone, 1, 1);
    assert_eq!(host.answer(read), Some(Err(Refusal::Io)));
    assert_eq!(host.show(clone).counters.origin.errors, 1);
}

#[test]
fn a_damaged_image_is_an_error_to_its_reader_only() {
    let (mut host, clone) = clone_of_base();
    let map = Backwards {
        damaged: true,
        ..backwards()
    };
    let spec = VolumeSpec {
        base_layer: Some(Uuid([8; 16])),
        ..on_base(Policy::Ephemeral, "other")
    };
    let other = attach(&mut host, spec, map, &[]);
    let read = host.ask(other, 1, 1);
    assert_eq!(host.answer(read), Some(Err(Refusal::Io)));
    assert!(is_right(host.read(clone, 1, 1), 1));
}

#[test]
fn a_compressed_cluster_is_unpacked_once_and_all_of_it_is_kept() {
    let (mut host, clone) = clone_of_base();
    let first = 41 * GROUP;
    let read = host.ask(clone, first + 3, 2);
    assert_eq!(host.answer(read), Some(Ok(())));
    let unpacks = |io: &&Io| matches!(io.op, Op::Unpack(_));
    let asked = core::mem::take(&mut host.asked);
    let asked: Vec<&Io> = asked.iter().filter(unpacks).collect();
    let [io] = asked[..] else {
        panic!("one request: {asked:?}");
    };
    let Op::Unpack(packed) = io.op else {
        unreachable!("just seen");
    };
    assert_eq!((packed.skip, io.bytes), (0, GROUP * 4096));
    let rest = host.ask(clone, first, GROUP);
    assert_eq!(host.answer(rest), Some(Ok(())));
    assert_eq!(host.count(|io| matches!(io.op, Op::Unpack(_))), 0);
}

/// It would be so for ever, and the guest would wait as long.
#[test]
fn a_compressed_cluster_that_cannot_be_unpacked_ends_the_reads_of_it_with_an_error() {
    let (mut host, first) = clone_of_base();
    let spec = on_base(Policy::Ephemeral, "second");
    let second = attach(&mut host, spec, backwards(), &[THERE; 64]);
    let torn = |io: &Io| matches!(io.op, Op::Unpack(_)).then_some(IoError::Damaged);
    host.fail(torn);
    let reads = [first, second].map(|disk| host.ask(disk, 41 * GROUP, 2));
    host.pass(1_000);
    for read in reads {
        assert_eq!(host.answer(read), Some(Err(Refusal::Io)));
    }
    assert_eq!(
        host.count(|io| matches!(io.op, Op::Unpack(_))),
        2,
        "once each"
    );
    let whole = host.ask(first, 0, 1);
    host.pass(1_000);
    assert_eq!(host.answer(whole), Some(Ok(())), "the rest is read");
    // What a storage does not give for a while is waited for.
    let away = |io: &Io| matches!(io.op, Op::Unpack(_)).then_some(IoError::Failed);
    host.fail(away);
    let read = host.ask(first, 41 * GROUP, 2);
    host.pass(1_000);
    assert_eq!(host.answer(read), None);
    host.fail(fine);
    host.pass(1_000);
    assert_eq!(host.answer(read), Some(Ok(())));
}

#[test]
fn a_volume_that_leaves_does_not_fail_the_reads_of_others_on_its_base() {
    for fails in [fails_tables as fn(&Io) -> Option<IoError>, fails_data] {
        let (mut host, first) = clone_of_base();
        let spec = on_base(Policy::Ephemeral, "second");
        let second = attach(&mut host, spec, backwards(), &[THERE; 64]);
        host.fail(fails);
        let (asks, joins) = (host.ask(first, 20, 1), host.ask(second, 20, 1));
        host.pass(1_000);
        assert_eq!((host.answer(asks), host.answer(joins)), (None, None));
        host.order(Command::Detach {
            volume: first,
            discard_dirty: true,
        });
        host.pass(1_000);
        assert_eq!(host.answer(asks), Some(Err(Refusal::Io)));
        assert_eq!(host.answer(joins), None, "it waits for the storage itself");
        host.fail(fine);
        host.pass(1_000);
        assert_eq!(host.answer(joins), Some(Ok(())));
        assert!(is_right(host.read(second, 20, 1), 20));
    }
}

#[test]
fn nothing_that_would_be_written_is_attached_to_such_an_image() {
    let mut host = Host::new();
    for (policy, commit) in [(Policy::WriteBack, false), (Policy::Ephemeral, true)] {
        let spec = VolumeSpec {
            commit,
            read_only: false,
            ..on_base(policy, "disk")
        };
        let id = host.core.place(&spec.name);
        let map: Box<dyn Map> = Box::new(backwards());
        let attached = host
            .core
            .attach_mapped(id, spec, Settled::default(), Some(map));
        let why = attached.expect_err("it would be written");
        assert!(matches!(why, OpenError::Refused(_)), "{why}");
    }
}

#[test]
fn a_mapped_image_that_was_written_by_another_program_is_not_read_any_more() {
    let image = |mtime_ns| Image {
        device: 1,
        inode: 12,
        birth_ns: 0,
        size_bytes: 4096,
        mtime_ns,
        lasts: true,
        below: 0,
        marked: crate::image::Marked::Unknown,
    };
    let seen = |mtime_ns| Stat {
        image: Some(image(mtime_ns)),
        named: Named::To(image(mtime_ns)),
        ..STAT
    };
    let mut host = Host::new();
    host.stat = seen(1);
    let settled = Settled {
        image: Some(image(1)),
        ..Settled::default()
    };
    let spec = on_base(Policy::Ephemeral, "clone");
    let clone = attach_settled(&mut host, spec, backwards(), &[THERE; 64], settled);
    assert!(is_right(host.read(clone, 1, 1), 1));
    let look = Command::Look { volume: clone };
    host.stat = seen(2);
    let changed = host.order(look.clone());
    assert_eq!(host.answer(changed), Some(Err(Refusal::Held)));
    let read = host.ask(clone, 1, 1);
    assert_eq!(host.answer(read), None);
    host.stat = seen(1);
    let back = host.order(look);
    assert_eq!(host.answer(back), Some(Ok(())));
    assert_eq!(host.answer(read), Some(Ok(())));
}
