//! Recordings: what guests ask for, kept until somebody comes for it.
//!
//! Owns one buffer for each recording, and which volumes it is of. All of it is the shard
//! thread's: the front ends put requests in as they begin, and whoever records exchanges the full
//! buffer for an empty one through the control channel, about twenty times a second. So the shard
//! shares no memory with a reader and waits for none.
//! Always true: a buffer never grows and is made by whoever records, once; what finds no room is
//! counted, and is newer than all that is in the buffer and older than all that comes into the
//! next one; without a recording a request costs one comparison; a volume that goes away takes no
//! other's requests with it when its number is given again, and is recorded on when it comes back
//! under its name. Times are those of the round in which a request was taken: no clock is read
//! for one.
//! Deliberately absent: a file, its format, how long it goes on; names of files of a guest, which
//! no front end can tell.

use super::control::Answer;
use super::{Decide, Shard};
use engine::types::{Span, Time, VolumeId};
use workload::trace::Op;

/// Requests that one buffer holds, of 24 bytes each: those of half a second at a quarter of a
/// million requests a second.
pub const REQUESTS_MAX: usize = 1 << 17;
/// Volumes of one recording.
pub const VOLUMES_MAX: usize = 4096;
/// In the table of a recording: it is not of this volume.
const NOT_OURS: u16 = u16::MAX;

const _: () = assert!(VOLUMES_MAX < NOT_OURS as usize);

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    pub time: Time,
    pub sector: u64,
    /// Zero for a flush alone.
    pub sectors: u32,
    /// Which of the volumes that were named.
    pub volume: u16,
    pub op: Op,
}

const _: () = assert!(size_of::<Recorded>() == 24);

/// What was asked for since somebody came.
#[derive(Debug, Default)]
pub struct Taken {
    pub requests: Vec<Recorded>,
    /// Requests behind these that found no room.
    pub lost: u64,
}

/// What whoever records asks for.
pub(super) enum Order {
    Begin(Vec<String>, Vec<Recorded>, Answer<Result<u32, String>>),
    Take(u32, Vec<Recorded>, Answer<Option<Taken>>),
    End(u32, Answer<()>),
}

/// Room for the requests of one exchange. It was written to once by whoever makes it: else each
/// page of it would come from the kernel while a guest waits for the shard.
pub fn buffer() -> Vec<Recorded> {
    let any = Recorded {
        time: Time(u64::MAX),
        sector: 0,
        sectors: 0,
        volume: NOT_OURS,
        op: Op::Flush,
    };
    let mut buffer = vec![any; REQUESTS_MAX];
    buffer.clear();
    buffer
}

#[derive(Debug)]
struct Recording {
    number: u32,
    names: Vec<String>,
    /// Which of the names a volume is, by its number.
    places: Vec<u16>,
    requests: Vec<Recorded>,
    lost: u64,
}

impl Recording {
    fn set(&mut self, volume: VolumeId, place: u16) {
        let at = volume.0 as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, NOT_OURS);
        }
        self.places[at] = place;
    }

    fn add(&mut self, volume: VolumeId, time: Time, op: Op, span: Span) {
        let place = self.places.get(volume.0 as usize);
        let Some(&place) = place.filter(|place| **place != NOT_OURS) else {
            return;
        };
        if self.requests.len() == REQUESTS_MAX {
            self.lost += 1;
            return;
        }
        // No protocol has requests that are longer.
        let sectors = u32::try_from(span.sectors).unwrap_or(u32::MAX);
        self.requests.push(Recorded {
            time,
            sector: span.sector,
            sectors,
            volume: place,
            op,
        });
    }
}

/// All recordings; their number is bounded by whoever begins them.
#[derive(Debug, Default)]
pub(super) struct Recordings {
    all: Vec<Recording>,
    next: u32,
}

impl Recordings {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Begins one of these volumes; its number.
    pub fn begin(&mut self, volumes: Vec<(String, VolumeId)>, empty: Vec<Recorded>) -> u32 {
        assert!(volumes.len() <= VOLUMES_MAX, "checked by whoever asks");
        check_empty(&empty);
        let number = self.next;
        self.next += 1;
        let mut recording = Recording {
            number,
            names: Vec::new(),
            places: Vec::new(),
            requests: empty,
            lost: 0,
        };
        for (place, (name, id)) in (0..).zip(volumes) {
            recording.set(id, place);
            recording.names.push(name);
        }
        self.all.push(recording);
        number
    }

    pub fn add(&mut self, volume: VolumeId, time: Time, op: Op, span: Span) {
        for recording in &mut self.all {
            recording.add(volume, time, op, span);
        }
    }

    /// What there is, in exchange for an empty buffer.
    pub fn take(&mut self, number: u32, empty: Vec<Recorded>) -> Option<Taken> {
        check_empty(&empty);
        let mut all = self.all.iter_mut();
        let recording = all.find(|recording| recording.number == number)?;
        Some(Taken {
            requests: std::mem::replace(&mut recording.requests, empty),
            lost: std::mem::take(&mut recording.lost),
        })
    }

    pub fn end(&mut self, number: u32) {
        self.all.retain(|recording| recording.number != number);
    }

    /// A volume is there, maybe again.
    pub fn attached(&mut self, volume: VolumeId, name: &str) {
        for recording in &mut self.all {
            let place = recording.names.iter().position(|known| known == name);
            recording.set(volume, place.map_or(NOT_OURS, |place| place as u16));
        }
    }

