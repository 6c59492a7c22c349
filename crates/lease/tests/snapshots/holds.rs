//! Snapshots that sessions hold under random schedules, with leaders that were deposed and have not noticed, and
//! requests to which nobody waits for an answer any more.

use super::*;

impl World<'_> {
    fn next_number(&mut self, client: usize) -> u64 {
        self.clients[client].number += 1;
        self.clients[client].number
    }

    pub(super) fn open(&mut self, client: usize) {
        let proof = self.session(client);
        let tenant = name(TENANTS[client]);
        let of = self.table_name(client);
        let Some(table) = self.tables.get(&of).cloned() else { return };
        let numbers: Vec<u64> = table.snapshots.keys().copied().collect();
        let snapshot = self.random.pick(&numbers).filter(|_| self.random.percent(50)).unwrap_or(0);
        let number = self.next_number(client);
        let open = OpenTable { session: proof.session, secret: proof.secret, number, name: of, snapshot };
        if self.clients[client].is_behind {
            return self.open_at_deposed(client, &open);
        }
        match self.broker.open_table(self.now(), &tenant, &open) {
            Ok(opened) => {
                let number = if snapshot == 0 { table.latest().0 } else { snapshot };
                let has = (opened.table, opened.snapshot, opened.latest, opened.root.file);
                let root = table.snapshots[&number].root;
                assert_eq!(has, (table.id, number, table.latest().0, root));
                let parts: Vec<PartAt> = table.snapshots[&number].parts.iter().map(|part| part.at).collect();
                let parts = OpenParts { table: table.id, parts: List::new(parts).expect("few") };
                let opened = self.broker.open_parts(&tenant, &parts).expect("they are there");
                assert!(opened.parts.len() == parts.parts.len());
                self.clients[client].holds.insert(SnapshotAt { table: table.id, snapshot: number });
                self.tally.add("opened");
            }
            Err(refusal) => {
                assert_eq!(refusal, Refusal::new(Code::SnapshotEnded, snapshot));
                assert!(!self.is_kept(&table, snapshot));
                self.tally.add("snapshot has ended");
            }
        }
    }

    /// Opens a snapshot at the leader before, which knows nothing of what was changed since.
    fn open_at_deposed(&mut self, client: usize, open: &OpenTable) {
        let now = self.now();
        let Some((deposed, _)) = &mut self.deposed else { return };
        let Ok(opened) = deposed.open_table(now, &name(TENANTS[client]), open) else { return };
        if opened.table != TableId(0) {
            let at = SnapshotAt { table: opened.table, snapshot: opened.snapshot };
            self.clients[client].holds.insert(at);
            self.tally.add("opened at a leader that was deposed");
        }
    }

    /// Has a session say which snapshots it holds: all of them, or all but some that it needs no more. It may give up
    /// the answer before its request has come.
    pub(super) fn hold(&mut self, client: usize) {
        if self.clients[client].proof.is_none() {
            return;
        }
        if self.random.percent(50) && self.clients[client].has_said {
            let holds: Vec<SnapshotAt> = self.clients[client].holds.iter().copied().collect();
            let some = self.random.pick_some(&holds, 2);
            self.clients[client].holds.retain(|at| !some.contains(at));
        }
        if self.random.percent(40) {
            self.clients[client].late = self.hold_request(client);
            return;
        }
        self.say(client);
    }

    /// Has a request to hold snapshots come that was given up.
    pub(super) fn hold_late(&mut self, client: usize) {
        let Some(hold) = self.clients[client].late.clone() else { return };
        if self.random.percent(70) {
            self.clients[client].late = None;
        }
        self.broker.hold_snapshots(self.now(), &name(TENANTS[client]), &hold).expect("its own");
        self.tally.add("renewal came late");
    }

    fn hold_request(&mut self, client: usize) -> Option<HoldSnapshots> {
        let SessionProof { session, secret } = self.clients[client].proof.clone()?;
        let number = self.next_number(client);
        let held = List::new(self.clients[client].holds.iter().copied().collect()).expect("few");
        Some(HoldSnapshots { session, secret, number, held })
    }

    /// Has a session say what it holds, and hear what of it has ended.
    fn say(&mut self, client: usize) {
        let Some(hold) = self.hold_request(client) else { return };
        let now = self.now();
        let is_behind = self.clients[client].is_behind;
        let broker = match &mut self.deposed {
            Some((deposed, _)) if is_behind => deposed,
            _ => &mut self.broker,
        };
        let held = broker.hold_snapshots(now, &name(TENANTS[client]), &hold).expect("its own");
        for at in held.ended.iter() {
            let table = self.tables.values().find(|table| table.id == at.table);
            let is_old = table.is_none_or(|table| self.is_past_holding(table, at.snapshot));
            assert!(is_old, "{at:?} ended although it was held");
            self.clients[client].holds.remove(at);
            self.tally.add("held for too long, or dropped");
        }
        self.clients[client].has_said |= !is_behind;
    }

    /// Has a session say that it lives, and what it holds if it meets another leader.
    pub(super) fn renew(&mut self, client: usize) {
        let Some(proof) = self.clients[client].proof.clone() else { return };
        let (now, tenant) = (self.now(), name(TENANTS[client]));
        match &mut self.deposed {
            Some((deposed, _)) if self.clients[client].is_behind => {
                deposed.keep_session(now, &tenant, &proof).expect("its own");
            }
            _ => {
                self.broker.keep_session(now, &tenant, &proof).expect("its own");
                if !self.clients[client].has_said {
                    self.say(client);
                }
            }
        }
    }

    /// Begins another leader, while that before answers some sessions for a while.
    pub(super) fn depose(&mut self) {
        let before = self.broker.clone();
        self.restart();
        self.deposed = Some((before, self.now_ms + FAILOVER_MS));
        for client in &mut self.clients {
            client.is_behind = client.proof.is_some() && self.random.percent(60);
        }
        self.tally.add("leader deposed that has not noticed");
    }

    /// Has the leader before notice that it leads no more.
    pub(super) fn notice(&mut self) {
        self.deposed = None;
        self.clients.iter_mut().for_each(|client| client.is_behind = false);
    }
}
