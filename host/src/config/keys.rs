//! Every key of the configuration: its name, its default, what it means, how it is read.
//!
//! Always true: the defaults pass through the same functions as everything else, so a default
//! that could not be written does not exist; all keys of the public interface are here, also
//! those of which this version takes the default only and says so. Deliberately absent: where a
//! value came from, which is [`super::parse`].

use super::check::SOCKET_PATH_MAX;
use super::place::{copy_place, show_place};
use super::values::Value;
pub(super) use super::values::quote;
pub use super::values::{NAME_BYTES_MAX, check_name};
use super::{Cache, Host, Images, Listen, LogFormat, Volume, Wrong};
use crate::config::{limit, units};
use crate::daemon::Exports;
use crate::limit::GuestLimit;
use crate::origin::Format;
use crate::origin::nbd::uri::{self, Uri};
use crate::tls::certificates as tls;
use crate::unit::copies::OnDegraded;
use engine::event::{Admission, ResetOn, Share};
use engine::flow::FlowLimits;
use engine::round_robin::WEIGHT_MAX;
use engine::types::{DestageMode, Policy};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// One key of a section whose typed form is `T`.
pub struct Key<T: 'static> {
    pub name: &'static str,
    /// As it would be written; empty where there is none.
    pub default: &'static str,
    pub meaning: &'static str,
    pub set: fn(&mut T, &Value) -> Result<(), Wrong>,
    /// The value in effect, as it would be written.
    pub show: fn(&T) -> String,
}

type Set = Result<(), Wrong>;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// Below this the log has no room for reserves and evacuation.
pub const CACHE_BYTES_MIN: u64 = 128 * MIB;
/// The log has at most a million segments.
pub const CACHE_BYTES_MAX: u64 = 8 << 40;
/// A stage of fewer slots cannot fill one while another is written.
const STAGE_BYTES_MIN: u64 = 4 * MIB;
const QUEUE_DEPTH_MAX: u64 = 1024;
/// Copies on other hosts: the owner's is one of those that a record names.
const REPLICAS_MAX: u64 = node::record::MEMBERS_MAX as u64 - 1;

pub const HOST: &[Key<Host>] = &[
    Key {
        name: "name",
        default: "the host name",
        meaning: "how this host calls itself in ledgers and status",
        set: |host, value| {
            let text = value.text("write a host name")?;
            if text.is_empty() || text.len() > 64 || text.contains(char::is_control) {
                return Err(Wrong::new(
                    format!("{} is not a host name", value.show()),
                    "write 1 to 64 printable bytes",
                ));
            }
            host.name = text.into();
            Ok(())
        },
        show: |host| quote(&host.name),
    },
    Key {
        name: "group",
        default: "kvm",
        meaning: "group that may use the sockets",
        set: |host, value| {
            let text = value.text("write a group")?;
            if text.is_empty() {
                return Err(Wrong::new(
                    "\"\" is not a group",
                    "write a group's name or number",
                ));
            }
            host.group = text.into();
            Ok(())
        },
        show: |host| quote(&host.group),
    },
    Key {
        name: "run-dir",
        default: "/run/tenuto",
        meaning: "directory of the sockets",
        set: |host, value| path(&mut host.run_dir, value),
        show: |host| quote_path(&host.run_dir),
    },
    Key {
        name: "stage-dir",
        default: "/dev/shm",
        meaning: "where the RAM stage lies; must outlive the daemon",
        set: |host, value| path(&mut host.stage_dir, value),
        show: |host| quote_path(&host.stage_dir),
    },
    Key {
        name: "state-dir",
        default: "/var/lib/tenuto",
        meaning: "where volumes added at run time are kept",
        set: |host, value| path(&mut host.state_dir, value),
        show: |host| quote_path(&host.state_dir),
    },
    Key {
        name: "log-format",
        default: "text",
        meaning: "lines of the log: text, or json for programs",
        set: |host, value| {
            let right = "write \"text\" or \"json\"";
            host.log_format = match value.text(right)? {
                "text" => LogFormat::Text,
                "json" => LogFormat::Json,
                other => return Err(Wrong::new(format!("{other:?} is no form of a log"), right)),
            };
            Ok(())
        },
        show: |host| match host.log_format {
            LogFormat::Text => quote("text"),
            LogFormat::Json => quote("json"),
        },
    },
];

