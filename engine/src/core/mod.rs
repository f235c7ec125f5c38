//! The shard behind the seam: dispatches events, and touches the volume that each is of.
//!
//! Each verb has a file: `read`, `fill`, `tables`, `keep`, `write`, `direct`, `destage`, `replay`,
//! `merge_damage`, `switch`, `image`, `checkpoint`, `attach`. What has fields of its own is a part:
//! `reading`, `turns`, `extents`, `share` with `room`, `direct`, `park` (service), `given`,
//! `evacuate`, `scrub`, and the clean blocks in `crate::clean`. A part is given what it needs, and
//! returns what others have to know; this file and `maintain` tell them. Always true after an
//! `apply`: all that could be decided has been decided; what is left waits for a device, for room,
//! or for a time that is in the timers.

mod allocate;
mod attach;
mod bypass;
mod checkpoint;
mod commit;
mod copied;
mod destage;
mod direct;
mod evacuate;
mod extents;
mod fill;
mod given;
mod group;
mod grow;
mod guard;
mod image;
mod jobs;
mod join;
mod journal;
mod keep;
mod kept_rest;
mod ledger;
mod maintain;
mod merge_damage;
mod overlay;
mod pace;
mod park;
mod planned;
mod proof;
mod quiesce;
mod read;
mod read_op;
mod reading;
mod rebase;
mod recall;
mod replay;
mod replay_source;
mod replay_table;
mod replica;
mod replication;
mod resend;
mod resize;
mod retry_read;
mod room;
mod scrub;
mod share;
mod show;
mod stride;
mod switch;
mod tables;
mod task;
#[cfg(test)]
mod tests;
mod touched;
mod turns;
mod write;

/// The writer of checkpoints after one with this sequence was written.
pub fn checkpoint_writer(sequence: u64) -> checkpoint::CheckpointWriter {
    checkpoint::CheckpointWriter::after(sequence)
}

use crate::clean::serve::Asked;
use crate::clean::{FoundFill, Lines, is_base};
use crate::event::{Command, Event, IoError, Refusal, Stat};
use crate::fetch::{Fetched, Fetches, Owner, Want};
use crate::log::{Log, Waiter};
use crate::open::Config;
use crate::origin::Maps;
use crate::outbox::{Cx, Pending, Timer};
use crate::ram::RamTier;
use crate::scratch::Scratch;
use crate::snapshot::CacheState;
use crate::types::{BLOCK_BYTES, RequestId, Time, VolumeId};
use crate::volume::{Volume, Volumes};
use alloc::vec::Vec;

pub struct Core {
    pub config: Config,
    pub superblock: crate::format::superblock::Superblock,
    pub log: Log,
    pub volumes: Volumes,
    /// What is given out once.
    pub given: given::Given,
    pub ram: RamTier,
    pub lines: Lines,
    pub scratch: Scratch,
    fetches: Fetches,
    /// Reads under way, and what they wait for.
    pub reading: reading::Reading,
    /// Where the bytes of images lie that are not raw.
    maps: Maps,
    tables: tables::Tables,
    /// What goes past the log.
    direct: direct::Direct,
    /// What the next run of the list of steps has to look at.
    touched: touched::Touched,
    groups: Vec<group::Group>,
    replicas: replication::Replicas,
    /// When a destage may write its storage.
    turns: turns::Turns,
    pub checkpoint: checkpoint::CheckpointWriter,
    evacuation: evacuate::Evacuation,
    scrub: scrub::Scrub,
    retry_read: Option<retry_read::RetryRead>,
    /// Of the maps of dirty data.
    pub extents: extents::Extents,
    /// What of log and map is whose.
    shares: share::Shares,
    service: park::Service,
    health: bypass::Health,
}

impl Core {
    pub fn new(
        config: Config,
        superblock: crate::format::superblock::Superblock,
        log: Log,
        volumes: Vec<Option<Volume>>,
        checkpoint: checkpoint::CheckpointWriter,
    ) -> Core {
        let ram = RamTier::new(config.ram_blocks, config.hash_seed);
        let lines = Lines::new(&config, superblock.geometry);
        let scratch = Scratch::new(superblock.geometry, config.scratch_bytes);
        Core {
            superblock,
            log,
            volumes: volumes.into(),
            given: given::Given::default(),
            ram,
            lines,
            scratch,
            fetches: Fetches::default(),
            reading: reading::Reading::new(config.hash_seed),
            maps: Maps::new(config.map_bytes_max),
            tables: tables::Tables::default(),
            direct: direct::Direct::default(),
            touched: touched::Touched::default(),
            groups: Vec::new(),
            replicas: replication::Replicas::default(),
            turns: turns::Turns::default(),
            checkpoint,
            evacuation: evacuate::Evacuation::default(),
            scrub: scrub::Scrub::default(),
            retry_read: None,
            extents: extents::Extents::default(),
            shares: share::Shares::default(),
            service: park::Service::default(),
            health: bypass::Health::default(),
            config,
        }
    }

