//! Runs with a name: one for each bug that the simulator has found.
//!
//! A seed alone would find its way only through the code of that day. So a scenario bends the
//! plan towards the bug (the volumes, limits, faults and endings it takes) and runs some dozen
//! seeds of it. Always true: a scenario that once failed stays in this list, with the rule of the
//! design that was broken. Deliberately absent: anything but plans.

use crate::host::Ending;
use crate::plan::Plan;
use crate::run::{Failure, Options, run};
use crate::trace::Counters;
use engine::event::{Admission, ResetOn};
use engine::types::{DestageMode, Policy};

/// Seeds of each scenario.
pub const SEEDS: u64 = 30;

/// A family of runs.
pub struct Scenario {
    pub name: &'static str,
    /// What went wrong, and which rule it broke.
    pub broke: &'static str,
    bend: fn(&mut Options, &mut Plan),
}

impl Scenario {
    /// The options of one seed.
    pub fn options(&self, seed: u64) -> Options {
        let mut options = Options::from_seed(seed);
        let mut plan = Plan::from_seed(seed);
        (self.bend)(&mut options, &mut plan);
        plan.limit_requests();
        Options {
            plan: Some(plan),
            ..options
        }
    }

    /// Runs so many seeds, up to the first failure.
    pub fn run(&self, seeds: u64) -> Result<Counters, Failure> {
        let mut counters = Counters::default();
        for seed in 0..seeds {
            let outcome = run(&self.options(seed));
            counters.add(&outcome.map_err(|failure| self.named(failure))?.counters);
        }
        Ok(counters)
    }

    fn named(&self, failure: Failure) -> Failure {
        Failure {
            message: format!("{}: {}", self.name, failure.message),
            ..failure
        }
    }
}

/// The scenario of this name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name)
}

/// Leaves the first volume, as `policy`, and its copies.
fn only(plan: &mut Plan, policy: Policy, copies: usize) {
    plan.volumes.truncate(1);
    plan.origins.truncate(1);
    plan.volumes[0].policy = policy;
    for copy in 1..copies {
        let mut volume = plan.volumes[0].clone();
        volume.name = format!("v{copy}");
        plan.volumes.push(volume);
    }
}

/// Readers of one base and a writer who needs all the room: clean segments wrap many times, on a
/// device that rots.
pub fn clean_blocks(seed: u64) -> Options {
    let mut options = Options::from_seed(seed);
    let mut plan = Plan::from_seed(seed);
    only(&mut plan, Policy::WriteBack, 1);
    let mut base = plan.origins[0].clone();
    base.tag = Some(1001);
    plan.origins.push(base);
    for reader in 0..2 {
        let mut volume = plan.volumes[0].clone();
        volume.name = format!("v{}", 1 + reader);
        volume.policy = Policy::Ephemeral;
        volume.origin = 1;
        volume.reader = true;
        volume.depth = 8;
        plan.volumes.push(volume);
    }
    plan.geometry.chunk_blocks = 8;
    plan.geometry.segments = 14 + (seed % 20) as u32;
    plan.ram_blocks = [16, 64, 128][(seed % 3) as usize];
    plan.index_bytes_max = [20_000, 1 << 20][(seed / 3 % 2) as usize];
    plan.rates.rot = [0, 20, 100][(seed / 6 % 3) as usize];
    plan.rates.absent = 0;
    plan.limit_requests();
    options.plan = Some(plan);
    options.operations = 3000;
    options
}

