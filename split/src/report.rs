//! What a person and a script read of a split: the plan, and what may be lost.
//!
//! Always true: the same layout gives the same words; text that came from an image is shown in one
//! line. Deliberately absent: where it is printed, and the lines of the configuration.

use crate::kind::{AtRisk, Class, Layout, SYSTEM_FILE};
use crate::rules::Rules;
use serde_json::{Value, json};
use std::path::Path;

/// So many paths and files are told one by one.
const TOLD_MAX: usize = 40;

/// What is about to be done, or was.
pub struct Report<'a> {
    pub image: &'a Path,
    pub output: &'a Path,
    pub partition: u32,
    pub file_system: &'a str,
    pub layout: &'a Layout,
    pub rules: &'a Rules,
    pub copy: bool,
}

impl Report<'_> {
    /// Bytes and files by class, and by path.
    pub fn plan_text(&self) -> String {
        let listing = &self.layout.listing;
        let mut rows = vec![[
            "CLASS".to_owned(),
            "FILES".to_owned(),
            "DATA".to_owned(),
            "DISK".to_owned(),
            "PATH".to_owned(),
        ]];
        let policy = match self.rules.pool {
            Some(_) => "ephemeral",
            None => self.rules.system.name(),
        };
        rows.push([
            format!("system, {policy}"),
            listing.system_files.to_string(),
            human(listing.system_bytes),
            SYSTEM_FILE.to_owned(),
            "all else".to_owned(),
        ]);
        for volume in &self.layout.volumes {
            let class = volume.class;
            for moved in self.layout.moved_to(class) {
                rows.push([
                    self.shown_class(class),
                    moved.files.to_string(),
                    human(moved.bytes),
                    volume.file(),
                    in_line(&moved.path),
                ]);
            }
            if let Some(swap) = &volume.swap {
                let size = human(swap.bytes);
                let name = self.shown_class(class);
                rows.push([name, "-".to_owned(), size, volume.file(), "swap".to_owned()]);
            }
        }
        let shown = rows.len().min(TOLD_MAX + 2);
        let mut text = table(&rows[..shown]);
        if shown < rows.len() {
            text += &format!("… {} more paths; --json has all\n", rows.len() - shown);
        }
        text += &listed("note", &listing.warnings);
        text += &listed("refused", &listing.refusals);
        text
    }

    /// The name of a class, with what becomes of it in a pool.
    fn shown_class(&self, class: Class) -> String {
        match self.rules.pool.is_some() && class.is_relaxed() {
            true => format!("{}, ephemeral", class.name()),
            false => class.name().to_owned(),
        }
    }

    /// What a crash takes, and a reset, in words of the operator.
    pub fn loss_text(&self) -> String {
        let mut text = match self.rules.pool {
            Some(_) => self.reset_text(),
            None => self.crash_text(),
        };
        let end = match self.rules.pool {
            Some(_) => "The keep of [pool] lets a path outlive a reset.\n",
            None => "A [[keep]] in a file of rules leaves a path on the system disk.\n",
        };
        text += &risk_text(&self.layout.listing.at_risk, end);
        if self.rules.moves.iter().any(|it| it.path.has_wildcard()) {
            text += "Directories that a * stands for and that are made later stay on the system \
                     disk.\n";
        }
        text
    }

    fn crash_text(&self) -> String {
        let mut text = String::from("What is lost if this host and its SSD are lost:\n");
        if self.rules.system == Class::WriteBack {
            let age = &self.rules.system_destage_after;
            text += &format!("  system disk: {}\n", up_to(age));
        }
        for class in Class::ALL.into_iter().filter(|it| it.is_relaxed()) {
            let disk = self.rules.disk(class);
            let what = match class {
                Class::Never if disk.ephemeral => {
                    "all that was written since the last reset; a reset loses it too".to_owned()
                }
                Class::Never => "all that was written since the split".to_owned(),
                _ => up_to(&disk.destage_after),
            };
            text += &self.class_text(class, &what);
        }
        text + "Each disk is then a state of its own past; what one disk has may name what \
                another one lost.\n"
    }

    fn reset_text(&self) -> String {
        let mut text = String::from("What a clone loses at its reset:\n");
        text += "  system disk: all that it wrote\n";
        for class in Class::ALL.into_iter().filter(|it| it.is_relaxed()) {
            text += &self.class_text(class, "all that it wrote");
        }
        for class in Class::ALL.into_iter().filter(|it| !it.is_relaxed()) {
            text += &self.class_text(class, "nothing");
        }
        text + "The disks of which all is lost are ephemeral clones of one image each; each clone \
                has the others for\nitself. The loss of a host with its SSD is a reset of its \
                clones, and takes nothing else that was flushed.\n"
    }

    /// What is lost of a class, and in which paths; nothing where it has none.
    fn class_text(&self, class: Class, what: &str) -> String {
        let moved = self.layout.moved_to(class);
        let paths: Vec<String> = moved.map(|it| in_line(&it.path)).collect();
        match paths.is_empty() {
            true => String::new(),
            false => format!("  {}: {what}\n    in {}\n", class.name(), shortened(&paths)),
        }
    }

    pub fn json(&self, state: &str) -> Value {
        let listing = &self.layout.listing;
        let volumes = self.lines().into_iter().map(|it| {
            json!({
                "name": it.name,
                "origin": it.origin.display().to_string(),
                "format": it.format,
                "policy": it.policy,
                "destage_after": it.destage_after,
                "group": it.group,
            })
        });
        let classes = self.layout.volumes.iter().map(|volume| {
            let moved = || self.layout.moved_to(volume.class);
            json!({
                "class": volume.class.name(),
                "files": moved().map(|it| it.files).sum::<u64>(),
                "bytes": moved().map(|it| it.bytes).sum::<u64>(),
                "disk": self.output.join(volume.file()).display().to_string(),
                "file_system_bytes": volume.bytes,
                "swap_bytes": volume.swap.as_ref().map(|it| it.bytes),
                "outlives_reset": self.rules.pool.as_ref().map(|_| !volume.class.is_relaxed()),
            })
        });
        let pools = self.pools().into_iter().map(|it| {
            json!({
                "name": it.name,
                "image": it.image.display().to_string(),
                "clone": "ephemeral",
                "members": it.members,
            })
        });
        json!({
            "image": self.image.display().to_string(),
            "output": self.output.display().to_string(),
            "state": state,
            "partition": self.partition,
            "file_system": self.file_system,
            "system": { "files": listing.system_files, "bytes": listing.system_bytes },
            "classes": classes.collect::<Vec<Value>>(),
            "moved": listing.moved,
            "page_files": listing.page_files,
            "at_risk": listing.at_risk,
            "warnings": listing.warnings,
            "refusals": listing.refusals,
            "forgotten": listing.forgotten,
            "pools": pools.collect::<Vec<Value>>(),
            "volumes": volumes.collect::<Vec<Value>>(),
        })
    }
}

