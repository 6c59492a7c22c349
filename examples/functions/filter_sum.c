/* Adds up the values that are greater than a threshold.
 *
 * Arguments: u64 first byte in the window, u64 number of values, i64 threshold.
 * Window:    i64 values, of any alignment.
 * Output:    i64 sum, which wraps on overflow; u64 number of values that were greater. */
#include "farpool.h"

FARPOOL_FUNCTION(filter_sum) {
    struct {
        uint64_t first;
        uint64_t count;
        int64_t threshold;
    } args;
    if (!farpool_args(call, &args, sizeof args) || !farpool_has_values(call, args.first, args.count, 8))
        return farpool_give_up(FARPOOL_BAD_ARGUMENTS);
    const farpool_u64_there *values =
        (const farpool_u64_there *)farpool_window(call, args.first, args.count * 8);
    struct {
        uint64_t sum;
        uint64_t count;
    } found = {0, 0};
    FARPOOL_MANY
    for (uint64_t i = 0; i < args.count; i++) {
        /* Computed without a branch, which the processor could not predict. */
        uint64_t passes = (int64_t)values[i] > args.threshold;
        found.sum += values[i] & -passes;
        found.count += passes;
    }
    return farpool_put(call, &found, sizeof found);
}
