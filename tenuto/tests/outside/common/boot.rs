//! A disk from which a machine starts by itself: firmware finds a boot loader in its first sector,
//! and that one finds kernel, initramfs and root file system in a partition.
//!
//! Always true: QEMU is given neither a kernel nor an initramfs, so whatever runs was read from the
//! disk. Deliberately absent: what the guest does, which is in [`inside`](super::inside).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::guest::{KERNEL_WORDS, Machine};
use super::{have, run, skip};

const SECTOR: u64 = 512;
/// Where partitions begin since disks have large sectors.
const PARTITION_AT: u64 = 1 << 20;
const PARTITION_BYTES: u64 = 128 << 20;
pub const DISK_BYTES: u64 = PARTITION_AT + PARTITION_BYTES;
/// Of the partition table in the first sector.
const TABLE_AT: usize = 446;
const SIGNATURE_AT: usize = 510;
const LINUX: u8 = 0x83;
const ACTIVE: u8 = 0x80;
/// Where Debian has the parts of the boot loader.
const PARTS: &str = "/usr/lib/grub/i386-pc";

/// A machine whose root is the first partition of its first disk; `None`, with the skip noted,
/// where something is missing.
pub fn machine(test: &str, dir: &Path) -> Option<Machine> {
    if !have(test, &["grub-mkimage"]) {
        return None;
    }
    if !Path::new(PARTS).join("boot.img").is_file() {
        skip(test, "no parts of the boot loader for a BIOS");
        return None;
    }
    Machine::with_program_on_disk(test, dir)
}

/// Makes the raw image of such a disk; the guest finds these words on its command line.
pub fn image(machine: &Machine, dir: &Path, image: &Path, words: &str) {
    let file = File::create(image).expect("create the image");
    file.set_len(DISK_BYTES).expect("its size");
    let put = |bytes: &[u8], at: u64| file.write_all_at(bytes, at).expect("write the image");
    let loader = loader(dir, words);
    assert!(SECTOR + (loader.len() as u64) < PARTITION_AT);
    put(&first_sector(), 0);
    put(&loader, SECTOR);
    let partition = partition(machine, dir);
    put(
        &fs::read(partition).expect("read the partition"),
        PARTITION_AT,
    );
}

/// Copies the file system of such a disk, for the tools that check it.
pub fn partition_of(image: &Path, partition: &Path) {
    let mut bytes = vec![0; PARTITION_BYTES as usize];
    let image = File::open(image).expect("open the image");
    image
        .read_exact_at(&mut bytes, PARTITION_AT)
        .expect("read the image");
    fs::write(partition, bytes).expect("write the file system");
}

/// The first sector: code that loads what follows it, and a table with one partition.
fn first_sector() -> Vec<u8> {
    let code = Path::new(PARTS).join("boot.img");
    let mut sector = fs::read(code).expect("read the boot sector");
    assert_eq!(sector.len() as u64, SECTOR);
    let numbers = [PARTITION_AT, PARTITION_BYTES].map(|bytes| (bytes / SECTOR) as u32);
    let mut entry = [0; 16];
    entry[0] = ACTIVE;
    entry[4] = LINUX;
    entry[8..12].copy_from_slice(&numbers[0].to_le_bytes());
    entry[12..].copy_from_slice(&numbers[1].to_le_bytes());
    sector[TABLE_AT..SIGNATURE_AT].fill(0);
    sector[TABLE_AT..TABLE_AT + entry.len()].copy_from_slice(&entry);
    sector[SIGNATURE_AT..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

/// The boot loader, with what it is to do.
fn loader(dir: &Path, words: &str) -> Vec<u8> {
    let (script, made) = (dir.join("boot.cfg"), dir.join("boot.core"));
    let text = format!(
        "set root=(hd0,msdos1)\n\
         linux /boot/kernel {KERNEL_WORDS} {words}\n\
         initrd /boot/initramfs\n\
         boot\n"
    );
    fs::write(&script, text).expect("write a script");
    let (script, made) = (script.to_string_lossy(), made.to_string_lossy());
    let mut arguments = vec!["-O", "i386-pc", "-d", PARTS, "-p", "/boot", "-o"];
    arguments.extend([&*made, "-c", &*script]);
    arguments.extend(["biosdisk", "part_msdos", "ext2", "linux"]);
    run("grub-mkimage", &arguments);
    fs::read(&*made).expect("read the boot loader")
}

fn partition(machine: &Machine, dir: &Path) -> PathBuf {
    let root = dir.join("root");
    for part in ["boot", "bin", "proc", "sys", "dev"] {
        fs::create_dir_all(root.join(part)).expect("make a directory");
    }
    let [kernel, initramfs] = machine.files();
    fs::copy(kernel, root.join("boot/kernel")).expect("copy the kernel");
    fs::copy(initramfs, root.join("boot/initramfs")).expect("copy the initramfs");
    Machine::programs(&root);
    let partition = dir.join("root.ext4");
    Machine::image_of(&root, &partition, PARTITION_BYTES);
    partition
}
