//! Proofs that every client must give once the faults are over: it can find, read and drop every name, and write.

use super::{Client, MS, first_difference, stamped, violated};
use crate::kernel::{rest, world};
use crate::names::Place;
use farpool_files::beneath::session_of_pool;
use farpool_files::{CreateOptions, Error, ErrorKind, Pool};
use farpool_wire::FileClass;
use farpool_wire::limits::REGION_BYTES_MIN;
use std::collections::BTreeMap;

/// Renewals of a session within which a node must hear what the session has given back.
const RENEWALS: u64 = 12;

impl Client {
    /// Retries an attempt until it succeeds, and connects first if need be. If it never does, the phase takes too long,
    /// which is a violation.
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

    /// Proves that nodes keep no region for the session, which has no files left, of which it does not know: that would
    /// stay leased as long as the session lives.
    pub(super) fn prove_all_leases_are_known(&mut self, pool: &Pool) -> Result<(), Error> {
        let known_bytes = pool.stats().leased_bytes;
        let kept = world(|world| {
            world.oracle.checks += 1;
            world.kept_for(session_of_pool(pool).id())
        });
        if kept.len() as u64 * REGION_BYTES_MIN <= known_bytes {
            return Ok(());
        }
        Err(Error::not_rebuilt(format!(
            "nodes keep more than {known_bytes} bytes, which a session knows of: {kept:?}"
        )))
    }

    /// Checks that nodes do not lease a region to the session for long after the session has given it back: it would
    /// stay leased as long as the session lives. A node that did not hear of it is told again once it answers.
    pub(super) fn check_what_was_given_back(&mut self) {
        let Some(pool) = &self.pool else { return self.leased.clear() };
        let session = session_of_pool(pool);
        let (kept, now, patience_ns) = world(|world| {
            let kept: BTreeMap<Place, u64> = world.leased_to(session.id()).into_iter().collect();
            let patience_ns = 2 * world.plan.life_ns() + 4 * world.plan.request_timeout_ms * MS;
            (kept, world.now(), patience_ns)
        });
        self.leased.retain(|place, _| kept.contains_key(place));
        for (place, renewals) in kept {
            let (incarnation, region, epoch) = place;
            if session.knows_region(incarnation, region, epoch) {
                self.leased.insert(place, None);
            } else if let Some(unknown) = self.leased.get_mut(&place) {
                let (renewals_then, then) = *unknown.get_or_insert((renewals, now));
                let is_kept_long = now > then + patience_ns && renewals > renewals_then + RENEWALS;
                world(|world| world.oracle.checks += 1);
                if is_kept_long {
                    violated("leak", format!("a node renews the lease of {place:?}, which was given back"));
                }
            }
        }
    }

    /// Proves that a file can be created, written, read and deleted.
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

    /// Proves I5: names that were published and not dropped can be opened, and read if the nodes with their bytes live.
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

    /// Returns the names that belong to this client's tenant.
    fn own_names(&self) -> Vec<String> {
        world(|world| {
            let prefix = format!("{}/", world.plan.tenant_of(self.index));
            world.parties.names.all().into_iter().filter(|name| name.starts_with(&prefix)).collect()
        })
    }

    /// Drops every name of the client's tenant, so that no region may stay in use.
    pub(super) fn clear_names(&mut self, pool: &Pool) -> Result<(), Error> {
        for name in self.own_names().into_iter().chain([self.table_file()]).chain(self.changed_files()) {
            match pool.delete(&name) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}
