//! Things with small stable numbers, for tags of operations and ids of connections.
//!
//! Always true: a number is given again only after its thing was removed.

/// A list with holes.
#[derive(Debug)]
pub struct Slots<T> {
    things: Vec<Option<T>>,
    free: Vec<u32>,
    live: usize,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots {
            things: Vec::new(),
            free: Vec::new(),
            live: 0,
        }
    }
}

impl<T> Slots<T> {
    /// The number that the next `insert` gives.
    pub fn next(&self) -> u32 {
        self.free
            .last()
            .copied()
            .unwrap_or(self.things.len() as u32)
    }

    pub fn insert(&mut self, thing: T) -> u32 {
        self.live += 1;
        match self.free.pop() {
            Some(slot) => {
                self.things[slot as usize] = Some(thing);
                slot
            }
            None => {
                self.things.push(Some(thing));
                (self.things.len() - 1) as u32
            }
        }
    }

    pub fn remove(&mut self, slot: u32) -> T {
        let thing = self.lend(slot).expect("only what is there is removed");
        self.live -= 1;
        self.free.push(slot);
        thing
    }

    /// Takes a thing out for a while; its number stays its own until `restore`.
    pub fn lend(&mut self, slot: u32) -> Option<T> {
        self.things.get_mut(slot as usize)?.take()
    }

    pub fn restore(&mut self, slot: u32, thing: T) {
        let place = &mut self.things[slot as usize];
        assert!(place.is_none(), "a slot holds one thing");
        *place = Some(thing);
    }

    pub fn get(&self, slot: u32) -> Option<&T> {
        self.things.get(slot as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.things.get_mut(slot as usize)?.as_mut()
    }

    pub fn len(&self) -> usize {
        self.live
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.things.iter_mut().flatten()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let all = self.things.iter().enumerate();
        all.filter_map(|(slot, thing)| Some((slot as u32, thing.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_used_again_only_after_its_thing_was_removed() {
        let mut slots = Slots::default();
        assert_eq!((slots.insert("a"), slots.insert("b")), (0, 1));
        let a = slots.lend(0).expect("there");
        assert_eq!((slots.next(), slots.len(), slots.get(0)), (2, 2, None));
        slots.restore(0, a);
        assert_eq!(slots.remove(0), "a");
        assert_eq!((slots.next(), slots.insert("c"), slots.len()), (0, 0, 2));
        assert_eq!(slots.iter().collect::<Vec<_>>(), [(0, &"c"), (1, &"b")]);
    }
}
