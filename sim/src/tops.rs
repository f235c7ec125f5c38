//! The image of a volume that is a qcow2 file: what it has and what is wrong with it, at any time.
//!
//! ```text
//! plan:    (the ledger says *cut*, data goes where it has a place) bytes go where nothing refers
//!          to ─▶ guard ─▶ synced, with the journal
//! decided: the ledger says *apply* ─▶ the journal is applied under the guard ─▶ guard off
//!          ─▶ *idle*
//! ```
//!
//! A direct write comes without a journal: places and counts are on media before the tables that
//! refer to them, and a bit in the header says that counts may be too high meanwhile.
//!
//! Always true: it is judged by a reader of its own, on bytes that nobody changes meanwhile; while
//! no journal is pending it is right to the last count, whether the guard is there or not; a
//! journal is pending only under the guard. Deliberately absent: what the disk has to be
//! ([`oracle`](crate::oracle)), and requests ([`planned`](crate::planned)).

use crate::devices::{Origin, ledger_of};
use crate::disk::Disk;
use crate::qcow2::{self, Layer};
use ::image::Header;
use ::image::check::{check_and_list, without_leaks};
use engine::format::ledger::Progress;
use std::ops::Range;

const SECTOR_BYTES: usize = 512;
/// Bytes that a file may have behind its clusters, beyond twice all that one destage can add.
const SLACK_BYTES: u64 = 1 << 20;

/// What is known of the writes to one image.
#[derive(Clone, Debug, Default)]
pub struct Writing {
    /// What a plan may not write, until a journal is applied, and whether that was of one in place.
    referenced: Option<(bool, Vec<Range<u64>>)>,
    /// Bytes that a plan has written since a journal was applied.
    pub planned: u64,
}

impl Writing {
    /// What it was is not what it is.
    pub fn forget(&mut self) {
        self.referenced = None;
    }

    /// A part of these bytes that something refers to, in the file as it is seen or as it surely
    /// is; where the ledger surely says *cut*, without the data that one entry alone refers to.
    pub fn refers_to(&mut self, origin: &Origin, bytes: &Range<u64>) -> Option<Range<u64>> {
        let in_place = is_cut(origin.ledger.durable());
        let found = self.referenced.take().filter(|it| it.0 == in_place);
        let (_, parts) = self.referenced.insert(found.unwrap_or_else(|| {
            let mut parts = Vec::new();
            let (seen, safe) = (origin.image.landed(), origin.image.durable());
            let differs = seen != safe;
            for file in std::iter::once(seen).chain(differs.then_some(safe)) {
                let mut file = file.to_vec();
                qcow2::unguard(&mut file);
                parts.extend(match in_place {
                    false => qcow2::referenced(&file),
                    true => qcow2::fixed(&file),
                });
            }
            (in_place, qcow2::merged(parts))
        }));
        let first = parts.partition_point(|it| it.end <= bytes.start);
        let part = parts.get(first).filter(|it| it.start < bytes.end);
        part.map(|it| it.start.max(bytes.start)..it.end.min(bytes.end))
    }
}

/// Whether a ledger of these bytes names a journal that is to be applied.
pub fn is_pending(ledger: &[u8]) -> bool {
    matches!(progress(ledger), Some(Progress::Apply { .. }))
}

/// How far it says that the image is.
pub fn destaged(ledger: &[u8]) -> u64 {
    ledger_of(ledger).map_or(0, |it| it.destaged.0)
}

/// Whether it names a destage in place that has not ended.
fn is_cut(ledger: &[u8]) -> bool {
    matches!(progress(ledger), Some(Progress::Cut(_)))
}

fn progress(ledger: &[u8]) -> Option<Progress> {
    ledger_of(ledger).map(|it| it.progress)
}

/// How an image was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    pub guarded: bool,
    /// A journal is pending.
    pub pending: bool,
}

/// Judges an image as power has left it, with its ledger.
pub fn judge_left(origin: &Origin) -> Result<Left, String> {
    let left = Left {
        guarded: qcow2::is_guarded(origin.image.landed()),
        pending: is_pending(origin.ledger.landed()),
    };
    if left.pending && !left.guarded {
        return Err("a journal is pending, and nothing in the image says so".into());
    }
    if !left.pending {
        judge(origin).map_err(|it| format!("no journal is pending: {it}"))?;
    }
    Ok(left)
}

/// Judges an image that no journal is pending for.
pub fn judge(origin: &Origin) -> Result<(), String> {
    let mut file = origin.image.landed().to_vec();
    qcow2::unguard(&mut file);
    origin.below.stands_on(&file)?;
    let verdict = qcow2::judge(&file);
    if let Some(first) = verdict.errors.first() {
        let count = verdict.errors.len();
        return Err(format!("{count} errors in the image, first: {first}"));
    }
    let leaks = verdict.leaks.first().filter(|_| !qcow2::may_leak(&file));
    if let Some(first) = leaks {
        let count = verdict.leaks.len();
        return Err(format!("{count} clusters leak, first: {first}"));
    }
    let (bytes, extent) = (file.len() as u64, qcow2::extent(&file));
    if bytes > extent.end + 2 * extent.disk_bytes + SLACK_BYTES {
        let end = extent.end;
        return Err(format!(
            "an image of {bytes} bytes whose clusters end at {end}"
        ));
    }
    Ok(())
}

