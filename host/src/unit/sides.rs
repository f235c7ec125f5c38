//! What lies beside the image of a clustered volume: the pointer to its records, and ledger and
//! journal of each epoch.
//!
//! ```text
//! IMAGE.tenuto                    the pointer: cluster and unit; never changes
//! IMAGE.tenuto.d/                 records, where the vault is `beside`
//! IMAGE.tenuto-EPOCH-NONCE        ledger of an epoch, and its journal
//! IMAGE.tenuto-journal-EPOCH-NONCE
//! ```
//!
//! Always true: ledger and journal of a new epoch are whole and synced before a record names them,
//! and those of the epoch before are only read, by a host that knows that no host writes them any
//! more; a ledger of before the cluster goes into the first epoch, and is replaced by the pointer
//! last. Deliberately absent: who may do this.

use crate::error::cause;
use crate::lock::{self, Mode, Patience};
use crate::origin::beside::{self, JOURNAL, LEDGER};
use crate::origin::written;
use crate::unit::copies::CopyPlace;
use crate::vault::{Records, Vault};
use engine::format::ledger::{Ledger, Progress};
use engine::types::Uuid;
use node::peers::PeerTimeout;
use node::record::{Epoch, Holder, Pointer, RECORD_BYTES, Record};
use node::unit::{Alone, Unit};
use node::vault::{Cas, Outcome, hex};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What a host is in its cluster.
#[derive(Clone, Debug)]
pub struct Membership {
    pub cluster: Uuid,
    /// For people.
    pub name: String,
    /// What fails together with this host; empty: itself only.
    pub domain: String,
    /// Where copies go of volumes that say nothing.
    pub place: CopyPlace,
    pub peer_timeout: PeerTimeout,
    pub vault: Vault,
    /// A program that is called with the name of a host, and ends with 0 when that host can write
    /// no more.
    pub fence: Option<PathBuf>,
    pub me: Holder,
    /// It acts for a host that is gone, without links, and goes by this for each unit: see
    /// [`Unit::alone`].
    pub alone: Option<BTreeMap<Uuid, Alone>>,
}

/// The paths of one unit.
#[derive(Clone, Debug)]
pub struct Sides {
    /// As it is found in the end: two names of one image are one unit.
    image: PathBuf,
    /// A directory for ledgers and journals, if not beside the image.
    place: Option<PathBuf>,
}

/// A unit that was found or made.
pub struct Found {
    pub unit: Uuid,
    pub records: Records,
}

fn failed(path: &Path, what: &str, error: &io::Error) -> String {
    format!("{}: cannot {what}: {}", path.display(), cause(error))
}

impl Membership {
    /// The machine of a unit on this host.
    pub fn unit(&self, unit: Uuid, remembered: Option<(Record, bool)>) -> Unit {
        let machine = Unit::new(self.cluster, unit, self.me.clone(), remembered);
        match &self.alone {
            Some(units) => machine.alone(units.get(&unit).copied().unwrap_or_default()),
            None => machine,
        }
    }

    /// The copy that this cache has of a unit whose members are lost.
    pub fn stands_in_by(&self, unit: Uuid) -> Option<Uuid> {
        self.alone.as_ref()?.get(&unit)?.copy
    }
}

impl Sides {
    pub fn of(origin: &Path, place: Option<&Path>) -> Result<Sides, String> {
        let image = fs::canonicalize(origin).map_err(|error| failed(origin, "open it", &error))?;
        let file = fs::metadata(&image).is_ok_and(|meta| meta.is_file());
        if !file {
            let name = image.display();
            return Err(format!(
                "{name}: is no file; start the daemon again to serve it alone"
            ));
        }
        Ok(Sides {
            image,
            place: place.map(Path::to_owned),
        })
    }

    fn path(&self, ending: &str) -> Result<PathBuf, String> {
        match &self.place {
            Some(place) => {
                beside::in_place(place, &self.image, ending).map_err(|it| it.to_string())
            }
            None => Ok(beside::beside(&self.image, ending)),
        }
    }