    /// Counts what recovery found. Flushed data that is missing stops every volume it may be of.
    pub fn take_over(&mut self) {
        assert!(self.extents.count() == 0, "it is counted once");
        for volume in self.volumes.iter_mut() {
            if volume.lacks_quota() {
                volume.open_quota(self.log.open_quota());
            }
            let owner = volume.quota_owner();
            for epoch in &mut volume.epochs {
                for piece in epoch.map.pieces_from(0) {
                    let change = crate::map::Change::Added(piece);
                    let charge = self.log.account(owner, change);
                    epoch.charge = epoch.charge.strict_add_signed(charge);
                }
                self.extents.grow(epoch.map.len() as i64);
            }
            if volume.has_damaged_log() {
                volume.hold(Some("flushed records of the log are missing"));
            }
        }
        self.count_writers();
    }

    /// Puts what recovery found into the index; oldest segments first.
    pub fn adopt_fills(&mut self, found: Vec<FoundFill>) {
        let new_layer = || self.given.take_layer();
        self.lines.adopt(&mut self.log, found, new_layer);
    }

    pub fn apply(&mut self, cx: &mut Cx<'_>, event: Event) {
        self.service.take_event(cx.now);
        match event {
            Event::Read {
                volume,
                request,
                sector,
                sectors,
                buffer,
            } => self.read(cx, volume, request, (sector, sectors), buffer),
            Event::Write {
                volume,
                request,
                sector,
                sectors,
                buffer,
                fua,
                tag,
            } => {
                self.write(cx, volume, request, (sector, sectors), (buffer, tag), fua);
            }
            Event::Flush { volume, request } => self.flush(cx, volume, request),
            Event::Discard {
                volume,
                request,
                sector,
                sectors,
                fua,
            } => {
                let range = (sector, sectors);
                match self.drops_discards(volume) {
                    true => self.drop_discard(cx, volume, request, range),
                    false => self.zero(cx, volume, request, range, fua, false),
                }
            }
            Event::WriteZeroes {
                volume,
                request,
                sector,
                sectors,
                fua,
                allocate,
            } => {
                self.zero(cx, volume, request, (sector, sectors), fua, allocate);
            }
            Event::Disconnect { connection } => self.drop_waiting(cx, connection),
            Event::Replicate {
                volume,
                request,
                batch,
            } => self.replicate(cx, volume, request, batch),
            Event::Replicated {
                volume,
                peer,
                number,
                credit,
            } => self.replicated(cx, volume, peer, (number, credit)),
            event @ Event::ReadLeft { .. } => {
                let tiers = (&mut self.ram, &mut self.log);
                self.lines.serve(cx, tiers, Asked::of(event));
            }
            event @ Event::ReadCopy { .. } => recall::serve(self, cx, &event),
            Event::Zeroed { volume, bytes } => self.zeroed(volume, bytes),
            Event::Done { io, result, stat } => self.done(cx, io, result, stat),
            Event::Admin { request, command } => self.command(cx, request, command),
            Event::Tick => self.tick(cx),
        }
        self.maintain(cx);
    }

    fn tick(&mut self, cx: &mut Cx<'_>) {
        while let Some(timer) = cx.out.due(cx.now) {
            match timer {
                Timer::Linger => self.log.linger_over(),
                Timer::Announce => self.log.announce(cx),
                Timer::Housekeeping => self.keep_house(cx),
                Timer::Flow(volume) => self.flow_due(cx, volume),
                Timer::Pace(volume) => self.pace_due(volume),
                Timer::Sync => self.log.sync_timer_over(),
                // It goes on by itself after each event.
                Timer::Scrub => {}
            }
        }
    }

