//! Promises of the broker in the cluster test: which files it has acknowledged, kept apart from its catalog.

use super::*;

fn host_of(node: NodeId) -> Name {
    offer_of(node.0 as usize - 1, Incarnation(0)).info.host_label
}

impl World<'_> {
    /// Reports whether this tenant sees the file of this name.
    pub(super) fn sees(&self, asker: &Name, name: &Name) -> bool {
        let file = self.promised.get(name).map(|promised| &promised.file);
        file.is_some_and(|file| tenant::is_admin(asker) || *asker == file.tenant)
    }

    pub(super) fn promise(&mut self, asker: &Name, request: &Request, reply: &Reply) {
        match (request, reply) {
            (Request::Drain(order), _) => {
                assert!(tenant::is_admin(asker), "{asker} emptied a node");
                self.tally.add(if order.drain { "told to drain" } else { "told to stay" });
            }
            (Request::PublishPlaces(publish), Reply::PublishPlaces(published)) => {
                self.promise_file(asker, publish, published.file)
            }
            (Request::NextRepair(_), _) => self.promise_copies(None),
            (Request::EndRepair(made), Reply::EndRepair(ended)) => {
                let file = self.promised.values().find(|promised| promised.file.file == made.order.file);
                let place = (made.order.node, made.order.incarnation, made.region);
                let has =
                    |file: &NamedFile| file.places.regions.iter().any(|region| region_key(region) == place);
                if ended.runs > 0 && file.is_some_and(|promised| has(&promised.file)) {
                    self.tally.add("repaired again");
                }
                self.promise_copies(Some(made));
            }
            (Request::DropName(by), _) => {
                assert!(self.sees(asker, &by.name));
                self.promised.remove(&by.name);
                self.tally.add("dropped");
            }
            (Request::RenameName(rename), _) => {
                assert!(self.sees(asker, &rename.from));
                let mut file = self.promised.remove(&rename.from).expect("renamed what is there");
                file.file.places.bind(&rename.from);
                file.file.places.bind(&rename.to);
                let taken = self.promised.insert(rename.to.clone(), file);
                assert!(taken.is_none(), "renamed over another file");
                self.tally.add("renamed");
            }
            (Request::OpenPlaces(by), Reply::OpenPlaces(opened)) => {
                assert!(self.sees(asker, &by.name));
                let file = &self.promised[&by.name].file;
                assert_eq!((opened.file, opened.copies_wanted), (file.file, file.copies_wanted));
                assert_eq!(opened.places.bytes(), file.places.bytes());
                // Each run has at least one of its copies, and nothing else.
                for (shown, run) in opened.places.runs.iter().zip(file.places.runs.iter()) {
                    let has: Vec<_> = file.places.copies(run).collect();
                    let shown: Vec<_> = opened.places.copies(shown).collect();
                    assert!(!shown.is_empty() && shown.iter().all(|copy| has.contains(copy)));
                    self.tally.add(if shown.len() < has.len() {
                        "opened with a lost copy"
                    } else {
                        "opened"
                    });
                }
            }
            _ => {}
        }
    }

    fn promise_file(&mut self, asker: &Name, publish: &PublishPlaces, file: FileId) {
        let had = self.promised.get(&publish.name);
        let is_own = had.is_none_or(|had| *asker == had.file.tenant || tenant::is_admin(asker));
        assert!(is_own, "{asker} took {} from another tenant", publish.name);
        let named = publish.places.clone();
        if let Some(had) = had.filter(|had| had.file.file == file) {
            // A repetition, of which the first answer was lost.
            assert_eq!((had.writer, had.file.places.bytes()), (publish.session, named.bytes()));
            return;
        }
        let had = self.promised.remove(&publish.name);
        let may_replace = match (&had, publish.replaces) {
            (Some(had), replaces) => replaces.permits(had.file.file),
            (None, replaces) => !matches!(replaces, Replaces::Only(_)),
        };
        assert!(may_replace, "{} was replaced, which {:?} does not permit", publish.name, publish.replaces);
        for run in named.runs.iter() {
            let hosts: BTreeSet<Name> = named.copies(run).map(|(region, _)| host_of(region.node)).collect();
            assert_eq!(hosts.len(), run.copies.len(), "copies of a run are on different hosts");
        }
        if named.runs.iter().any(|run| run.copies.len() > 1) {
            self.tally.add("published with copies");
        }
        assert!(file >= self.next_file, "file id {file} is given twice");
        self.next_file = FileId(file.0 + 1);
        self.tally.add(if had.is_some() { "replaced" } else { "published" });
        let (class, tenant, copies_wanted) = (publish.class, asker.clone(), publish.copies_wanted);
        let recipe = publish.recipe.clone();
        let file = NamedFile { file, class, tenant, copies_wanted, recipe, places: named, root_of: None };
        self.promised.insert(publish.name.clone(), Promised { file, writer: publish.session });
    }

    /// Checks what the broker did to the copies of files when a node asked for an order, or reported `made`.
    pub(super) fn promise_copies(&mut self, made: Option<&EndRepair>) {
        // The host of a node that has not been heard of since the broker started is not known. Its copy stays, and the
        // run gets another one if the node comes back on the host of the first.
        let status = self.broker.as_ref().map(|broker| broker.status(self.broker_now(), &tenant::admin()));
        let knows = |id: NodeId| {
            status.iter().flat_map(|status| status.nodes.iter()).any(|node| node.info.node == id)
        };
        for (name, promised) in &mut self.promised {
            let (had, has) = (&promised.file, &self.durable.names[name]);
            if had == has {
                continue;
            }
            let bytes = |file: &NamedFile| file.places.runs.iter().map(|run| run.bytes).collect::<Vec<_>>();
            assert_eq!((had.file, &had.tenant, bytes(had)), (has.file, &has.tenant, bytes(has)));
            assert!(made.is_none_or(|made| made.order.file == had.file), "another file is changed");
            for (before, after) in had.places.runs.iter().zip(has.places.runs.iter()) {
                let before: Vec<RegionKey> =
                    had.places.copies(before).map(|(region, _)| region_key(region)).collect();
                let after: Vec<RegionKey> =
                    has.places.copies(after).map(|(region, _)| region_key(region)).collect();
                let fresh: Vec<&RegionKey> = after.iter().filter(|place| !before.contains(place)).collect();
                let gone = before.iter().filter(|place| !after.contains(place)).count();
                match (made, &fresh[..]) {
                    (Some(made), [place]) => {
                        assert_eq!(**place, (made.order.node, made.order.incarnation, made.region));
                        assert!(gone <= 1 && after.len() <= had.copies_wanted.into());
                        self.tally.add(if gone == 0 { "copy added" } else { "copy replaced" });
                    }
                    (None, []) if gone > 0 => {
                        assert!(!after.is_empty(), "the last copy of {name} is dropped");
                        self.tally.add("leaving copy dropped");
                    }
                    (_, fresh) => assert!(fresh.is_empty() && gone == 0, "{before:?} became {after:?}"),
                }
                let lives = |place: &&RegionKey| {
                    knows(place.0) && self.nodes[place.0.0 as usize - 1].arbiter.incarnation() == place.1
                };
                let nodes: Vec<NodeId> = after.iter().filter(lives).map(|place| place.0).collect();
                let hosts: BTreeSet<Name> = nodes.iter().map(|node| host_of(*node)).collect();
                assert_eq!(hosts.len(), nodes.len(), "copies of a run are on one host: {after:?}");
            }
            promised.file = has.clone();
        }
    }

    /// Checks a refusal. `NoSuchName` may not come for a name whose file the asker may see.
    pub(super) fn check_refusal(&mut self, asker: &Name, request: &Request, refusal: &Refusal) {
        if matches!(request, Request::Offer(_)) && refusal.code == Code::WrongIncarnation {
            self.tally.add("second life waits");
        }
        if let Request::Drain(_) = request {
            assert_eq!(refusal.code == Code::NotPermitted, !tenant::is_admin(asker), "{refusal}");
        }
        let name = match request {
            Request::OpenPlaces(by) | Request::DropName(by) => &by.name,
            Request::RenameName(rename) => &rename.from,
            _ => return,
        };
        if refusal.code == Code::NoSuchName {
            assert!(!self.sees(asker, name), "{asker} does not see {name}");
            if self.promised.contains_key(name) {
                self.tally.add("another's name not seen");
            }
        }
    }
}
