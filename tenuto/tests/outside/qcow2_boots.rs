//! A hundred clones of one qcow2 base boot at once, and the cache has nothing of the base.
//!
//! Some of them are real guests, which read all files of their disk and write a few of their own;
//! emulated ones are too slow to be a hundred. On the others clients ask what a guest has asked
//! that booted before on a clone of a copy of the base: each request in its order, without pauses.
//! Always true: all reads are judged; of the base each block is asked for once, by any of the
//! guests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use workload::rng::Rng;
use workload::trace::Op;

use crate::common::guest::{Machine, with_libraries};
use crate::common::nbd::{CMD_TRIM, Client};
use crate::common::{Rig, count, run};
use crate::qcow2_written::{check, convert, shown};
use crate::record::{Asked, Recorder, Trace};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const CLONES: u64 = 100;
const DISK_BYTES: u64 = 64 * MIB;
const SECTOR: u64 = 512;
const BLOCK: u64 = 4096;
const FILES: u64 = 40;
const FILE_BYTES: u64 = 600 * KIB;
/// The machine does other things beside: the best quarter counts.
const MADE_MAX: Duration = Duration::from_millis(50);
/// Tables of a clone's own file, and its part of those of the base.
const TABLES_MAX: u64 = 8 * KIB;
/// `cache.image-ram`, where nothing else is said.
const TABLE_RAM_MAX: u64 = 16 * MIB;

const BOOT: &str = "#!/bin/busybox sh
export PATH=/bin
busybox mkdir -p /proc /sys /dev /data
busybox mount -t proc proc /proc
(cd /files && busybox sha256sum -c /sums >/dev/null 2>&1) && echo \"guest: same\"
for number in 1 2 3 4 5 6; do
    busybox dd if=/dev/urandom of=/data/$number bs=61000 count=$number conv=fsync 2>/dev/null
done
busybox sync && echo \"guest: written\"
busybox mount -o remount,ro / && echo \"guest: unmounted\"
busybox poweroff -f
";

/// The base as a raw disk, and a qcow2 file of it.
fn base(machine: &Machine, dir: &Path) -> (Vec<u8>, PathBuf) {
    let root = dir.join("root");
    with_libraries(&root, &[]);
    let files = root.join("files");
    std::fs::create_dir(&files).unwrap();
    let mut random = Rng::new(5);
    for number in 0..FILES {
        let mut bytes = vec![0; FILE_BYTES as usize];
        random.fill(&mut bytes);
        std::fs::write(files.join(number.to_string()), bytes).unwrap();
    }
    let sums = format!("cd {} && sha256sum * > ../sums", shown(&files));
    run("sh", &["-c", &sums]);
    machine.program(&root, "work", BOOT);
    let (raw, base) = (dir.join("base.raw"), dir.join("base.qcow2"));
    Machine::image_of(&root, &raw, DISK_BYTES);
    convert(("raw", &raw), ("qcow2", &base), &[]);
    (std::fs::read(raw).unwrap(), base)
}

/// Blocks of which the base has anything.
fn blocks_with_data(base: &Path) -> BTreeSet<u64> {
    let map = run("qemu-img", &["map", "--output=json", &shown(base)]);
    let map: serde_json::Value = serde_json::from_str(&map).unwrap();
    let number = |it: &serde_json::Value| it.as_u64().unwrap();
    let extents = map.as_array().unwrap().iter();
    let data = extents.filter(|it| it["data"] == true && it["depth"] == 0);
    let blocks = data.flat_map(|it| {
        let at = number(&it["start"]);
        blocks(at, number(&it["length"]))
    });
    blocks.collect()
}

fn blocks(at: u64, bytes: u64) -> std::ops::Range<u64> {
    at / BLOCK..(at + bytes).div_ceil(BLOCK)
}

/// Makes a clone; how long that took.
fn make(rig: &Rig, name: &str, base: &Path) -> Duration {
    let origin = format!("origin={}", shown(&rig.dir.join(format!("{name}.qcow2"))));
    let add = ["volume", "add", name, &origin, "policy=write-back"];
    let began = Instant::now();
    rig.done(&[&add[..], &["export=nbd", "--clone-of", &shown(base)]].concat());
    began.elapsed()
}

/// What a sector of a clone has.
#[derive(Clone, Copy, PartialEq)]
enum Has {
    Base,
    Written,
    Zeroes,
}

