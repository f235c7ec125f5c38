//! Where in the name space a request belongs (Capo, figures 4 and 7).
//!
//! Owns the table of prefixes. Always true: letters' case, `\` or `/`, and a drive letter make no
//! difference; `*` stands for one part of a path; of several prefixes the one with most parts
//! counts, of equals the later one. A path that no prefix fits is `other`, a request without a
//! path `unknown`.
//!
//! A table as text has a line `CATEGORY PREFIX` for each prefix, the prefix to the end of the
//! line; empty lines and those that begin with `#` say nothing.

use std::fmt;

pub const CATEGORIES_MAX: usize = 16;
const RULES_MAX: usize = 10_000;

/// A category by its place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CategoryId(pub u8);

pub const UNKNOWN: CategoryId = CategoryId(0);
pub const OTHER: CategoryId = CategoryId(1);

/// Names of Windows and of Linux; brackets are names that a resolver gives to what is no file.
const DEFAULT: &str = "\
metadata /$mft
metadata /$mftmirr
metadata /$logfile
metadata /$volume
metadata /$attrdef
metadata /$bitmap
metadata /$boot
metadata /$badclus
metadata /$secure
metadata /$upcase
metadata /$extend
metadata /system volume information
metadata /[metadata]
metadata /[journal]
page_file /pagefile.sys
page_file /swapfile.sys
page_file /hiberfil.sys
page_file /swapfile
page_file /swap.img
page_file /[swap]
temporary /windows/temp
temporary /temp
temporary /tmp
temporary /var/tmp
temporary /var/cache
temporary /users/*/appdata/local/temp
temporary /users/*/appdata/local/microsoft/windows/temporary internet files
temporary /users/*/appdata/local/microsoft/windows/inetcache
temporary /documents and settings/*/local settings/temp
temporary /documents and settings/*/local settings/temporary internet files
temporary /temporary internet files
temporary \\home\\*\\.cache
temporary \\root\\.cache
programs /program files
programs /program files (x86)
programs /programdata
programs /opt
programs /usr/local
programs /snap
programs /var/lib/flatpak
programs /var/lib/snapd
users /users
users /documents and settings
users /home
users /root
system /windows
system /winnt
system /boot
system /bin
system /sbin
system /lib
system /lib32
system /lib64
system /usr
system /etc
system /var
";

/// How durable what is written there has to be (Capo, table 2); all else is written through. The
/// directories of Linux are our own choice, by the same reasons: what an installation or an
/// application can make again may be late, what a start of the machine discards need not be kept.
const DURABILITY: &str = "\
write-back /program files
write-back /program files (x86)
write-back /windows
write-back /winnt
write-back /users/programdata/vmware/vdm/logs
write-back /users/*/ntuser.dat
write-back /users/*/appdata/local
write-back /users/*/appdata/roaming
write-back /usr
write-back /opt
write-back /var/log
write-back /var/lib/dpkg
write-back /var/lib/rpm
write-back \\home\\*\\.config
write-back \\home\\*\\.local\\share
no-write-back /pagefile.sys
no-write-back /swapfile.sys
no-write-back /hiberfil.sys
no-write-back /programdata/sophos
no-write-back /temp
no-write-back /windows/temp
no-write-back /users/*/appdata/local/temp
no-write-back /users/*/appdata/local/microsoft/windows/temporary internet files
no-write-back /users/*/appdata/local/microsoft/windows/inetcache
no-write-back /swapfile
no-write-back /swap.img
no-write-back /[swap]
no-write-back /tmp
no-write-back /var/tmp
no-write-back /var/cache
no-write-back \\home\\*\\.cache
no-write-back \\root\\.cache
";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Categories {
    names: Vec<String>,
    rules: Vec<(Vec<String>, CategoryId)>,
}

/// What is wrong with a table, and in which line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub line: usize,
    pub why: &'static str,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for Wrong {}

impl Default for Categories {
    fn default() -> Categories {
        Categories::parse(DEFAULT).expect("our own table is right")
    }
}

impl Categories {
    /// Classes of durability instead of places; what no prefix fits is written through.
    pub fn durability() -> Categories {
        Categories::parse(DURABILITY).expect("our own table is right")
    }

    pub fn parse(text: &str) -> Result<Categories, Wrong> {
        let mut categories = Categories {
            names: vec!["unknown".to_owned(), "other".to_owned()],
            rules: Vec::new(),
        };
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            categories
                .rule(line)
                .map_err(|why| Wrong { line: at + 1, why })?;
        }
        Ok(categories)
    }

    fn rule(&mut self, line: &str) -> Result<(), &'static str> {
        let (name, prefix) = line
            .split_once(char::is_whitespace)
            .ok_or("a category and a prefix are needed")?;
        let parts: Vec<String> = parts(prefix.trim()).collect();
        if parts.is_empty() {
            return Err("the prefix has no part");
        }
        if self.rules.len() >= RULES_MAX {
            return Err("there are too many prefixes");
        }
        let at = match self.names.iter().position(|it| it == name) {
            Some(at) => at,
            None if self.names.len() >= CATEGORIES_MAX => {
                return Err("there are at most 14 categories");
            }
            None => {
                self.names.push(name.to_owned());
                self.names.len() - 1
            }
        };
        self.rules.push((parts, CategoryId(at as u8)));
        Ok(())
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn of(&self, path: &str) -> CategoryId {
        let path: Vec<String> = parts(path).collect();
        let fits = |rule: &[String]| {
            rule.len() <= path.len()
                && rule
                    .iter()
                    .zip(&path)
                    .all(|(rule, part)| rule == "*" || rule == part)
        };
        let best = self.rules.iter().filter(|(rule, _)| fits(rule));
        best.max_by_key(|(rule, _)| rule.len())
            .map_or(OTHER, |(_, category)| *category)
    }
}

/// The parts of a path in small letters, without drive.
fn parts(path: &str) -> impl Iterator<Item = String> {
    let path = match path.as_bytes() {
        [drive, b':', ..] if drive.is_ascii_alphabetic() => &path[2..],
        _ => path,
    };
    path.split(['/', '\\'])
        .filter(|part| !part.is_empty())
        .map(str::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(path: &str) -> String {
        let categories = Categories::default();
        categories.names()[usize::from(categories.of(path).0)].clone()
    }

    #[test]
    fn paths_of_both_worlds_find_their_category() {
        for (path, expected) in [
            ("\\Windows\\System32\\ntdll.dll", "system"),
            ("C:\\WINDOWS\\Temp\\a", "temporary"),
            ("\\pagefile.sys", "page_file"),
            ("/$Mft", "metadata"),
            ("/$Extend/$UsnJrnl", "metadata"),
            ("/users/ann/AppData/Local/Temp/x", "temporary"),
            ("/users/ann/Documents/x.doc", "users"),
            ("/Program Files (x86)/a", "programs"),
            ("/usr/local/bin/a", "programs"),
            ("/usr/bin/a", "system"),
            ("/[journal]", "metadata"),
            ("/data/x", "other"),
            ("/windowsandmore", "other"),
            // Shorter than a prefix that begins like it.
            ("/Windows", "system"),
            ("/users/ann", "users"),
            ("/", "other"),
        ] {
            assert_eq!(name(path), expected, "{path}");
        }
    }

    /// Written down a second time, so that a line that goes or moves is noticed.
    #[test]
    fn each_place_that_a_table_names_is_of_its_category() {
        let own = [
            "metadata: $mft $mftmirr $logfile $volume $attrdef $bitmap $boot $badclus $secure \
             $upcase $extend/x [metadata] [journal]",
            "page_file: pagefile.sys swapfile.sys hiberfil.sys swapfile swap.img [swap]",
            "temporary: windows/temp/x temp/x tmp/x var/tmp/x var/cache/x \
             users/a/appdata/local/temp/x users/a/appdata/local/microsoft/windows/inetcache/x \
             home/a/.cache/x root/.cache/x",
            "programs: programdata/x opt/x usr/local/x snap/x var/lib/flatpak/x var/lib/snapd/x",
            "users: users/a/x home/a/x root/x",
            "system: windows/x winnt/x boot/x bin/x sbin/x lib/x lib32/x lib64/x usr/x etc/x var/x",
        ];
        let durability = [
            "write-back: windows/x winnt/x users/programdata/vmware/vdm/logs/x users/a/ntuser.dat \
             users/a/appdata/local/x users/a/appdata/roaming/x usr/x opt/x var/log/x \
             var/lib/dpkg/x var/lib/rpm/x home/a/.config/x home/a/.local/share/x",
            "no-write-back: pagefile.sys swapfile.sys hiberfil.sys programdata/sophos/x temp/x \
             windows/temp/x users/a/appdata/local/temp/x \
             users/a/appdata/local/microsoft/windows/inetcache/x swapfile swap.img [swap] tmp/x \
             var/tmp/x var/cache/x home/a/.cache/x root/.cache/x",
            "other: users/a/x home/a/x programdata/x etc/x var/x root/x $mft",
        ];
        let all = own.map(|line| (Categories::default(), line)).into_iter();
        for (table, line) in all.chain(durability.map(|line| (Categories::durability(), line))) {
            let (expected, paths) = line.split_once(": ").expect("a category first");
            for path in paths.split_whitespace() {
                let CategoryId(at) = table.of(&format!("/{path}"));
                assert_eq!(table.names()[usize::from(at)], expected, "{path}");
            }
        }
        // Those with spaces in their names.
        for (path, expected, late) in [
            ("System Volume Information/x", "metadata", "other"),
            ("Program Files/x", "programs", "write-back"),
            ("Program Files (x86)/x", "programs", "write-back"),
            ("Documents and Settings/a/x", "users", "other"),
            ("Temporary Internet Files/x", "temporary", "other"),
            (
                "Documents and Settings/a/Local Settings/Temp/x",
                "temporary",
                "other",
            ),
            (
                "Documents and Settings/a/Local Settings/Temporary Internet Files/x",
                "temporary",
                "other",
            ),
            (
                "Users/a/AppData/Local/Microsoft/Windows/Temporary Internet Files/x",
                "temporary",
                "no-write-back",
            ),
        ] {
            assert_eq!(name(path), expected, "{path}");
            let classes = Categories::durability();
            let CategoryId(at) = classes.of(path);
            assert_eq!(classes.names()[usize::from(at)], late, "{path}");
        }
    }

    #[test]
    fn what_is_written_there_may_be_late_or_lost() {
        let classes = Categories::durability();
        for (path, expected) in [
            ("\\Program Files\\a.exe", "write-back"),
            ("C:\\WINDOWS\\System32\\config\\SYSTEM", "write-back"),
            ("\\Users\\ann\\ntuser.dat", "write-back"),
            ("\\Users\\ann\\AppData\\Roaming\\x", "write-back"),
            ("\\Users\\ann\\AppData\\Local\\Temp\\x", "no-write-back"),
            ("\\pagefile.sys", "no-write-back"),
            ("\\Users\\ann\\Documents\\x.doc", "other"),
            ("\\$Mft", "other"),
            ("\\home\\ann\\.cache/x", "no-write-back"),
            ("\\home\\ann\\x", "other"),
        ] {
            let CategoryId(at) = classes.of(path);
            assert_eq!(classes.names()[usize::from(at)], expected, "{path}");
        }
    }

    #[test]
    fn a_table_of_ones_own_replaces_it_and_says_where_it_is_wrong() {
        let table = "# mail\nmail /var/mail\n\nmail \\home\\*\\Mail Box\nrest /home\n";
        let own = Categories::parse(table).expect("it is right");
        assert_eq!(own.names(), ["unknown", "other", "mail", "rest"]);
        assert_eq!(own.of("\\home\\ann/mail box/1"), CategoryId(2));
        assert_eq!(own.of("\\home\\ann/x"), CategoryId(3));
        assert_eq!(own.of("/usr"), OTHER);
        let twice = Categories::parse("a /x/*\nb /x/y\na /z\nb /z\n").expect("it is right");
        assert_eq!(twice.of("/x/y"), CategoryId(3), "of equals the later one");
        assert_eq!(twice.of("/z"), CategoryId(3), "of equals the later one");
        let wrong = Categories::parse("a /x\nb\n").expect_err("it is wrong");
        assert_eq!(wrong.line, 2);
        let many: String = (0..15).map(|at| format!("c{at} /x\n")).collect();
        assert_eq!(Categories::parse(&many).map_err(|it| it.line), Err(15));
        let many = "a /x\n".repeat(RULES_MAX + 1);
        let wrong = Categories::parse(&many).map_err(|it| it.line);
        assert_eq!(wrong, Err(RULES_MAX + 1));
        assert!(
            Categories::parse("a /\n").is_err(),
            "it would be everything"
        );
    }
}
