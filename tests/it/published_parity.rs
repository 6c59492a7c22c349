//! Tests of published files and tables with parity on further hosts: as many hosts may be lost as there are parts with
//! parity, and what was lost is computed again.

use crate::processes::until;
use crate::programs::{PATIENCE, eventually};
use crate::protected_files::Cluster;
use crate::published_copies::{
    TRANSPORTS, all_copied, check, check_all, check_call, lose_and_copy, lose_look_and_copy, numbers, sum,
};
use crate::random::Random;
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use farpool::function::{CallOptions, Caller, CallerOptions, Function};
use farpool::table::PutOptions;
use farpool::{
    CreateOptions, ErrorKind, FarFile, FarTable, FileClass, IfTaken, Placement, Pool, Protection,
    TransportChoice,
};
use farpool_wire::control::DrainNode;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;

const MIB: usize = 1 << 20;
const RS_3_2: Protection = Protection::Rs { data: 3, parity: 2 };

/// Publishes a file with parity. Returns it and its bytes.
fn publish(pool: &Pool, name: &str, bytes: usize, protection: Protection) -> (FarFile, Vec<u8>) {
    let bytes = Random(5).bytes(bytes);
    let options = CreateOptions { protection: Some(protection), ..CreateOptions::default() };
    let file = pool.create(name, FileClass::Pinned, options).expect("created");
    file.write_at(0, &bytes).expect("written");
    pool.publish(name, IfTaken::Refuse).expect("published");
    (file, bytes)
}

fn put(pool: &Pool, name: &str, protection: Protection) -> FarTable {
    let batch = numbers();
    let options = PutOptions { protection: Some(protection), replace: true, ..PutOptions::default() };
    let batches = [Ok::<_, Infallible>(batch.clone())];
    pool.put_table_with(name, batch.schema(), batches, &options).expect("put");
    pool.table(name).expect("a table")
}

/// Reads ranges that begin and end within units of the code, within and across runs.
fn check_ranges(file: &FarFile, bytes: &[u8]) {
    let mut random = Random(3);
    for _ in 0..200 {
        let start = random.below(bytes.len() as u64 - 1);
        let count = 1 + random.below((bytes.len() as u64 - start).min(3 * MIB as u64));
        let mut into = vec![0; count as usize];
        assert_eq!(file.read_at(start, &mut into).expect("readable"), into.len());
        assert!(into == bytes[start as usize..][..count as usize], "{count} bytes at {start}");
    }
}

#[test]
fn file_with_parity_is_read_while_no_more_hosts_are_lost_than_it_has_parts_with_parity() {
    for (transport, lost) in TRANSPORTS.into_iter().zip([[4, 0], [2, 1]]) {
        let mut cluster = Cluster::new(5);
        let writer = cluster.connect(transport, None);
        let (file, bytes) = publish(&writer, "view", 12 * MIB + 77, RS_3_2);
        assert_eq!(file.protection(), RS_3_2);
        let reader = cluster.connect(transport, None);
        let opened = reader.open("view").expect("published");
        assert_eq!(opened.length(), bytes.len() as u64, "parity is no part of the file");
        check_ranges(&opened, &bytes);
        for index in lost {
            cluster.lose_node(index);
            for file in [&file, &opened] {
                check_ranges(file, &bytes);
            }
            check(&cluster.connect(transport, None), "view", &bytes);
        }
        cluster.lose_node(0);
        // Memory that the reader has mapped outlives its node, and stays readable until the session notices the loss.
        let error = eventually("three of five hosts are lost", || {
            let mut into = vec![0; bytes.len()];
            match opened.read_at(0, &mut into) {
                Ok(_) if into == bytes => Err("the bytes are still there".to_owned()),
                Ok(_) => panic!("wrong bytes"),
                Err(error) => Ok(error),
            }
        });
        assert!(matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unreachable), "{error}");
    }
}

/// The broker still promises memory of the node that has died.
#[test]
fn file_with_parity_is_published_right_after_a_node_has_died() {
    for transport in TRANSPORTS {
        let mut cluster = Cluster::new(5);
        let pool = cluster.connect(transport, None);
        let code = Protection::Rs { data: 2, parity: 1 };
        for round in 0..2 {
            let before = publish(&pool, &format!("before-{round}"), 5 * MIB, code);
            cluster.lose_node(round);
            let after = publish(&pool, &format!("after-{round}"), 5 * MIB, code);
            for (file, bytes) in [before, after] {
                check_ranges(&file, &bytes);
            }
        }
    }
}

