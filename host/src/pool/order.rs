//! How a refresh is ordered, and how far it is.
//!
//! Always true: a later step takes all that an earlier one took. Deliberately absent: what follows
//! from that; see [`super::rollout`].

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// How a refresh was ordered, and how far it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rollout {
    pub asked: Asked,
    /// The canaries, if there are some, are step 0.
    pub step: usize,
    /// Since when nothing has moved in this step.
    pub since_unix_ms: u64,
    /// It goes to the image before.
    pub back: bool,
    /// Why, if it does so by itself, or why what was staged was not switched to.
    pub went_back: Option<String>,
}

/// What of an image is read before members move to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Prefetch {
    /// What members have read of the image before.
    #[default]
    Profile,
    All,
    None,
}

impl Prefetch {
    pub const WORDS: [&'static str; 3] = ["profile", "all", "none"];

    pub fn parse(word: &str) -> Option<Prefetch> {
        match word {
            "profile" => Some(Prefetch::Profile),
            "all" => Some(Prefetch::All),
            "none" => Some(Prefetch::None),
            _ => None,
        }
    }

    /// As a daemon understands it that does not know this.
    fn is_default(&self) -> bool {
        *self == Prefetch::default()
    }
}

/// What is ordered of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    pub canaries: BTreeSet<String>,
    /// Of all members, growing; the last one of a roll-out is 100.
    pub percents: Vec<u8>,
    pub soak_ms: u64,
    /// More unhealthy members than this, and the pool goes back.
    pub max_failed: u32,
    /// A program that is called with a member's name: 0 = it is healthy.
    pub health: Option<PathBuf>,
    /// When it switches by itself.
    pub at_unix_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Prefetch::is_default")]
    pub prefetch: Prefetch,
}

impl Rollout {
    pub fn of(mut asked: Asked) -> Rollout {
        if asked.percents.last() != Some(&100) {
            asked.percents.push(100);
        }
        Rollout {
            asked,
            ..Rollout::default()
        }
    }

    fn first_percent(&self) -> usize {
        usize::from(!self.asked.canaries.is_empty())
    }

    /// Steps after this one; none if it is at no step that there is.
    pub fn steps_left(&self) -> Option<usize> {
        // Of a pool that was never refreshed there is no step.
        let steps = (self.first_percent() + self.asked.percents.len()).max(1);
        (steps - 1).checked_sub(self.step)
    }

    /// Percent of the members that this step takes; none: the canaries only.
    pub fn percent(&self) -> Option<u8> {
        let at = self.step.checked_sub(self.first_percent())?;
        self.asked.percents.get(at).copied()
    }

    pub fn takes(&self, generation: u64, member: &str) -> bool {
        let percent = u64::from(self.percent().unwrap_or(0));
        self.asked.canaries.contains(member) || place(member, generation) < percent
    }

    pub fn waits_for_all(&self) -> bool {
        self.percent().is_none() || self.steps_left() == Some(0)
    }
}

/// A member's place among a hundred, the same on every host: FNV-1a of 64 bits.
fn place(member: &str, generation: u64) -> u64 {
    let bytes = generation.to_le_bytes().into_iter().chain(member.bytes());
    let hash = bytes.fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    // The low bits of the last bytes are not mixed much.
    ((hash >> 32) ^ hash) % 100
}
