//! Where copies go, as it is written: the key `place` of a cluster and of a volume.
//!
//! Always true: what is shown reads back as it was meant. Deliberately absent: which host is
//! chosen; see [`crate::unit`].

use super::Wrong;
use super::values::{Value, check_name, quote};
use crate::unit::copies::CopyPlace;

/// Where copies go: a word, or names of hosts.
pub fn copy_place(value: &Value) -> Result<CopyPlace, Wrong> {
    let right = "write \"other-domain\", \"same-domain\", \"any\", or a list of hosts, as in \
                 [\"host-b\", \"host-c\"]";
    let wrong = || Wrong::new(format!("{} is no place of copies", value.show()), right);
    let hosts = match value {
        Value::Text(text) => match text.as_str() {
            "other-domain" => return Ok(CopyPlace::OtherDomain),
            "same-domain" => return Ok(CopyPlace::SameDomain),
            "any" => return Ok(CopyPlace::Any),
            // A word that is none would be taken for a host.
            text if !text.contains(',') => return Err(wrong()),
            _ => value.words(right)?,
        },
        Value::List(_) => value.words(right)?,
        _ => return Err(wrong()),
    };
    for host in &hosts {
        check_name(host).map_err(|_| Wrong::new(format!("{host:?} is no host"), right))?;
    }
    match hosts.is_empty() {
        true => Err(wrong()),
        false => Ok(CopyPlace::Hosts(hosts)),
    }
}

pub fn show_place(place: &CopyPlace) -> String {
    match place {
        CopyPlace::OtherDomain => quote("other-domain"),
        CopyPlace::SameDomain => quote("same-domain"),
        CopyPlace::Any => quote("any"),
        CopyPlace::Hosts(names) => {
            let names: Vec<String> = names.iter().map(|name| quote(name)).collect();
            format!("[{}]", names.join(", "))
        }
    }
}
