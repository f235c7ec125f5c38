//! Images of a cluster, as a program meets them that is no member or only reads.
//!
//! Always true: such an image is not written here; who reads it goes by the ledger of the
//! newest epoch that is seen, as by any other ledger. Deliberately absent: who may write it.

use crate::fault::{Fault, Kind};
use crate::vault::{Records, Vault};
use node::record::{Epoch, Pointer, RECORD_BYTES, Record};
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

/// The newest record of the unit that this vault has.
pub fn newest(pointer: &Pointer, vault: &Vault, ledger: &Path) -> Result<Option<Record>, Fault> {
    let mut beside = OsString::from(ledger);
    beside.push(".d");
    let records = Records::of(vault, pointer.cluster, pointer.unit, beside.into());
    let seen = records.look(Look::new(pointer.unit, None));
    seen.map_err(|why| Fault::new(Kind::Io, why))
}

/// The epoch whose ledger tells of the image now; none where no host has owned it yet.
pub fn epoch(pointer: &Pointer, ledger: &Path) -> Result<Option<Epoch>, Fault> {
    let vault = Vault::parse(&pointer.vault);
    let vault = vault.map_err(|wrong| Fault::new(Kind::Io, wrong.what))?;
    let seen = newest(pointer, &vault, ledger)?;
    Ok(seen.map(|record| record.epoch))
}
