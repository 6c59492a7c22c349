//! Threads for one phase.

use crate::JoinError;

/// Runs `work` as each of so many workers, one of them on this thread, and collects what they return.
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
