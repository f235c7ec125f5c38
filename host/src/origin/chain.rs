//! The files of a qcow2 image: opened from the top down, each under QEMU's image locks, and
//! read-only; a first file that is written was opened before.
//!
//! Owns what a name in a file may mean, and which files are followed. Always true: a relative name
//! is taken from the directory of the name under which its file was opened, before any link is
//! followed; a file is judged after it was opened, by what its descriptor says; nothing is opened
//! twice, and no more than 64 files. A guest can write a qcow2 header into a raw disk, so a format
//! that no file states is believed only where it leads nowhere else. Deliberately absent: writing,
//! and what the tables say.

use crate::fault::{Fault, Kind};
use crate::lock::{self, Mode, Patience};
use crate::signature;
use crate::sys;
use crate::target::{How, Target};
use image::header::{self, BackingName};
use image::limits::CHAIN_FILES_MAX;
use image::types::FileId;
use image::{Chain, File, Format, Header, error};
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A format that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stated {
    Raw,
    Qcow2,
}

/// What may be opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules<'a> {
    /// What the user says of the first file; else its first bytes decide.
    pub top: Option<Stated>,
    /// Directories below which every backing must lie; `None` for all.
    pub allow: Option<&'a [PathBuf]>,
}

/// One open file of a chain.
#[derive(Clone, Debug)]
pub struct Link {
    /// As it was reached: the name given, or one made of the directory and the name in a file.
    pub path: PathBuf,
    pub target: Arc<Target>,
    pub format: Format,
}

/// An image that can be read.
#[derive(Debug)]
pub struct Opened {
    pub chain: Chain,
    /// Of each file of the chain, in its order.
    pub links: Vec<Link>,
}

/// Opens a whole chain. Files have their place in the chain as [`FileId`]; a caller that keeps
/// several chains gives them numbers of its own by [`Chain::file_mut`].
pub fn open(path: &Path, rules: &Rules, patience: &mut Patience) -> Result<Opened, Fault> {
    let mut links = Vec::new();
    follow(path, rules, patience, &mut links)?;
    chain_of(links)
}

/// Makes a chain of files that [`follow`] has opened.
pub fn chain_of(links: Vec<Link>) -> Result<Opened, Fault> {
    let file = |(number, link): (usize, &Link)| File {
        id: FileId(number as u32),
        file_bytes: link.target.size_bytes,
        grows_to: None,
        format: link.format.clone(),
    };
    let files = links.iter().enumerate().map(file).collect();
    let chain = Chain::new(files);
    let name = links
        .first()
        .map_or_else(String::new, |it| name_of(&it.path));
    let chain = chain.map_err(|why| unreadable(&name, &why))?;
    Ok(Opened { chain, links })
}

/// Opens file after file into `links`. When it fails, `links` has those that were opened.
pub fn follow(
    path: &Path,
    rules: &Rules,
    patience: &mut Patience,
    links: &mut Vec<Link>,
) -> Result<(), Fault> {
    links.push(first(path, rules.top, patience)?);
    follow_below(rules, patience, links)
}

/// The same for what lies below a first file that is open.
pub fn follow_below(
    rules: &Rules,
    patience: &mut Patience,
    links: &mut Vec<Link>,
) -> Result<(), Fault> {
    while let Some(last) = links.last() {
        let Format::Qcow2(header) = &last.format else {
            break;
        };
        let above = name_of(&last.path);
        header
            .is_readable()
            .map_err(|why| unreadable(&above, &why))?;
        let Some(name) = &header.backing else {
            break;
        };
        let stated = header.backing_format.as_deref();
        let wanted = backing(&last.path, name, stated)?;
        if links.len() == CHAIN_FILES_MAX {
            let message = format!(
                "{above}: is file {CHAIN_FILES_MAX} of its chain and has a backing still; shorten \
                 it with `qemu-img rebase -b BASE -F FORMAT {}`",
                last.path.display()
            );
            return Err(Fault::new(Kind::Foreign, message));
        }
        let link = open_backing(&last.path, &wanted, rules, links, patience)?;
        links.push(link);
    }
    Ok(())
}

