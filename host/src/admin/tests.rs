//! The administrator's rules against a machine of plain data, and the way over the socket.

mod copies;
mod observed;

use super::client::{Client, PATIENT, PROMPT};
use super::server::Server;
use super::*;
use crate::config::{Listen, Value};
use crate::daemon::{Below, Merged};
use crate::error::Kind;
use crate::latency::{Kind as Asked, Recorder};
use crate::limit::Waits;
use engine::event::Tuning;
use engine::snapshot::{CacheState, Counters, SegmentCounts, State};
use engine::types::{DestageMode, Generation, Serial, Time, Uuid};
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A machine that does what it is told and remembers it.
#[derive(Clone, Default)]
struct Fake {
    state: Arc<Mutex<FakeState>>,
}

#[derive(Default)]
struct FakeState {
    volumes: Vec<VolumeSnapshot>,
    clients: Vec<(VolumeId, u64)>,
    waits: BTreeMap<VolumeId, Waits>,
    latency: BTreeMap<VolumeId, Arc<Recorder>>,
    units: BTreeMap<String, Shown>,
    copies: Vec<CopyShown>,
    orders: Vec<String>,
    /// Who hears of the size of a volume.
    resized: Resized,
    /// Its next volume is refused, with the file of this name turned into a directory before.
    breaks: Option<PathBuf>,
}

impl Fake {
    fn state(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().expect("not poisoned")
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut VolumeSnapshot)) {
        let mut state = self.state();
        let volume = state.volumes.iter_mut().find(|volume| volume.name == name);
        change(volume.expect("known"));
    }

    fn orders(&self) -> Vec<String> {
        self.state().orders.clone()
    }

    /// Guests of a volume wait so long, from now on under this policy.
    fn measure(&self, name: &str, policy: Policy) -> Arc<Recorder> {
        let mut state = self.state();
        let volume = state.volumes.iter().find(|volume| volume.name == name);
        let (id, recorder) = (volume.expect("known").id, Recorder::new(policy, Time(0)));
        let recorder = Arc::new(recorder);
        state.latency.insert(id, recorder.clone());
        recorder
    }
}

impl Machine for Fake {
    fn try_held(&self) -> Vec<String> {
        Vec::new()
    }

    fn look(&self) -> Result<Look> {
        let state = self.state();
        Ok(Look {
            pools: BTreeMap::new(),
            images: Default::default(),
            engine: Snapshot {
                volumes: state.volumes.clone(),
                log_bytes: 1 << 30,
                dirty_bytes_max: 1 << 29,
                copy_room: Default::default(),
                live_bytes: 4096,
                index_bytes: 100,
                segments: SegmentCounts {
                    free: 7,
                    write: 1,
                    overlay: 0,
                    sealed: 0,
                    fill: 2,
                },
                ram_blocks: 10,
                ram_blocks_used: 5,
                stage_slots: 4,
                stage_slots_busy: 1,
                overlay_slots: 2,
                overlay_slots_busy: 0,
                evacuated_bytes: 0,
                segments_reused: 0,
                log_writes: 0,
                log_write_ns: 0,
                cache_errors: 0,
                cache_state: CacheState::Good,
                checkpoints: 1,
                lines: engine::snapshot::Lines::default(),
                scrub: None,
            },
            clients: state.clients.clone(),
            waits: state.waits.clone(),
            latency: {
                let all = state.latency.iter();
                all.map(|(id, it)| (*id, it.read(Time(7_000_000_000))))
                    .collect()
            },
            held: Vec::new(),
            watched: BTreeMap::new(),
            noticed: Default::default(),
            units: state.units.clone(),
            copies: state.copies.clone(),
            recovery: Recovery {
                ms: 3,
                tail_bytes_discarded: 0,
                ..Recovery::default()
            },
            counters: vec![("connections", "Open connections.", 0)],
        })
    }

