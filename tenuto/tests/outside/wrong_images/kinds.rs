//! The kinds of images: how each is made, and what volumes on it come to.
//!
//! Always true: where the answer is a line, its part with a command is what a user runs, with
//! IMAGE for the file and DIR for its directory.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use Answer::{Helped, Refused, Served};
use Make::{Begins, Created, Cut, Made, Over, Patched, Unstated};

use crate::common::{EXIT_FAILED, EXIT_USAGE, run};
use crate::qcow2_written::{shown, write};

/// Clusters of a file that QEMU makes with 64 KiB each: header, refcount table, refcounts, L1, L2,
/// and one of data.
const L1: u64 = 0x30000;
const L2: u64 = 0x40000;
pub const PLAIN: &str = "cluster_size=64k";

/// What a volume on an image comes to.
#[derive(Clone, Copy)]
pub enum Answer {
    Served,
    /// With this exit code, and a line with this part.
    Refused(i32, &'static str),
    /// The same, and the part is a command that makes the image one that is served.
    Helped(i32, &'static str),
}

pub type Patches = &'static [(u64, &'static [u8])];

/// How an image is made.
#[derive(Clone, Copy)]
pub enum Make {
    /// By QEMU with these options, then bytes at offsets are replaced.
    Patched(&'static str, Patches),
    /// By QEMU, then it is cut to this length.
    Cut(u64),
    /// By QEMU in this format.
    Created(&'static str),
    /// An empty image over a backing with this name and format.
    Over(&'static str, &'static str),
    /// The same over one whose format it does not say.
    Unstated(&'static str),
    /// Zeroes with these bytes at this offset.
    Begins(u64, &'static [u8]),
    /// In some other way, under this name.
    Made(fn(&Path, &Path)),
}

pub struct Kind {
    pub name: &'static str,
    pub make: Make,
    /// What is wrong, in the line of each refusal.
    pub cause: &'static str,
    pub written: Answer,
    pub read: Answer,
    /// What the user says of it, and QEMU has to be told.
    pub format: Option<&'static str>,
}

pub const fn kind(
    name: &'static str,
    make: Make,
    cause: &'static str,
    answers: [Answer; 2],
) -> Kind {
    let [written, read] = answers;
    Kind {
        name,
        make,
        cause,
        written,
        read,
        format: None,
    }
}

/// A header without a meaning: no reader and no writer takes it.
const fn damaged(name: &'static str, patches: Patches, cause: &'static str) -> Kind {
    kind(name, Patched(PLAIN, patches), cause, BACKUP)
}

/// A header of another version or method: whoever made it may read it.
const fn foreign(name: &'static str, patches: Patches, cause: &'static str) -> Kind {
    let read = Refused(EXIT_FAILED, "copy it with the program that made it");
    let written = Refused(EXIT_USAGE, "restore it from a backup");
    kind(name, Patched(PLAIN, patches), cause, [written, read])
}

/// A backing that is not followed, whoever asks.
const fn unfollowed(name: &'static str, make: Make, cause: &'static str) -> Kind {
    kind(name, make, cause, [Helped(EXIT_FAILED, REBASE); 2])
}

const fn named(kind: Kind, format: &'static str) -> Kind {
    Kind {
        format: Some(format),
        ..kind
    }
}

const BACKUP: [Answer; 2] = [Refused(EXIT_USAGE, "restore it from a backup"); 2];
pub const SERVED: [Answer; 2] = [Served; 2];
const REBASE: &str = "qemu-img rebase -u -b FILE -F FORMAT IMAGE";
const REPAIR: [Answer; 2] = [Helped(EXIT_USAGE, "qemu-img check -r all IMAGE"), Served];
/// The secret is asked for by QEMU.
const COPIED: [Answer; 2] = [
    Refused(EXIT_USAGE, "`qemu-img convert -O qcow2 IMAGE COPY`"),
    Refused(EXIT_FAILED, "`qemu-img convert -O qcow2 IMAGE COPY`"),
];

const HEADERS: &[Kind] = &[
    damaged("bits8", &[(20, b"\0\0\0\x08")], "clusters of 2^8 bytes"),
    damaged("bits22", &[(20, b"\0\0\0\x16")], "clusters of 2^22 bytes"),
    kind(
        "subclusters",
        Patched("cluster_size=4k", &[(79, b"\x10")]),
        "2^14 at least with subclusters",
        BACKUP,
    ),
    damaged("header96", &[(100, b"\0\0\0\x60")], "a header of 96 bytes"),
    damaged(
        "header105",
        &[(100, b"\0\0\0\x69")],
        "a header of 105 bytes",
    ),
    damaged(
        "headerbig",
        &[(100, b"\0\x02\0\0")],
        "a header of 131072 bytes",
    ),
    damaged("width128", &[(99, b"\x07")], "refcounts of 2^7 bits"),
    damaged("methods", &[(79, b"\x08")], "says zlib and zstd"),
    damaged(
        "extension",
        &[(116, b"\0\x10\0\0")],
        "longer than the header has room",
    ),
    damaged(
        "extensions",
        &[(112, b"\0\0\0\x07\0\0\0\0\0\0\0\x07\0\0\0\0")],
        "twice",
    ),
    damaged(
        "namelong",
        &[(8, b"\0\0\0\0\0\0\x02\0\0\0\x07\xd0")],
        "1023 is the most",
    ),
    damaged(
        "nameout",
        &[(8, b"\0\0\0\0\0\0\xff\xfa\0\0\0\x64")],
        "at offset 0xfffa",
    ),
    damaged(
        "namenul",
        &[(8, b"\0\0\0\0\0\0\x04\0\0\0\0\x03"), (1024, b"a\0b")],
        "without NUL",
    ),
    damaged(
        "namebytes",
        &[(8, b"\0\0\0\0\0\0\x04\0\0\0\0\x03"), (1024, b"a\xffb")],
        "is not UTF-8",
    ),
    foreign("version1", &[(7, b"\x01")], "qcow2 version 1"),
    foreign("version4", &[(7, b"\x04")], "qcow2 version 4"),
    foreign("cipher9", &[(35, b"\x09")], "by the unknown method 9"),
    foreign(
        "packed9",
        &[(79, b"\x08"), (104, b"\x09")],
        "by the unknown method 9",
    ),
    foreign("feature31", &[(76, b"\x80")], "not known here: bit 31"),
    foreign("size0", &[(24, &[0; 8])], "a virtual size of 0 bytes"),
    foreign(
        "sizebig",
        &[(24, b"\x10\0\0\0\0\0\0\0")],
        "a virtual size of 1152921504606846976",
    ),
    kind(
        "short50",
        Cut(50),
        "ends after 50 bytes, inside its header",
        BACKUP,
    ),
    kind(
        "short90",
        Cut(90),
        "ends after 90 bytes, inside its header",
        BACKUP,
    ),
    kind(
        "empty",
        Cut(0),
        "is empty",
        [Refused(EXIT_USAGE, "give it its size first"); 2],
    ),
    named(
        kind(
            "magic",
            Patched(PLAIN, &[(3, b"\0")]),
            "does not begin as a qcow2 file",
            [
                Refused(EXIT_USAGE, "restore it from a backup"),
                Refused(EXIT_FAILED, "name a qcow2 file"),
            ],
        ),
        "qcow2",
    ),
    named(
        kind("bytes", Patched(PLAIN, &[(3, b"\0")]), "", SERVED),
        "raw",
    ),
];

const TABLES: &[Kind] = &[
    damaged(
        "l1none",
        &[(36, &[0; 4])],
        "an L1 table of 0 entries; its size needs 1",
    ),
    damaged(
        "l1small",
        &[(24, b"\0\0\x01\0\0\0\0\0")],
        "its size needs 2048",
    ),
    damaged("l1big", &[(36, b"\0\x50\0\0")], "33554432 is the most"),
    damaged(
        "l1odd",
        &[(40, b"\0\0\0\0\0\x03\x02\0")],
        "L1 table at offset 0x30200",
    ),
    damaged("l1zero", &[(40, &[0; 8])], "L1 table at offset 0x0"),
    damaged(
        "l1far",
        &[(40, b"\0\0\x01\0\0\0\0\0")],
        "L1 table at offset 0x10000000000",
    ),
    damaged(
        "countsodd",
        &[(48, b"\0\0\0\0\0\x01\x02\0")],
        "refcount table at offset 0x10200",
    ),
    damaged("countsnone", &[(56, &[0; 4])], "has no refcount table"),
    damaged("countsbig", &[(56, b"\0\x10\0\0")], "8388608 is the most"),
    damaged(
        "countsfar",
        &[(48, b"\0\0\x01\0\0\0\0\0")],
        "refcount table at offset 0x10000000000",
    ),
    damaged(
        "snapshots",
        &[(60, b"\0\x01\x11\x70")],
        "70000; 65536 is the most",
    ),
    damaged(
        "snapshotsodd",
        &[(60, b"\0\0\0\x01\0\0\0\0\0\x01\x02\0")],
        "snapshot table at offset 0x10200",
    ),
    damaged(
        "snapshotsfar",
        &[(60, b"\0\0\0\x01\0\0\x01\0\0\0\0\0")],
        "snapshot table at offset 0x10000000000",
    ),
    kind("cutheader", Cut(300), "outside of 300 bytes", BACKUP),
    kind("cuttable", Cut(L1 + 4), "outside of 196612 bytes", BACKUP),
];

const FEATURES: &[Kind] = &[
    kind("plain", Patched(PLAIN, &[]), "", SERVED),
    kind(
        "extended",
        Patched("extended_l2=on,cluster_size=128k", &[]),
        "",
        SERVED,
    ),
    kind("lazy", Patched("lazy_refcounts=on", &[]), "", SERVED),
    kind("narrow", Patched("refcount_bits=1", &[]), "", SERVED),
    kind("wide", Patched("refcount_bits=64", &[]), "", SERVED),
    kind("zstd", Patched("compression_type=zstd", &[]), "", SERVED),
    kind("large", Patched("cluster_size=2M", &[]), "", SERVED),
    kind("kept", Made(|_, image| snapshot(image)), "", SERVED),
    kind(
        "old",
        Patched("compat=0.10", &[]),
        "is qcow2 version 2",
        [
            Helped(EXIT_USAGE, "qemu-img amend -o compat=1.1 IMAGE"),
            Served,
        ],
    ),
    kind(
        "small",
        Patched("cluster_size=2k", &[]),
        "clusters of 2048 bytes",
        [
            Helped(
                EXIT_USAGE,
                "qemu-img convert -O qcow2 -o cluster_size=64k IMAGE COPY",
            ),
            Served,
        ],
    ),
    kind(
        "dirty",
        Patched(PLAIN, &[(79, b"\x01")]),
        "is marked dirty",
        REPAIR,
    ),
    kind(
        "corrupt",
        Patched(PLAIN, &[(79, b"\x02")]),
        "is marked corrupt",
        REPAIR,
    ),
    kind(
        "bitmaps",
        Made(|_, image| bitmap(image)),
        "has dirty bitmaps",
        [
            Helped(EXIT_USAGE, "qemu-img bitmap --remove IMAGE BITMAP"),
            Served,
        ],
    ),
    kind(
        "autoclear",
        Patched(PLAIN, &[(88, b"\x10")]),
        "autoclear features that are not known here",
        [
            Refused(EXIT_USAGE, "serve it with read-only = true"),
            Served,
        ],
    ),
    kind(
        "guard",
        Patched(PLAIN, &[(72, b"\x20")]),
        "a destage of it was cut short",
        [Refused(EXIT_USAGE, "restore it with its ledger and its journal"); 2],
    ),
    kind(
        "datafile",
        Made(data_file),
        "keeps its data in an external",
        [
            Helped(EXIT_USAGE, "qemu-img convert -O qcow2 IMAGE COPY"),
            Helped(EXIT_FAILED, "qemu-img convert -O qcow2 IMAGE COPY"),
        ],
    ),
    kind(
        "aes",
        Patched(PLAIN, &[(35, b"\x01")]),
        "is encrypted",
        COPIED,
    ),
    // On a busy machine QEMU cannot time its key, and makes no whole one.
    damaged(
        "keyless",
        &[(35, b"\x02")],
        "does not say where the keys are",
    ),
];

const BACKINGS: &[Kind] = &[
    kind("relative", Over("base.qcow2", "qcow2"), "", SERVED),
    kind("absolute", Over("DIR/base.qcow2", "qcow2"), "", SERVED),
    kind("scheme", Over("file:DIR/base.qcow2", "qcow2"), "", SERVED),
    unfollowed(
        "schemerelative",
        Over("file:base.qcow2", "qcow2"),
        "depends on where a program was started",
    ),
    kind("longer", Over("longer.qcow2", "qcow2"), "", SERVED),
    kind("shorter", Over("shorter.qcow2", "qcow2"), "", SERVED),
    kind("onraw", Over("base.raw", "raw"), "", SERVED),
    kind(
        "json",
        Over(
            r#"json:{"driver":"qcow2","file":{"driver":"file","filename":"DIR/base.qcow2"}}"#,
            "qcow2",
        ),
        "",
        SERVED,
    ),
    kind("probed", Unstated("base.qcow2"), "", SERVED),
    kind("probedraw", Unstated("base.raw"), "", SERVED),
    kind(
        "probedchain",
        Unstated("middle.qcow2"),
        "does not say what its backing",
        [Helped(
            EXIT_FAILED,
            "qemu-img rebase -u -b DIR/middle.qcow2 -F qcow2 IMAGE",
        ); 2],
    ),
    kind(
        "missing",
        Over("none.qcow2", "qcow2"),
        "none.qcow2: cannot open it: no such file",
        [Helped(EXIT_USAGE, REBASE); 2],
    ),
    kind(
        "outside",
        Over("../outside/base.qcow2", "qcow2"),
        "lies outside of [images] allow",
        [Refused(EXIT_FAILED, "add its directory there"); 2],
    ),
    kind(
        "linked",
        Over("link.qcow2", "qcow2"),
        "lies outside of [images] allow",
        [Refused(EXIT_FAILED, "add its directory there"); 2],
    ),
    unfollowed(
        "nbd",
        Over("nbd:localhost:1", "raw"),
        "has its backing behind nbd:",
    ),
    unfollowed(
        "rbd",
        Over("rbd:pool/image", "raw"),
        "has its backing behind rbd:",
    ),
    unfollowed(
        "http",
        Over("http://localhost:1/a", "raw"),
        "has its backing behind http:",
    ),
    unfollowed(
        "ssh",
        Over("ssh://localhost:1/a", "raw"),
        "has its backing behind ssh:",
    ),
    unfollowed(
        "jsonnbd",
        Over(
            r#"json:{"driver":"raw","file":{"driver":"nbd","host":"localhost"}}"#,
            "raw",
        ),
        r#"whose key "file.host""#,
    ),
    unfollowed(
        "jsonkey",
        Over(
            r#"json:{"driver":"raw","offset":512,"file.filename":"DIR/base.raw"}"#,
            "raw",
        ),
        r#"whose key "offset""#,
    ),
    unfollowed(
        "jsonrelative",
        Over(r#"json:{"driver":"raw","file.filename":"base.raw"}"#, "raw"),
        "depends on where a program was started",
    ),
    unfollowed("jsontext", Over("json:{", "raw"), "which is no JSON"),
    unfollowed(
        "formatvmdk",
        Over("base.raw", "vmdk"),
        r#"says that its backing is "vmdk""#,
    ),
    unfollowed(
        "itself",
        Patched(
            PLAIN,
            &[(8, b"\0\0\0\0\0\0\x04\0\0\0\0\x06"), (1024, b"itself")],
        ),
        "is a backing of itself",
    ),
    kind(
        "circle",
        Made(circle),
        "is a backing of itself",
        [Helped(
            EXIT_FAILED,
            "qemu-img rebase -u -b FILE -F FORMAT DIR/round",
        ); 2],
    ),
    kind(
        "deep64",
        Made(|dir, image| deep(dir, image, 64)),
        "",
        SERVED,
    ),
    kind(
        "deep65",
        Made(|dir, image| deep(dir, image, 65)),
        "is file 64 of its chain and has a backing still",
        [Refused(EXIT_FAILED, "`qemu-img rebase -b BASE -F FORMAT "); 2],
    ),
    kind(
        "ondamaged",
        Over("bits8", "qcow2"),
        "clusters of 2^8 bytes",
        BACKUP,
    ),
    kind(
        "onencrypted",
        Over("aes", "qcow2"),
        "is encrypted",
        [Refused(EXIT_FAILED, "`qemu-img convert -O qcow2 DIR/aes COPY`"); 2],
    ),
    kind(
        "onvmdk",
        Unstated("vmdk"),
        "look like vmdk",
        [Refused(
            EXIT_FAILED,
            "`qemu-img convert -f vmdk -O qcow2 DIR/vmdk COPY`",
        ); 2],
    ),
];

/// Other formats than those that are read, by QEMU where it makes them.
const FORMATS: &[Kind] = &[
    kind("vmdk", Created("vmdk"), "looks like vmdk", copied("vmdk")),
    kind("vdi", Created("vdi"), "looks like vdi", copied("vdi")),
    kind("vhdx", Created("vhdx"), "looks like vhdx", copied("vhdx")),
    kind("vhd", Created("vpc"), "looks like vhd", copied("vpc")),
    kind("qed", Created("qed"), "looks like qed", copied("qed")),
    kind(
        "parallels",
        Created("parallels"),
        "looks like parallels",
        copied("parallels"),
    ),
    kind(
        "luks",
        Begins(0, b"LUKS\xba\xbe"),
        "looks like luks",
        [Refused(EXIT_USAGE, "`qemu-img convert -f luks -O qcow2 IMAGE COPY`"); 2],
    ),
    named(
        kind("guests", Begins(0, b"LUKS\xba\xbe"), "", SERVED),
        "raw",
    ),
    named(kind("raw", Begins(510, b"\x55\xaa"), "", SERVED), "raw"),
];

const fn copied(format: &str) -> [Answer; 2] {
    let command = match format.as_bytes() {
        b"vmdk" => "qemu-img convert -f vmdk -O qcow2 IMAGE COPY",
        b"vdi" => "qemu-img convert -f vdi -O qcow2 IMAGE COPY",
        b"vhdx" => "qemu-img convert -f vhdx -O qcow2 IMAGE COPY",
        b"vpc" => "qemu-img convert -f vpc -O qcow2 IMAGE COPY",
        b"qed" => "qemu-img convert -f qed -O qcow2 IMAGE COPY",
        _ => "qemu-img convert -f parallels -O qcow2 IMAGE COPY",
    };
    [Helped(EXIT_USAGE, command); 2]
}

pub fn all() -> impl Iterator<Item = &'static Kind> {
    let tables = [HEADERS, TABLES, FEATURES, FORMATS, BACKINGS];
    tables.into_iter().flatten()
}

/// An image with data, made once for each choice of options.
pub fn plain(image: &Path, options: &str) {
    let name = options.replace(|letter: char| !letter.is_alphanumeric(), "-");
    let model = image.with_file_name(format!("model-{name}"));
    if !model.exists() {
        let file = shown(&model);
        let create = ["create", "-q", "-f", "qcow2", "-o", options, &file, "8M"];
        run("qemu-img", &create);
        write(&model, "qcow2", &["write -P 1 0 64k", "write -P 2 5M 4k"]);
    }
    fs::copy(model, image).unwrap();
}

fn snapshot(image: &Path) {
    plain(image, PLAIN);
    run("qemu-img", &["snapshot", "-c", "before", &shown(image)]);
}

fn bitmap(image: &Path) {
    plain(image, PLAIN);
    run("qemu-img", &["bitmap", "--add", &shown(image), "b0"]);
}

fn data_file(dir: &Path, image: &Path) {
    plain(
        image,
        &format!("data_file={}", dir.join("data.raw").display()),
    );
}

/// Without a look at what is below.
pub fn over(image: &Path, name: &str, format: &str) {
    let below = ["-u", "-b", name, "-F", format, &shown(image), "8M"];
    run(
        "qemu-img",
        &[&["create", "-q", "-f", "qcow2"], &below[..]].concat(),
    );
}

fn circle(dir: &Path, image: &Path) {
    over(image, "round", "qcow2");
    over(&dir.join("round"), "circle", "qcow2");
}

/// The last of so many files, each of which stands on the one before.
fn deep(dir: &Path, image: &Path, files: u32) {
    let mut below = "base.qcow2".to_owned();
    for number in 2..files {
        let name = format!("deep-{number}");
        if !dir.join(&name).exists() {
            over(&dir.join(&name), &below, "qcow2");
        }
        below = name;
    }
    over(image, &below, "qcow2");
}

/// Name, options, what is replaced, and whether QEMU reads the image all the same.
pub type Torn = (&'static str, &'static str, Patches, bool);

/// Tables that QEMU finds wrong when it comes to them, and whether it reads them all the same.
pub const TORN: &[Torn] = &[
    ("beyond", PLAIN, &[(L2, b"\x80\0\x01\0\0\0\0\0")], true),
    ("odd", PLAIN, &[(L2, b"\x80\0\0\0\0\x05\x02\0")], false),
    ("onl1", PLAIN, &[(L2, b"\x80\0\0\0\0\x03\0\0")], true),
    ("tableodd", PLAIN, &[(L1, b"\x80\0\0\0\0\x04\x02\0")], false),
    ("tablebeyond", PLAIN, &[(L1, b"\x80\0\x01\0\0\0\0\0")], true),
    // A compressed cluster, where there is no deflate stream.
    ("torn", PLAIN, &[(L2, b"\x40\0\0\0\0\x05\0\0")], false),
    ("overlap", PLAIN, &[(40, b"\0\0\0\0\0\x01\0\0")], true),
    (
        "subclusters",
        "extended_l2=on,cluster_size=128k",
        &[(0x80008, &[0xff; 8])],
        false,
    ),
];

impl Kind {
    pub fn image(&self, dir: &Path) -> PathBuf {
        let image = dir.join(self.name);
        let place = dir.display().to_string();
        match self.make {
            Patched(options, patches) => {
                plain(&image, options);
                let file = fs::File::options().write(true).open(&image).unwrap();
                for (at, bytes) in patches {
                    file.write_all_at(bytes, *at).unwrap();
                }
            }
            Cut(bytes) => {
                plain(&image, PLAIN);
                let file = fs::File::options().write(true).open(&image).unwrap();
                file.set_len(bytes).unwrap();
            }
            Created(format) => {
                run(
                    "qemu-img",
                    &["create", "-q", "-f", format, &shown(&image), "8M"],
                );
            }
            Over(name, format) => over(&image, &name.replace("DIR", &place), format),
            Unstated(name) => {
                over(&image, name, "qcow2");
                let mut bytes = fs::read(&image).unwrap();
                let extension = [0xe2, 0x79, 0x2a, 0xca];
                let found = bytes.windows(4).position(|it| it == extension);
                bytes[found.expect("the format of the backing")] = 0x12;
                fs::write(&image, bytes).unwrap();
            }
            Begins(at, bytes) => {
                let mut all = vec![0; 1 << 20];
                all[at as usize..][..bytes.len()].copy_from_slice(bytes);
                fs::write(&image, all).unwrap();
            }
            Made(make) => make(dir, &image),
        }
        image
    }
}