/// Where a file that lies here has its backing.
pub fn backing_of(path: &Path, header: &Header) -> Result<Option<PathBuf>, Fault> {
    let format = header.backing_format.as_deref();
    let found = header.backing.as_deref();
    let found = found.map(|name| backing(path, name, format)).transpose()?;
    Ok(found.map(|wanted| wanted.path))
}

/// Opens the first file of a chain alone.
pub fn first(path: &Path, top: Option<Stated>, patience: &mut Patience) -> Result<Link, Fault> {
    let target = open_file(path, patience)?;
    let name = name_of(path);
    let format = match top.or(probe(&target, &name)?) {
        None | Some(Stated::Raw) => Format::Raw,
        Some(Stated::Qcow2) => Format::Qcow2(qcow2(&target, &name)?),
    };
    Ok(Link {
        path: path.to_path_buf(),
        target: Arc::new(target),
        format,
    })
}

/// A backing that a file names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    path: PathBuf,
    stated: Option<Stated>,
}

/// Where the backing of the file at `above` lies, and what it is said to be.
fn backing(above: &Path, name: &str, format: Option<&str>) -> Result<Wanted, Fault> {
    let shown = name_of(above);
    let rebase = rebase(above);
    let foreign = |why: String| Err(Fault::new(Kind::Foreign, format!("{shown}: {why}")));
    let stated = match format {
        None | Some("") => None,
        Some("raw") => Some(Stated::Raw),
        Some("qcow2") => Some(Stated::Qcow2),
        Some(other) => {
            return foreign(format!(
                "says that its backing is {other:?}, which is not in this version; make a raw or \
                 qcow2 file of that with `qemu-img convert`, and name it with {rebase}"
            ));
        }
    };
    let path = match BackingName::of(name) {
        BackingName::Path("") => {
            return foreign(format!(
                "names no file as its backing; name one with {rebase}"
            ));
        }
        // QEMU takes such a name from where it was started, and a plain one from beside the file.
        BackingName::Path(path) if name.starts_with("file:") && !path.starts_with('/') => {
            return foreign(format!(
                "names its backing by file: with a relative name, which depends on where a program \
                 was started; name the file instead with {rebase}"
            ));
        }
        BackingName::Path(path) => beside(above, path),
        BackingName::Protocol(other) => {
            return foreign(format!(
                "has its backing behind {other}:, which is not in this version; copy it into a \
                 file and say so with {rebase}"
            ));
        }
        BackingName::Json(text) => {
            let (path, driver) = json_backing(text).map_err(|why| {
                let message = format!(
                    "{shown}: names its backing by json:, {why}; name the file instead with \
                     {rebase}"
                );
                Fault::new(Kind::Foreign, message)
            })?;
            return Ok(Wanted {
                path,
                stated: Some(driver),
            });
        }
    };
    Ok(Wanted { path, stated })
}

/// The command that gives the file at `above` another backing.
fn rebase(above: &Path) -> String {
    let above = above.display();
    format!("`qemu-img rebase -u -b FILE -F FORMAT {above}`")
}

/// A name as the file at `above` means it.
fn beside(above: &Path, name: &str) -> PathBuf {
    above.parent().unwrap_or(Path::new("")).join(name)
}

/// The file and its driver, where that is all that is said. Any other key could mean other bytes.
pub fn json_backing(text: &str) -> Result<(PathBuf, Stated), String> {
    let wrong = |key: &str| Err(format!("whose key {key:?} is not in this version"));
    let value: Value = serde_json::from_str(text).map_err(|_| "which is no JSON".to_owned())?;
    let Value::Object(object) = value else {
        return Err("which is no JSON object".into());
    };
    let (mut driver, mut filename, mut protocol) = (None, None, None);
    for (key, value) in &object {
        match (key.as_str(), value) {
            ("driver", Value::String(text)) => driver = Some(text.clone()),
            ("file.filename", Value::String(text)) => filename = Some(text.clone()),
            ("file.driver", Value::String(text)) => protocol = Some(text.clone()),
            ("file", Value::Object(inner)) => {
                for (key, value) in inner {
                    match (key.as_str(), value) {
                        ("filename", Value::String(text)) => filename = Some(text.clone()),
                        ("driver", Value::String(text)) => protocol = Some(text.clone()),
                        _ => return wrong(&format!("file.{key}")),
                    }
                }
            }
            _ => return wrong(key),
        }
    }
    if protocol.as_deref().is_some_and(|it| it != "file") {
        return wrong("file.driver");
    }
    let stated = match driver.as_deref() {
        Some("qcow2") => Stated::Qcow2,
        Some("raw") => Stated::Raw,
        _ => return wrong("driver"),
    };
    let path = filename.map(PathBuf::from).ok_or("which names no file")?;
    if path.is_relative() {
        return Err("whose relative name depends on where a program was started".into());
    }
    Ok((path, stated))
}