pub const CACHE: &[Key<Cache>] = &[
    Key {
        name: "path",
        default: "/var/lib/tenuto/cache",
        meaning: "file or block device that holds the log",
        set: |cache, value| path(&mut cache.path, value),
        show: |cache| quote_path(&cache.path),
    },
    Key {
        name: "size",
        default: "64GiB",
        meaning: "size of the cache file if `serve` creates it",
        set: |cache, value| {
            let range = CACHE_BYTES_MIN..=CACHE_BYTES_MAX;
            within(&mut cache.size_bytes, value, "64GiB", range)
        },
        show: |cache| quote(&units::show_size(cache.size_bytes)),
    },
    Key {
        name: "ram",
        default: "1GiB",
        meaning: "RAM that keeps blocks read from origins",
        set: |cache, value| memory(&mut cache.ram_bytes, value, "1GiB", 0),
        show: |cache| quote(&units::show_size(cache.ram_bytes)),
    },
    Key {
        name: "stage",
        default: "256MiB",
        meaning: "RAM that takes writes on their way to the log",
        set: |cache, value| memory(&mut cache.stage_bytes, value, "256MiB", STAGE_BYTES_MIN),
        show: |cache| quote(&units::show_size(cache.stage_bytes)),
    },
    Key {
        name: "overlay-ram",
        default: "4GiB",
        meaning: "RAM of all ephemeral volumes together; beyond it they spill to the log",
        set: |cache, value| memory(&mut cache.overlay_ram_bytes, value, "4GiB", 0),
        show: |cache| quote(&units::show_size(cache.overlay_ram_bytes)),
    },
    Key {
        name: "index-ram",
        default: "auto",
        meaning: "limit of the RAM that finds clean blocks on the SSD; auto = 0.2 % of the cache",
        set: |cache, value| auto_ram(&mut cache.index_ram_bytes, value),
        show: |cache| show_auto(cache.index_ram_bytes),
    },
    Key {
        name: "image-ram",
        default: "auto",
        meaning: "RAM for the tables of qcow2 images; auto = 1/16 of ram, at least 16 MiB",
        set: |cache, value| auto_ram(&mut cache.image_ram_bytes, value),
        show: |cache| show_auto(cache.image_ram_bytes),
    },
];

pub const LISTEN: &[Key<Listen>] = &[
    Key {
        name: "nbd",
        default: "",
        meaning: "TCP address of the NBD server; none = UNIX sockets only",
        set: |listen, value| address(&mut listen.nbd, value, "127.0.0.1:10809"),
        show: |listen| show_address(listen.nbd),
    },
    Key {
        name: "metrics",
        default: "",
        meaning: "TCP address of /metrics; none = admin socket only",
        set: |listen, value| address(&mut listen.metrics, value, "127.0.0.1:9469"),
        show: |listen| show_address(listen.metrics),
    },
    Key {
        name: "web",
        default: "",
        meaning: "TCP address of the web page, to look only; none = admin socket only",
        set: |listen, value| address(&mut listen.web, value, "127.0.0.1:9470"),
        show: |listen| show_address(listen.web),
    },
    Key {
        name: "web-token-file",
        default: "",
        meaning: "file with the token that the web page asks for; `web` needs one",
        set: |listen, value| {
            let path = value.text("write the path of a file")?;
            listen.web_token_file = Some(path.into());
            Ok(())
        },
        show: |listen| {
            let path = listen.web_token_file.as_deref();
            path.map_or(String::new(), quote_path)
        },
    },
    Key {
        name: "tls",
        default: "",
        meaning: "directory of the certificates for NBD over TCP; none = no TLS",
        set: set_tls,
        show: |listen| listen.tls.as_ref().map_or(String::new(), show_tls),
    },
    Key {
        name: "insecure",
        default: "false",
        meaning: "lets `nbd` without TLS listen where other hosts reach it",
        set: |listen, value| {
            listen.insecure = value.flag()?;
            Ok(())
        },
        show: |listen| listen.insecure.to_string(),
    },
];

