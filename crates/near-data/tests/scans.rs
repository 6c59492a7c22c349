//! Scans: each row group is counted once, no rows leave the node without a right to read them, and a wrong or hostile
//! program is refused or stopped with an error while the node continues to serve.

mod lookups;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Int64Type};
use arrow_buffer::Buffer;
use farpool_host::{Host, HostLayer, Machine};
use farpool_near_data::FunctionOptions;
use farpool_node::NodeService;
use farpool_operators::expression::{Binary, Instruction};
use farpool_operators::packed::unpack;
use farpool_operators::{Aggregate, AggregateFunction, Comparison, Operator, Program, Scalar, Type, Value};
use farpool_region::{Arena, ArenaOptions};
use farpool_transport::{Exposure, Peer, Service, Sockets};
use farpool_wire::control::*;
use farpool_wire::limits::REGION_BYTES_MIN;
use farpool_wire::*;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const REGION: RegionIndex = RegionIndex(0);
const READ: Handle = Handle(77);
const SEALED: Epoch = Epoch(2);
const GROUP_ROWS: u32 = 1_000;
const GROUPS: u32 = 12;
const COLUMN_BYTES: u32 = GROUP_ROWS * 8;

/// Host of the tests: this machine, with its clock ahead by a number of milliseconds that tests set.
struct Clocked {
    ahead_ms: AtomicU64,
}

impl HostLayer for Clocked {
    fn inner(&self) -> &dyn Host {
        &Machine
    }

    fn now(&self) -> MonoNs {
        Machine.now().plus_ms(self.ahead_ms.load(Ordering::Relaxed))
    }
}

/// A node with one immutable region. It holds 12 row groups of one column, the numbers from 0 to 11,999.
struct Node {
    service: NodeService,
    host: Arc<Clocked>,
}

impl Node {
    fn start() -> Node {
        let options = ArenaOptions::new(REGION_BYTES_MIN, 1);
        let arena = Arena::new(&options).expect("an arena");
        arena.open(REGION, Epoch(1), Some(Handle(1)), None).expect("opened");
        let numbers: Vec<u8> = (0..i64::from(GROUPS * GROUP_ROWS)).flat_map(i64::to_le_bytes).collect();
        for (at, piece) in numbers.chunks(64 << 10).enumerate() {
            let entered = arena.enter(REGION).expect("entered");
            entered.copy_in((at * (64 << 10)) as u64, piece).expect("copied");
        }
        arena.close(REGION, SEALED).expect("closed");
        arena.reseat(REGION, None).expect("reseated");
        arena.open(REGION, SEALED, None, Some(READ)).expect("sealed");
        let host = Arc::new(Clocked { ahead_ms: AtomicU64::new(0) });
        let (service, _) = NodeService::begin(host.clone(), arena, NodeId(1)).expect("a node");
        let service = service
            .extended(
                Sockets::dialer(Exposure::default()),
                farpool_near_data::extension(FunctionOptions::default()),
            )
            .expect("extended");
        Node { service, host }
    }

    fn ask(&self, connection: u64, request: Request) -> Result<Reply, Refusal> {
        self.service.call(&Peer { connection, ..Peer::default() }, request)
    }

    fn open(&self, open: OpenScan) -> Result<Handle, Refusal> {
        match self.ask(1, Request::OpenScan(open))? {
            Reply::OpenScan(opened) => Ok(opened.scan),
            other => panic!("{other:?}"),
        }
    }

    fn next(&self, scan: Handle) -> Result<Chunk, Refusal> {
        match self.ask(1, Request::NextChunk(ScanId { scan }))? {
            Reply::NextChunk(chunk) => Ok(chunk),
            other => panic!("{other:?}"),
        }
    }

    fn claim(&self, scan: Handle, groups: u32) -> Result<Claimed, Refusal> {
        match self.ask(2, Request::ClaimGroups(ClaimGroups { scan, groups }))? {
            Reply::ClaimGroups(claimed) => Ok(claimed),
            other => panic!("{other:?}"),
        }
    }

    /// Returns all remaining batches of a scan, and the number of row groups that the node processed.
    fn rest(&self, scan: Handle) -> Result<(Vec<RecordBatch>, u32), Refusal> {
        let mut batches = Vec::new();
        loop {
            let Chunk { is_last, done, batches: packed, .. } = self.next(scan)?;
            let unpacked = unpack(Buffer::from_vec(packed.into_vec())).expect("batches");
            batches.extend(unpacked.into_iter().map(|(_, batch)| batch));
            if is_last {
                return Ok((batches, done));
            }
        }
    }

