//! The first file system of a guest: an archive that the kernel unpacks.
//!
//! Owns the writing of the `newc` format (kernel, Documentation/driver-api/early-userspace,
//! "initramfs buffer format"). Always true: the archive ends with its trailer, and every header
//! and every content begins at a multiple of four bytes. Deliberately absent: links, devices and
//! owners other than root.

const ALIGNMENT: usize = 4;
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const TRAILER: &str = "TRAILER!!!";

#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// A directory; those above it come first.
    pub fn directory(&mut self, path: &str) {
        self.entry(path, DIRECTORY, &[]);
    }

    /// A file that everybody may run.
    pub fn program(&mut self, path: &str, content: &[u8]) {
        self.entry(path, PROGRAM, content);
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        assert!(!path.starts_with('/'), "paths begin at the root");
        self.entries += 1;
        let length = u32::try_from(content.len()).expect("the files of a guest are small");
        let links = if mode == DIRECTORY { 2 } else { 1 };
        // Inode, mode, user, group, links, time, size, two devices, length of the name, checksum.
        let fields = [
            self.entries,
            mode,
            0,
            0,
            links,
            0,
            length,
            0,
            0,
            0,
            0,
            path.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        let length = self.bytes.len().next_multiple_of(ALIGNMENT);
        self.bytes.resize(length, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name and content of each entry, read as the kernel reads them.
    fn read(mut bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            assert_eq!(&bytes[..6], b"070701");
            let field = |at: usize| {
                let text = std::str::from_utf8(&bytes[6 + at * 8..14 + at * 8]).expect("ASCII");
                usize::from_str_radix(text, 16).expect("a number")
            };
            let (size, name) = (field(6), field(11));
            let begin = (110 + name).next_multiple_of(4);
            let text = &bytes[110..110 + name - 1];
            assert_eq!(bytes[110 + name - 1], 0);
            found.push((
                String::from_utf8(text.to_vec()).expect("a name"),
                bytes[begin..begin + size].to_vec(),
            ));
            bytes = &bytes[(begin + size).next_multiple_of(4)..];
        }
        found
    }

    #[test]
    fn an_archive_reads_back_as_it_was_made() {
        let mut archive = Archive::default();
        archive.directory("bin");
        archive.program("bin/odd", b"12345");
        archive.program("init", b"#!/bin/sh\n");
        let entries = read(&archive.finish());
        let names: Vec<&str> = entries.iter().map(|entry| entry.0.as_str()).collect();
        assert_eq!(names, ["bin", "bin/odd", "init", TRAILER]);
        assert_eq!(entries[1].1, b"12345");
        assert_eq!(entries[2].1, b"#!/bin/sh\n");
    }
}
