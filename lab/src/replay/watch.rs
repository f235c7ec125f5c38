//! What the engine sent to the images of some disks, request by request.
//!
//! Owns the lists. Always true: each is in the order of sending, and what is beyond their bound is
//! counted and not left out in silence. Deliberately absent: data, of which a replay has none.

use engine::event::{Device, Io, Op};
use engine::types::VolumeId;
use std::collections::HashMap;

/// Of all disks together: 32 bytes each, so 256 MiB.
const SENT_MAX: usize = 8 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Read,
    Write,
    Flush,
}

/// A request to an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    pub time_ns: u64,
    pub verb: Verb,
    pub offset: u64,
    pub bytes: u64,
}

/// What one disk has sent.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    pub image: Vec<Sent>,
    /// When its journals and ledgers were asked.
    pub beside_ns: Vec<u64>,
}

#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// The disk that a volume is of, or is a part of.
    volumes: HashMap<VolumeId, usize>,
    pub disks: Vec<Disk>,
    sent: usize,
    pub left_out: u64,
}

impl Watch {
    /// From now on the requests of these volumes are kept, as those of one disk.
    pub fn disk(&mut self, volumes: impl IntoIterator<Item = VolumeId>) {
        let disk = self.disks.len();
        self.disks.push(Disk::default());
        self.volumes
            .extend(volumes.into_iter().map(|volume| (volume, disk)));
    }

    pub fn add(&mut self, now_ns: u64, io: &Io) {
        let (volume, image) = match io.device {
            Device::Cache | Device::Former(_) | Device::Peer(..) => return,
            Device::Origin(volume) | Device::Base(volume, _) => (volume, true),
            Device::Journal(volume) | Device::Ledger(volume) => (volume, false),
        };
        let Some(&disk) = self.volumes.get(&volume) else {
            return;
        };
        let verb = match io.op {
            Op::Read | Op::Unpack(_) => Verb::Read,
            Op::Write | Op::Zero { .. } => Verb::Write,
            Op::Sync => Verb::Flush,
            _ => return,
        };
        if self.sent >= SENT_MAX {
            self.left_out += 1;
            return;
        }
        let disk = &mut self.disks[disk];
        match (image, verb) {
            (true, _) => disk.image.push(Sent {
                time_ns: now_ns,
                verb,
                offset: io.offset,
                bytes: io.bytes,
            }),
            // As in the tally: what a storage network counts, and no syncs.
            (false, Verb::Flush) => return,
            (false, _) => disk.beside_ns.push(now_ns),
        }
        self.sent += 1;
    }
}
