//! What becomes of one cluster of the disk.
//!
//! Owns the decision, unit by unit: a unit is a subcluster, or the cluster where there are none.
//!
//! | the unit is | data comes | all of it becomes zeroes | part of it becomes zeroes |
//! | --- | --- | --- | --- |
//! | data, its cluster used once | Overwrite | Zero, and its bytes are zeroed | Overwrite |
//! | data, its cluster shared or compressed | Write | Zero | Write |
//! | zero | Write | Keep | Keep |
//! | nothing | Write | Keep if nothing is below, else Zero | the same, or Write |
//!
//! Always true: all is looked up before anything changes; what is written at once goes to a unit
//! that the file does not refer to, and fills it; what the epoch does not have of it comes from the
//! chain as it was. What changes in place lies in a cluster that is counted once. A cluster that is
//! shared or compressed is left whole: what of it stays goes along to the new one. Behind the end
//! of the disk there are zeroes. Nothing becomes a hole that was not one.

use super::{Aim, Piece, Plan, View, When, Work, Writer, damaged};
use crate::adversary::{Bug, has};
use crate::format::entry::{COPIED, Cluster, L2, SUBCLUSTERS, Unit, ZERO};
use crate::meta::Tables;
use crate::plan::table::Found;
use crate::resolve::{Content, Part, Stop, Wrong, resolve};
use crate::types::{Range, SECTOR_BYTES, Span};
use alloc::vec::Vec;

/// What becomes of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Keep,
    /// Bytes of it change in place, by way of the journal.
    Overwrite,
    /// It is marked as zeroes.
    Zero,
    /// All of it is written where nothing refers to it, and it becomes data.
    Write,
}

/// A cluster of the disk and how it is found.
pub(super) struct Asked<'a> {
    pub span: Span,
    /// Where the disk ends.
    pub disk_end: u64,
    unit_bytes: u64,
    pub pieces: &'a [Piece],
    aim: Aim,
    pub old: L2,
    cluster: Cluster,
    /// Its place in the file, if it may be written there.
    pub place: Option<u64>,
}

impl Writer {
    pub(super) fn plan_cluster<T: Tables>(
        &mut self,
        view: &mut View<T>,
        pieces: &[Piece],
        out: &mut Vec<Work>,
    ) -> Result<(), Stop> {
        let span = span_of(view, pieces);
        assert!(span.at >= self.plan.planned, "clusters come in order");
        let found = self.plan.find(view, span.at)?;
        let asked = self.ask(view, &found, pieces, span)?;
        if asked.is_cut() {
            return self.cut(view, &asked, &found, out);
        }
        let mut fates = [Fate::Keep; SUBCLUSTERS as usize];
        let fates = &mut fates[..(span.bytes / asked.unit_bytes) as usize];
        asked.judge(view, fates)?;
        if fates.iter().all(|it| *it == Fate::Keep) {
            self.plan.planned = span.end();
            return Ok(());
        }
        asked.take_along(fates);
        let writes = asked.writes(view, fates)?;
        let releases = match asked.place {
            Some(place) => self
                .used_once(view, place, &found, span)
                .map(|()| Vec::new())?,
            None => self.releases(view, &asked, &found)?,
        };
        self.plan.prepare(view, &found)?;
        // A table and a cluster of data; what counts them is found at the end.
        if self.plan.append + 2 >= view.clusters_max() {
            return Err(damaged(
                found.entry_at(),
                span.at,
                self.plan.append,
                Wrong::Full,
            ));
        }
        // From here on nothing is missing.
        self.plan.planned = span.end();
        let changes = fates
            .iter()
            .any(|it| matches!(it, Fate::Zero | Fate::Write));
        if changes {
            self.plan.enter(view, &found, out);
        }
        let place = asked.place.or_else(|| {
            let cluster = (!writes.is_empty()).then(|| self.plan.allocate())?;
            Some(view.cluster_of(cluster).at)
        });
        releases.into_iter().for_each(|it| self.plan.release(it));
        self.plan.put_data(place, writes, out);
        // What is to be its own stays as it is.
        if let Some(place) = asked.place.filter(|_| asked.aim != Aim::Own) {
            asked.overwrite(place, out);
        }
        if changes {
            self.plan.set(&found, asked.entry(fates, place));
        }
        Ok(())
    }

