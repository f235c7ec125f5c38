//! What can only be known by looking: the images and directories that a configuration names.
//!
//! Always true: looking changes nothing, and an error names the line that asked for the file.
//! A check is a courtesy, not a lock: who writes an image is decided by the locks that the
//! daemon takes, this page only says it earlier and with a line number.

use super::token::Token;
use super::{Config, ConfigError, Source, Volume, Wrong, share};
use crate::error::cause;
use crate::origin::Format;
use crate::origin::Place;
use crate::origin::nbd::uri;
use crate::origin::written;
use crate::pool::members::CloneKind;
use crate::signature;
use crate::tls::certificates::Unfit;
use engine::event::ResetOn;
use engine::types::Policy;
use std::fs::{File, Metadata};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Bytes a `sockaddr_un` takes, without its end.
pub const SOCKET_PATH_MAX: usize = 107;
const SECTOR_BYTES: u64 = 512;
/// What makes two origins the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Device and inode of a file.
    File(u64, u64),
    Device(u64),
    /// The plain spelling of an export's URL.
    Export(String),
    /// The path of what is not there.
    Missing(PathBuf),
}

impl Identity {
    /// Of an image in any state, also of one that is not there.
    pub fn of(path: &Path) -> Identity {
        look(path).map_or_else(|_| Identity::of_unfit(path), |origin| origin.identity)
    }

    fn of_unfit(path: &Path) -> Identity {
        match path.metadata() {
            Ok(meta) => identity(&meta),
            Err(_) => Identity::Missing(path.to_path_buf()),
        }
    }
}

/// What an origin turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub canonical: PathBuf,
    /// Equal for two names of one image.
    pub identity: Identity,
    /// `None` for an export, which only its server knows.
    pub size_bytes: Option<u64>,
    pub is_block_device: bool,
}

