//! The figures of moves, for people and for programs.

use super::slices::{SLICES, Slice, Slot, quantile_us};
use super::switch::{DEPTH, Switch};
use super::{
    AGAIN, Line, NEAR, ORIGIN_PART_WANTED, Report, Round, SWITCH_WANTED, WITH, WITHOUT, is_proven,
};
use crate::bench::rounds::{self, Spread, cell, ratios};
use crate::machine;
use serde_json::{Value, json};
use std::time::Duration;

pub const HEAD: [&str; 8] = [
    "SINCE, S",
    "WITH: P50, US",
    "P99",
    "REMOTE/S",
    "ORIGIN/S",
    "WITHOUT: P50, US",
    "P99",
    "ORIGIN/S",
];

pub const SWITCH_HEAD: [&str; 7] = [
    "DIRTY, MIB",
    "FIRST ANSWER, MS",
    "MOST",
    "ORDER TO MOVE, MS",
    "ANSWER AFTER IT, MS",
    "FROM THE HOST BEFORE",
    "WANTED, MS",
];

fn ms(it: Duration) -> f64 {
    it.as_secs_f64() * 1e3
}

fn lasts(report: &Report) -> Duration {
    Duration::from_secs_f64(report.options.seconds)
}

/// One figure of the slots at a place.
fn of(report: &Report, at: usize, figure: impl Fn(&Slot) -> Option<f64>) -> Option<Spread> {
    rounds::median(report.proven(), at, figure)
}

fn column(report: &Report, at: usize, figure: impl Fn(&Slot) -> Option<f64>) -> Vec<Option<f64>> {
    report.proven().map(|round| figure(&round[at])).collect()
}

/// The same with remote reads as a part of that without, and against itself.
fn parts(report: &Report, figure: impl Fn(&Slot) -> Option<f64>) -> [Option<Spread>; 2] {
    let [with, without, again] = [WITH, WITHOUT, AGAIN].map(|at| column(report, at, &figure));
    [ratios(&with, &without), ratios(&again, &with)]
}

fn origin_reads(slot: &Slot) -> Option<f64> {
    Some(slot.origin_reads() as f64)
}

fn first_slice_us(report: &Report) -> impl Fn(&Slot) -> Option<f64> {
    let lasts = lasts(report);
    move |slot| slot.slice(0, lasts).p50_us
}

/// Rounds in which the guest became as fast as before, and after how long.
fn near(report: &Report, at: usize) -> (usize, Option<Spread>) {
    let lasts = lasts(report);
    let spread = of(report, at, |slot| slot.near_after(lasts));
    (spread.map_or(0, |it| it.rounds), spread)
}

pub fn headline(report: &Report) -> String {
    let options = &report.options;
    format!(
        "two hosts on this machine over loopback, replicas = 1, admission = all; the image takes \
         {} ms; the guest reads 4 KiB at random in {} MiB that are all cached at the host it comes \
         from, 1 in flight, {} s after each move; {} of {} rounds with proof of where its blocks \
         came from; each block had its content",
        ms(options.origin_latency),
        options.size_bytes >> 20,
        options.seconds,
        report.proven().count(),
        report.rounds.len(),
    )
}

pub fn rows(report: &Report) -> Vec<Vec<String>> {
    let before = |at| cell(of(report, at, Slot::before_us), 0);
    let before_p99 = |at| cell(of(report, at, |it| quantile_us(&it.before, 99)), 0);
    let mut rows = vec![vec![
        "before".to_owned(),
        before(WITH),
        before_p99(WITH),
        "-".into(),
        "0".into(),
        before(WITHOUT),
        before_p99(WITHOUT),
        "0".into(),
    ]];
    let lasts = lasts(report);
    rows.extend((0..SLICES).map(|slice| {
        let figure = |at: usize, figure: fn(&Slice) -> Option<f64>| {
            cell(of(report, at, |slot| figure(&slot.slice(slice, lasts))), 0)
        };
        let since = lasts.as_secs_f64() * slice as f64 / SLICES as f64;
        vec![
            format!("{since:.1}"),
            figure(WITH, |it| it.p50_us),
            figure(WITH, |it| it.p99_us),
            figure(WITH, |it| it.remote_per_second),
            figure(WITH, |it| it.origin_per_second),
            figure(WITHOUT, |it| it.p50_us),
            figure(WITHOUT, |it| it.p99_us),
            figure(WITHOUT, |it| it.origin_per_second),
        ]
    }));
    rows
}

fn moves(line: &Line, figure: impl Fn(&Switch) -> f64) -> Option<Spread> {
    Spread::of(line.moves.iter().map(figure))
}

fn most_ms(line: &Line) -> f64 {
    let totals = line.moves.iter().map(|it| ms(it.total()));
    totals.fold(0.0, f64::max)
}

pub fn switch_row(line: &Line) -> Vec<String> {
    vec![
        (line.dirty_bytes >> 20).to_string(),
        cell(moves(line, |it| ms(it.total())), 1),
        format!("{:.1}", most_ms(line)),
        cell(moves(line, |it| ms(it.ordered)), 1),
        cell(moves(line, |it| ms(it.answered)), 1),
        format!("{} of {}", line.remote(), line.moves.len()),
        format!("< {}", SWITCH_WANTED.as_millis()),
    ]
}

