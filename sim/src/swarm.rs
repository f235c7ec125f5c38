//! What a seed is made of when all seeds differ as much as they can: whole classes of guests,
//! limits and faults are there or not.
//!
//! A run in which everything happens meets few limits for long, because one fault hides another; so
//! each seed draws a set of features, and each feature bends the plan by numbers of its own. Always
//! true: a case follows from its seed and from what its command line takes away, and taking one
//! feature away changes no number of another one. Deliberately absent: what a plan means
//! ([`plan`](crate::plan)) and what happens ([`world`](crate::world)).

use crate::host::Ending;
use crate::plan::{Plan, VolumePlan};
use crate::rng::Rng;
use crate::run::Options;
use engine::event::ResetOn;
use engine::types::{DestageMode, Policy};
use std::fmt;
use std::str::FromStr;

/// A class of guests, limits or faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    Neighbours,
    Ephemeral,
    Direct,
    Switches,
    InPlace,
    Groups,
    Discards,
    Unaligned,
    Large,
    Deep,
    Hot,
    Fua,
    Commands,
    Disconnects,
    Readers,
    TinyLog,
    TinyStage,
    TinyIndex,
    FewExtents,
    Never,
    OriginTimeout,
    SlowOrigin,
    SlowCache,
    Kills,
    KillsInMemory,
    PowerLosses,
    CrashesInRecovery,
    CacheErrors,
    CacheReads,
    CacheDies,
    Rot,
    Garbage,
    OriginTrouble,
    OriginFull,
    RecoveryErrors,
    ClockJumps,
    Absent,
    NewImages,
    Foreign,
    Hosts,
    StageGone,
    ImageMoved,
    ImageShrunk,
    BaseWritten,
    ImageReplaced,
    CacheGone,
    Resizes,
    Sleeps,
    Qcow2,
    Rests,
    Moves,
}

use Feature as F;

/// Of a thousand seeds so many have images that allocate.
pub const QCOW2: u64 = 250;
/// So many have some that move to other files and become smaller.
pub const MOVES: u64 = 120;

impl Feature {
    /// All of them, with their names and how many of a thousand seeds have them.
    pub const ALL: [(Feature, &'static str, u64); 51] = [
        (F::Neighbours, "neighbours", 800),
        (F::Ephemeral, "ephemeral", 600),
        (F::Direct, "direct", 600),
        (F::Switches, "switches", 350),
        (F::InPlace, "in-place", 400),
        (F::Groups, "groups", 250),
        (F::Discards, "discards", 700),
        (F::Unaligned, "unaligned", 700),
        (F::Large, "large", 600),
        (F::Deep, "deep", 700),
        (F::Hot, "hot", 300),
        (F::Fua, "fua", 600),
        (F::Commands, "commands", 700),
        (F::Disconnects, "disconnects", 500),
        (F::Readers, "readers", 200),
        (F::TinyLog, "tiny-log", 400),
        (F::TinyStage, "tiny-stage", 300),
        (F::TinyIndex, "tiny-index", 300),
        (F::FewExtents, "few-extents", 250),
        (F::Never, "never", 200),
        (F::OriginTimeout, "origin-timeout", 200),
        (F::SlowOrigin, "slow-origin", 300),
        (F::SlowCache, "slow-cache", 250),
        (F::Kills, "kills", 600),
        (F::KillsInMemory, "kills-in-memory", 600),
        (F::PowerLosses, "power-losses", 700),
        (F::CrashesInRecovery, "crashes-in-recovery", 600),
        (F::CacheErrors, "cache-errors", 450),
        (F::CacheReads, "cache-reads", 450),
        (F::CacheDies, "cache-dies", 40),
        (F::Rot, "rot", 450),
        (F::Garbage, "garbage", 500),
        (F::OriginTrouble, "origin-trouble", 500),
        (F::OriginFull, "origin-full", 300),
        (F::RecoveryErrors, "recovery-errors", 400),
        (F::ClockJumps, "clock-jumps", 400),
        (F::Absent, "absent", 300),
        (F::NewImages, "new-images", 400),
        (F::Foreign, "foreign", 500),
        (F::Hosts, "hosts", 350),
        (F::StageGone, "stage-gone", 150),
        (F::ImageMoved, "image-moved", 80),
        (F::ImageShrunk, "image-shrunk", 80),
        (F::BaseWritten, "base-written", 80),
        (F::ImageReplaced, "image-replaced", 80),
        (F::CacheGone, "cache-gone", 60),
        (F::Resizes, "resizes", 80),
        (F::Sleeps, "sleeps", 150),
        (F::Qcow2, "qcow2", QCOW2),
        (F::Rests, "rests", 120),
        (F::Moves, "moves", MOVES),
    ];

    pub fn name(self) -> &'static str {
        Feature::ALL[self as usize].1
    }

