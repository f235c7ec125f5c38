//! Tables of memory, their translation, the log of dirty pages and what a front end takes away.

use super::super::dirty::{Dirty, Log, PAGE_BYTES, UsedLog};
use super::super::guest_memory::{GuestMemory, Place, REGIONS_MAX, TableError};
use super::super::mapping::MappingError;
use super::super::region::{Region, RegionError};
use super::{beside_others, memory_file};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use vring::inflight::Layout;
use vring::memory::{Address, Memory, Outside};

const PAGE: u64 = 4096;

fn place(guest: u64, user: u64, bytes: u64, offset: u64) -> Place {
    Place {
        guest,
        bytes,
        user,
        offset,
    }
}

fn table(places: &[(Place, File)]) -> Result<GuestMemory, TableError> {
    GuestMemory::new(places, Arc::default())
}

/// Two regions that adjoin in the guest and not in the front end, and one apart.
fn joined() -> (GuestMemory, File) {
    let file = memory_file(4 * PAGE);
    let clone = || file.try_clone().unwrap();
    let places = [
        (place(3 * PAGE, 50 * PAGE, PAGE, 0), clone()),
        (place(2 * PAGE, 90 * PAGE, PAGE, 3 * PAGE), clone()),
        (place(8 * PAGE, 10 * PAGE, PAGE, PAGE), clone()),
    ];
    (table(&places).unwrap(), file)
}

#[test]
fn a_range_over_regions_that_adjoin_is_one_range() {
    let _guard = beside_others();
    let (memory, file) = joined();
    let at = Address(3 * PAGE - 5);
    memory.write(at, b"0123456789").unwrap();
    let mut back = [0; 10];
    memory.read(at, &mut back).unwrap();
    assert_eq!(&back, b"0123456789");
    let mut tail = [0; 5];
    file.read_exact_at(&mut tail, 4 * PAGE - 5).unwrap();
    assert_eq!(&tail, b"01234");
    file.read_exact_at(&mut tail, 0).unwrap();
    assert_eq!(&tail, b"56789");
    let pieces: Vec<_> = memory.pieces(at, 10).unwrap().collect();
    assert_eq!(
        pieces.iter().map(|piece| piece.1).collect::<Vec<_>>(),
        [5, 5]
    );
    memory.check(Address(2 * PAGE), 2 * PAGE).unwrap();
}

#[test]
fn every_kind_of_access_outside_is_an_error() {
    let _guard = beside_others();
    let (memory, _file) = joined();
    let outside = [
        (0, 1),
        (2 * PAGE - 1, 1),
        (2 * PAGE - 1, 2),
        (4 * PAGE - 1, 2),
        (2 * PAGE, 2 * PAGE + 1),
        (2 * PAGE, 7 * PAGE),
        (9 * PAGE, 1),
        (u64::MAX, 1),
        (u64::MAX, u64::MAX),
        (2 * PAGE, u64::MAX),
    ];
    for (at, bytes) in outside {
        let outside = Outside { at, bytes };
        assert_eq!(memory.check(Address(at), bytes), Err(outside));
        assert_eq!(memory.pieces(Address(at), bytes).err(), Some(outside));
    }
    let mut into = [0; 2];
    assert!(memory.read(Address(4 * PAGE - 1), &mut into).is_err());
    assert!(memory.write(Address(4 * PAGE - 1), &into).is_err());
    assert!(memory.load_u16(Address(4 * PAGE)).is_err());
    assert!(memory.store_u8(Address(4 * PAGE), 1).is_err());
    assert!(memory.store_u16(Address(5 * PAGE), 1).is_err());
    assert!(memory.store_u64(Address(0), 1).is_err());
    // Numbers are asked for at multiples of their size; no guest can make us ask otherwise.
    assert!(memory.load_u16(Address(2 * PAGE + 1)).is_err());
    memory.check(Address(0), 0).unwrap();
}

#[test]
fn a_write_that_does_not_fit_writes_nothing() {
    let _guard = beside_others();
    let (memory, file) = joined();
    let at = Address(4 * PAGE - 4);
    assert!(memory.write(at, &[1; 8]).is_err());
    let mut tail = [9; 4];
    file.read_exact_at(&mut tail, PAGE - 4).unwrap();
    assert_eq!(tail, [0; 4]);
}