    fn add(&self, settings: VolumeSettings) -> Result<()> {
        let mut state = self.state();
        state.orders.push(format!("add {}", settings.name));
        if let Some(path) = state.breaks.take() {
            std::fs::remove_file(&path).expect("a file");
            std::fs::create_dir(&path).expect("made");
            return Err(Error::refused("the machine is full"));
        }
        let id = VolumeId(state.volumes.len() as u32);
        state.volumes.push(snapshot(id, &settings));
        Ok(())
    }

    fn add_or_hold(&self, settings: VolumeSettings) -> Result<Option<String>> {
        self.add(settings).map(|()| None)
    }

    fn tune(&self, settings: VolumeSettings) -> Result<()> {
        let limit = settings.dirty_limit_bytes;
        self.state()
            .orders
            .push(format!("tune {} {limit}", settings.name));
        self.change(&settings.name, |volume| volume.share = settings.share);
        Ok(())
    }

    fn remove(&self, name: &str, discard_dirty: bool) -> Result<()> {
        let mut state = self.state();
        state.orders.push(format!("remove {name} {discard_dirty}"));
        state.volumes.retain(|volume| volume.name != name);
        Ok(())
    }

    fn record(&self, _: &[String]) -> Result<Box<dyn record::Tap>> {
        Err(Error::failed("nothing is recorded here"))
    }

    fn scrub(&self) -> Result<Started> {
        self.state().orders.push("scrub".into());
        Ok(Box::new(|| Ok(())))
    }

    fn accept_loss(&self, name: &str) -> Result<()> {
        self.state().orders.push(format!("accept-loss {name}"));
        Ok(())
    }

    fn overwrite(&self, name: &str) -> Result<()> {
        self.state().orders.push(format!("overwrite {name}"));
        Ok(())
    }

    fn look_at_images(&self) {}

    fn switch(&self, name: &str, policy: Policy) -> Result<Started> {
        let mut state = self.state();
        state
            .orders
            .push(format!("switch {name} {}", policy.name()));
        let found = state.volumes.iter_mut().find(|volume| volume.name == name);
        found.expect("a known volume").switching_to = Some(policy);
        Ok(Box::new(|| Ok(())))
    }

    fn destage(&self, volume: VolumeId) -> Result<()> {
        self.state().orders.push(format!("destage {volume}"));
        Ok(())
    }

    fn reset(&self, volume: VolumeId) -> Result<()> {
        self.state().orders.push(format!("reset {volume}"));
        Ok(())
    }

    fn commit(&self, name: &str) -> Result<()> {
        self.state().orders.push(format!("commit {name}"));
        Ok(())
    }

    fn quiesce(&self, name: &str, checkpoint: Option<&str>) -> Result<()> {
        let checkpoint = checkpoint.unwrap_or_default();
        self.state()
            .orders
            .push(format!("quiesce {name} {checkpoint}"));
        Ok(())
    }

    fn quiesce_through(&self, name: &str) -> Result<()> {
        self.state().orders.push(format!("quiesce {name} through"));
        Ok(())
    }

    fn resume(&self, name: &str, force: bool) -> Result<()> {
        self.state().orders.push(format!("resume {name} {force}"));
        Ok(())
    }

    fn checkpoints(&self, _: &str) -> Result<Vec<CheckpointShown>> {
        Ok(Vec::new())
    }

    fn changes(&self, _: &str, _: &str) -> Result<Bitmap> {
        Ok(Bitmap::new(1 << 20))
    }

    fn forget_checkpoint(&self, name: &str, checkpoint: &str) -> Result<()> {
        self.state()
            .orders
            .push(format!("forget {name} {checkpoint}"));
        Ok(())
    }

    fn snapshot(&self, name: &str, snapshot: &str, plain: bool) -> Result<Vec<PathBuf>> {
        self.state()
            .orders
            .push(format!("snapshot {name} {snapshot} {plain}"));
        Ok(vec![PathBuf::from(format!("/{name}.{snapshot}.qcow2"))])
    }

