//! Settings of the real command: the file, the environment and the command line, and what is said about mistakes in
//! them.

use crate::processes::{Process, binary};
use crate::programs::output;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A command without settings of the machine that the test runs on.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(args).env("FARPOOL_CONFIG", "/dev/null");
    command
}

/// Returns the exit code, the standard output and the standard error of a command.
fn said(command: &mut Command) -> (Option<i32>, String, String) {
    let output = output(command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Asserts that a command fails as a wrong use does, and that its message has all these parts.
fn refused(command: &mut Command, parts: &[&str]) {
    let (code, _, error) = said(command);
    assert_eq!(code, Some(2), "{command:?} said {error}");
    for part in parts {
        assert!(error.contains(part), "{command:?} said {error:?}, which lacks {part:?}");
    }
}

/// Writes a settings file and returns its path.
fn file(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("farpool.toml");
    std::fs::write(&path, text).expect("written");
    path
}

#[test]
fn pool_runs_by_a_settings_file_and_a_variable_says_where_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let text =
        "[broker]\nlisten = '127.0.0.1:0'\n[node]\nname = 'of-file'\nmemory = '64MiB'\nno-reserve = true\n";
    let path = file(folder.path(), text);
    let broker = Process::begin(command(&["broker"]).env("FARPOOL_CONFIG", &path));
    let pool = broker.ready.clone();
    let node = Process::begin(
        command(&["node", "--config"])
            .arg(&path)
            .env("FARPOOL_NODE_BROKER", &pool)
            .env("FARPOOL_NODE_NO_PREFAULT", "true"),
    );
    assert!(node.ready.starts_with("of-file "), "{}", node.ready);
    let (code, status, error) =
        said(command(&["status"]).envs([("FARPOOL_POOL", pool.as_str()), ("FARPOOL_STATUS_JSON", "true")]));
    assert_eq!(code, Some(0), "{error}");
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status["nodes"][0]["name"], "of-file", "{status}");
    let (_, text, _) = said(command(&["status", "--pool", &pool]).env("FARPOOL_STATUS_JSON", "false"));
    assert!(text.contains("of-file") && !text.starts_with('{'), "{text}");
}

#[test]
fn unknown_key_is_refused_with_its_line_and_what_was_probably_meant() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = file(folder.path(), "[node]\nname = 'n'\nregion_size = '1MiB'\n");
    let shown = format!("{}, line 3", path.display());
    refused(command(&["node", "--config"]).arg(&path), &[&shown, "region_size", "did you mean region-size?"]);
    // It does not concern a broker.
    let path = file(folder.path(), "[broker]\nlisten = '127.0.0.1:0'\n[node]\nregion_size = '1MiB'\n");
    drop(Process::begin(command(&["broker", "--config"]).arg(&path)));
    let path = file(folder.path(), "[nod]\nname = 'n'\n");
    refused(command(&["broker", "--config"]).arg(&path), &["[nod]", "line 1", "did you mean node?"]);
}

#[test]
fn file_that_cannot_be_read_is_refused_with_its_path_and_the_cure() {
    let folder = tempfile::tempdir().expect("a folder");
    let shown = folder.path().display().to_string();
    refused(&mut command(&["broker", "--config", &shown]), &[&shown, "cannot be read", "--config"]);
    let missing = folder.path().join("none.toml").display().to_string();
    refused(command(&["broker"]).env("FARPOOL_CONFIG", &missing), &[&missing, "cannot be read"]);
    refused(&mut command(&["broker", "--config", "/dev/zero"]), &["/dev/zero", "larger than 1048576 bytes"]);
    let path = file(folder.path(), "");
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&path, everybody).expect("permitted");
    refused(command(&["broker", "--config"]).arg(&path), &["everybody may write", "chmod"]);
}

#[test]
fn wrong_value_is_refused_with_its_origin() {
    let folder = tempfile::tempdir().expect("a folder");
    refused(
        command(&["node"]).envs([("FARPOOL_NODE_MEMORY", "4G"), ("FARPOOL_NODE_FIRM_SHARE", "101")]),
        &["FARPOOL_NODE_MEMORY", "\"4G\" is not a size", "FARPOOL_NODE_FIRM_SHARE", "0..=100"],
    );
    let path = file(folder.path(), "[broker]\nttl = 5\n");
    refused(command(&["broker", "--config"]).arg(&path), &["line 2", "ttl", "\"5\" is not a time", "250ms"]);
    let path = file(folder.path(), "[broker\n");
    refused(command(&["broker", "--config"]).arg(&path), &["line 1"]);
}

