//! The lines of the configuration for the disks of a split.
//!
//! Always true: the same layout gives the same lines; each disk has a volume, that of the system
//! first. In a pool what is not kept is an ephemeral clone of one image, and what is kept is a
//! disk of each clone, of which the first one has its lines here. Deliberately absent: what a
//! person is told, and where the lines are written.

use crate::kind::{Class, SYSTEM_FILE, Volume};
use crate::pool::{Pool, names};
use crate::report::{Report, in_line};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Longer names are no help to anybody.
const NAME_LETTERS_MAX: usize = 40;

/// One disk of the guest, as the configuration names it.
pub struct Line {
    pub name: String,
    pub origin: PathBuf,
    pub format: &'static str,
    pub policy: &'static str,
    pub destage_after: Option<String>,
    pub group: Option<String>,
}

/// Clones of one disk.
pub struct PoolLine {
    pub name: String,
    pub image: PathBuf,
    pub members: Vec<String>,
}

/// A disk that each clone has for itself.
pub struct OwnDisk {
    /// What the copies are made of; no clone writes it.
    pub template: PathBuf,
    /// That of the first member.
    pub copy: PathBuf,
}

/// A path of this host as a shell takes it, in one line.
fn in_shell(path: &Path) -> String {
    let text = in_line(&path.display().to_string());
    let plain = |it: char| it.is_ascii_alphanumeric() || "/._-+,:=@%".contains(it);
    match text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

impl Report<'_> {
    /// The disks, that of the system first; of a pool those that the first member has for itself.
    pub fn lines(&self) -> Vec<Line> {
        match &self.rules.pool {
            None => self.of_one_guest(),
            Some(pool) => self.of_first_member(pool),
        }
    }

    fn of_one_guest(&self) -> Vec<Line> {
        let name = self.guest_name();
        let group = |class| (class == Class::WriteBack).then(|| name.clone());
        let age = |class, age: &str| (class == Class::WriteBack).then(|| age.to_owned());
        let mut lines = vec![Line {
            name: format!("{name}-system"),
            origin: self.output.join(SYSTEM_FILE),
            format: "qcow2",
            policy: self.rules.system.name(),
            destage_after: age(self.rules.system, &self.rules.system_destage_after),
            group: group(self.rules.system),
        }];
        for volume in &self.layout.volumes {
            let class = volume.class;
            let disk = self.rules.disk(class);
            let (policy, destage_after) = match class {
                Class::WriteThrough | Class::Keep => ("write-through", None),
                Class::WriteBack => ("write-back", Some(disk.destage_after)),
                Class::Never if disk.ephemeral => ("ephemeral", None),
                Class::Never => ("write-back", Some("never".to_owned())),
            };
            lines.push(Line {
                name: format!("{name}-{}", class.name()),
                origin: self.output.join(volume.file()),
                format: "raw",
                policy,
                destage_after,
                group: group(class),
            });
        }
        lines
    }

    fn of_first_member(&self, pool: &Pool) -> Vec<Line> {
        let member = self.first_member(pool);
        let line = |volume: &Volume| Line {
            name: format!("{member}-{}", volume.class.name()),
            origin: self.own_file(volume, &member),
            format: "raw",
            policy: "write-through",
            destage_after: None,
            group: None,
        };
        self.own_volumes().map(line).collect()
    }

    /// Disks whose data a reset must not take.
    fn own_volumes(&self) -> impl Iterator<Item = &Volume> {
        let volumes = self.layout.volumes.iter();
        volumes.filter(|it| !it.class.is_relaxed())
    }

    fn own_file(&self, volume: &Volume, member: &str) -> PathBuf {
        let class = volume.class.name();
        self.output.join(format!("{class}-{member}.raw"))
    }

    /// What the first member gets copies of; none without a pool.
    pub fn own_disks(&self) -> Vec<OwnDisk> {
        let Some(pool) = &self.rules.pool else {
            return Vec::new();
        };
        let member = self.first_member(pool);
        let disk = |volume: &Volume| OwnDisk {
            template: self.output.join(volume.file()),
            copy: self.own_file(volume, &member),
        };
        self.own_volumes().map(disk).collect()
    }

    /// The pools, that of the system disk first.
    pub fn pools(&self) -> Vec<PoolLine> {
        let Some(pool) = &self.rules.pool else {
            return Vec::new();
        };
        let (name, members) = (self.pool_name(pool), self.members(pool));
        let system = PoolLine {
            name: name.clone(),
            image: self.output.join(SYSTEM_FILE),
            members: members.clone(),
        };
        let volumes = self.layout.volumes.iter();
        let others = volumes.filter(|it| it.class.is_relaxed()).map(|volume| {
            let class = volume.class.name();
            PoolLine {
                name: format!("{name}-{class}"),
                image: self.output.join(volume.file()),
                members: members.iter().map(|it| format!("{it}-{class}")).collect(),
            }
        });
        std::iter::once(system).chain(others).collect()
    }

    fn pool_name(&self, pool: &Pool) -> String {
        pool.name.clone().unwrap_or_else(|| self.guest_name())
    }

    fn members(&self, pool: &Pool) -> Vec<String> {
        match pool.members.is_empty() {
            true => vec![format!("{}-001", self.pool_name(pool))],
            false => pool.members.clone(),
        }
    }

    fn first_member(&self, pool: &Pool) -> String {
        let members = self.members(pool);
        let first = members.first().and_then(|it| names(it).ok());
        first.map_or_else(|| self.pool_name(pool), |(name, _)| name)
    }

    /// The name of the image, as far as a volume can have it.
    fn guest_name(&self) -> String {
        let stem = self.image.file_stem().unwrap_or_default().to_string_lossy();
        let fits = |it: char| it.is_ascii_alphanumeric() || it == '-' || it == '_';
        let name: String = stem
            .chars()
            .map(|it| if fits(it) { it } else { '-' })
            .take(NAME_LETTERS_MAX)
            .collect();
        let name = name.trim_matches(['-', '_']);
        if name.is_empty() {
            "guest".to_owned()
        } else {
            name.to_owned()
        }
    }

    /// The lines for the configuration.
    pub fn volumes_toml(&self) -> String {
        let image = in_line(&self.image.display().to_string());
        let what = match &self.rules.pool {
            None => "The disks of one guest, which needs all of them, in this order.",
            Some(_) => "The disks of the clones of one guest.",
        };
        let mut text = format!("# {what}\n# Made by `tenuto image split` from {image}.\n");
        if !self.copy {
            text += "# The first one stands on that image, which has to stay there, unchanged.\n";
            if self.image.parent() != Some(self.output) {
                let directories: Vec<Value> =
                    [self.output, self.image.parent().unwrap_or(self.output)]
                        .iter()
                        .map(|it| json!(it.display().to_string()))
                        .collect();
                text += &format!(
                    "# Where [images] has `allow`, it has to name both places: {}\n",
                    json!(directories)
                );
            }
        }
        if let Some(pool) = &self.rules.pool {
            text += &self.pool_text(pool);
        }
        self.lines().iter().for_each(|it| text += &line_text(it));
        text
    }

    /// The `[[pool]]` lines, and what is to be done for each member.
    fn pool_text(&self, pool: &Pool) -> String {
        let member = self.first_member(pool);
        let classes: Vec<&str> = self
            .layout
            .volumes
            .iter()
            .map(|it| it.class.name())
            .collect();
        let disks: String = classes
            .iter()
            .map(|it| format!(", {member}-{it}"))
            .collect();
        let mut text = format!(
            "# The guest of {member} gets {member}{disks}, in this order.\n\
             # A reset throws away what a clone wrote to the disks of these pools. `reset-on` in \
             [defaults]\n# says when; without it `tenuto volume reset` of each of them does.\n"
        );
        for it in self.pools() {
            let members: Vec<String> = it.members.iter().map(|it| quoted(it)).collect();
            text += &format!(
                "\n[[pool]]\nname = {}\nimage = {}\nclone = \"ephemeral\"\nmembers = [{}]\n",
                quoted(&it.name),
                quoted(&it.image.display().to_string()),
                members.join(", ")
            );
        }
        let own = self.own_disks();
        if own.is_empty() {
            return text;
        }
        text += &format!(
            "\n# {member} has a copy of its own of what outlives a reset. Each other member needs \
             one before its\n# first start, and lines as below. For the member NAME it is made \
             by\n"
        );
        for volume in self.own_volumes() {
            let [from, to] = [
                self.output.join(volume.file()),
                self.own_file(volume, "NAME"),
            ];
            text += &format!(
                "# cp --sparse=always {} {}\n",
                in_shell(&from),
                in_shell(&to)
            );
        }
        text
    }
}

