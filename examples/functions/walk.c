/* Walks along a linked list. Each step depends on the one before.
 *
 * Arguments: u64 byte of the first node, u64 steps; optionally u64 flags: bit 0, hop to nodes elsewhere.
 * Window:    nodes of 64 bytes, of which the first 16 are read: u64 byte of the next node, i64 value.
 * Output:    u64 byte of the node reached after the last step, i64 sum of the values of the nodes before it,
 *            which wraps on overflow.
 * State:     u64 byte of the node to continue from, u64 steps left, i64 sum so far.
 *
 * If a list node is not in memory here, it is fetched, or the walk hops to the memory node that holds it. A walk
 * that has just hopped always takes one step before it hops again, so that two memory nodes never send it to
 * and fro. It hops only if the output has room for its 24 bytes of state. */
#include "farpool.h"

#define GO_WHERE_NODES_ARE 1u
#define NODE_BYTES_USED 16

FARPOOL_FUNCTION(walk) {
    struct {
        uint64_t start;
        uint64_t steps;
    } args;
    struct {
        uint64_t position;
        uint64_t steps_left;
        uint64_t sum;
    } state;
    if (!farpool_args(call, &args, sizeof args)) return farpool_give_up(FARPOOL_BAD_ARGUMENTS);
    uint64_t flags = 0;
    if (call->args_bytes >= sizeof args + sizeof flags)
        farpool_copy(&flags, farpool_at(call->args + sizeof args), sizeof flags);
    int may_hop = flags & GO_WHERE_NODES_ARE && call->output_capacity >= sizeof state;

    int has_hopped = farpool_state(call, &state, sizeof state);
    if (!has_hopped) {
        if (call->flags & FARPOOL_GOES_ON) return farpool_give_up(FARPOOL_BAD_ARGUMENTS);
        state.position = args.start;
        state.steps_left = args.steps;
        state.sum = 0;
    }
    struct farpool_part here = {0, 0};
    for (int stays = has_hopped; state.steps_left; state.steps_left--, stays = 0) {
        if (!farpool_has(call, state.position, NODE_BYTES_USED)) return farpool_give_up(FARPOOL_BAD_DATA);
        /* Most nodes are in the same part as the one before. */
        if (may_hop && !stays && state.position - here.first >= here.bytes) {
            const struct farpool_part *part = farpool_part_of(call, state.position);
            if (!part) return farpool_hop(call, state.position, &state, sizeof state);
            here = *part;
        }
        state.sum += farpool_u64(call, state.position + 8);
        state.position = farpool_u64(call, state.position);
    }
    uint64_t output[2] = {state.position, state.sum};
    return farpool_put(call, output, sizeof output);
}
