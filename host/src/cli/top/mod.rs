//! `tenuto top`: what a running daemon does, live.
//!
//! Owns the terminal while it runs, and three threads that send it messages: one asks the daemon,
//! one reads keys, one waits for signals.
//!
//! ```text
//! asker ── look or error ──▶ ┐
//! keys  ── key, new size ──▶ ├─ screen ── draw
//! signals ── end ──────────▶ ┘
//! ```
//!
//! Always true: the terminal is as it was when the program ends, also by an error, a panic or a
//! signal; a daemon that goes away is said and asked again until it is back; nothing is changed
//! in the daemon. Deliberately absent: what was before the program started.

mod column;
mod draw;
mod keys;
mod look;
#[cfg(test)]
mod tests;

use super::{Context, output, signals};
use crate::admin::client::Client;
use crate::error::{Error, Kind, Result, cause};
use clap::Args;
use keys::Top as Screen;
use look::{Look, Page};
use ratatui::crossterm::cursor::{MoveTo, Show};
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{self, Clear, ClearType};
use ratatui::layout::Rect;
use ratatui::{DefaultTerminal, TerminalOptions, Viewport};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime};

/// Messages that wait for the screen; who sends more waits.
const MESSAGES_MAX: usize = 64;
const REDRAW: Duration = Duration::from_secs(1);
/// Below other lines: rows that show something, and rows that leave the lines on the screen.
const BELOW_ROWS_MIN: u16 = 8;
const BELOW_ROWS_MAX: u16 = 16;
const BELOW_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub struct Top {
    /// Seconds from one look to the next
    #[arg(short, long, value_name = "SECONDS", default_value = "2", value_parser = parse_delay)]
    delay: Duration,
    /// End after so many looks
    #[arg(short = 'n', long, value_name = "COUNT")]
    count: Option<u64>,
}

fn parse_delay(text: &str) -> std::result::Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds, as in 0.5".to_string())?;
    match (0.1..=3600.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("not between 0.1 and 3600 seconds".into()),
    }
}

pub fn run(context: &Context, command: &Top) -> Result<()> {
    let client = context.client()?;
    if context.common.json {
        return print_lines(&client, command);
    }
    if !std::io::stdout().is_terminal() {
        return Err(Error::usage(
            "top: standard output is no terminal; use `top --json`, or `tenuto status` for \
             one look",
        ));
    }
    // What fails at once is an error as for every other command, before the screen is taken.
    let first = Look::read(client.get("/v1/status")?);
    let mut screen = Screen::new(context.output().color, command.delay, Instant::now());
    screen.take(first, Instant::now());
    let (sender, messages) = sync_channel(MESSAGES_MAX);
    ask(client, command.delay, sender.clone());
    wait_for_signals(sender.clone())?;
    let mut terminal = ratatui::try_init().map_err(|error| on_terminal(&error))?;
    listen(sender);
    let mut is_over = |looks| command.count.is_some_and(|count| looks >= count);
    let ended = until_the_end(&mut terminal, &mut screen, &messages, &mut is_over);
    ratatui::restore();
    ended
}

/// The same below the lines that are on the terminal already, until the user ends it or `is_over`.
pub fn below(context: &Context, mut is_over: impl FnMut() -> bool) -> Result<()> {
    let client = context.client()?;
    let first = Look::read(client.get("/v1/status")?);
    let mut screen = Screen::new(context.output().color, BELOW_DELAY, Instant::now());
    screen.take(first, Instant::now());
    let (sender, messages) = sync_channel(MESSAGES_MAX);
    ask(client, BELOW_DELAY, sender.clone());
    wait_for_signals(sender.clone())?;
    let (columns, rows) = terminal::size().map_err(|error| on_terminal(&error))?;
    let viewport = Viewport::Fixed(lowest(columns, rows));
    // What is on the screen moves up by as much as the page takes.
    let room = "\n".repeat(usize::from(lowest(columns, rows).height));
    output::write(&room)?;
    let terminal = ratatui::try_init_with_options(TerminalOptions { viewport });
    let mut terminal = terminal.map_err(|error| on_terminal(&error))?;
    listen(sender);
    let ended = until_the_end(&mut terminal, &mut screen, &messages, &mut |_| is_over());
    let top = terminal.get_frame().area().y;
    let _ = terminal::disable_raw_mode();
    // Best effort: where the terminal takes nothing any more, there is nothing to clear.
    let clear = Clear(ClearType::FromCursorDown);
    let _ = execute!(std::io::stdout(), MoveTo(0, top), clear, Show);
    ended
}

