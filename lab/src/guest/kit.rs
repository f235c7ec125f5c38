//! What this machine has to boot guests with.
//!
//! Owns the search for QEMU, a readable kernel with its drivers, a static busybox and mke2fs.
//! Always true: nothing is started and nothing is made here but the drivers' bytes, decompressed
//! by the program that belongs to them; what is missing is said in one line. Deliberately absent:
//! any attempt to get what is missing.

use super::modules;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a guest's disk needs; in a kernel for virtual machines most of it is built in.
const DRIVERS: [&str; 3] = ["virtio_pci", "virtio_blk", "ext4"];
/// Loaded where it is a module; newer kernels have no module of this name.
const DRIVERS_IF_THERE: [&str; 1] = ["crc32c_generic"];
/// Where programs of administrators are that a user's PATH may lack.
const MORE_PLACES: [&str; 2] = ["/usr/sbin", "/sbin"];
/// The name of its interpreter stands in the first page of a program that is not static.
const HEAD_BYTES: usize = 4096;

pub struct Kit {
    pub qemu: PathBuf,
    pub kernel: PathBuf,
    pub busybox: PathBuf,
    pub mke2fs: PathBuf,
    /// Name and content, in the order in which they are loaded.
    pub modules: Vec<(String, Vec<u8>)>,
}

impl Kit {
    /// What is here, or what is missing.
    pub fn find(kernel: Option<&Path>) -> Result<Kit, String> {
        let qemu = match std::env::consts::ARCH {
            "aarch64" => "qemu-system-aarch64",
            _ => "qemu-system-x86_64",
        };
        let qemu = program(qemu, &[]).ok_or(format!("{qemu} is not on the PATH"))?;
        let busybox = program("busybox", &["/bin"]).ok_or("busybox is not installed")?;
        if !is_static(&busybox) {
            return Err(format!("{} is not linked statically", busybox.display()));
        }
        let mke2fs = program("mke2fs", &MORE_PLACES).ok_or("mke2fs is not installed")?;
        let (kernel, modules) = match kernel {
            Some(kernel) => with_drivers(kernel)?,
            None => newest()?,
        };
        Ok(Kit {
            qemu,
            kernel,
            busybox,
            mke2fs,
            modules,
        })
    }

    /// The kernel as its file is called.
    pub fn kernel_name(&self) -> String {
        let name = self.kernel.file_name().unwrap_or(self.kernel.as_os_str());
        name.to_string_lossy().into_owned()
    }
}

/// A program on the user's PATH, or at one of these places.
fn program(name: &str, places: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Of an unset PATH nothing may follow: an empty part would mean this directory.
    let own = std::env::split_paths(&path).filter(|place| place.is_absolute());
    let all = own.chain(places.iter().map(PathBuf::from));
    all.map(|place| place.join(name)).find(|it| it.is_file())
}

fn is_static(program: &Path) -> bool {
    let Ok(bytes) = std::fs::read(program) else {
        return false;
    };
    let head = &bytes[..bytes.len().min(HEAD_BYTES)];
    !head.windows(4).any(|word| word == b"/ld-")
}

type Booted = (PathBuf, Vec<(String, Vec<u8>)>);

/// The newest kernel in its usual places that can be read and has its drivers.
fn newest() -> Result<Booted, String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/boot").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("vmlinuz-") && !name.contains("rescue") {
            found.push(entry.path());
        }
    }
    let libraries = std::fs::read_dir("/lib/modules");
    for entry in libraries.into_iter().flatten().flatten() {
        let kernel = entry.path().join("vmlinuz");
        if kernel.is_file() {
            found.push(kernel);
        }
    }
    found.sort_by_key(|path| age_key(&path.to_string_lossy()));
    let mut why = "there is no kernel in /boot; name one with --kernel".to_owned();
    for kernel in found.into_iter().rev() {
        match with_drivers(&kernel) {
            Ok(found) => return Ok(found),
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// The numbers in a name, so that 6.10 comes after 6.9.
fn age_key(name: &str) -> Vec<u64> {
    let parts = name.split(|letter: char| !letter.is_ascii_digit());
    parts.filter_map(|part| part.parse().ok()).collect()
}

/// The version in a kernel's path: `vmlinuz-VERSION` or `VERSION/vmlinuz`.
fn version(kernel: &Path) -> Option<String> {
    let name = kernel.file_name()?.to_string_lossy().into_owned();
    if let Some((_, version)) = name.split_once('-') {
        return Some(version.to_owned());
    }
    let parent = kernel.parent()?.file_name()?.to_string_lossy().into_owned();
    Path::new("/lib/modules")
        .join(&parent)
        .is_dir()
        .then_some(parent)
}

fn with_drivers(kernel: &Path) -> Result<Booted, String> {
    let shown = kernel.display();
    std::fs::File::open(kernel)
        .map_err(|error| format!("kernel {shown}: {}", host::error::cause(&error)))?;
    // One that somebody built for guests, under a name of its own, has its drivers inside.
    let Some(directory) = version(kernel).map(|it| Path::new("/lib/modules").join(it)) else {
        return Ok((kernel.to_owned(), Vec::new()));
    };
    if !directory.is_dir() {
        return Ok((kernel.to_owned(), Vec::new()));
    }
    let text = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap_or_default();
    let index = modules::Index::new(&text("modules.dep"), &text("modules.builtin"));
    let mut paths = index
        .load_order(&DRIVERS)
        .map_err(|driver| format!("kernel {shown}: has no driver {driver}"))?;
    for driver in DRIVERS_IF_THERE {
        // In front: it is what others ask for by name while they start.
        if let Ok(more) = index.load_order(&[driver]) {
            let more: Vec<String> = more.into_iter().filter(|it| !paths.contains(it)).collect();
            paths.splice(0..0, more);
        }
    }
    let loaded: Result<Vec<_>, String> = paths
        .iter()
        .map(|path| {
            let bytes = driver_bytes(&directory.join(path))?;
            Ok((modules::name(path).to_owned(), bytes))
        })
        .collect();
    Ok((kernel.to_owned(), loaded?))
}

/// A driver as the guest loads it, decompressed.
fn driver_bytes(path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let ending = path.extension().unwrap_or_default().to_string_lossy();
    let unpack = match ending.as_ref() {
        "xz" => "xz",
        "zst" => "zstd",
        "gz" => "gzip",
        _ => {
            let read = std::fs::read(path);
            return read.map_err(|error| format!("{shown}: {}", host::error::cause(&error)));
        }
    };
    let unpack = program(unpack, &["/bin"])
        .ok_or(format!("{unpack} is not installed, and {shown} needs it"))?;
    let output = Command::new(unpack)
        .arg("-dc")
        .arg(path)
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) if output.status.success() => Ok(output.stdout),
        _ => Err(format!("{shown}: cannot be decompressed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_kernel_is_in_its_path() {
        let of = |path: &str| version(Path::new(path));
        assert_eq!(
            of("/boot/vmlinuz-6.1.0-9-amd64").as_deref(),
            Some("6.1.0-9-amd64")
        );
        assert_eq!(of("/srv/kernels/bzImage"), None);
        assert_eq!(of("/"), None);
        assert!(age_key("vmlinuz-6.10.1") > age_key("vmlinuz-6.9.12"));
    }
}
