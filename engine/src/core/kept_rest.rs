//! Rests of images that other hosts know of: a record of a cluster says that a backup window is
//! open, so that a host which takes the volume over leaves its image alone too.
//!
//! ```text
//! (rests) ─ KeepRest ─▶ kept ─ Resume, BreakRest ─▶ (written again)
//! (attached) ─ KeepRest, begins ─▶ kept        │ the log needs its room: `rest_is_short`, and
//!                                              ▼ guests wait for one of these orders
//! ```
//! Always true: nothing of this host ends a rest that is kept, because its image may be written
//! only after a record without the window; one that begins with the attaching of its volume begins
//! before anything of the volume is on its way to the image. Deliberately absent: the record, which
//! the host makes; a journal that is pending, because a window opens only when none is.

use super::Core;
use crate::event::Refusal;
use crate::outbox::Cx;
use crate::types::{RequestId, VolumeId};
use crate::volume::quiesce::{keep_rest, keeps_rest};

/// The rest of an image ends by order from now on.
pub(super) fn keep(
    core: &mut Core,
    cx: &mut Cx<'_>,
    id: VolumeId,
    request: RequestId,
    begins: bool,
) {
    let volume = core.volume(id);
    let answer = match volume.is_gone() {
        true => Err(Refusal::Gone),
        false if keep_rest(volume, begins) => Ok(()),
        false => Err(Refusal::NotQuiesced),
    };
    assert!(
        answer.is_err() || keeps_rest(core.volume(id)),
        "it was told"
    );
    cx.out.reply(request, answer);
}

/// A rest that was kept is over, and was cut short.
pub(super) fn end(core: &mut Core, cx: &mut Cx<'_>, id: VolumeId, request: RequestId) {
    let volume = core.volume(id);
    if !keeps_rest(volume) {
        return cx.out.reply(request, Err(Refusal::NotQuiesced));
    }
    volume.break_rest();
    assert!(!volume.is_quiescing(), "the image is written again");
    core.touch(id);
    cx.out.reply(request, Ok(()));
}
