//! Words for copies of dirty data: those of a volume on other hosts, and those that are kept here.

use crate::config::units::human_bytes;
use serde_json::Value;

/// `replication` of a volume in one line.
pub fn of_volume(replication: &Value) -> String {
    let (real, wanted) = (number(&replication["real"]), number(&replication["wanted"]));
    let state = replication["state"].as_str();
    let state = state.map_or(String::new(), |state| format!(", {state}"));
    let of = match wanted {
        // For a guest that may move.
        0 => format!("{real}"),
        _ => format!("{real} of {wanted}"),
    };
    let mut words = format!("{of} on other hosts{state}");
    let members = replication["members"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    for member in members.iter().filter(|member| member["state"] != "here") {
        words += &format!("; {} {}", text(&member["host"]), text(&member["state"]));
    }
    let learner = &replication["learner"];
    if !learner.is_null() {
        words += &format!("; {} has {} %", text(&learner["host"]), learner["percent"]);
    }
    // What is wrong with fewer copies than wanted has a row of its own.
    let slowed = replication["reason"]
        .as_str()
        .filter(|_| replication["state"] == "full");
    words += &slowed.map_or(String::new(), |why| format!("; {why}"));
    words
}

/// What this host keeps for others, if it keeps anything.
pub fn kept(status: &Value) -> Option<String> {
    let copies = status["copies"]
        .as_array()
        .filter(|copies| !copies.is_empty())?;
    let bytes: u64 = copies.iter().map(|copy| number(&copy["bytes"])).sum();
    let each: Vec<String> = copies.iter().map(one).collect();
    let room = &status["copy_room"];
    Some(format!(
        "{} kept for other hosts, room for {} more of {}: {}",
        human_bytes(bytes),
        human_bytes(number(&room["free_bytes"])),
        human_bytes(number(&room["max_bytes"])),
        each.join(", ")
    ))
}

fn one(copy: &Value) -> String {
    let bytes = human_bytes(number(&copy["bytes"]));
    let (name, owner, state) = (
        text(&copy["name"]),
        text(&copy["owner"]),
        text(&copy["state"]),
    );
    format!("{name} of {owner} ({state}, {bytes})")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn copies_are_told_in_one_line() {
        let mut volume = json!({ "wanted": 1, "real": 1, "state": "full", "learner": null,
            "members": [{ "host": "a", "state": "here" }, { "host": "b", "state": "streaming" }] });
        assert_eq!(
            of_volume(&volume),
            "1 of 1 on other hosts, full; b streaming"
        );
        volume["reason"] = json!("b has no room for copies");
        assert!(of_volume(&volume).ends_with("; b streaming; b has no room for copies"));
        volume = json!({ "wanted": 1, "real": 0, "state": "degraded",
            "members": [{ "host": "b", "state": "lost" }],
            "learner": { "host": "c", "percent": 40 } });
        let wanted = "0 of 1 on other hosts, degraded; b lost; c has 40 %";
        assert_eq!(of_volume(&volume), wanted);
        let away = json!({ "wanted": 1, "real": 0, "state": null, "members": [], "learner": null });
        assert_eq!(of_volume(&away), "0 of 1 on other hosts");
        assert_eq!(kept(&json!({ "copies": [] })), None);
        assert_eq!(kept(&Value::Null), None);
        let one = json!([{ "name": "disk", "owner": "a", "state": "member", "bytes": 8192 }]);
        let room = json!({ "free_bytes": 4096, "max_bytes": 1 << 20 });
        let one = json!({ "copies": one, "copy_room": room });
        let wanted = "8 KiB kept for other hosts, room for 4 KiB more of 1 MiB: disk of a \
                      (member, 8 KiB)";
        assert_eq!(kept(&one).as_deref(), Some(wanted));
    }
}
