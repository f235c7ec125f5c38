//! What a table of rules says of a path.
//!
//! Always true: of several lines about a path the deepest counts, and of two at one depth the one
//! that keeps it, as where a disk is split; a path is looked at as a key, see
//! [`facts`](super::facts). Deliberately absent: whether the path is there, and can have a disk of
//! its own.

use crate::class::Class;
use crate::rules::{Family, Pattern, Rules};

const PAGE_FILES: [&[&str]; 2] = [&["/swap.img", "/swapfile"], &["/pagefile.sys"]];

/// What a table says of a path, by the deepest of its lines at or above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    Unknown,
    Kept,
    Moved(Class),
}

#[derive(Clone, Debug)]
pub struct Classed {
    rules: Rules,
}

pub fn names(key: &str) -> Vec<&str> {
    key.split('/').filter(|it| !it.is_empty()).collect()
}

impl Classed {
    pub fn new(rules: Rules) -> Classed {
        Classed { rules }
    }

    /// The class of what is written to a path.
    pub fn class(&self, path: &str) -> Class {
        let key = self.key(path);
        if let (Some(page_file), true) = (&self.rules.page_file, self.is_page_file(&key)) {
            return page_file.class;
        }
        match self.known(&key) {
            Known::Moved(class) => class,
            Known::Kept | Known::Unknown => self.rules.system,
        }
    }

    /// Of all that no line names.
    pub fn system(&self) -> Class {
        self.rules.system
    }

    pub fn key(&self, path: &str) -> String {
        let path = match (self.rules.family, path.as_bytes()) {
            (Family::Windows, [drive, b':', ..]) if drive.is_ascii_alphabetic() => &path[2..],
            _ => path,
        };
        let separators: &[char] = match self.rules.family {
            Family::Linux => &['/'],
            Family::Windows => &['/', '\\'],
        };
        let names = path.split(separators).filter(|it| !it.is_empty());
        let key: String = names.map(|it| format!("/{it}")).collect();
        match self.rules.family {
            Family::Linux => key,
            Family::Windows => key.to_lowercase(),
        }
    }

    pub fn is_page_file(&self, key: &str) -> bool {
        let of = match self.rules.family {
            Family::Linux => PAGE_FILES[0],
            Family::Windows => PAGE_FILES[1],
        };
        of.contains(&key)
    }

    pub fn known(&self, key: &str) -> Known {
        let names = names(key);
        let fits = |it: &Pattern| self.is_at_or_below(it, &names);
        let moves = self.rules.moves.iter().filter(|it| fits(&it.path));
        let moves = moves.map(|it| (it.path.names.len(), Known::Moved(it.class)));
        let keeps = self.rules.keeps.iter().filter(|it| fits(it));
        let keeps = keeps.map(|it| (it.names.len(), Known::Kept));
        let deepest = moves.chain(keeps).max_by_key(|it| it.0);
        deepest.map_or(Known::Unknown, |it| it.1)
    }

    /// How many names the deepest line has that moves a path; none does: 0.
    pub fn deepest_move(&self, names: &[&str]) -> usize {
        let moves = self.rules.moves.iter();
        let moves = moves.filter(|it| self.is_at_or_below(&it.path, names));
        moves.map(|it| it.path.names.len()).max().unwrap_or(0)
    }

    fn is_at_or_below(&self, pattern: &Pattern, path: &[&str]) -> bool {
        let depth = pattern.names.len();
        let bytes: Vec<&[u8]> = path.iter().take(depth).map(|it| it.as_bytes()).collect();
        pattern.matches(&bytes, self.rules.family == Family::Windows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails when: a path gets another class than the split of a disk gives it, or what no line
    /// names is not of the class of the system disk.
    #[test]
    fn a_path_has_the_class_of_the_deepest_line_and_the_page_file_its_own() {
        let linux = Classed::new(Rules::load("linux").unwrap());
        for (path, class) in [
            ("/home/bob/.cache/mozilla/cache2/entries/0", Class::Never),
            ("/home/bob/.config/app/settings", Class::WriteBack),
            ("/home/bob/Documents/report.odt", Class::WriteThrough),
            ("/var/cache/apt/pkgcache.bin", Class::Never),
            ("/var/cache/debconf/config.dat", Class::WriteThrough),
            ("/var/caches/x", Class::WriteThrough),
            ("/swapfile", Class::Never),
            ("/home/bob/swapfile", Class::WriteThrough),
            ("/[journal]", Class::WriteThrough),
            ("/[metadata]", Class::WriteThrough),
        ] {
            assert_eq!(linux.class(path), class, "{path}");
        }
        let capo = Classed::new(Rules::load("windows-capo").unwrap());
        assert_eq!(capo.system(), Class::WriteBack);
        for (path, class) in [
            ("C:\\pageFile.sys", Class::Never),
            ("\\Windows\\System32\\config\\hive", Class::WriteBack),
            ("\\Users\\ann\\documents/x.doc", Class::WriteThrough),
        ] {
            assert_eq!(capo.class(path), class, "{path}");
        }
    }
}
