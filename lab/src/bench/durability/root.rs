//! The disk of a guest in which the workloads run.
//!
//! Owns the image: ext4 with a journal, a file for swap, python3 and the programs of the workloads.
//! Always true: what is missing on this machine is named with its package; what the user names is
//! only read. By default the root is made of this machine's own python3 with its libraries, so that
//! nothing is downloaded. Deliberately absent: a distribution around it.

use crate::guest::kit::Kit;
use crate::place::Place;
use host::error::{Error, Result, cause};
use split::programs;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The programs of the workloads, for every Linux guest.
pub const PROGRAMS: [(&str, &str); 3] = [
    ("web.py", include_str!("../../../guest/web.py")),
    ("mail.py", include_str!("../../../guest/mail.py")),
    ("office.py", include_str!("../../../guest/office.py")),
];
/// Sparse: the system takes 40 MiB, swap 128 MiB, a run less than 100 MiB.
const DISK_BYTES: u64 = 1 << 30;
const HOME: &str = concat!("/", "home/user");
const SWAP_BYTES: usize = 128 << 20;
/// Where our own files are on the disk.
const OWN: &str = "/tenuto";
const TABLE: &str = "/dev/vda / ext4 defaults 0 1\n/swapfile none swap sw 0 0\n";
/// What a guest needs beside python: busybox knows no file systems by their labels.
const MORE_PROGRAMS: [(&str, &str); 2] = [("mount", "mount"), ("swapon", "mount")];
const PLACES: [&str; 4] = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];
/// Prints the files of an interpreter and of all modules that the workloads load: a short run of
/// each finds those too that are loaded late.
const LIST: &str = "import sys, os, contextlib, io, encodings.ascii, encodings.latin_1
place = sys.argv[1]
sys.path.insert(0, place)
sys.dont_write_bytecode = True
import web, mail, office
short = ['program', '--home', os.path.join(place, 'home'), '--pause', '0']
for program, once in ((web, '--pages'), (mail, '--mails'), (office, '--saves')):
    sys.argv = [*short, once, '1']
    with contextlib.redirect_stdout(io.StringIO()):
        program.main()
print(os.path.realpath(sys.executable))
for module in list(sys.modules.values()):
    for name in (getattr(module, '__file__', None), getattr(module, '__cached__', None)):
        if name and not name.startswith(place) and os.path.isfile(name):
            print(name)
";

/// What the guest does: programs that it is told on its console, one line each.
const WORK: &str = r#"#!/tenuto/busybox sh
export PATH=/tenuto:/usr/sbin:/usr/bin:/sbin:/bin HOME=ITS_HOME PYTHONDONTWRITEBYTECODE=1
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
busybox mount -t tmpfs run /run
busybox stty -echo
say() { echo "tenuto: $*"; }
# By its path: the shell has programs of these names, which know less.
all() {
    program=/usr$1; [ -x $program ] || program=$1
    $program -a >/run/said 2>&1 || say "wrong $program -a: $(busybox tail -n 1 /run/said)"
}
all /bin/mount
all /sbin/swapon
say "ready $(busybox awk '/SwapTotal/ { print $2 }' /proc/meminfo)"
while read -r verb program arguments; do
    [ "$verb" = run ] || break
    INTERPRETER /tenuto/$program.py $arguments >/run/out 2>/run/said
    code=$?
    busybox sync
    case $code in
    0) say "did $(busybox tail -n 1 /run/out)" ;;
    *) say "wrong $program.py ended with $code: $(busybox tail -n 1 /run/said)" ;;
    esac
done
busybox swapoff -a
busybox awk '$3 == "ext4" && $2 != "/" { print $2 }' /proc/mounts | busybox sort -r |
    while read -r place; do busybox umount $place; done
busybox mount -o remount,ro / && say unmounted
busybox poweroff -f
"#;

fn failed(error: std::io::Error) -> Error {
    Error::failed(format!("the disk of the guest: {}", cause(&error)))
}