    /// The number of this volume may become another's.
    pub fn forgotten(&mut self, volume: VolumeId) {
        for recording in &mut self.all {
            recording.set(volume, NOT_OURS);
        }
    }
}

fn check_empty(buffer: &Vec<Recorded>) {
    let room = buffer.capacity() >= REQUESTS_MAX;
    assert!(buffer.is_empty() && room, "a buffer comes empty and whole");
}

impl<E: Decide> Shard<E> {
    /// Notes a request of a guest, if somebody records its volume.
    #[inline]
    pub(super) fn record(&mut self, volume: VolumeId, op: Op, span: Span) {
        if !self.recordings.is_empty() {
            self.recordings.add(volume, self.now, op, span);
        }
    }

    /// An asker who does not wait for the answer any more loses nothing by it.
    pub(super) fn record_order(&mut self, order: Order) {
        match order {
            Order::Begin(names, empty, answer) => {
                let _ = answer.send(self.begin_recording(names, empty));
            }
            Order::Take(number, empty, answer) => {
                let _ = answer.send(self.recordings.take(number, empty));
            }
            Order::End(number, answer) => {
                self.recordings.end(number);
                let _ = answer.send(());
            }
        }
    }

    /// Begins to record volumes by their names, or gives back the first that is not there.
    fn begin_recording(&mut self, names: Vec<String>, empty: Vec<Recorded>) -> Result<u32, String> {
        let mut volumes = Vec::with_capacity(names.len());
        for name in names {
            let mut all = self.volumes.iter();
            match all.find(|(_, volume)| volume.name == name) {
                Some((id, _)) => volumes.push((name, *id)),
                None => return Err(name),
            }
        }
        Ok(self.recordings.begin(volumes, empty))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Span = Span {
        sector: 8,
        sectors: 8,
    };

    fn of(names: &[(&str, u32)]) -> (Recordings, u32) {
        let mut recordings = Recordings::default();
        let volumes = names
            .iter()
            .map(|(name, id)| (name.to_string(), VolumeId(*id)));
        let number = recordings.begin(volumes.collect(), buffer());
        (recordings, number)
    }

    fn write(recordings: &mut Recordings, volume: u32, time: u64) {
        recordings.add(VolumeId(volume), Time(time), Op::Write, SPAN);
    }

    fn times(taken: &Taken) -> Vec<(u16, u64)> {
        let all = taken.requests.iter();
        all.map(|it| (it.volume, it.time.0)).collect()
    }

    #[test]
    fn requests_come_in_their_order_and_only_those_of_the_volumes_that_were_named() {
        let (mut recordings, number) = of(&[("b", 7), ("a", 2)]);
        for (volume, time) in [(2, 1), (3, 2), (7, 3), (900, 4), (2, 5)] {
            write(&mut recordings, volume, time);
        }
        let taken = recordings.take(number, buffer()).expect("it runs");
        assert_eq!(times(&taken), [(1, 1), (0, 3), (1, 5)]);
        assert_eq!(taken.lost, 0);
        let again = recordings.take(number, buffer()).expect("it runs");
        assert!(again.requests.is_empty(), "each is given once");
    }

    #[test]
    fn what_finds_no_room_is_counted_behind_all_that_did_and_the_next_buffer_goes_on() {
        let (mut recordings, number) = of(&[("a", 0)]);
        let before = recordings.all[0].requests.as_ptr();
        for time in 0..REQUESTS_MAX as u64 + 5 {
            write(&mut recordings, 0, time);
        }
        let taken = recordings.take(number, buffer()).expect("it runs");
        assert_eq!(taken.requests.as_ptr(), before, "it has not grown");
        assert_eq!((taken.requests.len(), taken.lost), (REQUESTS_MAX, 5));
        let last = taken.requests.last().expect("some");
        assert_eq!(last.time, Time(REQUESTS_MAX as u64 - 1));
        // The buffer that was taken comes back empty.
        let mut empty = taken.requests;
        empty.clear();
        write(&mut recordings, 0, 1 << 40);
        let taken = recordings.take(number, empty).expect("it runs");
        assert_eq!((times(&taken), taken.lost), (vec![(0, 1 << 40)], 0));
    }

    #[test]
    fn a_number_that_becomes_another_volumes_is_not_recorded_and_a_volume_that_comes_back_is() {
        let (mut recordings, number) = of(&[("a", 0), ("b", 1)]);
        recordings.forgotten(VolumeId(0));
        write(&mut recordings, 0, 1);
        recordings.attached(VolumeId(0), "other");
        write(&mut recordings, 0, 2);
        recordings.attached(VolumeId(5), "a");
        write(&mut recordings, 5, 3);
        write(&mut recordings, 1, 4);
        let taken = recordings.take(number, buffer()).expect("it runs");
        assert_eq!(times(&taken), [(0, 3), (1, 4)]);
    }

    #[test]
    fn recordings_go_side_by_side_and_one_that_ended_has_nothing() {
        let (mut recordings, first) = of(&[("a", 0)]);
        let second = recordings.begin(vec![("a".into(), VolumeId(0))], buffer());
        write(&mut recordings, 0, 1);
        recordings.end(first);
        write(&mut recordings, 0, 2);
        assert!(recordings.take(first, buffer()).is_none());
        let taken = recordings.take(second, buffer()).expect("it runs");
        assert_eq!(times(&taken), [(0, 1), (0, 2)]);
        recordings.end(second);
        assert!(recordings.is_empty());
    }
}
