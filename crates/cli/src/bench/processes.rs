//! Processes that serve while something is measured, and end with it.

use crate::exit::Failure;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A process that ends with this value.
pub(super) struct Server {
    child: Child,
    /// Whether it puts something away when it is asked to end.
    is_asked: bool,
}

/// Who is asked to end has this long for it.
const ENDING: Duration = Duration::from_secs(5);
/// Who starts has this long for it.
const STARTING: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

impl Server {
    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `is_ready`.
    pub(super) fn wait_ready(&mut self, name: &str, is_ready: impl Fn() -> bool) -> Result<(), Failure> {
        let give_up = Instant::now() + STARTING;
        while !is_ready() {
            if let Some(status) = self.child.try_wait()? {
                return Err(Failure::Failed(format!("{name} ended at once: {status}")));
            }
            if Instant::now() > give_up {
                return Err(Failure::Failed(format!("{name} was not ready within {STARTING:?}")));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.is_asked
            && let Ok(pid) = i32::try_from(self.child.id())
            && let Some(pid) = Pid::from_raw(pid)
            && kill_process(pid, Signal::TERM).is_ok()
        {
            let give_up = Instant::now() + ENDING;
            while Instant::now() < give_up {
                if !matches!(self.child.try_wait(), Ok(None)) {
                    return;
                }
                std::thread::sleep(LOOK_AGAIN);
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a command of this binary that says `ready`; what it said behind that word.
pub(super) fn start(args: &[&str]) -> Result<(Server, String), Failure> {
    let own = std::env::current_exe()?;
    let child = Command::new(own).args(args).stdout(Stdio::piped()).spawn()?;
    let mut server = Server { child, is_asked: false };
    let out = server.child.stdout.take().ok_or_else(|| Failure::failed("no output of a child"))?;
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line)?;
    let ready = line.strip_prefix("ready ").map(|rest| rest.trim().to_owned());
    ready
        .map(|ready| (server, ready))
        .ok_or_else(|| Failure::Failed(format!("farpool {} did not start", args[0])))
}

/// Starts a program of somebody else, quietly. It is asked to end, so that it can put its things away.
pub(super) fn start_other(program: &PathBuf, args: &[String]) -> Result<Server, Failure> {
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| Failure::Failed(format!("starting {}: {error}", program.display())))?;
    Ok(Server { child, is_asked: true })
}

/// Where a program lies in `PATH`; if nowhere, how to get it.
pub(super) fn find_program(name: &str, package: &str) -> Result<PathBuf, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| {
            Failure::Failed(format!(
                "{name} is not in PATH; the Debian package {package} has it (apt-get install {package})"
            ))
        })
}

/// A port of loopback that was free a moment ago, for programs that cannot pick one.
pub(super) fn free_port() -> Result<u16, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Whether somebody takes connections at a port of loopback.
pub(super) fn is_listening(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_is_missing_is_named_with_its_package() {
        let missing = find_program("no-such-program", "no-such-package");
        let Err(Failure::Failed(message)) = missing else { panic!("found") };
        assert!(message.contains("no-such-program") && message.contains("apt-get install no-such-package"));
        assert!(find_program("sh", "dash").is_ok());
    }
}
