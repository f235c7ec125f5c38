//! Plans on random images, against a model of the guest's disk and the check of the file.
//!
//! `TENUTO_SEEDS` sets how many images, `TENUTO_SEED` where they begin.

#![allow(clippy::unwrap_used)]

#[path = "plan/bench.rs"]
mod bench;

use bench::{Bench, Knobs, MARK, Rng, Sparse, build};
use image::Header;
use image::error::Error;
use image::format::entry::{COPIED, L1};
use image::format::refcount;
use image::plan::{When, Work};
use image::resolve::{Stop, Wrong};

fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(default, |it| it.parse().unwrap())
}

fn knobs(rng: &mut Rng, backed: bool) -> Knobs {
    let extended = rng.below(2) == 0;
    let bits = match (extended, rng.below(12)) {
        (false, 0) => 21,
        (true, 0) => 17,
        (false, 1..=3) => 16,
        (false, _) => 12,
        (true, _) => 14,
    };
    let most = if bits > 16 { 6 << 20 } else { 1 << 20 };
    Knobs {
        bits,
        extended,
        order: rng.below(7) as u32,
        size: 512 * (1 + rng.below(most / 512)),
        backed,
        l1_cluster: 3 + rng.below(3),
    }
}

fn raw(rng: &mut Rng, size: u64) -> Sparse {
    let bytes = match rng.below(3) {
        0 => size,
        1 => 1 + rng.below(size),
        _ => size + 1000,
    };
    let mut file = Sparse::default();
    let made: Vec<u8> = (0..bytes).map(|it| (it / 512 % 251 + 1) as u8).collect();
    file.write(0, &made);
    file
}

/// A random image, over nothing, a raw file, or a qcow2 file over a raw one.
fn image(seed: u64) -> Bench {
    let mut rng = Rng(seed);
    let depth = rng.below(3);
    let mut top = knobs(&mut rng, depth > 0);
    top.l1_cluster = match rng.below(4) {
        // The next cluster is behind what the refcount blocks are about.
        0 if top.bits == 12 => ((4096 * 8) >> top.order) - 1 - rng.below(3),
        _ => top.l1_cluster,
    };
    let mut below = Vec::new();
    if depth > 0 {
        below.push((raw(&mut rng, top.size), true));
    }
    if depth > 1 {
        let mut middle = knobs(&mut rng, true);
        middle.size = 512 * (1 + rng.below(top.size / 512 + 100)).min(top.size / 256);
        let mut middle = Bench::new(rng.next(), build(middle), below.clone());
        let marks = middle.epoch();
        middle.destage(&marks);
        below.insert(0, (middle.top, false));
    }
    Bench::new(rng.next(), build(top), below)
}

/// A larger disk; L1 stays where it lies if it has room there, else it moves.
fn grow(bench: &mut Bench) {
    let header = bench.top.header();
    let size = header.size_bytes + 512 * (1 + bench.rng.below(3000));
    let needed = header.l1_entries_for(size).unwrap();
    let room = (header.cluster_bytes() / 8) as u32;
    let more = match room {
        0..=600 => bench.rng.pick(&[0, 3, 64, 70, room]),
        _ => bench.rng.pick(&[0, 3, 64]),
    };
    bench.grow(size, needed.max(header.l1_entries) + more);
}

#[test]
fn random_epochs_leave_random_images_right_at_each_step() {
    let first = number("TENUTO_SEED", 1);
    for seed in first..first + number("TENUTO_SEEDS", 40) {
        println!("TENUTO_SEED={seed} TENUTO_SEEDS=1");
        let mut bench = image(seed);
        bench.mark = Some(MARK);
        let mut snapshot = None;
        for _ in 0..2 + bench.rng.below(5) {
            let marks = bench.epoch();
            match bench.rng.below(10) {
                0 => bench.reopen(),
                6 => grow(&mut bench),
                7 | 8 if !bench.below.is_empty() && snapshot.is_none() => {
                    bench.rebase();
                    continue;
                }
                9 if snapshot.is_none() => {
                    let sectors = bench.model.len() as u64 / 512;
                    let size = 512 * (1 + bench.rng.below(sectors));
                    bench.shrink(size);
                    continue;
                }
                // It changes tables where they lie, also those of a snapshot.
                1 if snapshot.is_none() => bench.compress(),
                2 if snapshot.is_none() => {
                    let l1 = bench.snapshot();
                    snapshot = l1.map(|it| (it, bench.model.clone()));
                }
                // A plan that is given up, with some of what it writes at once.
                3 => {
                    let made = bench.plan(&marks).unwrap();
                    let part = bench.rng.below(made.now.len() as u64 + 1) as usize;
                    for work in &made.now[..part] {
                        bench.carry_out(work, &made.model);
                    }
                }
                _ => {}
            }
            match bench.rng.below(3) {
                0 => bench.write_through(&marks),
                _ => bench.destage(&marks),
            }
            if let Some((l1, before)) = &snapshot {
                let seen = bench.seen_by(*l1, before.len());
                assert!(seen == *before, "the snapshot is what it was");
            }
        }
    }
}

