//! Opening the images of many volumes at once, for a start.
//!
//! Always true: volumes are handed on in the order of the file, whichever image was open first, so
//! that numbers, messages and the first error are those of a start one by one; only images that
//! one volume alone may open are opened here, so that no two of these threads wait for each
//! other's lock. What is opened waits for its turn; an end before that closes it. Nearly all of
//! the time is spent waiting for storage: syncs of ledgers that are new, servers, other hosts.

use super::opened::{Joining, Opened, open_settled};
use super::places::Ledgers;
use super::{StartError, VolumeSettings};
use engine::types::Policy;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// Images that are opened at the same time. More hardly wait less: their syncs become one.
const THREADS_MAX: usize = 8;

/// Hands on all volumes in order, with what was opened of them where that was done here.
pub(super) fn in_order(
    volumes: &[VolumeSettings],
    ledgers: &Ledgers,
    mut take: impl FnMut(VolumeSettings, Option<Opened>) -> Result<(), StartError>,
) -> Result<(), StartError> {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (sender, opened) = channel();
        for _ in 0..THREADS_MAX.min(volumes.len()) {
            let (sender, next) = (sender.clone(), &next);
            let thread = thread::Builder::new().name("tenuto-open".into());
            let work = move || open_next(volumes, ledgers, next, &sender);
            // With fewer threads it takes longer; without any they are opened one by one.
            let _ = thread.spawn_scoped(scope, work);
        }
        drop(sender);
        let mut early = BTreeMap::new();
        for (at, volume) in volumes.iter().enumerate() {
            let opened = match opens_alone(volume) {
                true => wait_for(at, &mut early, &opened),
                false => None,
            };
            take(volume.clone(), opened)?;
        }
        Ok(())
    })
}

/// Whether nobody else may have the image of this volume, not even to read.
fn opens_alone(volume: &VolumeSettings) -> bool {
    !volume.read_only && volume.policy != Policy::Ephemeral
}

fn open_next(
    volumes: &[VolumeSettings],
    ledgers: &Ledgers,
    next: &AtomicUsize,
    sender: &Sender<(usize, Opened)>,
) {
    loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let Some(volume) = volumes.get(at) else {
            return;
        };
        // Nobody takes any more where an earlier volume has failed.
        if opens_alone(volume)
            && sender
                .send((at, open_settled(volume, ledgers, Joining::default())))
                .is_err()
        {
            return;
        }
    }
}

/// `None` if nobody opens it.
fn wait_for(
    at: usize,
    early: &mut BTreeMap<usize, Opened>,
    opened: &Receiver<(usize, Opened)>,
) -> Option<Opened> {
    while !early.contains_key(&at) {
        let (other, result) = opened.recv().ok()?;
        early.insert(other, result);
    }
    early.remove(&at)
}
