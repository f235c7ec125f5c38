//! What servers may say, and what they must not.

use super::handshake::{self, Handshake};
use super::session::{Ask, Errno, Session, Step};
use super::{Broken, Export};
use crate::nbd::{self, answer, chunk, info, option};

const SIZE: u64 = 1 << 20;
const FLAGS: u16 = 1 | 1 << 2 | 1 << 6;

fn option_reply(option: u32, answer: u32, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    nbd::put_option_reply(&mut out, option, answer, &[body]);
    out
}

fn export_info(size: u64, flags: u16) -> Vec<u8> {
    let body = [
        &info::EXPORT.to_be_bytes()[..],
        &size.to_be_bytes(),
        &flags.to_be_bytes(),
    ];
    option_reply(option::GO, answer::INFO, &body.concat())
}

fn block_info(minimum: u32, maximum: u32) -> Vec<u8> {
    let body = [
        &info::BLOCK_SIZE.to_be_bytes()[..],
        &minimum.to_be_bytes(),
        &4096u32.to_be_bytes(),
        &maximum.to_be_bytes(),
    ];
    option_reply(option::GO, answer::INFO, &body.concat())
}

/// Negotiates over words that come in pieces of this size.
fn negotiate(words: &[Vec<u8>], piece: usize) -> Result<(Export, bool), Broken> {
    let words = words.concat();
    let mut handshake = Handshake::new("disk");
    let (mut input, mut arriving) = (Vec::new(), words.chunks(piece));
    loop {
        match handshake.step(&input)? {
            handshake::Step::More => match arriving.next() {
                Some(more) => input.extend_from_slice(more),
                None => return Err(Broken::new("not enough")),
            },
            handshake::Step::Say { used, .. } => drop(input.drain(..used)),
            handshake::Step::Done {
                export, structured, ..
            } => return Ok((export, structured)),
        }
    }
}

fn yes() -> Vec<u8> {
    option_reply(option::STRUCTURED_REPLY, answer::ACK, &[])
}

fn go() -> Vec<u8> {
    option_reply(option::GO, answer::ACK, &[])
}

#[test]
fn a_server_is_believed_after_a_whole_negotiation_in_pieces_of_any_size() {
    let greeting = nbd::GREETING.to_vec();
    let words = [
        greeting.clone(),
        yes(),
        block_info(512, 1 << 20),
        export_info(SIZE, FLAGS),
        go(),
    ];
    for piece in [1, 7, 4096] {
        let (export, structured) = negotiate(&words, piece).expect("it is well formed");
        assert!(structured && export.flush && export.write_zeroes && !export.read_only);
        assert_eq!((export.size_bytes, export.block_bytes), (SIZE, 512));
        assert_eq!(export.request_bytes_max, 1 << 20);
    }
    let no = option_reply(option::STRUCTURED_REPLY, answer::ERR_UNSUP, &[]);
    let plain = [greeting, no, export_info(SIZE, FLAGS), go()];
    assert!(!negotiate(&plain, 64).expect("well formed").1);
}

