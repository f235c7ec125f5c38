//! Records are made by several hosts at once on a directory that lies: links land late, also after
//! their host has died; answers are lost or wrong; a name that is there is not seen for a while.
//!
//! What must hold: one record has each number, and a host that is told that it has won has made it;
//! one that is told that it has lost is told which record is there; one that is told that nothing
//! was linked has linked nothing.

use engine::types::Uuid;
use node::record::{Epoch, Record};
use node::vault::{Answer, Call, Cas, Look, Outcome, Step};
use std::collections::BTreeMap;
use workload::rng::Rng;

const UNIT: Uuid = Uuid([9; 16]);
const ROUNDS: u64 = 20_000;
const STEPS_MAX: u32 = 10_000;

/// The directory, and what is under way to it.
#[derive(Default)]
struct Directory {
    files: BTreeMap<String, Vec<u8>>,
    late: Vec<(String, String, Vec<u8>)>,
    /// The storage has recovered: nothing is lost or late any more.
    calm: bool,
}

impl Directory {
    fn link(&mut self, to: &str, bytes: &[u8]) -> bool {
        let free = !self.files.contains_key(to);
        if free {
            self.files.insert(to.to_owned(), bytes.to_vec());
        }
        free
    }

    fn land(&mut self, random: &mut Rng) {
        if !self.late.is_empty() {
            let at = random.below(self.late.len() as u64) as usize;
            let (_, to, bytes) = self.late.remove(at);
            self.link(&to, &bytes);
        }
    }

    fn call(&mut self, random: &mut Rng, call: &Call) -> Answer {
        let luck = if self.calm { 9 } else { random.below(10) };
        match call {
            Call::Write { .. } if luck == 0 => Answer::Failed,
            Call::Write { name, bytes } => {
                self.files.insert(name.clone(), bytes.clone());
                Answer::Done
            }
            Call::Link { from, to } => {
                let Some(bytes) = self.files.get(from).cloned() else {
                    return Answer::Absent;
                };
                match luck {
                    0 => Answer::Failed,
                    // Made, and told to be there already, or to have failed.
                    1 => {
                        self.link(to, &bytes);
                        Answer::Failed
                    }
                    2 | 3 => {
                        self.late.push((from.clone(), to.clone(), bytes));
                        if luck == 2 {
                            Answer::Done
                        } else {
                            Answer::Failed
                        }
                    }
                    _ => match self.link(to, &bytes) {
                        true => Answer::Done,
                        false => Answer::Failed,
                    },
                }
            }
            Call::Sync if luck == 0 => Answer::Failed,
            Call::Sync => Answer::Done,
            Call::Read { .. } if luck == 0 => Answer::Failed,
            // Not seen yet.
            Call::Read { .. } if luck == 1 => Answer::Absent,
            Call::Read { name } => self
                .files
                .get(name)
                .cloned()
                .map_or(Answer::Absent, Answer::Bytes),
            Call::List if luck == 0 => Answer::Failed,
            Call::List => Answer::Names(self.files.keys().cloned().collect()),
            Call::Remove { name } => {
                self.files.remove(name);
                if luck == 0 {
                    Answer::Failed
                } else {
                    Answer::Done
                }
            }
        }
    }
}

fn record(number: u64, host: u8, nonce: u8) -> Record {
    let mut id = [0; 16];
    (id[0], id[1], id[2]) = (host, nonce, number as u8);
    Record {
        cluster: Uuid([1; 16]),
        unit: UNIT,
        number,
        nonce: Uuid(id),
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

struct Host {
    cas: Cas,
    call: Call,
    outcome: Option<Outcome>,
}

impl Host {
    fn new(cas: Cas) -> Host {
        let call = cas.begin();
        Host {
            cas,
            call,
            outcome: None,
        }
    }

    fn step(&mut self, directory: &mut Directory, random: &mut Rng) {
        let answer = directory.call(random, &self.call);
        match self.cas.answer(answer) {
            Step::Call(call) | Step::Wait(call) => self.call = call,
            Step::End(outcome) => self.outcome = Some(outcome),
        }
    }
}

#[test]
fn one_record_has_each_number_whatever_the_directory_says() {
    let (mut won, mut lost, mut unwritten, mut crashed) = (0, 0, 0, 0);
    for round in 0..ROUNDS {
        let mut random = Rng::new(round);
        let mut directory = Directory::default();
        let mut hosts: Vec<Host> = (0..3)
            .map(|it| Host::new(Cas::new(record(1, it, 0))))
            .collect();
        let mut steps = 0;
        while hosts.iter().any(|host| host.outcome.is_none()) {
            steps += 1;
            assert!(steps < STEPS_MAX, "round {round} does not end");
            directory.calm = steps > 200;
            let at = random.below(4) as usize;
            let Some(host) = hosts.get_mut(at) else {
                directory.land(&mut random);
                continue;
            };
            if host.outcome.is_some() {
                continue;
            }
            // Its daemon dies, and what it has remembered is tried again.
            if !directory.calm && random.below(20) == 0 {
                crashed += 1;
                *host = Host::new(Cas::again(host.cas.record().clone()));
                continue;
            }
            host.step(&mut directory, &mut random);
        }
        while !directory.late.is_empty() {
            directory.land(&mut random);
        }
        let name = directory.files.keys().find(|name| name.starts_with("r."));
        let there = name.map(|name| Record::parse(&directory.files[name]).expect("whole"));
        for host in hosts {
            match host.outcome.expect("it has ended") {
                Outcome::Won(record) => {
                    won += 1;
                    assert_eq!(record.nonce, host.cas.record().nonce, "round {round}");
                    assert_eq!(Some(record), there, "round {round}");
                }
                Outcome::Lost(record) => {
                    lost += 1;
                    assert_eq!(Some(record), there, "round {round}");
                }
                Outcome::Unwritten => {
                    unwritten += 1;
                    let nonce = there.as_ref().map(|it| it.nonce);
                    assert_ne!(nonce, Some(host.cas.record().nonce), "round {round}");
                }
                Outcome::Damaged(why) => panic!("round {round}: {why}"),
            }
        }
    }
    assert!(won > 0 && lost > 0 && unwritten > 0 && crashed > 0);
}

#[test]
fn a_look_is_late_at_most() {
    for round in 0..ROUNDS {
        let mut random = Rng::new(round);
        let mut directory = Directory::default();
        let last = 1 + random.below(5);
        for number in 1..=last {
            let record = record(number, 1, 0);
            let name = format!("r.{}.{number:020}", node::vault::hex(UNIT));
            directory.files.insert(name, record.encode());
        }
        let known = random.below(last + 1);
        let mut look = Look::new(UNIT, (known > 0).then(|| record(known, 1, 0)));
        let (mut call, mut steps) = (look.begin(), 0);
        let seen = loop {
            steps += 1;
            directory.calm = steps > 50;
            match look.answer(directory.call(&mut random, &call)) {
                Step::Call(next) | Step::Wait(next) => call = next,
                Step::End(seen) => break seen.expect("nothing is damaged"),
            }
        };
        let number = seen.map_or(0, |record| record.number);
        assert!(number >= known && number <= last, "round {round}: {number}");
        // Names that were listed are there.
        assert!(
            known > 0 || number == last,
            "round {round}: {number} of {last}"
        );
    }
}
