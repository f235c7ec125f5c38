//! What one desktop has written: by place, and by age.
//!
//! Owns each written piece of one kind with its time. Always true: a piece is rewritten as a whole
//! and pieces do not overlap, so the time since a byte was written is the time since its piece was;
//! those of one class stand in the order of the disk, so that what a file's next piece is can be
//! asked; memory is that of the pieces. Deliberately absent: what is written next.

use super::random::Random;
use std::collections::VecDeque;
use std::ops::Range;

/// How old a piece can be: younger than these, and older than the last of them.
pub const INTERVALS_MS: [u32; 3] = [10_000, 600_000, 86_400_000];
pub const OLDER: usize = INTERVALS_MS.len();

/// Tries to find a piece of the right age that is not dead.
const PROBES: usize = 8;
/// Writes, or dead ones, below which nothing is tidied.
const TIDY_MIN: usize = 1024;

#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub block: u32,
    pub blocks: u16,
    pub time_ms: u32,
    /// Of its last write.
    number: u64,
}

/// A piece: its class, and which one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub class: u8,
    index: u32,
}

impl Place {
    pub fn is_before(self, other: Place) -> bool {
        self.class == other.class && self.index + 1 == other.index
    }
}

/// Pieces of one kind.
#[derive(Default)]
pub struct Pieces {
    of_class: [Vec<Piece>; 7],
    /// All writes in their order; one whose piece was written again since is dead.
    writes: VecDeque<Place>,
    /// The number of the write in front: numbers only grow.
    front: u64,
    /// Where the writes of the last ten seconds, ten minutes and day begin.
    since: [u64; 3],
    live: usize,
}

impl Pieces {
    pub fn get(&self, place: Place) -> &Piece {
        &self.of_class[place.class as usize][place.index as usize]
    }

    fn end(&self) -> u64 {
        self.front + self.writes.len() as u64
    }

    fn at(&self, number: u64) -> Option<Place> {
        let place = *self.writes.get((number - self.front) as usize)?;
        (self.get(place).number == number).then_some(place)
    }

    /// Once in each second with a write.
    pub fn advance(&mut self, now_ms: u32) {
        self.tidy();
        for (at, interval) in INTERVALS_MS.into_iter().enumerate() {
            let mut since = self.since[at].max(self.front);
            while since < self.end() {
                let young = |place| self.get(place).time_ms.saturating_add(interval) > now_ms;
                if self.at(since).is_some_and(young) {
                    break;
                }
                since += 1;
            }
            self.since[at] = since;
        }
    }

    fn tidy(&mut self) {
        while !self.writes.is_empty() && self.at(self.front).is_none() {
            self.writes.pop_front();
            self.front += 1;
        }
        if self.writes.len() < 2 * self.live + TIDY_MIN {
            return;
        }
        let mut kept = VecDeque::with_capacity(self.live);
        let mut since = self.since;
        for number in self.front..self.end() {
            match self.at(number) {
                Some(place) => {
                    let piece = &mut self.of_class[place.class as usize][place.index as usize];
                    piece.number = self.front + kept.len() as u64;
                    kept.push_back(place);
                }
                None => {
                    for (since, was) in since.iter_mut().zip(self.since) {
                        *since -= u64::from(number < was);
                    }
                }
            }
        }
        self.since = since;
        self.writes = kept;
    }

    /// The numbers of the writes of an age.
    fn range(&self, age: usize) -> Range<u64> {
        let begin = match age {
            OLDER => self.front,
            _ => self.since[age].max(self.front),
        };
        let end = match age {
            0 => self.end(),
            _ => self.since[age - 1],
        };
        begin..end.max(begin)
    }

    /// Any of this age.
    pub fn pick(&self, age: usize, random: &mut Random) -> Option<Place> {
        let range = self.range(age);
        if range.is_empty() {
            return None;
        }
        (0..PROBES).find_map(|_| self.at(range.start + random.below(range.end - range.start)))
    }

    /// Any at all.
    pub fn any(&self, random: &mut Random) -> Option<Place> {
        let number = self.front + random.below(self.writes.len() as u64);
        self.at(number)
    }

    /// The one behind it on the disk, if it touches it and has this age.
    pub fn behind(&self, place: Place, age: usize) -> Option<Place> {
        let next = Place {
            index: place.index + 1,
            ..place
        };
        self.neighbour(place, next, next, age)
    }

    pub fn before(&self, place: Place, age: usize) -> Option<Place> {
        let previous = Place {
            index: place.index.checked_sub(1)?,
            ..place
        };
        self.neighbour(previous, place, previous, age)
    }

    fn neighbour(&self, first: Place, second: Place, found: Place, age: usize) -> Option<Place> {
        let of_class = &self.of_class[first.class as usize];
        let (first, second) = (
            of_class.get(first.index as usize)?,
            of_class.get(second.index as usize)?,
        );
        let touch = first.block + u32::from(first.blocks) == second.block;
        (touch && self.range(age).contains(&self.get(found).number)).then_some(found)
    }

    /// It is written now.
    pub fn write(&mut self, place: Place, now_ms: u32) {
        let number = self.end();
        let piece = &mut self.of_class[place.class as usize][place.index as usize];
        piece.number = number;
        piece.time_ms = now_ms;
        self.writes.push_back(place);
    }

    /// A new one, behind all others of its class.
    pub fn add(&mut self, class: usize, (block, blocks): (u32, u16), now_ms: u32) -> Place {
        let of_class = &mut self.of_class[class];
        let ends = of_class
            .last()
            .map_or(0, |last| last.block + u32::from(last.blocks));
        assert!(block >= ends, "a new piece lies before an old one");
        let place = Place {
            class: class as u8,
            index: of_class.len() as u32,
        };
        of_class.push(Piece {
            block,
            blocks,
            time_ms: now_ms,
            number: 0,
        });
        self.live += 1;
        self.write(place, now_ms);
        place
    }
}
