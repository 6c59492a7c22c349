//! Operations of clients on published files: publish, open, read, drop, rename. Each answer is compared with the
//! history of the names on the broker's disk.

use super::{Client, Seen, first_difference, stamped, violated};
use crate::kernel::world;
use crate::names::Value;
use farpool_files::beneath::Unlisted;
use farpool_files::{CreateOptions, Error, ErrorKind, IfTaken, Pool, Protection, Recipe};
use farpool_wire::{FileClass, FileId};
use std::collections::BTreeSet;

/// Kind of the recipes of published files: the body is the number of their content.
pub(super) const RECIPES: &str = "content";

/// Beginning of the names of small files.
const SMALL: &str = "small-";

/// Makes a lost file again.
pub(super) fn make_again(pool: &Pool, name: &str, file: FileId, recipe: &Recipe) -> Result<(), Error> {
    let mut number = [0; 8];
    number.copy_from_slice(&recipe.body);
    let content = world(|world| world.parties.names.content(u64::from_le_bytes(number)));
    let made = Unlisted::create(pool, name.to_owned(), None).and_then(|mut made| {
        made.append(&content)?;
        made.set_recipe(recipe)?;
        made.publish(IfTaken::ReplaceOnly(file))
    });
    world(|world| world.tally.operation("make again", made.is_ok()));
    made
}

impl Client {
    fn any_name(&mut self) -> String {
        let tenant = world(|world| world.plan.tenant_of(self.index));
        match self.random.one_in(3) {
            // Many small files share segments, which become empty bit by bit.
            true => format!("{tenant}/{SMALL}{}", self.random.below(12)),
            false => format!("{tenant}/{}", self.random.below(3)),
        }
    }