    /// That counts are those of what they count, and each volume is in order.
    #[cfg(feature = "adversary")]
    pub(super) fn check_volumes(&mut self) {
        let (mut unfinished, mut given_up, mut extents) = (0, 0, 0);
        for volume in self.volumes.iter() {
            let begun = volume.is_in_part();
            unfinished += u32::from(begun) + u32::from(volume.has_batch_in_part());
            given_up += u32::from(volume.is_given_up());
            extents += volume.dirty_extents();
            assert!(
                !begun || volume.first_waiting().is_some_and(|it| it.blocks() > 0),
                "the rest of a write waits first"
            );
            let epochs = &volume.epochs;
            assert!(
                epochs.iter().rev().skip(1).all(|epoch| epoch.sealed),
                "one epoch is open"
            );
            assert!(
                epochs.iter().is_sorted_by_key(|epoch| epoch.last_serial),
                "epochs are in order of their serials"
            );
            let given = volume.serial_next().0 + u64::from(begun);
            assert!(
                epochs.iter().all(|it| it.last_serial.0 < given),
                "only what was given a serial is dirty"
            );
        }
        assert_eq!(unfinished, self.log.unfinished);
        assert_eq!(given_up, self.log.given_up);
        let volumes = self.volumes.iter();
        let queued: u64 = volumes.map(|it| it.replication.extents()).sum();
        self.extents
            .check(extents + queued + self.checkpoint.extents());
        let all = self.volumes.iter_mut();
        let held: usize = all.map(Volume::held_pieces).sum();
        assert!(self.scratch.destage_pieces() <= held);
    }

    fn done(
        &mut self,
        cx: &mut Cx<'_>,
        io: crate::types::IoId,
        result: Result<(), IoError>,
        stat: Option<Stat>,
    ) {
        let ((pending, started), ok) = (cx.out.take(io), result.is_ok());
        let ended = (result, stat, started);
        self.time_origin(cx.now, &pending, started, ok);
        self.observe_cache(cx.now, &pending, ok);
        self.note_full(&pending, result);
        pending.volume().into_iter().for_each(|id| self.touch(id));
        match pending {
            Pending::Log {
                slot,
                stream,
                segment,
                attempt,
                from,
                upto,
            } => {
                self.log.count_write(cx.now.since(started));
                let place = (slot, stream, segment);
                self.log.write_done(cx, place, (attempt, from, upto), ok);
            }
            Pending::CacheSync { attempt } => self.log_synced(cx, attempt, ok),
            footer @ (Pending::Footer { .. }
            | Pending::Prepare { .. }
            | Pending::FillFooter { .. }
            | Pending::ScrubFooter
            | Pending::EvacuateFooter) => self.footer_done(cx, footer, ok),
            Pending::Checkpoint => self.checkpoint_written(cx, ok),
            Pending::CheckpointSync => self.checkpoint_on_media(cx, ok),
            Pending::Fetch { fetch, part } => {
                let parts = (&mut self.log, &mut self.scratch);
                if let Some(fetched) = self.fetches.part_done(cx, parts, (fetch, part), ok) {
                    recall::begin(self, cx, fetched);
                }
            }
            Pending::Recall { recall, part } => recall::recalled(self, cx, (recall, part), result),
            Pending::Fill { fill } => self.filled(cx, fill, result, started),
            Pending::LineRead { fill } => self.line_read(cx, fill, ok),
            Pending::FormerRead { fill } => self.former_read(cx, fill, ok),
            Pending::Serve { serving, row } => {
                self.lines.served(cx, &mut self.log, (serving, row), ok);
            }
            Pending::FillBatch { batch } => self.batch_done(cx.now, batch, ok),
            Pending::OriginRead { read, part } => {
                self.origin_read_done(cx, read, part, result, started);
            }
            Pending::Direct { call } => self.call_done(cx, call, result, started),
            Pending::Allocate { volume, io } => self.allocate_done(cx, (volume, io), ended),
            Pending::Look { volume, op } => self.looked(cx, volume, op, ok, stat),
            Pending::Resize { volume } => self.resized(cx, volume, result),
            Pending::SwitchSync { volume } => self.switch_synced(cx, volume, ok),
            Pending::Ledger { volume } => self.ledger_written(cx, volume, ok),
            Pending::LedgerSync { volume } => self.ledger_synced(cx, volume, ok),
            Pending::Destage { volume, job } => self.job_done(cx, volume, job, ok, started),
            Pending::DestageSync { volume } => self.destage_synced(cx, volume, ok),
            Pending::JournalTable { volume } => self.table_written(cx, volume, ok),
            Pending::Replay { volume, io } => self.replay_done(cx, (volume, io), ended),
            Pending::LookAtImage { volume } => self.image_seen(cx, volume, stat.filter(|_| ok)),
            Pending::Plan { volume, io } => self.plan_io_done(cx, (volume, io), result),
            Pending::Stat { volume } => self.stat_done(cx, volume, stat.filter(|_| ok)),
            Pending::Clock { volume } => self.clock_read(cx, volume, stat.filter(|_| ok)),
            Pending::CutJournal { volume } => self.journal_cut(cx, volume, ok),
            Pending::Remove { volume } => self.volume(volume).removed(ok),
        }
    }

