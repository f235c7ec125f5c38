//! Own layers over an orderly stop: what the next daemon may believe of the clean blocks of images
//! that volumes write.
//!
//! ```text
//! parked ─▶ closed ─▶ idle ─(past the log: sync)─▶ stat ─▶ footers name the layers ─▶ checkpoint
//! ```
//!
//! Always true: a layer gets a name only when all of its image is synced and nothing of ours
//! writes it any more; the name is made of what was seen of image and ledger then, so whoever
//! writes the image later gives it another; a footer that says it counts for the run of the
//! engine that follows and for no later one. So a layer that a killed daemon has written is never
//! found, whatever the times of its image say after a power loss. Deliberately absent: kills.

use super::Core;
use crate::event::{Device, Op, Purpose, Stat};
use crate::outbox::{Cx, Pending};
use crate::snapshot::State;
use crate::types::{Generation, Policy, SegmentIndex, Uuid, VolumeId};
use alloc::vec::Vec;

/// How long before the end of an orderly stop images are not waited for any more.
pub const SPARE_MS: u64 = 2_000;

/// How far it is.
pub enum Keep {
    Start,
    /// Volumes whose image is still being written, and how many images are being looked at.
    Looking(Vec<VolumeId>, u32),
    /// Segments whose footers are still to be written.
    Naming(Vec<SegmentIndex>),
}

/// What a layer is called that nobody writes at the moment: FNV-1a of 128 bits over the volume,
/// the generation in its ledger, and what the file system tells. `None` where it tells nothing.
pub fn name_of(volume: Uuid, ledger: Generation, stat: Stat) -> Option<Uuid> {
    let numbers = [stat.size_bytes, stat.mtime_ns, stat.print?];
    let numbers = numbers.into_iter().flat_map(u64::to_le_bytes);
    let bytes = volume.0.into_iter().chain(ledger.0.to_le_bytes());
    let hash = bytes.chain(numbers).fold(
        0x6C62_272E_07BB_0142_62B8_2175_6295_C58D_u128,
        |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013B),
    );
    Some(Uuid(hash.to_le_bytes()))
}

impl Core {
    /// Goes on with the names of own layers; true when there is no more to do.
    pub(super) fn keep_layers(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some(parking) = self.service.parking() else {
            return true;
        };
        let late = cx.now.plus_millis(SPARE_MS) >= parking.until;
        match &mut parking.keep {
            Keep::Start => {
                self.log.seal_fill();
                // Its footer is due from here on, and perhaps nothing else happens any more.
                self.touched.shard();
                let volumes = self.close_volumes();
                let looks = self.look_at_idle(cx, volumes, 0);
                self.set_keep(looks);
                self.keep_layers(cx)
            }
            Keep::Looking(volumes, asked) => {
                let done = volumes.is_empty() && *asked == 0;
                if (done || late) && !self.log.fill_footer_due() && self.lines.footers() == 0 {
                    parking.keep = Keep::Naming(self.log.clean_segments());
                    return self.keep_layers(cx);
                }
                let (volumes, asked) = (core::mem::take(volumes), *asked);
                let looks = self.look_at_idle(cx, volumes, asked);
                self.set_keep(looks);
                false
            }
            Keep::Naming(segments) => {
                let parts = (&mut self.log, &mut self.scratch);
                self.lines.write_names(cx, parts, segments)
            }
        }
    }

    fn set_keep(&mut self, keep: Keep) {
        if let Some(parking) = self.service.parking() {
            parking.keep = keep;
        }
    }

    /// Takes no more requests of the volumes whose clean blocks are to be kept; what they have
    /// begun at their images ends.
    fn close_volumes(&mut self) -> Vec<VolumeId> {
        let lines = &self.lines;
        let mut closed = Vec::new();
        for volume in self.volumes.iter_mut() {
            let owner = matches!(volume.policy, Policy::WriteBack | Policy::WriteThrough);
            // An orderly stop has closed it already, because it is clean.
            let released = volume.ledger().is_some_and(|it| !it.dirty);
            let sound = volume.is_attached()
                && (volume.is_ready() || released)
                && !volume.is_read_only()
                && volume.state() != State::Held
                && volume.misfit().is_none()
                && !volume.is_replaying()
                && !volume.is_switching()
                && !volume.is_detaching();
            if owner && sound && lines.layers.number(volume.layer()).is_some() {
                volume.close();
                closed.push(volume.id());
            }
        }
        closed
    }

    /// Looks at the images of those volumes that have nothing on its way there any more.
    fn look_at_idle(&mut self, cx: &mut Cx<'_>, volumes: Vec<VolumeId>, mut asked: u32) -> Keep {
        let mut busy = Vec::new();
        for id in volumes {
            let Some(volume) = self.find(id).filter(|it| !it.is_detaching()) else {
                continue;
            };
            let writes = volume.is_destaging() || volume.writes_directly();
            if writes || volume.has_requests() {
                busy.push(id);
                continue;
            }
            volume.request_begins();
            asked += 1;
            let op = match volume.policy.is_direct() {
                true => Op::Sync,
                false => Op::Stat,
            };
            order_look(cx, id, op);
        }
        Keep::Looking(busy, asked)
    }

    /// An image was synced, or looked at.
    pub(super) fn looked(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        op: Op,
        ok: bool,
        stat: Option<Stat>,
    ) {
        let parking = self.service.is_parking();
        let volume = self.volume(id);
        if parking && ok && op == Op::Sync {
            order_look(cx, id, Op::Stat);
            return;
        }
        volume.request_ends();
        let (layer, uuid, ledger) = (volume.layer(), volume.uuid(), volume.ledger_generation());
        let name = stat.filter(|_| ok).and_then(|it| name_of(uuid, ledger, it));
        if let Some(name) = name {
            self.lines.layers.name(layer, name);
        }
        if let Some(parking) = self.service.parking()
            && let Keep::Looking(_, asked) = &mut parking.keep
        {
            assert!(*asked > 0, "each look was asked for");
            *asked -= 1;
        }
    }
}

fn order_look(cx: &mut Cx<'_>, id: VolumeId, op: Op) {
    let purpose = match op {
        Op::Sync => Purpose::GuestWrite,
        _ => Purpose::Ledger,
    };
    let pending = Pending::Look { volume: id, op };
    cx.order(pending, purpose, Device::Origin(id), op, 0, 0);
}
