//! What the shard does for backups: it marks changes, cuts windows, and hands clients on.
//!
//! Always true: the bit of a change is set before the engine hears of it, and one that the engine
//! knows when a bitmap comes is marked in that as well, so a bitmap has all that is not in the
//! image at a later cut; a window is cut before the first write to one of its images is given to a
//! device; a client that reads a backup is no client of its volume, and the shard keeps nothing of
//! it. Deliberately absent: what the clients are answered (`backup::serve`).

use super::command::Waiter;
use super::conn::{Conn, Life};
use super::control::{Answer, BackupOrder};
use super::{Decide, Shard};
use crate::backup::live::Live;
use crate::backup::{Backup, Window, serve};
use engine::event::{Command, Event, Refusal};
use engine::types::{RequestId, Span, VolumeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bitmaps and windows of the volumes that have some.
#[derive(Default)]
pub(super) struct Backups {
    tracked: BTreeMap<VolumeId, Vec<Arc<Live>>>,
    windows: BTreeMap<VolumeId, Arc<Window>>,
}

impl Backups {
    /// Bitmaps of a volume that joins.
    pub fn joined(&mut self, volume: VolumeId, lives: Vec<Arc<Live>>) {
        match lives.is_empty() {
            true => self.tracked.remove(&volume),
            false => self.tracked.insert(volume, lives),
        };
    }

    /// The image of a volume is about to be written, or to be another file.
    pub fn written(&mut self, volume: VolumeId) {
        if !self.windows.is_empty()
            && let Some(window) = self.windows.remove(&volume)
        {
            window.cut();
        }
    }

    pub fn forget(&mut self, volume: VolumeId) {
        self.written(volume);
        self.tracked.remove(&volume);
    }

    fn mark(&self, volume: VolumeId, span: Span) {
        let lives = self.tracked.get(&volume);
        for live in lives.into_iter().flatten() {
            live.mark(span.sector, span.sectors);
        }
    }

    /// Marks what this is about to change, if it changes something of a guest's disk.
    pub fn before(&self, event: &Event) {
        if self.tracked.is_empty() {
            return;
        }
        let (volume, sector, sectors) = match *event {
            Event::Write {
                volume,
                sector,
                sectors,
                ..
            }
            | Event::WriteZeroes {
                volume,
                sector,
                sectors,
                ..
            }
            | Event::Discard {
                volume,
                sector,
                sectors,
                ..
            } => (volume, sector, sectors),
            _ => return,
        };
        self.mark(volume, Span::new(sector, sectors));
    }
}

impl<E: Decide> Shard<E> {
    pub(super) fn backup_order(&mut self, order: BackupOrder) {
        match order {
            BackupOrder::Window(order, answer) => self.begin_window(*order, answer),
            BackupOrder::Show(backups, answer) => {
                let _ = answer.send(self.show_backups(backups));
            }
            BackupOrder::Track(volume, lives, answer) => {
                self.track(volume, lives);
                let _ = answer.send(());
            }
        }
    }

    /// From now on changes of a volume are marked in these.
    fn track(&mut self, volume: VolumeId, lives: Vec<Arc<Live>>) {
        self.backups.joined(volume, lives);
        if !self.backups.tracked.contains_key(&volume) {
            return;
        }
        // They may get their place in the order of writes after the next cut.
        let mut known = Vec::new();
        for (_, conn) in self.conns.iter() {
            conn.changes(volume, &mut known);
        }
        for (_, guest) in self.guests.iter() {
            guest.changes(volume, &mut known);
        }
        for span in known {
            self.backups.mark(volume, span);
        }
    }

    /// Orders the images of a volume and its group to rest for a window.
    fn begin_window(
        &mut self,
        (volume, members, window): (VolumeId, Vec<VolumeId>, Arc<Window>),
        answer: Answer<Result<(), Refusal>>,
    ) {
        let request = self.commands.enter(Waiter::Window(members, window, answer));
        let command = Command::Quiesce { volume };
        self.feed(Event::Admin { request, command });
    }

    /// What the engine replies is told later; its images rest from here on.
    pub(super) fn note_rest(&mut self, request: RequestId, result: &Result<(), Refusal>) {
        if result.is_err() || !super::command::is_ours(request) {
            return;
        }
        if let Some((members, window)) = self.commands.window_of(request) {
            let windows = &mut self.backups.windows;
            windows.extend(members.iter().map(|member| (*member, window.clone())));
        }
    }

    /// Shows the members of a window to clients, if it is open still.
    fn show_backups(&mut self, backups: Vec<(VolumeId, Arc<Backup>)>) -> bool {
        let open = |(_, backup): &(_, Arc<Backup>)| backup.window.is_open();
        if !backups.iter().all(open) {
            return false;
        }
        for (volume, backup) in backups {
            self.exports.set_backup(volume, backup);
        }
        true
    }

    /// Lets a client go on on a thread of its own, once all is sent that it was told here.
    pub(super) fn hand_over(&mut self, slot: u32, conn: &mut Conn) {
        assert!(conn.life == Life::HandedOver, "it has chosen a backup");
        let (backup, chosen) = match conn.take_over() {
            Ok(taken) => taken,
            Err(error) => {
                tracing::warn!("cannot serve a client of a backup: {error}");
                return self.kill(slot, conn);
            }
        };
        if let Err(error) = serve::start(backup, chosen) {
            tracing::warn!("cannot start a thread for a client of a backup: {error}");
        }
        self.let_socket_go(slot, conn);
    }
}
