//! Plans that bring no write of a guest to the file.
//!
//! Owns two of them. One makes parts of the disk the file's own: what it has nothing of is copied
//! from what lies below, or marked as zeroes where nothing lies there, and what it has stays. Then
//! the disk is the same on another file below it, if the two differ in these parts alone, and the
//! end of the plan may say that the file stands on that. The other one cuts the end of the disk
//! off: clusters behind it lose their entries. Always true: the disk that a guest sees through the
//! chain as it was is the same before and after a plan that makes parts own; a cluster of which
//! the disk keeps a part keeps its entry. Deliberately absent: which parts differ, and the size
//! that the header says.

use super::cluster::{Asked, Fate};
use super::table::Found;
use super::{Aim, View, Work, Writer, damaged};
use crate::adversary::{Bug, has};
use crate::format::entry::{L2, Unit};
use crate::format::onto::Onto;
use crate::meta::Tables;
use crate::resolve::{Content, Stop, Wrong, resolve};
use crate::types::{Range, Span};
use alloc::vec::Vec;

impl Writer {
    /// The plan that has just begun makes its pieces the file's own, and lets the file stand on
    /// something else if that is given.
    pub fn make_own(&mut self, onto: Option<Onto>) {
        assert!(self.plan.planned == 0 && !self.plan.ordered);
        (self.plan.aim, self.plan.onto) = (Aim::Own, onto);
    }

    /// The plan that has just begun cuts its pieces off, which are the end of the disk.
    pub fn cut_off(&mut self) {
        assert!(self.plan.planned == 0 && !self.plan.ordered);
        self.plan.aim = Aim::Cut;
    }

    /// A cluster of which the disk keeps nothing. What it has of the file is given back.
    pub(super) fn cut<T: Tables>(
        &mut self,
        view: &mut View<T>,
        asked: &Asked,
        found: &Found,
        out: &mut Vec<Work>,
    ) -> Result<(), Stop> {
        let end = asked.span.end();
        if asked.old.word == 0 && asked.old.bitmap == 0 {
            self.plan.planned = end;
            return Ok(());
        }
        if let Some(place) = asked.place {
            self.used_once(view, place, found, asked.span)?;
        }
        let releases = self.releases(view, asked, found)?;
        self.plan.prepare(view, found)?;
        // From here on nothing is missing.
        self.plan.planned = end;
        self.plan.enter(view, found, out);
        releases.into_iter().for_each(|it| self.plan.release(it));
        if let Some(at) = asked.place {
            // It is free now: a storage that can make holes gets its room back.
            let bytes = view.header.cluster_bytes();
            let range = Range { at, bytes };
            out.push(Work::Zero { range });
        }
        let nothing = L2 {
            word: 0,
            bitmap: 0,
            ..asked.old
        };
        if !has(Bug::KeepCutEntry) {
            self.plan.set(found, nothing);
        }
        Ok(())
    }

    /// The begin of the file when it stands on something else.
    pub(super) fn moved<T>(
        &self,
        view: &View<T>,
        sector: &[u8],
        onto: &Onto,
    ) -> Result<Vec<u8>, Stop> {
        let mut header = view.header.clone();
        header.set_onto(onto);
        let mark = self.plan.mark.expect("a plan of a volume has a mark");
        let moved = header.marked(sector, &mark);
        moved.ok_or(damaged(0, 0, 0, Wrong::Header))
    }
}

impl Asked<'_> {
    /// What becomes of a unit that is to be the file's own.
    pub(super) fn own<T: Tables>(
        &self,
        view: &mut View<T>,
        unit: Unit,
        span: Span,
    ) -> Result<Fate, Stop> {
        if unit != Unit::Unallocated {
            return Ok(Fate::Keep);
        }
        let (at, end) = (span.at, span.end().min(self.disk_end));
        let mut parts = Vec::new();
        let visible = Span {
            at,
            bytes: end - at,
        };
        resolve(view.chain, visible, view.tables, &mut parts)?;
        let nothing = parts.iter().all(|it| it.content == Content::Zero);
        Ok(match nothing {
            true if has(Bug::LeaveBare) => Fate::Keep,
            true => Fate::Zero,
            false => Fate::Write,
        })
    }
}
