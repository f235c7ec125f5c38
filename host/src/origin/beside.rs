//! What ledger and journal of an origin are called, and what else lies beside it.
//!
//! Always true: two origins never share a name, because in a place of its own the name is the
//! whole identity of the origin, escaped so that it can be read back; a name that would not fit
//! into a directory is refused. Deliberately absent: what lies in the files.

use crate::fault::{Fault, Kind};
use node::record::Epoch;
use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub const LEDGER: &str = ".tenuto";
pub const JOURNAL: &str = ".tenuto-journal";
/// Records of a unit whose vault is beside its image.
pub const RECORDS: &str = ".tenuto.d";
/// What a snapshot is about to put in the place of the image.
pub const NEW: &str = ".tenuto-new";
/// Exists while a daemon may write an origin that has no fence.
pub const WRITER: &str = ".tenuto-writer";
/// Longest name that a directory takes.
const NAME_BYTES_MAX: usize = 255;

/// What ledger and journal of one epoch of a clustered volume are called.
pub fn of_epoch(ending: &str, epoch: Epoch) -> String {
    let nonce: String = epoch.nonce.0[..4].iter().map(hex).collect();
    format!("{ending}-{}-{nonce}", epoch.number)
}

fn hex(byte: &u8) -> String {
    format!("{byte:02x}")
}

/// The path of a file beside an image.
pub fn beside(image: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(image);
    name.push(ending);
    PathBuf::from(name)
}

/// The path of a file of an origin in a place of its own. `identity` is the real path of an
/// image, the path of a device as it is configured, or the URL of an export.
pub fn in_place(place: &Path, identity: &Path, ending: &str) -> Result<PathBuf, Fault> {
    let mut name = String::new();
    for &byte in identity.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            // A name never starts with a dot, and no two inputs give one name.
            b'.' if !name.is_empty() => name.push('.'),
            _ => write!(name, "%{byte:02X}").expect("a string takes everything"),
        }
    }
    if name.len() + WRITER.len().max(JOURNAL.len()).max(ending.len()) > NAME_BYTES_MAX {
        return Err(Fault::new(
            Kind::Invalid,
            format!(
                "origin {}: its name is too long for a file in {}; give it a shorter path or name",
                identity.display(),
                place.display()
            ),
        ));
    }
    Ok(place.join(name + ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_one_name_in_two_directories_have_two_ledgers() {
        let name = |image: &str| in_place(Path::new("/j"), Path::new(image), LEDGER);
        let one = name("/a/disk.img").expect("fits");
        assert_eq!(one, Path::new("/j/%2Fa%2Fdisk.img.tenuto"));
        assert_ne!(one, name("/b/disk.img").expect("fits"));
        assert_ne!(
            name("/a%2Fdisk").expect("fits"),
            name("/a/disk").expect("fits")
        );
        assert!(name(&format!("/{}", "x".repeat(250))).is_err());
    }
}
