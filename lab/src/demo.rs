//! What the product is for, in a minute: guests on a slow storage network, with it and without.
//!
//! Owns the choice of who drives the disks, the runs and the comparison of them. Always true: every
//! number was measured in this run; all runs do the same through real sockets, on a simulated
//! storage network with the same limits; nothing is left behind but the report. What is not
//! measured, or not by real guests, is told with the reason.

mod content;
mod figures;
mod gold;
mod guests;
mod load;
mod measure;
mod page;
mod run;
mod side;
mod summary;

use crate::guest::Machine;
use crate::guest::kit::Kit;
use crate::interrupt::Interrupt;
use crate::place::Place;
use crate::qemu;
use host::error::{Error, Kind, Result, cause};
use indicatif::ProgressBar;
use run::{Driver, Plan, Run, Watch};
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use side::Side;

/// Clones that the built-in client drives.
const CLIENT_CLONES: usize = 8;
/// Guests boot together, and their instructions are shared out to the cores: so much of it fits.
const BOOT_TOGETHER: Duration = Duration::from_secs(6);
const CLONES_MIN: usize = 2;
const CLONES_MAX: usize = 8;
/// What the guests of a run may take, so that all of it ends within a minute. A machine on which
/// real guests take longer on raw images is too slow for them, and the built-in client takes their
/// place.
const RUN_MAX: Duration = Duration::from_secs(16);
/// What was asked for is waited for, on a machine that emulates guests or is busy as well.
const PATIENCE: u32 = 12;

/// Who shall drive the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// Guests where the hardware helps them and everything for them is there.
    Auto,
    /// Guests, emulated if need be.
    Qemu,
    Builtin,
}

#[derive(Clone, Debug)]
pub struct Options {
    pub report: PathBuf,
    pub seed: u64,
    pub client: Client,
    /// Of the guests; the newest one that can be read if it is not named.
    pub kernel: Option<PathBuf>,
    /// Throw-away guests beside the one that is kept.
    pub clones: Option<usize>,
}

/// Who drove the disks.
pub struct Drove {
    pub clones: usize,
    /// Accelerator and kernel of real guests.
    pub guests: Option<(&'static str, String)>,
    /// Why there were none.
    pub missing: Option<String>,
}

/// The runs of one demonstration.
struct Runs {
    raw: Run,
    /// Or why it was not measured.
    qcow2: std::result::Result<Run, String>,
    tenuto: Run,
}

/// All runs and what they are compared by.
pub struct Report {
    runs: Runs,
    /// The version of QEMU's programs that served the overlays.
    qemu: Option<String>,
    drove: Drove,
    seed: u64,
    took: Duration,
}

/// Runs everything and writes the report.
pub fn run(options: &Options, bar: &ProgressBar) -> Result<Report> {
    let began = Instant::now();
    let interrupt = Interrupt::listen()?;
    let place = Place::new()?;
    let job = Job {
        options,
        place: &place,
        interrupt: &interrupt,
        bar,
        began,
        qemu: qemu::version().map_err(|error| error.message),
    };
    let missing = match options.client {
        Client::Builtin => "the built-in client was asked for".to_owned(),
        Client::Auto | Client::Qemu => match job.guests() {
            Ok(report) => return job.save(report),
            Err(Unable::Here(why)) if options.client == Client::Auto => why,
            Err(Unable::Here(why)) => {
                return Err(Error::failed(format!(
                    "no guest can be booted: {why}; --client builtin needs none"
                )));
            }
            Err(Unable::Failed(error)) => return Err(error),
        },
    };
    let report = job.client(missing)?;
    job.save(report)
}

/// Why guests did not bring a result.
enum Unable {
    /// They cannot be booted on this machine, or not in time.
    Here(String),
    Failed(Error),
}

struct Job<'a> {
    options: &'a Options,
    place: &'a Place,
    interrupt: &'a Interrupt,
    bar: &'a ProgressBar,
    began: Instant,
    /// Its version, or why there is none.
    qemu: std::result::Result<String, String>,
}

