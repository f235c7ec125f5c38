//! The figures of a run, for people and for programs.
//!
//! Always true: a figure that is wanted stands beside what is wanted of it, whether it is reached
//! or not.

use super::destages::{self, Destages};
use super::memory::{Memory, PART_WANTED};
use super::options::{Options, RATIO_WANTED};
use super::slots::Line;
use super::window::Window;
use crate::bench::rounds::cell;
use crate::machine;
use serde_json::{Value, json};

pub struct Report {
    pub options: Options,
    pub lines: Vec<Line>,
    pub destages: Option<Destages>,
    pub window: Option<Window>,
    pub memory: Option<Memory>,
}

impl Report {
    pub const HEAD: [&'static str; 8] = [
        "4 KIB",
        "IN FLIGHT",
        "FIGURE",
        "RAW",
        "CLONE",
        "CLONE / RAW",
        "RAW / RAW",
        "WANTED",
    ];

    pub fn headline(&self) -> String {
        let options = &self.options;
        format!(
            "raw and a qcow2 clone (extended L2, 128 KiB) of a qcow2 base (64 KiB), {} MiB of \
             data in each, write-back, one daemon, one cache; {} rounds of 6 x {} s; {} destages \
             of {} scattered writes each into new clones",
            options.data_bytes >> 20,
            options.rounds,
            options.seconds,
            options.destages,
            options.writes,
        )
    }

    pub fn machine(&self) -> String {
        machine::text()
    }

    pub fn rows(&self) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        for line in &self.lines {
            for figure in line.figures() {
                let compared = line.compared(figure);
                let digits = if figure.0 == "iops" { 0 } else { 2 };
                let wanted = match figure.2 {
                    true => format!(">= {:.2}", 1.0 - RATIO_WANTED),
                    false => format!("<= {:.2}", 1.0 + RATIO_WANTED),
                };
                rows.push(vec![
                    line.row.name().to_owned(),
                    line.depth.to_string(),
                    figure.1.to_owned(),
                    cell(line.median(0, figure), digits),
                    cell(line.median(1, figure), digits),
                    cell(compared.ratio, 3),
                    cell(compared.same, 3),
                    wanted,
                ]);
            }
        }
        for (figure, destages) in self.destage_figures() {
            let compared = destages.compared(figure);
            rows.push(vec![
                "new block, destaged".to_owned(),
                "-".into(),
                figure.1.to_owned(),
                cell(destages.median(0, figure), figure.2),
                cell(destages.median(1, figure), figure.2),
                cell(compared.ratio, 3),
                cell(compared.same, 3),
                figure.3.map_or("-".into(), |most| format!("<= {most}")),
            ]);
        }
        rows
    }

    fn destage_figures(&self) -> impl Iterator<Item = (destages::Figure, &Destages)> {
        let of = |it| {
            destages::FIGURES
                .into_iter()
                .map(move |figure| (figure, it))
        };
        self.destages.iter().flat_map(of)
    }

    /// What is no comparison.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(window) = &self.window {
            notes.push(format!(
                "guard: set for {} ms each time, {:.4} % of the time with a destage every 10 \
                 minutes; {}",
                cell(window.window_ms(), 1),
                window.part() * 100.0,
                window.text(),
            ));
        }
        if let Some(memory) = &self.memory {
            notes.push(format!(
                "index: {:.4} % of clean data, {:.4} % without what an empty cache has (wanted <= \
                 {:.3} %); tables {:.4} % of what was read; {}",
                memory.index_part() * 100.0,
                memory.grown_part() * 100.0,
                PART_WANTED * 100.0,
                memory.table_part() * 100.0,
                memory.text(),
            ));
        }
        let unproven = self.unproven().into_iter();
        notes.extend(unproven.map(|it| format!("not proven: {it}")));
        notes
    }

    /// What did not show what it should.
    pub fn unproven(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for line in self.lines.iter().filter(|it| it.proven().count() == 0) {
            let (name, depth) = (line.row.name(), line.depth);
            wrong.push(format!("{name}, {depth} in flight: no round is proven"));
        }
        if self
            .destages
            .as_ref()
            .is_some_and(|it| it.proven().count() == 0)
        {
            wrong.push("destages: no round is proven".into());
        }
        if self.window.as_ref().is_some_and(|it| !it.is_proven()) {
            wrong.push("guard: it was never seen; give --desktop-seconds more".into());
        }
        if self.memory.as_ref().is_some_and(|it| !it.is_proven()) {
            wrong.push("index: the cache did not become as full as it should".into());
        }
        wrong
    }

    pub fn document(&self) -> Value {
        let options = &self.options;
        json!({
            "benchmark": "images",
            "machine": machine::document(),
            "parameters": {
                "parts": options.parts.iter().map(|it| it.key()).collect::<Vec<_>>(),
                "rounds": options.rounds,
                "seconds": options.seconds,
                "queue_depths": options.depths,
                "cache_bytes": options.cache_bytes,
                "data_bytes": options.data_bytes,
                "destages": options.destages,
                "writes": options.writes,
                "desktop_seconds": options.desktop_seconds,
                "scale": options.scale,
                "fill_bytes": options.fill_bytes,
                "seed": options.seed,
            },
            "ratio_wanted": RATIO_WANTED,
            "rows": self.lines.iter().map(Line::document).collect::<Vec<Value>>(),
            "destages": self.destages.as_ref().map(Destages::document),
            "guard": self.window.as_ref().map(Window::document),
            "index": self.memory.as_ref().map(Memory::document),
            "unproven": self.unproven(),
        })
    }
}
