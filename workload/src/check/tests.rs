//! What the model allows and what it does not, on volumes small enough to see.

use super::*;

const TAG: u64 = 77;

/// A volume kept as plain bytes, with writes that can be left out.
struct Image(Vec<u8>);

impl Image {
    fn new(sectors: u64) -> Image {
        Image(vec![0; sectors as usize * SECTOR_BYTES])
    }

    fn write(&mut self, sector: u64, sectors: u64, serial: u64) {
        stamp::fill(self.range(sector, sectors), TAG, sector, serial);
    }

    fn zero(&mut self, sector: u64, sectors: u64) {
        self.range(sector, sectors).fill(0);
    }

    fn range(&mut self, sector: u64, sectors: u64) -> &mut [u8] {
        &mut self.0[sector as usize * SECTOR_BYTES..][..sectors as usize * SECTOR_BYTES]
    }

    fn reader(&self) -> impl FnMut(Range<u64>, &mut [u8]) -> Result<(), String> {
        |range, bytes| {
            let first = range.start as usize * SECTOR_BYTES;
            bytes.copy_from_slice(&self.0[first..first + bytes.len()]);
            Ok(())
        }
    }
}

fn model(promise: Promise) -> Model {
    Model::new(TAG, 64, promise, Initial::Zero)
}

fn acknowledged(model: &mut Model, sector: u64, sectors: u64) -> u64 {
    let serial = model.submit(Kind::Stamp, sector, sectors, false);
    model.acknowledge(serial);
    serial
}

#[test]
fn a_kill_may_not_lose_an_acknowledged_write() {
    let mut model = model(Promise::Prefix);
    let mut image = Image::new(64);
    let first = acknowledged(&mut model, 0, 4);
    acknowledged(&mut model, 8, 4);
    image.write(0, 4, first);
    let lost = model.clone().verify(Crash::Kill, image.reader());
    assert_eq!(
        lost,
        Err(Violation::Lost {
            cut: 1,
            floor: 2,
            newest: 2
        })
    );
    let found = model
        .verify(Crash::PowerLoss, image.reader())
        .expect("nothing was flushed");
    assert_eq!(
        found,
        Found {
            cut: 1,
            least: Some(1),
            floor: 0,
            newest: 2,
            torn: false
        }
    );
}

#[test]
fn a_power_loss_may_not_lose_a_flushed_write() {
    let mut model = model(Promise::Prefix);
    acknowledged(&mut model, 0, 4);
    let point = model.flush_begin();
    model.flush_done(point);
    let lost = model.verify(Crash::PowerLoss, Image::new(64).reader());
    assert_eq!(
        lost,
        Err(Violation::Lost {
            cut: 0,
            floor: 1,
            newest: 1
        })
    );
}

#[test]
fn a_flush_covers_only_what_was_acknowledged_before_it() {
    let mut model = model(Promise::Prefix);
    let serial = model.submit(Kind::Stamp, 0, 4, false);
    let point = model.flush_begin();
    model.acknowledge(serial);
    model.flush_done(point);
    assert!(
        model
            .verify(Crash::PowerLoss, Image::new(64).reader())
            .is_ok()
    );
}

#[test]
fn a_durable_write_covers_itself() {
    let mut model = model(Promise::Prefix);
    let serial = model.submit(Kind::Stamp, 0, 4, true);
    model.acknowledge(serial);
    assert!(
        model
            .verify(Crash::PowerLoss, Image::new(64).reader())
            .is_err()
    );
}

#[test]
fn reordered_writes_are_no_prefix() {
    let mut model = model(Promise::Prefix);
    let mut image = Image::new(64);
    acknowledged(&mut model, 0, 4);
    let second = acknowledged(&mut model, 8, 4);
    image.write(8, 4, second);
    let violation = model.verify(Crash::PowerLoss, image.reader());
    assert!(
        matches!(violation, Err(Violation::NoPrefix { .. })),
        "{violation:?}"
    );
}

#[test]
fn an_unacknowledged_write_appears_sector_by_sector_but_not_before_the_acknowledged() {
    let mut model = model(Promise::Prefix);
    let mut image = Image::new(64);
    let first = acknowledged(&mut model, 0, 4);
    let second = model.submit(Kind::Stamp, 2, 8, false);
    image.write(5, 1, second);
    assert!(
        model
            .clone()
            .verify(Crash::PowerLoss, image.reader())
            .is_err()
    );
    image.write(0, 4, first);
    image.write(3, 1, second);
    assert!(model.verify(Crash::Kill, image.reader()).is_ok());
}