    /// A footer was written or read, or a segment was prepared.
    fn footer_done(&mut self, cx: &mut Cx<'_>, pending: Pending, ok: bool) {
        let (log, scratch, cache) = (&mut self.log, &mut self.scratch, self.superblock.cache);
        match pending {
            Pending::Footer { segment, piece } => log.footer_done(scratch, segment, piece, ok),
            Pending::Prepare { segment, piece } => {
                log.prepare_done(cx, scratch, segment, piece, ok)
            }
            Pending::FillFooter { segment, piece } => {
                self.lines.footer_done((log, scratch), segment, piece, ok);
            }
            Pending::ScrubFooter => {
                let of = (cache, self.health.state());
                self.scrub.footer_read(cx, (log, scratch), of, ok);
            }
            Pending::EvacuateFooter => {
                let of = (cache, self.extents.is_swept());
                self.evacuation.footer_read(cx, (log, scratch), of, ok);
            }
            other => unreachable!("{other:?} is about no footer"),
        }
    }

    /// Clean blocks are on the device: written for the volumes whose misses brought them.
    fn batch_done(&mut self, now: Time, batch: u32, ok: bool) {
        let parts = (&mut self.ram, &mut self.log, &mut self.scratch);
        for id in self.lines.batch_done(now, parts, batch, ok) {
            if let Some(volume) = self.find(id) {
                volume.counters.ssd_write_bytes += BLOCK_BYTES;
            }
        }
    }

    /// The end of a sync that a checkpoint asked for.
    fn checkpoint_on_media(&mut self, cx: &mut Cx<'_>, ok: bool) {
        self.checkpoint_synced(cx, ok);
        if ok {
            self.cache_synced();
        }
    }

    /// The end of a sync that the log asked for.
    fn log_synced(&mut self, cx: &mut Cx<'_>, attempt: u32, ok: bool) {
        if !ok {
            self.doubt_checkpoint();
        }
        for waiter in self.log.sync_done(cx, attempt, ok) {
            self.durable(cx, waiter);
        }
        if ok {
            self.cache_synced();
        }
    }

    /// A record that somebody waited for is on stable media.
    fn durable(&mut self, cx: &mut Cx<'_>, waiter: Waiter) {
        match waiter {
            Waiter::Guest {
                volume,
                request,
                upto,
            } => self.durable_here(cx, volume, request, upto),
            Waiter::Volume(volume) => self.touch(volume),
            // An orderly stop looks by itself.
            Waiter::Park => {}
        }
    }

    fn fetched(&mut self, cx: &mut Cx<'_>, fetched: Fetched) {
        match fetched.owner {
            Owner::Read(read) => {
                let op = self.reading.read(read);
                let volume = op.volume;
                if fetched.is_damaged() {
                    op.result = Err(Refusal::Io);
                    let bad = fetched.bad.iter().map(|want| want.addr);
                    self.volume(volume).meets_damage(cx.now, bad);
                }
                self.volume(volume).counters.ssd_read_bytes += fetched.ssd_bytes;
                self.part_of_read_ended(cx, read);
            }
            Owner::Destage { volume, job } => self.job_fetched(cx, volume, job, &fetched.bad),
            Owner::Replay { volume, job } => {
                self.entries_fetched(cx, volume, job, !fetched.is_damaged());
            }
            Owner::Peer { volume, peer } => self.batch_fetched(cx, (volume, peer), &fetched),
            Owner::Evacuate => {
                let parts = (&mut self.log, &mut self.scratch);
                let (swept, bad) = (self.extents.is_swept(), fetched.is_damaged());
                self.evacuation.fetched(cx.now, parts, swept, bad);
            }
            Owner::Copy(serving) => recall::served(self, cx, serving, !fetched.is_damaged()),
            Owner::RetryRead => self.read_retried(cx.now, !fetched.is_damaged()),
            Owner::Scrub => self.scrubbed(cx, &fetched.bad),
        }
    }