/// Checks all volumes of a file, and the host.
pub fn check(config: &Config) -> Result<(), ConfigError> {
    match check_apart(config)?.into_iter().next() {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// The same; what is wrong with images only is told apart. An image may get well while the others
/// are served, words of the file do not.
pub fn check_apart(config: &Config) -> Result<Vec<ConfigError>, ConfigError> {
    let mut known: Vec<(&Volume, Identity)> = Vec::new();
    let mut unfit = Vec::new();
    for volume in &config.volumes {
        check_words(config, volume)?;
        let identity = match check_image(config, volume) {
            Ok(origin) => origin.identity,
            Err(error) => {
                unfit.push(error);
                Identity::of_unfit(&volume.origin)
            }
        };
        check_writers(config, volume, &identity, &known)?;
        known.push((volume, identity));
    }
    share::check(&config.cache, &config.volumes)
        .map_err(|(volume, wrong)| volume_error(config, volume, "share", wrong))?;
    check_host(config)?;
    Ok(unfit)
}

/// Checks one volume against the disk and against those already there.
pub fn check_volume(
    config: &Config,
    volume: &Volume,
    known: &[(&Volume, Identity)],
) -> Result<Identity, ConfigError> {
    check_words(config, volume)?;
    let origin = check_image(config, volume)?;
    check_writers(config, volume, &origin.identity, known)?;
    Ok(origin.identity)
}

/// The same for one whose image may be unfit at present.
pub fn check_volume_words(
    config: &Config,
    volume: &Volume,
    known: &[(&Volume, Identity)],
) -> Result<Identity, ConfigError> {
    check_words(config, volume)?;
    let identity = Identity::of(&volume.origin);
    check_writers(config, volume, &identity, known)?;
    Ok(identity)
}

/// What can be known without looking at the image.
fn check_words(config: &Config, volume: &Volume) -> Result<(), ConfigError> {
    let fail = |key, wrong| volume_error(config, volume, key, wrong);
    let socket = config
        .host
        .run_dir
        .join(format!("{}.vhost.sock", volume.name));
    if socket.as_os_str().len() > SOCKET_PATH_MAX {
        let wrong = Wrong::new(
            format!("the path of its socket has more than {SOCKET_PATH_MAX} bytes"),
            "choose a shorter name or run-dir",
        );
        return Err(fail("name", wrong));
    }
    check_reset(volume).map_err(|wrong| fail("reset-on", wrong))?;
    check_group(volume).map_err(|wrong| fail("group", wrong))?;
    check_replicas(config, volume).map_err(|wrong| fail("replicas", wrong))?;
    check_pool(config, volume).map_err(|wrong| fail("name", wrong))?;
    let place = Place::parse(&volume.origin).map_err(|why| Wrong::new(why, uri::RIGHT));
    place.map(drop).map_err(|wrong| fail("origin", wrong))
}

fn check_image(config: &Config, volume: &Volume) -> Result<Origin, ConfigError> {
    let fail = |key, wrong| volume_error(config, volume, key, wrong);
    let origin = look(&volume.origin).map_err(|wrong| fail("origin", wrong))?;
    // The first bytes of an export are looked at when it is opened.
    let export = matches!(origin.identity, Identity::Export(_));
    if !export && !is_mapped(volume).map_err(|wrong| fail("format", wrong))? {
        check_sectors(volume, &origin).map_err(|wrong| fail("origin", wrong))?;
    }
    if let Some(journal) = &volume.journal {
        check_directory(journal).map_err(|wrong| fail("journal", wrong))?;
    }
    Ok(origin)
}

fn check_writers(
    config: &Config,
    volume: &Volume,
    identity: &Identity,
    known: &[(&Volume, Identity)],
) -> Result<(), ConfigError> {
    for (other, image) in known {
        if image == identity && (volume.writes_origin() || other.writes_origin()) {
            let wrong = second_writer(volume, other);
            return Err(volume_error(config, volume, "origin", wrong));
        }
    }
    Ok(())
}

/// A guest that is not watched is never seen to start again.
pub fn check_reset(volume: &Volume) -> Result<(), Wrong> {
    if volume.reset_on != ResetOn::GuestReset || volume.qmp.is_some() {
        return Ok(());
    }
    Err(Wrong::new(
        "\"guest-reset\" needs a QMP monitor of the guest's QEMU, and there is no key qmp",
        "write qmp = \"/run/…/qmp.sock\", and start QEMU with -qmp unix:/run/…/qmp.sock,server=on,\
         wait=off",
    ))
}

/// Only what is destaged can stand at one point in time with others.
pub fn check_group(volume: &Volume) -> Result<(), Wrong> {
    if volume.group.is_empty() || volume.policy == Policy::WriteBack {
        return Ok(());
    }
    let policy = volume.policy.name();
    Err(Wrong::new(
        format!("volumes of a group are write-back, this one is {policy}"),
        "leave the group out, or write policy = \"write-back\"",
    ))
}

/// A copy on another host is of what a volume of the cluster has not destaged.
pub fn check_replicas(config: &Config, volume: &Volume) -> Result<(), Wrong> {
    if volume.replicas == 0 {
        return Ok(());
    }
    let (what, right) = match volume.policy {
        _ if config.cluster.is_none() => (
            "this host is in no cluster, so there is no other host to have a copy".to_owned(),
            "run `tenuto cluster init` or `tenuto cluster join` first",
        ),
        Policy::WriteBack if volume.read_only => (
            "a read-only volume has no dirty data to copy".to_owned(),
            "leave read-only out",
        ),
        Policy::WriteBack if !volume.group.is_empty() => {
            let what = "copies of the volumes of a group are";
            return Err(Wrong::later(
                what,
                "leave the group out, or write replicas = 0",
            ));
        }
        Policy::WriteBack if !volume.settings().is_clustered() => {
            let what = "copies of a volume on a block device or an NBD export are";
            let right = "name an image file as the origin, or write replicas = 0";
            return Err(Wrong::later(what, right));
        }
        Policy::WriteBack => return Ok(()),
        policy => (
            format!(
                "volumes with copies are write-back, this one is {}",
                policy.name()
            ),
            "write policy = \"write-back\"",
        ),
    };
    Err(Wrong::new(what, format!("{right}, or write replicas = 0")))
}

/// Which image an overlay stands on is a matter of all hosts that may write it.
fn check_pool(config: &Config, volume: &Volume) -> Result<(), Wrong> {
    let pool = config.pool_of(&volume.name);
    let overlays = pool.filter(|pool| pool.clones == CloneKind::Qcow2);
    match overlays.filter(|_| config.cluster.is_some()) {
        None => Ok(()),
        Some(pool) => Err(Wrong::later(
            format!(
                "pools of qcow2 files in a cluster, as {} is one, are",
                pool.name
            ),
            "write clone = \"ephemeral\", or leave the pool out",
        )),
    }
}

fn second_writer(volume: &Volume, other: &Volume) -> Wrong {
    let writer = if volume.writes_origin() {
        volume
    } else {
        other
    };
    let line = other
        .line
        .map_or(String::new(), |line| format!(" of line {line}"));
    Wrong::new(
        format!(
            "volumes {} and {}{line} have the same image and {} writes it",
            volume.name, other.name, writer.name
        ),
        "give each its own image, or make all of them ephemeral or read-only",
    )
}

fn volume_error(config: &Config, volume: &Volume, key: &str, wrong: Wrong) -> ConfigError {
    // A key that was not written is blamed on the image that does not suit its default.
    let key = if volume.sources.contains_key(key) {
        key
    } else {
        "origin"
    };
    let line = volume.sources.get(key).and_then(Source::line);
    let file = line.is_some().then(|| config.path.clone());
    ConfigError {
        file,
        line,
        key: key.into(),
        wrong,
    }
}

fn check_host(config: &Config) -> Result<(), ConfigError> {
    let fail = |sources: &super::Sources, key: &str, wrong| ConfigError {
        file: Some(config.path.clone()),
        line: sources.get(key).and_then(Source::line),
        key: key.into(),
        wrong,
    };
    let host = &config.host;
    if host.sources.contains_key("group") && group_id(&host.group).is_none() {
        let wrong = Wrong::new(
            format!("there is no group {:?} on this host", host.group),
            "name a group that exists, or leave it out",
        );
        return Err(fail(&host.sources, "group", wrong));
    }
    let listen = &config.listen;
    match (&listen.web, &listen.web_token_file) {
        (_, Some(path)) => {
            let token = Token::read(path);
            token.map_err(|wrong| fail(&listen.sources, "web-token-file", wrong))?;
        }
        (Some(_), None) => {
            let wrong = Wrong::new("has no token", "name a file with one by web-token-file");
            return Err(fail(&listen.sources, "web", wrong));
        }
        (None, None) => {}
    }
    if let Some(tls) = &listen.tls {
        let read = tls.read();
        let wrong = |unfit: Unfit| Wrong::new(unfit.what, unfit.right);
        read.map_err(|unfit| fail(&listen.sources, "tls", wrong(unfit)))?;
    }
    if let Some(address) = listen.nbd
        && !address.ip().to_canonical().is_loopback()
        && listen.tls.is_none()
        && !listen.insecure
    {
        let wrong = Wrong::new(
            format!("other hosts reach {address}, and NBD without TLS checks no client"),
            "name certificates by tls, bind to a loopback address, or write insecure = true if \
             you trust every host of this network",
        );
        return Err(fail(&listen.sources, "nbd", wrong));
    }
    check_directory(&host.stage_dir).map_err(|wrong| fail(&host.sources, "stage-dir", wrong))?;
    // The default directory is made by `serve`; one that was asked for is not invented.
    let asked = config.cache.sources.contains_key("path");
    if let Err(error) = std::fs::metadata(&config.cache.path)
        && asked
    {
        let parent = config.cache.path.parent().unwrap_or(Path::new("/"));
        if error.kind() != std::io::ErrorKind::NotFound || !parent.is_dir() {
            let wrong = Wrong::new(
                format!("{}: {}", config.cache.path.display(), cause(&error)),
                "name a block device, or a file in a directory that exists",
            );
            return Err(fail(&config.cache.sources, "path", wrong));
        }
    }
    Ok(())
}

fn check_directory(path: &Path) -> Result<(), Wrong> {
    let right = "name a directory that exists";
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(Wrong::new(
            format!("{} is not a directory", path.display()),
            right,
        )),
        Err(error) => Err(Wrong::new(
            format!("{}: {}", path.display(), cause(&error)),
            right,
        )),
    }
}

/// Looks at an image without opening it for more than reading.
pub fn look(path: &Path) -> Result<Origin, Wrong> {
    if let Place::Nbd(uri) = Place::parse(path).map_err(|why| Wrong::new(why, uri::RIGHT))? {
        return Ok(Origin {
            canonical: path.to_path_buf(),
            identity: Identity::Export(uri.identity()),
            size_bytes: None,
            is_block_device: false,
        });
    }
    let right = "name an image or block device that exists and can be read";
    let wrong =
        |error: &std::io::Error| Wrong::new(format!("{}: {}", path.display(), cause(error)), right);
    let canonical = path.canonicalize().map_err(|error| wrong(&error))?;
    let meta = canonical.metadata().map_err(|error| wrong(&error))?;
    let kind = meta.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        let what = format!("{} is neither a file nor a block device", path.display());
        return Err(Wrong::new(what, right));
    }
    let size_bytes = size_of(&canonical, &meta).map_err(|error| wrong(&error))?;
    if size_bytes == 0 {
        let what = format!("{} is empty", path.display());
        return Err(Wrong::new(
            what,
            "give it its size first, as in truncate -s 10G",
        ));
    }
    Ok(Origin {
        canonical,
        identity: identity(&meta),
        size_bytes: Some(size_bytes),
        is_block_device: kind.is_block_device(),
    })
}

