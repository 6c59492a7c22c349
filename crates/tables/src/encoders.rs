//! Encoding of row groups on several threads, while the thread that gives them reads and writes others.
//!
//! The idea: row groups are given in order, any thread encodes the next one that nobody has taken, and they are taken
//! back in order. Whoever gives them limits how many are under way, which limits the memory. Threads are started when
//! more row groups wait than are encoded, so a table of one row group has none. On a host of one thread, and if none
//! can be started, the caller encodes each row group itself.
//!
//! Invariants: what is taken depends on what was given alone, not on the threads; none of them outlives this.

use crate::encryption::TableEncryption;
use crate::layout::{EncodedGroup, GroupForm, GroupRows};
use crate::row_checksum::RowChecksum;
use farpool_files::{Error, ErrorKind};
use farpool_host::{Host, HostEvent, Task};
use farpool_lock::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Most threads that encode.
pub(crate) const THREADS_MAX: usize = 256;
/// Row groups under way for each thread, at most.
const GROUPS_AHEAD: usize = 4;
/// Bytes of all row groups under way, at most. A single one may have more.
const BYTES_AHEAD_MAX: usize = 256 << 20;
/// Time in ms after which a waiting thread looks again even if it was not woken.
const WAIT_MS: u64 = 1_000;

/// Row group to be encoded.
pub(crate) struct Given {
    pub(crate) rows: GroupRows,
    /// Encryption of its file. `None` if the table is not encrypted.
    pub(crate) encryption: Option<Arc<TableEncryption>>,
    /// Row of the file with which it begins.
    pub(crate) position: u64,
}

/// Row group that is encoded.
pub(crate) struct Taken {
    pub(crate) group: EncodedGroup,
    /// Checksum of its rows, if it was asked for.
    pub(crate) checksum: RowChecksum,
}

/// Threads that encode row groups.
pub(crate) struct GroupEncoders {
    host: Arc<dyn Host>,
    shared: Arc<Shared>,
    /// Threads to start at most; 0: the caller encodes.
    threads_max: usize,
    threads: Vec<Task>,
    /// Number of the next row group to be given.
    next: u64,
    /// Bytes of the row groups under way, in order.
    under_way: VecDeque<usize>,
}

struct Shared {
    form: GroupForm,
    is_summed: bool,
    state: Mutex<State>,
    given: HostEvent,
    encoded: HostEvent,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(u64, Given)>,
    /// Row groups that were encoded, by number; `None` if the thread of one panicked.
    encoded: BTreeMap<u64, Option<Taken>>,
    /// Memory to encode into.
    free: Vec<Vec<u8>>,
    /// True if no more row groups are wanted.
    is_over: bool,
}

/// Returns how many threads encode if `asked` are asked for; 0 asks for as many as this process may use CPUs.
///
/// Errors: it is too large.
pub(crate) fn threads_of(asked: usize) -> Result<usize, Error> {
    match asked {
        0 => Ok(std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX)),
        1..=THREADS_MAX => Ok(asked),
        _ => {
            let message = format!(
                "threads is {asked}; 1 to {THREADS_MAX} are permitted, or 0 for as many as this process may use CPUs"
            );
            Err(Error::new(ErrorKind::Invalid, message))
        }
    }
}

impl GroupEncoders {
    /// Makes encoders of row groups, with as many threads as [`threads_of`] says. With `is_summed`, they compute the
    /// checksums of rows.
    pub(crate) fn new(
        host: Arc<dyn Host>,
        threads: usize,
        form: GroupForm,
        is_summed: bool,
    ) -> GroupEncoders {
        let (given, encoded) = Default::default();
        let shared = Shared { form, is_summed, state: Mutex::default(), given, encoded };
        // A thread that would encode alone may as well be the caller's.
        let is_alone = threads <= 1 || host.is_one_thread();
        GroupEncoders {
            host,
            shared: Arc::new(shared),
            threads_max: if is_alone { 0 } else { threads },
            threads: Vec::new(),
            next: 0,
            under_way: VecDeque::new(),
        }
    }

