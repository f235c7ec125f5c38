//! Each command, its flags, its errors and its replies.

use super::*;
use crate::frontend::nbd::proto::{command as cmd, command_flag as flag};

const PERM: u32 = 1;
const INVALID: u32 = 22;
const NO_SPACE: u32 = 28;
const OVERFLOW: u32 = 75;
const NOT_SUPPORTED: u32 = 95;
const SHUTDOWN: u32 = 108;

fn write(caller: &mut Caller, flags: u16, offset: u64, data: &[u8]) -> Vec<Reply> {
    let mut bytes = request(flags, cmd::WRITE, 5, offset, data.len() as u32);
    bytes.extend(data);
    caller.feed(&bytes);
    replies(&caller.take_sent())
}

#[test]
fn a_read_is_answered_simply_or_by_a_chunk() {
    let mut caller = Caller::attached_to("disk", false);
    caller.feed(&request(0, cmd::READ, 9, 1024, 600));
    let sent = caller.take_sent();
    assert_eq!(
        replies(&sent[..16]),
        [Reply::Simple {
            error: 0,
            cookie: 9
        }]
    );
    assert_eq!(sent[16..], caller.disk[1024..1624]);

    let mut caller = Caller::attached_to("disk", true);
    for flags in [0, flag::DF, flag::FUA] {
        let reply = caller.ask(flags, cmd::READ, 1024, 600);
        let mut payload = 1024u64.to_be_bytes().to_vec();
        payload.extend(&caller.disk[1024..1624]);
        assert_eq!(
            reply,
            Reply::Chunk {
                flags: 1,
                kind: 1,
                cookie: 77,
                payload
            }
        );
    }
}

#[test]
fn a_read_in_parts_ends_with_the_part_that_completes_it() {
    let mut caller = Caller::attached_to("disk", true);
    caller.answers_at_once = false;
    caller.feed(&request(0, cmd::READ, 9, 4096, 12288));
    let ticket = caller.kept[0].ticket;
    let session = &mut caller.session;
    assert!(session.takes_chunks(ticket));
    let mut sent = Vec::new();
    sent.extend(
        session
            .read_chunk(
                ticket,
                Chunk::Data {
                    offset: 4096,
                    length: 4,
                },
            )
            .as_bytes(),
    );
    sent.extend(b"data");
    sent.extend(
        session
            .read_chunk(
                ticket,
                Chunk::Hole {
                    offset: 4100,
                    length: 8192,
                },
            )
            .as_bytes(),
    );
    assert_eq!(session.in_flight(), 1);
    let last = Chunk::Hole {
        offset: 12292,
        length: 4092,
    };
    sent.extend(session.read_chunk(ticket, last).as_bytes());
    assert_eq!(session.in_flight(), 0);
    let mut kinds = Vec::new();
    for reply in replies(&sent) {
        let Reply::Chunk {
            flags,
            kind,
            cookie: 9,
            payload,
        } = reply
        else {
            panic!("{reply:?}")
        };
        kinds.push((flags, kind, payload.len()));
    }
    assert_eq!(kinds, [(0, 1, 12), (0, 2, 12), (1, 2, 12)]);
}

#[test]
fn a_read_that_fails_half_way_ends_with_an_error_chunk() {
    let mut caller = Caller::attached_to("disk", true);
    caller.answers_at_once = false;
    caller.feed(&request(0, cmd::READ, 9, 0, 8192));
    let ticket = caller.kept[0].ticket;
    caller.session.read_chunk(
        ticket,
        Chunk::Hole {
            offset: 0,
            length: 4096,
        },
    );
    let frame = caller.session.reply(ticket, Err(Error::Io));
    let reply = replies(frame.as_bytes()).remove(0);
    assert_eq!(reply.error(), 5);
    assert_eq!(caller.session.in_flight(), 0);
}

#[test]
fn only_a_structured_client_that_does_not_object_gets_parts() {
    for (structured, flags, takes) in [(true, 0, true), (true, flag::DF, false), (false, 0, false)]
    {
        let mut caller = Caller::attached_to("disk", structured);
        caller.answers_at_once = false;
        caller.feed(&request(flags, cmd::READ, 9, 0, 512));
        assert_eq!(caller.session.takes_chunks(caller.kept[0].ticket), takes);
    }
}

