//! The table of file systems of a Linux guest.
//!
//! Owns how it is read, and the lines that a split writes into it. Always true: lines that are not
//! about swap stay byte for byte, in their order; what is new stands below them. Deliberately
//! absent: what a line means for the data.

use crate::kind::{Class, Layout, Volume};

/// What stands above the lines of a split.
const HEAD: &str = "# Disks by how durable their data must be (tenuto image split).";
/// Where the disks of the classes are mounted, and the system disk without what is mounted on it.
pub const MOUNTS: &str = "/.tenuto";
pub const SYSTEM: &str = "/.tenuto/system";
pub const SWAP_LABEL: &str = "tenuto-swap";

pub fn mount_point(class: Class) -> String {
    format!("{MOUNTS}/{}", class.name())
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub what: String,
    pub place: String,
    pub kind: String,
    pub options: String,
}

impl Entry {
    pub fn is_swap(&self) -> bool {
        self.kind == "swap"
    }

    pub fn has_option(&self, name: &str) -> bool {
        self.options
            .split(',')
            .any(|it| it.split('=').next() == Some(name))
    }
}

/// The entry of a line, if it is one.
fn entry(line: &str) -> Option<Entry> {
    let line = line.trim_start();
    if line.starts_with('#') {
        return None;
    }
    let mut words = line.split_ascii_whitespace().map(decode);
    let (what, place, kind) = (words.next()?, words.next()?, words.next()?);
    let options = words.next().unwrap_or_default();
    Some(Entry {
        what,
        place,
        kind,
        options,
    })
}

/// All entries of a table. Bytes that are not UTF-8 name nothing that a split looks for.
pub fn entries(table: &[u8]) -> Vec<Entry> {
    let text = String::from_utf8_lossy(table);
    text.lines().filter_map(entry).collect()
}