    /// The numbers of one feature of a seed.
    fn numbers(self, seed: u64) -> Rng {
        let salt = (self as u64 + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        Rng::new(seed ^ salt)
    }
}

impl FromStr for Feature {
    type Err = String;

    fn from_str(name: &str) -> Result<Feature, String> {
        let known = Feature::ALL.into_iter().find(|it| it.1 == name);
        known.map(|it| it.0).ok_or_else(|| {
            let names: Vec<&str> = Feature::ALL.iter().map(|it| it.1).collect();
            format!("there is no such feature; there are {}", names.join(", "))
        })
    }
}

/// A set of features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(u64);

impl Features {
    pub fn has(self, feature: Feature) -> bool {
        self.0 & (1 << feature as u64) != 0
    }

    pub fn with(self, feature: Feature) -> Features {
        Features(self.0 | 1 << feature as u64)
    }

    pub fn without(self, others: Features) -> Features {
        Features(self.0 & !others.0)
    }

    pub fn list(self) -> impl Iterator<Item = Feature> {
        let all = Feature::ALL.into_iter().map(|it| it.0);
        all.filter(move |it| self.has(*it))
    }

    /// What a seed draws.
    pub fn of_seed(seed: u64) -> Features {
        let drawn = |(feature, _, rate): &(Feature, &str, u64)| feature.numbers(seed).chance(*rate);
        let drawn = Feature::ALL.iter().filter(|it| drawn(it));
        drawn.fold(Features::default(), |set, it| set.with(it.0))
    }
}

impl FromIterator<Feature> for Features {
    fn from_iter<T: IntoIterator<Item = Feature>>(features: T) -> Features {
        let features = features.into_iter();
        features.fold(Features::default(), Features::with)
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.list().map(Feature::name).collect();
        f.write_str(&names.join(","))
    }
}

/// A seed, and what was taken away from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    pub seed: u64,
    pub operations: u64,
    /// Instead of the number of restarts that the seed has, if it is smaller.
    pub restarts: Option<u32>,
    pub without: Features,
}

impl Case {
    pub fn from_seed(seed: u64) -> Case {
        Case {
            seed,
            operations: 1000,
            restarts: None,
            without: Features::default(),
        }
    }

    pub fn features(&self) -> Features {
        Features::of_seed(self.seed).without(self.without)
    }

    pub fn restarts(&self) -> u32 {
        let drawn = 1 + (self.seed % 5) as u32;
        self.restarts.map_or(drawn, |it| it.min(drawn))
    }

    /// The arguments of `tenuto sim` that run exactly this.
    pub fn arguments(&self) -> String {
        let mut words = format!("--seed {} --operations {}", self.seed, self.operations);
        if let Some(restarts) = self.restarts {
            words += &format!(" --restarts {restarts}");
        }
        if self.without != Features::default() {
            words += &format!(" --without {}", self.without);
        }
        words
    }

    pub fn options(&self) -> Options {
        let features = self.features();
        let restarts = self.restarts();
        Options {
            operations: self.operations,
            restarts,
            plan: Some(plan(self.seed, features)),
            endings: endings(self.seed, features, restarts),
            ..Options::from_seed(self.seed)
        }
    }
}

/// How the lives of a seed end.
fn endings(seed: u64, features: Features, restarts: u32) -> Vec<Ending> {
    let orderly = |power_off| Ending::Orderly { power_off };
    let mut from = vec![orderly(false), orderly(true)];
    let kinds = [
        (F::Kills, Ending::Kill),
        (F::KillsInMemory, Ending::KillInMemory),
        (F::PowerLosses, Ending::PowerLoss),
        (F::PowerLosses, Ending::PowerLoss),
        (F::Hosts, Ending::Move),
        (F::Hosts, Ending::Visit),
        (F::StageGone, Ending::StageGone),
    ];
    for (feature, ending) in kinds {
        // A part of a group that is refused leaves the rest waiting for it.
        let parted = ending == Ending::Visit && features.has(F::Groups);
        if features.has(feature) && !parted {
            from.extend([ending; 2]);
        }
    }
    // A life has numbers of its own, so that taking lives from the end leaves the others.
    let one = |life: u32| Rng::new(seed ^ (u64::from(life) + 1) << 40).pick(&from);
    (0..restarts).map(one).collect()
}

