//! STARTTLS: what is answered before it, and what is left of that behind it.

use super::*;
use crate::frontend::nbd::proto::{answer, option as opt};

fn caller(tls: Tls) -> Caller {
    Caller::with(Config {
        only: None,
        requests_max: REQUESTS_MAX,
        tls,
    })
}

/// A client of a server that needs TLS, past its flags.
fn before_tls(flags: u32) -> Caller {
    let mut caller = caller(Tls::Required);
    caller.feed(&client_flags(flags));
    caller
}

fn kinds(caller: &Caller) -> Vec<u32> {
    let replies = answers(&caller.sent);
    replies.iter().map(|reply| reply.answer).collect()
}

#[test]
fn before_tls_every_option_but_starttls_and_abort_is_refused() {
    let mut caller = before_tls(3);
    for number in [3, 6, 7, 8, 9, 10, 11, 99] {
        caller.sent.clear();
        for body in [vec![], info_body("disk", &[]), vec![0; 100_000]] {
            caller.feed(&option(number, &body));
        }
        assert_eq!(kinds(&caller), [answer::ERR_TLS_REQD; 3], "option {number}");
    }
    assert_eq!((caller.attached.clone(), caller.closed), (None, None));
    caller.sent.clear();
    caller.feed(&option(opt::STARTTLS, &[7]));
    assert_eq!(kinds(&caller), [answer::ERR_INVALID]);
    caller.sent.clear();
    caller.feed(&option(opt::ABORT, &[]));
    assert_eq!(kinds(&caller), [answer::ACK]);
    assert_eq!(caller.closed, Some(Closing::Abort));
}

#[test]
fn before_tls_the_old_way_to_attach_and_an_endless_option_end_the_session() {
    let mut caller = before_tls(3);
    caller.feed(&option(opt::EXPORT_NAME, b"disk"));
    assert_eq!(caller.closed, Some(Closing::TlsRequired));
    assert!(caller.sent.is_empty() && caller.attached.is_none());
    let mut caller = before_tls(3);
    caller.feed(b"IHAVEOPT\0\0\0\x07\xff\xff\xff\xff");
    assert_eq!(caller.closed, Some(Closing::TooBig));
    assert_eq!(kinds(&caller), [answer::ERR_TLS_REQD]);
    // Without the fixed newstyle there is no TLS, and nothing else here.
    let caller = before_tls(2);
    assert_eq!(caller.closed, Some(Closing::TlsRequired));
}

#[test]
fn starttls_ends_the_session_in_plain_text_and_keeps_the_flags() {
    for (flags, no_zeroes) in [(1, false), (3, true)] {
        let mut plain = before_tls(flags);
        plain.feed(&option(opt::STRUCTURED_REPLY, &[]));
        plain.sent.clear();
        plain.feed(&option(opt::STARTTLS, &[]));
        assert_eq!(kinds(&plain), [answer::ACK]);
        let then = plain.then.expect("TLS begins");
        assert_eq!(then, Tls::Done { no_zeroes });
        // Behind it options come at once, and nothing that was said before counts.
        let mut caller = caller(then);
        let body = queries_body("disk", &["base:allocation"]);
        caller.feed(&option(opt::SET_META_CONTEXT, &body));
        assert_eq!(kinds(&caller), [answer::ERR_INVALID]);
        caller.sent.clear();
        caller.feed(&option(opt::STARTTLS, &[]));
        assert_eq!(kinds(&caller), [answer::ERR_INVALID]);
        caller.sent.clear();
        caller.feed(&option(opt::EXPORT_NAME, b"disk"));
        assert_eq!(caller.sent.len(), if no_zeroes { 10 } else { 134 });
        assert_eq!(caller.attached.expect("attached").name, "disk");
    }
}

#[test]
fn bytes_in_plain_text_behind_starttls_end_the_session_however_they_come() {
    let behind = [
        option(opt::GO, &info_body("disk", &[])),
        b"\x16\x03\x01".to_vec(),
    ];
    for behind in behind {
        for together in [true, false] {
            let mut caller = before_tls(3);
            let mut input = option(opt::STARTTLS, &[]);
            if together {
                input.extend(&behind);
            }
            caller.feed(&input);
            if !together {
                caller.feed(&behind);
            }
            assert_eq!(caller.closed, Some(Closing::PlainBehindTls));
            assert_eq!(caller.attached, None);
        }
    }
}