/// Volumes that are written and read through clean blocks of their own on the device: write-back,
/// write-through and one whose policy changes, beside an ephemeral one that is reset, with a read
/// tier that keeps next to nothing.
pub fn own_blocks(seed: u64) -> Options {
    let mut options = Options::from_seed(seed);
    let mut plan = Plan::from_seed(seed);
    let policies = match seed % 4 {
        0 => vec![Policy::WriteBack],
        1 => vec![Policy::WriteThrough, Policy::WriteBack],
        _ => vec![Policy::WriteBack, Policy::Ephemeral, Policy::WriteThrough],
    };
    only(&mut plan, Policy::WriteBack, policies.len());
    plan.origins[0].tag = Some(1001);
    plan.origins[0].sectors = plan.origins[0].sectors.min(4096);
    plan.origins = vec![plan.origins[0].clone(); policies.len()];
    for (at, policy) in policies.into_iter().enumerate() {
        let volume = &mut plan.volumes[at];
        volume.origin = at;
        volume.policy = policy;
        volume.switches = seed % 4 == 3 && policy != Policy::Ephemeral;
        volume.depth = 8;
        volume.tuning.destage_after_ms = [Some(20), Some(200)][(seed / 4 % 2) as usize];
        volume.tuning.admission = [Admission::All, Admission::Reuse][(seed / 8 % 2) as usize];
    }
    plan.geometry.chunk_blocks = 8;
    plan.geometry.segments = 16 + (seed % 20) as u32;
    plan.ram_blocks = [16, 64][(seed / 2 % 2) as usize];
    plan.index_bytes_max = [20_000, 1 << 20][(seed / 3 % 2) as usize];
    plan.rates.rot = [0, 0, 20, 100][(seed / 5 % 4) as usize];
    plan.rates.absent = 0;
    plan.limit_requests();
    options.plan = Some(plan);
    options.operations = 3000;
    if !seed.is_multiple_of(3) {
        // What an orderly stop has kept is read, written, and must not be found after a kill.
        let (stop, off) = (
            Ending::Orderly { power_off: false },
            Ending::Orderly { power_off: true },
        );
        let (kill, loss) = (Ending::Kill, Ending::PowerLoss);
        options.endings = vec![stop, kill, off, loss, stop, stop, Ending::KillInMemory, off];
        options.restarts = options.endings.len() as u32;
        options.operations = 5000;
    }
    options
}

/// Write-back volumes whose last copies rot while their host is down, one block or many.
pub fn last_copies(seed: u64) -> Options {
    let mut plan = Plan::from_seed(seed);
    only(&mut plan, Policy::WriteBack, 1 + (seed % 2) as usize);
    for at in 1..plan.volumes.len() {
        plan.volumes[at].origin = at;
        plan.origins.push(plan.origins[0].clone());
    }
    for (at, volume) in plan.volumes.iter_mut().enumerate() {
        volume.tuning.destage_after_ms = [Some(200), None][(at + seed as usize / 2) % 2];
        volume.tuning.destage = DestageMode::Atomic;
        volume.journal_possible = true;
        volume.tuning.dirty_limit_bytes = 1 << 30;
    }
    plan.rates.absent = 0;
    plan.rates.crash_in_recovery = 0;
    plan.limit_requests();
    Options {
        spoiled: [1, 3, 20][(seed % 3) as usize],
        operations: 400,
        plan: Some(plan),
        ..Options::from_seed(seed)
    }
}

/// Readers of a base image beside a writer, where checkpoints seldom come through.
pub fn bad_checkpoints(seed: u64) -> Options {
    let mut options = clean_blocks(seed);
    let plan = options.plan.as_mut().expect("it has one");
    plan.rates.checkpoint_error = [800, 950][(seed % 2) as usize];
    (plan.rates.rot, plan.rates.new_image) = (0, 0);
    // After ten seconds of that the device counts as failed, and the writer goes past its log.
    let writer = &mut plan.volumes[0];
    writer.switches = true;
    writer.tuning.destage = DestageMode::Atomic;
    writer.journal_possible = true;
    options.endings = vec![Ending::PowerLoss, Ending::Kill, Ending::PowerLoss];
    options.restarts = 3;
    options
}