    fn rebase(&self, name: &str, below: &Below, changes: bool) -> Result<u64> {
        self.state()
            .orders
            .push(format!("rebase {name} {below:?} {changes}"));
        Ok(4096)
    }

    fn merge(&self, name: &str, remove: bool) -> Result<Merged> {
        self.state().orders.push(format!("merge {name} {remove}"));
        Ok(Merged {
            own_bytes: 0,
            before: PathBuf::from("/below"),
            left: remove.then(|| "it is in use".to_owned()),
        })
    }

    fn resize(&self, name: &str, size_bytes: u64) -> Result<Resized> {
        let mut state = self.state();
        state.orders.push(format!("resize {name} {size_bytes}"));
        Ok(state.resized)
    }

    fn orphan(&self, name: &str) -> Result<()> {
        self.state().orders.push(format!("orphan {name}"));
        Ok(())
    }

    fn chart(&self, _: VolumeId) -> Result<Vec<Spot>> {
        Ok(Vec::new())
    }
}

fn snapshot(id: VolumeId, settings: &VolumeSettings) -> VolumeSnapshot {
    VolumeSnapshot {
        misfit: None,
        overlay_misfits: false,
        base_changed: false,
        rests: false,
        flushes_through: false,
        id,
        name: settings.name.clone(),
        uuid: Uuid([7; 16]),
        origin: settings.origin.display().to_string(),
        policy: settings.policy,
        switching_to: None,
        write_cache: settings.write_cache,
        effective_destage: settings.destage,
        journal_possible: true,
        never_aged: settings.destage_after.is_none(),
        share: settings.share,
        group: settings.group.clone(),
        group_waits: false,
        group_in_place: false,
        state: State::Clean,
        reason: None,
        damaged: Vec::new(),
        past_log: false,
        orphan: false,
        ready: true,
        size_bytes: 1 << 20,
        dirty_bytes: 0,
        dirty_writes: 0,
        dirty_extents: 0,
        oldest_dirty_ns: None,
        dirty_before_start: false,
        acked_serial: Serial(5),
        durable_serial: Serial(5),
        destaged_serial: Serial(5),
        generation: Generation(1),
        waiting_requests: 0,
        flow: Default::default(),
        destaging: false,
        counters: Counters::default(),
        overlay: None,
        map_bytes: None,
        table_blocks: None,
        lineage: Uuid::NIL,
        recovered_serial: Serial(0),
        replica: None,
        peers: Vec::new(),
        written: None,
    }
}

struct House {
    directory: tempfile::TempDir,
    fake: Fake,
    admin: Arc<Admin>,
}

impl House {
    fn new() -> House {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().display();
        let text = format!(
            "[host]\nrun-dir = \"{place}\"\nstate-dir = \"{place}/state\"\n\
             [cache]\npath = \"{place}/cache\"\n"
        );
        let path = directory.path().join("t.toml");
        std::fs::write(&path, text).expect("written");
        let config = Config::load(&path).expect("right");
        let fake = Fake::default();
        let admin = Arc::new(Admin::new(config, Vec::new(), Box::new(fake.clone())));
        House {
            directory,
            fake,
            admin,
        }
    }

    fn image(&self, name: &str) -> String {
        let path = self.directory.path().join(name);
        std::fs::write(&path, [0; 4096]).expect("written");
        path.display().to_string()
    }

    fn add(&self, name: &str, keys: &[(&str, &str)]) -> Result<Outcome> {
        let image = self.image(name);
        let mut values = vec![("origin".to_string(), Value::Text(image))];
        values.extend(
            keys.iter()
                .map(|(k, v)| (k.to_string(), Value::Text(v.to_string()))),
        );
        self.admin.add(name, &values)
    }
}

