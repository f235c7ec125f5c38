//! What `top` shows, made from two status documents.
//!
//! Owns the reading of the documents and the rates between them. Always true: a pure function of
//! two documents and the time between them; counters that went back, because the daemon or the
//! volume started anew, give no rate instead of a wrong one, and none is ever below zero; what is
//! not known is absent, never a zero. Deliberately absent: how it looks.

use crate::latency::Distribution;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Counters of one volume since the daemon started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counters {
    reads: u64,
    writes: u64,
    flushes: u64,
    guest_bytes: u64,
    hits: u64,
    misses: u64,
    origin_requests: u64,
    origin_write_bytes: u64,
    /// Of reads and writes together, under the policy in effect.
    latency: Distribution,
}

/// One volume at one look.
#[derive(Clone, Debug, Default)]
pub struct Volume {
    pub name: String,
    pub policy: String,
    pub state: String,
    pub flags: String,
    pub dirty_bytes: Option<u64>,
    pub dirty_seconds: Option<u64>,
    pub clients: u64,
    /// How long a write is held now; `None` where flow control is not active.
    pub delay_us: Option<u64>,
    /// The document itself, for the page of one volume.
    pub document: Value,
    counters: Counters,
}

/// One status document.
#[derive(Clone, Debug, Default)]
pub struct Look {
    pub host: Value,
    pub volumes: Vec<Volume>,
}

/// What happened in a second between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    pub reads: f64,
    pub writes: f64,
    pub flushes: f64,
    pub guest_bytes: f64,
    pub origin_requests: f64,
    /// To the image itself: journals come on top.
    pub origin_write_bytes: f64,
    /// Of all reads that were answered; `None` without any.
    pub hit_percent: Option<f64>,
    /// Of reads and writes between the two looks; of several volumes those of the policy that
    /// takes longest, because what policies have in common is no figure.
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
}

/// A volume and its rates; none at the first look at it.
#[derive(Clone, Debug)]
pub struct Row {
    pub volume: Volume,
    pub rates: Option<Rates>,
}

/// Everything on the screen.
#[derive(Clone, Debug, Default)]
pub struct Page {
    pub host: Value,
    pub rows: Vec<Row>,
    /// Of all volumes together.
    pub total: Option<Rates>,
}

impl Look {
    pub fn read(mut document: Value) -> Look {
        let volumes = document.get_mut("volumes").map(Value::take);
        let volumes = match volumes {
            Some(Value::Array(volumes)) => volumes.into_iter().map(Volume::read).collect(),
            _ => Vec::new(),
        };
        Look {
            host: document,
            volumes,
        }
    }

    /// Seconds since the daemon started.
    fn uptime(&self) -> u64 {
        number(&self.host["uptime_seconds"])
    }
}

impl Volume {
    fn read(document: Value) -> Volume {
        let text = |key: &str| document[key].as_str().unwrap_or("-").to_string();
        let flags = document["flags"].as_array().map_or(&[][..], Vec::as_slice);
        let flags: Vec<&str> = flags.iter().filter_map(Value::as_str).collect();
        let flow = &document["flow_control"];
        Volume {
            name: text("name"),
            policy: text("effective_policy"),
            state: text("state"),
            flags: flags.join(","),
            // An overlay is owed to no origin.
            dirty_bytes: document["dirty_bytes"]
                .as_u64()
                .filter(|_| document["overlay"].is_null()),
            dirty_seconds: document["oldest_dirty_seconds"]
                .as_u64()
                .filter(|_| document["overlay"].is_null()),
            clients: number(&document["clients"]),
            delay_us: (flow["active"] == true).then(|| number(&flow["delay_us"])),
            counters: Counters::read(&document),
            document,
        }
    }
}

impl Counters {
    fn read(document: &Value) -> Counters {
        let (reads, writes) = (&document["reads"], &document["writes"]);
        let origin = &document["origin"];
        let mut latency = distribution(&document["latency_us"]["read"]["classes_ns"]);
        latency.add(&distribution(
            &document["latency_us"]["write"]["classes_ns"],
        ));
        Counters {
            reads: number(&reads["requests"]),
            writes: number(&writes["requests"]),
            flushes: number(&document["flushes"]),
            guest_bytes: number(&reads["bytes"]) + number(&writes["bytes"]),
            hits: number(&reads["ram_hits"])
                + number(&reads["ssd_hits"])
                + number(&document["overlay"]["hits"]),
            misses: number(&reads["origin"]),
            origin_requests: number(&origin["reads"]) + number(&origin["writes"]),
            origin_write_bytes: number(&origin["write_bytes"]),
            latency,
        }
    }