/// The plan of a seed with these features.
pub fn plan(seed: u64, features: Features) -> Plan {
    let mut plan = Plan::from_seed(seed);
    volumes(&mut plan, seed, features);
    limits(&mut plan, seed, features);
    load(&mut plan, seed, features);
    faults(&mut plan, seed, features);
    plan.detaches = seed.is_multiple_of(2);
    plan.limit_requests();
    tops(&mut plan, seed, features);
    plan
}

/// Images that may allocate do, most of them.
fn tops(plan: &mut Plan, seed: u64, features: Features) {
    let mut rng = F::Qcow2.numbers(seed);
    for at in 0..plan.origins.len() {
        let (drawn, file) = (rng.chance(800), rng.word());
        let has = features.has(F::Qcow2) || features.has(F::Moves);
        let top = drawn && has && plan.may_allocate(at);
        plan.origins[at].top = top.then_some(file);
    }
    if features.has(F::Moves) {
        moves(plan, seed);
    }
}

/// Images that allocate move, of volumes that write only by way of their log.
fn moves(plan: &mut Plan, seed: u64) {
    let mut rng = F::Moves.numbers(!seed);
    for volume in &mut plan.volumes {
        let (moves, cuts) = (rng.chance(800), rng.chance(400));
        let top = plan.origins[volume.origin].top.is_some();
        let logged = volume.policy == Policy::WriteBack && !volume.goes_direct();
        volume.moves = top && logged && moves;
        volume.cuts = top && logged && cuts && volume.group.is_empty();
        volume.resizes |= volume.cuts;
    }
}

fn volumes(plan: &mut Plan, seed: u64, features: Features) {
    if !features.has(F::Neighbours) {
        keep(plan, |at, _| at == 0);
    }
    let first = F::Neighbours.numbers(seed).below(10);
    let direct = features.has(F::Direct);
    match first {
        0 if features.has(F::Ephemeral) => plan.volumes[0].policy = Policy::Ephemeral,
        1 if direct => plan.volumes[0].policy = Policy::Uncached,
        2 if direct => plan.volumes[0].policy = Policy::WriteThrough,
        _ => {}
    }
    keep(plan, |at, it| {
        let there = match it.policy {
            Policy::Ephemeral => features.has(F::Ephemeral),
            Policy::Uncached | Policy::WriteThrough => direct || it.switches,
            Policy::WriteBack => true,
        };
        at == 0 || there
    });
    let mut rng = F::Switches.numbers(seed);
    for volume in &mut plan.volumes {
        let changes = features.has(F::Switches) && rng.chance(500);
        volume.switches = (volume.switches || changes) && features.has(F::Switches);
        volume.switches &= volume.policy != Policy::Ephemeral;
        if !features.has(F::InPlace) {
            volume.tuning.destage = DestageMode::Atomic;
            volume.journal_possible = true;
        }
    }
    if features.has(F::Groups) {
        group(plan, seed);
    }
}

/// The write-back volumes become disks of one VM, where there are several.
fn group(plan: &mut Plan, seed: u64) {
    let back = |it: &VolumePlan| it.policy == Policy::WriteBack;
    if plan.volumes.iter().filter(|it| back(it)).count() < 2 {
        let mut other = plan.volumes[0].clone();
        if !back(&other) {
            return;
        }
        other.name = "v-other".to_owned();
        other.origin = plan.origins.len();
        plan.origins.push(plan.origins[0].clone());
        plan.volumes.push(other);
    }
    let members = plan.volumes.iter().filter(|it| back(it)).count() as u32;
    let all_switch = F::Groups.numbers(seed).chance(200) && plan.volumes[0].switches;
    for volume in plan.volumes.iter_mut().filter(|it| back(it)) {
        volume.group = "vm".to_owned();
        volume.switches = all_switch;
        volume.tuning.group_members = members;
        volume.tuning.destage = DestageMode::Atomic;
        volume.journal_possible = true;
    }
}

