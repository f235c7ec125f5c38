//! Which image a base is: what volumes with one identity share, also with a daemon to come.
//!
//! Always true: an image that was changed while nobody held its lock has another identity; the
//! number is the same in every version of the program on every machine. What cannot be told to be
//! unchanged (a block device, whose times say nothing, or a file changed so lately that a further
//! change may leave its times as they are) has an identity of this life of the daemon only. An
//! export of a server, whose image may be another one after we have left, has an identity for as
//! long as the volume is attached, and shares nothing.

use super::host;
use crate::origin::Place;
use crate::origin::file::OpenVolume;
use crate::origin::mapped::Mapped;
use crate::origin::nbd::uri::Server;
use crate::target::{Target, is_settled};
use engine::types::{BLOCK_BYTES, Uuid};
use image::Format;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::LazyLock;

static LIFE: LazyLock<Uuid> = LazyLock::new(host::fresh);

/// FNV-1a of 128 bits, <http://www.isthe.com/chongo/tech/comp/fnv/>: the standard library's
/// hashers may change from version to version.
struct Fnv(u128);

const FNV_START: u128 = 0x6C62_272E_07BB_0142_62B8_2175_6295_C58D;

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013B);
        }
    }
}

/// Equal for origins that probably are on one storage, which is what several volumes share when
/// they destage: files of one file system, block devices, exports of one host. Where the guess is
/// wrong, one storage serves two in parallel, or one waits for the other's rounds.
pub(super) fn storage(origin: &Path, files: &OpenVolume) -> u64 {
    let mut hash = Fnv(FNV_START);
    match Place::parse(origin) {
        Ok(Place::Nbd(uri)) => match uri.server {
            Server::Tcp { host, .. } => hash.add(host.as_bytes()),
            Server::Unix(_) => hash.add(b"unix"),
        },
        _ => {
            let file = files.origin.file();
            let meta = file.and_then(|origin| origin.file.metadata().ok());
            match meta.filter(|_| file.is_some_and(|origin| !origin.block_device)) {
                Some(meta) => hash.add(&meta.dev().to_le_bytes()),
                None => hash.add(b"block"),
            }
        }
    }
    hash.0 as u64
}

/// Place, size, times and first block of a raw image whose lock is held.
pub(super) fn of(files: &OpenVolume) -> Option<Uuid> {
    match files.origin.file() {
        Some(origin) => of_file(origin, None),
        None => Some(host::fresh()),
    }
}

/// Of each file of an image, as it is seen with all that lies below it. What a file has of its own
/// is another thing where another file lies below; of one that is written nothing is said.
pub(super) fn of_chain(mapped: &Mapped) -> Vec<Uuid> {
    let mut below = Uuid::NIL;
    let links = mapped.links().iter().rev();
    let mut found: Vec<Uuid> = links
        .map(|link| {
            // A raw file is the same thing whether a volume has it or a file lies on it.
            let under = (!matches!(link.format, Format::Raw)).then_some(below);
            below = of_file(&link.target, under).unwrap_or_else(host::fresh);
            below
        })
        .collect();
    found.reverse();
    if mapped.is_written() {
        found[0] = host::fresh();
    }
    found
}

/// Of an image of this [chain](of_chain): names of the tables of its files, and of what lies below
/// the first.
pub(super) fn names(mapped: &Mapped, chain: &[Uuid]) -> (Vec<Uuid>, Vec<Uuid>) {
    let mut tables = of_tables(chain);
    if mapped.is_written() {
        // What was kept of its tables may be of another state of the file.
        tables[0] = host::fresh();
    }
    (tables, chain[1..].to_vec())
}

/// Names of the tables of these files, which are no blocks of the disk.
fn of_tables(chain: &[Uuid]) -> Vec<Uuid> {
    let name = |identity: &Uuid| {
        let mut hash = Fnv(FNV_START);
        hash.add(b"tables");
        hash.add(&identity.0);
        Uuid(hash.0.to_le_bytes())
    };
    chain.iter().map(name).collect()
}

/// `below` is the identity of what lies below a file of an image that is not raw.
fn of_file(origin: &Target, below: Option<Uuid>) -> Option<Uuid> {
    let meta = origin.file.metadata().ok()?;
    let mut hash = Fnv(FNV_START);
    if let Some(below) = below {
        hash.add(b"below");
        hash.add(&below.0);
    }
    let path = origin.path.as_os_str().as_bytes();
    hash.add(&(path.len() as u64).to_le_bytes());
    hash.add(path);
    for number in [meta.ino(), meta.size(), meta.rdev()] {
        hash.add(&number.to_le_bytes());
    }
    let times = [
        meta.mtime(),
        meta.mtime_nsec(),
        meta.ctime(),
        meta.ctime_nsec(),
    ];
    times.iter().for_each(|time| hash.add(&time.to_le_bytes()));
    let mut header = vec![0; BLOCK_BYTES.min(origin.size_bytes) as usize];
    origin.read(0, &mut header).ok()?;
    hash.add(&header);
    if origin.block_device || !is_settled(&meta) {
        hash.add(&LIFE.0);
    }
    Some(Uuid(hash.0.to_le_bytes()))
}
