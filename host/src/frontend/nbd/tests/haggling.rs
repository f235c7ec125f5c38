//! Each option, answered as the protocol wants it.

use super::*;
use crate::frontend::nbd::proto::{answer, option as opt};

/// A client past its flags, and what one option is answered.
fn haggle(options: &[(u32, Vec<u8>)]) -> (Caller, Vec<Answer>) {
    let mut caller = Caller::new();
    caller.feed(&client_flags(3));
    let mut last = Vec::new();
    for (number, body) in options {
        caller.sent.clear();
        caller.feed(&option(*number, body));
        last = answers(&caller.sent);
        assert!(last.iter().all(|reply| reply.option == *number));
    }
    (caller, last)
}

fn kinds(replies: &[Answer]) -> Vec<u32> {
    replies.iter().map(|reply| reply.answer).collect()
}

#[test]
fn the_greeting_offers_fixed_newstyle_and_no_zeroes() {
    assert_eq!(&GREETING[..16], b"NBDMAGICIHAVEOPT");
    assert_eq!(GREETING[16..], [0, 3]);
}

#[test]
fn the_old_way_to_attach_is_padded_unless_the_client_declines() {
    for (flags, length) in [(1, 134), (3, 10), (0, 134), (2, 10)] {
        let mut caller = Caller::new();
        caller.feed(&client_flags(flags));
        caller.feed(&option(opt::EXPORT_NAME, b"disk"));
        assert_eq!(caller.sent.len(), length);
        assert_eq!(caller.sent[..8], DISK_BYTES.to_be_bytes());
        assert_eq!(caller.attached.expect("attached").name, "disk");
        // Flags, flush, FUA, trim, zeroes, multi-conn, cache, fast zero; DF needs structure.
        assert_eq!(caller.sent[8..10], 0b1101_0110_1101u16.to_be_bytes());
    }
}

#[test]
fn an_unknown_export_ends_the_old_way_to_attach() {
    for name in [&b"nothing"[..], b"", b"\xff\xfe", &[b'x'; 5000]] {
        let (caller, replies) = haggle(&[(opt::EXPORT_NAME, name.to_vec())]);
        assert_eq!(caller.closed, Some(Closing::UnknownExport));
        assert_eq!(replies, []);
    }
}

#[test]
fn abort_is_acknowledged_and_ends_the_session_in_order() {
    for body in [vec![], b"whatever".to_vec(), vec![0; 100_000]] {
        let (caller, replies) = haggle(&[(opt::ABORT, body)]);
        assert_eq!(kinds(&replies), [answer::ACK]);
        assert_eq!(caller.closed, Some(Closing::Abort));
        assert!(Closing::Abort.is_orderly());
    }
}

#[test]
fn list_names_every_export_with_its_description() {
    let (_, replies) = haggle(&[(opt::LIST, vec![])]);
    let names = [answer::SERVER; 4]
        .into_iter()
        .chain([answer::ACK])
        .collect::<Vec<_>>();
    assert_eq!(kinds(&replies), names);
    assert_eq!(replies[0].data, b"\0\0\0\x04diska disk to write on");
    assert_eq!(replies[1].data, b"\0\0\0\x04gold");
    let (_, replies) = haggle(&[(opt::LIST, vec![1])]);
    assert_eq!(kinds(&replies), [answer::ERR_INVALID]);
}

#[test]
fn the_socket_of_one_volume_shows_only_it_and_takes_the_empty_name_for_it() {
    let config = Config {
        only: Some("gold".into()),
        requests_max: 1,
        tls: Tls::Absent,
    };
    let ask = |bytes: Vec<u8>| {
        let mut caller = Caller::with(config.clone());
        caller.feed(&client_flags(3));
        caller.feed(&bytes);
        caller
    };
    let listed = ask(option(opt::LIST, &[]));
    assert_eq!(kinds(&answers(&listed.sent)), [answer::SERVER, answer::ACK]);
    for name in ["", "gold"] {
        let caller = ask(option(opt::GO, &info_body(name, &[1])));
        assert_eq!(caller.attached.expect("attached").name, "gold");
        assert_eq!(answers(&caller.sent)[1].data, b"\0\x01gold");
    }
    let other = ask(option(opt::GO, &info_body("disk", &[])));
    assert_eq!(kinds(&answers(&other.sent)), [answer::ERR_UNKNOWN]);
    // A context selected under the empty name holds for the export it stands for.
    let mut bytes = option(opt::STRUCTURED_REPLY, &[]);
    bytes.extend(option(
        opt::SET_META_CONTEXT,
        &queries_body("", &["base:allocation"]),
    ));
    bytes.extend(option(opt::GO, &info_body("gold", &[])));
    let mut caller = ask(bytes);
    caller.sent.clear();
    assert_eq!(caller.ask(0, 7, 0, 512).error(), 0);
}

