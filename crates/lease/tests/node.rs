//! `NodeLeases` of one node under random schedules: clients repeat, forge, come late or vanish, the broker's
//! rulings are late or old, and time jumps. The invariants are in `arbiter` and are checked after every step.

mod arbiter;
mod schedule;

use arbiter::Arbiter;
use farpool_lease::node::Withdrawal;
use farpool_lease::ticket::{secret_digest, sign};
use farpool_wire::control::*;
use farpool_wire::*;
use schedule::{Random, Tally, run, run_one};

const NODE: NodeId = NodeId(77);
const INCARNATION: Incarnation = Incarnation(5);
const KEY: [u8; 32] = [7; 32];
const REGIONS: u32 = 6;
const SESSIONS: u64 = 4;
const STEPS: u64 = 250;
const TICKET_TTL_MS: u64 = 4_000;

/// A node, and the broker as the node sees it.
struct World<'a> {
    random: &'a mut Random,
    tally: &'a mut Tally,
    arbiter: Arbiter,
    now_ms: u64,
    term: Term,
    /// Start of each life of the broker, in ms; the first is at index 1.
    terms_began_ms: Vec<u64>,
    next_ticket: u64,
    tickets: Vec<Ticket>,
    /// Last order of an administrator: (drain, stop), to empty the node and to end it then.
    told: (bool, bool),
    /// Every region at every epoch that a client was ever granted.
    told_of: Vec<RegionAt>,
}

fn secret_of(session: SessionId) -> Secret {
    Secret(u128::from(session.0) << 32 | 1)
}

fn tenant_of(session: SessionId) -> Name {
    Name::new(if session.0.is_multiple_of(2) { "even" } else { "odd" }).expect("a name")
}

