//! The head of a registry hive, and its logs.
//!
//! Owns whether a hive is whole: both sequence numbers of its base block are equal, its checksum is
//! right, and no log holds a later change ("Windows registry file format specification",
//! M. Suhanov). Windows plays the logs back when it starts; programs here do not.
//!
//! Always true: foreign bytes give a reason, never a panic.
//!
//! Deliberately absent: keys and values, which hivexregedit reads and writes.

const BASE_BLOCK_BYTES: usize = 4096;
const CHECKSUM_AT: usize = 508;
/// Where the first entry of a log lies, behind a copy of the base block.
const LOG_ENTRY_AT: usize = 512;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    NotHive(&'static str),
    Dirty(String),
}

/// The sequence number of a hive that is whole.
pub(super) fn sequence(hive: &[u8]) -> Result<u32, Unfit> {
    if hive.len() < BASE_BLOCK_BYTES || !hive.starts_with(b"regf") {
        return Err(Unfit::NotHive(
            "it does not begin with `regf` and a base block",
        ));
    }
    let (first, second) = (word(hive, 4), word(hive, 8));
    if first != second {
        return Err(Unfit::Dirty(format!(
            "its sequence numbers are {first} and {second}"
        )));
    }
    if checksum(hive) != word(hive, CHECKSUM_AT) {
        return Err(Unfit::Dirty("its checksum is wrong".to_owned()));
    }
    let bytes = usize::try_from(word(hive, 40)).unwrap_or(usize::MAX);
    if hive.len() - BASE_BLOCK_BYTES < bytes {
        return Err(Unfit::NotHive("it is shorter than its base block says"));
    }
    Ok(first)
}

/// Whether a log has an entry that the hive of that number has not.
pub(super) fn is_pending(log: &[u8], sequence: u32) -> bool {
    let entry = log.get(LOG_ENTRY_AT..).unwrap_or_default();
    entry.len() >= 16 && entry.starts_with(b"HvLE") && word(entry, 12) > sequence
}

/// All words before it, exclusive or; two values are not used.
fn checksum(hive: &[u8]) -> u32 {
    let words = (0..CHECKSUM_AT).step_by(4).map(|at| word(hive, at));
    match words.fold(0, |sum, word| sum ^ word) {
        0 => 1,
        u32::MAX => u32::MAX - 1,
        sum => sum,
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|it| it.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hive() -> Vec<u8> {
        let mut hive = vec![0; 8192];
        hive[..4].copy_from_slice(b"regf");
        hive[4..12].copy_from_slice(&[7, 0, 0, 0, 7, 0, 0, 0]);
        hive[41] = 0x10;
        let sum = checksum(&hive);
        hive[CHECKSUM_AT..][..4].copy_from_slice(&sum.to_le_bytes());
        hive
    }

    /// Fails when: a hive that Windows would repair first is taken for a whole one.
    #[test]
    fn a_hive_is_whole_dirty_or_none() {
        let good = hive();
        assert_eq!(sequence(&good), Ok(7));
        assert!(matches!(sequence(&good[..4096]), Err(Unfit::NotHive(_))));
        for length in [0, 3, 100, 4095] {
            assert!(matches!(sequence(&good[..length]), Err(Unfit::NotHive(_))));
        }
        for (at, says) in [
            (4, "7"),
            (8, "sequence"),
            (100, "checksum"),
            (509, "checksum"),
        ] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            match sequence(&bad) {
                Err(Unfit::Dirty(why)) => assert!(why.contains(says), "{why}"),
                other => panic!("{at}: {other:?}"),
            }
        }
    }

    /// Fails when: an old entry of a log is taken for a pending one, or the reverse.
    #[test]
    fn only_a_later_entry_of_a_log_is_pending() {
        let mut log = vec![0; 1024];
        assert!(!is_pending(&log, 7) && !is_pending(&[], 7));
        log[LOG_ENTRY_AT..][..4].copy_from_slice(b"HvLE");
        for (number, is) in [(6, false), (7, false), (8, true)] {
            log[LOG_ENTRY_AT + 12] = number;
            assert_eq!(is_pending(&log, 7), is, "{number}");
        }
        assert!(!is_pending(&log[..LOG_ENTRY_AT + 12], 7));
    }
}