    /// Asserts that the node still works: a scan returns the right sum.
    fn check(&self) {
        let scan = self.open(asked(&sum())).expect("opened");
        let (batches, done) = self.rest(scan).expect("a sum");
        assert_eq!(done, GROUPS);
        let sum: i128 =
            batches.iter().map(|batch| batch.column(0).as_primitive::<Decimal128Type>().value(0)).sum();
        let rows = i128::from(GROUPS * GROUP_ROWS);
        assert_eq!(sum, rows * (rows - 1) / 2);
    }
}

fn program(operators: Vec<Operator>) -> Program {
    Program::check(vec![Type::Int64], operators).expect("a program")
}

fn sum() -> Program {
    let total = Aggregate { function: AggregateFunction::Sum, column: Some(0) };
    program(vec![Operator::Group { keys: vec![], aggregates: vec![total], groups: 1 }])
}

fn number(value: i64) -> Instruction {
    Instruction::Literal(Scalar { of: Type::Int64, value: Some(Value::Integer(value.into())) })
}

/// Returns the description of the row group with this index.
fn group(index: u32) -> ScanGroup {
    let buffer = ScanBuffer { offset: 0, bytes: COLUMN_BYTES };
    let buffers = List::new(vec![buffer]).expect("one");
    ScanGroup {
        region: 0,
        offset: u64::from(index * COLUMN_BYTES),
        rows: GROUP_ROWS,
        position: u64::from(index * GROUP_ROWS),
        columns: List::new(vec![ScanColumn { layout: ColumnLayout::Plain, null_count: 0, buffers }])
            .expect("one"),
    }
}

fn asked_of(program: Vec<u8>, groups: Vec<ScanGroup>) -> OpenScan {
    let region = ScanRegion { region: REGION, epoch: SEALED, handle: READ };
    OpenScan {
        program: Bytes::new(program).expect("a program's bytes"),
        lookups: List::default(),
        regions: List::new(vec![region]).expect("one"),
        groups: List::new(groups).expect("few"),
        seals: ScanSeals::default(),
    }
}

fn asked(program: &Program) -> OpenScan {
    asked_of(program.encode().expect("encoded"), (0..GROUPS).map(group).collect())
}

fn with_group(change: impl FnOnce(&mut ScanGroup)) -> OpenScan {
    let mut wrong = group(1);
    change(&mut wrong);
    asked_of(sum().encode().expect("encoded"), vec![group(0), wrong])
}

fn with_column(change: impl FnOnce(&mut ScanColumn)) -> OpenScan {
    with_group(|group| {
        let mut column = group.columns[0].clone();
        change(&mut column);
        group.columns = List::new(vec![column]).expect("one");
    })
}

fn buffers(all: &[(u32, u32)]) -> List<ScanBuffer, { limits::SCAN_BUFFERS_MAX }> {
    let buffer = |(offset, bytes): &(u32, u32)| ScanBuffer { offset: *offset, bytes: *bytes };
    List::new(all.iter().map(buffer).collect()).expect("few")
}

#[test]
fn row_groups_that_cannot_be_such_columns_are_refused_before_anything_runs() {
    let node = Node::start();
    let wrong = [
        with_group(|group| group.region = 1),
        with_group(|group| group.rows = 0),
        with_group(|group| group.rows = 65_537),
        with_group(|group| group.columns = List::default()),
        with_column(|column| column.null_count = GROUP_ROWS + 1),
        with_column(|column| column.null_count = 1),
        with_column(|column| column.layout = ColumnLayout::Dictionary),
        with_column(|column| column.buffers = List::default()),
        with_column(|column| column.buffers = buffers(&[(0, 8), (0, 8)])),
        with_column(|column| column.buffers = buffers(&[(0, (64 << 20) + 1)])),
    ];
    for open in wrong {
        assert_eq!(node.open(open.clone()), Err(Refusal::new(Code::BadColumns, 1)), "{open:?}");
    }
    let no_right = |change: fn(&mut ScanRegion)| {
        let mut open = asked(&sum());
        let mut region = open.regions[0].clone();
        change(&mut region);
        open.regions = List::new(vec![region]).expect("one");
        node.open(open).expect_err("no right")
    };
    assert_eq!(no_right(|region| region.epoch = Epoch(1)).code, Code::StaleEpoch);
    assert_eq!(no_right(|region| region.handle = Handle(1)).code, Code::WrongHandle);
    assert_eq!(no_right(|region| region.region = RegionIndex(9)).code, Code::NoSuchRegion);
    node.check();
}