#[test]
fn a_refcount_table_that_is_full_grows() {
    for (order, journaled) in [(5, true), (6, true), (5, false), (6, false)] {
        let per_block = (4096 * 8) >> order;
        let knobs = Knobs {
            bits: 12,
            extended: false,
            order,
            size: 4 << 20,
            backed: false,
            l1_cluster: per_block * 512 - 5,
        };
        let mut bench = Bench::new(order.into(), build(knobs), Vec::new());
        for _ in 0..2 {
            let mut marks = bench.epoch();
            marks[..100].fill(1);
            match journaled {
                true => bench.destage(&marks),
                false => bench.write_through(&marks),
            }
        }
        assert_eq!(bench.counted, 1, "it has grown once");
        bench.reopen();
        let marks = bench.epoch();
        bench.destage(&marks);
    }
}

#[test]
fn a_refcount_block_behind_what_it_counts_gets_a_block_of_its_own() {
    let knobs = Knobs {
        bits: 12,
        extended: false,
        order: 6,
        size: 2 << 20,
        backed: false,
        // A table and 512 clusters of data fill what the second block is about.
        l1_cluster: 510,
    };
    let mut bench = Bench::new(1, build(knobs), Vec::new());
    bench.destage(&[1; 4096]);
    assert_eq!(bench.top.bytes, (1024 + 2) * 4096);
}

fn small(extended: bool) -> Knobs {
    Knobs {
        bits: if extended { 17 } else { 16 },
        extended,
        order: 4,
        size: 4 << 20,
        backed: false,
        l1_cluster: 3,
    }
}

#[test]
fn zeroes_over_nothing_write_nothing() {
    for extended in [false, true] {
        let mut bench = Bench::new(1, build(small(extended)), Vec::new());
        let mut marks = vec![2; 8192];
        let made = bench.plan(&marks).unwrap();
        // The L1 table of a new file ends inside its cluster.
        assert_eq!(made.now.len(), 1, "{:?}", made.now);
        assert_eq!(made.journal, []);
        marks[7] = 1;
        let made = bench.plan(&marks).unwrap();
        let data = |it: &&Work| matches!(it, Work::Data { .. });
        assert_eq!(made.now.iter().filter(data).count(), 1);
    }
}

#[test]
fn a_file_written_twice_goes_through_the_journal_in_place() {
    for extended in [false, true] {
        let mut bench = Bench::new(1, build(small(extended)), Vec::new());
        bench.destage(&[1; 8192]);
        let before = bench.top.bytes;
        let made = bench.plan(&[1; 8192]).unwrap();
        assert_eq!((made.now, bench.top.bytes), (Vec::new(), before));
        let when = |it: &Work| {
            matches!(
                it,
                Work::Data {
                    when: When::Journal,
                    ..
                }
            )
        };
        assert!(made.journal.iter().all(when), "no table changes");
    }
}

#[test]
fn zeroes_up_to_the_end_of_the_disk_mark_a_unit_that_the_end_cuts() {
    for extended in [false, true] {
        let mut knobs = small(extended);
        knobs.size -= 1024;
        let mut bench = Bench::new(1, build(knobs), Vec::new());
        bench.destage(&[1; 8190]);
        bench.destage(&[2; 8190]);
        let made = bench.plan(&[2; 8190]).unwrap();
        assert_eq!((made.now, made.journal), (Vec::new(), Vec::new()));
    }
}

fn refused(change: fn(&mut Header)) -> String {
    let mut header = build(small(false)).header();
    header.is_writable().unwrap();
    change(&mut header);
    header.is_writable().unwrap_err().to_string()
}

