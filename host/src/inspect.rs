//! Looking at what lies on devices and beside images, without changing it.
//!
//! Always true: nothing here writes or takes a lock, so it can run beside a daemon and on a dead
//! host's disk; what a running daemon is just changing may look torn, and is called by that name.
//! Deliberately absent: what is dirty; only recovery knows that, and recovery is the engine's.

use crate::error::{Error, Kind, Result, cause};
use crate::origin::nbd::client::Client;
use crate::origin::nbd::uri;
use crate::origin::{Place, beside, pointer};
use crate::target::Target;
use engine::format::FormatError;
use engine::format::journal::{self, Journal};
use engine::format::ledger::{LEDGER_BYTES, LEDGER_SLOTS, Ledger, Progress};
use engine::format::record::EntryKind;
use engine::format::superblock::{SUPERBLOCK_AT, SUPERBLOCK_BYTES, Superblock};
use engine::snapshot::VolumeSnapshot;
use engine::types::SECTOR_BYTES;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The largest piece of a journal that is in memory at once.
const PIECE_BYTES: usize = 1 << 20;

/// What lies beside an image.
#[derive(Clone, Debug)]
pub struct Beside {
    pub image: PathBuf,
    pub image_bytes: u64,
    pub ledger_path: PathBuf,
    pub journal_path: PathBuf,
    /// `None` where there is none.
    pub ledger: Option<Ledger>,
    /// Length of the journal file; `None` where there is none.
    pub journal_bytes: Option<u64>,
    /// Header and table; `None` where the file is empty or holds no journal of ours.
    pub journal: Option<Journal>,
    /// Damage, one line each. Empty where all is as it should be.
    pub damage: Vec<String>,
}

impl Beside {
    /// Whether the ledger asks for a journal to be finished.
    pub fn pending(&self) -> bool {
        let progress = self.ledger.as_ref().map(|ledger| ledger.progress);
        matches!(progress, Some(Progress::Apply { .. }))
    }
}

/// Reads ledger and journal of an image.
pub fn look_beside(image: &Path, place: Option<&Path>) -> Result<Beside> {
    let (image_bytes, ledger_path, journal_path) = locate(image, place)?;
    let mut found = Beside {
        image: image.to_path_buf(),
        image_bytes,
        ledger_path,
        journal_path,
        ledger: None,
        journal_bytes: None,
        journal: None,
        damage: Vec::new(),
    };
    if let Some(file) = open(&found.ledger_path)? {
        let mut bytes = Vec::new();
        let limit = LEDGER_BYTES as u64 * LEDGER_SLOTS;
        file.take(limit)
            .read_to_end(&mut bytes)
            .map_err(|error| unreadable(&found.ledger_path, &error))?;
        match Ledger::parse_file(&bytes) {
            Ok(ledger) => found.ledger = ledger,
            Err(error) => {
                let path = found.ledger_path.display();
                found.damage.push(format!("{path}: ledger {error}"));
            }
        }
    }
    if let Some(file) = open(&found.journal_path)? {
        look_at_journal(&mut found, &file)?;
    }
    if found.pending() && found.journal.is_none() && found.damage.is_empty() {
        let path = found.journal_path.display();
        found.damage.push(format!(
            "{path}: the journal that the ledger asks for is not here"
        ));
    }
    Ok(found)
}

/// Size of an origin, and where its ledger and journal are or would be.
fn locate(image: &Path, place: Option<&Path>) -> Result<(u64, PathBuf, PathBuf)> {
    let uri = match Place::parse(image) {
        Ok(Place::File(_)) => None,
        Ok(Place::Nbd(uri)) => Some(uri),
        Err(why) => return Err(Error::usage(format!("origin {why}; {}", uri::RIGHT))),
    };
    let in_place = |place: &Path, identity: &Path| -> Result<(PathBuf, PathBuf)> {
        let path = |ending| {
            let path = beside::in_place(place, identity, ending);
            path.map_err(|fault| Error::usage(fault.message))
        };
        Ok((path(beside::LEDGER)?, path(beside::JOURNAL)?))
    };
    if let Some(uri) = uri {
        let place = place.ok_or_else(|| {
            let message = format!("origin {uri}: nothing lies beside it; say where by --journal");
            Error::usage(message)
        })?;
        let client = Client::connect(&uri);
        let client = client.map_err(|why| Error::failed(format!("origin {uri}: {why}")))?;
        let bytes = client.export().size_bytes;
        client.goodbye();
        let (ledger, journal) = in_place(place, Path::new(&uri.identity()))?;
        return Ok((bytes, ledger, journal));
    }
    let real = image
        .canonicalize()
        .map_err(|error| unreadable(image, &error))?;
    let bytes = size_of(image).map_err(|error| unreadable(image, &error))?;
    let device = real.metadata().is_ok_and(|meta| !meta.is_file());
    let (ledger, journal) = match place {
        Some(place) => in_place(place, if device { image } else { &real })?,
        None => (
            beside::beside(&real, beside::LEDGER),
            beside::beside(&real, beside::JOURNAL),
        ),
    };
    // In a cluster each owner has its own.
    if let Some(pointer) = pointer::read(&ledger) {
        let epoch = pointer::epoch(&pointer, &ledger);
        let epoch = epoch.map_err(|fault| Error::failed(fault.message))?;
        let of = |path: &Path| match epoch {
            Some(epoch) => PathBuf::from(beside::of_epoch(&path.display().to_string(), epoch)),
            None => beside::beside(path, "-0"),
        };
        return Ok((bytes, of(&ledger), of(&journal)));
    }
    Ok((bytes, ledger, journal))
}

