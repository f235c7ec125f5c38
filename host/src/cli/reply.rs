//! What commands about one volume ask, and how they tell that it is done.
//!
//! Deliberately absent: the documents of single commands.

use super::Context;
use crate::config::keys::check_name;
use crate::error::{Error, Result};
use serde_json::Value;

/// The URL of a volume. A name that is not one never gets into a URL.
pub(super) fn url(name: &str, rest: &str) -> Result<String> {
    check_name(name).map_err(|_| Error::no_volume(name))?;
    Ok(format!("/v1/volumes/{name}{rest}"))
}

pub(super) fn done(context: &Context, reply: &Value, line: &str) -> Result<()> {
    context.output().confirmation(reply, || {
        let notes = reply["notes"].as_array().map_or(&[][..], Vec::as_slice);
        let notes = notes
            .iter()
            .filter_map(Value::as_str)
            .map(|note| format!("note: {note}\n"));
        std::iter::once(format!("{line}\n")).chain(notes).collect()
    })
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").into()
}

pub(super) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}
