//! Death at every request to a device: the daemon is killed when its n-th one arrives, for every n.
//!
//! A short run is repeated once for each of its requests; the request at which the daemon dies is
//! done the one time and not the other. After each death another daemon starts beside the stage of
//! the dead one, and everything acknowledged must be there. Then the same for the start that
//! recovers: it is killed at each of its own requests, and a third daemon must find everything.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use workload::check::{Crash, Model};

use crate::common::history::History;
use crate::common::scene::{ATOMIC, IN_PLACE, OVERLAY, Scene, Script, Stage, UNCACHED, Volume};
use crate::common::shelf::Image;
use crate::common::{Daemon, count, may_mount, seed, wait_until};

const VOLUMES: [Volume; 4] = [ATOMIC, IN_PLACE, UNCACHED, OVERLAY];
/// Rounds of the load before the run that dies, and in it.
const ROUNDS_BEFORE: u64 = 6;
const ROUNDS: u64 = 2;
/// One destage in the run that dies, and some before it.
const DESTAGE_EVERY: u64 = 2;
/// No run has so many requests: the loop would not end.
const REQUESTS_MAX: u64 = 5000;
/// What a journal is applied by.
const APPLIES: &str = "write of atomic.img";
const PATIENCE: Duration = Duration::from_secs(120);
/// Deaths of a first daemon after which the second one dies at each of its requests: while a
/// journal is applied, in a ledger, in the log.
const FIRST_DEATHS: [(&str, u64); 3] = [
    (APPLIES, 2),
    ("write of atomic.img.tenuto", 2),
    ("write of cache", 6),
];
/// A host between two lives, and what its guests know.
#[derive(Clone)]
struct Still {
    image: Image,
    stage: Stage,
    histories: Vec<History>,
}

/// What the daemons died of, by kind of request, and how often they lived.
#[derive(Default)]
struct Deaths {
    by_request: BTreeMap<String, u64>,
    all: u64,
}

impl Deaths {
    fn count(&mut self, request: &str) {
        let (what, file) = request.split_once(" of ").unwrap_or((request, ""));
        let file = match file.rsplit('.').next() {
            Some("tenuto") => "ledger",
            Some("tenuto-journal") => "journal",
            Some("img") => "image",
            _ => file,
        };
        *self.by_request.entry(format!("{what} {file}")).or_default() += 1;
        self.all += 1;
    }
}

/// A life before the one that dies, so that there is something to recover and to reuse.
fn live_before(scene: &Scene, seed: u64) -> Still {
    let daemon = scene.rig.serve();
    let mut histories = scene.histories();
    let mut clients = scene.clients().expect("the daemon lives");
    let mut script = Script::new(seed, DESTAGE_EVERY);
    let rounds = ROUNDS_BEFORE;
    assert!(script.play(scene, &mut histories, &mut clients, rounds));
    clients.into_iter().for_each(|client| client.disconnect());
    daemon.stop();
    Still {
        image: scene.shelf.image(),
        stage: scene.stage(),
        histories,
    }
}

/// When a daemon dies, and whether the request is done all the same.
#[derive(Clone, Copy)]
struct At {
    kind: Option<&'static str>,
    nth: u64,
    lands: bool,
}

/// A daemon with a load on the host as it was, killed at its n-th request. What is left, and the
/// request; `None` where the whole run has fewer.
fn die(scene: &Scene, before: &Still, at: At, seed: u64) -> Option<(Still, String)> {
    scene.load(before.image.clone(), Some(&before.stage));
    scene.shelf.set_trap(at.kind, at.nth, at.lands);
    let starting = scene.rig.start();
    scene.shelf.aim(starting.pid());
    let mut histories = before.histories.clone();
    if let Ok(daemon) = starting.wait() {
        if let Some(mut clients) = scene.clients() {
            let mut script = Script::new(seed, DESTAGE_EVERY);
            script.play(scene, &mut histories, &mut clients, ROUNDS);
        }
        daemon.kill();
    }
    let request = scene.shelf.sprung()?;
    let left = Still {
        image: scene.shelf.image(),
        stage: scene.stage(),
        histories,
    };
    Some((left, request))
}

/// The daemon that finds what a dead one left.
fn judge(scene: &Scene, left: &Still) -> Result<(), String> {
    let mut models: Vec<Model> = left.histories.iter().map(History::model).collect();
    let daemon = scene.try_serve()?;
    let verified = scene.verify(&mut models, Crash::Kill);
    let log = daemon.kill();
    verified.map_err(|broken| format!("{broken}\n{log}"))
}

