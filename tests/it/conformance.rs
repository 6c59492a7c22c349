//! Test suite for all transports: each test runs over tcp, tcp with TLS, shared memory and the simulated network,
//! against a real node.

use crate::random::Random;
use crate::raw_client::*;
use farpool_broker::LeaseSettings;
use farpool_transport::{Link, LinkError, ReadOp, Transport, WriteOp, wait_writable};
use farpool_wire::limits::IO_BYTES_MAX;
use farpool_wire::{Code, Handle, MonoNs};

/// Transport under test, with or without TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Tcp,
    Tls,
    Shm,
    Sim,
}

impl Way {
    const ALL: [Way; 4] = [Way::Tcp, Way::Tls, Way::Shm, Way::Sim];

    /// Starts a pool whose node is reached over this transport.
    fn pool(self, regions: u64, settings: LeaseSettings) -> OneNode {
        if self == Way::Tls { one_tls_node(regions, settings).0 } else { one_node(regions, settings) }
    }

    fn transport(self) -> Transport {
        match self {
            Way::Tcp | Way::Tls => Transport::Tcp,
            Way::Shm => Transport::Shm,
            Way::Sim => Transport::Sim,
        }
    }
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

fn over_each_transport(claim: impl Fn(&OneNode, &mut dyn Link, Way)) {
    for way in Way::ALL {
        let pool = way.pool(4, lasting_leases());
        let mut link = pool.link(way.transport());
        assert_eq!(link.transport(), way.transport());
        claim(&pool, &mut *link, way);
    }
}

#[test]
fn link_random_writes_and_reads_agree_with_an_array_of_bytes() {
    over_each_transport(|pool, link, way| {
        let grants = pool.session().lease(pool, link, 2).expect("leases");
        let mut model = vec![vec![0u8; MIB as usize]; 2];
        let mut random = Random(7);
        for step in 0..300 {
            let region = random.below(2) as usize;
            let offset = random.below(MIB);
            let longest = if step % 10 == 0 { MIB } else { 20_000 };
            let bytes = random.below(longest.min(MIB - offset) + 1) as usize;
            let place = offset as usize..offset as usize + bytes;
            if random.below(2) == 0 {
                let from = random.bytes(bytes);
                write(link, &grants[region], offset, &from).expect("a write");
                model[region][place].copy_from_slice(&from);
            } else {
                let found = read(link, &grants[region], offset, bytes).expect("a read");
                assert_eq!(found, model[region][place], "{way}, step {step}");
            }
        }
    });
}

/// Writes all operations, as many at a time as the node accepts.
fn write_bit_by_bit(link: &mut dyn Link, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
    while !link.post_write_some(ops, deadline)? {
        let socket = link.descriptor().expect("what is not sent at once can be polled for");
        wait_writable(&[socket], deadline).map_err(LinkError::Disconnected)?;
    }
    link.take_write(ops, deadline)
}

#[test]
fn link_batches_of_any_size_do_what_single_operations_would() {
    over_each_transport(|pool, link, way| {
        let grants = pool.session().lease(pool, link, 2).expect("leases");
        let mut random = Random(11);
        // Some batches have more operations, and some more bytes, than one frame (message on the wire) can hold.
        let sizes = [(600, 100), (9, 300_000), (1, 0), (40, 64 << 10), (30, MIB - 1)];
        for (number, (count, bytes)) in sizes.into_iter().cycle().take(2 * sizes.len()).enumerate() {
            let ops: Vec<(usize, u64)> =
                (0..count).map(|_| (random.below(2) as usize, random.below(MIB - bytes))).collect();
            let payload = random.bytes(bytes as usize * count);
            let pieces: Vec<&[u8]> =
                (0..count).map(|op| &payload[op * bytes as usize..][..bytes as usize]).collect();
            let writes: Vec<WriteOp<'_>> = ops
                .iter()
                .zip(&pieces)
                .map(|((region, offset), from)| WriteOp {
                    span: span(&grants[*region], *offset, from.len()),
                    from,
                })
                .collect();
            let deadline = far_deadline(link);
            let written = match number < sizes.len() {
                true => link.write(&writes, deadline),
                false => write_bit_by_bit(link, &writes, deadline),
            };
            written.expect("a batch of writes");
            let mut into = vec![0xee; payload.len().max(1)];
            let mut reads: Vec<ReadOp<'_>> = into
                .chunks_mut((bytes as usize).max(1))
                .zip(&ops)
                .map(|(into, (region, offset))| {
                    let into = &mut into[..bytes as usize];
                    ReadOp { span: span(&grants[*region], *offset, into.len()), into }
                })
                .collect();
            link.read(&mut reads, deadline).expect("a batch of reads");
            // If writes overlap, the later one wins. The model applies them byte by byte.
            let mut model = vec![vec![None; MIB as usize]; 2];
            for ((region, offset), from) in ops.iter().zip(&pieces) {
                for (at, byte) in from.iter().enumerate() {
                    model[*region][*offset as usize + at] = Some(*byte);
                }
            }
            for (read, (region, offset)) in reads.iter().zip(&ops) {
                for (at, byte) in read.into.iter().enumerate() {
                    assert_eq!(Some(*byte), model[*region][*offset as usize + at], "{way}");
                }
            }
        }
    });
}

#[test]
fn link_refused_batch_names_its_operation_and_the_link_goes_on() {
    over_each_transport(|pool, link, way| {
        let grant = pool.session().lease(pool, link, 1).expect("a lease").remove(0);
        let deadline = far_deadline(link);
        let good = |offset| WriteOp { span: span(&grant, offset, 4), from: b"good" };
        let outside = WriteOp { span: span(&grant, MIB - 2, 4), from: b"long" };
        match link.write(&[good(0), good(4), outside, good(8)], deadline) {
            Err(LinkError::Refused { index: 2, refusal }) => {
                assert_eq!((refusal.code, refusal.detail), (Code::OutOfBounds, MIB), "{way}");
            }
            other => panic!("{way}: {other:?}"),
        }
        // Operations before the refused one were carried out, later ones were not.
        assert_eq!(read(link, &grant, 0, 12).expect("a read"), b"goodgood\0\0\0\0");
        let (mut one, mut two) = ([0; 4], [0; 4]);
        let mut reads = [
            ReadOp { span: span(&grant, 0, 4), into: &mut one },
            ReadOp { span: span(&grant, u64::MAX, 4), into: &mut two },
        ];
        match link.read(&mut reads, deadline) {
            Err(LinkError::Refused { index: 1, refusal }) => assert_eq!(refusal.code, Code::OutOfBounds),
            other => panic!("{way}: {other:?}"),
        }
        assert_eq!(read(link, &grant, 4, 4).expect("a read"), b"good");
    });
}

#[test]
fn link_wrong_handle_is_refused() {
    over_each_transport(|pool, link, _| {
        let mut grant = pool.session().lease(pool, link, 1).expect("a lease").remove(0);
        grant.handle = Handle(grant.handle.0 ^ 1);
        assert_eq!(refused(read(link, &grant, 0, 8)), Code::WrongHandle);
        assert_eq!(refused(write(link, &grant, 0, b"x")), Code::WrongHandle);
    });
}

#[test]
fn link_region_of_no_node_is_refused() {
    over_each_transport(|pool, link, _| {
        let mut grant = pool.session().lease(pool, link, 1).expect("a lease").remove(0);
        grant.region.0 = 4;
        assert_eq!(refused(read(link, &grant, 0, 8)), Code::NoSuchRegion);
    });
}

#[test]
fn link_operation_larger_than_a_frame_is_refused_before_it_is_sent() {
    over_each_transport(|pool, link, _| {
        let grant = pool.session().lease(pool, link, 1).expect("a lease").remove(0);
        let large = vec![0; IO_BYTES_MAX + 1];
        assert!(matches!(write(link, &grant, 0, &large), Err(LinkError::Protocol(_))));
        write(link, &grant, 0, b"still good").expect("the link was not touched");
    });
}

#[test]
fn link_sealed_region_is_read_by_its_new_handle_and_written_by_nobody() {
    over_each_transport(|pool, link, way| {
        let session = pool.session();
        let before = session.lease(pool, link, 1).expect("a lease").remove(0);
        write(link, &before, 1_000, b"for good").expect("a write");
        let sealed = session.seal(link, std::slice::from_ref(&before)).expect("sealed").remove(0);
        assert_eq!(read(link, &sealed, 1_000, 8).expect("a read"), b"for good", "{way}");
        assert_eq!(refused(write(link, &sealed, 0, b"x")), Code::Sealed);
        assert_eq!(refused(write(link, &before, 0, b"x")), Code::StaleEpoch);
        assert_eq!(refused(read(link, &before, 0, 1)), Code::StaleEpoch);
    });
}

#[test]
fn link_lease_in_grace_refuses_until_it_is_renewed_and_keeps_its_bytes() {
    let settings = LeaseSettings { lease_ttl_ms: 300, grace_ms: 60_000, ..LeaseSettings::default() };
    for way in Way::ALL {
        let pool = way.pool(1, settings);
        let mut link = pool.link(way.transport());
        let session = pool.session();
        let grant = session.lease(&pool, &mut *link, 1).expect("a lease").remove(0);
        write(&mut *link, &grant, 0, b"kept").expect("a write");
        let give_up = soon();
        // The lease is not renewed, so it expires.
        while let Ok(found) = read(&mut *link, &grant, 0, 4) {
            assert_eq!(found, b"kept");
            assert!(farpool_host::clock::now() < give_up, "{way}: the lease expires");
        }
        assert_eq!(refused(read(&mut *link, &grant, 0, 4)), Code::LeaseExpired, "{way}");
        assert_eq!(refused(write(&mut *link, &grant, 0, b"late")), Code::LeaseExpired, "{way}");
        session.renew(&mut *link).expect("a renewal within the grace");
        assert_eq!(read(&mut *link, &grant, 0, 4).expect("a read"), b"kept", "{way}");
    }
}

#[test]
fn link_regions_come_zeroed_whoever_had_them() {
    over_each_transport(|pool, link, way| {
        let secret = [0xa5; 4096];
        for round in 0..5 {
            let session = pool.session();
            for grant in session.lease_patiently(pool, link, 4) {
                let found = read(link, &grant, 0, MIB as usize).expect("a read");
                assert!(found.iter().all(|byte| *byte == 0), "{way}, round {round}");
                for offset in [0, MIB / 2, MIB - 4096] {
                    write(link, &grant, offset, &secret).expect("a write");
                }
                session.release(link, &[grant]).expect("a release");
            }
        }
    });
}

#[test]
fn link_peer_that_goes_away_is_an_error_within_the_deadline() {
    for way in [Way::Tcp, Way::Tls, Way::Shm] {
        let pool = way.pool(1, lasting_leases());
        let mut link = pool.link(way.transport());
        let grant = pool.session().lease(&pool, &mut *link, 1).expect("a lease").remove(0);
        write(&mut *link, &grant, 0, b"here").expect("a write");
        drop(pool);
        let gone = link.call(&farpool_wire::Request::Status(farpool_wire::control::Done {}), soon());
        assert!(matches!(gone, Err(LinkError::Disconnected(_))), "{way}: {gone:?}");
    }
}
