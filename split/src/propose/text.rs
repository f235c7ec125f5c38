//! A proposal as a table of rules, and as a document.
//!
//! Always true: each line has its figures above it as a comment; text that came from an image stays
//! within its comment or its string; a table without a path that moves is not made. Deliberately
//! absent: where it is written.

use super::choose::{Chosen, Cost};
use super::classed::Known;
use super::facts::Facts;
use super::judge::{Candidate, Judged, Judgement, Verdict, asks_rule, in_line};
use super::{Figures, is_above};
use crate::class::Class;
use crate::rules::Family;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// So many directories of a kind are told in the table; the document has all.
const TOLD_MAX: usize = 20;

/// Requests at the shared storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    pub reads: u64,
    pub writes: u64,
    /// Of journals and ledgers.
    pub beside: u64,
    pub syncs: u64,
}

impl Requests {
    /// Syncs move no data, and are counted beside.
    pub fn all(self) -> u64 {
        self.reads + self.writes + self.beside
    }
}

/// What the engine counted for the disk of a class; `None`: what stays on the system disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    pub class: Option<Class>,
    pub before: Requests,
    pub after: Requests,
}

/// All that was found.
pub struct Proposal<'a> {
    pub facts: &'a Facts,
    pub judgement: &'a Judgement,
    pub costs: &'a [Cost],
    pub chosen: &'a Chosen,
    /// As a table writes a time.
    pub period: &'a str,
    pub min_share: f64,
    pub seconds: f64,
    /// Of all disks with an image.
    pub all: Figures,
    /// Of these, in no file of the image.
    pub nowhere: Figures,
    pub starts: u64,
    pub totals: &'a [Total],
}