#[test]
fn removing_a_dirty_volume_is_refused_with_bytes_age_and_the_flag_that_forces_it() {
    let house = House::new();
    house.add("a", &[]).expect("added");
    house.fake.change("a", |volume| {
        volume.dirty_bytes = 3 << 20;
        volume.oldest_dirty_ns = Some(75_000_000_000);
    });
    let error = house.admin.remove("a", None).expect_err("dirty");
    assert_eq!(error.kind, Kind::Refused);
    assert_eq!(error.kind.exit_code(), 4);
    assert_eq!(
        error.message,
        "volume a: 3145728 bytes (3 MiB), up to 1 min 15 s old, are not at the origin and would \
         be lost; run `tenuto volume destage a --wait` first, or force it with --discard-dirty=a"
    );
    let error = house
        .admin
        .remove("a", Some("b"))
        .expect_err("another name");
    assert_eq!(error.kind, Kind::Usage);
    house.admin.remove("a", Some("a")).expect("forced");
    assert_eq!(house.fake.orders(), ["add a", "remove a true"]);
}

/// Fails when: why a volume was not attached gets lost behind what went wrong after that, or the
/// file that was made for it stays.
#[test]
fn a_refused_volume_whose_record_stays_says_both_and_its_clone_goes() {
    let house = House::new();
    let base = house.image("base");
    let kept = house.directory.path().join("state/volumes/a.toml");
    let clone = house.directory.path().join("a.qcow2");
    house.fake.state().breaks = Some(kept.clone());
    let of = CloneOf {
        image: base.into(),
        plain: false,
    };
    let origin = Value::Text(clone.display().to_string());
    let values = [("origin".to_string(), origin)];
    let error = house.admin.add_new("a", &values, Some(&of));
    let error = error.expect_err("refused");
    assert_eq!(error.kind, Kind::Refused);
    for part in [
        "the machine is full",
        "next start",
        &kept.display().to_string(),
    ] {
        assert!(error.message.contains(part), "{part:?}: {error}");
    }
    assert!(!clone.exists());
}

#[test]
fn a_connected_volume_is_neither_removed_nor_reset() {
    let house = House::new();
    house.add("a", &[("policy", "ephemeral")]).expect("added");
    house.fake.state().clients = vec![(VolumeId(0), 1)];
    for (verb, result) in [
        ("remove", house.admin.remove("a", Some("a"))),
        ("reset", house.admin.reset("a")),
    ] {
        let error = result.expect_err("connected");
        assert_eq!(error.kind, Kind::Refused);
        assert_eq!(
            error.message,
            format!("volume a: 1 client is connected; disconnect first, then {verb} it")
        );
    }
    house.fake.state().clients.clear();
    house.admin.reset("a").expect("nobody is connected");
    assert_eq!(house.fake.orders(), ["add a", "reset 0"]);
}

#[test]
fn only_ephemeral_volumes_are_reset_and_only_others_destaged() {
    let house = House::new();
    house.add("a", &[]).expect("added");
    house.add("b", &[("policy", "ephemeral")]).expect("added");
    assert_eq!(
        house.admin.reset("a").expect_err("write-back").kind,
        Kind::Refused
    );
    assert_eq!(
        house.admin.destage("b").expect_err("ephemeral").kind,
        Kind::Refused
    );
    assert_eq!(
        house.admin.reset("c").expect_err("unknown").kind,
        Kind::NotFound
    );
    house.admin.destage("a").expect("done");
    assert_eq!(house.fake.orders(), ["add a", "add b", "destage 0"]);
}

#[test]
fn a_second_writer_is_refused_at_run_time_as_in_the_file() {
    let house = House::new();
    house.add("a", &[]).expect("added");
    let values = [("origin".to_string(), Value::Text(house.image("a")))];
    let error = house.admin.add("b", &values).expect_err("a second writer");
    assert_eq!(error.kind, Kind::Usage);
    assert!(
        error
            .message
            .starts_with("volume b: origin: volumes b and a have the same image")
    );
    assert_eq!(house.fake.orders(), ["add a"]);
    let error = house.add("a", &[]).expect_err("a second time");
    assert_eq!(
        error.message,
        "volume a: exists already; choose another name, or change it with `tenuto volume set a`"
    );
    assert_eq!((error.kind.http_status(), error.kind.exit_code()), (409, 2));
    assert!(!error.message.contains("reset"), "{}", error.message);
}

