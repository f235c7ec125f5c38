//! What requests of guests become, the rule for each kind, and the paper's table 1.

use super::*;
use crate::rng::Rng;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

fn stacked(table_ram_bytes: u64, in_flight: usize) -> Stacked {
    Stacked::new(Shape {
        disk_bytes: 4 * GIB,
        table_ram_bytes,
        in_flight,
    })
}

fn write(disk: &mut Stacked, at: u64, bytes: u64) -> Vec<Request> {
    let mut out = Vec::new();
    disk.write(at / SECTOR_BYTES, bytes / SECTOR_BYTES, &mut out);
    out
}

fn read(disk: &mut Stacked, at: u64, bytes: u64) -> Vec<Request> {
    let mut out = Vec::new();
    disk.read(at / SECTOR_BYTES, bytes / SECTOR_BYTES, &mut out);
    out
}

fn flush(disk: &mut Stacked) -> Vec<Request> {
    let mut out = Vec::new();
    disk.flush(&mut out);
    out
}

fn of(requests: &[Request], what: What, write: bool) -> Vec<(usize, u64)> {
    let those = requests.iter().filter(|it| it.what == what);
    let those = those.filter(|it| it.write == write);
    those.map(|it| (it.file, it.bytes)).collect()
}

#[test]
fn a_small_write_to_a_new_cluster_reads_the_rest_of_it_and_writes_all_of_it() {
    let mut disk = stacked(MIB, 0);
    let out = write(&mut disk, 8 * KIB, 4 * KIB);
    assert_eq!(of(&out, What::Copy, false), [(0, 8 * KIB), (0, 52 * KIB)]);
    assert_eq!(of(&out, What::Data, true), [(1, 64 * KIB)]);
    let out = write(&mut disk, 20 * KIB, 4 * KIB);
    let place = 5 * CLUSTER_BYTES;
    assert_eq!(out.len(), 1, "it has its place: {out:?}");
    assert_eq!((out[0].at, out[0].bytes), (place + 20 * KIB, 4 * KIB));
    let counts = disk.counts();
    assert_eq!((counts.writes, counts.allocating_writes), (2, 1));
    assert_eq!(counts.copied_bytes, 60 * KIB);
    // Three for the first, where one found no table, and one for the second.
    assert_eq!((counts.lookups, counts.misses), (4, 1));
}

#[test]
fn a_write_over_two_new_clusters_is_one_request_with_what_is_before_and_behind() {
    let mut disk = stacked(MIB, 0);
    let out = write(&mut disk, 32 * KIB, 64 * KIB);
    assert_eq!(of(&out, What::Copy, false), [(0, 32 * KIB), (0, 32 * KIB)]);
    assert_eq!(of(&out, What::Data, true), [(1, 128 * KIB)]);
    assert_eq!(disk.counts().lookups, 3);
}

#[test]
fn a_read_goes_to_the_file_that_has_the_cluster_and_looks_up_each_file_above_it() {
    let mut disk = stacked(MIB, 0);
    write(&mut disk, 64 * KIB, 64 * KIB);
    let before = disk.counts().lookups;
    let out = read(&mut disk, 60 * KIB, 8 * KIB);
    assert_eq!(of(&out, What::Data, false), [(0, 4 * KIB), (1, 4 * KIB)]);
    assert_eq!(disk.counts().lookups - before, 2, "one for each piece");
    disk.snapshot(&mut Vec::new());
    let before = disk.counts().lookups;
    let out = read(&mut disk, 64 * KIB, 4 * KIB);
    assert_eq!(of(&out, What::Data, false), [(1, 4 * KIB)]);
    assert_eq!(disk.counts().lookups - before, 2);
    let out = write(&mut disk, 64 * KIB, 4 * KIB);
    assert_eq!(of(&out, What::Copy, false), [(1, 60 * KIB)]);
    assert_eq!(of(&out, What::Data, true), [(2, 64 * KIB)]);
    assert_eq!(disk.files(), 3);
}

