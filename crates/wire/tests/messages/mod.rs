//! Strategies for every control message: any value that its type allows, with short lists so that many fit a run.

use farpool_wire::codec::{Bytes, Field, List, Name, Text};
use farpool_wire::control::*;
use farpool_wire::*;
use proptest::collection::vec;
use proptest::prelude::*;

macro_rules! ids {
    ($($make:ident -> $name:ident($inner:ty)),* $(,)?) => {$(
        fn $make() -> impl Strategy<Value = $name> {
            prop_oneof![Just($name(0)), Just($name(<$inner>::MAX)), any::<$inner>().prop_map($name)]
        }
    )*};
}
ids!(
    node_id -> NodeId(u64), incarnation -> Incarnation(u64), term -> Term(u64), session_id -> SessionId(u64),
    client_id -> ClientId(u64),
    ticket_id -> TicketId(u64), file_id -> FileId(u64), table_id -> TableId(u64), commit_id -> CommitId(u64),
    region_index -> RegionIndex(u32),
    epoch -> Epoch(u64), handle -> Handle(u128), secret -> Secret(u128),
);

fn name() -> impl Strategy<Value = Name> {
    let long = Just("n".repeat(limits::NAME_BYTES_MAX));
    prop_oneof!["[^\\p{Cc}]{1,40}", long]
        .prop_map(|text| Name::new(text).expect("within the limits of a name"))
}

fn text() -> impl Strategy<Value = Text> {
    let long = Just("t".repeat(limits::TEXT_BYTES_MAX));
    prop_oneof!["[^\\p{Cc}]{0,40}", long]
        .prop_map(|text| Text::new(text).expect("within the limits of a text"))
}

fn class() -> impl Strategy<Value = FileClass> {
    proptest::sample::select(FileClass::ALL.to_vec())
}

fn list<T: Field + Clone + std::fmt::Debug, const MAX: usize>(
    item: impl Strategy<Value = T>,
) -> impl Strategy<Value = List<T, MAX>> {
    vec(item, 0..=MAX.min(5)).prop_map(|items| List::new(items).expect("no more than MAX"))
}

fn bytes<const MAX: usize>() -> impl Strategy<Value = Bytes<MAX>> {
    vec(any::<u8>(), 0..40).prop_map(|bytes| Bytes::new(bytes).expect("forty are few"))
}

/// Makes byte strings of one or several buffers, which have the same wire form.
fn payload<const MAX: usize>() -> impl Strategy<Value = Payload<MAX>> {
    let pieces =
        vec(vec(any::<u8>(), 0..20), 0..3).prop_map(|pieces| pieces.into_iter().map(Into::into).collect());
    prop_oneof![
        vec(any::<u8>(), 0..40).prop_map(|bytes| Payload::new(bytes).expect("forty are few")),
        pieces.prop_map(|pieces| Payload::of(pieces).expect("forty are few")),
    ]
}

fn owner() -> impl Strategy<Value = RegionOwner> {
    prop_oneof![
        session_id().prop_map(RegionOwner::Session),
        session_id().prop_map(RegionOwner::Sealing),
        Just(RegionOwner::Orphan),
        file_id().prop_map(RegionOwner::Name),
    ]
}

fn replaces() -> impl Strategy<Value = Replaces> {
    let only = (1..u64::MAX).prop_map(|file| Replaces::Only(FileId(file)));
    prop_oneof![Just(Replaces::Nothing), Just(Replaces::Anything), only]
}

