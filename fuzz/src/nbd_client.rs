//! The target for the NBD client: a server that says anything, in pieces of any size.
//!
//! Invariants: no panic; no more input is used than there was; data lies inside the read it is
//! for; each request ends at most once; the session never ends a read well of which a byte is
//! missing; and the pieces in which the words came make no difference.

use crate::source::Source;
use host::nbd;
use host::origin::nbd::handshake::{self, Handshake};
use host::origin::nbd::session::{Ask, Session, Step};
use std::collections::BTreeMap;

const READ_BYTES: u32 = 64;

/// What a conversation came to: each request's end, and the bytes of each read.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    negotiated: bool,
    broken: bool,
    ends: BTreeMap<u64, bool>,
    bytes: BTreeMap<u64, Vec<Option<u8>>>,
}

pub fn session(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let sizes: Vec<usize> = source
        .take(4)
        .iter()
        .map(|&size| 1 + usize::from(size))
        .collect();
    let negotiates = source.byte().is_multiple_of(4);
    let structured = source.flag();
    let requests = u64::from(source.byte() % 4) + 1;
    let mut words = Vec::new();
    while !source.is_empty() {
        match negotiates {
            true => words.extend(option_words(source)),
            false => words.extend(reply_words(source, requests)),
        }
    }
    let speak = |sizes: &[usize]| match negotiates {
        true => negotiate(&words, sizes),
        false => converse(&words, sizes, structured, requests),
    };
    let whole = speak(&[usize::MAX]);
    assert_eq!(whole, speak(&[1]));
    if !sizes.is_empty() {
        assert_eq!(whole, speak(&sizes));
    }
    whole.negotiated || whole.ends.values().any(|good| *good)
}

/// Feeds words in pieces; `step` uses some of what is there, or says that it needs more.
fn feed(words: &[u8], sizes: &[usize], mut step: impl FnMut(&[u8]) -> Option<usize>) {
    let (mut at, mut there, mut piece) = (0, 0, 0);
    loop {
        match step(&words[at..there]) {
            Some(used) => {
                assert!(used <= there - at, "no more is used than there was");
                at += used;
            }
            None if there == words.len() => return,
            None => {
                there = there
                    .saturating_add(sizes[piece % sizes.len()])
                    .min(words.len());
                piece += 1;
            }
        }
    }
}

fn negotiate(words: &[u8], sizes: &[usize]) -> Outcome {
    let mut handshake = Handshake::new("a");
    let mut outcome = Outcome::default();
    let mut over = false;
    feed(words, sizes, |input| {
        if over {
            return None;
        }
        match handshake.step(input) {
            Ok(handshake::Step::More) => None,
            Ok(handshake::Step::Say { used, .. }) => Some(used),
            Ok(handshake::Step::Done { export, .. }) => {
                assert!(export.size_bytes.is_multiple_of(512) && export.request_bytes_max >= 512);
                (over, outcome.negotiated) = (true, true);
                None
            }
            Err(_) => {
                (over, outcome.broken) = (true, true);
                None
            }
        }
    });
    outcome
}

fn converse(words: &[u8], sizes: &[usize], structured: bool, requests: u64) -> Outcome {
    let mut session = Session::new(structured);
    let mut outcome = Outcome::default();
    for number in 0..requests {
        let (offset, bytes) = (number * 4096, READ_BYTES);
        let (cookie, _) = match number {
            3 => session.ask(Ask::Flush),
            _ => session.ask(Ask::Read { offset, bytes }),
        };
        let bytes = if number == 3 { 0 } else { bytes as usize };
        outcome.bytes.insert(cookie, vec![None; bytes]);
    }
    feed(words, sizes, |input| {
        if outcome.broken {
            return None;
        }
        match session.step(input) {
            Ok(Step::More) => None,
            Ok(Step::Used(used)) => Some(used),
            Ok(Step::Data { cookie, at, bytes }) => {
                let into = outcome.bytes.get_mut(&cookie).expect("was asked for");
                for (n, byte) in input[..bytes].iter().enumerate() {
                    let before = into[at as usize + n].replace(*byte);
                    assert_eq!(before, None, "no byte comes twice");
                }
                Some(bytes)
            }
            Ok(Step::Hole {
                used,
                cookie,
                at,
                bytes,
            }) => {
                let into = outcome.bytes.get_mut(&cookie).expect("was asked for");
                into[at as usize..(at + bytes) as usize].fill(Some(0));
                Some(used)
            }
            Ok(Step::Done {
                used,
                cookie,
                result,
            }) => {
                let whole = outcome.bytes[&cookie].iter().all(Option::is_some);
                assert!(whole || result.is_err(), "a read ends well with all of it");
                let before = outcome.ends.insert(cookie, result.is_ok());
                assert_eq!(before, None, "a request ends once");
                Some(used)
            }
            Err(_) => {
                outcome.broken = true;
                None
            }
        }
    });
    outcome
}

/// Something a server may say while it negotiates: sense, or sense with a flaw.
fn option_words(source: &mut Source) -> Vec<u8> {
    let mut out = Vec::new();
    match source.byte() % 8 {
        0 | 1 => out.extend(nbd::GREETING),
        2 | 3 => nbd::put_option_reply(&mut out, 8, 1, &[]),
        4 => {
            let size = (u64::from(source.u16()) * 512).to_be_bytes();
            let flags = source.u16().to_be_bytes();
            nbd::put_option_reply(&mut out, 7, 3, &[&[0, 0], &size, &flags]);
        }
        5 => nbd::put_option_reply(&mut out, 7, 1, &[]),
        6 => {
            let kind = source.byte() % 4;
            nbd::put_option_reply(&mut out, 7, 3, &[&[0, kind], source.take(12)]);
        }
        _ => nbd::put_option_reply(&mut out, 7, source.u32(), &[source.take(20)]),
    }
    flaw(source, out)
}

/// Something a server may answer.
fn reply_words(source: &mut Source, requests: u64) -> Vec<u8> {
    let cookie = u64::from(source.byte()) % (requests + 1) + u64::from(!source.flag());
    let offset = (cookie.max(1) - 1) * 4096;
    let flags = u16::from(source.flag());
    let mut out = Vec::new();
    match source.byte() % 6 {
        0 => {
            out.extend(nbd::simple_head(0, cookie));
            out.extend([7; READ_BYTES as usize]);
        }
        1 => out.extend(nbd::simple_head(u32::from(source.byte()), cookie)),
        2 => {
            let half = u32::from(source.byte()) % READ_BYTES;
            for (flags, at, bytes) in [(0, 0, half), (flags, half, READ_BYTES - half)] {
                if bytes > 0 {
                    out.extend(nbd::chunk_head(flags, 1, cookie, 8 + bytes));
                    out.extend((offset + u64::from(at)).to_be_bytes());
                    out.extend(vec![9; bytes as usize]);
                }
            }
        }
        3 => {
            let at = offset + u64::from(source.byte() % 64);
            out.extend(nbd::chunk_head(flags, 2, cookie, 12));
            out.extend(at.to_be_bytes());
            out.extend(u32::from(source.byte()).to_be_bytes());
        }
        4 => out.extend(nbd::chunk_head(1, 0, cookie, 0)),
        _ => {
            let kind = source.u16();
            let body = source.take(16);
            out.extend(nbd::chunk_head(flags, kind, cookie, body.len() as u32));
            out.extend_from_slice(body);
        }
    }
    flaw(source, out)
}

fn flaw(source: &mut Source, mut out: Vec<u8>) -> Vec<u8> {
    if source.byte().is_multiple_of(16) {
        source.damage(&mut out);
    }
    out
}
