//! Whether a directory may be late, by its figures and by what it is.
//!
//! Always true: a candidate is a directory of the image, lies in no other candidate of its class,
//! and is closed under hard links, what is kept inside of it too. A directory is preferred to its
//! children only where all of those that count are of its class. Deliberately absent: what a
//! candidate saves.

use super::classed::Known;
use super::facts::{Facts, Held, is_within, parent};
use super::{ASKS_PERCENT, Figures, REWRITTEN_PERCENT};
use crate::class::Class;
use crate::rules::Family;
use std::collections::{BTreeMap, BTreeSet};

/// Each costs volumes of a replay.
const CANDIDATES_MAX: usize = 64;
/// A table with more exceptions of one path is none that a person reads.
const KEEPS_MAX: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may have that class, for this reason.
    Relaxed(Class, String),
    /// A flush follows too many of its writes soon.
    AsksForDurability,
    /// It stays, for this reason.
    Stays(String),
}

/// One directory with all that is below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    pub key: String,
    pub figures: Figures,
    pub verdict: Verdict,
    /// None of the directories in it has as much as is looked at.
    pub is_deepest: bool,
}

/// What a table may have a line for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub key: String,
    pub class: Class,
    pub why: String,
    pub figures: Figures,
    /// What of it stays, and why.
    pub keeps: Vec<(String, &'static str)>,
    pub is_page_file: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Those with enough writes, in the order of their names.
    pub directories: Vec<Judged>,
    pub candidates: Vec<Candidate>,
}

impl Judgement {
    /// With some of the candidates alone.
    pub fn only(&self, places: &[usize]) -> Judgement {
        let candidates = places.iter().map(|at| self.candidates[*at].clone());
        Judgement {
            directories: self.directories.clone(),
            candidates: candidates.collect(),
        }
    }

    /// The candidate that a path belongs to: the deepest, unless it keeps the path.
    pub fn candidate(&self, key: &str) -> Option<usize> {
        let all = self.candidates.iter().enumerate();
        let within = all.filter(|it| is_within(key, &it.1.key));
        let (at, deepest) = within.max_by_key(|it| it.1.key.len())?;
        let is_kept = deepest.keeps.iter().any(|it| is_within(key, &it.0));
        (!is_kept).then_some(at)
    }
}

/// Judges all directories with at least so many writes; of each the figures of what lies directly
/// in it are given.
pub fn judge<'a>(
    facts: &Facts,
    own: impl IntoIterator<Item = (&'a str, Figures)>,
    least_writes: u64,
) -> Judgement {
    let mut judge = Judge {
        facts,
        sums: BTreeMap::new(),
        children: BTreeMap::new(),
        least_writes,
        asking: BTreeSet::new(),
        judgement: Judgement::default(),
    };
    for (key, figures) in own {
        judge.add(key, figures);
    }
    let asking = judge.sums.iter().filter(|it| it.1.asks_for_durability());
    judge.asking = asking.map(|it| it.0.clone()).collect();
    judge.visit("", None);
    let mut judgement = judge.judgement;
    apart(&mut judgement.candidates);
    cut(&mut judgement);
    judgement.directories.sort_by(|a, b| a.key.cmp(&b.key));
    judgement.candidates.sort_by(|a, b| a.key.cmp(&b.key));
    judgement
}

/// A candidate inside of another one counts for itself.
fn apart(candidates: &mut [Candidate]) {
    let all = candidates.to_vec();
    for outer in candidates {
        let inner = all
            .iter()
            .filter(|it| it.key != outer.key && is_within(&it.key, &outer.key));
        inner.for_each(|it| outer.figures -= it.figures);
    }
}

/// Of too many candidates those with most writes stay.
fn cut(judgement: &mut Judgement) {
    let candidates = &mut judgement.candidates;
    candidates.sort_by(|a, b| (b.figures.writes, &a.key).cmp(&(a.figures.writes, &b.key)));
    let rest = candidates.split_off(candidates.len().min(CANDIDATES_MAX));
    for it in rest {
        let mut all = judgement.directories.iter_mut();
        if let Some(judged) = all.find(|judged| judged.key == it.key) {
            let why = format!("{CANDIDATES_MAX} others that may be late have more writes");
            judged.verdict = Verdict::Stays(why);
        }
    }
}

struct Judge<'a> {
    facts: &'a Facts,
    /// By directory, with all that is below.
    sums: BTreeMap<String, Figures>,
    children: BTreeMap<String, BTreeSet<String>>,
    least_writes: u64,
    asking: BTreeSet<String>,
    judgement: Judgement,
}

