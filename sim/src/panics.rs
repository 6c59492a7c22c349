//! Panics of simulated processes are findings, not ends of this one: they are caught, and said in the report.

use std::any::Any;
use std::cell::RefCell;

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
    static QUIET: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Keeps the place of panics on this thread instead of printing them, for as long as worlds run on it.
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

/// What a panic said, and where.
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
