//! `tenuto reload`.

use super::Context;
use crate::admin::client::PATIENT;
use crate::error::Result;

pub fn run(context: &Context) -> Result<()> {
    let reply = context.client()?.post("/v1/reload", None, PATIENT)?;
    context.output().document(&reply, || {
        let notes: Vec<&str> = reply["notes"]
            .as_array()
            .map(|notes| notes.iter().filter_map(|note| note.as_str()).collect())
            .unwrap_or_default();
        match notes.as_slice() {
            [] => "nothing has changed\n".into(),
            notes => notes.join("\n") + "\n",
        }
    })
}