/// The lowest rows of a terminal, which leave the lines above them.
fn lowest(columns: u16, rows: u16) -> Rect {
    let height = (rows / 2).clamp(BELOW_ROWS_MIN, BELOW_ROWS_MAX).min(rows);
    Rect::new(0, rows - height, columns, height)
}

fn on_terminal(error: &std::io::Error) -> Error {
    Error::failed(format!("terminal: {}", cause(error)))
}

/// What reaches the screen.
enum Message {
    Look(Box<Result<Value>>, Instant),
    Terminal(Event),
    End,
    Broken(Error),
}

fn until_the_end(
    terminal: &mut DefaultTerminal,
    screen: &mut Screen,
    messages: &Receiver<Message>,
    is_over: &mut dyn FnMut(u64) -> bool,
) -> Result<()> {
    let mut looks = 1;
    let is_below = terminal.get_frame().area().y > 0;
    loop {
        terminal
            .draw(|frame| draw::draw(frame, screen, Instant::now()))
            .map_err(|error| on_terminal(&error))?;
        if is_over(looks) {
            return Ok(());
        }
        let message = match messages.recv_timeout(REDRAW) {
            Ok(message) => message,
            // Only to show how long the daemon has not answered.
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        match message {
            Message::Look(result, at) => {
                looks += 1;
                match *result {
                    Ok(document) => screen.take(Look::read(document), at),
                    Err(error) => screen.lose(error.message, at),
                }
            }
            Message::Terminal(Event::Key(key)) => {
                if !screen.key(key) {
                    return Ok(());
                }
            }
            // Below other lines the page keeps its place at the end of the screen.
            Message::Terminal(Event::Resize(columns, rows)) if is_below => {
                let resized = terminal.resize(lowest(columns, rows));
                resized.map_err(|error| on_terminal(&error))?;
            }
            // Another size: drawing again is all it takes.
            Message::Terminal(_) => {}
            Message::End => return Ok(()),
            Message::Broken(error) => return Err(error),
        }
    }
}

/// Looks at the daemon again and again. Ends with the program.
fn ask(client: Client, pause: Duration, to: SyncSender<Message>) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(pause);
            let result = client.get("/v1/status");
            let message = Message::Look(Box::new(result), Instant::now());
            if to.send(message).is_err() {
                return;
            }
        }
    });
}

/// Reads keys and changes of size. Ends with the program.
fn listen(to: SyncSender<Message>) {
    std::thread::spawn(move || {
        loop {
            let message = match event::read() {
                Ok(event) => Message::Terminal(event),
                Err(error) => Message::Broken(on_terminal(&error)),
            };
            let over = matches!(message, Message::Broken(_));
            if to.send(message).is_err() || over {
                return;
            }
        }
    });
}

/// Ends in order on SIGTERM, SIGINT and SIGHUP.
fn wait_for_signals(to: SyncSender<Message>) -> Result<()> {
    // If there is no receiver any more, the program is ending already.
    signals::on_end(move || drop(to.send(Message::End)))
}

/// `top --json`: one line for each look but the first, with the rates since the one before.
fn print_lines(client: &Client, command: &Top) -> Result<()> {
    let mut before = Some((Look::read(client.get("/v1/status")?), Instant::now()));
    let mut lines = 0;
    while command.count.is_none_or(|count| lines < count) {
        std::thread::sleep(command.delay);
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        let line = match client.get("/v1/status") {
            Ok(document) => {
                let (look, at) = (Look::read(document), Instant::now());
                let then = before.as_ref().map(|(_, then)| *then);
                let seconds = then.map_or(0.0, |then| (at - then).as_secs_f64());
                let page =
                    Page::between(before.as_ref().map(|(look, _)| look), look.clone(), seconds);
                before = Some((look, at));
                page.document(&time, seconds)
            }
            Err(error) if error.kind == Kind::Unreachable => {
                before = None;
                let mut line = json!({ "time": time });
                line["error"] = error.to_json()["error"].take();
                line
            }
            Err(error) => return Err(error),
        };
        // Whoever read the lines has gone: so do we.
        if !output::write_line(&line.to_string())? {
            return Ok(());
        }
        lines += 1;
    }
    Ok(())
}
