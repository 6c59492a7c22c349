//! Tests of published files: they are immutable and belong to their name. Any session can read them, and their memory
//! is freed when the name is dropped.

use crate::programs::PATIENCE;
use farpool::{
    CreateOptions, EmbeddedOptions, ErrorKind, FileClass, IfTaken, Pool, PoolOptions, TransportChoice,
};
use farpool_wire::control::DrainNode;

const MIB: u64 = 1 << 20;

fn two_sessions(transport: TransportChoice) -> (Pool, Pool) {
    let mut options = EmbeddedOptions::new(64 * MIB);
    options.node_count = 2;
    options.region_bytes = Some(MIB);
    options.pool.transport = transport;
    let writer = Pool::embedded(options).expect("an embedded pool");
    let reader = Pool::connect_with(writer.url(), PoolOptions { transport, ..PoolOptions::default() });
    (writer, reader.expect("a second session"))
}

fn publish(pool: &Pool, name: &str, content: &[u8], if_taken: IfTaken) -> Result<(), farpool::Error> {
    let file = pool.create(name, FileClass::Pinned, CreateOptions::default())?;
    file.write_at(0, content)?;
    pool.publish(name, if_taken)
}

fn whole(pool: &Pool, name: &str) -> Vec<u8> {
    let file = pool.open(name).expect("opened");
    let mut found = vec![0; file.length() as usize];
    file.read_at(0, &mut found).expect("a read");
    found
}

/// Waits until no region of the pool is leased, belongs to a name, or is being wiped. Panics after a deadline.
pub(crate) fn nothing_held(pool: &Pool) {
    for _ in 0..500 {
        let status = pool.status().expect("a status");
        if status.nodes.iter().all(|node| node.counts.leased + node.counts.named + node.counts.cleaning == 0)
        {
            return;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(10));
    }
    panic!("regions are still held: {:?}", pool.status());
}

#[test]
fn published_file_is_read_by_another_session_after_its_writer_is_gone() {
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        let (keeper, reader) = two_sessions(transport);
        let writer = Pool::connect_with(keeper.url(), PoolOptions { transport, ..PoolOptions::default() });
        let writer = writer.expect("a third session");
        let content: Vec<u8> = (0..5 * MIB / 2).map(|at| (at % 253) as u8).collect();
        publish(&writer, "views/orders", &content, IfTaken::Refuse).expect("published");
        assert_eq!(whole(&writer, "views/orders"), content);
        writer.close();
        assert_eq!(whole(&reader, "views/orders"), content, "{transport:?}");
        let read_only =
            reader.open("views/orders").expect("opened").write_at(0, b"x").expect_err("read only");
        assert_eq!(read_only.kind(), ErrorKind::ReadOnly);
        reader.delete("views/orders").expect("dropped");
        nothing_held(&reader);
    }
}

#[test]
fn published_name_is_refused_twice_and_replaced_when_asked_for() {
    let (writer, reader) = two_sessions(TransportChoice::Tcp);
    publish(&writer, "v", b"first", IfTaken::Refuse).expect("published");
    let taken = publish(&writer, "v", b"second", IfTaken::Refuse).expect_err("taken");
    assert_eq!(taken.kind(), ErrorKind::Exists);
    assert_eq!(whole(&reader, "v"), b"first");
    // The file of the second version was sealed when its first publication was refused, and may still replace the
    // first.
    writer.publish("v", IfTaken::Replace).expect("replaced");
    assert_eq!(whole(&reader, "v"), b"second");
    writer.rename("v", "w").expect("renamed");
    assert_eq!(reader.open("v").err().map(|error| error.kind()), Some(ErrorKind::NotFound));
    assert_eq!(
        reader.list("").expect("a list").iter().map(|file| file.name.as_str()).collect::<Vec<_>>(),
        ["w"]
    );
    writer.delete("w").expect("dropped");
    nothing_held(&reader);
}

#[test]
fn published_file_with_holes_reads_zeros_there() {
    let (writer, reader) = two_sessions(TransportChoice::Tcp);
    let file = writer.create("holes", FileClass::Pinned, CreateOptions::default()).expect("created");
    file.write_at(0, &[0xff; 300_000]).expect("a write");
    file.truncate(10).expect("cut");
    file.write_at(200_000, b"end").expect("a write");
    writer.publish("holes", IfTaken::Refuse).expect("published");
    let found = whole(&reader, "holes");
    assert!(found[..10] == [0xff; 10] && found[10..200_000].iter().all(|byte| *byte == 0));
    assert_eq!(&found[200_000..], b"end");
}

#[test]
fn sealed_file_that_never_got_a_name_is_freed_with_its_session() {
    let (keeper, _reader) = two_sessions(TransportChoice::Tcp);
    let writer = Pool::connect(keeper.url()).expect("a session");
    publish(&keeper, "taken", b"first", IfTaken::Refuse).expect("published");
    publish(&writer, "taken", b"second", IfTaken::Refuse).expect_err("taken, but sealed");
    writer.close();
    keeper.delete("taken").expect("dropped");
    nothing_held(&keeper);
}

#[test]
fn file_of_another_class_is_not_published() {
    let (writer, _reader) = two_sessions(TransportChoice::Tcp);
    let file = writer.create("s", FileClass::Scratch, CreateOptions::default()).expect("created");
    file.write_at(0, b"x").expect("a write");
    let error = writer.publish("s", IfTaken::Refuse).expect_err("scratch is not published");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("pinned"), "{error}");
}

#[test]
fn file_that_is_replaced_while_its_node_is_drained_does_not_hold_up_the_drain() {
    let (writer, reader) = two_sessions(TransportChoice::Tcp);
    let content = |version: u8| vec![version; 3 * MIB as usize];
    let names = ["a", "b", "c"];
    for name in names {
        publish(&writer, name, &content(1), IfTaken::Refuse).expect("published");
    }
    let nodes: Vec<_> =
        reader.status().expect("a status").nodes.iter().map(|node| node.info.clone()).collect();
    for (node, version) in nodes.iter().zip(2..) {
        let order = |drain| DrainNode { node: node.name.clone(), drain, stop: false };
        reader.drain(&order(true)).expect("ordered");
        let begun = std::time::Instant::now();
        let holds = || {
            let status = reader.status().expect("a status");
            let of = status.nodes.iter().find(|status| status.info.node == node.node).expect("known");
            !of.draining || of.counts.named + of.counts.cleaning > 0
        };
        while holds() {
            assert!(begun.elapsed() < PATIENCE, "the node becomes empty: {:?}", reader.repairs());
            for name in names {
                publish(&writer, name, &content(version), IfTaken::Replace).expect("replaced");
            }
        }
        for name in names {
            assert!(whole(&reader, name) == content(version), "{name} has the bytes of its last version");
        }
        reader.drain(&order(false)).expect("ordered");
    }
}
