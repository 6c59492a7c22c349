//! `farpool bench manifest`: what commits and readers of a very large table do with its manifest.
//!
//! The code is that of real tables (`farpool_tables::manifest`); pages are in memory, encoded as in far files, and the
//! data files exist in the manifest alone. So 10 TiB take seconds. Times are those of a client's CPU: sending pages and
//! making a commit durable come on top.

use super::memory_pages::{Counts, MemoryPages};
use crate::exit::Failure;
use crate::harness::machine::machine;
use crate::harness::statistics::median;
use crate::harness::titled;
use crate::units::{self, show_bytes};
use crate::{Outcome, signals::Stop};
use arrow_schema::{DataType, Field, Schema};
use farpool::operators::{Program, Query, Type, Value, col};
use farpool::table::{ColumnChunk, Encoding, RowGroup, Statistics, TableLayout, may_pass};
use farpool_encryption::SALT_BYTES;
use farpool_tables::manifest::{self, DataFile, Entries, Removed, Root, Walked};
use farpool_tables::{Arrangement, FieldIds};
use farpool_wire::control::PartAt;
use farpool_wire::{CommitId, TableId, WireError};
use indicatif::ProgressBar;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool bench manifest --size 10TiB --file-sizes 4GiB")]
pub(crate) struct ManifestArgs {
    /// Bytes of the table, which are simulated
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, default_value = "10TiB")]
    size: u64,
    /// Bytes of the files that are appended, one for each commit; a table for each size
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, value_delimiter = ',', default_value = "4GiB,128MiB")]
    file_sizes: Vec<u64>,
    /// Bytes of a row
    #[arg(long, default_value_t = 100)]
    row_bytes: u64,
    /// Snapshots that are kept beside the latest one
    #[arg(long, default_value_t = 100)]
    snapshots_kept: u64,
    /// Times that everything but the appends is measured; the median is shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Most data files of a table here.
const FILES_MAX: u64 = 1 << 22;
const ROW_BYTES_MAX: u64 = 1 << 20;
/// Appends whose times are combined.
const WINDOW: usize = 100;
/// Rows of a full row group.
const GROUP_ROWS: u64 = farpool::table::GROUP_ROWS_MAX as u64;
/// One of so many files is deleted.
const DELETED_EVERY: u64 = 100;
/// Snapshots that a rollback goes back, if so many are kept.
const BACK: u64 = 50;

pub(crate) fn run(args: &ManifestArgs) -> Outcome {
    if !(1..=1_000).contains(&args.rounds)
        || !(1..=ROW_BYTES_MAX).contains(&args.row_bytes)
        || !(1..=1_000_000).contains(&args.snapshots_kept)
    {
        return Err(Failure::Usage(format!(
            "--rounds {} --row-bytes {} --snapshots-kept {}: 1 to 1000, 1 to {ROW_BYTES_MAX} and 1 to 1000000 are \
             permitted",
            args.rounds, args.row_bytes, args.snapshots_kept
        )));
    }
    for bytes in &args.file_sizes {
        let files = args.size.checked_div(*bytes).unwrap_or(0);
        if !(DELETED_EVERY..=FILES_MAX).contains(&files) || *bytes < args.row_bytes {
            return Err(Failure::Usage(format!(
                "--size {} --file-sizes {}: {DELETED_EVERY} to {FILES_MAX} files are permitted, of a row at least",
                show_bytes(args.size),
                show_bytes(*bytes)
            )));
        }
    }
    let mut stop = Stop::catch()?;
    let mut tables = Vec::new();
    for bytes in &args.file_sizes {
        tables.push(Table::measure(args, *bytes, &mut stop)?);
    }
    let peak_bytes = peak_bytes();
    let mut out = std::io::stdout().lock();
    if args.json {
        let tables: Vec<Json> = tables.iter().map(Table::json).collect();
        let told =
            json!({ "machine": machine(), "size": args.size, "peak_bytes": peak_bytes, "tables": tables });
        writeln!(out, "{told}")?;
        return Ok(());
    }
    for table in &tables {
        table.write(&mut out)?;
    }
    writeln!(
        out,
        "A table of {}. Bytes are those of files of the manifest, with the root. Most memory of this process: {}. {}",
        show_bytes(args.size),
        show_bytes(peak_bytes),
        machine()
    )?;
    Ok(())
}

