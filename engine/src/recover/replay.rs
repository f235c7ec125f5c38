//! Replay: accepted entries become volumes with epochs again.
//!
//! Always true: entries are taken in order of serial, whatever their place in the log, and epochs
//! end where they ended before, so that a pending journal has whole epochs; entries that
//! a reset voided or the ledger of the last checkpoint covers are not taken; every volume starts
//! a new generation above all serials that were ever seen.

use super::scan::Accepted;
use crate::adversary::{Bug, has};
use crate::format::checkpoint::Checkpoint;
use crate::format::footer::FooterEntry;
use crate::log::content_of;
use crate::map::{ExtentMap, Piece};
use crate::types::{
    EpochNumber, Generation, Geometry, Policy, SECTOR_BYTES, SegmentIndex, Serial, StreamSeq, Tag,
    Time, VolumeId,
};
use crate::volume::{EPOCH_BYTES_MAX, Epoch, Volume, Volumes};
use alloc::vec::Vec;

pub struct Replayed {
    pub volumes: Vec<Option<Volume>>,
    pub generation_next: Generation,
    pub entries: u64,
}

struct Found {
    volume: u32,
    serial: Serial,
    epoch: EpochNumber,
    piece: Piece,
}

pub fn replay(checkpoint: &Checkpoint, accepted: &Accepted, geometry: Geometry) -> Replayed {
    let slots = checkpoint
        .volumes
        .iter()
        .map(|record| record.id.0 as usize + 1)
        .max();
    let mut volumes: Vec<Option<Volume>> = Vec::new();
    volumes.resize_with(slots.unwrap_or(0), || None);
    let mut generation_next = Generation(checkpoint.generation_next.max(1));
    for record in &checkpoint.volumes {
        generation_next = Generation(generation_next.0.max(record.generation.0 + 1));
        volumes[record.id.0 as usize] = Some(Volume::known(record.clone()));
    }
    let mut found = Vec::new();
    for segment in &accepted.segments {
        for entry in &segment.footer.entries {
            let volume = volumes
                .get(entry.volume.0 as usize)
                .and_then(Option::as_ref);
            if volume.is_some_and(|volume| counts(volume, entry, accepted.overlay_valid)) {
                let content = content_of(geometry, SegmentIndex(segment.index), entry);
                let piece = Piece {
                    span: entry.span,
                    content,
                };
                found.push(Found {
                    volume: entry.volume.0,
                    serial: entry.serial,
                    epoch: entry.epoch,
                    piece,
                });
            }
        }
    }
    found.sort_by_key(|found| (found.volume, found.serial));
    let entries = found.len() as u64;
    for of_one in found.chunk_by_mut(|a, b| a.volume == b.volume) {
        let volume = volumes[of_one[0].volume as usize]
            .as_mut()
            .expect("checked above");
        take(volume, of_one);
    }
    for volume in volumes.iter_mut().flatten() {
        let seen = accepted
            .serials_seen
            .get(&volume.id().0)
            .copied()
            .filter(|_| !has(Bug::ReuseSerials))
            .unwrap_or(0);
        volume.has_recovered();
        volume.go_on_behind(Serial(seen));
        volume.set_generation(generation_next);
        if volume.policy == Policy::Ephemeral && !accepted.overlay_valid {
            volume.void_older();
        }
    }
    if volumes.iter().flatten().next().is_some() {
        generation_next = Generation(generation_next.0 + 1);
    }
    Replayed {
        volumes,
        generation_next,
        entries,
    }
}

/// The writes among these that volumes hold, or have destaged.
pub fn taken(tags: &[(VolumeId, Generation, Tag)], volumes: &Volumes) -> Vec<(VolumeId, Tag)> {
    let holds = |(id, generation, _): &&(VolumeId, Generation, Tag)| {
        volumes.get(*id).is_some_and(|volume| {
            *generation >= volume.base_generation() && !volume.policy.is_direct()
        })
    };
    let held = tags.iter().filter(holds);
    let mut taken: Vec<_> = held.map(|(id, _, tag)| (*id, *tag)).collect();
    taken.sort_unstable();
    taken.dedup();
    taken
}

/// Whether an entry still speaks for its volume.
fn counts(volume: &Volume, entry: &FooterEntry, overlay_valid: bool) -> bool {
    let voided = entry.generation < volume.base_generation() && !has(Bug::CountVoided);
    let voided = voided || volume.standing().is_void(entry.serial);
    if voided || entry.span.end() > volume.sectors() {
        return false;
    }
    match volume.policy {
        Policy::WriteBack => entry.serial > volume.destaged(),
        Policy::Ephemeral => overlay_valid,
        Policy::Uncached | Policy::WriteThrough => false,
    }
}

