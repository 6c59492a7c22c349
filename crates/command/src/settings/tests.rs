//! Tests of settings on a small program, without files and without the environment of this process.

use super::declared::Scope;
use super::file::File;
use super::merged::{Asked, Sources, Variables};
use super::report;
use clap::{CommandFactory, Parser};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Parser)]
#[command(name = "program")]
struct Program {
    #[arg(long, global = true)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Sub,
}

#[derive(Debug, clap::Subcommand)]
enum Sub {
    Node(Node),
    #[command(subcommand)]
    Mount(Mount),
    /// A subcommand without settings.
    Bare,
}

#[derive(Debug, clap::Subcommand)]
enum Mount {
    Scratch(Node),
}

#[derive(Debug, clap::Args)]
struct Node {
    folder: Option<String>,
    #[arg(long, required = true, value_parser = crate::units::bytes)]
    memory: u64,
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=100), default_value = "100")]
    share: u32,
    #[arg(long)]
    no_shm: bool,
    #[arg(long)]
    group: Vec<String>,
    #[arg(long, conflicts_with = "plaintext", help_heading = "Connection")]
    certs: Option<String>,
    #[arg(long, requires = "certs", help_heading = "Connection")]
    tenant: Option<String>,
    #[arg(long, help_heading = "Connection")]
    plaintext: bool,
}

const SCOPE: Scope = Scope { table: &[], without: &["bare"], elsewhere: &["sql"] };

fn variables(pairs: &[(&str, &str)]) -> Variables {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), value.into())).collect()
}

/// Parses arguments that are completed from variables and the text of a file. Returns all mistakes, or the error of the
/// parser.
fn parse(arguments: &str, pairs: &[(&str, &str)], file: &str) -> Result<Program, Vec<String>> {
    let mut root = Program::command();
    root.build();
    let arguments: Vec<OsString> = arguments.split_whitespace().map(OsString::from).collect();
    let (variables, file) = (variables(pairs), File::parse("f.toml".as_ref(), file));
    let sources = Sources { variables: &variables, file: Some(&file) };
    let completed = match Asked::find(&root, Program::command(), &SCOPE, &arguments) {
        None => arguments,
        Some(asked) => match asked.complete(&arguments, sources) {
            Ok(completed) => completed.arguments,
            Err(mistakes) => return Err(mistakes.iter().map(ToString::to_string).collect()),
        },
    };
    Program::try_parse_from(completed).map_err(|error| vec![error.to_string()])
}

fn node(arguments: &str, pairs: &[(&str, &str)], file: &str) -> Node {
    match parse(arguments, pairs, file) {
        Ok(Program { command: Sub::Node(node), .. }) => node,
        Ok(Program { command: Sub::Mount(Mount::Scratch(node)), .. }) => node,
        other => panic!("{arguments}: {other:?}"),
    }
}

/// All mistakes in variables and a file, line by line.
fn mistakes(pairs: &[(&str, &str)], file: &str) -> Vec<String> {
    let mut root = Program::command();
    root.build();
    let (variables, file) = (variables(pairs), File::parse("f.toml".as_ref(), file));
    let found = report::mistakes(&root, &SCOPE, Sources { variables: &variables, file: Some(&file) });
    found.iter().map(ToString::to_string).collect()
}

fn assert_one(found: &[String], parts: &[&str]) {
    assert!(
        found.iter().any(|line| parts.iter().all(|part| line.contains(part))),
        "no line has all of {parts:?}: {found:#?}"
    );
}

#[test]
fn flag_comes_before_variable_before_file_before_default() {
    let file = "[node]\nmemory = '1MiB'\nshare = 10\n";
    let variable = [("FARPOOL_NODE_MEMORY", "2MiB")];
    assert_eq!(node("program node --memory 3MiB", &variable, file).memory, 3 << 20);
    assert_eq!(node("program node", &variable, file).memory, 2 << 20);
    assert_eq!(node("program node", &[], file).memory, 1 << 20);
    assert_eq!(node("program node", &[], file).share, 10);
    assert_eq!(node("program node --memory=3MiB", &variable, "").share, 100);
}

#[test]
fn setting_of_one_subcommand_is_not_one_of_another() {
    let file = "[node]\nmemory = 1\n[mount.scratch]\nmemory = 2\n";
    assert_eq!(node("program mount scratch", &[], file).memory, 2);
    assert_eq!(node("program mount scratch", &[("FARPOOL_MOUNT_SCRATCH_MEMORY", "3")], file).memory, 3);
    assert_eq!(node("program mount scratch", &[("FARPOOL_NODE_MEMORY", "3")], file).memory, 2);
}

#[test]
fn common_setting_stands_at_the_top_and_that_of_a_subcommand_comes_before_it() {
    let file = "certs = 'top'\n[node]\nmemory = 1\n";
    assert_eq!(node("program node", &[], file).certs.as_deref(), Some("top"));
    let own = format!("{file}certs = 'own'\n");
    assert_eq!(node("program node", &[], &own).certs.as_deref(), Some("own"));
    let common = ("FARPOOL_CERTS", "common");
    assert_eq!(node("program node", &[common], &own).certs.as_deref(), Some("common"));
    let of_node = ("FARPOOL_NODE_CERTS", "of-node");
    assert_eq!(node("program node", &[common, of_node], &own).certs.as_deref(), Some("of-node"));
}

