//! Where what lies on a desktop's disk, and what the files are called.
//!
//! Owns the classes of Capo's table 2 and their ranges. Always true: all desktops are laid out the
//! same, as clones of one image; each class is one range of whole megabytes; inside a range what
//! is read as shared content, what is written in small pieces and what in large ones do not
//! overlap, so that a piece is always rewritten as a whole. Deliberately absent: a file system.

use crate::trace::{NameId, Names};
use std::ops::Range;

pub const BLOCK_BYTES: u64 = 4096;
pub const BLOCK_SECTORS: u64 = 8;
const MIB_BLOCKS: u64 = 256;
/// Below that the parts would not hold what is written in a day.
pub const DISK_BYTES_MIN: u64 = 16 << 30;
pub const DISK_BYTES_MAX: u64 = 1 << 40;

const TEMPORARY_INTERNET_FILES: &str = concat!(
    r"\Users\desktop\AppData\Local\Microsoft\Windows",
    r"\Temporary Internet Files\page-#"
);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// What the file system keeps for itself.
    Metadata,
    /// `\Windows` and what services write.
    System,
    /// `\Program Files`.
    Program,
    /// Settings of a user that can be had again: `ntuser.dat`, `AppData`.
    Profile,
    PageFile,
    /// `\Temp` and the cache of the browser.
    Temporary,
    /// Documents.
    User,
}

/// How long what a class holds may be missing after a crash (Capo, table 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It goes to shared storage at once.
    WriteThrough,
    /// It goes there later.
    WriteBack,
    /// It need not go there at all.
    NoWriteBack,
}

impl Class {
    pub const ALL: [Class; 7] = [
        Class::Metadata,
        Class::System,
        Class::Program,
        Class::Profile,
        Class::PageFile,
        Class::Temporary,
        Class::User,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Class::Metadata => "metadata",
            Class::System => "system",
            Class::Program => "program",
            Class::Profile => "profile",
            Class::PageFile => "page-file",
            Class::Temporary => "temporary",
            Class::User => "user",
        }
    }

    pub const fn durability(self) -> Durability {
        match self {
            Class::Metadata | Class::User => Durability::WriteThrough,
            Class::System | Class::Program | Class::Profile => Durability::WriteBack,
            Class::PageFile | Class::Temporary => Durability::NoWriteBack,
        }
    }

    /// Of the disk, in thousandths: all of it, and the parts of that for content that is read, for
    /// small writes and for large ones.
    const fn thousandths(self) -> (u64, [u64; 3]) {
        match self {
            Class::Metadata => (25, [400, 600, 0]),
            Class::System => (200, [600, 100, 300]),
            Class::Program => (125, [750, 30, 220]),
            Class::Profile => (50, [300, 200, 500]),
            Class::PageFile => (25, [0, 0, 1000]),
            Class::Temporary => (125, [0, 150, 850]),
            Class::User => (450, [250, 50, 700]),
        }
    }

    /// Files of each part: how many, and what they are called.
    const fn files(self) -> [(u64, &'static str); 3] {
        match self {
            Class::Metadata => [(1, r"\$Mft"), (1, r"\$LogFile"), (0, "")],
            Class::System => [
                (64, r"\Windows\System32\library-#.dll"),
                (8, r"\Windows\System32\config\hive-#"),
                (32, r"\Windows\SoftwareDistribution\update-#"),
            ],
            Class::Program => [
                (48, r"\Program Files\program-#.exe"),
                (4, r"\Program Files\settings-#.ini"),
                (16, r"\Program Files\component-#.dat"),
            ],
            Class::Profile => [
                (16, r"\Users\desktop\AppData\Roaming\state-#"),
                (4, r"\Users\desktop\ntuser-#.dat"),
                (16, r"\Users\desktop\AppData\Local\store-#"),
            ],
            Class::PageFile => [(0, ""), (0, ""), (1, r"\pagefile.sys")],
            Class::Temporary => [
                (0, ""),
                (4, r"\Windows\Temp\part-#"),
                (32, TEMPORARY_INTERNET_FILES),
            ],
            Class::User => [
                (48, r"\Users\desktop\Documents\template-#"),
                (8, r"\Users\desktop\Documents\note-#"),
                (48, r"\Users\desktop\Documents\document-#"),
            ],
        }
    }
}