fn look_at_journal(found: &mut Beside, file: &File) -> Result<()> {
    let path = found.journal_path.clone();
    let bytes = file
        .metadata()
        .map_err(|error| unreadable(&path, &error))?
        .len();
    found.journal_bytes = Some(bytes);
    if bytes == 0 {
        return Ok(());
    }
    match read_journal(file).map_err(|error| unreadable(&path, &error))? {
        Ok(journal) => {
            let wrong = wrong_payload(file, &journal).map_err(|error| unreadable(&path, &error))?;
            // A torn journal that no ledger asks for is what a kill leaves behind: no damage.
            if let Some(entry) = wrong.filter(|_| found.pending()) {
                found.damage.push(format!(
                    "{}: payload of entry {entry} does not match its checksum",
                    path.display()
                ));
            }
            found.journal = Some(journal);
        }
        Err(error) if found.pending() => {
            found
                .damage
                .push(format!("{}: journal {error}", path.display()));
        }
        Err(_) => {}
    }
    Ok(())
}

fn read_journal(file: &File) -> std::io::Result<std::result::Result<Journal, FormatError>> {
    let mut bytes = vec![0; journal::HEADER_BYTES];
    if !read_exactly(file, &mut bytes, 0)? {
        return Ok(Err(FormatError::Short));
    }
    let entries = match Journal::parse_entries(&bytes) {
        Ok(entries) => entries,
        Err(error) => return Ok(Err(error)),
    };
    // The table must be in the file before memory is spent on it.
    let length = journal::payload_at(entries);
    if file.metadata()?.len() < length {
        return Ok(Err(FormatError::Short));
    }
    bytes.resize(length as usize, 0);
    file.read_exact_at(&mut bytes, 0)?;
    Ok(Journal::parse(&bytes))
}

/// The first entry whose payload is not what its checksum says.
fn wrong_payload(file: &File, journal: &Journal) -> std::io::Result<Option<usize>> {
    let mut piece = vec![0; PIECE_BYTES];
    for (index, entry) in journal.entries.iter().enumerate() {
        if entry.kind != EntryKind::Write {
            continue;
        }
        let bytes = entry.span.sectors * SECTOR_BYTES;
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        let mut at = 0;
        while at < bytes {
            let part = &mut piece[..(bytes - at).min(PIECE_BYTES as u64) as usize];
            if !read_exactly(file, part, entry.offset + at)? {
                return Ok(Some(index));
            }
            digest.update(part);
            at += part.len() as u64;
        }
        if digest.finalize() as u32 != entry.checksum {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

/// False where the file ends before.
fn read_exactly(file: &File, bytes: &mut [u8], at: u64) -> std::io::Result<bool> {
    match file.read_exact_at(bytes, at) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn size_of(path: &Path) -> std::io::Result<u64> {
    File::open(path)?.seek(SeekFrom::End(0))
}

fn open(path: &Path) -> Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(path, &error)),
    }
}

pub fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::NotFound => Kind::NotFound,
        _ => Kind::Failed,
    };
    let path = path.display().to_string();
    let message = format!(
        "{path}: {}; name a file that exists and can be read",
        cause(error)
    );
    Error::new(kind, message).about(path)
}

