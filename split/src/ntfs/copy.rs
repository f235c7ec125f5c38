//! New volumes and what is copied onto them.
//!
//! Always true: what is copied has the paths it had, and each directory above it has its access
//! rights; a copy that was killed is begun again with an empty file system. The
//! bytes go from one program of wimlib to the other through a pipe: no file holds them between.
//! wimlib keeps streams, access rights, short names, hard links, reparse points, times and object
//! ids; extended attributes it does not keep.
//!
//! Deliberately absent: a mount of the new volume; `cp`, which knows no streams; the disk, whose
//! table of partitions the caller makes.

use super::error::{Error, Refused, io};
use super::list::Share;
use super::mount::{Access, PACKAGE as NTFS_3G, bound, mounted};
use super::path::is_name;
use super::tree::entries;
use crate::programs::{Failure, run};
use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const WIMTOOLS: &str = "wimtools";
/// No file has this name, because Windows takes what is behind a colon for a stream.
const NO_FILE: &str = ":";

/// How the file system of a new partition is made.
#[derive(Clone, Debug)]
pub struct NewVolume<'a> {
    pub label: &'a str,
    pub start_sector: u64,
}

/// Makes an empty file system, whatever was there.
pub fn make_volume(partition: &Path, new: &NewVolume) -> Result<(), Error> {
    let start_sector = new.start_sector.to_string();
    let mut command = bound("mkntfs");
    // Quick: the file is not filled with zeroes. The geometry is said, because a file has none.
    command.args([
        "--quiet", "--quick", "--force", "-s", "512", "-H", "0", "-S", "0",
    ]);
    command
        .args(["-p", &start_sector, "-L", new.label])
        .arg(partition);
    run(NTFS_3G, &mut command)?;
    Ok(())
}

/// Copies what the volume gets of the source to the same paths of an empty volume.
pub fn copy(source: &Path, target: &Path, share: &Share) -> Result<(), Error> {
    let configuration = mounted(&[(source, Access::Read)], |places| {
        configuration(&places[0], share)
    })?;
    let directory = tempfile::tempdir();
    let directory = directory.map_err(io(&std::env::temp_dir(), "no directory can be made"))?;
    let file = directory.path().join("paths");
    fs::write(&file, configuration).map_err(io(&file, "it can not be written"))?;
    let mut capture = bound("wimcapture");
    capture
        .arg(source)
        .args(["-", "tenuto", "--compress=none", "--pipable", "--norpfix"]);
    capture.arg({
        let mut argument = std::ffi::OsString::from("--config=");
        argument.push(&file);
        argument
    });
    let mut apply = bound("wimapply");
    apply.arg("-").arg(target).arg("--norpfix");
    pipe(&mut capture, &mut apply)?;
    File::open(target)
        .and_then(|it| it.sync_all())
        .map_err(io(target, "it can not be synced"))
}

/// wimlib's list of what is captured: nothing, except these.
fn configuration(root: &Path, share: &Share) -> Result<String, Error> {
    let mut text = "[ExclusionList]\n\\*\n[ExclusionException]\n".to_owned();
    // Taken from the end, so the last one that is put in is the next.
    let mut pending = share.paths.clone();
    while let Some(path) = pending.pop() {
        let is_inner = share.inner.contains(&path);
        if is_inner || share.inner.iter().any(|it| path.contains(it)) {
            // The directory alone: what lies above an exception is captured as well.
            text += &format!("\"{path}\\{NO_FILE}\"\n");
        } else {
            text += &format!("\"{path}\"\n");
            continue;
        }
        if is_inner {
            continue;
        }
        for entry in entries(&path.under(root))? {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|it| is_name(it) && !it.contains('*')) else {
                let path = format!("{path}\\{}", name.to_string_lossy());
                let why = "its name has a character that Windows does not allow; rename it";
                return Err(Refused::Unmovable { path, why }.into());
            };
            pending.push(path.child(name));
        }
    }
    Ok(text)
}

