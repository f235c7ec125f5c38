//! Crash images: every state that a loss of power can leave of what the real daemon wrote.
//!
//! A daemon runs a small load on a shelf that logs each change of its devices. Then each prefix of
//! that log, and seeded subsets of what was not synced, torn at sectors, becomes a host that lost
//! power: the daemon starts on it without its stage, and what the guests see is held against what
//! they had been told by then. The atomic image is judged by itself as well, as if the host were
//! gone for good.

use std::collections::BTreeMap;
use std::time::Instant;

use workload::check::{Crash, Model};

use crate::common::history::History;
use crate::common::scene::{
    ATOMIC, CACHE, IN_PLACE, OVERLAY, Scene, Script, THROUGH, UNCACHED, Volume,
};
use crate::common::shelf::{Change, Image, Loss, Tape, apply};
use crate::common::{Daemon, count, may_mount, seed, text_of};
use workload::rng::Rng;

/// Rounds of the load: with fewer the log does not begin anew.
const ROUNDS: u64 = 14;
const DESTAGE_EVERY: u64 = 4;
/// Torn images, spread over the log.
const TORN: u64 = 150;
/// One image in so many is recovered twice: what was read after the first time must stay.
const TWICE: u64 = 4;

/// Torn images of which one must show that a sync is missing.
const IMAGES_TO_SEE_IT: u64 = 150;

struct Recorded {
    tape: Tape,
    histories: Vec<History>,
    segments_reused: u64,
}

/// The life of one daemon from its first start to its orderly stop.
fn record(scene: &Scene, seed: u64, rounds: u64) -> Recorded {
    let start = scene.shelf.image();
    scene.shelf.load(start.clone());
    let daemon = scene.rig.serve();
    let mut histories = scene.histories();
    let mut clients = scene.clients().expect("the daemon lives");
    let mut script = Script::new(seed, DESTAGE_EVERY);
    assert!(
        script.play(scene, &mut histories, &mut clients, rounds),
        "nobody kills this daemon"
    );
    clients.into_iter().for_each(|client| client.disconnect());
    let status = scene.rig.json(&["status"]);
    let segments_reused = status["cache"]["segments_reused"].as_u64();
    daemon.stop();
    let log = scene.shelf.take_log();
    Recorded {
        tape: Tape { start, log },
        histories,
        segments_reused: segments_reused.expect("a number"),
    }
}

impl Recorded {
    fn models(&self, upto: usize) -> Vec<Model> {
        let histories = self.histories.iter();
        histories.map(|history| history.model_at(upto)).collect()
    }

    /// What there is of each kind of change, so that a log without one of them is noticed.
    fn kinds(&self) -> BTreeMap<String, u64> {
        let mut kinds = BTreeMap::new();
        for logged in &self.tape.log {
            let what = match &logged.change {
                Change::Write { .. } => "written",
                Change::Zero { .. } => "zeroed",
                Change::Size(_) => "sized",
                Change::Sync => "synced",
                Change::Make => "made",
                Change::Remove => "removed",
                Change::SyncNames => "names synced",
            };
            let file = match logged.file.rsplit('.').next() {
                Some("tenuto") => "ledger",
                Some("tenuto-journal") => "journal",
                Some("img") => "image",
                _ => &logged.file,
            };
            *kinds.entry(format!("{file} {what}")).or_default() += 1;
        }
        kinds
    }
}

/// Starts on an image, judges, and starts again where that was asked for.
fn judge(scene: &Scene, image: &Image, models: &mut [Model], twice: bool) -> Result<(), String> {
    scene.load(image.clone(), None);
    for (model, volume) in models.iter().zip(&scene.volumes) {
        if volume.lines.contains("\"atomic\"") {
            scene.verify_alone(model, volume.name)?;
        }
    }
    scene.load(image.clone(), None);
    let cache = scene.path(CACHE).to_string_lossy().into_owned();
    let verified = scene.rig.tenuto(&["cache", "verify", &cache]);
    if !verified.status.success() {
        return Err(format!("a torn tail is no damage: {}", text_of(&verified)));
    }
    for _ in 0..1 + u64::from(twice) {
        let daemon: Daemon = scene.try_serve()?;
        let verified = scene.verify(models, Crash::PowerLoss);
        let log = daemon.kill();
        verified.map_err(|broken| format!("{broken}\n{log}"))?;
        scene.rig.lose_stage();
    }
    Ok(())
}

#[derive(Default)]
struct Counts {
    prefixes: u64,
    torn: u64,
    twice: u64,
    loss: Loss,
}

