//! The record of a pool in the vault of a cluster, and what hosts say of it.
//!
//! ```text
//! r.UNIT.NUMBER   the record: which image, staged or rolling, which step; made once, as of a unit
//! h.HOST          how far this host is with it; it replaces what it said before
//! ```
//!
//! The record is the switch of all hosts: who starts a member after it was made finds its image, on
//! any host that has read it. Always true: a record is made under the number after the newest, so
//! of two orders at once one is refused; a step ends when each host that counts says so of the same
//! record. A host counts that has said something of the pool and that there is a link to; one that
//! has not followed for a while is not waited for. Deliberately absent: the vault itself
//! ([`crate::vault`]), and clocks.

use super::record::{Phase, Record};
use crate::vault::OWN_BYTES_MAX;
use engine::format::checksum;
use engine::types::Uuid;
use node::vault::{Kept, hex};
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;
/// Members that a host names as unhealthy.
pub const ILL_MAX: usize = 16;
/// Letters of what is wrong with one.
const WORDS_MAX: usize = 256;

/// What a pool is in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    pub unit: Uuid,
    pub number: u64,
    pub nonce: Uuid,
    /// The host that has made it.
    pub by: Uuid,
    /// Without members, which each host knows of its own.
    pub record: Record,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    version: u32,
    unit: String,
    number: u64,
    nonce: String,
    by: String,
    record: Record,
}

/// An identity as it stands in a name.
fn parse_hex(text: &str) -> Option<Uuid> {
    let plain = text.len() == 32 && text.is_ascii();
    let mut bytes = [0; 16];
    for (at, byte) in bytes.iter_mut().enumerate() {
        let digits = plain.then(|| &text[2 * at..2 * at + 2])?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    Some(Uuid(bytes))
}

/// One line, and its checksum in the next one.
fn with_sum(line: String) -> Vec<u8> {
    let sum = checksum(&[line.as_bytes()]);
    format!("{line}\n{sum:08x}\n").into_bytes()
}

/// The line, if it is as it was written. A vault may add zeroes.
fn without_sum(bytes: &[u8]) -> Result<&[u8], String> {
    let end = bytes.iter().rposition(|byte| *byte != 0);
    let text = &bytes[..end.map_or(0, |end| end + 1)];
    let text = text.strip_suffix(b"\n").ok_or("has no end")?;
    let at = text.iter().rposition(|byte| *byte == b'\n');
    let (line, sum) = text.split_at(at.ok_or("has no checksum")?);
    let meant = format!("\n{:08x}", checksum(&[line]));
    match sum == meant.as_bytes() {
        true => Ok(line),
        false => Err("its checksum is wrong".into()),
    }
}

impl Kept for Shared {
    fn unit(&self) -> Uuid {
        self.unit
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn nonce(&self) -> Uuid {
        self.nonce
    }

    fn encode(&self) -> Vec<u8> {
        let text = Text {
            version: VERSION,
            unit: hex(self.unit),
            number: self.number,
            nonce: hex(self.nonce),
            by: hex(self.by),
            record: self.record.clone(),
        };
        with_sum(serde_json::to_string(&text).unwrap_or_default())
    }

    fn parse(bytes: &[u8]) -> Result<Shared, String> {
        let text: Text =
            serde_json::from_slice(without_sum(bytes)?).map_err(|error| error.to_string())?;
        if text.version != VERSION {
            return Err(format!("it has version {}", text.version));
        }
        text.record.check()?;
        if !text.record.moved.is_empty() {
            return Err("it names members".into());
        }
        let id = |text: &str| parse_hex(text).ok_or_else(|| format!("{text:?} is no identity"));
        Ok(Shared {
            unit: id(&text.unit)?,
            number: text.number,
            nonce: id(&text.nonce)?,
            by: id(&text.by)?,
            record: text.record,
        })
    }
}

/// How far a host is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    version: u32,
    host: String,
    /// For people.
    pub name: String,
    /// Number of the record that it follows.
    pub follows: u64,
    /// Of the image that its members get.
    pub generation: u64,
    pub members: u64,
    pub moved: u64,
    pub in_use: u64,
    /// What is staged is in its caches.
    pub ready: bool,
    /// Why what is staged cannot be had here.
    pub failed: Option<String>,
    /// Its part of the step is over.
    pub ends: bool,
    /// Members that are unhealthy, and why.
    pub ill: Vec<(String, String)>,
    /// Why it does not follow the record of the vault.
    pub trouble: Option<String>,
}

fn short(text: &str) -> String {
    text.chars().take(WORDS_MAX).collect()
}

impl Report {
    pub fn of(host: Uuid, name: &str) -> Report {
        Report {
            version: VERSION,
            host: hex(host),
            name: name.to_owned(),
            ..Report::default()
        }
    }

    pub fn host(&self) -> Option<Uuid> {
        parse_hex(&self.host)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut report = self.clone();
        report.ill.truncate(ILL_MAX);
        for (_, why) in &mut report.ill {
            *why = short(why);
        }
        report.failed = report.failed.as_deref().map(short);
        report.trouble = report.trouble.as_deref().map(short);
        with_sum(serde_json::to_string(&report).unwrap_or_default())
    }

    pub fn parse(bytes: &[u8]) -> Result<Report, String> {
        let report: Report =
            serde_json::from_slice(without_sum(bytes)?).map_err(|error| error.to_string())?;
        match report.version == VERSION && report.host().is_some() {
            true => Ok(report),
            false => Err("it is of another version, or of no host".into()),
        }
    }
}

/// What is to become of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing before something is seen or the time has come.
    Wait,
    Switch,
    /// What was staged cannot be had: where, and why.
    Unstage(String),
    Step,
    Stable,
    Back(String),
}

