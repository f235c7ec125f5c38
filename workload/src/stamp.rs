//! Sectors that carry their own name: which volume, which sector, which write.
//!
//! Layout of the 64 little-endian words of a sector: magic, tag, sector number, serial, 59 words
//! of body that follow from the three, and a check over everything before it. Always true: a
//! sector that was torn, mixed from two writes or moved is told from a whole one, because every
//! byte of it follows from its head. Deliberately absent: any state; what a serial means is the
//! business of [`check`](crate::check).

/// Bytes in a sector, the unit in which a disk may tear.
pub const SECTOR_BYTES: usize = 512;

const WORDS: usize = SECTOR_BYTES / 8;
const MAGIC: u64 = u64::from_le_bytes(*b"tenutoST");
/// Odd constants with well mixed bits, from the splitmix64 generator (Steele et al., 2014).
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
const MIX: u64 = 0xBF58_476D_1CE4_E5B9;

/// What a sector turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    Stamped {
        tag: u64,
        sector: u64,
        serial: u64,
    },
    Zero,
    /// Neither a whole stamp nor zeroes: torn, mixed or foreign.
    Torn,
}

/// Fills `buffer`, whole sectors, as write `serial` of volume `tag` from `first_sector` on.
pub fn fill(buffer: &mut [u8], tag: u64, first_sector: u64, serial: u64) {
    assert!(
        buffer.len().is_multiple_of(SECTOR_BYTES),
        "stamps fill whole sectors"
    );
    for (sector, bytes) in (first_sector..).zip(buffer.chunks_exact_mut(SECTOR_BYTES)) {
        for (word, bytes) in words(tag, sector, serial)
            .iter()
            .zip(bytes.chunks_exact_mut(8))
        {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Tells what one sector holds.
pub fn read(sector_bytes: &[u8]) -> Reading {
    assert_eq!(
        sector_bytes.len(),
        SECTOR_BYTES,
        "one sector is read at a time"
    );
    let [magic, tag, sector, serial] = [0, 1, 2, 3].map(|at| word(sector_bytes, at));
    if magic != MAGIC {
        let zero = sector_bytes == [0; SECTOR_BYTES];
        return if zero { Reading::Zero } else { Reading::Torn };
    }
    let expected = words(tag, sector, serial);
    let whole = (0..WORDS).all(|at| word(sector_bytes, at) == expected[at]);
    if whole {
        Reading::Stamped {
            tag,
            sector,
            serial,
        }
    } else {
        Reading::Torn
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(
        bytes[at * 8..at * 8 + 8]
            .try_into()
            .expect("a word has eight bytes"),
    )
}

fn words(tag: u64, sector: u64, serial: u64) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[..4].copy_from_slice(&[MAGIC, tag, sector, serial]);
    let key = [tag, sector, serial].iter().fold(MAGIC, |key, &part| {
        let mixed = (key ^ part).wrapping_mul(GOLDEN);
        (mixed ^ (mixed >> 29)).wrapping_mul(MIX)
    });
    let mut check = key;
    for (at, word) in words.iter_mut().enumerate().take(WORDS - 1).skip(4) {
        *word = key
            .wrapping_add(GOLDEN.wrapping_mul(at as u64))
            .wrapping_mul(MIX);
        check = (check ^ *word).rotate_left(23).wrapping_mul(GOLDEN);
    }
    words[WORDS - 1] = check;
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filled_sector_tells_its_name() {
        let mut bytes = vec![0; 3 * SECTOR_BYTES];
        fill(&mut bytes, 7, 40, 9);
        for (at, sector) in bytes.chunks_exact(SECTOR_BYTES).enumerate() {
            let expected = Reading::Stamped {
                tag: 7,
                sector: 40 + at as u64,
                serial: 9,
            };
            assert_eq!(read(sector), expected);
        }
    }

    #[test]
    fn zeroes_are_zero_and_a_single_byte_is_not() {
        let mut bytes = [0; SECTOR_BYTES];
        assert_eq!(read(&bytes), Reading::Zero);
        bytes[511] = 1;
        assert_eq!(read(&bytes), Reading::Torn);
    }

    #[test]
    fn a_mixture_of_two_writes_is_torn_at_every_cut() {
        let mut old = [0; SECTOR_BYTES];
        let mut new = [0; SECTOR_BYTES];
        fill(&mut old, 1, 5, 100);
        fill(&mut new, 1, 5, 101);
        // The words before the serial are equal, so a cut inside them changes nothing.
        for cut in 25..SECTOR_BYTES {
            let mut mixed = new;
            mixed[cut..].copy_from_slice(&old[cut..]);
            assert_eq!(read(&mixed), Reading::Torn, "cut at {cut}");
        }
    }

    #[test]
    fn any_flipped_bit_is_seen() {
        let mut bytes = [0; SECTOR_BYTES];
        fill(&mut bytes, 3, 4, 5);
        for bit in 0..SECTOR_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&bytes), Reading::Torn, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
