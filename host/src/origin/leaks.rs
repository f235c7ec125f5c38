//! Clusters of a qcow2 image that are counted and that nothing refers to: what a write left that
//! gave a cluster without a journal and was cut short.
//!
//! The image says in its header that there may be some ([`Header::may_leak`]). Always true: counts
//! are made smaller only where all tables of the file agree otherwise; the header says so until the
//! counts are on stable media; an image that cannot be looked at stays as it is, because a leak
//! wastes space and nothing else. Deliberately absent: who may write the image at that time.

use super::chain::{self, Link, name_of};
use super::content::FileSource;
use crate::fault::{Fault, Kind};
use crate::target::Target;
use engine::event::IoError;
use image::check::{check_and_list, without_leaks};
use image::source::Failed;
use image::{Format, Header};
use std::path::Path;
use std::sync::Arc;

/// Leaks that are freed in one way through the file.
const LEAKS_MAX: usize = 1 << 20;
const SECTOR_BYTES: usize = 512;

/// Frees what leaked, if the header says that something may have. True if the header is another
/// one since.
pub fn free(top: &Arc<Target>, path: &Path) -> bool {
    let name = name_of(path);
    match free_all(top, path, &name) {
        Ok(freed) => {
            if let Some(clusters @ 1..) = freed {
                tracing::info!("{name}: {clusters} clusters that nothing refers to were freed");
            }
            freed.is_some()
        }
        Err(why) => {
            tracing::warn!(
                "{}; clusters that nothing refers to are not freed",
                why.message
            );
            false
        }
    }
}

fn free_all(top: &Arc<Target>, path: &Path, name: &str) -> Result<Option<usize>, Fault> {
    let header = chain::qcow2(top, name)?;
    if !header.may_leak() {
        return Ok(None);
    }
    let link = Link {
        path: path.to_path_buf(),
        target: top.clone(),
        format: Format::Qcow2(header.clone()),
    };
    let failed = |_: IoError| {
        let message = format!("{name}: its refcounts cannot be written");
        Fault::new(Kind::Io, message)
    };
    // What refers to nothing any more as it is seen may be referred to after a loss of power.
    top.sync().map_err(failed)?;
    let (source, mut freed) = (&mut FileSource::new(&link), 0);
    loop {
        let listed = check_and_list(&header, top.size_bytes, source, LEAKS_MAX);
        let (report, leaks) = listed.map_err(|why| match why {
            Failed::Read(fault) => fault,
            Failed::Format(why) => Fault::new(Kind::Invalid, format!("{name}: {why}")),
        })?;
        if report.corruptions > 0 {
            let message = format!("{name}: its tables contradict each other");
            return Err(Fault::new(Kind::Invalid, message));
        }
        if leaks.is_empty() {
            break;
        }
        for (number, sector) in without_leaks(&header, source, &leaks)? {
            let at = number * SECTOR_BYTES as u64;
            top.write(at, &sector).map_err(failed)?;
        }
        top.sync().map_err(failed)?;
        freed += leaks.len();
    }
    end(top, &header).map_err(|_| {
        let message = format!("{name}: its first sector cannot be written");
        Fault::new(Kind::Io, message)
    })?;
    Ok(Some(freed))
}

/// The header does not say any more that something may have leaked. All that was written is synced
/// first.
fn end(top: &Target, header: &Header) -> Result<(), IoError> {
    top.sync()?;
    let mut sector = [0; SECTOR_BYTES];
    top.read(0, &mut sector)?;
    match header.allocating(&sector, false) {
        Some(cleared) => top.write(0, &cleared),
        None => Err(IoError::Damaged),
    }
}

/// The volume of this image has ended in order: nothing has leaked.
pub fn none(top: &Target, header: &Header) -> Result<(), IoError> {
    let mut sector = [0; SECTOR_BYTES];
    top.read(0, &mut sector)?;
    match header.allocating(&sector, false) {
        Some(cleared) if cleared != sector => end(top, header),
        _ => Ok(()),
    }
}
