//! Writes rows in several formats.

use arrow::csv::WriterBuilder;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::writer::StreamWriter;
use arrow::json::LineDelimitedWriter;
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow::util::pretty::pretty_format_batches_with_schema;
use farpool::shown_lines;
use farpool_command::exit::Failure;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

/// Format of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// A table for people
    Table,
    /// CSV with a header
    Csv,
    /// A JSON object for each row, one per line
    Json,
    /// A stream of Arrow's IPC format for each query
    Arrow,
}

/// Output for rows. It is flushed at the end of each query.
pub(crate) struct Out {
    to: Option<Box<dyn Write>>,
    format: Format,
    shown_max: usize,
    /// Rows to show in a table. They are collected, because the width of a column depends on all of its values.
    shown: Vec<RecordBatch>,
    shown_rows: usize,
    schema: SchemaRef,
    stream: Option<StreamWriter<Box<dyn Write>>>,
    has_header: bool,
}

fn gone() -> Failure {
    Failure::failed("internal: another result is being written")
}

impl Out {
    pub(crate) fn new(file: Option<&Path>, format: Format, shown_max: usize) -> Result<Out, Failure> {
        let to: Box<dyn Write> = match file {
            None => Box::new(BufWriter::new(io::stdout())),
            Some(path) => {
                let file = File::create(path);
                let file =
                    file.map_err(|error| Failure::Usage(format!("--output {}: {error}", path.display())))?;
                Box::new(BufWriter::new(file))
            }
        };
        let schema = Arc::new(Schema::empty());
        Ok(Out {
            to: Some(to),
            format,
            shown_max,
            shown: Vec::new(),
            shown_rows: 0,
            schema,
            stream: None,
            has_header: true,
        })
    }

    fn to(&mut self) -> Result<&mut Box<dyn Write>, Failure> {
        self.to.as_mut().ok_or_else(gone)
    }

    /// Begins a result with these columns.
    pub(crate) fn begin(&mut self, schema: &SchemaRef) -> Result<(), Failure> {
        self.schema = Arc::clone(schema);
        (self.shown, self.shown_rows, self.has_header) = (Vec::new(), 0, true);
        if self.format == Format::Arrow && !schema.fields().is_empty() {
            let to = self.to.take().ok_or_else(gone)?;
            self.stream = Some(StreamWriter::try_new(to, schema).map_err(Failure::failed)?);
        }
        Ok(())
    }

    pub(crate) fn rows(&mut self, batch: &RecordBatch) -> Result<(), Failure> {
        if self.schema.fields().is_empty() {
            return Ok(());
        }
        match self.format {
            Format::Table => {
                let room = match self.shown_max {
                    0 => usize::MAX,
                    most => most.saturating_sub(self.shown_rows),
                };
                let shown = batch.slice(0, batch.num_rows().min(room));
                self.shown_rows += shown.num_rows();
                if shown.num_rows() > 0 {
                    self.shown.push(shown);
                }
                Ok(())
            }
            Format::Csv => {
                let has_header = std::mem::take(&mut self.has_header);
                let mut writer = WriterBuilder::new().with_header(has_header).build(self.to()?);
                writer.write(batch).map_err(failed)
            }
            Format::Json => LineDelimitedWriter::new(self.to()?).write(batch).map_err(failed),
            Format::Arrow => match &mut self.stream {
                Some(stream) => stream.write(batch).map_err(failed),
                None => Ok(()),
            },
        }
    }

    /// Ends a result, which had this many rows.
    pub(crate) fn end(&mut self, rows: usize) -> Result<(), Failure> {
        match self.format {
            // A statement without a result, such as SET, has no columns, and no table is drawn.
            Format::Table if !self.schema.fields().is_empty() => {
                let shown = std::mem::take(&mut self.shown);
                if is_plan(&self.schema) {
                    return write_plans(self.to()?, &shown);
                }
                let table =
                    pretty_format_batches_with_schema(Arc::clone(&self.schema), &shown).map_err(failed)?;
                let more = rows.saturating_sub(self.shown_rows);
                let to = self.to()?;
                writeln!(to, "{}", shown_lines(&table.to_string()))?;
                if more > 0 {
                    writeln!(to, "... and {more} more rows (--rows 0 shows all)")?;
                }
            }
            Format::Csv if self.has_header && !self.schema.fields().is_empty() => {
                let empty = RecordBatch::new_empty(Arc::clone(&self.schema));
                self.rows(&empty)?;
            }
            _ => {}
        }
        if let Some(mut stream) = self.stream.take() {
            stream.finish().map_err(failed)?;
            self.to = Some(stream.into_inner().map_err(failed)?);
        }
        self.to()?.flush()?;
        Ok(())
    }

    /// Writes all output that is still buffered.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        self.to()?.flush()?;
        Ok(())
    }
}

/// Reports whether the rows are plans of EXPLAIN. Their long lines would not fit into a table.
fn is_plan(schema: &SchemaRef) -> bool {
    schema.fields().iter().map(|field| field.name().as_str()).eq(["plan_type", "plan"])
}

fn write_plans(to: &mut Box<dyn Write>, shown: &[RecordBatch]) -> Result<(), Failure> {
    for batch in shown {
        let text = |column: usize| ArrayFormatter::try_new(batch.column(column), &FormatOptions::default());
        let (names, plans) = (text(0).map_err(failed)?, text(1).map_err(failed)?);
        for row in 0..batch.num_rows() {
            let plan = plans.value(row).to_string();
            writeln!(
                to,
                "{}:\n{}\n",
                shown_lines(&names.value(row).to_string()),
                shown_lines(plan.trim_end())
            )?;
        }
    }
    to.flush()?;
    Ok(())
}

/// Converts an error of writing. A reader that closed the pipe is not a failure of this program.
fn failed(error: arrow::error::ArrowError) -> Failure {
    match error {
        arrow::error::ArrowError::IoError(_, error) => error.into(),
        other => Failure::failed(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, StringArray};

    /// Writer whose bytes a test can read after it was dropped.
    #[derive(Clone, Default)]
    struct Kept(Arc<farpool_lock::Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(columns: [(&str, &str); 2]) -> String {
        let array = |text: &str| Arc::new(StringArray::from(vec![text])) as ArrayRef;
        let columns = columns.map(|(name, value)| (name.to_owned(), array(value)));
        let batch = RecordBatch::try_from_iter(columns).expect("a batch");
        let kept = Kept::default();
        let mut out = Out::new(None, Format::Table, 10).expect("an output");
        out.to = Some(Box::new(kept.clone()));
        out.begin(&batch.schema()).expect("begun");
        out.rows(&batch).expect("written");
        out.end(1).expect("ended");
        let bytes = kept.0.lock().clone();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn columns_and_values_of_others_are_escaped_in_tables_and_plans() {
        for names in [["a\x1b[2J", "b\u{202e}"], ["plan_type", "plan"]] {
            let text = written([(names[0], "x\x1b]0;title\x07"), (names[1], "y\u{202e}z\r\nnext")]);
            let obeyed = text.chars().find(|letter| *letter != '\n' && !farpool::prints(*letter));
            assert_eq!(obeyed, None, "{text:?}");
            assert!(text.contains("y\\u{202e}z"), "{text}");
        }
    }
}