#[test]
fn error_about_a_value_says_where_the_value_comes_from() {
    let folder = tempfile::tempdir().expect("a folder");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let path = file(folder.path(), &format!("[broker]\nlisten = '{address}'\n"));
    let origin = format!("--listen {address} comes from {}, line 2", path.display());
    refused(command(&["broker", "--config"]).arg(&path), &["in use", &origin]);
    refused(
        command(&["status"]).env("FARPOOL_POOL", format!("farpool://{address},x")),
        &[&format!("--pool farpool://{address},x comes from FARPOOL_POOL")],
    );
    refused(
        command(&["status", "--tenant", "x"]).envs([("FARPOOL_CERTS", "folder"), ("FARPOOL_TLS_CA", "file")]),
        &["cannot be used with", "comes from FARPOOL_CERTS", "comes from FARPOOL_TLS_CA"],
    );
}

#[test]
fn check_prints_every_mistake_and_show_prints_values_with_their_origins() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = file(folder.path(), "[broker]\nttl = 5\ngrce = '1s'\n[mount.scratch]\nquota = '1G'\n");
    let config = path.display().to_string();
    refused(
        command(&["config", "check", "--config", &config]).env("FARPOOL_NODE_MEMRY", "1GiB"),
        &["line 2", "line 3", "did you mean grace?", "line 5", "did you mean FARPOOL_NODE_MEMORY?"],
    );
    let (code, json, _) = said(&mut command(&["config", "check", "--json", "--config", &config]));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((code, json["mistakes"].as_array().map(Vec::len)), (Some(2), Some(3)), "{json}");

    // That part belongs to another program, which need not be installed.
    let path = file(folder.path(), "[sql]\nlines = 7\n");
    let (_, _, error) = said(command(&["config", "check", "--config"]).arg(&path));
    let told = ["the key lines is unknown in [sql]", "[sql] was not checked: farpool-sql is not installed"];
    assert_eq!(told.iter().filter(|part| error.contains(*part)).count(), 1, "{error}");

    let path = file(folder.path(), "pool = 'farpool://10.0.0.1:7700'\n[broker]\nttl = '7s'\n");
    let mut show = command(&["config", "show", "broker", "--json", "--config"]);
    let (code, json, error) = said(show.arg(&path).env("FARPOOL_BROKER_GRACE", "1s"));
    assert_eq!(code, Some(0), "{error}");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let found = |key: &str| {
        let settings = json["settings"].as_array().expect("settings");
        let one = settings.iter().find(|one| one["key"] == key).unwrap_or_else(|| panic!("{key}: {json}"));
        (one["value"].clone(), one["origin"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(found("ttl"), ("7s".into(), format!("{}, line 3", path.display())));
    assert_eq!(found("grace"), ("1s".into(), "FARPOOL_BROKER_GRACE".to_owned()));
    assert_eq!(found("failover-timeout"), ("3s".into(), "default".to_owned()));
    let (_, text, _) = said(command(&["config", "show", "--config"]).arg(&path));
    assert!(text.contains("farpool://10.0.0.1:7700") && !text.contains("failover"), "{text}");
    refused(&mut command(&["config", "show", "brokr"]), &["\"brokr\"", "did you mean broker?"]);
}

#[test]
fn version_names_the_commit_and_the_protocol() {
    let (code, json, error) = said(&mut command(&["version", "--json"]));
    assert_eq!(code, Some(0), "{error}");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let commit = json["commit"].as_str().expect("a commit");
    assert!(commit == "unknown" || commit.len() == 40, "{json}");
    assert!(json["protocol_min"].as_u64() <= json["protocol_max"].as_u64(), "{json}");
    assert!(json["target"].as_str().is_some_and(|target| target.contains("linux")), "{json}");
}

#[test]
fn completions_and_manual_pages_know_all_subcommands() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, error) = said(&mut command(&["completions", shell]));
        assert_eq!(code, Some(0), "{error}");
        for word in ["region-size", "scratch", "completions"] {
            assert!(script.contains(word), "{shell} lacks {word}");
        }
    }
    if Path::new(&binary()).with_file_name("farpool-sql").is_file() {
        let (_, script, _) = said(&mut command(&["completions", "bash"]));
        assert!(
            script.contains("insecure-workers") && script.contains("farpool__subcmd__sql__subcmd__worker")
        );
    }
    let folder = tempfile::tempdir().expect("a folder");
    let inner = folder.path().join("man/man1");
    let (code, _, error) = said(command(&["man"]).arg(&inner));
    assert_eq!(code, Some(0), "{error}");
    for (page, part) in [
        ("farpool.1", "SUBCOMMANDS"),
        ("farpool-node.1", "region\\-size"),
        ("farpool-mount-scratch.1", "quota"),
    ] {
        let text = std::fs::read_to_string(inner.join(page)).expect(page);
        assert!(text.contains(part), "{page} lacks {part}: {text}");
    }
    let taken = folder.path().join("file");
    std::fs::write(&taken, "").expect("written");
    refused(command(&["man"]).arg(&taken), &[&taken.display().to_string()]);
}
