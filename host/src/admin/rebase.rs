//! The rules of giving an image another backing.

use super::{Admin, Outcome, find, refuse_connected, refuse_held};
use crate::config::units::human_bytes;
use crate::daemon::Below;
use crate::error::Result;
use crate::origin::chain::Stated;
use serde_json::{Map, Value};
use std::path::PathBuf;

/// What the body of a rebase says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    pub below: Below,
    /// What the disk reads there is not compared.
    pub changes: bool,
}

impl Order {
    pub fn parse(document: &Map<String, Value>) -> std::result::Result<Order, String> {
        let known = ["backing", "flatten", "format", "unsafe"];
        if let Some(key) = document.keys().find(|key| !known.contains(&key.as_str())) {
            return Err(format!(
                "{key}: unknown key; there are backing, flatten, format and unsafe"
            ));
        }
        let flag = |key: &str| match document.get(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(format!("{key}: is neither true nor false")),
        };
        let changes = flag("unsafe")?;
        let below = match (document.get("backing"), flag("flatten")?) {
            (Some(Value::String(path)), false) if !path.is_empty() => {
                let path = PathBuf::from(path);
                let format = match document.get("format").map(Value::as_str) {
                    None | Some(Some("auto")) => None,
                    Some(Some("raw")) => Some(Stated::Raw),
                    Some(Some("qcow2")) => Some(Stated::Qcow2),
                    Some(_) => return Err("format: is none of auto, raw and qcow2".into()),
                };
                Below::File { path, format }
            }
            (None, true) => Below::Nothing,
            _ => {
                return Err(
                    "backing: names the file to stand on; write {\"backing\": \"base.qcow2\"}, or \
                     {\"flatten\": true} for none"
                        .into(),
                );
            }
        };
        Ok(Order { below, changes })
    }
}

impl Admin {
    /// It may take long, so no other order waits for it: the volume itself is claimed.
    fn check_move(&self, name: &str, verb: &str) -> Result<()> {
        let _order = self.order();
        let look = self.look()?;
        refuse_held(&look, name)?;
        refuse_connected(&look, find(&look, name)?, verb)
    }

    /// Lets the image of a volume stand on another file, or on none.
    pub fn rebase(&self, name: &str, order: &Order) -> Result<Outcome> {
        self.check_move(name, "rebase")?;
        let bytes = self.machine.rebase(name, &order.below, order.changes)?;
        Ok(Outcome {
            notes: vec![copied(name, bytes)],
        })
    }

    /// Gives the image of a volume what its backing has.
    pub fn merge(&self, name: &str, remove: bool) -> Result<Outcome> {
        self.check_move(name, "merge")?;
        let done = self.machine.merge(name, remove)?;
        let before = done.before.display();
        let rest = match (&done.left, remove) {
            (Some(why), _) => format!("{before}: stays: {why}"),
            (None, true) => format!("{before}: was removed"),
            (None, false) => format!(
                "{before}: is not needed by this volume any more; remove it if nothing else stands \
                 on it, or merge with --remove next time"
            ),
        };
        Ok(Outcome {
            notes: vec![copied(name, done.own_bytes), rest],
        })
    }
}

fn copied(name: &str, bytes: u64) -> String {
    let bytes = human_bytes(bytes);
    format!("volume {name}: its image got {bytes} that lay below it")
}