    pub(super) fn publish(&mut self) {
        let name = self.any_name();
        let is_small = name.contains(SMALL);
        let if_taken = if self.random.one_in(4) { IfTaken::Refuse } else { IfTaken::Replace };
        let pool = self.pool();
        let create = |protection| {
            let options = CreateOptions { protection: Some(protection), ..CreateOptions::default() };
            pool.create(&name, FileClass::Pinned, options)
        };
        let protection = match self.random.below(4) {
            0 => Protection::None,
            1 if !is_small => Protection::Rs { data: 2, parity: self.random.range(1, 2) as u8 },
            _ => Protection::Mirror,
        };
        if protection != Protection::None && !is_small && self.random.one_in(4) {
            return self.publish_in_runs(&name, protection, if_taken);
        }
        // The contents have 32 bytes or more, so that they are unique. A file of one extent would get no parity.
        let bytes = match protection {
            Protection::Rs { .. } => self.random.range(100 << 10, 300 << 10),
            _ if is_small => self.random.skewed(32, 24 << 10),
            _ => self.random.skewed(32, 200 << 10),
        };
        let bytes = stamped(bytes as usize);
        let mut created = create(protection);
        if created.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid) {
            // There are too few hosts at the moment.
            created = create(Protection::None);
        }
        let Some(file) = self.outcome("create pinned", created) else { return };
        let gap = if self.random.one_in(4) { self.random.below(90 << 10) } else { 0 };
        // Each write gets an extent of its own, on the next host if the file is to get parity.
        let (front, back) = bytes.split_at(bytes.len() / 2);
        let written = file.write_at(gap, front).and_then(|()| file.write_at(gap + front.len() as u64, back));
        if self.outcome("write pinned", written).is_none() {
            let _ = pool.delete(&name);
            return;
        }
        let mut content = vec![0; gap as usize];
        content.extend_from_slice(&bytes);
        let (from, number) = self.will_publish(&name, content);
        if self.random.one_in(2) {
            let body = number.to_le_bytes().to_vec();
            let recipe = Recipe { kind: RECIPES.to_owned(), rows: 0, checksum: 0, body };
            file.set_recipe(&recipe).expect("it is short");
        }
        let mut published = false;
        for _ in 0..self.random.range(1, 3) {
            let result = pool.publish(&name, if_taken);
            published = self.outcome("publish", result).is_some();
            if published {
                break;
            }
        }
        if published {
            self.must_have_been(&name, from, Value::Content(number));
        } else if pool.has_private(&name) {
            let _ = pool.delete(&name);
        }
    }

    /// Publishes a file of several runs, each of which lies in one region, as the row groups of a table do. Parity is
    /// written while the file is.
    fn publish_in_runs(&mut self, name: &str, protection: Protection, if_taken: IfTaken) {
        let created = Unlisted::create(&self.pool(), name.to_owned(), Some(protection));
        let Some(mut file) = self.outcome("create pinned", created) else { return };
        let bytes = stamped(self.random.range(100 << 10, 300 << 10) as usize);
        let mut content = Vec::new();
        let parts: Vec<&[u8]> =
            bytes.chunks(bytes.len().div_ceil(self.random.range(2, 7) as usize)).collect();
        let at_once = self.random.range(1, parts.len() as u64) as usize;
        for parts in parts.chunks(at_once) {
            let appended = file.append_each_in_one_region(parts);
            let Some(offsets) = self.outcome("append in one region", appended) else { return };
            for (offset, part) in offsets.into_iter().zip(parts) {
                content.resize(offset as usize, 0);
                content.extend_from_slice(part);
            }
        }
        let (from, number) = self.will_publish(name, content);
        let published = file.publish(if_taken);
        if self.outcome("publish", published).is_some() {
            self.must_have_been(name, from, Value::Content(number));
        }
    }

    /// Tells the oracle that a name may get this content from now on. Returns the time and the number of the content.
    fn will_publish(&self, name: &str, content: Vec<u8>) -> (u64, u64) {
        world(|world| {
            let number = world.parties.names.add_content(content);
            world.note_text(self.process, "will publish", [number, 0, 0], Some(name.into()));
            (world.now(), number)
        })
    }

    /// Checks I5 after a client was told that a name has this value (or none, if it was dropped): it had the value at
    /// some moment since `from`. One exception: the answer "there is no such name" is not checked if a deposed broker
    /// may have given it, since its state may be outdated.
    fn must_have_been(&self, name: &str, from: u64, value: Value) {
        world(|world| {
            let values = world.parties.names.since(name, from);
            world.oracle.checks += 1;
            let is_doubtful = value == Value::Nothing && world.had_deposed_broker(from);
            if !is_doubtful && !values.contains(&value) && !values.contains(&Value::Unknown) {
                let what = format!("{name:?} was to be {value:?} and was only {values:?}");
                world.oracle.violated("I5", what);
            }
        });
    }

    pub(super) fn now(&self) -> u64 {
        world(|world| world.now())
    }

    /// Returns the values of a name that a client may have seen since the time `from`. These are all it ever had if a
    /// deposed broker, which may show old ones, was alive.
    pub(super) fn values_since(&self, name: &str, from: u64) -> BTreeSet<Value> {
        world(|world| {
            let is_doubtful = world.had_deposed_broker(from);
            world.parties.names.since(name, if is_doubtful { 0 } else { from })
        })
    }

    pub(super) fn must_not_be_there(&self, name: &str, values: &BTreeSet<Value>) {
        world(|world| world.oracle.checks += 1);
        if !values.contains(&Value::Nothing) {
            violated("I5", format!("{name:?} is gone, and nobody has dropped it: it may be {values:?}"));
        }
    }

    pub(super) fn open_published(&mut self) {
        let name = self.any_name();
        let pool = self.pool();
        if pool.has_private(&name) {
            return;
        }
        let from = self.now();
        let result = pool.open(&name);
        let values = self.values_since(&name, from);
        let kind = result.as_ref().err().map(Error::kind);
        let opened = self.outcome("open", result);
        if kind == Some(ErrorKind::NotFound) {
            self.must_not_be_there(&name, &values);
        }
        let Some(file) = opened else { return };
        let candidates = world(|world| world.parties.names.contents(&values, file.length() as usize));
        world(|world| {
            world.oracle.checks += 1;
            let text = format!("{name} of {} bytes: {values:?}", file.length());
            world.note_text(self.process, "has opened", [0; 3], Some(text.into()));
        });
        if candidates.is_empty() {
            let length = file.length();
            violated("I5", format!("{name:?} opens as a file of {length} bytes, none of {values:?}"));
            return;
        }
        if self.seen.len() >= 4 {
            self.seen.remove(0);
        }
        self.seen.push(Seen { file, name, candidates });
    }

    pub(super) fn read_published(&mut self) {
        if self.seen.is_empty() {
            return self.open_published();
        }
        let which = self.random.below(self.seen.len() as u64) as usize;
        let length = self.seen[which].file.length();
        let offset = self.random.below(length);
        let most = if self.random.one_in(3) { length } else { 16 << 10 };
        let count = self.random.skewed(1, most).min(length - offset) as usize;
        let mut found = vec![0xEE; count];
        let result = self.seen[which].file.read_at(offset, &mut found);
        let kind = result.as_ref().err().map(Error::kind);
        if self.outcome("read published", result).is_some() {
            let at = offset as usize;
            let seen = &mut self.seen[which];
            let expected = seen.candidates.first().map(|content| content[at..at + count].to_vec());
            seen.candidates.retain(|content| content[at..at + count] == found[..]);
            world(|world| {
                world.tally.bytes_compared += count as u64;
                world.oracle.checks += 1;
            });
            if seen.candidates.is_empty() {
                let difference = first_difference(&found, &expected.unwrap_or_default());
                violated("I3", format!("published {:?} at {offset}: {difference}", seen.name));
            }
        } else if kind == Some(ErrorKind::Lost) {
            self.seen.remove(which);
        }
    }

    pub(super) fn drop_name(&mut self) {
        let name = self.any_name();
        let pool = self.pool();
        if pool.has_private(&name) {
            return;
        }
        let from = self.now();
        world(|world| world.note_text(self.process, "will drop", [0; 3], Some(name.as_str().into())));
        let result = pool.delete(&name);
        let kind = result.as_ref().err().map(Error::kind);
        if self.outcome("drop", result).is_some() {
            self.must_have_been(&name, from, Value::Nothing);
        } else if kind == Some(ErrorKind::NotFound) {
            self.must_not_be_there(&name, &self.values_since(&name, from));
        }
    }

    pub(super) fn rename(&mut self) {
        let (from, to) = (self.any_name(), self.any_name());
        let pool = self.pool();
        if from == to || pool.has_private(&from) || pool.has_private(&to) {
            return;
        }
        let at = self.now();
        let text = format!("{from} to {to}");
        world(|world| world.note_text(self.process, "will rename", [0; 3], Some(text.into())));
        let result = pool.rename(&from, &to);
        if self.outcome("rename", result).is_some() {
            self.must_have_been(&from, at, Value::Nothing);
        }
    }
}