/// Overlays that are committed to their images again and again, which dies at all its steps, beside
/// a volume that shares the log.
pub fn commits(seed: u64) -> Options {
    let mut options = Options::from_seed(seed);
    let mut plan = Plan::from_seed(seed);
    only(&mut plan, Policy::Ephemeral, 1 + (seed % 2) as usize);
    let neighbour = plan.volumes.len() == 2;
    if neighbour {
        plan.volumes[1].origin = 1;
        plan.volumes[1].policy = Policy::WriteBack;
        plan.origins.push(plan.origins[0].clone());
    }
    let overlay = &mut plan.volumes[0];
    overlay.commits = true;
    overlay.depth = 4;
    overlay.journal_possible = true;
    overlay.tuning.destage = DestageMode::Atomic;
    plan.origins[0].sectors = [256, 1024, 2053][(seed % 3) as usize];
    plan.rates.absent = 0;
    plan.limit_requests();
    let ends = [Ending::Kill, Ending::PowerLoss, Ending::KillInMemory];
    options.endings = (0..8)
        .map(|life| ends[(seed as usize + life) % 3])
        .collect();
    options.restarts = 8;
    options.operations = 3000;
    options.plan = Some(plan);
    options
}

/// Volumes that become larger and smaller all the time, a block of theirs cut by nearly every end:
/// one that is write-back, and one of each other policy in turn.
pub fn resizes(seed: u64) -> Options {
    let options = Options::from_seed(seed);
    let mut plan = Plan::from_seed(seed);
    only(&mut plan, Policy::WriteBack, 2);
    plan.origins = vec![plan.origins[0].clone(); 2];
    for at in 0..2 {
        plan.origins[at].sectors = 300 + seed % 8 + at as u64 * 117;
        let volume = &mut plan.volumes[at];
        volume.origin = at;
        volume.resizes = true;
        volume.depth = volume.depth.min(4);
        volume.reader = (seed / 4 + at as u64).is_multiple_of(2);
        volume.tuning.admission = Admission::All;
    }
    let other = &mut plan.volumes[1];
    match seed % 4 {
        0 => other.policy = Policy::WriteThrough,
        1 => other.policy = Policy::Uncached,
        2 => other.switches = true,
        _ => other.policy = Policy::Ephemeral,
    }
    seven_lives(options, plan, seed)
}

/// Seven short runs of a daemon, six of which end in each way by turns.
fn seven_lives(mut options: Options, mut plan: Plan, seed: u64) -> Options {
    plan.limit_requests();
    six_ends(&mut options, seed);
    options.plan = Some(plan);
    options
}

fn six_ends(options: &mut Options, seed: u64) {
    let orderly = Ending::Orderly { power_off: false };
    let ends = [Ending::Kill, Ending::PowerLoss, orderly, Ending::PowerLoss];
    options.endings = (0..6)
        .map(|life| ends[(seed as usize + life) % 4])
        .collect();
    options.restarts = 6;
    options.operations = 1500;
}

/// Volumes whose images allocate and that become larger all the time, while they are dirty and
/// destaged, cut by nearly every end.
pub fn grows(seed: u64) -> Options {
    let options = Options::from_seed(seed);
    let mut plan = Plan::from_seed(seed);
    only(&mut plan, Policy::WriteBack, 2);
    let rates = &mut plan.rates;
    (rates.cache_dies, rates.cache_gone) = (0, 0);
    (rates.image_shrunk, rates.image_replaced) = (0, 0);
    plan.origins = vec![plan.origins[0].clone(); 2];
    for at in 0..2 {
        // Two tables of the smallest clusters are not far.
        plan.origins[at].sectors = 300 + seed % 8 + at as u64 * (3000 + seed % 64);
        plan.origins[at].top = Some(seed * 2 + at as u64);
        let volume = &mut plan.volumes[at];
        volume.origin = at;
        volume.resizes = true;
        volume.depth = volume.depth.min(4);
        volume.journal_possible = true;
        volume.switches = false;
        volume.commits = false;
        volume.reader = (seed / 4 + at as u64).is_multiple_of(2);
        volume.tuning.admission = Admission::All;
    }
    seven_lives(options, plan, seed)
}

/// Volumes whose images move to other files below them, again and again, and become smaller and
/// larger in between: one that stands alone, and one beside it that shares the log.
pub fn moves(seed: u64) -> Options {
    let options = Options::from_seed(seed);
    let mut plan = Plan::from_seed(seed);
    moving(&mut plan, seed);
    seven_lives(options, plan, seed)
}

