//! Writes of three workloads by class: Capo's figure 10.
//!
//! Owns the workloads, the published figures and what is made of the counts. Always true: a row
//! says where its counts are from; what the tables do not reach is a line of the report.
//! Deliberately absent: how a workload is run.

use super::classes::{Count, Writes, part};
use serde_json::{Value, json};
use split::Class;

/// What stands for a user of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    Web,
    Mail,
    /// The same mails in a program that keeps them elsewhere.
    MailEvolution,
    Office,
}

/// What is asked of the classes of a workload, as part of its write requests.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wanted {
    LateOrNeverAbove(f64),
    WriteThroughBelow(f64),
}

impl Workload {
    pub const ALL: [Workload; 4] = [
        Workload::Web,
        Workload::Mail,
        Workload::MailEvolution,
        Workload::Office,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Workload::Web => "web",
            Workload::Mail => "mail",
            Workload::MailEvolution => "mail-evolution",
            Workload::Office => "office",
        }
    }

    pub const fn what(self) -> &'static str {
        match self {
            Workload::Web => "a browser as Firefox keeps its files, for Internet Explorer",
            Workload::Mail => "ten mails out and back as Thunderbird keeps them, for Outlook",
            Workload::MailEvolution => "the same as Evolution keeps them, for Outlook",
            Workload::Office => {
                "a document saved ten times, pages beside it, swap in use, for Word and Internet \
                 Explorer"
            }
        }
    }

    /// The program of the repository, and its arguments.
    pub const fn program(self) -> (&'static str, &'static str) {
        match self {
            Workload::Web => ("web", ""),
            Workload::Mail => ("mail", "--layout thunderbird"),
            Workload::MailEvolution => ("mail", "--layout evolution"),
            Workload::Office => ("office", ""),
        }
    }

    const fn wanted(self) -> Wanted {
        match self {
            Workload::Web => Wanted::LateOrNeverAbove(0.2),
            Workload::Mail | Workload::MailEvolution => Wanted::LateOrNeverAbove(0.5),
            Workload::Office => Wanted::WriteThroughBelow(0.36),
        }
    }
}

/// Where the counts of a row are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A trace of one disk, classed by the rules.
    Rules,
    /// The requests that the disks of a split got, one disk for each class.
    Disks,
}

impl Source {
    pub const fn name(self) -> &'static str {
        match self {
            Source::Rules => "by rules",
            Source::Disks => "split disks",
        }
    }

    const fn key(self) -> &'static str {
        match self {
            Source::Rules => "rules",
            Source::Disks => "disks",
        }
    }
}

/// What the storage had to take for a disk of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtOrigin {
    pub writes: u64,
    pub journal: u64,
    /// After all that is late was destaged too.
    pub destaged: u64,
}

pub struct Row {
    pub name: String,
    pub source: Source,
    pub writes: Writes,
    /// Of split disks, in the order of the classes.
    pub origin: Option<[AtOrigin; 3]>,
    /// What the program of the workload has said it did.
    pub said: Option<Value>,
}

/// What the run needed and did not find; its rows are not there.
pub struct Missing {
    pub what: &'static str,
    pub why: String,
}

pub struct Figure10 {
    /// The table of rules, as it was named.
    pub rules: String,
    pub rows: Vec<Row>,
    pub missing: Vec<Missing>,
    /// What the guest ran on.
    pub guest: Option<String>,
}

pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

pub const HEAD: [&str; 13] = [
    "WORKLOAD",
    "COUNTED",
    "WRITES",
    "WRITE-THROUGH",
    "WRITE-BACK",
    "NEVER",
    "MIB",
    "WRITE-THROUGH",
    "WRITE-BACK",
    "NEVER",
    "FILE SYSTEM",
    "NO FILE NOW",
    "PAGE FILE",
];

pub const ORIGIN_HEAD: [&str; 7] = [
    "WORKLOAD",
    "DISK",
    "ASKED OF IT",
    "MIB",
    "WRITTEN AT THE STORAGE",
    "JOURNAL THERE",
    "AFTER A DESTAGE OF WHAT IS LATE",
];