fn up_to(age: &str) -> String {
    match age {
        "never" => "all that was written since the split".to_owned(),
        age => format!("up to {age} of changes, and more while the storage is slow"),
    }
}

/// Data that users would miss, with a last line of what helps.
fn risk_text(at_risk: &[AtRisk], end: &str) -> String {
    if at_risk.is_empty() {
        return String::new();
    }
    let mut text = String::from("Among it is what users would miss:\n");
    for it in at_risk.iter().take(TOLD_MAX) {
        let (class, size) = (it.class.name(), human(it.bytes));
        text += &format!("  {class}  {size}  {}\n", in_line(&it.path));
    }
    if at_risk.len() > TOLD_MAX {
        text += &format!("  … {} more; --json has all\n", at_risk.len() - TOLD_MAX);
    }
    text + end
}

fn listed(name: &str, lines: &[String]) -> String {
    let shown = lines.iter().take(TOLD_MAX);
    let mut text: String = shown
        .map(|it| format!("{name}: {}\n", in_line(it)))
        .collect();
    if lines.len() > TOLD_MAX {
        text += &format!("{name}: {} more; --json has all\n", lines.len() - TOLD_MAX);
    }
    text
}

fn shortened(paths: &[String]) -> String {
    match paths.len() {
        0..=TOLD_MAX => paths.join(", "),
        count => format!(
            "{}, and {} more",
            paths[..TOLD_MAX].join(", "),
            count - TOLD_MAX
        ),
    }
}