#[test]
fn a_write_goes_to_its_place_and_carries_its_durability() {
    for structured in [false, true] {
        let mut caller = Caller::attached_to("disk", structured);
        for flags in [0, flag::FUA] {
            let done = write(&mut caller, flags, 777, b"some bytes");
            assert_eq!(
                done,
                [Reply::Simple {
                    error: 0,
                    cookie: 5
                }]
            );
            assert_eq!(caller.disk[777..787], *b"some bytes");
        }
        let expected = [false, true].map(|fua| Command::Write {
            offset: 777,
            length: 10,
            fua,
        });
        assert_eq!(caller.requests, expected);
        let end = DISK_BYTES - 4;
        assert_eq!(write(&mut caller, 0, end, b"last")[0].error(), 0);
    }
}

#[test]
fn commands_without_payload_arrive_with_their_flags() {
    let mut caller = Caller::attached_to("disk", true);
    let zero = |fua, allocate, fast| Command::WriteZeroes {
        offset: 512,
        length: 4096,
        fua,
        allocate,
        fast,
    };
    let cases = [
        (cmd::FLUSH, 0, Command::Flush),
        (cmd::FLUSH, flag::FUA, Command::Flush),
        (
            cmd::TRIM,
            0,
            Command::Trim {
                offset: 512,
                length: 4096,
                fua: false,
            },
        ),
        (
            cmd::TRIM,
            flag::FUA,
            Command::Trim {
                offset: 512,
                length: 4096,
                fua: true,
            },
        ),
        (
            cmd::CACHE,
            0,
            Command::Cache {
                offset: 512,
                length: 4096,
            },
        ),
        (
            cmd::CACHE,
            flag::FUA,
            Command::Cache {
                offset: 512,
                length: 4096,
            },
        ),
        (cmd::WRITE_ZEROES, 0, zero(false, false, false)),
        (
            cmd::WRITE_ZEROES,
            flag::FUA | flag::NO_HOLE,
            zero(true, true, false),
        ),
        (cmd::WRITE_ZEROES, flag::FAST_ZERO, zero(false, false, true)),
    ];
    for (command, flags, expected) in cases {
        assert_eq!(caller.ask(flags, command, 512, 4096).error(), 0);
        assert_eq!(caller.requests.pop(), Some(expected));
    }
}

#[test]
fn effects_without_payload_may_be_larger_than_a_payload() {
    let mut caller = Caller::new();
    caller.exports[0].size_bytes = 1 << 40;
    caller.feed(&attach("disk", true));
    caller.sent.clear();
    for command in [cmd::TRIM, cmd::WRITE_ZEROES, cmd::CACHE, cmd::BLOCK_STATUS] {
        assert_eq!(caller.ask(0, command, 4096, u32::MAX).error(), 0);
    }
}

#[test]
fn block_status_joins_neighbours_and_keeps_to_the_request() {
    let status = |flags, offset, length| {
        let mut caller = Caller::attached_to("disk", true);
        let reply = caller.ask(flags, cmd::BLOCK_STATUS, offset, length);
        let Reply::Chunk {
            flags: 1,
            kind: 5,
            payload,
            ..
        } = reply
        else {
            panic!("{reply:?}")
        };
        let words = payload
            .chunks(4)
            .map(|word| u32::from_be_bytes(word.try_into().expect("4")));
        words.collect::<Vec<_>>()
    };
    let all = 1 << 20;
    assert_eq!(status(0, 0, all), [1, 8192, 0, 8192, 2, all - 16384, 3]);
    assert_eq!(status(0, 0, 9000), [1, 8192, 0, 808, 2]);
    assert_eq!(status(flag::REQ_ONE, 0, all), [1, 8192, 0]);
    assert_eq!(status(flag::REQ_ONE, 0, 100), [1, 100, 0]);
    assert_eq!(status(flag::REQ_ONE | flag::FUA, 4096, 100), [1, 100, 0]);
}

