//! Tests of what is advised, with made figures.

use super::curves::{Curves, HALF_LIFE};
use super::divide::{Point, by_gain, by_weight, hits_at};
use super::*;
use engine::sample::{LayerId, ONE_IN_LOG2, Sample, Samples};
use std::collections::BTreeMap;
use workload::rng::Rng;

const MIB: u64 = 1 << 20;

fn point(blocks: u64, hits: f64) -> Point {
    Point { blocks, hits }
}

fn known(id: u32, policy: Policy) -> Known {
    Known {
        id: VolumeId(id),
        name: format!("v{id}"),
        policy,
        weight: 100,
        destage_after: Some(Duration::from_secs(600)),
    }
}

const SIZES_OF_HOST: Sizes = Sizes {
    ram_bytes: 64 * MIB,
    ssd_bytes: 256 * MIB,
    dirty_bytes: 100 * MIB,
};

/// Blocks of the sample of a layer: of each 64 blocks the first.
fn hash(block: u64) -> u64 {
    workload::trace::analyze::blocks::mixed(block) >> ONE_IN_LOG2
}

/// A volume reads blocks of a layer, those of a list one after the other.
fn read(volume: u32, layer: LayerId, blocks: impl Iterator<Item = u64>) -> Samples {
    let blocks: Vec<u64> = blocks.collect();
    let kept = blocks.iter().filter(|block| **block % 64 == 0);
    let kept = kept.map(|block| Sample {
        layer,
        hash: hash(*block),
    });
    Samples {
        kept: kept.collect(),
        blocks: BTreeMap::from([((VolumeId(volume), layer), blocks.len() as u64)]),
        lost: 0,
    }
}

fn own(number: u64) -> LayerId {
    LayerId {
        number,
        is_shared: false,
    }
}

fn shared(number: u64) -> LayerId {
    LayerId {
        number,
        is_shared: true,
    }
}

/// Fails when: a division gives more than there is, or less than the best one has.
#[test]
fn a_division_by_gain_is_as_good_as_any() {
    let mut random = Rng::new(5);
    for _ in 0..300 {
        let curve = |random: &mut Rng| {
            let (mut blocks, mut hits) = (0, 0.0);
            let points = (0..4).map(|_| {
                blocks += 1 + random.below(4);
                hits += random.below(100) as f64;
                point(blocks, hits)
            });
            points.collect::<Vec<_>>()
        };
        let curves = [curve(&mut random), curve(&mut random)];
        let capacity = random.below(40);
        let parts = by_gain(&curves, capacity);
        assert!(parts.iter().sum::<u64>() <= capacity);
        let of = |first: u64, second: u64| hits_at(&curves[0], first) + hits_at(&curves[1], second);
        let best = (0..=capacity).map(|first| of(first, capacity - first));
        let best = best.fold(0.0, f64::max);
        // A part that ends within a piece has not yet its gain: at most one does.
        let pieces = curves.iter().flat_map(|points| {
            let gains = points.windows(2).map(|two| two[1].hits - two[0].hits);
            gains.chain([points[0].hits]).collect::<Vec<_>>()
        });
        let whole: f64 = pieces.sum();
        let got = of(parts[0], parts[1]);
        assert!(got >= best - whole / 2.0, "{got} of {best}: {curves:?}");
        if capacity >= 32 {
            assert_eq!(got, whole, "all fits");
        }
    }
}

/// Fails when: a working set that gains nothing before it fits as a whole is overlooked.
#[test]
fn a_loop_is_worth_its_mean() {
    let gradual = vec![point(100, 10.0), point(200, 15.0)];
    let all_or_nothing = vec![point(99, 1.0), point(100, 50.0)];
    assert_eq!(by_gain(&[gradual, all_or_nothing], 150), [50, 100]);
}

/// Fails when: one with small needs gets more than these, or another one pays for it.
#[test]
fn a_division_by_weight_meets_small_needs_and_divides_the_rest() {
    assert_eq!(by_weight(&[(10, 100), (1000, 100)], 100), [10, 90]);
    assert_eq!(by_weight(&[(1000, 300), (1000, 100)], 100), [75, 25]);
    assert_eq!(by_weight(&[(0, 1), (5, 1)], 100), [0, 5]);
    assert_eq!(by_weight(&[], 100), [0; 0]);
}

