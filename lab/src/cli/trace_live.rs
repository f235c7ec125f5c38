//! `tenuto trace replay --volume`: a trace against live volumes.
//!
//! Always true: nothing is overwritten that was not given away by name and by `--overwrite`; what
//! was read back wrong ends with code 5, requests that failed with code 1. Deliberately absent: the
//! connections, which are in `replay`.

use super::trace::{From, each, open};
use super::trace_replay::{lost, quantiles};
use crate::replay::live::{Lane, Told, Written};
use crate::replay::wire::Door;
use host::admin::client::{Client, PATIENT};
use host::cli::{Context, output};
use host::error::{Error, Kind, Result, cause};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use workload::trace::{Item, Record};

/// Data of one replay is told from that of another by the time of its begin.
fn tag() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(1, |since| since.as_nanos() as u64)
}

pub struct Options {
    pub overwrite: bool,
    /// By the rings of its vhost-user socket instead of NBD.
    pub by_rings: bool,
    pub speed: f64,
}

/// One volume, what it counted before, and what requests go through, or have left.
struct Target<T> {
    name: String,
    before: Value,
    it: T,
}

/// A volume stopped answering in the middle.
fn failed(name: &str, error: std::io::Error) -> Error {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    let why = match error.kind() {
        BrokenPipe | ConnectionReset | UnexpectedEof => {
            "the connection has ended; see whether the daemon runs, and replay again".to_owned()
        }
        _ => cause(&error),
    };
    Error::failed(format!("volume {name}: {why}")).about(name)
}

fn target(client: &Client, name: &str, by_rings: bool, tag: u64) -> Result<Target<Lane>> {
    let before = client.get(&format!("/v1/volumes/{name}"))?;
    let size_bytes = before["size_bytes"].as_u64().unwrap_or(0);
    let socket = |kind| {
        client
            .socket()
            .with_file_name(format!("{name}.{kind}.sock"))
    };
    let door = match by_rings {
        true => Door::VhostUser {
            socket: socket("vhost"),
        },
        false => Door::Nbd {
            socket: socket("nbd"),
            export: name.to_owned(),
        },
    };
    let socket = door.socket().display().to_string();
    let it = Lane::connect(door, size_bytes, tag).map_err(|error| {
        let right = match error.kind() {
            std::io::ErrorKind::NotFound => "; its key `export` says how it is reached",
            _ => "",
        };
        let message = format!("volume {name}: {socket}: {}{right}", cause(&error));
        Error::failed(message).about(name)
    })?;
    let name = name.to_owned();
    Ok(Target { name, before, it })
}

fn settle(target: Target<Lane>) -> Result<Target<Written>> {
    let Target { name, before, it } = target;
    let it = it.settle().map_err(|error| failed(&name, error))?;
    Ok(Target { name, before, it })
}

/// Volumes under replay.
pub struct Play {
    client: Client,
    targets: Vec<Target<Lane>>,
    speed: f64,
    begun: Instant,
}

/// What came of a replay.
pub struct Ended {
    /// A document for each volume.
    pub volumes: Vec<Value>,
    pub seconds: f64,
    /// Whether everything was answered, and read back as it was written.
    pub judged: Result<()>,
}

/// Nothing is sent before `Play::begin`.
pub fn connect(context: &Context, volumes: &[String], options: &Options) -> Result<Play> {
    let names = volumes.join(", ");
    if !options.overwrite {
        let message =
            format!("volume {names}: a replay overwrites what it holds; give --overwrite for that");
        return Err(Error::new(Kind::Refused, message).about(names));
    }
    let client = context.client()?;
    let tags = tag()..;
    let targets = volumes.iter().zip(tags);
    let targets = targets.map(|(name, tag)| target(&client, name, options.by_rings, tag));
    Ok(Play {
        targets: targets.collect::<Result<_>>()?,
        client,
        speed: options.speed,
        begun: Instant::now(),
    })
}

impl Play {
    pub fn volumes(&self) -> usize {
        self.targets.len()
    }

    /// The time of the trace begins now.
    pub fn begin(&mut self) {
        self.begun = Instant::now();
    }

    /// Sends a request to the volume of this number when it is due, for which `wait` waits.
    pub fn send(
        &mut self,
        number: usize,
        record: &Record,
        wait: impl FnOnce(Instant) -> Result<()>,
    ) -> Result<()> {
        let after = Duration::from_nanos((record.time_ns as f64 / self.speed) as u64);
        let due = self.begun + after;
        wait(due)?;
        let target = &mut self.targets[number];
        let sent = target.it.send(record, due);
        sent.map_err(|error| failed(&target.name, error))
    }

    /// Waits for the answers, destages what is dirty, and reads everything back.
    pub fn settle(self) -> Result<Ended> {
        let targets = self.targets.into_iter().map(settle);
        let mut targets = targets.collect::<Result<Vec<_>>>()?;
        let seconds = self.begun.elapsed().as_secs_f64();
        let mut volumes = Vec::new();
        for target in &mut targets {
            let name = &target.name;
            if target.before["effective_policy"] == "write-back" {
                let order = format!("/v1/volumes/{name}/destage?wait=true");
                self.client.post(&order, None, PATIENT)?;
            }
            let after = self.client.get(&format!("/v1/volumes/{name}"))?;
            let verified = match target.it.told.errors {
                0 => target.it.verify(),
                // Nobody knows what a write that failed has left.
                _ => Ok(()),
            };
            verified.map_err(|error| failed(name, error))?;
            volumes.push(document(name, &target.it.told, &target.before, &after));
        }
        Ok(Ended {
            volumes,
            seconds,
            judged: judge(&targets),
        })
    }
}

