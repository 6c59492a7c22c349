//! Tests that control characters in other users' names and values are escaped wherever the command shows them, so that
//! no terminal obeys them.

use crate::processes::{Process, binary, until};
use crate::programs::{PATIENCE, output};
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use farpool::{Pool, PoolOptions, shown};
use std::process::{Command, Output};
use std::sync::Arc;

/// Name with a character that is permitted in names: U+202E reverses the direction of the text after it.
const NAME: &str = "invoice\u{202e}fdp";
const HOST: &str = "host\u{2066}b\u{200b}";
/// Name of a column with escape sequences, which are permitted in columns and values: they clear the screen and set the
/// terminal's title.
const COLUMN: &str = "sum\x1b[2J\x1b]0;title\x07\u{9b}31m\r\nok";

fn pool_with_such_names() -> (Process, Process, Pool) {
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0", "--store", "memory"]);
    let node = Process::start(&[
        "node",
        "--name",
        NAME,
        "--host-label",
        HOST,
        "--memory",
        "64MiB",
        "--region-size",
        "1MiB",
        "--broker",
        &broker.ready,
    ]);
    let pool = Pool::connect_with(&broker.ready, PoolOptions::default()).expect("a session");
    until(&pool, PATIENCE, "the node joins", |status| status.nodes.len() == 1);
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a\x1b[2J", "b\u{202e}"]));
    let batch = RecordBatch::try_from_iter([("n", numbers), (COLUMN, texts)]).expect("a batch");
    pool.put_table(NAME, batch.schema(), [batch]).expect("put");
    (broker, node, pool)
}

fn farpool(url: &str, args: &[&str]) -> Output {
    output(Command::new(binary()).args(args).args(["--pool", url]))
}

fn assert_is_shown(place: &str, text: &str) {
    let obeyed = text.chars().find(|letter| *letter != '\n' && !farpool::prints(*letter));
    assert_eq!(obeyed, None, "{place}: a terminal would obey {:?}", shown(text).to_string());
}

#[test]
fn names_columns_and_values_of_others_are_escaped_wherever_the_command_shows_them() {
    let (broker, node, pool) = pool_with_such_names();
    let missing = format!("no{NAME}");
    // Commands, with the escaped text that each must show.
    let places: [(&[&str], &str); 13] = [
        (&["status"], "invoice\\u{202e}fdp"),
        (&["status"], "host\\u{2066}b\\u{200b}"),
        (&["status", "--json"], "invoice\\u202efdp"),
        (&["table", "list"], "invoice\\u{202e}fdp"),
        (&["table", "list", "--json"], "invoice\\u202efdp"),
        (&["table", "describe", NAME], "sum\\u{1b}[2J\\u{1b}]0;title\\u{7}\\u{9b}31m\\u{d}\\u{a}ok"),
        (&["table", "describe", NAME, "--json"], "sum\\u001b[2J\\u001b]0;title\\u0007\\u009b31m\\r\\nok"),
        (&["table", "describe", &missing], "noinvoice\\u{202e}fdp"),
        (&["table", "drop", &missing], "noinvoice\\u{202e}fdp"),
        (&["fn", "rm", &missing], "noinvoice\\u{202e}fdp"),
        (&["drain", &missing], "noinvoice\\u{202e}fdp"),
        (&["table", "drop", NAME], "invoice\\u{202e}fdp"),
        (&["drain", NAME, "--timeout", "20s"], "invoice\\u{202e}fdp"),
    ];
    for (args, seen) in places {
        let output = farpool(&broker.ready, args);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).expect("text");
        assert_is_shown(&format!("{args:?}"), &text);
        assert!(text.contains(seen), "{args:?} shows {seen}: {text}");
    }
    drop((node, pool));
}

#[test]
fn names_of_others_are_escaped_in_errors_of_the_library() {
    let (_broker, _node, pool) = pool_with_such_names();
    let table = pool.table(NAME).expect("there");
    let error = |what: Result<(), farpool::Error>| what.expect_err("refused").to_string();
    let errors = [
        ("a table that is not there", error(pool.table(&format!("no{NAME}")).map(|_| ()))),
        ("a file that is not there", error(pool.open(&format!("no{NAME}")).map(|_| ()))),
        ("a column by a number that is not there", error(table.read(Some(&[7]), None).map(|_| ()))),
        ("what whoever builds files anew says", farpool::Error::not_rebuilt(COLUMN).to_string()),
    ];
    for (place, text) in errors {
        assert_is_shown(place, &text);
    }
}
