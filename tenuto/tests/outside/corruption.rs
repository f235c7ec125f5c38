//! The corruption sweep: every structure and every field of it, damaged in every way.
//!
//! A host is left at rest in five states: killed, killed again when it had recovered, stopped in
//! order and killed later, killed with data that only the stage has, and in the middle of an
//! application of its journal. Then each structure that lies there is damaged: a bit of each field
//! flipped, each field zeroed, the whole zeroed, exchanged with another of its kind, and replaced
//! by what lay there before. Whatever a guest can still read must be right; what it cannot read,
//! `cache verify`, `origin inspect` or a scrub must have named, or `status -x` where a whole volume
//! is held. Prints a table of structure, damage and outcome.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use engine::format::checksum;
use engine::format::ledger::{Ledger, Progress};
use engine::format::record::{self, Record};
use serde_json::Value;
use workload::check::{Crash, Kind, Model, Promise, Violation};
use workload::stamp::{self, SECTOR_BYTES};

use crate::common::anatomy::{self, Part, fields};
use crate::common::history::History;
use crate::common::nbd::Client;
use crate::common::scene::{
    ATOMIC, CACHE, OVERLAY, SECTORS, Scene, Script, Stage, Volume, image_name,
};
use crate::common::shelf::{Change, Image, Tape};
use crate::common::{
    EXIT_DAMAGE, EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, EXIT_USAGE, count, may_mount, seed,
    wait_until,
};
use workload::rng::Rng;

/// Room for clean blocks beside what is dirty.
const SEGMENTS: u32 = 32;
const ROUNDS: u64 = 6;
const DESTAGE_EVERY: u64 = 3;
const PATIENCE: Duration = Duration::from_secs(60);
/// Looks at the log without a new line in it, after which a daemon is at rest.
const QUIET_LOOKS: u32 = 200;
/// What is read at once; where that fails block by block, so that damage takes no more than it
/// must.
const PART_BYTES: usize = 64 << 10;
const BLOCK_BYTES: usize = 4096;
/// Brought to its image by a command only, so that what is recovered stays dirty.
const KEPT: Volume = Volume {
    lines: "destage = \"atomic\"\ndestage-after = \"never\"",
    ..ATOMIC
};
/// The state in which a ledger and a journal say most.
const IN_JOURNAL: &str = "in the journal";
const LEDGER: &str = "atomic.img.tenuto";
const JOURNAL: &str = "atomic.img.tenuto-journal";

/// A host at rest, and what its guests know.
struct State {
    name: &'static str,
    image: Image,
    stage: Option<Stage>,
    histories: Vec<History>,
    /// What each guest reads before anything is damaged.
    contents: Vec<Vec<u8>>,
    tape: Tape,
}

/// Where a part lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    File(&'static str),
    Stage,
}

#[derive(Clone, Debug)]
struct Case {
    place: Place,
    part: Part,
    /// The same structure a second time; damaged as well.
    twin: Option<Part>,
    damage: Damage,
}

#[derive(Clone, Debug)]
enum Damage {
    /// A bit of a field, by its place in the part.
    Flip {
        field: String,
        at: usize,
        bit: u8,
    },
    /// A field, filled with ones where it is zero.
    Zero {
        field: String,
        at: usize,
        bytes: usize,
    },
    Blank,
    Exchange(Part),
    Stale(Vec<u8>),
}

impl Damage {
    fn name(&self) -> &'static str {
        match self {
            Damage::Flip { .. } => "field flipped",
            Damage::Zero { .. } => "field zeroed",
            Damage::Blank => "zeroed",
            Damage::Exchange(_) => "exchanged",
            Damage::Stale(_) => "stale",
        }
    }

    /// False where it changes nothing.
    fn apply(&self, file: &mut [u8], part: &Part) -> bool {
        let before = file.to_vec();
        match self {
            Damage::Flip { at, bit, .. } => file[part.at + at] ^= 1 << bit,
            Damage::Zero { at, bytes, .. } => {
                let field = &mut file[part.at + at..part.at + at + bytes];
                let fill = if field.iter().all(|it| *it == 0) {
                    0xFF
                } else {
                    0
                };
                field.fill(fill);
            }
            Damage::Blank => file[part.at..part.at + part.bytes].fill(0),
            Damage::Exchange(other) => {
                let (at, to, bytes) = (part.at, other.at, part.bytes.min(other.bytes));
                file[at..at + bytes].copy_from_slice(&before[to..to + bytes]);
                file[to..to + bytes].copy_from_slice(&before[at..at + bytes]);
            }
            Damage::Stale(old) => file[part.at..part.at + old.len()].copy_from_slice(old),
        }
        file != before
    }
}

