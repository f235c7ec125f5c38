//! What is told about a daemon over time: the events between looks, and the history.

use super::super::changes::Changes;
use super::super::events::{Notice, Severity};
use super::super::history::{SECONDS_MAX, VOLUMES_MAX};
use super::*;
use std::time::Duration;

/// What one more look tells: severity, kind, volume, words.
fn told(house: &House, changes: &mut Changes) -> Vec<(Severity, &'static str, String, String)> {
    let mut notices: Vec<Notice> = Vec::new();
    let view = house.admin.view().expect("a view");
    changes.look(&view, &mut |notice| notices.push(notice));
    let rows = notices.into_iter().map(|notice| {
        let volume = notice.volume.unwrap_or_default();
        (notice.severity, notice.kind.name(), volume, notice.message)
    });
    rows.collect()
}

fn words(rows: &[(Severity, &'static str, String, String)]) -> Vec<String> {
    let text = rows.iter();
    text.map(|(severity, kind, volume, words)| {
        format!("{} {kind} {volume}: {words}", severity.name())
    })
    .collect()
}

#[test]
fn what_goes_wrong_is_told_once_and_so_is_its_end_and_work_is_no_news() {
    let house = House::new();
    house.add("a", &[]).expect("added");
    let mut changes = Changes::default();
    let start = words(&told(&house, &mut changes));
    assert!(start[0].contains("has started: 1 volumes"), "{start:?}");
    assert!(
        start[1].starts_with("info recovery : recovery took 3 ms"),
        "{start:?}"
    );
    assert_eq!(start.len(), 2, "{start:?}");

    house.fake.change("a", |volume| {
        volume.state = State::Dirty;
        volume.dirty_bytes = 8192;
        volume.counters.writes.requests = 7;
    });
    assert!(told(&house, &mut changes).is_empty());
    house.fake.change("a", |volume| {
        volume.state = State::Stalled;
        volume.reason = Some("the origin does not answer");
        volume.flow.active = true;
        volume.flow.reason = Some("dirty-bytes");
        volume.oldest_dirty_ns = Some(5_000_000_000);
    });
    house.fake.state().clients = vec![(VolumeId(0), 2)];
    assert_eq!(
        words(&told(&house, &mut changes)),
        [
            "error state a: is stalled: the origin does not answer",
            "info flow_control a: writes are slowed, by dirty-bytes; 8 KiB of up to 5 s ago are \
             not at the origin",
            "info client a: a client is connected",
        ]
    );
    assert!(told(&house, &mut changes).is_empty());
    house.fake.change("a", |volume| {
        volume.state = State::Clean;
        volume.reason = None;
        volume.flow.active = false;
        volume.dirty_bytes = 0;
        volume.counters.origin.errors = 3;
    });
    house.fake.state().clients.clear();
    assert_eq!(
        words(&told(&house, &mut changes)),
        [
            "info state a: is not stalled any more; the origin has every acknowledged write",
            "info flow_control a: writes are not slowed any more",
            "info client a: no client is connected",
            "warning origin a: its origin has failed 3 requests",
        ]
    );
    house.add("b", &[]).expect("added");
    house.admin.remove("a", None).expect("removed");
    let rows = told(&house, &mut changes);
    let kinds: Vec<_> = rows
        .iter()
        .map(|(_, kind, name, _)| (*kind, &**name))
        .collect();
    assert_eq!(kinds, [("added", "b"), ("removed", "a")]);
}

#[test]
fn what_is_wrong_at_the_start_is_told_at_the_start() {
    let house = House::new();
    house.add("a", &[]).expect("added");
    house.fake.change("a", |volume| {
        volume.state = State::Damaged;
        volume.counters.checksum_errors = 2;
        volume.group_waits = true;
        volume.group = "vm".into();
        volume.dirty_bytes = 4096;
    });
    let mut changes = Changes::default();
    let rows = told(&house, &mut changes);
    let kinds: Vec<_> = rows
        .iter()
        .map(|(severity, kind, ..)| (*severity, *kind))
        .collect();
    assert_eq!(
        kinds,
        [
            (Severity::Info, "start"),
            (Severity::Info, "recovery"),
            (Severity::Error, "state"),
            (Severity::Warning, "group"),
            (Severity::Error, "checksum"),
        ]
    );
}

#[test]
fn a_change_of_policy_is_told_when_it_begins_ends_or_fails() {
    let house = House::new();
    house.add("a", &[]).expect("added");
    let mut changes = Changes::default();
    told(&house, &mut changes);
    let mut turn = |to: Option<Policy>, now: Policy| {
        house.fake.change("a", |volume| {
            (volume.switching_to, volume.policy) = (to, now)
        });
        words(&told(&house, &mut changes)).join("|")
    };
    let told = turn(Some(Policy::WriteThrough), Policy::WriteBack);
    assert!(
        told.contains("is changing from write-back to write-through"),
        "{told}"
    );
    assert_eq!(
        turn(None, Policy::WriteThrough),
        "info policy a: is write-through now"
    );
    turn(Some(Policy::Uncached), Policy::WriteThrough);
    assert_eq!(
        turn(None, Policy::WriteThrough),
        "warning policy a: stays write-through: the change to uncached did not succeed"
    );
}

/// Adds so many looks a second apart; in each second a volume has done so much.
fn watch(house: &House, from: u32, seconds: u32, mut work: impl FnMut(&mut VolumeSnapshot)) {
    for second in from..from + seconds {
        house.fake.change("a", &mut work);
        let view = house.admin.view().expect("a view");
        house.admin.history.add(&view, second, 1.0);
    }
}

fn column(document: &Json, name: &str) -> Vec<Json> {
    let values = document["columns"][name].as_array();
    values
        .unwrap_or_else(|| panic!("{name} in {document}"))
        .clone()
}

#[test]
fn history_has_the_rates_of_each_second_and_null_where_nothing_was_measured() {
    let house = House::new();
    house.add("a", &[]).expect("added");
    house.add("b", &[]).expect("added");
    let recorders = [("a", Policy::WriteBack), ("b", Policy::Ephemeral)];
    let recorders = recorders.map(|(name, policy)| house.fake.measure(name, policy));
    watch(&house, 1_000_000, 20, |volume| {
        recorders[0].add(Asked::Write, 3_000_000);
        (0..1000).for_each(|_| recorders[1].add(Asked::Write, 2_000));
        volume.counters.reads.requests += 10;
        volume.counters.reads.ram_hits += 7;
        volume.counters.writes.bytes += 40960;
        volume.counters.origin.write_bytes += 8192;
        volume.dirty_bytes += 4096;
    });
    let host = house.admin.history.document(None, 10).expect("kept");
    assert_eq!(host["step_seconds"], 1);
    // The second that is not over is not told.
    let times = column(&host, "time");
    assert_eq!((times.len(), &times[9]), (10, &json!(1_000_018)));
    assert_eq!(column(&host, "reads_per_second"), vec![json!(10); 10]);
    assert_eq!(
        column(&host, "write_bytes_per_second"),
        vec![json!(40960); 10]
    );
    assert_eq!(
        column(&host, "destage_bytes_per_second"),
        vec![json!(8192); 10]
    );
    // Of the policy that takes longest: what the clones do at once is no part of it.
    let waits = column(&host, "write_p99_us");
    let is_right = |us: &Json| (3000..3150).contains(&us.as_u64().unwrap_or(0));
    assert!(waits.len() == 10 && waits.iter().all(is_right), "{waits:?}");
    assert_eq!(column(&host, "read_p99_us"), vec![Json::Null; 10]);
    assert_eq!(column(&host, "cache_used_bytes"), vec![json!(4096); 10]);
    assert_eq!(column(&host, "dirty_bytes")[9], json!(19 * 4096));
    let one = house.admin.history.document(Some("a"), 60).expect("kept");
    assert_eq!(one["step_seconds"], 5);
    assert_eq!(column(&one, "ram_hits_per_second"), vec![json!(7); 3]);
    let other = house.admin.history.document(Some("b"), 60).expect("kept");
    assert_eq!(column(&other, "ram_hits_per_second"), vec![json!(0); 3]);
    let error = house
        .admin
        .history
        .document(Some("c"), 60)
        .expect_err("unknown");
    assert_eq!(error.kind, Kind::NotFound);
    for seconds in [0, SECONDS_MAX + 1] {
        let error = house
            .admin
            .history
            .document(None, seconds)
            .expect_err("not kept");
        assert_eq!(error.kind, Kind::Usage);
    }
}

#[test]
fn history_is_bounded_grows_coarser_and_bears_a_clock_that_is_set_back() {
    let house = House::new();
    house.add("a", &[]).expect("added");
    let start = 2_000_000;
    // One second in 50 brings a delay: a mean would hide it.
    let mut second = 0;
    watch(&house, start, 2 * SECONDS_MAX as u32, |volume| {
        second += 1;
        volume.flow.delay_ns = if second % 50 == 0 { 9_000_000 } else { 0 };
        volume.counters.reads.requests += 4;
    });
    let history = &house.admin.history;
    for (volume, seconds, step, points) in [
        (None, 600, 1, 600),
        (None, 3600, 10, 360),
        (None, SECONDS_MAX, 60, 1440),
        (Some("a"), 600, 5, 120),
        (Some("a"), SECONDS_MAX, 300, 288),
    ] {
        let document = history.document(volume, seconds).expect("kept");
        assert_eq!(document["step_seconds"], step);
        let times = column(&document, "time");
        assert_eq!(times.len(), points, "{volume:?} {seconds}");
        let steps = times
            .windows(2)
            .map(|pair| pair[1].as_u64().zip(pair[0].as_u64()));
        assert!(
            steps
                .flatten()
                .all(|(later, earlier)| later - earlier == step)
        );
        assert_eq!(
            column(&document, "reads_per_second"),
            vec![json!(4); points]
        );
        let peaks = column(&document, "flow_delay_us");
        assert!(peaks.contains(&json!(9000)), "{volume:?} {seconds}");
    }
    watch(&house, start + SECONDS_MAX as u32, 10, |_| {});
    for (volume, seconds) in [(None, 600), (None, SECONDS_MAX), (Some("a"), 600)] {
        let times = column(&history.document(volume, seconds).expect("kept"), "time");
        let times: Vec<u64> = times.iter().filter_map(Json::as_u64).collect();
        assert!(times.is_sorted(), "{times:?}");
    }
}

#[test]
fn volumes_beyond_the_bound_have_no_history_but_count_for_the_host() {
    let house = House::new();
    house.add("a", &[]).expect("added");
    let first = house.fake.state().volumes[0].clone();
    for number in 0..VOLUMES_MAX as u32 {
        let (id, name) = (VolumeId(number + 1), format!("v{number:04}"));
        let more = VolumeSnapshot {
            id,
            name,
            ..first.clone()
        };
        house.fake.state().volumes.push(more);
    }
    for second in 0..3 {
        for volume in &mut house.fake.state().volumes {
            volume.counters.flushes += 1;
        }
        let view = house.admin.view().expect("a view");
        house.admin.history.add(&view, 1000 + second, 1.0);
    }
    let history = &house.admin.history;
    let last = format!("v{:04}", VOLUMES_MAX - 1);
    assert_eq!(
        history.document(Some(&last), 9).expect_err("too many").kind,
        Kind::NotFound
    );
    history.document(Some("v0000"), 9).expect("kept");
    let host = history.document(None, 9).expect("kept");
    let flushes = column(&host, "flushes_per_second");
    assert_eq!(flushes, [json!(0), json!(VOLUMES_MAX + 1)]);
}

#[test]
fn who_waits_for_events_gets_orders_with_their_outcome_and_the_stop() {
    let house = House::new();
    let (server, client) = served(&house);
    let page = client.get("/v1/events").expect("events");
    let kinds = |page: &Json| -> Vec<String> {
        let events = page["events"].as_array().expect("a list").iter();
        events
            .map(|event| event["kind"].as_str().expect("a kind").to_owned())
            .collect()
    };
    assert_eq!(kinds(&page), ["start", "recovery"]);
    assert_eq!(page["lost"], 0);
    let follow = |after: &Json| {
        let (client, path) = (client.clone(), format!("/v1/events?after={after}&wait=60"));
        std::thread::spawn(move || client.get(&path).expect("events"))
    };
    let waiting = follow(&page["next"]);
    let image = house.image("a");
    let body = json!({ "name": "a", "origin": image });
    client
        .post("/v1/volumes", Some(&body), PROMPT)
        .expect("added");
    let page = waiting.join().expect("no panic");
    assert_eq!(page["events"][0]["message"], "order add: done");
    assert_eq!(page["events"][0]["volume"], "a");
    client
        .post("/v1/volumes/a/reset", None, PROMPT)
        .expect_err("write-back");
    let next = page["next"].clone();
    let page = follow(&next).join().expect("no panic");
    let reset = page["events"].as_array().expect("a list").iter();
    let reset = reset
        .rev()
        .find(|event| event["kind"] == "order")
        .expect("told");
    assert_eq!(reset["severity"], "warning");
    let words = reset["message"].as_str().expect("words");
    assert!(
        words.starts_with("order reset: volume a: reset would discard"),
        "{words}"
    );

    // The thread beside the server has seen the volume at the latest after two seconds.
    let start = Instant::now();
    let mut after = next;
    let seen = loop {
        let page = follow(&after).join().expect("no panic");
        if kinds(&page).contains(&"added".into()) {
            break page;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "not seen");
        after = page["next"].clone();
    };
    let waiting = follow(&seen["next"]);
    // The stop would not find one that comes later.
    while house.admin.events.waiting() == 0 {
        std::thread::yield_now();
    }
    server.stop();
    let page = waiting.join().expect("no panic");
    assert_eq!(kinds(&page), ["stop"]);
}

#[test]
fn wrong_parameters_of_events_and_history_are_refused_with_words() {
    let house = House::new();
    let (server, client) = served(&house);
    for path in [
        "/v1/events?wait=61",
        "/v1/events?after=-1",
        "/v1/events?wait=soon",
        "/v1/history?seconds=0",
        "/v1/history?seconds=x",
        "/v1/history?seconds=99999999999999999999999",
    ] {
        let error = client.get(path).expect_err(path);
        assert_eq!(error.kind, Kind::Usage, "{path}: {error}");
    }
    assert_eq!(
        client
            .get("/v1/history?volume=x")
            .expect_err("unknown")
            .kind,
        Kind::NotFound
    );
    let history = client.get("/v1/history").expect("empty, but there");
    assert_eq!(history["volume"], Json::Null);
    server.stop();
}
