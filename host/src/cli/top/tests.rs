//! Tests of `top`: looks in, screens out.

use super::column::Column;
use super::draw::draw;
use super::keys::{Top, View};
use super::look::{Look, Page};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A volume as the daemon tells it, with so many requests since the start.
fn volume(name: &str, state: &str, requests: u64) -> Value {
    json!({
        "name": name,
        "policy": "write-back",
        "effective_policy": "write-back",
        "state": state,
        "flags": if state == "dirty" { json!(["destaging"]) } else { json!([]) },
        "promise": "if this host dies now, nothing is lost",
        "size_bytes": 1u64 << 30,
        "dirty_bytes": if state == "clean" { 0 } else { 12_582_912 },
        "oldest_dirty_seconds": if state == "clean" { Value::Null } else { json!(75) },
        "clients": 1,
        "acked_serial": requests,
        "durable_serial": requests,
        "destaged_serial": 0,
        "reads": { "requests": requests, "bytes": requests * 4096,
                   "ram_hits": requests / 2, "ssd_hits": 0, "origin": requests / 2 },
        "writes": { "requests": requests, "bytes": requests * 4096 },
        "flushes": requests / 10,
        "origin": { "path": "/srv/images/a.img", "reads": requests / 2, "writes": 0,
                    "write_bytes": requests * 1024 },
        "flow_control": { "active": state == "stalled", "delay_us": 1500,
                          "reason": "the origin is slow" },
        "latency_us": { "read": { "classes_ns": [[256_000, requests]] },
                        "write": { "classes_ns": [] } },
    })
}

fn status(uptime: u64, volumes: Vec<Value>) -> Value {
    let troubles: Vec<String> = volumes
        .iter()
        .filter(|volume| volume["state"] == "stalled")
        .map(|volume| {
            format!(
                "volume {} is stalled",
                volume["name"].as_str().expect("a name")
            )
        })
        .collect();
    json!({
        "host": "host-a",
        "version": "0.1.0",
        "uptime_seconds": uptime,
        "connections": volumes.len(),
        "cache": { "state": "good", "size_bytes": 64u64 << 30, "used_bytes": 12u64 << 30,
                   "dirty_bytes": 12_582_912, "index_bytes": 4 << 20,
                   "segments": { "free": 800 }, "clean": { "bytes": 10u64 << 30 } },
        "ram": { "size_bytes": 1 << 30, "used_bytes": 1 << 29, "stage_slots": 64,
                 "stage_slots_busy": 3, "overlay_slots": 16, "overlay_slots_busy": 0 },
        "volumes": volumes,
        "troubles": troubles,
    })
}

fn three(factor: u64) -> Vec<Value> {
    vec![
        volume("desk-001", "clean", 10 * factor),
        volume("desk-002", "dirty", 5000 * factor),
        volume("database", "stalled", 300 * factor),
    ]
}

/// A program that has looked twice, two seconds apart.
fn looked_twice() -> (Top, Instant) {
    let start = Instant::now();
    let mut top = Top::new(false, Duration::from_secs(2), start);
    top.take(Look::read(status(100, three(1))), start);
    let now = start + Duration::from_secs(2);
    top.take(Look::read(status(102, three(3))), now);
    (top, now)
}

fn screen(top: &mut Top, now: Instant, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, top, now)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| {
        (0..width)
            .map(|x| buffer[(x, y)].symbol())
            .collect::<String>()
    };
    (0..height)
        .map(|y| line(y).trim_end().to_string())
        .collect()
}

/// Holds a screen against the one that is kept beside this file.
fn is_screen(lines: &[String], kept: &str) {
    let kept: Vec<&str> = kept.lines().collect();
    assert_eq!(lines, kept, "now it is\n{}", lines.join("\n"));
}

