//! Numbers of layers: the index of clean blocks on the device has 16 bits for whose block it is.
//!
//! ```text
//! free ─▶ a base image (for this life)
//!   ▲ │       ▲ promoted
//!   │ └─▶ a volume's own layer ─forgotten─▶ dying ─▶ sweeping ─┐
//!   └──────────────────────────────────────────────────────────┘
//! ```
//!
//! Always true: a number is given again only after a whole sweep of the index that began when
//! nobody had it any more, so no block is ever found under the number of another layer; a layer
//! that is not numbered has no blocks on the device. Deliberately absent: which blocks there are.

use crate::lines::LineIndex;
use crate::ram::Layer;
use crate::types::Uuid;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// Shared base layers are numbered above all layers of single volumes.
const BASE_LAYERS_FROM: u64 = 1 << 32;
/// Entries of the index that one step of a sweep looks at.
const SWEEP_STEP: usize = 4096;

/// Whom a number stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    Nobody,
    Base(Layer, Uuid),
    Own(Layer),
}

#[derive(Default)]
pub struct Layers {
    holders: Vec<Holder>,
    numbers: BTreeMap<Layer, u16>,
    /// Base images by identity; those beyond the last number are kept in RAM only.
    bases: BTreeMap<Uuid, Layer>,
    /// Own layers of the run before, whose volumes have not come yet.
    found: BTreeMap<Uuid, Layer>,
    /// Names that own layers have for the run to come.
    names: BTreeMap<u16, Uuid>,
    /// Of bases that a volume has written in this life: what lies on the device is named otherwise.
    promoted: BTreeSet<u16>,
    free: Vec<u16>,
    /// Forgotten since the sweep under way began.
    dying: Vec<u16>,
    sweeping: Vec<u16>,
    sweep_at: usize,
}

/// Whether this is the layer of a base image, which is never written.
pub fn is_base(layer: Layer) -> bool {
    layer.0 >= BASE_LAYERS_FROM
}

impl Layers {
    /// The layer of a base image.
    pub fn base(&mut self, identity: Uuid) -> Layer {
        if let Some(layer) = self.bases.get(&identity) {
            return *layer;
        }
        let layer = Layer(BASE_LAYERS_FROM + self.bases.len() as u64);
        self.bases.insert(identity, layer);
        self.give(layer, Holder::Base(layer, identity));
        layer
    }

    /// The same, if it has one by now.
    pub fn find_base(&self, identity: Uuid) -> Option<Layer> {
        self.bases.get(&identity).copied()
    }

    /// A volume's own layer becomes that of a base image: what was written there is written no
    /// more. Returns its new name, and keeps its number; `None` where that image has a layer.
    pub fn promote(&mut self, own: Layer, identity: Uuid) -> Option<Layer> {
        assert!(!is_base(own), "a base stays one");
        if self.bases.contains_key(&identity) {
            return None;
        }
        let Some(number) = self.numbers.remove(&own) else {
            return Some(self.base(identity));
        };
        let holder = self.holders[usize::from(number)];
        assert!(holder == Holder::Own(own), "it is numbered as what it is");
        let layer = Layer(BASE_LAYERS_FROM + self.bases.len() as u64);
        self.bases.insert(identity, layer);
        self.names.remove(&number);
        self.promoted.insert(number);
        self.holders[usize::from(number)] = Holder::Base(layer, identity);
        self.numbers.insert(layer, number);
        Some(layer)
    }

    fn give(&mut self, layer: Layer, holder: Holder) -> Option<u16> {
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                let number = u16::try_from(self.holders.len()).ok()?;
                self.holders.push(Holder::Nobody);
                number
            }
        };
        let at = &mut self.holders[usize::from(number)];
        assert!(*at == Holder::Nobody, "a free number is nobody's");
        *at = holder;
        self.numbers.insert(layer, number);
        Some(number)
    }

    pub fn number(&self, layer: Layer) -> Option<u16> {
        self.numbers.get(&layer).copied()
    }

    /// The number of a layer; a volume's own one gets it now.
    pub fn number_or_new(&mut self, layer: Layer) -> Option<u16> {
        match self.number(layer) {
            None if !is_base(layer) => self.give(layer, Holder::Own(layer)),
            number => number,
        }
    }

    /// `None` if the layer was forgotten.
    pub fn layer(&self, number: u16) -> Option<Layer> {
        match self.holders[usize::from(number)] {
            Holder::Nobody => None,
            Holder::Base(layer, _) | Holder::Own(layer) => Some(layer),
        }
    }

    /// Takes over an own layer that the run before has named; `fresh` if it is new.
    pub fn found(&mut self, name: Uuid, fresh: Layer) -> Layer {
        *self.found.entry(name).or_insert(fresh)
    }

    /// The own layer of this name, for the volume that it belongs to.
    pub fn claim(&mut self, name: Uuid) -> Option<Layer> {
        self.found.remove(&name)
    }

    /// What the next run may call a volume's own layer.
    pub fn name(&mut self, layer: Layer, name: Uuid) {
        if let Some(number) = self.number(layer) {
            self.names.insert(number, name);
        }
    }

    /// How the next run finds a layer, and whether somebody writes it. `None` if it does not.
    pub fn named(&self, number: u16) -> Option<(Uuid, bool)> {
        match self.holders[usize::from(number)] {
            Holder::Nobody => None,
            Holder::Base(_, identity) => Some((identity, false)),
            Holder::Own(_) => self.names.get(&number).map(|name| (*name, true)),
        }
    }

    /// Whether a footer that was written in this life may name the layer of this number as that
    /// of a volume.
    pub fn was_promoted(&self, number: u16) -> bool {
        self.promoted.contains(&number)
    }

    /// The identity of a base image; `None` for a layer that somebody writes.
    pub fn identity(&self, number: u16) -> Option<Uuid> {
        match self.holders[usize::from(number)] {
            Holder::Base(_, identity) => Some(identity),
            Holder::Nobody | Holder::Own(_) => None,
        }
    }

    /// Nothing of a volume's own layer counts any more. Returns the number that it had.
    pub fn forget(&mut self, layer: Layer) -> Option<u16> {
        assert!(!is_base(layer), "nobody writes a base");
        let number = self.numbers.remove(&layer)?;
        self.holders[usize::from(number)] = Holder::Nobody;
        self.names.remove(&number);
        self.dying.push(number);
        Some(number)
    }

    pub fn is_sweeping(&self) -> bool {
        !self.dying.is_empty() || !self.sweeping.is_empty()
    }

    /// Takes what forgotten layers had out of the index, in small steps.
    pub fn sweep(&mut self, index: &mut LineIndex) {
        if self.sweeping.is_empty() {
            if self.dying.is_empty() {
                return;
            }
            self.sweeping = core::mem::take(&mut self.dying);
            self.sweep_at = 0;
        }
        match index.sweep(self.sweep_at, SWEEP_STEP, &self.sweeping) {
            Some(at) => self.sweep_at = at,
            None => self.free.append(&mut self.sweeping),
        }
    }

    pub fn bytes(&self) -> u64 {
        (self.holders.capacity() * size_of::<Holder>()) as u64
    }
}