#[test]
fn an_acknowledged_write_appears_whole_or_not_at_all() {
    let mut model = model(Promise::Prefix);
    let mut image = Image::new(64);
    let serial = acknowledged(&mut model, 0, 8);
    image.write(0, 3, serial);
    assert!(model.verify(Crash::PowerLoss, image.reader()).is_err());
}

#[test]
fn a_model_that_allows_tearing_does_so_for_the_last_write_only() {
    let mut model = model(Promise::Prefix);
    let mut image = Image::new(64);
    let first = acknowledged(&mut model, 0, 8);
    let second = acknowledged(&mut model, 16, 8);
    image.write(0, 8, first);
    image.write(16, 3, second);
    assert!(
        model
            .clone()
            .verify(Crash::PowerLoss, image.reader())
            .is_err()
    );
    model.allow_tearing();
    let found = model.clone().verify(Crash::PowerLoss, image.reader());
    assert_eq!(
        found,
        Ok(Found {
            cut: 1,
            least: None,
            floor: 0,
            newest: 2,
            torn: true
        })
    );
    assert!(model.clone().verify(Crash::Kill, image.reader()).is_err());
    image.zero(0, 1);
    assert!(model.verify(Crash::PowerLoss, image.reader()).is_err());
}

#[test]
fn torn_and_misplaced_sectors_are_named() {
    let mut model = model(Promise::Prefix);
    let mut image = Image::new(64);
    let old = acknowledged(&mut model, 0, 4);
    let new = acknowledged(&mut model, 0, 4);
    image.write(0, 4, new);
    let mut other = Image::new(64);
    other.write(0, 4, old);
    image.range(2, 1)[300..].copy_from_slice(&other.range(2, 1)[300..]);
    let torn = model.clone().verify(Crash::Kill, image.reader());
    assert_eq!(torn, Err(Violation::Torn { sector: 2 }));
    image.write(2, 1, new);
    let moved = image.range(1, 1).to_vec();
    image.range(2, 1).copy_from_slice(&moved);
    let misplaced = model.verify(Crash::Kill, image.reader());
    assert!(matches!(
        misplaced,
        Err(Violation::Misplaced { sector: 2, .. })
    ));
}

#[test]
fn a_discard_is_a_write_like_any_other() {
    let mut model = model(Promise::Prefix);
    let mut image = Image::new(64);
    let first = acknowledged(&mut model, 0, 8);
    image.write(0, 8, first);
    let discard = model.submit(Kind::Zero, 2, 2, false);
    model.acknowledge(discard);
    assert!(model.clone().verify(Crash::Kill, image.reader()).is_err());
    assert!(
        model
            .clone()
            .verify(Crash::PowerLoss, image.reader())
            .is_ok()
    );
    image.zero(2, 2);
    assert!(model.verify(Crash::Kill, image.reader()).is_ok());
}

#[test]
fn what_was_read_once_stays() {
    let mut model = model(Promise::Prefix);
    let mut image = Image::new(64);
    let serial = acknowledged(&mut model, 0, 4);
    image.write(0, 4, serial);
    assert!(model.verify(Crash::PowerLoss, image.reader()).is_ok());
    let gone = model
        .clone()
        .verify(Crash::PowerLoss, Image::new(64).reader());
    assert!(matches!(gone, Err(Violation::NoPrefix { .. })), "{gone:?}");
    assert!(model.verify(Crash::PowerLoss, image.reader()).is_ok());
}

#[test]
fn uncached_sectors_hold_their_flushed_value_or_a_later_one_in_any_order() {
    let mut model = model(Promise::Sectors);
    let mut image = Image::new(64);
    let first = acknowledged(&mut model, 0, 8);
    let point = model.flush_begin();
    model.flush_done(point);
    let second = acknowledged(&mut model, 0, 2);
    let third = acknowledged(&mut model, 4, 2);
    image.write(0, 8, first);
    image.write(4, 2, third);
    assert!(
        model
            .clone()
            .verify(Crash::PowerLoss, image.reader())
            .is_ok()
    );
    assert!(model.clone().verify(Crash::Kill, image.reader()).is_err());
    image.write(0, 2, second);
    assert!(model.clone().verify(Crash::Kill, image.reader()).is_ok());
    image.zero(7, 1);
    let stale = model.verify(Crash::PowerLoss, image.reader());
    assert!(
        matches!(stale, Err(Violation::Stale { differing: 1, .. })),
        "{stale:?}"
    );
}