pub const IMAGES: &[Key<Images>] = &[Key {
    name: "allow",
    default: "",
    meaning: "where files below images may lie; default: the directories of the origins",
    set: |images, value| {
        let list = value.words("write a list of directories")?;
        images.allow = list.into_iter().map(PathBuf::from).collect();
        Ok(())
    },
    show: |images| format!("{:?}", images.allow),
}];

pub const VOLUME: &[Key<Volume>] = &[
    Key {
        name: "name",
        default: "",
        meaning: "name of the volume, of its NBD export and of its sockets",
        set: |volume, value| {
            let text = value.text("write a name")?;
            check_name(text)?;
            volume.name = text.into();
            Ok(())
        },
        show: |volume| quote(&volume.name),
    },
    Key {
        name: "origin",
        default: "",
        meaning: "the image on shared storage: a path, nbd://… or nbd+unix://…",
        set: set_origin,
        show: |volume| quote_path(&volume.origin),
    },
    Key {
        name: "format",
        default: "auto",
        meaning: "what the image is; auto = by its first bytes",
        set: |volume, value| {
            volume.format = match value.word(&["raw", "auto", "qcow2"])? {
                "raw" => Format::Raw,
                "auto" => Format::Auto,
                _ => Format::Qcow2,
            };
            Ok(())
        },
        show: |volume| {
            quote(match volume.format {
                Format::Auto => "auto",
                Format::Raw => "raw",
                Format::Qcow2 => "qcow2",
            })
        },
    },
    Key {
        name: "policy",
        default: "write-back",
        meaning: "what an acknowledgment stands for",
        set: set_policy,
        show: |volume| quote(volume.policy.name()),
    },
    Key {
        name: "write-cache",
        default: "on",
        meaning: "off = every write is durable before it is acknowledged",
        set: |volume, value| {
            volume.write_cache = value.word(&["on", "off"])? == "on";
            Ok(())
        },
        show: |volume| quote(if volume.write_cache { "on" } else { "off" }),
    },
    Key {
        name: "replicas",
        default: "0",
        meaning: "copies of dirty data on other hosts",
        set: |volume, value| {
            volume.replicas = value.number(0, REPLICAS_MAX)? as u8;
            Ok(())
        },
        show: |volume| volume.replicas.to_string(),
    },
    Key {
        name: "on-degraded",
        default: "continue",
        meaning: "what happens while a replica is missing",
        set: |volume, value| {
            volume.on_degraded = match value.word(&["continue", "write-through"])? {
                "continue" => OnDegraded::Continue,
                _ => OnDegraded::WriteThrough,
            };
            Ok(())
        },
        show: |volume| quote(volume.on_degraded.name()),
    },
    Key {
        name: "place",
        default: "",
        meaning: "where its copies go; empty = as the cluster says",
        set: |volume, value| {
            let as_cluster = *value == Value::Text(String::new());
            volume.place = match as_cluster {
                true => None,
                false => Some(copy_place(value)?),
            };
            Ok(())
        },
        show: |volume| volume.place.as_ref().map_or_else(|| quote(""), show_place),
    },
    Key {
        name: "image-guard",
        default: "apply",
        meaning: "qcow2: when other programs are kept from opening it; apply = within a destage",
        set: |_, value| match value.word(&["apply", "dirty", "off"])? {
            "apply" => Ok(()),
            other => Err(Wrong::later(format!("{other} is"), "write \"apply\"")),
        },
        show: |_| quote("apply"),
    },
    Key {
        name: "bitmaps",
        default: "refuse",
        meaning: "qcow2 with dirty bitmaps, which a write makes invalid",
        set: |_, value| match value.word(&["refuse", "invalidate"])? {
            "refuse" => Ok(()),
            other => Err(Wrong::later(format!("{other} is"), "write \"refuse\"")),
        },
        show: |_| quote("refuse"),
    },
    Key {
        name: "destage-after",
        default: "10m",
        meaning: "dirty data older than this goes to the origin; never = for want of space only",
        set: |volume, value| {
            let never = *value == Value::Text("never".into());
            volume.destage_after_ms = match never {
                true => None,
                false => Some(value.millis("10m")?),
            };
            Ok(())
        },
        show: |volume| {
            let age = volume.destage_after_ms.map(units::show_millis);
            quote(age.as_deref().unwrap_or("never"))
        },
    },
    Key {
        name: "destage",
        default: "atomic",
        meaning: "atomic = through a journal, the origin is consistent at every instant",
        set: |volume, value| {
            volume.destage = match value.word(&["atomic", "in-place"])? {
                "atomic" => DestageMode::Atomic,
                _ => DestageMode::InPlace,
            };
            Ok(())
        },
        show: |volume| quote(volume.destage.name()),
    },
    Key {
        name: "journal",
        default: "",
        meaning: "directory of ledger and journal where they cannot lie beside the origin",
        set: |volume, value| {
            let mut directory = PathBuf::new();
            path(&mut directory, value)?;
            volume.journal = Some(directory);
            Ok(())
        },
        show: |volume| {
            volume
                .journal
                .as_ref()
                .map_or(String::new(), |path| quote_path(path))
        },
    },
    Key {
        name: "origin-quiet",
        default: "30s",
        meaning: "NBD origin: how long writes may still land after a connection broke",
        set: |volume, value| {
            volume.origin_quiet_ms = value.millis("30s")?;
            Ok(())
        },
        show: |volume| quote(&units::show_millis(volume.origin_quiet_ms)),
    },
    Key {
        name: "origin-queue-depth",
        default: "32",
        meaning: "requests of the destager in flight at the origin",
        set: |volume, value| {
            volume.origin_queue_depth = value.number(1, QUEUE_DEPTH_MAX)? as u32;
            Ok(())
        },
        show: |volume| volume.origin_queue_depth.to_string(),
    },
    Key {
        name: "dirty-limit",
        default: "4GiB",
        meaning: "dirty bytes at which writes wait for destage",
        set: |volume, value| {
            // Dirty data is in a log.
            let range = MIB..=CACHE_BYTES_MAX;
            within(&mut volume.dirty_limit_bytes, value, "4GiB", range)
        },
        show: |volume| quote(&units::show_size(volume.dirty_limit_bytes)),
    },
    Key {
        name: "flow",
        default: "{ dirty-writes = \"auto\", dirty-bytes = \"75%\", destage-time = \"5m\" }",
        meaning: "gauges that start to slow writes down",
        set: set_flow,
        show: |volume| show_flow(&volume.flow),
    },
    Key {
        name: "admission",
        default: "reuse",
        meaning: "clean blocks of an image it writes that go to SSD: read again, or all read",
        set: |volume, value| {
            volume.admission = match value.word(&["reuse", "all"])? {
                "all" => Admission::All,
                _ => Admission::Reuse,
            };
            Ok(())
        },
        show: |volume| {
            quote(match volume.admission {
                Admission::Reuse => "reuse",
                Admission::All => "all",
            })
        },
    },
    Key {
        name: "overlay-ram",
        default: "256MiB",
        meaning: "ephemeral: RAM of this overlay; beyond it writes go to the log",
        set: |volume, value| memory(&mut volume.overlay_ram_bytes, value, "256MiB", 0),
        show: |volume| quote(&units::show_size(volume.overlay_ram_bytes)),
    },
    Key {
        name: "overlay-timeout",
        default: "30s",
        meaning: "ephemeral: how long a write waits for space before it fails",
        set: |volume, value| {
            volume.overlay_timeout_ms = value.millis("30s")?;
            Ok(())
        },
        show: |volume| quote(&units::show_millis(volume.overlay_timeout_ms)),
    },
    Key {
        name: "reset-on",
        default: "command",
        meaning: "ephemeral: what throws the overlay away",
        set: |volume, value| {
            volume.reset_on = match value.word(&["command", "disconnect", "guest-reset"])? {
                "command" => ResetOn::Command,
                "disconnect" => ResetOn::Disconnect,
                _ => ResetOn::GuestReset,
            };
            Ok(())
        },
        show: |volume| {
            quote(match volume.reset_on {
                ResetOn::Command => "command",
                ResetOn::Disconnect => "disconnect",
                ResetOn::GuestReset => "guest-reset",
            })
        },
    },
    Key {
        name: "qmp",
        default: "",
        meaning: "reset-on = \"guest-reset\": UNIX socket of a QMP monitor of the guest's QEMU",
        set: |volume, value| {
            let mut socket = PathBuf::new();
            path(&mut socket, value)?;
            if socket.as_os_str().len() > SOCKET_PATH_MAX {
                return Err(Wrong::new(
                    format!("the path has more than {SOCKET_PATH_MAX} bytes"),
                    "choose a shorter one",
                ));
            }
            volume.qmp = Some(socket);
            Ok(())
        },
        show: |volume| {
            let socket = volume.qmp.as_ref();
            socket.map_or(String::new(), |path| quote_path(path))
        },
    },
    Key {
        name: "group",
        default: "",
        meaning: "disks of one VM that must stand at one point in time",
        set: |volume, value| {
            let text = value.text("write a name, or \"\" for none")?;
            if !text.is_empty() {
                check_name(text).map_err(|wrong| {
                    Wrong::new(format!("{text:?} is not a name for a group"), wrong.right)
                })?;
            }
            volume.group = text.into();
            Ok(())
        },
        show: |volume| quote(&volume.group),
    },
    Key {
        name: "share",
        default: "{ min = \"0\", weight = 100 }",
        meaning: "min = room in the log that is its own; weight = its part of the shared room; \
                  \"auto\": the weight follows what it writes",
        set: set_share,
        show: |volume| {
            if volume.share_auto {
                return quote("auto");
            }
            let Share { min_bytes, weight } = volume.share;
            let min = quote(&units::show_size(min_bytes));
            format!("{{ min = {min}, weight = {weight} }}")
        },
    },
    Key {
        name: "read-only",
        default: "false",
        meaning: "guests may not write",
        set: |volume, value| {
            volume.read_only = value.flag()?;
            Ok(())
        },
        show: |volume| volume.read_only.to_string(),
    },
    Key {
        name: "block-size",
        default: "512",
        meaning: "logical block that guests are shown: 512 or 4096 bytes",
        set: |volume, value| {
            volume.block_bytes = match value.size_up_to(u64::MAX, "4096") {
                Ok(512) => 512,
                Ok(4096) => 4096,
                _ => {
                    let what = format!("{} is not a block size of disks", value.show());
                    return Err(Wrong::new(what, "write 512 or 4096"));
                }
            };
            Ok(())
        },
        show: |volume| volume.block_bytes.to_string(),
    },
    Key {
        name: "limit",
        default: "{ iops = \"0\", bandwidth = \"0\", burst = \"0\" }",
        meaning: "of the guest, per second; burst = time whose unused part may come at once",
        set: limit::set,
        show: |volume| limit::show(volume.limit),
    },
    Key {
        name: "shared",
        default: "false",
        meaning: "several clients may write at once; else one, and the others read",
        set: |volume, value| {
            volume.shared = value.flag()?;
            Ok(())
        },
        show: |volume| volume.shared.to_string(),
    },
    Key {
        name: "export",
        default: "[\"vhost-user\", \"nbd\"]",
        meaning: "how guests reach the volume",
        set: set_export,
        show: show_export,
    },
    Key {
        name: "origin-timeout",
        default: "hold",
        meaning: "how long reads wait for an origin that does not answer",
        set: |volume, value| {
            volume.origin_timeout_ms = match value {
                Value::Text(word) if word == "hold" => None,
                other => Some(other.millis("30s").map_err(|wrong| {
                    Wrong::new(wrong.what, "write \"hold\" or a time, as in \"30s\"")
                })?),
            };
            Ok(())
        },
        show: |volume| match volume.origin_timeout_ms {
            None => quote("hold"),
            Some(millis) => quote(&units::show_millis(millis)),
        },
    },
];

