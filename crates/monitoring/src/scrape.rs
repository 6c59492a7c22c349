//! Samples of one scrape, and the two text formats that they are written in.
//!
//! The formats differ in few places. In that of Prometheus (0.0.4) the type of a counter is declared under the full
//! name; in OpenMetrics (1.0.0) without `_total`. OpenMetrics also declares units, escapes quotes in help, and ends
//! with `# EOF`.

use crate::families::{Family, FamilyKind};
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// Text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text format 0.0.4 of Prometheus.
    Prometheus,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// Returns the media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Value of one sample.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Whole(u64),
    Real(f64),
    Histogram(Histogram),
}

/// Counts by bucket, not cumulated.
#[derive(Clone, Debug, PartialEq)]
struct Histogram {
    /// Upper bounds in seconds, rising.
    bounds: Vec<f64>,
    /// One count for each bound, and one for what lies above all of them.
    counts: Vec<u64>,
    sum_seconds: f64,
}

/// Samples of one scrape. A second sample of the same family and labels replaces the first.
#[derive(Debug, Default)]
pub struct Scrape {
    samples: BTreeMap<&'static str, (&'static Family, BTreeMap<Vec<String>, Value>)>,
}

impl Scrape {
    /// Adds a sample. There is one value for each label of the family.
    pub fn set(&mut self, family: &'static Family, labels: &[&str], value: u64) {
        self.put(family, labels, Value::Whole(value));
    }

    /// Adds a sample that need not be a whole number.
    pub fn set_real(&mut self, family: &'static Family, labels: &[&str], value: f64) {
        self.put(family, labels, Value::Real(value));
    }

    /// Adds a histogram. `counts` has the number of observations in each bucket, and one more than there are bounds.
    pub fn set_times(
        &mut self,
        family: &'static Family,
        labels: &[&str],
        bounds_ns: &[u64],
        counts: &[u64],
        sum_ns: u64,
    ) {
        debug_assert_eq!(counts.len(), bounds_ns.len() + 1);
        let bounds = bounds_ns.iter().map(|bound| *bound as f64 / 1e9).collect();
        let sum_seconds = sum_ns as f64 / 1e9;
        let histogram = Histogram { bounds, counts: counts.to_vec(), sum_seconds };
        self.put(family, labels, Value::Histogram(histogram));
    }

    fn put(&mut self, family: &'static Family, labels: &[&str], value: Value) {
        debug_assert_eq!(labels.len(), family.labels.len(), "labels of {}", family.name);
        debug_assert_eq!(matches!(value, Value::Histogram(_)), family.kind == FamilyKind::Histogram);
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let (_, samples) = self.samples.entry(family.name).or_insert((family, BTreeMap::new()));
        samples.insert(labels, value);
    }

    /// Writes all samples, family by family.
    pub fn write(&self, format: Format) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write_to(format, &mut text);
        text
    }

    fn write_to(&self, format: Format, out: &mut String) -> fmt::Result {
        for (family, samples) in self.samples.values() {
            let Family { name, kind, help, labels } = family;
            let base = name.strip_suffix("_total").filter(|_| *kind == FamilyKind::Counter).unwrap_or(name);
            let declared = match format {
                Format::Prometheus => name,
                Format::OpenMetrics => base,
            };
            writeln!(out, "# HELP {declared} {}", Escaped(help, format == Format::OpenMetrics))?;
            writeln!(out, "# TYPE {declared} {kind}")?;
            let unit = ["seconds", "bytes"].into_iter().find(|unit| base.ends_with(&format!("_{unit}")));
            if let (Format::OpenMetrics, Some(unit)) = (format, unit) {
                writeln!(out, "# UNIT {declared} {unit}")?;
            }
            for (values, value) in samples {
                let pairs: Vec<(&str, &str)> =
                    labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
                match value {
                    Value::Whole(value) => writeln!(out, "{name}{} {value}", Labels(&pairs, None))?,
                    Value::Real(value) => writeln!(out, "{name}{} {}", Labels(&pairs, None), Real(*value))?,
                    Value::Histogram(histogram) => write_histogram(out, name, &pairs, histogram)?,
                }
            }
        }
        if format == Format::OpenMetrics {
            writeln!(out, "# EOF")?;
        }
        Ok(())
    }
}

fn write_histogram(
    out: &mut String,
    name: &str,
    pairs: &[(&str, &str)],
    histogram: &Histogram,
) -> fmt::Result {
    let mut total = 0u64;
    let bounds = histogram.bounds.iter().copied().chain([f64::INFINITY]);
    for (bound, count) in bounds.zip(&histogram.counts) {
        total = total.saturating_add(*count);
        writeln!(out, "{name}_bucket{} {total}", Labels(pairs, Some(bound)))?;
    }
    writeln!(out, "{name}_count{} {total}", Labels(pairs, None))?;
    writeln!(out, "{name}_sum{} {}", Labels(pairs, None), Real(histogram.sum_seconds))
}

/// Displays text with backslashes, line feeds and, if asked, quotes escaped.
struct Escaped<'a>(&'a str, bool);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '"' if self.1 => f.write_str("\\\"")?,
                // A carriage return is permitted, but old scrapers end a line there.
                '\r' => f.write_char(' ')?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// Displays labels, and the upper bound of a bucket if there is one.
struct Labels<'a>(&'a [(&'a str, &'a str)], Option<f64>);