/// What came of a damage.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// All is right and nobody says anything: a second copy, or nothing that counts.
    Unharmed,
    /// All is right, and the damage was named.
    Repaired,
    /// Input/output errors of the range, named.
    Errors,
    /// A volume is held and refuses with words.
    Held,
    /// The daemon does not start.
    Refused(i32),
    /// Data that only the stage had is cut off at an earlier point.
    Earlier,
    /// Of an overlay that only the stage had, writes are lost and later ones are there.
    Holes,
}

impl Outcome {
    fn name(&self) -> String {
        match self {
            Outcome::Unharmed => "unharmed".into(),
            Outcome::Repaired => "repaired".into(),
            Outcome::Errors => "EIO".into(),
            Outcome::Held => "held".into(),
            Outcome::Refused(code) => format!("refused {code}"),
            Outcome::Earlier => "earlier".into(),
            Outcome::Holes => "holes".into(),
        }
    }
}

fn scene() -> Scene {
    let scene = Scene::with_log_of(SEGMENTS, &[KEPT, OVERLAY]);
    // The base of the overlay is a settled image, so that its blocks go to the cache.
    let mut base = vec![0; SECTORS as usize * SECTOR_BYTES];
    stamp::fill(&mut base, 2, 0, 0);
    scene.shelf.put_old(&image_name(OVERLAY.name), base);
    scene
}

fn histories(scene: &Scene) -> Vec<History> {
    let mut histories = scene.histories();
    let overlay = histories.pop().expect("two volumes");
    histories.push(overlay.on_stamps());
    histories
}

fn wait_for_rest(scene: &Scene) {
    let (mut last, mut looks) = (0, 0);
    wait_until("the daemon is at rest", PATIENCE, || {
        let now = scene.shelf.position();
        looks = if now == last { looks + 1 } else { 0 };
        last = now;
        looks >= QUIET_LOOKS
    });
}

/// Reads the base until its blocks are on the device.
fn fill_clean(scene: &Scene) {
    let all = SECTORS * SECTOR_BYTES as u64;
    wait_until("clean blocks are on the device", PATIENCE, || {
        let mut client = scene.rig.connect(OVERLAY.name);
        client.read(0, all as usize);
        client.disconnect();
        let status = scene.rig.json(&["status"]);
        status["cache"]["clean"]["bytes"].as_u64() > Some(all / 2)
    });
}

fn play(scene: &Scene, histories: &mut [History], script: &mut Script, rounds: u64) {
    let mut clients = vec![scene.rig.connect(ATOMIC.name)];
    assert!(script.play(scene, &mut histories[..1], &mut clients, rounds));
}

/// The five states, from the lives of three daemons.
fn states(scene: &Scene, seed: u64) -> Vec<State> {
    let start = scene.shelf.image();
    scene.shelf.load(start.clone());
    let mut histories = histories(scene);
    let mut script = Script::new(seed, DESTAGE_EVERY);
    let mut states = Vec::new();
    let daemon = scene.rig.serve();
    fill_clean(scene);
    play(scene, &mut histories, &mut script, ROUNDS + 2);
    wait_for_rest(scene);
    daemon.kill();
    states.push(at_rest(scene, "killed", &histories, &start));
    let daemon = scene.rig.serve();
    wait_for_rest(scene);
    daemon.kill();
    states.push(at_rest(scene, "recovered", &histories, &start));
    let daemon = scene.rig.serve();
    play(scene, &mut histories, &mut script, ROUNDS);
    daemon.stop();
    let daemon = scene.rig.serve();
    play(scene, &mut histories, &mut script, 2);
    wait_for_rest(scene);
    daemon.kill();
    states.push(at_rest(scene, "stopped before", &histories, &start));
    states.push(in_stage(scene, &mut histories, &start));
    states.extend(in_journal(states.last().expect("some states")));
    for state in &mut states {
        look(scene, state);
    }
    states
}

