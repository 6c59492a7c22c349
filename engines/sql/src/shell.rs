//! Interactive shell: reads statements, and commands for itself, from a terminal.

use crate::Runner;
use datafusion::sql::sqlparser::keywords::ALL_KEYWORDS;
use farpool_command::exit::{self, Failure};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{Context, Editor, Helper};
use std::path::PathBuf;
use tokio::signal::unix::{SignalKind, signal};

const FIRST: &str = "farpool> ";
const NEXT: &str = "    ...> ";
const HELP: &str = "\
Statements end with a semicolon. Commands stand on a line of their own:
  \\d             list tables                   also .tables
  \\d NAME        show the columns of a table   also .schema NAME
  \\timing        switch the line after each statement (rows, time, bytes transferred) on or off
  \\?             show this list                also \\h, help, .help
  \\q             quit                          also quit, exit, Ctrl-D
Ctrl-C cancels a query. Tab completes keywords and names of tables.
EXPLAIN ANALYZE SELECT .. shows where a query ran; SET farpool.placement = 'ship' decides it.";

/// Command to the shell itself.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Command {
    Help,
    Quit,
    Tables,
    Columns(String),
    /// Shows the line after each statement (`Some(true)`), hides it, or does the opposite of now (`None`).
    Timing(Option<bool>),
}

impl Command {
    /// Parses the first line of an input. Returns `None` if it is SQL.
    ///
    /// Knows the names that psql, DuckDB and SQLite give these commands, because people type them by habit.
    fn parse(line: &str) -> Result<Option<Command>, Failure> {
        let line = line.trim().trim_end_matches(';').trim_end();
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { return Ok(None) };
        let rest: Vec<&str> = words.collect();
        let command = match (name.to_ascii_lowercase().as_str(), &rest[..]) {
            ("\\?" | "\\h" | "\\help" | "?" | "help" | ".help", []) => Command::Help,
            ("\\q" | "quit" | "exit" | ".quit" | ".exit", []) => Command::Quit,
            ("\\d" | "\\dt" | ".tables", []) => Command::Tables,
            ("\\d" | ".schema", [table]) => Command::Columns((*table).to_owned()),
            ("\\timing" | ".timer", []) => Command::Timing(None),
            ("\\timing" | ".timer", [state]) => match state.to_ascii_lowercase().as_str() {
                "on" => Command::Timing(Some(true)),
                "off" => Command::Timing(Some(false)),
                _ => return Err(Failure::Usage(format!("{name} {state}: on or off is needed"))),
            },
            // A statement may begin with a number such as .5, but not with a dot and a letter.
            (other, _)
                if other.starts_with('\\') || other.strip_prefix('.').is_some_and(starts_with_letter) =>
            {
                return Err(Failure::Usage(format!("{line}: not a command of this shell; \\? lists them")));
            }
            _ => return Ok(None),
        };
        Ok(Some(command))
    }
}

fn starts_with_letter(text: &str) -> bool {
    text.starts_with(|letter: char| letter.is_ascii_alphabetic())
}

/// Completes keywords of SQL and names of tables.
struct Names {
    /// Names of the tables, as of the last statement.
    tables: Vec<String>,
}

impl Completer for Names {
    type Candidate = String;

    fn complete(&self, line: &str, end: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..end];
        let begin = typed
            .rfind(|letter: char| !letter.is_alphanumeric() && letter != '_')
            .map_or(0, |at| at + typed[at..].chars().next().map_or(1, char::len_utf8));
        Ok((begin, self.beginning_with(&typed[begin..])))
    }
}

impl Names {
    /// Returns the tables that begin with `word`, then the keywords, which take the word's case.
    fn beginning_with(&self, word: &str) -> Vec<String> {
        if word.is_empty() {
            return Vec::new();
        }
        let mut found: Vec<String> =
            self.tables.iter().filter(|table| table.starts_with(word)).cloned().collect();
        let upper = word.to_ascii_uppercase();
        let keywords = ALL_KEYWORDS.iter().filter(|keyword| keyword.starts_with(&upper));
        found.extend(keywords.map(|keyword| match word.starts_with(|c: char| c.is_ascii_lowercase()) {
            true => keyword.to_ascii_lowercase(),
            false => (*keyword).to_owned(),
        }));
        found
    }
}

impl Helper for Names {}
impl Highlighter for Names {}
impl Hinter for Names {
    type Hint = String;
}
impl Validator for Names {}

/// Returns the file of the statements of earlier shells, as XDG has it; `None` without a home.
fn history() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    Some(state.or_else(home)?.join("farpool/sql_history"))
}