#[test]
fn switch_is_turned_on_and_off() {
    let file = "[node]\nmemory = 1\nno-shm = true\n";
    assert!(node("program node", &[], file).no_shm);
    assert!(!node("program node", &[("FARPOOL_NODE_NO_SHM", "false")], file).no_shm);
    assert!(node("program node --memory 1", &[("FARPOOL_NODE_NO_SHM", "1")], "").no_shm);
}

#[test]
fn several_values_are_an_array_or_separated_by_semicolons() {
    let file = "[node]\nmemory = 1\ngroup = ['a b', 'c']\n";
    assert_eq!(node("program node", &[], file).group, ["a b", "c"]);
    assert_eq!(node("program node", &[("FARPOOL_NODE_GROUP", "x; y,z")], file).group, ["x", "y,z"]);
    assert_eq!(node("program node --group q", &[], file).group, ["q"]);
}

#[test]
fn arguments_behind_two_dashes_are_left_as_they_are() {
    let found = node("program node -- --share", &[("FARPOOL_NODE_MEMORY", "1")], "");
    assert_eq!((found.folder.as_deref(), found.memory), (Some("--share"), 1));
}

#[test]
fn value_that_conflicts_with_a_flag_is_left_out_and_one_of_the_same_source_is_refused() {
    let file = "certs = 'top'\n[node]\nmemory = 1\n";
    let found = node("program node --plaintext", &[], file);
    assert!(found.plaintext && found.certs.is_none());
    let found = node("program node", &[("FARPOOL_PLAINTEXT", "true")], file);
    assert!(found.plaintext && found.certs.is_none());
    let found = node("program node --certs x", &[("FARPOOL_PLAINTEXT", "true")], file);
    assert!(!found.plaintext && found.certs.as_deref() == Some("x"));
    let both = format!("plaintext = true\n{file}");
    let error = parse("program node", &[], &both).expect_err("both");
    assert_one(&error, &["--plaintext", "--certs", "cannot be used with"]);
}

#[test]
fn wrong_value_names_its_place_and_what_is_permitted() {
    let error = parse("program node", &[], "[node]\n\nmemory = '4G'\n").expect_err("4G");
    assert_one(&error, &["f.toml, line 3", "\"4G\" is not a size", "4GiB"]);
    let variables =
        [("FARPOOL_NODE_MEMORY", "4G"), ("FARPOOL_NODE_SHARE", "101"), ("FARPOOL_NODE_NO_SHM", "on")];
    let error = parse("program node", &variables, "").expect_err("three mistakes");
    assert_one(&error, &["FARPOOL_NODE_MEMORY: memory: \"4G\" is not a size"]);
    assert_one(&error, &["FARPOOL_NODE_SHARE", "101", "0..=100"]);
    assert_one(&error, &["FARPOOL_NODE_NO_SHM", "\"on\"", "true, 1, false and 0"]);
    assert_eq!(error.len(), 3);
}

#[test]
fn wrong_value_does_not_matter_where_another_comes_before_it() {
    assert_eq!(
        node("program node --memory 7", &[("FARPOOL_NODE_MEMORY", "4G")], "[node]\nmemory = true").memory,
        7
    );
}

#[test]
fn help_and_subcommands_without_settings_are_left_alone() {
    assert_one(
        &parse("program node --help", &[("FARPOOL_NODE_MEMORY", "4G")], "").expect_err("help"),
        &["Usage"],
    );
    assert!(parse("program bare", &[("FARPOOL_NODE_MEMORY", "4G")], "").is_ok());
    assert_one(&parse("program mount", &[("FARPOOL_CERTS", "x")], "").expect_err("help"), &["Usage"]);
}

#[test]
fn check_finds_every_mistake_of_all_subcommands_at_once() {
    let file = "
        certz = 'x'
        memory = 1
        [node]
        memory = true
        share = 101
        no_shm = true
        group = { a = 1 }
        when = 2026-11-26
        [mount.scrach]
        memory = 1
        [sql]
        whatever = 1
    ";
    let found = mistakes(&[("FARPOOL_NODE_SHARES", "1"), ("FARPOOL_NODE_PORT", "tcp://10.0.0.1:1")], file);
    assert_one(&found, &["line 2", "certz is unknown", "did you mean certs?"]);
    assert_one(&found, &["line 3", "memory is unknown", "[node]"]);
    assert_one(&found, &["line 5", "memory is true"]);
    assert_one(&found, &["line 6", "101", "0..=100"]);
    assert_one(&found, &["line 7", "no_shm is unknown", "did you mean no-shm?"]);
    assert_one(&found, &["line 8", "group is a table"]);
    assert_one(&found, &["line 9", "when is unknown in [node]", "permitted are certs, group, memory"]);
    assert_one(&found, &["line 10", "[mount.scrach] is unknown", "did you mean scratch?"]);
    assert_one(&found, &["FARPOOL_NODE_SHARES", "did you mean FARPOOL_NODE_SHARE?"]);
    assert_eq!(found.len(), 9, "{found:#?}");
}

#[test]
fn check_finds_what_settings_exclude_and_what_they_need() {
    let found = mistakes(&[], "certs = 'a'\nplaintext = true\n");
    assert_one(&found, &["f.toml, line 1 and f.toml, line 2", "[node]", "--plaintext", "--certs"]);
    let found = mistakes(&[("FARPOOL_TENANT", "x")], "");
    assert_one(&found, &["FARPOOL_TENANT", "--tenant", "needs --certs"]);
    assert!(mistakes(&[("FARPOOL_TENANT", "x")], "certs = 'a'\n[node]\nmemory = 1\n").is_empty());
}
