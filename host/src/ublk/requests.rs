//! Which requests of a block device are not answered, and in which order they are sent.
//!
//! Pure. Always true: each request ends once; after a connection has died, all that it left
//! unanswered is sent again in the order of before, and ahead of what was not sent yet; a number
//! of an answer belongs to one sending, so an answer to an earlier sending is none. Deliberately
//! absent: sockets, payload bytes and the kernel.

use crate::nbd::{self, Reader, RequestHead, command, command_flag};
use std::collections::VecDeque;

/// Bits of a cookie that hold the tag; the rest is a serial.
const TAG_BITS: u32 = 16;
/// What an NBD server may answer with; the numbers are those of Linux.
const ERRORS: [u32; 8] = [1, 5, 12, 22, 28, 75, 95, 108];
const EIO: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    Flush,
    Discard,
    /// `keep`: what is zeroed stays allocated.
    Zero {
        keep: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The kernel's number of it, and the number of its buffer.
    pub tag: u16,
    pub kind: Kind,
    pub offset: u64,
    pub bytes: u32,
    /// Answered only when it is durable.
    pub fua: bool,
}

impl Request {
    fn head(&self, cookie: u64) -> RequestHead {
        let (command, keep) = match self.kind {
            Kind::Read => (command::READ, 0),
            Kind::Write => (command::WRITE, 0),
            Kind::Flush => (command::FLUSH, 0),
            Kind::Discard => (command::TRIM, 0),
            Kind::Zero { keep: false } => (command::WRITE_ZEROES, 0),
            Kind::Zero { keep: true } => (command::WRITE_ZEROES, command_flag::NO_HOLE),
        };
        let is_flush = self.kind == Kind::Flush;
        RequestHead {
            magic: nbd::REQUEST_MAGIC,
            flags: keep | if self.fua { command_flag::FUA } else { 0 },
            command,
            cookie,
            // Of a flush they are reserved.
            offset: if is_flush { 0 } else { self.offset },
            length: if is_flush { 0 } else { self.bytes },
        }
    }

    /// What the kernel is told of one that went well.
    pub fn done(&self) -> i32 {
        match self.kind {
            Kind::Read | Kind::Write => self.bytes as i32,
            Kind::Flush | Kind::Discard | Kind::Zero { .. } => 0,
        }
    }
}

/// A server's answer, without the bytes of a read that may follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub cookie: u64,
    /// 0 where the request went well, else a positive error number of Linux.
    pub errno: u32,
}

impl Answer {
    /// `None` for what is no simple reply.
    pub fn parse(head: &[u8; nbd::SIMPLE_REPLY_BYTES]) -> Option<Answer> {
        let mut reader = Reader::new(head);
        let (magic, error, cookie) = (reader.u32()?, reader.u32()?, reader.u64()?);
        let known = error == 0 || ERRORS.contains(&error);
        let errno = if known { error } else { EIO };
        (magic == nbd::SIMPLE_REPLY_MAGIC).then_some(Answer { cookie, errno })
    }
}

#[derive(Debug)]
pub struct Requests {
    queued: VecDeque<Request>,
    /// By tag: what was sent and is not answered.
    sent: Vec<Option<(u64, Request)>>,
    serial: u64,
}

impl Requests {
    pub fn new(depth: u16) -> Requests {
        Requests {
            queued: VecDeque::with_capacity(depth.into()),
            sent: vec![None; depth.into()],
            serial: 0,
        }
    }

    /// Takes a request of the kernel.
    pub fn push(&mut self, request: Request) {
        let slot = self.sent.get(usize::from(request.tag));
        assert_eq!(slot, Some(&None), "the kernel gives a tag once");
        assert!(self.queued.len() < self.sent.len());
        self.queued.push_back(request);
    }

    /// The next one to send, with its head.
    pub fn send_next(&mut self) -> Option<(RequestHead, Request)> {
        let request = self.queued.pop_front()?;
        self.serial += 1;
        let cookie = self.serial << TAG_BITS | u64::from(request.tag);
        let before = self.sent[usize::from(request.tag)].replace((cookie, request));
        assert!(before.is_none(), "a tag is under way once");
        Some((request.head(cookie), request))
    }

    /// The request that an answer is for.
    pub fn sent(&self, cookie: u64) -> Option<Request> {
        let tag = (cookie & ((1 << TAG_BITS) - 1)) as usize;
        let (number, request) = (*self.sent.get(tag)?)?;
        (number == cookie).then_some(request)
    }