/// One `[[volume]]`.
fn line_text(line: &Line) -> String {
    let mut text = format!(
        "\n[[volume]]\nname = {}\norigin = {}\nformat = \"{}\"\npolicy = \"{}\"\n",
        quoted(&line.name),
        quoted(&line.origin.display().to_string()),
        line.format,
        line.policy
    );
    if let Some(age) = &line.destage_after {
        text += &format!("destage-after = {}\n", quoted(age));
    }
    if let Some(group) = &line.group {
        text += &format!("group = {}\n", quoted(group));
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::fixture::with;

    #[test]
    fn the_lines_have_a_group_for_what_is_written_back_and_no_destage_of_what_may_be_lost() {
        let text = with("base = \"linux\"", "/srv/desk 1.qcow2", |it| {
            it.volumes_toml()
        });
        assert_eq!(
            text,
            "# The disks of one guest, which needs all of them, in this order.\n\
             # Made by `tenuto image split` from /srv/desk 1.qcow2.\n\
             # The first one stands on that image, which has to stay there, unchanged.\n\
             # Where [images] has `allow`, it has to name both places: [\"/out\",\"/srv\"]\n\n\
             [[volume]]\nname = \"desk-1-system\"\norigin = \"/out/system.qcow2\"\n\
             format = \"qcow2\"\npolicy = \"write-through\"\n\n\
             [[volume]]\nname = \"desk-1-write-back\"\norigin = \"/out/write-back.raw\"\n\
             format = \"raw\"\npolicy = \"write-back\"\ndestage-after = \"1h\"\n\
             group = \"desk-1\"\n\n\
             [[volume]]\nname = \"desk-1-never\"\norigin = \"/out/never.raw\"\n\
             format = \"raw\"\npolicy = \"write-back\"\ndestage-after = \"never\"\n"
        );
        let rules = "base = \"windows-capo\"\n[class.never]\npolicy = \"ephemeral\"\n";
        let text = with(rules, "/out/...", |it| it.volumes_toml());
        assert!(text.contains("name = \"guest-system\""), "{text}");
        assert!(
            text.contains("policy = \"write-back\"\ndestage-after = \"1h\"\ngroup = \"guest\"")
        );
        assert!(text.contains("policy = \"ephemeral\"\n"), "{text}");
        assert!(!text.contains("allow"), "{text}");
    }

    /// Fails when: a pool has no `[[pool]]` for a disk that a reset empties, the first member has
    /// no disk of its own for what is kept, or it is not told how another one gets its own.
    #[test]
    fn a_pool_has_clones_of_one_image_and_a_disk_of_each_member_for_what_is_kept() {
        let rules = "base = \"linux\"\n[pool]\nkeep = [\"/srv\"]\nname = \"office\"\n\
                     members = [\"desk-{001..100}\", \"lab\"]\n";
        let text = with(rules, "/srv/it's/gold.img", |it| {
            let own = it.own_disks();
            assert_eq!(own.len(), 1);
            assert_eq!(own[0].template, std::path::Path::new("/out/keep.raw"));
            assert_eq!(own[0].copy, std::path::Path::new("/out/keep-desk-001.raw"));
            it.volumes_toml()
        });
        let (_, text) = text
            .split_once("both places: [\"/out\",\"/srv/it's\"]\n")
            .unwrap();
        assert_eq!(
            text,
            "# The guest of desk-001 gets desk-001, desk-001-write-back, desk-001-never, \
             desk-001-keep, in this order.\n\
             # A reset throws away what a clone wrote to the disks of these pools. `reset-on` in \
             [defaults]\n# says when; without it `tenuto volume reset` of each of them does.\n\n\
             [[pool]]\nname = \"office\"\nimage = \"/out/system.qcow2\"\n\
             clone = \"ephemeral\"\nmembers = [\"desk-{001..100}\", \"lab\"]\n\n\
             [[pool]]\nname = \"office-write-back\"\nimage = \"/out/write-back.raw\"\n\
             clone = \"ephemeral\"\n\
             members = [\"desk-{001..100}-write-back\", \"lab-write-back\"]\n\n\
             [[pool]]\nname = \"office-never\"\nimage = \"/out/never.raw\"\n\
             clone = \"ephemeral\"\nmembers = [\"desk-{001..100}-never\", \"lab-never\"]\n\n\
             # desk-001 has a copy of its own of what outlives a reset. Each other member needs \
             one \
             before its\n# first start, and lines as below. For the member NAME it is made by\n\
             # cp --sparse=always /out/keep.raw /out/keep-NAME.raw\n\n\
             [[volume]]\nname = \"desk-001-keep\"\norigin = \"/out/keep-desk-001.raw\"\n\
             format = \"raw\"\npolicy = \"write-through\"\n"
        );
        let text = with("[pool]\nkeep = [\"/srv\"]\n", "/srv/gold.img", |it| {
            it.volumes_toml()
        });
        for line in ["name = \"gold\"\n", "members = [\"gold-001\"]\n"] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(text.contains("name = \"gold-001-keep\"\n"), "{text}");
        assert_eq!(
            super::in_shell(std::path::Path::new("/a b/it's")),
            "'/a b/it'\\''s'"
        );
    }
}
