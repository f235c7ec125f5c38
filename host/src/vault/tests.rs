//! Records in an etcd whose gateway lies: it loses answers, gives old, half and foreign ones, and
//! does late what it was asked for.

use super::Records;
use super::Vault;
use data_encoding::BASE64;
use engine::types::Uuid;
use node::record::{Epoch, Record};
use node::vault::{Cas, Look, Outcome};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use workload::rng::Rng;

const CLUSTER: Uuid = Uuid([7; 16]);
const UNIT: Uuid = Uuid([8; 16]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// Does it, and the answer is lost.
    Lost,
    /// Does nothing, and closes.
    Never,
    /// Does it when the next one is asked for.
    Late,
    NoLeader,
    Half,
    Foreign,
    /// What was there before, by a member that has not heard of the rest.
    Old,
    /// The same, as if it were new.
    OldAsNew,
    Compacted,
    /// Success is said where there was none, and the other way round.
    Wrong,
}

const LIES: [Lie; 10] = [
    Lie::Lost,
    Lie::Never,
    Lie::Late,
    Lie::NoLeader,
    Lie::Half,
    Lie::Foreign,
    Lie::Old,
    Lie::OldAsNew,
    Lie::Compacted,
    Lie::Wrong,
];

type Keys = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Default)]
struct State {
    keys: Keys,
    revision: u64,
    old: (Keys, u64),
    late: VecDeque<Value>,
    lies: VecDeque<Lie>,
    /// Lies that come unasked: in a thousand.
    often: u64,
    random: Option<Rng>,
    told: u64,
}

fn bytes(value: &Value) -> Vec<u8> {
    let text = value.as_str().expect("base64");
    BASE64.decode(text.as_bytes()).expect("base64")
}

impl State {
    fn next_lie(&mut self) -> Option<Lie> {
        let queued = self.lies.pop_front();
        let often = self.often;
        let random = self.random.as_mut();
        let lie = queued.or_else(|| {
            let random = random?;
            random.chance(often).then(|| random.pick(&LIES))
        });
        self.told += u64::from(lie.is_some());
        lie
    }

    fn transact(&mut self, request: &Value) -> Value {
        let holds = |compare: &Value| {
            assert_eq!(compare["target"], "CREATE");
            let there = self.keys.contains_key(&bytes(&compare["key"]));
            there == (compare["result"] == "GREATER")
        };
        let list = |of: &str| request[of].as_array().cloned().unwrap_or_default();
        let succeeded = list("compare").iter().all(holds);
        let then = list(if succeeded { "success" } else { "failure" });
        let mut responses = Vec::new();
        for step in then {
            if let Some(put) = step.get("request_put") {
                self.old = (self.keys.clone(), self.revision);
                self.revision += 1;
                self.keys.insert(bytes(&put["key"]), bytes(&put["value"]));
                responses.push(json!({ "response_put": {} }));
            }
            if let Some(range) = step.get("request_range") {
                let found = range_of(&self.keys, range);
                responses.push(json!({ "response_range": found }));
            }
        }
        json!({ "succeeded": succeeded, "responses": responses })
    }

    /// Status and body, or none.
    fn answer(&mut self, path: &str, request: &Value) -> Option<(u16, String)> {
        if let Some(late) = self.late.pop_front() {
            self.transact(&late);
        }
        let lie = self.next_lie();
        let write = path == "/v3/kv/txn";
        match lie {
            Some(Lie::Never) => return None,
            Some(Lie::Late) if write => {
                self.late.push_back(request.clone());
                return None;
            }
            Some(Lie::NoLeader) => {
                let fault = json!({ "error": "etcdserver: no leader", "code": 14 });
                return Some((503, fault.to_string()));
            }
            Some(Lie::Compacted) => {
                let fault = "etcdserver: mvcc: required revision has been compacted";
                return Some((400, json!({ "error": fault, "code": 11 }).to_string()));
            }
            Some(Lie::Foreign) => return Some((200, "<html>hello</html>".into())),
            _ => {}
        }
        let mut revision = self.revision;
        let mut answer = match (write, lie) {
            (true, _) => self.transact(request),
            (false, Some(Lie::Old)) => {
                revision = self.old.1;
                range_of(&self.old.0, request)
            }
            (false, Some(Lie::OldAsNew)) => range_of(&self.old.0, request),
            (false, _) => range_of(&self.keys, request),
        };
        revision = if write { self.revision } else { revision };
        if write && lie == Some(Lie::Wrong) {
            answer["succeeded"] = json!(answer["succeeded"] != true);
        }
        answer["header"] = json!({ "cluster_id": "9", "revision": revision.to_string() });
        match lie {
            Some(Lie::Lost) => None,
            _ => Some((200, answer.to_string())),
        }
        .map(|(status, text)| match lie {
            Some(Lie::Half) => (status, text[..text.len() / 2].to_owned()),
            _ => (status, text),
        })
    }
}

