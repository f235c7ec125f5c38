//! What a reparse point says: `REPARSE_DATA_BUFFER` of [MS-FSCC] 2.1.2.
//!
//! Always true: foreign bytes give [`Reparse::Other`] or less, never a panic.

use super::path::WindowsPath;
use uuid::Uuid;

const MOUNT_POINT: u32 = 0xa000_0003;
const SYMLINK: u32 = 0xa000_000c;
const DEDUPLICATED: u32 = 0x8000_0013;
const SYMLINK_RELATIVE: u32 = 1;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reparse {
    /// A junction, or a volume at a directory: `\??\C:\x`, `\??\Volume{…}\x`.
    MountPoint(String),
    Symlink {
        target: String,
        is_relative: bool,
    },
    Deduplicated,
    /// Compressed by WOF, kept in a cloud, an alias of a program, damaged: no path.
    Other,
}

pub(super) fn read(data: &[u8]) -> Reparse {
    let Some(tag) = word(data, 0) else {
        return Reparse::Other;
    };
    match tag {
        MOUNT_POINT => match target(data, 16) {
            Some(target) => Reparse::MountPoint(target),
            None => Reparse::Other,
        },
        SYMLINK => match (target(data, 20), word(data, 16)) {
            (Some(target), Some(flags)) => Reparse::Symlink {
                target,
                is_relative: flags & SYMLINK_RELATIVE != 0,
            },
            _ => Reparse::Other,
        },
        DEDUPLICATED => Reparse::Deduplicated,
        _ => Reparse::Other,
    }
}

/// The name that is followed, which lies behind the fixed part.
fn target(data: &[u8], fixed: usize) -> Option<String> {
    let offset = usize::from(half(data, 8)?);
    let length = usize::from(half(data, 10)?);
    let bytes = data.get(fixed..)?.get(offset..)?.get(..length)?;
    let units = bytes
        .chunks_exact(2)
        .map(|it| u16::from_le_bytes([it[0], it[1]]));
    let units: Vec<u16> = units.collect();
    String::from_utf16(&units).ok()
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    let bytes = data.get(at..)?.get(..4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

fn half(data: &[u8], at: usize) -> Option<u16> {
    let bytes = data.get(at..)?.get(..2)?;
    Some(u16::from_le_bytes(bytes.try_into().ok()?))
}

/// Of a directory that is to be the same directory of another volume. `None`: the path is too long
/// for the field of its length.
pub(super) fn mount_point(guid: Uuid, path: &WindowsPath) -> Option<Vec<u8>> {
    let substitute = utf16(&format!("\\??\\Volume{{{guid}}}{path}\\"));
    let print = utf16(&format!("\\\\?\\Volume{{{guid}}}{path}\\"));
    let mut names = substitute.clone();
    // Each ends with a zero that its length does not count.
    names.extend([0, 0]);
    let print_offset = names.len();
    names.extend(&print);
    names.extend([0, 0]);
    let mut data = MOUNT_POINT.to_le_bytes().to_vec();
    data.extend(u16::try_from(8 + names.len()).ok()?.to_le_bytes());
    data.extend([0, 0]);
    for number in [0, substitute.len(), print_offset, print.len()] {
        data.extend(u16::try_from(number).ok()?.to_le_bytes());
    }
    data.extend(names);
    Some(data)
}

fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// The volume and the path of `\??\Volume{…}\x\`.
pub(super) fn volume_of(target: &str) -> Option<(Uuid, WindowsPath)> {
    let (guid, path) = target.strip_prefix("\\??\\Volume{")?.split_once('}')?;
    let path = WindowsPath::parse(path).ok()?;
    Some((Uuid::parse_str(guid).ok()?, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails when: a field of the buffer is at another place than [MS-FSCC] says.
    #[test]
    fn a_mount_point_is_written_and_read() {
        let guid = Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        let path = WindowsPath::parse("\\Users\\jörg 😀").expect("it is one");
        let data = mount_point(guid, &path).expect("it is short");
        assert_eq!(data[..4], [3, 0, 0, 0xa0]);
        assert_eq!(usize::from(half(&data, 4).expect("long")), data.len() - 8);
        let Reparse::MountPoint(target) = read(&data) else {
            panic!("{data:?}");
        };
        let volume = "\\??\\Volume{01234567-89ab-cdef-0123-456789abcdef}";
        assert_eq!(target, format!("{volume}{path}\\"));
        assert_eq!(volume_of(&target), Some((guid, path)));
    }

    /// Fails when: a length inside the data is believed.
    #[test]
    fn damaged_reparse_data_is_read_without_a_panic() {
        let guid = Uuid::from_u128(7);
        let path = WindowsPath::parse("\\a").expect("it is one");
        let good = mount_point(guid, &path).expect("it is short");
        for length in 0..good.len() {
            read(&good[..length]);
            for byte in [0, 1, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[length] = byte;
                read(&bad);
            }
        }
    }
}
