//! A change of size that is under way.
//!
//! Always true: a volume is never larger than its image.
//! Deliberately absent: the steps (`core::resize`).

use super::Volume;
use crate::adversary::{Mark, mark};
use crate::format::ledger::Progress;
use crate::types::{RequestId, SECTOR_BYTES, Time};

/// A change of size that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Resize {
    pub(crate) request: RequestId,
    pub(crate) old_bytes: u64,
    pub(crate) new_bytes: u64,
    pub(crate) step: Step,
    /// Of an image that allocates: it has room for the new size, or has given back all behind it.
    pub(crate) has_room: bool,
    /// The disk is cut off from here on, and will be from there on.
    pub(crate) cut_end: u64,
    pub(crate) cut_next: u64,
    /// Its header may say the new size.
    pub(crate) header_sent: bool,
    pub(crate) piece: Option<u32>,
    pub(crate) retry_at: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Wait,
    /// A plan makes room, or the header is written again after a while.
    Room,
    HeaderRead,
    HeaderWrite,
    HeaderSync,
    Set,
    Name,
}

impl Resize {
    /// The size to which the volume goes back if its image does not get the new one.
    pub fn bytes_to_return_to(&self) -> u64 {
        match self.step {
            Step::Name => 0,
            _ => self.old_bytes,
        }
    }
}

impl Volume {
    /// It and its image are to get another size.
    pub fn begin_resize(&mut self, request: RequestId, new_bytes: u64) {
        assert!(self.resize.is_none(), "a size changes once at a time");
        assert!(new_bytes > 0 && new_bytes.is_multiple_of(SECTOR_BYTES));
        self.resize = Some(Resize {
            request,
            old_bytes: self.size_bytes,
            new_bytes,
            step: Step::Wait,
            has_room: false,
            cut_end: self.size_bytes,
            cut_next: self.size_bytes,
            header_sent: false,
            piece: None,
            retry_at: Time(0),
        });
    }

    pub fn is_resizing(&self) -> bool {
        self.resize.is_some()
    }

    /// Who has ordered it.
    pub fn resize_order(&self) -> Option<RequestId> {
        self.resize.map(|resize| resize.request)
    }

    /// The change of size, while it waits for what is in its way.
    pub(crate) fn resize_that_waits(&self) -> Option<Resize> {
        self.resize
            .filter(|it| matches!(it.step, Step::Wait | Step::Room))
    }

    pub(crate) fn resizing(&mut self) -> &mut Resize {
        self.resize.as_mut().expect("a change of size is under way")
    }

    /// Its raw image is about to be set to the new size: what goes is not there for requests any
    /// more. The size that the image gets.
    pub(crate) fn set_image_size(&mut self) -> u64 {
        let resize = self.resizing();
        assert!(resize.step == Step::Wait, "it has waited");
        resize.step = Step::Set;
        let bytes = resize.new_bytes;
        self.size_bytes = self.size_bytes.min(bytes);
        self.request_begins();
        bytes
    }

    /// Its image has the new size, durably.
    pub(crate) fn image_has_size(&mut self) -> Resize {
        let resize = self.resizing();
        assert!(resize.step != Step::Name, "a size is named once");
        resize.step = Step::Name;
        let resize = *resize;
        self.size_bytes = resize.new_bytes;
        resize
    }

    /// Its image could not get the new size.
    pub(crate) fn image_keeps_size(&mut self) -> Resize {
        let resize = self.resize.take().expect("a change of size is under way");
        assert!(resize.step != Step::Name, "its image has the old size");
        self.size_bytes = resize.old_bytes;
        resize
    }

    /// A checkpoint names the new size: who has ordered it.
    pub fn size_is_named(&mut self) -> Option<RequestId> {
        let resize = self.resize.take()?;
        assert!(resize.step == Step::Name, "its image has the new size");
        assert!(self.size_bytes == resize.new_bytes);
        Some(resize.request)
    }

    /// A plan for it failed, with nothing changed: who has ordered it.
    pub fn give_up_resize(&mut self) -> Option<RequestId> {
        let resize = self.resize.take()?;
        assert!(self.size_bytes == resize.old_bytes, "no size was set");
        Some(resize.request)
    }

    /// No destage may begin.
    pub fn holds_destage(&self) -> bool {
        let changes = self.resize.is_some_and(|resize| resize.step != Step::Name);
        let changes = changes && !self.is_between_states();
        self.image.rebase.is_some() || changes || self.is_unproved()
    }

    /// A destage in place was cut short: another one has to reach its end first.
    pub(crate) fn is_between_states(&self) -> bool {
        let ledger = self.ledger();
        self.map.is_some() && ledger.is_some_and(|it| matches!(it.progress, Progress::Cut(_)))
    }

    /// The plan is at the image.
    pub(crate) fn room_made(&mut self) {
        let resize = self.resizing();
        assert!(resize.step == Step::Room, "it has waited for that");
        let shrinks = resize.new_bytes < resize.old_bytes;
        assert!(
            resize.cut_next <= resize.cut_end,
            "an end goes from its end on"
        );
        match shrinks {
            true => {
                resize.cut_end = resize.cut_next;
                mark(Mark::EndCut);
            }
            false => mark(Mark::RoomMade),
        }
        resize.has_room = !shrinks || resize.cut_end == resize.new_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::volume;
    use super::*;
    use crate::types::ConnectionId;

    const REQUEST: RequestId = RequestId {
        connection: ConnectionId(1),
        number: 1,
    };

    #[test]
    fn a_disk_loses_its_end_before_its_image_and_has_it_back_when_that_fails() {
        let mut volume = volume();
        let (old, new) = (volume.size_bytes(), SECTOR_BYTES);
        volume.begin_resize(REQUEST, new);
        assert_eq!(volume.set_image_size(), new);
        assert_eq!(volume.size_bytes(), new);
        assert_eq!(volume.image_keeps_size().request, REQUEST);
        assert!(volume.size_bytes() == old && !volume.is_resizing());
    }

    #[test]
    fn a_disk_becomes_larger_after_its_image() {
        let mut volume = volume();
        let (old, new) = (volume.size_bytes(), 2 * volume.size_bytes());
        volume.begin_resize(REQUEST, new);
        volume.set_image_size();
        assert_eq!(volume.size_bytes(), old);
        volume.image_has_size();
        assert_eq!(volume.size_bytes(), new);
        assert_eq!(volume.size_is_named(), Some(REQUEST));
        assert_eq!(volume.size_is_named(), None);
    }
}