fn moving(plan: &mut Plan, seed: u64) {
    only(plan, Policy::WriteBack, 2);
    let rates = &mut plan.rates;
    (rates.cache_dies, rates.cache_gone) = (0, 0);
    (rates.image_shrunk, rates.image_replaced) = (0, 0);
    plan.origins = vec![plan.origins[0].clone(); 2];
    for at in 0..2 {
        plan.origins[at].sectors = 300 + seed % 8 + at as u64 * (1000 + seed % 64);
        plan.origins[at].top = Some(seed * 2 + at as u64);
        let volume = &mut plan.volumes[at];
        volume.origin = at;
        (volume.moves, volume.cuts) = (true, (seed + at as u64).is_multiple_of(2));
        volume.resizes = volume.cuts;
        volume.depth = volume.depth.min(4);
        volume.journal_possible = true;
        (volume.switches, volume.commits) = (false, false);
        volume.reader = (seed / 4 + at as u64).is_multiple_of(2);
        volume.tuning.admission = Admission::All;
    }
}

/// Images that are brought to rest again and again while their guests write: those of the disks of
/// one VM, and of a volume that stands alone beside them; every second one allocates.
pub fn rests(seed: u64) -> Options {
    let mut options = Options::from_seed(seed);
    let mut plan = Plan::from_seed(seed);
    disks_of_one_vm(&mut options, &mut plan, seed);
    let rates = &mut plan.rates;
    (rates.image_shrunk, rates.image_replaced, rates.cache_gone) = (0, 0, 0);
    let alone = plan.volumes.len() - 1;
    for at in [0, alone] {
        plan.volumes[at].rests = true;
    }
    for at in (0..=alone).filter(|at| (seed + *at as u64).is_multiple_of(2)) {
        plan.origins[at].top = Some(seed * 4 + at as u64);
    }
    seven_lives(options, plan, seed)
}

/// Two or three disks of one VM, and a volume that stands alone beside them.
pub fn group(seed: u64) -> Options {
    let mut options = Options::from_seed(seed);
    let mut plan = Plan::from_seed(seed);
    disks_of_one_vm(&mut options, &mut plan, seed);
    plan.limit_requests();
    options.plan = Some(plan);
    options
}

/// The same, while the policies of all of them change, as when their host is drained and goes on.
pub fn switching_group(seed: u64) -> Options {
    let mut options = group(seed);
    let plan = options.plan.as_mut().expect("a group has a plan");
    plan.volumes.iter_mut().for_each(|it| it.switches = true);
    plan.limit_requests();
    options
}

fn disks_of_one_vm(options: &mut Options, plan: &mut Plan, seed: u64) {
    only(plan, Policy::WriteBack, 3 + (seed % 2) as usize);
    let alone = plan.volumes.len() - 1;
    for at in 0..plan.volumes.len() {
        let volume = &mut plan.volumes[at];
        volume.tuning.destage = DestageMode::Atomic;
        volume.journal_possible = true;
        volume.origin = at;
        if at != alone {
            volume.group = "vm".to_owned();
            volume.tuning.group_members = alone as u32;
        }
        if at > 0 {
            let origin = plan.origins[0].clone();
            plan.origins.push(origin);
        }
    }
    plan.rates.absent = 0;
    options.operations = 1000;
}

/// A volume that mostly discards, beside one that fills the log, so that zeroes are evacuated.
fn zeroes_beside_writes(options: &mut Options, plan: &mut Plan) {
    only(plan, Policy::WriteBack, 2);
    plan.origins.push(plan.origins[0].clone());
    plan.geometry.segments = 14;
    plan.geometry.chunk_blocks = 8;
    plan.rates.origin_trouble = 0;
    plan.rates.absent = 0;
    for volume in &mut plan.volumes {
        volume.tuning.flow.dirty_writes = None;
        volume.tuning.flow.dirty_bytes_percent = 100;
    }
    plan.volumes[0].tuning.destage_after_ms = None;
    plan.volumes[0].tuning.dirty_limit_bytes = 1 << 30;
    plan.volumes[1].origin = 1;
    plan.volumes[1].zeroes = true;
    options.endings = vec![
        Ending::Kill,
        Ending::KillInMemory,
        Ending::Kill,
        Ending::Kill,
    ];
    options.restarts = 4;
    options.operations = 3000;
}