#[test]
fn added_volumes_are_kept_until_they_are_removed() {
    let house = House::new();
    house.add("a", &[("dirty-limit", "2MiB")]).expect("added");
    let config = Config::load(&house.directory.path().join("t.toml")).expect("right");
    assert_eq!(
        state::load(&config).expect("loaded")[0].dirty_limit_bytes,
        2 << 20
    );
    let values = [("dirty-limit".to_string(), Value::Text("4MiB".into()))];
    house.admin.set("a", &values).expect("changed");
    assert_eq!(
        state::load(&config).expect("loaded")[0].dirty_limit_bytes,
        4 << 20
    );
    house.admin.remove("a", None).expect("removed");
    assert_eq!(state::load(&config).expect("loaded"), []);
    assert_eq!(
        house.fake.orders(),
        ["add a", "tune a 4194304", "remove a false"]
    );
}

#[test]
fn only_tunables_can_be_changed_while_a_volume_runs() {
    let house = House::new();
    house.add("a", &[]).expect("added");
    let values = [("origin".to_string(), Value::Text("/x".into()))];
    let error = house.admin.set("a", &values).map(|_| ());
    let error = error.expect_err("not a tunable");
    assert_eq!(error.kind, Kind::Usage);
    assert_eq!(error.kind.exit_code(), 2);
    // Tunables of the configuration and of the engine are the same set.
    let Tuning {
        write_cache: _,
        destage_after_ms: _,
        destage: _,
        dirty_limit_bytes: _,
        flow: _,
        origin_queue_depth: _,
        admission: _,
        overlay_timeout_ms: _,
        overlay_ram_bytes: _,
        reset_on: _,
        origin_timeout_ms: _,
        share: _,
        group_members: _,
    } = Tuning {
        write_cache: true,
        destage_after_ms: None,
        destage: DestageMode::Atomic,
        dirty_limit_bytes: 0,
        flow: engine::flow::FlowLimits::default(),
        origin_queue_depth: 0,
        admission: engine::event::Admission::Reuse,
        overlay_timeout_ms: 0,
        overlay_ram_bytes: 0,
        reset_on: engine::event::ResetOn::Command,
        origin_timeout_ms: None,
        share: Default::default(),
        group_members: 0,
    };
    // Where a volume is exported, and who may write it there, is no business of the engine.
    let of_host = [
        "export",
        "block-size",
        "limit",
        "shared",
        "replicas",
        "on-degraded",
        "place",
    ];
    let of_engine = keys::TUNABLES.iter();
    let of_engine = of_engine.filter(|key| !of_host.contains(key));
    assert_eq!(of_engine.count(), 12);
}

/// Fails when: a share without "auto" gets a weight, or the weight does not follow the writes.
#[test]
fn the_weight_of_an_auto_share_follows_what_is_written() {
    let house = House::new();
    let auto = [("share", "auto")];
    house.add("much", &auto).expect("added");
    house.add("little", &auto).expect("added");
    house.add("fixed", &[]).expect("added");
    let write = |name: &str, bytes: u64| {
        house.fake.change(name, |volume| {
            volume.counters.writes.bytes += bytes << 20;
        });
    };
    let learn = |seconds: f64| {
        let view = house.admin.view().expect("a look");
        house.admin.learn(&view, seconds);
    };
    let weights = || {
        let view = house.admin.view().expect("a look");
        let names = ["much", "little", "fixed"];
        names.map(|name| view.volume(name).expect("known").share.weight)
    };
    learn(1.0);
    write("much", 400);
    write("little", 100);
    write("fixed", 100);
    learn(30.0);
    assert_eq!(weights(), [100; 3], "a minute is not over");
    learn(30.0);
    assert_eq!(weights(), [200, 50, 100]);
    let orders = house.fake.orders().len();
    // A little more is no reason.
    write("little", 10);
    learn(60.0);
    assert_eq!(house.fake.orders().len(), orders);
    let fixed = [("share".to_owned(), Value::from_argument("{ weight = 7 }"))];
    house.admin.set("much", &fixed).expect("set");
    write("much", 4000);
    learn(60.0);
    assert_eq!(weights()[0], 7);
}