/// Returns a request for the sums of columns that are stored in rows of `bytes` bytes in total. Each of `places` is a
/// column: its offset in the row, and the bytes of a row.
fn in_rows(rows: u32, places: &[(u32, u32)], bytes: u32) -> OpenScan {
    let column = |(start, row_bytes): &(u32, u32)| ScanColumn {
        layout: ColumnLayout::Rows,
        null_count: 0,
        buffers: buffers(&[(0, bytes), (*start, *row_bytes)]),
    };
    let columns = List::new(places.iter().map(column).collect()).expect("few");
    let total = |column| Aggregate { function: AggregateFunction::Sum, column: Some(column) };
    let aggregates = (0..places.len().min(64) as u16).map(total).collect();
    let sums = vec![Operator::Group { keys: vec![], aggregates, groups: 1 }];
    let sums = Program::check(vec![Type::Int64; places.len()], sums).expect("a program");
    asked_of(sums.encode().expect("encoded"), vec![ScanGroup { rows, columns, ..group(0) }])
}

#[test]
fn columns_are_taken_out_of_the_rows_that_they_lie_in() {
    let node = Node::start();
    let scan = node.open(in_rows(500, &[(8, 16), (0, 16)], 8_000)).expect("opened");
    let (batches, _) = node.rest(scan).expect("sums");
    let sum = |column: usize| batches[0].column(column).as_primitive::<Decimal128Type>().value(0);
    assert_eq!([sum(0), sum(1)], [250_000, 249_500], "the odd numbers below 1,000, and the even ones");
}

#[test]
fn columns_that_lie_in_no_rows_are_refused() {
    let node = Node::start();
    let bad = |index| Err(Refusal::new(Code::BadColumns, index));
    let two_sizes = in_rows(500, &[(8, 16), (0, 8)], 8_000);
    assert_eq!(node.open(two_sizes), bad(0), "rows of two sizes");
    let mut beside = in_rows(500, &[(8, 16), (0, 16)], 8_000);
    let mut mixed = beside.groups[0].clone();
    let plain = ScanColumn { layout: ColumnLayout::Plain, null_count: 0, buffers: buffers(&[(0, 4_000)]) };
    mixed.columns = List::new(vec![mixed.columns[0].clone(), plain]).expect("two");
    beside.groups = List::new(vec![mixed]).expect("one");
    assert_eq!(node.open(beside), bad(0), "a column by itself beside rows");
    let many: Vec<(u32, u32)> = (0..1_000).map(|_| (0, 8)).collect();
    for (open, why) in [
        (in_rows(500, &[(9, 16)], 8_000), "it leaves the row"),
        (in_rows(500, &[(u32::MAX, 16)], 8_000), "it leaves the row by far"),
        (in_rows(500, &[(0, 16)], 7_999), "a row is cut off"),
        (in_rows(500, &[(0, 0)], 0), "rows of nothing"),
        (in_rows(12_000, &many, 96_000), "more bytes than a row group may have"),
    ] {
        let scan = node.open(open).expect("opened");
        assert_eq!(node.rest(scan).map(|_| ()), bad(0).map(|_: Handle| ()), "{why}");
    }
    node.check();
}

#[test]
fn row_groups_whose_bytes_are_no_such_columns_end_the_scan() {
    let node = Node::start();
    let text = Program::check(vec![Type::Text], vec![]).expect("a program").encode().expect("encoded");
    let of_text = |all: &[(u32, u32)], rows: u32| {
        let mut open = with_column(|column| column.buffers = buffers(all));
        let mut wrong = open.groups[1].clone();
        wrong.rows = rows;
        open.groups = List::new(vec![wrong]).expect("one");
        OpenScan { program: Bytes::new(text.clone()).expect("bytes"), ..open }
    };
    let too_short = with_column(|column| column.buffers = buffers(&[(0, COLUMN_BYTES - 1)]));
    // The region holds numbers, which are not valid offsets of a text column and not valid text.
    for (open, code) in [
        (too_short, Code::BadColumns),
        (of_text(&[(0, 40), (0, 64)], 9), Code::BadColumns),
        (of_text(&[(0, 3), (0, 64)], 9), Code::BadColumns),
        (with_group(|group| group.offset = REGION_BYTES_MIN - 8), Code::OutOfBounds),
        (with_group(|group| group.offset = u64::MAX - 8), Code::OutOfBounds),
    ] {
        let scan = node.open(open).expect("opened");
        let refused = node.rest(scan).expect_err("no columns");
        assert_eq!(refused.code, code, "{refused}");
        assert_eq!(node.next(scan), Err(Refusal::new(Code::NoSuchScan, 0)));
    }
    node.check();
}

