//! The workloads in a guest, on disks that a daemon serves.
//!
//! Owns the runs: one on a plain disk whose requests are recorded, one on the disks that `image
//! split` made of the same image. Always true: both guests are told the same programs in the same
//! order; counts are of the time from the order to the end of a `sync` behind the program; the
//! guest has unmounted its disks before its image is looked at. Deliberately absent: a distribution
//! and its services, which would write too.

use super::classes::{Count, Writes, classify};
use super::figure10::{AtOrigin, Figure10, Missing, Row, Source, Workload};
use super::root;
use crate::bench::own_process::{self, Served, number, this_program};
use crate::guest::kit::Kit;
use crate::guest::{Guest, Heard, Machine, What, console};
use crate::interrupt::Interrupt;
use crate::place::{Place, make_cache};
use crate::qemu;
use host::error::{Error, Result, cause};
use host::sys;
use serde_json::Value;
use split::Class;
use split::propose::classed::Classed;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

const NAME: &str = "guest";
const CACHE_BYTES: u64 = 2 << 30;
const SIZES: &str = "ram = \"64MiB\"\nstage = \"64MiB\"";
/// For one step of an emulated guest on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(100);
const DESTAGE_MAX: Duration = Duration::from_secs(600);

pub struct Wanted<'a> {
    pub place: &'a Place,
    /// A root file system of the user's.
    pub root: Option<&'a Path>,
    pub rules: &'a str,
    pub classed: &'a Classed,
    pub workloads: &'a [Workload],
}

fn failed(what: &str, error: &std::io::Error) -> Error {
    Error::failed(format!("{what}: {}", cause(error)))
}

/// Measures; what the machine lacks is a line of the figure. Calls `progress` after each workload.
pub fn run(wanted: &Wanted, interrupt: &Interrupt, progress: &dyn Fn()) -> Result<Figure10> {
    let mut figure = Figure10 {
        rules: wanted.rules.to_owned(),
        rows: Vec::new(),
        missing: Vec::new(),
        guest: None,
    };
    let kit = match Kit::find(None) {
        Ok(kit) => kit,
        Err(why) => {
            let why = format!(
                "{why}; a guest needs qemu-system-x86, busybox-static, e2fsprogs and a kernel in \
                 /boot that can be read; or give --trace NAME=FILE"
            );
            figure.missing.push(Missing { what: "guest", why });
            return Ok(figure);
        }
    };
    let image = wanted.place.path("guest.img");
    root::make(&kit, wanted.place, wanted.root, &image)?;
    let machine = Machine::new(&kit, wanted.place.path("initramfs"), true)?;
    figure.guest = Some(format!(
        "guest: Linux {}, {}, ext4, swap of 128 MiB",
        kit.kernel_name(),
        machine.accelerator.name()
    ));
    let run = Run {
        wanted,
        machine: &machine,
        interrupt,
        progress,
    };
    // The split stands on the image as it is before any guest has run.
    let split = run.split(&image);
    run.plain(&image, &mut figure)?;
    match split {
        Ok(directory) => run.disks(&directory, &mut figure)?,
        Err(error) => figure.missing.push(Missing {
            what: "split disks",
            why: error.message,
        }),
    }
    Ok(figure)
}

struct Run<'a> {
    wanted: &'a Wanted<'a>,
    machine: &'a Machine<'a>,
    interrupt: &'a Interrupt,
    progress: &'a dyn Fn(),
}

