//! Which qcow2 images are written, and what is looked at before one is.
//!
//! Always true: what is refused was not changed; each refusal says what makes the image one that is
//! written. The guard bit of an image says that a journal was being applied to it: it is cleared
//! only where the ledger beside it says that nothing is pending, and that it is the ledger of an
//! image of a format, because the same bytes may be a guest's own data on a raw disk. Deliberately
//! absent: opening, and what is written.

use super::chain::{Link, name_of};
use super::{Format, beside};
use crate::error::cause;
use crate::fault::{Fault, Kind};
use crate::signature;
use crate::target::Target;
use ::image::header::{self, EXTERNAL_DATA, GUARD, Header};
use engine::event::IoError;
use engine::format::ledger::{LEDGER_BYTES, LEDGER_SLOTS, Ledger, Progress};
use engine::image::{Finding, Image, Marked, Named, compare};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Smaller clusters are less than a block of the cache.
const CLUSTER_BYTES_MIN: u64 = 4096;
/// The incompatible features in the header, big-endian.
const INCOMPATIBLE_AT: usize = 72;
const SECTOR_BYTES: usize = 512;

/// Why an image is not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Behind the name of the image.
    pub what: String,
    pub right: String,
    /// A later version writes it.
    pub later: bool,
}

impl Refused {
    fn now(what: impl Into<String>, right: String) -> Refused {
        Refused {
            what: what.into(),
            right,
            later: false,
        }
    }

    fn later(what: impl Into<String>, right: String) -> Refused {
        Refused {
            later: true,
            ..Refused::now(what, right)
        }
    }

    pub fn fault(self, image: &Path) -> Fault {
        let later = match self.later {
            true => " not in this version",
            false => "",
        };
        let message = format!("{}: {}{later}; {}", name_of(image), self.what, self.right);
        Fault::new(Kind::Invalid, message)
    }
}

/// Whether an image is written as qcow2, by its header.
pub fn refusal(header: &Header, image: &Path) -> Result<(), Refused> {
    let image = image.display();
    let repair = format!("repair it with `qemu-img check -r all {image}`");
    let convert = |how: &str| format!("copy it with `qemu-img convert -O qcow2 {how}{image} COPY`");
    if header.is_readable().is_err() {
        let what = match header.incompatible & EXTERNAL_DATA != 0 {
            true => "keeps its data in an external file, and to write that is",
            false => "is encrypted, and to write that is",
        };
        return Err(Refused::later(what, convert("")));
    }
    if header.version < 3 {
        let right = format!("make it version 3 with `qemu-img amend -o compat=1.1 {image}`");
        return Err(Refused::later(
            "is qcow2 version 2, and to write that is",
            right,
        ));
    }
    if header.is_corrupt() {
        return Err(Refused::now("is marked corrupt", repair));
    }
    if header.is_dirty() {
        return Err(Refused::now(
            "is marked dirty: its refcounts may be wrong",
            repair,
        ));
    }
    if header
        .bitmaps
        .as_ref()
        .is_some_and(|bitmaps| bitmaps.count > 0)
    {
        let right = format!(
            "serve it with read-only = true or policy = \"ephemeral\", or remove them with \
             `qemu-img bitmap --remove {image} BITMAP`"
        );
        let what = "has dirty bitmaps, which would become invalid and the next backup a full one";
        return Err(Refused::now(what, right));
    }
    if header.cluster_bytes() < CLUSTER_BYTES_MIN {
        let bytes = header.cluster_bytes();
        let what = format!("has clusters of {bytes} bytes, and to write less than 4 KiB is");
        return Err(Refused::later(what, convert("-o cluster_size=64k ")));
    }
    // What else there may be.
    header.is_writable().map_err(|why| {
        let right = "serve it with read-only = true or policy = \"ephemeral\"";
        Refused::now(why.to_string(), right.into())
    })
}

/// A device has no end to append to.
pub fn refuse_device() -> Refused {
    Refused::later(
        "is a block device with a qcow2 image, and to write that is",
        "serve it with read-only = true or policy = \"ephemeral\"".into(),
    )
}

/// What the image of a volume is that only a log knows, by its ledger; without one by its size: the
/// disk of a raw image is as long as its file. One of qcow2 may have grown since the log was told.
pub fn format_in_log(image: &Path, size_bytes: u64, ledger: Option<&Ledger>) -> Format {
    let is_qcow2 = match ledger {
        Some(ledger) => !is_of_raw(ledger),
        None => {
            // The length of a device is another one than that of its node, and none is written.
            let length = std::fs::metadata(image).ok().filter(|it| it.is_file());
            let header = look(image).ok();
            let other = length.is_some_and(|meta| meta.len() != size_bytes);
            other && header.is_some_and(|header| header.size_bytes >= size_bytes)
        }
    };
    match is_qcow2 {
        true => Format::Qcow2,
        false => Format::Raw,
    }
}

