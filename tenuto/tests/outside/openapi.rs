//! What a live daemon replies, held against its own document of the interface.
//!
//! The document says nothing of keys that it does not name, so that keys can be added. This check
//! is stricter: a key that is not documented fails it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use serde_json::Value;
use workload::check::Promise;

use crate::common::load::Load;
use crate::common::{Rig, seed, wait_until};

const MIB: u64 = 1 << 20;
const TURN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

/// Status and body of one request on the admin socket.
pub fn ask(rig: &Rig, method: &str, path: &str, body: &str) -> (u16, Value) {
    let (status, _, body) = ask_whole(rig, method, path, body);
    (status, body)
}

/// The same with what stands before the body.
pub fn ask_whole(rig: &Rig, method: &str, path: &str, body: &str) -> (u16, String, Value) {
    let socket = rig.run_dir().join("tenuto.sock");
    let mut stream = UnixStream::connect(socket).expect("connected");
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: tenuto\r\nContent-Length: {}\r\nConnection: close\r\n\
         \r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("a reply");
    let status = reply.split(' ').nth(1).and_then(|code| code.parse().ok());
    let (head, body) = reply.split_once("\r\n\r\n").expect("a body");
    let body = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {reply}"));
    (status.expect("a status"), format!("{head}\r\n"), body)
}

/// Says where a value is not what its schema says.
fn check(document: &Value, schema: &Value, value: &Value, place: &str, wrong: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.trim_start_matches('#');
        let named = document.pointer(name);
        let named = named.unwrap_or_else(|| panic!("{name} is not in the document"));
        return check(document, named, value, place, wrong);
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(some) => some.iter().filter_map(Value::as_str).collect(),
        _ => panic!("{place}: the document names no type"),
    };
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) if types.contains(&"number") => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if !types.contains(&kind) {
        wrong.push(format!("{place}: {value} is no {types:?}"));
        return;
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        wrong.push(format!("{place}: {value} is not in {words:?}"));
    }
    if let Some(items) = value.as_array() {
        for (at, item) in items.iter().enumerate() {
            check(
                document,
                &schema["items"],
                item,
                &format!("{place}[{at}]"),
                wrong,
            );
        }
    }
    let (Some(members), Some(known)) = (value.as_object(), schema["properties"].as_object()) else {
        return;
    };
    for (key, value) in members {
        match known.get(key) {
            Some(schema) => check(document, schema, value, &format!("{place}.{key}"), wrong),
            None => wrong.push(format!("{place}.{key}: is not documented")),
        }
    }
    for key in schema["required"].as_array().into_iter().flatten() {
        let key = key.as_str().expect("a name");
        if !members.contains_key(key) {
            wrong.push(format!("{place}.{key}: is missing"));
        }
    }
}