impl Judge<'_> {
    fn add(&mut self, key: &str, figures: Figures) {
        let mut at = key;
        loop {
            *self.sums.entry(at.to_owned()).or_default() += figures;
            if at.is_empty() {
                return;
            }
            let above = parent(at);
            let children = self.children.entry(above.to_owned()).or_default();
            children.insert(at.to_owned());
            at = above;
        }
    }

    /// Children with enough writes.
    fn counted(&self, key: &str) -> Vec<String> {
        let all = self.children.get(key).into_iter().flatten();
        let counted = all.filter(|it| self.sums[*it].writes >= self.least_writes.max(1));
        counted.cloned().collect()
    }

    /// `outer` is the class of the candidate that it lies in.
    fn visit(&mut self, key: &str, outer: Option<Class>) {
        let Some(figures) = self.sums.get(key).copied() else {
            return;
        };
        let (verdict, keeps) = self.verdict(key);
        let counted = self.counted(key);
        self.judgement.directories.push(Judged {
            key: key.to_owned(),
            figures,
            verdict: verdict.clone(),
            is_deepest: counted.is_empty(),
        });
        let is_taken = match &verdict {
            // In a directory that is taken only what may be lost is of another class.
            Verdict::Relaxed(Class::Never, _) => outer != Some(Class::Never),
            Verdict::Relaxed(class, _) => {
                outer.is_none() && self.is_preferred(key, *class, &counted)
            }
            Verdict::AsksForDurability | Verdict::Stays(_) => false,
        };
        let mut outer = outer;
        if let (true, Verdict::Relaxed(class, why)) = (is_taken, verdict) {
            self.judgement.candidates.push(Candidate {
                key: key.to_owned(),
                class,
                why,
                figures: self.without(key, &keeps),
                keeps,
                is_page_file: self.facts.is_page_file(key),
            });
            outer = Some(class);
        }
        for child in counted {
            self.visit(&child, outer);
        }
    }

    fn class(&self, key: &str) -> Option<Class> {
        match self.verdict(key).0 {
            Verdict::Relaxed(class, _) => Some(class),
            Verdict::AsksForDurability | Verdict::Stays(_) => None,
        }
    }

    /// Whether a directory goes as a whole: of its parts that count there are several, and each
    /// may go too or is kept. The parts are its children, and all else as one.
    fn is_preferred(&self, key: &str, class: Class, counted: &[String]) -> bool {
        let mut rest = self.sums[key];
        counted.iter().for_each(|it| rest -= self.sums[it]);
        let rest_counts = rest.writes >= self.least_writes.max(1);
        let may_go = |it: &String| {
            let of = self.class(it);
            of == Some(class) || of == Some(Class::Never) || self.is_kept(it)
        };
        let rest_may_go = || {
            self.class_by_figures(key, rest)
                .is_ok_and(|it| it.0 == class)
        };
        let late = counted.iter().filter(|it| self.class(it) == Some(class));
        let has_parts = rest_counts || late.count() > 1;
        has_parts && counted.iter().all(may_go) && (!rest_counts || rest_may_go())
    }

    /// Whether a directory stays by a line of its own where the one above goes.
    fn is_kept(&self, key: &str) -> bool {
        let held = self.facts.held(key);
        self.asking.contains(key) || matches!(held, Some(Held::Users | Held::System))
    }

    /// What becomes of a directory, and what of it stays if it goes.
    fn verdict(&self, key: &str) -> (Verdict, Vec<(String, &'static str)>) {
        let stays = |why: &str| (Verdict::Stays(why.to_owned()), Vec::new());
        let (facts, figures) = (self.facts, self.sums[key]);
        if figures.asks_for_durability() {
            return (Verdict::AsksForDurability, Vec::new());
        }
        if let Some(held) = facts.held(key) {
            return stays(held_why(held));
        }
        if facts.is_page_file(key) {
            return self.page_file(figures);
        }
        if !facts.has_directory(key) {
            return stays("is no directory of the image now");
        }
        if let Some(why) = facts.unnamable(key) {
            return stays(why);
        }
        let goes = || {
            // First by all of it, because what stays is found by a look at the whole image.
            self.class_by_figures(key, figures)?;
            let keeps = self.keeps(key)?;
            let left = self.without(key, &keeps);
            if left.writes == 0 {
                return Err("all of its writes are in what stays".to_owned());
            }
            let (class, why) = self.class_by_figures(key, left)?;
            Ok((Verdict::Relaxed(class, why), keeps))
        };
        goes().unwrap_or_else(|why: String| (Verdict::Stays(why), Vec::new()))
    }

    /// The figures of a directory without what it keeps.
    fn without(&self, key: &str, keeps: &[(String, &'static str)]) -> Figures {
        let mut left = self.sums[key];
        let kept = keeps.iter().filter_map(|it| self.sums.get(&it.0));
        kept.for_each(|it| left -= *it);
        left
    }

    fn page_file(&self, figures: Figures) -> (Verdict, Vec<(String, &'static str)>) {
        let verdict = match self.lost_at_a_start(figures) {
            Ok(why) => Verdict::Relaxed(Class::Never, format!("the page file; {why}")),
            Err(why) => Verdict::Stays(why),
        };
        (verdict, Vec::new())
    }

    /// Whether a guest can do without, by what it reads after a start.
    fn lost_at_a_start(&self, figures: Figures) -> Result<String, String> {
        match (figures.reads_after_start, figures.has_start) {
            (0, true) => Ok("no read after a start of what was written before it".to_owned()),
            (0, false) => {
                let why = "no start of the guest in the trace, so the name alone says it";
                Ok(why.to_owned())
            }
            (reads, _) => Err(format!(
                "{reads} reads after a start of the guest found what was written before it"
            )),
        }
    }

    fn class_by_figures(&self, key: &str, figures: Figures) -> Result<(Class, String), String> {
        let facts = self.facts;
        let mut against = String::new();
        if facts.known(key) == Known::Kept {
            return Err(format!("kept by the table {}", facts.table()));
        }
        if facts.known(key) == Known::Moved(Class::Never) {
            match self.lost_at_a_start(figures) {
                Ok(why) => {
                    let table = facts.table();
                    let why = format!("known as temporary by the table {table}; {why}");
                    return Ok((Class::Never, why));
                }
                Err(why) => against = format!("{why}; "),
            }
        }
        if facts.has_packages && figures.owned == figures.writes && figures.writes > 0 {
            let why = format!("{against}each file that was written belongs to a package");
            return Ok((Class::WriteBack, why));
        }
        let is_known = facts.known(key) == Known::Moved(Class::WriteBack);
        if is_known && !facts.has_packages {
            let why = format!("{against}written back by the table {}", facts.table());
            return Ok((Class::WriteBack, why));
        }
        if figures.is_rewritten() {
            let why =
                format!("{against}more than {REWRITTEN_PERCENT} % is rewritten within the period");
            return Ok((Class::WriteBack, why));
        }
        Err(format!(
            "{against}no name, package or rewriting says that it may be late"
        ))
    }

    /// What stays if a directory goes; or why it cannot go.
    fn keeps(&self, key: &str) -> Result<Vec<(String, &'static str)>, String> {
        let facts = self.facts;
        if let Some(why) = linked_out(facts, key) {
            return Err(why);
        }
        let below = format!("{key}/");
        let asking = self.asking.range(below.clone()..);
        let asking = asking.take_while(|it| it.starts_with(&below));
        let asks = "asks for durability";
        let mut keeps: BTreeMap<String, &'static str> =
            asking.map(|it| (it.clone(), asks)).collect();
        for kept in facts.kept_below(key) {
            let why = facts.held(&kept).map_or("kept by the table", held_why);
            keeps.insert(kept, why);
        }
        let mut outermost: Vec<(String, &'static str)> = Vec::new();
        for (kept, why) in keeps {
            let is_inside = outermost.iter().any(|it| is_within(&kept, &it.0));
            // What is gone from the image needs no line.
            if !is_inside && facts.has_directory(&kept) {
                outermost.push((kept, why));
            }
        }
        for (kept, why) in &outermost {
            let shown = facts.shown(kept);
            if facts.family() == Family::Windows {
                return Err(format!(
                    "{shown} in it stays ({why}), and nothing can on NTFS"
                ));
            }
            if let Some(why) = facts.unnamable(kept) {
                return Err(format!("{} in it has to stay and {why}", in_line(&shown)));
            }
            if let Some(why) = linked_out(facts, kept) {
                return Err(format!("{shown} in it has to stay, and {why}"));
            }
        }
        match outermost.len() {
            0..=KEEPS_MAX => Ok(outermost),
            count => Err(format!("{count} directories in it would have to stay")),
        }
    }
}

fn linked_out(facts: &Facts, key: &str) -> Option<String> {
    let (inside, outside) = facts.link_out_of(key)?;
    let (inside, outside) = (in_line(&inside), in_line(&outside));
    Some(format!(
        "{inside} and {outside} are one file with two names"
    ))
}

const fn held_why(held: Held) -> &'static str {
    match held {
        Held::Users => "users' own data",
        Held::System => "belongs to the system disk",
        Held::Shared => "holds data of many kinds",
    }
}

/// A name of an image as one line.
pub fn in_line(text: &str) -> String {
    let shown = |it: char| if it.is_control() { '?' } else { it };
    text.chars().map(shown).collect()
}

/// What `asks for durability` means, in words.
pub fn asks_rule() -> String {
    format!("more than {ASKS_PERCENT} % of the writes are flushed within 50 ms")
}