#[test]
fn tls_is_refused_by_policy_and_the_negotiation_goes_on() {
    let (_, replies) = haggle(&[(opt::STARTTLS, vec![])]);
    assert_eq!(kinds(&replies), [answer::ERR_POLICY]);
    let (_, replies) = haggle(&[(opt::STARTTLS, vec![0])]);
    assert_eq!(kinds(&replies), [answer::ERR_INVALID]);
    let (_, replies) = haggle(&[(opt::STARTTLS, vec![]), (opt::LIST, vec![])]);
    assert_eq!(replies.len(), 5);
}

#[test]
fn info_tells_what_was_asked_for_and_leaves_the_client_free() {
    let all = info_body("disk", &[0, 1, 2, 3, 99, 3]);
    let (caller, replies) = haggle(&[(opt::INFO, all)]);
    let mut expected = vec![answer::INFO; 4];
    expected.push(answer::ACK);
    assert_eq!(kinds(&replies), expected);
    let mut size = vec![0, 0];
    size.extend(DISK_BYTES.to_be_bytes());
    size.extend(0b1101_0110_1101u16.to_be_bytes());
    assert_eq!(replies[0].data, size);
    assert_eq!(replies[1].data, b"\0\x01disk");
    assert_eq!(replies[2].data, b"\0\x02a disk to write on");
    let mut blocks = vec![0, 3];
    [1u32, 4096, 32 << 20]
        .iter()
        .for_each(|size| blocks.extend(size.to_be_bytes()));
    assert_eq!(replies[3].data, blocks);
    assert_eq!(caller.attached, None);
    let (_, replies) = haggle(&[(opt::INFO, info_body("disk", &[]))]);
    assert_eq!(kinds(&replies), [answer::INFO, answer::ACK]);
}

#[test]
fn go_attaches_and_the_flags_know_about_structured_replies() {
    let steps = [
        (opt::STRUCTURED_REPLY, vec![]),
        (opt::GO, info_body("gold", &[])),
    ];
    let (caller, replies) = haggle(&steps);
    assert_eq!(kinds(&replies), [answer::INFO, answer::ACK]);
    // Flags, read-only, flush, FUA, DF, multi-conn, cache.
    assert_eq!(replies[0].data[10..], 0b101_1000_1111u16.to_be_bytes());
    assert_eq!(caller.attached.expect("attached").name, "gold");
}

#[test]
fn an_option_with_a_bad_name_or_bad_lengths_is_refused_and_another_may_follow() {
    let long = "x".repeat(4097);
    let mut cut = info_body("disk", &[3]);
    cut.pop();
    let mut surplus = info_body("disk", &[3]);
    surplus.push(0);
    let mut giant = info_body("disk", &[3]);
    giant[0] = 0xff;
    for number in [opt::INFO, opt::GO] {
        for (body, expected) in [
            (info_body("nothing", &[]), answer::ERR_UNKNOWN),
            (info_body("", &[]), answer::ERR_UNKNOWN),
            (info_body(&long, &[]), answer::ERR_TOO_BIG),
            (cut.clone(), answer::ERR_INVALID),
            (surplus.clone(), answer::ERR_INVALID),
            (giant.clone(), answer::ERR_INVALID),
            (b"\0\0\0\x02\xff\xfe\0\0".to_vec(), answer::ERR_INVALID),
            (vec![], answer::ERR_INVALID),
        ] {
            let (mut caller, replies) = haggle(&[(number, body)]);
            assert_eq!(kinds(&replies), [expected]);
            caller.feed(&option(opt::GO, &info_body("disk", &[])));
            assert!(caller.attached.is_some());
        }
    }
}

