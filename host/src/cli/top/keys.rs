//! What the keys of `top` do: sorting, filter, selection, pages.
//!
//! Owns everything that a person has chosen, and the looks that are kept. Always true: no key
//! changes anything but the view; the selected volume stays selected when the order changes, and
//! a selection that is filtered away or gone falls to what stands at its place. Time is handed in.

use super::column::Column;
use super::look::{Look, Page, Rates, Row};
use crate::natural;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Looks of each volume that are kept for its curves: as many as a wide terminal has columns.
const HISTORY_MAX: usize = 240;

/// What fills the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    Table,
    /// One volume.
    Detail,
}

/// What the curves of one volume are made of.
#[derive(Clone, Copy, Debug, Default)]
pub struct Past {
    pub rates: Rates,
    pub dirty_bytes: u64,
}

/// The state of the program.
#[derive(Debug)]
pub struct Top {
    pub page: Page,
    pub color: bool,
    pub every: Duration,
    pub view: View,
    pub help: bool,
    pub paused: bool,
    pub sort: Column,
    pub descending: bool,
    pub filter: String,
    /// The filter is being typed.
    pub typing: bool,
    /// Why the daemon does not answer, and since when.
    pub lost: Option<(String, Instant)>,
    /// When the daemon answered last.
    pub answered: Instant,
    /// Rows that fitted onto the screen when it was drawn last.
    pub height: usize,
    selected: usize,
    selected_name: Option<String>,
    history: HashMap<String, VecDeque<Past>>,
    before: Option<(Look, Instant)>,
}

impl Top {
    pub fn new(color: bool, every: Duration, now: Instant) -> Top {
        Top {
            page: Page::default(),
            color,
            every,
            view: View::Table,
            help: false,
            paused: false,
            sort: Column::Bytes,
            descending: true,
            filter: String::new(),
            typing: false,
            lost: None,
            answered: now,
            height: 1,
            selected: 0,
            selected_name: None,
            history: HashMap::new(),
            before: None,
        }
    }

    /// The daemon has answered.
    pub fn take(&mut self, look: Look, at: Instant) {
        self.lost = None;
        self.answered = at;
        if self.paused {
            return;
        }
        let seconds = self
            .before
            .as_ref()
            .map_or(0.0, |(_, then)| (at - *then).as_secs_f64());
        let before = self.before.take();
        let before = before.as_ref().map(|(look, _)| look);
        self.page = Page::between(before, look.clone(), seconds);
        self.before = Some((look, at));
        self.remember();
        self.follow_selection();
    }

    /// The daemon does not answer.
    pub fn lose(&mut self, why: String, at: Instant) {
        let since = self.lost.as_ref().map_or(at, |(_, since)| *since);
        self.lost = Some((why, since));
    }

    fn remember(&mut self) {
        let mut history = std::mem::take(&mut self.history);
        for row in &self.page.rows {
            let mut past = history.remove(&row.volume.name).unwrap_or_default();
            past.extend(row.rates.map(|rates| Past {
                rates,
                dirty_bytes: row.volume.dirty_bytes.unwrap_or(0),
            }));
            if past.len() > HISTORY_MAX {
                past.pop_front();
            }
            self.history.insert(row.volume.name.clone(), past);
        }
        // What is not taken over belongs to volumes that are gone.
    }

    pub fn past(&self, name: &str) -> impl DoubleEndedIterator<Item = &Past> {
        self.history.get(name).into_iter().flatten()
    }

    /// The rows to be shown, in their order.
    pub fn rows(&self) -> Vec<&Row> {
        let wanted = self.filter.to_lowercase();
        let matches = |row: &&Row| {
            let volume = &row.volume;
            [&volume.name, &volume.policy, &volume.state, &volume.flags]
                .iter()
                .any(|text| text.to_lowercase().contains(&wanted))
        };
        let mut rows: Vec<&Row> = self.page.rows.iter().filter(matches).collect();
        rows.sort_by(|a, b| {
            let order = self.sort.compare(a, b);
            let order = if self.descending {
                order.reverse()
            } else {
                order
            };
            order.then_with(|| natural::compare(&a.volume.name, &b.volume.name))
        });
        rows
    }

    pub fn selected(&self) -> usize {
        self.selected
    }

    pub fn selected_row(&self) -> Option<&Row> {
        self.rows().get(self.selected).copied()
    }

    /// Finds the selected volume again.
    fn follow_selection(&mut self) {
        let rows = self.rows();
        let found = self
            .selected_name
            .as_ref()
            .and_then(|name| rows.iter().position(|row| row.volume.name == *name));
        let last = rows.len().saturating_sub(1);
        self.selected = found.unwrap_or(self.selected).min(last);
        if self.view == View::Detail && found.is_none() {
            self.view = View::Table;
        }
    }

    fn select(&mut self, at: usize) {
        let rows = self.rows();
        let at = at.min(rows.len().saturating_sub(1));
        let name = rows.get(at).map(|row| row.volume.name.clone());
        self.selected = at;
        self.selected_name = name;
    }

    /// Returns false when it is the end.
    pub fn key(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return true;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && matches!(key.code, KeyCode::Char('c' | 'd')) {
            return false;
        }
        if self.typing {
            self.type_filter(key.code);
            return true;
        }
        if self.help {
            self.help = false;
            return key.code != KeyCode::Char('q');
        }
        match key.code {
            KeyCode::Char('q') => return false,
            KeyCode::Esc if self.view == View::Detail => self.view = View::Table,
            KeyCode::Esc => {
                self.filter.clear();
                self.follow_selection();
            }
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('/') if self.view == View::Table => self.typing = true,
            KeyCode::Char('r') => {
                self.descending = !self.descending;
                self.follow_selection();
            }
            KeyCode::Left | KeyCode::Char('<') => self.sort_by(self.sort.left()),
            KeyCode::Right | KeyCode::Char('>') => self.sort_by(self.sort.right()),
            KeyCode::Enter => self.open_or_close(),
            code => self.move_selection(code),
        }
        true
    }

    fn open_or_close(&mut self) {
        self.view = match self.view {
            View::Detail => View::Table,
            View::Table => {
                self.select(self.selected);
                match self.selected_name {
                    Some(_) => View::Detail,
                    None => View::Table,
                }
            }
        };
    }

    fn move_selection(&mut self, code: KeyCode) {
        let page = self.height.max(1);
        let at = self.selected;
        match code {
            KeyCode::Up | KeyCode::Char('k') => self.select(at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(at + 1),
            KeyCode::PageUp => self.select(at.saturating_sub(page)),
            KeyCode::PageDown => self.select(at + page),
            KeyCode::Home | KeyCode::Char('g') => self.select(0),
            KeyCode::End | KeyCode::Char('G') => self.select(usize::MAX),
            _ => {}
        }
    }

    fn sort_by(&mut self, column: Column) {
        self.sort = column;
        // Names from a to z; of everything else the largest first.
        self.descending = !column.is_text();
        self.follow_selection();
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
        self.follow_selection();
    }
}