pub fn run(context: &Context, from: &From, volumes: &[String], options: &Options) -> Result<()> {
    let mut play = connect(context, volumes, options)?;
    let mut reader = open(from)?;
    play.begin();
    let summary = each(from, &mut reader, |reader, item| {
        let Item::Record(record) = item else {
            return Ok(());
        };
        let number = record.disk.0 as usize;
        if number >= play.volumes() {
            return Err(without_volume(reader.disks().name(record.disk)));
        }
        play.send(number, record, |due| {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            Ok(())
        })
    })?;
    let ended = play.settle()?;
    let document = json!({
        "replay": "live",
        "speed": options.speed,
        "seconds": ended.seconds,
        "volumes": ended.volumes,
        "lost": summary.lost,
        "not_understood": reader.complaints().bad,
    });
    context.output().document(&document, || text(&document))?;
    ended.judged
}

pub(super) fn without_volume(disk: &str) -> Error {
    Error::usage(format!(
        "disk {disk} of the trace has no volume; give --volume once for each disk"
    ))
}

fn judge(targets: &[Target<Written>]) -> Result<()> {
    for Target { name, it, .. } in targets {
        let told = &it.told;
        if told.wrong_sectors > 0 {
            let sector = told.first_wrong.unwrap_or(0);
            let message = format!(
                "volume {name}: {} sectors are not what was written last, the first is {sector}",
                told.wrong_sectors
            );
            return Err(Error::new(Kind::Damaged, message).about(name));
        }
        if told.errors > 0 {
            let message = format!("volume {name}: {} requests failed", told.errors);
            return Err(Error::failed(message).about(name));
        }
    }
    Ok(())
}

/// Counters since before.
fn since(before: &Value, after: &Value, of: &str, keys: &[&str]) -> Value {
    let counter = |it: &Value, key: &str| it[of][key].as_u64().unwrap_or(0);
    let counted = keys.iter().map(|key| {
        let more = counter(after, key).saturating_sub(counter(before, key));
        ((*key).to_owned(), json!(more))
    });
    Value::Object(counted.collect())
}

fn document(name: &str, told: &Told, before: &Value, after: &Value) -> Value {
    let origin = [
        "reads",
        "read_bytes",
        "writes",
        "write_bytes",
        "journal_bytes",
        "syncs",
    ];
    json!({
        "name": name,
        "requests": told.requests,
        "bytes": told.bytes,
        "outside": told.outside,
        "errors": told.errors,
        "waited_for_place": told.crowded,
        "waited_for_overlap": told.overlapping,
        "lag_us": quantiles(&told.lag),
        "lag_max_ms": told.lag_max.as_secs_f64() * 1e3,
        "latency_us": {
            "read": quantiles(&told.latency[0]),
            "write": quantiles(&told.latency[1]),
            "other": quantiles(&told.latency[2]),
        },
        "verified_sectors": told.verified_sectors,
        "wrong_sectors": told.wrong_sectors,
        "reads": since(before, after, "reads", &["requests", "ram_hits", "ssd_hits", "origin"]),
        "writes": since(before, after, "writes", &["requests", "elided_bytes"]),
        "origin": since(before, after, "origin", &origin),
    })
}

pub(super) fn text(document: &Value) -> String {
    let mut text = String::new();
    if let Some(hosts) = document["agents"].as_array() {
        let hosts: Vec<&str> = hosts.iter().filter_map(Value::as_str).collect();
        let apart = document["begun_apart_ms_max"].as_f64().unwrap_or(0.0);
        let begun = format!("{}, begun within {apart:.1} ms", hosts.join(", "));
        text += &output::fields(&[("machines", begun)]);
    }
    for volume in document["volumes"].as_array().into_iter().flatten() {
        let (reads, origin) = (&volume["reads"], &volume["origin"]);
        let (lag, latency) = (&volume["lag_us"], &volume["latency_us"]);
        let most = volume["lag_max_ms"].as_f64().unwrap_or(0.0);
        let sent = format!(
            "{} sent, {} failed, {} beyond its end; {} waited for a place, {} for a write they \
             overlap",
            volume["requests"],
            volume["errors"],
            volume["outside"],
            volume["waited_for_place"],
            volume["waited_for_overlap"],
        );
        let rows = [
            ("volume", volume["name"].as_str().unwrap_or("").to_owned()),
            ("requests", sent),
            (
                "sent late by",
                format!(
                    "p50 {} us, p99 {} us, at most {most:.1} ms",
                    lag["p50"], lag["p99"]
                ),
            ),
            (
                "latency",
                format!(
                    "reads p50 {} us, p99 {} us; writes p50 {} us, p99 {} us",
                    latency["read"]["p50"],
                    latency["read"]["p99"],
                    latency["write"]["p50"],
                    latency["write"]["p99"],
                ),
            ),
            (
                "reads",
                format!(
                    "{}: RAM {}, SSD {}, origin {}",
                    reads["requests"], reads["ram_hits"], reads["ssd_hits"], reads["origin"]
                ),
            ),
            (
                "origin",
                format!("{} reads, {} writes", origin["reads"], origin["writes"]),
            ),
            (
                "read back",
                format!(
                    "{} sectors, {} wrong",
                    volume["verified_sectors"], volume["wrong_sectors"]
                ),
            ),
        ];
        text += &output::fields(&rows);
    }
    if let Some(requests @ 1..) = document["lost"].as_u64() {
        text += &output::fields(&[lost(requests)]);
    }
    text
}