impl Run<'_> {
    /// Makes a disk for each class; returns the directory of them.
    fn split(&self, image: &Path) -> Result<PathBuf> {
        // The plain guest writes to the image that the split would stand on.
        let own = self.wanted.place.path("split");
        fs::create_dir_all(&own).map_err(|error| failed("split", &error))?;
        let copy = own.join("guest.img");
        let mut cp = Command::new("cp");
        cp.arg("--sparse=always").arg(image).arg(&copy);
        root::run("coreutils", &mut cp)?;
        let output = own.join("disks");
        let mut command = own_process::command(&this_program()?, Stdio::null());
        command.args(["--quiet", "image", "split"]).arg(&copy);
        command.args(["--rules", self.wanted.rules, "--output"]);
        command.arg(&output).args(["--trust-image", "--yes"]);
        let done = command.stderr(Stdio::piped()).output();
        let done = done.map_err(|error| failed("image split", &error))?;
        if done.status.success() {
            return Ok(output);
        }
        let said = String::from_utf8_lossy(&done.stderr);
        let last = said.lines().rfind(|it| !it.trim().is_empty());
        let last = last.unwrap_or("it said nothing").trim();
        let last = last.strip_prefix("tenuto: ").unwrap_or(last);
        Err(Error::failed(last.to_owned()))
    }

    fn serve(&self, name: &str, volumes: &str) -> Result<Daemon> {
        let place = self.wanted.place;
        let cache = place.path(&format!("{name}.cache"));
        make_cache(&cache, CACHE_BYTES)?;
        let directory = place.stage_dir().join(name);
        let run_dir = directory.join("run");
        let stage = directory.join("stage");
        let text = own_process::config(&run_dir, &stage, &cache, SIZES)?;
        let config = place.path(&format!("{name}.toml"));
        let allowed = place.directory();
        let text = format!("{text}[images]\nallow = [{allowed:?}]\n{volumes}");
        fs::write(&config, text).map_err(|error| failed("a configuration", &error))?;
        let served = Served::start(&this_program()?, &config, &run_dir)?;
        Ok(Daemon {
            socket: run_dir.join("tenuto.sock"),
            served,
            cache,
        })
    }

    fn plain(&self, image: &Path, figure: &mut Figure10) -> Result<()> {
        let volume = format!(
            "[[volume]]\nname = \"{NAME}\"\norigin = {image:?}\nformat = \"raw\"\nexport = \
             [\"nbd\"]\npolicy = \"write-through\"\n"
        );
        let daemon = self.serve("plain", &volume)?;
        let mut guest = self.start(&daemon, &[NAME])?;
        let mut recorded = Vec::new();
        for workload in self.wanted.workloads {
            let trace = self
                .wanted
                .place
                .path(&format!("{}.trace", workload.name()));
            let recording = Recording::start(&daemon.socket, &trace)?;
            let said = guest.run(*workload)?;
            recording.end()?;
            recorded.push((*workload, trace, said));
            (self.progress)();
        }
        guest.off()?;
        daemon.stop()?;
        for (workload, trace, said) in recorded {
            figure.rows.push(Row {
                name: workload.name().into(),
                source: Source::Rules,
                writes: classify(&trace, Some(image), self.wanted.classed)?,
                origin: None,
                said: Some(said),
            });
        }
        Ok(())
    }

    fn disks(&self, directory: &Path, figure: &mut Figure10) -> Result<()> {
        let path = directory.join(split::VOLUMES_FILE);
        let volumes = fs::read_to_string(&path);
        let volumes = volumes.map_err(|error| failed("the volumes of the split", &error))?;
        let daemon = self.serve("disks", &volumes)?;
        let names = Class::DURABILITIES.map(|class| {
            let name = match class {
                Class::WriteThrough => format!("{NAME}-system"),
                _ => format!("{NAME}-{}", class.name()),
            };
            Some(name).filter(|it| volumes.contains(&format!("\"{it}\"")))
        });
        let present: Vec<&str> = names.iter().flatten().map(String::as_str).collect();
        let mut guest = self.start(&daemon, &present)?;
        let mut rows = Vec::new();
        for workload in self.wanted.workloads {
            // What the workloads before have left is none of this one's.
            daemon.destage(&names)?;
            let before = daemon.looks(&names)?;
            let said = guest.run(*workload)?;
            let after = daemon.looks(&names)?;
            daemon.destage(&names)?;
            let destaged = daemon.looks(&names)?;
            rows.push(row(*workload, said, [before, after, destaged]));
            (self.progress)();
        }
        guest.off()?;
        daemon.stop()?;
        // A workload's rows stand together.
        for row in rows {
            let at = figure.rows.iter().position(|it| it.name == row.name);
            let at = at.map_or(figure.rows.len(), |at| at + 1);
            figure.rows.insert(at, row);
        }
        Ok(())
    }

    fn start(&self, daemon: &Daemon, disks: &[&str]) -> Result<Running<'_>> {
        let socket = daemon.served.socket();
        let nodes = disks.iter().map(|it| qemu::node("raw", &socket, it));
        let nodes: Vec<String> = nodes.collect();
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let (sender, heard) = console();
        let guest = self.machine.start(0, &nodes, sender)?;
        let mut running = Running {
            guest,
            heard,
            interrupt: self.interrupt,
            last: String::new(),
        };
        let swap = running.expect("ready")?;
        match swap.parse::<u64>() {
            Ok(kib) if kib > 0 => Ok(running),
            _ => Err(Error::failed("guest: it has no swap; name another --guest")),
        }
    }
}

/// Counters of one disk at a moment.
#[derive(Clone, Copy, Default)]
struct Look {
    asked: Count,
    writes: u64,
    journal: u64,
}

fn row(workload: Workload, said: Value, [before, after, destaged]: [[Look; 3]; 3]) -> Row {
    let mut writes = Writes::default();
    let mut origin = [AtOrigin::default(); 3];
    for (at, class) in Class::DURABILITIES.into_iter().enumerate() {
        let (old, new, last) = (before[at], after[at], destaged[at]);
        let asked = Count {
            requests: new.asked.requests - old.asked.requests,
            bytes: new.asked.bytes - old.asked.bytes,
        };
        writes.add(class, asked);
        origin[at] = AtOrigin {
            writes: new.writes - old.writes,
            journal: new.journal - old.journal,
            destaged: last.writes - old.writes,
        };
    }
    Row {
        name: workload.name().into(),
        source: Source::Disks,
        writes,
        origin: Some(origin),
        said: Some(said),
    }
}