/// Asks what a guest has asked, with bytes of its own, and judges all that it reads.
fn play(client: &mut Client, asked: &[Asked], base: &[u8], own: u8) {
    let mut disk = vec![Has::Base; base.len() / SECTOR as usize];
    for (op, sector, sectors) in asked {
        let (at, bytes) = (sector * SECTOR, u64::from(*sectors) * SECTOR);
        let range = *sector as usize..*sector as usize + *sectors as usize;
        match op {
            Op::Read => {
                let found = client.read(at, bytes as usize);
                for (sector, found) in range.zip(found.chunks(SECTOR as usize)) {
                    let expected = match disk[sector] {
                        Has::Base => &base[sector * SECTOR as usize..][..SECTOR as usize],
                        Has::Written => &[own; SECTOR as usize],
                        Has::Zeroes => &[0; SECTOR as usize],
                    };
                    assert!(found == expected, "sector {sector} of clone {own}");
                }
            }
            Op::Write => {
                client.write(at, &vec![own; bytes as usize]);
                disk[range].fill(Has::Written);
            }
            Op::Discard => {
                assert_eq!(client.command(CMD_TRIM, 0, at, bytes as u32), 0);
                disk[range].fill(Has::Zeroes);
            }
            Op::Flush => client.flush(),
        }
    }
}

/// Boots a real guest, which finds its files and writes some.
fn boot(rig: &Rig, machine: &Machine, name: &str) {
    let said = machine.run(&rig.uri(name), "boot");
    for word in ["same", "written"] {
        assert!(said.iter().any(|it| it == word), "{name}: {said:?}");
    }
}

fn records(rig: &Rig, names: &[&str], during: impl FnOnce()) -> Trace {
    let recorder = Recorder::start(rig, names, &format!("{}.trace", names[0]), &[]);
    during();
    let trace = Trace::read(&recorder.interrupt().1);
    assert_eq!(trace.lost(), 0);
    trace
}

/// Of all these volumes together.
fn sum(rig: &Rig, names: &[String], of: impl Fn(&serde_json::Value) -> Option<u64>) -> u64 {
    let each = names.iter().map(|it| of(&rig.show(it)).unwrap());
    each.sum()
}

/// Fails when: a block of a base is asked for by each clone that wants it, or a clone is made of
/// what the base holds.
#[test]
fn a_hundred_clones_of_one_base_boot_at_once_and_ask_it_for_each_block_once() {
    let test = "a_hundred_clones_of_one_base_boot_at_once_and_ask_it_for_each_block_once";
    let mut rig = Rig::new();
    let Some(machine) = Machine::new(test, &rig.dir) else {
        return;
    };
    let (bytes, base) = base(&machine, &rig.dir);
    let copy = rig.dir.join("copy.qcow2");
    std::fs::copy(&base, &copy).unwrap();
    rig.cache(&rig.cache_path(), "1GiB", "ram = \"128MiB\"");
    let daemon = rig.serve();
    make(&rig, "before", &copy);
    let trace = records(&rig, &["before"], || boot(&rig, &machine, "before"));
    let asked = trace.of("before");

    let names: Vec<String> = (0..CLONES).map(|it| format!("desk-{it}")).collect();
    let mut made: Vec<Duration> = names.iter().map(|it| make(&rig, it, &base)).collect();
    made.sort();
    let (guests, players) = names.split_at(count("TENUTO_GUESTS", 2) as usize);
    let of_guests: Vec<&str> = guests.iter().map(String::as_str).collect();
    let trace = records(&rig, &of_guests, || {
        std::thread::scope(|scope| {
            for name in guests {
                scope.spawn(|| boot(&rig, &machine, name));
            }
            for (own, name) in (1..).zip(players) {
                let (rig, asked, bytes) = (&rig, &asked, &bytes);
                scope.spawn(move || play(&mut rig.connect(name), asked, bytes, own));
            }
        });
    });

    let all = of_guests.iter().flat_map(|it| trace.of(it)).chain(asked);
    let touched =
        all.flat_map(|(_, sector, sectors)| blocks(sector * SECTOR, u64::from(sectors) * SECTOR));
    let touched: BTreeSet<u64> = touched.collect();
    let wanted = touched.intersection(&blocks_with_data(&base)).count() as u64 * BLOCK;
    let read = sum(&rig, &names, |it| it["origin"]["read_bytes"].as_u64());
    let requests = sum(&rig, &names, |it| it["reads"]["bytes"].as_u64());
    let tables = |which| sum(&rig, &names, |it| it["image"][which].as_u64());
    let ram = tables("metadata_ram_bytes");
    println!(
        "made in {:?}, {:?} at most; {requests} bytes read by guests, {read} at the storage, \
         {wanted} in blocks of the base; tables: {ram} bytes in RAM, {} on the SSD; {} KiB in all",
        made[made.len() / 2],
        made[made.len() - 1],
        tables("metadata_ssd_bytes"),
        daemon.resident_kib(["RssAnon", "RssFile"]),
    );
    assert!(made[made.len() / 4] < MADE_MAX, "{made:?}");
    assert!(read <= wanted + CLONES * TABLES_MAX, "{read} of {wanted}");
    assert!(read >= FILES * FILE_BYTES, "the guests read all of it");
    assert!(0 < ram && ram <= TABLE_RAM_MAX, "{ram}");

    for name in [guests, players].map(|of| &of[0]) {
        rig.done(&["volume", "destage", name, "--wait"]);
    }
    daemon.stop();
    for name in [guests, players].map(|of| &of[0]) {
        check(&rig.dir.join(format!("{name}.qcow2")));
    }
}
