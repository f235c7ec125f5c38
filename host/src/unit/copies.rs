//! What is shown of copies of dirty data: those of a volume on other hosts, and those that this
//! host keeps for others.
//!
//! Plain data. Always true: `real` counts the other hosts whose copy is complete and counts for a
//! flush, never one that is being made or is lost. Deliberately absent: how copies are made.

use node::choice::Spread;

/// What becomes of flushes while copies are missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDegraded {
    /// They are answered by the copies that are left.
    #[default]
    Continue,
    /// They are answered when the image has what they cover.
    WriteThrough,
}

impl OnDegraded {
    pub fn name(self) -> &'static str {
        match self {
            OnDegraded::Continue => "continue",
            OnDegraded::WriteThrough => "write-through",
        }
    }
}

/// Which hosts copies go to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CopyPlace {
    /// Of another fault domain, where there is one.
    #[default]
    OtherDomain,
    /// Of the same, where there is one.
    SameDomain,
    Any,
    /// Of these alone, by their names.
    Hosts(Vec<String>),
}

impl CopyPlace {
    pub fn spread(&self) -> Spread {
        match self {
            CopyPlace::OtherDomain => Spread::Apart,
            CopyPlace::SameDomain => Spread::Together,
            CopyPlace::Any | CopyPlace::Hosts(_) => Spread::Any,
        }
    }

    pub fn allows(&self, host: &str) -> bool {
        match self {
            CopyPlace::Hosts(names) => names.iter().any(|name| name == host),
            _ => true,
        }
    }
}

/// The copies that a volume is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// On other hosts.
    pub replicas: u8,
    pub on_degraded: OnDegraded,
    /// None: as the cluster says.
    pub place: Option<CopyPlace>,
}

/// The copies of one volume that is served here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replication {
    pub wanted: u8,
    pub real: u8,
    /// `full`, `degraded`, or `waiting`: flushes wait, as neither a member nor the vault answers.
    pub state: &'static str,
    /// Hosts whose copies count for a flush, this one among them, and those that were lost.
    pub members: Vec<MemberShown>,
    pub learner: Option<LearnerShown>,
    /// Flushes are answered when the image has what they cover.
    pub at_origin: bool,
    /// Why it is not `full`, or why writes wait although it is.
    pub reason: Option<String>,
}

impl Replication {
    /// A flush waits, or is on fewer hosts than it was asked for.
    pub fn is_wrong(&self) -> bool {
        matches!(self.state, "degraded" | "waiting")
    }

    /// Other hosts that have everything that was flushed.
    pub fn complete(&self) -> Vec<&str> {
        let members = self.members.iter();
        let members = members.filter(|member| member.state == "streaming");
        members.map(|member| member.host.as_str()).collect()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberShown {
    pub host: String,
    /// `here`, `streaming`, `catching-up` or `lost`.
    pub state: &'static str,
    /// The last serial that it has on media.
    pub durable: u64,
}

/// A host that gets a copy, which counts when it is complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LearnerShown {
    pub host: String,
    pub percent: u8,
}

/// A copy that this host keeps for another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyShown {
    /// Of the volume.
    pub name: String,
    /// The host that the volume belongs to, as far as this one knows.
    pub owner: String,
    /// `learner`, `member`, `frozen` or `retired`.
    pub state: &'static str,
    /// The last serial that it has.
    pub end: u64,
    /// What it takes of the log here.
    pub bytes: u64,
}
