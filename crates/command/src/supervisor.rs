//! Messages to systemd, which starts servers as services of `Type=notify` (sd_notify(3)): ready, alive, stopping. A
//! process that systemd did not start has no `NOTIFY_SOCKET`, and sends nothing.
//!
//! The idea: a thread says "alive" only after it has asked the server for something that needs its lock. A server that
//! hangs is silent then, and systemd restarts it.

use crate::exit::Failure;
use sd_notify::NotifyState;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Number of messages that are sent within the watchdog's timeout: one that is late does not end the server.
const SIGNS_OF_LIFE: u32 = 3;
/// Shortest pause between two of them. A timeout below three times this is not met.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// Server that systemd knows to be ready. Dropping it tells systemd that the server stops.
pub struct Ready {
    watched: Option<(Sender<()>, JoinHandle<()>)>,
}

/// Tells systemd that the server is ready, and what it does (`status`). If the unit has `WatchdogSec=`, calls `check`
/// from now on, and says that the server is alive each time that it returns.
pub fn ready(status: &str, check: impl Fn() + Send + 'static) -> Result<Ready, Failure> {
    // A status is one line; a line feed in it would begin a message of its own.
    let status = status.replace(|letter: char| letter.is_control(), " ");
    say(&[NotifyState::Status(&status), NotifyState::Ready])?;
    let Some(timeout) = sd_notify::watchdog_enabled() else { return Ok(Ready { watched: None }) };
    let pause = (timeout / SIGNS_OF_LIFE).max(PAUSE_MIN);
    let (stop, stopped) = channel();
    let watch = move || {
        while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            check();
            // A service manager that restarts cannot be reached for a moment.
            let _ = say(&[NotifyState::Watchdog]);
        }
    };
    let thread = std::thread::Builder::new().name("farpool-alive".into()).spawn(watch)?;
    Ok(Ready { watched: Some((stop, thread)) })
}

fn say(states: &[NotifyState<'_>]) -> Result<(), Failure> {
    sd_notify::notify(states).map_err(|error| {
        let socket = std::env::var_os("NOTIFY_SOCKET").unwrap_or_default();
        Failure::Failed(format!(
            "NOTIFY_SOCKET {}: {error}; systemd sets this variable, and it must not be set elsewhere",
            socket.display()
        ))
    })
}

impl Drop for Ready {
    fn drop(&mut self) {
        let _ = say(&[NotifyState::Stopping]);
        if let Some((stop, thread)) = self.watched.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}
