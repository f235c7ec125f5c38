//! A real Linux guest under QEMU, without acceleration, with its root on a given disk.
//!
//! Owns the making of the initramfs and of the root file system, and the run of one guest to its
//! power-off. Always true: what the guest does is a script on its own root file system, chosen by
//! the kernel's command line, and it says on the serial console what it found; a guest that says
//! nothing, or does not power off, is a failure with its console attached.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::{binary, have, run, skip};

/// 6 to 8 seconds alone; two emulated guests and a build may share two cores.
const RUN_TIMEOUT: Duration = Duration::from_secs(480);
/// What every guest's kernel is told. It counts ticks when it starts, and without the last word
/// panics when an emulated timer was late because the host was busy.
/// Its kernel does not test its ciphers: under emulation on a busy machine a processor can hang in
/// that for minutes. Nor does it say of a processor that had no turn that it is stuck: what hangs
/// is noticed by the test, with more patience.
pub const KERNEL_WORDS: &str = "console=ttyS0 quiet panic=-1 no_timer_check cryptomgr.notests \
                                nosoftlockup sysctl.kernel.hung_task_timeout_secs=480";
/// In this order: each needs the ones before it.
const MODULES: [&str; 6] = [
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci",
    "drivers/block/virtio_blk",
];
/// For a second file system; the first is part of the kernel.
const MODULES_OF_XFS: [&str; 2] = ["lib/libcrc32c", "fs/xfs/xfs"];

const INIT: &str = "#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /root
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
for module in MODULES; do /bin/busybox insmod /modules/$module.ko; done
";

/// A guest whose root is its disk.
const ROOT_ON_DISK: &str = "/bin/busybox mount -t ext4 /dev/vda /root || /bin/busybox poweroff -f
exec /bin/busybox switch_root /root /work
";

/// A guest that needs no disk: [`inside`](super::inside) in the initramfs.
const ROOT_IN_RAM: &str = "exec /bin/inside
";

/// A guest that has the same on the first partition of its disk.
const ROOT_ON_PARTITION: &str = "/bin/busybox mount -t ext4 /dev/vda1 /root \\
    || /bin/busybox poweroff -f
for part in proc sys dev; do /bin/busybox mount --move /$part root/$part; done
exec /bin/busybox switch_root /root /bin/inside
";

/// A guest that does what the test types on its console, line by line.
const SHELL: &str = "export PATH=/bin
/bin/busybox --install -s /bin
# The kernel says nothing between our words but its last ones.
dmesg -n 1
ip link set lo up
. /tools
echo 'guest: ready'
while read -r line; do
    eval \"$line\" >/out 2>&1
    code=$?
    sed 's/^/guest: got /' /out
    echo \"guest: did $code\"
done
";

/// What the guest does, by `tenuto.step=`. `check` reads through the block device with caches
/// dropped, so that the bytes come from the disk.
const WORK: &str = "#!/bin/busybox sh
export PATH=/bin
busybox mkdir -p /proc /sys /dev
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
for word in $(busybox cat /proc/cmdline); do
    case $word in tenuto.step=*) step=${word#tenuto.step=} ;; esac
done
say() { echo \"guest: $*\"; }
say \"write-cache $(busybox cat /sys/block/vda/queue/write_cache)\"
fill() {
    for number in $(busybox seq 1 $1); do
        busybox dd if=/dev/urandom of=/data/$2-$number bs=61000 count=$number conv=fsync 2>/dev/null
    done
}
sums() { (cd /data && busybox find . -type f ! -name sums | busybox sort \\
    | busybox xargs busybox sha256sum); }
case $step in
write)
    busybox mkdir -p /data
    fill 16 first
    sums > /data/sums
    busybox rm -f /data/first-3 /data/first-7
    busybox sync
    busybox fstrim / 2>/dev/null && say trimmed
    fill 5 second
    sums > /data/sums && busybox sync && say written
    ;;
check)
    busybox mount -o remount,ro /
    echo 3 > /proc/sys/vm/drop_caches
    (cd /data && busybox sha256sum -c sums >/dev/null 2>&1) \\
        && say \"same $(busybox wc -l < /data/sums)\"
    ;;
