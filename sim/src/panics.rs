//! Panics of simulated processes. They are findings: they are caught and become part of the report, and do not end
//! the simulator.

use std::any::Any;
use std::cell::RefCell;

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
    static QUIET: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Records the location of panics on this thread instead of printing them, while `quiet` is true.
pub(crate) fn quiet(quiet: bool) {
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if QUIET.get() {
                LAST.set(info.location().map(ToString::to_string));
            } else {
                print(info);
            }
        }));
    });
    QUIET.set(quiet);
}

/// Returns the message of a panic, and its location.
pub(crate) fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "something that is no text".to_owned());
    match LAST.take() {
        Some(place) => format!("{text} ({place})"),
        None => text,
    }
}
