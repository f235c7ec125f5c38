//! `tenuto try IMAGE`: one image, a temporary cache, any user; nothing is left behind at the end.
//!
//! Owns the order of a trial. The daemon is a child, so that a trial outlives the end of it.
//!
//! ```text
//! refuse ── place ── daemon ── attach ── ready ── the user ends it, or the daemon ends
//!                                                                  │
//!           nothing is left ◀── remove ◀── destage without it ◀── stop
//!                                                │ fails, or a second signal
//!                                                └──▶ the place stays, and is named
//! ```
//!
//! Always true: the place of the trial is removed only when everything that was acknowledged is at
//! the image, or the policy owes the image nothing; an image that is refused is refused before
//! anything is made, or what was made is removed. The destage is that of `tenuto recover`: clients
//! are gone by then, so nothing is written beside it. Deliberately absent: a search for places of
//! trials that were killed, because they may hold data that is nowhere else.

mod child;
mod place;
mod signals;
mod words;

use super::attach::{self, Disk};
use super::offline::{self, Places};
use super::output::{self, Output};
use super::progress::{Progress, Work};
use super::recover;
use super::reply::url;
use super::top;
use super::{Context, cache};
use crate::admin::client::{Client, PATIENT};
use crate::config::units::human_bytes;
use crate::config::{Value as Key, check, parse};
use crate::error::{Error, Kind, Result};
use child::Served;
use clap::Args;
use engine::types::Policy;
use place::{DISK, Place, Wanted};
use serde_json::{Value, json};
use signals::Signals;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// Memory of the guest in the printed arguments, as in `volume show --qemu`.
const GUEST_MEMORY_BYTES: u64 = 1 << 30;
/// Between two looks whether the daemon is still there.
const LOOK: Duration = Duration::from_millis(200);
/// How long the image may fail at the end: a server that starts again answers within it.
const STALLED_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub struct Try {
    /// File, block device or NBD URL of the disk, which is in no other use
    image: String,
    /// Size of the temporary cache; default: 4 GiB, or half of the free space where that is less
    #[arg(long, value_name = "SIZE")]
    cache: Option<String>,
    /// write-back, write-through, uncached, or ephemeral, which never writes the image
    #[arg(long, value_name = "POLICY", default_value = "write-back")]
    policy: String,
    /// raw, qcow2, or auto for what the first bytes say
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    format: String,
    /// Directory of files below a qcow2 image, beside its own; may be given several times
    #[arg(long, value_name = "DIR")]
    allow: Vec<PathBuf>,
}

pub fn run(context: &Context, command: &Try) -> Result<()> {
    let image = absolute(&command.image);
    let cache_bytes = command.cache.as_deref();
    let cache_bytes = cache_bytes.map(|size| cache::parse_asked_size("--cache", size));
    let wanted = Wanted {
        image: &image,
        cache_bytes: cache_bytes.transpose()?,
        allow: &command.allow,
    };
    let mut place = Place::plan(&wanted)?;
    let policy = refuse_unfit(&place, &image, command)?;
    let signals = Signals::listen(context.common.json)?;
    place.make(policy == Policy::Ephemeral)?;
    let begun = begin(&place, &image, command);
    let mut trial = match begun {
        Ok((served, volume)) => Trial {
            context: inside(context, &place),
            image,
            policy,
            place,
            served,
            volume,
        },
        Err(error) => {
            place.remove();
            return Err(error);
        }
    };
    let shown = trial.show_ready();
    let shown = shown.and_then(|()| trial.wait(&signals));
    let ended = trial.end(&signals);
    ended.and(shown)
}

/// A trial under way.
struct Trial {
    /// Speaks to the daemon of the trial.
    context: Context,
    image: String,
    policy: Policy,
    place: Place,
    served: Served,
    /// As it was when it was attached.
    volume: Value,
}

/// The daemon has another working directory in mind; a URL is no path.
fn absolute(image: &str) -> String {
    if image.contains("://") {
        return image.to_owned();
    }
    let path = std::path::absolute(image);
    path.map_or_else(|_| image.to_owned(), |path| path.display().to_string())
}