#[test]
fn a_block_status_reply_of_very_many_extents_is_cut() {
    let mut caller = Caller::new();
    caller.exports[0].size_bytes = 1 << 32;
    caller.answers_at_once = false;
    caller.feed(&attach("disk", true));
    caller.feed(&request(0, cmd::BLOCK_STATUS, 1, 0, u32::MAX));
    let states = [ExtentState::Data, ExtentState::Hole];
    let extents: Vec<_> = (0..100_000)
        .map(|at| Extent {
            length: 512,
            state: states[at % 2],
        })
        .collect();
    let reply = caller.session.status_reply(caller.kept[0].ticket, &extents);
    assert_eq!(reply.len(), 20 + 4 + 8 * proto::EXTENTS_MAX);
}

#[test]
fn every_command_behind_the_end_gets_the_error_named_for_it() {
    let cases = [
        (cmd::READ, INVALID),
        (cmd::TRIM, INVALID),
        (cmd::CACHE, INVALID),
        (cmd::BLOCK_STATUS, INVALID),
        (cmd::WRITE_ZEROES, NO_SPACE),
    ];
    for structured in [false, true] {
        let mut caller = Caller::attached_to("disk", structured);
        for (command, error) in cases {
            for (offset, length) in [
                (DISK_BYTES - 511, 512),
                (DISK_BYTES, 1),
                (u64::MAX, 1),
                (u64::MAX - 1, u32::MAX),
            ] {
                let expected = match (command, length) {
                    (cmd::READ, u32::MAX) if structured => OVERFLOW,
                    _ => error,
                };
                assert_eq!(caller.ask(0, command, offset, length).error(), expected);
            }
        }
        assert_eq!(
            write(&mut caller, 0, DISK_BYTES - 3, b"1234")[0].error(),
            NO_SPACE
        );
        assert_eq!(caller.ask(0, cmd::FLUSH, 0, 0).error(), 0, "still in step");
    }
}

#[test]
fn empty_ranges_are_invalid_and_flushes_ignore_theirs() {
    let mut caller = Caller::attached_to("disk", true);
    for command in [1, 0, 4, 5, 6, 7] {
        assert_eq!(caller.ask(0, command, 0, 0).error(), INVALID);
    }
    assert_eq!(caller.ask(0, cmd::FLUSH, 123, 456).error(), 0);
}

#[test]
fn a_read_larger_than_a_payload_is_refused_and_the_session_goes_on() {
    for (structured, error) in [(false, INVALID), (true, OVERFLOW)] {
        let mut caller = Caller::new();
        caller.exports[0].size_bytes = 1 << 40;
        caller.feed(&attach("disk", structured));
        caller.sent.clear();
        assert_eq!(
            caller.ask(0, cmd::READ, 0, PAYLOAD_BYTES_MAX + 1).error(),
            error
        );
        assert_eq!(caller.ask(0, cmd::FLUSH, 0, 0).error(), 0);
    }
}

#[test]
fn a_payload_larger_than_the_limit_is_answered_and_cut_off() {
    let mut caller = Caller::attached_to("disk", true);
    caller.feed(&request(0, cmd::WRITE, 3, 0, PAYLOAD_BYTES_MAX + 1));
    assert_eq!(replies(&caller.sent)[0].error(), INVALID);
    assert_eq!(caller.closed, Some(Closing::TooBig));
    assert!(!Closing::TooBig.is_orderly());
}

#[test]
fn a_read_only_export_refuses_writes_of_every_kind() {
    let mut caller = Caller::attached_to("gold", true);
    assert_eq!(write(&mut caller, 0, 0, b"no")[0].error(), PERM);
    for command in [cmd::TRIM, cmd::WRITE_ZEROES] {
        assert_eq!(caller.ask(0, command, 0, 512).error(), PERM);
        assert_eq!(caller.ask(flag::FUA, command, u64::MAX, 512).error(), PERM);
    }
    assert_eq!(caller.ask(0, cmd::FLUSH, 0, 0).error(), 0);
    assert_eq!(caller.ask(0, cmd::READ, READ_ONLY_BYTES - 1, 1).error(), 0);
    assert_eq!(
        caller.ask(0, cmd::READ, READ_ONLY_BYTES, 1).error(),
        INVALID
    );
}