fn open_backing(
    above_path: &Path,
    wanted: &Wanted,
    rules: &Rules,
    links: &[Link],
    patience: &mut Patience,
) -> Result<Link, Fault> {
    let (above, rebase) = (name_of(above_path), rebase(above_path));
    let itself = || {
        let message = format!(
            "{}: is a backing of itself: {above} names it again; say what it stands on with \
             {rebase}",
            name_of(&wanted.path)
        );
        Err(Fault::new(Kind::Foreign, message))
    };
    // A first file that is written is locked by this process: say so before its lock is tried.
    let meta = std::fs::metadata(&wanted.path).ok();
    if meta.is_some_and(|meta| is_among(links, (meta.dev(), meta.ino()))) {
        return itself();
    }
    let target = open_file(&wanted.path, patience).map_err(|mut fault| {
        fault.message = format!("{}, which is the backing of {above}", fault.message);
        if fault.kind == Kind::NotFound {
            fault.message += &format!("; put it there, or name another one with {rebase}");
        }
        fault
    })?;
    let name = name_of(&wanted.path);
    let foreign = |why: String| Err(Fault::new(Kind::Foreign, format!("{name}: {why}")));
    if is_among(links, target.identity) {
        return itself();
    }
    if let Some(allow) = rules.allow {
        let place = sys_path(&target)?;
        if !allow.iter().any(|it| is_below(&place, it)) {
            return foreign(format!(
                "is the backing of {above} and lies outside of [images] allow; add its directory \
                 there if that is right"
            ));
        }
    }
    let format = match wanted.stated {
        Some(Stated::Raw) => Format::Raw,
        Some(Stated::Qcow2) => Format::Qcow2(qcow2(&target, &name)?),
        None => match probe(&target, &name)? {
            None | Some(Stated::Raw) => Format::Raw,
            Some(Stated::Qcow2) => unstated(qcow2(&target, &name)?, &wanted.path, above_path)?,
        },
    };
    Ok(Link {
        path: wanted.path.clone(),
        target: Arc::new(target),
        format,
    })
}

/// A file with this device and inode is open already.
fn is_among(links: &[Link], identity: (u64, u64)) -> bool {
    links.iter().any(|link| link.target.identity == identity)
}

/// A qcow2 backing whose format no file states, which is believed only if it names no other file.
fn unstated(header: Box<Header>, backing: &Path, above: &Path) -> Result<Format, Fault> {
    let leads_on = header.backing.is_some() || header.data_file.is_some();
    if !leads_on {
        return Ok(Format::Qcow2(header));
    }
    let message = format!(
        "{}: does not say what its backing {} is, and that names further files; say it with \
         `qemu-img rebase -u -b {} -F qcow2 {}`",
        name_of(above),
        name_of(backing),
        backing.display(),
        above.display()
    );
    Err(Fault::new(Kind::Foreign, message))
}

/// Where an open file lies, whatever its name was.
fn sys_path(target: &Target) -> Result<PathBuf, Fault> {
    let link = format!("/proc/self/fd/{}", target.fd());
    let found = std::fs::read_link(link);
    found.map_err(|error| Fault::io(&target.name(), "find out where it lies", error))
}

