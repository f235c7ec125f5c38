//! The guest of a volume that goes from host to host, and what it may find in a sector.
//!
//! Always true: writes count in the order in which they were asked for; a sector that is read holds
//! what it held at some moment between the read and its answer, and never something older than
//! what another read, or an acknowledgment, has told before. Deliberately absent: at which host the
//! guest is, and what a crash may take; the [`Model`] judges that.

use super::{Counters, SECTORS};
use crate::machine::Machine;
use crate::model::{Model, stamp_of};
use crate::rng::Rng;
use engine::event::{Event, Refusal};
use engine::types::{BufferId, RequestId, VolumeId};
use std::collections::BTreeMap;

/// Writes and flushes that are under way.
const WRITES_MAX: usize = 12;
const READS_MAX: usize = 8;
/// Of the part of the disk that most writes are for, and of that which most reads are for.
const WRITTEN_SECTORS: u64 = 8 * 96;
const WANTED_SECTORS: u64 = 8 * 64;

enum Asked {
    Write {
        change: usize,
        fua: bool,
        buffer: Option<BufferId>,
    },
    Flush {
        covers: usize,
    },
    Read {
        sector: u64,
        buffer: BufferId,
        /// Of each sector, the oldest state that it may show.
        oldest: Vec<usize>,
    },
}

/// What a sector has held, since the last crash.
struct Sector {
    /// The number of each write, and what it has left; the first one is before all of them.
    states: Vec<(usize, u64)>,
    /// The oldest that a read may still find.
    oldest: usize,
}

impl Sector {
    fn holding(stamp: u64) -> Sector {
        Sector {
            states: vec![(usize::MAX, stamp)],
            oldest: 0,
        }
    }

    fn has_acknowledged(&mut self, change: usize) {
        let at = self.states.iter().rposition(|(of, _)| *of == change);
        self.oldest = self.oldest.max(at.expect("it was asked for"));
    }

    /// A read has found this, and may find nothing older than that.
    fn is_found(&mut self, stamp: u64, oldest: usize) -> Result<(), String> {
        let behind = self.states[oldest..].iter();
        let at = behind.clone().position(|(_, it)| *it == stamp);
        let Some(at) = at else {
            let may: Vec<u64> = behind.map(|(_, it)| *it).collect();
            return Err(format!("{stamp} is found, and {may:?} may be there"));
        };
        self.oldest = self.oldest.max(oldest + at);
        Ok(())
    }
}

pub struct Guest {
    pub model: Model,
    sectors: Vec<Sector>,
    asked: BTreeMap<RequestId, Asked>,
    /// Where most writes go to, and where most reads do.
    written: u64,
    wanted: u64,
    write_cache: bool,
}

fn held(model: &Model) -> Vec<Sector> {
    model.newest().into_iter().map(Sector::holding).collect()
}

/// A place for so many sectors, most often in this window, which has so many.
fn place(rng: &mut Rng, (window, many): (u64, u64), sectors: u64) -> u64 {
    let sector = match rng.chance(900) && sectors < many {
        true => window + rng.below(many - sectors),
        false => rng.below(SECTORS - sectors + 1),
    };
    match rng.chance(600) {
        true => sector / 8 * 8,
        false => sector,
    }
}

impl Guest {
    pub fn new(write_cache: bool) -> Guest {
        let model = Model::new(SECTORS);
        Guest {
            sectors: held(&model),
            model,
            asked: BTreeMap::new(),
            written: 0,
            wanted: 0,
            write_cache,
        }
    }

    pub fn move_windows(&mut self, rng: &mut Rng) {
        self.written = rng.below(SECTORS - WRITTEN_SECTORS);
        self.wanted = rng.below(SECTORS - WANTED_SECTORS);
    }

    /// What a host has kept clean becomes stale there.
    pub fn write_what_it_read(&mut self) {
        std::mem::swap(&mut self.written, &mut self.wanted);
        self.written = self.written.min(SECTORS - WRITTEN_SECTORS);
    }

    fn writes(&self) -> usize {
        self.asked.len() - self.reads()
    }

    fn reads(&self) -> usize {
        let reads = self.asked.values();
        reads.filter(|it| matches!(it, Asked::Read { .. })).count()
    }

    /// None of its writes and flushes is under way.
    pub fn has_written(&self) -> bool {
        self.writes() == 0
    }

    pub fn is_idle(&self) -> bool {
        self.asked.is_empty()
    }

