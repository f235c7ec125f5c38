//! Errors in the arguments, in the one-line form of all other errors.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use host::error::{Error, Result};
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

/// How the program is called.
const PROGRAM: &str = "tenuto [OPTIONS] <COMMAND>";

/// Prints help and version where they were asked for; everything else is an error.
pub fn explain(error: clap::Error) -> Result<()> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            host::cli::output::write(&error.render().to_string())
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let help = error.render().to_string();
            let usage = help.lines().find_map(|line| line.strip_prefix("Usage: "));
            let usage = usage.unwrap_or(PROGRAM);
            // A first look at the program; a word that lacks the next one is an error.
            if usage == PROGRAM {
                return host::cli::output::write(&help);
            }
            Err(Error::usage(format!(
                "a command is missing; usage: {usage}; see --help"
            )))
        }
        _ => {
            let line = number(&error).or_else(|| negative(&error));
            let line = line.unwrap_or_else(|| one_line(&error.render().to_string()));
            Err(Error::usage(line))
        }
    }
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    }
}

/// A number that is none, or out of range: clap has what would be right in words of its own.
fn number(error: &clap::Error) -> Option<String> {
    let option = text(error, ContextKind::InvalidArg)?.split(' ').next()?;
    let given = text(error, ContextKind::InvalidValue)?;
    let source = std::error::Error::source(error)?;
    let line = |what: &str| Some(format!("{option} {given}: {what}"));
    if let Some(why) = source.downcast_ref::<ParseIntError>() {
        return match why.kind() {
            IntErrorKind::PosOverflow => line("out of range; give a smaller number"),
            _ => line("not a whole number; give one as in 5"),
        };
    }
    if source.is::<ParseFloatError>() {
        return line("not a number; give one as in 0.5");
    }
    let why = source.to_string();
    let range = why.strip_prefix(given)?.strip_prefix(" is not in ")?;
    let (least, most) = range.split_once("..=")?;
    line(&format!("out of range; give {least} to {most}"))
}

/// A number below zero looks like an option, and no option takes one.
fn negative(error: &clap::Error) -> Option<String> {
    let given = text(error, ContextKind::InvalidArg)?;
    let is_negative = given.starts_with('-') && given.parse::<f64>().is_ok();
    is_negative.then(|| format!("{given}: no option takes a number below 0; see --help"))
}

/// clap's first paragraph, its tips and its usage, without their line breaks.
fn one_line(text: &str) -> String {
    let mut paragraphs = text
        .split("\n\n")
        .map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "));
    let first = paragraphs.next().unwrap_or_default();
    let first = first
        .strip_prefix("error: ")
        .unwrap_or(&first)
        .trim_end_matches('.')
        .to_string();
    let hint = paragraphs.find_map(|paragraph| {
        let tip = paragraph.strip_prefix("tip: ").map(str::to_string);
        tip.or_else(|| {
            paragraph
                .strip_prefix("Usage: ")
                .map(|usage| format!("usage: {usage}"))
        })
    });
    match hint {
        Some(hint) => format!("{first}; {hint}"),
        None => format!("{first}; see --help"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::Parser;

    fn message(arguments: &[&str]) -> String {
        let all = ["tenuto"].iter().chain(arguments);
        explain(Cli::try_parse_from(all).expect_err("must not parse"))
            .expect_err("error")
            .message
    }

    #[test]
    fn argument_errors_are_one_lower_case_line_with_what_would_be_right() {
        for arguments in [
            &["volume", "show"][..],
            &["volume", "shwo", "a"],
            &["stauts"],
            &["status", "--frob"],
            &["completions", "tcsh"],
            &["volume"],
        ] {
            let message = message(arguments);
            assert!(!message.contains('\n'), "{message}");
            assert!(message.starts_with(|c: char| c.is_lowercase()), "{message}");
            assert!(message.contains("; "), "{message}");
        }
    }

    #[test]
    fn the_program_alone_prints_its_help_and_is_no_error() {
        let error = Cli::try_parse_from(["tenuto"]).expect_err("no command");
        assert!(explain(error).is_ok());
    }

    fn look_for_gaps(command: &clap::Command, path: &str, gaps: &mut Vec<String>) {
        let is_empty = |help: Option<&clap::builder::StyledStr>| {
            help.is_none_or(|help| help.to_string().trim().is_empty())
        };
        if is_empty(command.get_about()) {
            gaps.push(path.to_owned());
        }
        for argument in command.get_arguments().filter(|known| !known.is_hide_set()) {
            if is_empty(argument.get_help()) {
                gaps.push(format!("{path} {}", argument.get_id()));
            }
        }
        for inner in command.get_subcommands() {
            look_for_gaps(inner, &format!("{path} {}", inner.get_name()), gaps);
        }
    }

    #[test]
    fn every_command_and_every_argument_says_what_it_is() {
        use clap::CommandFactory;
        let mut gaps = Vec::new();
        look_for_gaps(&Cli::command(), "tenuto", &mut gaps);
        assert!(gaps.is_empty(), "without a word: {gaps:?}");
    }
}
