//! Every target on stable, without libFuzzer: its corpus, then pseudo-random inputs.
//!
//! `TENUTO_FUZZ_INPUTS` sets how many inputs each target gets, `TENUTO_FUZZ_SEED` where their
//! sequence begins. A failure prints both and keeps the input in `artifacts/`, where the next run
//! finds it first.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use tenuto_fuzz::{TARGETS, Target};
use workload::rng::Rng;

const INPUTS: u64 = 20_000;
const SEED: u64 = 0x7465_6e75_746f;
const INPUT_BYTES_MAX: u64 = 2048;
/// One input in so many must get behind all checks.
const ACCEPTED_SHARE: u64 = 50;

struct Random(Rng);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.word()
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// Noise of one of three textures, or a known input with a few bytes changed.
    fn input(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        if !corpus.is_empty() && self.below(2) == 0 {
            let mut input = corpus[self.below(corpus.len() as u64) as usize].clone();
            for _ in 0..self.below(8) {
                let at = self.below(input.len().max(1) as u64) as usize;
                let value = self.next() as u8;
                match self.below(3) {
                    0 => input.insert(at, value),
                    1 if at < input.len() => input[at] = value,
                    2 if at < input.len() => drop(input.remove(at)),
                    _ => {}
                }
            }
            return input;
        }
        let length_max = 1 + self.below(INPUT_BYTES_MAX);
        let length = self.below(length_max);
        let texture = self.below(3);
        (0..length)
            .map(|_| match texture {
                0 => self.next() as u8,
                1 => self.next() as u8 & self.next() as u8 & self.next() as u8,
                _ => self.below(4) as u8,
            })
            .collect()
    }
}

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable} is a decimal number")),
        Err(_) => default,
    }
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: PathBuf) -> Vec<Vec<u8>> {
    let Ok(entries) = fs::read_dir(&folder) else {
        return Vec::new();
    };
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.sort();
    paths
        .iter()
        .map(|path| fs::read(path).expect("a corpus holds files"))
        .collect()
}

fn run(name: &str, target: Target) {
    let seed = number("TENUTO_FUZZ_SEED", SEED);
    let inputs = number("TENUTO_FUZZ_INPUTS", INPUTS);
    let mut random = Random(Rng::new(seed));
    let mut known = files(here().join("corpus").join(name));
    let corpus = known.clone();
    known.extend(files(here().join("artifacts").join(name)));
    let made = (0..inputs).map(|_| random.input(&corpus));
    let mut accepted = 0;
    for (number, input) in known.iter().cloned().chain(made).enumerate() {
        let Ok(behind_checks) = catch_unwind(AssertUnwindSafe(|| target(&input))) else {
            let path = keep(name, &format!("stable-{seed:x}-{number}"), &input);
            panic!(
                "target {name} failed on input {number} of TENUTO_FUZZ_SEED={seed}; kept as {}",
                path.display()
            );
        };
        accepted += u64::from(behind_checks);
    }
    println!("{name}: {accepted} of {inputs} inputs got behind all checks");
    assert!(
        accepted * ACCEPTED_SHARE >= inputs,
        "{name}: {accepted} of {inputs} are too few"
    );
}

fn keep(name: &str, file: &str, input: &[u8]) -> PathBuf {
    let folder = here().join("artifacts").join(name);
    let path = folder.join(file);
    fs::create_dir_all(&folder).expect("artifacts can be kept");
    fs::write(&path, input).expect("artifacts can be kept");
    path
}

fn run_named(name: &str) {
    let found = TARGETS.iter().find(|(target, _)| *target == name);
    let (name, target) = found.expect("a test for each target, a target for each test");
    run(name, *target);
}

macro_rules! targets {
    ($($test:ident: $name:literal),* $(,)?) => {
        $(#[test]
        fn $test() {
            run_named($name);
        })*

        #[test]
        fn every_target_has_a_test_and_a_binary() {
            let tested = [$($name),*];
            assert_eq!(tested, TARGETS.map(|(name, _)| name));
            for name in tested {
                assert!(here().join(format!("fuzz_targets/{name}.rs")).exists());
            }
        }
    };
}

targets! {
    nbd_sessions_survive_any_client: "nbd_session",
    nbd_clients_survive_any_server: "nbd_client",
    monitors_survive_any_bytes: "qmp",
    superblocks_survive_any_bytes: "superblock",
    checkpoints_survive_any_bytes: "checkpoint",
    records_survive_any_bytes: "record",
    footers_survive_any_bytes: "footer",
    fill_records_survive_any_bytes: "fill_record",
    fill_footers_survive_any_bytes: "fill_footer",
    ledgers_survive_any_bytes: "ledger",
    journals_survive_any_bytes: "journal",
    stages_survive_any_bytes: "stage",
    rings_survive_any_guest: "ring",
    requests_of_a_disk_survive_any_guest: "block_request",
    in_flight_regions_survive_any_front_end: "in_flight",
    disks_survive_any_front_end: "vhost_user",
    configurations_survive_any_text: "configuration",
    values_survive_any_text: "argument",
    names_of_exports_survive_any_text: "uri",
    native_traces_survive_any_bytes: "trace_native",
    traces_of_others_survive_any_text: "trace_text",
    maps_of_images_survive_any_text: "debugfs",
    maps_of_ntfs_survive_any_text: "fiwalk",
    headers_of_images_survive_any_bytes: "image_header",
    extensions_of_headers_survive_any_bytes: "image_extensions",
    names_of_backings_survive_any_text: "image_backing",
    entries_of_tables_survive_any_bits: "image_entry",
    refcounts_survive_any_bytes: "image_refcount",
    snapshot_tables_survive_any_bytes: "image_snapshot",
    walks_over_chains_survive_any_tables: "image_resolve",
    checks_survive_any_tables: "image_check",
    plans_survive_any_tables: "image_plan",
    epochs_leave_images_right: "image_epochs",
    compressed_clusters_survive_any_bytes: "image_inflate",
    frames_between_hosts: "frame",
    records_of_a_vault_and_messages: "vault",
    checkpoints_of_volumes_survive_any_bytes: "backup_checkpoint",
    records_of_pools_survive_any_bytes: "pool_record",
    tables_of_rules_survive_any_bytes: "split_rules",
}
