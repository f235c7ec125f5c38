//! What front ends believe of the cache of a volume, kept over a restart of the daemon.
//!
//! A front end tells the cache mode once, when its guest changes it, and not again when it has
//! connected anew (QEMU). So what was agreed with it is kept beside the volumes that were added at
//! run time, in one small file for each volume, which is replaced as a whole and synced.
//! Always true: a front end is known by its process, never by its volume alone, because the guest
//! of another one may have another history; what cannot be read is not known. Deliberately absent:
//! what follows (`frontend::vhost_user::handler`).

use crate::cachedev::sync_directory;
use crate::peer::Peer;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Front ends of one volume that are remembered: where its guest runs, and those that it may come
/// back to.
const FRONT_ENDS_MAX: usize = 4;

pub struct Kept {
    path: PathBuf,
    /// The front end: its boot, its process and the start of that. Without one nothing is kept.
    key: Option<String>,
}

impl Kept {
    pub fn new(state_dir: &Path, volume: &str, peer: &Peer) -> Kept {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let key = match peer {
            Peer::Process { pid, started, .. } if *started > 0 && !boot.is_empty() => {
                Some(format!("{} {pid} {started}", boot.trim()))
            }
            _ => None,
        };
        let path = state_dir.join("front-ends").join(volume);
        Kept { path, key }
    }

    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Whether it believes in a write-back cache, if that is known.
    pub fn write_back(&self) -> Option<bool> {
        let key = self.key.as_ref()?;
        let lines = self.lines();
        let mut lines = lines.iter().filter_map(|line| line.rsplit_once(' '));
        match lines.find(|(other, _)| other == key)?.1 {
            "write-back" => Some(true),
            "write-through" => Some(false),
            _ => None,
        }
    }

    /// Returns when it is durable.
    pub fn keep(&self, write_back: bool) -> io::Result<()> {
        let Some(key) = &self.key else {
            return Ok(());
        };
        let directory = self.path.parent().unwrap_or(&self.path);
        if !directory.is_dir() {
            fs::create_dir_all(directory)?;
            sync_directory(directory)?;
        }
        let word = match write_back {
            true => "write-back",
            false => "write-through",
        };
        let of_another = |line: &String| line.rsplit_once(' ').is_some_and(|(it, _)| it != key);
        let others = self.lines().into_iter().filter(of_another);
        let mut lines: Vec<String> = others.collect();
        lines.truncate(FRONT_ENDS_MAX - 1);
        lines.insert(0, format!("{key} {word}"));
        let fresh = self.path.with_file_name(format!(
            "{}.{}.new",
            self.path.file_name().unwrap_or_default().to_string_lossy(),
            key.replace(' ', "-")
        ));
        let mut file = File::create(&fresh)?;
        file.write_all((lines.join("\n") + "\n").as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)?;
        sync_directory(&self.path)
    }
}

/// What is kept of a volume that is removed.
pub fn forget(state_dir: &Path, volume: &str) {
    // It is asked for by no other process again.
    let _ = fs::remove_file(state_dir.join("front-ends").join(volume));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(pid: u32, started: u64) -> Peer {
        let name = String::new();
        Peer::Process { pid, started, name }
    }

    #[test]
    fn what_a_front_end_believes_is_kept_for_its_process_alone() {
        let dir = std::env::temp_dir().join(format!("tenuto-kept-{}", std::process::id()));
        let of = |pid, started| Kept::new(&dir, "disk", &peer(pid, started));
        assert_eq!(of(1, 10).write_back(), None);
        of(1, 10).keep(true).expect("works here");
        of(2, 20).keep(false).expect("works here");
        let known = [of(1, 10), of(2, 20), of(2, 21), of(22, 0)].map(|it| it.write_back());
        assert_eq!(known, [Some(true), Some(false), None, None]);
        of(1, 10).keep(false).expect("works here");
        assert_eq!(of(1, 10).write_back(), Some(false));
        assert_eq!(of(1, 1).write_back(), None, "another start");
        let hidden = Kept::new(&dir, "disk", &Peer::Hidden);
        hidden.keep(true).expect("works here");
        assert_eq!(hidden.write_back(), None);
        // The oldest go.
        (3..6).for_each(|pid| of(pid, 5).keep(true).expect("works here"));
        let known = [of(1, 10), of(2, 20), of(5, 5)].map(|it| it.write_back());
        assert_eq!(known, [Some(false), None, Some(true)]);
        forget(&dir, "disk");
        assert_eq!(of(1, 10).write_back(), None);
        fs::remove_dir_all(&dir).expect("works here");
    }
}