/// Takes entries of one volume, in order of serial.
fn take(volume: &mut Volume, mut found: &mut [Found]) {
    debug_assert!(found.is_sorted_by_key(|found| found.serial));
    // An overlay is one epoch, because it is committed as one.
    let owes = volume.policy != Policy::Ephemeral;
    let full_sectors = if owes {
        EPOCH_BYTES_MAX / SECTOR_BYTES
    } else {
        u64::MAX
    };
    // What is of one epoch, whatever its entries say.
    let merged_upto = volume.merged_upto();
    let merged = |found: &Found| !owes || found.serial <= merged_upto;
    while let Some(first) = found.first() {
        let (serial, number, is_merged) = (first.serial, first.epoch, merged(first));
        let ended = volume.epochs.back().is_none_or(|epoch| {
            // A delta that a replica got twice, once in part, has one serial and two numbers.
            let other = epoch.last_serial != serial;
            let full = epoch.map.sectors() >= full_sectors;
            !is_merged && other && (full || epoch.number != number)
        });
        if ended {
            if let Some(epoch) = volume.epochs.back_mut() {
                epoch.sealed = true;
            }
            volume.epochs.push_back(new_epoch(serial, number));
        }
        let epoch = volume.epochs.back_mut().expect("one was just pushed");
        // As many as cannot fill it before the last of them.
        let room = match is_merged {
            true => u64::MAX,
            false => full_sectors.saturating_sub(epoch.map.sectors()),
        };
        let mut sectors = 0;
        let fits = found.iter().take_while(|found| {
            let fits = sectors < room && (merged(found) || found.epoch == number);
            sectors += found.piece.span.sectors;
            fits
        });
        let fits = fits.count().max(1);
        let (now, later) = found.split_at_mut(fits);
        for found in &*now {
            // What was cut or moved has several entries, and is one write.
            let begun = epoch.last_serial == found.serial && epoch.writes > 0;
            (epoch.number, epoch.last_serial) = (found.epoch, found.serial);
            epoch.writes += u64::from(!begun);
        }
        volume.epoch_number = epoch.number;
        insert(&mut epoch.map, now);
        found = later;
    }
    let older = volume.epochs.iter().rev().skip(1);
    debug_assert!(older.clone().all(|epoch| epoch.sealed), "one epoch is open");
    debug_assert!(volume.epochs.iter().is_sorted_by_key(|it| it.last_serial));
}

/// Order of serial counts only where entries overlap. Those groups go in by their place, because a
/// map takes what ascends several times faster than what is scattered.
fn insert(map: &mut ExtentMap, found: &mut [Found]) {
    found.sort_unstable_by_key(|found| (found.piece.span.sector, found.serial));
    let mut end = 0;
    let touches = |before: &Found, next: &Found| {
        end = before.piece.span.end().max(end);
        next.piece.span.sector < end
    };
    for group in found.chunk_by_mut(touches) {
        if group.len() > 1 {
            group.sort_by_key(|found| found.serial);
        }
        for found in group {
            map.insert(found.piece, &mut |_| {});
        }
    }
}

