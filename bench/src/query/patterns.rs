//! Regular expressions over text columns in `farpool bench operators`: by a program of operators as a node runs it, and
//! by a loop that calls the `regex` crate.

use crate::exit::Failure;
use crate::harness::mixing::mix;
use crate::harness::statistics::{gb_per_s, median};
use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch, StringArray};
use arrow_buffer::BooleanBuffer;
use farpool::operators::{Bounds, Instruction, Operator, Prepared, Program, Run, Type};
use regex::Regex;
use serde_json::{Value, json};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const LENGTHS: [usize; 4] = [16, 64, 256, 1_024];
/// Bytes of one text column. It fits in the last-level cache of most CPUs, so that the cost of the pattern dominates.
const COLUMN_BYTES: usize = 8 << 20;
const BATCH_ROWS: usize = 1 << 16;
/// Runs over the column that are timed together, because one run takes only a millisecond or two.
const REPEATS: usize = 4;

/// Pattern (`text`). Every other row contains `found`, which matches it. The remaining rows contain `other`, which does
/// not.
struct Pattern {
    text: &'static str,
    found: &'static str,
    other: &'static str,
}

const PATTERNS: [Pattern; 4] = [
    Pattern { text: "(Strasse|Str\\.).*(8[0-9]{4})", found: "Str.81234", other: "Str.71234" },
    Pattern { text: "[0-9]+(USD|EUR|GBP)", found: "427USD", other: "xx USX" },
    Pattern { text: "special.*requests", found: "specialrequests", other: "specialdeposits" },
    Pattern { text: "requests", found: "requests", other: "deposits" },
];

/// One pattern over texts of `length` bytes. `own` are the throughputs of the program and `beside` those of the `regex`
/// crate, by round, in GB/s.
struct Case {
    pattern: &'static str,
    length: usize,
    batches: Vec<RecordBatch>,
    prepared: Arc<Prepared>,
    regex: Regex,
    own: Vec<f64>,
    beside: Vec<f64>,
}

/// Measurements of all patterns and lengths.
pub(crate) struct Patterns {
    cases: Vec<Case>,
}

impl Patterns {
    /// Creates the texts, and checks that the program and the `regex` crate find the same rows.
    pub(crate) fn new() -> Result<Patterns, Failure> {
        let mut cases = Vec::new();
        for pattern in &PATTERNS {
            for length in LENGTHS {
                cases.push(Case::new(pattern, length)?);
            }
        }
        Ok(Patterns { cases })
    }

    /// Measures each pattern and length once more.
    pub(crate) fn measure(&mut self) -> Result<(), Failure> {
        for case in &mut self.cases {
            let bytes: usize = case.batches.iter().map(|batch| batch.num_rows() * case.length).sum();
            // This run loads the column into the cache. The program goes first in every other round, and the `regex`
            // crate in the others.
            black_box(case.found_by_regex());
            let is_own_first = case.own.len().is_multiple_of(2);
            for is_own in [is_own_first, !is_own_first] {
                let begun = Instant::now();
                for _ in 0..REPEATS {
                    match is_own {
                        true => drop(black_box(case.found()?)),
                        false => drop(black_box(case.found_by_regex())),
                    }
                }
                let found = if is_own { &mut case.own } else { &mut case.beside };
                found.push(gb_per_s(bytes * REPEATS, begun));
            }
        }
        Ok(())
    }

    /// Returns a row for each pattern and length, as text and as JSON.
    pub(crate) fn lines(&self) -> Vec<(Vec<String>, Value)> {
        let middle = |found: &[f64]| median(found.iter().copied());
        let line = |case: &Case| {
            let ratio = median(case.own.iter().zip(&case.beside).map(|(own, beside)| own / beside));
            let (own, beside) = (middle(&case.own), middle(&case.beside));
            let row = vec![
                case.pattern.to_owned(),
                case.length.to_string(),
                format!("{own:.2}"),
                format!("{beside:.2}"),
                format!("{ratio:.2}"),
            ];
            let value = json!({
                "operator": "match", "pattern": case.pattern, "text_bytes": case.length, "gb_per_s": own,
                "regex_gb_per_s": beside, "of_regex": ratio,
            });
            (row, value)
        };
        self.cases.iter().map(line).collect()
    }
}

impl Case {
    fn new(pattern: &Pattern, length: usize) -> Result<Case, Failure> {
        let texts = |first: usize| -> StringArray {
            (first..first + BATCH_ROWS.min(COLUMN_BYTES / length))
                .map(|row| Some(text(pattern, length, row)))
                .collect()
        };
        let batch = |first: usize| {
            RecordBatch::try_from_iter([("text", Arc::new(texts(first)) as _)]).map_err(Failure::failed)
        };
        let batches = (0..COLUMN_BYTES / length).step_by(BATCH_ROWS).map(batch).collect::<Result<_, _>>()?;
        let matches = vec![Instruction::Column(0), Instruction::Matches { pattern: pattern.text.to_owned() }];
        let program = Program::check(vec![Type::Text], vec![Operator::Project(vec![matches])])
            .map_err(Failure::failed)?;
        let case = Case {
            pattern: pattern.text,
            length,
            batches,
            prepared: Arc::new(Prepared::new(Arc::new(program)).map_err(Failure::failed)?),
            regex: Regex::new(pattern.text).map_err(Failure::failed)?,
            own: Vec::new(),
            beside: Vec::new(),
        };
        if case.found()? != case.found_by_regex() {
            return Err(Failure::Failed(format!("WRONG MATCHES of {:?} in {length} bytes", pattern.text)));
        }
        Ok(case)
    }

    fn found(&self) -> Result<Vec<BooleanBuffer>, Failure> {
        let mut run =
            Run::new(self.prepared.clone(), Vec::new(), Bounds::default()).map_err(Failure::failed)?;
        let mut found = Vec::new();
        for batch in &self.batches {
            let leaving = run.push(batch, 0).map_err(Failure::failed)?;
            found.extend(leaving.iter().map(|batch| batch.column(0).as_boolean().values().clone()));
        }
        Ok(found)
    }

    fn found_by_regex(&self) -> Vec<BooleanBuffer> {
        let of = |batch: &RecordBatch| {
            let texts = batch.column(0).as_string::<i32>();
            BooleanBuffer::collect_bool(texts.len(), |row| self.regex.is_match(texts.value(row)))
        };
        self.batches.iter().map(of).collect()
    }
}

/// Returns random letters, spaces and digits from 0 to 3, with one of the pattern's two texts among them.
fn text(pattern: &Pattern, length: usize, row: usize) -> String {
    const LETTERS: &[u8] = b"abcdefghijklmnopqrtuvwxyzABCDEFGHIJKLMNOPQRTUVWXYZ    0123 ";
    let held = if row.is_multiple_of(2) { pattern.found } else { pattern.other };
    let letter =
        |at: usize| LETTERS[(mix((row * length + at) as u64) % LETTERS.len() as u64) as usize] as char;
    let start = (mix(row as u64 ^ 0x5bd1_e995) % (length - held.len() + 1) as u64) as usize;
    (0..start).map(letter).chain(held.chars()).chain((start + held.len()..length).map(letter)).collect()
}