/// The ledger beside an image, where there is one that can be read.
pub fn ledger_beside(image: &Path) -> Option<Ledger> {
    let path = std::fs::canonicalize(image).ok()?;
    read_ledger(&beside::beside(&path, beside::LEDGER))
}

/// The header of a file that no lock keeps as it is: a look before it is opened in earnest. The
/// text says what is wrong with it.
pub fn look(path: &Path) -> Result<Header, String> {
    let failed = |error: io::Error| cause(&error);
    let mut file = File::open(path).map_err(failed)?;
    let length = file.seek(SeekFrom::End(0)).map_err(failed)?;
    let read = |wanted: usize| {
        let mut bytes = vec![0; length.min(wanted as u64) as usize];
        file.read_exact_at(&mut bytes, 0).map(|()| bytes)
    };
    let wrong = |why: ::image::Error| why.to_string();
    let head = read(header::HEAD_BYTES).map_err(failed)?;
    let wanted = header::bytes_wanted(&head).map_err(wrong)?;
    let cluster = read(wanted).map_err(failed)?;
    Header::parse(&cluster, length).map_err(wrong)
}

/// What is written in a ledger file; `None` where it is blank or cannot be told.
pub fn ledger_in(file: &Target) -> Option<Ledger> {
    let mut bytes = vec![0; LEDGER_BYTES * LEDGER_SLOTS as usize];
    file.read(0, &mut bytes).ok()?;
    Ledger::parse_file(&bytes).ok().flatten()
}

/// A ledger of an image whose bytes are the guest's.
pub fn is_of_raw(ledger: &Ledger) -> bool {
    ledger.image.below == 0
}

/// A guest can write the header of a qcow2 image, with the name of any file below it, into its raw
/// disk.
pub fn refuse_guess(image: &Path) -> Fault {
    let message = format!(
        "{}: its first bytes look like qcow2, and it was written as a raw image before; say format \
         = \"raw\" if a guest wrote them, or format = \"qcow2\" if you made it anew",
        name_of(image)
    );
    Fault::new(Kind::Foreign, message)
}

/// An image under a guard is torn, unless the ledger beside it tells how it goes on: that of this
/// very file, because a copy that was taken while a journal was applied is torn whatever the ledger
/// of another one says.
pub fn check_guard(
    header: &Header,
    path: &Path,
    ledger: Option<&Ledger>,
    image: &Image,
) -> Result<(), Fault> {
    let is_of = |ledger: &Ledger| {
        let known = ledger.image.written();
        known.is_unknown() || compare(&known, Some(image), Named::Unknown) != Finding::Replaced
    };
    if !header.is_guarded() || ledger.is_some_and(is_of) {
        return Ok(());
    }
    Err(torn(path))
}

/// An image under a guard without the ledger that says what is pending.
pub fn torn(path: &Path) -> Fault {
    let message = format!(
        "{}: a destage of it was cut short, and the ledger that belongs to it is not beside it; \
         restore it with its ledger and its journal, or take another copy of it",
        name_of(path)
    );
    Fault::new(Kind::Invalid, message)
}

/// Every file below is as its last writer left it, and that writer owes it nothing.
/// Their ledgers lie beside them, or in `journal`.
pub fn check_below(links: &[Link], journal: Option<&Path>) -> Result<(), Fault> {
    for pair in links.windows(2) {
        check_backing(&pair[0], &pair[1], journal)?;
    }
    Ok(())
}

