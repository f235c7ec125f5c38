//! `tenuto image split IMAGE --rules RULES -o DIR`.
//!
//! Always true: what a crash may take is shown, and asked for, before anything is made; the plan
//! alone changes nothing; a run that was stopped goes on without a question, because that one was
//! answered. Deliberately absent: how a disk is split, which is in the crate of that name.

use super::{Context, offline};
use crate::config::units::human_bytes;
use crate::error::{Error, Kind, Result};
use clap::Args;
use split::report::Report;
use split::{Request, Rules, State, Watch};
use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct Split {
    /// A raw or qcow2 image, or a block device, of a guest that was shut down; it is only read
    image: PathBuf,
    /// A file of rules, or a table: linux, windows-safe, windows-capo
    #[arg(long, value_name = "RULES")]
    rules: String,
    /// A new directory for the disks, or that of a run that was stopped, which goes on
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Only show what would move, with files and bytes by class; also --dry-run
    #[arg(long, alias = "dry-run")]
    plan: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// The kernel of this host may mount the file systems of the image
    #[arg(long)]
    trust_image: bool,
    /// Copy what stays as well, so that the system disk does not stand on the image
    #[arg(long)]
    copy: bool,
    /// Read the image in a virtual machine of libguestfs
    #[arg(long, hide = true)]
    appliance: bool,
}

pub fn run(context: &Context, command: &Split) -> Result<()> {
    let about = command.image.display().to_string();
    if command.appliance {
        return Err(Error::later("`image split --appliance` is").about(about));
    }
    let failed = |error: split::Error| from_split(&error).about(about.clone());
    let request = Request {
        image: command.image.clone(),
        rules: Rules::load(&command.rules).map_err(failed)?,
        output: command.output.clone(),
        trusted: command.trust_image,
        copy: command.copy,
    };
    let mut split = split::Split::look(&request).map_err(failed)?;
    let begun = split.begun();
    if command.plan {
        let state = begun.map_or("none", State::name);
        show(context, &split.report(), state)?;
        return match split.refusal() {
            None => Ok(()),
            // The document has it already.
            Some(_) if context.common.json => Err(Error::refused("").about(about)),
            Some(refusal) => Err(Error::refused(refusal).about(about)),
        };
    }
    if let Some(state) = begun {
        let said = match state {
            State::Done => "was done before; nothing changes".to_owned(),
            state => format!("goes on after {}", state.name()),
        };
        tell(context, &said);
    } else if split.refusals().is_empty() && !split.moves_nothing() {
        ask(context, command, &split.report())?;
    }
    let quiet = context.common.quiet > 0;
    split.run(&mut Steps { quiet }).map_err(failed)?;
    let report = split.report();
    let lines = report.volumes_toml();
    let mut document = report.json(State::Done.name());
    let file = split.volumes_file().display().to_string();
    document["volumes_file"] = file.clone().into();
    context.output().document(&document, || lines)?;
    tell(context, &format!("{file} has these lines"));
    Ok(())
}

/// Names each state on standard error.
struct Steps {
    quiet: bool,
}

impl Watch for Steps {
    fn reached(&mut self, state: State) -> split::Result<()> {
        if !self.quiet {
            offline::tell(state.name());
        }
        Ok(())
    }
}

fn tell(context: &Context, line: &str) {
    if context.common.quiet == 0 {
        offline::tell(line);
    }
}

/// The plan as the result of the command.
fn show(context: &Context, report: &Report, state: &str) -> Result<()> {
    let text = || format!("{}{}", report.plan_text(), report.loss_text());
    context.output().document(&report.json(state), text)
}

/// Lets the operator read what a crash may take, and say yes.
fn ask(context: &Context, command: &Split, report: &Report) -> Result<()> {
    let about = command.image.display().to_string();
    if !command.yes && !std::io::stdin().is_terminal() {
        let message = format!(
            "image {about}: {}; --plan shows them, --yes goes on",
            at_stake(report)
        );
        return Err(Error::refused(message).about(about));
    }
    if !command.yes || context.common.quiet == 0 {
        eprint!("{}{}", report.plan_text(), report.loss_text());
    }
    if command.yes {
        return Ok(());
    }
    eprint!("Go on? [y/N] ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    match read.is_ok() && ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
        true => Ok(()),
        false => {
            let message = format!("image {about}: nothing was done; answer y to split it");
            Err(Error::refused(message).about(about))
        }
    }
}

/// What a yes is about.
fn at_stake(report: &Report) -> String {
    let moved = report.layout.listing.moved.iter();
    let is_pool = report.rules.pool.is_some();
    let meant = moved.filter(|it| !is_pool || !it.class.is_relaxed());
    let (paths, bytes) = meant.fold((0_u64, 0), |(paths, bytes), it| {
        (paths + 1, bytes + it.bytes)
    });
    let bytes = human_bytes(bytes);
    match is_pool {
        true => format!(
            "a reset of a clone throws away all that it wrote, but in {paths} paths with {bytes}"
        ),
        false => format!("a crash of the host may set back {paths} paths with {bytes}"),
    }
}

/// One kind for each kind of a split.
fn from_split(error: &split::Error) -> Error {
    let kind = match error.kind {
        split::Kind::Failed | split::Kind::ServerEnded => Kind::Failed,
        split::Kind::Usage => Kind::Usage,
        split::Kind::Refused => Kind::Refused,
        split::Kind::NotInThisVersion => Kind::NotInThisVersion,
    };
    Error::new(kind, error.message.clone())
}
