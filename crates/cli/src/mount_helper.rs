//! `mount.farpool`: the program that mount(8) runs for file systems of the type `farpool`, and so for those of
//! fstab(5). It is this program by another name.
//!
//! The idea: options of the mount are the flags of `farpool mount`, so there is one list of them. The helper starts
//! that command, waits until the directory is mounted, and ends; the command goes on serving the mount.

use crate::Cli;
use clap::{ArgAction, CommandFactory};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Name by which this program is the helper.
const NAME: &str = "mount.farpool";
/// Source of a scratch mount, and of a cached one with a colon and the directory after it. The kernel lists the same
/// names, by which `mount --all` knows what is mounted already.
const SOURCE: &str = "farpool";
/// Exit codes of helpers (mount(8)).
const INVALID: u8 = 1;
const FAILED: u8 = 32;
/// Options that mount(8) and systemd read themselves, and those that hold for each of our mounts.
const OF_MOUNT: [&str; 20] = [
    "_netdev", "async", "atime", "auto", "defaults", "dev", "exec", "group", "noatime", "noauto", "nodev",
    "nofail", "nosuid", "nouser", "owner", "relatime", "rw", "suid", "user", "users",
];
/// Option with the file to which the mounted command logs. Without it, the log goes to the journal if there is one.
const LOG: &str = "log";
/// Where the journal takes lines from programs (systemd-cat(1)).
const JOURNAL: &str = "/run/systemd/journal/stdout";

/// Arguments as mount(8) gives them: `mount.farpool SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    source: String,
    at: String,
    options: Vec<String>,
    /// True if unknown options are ignored (`-s`).
    is_sloppy: bool,
    /// True if nothing is to be mounted (`-f`).
    is_fake: bool,
}

/// Runs the helper if this program was called by its name.
pub(crate) fn run_if_called() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    let called = args.next().map(PathBuf::from)?;
    if called.file_name() != Some(OsStr::new(NAME)) {
        return None;
    }
    let outcome = args_as_text(args).and_then(|args| asked(&args)).and_then(|asked| mount(&asked));
    Some(outcome.map_or_else(
        |(code, error)| {
            eprintln!("{NAME}: {}", farpool::shown(&error));
            ExitCode::from(code)
        },
        |()| ExitCode::SUCCESS,
    ))
}

type Wrong = (u8, String);

fn invalid(what: String) -> Wrong {
    (INVALID, what)
}

fn args_as_text(args: impl Iterator<Item = OsString>) -> Result<Vec<String>, Wrong> {
    args.map(|arg| arg.into_string().map_err(|arg| invalid(format!("{} is not UTF-8", arg.display()))))
        .collect()
}

fn asked(args: &[String]) -> Result<Asked, Wrong> {
    let mut asked = Asked::default();
    let mut places = Vec::new();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let mut value = || rest.next().ok_or_else(|| invalid(format!("{arg} needs a value")));
        match arg.as_str() {
            "-o" => asked.options.extend(split(value()?)?),
            "-t" | "-N" => drop(value()?),
            flags if flags.len() > 1 && flags.starts_with('-') => {
                for flag in flags.chars().skip(1) {
                    match flag {
                        's' => asked.is_sloppy = true,
                        'f' => asked.is_fake = true,
                        'n' | 'v' => {}
                        _ => {
                            return Err(invalid(format!(
                                "{flags}: -s, -f, -n, -v, -o, -t and -N are permitted"
                            )));
                        }
                    }
                }
            }
            place => places.push(place.to_owned()),
        }
    }
    let count = places.len();
    let [source, at] = <[String; 2]>::try_from(places).map_err(|_| {
        invalid(format!("{count} names instead of 2; usage: {NAME} {SOURCE}[:DIR] MOUNTPOINT [-o OPTIONS]"))
    })?;
    Ok(Asked { source, at, ..asked })
}

