//! `farpool bench functions`: the cost of a call of a function that runs at a memory node, beyond an empty round trip;
//! and the number of page reads that such a call is worth (paper 001, "Move your code, not your data", tables 1 and 2).
//!
//! The functions walk or scan a linked list in far memory. Every kind of call takes turns with an empty round trip over
//! the same transport, waiting mode and library. The difference of the medians is the cost of the call. Every output is
//! compared with a result computed by this program over the same list.

mod args;
mod beside;
mod calls;
mod figures;
mod list;
mod memory;
mod migration;
mod row_groups;
mod shipped;
mod stage;

use crate::harness::machine::machine;
use crate::{Outcome, units};
pub(crate) use args::FunctionArgs;
use calls::measure;
use figures::Point;
use list::List;
use migration::migration;
use serde_json::{Value, json};
use shipped::examples;
use std::io::Write;

pub(crate) fn run(args: &FunctionArgs) -> Outcome {
    let list = List::new(args.size);
    let examples = args.examples.as_ref().map(|folder| examples(folder)).transpose()?;
    let mut found = Vec::new();
    for way in &args.waiting {
        for transport in &args.transports {
            found.push(measure(args, &list, *way, transport.choice(), examples.as_ref())?);
        }
    }
    let memory = memory::measure(args.rounds);
    let migration = migration(args.calls)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let points: Vec<Value> = found.iter().map(Point::json).collect();
        let migration = json!({ "one_way_us": migration[0], "there_and_back_us": migration[1] });
        let levels =
            memory.iter().map(|(level, ns)| json!({ "level": level.name, "bytes": level.bytes, "ns": ns }));
        let levels: Vec<Value> = levels.collect();
        let all = json!({ "machine": machine(), "points": points, "migration": migration, "memory": levels });
        writeln!(out, "{all}")?;
        return Ok(());
    }
    writeln!(out, "Shipped functions: one call each, medians of {} calls. {}", args.calls, machine())?;
    for point in &found {
        writeln!(out)?;
        point.lines().iter().try_for_each(|line| writeln!(out, "{line}"))?;
    }
    writeln!(out)?;
    for (level, ns) in &memory {
        let bytes = units::show_bytes(level.bytes);
        writeln!(out, "{}: {ns:.1} ns for each dependent access to {bytes} of this process", level.name)?;
    }
    writeln!(out, "thread migration: {:.1} us one way, {:.1} us there and back", migration[0], migration[1])?;
    Ok(())
}
