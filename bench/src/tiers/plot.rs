//! Figures 2, 4, 5 and 6 of paper 002 as `farpool bench tiers` finds them.

use super::strategies::{Bar, Found};
use crate::Outcome;
use crate::exit::Failure;
use farpool_place::partial_move::{PAPER_PARTITIONED, best_gain};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

const WIDTH: u32 = 1_240;
const CURVES_HEIGHT: u32 = 380;
const BARS_HEIGHT: u32 = 420;
const MOVING: RGBColor = RGBColor(0xb3, 0x5c, 0x44);
const FIRST: RGBColor = RGBColor(0x80, 0xa8, 0xc8);
const SECOND: RGBColor = RGBColor(0xc8, 0xd8, 0xa8);

/// Writes the drawing to a file.
pub(crate) fn draw(path: &Path, found: &Found, caption: &str) -> Outcome {
    let failed =
        |error: &dyn std::fmt::Display| Failure::Failed(format!("--plot {}: {error}", path.display()));
    let drawing = render(found, caption).map_err(|error| failed(&error))?;
    std::fs::write(path, drawing).map_err(|error| failed(&error))
}

fn render(found: &Found, caption: &str) -> Result<String, String> {
    let mut drawing = String::new();
    {
        let size = (WIDTH, CURVES_HEIGHT + 2 * BARS_HEIGHT + 30);
        let root = SVGBackend::with_string(&mut drawing, size).into_drawing_area();
        let text = |error: &dyn std::fmt::Display| error.to_string();
        root.fill(&WHITE).map_err(|error| text(&error))?;
        let root = root.titled(caption, ("sans-serif", 14)).map_err(|error| text(&error))?;
        let (curves, rest) = root.split_vertically(CURVES_HEIGHT);
        let thirds = curves.split_evenly((1, 3));
        if let [left, middle, right] = &thirds[..] {
            figure_2(left, found).map_err(|error| text(&error))?;
            figure_5(middle, found).map_err(|error| text(&error))?;
            figure_6(right, found).map_err(|error| text(&error))?;
        }
        let halves = rest.split_evenly((2, 1));
        for (area, join) in halves.iter().zip(["partitioned", "non-partitioned"]) {
            let bars: Vec<&Bar> = found.bars.iter().filter(|bar| bar.join == join).collect();
            figure_4(area, join, &bars).map_err(|error| text(&error))?;
        }
        root.present().map_err(|error| text(&error))?;
    }
    Ok(drawing)
}

type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

/// The paper's figure 2 (b), as a share of the fastest.
fn figure_2<B: DrawingBackend>(area: &DrawingArea<B, Shift>, found: &Found) -> Drawn<B> {
    let most = found.moves.iter().map(|of| of.rate.max(of.by_bytes)).fold(f64::MIN_POSITIVE, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption("figure 2: copying to a mix with x near", ("sans-serif", 14))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..1.05, 0.0..1.15)?;
    chart
        .configure_mesh()
        .x_desc("x")
        .y_desc("rate, over the fastest")
        .label_style(("sans-serif", 11))
        .light_line_style(WHITE)
        .draw()?;
    let taken: Vec<(f64, f64)> = found.moves.iter().map(|of| (of.x, of.rate / most)).collect();
    let by_bytes: Vec<(f64, f64)> = found.moves.iter().map(|of| (of.x, of.by_bytes / most)).collect();
    for (name, colour, points) in [("taken", BLUE, taken), ("from bytes", BLACK, by_bytes)] {
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2)));
    }
    legend(&mut chart)
}

fn figure_5<B: DrawingBackend>(area: &DrawingArea<B, Shift>, found: &Found) -> Drawn<B> {
    let most = found.curve.iter().map(|point| point.gain.max(point.by_bytes)).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption("figure 5: moving the share x, then partitioning", ("sans-serif", 14))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..1.0, 0.6..most * 1.1)?;
    chart
        .configure_mesh()
        .x_desc("x")
        .y_desc("gain")
        .label_style(("sans-serif", 11))
        .light_line_style(WHITE)
        .draw()?;
    let linear = |x: f64| found.partitioned.1.gain(x);
    type Line<'a> = (&'static str, RGBColor, Vec<(f64, f64)>);
    let lines: [Line<'_>; 3] = [
        ("taken", BLUE, found.curve.iter().map(|point| (point.x, point.gain)).collect()),
        ("from bytes", BLACK, found.curve.iter().map(|point| (point.x, point.by_bytes)).collect()),
        (
            "g(x) of k and m",
            RED,
            found
                .curve
                .iter()
                .filter(|point| point.x <= found.mixed)
                .map(|point| (point.x, linear(point.x)))
                .collect(),
        ),
    ];
    for (name, colour, points) in lines {
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2)));
    }
    // Where the paper found its best.
    chart
        .draw_series([Cross::new((0.4972, 1.2719), 5, BLACK)])?
        .label("paper's best")
        .legend(|(x, y)| Cross::new((x + 7, y), 4, BLACK));
    legend(&mut chart)
}

