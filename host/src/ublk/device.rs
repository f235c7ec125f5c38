//! Devices of the kernel's ublk driver: added, recovered, grown, stopped and deleted.
//!
//! Owns the words of the driver's control device. Always true: whose a device is stands in the
//! kernel, as a fingerprint of the volume's name in a field of the device that is the server's own;
//! a device is deleted only before it was started or after it was stopped, never because a process
//! or a step has failed. Its server is restored by the kernel's user recovery, with the requests
//! that the last one left. Deliberately absent: the exported state of the library, which lies in a
//! directory that every user may write to; and who may take a device away, which is the command's.

use super::link::Link;
use super::queue;
use crate::blockdev::Block;
use crate::nbdlink::Connection;
use crate::sys as system;
use libublk::ctrl::{UblkCtrl, UblkCtrlBuilder};
use libublk::io::UblkDev;
use libublk::{UblkError, UblkFlags, sys};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

const CONTROL: &str = "/dev/ublk-control";
const DEVICES: &str = "/sys/class/ublk-char";
/// Where udev finds the name of a device's volume.
const NAMES: &str = "/run/tenuto-devices";
/// Requests under way, and the longest one: 32 MiB of buffers for each device.
const DEPTH: u16 = 128;
const REQUEST_BYTES_MAX: u32 = 256 << 10;
/// Of a discard and of zeroes, which carry no payload.
const BARE_BYTES_MAX: u32 = 1 << 30;
const PAGE_BYTES: u32 = 4096;
const SECTOR_SHIFT: u32 = 9;
/// A device that outlives its server, and gives it its requests again.
const RECOVERY: u64 = (sys::UBLK_F_USER_RECOVERY | sys::UBLK_F_USER_RECOVERY_REISSUE) as u64;

/// Whether the driver is there.
pub fn is_there() -> bool {
    Path::new(CONTROL).exists()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    id: u32,
}

impl Device {
    /// The one of a volume.
    pub fn of(volume: &str) -> Option<Device> {
        let entries = fs::read_dir(DEVICES).ok()?.flatten();
        let ids = entries.filter_map(|entry| {
            let name = entry.file_name();
            name.to_str()?.strip_prefix("ublkc")?.parse().ok()
        });
        let mut devices = ids.map(|id| Device { id });
        devices.find(|device| device.is_of(volume))
    }

    pub fn is_of(self, volume: &str) -> bool {
        let there = Path::new(DEVICES).join(format!("ublkc{}", self.id));
        if !there.exists() {
            return false;
        }
        let info = self.control().map(|control| control.dev_info());
        info.is_ok_and(|info| info.ublksrv_flags == fingerprint(volume))
    }

    /// As any block device of this host.
    pub fn block(self) -> Block {
        Block::new(self.kernel_name())
    }

    fn kernel_name(self) -> String {
        format!("ublkb{}", self.id)
    }

    /// Whether it is no block device: it was not started yet, or was stopped.
    pub fn is_dead(self) -> bool {
        let state = self.control().map(|control| control.dev_info().state);
        state.is_ok_and(|state| u32::from(state) == sys::UBLK_S_DEV_DEAD)
    }

    /// Whether its requests wait for another server.
    pub fn is_orphan(self) -> bool {
        let info = self.control().map(|control| control.dev_info());
        info.is_ok_and(|info| {
            u32::from(info.state) == sys::UBLK_S_DEV_QUIESCED || has_ended(info.ublksrv_pid)
        })
    }

