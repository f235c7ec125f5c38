//! The files that an image may stand on, and those that it stands on.
//!
//! ```text
//! shelf:  base.raw │ another raw file │ a qcow2 file over base.raw
//! image ─▶ (its header names one of them, or none) ─▶ what that one stands on ─▶ …
//! ```
//!
//! Owns the bytes of these files, which the image stands on, which it moves to, and which a daemon
//! has open. Always true: no request changes one of them; a header names the file that the image
//! stands on or the one that it moves to, and nothing else is ever found in it; what a daemon has
//! open stays as it is until it exchanges that, whatever the header says. An image without a choice
//! has the first file alone, and its storage tells nothing of it. Deliberately absent: who orders a
//! move ([`moves`](crate::moves)).

use crate::disk::Disk;
use crate::made;
use crate::qcow2::{self, Layer};
use crate::rng::Rng;
use engine::origin::FileIndex;
use engine::types::Span;
use std::collections::VecDeque;

/// What a file has where no other one has the same.
const ANOTHER: u8 = 0x5C;

/// A file below an image by its number on the shelf; `None` where the image has all of its disk.
pub type On = Option<usize>;

/// A file that an image may stand on.
#[derive(Clone, Debug)]
pub struct Stock {
    /// As headers name it.
    pub name: String,
    pub disk: Disk,
    pub raw: bool,
    pub on: On,
}

/// All of them, for one image.
#[derive(Clone, Debug, Default)]
pub struct Below {
    files: Vec<Stock>,
    /// What the image stands on, and what it moves to, if it does.
    pub on: On,
    pub to: Option<On>,
    /// What a daemon has open, from the highest file down.
    open: Option<Vec<usize>>,
    /// That is not what the header names, or was not for a time.
    pub given_up: bool,
}

/// A move under way.
#[derive(Clone, Debug, Default)]
pub struct Moving {
    pub step: Step,
    pub onto: On,
    /// What is to be the image's own, in the order in which it is told. The last batch goes with
    /// the move itself.
    pub own: VecDeque<Vec<Span>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Step {
    /// Ordered; the guest has to have all its answers first.
    #[default]
    Wanted,
    Destages,
    Owns,
    Moves,
    Empties,
    Exchanges,
    Ends,
}

impl Below {
    /// One raw file that never becomes another one.
    pub fn one(bytes: Vec<u8>) -> Below {
        let base = Stock {
            name: "base.raw".to_owned(),
            disk: Disk::new(bytes),
            raw: true,
            on: None,
        };
        Below::of(vec![base], Some(0))
    }

    pub fn of(files: Vec<Stock>, on: On) -> Below {
        Below {
            files,
            on,
            to: None,
            open: None,
            given_up: false,
        }
    }

    /// An image with this content and the files that it may stand on. Each of them has a part of
    /// the disk right, a part of it as another one has it, and something else in the rest; one may
    /// end before the disk, or behind it. The longest name does not fit into the first sector of a
    /// header.
    pub fn made(content: &[u8], seed: u64) -> (Vec<u8>, Below) {
        let mut rng = Rng::new(seed ^ 0xB2_10_3D);
        let [mut top, base] = made::files(content, seed);
        let other = mixed(content, &base, &mut rng);
        let view = mixed(content, &base, &mut rng);
        let middle = made::file_over(&view, &base, rng.word());
        let stock = |name: String, bytes: Vec<u8>, raw, on| {
            let disk = Disk::new(bytes);
            let on: On = on;
            Stock {
                name,
                disk,
                raw,
                on,
            }
        };
        let long = "other.raw".repeat(rng.pick(&[1, 1, 40, 100]));
        let on = rng.pick(&[0, 0, 2]);
        if on == 2 {
            top = made::file_over(content, &view, rng.word());
            made::stand_on(&mut top, Some(("middle.qcow2", false)));
        }
        let files = vec![
            stock("base.raw".to_owned(), base, true, None),
            stock(long, other, true, None),
            stock("middle.qcow2".to_owned(), middle, false, Some(0)),
        ];
        (top, Below::of(files, Some(on)))
    }

    /// There is more than one to stand on.
    pub fn has_choice(&self) -> bool {
        self.files.len() > 1
    }

    /// The image has files below it, now or later.
    pub fn is_some(&self) -> bool {
        !self.files.is_empty()
    }

    pub fn file(&self, number: usize) -> &Stock {
        &self.files[number]
    }

    pub fn disk(&mut self, number: usize) -> &mut Disk {
        &mut self.files[number].disk
    }

    /// The other things that the image could stand on.
    pub fn others(&self) -> Vec<On> {
        let all = (0..self.files.len()).map(Some).chain([None]);
        all.filter(|it| *it != self.on).collect()
    }

    /// The numbers of the files from this one down.
    pub fn chain(&self, on: On) -> Vec<usize> {
        let below = |number: &usize| self.files[*number].on;
        std::iter::successors(on, below).collect()
    }

    /// What lies there, from the highest file down.
    pub fn layers(&self, on: On) -> Vec<Layer<'_>> {
        let layer = |number: usize| {
            let file = &self.files[number];
            let (bytes, raw) = (file.disk.landed(), file.raw);
            Layer { bytes, raw }
        };
        self.chain(on).into_iter().map(layer).collect()
    }

