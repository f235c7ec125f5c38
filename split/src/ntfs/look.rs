//! Whether a partition is an NTFS that may be split.
//!
//! Always true: nothing is written; the partition's programs see it only once its boot sector is
//! plausible.

use super::error::{Error, Refused, io};
use super::mount::{PACKAGE, bound};
use crate::programs::{Failure, run};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Exit codes of `ntfs-3g.probe`, from its manual page.
const NOT_NTFS: i32 = 12;
const HIBERNATED: i32 = 14;
const UNCLEAN: i32 = 15;
const VOLUME_IS_DIRTY: u16 = 1;
/// Clusters are up to 2 MiB.
const CLUSTER_BYTES_MAX: u64 = 2 << 20;

/// What a boot sector says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked {
    pub serial: u64,
    pub cluster_bytes: u64,
    pub volume_bytes: u64,
}

pub fn look(partition: &Path) -> Result<Looked, Error> {
    let looked = boot_sector(partition)?;
    let mut probe = bound("ntfs-3g.probe");
    probe.arg("--readwrite").arg(partition);
    // Its exit code is the answer, which `run` does not give.
    let output = probe.output().map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Failure::Missing {
            program: "ntfs-3g.probe".to_owned(),
            package: PACKAGE,
        },
        _ => Failure::Io {
            program: "ntfs-3g.probe".to_owned(),
            source,
        },
    })?;
    match output.status.code() {
        Some(0) => {}
        Some(NOT_NTFS) => return Err(Refused::NotNtfs(partition.to_owned()).into()),
        Some(HIBERNATED) => return Err(Refused::Hibernated(partition.to_owned()).into()),
        Some(UNCLEAN) => return Err(Refused::Unclean(partition.to_owned()).into()),
        _ => {
            let says = String::from_utf8_lossy(&output.stderr);
            let says = says.lines().next().unwrap_or("no reason").to_owned();
            let says = format!("{}: {says} ({})", partition.display(), output.status);
            let program = "ntfs-3g.probe".to_owned();
            return Err(Failure::Failed { program, says }.into());
        }
    }
    if is_dirty(partition)? {
        return Err(Refused::Dirty(partition.to_owned()).into());
    }
    Ok(looked)
}

fn boot_sector(partition: &Path) -> Result<Looked, Error> {
    let mut sector = [0; 512];
    let file = File::open(partition).map_err(io(partition, "it can not be opened"))?;
    match file.read_exact_at(&mut sector, 0) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
        Err(error) => return Err(io(partition, "it can not be read")(error)),
    }
    if sector[3..11] == *b"-FVE-FS-" {
        return Err(Refused::BitLocker(partition.to_owned()).into());
    }
    parse(&sector).ok_or_else(|| Refused::NotNtfs(partition.to_owned()).into())
}

fn parse(sector: &[u8; 512]) -> Option<Looked> {
    if sector[3..11] != *b"NTFS    " {
        return None;
    }
    let long = |at: usize| {
        let bytes = sector[at..at + 8].try_into();
        bytes.map_or(0, u64::from_le_bytes)
    };
    let sector_bytes = u64::from(u16::from_le_bytes([sector[11], sector[12]]));
    // Above 128 it is the exponent of a power of two, negated.
    let sectors = match sector[13] {
        power @ 0xf4..=0xff => 1 << (0x100 - u64::from(power)),
        sectors => u64::from(sectors),
    };
    let cluster_bytes = sector_bytes * sectors;
    let is_cluster = cluster_bytes.is_power_of_two() && cluster_bytes <= CLUSTER_BYTES_MAX;
    if !matches!(sector_bytes, 512 | 1024 | 2048 | 4096) || !is_cluster {
        return None;
    }
    Some(Looked {
        serial: long(0x48),
        cluster_bytes,
        volume_bytes: long(0x28).checked_mul(sector_bytes)?,
    })
}

/// The flag in `$Volume` that Windows sets when it finds a fault, and ntfs-3g ignores.
pub(super) fn is_dirty(partition: &Path) -> Result<bool, Error> {
    let mut command = bound("ntfsinfo");
    // Forced, because it refuses a dirty one otherwise, in words.
    let output = run(PACKAGE, command.args(["-f", "-m"]).arg(partition))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let flags = text
        .lines()
        .find_map(|it| it.trim().strip_prefix("Volume Flags: 0x"));
    let digits = flags.and_then(|it| it.split_whitespace().next());
    match digits.and_then(|it| u16::from_str_radix(it, 16).ok()) {
        Some(flags) => Ok(flags & VOLUME_IS_DIRTY != 0),
        None => Err(Error::NotUnderstood {
            program: "ntfsinfo",
            object: partition.to_owned(),
            what: "no `Volume Flags`".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails when: a boot sector with impossible sizes is taken, or a sum overflows.
    #[test]
    fn boot_sectors_are_read_or_refused() {
        let mut sector = [0; 512];
        assert_eq!(parse(&sector), None);
        sector[3..11].copy_from_slice(b"NTFS    ");
        sector[11..14].copy_from_slice(&[0, 2, 8]);
        sector[0x28] = 100;
        let looked = parse(&sector).expect("it is one");
        assert_eq!((looked.cluster_bytes, looked.volume_bytes), (4096, 51_200));
        sector[13] = 0xf4;
        assert_eq!(parse(&sector).expect("it is one").cluster_bytes, 2 << 20);
        for bad in [0, 3, 0xf3, 0x81] {
            sector[13] = bad;
            assert_eq!(parse(&sector), None, "{bad}");
        }
        sector[13] = 8;
        sector[0x28..0x30].fill(0xff);
        assert_eq!(parse(&sector), None);
    }
}