/// Returns a linked list that a resident function walks: each item of 16 bytes has the offset of another one, far away,
/// and a value.
fn linked_list(items: u64) -> Vec<u8> {
    let words = (0..items).flat_map(|item| [(item * 5 + 77_777) % items * 16, item]);
    words.flat_map(u64::to_le_bytes).collect()
}

#[test]
fn functions_are_called_over_a_file_with_parity_whichever_hosts_are_lost() {
    const ITEMS: u64 = 1 << 20;
    for (transport, lost) in TRANSPORTS.into_iter().zip([[4, 0], [2, 1]]) {
        let mut cluster = Cluster::new(5);
        let pool = cluster.connect(transport, None);
        let bytes = linked_list(ITEMS);
        let options = CreateOptions { protection: Some(RS_3_2), ..CreateOptions::default() };
        let file = pool.create("list", FileClass::Pinned, options).expect("created");
        file.write_at(0, &bytes).expect("written");
        pool.publish("list", IfTaken::Refuse).expect("published");
        let view = pool.open("list").expect("published");
        let caller = view.caller(CallerOptions::default()).expect("a caller");
        // The walk hops to each item's node with 1, and loads items of other nodes with 0.
        let walk = |caller: &Caller, hops: u64| {
            let args: Vec<u8> = [16, 50, hops].into_iter().flat_map(u64::to_le_bytes).collect();
            let options = CallOptions { placement: Placement::Ship, ..CallOptions::default() };
            let walk = Function::resident("walk").expect("a function");
            caller.call(&walk, &args, options).expect("walked").output
        };
        let wanted = walk(&caller, 0);
        assert_eq!(walk(&caller, 1), wanted);
        for index in lost {
            cluster.lose_node(index);
            let other = cluster.connect(transport, None);
            let opened = other.open("list").expect("published");
            let fresh = opened.caller(CallerOptions::default()).expect("a caller");
            for caller in [&caller, &fresh] {
                check_call(caller, &bytes);
                for hops in [0, 1] {
                    assert_eq!(walk(caller, hops), wanted);
                }
            }
        }
    }
}

#[test]
fn table_with_parity_is_scanned_where_it_lies_and_computed_where_hosts_are_lost() {
    for (transport, lost) in TRANSPORTS.into_iter().zip([[0, 0], [3, 1]]) {
        let mut cluster = Cluster::new(5);
        let pool = cluster.connect(transport, None);
        let table = put(&pool, "numbers", RS_3_2);
        let groups = table.row_groups().len();
        assert!(groups >= 3);
        assert_eq!(sum(&table, Placement::Ship).report.shipped, groups, "each group is in one region");
        let nodes: BTreeSet<String> =
            (0..groups).filter_map(|group| table.place(group)).map(|place| place.node).collect();
        assert!(nodes.len() > 3, "stripes begin on different hosts: {nodes:?}");
        for index in lost {
            cluster.lose_node(index);
            for placement in Placement::FIXED.into_iter().chain([Placement::Auto]) {
                sum(&table, placement);
            }
            let other = cluster.connect(transport, None);
            let table = other.table("numbers").expect("a table");
            let rows: usize =
                table.read(None, None).expect("a reader").map(|batch| batch.expect("rows").num_rows()).sum();
            assert_eq!(rows, numbers().num_rows());
            sum(&table, Placement::Ship);
        }
    }
}

/// Row groups of text end anywhere in their last extent, and the footer follows them.
#[test]
fn row_groups_of_any_length_are_computed_whichever_host_is_lost() {
    let texts = (0..400_000).map(|row| format!("{row}{}", "x".repeat(row % 7)));
    let texts: ArrayRef = Arc::new(texts.map(Some).collect::<StringArray>());
    let batch = RecordBatch::try_from_iter([("text", texts)]).expect("a batch");
    for lost in 0..5 {
        let mut cluster = Cluster::new(5);
        let pool = cluster.connect(TRANSPORTS[lost % 2], None);
        for (name, protection) in [("texts", RS_3_2), ("more", Protection::Rs { data: 2, parity: 1 })] {
            let options = PutOptions { protection: Some(protection), ..PutOptions::default() };
            let batches = [Ok::<_, Infallible>(batch.clone())];
            pool.put_table_with(name, batch.schema(), batches, &options).expect("put");
        }
        cluster.lose_node(lost);
        let other = cluster.connect(TransportChoice::Tcp, None);
        for (name, pool) in [("texts", &pool), ("texts", &other), ("more", &pool), ("more", &other)] {
            let table = pool.table(name).expect("a table");
            let mut rows = 0;
            for found in table.read(None, None).expect("a reader") {
                let found = found.expect("rows");
                assert!(
                    found == batch.slice(rows, found.num_rows()),
                    "{name}: rows from {rows}, {lost} lost"
                );
                rows += found.num_rows();
            }
            assert_eq!(rows, batch.num_rows());
        }
    }
}