    fn of_epoch(&self, epoch: Epoch) -> Result<(PathBuf, PathBuf), String> {
        let ledger = self.path(&beside::of_epoch(LEDGER, epoch))?;
        Ok((ledger, self.path(&beside::of_epoch(JOURNAL, epoch))?))
    }

    /// Where the records of a unit are, which may not have been made.
    fn records(&self, member: &Membership, unit: Uuid) -> Result<Records, String> {
        let beside = self.path(beside::RECORDS)?;
        Ok(Records::of(&member.vault, member.cluster, unit, beside))
    }

    /// The unit of this image; it is made if there is none.
    pub fn find(&self, member: &Membership, fresh: &dyn Fn() -> Uuid) -> Result<Found, String> {
        let path = self.path(LEDGER)?;
        for _ in 0..2 {
            if let Some(pointer) = self.pointer(&path, member)? {
                let unit = pointer.unit;
                let records = self.records(member, unit)?;
                records.find()?;
                return Ok(Found { unit, records });
            }
            match written::read_ledger(&path) {
                Some(ledger) => self.take_over(&path, &ledger, member, fresh)?,
                None if is_blank(&path) => self.replace_blank(&path, member, fresh)?,
                // Or another host has just made it.
                None => self.put_pointer(&path, fresh(), member, fresh, false)?,
            }
        }
        Err(failed(&path, "make it", &io::ErrorKind::NotFound.into()))
    }

