//! Copies of dirty data on other hosts, as administrators see them.
//!
//! Owns the words for them: the documents, what is wrong, and what is new between two looks.
//! Always true: made from plain data only, and a copy that does not count for a flush is never
//! told as one. Deliberately absent: how copies are made, which is [`crate::unit`].

use super::View;
use super::events::{Kind, Severity};
use crate::unit::Shown;
use crate::unit::copies::{CopyShown, Replication};
use engine::snapshot::{CopyRoom, State, VolumeSnapshot};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What is new of a volume of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub severity: Severity,
    pub kind: Kind,
    pub words: String,
}

impl View {
    /// The copies of a volume that is served here and has some, or shall have some.
    pub fn replication(&self, volume: &VolumeSnapshot) -> Option<&Replication> {
        self.look.units.get(&volume.name)?.replication.as_ref()
    }

    /// The copies of a volume, if they are not what was asked for.
    fn wrong_copies(&self, volume: &VolumeSnapshot) -> Option<&Replication> {
        self.replication(volume).filter(|it| it.is_wrong())
    }

    /// A volume with too few copies is degraded, whether it is dirty or not.
    pub fn state(&self, volume: &VolumeSnapshot) -> &'static str {
        match volume.state {
            State::Clean | State::Dirty if self.wrong_copies(volume).is_some() => "degraded",
            state => state.name(),
        }
    }

    /// Why a volume is degraded.
    pub fn degraded_reason(&self, volume: &VolumeSnapshot) -> Option<String> {
        (self.state(volume) == "degraded").then(|| self.wrong_copies(volume).map(why))?
    }
}

fn why(replication: &Replication) -> String {
    let reason = replication.reason.clone().unwrap_or_else(|| {
        let Replication { wanted, real, .. } = replication;
        format!("{real} of {wanted} copies on other hosts are complete")
    });
    let mut words = reason;
    if let Some(learner) = &replication.learner {
        let (host, percent) = (&learner.host, learner.percent);
        words += &format!("; {host} gets a copy, {percent} % of it is there");
    }
    words
}

/// `replication` of a clustered volume; `wanted` is what the configuration says.
pub fn document(wanted: u8, replication: Option<&Replication>) -> Value {
    let Some(it) = replication else {
        return json!({
            "wanted": wanted,
            "real": 0,
            "state": null,
            "members": [],
            "learner": null,
            "at_origin": false,
            "reason": null,
        });
    };
    let members = it.members.iter().map(|member| {
        json!({ "host": member.host, "state": member.state, "durable_serial": member.durable })
    });
    let learner = it.learner.as_ref();
    json!({
        "wanted": it.wanted,
        "real": it.real,
        "state": it.state,
        "members": members.collect::<Vec<Value>>(),
        "learner": learner.map(|it| json!({ "host": it.host, "percent": it.percent })),
        "at_origin": it.at_origin,
        "reason": it.reason,
    })
}

/// One of `copies[]`: what this host keeps for another.
pub fn copy(copy: &CopyShown) -> Value {
    json!({
        "name": copy.name,
        "owner": copy.owner,
        "state": copy.state,
        "end_serial": copy.end,
        "bytes": copy.bytes,
    })
}

/// Room for copies in the log of this host.
pub fn room(room: &CopyRoom) -> Value {
    json!({
        "max_bytes": room.max_bytes,
        "taken_bytes": room.taken_bytes,
        "free_bytes": room.free_bytes,
    })
}

/// How many copies a host has of volumes that are served here, also those that do not count yet.
pub fn held_by(host: &str, units: &BTreeMap<String, Shown>) -> usize {
    let copies = units.values().filter_map(|unit| unit.replication.as_ref());
    let has = |copies: &&Replication| {
        let members = copies.members.iter();
        let mut members = members.filter(|member| !matches!(member.state, "here" | "lost"));
        let learns = copies.learner.as_ref().is_some_and(|it| it.host == host);
        learns || members.any(|member| member.host == host)
    };
    copies.filter(has).count()
}

/// How many copies are kept here for a host.
pub fn kept_for(host: &str, copies: &[CopyShown]) -> usize {
    copies.iter().filter(|copy| copy.owner == host).count()
}

/// The line of `status -x` for a volume whose copies are not what was asked for.
pub fn trouble(view: &View, volume: &VolumeSnapshot) -> Option<String> {
    let replication = view.wrong_copies(volume)?;
    let (name, why) = (&volume.name, why(replication));
    Some(match replication.state {
        "waiting" => format!("volume {name} is degraded, and its flushes wait: {why}"),
        _ => format!("volume {name} is degraded: {why}"),
    })
}

/// What is worth an event between two looks at one volume.
pub fn changes(before: &Shown, after: &Shown) -> Vec<Change> {
    let mut changes = Vec::new();
    changes.extend(taken_over(before, after).or_else(|| proved(before, after)));
    let state = |shown: &Shown| shown.replication.as_ref().map_or("", |it| it.state);
    let (was, Some(now)) = (state(before), &after.replication) else {
        return changes;
    };
    if was == now.state {
        return changes;
    }
    let was_wrong = before
        .replication
        .as_ref()
        .is_some_and(Replication::is_wrong);
    let words = match now.state {
        "degraded" => format!("is degraded: {}", why(now)),
        "waiting" => format!("is degraded, and its flushes wait: {}", why(now)),
        "full" if was_wrong => format!("its copies are complete again: {}", holders(now)),
        _ => return changes,
    };
    let severity = match now.state {
        "degraded" => Severity::Warning,
        "waiting" => Severity::Error,
        _ => Severity::Info,
    };
    let kind = Kind::Replication;
    changes.push(Change {
        severity,
        kind,
        words,
    });
    changes
}

/// A volume that another host owned, and did not give.
fn taken_over(before: &Shown, after: &Shown) -> Option<Change> {
    let owner = before
        .owner
        .as_ref()
        .filter(|_| !before.here && after.here)?;
    if after.owner.as_ref() == Some(owner) {
        return None;
    }
    let words = match (waits_for(after), after.proof) {
        (Some(host), _) => format!(
            "was taken over from {owner}; nothing is brought to its image, which {host} may still \
             write"
        ),
        (None, Some(proof)) => {
            format!("was taken over from {owner}, which can write no more: {proof}")
        }
        (None, None) => return None,
    };
    Some(Change {
        severity: Severity::Warning,
        kind: Kind::Replication,
        words,
    })
}

/// There is proof for a volume that was taken over without.
fn proved(before: &Shown, after: &Shown) -> Option<Change> {
    let host = waits_for(before).filter(|_| after.here && waits_for(after).is_none())?;
    Some(Change {
        severity: Severity::Info,
        kind: Kind::Replication,
        words: format!("{host} writes its image no more: {}", after.proof?),
    })
}

/// The host that may still write the image of a volume that is served here.
fn waits_for(unit: &Shown) -> Option<&String> {
    let drainer = unit.drainer.as_ref().filter(|_| unit.here);
    drainer.filter(|drainer| unit.owner.as_ref() != Some(*drainer))
}

/// The other hosts that have everything that was flushed, in words.
pub fn holders(replication: &Replication) -> String {
    match replication.complete().as_slice() {
        [] => "no other host has one".into(),
        [host] => format!("{host} has one"),
        hosts => format!("{} have one each", hosts.join(", ")),
    }
}
