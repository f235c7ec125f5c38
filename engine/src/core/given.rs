//! What is given out once: generations of volumes, and private layers of clean blocks.
//!
//! Always true: a generation, and a private layer, is given once in the life of a cache, so old
//! entries under a volume id that is used again stay void. Deliberately absent: serials, which each
//! volume gives itself.

use crate::ram::Layer;
use crate::types::{Generation, Tag, VolumeId};
use alloc::vec::Vec;

pub struct Given {
    /// The next generation for any volume.
    generation_next: Generation,
    /// Layers of single volumes that were given out.
    layers: u64,
    /// Writes of the run before that recovery has found, in order. Only of its last records: what
    /// is older was answered, or its guest is gone.
    already: Vec<(VolumeId, Tag)>,
}

impl Default for Given {
    fn default() -> Given {
        Given {
            generation_next: Generation(1),
            layers: 0,
            already: Vec::new(),
        }
    }
}

impl Given {
    /// Goes on behind the run before.
    pub fn go_on(&mut self, generation_next: Generation, already: Vec<(VolumeId, Tag)>) {
        assert!(self.already.is_empty(), "a run goes on behind one before");
        assert!(already.is_sorted(), "they are searched in order");
        self.generation_next = generation_next;
        self.already = already;
    }

    /// A write of the run before has this tag.
    pub fn has_already(&self, volume: VolumeId, tag: Tag) -> bool {
        self.already.binary_search(&(volume, tag)).is_ok()
    }

    /// As the next checkpoint names it.
    pub fn generation_next(&self) -> Generation {
        self.generation_next
    }

    /// A generation that is behind this one too.
    pub fn generation_behind(&self, other: Generation) -> Generation {
        self.generation_next.max(Generation(other.0 + 1))
    }

    /// A volume has this generation: none of it, or before it, is given out any more.
    pub fn is_in_use(&mut self, generation: Generation) {
        self.generation_next = self.generation_behind(generation);
        assert!(self.generation_next > generation, "it is given once");
    }

    pub fn take_generation(&mut self) -> Generation {
        let generation = self.generation_next;
        self.is_in_use(generation);
        generation
    }

    /// A layer that no other volume has had in this run.
    pub fn take_layer(&mut self) -> Layer {
        self.layers += 1;
        let layer = Layer(self.layers);
        assert!(
            !crate::clean::is_base(layer),
            "private layers are below those of bases"
        );
        layer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_generation_is_given_twice() {
        let mut given = Given::default();
        given.go_on(Generation(5), alloc::vec![(VolumeId(1), Tag::NONE)]);
        assert!(given.has_already(VolumeId(1), Tag::NONE));
        assert_eq!(given.take_generation(), Generation(5));
        given.is_in_use(Generation(9));
        given.is_in_use(Generation(7));
        assert_eq!(given.generation_behind(Generation(3)), Generation(10));
        assert_eq!(given.take_generation(), Generation(10));
        assert!(given.take_layer() != given.take_layer());
    }
}
