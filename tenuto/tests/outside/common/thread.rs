//! One thread of a running process, stopped while the others go on.
//!
//! Owns a trace of that thread, and nothing of what it does. Always true: the thread goes on when
//! this is dropped, also when the test fails.

use std::ptr::null_mut;

pub struct Stopped {
    thread: i32,
}

impl Stopped {
    /// Stops the thread of this name; it is in the middle of whatever it was doing.
    pub fn new(process: u32, name: &str) -> Stopped {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("list threads");
        let thread = tasks
            .map(|task| task.expect("a thread").path())
            .find(|task| {
                let comm = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
                comm.trim() == name
            })
            .unwrap_or_else(|| panic!("no thread {name}"));
        let thread = thread.file_name().expect("a number").to_string_lossy();
        let thread: i32 = thread.parse().expect("a number");
        let none = null_mut::<libc::c_void>();
        // SAFETY: plain calls with the id of a thread of our own child; no memory is passed.
        unsafe {
            let seized = libc::ptrace(libc::PTRACE_SEIZE, thread, none, none);
            assert_eq!(seized, 0, "{}", std::io::Error::last_os_error());
            let stopped = libc::ptrace(libc::PTRACE_INTERRUPT, thread, none, none);
            assert_eq!(stopped, 0, "{}", std::io::Error::last_os_error());
            let mut status = 0;
            assert_eq!(libc::waitpid(thread, &mut status, libc::__WALL), thread);
        }
        Stopped { thread }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let none = null_mut::<libc::c_void>();
        // SAFETY: as above; a thread that is gone needs nothing.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.thread, none, none) };
    }
}
