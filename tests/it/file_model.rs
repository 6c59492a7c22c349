//! Tests of the file API against an array of bytes as the model. Files are created, deleted and truncated, so that
//! later files get the memory of earlier ones.

use crate::random::Random;
use farpool::{
    CreateOptions, EmbeddedOptions, ErrorKind, FarFile, FileClass, Pool, ReadRange, TransportChoice,
    WriteRange,
};

const MIB: u64 = 1 << 20;

fn pool(memory_mib: u64, nodes: u32, transport: TransportChoice) -> Pool {
    let mut options = EmbeddedOptions::new(memory_mib * MIB);
    options.node_count = nodes;
    options.region_bytes = Some(MIB);
    options.pool.transport = transport;
    Pool::embedded(options).expect("an embedded pool")
}

#[test]
fn file_random_operations_agree_with_an_array_of_bytes() {
    for (seed, transport) in [(1, TransportChoice::Tcp), (2, TransportChoice::Shm), (3, TransportChoice::Tcp)]
    {
        let pool = pool(48, 2, transport);
        let mut random = Random(seed);
        let mut files: Vec<(FarFile, Vec<u8>)> = Vec::new();
        let (mut steps, mut next) = (0, 0);
        while steps < 1_500 {
            steps += 1;
            let choice = random.below(100);
            if files.is_empty() || choice < 6 && files.len() < 8 {
                next += 1;
                let class = FileClass::ALL[random.below(2) as usize];
                let file =
                    pool.create(&format!("file-{next}"), class, CreateOptions::default()).expect("created");
                files.push((file, Vec::new()));
                continue;
            }
            let at = random.below(files.len() as u64) as usize;
            if choice < 9 {
                let (file, _) = files.swap_remove(at);
                pool.delete(&file.name()).expect("deleted");
                let gone = file.read_at(0, &mut [0]).expect_err("a deleted file cannot be read");
                assert_eq!(gone.kind(), ErrorKind::Closed);
                continue;
            }
            let (file, model) = &mut files[at];
            let offset = random.below(3 * MIB);
            let bytes = random.below(if choice.is_multiple_of(7) { 2 * MIB } else { 30_000 }) as usize;
            match choice {
                9..45 => {
                    let from = random.bytes(bytes);
                    file.write_at(offset, &from).expect("a write");
                    if bytes > 0 {
                        let end = offset as usize + bytes;
                        model.resize(model.len().max(end), 0);
                        model[offset as usize..end].copy_from_slice(&from);
                    }
                }
                45..50 => {
                    let length = random.below(3 * MIB);
                    file.truncate(length).expect("a truncation");
                    model.resize(length as usize, 0);
                }
                50..60 => {
                    let parts: Vec<(u64, Vec<u8>)> =
                        (0..8).map(|part| (part * 100_000, random.bytes(1 + part as usize * 999))).collect();
                    let ranges: Vec<WriteRange<'_>> =
                        parts.iter().map(|(offset, from)| WriteRange { offset: *offset, from }).collect();
                    file.write_batch(&ranges).expect("a batch of writes");
                    for (offset, from) in &parts {
                        let end = *offset as usize + from.len();
                        model.resize(model.len().max(end), 0);
                        model[*offset as usize..end].copy_from_slice(from);
                    }
                }
                60..70 if model.len() > 10 => {
                    let mut parts: Vec<(u64, Vec<u8>)> = (0..6)
                        .map(|_| {
                            let offset = random.below(model.len() as u64);
                            (
                                offset,
                                vec![
                                    0xee;
                                    random.below((model.len() as u64 - offset).min(50_000) + 1) as usize
                                ],
                            )
                        })
                        .collect();
                    let mut ranges: Vec<ReadRange<'_>> =
                        parts.iter_mut().map(|(offset, into)| ReadRange { offset: *offset, into }).collect();
                    file.read_batch(&mut ranges).expect("a batch of reads");
                    for (offset, found) in &parts {
                        assert_eq!(
                            found[..],
                            model[*offset as usize..][..found.len()],
                            "seed {seed}, step {steps}"
                        );
                    }
                }
                _ => {
                    let mut found = vec![0xee; bytes];
                    let count = file.read_at(offset, &mut found).expect("a read");
                    let expected =
                        &model[model.len().min(offset as usize)..model.len().min(offset as usize + bytes)];
                    assert_eq!(&found[..count], expected, "seed {seed}, step {steps}");
                }
            }
            assert_eq!(file.length(), model.len() as u64, "seed {seed}, step {steps}");
        }
        for (file, model) in &files {
            let mut whole = vec![0xee; model.len()];
            assert_eq!(file.read_at(0, &mut whole).expect("a read"), model.len());
            assert!(whole == *model, "seed {seed}: {}", file.name());
        }
        pool.close();
    }
}

#[test]
fn pool_full_in_the_middle_of_a_file_is_an_error_and_what_was_written_stays() {
    let pool = pool(8, 2, TransportChoice::Tcp);
    let file = pool.create("growing", FileClass::Scratch, CreateOptions::default()).expect("created");
    let mut written = 0;
    let block = vec![7; 256 << 10];
    let error = loop {
        match file.write_at(written, &block) {
            Ok(()) => written += block.len() as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    assert!(error.to_string().contains("the pool is full"), "{error}");
    assert!(written >= 7 * MIB, "almost all of it was used: {written}");
    let mut back = vec![0; written as usize];
    assert_eq!(file.read_at(0, &mut back).expect("a read"), written as usize);
    assert!(back.iter().all(|byte| *byte == 7));
    // Memory of a file that was deleted can be used by another file.
    pool.delete("growing").expect("deleted");
    let again = pool.create("again", FileClass::Scratch, CreateOptions::default()).expect("created");
    again.write_at(0, &block).expect("a write");
}

#[test]
fn file_written_far_behind_its_end_reads_zeros_between_whatever_its_extents_held() {
    let pool = pool(8, 1, TransportChoice::Shm);
    let dirty = pool.create("dirty", FileClass::Scratch, CreateOptions::default()).expect("created");
    dirty.write_at(0, &vec![0xff; 3 << 20]).expect("a write");
    pool.delete("dirty").expect("deleted");
    let sparse = pool.create("sparse", FileClass::Scratch, CreateOptions::default()).expect("created");
    sparse.write_at(2 << 20, b"end").expect("a write");
    let mut found = vec![0xee; (2 << 20) + 3];
    sparse.read_at(0, &mut found).expect("a read");
    assert!(found[..2 << 20].iter().all(|byte| *byte == 0));
    assert_eq!(&found[2 << 20..], b"end");
}

#[test]
fn files_on_two_nodes_are_striped_over_both() {
    let pool = pool(64, 2, TransportChoice::Tcp);
    let file = pool.create("striped", FileClass::Scratch, CreateOptions::default()).expect("created");
    file.write_at(0, &vec![1; 8 << 20]).expect("a write");
    let mut left = 100;
    // A node reports its counts of bytes at least twice a second, so the test polls them.
    let written = loop {
        let written: Vec<u64> =
            pool.status().expect("a status").nodes.iter().map(|node| node.traffic.write_bytes).collect();
        left -= 1;
        if written.iter().sum::<u64>() == 8 << 20 || left == 0 {
            break written;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    };
    assert!(written.len() == 2 && written.iter().all(|bytes| *bytes >= 3 << 20), "{written:?}");
}
