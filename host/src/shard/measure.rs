//! How long guests wait: from the pickup of a request to the publication of its answer.
//!
//! A request from a socket is picked up when its last byte has been received, and published when
//! the socket has taken its answer; both are times of rounds. One from a ring is picked up with the
//! batch it is taken in, and published with the batch it is shown in, and the clock is read once
//! for each of these. Always true: what is counted is counted under the policy that is in effect at
//! the end of the request; memory is taken before a client's first request, and once more after a
//! change of the policy. Deliberately absent: hints and questions, which nobody waits for as for a
//! disk, and what an origin takes.

use super::{Decide, Shard};
use crate::latency::{Kind, Recorder};
use engine::types::{Time, VolumeId};
use std::sync::Arc;

impl<E: Decide> Shard<E> {
    /// Counts from here on what is asked of this volume, for the policy in effect.
    pub(super) fn measure(&mut self, id: VolumeId) {
        let Some(policy) = self.engine.policy(id) else {
            return;
        };
        let Some(volume) = self.volumes.get_mut(&id) else {
            return;
        };
        let known = volume.latency.as_ref();
        if known.is_none_or(|known| known.policy != policy) {
            volume.latency = Some(Arc::new(Recorder::new(policy, self.now)));
        }
    }

    /// Nobody is shown what was counted under a policy that is not in effect any more.
    pub(super) fn measure_policies(&mut self) {
        for (id, volume) in &mut self.volumes {
            let policy = self.engine.policy(*id);
            volume.latency.take_if(|known| policy != Some(known.policy));
        }
    }

    /// Requests of a volume were published at this time.
    pub(super) fn took(&mut self, id: VolumeId, requests: &mut Vec<(Kind, Time)>, at: Time) {
        if requests.is_empty() {
            return;
        }
        self.measure(id);
        let volume = self.volumes.get(&id);
        if let Some(recorder) = volume.and_then(|volume| volume.latency.as_ref()) {
            for (kind, since) in requests.iter() {
                recorder.add(*kind, at.since(*since));
            }
        }
        requests.clear();
    }
}