#[test]
fn reload_attaches_new_volumes_and_names_what_needs_a_restart() {
    let house = House::new();
    let path = house.directory.path().join("t.toml");
    let before = std::fs::read_to_string(&path).expect("read");
    let image = house.image("a");
    let text = format!("{before}ram = \"2GiB\"\n[[volume]]\nname = \"a\"\norigin = \"{image}\"\n");
    std::fs::write(&path, text).expect("written");
    let outcome = house.admin.reload().expect("right");
    assert_eq!(
        outcome.notes,
        [
            "volume a: attached",
            "[cache] ram: the change needs a restart"
        ]
    );
    let outcome = house.admin.remove("a", None).expect("removed");
    assert_eq!(
        outcome.notes,
        [format!(
            "volume a: {}:7 names it, and wins at the next start",
            path.display()
        )]
    );
}

/// All keys that the public interface promises, `parent.child`.
const SHOW_KEYS: &str = "name policy effective_policy effective_reason replicas state flags \
    promise size_bytes dirty_bytes dirty_writes oldest_dirty_seconds acked_serial durable_serial \
    destaged_serial generation reads.requests reads.bytes reads.ram_hits reads.ssd_hits \
    reads.origin writes.requests writes.bytes writes.elided_bytes flushes origin.reads \
    origin.read_bytes origin.writes origin.write_bytes origin.journal_bytes origin.syncs \
    origin.errors origin.latency_us.p50 origin.latency_us.p99 ssd.read_bytes ssd.write_bytes \
    flow_control.active flow_control.delay_us flow_control.reason latency_us.read.p50 \
    latency_us.read.p99 latency_us.read.p999 latency_us.write.p50 latency_us.write.p99 \
    latency_us.write.p999 latency_us.flush.p50 latency_us.flush.p99 latency_us.flush.p999 \
    latency_window_seconds overlay";
const STATUS_KEYS: &str = "host cache.size_bytes cache.used_bytes cache.dirty_bytes \
    cache.index_bytes cache.segments.free cache.segments.write cache.segments.replica \
    cache.segments.fill cache.segments.control ram volumes peers uptime_seconds version \
    recovery.ms recovery.tail_bytes_discarded recovery.records_replayed";

fn assert_keys(document: &Json, keys: &str) {
    for key in keys.split_whitespace() {
        let found = key.split('.').try_fold(document, |at, part| at.get(part));
        assert!(found.is_some(), "{key} is missing in {document:#}");
    }
}

#[test]
fn the_documents_have_every_key_of_the_public_interface_in_every_state() {
    let house = House::new();
    house.add("a", &[]).expect("added");
    let states = [
        State::Clean,
        State::Dirty,
        State::Stalled,
        State::Held,
        State::Damaged,
    ];
    for policy in [
        Policy::Uncached,
        Policy::WriteThrough,
        Policy::WriteBack,
        Policy::Ephemeral,
    ] {
        for state in states {
            house.fake.change("a", |volume| {
                (volume.policy, volume.state) = (policy, state);
                volume.orphan = state == State::Held;
            });
            let view = house.admin.view().expect("a view");
            let document = json::volume(&view, view.volume("a").expect("known"));
            assert_keys(&document, SHOW_KEYS);
            let promise = document["promise"].as_str().expect("a text");
            assert!(!promise.is_empty() && !promise.contains('\n'), "{promise}");
        }
    }
    let view = house.admin.view().expect("a view");
    assert_keys(&json::status(&view), STATUS_KEYS);
    assert_eq!(
        json::status(&view)["cache"]["segments"]["replica"],
        Json::Null
    );
}