fn at_rest(scene: &Scene, name: &'static str, histories: &[History], start: &Image) -> State {
    State {
        name,
        image: scene.shelf.image(),
        stage: None,
        histories: histories.to_vec(),
        contents: Vec::new(),
        tape: Tape {
            start: start.clone(),
            log: scene.shelf.log(),
        },
    }
}

/// Killed right after writes that nobody flushed, on both volumes.
fn in_stage(scene: &Scene, histories: &mut [History], start: &Image) -> State {
    let daemon = scene.rig.serve();
    let mut clients = scene.clients().expect("the daemon lives");
    for (history, client) in histories.iter_mut().zip(&mut clients) {
        for at in 0..4 {
            assert!(history.send(client, Kind::Stamp, 0, 64 + at * 40, 24));
        }
        assert!(history.settle(client));
    }
    daemon.kill();
    let mut state = at_rest(scene, "in the stage", histories, start);
    state.stage = Some(scene.stage());
    state
}

/// The last moment at which the ledger asked for a journal, and half of it was applied.
fn in_journal(of: &State) -> Option<State> {
    let asks = |image: &Image| {
        let ledger = image.get(LEDGER)?;
        let ledger = Ledger::parse_file(&ledger.bytes).ok()??;
        matches!(ledger.progress, Progress::Apply { .. }).then_some(())
    };
    let lines = of.tape.log.len();
    let applied = |upto: &usize| {
        let line = &of.tape.log[upto - 1];
        let writes = matches!(line.change, Change::Write { .. });
        writes && line.file == image_name(ATOMIC.name) && asks(&of.tape.prefix(*upto)).is_some()
    };
    let upto = (1..=lines)
        .rev()
        .find(applied)
        .expect("a journal is applied");
    Some(State {
        name: IN_JOURNAL,
        image: of.tape.prefix(upto),
        stage: None,
        histories: of.histories.clone(),
        contents: Vec::new(),
        tape: Tape {
            start: of.tape.start.clone(),
            log: of.tape.log[..upto].to_vec(),
        },
    })
}

/// What the guests see of a state, undamaged; nobody may find fault with it.
fn look(scene: &Scene, state: &mut State) {
    scene.load(state.image.clone(), state.stage.as_ref());
    let named = named_offline(scene);
    assert!(named.is_none(), "{}: {named:?}", state.name);
    let seen = serve_and_read(scene, state, true).expect("all is right before the damage");
    assert_eq!(seen.outcome, Outcome::Unharmed, "{}", state.name);
    state.contents = seen.contents;
}

/// What `cache verify` and `origin inspect` have against it.
fn named_offline(scene: &Scene) -> Option<String> {
    let cache = scene.path(CACHE).to_string_lossy().into_owned();
    let image = scene.path(&image_name(ATOMIC.name));
    let image = image.to_string_lossy().into_owned();
    let commands = [["cache", "verify", &cache], ["origin", "inspect", &image]];
    commands.iter().find_map(|command| {
        let output = scene.rig.tenuto(&[&command[..], &["--json"]].concat());
        let code = output.status.code();
        assert!(
            [EXIT_DONE, EXIT_DAMAGE, EXIT_USAGE, 1]
                .map(Some)
                .contains(&code),
            "{command:?}: {code:?}"
        );
        let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let clean = said["bad_clean_blocks"].as_u64().unwrap_or(0);
        let bad = code != Some(EXIT_DONE) || clean > 0;
        bad.then(|| format!("{} {}: {code:?} {said}", command[0], command[1]))
    })
}

/// What a start and its guests made of a state.
struct Seen {
    outcome: Outcome,
    contents: Vec<Vec<u8>>,
    named: Option<String>,
}

