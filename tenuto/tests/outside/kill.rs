//! The kill drill: `kill -9` of the real binary under load, verified block by block.
//!
//! Three volumes are under load at once, one of each way to keep a promise over a kill. In each
//! round the daemon dies, by a signal from outside or in the middle of a named piece of work, is
//! started again, and everything acknowledged must be there. The rounds go on until each place
//! was hit often enough and the log was used up several times.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use workload::check::{Crash, Promise};

use crate::common::load::{End, Life, Load, Mix};
use crate::common::marks::{Marks, PHASES};
use crate::common::{Rig, SetWhenDropped, copy_with_neighbours, count, seed};
use workload::rng::Rng;

const VOLUME_BYTES: u64 = 48 << 20;
const KILLS_IN_EACH_PHASE: u64 = 3;
const LOG_WRAPS: u64 = 2;
/// The drill ends in failure when it has not hit everything by then.
const ROUNDS_MAX: u64 = 120;

const VOLUMES: [(&str, &str, &str, Promise); 3] = [
    (
        "atomic",
        "write-back",
        "destage = \"atomic\"\ndestage-after = \"1s\"",
        Promise::Prefix,
    ),
    (
        "in-place",
        "write-back",
        "destage = \"in-place\"\ndestage-after = \"1s\"",
        Promise::Prefix,
    ),
    (
        "overlay",
        "ephemeral",
        "overlay-ram = \"8MiB\"",
        Promise::Volatile,
    ),
];

struct Drill {
    rig: Rig,
    marks: Marks,
    loads: Vec<Load>,
    random: Rng,
    kills: [u64; PHASES.len()],
    segments: u64,
    segments_reused: u64,
}

/// What the round's threads tell each other.
#[derive(Default)]
struct Round {
    over: AtomicBool,
    segments: AtomicU64,
    segments_reused: AtomicU64,
}

impl Drill {
    fn new(seed: u64) -> Drill {
        let mut rig = Rig::new();
        let cache = rig.cache_path();
        rig.cache(
            &cache,
            "128MiB",
            "ram = \"8MiB\"\nstage = \"8MiB\"\noverlay-ram = \"8MiB\"",
        );
        let mut loads = Vec::new();
        for (number, (name, policy, lines, promise)) in VOLUMES.into_iter().enumerate() {
            let image = rig.image(&format!("{name}.img"), VOLUME_BYTES);
            rig.volume(name, &image, policy, lines);
            let mut load = Load::new(number as u64 + 1, VOLUME_BYTES, promise, seed);
            if promise == Promise::Volatile {
                // Its data is never destaged, so that its volume bounds what it takes of the log.
                load.mix = Mix {
                    sectors_max: 128,
                    ..Mix::default()
                };
            }
            loads.push(load);
        }
        let marks = Marks::new(&rig.dir.join("marks"));
        let path = marks.path().to_string_lossy().into_owned();
        rig.env("TENUTO_MARKS", &path);
        Drill {
            rig,
            marks,
            loads,
            random: Rng::new(seed),
            kills: [0; PHASES.len()],
            segments: 0,
            segments_reused: 0,
        }
    }

    /// The phase that was hit least; `None` means a kill from outside, at any moment.
    fn next_target(&mut self, round: u64) -> Option<u64> {
        if round % 4 == 3 {
            return None;
        }
        let least = (0..PHASES.len())
            .min_by_key(|&at| self.kills[at])
            .expect("there are phases");
        Some(PHASES[least].0)
    }

    /// Phases in which the daemon was when it died.
    fn count_kills(&mut self) -> Vec<u64> {
        let phases = self.marks.died_in();
        for &phase in &phases {
            self.kills[phase as usize - 1] += 1;
        }
        phases
    }

    /// One life and one death of the daemon under load.
    fn live_and_die(&mut self, target: Option<u64>) {
        let daemon = self.rig.serve();
        let patience = 1 + self.random.below(400);
        // Before anything is armed: it may die at once.
        let clients: Vec<_> = VOLUMES
            .iter()
            .map(|(name, ..)| self.rig.connect(name))
            .collect();
        // Recovery happens before anybody can load the daemon: it dies at the next start.
        let armed = target.filter(|&phase| phase != 7);
        let life = match armed {
            None => Life::Answers(patience),
            Some(phase) => {
                self.marks.arm(phase, 1 + self.random.below(12));
                Life::UntilMark
            }
        };
        let round = Round::default();
        let start = Instant::now();
        std::thread::scope(|scope| {
            let loads: Vec<_> = self
                .loads
                .iter_mut()
                .zip(clients)
                .map(|(load, client)| {
                    let (daemon, round) = (&daemon, &round);
                    let before = load.counts.answered;
                    scope.spawn(move || {
                        let _over = SetWhenDropped(&round.over);
                        load.run(client, |counts| {
                            if life.is_over(counts.answered - before, start) {
                                daemon.signal(libc::SIGKILL);
                            }
                            true
                        })
                    })
                })
                .collect();
            let (rig, round) = (&self.rig, &round);
            scope.spawn(move || destage_again_and_again(rig, round));
            for load in loads {
                let end = load.join().expect("the load's thread does not panic");
                let end = end.unwrap_or_else(|violation| panic!("under load: {violation}"));
                assert_eq!(end, End::Broken, "only a kill ends the load");
            }
        });
        daemon.kill();
        self.marks.disarm();
        let phases = self.count_kills();
        if let Some(phase) = armed {
            let name = PHASES[phase as usize - 1].1;
            assert!(phases.contains(&phase), "not reached under load: {name}");
        }
        self.segments = self.segments.max(round.segments.into_inner());
        self.segments_reused += round.segments_reused.into_inner();
    }