    /// Where the bytes of a span lie, if each of its units is data of a cluster that is used once.
    pub(super) fn places<T: Tables>(
        &self,
        view: &mut View<T>,
        span: Span,
    ) -> Result<Option<Vec<(Span, u64)>>, Stop> {
        let bytes = view.header.cluster_bytes();
        let start = self.known().append;
        let written = Plan {
            start,
            ..Plan::default()
        };
        let mut places: Vec<(Span, u64)> = Vec::new();
        let mut at = span.at;
        while at < span.end() {
            let cluster = at / bytes * bytes;
            let end = span.end().min(cluster + bytes);
            let part = Span {
                at,
                bytes: end - at,
            };
            let pieces = [Piece {
                span: part,
                zero: false,
            }];
            let found = written.find(view, at)?;
            let whole = Span { at: cluster, bytes };
            let asked = self.ask(view, &found, &pieces, whole)?;
            let mut fates = [Fate::Keep; SUBCLUSTERS as usize];
            let fates = &mut fates[..(bytes / asked.unit_bytes) as usize];
            asked.judge(view, fates)?;
            let stays = |it: &Fate| matches!(it, Fate::Keep | Fate::Overwrite);
            let Some(place) = asked.place.filter(|_| fates.iter().all(stays)) else {
                return Ok(None);
            };
            self.used_once(view, place, &found, whole)?;
            places.push((part, place + (at - cluster)));
            at = end;
        }
        Ok(Some(places))
    }

    /// Judges what the file says of the cluster.
    fn ask<'a, T: Tables>(
        &self,
        view: &View<T>,
        found: &Found,
        pieces: &'a [Piece],
        span: Span,
    ) -> Result<Asked<'a>, Stop> {
        let (header, old) = (view.header, found.entry);
        let cluster = old.cluster(header.cluster_bits);
        let wrong = |why| Err(damaged(found.entry_at(), span.at, old.word, why));
        let compressed = matches!(cluster, Cluster::Compressed(_));
        if !compressed && (old.has_reserved_bits() || old.extended && old.word & ZERO != 0) {
            return wrong(Wrong::Reserved);
        }
        if old.is_contradictory(cluster) {
            return wrong(Wrong::Bitmap);
        }
        let at = match cluster {
            Cluster::Data(at) | Cluster::Zero(Some(at)) => Some(at),
            _ => None,
        };
        if let Some(at) = at {
            let number = at >> header.cluster_bits;
            if !at.is_multiple_of(header.cluster_bytes()) {
                return wrong(Wrong::DataMisaligned);
            }
            if number >= self.plan.start {
                return wrong(Wrong::Outside);
            }
            if self.known().is_table(number) {
                return wrong(Wrong::Table);
            }
        }
        Ok(Asked {
            span,
            disk_end: view.disk_bytes,
            unit_bytes: header.unit_bytes(),
            pieces,
            aim: self.plan.aim,
            old,
            cluster,
            place: at.filter(|_| found.is_copied()),
        })
    }

    /// What the file says is used once is counted so: else something in it refers there as well,
    /// and would be written over.
    pub(super) fn used_once<T: Tables>(
        &self,
        view: &mut View<T>,
        place: u64,
        found: &Found,
        span: Span,
    ) -> Result<(), Stop> {
        let number = place >> view.header.cluster_bits;
        match self.counted(view, number)? {
            1 => Ok(()),
            _ => Err(damaged(
                found.entry_at(),
                span.at,
                found.entry.word,
                Wrong::Copied,
            )),
        }
    }

    /// The clusters that lose a reference when the entry no longer points there.
    pub(super) fn releases<T: Tables>(
        &self,
        view: &View<T>,
        asked: &Asked,
        found: &Found,
    ) -> Result<Vec<u64>, Stop> {
        let bits = view.header.cluster_bits;
        let clusters = match asked.cluster {
            Cluster::Unallocated | Cluster::Zero(None) => return Ok(Vec::new()),
            Cluster::Zero(Some(at)) | Cluster::Data(at) => at >> bits..=at >> bits,
            Cluster::Compressed(from) => from.at >> bits..=(from.at + from.bytes - 1) >> bits,
        };
        for cluster in clusters.clone() {
            let why = match cluster >= self.plan.start {
                true => Wrong::Outside,
                false if self.known().is_table(cluster) => Wrong::Table,
                false => continue,
            };
            let (at, word) = (found.entry_at(), asked.old.word);
            return Err(damaged(at, asked.span.at, word, why));
        }
        Ok(clusters.collect())
    }
}