fn new_epoch(first: Serial, number: EpochNumber) -> Epoch {
    Epoch {
        map: ExtentMap::new(),
        number,
        cut: 0,
        last_serial: first,
        // Recovery has synced it.
        last_seq: StreamSeq(0),
        writes: 0,
        // Its age is not known, so it counts as old.
        opened: Time(0),
        sealed: false,
        charge: 0,
        joins: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::checkpoint::VolumeRecord;
    use crate::format::footer::Footer;
    use crate::format::record::{EntryKind, STREAM_WRITES};
    use crate::log::StreamKind;
    use crate::map::Content;
    use crate::recover::scan::Segment;
    use crate::types::{LogAddr, Span, Uuid};
    use alloc::vec;

    fn volume(id: u32, policy: Policy, base: u32) -> Option<Volume> {
        Some(Volume::known(record(id, policy, base)))
    }

    fn record(id: u32, policy: Policy, base: u32) -> VolumeRecord {
        VolumeRecord {
            id: VolumeId(id),
            uuid: Uuid([1; 16]),
            generation: Generation(9),
            base_generation: Generation(base),
            policy,
            destage_in_place: false,
            journal_possible: true,
            ended: false,
            staged: false,
            stage_lost: false,
            damaged: false,
            first_serial: Serial(1),
            serial_next: Serial(1),
            destaged: Serial(0),
            merged_upto: Serial(0),
            standing: Default::default(),
            size_bytes: 1 << 20,
            name: "disk".into(),
            origin: "/disk.img".into(),
            under: Default::default(),
        }
    }

    /// What is named here is not done again for a guest that asked before the crash.
    #[test]
    fn what_was_thrown_away_or_went_past_the_log_was_not_taken() {
        let volumes = [
            volume(0, Policy::WriteBack, 3),
            volume(1, Policy::Ephemeral, 5),
            volume(2, Policy::WriteThrough, 3),
            None,
        ];
        let tagged = |counter| Tag { region: 1, counter };
        let tag = |id, of, counter| (VolumeId(id), Generation(of), tagged(counter));
        let tags = [
            tag(1, 5, 12),
            tag(0, 3, 10),
            tag(0, 2, 11),
            tag(1, 4, 13),
            tag(2, 4, 14),
            tag(2, 2, 15),
            tag(3, 4, 16),
            tag(7, 4, 17),
            tag(0, 4, 10),
        ];
        let held = [(VolumeId(0), tagged(10)), (VolumeId(1), tagged(12))];
        assert_eq!(taken(&tags, &Vec::from(volumes).into()), held);
    }

    #[test]
    fn what_is_replayed_is_found_where_its_record_has_put_it() {
        let geometry = Geometry {
            chunk_blocks: 8,
            segment_chunks: 4,
            segments: 12,
        };
        let zero = EntryKind::Zero { allocate: true };
        let entry = |serial, sector, kind, block| FooterEntry {
            volume: VolumeId(0),
            generation: Generation(9),
            serial: Serial(serial),
            span: Span::new(sector, 5),
            kind,
            block,
            inline: None,
            more: false,
            epoch: EpochNumber::default(),
        };
        let footer = Footer {
            cache: Uuid([7; 16]),
            stream: STREAM_WRITES,
            incarnation: 1,
            segment_seq: 1,
            first_stream_seq: 1,
            last_stream_seq: 2,
            durable_upto: 2,
            entries: vec![entry(1, 19, EntryKind::Write, 5), entry(2, 40, zero, 11)],
            sums: Vec::new(),
        };
        let segment = Segment {
            index: 3,
            seq: 1,
            stream: StreamKind::Writes,
            first_stream_seq: 1,
            last_stream_seq: 2,
            footer,
            footered: true,
            settled: false,
        };
        let accepted = Accepted {
            segments: vec![segment],
            ..Accepted::default()
        };
        let checkpoint = Checkpoint {
            cache: Uuid([7; 16]),
            boot: Uuid::NIL,
            sequence: 1,
            incarnation: 1,
            stream_seq_next: 1,
            segment_seq_next: 1,
            generation_next: 1,
            unwritten_from: 0,
            segments_total: geometry.segments,
            volumes: vec![record(0, Policy::WriteBack, 1)],
            segments: Vec::new(),
        };
        let replayed = replay(&checkpoint, &accepted, geometry);
        assert_eq!(replayed.entries, 2);
        let volume = replayed.volumes[0].as_ref().expect("known");
        let at = |sector| volume.epochs[0].map.at_or_after(sector).expect("mapped");
        // Three segments of 32 blocks are before it; sector 19 is the fourth of its block.
        let block = |at: u64| (3 * 32 + at) * 8;
        assert_eq!(at(0).span, Span::new(19, 5));
        assert_eq!(at(0).content, Content::Data(LogAddr(block(5) + 3)));
        let header = LogAddr(block(11));
        let zeroes = Content::Zero {
            header,
            allocate: true,
        };
        assert_eq!(at(24).content, zeroes);
    }

    #[test]
    fn epochs_end_where_their_entries_say_and_an_overlay_has_one() {
        let lasts = |policy, merged_upto| {
            let mut volume = volume(0, policy, 1).expect("made");
            volume.merge_upto(Serial(merged_upto));
            let numbers = [(1, 62), (2, 62), (4, 63), (7, 0), (8, 0), (9, 1)];
            let mut found: Vec<Found> = numbers
                .map(|(serial, epoch)| Found {
                    volume: 0,
                    serial: Serial(serial),
                    epoch: EpochNumber::of(epoch),
                    piece: zeroes(serial * 8, 4096),
                })
                .into();
            super::take(&mut volume, &mut found);
            assert_eq!(volume.next_epoch(), volume.epoch_number, "it is open");
            let epochs = volume.epochs.iter();
            epochs.map(|it| it.last_serial.0).collect::<Vec<_>>()
        };
        assert_eq!(lasts(Policy::WriteBack, 0), [2, 4, 8, 9]);
        assert_eq!(lasts(Policy::WriteBack, 3), [2, 4, 8, 9]);
        assert_eq!(lasts(Policy::WriteBack, 4), [4, 8, 9]);
        assert_eq!(lasts(Policy::WriteBack, 7), [8, 9]);
        assert_eq!(lasts(Policy::Ephemeral, 0), [9]);
    }

    fn take(volume: &mut Volume, serial: Serial, piece: Piece) {
        let volume_id = volume.id().0;
        let found = Found {
            volume: volume_id,
            serial,
            epoch: EpochNumber::default(),
            piece,
        };
        super::take(volume, &mut [found]);
    }

    /// What a map of sectors says after these entries, each of one content, taken one by one.
    #[test]
    fn entries_taken_together_lie_as_if_they_had_been_taken_one_by_one() {
        let mut rng = workload::rng::Rng::new(1);
        let mut below = |limit: u64| rng.below(limit);
        for round in 0..200 {
            let mut volume = volume(0, Policy::WriteBack, 1).expect("made");
            let places = 1 + below(400);
            let mut wanted = vec![None; places as usize + 40];
            let mut found = Vec::new();
            for serial in 1..=1 + below(60) {
                let span = Span::new(below(places), 1 + below(40));
                let content = Content::Data(LogAddr(serial * 1_000));
                let piece = Piece { span, content };
                found.push(Found {
                    volume: 0,
                    serial: Serial(serial),
                    epoch: EpochNumber::default(),
                    piece,
                });
                for at in span.sector..span.end() {
                    wanted[at as usize] = Some(content.advance(at - span.sector));
                }
            }
            let last = found.last().map(|it| it.serial);
            let writes = found.len() as u64;
            super::take(&mut volume, &mut found);
            let epoch = &volume.epochs[0];
            assert_eq!((Some(epoch.last_serial), epoch.writes), (last, writes));
            for (at, content) in (0..).zip(wanted) {
                epoch.map.get(Span::new(at, 1), |_, found| {
                    assert_eq!(found, content, "round {round}, sector {at}");
                });
            }
        }
    }

    /// A piece of zeroes costs nothing to write down, so a gibibyte of it is soon there.
    fn zeroes(sector: u64, bytes: u64) -> Piece {
        let content = Content::Zero {
            header: LogAddr(0),
            allocate: false,
        };
        let span = crate::types::Span::new(sector, bytes / SECTOR_BYTES);
        Piece { span, content }
    }

    #[test]
    fn what_is_recovered_is_cut_into_epochs_of_a_gibibyte_between_two_writes() {
        let full = EPOCH_BYTES_MAX / SECTOR_BYTES;
        let mut volume = volume(0, Policy::WriteBack, 1).expect("made");
        take(&mut volume, Serial(1), zeroes(0, EPOCH_BYTES_MAX - 512));
        take(&mut volume, Serial(2), zeroes(full - 1, 512));
        assert_eq!(volume.epochs.len(), 1, "a sector was missing");
        take(&mut volume, Serial(2), zeroes(full, 512));
        assert_eq!(volume.epochs.len(), 1, "a write is not cut in two");
        take(&mut volume, Serial(3), zeroes(full + 1, 512));
        let last: Vec<_> = volume.epochs.iter().map(|it| it.last_serial).collect();
        assert_eq!(last, [Serial(2), Serial(3)]);
        let sealed: Vec<_> = volume.epochs.iter().map(|it| it.sealed).collect();
        assert_eq!(sealed, [true, false]);

        let mut exact = self::volume(0, Policy::WriteBack, 1).expect("made");
        take(&mut exact, Serial(1), zeroes(0, EPOCH_BYTES_MAX));
        take(&mut exact, Serial(2), zeroes(full, 512));
        assert_eq!(exact.epochs.len(), 2, "a gibibyte is full");
        let mut overlay = self::volume(0, Policy::Ephemeral, 1).expect("made");
        take(&mut overlay, Serial(1), zeroes(0, EPOCH_BYTES_MAX));
        take(&mut overlay, Serial(2), zeroes(full, 512));
        assert_eq!(overlay.epochs.len(), 1, "an overlay is one epoch");
    }
}
