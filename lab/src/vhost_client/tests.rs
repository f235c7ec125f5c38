//! A back end that offers what a test says, on a thread of its own.
//!
//! Always true: it answers each message that wants an answer, or closes the connection at the
//! message that the test names.

use super::{Client, ClientError, Options};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use vring::config::VERSION_1;

const GET_FEATURES: u32 = 1;
const SET_OWNER: u32 = 3;
const SET_MEM_TABLE: u32 = 5;
const GET_PROTOCOL_FEATURES: u32 = 15;
const GET_QUEUE_NUM: u32 = 17;
const PROTOCOL_FEATURES: u64 = 1 << 30;
const MQ: u64 = 1 << 0;
const REPLY_ACK: u64 = 1 << 3;
const CONFIG: u64 = 1 << 9;

#[derive(Clone, Copy)]
struct BackEnd {
    features: u64,
    protocol: u64,
    queues: u64,
    closes_at: Option<u32>,
    refuses: Option<u32>,
}

const GOOD: BackEnd = BackEnd {
    features: VERSION_1 | PROTOCOL_FEATURES,
    protocol: MQ | REPLY_ACK | CONFIG,
    queues: 2,
    closes_at: None,
    refuses: None,
};

impl BackEnd {
    fn serve(self, mut stream: UnixStream) -> std::io::Result<()> {
        loop {
            let mut head = [0; 12];
            stream.read_exact(&mut head)?;
            let word = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().expect("four"));
            let (request, flags) = (word(0), word(4));
            stream.read_exact(&mut vec![0; word(8) as usize])?;
            if self.closes_at == Some(request) {
                return Ok(());
            }
            let value = match request {
                GET_FEATURES => self.features,
                GET_PROTOCOL_FEATURES => self.protocol,
                GET_QUEUE_NUM => self.queues,
                _ if flags & 8 == 0 => continue,
                _ => u64::from(self.refuses == Some(request)),
            };
            let words = [request, 1 | 4, 8];
            let mut answer: Vec<u8> = words.iter().flat_map(|it| it.to_ne_bytes()).collect();
            answer.extend_from_slice(&value.to_ne_bytes());
            stream.write_all(&answer)?;
        }
    }

    fn refuses(self, queues: u16) -> ClientError {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let server = std::thread::spawn(move || self.serve(theirs));
        let options = Options {
            queues,
            ..Options::default()
        };
        let refused = Client::over(ours, options).err();
        // The end of the client is its end.
        let _ = server.join().expect("no panic");
        refused.expect("it is refused")
    }
}

#[test]
fn a_back_end_that_cannot_serve_us_is_an_error_that_says_why() {
    let told = |back_end: BackEnd, queues| back_end.refuses(queues).to_string();
    let old = BackEnd {
        features: PROTOCOL_FEATURES,
        ..GOOD
    };
    assert_eq!(told(old, 1), "the back end does not offer virtio 1.0");
    let bare = BackEnd {
        features: VERSION_1,
        ..GOOD
    };
    let lacks = "the back end does not offer protocol features";
    assert_eq!(told(bare, 1), lacks);
    let mute = BackEnd {
        protocol: MQ | REPLY_ACK,
        ..GOOD
    };
    let lacks = "the back end does not offer its configuration";
    assert_eq!(told(mute, 1), lacks);
    let few = "the back end has 2 queues, and 3 were asked for";
    assert_eq!(told(GOOD, 3), few);
    let single = BackEnd {
        protocol: REPLY_ACK | CONFIG,
        ..GOOD
    };
    let few = "the back end has 1 queues, and 2 were asked for";
    assert_eq!(told(single, 2), few);
}

#[test]
fn a_message_that_is_refused_or_ends_the_connection_is_named() {
    let refuses = BackEnd {
        refuses: Some(SET_MEM_TABLE),
        ..GOOD
    };
    let told = refuses.refuses(1).to_string();
    assert_eq!(told, "the back end refuses SET_MEM_TABLE");
    for (at, name) in [
        (GET_FEATURES, "GET_FEATURES"),
        (SET_MEM_TABLE, "SET_MEM_TABLE"),
    ] {
        let closes = BackEnd {
            closes_at: Some(at),
            ..GOOD
        };
        let told = closes.refuses(1).to_string();
        let ends = format!("the back end ends the connection at {name}");
        assert_eq!(told, ends);
    }
    let gone = BackEnd {
        closes_at: Some(SET_OWNER),
        ..GOOD
    };
    assert!(matches!(gone.refuses(1), ClientError::Closed(_)));
}

#[test]
fn options_that_make_no_rings_are_refused_before_anything_is_sent() {
    let (ours, _theirs) = UnixStream::pair().expect("a pair");
    let options = Options {
        slots: 3,
        ..Options::default()
    };
    let refused = Client::over(ours, options).err().expect("it is refused");
    let right = "requests in flight 3; a power of two up to 256 is right";
    assert_eq!(refused.to_string(), right);
}