    /// The pointer that is there, if it is one of this cluster and image.
    fn pointer(&self, path: &Path, member: &Membership) -> Result<Option<Pointer>, String> {
        let mut bytes = Vec::new();
        let read = File::open(path)
            .and_then(|file| file.take(RECORD_BYTES as u64).read_to_end(&mut bytes));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| failed(path, "read it", &error))?,
        };
        let Ok(pointer) = Pointer::parse(&bytes) else {
            return Ok(None);
        };
        if pointer.cluster != member.cluster {
            return Err(format!(
                "{}: belongs to another cluster; serve the image there",
                path.display()
            ));
        }
        if !member.vault.is_as(&pointer.vault) {
            let vault = member.vault.show();
            return Err(format!(
                "{}: the records of the volume are in the vault {:?}, and this host has {vault:?}; \
                 all hosts have one vault",
                path.display(),
                pointer.vault
            ));
        }
        if pointer.inode != 0 && pointer.inode != self.inode()? {
            return Err(format!(
                "{}: was made for another file than {}; if the image is a copy or was put back, \
                 remove {} and its records",
                path.display(),
                self.image.display(),
                path.display()
            ));
        }
        Ok(Some(pointer))
    }

    /// A ledger that was never written is replaced under the lock of the image, so that one of two
    /// hosts does it.
    fn replace_blank(
        &self,
        path: &Path,
        member: &Membership,
        fresh: &dyn Fn() -> Uuid,
    ) -> Result<(), String> {
        let _locked = self.lock()?;
        match is_blank(path) {
            true => self.put_pointer(path, fresh(), member, fresh, true),
            false => Ok(()),
        }
    }

    /// No daemon serves the image, and none begins meanwhile.
    fn lock(&self) -> Result<File, String> {
        let image = OpenOptions::new().read(true).write(true).open(&self.image);
        let image = image.map_err(|error| failed(&self.image, "open it", &error))?;
        let shown = self.image.display().to_string();
        let locked = lock::acquire(&image, &shown, Mode::Exclusive, &mut Patience::none());
        locked.map_err(|fault| fault.to_string())?;
        Ok(image)
    }

    /// No description of a daemon of this host carries its lock any more, so what such a daemon had
    /// under way has landed.
    pub fn has_no_writer(&self) -> Result<(), String> {
        self.lock().map(drop)
    }

    fn inode(&self) -> Result<u64, String> {
        let meta = fs::metadata(&self.image);
        let meta = meta.map_err(|error| failed(&self.image, "look at it", &error))?;
        Ok(meta.ino())
    }

    /// Makes the pointer to a unit. `replace`: over a ledger, which the caller has taken.
    fn put_pointer(
        &self,
        path: &Path,
        unit: Uuid,
        member: &Membership,
        fresh: &dyn Fn() -> Uuid,
        replace: bool,
    ) -> Result<(), String> {
        self.records(member, unit)?.make()?;
        let pointer = Pointer {
            cluster: member.cluster,
            unit,
            inode: self.inode()?,
            vault: member.vault.show(),
        };
        let ours = self.path(&format!("{LEDGER}-new-{}", hex(fresh())))?;
        let made = self.write(&ours, &pointer.encode()).and_then(|()| {
            if replace {
                return fs::rename(&ours, path);
            }
            // Another host may have made it: the name tells, and not the answer.
            let _ = fs::hard_link(&ours, path);
            fs::remove_file(&ours)
        });
        made.map_err(|error| failed(path, "make it", &error))?;
        sync(path)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mode = fs::metadata(&self.image)?.mode() & 0o666 | 0o600;
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    /// Takes what a daemon has left that knew no cluster: its ledger becomes that of the first
    /// epoch, of the host that has its dirty data.
    fn take_over(
        &self,
        path: &Path,
        ledger: &Ledger,
        member: &Membership,
        fresh: &dyn Fn() -> Uuid,
    ) -> Result<(), String> {
        let name = path.display();
        let ours = ledger.cache == member.me.cache;
        if ledger.dirty && !ours {
            let owner = &ledger.owner;
            return Err(format!(
                "{name}: {owner} has dirty data of before the cluster; start it first"
            ));
        }
        let _locked = self.lock()?;
        if written::read_ledger(path).as_ref() != Some(ledger) {
            return Err(format!("{name}: is written by another program; try again"));
        }
        let unit = fresh();
        let epoch = Epoch {
            number: 1,
            nonce: fresh(),
        };
        let journal = self.path(JOURNAL)?;
        self.copy(path, &journal, ledger, (epoch, false))?;
        let record = Record {
            cluster: member.cluster,
            unit,
            number: 1,
            nonce: fresh(),
            before: Uuid::NIL,
            owner: ledger.dirty.then(|| member.me.clone()),
            epoch,
            drainer: None,
            given: 0,
            wanted: 0,
            degraded: None,
            at_origin: false,
            quiesced: false,
            members: Vec::new(),
        };
        let records = self.records(member, unit)?;
        records.make()?;
        match records.decide(Cas::new(record), &|| true) {
            Some(Outcome::Won(_)) => {}
            _ => {
                let place = records.show();
                return Err(format!(
                    "{place}: the first record cannot be made; try again"
                ));
            }
        }
        self.put_pointer(path, unit, member, fresh, true)?;
        let _ = fs::remove_file(journal);
        Ok(())
    }

    /// Makes ledger and journal of an epoch as those of the one before are.
    /// `whole`: the owner before has promised nothing that the origin lacks.
    pub fn prepare(&self, of: Option<Epoch>, epoch: Epoch, whole: bool) -> Result<(), String> {
        let (to, _) = self.of_epoch(epoch)?;
        let blank = || {
            let made = self.write(&to, &[]);
            made.map_err(|error| failed(&to, "make it", &error))?;
            sync(&to)
        };
        let Some(of) = of else {
            return blank();
        };
        let (ledger_path, journal) = self.of_epoch(of)?;
        match written::read_ledger(&ledger_path) {
            Some(ledger) => self.copy(&ledger_path, &journal, &ledger, (epoch, whole)),
            // Its owner has never written through the log.
            None if is_blank(&ledger_path) => blank(),
            None => {
                let name = ledger_path.display();
                Err(format!("{name}: is not there; it is waited for"))
            }
        }
    }

    fn copy(
        &self,
        ledger_path: &Path,
        journal: &Path,
        ledger: &Ledger,
        (epoch, whole): (Epoch, bool),
    ) -> Result<(), String> {
        let (to_ledger, to_journal) = self.of_epoch(epoch)?;
        let pending = matches!(ledger.progress, Progress::Apply { .. });
        let copy = |from: &Path, to: &Path| -> io::Result<()> {
            let mut source = File::open(from)?;
            self.write(to, &[])?;
            let mut target = OpenOptions::new().write(true).open(to)?;
            io::copy(&mut source, &mut target)?;
            target.sync_all()
        };
        if pending {
            copy(journal, &to_journal).map_err(|error| failed(&to_journal, "make it", &error))?;
        }
        copy(ledger_path, &to_ledger).map_err(|error| failed(&to_ledger, "make it", &error))?;
        if whole {
            let mut settled = ledger.clone();
            settled.accept_loss();
            settled.sequence += 1;
            let written = write_newest(&to_ledger, &settled);
            written.map_err(|error| failed(&to_ledger, "make it", &error))?;
        }
        sync(&to_ledger)
    }

    /// Whether the ledger of this epoch says that this cache has what is not at the origin.
    pub fn owes_to(&self, cache: Uuid, epoch: Epoch) -> bool {
        let ledger = self.of_epoch(epoch).ok();
        let ledger = ledger.and_then(|(ledger, _)| written::read_ledger(&ledger));
        ledger.is_some_and(|ledger| ledger.dirty && ledger.cache == cache)
    }

    /// Whether another host could go on only without what the owner of this epoch may have. What
    /// cannot be read says so too.
    pub fn owes(&self, epoch: Epoch) -> bool {
        let Ok((path, _)) = self.of_epoch(epoch) else {
            return true;
        };
        match written::read_ledger(&path) {
            Some(ledger) => ledger.dirty,
            None => !is_blank(&path),
        }
    }

    /// Removes ledger and journal of an epoch that no record names, or whose successor is in use.
    pub fn remove(&self, epoch: Epoch) {
        if let Ok((ledger, journal)) = self.of_epoch(epoch) {
            let _ = fs::remove_file(journal);
            let _ = fs::remove_file(ledger);
        }
    }

    /// Removes what epochs before this one have left. The journal goes first: a journal without
    /// its ledger could belong to any.
    pub fn remove_before(&self, epoch: Epoch) {
        let Ok(base) = self.path(LEDGER) else {
            return;
        };
        let (Some(place), Some(base)) = (base.parent(), base.file_name()) else {
            return;
        };
        let base = base.to_string_lossy().into_owned();
        let old = |name: &str| {
            let rest = name.strip_prefix(&base)?.strip_prefix('-')?;
            let (journal, rest) = match rest.strip_prefix("journal-") {
                Some(rest) => (true, rest),
                None => (false, rest),
            };
            let (number, _) = rest.split_once('-')?;
            let number: u64 = number.parse().ok()?;
            (number < epoch.number).then_some(!journal)
        };
        let names = fs::read_dir(place).into_iter().flatten().flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut found: Vec<_> = names.filter_map(|name| Some((old(&name)?, name))).collect();
        found.sort();
        for (_, name) in found {
            let _ = fs::remove_file(place.join(name));
        }
    }
}

/// Writes the slot that is newest from now on.
fn write_newest(path: &Path, ledger: &Ledger) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.write_all_at(&ledger.encode(), Ledger::slot_at(ledger.sequence))?;
    file.sync_all()
}

fn is_blank(path: &Path) -> bool {
    let bytes = fs::read(path);
    bytes.is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 0))
}

fn sync(path: &Path) -> Result<(), String> {
    crate::cachedev::sync_directory(path)
        .map_err(|error| failed(path, "sync its directory", &error))
}
