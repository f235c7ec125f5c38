//! What a user pastes to give volumes to a guest: QEMU's arguments, libvirt's elements.
//!
//! Owns the spelling of both. Always true: a name or path with any letter in it stays one argument
//! of a shell, one value of QEMU's options, one attribute of XML, or is refused; standard output
//! holds what is pasted and no word more, so that `$(…)` works; what is left to the reader goes to
//! standard error. A volume that has rings is given by its rings, unless NBD is asked for. What
//! stands once for a guest is printed once, however many disks it has.
//! Deliberately absent: the guest's other devices; other machine monitors, which are in `monitors`.

use crate::config::units::human_bytes;
use crate::config::{Config, Volume};
use crate::error::{Error, Result};
use engine::types::Policy;
use serde_json::{Value, json};

/// Queues of a guest that says nothing of its processors; each serves one of them.
const QUEUES: u16 = 4;
/// QEMU's names of block nodes have at most 31 bytes.
const NODE_BYTES_MAX: usize = 31;
/// What virtio has room for.
const SERIAL_BYTES_MAX: usize = 20;

/// Where a front end connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way<'a> {
    Rings(&'a str),
    Nbd(&'a str),
}

/// A volume as guests know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    name: String,
    rings: Option<String>,
    nbd: Option<String>,
    read_only: bool,
    /// Whether the guest is to see a volatile write cache. Where it sees none, QEMU sends each of
    /// its writes with FUA, so that what is acknowledged is durable.
    write_cache: bool,
    /// Logical block; rings tell it by themselves.
    block_bytes: u64,
}

impl Disk {
    /// From the document of `volume show`.
    pub fn of_daemon(volume: &Value) -> Disk {
        let text = |key: &str| volume[key].as_str().map(str::to_owned);
        let flags = volume["flags"].as_array();
        let is_set = |flag: &str| flags.is_some_and(|flags| flags.iter().any(|it| it == flag));
        Disk {
            name: text("name").unwrap_or_default(),
            rings: text("vhost_socket"),
            nbd: text("nbd_socket"),
            read_only: is_set("read-only"),
            write_cache: volume["write_cache"] != false && volume["policy"] != "write-through",
            block_bytes: volume["block_bytes"].as_u64().unwrap_or(512),
        }
    }

    /// From the configuration, for guests that are defined before the daemon runs.
    pub fn of_config(config: &Config, volume: &Volume) -> Disk {
        let socket = |kind: &str| {
            let name = format!("{}.{kind}.sock", volume.name);
            config.host.run_dir.join(name).display().to_string()
        };
        Disk {
            name: volume.name.clone(),
            rings: volume.exports.vhost_user.then(|| socket("vhost")),
            nbd: volume.exports.nbd.then(|| socket("nbd")),
            read_only: volume.read_only,
            write_cache: volume.write_cache && volume.policy != Policy::WriteThrough,
            block_bytes: volume.block_bytes.into(),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The socket of its rings, for a monitor that speaks no NBD.
    pub fn rings_for(&self, monitor: &str) -> Result<&str> {
        self.rings.as_deref().ok_or_else(|| {
            Error::failed(format!(
                "volume {name}: is not exported over vhost-user, and {monitor} speaks no NBD; add \
                 \"vhost-user\" to its export",
                name = self.name
            ))
            .about(&self.name)
        })
    }

    fn way(&self, over_nbd: bool) -> Result<Way<'_>> {
        let name = &self.name;
        let nbd = self.nbd.as_deref();
        match (self.rings.as_deref(), nbd) {
            (Some(socket), _) if !over_nbd => Ok(Way::Rings(socket)),
            (_, Some(socket)) => Ok(Way::Nbd(socket)),
            (Some(_), None) => Err(Error::failed(format!(
                "volume {name}: is not exported over NBD; add \"nbd\" to its export"
            ))
            .about(name)),
            (None, None) => Err(Error::failed(format!(
                "volume {name}: is exported nowhere, because no configuration names it; name it \
                 again"
            ))
            .about(name)),
        }
    }

    /// A name that QEMU takes for a block node, and that no other volume has.
    fn node(&self) -> String {
        let node = format!("tenuto-{}", self.name);
        if node.len() <= NODE_BYTES_MAX {
            return node;
        }
        let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, self.name.as_bytes());
        format!("{}-{sum:08x}", &node[..NODE_BYTES_MAX - 9])
    }

