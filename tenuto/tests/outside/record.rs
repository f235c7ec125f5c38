//! `trace record` against live volumes: every request is in the trace, once and in its order; what
//! is lost is marked; the file can be read after every end.

use crate::common::nbd::{CMD_FLUSH, CMD_TRIM, CMD_WRITE_ZEROES, Client, FLAG_FUA, request_header};
use crate::common::{
    EXIT_FAILED, EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE, Rig, seed, signal, text_of, wait_until,
};
use lab::vhost_client::{self, Wait};
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Output};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use vring::block::SectorRange;
use workload::rng::Rng;
use workload::trace::{Item, Op, Reader};

const MIB: u64 = 1 << 20;
const BYTES: u64 = 16 * MIB;
/// Of a trace in the native format: it is written when the daemon records.
const HEAD_BYTES: u64 = 16;
const PATIENCE: Duration = Duration::from_secs(60);

/// A request as a trace shows it: operation, sector, sectors.
pub type Asked = (Op, u64, u32);

/// A recorder that runs.
pub struct Recorder {
    child: Option<Child>,
    file: PathBuf,
}

impl Recorder {
    /// Returns when the daemon records.
    pub fn start(rig: &Rig, volumes: &[&str], file: &str, more: &[&str]) -> Recorder {
        let file = rig.dir.join(file);
        let name = file.to_str().expect("a name").to_owned();
        let arguments = [&["trace", "record"], volumes, &["--output", &name], more].concat();
        let recorder = Recorder {
            child: Some(rig.spawn(&arguments)),
            file,
        };
        wait_until("it records", PATIENCE, || {
            let file = std::fs::metadata(&recorder.file);
            file.is_ok_and(|file| file.len() >= HEAD_BYTES)
        });
        recorder
    }

    fn signal(&self, number: i32) {
        let child = self.child.as_ref().expect("it runs");
        signal(child.id() as i32, number);
    }

    fn is_over(&mut self) -> bool {
        let child = self.child.as_mut().expect("it runs");
        child.try_wait().expect("ask for it").is_some()
    }

    fn ended(mut self) -> (Output, PathBuf) {
        let child = self.child.take().expect("it runs");
        let output = child.wait_with_output().expect("it ends");
        (output, self.file.clone())
    }

