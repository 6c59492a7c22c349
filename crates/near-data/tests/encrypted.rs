//! Scans of encrypted tables. Buffers are decrypted with the table's key, from immutable and from leased regions. If
//! decryption fails, the scan ends. A wrong key or a wrong position in the table has no other effect.

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_buffer::Buffer;
use farpool_encryption::{BufferPlace, ChunkCipher, EncryptionKey, TAG_BYTES, TableCipher};
use farpool_host::Machine;
use farpool_near_data::FunctionOptions;
use farpool_node::NodeService;
use farpool_operators::packed::unpack;
use farpool_operators::{Program, Type};
use farpool_region::{Arena, ArenaOptions};
use farpool_transport::{Exposure, Peer, Service, Sockets};
use farpool_wire::control::*;
use farpool_wire::limits::REGION_BYTES_MIN;
use farpool_wire::*;
use std::sync::Arc;

const REGION: RegionIndex = RegionIndex(0);
const HANDLE: Handle = Handle(77);
const KEY: [u8; 16] = [5; 16];
const SALT: [u8; 16] = [6; 16];
const ROWS: u32 = 1_000;
const POSITION: u64 = 65_536;
const COLUMN: u16 = 3;
/// Bytes of a buffer and its tag, rounded up to a multiple of 64.
const STEP: u32 = 8_064;

/// A node with one encrypted buffer that is stored twice in a region: at offset 0 and at offset `STEP`.
struct Node(NodeService);

impl Node {
    fn start(is_sealed: bool) -> Node {
        let options = ArenaOptions::new(REGION_BYTES_MIN, 1);
        let arena = Arena::new(&options).expect("an arena");
        arena.open(REGION, Epoch(1), Some(HANDLE), None).expect("opened");
        let mut bytes: Vec<u8> = (0..i64::from(ROWS)).flat_map(i64::to_le_bytes).collect();
        let place = BufferPlace { position: POSITION, column: COLUMN, buffer: 0 };
        let tag = TableCipher::new(&EncryptionKey::new(KEY), SALT).encrypt(place, &mut bytes);
        bytes.extend_from_slice(&tag);
        for offset in [0, STEP] {
            let entered = arena.enter(REGION).expect("entered");
            entered.copy_in(offset.into(), &bytes).expect("copied");
        }
        if is_sealed {
            arena.close(REGION, Epoch(2)).expect("closed");
            arena.reseat(REGION, None).expect("reseated");
            arena.open(REGION, Epoch(2), None, Some(HANDLE)).expect("sealed");
        }
        let (node, _) = NodeService::begin(Arc::new(Machine), arena, NodeId(1)).expect("a node");
        Node(
            node.extended(
                Sockets::dialer(Exposure::default()),
                farpool_near_data::extension(FunctionOptions::default()),
            )
            .expect("extended"),
        )
    }

    fn ask(&self, request: Request) -> Result<Reply, Refusal> {
        self.0.call(&Peer { connection: 1, ..Peer::default() }, request)
    }

    fn first_chunk(&self, open: OpenScan) -> Result<Chunk, Refusal> {
        let Reply::OpenScan(ScanOpened { scan, .. }) = self.ask(Request::OpenScan(open))? else {
            panic!("no scan");
        };
        match self.ask(Request::NextChunk(ScanId { scan }))? {
            Reply::NextChunk(chunk) => Ok(chunk),
            other => panic!("{other:?}"),
        }
    }
}

