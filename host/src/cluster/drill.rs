//! The link drill: whether two hosts can decide by `link(2)` in a directory which of them is first.
//!
//! Always true: content decides, never the answer of a call, which a network file system may get
//! wrong; files of a drill are removed after it. Deliberately absent: records of owners, which are
//! made in the same way.

use super::member::{fresh_id, hex};
use crate::error::cause;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What a name of a drill begins with.
const START: &str = ".tenuto-drill-";

/// The file of a first host, which waits for a second one.
pub struct Drill {
    directory: PathBuf,
    name: String,
    content: String,
}

impl Drill {
    /// Links a name to a file of its own. An error says why records cannot lie in this directory.
    pub fn begin(directory: &Path) -> Result<Drill, String> {
        let drill = Drill {
            directory: directory.to_path_buf(),
            name: format!("{START}{}", hex(&fresh_id().0)),
            content: hex(&fresh_id().0),
        };
        match link(&drill.directory, &drill.name, &drill.content) {
            Ok(found) if found == drill.content => Ok(drill),
            Ok(_) => Err("a new name has the content of another file".into()),
            Err(error) => Err(format!("a file cannot be linked there: {}", cause(&error))),
        }
    }

    /// What a second host is asked.
    pub fn question(&self) -> String {
        format!("{} {}", self.name, self.content)
    }
}

impl Drop for Drill {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.directory.join(&self.name));
    }
}

/// The second host: links the same name, and has to find the content of the first.
pub fn second(directory: &Path, question: &str) -> (bool, String) {
    let Some((name, content)) = question.split_once(' ') else {
        return (false, "does not know this drill".into());
    };
    // Names come from another host and become part of a path.
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !name.strip_prefix(START).is_some_and(plain) || !plain(content) {
        return (false, "does not know this drill".into());
    }
    let own = hex(&fresh_id().0);
    let shown = directory.display();
    match link(directory, name, &own) {
        Ok(found) if found == content => (true, String::new()),
        Ok(found) if found == own => {
            let _ = fs::remove_file(directory.join(name));
            (
                false,
                format!("has another {shown}, or a name there can be taken twice"),
            )
        }
        Ok(_) => (false, format!("reads something else in {shown}")),
        Err(error) => (
            false,
            format!("cannot link a file in {shown}: {}", cause(&error)),
        ),
    }
}

/// Makes a name by a link, whatever the call answers; gives the content that the name has then.
fn link(directory: &Path, name: &str, content: &str) -> io::Result<String> {
    let temporary = directory.join(format!("{START}t-{}", hex(&fresh_id().0)));
    let try_it = || {
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .open(&temporary)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        let linked = fs::hard_link(&temporary, directory.join(name));
        File::open(directory)?.sync_all()?;
        match (fs::read_to_string(directory.join(name)), linked) {
            (Ok(found), _) => Ok(found),
            (Err(_), Err(why)) | (Err(why), Ok(())) => Err(why),
        }
    };
    let result = try_it();
    let _ = fs::remove_file(&temporary);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_host_finds_the_name_of_the_first() {
        let place = tempfile::tempdir().expect("a directory");
        let drill = Drill::begin(place.path()).expect("possible");
        assert_eq!(
            second(place.path(), &drill.question()),
            (true, String::new())
        );
        // A name that has something else is another storage, or one that lies.
        fs::write(place.path().join(&drill.name), "else").expect("written");
        assert!(!second(place.path(), &drill.question()).0);
        let elsewhere = tempfile::tempdir().expect("a directory");
        assert!(!second(elsewhere.path(), &drill.question()).0);
        drop(drill);
        for place in [&place, &elsewhere] {
            assert_eq!(fs::read_dir(place.path()).expect("listed").count(), 0);
        }
    }

    #[test]
    fn a_drill_of_another_host_cannot_name_other_files() {
        let place = tempfile::tempdir().expect("a directory");
        for question in [
            "",
            "x",
            "../x y",
            ".tenuto-drill-../x y",
            ".tenuto-drill-a ../y",
        ] {
            assert!(!second(place.path(), question).0, "{question}");
        }
        assert!(Drill::begin(&place.path().join("missing")).is_err());
    }
}