#[test]
fn programs_that_are_none_or_cannot_run_are_refused_with_the_operator() {
    let node = Node::start();
    for bytes in [vec![], vec![9; 100], sum().encode().expect("encoded")[..5].to_vec()] {
        let refused = node.open(asked_of(bytes, vec![group(0)]));
        assert_eq!(refused, Err(Refusal::new(Code::BadProgram, u64::MAX)));
    }
    let text = |pattern: &str| {
        let matches = vec![Instruction::Column(0), Instruction::Matches { pattern: pattern.to_owned() }];
        let operators = vec![Operator::Limit(1), Operator::Filter(matches)];
        let operators = operators.into_iter().rev().collect();
        Program::check(vec![Type::Text], operators).expect("a program").encode().expect("encoded")
    };
    for pattern in ["(", r"((((\w{200}){200}){200}){200})"] {
        let refused = node.open(asked_of(text(pattern), vec![]));
        assert_eq!(refused, Err(Refusal::new(Code::BadProgram, 0)), "{pattern}");
    }
    node.check();
}

#[test]
fn program_whose_values_do_not_fit_is_stopped_and_may_be_tried_again() {
    let node = Node::start();
    let beyond = vec![Instruction::Column(0), number(i64::MAX), Instruction::Binary(Binary::Add)];
    let beyond = asked(&program(vec![Operator::Project(vec![beyond])]));
    for _ in 0..2 {
        let scan = node.open(beyond.clone()).expect("opened");
        assert_eq!(node.rest(scan).expect_err("an overflow"), Refusal::new(Code::ProgramStopped, 0));
    }
    node.check();
}

#[test]
fn program_that_comes_to_a_bound_is_stopped_and_not_run_again_for_ten_minutes() {
    let node = Node::start();
    let long = Scalar { of: Type::Text, value: Some(Value::Bytes(vec![b'x'; 4_096])) };
    // 30 columns of 4,096 bytes for 1,000 rows: 120 MB, above the limit of 64 MiB per row group.
    let columns = vec![vec![Instruction::Column(0)]; 30];
    let long = Operator::Project(vec![vec![Instruction::Literal(long)]]);
    let bomb = asked(&program(vec![long, Operator::Project(columns)]));
    let scan = node.open(bomb.clone()).expect("opened");
    let stopped = node.rest(scan).map(|(_, done)| done);
    assert_eq!(stopped, Err(Refusal::new(Code::ProgramStopped, 0)));
    assert_eq!(node.open(bomb.clone()), Err(Refusal::new(Code::Quarantined, 0)));
    node.check();
    node.host.ahead_ms.store(600_001, Ordering::Relaxed);
    assert!(node.open(bomb).is_ok());
}

