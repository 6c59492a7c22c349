//! The figures as a drawing: throughput and times against depth, and growth with clients and nodes.

use super::report::{Report, Row};
use crate::Outcome;
use crate::exit::Failure;
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

const PANEL_WIDTH: u32 = 620;
const PANEL_HEIGHT: u32 = 420;
const COLUMNS: usize = 2;

/// A line of a panel.
#[derive(Debug, PartialEq)]
pub(crate) struct Line {
    pub(crate) name: &'static str,
    /// Which of the contenders it belongs to: lines of one have one colour.
    pub(crate) contender: usize,
    pub(crate) is_thin: bool,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Lines over two logarithmic axes, and what these are.
#[derive(Debug, PartialEq)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) x: &'static str,
    pub(crate) y: &'static str,
    pub(crate) lines: Vec<Line>,
}

/// Writes the drawing of a run of `farpool bench io` to a file.
pub(crate) fn draw(path: &Path, report: &Report) -> Outcome {
    draw_panels(path, &format!("farpool bench io, {}", report.machine), &panels(&report.rows))
}

/// Writes a drawing to a file.
pub(crate) fn draw_panels(path: &Path, caption: &str, panels: &[Panel]) -> Outcome {
    let failed =
        |error: &dyn std::fmt::Display| Failure::Failed(format!("--plot {}: {error}", path.display()));
    let drawing = render(caption, panels).map_err(|error| failed(&error))?;
    std::fs::write(path, drawing).map_err(|error| failed(&error))
}

fn render(caption: &str, panels: &[Panel]) -> Result<String, String> {
    let rows = panels.len().div_ceil(COLUMNS).max(1);
    let mut drawing = String::new();
    {
        let height = PANEL_HEIGHT * rows as u32 + 40;
        let size = (PANEL_WIDTH * COLUMNS as u32, height);
        let root = SVGBackend::with_string(&mut drawing, size).into_drawing_area();
        let text = |error: &dyn std::fmt::Display| error.to_string();
        root.fill(&WHITE).map_err(|error| text(&error))?;
        let root = root.titled(caption, ("sans-serif", 16)).map_err(|error| text(&error))?;
        for (area, panel) in root.split_evenly((rows, COLUMNS)).iter().zip(panels) {
            draw_panel(area, panel).map_err(|error| text(&error))?;
        }
        root.present().map_err(|error| text(&error))?;
    }
    Ok(drawing)
}

/// What is drawn: by depth for the smallest crowd; by clients and by nodes for the greatest depth.
fn panels(rows: &[Row]) -> Vec<Panel> {
    let mut names: Vec<&'static str> = Vec::new();
    for row in rows {
        if !names.contains(&row.name) {
            names.push(row.name);
        }
    }
    let least_clients = rows.iter().map(|row| row.clients).min().unwrap_or(1);
    let least_nodes = rows.iter().map(|row| row.nodes).min().unwrap_or(1);
    let lines = |chosen: &[&Row], x: fn(&Row) -> f64, y: fn(&Row) -> f64, is_thin| -> Vec<Line> {
        let mut by_name: BTreeMap<usize, Vec<(f64, f64)>> = BTreeMap::new();
        for row in chosen {
            let contender = names.iter().position(|name| *name == row.name).unwrap_or(0);
            by_name.entry(contender).or_default().push((x(row), y(row)));
        }
        by_name
            .into_iter()
            .map(|(contender, points)| Line { name: names[contender], contender, is_thin, points })
            .collect()
    };
    let mut panels = Vec::new();
    let mut accesses: Vec<_> = Vec::new();
    for row in rows {
        if !accesses.contains(&row.access) {
            accesses.push(row.access);
        }
    }
    for access in &accesses {
        let of_access: Vec<&Row> = rows.iter().filter(|row| row.access == *access).collect();
        let deepest = of_access.iter().map(|row| row.depth).max().unwrap_or(1);
        let (name, depth) = (access.name, |row: &Row| row.depth as f64);
        let mut add = |title: String, x, y, lines: Vec<Line>| {
            if lines.iter().any(|line| line.points.len() > 1) {
                panels.push(Panel { title, x, y, lines });
            }
        };
        let single: Vec<&Row> = of_access
            .iter()
            .copied()
            .filter(|row| row.clients == least_clients && row.nodes == least_nodes)
            .collect();
        let rates = lines(&single, depth, |row| row.figures.gb_per_s, false);
        add(format!("{name}: throughput"), "depth", "GB/s", rates);
        let mut times = lines(&single, depth, |row| row.figures.p50_us, false);
        times.extend(lines(&single, depth, |row| row.figures.p99_us, true));
        add(format!("{name}: p50, p99 (thin)"), "depth", "us", times);
        let deep = |row: &&Row| row.depth == deepest;
        let by_clients: Vec<&Row> =
            of_access.iter().copied().filter(|row| deep(row) && row.nodes == least_nodes).collect();
        let growth = lines(&by_clients, |row| row.clients as f64, |row| row.figures.gb_per_s, false);
        add(format!("{name}, depth {deepest}: growth"), "clients", "GB/s", growth);
        let by_nodes: Vec<&Row> =
            of_access.iter().copied().filter(|row| deep(row) && row.clients == least_clients).collect();
        let growth = lines(&by_nodes, |row| row.nodes as f64, |row| row.figures.gb_per_s, false);
        add(format!("{name}, depth {deepest}: growth"), "nodes", "GB/s", growth);
    }
    panels
}