/// Starts on the state that was loaded, reads everything, scrubs. The error says what is wrong.
fn serve_and_read(scene: &Scene, state: &State, strict: bool) -> Result<Seen, String> {
    let daemon = match scene.rig.try_serve() {
        Ok(daemon) => daemon,
        Err((status, log)) => {
            let code = status.code().ok_or(format!("died, {status}\n{log}"))?;
            let right = [EXIT_USAGE, EXIT_REFUSED, EXIT_DAMAGE].contains(&code);
            return match right {
                false => Err(format!("did not start, {status}\n{log}")),
                true => Ok(Seen {
                    outcome: Outcome::Refused(code),
                    contents: Vec::new(),
                    named: None,
                }),
            };
        }
    };
    let (mut outcome, mut contents) = (Outcome::Unharmed, Vec::new());
    for (at, volume) in scene.volumes.iter().enumerate() {
        let Ok(mut client) = Client::connect(&scene.rig.socket(volume.name), "") else {
            let shown = scene.rig.show(volume.name);
            if shown["state"] != "held" {
                return Err(format!("{} refuses and is not held: {shown}", volume.name));
            }
            outcome = outcome.max(Outcome::Held);
            contents.push(Vec::new());
            continue;
        };
        let (bytes, errors) = read_all(&mut client, state.contents.get(at));
        client.disconnect();
        if errors > 0 {
            outcome = outcome.max(Outcome::Errors);
        }
        let judged = judge(state, at, &bytes, strict);
        let judged = judged.map_err(|broken| format!("{}: {broken}", volume.name));
        outcome = outcome.max(judged.map_err(|broken| format!("{broken}\n{}", daemon.log()))?);
        contents.push(bytes);
    }
    let cache = scene.path(CACHE).to_string_lossy().into_owned();
    let scrubbed = scene.rig.tenuto(&["cache", "scrub", &cache]);
    let status = scene.rig.json(&["status"]);
    let bad_clean = status["cache"]["clean"]["bad_blocks"].as_u64() > Some(0);
    let wrong = scene.rig.tenuto(&["status", "-x"]);
    let held = outcome == Outcome::Held && wrong.status.code() == Some(EXIT_FAILED);
    let named = !scrubbed.status.success() || bad_clean || held;
    let named = named.then(|| String::from_utf8_lossy(&wrong.stdout).into_owned());
    daemon.kill();
    Ok(Seen {
        outcome,
        contents,
        named,
    })
}

/// All of a volume; where that is an error the sectors that were there before any damage. How
/// many reads failed.
fn read_all(client: &mut Client, before: Option<&Vec<u8>>) -> (Vec<u8>, u64) {
    let mut bytes = vec![0; SECTORS as usize * SECTOR_BYTES];
    let mut errors = 0;
    for (index, part) in bytes.chunks_mut(PART_BYTES).enumerate() {
        let at = index * PART_BYTES;
        if client.try_read(at as u64, part).is_ok() {
            continue;
        }
        for (block, sectors) in part.chunks_mut(BLOCK_BYTES).enumerate() {
            let at = at + block * BLOCK_BYTES;
            if client.try_read(at as u64, sectors).is_err() {
                errors += 1;
                if let Some(before) = before {
                    sectors.copy_from_slice(&before[at..at + sectors.len()]);
                }
            }
        }
    }
    (bytes, errors)
}