/// Three of six hosts are lost one after the other, which is more than one part of parity survives by itself.
#[test]
fn parts_that_are_lost_with_a_host_are_computed_again_before_the_next_is_lost() {
    for transport in TRANSPORTS {
        let mut cluster = Cluster::new(6);
        let pool = cluster.connect(transport, None);
        let code = Protection::Rs { data: 2, parity: 1 };
        let (file, bytes) = publish(&pool, "view", 7 * MIB + 5, code);
        put(&pool, "numbers", code);
        for lost in [1, 0, 2] {
            lose_and_copy(&mut cluster, &pool, lost);
            check_ranges(&file, &bytes);
        }
        check_all(&[&pool, &cluster.connect(transport, None)], &bytes);
    }
}

#[test]
fn table_that_was_opened_before_a_loss_is_scanned_where_nodes_have_made_the_lost_parts_again() {
    for transport in TRANSPORTS {
        let mut cluster = Cluster::new(6);
        let pool = cluster.connect(transport, None);
        let table = put(&pool, "numbers", Protection::Rs { data: 2, parity: 1 });
        let groups = table.row_groups().len();
        let shipped = || sum(&table, Placement::Ship).report.shipped;
        assert_eq!(shipped(), groups);
        let mut hits = 0;
        for _ in 0..3 {
            lose_look_and_copy(&mut cluster, &pool, 0, || hits += u32::from(shipped() < groups));
            eventually("all row groups are scanned at nodes again", || match shipped() {
                count if count == groups => Ok(()),
                count => Err(format!("{count} of {groups} are")),
            });
        }
        assert!(hits > 0, "none of three hosts of six had a row group");
    }
}

#[test]
fn drained_host_gives_its_parts_to_others() {
    let cluster = Cluster::new(4);
    let pool = cluster.connect(TransportChoice::Tcp, None);
    let (_, bytes) = publish(&pool, "view", 7 * MIB + 5, Protection::Rs { data: 2, parity: 1 });
    let node = farpool_wire::Name::new("n1").expect("a name");
    pool.drain(&DrainNode { node: node.clone(), drain: true, stop: false }).expect("ordered");
    until(&pool, PATIENCE, "the node is empty", |status| {
        status
            .nodes
            .iter()
            .any(|status| status.info.name == node && status.draining && status.counts.named == 0)
    });
    check(&pool, "view", &bytes);
    all_copied(&pool);
}

#[test]
fn file_of_fewer_parts_than_its_code_has_gets_a_mirror() {
    let mut cluster = Cluster::new(5);
    let pool = cluster.connect(TransportChoice::Tcp, None);
    let (file, bytes) = publish(&pool, "view", 1000, RS_3_2);
    assert_eq!(file.protection(), Protection::Mirror);
    all_copied(&pool);
    cluster.lose_node(0);
    cluster.lose_node(0);
    // Two hosts of five may have both copies, so one of these reads may fail. None gives wrong bytes.
    let mut into = vec![0; bytes.len()];
    if pool.open("view").and_then(|file| file.read_at(0, &mut into)).is_ok() {
        assert!(into == bytes);
    }
}

#[test]
fn code_that_the_hosts_of_the_pool_cannot_give_is_refused() {
    let cluster = Cluster::new(3);
    let pool = cluster.connect(TransportChoice::Auto, None);
    let options = CreateOptions { protection: Some(RS_3_2), ..CreateOptions::default() };
    let Err(error) = pool.create("view", FileClass::Pinned, options) else { panic!("created") };
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let said = error.to_string();
    assert!(said.contains("protection rs(3,2) needs memory nodes on 5 hosts, and the pool has 3"), "{said}");
    for class in [FileClass::Scratch, FileClass::Cache] {
        let Err(error) = pool.create("other", class, options) else { panic!("created") };
        assert!(error.to_string().contains("is not possible for files of class"), "{error}");
    }
    for wrong in ["rs", "rs(4)", "rs(1,1)", "rs(13,1)", "rs(4,5)", "rs(4,0)", "rs(4,2", "rs(a,b)", "raid"] {
        let error = wrong.parse::<Protection>().expect_err(wrong);
        assert!(error.to_string().contains(wrong), "{error}");
    }
    assert_eq!("rs(4,2)".parse::<Protection>().expect("good").to_string(), "rs(4,2)");
    assert_eq!("rs(4, 2)".parse::<Protection>().expect("good"), Protection::Rs { data: 4, parity: 2 });
}
