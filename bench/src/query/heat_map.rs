//! What `farpool bench place` found, as JSON and as a drawing: a row for each link, a column for each query.

use crate::exit::Failure;
use crate::{Outcome, input};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde_json::{Value, json};
use std::path::Path;

/// One query over one link.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) name: String,
    /// Medians: fetched, shipped, split, and as the planner chose.
    pub(crate) seconds: [f64; 4],
    pub(crate) all_seconds: [Vec<f64>; 4],
    /// Of the planner's first run, which had to find out.
    pub(crate) first_seconds: f64,
    pub(crate) first_report: String,
    /// The mode that took least.
    pub(crate) best: String,
    /// The mode that the planner chose most often, and how often each.
    pub(crate) chosen: String,
    pub(crate) choices: Vec<(String, usize)>,
    /// Medians of what was expected of each mode.
    pub(crate) expected_seconds: [f64; 3],
    pub(crate) link_bytes: f64,
    pub(crate) report: String,
}

/// The queries over one link.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Run {
    pub(crate) link: String,
    pub(crate) bytes: u64,
    pub(crate) rounds: usize,
    pub(crate) machine: String,
    pub(crate) cpus: usize,
    pub(crate) cells: Vec<Cell>,
}

const MODES: [&str; 3] = ["fetch", "ship", "split"];