/// Runs a program of this machine to its end.
pub fn run(package: &'static str, command: &mut Command) -> Result<Output> {
    let done = programs::run(package, command);
    done.map_err(|failure| Error::failed(format!("the disk of the guest: {failure}")))
}

/// Makes the disk; its root is a directory or a raw image with an ext4 file system, where the user
/// names one.
pub fn make(kit: &Kit, place: &Place, own: Option<&Path>, image: &Path) -> Result<()> {
    let files = place.path("guest-files");
    fs::create_dir_all(&files).map_err(failed)?;
    let mut python = "python3".to_owned();
    match own {
        Some(own) if own.is_dir() => format(kit, own, image)?,
        Some(own) if own.is_file() => {
            let mut copy = Command::new("cp");
            copy.arg("--sparse=always").arg(own).arg(image);
            run("coreutils", &mut copy)?;
        }
        Some(own) => {
            let own = own.display();
            return Err(Error::usage(format!(
                "--guest {own}: is not there; name the directory of a root file system, or the raw \
                 image of one with ext4"
            )));
        }
        None => {
            let root = place.path("guest-root");
            python = fill(&root, &files)?;
            format(kit, &root, image)?;
            // It goes away with its place; this keeps the peak low.
            let _ = fs::remove_dir_all(&root);
        }
    }
    add(kit, &files, &python, image)
}

fn work(python: &str) -> String {
    let work = WORK.replace("INTERPRETER", python);
    work.replace("ITS_HOME", HOME)
}

fn format(kit: &Kit, root: &Path, image: &Path) -> Result<()> {
    let mut mke2fs = Command::new(&kit.mke2fs);
    mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-d"]);
    mke2fs.arg(root).arg(image);
    mke2fs.arg(format!("{}k", DISK_BYTES >> 10));
    run("e2fsprogs", &mut mke2fs)?;
    Ok(())
}

/// A root with this machine's python and its libraries; returns where python is.
fn fill(root: &Path, files: &Path) -> Result<String> {
    for (name, text) in PROGRAMS {
        fs::write(files.join(name), text).map_err(failed)?;
    }
    let found = find("python3", "python3")?;
    let mut list = Command::new(&found);
    list.args(["-I", "-c", LIST]).arg(files);
    let listed = run("python3, libpython3-stdlib", &mut list)?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut wanted: Vec<String> = listed.lines().map(str::to_owned).collect();
    let python = wanted.first().cloned().unwrap_or_default();
    for (name, package) in MORE_PROGRAMS {
        wanted.push(find(name, package)?.display().to_string());
    }
    let own: Vec<String> = wanted.clone();
    wanted.push(found.display().to_string());
    for file in own
        .iter()
        .filter(|it| !it.ends_with(".py") && !it.ends_with(".pyc"))
    {
        let needs = run("libc-bin", Command::new("ldd").arg(file))?;
        let needs = String::from_utf8_lossy(&needs.stdout).into_owned();
        let needs = needs.split_whitespace().filter(|it| it.starts_with('/'));
        wanted.extend(needs.map(str::to_owned));
    }
    wanted.sort();
    wanted.dedup();
    for file in &wanted {
        copy(Path::new(file), root).map_err(failed)?;
    }
    Ok(python)
}

/// Puts a file at its place below another root. Its time too: a compiled module is only used with
/// that of its text.
fn copy(file: &Path, root: &Path) -> std::io::Result<()> {
    let to = root.join(file.strip_prefix("/").unwrap_or(file));
    fs::create_dir_all(to.parent().unwrap_or(root))?;
    fs::copy(file, &to)?;
    let modified = fs::metadata(file)?.modified()?;
    let copied = fs::File::options().append(true).open(&to)?;
    copied.set_modified(modified)
}

