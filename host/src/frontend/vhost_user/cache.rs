//! What the guest of a front end believes of its write cache.
//!
//! Owns that belief. Always true: where it is not known the cache is off, because a guest that
//! believes so does not flush. A front end is told the mode when it reads the configuration, and
//! tells it when its guest changes it; a guest reads what its front end has when it sets its rings
//! up. So rings that begin anew are of a guest that believes what the front end does; rings that
//! go on are of one that believes what it was told then, perhaps on another host. A front end that
//! connects again says nothing of it, and believes what was kept. Deliberately absent: where that
//! is kept, and what the cache does.

/// The belief of one front end.
#[derive(Debug, Default)]
pub struct Belief {
    /// What it was told, or told, last; from an earlier connection as well.
    known: Option<bool>,
    /// What a later connection would find.
    kept: Option<bool>,
    /// Nothing was said of the cache, and no ring was started, since it came or reset the device.
    anew: bool,
    /// It has read the configuration in that time.
    read: bool,
}

impl Belief {
    /// Of a front end that comes, with what was kept of it.
    pub fn of(kept: Option<bool>) -> Belief {
        Belief {
            known: kept,
            kept,
            anew: true,
            read: false,
        }
    }

    /// What was kept, or what another host has said, is known only now.
    pub fn learn(&mut self, kept: Option<bool>, handed: Option<bool>) {
        self.kept = self.kept.or(kept);
        self.known = self.known.or(kept).or(handed);
    }

    /// It reads the configuration. True where it is told the mode that disks begin with.
    pub fn read(&mut self) -> bool {
        self.read |= self.anew;
        self.anew
    }

    /// It resets the device. What its guest believes stays, unless it reads the configuration.
    pub fn reset(&mut self) {
        self.anew = true;
    }

    /// Its guest changes the mode.
    pub fn set(&mut self, write_back: bool) {
        self.known = Some(write_back);
        (self.anew, self.read) = (false, false);
    }

    /// The mode for rings that begin to run, or `None` where nobody knows it. `first` is the one
    /// that disks begin with; of guests that cannot change the mode it is all there is to know.
    pub fn judge(&mut self, goes_on: bool, can_change: bool, first: bool) -> Option<bool> {
        let mode = match self.known {
            _ if !goes_on && self.read => Some(first),
            Some(known) => Some(known),
            // One that was ever off here would be known.
            None => (!goes_on || !can_change).then_some(first),
        };
        self.known = mode;
        self.anew = false;
        mode
    }

    /// Whether a later connection would find this.
    pub fn is_kept_as(&self, mode: bool) -> bool {
        self.kept == Some(mode)
    }

    pub fn was_kept(&mut self, mode: bool) {
        self.kept = Some(mode);
    }
}