fn press(top: &mut Top, codes: &[KeyCode]) -> bool {
    codes
        .iter()
        .all(|&code| top.key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn names(top: &Top) -> Vec<String> {
    top.rows()
        .iter()
        .map(|row| row.volume.name.clone())
        .collect()
}

fn chosen(top: &Top) -> String {
    let row = top.selected_row().expect("a chosen volume");
    row.volume.name.clone()
}

#[test]
fn a_small_terminal_shows_host_volumes_and_keys() {
    let (mut top, now) = looked_twice();
    let lines = screen(&mut top, now, 80, 12);
    is_screen(&lines, include_str!("screens/small.txt"));
}

#[test]
fn a_wide_terminal_shows_every_column() {
    let (mut top, now) = looked_twice();
    let lines = screen(&mut top, now, 160, 12);
    is_screen(&lines, include_str!("screens/wide.txt"));
}

#[test]
fn one_volume_fills_a_small_terminal() {
    let (mut top, now) = looked_twice();
    assert!(press(&mut top, &[KeyCode::Down, KeyCode::Enter]));
    let lines = screen(&mut top, now, 80, 24);
    is_screen(&lines, include_str!("screens/one.txt"));
}

#[test]
fn the_copies_of_a_volume_stand_on_its_page() {
    let (mut top, now) = looked_twice();
    press(&mut top, &[KeyCode::Enter]);
    let has = |lines: &[String]| lines.iter().any(|line| line.starts_with("copies "));
    assert!(!has(&screen(&mut top, now, 100, 30)), "it has none");
    let mut volumes = three(2);
    for volume in &mut volumes {
        volume["state"] = json!("degraded");
        volume["effective_reason"] = json!("host-b does not answer");
        volume["replication"] = json!({ "wanted": 1, "real": 0, "state": "degraded",
            "members": [{ "host": "host-b", "state": "lost" }], "learner": null });
    }
    top.take(Look::read(status(104, volumes)), now);
    let lines = screen(&mut top, now, 100, 30);
    let copies = "copies   0 of 1 on other hosts, degraded; host-b lost";
    assert!(
        lines.iter().any(|line| line.starts_with(copies)),
        "{lines:#?}"
    );
    let reason = "degraded (host-b does not answer)";
    assert!(lines.iter().any(|line| line.contains(reason)), "{lines:#?}");
}

#[test]
fn rates_are_differences_over_the_time_between_two_looks() {
    let before = Look::read(status(100, three(1)));
    let page = Page::between(Some(&before), Look::read(status(102, three(3))), 2.0);
    let rates = page.rows[1].rates.expect("the second look at it");
    assert_eq!(
        (rates.reads, rates.writes, rates.flushes),
        (5000.0, 5000.0, 500.0)
    );
    assert_eq!(rates.guest_bytes, 10_000.0 * 4096.0);
    assert_eq!(rates.hit_percent, Some(50.0));
    assert_eq!((rates.p50_us, rates.p99_us), (Some(256.0), Some(256.0)));
    let total = page.total.expect("two looks");
    assert_eq!(total.reads, 10.0 + 5000.0 + 300.0);
}

/// A thousand flushes of a clone that do nothing would hide three writes that wait.
#[test]
fn the_sum_is_of_the_policy_that_takes_longest_and_of_no_two() {
    let look = |uptime: u64, ephemeral: u64, uncached: u64| {
        let mut volumes = three(1);
        volumes[0]["effective_policy"] = json!("ephemeral");
        volumes[0]["latency_us"]["read"]["classes_ns"] = json!([[5_000, ephemeral]]);
        volumes[1]["effective_policy"] = json!("uncached");
        volumes[1]["latency_us"]["read"]["classes_ns"] = json!([[5_000_000, uncached]]);
        volumes.truncate(2);
        Look::read(status(uptime, volumes))
    };
    let page = Page::between(Some(&look(100, 9, 4)), look(102, 1_009, 7), 2.0);
    let total = page.total.expect("two looks");
    assert_eq!((total.p50_us, total.p99_us), (Some(5_000.0), Some(5_000.0)));
    let clone = page.rows[0].rates.expect("two looks");
    assert_eq!(clone.p99_us, Some(5.0));
}

#[test]
fn a_daemon_that_starts_anew_gives_no_rate_and_no_negative_one() {
    let before = Look::read(status(1000, three(9)));
    let page = Page::between(Some(&before), Look::read(status(2, three(1))), 2.0);
    assert!(page.total.is_none() && page.rows.iter().all(|row| row.rates.is_none()));
    // A volume that was removed and added again, in a daemon that ran on.
    let mut volumes = three(9);
    volumes[1] = volume("desk-002", "clean", 1);
    volumes.push(volume("new", "clean", 7));
    let page = Page::between(Some(&before), Look::read(status(1002, volumes)), 2.0);
    let has: Vec<bool> = page.rows.iter().map(|row| row.rates.is_some()).collect();
    assert_eq!(has, [true, false, true, false]);
    assert_eq!(page.total.map(|total| total.reads), Some(0.0));
}

#[test]
fn foreign_documents_are_shown_as_far_as_they_go() {
    let start = Instant::now();
    for document in [
        json!(null),
        json!([1, 2]),
        json!({"volumes": [null, {"name": 7}, {"name": "x", "reads": "many"}]}),
        json!({"volumes": {"a": 1}, "uptime_seconds": -4}),
    ] {
        let mut top = Top::new(true, Duration::from_secs(2), start);
        for _ in 0..2 {
            top.take(Look::read(document.clone()), start);
            for (width, height) in [(1, 1), (20, 5), (80, 24), (300, 100)] {
                screen(&mut top, start, width, height);
            }
            press(&mut top, &[KeyCode::Enter]);
        }
    }
}

#[test]
fn any_size_of_terminal_is_taken_in_every_view() {
    let (mut top, now) = looked_twice();
    for keys in [
        &[][..],
        &[KeyCode::Char('?')],
        &[KeyCode::Esc, KeyCode::Enter],
    ] {
        assert!(press(&mut top, keys));
        for width in [1, 2, 10, 39, 79, 80, 100, 161, 400] {
            for height in [1, 2, 5, 11, 24, 100] {
                screen(&mut top, now, width, height);
            }
        }
    }
}

#[test]
fn arrows_sort_and_r_turns_round_while_the_selected_volume_stays_selected() {
    let (mut top, _) = looked_twice();
    assert_eq!(names(&top), ["desk-002", "database", "desk-001"]);
    press(&mut top, &[KeyCode::Down]);
    press(&mut top, &[KeyCode::Char('r')]);
    assert_eq!(names(&top), ["desk-001", "database", "desk-002"]);
    press(&mut top, &[KeyCode::End, KeyCode::Char('r')]);
    assert_eq!(chosen(&top), "desk-002");
    while top.sort != Column::Name {
        press(&mut top, &[KeyCode::Left]);
    }
    assert_eq!(names(&top), ["database", "desk-001", "desk-002"]);
    assert_eq!(chosen(&top), "desk-002");
    press(&mut top, &[KeyCode::Left]);
    assert_eq!(top.sort, Column::Name, "nothing is left of it");
}

#[test]
fn a_filter_looks_at_names_states_policies_and_flags() {
    let (mut top, now) = looked_twice();
    for (filter, expected) in [
        ("DESK", &["desk-002", "desk-001"][..]),
        ("stall", &["database"]),
        ("destaging", &["desk-002"]),
        ("zzz", &[]),
    ] {
        press(&mut top, &[KeyCode::Esc, KeyCode::Char('/')]);
        for letter in filter.chars() {
            press(&mut top, &[KeyCode::Char(letter)]);
        }
        press(&mut top, &[KeyCode::Enter]);
        assert_eq!(names(&top), expected, "{filter}");
    }
    let lines = screen(&mut top, now, 80, 12).join("\n");
    assert!(lines.contains("no volume matches \"zzz\""), "{lines}");
    assert!(press(&mut top, &[KeyCode::Enter]), "nothing to open");
    assert_eq!(top.view, View::Table);
    press(&mut top, &[KeyCode::Esc]);
    assert_eq!(names(&top).len(), 3);
}

#[test]
fn a_daemon_that_goes_away_is_said_and_its_last_state_stays() {
    let (mut top, now) = looked_twice();
    top.lose("/run/tenuto/tenuto.sock: connection refused".into(), now);
    let later = now + Duration::from_secs(10);
    top.lose("/run/tenuto/tenuto.sock: connection refused".into(), later);
    let lines = screen(&mut top, later, 80, 12).join("\n");
    assert!(
        lines.contains("no answer for 10 s, trying again"),
        "{lines}"
    );
    assert!(lines.contains("desk-002"), "{lines}");
    top.take(Look::read(status(1, three(1))), later);
    let lines = screen(&mut top, later, 80, 12).join("\n");
    assert!(!lines.contains("no answer"), "{lines}");
    // One that neither answers nor refuses.
    let much_later = later + Duration::from_secs(30);
    let lines = screen(&mut top, much_later, 80, 12).join("\n");
    assert!(
        lines.contains("no answer for 30 s, still waiting"),
        "{lines}"
    );
}

#[test]
fn a_pause_keeps_the_screen() {
    let (mut top, now) = looked_twice();
    press(&mut top, &[KeyCode::Char('p')]);
    let before = screen(&mut top, now, 80, 12);
    assert!(before[0].starts_with("PAUSED"), "{}", before[0]);
    let later = now + Duration::from_secs(2);
    top.take(Look::read(status(104, three(50))), later);
    assert_eq!(screen(&mut top, later, 80, 12), before);
    press(&mut top, &[KeyCode::Char('p')]);
    let after = now + Duration::from_secs(4);
    top.take(Look::read(status(106, three(50))), after);
    assert_ne!(screen(&mut top, after, 80, 12), before);
}

#[test]
fn q_and_control_c_end_it_and_help_closes_by_any_key() {
    let (mut top, now) = looked_twice();
    press(&mut top, &[KeyCode::Char('?')]);
    let lines = screen(&mut top, now, 80, 24).join("\n");
    assert!(
        lines.contains("FLAGS  special states"),
        "all of it fits:\n{lines}"
    );
    assert!(lines.contains("any key closes this"), "{lines}");
    assert!(
        lines.contains("DESTAGE  bytes written to the origin"),
        "{lines}"
    );
    assert!(press(&mut top, &[KeyCode::Char('x')]));
    assert!(
        !screen(&mut top, now, 80, 40)
            .join("\n")
            .contains("any key closes")
    );
    assert!(!press(&mut top, &[KeyCode::Char('q')]));
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert!(!top.key(control_c));
    press(&mut top, &[KeyCode::Char('/'), KeyCode::Char('q')]);
    assert_eq!(top.filter, "q", "typed, not obeyed");
    assert!(!top.key(control_c), "ends it also while typing");
}

#[test]
fn the_selected_of_a_thousand_volumes_is_on_the_screen() {
    let start = Instant::now();
    let many = || {
        (0..1000)
            .map(|n| volume(&format!("desk-{n:04}"), "clean", n))
            .collect()
    };
    let mut top = Top::new(false, Duration::from_secs(2), start);
    top.take(Look::read(status(1, many())), start);
    screen(&mut top, start, 80, 24);
    for (key, expected) in [
        (KeyCode::End, "desk-0999"),
        (KeyCode::PageUp, "desk-0982"),
        (KeyCode::Home, "desk-0000"),
        (KeyCode::PageDown, "desk-0017"),
    ] {
        press(&mut top, &[key]);
        let lines = screen(&mut top, start, 80, 24).join("\n");
        assert!(lines.contains(expected), "{expected} in\n{lines}");
        assert_eq!(chosen(&top), expected);
    }
}
