//! Zombie that uses the library: far files that threads read and write without knowing of leases. Half of the files
//! have a copy on the local disk; operations on these must succeed although the process was stopped.

use crate::{Order, Tally};
use farpool::{
    CreateOptions, Error, ErrorKind, FarFile, FileClass, Pool, PoolOptions, Protection, ReadRange,
    TransportChoice, WriteRange,
};
use farpool_tests::canary::{Canary, UNREAD};
use farpool_tests::random::Random;
use farpool_tests::raw_session::MIB;
use farpool_transport::Transport;
use std::time::{Duration, Instant};

/// Number of files that are created before the stop. Each is used by one thread.
const FILES: u64 = 4;
const FILE_BYTES: u64 = 3 * MIB / 2;
/// Length in bytes of each file that is written after the stop.
const NEW_FILE_BYTES: u64 = MIB / 2;
/// Deadline for the first success of a new file after the stop.
const PATIENCE: Duration = Duration::from_secs(120);

struct Worker<'a> {
    order: &'a Order,
    pool: &'a Pool,
    number: u64,
    file: FarFile,
    canary: Canary,
    random: Random,
    tally: Tally,
}

/// Creates files and uses them until the process was stopped and continued. Goes on using them, and at last writes new
/// ones.
pub(crate) fn run(order: &Order) -> Tally {
    let transport = match order.transport {
        Transport::Shm => TransportChoice::Shm,
        _ => TransportChoice::Tcp,
    };
    let options = PoolOptions { transport, protection: Some(Protection::None), ..PoolOptions::default() };
    let pool = Pool::connect_with(&format!("farpool://{}", order.broker), options).expect("a session");
    let mut workers: Vec<Worker<'_>> = (0..FILES)
        .map(|number| {
            let protection = if number < FILES / 2 { Protection::None } else { Protection::Local };
            let options = CreateOptions { protection: Some(protection), ..CreateOptions::default() };
            let file = pool.create(&format!("old-{number}"), FileClass::Scratch, options).expect("created");
            let canary = Canary::new(order.seed, number, 0, FILE_BYTES as usize);
            file.write_at(0, canary.at(0, FILE_BYTES as usize)).expect("a write");
            let random = Random(order.seed ^ (number + 1) << 32);
            Worker { order, pool: &pool, number, file, canary, random, tally: Tally::default() }
        })
        .collect();
    std::thread::scope(|scope| {
        for worker in &mut workers {
            scope.spawn(|| {
                worker.work_until_stopped();
                worker.go_on();
                worker.write_anew();
            });
        }
    });
    let mut tally = Tally::default();
    for worker in workers {
        tally.take_in(worker.tally);
    }
    pool.close();
    tally
}