/// Keys of a volume that `volume set` can change while it runs, beside `policy`, which takes a
/// while.
pub const TUNABLES: &[&str] = &[
    "write-cache",
    "replicas",
    "on-degraded",
    "place",
    "destage-after",
    "destage",
    "dirty-limit",
    "flow",
    "origin-queue-depth",
    "overlay-ram",
    "admission",
    "overlay-timeout",
    "reset-on",
    "origin-timeout",
    "share",
    "block-size",
    "limit",
    "shared",
    "export",
];

fn set_origin(volume: &mut Volume, value: &Value) -> Set {
    let right = "write the path of an image or block device, nbd://… or nbd+unix://…";
    let text = value.text(right)?;
    if Uri::claims(text) {
        Uri::parse(text).map_err(|why| Wrong::new(why, uri::RIGHT))?;
        volume.origin = PathBuf::from(text);
        return Ok(());
    }
    const SCHEMES: [&str; 7] = [
        "nbds:",
        "nbds+unix:",
        "rbd:",
        "s3:",
        "nfs:",
        "iscsi:",
        "ssh:",
    ];
    if let Some(scheme) = SCHEMES.iter().find(|scheme| text.starts_with(**scheme)) {
        let name = scheme.trim_end_matches(':');
        return Err(Wrong::later(format!("{name} origins are"), right));
    }
    if text.is_empty() || text.contains("://") {
        return Err(Wrong::new(
            format!("{} is not an origin", value.show()),
            right,
        ));
    }
    path(&mut volume.origin, value)
}

