//! What must be true of each request, over all lives.
//!
//! Owns the life of every request as the guest and the truth know it. Always true of a good
//! product: a request that a daemon got is new once; in later lives it comes again, if it comes,
//! before anything new and in the order of its first coming, over all queues; what was acknowledged
//! in the stage is not done again; each is answered once, and only when it was done. The oracle
//! looks at no counter and no region.

use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Its place in the order of first coming. A daemon that died in the call may have noted it.
    place: u64,
    /// A living daemon had it in its hands.
    handed: bool,
    done: bool,
    /// Its effect is in the stage.
    staged: bool,
}

#[derive(Debug, Default)]
pub struct Oracle {
    known: BTreeMap<u64, Known>,
    next_place: u64,
    /// The last place that came again in this life.
    again: Option<u64>,
    new_in_life: bool,
}

impl Oracle {
    pub fn begin_life(&mut self) {
        self.again = None;
        self.new_in_life = false;
    }

    pub fn offered(&mut self, id: u64) {
        let before = self.known.insert(id, Known::default());
        assert!(before.is_none(), "ids are used once");
    }

    fn of(&mut self, id: u64) -> Result<&mut Known, String> {
        let known = self.known.get_mut(&id);
        known.ok_or_else(|| format!("request {id} is not on its way"))
    }

    /// A daemon took it from the available ring; a dead one may have noted it, or not.
    pub fn taken(&mut self, id: u64, alive: bool) -> Result<(), String> {
        let place = self.next_place;
        self.next_place += 1;
        self.new_in_life = true;
        let known = self.of(id)?;
        if known.handed {
            return Err(format!("request {id} is new a second time"));
        }
        known.handed = alive;
        known.place = place;
        Ok(())
    }

    /// A daemon found it in the region.
    pub fn again(&mut self, id: u64) -> Result<(), String> {
        let (new, last) = (self.new_in_life, self.again);
        let known = self.of(id)?;
        let place = known.place;
        known.handed = true;
        if new {
            return Err(format!("request {id} comes again after a new one"));
        }
        if last.is_some_and(|last| last >= place) {
            return Err(format!("request {id} comes again out of its order"));
        }
        self.again = Some(place);
        Ok(())
    }

    /// The host says whether its stage has the effect.
    pub fn looked_up(&mut self, id: u64, staged: bool) -> Result<(), String> {
        let known = self.of(id)?;
        match (known.staged, staged) {
            (true, false) => Err(format!("request {id} would be done twice")),
            (false, true) => Err(format!("request {id} is taken for another one")),
            _ => Ok(()),
        }
    }

    pub fn applied(&mut self, id: u64, stages: bool) -> Result<(), String> {
        let known = self.of(id)?;
        if known.staged {
            return Err(format!("request {id} is done twice"));
        }
        known.done = true;
        known.staged = stages;
        Ok(())
    }

    /// The guest has its answer.
    pub fn answered(&mut self, id: u64) -> Result<(), String> {
        let known = self.known.remove(&id);
        match known {
            None => Err(format!("request {id} is answered twice")),
            Some(known) if !known.done => Err(format!("request {id} is answered, but not done")),
            Some(_) => Ok(()),
        }
    }
}