#[test]
fn structured_replies_take_no_data_and_may_be_asked_for_twice() {
    let (_, replies) = haggle(&[(opt::STRUCTURED_REPLY, vec![7])]);
    assert_eq!(kinds(&replies), [answer::ERR_INVALID]);
    let twice = [
        (opt::STRUCTURED_REPLY, vec![]),
        (opt::STRUCTURED_REPLY, vec![]),
    ];
    assert_eq!(kinds(&haggle(&twice).1), [answer::ACK]);
}

#[test]
fn metadata_contexts_need_structured_replies_first() {
    for number in [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
        let (_, replies) = haggle(&[(number, queries_body("disk", &["base:allocation"]))]);
        assert_eq!(kinds(&replies), [answer::ERR_INVALID]);
    }
}

#[test]
fn contexts_are_found_by_the_rules_of_the_base_namespace() {
    let cases: [(&[&str], bool, bool); 8] = [
        (&[], true, false),
        (&["base:"], true, false),
        (&["base:allocation"], true, true),
        (&["base:nothing"], false, false),
        (&["qemu:dirty-bitmap:x", "base:allocation"], true, true),
        (&["base:allocation", "base:allocation"], true, true),
        (&["allocation", "", "base"], false, false),
        (&["BASE:allocation", "x-y:"], false, false),
    ];
    for (queries, listed, selected) in cases {
        for (number, found, id) in [
            (opt::LIST_META_CONTEXT, listed, 0u32),
            (opt::SET_META_CONTEXT, selected, 1),
        ] {
            let steps = [
                (opt::STRUCTURED_REPLY, vec![]),
                (number, queries_body("disk", queries)),
            ];
            let (_, replies) = haggle(&steps);
            if found {
                assert_eq!(
                    kinds(&replies),
                    [answer::META_CONTEXT, answer::ACK],
                    "{queries:?}"
                );
                let mut data = id.to_be_bytes().to_vec();
                data.extend(b"base:allocation");
                assert_eq!(replies[0].data, data);
            } else {
                assert_eq!(kinds(&replies), [answer::ACK], "{queries:?}");
            }
        }
    }
}

