/* Adds up adjacent values.
 *
 * Arguments: u64 first byte in the window, u64 number of values.
 * Window:    i64 values, of any alignment.
 * Output:    i64 sum, which wraps on overflow. */
#include "farpool.h"

FARPOOL_FUNCTION(sum) {
    struct {
        uint64_t first;
        uint64_t count;
    } args;
    if (!farpool_args(call, &args, sizeof args) || !farpool_has_values(call, args.first, args.count, 8))
        return farpool_give_up(FARPOOL_BAD_ARGUMENTS);
    const farpool_u64_there *values =
        (const farpool_u64_there *)farpool_window(call, args.first, args.count * 8);
    uint64_t total = 0;
    FARPOOL_MANY
    for (uint64_t i = 0; i < args.count; i++) total += values[i];
    return farpool_put(call, &total, sizeof total);
}
