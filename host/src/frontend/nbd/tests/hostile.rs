//! Clients that stop, lie, or send noise; and the size of the pieces, which must not matter.

use super::*;
use proptest::prelude::*;
use proptest::sample::select;

/// A conversation with a bit of everything, valid from its first byte to its last.
fn conversation(structured: bool) -> Vec<u8> {
    let mut out = client_flags(3);
    out.extend(option(3, &[]));
    out.extend(option(99, b"unknown"));
    out.extend(option(6, &info_body("disk", &[0, 1, 2, 3])));
    out.extend(&attach("disk", structured)[4..]);
    out.extend(request(0, 1, 1, 4096, 700));
    out.extend([7; 700]);
    out.extend(request(0, 0, 2, 4000, 900));
    out.extend(request(1, 6, 3, 0, 4096));
    out.extend(request(0, 3, 4, 0, 0));
    out.extend(request(0, 7, 5, 0, 65536));
    out.extend(request(0, 1, 6, DISK_BYTES, 50));
    out.extend([9; 50]);
    out.extend(request(0, 4, 7, 0, 8192));
    out.extend(request(0, 2, 8, 0, 0));
    out
}

/// All that can be seen of a session from outside.
fn outcome(caller: &Caller) -> (&[u8], &[Command], &[u8], Option<Closing>) {
    (&caller.sent, &caller.requests, &caller.disk, caller.closed)
}

#[test]
fn a_valid_conversation_may_stop_at_any_byte() {
    for structured in [false, true] {
        let whole = conversation(structured);
        let mut reference = Caller::new();
        reference.feed(&whole);
        assert_eq!(reference.closed, Some(Closing::Disconnect));
        for end in 0..whole.len() {
            let mut caller = Caller::new();
            let left = caller.feed(&whole[..end]);
            assert!(left.is_empty());
            assert_eq!(caller.closed, None);
            assert!(reference.sent.starts_with(&caller.sent));
            // The rest continues where the pieces were cut.
            caller.feed(&whole[end..]);
            assert_eq!(outcome(&caller), outcome(&reference));
        }
    }
}

#[test]
fn an_option_that_is_read_past_ends_at_its_last_byte_however_it_arrives() {
    let mut bytes = client_flags(3);
    bytes.extend(option(3, &[b'x'; 9001]));
    bytes.extend(option(7, &info_body("disk", &[])));
    for size in [1, 2, 7, 8999, 9000] {
        let mut caller = Caller::new();
        feed_in_pieces(&mut caller, &bytes, &[size]);
        assert!(caller.attached.is_some(), "in pieces of {size}");
    }
}

#[test]
fn a_client_that_sends_a_header_and_stops_is_seen_to_owe_the_rest() {
    let mut caller = Caller::new();
    assert!(caller.session.mid_message(), "not even its flags have come");
    caller.feed(&client_flags(3));
    assert!(!caller.session.mid_message());
    let whole = option(7, &info_body("disk", &[]));
    caller.feed(&whole[..16]);
    assert!(caller.session.mid_message());
    caller.feed(&whole[16..]);
    assert!(!caller.session.mid_message());
    let write = request(0, 1, 1, 0, 512);
    caller.feed(&write[..27]);
    assert!(caller.session.mid_message());
    caller.feed(&write[27..]);
    assert!(caller.session.mid_message() && caller.session.payload_left() == 512);
    caller.feed(&[0; 512]);
    assert!(!caller.session.mid_message());
    assert_eq!(caller.session.in_flight(), 0);
}

#[test]
fn a_wrong_magic_number_between_requests_closes() {
    let mut caller = Caller::attached_to("disk", true);
    let mut bytes = request(0, 0, 1, 0, 512);
    bytes[0] ^= 1;
    caller.feed(&bytes);
    assert_eq!(
        (caller.closed, caller.sent.len()),
        (Some(Closing::Magic), 0)
    );
}

#[test]
fn an_announced_length_is_waited_for_and_not_answered() {
    for length in [8192u32, 1 << 20] {
        let mut head = option(7, &[]);
        head[12..].copy_from_slice(&length.to_be_bytes());
        let mut caller = Caller::new();
        caller.feed(&client_flags(3));
        caller.feed(&head);
        assert!(caller.session.mid_message() && caller.sent.is_empty());
    }
}

#[test]
#[should_panic(expected = "a ticket is answered once")]
fn a_second_reply_to_one_request_is_a_bug_of_ours() {
    let mut caller = Caller::attached_to("disk", false);
    caller.answers_at_once = false;
    caller.feed(&request(0, 3, 1, 0, 0));
    let ticket = caller.kept[0].ticket;
    caller.session.reply(ticket, Ok(()));
    caller.session.reply(ticket, Ok(()));
}

fn any_name() -> impl Strategy<Value = String> {
    let names = ["disk", "gold", "bare", "slow", "nothing", ""];
    select(names.map(String::from).to_vec())
}