linger)
    busybox mkdir -p /data
    fill 4 first
    sums > /data/sums && busybox sync
    number=0
    while :; do
        echo 3 > /proc/sys/vm/drop_caches
        (cd /data && busybox sha256sum -c sums >/dev/null 2>&1) \\
            && say \"whole $number\" || say torn
        number=$((number + 1))
        busybox sleep 1
    done
    ;;
clean)
    busybox test -e /data || say nothing-there
    ;;
again)
    # The second disk remembers over the reboot that there was one.
    if busybox head -c 8 /dev/vdb | busybox grep -q rebooted; then
        busybox test -e /data && say still-there || say nothing-there
    else
        busybox mkdir -p /data
        fill 4 first
        busybox sync && say written
        echo rebooted | busybox dd of=/dev/vdb conv=fsync,notrunc 2>/dev/null
        busybox reboot -f
    fi
    ;;
esac
busybox mount -o remount,ro / && say unmounted
busybox poweroff -f
";

/// Kernel and initramfs for guests, made once per test.
pub struct Machine {
    pub(super) kernel: PathBuf,
    pub(super) initramfs: PathBuf,
}

/// The newest kernel of the cloud flavour that is here, with its modules.
fn kernel() -> Option<(PathBuf, PathBuf)> {
    let mut found: Vec<_> = std::fs::read_dir("/boot")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_prefix("vmlinuz-").map(str::to_owned))
        .map(|version| {
            (
                PathBuf::from(format!("/boot/vmlinuz-{version}")),
                PathBuf::from(format!("/lib/modules/{version}/kernel")),
            )
        })
        .filter(|(kernel, modules)| {
            std::fs::File::open(kernel).is_ok()
                && modules.join("drivers/block/virtio_blk.ko").is_file()
        })
        .collect();
    found.sort();
    found.pop()
}

impl Machine {
    /// `None`, with the skip noted, where QEMU or a readable kernel is missing.
    pub fn new(test: &str, dir: &Path) -> Option<Machine> {
        Machine::with(test, dir, ROOT_ON_DISK, &[])
    }

    /// A machine that starts the program [`inside`](super::inside) and has both file systems.
    pub fn with_program(test: &str, dir: &Path) -> Option<Machine> {
        if !have(test, &["rustc", "mkfs.xfs"]) {
            return None;
        }
        Machine::programs(&dir.join("initramfs"));
        Machine::with(test, dir, ROOT_IN_RAM, &MODULES_OF_XFS)
    }

    /// A machine that finds that program on its disk.
    pub fn with_program_on_disk(test: &str, dir: &Path) -> Option<Machine> {
        if !have(test, &["rustc"]) {
            return None;
        }
        Machine::with(test, dir, ROOT_ON_PARTITION, &[])
    }

    /// A machine with a shell on its console, which knows the words of `tools`, beside what is
    /// already in the initramfs to be; these modules lie there to be loaded.
    pub fn with_shell(test: &str, dir: &Path, tools: &str, packed: &[&str]) -> Option<Machine> {
        let root = dir.join("initramfs");
        std::fs::create_dir_all(root.join("modules")).expect("make a directory");
        std::fs::write(root.join("tools"), tools).expect("write a script");
        // Whether there is a kernel at all is looked at below.
        let modules = kernel().map(|(_, modules)| modules).unwrap_or_default();
        for module in packed {
            let from = modules.join(format!("{module}.ko"));
            if !from.is_file() {
                skip(test, &format!("no kernel with {module} in /boot"));
                return None;
            }
            let name = from.file_name().expect("a file name");
            std::fs::copy(&from, root.join("modules").join(name)).expect("copy a module");
        }
        Machine::with(test, dir, SHELL, &[])
    }

    /// What runs in a guest, in a root file system to be.
    pub fn programs(root: &Path) {
        let place = root.join("bin");
        std::fs::create_dir_all(&place).expect("make a directory");
        copy_busybox(root);
        std::fs::write(place.join("inside"), program()).expect("copy the program");
        executable(&place.join("inside"));
    }

