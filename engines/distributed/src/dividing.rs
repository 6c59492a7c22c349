//! Assigns row groups of a table to workers.
//!
//! The idea: a row group goes to a worker near the memory node that holds it. If several workers are near, or none, it
//! goes to the one of them, or of all, to which the fewest bytes were assigned so far. The assignment is computed
//! twice: once to decide into how many tasks a query is divided, and once to make the tasks. It depends only on its
//! arguments, so both results agree.
//!
//! Pure: no I/O, no clock, no randomness.

/// Least number of row groups for each task. Another worker is not worth the overhead for fewer.
const GROUPS_EACH: usize = 2;

/// Row group to assign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Index of the row group in the table.
    pub(crate) number: usize,
    pub(crate) bytes: u64,
    /// Indices of the workers near the memory node that holds it.
    pub(crate) near: Vec<usize>,
}

/// Row groups of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Index of the worker.
    pub(crate) worker: usize,
    /// Row groups, in ascending order.
    pub(crate) groups: Vec<usize>,
}

/// Returns the number of workers among which it pays to divide these row groups, at least 1.
pub(crate) fn worth(groups: &[Group], workers: usize) -> usize {
    let tasks = workers.min(groups.len() / GROUPS_EACH).max(1);
    divide(groups, workers, tasks).iter().filter(|share| !share.groups.is_empty()).count().max(1)
}

/// Divides row groups into tasks, one each for the workers that have the most bytes near them. Without workers there is
/// one share of all row groups, with worker index 0.
pub(crate) fn divide(groups: &[Group], workers: usize, tasks: usize) -> Vec<Share> {
    let everybody: Vec<usize> = (0..workers.max(1)).collect();
    let wanted = spread(groups, &everybody);
    let mut seats = everybody;
    seats.sort_by_key(|worker| std::cmp::Reverse(wanted[*worker].bytes));
    seats.truncate(tasks.max(1));
    seats.sort_unstable();
    let shares = spread(groups, &seats);
    // If there are more tasks than workers, the remaining tasks get no row groups.
    let none = (seats.len()..tasks).map(|task| Share { worker: task % workers.max(1), groups: Vec::new() });
    let shares = shares.into_iter().zip(&seats).map(|(load, worker)| {
        let mut groups = load.groups;
        groups.sort_unstable();
        Share { worker: *worker, groups }
    });
    shares.chain(none).collect()
}

#[derive(Clone, Default)]
struct Load {
    bytes: u64,
    groups: Vec<usize>,
}

/// Assigns row groups to these workers. The result has the load of each worker, in the order of `seats`.
fn spread(groups: &[Group], seats: &[usize]) -> Vec<Load> {
    let mut loads = vec![Load::default(); seats.len()];
    let mut put = |group: &Group, among: &[usize]| {
        let seat = among.iter().min_by_key(|seat| (loads[**seat].bytes, **seat));
        if let Some(seat) = seat {
            loads[*seat].bytes += group.bytes;
            loads[*seat].groups.push(group.number);
        }
    };
    let everybody: Vec<usize> = (0..seats.len()).collect();
    let near = |group: &Group| -> Vec<usize> {
        everybody.iter().copied().filter(|seat| group.near.contains(&seats[*seat])).collect()
    };
    // Row groups that are near some worker are assigned first; those near none then even out the loads.
    for group in groups {
        let near = near(group);
        if !near.is_empty() {
            put(group, &near);
        }
    }
    for group in groups.iter().filter(|group| near(group).is_empty()) {
        put(group, &everybody);
    }
    loads
}