#[test]
fn what_an_uncached_volume_showed_after_a_kill_may_go_with_the_power() {
    let mut model = model(Promise::Sectors);
    let mut image = Image::new(64);
    let serial = acknowledged(&mut model, 0, 8);
    image.write(0, 8, serial);
    assert!(model.verify(Crash::Kill, image.reader()).is_ok());
    assert!(
        model
            .clone()
            .verify(Crash::PowerLoss, Image::new(64).reader())
            .is_ok()
    );
    let point = model.flush_begin();
    model.flush_done(point);
    assert!(
        model
            .verify(Crash::PowerLoss, Image::new(64).reader())
            .is_err()
    );
}

#[test]
fn an_ephemeral_volume_is_kept_by_a_kill_and_clean_after_a_power_loss() {
    let mut model = Model::new(TAG, 64, Promise::Volatile, Initial::Stamped(5));
    let mut image = Image::new(64);
    stamp::fill(&mut image.0, 5, 0, 0);
    let clean = Image(image.0.clone());
    let serial = acknowledged(&mut model, 0, 4);
    assert!(model.clone().verify(Crash::Kill, image.reader()).is_err());
    image.write(0, 4, serial);
    assert!(model.clone().verify(Crash::Kill, image.reader()).is_ok());
    let kept = model.clone().verify(Crash::PowerLoss, image.reader());
    assert!(
        matches!(kept, Err(Violation::NotClean { differing: 4, .. })),
        "{kept:?}"
    );
    assert!(
        model
            .clone()
            .verify(Crash::PowerLoss, clean.reader())
            .is_ok()
    );
    model.reset_begin();
    assert!(model.clone().verify(Crash::Kill, clean.reader()).is_ok());
    assert!(model.clone().verify(Crash::Kill, image.reader()).is_ok());
    model.reset_done(true);
    assert!(model.clone().verify(Crash::Kill, image.reader()).is_err());
    assert!(model.verify(Crash::Kill, clean.reader()).is_ok());
}

#[test]
fn a_read_sees_what_was_acknowledged_before_it_or_something_later() {
    let mut model = model(Promise::Prefix);
    let mut image = Image::new(64);
    let old = acknowledged(&mut model, 0, 4);
    let new = acknowledged(&mut model, 0, 4);
    let flying = model.submit(Kind::Stamp, 1, 1, false);
    let point = model.read_begin(0, 4);
    image.write(0, 4, new);
    assert!(model.read_done(&point, &image.0[..2048]).is_ok());
    image.write(1, 1, flying);
    assert!(model.read_done(&point, &image.0[..2048]).is_ok());
    let later = model.submit(Kind::Zero, 2, 1, false);
    image.zero(2, 1);
    assert!(model.read_done(&point, &image.0[..2048]).is_ok());
    image.zero(3, 1);
    assert!(model.read_done(&point, &image.0[..2048]).is_err());
    image.write(3, 1, old);
    let stale = model.read_done(&point, &image.0[..2048]);
    let expected = Difference {
        sector: 3,
        found: Some(old),
        expected: Some(new),
    };
    assert_eq!(stale, Err(Violation::StaleRead(expected)));
    model.acknowledge(later);
    let point = model.read_begin(2, 1);
    image.write(2, 1, new);
    assert!(model.read_done(&point, &image.0[1024..1536]).is_err());
}

#[test]
fn voided_writes_may_not_appear_and_a_destage_sets_the_floor() {
    let mut model = model(Promise::Prefix);
    let mut image = Image::new(64);
    let first = acknowledged(&mut model, 0, 4);
    let point = model.flush_begin();
    model.flush_done(point);
    let second = acknowledged(&mut model, 8, 4);
    assert!(model.examine(Promise::Prefix, image.reader()).is_err());
    image.write(0, 4, first);
    assert!(model.examine(Promise::Prefix, image.reader()).is_ok());
    let cut = Found {
        cut: first,
        least: Some(first),
        floor: first,
        newest: second,
        torn: false,
    };
    model.void_after(&cut);
    image.write(8, 4, second);
    assert!(model.examine(Promise::Prefix, image.reader()).is_err());
}

#[test]
fn a_gibibyte_with_a_million_writes_is_judged_quickly() {
    let sectors = 2 << 20;
    let mut model = Model::new(TAG, sectors, Promise::Prefix, Initial::Zero);
    for number in 0..1_000_000u64 {
        let sector = number.wrapping_mul(0x9E37_79B9) % (sectors - 8);
        acknowledged(&mut model, sector, 8);
    }
    let contents: Vec<u64> = (0..sectors as usize)
        .map(|at| model.content_after(at as u64, model.newest[at]))
        .collect();
    let found = model
        .judge(Promise::Prefix, Crash::Kill, &contents)
        .expect("all there");
    assert_eq!(found.cut, 1_000_000);
}
