//! Which parts of a volume hold data: the answer to a block status request.
//!
//! Always true: a range is called zero only if it read as zeroes at some moment between request
//! and answer; "data" is always right. First the engine says what its epochs hold, then, only for
//! what none of them covers, the origin says where it has holes. This order is what makes it safe
//! beside a running destage. A sector that no epoch covered at the first moment read as the origin
//! had it then. If the origin has a hole there at the second, either it had it at the first as
//! well, or a destage has punched it in between for zeroes that a guest wrote after the first
//! moment; those read as zeroes when they were taken. The other way round fails: data that is
//! dirty when the origin is asked, and at the origin when the epochs are, would be in neither.
//! Seeking waits for the origin's file system, so it is a worker's job; an origin without holes,
//! or one that does not tell, is data. An origin's unwritten blocks count as holes.

use super::conn::Conn;
use super::worker::{Job, Owner, Work};
use super::{Decide, Sectors, Shard};
use crate::frontend::nbd::{Extent, ExtentState, Ticket};
use crate::origin::mapped::Mapped;
use crate::sys;
use crate::target::Target;
use engine::event::Device;
use engine::layout::{Holds, Part};
use engine::types::{RequestId, SECTOR_BYTES, VolumeId};
use std::fs::File;
use std::sync::Arc;

/// Extents of one answer, and so a bound of the seeks that one request costs.
const EXTENTS_MAX: usize = 1024;
/// Parts of the log that are looked at beyond the extents wanted: neighbours of one state join.
const PARTS_MORE: usize = 8;

/// A range that a client asked about, with what the engine said of it.
#[derive(Debug)]
pub(super) struct Asked {
    parts: Vec<Part>,
    offset: u64,
    length: u64,
    extents_max: usize,
}

/// Bytes of one state, up to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Region {
    state: ExtentState,
    end: u64,
}

const ALL_DATA: Region = Region {
    state: ExtentState::Data,
    end: u64::MAX,
};

impl Asked {
    fn needs_origin(&self) -> bool {
        self.parts.iter().any(|part| part.holds == Holds::Origin)
    }

    /// The answer over a file that may have holes. Waits for its file system.
    pub fn of_file(&self, file: &File) -> Vec<Extent> {
        let mut known: Option<(u64, Region)> = None;
        self.extents(|at| match known {
            Some((from, region)) if (from..region.end).contains(&at) => region,
            _ => {
                let region = region_at(file, at);
                known = Some((at, region));
                region
            }
        })
    }

    /// The answer over an image whose tables say what it holds. Waits for its files.
    pub fn of_image(&self, image: &Mapped) -> Vec<Extent> {
        let end = self.offset + self.length;
        let mut look = image.look();
        let mut part_at = |at| look.as_mut()?.part_at(at, end - at);
        self.extents(|at| match part_at(at) {
            Some((end, true)) => Region {
                state: ExtentState::Data,
                end,
            },
            Some((end, false)) => Region {
                state: ExtentState::Hole,
                end,
            },
            None => ALL_DATA,
        })
    }

    /// The answer, with `origin` telling what lies at an offset of the origin.
    fn extents(&self, mut origin: impl FnMut(u64) -> Region) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let end = self.offset + self.length;
        for part in &self.parts {
            let upto = end.min(part.span.end() * SECTOR_BYTES);
            let mut at = self.offset.max(part.span.sector * SECTOR_BYTES);
            while at < upto {
                let (state, end) = match part.holds {
                    Holds::Data => (ExtentState::Data, upto),
                    Holds::Zero { allocate: true } => (ExtentState::Zero, upto),
                    Holds::Zero { allocate: false } => (ExtentState::Hole, upto),
                    Holds::Origin => {
                        let region = origin(at);
                        (region.state, region.end.min(upto))
                    }
                };
                assert!(end > at, "a region has its first byte");
                let length = end - at;
                let full = extents.len() == self.extents_max;
                match extents.last_mut() {
                    Some(last) if last.state == state => last.length += length,
                    _ if full => return extents,
                    _ => extents.push(Extent { length, state }),
                }
                at = end;
            }
        }
        extents
    }
}

/// What a file has from `at` on. Holes end with whole sectors, so that what follows is data.
fn region_at(file: &File, at: u64) -> Region {
    let hole = |end| Region {
        state: ExtentState::Hole,
        end,
    };
    let data = |end: u64| Region {
        state: ExtentState::Data,
        end: end.max(at + 1).next_multiple_of(SECTOR_BYTES),
    };
    match sys::seek_data(file, at) {
        Ok(None) => hole(u64::MAX),
        Ok(Some(found)) if found / SECTOR_BYTES * SECTOR_BYTES > at => {
            hole(found / SECTOR_BYTES * SECTOR_BYTES)
        }
        Ok(Some(found)) => match sys::seek_hole(file, found) {
            Ok(end) => data(end),
            Err(_) => data(found),
        },
        Err(_) => ALL_DATA,
    }
}