impl World<'_> {
    fn now(&self) -> MonoNs {
        MonoNs(self.now_ms * 1_000_000)
    }

    fn session(&mut self) -> SessionId {
        SessionId(1 + self.random.below(SESSIONS))
    }

    fn proof(&mut self) -> (SessionId, Secret) {
        let session = self.session();
        let secret = if self.random.percent(5) { Secret(3) } else { secret_of(session) };
        (session, secret)
    }

    /// Returns the tenant that asks for a session: the session's own, `None` for a connection that proves none, or
    /// another.
    fn asker(&mut self, session: SessionId) -> Option<Name> {
        match self.random.below(20) {
            0 => Some(tenant_of(SessionId(session.0 + 1))),
            1..8 => Some(tenant_of(session)),
            _ => None,
        }
    }

    /// Returns mostly regions that the session holds, and sometimes any that were ever granted.
    fn regions_named_by(&mut self, session: SessionId) -> Vec<RegionAt> {
        let with_sealed = self.random.percent(20);
        let held: Vec<RegionAt> = self
            .arbiter
            .inventory()
            .owned
            .iter()
            .filter(|owned| match owned.owner {
                RegionOwner::Session(owner) => owner == session,
                RegionOwner::Sealing(owner) => owner == session && with_sealed,
                _ => false,
            })
            .map(|owned| RegionAt { region: owned.region, epoch: owned.epoch })
            .collect();
        let count = 1 + self.random.below(3);
        let mut named = self.random.pick_some(&held, count);
        if self.random.percent(25) {
            named.extend(self.random.pick(&self.told_of));
        }
        if self.random.percent(10) {
            named.extend(named.first().cloned());
        }
        if self.random.percent(2) {
            named.push(RegionAt { region: RegionIndex(REGIONS + 1), epoch: Epoch(1) });
        }
        named
    }

    fn broker_now_ms(&self, term: Term) -> u64 {
        self.now_ms - self.terms_began_ms[term.0 as usize]
    }

    fn grant_ticket(&mut self) -> Ticket {
        let session = self.session();
        self.next_ticket += 1;
        let mut ticket = Ticket {
            id: TicketId(self.next_ticket),
            term: self.term,
            session,
            secret_digest: secret_digest(secret_of(session)),
            node: NODE,
            incarnation: self.arbiter.incarnation(),
            region_count: 1 + self.random.below(3) as u32,
            class: self.random.pick(&FileClass::ALL).expect("three"),
            tenant: tenant_of(session),
            not_after_ms: self.broker_now_ms(self.term) + TICKET_TTL_MS,
            mac: [0; 32],
        };
        sign(&mut ticket, &KEY);
        self.tickets.push(ticket.clone());
        ticket
    }

    fn redeem(&mut self, ticket: &Ticket) -> Result<(), Code> {
        let asker = self.asker(ticket.session);
        let answer = self.arbiter.redeem(self.now(), asker.as_ref(), ticket);
        let is_anothers = asker.is_some_and(|asker| asker != ticket.tenant);
        assert!(is_anothers || !matches!(&answer, Err(refusal) if refusal.code == Code::WrongTenant));
        let leased = answer.map_err(|refusal| refusal.code)?;
        self.told_of.extend(leased.grants.iter().map(|at| RegionAt { region: at.region, epoch: at.epoch }));
        Ok(())
    }

    fn redeem_good_ticket(&mut self) {
        let mut ticket = self.grant_ticket();
        if self.random.percent(20) {
            ticket = self.random.pick(&self.tickets).expect("one was granted");
        }
        let free = self.arbiter.inventory().counts.free;
        match self.redeem(&ticket) {
            Ok(()) => self.tally.add("redeemed"),
            Err(Code::Exhausted) => {
                assert!(ticket.region_count > free, "refused {} of {free}", ticket.region_count);
                self.tally.add("exhausted");
            }
            Err(Code::TicketSpent) => self.tally.add("spent"),
            Err(Code::TicketExpired) => {
                assert!(
                    self.broker_now_ms(ticket.term) > ticket.not_after_ms,
                    "refused before its time: {ticket:?}"
                );
                self.tally.add("expired");
            }
            Err(Code::OldTerm) => {
                assert!(ticket.term < self.term, "{ticket:?}");
                self.tally.add("old term");
            }
            Err(Code::WrongTenant) => self.tally.add("wrong tenant"),
            Err(Code::Draining) => {
                let again = self.arbiter.redeem(self.now(), None, &ticket).map_err(|refusal| refusal.code);
                assert_eq!(again, Err(Code::TicketSpent), "what is refused for good is not held any more");
                self.tally.add("draining");
            }
            Err(other) => panic!("a genuine ticket was refused as {other:?}"),
        }
    }

    fn redeem_bad_ticket(&mut self) {
        let mut ticket = self.grant_ticket();
        let expected = match self.random.below(6) {
            0 => {
                ticket.mac[self.random.below(32) as usize] ^= 1;
                Code::TicketForged
            }
            1 => {
                // The ticket names more regions than were promised, so the signature is wrong.
                ticket.region_count += 1;
                Code::TicketForged
            }
            2 => {
                ticket.node = NodeId(78);
                sign(&mut ticket, &KEY);
                Code::TicketForged
            }
            3 => {
                ticket.tenant = tenant_of(SessionId(ticket.session.0 + 1));
                Code::TicketForged
            }
            4 => {
                ticket.incarnation = Incarnation(4);
                sign(&mut ticket, &[4; 32]);
                Code::WrongIncarnation
            }
            _ => {
                sign(&mut ticket, &[8; 32]);
                Code::TicketForged
            }
        };
        assert_eq!(self.redeem(&ticket), Err(expected));
        self.tally.add("bad ticket");
    }

    fn renew(&mut self) {
        let (session, secret) = self.proof();
        let proof = SessionProof { session, secret };
        let asker = self.asker(session);
        let is_own = asker.as_ref().is_none_or(|asker| *asker == tenant_of(session));
        match self.arbiter.renew(self.now(), asker.as_ref(), &proof).map_err(|refusal| refusal.code) {
            Ok(_) => {
                assert!(is_own && secret == secret_of(session));
                self.tally.add("renewed");
            }
            Err(Code::UnknownSession) => self.tally.add("renewal refused"),
            Err(Code::WrongSecret) => assert_eq!(secret, Secret(3)),
            Err(code) => {
                assert!(code == Code::WrongTenant && !is_own && secret == secret_of(session), "{code:?}");
                self.tally.add("renewal for another tenant");
            }
        }
    }

    fn release(&mut self) {
        let (session, secret) = self.proof();
        let named = self.regions_named_by(session);
        let whole = self.random.percent(15);
        let owned = self.arbiter.inventory().owned;
        let leaves = |owned: &&OwnedRegion| {
            let at = RegionAt { region: owned.region, epoch: owned.epoch };
            match owned.owner {
                RegionOwner::Session(owner) => owner == session && (whole || named.contains(&at)),
                // The session may not know yet that it was sealed.
                RegionOwner::Sealing(owner) => {
                    let before = RegionAt { epoch: Epoch(owned.epoch.0 - 1), ..at.clone() };
                    owner == session && !whole && (named.contains(&at) || named.contains(&before))
                }
                _ => false,
            }
        };
        let leaving: Vec<OwnedRegion> = owned.iter().filter(leaves).cloned().collect();
        let regions = List::new(named.clone()).expect("few");
        let asker = self.asker(session);
        let release = Release { session, secret, whole, regions };
        if let Ok(released) = self.arbiter.release(asker.as_ref(), &release) {
            assert!(asker.is_none_or(|asker| asker == tenant_of(session)));
            assert_eq!(released.regions as usize, leaving.len());
            for left in leaving {
                let is = self.arbiter.owner(left.region);
                match left.owner {
                    // The broker decides whether a published file owns the region.
                    RegionOwner::Sealing(_) => {
                        assert_eq!(is, Some((left.epoch, RegionOwner::Orphan)));
                        self.tally.add("released a sealed one");
                    }
                    _ => assert_eq!(is, None),
                }
            }
            self.tally.add(if whole { "released whole" } else { "released in part" });
        }
    }

    fn seal(&mut self) {
        let (session, secret) = self.proof();
        let named = self.regions_named_by(session);
        let owned = self.arbiter.inventory().owned;
        let mut distinct: Vec<RegionIndex> = named.iter().map(|at| at.region).collect();
        distinct.sort();
        distinct.dedup();
        let all_held = distinct.len() == named.len()
            && named.iter().all(|at| {
                owned.iter().filter(|owned| owned.region == at.region).any(|owned| match owned.owner {
                    RegionOwner::Session(owner) => owner == session && owned.epoch == at.epoch,
                    // The same request sealed it before, and the answer was lost.
                    RegionOwner::Sealing(owner) => owner == session && owned.epoch.0 == at.epoch.0 + 1,
                    _ => false,
                })
            });
        let regions = List::new(named.clone()).expect("few");
        let asker = self.asker(session);
        let is_own = asker.as_ref().is_none_or(|asker| *asker == tenant_of(session));
        let seal = Seal { session, secret, regions };
        match self.arbiter.seal(asker.as_ref(), &seal) {
            Ok(sealed) => {
                if self.random.percent(30) {
                    let again = self.arbiter.seal(asker.as_ref(), &seal);
                    assert_eq!(again.as_ref(), Ok(&sealed), "asked again, answered the same");
                    self.tally.add("sealed again");
                }
                assert!(all_held && is_own, "{named:?}");
                assert!(sealed.regions.iter().map(|at| at.region).eq(named.iter().map(|at| at.region)));
                self.told_of
                    .extend(sealed.regions.iter().map(|at| RegionAt { region: at.region, epoch: at.epoch }));
                self.tally.add("sealed");
            }
            Err(refusal) => {
                let unproved =
                    matches!(refusal.code, Code::UnknownSession | Code::WrongSecret | Code::WrongTenant);
                assert!(unproved || !all_held, "{refusal}");
                assert!(!is_own || refusal.code != Code::WrongTenant);
                self.tally.add("seal refused");
            }
        }
    }

    fn rule(&mut self) {
        let at = |random: &mut Random, inventory: &Inventory, told: &[RegionAt]| {
            let owned =
                inventory.owned.iter().map(|owned| RegionAt { region: owned.region, epoch: owned.epoch });
            let source: Vec<RegionAt> = if random.percent(70) { owned.collect() } else { told.to_vec() };
            random.pick_some(&source, 2)
        };
        let before = self.arbiter.inventory();
        let files = self.random.below(5);
        let adopt: Vec<Adoption> = at(self.random, &before, &self.told_of)
            .into_iter()
            .map(|at| Adoption { region: at.region, epoch: at.epoch, file: FileId(files) })
            .collect();
        let drop = at(self.random, &before, &self.told_of);
        let is_old = self.term > Term(1) && self.random.percent(15);
        let late_ms = if self.random.percent(30) { self.random.below(6_000) } else { 0 };
        let term = if is_old { Term(self.term.0 - 1) } else { self.term };
        if self.random.percent(15) {
            let orders = [(false, false), (false, false), (false, false), (true, false), (true, true)];
            self.told = self.random.pick(&orders).expect("five");
        }
        // A broker that was given no order about the node since it started sends this pair.
        let order = if self.random.percent(20) { (false, true) } else { self.told };
        let told_before = (before.draining, self.arbiter.may_end());
        let ruling = Ruling {
            term,
            broker_now_ms: self.broker_now_ms(term).saturating_sub(late_ms),
            adopt: List::new(adopt.clone()).expect("few"),
            drop: List::new(drop.clone()).expect("few"),
            drain: order.0,
            stop: order.1,
        };
        self.arbiter.rule(self.now(), &ruling);
        let after = self.arbiter.inventory();
        if order == (false, true) {
            assert_eq!(after.draining, told_before.0, "a node stays what it was told to be");
            assert!(self.arbiter.may_end() || !told_before.1 || !after.owned.is_empty());
        } else if !is_old {
            assert_eq!(after.draining, order.0);
            assert_eq!(self.arbiter.may_end(), order == (true, true) && after.owned.is_empty());
            if self.arbiter.may_end() {
                self.tally.add("may end");
            }
        }
        // A ruling of an old term changes nothing once the node has heard of the new term.
        for owned in before.owned.iter() {
            let was = RegionAt { region: owned.region, epoch: owned.epoch };
            let is = self.arbiter.owner(owned.region);
            if let RegionOwner::Session(_) = owned.owner {
                assert_eq!(is, Some((owned.epoch, owned.owner)), "the broker does not rule over leases");
            } else if !drop.contains(&was) && !adopt.iter().any(|adoption| adoption.region == owned.region) {
                assert_eq!(is, Some((owned.epoch, owned.owner)), "not in the ruling");
            } else if !is_old && drop.contains(&was) {
                assert_eq!(is, None, "dropped");
                self.tally.add("dropped");
            } else if !is_old && matches!(is, Some((_, RegionOwner::Name(_)))) {
                self.tally.add("adopted");
            }
        }
    }

    fn new_term(&mut self) {
        self.term = Term(self.term.0 + 1);
        self.terms_began_ms.push(self.now_ms);
        if self.random.percent(50) {
            self.arbiter.offered(&offered(self.term));
            let left = self.arbiter.inventory();
            let (now, later) = (self.now(), self.term);
            let adopt = left.owned.iter().map(|owned| Adoption {
                region: owned.region,
                epoch: owned.epoch,
                file: FileId(99),
            });
            let late = Ruling {
                term: Term(later.0 - 1),
                broker_now_ms: 1 << 40,
                adopt: List::new(adopt.collect()).expect("few"),
                drop: List::default(),
                drain: !left.draining,
                stop: true,
            };
            self.arbiter.rule(now, &late);
            assert_eq!(self.arbiter.inventory(), left, "a broker of an old term is not listened to");
            self.tally.add("old ruling ignored");
        }
    }

    /// Lowers or raises the number of regions that may have memory.
    fn limit(&mut self) {
        let regions = self.random.below(u64::from(REGIONS) + 1) as u32;
        let reaches = [
            Withdrawal::Discardable,
            Withdrawal::Evacuable(self.now().plus_ms(1 + self.random.below(2_000))),
            Withdrawal::All,
        ];
        let reach = self.random.pick(&reaches).expect("three");
        let regions = if reach == Withdrawal::All && self.random.percent(80) { REGIONS } else { regions };
        self.arbiter.limit(self.now(), regions, reach);
        self.tally.add(match reach {
            Withdrawal::Discardable => "limited: discardable",
            Withdrawal::Evacuable(_) => "limited: evacuable",
            Withdrawal::All => "limited: all",
        });
        if self.arbiter.inventory().counts.away > 0 {
            self.tally.add("away");
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..15 => self.redeem_good_ticket(),
            15..20 => self.redeem_bad_ticket(),
            20..32 => self.renew(),
            32..40 => self.release(),
            40..50 => self.seal(),
            50..58 => self.rule(),
            58..60 => self.new_term(),
            60..75 => {
                if let Some(region) = self.random.pick(&self.arbiter.to_scrub()) {
                    self.arbiter.scrub(region);
                    self.tally.add("scrubbed");
                }
            }
            75..80 => self.limit(),
            80..90 => {
                self.arbiter.tick(self.now());
                self.tally.add("ticked");
            }
            90..98 => self.now_ms += self.random.below(300),
            _ => {
                self.now_ms += self.random.below(6_000);
                self.tally.add("time jumped");
            }
        }
        self.tally.add("steps");
    }
}

