//! What was done and what came out, in sentences.
//!
//! Always true: numbers in a sentence are those of the table; what was not measured, cut or not
//! driven by real guests is said. Deliberately absent: the table.

use super::Report;
use super::figures::grouped;
use super::run::SAN;
use super::side::Side;
use crate::stats::{Disk, Kind, millis};

impl Report {
    /// What was done, what the storage saw of it, and what guests felt: one sentence each.
    pub fn summary(&self) -> [String; 3] {
        [self.done(), self.seen(), self.felt()]
    }

    fn done(&self) -> String {
        let who = match self.drove.is_guests() {
            true => "Linux guests in QEMU",
            false => "a built-in client",
        };
        let baseline = match self.run(Side::Qcow2) {
            Some(_) => ", on qcow2 overlays served by QEMU",
            None => "",
        };
        format!(
            "{} throw-away clones of one image and one disk that is kept were booted together and \
             then worked, by {who}, on the same simulated storage ({} ms for each request, {} \
             requests per second for all): on raw images{baseline}, and on Tenuto.",
            self.drove.clones,
            SAN.latency.as_millis(),
            grouped(f64::from(SAN.iops.unwrap_or(0)), 0)
        )
    }

    fn seen(&self) -> String {
        let (requests, syncs) = (self.requests(), self.syncs());
        let of = |side| {
            let (requests, syncs) = (requests.text(side), syncs.text(side));
            format!("{requests} requests ({syncs} of them syncs)")
        };
        let overlays = match self.run(Side::Qcow2) {
            Some(_) => format!(", {} with qcow2 overlays", of(Side::Qcow2)),
            None => String::new(),
        };
        format!(
            "The storage had to serve {} with raw images{overlays}, and {} with Tenuto.",
            of(Side::Raw),
            of(Side::Tenuto)
        )
    }

    fn felt(&self) -> String {
        let boots = self.boots("");
        let booted = format!(
            "a clone had booted after {} s instead of {} s",
            boots.text(Side::Tenuto),
            boots.text(Side::Raw)
        );
        let median = |side, kind| {
            let latency = self.run(side)?.latency.as_ref()?;
            let [p50, _] = latency.quantiles(Disk::Kept, kind);
            Some(grouped(millis(p50?), 2))
        };
        let pair = |kind| Some((median(Side::Raw, kind)?, median(Side::Tenuto, kind)?));
        let proof = "the image of the kept disk held exactly what was written";
        match (pair(Kind::Write), pair(Kind::Flush)) {
            (Some(write), Some(flush)) => format!(
                "In the median, on Tenuto instead of raw images, a write to the kept disk took {} \
                 ms instead of {} ms, a flush {} ms instead of {} ms, and {booted}; in the end \
                 {proof}.",
                write.1, write.0, flush.1, flush.0
            ),
            _ => format!("In the median {booted}; in the end {proof}."),
        }
    }

    /// Why there is no third column.
    pub fn not_measured(&self) -> Option<String> {
        let why = self.runs.qcow2.as_ref().err()?;
        Some(format!("qcow2 overlays: not measured: {why}"))
    }

    /// What drove the disks.
    fn driver(&self) -> String {
        match (&self.drove.guests, &self.drove.missing) {
            (Some((accelerator, kernel)), _) => format!(
                "{} real Linux guests ({kernel}) booted in QEMU, {}",
                self.drove.clones + 1,
                match *accelerator {
                    "kvm" => "with KVM",
                    _ => "without hardware acceleration",
                }
            ),
            (None, missing) => format!(
                "no guest was booted: {}; the built-in client drove the disks through their \
                 sockets (--client qemu boots guests, emulated if need be)",
                missing.as_deref().unwrap_or_default()
            ),
        }
    }

    /// How it was measured, what was checked, and what was cut.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = vec![self.driver()];
        notes.extend(self.baseline());
        if self.runs.tenuto.latency.is_some() {
            notes.push(
                "latencies were measured by the client, from sending a request to its answer; a \
                 flush of an ephemeral clone does nothing and needs nothing, because the clone is \
                 thrown away with what was written to it"
                    .into(),
            );
        }
        notes.push(self.checked());
        for side in Side::ALL {
            let Some((done, asked)) = self.run(side).map(|run| run.work.done) else {
                continue;
            };
            if done < asked {
                let (name, done) = (side.name(), grouped(done as f64, 0));
                let asked = grouped(asked as f64, 0);
                let what = match self.drove.is_guests() {
                    true => "rounds of work",
                    false => "requests",
                };
                notes.push(format!(
                    "cut: {name}: {done} of {asked} {what} were done in the time of the run"
                ));
            }
        }
        notes
    }

    fn baseline(&self) -> Option<String> {
        let version = match self.run(Side::Qcow2) {
            Some(_) => self.qemu.as_deref()?,
            None => return self.not_measured(),
        };
        Some(format!(
            "qcow2 overlays: each clone is an overlay, and the gold image below it and the kept \
             disk are raw; a QEMU for each guest ({version}) asks the storage without a page cache \
             of the host, as cache=none does"
        ))
    }

    fn checked(&self) -> String {
        let run = &self.runs.tenuto;
        let compared = grouped(run.verified_blocks as f64, 0);
        let destaged = run.destage.as_secs_f64();
        match run.written_blocks {
            Some(written) => format!(
                "every read was compared with what had been written; what was left of the kept \
                 disk at the end was destaged in {destaged:.1} s, and its image holds exactly what \
                 was written: {compared} blocks compared, {} of them written",
                grouped(written as f64, 0)
            ),
            None => format!(
                "every guest checked each file it read against its checksum; what was left of the \
                 kept disk at the end was destaged in {destaged:.1} s, and its image has the \
                 SHA-256 that the guest's disk had ({compared} blocks)"
            ),
        }
    }
}