impl Job<'_> {
    fn guests(&self) -> std::result::Result<Report, Unable> {
        let kit = Kit::find(self.options.kernel.as_deref()).map_err(Unable::Here)?;
        // What goes wrong before anything is measured is for want of a machine that can do it.
        let here = |error: Error| match self.interrupt.check() {
            Ok(()) if error.kind == Kind::Failed => Unable::Here(error.message),
            Ok(()) => Unable::Failed(error),
            Err(interrupted) => Unable::Failed(interrupted),
        };
        self.bar
            .set_message("a first guest, to see what works here");
        let emulate = self.options.client == Client::Qemu;
        let machine = Machine::new(&kit, self.place.path("initramfs"), emulate).map_err(here)?;
        let (seed, gold) = (self.options.seed, self.place.path("gold-master.img"));
        gold::make(&kit, seed, self.place.directory(), &gold).map_err(here)?;
        let clones = self
            .options
            .clones
            .unwrap_or_else(|| fitting(machine.probed));
        let guests = Some((machine.accelerator.name(), kit.kernel_name()));
        let plan = Plan {
            seed,
            clones,
            driver: Driver::Guests {
                kit: &kit,
                machine,
                gold,
            },
        };
        self.measures(guests::steps(clones as u64 + 1));
        let raw = self.side(&plan, Side::Raw).map_err(here)?;
        let runs = self.others(&plan, raw).map_err(Unable::Failed)?;
        Ok(self.report(runs, guests, clones, None))
    }

    fn client(&self, missing: String) -> Result<Report> {
        let clones = self.options.clones.unwrap_or(CLIENT_CLONES);
        let plan = Plan {
            seed: self.options.seed,
            clones,
            driver: Driver::Client,
        };
        self.measures(load::requests(plan.seed, clones as u64 + 1));
        let raw = self.side(&plan, Side::Raw)?;
        let runs = self.others(&plan, raw)?;
        Ok(self.report(runs, None, clones, Some(missing)))
    }

    /// The bar begins, with so many steps in each run.
    fn measures(&self, steps: u64) {
        let runs = if self.qemu.is_ok() { 3 } else { 2 };
        self.bar.reset();
        self.bar.set_length(runs * steps);
    }

    /// What the raw images are compared with.
    fn others(&self, plan: &Plan<'_>, raw: Run) -> Result<Runs> {
        let qcow2 = match &self.qemu {
            Ok(_) => {
                let run = self.side(plan, Side::Qcow2);
                self.interrupt.check()?;
                run.map_err(|error| error.message)
            }
            Err(why) => Err(why.clone()),
        };
        let tenuto = self.side(plan, Side::Tenuto)?;
        Ok(Runs { raw, qcow2, tenuto })
    }

    fn side(&self, plan: &Plan<'_>, side: Side) -> Result<Run> {
        self.interrupt.check()?;
        let patience = match self.options.client {
            Client::Auto => 1,
            Client::Qemu | Client::Builtin => PATIENCE,
        };
        let watch = Watch {
            bar: self.bar,
            interrupt: self.interrupt,
            began: Instant::now(),
            time: RUN_MAX * patience,
        };
        run::run(self.place, plan, side, watch)
    }

    fn report(
        &self,
        runs: Runs,
        guests: Option<(&'static str, String)>,
        clones: usize,
        missing: Option<String>,
    ) -> Report {
        Report {
            runs,
            qemu: self.qemu.clone().ok(),
            drove: Drove {
                clones,
                guests,
                missing,
            },
            seed: self.options.seed,
            took: self.began.elapsed(),
        }
    }

    fn save(&self, report: Report) -> Result<Report> {
        let path = &self.options.report;
        let written = std::fs::write(path, page::page(&report));
        written.map_err(|error| {
            let path = path.display();
            Error::failed(format!("{path}: {}; name another --report", cause(&error)))
        })?;
        Ok(report)
    }
}

impl Report {
    /// The run of a column, if there was one.
    fn run(&self, side: Side) -> Option<&Run> {
        match side {
            Side::Raw => Some(&self.runs.raw),
            Side::Qcow2 => self.runs.qcow2.as_ref().ok(),
            Side::Tenuto => Some(&self.runs.tenuto),
        }
    }
}

/// So many clones, and the guest that is kept, boot together in reasonable time.
fn fitting(alone: Duration) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let time = BOOT_TOGETHER.as_secs_f64() * cores as f64;
    let guests = (time / alone.as_secs_f64().max(0.1)) as usize;
    guests.saturating_sub(1).clamp(CLONES_MIN, CLONES_MAX)
}