/// Returns the most bytes that this process has had in memory.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Step that was measured: a commit, or a reading of the manifest.
struct Step {
    what: String,
    counts: Counts,
    /// Bytes of the root that a commit has written.
    root_bytes: u64,
    /// Median of the times.
    us: f64,
    /// Number of data files that it is about.
    files: u64,
}

impl Step {
    fn json(&self) -> Json {
        let Step { what, counts: Counts { read, written, written_bytes }, root_bytes, us, files } = self;
        json!({
            "what": what, "pages_read": read, "pages_written": written, "page_bytes_written": written_bytes,
            "root_bytes": root_bytes, "us": us, "files": files,
        })
    }

    fn cells(&self) -> Vec<String> {
        let Counts { read, written, written_bytes } = self.counts;
        let of_page = written_bytes.checked_div(written).map_or("-".to_owned(), show_bytes);
        let time =
            if self.us < 1e3 { format!("{:.0} us", self.us) } else { format!("{:.1} ms", self.us / 1e3) };
        vec![
            self.what.clone(),
            self.files.to_string(),
            read.to_string(),
            written.to_string(),
            of_page,
            show_bytes(written_bytes + self.root_bytes),
            time,
        ]
    }
}

/// Table whose manifest was measured.
struct Table {
    file_bytes: u64,
    files: u64,
    steps: Vec<Step>,
    /// Number and bytes of the pages of the latest snapshot.
    pages: (u64, u64),
    /// Number and bytes of the pages of all snapshots that are kept.
    kept: (u64, u64),
    root_bytes: u64,
}

impl Table {
    fn measure(args: &ManifestArgs, file_bytes: u64, stop: &mut Stop) -> Result<Table, Failure> {
        let mut build = Build::new(args, file_bytes);
        let files = build.files;
        let mut steps = build.append_all(stop)?;
        let mut probes = Probes { build: &mut build, rounds: args.rounds, stop };
        let pages = probes.pages_of_latest()?;
        steps.extend(probes.all()?);
        Ok(Table { file_bytes, files, steps, pages, kept: build.kept, root_bytes: build.root_bytes })
    }

    fn json(&self) -> Json {
        json!({
            "file_bytes": self.file_bytes, "files": self.files, "pages": self.pages.0, "page_bytes": self.pages.1,
            "pages_kept": self.kept.0, "page_bytes_kept": self.kept.1, "root_bytes": self.root_bytes,
            "steps": self.steps.iter().map(Step::json).collect::<Vec<_>>(),
        })
    }

    fn write(&self, out: &mut dyn Write) -> Outcome {
        let title = format!("{} files of {}", self.files, show_bytes(self.file_bytes));
        let header = ["step", "files", "pages read", "written", "a page", "bytes written", "time"];
        let rows: Vec<Vec<String>> = self.steps.iter().map(Step::cells).collect();
        titled::write(out, &title, &header, &rows)?;
        let ((pages, bytes), (kept, kept_bytes)) = (self.pages, self.kept);
        writeln!(
            out,
            "  the latest snapshot: a root of {} and {pages} pages of {}; with the snapshots before: {kept} pages of \
             {}\n",
            show_bytes(self.root_bytes),
            show_bytes(bytes),
            show_bytes(kept_bytes)
        )?;
        Ok(())
    }
}

/// Table that grows by one file with each commit.
struct Build {
    file_bytes: u64,
    /// Number of files when all are there.
    files: u64,
    file_rows: u64,
    pages: MemoryPages,
    entries: Entries,
    /// Number of pages, and their bytes, of the snapshots that are kept at the end.
    kept: (u64, u64),
    root_bytes: u64,
    /// Entries of an earlier snapshot that is still kept.
    earlier: Entries,
    back: u64,
}

fn schema() -> Schema {
    Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("day", DataType::Date32, false),
        Field::new("name", DataType::Utf8, true),
        Field::new("amount", DataType::Decimal128(12, 2), true),
    ])
}

fn bounds(min: Value, max: Value) -> Option<Statistics> {
    Some(Statistics { min, max, is_min_truncated: false, is_max_truncated: false, has_nan: false })
}