fn size_of(path: &Path, meta: &Metadata) -> std::io::Result<u64> {
    if meta.is_file() {
        // Opened all the same: an image that cannot be read is found now, not by a guest.
        File::open(path)?;
        return Ok(meta.len());
    }
    File::open(path)?.seek(SeekFrom::End(0))
}

fn identity(meta: &Metadata) -> Identity {
    match meta.file_type().is_block_device() {
        true => Identity::Device(meta.rdev()),
        false => Identity::File(meta.dev(), meta.ino()),
    }
}

/// A raw image is a disk of whole blocks; a qcow2 file says what its disk is.
fn check_sectors(volume: &Volume, origin: &Origin) -> Result<(), Wrong> {
    let size_bytes = origin.size_bytes.unwrap_or(0);
    let block_bytes = u64::from(volume.block_bytes);
    if size_bytes.is_multiple_of(block_bytes) {
        return Ok(());
    }
    let what = format!(
        "{} has {size_bytes} bytes, which is no multiple of {block_bytes}",
        volume.origin.display()
    );
    let right = match block_bytes == SECTOR_BYTES {
        true => "extend it to whole sectors, as in truncate -s %512",
        false => "extend it to whole blocks, as in truncate -s %4096, or leave block-size at 512",
    };
    Err(Wrong::new(what, right))
}

