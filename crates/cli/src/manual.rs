//! `farpool completions` and `farpool man`: what shells and `man` know of the command, from the declaration of its
//! flags.

use crate::exit::Failure;
use crate::{Cli, Outcome, SCOPE, hand_over, settings};
use clap::CommandFactory;
use clap_complete::Shell;
use farpool_command::declaration;
use std::io::Write;
use std::path::PathBuf;

/// Print the completions of a shell.
#[derive(clap::Args)]
#[command(after_help = "Example:  farpool completions bash > /usr/share/bash-completion/completions/farpool")]
pub(crate) struct CompletionsArgs {
    /// Shell that reads the completions
    shell: Shell,
}

/// Write the manual pages of all subcommands.
#[derive(clap::Args)]
#[command(after_help = "Example:  farpool man /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Directory to write to; it is created if it does not exist
    dir: PathBuf,
}

pub(crate) fn completions(args: &CompletionsArgs, settings: &settings::Args) -> Outcome {
    // The generator panics if nobody reads its output, so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut whole(settings), "farpool", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(())
}

pub(crate) fn man(args: &ManArgs, settings: &settings::Args) -> Outcome {
    let wrong = |error: std::io::Error| Failure::Failed(format!("{}: {error}", args.dir.display()));
    std::fs::create_dir_all(&args.dir).map_err(wrong)?;
    clap_mangen::generate_to(whole(settings), &args.dir).map_err(wrong)
}

/// Returns the declaration of this program with those of the programs that it hands over to, where they are installed.
fn whole(settings: &settings::Args) -> clap::Command {
    let mut whole = Cli::command();
    for name in SCOPE.elsewhere {
        let described = hand_over::described(name, settings);
        if let Some(inner) =
            described.and_then(|described| declaration::of_json(name, &described["declaration"]))
        {
            whole = whole.mut_subcommand(name, |_| inner);
        }
    }
    whole
}
