//! Threads that work on one phase of a join together.

use crate::JoinError;

/// Runs `work` once for each input, each on a thread of its own, the first one on this thread. Returns the results in
/// order. A panic of a thread continues here.
pub(crate) fn each<I: Send, R: Send>(
    inputs: Vec<I>,
    work: impl Fn(usize, I) -> Result<R, JoinError> + Sync,
) -> Result<Vec<R>, JoinError> {
    let mut inputs = inputs.into_iter().enumerate();
    let first = inputs.next();
    std::thread::scope(|scope| {
        let work = &work;
        let others: Vec<_> = inputs.map(|(worker, input)| scope.spawn(move || work(worker, input))).collect();
        let first = first.map(|(worker, input)| work(worker, input));
        let others = others.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        first.into_iter().chain(others).collect()
    })
}