/// Whether the image is served as qcow2. Refuses to guess that a guest's disk is raw when it
/// begins like something else.
fn is_mapped(volume: &Volume) -> Result<bool, Wrong> {
    let path = &volume.origin;
    let format = match volume.format {
        Format::Raw => return Ok(false),
        Format::Qcow2 => Some("qcow2"),
        Format::Auto => format_of(path)?,
    };
    match format {
        None => Ok(false),
        Some("qcow2") if !volume.writes_origin() => Ok(true),
        Some("qcow2") => check_written(volume).map(|()| true),
        Some(name) => Err(Wrong::new(
            format!("{} looks like {name}", path.display()),
            format!(
                "copy it with `qemu-img convert -f {} -O qcow2 {} COPY`, or write format = \"raw\" \
                 if it is a guest's own data",
                signature::qemu_name(name),
                path.display()
            ),
        )),
    }
}

/// How a qcow2 image is written, and which.
fn check_written(volume: &Volume) -> Result<(), Wrong> {
    let path = volume.origin.display();
    let header = written::look(&volume.origin).map_err(|why| {
        let right =
            "restore it from a backup, or write format = \"raw\" if it is a guest's own data";
        Wrong::new(format!("{path} looks like qcow2, and {why}"), right)
    })?;
    written::refusal(&header, &volume.origin).map_err(|why| {
        let what = format!("{path} {}", why.what);
        match why.later {
            true => Wrong::later(what, why.right),
            false => Wrong::new(what, why.right),
        }
    })
}

/// What the first bytes of an image look like.
fn format_of(path: &Path) -> Result<Option<&'static str>, Wrong> {
    let mut first = Vec::with_capacity(signature::HEAD_BYTES);
    let limit = signature::HEAD_BYTES as u64;
    let read = File::open(path).and_then(|file| file.take(limit).read_to_end(&mut first));
    if let Err(error) = read {
        let what = format!("{}: {}", path.display(), cause(&error));
        return Err(Wrong::new(what, "name an image that can be read"));
    }
    Ok(signature::image_format(&first))
}

/// The number of a group by its name or number, from `/etc/group`.
///
/// Groups that only a directory service knows can be given by number.
pub fn group_id(name: &str) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    let groups = std::fs::read_to_string("/etc/group").ok()?;
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    })
}
