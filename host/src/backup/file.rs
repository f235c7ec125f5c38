//! The file of one checkpoint: a head of 512 bytes, and from 4096 on its bitmap, if it has one.
//!
//! Owns the bytes (docs/format.md). Always true: a head is believed only with its checksum, a
//! bitmap only with the one that its head has of it, and no length in it before it is compared with
//! a named bound. Deliberately absent: what a state allows (`chain`).

use super::bitmap::{BITMAP_BYTES_MAX, Bitmap, GRAIN_BYTES, words_for};
use engine::types::Uuid;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

pub const HEAD_BYTES: usize = 512;
const BITMAP_AT: u64 = 4096;
const MAGIC: [u8; 8] = *b"TNTOCKPT";
const VERSION: u32 = 1;
const CHECKSUM: crc_fast::CrcAlgorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;
const SUM_AT: usize = HEAD_BYTES - 4;
/// The two names, each with its length before it.
const VOLUME_AT: usize = 160;
const NAME_AT: usize = 320;
/// Room of a name.
const NAME_BYTES_MAX: usize = 128;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Its window is open: it does not exist yet.
    #[default]
    Making,
    /// The bitmap with this number, which outlives the daemon, has what changed.
    Tracked,
    /// The daemon has stopped in order; the bitmap follows.
    Kept,
    /// What changed up to the next checkpoint follows, and is not changed any more.
    Frozen,
    /// What has changed is not known.
    Lost,
    /// Not a checkpoint: the head of a bitmap that outlives the daemon.
    Live,
}

/// Why it is not known what has changed since a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    #[default]
    Unknown,
    /// The host was off, or the file in `stage-dir` is gone.
    Power,
    /// The image is another one, or was written, while the daemon did not run.
    Image,
    /// The configuration had no such volume for a while.
    Unnamed,
    /// An administrator chose between image and log.
    Chosen,
    /// Its file is damaged.
    Damaged,
    /// What changed after a later checkpoint is lost.
    Later,
    /// The volume came to be one of a cluster.
    Cluster,
    /// There was no room for its bitmap.
    Room,
}

impl Reason {
    const ALL: [Reason; 9] = [
        Reason::Unknown,
        Reason::Power,
        Reason::Image,
        Reason::Unnamed,
        Reason::Chosen,
        Reason::Damaged,
        Reason::Later,
        Reason::Cluster,
        Reason::Room,
    ];

    pub const fn text(self) -> &'static str {
        match self {
            Reason::Unknown => "a newer release has lost it",
            Reason::Power => {
                "the host was off or its stage-dir was emptied, and with it went what had changed"
            }
            Reason::Image => {
                "its image is another one, or was written while the daemon did not run"
            }
            Reason::Unnamed => "the configuration did not name the volume for a while",
            Reason::Chosen => "it was chosen between the image and the log of the volume",
            Reason::Damaged => "its file in state-dir is damaged or cannot be read",
            Reason::Later => "what changed after a later checkpoint is lost",
            Reason::Cluster => "the volume belongs to a cluster, whose hosts may all write it",
            Reason::Room => "its bitmap found no room in stage-dir",
        }
    }
}

/// What a file knows its image by. All zero: unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageSeen {
    /// A checksum over the same of the files below it.
    pub below: u64,
    pub inode: u64,
    /// After an orderly stop: bytes, and the times of its last changes.
    pub size_bytes: u64,
    pub mtime_ns: u64,
    pub ctime_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub state: State,
    pub reason: Reason,
    /// Orders the checkpoints of a volume.
    pub sequence: u64,
    /// Seconds after 1970.
    pub created: u64,
    /// Of the disk at the cut.
    pub size_bytes: u64,
    /// Of the image while nothing ran, or its identity alone.
    pub image: ImageSeen,
    /// A checksum over the name of the image.
    pub origin: u64,
    pub boot: Uuid,
    /// Of the bitmap that outlives the daemon.
    pub number: Uuid,
    pub volume: String,
    pub name: String,
    /// Of the bitmap that follows; both are found when it is written.
    pub(super) bitmap_bytes: u64,
    pub(super) bitmap_sum: u32,
}

/// Why bytes are no checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    #[error("is no file of a checkpoint")]
    Foreign,
    #[error("was written by another release")]
    Version,
    #[error("is damaged")]
    Damaged,
}

