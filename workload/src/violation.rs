//! How a promise was broken, for people to read.
//!
//! Owns the kinds of violation and their words. Always true: a violation names the first sectors
//! that differ, what they hold and what they should. Deliberately absent: the judgment itself.

use crate::stamp::Reading;
use core::fmt;

/// One sector that is not what it should be. Contents are serials; `None` = zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    pub sector: u64,
    pub found: Option<u64>,
    pub expected: Option<u64>,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Neither old nor new: a mixture inside a sector, or foreign bytes.
    Torn { sector: u64 },
    /// A whole sector of another place, volume or time.
    Misplaced { sector: u64, found: Reading },
    /// No cut explains what was found. `cut` is the nearest.
    NoPrefix {
        cut: u64,
        floor: u64,
        newest: u64,
        differing: u64,
        first: Vec<Difference>,
    },
    /// What was found is a prefix, but one that ends before something promised.
    Lost { cut: u64, floor: u64, newest: u64 },
    /// Sectors that hold neither the last flushed value nor a later one.
    Stale {
        differing: u64,
        first: Vec<Difference>,
    },
    /// A read was answered with something older than an acknowledged write, or never written.
    StaleRead(Difference),
    /// An ephemeral volume survived its host.
    NotClean {
        differing: u64,
        first: Vec<Difference>,
    },
    /// The bytes could not be had.
    Unreadable(String),
}

impl std::error::Error for Violation {}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Torn { sector } => write!(f, "sector {sector} is torn or foreign"),
            Violation::Misplaced { sector, found } => {
                write!(f, "sector {sector} holds {found:?}")
            }
            Violation::NoPrefix {
                cut,
                floor,
                newest,
                differing,
                first,
            } => {
                write!(
                    f,
                    "no prefix of writes explains the volume: nearest is 1..={cut} "
                )?;
                write!(
                    f,
                    "(promised {floor}, submitted {newest}), {differing} sectors differ:"
                )?;
                show(f, first)
            }
            Violation::Lost { cut, floor, newest } => {
                write!(
                    f,
                    "promised writes are lost: holds 1..={cut}, promised 1..={floor}, "
                )?;
                write!(f, "submitted {newest}")
            }
            Violation::Stale { differing, first } => {
                write!(f, "{differing} sectors are older than promised:")?;
                show(f, first)
            }
            Violation::StaleRead(difference) => {
                write!(f, "a read returned what it must not:")?;
                show(f, std::slice::from_ref(difference))
            }
            Violation::NotClean { differing, first } => {
                write!(
                    f,
                    "{differing} sectors of an ephemeral volume are not clean:"
                )?;
                show(f, first)
            }
            Violation::Unreadable(reason) => f.write_str(reason),
        }
    }
}

fn show(f: &mut fmt::Formatter<'_>, differences: &[Difference]) -> fmt::Result {
    let name = |content: Option<u64>| content.map_or("zeroes".to_owned(), |it| format!("#{it}"));
    for Difference {
        sector,
        found,
        expected,
    } in differences
    {
        write!(
            f,
            " [sector {sector}: {}, expected {}]",
            name(*found),
            name(*expected)
        )?;
    }
    Ok(())
}
