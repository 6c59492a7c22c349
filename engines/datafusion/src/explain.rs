//! Reports on the scans of far tables in a plan, before and after it has run, as text and as JSON.

use crate::outcome::Sum;
use crate::source::FarSource;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::{DisplayFormatType, ExecutionPlan};
use farpool::Way;
use farpool::table::{Estimate, Estimates};
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;

/// Writes the estimates of a scan that EXPLAIN shows, which are made before the scan runs.
pub(crate) fn outlook(
    source: &FarSource,
    form: DisplayFormatType,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let Ok(plan) = source.plan(&Default::default()) else { return Ok(()) };
    let told = source.table().explain(&plan);
    let all = source.table().estimate(&plan, source.groups());
    let ways = Way::ALL.map(|way| format!("{way} {:.1?}", all.of(way).time));
    let (groups, expected) =
        (format!("{} of {}", source.groups_that_may_pass().len(), told.row_groups_total), ways.join(", "));
    let opened = told.files_total - told.files_skipped;
    if form == DisplayFormatType::TreeRender {
        if told.files_skipped > 0 {
            writeln!(f, "files={opened} of {}", told.files_total)?;
        }
        writeln!(f, "row groups={groups}")?;
        writeln!(f, "expected={expected}")?;
        return writeln!(f, "choice={}", all.choice);
    }
    if told.files_skipped > 0 {
        write!(f, ", files={opened} of {}", told.files_total)?;
    }
    write!(f, ", row groups={groups}, expected=[{expected}], choice={}: {}", all.choice, all.why)
}

/// Calls `show` for each scan of a far table in the plan, in preorder.
pub fn each_scan(plan: &Arc<dyn ExecutionPlan>, show: &mut dyn FnMut(&FarSource)) {
    let mut open = vec![plan];
    while let Some(plan) = open.pop() {
        let scan = plan.downcast_ref::<DataSourceExec>();
        if let Some(source) = scan.and_then(|scan| scan.data_source().downcast_ref::<FarSource>()) {
            show(source);
        }
        open.extend(plan.children().into_iter().rev());
    }
}

/// Returns a JSON object for each scan of a far table in the plan, in preorder. It describes the scan and, if it has
/// run, the work that it did.
pub fn scans(plan: &Arc<dyn ExecutionPlan>) -> Vec<Value> {
    let mut found = Vec::new();
    each_scan(plan, &mut |source| found.push(scan(source)));
    found
}

/// Returns a JSON object for each operator of the plan that spilled, in preorder: its name, files, rows and bytes.
pub fn spills(plan: &Arc<dyn ExecutionPlan>) -> Vec<Value> {
    let mut found = Vec::new();
    let mut open = vec![plan];
    while let Some(plan) = open.pop() {
        let metrics = plan.metrics().unwrap_or_default();
        if let Some(files @ 1..) = metrics.spill_count() {
            found.push(json!({
                "operator": plan.name(),
                "files": files,
                "rows": metrics.spilled_rows().unwrap_or_default(),
                "bytes": metrics.spilled_bytes().unwrap_or_default(),
            }));
        }
        open.extend(plan.children().into_iter().rev());
    }
    found
}

fn scan(source: &FarSource) -> Value {
    let planned = source.plan(&Default::default()).ok();
    let estimates = planned.as_ref().map(|plan| estimates(&source.table().estimate(plan, source.groups())));
    let told = planned.map(|plan| source.table().explain(&plan));
    json!({
        "table": source.table().name(),
        "beside_the_data": source.ships(),
        "dynamic_filters": source.dynamic(),
        "not_shipped": source.stays(),
        "columns": told.as_ref().map(|told| &told.columns),
        "rows": told.as_ref().map(|told| told.rows),
        "bytes": told.as_ref().map(|told| told.bytes),
        "files": told.as_ref().map(|told| told.files_total - told.files_skipped),
        "files_total": told.as_ref().map(|told| told.files_total),
        "row_groups": told.as_ref().map(|_| source.groups_that_may_pass().len()),
        "row_groups_total": told.as_ref().map(|told| told.row_groups_total),
        "row_groups_of_earlier_columns": told.as_ref().map(|told| told.row_groups_of_earlier_columns),
        "expected": estimates,
        "actual": source.outcome().sum().as_ref().map(actual),
    })
}

fn estimates(all: &Estimates) -> Value {
    let way = |of: &Estimate| {
        json!({
            "seconds": of.time.as_secs_f64(),
            "link_bytes": of.link_bytes,
            "node_seconds": of.node_time.as_secs_f64(),
            "client_seconds": of.client_time.as_secs_f64(),
        })
    };
    json!({
        "fetch": way(&all.fetch),
        "ship": way(&all.ship),
        "split": way(&all.split),
        "choice": all.choice.name(),
        "is_sure": all.is_sure,
        "why": all.why,
    })
}

fn actual(sum: &Sum) -> Value {
    let report = &sum.report;
    let semi_joins: Vec<String> = report.semi_joins.iter().map(|join| join.to_string()).collect();
    let refusals: Vec<Value> =
        report.refusals.iter().map(|(node, why)| json!({ "node": node, "why": why })).collect();
    json!({
        "placement": report.placement.name(),
        "ways": sum.ways,
        "steps": sum.steps,
        "expected_seconds": sum.expected.as_secs_f64(),
        "row_groups_tried": report.tried,
        "is_corrected": report.is_corrected,
        "why": report.estimates.as_ref().map(|all| &all.why),
        "row_groups_shipped": report.shipped,
        "row_groups_fetched": report.fetched,
        "row_groups_skipped": report.skipped,
        "result_bytes": report.result_bytes,
        "fetched_bytes": report.fetched_bytes,
        "lookup_bytes": report.lookup_bytes,
        "link_bytes": report.link_bytes(),
        "node_seconds": report.node_time.as_secs_f64(),
        "client_seconds": report.client_time.as_secs_f64(),
        "step_seconds": report.elapsed.as_secs_f64(),
        "semi_joins": semi_joins,
        "refusals": refusals,
        "trace": report.trace.to_string(),
    })
}