    /// The file that an image with these first bytes names.
    pub fn named(&self, image: &[u8]) -> Result<On, String> {
        let Some(name) = qcow2::backing(image) else {
            return Ok(None);
        };
        let found = self.files.iter().position(|it| it.name.as_bytes() == name);
        let file = found.ok_or_else(|| {
            let name = String::from_utf8_lossy(name);
            format!("the image stands on {name:?}, which is no file")
        })?;
        Ok(Some(file))
    }

    /// The same, where that is one of those that it may stand on at this moment.
    pub fn stands_on(&self, image: &[u8]) -> Result<On, String> {
        let named = self.named(image)?;
        if named != self.on && Some(named) != self.to {
            let (on, to) = (self.on, self.to);
            let what = format!("the image stands on {named:?}, not on {on:?}");
            return Err(format!("{what}, and moves to {to:?}"));
        }
        Ok(named)
    }

    /// Another image with this disk over what this one stands on.
    pub fn image_over(&self, disk: &[u8], seed: u64) -> Vec<u8> {
        let view;
        let below = match self.on.map(|it| &self.files[it]) {
            None => &[][..],
            Some(file) if file.raw => file.disk.landed(),
            Some(_) => {
                view = qcow2::disk(&self.layers(self.on), disk.len());
                view.as_deref().expect("it was made")
            }
        };
        let mut image = made::file_over(disk, below, seed);
        if self.has_choice() {
            let name = self.on.map(|it| &self.files[it]);
            made::stand_on(&mut image, name.map(|it| (it.name.as_str(), it.raw)));
        }
        image
    }

    /// A daemon opens what an image with these first bytes stands on.
    pub fn open(&mut self, image: &[u8]) -> Result<(), String> {
        self.on = self.stands_on(image)?;
        (self.to, self.given_up) = (None, false);
        self.open = Some(self.chain(self.on));
        Ok(())
    }

    pub fn close(&mut self) {
        self.open = None;
    }

    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The image has moved, and the host did not exchange what is open.
    pub fn give_up(&mut self) {
        self.on = self.to.take().expect("it has moved");
        self.given_up = true;
    }

    /// The number of a file that is open.
    pub fn opened(&self, file: FileIndex) -> usize {
        let open = self.open.as_ref().expect("a daemon has opened them");
        open[usize::from(file.0) - 1]
    }

    /// A number that is another one where the files are others; 0 where that is never so.
    pub fn print(&self, on: On) -> u64 {
        match self.has_choice() {
            true => 2 * on.map_or(0, |number| number as u64 + 1) + 1,
            false => 0,
        }
    }

    /// The print of what is open.
    pub fn print_open(&self) -> Option<u64> {
        let open = self.open.as_ref()?;
        Some(self.print(open.first().copied()))
    }
}

/// A disk that has parts of both, and parts of neither.
fn mixed(content: &[u8], base: &[u8], rng: &mut Rng) -> Vec<u8> {
    let sectors = content.len() as u64 / 512;
    let length = match rng.below(3) {
        0 => sectors,
        1 => rng.range(1, sectors),
        _ => sectors + rng.range(1, 300),
    };
    let mut bytes = vec![ANOTHER; length as usize * 512];
    let part = rng.pick(&[4096, 16 << 10, 64 << 10]);
    for (number, into) in bytes.chunks_mut(part).enumerate() {
        let from = match rng.below(4) {
            0 => content,
            1 => base,
            2 => {
                into.fill(0);
                continue;
            }
            _ => continue,
        };
        let have = from.get(number * part..).unwrap_or(&[]);
        let have = &have[..have.len().min(into.len())];
        into[..have.len()].copy_from_slice(have);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::Origin;
    use crate::qcow2::Verdict;
    use crate::tops;

    #[test]
    fn an_image_with_a_choice_is_right_and_has_its_disk_over_what_it_names() {
        let (mut ons, mut prints) = (Vec::new(), Vec::new());
        for seed in 0..60 {
            let mut content = vec![0; [64, 1000, 4099][seed as usize % 3] * 512];
            if seed % 4 > 0 {
                workload::stamp::fill(&mut content, 9, 0, 0);
            }
            let (top, below) = Below::made(&content, seed);
            assert_eq!(qcow2::judge(&top), Verdict::default(), "seed {seed}");
            assert_eq!(below.stands_on(&top), Ok(below.on), "seed {seed}");
            let middle = below.file(2).disk.landed();
            assert_eq!(qcow2::judge(middle), Verdict::default(), "seed {seed}");
            ons.push(below.on);
            prints.push(below.print(below.on));
            let origin = Origin {
                image: Disk::new(top),
                below,
                ..Origin::default()
            };
            let disk = tops::disk(&origin, content.len());
            assert!(disk == Ok(content), "seed {seed}");
        }
        assert!(ons.contains(&Some(0)) && ons.contains(&Some(2)));
        assert!(prints.iter().all(|it| it % 2 == 1), "none is even");
    }

    #[test]
    fn a_header_that_names_another_file_is_found_out() {
        let (mut top, mut below) = Below::made(&[7; 64 * 512], 3);
        made::stand_on(&mut top, None);
        assert!(below.stands_on(&top).is_err());
        below.to = Some(None);
        assert_eq!(below.stands_on(&top), Ok(None));
        made::stand_on(&mut top, Some(("elsewhere.raw", true)));
        assert!(below.stands_on(&top).is_err());
    }
}