impl Proposal<'_> {
    fn lines(&self) -> impl Iterator<Item = (&Candidate, Cost)> {
        let lines = self.chosen.lines.iter();
        lines.map(|at| (&self.judgement.candidates[*at], self.costs[*at]))
    }

    /// What the lines keep, once each.
    fn keeps(&self) -> BTreeSet<(&str, &'static str)> {
        let keeps = self.lines().flat_map(|it| &it.0.keeps);
        keeps.map(|(key, why)| (&**key, *why)).collect()
    }

    /// A table needs a path that moves.
    pub fn is_table(&self) -> bool {
        self.lines().any(|it| !it.0.is_page_file)
    }

    /// Why nothing is proposed, if so.
    pub fn nothing(&self) -> &'static str {
        match self.judgement.candidates.is_empty() {
            _ if self.all.writes == 0 => "no trace has a write to a disk with an image",
            true => "no directory may be late by its figures",
            false => "no directory that may be late saves as many requests as --min-share says",
        }
    }

    fn asking(&self) -> Vec<&Judged> {
        let all = self.judgement.directories.iter();
        let mut asking: Vec<&Judged> = all
            .filter(|it| it.verdict == Verdict::AsksForDurability)
            .collect();
        // One that has all of it in a directory below says no more than that.
        let told = asking.clone();
        asking.retain(|it| {
            let below = format!("{}/", it.key);
            let mut others = told.iter();
            !others.any(|other| {
                other.key.starts_with(&below) && other.figures.flushed == it.figures.flushed
            })
        });
        asking.sort_by_key(|it| std::cmp::Reverse(it.figures.writes));
        asking
    }

    /// What stays, with its reason: the deepest that counts, and what saves too little.
    fn staying(&self) -> Vec<(&str, Figures, String)> {
        let mut staying = Vec::new();
        for it in &self.judgement.directories {
            // What of a candidate would not go by itself goes with it.
            let is_alone = it.is_deepest && self.judgement.candidate(&it.key).is_none();
            if let (Verdict::Stays(why), true) = (&it.verdict, is_alone) {
                staying.push((&*it.key, it.figures, why.clone()));
            }
        }
        for at in &self.chosen.left_out {
            let (it, cost) = (&self.judgement.candidates[*at], self.costs[*at]);
            let why = format!(
                "saves too little: {} requests at the storage, {} before",
                cost.saved(),
                cost.before
            );
            staying.push((&*it.key, it.figures, why));
        }
        staying.sort_by_key(|it| (std::cmp::Reverse(it.1.writes), it.0));
        staying
    }

    pub fn table(&self) -> String {
        let mut text = self.head();
        text += &format!(
            "\n[class.write-back]\nsize = \"auto\"\ndestage-after = \"{}\"\n\n\
             [class.never]\nsize = \"auto\"\n",
            self.period
        );
        let page_file = self.lines().find(|it| it.0.is_page_file);
        if page_file.is_some() && self.facts.family() == Family::Windows {
            text += "letter = \"T\"\n";
        }
        if let Some((it, cost)) = page_file {
            text += &format!(
                "\n{}[page-file]\nclass = \"never\"\n",
                self.figures(it, cost)
            );
        }
        for (it, cost) in self.lines().filter(|it| !it.0.is_page_file) {
            text += &format!(
                "\n{}[[move]]\npath = {}\nclass = \"{}\"\n",
                self.figures(it, cost),
                quoted(&self.facts.shown(&it.key)),
                it.class.name()
            );
        }
        for (key, why) in self.keeps() {
            let path = quoted(&self.facts.shown(key));
            text += &format!("\n# Stays: {why}.\n[[keep]]\npath = {path}\n");
        }
        text
    }

    fn head(&self) -> String {
        let mut text = format!(
            "# Proposed from a trace by `tenuto trace analyze`. It is applied by nothing: read \
             it, then give it\n# to `tenuto image split --rules`.\n#\n\
             # Trace: {:.0} s, {} write requests with {} bytes to disks with an image, {} starts \
             of a guest.\n\
             # Of the writes {} go to no file of the image: metadata, free space, files that are \
             gone.\n#\n\
             # Requests at the storage by the offline engine, all written through and with this \
             table:\n",
            self.seconds,
            self.all.writes,
            self.all.bytes,
            self.starts,
            percent(self.nowhere.writes, self.all.writes),
        );
        for total in self.totals {
            let name = total.class.map_or("system disk", Class::name);
            let (before, after) = (total.before, total.after);
            text += &format!(
                "#   {name:<13}  {:>9} -> {:>9}\n",
                before.all(),
                after.all()
            );
        }
        let (before, after) = self.sums();
        text += &format!(
            "#   {:<13}  {before:>9} -> {after:>9}, {} less\n",
            "all",
            percent(before.saturating_sub(after), before)
        );
        let asking = self.asking().into_iter().map(|it| {
            let (figures, shown) = (it.figures, self.facts.shown(&it.key));
            let writes = percent(figures.writes, self.all.writes);
            let flushed = percent(figures.flushed, figures.writes);
            format!(
                "{}: {writes} of the writes, {flushed} flushed",
                in_line(&shown)
            )
        });
        let rule = asks_rule();
        text += &listed(
            &format!("Asks for durability, so never late ({rule})"),
            asking.collect(),
        );
        let staying = self.staying().into_iter().map(|(key, figures, why)| {
            let writes = percent(figures.writes, self.all.writes);
            format!(
                "{}: {writes} of the writes; {why}",
                in_line(&self.facts.shown(key))
            )
        });
        text += &listed("Stays", staying.collect());
        if self.lines().any(|it| it.0.class == Class::WriteBack) && self.facts.has_packages {
            text += "#\n# After the loss of a host the list of packages may be newer than their \
                     files that are written\n# back: `dpkg --verify` in the guest names them.\n";
        }
        text
    }

    fn sums(&self) -> (u64, u64) {
        let totals = self.totals.iter();
        totals.fold((0, 0), |(before, after), it| {
            (before + it.before.all(), after + it.after.all())
        })
    }

    /// The comment above a line.
    fn figures(&self, it: &Candidate, cost: Cost) -> String {
        let (figures, all) = (it.figures, self.all);
        let [short, long, period] = figures
            .rewritten
            .map(|bytes| percent(bytes, figures.looked_bytes));
        format!(
            "# {} of the writes, {} of the bytes; flushed {}; gone {}.\n\
             # Rewritten within 10s {short}, 10m {long}, {} {period}; {} requests at the storage \
             before, {} after.\n# {}.\n",
            percent(figures.writes, all.writes),
            percent(figures.bytes, all.bytes),
            percent(figures.flushed, figures.writes),
            percent(figures.gone, figures.writes),
            self.period,
            cost.before,
            cost.after,
            capital(&it.why),
        )
    }

    pub fn json(&self) -> Value {
        let directories = self.judgement.directories.iter();
        let directories: Vec<Value> = directories.map(|it| self.directory(it)).collect();
        let lines: Vec<Value> = self.lines().map(|(it, cost)| self.line(it, cost)).collect();
        let keeps = self.keeps().into_iter();
        let keeps: Vec<Value> = keeps
            .map(|(key, why)| json!({ "path": self.facts.shown(key), "why": why }))
            .collect();
        let staying = self.staying().into_iter();
        let staying: Vec<Value> = staying
            .map(|(key, _, why)| json!({ "path": self.facts.shown(key), "why": why }))
            .collect();
        let asking = self.asking().into_iter();
        let asking: Vec<String> = asking.map(|it| self.facts.shown(&it.key)).collect();
        let totals = self.totals.iter();
        let totals: Vec<Value> = totals
            .map(|it| {
                let name = it.class.map_or("system", Class::name);
                json!({ "class": name, "before": requests(it.before), "after": requests(it.after) })
            })
            .collect();
        let (before, after) = match self.totals.is_empty() {
            true => (None, None),
            false => (Some(self.sums().0), Some(self.sums().1)),
        };
        json!({
            "family": self.facts.family(),
            "period": self.period,
            "min_share": self.min_share,
            "starts": self.starts,
            "writes": self.all.writes,
            "write_bytes": self.all.bytes,
            "in_no_file": { "writes": self.nowhere.writes, "write_bytes": self.nowhere.bytes },
            "lists_of_packages": self.facts.has_packages,
            "moves": lines,
            "keeps": keeps,
            "asks_for_durability": asking,
            "stays": staying,
            "directories": directories,
            "classes": totals,
            "origin_requests_before": before,
            "origin_requests_after": after,
        })
    }

    fn line(&self, it: &Candidate, cost: Cost) -> Value {
        let mut line = self.measured(&it.key, it.figures);
        line["class"] = it.class.name().into();
        line["page_file"] = it.is_page_file.into();
        line["why"] = it.why.clone().into();
        line["origin_requests_before"] = cost.before.into();
        line["origin_requests_after"] = cost.after.into();
        line
    }

    fn directory(&self, it: &Judged) -> Value {
        let (verdict, why) = match &it.verdict {
            Verdict::Relaxed(class, why) => (class.name(), why.clone()),
            Verdict::AsksForDurability => ("asks-for-durability", asks_rule()),
            Verdict::Stays(why) => ("stays", why.clone()),
        };
        let mut directory = self.measured(&it.key, it.figures);
        directory["verdict"] = verdict.into();
        directory["why"] = why.into();
        directory["known"] = match self.facts.known(&it.key) {
            Known::Unknown => Value::Null,
            Known::Kept => "keep".into(),
            Known::Moved(class) => class.name().into(),
        };
        directory
    }

    fn measured(&self, key: &str, figures: Figures) -> Value {
        let all = self.all;
        let rewritten = figures.rewritten.map(|it| share(it, figures.looked_bytes));
        json!({
            "path": self.facts.shown(key),
            "writes": figures.writes,
            "write_bytes": figures.bytes,
            "share_of_writes": share(figures.writes, all.writes),
            "share_of_write_bytes": share(figures.bytes, all.bytes),
            "rewritten_share": {
                "within_10s": rewritten[0],
                "within_10m": rewritten[1],
                "within_period": rewritten[2],
            },
            "flushed_share": share(figures.flushed, figures.writes),
            "gone_share": share(figures.gone, figures.writes),
            "package_share": share(figures.owned, figures.writes),
            "reads_after_start": figures.has_start.then_some(figures.reads_after_start),
        })
    }
}

fn requests(it: Requests) -> Value {
    json!({
        "requests": it.all(),
        "reads": it.reads,
        "writes": it.writes,
        "beside": it.beside,
        "syncs": it.syncs,
    })
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Rounded; what is not nothing is never shown as nothing.
fn percent(part: u64, whole: u64) -> String {
    let Some(share) = share(part, whole) else {
        return "-".to_owned();
    };
    let shown = format!("{:.1}", share * 100.0);
    match is_above(part, whole, 0) && shown == "0.0" {
        true => "< 0.1 %".to_owned(),
        false => format!("{shown} %"),
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|it| it.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn listed(title: &str, lines: Vec<String>) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let more = lines.len().saturating_sub(TOLD_MAX);
    let mut text = format!("#\n# {title}:\n");
    for line in lines.iter().take(TOLD_MAX) {
        text += &format!("#   {line}\n");
    }
    if more > 0 {
        text += &format!("#   and {more} more; --json has all\n");
    }
    text
}