/// Whether a real path lies in this directory.
pub fn is_below(place: &Path, directory: &Path) -> bool {
    let real = std::fs::canonicalize(directory);
    place.starts_with(real.as_deref().unwrap_or(directory))
}

fn open_file(path: &Path, patience: &mut Patience) -> Result<Target, Fault> {
    let name = name_of(path);
    let failed = |doing, error| Fault::io(&name, doing, error);
    let mut target = Target::open(path, How::default()).map_err(|e| failed("open it", e))?;
    target.lasts = !sys::forgets_inodes(&target.file);
    target.named = std::path::absolute(path).ok();
    // As for a raw origin: on NFS a shared flock would keep other readers from looking for writers.
    if !sys::is_nfs(&target.file) {
        lock::acquire(&target.file, &name, Mode::Shared, patience)?;
    }
    lock::acquire_image(&target.file, &name, Mode::Shared, patience)?;
    if !target.block_device {
        let meta = target.file.metadata().map_err(|e| failed("stat it", e))?;
        target.size_bytes = meta.len();
    }
    // The end of such a file cannot be read directly.
    let align = u64::from(target.dio_align);
    if !target.size_bytes.is_multiple_of(align) {
        target
            .go_buffered()
            .map_err(|e| failed("turn direct I/O off", e))?;
    }
    Ok(target)
}

/// What the first bytes are. Nothing that is known is raw.
fn probe(target: &Target, name: &str) -> Result<Option<Stated>, Fault> {
    let head = read(target, name, 0, signature::HEAD_BYTES)?;
    match signature::image_format(&head) {
        None => Ok(None),
        Some("qcow2") => Ok(Some(Stated::Qcow2)),
        Some(other) => {
            let message = format!(
                "{name}: its first bytes look like {other}, which is not in this version; make it \
                 qcow2 with `qemu-img convert -f {} -O qcow2 {} COPY`",
                signature::qemu_name(other),
                target.path.display()
            );
            Err(Fault::new(Kind::Foreign, message))
        }
    }
}

/// The header of a qcow2 file.
pub fn qcow2(target: &Target, name: &str) -> Result<Box<Header>, Fault> {
    let refused = |why: error::Error| unreadable(name, &why);
    let length = |wanted: usize| target.size_bytes.min(wanted as u64) as usize;
    let head = read(target, name, 0, length(header::HEAD_BYTES))?;
    let wanted = header::bytes_wanted(&head).map_err(refused)?;
    let cluster = read(target, name, 0, length(wanted))?;
    let header = Header::parse(&cluster, target.size_bytes).map_err(refused)?;
    Ok(Box::new(header))
}

/// Whole bytes, zeroes behind the end.
pub fn read(target: &Target, name: &str, at: u64, bytes: usize) -> Result<Vec<u8>, Fault> {
    let mut found = vec![0; bytes];
    let done = target.read(at, &mut found);
    done.map_err(|error| {
        let message = format!("{name}: {bytes} bytes at {at:#x} cannot be read: {error:?}");
        Fault::new(Kind::Io, message)
    })?;
    Ok(found)
}

/// A file whose header says that it is not read, or that it is broken. Two of the kinds that are
/// not read here can be copied by QEMU.
fn unreadable(name: &str, why: &error::Error) -> Fault {
    let (kind, help) = match (why.kind(), why) {
        (error::Kind::Damaged, _) => (Kind::Invalid, "restore it from a backup".to_owned()),
        (error::Kind::Foreign, _) => (Kind::Foreign, "name a qcow2 file".to_owned()),
        (_, error::Error::DataFile | error::Error::Encrypted) => {
            let path = name.strip_prefix("image ").unwrap_or(name);
            let convert = format!("copy it with `qemu-img convert -O qcow2 {path} COPY`");
            (Kind::Foreign, convert)
        }
        (error::Kind::Unsupported, _) => {
            let help = "copy it with the program that made it, or restore it from a backup";
            (Kind::Foreign, help.to_owned())
        }
    };
    Fault::new(kind, format!("{name}: {why}; {help}"))
}

/// As messages name a file.
pub fn name_of(path: &Path) -> String {
    format!("image {}", path.display())
}
