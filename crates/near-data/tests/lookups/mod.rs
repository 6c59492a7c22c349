//! Lookups (key tables and Bloom filters for the semi-joins of scans): a lookup exists as long as it is used, its
//! memory is charged to its client, and hostile bytes are refused.

use super::*;
use arrow_array::{ArrayRef, BooleanArray, Int64Array, StringArray};
use farpool_operators::JoinLookup;
use farpool_operators::packed::pack;

impl Node {
    fn put(&self, connection: u64, put: PutLookup) -> Result<LookupPut, Refusal> {
        self.put_as(&Peer { connection, ..Peer::default() }, put)
    }

    fn put_as(&self, peer: &Peer, put: PutLookup) -> Result<LookupPut, Refusal> {
        match self.service.call(peer, Request::PutLookup(put))? {
            Reply::PutLookup(put) => Ok(put),
            other => panic!("{other:?}"),
        }
    }

    fn drop_lookup(&self, lookup: Handle) {
        self.ask(9, Request::DropLookup(LookupId { lookup })).expect("dropped");
    }
}

fn part(lookup: Handle, kind: LookupKind, bytes: u32, part: &[u8]) -> PutLookup {
    PutLookup { lookup, kind, bytes, part: Bytes::new(part.to_vec()).expect("a part") }
}

/// Returns the keys of a lookup in their wire form.
fn keys(numbers: impl IntoIterator<Item = i64>) -> Vec<u8> {
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
    pack(&RecordBatch::try_from_iter([("", column)]).expect("a batch"))
}

fn joined(lookups: Vec<Handle>, lookup: JoinLookup, number: u8) -> OpenScan {
    let join = Operator::SemiJoin { keys: vec![0], lookup, number, is_anti: false };
    let near = sum().operators().to_vec();
    let operators = [vec![join], near].concat();
    OpenScan { lookups: List::new(lookups).expect("few"), ..asked(&program(operators)) }
}

#[test]
fn lookup_that_was_brought_in_parts_serves_scans_until_its_connection_ends() {
    let node = Node::start();
    let bytes = keys((0..2_000).map(|at| at * 5));
    let count = bytes.len() as u32;
    let begun = node.put(1, part(Handle(0), LookupKind::Keys, count, &bytes[..1_000])).expect("begun");
    assert_eq!(begun.bytes, 1_000);
    let id = begun.lookup;
    let not_whole = node.open(joined(vec![id], JoinLookup::Keys, 0));
    assert_eq!(not_whole, Err(Refusal::new(Code::BadLookup, 0)));
    let whole = node.put(1, part(id, LookupKind::Keys, count, &bytes[1_000..])).expect("whole");
    assert_eq!(whole, LookupPut { lookup: id, bytes: count });
    // Both scans are opened before the lookup is dropped and return rows after it.
    let (first, second) =
        (joined(vec![id], JoinLookup::Keys, 0), joined(vec![Handle(9), id], JoinLookup::Keys, 1));
    assert_eq!(node.open(second), Err(Refusal::new(Code::BadLookup, 0)), "each that is named is there");
    let scans = [node.open(first.clone()).expect("opened"), node.open(first.clone()).expect("opened")];
    node.drop_lookup(id);
    assert_eq!(node.open(first), Err(Refusal::new(Code::BadLookup, 0)));
    for scan in scans {
        let (batches, _) = node.rest(scan).expect("a sum");
        let sum: i128 =
            batches.iter().map(|batch| batch.column(0).as_primitive::<Decimal128Type>().value(0)).sum();
        assert_eq!(sum, (0..2_000).map(|at| at * 5).sum::<i128>());
    }
    let other = node.put(3, part(Handle(0), LookupKind::Bloom, 32, &[0xff; 32])).expect("whole").lookup;
    node.service.ended(&Peer { connection: 1, ..Peer::default() });
    assert!(node.open(joined(vec![other], JoinLookup::Bloom, 0)).is_ok());
    node.service.ended(&Peer { connection: 3, ..Peer::default() });
    assert!(node.open(joined(vec![other], JoinLookup::Bloom, 0)).is_err());
    node.check();
}