fn open(epoch: u64, key: [u8; 16], change: impl FnOnce(&mut ScanGroup, &mut Vec<u16>)) -> OpenScan {
    let buffer = ScanBuffer { offset: 0, bytes: ROWS * 8 };
    let column = ScanColumn {
        layout: ColumnLayout::Plain,
        null_count: 0,
        buffers: List::new(vec![buffer]).expect("one"),
    };
    let columns = List::new(vec![column]).expect("one");
    let mut group = ScanGroup { region: 0, offset: 0, rows: ROWS, position: POSITION, columns };
    let mut columns = vec![COLUMN];
    change(&mut group, &mut columns);
    let program = Program::check(vec![Type::Int64], vec![]).expect("a program").encode().expect("encoded");
    let columns = List::new(columns).expect("few");
    let opening = ScanOpening { key: ScanKey(key), salt: SALT, columns };
    OpenScan {
        lookups: List::default(),
        program: Bytes::new(program).expect("short"),
        regions: List::new(vec![ScanRegion { region: REGION, epoch: Epoch(epoch), handle: HANDLE }])
            .expect("one"),
        groups: List::new(vec![group]).expect("one"),
        seals: ScanSeals { opening: List::new(vec![opening]).expect("one"), answers: List::default() },
    }
}

#[test]
fn buffers_decrypt_in_sealed_and_in_leased_regions_and_only_at_their_place() {
    for (is_sealed, epoch) in [(true, 2), (false, 1)] {
        let node = Node::start(is_sealed);
        let chunk = node.first_chunk(open(epoch, KEY, |_, _| {})).expect("rows");
        let batches = unpack(Buffer::from_vec(chunk.batches.into_vec())).expect("batches");
        let numbers: Vec<i64> = batches
            .iter()
            .flat_map(|(_, batch)| batch.column(0).as_primitive::<Int64Type>().values().to_vec())
            .collect();
        assert_eq!(numbers, (0..i64::from(ROWS)).collect::<Vec<_>>());
        let refusals = [
            (open(epoch, [4; 16], |_, _| {}), Code::NotOpened),
            (open(epoch, KEY, |group, _| group.position += 1), Code::NotOpened),
            (open(epoch, KEY, |_, columns| columns[0] += 1), Code::NotOpened),
            (open(epoch, KEY, |group, _| group.offset += 8), Code::NotOpened),
            (open(epoch, KEY, |_, columns| columns.push(0)), Code::BadColumns),
            // The buffer ends where the region ends, so its tag lies outside.
            (
                open(epoch, KEY, |group, _| group.offset = REGION_BYTES_MIN - u64::from(ROWS * 8)),
                Code::OutOfBounds,
            ),
        ];
        for (asked, code) in refusals {
            assert_eq!(node.first_chunk(asked.clone()).expect_err("refused").code, code, "{asked:?}");
        }
        // The second copy is decrypted as well: the authenticated position is the one in the table, not the offset in
        // the region.
        assert!(node.first_chunk(open(epoch, KEY, |group, _| group.offset += u64::from(STEP))).is_ok());
        assert!(!format!("{:?}", open(epoch, KEY, |_, _| {})).contains("5, 5"), "keys are not printed");
    }
}

#[test]
fn chunks_are_encrypted_under_the_key_that_came_with_the_scan() {
    let node = Node::start(true);
    let encrypted = || {
        let seals = ScanSeals {
            answers: List::new(vec![ScanKey([8; 16])]).expect("one"),
            ..open(2, KEY, |_, _| {}).seals
        };
        node.first_chunk(OpenScan { seals, ..open(2, KEY, |_, _| {}) }).expect("a chunk")
    };
    let plain = node.first_chunk(open(2, KEY, |_, _| {})).expect("a chunk").batches.into_vec();
    let chunk = encrypted();
    assert_eq!(chunk.batches.len(), plain.len() + TAG_BYTES);
    let head = chunk.authenticated_head();
    let mut batches = chunk.batches.into_vec();
    assert_ne!(batches[..plain.len()], plain[..]);
    let cipher = ChunkCipher::new(&EncryptionKey::new([8; 16]));
    assert_eq!(cipher.decrypt(1, &head, &mut batches.clone()), Err(farpool_encryption::NotAuthentic));
    assert_eq!(cipher.decrypt(0, &head, &mut batches), Ok(()));
    assert_eq!(batches, plain[..]);
}
