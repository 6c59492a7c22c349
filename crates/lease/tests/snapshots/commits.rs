//! Commits under random schedules, with leaders and sessions that are lost in the middle of them.

use super::*;

impl World<'_> {
    /// Publishes a table of one file.
    pub(super) fn publish_plain(&mut self, client: usize) {
        let (proof, tenant) = (self.session(client), name(TENANTS[client]));
        let of = self.table_name(client);
        if self.tables.contains_key(&of) || self.plain.contains_key(&of) {
            return;
        }
        let publish = PublishPlaces {
            session: proof.session,
            secret: proof.secret,
            name: of.clone(),
            class: FileClass::Pinned,
            replaces: Replaces::Nothing,
            copies_wanted: 1,
            recipe: Bytes::new(vec![3]).expect("short"),
            places: self.seal(proof.session),
        };
        self.report();
        let mut records = Vec::new();
        let published = self.broker.publish(self.now(), &tenant, &publish, &mut records).expect("pending");
        self.keep(records);
        self.plain.insert(of, published.file);
        self.tally.add("table of one file");
    }

    /// Publishes parts ahead of a commit, or gives one up.
    pub(super) fn add_ahead(&mut self, client: usize) {
        let proof = self.session(client);
        let tenant = name(TENANTS[client]);
        if self.clients[client].ahead.len() > 2 {
            let (_, table, commit, _) = self.clients[client].ahead.remove(0);
            let add = AddParts {
                session: proof.session,
                secret: proof.secret,
                table,
                commit,
                parts: List::default(),
                is_over: true,
            };
            let mut records = Vec::new();
            self.broker.add_parts(self.now(), &tenant, &add, &mut records).expect("its own");
            self.keep(records);
            return self.tally.add("given up");
        }
        let of = self.table_name(client);
        let commit = CommitId(self.fresh());
        // That of the second new table of the commit.
        self.fresh();
        let table = self.tables.get(&of).map_or(TableId(commit.0), |table| table.id);
        let count = 1 + self.random.below(4) as u32;
        let parts = self.new_parts(proof.session, 0, count);
        self.report();
        let (session, secret) = (proof.session, proof.secret);
        let add = AddParts { session, secret, table, commit, parts, is_over: false };
        for again in [false, true] {
            let mut records = Vec::new();
            self.broker.add_parts(self.now(), &tenant, &add, &mut records).expect("pending");
            assert!(!again || records.is_empty(), "a repeated request does nothing: {records:?}");
            self.keep(records);
        }
        self.clients[client].ahead.push((of, table, commit, count));
        self.added.push((tenant, add));
        self.tally.add("published ahead");
    }

    /// Sends parts again that were published ahead. Their commit may be open, made, or forgotten since.
    pub(super) fn add_again(&mut self) {
        let Some((tenant, add)) = self.random.pick(&self.added) else { return };
        let mut records = Vec::new();
        match self.broker.add_parts(self.now(), &tenant, &add, &mut records) {
            Ok(_) => self.keep(records),
            Err(refusal) => {
                assert!(records.is_empty(), "{refusal:?} changes nothing: {records:?}");
                self.tally.add("late parts refused");
            }
        }
    }

    /// Returns a change of a table, based on its latest snapshot, and the parts that the table then has. `ahead` parts
    /// were published before, perhaps some of them for an earlier try.
    fn change(
        &mut self,
        client: usize,
        of: &Name,
        (commit, number): (CommitId, u64),
        ahead: u32,
    ) -> (TableChange, BTreeSet<Part>) {
        let session = self.session(client).session;
        let count = self.random.below(3) as u32;
        let parts = self.new_parts(session, ahead, count);
        let mut change = TableChange {
            name: of.clone(),
            table: TableId(commit.0 + number),
            replaces: Replaces::Nothing,
            former: NO_PART,
            parts_ahead: ahead,
            parts,
            copies_wanted: 1,
            recipe: Bytes::default(),
            root: self.seal(session),
            removed: List::default(),
            restores: 0,
            restored: List::default(),
        };
        let (mut has, mut added) = (BTreeSet::new(), 1);
        let mut gone = BTreeSet::new();
        let is_remade = ahead == 0 && self.random.percent(8);
        if let Some(table) = self.tables.get(of).filter(|_| is_remade) {
            // A new table takes the place of this one, as of one that was lost.
            change.replaces = Replaces::Only(table.latest().1.root);
            self.tally.add("new table in the place of another");
        } else if let Some(table) = self.tables.get(of).cloned() {
            let (number, latest) = table.latest();
            (change.table, change.replaces) = (table.id, Replaces::Only(latest.root));
            (has, added) = (latest.parts.clone(), number + 1);
            let kept: Vec<u64> =
                table.snapshots.keys().filter(|number| self.is_kept(&table, **number)).copied().collect();
            let back = self.random.pick(&kept).filter(|_| self.random.percent(20));
            if let Some(back) = back {
                let wanted = &table.snapshots[&back].parts;
                change.restores = back;
                change.restored = ranges(&wanted.difference(&has).copied().collect());
                gone = has.difference(wanted).copied().collect();
                has = wanted.clone();
                self.tally.add("rolled back");
            } else {
                let all: Vec<Part> = has.iter().copied().collect();
                let count = self.random.below(4);
                gone.extend(self.random.pick_some(&all, count));
                has.retain(|part| !gone.contains(part));
            }
        }
        if let Some(file) = self.plain.get(of) {
            change.replaces = Replaces::Only(*file);
            if self.random.percent(70) {
                change.former = ahead + count;
                has.insert(Part { at: PartAt { commit, index: change.former }, added });
                self.tally.add("table of one file became a part");
            }
        }
        let part = |index| Part { at: PartAt { commit, index }, added };
        let left_over =
            if self.random.percent(40) { self.random.below(u64::from(ahead) + 1) as u32 } else { 0 };
        if left_over > 0 {
            gone.extend((ahead - left_over..ahead).map(part));
            self.tally.add("parts of an earlier try left over");
        }
        has.extend((0..ahead - left_over).chain(ahead..ahead + count).map(part));
        change.removed = ranges(&gone);
        (change, has)
    }

    pub(super) fn is_kept(&self, table: &Table, number: u64) -> bool {
        let at = SnapshotAt { table: table.id, snapshot: number };
        self.durable.names.contains_key(&snapshot_name(at)) || table.latest().0 == number
    }

    /// Commits changes of one table or two.
    pub(super) fn commit(&mut self, client: usize) {
        let proof = self.session(client);
        let tenant = name(TENANTS[client]);
        let ahead = match self.random.percent(50) {
            true => self.clients[client].ahead.pop(),
            false => None,
        };
        let fresh = CommitId(self.fresh());
        let commit = ahead.as_ref().map_or(fresh, |(_, _, commit, _)| *commit);
        let mut names = vec![match &ahead {
            Some((of, ..)) => of.clone(),
            None => self.table_name(client),
        }];
        let other = self.table_name(client);
        if self.random.percent(20) && other != names[0] {
            // That of the second new table of the commit.
            self.fresh();
            names.push(other);
        }
        let (mut changes, mut states) = (Vec::new(), Vec::new());
        for (number, of) in (0..).zip(&names) {
            let count = ahead.as_ref().filter(|_| number == 0).map_or(0, |(.., count)| *count);
            let (change, state) = self.change(client, of, (commit, number), count);
            changes.push(change);
            states.push(state);
        }
        // The table for which parts were published may have been dropped, and made again, since.
        let is_same = ahead.as_ref().is_none_or(|(_, table, ..)| *table == changes[0].table);
        let is_stale = self.random.percent(15) && matches!(changes[0].replaces, Replaces::Only(_));
        if is_stale {
            changes[0].replaces = Replaces::Only(FileId(1));
        }
        let is_wrong = !is_stale && is_same && self.random.percent(5);
        if is_wrong {
            self.spoil(&mut changes[0]);
        }
        let commit = CommitTables {
            session: proof.session,
            secret: proof.secret,
            commit,
            summary: Bytes::new(b"a change".to_vec()).expect("short"),
            changes: List::new(changes).expect("few"),
        };
        self.report();
        let mut records = Vec::new();
        let answer = self.broker.commit_tables(self.now(), self.wall_ms(), &tenant, &commit, &mut records);
        match answer {
            Err(refusal) => {
                assert!(records.is_empty(), "{refusal:?} changes nothing: {records:?}");
                let (code, why) = match (is_stale, is_wrong) {
                    (true, _) => (Code::Conflict, "conflict"),
                    (_, true) => (Code::Malformed, "commit that removes what is not there"),
                    _ => (Code::CommitEnded, "commit of a dropped table"),
                };
                assert!((is_stale || is_wrong || !is_same) && refusal.code == code, "{refusal:?}: {why}");
                self.tally.add(why);
            }
            Ok(mut made) => {
                assert!(!is_stale && is_same && !is_wrong, "{commit:?}");
                let again = |world: &mut Self, records: &mut Vec<StateChange>| {
                    let (now, wall_ms) = (world.now(), world.wall_ms());
                    world.broker.commit_tables(now, wall_ms, &tenant, &commit, records)
                };
                let fate = self.random.below(12);
                if fate == 0 {
                    // The leader is gone before its store has anything of the commit, so nobody was answered.
                    self.restart();
                    records.clear();
                    made = again(self, &mut records).expect("it was not made");
                    self.tally.add("leader lost before a commit was stored");
                }
                self.keep(records);
                self.note_made(&tenant, &commit, &made, states);
                if fate == 1 {
                    // The leader is gone after that, and the answer with it.
                    self.restart();
                    let mut records = Vec::new();
                    assert_eq!(again(self, &mut records).as_ref(), Ok(&made), "answered by the next leader");
                    assert!(records.is_empty(), "a commit was made twice: {commit:?}");
                    self.tally.add("leader lost after a commit was stored");
                }
                self.made.push((tenant, self.now_ms, commit, made));
                self.tally.add(if names.len() > 1 { "two tables changed" } else { "committed" });
            }
        }
    }

    fn note_made(
        &mut self,
        tenant: &Name,
        commit: &CommitTables,
        made: &TablesCommitted,
        states: Vec<BTreeSet<Part>>,
    ) {
        for ((change, made), parts) in commit.changes.iter().zip(made.made.iter()).zip(states) {
            self.plain.remove(&change.name);
            let fresh = || Table { id: change.table, tenant: tenant.clone(), snapshots: BTreeMap::new() };
            let table = self.tables.entry(change.name.clone()).or_insert_with(fresh);
            if table.id != change.table {
                *table = fresh();
            }
            let number = table.snapshots.last_key_value().map_or(0, |(number, _)| *number) + 1;
            assert_eq!(made.snapshot, number, "each snapshot follows the one before");
            if let Some((_, before)) = table.snapshots.iter_mut().next_back() {
                before.replaced_ms = Some(self.now_ms);
            }
            table.snapshots.insert(number, Snapshot { root: made.root, parts, replaced_ms: None });
        }
    }

    /// Sends a commit again that was answered.
    pub(super) fn commit_again(&mut self) {
        let Some((tenant, at_ms, commit, made)) = self.random.pick(&self.made) else { return };
        let mut records = Vec::new();
        let answer = self.broker.commit_tables(self.now(), self.wall_ms(), &tenant, &commit, &mut records);
        assert!(records.is_empty(), "a commit was made twice: {commit:?}");
        let is_there = |change: &TableChange| {
            self.tables.get(&change.name).is_some_and(|table| table.id == change.table)
        };
        match answer {
            Ok(again) => {
                let numbers = |made: &TablesCommitted| -> Vec<u64> {
                    made.made.iter().map(|made| made.snapshot).collect()
                };
                assert_eq!(numbers(&again), numbers(&made));
                self.tally.add("repeated commit answered as done");
            }
            Err(refusal) => {
                let is_known = self.now_ms - at_ms <= KNOWN_MS && commit.changes.iter().all(is_there);
                assert!(!is_known, "{refusal:?}: {commit:?} was made");
            }
        }
    }

    /// Makes a change wrong: it removes parts that never were or some of them twice, or has some again that no snapshot
    /// is named for.
    fn spoil(&mut self, change: &mut TableChange) {
        let mut removed = change.removed.to_vec();
        let never = PartRange { added: 1, commit: CommitId(u64::MAX), first: 0, last: u32::MAX };
        match (self.random.below(3), removed.first().copied()) {
            (0, Some(first)) => removed.push(first),
            (1, Some(first)) if change.restores == 0 => {
                change.restored = List::new(vec![first]).expect("one")
            }
            _ => removed.push(never),
        }
        change.removed = List::new(removed).expect("few");
    }

    /// Has a session fall silent between publishing parts and the commit that adds them. It sends the commit later, if
    /// at all.
    pub(super) fn fall_silent(&mut self, client: usize) {
        if self.clients[client].proof.is_none() {
            return;
        }
        let Some((of, table, commit, count)) = self.clients[client].ahead.pop() else { return };
        let (change, state) = self.change(client, &of, (commit, 0), count);
        let Some(proof) = self.clients[client].proof.take() else { return };
        self.report();
        self.clients[client] = Client::default();
        // The table may have been dropped, and made again, since.
        if change.table == table {
            let late = CommitTables {
                session: proof.session,
                secret: proof.secret,
                commit,
                summary: Bytes::default(),
                changes: List::new(vec![change]).expect("one"),
            };
            self.late.push((name(TENANTS[client]), late, state, count));
        }
        self.tally.add("silent ahead of a commit");
    }

    /// Sends a commit of a session that was silent since it published the parts. It may publish another one before.
    pub(super) fn commit_late(&mut self) {
        let Some((tenant, mut commit, mut state, count)) = self.late.pop() else { return };
        if self.random.percent(50) {
            self.add_late(&tenant, &mut commit, &mut state);
        }
        let change = &commit.changes[0];
        let is_there = |world: &Self| {
            let part = |index| part_name(change.table, PartAt { commit: commit.commit, index });
            (0..count).all(|index| world.has(&part(index)))
        };
        let was_there = is_there(self);
        let mut records = Vec::new();
        match self.broker.commit_tables(self.now(), self.wall_ms(), &tenant, &commit, &mut records) {
            Ok(made) => {
                assert!(was_there, "parts of a commit that was made are gone: {commit:?}");
                self.keep(records);
                self.note_made(&tenant, &commit, &made, vec![state]);
                self.made.push((tenant, self.now_ms, commit, made));
                self.tally.add("late commit made");
            }
            Err(refusal) => {
                assert!(records.is_empty(), "{refusal:?} changes nothing: {records:?}");
                // Parts that nobody has used are dropped, if the session says no more.
                self.tally.add("late commit refused");
            }
        }
    }
    /// Publishes another part ahead for a commit of a session that was silent.
    fn add_late(&mut self, tenant: &Name, commit: &mut CommitTables, state: &mut BTreeSet<Part>) {
        const INDEX: u32 = 1_000;
        let mut changes = commit.changes.to_vec();
        let change = &mut changes[0];
        let parts = self.new_parts(commit.session, INDEX, 1);
        self.report();
        let CommitTables { session, secret, commit: id, .. } = *commit;
        let add = AddParts { session, secret, table: change.table, commit: id, parts, is_over: false };
        let mut records = Vec::new();
        if self.broker.add_parts(self.now(), tenant, &add, &mut records).is_ok() {
            self.keep(records);
            let latest = self.tables.values().find(|table| table.id == change.table);
            let added = latest.map_or(0, |table| table.latest().0) + 1;
            state.insert(Part { at: PartAt { commit: id, index: INDEX }, added });
            change.parts_ahead += 1;
            commit.changes = List::new(changes).expect("one");
            self.tally.add("another part published late");
        }
    }
}