/// Asks, and holds the reply against what the document has for this path.
pub fn held(rig: &Rig, document: &Value, method: &str, path: &str, of: &str, body: &str) -> Value {
    let (status, reply) = ask(rig, method, path, body);
    let responses = &document["paths"][of][method.to_lowercase()]["responses"];
    let mut response = &responses[status.to_string()];
    if response.is_null() {
        response = &responses["default"];
    }
    let schema = &response["content"]["application/json"]["schema"];
    let mut wrong = Vec::new();
    check(
        document,
        schema,
        &reply,
        &format!("{method} {path}"),
        &mut wrong,
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    reply
}

#[test]
fn replies_of_a_live_daemon_are_what_the_document_of_the_interface_says() {
    let mut rig = Rig::new();
    let disk = rig.image("disk.img", 8 * MIB);
    let gold = rig.image("gold.img", 8 * MIB);
    let more = rig.image("more.img", MIB);
    rig.volume("disk", &disk, "write-back", "destage-after = \"never\"");
    rig.volume("clone", &gold, "ephemeral", "");
    rig.section(&format!(
        "[[pool]]\nname = \"office\"\nimage = \"{}\"\nmembers = [\"desk\"]\n",
        gold.display()
    ));
    let daemon = rig.serve();
    let (_, document) = ask(&rig, "GET", "/openapi.json", "");
    let held = |method: &str, path: &str, of: &str, body: &str| {
        held(&rig, &document, method, path, of, body)
    };
    for volume in ["disk", "clone"] {
        let mut load = Load::new(1, 8 * MIB, Promise::Prefix, seed(62));
        let counts = load.run(rig.connect(volume), |counts| counts.written_bytes < MIB);
        counts.expect("reads are right");
        rig.gone_clients(volume);
    }
    held("GET", "/v1/status", "/v1/status", "");
    held("GET", "/v1/volumes", "/v1/volumes", "");
    for volume in ["disk", "clone", "nobody"] {
        let path = format!("/v1/volumes/{volume}");
        held("GET", &path, "/v1/volumes/{name}", "");
        held("GET", &format!("{path}/map"), "/v1/volumes/{name}/map", "");
    }
    held("POST", "/v1/volumes/disk/map", "/v1/volumes/{name}/map", "");
    let body = format!(
        "{{\"name\":\"more\",\"origin\":\"{}\",\"format\":\"raw\"}}",
        more.display()
    );
    held("POST", "/v1/volumes", "/v1/volumes", &body);
    held("POST", "/v1/volumes", "/v1/volumes", &body);
    let one = "/v1/volumes/{name}";
    held(
        "PATCH",
        "/v1/volumes/more",
        one,
        "{\"dirty_limit\":1048576}",
    );
    held("PATCH", "/v1/volumes/more", one, "{\"colour\":1}");
    let orders = "/v1/volumes/{name}/{verb}";
    let verbs = &document["paths"][orders]["post"]["parameters"][1]["schema"]["enum"];
    for verb in verbs.as_array().expect("verbs") {
        for volume in ["disk", "clone"] {
            let verb = verb.as_str().expect("a word");
            let path = format!("/v1/volumes/{volume}/{verb}");
            held("POST", &path, orders, "");
            held("POST", &format!("{path}?wait=true"), orders, "");
        }
    }
    let (all, each) = (
        "/v1/volumes/{name}/checkpoints",
        "/v1/volumes/{name}/checkpoints/{checkpoint}",
    );
    for volume in ["disk", "clone", "nobody"] {
        let path = format!("/v1/volumes/{volume}/checkpoints");
        held("POST", &path, all, "{\"name\":\"monday\"}");
        held("POST", &path, all, "{\"colour\":1}");
        held("GET", &path, all, "");
        for name in ["monday", "sunday"] {
            held("GET", &format!("{path}/{name}"), each, "");
            held("DELETE", &format!("{path}/{name}"), each, "");
        }
    }
    held("DELETE", "/v1/volumes/more", one, "");
    held("POST", "/v1/reload", "/v1/reload", "");
    held("POST", "/v1/cache/scrub", "/v1/cache/scrub", "");
    held("POST", "/v1/cache/scrub?wait=true", "/v1/cache/scrub", "");
    held("GET", "/v1/status", "/v1/status", "");
    let events = held("GET", "/v1/events?wait=0", "/v1/events", "");
    assert!(events["events"].as_array().is_some_and(|all| all.len() > 5));
    held("GET", "/v1/events?wait=99", "/v1/events", "");
    held("GET", "/v1/peers", "/v1/peers", "");
    let orders = "/v1/pools/{name}/{verb}";
    let refresh = format!(
        "{{\"image\":\"{}\",\"at_unix_ms\":{}}}",
        disk.display(),
        u64::MAX
    );
    for name in ["office", "unknown"] {
        let path = format!("/v1/pools/{name}");
        held("POST", &format!("{path}/refresh"), orders, &refresh);
        held("POST", &format!("{path}/refresh"), orders, "{\"colour\":1}");
        held("GET", &path, "/v1/pools/{name}", "");
        for verb in ["rollback", "finish", "dance"] {
            held("POST", &format!("{path}/{verb}"), orders, "");
        }
    }
    held("GET", "/v1/pools", "/v1/pools", "");
    for order in ["token", "check", "leave"] {
        let path = format!("/v1/cluster/{order}");
        held("POST", &path, &path, "");
    }
    held("GET", "/v1/advice", "/v1/advice", "");
    held("GET", "/v1/trace", "/v1/trace", "");
    held("GET", "/v1/trace?volume=nobody", "/v1/trace", "");
    held("DELETE", "/v1/trace/7", "/v1/trace/{number}", "");
    for path in ["/v1/history?seconds=60", "/v1/history?volume=disk"] {
        wait_until("samples", TURN_TIMEOUT, || {
            let history = held("GET", path, "/v1/history", "");
            history["columns"]["time"]
                .as_array()
                .is_some_and(|times| !times.is_empty())
        });
    }
    daemon.stop();
}