impl Build {
    fn new(args: &ManifestArgs, file_bytes: u64) -> Build {
        let files = args.size / file_bytes;
        let root = Root {
            table: TableId(1),
            snapshot: 0,
            schema: Arc::new(schema()),
            field_ids: FieldIds::of_new_table(schema().fields().len()),
            layout: TableLayout::Columns,
            bounded: (0..schema().fields().len() as u16).collect(),
            arrangement: Arrangement::default(),
            entries: Entries::Files(Vec::new()),
        };
        Build {
            file_bytes,
            files,
            file_rows: file_bytes / args.row_bytes,
            pages: MemoryPages::new(root, args.snapshots_kept),
            entries: Entries::Files(Vec::new()),
            kept: (0, 0),
            root_bytes: 0,
            earlier: Entries::Files(Vec::new()),
            back: BACK.min(args.snapshots_kept),
        }
    }

    /// Returns the first id of a file. Ids ascend from file to file.
    fn first_id(&self, number: u64) -> i64 {
        (number * self.file_rows) as i64
    }

    fn file(&self, number: u64, commit: u64, index: u32) -> DataFile {
        let whole = |from: i64, to: i64| bounds(Value::Integer(from.into()), Value::Integer(to.into()));
        let (first, day) = (self.first_id(number), (number * 3_650 / self.files) as i64);
        let text = |letter: u8| Value::Bytes(vec![letter; 20]);
        DataFile {
            at: PartAt { commit: CommitId(commit), index },
            added: commit,
            rows: self.file_rows,
            bytes: self.file_bytes,
            groups: self.file_rows.div_ceil(GROUP_ROWS) as u32,
            columns: 0,
            left_out: Vec::new(),
            salt: [0; SALT_BYTES],
            bounds: vec![
                whole(first, self.first_id(number + 1) - 1),
                whole(day, day + 1),
                bounds(text(b'a'), text(b'z')),
                whole(0, 999_999_999_999),
            ],
        }
    }

    /// Appends all files, one with each commit. Returns the first, the middle and the last appends.
    fn append_all(&mut self, stop: &mut Stop) -> Result<Vec<Step>, Failure> {
        let bar = ProgressBar::new(self.files);
        let mut done: Vec<(f64, Counts, u64)> = Vec::with_capacity(self.files as usize);
        for number in 0..self.files {
            let begun = Instant::now();
            let snapshot = self.pages.begin(1);
            let file = self.file(number, snapshot, 0);
            let mut removed = Removed::default();
            self.entries = manifest::append(&self.entries, vec![file], &mut self.pages, &mut removed)
                .map_err(Failure::failed)?;
            self.root_bytes = self.pages.root_bytes(&self.entries);
            let us = begun.elapsed().as_secs_f64() * 1e6;
            self.pages.end(removed);
            done.push((us, self.pages.take_counts(), self.root_bytes));
            if number + self.back + 1 == self.files {
                self.earlier = self.entries.clone();
            }
            if number % 1_000 == 0 {
                stop.check()?;
                bar.set_position(number);
            }
        }
        bar.finish_and_clear();
        self.kept = self.pages.kept();
        let window = WINDOW.min(done.len());
        let middle = (done.len() - window) / 2;
        let steps = [("with few files", 0), ("with half of them", middle), ("with all", done.len() - window)];
        Ok(steps.map(|(when, from)| appends(when, &done[from..from + window], from)).into())
    }
}

/// Combines appends: the median of their times, and means of the rest.
fn appends(when: &str, done: &[(f64, Counts, u64)], from: usize) -> Step {
    let count = done.len().max(1) as u64;
    let sum = |of: fn(&Counts) -> u64| done.iter().map(|(_, counts, _)| of(counts)).sum::<u64>();
    Step {
        what: format!("append of a file {when}"),
        counts: Counts {
            read: sum(|counts| counts.read).div_ceil(count),
            written: sum(|counts| counts.written).div_ceil(count),
            written_bytes: sum(|counts| counts.written_bytes) / count,
        },
        root_bytes: done.iter().map(|(.., bytes)| bytes).sum::<u64>() / count,
        us: median(done.iter().map(|(us, ..)| *us)),
        files: (from + done.len()) as u64,
    }
}

