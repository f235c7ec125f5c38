//! Numbered things that come and go: reads, fills, fetches, calls.
//!
//! Always true: a number names one thing until it is taken out, and small numbers are used again
//! first, so that the memory held follows what is in flight.

use alloc::vec::Vec;

pub struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab {
            items: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    pub fn insert(&mut self, item: T) -> u32 {
        match self.free.pop() {
            Some(at) => {
                let before = self.items[at as usize].replace(item);
                assert!(before.is_none(), "a free number names nothing");
                at
            }
            None => {
                self.items.push(Some(item));
                self.items.len() as u32 - 1
            }
        }
    }

    pub fn get(&mut self, at: u32) -> &mut T {
        self.items[at as usize]
            .as_mut()
            .expect("the number is in use")
    }

    pub fn take(&mut self, at: u32) -> T {
        let item = self.items[at as usize]
            .take()
            .expect("the number is in use");
        self.free.push(at);
        assert!(
            self.free.len() <= self.items.len(),
            "no more numbers are free than there are"
        );
        item
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter().flatten()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.iter_mut().flatten()
    }

    pub fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }
}
