//! Images that are brought to rest while their guests go on.
//!
//! Always true: at the answer the image has all that was written before the order, of a group at
//! one cut; until it is resumed not a byte of it changes, unless the rest has ended by itself, and
//! then the answer to the resume says so. Deliberately absent: how often an administrator orders
//! it.

use crate::guest::Rest;
use crate::plan::VolumePlan;
use crate::tops;
use crate::world::{Broken, World};
use engine::event::Refusal;
use workload::check::FlushPoint;

impl World {
    /// Whether something of a volume or its group waits for the end of a rest.
    pub(crate) fn has_rests(&self, volume: usize) -> bool {
        self.any_member(volume, |it| it.rests)
    }

    /// Whether a volume or one of its group is like this.
    pub(crate) fn any_member(&self, volume: usize, is: impl Fn(&VolumePlan) -> bool) -> bool {
        self.members(volume).any(|it| is(&self.guests[it].plan))
    }

    /// The answer to the order.
    pub(crate) fn quiesced(
        &mut self,
        volume: usize,
        points: Vec<(usize, FlushPoint)>,
        result: Result<(), Refusal>,
    ) -> Result<(), Broken> {
        if result.is_err() {
            self.guests[volume].rest = None;
            return Ok(());
        }
        self.trace.counters.images.rests.begun += 1;
        self.guests[volume].rest = Some(Rest::Rests);
        self.is_home(points)?;
        self.check_cut(volume)?;
        let members: Vec<usize> = self.members(volume).collect();
        for member in members {
            let origin = &self.devices.origins[self.guests[member].plan.origin];
            if origin.top {
                let at = |why: String| format!("v{member} does not rest: {why}");
                tops::judge_at_rest(origin).map_err(at)?;
            }
            let rests = origin.image.landed().to_vec();
            self.rests.insert(member, rests);
        }
        Ok(())
    }

    /// Right before a rest is to end: whether it has lasted.
    pub(crate) fn rested_at_end(&mut self, volume: usize) -> Result<(), Broken> {
        let members: Vec<usize> = self.members(volume).collect();
        for member in members {
            let origin = &self.devices.origins[self.guests[member].plan.origin];
            let same = |before: &Vec<u8>| origin.image.landed() == &before[..];
            let changed = self.rests.get(&member).is_some_and(|it| !same(it));
            if changed {
                self.disturbed.insert(member);
            }
        }
        Ok(())
    }

    /// The answer to a resume.
    pub(crate) fn resumed(
        &mut self,
        volume: usize,
        result: Result<(), Refusal>,
    ) -> Result<(), Broken> {
        self.guests[volume].rest = None;
        let members: Vec<usize> = self.members(volume).collect();
        let rests = &mut self.trace.counters.images.rests;
        match result {
            Ok(()) => rests.kept += 1,
            Err(_) => rests.ended += 1,
        }
        for member in members {
            self.rests.remove(&member);
            if self.disturbed.remove(&member) && result.is_ok() {
                return Err(format!("v{member} was written while it rested").into());
            }
        }
        Ok(())
    }
}