/// All prefixes, or each of so many, and torn images; the first promise that is broken.
fn try_images(scene: &Scene, recorded: &Recorded, seed: u64) -> (Counts, Result<(), String>) {
    let mut counts = Counts::default();
    let mut random = Rng::new(seed);
    let lines = recorded.tape.log.len();
    let mut image = recorded.tape.start.clone();
    for upto in 0..=lines {
        if upto > 0 {
            apply(&mut image, &recorded.tape.log[upto - 1]);
        }
        // A sync changes no byte: the same image comes again behind it, with more promised.
        let next = recorded.tape.log.get(upto);
        if next.is_some_and(|next| matches!(next.change, Change::Sync | Change::SyncNames)) {
            continue;
        }
        let twice = random.below(TWICE) == 0;
        if let Err(broken) = judge(scene, &image, &mut recorded.models(upto), twice) {
            return (counts, Err(format!("prefix of {upto} lines: {broken}")));
        }
        counts.prefixes += 1;
        counts.twice += u64::from(twice);
    }
    for _ in 0..count("TENUTO_CRASH_TORN", TORN) {
        let upto = 1 + random.below(lines as u64) as usize;
        let (image, loss) = recorded.tape.torn(upto, &mut random);
        let twice = random.below(TWICE) == 0;
        if let Err(broken) = judge(scene, &image, &mut recorded.models(upto), twice) {
            return (counts, Err(format!("torn after {upto} lines: {broken}")));
        }
        counts.torn += 1;
        counts.twice += u64::from(twice);
        counts.loss.unsynced_sectors += loss.unsynced_sectors;
        counts.loss.lost_sectors += loss.lost_sectors;
    }
    (counts, Ok(()))
}

fn crash_everywhere(volumes: &[Volume], seed: u64) {
    let scene = Scene::new(volumes);
    let recorded = record(&scene, seed, count("TENUTO_CRASH_ROUNDS", ROUNDS));
    let lines = recorded.tape.log.len();
    let kinds = recorded.kinds();
    eprintln!(
        "{lines} lines, {} segments reused: {kinds:?}",
        recorded.segments_reused
    );
    assert!(recorded.segments_reused > 0, "the log begins anew");
    let start = Instant::now();
    let (counts, result) = try_images(&scene, &recorded, seed);
    let Counts {
        prefixes,
        torn,
        twice,
        loss,
    } = counts;
    eprintln!(
        "{prefixes} prefixes of {lines} lines, {torn} torn images ({} of {} unsynced sectors \
         gone), {twice} recovered twice, {} s",
        loss.lost_sectors,
        loss.unsynced_sectors,
        start.elapsed().as_secs()
    );
    result.unwrap_or_else(|broken| panic!("{broken}"));
}

/// Torn images of a life whose daemon left out these syncs, until one breaks a promise.
fn is_seen_without(sync: &str, seed: u64) {
    let mut scene = Scene::new(&[ATOMIC, THROUGH]);
    let marks = scene.rig.dir.join("marks");
    scene.rig.env("TENUTO_DRILL_SKIP_SYNC", sync);
    scene
        .rig
        .env("TENUTO_MARKS", marks.to_str().expect("a plain path"));
    let recorded = record(&scene, seed, ROUNDS);
    scene.rig.env("TENUTO_DRILL_SKIP_SYNC", "");
    let mut random = Rng::new(seed);
    let lines = recorded.tape.log.len() as u64;
    for tried in 1..=IMAGES_TO_SEE_IT {
        let upto = 1 + random.below(lines) as usize;
        let (image, _) = recorded.tape.torn(upto, &mut random);
        if let Err(broken) = judge(&scene, &image, &mut recorded.models(upto), false) {
            let broken = broken.lines().next().unwrap_or_default();
            eprintln!("seen in image {tried}, after {upto} lines: {broken}");
            return;
        }
    }
    panic!("{IMAGES_TO_SEE_IT} images without the {sync} sync went unnoticed");
}

#[test]
fn crash_images_show_a_missing_device_sync() {
    if may_mount("crash_images_show_a_missing_device_sync") {
        is_seen_without("cache", seed(26));
    }
}

#[test]
fn crash_images_show_a_missing_journal_sync() {
    if may_mount("crash_images_show_a_missing_journal_sync") {
        is_seen_without("journal", seed(27));
    }
}

/// Fails when: the log takes its records for durable without a sync (`SkipLogSync`).
#[test]
fn every_crash_image_of_an_atomic_and_a_write_through_volume_keeps_the_promises() {
    let test = "every_crash_image_of_an_atomic_and_a_write_through_volume_keeps_the_promises";
    if may_mount(test) {
        crash_everywhere(&[ATOMIC, THROUGH], seed(21));
    }
}

/// Fails when: the log takes its records for durable without a sync (`SkipLogSync`).
#[test]
fn every_crash_image_of_other_volumes_keeps_the_promises() {
    if may_mount("every_crash_image_of_other_volumes_keeps_the_promises") {
        crash_everywhere(&[IN_PLACE, UNCACHED, OVERLAY], seed(22));
    }
}
