//! Chains of checkpoints against a model, through stops, kills and power losses.

use super::super::bitmap::GRAIN_BYTES;
use super::*;
use std::collections::{BTreeMap, BTreeSet};
use workload::rng::Rng;

const SIZE: u64 = 300 * GRAIN_BYTES + 4096;

struct Bench {
    root: PathBuf,
    boot: u8,
    seen: ImageSeen,
}

impl Bench {
    fn new() -> Bench {
        let root = std::env::temp_dir().join(format!("tenuto-{}", uuid::Uuid::new_v4()));
        fs::create_dir_all(root.join("stage")).expect("it can be made");
        let seen = ImageSeen {
            inode: 7,
            size_bytes: SIZE,
            ..ImageSeen::default()
        };
        Bench {
            root,
            boot: 1,
            seen,
        }
    }

    fn load(&self) -> Chain {
        let place = Place {
            stage_dir: self.root.join("stage"),
            cache: Uuid([9; 16]),
            boot: Uuid([self.boot; 16]),
        };
        let origin = Origin {
            name: 5,
            seen: self.seen,
        };
        Chain::load(&self.root, place, "disk", origin).expect("the directory is there")
    }

    /// Files in the place of bitmaps that outlive the daemon.
    fn staged(&self) -> usize {
        let all = fs::read_dir(self.root.join("stage")).expect("it is there");
        all.count()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn write(chain: &Chain, grain: u64) {
    for live in chain.lives() {
        live.mark(grain * GRAIN_BYTES / 512, 1);
    }
}

fn take(chain: &mut Chain, name: &str) {
    chain.begin(name, 1, SIZE).expect("there is room");
    chain.at_cut(SIZE).expect("it can be read");
    chain.confirm().expect("there is room");
}

fn names(chain: &Chain) -> Vec<(String, ShownState)> {
    let all = chain.shown().into_iter();
    all.map(|it| (it.name, it.state)).collect()
}

fn changed(chain: &Chain, name: &str) -> BTreeSet<u64> {
    let all = chain.changes_now(SIZE).expect("it can be read");
    let (_, bitmap) = all.iter().find(|it| it.0 == name).expect("it is there");
    let grains = 0..SIZE.div_ceil(GRAIN_BYTES);
    grains.filter(|grain| bitmap.is_changed(*grain)).collect()
}

fn note(model: &mut BTreeMap<String, BTreeSet<u64>>, grain: u64) {
    for set in model.values_mut() {
        set.insert(grain);
    }
}

/// Fails when: a change after a checkpoint is missing in what is told of it, over any order of
/// checkpoints, deletions, stops and kills.
#[test]
fn no_change_is_missing_after_any_history() {
    for seed in 0..40 {
        let bench = Bench::new();
        let mut random = Rng::new(seed);
        let mut chain = bench.load();
        let mut model: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        for step in 0..120 {
            match random.below(20) {
                0 if !chain.is_full() => {
                    let name = format!("c{step}");
                    chain.begin(&name, 1, SIZE).expect("there is room");
                    let early = random.below(300);
                    write(&chain, early);
                    note(&mut model, early);
                    chain.at_cut(SIZE).expect("it can be read");
                    let late = random.below(300);
                    write(&chain, late);
                    note(&mut model, late);
                    match random.below(3) {
                        0 => chain.abandon().expect("its file is there"),
                        1 => {
                            // Killed in the window.
                            drop(chain);
                            chain = bench.load();
                        }
                        _ => {
                            chain.confirm().expect("there is room");
                            model.insert(name, BTreeSet::from([late]));
                        }
                    }
                }
                1 => {
                    let at = random.below(model.len() as u64 + 1) as usize;
                    if let Some(name) = model.keys().nth(at).cloned() {
                        assert!(chain.delete(&name).expect("it can be removed"));
                        model.remove(&name);
                    }
                }
                2 => {
                    chain.keep(bench.seen).expect("there is room");
                    drop(chain);
                    assert_eq!(bench.staged(), 0);
                    chain = bench.load();
                }
                3 => {
                    drop(chain);
                    chain = bench.load();
                }
                _ => {
                    let grain = random.below(300);
                    write(&chain, grain);
                    note(&mut model, grain);
                }
            }
            assert_eq!(chain.shown().len(), model.len(), "seed {seed}, step {step}");
            for (name, expected) in &model {
                let found = changed(&chain, name);
                assert!(
                    found.is_superset(expected),
                    "seed {seed}, step {step}: {name}"
                );
            }
        }
    }
}

#[test]
fn an_increment_has_what_changed_and_nothing_else() {
    let bench = Bench::new();
    let mut chain = bench.load();
    take(&mut chain, "monday");
    write(&chain, 3);
    take(&mut chain, "tuesday");
    write(&chain, 5);
    assert_eq!(changed(&chain, "monday"), BTreeSet::from([3, 5]));
    assert_eq!(changed(&chain, "tuesday"), BTreeSet::from([5]));
    assert_eq!(chain.lives().len(), 1, "a write sets one bit");
    assert!(chain.delete("tuesday").expect("it can be removed"));
    assert_eq!(changed(&chain, "monday"), BTreeSet::from([3, 5]));
    write(&chain, 6);
    drop(chain);
    assert_eq!(changed(&bench.load(), "monday"), BTreeSet::from([3, 5, 6]));
}

/// Fails when: bits that may be incomplete are believed.
#[test]
fn what_was_tracked_before_a_power_loss_is_lost_and_said_to_be() {
    let mut bench = Bench::new();
    let mut chain = bench.load();
    take(&mut chain, "monday");
    take(&mut chain, "tuesday");
    drop(chain);
    bench.boot = 2;
    let mut chain = bench.load();
    let expected = [
        ("monday".to_owned(), ShownState::Lost(Reason::Later)),
        ("tuesday".to_owned(), ShownState::Lost(Reason::Power)),
    ];
    assert_eq!(names(&chain), expected);
    assert!(chain.lives().is_empty() && chain.changes_now(SIZE).expect("none").is_empty());
    assert_eq!(bench.staged(), 0, "nothing is left behind");
    take(&mut chain, "wednesday");
    write(&chain, 1);
    drop(chain);
    let chain = bench.load();
    assert_eq!(names(&chain)[2].1, ShownState::Valid);
    assert_eq!(changed(&chain, "wednesday"), BTreeSet::from([1]));
}

#[test]
fn an_image_that_was_written_while_nothing_ran_loses_its_checkpoints() {
    let mut bench = Bench::new();
    let mut chain = bench.load();
    take(&mut chain, "monday");
    chain.keep(bench.seen).expect("there is room");
    bench.seen.mtime_ns = 1;
    let chain = bench.load();
    assert_eq!(names(&chain)[0].1, ShownState::Lost(Reason::Image));
}

#[test]
fn another_file_below_or_a_damaged_one_loses_them_as_well() {
    let bench = Bench::new();
    let mut chain = bench.load();
    chain.stands_on(4).expect("nothing is there");
    take(&mut chain, "monday");
    drop(chain);
    let mut chain = bench.load();
    chain.stands_on(4).expect("it can be written");
    assert_eq!(names(&chain)[0].1, ShownState::Valid);
    chain.stands_on(5).expect("it can be written");
    assert_eq!(names(&chain)[0].1, ShownState::Lost(Reason::Image));
    take(&mut chain, "tuesday");
    take(&mut chain, "wednesday");
    let path = chain.path(&chain.all[1].head);
    fs::write(&path, b"no checkpoint").expect("it can be written");
    let chain = bench.load();
    assert_eq!(names(&chain)[1].1, ShownState::Lost(Reason::Damaged));
    assert_eq!(names(&chain)[2].1, ShownState::Valid);
}

/// Fails when: a disk that was made smaller and larger again keeps blocks that read otherwise now.
#[test]
fn what_another_size_takes_and_brings_has_changed() {
    let bench = Bench::new();
    let mut chain = bench.load();
    take(&mut chain, "monday");
    chain.resizes(SIZE, 10 * GRAIN_BYTES);
    chain.resizes(10 * GRAIN_BYTES, SIZE + GRAIN_BYTES);
    let all = chain
        .changes_now(SIZE + GRAIN_BYTES)
        .expect("it can be read");
    let bitmap = &all[0].1;
    assert!((0..9).all(|grain| !bitmap.is_changed(grain)));
    assert!((10..302).all(|grain| bitmap.is_changed(grain)));
}
