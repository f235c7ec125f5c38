//! One move with all cached at the host before, and the guest's reads after it.
//!
//! Owns the two hosts of a slot, the order of what happens to them, and the looks at counters.
//! Always true: the guest comes to the other host when that one may write the image and has its
//! copy again, with remote reads and without alike, so that both differ in nothing but what the
//! host before has; both hosts go away with the slot. Deliberately absent: what follows from the
//! figures.

use super::Options;
use super::guest::{Guest, PIECE_BYTES, make_stamped};
use super::slices::{Kind, Look, SLICES, Slot};
use crate::bench::hosts::{Hosts, wait_for};
use crate::bench::own_process::number;
use crate::bench::work::Sample;
use crate::interrupt::Interrupt;
use crate::place::Place;
use host::admin::client::PROMPT;
use host::error::{Error, Result};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};
use workload::rng::Rng;

pub const NAME: &str = "disk";
pub const SIZES: &str = "ram = \"64MiB\"\nstage = \"64MiB\"";
/// Of the log a volume has half, and what is dirty takes at most half of that.
pub const CACHE_PER_SIZE: u64 = 4;
/// Where the guest is at first, and where it goes.
const FROM: usize = 0;
const TO: usize = 1;
/// Reads of the whole disk until all of it is cached.
const PASSES_MAX: u32 = 20;
/// Before the move the guest is watched for this part of the time after it.
const BEFORE_PART: f64 = 0.2;
/// Between looks whether the user wishes to stop.
const NAP: Duration = Duration::from_millis(100);

/// Starts two hosts with a volume of an image of this size, with stamps from a byte on.
pub fn start(place: &Place, options: &Options, from: u64, bytes: u64) -> Result<Hosts> {
    // What is read of the image takes nothing from the device of the caches.
    let image = place.stage_dir().join("disk.img");
    make_stamped(&image, from, bytes)?;
    let volumes = volume(&image, options);
    let (latency, cache_bytes) = (options.origin_latency, options.cache_bytes);
    Hosts::start_over(latency, place, cache_bytes, SIZES, &volumes)
}

fn volume(image: &Path, options: &Options) -> String {
    // Versions that were overwritten stay dirty where there are copies.
    let room = (2 * options.dirty_max()).max(64 << 20) >> 20;
    format!(
        "[[volume]]\nname = \"{NAME}\"\norigin = {image:?}\nformat = \"raw\"\nexport = \
         [\"nbd\"]\npolicy = \"write-back\"\ndestage-after = \"never\"\nadmission = \
         \"all\"\nreplicas = 1\ndirty-limit = \"{room}MiB\"\n"
    )
}

/// Orders that the volume goes from this host to the other one.
pub fn order_move(hosts: &Hosts, from: usize) -> Result<()> {
    let to = json!({ "to": hosts.name(1 - from) });
    let path = format!("/v1/volumes/{NAME}/move");
    let client = &hosts.served(from).client;
    let moved = client.post(&path, Some(&to), PROMPT)?;
    match moved["notes"].as_array().is_none_or(Vec::is_empty) {
        true => Ok(()),
        false => Err(Error::failed(format!(
            "bench migrate: the other host has not taken the volume: {moved}"
        ))),
    }
}

fn wait_until_right(hosts: &Hosts, at: usize) -> Result<()> {
    wait_for("the right to write the image", || {
        let shown = hosts.served(at).volume(NAME)?;
        Ok(shown["ownership"] == "owner" && shown["drain"]["holder"] == hosts.name(at))
    })
}

/// Until this host may write the image, and all that is dirty is at the other one as well.
pub fn wait_until_settled(hosts: &Hosts, at: usize) -> Result<()> {
    wait_until_right(hosts, at)?;
    hosts.wait_until_full(at, NAME)
}

/// Reads of the image that a host has made.
fn origin_reads(shown: &Value) -> Result<u64> {
    number(&shown["origin"]["reads"])
}

