//! Promises of the broker in the cluster test: which files it has acknowledged, kept apart from its catalog.

use super::*;

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
        let had = self.promised.remove(&publish.name);
        let is_own = had.as_ref().is_none_or(|had| *asker == had.file.tenant || tenant::is_admin(asker));
        assert!(is_own, "{asker} took {} from another tenant", publish.name);
        let named = publish.places.clone();
        for run in named.runs.iter() {
            let nodes: BTreeSet<NodeId> = named.copies(run).map(|(region, _)| region.node).collect();
            assert_eq!(nodes.len(), run.copies.len(), "copies of a run are on different hosts");
        }
        if had.as_ref().is_some_and(|had| had.file.file == file && had.file.places == named) {
            self.promised.extend(had.map(|had| (publish.name.clone(), had)));
            return;
        }
        if named.runs.iter().any(|run| run.copies.len() > 1) {
            self.tally.add("published with copies");
        }
        let places: BTreeSet<RegionKey> = named.regions.iter().map(region_key).collect();
        let writers =
            |places: &BTreeSet<RegionKey>| places.iter().map(|place| (*place, publish.session)).collect();
        let promised = match had {
            Some(had) if publish.moved != FileId(0) => {
                assert_eq!(had.file.file, publish.moved, "only the very file is moved");
                let kept: BTreeMap<RegionKey, SessionId> =
                    had.writers.into_iter().filter(|(place, _)| places.contains(place)).collect();
                let fresh = places.iter().filter(|place| !kept.contains_key(place)).copied().collect();
                let mut writers: BTreeMap<RegionKey, SessionId> = writers(&fresh);
                writers.extend(kept);
                let mut leased_by_admin = had.file.leased_by_admin.clone();
                leased_by_admin.retain(|place| places.contains(place));
                if *asker != had.file.tenant {
                    leased_by_admin.extend(fresh);
                    self.tally.add("moved by the administrator");
                }
                self.tally.add("moved");
                Promised { file: NamedFile { places: named, leased_by_admin, ..had.file }, writers }
            }
            had => {
                assert!(file >= self.next_file, "file id {file} is given twice");
                self.next_file = FileId(file.0 + 1);
                self.tally.add(if had.is_some() { "replaced" } else { "published" });
                let (class, tenant, copies_wanted) = (publish.class, asker.clone(), publish.copies_wanted);
                let leased_by_admin = BTreeSet::new();
                let file = NamedFile { file, class, tenant, copies_wanted, places: named, leased_by_admin };
                Promised { file, writers: writers(&places) }
            }
        };
        self.promised.insert(publish.name.clone(), promised);
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
            Request::PublishPlaces(publish) if publish.moved != FileId(0) => &publish.name,
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