fn figure_6<B: DrawingBackend>(area: &DrawingArea<B, Shift>, found: &Found) -> Drawn<B> {
    let mut chart = ChartBuilder::on(area)
        .caption("figure 6: what the model projects", ("sans-serif", 14))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..6.0, 0.95..1.7)?;
    chart
        .configure_mesh()
        .x_desc("lambda = m k")
        .y_desc("phi")
        .label_style(("sans-serif", 11))
        .light_line_style(WHITE)
        .draw()?;
    let curve = (0..=120).map(|step| f64::from(step) / 20.0).map(|lambda| (lambda, best_gain(lambda)));
    chart.draw_series(LineSeries::new(curve, BLACK.stroke_width(2)))?;
    let of = [
        ("paper", RED, PAPER_PARTITIONED),
        ("from bytes", BLACK, found.partitioned.0),
        ("taken", BLUE, found.partitioned.1),
    ];
    for (name, colour, linear) in of {
        let lambda = linear.k * linear.m;
        chart
            .draw_series([Circle::new((lambda, best_gain(lambda)), 4, colour.filled())])?
            .label(name)
            .legend(move |(x, y)| Circle::new((x + 7, y), 4, colour.filled()));
    }
    legend(&mut chart)
}

/// A bar for each strategy, in groups by the size of the build side; its gain above it.
fn figure_4<B: DrawingBackend>(area: &DrawingArea<B, Shift>, join: &str, bars: &[&Bar]) -> Drawn<B> {
    let whole = |bar: &Bar| bar.seconds.iter().sum::<f64>() * 1e3;
    let most = bars.iter().map(|bar| whole(bar)).fold(f64::MIN_POSITIVE, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(format!("figure 4: {join} joins, gain over the far tier above"), ("sans-serif", 14))
        .margin(8)
        .x_label_area_size(16)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..bars.len().max(1) as f64, -0.34 * most..most * 1.25)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_desc("ms")
        .y_label_formatter(&|ms| if *ms < 0.0 { String::new() } else { format!("{ms:.0}") })
        .label_style(("sans-serif", 11))
        .light_line_style(WHITE)
        .draw()?;
    for (phase, (name, colour)) in
        [("move", MOVING), ("partition, build", FIRST), ("join, probe", SECOND)].into_iter().enumerate()
    {
        let boxes = bars.iter().enumerate().map(|(at, bar)| {
            let below: f64 = bar.seconds[..phase].iter().sum::<f64>() * 1e3;
            let (left, right) = (at as f64 + 0.12, at as f64 + 0.88);
            Rectangle::new([(left, below), (right, below + bar.seconds[phase] * 1e3)], colour.filled())
        });
        chart
            .draw_series(boxes)?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
    }
    for (at, bar) in bars.iter().enumerate() {
        let write = |words: String, height: f64| {
            Text::new(words, (at as f64 + 0.1, height), ("sans-serif", 10).into_font())
        };
        chart.draw_series([write(format!("{:.2}", bar.gain), whole(bar) + most * 0.06)])?;
        let mut below = wrapped(&bar.strategy);
        below.push(format!("{} {}", bar.build, bar.shares.trim_matches('-')));
        for (line, words) in below.into_iter().enumerate() {
            chart.draw_series([write(words, (-0.03 - 0.07 * line as f64) * most)])?;
        }
    }
    legend(&mut chart)
}

/// In lines that fit below a bar.
fn wrapped(words: &str) -> Vec<String> {
    const WIDTH: usize = 12;
    let mut lines: Vec<String> = Vec::new();
    for word in words.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn legend<'a, B: DrawingBackend + 'a>(
    chart: &mut ChartContext<
        'a,
        B,
        Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
    >,
) -> Drawn<B> {
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .label_font(("sans-serif", 11))
        .draw()
}

#[cfg(test)]
mod tests {
    use super::super::strategies::{Move, Point};
    use super::*;
    use farpool_place::partial_move::Linear;
    use farpool_place::traffic::Rates;

    #[test]
    fn drawing_has_every_figure_and_is_well_formed() {
        let bar = |join, gain| Bar {
            join,
            build: "1:4",
            strategy: "* one pass, joined beside".to_owned(),
            shares: "w 0.84".to_owned(),
            seconds: [0.0, 0.1, 0.2],
            gain,
            by_bytes: 2.15,
            paper: "-",
            near_bytes: 1.0,
            far_bytes: 1.0,
        };
        let linear = Linear { k: 2.4, m: 1.3 };
        let found = Found {
            mixed: 0.6,
            rates: Rates::PAPER,
            moves: vec![Move { x: 0.5, rate: 1e9, by_bytes: 1e9 }, Move { x: 1.0, rate: 2e9, by_bytes: 2e9 }],
            one_pass: (2.39, 2.40),
            partitioned: (linear, linear),
            non_partitioned: (linear, linear),
            curve: vec![
                Point { x: 0.0, gain: 1.0, by_bytes: 1.0 },
                Point { x: 0.5, gain: 1.3, by_bytes: 1.26 },
            ],
            best_by_bytes: (0.54, 1.289),
            placing_us: 30.0,
            bars: vec![bar("partitioned", 2.13), bar("non-partitioned", 1.4)],
        };
        let drawing = render(&found, "EMULATED <tiers>").unwrap();
        assert!(drawing.starts_with("<svg") && drawing.trim_end().ends_with("</svg>"));
        for words in [
            "figure 2",
            "figure 4",
            "figure 5",
            "figure 6",
            "2.13",
            "* one pass,",
            "1:4 w 0.84",
            "EMULATED &lt;tiers&gt;",
        ] {
            assert!(drawing.contains(words), "{words}");
        }
        assert!(!drawing.contains("NaN") && !drawing.contains("inf"));
        let none = Found { moves: Vec::new(), curve: Vec::new(), bars: Vec::new(), ..found };
        assert!(render(&none, "nothing").is_ok());
    }
}