#[test]
fn a_clean_volume_promises_nothing_lost_and_a_dirty_one_names_the_bytes() {
    let house = House::new();
    house.add("a", &[]).expect("added");
    let promise = || {
        let view = house.admin.view().expect("a view");
        super::promise::promise(view.volume("a").expect("known"), None)
    };
    assert_eq!(
        promise(),
        "if this host dies now, nothing is lost: the origin has every acknowledged write"
    );
    house.fake.change("a", |volume| {
        volume.state = State::Dirty;
        volume.dirty_bytes = 8192;
        volume.oldest_dirty_ns = Some(5_000_000_000);
        volume.acked_serial = Serial(9);
    });
    assert_eq!(
        promise(),
        "if this host dies now and comes back, only writes not yet flushed are lost; if its SSD \
         is gone too, 8 KiB of up to 5 s ago are lost and the origin is an earlier consistent \
         state"
    );
}

fn served(house: &House) -> (Server, Client) {
    let socket = house.directory.path().join("tenuto.sock");
    let server =
        Server::start(house.admin.clone(), &socket, None, &Listen::default()).expect("listens");
    (server, Client::new(&socket))
}

#[test]
fn orders_and_refusals_go_over_the_socket_unchanged() {
    use std::os::unix::fs::PermissionsExt;
    let house = House::new();
    let (server, client) = served(&house);
    let socket = house.directory.path().join("tenuto.sock");
    let mode = std::fs::metadata(&socket)
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o660);
    let image = house.image("a");
    let body = json!({ "name": "a", "origin": image, "dirty_limit": "2MiB", "read_only": false });
    let shown = client
        .post("/v1/volumes", Some(&body), PROMPT)
        .expect("added");
    assert_keys(&shown, SHOW_KEYS);
    client
        .patch("/v1/volumes/a", &json!({ "dirty_limit": 4194304 }), PROMPT)
        .expect("changed");
    client
        .post("/v1/volumes/a/destage?wait=true", None, PATIENT)
        .expect("destaged");
    assert_keys(&client.get("/v1/status").expect("status"), STATUS_KEYS);
    let error = client.get("/v1/volumes/b").expect_err("unknown");
    assert_eq!(
        (error.kind, error.object.as_deref()),
        (Kind::NotFound, Some("b"))
    );
    let error = client
        .post("/v1/volumes/a/takeover", None, PROMPT)
        .expect_err("later");
    assert_eq!(error.kind, Kind::NotInThisVersion);
    let shown = client.post("/v1/volumes/a/merge", None, PROMPT);
    assert_eq!(
        shown.expect("merged")["notes"][0],
        json!("volume a: its image got 0 B that lay below it")
    );
    let body = json!({ "backing": "base.img", "unsafe": true });
    let shown = client.post("/v1/volumes/a/rebase", Some(&body), PROMPT);
    shown.expect("rebased");
    for wrong in [
        json!({}),
        json!({ "backing": "" }),
        json!({ "backing": "a", "flatten": true }),
        json!({ "flatten": 1 }),
        json!({ "onto": "a" }),
    ] {
        let error = client.post("/v1/volumes/a/rebase", Some(&wrong), PROMPT);
        assert_eq!(error.expect_err("it is wrong").kind, Kind::Usage, "{wrong}");
    }
    let body = json!({ "name": "monday", "plain": true });
    let shown = client
        .post("/v1/volumes/a/snapshot", Some(&body), PROMPT)
        .expect("taken");
    let note = "/a.monday.qcow2: has what was written up to now; nothing writes it any more";
    assert_eq!(shown["notes"], json!([note]));
    for wrong in [
        json!({ "name": "no/name" }),
        json!({ "name": 7 }),
        json!({ "nmae": "monday" }),
        json!({ "plain": "yes" }),
    ] {
        let error = client
            .post("/v1/volumes/a/snapshot", Some(&wrong), PROMPT)
            .expect_err("it is wrong");
        assert_eq!(error.kind, Kind::Usage, "{wrong}");
    }
    let error = client
        .post("/v1/volumes/a/reset", None, PROMPT)
        .expect_err("write-back");
    assert_eq!(error.kind, Kind::Refused);
    let error = client.get("/nonsense").expect_err("no such path");
    assert_eq!(error.kind, Kind::NotFound);
    let body = json!({ "name": "b", "origin": image, "polcy": 1 });
    let error = client
        .post("/v1/volumes", Some(&body), PROMPT)
        .expect_err("wrong key");
    assert_eq!(
        error.message,
        "volume b: polcy: unknown key; did you mean \"policy\"?"
    );
    client.delete("/v1/volumes/a", PATIENT).expect("removed");
    server.stop();
    assert!(!socket.exists());
    let error = client.get("/v1/status").expect_err("gone");
    assert_eq!(error.kind, Kind::Unreachable);
    assert!(
        error
            .message
            .starts_with(&format!("{}: ", socket.display())),
        "{error}"
    );
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_left_alone() {
    let house = House::new();
    let socket = house.directory.path().join("tenuto.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("bound"));
    let (server, client) = served(&house);
    client
        .get("/v1/status")
        .expect("the stale socket is replaced");
    let second = Server::start(house.admin.clone(), &socket, None, &Listen::default());
    let error = second.err().expect("the first is alive");
    assert!(
        error.message.contains("another daemon answers here"),
        "{error}"
    );
    client.get("/v1/status").expect("undisturbed");
    server.stop();
}

#[test]
fn metrics_are_prometheus_text_with_one_head_for_each_name() {
    let house = House::new();
    house.add("a", &[]).expect("added");
    house.add("b", &[]).expect("added");
    let recorder = house.fake.measure("a", Policy::WriteBack);
    for nanos in [32_000, 63_999, 3_000_000] {
        recorder.add(Asked::Write, nanos);
    }
    let view = house.admin.view().expect("a view");
    // The first look counts all there was before it, the later ones what is new.
    (0..12).for_each(|second| house.admin.history.add(&view, 100 + second, 1.0));
    let text = metrics::text(&view, &house.admin.history);
    let mut names = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let name = rest.split(' ').next().expect("a name");
            assert!(!names.contains(&name), "{name} twice");
            names.push(name);
        } else if !line.starts_with('#') {
            let (left, value) = line.rsplit_once(' ').expect("a value");
            value.parse::<f64>().expect("a number");
            let name = left.split('{').next().expect("a name");
            assert!(
                names.iter().any(|known| name.starts_with(known)),
                "{name} has no type"
            );
        }
    }
    assert!(text.contains("tenuto_volume_writes_total{volume=\"b\"} 0\n"));
    let name = "tenuto_write_latency_seconds_bucket{policy=\"write-back\"";
    for (bound, count) in [
        ("0.000032", 0),
        ("0.000064", 2),
        ("0.004096", 3),
        ("+Inf", 3),
    ] {
        let line = format!("{name},le=\"{bound}\"}} {count}\n");
        assert!(text.contains(&line), "{line}{text}");
    }
    let unused = "tenuto_write_latency_seconds_count{policy=\"ephemeral\"} 0\n";
    assert!(text.contains(unused), "{text}");
    assert!(text.contains("tenuto_volume_info{volume=\"b\",policy=\"write-back\"} 1\n"));
    for volume in ["a", "b"] {
        let label = format!("volume=\"{volume}\"");
        let series = text.lines().filter(|line| line.contains(&label)).count();
        assert!(series <= metrics::SERIES_MAX, "{series} of {volume}");
    }
    assert!(Path::new(&house.directory.path()).exists());
}