#[test]
fn malformed_queries_are_refused_without_believing_their_count() {
    let good = queries_body("disk", &["base:allocation"]);
    let mut many = good.clone();
    many[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
    let mut long = good.clone();
    long[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    let mut surplus = good.clone();
    surplus.push(0);
    for number in [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
        for body in [&many, &long, &surplus, &good[..10].to_vec(), &vec![]] {
            let steps = [(opt::STRUCTURED_REPLY, vec![]), (number, body.clone())];
            assert_eq!(kinds(&haggle(&steps).1), [answer::ERR_INVALID]);
        }
        let unknown = queries_body("nothing", &["base:allocation"]);
        let steps = [(opt::STRUCTURED_REPLY, vec![]), (number, unknown)];
        assert_eq!(kinds(&haggle(&steps).1), [answer::ERR_UNKNOWN]);
    }
}

#[test]
fn a_selection_holds_for_its_export_only_and_is_void_after_a_failed_one() {
    let go = |name: &str| (opt::GO, info_body(name, &[]));
    let set = |name: &str, query: &str| (opt::SET_META_CONTEXT, queries_body(name, &[query]));
    let structured = (opt::STRUCTURED_REPLY, vec![]);
    let good = "base:allocation";
    let cases = [
        (vec![set("disk", good), go("disk")], 0),
        (vec![set("gold", good), go("disk")], 22),
        (
            vec![set("disk", good), set("disk", "base:"), go("disk")],
            22,
        ),
        (
            vec![set("disk", good), set("nothing", good), go("disk")],
            22,
        ),
        (
            vec![
                set("disk", good),
                (opt::SET_META_CONTEXT, vec![]),
                go("disk"),
            ],
            22,
        ),
        (vec![go("disk")], 22),
    ];
    for (steps, error) in cases {
        let steps: Vec<_> = [structured.clone()].into_iter().chain(steps).collect();
        let (mut caller, _) = haggle(&steps);
        caller.sent.clear();
        assert_eq!(caller.ask(0, 7, 0, 4096).error(), error);
    }
}

#[test]
fn unknown_options_are_answered_and_the_negotiation_goes_on() {
    for number in [0, 4, 11, 12, 500, u32::MAX] {
        let (_, replies) = haggle(&[(number, b"some data".to_vec())]);
        assert_eq!(kinds(&replies), [answer::ERR_UNSUP]);
        let (caller, _) = haggle(&[(number, vec![]), (opt::GO, info_body("disk", &[]))]);
        assert!(caller.attached.is_some());
    }
}

#[test]
fn an_option_that_is_too_long_is_read_past_and_one_without_end_closes() {
    for (number, expected) in [
        (opt::LIST, answer::ERR_TOO_BIG),
        (opt::GO, answer::ERR_TOO_BIG),
        (opt::SET_META_CONTEXT, answer::ERR_TOO_BIG),
        (77, answer::ERR_UNSUP),
    ] {
        for length in [proto::OPTION_BYTES_MAX + 1, proto::OPTION_SKIP_BYTES_MAX] {
            let steps = [(number, vec![b'I'; length as usize])];
            let (mut caller, replies) = haggle(&steps);
            assert_eq!(kinds(&replies), [expected]);
            caller.feed(&option(opt::GO, &info_body("disk", &[])));
            assert!(caller.attached.is_some());
        }
        for length in [proto::OPTION_SKIP_BYTES_MAX + 1, u32::MAX] {
            let mut head = option(number, &[]);
            head[12..].copy_from_slice(&length.to_be_bytes());
            let mut caller = Caller::new();
            caller.feed(&client_flags(3));
            caller.feed(&head);
            assert_eq!(caller.closed, Some(Closing::TooBig));
            assert_eq!(kinds(&answers(&caller.sent)), [answer::ERR_TOO_BIG]);
        }
    }
    let mut head = option(opt::EXPORT_NAME, &[]);
    head[12..].copy_from_slice(&9000u32.to_be_bytes());
    let mut caller = Caller::new();
    caller.feed(&client_flags(3));
    caller.feed(&head);
    assert_eq!(
        (caller.closed, caller.sent.len()),
        (Some(Closing::TooBig), 0)
    );
}

#[test]
fn a_name_of_full_length_fits_with_everything_that_goes_with_it() {
    let name = "n".repeat(proto::STRING_BYTES_MAX);
    let mut caller = Caller::new();
    caller.exports[0].name = name.clone();
    caller.feed(&client_flags(3));
    caller.feed(&option(opt::STRUCTURED_REPLY, &[]));
    let body = queries_body(&name, &[&"q".repeat(4000), "base:allocation"]);
    caller.feed(&option(opt::SET_META_CONTEXT, &body));
    caller.feed(&option(opt::GO, &info_body(&name, &[0, 1, 2, 3])));
    assert_eq!(caller.attached.as_ref().expect("attached").name, name);
    caller.sent.clear();
    assert_eq!(caller.ask(0, 7, 0, 4096).error(), 0);
}

#[test]
fn a_description_is_clipped_at_a_character() {
    assert_eq!(proto::clipped("short"), "short");
    let long = format!("x{}", "ä".repeat(3000));
    assert_eq!(proto::clipped(&long).len(), 4095);
}

#[test]
fn wrong_magic_unknown_client_flags_and_endless_haggling_close() {
    let mut caller = Caller::new();
    caller.feed(&client_flags(4));
    assert_eq!(caller.closed, Some(Closing::ClientFlags));
    let mut caller = Caller::new();
    caller.feed(&client_flags(3));
    caller.feed(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(caller.closed, Some(Closing::Magic));
    let mut caller = Caller::new();
    caller.feed(&client_flags(3));
    for _ in 0..proto::OPTIONS_MAX {
        caller.feed(&option(77, &[]));
    }
    assert_eq!(caller.closed, None);
    caller.feed(&option(77, &[]));
    assert_eq!(caller.closed, Some(Closing::OptionCount));
}
