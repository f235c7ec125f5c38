//! What keeps the daemon alive when a front end shrinks a file whose pages we touch.
//!
//! Owns the SIGBUS handler and the list of mappings it looks after. Always true: a page that its
//! file does not have any more is replaced by zeroes of our own, with all of its mapping, before
//! the access that met it goes on; from then on the mapping says that it is lost, and the memory it
//! is part of refuses every access. A fault anywhere else goes to whoever was asked before us.
//! Checking the size first does not help, because the file can shrink between the two; a seal
//! against shrinking would, but not every front end that is honest sets one. The kernel itself gets
//! an error instead of a signal, so requests in flight need nothing.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

/// Mappings of all guests together.
const MAPPINGS_MAX: usize = 16 * 1024;

struct Slot {
    /// 0 where it is free.
    start: AtomicUsize,
    bytes: AtomicUsize,
    lost: AtomicBool,
}

static SLOTS: [Slot; MAPPINGS_MAX] = [const {
    Slot {
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; MAPPINGS_MAX];

/// Slots below this were ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Free slots below `USED`. A lock and no message, because the handler cannot ask anybody; it takes
/// no lock itself.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Who got SIGBUS before us.
static BEFORE: OnceLock<Previous> = OnceLock::new();

struct Previous(libc::sigaction);

/// The handler looks after a mapping as long as this lives.
#[derive(Debug)]
pub struct Watch(usize);

/// Looks after a mapping. `None` when there are too many.
pub fn watch(start: usize, bytes: usize) -> Option<Watch> {
    BEFORE.get_or_init(install);
    let mut free = FREE.lock().expect("no panic with this lock");
    let at = match free.pop() {
        Some(at) => at,
        None => {
            let at = USED.load(Ordering::Relaxed);
            if at == MAPPINGS_MAX {
                return None;
            }
            USED.store(at + 1, Ordering::Release);
            at
        }
    };
    let slot = &SLOTS[at];
    slot.lost.store(false, Ordering::Relaxed);
    slot.bytes.store(bytes, Ordering::Relaxed);
    slot.start.store(start, Ordering::Release);
    Some(Watch(at))
}

impl Watch {
    pub fn is_lost(&self) -> bool {
        SLOTS[self.0].lost.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        SLOTS[self.0].start.store(0, Ordering::Release);
        FREE.lock().expect("no panic with this lock").push(self.0);
    }
}

fn install() -> Previous {
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_fault;
    // SAFETY: sigaction is plain data, for which all zeroes are valid.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = handler as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both outlive the call; the handler makes one system call and touches atomics only.
    let result = unsafe { libc::sigaction(libc::SIGBUS, &ours, &mut before) };
    assert_eq!(result, 0, "SIGBUS can be caught");
    Previous(before)
}

/// Runs in the middle of an access to memory: no allocation, no lock.
extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel gives a valid description of the signal.
    let address = unsafe { (*info).si_addr() } as usize;
    if replace(address) {
        return;
    }
    let Some(Previous(before)) = BEFORE.get() else {
        return give_up();
    };
    if before.sa_sigaction == libc::SIG_DFL || before.sa_sigaction == libc::SIG_IGN {
        return give_up();
    }
    if before.sa_flags & libc::SA_SIGINFO == 0 {
        return give_up();
    }
    type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    // SAFETY: with SA_SIGINFO the kernel would have called this address with these arguments.
    let handler: Handler = unsafe { std::mem::transmute(before.sa_sigaction) };
    handler(signal, info, context);
}

/// Puts zeroes of our own in place of the mapping with this address.
fn replace(address: usize) -> bool {
    let used = USED.load(Ordering::Acquire);
    for slot in &SLOTS[..used] {
        let start = slot.start.load(Ordering::Acquire);
        let bytes = slot.bytes.load(Ordering::Relaxed);
        if start == 0 || address < start || address - start >= bytes {
            continue;
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: errno is a variable of this thread, restored below for whoever was interrupted.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        let errno_before = unsafe { *errno };
        // SAFETY: the range is a mapping of ours that is in use, since somebody has just touched
        // it; its bytes are gone already.
        let base = unsafe { libc::mmap(start as *mut _, bytes, access, flags, -1, 0) };
        // SAFETY: as above.
        unsafe { *errno = errno_before };
        if base == libc::MAP_FAILED {
            return false;
        }
        slot.lost.store(true, Ordering::Release);
        return true;
    }
    false
}

/// The access runs again, and then it ends the process as it would have without us.
fn give_up() {
    // SAFETY: plain values.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}