pub fn findings(report: &Report) -> Vec<String> {
    let percent = |it: Option<Spread>| it.map_or("-".into(), |it| it.text(100.0, 1));
    let [reads, reads_again] = parts(report, origin_reads);
    let [first, first_again] = parts(report, first_slice_us(report));
    let near = |at: usize| {
        let (rounds, spread) = near(report, at);
        let all = report.proven().count();
        match rounds {
            0 => format!("in none of {all} rounds"),
            _ => format!("after {} s in {rounds} of {all} rounds", cell(spread, 2)),
        }
    };
    let remote = of(report, WITH, |slot| Some(slot.remote_reads() as f64));
    let moved = of(report, WITH, |slot| Some(ms(slot.moved)));
    let right = of(report, WITH, |slot| Some(ms(slot.right)));
    let copied = of(report, WITH, |slot| Some(ms(slot.copied)));
    vec![
        format!(
            "reads of the image after the move: {} with remote reads, {} without: {} %, wanted: <= \
             {:.0} %; A/A {}; blocks from the host before: {}",
            cell(of(report, WITH, origin_reads), 0),
            cell(of(report, WITHOUT, origin_reads), 0),
            percent(reads),
            ORIGIN_PART_WANTED * 100.0,
            cell(reads_again, 2),
            cell(remote, 0),
        ),
        format!(
            "median latency in the first slice, with over without: {}; A/A {}",
            cell(first, 3),
            cell(first_again, 2),
        ),
        format!(
            "median latency at most {NEAR} x that before the move: with {}, without {}",
            near(WITH),
            near(WITHOUT),
        ),
        format!(
            "the order to move took {} ms; the other host may write the image {} ms after it was \
             given, and has its copy after {} ms; the guest comes then",
            cell(moved, 1),
            cell(right, 0),
            cell(copied, 0),
        ),
    ]
}

fn slot_document(slot: &Slot, lasts: Option<Duration>) -> Value {
    let slices = lasts.map(|lasts| {
        let all = (0..SLICES).map(|at| slot.slice(at, lasts).document());
        all.collect::<Vec<Value>>()
    });
    json!({
        "before_p50_us": slot.before_us(),
        "before_p99_us": quantile_us(&slot.before, 99),
        "before_origin_reads": slot.origin_reads_before,
        "move_ms": ms(slot.moved),
        "right_ms": ms(slot.right),
        "copy_ms": ms(slot.copied),
        "reads": slot.samples.len(),
        "remote_reads": slot.remote_reads(),
        "remote_bytes": slot.remote_bytes,
        "origin_reads": slot.origin_reads(),
        "origin_p50_us": slot.origin_p50_us,
        "near_after_seconds": lasts.and_then(|lasts| slot.near_after(lasts)),
        "slices": slices,
    })
}

fn round_of(round: &Round, lasts: Option<Duration>) -> Value {
    let [with, without, again] = round.each_ref().map(|slot| slot_document(slot, lasts));
    json!({
        "proven": is_proven(round),
        "with": with,
        "without": without,
        "with_again": again,
    })
}

/// A round without its slices.
pub fn round_document(round: &Round) -> Value {
    round_of(round, None)
}

fn line_document(line: &Line) -> Value {
    let spread = |it: Option<Spread>| it.map(|it| it.document());
    let each = line.moves.iter().map(|it| {
        json!({
            "dirty_bytes": it.dirty_bytes,
            "first_answer_ms": ms(it.total()),
            "move_ms": ms(it.ordered),
            "answer_ms": ms(it.answered),
            "from_host_before": it.remote,
        })
    });
    json!({
        "dirty_bytes": line.dirty_bytes,
        "first_answer_ms": spread(moves(line, |it| ms(it.total()))),
        "first_answer_ms_max": most_ms(line),
        "move_ms": spread(moves(line, |it| ms(it.ordered))),
        "answer_ms": spread(moves(line, |it| ms(it.answered))),
        "moves": each.collect::<Vec<Value>>(),
    })
}

pub fn document(report: &Report) -> Value {
    let options = &report.options;
    let spread = |it: Option<Spread>| it.map(|it| it.document());
    let compared = |figure: &dyn Fn(&Slot) -> Option<f64>| {
        let [ratio, again] = parts(report, figure);
        json!({
            "with": spread(of(report, WITH, figure)),
            "without": spread(of(report, WITHOUT, figure)),
            "ratio": spread(ratio),
            "a_a_ratio": spread(again),
        })
    };
    let lasts = lasts(report);
    let mut origin = compared(&origin_reads);
    origin["ratio_wanted"] = json!(ORIGIN_PART_WANTED);
    let rounds = report.rounds.iter().map(|it| round_of(it, Some(lasts)));
    json!({
        "benchmark": "migrate",
        "machine": machine::document(),
        "parameters": {
            "rounds": options.rounds,
            "seconds": options.seconds,
            "size_bytes": options.size_bytes,
            "cache_bytes": options.cache_bytes,
            "dirty_bytes": options.dirty,
            "origin_latency_us": options.origin_latency.as_micros() as u64,
            "seed": options.seed,
            "queue_depth": 1,
            "writes_in_flight": DEPTH,
            "slices": SLICES,
            "hosts": 2,
        },
        "rounds_proven": report.proven().count(),
        "origin_reads": origin,
        "first_slice_p50_us": compared(&first_slice_us(report)),
        "before_p50_us": compared(&Slot::before_us),
        "move_ms": spread(of(report, WITH, |slot| Some(ms(slot.moved)))),
        "right_ms": spread(of(report, WITH, |slot| Some(ms(slot.right)))),
        "copy_ms": spread(of(report, WITH, |slot| Some(ms(slot.copied)))),
        "near_after_seconds": compared(&|slot: &Slot| slot.near_after(lasts)),
        "switch": report.lines.iter().map(line_document).collect::<Vec<Value>>(),
        "switch_ms_wanted": SWITCH_WANTED.as_millis() as u64,
        "rounds": rounds.collect::<Vec<Value>>(),
    })
}
