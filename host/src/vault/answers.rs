//! What is asked of the JSON gateway of an etcd, and how its answers are read.
//!
//! Always true: bytes that are no whole answer are an error and never "no such key"; numbers are
//! read as etcd writes them, as text or not. Deliberately absent: how bytes are carried, and what
//! an error means for a record.

use data_encoding::BASE64;
use serde_json::{Value, json};

/// Longest error of an etcd that is shown.
const FAULT_BYTES_MAX: usize = 200;

/// Which etcd has answered, and its state when it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    pub cluster: u64,
    pub revision: u64,
}

/// The keys of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    pub keys: Vec<(Vec<u8>, Vec<u8>)>,
    /// Of all keys in the range, also those that were not sent.
    pub count: u64,
}

/// How a transaction has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    pub succeeded: bool,
    pub ranges: Vec<Range>,
}

fn base64(text: impl AsRef<[u8]>) -> String {
    BASE64.encode(text.as_ref())
}

pub fn get(key: &str) -> Value {
    json!({ "key": base64(key) })
}

/// What comes behind all keys that begin so.
fn end_of(start: &str) -> String {
    let mut end = start.as_bytes().to_vec();
    *end.last_mut().expect("all keys are below /tenuto/") += 1;
    base64(end)
}

/// All keys that begin so, and their values.
pub fn all(start: &str) -> Value {
    json!({ "key": base64(start), "range_end": end_of(start) })
}

/// Makes a key, or gives it another value.
pub fn replace(key: &str, value: &[u8]) -> Value {
    json!({ "key": base64(key), "value": base64(value) })
}

/// The name of the last key that begins so.
pub fn last(start: &str) -> Value {
    json!({
        "key": base64(start), "range_end": end_of(start), "limit": "1", "keys_only": true,
        "sort_order": "DESCEND", "sort_target": "KEY",
    })
}

fn is_there(key: &str) -> Value {
    let (target, result) = ("CREATE", "GREATER");
    json!({ "key": base64(key), "target": target, "result": result, "create_revision": "0" })
}

fn is_absent(key: &str) -> Value {
    let (target, result) = ("CREATE", "EQUAL");
    json!({ "key": base64(key), "target": target, "result": result, "create_revision": "0" })
}

fn put(key: &str, value: &[u8]) -> Value {
    json!({ "request_put": { "key": base64(key), "value": base64(value) } })
}

/// Makes a key that is not there, if all of `needs` are.
pub fn make(key: &str, value: &[u8], needs: &[String]) -> Value {
    let mut compare = vec![is_absent(key)];
    compare.extend(needs.iter().map(|need| is_there(need)));
    json!({ "compare": compare, "success": [put(key, value)], "failure": [] })
}

/// Whether that would be taken. `never` is a key that is not there, so nothing is put; etcd looks
/// for rights and room all the same.
pub fn rehearse(never: &str, value: &[u8], needs: &[String]) -> Value {
    let range =
        |need: &String| json!({ "request_range": { "key": base64(need), "count_only": true } });
    let ranges: Vec<Value> = needs.iter().map(range).collect();
    json!({ "compare": [is_there(never)], "success": [put(never, value)], "failure": ranges })
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Null => Some(0),
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    }
}

fn bytes(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Null => Some(Vec::new()),
        value => BASE64.decode(value.as_str()?.as_bytes()).ok(),
    }
}

fn document(answer: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(answer).map_err(|_| "the answer is not JSON".to_owned())
}

/// Reads the head of an answer.
pub fn header(document: &Value) -> Option<Header> {
    let header = &document["header"];
    let (cluster, revision) = (number(&header["cluster_id"])?, number(&header["revision"])?);
    // An empty etcd has revision 1.
    (revision > 0).then_some(Header { cluster, revision })
}

fn keys(found: &Value) -> Option<Range> {
    if !found.is_object() {
        return None;
    }
    let list = match &found["kvs"] {
        Value::Null => &[][..],
        list => list.as_array()?,
    };
    let read = |it: &Value| Some((bytes(it.get("key")?)?, bytes(&it["value"])?));
    let keys: Vec<_> = list.iter().map(read).collect::<Option<_>>()?;
    let count = number(&found["count"])?;
    let all = count >= keys.len() as u64;
    all.then_some(Range { keys, count })
}

/// An answer with its head, as `read` reads the rest.
fn whole<T>(answer: &[u8], read: impl Fn(&Value) -> Option<T>) -> Result<(Header, T), String> {
    let document = document(answer)?;
    let parts = header(&document).zip(read(&document));
    parts.ok_or_else(|| "the answer is not that of an etcd".to_owned())
}

pub fn range(answer: &[u8]) -> Result<(Header, Range), String> {
    whole(answer, keys)
}

pub fn transaction(answer: &[u8]) -> Result<(Header, Transaction), String> {
    whole(answer, |document| {
        let succeeded = match &document["succeeded"] {
            Value::Null => false,
            other => other.as_bool()?,
        };
        let list = match &document["responses"] {
            Value::Null => &[][..],
            list => list.as_array()?,
        };
        let ranges = list.iter().filter_map(|it| it.get("response_range"));
        let ranges = ranges.map(keys).collect::<Option<_>>()?;
        Some(Transaction { succeeded, ranges })
    })
}

/// An answer of which only the head is of use.
pub fn done(answer: &[u8]) -> Result<(Header, ()), String> {
    whole(answer, |_| Some(()))
}

