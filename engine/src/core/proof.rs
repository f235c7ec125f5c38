//! A volume that is served before there is proof that its image is this host's to write, and gets
//! the right to write it while its guest goes on.
//!
//! ```text
//! Prove ─▶ requests wait ─▶ what is under way ends ─▶ reply ─▶ the host attaches it with its files
//! ```
//! Always true: between the reply and the next call of the host no request begins; a volume that
//! is refused goes on without the right, with the files of before. What was kept clean of the image
//! counts no more, because another host has written it since (rule C16).
//! Deliberately absent: what changes for a volume without the right; see [`crate::volume::Right`].

use super::Core;
use crate::event::{Refusal, VolumeSpec};
use crate::open::OpenError;
use crate::outbox::Cx;
use crate::settle::Settled;
use crate::types::{RequestId, VolumeId};

impl Core {
    pub(super) fn prove(&mut self, cx: &mut Cx<'_>, id: VolumeId, request: RequestId) {
        let stopping = self.service.is_stopping();
        let volume = self.volume(id);
        if stopping || volume.is_gone() || volume.misfit().is_some() {
            return cx.out.reply(request, Err(Refusal::Gone));
        }
        if !volume.begin_to_prove(request) {
            cx.out.reply(request, Err(Refusal::Busy));
        }
    }

    /// Something of the volume has ended.
    pub(super) fn prove_progress(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let filling = self.reading.is_filling(id);
        let Some(volume) = self.find(id) else { return };
        let Some(order) = volume.prove_order() else {
            return;
        };
        if filling || volume.has_requests() || volume.has_reads() || volume.is_in_part() {
            return;
        }
        // What the ledger names at the image is told from the rest by epochs of which none moves.
        if self.waits_for_join(id) {
            return;
        }
        self.volume(id).empty_for_proof();
        self.renew_layer(id);
        cx.out.reply(order, Ok(()));
    }

    /// The host has opened the files of a volume to write them, after the reply to
    /// [`Command::Prove`](crate::event::Command::Prove). One that is refused goes on as before.
    pub fn attach_proved(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        spec: VolumeSpec,
        settled: Settled,
    ) -> Result<(), OpenError> {
        assert!(
            self.volume(id).is_empty_for_proof() && !settled.unproved,
            "the host was told"
        );
        let attached = self.attach(id, spec, settled);
        if attached.is_err() {
            self.volume(id).stays_unproved();
            self.open_for_requests(cx, id);
        }
        attached
    }
}