    /// What a scrub works with, and what is known of the device.
    fn of_scrub(&mut self) -> (&mut scrub::Scrub, scrub::Sources<'_>, CacheState) {
        let sources = scrub::Sources {
            volumes: &self.volumes,
            lines: &self.lines,
            log: &mut self.log,
            scratch: &mut self.scratch,
            fetches: &mut self.fetches,
        };
        (&mut self.scrub, sources, self.health.state())
    }

    /// A scrub has read a batch. A bad clean block is forgotten, a bad dirty one is damage.
    fn scrubbed(&mut self, cx: &mut Cx<'_>, bad: &[Want]) {
        let (scrub, sources, state) = self.of_scrub();
        for bad in scrub.fetched(cx, sources, state, bad) {
            match bad {
                scrub::Bad::Dirty(id, addr) => {
                    self.volume(id).meets_damage(cx.now, [addr].into_iter());
                }
                scrub::Bad::Clean(key) => self.lines.drop_bad(key, false),
            }
        }
    }

    fn command(&mut self, cx: &mut Cx<'_>, request: RequestId, command: Command) {
        if let Some(id) = volume_of(&command) {
            if self.find(id).is_none() {
                cx.out.reply(request, Err(Refusal::Gone));
                return;
            }
            self.touch(id);
        }
        match command {
            Command::Park => self.park(cx, request),
            Command::Scrub => {
                let dirty: u64 = self.volumes.iter().map(|it| it.charge()).sum();
                let blocks = dirty + self.lines.snapshot().blocks;
                let footers = self.log.footered() * self.scratch.piece_bytes();
                let total_bytes = blocks * BLOCK_BYTES + footers;
                self.scrub.order(cx, request, total_bytes);
            }
            Command::CacheGone { gone } => self.cache_gone(cx, request, gone),
            Command::Destage { volume } => self.destage_command(cx, volume, request),
            Command::Look { volume } => self.look_command(cx, volume, request),
            Command::Reset { volume } => self.reset(cx, volume, request),
            Command::Leave { volume, why } => self.leave(cx, volume, request, why),
            Command::Arrive { volume, goes_on } => self.arrive(cx, volume, request, goes_on),
            Command::Commit { volume } => self.commit(cx, volume, request),
            Command::Suspend { volume } => self.suspend(cx, volume, request),
            Command::Depose { volume } => self.depose(cx, volume, request),
            Command::Prove { volume } => self.prove(cx, volume, request),
            Command::Quiesce { volume } => self.quiesce(cx, volume, request),
            Command::Resume { volume } => self.resume(cx, volume, request),
            Command::KeepRest { volume, begins } => {
                kept_rest::keep(self, cx, volume, request, begins);
            }
            Command::BreakRest { volume } => kept_rest::end(self, cx, volume, request),
            Command::Announce { volume } => self.announce_exchange(cx, volume, request),
            Command::Empty { volume } => self.empty_for_exchange(cx, volume, request),
            Command::EndExchange { volume } => self.end_exchange(cx, volume, request),
            Command::Rebase { volume, order } => self.rebase(cx, volume, request, order),
            Command::Resize { volume, size_bytes } => {
                self.resize(cx, volume, request, size_bytes);
            }
            Command::Tune { volume, tuning } => {
                self.volume(volume).tune(tuning);
                self.count_writers();
                self.count_group(volume);
                cx.out.reply(request, Ok(()));
            }
            Command::Switch {
                volume,
                policy,
                journal_possible,
            } => self.switch(cx, volume, request, policy, journal_possible),
            Command::Detach {
                volume,
                discard_dirty,
            } => {
                self.detach(cx, volume, request, discard_dirty);
            }
            of_copies => self.copy_command(cx, request, of_copies),
        }
    }