#[test]
fn what_a_server_must_not_say_ends_the_negotiation() {
    let start = [nbd::GREETING.to_vec(), yes()].concat();
    let with = |words: &[Vec<u8>]| {
        let all = [std::slice::from_ref(&start), words].concat();
        negotiate(&all, 4096).expect_err("refused").0
    };
    let long = [
        &0x0003_e889_0455_65a9u64.to_be_bytes()[..],
        &[0, 0, 0, 7, 0, 0, 0, 3],
    ]
    .concat();
    let long = [&long[..], &u32::MAX.to_be_bytes()].concat();
    assert!(with(&[long]).contains("too long"));
    assert!(with(&[go()]).contains("no size"));
    assert!(with(&[export_info(1000, FLAGS), go()]).contains("whole sectors"));
    assert!(with(&[block_info(8192, 1 << 20), export_info(SIZE, FLAGS), go()]).contains("8192"));
    assert!(with(&[block_info(3, 1), export_info(SIZE, FLAGS), go()]).contains("no sense"));
    assert!(with(&[yes()]).contains("nothing that was asked"));
    let unknown = option_reply(option::GO, answer::ERR_UNKNOWN, b"go away\n");
    assert!(with(&[unknown]).contains("no such export (go away)"));
    assert!(with(&[option_reply(option::GO, answer::INFO, &[0])]).contains("cut short"));
    let infos = vec![block_info(1, 512); 100].concat();
    assert!(with(&[infos]).contains("does not end"));
    assert!(negotiate(&[b"SSH-2.0-OpenSSH\r\n".to_vec()], 4).is_err());
    assert!(negotiate(&[b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53".to_vec()], 4).is_err());
}

fn chunk(flags: u16, kind: u16, cookie: u64, body: &[u8]) -> Vec<u8> {
    let mut out = nbd::chunk_head(flags, kind, cookie, body.len() as u32).to_vec();
    out.extend_from_slice(body);
    out
}

fn data(flags: u16, cookie: u64, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let body = [&offset.to_be_bytes()[..], bytes].concat();
    chunk(flags, chunk::OFFSET_DATA, cookie, &body)
}

fn hole(flags: u16, cookie: u64, offset: u64, bytes: u32) -> Vec<u8> {
    let body = [&offset.to_be_bytes()[..], &bytes.to_be_bytes()].concat();
    chunk(flags, chunk::OFFSET_HOLE, cookie, &body)
}

const READ: Ask = Ask::Read {
    offset: 4096,
    bytes: 16,
};

/// What a read of 16 bytes came to, and its bytes, when the server's words come in pieces.
fn read(
    structured: bool,
    words: &[Vec<u8>],
    piece: usize,
) -> Result<(Result<(), Errno>, [u8; 16]), Broken> {
    let mut session = Session::new(structured);
    let (asked, _) = session.ask(READ);
    let words = words.concat();
    let (mut input, mut arriving) = (Vec::new(), words.chunks(piece));
    let mut into = [0xee; 16];
    loop {
        match session.step(&input)? {
            Step::More => match arriving.next() {
                Some(more) => input.extend_from_slice(more),
                None => return Err(Broken::new("not enough")),
            },
            Step::Used(used) => drop(input.drain(..used)),
            Step::Data { at, bytes, .. } => {
                into[at as usize..at as usize + bytes].copy_from_slice(&input[..bytes]);
                input.drain(..bytes);
            }
            Step::Hole {
                used, at, bytes, ..
            } => {
                into[at as usize..(at + bytes) as usize].fill(0);
                input.drain(..used);
            }
            Step::Done { cookie, result, .. } => {
                assert_eq!((cookie, session.unanswered()), (asked, 0));
                return Ok((result, into));
            }
        }
    }
}

#[test]
fn a_read_is_answered_simply_or_in_chunks_of_any_order() {
    let simple = [nbd::simple_head(0, 1).to_vec(), vec![7; 16]];
    let chunks = [
        data(0, 1, 4104, &[7; 4]),
        data(0, 1, 4096, &[7; 8]),
        hole(0, 1, 4108, 4),
        chunk(chunk::DONE, chunk::NONE, 1, &[]),
    ];
    let last = [data(0, 1, 4096, &[7; 12]), hole(chunk::DONE, 1, 4108, 4)];
    let mut expected = [7; 16];
    for piece in [1, 3, 100] {
        assert_eq!(read(false, &simple, piece), Ok((Ok(()), expected)));
    }
    expected[12..].fill(0);
    for piece in [1, 3, 100] {
        assert_eq!(read(true, &chunks, piece), Ok((Ok(()), expected)));
        assert_eq!(read(true, &last, piece), Ok((Ok(()), expected)));
    }
}

#[test]
fn a_read_that_is_not_given_whole_is_an_error_and_not_data() {
    let short = [data(chunk::DONE, 1, 4096, &[7; 15])];
    assert_eq!(read(true, &short, 9).expect("goes on").0, Err(Errno(5)));
    let none = [chunk(chunk::DONE, chunk::NONE, 1, &[])];
    assert_eq!(read(true, &none, 9).expect("goes on").0, Err(Errno(5)));
    let error = [&28u32.to_be_bytes()[..], &[0, 0]].concat();
    let error = [
        data(0, 1, 4096, &[7; 16]),
        chunk(chunk::DONE, chunk::ERROR, 1, &error),
    ];
    assert_eq!(
        read(true, &error, 9).expect("goes on").0,
        Err(Errno::NO_SPACE)
    );
    let simple = [nbd::simple_head(5, 1).to_vec()];
    assert_eq!(read(false, &simple, 9).expect("goes on").0, Err(Errno(5)));
}

#[test]
fn what_a_server_must_not_answer_ends_the_connection() {
    let wrong: [(bool, Vec<u8>); 12] = [
        (true, b"what is this, a server?".to_vec()),
        (false, data(0, 1, 4096, &[7; 16])),
        (true, nbd::simple_head(0, 2).to_vec()),
        (true, nbd::simple_head(0, 1).to_vec()),
        (true, data(0, 9, 4096, &[7; 16])),
        (true, data(0, 1, 4095, &[7; 16])),
        (true, data(0, 1, 4096, &[7; 17])),
        (true, hole(0, 1, u64::MAX, 2)),
        (true, hole(0, 1, 4096, u32::MAX)),
        (
            true,
            nbd::chunk_head(0, chunk::OFFSET_DATA, 1, u32::MAX).to_vec(),
        ),
        (true, nbd::chunk_head(0, chunk::ERROR, 1, u32::MAX).to_vec()),
        (true, chunk(0, 77, 1, &[])),
    ];
    for (structured, mut words) in wrong {
        words.extend_from_slice(&[0xff; 16]);
        let broken = read(structured, &[words], 5).expect_err("broken");
        assert_ne!(broken.0, "not enough");
    }
    let twice = [data(0, 1, 4096, &[7; 8]), data(0, 1, 4103, &[7; 8])];
    assert!(read(true, &twice, 5).is_err());
}

#[test]
fn an_export_that_can_do_less_does_not_stand_in() {
    let old = Export::new(SIZE, FLAGS, None).expect("fine");
    assert_eq!(old.stands_in_for(&old), Ok(()));
    for (size, flags, blocks) in [
        (SIZE * 2, FLAGS, None),
        (SIZE, FLAGS | 2, None),
        (SIZE, 1, None),
        (SIZE, FLAGS, Some((4096, 1 << 25))),
        (SIZE, FLAGS, Some((1, 65536))),
    ] {
        let new = Export::new(size, flags, blocks).expect("fine by itself");
        assert!(new.stands_in_for(&old).is_err());
    }
}