fn set_policy(volume: &mut Volume, value: &Value) -> Set {
    let words = ["uncached", "write-through", "write-back", "ephemeral"];
    volume.policy = match value.word(&words)? {
        "uncached" => Policy::Uncached,
        "write-through" => Policy::WriteThrough,
        "write-back" => Policy::WriteBack,
        _ => Policy::Ephemeral,
    };
    Ok(())
}

fn set_export(volume: &mut Volume, value: &Value) -> Set {
    let right = "write [\"vhost-user\", \"nbd\"] or one of them";
    let mut exports = Exports::NONE;
    for word in value.words(right)? {
        match word.as_str() {
            "nbd" => exports.nbd = true,
            "vhost-user" => exports.vhost_user = true,
            other => return Err(Wrong::new(format!("{other:?} is no export"), right)),
        }
    }
    if exports == Exports::NONE {
        return Err(Wrong::new("a volume without export has no use", right));
    }
    volume.exports = exports;
    Ok(())
}

fn show_export(volume: &Volume) -> String {
    let Exports { vhost_user, nbd } = volume.exports;
    let words = [(vhost_user, "\"vhost-user\""), (nbd, "\"nbd\"")];
    let words = words.iter().filter(|(there, _)| *there);
    let words: Vec<&str> = words.map(|(_, word)| *word).collect();
    format!("[{}]", words.join(", "))
}