fn find(name: &str, package: &str) -> Result<PathBuf> {
    let mut places = PLACES.iter().map(|place| Path::new(place).join(name));
    let found = places.find(|it| it.is_file());
    found.ok_or_else(|| {
        Error::failed(format!(
            "{name} is in none of {}; `apt install {package}` has it",
            PLACES.join(", ")
        ))
    })
}

/// Adds our own files, swap and the table of file systems to the image.
fn add(kit: &Kit, files: &Path, python: &str, image: &Path) -> Result<()> {
    let place = |name: &str| files.join(name);
    for (name, text) in PROGRAMS {
        fs::write(place(name), text).map_err(failed)?;
    }
    fs::write(place("work"), work(python)).map_err(failed)?;
    fs::write(place("fstab"), TABLE).map_err(failed)?;
    fs::copy(&kit.busybox, place("busybox")).map_err(failed)?;
    // A swap file has no holes, and zeros would become some.
    fs::write(place("swapfile"), vec![0xA5; SWAP_BYTES]).map_err(failed)?;
    run(
        "util-linux",
        Command::new("mkswap").arg("-q").arg(place("swapfile")),
    )?;
    for (name, mode) in [("work", 0o755), ("busybox", 0o755), ("swapfile", 0o600)] {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(place(name), mode).map_err(failed)?;
    }
    let mut orders = String::new();
    // What is not there yet is refused, and nothing is lost by that.
    let system = [
        "/dev", "/proc", "/sys", "/run", "/etc", "/tmp", "/var", "/var/tmp",
    ];
    for directory in [&system[..], &["/home", HOME, OWN]].concat() {
        orders += &format!("mkdir {directory}\n");
    }
    for of_user in [".cache", ".config", ".local", ".local/share", "Documents"] {
        orders += &format!("mkdir {HOME}/{of_user}\n");
    }
    orders += "rm /work\nrm /swapfile\nrm /etc/fstab\n";
    let mut write = |directory: &str, name: &str| {
        let from = place(name);
        orders += &format!("cd {directory}\nwrite \"{}\" {name}\n", from.display());
    };
    for (directory, name) in [("/", "work"), ("/", "swapfile"), ("/etc", "fstab")] {
        write(directory, name);
    }
    for name in ["busybox", "web.py", "mail.py", "office.py"] {
        write(OWN, name);
    }
    fs::write(place("orders"), orders).map_err(failed)?;
    let mut debugfs = Command::new("debugfs");
    debugfs.arg("-w").arg("-f").arg(place("orders")).arg(image);
    run("e2fsprogs", &mut debugfs)?;
    let _ = fs::remove_dir_all(files);
    is_whole(image)
}

/// Whether all that the guest needs is on its disk: `debugfs` ends well also where a line failed.
fn is_whole(image: &Path) -> Result<()> {
    let own = [
        "/work",
        "/swapfile",
        "/etc/fstab",
        "/tenuto/office.py",
        "/tenuto/busybox",
    ];
    for path in own {
        if !has(image, path)? {
            return Err(Error::failed(format!(
                "the disk of the guest: {path} could not be written; name with --guest a root with \
                 ext4 and 300 MiB free"
            )));
        }
    }
    for (name, package) in [
        ("python3", "python3"),
        ("mount", "mount"),
        ("swapon", "mount"),
    ] {
        let places = PLACES.iter().map(|place| format!("{place}/{name}"));
        let mut found = false;
        for path in places {
            found = found || has(image, &path)?;
        }
        if !found {
            return Err(Error::failed(format!(
                "the disk of the guest: has no {name} in {}; install {package} in the root that \
                 --guest names",
                PLACES.join(", ")
            )));
        }
    }
    Ok(())
}

/// Whether there is something of that name.
fn has(image: &Path, path: &str) -> Result<bool> {
    let mut stat = Command::new("debugfs");
    stat.arg("-R").arg(format!("stat {path}")).arg(image);
    let said = run("e2fsprogs", &mut stat)?;
    Ok(String::from_utf8_lossy(&said.stdout).contains("Type:"))
}