#[test]
fn what_an_export_does_not_offer_is_invalid() {
    let mut caller = Caller::attached_to("bare", true);
    assert_eq!(caller.ask(0, cmd::TRIM, 0, 512).error(), INVALID);
    assert_eq!(caller.ask(0, cmd::WRITE_ZEROES, 0, 512).error(), INVALID);
    assert_eq!(
        caller
            .ask(flag::FAST_ZERO, cmd::WRITE_ZEROES, 0, 512)
            .error(),
        INVALID
    );
}

#[test]
fn zeroing_that_must_be_fast_is_refused_where_it_is_not() {
    let mut caller = Caller::attached_to("slow", false);
    assert_eq!(
        caller
            .ask(flag::FAST_ZERO, cmd::WRITE_ZEROES, 0, 512)
            .error(),
        NOT_SUPPORTED
    );
    assert_eq!(caller.ask(0, cmd::WRITE_ZEROES, 0, 512).error(), 0);
    assert_eq!(caller.requests.len(), 1);
}

#[test]
fn unknown_commands_and_misplaced_flags_are_invalid_and_leave_the_stream_in_step() {
    let known = [
        (cmd::READ, flag::FUA | flag::DF),
        (cmd::FLUSH, flag::FUA),
        (cmd::TRIM, flag::FUA),
        (cmd::CACHE, flag::FUA),
        (
            cmd::WRITE_ZEROES,
            flag::FUA | flag::NO_HOLE | flag::FAST_ZERO,
        ),
        (cmd::BLOCK_STATUS, flag::FUA | flag::REQ_ONE),
    ];
    let mut caller = Caller::attached_to("disk", true);
    for bit in (0..16).map(|bit| 1u16 << bit) {
        for (command, allowed) in known {
            let expected = if allowed & bit == 0 { INVALID } else { 0 };
            assert_eq!(caller.ask(bit, command, 0, 512).error(), expected);
        }
        let expected = if bit == flag::FUA { 0 } else { INVALID };
        let done = write(&mut caller, bit, 0, &request(0, cmd::FLUSH, 1, 0, 0));
        assert_eq!(done.len(), 1, "a payload that looks like a request is none");
        assert_eq!(done[0].error(), expected);
    }
    for command in [8, 9, 100, u16::MAX] {
        assert_eq!(caller.ask(0, command, 0, 4096).error(), INVALID);
    }
    assert_eq!(caller.ask(0, cmd::FLUSH, 0, 0).error(), 0);
    let mut caller = Caller::attached_to("disk", false);
    assert_eq!(caller.ask(flag::DF, cmd::READ, 0, 512).error(), INVALID);
    assert_eq!(caller.ask(0, cmd::BLOCK_STATUS, 0, 512).error(), INVALID);
}

#[test]
fn errors_are_simple_for_simple_clients_and_say_why_to_structured_ones() {
    let mut caller = Caller::attached_to("disk", false);
    let simple = caller.ask(0, cmd::READ, u64::MAX, 1);
    assert_eq!(
        simple,
        Reply::Simple {
            error: INVALID,
            cookie: 77
        }
    );
    let mut caller = Caller::attached_to("disk", true);
    let Reply::Chunk { payload, .. } = caller.ask(0, cmd::READ, u64::MAX, 1) else {
        panic!("structured");
    };
    assert_eq!(&payload[6..], b"the range ends beyond the export");
}

#[test]
fn a_cookie_in_use_is_refused_until_its_request_is_answered() {
    let mut caller = Caller::attached_to("disk", false);
    caller.answers_at_once = false;
    caller.feed(&request(0, cmd::READ, 4, 0, 512));
    assert_eq!(caller.session.in_flight(), 1);
    caller.feed(&request(0, cmd::FLUSH, 4, 0, 0));
    assert_eq!(
        replies(&caller.take_sent()),
        [Reply::Simple {
            error: INVALID,
            cookie: 4
        }]
    );
    let mut again = request(0, cmd::WRITE, 4, 0, 3);
    again.extend(b"abc");
    caller.feed(&again);
    assert_eq!(
        replies(&caller.take_sent()),
        [Reply::Simple {
            error: INVALID,
            cookie: 4
        }]
    );
    caller.feed(&request(0, cmd::FLUSH, 6, 0, 0));
    assert_eq!(caller.session.in_flight(), 2);
    let first = caller.kept.remove(0);
    caller.answer(first);
    caller.feed(&request(0, cmd::READ, 4, 0, 512));
    assert_eq!(caller.session.in_flight(), 2);
}

