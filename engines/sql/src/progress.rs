//! Progress of scans of far tables, and of statements that write one.

use datafusion::physical_plan::ExecutionPlan;
use farpool_command::units::show_bytes;
use farpool_datafusion::{FarSession, FarSource};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks at the progress.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// Runs a statement, and shows meanwhile how much it has written to a far table, if it writes one.
pub(crate) async fn show_written<T>(session: &FarSession, statement: impl Future<Output = T>) -> T {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}, {elapsed}") {
        bar.set_style(style);
    }
    let mut statement = pin!(statement);
    let mut tick = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            ended = &mut statement => {
                bar.finish_and_clear();
                return ended;
            }
            _ = tick.tick() => if let Some(written) = session.written() {
                bar.set_message(format!("{} rows, {} written", written.rows, show_bytes(written.bytes)));
                bar.tick();
            },
        }
    }
}

/// Progress bar over the row groups of all scans in a plan.
pub(crate) struct Bar {
    bar: ProgressBar,
    plan: Arc<dyn ExecutionPlan>,
}

impl Bar {
    /// Returns `None` for a plan that scans no far table: there is no progress to show.
    pub(crate) fn new(plan: &Arc<dyn ExecutionPlan>) -> Option<Bar> {
        let mut all = 0;
        farpool_datafusion::each_scan(plan, &mut |source: &FarSource| {
            all += source.table().row_groups().len()
        });
        if all == 0 {
            return None;
        }
        let bar = ProgressBar::with_draw_target(Some(all as u64), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} row groups, {msg}, {elapsed}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        Some(Bar { bar, plan: Arc::clone(plan) })
    }

    pub(crate) fn show(&self) {
        let (mut done, mut bytes) = (0, 0);
        farpool_datafusion::each_scan(&self.plan, &mut |source: &FarSource| {
            if let Some(sum) = source.outcome().sum() {
                done += sum.report.shipped + sum.report.fetched + sum.report.skipped;
                bytes += sum.report.link_bytes();
            }
        });
        self.bar.set_message(show_bytes(bytes));
        self.bar.set_position(done as u64);
    }

    /// Removes the bar from the terminal until it is shown again.
    pub(crate) fn hide(&self) {
        self.bar.finish_and_clear();
        self.bar.reset();
    }
}