fn sum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CHECKSUM, bytes) as u32
}

/// Gives a head its checksum.
pub fn seal(head: &mut [u8; HEAD_BYTES]) {
    let sum = sum(&head[..SUM_AT]);
    head[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
}

impl Head {
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut out = [0; HEAD_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..14].copy_from_slice(&(self.state as u16).to_le_bytes());
        out[14..16].copy_from_slice(&(self.reason as u16).to_le_bytes());
        let ImageSeen {
            below,
            inode,
            size_bytes,
            mtime_ns,
            ctime_ns,
        } = self.image;
        let numbers = [
            self.sequence,
            self.created,
            self.size_bytes,
            GRAIN_BYTES,
            self.bitmap_bytes,
            u64::from(self.bitmap_sum),
            self.origin,
            below,
            inode,
            size_bytes,
            mtime_ns,
            ctime_ns,
        ];
        for (at, number) in numbers.iter().enumerate() {
            out[16 + at * 8..24 + at * 8].copy_from_slice(&number.to_le_bytes());
        }
        out[112..128].copy_from_slice(&self.boot.0);
        out[128..144].copy_from_slice(&self.number.0);
        for (at, name) in [(VOLUME_AT, &self.volume), (NAME_AT, &self.name)] {
            assert!(name.len() <= NAME_BYTES_MAX, "names are checked when given");
            out[at..at + 2].copy_from_slice(&(name.len() as u16).to_le_bytes());
            out[at + 2..at + 2 + name.len()].copy_from_slice(name.as_bytes());
        }
        seal(&mut out);
        out
    }

    pub fn parse(bytes: &[u8]) -> Result<Head, Wrong> {
        let head: &[u8; HEAD_BYTES] = match bytes.get(..HEAD_BYTES) {
            Some(head) => head.try_into().expect("the length was asked for"),
            None => return Err(Wrong::Damaged),
        };
        if head[..8] != MAGIC {
            return Err(Wrong::Foreign);
        }
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four"));
        let half = |at: usize| u16::from_le_bytes(head[at..at + 2].try_into().expect("two"));
        let number = |at: usize| {
            let at = 16 + at * 8;
            u64::from_le_bytes(head[at..at + 8].try_into().expect("eight"))
        };
        let uuid = |at: usize| Uuid(head[at..at + 16].try_into().expect("sixteen"));
        if word(8) != VERSION {
            return Err(Wrong::Version);
        }
        if word(SUM_AT) != sum(&head[..SUM_AT]) {
            return Err(Wrong::Damaged);
        }
        let name = |at: usize| {
            let length = usize::from(half(at));
            let bytes = head[at + 2..at + 2 + NAME_BYTES_MAX].get(..length);
            let text = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok());
            text.map(str::to_owned).ok_or(Wrong::Damaged)
        };
        let state = match half(12) {
            0 => State::Making,
            1 => State::Tracked,
            2 => State::Kept,
            3 => State::Frozen,
            4 => State::Lost,
            5 => State::Live,
            _ => return Err(Wrong::Version),
        };
        let reason = Reason::ALL.get(usize::from(half(14))).copied();
        let found = Head {
            state,
            reason: reason.unwrap_or(Reason::Unknown),
            sequence: number(0),
            created: number(1),
            size_bytes: number(2),
            bitmap_bytes: number(4),
            bitmap_sum: u32::try_from(number(5)).map_err(|_| Wrong::Damaged)?,
            origin: number(6),
            image: ImageSeen {
                below: number(7),
                inode: number(8),
                size_bytes: number(9),
                mtime_ns: number(10),
                ctime_ns: number(11),
            },
            boot: uuid(112),
            number: uuid(128),
            volume: name(VOLUME_AT)?,
            name: name(NAME_AT)?,
        };
        let carries = matches!(state, State::Kept | State::Frozen);
        let words = words_for(found.size_bytes);
        let expected = match carries {
            true => words.checked_mul(8).ok_or(Wrong::Damaged)?,
            false => 0,
        };
        let fits = found.bitmap_bytes == expected && expected <= BITMAP_BYTES_MAX;
        if number(3) != GRAIN_BYTES || !fits {
            return Err(Wrong::Damaged);
        }
        Ok(found)
    }
}