/// What a part of a class is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Content,
    Small,
    Large,
}

struct Stretch {
    blocks: Range<u64>,
    /// The name of its first file, and blocks of each.
    first: u32,
    file_blocks: u64,
}

pub struct Layout {
    disk_blocks: u64,
    /// Of each class, in the order of [`Class::ALL`], its three parts.
    stretches: Vec<[Stretch; 3]>,
    sectors: Vec<Range<u64>>,
    paths: Names,
    classes: Vec<Class>,
    /// The class of each stretch that is not empty, by where it begins.
    starts: Vec<(u64, usize, usize)>,
}

impl Layout {
    pub fn new(disk_bytes: u64) -> Layout {
        let disk_blocks = disk_bytes / BLOCK_BYTES;
        let mut layout = Layout {
            disk_blocks,
            stretches: Vec::new(),
            sectors: Vec::new(),
            paths: Names::default(),
            classes: Vec::new(),
            starts: Vec::new(),
        };
        let mut at = 0;
        for class in Class::ALL {
            let (share, parts) = class.thousandths();
            let whole = disk_blocks * share / 1000 / MIB_BLOCKS * MIB_BLOCKS;
            let begin = at;
            let end = begin + whole;
            let mut stretches = Vec::new();
            for (part, share) in parts.into_iter().enumerate() {
                let last = parts[part..].iter().sum::<u64>() == share;
                let length = whole * share / 1000 / MIB_BLOCKS * MIB_BLOCKS;
                let stop = if last { end } else { at + length };
                let stretch = layout.stretch(class, part, at..stop);
                stretches.push(stretch);
                at = stop;
            }
            layout
                .sectors
                .push(begin * BLOCK_SECTORS..end * BLOCK_SECTORS);
            let stretches = stretches.try_into().ok().expect("three parts");
            layout.stretches.push(stretches);
        }
        assert!(at <= disk_blocks, "classes beyond the disk");
        layout
    }

    fn stretch(&mut self, class: Class, part: usize, blocks: Range<u64>) -> Stretch {
        let (files, name) = class.files()[part];
        let first = self.paths.all().len() as u32;
        for file in 0..files {
            self.paths.id(&name.replace('#', &format!("{file:02}")));
            self.classes.push(class);
        }
        if !blocks.is_empty() {
            assert!(files > 0, "a part without a file");
            self.starts.push((blocks.start, class as usize, part));
        }
        let file_blocks = (blocks.end - blocks.start).div_ceil(files.max(1)).max(1);
        Stretch {
            blocks,
            first,
            file_blocks,
        }
    }

    pub fn paths(&self) -> &Names {
        &self.paths
    }

    pub fn class_of(&self, path: NameId) -> Option<Class> {
        self.classes.get(path.0 as usize).copied()
    }

    /// In sectors, the same on each desktop.
    pub fn ranges(&self, class: Class) -> &[Range<u64>] {
        std::slice::from_ref(&self.sectors[class as usize])
    }

    pub fn part(&self, class: Class, part: Part) -> Range<u64> {
        self.stretches[class as usize][part as usize].blocks.clone()
    }

    pub fn path_of(&self, block: u64) -> NameId {
        let at = self.starts.partition_point(|start| start.0 <= block) - 1;
        let (_, class, part) = self.starts[at];
        let stretch = &self.stretches[class][part];
        debug_assert!(stretch.blocks.contains(&block) && block < self.disk_blocks);
        NameId(stretch.first + ((block - stretch.blocks.start) / stretch.file_blocks) as u32)
    }

    /// The image ends where the content of documents does; behind it is what desktops add.
    pub fn base_bytes(&self) -> u64 {
        self.part(Class::User, Part::Content).end * BLOCK_BYTES
    }
}