/// Assigns a worker to each task. `near_bytes` has for each task the bytes near each worker. The task with the most
/// bytes near any worker chooses its worker first. No worker gets more tasks than the average rounded up. `workers`
/// must be at least 1.
pub(crate) fn route(near_bytes: &[Vec<u64>], workers: usize) -> Vec<usize> {
    let tasks = near_bytes.len();
    let most = tasks.div_ceil(workers.max(1));
    let mut wishes: Vec<(u64, usize, usize)> = Vec::new();
    for (task, bytes) in near_bytes.iter().enumerate() {
        let each = bytes.iter().take(workers).enumerate().filter(|(_, bytes)| **bytes > 0);
        wishes.extend(each.map(|(worker, bytes)| (*bytes, task, worker)));
    }
    wishes.sort_unstable_by_key(|(bytes, task, worker)| (std::cmp::Reverse(*bytes), *task, *worker));
    let mut held = vec![0; workers.max(1)];
    let mut routed = vec![None; tasks];
    for (_, task, worker) in wishes {
        if routed[task].is_none() && held[worker] < most {
            (routed[task], held[worker]) = (Some(worker), held[worker] + 1);
        }
    }
    let mut least = |task: Option<usize>| {
        task.unwrap_or_else(|| {
            let worker = (0..held.len()).min_by_key(|worker| held[*worker]).unwrap_or_default();
            held[worker] += 1;
            worker
        })
    };
    routed.into_iter().map(&mut least).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(number: usize, bytes: u64, near: &[usize]) -> Group {
        Group { number, bytes, near: near.to_vec() }
    }

    fn shares(groups: &[Group], workers: usize, tasks: usize) -> Vec<(usize, Vec<usize>)> {
        divide(groups, workers, tasks).into_iter().map(|share| (share.worker, share.groups)).collect()
    }

    #[test]
    fn row_groups_go_to_workers_near_them() {
        let groups: Vec<_> = (0..6).map(|number| group(number, 10, &[number % 2])).collect();
        assert_eq!(shares(&groups, 2, 2), [(0, vec![0, 2, 4]), (1, vec![1, 3, 5])]);
        assert_eq!(worth(&groups, 2), 2);
    }

    #[test]
    fn row_groups_near_nobody_even_out_what_the_others_leave() {
        let mut groups = vec![group(0, 30, &[1])];
        groups.extend((1..5).map(|number| group(number, 10, &[])));
        assert_eq!(shares(&groups, 2, 2), [(0, vec![1, 2, 3, 4]), (1, vec![0])]);
    }

    #[test]
    fn row_groups_near_several_are_shared() {
        let groups: Vec<_> = (0..4).map(|number| group(number, 10, &[0, 1])).collect();
        assert_eq!(shares(&groups, 3, 3), [(0, vec![0, 2]), (1, vec![1, 3]), (2, vec![])]);
        assert_eq!(worth(&groups, 3), 2);
    }

    #[test]
    fn fewer_tasks_than_workers_take_those_with_most_near_them() {
        let groups = [group(0, 10, &[0]), group(1, 30, &[1]), group(2, 30, &[2]), group(3, 5, &[0])];
        assert_eq!(shares(&groups, 3, 2), [(1, vec![0, 1]), (2, vec![2, 3])]);
    }

    #[test]
    fn every_row_group_goes_to_one_task() {
        // A small generator of our own, so that the cases are the same in every run.
        let mut state = 1_u64;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        for _ in 0..1_000 {
            let (workers, tasks) = (next(5), 1 + next(5));
            let groups: Vec<Group> = (0..next(40))
                .map(|number| {
                    let near = (0..next(3)).map(|_| next(6)).collect::<Vec<_>>();
                    group(number, next(100) as u64, &near)
                })
                .collect();
            let shares = divide(&groups, workers, tasks);
            assert_eq!(shares.len(), tasks);
            let mut all: Vec<usize> = shares.into_iter().flat_map(|share| share.groups).collect();
            all.sort_unstable();
            assert_eq!(all, (0..groups.len()).collect::<Vec<_>>());
            assert!((1..=workers.max(1)).contains(&worth(&groups, workers)));
        }
    }

    #[test]
    fn few_row_groups_are_worth_one_worker() {
        let groups: Vec<_> = (0..3).map(|number| group(number, 10, &[number % 2])).collect();
        assert_eq!((worth(&groups, 2), worth(&[], 2), worth(&groups, 0)), (1, 1, 1));
    }

    #[test]
    fn tasks_go_to_the_nearest_workers() {
        assert_eq!(route(&[vec![0, 9], vec![5, 0]], 2), [1, 0]);
        assert_eq!(route(&[vec![0, 9], vec![0, 10]], 2), [0, 1]);
        assert_eq!(route(&[vec![], vec![], vec![]], 2), [0, 1, 0]);
        assert_eq!(route(&[vec![1], vec![1]], 1), [0, 0]);
    }
}