macro_rules! strategies {
    ($($make:ident -> $name:ident { $($field:ident: $strategy:expr),* $(,)? })*) => {$(
        pub fn $make() -> impl Strategy<Value = $name> {
            ($($strategy,)*).prop_map(|($($field,)*)| $name { $($field),* })
        }
    )*};
}
strategies! {
    hello -> Hello { version_min: any::<u8>(), version_max: any::<u8>(), client: client_id() }
    welcome -> Welcome { version: any::<u8>() }
    open_session -> OpenSession { resume: session_id(), secret: secret(), label: name() }
    session_opened -> SessionOpened {
        session: session_id(), secret: secret(), tenant: name(), term: term(), lease_ttl_ms: any::<u32>(),
        grace_ms: any::<u32>(), hosts: any::<u32>(),
    }
    session_kept -> SessionKept { hosts: any::<u32>() }
    proof -> SessionProof { session: session_id(), secret: secret() }
    request_tickets -> RequestTickets {
        session: session_id(), secret: secret(), bytes: any::<u64>(), class: class(), near: any::<u128>(),
        avoid: list(incarnation()), apart: list(name()),
    }
    ticket -> Ticket {
        id: ticket_id(), term: term(), session: session_id(), secret_digest: any::<u128>(), node: node_id(),
        incarnation: incarnation(), region_count: any::<u32>(), class: class(), tenant: name(),
        not_after_ms: any::<u64>(), mac: any::<[u8; 32]>(),
    }
    node_info -> NodeInfo {
        node: node_id(), name: name(), incarnation: incarnation(), address: text(), shm_socket: text(),
        host_boot: any::<u128>(), host_label: name(), region_bytes: any::<u64>(),
    }
    ticket_offer -> TicketOffer { ticket: ticket(), node: node_info() }
    tickets -> Tickets { tickets: list(ticket_offer()) }
    named_extent -> NamedExtent {
        node: node_id(), incarnation: incarnation(), region: region_index(), epoch: epoch(), handle: handle(),
        region_offset: any::<u64>(), bytes: any::<u64>(),
    }
    publish -> Publish {
        session: session_id(), secret: secret(), name: name(), class: class(), replace: any::<bool>(),
        moved: file_id(), extents: list(named_extent()),
    }
    named_region -> NamedRegion {
        node: node_id(), incarnation: incarnation(), region: region_index(), epoch: epoch(), handle: handle(),
    }
    run_copy -> RunCopy { region: any::<u32>(), offset: any::<u32>() }
    named_run -> NamedRun { bytes: any::<u32>(), checksum: any::<u32>(), copies: list(run_copy()) }
    stripe -> Stripe { data: list(any::<u32>()), parity: list(any::<u32>()) }
    places -> Places { regions: list(named_region()), runs: list(named_run()), stripes: list(stripe()) }
    publish_places -> PublishPlaces {
        session: session_id(), secret: secret(), name: name(), class: class(), replaces: replaces(),
        copies_wanted: any::<u8>(), recipe: bytes(), places: places(),
    }
    claim_rebuild -> ClaimRebuild {
        session: session_id(), secret: secret(), name: name(), is_over: any::<bool>(),
    }
    rebuild_claimed -> RebuildClaimed { file: file_id(), is_given: any::<bool>(), recipe: bytes() }
    places_opened -> PlacesOpened {
        file: file_id(), class: class(), copies_wanted: any::<u8>(), places: places(), nodes: list(node_info()),
    }
    region_range -> RegionRange { offset: any::<u32>(), bytes: any::<u32>() }
    checksums -> Checksums {
        region: region_index(), epoch: epoch(), handle: handle(), ranges: list(region_range()),
    }
    checksums_taken -> ChecksumsTaken { checksums: list(any::<u32>()) }
    next_repair -> NextRepair { node: node_id(), incarnation: incarnation() }
    repair_run -> RepairRun {
        run: any::<u32>(), bytes: any::<u32>(), checksum: any::<u32>(), offset: any::<u32>(),
    }
    signed_repair -> SignedRepair {
        node: node_id(), incarnation: incarnation(), term: term(), file: file_id(), runs: list(repair_run()),
        mac: any::<[u8; 32]>(),
    }
    shard_source -> ShardSource { shard: any::<u8>(), bytes: any::<u32>(), copy: run_copy() }
    computed_run -> ComputedRun {
        run: any::<u32>(), data: any::<u8>(), parity: any::<u8>(), shard: any::<u8>(), sources: list(shard_source()),
    }
    repair_order -> RepairOrder {
        signed: signed_repair(), tenant: name(), regions: list(named_region()), sources: list(list(run_copy())),
        nodes: list(node_info()), computed: list(computed_run()),
    }
    repair_given -> RepairGiven { order: list(repair_order()) }
    end_repair -> EndRepair {
        order: signed_repair(), copied: list(any::<u32>()), region: region_index(), epoch: epoch(), handle: handle(),
    }
    repair_ended -> RepairEnded { runs: any::<u32>() }
    endangered_file -> EndangeredFile {
        name: name(), bytes: any::<u64>(), copies: any::<u8>(), copies_wanted: any::<u8>(),
        needs_host: any::<bool>(),
    }
    repair_under_way -> RepairUnderWay { node: node_id(), name: name(), bytes: any::<u64>() }
    repairs_listed -> RepairsListed {
        endangered_files: any::<u64>(), endangered_bytes: any::<u64>(), leaving_files: any::<u64>(),
        leaving_bytes: any::<u64>(), lost_files: any::<u64>(), first: list(endangered_file()),
        under_way: list(repair_under_way()),
    }
    published -> Published { file: file_id() }
    by_name -> ByName { name: name() }
    opened -> Opened { file: file_id(), class: class(), extents: list(named_extent()), nodes: list(node_info()) }
    rename -> Rename { from: name(), to: name() }
    list_names -> ListNames { prefix: text(), after: text() }
    name_info -> NameInfo {
        name: name(), file: file_id(), class: class(), bytes: any::<u64>(), lost: any::<bool>(),
        tenant: name(),
    }
    names -> Names { names: list(name_info()), more: any::<bool>() }
    traffic -> Traffic {
        read_ops: any::<u64>(), read_bytes: any::<u64>(), write_ops: any::<u64>(), write_bytes: any::<u64>(),
        refused_ops: any::<u64>(), mapped_regions: any::<u64>(), spun_ns: any::<u64>(),
    }
    region_counts -> RegionCounts {
        free: any::<u32>(), leased: any::<u32>(), named: any::<u32>(), cleaning: any::<u32>(), away: any::<u32>(),
        locked: any::<u32>(), sessions: any::<u32>(),
    }
    node_status -> NodeStatus {
        info: node_info(), alive: any::<bool>(), draining: any::<bool>(), heard_ms_ago: any::<u64>(),
        present_ms: any::<u64>(), counts: region_counts(), traffic: traffic(),
    }
    tenant_status -> TenantStatus {
        tenant: name(), held_bytes: any::<u64>(), promised_bytes: any::<u64>(), quota_bytes: any::<u64>(),
    }
    drain_node -> DrainNode { node: name(), drain: any::<bool>(), stop: any::<bool>() }
    tenant_use -> TenantUse { tenant: name(), regions: any::<u32>() }
    status_report -> StatusReport {
        term: term(), sessions: any::<u32>(), files: any::<u64>(), file_bytes: any::<u64>(),
        tickets_open: any::<u32>(), nodes: list(node_status()), tenants: list(tenant_status()),
    }
    owned_region -> OwnedRegion { region: region_index(), epoch: epoch(), owner: owner() }
    node_memory -> NodeMemory {
        node: node_id(), kind: proptest::sample::select(MemoryKind::ALL.to_vec()), page_bytes: any::<u64>(),
        numa_node: vec(any::<u32>(), 0..=1).prop_map(|all| List::new(all).expect("one at most")), device: text(),
    }
    memory_listed -> MemoryListed { nodes: list(node_memory()) }
    offer -> Offer { info: node_info(), ticket_key: any::<[u8; 32]>() }
    offered -> Offered {
        term: term(), lease_ttl_ms: any::<u32>(), grace_ms: any::<u32>(), heartbeat_ms: any::<u32>(),
    }
    inventory -> Inventory {
        node: node_id(), incarnation: incarnation(), draining: any::<bool>(), counts: region_counts(),
        traffic: traffic(), spent: list(ticket_id()), owned: list(owned_region()), tenants: list(tenant_use()),
    }
    adoption -> Adoption { region: region_index(), epoch: epoch(), file: file_id() }
    region_at -> RegionAt { region: region_index(), epoch: epoch() }
    ruling -> Ruling {
        term: term(), broker_now_ms: any::<u64>(), adopt: list(adoption()), drop: list(region_at()),
        drain: any::<bool>(), stop: any::<bool>(),
    }
    lease -> Lease { ticket: ticket(), shared: any::<bool>() }
    grant -> Grant { region: region_index(), epoch: epoch(), handle: handle() }
    leased -> Leased { lease_ttl_ms: any::<u32>(), grants: list(grant()) }
    attach -> Attach { region: region_index(), epoch: epoch(), handle: handle() }
    attached -> Attached { region_bytes: any::<u64>(), word_offset: any::<u64>(), words_bytes: any::<u64>() }
    renewed -> Renewed { lease_ttl_ms: any::<u32>(), regions: any::<u32>(), draining: any::<bool>() }
    release -> Release {
        session: session_id(), secret: secret(), whole: any::<bool>(), regions: list(region_at()),
    }
    released -> Released { regions: any::<u32>() }
    seal -> Seal { session: session_id(), secret: secret(), regions: list(region_at()) }
    sealed -> Sealed { regions: list(grant()) }
    scan_region -> ScanRegion { region: region_index(), epoch: epoch(), handle: handle() }
    scan_buffer -> ScanBuffer { offset: any::<u32>(), bytes: any::<u32>() }
    scan_column -> ScanColumn {
        layout: prop_oneof![Just(ColumnLayout::Plain), Just(ColumnLayout::Dictionary), Just(ColumnLayout::Rows)],
        null_count: any::<u32>(),
        buffers: vec(scan_buffer(), 0..=limits::SCAN_BUFFERS_MAX).prop_map(|all| List::new(all).expect("few")),
    }
    scan_group -> ScanGroup {
        region: any::<u32>(), offset: any::<u64>(), rows: any::<u32>(), position: any::<u64>(),
        columns: list(scan_column()),
    }
    scan_opening -> ScanOpening {
        key: any::<[u8; 16]>().prop_map(ScanKey), salt: any::<[u8; 16]>(), columns: list(any::<u16>()),
    }
    scan_seals -> ScanSeals {
        opening: vec(scan_opening(), 0..=1).prop_map(|all| List::new(all).expect("one at most")),
        answers: vec(any::<[u8; 16]>().prop_map(ScanKey), 0..=1).prop_map(|all| List::new(all).expect("one at most")),
    }
    open_scan -> OpenScan {
        program: bytes(), lookups: list(handle()), regions: list(scan_region()), groups: list(scan_group()),
        seals: scan_seals(),
    }
    put_lookup -> PutLookup {
        lookup: handle(), kind: prop_oneof![Just(LookupKind::Bloom), Just(LookupKind::Keys)],
        bytes: any::<u32>(), part: bytes(),
    }
    lookup_put -> LookupPut { lookup: handle(), bytes: any::<u32>() }
    lookup_id -> LookupId { lookup: handle() }
    scan_opened -> ScanOpened { scan: handle(), is_known: any::<bool>() }
    scan_id -> ScanId { scan: handle() }
    chunk -> Chunk {
        is_last: any::<bool>(), done: any::<u32>(), read_bytes: any::<u64>(), busy_ns: any::<u64>(),
        waited_ns: any::<u64>(), batches: payload(),
    }
    claim_groups -> ClaimGroups { scan: handle(), groups: any::<u32>() }
    claimed -> Claimed { first: any::<u32>(), count: any::<u32>() }
    lane_part -> LanePart {
        region: region_index(), epoch: epoch(), handle: handle(), offset: any::<u64>(), bytes: any::<u64>(),
        at: any::<u64>(),
    }
    open_lane -> OpenLane {
        resident: any::<bool>(), window_bytes: any::<u64>(), output_bytes: any::<u32>(), parts: list(lane_part()),
    }
    lane_peer -> LanePeer { node: node_id(), address: text(), parts: list(lane_part()) }
    lane_caller -> LaneCaller { caller: text(), tenant: text() }
    open_hopping_lane -> OpenHoppingLane {
        lane: open_lane(), peers: list(lane_peer()),
        caller: proptest::option::of(lane_caller())
            .prop_map(|one| List::new(one.into_iter().collect()).expect("one fits")),
    }
    lane_opened -> LaneOpened { heap_bytes: any::<u64>() }
    use_function -> UseFunction { form: form(), digest: any::<[u8; 32]>(), entry: name() }
    function_used -> FunctionUsed { number: any::<u32>() }
    function_signature -> FunctionSignature {
        key: any::<[u8; 32]>(), signature: any::<u8>().prop_map(|byte| [byte; 64]),
    }
    put_function -> PutFunction {
        form: form(), entry: name(), bytes: bytes(),
        signature: proptest::option::of(function_signature())
            .prop_map(|one| List::new(one.into_iter().collect()).expect("one fits")),
    }
    put_columns -> PutColumns { columns: bytes() }
    call_function -> CallFunction {
        number: any::<u32>(), fresh: any::<bool>(), deadline_ms: any::<u32>(), goes_on: any::<bool>(), state: bytes(),
        args: bytes(),
    }
    function_frame -> FunctionFrame { function: any::<u32>(), offset: any::<u32>() }
    called -> Called {
        outcome: proptest::sample::select(Outcome::ALL.to_vec()), detail: any::<u64>(), ran_ns: any::<u64>(),
        output_bytes: any::<u64>(), frames: list(function_frame()), output: payload(),
    }
    next_output -> NextOutput { from: any::<u64>() }
    output_piece -> OutputPiece { output: payload() }
    supply -> Supply { at: any::<u64>(), bytes: bytes() }
    running_call -> RunningCall { function: name(), caller: name(), running_ms: any::<u64>() }
    leased_range -> LeasedRange {
        region: region_index(), epoch: epoch(), offset: any::<u32>(), bytes: any::<u32>(),
    }
    seal_ranges -> SealRanges {
        session: session_id(), secret: secret(), number: any::<u64>(), ranges: list(leased_range()),
        given_up: list(range_at()),
    }
    sealed_range -> SealedRange {
        region: region_index(), epoch: epoch(), handle: handle(), offset: any::<u32>(), checksum: any::<u32>(),
    }
    ranges_sealed -> RangesSealed { ranges: list(sealed_range()) }
    pending_range -> PendingRange { offset: any::<u32>(), bytes: any::<u32>(), owner: owner() }
    segment_held -> SegmentHeld {
        region: region_index(), epoch: epoch(), end: any::<u32>(), is_open: any::<bool>(),
        pending: list(pending_range()),
    }
    segment_report -> SegmentReport {
        node: node_id(), incarnation: incarnation(), segments: list(segment_held()),
    }
    range_at -> RangeAt { region: region_index(), epoch: epoch(), offset: any::<u32>() }
    segment_at -> SegmentAt { region: region_index(), epoch: epoch(), end: any::<u32>() }
    tenant_segments -> TenantSegments { tenant: name(), segments: any::<u32>() }
    segment_ruling -> SegmentRuling {
        term: term(), settled: list(range_at()), dropped: list(segment_at()), limited: list(tenant_segments()),
        others: any::<u32>(),
    }
    part_at -> PartAt { commit: commit_id(), index: any::<u32>() }
    snapshot_at -> SnapshotAt { table: table_id(), snapshot: any::<u64>() }
    new_part -> NewPart { index: any::<u32>(), copies_wanted: any::<u8>(), places: places() }
    part_range -> PartRange {
        added: any::<u64>(), commit: commit_id(), first: any::<u32>(), last: any::<u32>(),
    }
    add_parts -> AddParts {
        session: session_id(), secret: secret(), table: table_id(), commit: commit_id(), parts: list(new_part()),
        is_over: any::<bool>(),
    }
    table_change -> TableChange {
        name: name(), table: table_id(), replaces: replaces(), former: any::<u32>(),
        parts_ahead: any::<u32>(), parts: list(new_part()), copies_wanted: any::<u8>(), recipe: bytes(), root: places(),
        removed: list(part_range()), restores: any::<u64>(), restored: list(part_range()),
    }
    commit_tables -> CommitTables {
        session: session_id(), secret: secret(), commit: commit_id(), summary: bytes(), changes: list(table_change()),
    }
    snapshot_made -> SnapshotMade { snapshot: any::<u64>(), root: file_id() }
    tables_committed -> TablesCommitted { made: list(snapshot_made()) }
    open_table -> OpenTable {
        session: session_id(), secret: secret(), number: any::<u64>(), name: name(), snapshot: any::<u64>(),
    }
    table_opened -> TableOpened {
        table: table_id(), snapshot: any::<u64>(), latest: any::<u64>(), root: places_opened(), name: name(),
    }
    open_parts -> OpenParts { table: table_id(), parts: list(part_at()) }
    part_opened -> PartOpened { file: file_id(), copies_wanted: any::<u8>(), places: places() }
    parts_opened -> PartsOpened { parts: list(part_opened()), nodes: list(node_info()) }
    hold_snapshots -> HoldSnapshots {
        session: session_id(), secret: secret(), number: any::<u64>(), held: list(snapshot_at()),
    }
    snapshots_held -> SnapshotsHeld { hosts: any::<u32>(), ended: list(snapshot_at()) }
    list_snapshots -> ListSnapshots { name: name(), before: any::<u64>() }
    snapshot_info -> SnapshotInfo {
        snapshot: any::<u64>(), commit: commit_id(), session: session_id(), at_ms: any::<u64>(),
        is_kept: any::<bool>(), summary: bytes(),
    }
    snapshots_listed -> SnapshotsListed {
        table: table_id(), snapshots: list(snapshot_info()), more: any::<bool>(),
    }
    known_name -> KnownName { name: name(), file: file_id() }
    await_names -> AwaitNames {
        session: session_id(), secret: secret(), known: list(known_name()), wait_ms: any::<u32>(),
    }
    name_now -> NameNow { file: file_id(), root_of: snapshot_at() }
    names_awaited -> NamesAwaited { now: list(name_now()) }
    running_calls -> RunningCalls { count: any::<u32>(), calls: list(running_call()) }
}