#[test]
fn what_cannot_be_written_is_refused_with_a_sentence() {
    for (change, said) in [
        ((|it| it.version = 2) as fn(&mut Header), "amend"),
        (|it| it.incompatible |= 1, "check -r all"),
        (|it| it.incompatible |= 2, "corrupt"),
        (|it| it.incompatible |= 4, "external data file"),
        (|it| it.cluster_bits = 11, "4096"),
        (|it| it.autoclear |= 1 << 5, "autoclear"),
    ] {
        let sentence = refused(change);
        assert!(sentence.contains(said), "{sentence}");
    }
    let mut header = build(small(false)).header();
    header.autoclear |= image::header::OURS | image::header::BITMAPS;
    assert_eq!(header.is_writable(), Ok::<(), Error>(()));
}

#[test]
fn an_entry_that_points_to_a_table_is_never_written_through() {
    let cluster = 65_536;
    let l1 = 3 * cluster;
    // Header, refcount table, refcount block, L1, L2, and behind the end.
    for (target, why) in [
        (0, Wrong::Reserved),
        (1, Wrong::Table),
        (2, Wrong::Table),
        (3, Wrong::Table),
        (4, Wrong::Table),
        (4096, Wrong::Outside),
    ] {
        let mut bench = Bench::new(1, build(small(false)), Vec::new());
        bench.destage(&[1; 128]);
        let table = bench.top.word(l1) & !(1 << 63);
        assert_eq!(table, 4 * cluster);
        let word = if target == 0 { 2 } else { target * cluster };
        bench.top.put(table, word | 1 << 63);
        let again = bench.top.clone();
        let mut bench = Bench::new(1, again, Vec::new());
        let stop = bench.plan(&[1; 128]).err().unwrap();
        let Stop::Damaged(damage) = stop else {
            panic!("{stop:?}");
        };
        assert_eq!(damage.why, why, "{target}");
    }
}

#[test]
fn tables_that_share_a_cluster_stop_a_plan_before_its_first_write() {
    let cluster = 65_536;
    for (at, word) in [(3 * cluster, 2 * cluster), (cluster + 8, 2 * cluster)] {
        let mut file = build(small(false));
        file.put(at, word);
        let mut bench = Bench::new(1, file, Vec::new());
        let stop = bench.plan(&[1; 128]).err().unwrap();
        let shared = |it: &Stop| matches!(it, Stop::Damaged(it) if it.why == Wrong::TablesShared);
        assert!(shared(&stop), "{stop:?}");
    }
}

#[test]
fn an_entry_is_not_believed_where_its_table_is_shared() {
    let mut bench = Bench::new(1, build(small(false)), Vec::new());
    bench.destage(&[1; 128]);
    let l1 = 3 * 65_536;
    let table = bench.top.word(l1);
    bench.top.put(l1, table & !(1 << 63));
    let mut bench = Bench::new(1, bench.top.clone(), Vec::new());
    let made = bench.plan(&[1; 8]).unwrap();
    let data = |it: &Work| matches!(it, Work::Data { .. });
    assert!(!made.journal.iter().any(data), "{:?}", made.journal);
    // The table and the cluster of data are new ones, and right.
    for work in made.now.iter().chain(&made.journal) {
        bench.carry_out(work, &made.model);
    }
    assert_ne!(bench.top.word(l1), table);
    bench.check("after");
}

/// An internal snapshot may have it too: what it holds would be written over.
#[test]
fn a_cluster_that_is_marked_as_used_once_and_counted_twice_stops_a_plan() {
    for extended in [false, true] {
        let mut bench = Bench::new(1, build(small(extended)), Vec::new());
        bench.destage(&[1; 128]);
        let header = bench.top.header();
        let table = L1(bench.top.word(header.l1_at)).table_at();
        let cluster = (bench.top.word(table) & !COPIED) >> header.cluster_bits;
        let block = bench.top.word(header.refcount_table.at);
        let mut counts = vec![0; header.cluster_bytes() as usize];
        bench.top.fill(block, &mut counts);
        for (count, right) in [(2, false), (0, false), (1, true)] {
            refcount::set(&mut counts, header.refcount_order, cluster, count);
            bench.top.write(block, &counts);
            let mut bench = Bench::new(1, bench.top.clone(), Vec::new());
            for marks in [&[1; 8][..], &[2; 256]] {
                let stopped = match bench.plan(marks) {
                    // One that is not counted lies behind the last one that is.
                    Err(Stop::Damaged(damage)) => count == 0 || damage.why == Wrong::Copied,
                    Err(Stop::Missing(_)) => unreachable!("the bench reads what is missing"),
                    Ok(_) => false,
                };
                assert_eq!(stopped, !right, "counted {count} times");
            }
        }
    }
}
