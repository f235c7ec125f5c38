//! Opening an export as the origin of a volume, and letting it go.
//!
//! Always true: before a writer touches the export it holds the lock of the ledger, and a *writer
//! file* beside that says so on stable media; the file is removed only after an end in order, with
//! nothing unanswered. So whoever finds it knows that writes of its maker may still land, and
//! waits for `origin-quiet` (rule 5.2.1), because a server gives no fence. Deliberately absent:
//! waiting.

use super::Export;
use super::client::Client;
use super::uri::Uri;
use crate::cachedev::sync_directory;
use crate::fault::{Fault, Kind};
use crate::lock::Patience;
use crate::origin::Format;
use crate::origin::beside::{self, in_place};
use crate::origin::file::{Access, OpenVolume, Origin, Request};
use crate::signature;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An open export.
#[derive(Debug)]
pub struct NbdOrigin {
    pub uri: Uri,
    /// Until the shard takes it.
    pub client: Option<Client>,
    /// How it was when it was opened; it may not change under the volume.
    pub export: Export,
    /// Opened for reading only.
    pub read_only: bool,
    /// How long writes of an unclean end may take to land.
    pub quiet: Duration,
    /// Writes of an earlier user may still land.
    pub unclean: bool,
    /// The writer file.
    pub writer: Option<PathBuf>,
}

impl NbdOrigin {
    pub fn name(&self) -> String {
        self.uri.to_string()
    }
}

/// Opens the export. Its ledger lies in the place for journals, else in that for ledgers, which is
/// this host's own.
pub fn open(uri: &Uri, request: &Request, patience: &mut Patience) -> Result<OpenVolume, Fault> {
    let name = format!("origin {uri}");
    let identity = PathBuf::from(uri.identity());
    let place = request.journal_place.as_ref();
    let ledgers = place.or(request.ledger_place.as_ref());
    let path = |place: Option<&PathBuf>, ending| {
        let path = place.map(|place| in_place(place, &identity, ending));
        path.transpose()
    };
    let write = request.access == Access::Write;
    let client = connect(uri, &name, write)?;
    let mut volume = OpenVolume {
        ledger_path: path(ledgers, beside::LEDGER)?,
        journal_path: path(place, beside::JOURNAL)?,
        origin: Origin::Nbd(Box::new(NbdOrigin {
            uri: uri.clone(),
            export: *client.export(),
            client: Some(client),
            read_only: !write,
            quiet: request.quiet,
            unclean: false,
            writer: None,
        })),
        mapped: None,
        below: 0,
        ledger: None,
        journal: None,
        san: None,
    };
    volume.ledger = volume.side(volume.ledger_path.as_deref(), write, patience)?;
    volume.journal = volume.side(volume.journal_path.as_deref(), request.create, patience)?;
    let writer = path(ledgers, beside::WRITER)?.filter(|_| write);
    let origin = volume.origin.nbd_mut().expect("was just made");
    if request.format != Format::Raw {
        let client = origin.client.as_mut().expect("was just made");
        refuse_other_formats(client, &name)?;
    }
    // The first use of a place finds no file; without a place nobody can know.
    origin.unclean = write;
    if let Some(writer) = writer {
        let made = make(&writer);
        let object = writer.display().to_string();
        origin.unclean = !made.map_err(|error| Fault::io(&object, "make it", error))?;
        origin.writer = Some(writer);
    }
    Ok(volume)
}

fn connect(uri: &Uri, name: &str, write: bool) -> Result<Client, Fault> {
    let invalid = |why: &str| Fault::new(Kind::Invalid, format!("{name}: {why}"));
    let client = Client::connect(uri).map_err(|why| {
        let message = format!("{name}: {why}; it must be an export that can be reached");
        Fault::new(Kind::Io, message)
    })?;
    let export = client.export();
    if write && export.read_only {
        return Err(invalid(
            "the server exports it for reading only; export it for writing, or make the volume \
             ephemeral or read-only",
        ));
    }
    if write && !export.flush {
        return Err(invalid(
            "the server offers no flush, so nothing could be made durable there; use a server \
             that does",
        ));
    }
    Ok(client)
}

fn refuse_other_formats(client: &mut Client, name: &str) -> Result<(), Fault> {
    let mut head = [0u8; signature::HEAD_BYTES];
    let read = client.read(0, &mut head);
    read.map_err(|_| Fault::new(Kind::Io, format!("{name}: its first bytes cannot be read")))?;
    let Some(format) = signature::image_format(&head) else {
        return Ok(());
    };
    let message = format!(
        "{name}: its first bytes look like {format}; let the server export the raw disk, or say \
         format = \"raw\" if it is a guest's own data"
    );
    Err(Fault::new(Kind::Foreign, message))
}

/// Makes the writer file, durably. False if it was there.
fn make(path: &Path) -> io::Result<bool> {
    let made = match File::create_new(path) {
        Ok(file) => file.sync_all().map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }?;
    sync_directory(path)?;
    Ok(made)
}

/// What is left of an origin whose last connection has ended in order.
#[derive(Debug, Default)]
pub struct Leavings {
    /// Held until all is done, so that nobody comes in between.
    pub files: Option<OpenVolume>,
    pub writer: Option<PathBuf>,
}

impl Leavings {
    /// What `files` leave when nothing of them is in use and they are not `unclean` any more.
    pub fn of(mut files: OpenVolume) -> Leavings {
        let Some(origin) = files.origin.nbd_mut() else {
            return Leavings::default();
        };
        if let Some(client) = origin.client.take() {
            client.goodbye();
        }
        let writer = origin.writer.take().filter(|_| !origin.unclean);
        Leavings {
            writer,
            files: Some(files),
        }
    }

    /// The same where the shard has waited for all that may land.
    pub fn of_clean(mut files: OpenVolume) -> Leavings {
        if let Some(origin) = files.origin.nbd_mut() {
            origin.unclean = false;
        }
        Leavings::of(files)
    }

    /// Removes the writer file, and a ledger that was only a lock. Blocks.
    pub fn remove(self) {
        let ledger = self.files.as_ref().and_then(|files| files.ledger.as_ref());
        let empty = ledger.filter(|ledger| {
            let meta = ledger.file.metadata();
            meta.is_ok_and(|meta| meta.len() == 0)
        });
        let ledger = empty.map(|ledger| ledger.path.clone());
        for path in [self.writer, ledger].into_iter().flatten() {
            let removed = match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => sync_directory(&path),
            };
            if let Err(error) = removed {
                // The next start waits once more than it had to.
                tracing::warn!("{}: cannot remove it: {error}", path.display());
            }
        }
    }
}