    /// Reports whether no more row groups should be given before one was taken.
    pub(crate) fn is_full(&self) -> bool {
        let count = self.under_way.len();
        let is_large = || self.under_way.iter().sum::<usize>() >= BYTES_AHEAD_MAX;
        count >= (self.threads_max * GROUPS_AHEAD).max(1) || count > 1 && is_large()
    }

    /// Reports whether all row groups that were given have been taken.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Gives the next row group.
    pub(crate) fn give(&mut self, given: Given) {
        self.under_way.push_back(given.rows.plain_bytes);
        let left = {
            let mut state = self.shared.state.lock();
            state.waiting.push_back((self.next, given));
            state.waiting.len()
        };
        self.next += 1;
        self.shared.given.signal();
        if left > 1 && self.threads.len() < self.threads_max {
            let (shared, host) = (Arc::clone(&self.shared), Arc::clone(&self.host));
            match self.host.spawn("farpool-encode", Box::new(move || shared.run(&*host))) {
                Ok(thread) => self.threads.push(thread),
                // Those that there are go on, or the caller.
                Err(_) => self.threads_max = self.threads.len(),
            }
        }
    }

    /// Returns the next row group, if that needs no waiting for another thread. Encodes it if there is no other thread
    /// and no more row groups should be given.
    pub(crate) fn try_take(&mut self) -> Result<Option<Taken>, Error> {
        if self.threads.is_empty() && self.is_full() {
            return self.take();
        }
        let first = self.first();
        let found = self.shared.state.lock().encoded.remove(&first);
        found.map(|taken| self.taken(taken)).transpose()
    }

    /// Returns the next row group. Waits until it is encoded. `None` if all were taken.
    pub(crate) fn take(&mut self) -> Result<Option<Taken>, Error> {
        let first = self.first();
        while !self.is_idle() {
            let heard = self.shared.encoded.heard();
            let found = self.shared.state.lock().encoded.remove(&first);
            if let Some(taken) = found {
                return self.taken(taken).map(Some);
            }
            if !self.threads.is_empty() {
                self.host.wait(&self.shared.encoded, heard, self.host.now().plus_ms(WAIT_MS));
            } else if let Some(turn) = self.shared.next() {
                turn.encode();
            }
        }
        Ok(None)
    }

    /// Gives memory back, for the row groups to come.
    pub(crate) fn give_back(&self, memory: Vec<u8>) {
        self.shared.state.lock().free.push(memory);
    }

    /// Returns the number of the next row group to be taken.
    fn first(&self) -> u64 {
        self.next - self.under_way.len() as u64
    }

    fn taken(&mut self, taken: Option<Taken>) -> Result<Taken, Error> {
        self.under_way.pop_front();
        taken.ok_or_else(|| {
            Error::new(
                ErrorKind::Refused,
                "internal: a thread that encodes rows ended before they were encoded",
            )
        })
    }
}

impl Drop for GroupEncoders {
    /// Waits for the row groups that are being encoded. Others are left.
    fn drop(&mut self) {
        self.shared.end();
        self.threads.drain(..).for_each(Task::join);
    }
}

/// Row group that this thread encodes. If it panics, that is noted.
struct Turn<'s> {
    shared: &'s Shared,
    number: u64,
    given: Given,
    memory: Vec<u8>,
    taken: Option<Taken>,
}

impl Shared {
    /// Encodes row groups until no more are wanted.
    fn run(&self, host: &dyn Host) {
        loop {
            let heard = self.given.heard();
            match self.next() {
                Some(turn) => turn.encode(),
                None if self.state.lock().is_over => return,
                None => host.wait(&self.given, heard, host.now().plus_ms(WAIT_MS)),
            }
        }
    }

    /// Takes the next row group that nobody has taken to encode.
    fn next(&self) -> Option<Turn<'_>> {
        let mut state = self.state.lock();
        let (number, given) = state.waiting.pop_front()?;
        let memory = state.free.pop().unwrap_or_default();
        Some(Turn { shared: self, number, given, memory, taken: None })
    }

    fn end(&self) {
        let left = {
            let mut state = self.state.lock();
            state.is_over = true;
            std::mem::take(&mut state.waiting)
        };
        self.given.signal();
        // Dropped without the lock: what owns the memory of the batches may do anything then.
        drop(left);
    }
}