/// Keeps some of the volumes, and their origins.
fn keep(plan: &mut Plan, kept: impl Fn(usize, &VolumePlan) -> bool) {
    let mut at = 0;
    plan.volumes.retain(|volume| {
        at += 1;
        kept(at - 1, volume)
    });
    let mut origins = Vec::new();
    for volume in &mut plan.volumes {
        let known = origins.iter().position(|&it| it == volume.origin);
        let place = known.unwrap_or(origins.len());
        if known.is_none() {
            origins.push(volume.origin);
        }
        volume.origin = place;
    }
    plan.origins = origins
        .into_iter()
        .map(|it| plan.origins[it].clone())
        .collect();
}

fn limits(plan: &mut Plan, seed: u64, features: Features) {
    let log_bytes = plan.geometry.log_bytes();
    if features.has(F::TinyLog) {
        let mut rng = F::TinyLog.numbers(seed);
        plan.geometry.chunk_blocks = 8;
        plan.geometry.segment_chunks = rng.range(4, 6) as u32;
        plan.geometry.segments = rng.range(12, 16) as u32;
    }
    if features.has(F::TinyStage) {
        let mut rng = F::TinyStage.numbers(seed);
        plan.stage_slots = rng.range(5, 8) as u32;
        plan.overlay_slots = rng.range(4, 6) as u32;
    }
    plan.index_bytes_max = match features.has(F::TinyIndex) {
        true => F::TinyIndex.numbers(seed).pick(&[0, 3_000, 20_000]),
        false => 1 << 20,
    };
    plan.dirty_extents_max = match features.has(F::FewExtents) {
        true => F::FewExtents.numbers(seed).pick(&[200, 300, 600]),
        false => 100_000,
    };
    let timeouts = features.has(F::OriginTimeout);
    let mut rng = F::OriginTimeout.numbers(seed);
    let now = plan.geometry.log_bytes();
    for volume in &mut plan.volumes {
        let tuning = &mut volume.tuning;
        // Limits were drawn for the log that it was.
        let fit = |bytes: u64| (bytes * now / log_bytes).max(4096) / 4096 * 4096;
        tuning.dirty_limit_bytes = fit(tuning.dirty_limit_bytes);
        tuning.share.min_bytes = match tuning.share.min_bytes {
            0 => 0,
            bytes => fit(bytes).min(now / 64),
        };
        if features.has(F::Never) {
            tuning.destage_after_ms = None;
            tuning.dirty_limit_bytes = 1 << 30;
        } else if tuning.destage_after_ms.is_none() {
            tuning.destage_after_ms = Some(2000);
        }
        tuning.origin_timeout_ms = timeouts.then(|| rng.pick(&[50, 500, 5000]));
    }
}

fn load(plan: &mut Plan, seed: u64, features: Features) {
    let mut rng = F::Hot.numbers(seed);
    if features.has(F::Hot) {
        for origin in &mut plan.origins {
            origin.sectors = rng.pick(&[64, 200, 512, 1024]);
        }
    }
    let mut deep = F::Deep.numbers(seed);
    let mut read = F::Readers.numbers(seed);
    for volume in &mut plan.volumes {
        volume.depth = match features.has(F::Deep) {
            true => deep.pick(&[2, 4, 8, 16, 32]),
            false => 1,
        };
        volume.reader = features.has(F::Readers) && read.chance(500);
        volume.spares.zeroes = !features.has(F::Discards);
        volume.spares.unaligned = !features.has(F::Unaligned);
        volume.spares.commands = !features.has(F::Commands);
        volume.spares.fua = !features.has(F::Fua);
    }
    for volume in &mut plan.volumes {
        volume.sleeps = features.has(F::Sleeps) && volume.policy == Policy::Ephemeral;
        if volume.sleeps {
            volume.tuning.reset_on = ResetOn::Disconnect;
        }
    }
    let mut sizes = F::Resizes.numbers(seed);
    for volume in &mut plan.volumes {
        // Those that stand alone.
        volume.resizes = features.has(F::Resizes) && sizes.chance(700) && volume.group.is_empty();
    }
    let others = [
        F::ImageMoved,
        F::ImageShrunk,
        F::BaseWritten,
        F::ImageReplaced,
        F::Hosts,
    ];
    let rest = features.has(F::Rests) && !others.into_iter().any(|it| features.has(it));
    for at in 0..plan.volumes.len() {
        let first = plan.volumes[at].group.is_empty()
            || plan.volumes[..at]
                .iter()
                .all(|it| it.group != plan.volumes[at].group);
        let volume = &mut plan.volumes[at];
        let owned = volume.policy == Policy::WriteBack && !volume.switches;
        volume.rests = rest && owned && first;
    }
    let mut zeroes = F::Discards.numbers(seed);
    if features.has(F::Discards) && zeroes.chance(200) {
        plan.volumes.last_mut().expect("there is one").zeroes = true;
    }
    plan.large = features.has(F::Large);
}