/// Splits options at commas. Commas in double quotes do not count: a pool of several brokers has some.
fn split(options: &str) -> Result<Vec<String>, Wrong> {
    let (mut found, mut option, mut is_quoted) = (Vec::new(), String::new(), false);
    for letter in options.chars() {
        match letter {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => found.push(std::mem::take(&mut option)),
            _ => option.push(letter),
        }
    }
    if is_quoted {
        return Err(invalid(format!("-o {options}: a quotation mark is not closed")));
    }
    found.push(option);
    found.retain(|option| !option.is_empty());
    Ok(found)
}

/// Translates what was asked to arguments of `farpool`, and the file of the log if an option names one.
fn command(asked: &Asked) -> Result<(Vec<String>, Option<String>), Wrong> {
    let (kind, folder) = match asked.source.strip_prefix(SOURCE) {
        Some("") => ("scratch", None),
        Some(rest) if rest.starts_with(":/") && !rest.starts_with("://") => {
            ("cache", Some(rest[1..].to_owned()))
        }
        _ => {
            return Err(invalid(format!(
                "the source {:?}: {SOURCE} for an empty directory, or {SOURCE}:/DIR for the cached directory /DIR is \
                 permitted; the pool is the option pool=",
                asked.source
            )));
        }
    };
    let mut args = vec!["mount".to_owned(), kind.to_owned()];
    args.extend(folder);
    args.push(asked.at.clone());
    let flags = flags_of(kind);
    let mut log = None;
    for option in &asked.options {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option.as_str(), None),
        };
        let name = name.replace('_', "-");
        let is_for_mount = OF_MOUNT.contains(&option.as_str()) || name.starts_with("x-") || name == "comment";
        let flag = flags.iter().find(|flag| flag.name == name);
        match (flag, value) {
            _ if is_for_mount => {}
            (_, Some(file)) if name == LOG => log = Some(file.to_owned()),
            (Some(flag), None) if !flag.takes_value => args.push(format!("--{name}")),
            (Some(flag), Some(value)) if flag.takes_value => args.push(format!("--{name}={value}")),
            (Some(flag), _) if flag.takes_value => {
                return Err(invalid(format!("the option {name} needs a value")));
            }
            (Some(_), _) => return Err(invalid(format!("the option {option}: {name} takes no value"))),
            (None, _) if asked.is_sloppy => {}
            (None, _) => {
                let names: Vec<&str> = flags.iter().map(|flag| flag.name.as_str()).collect();
                return Err(invalid(format!(
                    "the option {option} is unknown; those of a {kind} mount are {}, and {LOG}=FILE",
                    names.join(", ")
                )));
            }
        }
    }
    Ok((args, log))
}

/// Flag of `farpool mount`, which is an option of a mount as well.
struct Flag {
    name: String,
    takes_value: bool,
}

/// Returns the flags of `farpool mount scratch` or `farpool mount cache` that users see.
fn flags_of(kind: &str) -> Vec<Flag> {
    let mut all = Cli::command();
    all.build();
    let found = all.find_subcommand("mount").and_then(|mount| mount.find_subcommand(kind));
    let flags = found.into_iter().flat_map(clap::Command::get_arguments).filter(|arg| !arg.is_hide_set());
    let flags = flags.filter(|arg| !matches!(arg.get_action(), ArgAction::Help | ArgAction::Version));
    flags
        .filter_map(|arg| {
            let name = arg.get_long()?.to_owned();
            Some(Flag { name, takes_value: arg.get_action().takes_values() })
        })
        .collect()
}

/// Mounts and returns when the directory is mounted.
fn mount(asked: &Asked) -> Result<(), Wrong> {
    let (mut args, log) = command(asked)?;
    if asked.is_fake {
        return Ok(());
    }
    args.push(format!("--log-later={}", log.as_deref().unwrap_or("")));
    let failed = |error: std::io::Error| (FAILED, error.to_string());
    let own = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(own);
    // The caller may be a service of systemd, and the command that serves the mount is not a part of it.
    for variable in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
        command.env_remove(variable);
    }
    command.args(&args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Signals of the terminal at which somebody has typed `mount` are not for the command that serves the mount.
    let mut child = command.process_group(0).spawn().map_err(failed)?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(failed)?;
    }
    if line.starts_with("ready ") {
        return Ok(());
    }
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut said).map_err(failed)?;
    }
    child.wait().map_err(failed)?;
    let said = said.trim().trim_start_matches("farpool: ");
    Err((FAILED, format!("{} at {}: {said}", asked.source, asked.at)))
}