    fn serial(&self) -> &str {
        &self.name[..self.name.len().min(SERIAL_BYTES_MAX)]
    }
}

/// What is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pasted {
    pub document: Value,
    pub text: String,
    /// What only the reader can decide.
    pub notes: Vec<String>,
}

/// Name of the first disk in its guest, as in `vdb`; those after it count on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskName(String);

impl DiskName {
    /// The disk that a guest boots from.
    pub const FIRST: &str = "vda";
    /// No guest has more than some thousand disks.
    const LETTERS_MAX: usize = 3;

    pub fn parse(text: &str) -> Result<DiskName> {
        let letters = text.strip_prefix("vd").unwrap_or("");
        let fits = (1..=DiskName::LETTERS_MAX).contains(&letters.len())
            && letters.bytes().all(|letter| letter.is_ascii_lowercase());
        match fits {
            true => Ok(DiskName(text.into())),
            false => Err(Error::usage(format!(
                "--target: \"{text}\" is no disk on virtio; write vda, vdb and so on"
            ))),
        }
    }

    pub fn is_first(&self) -> bool {
        self.0 == DiskName::FIRST
    }

    /// The disk after this one: `vdz` is followed by `vdaa`.
    fn next(&self) -> DiskName {
        let mut letters = self.0.as_bytes()[2..].to_vec();
        for at in (0..letters.len()).rev() {
            if letters[at] != b'z' {
                letters[at] += 1;
                return DiskName::of(&letters);
            }
            letters[at] = b'a';
        }
        letters.push(b'a');
        DiskName::of(&letters)
    }

    fn of(letters: &[u8]) -> DiskName {
        let letters = letters.iter().map(|letter| char::from(*letter));
        DiskName("vd".chars().chain(letters).collect())
    }
}

/// Memory as QEMU and others take it: a whole number of MiB.
pub fn mebibytes(memory_bytes: u64) -> Result<String> {
    const MIB: u64 = 1 << 20;
    match memory_bytes > 0 && memory_bytes.is_multiple_of(MIB) {
        true => Ok(format!("{}M", memory_bytes / MIB)),
        false => Err(Error::usage(
            "--memory: is no whole number of MiB; write the guest's memory as in 4GiB",
        )),
    }
}

/// The arguments for QEMU, for a guest with so much memory.
pub fn qemu(disks: &[Disk], over_nbd: bool, memory_bytes: u64) -> Result<Pasted> {
    let (mut shared, mut notes) = (Vec::new(), Vec::new());
    let mut arguments = Vec::new();
    for disk in disks {
        match disk.way(over_nbd)? {
            Way::Rings(socket) => {
                (shared, notes) = qemu_memory(memory_bytes)?;
                arguments.extend(qemu_rings(disk, socket));
            }
            Way::Nbd(socket) => arguments.extend(qemu_nbd(disk, socket)),
        }
    }
    let arguments = [shared, arguments].concat();
    let quoted: Vec<String> = arguments.iter().map(|it| shell(it)).collect();
    let line = quoted.join(" ");
    Ok(Pasted {
        document: json!({ "qemu": line, "arguments": arguments, "notes": notes }),
        text: format!("{line}\n"),
        notes,
    })
}

