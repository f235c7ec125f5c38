//! What a device or image holds, by its first bytes.
//!
//! Owns the list of magics that make us refuse: an image format that must not be served as raw,
//! and data on a would-be cache device that its owner may still want. Of a device `blkid` is asked
//! as well, where it is installed: it knows more, and some by more than a magic. Always true: reads
//! only; without `blkid` the list alone decides, and what the list knows needs no other program.
//! Deliberately absent: our own formats, which `engine` knows.

use crate::target::Target;
use engine::event::IoError;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Enough for the magics of image formats.
pub const HEAD_BYTES: usize = 4096;

struct Magic {
    name: &'static str,
    offset: u64,
    bytes: &'static [u8],
}

const fn magic(name: &'static str, offset: u64, bytes: &'static [u8]) -> Magic {
    Magic {
        name,
        offset,
        bytes,
    }
}

/// Formats of disk images, all within the first [`HEAD_BYTES`].
const IMAGES: [Magic; 11] = [
    magic("qcow2", 0, b"QFI\xfb"),
    magic("qed", 0, b"QED\0"),
    magic("vmdk", 0, b"KDMV"),
    magic("vmdk", 0, b"COWD"),
    magic("vmdk", 0, b"# Disk DescriptorFile"),
    magic("vhdx", 0, b"vhdxfile"),
    magic("vhd", 0, b"conectix"),
    magic("vdi", 64, b"\x7f\x10\xda\xbe"),
    magic("luks", 0, b"LUKS\xba\xbe"),
    magic("parallels", 0, b"WithoutFreeSpace"),
    magic("parallels", 0, b"WithouFreSpacExt"),
];

/// File systems, partition tables and volume managers; offsets from the start of the device.
const CONTENTS: [Magic; 26] = [
    magic("ext2, ext3 or ext4", 1080, b"\x53\xef"),
    magic("xfs", 0, b"XFSB"),
    magic("btrfs", 0x1_0040, b"_BHRfS_M"),
    magic("f2fs", 1024, b"\x10\x20\xf5\xf2"),
    magic("ntfs", 3, b"NTFS    "),
    magic("squashfs", 0, b"hsqs"),
    magic("iso9660", 32_769, b"CD001"),
    magic("LVM", 24, b"LVM2 001"),
    magic("LVM", 512 + 24, b"LVM2 001"),
    magic("LVM", 1024 + 24, b"LVM2 001"),
    magic("LVM", 1536 + 24, b"LVM2 001"),
    magic("LUKS (second header)", 16_384, b"SKUL\xba\xbe"),
    magic("swap", 4096 - 10, b"SWAPSPACE2"),
    magic("swap", 4096 - 10, b"SWAP-SPACE"),
    magic("swap", 16_384 - 10, b"SWAPSPACE2"),
    magic("swap", 65_536 - 10, b"SWAPSPACE2"),
    magic("a GPT partition table", 512, b"EFI PART"),
    magic("a GPT partition table", 4096, b"EFI PART"),
    magic("an md member", 0, b"\xfc\x4e\x2b\xa9"),
    magic("an md member", 4096, b"\xfc\x4e\x2b\xa9"),
    magic("bcache", 4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    magic("bluestore", 0, b"bluestore block device"),
    magic("dm-cache or dm-writecache metadata", 0, b"\x23\x19\x43\x06"),
    magic("drbd", 4092, b"\x83\x74\x02\x6b"),
    magic("vmfs", 0x10_0000, b"\x0d\xd0\x01\xc0"),
    // Last, because a partition table also lies in front of others.
    magic("an MBR partition table", 510, b"\x55\xaa"),
];

/// Four labels of 256 KiB, two at each end; their second halves are rings of these.
const ZFS_UBERBLOCK: u64 = 0x00ba_b10c;
const ZFS_LABEL_BYTES: u64 = 256 << 10;
const ZFS_RING_AT: u64 = 128 << 10;
/// Uberblocks are at least so far apart.
const ZFS_STEP: usize = 1024;

/// What `qemu-img` calls an image format.
pub fn qemu_name(format: &str) -> &str {
    match format {
        "vhd" => "vpc",
        other => other,
    }
}

/// Which image format these first bytes of a file look like.
pub fn image_format(head: &[u8]) -> Option<&'static str> {
    let found = IMAGES.iter().find(|magic| {
        let rest = head.get(magic.offset as usize..).unwrap_or_default();
        rest.starts_with(magic.bytes)
    });
    found.map(|magic| magic.name)
}