/// All of them, oldest first.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "a-write-over-the-end-of-a-chunk",
        broke: "2: a write that the end of a chunk split had two serials; a power loss, or the cut \
                of an atomic destage, came between them",
        bend: |options, plan| {
            only(plan, Policy::WriteBack, 1);
            plan.geometry.chunk_blocks = 8;
            options.endings = vec![Ending::PowerLoss; 4];
            options.restarts = 4;
        },
    },
    Scenario {
        name: "a-write-that-was-dropped-comes-back",
        broke: "5.2.6: recovery dropped a write of which the last piece was missing, but left its \
                entries in the footers; the next recovery took them",
        bend: |options, plan| {
            only(plan, Policy::WriteBack, 1);
            plan.geometry.chunk_blocks = 8;
            plan.volumes[0].depth = 16;
            plan.volumes[0].tuning.destage_after_ms = None;
            options.endings = vec![
                Ending::PowerLoss,
                Ending::Kill,
                Ending::PowerLoss,
                Ending::Kill,
            ];
            options.restarts = 4;
        },
    },
    Scenario {
        name: "a-half-staged-write-holds-the-log",
        broke: "5.2.2: a write with a serial waited for room, and while it waited no segment died",
        bend: |options, plan| {
            plan.geometry.chunk_blocks = 8;
            plan.geometry.segments = 14;
            plan.volumes.iter_mut().for_each(|volume| volume.depth = 16);
            options.operations = 2000;
        },
    },
    Scenario {
        name: "two-syncs-of-the-cache-and-one-fails",
        broke: "5.2.5: the sync of a checkpoint failed beside one of the log that succeeded; what \
                the failed one had covered was not written again",
        bend: |options, plan| {
            only(plan, Policy::WriteBack, 1);
            plan.rates.cache_sync_error = 100;
            plan.geometry.segments = 14;
            options.operations = 2000;
        },
    },
    Scenario {
        name: "a-kill-while-a-slot-changes-hands",
        broke: "2: the first header of a slot was blanked while the slot still named its old \
                chunk; recovery believed the slot, not the device",
        bend: |options, plan| {
            only(plan, Policy::Ephemeral, 2);
            plan.overlay_slots = 4;
            options.endings = vec![Ending::KillInMemory; 8];
            options.restarts = 8;
        },
    },
    Scenario {
        name: "a-kill-while-the-stage-is-renewed",
        broke: "2: between the old and the new header of the stage the overlays, though saved on \
                the device, were taken for those of another boot",
        bend: |options, plan| {
            only(plan, Policy::Ephemeral, 2);
            plan.rates.crash_in_recovery = 900;
            options.endings = vec![Ending::Kill; 8];
            options.restarts = 8;
        },
    },
    Scenario {
        name: "the-stage-is-gone-and-the-host-is-not",
        broke: "2: a stage that was removed was taken for one that a loss of power had \
                emptied; acknowledged writes were missing, and their guests ran on",
        bend: |options, plan| {
            plan.rates.crash_in_recovery = 400;
            let (gone, stop) = (Ending::StageGone, Ending::Orderly { power_off: false });
            options.endings = vec![
                gone,
                Ending::Kill,
                gone,
                gone,
                stop,
                gone,
                Ending::Kill,
                gone,
            ];
            options.restarts = 8;
        },
    },
    Scenario {
        name: "the-first-chunk-of-an-overlay-is-let-go",
        broke: "2: a segment whose first chunk was let go unwritten had no life on the device; \
                when its slots had changed hands recovery did not see what was spilled of it",
        bend: |options, plan| {
            only(plan, Policy::Ephemeral, 2);
            plan.overlay_slots = 4;
            plan.geometry.segment_chunks = 8;
            options.endings = vec![Ending::Kill; 8];
            options.restarts = 8;
        },
    },
    Scenario {
        name: "the-clock-of-the-origin-is-ahead",
        broke: "5.2.4: a journal under way was refused because the file server's clock, an hour \
                ahead, had stamped the image",
        bend: |options, plan| {
            only(plan, Policy::WriteBack, 1);
            plan.volumes[0].tuning.destage = DestageMode::Atomic;
            plan.volumes[0].journal_possible = true;
            plan.volumes[0].tuning.destage_after_ms = Some(20);
            options.restarts = 4;
        },
    },
    Scenario {
        name: "a-destage-of-serials-that-were-skipped",
        broke: "a destage command after a recovery that had skipped the newest serials waited for \
                them for ever, though nothing was dirty any more",
        bend: |options, plan| {
            only(plan, Policy::WriteBack, 1);
            plan.volumes[0].depth = 1;
            plan.geometry.chunk_blocks = 8;
            options.endings = vec![Ending::PowerLoss; 6];
            options.restarts = 6;
        },
    },
    Scenario {
        name: "an-overlay-is-let-go-for-a-write-in-part",
        broke: "2: a chunk was let go unwritten because a write replaced all of it, but that write \
                was staged in part only; a kill dropped the write, and the chunk was gone",
        bend: |options, plan| {
            only(plan, Policy::Ephemeral, 2);
            plan.geometry.chunk_blocks = 8;
            plan.overlay_slots = 5;
            plan.volumes.iter_mut().for_each(|volume| volume.depth = 16);
            options.endings = vec![Ending::Kill, Ending::KillInMemory, Ending::Kill];
            options.restarts = 3;
            options.operations = 2000;
        },
    },
    Scenario {
        name: "a-stage-with-more-slots-than-the-log-has-chunks",
        broke: "2: the stage of a small cache beside much overlay RAM was taken for a foreign one, \
                and a kill lost what was acknowledged",
        bend: |options, plan| {
            only(plan, Policy::WriteBack, 1);
            plan.geometry.segments = 12;
            plan.overlay_slots = 200;
            options.endings = vec![Ending::Kill; 3];
            options.restarts = 3;
        },
    },
    Scenario {
        name: "a-kill-before-a-start-as-write-back",
        broke: "2: writes that had gone past the log were not synced when a killed volume came \
                back as write-back; a flush then covered the log alone",
        bend: |options, plan| {
            only(plan, Policy::WriteThrough, 1);
            plan.volumes[0].switches = true;
            options.endings = vec![
                Ending::Kill,
                Ending::PowerLoss,
                Ending::Kill,
                Ending::PowerLoss,
            ];
            options.restarts = 4;
            options.operations = 2000;
        },
    },
    Scenario {
        name: "zeroes-of-one-record-before-and-after-a-reset",
        broke: "2: evacuation took the zeroes after a reset for those before it, in the same \
                record, and copied them with a serial that the reset had voided",
        bend: |options, plan| {
            zeroes_beside_writes(options, plan);
            plan.volumes[1].policy = Policy::Ephemeral;
            plan.volumes[1].tuning.overlay_timeout_ms = 1;
            plan.volumes[0].depth = 16;
            plan.volumes[1].depth = 2;
        },
    },
    Scenario {
        name: "zeroes-of-one-record-and-a-write-between",
        broke: "5.2.6: evacuation copied zeroes with the serial of older ones of the same record; \
                after a kill a write between the two was the newest",
        bend: |options, plan| {
            zeroes_beside_writes(options, plan);
            plan.geometry.segment_chunks = 4;
            plan.volumes[1].tuning.destage_after_ms = Some(20);
        },
    },
    Scenario {
        name: "disks-of-one-vm-lose-power",
        broke: "5.1: volumes of a group end at one point in time, after a crash and at their \
                origins; without a group a destage of one leaves the other behind",
        bend: |options, plan| {
            disks_of_one_vm(options, plan, 0);
            options.endings = vec![Ending::PowerLoss; 4];
            options.restarts = 4;
        },
    },
    Scenario {
        name: "a-disk-of-a-group-hangs-in-the-sync-of-its-journal",
        broke: "5.1: a group began to write the first origin while the journal of another disk was \
                written and not synced; with the power that went then, half a cut was left",
        bend: |options, plan| {
            disks_of_one_vm(options, plan, 0);
            plan.rates.origin_trouble = 120;
            for volume in &mut plan.volumes {
                volume.tuning.destage_after_ms = Some(20);
                volume.depth = volume.depth.min(4);
            }
            options.endings = vec![Ending::PowerLoss; 6];
            options.restarts = 6;
        },
    },
    Scenario {
        name: "a-journal-whose-table-waits-for-its-turn",
        broke: "2: the table of a journal was made anew when it had waited for memory or for its \
                turn, and was empty then; the ledger vouched for it all the same",
        bend: |options, plan| {
            only(plan, Policy::WriteBack, 3);
            for at in 0..plan.volumes.len() {
                let volume = &mut plan.volumes[at];
                volume.origin = at;
                volume.journal_possible = true;
                volume.tuning.destage = DestageMode::Atomic;
                volume.tuning.destage_after_ms = Some(200);
                volume.tuning.share.weight = [100, 1, 10_000][at];
                if at > 0 {
                    plan.origins.push(plan.origins[0].clone());
                }
            }
            plan.rates.origin_check = 100;
            plan.rates.absent = 0;
            options.operations = 2000;
        },
    },
    Scenario {
        name: "a-run-that-leaves-only-its-second-record",
        broke: "5.2.6: the first record of a run was lost with the power, the second was not; the \
                next run gave the same numbers again, and a recovery took the second as its own",
        bend: |options, plan| {
            only(plan, Policy::WriteBack, 1);
            plan.volumes[0].depth = 16;
            plan.geometry.chunk_blocks = 8;
            plan.rates.absent = 0;
            options.endings = vec![Ending::PowerLoss; 24];
            options.restarts = 24;
            options.operations = 60;
        },
    },
    Scenario {
        name: "a-scrub-over-a-host-that-stood-still",
        broke: "liveness: a scrub rests three times as long as a read has taken; where the host \
                stood still meanwhile, or the device hung, that was for hours",
        bend: |options, plan| {
            only(plan, Policy::WriteBack, 1);
            plan.rates.clock_jumps = 20;
            plan.rates.cache_sync_error = 0;
            plan.rates.cache_write_error = 0;
            plan.volumes[0].depth = 4;
            options.endings = vec![Ending::Orderly { power_off: false }; 8];
            options.restarts = 8;
            options.operations = 1500;
        },
    },
    Scenario {
        name: "the-wall-clock-is-set-back-beside-a-file-server",
        broke: "5.2.4: how far the clock of the origin is ahead was read once; when the wall clock \
                here was set back later, a journal under way was refused after a crash",
        bend: |options, plan| {
            only(plan, Policy::WriteBack, 1);
            plan.volumes[0].tuning.destage = DestageMode::Atomic;
            plan.volumes[0].journal_possible = true;
            plan.volumes[0].tuning.destage_after_ms = Some(20);
            plan.rates.clock_jumps = 20;
            plan.rates.origin_check = 100;
            options.restarts = 4;
        },
    },
    Scenario {
        name: "a-write-in-part-when-the-cache-dies",
        broke: "2: a write of which a part was staged got an input/output error when its volume \
                left the log; and what it replaced was used again, though a crash drops it",
        bend: |options, plan| {
            plan.geometry.chunk_blocks = 8;
            plan.geometry.segments = 14;
            plan.stage_slots = 6;
            for volume in &mut plan.volumes {
                volume.switches = volume.policy != Policy::Ephemeral;
                volume.tuning.destage = DestageMode::Atomic;
                volume.journal_possible = true;
                volume.depth = 16;
            }
            plan.rates.cache_dies = 20;
            plan.rates.cache_slow = 20;
            plan.rates.origin_trouble = 30;
            plan.limit_requests();
            options.endings = vec![Ending::PowerLoss; 6];
            options.restarts = 6;
            options.operations = 1500;
        },
    },
    Scenario {
        name: "an-image-is-replaced-between-two-lives",
        broke: "2: the dirty blocks of a volume went into another image that lay under its path \
                after a stop, and an overlay lay over another base, without a word",
        bend: |options, plan| {
            plan.rates.image_replaced = 500;
            plan.rates.absent = 0;
            let (stop, off) = (
                Ending::Orderly { power_off: false },
                Ending::Orderly { power_off: true },
            );
            options.endings = vec![stop, Ending::Kill, off, Ending::PowerLoss, stop, stop];
            options.restarts = 6;
            options.operations = 1200;
        },
    },
    Scenario {
        name: "a-cache-file-is-removed-under-its-daemon",
        broke: "2: flushes were acknowledged into a cache file that had lost its name, and an \
                orderly stop let go of all that was dirty",
        bend: |options, plan| {
            plan.rates.cache_gone = 8;
            for volume in &mut plan.volumes {
                volume.switches = volume.policy != Policy::Ephemeral;
                volume.tuning.destage = DestageMode::Atomic;
                volume.journal_possible = true;
            }
            let stop = Ending::Orderly { power_off: false };
            options.endings = vec![stop, Ending::Kill, stop, Ending::PowerLoss, stop, stop];
            options.restarts = 6;
            options.operations = 1200;
        },
    },
    Scenario {
        name: "a-guest-only-slept",
        broke: "2: the rings of a guest that was saved stopped as at its end; when the living \
                guest was restored its overlay was reset under it",
        bend: |options, plan| {
            only(plan, Policy::Ephemeral, 2);
            for volume in &mut plan.volumes {
                volume.sleeps = true;
                volume.tuning.reset_on = ResetOn::Disconnect;
            }
            options.operations = 1000;
        },
    },
    Scenario {
        name: "an-image-loses-its-name-while-it-is-served",
        broke: "2: an image was renamed or removed under its daemon: all went to a file that \
                had no name any more, and was called at the origin",
        bend: |options, plan| {
            plan.rates.image_moved = 10;
            for volume in &mut plan.volumes {
                volume.tuning.destage_after_ms = Some(200);
            }
            options.operations = 1500;
        },
    },
    Scenario {
        name: "an-image-is-cut-short-while-it-is-served",
        broke: "2: behind the new end of an image zeroes were read, kept, and served when the \
                image was whole again",
        bend: |options, plan| {
            plan.rates.image_shrunk = 10;
            for volume in &mut plan.volumes {
                volume.tuning.destage_after_ms = Some(200);
                volume.tuning.admission = Admission::All;
            }
            options.operations = 1500;
        },
    },
    Scenario {
        name: "an-image-is-cut-short-in-the-middle-of-a-destage",
        broke: "5.2.4: what a destage had written behind the new end of an image was gone when \
                the image was put back; the rest was written, and all of it called there",
        bend: |options, plan| {
            only(plan, Policy::WriteBack, 1);
            plan.rates.image_shrunk = 40;
            plan.rates.origin_slow = 12;
            plan.volumes[0].depth = 8;
            plan.volumes[0].tuning.destage_after_ms = Some(20);
            plan.volumes[0].tuning.origin_queue_depth = 1;
            options.operations = 2000;
        },
    },
    Scenario {
        name: "a-base-is-written-while-it-is-served",
        broke: "5.2.7: what was kept of a base in RAM and on the device was served after another \
                program had written the base",
        bend: |options, plan| {
            only(plan, Policy::Ephemeral, 3);
            plan.origins[0].tag = Some(1001);
            plan.rates.base_written = 10;
            plan.rates.image_moved = 2;
            plan.volumes[1].reader = true;
            options.operations = 1500;
        },
    },
    Scenario {
        name: "a-move-and-a-guard-that-wait-for-each-other",
        broke: "7: a move held all requests to its image, and waited for a guard that could not be \
                looked at before; what had failed was not tried again where nothing was dirty",
        bend: |options, plan| {
            moving(plan, options.seed);
            plan.rates.origin_trouble = 40;
            six_ends(options, options.seed);
        },
    },
    Scenario {
        name: "an-image-moves-and-its-host-does-not-follow",
        broke: "7: behind a move that its host had given up a ledger named the file that was open, \
                and a start refused what was dirty; a larger disk showed what the other file had",
        bend: |options, plan| {
            moving(plan, options.seed);
            plan.rates.origin_trouble = 0;
            six_ends(options, options.seed);
        },
    },
];
