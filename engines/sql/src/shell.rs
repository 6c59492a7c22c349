//! Interactive shell.

use crate::Runner;
use farpool_command::exit::{self, Failure};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

const FIRST: &str = "farpool> ";
const NEXT: &str = "    ...> ";

/// Reads and runs statements until the end of the input or `\q`. Failures are reported, and the shell continues.
pub(crate) async fn run(runner: &mut Runner) -> Result<(), Failure> {
    let mut editor = DefaultEditor::new().map_err(Failure::failed)?;
    eprintln!(
        "Statements end with a semicolon. \\d lists tables, \\q or Ctrl-D quits, Ctrl-C cancels a query."
    );
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
            match line.trim() {
                "" => continue,
                "\\q" | "quit" | "exit" => return Ok(()),
                "\\d" => text.push_str("SHOW TABLES;"),
                _ => text.push_str(&line),
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
        let outcome = tokio::select! {
            outcome = runner.statements(&statements) => outcome,
            _ = tokio::signal::ctrl_c() => Err(Failure::failed("interrupted")),
        };
        match outcome {
            Ok(()) => {}
            Err(failure @ Failure::NobodyReads) => return Err(failure),
            Err(failure) => {
                exit::report(&failure, &runner.origins);
            }
        }
    }
}
