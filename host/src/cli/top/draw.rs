//! How `top` looks: a pure function of its state onto a frame of any size.
//!
//! Always true: nothing here reads a clock, a terminal or a socket; without colours the screen
//! says the same; only the rows that fit are made, so a thousand volumes cost what a screen of
//! them costs.

use super::column::{ALL, Column, short_bytes, short_count, short_micros, short_seconds, that_fit};
use super::keys::{Past, Top, View};
use super::look::{Row, number};
use crate::cli::copies::of_volume;
use crate::config::units::{human_bytes, human_seconds};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Sparkline, Wrap};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Below this a bar of latency or rate would be a smear.
const CURVE_ROWS_MIN: u16 = 3;
/// A daemon that has not answered for so much longer than it should is called silent.
const SILENCE_MAX: Duration = Duration::from_secs(2);

pub fn draw(frame: &mut Frame, top: &mut Top, now: Instant) {
    let head = head(top, now, frame.area().width as usize);
    let areas = Layout::vertical([
        Constraint::Length(head.len() as u16),
        Constraint::Min(1),
        Constraint::Length(1),
    ]);
    let [above, middle, below] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(head), above);
    top.height = usize::from(middle.height).saturating_sub(1);
    match (top.view, top.selected_row()) {
        (View::Detail, Some(row)) => detail(frame, top, row, middle),
        _ => table(frame, top, middle),
    }
    frame.render_widget(Paragraph::new(foot(top, below.width as usize)), below);
    if top.help {
        help(frame, top);
    }
}

fn style(top: &Top, color: Color) -> Style {
    match top.color {
        true => Style::new().fg(color),
        false => Style::new(),
    }
}

/// The colour of a state says what it asks of the reader, as in `status`.
fn state_style(top: &Top, state: &str) -> Style {
    match state {
        "clean" => style(top, Color::Green),
        "dirty" => style(top, Color::Cyan),
        "stalled" | "degraded" => style(top, Color::Yellow).add_modifier(Modifier::BOLD),
        _ => style(top, Color::Red).add_modifier(Modifier::BOLD),
    }
}

/// As many parts as fit, two spaces between.
fn fit(parts: &[String], width: usize) -> String {
    let mut line = String::new();
    for part in parts.iter().filter(|part| !part.is_empty()) {
        let gap = if line.is_empty() { 0 } else { 2 };
        if line.chars().count() + gap + part.chars().count() > width && !line.is_empty() {
            break;
        }
        line.push_str(&" ".repeat(gap));
        line.push_str(part);
    }
    line
}

fn head(top: &Top, now: Instant, width: usize) -> Vec<Line<'static>> {
    let host = &top.page.host;
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut lines = Vec::new();
    if host.is_null() {
        lines.push(Line::styled("tenuto top: waiting for the daemon", bold));
    } else {
        lines.push(Line::styled(fit(&title(top), width), bold));
        lines.push(Line::raw(fit(&cache(host), width)));
        lines.push(Line::raw(fit(&memory(host), width)));
        lines.push(Line::raw(fit(&total(top), width)));
    }
    lines.push(trouble(top, now, width));
    lines
}

fn title(top: &Top) -> Vec<String> {
    let host = &top.page.host;
    let name = host["host"].as_str().unwrap_or("-");
    let up = human_seconds(number(&host["uptime_seconds"]));
    let mut parts = vec![format!("{name}, up {up}"), states(top)];
    if top.paused {
        parts.insert(0, "PAUSED".into());
    }
    parts.push(format!("every {} s", top.every.as_secs_f64()));
    parts.push(format!(
        "tenuto {}",
        host["version"].as_str().unwrap_or("-")
    ));
    parts
}

/// How many volumes there are in each state, the worst first.
fn states(top: &Top) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for row in &top.page.rows {
        *counts.entry(&row.volume.state).or_default() += 1;
    }
    let worst = ["damaged", "held", "stalled", "degraded", "dirty", "clean"];
    let each: Vec<String> = worst
        .into_iter()
        .filter_map(|state| Some(format!("{} {state}", counts.get(state)?)))
        .collect();
    match top.page.rows.len() {
        0 => "no volumes".into(),
        1 => format!("1 volume: {}", each.join(", ")),
        count => format!("{count} volumes: {}", each.join(", ")),
    }
}

