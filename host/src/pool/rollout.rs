//! Which members move when, and when a roll-out goes on, ends or goes back.
//!
//! A step takes the canaries, or so many percent of the members. It is over when what it took has
//! moved and its soak has passed since; a member whose guest runs on is waited for in the step of
//! the canaries and in the last one only, so that one desktop that is never restarted does not hold
//! up the others. Always true: a later step takes all that an earlier one took; a pool goes back by
//! a generation of its own, so the same members are not tried first again. Deliberately absent:
//! clocks; the time is given.

use super::order::{Asked, Rollout};
use super::record::{Image, Phase, Record};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What is seen of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    pub name: String,
    /// Its guest runs, or may come back.
    pub in_use: bool,
    /// Why it is not healthy, if it is not.
    pub unhealthy: Option<String>,
}

/// What becomes of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing before something is seen or the time has come.
    Wait,
    /// The record goes on to another step.
    Step,
    /// All members have the image.
    Stable,
    /// Members are unhealthy: which, and why.
    Back(String),
}

impl Record {
    /// Another image waits for the switch.
    pub fn stage(&mut self, image: &Path, asked: Asked) {
        assert!(self.phase != Phase::Rolling, "one refresh at a time");
        self.phase = Phase::Staged;
        self.staged = Some(image.to_owned());
        self.rollout = Rollout::of(asked);
    }

    /// What was staged is not wanted, or is not what it was.
    pub fn unstage(&mut self, why: Option<String>) {
        assert!(self.phase == Phase::Staged, "something is staged");
        self.phase = Phase::Stable;
        self.staged = None;
        self.rollout = Rollout {
            went_back: why,
            ..Rollout::default()
        };
    }

    /// Who starts from now on, and is taken by the first step, finds the image that was staged.
    pub fn switch(&mut self, now_unix_ms: u64) {
        let staged = self.staged.take().expect("an image was staged");
        self.turn_to(staged, BTreeSet::new(), now_unix_ms);
    }

    /// Members go back to the image before. `members`: all that there are.
    pub fn go_back(&mut self, members: &[String], why: Option<String>, now_unix_ms: u64) {
        let previous = self.previous.clone().expect("there is an image before");
        // Those that did not move are there already.
        let stayed = members.iter().filter(|it| !self.has_moved(it));
        let stayed = stayed.cloned().collect();
        self.rollout = Rollout {
            back: true,
            went_back: why,
            ..Rollout::of(Asked::default())
        };
        self.turn_to(previous.path, stayed, now_unix_ms);
    }

    fn turn_to(&mut self, path: PathBuf, moved: BTreeSet<String>, now_unix_ms: u64) {
        let generation = self.image.generation + 1;
        let image = Image { generation, path };
        self.previous = Some(std::mem::replace(&mut self.image, image));
        self.phase = Phase::Rolling;
        self.moved = moved;
        self.rollout.step = 0;
        self.rollout.since_unix_ms = now_unix_ms;
    }

    /// The image before is not needed any more.
    pub fn finish(&mut self) {
        assert!(self.phase == Phase::Stable, "no member has it");
        self.previous = None;
        self.rollout = Rollout::default();
    }

    /// Whether a member is to move as soon as its guest has ended.
    pub fn is_due(&self, member: &str) -> bool {
        let rolls = self.phase == Phase::Rolling && !self.moved.contains(member);
        rolls && self.rollout.takes(self.image.generation, member)
    }

    /// A member has the image.
    pub fn has_come(&mut self, member: &str, now_unix_ms: u64) {
        assert!(self.phase == Phase::Rolling, "members move");
        self.moved.insert(member.to_owned());
        self.rollout.since_unix_ms = now_unix_ms;
    }

    /// What follows from what is seen of the members.
    pub fn next(&self, members: &[Fact], now_unix_ms: u64) -> Next {
        if self.phase != Phase::Rolling {
            return Next::Wait;
        }
        let rollout = &self.rollout;
        let ill = members.iter().filter(|it| it.unhealthy.is_some());
        let mut ill: Vec<&Fact> = ill.collect();
        ill.sort_by(|one, other| one.name.cmp(&other.name));
        // A pool that has gone back has no third image to go to.
        if ill.len() > rollout.asked.max_failed as usize && !rollout.back {
            let first = ill[0];
            let why = first.unhealthy.as_deref().unwrap_or_default();
            let more = match ill.len() {
                1 => String::new(),
                many => format!(", and {} more", many - 1),
            };
            return Next::Back(format!("{}: {why}{more}", first.name));
        }
        let due = |it: &&Fact| self.is_due(&it.name);
        let left = members.iter().filter(due);
        let waits = left.clone().any(|it| rollout.waits_for_all() || !it.in_use);
        let soaks = now_unix_ms.saturating_sub(rollout.since_unix_ms) < rollout.asked.soak_ms;
        match rollout.steps_left() {
            _ if waits || soaks => Next::Wait,
            // The step after takes more, and nothing was tried yet.
            Some(1..) if rollout.asked.soak_ms > 0 && self.moved.is_empty() && left.count() > 0 => {
                Next::Wait
            }
            Some(1..) => Next::Step,
            Some(0) | None => Next::Stable,
        }
    }

    pub fn step(&mut self, now_unix_ms: u64) {
        assert!(self.rollout.steps_left() > Some(0), "there is another step");
        self.rollout.step += 1;
        self.rollout.since_unix_ms = now_unix_ms;
    }

    pub fn settle(&mut self) {
        assert!(self.phase == Phase::Rolling, "members have moved");
        self.phase = Phase::Stable;
        self.moved.clear();
    }
}
