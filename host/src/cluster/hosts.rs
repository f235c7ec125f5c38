//! The list of members: who belongs to the cluster and where they are.
//!
//! Owns the merging of two lists. Always true: merging is the same in every order, so all hosts end
//! with one list; a host that has left is never a member again, whatever an older list says; of a
//! member the newest revision counts, which only that host and the one that let it in make.
//! Deliberately absent: links, and the file, which is `identity`'s.

use super::member::{Member, parse_id};
use engine::types::Uuid;
use node::frame::{ADDRESSES_MAX, HOSTS_MAX, Host};
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts(BTreeMap<Uuid, Host>);

impl Hosts {
    pub fn get(&self, id: Uuid) -> Option<&Host> {
        self.0.get(&id)
    }

    pub fn has_left(&self, id: Uuid) -> bool {
        self.get(id).is_some_and(|host| host.left)
    }

    pub fn members(&self) -> impl Iterator<Item = &Host> {
        self.0.values().filter(|host| !host.left)
    }

    pub fn list(&self) -> Vec<Host> {
        self.0.values().cloned().collect()
    }

    /// Takes what is newer; whether anything was. One too many is not taken.
    pub fn merge(&mut self, host: Host) -> bool {
        let host = match host.left {
            false => host,
            true => Host {
                name: String::new(),
                domain: String::new(),
                addresses: Vec::new(),
                ..host
            },
        };
        match self.0.get_mut(&host.id) {
            Some(known) => {
                let newer = host.revision > known.revision && host.left == known.left;
                let takes = newer || (host.left && !known.left);
                if takes {
                    *known = host;
                }
                takes
            }
            None => {
                let alike = self.0.values().filter(|known| known.left == host.left);
                let room = alike.count() < HOSTS_MAX;
                if room {
                    self.0.insert(host.id, host);
                }
                room
            }
        }
    }

    /// Gives a member what it says of itself now; whether that is new.
    pub fn revise(&mut self, member: &Member) -> bool {
        let known = self.0.get(&member.id);
        let revision = known.map_or(1, |known| known.revision + 1);
        if known.is_some_and(|known| known.left || member_of(known) == *member) {
            return false;
        }
        self.merge(Host {
            id: member.id,
            revision,
            left: false,
            name: member.name.clone(),
            domain: member.domain.clone(),
            addresses: member.addresses.clone(),
        })
    }

    pub fn leave(&mut self, id: Uuid) {
        let revision = self.0.get(&id).map_or(1, |known| known.revision + 1);
        self.merge(Host {
            id,
            revision,
            left: true,
            name: String::new(),
            domain: String::new(),
            addresses: Vec::new(),
        });
    }

    pub fn to_json(&self) -> Value {
        let hosts = self.0.values().map(|host| {
            json!({
                "id": host.id.to_string(), "revision": host.revision, "left": host.left,
                "name": host.name, "domain": host.domain, "addresses": host.addresses,
            })
        });
        json!({ "hosts": hosts.collect::<Vec<Value>>() })
    }

    pub fn from_json(document: &Value) -> Option<Hosts> {
        let mut hosts = Hosts::default();
        for host in document["hosts"].as_array()? {
            let text = |key: &str| host[key].as_str().map(str::to_owned);
            let addresses = host["addresses"].as_array()?.iter().take(ADDRESSES_MAX);
            hosts.merge(Host {
                id: parse_id(&text("id")?)?,
                revision: host["revision"].as_u64()?,
                left: host["left"].as_bool()?,
                name: text("name")?,
                domain: text("domain")?,
                addresses: addresses
                    .filter_map(|it| it.as_str().map(str::to_owned))
                    .collect(),
            });
        }
        Some(hosts)
    }
}

pub fn member_of(host: &Host) -> Member {
    Member {
        id: host.id,
        name: host.name.clone(),
        domain: host.domain.clone(),
        addresses: host.addresses.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u8, revision: u64, left: bool) -> Host {
        Host {
            id: Uuid([number; 16]),
            revision,
            left,
            name: format!("host-{revision}"),
            domain: String::new(),
            addresses: vec!["10.0.0.1:7440".into()],
        }
    }

    #[test]
    fn lists_merge_to_the_same_in_every_order() {
        let all = [
            host(1, 1, false),
            host(1, 2, false),
            host(1, 1, true),
            host(2, 1, false),
        ];
        let mut ends = Vec::new();
        for first in 0..all.len() {
            let mut hosts = Hosts::default();
            for step in 0..all.len() {
                hosts.merge(all[(first + step) % all.len()].clone());
            }
            assert!(hosts.has_left(Uuid([1; 16])));
            let members: Vec<Uuid> = hosts.members().map(|host| host.id).collect();
            ends.push(members);
        }
        ends.dedup();
        assert_eq!(ends, [[Uuid([2; 16])]]);
    }

    #[test]
    fn a_list_reads_back_and_takes_no_more_than_it_holds() {
        let mut hosts = Hosts::default();
        for number in 0..=HOSTS_MAX as u8 {
            let taken = hosts.merge(host(number, 1, false));
            assert_eq!(taken, usize::from(number) < HOSTS_MAX);
        }
        hosts.leave(Uuid([3; 16]));
        assert_eq!(hosts.members().count(), HOSTS_MAX - 1);
        assert_eq!(Hosts::from_json(&hosts.to_json()), Some(hosts));
        assert_eq!(Hosts::from_json(&json!({})), None);
    }

    #[test]
    fn a_member_that_says_the_same_is_not_revised() {
        let mut hosts = Hosts::default();
        let member = member_of(&host(1, 1, false));
        assert!(hosts.revise(&member));
        assert!(!hosts.revise(&member));
        let moved = Member {
            domain: "rack-2".into(),
            ..member
        };
        assert!(hosts.revise(&moved));
        assert_eq!(hosts.get(moved.id).map(|host| host.revision), Some(2));
        hosts.leave(moved.id);
        assert!(!hosts.revise(&moved));
    }
}
