//! The first client of an ephemeral volume, and the end of its last.
//!
//! *Ended* means: the last connection said goodbye in the protocol (NBD_CMD_DISC, all rings
//! stopped), and no other is there. A connection that breaks is no end, nor is one that we cut off,
//! also at a stop, nor one whose rings stopped while its dirty pages were noted: its guest moves.
//! A front end is a client from its first ring on, and says with it whether its guest goes on with
//! what it did before; then it had only slept.
//! Always true: a client that comes where none is hears nothing of its export, and of its rings
//! none runs, before the engine lets it in, so a reset that is due is durable before its first
//! answer; others that come meanwhile wait with it. Deliberately absent: whether there is anything
//! to reset; the engine knows.

use super::command::Waiter;
use super::conn::{Conn, Life};
use super::pooled::Pooled;
use super::{Decide, Shard};
use engine::event::{Command, Event, ResetOn};
use engine::types::{Policy, VolumeId};

impl<E: Decide> Shard<E> {
    /// A client has chosen an export; `reply` tells it so.
    pub(super) fn come_in(&mut self, slot: u32, conn: &mut Conn, reply: Vec<u8>) {
        let Some(id) = conn.volume else {
            return self.answer_attach(slot, conn, &reply);
        };
        // The connection itself is lent out, and not among them.
        let alone = self.clients_in(id) == 0;
        self.measure(id);
        let Some(volume) = self.volumes.get_mut(&id) else {
            return self.answer_attach(slot, conn, &reply);
        };
        let waits = !volume.arriving.is_empty();
        if alone && !waits {
            volume.pooled.iter().for_each(Pooled::client_comes);
        }
        if volume.policy != Policy::Ephemeral || !(alone || waits) {
            return self.answer_attach(slot, conn, &reply);
        }
        conn.arriving = Some(reply);
        volume.arriving.push((slot, conn.id));
        if !waits {
            self.send_arrival(id, false);
        }
    }

    pub(super) fn send_arrival(&mut self, volume: VolumeId, goes_on: bool) {
        let request = self.commands.enter(Waiter::Arrival(volume));
        let command = Command::Arrive { volume, goes_on };
        self.feed(Event::Admin { request, command });
    }

    /// The engine lets the clients of a volume in, or the volume goes away.
    pub(super) fn arrived(&mut self, volume: VolumeId, welcome: bool) {
        let known = self.volumes.get_mut(&volume);
        let waiting = known.map(|volume| std::mem::take(&mut volume.arriving));
        for (slot, id) in waiting.into_iter().flatten() {
            if let Some(guest) = super::guest::slot_of(id) {
                self.let_guest_in(guest, id, welcome);
                continue;
            }
            self.with_conn(slot, |shard, conn| {
                let reply = conn.arriving.take().filter(|_| conn.id == id);
                let Some(reply) = reply.filter(|_| conn.life == Life::Open) else {
                    return;
                };
                if !welcome {
                    return shard.kill(slot, conn);
                }
                shard.answer_attach(slot, conn, &reply);
                shard.drive(slot, conn);
            });
        }
    }

    /// A connection that said goodbye, or a front end whose rings had stopped, is over.
    pub(super) fn went_out(&mut self, id: VolumeId, rings: bool) {
        let Some(volume) = self.volumes.get(&id) else {
            return;
        };
        let pooled = volume.pooled.as_ref();
        let matters = pooled.is_some() || volume.policy == Policy::Ephemeral;
        if !matters || self.is_stopping() || self.clients_in(id) > 0 {
            return;
        }
        if pooled.is_some_and(|pooled| pooled.client_ended(rings)) {
            self.exports.set_volume_away(id);
        }
        if volume.policy != Policy::Ephemeral {
            return;
        }
        let request = self.commands.enter(Waiter::Nobody);
        let why = ResetOn::Disconnect;
        let command = Command::Leave { volume: id, why };
        self.feed(Event::Admin { request, command });
    }
}