impl Cell {
    /// The median of the best forced mode.
    pub(crate) fn best_seconds(&self) -> f64 {
        self.seconds[..3].iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The planner's time over it.
    pub(crate) fn over_best(&self) -> f64 {
        self.seconds[3] / self.best_seconds()
    }

    /// What the choices come to if each mode takes what it took when it was forced, over the best: what is lost by
    /// choosing, without what differs between two runs of the same.
    pub(crate) fn choice_over_best(&self) -> f64 {
        let count: usize = self.choices.iter().map(|(_, count)| count).sum();
        let of = |name: &str| MODES.iter().position(|mode| *mode == name).map_or(0.0, |at| self.seconds[at]);
        let sum: f64 = self.choices.iter().map(|(name, count)| of(name) * *count as f64).sum();
        sum / count.max(1) as f64 / self.best_seconds()
    }

    /// What was expected of the mode that was chosen.
    pub(crate) fn expected(&self) -> f64 {
        MODES.iter().position(|mode| *mode == self.chosen).map_or(0.0, |at| self.expected_seconds[at])
    }

    fn json(&self) -> Value {
        let [fetch, ship, split, auto] = self.seconds;
        let [of_fetch, of_ship, of_split] = self.expected_seconds;
        let [all_fetch, all_ship, all_split, all_auto] = &self.all_seconds;
        let choices: serde_json::Map<String, Value> =
            self.choices.iter().map(|(name, count)| (name.clone(), json!(count))).collect();
        json!({
            "query": self.name, "best": self.best, "chosen": self.chosen, "choices": choices,
            "seconds": { "fetch": fetch, "ship": ship, "split": split, "auto": auto },
            "all_seconds": { "fetch": all_fetch, "ship": all_ship, "split": all_split, "auto": all_auto },
            "expected_seconds": { "fetch": of_fetch, "ship": of_ship, "split": of_split },
            "first_seconds": self.first_seconds, "first_report": self.first_report,
            "auto_over_best": self.over_best(), "choice_over_best": self.choice_over_best(), "link_bytes": self.link_bytes, "report": self.report,
        })
    }

    fn take(value: &Value) -> Option<Cell> {
        let text = |of: &Value| of.as_str().map(str::to_owned);
        let of = |key: &str, modes: &[&str]| -> Option<Vec<f64>> {
            modes.iter().map(|mode| value[key][*mode].as_f64()).collect()
        };
        let all = |mode: &str| -> Option<Vec<f64>> {
            value["all_seconds"][mode].as_array()?.iter().map(Value::as_f64).collect()
        };
        let choices = value["choices"].as_object()?.iter();
        let choices = choices.map(|(name, count)| Some((name.clone(), count.as_u64()? as usize)));
        Some(Cell {
            name: text(&value["query"])?,
            seconds: of("seconds", &["fetch", "ship", "split", "auto"])?.try_into().ok()?,
            all_seconds: [all("fetch")?, all("ship")?, all("split")?, all("auto")?],
            first_seconds: value["first_seconds"].as_f64()?,
            first_report: text(&value["first_report"])?,
            best: text(&value["best"])?,
            chosen: text(&value["chosen"])?,
            choices: choices.collect::<Option<Vec<_>>>()?,
            expected_seconds: of("expected_seconds", &MODES)?.try_into().ok()?,
            link_bytes: value["link_bytes"].as_f64()?,
            report: text(&value["report"])?,
        })
    }
}

/// For machines.
pub(crate) fn json(runs: &[Run]) -> Value {
    let run = |run: &Run| {
        json!({
            "link": run.link, "bytes": run.bytes, "rounds": run.rounds, "machine": run.machine,
            "cpus": run.cpus, "cells": run.cells.iter().map(Cell::json).collect::<Vec<_>>(),
        })
    };
    json!({ "runs": runs.iter().map(run).collect::<Vec<_>>() })
}

/// The runs of what [`json`] gave.
fn runs_of(value: &Value) -> Option<Vec<Run>> {
    let run = |value: &Value| {
        Some(Run {
            link: value["link"].as_str()?.to_owned(),
            bytes: value["bytes"].as_u64()?,
            rounds: value["rounds"].as_u64()? as usize,
            machine: value["machine"].as_str()?.to_owned(),
            cpus: value["cpus"].as_u64()? as usize,
            cells: value["cells"].as_array()?.iter().map(Cell::take).collect::<Option<Vec<_>>>()?,
        })
    };
    value["runs"].as_array()?.iter().map(run).collect()
}

impl Run {
    /// Those of a file.
    pub(crate) fn read(path: &Path) -> Result<Vec<Run>, Failure> {
        let text = input::file(path, RUNS_BYTES_MAX)
            .and_then(input::text)
            .map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
        let value = serde_json::from_str::<Value>(&text).ok();
        value.as_ref().and_then(runs_of).ok_or_else(|| {
            Failure::Failed(format!("{}: this is not what farpool bench place --json wrote", path.display()))
        })
    }
}

/// The most bytes of a file of runs.
const RUNS_BYTES_MAX: usize = 64 << 20;
const CELL_WIDTH: i32 = 84;
const CELL_HEIGHT: i32 = 42;
const LEFT: i32 = 130;
const TOP: i32 = 64;

/// Writes the drawing to a file.
pub(crate) fn draw(path: &Path, runs: &[Run]) -> Outcome {
    let failed =
        |error: &dyn std::fmt::Display| Failure::Failed(format!("--plot {}: {error}", path.display()));
    let drawing = render(runs).map_err(|error| failed(&error))?;
    std::fs::write(path, drawing).map_err(|error| failed(&error))
}

/// Of a choice.
fn colour(mode: &str) -> RGBColor {
    match mode {
        "fetch" => RGBColor(0xb3, 0xcd, 0xe3),
        "ship" => RGBColor(0xcc, 0xeb, 0xc5),
        "split" => RGBColor(0xde, 0xcb, 0xe4),
        _ => RGBColor(0xee, 0xee, 0xee),
    }
}

/// Of a ratio: the nearer to 1.5, the more of it.
fn heat(ratio: f64) -> RGBColor {
    let share = ((ratio - 1.0) / 0.5).clamp(0.0, 1.0);
    let mix = |cold: f64, hot: f64| (cold + (hot - cold) * share) as u8;
    RGBColor(mix(229.0, 215.0), mix(245.0, 90.0), mix(224.0, 70.0))
}

fn render(runs: &[Run]) -> Result<String, String> {
    let mut queries: Vec<&str> = Vec::new();
    for cell in runs.iter().flat_map(|run| &run.cells) {
        if !queries.contains(&cell.name.as_str()) {
            queries.push(&cell.name);
        }
    }
    let panel = runs.len() as i32 * CELL_HEIGHT + TOP;
    let size = (LEFT + CELL_WIDTH * queries.len().max(1) as i32 + 16, 2 * panel + 24);
    let mut drawing = String::new();
    {
        let root = SVGBackend::with_string(&mut drawing, (size.0 as u32, size.1 as u32)).into_drawing_area();
        let text = |error: &dyn std::fmt::Display| error.to_string();
        root.fill(&WHITE).map_err(|error| text(&error))?;
        let write = |what: &str, at: (i32, i32), size: i32, horizontal: HPos| {
            let style = ("sans-serif", size).into_font().color(&BLACK);
            let style = style.pos(Pos::new(horizontal, VPos::Center));
            root.draw(&Text::new(what.to_owned(), at, style)).map_err(|error| error.to_string())
        };
        for (number, title) in [
            "what the planner chose, and how long the first run took over the best",
            "its time over that of the best forced mode, once learnt",
        ]
        .into_iter()
        .enumerate()
        {
            let top = number as i32 * panel;
            write(title, (LEFT, top + 18), 15, HPos::Left)?;
            for (column, query) in queries.iter().enumerate() {
                let x = LEFT + column as i32 * CELL_WIDTH + CELL_WIDTH / 2;
                write(query, (x, top + TOP - 14), 11, HPos::Center)?;
            }
            for (line, run) in runs.iter().enumerate() {
                let y = top + TOP + line as i32 * CELL_HEIGHT;
                write(&run.link, (LEFT - 10, y + CELL_HEIGHT / 2), 12, HPos::Right)?;
                for cell in &run.cells {
                    let Some(column) = queries.iter().position(|query| *query == cell.name) else { continue };
                    let x = LEFT + column as i32 * CELL_WIDTH;
                    let (fill, words) = match number {
                        0 => {
                            let first = cell.first_seconds / cell.best_seconds();
                            (colour(&cell.chosen), format!("{} ({first:.2})", cell.chosen))
                        }
                        _ => (heat(cell.over_best()), format!("{:.2}", cell.over_best())),
                    };
                    let corners = [(x + 1, y + 1), (x + CELL_WIDTH - 1, y + CELL_HEIGHT - 1)];
                    root.draw(&Rectangle::new(corners, fill.filled())).map_err(|error| text(&error))?;
                    write(&words, (x + CELL_WIDTH / 2, y + CELL_HEIGHT / 2), 12, HPos::Center)?;
                }
            }
        }
        if let Some(run) = runs.first() {
            let machine = format!(
                "farpool bench place, {} MiB, medians of {} rounds, {}",
                run.bytes >> 20,
                run.rounds,
                run.machine
            );
            write(&machine, (LEFT, size.1 - 12), 11, HPos::Left)?;
        }
        root.present().map_err(|error| text(&error))?;
    }
    Ok(drawing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(link: &str) -> Run {
        let cell = Cell {
            name: "select-1%".to_owned(),
            seconds: [0.4, 0.1, 0.2, 0.105],
            all_seconds: [vec![0.4], vec![0.1], vec![0.2], vec![0.105]],
            first_seconds: 0.13,
            first_report: "first".to_owned(),
            best: "ship".to_owned(),
            chosen: "ship".to_owned(),
            choices: vec![("fetch".to_owned(), 1), ("ship".to_owned(), 4)],
            expected_seconds: [0.41, 0.11, 0.2],
            link_bytes: 1e6,
            report: "auto, ship".to_owned(),
        };
        let (link, machine) = (link.to_owned(), "a <machine>".to_owned());
        Run { link, bytes: 1 << 27, rounds: 5, machine, cpus: 2, cells: vec![cell] }
    }

    #[test]
    fn what_was_written_is_read_again() {
        let runs = vec![run("1 Gbit/s"), run("shm")];
        assert_eq!(runs_of(&json(&runs)), Some(runs));
        assert_eq!(runs_of(&json!({ "points": [] })), None);
    }

    #[test]
    fn drawing_has_a_row_for_each_link_and_says_what_was_chosen() {
        let drawing = render(&[run("1 Gbit/s"), run("shm")]).unwrap();
        assert!(drawing.starts_with("<svg") && drawing.trim_end().ends_with("</svg>"));
        for words in ["1 Gbit/s", "shm", "select-1%", "ship (1.30)", "1.05", "a &lt;machine&gt;"] {
            assert!(drawing.contains(words), "{words}");
        }
        assert!(render(&[]).is_ok());
    }

    #[test]
    fn time_over_the_best_is_that_of_the_best_forced_mode() {
        let cell = &run("tcp").cells[0];
        assert!((cell.over_best() - 1.05).abs() < 1e-9 && (cell.expected() - 0.11).abs() < 1e-9);
        assert!((cell.choice_over_best() - 1.6).abs() < 1e-9, "four of 0.1 and one of 0.4");
    }
}