fn range_of(keys: &Keys, request: &Value) -> Value {
    let first = bytes(&request["key"]);
    let found: Vec<_> = match request.get("range_end") {
        None => keys.get_key_value(&first).into_iter().collect(),
        Some(end) => keys.range(first..bytes(end)).rev().collect(),
    };
    // As etcd does, what is nothing is left out.
    if found.is_empty() {
        return json!({});
    }
    let count = found.len().to_string();
    if request["count_only"] == true {
        return json!({ "count": count });
    }
    let bare = request["keys_only"] == true;
    let shown = |(key, value): &(&Vec<u8>, &Vec<u8>)| match bare {
        true => json!({ "key": BASE64.encode(key) }),
        false => json!({ "key": BASE64.encode(key), "value": BASE64.encode(value) }),
    };
    let limit = if request.get("limit").is_some() {
        1
    } else {
        found.len()
    };
    let shown: Vec<Value> = found.iter().take(limit).map(shown).collect();
    json!({ "kvs": shown, "count": count })
}

/// A gateway on loopback, whose thread ends with the tests.
struct Fake {
    state: Arc<Mutex<State>>,
    endpoint: String,
}

impl Fake {
    fn new() -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = listener.local_addr().expect("an address").to_string();
        let state = State {
            revision: 1,
            ..State::default()
        };
        let state = Arc::new(Mutex::new(state));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                std::thread::spawn(move || serve(stream, &state));
            }
        });
        Fake { state, endpoint }
    }

    fn records(&self) -> Records {
        records(&format!("etcd://{}", self.endpoint))
    }

    fn lie(&self, lies: &[Lie]) {
        let mut state = self.state.lock().expect("no panic");
        state.lies = lies.iter().copied().collect();
    }
}

fn records(vault: &str) -> Records {
    let vault = Vault::parse(vault).expect("a vault");
    Records::of(&vault, CLUSTER, UNIT, PathBuf::new())
}

fn serve(mut stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?.to_lowercase();
    let path = head.split(' ').nth(1)?;
    let length = head.split("content-length: ").nth(1)?;
    let length: usize = length.split("\r\n").next()?.parse().ok()?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    let request = serde_json::from_slice(&body).expect("JSON is asked for");
    let answer = state.lock().expect("no panic").answer(path, &request);
    let (status, text) = answer?;
    let head = format!(
        "HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n",
        text.len()
    );
    stream.write_all((head + &text).as_bytes()).ok()
}

fn record(number: u64, nonce: u8) -> Record {
    Record {
        cluster: CLUSTER,
        unit: UNIT,
        number,
        nonce: Uuid([nonce; 16]),
        before: Uuid::NIL,
        owner: None,
        epoch: Epoch::default(),
        drainer: None,
        given: 0,
        wanted: 0,
        degraded: None,
        at_origin: false,
        quiesced: false,
        members: Vec::new(),
    }
}

fn decide(records: &Records, record: Record) -> Outcome {
    let decided = records.decide(Cas::new(record), &|| false);
    decided.expect("it is not given up")
}

