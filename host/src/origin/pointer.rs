//! Images of a cluster, as a program meets them that is no member or only reads.
//!
//! Always true: such an image is not written here; who reads it goes by the ledger of the
//! newest epoch that is seen, as by any other ledger. Deliberately absent: who may write it.

use crate::fault::{Fault, Kind};
use crate::vault::{Records, Vault};
use node::record::{Epoch, Pointer, RECORD_BYTES};
use node::vault::Look;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The pointer that lies where a ledger would.
pub fn read(ledger: &Path) -> Option<Pointer> {
    let mut bytes = Vec::new();
    let file = File::open(ledger).ok()?;
    file.take(RECORD_BYTES as u64)
        .read_to_end(&mut bytes)
        .ok()?;
    Pointer::parse(&bytes).ok()
}

/// Why an image of a cluster is not written by who is not asked to by its cluster.
pub fn refuse(image: &Path) -> Fault {
    let image = image.display();
    Fault::new(
        Kind::Foreign,
        format!(
            "origin {image}: belongs to a cluster, whose hosts decide which of them writes it; \
             serve it there"
        ),
    )
}

/// The epoch whose ledger tells of the image now; none where no host has owned it yet.
pub fn epoch(pointer: &Pointer, ledger: &Path) -> Result<Option<Epoch>, Fault> {
    let failed = |why: String| Fault::new(Kind::Io, why);
    let vault = Vault::parse(&pointer.vault).map_err(|wrong| failed(wrong.what))?;
    let mut beside = OsString::from(ledger);
    beside.push(".d");
    let records = Records::of(&vault, pointer.cluster, pointer.unit, beside.into());
    let seen = records
        .look(Look::new(pointer.unit, None))
        .map_err(failed)?;
    Ok(seen.map(|record| record.epoch))
}