fn cache(host: &Value) -> Vec<String> {
    let cache = &host["cache"];
    let bytes = |value: &Value| human_bytes(number(value));
    let (used, size) = (bytes(&cache["used_bytes"]), bytes(&cache["size_bytes"]));
    vec![
        format!("cache {used} of {size}"),
        format!("dirty {}", bytes(&cache["dirty_bytes"])),
        format!("clean {}", bytes(&cache["clean"]["bytes"])),
        format!("device {}", cache["state"].as_str().unwrap_or("-")),
        format!("index {}", bytes(&cache["index_bytes"])),
        format!("{} segments free", number(&cache["segments"]["free"])),
    ]
}

fn memory(host: &Value) -> Vec<String> {
    let ram = &host["ram"];
    let bytes = |value: &Value| human_bytes(number(value));
    let slots = |busy: &str, all: &str| format!("{} of {}", number(&ram[busy]), number(&ram[all]));
    vec![
        format!(
            "ram {} of {}",
            bytes(&ram["used_bytes"]),
            bytes(&ram["size_bytes"])
        ),
        format!(
            "stage {} slots busy",
            slots("stage_slots_busy", "stage_slots")
        ),
        format!("overlays {}", slots("overlay_slots_busy", "overlay_slots")),
        format!("{} connections", number(&host["connections"])),
    ]
}

fn total(top: &Top) -> Vec<String> {
    let Some(rates) = &top.page.total else {
        return vec!["rates come with the next look".into()];
    };
    let percent = rates
        .hit_percent
        .map(|percent| format!("hits {percent:.0} %"));
    let latency = |value: Option<f64>| value.map_or("-".into(), short_micros);
    vec![
        format!("guests {}/s", human_bytes(rates.guest_bytes as u64)),
        format!("{} reads/s", short_count(rates.reads)),
        format!("{} writes/s", short_count(rates.writes)),
        percent.unwrap_or_default(),
        format!("p99 {}", latency(rates.p99_us)),
        format!("origins {}/s", short_count(rates.origin_requests)),
        format!("destage {}/s", human_bytes(rates.origin_write_bytes as u64)),
        format!("{} flushes/s", short_count(rates.flushes)),
    ]
}

/// The one line for what is wrong; empty when nothing is.
fn trouble(top: &Top, now: Instant, width: usize) -> Line<'static> {
    let loud = style(top, Color::Red).add_modifier(Modifier::BOLD | Modifier::REVERSED);
    if let Some((why, since)) = &top.lost {
        let ago = human_seconds((now - *since).as_secs());
        let line = format!("no answer for {ago}, trying again: {why}");
        return Line::styled(cut(&line, width), loud);
    }
    let silent = now - top.answered;
    if silent > top.every * 2 + SILENCE_MAX {
        let line = format!(
            "no answer for {}, still waiting",
            human_seconds(silent.as_secs())
        );
        return Line::styled(cut(&line, width), loud);
    }
    let troubles = top.page.host["troubles"].as_array();
    let lines: Vec<&str> = troubles
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    match lines.as_slice() {
        [] => Line::raw(""),
        [only] => Line::styled(cut(&format!("! {only}"), width), loud),
        [first, rest @ ..] => {
            let more = format!(" (+{}, status -x)", rest.len());
            let first = cut(&format!("! {first}"), width.saturating_sub(more.len()));
            Line::styled(first + &more, loud)
        }
    }
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_string();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    kept + "…"
}

/// A text in so many columns.
fn cell(text: &str, width: usize, left: bool) -> String {
    let text = cut(text, width);
    match left {
        true => format!("{text:width$}"),
        false => format!("{text:>width$}"),
    }
}