/// Fails when: an answer decides, and not what lies under the name.
#[test]
fn of_two_hosts_one_makes_each_record_whatever_a_gateway_says() {
    let mut told = 0;
    for seed in 0..24 {
        let fake = Fake::new();
        fake.records().make().expect("made");
        {
            let mut state = fake.state.lock().expect("no panic");
            (state.often, state.random) = (250, Some(Rng::new(seed)));
        }
        for number in 1..=3 {
            let hosts = [1, 2].map(|nonce| {
                let records = fake.records();
                std::thread::spawn(move || {
                    loop {
                        match decide(&records, record(number, nonce)) {
                            // Nothing was sent yet.
                            Outcome::Unwritten => {}
                            Outcome::Damaged(why) => panic!("seed {seed}: {why}"),
                            outcome => return outcome,
                        }
                    }
                })
            });
            let ends = hosts.map(|host| host.join().expect("no panic"));
            let winner = match &ends {
                [Outcome::Won(won), Outcome::Lost(other)]
                | [Outcome::Lost(other), Outcome::Won(won)] => {
                    assert_eq!(won, other, "seed {seed}");
                    won.clone()
                }
                ends => panic!("seed {seed}, record {number}: {ends:?}"),
            };
            let mut state = fake.state.lock().expect("no panic");
            told += std::mem::take(&mut state.told);
            state.often = 0;
            drop(state);
            let seen = fake.records().look(Look::new(UNIT, None));
            assert_eq!(seen, Ok(Some(winner)), "seed {seed}, record {number}");
            fake.state.lock().expect("no panic").often = 250;
        }
    }
    assert!(told > 60, "{told} lies");
}

/// Fails when: an answer that cannot be read, or an old one, says that there is no record.
#[test]
fn a_look_sees_what_is_there_or_says_why_not() {
    let fake = Fake::new();
    let records = fake.records();
    records.make().expect("made");
    assert_eq!(records.look(Look::<Record>::new(UNIT, None)), Ok(None));
    assert!(matches!(decide(&records, record(1, 1)), Outcome::Won(_)));
    for lie in LIES {
        for lies in [1, 50] {
            fake.lie(&vec![lie; lies]);
            // The first record is known, so what is as if it were not there is asked for again.
            let known = Some(record(1, 1));
            let seen = records.look(Look::new(UNIT, known.clone()));
            match lies {
                1 => assert_eq!(seen, Ok(known), "{lie:?}"),
                _ => assert!(seen.is_err() || seen == Ok(known), "{lie:?}: {seen:?}"),
            }
        }
    }
    fake.lie(&[Lie::Old; 50]);
    let why = records
        .look(Look::<Record>::new(UNIT, None))
        .expect_err("it is old");
    assert!(why.contains("revision"), "{why}");
    fake.lie(&[]);
    let seen = records.look(Look::<Record>::new(UNIT, None));
    assert_eq!(seen, Ok(Some(record(1, 1))));
}

/// Fails when: an etcd without the unit, or without the record before, takes a record.
#[test]
fn an_etcd_that_is_not_the_one_of_before_makes_nothing() {
    let fake = Fake::new();
    let records = fake.records();
    let why = records.find().expect_err("it has no unit");
    assert!(why.contains("has no records"), "{why}");
    assert_eq!(decide(&records, record(1, 1)), Outcome::Unwritten);
    records.make().expect("made");
    records.make().expect("there");
    records.find().expect("there");
    assert_eq!(decide(&records, record(2, 1)), Outcome::Unwritten);
    assert!(matches!(decide(&records, record(1, 1)), Outcome::Won(_)));
    assert!(matches!(decide(&records, record(2, 1)), Outcome::Won(_)));
    assert!(matches!(decide(&records, record(2, 2)), Outcome::Lost(_)));
    // Keys of another unit are not of this one.
    let seen = records.look(Look::<Record>::new(Uuid([9; 16]), None));
    assert_eq!(seen, Ok(None));
    // An earlier run may have made it.
    let again = records.decide(Cas::again(record(2, 1)), &|| false);
    assert!(matches!(again, Some(Outcome::Won(_))));
}

#[test]
fn members_are_asked_in_turn() {
    let fake = Fake::new();
    // Below those that are given out.
    let gone = "127.0.0.1:1";
    let vault = format!("etcd://{gone},{}", fake.endpoint);
    let both = self::records(&vault);
    both.make().expect("the second answers");
    assert!(matches!(decide(&both, record(1, 1)), Outcome::Won(_)));
    let alone = self::records(&format!("etcd://{gone}"));
    let why = alone.find().expect_err("no member answers");
    assert!(
        why.contains(&format!("{gone}: connection refused")),
        "{why}"
    );
    let gone = Vault::parse(&format!("etcd://{gone}")).expect("it is well written");
    let why = super::begin(&gone).expect_err("no cluster begins there");
    assert!(why.contains("connection refused; start the etcd"), "{why}");
}