/// What lies on a device that is not ours, if it has a known signature.
pub fn foreign(target: &Target) -> Result<Option<&'static str>, IoError> {
    let mut head = [0u8; HEAD_BYTES];
    target.read(0, &mut head)?;
    if let Some(format) = image_format(&head) {
        return Ok(Some(format));
    }
    // Two versions of md keep their superblock at the end: 64 KiB aligned, and 8 KiB before it.
    let size = target.size_bytes;
    let md_old = (size & !0xffff).checked_sub(0x1_0000);
    let md_new = size.checked_sub(8192).map(|at| at & !4095);
    let at_end = [md_old, md_new].into_iter().flatten();
    let at_end = at_end.map(|offset| magic("an md member", offset, b"\xfc\x4e\x2b\xa9"));
    for magic in CONTENTS.into_iter().chain(at_end) {
        let mut found = [0u8; 32];
        let found = &mut found[..magic.bytes.len()];
        target.read(magic.offset, found)?;
        if found == magic.bytes {
            return Ok(Some(magic.name));
        }
    }
    Ok(is_zfs(target)?.then_some("a ZFS member"))
}

/// A pool that was half overwritten still has labels at the other end of its device.
fn is_zfs(target: &Target) -> Result<bool, IoError> {
    let labels = target.size_bytes / ZFS_LABEL_BYTES;
    let mut ring = vec![0; (ZFS_LABEL_BYTES - ZFS_RING_AT) as usize];
    for label in [
        Some(0),
        Some(1),
        labels.checked_sub(2),
        labels.checked_sub(1),
    ] {
        let Some(label) = label.filter(|label| *label < labels) else {
            continue;
        };
        target.read(label * ZFS_LABEL_BYTES + ZFS_RING_AT, &mut ring)?;
        let found = ring.chunks_exact(ZFS_STEP).any(|block| {
            let magic: [u8; 8] = block[..8].try_into().expect("eight bytes");
            // Each host writes in its own order.
            [u64::from_le_bytes(magic), u64::from_be_bytes(magic)].contains(&ZFS_UBERBLOCK)
        });
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What `blkid` finds on a device or in a file; `None` where it finds nothing, cannot look, or is
/// not installed.
pub fn by_blkid(path: &Path) -> Option<String> {
    let program = blkid()?;
    let output = Command::new(program)
        .args(["-p", "-o", "export", "--"])
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    // Of several that exclude each other it names none.
    const AMBIVALENT: i32 = 8;
    if output.status.code() == Some(AMBIVALENT) {
        return Some("signatures of several kinds".into());
    }
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let value = |name: &str| {
        let mut values = told.lines().filter_map(|line| line.split_once('='));
        let (_, value) = values.find(|(key, value)| *key == name && !value.is_empty())?;
        // What a label says is not ours: it may hold anything.
        Some(value.escape_default().to_string())
    };
    let label = value("LABEL").map_or(String::new(), |label| format!(" with the label {label}"));
    match (value("TYPE"), value("PTTYPE")) {
        (Some(kind), _) => Some(format!("{kind}{label}")),
        (None, Some(kind)) => Some(format!("a partition table ({kind})")),
        (None, None) => None,
    }
}

/// Daemons have a short `PATH` at times, and the program is one for administrators.
fn blkid() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let places = std::env::split_paths(&path).chain(usual);
    let mut programs = places.map(|place| place.join("blkid"));
    programs.find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::How;

    #[test]
    fn magics_fit_what_is_read_for_them() {
        for magic in &IMAGES {
            assert!(magic.offset as usize + magic.bytes.len() <= HEAD_BYTES);
        }
        assert!(CONTENTS.iter().all(|magic| magic.bytes.len() <= 32));
    }

    #[test]
    fn every_signature_is_found_on_a_device_and_none_on_an_empty_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("device");
        let file = std::fs::File::create(&path).expect("made");
        file.set_len(2 << 20).expect("sized");
        let how = How {
            write: true,
            ..How::default()
        };
        let target = Target::open(&path, how).expect("opened");
        assert_eq!(foreign(&target), Ok(None));
        for magic in IMAGES.iter().chain(&CONTENTS) {
            target.write(magic.offset, magic.bytes).expect("written");
            assert_eq!(foreign(&target), Ok(Some(magic.name)));
            target.zero(0, 2 << 20, true).expect("cleared");
        }
        target
            .write((2 << 20) - 8192, b"\xfc\x4e\x2b\xa9")
            .expect("written");
        assert_eq!(foreign(&target), Ok(Some("an md member")));
        for (offset, magic) in [
            (128 << 10, 0x00ba_b10c_u64.to_le_bytes()),
            ((256 + 255) << 10, 0x00ba_b10c_u64.to_be_bytes()),
            ((2048 - 512 + 200) << 10, 0x00ba_b10c_u64.to_le_bytes()),
            ((2048 - 256 + 128) << 10, 0x00ba_b10c_u64.to_le_bytes()),
        ] {
            target.zero(0, 2 << 20, true).expect("cleared");
            target.write(offset, &magic).expect("written");
            assert_eq!(foreign(&target), Ok(Some("a ZFS member")), "{offset}");
        }
    }
}
