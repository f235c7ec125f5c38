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
}

impl Class {
    pub const ALL: [Class; 3] = [Class::WriteThrough, Class::WriteBack, Class::Never];

    pub const fn name(self) -> &'static str {
        match self {
            Class::WriteThrough => "write-through",
            Class::WriteBack => "write-back",
            Class::Never => "never",
        }
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
        }
    }
}