    /// What was counted since `before`; `None` where a counter went back.
    fn since(&self, before: &Counters) -> Option<Counters> {
        // With another policy it begins anew.
        let latency = self.latency.since(&before.latency);
        let latency = latency.unwrap_or_else(|| self.latency.clone());
        Some(Counters {
            reads: self.reads.checked_sub(before.reads)?,
            writes: self.writes.checked_sub(before.writes)?,
            flushes: self.flushes.checked_sub(before.flushes)?,
            guest_bytes: self.guest_bytes.checked_sub(before.guest_bytes)?,
            hits: self.hits.checked_sub(before.hits)?,
            misses: self.misses.checked_sub(before.misses)?,
            origin_requests: self.origin_requests.checked_sub(before.origin_requests)?,
            origin_write_bytes: self
                .origin_write_bytes
                .checked_sub(before.origin_write_bytes)?,
            latency,
        })
    }

    fn add(&mut self, other: &Counters) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.guest_bytes += other.guest_bytes;
        self.hits += other.hits;
        self.misses += other.misses;
        self.origin_requests += other.origin_requests;
        self.origin_write_bytes += other.origin_write_bytes;
    }

    fn per_second(&self, seconds: f64) -> Rates {
        let rate = |count: u64| count as f64 / seconds;
        let answered = self.hits + self.misses;
        Rates {
            reads: rate(self.reads),
            writes: rate(self.writes),
            flushes: rate(self.flushes),
            guest_bytes: rate(self.guest_bytes),
            origin_requests: rate(self.origin_requests),
            origin_write_bytes: rate(self.origin_write_bytes),
            hit_percent: (answered > 0).then(|| self.hits as f64 * 100.0 / answered as f64),
            p50_us: self.latency.quantile_us(500),
            p99_us: self.latency.quantile_us(990),
        }
    }
}

impl Page {
    /// What is on the screen after `now`, so many seconds after `before`.
    pub fn between(before: Option<&Look>, now: Look, seconds: f64) -> Page {
        // Another daemon has counters of its own.
        let before = before.filter(|before| before.uptime() <= now.uptime() && seconds > 0.0);
        let known: HashMap<&str, &Counters> = before
            .map_or(&[][..], |before| before.volumes.as_slice())
            .iter()
            .map(|volume| (volume.name.as_str(), &volume.counters))
            .collect();
        let mut all = Counters::default();
        let mut latency: HashMap<String, Distribution> = HashMap::new();
        let row = |volume: Volume| {
            let since = known
                .get(volume.name.as_str())
                .and_then(|before| volume.counters.since(before));
            if let Some(since) = &since {
                all.add(since);
                let of_policy = latency.entry(volume.policy.clone()).or_default();
                of_policy.add(&since.latency);
            }
            let rates = since.map(|since| since.per_second(seconds));
            Row { volume, rates }
        };
        let rows = now.volumes.into_iter().map(row).collect();
        let slowest = latency
            .into_values()
            .max_by_key(|it| it.quantile_us(990).map(f64::to_bits));
        all.latency = slowest.unwrap_or_default();
        Page {
            host: now.host,
            rows,
            total: before.map(|_| all.per_second(seconds)),
        }
    }

    /// One line of `top --json`.
    pub fn document(&self, time: &str, seconds: f64) -> Value {
        let host = &self.host;
        let volumes: Vec<Value> = self.rows.iter().map(Row::document).collect();
        json!({
            "time": time,
            "interval_seconds": seconds,
            "host": host["host"],
            "uptime_seconds": host["uptime_seconds"],
            "cache": {
                "state": host["cache"]["state"],
                "size_bytes": host["cache"]["size_bytes"],
                "used_bytes": host["cache"]["used_bytes"],
                "dirty_bytes": host["cache"]["dirty_bytes"],
                "clean_bytes": host["cache"]["clean"]["bytes"],
            },
            "ram": host["ram"],
            "total": self.total.map(Rates::document),
            "volumes": volumes,
        })
    }
}

impl Row {
    fn document(&self) -> Value {
        let volume = &self.volume;
        let from = &volume.document;
        json!({
            "name": volume.name,
            "policy": volume.policy,
            "state": volume.state,
            "flags": from["flags"],
            "clients": volume.clients,
            "dirty_bytes": volume.dirty_bytes,
            "oldest_dirty_seconds": volume.dirty_seconds,
            "delay_us": volume.delay_us,
            "rates": self.rates.map(Rates::document),
        })
    }
}

impl Rates {
    fn document(self) -> Value {
        json!({
            "reads_per_second": self.reads,
            "writes_per_second": self.writes,
            "flushes_per_second": self.flushes,
            "bytes_per_second": self.guest_bytes,
            "hit_percent": self.hit_percent,
            "latency_us": { "p50": self.p50_us, "p99": self.p99_us },
            "origin_requests_per_second": self.origin_requests,
            "origin_write_bytes_per_second": self.origin_write_bytes,
        })
    }
}

pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Classes of a document: the most that a request took, and how many did.
fn distribution(classes: &Value) -> Distribution {
    let classes = classes.as_array().map_or(&[][..], Vec::as_slice);
    let pairs = classes
        .iter()
        .map(|pair| (number(&pair[0]), number(&pair[1])));
    pairs.collect()
}
