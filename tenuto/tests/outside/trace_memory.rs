//! Memory of the trace tools: of ten times as many requests they take no more.

use crate::common::seed;
use std::io::BufWriter;
use std::process::{Command, Stdio};
use workload::rng::Rng;
use workload::trace::native::Writer;
use workload::trace::{NameId, Op, Record};

const FEW: u64 = 1_000_000;
const MANY: u64 = 10 * FEW;
/// What both traces ask for, on four disks: each block is met long before the shorter one ends, and
/// every table has grown by then.
const BLOCKS: u64 = 100_000;
const REQUEST_BLOCKS: u64 = 3;
const BLOCK_SECTORS: u64 = 8;
/// Of noise of the allocator; a byte kept for each request would be nine times a million.
const MORE_KIB_MAX: u64 = 6 << 10;

/// The most memory that a command took for a trace of so many requests through its standard input.
fn peak_kib(arguments: &str, requests: u64, seed: u64) -> u64 {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tenuto"))
        .args(arguments.split(' '))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("run tenuto");
    let input = BufWriter::new(child.stdin.take().expect("a pipe"));
    let mut trace = Writer::new(input).expect("write the trace");
    let mut random = Rng::new(seed);
    for at in 0..requests {
        let block = random.below(BLOCKS / 4 - REQUEST_BLOCKS);
        let op = [Op::Read, Op::Write][random.below(2) as usize];
        let record = Record {
            time_ns: at * 1_000_000,
            disk: NameId(0),
            op,
            sector: block * BLOCK_SECTORS,
            sectors: (REQUEST_BLOCKS * BLOCK_SECTORS) as u32,
            path: None,
        };
        let disk = ["one", "two", "three", "four"][random.below(4) as usize];
        trace.record(&record, disk, None).expect("write the trace");
    }
    // All but what one pipe holds was read.
    trace.flush().expect("write the trace");
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
    let status = status.expect("it still reads");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|it| it.trim().strip_suffix(" kB"));
    let peak = peak.expect("its peak").parse().expect("a number");
    drop(trace.finish().expect("write the trace"));
    assert!(child.wait().expect("it ends").success(), "{arguments}");
    peak
}

#[test]
fn ten_times_as_many_requests_of_the_same_blocks_take_no_more_memory() {
    let seed = seed(29);
    for arguments in [
        "trace info - --quiet",
        "trace convert - - --quiet",
        "trace analyze - --json --quiet",
    ] {
        let few = peak_kib(arguments, FEW, seed);
        let many = peak_kib(arguments, MANY, seed);
        println!("{arguments}: {few} KiB of {FEW} requests, {many} KiB of {MANY}");
        assert!(
            many <= few + MORE_KIB_MAX,
            "{arguments}: {few} KiB of {FEW} requests, {many} KiB of {MANY}"
        );
    }
}
