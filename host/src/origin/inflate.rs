//! Compressed clusters of qcow2 files.
//!
//! Always true: the output is exactly one cluster or there is none; no memory is taken because the
//! input asks for it, beyond a window of 4 MiB. Deliberately absent: where a cluster lies. Both
//! decoders are Rust: what they read comes from files that anybody may have written.

use flate2::{Decompress, FlushDecompress};
use image::header::Compression;
use image::limits::ZSTD_WINDOW_BYTES_MAX;
use ruzstd::decoding::StreamingDecoder;
use std::io::Read;

/// Fills `to`, which is one cluster. What follows the data in its last sector is ignored.
pub fn inflate(how: Compression, from: &[u8], to: &mut [u8]) -> Result<(), &'static str> {
    match how {
        Compression::Zlib => zlib(from, to),
        Compression::Zstd => zstd(from, to),
    }
}

/// Deflate without a header.
fn zlib(from: &[u8], to: &mut [u8]) -> Result<(), &'static str> {
    let mut stream = Decompress::new(false);
    let done = stream.decompress(from, to, FlushDecompress::Finish);
    done.map_err(|_| "is no deflate stream")?;
    match stream.total_out() == to.len() as u64 {
        true => Ok(()),
        false => Err("ends before its cluster is full"),
    }
}

fn zstd(from: &[u8], to: &mut [u8]) -> Result<(), &'static str> {
    let window = window_bytes(from).ok_or("is no zstd frame")?;
    if window > ZSTD_WINDOW_BYTES_MAX {
        return Err("wants a zstd window of more than 4 MiB");
    }
    let mut stream = StreamingDecoder::new(from).map_err(|_| "is no zstd frame")?;
    let done = stream.read_exact(to);
    done.map_err(|_| "breaks off or ends before its cluster is full")
}

/// The window that a frame asks for (RFC 8878, section 3.1.1.1).
fn window_bytes(frame: &[u8]) -> Option<u64> {
    let frame = frame.strip_prefix(&[0x28, 0xb5, 0x2f, 0xfd])?;
    let (&descriptor, rest) = frame.split_first()?;
    if descriptor & 0x20 == 0 {
        let &window = rest.first()?;
        let base = 1_u64 << (10 + (window >> 3));
        return Some(base + base / 8 * u64::from(window & 7));
    }
    // One segment: the window is the content, whose size follows the identity of a dictionary.
    let skip = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let width = [1, 2, 4, 8][usize::from(descriptor >> 6)];
    let field = rest.get(skip..skip + width)?;
    let number = field
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    Some(number + if width == 2 { 256 } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compress, Compression as Level, FlushCompress};

    #[test]
    fn a_cluster_comes_out_whole_or_not_at_all() {
        let cluster: Vec<u8> = (0..4096_u32).map(|it| (it / 7) as u8).collect();
        let mut packed = Vec::with_capacity(8192);
        let mut stream = Compress::new(Level::fast(), false);
        let done = stream.compress_vec(&cluster, &mut packed, FlushCompress::Finish);
        done.expect("compressed");
        packed.resize(packed.len().next_multiple_of(512), 0xa5);
        let mut out = vec![0; 4096];
        assert_eq!(inflate(Compression::Zlib, &packed, &mut out), Ok(()));
        assert_eq!(out, cluster);
        let mut longer = vec![0; 4097];
        assert!(inflate(Compression::Zlib, &packed, &mut longer).is_err());
        assert!(inflate(Compression::Zstd, &packed, &mut out).is_err());
        assert!(inflate(Compression::Zlib, &[], &mut out).is_err());
    }

    #[test]
    fn a_frame_that_asks_for_a_large_window_gets_no_memory() {
        // 2^41 bytes and seven eighths of that.
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0, 0xff, 1, 0, 0];
        let refused = inflate(Compression::Zstd, &frame, &mut [0; 512]);
        assert_eq!(refused, Err("wants a zstd window of more than 4 MiB"));
        // A single segment of 2^63 bytes.
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xe0];
        frame.extend((1_u64 << 63).to_le_bytes());
        let refused = inflate(Compression::Zstd, &frame, &mut [0; 512]);
        assert_eq!(refused, Err("wants a zstd window of more than 4 MiB"));
    }
}