    /// Forgets a request whose answer is complete.
    pub fn finish(&mut self, request: Request) {
        let sent = self.sent[usize::from(request.tag)].take();
        assert!(sent.is_some(), "only what was sent is answered");
    }

    /// The connection has died: what is not answered goes first over the next one.
    pub fn send_again(&mut self) {
        let mut unanswered: Vec<(u64, Request)> =
            self.sent.iter_mut().filter_map(Option::take).collect();
        unanswered.sort_by_key(|(cookie, _)| *cookie);
        for (_, request) in unanswered.into_iter().rev() {
            self.queued.push_front(request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(tag: u16) -> Request {
        Request {
            tag,
            kind: Kind::Write,
            offset: u64::from(tag) * 4096,
            bytes: 4096,
            fua: false,
        }
    }

    fn tags(requests: &mut Requests) -> Vec<u16> {
        std::iter::from_fn(|| Some(requests.send_next()?.1.tag)).collect()
    }

    /// Fails when: what is sent again goes behind what was never sent, or loses its order.
    #[test]
    fn what_a_dead_connection_left_goes_first_and_in_its_order() {
        let mut requests = Requests::new(8);
        [5, 2, 7]
            .into_iter()
            .for_each(|tag| requests.push(write(tag)));
        assert_eq!(tags(&mut requests), [5, 2, 7]);
        [1, 0].into_iter().for_each(|tag| requests.push(write(tag)));
        requests.finish(write(2));
        requests.push(write(2));
        requests.send_again();
        assert_eq!(tags(&mut requests), [5, 7, 1, 0, 2]);
        requests.send_again();
        requests.send_again();
        assert_eq!(tags(&mut requests), [5, 7, 1, 0, 2], "nothing comes twice");
    }

    /// Fails when: an answer is taken for a request that was sent again since.
    #[test]
    fn an_answer_to_an_earlier_sending_is_none() {
        let mut requests = Requests::new(4);
        requests.push(write(3));
        let (head, _) = requests.send_next().expect("it was given");
        assert_eq!(requests.sent(head.cookie), Some(write(3)));
        requests.send_again();
        assert_eq!(requests.sent(head.cookie), None, "nothing is under way");
        let (again, _) = requests.send_next().expect("it is sent again");
        assert_ne!(again.cookie, head.cookie);
        assert_eq!(requests.sent(head.cookie), None);
        assert_eq!(requests.sent(again.cookie), Some(write(3)));
        assert_eq!(requests.sent(again.cookie | 0xffff), None, "no such tag");
        requests.finish(write(3));
        assert_eq!(requests.sent(again.cookie), None, "it has ended");
    }

    /// Fails when: a flag of a request is lost on its way, or a flush names a range.
    #[test]
    fn a_request_says_to_the_server_what_the_kernel_said() {
        let heads = [
            (Kind::Read, false, command::READ, 0, 4096),
            (Kind::Write, true, command::WRITE, command_flag::FUA, 4096),
            (Kind::Flush, false, command::FLUSH, 0, 0),
            (Kind::Discard, false, command::TRIM, 0, 4096),
            (
                Kind::Zero { keep: false },
                false,
                command::WRITE_ZEROES,
                0,
                4096,
            ),
            (
                Kind::Zero { keep: true },
                true,
                command::WRITE_ZEROES,
                command_flag::FUA | command_flag::NO_HOLE,
                4096,
            ),
        ];
        for (kind, fua, command, flags, length) in heads {
            let request = Request {
                kind,
                fua,
                ..write(1)
            };
            let head = request.head(77);
            assert_eq!((head.command, head.flags), (command, flags), "{kind:?}");
            assert_eq!((head.length, head.cookie), (length, 77), "{kind:?}");
            let moves = matches!(kind, Kind::Read | Kind::Write);
            assert_eq!(request.done(), if moves { 4096 } else { 0 });
        }
    }

    /// Fails when: an error that Linux does not know under its number reaches the kernel.
    #[test]
    fn an_answer_is_a_simple_reply_and_its_error_one_that_linux_knows() {
        let parse = |error| Answer::parse(&nbd::simple_head(error, 9));
        let of = |errno| Some(Answer { cookie: 9, errno });
        assert_eq!(parse(0), of(0));
        assert_eq!(parse(28), of(28));
        assert_eq!(parse(4711), of(EIO));
        assert_eq!(Answer::parse(&[0; 16]), None);
    }
}