/// The version that an etcd says it has.
pub fn version(answer: &[u8]) -> Result<String, String> {
    let version = document(answer)?["etcdserver"].as_str().map(plain);
    version.ok_or_else(|| "is no etcd".to_owned())
}

/// Whether the gateway of this version is at `/v3`.
pub fn is_known(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u64>().ok());
    let (major, minor) = (parts.next().flatten(), parts.next().flatten());
    (major, minor) >= (Some(3), Some(4))
}

/// Why a request was refused, and what would be right.
pub fn fault(status: u16, answer: &[u8]) -> String {
    let document = document(answer).unwrap_or(Value::Null);
    let said = ["message", "error"]
        .iter()
        .find_map(|key| document[key].as_str());
    let said = said.map_or_else(|| format!("answers with {status}"), plain);
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    let right = if has(&["user name is empty", "auth token", "permission denied"]) {
        "; it asks for a user, and this version has none: let hosts in by certificates"
    } else if has(&["space exceeded"]) {
        "; compact it, or raise its quota, and disarm its alarm"
    } else if has(&["timed out", "no leader", "leader changed"]) {
        "; most of its members must run and reach each other"
    } else if status == 404 {
        "; etcd 3.4 or a newer one is needed"
    } else {
        ""
    };
    said + right
}

/// A text of another program as part of a line.
fn plain(text: &str) -> String {
    let mut end = text.len().min(FAULT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let letters = text[..end].chars();
    letters
        .map(|it| if it.is_control() { ' ' } else { it })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use workload::rng::Rng;

    const FOUND: &str = r#"{"header":{"cluster_id":"14841639068965178418","member_id":"1",
        "revision":"7","raft_term":"2"},"kvs":[{"key":"Zm9v","create_revision":"6",
        "mod_revision":"6","version":"1","value":"YmFy"}],"count":"1"}"#;
    const MADE: &str = r#"{"header":{"cluster_id":"1","revision":"8"},"succeeded":true,
        "responses":[{"response_range":{"header":{"revision":"8"},"count":"1"}}]}"#;

    #[test]
    fn answers_are_read_as_etcd_writes_them() {
        let (header, found) = range(FOUND.as_bytes()).expect("right");
        let cluster = 14_841_639_068_965_178_418;
        assert_eq!(
            header,
            Header {
                cluster,
                revision: 7
            }
        );
        assert_eq!(found.keys, [(b"foo".to_vec(), b"bar".to_vec())]);
        let (_, made) = transaction(MADE.as_bytes()).expect("right");
        assert!(made.succeeded);
        assert_eq!(made.ranges.len(), 1);
        assert_eq!(version(br#"{"etcdserver":"3.4.23"}"#), Ok("3.4.23".into()));
        assert!(is_known("3.4.23") && is_known("3.10.0") && is_known("4.0.0"));
        assert!(!is_known("3.3.27") && !is_known("") && !is_known("x.y"));
    }

    /// Fails when: what is no whole answer is taken for one that says that a key is not there.
    #[test]
    fn what_is_no_whole_answer_says_nothing_about_a_key() {
        for text in [
            "",
            "{}",
            "null",
            "[]",
            r#"{"header":{}}"#,
            r#"{"header":{"cluster_id":"1","revision":"0"}}"#,
            r#"{"header":{"cluster_id":"1","revision":"x"}}"#,
            r#"{"header":{"cluster_id":"1","revision":"2"},"kvs":{}}"#,
            r#"{"header":{"cluster_id":"1","revision":"2"},"kvs":[{}]}"#,
            r#"{"header":{"cluster_id":"1","revision":"2"},"kvs":[{"key":"%"}],"count":"1"}"#,
            r#"{"header":{"cluster_id":"1","revision":"2"},"kvs":[{"key":"Zm9v"}]}"#,
        ] {
            assert!(range(text.as_bytes()).is_err(), "{text}");
        }
        for end in 0..FOUND.len() {
            assert!(range(&FOUND.as_bytes()[..end]).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn foreign_bytes_are_never_taken_for_more_than_they_are() {
        let mut random = Rng::new(5);
        for round in 0..20_000_u64 {
            let mut bytes = [FOUND, MADE][(round % 2) as usize].as_bytes().to_vec();
            for _ in 0..1 + random.below(6) {
                let at = random.below(bytes.len() as u64) as usize;
                match random.below(3) {
                    0 => bytes[at] = random.below(256) as u8,
                    1 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, b"\"{}[],:09"[random.below(9) as usize]),
                }
            }
            if let Ok((header, found)) = range(&bytes) {
                assert!(header.revision > 0 && found.count >= found.keys.len() as u64);
            }
            let _ = (transaction(&bytes), done(&bytes), version(&bytes));
            assert!(fault(503, &bytes).len() < 2 * FAULT_BYTES_MAX + 200);
        }
    }

    #[test]
    fn a_fault_says_what_would_be_right() {
        for (text, right) in [
            ("etcdserver: no leader", "most of its members"),
            ("etcdserver: request timed out", "most of its members"),
            ("etcdserver: user name is empty", "certificates"),
            ("etcdserver: mvcc: database space exceeded", "quota"),
        ] {
            let body = json!({ "error": text, "message": text, "code": 14 }).to_string();
            let said = fault(503, body.as_bytes());
            assert!(said.starts_with(text) && said.contains(right), "{said}");
        }
        assert!(fault(404, b"Not Found").contains("3.4"));
        assert!(!fault(500, br#"{"error":"a\nb"}"#).contains('\n'));
    }
}
