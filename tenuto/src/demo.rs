//! What the product is for, in two minutes: guests on a slow storage network, with it and without.
//!
//! Owns the choice of who drives the disks, the two runs and the comparison of them. Always true:
//! every number was measured in this run; both runs do the same through real sockets, on a
//! simulated storage network with the same limits; nothing is left behind but the report. Where
//! something is missing to boot real guests, that is said, and a built-in client drives the disks.

pub(crate) mod client;
mod content;
mod figures;
mod gold;
mod guest;
mod guests;
pub(crate) mod host;
mod initramfs;
mod interrupt;
mod kit;
mod load;
mod measure;
mod modules;
pub(crate) mod page;
mod place;
pub(crate) mod plot;
pub(crate) mod stats;

use crate::error::{Error, Kind, Result, cause};
use guest::Machine;
use host::{Driver, Place, Plan, Run, Watch};
use indicatif::ProgressBar;
use interrupt::Interrupt;
use kit::Kit;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Clones that the built-in client drives.
const CLIENT_CLONES: usize = 8;
/// Guests boot together, and their instructions are shared out to the cores: so much of it fits.
const BOOT_TOGETHER: Duration = Duration::from_secs(9);
const CLONES_MIN: usize = 2;
const CLONES_MAX: usize = 8;
/// From the start of the demonstration. A machine on which the first run takes longer is too slow
/// for guests, and the built-in client has time left for both of its runs.
const FIRST_RUN_END: Duration = Duration::from_secs(58);
const SECOND_RUN_END: Duration = Duration::from_secs(110);

/// Whoever asks for guests gets them, also on a machine that is busy with something else.
const PATIENCE: u32 = 4;

/// Who shall drive the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// Guests where everything for them is there.
    Auto,
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

/// Both runs and what they are compared by.
pub struct Report {
    uncached: Run,
    cached: Run,
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
        let gold = self.place.path("gold-master.img");
        let (seed, directory) = (self.options.seed, self.place.directory());
        // Guests end with the thread that started them, so they are started by this one.
        let (made, machine) = std::thread::scope(|scope| {
            let made = scope.spawn(|| gold::make(&kit, seed, directory, &gold));
            let machine = Machine::new(&kit, self.place.path("initramfs"), self.patience());
            (made.join().expect("a panic ends the process"), machine)
        });
        let machine = machine.map_err(here)?;
        made.map_err(here)?;
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
        self.bar.set_length(2 * guests::steps(clones as u64 + 1));
        let uncached = self.side(&plan, false).map_err(here)?;
        let cached = self.side(&plan, true).map_err(Unable::Failed)?;
        Ok(self.report(uncached, cached, guests, clones, None))
    }

    fn client(&self, missing: String) -> Result<Report> {
        let clones = self.options.clones.unwrap_or(CLIENT_CLONES);
        let plan = Plan {
            seed: self.options.seed,
            clones,
            driver: Driver::Client,
        };
        self.bar.reset();
        self.bar
            .set_length(2 * load::requests(plan.seed, clones as u64 + 1));
        let uncached = self.side(&plan, false)?;
        let cached = self.side(&plan, true)?;
        Ok(self.report(uncached, cached, None, clones, Some(missing)))
    }

    fn side(&self, plan: &Plan<'_>, cached: bool) -> Result<Run> {
        self.interrupt.check()?;
        let end = if cached {
            SECOND_RUN_END
        } else {
            FIRST_RUN_END
        };
        let watch = Watch {
            bar: self.bar,
            interrupt: self.interrupt,
            deadline: self.began + end * self.patience(),
        };
        host::run(self.place, plan, cached, watch)
    }

    fn patience(&self) -> u32 {
        match self.options.client {
            Client::Qemu => PATIENCE,
            Client::Auto | Client::Builtin => 1,
        }
    }

    fn report(
        &self,
        uncached: Run,
        cached: Run,
        guests: Option<(&'static str, String)>,
        clones: usize,
        missing: Option<String>,
    ) -> Report {
        Report {
            uncached,
            cached,
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

/// So many clones, and the guest that is kept, boot together in reasonable time.
fn fitting(alone: Duration) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let time = BOOT_TOGETHER.as_secs_f64() * cores as f64;
    let guests = (time / alone.as_secs_f64().max(0.1)) as usize;
    guests.saturating_sub(1).clamp(CLONES_MIN, CLONES_MAX)
}
