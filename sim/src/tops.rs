//! The image of a volume that is a qcow2 file: what it has and what is wrong with it, at any time.
//!
//! ```text
//! plan:    bytes go where nothing refers to ─▶ guard ─▶ synced, with the journal
//! decided: the ledger says *apply* ─▶ the journal is applied under the guard ─▶ *idle*
//!          ─▶ guard off
//! ```
//!
//! Always true: it is judged by a reader of its own, on bytes that nobody changes meanwhile; while
//! no journal is pending it is right to the last count, whether the guard is there or not; a
//! journal is pending only under the guard. Deliberately absent: what the disk has to be
//! ([`oracle`](crate::oracle)), and requests ([`planned`](crate::planned)).

use crate::devices::Origin;
use crate::qcow2::{self, Layer};
use engine::format::ledger::{LEDGER_BYTES, LEDGER_SLOTS, Ledger, Progress};
use std::ops::Range;

/// Bytes that a file may have behind its clusters, beyond twice all that one destage can add.
const SLACK_BYTES: u64 = 1 << 20;

/// What is known of the writes to one image.
#[derive(Clone, Debug, Default)]
pub struct Writing {
    /// What something in the file refers to, until a journal is applied.
    referenced: Option<Vec<Range<u64>>>,
    /// Bytes that a plan has written since a journal was applied.
    pub planned: u64,
}

impl Writing {
    /// What it was is not what it is.
    pub fn forget(&mut self) {
        self.referenced = None;
    }

    /// A part of these bytes that something refers to, in the file as it is seen or as it surely
    /// is.
    pub fn refers_to(&mut self, origin: &Origin, bytes: &Range<u64>) -> Option<Range<u64>> {
        let parts = self.referenced.get_or_insert_with(|| {
            let mut parts = Vec::new();
            for file in [origin.image.landed(), origin.image.durable()] {
                let mut file = file.to_vec();
                qcow2::unguard(&mut file);
                parts.extend(qcow2::referenced(&file));
            }
            qcow2::merged(parts)
        });
        let first = parts.partition_point(|it| it.end <= bytes.start);
        let part = parts.get(first).filter(|it| it.start < bytes.end);
        part.map(|it| it.start.max(bytes.start)..it.end.min(bytes.end))
    }
}

/// Whether a ledger of these bytes names a journal that is to be applied.
pub fn is_pending(ledger: &[u8]) -> bool {
    let mut slots = ledger.to_vec();
    slots.resize(LEDGER_BYTES * LEDGER_SLOTS as usize, 0);
    let ledger = Ledger::parse_file(&slots);
    matches!(ledger, Ok(Some(it)) if matches!(it.progress, Progress::Apply { .. }))
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
    let verdict = qcow2::judge(&file);
    if let Some(first) = verdict.errors.first() {
        let count = verdict.errors.len();
        return Err(format!("{count} errors in the image, first: {first}"));
    }
    if let Some(first) = verdict.leaks.first() {
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

/// The disk that an image and its base have, so many bytes of it.
pub fn disk(origin: &Origin, bytes: usize) -> Result<Vec<u8>, String> {
    let mut file = origin.image.landed().to_vec();
    qcow2::unguard(&mut file);
    let base = origin.base.as_ref().map(|it| it.landed());
    let layer = |bytes, raw| Layer { bytes, raw };
    let layers = [layer(&file, false), layer(base.unwrap_or(&[]), true)];
    qcow2::disk(&layers, bytes)
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
mod tests {
    use super::*;
    use crate::disk::{Change, Disk};
    use crate::made;
    use crate::rng::Rng;
    use workload::stamp;

    fn origin(seed: u64) -> (Origin, Vec<u8>) {
        let mut content = vec![0; 4099 * 512];
        stamp::fill(&mut content, 5, 0, 0);
        let [top, below] = made::files(&content, seed);
        let origin = Origin {
            image: Disk::new(top),
            base: Some(Disk::new(below)),
            ..Origin::default()
        };
        (origin, content)
    }

    fn write(origin: &mut Origin, offset: u64, bytes: Vec<u8>) {
        let change = Change::Bytes { offset, bytes };
        let ticket = origin.image.start(change);
        let mut rng = Rng::new(1);
        origin.image.finish(ticket, false, 1, &mut rng);
    }

    #[test]
    fn a_guard_hides_nothing_of_an_image_and_leaves_it_no_rest() {
        for seed in 0..30 {
            let (mut origin, content) = origin(seed);
            assert_eq!(judge_at_rest(&origin), Ok(()));
            let mut head = origin.image.landed()[..512].to_vec();
            head[72] |= 0x20;
            write(&mut origin, 0, head);
            let left = Left {
                guarded: true,
                pending: false,
            };
            assert_eq!(judge_left(&origin), Ok(left));
            assert!(disk(&origin, content.len()) == Ok(content), "seed {seed}");
            assert!(judge_at_rest(&origin).is_err());
        }
    }

    #[test]
    fn bytes_that_nothing_refers_to_may_be_anything() {
        let mut free = 0;
        for seed in 0..20 {
            let (mut origin, content) = origin(seed);
            let size = origin.image.size();
            let mut writing = Writing::default();
            let sectors = (0..size + (1 << 20)).step_by(512);
            let is_free = |at: &u64| writing.refers_to(&origin, &(*at..at + 512)).is_none();
            let places: Vec<u64> = sectors.filter(is_free).collect();
            for at in places {
                write(&mut origin, at, vec![0x5A; 512]);
                free += 1;
            }
            assert_eq!(judge(&origin), Ok(()), "seed {seed}");
            assert!(disk(&origin, content.len()) == Ok(content), "seed {seed}");
        }
        assert!(free > 20 * 2048, "{free} sectors");
    }

    #[test]
    fn an_image_that_is_much_longer_than_its_clusters_is_noticed() {
        let (mut origin, _) = origin(3);
        let far = origin.image.size() + (64 << 20);
        write(&mut origin, far, vec![0; 512]);
        let wrong = judge(&origin).expect_err("too long");
        assert!(wrong.contains("whose clusters end at"), "{wrong}");
    }
}
