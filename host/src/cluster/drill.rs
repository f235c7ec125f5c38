//! The link drill: whether two hosts can decide in a vault which of them is first, by `link(2)` in
//! a directory, or by a transaction of etcd.
//!
//! Always true: content decides, never the answer of a call, which a network file system may get
//! wrong; what a drill has made is removed after it. Deliberately absent: records of owners, which
//! are made in the same way.

use super::member::{fresh_id, hex};
use crate::error::cause;
use crate::vault::{Drills, Vault};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What a name of a drill begins with.
const START: &str = ".tenuto-drill-";

/// Where names are made.
pub enum Place {
    Directory(PathBuf),
    Etcd(Drills),
}

impl Place {
    /// That of a vault that all volumes share.
    pub fn of(vault: &Vault) -> Option<Place> {
        match vault {
            Vault::Beside => None,
            Vault::Directory(path) => Some(Place::Directory(path.clone())),
            Vault::Etcd(etcd) => Some(Place::Etcd(Drills::new(etcd))),
        }
    }

    /// Makes a name, whatever the call answers; gives the content that the name has then.
    fn make(&self, name: &str, content: &str) -> Result<String, String> {
        match self {
            Place::Directory(path) => link(path, name, content)
                .map_err(|error| format!("a file cannot be linked there: {}", cause(&error))),
            Place::Etcd(drills) => drills.make(name, content),
        }
    }

    fn remove(&self, name: &str) {
        match self {
            Place::Directory(path) => drop(fs::remove_file(path.join(name))),
            Place::Etcd(drills) => drills.remove(name),
        }
    }
}

/// The name of a first host, which waits for a second one.
pub struct Drill {
    place: Place,
    name: String,
    content: String,
}

impl Drill {
    /// Makes a name with content of its own. An error says why records cannot lie in this place.
    pub fn begin(place: Place) -> Result<Drill, String> {
        let drill = Drill {
            place,
            name: format!("{START}{}", hex(&fresh_id().0)),
            content: hex(&fresh_id().0),
        };
        match drill.place.make(&drill.name, &drill.content)? {
            found if found == drill.content => Ok(drill),
            _ => Err("a new name has the content of another one".into()),
        }
    }

    /// What a second host is asked.
    pub fn question(&self) -> String {
        format!("{} {}", self.name, self.content)
    }
}

impl Drop for Drill {
    fn drop(&mut self) {
        self.place.remove(&self.name);
    }
}

/// The second host: makes the same name, and has to find the content of the first.
pub fn second(place: &Place, question: &str) -> (bool, String) {
    let Some((name, content)) = question.split_once(' ') else {
        return (false, "does not know this drill".into());
    };
    // Names come from another host and become part of a path.
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !name.strip_prefix(START).is_some_and(plain) || !plain(content) {
        return (false, "does not know this drill".into());
    }
    let own = hex(&fresh_id().0);
    match place.make(name, &own) {
        Ok(found) if found == content => (true, String::new()),
        Ok(found) if found == own => {
            place.remove(name);
            let why = "has another vault at this place, or a name there can be taken twice";
            (false, why.into())
        }
        Ok(_) => (false, "reads something else in the vault".into()),
        Err(why) => (false, why),
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
    use tempfile::TempDir;

    fn of(place: &TempDir) -> Place {
        Place::Directory(place.path().into())
    }

    #[test]
    fn the_second_host_finds_the_name_of_the_first() {
        let place = tempfile::tempdir().expect("a directory");
        let drill = Drill::begin(of(&place)).expect("possible");
        assert_eq!(
            second(&of(&place), &drill.question()),
            (true, String::new())
        );
        // A name that has something else is another storage, or one that lies.
        fs::write(place.path().join(&drill.name), "else").expect("written");
        assert!(!second(&of(&place), &drill.question()).0);
        let elsewhere = tempfile::tempdir().expect("a directory");
        assert!(!second(&of(&elsewhere), &drill.question()).0);
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
            assert!(!second(&of(&place), question).0, "{question}");
        }
        assert!(Drill::begin(Place::Directory(place.path().join("missing"))).is_err());
    }
}