fn offered(term: Term) -> Offered {
    Offered { term, lease_ttl_ms: 1_500, grace_ms: 700, heartbeat_ms: 100 }
}

fn schedule(random: &mut Random, tally: &mut Tally) -> Inventory {
    let mut arbiter = Arbiter::new(NODE, INCARNATION, KEY, REGIONS);
    arbiter.offered(&offered(Term(1)));
    let now_ms = 1 + random.below(1 << 40);
    let mut world = World {
        random,
        tally,
        arbiter,
        now_ms,
        term: Term(1),
        terms_began_ms: vec![0, now_ms],
        next_ticket: 0,
        tickets: Vec::new(),
        told: (false, false),
        told_of: Vec::new(),
    };
    for _ in 0..STEPS {
        world.step();
    }
    let end = world.arbiter.inventory();

    // The host has memory again, everybody falls silent, and the broker knows no owner of the sealed regions.
    world.arbiter.limit(world.now(), REGIONS, Withdrawal::Discardable);
    world.now_ms += 1_500 + 700;
    world.arbiter.tick(world.now());
    let sealed = world.arbiter.inventory();
    let drop =
        sealed.owned.iter().map(|owned| RegionAt { region: owned.region, epoch: owned.epoch }).collect();
    let broker_now_ms = world.broker_now_ms(world.term);
    let drop = List::new(drop).expect("few");
    let adopt = List::default();
    let last = Ruling { term: world.term, broker_now_ms, adopt, drop, drain: false, stop: false };
    world.arbiter.rule(world.now(), &last);
    for region in world.arbiter.to_scrub() {
        world.arbiter.scrub(region);
    }
    assert_eq!(world.arbiter.inventory().counts.free, REGIONS, "all that was donated is free again");
    end
}

#[test]
fn node_under_random_schedules_keeps_its_invariants() {
    let expected = [
        "redeemed",
        "exhausted",
        "spent",
        "expired",
        "old term",
        "bad ticket",
        "renewed",
        "renewal refused",
        "renewal for another tenant",
        "wrong tenant",
        "draining",
        "may end",
        "released whole",
        "released in part",
        "released a sealed one",
        "sealed",
        "sealed again",
        "seal refused",
        "dropped",
        "adopted",
        "old ruling ignored",
        "scrubbed",
        "ticked",
        "time jumped",
    ];
    run("node", 8_000, &expected, schedule);
}

#[test]
fn node_under_the_same_seed_ends_in_the_same_state() {
    assert_eq!(run_one("node", 7, &schedule), run_one("node", 7, &schedule));
}
