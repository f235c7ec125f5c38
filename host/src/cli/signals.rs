//! The user's wish to end a command: SIGINT, SIGTERM, SIGHUP.
//!
//! Always true: from the call on none of them ends the process by itself. Deliberately absent: the
//! daemon's and those of `tenuto try`, which are told more than once.

use crate::error::{Error, Result, cause};
use tokio::signal::unix::{SignalKind, signal};

/// Calls this once, from a thread of its own, when one has come.
pub fn on_end(tell: impl FnOnce() + Send + 'static) -> Result<()> {
    let failed = |error: std::io::Error| Error::failed(format!("signals: {}", cause(&error)));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let inside = runtime.enter();
    let listen = |kind| signal(kind).map_err(failed);
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut hang_up = listen(SignalKind::hangup())?;
    drop(inside);
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hang_up.recv() => {}
            }
        });
        tell();
    });
    Ok(())
}