    fn with(test: &str, dir: &Path, then: &str, more: &[&str]) -> Option<Machine> {
        if !have(
            test,
            &[
                "qemu-system-x86_64",
                "qemu-img",
                "cpio",
                "mkfs.ext4",
                "busybox",
            ],
        ) {
            return None;
        }
        let Some((kernel, modules)) = kernel() else {
            skip(test, "no readable kernel with virtio modules in /boot");
            return None;
        };
        let root = dir.join("initramfs");
        for part in ["bin", "modules"] {
            std::fs::create_dir_all(root.join(part)).expect("make a directory");
        }
        copy_busybox(&root);
        let mut names = Vec::new();
        for module in MODULES.iter().chain(more) {
            let from = modules.join(format!("{module}.ko"));
            let name = from
                .file_stem()
                .expect("a file name")
                .to_string_lossy()
                .into_owned();
            std::fs::copy(&from, root.join(format!("modules/{name}.ko"))).expect("copy a module");
            names.push(name);
        }
        let init = INIT.replace("MODULES", &names.join(" "));
        script(&root.join("init"), &format!("{init}{then}"));
        let initramfs = dir.join("initramfs.cpio");
        let command = format!(
            "cd '{}' && find . | cpio -o -H newc --quiet > '{}'",
            root.display(),
            initramfs.display()
        );
        run("sh", &["-c", &command]);
        Some(Machine { kernel, initramfs })
    }

    /// Makes the raw image of a root file system on which guests of this kind start.
    pub fn root_image(&self, dir: &Path, image: &Path, bytes: u64) {
        let root = dir.join("root");
        std::fs::create_dir_all(root.join("bin")).expect("make a directory");
        copy_busybox(&root);
        script(&root.join("work"), WORK);
        Machine::image_of(&root, image, bytes);
    }

    /// A program in a root file system to be.
    pub fn program(&self, root: &Path, name: &str, text: &str) {
        script(&root.join(name), text);
    }

    /// Makes the raw image of a root file system.
    pub fn image_of(root: &Path, image: &Path, bytes: u64) {
        std::fs::File::create(image)
            .and_then(|file| file.set_len(bytes))
            .expect("create the image");
        run(
            "mkfs.ext4",
            &[
                "-q",
                "-F",
                "-b",
                "4096",
                "-d",
                &root.to_string_lossy(),
                &image.to_string_lossy(),
            ],
        );
    }

    /// Kernel and initramfs, for those who start the guest themselves.
    pub fn files(&self) -> [&Path; 2] {
        [&self.kernel, &self.initramfs]
    }

    /// Boots from `drive` (a QEMU URI of a raw disk), does one step, and waits for the power-off.
    /// What the guest said, one line each.
    pub fn run(&self, drive: &str, step: &str) -> Vec<String> {
        let drive = format!("if=none,id=disk,format=raw,discard=unmap,file={drive}");
        let disk = ["-drive", &drive, "-device", "virtio-blk-pci,drive=disk"];
        self.run_with(&disk, step)
    }

    /// The same with the arguments that give the disk to QEMU.
    pub fn run_with(&self, disk: &[&str], step: &str) -> Vec<String> {
        self.run_machine(&["-no-reboot"], disk, step)
    }

    /// The same with other arguments of the machine; without `-no-reboot` it may start again.
    pub fn run_machine(&self, machine: &[&str], disk: &[&str], step: &str) -> Vec<String> {
        self.run_for(RUN_TIMEOUT, machine, disk, step)
    }