/// A round of one kind.
pub fn slot(
    place: &Place,
    options: &Options,
    (kind, round): (Kind, u64),
    interrupt: &Interrupt,
) -> Result<Slot> {
    let place = place.part("slot")?;
    let bytes = options.size_bytes / PIECE_BYTES * PIECE_BYTES;
    let mut hosts = start(&place, options, 0, bytes)?;
    // All slots of a round read the same blocks.
    let seed = options.seed.wrapping_add(round);
    let lasts = Duration::from_secs_f64(options.seconds);
    let mut guest = Guest::at(&hosts.socket(FROM), NAME)?;
    fill(&hosts, &mut guest, bytes)?;
    wait_until_settled(&hosts, FROM)?;
    let cached = origin_reads(&hosts.served(FROM).volume(NAME)?)?;
    let watched = (Instant::now(), lasts.mul_f64(BEFORE_PART));
    let before = guest.watch((bytes, Rng::new(!seed)), watched, interrupt)?;
    let origin_reads_before = origin_reads(&hosts.served(FROM).volume(NAME)?)? - cached;
    drop(guest);
    hosts.served(FROM).wait_for_no_client(NAME)?;
    let ordered = Instant::now();
    order_move(&hosts, FROM)?;
    let moved = ordered.elapsed();
    wait_until_right(&hosts, TO)?;
    let right = ordered.elapsed();
    if kind == Kind::Without {
        hosts.kill(FROM);
        hosts.restart(FROM)?;
        hosts.wait_for_links()?;
    }
    hosts.wait_until_full(TO, NAME)?;
    let copied = ordered.elapsed();
    let (samples, looks) = watch(&hosts, (bytes, Rng::new(seed)), lasts, interrupt)?;
    let shown = hosts.served(TO).volume(NAME)?;
    Ok(Slot {
        kind,
        before,
        origin_reads_before,
        moved,
        right,
        copied,
        samples,
        looks,
        remote_bytes: number(&shown["reads"]["remote_bytes"])?,
        origin_p50_us: shown["origin"]["latency_us"]["p50"].as_f64(),
    })
}

/// Reads all of the disk, until nothing of it comes from the image any more.
fn fill(hosts: &Hosts, guest: &mut Guest, bytes: u64) -> Result<()> {
    let host = hosts.served(FROM);
    for _ in 0..PASSES_MAX {
        let before = origin_reads(&host.volume(NAME)?)?;
        guest.read_all(bytes)?;
        if origin_reads(&host.volume(NAME)?)? == before {
            return Ok(());
        }
    }
    Err(Error::failed(format!(
        "bench migrate: after {PASSES_MAX} reads of all of the disk it is not in the cache; give a \
         larger --cache"
    )))
}

/// The guest reads at the other host while another thread looks at it.
fn watch(
    hosts: &Hosts,
    (bytes, random): (u64, Rng),
    lasts: Duration,
    interrupt: &Interrupt,
) -> Result<(Vec<Sample>, Vec<Look>)> {
    let socket = hosts.socket(TO);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut looks = vec![look(hosts, began)?];
            for slice in 1..=SLICES {
                let due = lasts.mul_f64(slice as f64 / SLICES as f64);
                while began.elapsed() < due && !interrupt.came() {
                    std::thread::sleep(due.saturating_sub(began.elapsed()).min(NAP));
                }
                looks.push(look(hosts, began)?);
            }
            Ok(looks)
        });
        let read = Guest::at(&socket, NAME)
            .and_then(|mut guest| guest.watch((bytes, random), (began, lasts), interrupt));
        let looks: Result<Vec<Look>> = looking.join().expect("a look does not panic");
        Ok((read?, looks?))
    })
}

/// What was read from the host before, and from the image, until now.
fn look(hosts: &Hosts, began: Instant) -> Result<Look> {
    let shown = hosts.served(TO).volume(NAME)?;
    Ok(Look {
        at: began.elapsed(),
        remote_reads: number(&shown["reads"]["remote"])?,
        origin_reads: origin_reads(&shown)?,
    })
}