/// Holds what was read against what the guest knows.
fn judge(state: &State, at: usize, bytes: &[u8], strict: bool) -> Result<Outcome, Violation> {
    let mut model: Model = state.histories[at].model_at(state.tape.log.len());
    let read = |range: std::ops::Range<u64>, sectors: &mut [u8]| {
        let from = range.start as usize * SECTOR_BYTES;
        sectors.copy_from_slice(&bytes[from..from + sectors.len()]);
        Ok(())
    };
    let crash = match state.stage {
        Some(_) => Crash::Kill,
        None => Crash::PowerLoss,
    };
    let judged = model.verify(crash, read);
    match judged {
        Ok(_) => Ok(Outcome::Unharmed),
        Err(violation) if strict || state.stage.is_none() => Err(violation),
        // What only a damaged stage had is gone; what is left is an earlier moment all the same,
        // with all that was flushed. An overlay owes nothing without its stage.
        Err(_) => match model.examine(Promise::Prefix, read) {
            Ok(_) => Ok(Outcome::Earlier),
            Err(Violation::Lost { .. }) if at == 1 => Ok(Outcome::Earlier),
            // Not what is wanted: see "What is not covered" in docs/verification.md.
            Err(_) if at == 1 => model
                .examine(Promise::Sectors, read)
                .map(|_| Outcome::Holes),
            Err(violation) => Err(violation),
        },
    }
}

/// All parts of a state, by place.
fn parts(state: &State) -> Vec<(Place, Vec<Part>)> {
    let mut found = Vec::new();
    match &state.stage {
        Some(stage) => found.push((Place::Stage, anatomy::of_stage(stage_file(stage)))),
        None => found.push((
            Place::File(CACHE),
            anatomy::of_cache(&state.image[CACHE].bytes),
        )),
    }
    if let Some(ledger) = state.image.get(LEDGER) {
        found.push((Place::File(LEDGER), anatomy::of_ledger(&ledger.bytes)));
    }
    if let Some(journal) = state
        .image
        .get(JOURNAL)
        .filter(|_| state.name == IN_JOURNAL)
    {
        found.push((Place::File(JOURNAL), anatomy::of_journal(&journal.bytes)));
    }
    found
}

fn stage_file(stage: &Stage) -> &[u8] {
    stage.files.values().next().expect("a stage")
}

/// What is damaged of the parts of one kind.
struct Chosen {
    part: Part,
    twin: Option<Part>,
    /// Field by field as well: of what is there twice both, as one is enough.
    fields: bool,
}

/// Of each kind the newest one, an older one, and of two both at once.
fn chosen(parts: &[Part]) -> Vec<Chosen> {
    let mut kinds: BTreeMap<&str, Vec<&Part>> = BTreeMap::new();
    for part in parts {
        kinds.entry(part.structure).or_default().push(part);
    }
    let mut chosen = Vec::new();
    for mut kind in kinds.into_values() {
        kind.sort_by_key(|part| part.age);
        let mut choose = |part: &Part, which, twin: Option<&Part>, fields| {
            chosen.push(Chosen {
                part: Part {
                    which,
                    ..part.clone()
                },
                twin: twin.cloned(),
                fields,
            });
        };
        let newest = kind[kind.len() - 1];
        choose(newest, "newest", None, kind.len() != 2);
        if kind.len() > 1 {
            choose(kind[kind.len() - 2], "older", None, false);
        }
        if kind.len() == 2 {
            choose(newest, "both", Some(kind[0]), true);
        }
    }
    chosen
}

/// What lay at the place of a part before, where that was something else and of the same kind.
fn stale(state: &State, file: &str, part: &Part) -> Option<Vec<u8>> {
    let range = part.at..part.at + part.bytes;
    let now = state.image[file].bytes.get(range.clone())?;
    let sealed = now.starts_with(b"TENUTO");
    let mut bytes = state
        .tape
        .start
        .get(file)
        .map_or(Vec::new(), |it| it.bytes.clone());
    let mut found = None;
    for line in state.tape.log.iter().filter(|line| line.file == file) {
        let Change::Write { offset, bytes: new } = &line.change else {
            continue;
        };
        let end = offset + new.len();
        bytes.resize(bytes.len().max(end).max(range.end), 0);
        bytes[*offset..end].copy_from_slice(new);
        let here = &bytes[range.clone()];
        let of_kind = !sealed || here[..12] == now[..12];
        if here != now && of_kind && here.iter().any(|byte| *byte != 0) {
            found = Some(here.to_vec());
        }
    }
    found
}

