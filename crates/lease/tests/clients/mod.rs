//! The clients of the cluster test: they send any request that a client may, in any order.

use super::*;

/// Region that a client has sealed (made immutable) and that no published file owns yet.
#[derive(Clone, Debug)]
pub(super) struct Sealed {
    node: usize,
    region: NamedRegion,
}

impl Sealed {
    /// Returns the region as the catalog has it, with its handle combined with a hash of the name.
    fn bound_to(&self, name: &Name) -> NamedRegion {
        let mut region = self.region.clone();
        region.bind(name);
        region
    }
}

/// Returns places of these runs, each with the regions of its copies.
fn places_of(runs: Vec<Vec<NamedRegion>>) -> Option<Places> {
    let mut adding = PlacesBuilder::default();
    for copies in runs {
        adding.push(REGION_BYTES_MIN, copies.into_iter().map(|region| (region, 0))).ok()?;
    }
    adding.finish().ok()
}

#[derive(Clone, Debug, Default)]
pub(super) struct Client {
    session: Option<SessionProof>,
    tickets: Vec<(usize, Ticket)>,
    held: Vec<(usize, Incarnation, RegionAt)>,
    sealed: Vec<Sealed>,
    /// Times until which the leases at each node hold for certain.
    deadlines: BTreeMap<usize, u64>,
    asked: BTreeMap<u64, (Request, Address, u64)>,
}