#[test]
fn numbers_are_little_endian_and_bytes_land_at_every_offset() {
    let _guard = beside_others();
    let (memory, _file) = joined();
    let base = 8 * PAGE;
    memory
        .store_u64(Address(base), 0x0807_0605_0403_0201)
        .unwrap();
    memory.store_u16(Address(base + 8), 0x0a09).unwrap();
    memory.store_u8(Address(base + 10), 11).unwrap();
    assert_eq!(memory.load_u16(Address(base + 2)).unwrap(), 0x0403);
    let mut bytes = [0; 11];
    memory.read(Address(base), &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    for start in 0..20 {
        for count in 0..30 {
            let wrote: Vec<u8> = (0..count).map(|at| at as u8 ^ 0x5a).collect();
            memory.write(Address(base + 99), &[0xff; 64]).unwrap();
            memory.write(Address(base + 100 + start), &wrote).unwrap();
            let mut back = vec![0; count + 2];
            memory.read(Address(base + 99 + start), &mut back).unwrap();
            assert_eq!(back[1..=count], wrote);
            assert_eq!((back[0], back[count + 1]), (0xff, 0xff));
        }
    }
}

#[test]
fn addresses_of_the_front_end_become_those_of_the_guest() {
    let _guard = beside_others();
    let (memory, _file) = joined();
    let to = |user| memory.translate(user).map(|at| at.0);
    assert_eq!(to(50 * PAGE), Some(3 * PAGE));
    assert_eq!(to(51 * PAGE - 1), Some(4 * PAGE - 1));
    assert_eq!(to(51 * PAGE), None);
    assert_eq!(to(90 * PAGE + 8), Some(2 * PAGE + 8));
    assert_eq!((to(0), to(u64::MAX)), (None, None));
}

#[test]
fn tables_that_cannot_be_are_refused() {
    let _guard = beside_others();
    let file = memory_file(4 * PAGE);
    let one = |it: Place| table(&[(it, file.try_clone().unwrap())]).map(|_| ());
    let mapping = |it| match one(it) {
        Err(TableError::Mapping(error)) => error,
        other => panic!("{other:?}"),
    };
    one(place(0, 0, 4 * PAGE, 0)).unwrap();
    let last = u64::MAX - 7;
    assert!(matches!(
        one(place(last, 0, 8, 0)),
        Ok(()) | Err(TableError::Overflow { .. })
    ));
    assert!(matches!(
        one(place(last, 0, 16, 0)),
        Err(TableError::Overflow { .. })
    ));
    assert!(matches!(
        one(place(0, last, 16, 0)),
        Err(TableError::Overflow { .. })
    ));
    for odd in [place(4, 0, 8, 0), place(0, 4, 8, 0), place(0, 0, 12, 0)] {
        assert!(matches!(one(odd), Err(TableError::Alignment { .. })));
    }
    assert!(matches!(mapping(place(0, 0, 0, 0)), MappingError::Empty));
    assert!(matches!(
        mapping(place(0, 0, 8, 4)),
        MappingError::Alignment(4)
    ));
    let behind = [
        place(0, 0, 5 * PAGE, 0),
        place(0, 0, 4 * PAGE, 8),
        place(0, 0, 8, u64::MAX - 7),
        place(0, 0, 8, 1 << 40),
    ];
    for it in behind {
        assert!(matches!(mapping(it), MappingError::FileTooSmall { .. }));
    }
    let clone = || file.try_clone().unwrap();
    let overlap = [
        (place(0, 0, PAGE, 0), clone()),
        (place(PAGE - 8, PAGE, 16, 0), clone()),
    ];
    assert!(matches!(table(&overlap), Err(TableError::Overlap(0, _))));
    let many = |count: usize| {
        let at = |n: usize| place(n as u64 * 16, n as u64 * 16, 8, 0);
        let places: Vec<_> = (0..count).map(|n| (at(n), clone())).collect();
        table(&places).map(|_| ())
    };
    many(REGIONS_MAX).unwrap();
    assert!(matches!(many(REGIONS_MAX + 1), Err(TableError::TooMany(_))));
}

#[test]
fn only_memory_files_are_mapped() {
    let _guard = beside_others();
    // As large as a page by its own word, and no memory.
    let other = File::open("/sys/devices/system/cpu/online").unwrap();
    let refused = table(&[(place(0, 0, 8, 0), other)]);
    let is_other =
        |error: &TableError| matches!(error, TableError::Mapping(MappingError::NotMemory));
    assert!(refused.as_ref().is_err_and(is_other), "{refused:?}");
    let device = File::options().read(true).write(true).open("/dev/zero");
    let refused = table(&[(place(0, 0, 8, 0), device.unwrap())]);
    assert!(refused.is_err());
}

#[test]
fn a_changed_table_leaves_the_old_one_as_it_was() {
    let _guard = beside_others();
    let (memory, file) = joined();
    let gone = place(8 * PAGE, 10 * PAGE, PAGE, 0);
    memory.store_u8(Address(8 * PAGE), 7).unwrap();
    let less = memory.without(gone).unwrap();
    assert!(less.check(Address(8 * PAGE), 1).is_err());
    assert!(matches!(
        less.without(gone),
        Err(TableError::NotThere { .. })
    ));
    let more = less.with(place(20 * PAGE, 0, PAGE, PAGE), &file).unwrap();
    let mut byte = [0];
    more.read(Address(20 * PAGE), &mut byte).unwrap();
    assert_eq!(byte, [7]);
    memory.read(Address(8 * PAGE), &mut byte).unwrap();
    assert_eq!(byte, [7]);
    assert!(matches!(
        more.with(place(20 * PAGE + 8, PAGE, 8, 0), &file),
        Err(TableError::Overlap(..))
    ));
}

/// Numbers of the pages that are set in a log, which are taken off it.
fn take(log: &File) -> Vec<u64> {
    let mut bits = vec![0; log.metadata().unwrap().len() as usize];
    log.read_exact_at(&mut bits, 0).unwrap();
    log.write_all_at(&vec![0; bits.len()], 0).unwrap();
    let set = |page: &u64| bits[(page / 8) as usize] >> (page % 8) & 1 == 1;
    (0..bits.len() as u64 * 8).filter(set).collect()
}

#[test]
fn every_store_and_every_mark_is_noted_and_nothing_else() {
    let _guard = beside_others();
    let (memory, bits) = (joined(), memory_file(8));
    let dirty = Arc::new(Dirty::default());
    let places = [(place(2 * PAGE, 0, 4 * PAGE, 0), memory.1)];
    let memory = GuestMemory::new(&places, dirty.clone()).unwrap();
    dirty.set_log(Some(Log::new(&bits, 0, 8).unwrap()));
    memory.store_u8(Address(2 * PAGE), 1).unwrap();
    assert_eq!(take(&bits), [0u64; 0], "not agreed");
    dirty.set_on(true);
    let mut byte = [0];
    memory.read(Address(2 * PAGE), &mut byte).unwrap();
    memory.load_u16(Address(2 * PAGE)).unwrap();
    assert_eq!(take(&bits), [0u64; 0], "nothing was written");
    memory.store_u8(Address(2 * PAGE), 1).unwrap();
    assert_eq!(take(&bits), [2]);
    memory.store_u16(Address(3 * PAGE), 1).unwrap();
    memory.store_u64(Address(5 * PAGE), 1).unwrap();
    assert_eq!(take(&bits), [3, 5]);
    memory.write(Address(3 * PAGE - 1), &[1; 2]).unwrap();
    assert_eq!(take(&bits), [2, 3]);
    memory.mark(Address(2 * PAGE), 4 * PAGE);
    assert_eq!(take(&bits), [2, 3, 4, 5]);
    memory.mark(Address(2 * PAGE), 0);
    assert_eq!(take(&bits), [0u64; 0]);
    dirty.set_used(vec![UsedLog {
        used: Address(3 * PAGE),
        bytes: 6,
        at: 40 * PAGE,
    }]);
    memory.store_u16(Address(3 * PAGE + 4), 1).unwrap();
    assert_eq!(take(&bits), [3, 40]);
    memory.store_u16(Address(3 * PAGE + 6), 1).unwrap();
    assert_eq!(take(&bits), [3]);
    dirty.set_on(false);
    memory.store_u8(Address(2 * PAGE), 1).unwrap();
    assert_eq!(take(&bits), [0u64; 0]);
}

#[test]
fn a_log_is_never_written_behind_its_end() {
    let _guard = beside_others();
    let bits = memory_file(PAGE);
    // Eight bytes in the middle: a bit on either side would be another owner's.
    let log = Log::new(&bits, 8, 8).unwrap();
    assert!(log.reaches(64 * PAGE_BYTES) && !log.reaches(64 * PAGE_BYTES + 1));
    let dirty = Dirty::default();
    dirty.set_log(Some(log));
    dirty.mark(Address(0), u64::MAX);
    dirty.mark(Address(64 * PAGE), PAGE);
    dirty.mark(Address(u64::MAX), u64::MAX);
    assert_eq!(take(&bits), (64..128).collect::<Vec<_>>());
    dirty.set_used(vec![UsedLog {
        used: Address(0),
        bytes: u64::MAX,
        at: u64::MAX,
    }]);
    dirty.mark(Address(5), 1);
    assert_eq!(take(&bits), [64]);
}

#[test]
fn memory_that_the_front_end_takes_away_is_outside_and_we_live() {
    let _guard = beside_others();
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(4 * PAGE).unwrap();
    let kept = memory_file(PAGE);
    let places = [
        (place(0, 0, 4 * PAGE, 0), file.try_clone().unwrap()),
        (place(4 * PAGE, 4 * PAGE, PAGE, 0), kept),
    ];
    let memory = table(&places).unwrap();
    memory.store_u8(Address(3 * PAGE), 1).unwrap();
    let at = memory
        .pieces(Address(3 * PAGE), 8)
        .unwrap()
        .next()
        .unwrap()
        .0;
    file.set_len(PAGE).unwrap();
    // The size is checked before each use by nobody, and would be of no use: this is the access
    // that meets it.
    let _ = memory.store_u8(Address(3 * PAGE), 2);
    let lost = Outside {
        at: 3 * PAGE,
        bytes: 2,
    };
    assert_eq!(memory.load_u16(Address(3 * PAGE)), Err(lost));
    assert!(
        memory.check(Address(0), 1).is_err(),
        "all of the mapping is lost"
    );
    assert!(memory.write(Address(4 * PAGE - 4), &[1; 8]).is_err());
    memory.store_u8(Address(4 * PAGE), 3).unwrap();
    assert!(!at.is_null());
    // A second table over the same file starts anew, with what the file has.
    let again = [(place(0, 0, PAGE, 0), file)];
    table(&again).unwrap().store_u8(Address(0), 1).unwrap();
}

#[test]
fn a_log_that_is_taken_away_is_no_log() {
    let _guard = beside_others();
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(PAGE).unwrap();
    let dirty = Dirty::default();
    dirty.set_log(Some(Log::new(&file, 0, PAGE).unwrap()));
    file.set_len(0).unwrap();
    dirty.mark(Address(0), 1 << 30);
    dirty.mark(Address(0), 1);
}

#[test]
fn a_region_is_as_large_as_its_queues_and_keeps_its_size() {
    let _guard = beside_others();
    let layout = Layout {
        queues: 2,
        size: 64,
    };
    let (region, file) = Region::create(layout, 2).unwrap();
    assert_eq!(file.metadata().unwrap().len(), Region::bytes(layout));
    let number = region.number();
    assert_ne!(number, 0);
    assert!(
        file.set_len(8).is_err() && file.set_len(1 << 20).is_err(),
        "sealed"
    );
    region.store_u64(Address(16), 5).unwrap();
    region.write(Address(24), b"kept").unwrap();
    drop(region);
    let whole = Region::open(layout, 2, &file, 0, Region::bytes(layout)).unwrap();
    assert_eq!(whole.number(), number);
    // As another program would have made it: without a number, and good for the rest.
    let region = Region::open(layout, 2, &file, 0, layout.bytes()).unwrap();
    assert_eq!(region.number(), 0);
    let mut back = [0; 12];
    region.read(Address(16), &mut back).unwrap();
    assert_eq!(&back, b"\x05\0\0\0\0\0\0\0kept");
    let end = Address(layout.bytes());
    assert!(region.check(Address(0), layout.bytes() + 1).is_err());
    assert!(region.store_u8(end, 0).is_err());
    assert!(region.load_u16(Address(u64::MAX)).is_err());
    assert!(region.store_u16(Address(1), 0).is_err());
}

#[test]
fn regions_that_do_not_fit_are_refused() {
    let _guard = beside_others();
    let file = memory_file(1 << 16);
    let open = |queues, size, offset, bytes| {
        let layout = Layout { queues, size };
        Region::open(layout, 4, &file, offset, bytes).map(|_| ())
    };
    open(4, 64, 0, 1 << 16).unwrap();
    open(4, 64, 8, (1 << 16) - 8).unwrap();
    for (queues, size) in [(0, 64), (5, 64), (1, 0), (1, 65), (1, 65535)] {
        let refused = open(queues, size, 0, 1 << 16);
        assert!(
            matches!(refused, Err(RegionError::Layout { .. })),
            "{refused:?}"
        );
    }
    assert!(matches!(
        open(4, 64, 0, 4096),
        Err(RegionError::Short { .. })
    ));
    assert!(matches!(
        open(1, 32768, 0, 1 << 20),
        Err(RegionError::Mapping(_))
    ));
    assert!(matches!(
        open(4, 64, 1 << 16, 1 << 16),
        Err(RegionError::Mapping(_))
    ));
    assert!(matches!(
        open(4, 64, u64::MAX - 7, u64::MAX),
        Err(RegionError::Mapping(_))
    ));
    assert!(matches!(
        open(4, 64, 4, 1 << 15),
        Err(RegionError::Mapping(_))
    ));
}