    /// Ends it as a user does; what it said.
    pub fn interrupt(self) -> (String, PathBuf) {
        self.signal(libc::SIGINT);
        let (output, file) = self.ended();
        assert_eq!(output.status.code(), Some(0), "{}", text_of(&output));
        (String::from_utf8_lossy(&output.stdout).into_owned(), file)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a trace holds: its items with the names of their disks, and whether it was cut.
pub struct Trace {
    items: Vec<(String, Item)>,
    first_ns: Option<u64>,
    cut: bool,
}

impl Trace {
    pub fn read(path: &Path) -> Trace {
        let file = BufReader::new(File::open(path).expect("open the trace"));
        let mut reader = Reader::open(file, None).expect("a trace");
        let mut items = Vec::new();
        while let Some(item) = reader.next_item().expect("read it") {
            let disk = match &item {
                Item::Record(record) => reader.disks().name(record.disk).to_owned(),
                Item::Lost(_) => String::new(),
            };
            items.push((disk, item));
        }
        let complaints = reader.complaints();
        assert_eq!((complaints.bad, complaints.backwards), (0, 0));
        Trace {
            first_ns: reader.first_ns(),
            cut: complaints.cut,
            items,
        }
    }

    /// Records that a file has so far which is being written.
    fn records(path: &Path) -> usize {
        let file = BufReader::new(File::open(path).expect("open the trace"));
        let Ok(mut reader) = Reader::open(file, None) else {
            return 0;
        };
        let mut records = 0;
        while let Ok(Some(item)) = reader.next_item() {
            records += usize::from(matches!(item, Item::Record(_)));
        }
        records
    }

    pub fn of(&self, disk: &str) -> Vec<Asked> {
        let items = self.items.iter().filter(|(name, _)| name == disk);
        let asked = items.filter_map(|(_, item)| match item {
            Item::Record(record) => Some((record.op, record.sector, record.sectors)),
            Item::Lost(_) => None,
        });
        asked.collect()
    }

    pub fn lost(&self) -> u64 {
        let lost = self.items.iter().map(|(_, item)| match item {
            Item::Lost(lost) => *lost,
            Item::Record(_) => 0,
        });
        lost.sum()
    }
}

/// The sectors that bytes touch.
fn touched(op: Op, offset: u64, bytes: u64) -> Asked {
    let first = offset / 512;
    (op, first, ((offset + bytes).div_ceil(512) - first) as u32)
}

/// Requests of an NBD client one after another, not all of them whole sectors.
fn ask_over_nbd(client: &mut Client, random: &mut Rng, count: u64) -> Vec<Asked> {
    let mut asked = Vec::new();
    for _ in 0..count {
        let unit = [1, 512, 4096][random.below(3) as usize];
        let offset = random.below(8 * MIB) / unit * unit;
        let bytes = unit * (1 + random.below(16));
        let length = bytes as u32;
        let flags = [0, FLAG_FUA][random.below(2) as usize];
        let (op, error) = match random.below(5) {
            0 => {
                client.read(offset, bytes as usize);
                (Op::Read, 0)
            }
            1 => {
                let payload = vec![7; bytes as usize];
                (Op::Write, client.try_write(offset, &payload, flags))
            }
            2 => (Op::Discard, client.command(CMD_TRIM, flags, offset, length)),
            3 => {
                let error = client.command(CMD_WRITE_ZEROES, flags, offset, length);
                (Op::Discard, error)
            }
            _ => {
                asked.push((Op::Flush, 0, 0));
                client.flush();
                continue;
            }
        };
        assert_eq!(error, 0, "{op:?}");
        asked.push(touched(op, offset, bytes));
    }
    asked
}

/// Requests of a front end with rings.
fn ask_over_rings(client: &mut vhost_client::Client, random: &mut Rng) -> Vec<Asked> {
    let mut asked = Vec::new();
    for _ in 0..200 {
        let (sector, sectors) = (random.below(4096), 1 + random.below(16));
        let mut payload = vec![9; sectors as usize * 512];
        let range = |sector| SectorRange {
            sector,
            sectors,
            unmap: false,
        };
        let (done, op) = match random.below(5) {
            0 => (client.read(0, sector, &mut payload), Op::Read),
            1 => (client.write(0, sector, &payload), Op::Write),
            2 => {
                // Each of them is one request of the trace.
                let ranges = [range(sector), range(sector + 8192)];
                asked.push((Op::Discard, sector, sectors as u32));
                asked.push((Op::Discard, sector + 8192, sectors as u32));
                client.discard(0, &ranges).expect("discarded");
                continue;
            }
            3 => (client.write_zeroes(0, &[range(sector)]), Op::Discard),
            _ => {
                asked.push((Op::Flush, 0, 0));
                client.flush(0).expect("flushed");
                continue;
            }
        };
        done.expect("done");
        asked.push((op, sector, sectors as u32));
    }
    asked
}

#[test]
fn what_guests_ask_over_nbd_and_rings_is_recorded_request_for_request() {
    let mut rig = Rig::new();
    let images = ["one", "two", "other"].map(|name| rig.image(name, BYTES));
    rig.volume("one", &images[0], "write-back", "");
    rig.guest_volume("two", &images[1], "write-back", "");
    rig.volume("other", &images[2], "write-back", "");
    let daemon = rig.serve();
    let mut random = Rng::new(seed(23));
    let mut one = rig.connect("one");
    // Before and beside the recording: none of it is in the trace.
    ask_over_nbd(&mut one, &mut random, 50);
    let now = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_nanos() as u64
    };
    let before_ns = now();
    let recorder = Recorder::start(&rig, &["one", "two", "one"], "a.trace", &[]);
    let mut other = rig.connect("other");
    ask_over_nbd(&mut other, &mut random, 50);
    let socket = rig.run_dir().join("two.vhost.sock");
    let options = vhost_client::Options {
        queues: 1,
        slots: 16,
        slot_bytes: 64 << 10,
        wait: Wait::Events,
    };
    let mut two = vhost_client::Client::connect(&socket, options).expect("connected");
    let of_two = ask_over_rings(&mut two, &mut random);
    let of_one = ask_over_nbd(&mut one, &mut random, 500);
    // At once: what was answered is in it, however short ago.
    let (said, file) = recorder.interrupt();
    ask_over_nbd(&mut one, &mut random, 50);
    let trace = Trace::read(&file);
    assert!(!trace.cut);
    assert_eq!(trace.lost(), 0);
    assert_eq!(trace.of("one"), of_one);
    assert_eq!(trace.of("two"), of_two);
    let all = of_one.len() + of_two.len();
    let records = trace.items.iter().filter(|(disk, _)| !disk.is_empty());
    assert_eq!(records.count(), all);
    let first_ns = trace.first_ns.expect("there are some");
    assert!(
        (before_ns..now()).contains(&first_ns),
        "times are those of the day"
    );
    assert!(said.contains(&format!("{all} requests in")), "{said}");
    assert!(said.contains("; 0 lost"), "{said}");
    let name = file.to_str().expect("a name");
    let info = rig.json(&["trace", "info", name]);
    assert_eq!(info["requests"], all);
    assert_eq!(info["not_understood"]["cut"], false);
    let small = ["--cache", "1GiB", "--ram", "64MiB"];
    let replay = [&["trace", "replay", name, "--offline"], &small[..]].concat();
    assert_eq!(rig.json(&replay)["volumes"], 2);
    rig.done(&["trace", "analyze", name]);
    daemon.stop();
}

/// So many flushes of a volume that has nothing to flush, some of them in flight.
fn hammer(client: &mut Client, mut left: u64) {
    const DEPTH: u64 = 64;
    while left > 0 {
        let count = left.min(DEPTH);
        let one = |cookie| request_header(CMD_FLUSH, 0, cookie, 0, 0);
        let requests: Vec<u8> = (0..count).flat_map(one).collect();
        client.stream.write_all(&requests).expect("asked");
        let mut answers = vec![0; 16 * count as usize];
        client.stream.read_exact(&mut answers).expect("answered");
        left -= count;
    }
}

#[test]
fn a_reader_that_stands_still_loses_requests_that_are_marked_and_holds_nobody_up() {
    // Far more than all there is room for on the way: a buffer of 131,072 requests, a few chunks,
    // a socket.
    const REQUESTS: u64 = 1_500_000;
    let mut rig = Rig::new();
    let image = rig.image("one", BYTES);
    rig.volume("one", &image, "write-back", "");
    let daemon = rig.serve();
    let mut client = rig.connect("one");
    let recorder = Recorder::start(&rig, &["one"], "a.trace", &[]);
    client.read(0, 512);
    let kib = daemon.private_kib();
    recorder.signal(libc::SIGSTOP);
    hammer(&mut client, REQUESTS);
    let grown = daemon.private_kib().saturating_sub(kib);
    assert!(grown < 16 << 10, "{grown} KiB more for a recording");
    recorder.signal(libc::SIGCONT);
    // The file can be read while it grows.
    wait_until("the loss is marked", PATIENCE, || {
        Trace::read(&recorder.file).lost() > 0
    });
    client.read(4096, 4096);
    let (said, file) = recorder.interrupt();
    let trace = Trace::read(&file);
    assert!(!trace.cut);
    let (kept, lost) = (trace.of("one"), trace.lost());
    assert_eq!(kept.len() as u64 + lost, REQUESTS + 2, "{said}");
    assert_eq!(kept[0], (Op::Read, 0, 1), "what came before is there");
    assert_eq!(kept.last(), Some(&(Op::Read, 8, 8)), "and what came behind");
    let marks = trace.items.iter().map(|(_, item)| item);
    let mark = marks.rev().position(|item| matches!(item, Item::Lost(1..)));
    let after = mark.expect("the loss is marked");
    assert!(after > 0 && after < 131_072, "{after} behind the loss");
    assert!(kept.len() > 131_072, "{} kept", kept.len());
    assert!(said.contains(&format!("; {lost} lost")), "{said}");
    let info = rig.json(&["trace", "info", file.to_str().expect("a name")]);
    assert_eq!(info["lost"], lost);
    daemon.stop();
}

#[test]
fn a_full_file_ends_a_recording_and_is_whole() {
    let mut rig = Rig::new();
    let image = rig.image("one", BYTES);
    rig.volume("one", &image, "write-back", "");
    let daemon = rig.serve();
    let mut client = rig.connect("one");
    let mut recorder = Recorder::start(&rig, &["one"], "a.trace", &["--limit", "64KiB"]);
    let mut random = Rng::new(seed(24));
    let mut asked = Vec::new();
    wait_until("the file is full", PATIENCE, || {
        asked.extend(ask_over_nbd(&mut client, &mut random, 100));
        recorder.is_over()
    });
    let (output, file) = recorder.ended();
    let said = text_of(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("the file is full"), "{said}");
    let bytes = std::fs::metadata(&file).expect("a file").len();
    assert!((48 << 10..=64 << 10).contains(&bytes), "{bytes} bytes");
    let trace = Trace::read(&file);
    assert!(!trace.cut && trace.lost() == 0);
    let kept = trace.of("one");
    assert!(kept.len() > 1000, "{} requests", kept.len());
    assert_eq!(kept, asked[..kept.len()]);
    daemon.stop();
}

#[test]
fn a_daemon_that_goes_away_leaves_a_trace_that_can_be_read_and_says_that_it_was_cut() {
    for kill in [true, false] {
        let mut rig = Rig::new();
        let image = rig.image("one", BYTES);
        rig.volume("one", &image, "write-back", "");
        let daemon = rig.serve();
        let recorder = Recorder::start(&rig, &["one"], "a.trace", &[]);
        let mut client = rig.connect("one");
        let asked = ask_over_nbd(&mut client, &mut Rng::new(seed(25)), 100);
        wait_until("the file has all of it", PATIENCE, || {
            Trace::records(&recorder.file) == asked.len()
        });
        match kill {
            true => daemon.kill(),
            false => daemon.stop(),
        };
        let (output, file) = recorder.ended();
        assert_eq!(output.status.code(), Some(EXIT_UNREACHABLE));
        let said = text_of(&output);
        assert!(said.contains("the daemon has gone"), "{said}");
        assert!(said.contains("the 100 requests until then"), "{said}");
        let trace = Trace::read(&file);
        assert!(trace.cut, "it has no end");
        assert_eq!(trace.of("one"), asked);
    }
}

#[test]
fn a_volume_that_is_removed_ends_its_part_of_a_recording_and_the_last_one_all_of_it() {
    let mut rig = Rig::new();
    for name in ["one", "two"] {
        let image = rig.image(name, BYTES);
        rig.volume(name, &image, "write-through", "");
    }
    let daemon = rig.serve();
    let recorder = Recorder::start(&rig, &["one", "two"], "a.trace", &[]);
    let both = Recorder::start(&rig, &["one", "two"], "b.trace", &[]);
    for name in ["one", "two"] {
        let mut client = rig.connect(name);
        client.read(0, 4096);
        client.disconnect();
        rig.gone_clients(name);
    }
    rig.done(&["volume", "rm", "one"]);
    // A volume that gets its place is none of those that are recorded.
    let image = rig.image("new", BYTES);
    let origin = format!("origin={}", image.display());
    let keys = ["policy=write-through", "format=raw"];
    rig.done(&[&["volume", "add", "new", &origin], &keys[..]].concat());
    let mut client = rig.connect("new");
    client.read(8192, 4096);
    drop(client);
    let mut client = rig.connect("two");
    client.read(4096, 4096);
    client.disconnect();
    rig.gone_clients("two");
    let (said, _) = both.interrupt();
    assert!(
        said.contains("one: removed while it was recorded"),
        "{said}"
    );
    rig.done(&["volume", "rm", "two"]);
    let (output, file) = recorder.ended();
    let said = text_of(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("no volume of it is left"), "{said}");
    let trace = Trace::read(&file);
    assert!(!trace.cut);
    assert_eq!(trace.of("one"), [(Op::Read, 0, 8)]);
    assert_eq!(trace.of("two"), [(Op::Read, 0, 8), (Op::Read, 8, 8)]);
    assert_eq!(
        trace
            .items
            .iter()
            .filter(|(disk, _)| !disk.is_empty())
            .count(),
        3
    );
    daemon.stop();
}

#[test]
fn recordings_that_cannot_be_are_refused_and_a_reader_that_dies_makes_room() {
    let mut rig = Rig::new();
    let image = rig.image("one", BYTES);
    rig.volume("one", &image, "write-back", "");
    rig.write_config();
    let there = rig.dir.join("there");
    std::fs::write(&there, "kept").expect("written");
    let (there, new) = (there.to_str().unwrap().to_owned(), rig.dir.join("new"));
    let new = new.to_str().unwrap().to_owned();
    let refused = |volume: &str, file: &str, more: &[&str], code: i32, word: &str| {
        let all = [&["trace", "record", volume, "--output", file], more].concat();
        let said = rig.refused(&all, code);
        assert!(said.contains(word) && said.lines().count() == 1, "{said}");
    };
    refused("one", &new, &[], EXIT_UNREACHABLE, "start the daemon");
    refused(
        "one",
        &there,
        &["--force"],
        EXIT_UNREACHABLE,
        "start the daemon",
    );
    let daemon = rig.serve();
    refused("nobody", &new, &[], EXIT_FAILED, "no such volume");
    refused("one&volume=x", &new, &[], EXIT_FAILED, "no such volume");
    refused("one", &there, &[], EXIT_REFUSED, "--force");
    assert_eq!(
        std::fs::read_to_string(&there).expect("it is there"),
        "kept"
    );
    refused(
        "one",
        &new,
        &["--limit", "1KiB"],
        EXIT_USAGE,
        "at least 64 KiB",
    );
    refused("one", &new, &["--seconds", "0"], EXIT_USAGE, "more than 0");
    assert!(!Path::new(&new).exists());
    let names = ["a", "b", "c", "d"];
    let mut four: Vec<Recorder> = names
        .iter()
        .map(|name| Recorder::start(&rig, &["one"], name, &[]))
        .collect();
    let short = ["--duration", "1s"];
    refused(
        "one",
        &new,
        &short,
        EXIT_REFUSED,
        "4 recordings run already",
    );
    let dead = four.pop().expect("four");
    dead.signal(libc::SIGKILL);
    dead.ended();
    // Its place is free when the daemon has noticed.
    let arguments = ["trace", "record", "one", "--output", &there, "--force"];
    let arguments = [&arguments[..], &["--duration", "200ms", "--json"]].concat();
    let mut said = String::new();
    wait_until("its place is free", PATIENCE, || {
        let output = rig.tenuto(&arguments);
        said = text_of(&output);
        output.status.success()
    });
    assert!(said.contains("\"ended\": \"duration\""), "{said}");
    assert!(
        !Trace::read(Path::new(&there)).cut,
        "it has replaced the file"
    );
    for recorder in four {
        recorder.interrupt();
    }
    daemon.stop();
}
