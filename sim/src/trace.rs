//! Trace of a run: a hash of all events in order, and the last events for the report.

use std::collections::VecDeque;

/// Number of events kept for a report.
const LAST: usize = 50;

/// Event of a run. It becomes text only when it is printed.
#[derive(Clone, Debug)]
pub(crate) struct Happened {
    pub(crate) at: u64,
    pub(crate) who: u32,
    pub(crate) what: &'static str,
    pub(crate) numbers: [u64; 3],
    /// Details that numbers cannot express. `None` for frequent events, which have none.
    pub(crate) text: Option<Box<str>>,
}

#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    count: u64,
    last: VecDeque<Happened>,
    is_printed: bool,
}

impl Trace {
    pub(crate) fn new() -> Trace {
        let last = VecDeque::with_capacity(LAST);
        Trace { hash: 0xcbf2_9ce4_8422_2325, count: 0, last, is_printed: false }
    }

    /// Makes a trace that prints everything as it happens.
    pub(crate) fn printed() -> Trace {
        Trace { is_printed: true, ..Trace::new() }
    }

    /// Adds a word to the hash, by FNV-1a over words: it is cheap, and tells two runs apart.
    fn mix(&mut self, word: u64) {
        self.hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        self.hash ^= self.hash >> 29;
    }

    pub(crate) fn push(&mut self, happened: Happened, name: impl FnOnce() -> String) {
        self.count += 1;
        self.mix(happened.at);
        self.mix(u64::from(happened.who) ^ (happened.what.len() as u64) << 32);
        for byte in happened.what.as_bytes().iter().take(8) {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        for number in happened.numbers {
            self.mix(number);
        }
        for byte in happened.text.iter().flat_map(|text| text.bytes()) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        if self.is_printed {
            println!("{}", words(&happened, &name()));
        }
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(happened);
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn last(&self) -> impl Iterator<Item = &Happened> {
        self.last.iter()
    }
}

/// Formats an event as a line of a report.
pub(crate) fn words(happened: &Happened, name: &str) -> String {
    let [a, b, c] = happened.numbers;
    let seconds = happened.at as f64 / 1e9;
    let text = happened.text.as_deref().unwrap_or("");
    format!("{seconds:14.6} s  {name:<12} {:<24} {a:>6} {b:>8} {c:>8}  {text}", happened.what)
}