fn check_backing(above: &Link, link: &Link, journal: Option<&Path>) -> Result<(), Fault> {
    if link.target.block_device {
        return Ok(());
    }
    let (name, above) = (name_of(&link.path), name_of(&above.path));
    let refuse = |why: String| {
        let message = format!("{name}: is the backing of {above}, and {why}");
        Err(Fault::new(Kind::InUse, message))
    };
    let path = std::fs::canonicalize(&link.path).unwrap_or_else(|_| link.path.clone());
    let in_place = journal.and_then(|place| beside::in_place(place, &path, beside::LEDGER).ok());
    let ledger = in_place.as_deref().and_then(read_ledger);
    let journal = journal.filter(|_| ledger.is_some());
    let ledger = ledger.or_else(|| read_ledger(&beside::beside(&path, beside::LEDGER)));
    let place = journal.map_or(String::new(), |place| {
        format!(" --journal {}", place.display())
    });
    let replay = format!(
        "finish it with `tenuto origin replay {}{place}`",
        path.display()
    );
    let rests = ledger.as_ref().is_some_and(rests);
    if let Some(ledger) = &ledger {
        let owner = &ledger.owner;
        match ledger.progress {
            Progress::Apply { .. } => {
                return refuse(format!("{owner} did not end a destage of it; {replay}"));
            }
            Progress::Cut(_) => {
                return refuse(format!(
                    "{owner} did not end a destage of it; start tenuto there"
                ));
            }
            Progress::Idle | Progress::Prepare if ledger.dirty => {
                return refuse(format!(
                    "{owner} may hold data of it that it does not have; remove its volume there, \
                     or run `tenuto recover` on its cache"
                ));
            }
            Progress::Idle | Progress::Prepare => {}
        }
    }
    match &link.format {
        ::image::Format::Qcow2(header) if header.is_guarded() && !rests => {
            refuse(format!("a destage of it was cut short; {replay}"))
        }
        _ => Ok(()),
    }
}

/// What is written in the ledger file at this path.
pub fn read_ledger(path: &Path) -> Option<Ledger> {
    let mut bytes = Vec::new();
    let limit = LEDGER_BYTES as u64 * LEDGER_SLOTS;
    File::open(path)
        .ok()?
        .take(limit)
        .read_to_end(&mut bytes)
        .ok()?;
    Ledger::parse_file(&bytes).ok().flatten()
}

/// No journal is pending: the tables of the image are those of one state, whatever lies where
/// nothing in it refers to, or what a destage in place has written of its data.
fn rests(ledger: &Ledger) -> bool {
    match ledger.progress {
        Progress::Idle | Progress::Prepare | Progress::Cut(_) => true,
        Progress::Apply { .. } => false,
    }
}

/// Clears the guard of an image with this ledger, if that says that nothing is pending. True if it
/// was set; the image is synced then.
pub fn clear_guard(image: &Target, ledger: Option<&Ledger>) -> Result<bool, IoError> {
    // On a raw disk these bytes are a guest's own.
    if !ledger.is_some_and(|ledger| rests(ledger) && !is_of_raw(ledger)) {
        return Ok(false);
    }
    let Some((mut sector, bits)) = guarded(image)? else {
        return Ok(false);
    };
    sector[INCOMPATIBLE_AT..INCOMPATIBLE_AT + 8].copy_from_slice(&(bits & !GUARD).to_be_bytes());
    image.write(0, &sector)?;
    image.sync()?;
    Ok(true)
}

/// What an image says of the volume that has written it, and a number that changes with it.
pub fn marked(image: &Target) -> Result<(Marked, u64), IoError> {
    let mut sector = [0; SECTOR_BYTES];
    if image.size_bytes < SECTOR_BYTES as u64 {
        return Ok((Marked::Absent, 0));
    }
    image.read(0, &mut sector)?;
    let marked = engine::chain::marked(&sector);
    let print = match marked {
        Marked::By(mark) => mark.serial.0 ^ u64::from(mark.generation.0) << 40,
        Marked::Unknown | Marked::Absent => 0,
    };
    Ok((marked, print))
}

/// Whether an image is under a guard, by its first sector.
pub fn is_guarded(image: &Target) -> Result<bool, IoError> {
    guarded(image).map(|found| found.is_some())
}

/// The first sector of an image under a guard, and its incompatible features.
fn guarded(image: &Target) -> Result<Option<([u8; SECTOR_BYTES], u64)>, IoError> {
    let mut sector = [0; SECTOR_BYTES];
    if image.size_bytes < SECTOR_BYTES as u64 {
        return Ok(None);
    }
    image.read(0, &mut sector)?;
    let place = INCOMPATIBLE_AT..INCOMPATIBLE_AT + 8;
    let bits = u64::from_be_bytes(sector[place].try_into().expect("eight bytes"));
    let version = u32::from_be_bytes(sector[4..8].try_into().expect("four bytes"));
    let qcow2 = signature::image_format(&sector) == Some("qcow2") && version == 3;
    Ok((qcow2 && bits & GUARD != 0).then_some((sector, bits)))
}

#[cfg(test)]
#[path = "written_tests.rs"]
pub(super) mod tests;
