//! Error of a call that failed: how it ended, with the names that the module gives its functions.

use crate::{Ended, Function};
use farpool_files::{Error, ErrorKind};
use farpool_functions::names::Names;
use farpool_wire::control::{Called, FunctionFrame, Outcome};

pub(crate) fn stopped(function: &Function, called: &Called, at: &str) -> Error {
    let names = Names::of_module(function.bytes());
    let frame = |frame: &FunctionFrame| (names.name(frame.function), frame.offset);
    let frames = called.frames.iter().map(frame).collect();
    let ended = Ended { outcome: called.outcome, detail: called.detail, frames };
    let message = format!("function {:?}{at}: {ended}", function.entry());
    let kind = match ended.outcome {
        Outcome::Revoked | Outcome::NotSupplied => ErrorKind::Lost,
        _ => ErrorKind::Stopped,
    };
    Error::ended(kind, message, ended)
}