impl Decision {
    /// The record that follows. Members are each host's to know.
    pub fn change(&self, record: &mut Record, now_unix_ms: u64) {
        match self {
            Decision::Wait => {}
            Decision::Switch => record.switch(now_unix_ms),
            Decision::Unstage(why) => record.unstage(Some(why.clone())),
            Decision::Step => record.step(now_unix_ms),
            Decision::Stable => record.settle(),
            Decision::Back(why) => record.go_back(&[], Some(why.clone()), now_unix_ms),
        }
    }
}

impl Shared {
    /// The record after this one, or the first, as a host has made it. `known`: generations that
    /// hosts have had; one may have had images that the vault has never heard of, or not any more.
    pub fn next(
        (unit, number): (Uuid, u64),
        (nonce, by): (Uuid, Uuid),
        mut record: Record,
        known: impl Iterator<Item = u64>,
    ) -> Shared {
        record.moved.clear();
        let most = known.max().unwrap_or(0);
        if record.phase == Phase::Staged && most > record.image.generation {
            record.image.generation = most + 1;
        }
        Shared {
            unit,
            number,
            nonce,
            by,
            record,
        }
    }

    /// Whether a vault gives all of it back.
    pub fn fits(&self) -> bool {
        self.encode().len() <= OWN_BYTES_MAX
    }

    /// What follows from what the hosts that count say. `patient`: one that does not follow yet is
    /// waited for.
    pub fn decide(&self, reports: &[Report], patient: bool, now_unix_ms: u64) -> Decision {
        let record = &self.record;
        let follows = |it: &&Report| it.follows == self.number;
        let missing = reports.iter().any(|it| it.follows != self.number);
        let current: Vec<&Report> = reports.iter().filter(follows).collect();
        if current.is_empty() {
            return Decision::Wait;
        }
        let waits = missing && patient;
        match record.phase {
            Phase::Stable => Decision::Wait,
            Phase::Staged => {
                let failed = |it: &&Report| Some(format!("{}: {}", it.name, it.failed.as_ref()?));
                if let Some(why) = current.iter().find_map(failed) {
                    return Decision::Unstage(why);
                }
                let at = record.rollout.asked.at_unix_ms;
                let due = at.is_some_and(|at| at <= now_unix_ms);
                match due && !waits && current.iter().all(|it| it.ready) {
                    true => Decision::Switch,
                    false => Decision::Wait,
                }
            }
            Phase::Rolling => {
                let named = |it: &&Report| {
                    let host = it.name.clone();
                    let ill = it.ill.clone().into_iter();
                    ill.map(move |(member, why)| format!("{member} on {host}: {why}"))
                        .collect::<Vec<_>>()
                };
                let ill: Vec<String> = current.iter().flat_map(named).collect();
                if ill.len() > record.rollout.asked.max_failed as usize && !record.rollout.back {
                    let more = match ill.len() {
                        1 => String::new(),
                        many => format!(", and {} more", many - 1),
                    };
                    return Decision::Back(format!("{}{more}", ill[0]));
                }
                match (waits, current.iter().all(|it| it.ends)) {
                    (false, true) if record.rollout.steps_left() > Some(0) => Decision::Step,
                    (false, true) => Decision::Stable,
                    _ => Decision::Wait,
                }
            }
        }
    }
}

/// The identity of a pool in its cluster: FNV-1a of 128 bits, the same on every host.
pub fn unit_of(cluster: Uuid, pool: &str) -> Uuid {
    let start: u128 = 0x6C62_272E_07BB_0142_62B8_2175_6295_C58D;
    let bytes = b"pool"
        .iter()
        .chain(&cluster.0)
        .copied()
        .chain(pool.bytes());
    let hash = bytes.fold(start, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013B)
    });
    Uuid(hash.to_le_bytes())
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
