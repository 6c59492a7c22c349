//! What every client must be able to do once the faults are over: find every name, read it, drop it, and write.

use super::{Client, MS, first_difference, stamped, violated};
use crate::kernel::{rest, world};
use farpool_files::{CreateOptions, Error, ErrorKind, Pool};
use farpool_wire::FileClass;

impl Client {
    /// Tries something until it works, which must not take for ever: the world ends if it does.
    pub(super) fn until_it_works(&mut self, attempt: fn(&mut Client, &Pool) -> Result<(), Error>) {
        loop {
            let result = match self.pool.clone() {
                Some(pool) => attempt(self, &pool).map(|()| true),
                None => self.try_to_connect().map(|pool| {
                    self.pool = Some(pool);
                    false
                }),
            };
            let is_done = matches!(result, Ok(true));
            world(|world| {
                let trouble = &mut world.parties.clients[self.index].trouble;
                *trouble = result.err().map_or_else(String::new, |error| error.to_string());
            });
            if is_done {
                return;
            }
            rest(200 * MS);
        }
    }

    /// A file can be created, written, read and deleted.
    pub(super) fn prove_writing(&mut self, pool: &Pool) -> Result<(), Error> {
        let _ = pool.delete("own/proof");
        let file = pool.create("own/proof", FileClass::Scratch, CreateOptions::default())?;
        let bytes = stamped(10_000);
        file.write_at(0, &bytes)?;
        let mut found = vec![0; bytes.len()];
        file.read_at(0, &mut found)?;
        if found != bytes {
            violated("I3", format!("the proof: {}", first_difference(&found, &bytes)));
        }
        pool.delete("own/proof")
    }

    /// I5: what was published and not dropped can be opened, and read if its nodes live.
    pub(super) fn prove_names(&mut self, pool: &Pool) -> Result<(), Error> {
        for name in self.own_names() {
            if pool.has_private(&name) {
                pool.delete(&name)?;
            }
            let from = self.now();
            let result = pool.open(&name);
            let values = self.values_since(&name, from);
            let is_whole = world(|world| world.is_whole(&name, &world.parties.disk));
            match result {
                Ok(file) => {
                    let mut found = vec![0; file.length() as usize];
                    match file.read_at(0, &mut found) {
                        Ok(_) => {
                            let is_one = world(|world| {
                                world.oracle.checks += 1;
                                let contents = world.parties.names.contents(&values, found.len());
                                contents.iter().any(|content| **content == found)
                            });
                            if !is_one {
                                let length = found.len();
                                violated(
                                    "I5",
                                    format!("{name:?} reads as {length} bytes that are none of {values:?}"),
                                );
                            }
                        }
                        Err(error) if is_whole => return Err(error),
                        Err(_) => {}
                    }
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    self.must_not_be_there(&name, &values);
                }
                Err(error) if is_whole => return Err(error),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Names that this client's tenant sees.
    fn own_names(&self) -> Vec<String> {
        world(|world| {
            let prefix = format!("{}/", world.plan.tenant_of(self.index));
            world.parties.names.all().into_iter().filter(|name| name.starts_with(&prefix)).collect()
        })
    }

    /// Drops every name of its tenant, so that nothing may be left in the pool.
    pub(super) fn clear_names(&mut self, pool: &Pool) -> Result<(), Error> {
        for name in self.own_names() {
            match pool.delete(&name) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}