/// Runs both to their ends. Of two that fail, the first says why, except that its reader is gone.
fn pipe(first: &mut Command, second: &mut Command) -> Result<(), Error> {
    let (first_errors, second_errors) = (errors()?, errors()?);
    let mut first_child = spawn(first.stdout(Stdio::piped()), &first_errors)?;
    let output = first_child.stdout.take();
    if let Some(output) = output {
        second.stdin(output);
    }
    let second_child = spawn(second.stdout(Stdio::null()), &second_errors);
    if second_child.is_err() {
        first_child.kill().ok();
    }
    // It holds the other end of the pipe.
    second.stdin(Stdio::null());
    let second_ended = second_child.map(|mut it| (it.wait(), second_errors));
    let ends = [
        (first, Ok((first_child.wait(), first_errors))),
        (second, second_ended),
    ];
    let mut failures = Vec::new();
    for (command, ended) in ends {
        let program = command.get_program().to_string_lossy().into_owned();
        let (status, errors) = ended?;
        let status = status.map_err(|source| Failure::Io {
            program: program.clone(),
            source,
        })?;
        // The writer of a pipe whose reader is gone: why is told by the reader.
        if !status.success() && status.signal() != Some(libc::SIGPIPE) {
            let says = says(errors).unwrap_or_else(|| status.to_string());
            failures.push(Failure::Failed { program, says });
        }
    }
    match failures.into_iter().next() {
        Some(failure) => Err(failure.into()),
        None => Ok(()),
    }
}

fn errors() -> Result<File, Error> {
    tempfile::tempfile().map_err(io(&std::env::temp_dir(), "no file can be made"))
}

fn spawn(command: &mut Command, errors: &File) -> Result<Child, Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    let errors = errors
        .try_clone()
        .map_err(io(&std::env::temp_dir(), "no file"))?;
    command.stderr(errors).spawn().map_err(|source| {
        let failure = match source.kind() {
            std::io::ErrorKind::NotFound => Failure::Missing {
                program,
                package: WIMTOOLS,
            },
            _ => Failure::Io { program, source },
        };
        failure.into()
    })
}

/// The first line that wimlib marks as an error; others tell how far it is.
fn says(mut errors: File) -> Option<String> {
    let mut text = Vec::new();
    errors.rewind().ok()?;
    errors.read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines();
    let line = lines.find_map(|it| it.split_once("[ERROR]").map(|(_, it)| it.trim().to_owned()));
    line.or_else(|| {
        text.lines()
            .rfind(|it| !it.trim().is_empty())
            .map(str::to_owned)
    })
}

#[cfg(test)]
mod tests {
    use super::super::path::WindowsPath;
    use super::*;

    fn path(text: &str) -> WindowsPath {
        WindowsPath::parse(text).expect("it is one")
    }

    /// Fails when: something of an inner directory is captured, or a neighbour of it is not.
    #[test]
    fn what_is_captured_leaves_out_inner_directories() {
        let root = tempfile::tempdir().expect("made");
        for directory in ["a/x", "a/y z/in/deep", "b"] {
            fs::create_dir_all(root.path().join(directory)).expect("made");
        }
        fs::write(root.path().join("a/y z/file"), "").expect("written");
        let share = Share {
            paths: vec![path("\\a"), path("\\b")],
            inner: vec![path("\\a\\y z\\in")],
        };
        let text = configuration(root.path(), &share).expect("it can be said");
        let mut lines: Vec<&str> = text.lines().skip(3).collect();
        lines.sort_unstable();
        let expected = [
            "\"\\a\\:\"",
            "\"\\a\\x\"",
            "\"\\a\\y z\\:\"",
            "\"\\a\\y z\\file\"",
            "\"\\a\\y z\\in\\:\"",
            "\"\\b\"",
        ];
        assert_eq!(lines, expected);
    }
}