/// What stands once for a guest whose disks have rings.
fn qemu_memory(memory_bytes: u64) -> Result<(Vec<String>, Vec<String>)> {
    let size = mebibytes(memory_bytes)?;
    let arguments = [
        "-m".into(),
        size.clone(),
        "-object".into(),
        format!("memory-backend-memfd,id=tenuto-memory,size={size},share=on"),
        "-machine".into(),
        "memory-backend=tenuto-memory".into(),
    ];
    let human = human_bytes(memory_bytes);
    let notes = vec![
        format!("the guest has {human} of memory: --memory SIZE for another size"),
        "-m, -object and -machine stand once for each guest, however many disks it has".into(),
        "huge pages: add hugetlb=on to -object, if vm.nr_hugepages has enough of them".into(),
        "num-queues: a guest uses one for each of its processors, and no more".into(),
        "QEMU 9.2 and newer prefer reconnect-ms=1000 to reconnect=1".into(),
    ];
    Ok((arguments.into(), notes))
}

fn qemu_rings(disk: &Disk, socket: &str) -> Vec<String> {
    let (node, path) = (disk.node(), comma(socket));
    vec![
        "-chardev".into(),
        format!("socket,id={node},path={path},reconnect=1"),
        "-device".into(),
        format!("vhost-user-blk-pci,chardev={node},num-queues={QUEUES}"),
    ]
}

/// A block device over the volume's own NBD socket.
fn qemu_nbd(disk: &Disk, socket: &str) -> Vec<String> {
    let (name, node) = (&disk.name, disk.node());
    let read_only = if disk.read_only { ",read-only=on" } else { "" };
    let write_cache = if disk.write_cache { "on" } else { "off" };
    vec![
        "-blockdev".into(),
        format!(
            "driver=nbd,node-name={node},server.type=unix,server.path={path},export={name},\
             reconnect-delay=30,cache.direct=on,discard=unmap{read_only}",
            path = comma(socket),
        ),
        "-device".into(),
        format!(
            "virtio-blk-pci,drive={node},serial={serial},write-cache={write_cache},\
             physical_block_size=4096,logical_block_size={block_bytes}",
            serial = disk.serial(),
            block_bytes = disk.block_bytes,
        ),
    ]
}

/// The elements for libvirt, for disks that begin with this one in their guest.
pub fn libvirt(disks: &[Disk], over_nbd: bool, first: &DiskName) -> Result<Pasted> {
    let (mut elements, mut memory, mut notes) = (String::new(), None, Vec::new());
    let mut target = first.clone();
    for disk in disks {
        let (element, noted) = match disk.way(over_nbd)? {
            Way::Rings(socket) => {
                memory = Some(SHARED_MEMORY);
                (libvirt_rings(disk, socket, &target)?, RINGS_NOTES)
            }
            Way::Nbd(socket) => (libvirt_nbd(disk, socket, &target)?, NBD_NOTES),
        };
        elements += &element;
        let known = |note: &&&str| notes.iter().any(|it: &String| it == **note);
        let new: Vec<String> = noted
            .iter()
            .filter(|it| !known(it))
            .map(|it| (*it).into())
            .collect();
        notes.extend(new);
        target = target.next();
    }
    Ok(Pasted {
        document: json!({ "libvirt": elements, "memory_backing": memory, "notes": notes }),
        text: memory.unwrap_or("").to_owned() + &elements,
        notes,
    })
}

const SHARED_MEMORY: &str = "<memoryBacking>\n\
    \x20 <source type='memfd'/>\n\
    \x20 <access mode='shared'/>\n\
    </memoryBacking>\n";

const RINGS_NOTES: &[&str] = &[
    "<memoryBacking> stands once in <domain>, <disk> in its <devices>",
    "huge pages: <hugepages/> in <memoryBacking>, if vm.nr_hugepages has enough of them",
];

const NBD_NOTES: &[&str] = &[
    "a libvirt that does not know <reconnect> of NBD leaves it out: a guest then has errors when \
     the daemon is started again",
];