impl fmt::Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Labels(pairs, bound) = self;
        if pairs.is_empty() && bound.is_none() {
            return Ok(());
        }
        let mut before = '{';
        for (name, value) in *pairs {
            write!(f, "{before}{name}=\"{}\"", Escaped(value, true))?;
            before = ',';
        }
        if let Some(bound) = bound {
            write!(f, "{before}le=\"{}\"", Real(*bound))?;
        }
        f.write_char('}')
    }
}

/// Displays a number in the canonical form of OpenMetrics: `1.0`, `0.0001`, `1e-05`, `+Inf`.
struct Real(f64);

impl fmt::Display for Real {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Real(number) = *self;
        if number.is_nan() {
            return f.write_str("NaN");
        }
        if number.is_infinite() {
            return f.write_str(if number > 0.0 { "+Inf" } else { "-Inf" });
        }
        let size = number.abs();
        if number == 0.0 || (1e-4..1e16).contains(&size) {
            return write!(f, "{number:?}");
        }
        // Rust writes 1e-5, and the canonical form has two digits at least.
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
        write!(f, "{digits}e{sign}{exponent:0>2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    static COUNTED: Family = Family {
        name: "x_read_bytes_total",
        kind: FamilyKind::Counter,
        help: "Say \"x\".",
        labels: &["node"],
    };
    static LEVEL: Family = Family { name: "x_level", kind: FamilyKind::Gauge, help: "A\\B\nC.", labels: &[] };
    static TIMES: Family =
        Family { name: "x_wait_seconds", kind: FamilyKind::Histogram, help: "Waits.", labels: &["way"] };

    fn scrape() -> Scrape {
        let mut scrape = Scrape::default();
        scrape.set(&COUNTED, &["n\"1\\\n"], u64::MAX);
        scrape.set_real(&LEVEL, &[], 0.5);
        scrape.set_times(&TIMES, &["tcp"], &[10_000, 1_000_000_000], &[2, 3, 4], 1_500_000_000);
        scrape
    }

    #[test]
    fn prometheus_format_is_as_its_documentation_says() {
        let expected = r#"# HELP x_level A\\B\nC.
# TYPE x_level gauge
x_level 0.5
# HELP x_read_bytes_total Say "x".
# TYPE x_read_bytes_total counter
x_read_bytes_total{node="n\"1\\\n"} 18446744073709551615
# HELP x_wait_seconds Waits.
# TYPE x_wait_seconds histogram
x_wait_seconds_bucket{way="tcp",le="1e-05"} 2
x_wait_seconds_bucket{way="tcp",le="1.0"} 5
x_wait_seconds_bucket{way="tcp",le="+Inf"} 9
x_wait_seconds_count{way="tcp"} 9
x_wait_seconds_sum{way="tcp"} 1.5
"#;
        assert_eq!(scrape().write(Format::Prometheus), expected);
    }

    #[test]
    fn openmetrics_format_names_counters_and_units_apart_and_ends() {
        let expected = r#"# HELP x_level A\\B\nC.
# TYPE x_level gauge
x_level 0.5
# HELP x_read_bytes Say \"x\".
# TYPE x_read_bytes counter
# UNIT x_read_bytes bytes
x_read_bytes_total{node="n\"1\\\n"} 18446744073709551615
# HELP x_wait_seconds Waits.
# TYPE x_wait_seconds histogram
# UNIT x_wait_seconds seconds
x_wait_seconds_bucket{way="tcp",le="1e-05"} 2
x_wait_seconds_bucket{way="tcp",le="1.0"} 5
x_wait_seconds_bucket{way="tcp",le="+Inf"} 9
x_wait_seconds_count{way="tcp"} 9
x_wait_seconds_sum{way="tcp"} 1.5
# EOF
"#;
        assert_eq!(scrape().write(Format::OpenMetrics), expected);
    }

    #[test]
    fn second_sample_of_the_same_labels_replaces_the_first() {
        let mut scrape = Scrape::default();
        scrape.set(&COUNTED, &["a"], 1);
        scrape.set(&COUNTED, &["b"], 2);
        scrape.set(&COUNTED, &["a"], 3);
        let text = scrape.write(Format::Prometheus);
        assert_eq!(
            text.lines().skip(2).collect::<Vec<_>>(),
            ["x_read_bytes_total{node=\"a\"} 3", "x_read_bytes_total{node=\"b\"} 2"]
        );
    }

    #[test]
    fn numbers_have_the_canonical_form() {
        for (number, text) in [
            (0.0, "0.0"),
            (1.0, "1.0"),
            (1e-5, "1e-05"),
            (3e-5, "3e-05"),
            (1e-4, "0.0001"),
            (2.5e17, "2.5e+17"),
            (1e-100, "1e-100"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Inf"),
        ] {
            assert_eq!(Real(number).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn number_read_back_is_the_same(number in proptest::num::f64::NORMAL) {
            prop_assert_eq!(Real(number).to_string().parse::<f64>().expect("a number"), number);
        }

        #[test]
        fn label_of_any_text_stays_in_its_line(text in "\\PC*|[\\x00-\\x1f\"\\\\]*") {
            let mut scrape = Scrape::default();
            scrape.set(&COUNTED, &[&text], 7);
            let written = scrape.write(Format::Prometheus);
            let lines: Vec<&str> = written.split('\n').collect();
            prop_assert_eq!(lines.len(), 4, "{:?}", lines);
            let value = lines[2].strip_prefix("x_read_bytes_total{node=\"").and_then(|rest| rest.strip_suffix("\"} 7"));
            let read = value.expect("one label").replace("\\\\", "\u{0}").replace("\\\"", "\"").replace("\\n", "\n");
            prop_assert_eq!(read.replace('\u{0}', "\\"), text.replace('\r', " ").replace('\u{0}', "\\"));
        }
    }
}