#[test]
fn requests_may_overlap_and_are_answered_in_any_order() {
    let mut caller = Caller::attached_to("disk", true);
    caller.answers_at_once = false;
    for cookie in 0..4 {
        let mut bytes = request(0, cmd::WRITE, cookie, 100 * cookie, 300);
        bytes.extend([cookie as u8; 300]);
        caller.feed(&bytes);
        caller.feed(&request(0, cmd::READ, 10 + cookie, 50, 400));
    }
    assert_eq!(caller.session.in_flight(), 8);
    while let Some(request) = caller.kept.pop() {
        caller.answer(request);
    }
    let cookies: Vec<_> = replies(&caller.sent)
        .iter()
        .map(|reply| match reply {
            Reply::Simple { cookie, error: 0 }
            | Reply::Chunk {
                cookie, flags: 1, ..
            } => *cookie,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(cookies, [13, 3, 12, 2, 11, 1, 10, 0]);
    assert_eq!(caller.session.in_flight(), 0);
}

#[test]
fn a_full_session_takes_nothing_until_a_reply_makes_room() {
    let mut caller = Caller::attached_to("disk", false);
    caller.answers_at_once = false;
    let mut bytes = Vec::new();
    for cookie in 0..u64::from(REQUESTS_MAX) + 2 {
        bytes.extend(request(0, cmd::FLUSH, cookie, 0, 0));
    }
    let mut rest = caller.feed(&bytes);
    assert_eq!(rest.len(), 2 * 28);
    assert_eq!(caller.session.in_flight(), usize::from(REQUESTS_MAX));
    assert!(!caller.session.mid_message());
    for left in [28, 0] {
        let first = caller.kept.remove(0);
        caller.answer(first);
        rest = caller.feed(rest);
        assert_eq!(rest.len(), left);
    }
    assert_eq!(caller.requests.len(), usize::from(REQUESTS_MAX) + 2);
    let tickets = caller.kept.iter().map(|request| request.ticket.0);
    assert!(tickets.max() < Some(REQUESTS_MAX), "tickets are used again");
}

#[test]
fn a_removed_export_answers_that_it_is_shut_down() {
    for structured in [false, true] {
        let mut caller = Caller::attached_to("disk", structured);
        caller.answers_at_once = false;
        caller.feed(&request(0, cmd::READ, 1, 0, 512));
        caller.session.revoke();
        for command in [0, 3, 4, 5, 6, 7] {
            assert_eq!(caller.ask(0, command, 0, 512).error(), SHUTDOWN);
        }
        assert_eq!(write(&mut caller, 0, 0, b"lost")[0].error(), SHUTDOWN);
        let gone = engine::event::Refusal::Gone.into();
        let frame = caller.session.reply(caller.kept[0].ticket, Err(gone));
        assert_eq!(replies(frame.as_bytes())[0].error(), SHUTDOWN);
        caller.feed(&request(0, cmd::DISC, 0, 0, 0));
        assert_eq!(caller.closed, Some(Closing::Disconnect));
    }
}

#[test]
fn after_a_disconnect_requests_in_flight_are_still_answered() {
    let mut caller = Caller::attached_to("disk", false);
    caller.answers_at_once = false;
    caller.feed(&request(0, cmd::READ, 1, 0, 512));
    caller.feed(&request(0xffff, cmd::DISC, 1, 7, 7));
    assert_eq!(caller.closed, Some(Closing::Disconnect));
    assert!(Closing::Disconnect.is_orderly());
    caller.feed(&request(0, cmd::FLUSH, 2, 0, 0));
    assert_eq!(caller.session.in_flight(), 1, "nothing is taken any more");
    let first = caller.kept.remove(0);
    caller.answer(first);
    assert_eq!(caller.sent.len(), 16 + 512);
}

#[test]
fn a_payload_the_caller_has_no_room_for_is_dropped_in_step() {
    let mut caller = Caller::attached_to("disk", false);
    let bytes = request(0, cmd::WRITE, 1, 0, 100);
    let (used, step) = caller.session.receive(&caller.exports, &bytes);
    let Some(Step::Request(write)) = step else {
        panic!("{step:?}")
    };
    assert_eq!((used, caller.session.payload_left()), (28, 100));
    caller.session.payload_taken(40);
    assert_eq!(caller.session.payload_left(), 60);
    caller.session.payload_skip();
    assert_eq!(caller.session.payload_left(), 0);
    let frame = caller.session.reply(write.ticket, Err(Error::NoSpace));
    assert_eq!(replies(frame.as_bytes())[0].error(), NO_SPACE);
    caller.feed(&[0; 60]);
    assert_eq!(caller.ask(0, cmd::FLUSH, 0, 0).error(), 0);
}

#[test]
fn every_refusal_of_the_engine_has_an_error() {
    use engine::event::Refusal;
    for (refusal, code) in [
        (Refusal::Io, 5),
        (Refusal::NoSpace, 28),
        (Refusal::OutOfRange, 22),
        (Refusal::ReadOnly, 1),
        (Refusal::Gone, 108),
        (Refusal::Dirty, 5),
        (Refusal::Policy, 22),
        (Refusal::Held, 5),
    ] {
        assert_eq!(Error::from(refusal).code(), code);
    }
}

#[test]
fn an_export_of_larger_blocks_takes_whole_ones_only() {
    let mut caller = Caller::new();
    caller.exports[0].block_bytes = 4096;
    caller.feed(&attach("disk", true));
    caller.take_sent();
    let refused = |reply: Reply| match reply {
        Reply::Chunk { payload, .. } => {
            u32::from_be_bytes(payload[..4].try_into().expect("four bytes"))
        }
        other => panic!("{other:?}"),
    };
    for command in [cmd::READ, cmd::TRIM, cmd::WRITE_ZEROES, cmd::CACHE] {
        for (offset, length) in [(512, 4096), (4096, 512), (1, 1), (4096, 6144)] {
            let reply = caller.ask(0, command, offset, length);
            assert_eq!(refused(reply), INVALID, "{command} {offset} {length}");
        }
    }
    let replied = write(&mut caller, 0, 512, &[1; 4096]);
    assert_eq!(
        refused(replied.into_iter().next().expect("one reply")),
        INVALID
    );
    assert_eq!(caller.requests, []);
    caller.ask(0, cmd::READ, 4096, 8192);
    let offset = 4096;
    assert_eq!(
        caller.requests,
        [Command::Read {
            offset,
            length: 8192
        }]
    );
}

#[test]
fn extents_end_at_whole_blocks_and_a_block_of_several_promises_nothing() {
    use super::super::reply::whole_blocks;
    let extents = |parts: &[(u64, ExtentState)]| -> Vec<Extent> {
        let parts = parts.iter();
        let extents = parts.map(|&(length, state)| Extent { length, state });
        extents.collect()
    };
    let (data, hole, zero) = (ExtentState::Data, ExtentState::Hole, ExtentState::Zero);
    let (same, changed) = (ExtentState::Same, ExtentState::Changed);
    for (given, wanted) in [
        (
            vec![(8192, hole), (4096, data)],
            vec![(8192, hole), (4096, data)],
        ),
        (
            vec![(4608, hole), (512, zero), (7168, hole)],
            vec![(4096, hole), (4096, data), (4096, hole)],
        ),
        // Two parts of one state, and what is cut off.
        (
            vec![(512, zero), (3584, zero), (512, hole)],
            vec![(4096, zero)],
        ),
        (vec![(512, hole)], vec![(4096, data)]),
        (vec![(512, same), (3584, changed)], vec![(4096, changed)]),
        (
            vec![(512, hole), (512, zero), (7168, zero)],
            vec![(4096, data), (4096, zero)],
        ),
    ] {
        let (given, wanted) = (extents(&given), extents(&wanted));
        assert_eq!(whole_blocks(&given, 4096)[..], wanted[..], "{given:?}");
        assert_eq!(whole_blocks(&given, 1)[..], given[..]);
    }
}
