//! The fence program of an administrator: it makes sure that a host can write no more.
//!
//! Always true: it is called for a silent owner that has nothing dirty by the ledger of its epoch,
//! or whose record names copies on other hosts, because only then can another host go on without
//! loss; with the owner's name as its one
//! argument; and not twice at a time for one volume. Its success is proof (C9) for the record that
//! was the newest when it was called. Deliberately absent: what the program does.

use super::{Entry, Event, Input, Manager, State};
use engine::types::Uuid;
use node::record::{Holder, Record};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A link that is down for a moment is no reason to fence a host.
const SILENCE_MIN: Duration = Duration::from_secs(5);
/// Of one whose volume another host can go on with at once: that a client is here shows that it was
/// started again.
const SILENCE_MIN_COPIES: Duration = Duration::from_secs(1);
/// Between two calls for one volume.
const AGAIN: Duration = Duration::from_secs(30);
/// A program that takes longer is ended.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(50);

/// What became of the program, of one volume.
#[derive(Debug, Default)]
pub(super) struct Fencing {
    /// Since when the owner is silent.
    silent: Option<Instant>,
    called: Option<Instant>,
    running: bool,
    pub trouble: Option<String>,
}

impl Entry {
    /// The record whose drainer is to be fenced now. One that is taken over already may wait for
    /// that only; a host does not fence itself.
    fn silent_record(&mut self, me: &Holder, links: &BTreeSet<Uuid>) -> Option<Record> {
        let (_, unit) = self.unit.as_ref()?;
        let set = self.owning.as_ref().and_then(|it| it.set());
        let taken = set.filter(|set| !set.may_drain());
        if *unit.state() != State::Proof && taken.is_none() {
            // Another look is under way each second.
            if !matches!(unit.state(), State::Looking | State::Lent) {
                let running = self.fencing.running;
                self.fencing = Fencing {
                    running,
                    ..Fencing::default()
                };
            }
            return None;
        }
        let taken = taken.map(|set| set.record().clone());
        let record = taken.or(unit.newest().cloned())?;
        let drainer = record.drainer().map(|it| it.host);
        if drainer.is_none_or(|host| host == me.host || links.contains(&host)) {
            // One that is heard says by itself that it writes no more.
            self.fencing.silent = None;
            return None;
        }
        let fencing = &mut self.fencing;
        let silent = fencing.silent.get_or_insert_with(Instant::now).elapsed();
        let lately = fencing.called.is_some_and(|it| it.elapsed() < AGAIN);
        let least = match has_all_else(&record, me) {
            true => SILENCE_MIN_COPIES,
            false => SILENCE_MIN,
        };
        (silent >= least && !lately && !fencing.running).then_some(record)
    }
}

/// What the drainer may have not destaged, others have as well, or no flush has covered.
fn has_all_else(record: &Record, me: &Holder) -> bool {
    let taken = record.owner.as_ref().is_some_and(|it| it.host == me.host);
    taken || record.has_copies_elsewhere() || record.at_origin
}

impl Manager {
    /// Calls the program for owners that are silent.
    pub(super) fn fence(&mut self) {
        let Some(program) = self.member.fence.clone() else {
            return;
        };
        for (name, entry) in &mut self.entries {
            let Some(record) = entry.silent_record(&self.member.me, &self.links) else {
                continue;
            };
            let Some((sides, _)) = entry.place.clone() else {
                continue;
            };
            let alone = !has_all_else(&record, &self.member.me);
            let fencing = &mut entry.fencing;
            (fencing.called, fencing.running) = (Some(Instant::now()), true);
            let (name, inputs, program) = (name.clone(), self.inputs.clone(), program.clone());
            self.workers.run(move |_| {
                // What it has not destaged is at its copies, or lost.
                let owner = record.drainer().map(|it| it.name.clone());
                let owner = owner.unwrap_or_default();
                let fenced = match alone && sides.owes(record.epoch) {
                    true => Err("it may have dirty data, so it is not fenced".to_owned()),
                    false => call(&program, &owner),
                };
                if fenced.is_ok() {
                    tracing::warn!(volume = %name, "volume {name}: {owner} is fenced");
                }
                let proved = fenced.is_ok().then_some(record.number);
                let _ = inputs.send(Input::Fenced(name.clone(), fenced));
                if let Some(number) = proved {
                    let _ = inputs.send(Input::Of(name, Box::new(Event::Proved { number })));
                }
            });
        }
    }

    pub(super) fn fenced(&mut self, name: &str, fenced: Result<(), String>) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        entry.fencing.running = false;
        if fenced.is_ok() {
            entry.proof = Some("fenced by its program");
        }
        entry.fencing.trouble = fenced.err();
        self.show(name);
    }
}

/// Runs the program; why its host may still write.
fn call(program: &Path, owner: &str) -> Result<(), String> {
    let shown = program.display();
    let mut command = Command::new(program);
    command.arg(owner).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command
        .spawn()
        .map_err(|error| format!("the fence program {shown} cannot be run: {error}"))?;
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("the fence program {shown}: {status}")),
            Ok(None) if begun.elapsed() < PATIENCE => std::thread::sleep(LOOK),
            _ => {
                // It may be at work: what it says is not waited for.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("the fence program {shown} does not end"));
            }
        }
    }
}
