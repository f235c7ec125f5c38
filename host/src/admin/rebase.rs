//! The rules of giving an image another backing.

use super::{Admin, Outcome, find, refuse_connected, refuse_held};
use crate::config::units::human_bytes;
use crate::daemon::{Below, Rebased};
use crate::error::Result;
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
        let known = ["backing", "flatten", "unsafe"];
        if let Some(key) = document.keys().find(|key| !known.contains(&key.as_str())) {
            return Err(format!(
                "{key}: unknown key; there are backing, flatten and unsafe"
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
                Below::File(PathBuf::from(path))
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
    /// Lets the image of a volume stand on another file, or on none.
    pub fn rebase(&self, name: &str, order: &Order) -> Result<Outcome> {
        let _order = self.order();
        let look = self.look()?;
        refuse_held(&look, name)?;
        refuse_connected(&look, find(&look, name)?, "rebase")?;
        let done = self.machine.rebase(name, &order.below, order.changes)?;
        Ok(Outcome {
            notes: vec![copied(name, &done)],
        })
    }

    /// Gives the image of a volume what its backing has.
    pub fn merge(&self, name: &str, remove: bool) -> Result<Outcome> {
        let _order = self.order();
        let look = self.look()?;
        refuse_held(&look, name)?;
        refuse_connected(&look, find(&look, name)?, "merge")?;
        let done = self.machine.merge(name, remove)?;
        let before = done.before.clone().unwrap_or_default();
        let before = before.display();
        let rest = match (&done.left, remove) {
            (Some(why), _) => format!("{before}: stays: {why}"),
            (None, true) => format!("{before}: was removed"),
            (None, false) => format!(
                "{before}: is not needed by this volume any more; remove it if nothing else stands \
                 on it, or merge with --remove next time"
            ),
        };
        Ok(Outcome {
            notes: vec![copied(name, &done), rest],
        })
    }
}

fn copied(name: &str, done: &Rebased) -> String {
    let bytes = human_bytes(done.own_bytes);
    format!("volume {name}: its image got {bytes} that lay below it")
}