fn libvirt_rings(disk: &Disk, socket: &str, target: &DiskName) -> Result<String> {
    let path = attribute(disk, socket)?;
    let target = &target.0;
    Ok(format!(
        "<disk type='vhostuser' device='disk'>\n\
        \x20 <driver name='qemu' type='raw' queues='{QUEUES}'/>\n\
        \x20 <source type='unix' path='{path}'>\n\
        \x20   <reconnect enabled='yes' timeout='1'/>\n\
        \x20 </source>\n\
        \x20 <target dev='{target}' bus='virtio'/>\n\
        </disk>\n"
    ))
}

fn libvirt_nbd(disk: &Disk, socket: &str, target: &DiskName) -> Result<String> {
    // `none` and `directsync` differ in the write cache that the guest sees.
    let cache = if disk.write_cache {
        "none"
    } else {
        "directsync"
    };
    let read_only = if disk.read_only {
        "  <readonly/>\n"
    } else {
        ""
    };
    Ok(format!(
        "<disk type='network' device='disk'>\n\
        \x20 <driver name='qemu' type='raw' cache='{cache}' discard='unmap'/>\n\
        \x20 <source protocol='nbd' name='{name}'>\n\
        \x20   <host transport='unix' socket='{socket}'/>\n\
        \x20   <reconnect delay='30'/>\n\
        \x20 </source>\n\
        \x20 <blockio logical_block_size='{block_bytes}' physical_block_size='4096'/>\n\
         \x20 <target dev='{target}' bus='virtio'/>\n\
        {read_only}\
        \x20 <serial>{serial}</serial>\n\
        </disk>\n",
        name = disk.name,
        block_bytes = disk.block_bytes,
        socket = attribute(disk, socket)?,
        target = target.0,
        serial = disk.serial(),
    ))
}

/// In QEMU's option syntax a comma inside a value is doubled.
fn comma(value: &str) -> String {
    value.replace(',', ",,")
}

/// One argument of a shell.
pub fn shell(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    match argument.chars().all(plain) && !argument.is_empty() {
        true => argument.into(),
        false => format!("'{}'", argument.replace('\'', r"'\''")),
    }
}