impl Row {
    fn cells(&self) -> Vec<String> {
        let all = self.writes.all();
        let requests = |count: Count| percent(part(count.requests, all.requests));
        let apart = |count: Count| match self.source {
            Source::Rules => requests(count),
            Source::Disks => "-".to_owned(),
        };
        let mut cells = vec![self.name.clone(), self.source.name().into()];
        cells.push(all.requests.to_string());
        cells.extend(Class::DURABILITIES.map(|it| percent(self.writes.share(it))));
        cells.push(mib(all.bytes));
        cells.extend(Class::DURABILITIES.map(|it| percent(self.writes.share_of_bytes(it))));
        let own = [self.writes.own, self.writes.nowhere, self.writes.page_file];
        cells.extend(own.map(apart));
        cells
    }

    /// Whether what is asked of a workload is reached.
    fn verdict(&self) -> Option<(bool, String)> {
        let workload = Workload::ALL
            .into_iter()
            .find(|it| it.name() == self.name)?;
        let of = |it| self.writes.share(it);
        let late = of(Class::WriteBack) + of(Class::Never);
        let through = of(Class::WriteThrough);
        let (is_reached, words) = match workload.wanted() {
            Wanted::LateOrNeverAbove(least) => (
                late > least,
                format!(
                    "{} of writes late or never (wanted: more than {:.0} %)",
                    percent(late),
                    least * 100.0
                ),
            ),
            Wanted::WriteThroughBelow(most) => (
                through < most,
                format!(
                    "{} of writes written through (wanted: less than {:.0} %)",
                    percent(through),
                    most * 100.0
                ),
            ),
        };
        let swap = match self.writes.page_file.requests {
            0 => String::new(),
            _ => format!(
                "; without the page file {} written through",
                percent(self.writes.share_without_page_file(Class::WriteThrough))
            ),
        };
        let reached = if is_reached { "reached" } else { "not reached" };
        let (name, source) = (&self.name, self.source.name());
        Some((
            is_reached,
            format!("{name}, {source}: {words}{swap}: {reached}"),
        ))
    }

    fn document(&self) -> Value {
        let mut document = self.writes.document();
        document["workload"] = json!(self.name);
        document["counted"] = json!(self.source.key());
        document["reached"] = json!(self.verdict().map(|it| it.0));
        document["program_says"] = json!(self.said);
        let origin = self.origin.as_ref().map(|all| {
            let named = Class::DURABILITIES.iter().zip(all).map(|(class, it)| {
                json!({
                    "class": class.name(),
                    "writes": it.writes,
                    "journal_requests": it.journal,
                    "writes_after_destage": it.destaged,
                })
            });
            named.collect::<Vec<Value>>()
        });
        document["origin"] = json!(origin);
        document
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

impl Figure10 {
    pub fn rows(&self) -> Vec<Vec<String>> {
        self.rows.iter().map(Row::cells).collect()
    }

    /// What was asked of each disk, and what came of it at the storage.
    pub fn origin_rows(&self) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        for row in &self.rows {
            let all = row.origin.iter().flatten();
            for (class, at) in Class::DURABILITIES.into_iter().zip(all) {
                let asked = row.writes.of(class);
                rows.push(vec![
                    row.name.clone(),
                    class.name().into(),
                    asked.requests.to_string(),
                    mib(asked.bytes),
                    at.writes.to_string(),
                    at.journal.to_string(),
                    at.destaged.to_string(),
                ]);
            }
        }
        rows
    }

    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for workload in Workload::ALL {
            if self.rows.iter().any(|it| it.name == workload.name()) {
                notes.push(format!("{}: {}", workload.name(), workload.what()));
            }
        }
        notes.extend(self.guest.clone());
        notes.extend(self.rows.iter().filter_map(|it| Some(it.verdict()?.1)));
        let missing = self.missing.iter();
        notes.extend(missing.map(|it| format!("{}: not measured: {}", it.what, it.why)));
        notes
    }

    /// Bars of the classes, in percent of requests and of bytes.
    pub fn bars(&self) -> [Vec<(String, Vec<f64>)>; 2] {
        let of = |share: fn(&Writes, Class) -> f64| {
            let rows = self.rows.iter().map(|row| {
                let name = format!("{}, {}", row.name, row.source.key());
                let shares = Class::DURABILITIES.map(|it| share(&row.writes, it) * 100.0);
                (name, shares.to_vec())
            });
            rows.collect::<Vec<_>>()
        };
        [of(Writes::share), of(Writes::share_of_bytes)]
    }

    pub fn document(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(Row::document).collect();
        let missing = self.missing.iter();
        let missing = missing.map(|it| json!({ "what": it.what, "why": it.why }));
        json!({
            "rules": self.rules,
            "rows": rows,
            "not_measured": missing.collect::<Vec<_>>(),
            "guest": self.guest,
        })
    }
}
