//! `farpool bench scan --clients`: throughput of several clients of one node. All ship the same query to the node in a
//! loop. The first client runs several of them at once, the others one. A fair node still gives each client an equal
//! share.

use super::scan_queries::{Query, TABLE};
use crate::exit::Failure;
use crate::harness::machine::{cpus, machine};
use crate::harness::statistics::median;
use crate::units::show_bytes;
use crate::{Outcome, table};
use farpool::Placement;
use farpool::{FarTable, Pool};
use serde_json::json;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Settings of a run of several clients that compete for one node. `seconds` is the length of each of the `rounds`,
/// `bytes` the size of the table, and `json` the format of the output.
pub(crate) struct Contest {
    /// Number of clients.
    pub(crate) clients: usize,
    /// Concurrent queries of the first client. The others run one at a time.
    pub(crate) greedy: usize,
    pub(crate) seconds: f64,
    pub(crate) rounds: usize,
    pub(crate) bytes: u64,
    pub(crate) json: bool,
}

/// Answers per second of each client, by round.
type Rates = Vec<Vec<f64>>;

/// Lets the node run a query in a loop until `is_over` is set. Checks and counts the answers.
fn ship(over: &FarTable, query: &Query, is_over: &AtomicBool, answers: &AtomicU64) -> Outcome {
    let plan = query.plan(over)?;
    while !is_over.load(Ordering::Relaxed) {
        let answer = over.run(&plan, Placement::Ship)?;
        query.check(&answer.batches)?;
        if answer.report.shipped == 0 {
            return Err(Failure::Failed(format!("nothing was shipped: {}", answer.report)));
        }
        answers.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

impl Contest {
    pub(crate) fn run(&self, query: &Query, connect: impl Fn() -> Result<Pool, Failure>) -> Outcome {
        let pools = (0..self.clients).map(|_| connect()).collect::<Result<Vec<_>, _>>()?;
        let mut rates: Rates = vec![Vec::new(); self.clients];
        for _ in 0..self.rounds {
            for (rates, rate) in rates.iter_mut().zip(self.round(query, &pools)?) {
                rates.push(rate);
            }
        }
        pools.into_iter().for_each(|pool| pool.close());
        self.show(query, &rates)
    }

    fn round(&self, query: &Query, pools: &[Pool]) -> Result<Vec<f64>, Failure> {
        let is_over = AtomicBool::new(false);
        let answers: Vec<AtomicU64> = pools.iter().map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (index, (pool, answers)) in pools.iter().zip(&answers).enumerate() {
                let over = pool.table(TABLE)?;
                for _ in 0..if index == 0 { self.greedy } else { 1 } {
                    let (over, is_over) = (over.clone(), &is_over);
                    threads.push(scope.spawn(move || ship(&over, query, is_over, answers)));
                }
            }
            // Counting begins once all clients are running.
            std::thread::sleep(Duration::from_secs_f64(self.seconds / 4.0));
            let before: Vec<u64> = answers.iter().map(|answers| answers.load(Ordering::Relaxed)).collect();
            let begun = Instant::now();
            std::thread::sleep(Duration::from_secs_f64(self.seconds));
            let rate = |(answers, before): (&AtomicU64, u64)| {
                (answers.load(Ordering::Relaxed) - before) as f64 / begun.elapsed().as_secs_f64()
            };
            let rates = answers.iter().zip(before).map(rate).collect();
            is_over.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().map_err(|_| Failure::failed("a client panicked"))??;
            }
            Ok(rates)
        })
    }

    fn show(&self, query: &Query, rates: &Rates) -> Outcome {
        let rates: Vec<f64> = rates.iter().map(|rates| median(rates.iter().copied())).collect();
        let fair = rates.iter().sum::<f64>() / rates.len() as f64;
        let least = rates.iter().skip(1).copied().fold(f64::INFINITY, f64::min);
        let most = rates.iter().copied().fold(0.0, f64::max);
        let mut out = std::io::stdout().lock();
        if self.json {
            let all = json!({
                "machine": machine(), "cpus": cpus(), "query": query.name, "bytes": self.bytes,
                "clients": self.clients, "greedy": self.greedy, "answers_per_s": rates,
                "least_of_fair_share": least / fair, "slowest_over_fastest": most / least,
            });
            writeln!(out, "{all}")?;
            return Ok(());
        }
        let line = |(index, rate): (usize, &f64)| {
            let under_way = if index == 0 { self.greedy } else { 1 };
            vec![
                format!("client {}", index + 1),
                under_way.to_string(),
                format!("{rate:.1}"),
                format!("{:.2}", rate / fair),
            ]
        };
        let lines: Vec<Vec<String>> = rates.iter().enumerate().map(line).collect();
        for line in table::lines(&["who", "queries under way", "answers/s", "of an equal share"], &lines) {
            writeln!(out, "{line}")?;
        }
        writeln!(out)?;
        writeln!(
            out,
            "{} over {}, shipped without pause; medians of {} rounds of {} s. The least of the others has {:.2} of an \
             equal share. {}",
            query.name,
            show_bytes(self.bytes),
            self.rounds,
            self.seconds,
            least / fair,
            machine()
        )?;
        Ok(())
    }
}