#[test]
fn hostile_lookups_are_refused_and_forgotten() {
    let node = Node::start();
    let bad = |come| Err(Refusal::new(Code::BadLookup, come));
    let whole = keys(0..100);
    let count = whole.len() as u32;
    // Refused parts: of an unknown lookup, of another connection's lookup, with a length above the limit, after the
    // last part, of another kind or length, empty, and with too many bytes.
    assert_eq!(node.put(1, part(Handle(7), LookupKind::Keys, count, &whole)), bad(0));
    let begin = || node.put(1, part(Handle(0), LookupKind::Keys, count, &whole[..64])).expect("begun").lookup;
    let rest = |id| node.put(1, part(id, LookupKind::Keys, count, &whole[64..]));
    let id = begin();
    assert_eq!(node.put(2, part(id, LookupKind::Keys, count, &whole[64..])), bad(0));
    for id in [Handle(0), id] {
        let too_long = node.put(1, part(id, LookupKind::Keys, (16 << 20) + 1, &[0; 32]));
        assert_eq!(too_long, Err(Refusal::new(Code::LimitReached, 16 << 20)));
    }
    assert!(rest(id).is_ok(), "neither ends it");
    assert_eq!(rest(id), bad(count.into()), "it is whole");
    assert!(node.open(joined(vec![id], JoinLookup::Keys, 0)).is_ok(), "and stays so");
    for wrong in [
        |id, rest: &[u8], count| part(id, LookupKind::Bloom, count, rest),
        |id, rest: &[u8], count| part(id, LookupKind::Keys, count + 1, rest),
        |id, _: &[u8], count| part(id, LookupKind::Keys, count, &[]),
        |id, rest: &[u8], count| part(id, LookupKind::Keys, count, &[rest, rest].concat()),
    ] {
        let id = begin();
        assert_eq!(node.put(1, wrong(id, &whole[64..], count)), bad(64), "what had come before");
        assert_eq!(rest(id), bad(0), "it is forgotten");
    }
    // Bytes that are invalid for their kind.
    for (kind, bytes) in [
        (LookupKind::Bloom, vec![0; 12]),
        (LookupKind::Bloom, vec![]),
        (LookupKind::Keys, vec![0xff; 64]),
        (LookupKind::Keys, whole[..whole.len() - 128].to_vec()),
        // A header that announces 2^24 rows of 1,088 columns, without any data.
        (LookupKind::Keys, [0u32, 1 << 24, 1_088].iter().flat_map(|word| word.to_le_bytes()).collect()),
    ] {
        assert_eq!(node.put(1, part(Handle(0), kind, bytes.len() as u32, &bytes)), bad(0));
    }
    let begun = node.put(1, part(Handle(0), LookupKind::Keys, 128, &[0xff; 100])).expect("begun").lookup;
    for before in [100, 0] {
        assert_eq!(node.put(1, part(begun, LookupKind::Keys, 128, &[0xff; 28])), bad(before));
    }
    // Programs that do not fit their lookups: another kind, keys of another type, or a number without a lookup.
    let id = node.put(1, part(Handle(0), LookupKind::Keys, count, &whole)).expect("whole").lookup;
    let text: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
    let text = pack(&RecordBatch::try_from_iter([("", text)]).expect("a batch"));
    let text =
        node.put(1, part(Handle(0), LookupKind::Keys, text.len() as u32, &text)).expect("whole").lookup;
    for (lookups, lookup, number) in [
        (vec![id], JoinLookup::Bloom, 0),
        (vec![text], JoinLookup::Keys, 0),
        (vec![id], JoinLookup::Keys, 1),
        (vec![], JoinLookup::Keys, 0),
    ] {
        assert_eq!(node.open(joined(lookups, lookup, number)), Err(Refusal::new(Code::BadProgram, 0)));
    }
    assert!(node.open(joined(vec![id; 16], JoinLookup::Keys, 15)).is_ok());
    node.check();
}

#[test]
fn lookups_that_are_announced_come_to_a_bound_of_their_client_and_of_the_node() {
    let node = Node::start();
    let begin = |connection| {
        node.put(connection, part(Handle(0), LookupKind::Keys, 16 << 20, &[0])).map(|put| put.lookup)
    };
    let full = |refused: Result<Handle, Refusal>| refused.expect_err("full").code == Code::LimitReached;
    let first = [begin(1).expect("begun"), begin(1).expect("begun")];
    assert!(full(begin(1)));
    let _second = [begin(2).expect("begun"), begin(2).expect("begun")];
    assert!(full(begin(3)));
    // A lookup that is dropped makes room, unless a scan uses it.
    node.drop_lookup(first[0]);
    begin(3).expect("begun");
    assert!(full(begin(3)));
    node.service.ended(&Peer { connection: 2, ..Peer::default() });
    begin(3).expect("begun");
    // Each small lookup is charged at least 64 KiB.
    let small = (0..).take_while(|_| node.put(4, part(Handle(0), LookupKind::Bloom, 32, &[0; 32])).is_ok());
    assert_eq!(small.count(), (128 << 20) / (64 << 10));
    node.check();
}

/// Returns the first byte of a lookup whose announced length is charged as this many MiB: 8 bytes per announced byte.
fn announced(mib: u32) -> PutLookup {
    part(Handle(0), LookupKind::Keys, (mib << 20) / 8, &[0])
}