fn keys(image: &str, command: &Try) -> [(&'static str, String); 3] {
    [
        ("origin", image.to_owned()),
        ("policy", command.policy.clone()),
        ("format", command.format.clone()),
    ]
}

/// What `volume add` would refuse, before anything is made.
fn refuse_unfit(place: &Place, image: &str, command: &Try) -> Result<Policy> {
    let config = parse::parse(&place.config_path(), &place.text()?)?;
    let keys = keys(image, command);
    let values = keys.map(|(key, value)| (key.to_owned(), Key::from_argument(&value)));
    let volume = parse::new_volume(&config.defaults, DISK, &values)?;
    check::check_volume(&config, &volume, &[]).map_err(|error| words::asked(error.into()))?;
    Ok(volume.policy)
}

/// Starts the daemon and attaches the image.
fn begin(place: &Place, image: &str, command: &Try) -> Result<(Served, Value)> {
    let mut served = Served::start(&place.config_path(), &place.log_path())?;
    let client = Client::new(&place.admin_socket());
    let mut body = json!({ "name": DISK });
    for (key, value) in keys(image, command) {
        body[key] = value.into();
    }
    let attached = client.post("/v1/volumes", Some(&body), PATIENT);
    match attached.and_then(|_| client.get(&url(DISK, "")?)) {
        Ok(volume) => Ok((served, volume)),
        Err(error) => {
            // The first error is the one to tell; nothing was acknowledged yet.
            let _ = served.stop();
            Err(words::asked(error))
        }
    }
}

fn inside(context: &Context, place: &Place) -> Context {
    let mut context = context.clone();
    context.common.socket = Some(place.admin_socket());
    context.common.config = Some(place.config_path());
    context
}

impl Trial {
    fn show_ready(&self) -> Result<()> {
        let disk = Disk::of_daemon(&self.volume);
        let pasted = attach::qemu(&[disk], false, GUEST_MEMORY_BYTES)?;
        let uri = self.place.uri();
        let document = json!({
            "state": "ready",
            "name": DISK,
            "image": self.image,
            "policy": self.policy.name(),
            "promise": self.volume["promise"],
            "size_bytes": self.volume["size_bytes"],
            "directory": self.place.directory().display().to_string(),
            "config": self.place.config_path().display().to_string(),
            "cache": {
                "path": self.place.cache_path().display().to_string(),
                "size_bytes": self.place.cache_bytes(),
            },
            "socket": self.place.admin_socket().display().to_string(),
            "nbd_uri": uri,
            "nbd_socket": self.volume["nbd_socket"],
            "vhost_socket": self.volume["vhost_socket"],
            "qemu": pasted.document["qemu"],
            "arguments": pasted.document["arguments"],
            "notes": pasted.notes,
        });
        let output = self.context.output();
        output.document(&document, || {
            let policy = self.policy.name();
            let size = human_bytes(self.place.cache_bytes());
            let (image, directory) = (&self.image, self.place.directory().display());
            let end = words::at_the_end(self.policy);
            format!(
                "{image}: {policy}, a cache of {size} in {directory}\narguments for QEMU:\n\
                 {}over NBD:\n{uri}\nCtrl-C ends it: {end}\nready\n",
                pasted.text
            )
        })
    }

    /// Until the user ends the trial, or the daemon ends.
    fn wait(&mut self, signals: &Signals) -> Result<()> {
        let Output { json, quiet, .. } = self.context.output();
        if !json && !quiet && std::io::stdout().is_terminal() && !signals.came() {
            let served = &mut self.served;
            return top::below(&self.context, || served.ended().is_some());
        }
        while !signals.come_within(LOOK) && self.served.ended().is_none() {}
        Ok(())
    }

    /// Brings everything to the image and removes what was made.
    fn end(mut self, signals: &Signals) -> Result<()> {
        let client = Client::new(&self.place.admin_socket());
        let last = url(DISK, "").and_then(|path| client.get(&path)).ok();
        let kept = words::kept(&self.image, "interrupted", &self.place);
        signals.leave_with(match self.policy {
            Policy::Ephemeral => words::left(&self.image, &self.place),
            _ => kept,
        });
        let ended = self.served.ended();
        let stopped = match ended {
            Some(_) => Ok(()),
            None => self.served.stop(),
        };
        signals.stopped();
        if self.policy != Policy::Ephemeral {
            let home = self.bring_home().and(stopped);
            home.map_err(|error| words::kept(&self.image, &error.message, &self.place))?;
        }
        self.place.remove();
        if let Some(status) = ended {
            return Err(died(&self.image, self.policy, status));
        }
        let output = self.context.output();
        match output.quiet || output.json {
            true => Ok(()),
            false => output::write(&words::summary(&self.image, self.policy, last.as_ref())),
        }
    }

    fn bring_home(&self) -> Result<()> {
        let path = self.place.cache_path();
        let found = recover::look(&path, self.place.stage_dir())?;
        if let Some(damage) = found.report.damage.first() {
            return Err(Error::new(Kind::Damaged, damage.clone()));
        }
        let volumes: Vec<_> = found.volumes.iter().collect();
        let places = Places {
            stage_dir: self.place.stage_dir().to_path_buf(),
            state_dir: self.place.state_dir(),
            journal: None,
            images: self.place.images(),
            owner: None,
        };
        let work = Work {
            verb: "destage",
            object: Path::new(&self.image)
                .file_name()
                .map_or_else(|| self.image.clone(), |name| name.display().to_string()),
            counted: "dirty data destaged",
        };
        let mut progress = Progress::new(&self.context, work, Some(0));
        let mut look = self.end_if_stalled();
        let failures = offline::destage_all(&path, &places, &volumes, &mut progress, &mut look)?;
        progress.finish();
        match failures.into_iter().next() {
            None => Ok(()),
            Some((_, error)) => Err(error),
        }
    }
}

impl Trial {
    /// An image that does not answer for long ends the trial: it may never answer again.
    fn end_if_stalled(&self) -> impl FnMut(bool) + Send + use<> {
        let error = words::kept(&self.image, "does not take the data", &self.place);
        let json = self.context.common.json;
        let mut since: Option<Instant> = None;
        move |stalled| match stalled {
            false => since = None,
            true if since.get_or_insert_with(Instant::now).elapsed() < STALLED_MAX => {}
            true => signals::end_process(&error, json),
        }
    }
}

/// The daemon ended before the user said so, and all went well after it.
fn died(image: &str, policy: Policy, status: ExitStatus) -> Error {
    let holds = match policy {
        Policy::Ephemeral => "the image is as it was",
        _ => "everything that it had acknowledged is at the image",
    };
    Error::failed(format!("{image}: the daemon has ended, {status}; {holds}")).about(image)
}
