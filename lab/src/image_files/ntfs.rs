//! Files of the NTFS file systems of an image.
//!
//! Owns the program that knows them: `fiwalk` of The Sleuth Kit, one run for a whole image, under
//! limits that `prlimit` sets. Always true: it is asked only where a boot sector says NTFS; however
//! damaged the image is and however the program ends, the rest is an error in words, because it is
//! another process, has so much time and memory, and may say so much. Tried before: the crate
//! `ntfs`, which panics on foreign bytes; `ntfscluster`, which knows no partitions.

use super::contents::Contents;
use super::without;
use crate::inputs::failed;
use host::error::{Error, Result, cause};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use workload::trace::SECTOR_BYTES;
use workload::trace::analyze::places::Places;
use workload::trace::analyze::walked::Walked;

/// Of a processor: a volume of 200,000 files takes seven.
const SECONDS_MAX: u64 = 600;
/// A volume of 200,000 files takes 20 MiB.
const MEMORY_BYTES_MAX: u64 = 4 << 30;
/// What it says of ten million files.
const OUTPUT_BYTES_MAX: u64 = 8 << 30;
/// Of a shell and of `prlimit`, where there is no such program.
const NO_PROGRAM: i32 = 127;

/// Whether the boot sector of an NTFS file system is there.
pub fn is_ntfs(image: &File, start_sector: u64) -> bool {
    let mut name = [0; 8];
    let offset = start_sector.checked_mul(SECTOR_BYTES);
    let offset = offset.and_then(|it| it.checked_add(3));
    offset.is_some_and(|it| image.read_exact_at(&mut name, it).is_ok()) && name == *b"NTFS    "
}

/// The files of the file systems that begin there, and all their names where they are wanted.
pub fn add(
    image: &Path,
    start_sectors: &[u64],
    places: &mut Places,
    contents: Option<&mut Contents>,
) -> Result<()> {
    let mut child = Command::new("prlimit")
        .arg(format!("--cpu={SECONDS_MAX}"))
        .arg(format!("--as={MEMORY_BYTES_MAX}"))
        // As XML, without sums, only places, only what is allocated, files of any size.
        .args(["fiwalk", "-x", "-z", "-g", "-O", "-G0", "--"])
        .arg(image)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| without("prlimit", &error))?;
    let output = child.stdout.take().expect("it was asked for");
    let mut walked = match contents {
        Some(_) => Walked::with_names(start_sectors),
        None => Walked::new(start_sectors),
    };
    // Nobody reads any more once this is back, which ends a program that goes on.
    let read = read(output, &mut walked, places);
    let status = child.wait().map_err(|error| without("fiwalk", &error))?;
    let is_whole = read.map_err(|error| damaged(image, cause(&error)))?;
    if !is_whole {
        let gib = OUTPUT_BYTES_MAX >> 30;
        return Err(damaged(
            image,
            format_args!("fiwalk says more than {gib} GiB of it"),
        ));
    }
    if status.code() == Some(NO_PROGRAM) {
        let error = io::Error::from_raw_os_error(libc::ENOENT);
        return Err(without("fiwalk", &error));
    }
    if !status.success() {
        return Err(damaged(image, ended(status)));
    }
    match walked.missing() {
        Some(sector) => Err(damaged(
            image,
            format_args!("fiwalk finds no files in the one at sector {sector}"),
        )),
        None => {
            if let Some(contents) = contents {
                contents.of_ntfs(walked.names());
            }
            Ok(())
        }
    }
}

/// Whether that was all.
fn read(output: ChildStdout, walked: &mut Walked, places: &mut Places) -> io::Result<bool> {
    let mut output = BufReader::new(output.take(OUTPUT_BYTES_MAX));
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line)? > 0 {
        walked.line(&String::from_utf8_lossy(&line), places);
        line.clear();
    }
    Ok(output.get_ref().limit() > 0)
}

fn ended(status: ExitStatus) -> String {
    let Some(signal) = status.signal() else {
        return format!("fiwalk ended with {}", status.code().unwrap_or_default());
    };
    let gib = MEMORY_BYTES_MAX >> 30;
    format!(
        "fiwalk was ended by signal {signal}; it may take {SECONDS_MAX} s of a processor and {gib} \
         GiB of memory"
    )
}

fn damaged(image: &Path, why: impl std::fmt::Display) -> Error {
    failed(
        image,
        format_args!(
            "what should be NTFS in it can not be read: {why}; let `chkdsk` repair a copy of it, \
             or leave --image out"
        ),
    )
}