/// A name of the image as one line, without what a terminal would obey.
pub(crate) fn in_line(text: &str) -> String {
    text.chars()
        .map(|it| if it.is_control() { '?' } else { it })
        .collect()
}

fn human(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = UNITS.iter().find(|(of, _)| bytes >= *of);
    match unit {
        None => format!("{bytes} B"),
        Some((of, name)) => {
            let tenths = u128::from(bytes) * 10 / u128::from(*of);
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
    }
}

/// Columns as wide as their widest cell; numbers to the right.
fn table(rows: &[[String; 5]]) -> String {
    let width = |at: usize| {
        rows.iter()
            .map(|it| it[at].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..5).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let line = format!(
            "{:<a$}  {:>b$}  {:>c$}  {:<d$}  {}",
            row[0],
            row[1],
            row[2],
            row[3],
            row[4],
            a = widths[0],
            b = widths[1],
            c = widths[2],
            d = widths[3]
        );
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::fixture::with;

    #[test]
    fn a_plan_shows_files_and_bytes_by_class_and_what_a_crash_takes() {
        let (plan, loss) = with("base = \"linux\"", "/srv/a", |it| {
            (it.plan_text(), it.loss_text())
        });
        assert_eq!(
            plan,
            "CLASS                  FILES     DATA  DISK            PATH\n\
             system, write-through      7  1.5 KiB  system.qcow2    all else\n\
             write-back                 3  5.0 MiB  write-back.raw  /opt?[31m\n\
             never                      3  5.0 MiB  never.raw       /tmp\n\
             note: be careful\n"
        );
        assert_eq!(
            loss,
            "What is lost if this host and its SSD are lost:\n\
             \x20 write-back: up to 1h of changes, and more while the storage is slow\n\
             \x20   in /opt?[31m\n\
             \x20 never: all that was written since the split\n\
             \x20   in /tmp\n\
             Each disk is then a state of its own past; what one disk has may name what another \
             one lost.\n\
             Among it is what users would miss:\n\
             \x20 write-back  12 B  /home/a/.config\n\
             A [[keep]] in a file of rules leaves a path on the system disk.\n\
             Directories that a * stands for and that are made later stay on the system disk.\n"
        );
    }

    /// Fails when: a path that a reset takes is told as one that outlives it, or the other way
    /// round.
    #[test]
    fn a_plan_of_a_pool_shows_what_a_reset_takes() {
        let rules = "base = \"linux\"\n[pool]\nkeep = [\"/srv\"]\n";
        let (plan, loss, json) = with(rules, "/srv/a", |it| {
            (it.plan_text(), it.loss_text(), it.json("none"))
        });
        assert_eq!(
            plan,
            "CLASS                  FILES     DATA  DISK            PATH\n\
             system, ephemeral          7  1.5 KiB  system.qcow2    all else\n\
             write-back, ephemeral      3  5.0 MiB  write-back.raw  /opt?[31m\n\
             never, ephemeral           3  5.0 MiB  never.raw       /tmp\n\
             keep                       3  5.0 MiB  keep.raw        /srv\n\
             note: be careful\n"
        );
        assert_eq!(
            loss,
            "What a clone loses at its reset:\n\
             \x20 system disk: all that it wrote\n\
             \x20 write-back: all that it wrote\n\
             \x20   in /opt?[31m\n\
             \x20 never: all that it wrote\n\
             \x20   in /tmp\n\
             \x20 keep: nothing\n\
             \x20   in /srv\n\
             The disks of which all is lost are ephemeral clones of one image each; each clone has \
             the others for\nitself. The loss of a host with its SSD is a reset of its clones, and \
             takes nothing else that was flushed.\n\
             Among it is what users would miss:\n\
             \x20 write-back  12 B  /home/a/.config\n\
             The keep of [pool] lets a path outlive a reset.\n\
             Directories that a * stands for and that are made later stay on the system disk.\n"
        );
        let outlives: Vec<Option<bool>> = json["classes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["outlives_reset"].as_bool())
            .collect();
        assert_eq!(outlives, [Some(false), Some(false), Some(true)]);
        assert_eq!(json["pools"][1]["name"], "a-write-back");
        assert_eq!(json["volumes"][0]["name"], "a-001-keep");
    }
}
