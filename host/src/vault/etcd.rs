//! The records of one unit in an etcd.
//!
//! ```text
//! /tenuto/CLUSTER/unit/UNIT           made with the unit; without it nothing is made below
//! /tenuto/CLUSTER/unit/UNIT/NUMBER    a record, without the zeroes at its end
//! /tenuto/CLUSTER/said/UNIT/HOST      what a host says of itself, of a pool
//! /tenuto/drill/NAME                  of `cluster check`
//! ```
//!
//! Owns what the calls that [`node::vault`] asks for are on an etcd: to link is a transaction that
//! makes a key which is not there, and to read is a read of what most members have. Always true: a
//! record is made only where the unit and the record before it are, so an etcd that was made anew
//! or put back decides nothing; keys of records are never removed, so a transaction that arrives
//! late meets its key. Deliberately absent: what an answer means.

use super::answers::{self, Range};
use super::gateway::{DELETE, Gateway, PUT, RANGE, TRANSACTION};
use super::place::Etcd;
use super::{Own, Store};
use engine::types::Uuid;
use node::record::RECORD_BYTES;
use node::vault::{Answer, Call, hex};

/// Value of the key of a unit.
const MADE: &[u8] = b"tenuto";
const DRILLS: &str = "/tenuto/drill/";

#[derive(Debug)]
pub struct Keys {
    gateway: Gateway,
    /// The key of the unit.
    unit: String,
    /// What names of records begin with.
    start: String,
    /// What the keys begin with that hosts say of themselves.
    said: String,
}

/// The value of a key, if there is one.
fn value_of(gateway: &Gateway, key: &str) -> Result<Option<Vec<u8>>, String> {
    let found = gateway.ask(RANGE, &answers::get(key), answers::range)?;
    match (found.keys.into_iter().next(), found.count) {
        (None, 0) => Ok(None),
        (Some((found, value)), 1) if found == key.as_bytes() => Ok(Some(value)),
        _ => Err("the answer is about another key".into()),
    }
}

impl Keys {
    pub fn new(etcd: &Etcd, cluster: Uuid, unit: Uuid) -> Keys {
        let (cluster, unit) = (hex(cluster), hex(unit));
        Keys {
            gateway: Gateway::new(etcd),
            start: format!("r.{unit}."),
            unit: format!("/tenuto/{cluster}/unit/{unit}"),
            said: format!("/tenuto/{cluster}/said/{unit}/"),
        }
    }

    fn key(&self, name: &str) -> String {
        let number = name.strip_prefix(&self.start).unwrap_or(name);
        format!("{}/{number}", self.unit)
    }

    /// Keys that must be there for this record to be made.
    fn needs(&self, own: &Own) -> Vec<String> {
        let mut needs = vec![self.unit.clone()];
        if own.number > 1 {
            needs.push(format!("{}/{:020}", self.unit, own.number - 1));
        }
        needs
    }

    fn rehearse(&self, name: &str, own: &Own) -> Result<Answer, String> {
        let needs = self.needs(own);
        let request = answers::rehearse(&self.key(name), &trimmed(own), &needs);
        let answer = self
            .gateway
            .ask(TRANSACTION, &request, answers::transaction)?;
        if answer.succeeded || answer.ranges.len() != needs.len() {
            return Err("the answer is about another transaction".into());
        }
        let is_missing = |(_, range): &(&String, &Range)| range.count == 0;
        match needs.iter().zip(&answer.ranges).find(is_missing) {
            None => Ok(Answer::Done),
            Some((key, _)) => Err(format!("has no {key}; is it the etcd that had it?")),
        }
    }

    fn link(&self, name: &str, own: &Own) -> Result<Answer, String> {
        let request = answers::make(&self.key(name), &trimmed(own), &self.needs(own));
        self.gateway
            .ask(TRANSACTION, &request, answers::transaction)
            .map(|_| Answer::Done)
    }

    fn read(&self, name: &str) -> Result<Answer, String> {
        let value = value_of(&self.gateway, &self.key(name))?;
        Ok(value.map_or(Answer::Absent, |mut value| {
            if value.len() < RECORD_BYTES {
                value.resize(RECORD_BYTES, 0);
            }
            Answer::Bytes(value)
        }))
    }