/// Fails when: clones of one image are taken for as many images, or a volume that reads everything
/// once is said to gain.
#[test]
fn clones_share_what_they_read_and_a_scan_gains_nothing() {
    let mut curves = Curves::default();
    let base = shared(1);
    // 32 MiB each, again and again: alone they would need 96 MiB.
    for _ in 0..10 {
        for volume in 1..=3 {
            curves.add(&read(volume, base, 0..8192), &[], 1.0);
        }
    }
    curves.add(&read(4, own(4), 0..200_000), &[], 1.0);
    let volumes = [
        known(1, Policy::Ephemeral),
        known(2, Policy::Ephemeral),
        known(3, Policy::WriteThrough),
        known(4, Policy::WriteThrough),
        known(5, Policy::WriteThrough),
        known(6, Policy::Uncached),
    ];
    let advice = advise(curves.figures(), &volumes, SIZES_OF_HOST);
    let [one, _, three, scan, idle, uncached] = &advice.volumes[..] else {
        panic!("{advice:?}");
    };
    let third = 32 * MIB / 3;
    assert!(one.ram_bytes.abs_diff(third) < 2 * MIB, "{one:?}");
    assert_eq!(one.shared_bytes, one.ram_bytes + one.ssd_bytes);
    assert!(one.hit_ratio.expect("it reads") > 0.9, "{one:?}");
    assert!(
        three.reason.starts_with("what it reads again fits"),
        "{three:?}"
    );
    assert_eq!(
        (scan.gains, scan.ram_bytes + scan.ssd_bytes),
        (Some(false), 0)
    );
    assert!(scan.reason.contains("gains nothing"), "{scan:?}");
    assert_eq!((idle.gains, idle.hit_ratio), (None, None));
    assert!(uncached.reason.starts_with("uncached:"));
    let sum: u64 = advice.volumes.iter().map(|it| it.ram_bytes).sum();
    assert!(sum <= SIZES_OF_HOST.ram_bytes);
}

/// Fails when: what is missing is not said, or the sizes of a tier are not compared.
#[test]
fn a_cache_that_is_too_small_is_told_with_what_is_missing() {
    let mut curves = Curves::default();
    // 640 MiB in a circle, where there are 320.
    for _ in 0..5 {
        curves.add(&read(1, own(1), 0..163_840), &[], 1.0);
    }
    let volumes = [known(1, Policy::WriteBack)];
    let advice = advise(curves.figures(), &volumes, SIZES_OF_HOST);
    let only = &advice.volumes[0];
    assert_eq!(only.gains, Some(true));
    assert!(only.hit_ratio.expect("it reads") < 0.1, "{only:?}");
    assert!(only.reason.contains("more would have 7"), "{only:?}");
    let ratios: Vec<f64> = advice.ssd.iter().filter_map(|it| it.hit_ratio).collect();
    assert_eq!(advice.ssd[1].bytes, SIZES_OF_HOST.ssd_bytes);
    assert!(ratios[1] < 0.1 && ratios[3] > 0.7, "{:?}", advice.ssd);
}

/// Fails when: dirty data is promised that is not there, or a volume that owes nothing gets some.
#[test]
fn dirty_data_and_weights_follow_what_is_written() {
    let mut curves = Curves::default();
    let ids = [1, 2, 3].map(VolumeId);
    curves.add(&Samples::default(), &ids.map(|id| (id, 7 * MIB)), 1.0);
    let then = [(ids[0], 8 * MIB), (ids[1], 10 * MIB), (ids[2], 20 * MIB)];
    curves.add(&Samples::default(), &then, 9.0);
    let volumes = [
        known(1, Policy::WriteBack),
        known(2, Policy::WriteBack),
        known(3, Policy::WriteThrough),
    ];
    let figures = curves.figures();
    // 0.1 and 0.3 MiB a second, for ten minutes: 60 and 180 MiB.
    let advice = advise(figures.clone(), &volumes, SIZES_OF_HOST);
    let dirty: Vec<u64> = advice.volumes.iter().map(|it| it.dirty_bytes).collect();
    assert_eq!(dirty, [50 * MIB, 50 * MIB, 0]);
    assert_eq!(weights(&figures, &volumes)[..2], [50, 150]);
    assert_eq!(advice.volumes[0].gains, Some(true));
    // Without writers nothing is weighed.
    assert_eq!(weights(&Curves::default().figures(), &volumes), [100; 3]);
}

/// Fails when: a load that has ended goes on to count, or layers without reads stay.
#[test]
fn what_was_long_ago_is_forgotten() {
    let mut curves = Curves::default();
    curves.add(&read(1, own(1), 0..2000), &[(VolumeId(1), 0)], 1.0);
    curves.add(&Samples::default(), &[(VolumeId(1), 100 * MIB)], 1.0);
    let rate = curves.figures().write_rate(VolumeId(1));
    assert_eq!(rate, 50.0 * MIB as f64);
    for _ in 0..12 {
        let seconds = HALF_LIFE.as_secs_f64();
        curves.add(&Samples::default(), &[(VolumeId(1), 100 * MIB)], seconds);
    }
    let figures = curves.figures();
    assert!(figures.write_rate(VolumeId(1)) < 1000.0, "{figures:?}");
    assert_eq!(figures.demands, []);
    // It is gone, and one that comes counts from zero.
    curves.add(&Samples::default(), &[], 1.0);
    assert_eq!(curves.figures().written, BTreeMap::new());
}