/// Every field of a part, the prefix taken apart.
fn fields_of(part: &Part) -> Vec<anatomy::Field> {
    if part.structure.starts_with(char::is_lowercase) {
        let name = "bytes".to_owned();
        let bytes = part.bytes;
        return vec![anatomy::Field { name, at: 0, bytes }];
    }
    let all = fields(part.structure).into_iter();
    all.flat_map(|field| match field.name.as_str() {
        "prefix" => fields("Prefix"),
        _ => vec![field],
    })
    .collect()
}

fn cases(state: &State, seen: &mut Vec<&'static str>, random: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    for (place, parts) in parts(state) {
        for Chosen { part, twin, fields } in chosen(&parts) {
            let mut add = |damage| {
                cases.push(Case {
                    place,
                    part: part.clone(),
                    twin: twin.clone(),
                    damage,
                })
            };
            add(Damage::Blank);
            let mut others = parts
                .iter()
                .filter(|other| other.structure == part.structure && other.at != part.at);
            if twin.is_none() {
                others
                    .next_back()
                    .into_iter()
                    .for_each(|it| add(Damage::Exchange(it.clone())));
            }
            if let Place::File(file) = place {
                stale(state, file, &part)
                    .into_iter()
                    .for_each(|it| add(Damage::Stale(it)));
            }
            let again = seen.contains(&part.structure) && state.name != IN_JOURNAL;
            if fields && !again {
                for field in fields_of(&part) {
                    let (at, bytes) = (field.at, field.bytes);
                    add(Damage::Flip {
                        field: field.name.clone(),
                        at: at + random.below(bytes as u64) as usize,
                        bit: random.below(8) as u8,
                    });
                    let field = field.name;
                    add(Damage::Zero { field, at, bytes });
                }
            }
        }
        seen.extend(parts.iter().map(|part| part.structure));
    }
    cases
}

/// One damage from its making to its outcome; `None` where it changed nothing.
fn try_case(scene: &Scene, state: &State, case: &Case) -> Option<Result<Outcome, String>> {
    let (mut image, mut stage) = (state.image.clone(), state.stage.clone());
    let file = match case.place {
        Place::File(name) => &mut image.get_mut(name).expect("it is there").bytes,
        Place::Stage => {
            let stage = stage.as_mut().expect("a state with a stage");
            stage.files.values_mut().next().expect("a stage")
        }
    };
    let parts = std::iter::once(&case.part).chain(&case.twin);
    let changed = parts.map(|part| case.damage.apply(file, part));
    if !changed.fold(false, |any, one| any | one) {
        return None;
    }
    scene.load(image, stage.as_ref());
    let offline = named_offline(scene);
    Some(serve_and_read(scene, state, false).and_then(|seen| {
        let named = offline.or(seen.named);
        match (seen.outcome, named) {
            (Outcome::Unharmed, Some(_)) => Ok(Outcome::Repaired),
            // The stage has nothing that a tool without a daemon could miss.
            (outcome @ (Outcome::Unharmed | Outcome::Earlier | Outcome::Holes), _) => Ok(outcome),
            (outcome, Some(_)) => Ok(outcome),
            (outcome, None) => Err(format!("{}, and nobody names it", outcome.name())),
        }
    }))
}

