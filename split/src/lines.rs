//! The lines of the configuration for the disks of a split.
//!
//! Always true: the same layout gives the same lines; each disk has a volume, that of the system
//! first. Deliberately absent: what a person is told, and where the lines are written.

use crate::kind::{Class, SYSTEM_FILE};
use crate::report::{Report, in_line};
use serde_json::{Value, json};
use std::path::PathBuf;

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

impl Report<'_> {
    /// The disks, that of the system first.
    pub fn lines(&self) -> Vec<Line> {
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
                Class::WriteThrough => ("write-through", None),
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

    /// The `[[volume]]` lines.
    pub fn volumes_toml(&self) -> String {
        let image = in_line(&self.image.display().to_string());
        let mut text = format!(
            "# The disks of one guest, which needs all of them, in this order.\n\
             # Made by `tenuto image split` from {image}.\n"
        );
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
        for line in self.lines() {
            let quoted = |it: &str| toml::Value::String(it.to_owned()).to_string();
            text += &format!(
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
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use crate::report::tests::with;

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
}