    /// The same for a guest that has more to do.
    pub fn run_for(
        &self,
        patience: Duration,
        machine: &[&str],
        disk: &[&str],
        step: &str,
    ) -> Vec<String> {
        let mut child = Command::new("qemu-system-x86_64")
            .args([
                "-accel",
                "tcg",
                "-m",
                "256",
                "-nodefaults",
                "-display",
                "none",
            ])
            .args(["-serial", "stdio"])
            .args(machine)
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&self.initramfs)
            .arg("-append")
            .arg(format!("{KERNEL_WORDS} tenuto.step={step}"))
            .args(disk)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("start QEMU");
        let mut pipe = child.stdout.take().expect("a pipe");
        let console = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // What was said before an error is still worth showing.
            let _ = pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let start = Instant::now();
        let mut in_time = true;
        while child.try_wait().expect("ask for QEMU").is_none() {
            if start.elapsed() > patience {
                in_time = false;
                child.kill().expect("kill QEMU");
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        let console = console.join().expect("the console's thread does not panic");
        assert!(in_time, "the guest did not power off:\n{console}");
        let said: Vec<String> = console
            .lines()
            .filter_map(|line| line.trim().strip_prefix("guest: ").map(str::to_owned))
            .collect();
        assert!(
            said.iter().any(|line| line == "unmounted"),
            "the guest did not come to its end:\n{console}"
        );
        said
    }
}

/// Puts busybox, and the program that is tested with its libraries, in a root file system to be.
pub fn product(root: &Path) {
    std::fs::create_dir_all(root.join("bin")).expect("make a directory");
    copy_busybox(root);
    let (from, to) = (binary(), root.join("bin/tenuto"));
    run("strip", &["-o", &to.to_string_lossy(), &from]);
    libraries(root, &from);
}

/// Puts busybox, and these programs of file systems, in a root file system to be; they are in
/// `e2`, because busybox has names of its own like theirs.
pub fn with_libraries(root: &Path, programs: &[&str]) {
    for part in ["bin", "e2"] {
        std::fs::create_dir_all(root.join(part)).expect("make a directory");
    }
    copy_busybox(root);
    for program in programs {
        let places = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
        let places = places.map(|place| Path::new(place).join(program));
        let from = places.iter().find(|path| path.is_file());
        let from = from.unwrap_or_else(|| panic!("{program} is in none of {places:?}"));
        std::fs::copy(from, root.join("e2").join(program)).expect("copy a program");
        libraries(root, &from.to_string_lossy());
    }
}

/// Puts the libraries of a program in a root file system to be.
pub fn libraries(root: &Path, program: &str) {
    let needs = run("ldd", &[program]);
    for library in needs
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
    {
        let to = root.join(library.trim_start_matches('/'));
        std::fs::create_dir_all(to.parent().expect("a directory")).expect("make a directory");
        std::fs::copy(library, &to).unwrap_or_else(|error| panic!("{library}: {error}"));
    }
}

fn copy_busybox(root: &Path) {
    let place = ["/bin/busybox", "/usr/bin/busybox"]
        .into_iter()
        .find(|path| Path::new(path).is_file())
        .expect("its presence was checked");
    std::fs::copy(place, root.join("bin/busybox")).expect("copy busybox");
}

fn script(path: &Path, text: &str) {
    std::fs::write(path, text).expect("write a script");
    executable(path);
}

fn executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
        .expect("make a file executable");
}

/// The program for a guest that has no libraries, built once.
fn program() -> &'static [u8] {
    static PROGRAM: OnceLock<Vec<u8>> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let dir = tempfile::tempdir().expect("make a directory");
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let common = root.join("tests/outside/common");
        let text = [
            ("stamp", root.join("../workload/src/stamp.rs")),
            ("rng", root.join("../workload/src/rng.rs")),
            ("inside", common.join("inside.rs")),
        ]
        .map(|(name, file)| format!("#[path = {file:?}]\nmod {name};\n"))
        .concat();
        let main = dir.path().join("main.rs");
        std::fs::write(&main, format!("{text}fn main() {{ inside::main() }}\n")).expect("a file");
        let built = dir.path().join("inside");
        let mut arguments = vec!["--edition", "2024", "-A", "dead_code", "-o"];
        let paths = [built.to_string_lossy(), main.to_string_lossy()];
        arguments.extend(paths.iter().map(AsRef::as_ref));
        for option in [
            "opt-level=2",
            "target-feature=+crt-static",
            "panic=abort",
            "strip=symbols",
        ] {
            arguments.extend(["-C", option]);
        }
        run("rustc", &arguments);
        std::fs::read(built).expect("read the program")
    })
}