fn table(frame: &mut Frame, top: &Top, area: Rect) {
    let rows = top.rows();
    let names = rows.iter().map(|row| row.volume.name.chars().count());
    let columns = that_fit(usize::from(area.width), names.max().unwrap_or(0));
    let mut head = Vec::new();
    for (shape, width) in &columns {
        let mut of = Style::new().add_modifier(Modifier::UNDERLINED);
        if shape.column == top.sort {
            of = of.add_modifier(Modifier::BOLD | Modifier::REVERSED);
        }
        head.push(Span::styled(
            cell(shape.head, *width, shape.column.is_text()),
            of,
        ));
        head.push(Span::raw(" "));
    }
    let mut lines = vec![Line::from(head)];
    let first = top.selected().saturating_sub(top.height.saturating_sub(1));
    for (at, row) in rows.iter().enumerate().skip(first).take(top.height) {
        let mut line = Vec::new();
        for (shape, width) in &columns {
            let of = match shape.column {
                Column::State => state_style(top, &row.volume.state),
                Column::Delay if row.volume.delay_us.is_some() => style(top, Color::Yellow),
                _ => Style::new(),
            };
            let text = cell(&shape.column.cell(row), *width, shape.column.is_text());
            line.push(Span::styled(text, of));
            line.push(Span::raw(" "));
        }
        // What is no longer so steps back.
        let mut chosen = match top.lost {
            Some(_) => Style::new().add_modifier(Modifier::DIM),
            None => Style::new(),
        };
        if at == top.selected() {
            chosen = chosen.add_modifier(Modifier::REVERSED);
        }
        lines.push(Line::from(line).style(chosen));
    }
    if rows.is_empty() && !top.page.host.is_null() {
        lines.push(Line::raw(match top.page.rows.is_empty() {
            true => "no volumes; `tenuto volume add` attaches one".to_string(),
            false => format!("no volume matches {:?}; Esc shows all", top.filter),
        }));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn foot(top: &Top, width: usize) -> Line<'static> {
    if top.typing {
        return Line::raw(format!(
            "filter: {}_  (Enter keeps it, Esc shows all)",
            top.filter
        ));
    }
    let shown = top.rows().len();
    let at = (top.selected() + 1).min(shown);
    let mut parts = Vec::new();
    if top.view == View::Table {
        let arrow = if top.descending {
            "largest first"
        } else {
            "smallest first"
        };
        let matching = match top.filter.as_str() {
            "" => String::new(),
            filter => format!(" with {filter:?}"),
        };
        parts.push(format!("{at} of {shown}{matching}"));
        parts.push(match (top.sort.is_text(), top.descending) {
            (true, false) => format!("by {}", top.sort.head()),
            (true, true) => format!("by {}, backwards", top.sort.head()),
            (false, _) => format!("by {}, {arrow}", top.sort.head()),
        });
        parts.extend(
            [
                "? help",
                "q quit",
                "Enter one volume",
                "/ filter",
                "p pause",
            ]
            .map(String::from),
        );
    } else {
        parts
            .extend(["Enter back to all volumes", "? help", "q quit", "p pause"].map(String::from));
    }
    Line::styled(fit(&parts, width), Style::new().add_modifier(Modifier::DIM))
}

/// One volume: what it is on top, what it did below.
fn detail(frame: &mut Frame, top: &Top, row: &Row, area: Rect) {
    let facts = facts(top, row);
    let width = usize::from(area.width).max(1);
    let lines: usize = facts
        .iter()
        .map(|line| line.width().div_ceil(width).max(1))
        .sum();
    let facts_height = (lines as u16).min(area.height);
    let [above, below] =
        Layout::vertical([Constraint::Length(facts_height), Constraint::Min(0)]).areas(area);
    frame.render_widget(Paragraph::new(facts).wrap(Wrap { trim: false }), above);
    let mut curves = curves(row);
    let columns = if area.width >= 100 { 2 } else { 1 };
    let fitting = usize::from(below.height / CURVE_ROWS_MIN) * columns;
    curves.truncate(fitting);
    if curves.is_empty() {
        return;
    }
    let rows = curves.len().div_ceil(columns);
    let areas = Layout::vertical(vec![Constraint::Fill(1); rows]).split(below);
    for (at, curve) in curves.iter().enumerate() {
        let halves =
            Layout::horizontal(vec![Constraint::Fill(1); columns]).split(areas[at / columns]);
        draw_curve(frame, top, row, curve, halves[at % columns]);
    }
}

fn facts(top: &Top, row: &Row) -> Vec<Line<'static>> {
    let volume = &row.volume;
    let document = &volume.document;
    let text = |value: &Value| value.as_str().unwrap_or("-").to_string();
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let reason = document["effective_reason"].as_str();
    let reason = reason.map_or(String::new(), |reason| format!(" ({reason})"));
    let dirty = match volume.dirty_seconds {
        Some(age) => format!(", oldest {}", short_seconds(age as f64)),
        None => String::new(),
    };
    let flow = match volume.delay_us {
        None => "not active".to_string(),
        Some(delay) => format!(
            "each write is held for {}, because of {}",
            short_micros(delay as f64),
            text(&document["flow_control"]["reason"])
        ),
    };
    let dirty_bytes = volume.dirty_bytes.map_or("?".into(), human_bytes);
    let destaged = number(&document["destaged_serial"]);
    let copies = &document["replication"];
    let has_copies = number(&copies["wanted"]) > 0 || !copies["state"].is_null();
    let copies = has_copies.then(|| Line::raw(format!("copies   {}", of_volume(copies))));
    let mut lines = vec![
        Line::from(vec![
            Span::styled(volume.name.clone(), bold),
            Span::raw(format!("  {}  ", volume.policy)),
            Span::styled(volume.state.clone(), state_style(top, &volume.state)),
            Span::raw(reason),
        ]),
        Line::raw(format!("origin   {}", text(&document["origin"]["path"]))),
        Line::raw(format!(
            "size {}  dirty {dirty_bytes}{dirty}  clients {}  flags {}",
            document["size_bytes"]
                .as_u64()
                .map_or("?".into(), human_bytes),
            volume.clients,
            if volume.flags.is_empty() {
                "-"
            } else {
                &volume.flags
            },
        )),
        Line::raw(format!("flow     {flow}")),
        Line::raw(format!(
            "serials  acknowledged {}, durable {}, destaged {destaged}",
            number(&document["acked_serial"]),
            number(&document["durable_serial"]),
        )),
    ];
    lines.extend(copies);
    lines.push(Line::raw(format!(
        "promise  {}",
        text(&document["promise"])
    )));
    lines
}