/// What is not named stays as it is.
fn set_flow(volume: &mut Volume, value: &Value) -> Set {
    let right = "write { dirty-writes = \"auto\", dirty-bytes = \"75%\", destage-time = \"5m\" }";
    let mut flow = volume.flow;
    for (name, value) in members(value, right)? {
        let wrong = |wrong: Wrong| Wrong::new(format!("{name}: {}", wrong.what), wrong.right);
        match name.as_str() {
            "dirty-writes" => flow.dirty_writes = dirty_writes(value).map_err(wrong)?,
            "dirty-bytes" => flow.dirty_bytes_percent = percent(value).map_err(wrong)?,
            "destage-time" => {
                flow.destage_time_ms = value.millis("5m").and_then(some_time).map_err(wrong)?;
            }
            _ => return Err(Wrong::new(format!("{name} is no key of flow"), right)),
        }
    }
    volume.flow = flow;
    Ok(())
}

fn dirty_writes(value: &Value) -> Result<Option<u64>, Wrong> {
    if *value == Value::Text("auto".into()) {
        return Ok(None);
    }
    value
        .number(1, u64::from(u32::MAX))
        .map(Some)
        .map_err(|wrong| Wrong::new(wrong.what, format!("{}, or \"auto\"", wrong.right)))
}

