//! The classes of durability.
//!
//! Owns their names. Deliberately absent: what a disk of a class is like, which the rules say.

use serde::{Deserialize, Serialize};

/// How durable data must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// On the shared storage before it is acknowledged.
    WriteThrough,
    /// On the shared storage within minutes or hours, in order.
    WriteBack,
    /// On the host's SSD only.
    Never,
    /// As write-through, on a disk that each clone of a pool has for itself; `[pool]` names it.
    Keep,
}

impl Class {
    pub const ALL: [Class; 4] = [
        Class::WriteThrough,
        Class::WriteBack,
        Class::Never,
        Class::Keep,
    ];

    /// What is promised of data; disks of clones are none of its own.
    pub const DURABILITIES: [Class; 3] = [Class::WriteThrough, Class::WriteBack, Class::Never];

    /// What is promised of data of this class.
    pub const fn durability(self) -> Class {
        match self {
            Class::WriteThrough | Class::Keep => Class::WriteThrough,
            other => other,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Class::WriteThrough => "write-through",
            Class::WriteBack => "write-back",
            Class::Never => "never",
            Class::Keep => "keep",
        }
    }

    /// Whether the loss of a host with its SSD takes something of it.
    pub const fn is_relaxed(self) -> bool {
        matches!(self, Class::WriteBack | Class::Never)
    }

    pub fn from_name(name: &str) -> Option<Class> {
        Class::ALL.into_iter().find(|it| it.name() == name)
    }

    /// The label of a file system of the class; xfs takes twelve letters.
    pub const fn label(self) -> &'static str {
        match self {
            Class::WriteThrough => "tenuto-wt",
            Class::WriteBack => "tenuto-wb",
            Class::Never => "tenuto-never",
            Class::Keep => "tenuto-keep",
        }
    }
}
