//! Volumes that were added at run time: one small TOML file each in the state directory.
//!
//! Always true: a file is either the old one or the new one, whatever happens while it is
//! written, and it holds only what was asked for, so that defaults can change under it. The
//! configuration wins for the names it has. Deliberately absent: data; a volume's blocks and
//! its dirty state are in the log, whatever this directory says.

use super::keys;
use super::parse::{self, VOLUMES_MAX};
use super::{Config, Source, Volume};
use crate::error::{Error, Result, cause};
use crate::lock::{self, Mode, Patience};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a killed daemon may take to end.
const EXIT_WAIT: Duration = Duration::from_secs(30);

/// The directory of these files.
pub fn directory(config: &Config) -> PathBuf {
    config.host.state_dir.join("volumes")
}

/// Keeps every other daemon away from the state directory for as long as the file is open.
pub fn lock(config: &Config) -> Result<File> {
    let state = &config.host.state_dir;
    let path = state.join("lock");
    let open = || {
        fs::create_dir_all(state)?;
        let mut options = File::options();
        options.read(true).write(true).create(true);
        options.open(&path)
    };
    let file = open().map_err(|error| failed(&path, &error))?;
    let name = format!("state-dir {}", state.display());
    let mut progress = |waiting: &str| tracing::info!("{waiting}");
    let mut patience = Patience {
        wait: EXIT_WAIT,
        progress: &mut progress,
    };
    lock::acquire(&file, &name, Mode::Exclusive, &mut patience).map_err(|fault| {
        let right = "each daemon needs a state-dir of its own";
        Error::failed(format!("{fault}, or name another; {right}"))
            .about(state.display().to_string())
    })?;
    Ok(file)
}

fn file_of(config: &Config, name: &str) -> PathBuf {
    directory(config).join(format!("{name}.toml"))
}

/// Volumes kept here that the configuration does not name, by name.
pub fn load(config: &Config) -> Result<Vec<Volume>> {
    let entries = match fs::read_dir(directory(config)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(&directory(config), &error)),
    };
    let mut paths: Vec<PathBuf> = entries
        .take(VOLUMES_MAX)
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "toml"))
        .collect();
    paths.sort();
    let mut volumes = Vec::new();
    for path in paths {
        let volume = read(config, &path)?;
        if config.volumes.iter().all(|known| known.name != volume.name) {
            volumes.push(volume);
        }
    }
    Ok(volumes)
}

fn read(config: &Config, path: &Path) -> Result<Volume> {
    let text = fs::read_to_string(path).map_err(|error| failed(path, &error))?;
    let mut parsed = parse::parse_volumes(path, &text, config)?;
    match (parsed.pop(), parsed.pop()) {
        (Some(mut volume), None) => {
            // Lines of this file would be taken for lines of the configuration.
            volume.line = None;
            for source in volume.sources.values_mut() {
                if let Source::Line(_) = source {
                    *source = Source::Command;
                }
            }
            Ok(volume)
        }
        _ => Err(Error::failed(format!(
            "{}: does not hold exactly one volume; remove it and add the volume again",
            path.display()
        ))),
    }
}

/// Keeps a volume. It is on stable media when this returns.
pub fn save(config: &Config, volume: &Volume) -> Result<()> {
    let directory = directory(config);
    fs::create_dir_all(&directory).map_err(|error| failed(&directory, &error))?;
    let path = file_of(config, &volume.name);
    let new = directory.join(format!(".{}.toml.new", volume.name));
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&new)?;
        file.write_all(text_of(volume).as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(&directory)?.sync_all()
    };
    write().map_err(|error| failed(&path, &error))
}

/// Forgets a volume. One that is not kept is forgotten already.
pub fn remove(config: &Config, name: &str) -> Result<()> {
    let path = file_of(config, name);
    match fs::remove_file(&path) {
        Ok(()) => File::open(directory(config))
            .and_then(|directory| directory.sync_all())
            .map_err(|error| failed(&path, &error)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(&path, &error)),
    }
}

fn text_of(volume: &Volume) -> String {
    let mut text =
        String::from("# Added at run time; `tenuto volume rm` removes it.\n[[volume]]\n");
    for key in keys::VOLUME {
        let asked = volume.sources.get(key.name) == Some(&Source::Command);
        if asked || key.name == "name" {
            text.push_str(&format!("{} = {}\n", key.name, (key.show)(volume)));
        }
    }
    text
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::failed(format!(
        "{}: {}; [host] state-dir must be a directory this daemon may write",
        path.display(),
        cause(error)
    ))
    .about(path.display().to_string())
}