impl Worker<'_> {
    fn work_until_stopped(&mut self) {
        let mut churn = 0;
        while !self.order.note.is_left() {
            if self.number == 0 {
                println!("op");
            }
            let result = match self.random.below(16) {
                // Creates and deletes a file, which makes the session lease and release regions.
                0 if self.number == 1 => {
                    churn += 1;
                    self.churn(churn)
                }
                _ => self.operate(),
            };
            let when = if self.order.note.is_left() { "in flight" } else { "live" };
            match result {
                Ok(()) => self.tally.add(format!("{when}, done")),
                Err(error) if when == "in flight" && is_loss(&error) => {
                    self.tally.add(format!("in flight, {:?}", error.kind()));
                }
                Err(error) => self.tally.add(format!("wrong: {when}: {error}")),
            }
        }
    }

    /// Creates a file, writes, reads and deletes it.
    fn churn(&mut self, number: u64) -> Result<(), Error> {
        let name = format!("churn-{}-{number}", self.number);
        let result = self.write_and_read(&name, number, FILE_BYTES);
        self.pool.delete(&name).expect("deleted");
        result
    }

    /// Uses the files from before the stop. Each operation must fail as lost, unless the file has a copy on the local
    /// disk.
    fn go_on(&mut self) {
        for _ in 0..self.order.tries / FILES {
            match (self.operate(), self.file.protection()) {
                (Err(error), Protection::None) if is_loss(&error) => {
                    self.tally.add(format!("stale, {:?}", error.kind()));
                }
                (Ok(()), Protection::Local) => self.tally.add("protected, done"),
                (Ok(()), _) => self.tally.add("wrong: a stale operation was accepted"),
                (Err(error), _) => self.tally.add(format!("wrong: {:?}: {error}", error.kind())),
            }
        }
        self.pool.delete(&self.file.name()).expect("an old file can be deleted");
    }

    /// Writes new files. From the moment at which the session has noticed the loss of its leases, they must work.
    fn write_anew(&mut self) {
        let give_up = Instant::now() + PATIENCE;
        for number in 0.. {
            let name = format!("new-{}-{number}", self.number);
            let result = self.write_and_read(&name, number, NEW_FILE_BYTES);
            self.pool.delete(&name).expect("deleted");
            match result {
                Ok(()) => return self.tally.add("new file, done"),
                Err(error) if is_loss(&error) && Instant::now() < give_up => {
                    self.tally.add(format!("new file, {:?}", error.kind()));
                }
                Err(error) => return self.tally.add(format!("wrong: new file: {error}")),
            }
        }
    }

    fn write_and_read(&mut self, name: &str, holding: u64, bytes: u64) -> Result<(), Error> {
        let file = self.pool.create(name, FileClass::Scratch, CreateOptions::default()).expect("created");
        let canary = Canary::new(self.order.seed, FILES + self.number, holding, bytes as usize);
        file.write_at(0, canary.at(0, bytes as usize))?;
        let mut found = vec![UNREAD; bytes as usize];
        file.read_at(0, &mut found)?;
        if !canary.is_at(0, &found) {
            self.tally.add("wrong: bytes of a new file");
        }
        Ok(())
    }

    /// Reads the file's contents, or writes the same contents again, in one range or several.
    fn operate(&mut self) -> Result<(), Error> {
        // No more bytes than one request can hold, so that an error concerns all of them.
        let (count, longest) = match self.random.below(16) {
            0 => (1, MIB),
            1..5 => (2 + self.random.below(7), 16 << 10),
            _ => (1, 16 << 10),
        };
        let ranges: Vec<(u64, usize)> = (0..count)
            .map(|_| {
                let bytes = 8 + self.random.below(longest - 7);
                (self.random.below(FILE_BYTES - bytes + 1), bytes as usize)
            })
            .collect();
        if self.random.below(2) == 0 {
            let writes: Vec<WriteRange<'_>> = ranges
                .iter()
                .map(|(offset, bytes)| WriteRange { offset: *offset, from: self.canary.at(*offset, *bytes) })
                .collect();
            return self.file.write_batch(&writes);
        }
        let mut buffers: Vec<Vec<u8>> = ranges.iter().map(|(_, bytes)| vec![UNREAD; *bytes]).collect();
        let mut reads: Vec<ReadRange<'_>> = ranges
            .iter()
            .zip(&mut buffers)
            .map(|((offset, _), into)| ReadRange { offset: *offset, into })
            .collect();
        let result = self.file.read_batch(&mut reads);
        if result.is_err() {
            // The buffer holds the number of the refused range if a node refused a batch.
            buffers[0][..4].fill(UNREAD);
        }
        let are_own = ranges.iter().zip(&buffers).all(|((offset, _), found)| match result {
            Ok(()) => self.canary.is_at(*offset, found),
            Err(_) => self.canary.is_harmless(*offset, found),
        });
        if !are_own {
            self.tally.add("wrong: bytes of an old file");
        }
        result
    }
}

/// Reports whether an error tells the caller that the bytes are lost, or that the last write may be.
fn is_loss(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Lost | ErrorKind::Poisoned)
}