    pub fn write(&mut self, owner: &mut Machine, disk: VolumeId, rng: &mut Rng) {
        if self.writes() >= WRITES_MAX {
            return;
        }
        let sectors = match rng.below(10) {
            0 => rng.range(1, 9),
            1 => rng.range(1, 200),
            _ => 8 * rng.range(1, 5),
        };
        let sector = place(rng, (self.written, WRITTEN_SECTORS), sectors);
        let (zero, fua) = (rng.chance(100), rng.chance(60));
        let (change, of) = self.model.write(sector, sectors, zero);
        for sector in &mut self.sectors[sector as usize..(sector + sectors) as usize] {
            sector.states.push((change, of.stamp));
        }
        let (request, buffer) = owner.write(disk, of, fua);
        let fua = fua || !self.write_cache;
        let asked = Asked::Write {
            change,
            fua,
            buffer,
        };
        self.asked.insert(request, asked);
    }

    pub fn flush(&mut self, owner: &mut Machine, volume: VolumeId) {
        let (covers, request) = (self.model.acked(), owner.request());
        self.asked.insert(request, Asked::Flush { covers });
        owner.apply(Event::Flush { volume, request });
    }

    pub fn read(&mut self, owner: &mut Machine, disk: VolumeId, rng: &mut Rng) {
        if self.reads() >= READS_MAX {
            return;
        }
        let sectors = match rng.below(10) {
            0 => rng.range(1, 9),
            1 => rng.range(1, 500),
            _ => 8 * rng.range(1, 13),
        };
        let window = match rng.chance(250) {
            true => (self.written, WRITTEN_SECTORS),
            false => (self.wanted, WANTED_SECTORS),
        };
        let sector = place(rng, window, sectors);
        let asked = &self.sectors[sector as usize..(sector + sectors) as usize];
        let oldest = asked.iter().map(|it| it.oldest).collect();
        let (request, buffer) = owner.begin_read(disk, sector, sectors);
        let asked = Asked::Read {
            sector,
            buffer,
            oldest,
        };
        self.asked.insert(request, asked);
    }

    /// Judges what was answered. `leaves`: its host lets go of the volume, and may refuse.
    pub fn reap(
        &mut self,
        owner: &mut Machine,
        counters: &mut Counters,
        leaves: bool,
    ) -> Result<(), String> {
        let requests: Vec<RequestId> = self.asked.keys().copied().collect();
        for request in requests {
            let Some(answer) = owner.answer(request) else {
                continue;
            };
            let asked = self.asked.remove(&request).expect("just listed");
            // Of one that waited for the other host, the origin is not asked any more.
            let may_fail = leaves && matches!(answer, Err(Refusal::Gone | Refusal::Io));
            match (asked, answer) {
                (Asked::Read { buffer, .. }, Err(_)) if may_fail => {
                    owner.memory.buffer_remove(buffer);
                }
                (_, Err(refusal)) => return Err(format!("a guest is refused: {refusal}")),
                (asked, Ok(())) => self.answered(owner, counters, asked)?,
            }
        }
        Ok(())
    }

    fn answered(
        &mut self,
        owner: &mut Machine,
        counters: &mut Counters,
        asked: Asked,
    ) -> Result<(), String> {
        match asked {
            Asked::Write {
                change,
                fua,
                buffer,
            } => {
                if let Some(buffer) = buffer {
                    owner.memory.buffer_remove(buffer);
                }
                let of = self.model.change(change);
                let sectors = of.sector as usize..(of.sector + of.sectors) as usize;
                let sectors = self.sectors[sectors].iter_mut();
                sectors.for_each(|it| it.has_acknowledged(change));
                self.model.ack(change);
                if fua {
                    self.model.promise(change + 1);
                }
                counters.writes += 1;
            }
            Asked::Flush { covers } => {
                self.model.promise(covers);
                counters.flushes += 1;
            }
            Asked::Read {
                sector,
                buffer,
                oldest,
            } => {
                let bytes = owner.memory.buffer_remove(buffer);
                for (at, (bytes, oldest)) in (sector..).zip(bytes.chunks(512).zip(oldest)) {
                    let stamp = stamp_of(bytes).ok_or_else(|| format!("sector {at} is torn"))?;
                    let found = self.sectors[at as usize].is_found(stamp, oldest);
                    found.map_err(|what| format!("a read of sector {at}: {what}"))?;
                }
                counters.reads += 1;
            }
        }
        Ok(())
    }

    /// Its host has gone: nothing that it has asked for is answered.
    pub fn is_cut_off(&mut self) {
        self.asked.clear();
    }

    /// All that was written is promised, and nothing waits: goes on from there.
    pub fn settle(&mut self) -> Result<(), String> {
        self.model.settle()?;
        self.sectors = held(&self.model);
        Ok(())
    }

    /// Judges all of the disk after a crash, which has left so many changes at least.
    pub fn judge(&mut self, found: &[u8], least: usize) -> Result<(), String> {
        self.model.judge(found, least)?;
        self.sectors = held(&self.model);
        Ok(())
    }
}