/// A host opens an image to write it, and no journal of it is pending: what leaked is freed, and
/// where a volume does not do it itself the guard goes. How many clusters were freed.
pub fn open(image: &mut Disk, unguards: bool) -> usize {
    let all = image.sync_point();
    image.sync_done(all);
    let mut head = image.landed()[..SECTOR_BYTES].to_vec();
    if unguards && qcow2::is_guarded(&head) {
        qcow2::unguard(&mut head);
        image.put(0, head.clone());
    }
    if !qcow2::may_leak(&head) {
        return 0;
    }
    let file = image.landed().to_vec();
    let header = Header::parse(&file, file.len() as u64).expect("a header as it was written");
    let source = &mut &file[..];
    let Ok((report, leaks)) = check_and_list(&header, file.len() as u64, source, usize::MAX) else {
        unreachable!("a file in memory is read")
    };
    if report.corruptions > 0 {
        return 0;
    }
    for (number, sector) in without_leaks(&header, source, &leaks).expect("it is read") {
        image.put(number * SECTOR_BYTES as u64, sector.to_vec());
    }
    end_allocations(image);
    leaks.len()
}

/// A volume has given clusters past its log, and none of them can have leaked.
pub fn end_allocations(image: &mut Disk) {
    let all = image.sync_point();
    image.sync_done(all);
    let file = image.landed();
    let header = Header::parse(file, file.len() as u64).expect("a header as it was written");
    let head = header.allocating(&file[..SECTOR_BYTES], false);
    image.put(0, head.expect("it is its header"));
}

/// The disk that an image and what lies below it have, so many bytes of it.
pub fn disk(origin: &Origin, bytes: usize) -> Result<Vec<u8>, String> {
    let mut file = origin.image.landed().to_vec();
    qcow2::unguard(&mut file);
    let top = Layer {
        bytes: &file,
        raw: false,
    };
    let below = origin.below.layers(origin.below.named(&file)?);
    let layers: Vec<Layer> = std::iter::once(top).chain(below).collect();
    qcow2::disk(&layers, bytes)
}

/// Judges an image as it surely is, if its header were this one, which names a disk of another
/// size: what is new reads as zeroes; of what goes the file has nothing any more.
pub fn judge_sized(origin: &Origin, header: &[u8]) -> Result<(), String> {
    let mut bytes = origin.image.durable().to_vec();
    let (old, new) = (qcow2::size(&bytes), qcow2::size(header));
    bytes[..header.len()].copy_from_slice(header);
    let sized = Origin {
        image: Disk::new(bytes),
        below: origin.below.clone(),
        ..Origin::default()
    };
    judge(&sized)?;
    if old > new {
        return match qcow2::entered(sized.image.landed(), new..old) {
            Some(at) => Err(format!("byte {at} of its end has an entry yet")),
            None => Ok(()),
        };
    }
    let disk = disk(&sized, new as usize)?;
    let other = disk[old as usize..].iter().position(|it| *it != 0);
    match other {
        Some(at) => Err(format!("byte {} is no zero", old + at as u64)),
        None => Ok(()),
    }
}

/// Judges the end of a disk that was to go and is there yet: each sector is what it was, zeroes, or
/// what the files below the image have there.
pub fn judge_tail(origin: &Origin, before: &[u8]) -> Result<(), String> {
    let bytes = origin.disk_bytes() as usize;
    let (first, below) = (bytes - before.len(), &origin.below);
    let now = disk(origin, bytes)?;
    let below = qcow2::disk(&below.layers(below.on), bytes)?;
    let sectors = |of: &[u8]| {
        of.chunks(SECTOR_BYTES)
            .map(<[u8]>::to_vec)
            .collect::<Vec<_>>()
    };
    let (now, below) = (sectors(&now[first..]), sectors(&below[first..]));
    let before = sectors(before);
    let strange = (0..now.len()).find(|at| {
        let zero = now[*at].iter().all(|byte| *byte == 0);
        !zero && now[*at] != before[*at] && now[*at] != below[*at]
    });
    match strange {
        Some(at) => Err(format!("sector {at} of its end is another one")),
        None => Ok(()),
    }
}

/// An image at rest: nothing is between two states, and it says so.
pub fn judge_at_rest(origin: &Origin) -> Result<(), String> {
    let (seen, safe) = (origin.image.landed(), origin.image.durable());
    if qcow2::is_guarded(seen) || qcow2::is_guarded(safe) {
        return Err("the image says that it is between two states".into());
    }
    if is_pending(origin.ledger.landed()) {
        return Err("a journal is pending".into());
    }
    judge(origin)
}

#[cfg(test)]
mod tests;