fn percent(value: &Value) -> Result<u64, Wrong> {
    let number = match value {
        Value::Text(text) => text.strip_suffix('%').and_then(|text| text.parse().ok()),
        _ => None,
    };
    number
        .filter(|number| (1..=100).contains(number))
        .ok_or_else(|| {
            Wrong::new(
                format!("{} is not a share from 1% to 100%", value.show()),
                "write a whole number and %, as in \"75%\"",
            )
        })
}

fn some_time(millis: u64) -> Result<u64, Wrong> {
    match millis {
        0 => Err(Wrong::new("no time is no limit", "write at least \"1ms\"")),
        millis => Ok(millis),
    }
}

fn show_flow(flow: &FlowLimits) -> String {
    let writes = flow.dirty_writes;
    format!(
        "{{ dirty-writes = {}, dirty-bytes = {}, destage-time = {} }}",
        writes.map_or(quote("auto"), |writes| writes.to_string()),
        quote(&format!("{}%", flow.dirty_bytes_percent)),
        quote(&units::show_millis(flow.destage_time_ms)),
    )
}

/// A directory, or a table with one.
fn set_tls(listen: &mut Listen, value: &Value) -> Set {
    let right = "write a directory, as in \"/etc/tenuto/tls\", or { dir = \"/etc/tenuto/tls\", \
                 verify-peer = true }";
    let wrong = |wrong: Wrong| Wrong::new(wrong.what, right);
    let Value::Table(members) = value else {
        listen.tls = Some(tls::Settings {
            directory: value.path().map_err(wrong)?,
            verify_peer: None,
        });
        return Ok(());
    };
    let (mut directory, mut verify_peer) = (None, None);
    for (name, value) in members {
        let wrong = |wrong: Wrong| Wrong::new(format!("{name}: {}", wrong.what), right);
        match name.as_str() {
            "dir" => directory = Some(value.path().map_err(wrong)?),
            "verify-peer" => verify_peer = Some(value.flag().map_err(wrong)?),
            _ => return Err(Wrong::new(format!("{name} is no key of tls"), right)),
        }
    }
    let directory = directory.ok_or_else(|| Wrong::new("names no directory", right))?;
    listen.tls = Some(tls::Settings {
        directory,
        verify_peer,
    });
    Ok(())
}

fn show_tls(tls: &tls::Settings) -> String {
    let directory = quote_path(&tls.directory);
    match tls.verify_peer {
        None => directory,
        Some(verify) => format!("{{ dir = {directory}, verify-peer = {verify} }}"),
    }
}

/// What is not named stays as it is.
fn set_share(volume: &mut Volume, value: &Value) -> Set {
    let right = "write { min = \"0\", weight = 100 }, or \"auto\"";
    if *value == Value::Text("auto".into()) {
        (volume.share, volume.share_auto) = (Share::default(), true);
        return Ok(());
    }
    let mut share = volume.share;
    for (name, value) in members(value, right)? {
        let wrong = |wrong: Wrong| Wrong::new(format!("{name}: {}", wrong.what), wrong.right);
        match name.as_str() {
            "min" => {
                let range = 0..=CACHE_BYTES_MAX;
                within(&mut share.min_bytes, value, "1GiB", range).map_err(wrong)?;
            }
            "weight" => {
                let weight = value.number(1, u64::from(WEIGHT_MAX)).map_err(wrong)?;
                share.weight = weight as u32;
            }
            _ => return Err(Wrong::new(format!("{name} is no key of share"), right)),
        }
    }
    (volume.share, volume.share_auto) = (share, false);
    Ok(())
}