/// Fails when: recovery does not write to the log what only the stage has (`LeaveInStage`).
#[test]
fn a_daemon_that_dies_at_any_request_loses_nothing_acknowledged() {
    let test = "a_daemon_that_dies_at_any_request_loses_nothing_acknowledged";
    if !may_mount(test) {
        return;
    }
    let (seed, start) = (seed(23), Instant::now());
    let scene = Scene::new(&VOLUMES);
    let before = live_before(&scene, seed);
    let mut deaths = Deaths::default();
    let step = count("TENUTO_DEATH_STEP", 1);
    for nth in (1..REQUESTS_MAX).step_by(step as usize) {
        let lands = nth.is_multiple_of(2);
        let kind = None;
        let at = At { kind, nth, lands };
        let Some((left, request)) = die(&scene, &before, at, seed + 1) else {
            break;
        };
        deaths.count(&request);
        let done = if lands { "done" } else { "not done" };
        judge(&scene, &left).unwrap_or_else(|broken| {
            panic!("killed at request {nth}, a {request}, which was {done}: {broken}")
        });
    }
    if !deaths.by_request.contains_key("write journal") {
        // A few of all, which may have come between two that were chosen.
        let kind = Some("write of atomic.img.tenuto-journal");
        let (nth, lands) = (1, false);
        let died = die(&scene, &before, At { kind, nth, lands }, seed + 1);
        let (left, request) = died.expect("a destage has a journal");
        deaths.count(&request);
        judge(&scene, &left).unwrap_or_else(|broken| panic!("killed at a {request}: {broken}"));
    }
    deaths.tell("one death", start);
    // With a larger step some are left out.
    if step > 1 {
        return;
    }
    for needed in [
        "write cache",
        "sync cache",
        "write journal",
        "write ledger",
        "write image",
    ] {
        assert!(deaths.by_request.contains_key(needed), "{needed}");
    }
}

/// A journal is applied while its volume is served, so a daemon that is ready goes on until it
/// dies of that. `left` by one that died in its destage.
fn dies_while_it_serves(scene: &Scene, left: &Still, deaths: &mut Deaths) {
    for lands in [false, true] {
        scene.load(left.image.clone(), Some(&left.stage));
        scene.shelf.set_trap(Some(APPLIES), 1, lands);
        let starting = scene.rig.start();
        scene.shelf.aim(starting.pid());
        if let Ok(mut daemon) = starting.wait() {
            wait_until("the journal is applied", PATIENCE, || !daemon.is_alive());
        }
        let request = scene.shelf.sprung().expect("it died of that");
        deaths.count(&request);
        judge(scene, left).unwrap_or_else(|broken| {
            panic!("killed in a destage, then at a {request} while it serves: {broken}")
        });
    }
}

/// Fails when: the stage is cleared before the new checkpoint is written (`ClearStageEarly`).
#[test]
fn a_recovery_that_dies_at_any_request_loses_nothing_acknowledged() {
    let test = "a_recovery_that_dies_at_any_request_loses_nothing_acknowledged";
    if !may_mount(test) {
        return;
    }
    let (seed, start) = (seed(24), Instant::now());
    let scene = Scene::new(&VOLUMES);
    let before = live_before(&scene, seed);
    let mut deaths = Deaths::default();
    for (first, left) in first_deaths(&scene, &before, seed) {
        if first == APPLIES {
            dies_while_it_serves(&scene, &left, &mut deaths);
        }
        for nth in 1..REQUESTS_MAX {
            let lands = nth.is_multiple_of(2);
            scene.load(left.image.clone(), Some(&left.stage));
            scene.shelf.set_trap(None, nth, lands);
            let starting = scene.rig.start();
            scene.shelf.aim(starting.pid());
            drop(starting.wait().map(Daemon::kill));
            let Some(request) = scene.shelf.sprung() else {
                break;
            };
            deaths.count(&request);
            judge(&scene, &left).unwrap_or_else(|broken| {
                panic!("killed at a {first}, then in recovery at {nth}, a {request}: {broken}")
            });
        }
    }
    deaths.tell("two deaths", start);
    assert!(
        deaths.by_request.contains_key("write image"),
        "a journal is applied"
    );
}

/// What deaths at different requests left, as many as asked for.
fn first_deaths(scene: &Scene, before: &Still, seed: u64) -> Vec<(String, Still)> {
    let most = count("TENUTO_SECOND_DEATHS", FIRST_DEATHS.len() as u64) as usize;
    let found = FIRST_DEATHS.iter().take(most).map(|&(kind, nth)| {
        let at = At {
            kind: Some(kind),
            nth,
            lands: false,
        };
        let (left, request) = die(scene, before, at, seed + 1).expect("such a request is made");
        (request, left)
    });
    found.collect()
}

impl Deaths {
    fn tell(&self, what: &str, start: Instant) {
        let seconds = start.elapsed().as_secs();
        eprintln!(
            "{what}: {} times, {seconds} s: {:?}",
            self.all, self.by_request
        );
    }
}
