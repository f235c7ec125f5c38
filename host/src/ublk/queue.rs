//! The kernel's queue of a block device: requests are taken from it, and results given to it.
//!
//! Owns the thread that may speak with the queue. Always true: a request is answered once, after
//! the link has ended it; what this driver knows and NBD does not is refused at once. It ends when
//! the device was stopped. Deliberately absent: what becomes of a request in between
//! ([`super::link`]).

use super::link::Link;
use super::requests::{Kind, Request};
use io_uring::{opcode, types};
use libublk::io::{BufDescList, UblkDev, UblkIOCtx, UblkQueue};
use libublk::sys::{self, ublksrv_io_desc};
use libublk::{BufDesc, UblkError, UblkIORes};
use std::os::fd::AsRawFd;
use std::sync::mpsc::Sender;

/// What the kernel counts in.
const SECTOR_BYTES: u64 = 512;

/// Serves the only queue of a device until the device is stopped; `ready` hears when it began.
pub fn serve(device: &UblkDev, link: &Link, ready: &Sender<Result<(), UblkError>>) {
    let begun = begin(device, link);
    let (queue, told) = match begun {
        Ok(queue) => (queue, ready.send(Ok(()))),
        Err(error) => {
            // Who waits for it says what is wrong.
            let _ = ready.send(Err(error));
            return;
        }
    };
    if told.is_err() {
        return;
    }
    queue.wait_and_handle_io(|queue, tag, io| {
        if io.is_tgt_io() {
            for (tag, result) in link.take_ended() {
                answer(queue, link, tag, result);
            }
            return listen(queue, link).expect("there was room for it before");
        }
        match request(tag, queue.get_iod(tag)) {
            Some(request) => link.push(request),
            None => answer(queue, link, tag, -libc::EOPNOTSUPP),
        }
    });
}

fn begin<'a>(device: &'a UblkDev, link: &Link) -> Result<UblkQueue<'a>, UblkError> {
    let buffers = BufDescList::Slices(Some(link.buffers.all()));
    let queue = UblkQueue::new(0, device)?.submit_fetch_commands_unified(buffers)?;
    listen(&queue, link)?;
    Ok(queue)
}

/// Lets the queue hear the next time that requests have ended.
fn listen(queue: &UblkQueue, link: &Link) -> Result<(), UblkError> {
    let told = types::Fd(link.told.as_raw_fd());
    let poll = opcode::PollAdd::new(told, libc::POLLIN as u32).build();
    queue.ublk_submit_sqe_sync(poll.user_data(UblkIOCtx::build_user_data(0, 0, 0, true)))
}

fn answer(queue: &UblkQueue, link: &Link, tag: u16, result: i32) {
    let buffer = BufDesc::Slice(link.buffers.of(tag).as_slice());
    let answered = queue.complete_io_cmd_unified(tag, buffer, Ok(UblkIORes::Result(result)));
    answered.expect("a device that copies takes a slice");
}

/// What the kernel wants; `None` for what was not offered to it.
fn request(tag: u16, wanted: &ublksrv_io_desc) -> Option<Request> {
    let has = |flag| wanted.op_flags & flag != 0;
    let kind = match wanted.op_flags & 0xff {
        sys::UBLK_IO_OP_READ => Kind::Read,
        sys::UBLK_IO_OP_WRITE => Kind::Write,
        sys::UBLK_IO_OP_FLUSH => Kind::Flush,
        sys::UBLK_IO_OP_DISCARD => Kind::Discard,
        sys::UBLK_IO_OP_WRITE_ZEROES => Kind::Zero {
            keep: has(sys::UBLK_IO_F_NOUNMAP),
        },
        _ => return None,
    };
    // Of a flush the kernel leaves anything there.
    let (start, sectors) = match kind {
        Kind::Flush => (0, 0),
        _ => (wanted.start_sector, wanted.nr_sectors),
    };
    Some(Request {
        tag,
        kind,
        offset: start.checked_mul(SECTOR_BYTES)?,
        bytes: u32::try_from(u64::from(sectors) * SECTOR_BYTES).ok()?,
        fua: has(sys::UBLK_IO_F_FUA) && kind != Kind::Flush && kind != Kind::Read,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails when: a flag or an operation of the kernel is taken for another one.
    #[test]
    fn what_the_kernel_wants_is_understood_or_refused() {
        let of = |op_flags, nr_sectors| {
            let wanted = ublksrv_io_desc {
                op_flags,
                nr_sectors,
                start_sector: 8,
                ..Default::default()
            };
            request(3, &wanted)
        };
        let write = Request {
            tag: 3,
            kind: Kind::Write,
            offset: 4096,
            bytes: 1024,
            fua: true,
        };
        let fua = sys::UBLK_IO_F_FUA;
        assert_eq!(of(sys::UBLK_IO_OP_WRITE | fua, 2), Some(write));
        let keeps = of(sys::UBLK_IO_OP_WRITE_ZEROES | sys::UBLK_IO_F_NOUNMAP, 2);
        assert_eq!(keeps.map(|it| it.kind), Some(Kind::Zero { keep: true }));
        let flush = ublksrv_io_desc {
            op_flags: sys::UBLK_IO_OP_FLUSH | fua,
            start_sector: u64::MAX,
            ..Default::default()
        };
        let flush = request(3, &flush).map(|it| (it.kind, it.bytes, it.fua));
        assert_eq!(flush, Some((Kind::Flush, 0, false)), "durable by itself");
        assert_eq!(of(sys::UBLK_IO_OP_ZONE_RESET, 2), None);
        assert_eq!(
            of(sys::UBLK_IO_OP_DISCARD, u32::MAX),
            None,
            "4 GiB and more"
        );
    }
}