fn faults(plan: &mut Plan, seed: u64, features: Features) {
    let draw = |feature: Feature, from: &[u64]| match features.has(feature) {
        true => feature.numbers(!seed).pick(from),
        false => 0,
    };
    let grouped = plan.volumes.iter().any(|it| !it.group.is_empty());
    let rates = &mut plan.rates;
    rates.cache_write_error = draw(F::CacheErrors, &[2, 10, 30]);
    rates.cache_sync_error = draw(F::CacheErrors, &[10, 50, 100]);
    rates.cache_read_error = draw(F::CacheReads, &[10, 50, 200]);
    rates.cache_dies = draw(F::CacheDies, &[3, 10]);
    rates.rot = draw(F::Rot, &[20, 100, 200]);
    rates.stale = features.has(F::Rot);
    rates.garbage = features.has(F::Garbage);
    rates.origin_trouble = draw(F::OriginTrouble, &[2, 6, 15]);
    rates.all_full = features.has(F::OriginFull);
    rates.crash_in_recovery = draw(F::CrashesInRecovery, &[200, 400, 800]);
    rates.recovery_error = draw(F::RecoveryErrors, &[2, 10]);
    rates.disconnect = draw(F::Disconnects, &[2, 10]);
    rates.clock_jumps = draw(F::ClockJumps, &[2, 10]);
    // A part of a group is not destaged.
    rates.absent = if grouped {
        0
    } else {
        draw(F::Absent, &[60, 300])
    };
    rates.new_image = draw(F::NewImages, &[300, 700]);
    rates.foreign = draw(F::Foreign, &[300, 800]);
    rates.image_moved = draw(F::ImageMoved, &[2, 6]);
    rates.image_shrunk = draw(F::ImageShrunk, &[2, 6]);
    rates.base_written = draw(F::BaseWritten, &[2, 6]);
    rates.image_replaced = draw(F::ImageReplaced, &[200, 500]);
    rates.cache_gone = draw(F::CacheGone, &[3, 10]);
    rates.origin_slow = draw(F::SlowOrigin, &[3, 6, 12]).max(1);
    rates.cache_slow = draw(F::SlowCache, &[5, 20, 60]).max(1);
    rates.burst_ns = F::SlowOrigin
        .numbers(!seed)
        .pick(&[0, 50_000_000, 2_000_000_000]);
    plan.hosts = 1 + usize::from(features.has(F::Hosts));
    if features.has(F::CacheDies) || features.has(F::CacheGone) {
        // In-place destage of what the log has lost is no promise, and who cannot go past a log
        // waits for it.
        for volume in &mut plan.volumes {
            volume.switches = volume.policy != Policy::Ephemeral;
            volume.tuning.destage = DestageMode::Atomic;
            volume.journal_possible = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_stand_at_their_places_and_are_found_by_name() {
        for (at, (feature, name, _)) in Feature::ALL.into_iter().enumerate() {
            assert_eq!(feature as usize, at);
            assert_eq!(name.parse(), Ok(feature));
        }
        assert!("nothing".parse::<Feature>().is_err());
    }

    #[test]
    fn a_feature_that_is_taken_away_changes_no_other() {
        for seed in 0..50 {
            let all = Features::of_seed(seed);
            let fewer = all.without([F::Rot].into_iter().collect());
            let (mut one, two) = (plan(seed, all), plan(seed, fewer));
            (one.rates.rot, one.rates.stale) = (0, false);
            assert_eq!(format!("{one:?}"), format!("{two:?}"));
        }
    }

    #[test]
    fn seeds_differ_and_every_feature_has_some() {
        let drawn: Vec<Features> = (0..200).map(Features::of_seed).collect();
        for (feature, name, _) in Feature::ALL.into_iter().filter(|it| it.2 > 0) {
            let count = drawn.iter().filter(|it| it.has(feature)).count();
            assert!((1..200).contains(&count), "{name}: {count}");
        }
    }

    #[test]
    fn the_arguments_of_a_case_name_what_was_taken_away() {
        let case = Case {
            restarts: Some(1),
            without: [F::Hosts, F::Large].into_iter().collect(),
            ..Case::from_seed(7)
        };
        let words = "--seed 7 --operations 1000 --restarts 1 --without large,hosts";
        assert_eq!(case.arguments(), words);
    }
}
