//! The user's wish to stop: SIGINT or SIGTERM.
//!
//! Always true: the first signal lets the work notice and leave in order, so that everything
//! that was made is taken away; a second one ends the process at once, and what is left then is
//! swept by the next run of its kind.

use host::error::{Error, Result, cause};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::signal::unix::{SignalKind, signal};

/// As a shell reports a program that SIGINT ended.
const EXIT_INTERRUPTED: i32 = 130;

#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on, to the end of the process.
    pub fn listen() -> Result<Interrupt> {
        let failed = |error| Error::failed(format!("signals: {}", cause(&error)));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let (mut int, mut term) = {
            let _inside = runtime.enter();
            (
                signal(SignalKind::interrupt()).map_err(failed)?,
                signal(SignalKind::terminate()).map_err(failed)?,
            )
        };
        let interrupt = Interrupt::default();
        let flag = interrupt.0.clone();
        std::thread::spawn(move || {
            runtime.block_on(async {
                loop {
                    tokio::select! {
                        _ = int.recv() => {}
                        _ = term.recv() => {}
                    }
                    if flag.swap(true, Ordering::SeqCst) {
                        std::process::exit(EXIT_INTERRUPTED);
                    }
                }
            });
        });
        Ok(interrupt)
    }

    pub fn came(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    pub fn check(&self) -> Result<()> {
        match self.came() {
            true => Err(Error::failed(
                "interrupted; what it has started is ended, and all files of it are removed",
            )),
            false => Ok(()),
        }
    }
}
