//! A guest of the host that keeps the copy: it writes as much as its host lets it.
//!
//! Always true: each of its writes is answered without an error, or waits. Deliberately absent:
//! what it reads; the world of one host judges guests.

use crate::machine::{Machine, attach, image, tuning};
use crate::rng::Rng;
use engine::event::{Event, Tuning};
use engine::types::{BufferId, RequestId, Tag, VolumeId};

/// Writes that wait.
const WAITING_MAX: usize = 4;
/// Of its disk: more than the log takes.
const SECTORS: u64 = 8 * 600;
/// The place of its image.
const PLACE: usize = 1;

pub struct Neighbour {
    volume: VolumeId,
    waiting: Vec<(RequestId, BufferId)>,
}

impl Neighbour {
    /// It comes, or comes back after its daemon.
    pub fn attach(machine: &mut Machine) -> Result<Neighbour, String> {
        if machine.devices.origins.len() == PLACE {
            machine.devices.origins.push(image(6, SECTORS));
        }
        let tuning = Tuning {
            destage_after_ms: None,
            dirty_limit_bytes: 1 << 30,
            ..tuning(&mut machine.rng.fork())
        };
        Ok(Neighbour {
            volume: attach(machine, "neighbour", (PLACE, SECTORS), tuning)?,
            waiting: Vec::new(),
        })
    }

    /// Some writes; how many.
    pub fn write(&mut self, machine: &mut Machine, rng: &mut Rng) -> u64 {
        self.waiting.retain(|(request, buffer)| {
            let answer = machine.answer(*request);
            if answer.is_some() {
                machine.memory.buffer_remove(*buffer);
            }
            answer.is_none()
        });
        let free = WAITING_MAX - self.waiting.len();
        for _ in 0..free {
            let sectors = 8 * rng.range(1, 9);
            let sector = rng.below(SECTORS - sectors + 1);
            let buffer = machine
                .memory
                .buffer_add(vec![0x6e; 512 * sectors as usize]);
            let request = machine.request();
            self.waiting.push((request, buffer));
            machine.apply(Event::Write {
                volume: self.volume,
                request,
                sector,
                sectors,
                buffer,
                fua: false,
                tag: Tag::NONE,
            });
        }
        free as u64
    }
}