struct Curve {
    name: &'static str,
    now: String,
    of: fn(&Past) -> f64,
    unit: fn(f64) -> String,
}

fn curves(row: &Row) -> Vec<Curve> {
    let rates = row.rates;
    let curve = |name, of: fn(&Past) -> f64, unit: fn(f64) -> String| {
        let past = Past {
            rates: rates.unwrap_or_default(),
            dirty_bytes: row.volume.dirty_bytes.unwrap_or(0),
        };
        Curve {
            name,
            now: unit(of(&past)),
            of,
            unit,
        }
    };
    let p99 = |past: &Past| past.rates.p99_us.unwrap_or(0.0);
    vec![
        curve("reads/s", |past| past.rates.reads, short_count),
        curve("writes/s", |past| past.rates.writes, short_count),
        curve("p99 of reads and writes", p99, short_micros),
        curve("dirty", |past| past.dirty_bytes as f64, short_bytes),
        curve("guest bytes/s", |past| past.rates.guest_bytes, short_bytes),
        curve(
            "written to the origin/s",
            |past| past.rates.origin_write_bytes,
            short_bytes,
        ),
        curve(
            "origin requests/s",
            |past| past.rates.origin_requests,
            short_count,
        ),
        curve("flushes/s", |past| past.rates.flushes, short_count),
    ]
}

fn draw_curve(frame: &mut Frame, top: &Top, row: &Row, curve: &Curve, area: Rect) {
    let columns = usize::from(area.width);
    let mut values: Vec<f64> = top
        .past(&row.volume.name)
        .rev()
        .take(columns)
        .map(curve.of)
        .collect();
    values.reverse();
    let most = values.iter().copied().fold(0.0, f64::max);
    // Eight steps a row of letters; a thousandth of the most is finer than any screen.
    let scaled: Vec<u64> = values
        .iter()
        .map(|value| {
            if most > 0.0 {
                (value * 1000.0 / most) as u64
            } else {
                0
            }
        })
        .collect();
    let title = format!("{} {} (most {})", curve.name, curve.now, (curve.unit)(most));
    let block = Block::new().title(cut(&title, columns));
    let spark = Sparkline::default()
        .block(block)
        .data(&scaled)
        .max(1000)
        .style(style(top, Color::Cyan));
    frame.render_widget(spark, area);
}

fn help(frame: &mut Frame, top: &Top) {
    let keys = [
        " Up Down PgUp PgDn Home End: choose a volume   Enter: that one alone, and back",
        " Left Right: sort by another column   r: turn the order round",
        " /: only names, policies, states or flags with this in them   Esc: all again",
        " p: pause, go on   q: quit",
        "",
    ];
    let mut lines: Vec<Line> = keys.into_iter().map(Line::raw).collect();
    let heads = ALL
        .iter()
        .map(|shape| Line::raw(format!("{:>9}  {}", shape.head, shape.meaning)));
    lines.extend(heads);
    let area = frame.area();
    let (width, height) = (area.width.min(84), area.height.min(lines.len() as u16 + 2));
    let place = Rect {
        x: (area.width - width) / 2,
        y: (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, place);
    let block = Block::bordered().title(" keys and columns; any key closes this ");
    let style = style(top, Color::Reset);
    frame.render_widget(Paragraph::new(lines).block(block).style(style), place);
}