    /// Orders that are about copies on other hosts, or of them.
    fn copy_command(&mut self, cx: &mut Cx<'_>, request: RequestId, command: Command) {
        match command {
            Command::KeepReplica { volume, spec } => {
                self.keep_replica(cx, volume, request, &spec);
            }
            Command::Freeze { volume, term } => self.freeze(cx, volume, request, term),
            Command::TakeOver { volume, name } => {
                self.take_over_replica(cx, volume, request, name);
            }
            Command::Retire { volume, name, term } => {
                self.retire(cx, volume, request, (name, term));
            }
            Command::TellDestaged { volume, upto } => {
                self.tell_replica(cx, volume, request, upto);
            }
            Command::NameLineage { volume, lineage } => {
                self.name_lineage(cx, volume, request, lineage);
            }
            Command::StartPeer {
                volume,
                peer,
                have,
                credit,
            } => self.start_peer(cx, volume, request, (peer, have, credit)),
            Command::CountPeer { volume, peer } => self.count_peer(cx, volume, request, peer),
            Command::StopPeer {
                volume,
                peer,
                counts,
            } => {
                self.stop_peer(cx, volume, peer, counts);
                cx.out.reply(request, Ok(()));
            }
            Command::AnswerAtOrigin { volume, on } => {
                let by_order = false;
                self.answer_at_origin(cx, volume, request, (on, by_order));
            }
            Command::FlushThrough { volume, on } => {
                let by_order = true;
                self.answer_at_origin(cx, volume, request, (on, by_order));
            }
            other => unreachable!("{other:?} is carried out before"),
        }
    }

    /// What volumes take of the log and of the map.
    fn budgets(&self) -> share::Budgets {
        let gauge = self.log.gauge();
        share::Budgets {
            log: share::Budget {
                capacity: gauge.capacity,
                used: gauge.live,
            },
            map: share::Budget {
                capacity: self.config.dirty_extents_max,
                used: self.extents.count(),
            },
        }
    }

    /// A volume has come or gone, or takes from log and map in another way.
    fn count_writers(&mut self) {
        let budgets = self.budgets();
        self.shares.count_writers(&mut self.volumes, budgets);
    }

    /// What a volume holds dirty has changed.
    fn recount(&mut self, id: VolumeId) {
        self.shares.recount(self.volumes.known_mut(id));
    }

    pub fn find(&mut self, id: VolumeId) -> Option<&mut Volume> {
        self.volumes.get_mut(id)
    }

    /// A volume that is known to be there, because something of it was in flight.
    fn volume(&mut self, id: VolumeId) -> &mut Volume {
        self.volumes.known_mut(id)
    }

    /// Nothing that is kept clean of this volume counts any more. A base layer, which nobody
    /// writes, stays.
    fn renew_layer(&mut self, id: VolumeId) {
        let layer = self.given.take_layer();
        let volume = self.volume(id);
        if !is_base(volume.layer()) {
            let old = volume.change_layer(layer);
            self.lines.forget_layer(old);
        }
    }

    fn enqueue(&mut self, id: VolumeId) {
        let volume = self.volume(id);
        if volume.enqueue() {
            self.touched.wants_try(id);
        }
    }
}

/// The volume that a command is for.
fn volume_of(command: &Command) -> Option<VolumeId> {
    match *command {
        Command::Park | Command::Scrub | Command::CacheGone { .. } => None,
        // It may not be there yet.
        Command::KeepReplica { .. } => None,
        Command::Destage { volume }
        | Command::Look { volume }
        | Command::Reset { volume }
        | Command::Leave { volume, .. }
        | Command::Arrive { volume, .. }
        | Command::Commit { volume }
        | Command::Suspend { volume }
        | Command::Depose { volume }
        | Command::Prove { volume }
        | Command::Quiesce { volume }
        | Command::Resume { volume }
        | Command::KeepRest { volume, .. }
        | Command::BreakRest { volume }
        | Command::Announce { volume }
        | Command::Empty { volume }
        | Command::EndExchange { volume }
        | Command::Freeze { volume, .. }
        | Command::TakeOver { volume, .. }
        | Command::Retire { volume, .. }
        | Command::TellDestaged { volume, .. }
        | Command::NameLineage { volume, .. }
        | Command::StartPeer { volume, .. }
        | Command::CountPeer { volume, .. }
        | Command::StopPeer { volume, .. }
        | Command::AnswerAtOrigin { volume, .. }
        | Command::FlushThrough { volume, .. }
        | Command::Tune { volume, .. }
        | Command::Resize { volume, .. }
        | Command::Rebase { volume, .. }
        | Command::Switch { volume, .. }
        | Command::Detach { volume, .. } => Some(volume),
    }
}