#[test]
fn scan_whose_region_is_taken_back_gives_nothing_more() {
    let node = Node::start();
    let all = asked(&program(vec![]));
    let scan = node.open(all).expect("opened");
    node.next(scan).expect("a chunk");
    node.service.memory().close(REGION, Epoch(3)).expect("closed");
    let refused = loop {
        match node.next(scan) {
            Ok(chunk) => assert!(chunk.batches.is_empty(), "the right has ended"),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.code, Code::StaleEpoch);
    assert_eq!(node.next(scan), Err(Refusal::new(Code::NoSuchScan, 0)));
}

#[test]
fn scans_end_with_their_connection_or_when_nobody_asks() {
    let node = Node::start();
    let scans: Vec<Handle> = (0..3).map(|_| node.open(asked(&sum())).expect("opened")).collect();
    let of_another = node.ask(2, Request::NextChunk(ScanId { scan: scans[0] }));
    assert_eq!(of_another, Err(Refusal::new(Code::NoSuchScan, 0)), "steps are asked for by who opened it");
    node.service.ended(&Peer { connection: 1, ..Peer::default() });
    assert_eq!(node.next(scans[0]), Err(Refusal::new(Code::NoSuchScan, 0)));
    let idle = node.open(asked(&sum())).expect("opened");
    node.host.ahead_ms.store(60_001, Ordering::Relaxed);
    let used = node.open(asked(&sum())).expect("opened");
    assert_eq!(node.next(idle), Err(Refusal::new(Code::NoSuchScan, 0)));
    assert!(node.next(used).is_ok());
    node.check();
}

#[test]
fn scans_are_limited_for_each_client_and_for_all() {
    let node = Node::start();
    let open = |connection| node.ask(connection, Request::OpenScan(asked(&sum()))).map(|_| ());
    for client in 1..=4 {
        for _ in 0..16 {
            assert_eq!(open(client), Ok(()));
        }
        assert_eq!(open(client), Err(Refusal::new(Code::LimitReached, if client < 4 { 16 } else { 64 })));
    }
    assert_eq!(open(5), Err(Refusal::new(Code::LimitReached, 64)));
    node.service.ended(&Peer { connection: 1, ..Peer::default() });
    assert_eq!(open(5), Ok(()));
    node.check();
}

#[test]
fn programs_of_open_scans_take_no_more_memory_than_is_permitted() {
    let node = Node::start();
    let patterns = |first: usize| {
        let matches = |pattern| vec![Instruction::Column(0), Instruction::Matches { pattern }];
        let columns = (first..first + 32).map(|at| matches(format!("a{at}b")));
        let project = Operator::Project(columns.collect());
        let program = Program::check(vec![Type::Text], vec![project]).expect("a program");
        asked_of(program.encode().expect("encoded"), vec![])
    };
    // 32 patterns are charged at least 16 MiB, for the caches that their searches may fill.
    let opened = (0..16).map(|scan| node.open(patterns(32 * scan)));
    let refused = opened.filter_map(Result::err).next();
    assert_eq!(refused, Some(Refusal::new(Code::LimitReached, 256 << 20)));
    assert!(node.open(patterns(0)).is_ok(), "one that is open already takes no more");
    node.service.ended(&Peer { connection: 1, ..Peer::default() });
    node.check();
}

#[test]
fn program_that_was_made_ready_is_known_by_all_that_send_it() {
    let node = Node::start();
    let is_known = |connection| match node.ask(connection, Request::OpenScan(asked(&sum()))) {
        Ok(Reply::OpenScan(opened)) => opened.is_known,
        other => panic!("{other:?}"),
    };
    assert_eq!([is_known(1), is_known(1), is_known(2)], [false, true, true]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each row group is taken by the node or by the client, never by both, in any order of their steps and claims.
    #[test]
    fn node_from_the_front_and_client_from_the_back_take_each_row_group_once(
        takes in proptest::collection::vec(proptest::option::of(0..4u32), 0..20), kept in 1..GROUP_ROWS as i64,
    ) {
        let node = Node::start();
        let is_kept = vec![
            Instruction::Column(0), number(i64::from(GROUP_ROWS)), Instruction::Binary(Binary::Remainder),
            number(kept), Instruction::Compare(Comparison::Less)];
        let scan = node.open(asked(&program(vec![Operator::Filter(is_kept)]))).expect("opened");
        let mut seen = vec![0; GROUPS as usize];
        let mut is_over = false;
        let mut take = |chunk: Chunk| {
            for (group, batch) in unpack(Buffer::from_vec(chunk.batches.into_vec())).expect("batches") {
                seen[group as usize] += batch.num_rows() as i64;
                let first = batch.column(0).as_primitive::<Int64Type>().value(0);
                assert_eq!(first / i64::from(GROUP_ROWS), i64::from(group));
            }
            chunk.is_last
        };
        let mut claimed = Vec::new();
        for groups in takes {
            match groups {
                Some(_) if is_over => prop_assert!(node.claim(scan, 1).is_err()),
                Some(groups) => {
                    let Claimed { first, count } = node.claim(scan, groups).expect("claimed");
                    prop_assert!(count <= groups);
                    claimed.extend(first..first + count);
                }
                None if is_over => {}
                None => is_over = take(node.next(scan).expect("a chunk")),
            }
        }
        while !is_over {
            is_over = take(node.next(scan).expect("a chunk"));
        }
        for group in claimed {
            seen[group as usize] += kept;
        }
        prop_assert!(seen.iter().all(|rows| *rows == kept), "{seen:?}");
    }
}