#[test]
fn lookups_count_what_is_made_of_them() {
    let node = Node::start();
    let put = |bytes: &[u8]| {
        bytes.chunks(1 << 20).try_fold(Handle(0), |id, piece| {
            node.put(1, part(id, LookupKind::Keys, bytes.len() as u32, piece)).map(|put| put.lookup)
        })
    };
    // 2^20 keys of 8 bytes are charged 64 MiB until all parts are here. The node then makes a bitmap of them, and ten
    // bitmaps take a few MiB.
    let numbers = keys(0..1 << 20);
    for _ in 0..10 {
        put(&numbers).expect("a few MiB");
    }
    node.service.ended(&Peer { connection: 1, ..Peer::default() });
    // 24 columns of 2^20 booleans: 3 MiB on the wire, charged 24 MiB. The table takes more, a byte for each boolean.
    let bits = |bit: u32| -> ArrayRef {
        Arc::new(BooleanArray::from_iter((0..1 << 20).map(|row| Some(row >> bit & 1 == 1))))
    };
    let flags = |count: u32| {
        let names: Vec<String> = (0..count).map(|bit| format!("{bit}")).collect();
        let columns = names.iter().zip(0..).map(|(name, bit)| (name, bits(bit)));
        pack(&RecordBatch::try_from_iter(columns).expect("a batch"))
    };
    let others = [128, 104].map(|mib| node.put(1, announced(mib)).expect("announced").lookup);
    let full = Refusal::new(Code::LimitReached, 256 << 20);
    // The second table has only 256 different keys, but the node learns this only while it makes the table.
    assert_eq!([put(&flags(24)), put(&flags(8))], [Err(full), Err(full)]);
    // A complete lookup is charged its actual size: 24 MiB of keys, 4 MiB of key ends and 16 MiB of positions.
    node.drop_lookup(others[1]);
    put(&flags(24)).expect("whole");
    assert_eq!(node.put(1, announced(85)), Err(full));
    node.put(1, announced(83)).expect("announced");
    node.check();
}

#[test]
fn lookups_count_for_their_client_over_all_its_connections_and_while_a_scan_uses_them() {
    let node = Node::start();
    let put = |connection, client, put| {
        let peer = Peer { connection, client: ClientId(client), ..Peer::default() };
        node.put_as(&peer, put).map(|put| put.lookup)
    };
    let full = Err(Refusal::new(Code::LimitReached, 256 << 20));
    put(1, 5, announced(128)).expect("announced");
    put(2, 5, announced(127)).expect("announced");
    assert_eq!(put(3, 5, announced(2)), full);
    assert!(put(3, 6, announced(2)).is_ok(), "another client");
    let filter = || part(Handle(0), LookupKind::Bloom, 512 << 10, &[0xff; 512 << 10]);
    let used = put(3, 5, filter()).expect("whole");
    let scan = node.open(joined(vec![used], JoinLookup::Bloom, 0)).expect("opened");
    node.drop_lookup(used);
    assert_eq!(put(3, 5, filter()), full, "the scan keeps it");
    node.ask(1, Request::CloseScan(ScanId { scan })).expect("closed");
    assert!(put(3, 5, filter()).is_ok());
    node.check();
}

#[test]
fn lookups_end_when_nobody_uses_them() {
    let node = Node::start();
    let bytes = keys(0..100);
    let count = bytes.len() as u32;
    let put = |id, bytes: &[u8]| node.put(1, part(id, LookupKind::Keys, count, bytes)).map(|put| put.lookup);
    let [idle, used, asked] = [(); 3].map(|()| put(Handle(0), &bytes).expect("whole"));
    let [left, going_on] = [(); 2].map(|()| put(Handle(0), &bytes[..64]).expect("begun"));
    let scan = node.open(joined(vec![used], JoinLookup::Keys, 0)).expect("opened");
    let at = |seconds: u64| node.host.ahead_ms.store(seconds * 1_000, Ordering::Relaxed);
    let open = |id| node.open(joined(vec![id], JoinLookup::Keys, 0));
    at(40);
    node.claim(scan, 0).expect("claimed");
    let begun = open(asked).expect("opened");
    node.ask(1, Request::CloseScan(ScanId { scan: begun })).expect("closed");
    put(going_on, &bytes[64..128]).expect("another part");
    at(61);
    let none = Refusal::new(Code::BadLookup, 0);
    assert_eq!(open(idle), Err(none));
    assert_eq!(put(left, &bytes[64..]), Err(none));
    put(going_on, &bytes[128..]).expect("whole");
    assert!([used, asked, going_on].iter().all(|id| open(*id).is_ok()));
    node.check();
}