/// The document of `origin inspect --json`.
pub fn beside_json(found: &Beside) -> Value {
    json!({
        "image": found.image.display().to_string(),
        "size_bytes": found.image_bytes,
        "ledger_path": found.ledger_path.display().to_string(),
        "ledger": found.ledger.as_ref().map(ledger_json),
        "journal_path": found.journal_path.display().to_string(),
        "journal_bytes": found.journal_bytes,
        "journal": found.journal.as_ref().map(|journal| json!({
            "volume": journal.volume.to_string(),
            "generation": journal.generation.0,
            "sequence": journal.sequence,
            "upto_serial": journal.upto.0,
            "entries": journal.entries.len(),
            "total_bytes": journal.total_bytes,
        })),
        "journal_pending": found.pending(),
        "damage": found.damage,
    })
}

fn ledger_json(ledger: &Ledger) -> Value {
    let (state, upto) = match ledger.progress {
        Progress::Idle => ("idle", None),
        Progress::Prepare => ("prepare", None),
        Progress::Cut(upto) => ("cut", Some(upto.0)),
        Progress::Apply { upto, .. } => ("apply", Some(upto.0)),
    };
    json!({
        "sequence": ledger.sequence,
        "volume": ledger.volume.to_string(),
        "cache": ledger.cache.to_string(),
        "owner": ledger.owner,
        "machine": ledger.machine.to_string(),
        "boot": ledger.boot.to_string(),
        "generation": ledger.generation.0,
        "destaged_serial": ledger.destaged.0,
        "progress": state,
        "progress_upto_serial": upto,
        "dirty": ledger.dirty,
        "origin_bytes": ledger.origin_bytes,
    })
}

/// Why there is no cache.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoCache(FormatError);

impl NoCache {
    pub fn kind(&self) -> Kind {
        match self.0 {
            FormatError::Checksum | FormatError::Reserved | FormatError::Field(_) => Kind::Damaged,
            _ => Kind::Usage,
        }
    }

    /// Nothing says that it was ever ours.
    pub fn is_foreign(&self) -> bool {
        self.0 == FormatError::Magic
    }
}

type Found = std::result::Result<Superblock, NoCache>;

/// The superblock of an open cache; either of the two copies will do.
pub fn superblock(target: &Target) -> Result<Found> {
    let mut head = vec![0; SUPERBLOCK_BYTES * SUPERBLOCK_AT.len()];
    target
        .read(0, &mut head)
        .map_err(|_| Error::failed(format!("{}: cannot be read", target.name())))?;
    Ok(parse_superblock(&head))
}

/// The superblock of a cache that somebody may use at the same time.
pub fn superblock_at(path: &Path) -> Result<Found> {
    let mut head = Vec::new();
    let limit = (SUPERBLOCK_BYTES * SUPERBLOCK_AT.len()) as u64;
    File::open(path)
        .and_then(|file| file.take(limit).read_to_end(&mut head))
        .map_err(|error| unreadable(path, &error))?;
    head.resize(limit as usize, 0);
    Ok(parse_superblock(&head))
}

fn parse_superblock(head: &[u8]) -> Found {
    let mut copies = head.chunks(SUPERBLOCK_BYTES).map(Superblock::parse);
    let first = copies.next().expect("there are two copies");
    match (first, copies.next().expect("there are two copies")) {
        (Err(error @ FormatError::Incompatible(_)), _) => Err(NoCache(error)),
        (Ok(superblock), _) | (Err(_), Ok(superblock)) => Ok(superblock),
        // What says that it is a cache counts, also where the other copy has lost that.
        (Err(FormatError::Magic), Err(error)) | (Err(error), Err(_)) => Err(NoCache(error)),
    }
}

pub fn superblock_json(path: &Path, superblock: &Superblock, in_use: Option<&str>) -> Value {
    let geometry = superblock.geometry;
    json!({
        "path": path.display().to_string(),
        "uuid": superblock.cache.to_string(),
        "shard": superblock.shard,
        "size_bytes": superblock.device_bytes(),
        "log_bytes": geometry.log_bytes(),
        "segments": geometry.segments,
        "segment_bytes": geometry.segment_bytes(),
        "volumes_max": superblock.volumes_max,
        "inline_records": superblock.inline_records,
        "in_use": in_use,
        "recovery": null,
        "volumes": null,
    })
}

/// A volume as a cache knows it.
pub fn volume_json(volume: &VolumeSnapshot) -> Value {
    json!({
        "name": volume.name,
        "uuid": volume.uuid.to_string(),
        "origin": volume.origin,
        "policy": volume.policy.name(),
        "size_bytes": volume.size_bytes,
        "dirty_bytes": volume.dirty_bytes,
        "dirty_writes": volume.dirty_writes,
        "acked_serial": volume.acked_serial.0,
        "durable_serial": volume.durable_serial.0,
        "destaged_serial": volume.destaged_serial.0,
        "generation": volume.generation.0,
    })
}
