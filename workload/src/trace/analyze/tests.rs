//! The whole pass against the naive reference, and its bounds.

use super::naive::{Figures, figures, records};
use super::rewrites::INTERVALS_MS;
use super::*;
use crate::rng::Rng;

fn analyzed(records: &[Record], options: Options) -> Report {
    let mut analysis = Analysis::new(options);
    for record in records {
        analysis.add(record, None);
    }
    analysis.finish()
}

fn found(report: &Report, disks: usize) -> Figures {
    let rewrites = report.rewrites.total();
    let seen = report.seen;
    let set = report.working_set.total();
    Figures {
        written: rewrites.bytes,
        again: rewrites.again.to_vec(),
        seen: [
            seen.disk_requests,
            seen.disk_bytes,
            seen.cluster_requests,
            seen.cluster_bytes,
        ],
        set: [set.read, set.written, set.any],
        divergence: report.divergence.by_disk(disks),
    }
}

#[test]
fn one_pass_finds_what_the_naive_reference_finds() {
    for seed in 0..60 {
        let disks = 1 + seed as usize % 4;
        let records = records(seed, 400, disks as u64);
        let report = analyzed(&records, Options::default());
        assert_eq!(report.weight, 1);
        let expected = figures(&records, disks, &INTERVALS_MS);
        assert_eq!(found(&report, disks), expected, "seed {seed}");
        assert_eq!(report.seen.bytes, report.flow.total.read_bytes);
        assert_eq!(report.seen.requests, report.flow.total.reads);
        let last = report.divergence.spread(disks).pop();
        let most = expected.divergence.iter().max().copied();
        assert_eq!(last.map(|it| it.most), most, "seed {seed}");
    }
}

#[test]
fn a_named_period_of_everything_is_the_whole() {
    let records = records(5, 2000, 3);
    let options = Options {
        periods: vec![Period {
            start_ns: 0,
            end_ns: u64::MAX,
        }],
        peak_ns: u64::MAX / 2,
        ..Options::default()
    };
    let report = analyzed(&records, options);
    assert_eq!(report.periods[0].total.mix, report.flow.total);
    assert_eq!(report.periods[0].total.seen, report.seen);
    assert_eq!(report.peaks[0].total, report.periods[0].total);
}

#[test]
fn few_chunks_change_shares_little_and_say_so() {
    let mut random = Rng::new(77);
    let mut records = records(8, 60_000, 2);
    for record in &mut records {
        // Places that are asked for again and again, far more than are kept.
        record.sector = random.below(1 << 14) * (1 + random.below(3)) * 64;
        record.sectors = record.sectors.min(64);
    }
    let exact = analyzed(&records, Options::default());
    let options = Options {
        chunks_max: 1024,
        ..Options::default()
    };
    let sampled = analyzed(&records, options);
    assert!(
        exact.weight == 1 && sampled.weight > 1,
        "{}",
        sampled.weight
    );
    let shares = |report: &Report| {
        let rewrites = report.rewrites.total();
        let part = |part: u64, whole: u64| part as f64 / whole as f64;
        let set = report.working_set.total();
        [
            part(rewrites.again[5], rewrites.bytes),
            part(report.seen.disk_bytes, report.seen.bytes),
            part(report.seen.disk_requests, report.seen.requests),
            part(report.seen.cluster_bytes, report.seen.bytes),
            part(set.any, 40_000 * 4096 * 4),
        ]
    };
    for (exact, sampled) in shares(&exact).into_iter().zip(shares(&sampled)) {
        assert!((exact - sampled).abs() < 0.05, "{exact} {sampled}");
    }
    assert_eq!(exact.flow.total, sampled.flow.total);
}

#[test]
fn a_request_of_a_terabyte_and_one_at_the_end_of_all_disks_are_counted() {
    let record = |sector, sectors| Record {
        time_ns: 0,
        disk: NameId(0),
        op: Op::Write,
        sector,
        sectors,
        path: None,
    };
    let last = u64::MAX / SECTOR_BYTES;
    let report = analyzed(
        &[
            record(0, u32::MAX),
            record(last - 8, 8),
            record(last - 1, 1),
        ],
        Options::default(),
    );
    assert_eq!(report.oversized, 1);
    assert_eq!(report.flow.total.writes, 3);
    assert_eq!(report.rewrites.total().bytes, 9 * 512);
}
