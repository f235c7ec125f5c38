//! What a trial says: how it ends, where its data is when it cannot end, what it came to.
//!
//! Always true: a message about data that is not at the image names the directory that has it and
//! the command that finishes. Deliberately absent: what is printed when the trial is ready.

use super::place::Place;
use crate::cli::attach::shell;
use crate::config::units::human_bytes;
use crate::error::{Error, Kind};
use engine::types::Policy;
use serde_json::Value;
use std::path::PathBuf;

/// What the end of a trial does.
pub fn at_the_end(policy: Policy) -> &'static str {
    match policy {
        Policy::Ephemeral => "what was written is discarded, the image stays as it was",
        _ => "everything written goes to the image, and the cache is removed",
    }
}

/// A refusal of the image is wrong usage here, as for a configuration: nothing was started. The
/// key that would be written there is an option here.
pub fn asked(mut error: Error) -> Error {
    let key = "write format = \"raw\"";
    error.message = error.message.replace(key, "give --format raw");
    if matches!(error.kind, Kind::Failed | Kind::NotFound | Kind::Config) {
        error.kind = Kind::Usage;
    }
    error
}

/// Something is not at the image.
pub fn kept(image: &str, why: &str, place: &Place) -> Error {
    let (why, _) = why.split_once("; ").unwrap_or((why, ""));
    let directory = place.directory().display();
    let quoted = |path: PathBuf| shell(&path.display().to_string());
    let (cache, config) = (quoted(place.cache_path()), quoted(place.config_path()));
    Error::failed(format!(
        "{image}: {why}; nothing is lost, the data is in {directory}: finish with `tenuto recover \
         --cache {cache} -c {config}`, then `rm -r {}`",
        all(place)
    ))
    .about(image)
}

/// The image is owed nothing, but there was no time to remove the place.
pub fn left(image: &str, place: &Place) -> Error {
    let all = all(place);
    Error::failed(format!(
        "{image}: interrupted; the image is as it was, remove the rest with `rm -r {all}`"
    ))
    .about(image)
}

/// What is left to be removed, as arguments of a shell.
fn all(place: &Place) -> String {
    let all = place.all();
    let quoted: Vec<String> = all.iter().map(|path| shell(path)).collect();
    quoted.join(" ")
}

/// What a trial came to, by the last document of its volume.
pub fn summary(image: &str, policy: Policy, last: Option<&Value>) -> String {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let done = last.map_or(String::new(), |volume| {
        let (reads, writes) = (&volume["reads"], &volume["writes"]);
        let hits = number(&reads["ram_hits"]) + number(&reads["ssd_hits"]);
        format!(
            "{} reads ({}), {hits} of them from the cache; {} writes ({}), {} flushes\n",
            number(&reads["requests"]),
            human_bytes(number(&reads["bytes"])),
            number(&writes["requests"]),
            human_bytes(number(&writes["bytes"])),
            number(&volume["flushes"]),
        )
    });
    let holds = match policy {
        Policy::Ephemeral => "is as it was",
        _ => "has everything that was written",
    };
    format!("{done}{image}: {holds}; the cache is removed\n")
}