fn members<'a>(value: &'a Value, right: &str) -> Result<&'a [(String, Value)], Wrong> {
    match value {
        Value::Table(members) => Ok(members),
        other => Err(Wrong::new(
            format!("{} is not a table", other.show()),
            right,
        )),
    }
}

fn path(to: &mut PathBuf, value: &Value) -> Set {
    *to = value.path()?;
    Ok(())
}

/// RAM: its blocks and slots are counted in 32 bits.
fn memory(to: &mut u64, value: &Value, example: &str, min: u64) -> Set {
    within(to, value, example, min..=1 << 40)
}

fn within(to: &mut u64, value: &Value, example: &str, range: RangeInclusive<u64>) -> Set {
    let (min, max) = range.into_inner();
    let bytes = value.size_up_to(max, example)?;
    if bytes < min {
        let bound = units::show_size(min);
        return Err(Wrong::new(
            format!("{} is out of range", value.show()),
            format!("write at least \"{bound}\""),
        ));
    }
    *to = bytes;
    Ok(())
}

fn show_auto(bytes: Option<u64>) -> String {
    quote(&bytes.map_or_else(|| "auto".into(), units::show_size))
}

fn auto_ram(to: &mut Option<u64>, value: &Value) -> Set {
    if *value == Value::Text("auto".into()) {
        *to = None;
        return Ok(());
    }
    let mut bytes = 0;
    memory(&mut bytes, value, "256MiB", 0)?;
    *to = Some(bytes);
    Ok(())
}

fn address(to: &mut Option<SocketAddr>, value: &Value, example: &str) -> Set {
    let right = format!("write an address and a port, as in \"{example}\"");
    let text = value.text(&right)?;
    let address = text
        .parse()
        .map_err(|_| Wrong::new(format!("{text:?} is not an address"), right))?;
    *to = Some(address);
    Ok(())
}

fn show_address(address: Option<SocketAddr>) -> String {
    address.map_or(String::new(), |address| quote(&address.to_string()))
}

/// As TOML writes it, so that what is shown can be copied into the file.
pub(super) fn quote_path(path: &Path) -> String {
    quote(&path.display().to_string())
}

/// Defaults that depend on nothing but the contract.
pub fn default_volume() -> Volume {
    Volume {
        name: String::new(),
        origin: PathBuf::new(),
        format: Format::Auto,
        policy: Policy::WriteBack,
        write_cache: true,
        replicas: 0,
        on_degraded: OnDegraded::Continue,
        place: None,
        destage_after_ms: Some(600_000),
        destage: DestageMode::Atomic,
        journal: None,
        origin_quiet_ms: 30_000,
        origin_timeout_ms: None,
        origin_queue_depth: 32,
        admission: Admission::Reuse,
        dirty_limit_bytes: 4 * GIB,
        flow: FlowLimits::default(),
        share: Share::default(),
        share_auto: false,
        block_bytes: 512,
        limit: GuestLimit::default(),
        group: String::new(),
        overlay_ram_bytes: 256 * MIB,
        overlay_timeout_ms: 30_000,
        reset_on: ResetOn::Command,
        qmp: None,
        read_only: false,
        shared: false,
        exports: Exports {
            vhost_user: true,
            nbd: true,
        },
        line: None,
        sources: Default::default(),
    }
}

pub fn default_cache() -> Cache {
    Cache {
        path: "/var/lib/tenuto/cache".into(),
        size_bytes: 64 * GIB,
        ram_bytes: GIB,
        stage_bytes: 256 * MIB,
        overlay_ram_bytes: 4 * GIB,
        index_ram_bytes: None,
        image_ram_bytes: None,
        sources: Default::default(),
    }
}

pub fn default_host() -> Host {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = match name.trim() {
        "" => "localhost",
        name => name,
    };
    Host {
        name: name.into(),
        group: "kvm".into(),
        run_dir: super::default_run_dir(),
        stage_dir: "/dev/shm".into(),
        state_dir: "/var/lib/tenuto".into(),
        log_format: LogFormat::Text,
        sources: Default::default(),
    }
}