/// The cluster that pieces lie in.
fn span_of<T>(view: &View<T>, pieces: &[Piece]) -> Span {
    let bytes = view.header.cluster_bytes();
    let first = pieces.first().expect("there is something to plan").span.at;
    let span = Span {
        at: first / bytes * bytes,
        bytes,
    };
    let mut at = span.at;
    for Piece { span: piece, .. } in pieces {
        assert!(piece.at >= at && piece.bytes > 0, "pieces come in order");
        assert!(piece.at % SECTOR_BYTES == 0 && piece.bytes % SECTOR_BYTES == 0);
        at = piece.end();
    }
    assert!(at <= span.end().min(view.disk_bytes), "of one cluster");
    span
}

impl Asked<'_> {
    /// All of it goes, with its entry.
    fn is_cut(&self) -> bool {
        let end = self.span.end().min(self.disk_end);
        let covered: u64 = self.pieces.iter().map(|it| it.span.bytes).sum();
        self.aim == Aim::Cut && covered == end - self.span.at
    }

    fn unit_span(&self, number: usize) -> Span {
        Span {
            at: self.span.at + number as u64 * self.unit_bytes,
            bytes: self.unit_bytes,
        }
    }

    /// The parts of pieces that lie in a span.
    fn inside(&self, span: Span) -> impl Iterator<Item = Piece> {
        self.pieces.iter().filter_map(move |piece| {
            let at = piece.span.at.max(span.at);
            let end = piece.span.end().min(span.end());
            let bytes = end.checked_sub(at).filter(|it| *it > 0)?;
            Some(Piece {
                span: Span { at, bytes },
                ..*piece
            })
        })
    }

    fn old_unit(&self, number: usize) -> Unit {
        match self.cluster {
            Cluster::Compressed(_) => Unit::Data,
            Cluster::Zero(_) => Unit::Zero,
            Cluster::Unallocated | Cluster::Data(_) if self.old.extended => {
                self.old.unit(number as u32)
            }
            Cluster::Unallocated => Unit::Unallocated,
            Cluster::Data(_) => Unit::Data,
        }
    }

    fn judge<T: Tables>(&self, view: &mut View<T>, fates: &mut [Fate]) -> Result<(), Stop> {
        for (number, fate) in fates.iter_mut().enumerate() {
            let span = self.unit_span(number);
            let data = self.inside(span).any(|it| !it.zero);
            let covered: u64 = self.inside(span).map(|it| it.span.bytes).sum();
            let visible = span.end().min(self.disk_end).saturating_sub(span.at);
            *fate = match (self.old_unit(number), data) {
                _ if covered == 0 => Fate::Keep,
                (unit, _) if self.aim == Aim::Own => self.own(view, unit, span)?,
                (Unit::Data, false) if covered == visible => Fate::Zero,
                (Unit::Data, _) if self.place.is_some() => Fate::Overwrite,
                (Unit::Data, _) | (_, true) => Fate::Write,
                (Unit::Zero, false) => Fate::Keep,
                (Unit::Unallocated, false) if has(Bug::LeaveHole) => Fate::Keep,
                (Unit::Unallocated, false) if self.reads_nothing(view, span)? => Fate::Keep,
                (Unit::Unallocated, false) if covered == visible => Fate::Zero,
                (Unit::Unallocated, false) => Fate::Write,
            };
        }
        Ok(())
    }

    /// Whether no file below has anything where the pieces of this unit lie.
    fn reads_nothing<T: Tables>(&self, view: &mut View<T>, span: Span) -> Result<bool, Stop> {
        let mut parts = Vec::new();
        for piece in self.inside(span) {
            resolve(view.chain, piece.span, view.tables, &mut parts)?;
            if parts.iter().any(|it| it.file.is_some()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Where the cluster does not stay where it is, what it has goes along.
    fn take_along(&self, fates: &mut [Fate]) {
        if self.place.is_some() {
            return;
        }
        for (number, fate) in fates.iter_mut().enumerate() {
            if *fate == Fate::Keep && self.old_unit(number) == Unit::Data {
                *fate = Fate::Write;
            }
        }
    }

    /// All bytes of the units that are written; places count from the start of the cluster.
    fn writes<T: Tables>(&self, view: &mut View<T>, fates: &[Fate]) -> Result<Vec<Work>, Stop> {
        let mut writes = Vec::new();
        let mut first = 0;
        for run in fates.chunk_by(|one, other| one == other) {
            let span = Span {
                at: self.unit_span(first).at,
                bytes: run.len() as u64 * self.unit_bytes,
            };
            first += run.len();
            if run[0] != Fate::Write {
                continue;
            }
            let mut at = span.at;
            // Where it is to be its own, all of it is what it was.
            for piece in self.inside(span).filter(|_| self.aim != Aim::Own) {
                self.fill(view, at, piece.span.at, &mut writes)?;
                at = piece.span.end();
                writes.push(self.piece(piece));
            }
            self.fill(view, at, span.end(), &mut writes)?;
        }
        Ok(writes)
    }

    fn piece(&self, Piece { span, zero }: Piece) -> Work {
        let at = span.at - self.span.at;
        let (file, content) = (None, Content::Zero);
        let part = Part {
            span,
            file,
            content,
        };
        match zero {
            true => Work::Copy { part, at },
            false => Work::Data {
                span,
                at,
                when: When::Now,
            },
        }
    }

    /// What the chain has from here to there.
    fn fill<T: Tables>(
        &self,
        view: &mut View<T>,
        at: u64,
        end: u64,
        writes: &mut Vec<Work>,
    ) -> Result<(), Stop> {
        let mut parts = Vec::new();
        let bytes = end - at;
        resolve(view.chain, Span { at, bytes }, view.tables, &mut parts)?;
        writes.extend(parts.into_iter().map(|part| Work::Copy {
            part,
            at: part.span.at - self.span.at,
        }));
        Ok(())
    }

    /// What changes in place: pieces in units that are data.
    fn overwrite(&self, place: u64, out: &mut Vec<Work>) {
        let units = (self.span.bytes / self.unit_bytes) as usize;
        let mut number = 0;
        while number < units {
            let data = |it: &usize| self.old_unit(*it) == Unit::Data;
            let count = (number..units).take_while(data).count();
            let span = Span {
                at: self.unit_span(number).at,
                bytes: count as u64 * self.unit_bytes,
            };
            for Piece { span, zero } in self.inside(span) {
                let at = place + (span.at - self.span.at);
                let bytes = span.bytes;
                let range = Range { at, bytes };
                let when = When::Journal;
                out.push(match zero {
                    true => Work::Zero { range },
                    false => Work::Data { span, at, when },
                });
            }
            number += count.max(1);
        }
    }

    /// The new entry, of a cluster that has this place.
    fn entry(&self, fates: &[Fate], place: Option<u64>) -> L2 {
        let mut entry = self.old;
        let copied = if has(Bug::ForgetCopied) { 0 } else { COPIED };
        entry.word = place.map_or(0, |at| at | copied);
        if !entry.extended {
            if fates[0] == Fate::Zero {
                entry.word |= ZERO;
            }
            return entry;
        }
        for (number, fate) in fates.iter().enumerate() {
            let (data, zero) = (1 << number, 1 << (32 + number));
            match fate {
                Fate::Keep | Fate::Overwrite => {}
                Fate::Zero => entry.bitmap = entry.bitmap & !data | zero,
                Fate::Write => entry.bitmap = entry.bitmap & !zero | data,
            }
        }
        assert!(
            place.is_some() || entry.bitmap as u32 == 0,
            "data has a place"
        );
        entry
    }
}

impl Plan {
    /// Tells of the bytes of a cluster that are written at once.
    fn put_data(&mut self, place: Option<u64>, writes: Vec<Work>, out: &mut Vec<Work>) {
        let Some(place) = place else {
            assert!(writes.is_empty(), "what is written has a place");
            return;
        };
        for mut work in writes {
            let (Work::Data { span, at, .. }
            | Work::Copy {
                part: Part { span, .. },
                at,
            }) = &mut work
            else {
                unreachable!("tables are told of elsewhere");
            };
            *at += place;
            let (at, bytes) = (*at, span.bytes);
            self.wrote(Range { at, bytes });
            out.push(work);
        }
    }
}

const _: () = assert!(SUBCLUSTERS == 32, "the halves of a bitmap");