/// The value of an attribute between single quotes.
fn attribute(disk: &Disk, path: &str) -> Result<String> {
    let mut value = String::with_capacity(path.len());
    for letter in path.chars() {
        match letter {
            '&' => value.push_str("&amp;"),
            '<' => value.push_str("&lt;"),
            '>' => value.push_str("&gt;"),
            '\'' => value.push_str("&apos;"),
            '"' => value.push_str("&quot;"),
            // As themselves they would be read as blanks.
            '\t' | '\n' | '\r' => value.push_str(&format!("&#{};", u32::from(letter))),
            letter if letter.is_ascii_control() || "\u{fffe}\u{ffff}".contains(letter) => {
                return Err(Error::failed(format!(
                    "volume {}: the path of its socket has the letter {letter:?}, which XML cannot \
                     hold; use another run-dir",
                    disk.name
                ))
                .about(&disk.name));
            }
            letter => value.push(letter),
        }
    }
    Ok(value)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::path::Path;

    pub(in super::super) fn disk(name: &str, directory: &str) -> Disk {
        let socket = |kind: &str| Path::new(directory).join(format!("{name}.{kind}.sock"));
        let socket = |kind: &str| Some(socket(kind).display().to_string());
        Disk {
            name: name.into(),
            rings: socket("vhost"),
            nbd: socket("nbd"),
            read_only: false,
            write_cache: true,
            block_bytes: 512,
        }
    }

    #[test]
    fn plain_names_are_not_quoted_and_odd_ones_stay_one_argument() {
        let said = qemu(&[disk("desk-001", "/run/tenuto")], false, 4 << 30).expect("arguments");
        assert_eq!(
            said.text,
            "-m 4096M -object memory-backend-memfd,id=tenuto-memory,size=4096M,share=on -machine \
             memory-backend=tenuto-memory -chardev socket,id=tenuto-desk-001,\
             path=/run/tenuto/desk-001.vhost.sock,reconnect=1 -device \
             vhost-user-blk-pci,chardev=tenuto-desk-001,num-queues=4\n"
        );
        let said = qemu(&[disk("a", "/tmp/it's, $HOME")], false, 1 << 30).expect("arguments");
        let path = "socket,id=tenuto-a,path=/tmp/it's,, $HOME/a.vhost.sock,reconnect=1";
        assert_eq!(said.document["arguments"][7], path);
        let quoted = r"'socket,id=tenuto-a,path=/tmp/it'\''s,, $HOME/a.vhost.sock,reconnect=1'";
        assert!(said.text.contains(quoted), "{}", said.text);
    }

    #[test]
    fn long_names_have_nodes_of_their_own() {
        let start = "customer-production-database";
        let node = |end: &str| disk(&format!("{start}-{end}"), "/run").node();
        assert_eq!(node("01").len(), NODE_BYTES_MAX);
        assert_ne!(node("01"), node("02"));
        assert_eq!(disk("desk", "/run").node(), "tenuto-desk");
    }

    #[test]
    fn attributes_hold_every_letter_that_xml_has() {
        let disk = disk("a", "/tmp/<b> & 'c' \"d\"\n");
        let first = DiskName::parse("vda").expect("a target");
        let said = libvirt(&[disk], false, &first).expect("elements");
        let path = "path='/tmp/&lt;b&gt; &amp; &apos;c&apos; &quot;d&quot;&#10;/a.vhost.sock'";
        assert!(said.text.contains(path), "{}", said.text);
        let said =
            libvirt(&[self::disk("a", "/tmp/\u{1}")], false, &first).expect_err("no letter of XML");
        assert!(said.message.contains("use another run-dir"), "{said}");
    }

    #[test]
    fn a_volume_is_given_by_its_rings_unless_it_has_none_or_nbd_is_asked_for() {
        let mut disk = disk("a", "/run");
        let starts = |disk: &Disk, over_nbd, start: &str| {
            let said = qemu(std::slice::from_ref(disk), over_nbd, 1 << 30);
            let said = said.expect("arguments").text;
            assert!(said.starts_with(start), "{said}");
        };
        starts(&disk, false, "-m 1024M");
        starts(&disk, true, "-blockdev driver=nbd");
        disk.rings = None;
        starts(&disk, false, "-blockdev driver=nbd");
        disk.nbd = None;
        assert!(qemu(&[disk.clone()], false, 1 << 30).is_err());
        disk.rings = Some("/run/a.vhost.sock".into());
        let said = libvirt(&[disk], true, &DiskName("vda".into())).expect_err("not over NBD");
        assert!(said.message.contains("add \"nbd\" to its export"), "{said}");
    }

    #[test]
    fn several_disks_share_one_memory_and_count_on_from_the_first() {
        let mut disks = ["a", "b", "c"].map(|name| disk(name, "/run"));
        disks[1].rings = None;
        let said = qemu(&disks, false, 1 << 30).expect("arguments").text;
        assert_eq!(said.matches("-object").count(), 1, "{said}");
        assert!(said.starts_with("-m 1024M"), "{said}");
        for part in [
            "chardev=tenuto-a,",
            "node-name=tenuto-b,",
            "chardev=tenuto-c,",
        ] {
            assert_eq!(said.matches(part).count(), 1, "{part} in {said}");
        }
        let first = DiskName::parse("vdy").expect("a target");
        let said = libvirt(&disks, false, &first).expect("elements");
        let places = ["'vdy'", "'vdz'", "'vdaa'"].map(|it| said.text.find(it).expect("a target"));
        assert!(places.is_sorted(), "{}", said.text);
        assert_eq!(
            said.text.matches("<memoryBacking>").count(),
            1,
            "{}",
            said.text
        );
        assert_eq!(said.notes.len(), 3, "{:?}", said.notes);
        for wrong in ["", "vd", "sda", "vdA", "vda1", "vdaaaa"] {
            assert!(DiskName::parse(wrong).is_err(), "{wrong}");
        }
    }
}