/// Steps over the whole table, each of which leaves it as it was.
struct Probes<'a> {
    build: &'a mut Build,
    rounds: usize,
    stop: &'a mut Stop,
}

impl Probes<'_> {
    /// Returns the number of the pages of the latest snapshot, and their bytes.
    fn pages_of_latest(&mut self) -> Result<(u64, u64), Failure> {
        let mut at = Vec::new();
        let mut add = |walked: Walked<'_>| {
            if let Walked::Page(page) = walked {
                at.push(page.at);
            }
        };
        let Build { entries, pages, .. } = &mut *self.build;
        manifest::walk(entries, pages, &mut add).map_err(Failure::failed)?;
        pages.take_counts();
        Ok((at.len() as u64, at.iter().map(|at| pages.bytes_of(*at)).sum()))
    }

    fn all(&mut self) -> Result<Vec<Step>, Failure> {
        let files = self.build.files;
        let middle = files / 2;
        let point = self.build.first_id(middle) + 1;
        let some = files.div_ceil(DELETED_EVERY);
        let (least, most) = (self.build.first_id(middle), self.build.first_id(middle + some) - 1);
        let adjoining = middle..middle + files / DELETED_EVERY;
        Ok(vec![
            self.commit("all files in one commit", files, |build, removed| {
                let snapshot = build.pages.begin(build.files as u32);
                let all =
                    (0..build.files).map(|number| build.file(number, snapshot, number as u32)).collect();
                manifest::append(&Entries::Files(Vec::new()), all, &mut build.pages, removed)
            })?,
            self.rewrite("a file in the middle is replaced", move |number, file, snapshot| {
                let at = PartAt { commit: CommitId(snapshot), index: 0 };
                Some(if number == middle {
                    DataFile { at, added: snapshot, ..file.clone() }
                } else {
                    file.clone()
                })
            })?,
            self.rewrite("1 % of the files are deleted, one of 100", |number, file, _| {
                (number % DELETED_EVERY != 0).then(|| file.clone())
            })?,
            self.rewrite("1 % of the files are deleted, one beside another", move |number, file, _| {
                (!adjoining.contains(&number)).then(|| file.clone())
            })?,
            self.read("all pages are read", |build, stop| {
                let mut found = 0;
                walk_files(build, stop, |_| found += 1)?;
                Ok((found == build.files).then_some(found))
            })?,
            self.prune("a point is looked up by bounds", point, point, 1)?,
            self.prune("1 % of the ids by bounds", least, most, some)?,
            self.rollback()?,
        ])
    }

    /// Measures a commit, and gives it up afterwards.
    fn commit(
        &mut self,
        what: &str,
        files: u64,
        change: impl Fn(&mut Build, &mut Removed) -> Result<Entries, WireError>,
    ) -> Result<Step, Failure> {
        let (mut times, mut counts, mut root_bytes) = (Vec::new(), Counts::default(), 0);
        for _ in 0..self.rounds {
            self.stop.check()?;
            self.build.pages.take_counts();
            let begun = Instant::now();
            let entries = change(self.build, &mut Removed::default()).map_err(Failure::failed)?;
            root_bytes = self.build.pages.root_bytes(&entries);
            times.push(begun.elapsed().as_secs_f64() * 1e6);
            counts = self.build.pages.take_counts();
            self.build.pages.give_up();
        }
        Ok(Step { what: what.to_owned(), counts, root_bytes, us: median(times.into_iter()), files })
    }

    /// Measures a change of files. `change` gets the number of each file, in the order of the rows.
    fn rewrite(
        &mut self,
        what: &str,
        change: impl Fn(u64, &DataFile, u64) -> Option<DataFile>,
    ) -> Result<Step, Failure> {
        let files = self.build.files;
        let changed = std::cell::Cell::new(0);
        let step = self.commit(what, files, |build, removed| {
            let snapshot = build.pages.begin(1);
            let mut number = 0;
            changed.set(0);
            manifest::rewrite(&build.entries, &mut build.pages, removed, &mut |file| {
                let next = change(number, file, snapshot);
                number += 1;
                changed.set(changed.get() + u64::from(next.as_ref() != Some(file)));
                next
            })
        })?;
        Ok(Step { files: changed.get(), ..step })
    }

    /// Measures a reading of the manifest. `read` returns the number of files that it has found, `None` if these are
    /// not the right ones.
    fn read(
        &mut self,
        what: &str,
        read: impl Fn(&mut Build, &mut Stop) -> Result<Option<u64>, Failure>,
    ) -> Result<Step, Failure> {
        let (mut times, mut counts, mut files) = (Vec::new(), Counts::default(), 0);
        for _ in 0..self.rounds {
            self.build.pages.take_counts();
            let begun = Instant::now();
            let found = read(self.build, self.stop)?;
            times.push(begun.elapsed().as_secs_f64() * 1e6);
            counts = self.build.pages.take_counts();
            files = found.ok_or_else(|| Failure::Failed(format!("{what}: other files were found")))?;
        }
        Ok(Step { what: what.to_owned(), counts, root_bytes: 0, us: median(times.into_iter()), files })
    }

    /// Measures which files may have an id of a range.
    fn prune(&mut self, what: &str, least: i64, most: i64, wanted: u64) -> Result<Step, Failure> {
        let id = || col("id");
        let columns = vec![("id".to_owned(), Type::Int64)];
        let plan = Query::over(columns).filter(id().between(least, most)).plan().map_err(Failure::failed)?;
        self.read(what, |build, stop| {
            let mut found = 0;
            walk_files(build, stop, |file| found += u64::from(may_have(&plan.near, file)))?;
            Ok((found == wanted).then_some(found))
        })
    }

    /// Measures what a rollback has to find out: which parts the two snapshots do not share.
    fn rollback(&mut self) -> Result<Step, Failure> {
        let back = self.build.back;
        self.read(&format!("a rollback by {back} snapshots is compared"), |build, stop| {
            let Build { earlier, entries, pages, .. } = build;
            let mut parts = |of: &Entries| {
                let mut parts: BTreeMap<PartAt, u64> = BTreeMap::new();
                let mut files = 0u64;
                let mut add = |walked: Walked<'_>| {
                    let (at, added) = match walked {
                        Walked::File(file) => (file.at, file.added),
                        Walked::Page(page) => (page.at, page.added),
                    };
                    files += u64::from(matches!(walked, Walked::File(_)));
                    parts.insert(at, added);
                };
                manifest::walk(of, pages, &mut add).map(|()| (parts, files))
            };
            let ((has, has_files), (gets, gets_files)) =
                (parts(&*entries).map_err(Failure::failed)?, parts(&*earlier).map_err(Failure::failed)?);
            stop.check()?;
            let (mut removed, mut restored) = (Removed::default(), Removed::default());
            has.iter().filter(|(at, _)| !gets.contains_key(*at)).for_each(|(at, of)| removed.push(*at, *of));
            gets.iter().filter(|(at, _)| !has.contains_key(*at)).for_each(|(at, of)| restored.push(*at, *of));
            let _ = (removed.ranges(), restored.ranges());
            Ok((has_files - gets_files == back).then_some(back))
        })
    }
}

fn walk_files(build: &mut Build, stop: &mut Stop, mut each: impl FnMut(&DataFile)) -> Result<(), Failure> {
    stop.check()?;
    let Build { entries, pages, .. } = build;
    let mut add = |walked: Walked<'_>| {
        if let Walked::File(file) = walked {
            each(file);
        }
    };
    manifest::walk(entries, pages, &mut add).map_err(Failure::failed)
}

/// Reports whether some row of a file may pass a filter over the first column, as for a row group with these bounds.
fn may_have(filter: &Program, file: &DataFile) -> bool {
    let chunk = |statistics: &Option<Statistics>| ColumnChunk {
        encoding: Encoding::Plain,
        null_count: 0,
        buffers: Vec::new(),
        statistics: statistics.clone(),
    };
    let columns = file.bounds.iter().take(1).map(chunk).collect();
    let rows = u32::try_from(file.rows).unwrap_or(u32::MAX);
    may_pass(filter, &[], &RowGroup { offset: 0, bytes: 0, rows, columns })
}
