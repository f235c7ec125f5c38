//! Overlays that become the content of their image, step by step as the daemon does it.
//!
//! ```text
//! Wanted ─all is answered─▶ Leaves ─let go─▶ attached alone: Alone ─done, or refused─▶ Returns
//!                                                                  └─▶ let go, attached as before
//! ```
//!
//! Always true: its guest asks nothing meanwhile; an image is judged when the commit is answered,
//! and after a crash in it as soon as its ledger is settled: it is as it was, or has all of it.
//! Deliberately absent: who else may stand on the image; the daemon refuses those.

use crate::devices::Blocking;
use crate::guest::{Commit, Request};
use crate::world::{Broken, Wake, World};
use engine::engine::settle;
use engine::types::Time;
use workload::stamp::SECTOR_BYTES;

impl World {
    /// Goes on with the commit of a volume whose guest has all its answers.
    pub(crate) fn commit_on(&mut self, volume: usize) -> Result<(), Broken> {
        let guest = &mut self.guests[volume];
        let quiet = guest.pending.is_empty() && guest.gone.is_empty() && guest.whole.is_none();
        let Some(step) = guest.commit.filter(|_| quiet) else {
            return Ok(());
        };
        guest.commit = match step {
            Commit::Wanted => Some(Commit::Leaves),
            Commit::Leaves => Some(Commit::Alone),
            Commit::Alone => Some(Commit::Returns),
            Commit::Returns => None,
        };
        if matches!(step, Commit::Leaves | Commit::Returns) {
            self.join_again(volume)?;
        }
        if self.struck {
            return Ok(());
        }
        if step == Commit::Returns {
            self.later(1, Wake::Guest(volume));
            return Ok(());
        }
        self.submit(volume, Request::Commit)
    }

    /// Attaches a volume that has let go of its image.
    fn join_again(&mut self, volume: usize) -> Result<(), Broken> {
        let id = self.guests[volume].id.expect("it is known all the time");
        let mut rng = self.rng.fork();
        let mut now = self.now;
        let mut media = Blocking::new(&mut self.devices, &mut rng, &mut now);
        let settled = settle(&mut media, id);
        self.now = now;
        let settled = settled.map_err(|it| format!("cannot be settled for a commit: {it}"))?;
        let spec = self.spec(volume);
        let engine = self.engine.as_mut().expect("the engine is open");
        let joined = engine.attach(Time(self.now), id, spec, settled);
        joined.map_err(|it| format!("cannot be attached for a commit: {it}"))?;
        self.apply(engine::event::Event::Tick)
    }

    /// Judges an image that was being committed to; `told`: what the answer said.
    pub(crate) fn check_commit(&mut self, volume: usize, told: Option<bool>) -> Result<(), Broken> {
        let guest = &mut self.guests[volume];
        let origin = &mut self.devices.origins[guest.plan.origin];
        let image = &origin.image;
        let found = guest.model.judge_commit(|sectors, bytes| {
            image.read_landed(sectors.start * SECTOR_BYTES as u64, bytes);
            Ok(())
        });
        let found = found.map_err(|it| format!("v{volume}: the image after a commit: {it}"))?;
        let right = match told {
            Some(true) => found.whole,
            Some(false) => found.before,
            None => true,
        };
        if !right {
            let words = format!("v{volume}: a commit was answered {told:?}, its image: {found:?}");
            return Err(words.into());
        }
        let counters = &mut self.trace.counters;
        counters.commits += u64::from(found.whole && told.is_some());
        counters.commits_cut_short += u64::from(told.is_none());
        counters.commits_decided += u64::from(told.is_none() && found.whole && !found.before);
        // What was read of it before is of another image.
        origin.version += u64::from(found.whole);
        self.trace.tell(format_args!(
            "v{volume}: a commit, told {told:?}: {found:?}"
        ));
        Ok(())
    }
}
