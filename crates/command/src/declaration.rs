//! The declaration of a program's flags as JSON, so that another program can write its completions and manual pages.
//!
//! `farpool sql` is the program `farpool-sql`. It prints its declaration, and `farpool` writes its pages as those of a
//! subcommand. Only what a reader sees is kept, not how values are checked.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command};
use serde_json::{Value, json};

/// Returns the declaration of a command and of its subcommands, without what is hidden.
pub fn to_json(command: &Command) -> Value {
    let argument = |arg: &Arg| {
        let values: Vec<String> =
            arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        let defaults: Vec<String> =
            arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
        let names = arg.get_value_names().unwrap_or_default();
        json!({
            "id": arg.get_id().as_str(), "long": arg.get_long(), "short": arg.get_short(),
            "help": arg.get_help().map(ToString::to_string), "heading": arg.get_help_heading(),
            "takes_value": arg.get_action().takes_values(),
            "is_list": matches!(arg.get_action(), ArgAction::Append),
            "value_name": names.first().map(ToString::to_string),
            "values": values, "defaults": defaults,
        })
    };
    // `clap` adds --help and --version to each command by itself. Global flags are the same in all programs.
    let is_shown = |arg: &&Arg| {
        let is_everywhere = ["help", "version"].contains(&arg.get_id().as_str()) || arg.is_global_set();
        !arg.is_hide_set() && !is_everywhere
    };
    let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help");
    json!({
        "about": command.get_about().map(ToString::to_string),
        "after_help": command.get_after_help().map(ToString::to_string),
        "arguments": command.get_arguments().filter(is_shown).map(argument).collect::<Vec<_>>(),
        "subcommands": inner.map(|inner| json!([inner.get_name(), to_json(inner)])).collect::<Vec<_>>(),
    })
}

/// Makes a command of this name from what [`to_json`] returned. `None` if it is something else.
pub fn of_json(name: &str, value: &Value) -> Option<Command> {
    // `clap` keeps texts for as long as the process lives, which ends when it has written its pages.
    let text = |value: &Value| -> Option<&'static str> { Some(value.as_str()?.to_owned().leak()) };
    let texts = |value: &Value| -> Option<Vec<&'static str>> { value.as_array()?.iter().map(text).collect() };
    let mut command = Command::new(&*name.to_owned().leak());
    if let Some(about) = text(&value["about"]) {
        command = command.about(about);
    }
    if let Some(after) = text(&value["after_help"]) {
        command = command.after_help(after);
    }
    for one in value["arguments"].as_array()? {
        let takes_value = one["takes_value"].as_bool()?;
        let action = match (takes_value, one["is_list"].as_bool()?) {
            (true, true) => ArgAction::Append,
            (true, false) => ArgAction::Set,
            (false, _) => ArgAction::SetTrue,
        };
        let mut arg = Arg::new(text(&one["id"])?).action(action);
        if let Some(long) = text(&one["long"]) {
            arg = arg.long(long);
        }
        if let Some(short) = text(&one["short"]) {
            arg = arg.short(short.chars().next()?);
        }
        if let Some(help) = text(&one["help"]) {
            arg = arg.help(help);
        }
        if let Some(heading) = text(&one["heading"]) {
            arg = arg.help_heading(heading);
        }
        if takes_value {
            if let Some(name) = text(&one["value_name"]) {
                arg = arg.value_name(name);
            }
            let values = texts(&one["values"])?;
            if !values.is_empty() {
                arg = arg.value_parser(PossibleValuesParser::new(values));
            }
            arg = arg.default_values(texts(&one["defaults"])?);
        }
        command = command.arg(arg);
    }
    for one in value["subcommands"].as_array()? {
        command = command.subcommand(of_json(one[0].as_str()?, &one[1])?);
    }
    Some(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_of_its_json_is_the_same_for_a_reader() {
        let worker = Command::new("worker")
            .about("Works")
            .arg(Arg::new("near").long("near").action(ArgAction::Append));
        let format =
            Arg::new("format").long("format").short('f').value_name("HOW").value_parser(["csv", "json"]);
        let command = Command::new("sql")
            .about("Queries")
            .arg(format.default_value("csv").help("Format of the rows"))
            .arg(Arg::new("quiet").long("quiet").action(ArgAction::SetTrue))
            .arg(Arg::new("hidden").long("hidden").hide(true))
            .subcommand(worker)
            .subcommand(Command::new("secret").hide(true));
        let json = to_json(&command);
        let mut again = of_json("sql", &json).expect("a command");
        assert_eq!(to_json(&again), json);
        again.build();
        let help = again.render_help().to_string();
        for part in
            ["Queries", "-f, --format <HOW>", "[default: csv]", "[possible values: csv, json]", "worker"]
        {
            assert!(help.contains(part), "{help}");
        }
        assert!(!help.contains("hidden") && !help.contains("secret"), "{help}");
        assert!(of_json("sql", &json!({ "arguments": 1 })).is_none());
    }
}