/// All bytes of a file as they are to be.
fn bytes_of(head: &Head, bitmap: Option<&Bitmap>) -> Vec<u8> {
    let mut head = head.clone();
    let words = bitmap.map_or(&[][..], |bitmap| &bitmap.words);
    let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    (head.bitmap_bytes, head.bitmap_sum) = match bitmap {
        Some(bitmap) => {
            assert_eq!(bitmap.size_bytes, head.size_bytes, "one disk");
            (words.len() as u64, sum(&words))
        }
        None => (0, 0),
    };
    let mut bytes = head.encode().to_vec();
    if bitmap.is_some() {
        bytes.resize(BITMAP_AT as usize, 0);
        bytes.extend_from_slice(&words);
    }
    bytes
}

/// Puts a file in its place, whole and durable, or leaves what was there.
pub fn write(path: &Path, head: &Head, bitmap: Option<&Bitmap>) -> io::Result<()> {
    let carries = matches!(head.state, State::Kept | State::Frozen);
    assert_eq!(
        carries,
        bitmap.is_some(),
        "a state says whether bits follow"
    );
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // A name that no checkpoint has.
    let fresh = path.with_file_name(format!(".{name}.new"));
    let mut file = File::create(&fresh)?;
    file.write_all(&bytes_of(head, bitmap))?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    crate::cachedev::sync_directory(path)
}

/// The head of a file.
pub fn read_head(path: &Path) -> io::Result<Result<Head, Wrong>> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take(HEAD_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(Head::parse(&bytes))
}

/// The bitmap of a file with this head.
pub fn read_bitmap(path: &Path, head: &Head) -> io::Result<Result<Bitmap, Wrong>> {
    if !matches!(head.state, State::Kept | State::Frozen) {
        return Ok(Err(Wrong::Damaged));
    }
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(BITMAP_AT))?;
    let mut bytes = Vec::new();
    file.take(head.bitmap_bytes).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != head.bitmap_bytes || sum(&bytes) != head.bitmap_sum {
        return Ok(Err(Wrong::Damaged));
    }
    let words = bytes.chunks_exact(8);
    let words = words.map(|word| u64::from_le_bytes(word.try_into().expect("eight")));
    Ok(Ok(Bitmap::of(words.collect(), head.size_bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        Head {
            state: State::Frozen,
            sequence: 7,
            created: 1_700_000_000,
            size_bytes: 100 * GRAIN_BYTES + 512,
            boot: Uuid([1; 16]),
            number: Uuid([2; 16]),
            volume: "disk".into(),
            name: "monday".into(),
            ..Head::default()
        }
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_no_bit_of_it_can_change() {
        let bitmap = {
            let mut bitmap = Bitmap::new(head().size_bytes);
            bitmap.set(70);
            bitmap
        };
        let directory = std::env::temp_dir().join(format!("tenuto-{}", uuid::Uuid::new_v4()));
        fs::create_dir(&directory).expect("it can be made");
        let path = directory.join("a");
        write(&path, &head(), Some(&bitmap)).expect("it can be written");
        let found = read_head(&path).expect("it is there").expect("it is whole");
        assert_eq!((found.sequence, found.name.as_str()), (7, "monday"));
        let read = |path: &Path| read_bitmap(path, &found).expect("it is there");
        assert_eq!(read(&path), Ok(bitmap));
        let whole = fs::read(&path).expect("it is there");
        for at in (0..HEAD_BYTES).chain(4096..whole.len()) {
            let mut spoilt = whole.clone();
            spoilt[at] ^= 4;
            fs::write(&path, &spoilt).expect("it can be written");
            let head = read_head(&path).expect("it is there");
            assert!(head.is_err() || read(&path).is_err(), "byte {at}");
        }
        fs::remove_dir_all(&directory).expect("it was made here");
    }

    #[test]
    fn no_length_is_believed() {
        let mut large = head();
        large.size_bytes = u64::MAX;
        large.bitmap_bytes = words_for(u64::MAX) * 8;
        assert_eq!(Head::parse(&large.encode()), Err(Wrong::Damaged));
        assert_eq!(Head::parse(&[]), Err(Wrong::Damaged));
        assert_eq!(Head::parse(&[0; HEAD_BYTES]), Err(Wrong::Foreign));
    }
}
