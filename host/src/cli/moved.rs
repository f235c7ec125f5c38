//! Copies on the SSD of a dead host: which of them have everything that was flushed.
//!
//! ```text
//! newest record ─┬─ no owner, or its image has every flush ─▶ not needed
//!                ├─ older than what the copy obeys ─▶ refused: the vault went back
//!                ├─ does not name the copy ─▶ refused: another host has gone on without it
//!                └─ names it ─┬─ some of it was to come yet, or is damaged ─▶ refused: short
//!                             └─ else ─▶ used
//! ```
//!
//! Always true: a copy is used only where the newest record names exactly this one as a member: its
//! host, its cache and itself (C11). Each member of a record has every flush that was acknowledged
//! (C2, C4), so one that is whole is as good as the SSD of the owner. The one exception is the copy
//! of a host that took the volume over and was still getting it from another member; the log tells
//! it from others by what it calls its lineage. Deliberately absent: whether the owner lives, and
//! what is done with a copy; see [`super::surrogate`].

use crate::cluster::member::parse_id;
use engine::snapshot::VolumeSnapshot;
use engine::types::{Serial, Uuid};
use node::record::{Member, Record};

/// A copy that is in the log of a cache.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    pub copy: Uuid,
    pub cache: Uuid,
    /// The newest record that it obeys, as far as its log was told.
    pub term: u64,
    /// The session of its owner, or the copy that it is made from.
    pub lineage: Uuid,
    pub end: Serial,
    /// The image has all up to here.
    pub destaged: Serial,
    /// The log has lost some of it.
    pub damaged: bool,
    /// The newest write of which a block cannot be read.
    pub bad_upto: Serial,
}

/// What becomes of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This member of the record goes on with it.
    Use(Member),
    /// The image has all that was flushed.
    NotNeeded(String),
    /// Another host has what it has, and more.
    Superfluous(String),
    /// What it has may be nowhere else, and it is not enough.
    Short(String),
}

impl Copied {
    /// The copy that a replica of the log is. `damaged`: the log has lost some of it.
    pub fn of(
        volume: &VolumeSnapshot,
        cache: Uuid,
        damaged: bool,
        bad_upto: Serial,
    ) -> Option<Copied> {
        let replica = volume.replica.as_ref()?;
        Some(Copied {
            copy: parse_id(volume.name.strip_prefix('@')?)?,
            cache,
            term: replica.term,
            lineage: volume.lineage,
            end: replica.end,
            destaged: volume.destaged_serial,
            damaged,
            bad_upto,
        })
    }

    /// Some of what it should have cannot be read.
    fn is_damaged(&self) -> bool {
        self.damaged || self.bad_upto > self.destaged
    }

    /// It was to be made from the copy of this member, and was not whole yet.
    fn is_fetched_from(&self, member: &Member) -> bool {
        member.copy != self.copy && member.copy == self.lineage
    }
}

/// What this record, which is the newest one, makes of a copy.
pub fn judge(record: Option<&Record>, found: &Copied) -> Verdict {
    let Some(record) = record else {
        return Verdict::Short("its vault has no record of it".into());
    };
    let number = record.number;
    if found.term > number {
        let term = found.term;
        return Verdict::Short(format!(
            "it obeys record {term}, and the newest one in the vault is {number}; if the vault was \
             put back to an older state, bring back the newer one"
        ));
    }
    let Some(owner) = &record.owner else {
        return Verdict::NotNeeded("no host owns it, and its image has everything".into());
    };
    let owner = &owner.name;
    let named = record.members.iter().find(|it| it.copy == found.copy);
    let Some(named) = named.filter(|it| it.cache == found.cache) else {
        return Verdict::Superfluous(format!(
            "record {number} of {owner} does not name this copy: it was not complete yet, or \
             {owner} has gone on without it since"
        ));
    };
    if record.at_origin {
        return Verdict::NotNeeded(format!(
            "its image has everything that was flushed; when {owner} can write no more, run \
             `tenuto volume takeover --fenced` on a host that names it"
        ));
    }
    let mut members = record.members.iter();
    if members.any(|member| found.is_fetched_from(member)) {
        return Verdict::Short(format!(
            "this copy was not complete yet: some of it was still to come from another host when \
             {owner} was lost; what it has ends at write {}",
            found.end.0
        ));
    }
    match found.is_damaged() {
        true => Verdict::Short(
            "this copy is damaged: some of it cannot be read; see `tenuto cache verify`".into(),
        ),
        false => Verdict::Use(*named),
    }
}

#[cfg(test)]
#[path = "moved_tests.rs"]
mod tests;