fn form() -> impl Strategy<Value = FunctionForm> {
    proptest::sample::select(FunctionForm::ALL.to_vec())
}

fn done() -> impl Strategy<Value = Done> {
    Just(Done {})
}

macro_rules! conversations {
    ($($opcode:ident: $request:ident, $reply:ident;)*) => {
        /// Opcodes that have strategies here.
        pub const CONTROL: &[Opcode] = &[$(Opcode::$opcode),*];
        /// Makes any request, each opcode with equal probability.
        pub fn any_request() -> BoxedStrategy<Request> {
            proptest::strategy::Union::new([$($request().prop_map(Request::$opcode).boxed()),*]).boxed()
        }
        /// Makes any reply, each opcode with equal probability.
        pub fn any_reply() -> BoxedStrategy<Reply> {
            proptest::strategy::Union::new([$($reply().prop_map(Reply::$opcode).boxed()),*]).boxed()
        }
    };
}
conversations! {
    Hello: hello, welcome;
    OpenSession: open_session, session_opened;
    KeepSession: proof, session_kept;
    CloseSession: proof, done;
    RequestTickets: request_tickets, tickets;
    Publish: publish, published;
    OpenName: by_name, opened;
    DropName: by_name, done;
    RenameName: rename, done;
    ListNames: list_names, names;
    Status: done, status_report;
    Drain: drain_node, done;
    ListMemory: done, memory_listed;
    PublishPlaces: publish_places, published;
    OpenPlaces: by_name, places_opened;
    ListRepairs: done, repairs_listed;
    ClaimRebuild: claim_rebuild, rebuild_claimed;
    Offer: offer, offered;
    Inventory: inventory, ruling;
    OfferMemory: node_memory, done;
    NextRepair: next_repair, repair_given;
    EndRepair: end_repair, repair_ended;
    Segments: segment_report, segment_ruling;
    AddParts: add_parts, done;
    CommitTables: commit_tables, tables_committed;
    OpenTable: open_table, table_opened;
    OpenParts: open_parts, parts_opened;
    HoldSnapshots: hold_snapshots, snapshots_held;
    ListSnapshots: list_snapshots, snapshots_listed;
    AwaitNames: await_names, names_awaited;
    Lease: lease, leased;
    Attach: attach, attached;
    Renew: proof, renewed;
    Release: release, released;
    Seal: seal, sealed;
    Checksums: checksums, checksums_taken;
    SealRanges: seal_ranges, ranges_sealed;
    OpenScan: open_scan, scan_opened;
    NextChunk: scan_id, chunk;
    ClaimGroups: claim_groups, claimed;
    CloseScan: scan_id, done;
    PutLookup: put_lookup, lookup_put;
    DropLookup: lookup_id, done;
    OpenLane: open_lane, lane_opened;
    UseFunction: use_function, function_used;
    PutFunction: put_function, function_used;
    PutColumns: put_columns, done;
    CallFunction: call_function, called;
    NextOutput: next_output, output_piece;
    Supply: supply, called;
    RunningCalls: done, running_calls;
    OpenHoppingLane: open_hopping_lane, lane_opened;
}
