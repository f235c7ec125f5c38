//! Which clusters of a qcow2 image hold its own tables.
//!
//! Owns their numbers, read from the image itself as QEMU left it (`docs/interop/qcow2.txt` of
//! QEMU). Always true: sizes out of the file are bounded before they are used. Deliberately
//! absent: everything else of the format; QEMU's driver does all that is measured.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const MAGIC: u32 = u32::from_be_bytes(*b"QFI\xfb");
/// Bits 9 to 55 of an entry are an offset in the file.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// 1 TiB in clusters of 64 KiB has 2,048 entries, or twice as many with subclusters.
const L1_ENTRIES_MAX: u32 = 1 << 16;
const REFCOUNT_CLUSTERS_MAX: u32 = 1 << 10;
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;

pub struct Tables {
    cluster_bits: u32,
    clusters: HashSet<u64>,
}

impl Tables {
    /// Of an image that is closed.
    pub fn read(image: &File) -> io::Result<Tables> {
        let wrong = || io::Error::other("the image is not a qcow2 image as it was made");
        let mut head = [0; 64];
        image.read_exact_at(&mut head, 0)?;
        let u32_at = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four"));
        let u64_at = |at: usize| u64::from_be_bytes(head[at..at + 8].try_into().expect("eight"));
        let (cluster_bits, l1_entries, refcount_clusters) = (u32_at(20), u32_at(36), u32_at(56));
        let fits = CLUSTER_BITS.contains(&cluster_bits)
            && l1_entries <= L1_ENTRIES_MAX
            && refcount_clusters <= REFCOUNT_CLUSTERS_MAX;
        if u32_at(0) != MAGIC || !fits {
            return Err(wrong());
        }
        let cluster_bytes = 1 << cluster_bits;
        let refcount_bytes = u64::from(refcount_clusters) * cluster_bytes;
        // The header has the first one.
        let mut clusters = HashSet::from([0]);
        for (offset, bytes) in [
            (u64_at(40), u64::from(l1_entries) * 8),
            (u64_at(48), refcount_bytes),
        ] {
            let mut table = vec![0; bytes as usize];
            image.read_exact_at(&mut table, offset)?;
            let own = offset >> cluster_bits..(offset + bytes).div_ceil(cluster_bytes);
            clusters.extend(own);
            for entry in table.chunks_exact(8) {
                let entry = u64::from_be_bytes(entry.try_into().expect("eight")) & OFFSET;
                clusters.extend((entry != 0).then_some(entry >> cluster_bits));
            }
        }
        Ok(Tables {
            cluster_bits,
            clusters,
        })
    }

    /// Whether what lies there is the image's own, and no data.
    pub fn hold(&self, offset: u64) -> bool {
        self.clusters.contains(&(offset >> self.cluster_bits))
    }
}
