//! Free space in the chunks that a partitioner has taken. It decides on which tier written bytes count.
//!
//! The idea: a partitioner takes chunks as it needs them. Rows of all partitions come in any order, so all open chunks
//! fill at about the same rate. The bytes that a morsel writes are therefore divided between the tiers in proportion to
//! the free space on each.

use farpool_lock::Mutex;

/// Bytes of chunks that were taken and not written yet, by tier (near, far).
#[derive(Debug, Default)]
pub(crate) struct FreeSpace(Mutex<[u64; 2]>);

impl FreeSpace {
    /// Adds free space.
    pub(crate) fn add(&self, bytes: [u64; 2]) {
        let mut room = self.0.lock();
        *room = [room[0].saturating_add(bytes[0]), room[1].saturating_add(bytes[1])];
    }

    /// Fills as many bytes as `planned` has on both tiers together, and returns where they go, by tier (near, far).
    /// Returns `planned` if there is less free space. This happens because rows wait in buffers, so a chunk for them is
    /// taken some time after they were read.
    pub(crate) fn fill(&self, planned: [u64; 2]) -> [u64; 2] {
        let all = planned[0].saturating_add(planned[1]);
        let mut room = self.0.lock();
        let there = room[0].saturating_add(room[1]);
        if all == 0 || there < all {
            *room = [0, 1].map(|side: usize| room[side].saturating_sub(planned[side]));
            return planned;
        }
        let near = (u128::from(all) * u128::from(room[0]) / u128::from(there)) as u64;
        // Rounding down may give the far side one byte more than it has space for.
        let near = near.max(all.saturating_sub(room[1]));
        *room = [room[0] - near, room[1] - (all - near)];
        [near, all - near]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_shared_out_by_room_and_fills_it_exactly() {
        let room = FreeSpace::default();
        assert_eq!(room.fill([3, 1]), [3, 1], "as planned while there is none");
        room.add([600, 400]);
        let mut written = [0, 0];
        for bytes in [7, 100, 250, 643] {
            let [near, far] = room.fill([bytes, 0]);
            assert_eq!(near + far, bytes);
            written = [written[0] + near, written[1] + far];
        }
        assert_eq!(written, [600, 400]);
    }
}