type Table = BTreeMap<(String, &'static str), BTreeMap<Outcome, u64>>;

fn tell(table: &Table) {
    eprintln!("{:<26} {:<14} outcomes", "structure", "damage");
    for ((structure, damage), outcomes) in table {
        let outcomes: Vec<String> = outcomes
            .iter()
            .map(|(outcome, count)| format!("{} {count}", outcome.name()))
            .collect();
        eprintln!("{structure:<26} {damage:<14} {}", outcomes.join(", "));
    }
}

/// Fails when: the checksum of a block of the log is not compared (`DropLogSum`).
#[test]
fn no_damage_to_any_structure_is_ever_wrong_data() {
    if !may_mount("no_damage_to_any_structure_is_ever_wrong_data") {
        return;
    }
    let (seed, start) = (seed(25), Instant::now());
    let scene = scene();
    let states = states(&scene, seed);
    let mut random = Rng::new(seed);
    let (mut table, mut wrong, mut seen) = (Table::new(), Vec::new(), Vec::new());
    let (mut tried, mut made) = (0u64, 0u64);
    let step = count("TENUTO_CORRUPTION_STEP", 1);
    for state in &states {
        for case in cases(state, &mut seen, &mut random) {
            made += 1;
            if !made.is_multiple_of(step) {
                continue;
            }
            let Some(result) = try_case(&scene, state, &case) else {
                continue;
            };
            tried += 1;
            let Case { part, damage, .. } = &case;
            match result {
                Ok(outcome) => {
                    let row = format!("{} ({})", part.structure, part.which);
                    let row = table.entry((row, damage.name())).or_default();
                    *row.entry(outcome).or_default() += 1;
                }
                Err(broken) => {
                    let (structure, which) = (part.structure, part.which);
                    let state = state.name;
                    let what = match damage {
                        Damage::Flip { field, at, bit } => {
                            format!("{field} {at} bit {bit} flipped")
                        }
                        Damage::Zero { field, .. } => format!("{field} zeroed"),
                        _ => damage.name().to_owned(),
                    };
                    wrong.push(format!("{state}: {structure} ({which}), {what}: {broken}"));
                }
            }
        }
    }
    tell(&table);
    let seconds = start.elapsed().as_secs();
    eprintln!("{tried} damages in {seconds} s, {} wrong", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n---\n"));
}

/// The newest record with its first block of payload made zero, and all sums made to fit.
fn forge(device: &mut [u8]) {
    let parts = anatomy::of_cache(device);
    let heads = parts.iter().filter(|part| part.structure == "Record head");
    let with_payload = |part: &&Part| {
        let record = record::parse_sealed(&device[part.at..part.at + BLOCK_BYTES]);
        record.is_ok_and(|record| !record.sums.is_empty())
    };
    let newest = heads.filter(with_payload).max_by_key(|part| part.age);
    let at = newest.expect("a record with payload").at;
    let (head, payload) = device[at..].split_at_mut(BLOCK_BYTES);
    let Record {
        shape,
        identity,
        entries,
        mut sums,
    } = record::parse_sealed(head).expect("it was valid");
    payload[..BLOCK_BYTES].fill(0);
    sums[0] = checksum(&[&payload[..BLOCK_BYTES]]);
    let mut from = 0;
    let own = |(_, entry): &(usize, &record::Entry)| entry.inline.is_none();
    for (index, entry) in entries.iter().enumerate().filter(own) {
        let to = from + entry.blocks() as usize;
        let bytes = record::encode_entry(&identity, entry, &sums[from..to]);
        let place = record::ENTRIES_AT + index * record::ENTRY_BYTES;
        head[place..place + record::ENTRY_BYTES].copy_from_slice(&bytes);
        from = to;
    }
    head[shape.sums_at()..shape.sums_at() + 4].copy_from_slice(&sums[0].to_le_bytes());
    record::seal_record(head, entries.len() as u16, sums.len() as u16);
}

/// What no checksum can find the sweep must.
/// Fails when: the sweep does not compare what it reads with what was written.
#[test]
fn the_sweep_notices_wrong_data_whose_sums_are_right() {
    if !may_mount("the_sweep_notices_wrong_data_whose_sums_are_right") {
        return;
    }
    let scene = scene();
    let start = scene.shelf.image();
    scene.shelf.load(start.clone());
    let mut histories = histories(&scene);
    let mut script = Script::new(seed(28), DESTAGE_EVERY);
    let daemon = scene.rig.serve();
    play(&scene, &mut histories, &mut script, ROUNDS + 1);
    wait_for_rest(&scene);
    daemon.kill();
    let mut state = at_rest(&scene, "killed", &histories, &start);
    look(&scene, &mut state);
    let cache = state.image.get_mut(CACHE).expect("the cache");
    forge(&mut cache.bytes);
    scene.load(state.image.clone(), None);
    match serve_and_read(&scene, &state, false) {
        Ok(seen) => panic!("not noticed: {:?}", seen.outcome),
        Err(broken) => eprintln!("seen: {}", broken.lines().next().unwrap_or_default()),
    }
}