    /// A start that dies while it recovers, then.
    fn die_in_recovery(&mut self) {
        self.marks.arm(7, 1 + self.random.below(4));
        match self.rig.try_serve() {
            // Little to recover: the armed entry was not reached.
            Ok(daemon) => drop(daemon.kill()),
            Err((status, log)) => {
                assert_eq!(
                    status.code(),
                    None,
                    "ended by itself, not by the mark:\n{log}"
                );
            }
        }
        self.marks.disarm();
        self.count_kills();
    }

    /// Starts, reads every sector of every volume, judges. The daemon is stopped in order every
    /// second time, so that both ways lead into the next round.
    fn verify(&mut self, round: u64) {
        let daemon = self.rig.serve();
        for (load, (name, ..)) in self.loads.iter_mut().zip(VOLUMES) {
            let mut client = self.rig.connect(name);
            let found = load
                .verify(Crash::Kill, &mut client)
                .unwrap_or_else(|violation| {
                    panic!(
                        "round {round}, volume {name}: {violation}\n{}",
                        daemon.log()
                    )
                });
            assert!(found.cut >= found.floor);
            client.disconnect();
        }
        if round.is_multiple_of(2) {
            daemon.stop();
        } else {
            daemon.kill();
        }
    }

    fn is_complete(&self, round: u64, rounds_min: u64) -> bool {
        let wrapped = self.segments > 0 && self.segments_reused >= LOG_WRAPS * self.segments;
        round >= rounds_min && wrapped && self.kills.iter().all(|&k| k >= KILLS_IN_EACH_PHASE)
    }

    fn tell(&self, round: u64) -> String {
        let kills: Vec<String> = PHASES
            .iter()
            .zip(self.kills)
            .map(|((phase, name), kills)| {
                format!("{name} {kills} (of {} entries)", self.marks.entries(*phase))
            })
            .collect();
        let bytes: u64 = self
            .loads
            .iter()
            .map(|load| load.counts.written_bytes)
            .sum();
        format!(
            "{round} rounds, {} MiB written, {} segments reused of {}, kills inside: {}",
            bytes >> 20,
            self.segments_reused,
            self.segments,
            kills.join(", ")
        )
    }
}

/// Keeps the destager busy through the administrator's command, and notes how far the log came.
fn destage_again_and_again(rig: &Rig, round: &Round) {
    while !round.over.load(Ordering::SeqCst) {
        // Any of these may fail, because the daemon may be dead by now.
        rig.tenuto(&["volume", "destage", "--all"]);
        let output = rig.tenuto(&["status", "--json"]);
        let Ok(status) = serde_json::from_slice::<serde_json::Value>(&output.stdout) else {
            continue;
        };
        let cache = &status["cache"];
        if let Some(reused) = cache["segments_reused"].as_u64() {
            round.segments_reused.store(reused, Ordering::SeqCst);
            let kinds = cache["segments"].as_object().expect("segments by kind");
            let all = kinds.values().filter_map(serde_json::Value::as_u64).sum();
            round.segments.store(all, Ordering::SeqCst);
        }
    }
}

/// Fails when: recovery does not write to the log what only the stage has (`LeaveInStage`).
#[test]
fn nothing_acknowledged_is_lost_when_the_daemon_is_killed() {
    let rounds_min = count("TENUTO_DRILL_ROUNDS", 6);
    let mut drill = Drill::new(seed(1));
    for round in 0..ROUNDS_MAX.max(2 * rounds_min) {
        let target = drill.next_target(round);
        drill.live_and_die(target);
        if target == Some(7) {
            drill.die_in_recovery();
        }
        drill.verify(round);
        if drill.is_complete(round + 1, rounds_min) {
            eprintln!("{}", drill.tell(round + 1));
            return;
        }
    }
    panic!(
        "the drill did not hit everything: {}",
        drill.tell(ROUNDS_MAX)
    );
}

/// The cut that destage leaves on the image: with `atomic` the image itself, after its journal
/// was replayed, is a prefix of the writes at every instant.
/// Fails when: a pending journal is not finished before its volume is served (`SkipReplay`).
#[test]
fn the_origin_of_an_atomic_volume_is_a_prefix_after_every_kill() {
    let seed = seed(2);
    let mut rig = Rig::new();
    let bytes = 16 << 20;
    let image = rig.image("disk.img", bytes);
    rig.volume(
        "disk",
        &image,
        "write-back",
        "destage = \"atomic\"\ndestage-after = \"1s\"",
    );
    let mut random = Rng::new(seed);
    let mut load = Load::new(1, bytes, Promise::Prefix, seed);
    let rounds = count("TENUTO_DRILL_ROUNDS", 6);
    let mut newest_on_origin = 0;
    for round in 0..rounds {
        let daemon = rig.serve();
        let life = Life::Answers(50 + random.below(600));
        load.run_until_killed(&rig, "disk", (daemon, life), || {});
        let copy = rig.dir.join("copy.img");
        copy_with_neighbours(&image, &copy);
        rig.done(&["origin", "replay", &copy.to_string_lossy()]);
        let cut = load
            .examine(&copy)
            .unwrap_or_else(|violation| panic!("round {round}: the origin: {violation}"));
        newest_on_origin = newest_on_origin.max(cut);
        let daemon = rig.serve();
        let mut client = rig.connect("disk");
        load.verify(Crash::Kill, &mut client)
            .unwrap_or_else(|violation| panic!("round {round}: {violation}"));
        client.disconnect();
        // The next round's model starts from here, and so must the image.
        rig.done(&["volume", "destage", "disk", "--wait"]);
        daemon.stop();
    }
    assert!(newest_on_origin > 0, "destage never reached the origin");
}
