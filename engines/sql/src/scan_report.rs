//! Reports of a query, printed after its rows: the work that its scans of far tables did.

use crate::Done;
use farpool::{shown, shown_lines};
use farpool_cache::Counts;
use farpool_command::exit::Failure;
use farpool_command::json::JsonLine;
use farpool_command::table;
use farpool_command::units::show_bytes;
use farpool_distributed::Assigned;
use serde_json::{Value, json};
use std::io::Write;

/// Prints one line: number of rows, time, and bytes transferred from nodes.
pub(crate) fn line(done: &Done) -> Result<(), Failure> {
    let scans = farpool_datafusion::scans(&done.plan);
    let bytes: u64 = scans.iter().filter_map(|scan| scan["actual"]["link_bytes"].as_u64()).sum();
    let rows = if done.rows == 1 { "1 row".to_owned() } else { format!("{} rows", done.rows) };
    let far = if scans.is_empty() { String::new() } else { format!(", {} transferred", show_bytes(bytes)) };
    writeln!(std::io::stderr(), "{rows} in {:.3} s{far}", done.elapsed.as_secs_f64())?;
    Ok(())
}

/// Prints the whole report of a statement as JSON.
pub(crate) fn explain_json(done: &Done) -> Result<(), Failure> {
    let task = |task: &Assigned| {
        json!({
            "table": task.table,
            "task": task.task,
            "worker": task.worker.as_str(),
            "row_groups": task.groups.len(),
            "row_groups_near": task.near,
        })
    };
    let tasks: Vec<Value> = done.tasks.iter().map(task).collect();
    let told = json!({
        "rows": done.rows,
        "columns": done.plan.schema().fields().len(),
        "seconds": done.elapsed.as_secs_f64(),
        "scans": farpool_datafusion::scans(&done.plan),
        "tasks": tasks,
        "spills": farpool_datafusion::spills(&done.plan),
        "temporary_files": {
            "far_bytes": done.spilled.far_bytes,
            "disk_bytes": done.spilled.disk_bytes,
            "files": done.spilled.files,
        },
        "cache": done.cached.map(|cached| Value::from_iter(cached.named())),
    });
    Ok(writeln!(std::io::stderr(), "{}", JsonLine(&told))?)
}

/// Prints a table of the scans of a statement, and the operators that were not pushed down.
pub(crate) fn explain(done: &Done) -> Result<(), Failure> {
    let mut out = std::io::stderr().lock();
    let scans = farpool_datafusion::scans(&done.plan);
    let spills = farpool_datafusion::spills(&done.plan);
    line(done)?;
    let count = |value: &Value| value.as_u64().unwrap_or_default();
    let seconds = |value: &Value| format!("{:.1} ms", value.as_f64().unwrap_or_default() * 1e3);
    let ways = |ways: &Value| {
        let each = ways.as_object().into_iter().flatten().map(|(way, steps)| format!("{steps} {way}"));
        each.collect::<Vec<_>>().join(", ")
    };
    let row = |scan: &Value| {
        let actual = &scan["actual"];
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        vec![
            text(&scan["table"]),
            ways(&actual["ways"]),
            count(&actual["row_groups_shipped"]).to_string(),
            count(&actual["row_groups_fetched"]).to_string(),
            count(&actual["row_groups_skipped"]).to_string(),
            show_bytes(count(&actual["result_bytes"])),
            show_bytes(count(&actual["fetched_bytes"])),
            seconds(&actual["node_seconds"]),
            seconds(&actual["client_seconds"]),
            seconds(&actual["expected_seconds"]),
            seconds(&actual["step_seconds"]),
        ]
    };
    let header = [
        "scan", "steps", "shipped", "fetched", "skipped", "results", "columns", "at nodes", "here",
        "expected", "took",
    ];
    for task in &done.tasks {
        let Assigned { table, task, groups, near, worker } = task;
        writeln!(
            out,
            "{}: task {task}: {} row groups at {worker}, {near} of them near it",
            shown(table),
            groups.len()
        )?;
    }
    if let Some(stages) = &done.stages {
        writeln!(out, "{}", shown_lines(stages))?;
    }
    let rows: Vec<_> = scans.iter().map(row).collect();
    if !rows.is_empty() {
        for line in table::lines(&header, &rows) {
            writeln!(out, "{line}")?;
        }
    }
    for scan in &scans {
        let name = shown(scan["table"].as_str().unwrap_or_default());
        let each = |what: &str| scan[what].as_array().cloned().unwrap_or_default();
        for step in each("beside_the_data") {
            writeln!(out, "{name}: pushed down: {}", shown(step.as_str().unwrap_or_default()))?;
        }
        if let Some(why) = scan["actual"]["why"].as_str() {
            writeln!(out, "{name}: last choice: {}", shown(why))?;
        }
        for why in each("not_shipped") {
            writeln!(out, "{name}: not pushed down: {}", shown(why.as_str().unwrap_or_default()))?;
        }
    }
    for spill in &spills {
        let (rows, files) = (count(&spill["rows"]), count(&spill["files"]));
        let (operator, bytes) =
            (spill["operator"].as_str().unwrap_or_default(), show_bytes(count(&spill["bytes"])));
        writeln!(out, "{operator}: {rows} rows, {bytes}, spilled to {files} temporary files")?;
    }
    if done.spilled.files > 0 {
        let (far, disk) = (show_bytes(done.spilled.far_bytes), show_bytes(done.spilled.disk_bytes));
        writeln!(out, "temporary files: {far} in the pool, {disk} on the local disk")?;
    }
    if let Some(cached) = &done.cached {
        let Counts { near_hits, far_hits, misses, .. } = cached;
        writeln!(out, "blocks of files: {near_hits} near hits, {far_hits} far hits, {misses} misses")?;
    }
    Ok(())
}
