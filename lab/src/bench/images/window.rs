//! How long the guard is set in the header of an image under a desktop's load.
//!
//! Owns a clone that a desktop of `trace synth` works on, its times and the age of dirty data
//! divided by a scale: as much is destaged at once as without one. Always true: the header is read
//! from the file, as any other program would find it, at most five times a millisecond; the time
//! between two looks belongs to the first of them.
//! Deliberately absent: whether the daemon knows its own guard; the tests look at that.

use super::host::{DISK_BYTES, Host, Origin, failed};
use super::options::Options;
use crate::bench::desktops::load::Load;
use crate::bench::rounds::Spread;
use crate::in_process::watched;
use host::error::{Error, Result};
use image::header::GUARD;
use serde_json::{Value, json};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use workload::synth::{Parameters, Pattern, Synth};
use workload::trace::Record;

const NAME: &str = "desktop";
/// Of the product.
const AGE: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_micros(200);
/// Where a header has its incompatible features.
const FEATURES_AT: u64 = 72;
/// The desktop is at work from then on.
const AT_WORK_NS: u64 = 60_000_000_000;

#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    guarded: bool,
}

pub struct Window {
    scale: f64,
    looked: Duration,
    looks: usize,
    guarded: Duration,
    /// Each time that it was set.
    windows: Vec<Duration>,
    /// Of the desktop.
    writes: u64,
    write_bytes: u64,
    origin: Origin,
}

impl Window {
    /// The part of the time in which it is set, where the product's age of dirty data is in force.
    pub fn part(&self) -> f64 {
        self.guarded.as_secs_f64() / (self.looked.as_secs_f64() * self.scale)
    }

    /// The same, of the time that was measured.
    pub fn part_scaled(&self) -> f64 {
        self.guarded.as_secs_f64() / self.looked.as_secs_f64()
    }

    pub fn times(&self) -> usize {
        self.windows.len()
    }

    pub fn window_ms(&self) -> Option<Spread> {
        let millis = |it: &Duration| it.as_secs_f64() * 1e3;
        Spread::of(self.windows.iter().map(millis))
    }

    /// A guard was seen, and data went to the image.
    pub fn is_proven(&self) -> bool {
        self.times() > 0 && self.origin.write_bytes > 0
    }

    pub fn text(&self) -> String {
        format!(
            "a desktop, its times divided by {}: {} writes ({} MiB) in {:.0} s, {} MiB and a \
             journal of {} MiB to the image; the guard was set {} times, {:.3} % of that time",
            self.scale,
            self.writes,
            self.write_bytes >> 20,
            self.looked.as_secs_f64(),
            self.origin.write_bytes >> 20,
            self.origin.journal_bytes >> 20,
            self.times(),
            self.part_scaled() * 100.0,
        )
    }

    pub fn document(&self) -> Value {
        json!({
            "proven": self.is_proven(),
            "scale": self.scale,
            "destage_after_ms": age(self.scale).as_millis() as u64,
            "looked_seconds": self.looked.as_secs_f64(),
            "looks": self.looks,
            "guarded_seconds": self.guarded.as_secs_f64(),
            "times": self.times(),
            "window_ms": self.window_ms().map(|it| it.document()),
            "part_of_time_scaled": self.part_scaled(),
            "part_of_time": self.part(),
            "desktop_writes": self.writes,
            "desktop_write_bytes": self.write_bytes,
            "origin_write_bytes": self.origin.write_bytes,
            "journal_bytes": self.origin.journal_bytes,
        })
    }
}

fn age(scale: f64) -> Duration {
    AGE.div_f64(scale)
}

pub fn run(host: &Host, options: &Options) -> Result<Window> {
    let after = format!("{}ms", age(options.scale).as_millis().max(1));
    host.add_clone(NAME, &[("destage-after", &after)])?;
    let (records, lasts) = desktop(options)?;
    let header = File::open(host.image(NAME)).map_err(failed)?;
    let before = Origin::of(&host.volume(NAME)?)?;
    let look = || {
        let mut features = [0; 8];
        let read = header.read_exact_at(&mut features, FEATURES_AT);
        read.ok().map(|()| Look {
            at: Instant::now(),
            guarded: u64::from_be_bytes(features) & GUARD != 0,
        })
    };
    let (told, looks) = watched(LOOK, look, || {
        let names = [NAME.to_owned()];
        let load = Load::connect(&host.served.socket(), &names, None).map_err(failed)?;
        load.run(records, lasts, |_| ()).map_err(failed)
    })?;
    if told.errors > 0 {
        let message = format!(
            "bench images: {} requests of the desktop failed",
            told.errors
        );
        return Err(Error::failed(message));
    }
    let origin = Origin::of(&host.volume(NAME)?)?.since(before);
    host.destage(NAME)?;
    host.remove(NAME)?;
    let (looked, guarded, windows) = sums(&looks);
    Ok(Window {
        scale: options.scale,
        looked,
        looks: looks.len(),
        guarded,
        windows,
        writes: told.writes.total(),
        write_bytes: told.write_bytes,
        origin,
    })
}

/// What a desktop asks for, in the times of this run, and how long that is.
fn desktop(options: &Options) -> Result<(impl Iterator<Item = Record>, Duration)> {
    let parameters = Parameters {
        desktops: 1,
        active: 1.0,
        seed: options.seed,
        from_ns: AT_WORK_NS,
        duration_ns: (options.desktop_seconds * options.scale * 1e9) as u64,
        disk_bytes: DISK_BYTES,
        ..Parameters::new(Pattern::Office)
    };
    let synth = Synth::new(&parameters);
    let synth = synth.map_err(|error| Error::usage(format!("bench images: {error}")))?;
    let scale = options.scale;
    let records = synth.map(move |record| Record {
        time_ns: ((record.time_ns - AT_WORK_NS) as f64 / scale) as u64,
        ..record
    });
    Ok((records, Duration::from_secs_f64(options.desktop_seconds)))
}

/// How long was looked, how long of it the guard was set, and each time by itself.
fn sums(looks: &[Look]) -> (Duration, Duration, Vec<Duration>) {
    let (mut looked, mut guarded) = (Duration::ZERO, Duration::ZERO);
    let mut windows = Vec::new();
    let mut open: Option<Duration> = None;
    for pair in looks.windows(2) {
        let lasts = pair[1].at - pair[0].at;
        looked += lasts;
        match pair[0].guarded {
            true => {
                guarded += lasts;
                *open.get_or_insert_default() += lasts;
            }
            false => windows.extend(open.take()),
        }
    }
    windows.extend(open);
    (looked, guarded, windows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_between_two_looks_belongs_to_the_first_of_them() {
        let begun = Instant::now();
        let look = |(millis, guarded)| Look {
            at: begun + Duration::from_millis(millis),
            guarded,
        };
        let looks = [
            (0, false),
            (10, true),
            (15, true),
            (17, false),
            (20, true),
            (21, false),
        ];
        let (looked, guarded, windows) = sums(&looks.map(look));
        let millis = Duration::from_millis;
        assert_eq!((looked, guarded), (millis(21), millis(8)));
        assert_eq!(windows, [millis(7), millis(1)]);
    }
}
