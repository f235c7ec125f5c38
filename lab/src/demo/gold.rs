//! The image that guests boot from: an ext4 file system with a small system on it.
//!
//! Owns its files, the list of their checksums, and what the guest does with them. Always true:
//! the list is read back from the directory before the image is made, so a guest that finds a
//! wrong sum was given wrong bytes; the files depend on the seed only. Deliberately absent: a
//! distribution; what counts here is that many small files are read, as a boot does.

use crate::guest::kit::Kit;
use host::error::{Error, Result, cause};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use workload::rng::Rng;

/// The root of a guest, sparse.
pub const IMAGE_BYTES: u64 = 96 << 20;
/// Files that are read at a boot, 16 MiB together: a small system, so that it ends soon where
/// instructions are emulated.
const FILES: usize = 500;
const SIZES: [usize; 7] = [8_000, 12_000, 16_000, 16_000, 30_000, 48_000, 90_000];
const DIRECTORIES: usize = 32;

/// What the guest does once its root is there. It is told on the console when to go on.
/// `sync` makes each write of `dd` one that waits for its data and the journal, as a database's.
const WORK: &str = r#"#!/bin/busybox sh
export PATH=/bin
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
busybox mount -t tmpfs tmp /tmp
busybox stty -echo
say() { echo "tenuto: $*"; }
up() { read -r up rest </proc/uptime; up=${up%.*}; }
put() { busybox dd if=/tmp/blob "$@" 2>/dev/null; }
cd /system || busybox poweroff -f
check() {
    busybox md5sum -c "$1" >/tmp/sums-found 2>&1 && return
    say "wrong $(busybox grep -v OK /tmp/sums-found | busybox head -n 1)"
}
check /manifest
say "booted $(busybox wc -l </manifest)"
cd /data
read -r verb rounds seconds
busybox dd if=/dev/urandom of=/tmp/blob bs=64k count=16 2>/dev/null
busybox dd if=/dev/zero of=log bs=64k count=4 conv=fsync 2>/dev/null
busybox mount -o remount,sync /
up; end=$((up + seconds)); round=0
while [ $round -lt $rounds ]; do
    up; [ $up -lt $end ] || break
    put of=file-$round bs=16k skip=$((round * 7 % 60)) count=3 conv=fsync
    put of=log bs=4k skip=$((round % 200)) seek=$((round * 16 % 48)) count=16 conv=notrunc,fsync
    round=$((round + 1)); say "round $round"
done
say "worked $round"
busybox mount -o remount,async /
busybox md5sum * >/tmp/sums
busybox mount -o remount,ro /
echo 3 >/proc/sys/vm/drop_caches
check /tmp/sums
say "verified $(busybox wc -l </tmp/sums)"
read -r verb
if [ "$verb" = sum ]; then
    echo 3 >/proc/sys/vm/drop_caches
    say "sum $(busybox sha256sum </dev/vda | busybox cut -d ' ' -f 1)"
fi
busybox poweroff -f
"#;

/// Makes the image below `directory`.
pub fn make(kit: &Kit, seed: u64, directory: &Path, image: &Path) -> Result<()> {
    let root = directory.join("gold-root");
    let made = fill(kit, seed, &root);
    made.map_err(|error| Error::failed(format!("{}: {}", root.display(), cause(&error))))?;
    let formatted = format(kit, &root, image);
    // The directory goes away with its place; this keeps the peak low.
    let _ = fs::remove_dir_all(&root);
    formatted
}

fn fill(kit: &Kit, seed: u64, root: &Path) -> std::io::Result<()> {
    for part in ["bin", "data", "dev", "proc", "sys", "system", "tmp"] {
        fs::create_dir_all(root.join(part))?;
    }
    fs::copy(&kit.busybox, root.join("bin/busybox"))?;
    fs::write(root.join("work"), WORK)?;
    fs::set_permissions(root.join("work"), fs::Permissions::from_mode(0o755))?;
    let mut rng = Rng::new(seed);
    let mut names = Vec::new();
    for directory in 0..DIRECTORIES {
        fs::create_dir_all(root.join(format!("system/{directory:02}")))?;
    }
    for number in 0..FILES {
        let length = SIZES[rng.below(SIZES.len() as u64) as usize];
        let words = (0..length.div_ceil(8)).flat_map(|_| rng.word().to_le_bytes());
        let bytes: Vec<u8> = words.take(length).collect();
        let name = format!("{:02}/file-{number}", number % DIRECTORIES);
        fs::write(root.join("system").join(&name), bytes)?;
        names.push(name);
    }
    // A boot reads files as they are needed, not as they lie.
    rng.shuffle(&mut names);
    let sums = Command::new(&kit.busybox)
        .arg("md5sum")
        .args(&names)
        .current_dir(root.join("system"))
        .stdin(Stdio::null())
        .output()?;
    if !sums.status.success() {
        return Err(std::io::Error::other("busybox md5sum failed"));
    }
    fs::write(root.join("manifest"), sums.stdout)
}

fn format(kit: &Kit, root: &Path, image: &Path) -> Result<()> {
    let output = Command::new(&kit.mke2fs)
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-d"])
        .arg(root)
        .arg(image)
        .arg(format!("{}k", IMAGE_BYTES >> 10))
        .stdin(Stdio::null())
        .output();
    let failed = |why: &str| Error::failed(format!("{}: {why}", kit.mke2fs.display()));
    let output = output.map_err(|error| failed(&cause(&error)))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(())
}

/// The checksum of a whole disk, as the guest says it.
pub fn sum(kit: &Kit, image: &Path) -> Result<String> {
    let failed = |why: String| Error::failed(format!("{}: {why}", image.display()));
    let output = Command::new(&kit.busybox)
        .arg("sha256sum")
        .arg(image)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(cause(&error)))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.split_whitespace().next() {
        Some(sum) if output.status.success() => Ok(sum.to_owned()),
        _ => Err(failed("its checksum cannot be read".into())),
    }
}
