//! What directories cost at the shared storage, by the engine.
//!
//! Owns two offline replays of one trace: all written through, and with the classes. Always true:
//! each disk of the trace is a volume for the system and one for each group of paths, at the same
//! places, so that both replays get the same requests; a flush goes to all volumes of its disk, as
//! a guest may mean any. What may be lost with the host is not destaged at the end. Deliberately
//! absent: which groups there are.

use crate::replay::offline::{Options, Own, Replay, Volume};
use crate::replay::tally::Origin;
use engine::types::Policy;
use host::error::{Error, Result};
use split::Class;
use split::propose::text::Requests;
use std::collections::BTreeMap;
use workload::trace::{NameId, Op, Record};

/// More volumes than a host has.
const VOLUMES_MAX: usize = 4096;

/// Both replays, fed request by request.
pub struct Replays {
    options: Options,
    /// Of each group; the first is the system's.
    classes: Vec<Class>,
    late_ms: u64,
    before: Replay,
    after: Replay,
    /// By disk of the trace and group.
    disks: BTreeMap<(NameId, usize), NameId>,
}

impl Replays {
    /// With groups of these classes behind that of the system.
    pub fn new(options: Options, groups: &[Class], late_ms: u64) -> Result<Replays> {
        let classes = [&[Class::WriteThrough], groups].concat();
        Ok(Replays {
            before: Replay::new(options.clone())?,
            after: Replay::new(options.clone())?,
            options,
            classes,
            late_ms,
            disks: BTreeMap::new(),
        })
    }

    fn own(&self, class: Class) -> Own {
        let (policy, destage_after_ms) = match class {
            Class::WriteThrough | Class::Keep => {
                (Policy::WriteThrough, self.options.volume.destage_after_ms)
            }
            Class::WriteBack => (Policy::WriteBack, Some(self.late_ms)),
            Class::Never => (Policy::WriteBack, None),
        };
        Own {
            volume: Volume {
                policy,
                destage_after_ms,
                ..self.options.volume
            },
            is_destaged_at_end: class != Class::Never,
        }
    }

    /// The next request, of a group.
    pub fn take(&mut self, record: &Record, group: usize) -> Result<()> {
        if record.op == Op::Flush {
            let all = self
                .disks
                .range((record.disk, 0)..=(record.disk, usize::MAX));
            let disks: Vec<NameId> = all.map(|it| *it.1).collect();
            return disks.into_iter().try_for_each(|it| self.both(record, it));
        }
        let next = NameId(self.disks.len() as u32);
        let key = (record.disk, group);
        if let Some(disk) = self.disks.get(&key) {
            return self.both(record, *disk);
        }
        if self.disks.len() >= VOLUMES_MAX {
            return Err(Error::failed(format!(
                "--propose: needs more than {VOLUMES_MAX} volumes; give fewer traces or a larger \
                 --min-share"
            )));
        }
        self.disks.insert(key, next);
        self.before.set(next, self.own(Class::WriteThrough));
        self.after.set(next, self.own(self.classes[group]));
        self.both(record, next)
    }

    fn both(&mut self, record: &Record, disk: NameId) -> Result<()> {
        let record = Record { disk, ..*record };
        self.before.take(&record)?;
        Ok(self.after.take(&record)?)
    }

    /// Before and after, for each group.
    pub fn finish(mut self) -> Result<Vec<(Requests, Requests)>> {
        for replay in [&mut self.before, &mut self.after] {
            let report = replay.end()?;
            if let Some(refusal) = report.first_refusal {
                return Err(Error::failed(format!(
                    "--propose: the engine refused {} requests of the trace, the first: {refusal}",
                    report.refused
                )));
            }
            if !report.complete {
                let message = "--propose: the end of the trace was not at the origin within a day \
                               of virtual time; leave the disk out that writes most";
                return Err(Error::failed(message));
            }
        }
        let mut sums = vec![(Requests::default(), Requests::default()); self.classes.len()];
        for ((_, group), disk) in &self.disks {
            let (before, after) = &mut sums[*group];
            add(before, &self.before.origin_of(*disk));
            add(after, &self.after.origin_of(*disk));
        }
        Ok(sums)
    }
}

fn add(sum: &mut Requests, origin: &Origin) {
    sum.reads += origin.reads.requests;
    sum.writes += origin.writes.requests;
    sum.beside += origin.beside();
    sum.syncs += origin.syncs;
}