struct Daemon {
    served: Served,
    socket: PathBuf,
    cache: PathBuf,
}

impl Daemon {
    fn looks(&self, names: &[Option<String>; 3]) -> Result<[Look; 3]> {
        let mut looks = [Look::default(); 3];
        for (look, name) in looks.iter_mut().zip(names) {
            let Some(name) = name else { continue };
            let volume = self.served.volume(name)?;
            let (asked, origin) = (&volume["writes"], &volume["origin"]);
            *look = Look {
                asked: Count {
                    requests: number(&asked["requests"])?,
                    bytes: number(&asked["bytes"])?,
                },
                writes: number(&origin["writes"])?,
                journal: number(&origin["journal_requests"])?,
            };
        }
        Ok(looks)
    }

    /// Sends what is late to the storage now. What is never sent stays.
    fn destage(&self, names: &[Option<String>; 3]) -> Result<()> {
        let at = Class::DURABILITIES
            .iter()
            .position(|it| *it == Class::WriteBack);
        let name = at.and_then(|at| names[at].as_deref());
        let Some(name) = name else { return Ok(()) };
        let path = format!("/v1/volumes/{name}/destage?wait=true");
        self.served.client.post(&path, None, DESTAGE_MAX).map(drop)
    }

    fn stop(self) -> Result<()> {
        let stopped = self.served.stop();
        // It goes away with its place; this keeps the peak low.
        let _ = fs::remove_file(&self.cache);
        stopped
    }
}

/// `trace record` of the plain disk.
struct Recording {
    child: Child,
}

impl Recording {
    fn start(socket: &Path, trace: &Path) -> Result<Recording> {
        let error = |error| failed("trace record", &error);
        let mut command = own_process::command(&this_program()?, Stdio::null());
        command.arg("--socket").arg(socket);
        command.args(["--quiet", "trace", "record", NAME, "--output"]);
        command.arg(trace);
        let mut child = command.spawn().map_err(error)?;
        let begun = Instant::now();
        // The file is there when the daemon has begun to record.
        while !trace.exists() {
            let ended = child.try_wait().map_err(error)?;
            if ended.is_some() || begun.elapsed() > PATIENCE {
                return Err(Error::failed("trace record: does not begin"));
            }
            std::thread::sleep(LOOK);
        }
        Ok(Recording { child })
    }

    fn end(mut self) -> Result<()> {
        let error = |error| failed("trace record", &error);
        sys::ask_to_end(&self.child).map_err(error)?;
        let status = self.child.wait().map_err(error)?;
        match status.success() {
            true => Ok(()),
            false => Err(Error::failed(format!("trace record: {status}"))),
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // One that has ended is as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Running<'a> {
    guest: Guest,
    heard: Receiver<Heard>,
    interrupt: &'a Interrupt,
    /// On its console, not for us.
    last: String,
}

impl Running<'_> {
    fn run(&mut self, workload: Workload) -> Result<Value> {
        let (program, arguments) = workload.program();
        self.tell(&format!("run {program} {arguments}"))?;
        let said = self.expect("did")?;
        let parsed = serde_json::from_str(&said);
        parsed.map_err(|_| Error::failed(format!("guest: {program}.py said {said:?}")))
    }

    fn off(mut self) -> Result<()> {
        self.tell("off")?;
        self.expect("unmounted").map(drop)
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let told = self.guest.tell(line);
        told.map_err(|_| self.wrong("its console is closed"))
    }

    /// Waits for a word; returns what followed it.
    fn expect(&mut self, word: &str) -> Result<String> {
        let begun = Instant::now();
        loop {
            self.interrupt.check()?;
            if begun.elapsed() > PATIENCE {
                return Err(self.wrong(&format!("is late with {word:?}")));
            }
            let heard = match self.heard.recv_timeout(LOOK) {
                Ok(heard) => heard.what,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => What::Ended,
            };
            match heard {
                What::Ended => return Err(self.wrong(&format!("ended before {word:?}"))),
                // What comes behind a panic is a trace of calls.
                What::Noise(line) if line.is_empty() || self.last.contains("panic") => {}
                What::Noise(line) => self.last = line,
                What::Said(said) => {
                    if let Some(rest) = said.strip_prefix(word) {
                        return Ok(rest.trim().to_owned());
                    }
                    if let Some(wrong) = said.strip_prefix("wrong ") {
                        return Err(self.wrong(wrong));
                    }
                }
            }
        }
    }

    fn wrong(&self, what: &str) -> Error {
        let last = match self.last.as_str() {
            "" => String::new(),
            line => format!("; last on its console: {line}"),
        };
        Error::failed(format!("guest: {what}{last}"))
    }
}
