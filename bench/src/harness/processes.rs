//! Child processes that serve or work during a measurement and end with it.

use crate::exit::Failure;
use farpool_command::programs;
use farpool_lock::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Child process. Dropping this value ends the process.
pub(crate) struct Server {
    child: Child,
    /// True if the process gets SIGTERM and time to clean up before it is killed.
    is_asked: bool,
}

/// Time limit for a process to end after SIGTERM.
const ENDING: Duration = Duration::from_secs(5);
/// Time limit for a process to become ready.
const STARTING: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

impl Server {
    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `is_ready` returns true.
    pub(crate) fn wait_ready(&mut self, name: &str, is_ready: impl Fn() -> bool) -> Result<(), Failure> {
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
            await_end(&mut self.child);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until the process has ended, for [`ENDING`] at most.
fn await_end(child: &mut Child) {
    let give_up = Instant::now() + ENDING;
    while Instant::now() < give_up && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Program that is controlled over its standard input: it answers each line with a line, and ends at the end of its
/// input.
pub(crate) struct Told {
    name: String,
    child: Child,
    input: Arc<Input>,
    output: BufReader<ChildStdout>,
}

/// Standard input of a controlled program. It is shared, so that another thread can write while an answer is awaited.
pub(crate) struct Input(Mutex<Option<ChildStdin>>);

impl Input {
    /// Writes a line to the program.
    pub(crate) fn say(&self, line: &str) -> std::io::Result<()> {
        let mut input = self.0.lock();
        input.as_mut().map_or(Ok(()), |input| input.write_all(format!("{line}\n").as_bytes()))
    }

    fn close(&self) {
        *self.0.lock() = None;
    }
}

impl Told {
    /// Starts a program and waits until it prints `ready`. Returns the program and the rest of that line.
    pub(crate) fn start(program: &Path, args: &[String]) -> Result<(Told, String), Failure> {
        let failed = |error| Failure::Failed(format!("starting {}: {error}", program.display()));
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C should reach this process only, which then ends its children.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let name = program.file_name().unwrap_or_default().display().to_string();
        let input = Arc::new(Input(Mutex::new(child.stdin.take())));
        let output = child.stdout.take().ok_or_else(|| Failure::failed("no output of a child"))?;
        let mut told = Told { name, child, input, output: BufReader::new(output) };
        let ready = told.answer("ready")?;
        Ok((told, ready))
    }

    /// Returns the name of the program, for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the standard input of the program.
    pub(crate) fn input(&self) -> Arc<Input> {
        self.input.clone()
    }

    /// Sends a command to the program. Returns the rest of its answer after `ok`.
    pub(crate) fn ask(&mut self, line: &str) -> Result<String, Failure> {
        // If the program has ended, its last output says more than the broken pipe.
        let _ = self.input.say(line);
        self.answer("ok")
    }

    fn answer(&mut self, wanted: &str) -> Result<String, Failure> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let line = line.trim_end();
        match line.split_once(' ').unwrap_or((line, "")) {
            (word, rest) if word == wanted => Ok(rest.to_owned()),
            ("failed", why) => Err(Failure::Failed(format!("{}: {why}", self.name))),
            _ if line.is_empty() => Err(Failure::Failed(format!("{} has ended", self.name))),
            _ => Err(Failure::Failed(format!("{} printed {line:?}, expected {wanted}", self.name))),
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.input.close();
        await_end(&mut self.child);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the path of the `farpool` command.
pub(crate) fn farpool() -> Result<PathBuf, Failure> {
    programs::own("farpool", "build")
}

/// Starts a `farpool` command and waits until it prints `ready`. Returns the process and the rest of that line.
pub(crate) fn start(args: &[&str]) -> Result<(Server, String), Failure> {
    let child = Command::new(farpool()?).args(args).stdout(Stdio::piped()).spawn()?;
    let mut server = Server { child, is_asked: false };
    let out = server.child.stdout.take().ok_or_else(|| Failure::failed("no output of a child"))?;
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line)?;
    let ready = line.strip_prefix("ready ").map(|rest| rest.trim().to_owned());
    ready
        .map(|ready| (server, ready))
        .ok_or_else(|| Failure::Failed(format!("farpool {} did not start", args[0])))
}

/// Starts a foreign program without output. It is ended by SIGTERM, so that it can clean up.
pub(crate) fn start_other(program: &PathBuf, args: &[String]) -> Result<Server, Failure> {
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| Failure::Failed(format!("starting {}: {error}", program.display())))?;
    Ok(Server { child, is_asked: true })
}

/// Finds a program in `PATH`. The error names the Debian package that has it.
pub(crate) fn find_program(name: &str, package: &str) -> Result<PathBuf, Failure> {
    programs::in_path(name).ok_or_else(|| {
        Failure::Failed(format!(
            "{name} is not in PATH; the Debian package {package} has it (apt-get install {package})"
        ))
    })
}

/// Returns a TCP port of 127.0.0.1 that was free a moment ago, for programs that cannot pick one.
pub(crate) fn free_port() -> Result<u16, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Reports whether a process accepts connections at a TCP port of 127.0.0.1.
pub(crate) fn is_listening(port: u16) -> bool {
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

    #[test]
    fn program_that_is_told_answers_fails_and_ends_with_its_input() {
        let script = "echo ready there; while read word rest; do echo $word $rest; done";
        let shell = |script: &str| Told::start(Path::new("/bin/sh"), &["-c".to_owned(), script.to_owned()]);
        let (mut told, ready) = shell(script).unwrap();
        assert_eq!(ready, "there");
        assert_eq!(told.ask("ok 1 2").unwrap(), "1 2");
        for (said, expected) in [("failed on purpose", "sh: on purpose"), ("well", "printed \"well\"")] {
            let Err(Failure::Failed(message)) = told.ask(said) else { panic!("no failure") };
            assert!(message.contains(expected), "{message}");
        }
        drop(told);
        let Err(Failure::Failed(message)) = shell("exit").map(|_| ()) else { panic!("started") };
        assert!(message.contains("has ended"), "{message}");
    }
}