    /// Tells the programs that use it that its volume has another size.
    pub fn resize(self, size_bytes: u64) -> io::Result<()> {
        let control = self.control()?;
        let features = control.get_driver_features().unwrap_or(0);
        if features & sys::UBLK_F_UPDATE_SIZE as u64 == 0 {
            let why = "this kernel resizes no ublk device, it takes Linux 6.16; detach it and \
                       attach it again";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        done(control.update_size(size_bytes))
    }

    /// Ends it for the programs of this host; its server hears of it and deletes it.
    pub fn stop(self) -> io::Result<()> {
        done(self.control()?.kill_dev())
    }

    /// Takes away one that was stopped or never started.
    pub fn delete(self) -> io::Result<()> {
        done(self.control()?.del_dev())?;
        self.forget();
        Ok(())
    }

    fn control(self) -> io::Result<UblkCtrl> {
        quietly(|| UblkCtrl::new_simple(self.id as i32)).map_err(error)
    }

    /// For udev; without it the command makes the link itself.
    fn note(self, volume: &str) {
        let _ = fs::create_dir_all(NAMES);
        let _ = fs::write(self.noted(), format!("TENUTO_VOLUME={volume}\n"));
    }

    fn forget(self) {
        let _ = fs::remove_file(self.noted());
    }

    fn noted(self) -> PathBuf {
        Path::new(NAMES).join(self.kernel_name())
    }
}

/// A device that this process serves, before the kernel is told to begin.
pub struct Served {
    control: UblkCtrl,
    pub device: Device,
    pub link: Arc<Link>,
    known: Arc<UblkDev>,
    thread: JoinHandle<()>,
    is_new: bool,
}

impl Served {
    /// Adds a device, or takes over the one that another process left.
    pub fn prepare(
        volume: &str,
        left: Option<Device>,
        connection: &Connection,
    ) -> io::Result<Served> {
        let builder = UblkCtrlBuilder::default()
            .name("tenuto")
            .nr_queues(1)
            .depth(DEPTH)
            .io_buf_bytes(REQUEST_BYTES_MAX);
        let control = match left {
            None => builder
                .ctrl_flags(RECOVERY)
                .ctrl_target_flags(fingerprint(volume))
                .dev_flags(UblkFlags::UBLK_DEV_F_ADD_DEV)
                .build(),
            Some(device) => quietly(|| {
                let recover = UblkFlags::UBLK_DEV_F_RECOVER_DEV;
                builder.id(device.id as i32).dev_flags(recover).build()
            }),
        };
        let control = control.map_err(error)?;
        let info = control.dev_info();
        if info.flags & RECOVERY != RECOVERY {
            let why = "its devices do not outlive their server; it takes Linux 6.1";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        if left.is_some() {
            done(control.start_user_recover())?;
        }
        let device = Device { id: info.dev_id };
        device.note(volume);
        let link = Arc::new(Link::new(info.queue_depth, info.max_io_buf_bytes)?);
        let limits = |known: &mut UblkDev| {
            known.tgt.dev_size = connection.size_bytes;
            known.tgt.params = limits(connection, info.max_io_buf_bytes);
            // One more than requests: the queue hears of ended ones by its ring.
            known.tgt.sq_depth = info.queue_depth * 2;
            known.tgt.cq_depth = info.queue_depth * 2;
            Ok(())
        };
        let known = UblkDev::new("tenuto".into(), limits, &control).map_err(error)?;
        let known = Arc::new(known);
        let thread = serve(known.clone(), link.clone())?;
        Ok(Served {
            control,
            device,
            link,
            known,
            thread,
            is_new: left.is_none(),
        })
    }

    /// Lets the kernel begin, which reads of the device at once; requests are carried by then.
    pub fn start(self) -> io::Result<Served> {
        let begun = done(self.control.start_dev(&self.known));
        if let Err(error) = begun {
            // One that was left by another process waits for the next one.
            if self.is_new {
                let _ = self.control.kill_dev();
                let _ = self.wait();
            }
            return Err(error);
        }
        // From now on it is not deleted because this process ends.
        self.control.disown();
        Ok(self)
    }

    /// Waits until the device was stopped, and deletes it.
    pub fn wait(self) -> io::Result<()> {
        let ended = self.thread.join();
        ended.map_err(|_| io::Error::other("the thread of its queue has ended"))?;
        // The kernel deletes it when its last file is closed.
        drop(self.known);
        done(self.control.del_dev())?;
        self.device.forget();
        Ok(())
    }
}

/// A thread for the queue that has begun.
fn serve(known: Arc<UblkDev>, link: Arc<Link>) -> io::Result<JoinHandle<()>> {
    let (ready, begun) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        begin_thread();
        queue::serve(&known, &link, &ready);
    });
    let begun = begun.recv();
    let begun = begun.map_err(|_| io::Error::other("the thread of its queue has ended"))?;
    begun.map_err(error)?;
    Ok(thread)
}

/// Tells the kernel that this thread must not wait for memory that only its own requests free.
pub fn begin_thread() {
    let _ = UblkCtrl::init_queue_thread();
}

