//! Which L2 tables are in RAM: whole tables, the least recently used one leaves first.
//!
//! ```text
//! not there ─▶ clean ⇄ dirty
//!     ▲          │       │
//!     └──────────┴───────┘ leaves; a dirty one is to be written then
//! ```
//!
//! Always true: at most `most` tables are held, and at least one; a table that is not held is not
//! dirty; the order of tables is that of their last use. Deliberately absent: what is in a table,
//! and requests.

/// Of a list of tables: none.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Place {
    held: bool,
    dirty: bool,
    older: u32,
    newer: u32,
}

#[derive(Clone, Debug)]
pub struct Tables {
    places: Vec<Place>,
    oldest: u32,
    newest: u32,
    held: usize,
    most: usize,
}

/// What came of a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    Held,
    /// It is held now, and this one had to leave for it, dirty or not.
    Came {
        left: Option<(u32, bool)>,
    },
}

impl Tables {
    /// Of a disk with so many tables.
    pub fn new(tables: usize, most: usize) -> Tables {
        let place = Place {
            held: false,
            dirty: false,
            older: NONE,
            newer: NONE,
        };
        Tables {
            places: vec![place; tables],
            oldest: NONE,
            newest: NONE,
            held: 0,
            most: most.max(1),
        }
    }

    fn place(&mut self, table: u32) -> &mut Place {
        &mut self.places[table as usize]
    }

    fn unlink(&mut self, table: u32) {
        let Place { older, newer, .. } = *self.place(table);
        match older {
            NONE => self.oldest = newer,
            older => self.place(older).newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.place(newer).older = older,
        }
    }

    fn link(&mut self, table: u32) {
        let older = core::mem::replace(&mut self.newest, table);
        let place = self.place(table);
        (place.older, place.newer) = (older, NONE);
        match older {
            NONE => self.oldest = table,
            older => self.place(older).newer = table,
        }
    }

    pub fn use_one(&mut self, table: u32) -> Used {
        if self.place(table).held {
            self.unlink(table);
            self.link(table);
            return Used::Held;
        }
        let mut left = None;
        if self.held == self.most {
            let out = self.oldest;
            assert!(out != NONE, "tables are held");
            self.unlink(out);
            let place = self.place(out);
            place.held = false;
            left = Some((out, core::mem::take(&mut place.dirty)));
            self.held -= 1;
        }
        self.place(table).held = true;
        self.link(table);
        self.held += 1;
        Used::Came { left }
    }

    /// A table that was just used was changed.
    pub fn change(&mut self, table: u32) {
        let place = self.place(table);
        assert!(place.held, "a table is changed in RAM");
        place.dirty = true;
    }

    /// All that are dirty, in the order of the disk; they are clean afterwards.
    pub fn clean(&mut self) -> Vec<u32> {
        let mut dirty = Vec::new();
        for (table, place) in self.places.iter_mut().enumerate() {
            if core::mem::take(&mut place.dirty) {
                dirty.push(table as u32);
            }
        }
        dirty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_that_was_not_used_for_longest_leaves_and_says_whether_it_is_dirty() {
        let mut tables = Tables::new(8, 2);
        assert_eq!(tables.use_one(3), Used::Came { left: None });
        tables.change(3);
        assert_eq!(tables.use_one(5), Used::Came { left: None });
        assert_eq!(tables.use_one(3), Used::Held);
        let left = Some((5, false));
        assert_eq!(tables.use_one(1), Used::Came { left });
        let left = Some((3, true));
        assert_eq!(tables.use_one(5), Used::Came { left });
        assert_eq!(tables.clean(), [0; 0], "what has left is dirty no more");
    }

    #[test]
    fn what_is_cleaned_is_told_once_in_the_order_of_the_disk() {
        let mut tables = Tables::new(8, 4);
        for table in [6, 2, 4] {
            tables.use_one(table);
            tables.change(table);
        }
        assert_eq!(tables.clean(), [2, 4, 6]);
        assert_eq!(tables.clean(), [0; 0]);
    }
}