/// A range for a logarithmic axis around values, however few and whatever they are.
fn around(values: impl Iterator<Item = f64>) -> Range<f64> {
    const FLOOR: f64 = 1e-3;
    let (least, most) =
        values.fold((f64::MAX, FLOOR), |(least, most), value| (least.min(value), most.max(value)));
    let least = least.clamp(FLOOR, most);
    least / 1.25..most * 1.25
}

fn draw_panel<B: DrawingBackend>(
    area: &DrawingArea<B, plotters::coord::Shift>,
    panel: &Panel,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let points = || panel.lines.iter().flat_map(|line| line.points.iter());
    let (xs, ys) = (around(points().map(|point| point.0)), around(points().map(|point| point.1)));
    // Room for the names, right of the points.
    let xs = xs.start..xs.end * (xs.end / xs.start).powf(0.4);
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 15))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(52)
        .build_cartesian_2d(xs.log_scale().base(2.0), ys.log_scale())?;
    chart
        .configure_mesh()
        .x_desc(panel.x)
        .y_desc(panel.y)
        .x_label_formatter(&|value| whole(*value))
        .y_label_formatter(&|value| show(*value))
        .label_style(("sans-serif", 11))
        .light_line_style(WHITE)
        .draw()?;
    for line in &panel.lines {
        let colour = Palette99::pick(line.contender).to_rgba();
        let points = line.points.iter().copied();
        if line.is_thin {
            chart.draw_series(LineSeries::new(points, colour.mix(0.6).stroke_width(1)))?;
        } else {
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
                .label(line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2)));
        }
        chart.draw_series(line.points.iter().map(|point| Circle::new(*point, 2, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .label_font(("sans-serif", 11))
        .draw()
}

/// A count on an axis; nothing between two of them.
fn whole(value: f64) -> String {
    if (value - value.round()).abs() < 0.01 { format!("{value:.0}") } else { String::new() }
}

/// A value of an axis.
fn show(value: f64) -> String {
    if value >= 10.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::access::ACCESSES;
    use crate::harness::statistics::Figures;

    fn row(name: &'static str, clients: u64, nodes: u64, depth: usize, gb_per_s: f64) -> Row {
        let figures = Figures { gb_per_s, p50_us: 3.0, p99_us: 9.0, ..Figures::default() };
        Row { access: ACCESSES[0], nodes, clients, depth, name, figures, of_memcpy: 1.0 }
    }

    #[test]
    fn one_line_for_each_contender_and_one_panel_for_each_question() {
        let mut rows = Vec::new();
        for name in ["memcpy", "tcp"] {
            for (clients, depth) in [(1, 1), (1, 64), (2, 64)] {
                rows.push(row(name, clients, 1, depth, depth as f64));
            }
        }
        let panels = panels(&rows);
        let titles: Vec<&str> = panels.iter().map(|panel| &*panel.title).collect();
        assert_eq!(
            titles,
            [
                "8 KiB random reads: throughput",
                "8 KiB random reads: p50, p99 (thin)",
                "8 KiB random reads, depth 64: growth"
            ]
        );
        assert_eq!(panels[0].lines.len(), 2);
        assert_eq!(panels[0].lines[1].points, [(1.0, 1.0), (64.0, 64.0)]);
        assert_eq!(panels[2].x, "clients");
    }

    #[test]
    fn drawing_is_well_formed_whatever_the_figures() {
        let rows = vec![row("tcp", 1, 1, 1, 0.0), row("tcp", 1, 1, 64, 2.5)];
        let drawing = render("a <machine> & more", &panels(&rows)).unwrap();
        assert!(drawing.starts_with("<svg") && drawing.trim_end().ends_with("</svg>"));
        assert!(drawing.contains("a &lt;machine&gt; &amp; more"));
        assert!(!drawing.contains("NaN") && !drawing.contains("inf"));
        assert!(render("nothing", &[]).is_ok());
    }
}