fn any_option() -> impl Strategy<Value = Vec<u8>> {
    let query = select(vec!["base:", "base:allocation", "base:x", "qemu:y", ""]);
    let queries = prop::collection::vec(query, 0..4);
    let info = (any_name(), prop::collection::vec(0u16..5, 0..5));
    prop_oneof![
        (
            prop_oneof![0u32..13, any::<u32>()],
            prop::collection::vec(any::<u8>(), 0..40)
        )
            .prop_map(|(number, body)| option(number, &body)),
        (select(vec![6u32, 7]), info)
            .prop_map(|(number, (name, wanted))| option(number, &info_body(&name, &wanted))),
        (select(vec![9u32, 10]), any_name(), queries)
            .prop_map(|(number, name, queries)| option(number, &queries_body(&name, &queries))),
        Just(option(8, &[])),
    ]
}

fn any_request() -> impl Strategy<Value = Vec<u8>> {
    let offset = prop_oneof![0..DISK_BYTES + 4096, any::<u64>()];
    let length = prop_oneof![0u32..3000, Just(1 << 20), any::<u32>()];
    let flags = prop_oneof![Just(0u16), 0u16..32, any::<u16>()];
    let command = prop_oneof![8 => 0u16..9, 1 => any::<u16>()];
    (flags, command, 0u64..12, offset, length).prop_map(
        |(flags, command, cookie, offset, length)| {
            let mut out = request(flags, command, cookie, offset, length);
            if command == 1 {
                out.extend(std::iter::repeat_n(0x5a, length.min(3000) as usize));
            }
            out
        },
    )
}

fn any_conversation() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![9 => 0u32..4, 1 => any::<u32>()];
    let options = prop::collection::vec(any_option(), 0..6);
    let go = prop::option::weighted(0.9, (any_name(), any::<bool>()));
    let requests = prop::collection::vec(any_request(), 0..12);
    let noise = prop::collection::vec(any::<u8>(), 0..60);
    (flags, options, go, requests, noise).prop_map(|(flags, options, go, requests, noise)| {
        let mut out = client_flags(flags);
        out.extend(options.concat());
        if let Some((name, structured)) = go {
            out.extend(&attach(&name, structured)[4..]);
        }
        out.extend(requests.concat());
        out.extend(noise);
        out
    })
}

/// Feeds pieces of the given sizes, over and over.
fn feed_in_pieces(caller: &mut Caller, mut input: &[u8], sizes: &[usize]) {
    for size in sizes.iter().cycle() {
        if input.is_empty() {
            return;
        }
        let (piece, rest) = input.split_at(input.len().min(*size));
        caller.feed(piece);
        input = rest;
    }
}

proptest! {
    #[test]
    fn pieces_of_any_size_say_the_same_as_the_whole(
        bytes in any_conversation(),
        sizes in prop::collection::vec(1usize..40, 1..8),
    ) {
        let mut whole = Caller::new();
        whole.feed(&bytes);
        let mut single = Caller::new();
        feed_in_pieces(&mut single, &bytes, &[1]);
        prop_assert_eq!(outcome(&single), outcome(&whole));
        let mut pieces = Caller::new();
        feed_in_pieces(&mut pieces, &bytes, &sizes);
        prop_assert_eq!(outcome(&pieces), outcome(&whole));
    }

    #[test]
    fn noise_never_panics_and_what_is_handed_on_is_in_order(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        attached in any::<bool>(),
    ) {
        let mut caller = match attached {
            true => Caller::attached_to("disk", true),
            false => Caller::new(),
        };
        caller.feed(&bytes);
        for request in &caller.requests {
            assert_in_order(request);
        }
    }

    #[test]
    fn every_request_handed_on_is_in_order_and_answered_once(bytes in any_conversation()) {
        let mut caller = Caller::new();
        caller.answers_at_once = false;
        let mut rest = caller.feed(&bytes);
        loop {
            caller.requests.iter().for_each(assert_in_order);
            let in_flight = caller.session.in_flight();
            prop_assert!(in_flight <= usize::from(REQUESTS_MAX));
            let Some(request) = caller.kept.pop() else { break };
            caller.answer(request);
            prop_assert_eq!(caller.session.in_flight(), in_flight - 1);
            rest = caller.feed(rest);
        }
    }
}

fn assert_in_order(command: &Command) {
    let (offset, length) = match *command {
        Command::Flush => return,
        Command::Read { offset, length } | Command::Write { offset, length, .. } => {
            assert!(length <= PAYLOAD_BYTES_MAX);
            (offset, length)
        }
        Command::Trim { offset, length, .. }
        | Command::WriteZeroes { offset, length, .. }
        | Command::BlockStatus { offset, length }
        | Command::Cache { offset, length } => (offset, length),
    };
    assert!(length > 0 && offset + u64::from(length) <= DISK_BYTES);
}