/// The word of a field, in which letters that separate fields are octal.
fn decode(word: &str) -> String {
    let mut bytes = Vec::with_capacity(word.len());
    let all = word.as_bytes();
    let mut at = 0;
    while at < all.len() {
        let octal = all.get(at + 1..at + 4).filter(|it| {
            all[at] == b'\\' && it[0] < b'4' && it.iter().all(|it| (b'0'..b'8').contains(it))
        });
        match octal {
            Some(octal) => {
                let value = octal
                    .iter()
                    .fold(0_u32, |sum, it| sum * 8 + u32::from(it - b'0'));
                bytes.push(value as u8);
                at += 4;
            }
            None => {
                bytes.push(all[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn encode(word: &str) -> String {
    let mut text = String::with_capacity(word.len());
    for letter in word.chars() {
        match letter {
            ' ' => text.push_str("\\040"),
            '\t' => text.push_str("\\011"),
            '\n' => text.push_str("\\012"),
            '\\' => text.push_str("\\134"),
            _ => text.push(letter),
        }
    }
    text
}

/// The lines of a split, in the order in which they are mounted.
fn lines(layout: &Layout, kind: &str) -> Vec<String> {
    let listing = &layout.listing;
    let mut lines: Vec<String> = layout
        .volumes
        .iter()
        .map(|it| disk_line(it, kind))
        .collect();
    let moved = || listing.moved.iter().filter(|it| !it.symlink);
    if moved().any(|it| !it.kept.is_empty()) {
        lines.push(format!("/ {SYSTEM} none bind 0 0"));
    }
    // A path below another one is mounted later; paths are sorted so.
    for it in moved() {
        let from = mount_point(it.class);
        lines.push(bind_line(&from, &it.path, it.class));
        let kept = it.kept.iter();
        lines.extend(kept.map(|path| bind_line(SYSTEM, path, it.class)));
    }
    if layout.swap().is_some() {
        lines.push(format!(
            "LABEL={SWAP_LABEL} none swap {} 0 0",
            swap_options(layout)
        ));
    }
    lines
}

/// A guest starts without a disk that may be lost, and stops where another one is missing: what
/// would be written in its place would be hidden by it later, or lost at the reset of a clone.
fn nofail(class: Class) -> &'static str {
    match class {
        Class::Never => "nofail,",
        Class::WriteBack | Class::WriteThrough | Class::Keep => "",
    }
}

fn disk_line(volume: &Volume, kind: &str) -> String {
    let (class, nofail) = (volume.class, nofail(volume.class));
    format!(
        "LABEL={} {} {kind} noatime,{nofail}x-systemd.device-timeout=10s 0 2",
        class.label(),
        mount_point(class)
    )
}

fn bind_line(from: &str, path: &str, class: Class) -> String {
    let (place, nofail) = (encode(path), nofail(class));
    format!("{from}{place} {place} none bind,{nofail}x-systemd.requires-mounts-for={from} 0 0")
}

fn swap_options(layout: &Layout) -> &'static str {
    match layout.swap() {
        Some((volume, _)) if volume.class == Class::Never => "sw,nofail",
        _ => "sw",
    }
}

/// The table that a guest has after the split: lines of swap that moved are taken out.
pub fn changed(table: &[u8], layout: &Layout, kind: &str) -> Vec<u8> {
    let gone: Vec<&str> = layout
        .listing
        .page_files
        .iter()
        .map(|it| &*it.what)
        .collect();
    let mut text = Vec::with_capacity(table.len() + 1024);
    for line in table.split_inclusive(|it| *it == b'\n') {
        let entry = std::str::from_utf8(line).ok().and_then(entry);
        let goes = entry.is_some_and(|it| it.is_swap() && gone.contains(&&*it.what));
        if !goes {
            text.extend_from_slice(line);
        }
    }
    if text.last().is_some_and(|it| *it != b'\n') {
        text.push(b'\n');
    }
    for line in std::iter::once(HEAD.to_owned()).chain(lines(layout, kind)) {
        text.extend_from_slice(line.as_bytes());
        text.push(b'\n');
    }
    text
}

/// The entries that a split wrote, read back.
pub fn written(table: &[u8]) -> Vec<Entry> {
    let text = String::from_utf8_lossy(table);
    let below = text.rsplit_once(HEAD).map_or("", |(_, below)| below);
    below.lines().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::{Listing, Moved, PageFile, Swap};

    fn moved(path: &str, class: Class, kept: &[&str]) -> Moved {
        Moved {
            path: path.to_owned(),
            class,
            kept: kept.iter().map(|it| (*it).to_owned()).collect(),
            nested: Vec::new(),
            files: 0,
            bytes: 0,
            symlink: false,
        }
    }

    fn layout() -> Layout {
        let volume = |class, swap| Volume {
            class,
            partition_uuid: String::new(),
            file_system_uuid: String::new(),
            start_bytes: 1 << 20,
            bytes: 1 << 30,
            swap,
        };
        let swap = Swap {
            partition_uuid: String::new(),
            uuid: String::new(),
            start_bytes: 0,
            bytes: 1 << 20,
        };
        Layout {
            listing: Listing {
                moved: vec![
                    moved("/etc/app.conf", Class::Keep, &[]),
                    moved("/home/a b/.config", Class::WriteBack, &[]),
                    moved("/var/cache", Class::Never, &["/var/cache/debconf"]),
                ],
                page_files: vec![PageFile {
                    what: "/swapfile".to_owned(),
                    bytes: 1,
                    is_file: true,
                }],
                ..Listing::default()
            },
            volumes: vec![
                volume(Class::WriteBack, None),
                volume(Class::Never, Some(swap)),
                volume(Class::Keep, None),
            ],
            letter: None,
        }
    }

    /// Fails when: a line of the guest is changed, an old swap stays, or a new line is another one.
    #[test]
    fn a_table_keeps_its_lines_and_gets_those_of_the_split() {
        let table = b"# root\nUUID=1 / ext4 errors=remount-ro 0 1\n/swapfile none swap sw 0 0\n\
                      /dev/sdz1 none swap sw 0 0\n\xff /mnt auto noauto 0 0";
        let new = changed(table, &layout(), "ext4");
        let expected = b"# root\nUUID=1 / ext4 errors=remount-ro 0 1\n/dev/sdz1 none swap sw 0 0\n\
            \xff /mnt auto noauto 0 0\n\
            # Disks by how durable their data must be (tenuto image split).\n\
            LABEL=tenuto-wb /.tenuto/write-back ext4 noatime,x-systemd.device-timeout=10s 0 2\n\
            LABEL=tenuto-never /.tenuto/never ext4 \
            noatime,nofail,x-systemd.device-timeout=10s 0 2\n\
            LABEL=tenuto-keep /.tenuto/keep ext4 noatime,x-systemd.device-timeout=10s 0 2\n\
            / /.tenuto/system none bind 0 0\n\
            /.tenuto/keep/etc/app.conf /etc/app.conf none \
            bind,x-systemd.requires-mounts-for=/.tenuto/keep 0 0\n\
            /.tenuto/write-back/home/a\\040b/.config /home/a\\040b/.config none \
            bind,x-systemd.requires-mounts-for=/.tenuto/write-back 0 0\n\
            /.tenuto/never/var/cache /var/cache none \
            bind,nofail,x-systemd.requires-mounts-for=/.tenuto/never 0 0\n\
            /.tenuto/system/var/cache/debconf /var/cache/debconf none \
            bind,nofail,x-systemd.requires-mounts-for=/.tenuto/system 0 0\n\
            LABEL=tenuto-swap none swap sw,nofail 0 0\n";
        assert_eq!(
            String::from_utf8_lossy(&new),
            String::from_utf8_lossy(expected)
        );
        let written = written(&new);
        assert_eq!(written.len(), 9);
        assert_eq!(written[5].place, "/home/a b/.config");
        assert!(written[0].has_option("x-systemd.device-timeout"));
    }

    #[test]
    fn octal_letters_of_a_field_are_read_and_half_ones_stay() {
        for (word, letters) in [
            ("a\\040b", "a b"),
            ("\\134", "\\"),
            ("a\\04", "a\\04"),
            ("\\", "\\"),
        ] {
            assert_eq!(decode(word), letters);
        }
        assert_eq!(decode(&encode("a b\tc\nd\\e")), "a b\tc\nd\\e");
    }
}
