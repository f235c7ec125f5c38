//! Looks at the images of all volumes, again and again while they are served.
//!
//! Owns when: each volume every [`EACH`], spread over that time where there are many, and all of
//! them at once by order. Always true: nothing here waits for a storage; a volume whose look has
//! not ended is not asked again. Deliberately absent: what is looked at and what follows, which
//! the engine decides.

use crate::shard::control::{CommandReply, Handle, Stopped};
use engine::event::Command;
use engine::types::VolumeId;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use std::{io, thread};

/// How often a volume is looked at.
const EACH: Duration = Duration::from_secs(10);
/// Volumes that are asked for at once: so many looks hold up nothing else.
const AT_ONCE: usize = 16;

/// The thread that looks. It ends when this is dropped.
pub(super) struct Looks(Sender<()>);

impl Looks {
    pub fn start(shard: Handle) -> io::Result<Looks> {
        let (sender, orders) = channel();
        let thread = thread::Builder::new().name("tenuto-images".into());
        thread.spawn(move || look(&shard, &orders))?;
        Ok(Looks(sender))
    }

    /// Looks at all of them now. Returns at once.
    pub fn now(&self) {
        // Without the thread the daemon is ending.
        let _ = self.0.send(());
    }
}

fn look(shard: &Handle, orders: &Receiver<()>) {
    let mut asked = BTreeMap::new();
    let mut pause = EACH;
    let mut round = Vec::new();
    loop {
        let order = match orders.recv_timeout(pause) {
            Ok(()) => true,
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if order || round.is_empty() {
            let Ok(known) = shard.snapshot() else { return };
            let volumes = known.engine.volumes.iter();
            round = volumes.filter(|it| !it.orphan).map(|it| it.id).collect();
            pause = EACH / round.len().div_ceil(AT_ONCE).max(1) as u32;
        }
        let part = if order { round.len() } else { AT_ONCE };
        let part = round.drain(..part.min(round.len()));
        if ask(shard, &mut asked, part).is_err() {
            return;
        }
    }
}

fn ask(
    shard: &Handle,
    asked: &mut BTreeMap<VolumeId, CommandReply>,
    volumes: impl Iterator<Item = VolumeId>,
) -> Result<(), Stopped> {
    asked.retain(|_, reply| !reply.is_over());
    for volume in volumes {
        if let Entry::Vacant(free) = asked.entry(volume) {
            free.insert(shard.command_begin(Command::Look { volume })?);
        }
    }
    Ok(())
}