/// What the volume is to the kernel.
fn limits(connection: &Connection, request_bytes_max: u32) -> sys::ublk_params {
    let offer = connection.offer();
    let block_shift = offer.block_bytes.trailing_zeros();
    let page_shift = PAGE_BYTES.trailing_zeros().max(block_shift);
    let mut attributes = 0;
    let mut set = |is, attribute| attributes |= if is { attribute } else { 0 };
    set(connection.is_read_only(), sys::UBLK_ATTR_READ_ONLY);
    set(offer.flush, sys::UBLK_ATTR_VOLATILE_CACHE);
    set(offer.flush && offer.fua, sys::UBLK_ATTR_FUA);
    let bare = |is| {
        if is {
            BARE_BYTES_MAX >> SECTOR_SHIFT
        } else {
            0
        }
    };
    let mut types = sys::UBLK_PARAM_TYPE_BASIC;
    if offer.trim || offer.zeroes {
        types |= sys::UBLK_PARAM_TYPE_DISCARD;
    }
    sys::ublk_params {
        types,
        basic: sys::ublk_param_basic {
            attrs: attributes,
            logical_bs_shift: block_shift as u8,
            physical_bs_shift: page_shift as u8,
            io_opt_shift: page_shift as u8,
            io_min_shift: page_shift as u8,
            max_sectors: request_bytes_max >> SECTOR_SHIFT,
            dev_sectors: connection.size_bytes >> SECTOR_SHIFT,
            ..Default::default()
        },
        discard: sys::ublk_param_discard {
            discard_granularity: PAGE_BYTES.max(offer.block_bytes),
            max_discard_sectors: bare(offer.trim),
            max_write_zeroes_sectors: bare(offer.zeroes),
            max_discard_segments: 1,
            ..Default::default()
        },
        ..Default::default()
    }
}

/// Of a volume's name, as a number that no other server chooses.
fn fingerprint(volume: &str) -> u64 {
    let text = format!("tenuto/{volume}");
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let first = digest.as_ref()[..8].try_into();
    u64::from_be_bytes(first.expect("a digest is longer"))
}

/// A process, be it that its parent was told of it or not.
fn has_ended(pid: i32) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which may hold anything.
    let state = text.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_none_or(|state| state.starts_with(['Z', 'X']))
}

/// The library says on standard error where it has no state of its own, which we never give it.
fn quietly<T>(call: impl FnOnce() -> T) -> T {
    let silence = system::silence_errors();
    let result = call();
    drop(silence);
    result
}

/// The library takes "busy" for an answer.
fn done(result: Result<i32, UblkError>) -> io::Result<()> {
    match result.map_err(error)? {
        code if code < 0 => Err(io::Error::from_raw_os_error(-code)),
        _ => Ok(()),
    }
}

fn error(error: UblkError) -> io::Error {
    match error {
        UblkError::UringIOError(code) | UblkError::OtherError(code) if code < 0 => {
            io::Error::from_raw_os_error(-code)
        }
        UblkError::IOError(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails when: two volumes have one device, or a volume has another one in the next release.
    #[test]
    fn a_volume_is_known_by_a_number_of_its_name() {
        assert_eq!(fingerprint("disk"), fingerprint("disk"));
        assert_ne!(fingerprint("disk"), fingerprint("disk2"));
        assert_eq!(fingerprint("disk"), 0x5f0d_c855_1a07_2b1c);
    }

    /// Fails when: a process that lives is taken for one that has ended.
    #[test]
    fn a_process_that_lives_has_not_ended() {
        assert!(!has_ended(std::process::id() as i32));
        let mut child = std::process::Command::new("true").spawn().expect("runs");
        let pid = child.id() as i32;
        child.wait().expect("it ends");
        assert!(has_ended(pid));
    }

    /// Fails when: the kernel's "busy" passes for success.
    #[test]
    fn busy_is_an_error() {
        let busy = done(Ok(-libc::EBUSY)).expect_err("busy");
        assert_eq!(busy.raw_os_error(), Some(libc::EBUSY));
        let gone = done(Err(UblkError::UringIOError(-libc::ENODEV))).expect_err("gone");
        assert_eq!(gone.raw_os_error(), Some(libc::ENODEV));
        assert!(done(Ok(0)).is_ok());
    }
}