/// Reads and runs statements until the end of the input or `\q`. Failures are reported, and the shell continues.
pub(crate) async fn run(runner: &mut Runner) -> Result<(), Failure> {
    // Catches Ctrl-C before the first statement waits for it, and before the editor has handlers of its own: once it
    // has read a line, it restores the handlers that it found. Nothing removes this one.
    drop(signal(SignalKind::interrupt()).map_err(Failure::failed)?);
    let mut editor: Editor<Names, DefaultHistory> = Editor::new().map_err(Failure::failed)?;
    editor.set_helper(Some(Names { tables: runner.tables() }));
    let history = history();
    if let Some(file) = &history {
        // The first shell finds no file. One that cannot be read is no reason to refuse statements.
        let _ = editor.load_history(file);
    }
    eprintln!(
        "Statements end with a semicolon. \\? lists commands, \\q or Ctrl-D quits, Ctrl-C cancels a query."
    );
    let outcome = read_and_run(&mut editor, runner).await;
    if let Some(file) = &history {
        let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        if let Err(error) = folder.map_err(Into::into).and_then(|()| editor.save_history(file)) {
            eprintln!("farpool: the history was not saved in {}: {error}", file.display());
        }
    }
    outcome
}

async fn read_and_run(
    editor: &mut Editor<Names, DefaultHistory>,
    runner: &mut Runner,
) -> Result<(), Failure> {
    let mut text = String::new();
    loop {
        let line = match editor.readline(if text.is_empty() { FIRST } else { NEXT }) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                text.clear();
                continue;
            }
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(Failure::failed(error)),
        };
        if text.is_empty() {
            let command = match Command::parse(&line) {
                Ok(command) => command,
                Err(failure) => {
                    exit::report(&failure, &runner.origins);
                    continue;
                }
            };
            if command.is_some() {
                let _ = editor.add_history_entry(&line);
            }
            match command {
                Some(Command::Quit) => return Ok(()),
                Some(Command::Help) => eprintln!("{HELP}"),
                Some(Command::Timing(state)) => {
                    let state = state.unwrap_or(!runner.reports);
                    runner.reports = state;
                    eprintln!("Timing is {}.", if state { "on" } else { "off" });
                }
                Some(Command::Tables) => run_statements(runner, "SHOW TABLES").await?,
                Some(Command::Columns(table)) => {
                    run_statements(runner, &format!("DESCRIBE {table}")).await?;
                }
                None => text.push_str(line.trim_start()),
            }
        } else {
            text.push('\n');
            text.push_str(&line);
        }
        if !text.trim_end().ends_with(';') {
            continue;
        }
        let statements = std::mem::take(&mut text);
        let _ = editor.add_history_entry(&statements);
        run_statements(runner, &statements).await?;
        if let Some(names) = editor.helper_mut() {
            names.tables = runner.tables();
        }
    }
}

/// Runs statements until they have ended or Ctrl-C. Fails only if nobody reads the output any more.
async fn run_statements(runner: &mut Runner, statements: &str) -> Result<(), Failure> {
    let outcome = tokio::select! {
        outcome = runner.statements(statements) => outcome,
        _ = tokio::signal::ctrl_c() => Err(Failure::failed("interrupted")),
    };
    match outcome {
        Err(failure @ Failure::NobodyReads) => return Err(failure),
        Err(failure) => {
            exit::report(&failure, &runner.origins);
        }
        Ok(()) => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Option<Command>, String> {
        Command::parse(line).map_err(|failure| failure.to_string())
    }

    #[test]
    fn habits_of_psql_duckdb_and_sqlite_are_commands() {
        for line in ["\\?", "\\h", "help", "HELP", ".help", "help;", "  ?  "] {
            assert_eq!(parsed(line), Ok(Some(Command::Help)), "{line}");
        }
        for line in ["\\q", "quit", "exit", "exit;", ".quit", ".exit"] {
            assert_eq!(parsed(line), Ok(Some(Command::Quit)), "{line}");
        }
        for line in ["\\d", "\\dt", ".tables", "\\d;"] {
            assert_eq!(parsed(line), Ok(Some(Command::Tables)), "{line}");
        }
        for line in ["\\d lineitem", ".schema lineitem", "\\d  lineitem;"] {
            assert_eq!(parsed(line), Ok(Some(Command::Columns("lineitem".into()))), "{line}");
        }
        for (line, state) in [("\\timing", None), ("\\timing ON", Some(true)), (".timer off", Some(false))] {
            assert_eq!(parsed(line), Ok(Some(Command::Timing(state))), "{line}");
        }
    }

    #[test]
    fn sql_is_no_command() {
        for line in ["", "SELECT 1;", "help me", "exit()", ".5", "  select", "-- help", "show tables;"] {
            assert_eq!(parsed(line), Ok(None), "{line}");
        }
    }

    #[test]
    fn unknown_command_is_refused_at_once() {
        for line in ["\\x", ".mode csv", "\\timing soon", "\\d a b"] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }

    #[test]
    fn words_are_completed_to_tables_and_keywords() {
        let names = Names { tables: vec!["lineitem".into(), "supplier".into()] };
        assert_eq!(names.beginning_with("linei"), ["lineitem"]);
        assert_eq!(names.beginning_with(""), Vec::<String>::new());
        let found = names.beginning_with("su");
        assert_eq!(found[0], "supplier");
        assert!(found.contains(&"substring".to_owned()), "{found:?}");
        assert!(names.beginning_with("SELEC").contains(&"SELECT".to_owned()));
        assert_eq!(names.beginning_with("grüß"), Vec::<String>::new());
    }
}