impl World<'_> {
    /// Draws a recipe: mostly none.
    fn recipe(&mut self) -> Bytes<{ limits::RECIPE_BYTES_MAX }> {
        let bytes = if self.random.percent(25) { vec![self.random.below(4) as u8; 3] } else { Vec::new() };
        Bytes::new(bytes).expect("short")
    }

    fn ask_as_client(&mut self, client: usize, to: Address, request: Request) {
        let id = self.fresh();
        self.clients[client].asked.insert(id, (request.clone(), to, self.now_ms));
        let from = Address::Client(client);
        self.send(InFlight { id, from, to, connection: 0, said: Said::Ask(request) });
    }

    fn ask_broker_as_client(&mut self, client: usize, request: Request) {
        self.ask_as_client(client, Address::Broker { life: self.broker_life }, request);
    }

    /// Forgets leases and sealed regions at nodes where the client's own deadline has passed.
    fn forget_what_expired(&mut self, index: usize) {
        let now_ms = self.now_ms;
        let client = &mut self.clients[index];
        client.deadlines.retain(|_, deadline| now_ms < *deadline);
        let deadlines = &client.deadlines;
        client.held.retain(|(node, ..)| deadlines.contains_key(node));
        client.sealed.retain(|sealed| deadlines.contains_key(&sealed.node));
    }

    pub(super) fn answer_client(&mut self, index: usize, id: u64, answer: Result<Reply, Refusal>) {
        let Some((request, to, asked_ms)) = self.clients[index].asked.remove(&id) else { return };
        self.forget_what_expired(index);
        let deadline = asked_ms + u64::from(SETTINGS.lease_ttl_ms);
        let client = &mut self.clients[index];
        match (request, to, answer) {
            (Request::OpenSession(_), _, Ok(Reply::OpenSession(opened))) => {
                let proof = SessionProof { session: opened.session, secret: opened.secret };
                if client.session.as_ref().is_none_or(|had| had.session == proof.session) {
                    client.session = Some(proof);
                }
            }
            (Request::RequestTickets(_), _, Ok(Reply::RequestTickets(tickets))) => {
                for offer in tickets.tickets.iter() {
                    client.tickets.push((offer.node.node.0 as usize - 1, offer.ticket.clone()));
                }
            }
            (Request::Lease(lease), Address::Node(node), Ok(Reply::Lease(leased))) => {
                let at = |grant: &Grant| RegionAt { region: grant.region, epoch: grant.epoch };
                client
                    .held
                    .extend(leased.grants.iter().map(|grant| (node, lease.ticket.incarnation, at(grant))));
                let held = client.deadlines.entry(node).or_insert(deadline);
                *held = deadline.max(*held);
            }
            (Request::Renew(_), Address::Node(node), Ok(_)) => {
                // Only leases that are still held are extended; an answer that comes too late renews nothing.
                client.deadlines.entry(node).and_modify(|held| *held = deadline.max(*held));
            }
            (Request::Renew(_), Address::Node(node), Err(refusal))
                if refusal.code == Code::UnknownSession =>
            {
                client.deadlines.remove(&node);
                self.forget_what_expired(index);
            }
            (Request::Seal(_), Address::Node(node), Ok(Reply::Seal(sealed))) => {
                for grant in sealed.regions.iter() {
                    let is_it = |(at, _, held): &(usize, Incarnation, RegionAt)| {
                        *at == node && held.region == grant.region && held.epoch < grant.epoch
                    };
                    // If the lease has expired meanwhile, the client may not publish the region.
                    let Some(index) = client.held.iter().position(is_it) else { continue };
                    let (_, incarnation, _) = client.held.remove(index);
                    let region = NamedRegion {
                        node: node_id(node),
                        incarnation,
                        region: grant.region,
                        epoch: grant.epoch,
                        handle: grant.handle,
                    };
                    client.sealed.push(Sealed { node, region });
                }
            }
            (Request::PublishPlaces(publish), _, Ok(_)) => {
                let named = &publish.places.regions;
                client.sealed.retain(|sealed| !named.contains(&sealed.bound_to(&publish.name)));
            }
            _ => {}
        }
    }

    pub(super) fn act_as_client(&mut self, index: usize) {
        self.forget_what_expired(index);
        let Some(SessionProof { session, secret }) = self.clients[index].session.clone() else {
            let (resume, secret) = (SessionId(0), Secret(0));
            let label = Name::new("client").expect("a name");
            // Sometimes asks twice: the answer to the first may be lost.
            if self.clients[index].asked.is_empty() || self.random.percent(20) {
                self.ask_broker_as_client(index, Request::OpenSession(OpenSession { resume, secret, label }));
            }
            return;
        };
        let leased_at: Vec<usize> = self.clients[index].deadlines.keys().copied().collect();
        let node = self.random.pick(&leased_at).unwrap_or(0);
        let names: Vec<Name> =
            (0..4).map(|name| Name::new(format!("table-{name}")).expect("a name")).collect();
        let mut name = self.random.pick(&names).expect("four names");
        if self.random.percent(50) {
            let taken: Vec<Name> = self.promised.keys().cloned().collect();
            name = self.random.pick(&taken).unwrap_or(name);
        }
        match self.random.below(100) {
            0..15 => {
                let bytes = (1 + self.random.below(4)) * REGION_BYTES_MIN;
                let (near, avoid, apart) =
                    (u128::from(self.random.below(2)), List::default(), List::default());
                let class = FileClass::Pinned;
                let request = RequestTickets { session, secret, bytes, class, near, avoid, apart };
                self.ask_broker_as_client(index, Request::RequestTickets(request));
            }
            15..32 => {
                let tickets = &self.clients[index].tickets;
                if let Some((node, ticket)) = self.random.pick(tickets) {
                    if self.random.percent(80) {
                        self.clients[index].tickets.retain(|(_, held)| held.id != ticket.id);
                    }
                    self.ask_as_client(
                        index,
                        Address::Node(node),
                        Request::Lease(Lease { ticket, shared: false }),
                    );
                }
            }
            // A client without leases seldom renews.
            32..42 if leased_at.is_empty() && self.random.percent(90) => {}
            32..42 => {
                let proof = SessionProof { session, secret };
                self.ask_as_client(index, Address::Node(node), Request::Renew(proof));
            }
            42 => {
                // Releases sealed regions, even if publications of them are under way.
                let sealed = self.random.pick_some(&self.clients[index].sealed, 2);
                for Sealed { node, region } in &sealed {
                    let at = RegionAt { region: region.region, epoch: region.epoch };
                    let regions = List::new(vec![at]).expect("one");
                    let release = Release { session, secret, whole: false, regions };
                    self.ask_as_client(index, Address::Node(*node), Request::Release(release));
                    self.tally.add("sealed region given back");
                }
                let is_kept = |kept: &Sealed| !sealed.iter().any(|left| left.region == kept.region);
                if self.random.percent(70) {
                    self.clients[index].sealed.retain(is_kept);
                }
            }
            43..45 => {
                let regions = self.some_held(index, node);
                let release = Release { session, secret, whole: false, regions };
                self.ask_as_client(index, Address::Node(node), Request::Release(release));
            }
            45..60 => {
                let regions = self.some_held(index, node);
                if !regions.is_empty() {
                    let seal = Seal { session, secret, regions };
                    self.ask_as_client(index, Address::Node(node), Request::Seal(seal));
                }
            }
            60..89 => {
                let mut sealed = self.random.pick_some(&self.clients[index].sealed, 2);
                // Mostly two that can be copies of each other, if there are such.
                if let Some(first) = sealed.first().cloned()
                    && self.random.percent(80)
                {
                    let elsewhere =
                        self.clients[index].sealed.iter().filter(|other| other.node != first.node);
                    let elsewhere: Vec<Sealed> = elsewhere.cloned().collect();
                    sealed.truncate(1);
                    sealed.extend(self.random.pick(&elsewhere));
                }
                let regions: Vec<NamedRegion> = sealed.iter().map(|sealed| sealed.bound_to(&name)).collect();
                if regions.is_empty() {
                    return;
                }
                // Sometimes the two are copies of one run. The broker refuses that if they are on one node.
                let runs = match self.random.percent(80) {
                    true => vec![regions],
                    false => regions.into_iter().map(|region| vec![region]).collect(),
                };
                // A copy that could not be published is wanted all the same.
                let copies_wanted = if self.random.percent(30) { 2 } else { runs[0].len() as u8 };
                let replaces = match self.random.below(10) {
                    0..3 => Replaces::Nothing,
                    3..7 => Replaces::Anything,
                    _ => Replaces::Only(FileId(1 + self.random.below(20))),
                };
                let class = FileClass::Pinned;
                let places = places_of(runs).expect("two");
                let recipe = self.recipe();
                let publish =
                    PublishPlaces { session, secret, name, class, replaces, copies_wanted, recipe, places };
                self.ask_broker_as_client(index, Request::PublishPlaces(publish));
            }
            89..90 => self.ask_broker_as_client(index, Request::DropName(ByName { name })),
            90..92 => {
                let to = self.random.pick(&names).expect("four names");
                self.ask_broker_as_client(index, Request::RenameName(Rename { from: name, to }));
            }
            92..98 => self.ask_broker_as_client(index, Request::OpenPlaces(ByName { name })),
            98 if self.random.percent(20) => {
                let node = offer_of(self.random.below(NODES as u64) as usize, Incarnation(0)).info.name;
                let (drain, stop) = (self.random.percent(50), self.random.percent(50));
                self.ask_broker_as_client(index, Request::Drain(DrainNode { node, drain, stop }));
            }
            98 if self.random.percent(40) => {
                let label = Name::new("client").expect("a name");
                let request = OpenSession { resume: session, secret, label };
                self.ask_broker_as_client(index, Request::OpenSession(request));
            }
            98 => {
                for node in 0..NODES {
                    let release = Release { session, secret, whole: true, regions: List::default() };
                    self.ask_as_client(index, Address::Node(node), Request::Release(release));
                }
                self.clients[index] = Client::default();
                self.tally.add("client left");
            }
            _ => {
                self.clients[index] = Client::default();
                self.tally.add("client crashed");
            }
        }
    }

    fn some_held<const MAX: usize>(&mut self, client: usize, node: usize) -> List<RegionAt, MAX> {
        let held = &self.clients[client].held;
        let here: Vec<RegionAt> =
            held.iter().filter(|(at, ..)| *at == node).map(|(_, _, region)| region.clone()).collect();
        List::new(self.random.pick_some(&here, 2)).expect("two")
    }
}