impl<E: Decide> Shard<E> {
    /// Finds out what a client asked, here or on the worker of its volume.
    pub(super) fn ask_allocation(
        &mut self,
        conn: &mut Conn,
        ticket: Ticket,
        request: RequestId,
        (volume, span, offset, length, extents_max): (VolumeId, Sectors, u64, u64, usize),
    ) {
        let extents_max = extents_max.min(EXTENTS_MAX);
        let parts = match self.engine.layout(volume, span, extents_max + PARTS_MORE) {
            Ok(parts) => parts,
            Err(refusal) => return self.replies.push_back((request, Err(refusal))),
        };
        let asked = Asked {
            parts,
            offset,
            length,
            extents_max,
        };
        let image = self.mapped(Device::Origin(volume));
        let origin = self.files.share(Device::Origin(volume));
        let tells = |target: &Arc<Target>| image.is_some() || !target.block_device;
        let origin = origin.filter(|origin| asked.needs_origin() && tells(origin));
        let at_once = asked.extents(|_| ALL_DATA);
        if let Some(target) = origin {
            let job = Job {
                owner: Owner::Client(request),
                target,
                // Holes of its file say nothing of a disk that tables describe.
                work: match image {
                    Some(image) => Work::AllocationOf(asked, image),
                    None => Work::Allocation(asked),
                },
            };
            if self.give(Some(volume), job).is_ok() {
                return;
            }
        }
        conn.set_extents(ticket, at_once);
        self.replies.push_back((request, Ok(())));
    }

    /// A worker has found out what a client asked.
    pub(super) fn take_extents(&mut self, request: RequestId, extents: Vec<Extent>) {
        let slot = request.connection.0 & 0xffff;
        let ticket = Ticket(request.number as u16);
        self.with_conn(slot, |_, conn| conn.set_extents(ticket, extents));
        self.replies.push_back((request, Ok(())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    const DATA: ExtentState = ExtentState::Data;
    const ZERO: ExtentState = ExtentState::Zero;
    const HOLE: ExtentState = ExtentState::Hole;

    fn asked(parts: &[(u64, u64, Holds)], (offset, length): (u64, u64), max: usize) -> Asked {
        let part = |&(sector, sectors, holds): &(u64, u64, Holds)| Part {
            span: Sectors::new(sector, sectors),
            holds,
        };
        Asked {
            parts: parts.iter().map(part).collect(),
            offset,
            length,
            extents_max: max,
        }
    }

    fn pairs(extents: &[Extent]) -> Vec<(u64, ExtentState)> {
        extents.iter().map(|it| (it.length, it.state)).collect()
    }

    #[test]
    fn neighbours_join_whether_the_log_or_the_origin_says_so() {
        let parts = [
            (0, 8, Holds::Data),
            (8, 8, Holds::Origin),
            (16, 8, Holds::Zero { allocate: false }),
            (24, 8, Holds::Zero { allocate: true }),
            (32, 8, Holds::Origin),
        ];
        // The origin: data up to sector 10, a hole behind it.
        let origin = |at: u64| match at < 10 * 512 {
            true => Region {
                state: DATA,
                end: 10 * 512,
            },
            false => Region {
                state: HOLE,
                end: u64::MAX,
            },
        };
        let whole = asked(&parts, (0, 40 * 512), 100).extents(origin);
        let sectors = [(10, DATA), (14, HOLE), (8, ZERO), (8, HOLE)];
        let bytes: Vec<_> = sectors.iter().map(|(n, state)| (n * 512, *state)).collect();
        assert_eq!(pairs(&whole), bytes);
        let two = asked(&parts, (0, 40 * 512), 2).extents(origin);
        assert_eq!(pairs(&two), bytes[..2]);
        // Not whole sectors: the answer begins and ends where the question does.
        let odd = asked(&parts, (100, 5 * 512), 100).extents(origin);
        assert_eq!(pairs(&odd), [(5 * 512, DATA)]);
    }

    #[test]
    fn a_file_tells_its_holes_and_never_calls_data_a_hole() {
        let file = tempfile::tempfile().expect("made");
        file.set_len(8 << 20).expect("sized");
        file.write_all_at(&[1; 4096], 1 << 20).expect("written");
        file.write_all_at(&[1; 512], (4 << 20) + 512)
            .expect("written");
        let question = asked(&[(0, 16384, Holds::Origin)], (0, 8 << 20), 100);
        let extents = question.of_file(&file);
        assert_eq!(extents.iter().map(|it| it.length).sum::<u64>(), 8 << 20);
        let mut at = 0;
        for extent in &extents {
            let mut bytes = vec![0; extent.length as usize];
            file.read_exact_at(&mut bytes, at).expect("read");
            assert!(extent.state == DATA || bytes.iter().all(|&byte| byte == 0));
            at += extent.length;
        }
        assert!(extents.len() == 1 || extents.len() == 5, "{extents:?}");
    }
}
