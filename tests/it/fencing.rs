//! Tests of fencing: a client with an old epoch (of a region that it leased earlier) is refused on every operation,
//! however often it tries (invariants I1 and I2 of spec/lease.md).

use crate::raw_client::*;
use farpool_broker::LeaseSettings;
use farpool_transport::{Link, ReadOp, Transport, WriteOp};
use farpool_wire::control::{Attach, Grant};
use farpool_wire::{Code, Reply, Request};

const TRIES: u32 = 10_000;

/// Tries one operation with the right to a region that was released; `kind` selects the operation. Returns true if the
/// node refused it with the correct code.
fn try_old_right(zombie: &RawSession, link: &mut dyn Link, old: &Grant, kind: u32) -> bool {
    let deadline = soon();
    let stale = |code| matches!(code, Code::StaleEpoch);
    match kind % 7 {
        0 => stale(refused(read(link, old, 0, 64))),
        1 => stale(refused(write(link, old, 0, b"from the grave"))),
        2 => {
            let (mut one, mut two) = ([0; 8], [0; 8]);
            let mut ops = [
                ReadOp { span: span(old, 0, 8), into: &mut one },
                ReadOp { span: span(old, 64, 8), into: &mut two },
            ];
            stale(refused(link.read(&mut ops, deadline)))
        }
        3 => {
            let op = |offset| WriteOp { span: span(old, offset, 5), from: b"grave" };
            stale(refused(link.write(&[op(0), op(100)], deadline)))
        }
        4 => {
            let attach = Attach { region: old.region, epoch: old.epoch, handle: old.handle };
            let code = refused(link.call(&Request::Attach(attach), deadline));
            // Only a transport which proves that the client is on the node's host lets it map a region.
            stale(code) || link.transport() != Transport::Shm && code == Code::NotShared
        }
        // The node knows the session of the old client (the zombie), because it holds another region. So not the
        // session but the old epoch is the reason of these refusals.
        5 => stale(refused(zombie.seal(link, std::slice::from_ref(old)))),
        _ => match zombie.release(link, std::slice::from_ref(old)) {
            Ok(Reply::Release(released)) => released.regions == 0,
            other => panic!("a release is answered by {other:?}"),
        },
    }
}

#[test]
fn old_epoch_is_refused_on_every_operation_ten_thousand_times() {
    for transport in [Transport::Tcp, Transport::Shm] {
        let pool = one_node(2, LeaseSettings { lease_ttl_ms: 60_000, ..LeaseSettings::default() });
        let (zombie, owner) = (pool.session(), pool.session());
        let mut zombie_link = pool.link(transport);
        let mut grants = zombie.lease(&pool, &mut *zombie_link, 2).expect("leases");
        let (old, _kept) = (grants.remove(0), grants.remove(0));
        // The write goes over this link, so that with shared memory the old client has the region mapped.
        write(&mut *zombie_link, &old, 0, b"mine").expect("a write");
        zombie.release(&mut *zombie_link, std::slice::from_ref(&old)).expect("a release");

        let mut owner_link = pool.link(transport);
        let new = owner.lease_patiently(&pool, &mut *owner_link, 1).remove(0);
        assert_eq!(new.region, old.region, "the same region, or nothing is shown");
        assert!(new.epoch > old.epoch);
        let content: Vec<u8> = (0..MIB).map(|at| (at % 251) as u8).collect();
        write(&mut *owner_link, &new, 0, &content).expect("a write");

        let mut refused_tries = 0;
        for kind in 0..TRIES {
            assert!(
                try_old_right(&zombie, &mut *zombie_link, &old, kind),
                "{transport}, try {kind} was let through"
            );
            refused_tries += 1;
        }
        assert_eq!(read(&mut *owner_link, &new, 0, MIB as usize).expect("a read"), content, "{transport}");
        println!("{transport}: {refused_tries} of {TRIES} tries with an old epoch were refused");
        assert_eq!(refused_tries, TRIES);
    }
}

#[test]
fn old_epoch_racing_with_its_release_never_shows_anothers_bytes() {
    for transport in [Transport::Tcp, Transport::Shm] {
        let pool = one_node(1, LeaseSettings { lease_ttl_ms: 60_000, ..LeaseSettings::default() });
        for round in 0..60u8 {
            let session = pool.session();
            let mut link = pool.link(transport);
            let grant = session.lease_patiently(&pool, &mut *link, 1).remove(0);
            let pattern = vec![round | 0x80; 256 << 10];
            write(&mut *link, &grant, 0, &pattern).expect("a write");
            let mut reader_link = pool.link(transport);
            let reader_grant = grant.clone();
            let expected = pattern.clone();
            let reader = std::thread::spawn(move || {
                // Reads until it is refused. Every answer must be complete and hold the bytes of the reader's own
                // lease.
                let mut answers = 0u32;
                loop {
                    match read(&mut *reader_link, &reader_grant, 0, 256 << 10) {
                        Ok(found) => assert!(found == expected, "{transport}: other bytes in round {round}"),
                        Err(_) => return answers,
                    }
                    answers += 1;
                }
            });
            session.release(&mut *link, std::slice::from_ref(&grant)).expect("a release");
            // The next owner writes other bytes, which the reader must never see.
            let next_session = pool.session();
            let next = next_session.lease_patiently(&pool, &mut *link, 1).remove(0);
            write(&mut *link, &next, 0, &vec![1; 256 << 10]).expect("a write");
            reader.join().expect("the reader saw only its own bytes");
            next_session.release(&mut *link, &[next]).expect("a release");
        }
    }
}