/// Opens what the mounted command writes its log to: a file, the journal, or nothing.
pub(crate) fn later_log(file: &str) -> std::io::Result<OwnedFd> {
    if !file.is_empty() {
        return Ok(File::options().append(true).create(true).open(file)?.into());
    }
    if Path::new(JOURNAL).exists() {
        let mut journal = UnixStream::connect(JOURNAL)?;
        // Identifier, unit, priority (6 is "info"), and four settings that are off.
        journal.write_all(format!("{NAME}\n\n6\n0\n0\n0\n0\n").as_bytes())?;
        return Ok(journal.into());
    }
    Ok(File::options().write(true).open("/dev/null")?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked_of(args: &[&str]) -> Result<Asked, Wrong> {
        asked(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>())
    }

    fn command_of(args: &[&str]) -> Result<String, String> {
        let told = asked_of(args).and_then(|asked| command(&asked));
        told.map(|(args, log)| format!("{} {}", args.join(" "), log.unwrap_or_default()))
            .map_err(|(_, text)| text)
    }

    #[test]
    fn options_of_a_mount_are_flags_of_the_command() {
        let told = command_of(&[
            "farpool",
            "/far",
            "-o",
            "rw,_netdev,quota=4GiB,allow_other,x-systemd.after=a.service",
        ]);
        assert_eq!(told.unwrap(), "mount scratch /far --quota=4GiB --allow-other ");
        let told = command_of(&["farpool:/srv/data", "/srv/data", "-n", "-o", "size=8GiB,log=/var/log/far"]);
        assert_eq!(told.unwrap(), "mount cache /srv/data /srv/data --size=8GiB /var/log/far");
    }

    #[test]
    fn commas_in_quotation_marks_belong_to_the_value() {
        let told = command_of(&["farpool", "/far", "-o", "pool=\"farpool://a:1,b:2\",encrypted"]);
        assert_eq!(told.unwrap(), "mount scratch /far --pool=farpool://a:1,b:2 --encrypted ");
        assert!(command_of(&["farpool", "/far", "-o", "pool=\"a,b"]).unwrap_err().contains("not closed"));
    }

    #[test]
    fn unknown_option_is_refused_with_those_that_are_permitted_unless_mount_is_sloppy() {
        let error = command_of(&["farpool", "/far", "-o", "colour=red"]).unwrap_err();
        assert!(
            error.contains("colour=red") && error.contains("quota") && error.contains("log=FILE"),
            "{error}"
        );
        assert_eq!(
            command_of(&["farpool", "/far", "-so", "colour=red"]).unwrap_err(),
            "-so: -s, -f, -n, -v, -o, -t and -N are permitted"
        );
        assert_eq!(
            command_of(&["farpool", "/far", "-s", "-o", "colour=red"]).unwrap(),
            "mount scratch /far "
        );
    }

    #[test]
    fn options_with_too_much_or_too_little_are_refused() {
        for (option, part) in
            [("quota", "needs a value"), ("encrypted=yes", "takes no value"), ("ro", "unknown")]
        {
            let error = command_of(&["farpool", "/far", "-o", option]).unwrap_err();
            assert!(error.contains(part) && error.contains(option.split('=').next().unwrap()), "{error}");
        }
    }

    #[test]
    fn source_that_is_none_of_ours_is_refused() {
        for source in ["farpool:relative", "farpool://10.0.0.1:7700", "tmpfs", ""] {
            let error = command_of(&[source, "/far"]).unwrap_err();
            assert!(error.contains("the option pool="), "{source}: {error}");
        }
        assert!(command_of(&["farpool"]).unwrap_err().contains("1 names instead of 2"));
    }
}