#[test]
fn a_flush_writes_every_dirty_table_whole_and_the_next_one_nothing() {
    let mut disk = stacked(MIB, 0);
    for table in 0..3 {
        write(&mut disk, table * TABLE_SPAN, 64 * KIB);
    }
    write(&mut disk, 64 * KIB, 64 * KIB);
    let tables = of(&flush(&mut disk), What::Table, true);
    // The last table was changed behind its own making; of the others, the first again.
    assert_eq!(tables, [(1, 64 * KIB); 3], "refcounts and two tables");
    assert_eq!(flush(&mut disk), []);
}

#[test]
fn a_dirty_table_that_leaves_is_written_and_read_whole_when_it_comes_back() {
    let mut disk = stacked(CLUSTER_BYTES, 0);
    write(&mut disk, 0, 64 * KIB);
    write(&mut disk, TABLE_SPAN, 64 * KIB);
    flush(&mut disk);
    let out = write(&mut disk, 64 * KIB, 64 * KIB);
    assert_eq!(of(&out, What::Table, false), [(1, 64 * KIB)]);
    assert_eq!(of(&out, What::Table, true), [], "the other one was clean");
    let out = read(&mut disk, TABLE_SPAN, 64 * KIB);
    let tables: Vec<_> = out.iter().map(|it| (it.what, it.write)).collect();
    let expected = [
        (What::Table, true),
        (What::Table, false),
        (What::Data, false),
    ];
    assert_eq!(tables, expected);
}

#[test]
fn a_write_under_way_finds_its_table_gone_when_others_came_meanwhile() {
    let misses = |in_flight| {
        let mut disk = stacked(2 * CLUSTER_BYTES, in_flight);
        for table in 0..8 {
            write(&mut disk, table * TABLE_SPAN, 64 * KIB);
        }
        let before = disk.counts().misses;
        for table in 0..8 {
            write(&mut disk, table * TABLE_SPAN + 64 * KIB, 64 * KIB);
        }
        disk.counts().misses - before
    };
    assert_eq!(misses(0), 8);
    assert_eq!(misses(4), 16);
}

#[test]
fn a_new_refcount_block_brings_all_dirty_tables_to_the_file() {
    let mut disk = stacked(MIB, 0);
    let mut written = 0;
    for cluster in 0..u64::from(BLOCK_ENTRIES) {
        let out = write(&mut disk, cluster * CLUSTER_BYTES, 64 * KIB);
        // Not what the making of a table brings.
        if !cluster.is_multiple_of(TABLE_ENTRIES) {
            written += of(&out, What::Table, true).len();
        }
    }
    assert_eq!(
        written, 2,
        "the one dirty table, and the block that is full"
    );
}

/// Memory in MiB, then the hit ratio in per cent, and reads and writes of tables in GiB, for a
/// million writes of 64 KiB: as the paper prints them.
const TABLE_1: [(u64, f64, f64, f64); 5] = [
    (1, 33.6, 119.64, 61.15),
    (32, 74.7, 45.66, 46.61),
    (64, 83.1, 30.39, 31.95),
    (96, 91.6, 15.13, 18.08),
    (128, 100.0, 0.0, 4.95),
];

#[test]
fn the_tables_of_a_million_writes_are_those_of_the_paper_within_five_per_cent() {
    let near = |found: f64, printed: f64| (found - printed).abs() <= printed * 0.05 + 0.001;
    for (ram, hits, reads, writes) in TABLE_1 {
        let shape = Shape {
            disk_bytes: 1024 * GIB,
            table_ram_bytes: ram * MIB,
            in_flight: 32,
        };
        let (mut disk, mut rng, mut out) = (Stacked::new(shape), Rng::new(1), Vec::new());
        for _ in 0..1_000_000 {
            disk.write(rng.scaled(1 << 24) * 128, 128, &mut out);
            out.clear();
        }
        disk.flush(&mut out);
        let counts = disk.counts();
        let gib = |bytes: u64| bytes as f64 / GIB as f64;
        let found = (
            100.0 * (1.0 - counts.misses as f64 / counts.lookups as f64),
            gib(counts.table_read_bytes),
            gib(counts.table_write_bytes),
        );
        let fits = near(found.0, hits) && near(found.1, reads) && near(found.2, writes);
        assert!(fits, "{ram} MiB: {found:?}");
    }
}