impl Turn<'_> {
    fn encode(mut self) {
        let Given { rows, encryption, position } = &self.given;
        let mut group = self.shared.form.encode(rows, std::mem::take(&mut self.memory));
        if let Some(encryption) = encryption {
            encryption.encrypt(&mut group, *position);
        }
        let mut checksum = RowChecksum::default();
        if self.shared.is_summed {
            rows.batches.iter().for_each(|batch| checksum.add(batch));
        }
        self.taken = Some(Taken { group, checksum });
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let taken = self.taken.take();
        self.shared.state.lock().encoded.insert(self.number, taken);
        self.shared.encoded.signal();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::RowGroupEncoder;
    use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use farpool_host::Machine;
    use proptest::prelude::*;

    fn batch(first: i64, rows: i64) -> RecordBatch {
        let ids = || first..first + rows;
        let columns: [(&str, ArrayRef); 2] = [
            ("id", Arc::new(Int64Array::from_iter_values(ids()))),
            ("text", Arc::new(StringArray::from_iter_values(ids().map(|id| format!("text {}", id % 100))))),
        ];
        RecordBatch::try_from_iter(columns).expect("a batch")
    }

    fn encoders(threads: usize) -> GroupEncoders {
        let form = RowGroupEncoder::new(batch(0, 1).schema(), 1 << 20).expect("a schema").form().clone();
        GroupEncoders::new(Arc::new(Machine), threads, form, true)
    }

    fn given(batch: RecordBatch) -> Given {
        let (rows, plain_bytes) = (batch.num_rows(), batch.get_array_memory_size());
        Given { rows: GroupRows { batches: vec![batch], rows, plain_bytes }, encryption: None, position: 0 }
    }

    /// Encodes row groups of so many rows. Returns their bytes, and the checksum of all rows.
    fn encoded(counts: &[i64], threads: usize) -> (Vec<Vec<u8>>, RowChecksum) {
        let mut encoders = encoders(threads);
        let (mut all, mut checksum, mut first) = (Vec::new(), RowChecksum::default(), 0);
        let mut add = |encoders: &GroupEncoders, taken: Taken| {
            checksum.merge(taken.checksum);
            all.push(taken.group.bytes.clone());
            encoders.give_back(taken.group.bytes);
        };
        for count in counts {
            encoders.give(given(batch(first, *count)));
            first += count;
            assert!(encoders.under_way.len() <= (threads * GROUPS_AHEAD).max(1), "more than permitted");
            while encoders.is_full() {
                let taken = encoders.take().expect("encoded").expect("one is under way");
                add(&encoders, taken);
            }
            while let Some(taken) = encoders.try_take().expect("encoded") {
                add(&encoders, taken);
            }
        }
        while let Some(taken) = encoders.take().expect("encoded") {
            add(&encoders, taken);
        }
        assert!(encoders.is_idle());
        (all, checksum)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_number_of_threads_gives_the_same_row_groups_in_order(
            counts in proptest::collection::vec(1..3_000i64, 0..60), threads in 2..9usize,
        ) {
            let expected = encoded(&counts, 1);
            prop_assert_eq!(expected.0.len(), counts.len());
            prop_assert!(encoded(&counts, threads) == expected);
        }
    }

    #[test]
    fn thread_that_panics_is_an_error_in_its_turn() {
        for threads in [2, 5] {
            let mut encoders = encoders(threads);
            encoders.give(given(batch(0, 1_000)));
            // It lacks a column.
            encoders.give(given(batch(0, 1_000).project(&[0]).expect("a column")));
            encoders.give(given(batch(0, 1_000)));
            assert!(encoders.take().expect("the first one").is_some());
            let error = encoders.take().err().expect("it cannot be encoded");
            assert!(error.to_string().contains("ended before they were encoded"), "{error}");
        }
    }

    #[test]
    fn row_groups_that_nobody_wants_are_let_go() {
        let whole = batch(0, 1_000);
        let mut encoders = encoders(3);
        for _ in 0..GROUPS_AHEAD {
            encoders.give(given(whole.clone()));
        }
        drop(encoders);
        let [id, text] = whole.columns() else { panic!("two columns") };
        assert_eq!((Arc::strong_count(id), Arc::strong_count(text)), (1, 1), "a thread still has its rows");
    }
}