    /// The newest is enough of a list.
    fn list(&self) -> Result<Answer, String> {
        let start = format!("{}/", self.unit);
        let found = self
            .gateway
            .ask(RANGE, &answers::last(&start), answers::range)?;
        let name = |(key, _): &(Vec<u8>, Vec<u8>)| {
            let key = std::str::from_utf8(key).ok()?;
            Some(format!("{}{}", self.start, key.strip_prefix(&start)?))
        };
        let names: Option<Vec<String>> = found.keys.iter().map(name).collect();
        match names {
            Some(names) if names.is_empty() == (found.count == 0) => Ok(Answer::Names(names)),
            _ => Err("the answer is about other keys".into()),
        }
    }
}

/// Zeroes are added again where a record is read, and it has a checksum.
fn trimmed(own: &Own) -> Vec<u8> {
    let mut bytes = own.bytes.clone();
    let end = bytes.iter().rposition(|byte| *byte != 0);
    bytes.truncate(end.map_or(0, |end| end + 1));
    bytes
}

impl Store for Keys {
    fn shown(&self) -> String {
        self.gateway.show()
    }

    fn make(&self) -> Result<(), String> {
        let request = answers::make(&self.unit, MADE, &[]);
        let made = self
            .gateway
            .ask(TRANSACTION, &request, answers::transaction);
        // Whatever was answered, what is there counts.
        match (value_of(&self.gateway, &self.unit), made) {
            (Ok(Some(_)), _) => Ok(()),
            (Err(why), _) | (Ok(None), Err(why)) => Err(format!("vault {}: {why}", self.shown())),
            (Ok(None), Ok(_)) => Err(format!("vault {}: keeps no key", self.shown())),
        }
    }

    fn find(&self) -> Result<(), String> {
        match value_of(&self.gateway, &self.unit) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(format!(
                "vault {}: has no records of the volume; name the etcd that had them",
                self.shown()
            )),
            Err(why) => Err(format!("vault {}: {why}", self.shown())),
        }
    }

    fn call(&self, call: &Call, own: Option<&Own>) -> Result<Answer, String> {
        let owned = || own.ok_or("a look makes nothing".to_owned());
        match call {
            Call::Write { name, .. } => self.rehearse(name, owned()?),
            Call::Link { to, .. } => self.link(to, owned()?),
            Call::Read { name } => self.read(name),
            Call::List => self.list(),
            // An answer comes from what is on the disks of most members, and nothing is left over.
            Call::Sync | Call::Remove { .. } => Ok(Answer::Done),
        }
    }

    fn say(&self, host: Uuid, bytes: &[u8]) -> Result<(), String> {
        let key = format!("{}{}", self.said, hex(host));
        let request = answers::replace(&key, bytes);
        self.gateway.ask(PUT, &request, answers::done)
    }

    fn said(&self) -> Result<Vec<Vec<u8>>, String> {
        let request = answers::all(&self.said);
        let found = self.gateway.ask(RANGE, &request, answers::range)?;
        Ok(found.keys.into_iter().map(|(_, value)| value).collect())
    }
}

/// An etcd as a place of drills, whatever cluster they are of.
pub struct Drills(Gateway);

impl Drills {
    pub fn new(etcd: &Etcd) -> Drills {
        Drills(Gateway::new(etcd))
    }

    /// Makes a name, whatever the call answers; gives the content that it has then.
    pub fn make(&self, name: &str, content: &str) -> Result<String, String> {
        let key = format!("{DRILLS}{name}");
        let request = answers::make(&key, content.as_bytes(), &[]);
        let made = self.0.ask(TRANSACTION, &request, answers::transaction);
        match (value_of(&self.0, &key)?, made) {
            (Some(found), _) => Ok(String::from_utf8_lossy(&found).into_owned()),
            (None, Err(why)) => Err(why),
            (None, Ok(_)) => Err("keeps no key".into()),
        }
    }

    pub fn remove(&self, name: &str) {
        let request = answers::get(&format!("{DRILLS}{name}"));
        let _ = self.0.ask(DELETE, &request, answers::done);
    }

    /// Each member, and its version or why it does not answer.
    pub fn versions(&self) -> Vec<(String, Result<String, String>)> {
        self.0.versions()
    }
}
