/* Finds the vertices of a graph that can be reached from one of them in a number of hops.
 *
 * Arguments: u64 byte of the offsets, u64 byte of the targets, u64 number of vertices, u64 source, u32 hops,
 *            u32 limit: the most vertices to return.
 * Window:    the graph as compressed sparse rows: u64 offsets, one more than vertices, counted in targets;
 *            u32 targets. Neighbours of vertex v are the targets from offsets[v] on, up to offsets[v + 1].
 * Output:    u32 each, ascending and without duplicates: the vertices that can be reached from the source over
 *            1 to `hops` edges, without the source itself. If there are more than the limit, those that are
 *            found first: nearer ones before farther ones, and at the same distance in the order of the
 *            vertices that lead to them.
 *
 * The output also serves as working memory, so that no allocator is needed. Its capacity in bytes must be at
 * least 4 * (limit + 1 + slots), where slots is the least power of two that is at least 4 and at least twice
 * the limit. */
#include "farpool.h"

/* Hash set of known vertices with open addressing, at most half full. */
struct set {
    farpool_u32_there *slots; /* a vertex plus 1; 0 is free */
    uint32_t mask;
};

/* Adds a vertex. Returns 1 if it is new, 0 if the set has it already. */
static int add(struct set *set, uint32_t vertex) {
    uint32_t slot = vertex * 0x9e3779b1u;
    for (slot ^= slot >> 15;; slot++) {
        uint32_t held = set->slots[slot & set->mask];
        if (held == vertex + 1) return 0;
        if (!held) break;
    }
    set->slots[slot & set->mask] = vertex + 1;
    return 1;
}

/* Restores the heap below one entry, for a heapsort: in place, without recursion, and O(n log n) in the
 * worst case. */
static void sift(farpool_u32_there *heap, uint32_t at, uint32_t count) {
    uint32_t moved = heap[at];
    for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1] > heap[child]) child++;
        if (heap[child] <= moved) break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

static void sort(farpool_u32_there *values, uint32_t count) {
    for (uint32_t i = count / 2; i-- > 0;) sift(values, i, count);
    for (uint32_t last = count; last-- > 1;) {
        uint32_t greatest = values[0];
        values[0] = values[last];
        values[last] = greatest;
        sift(values, 0, last);
    }
}

FARPOOL_FUNCTION(neighbours) {
    struct {
        uint64_t offsets;
        uint64_t targets;
        uint64_t vertices;
        uint64_t source;
        uint32_t hops;
        uint32_t limit;
    } args;
    if (!farpool_args(call, &args, sizeof args) || args.source >= args.vertices ||
        args.vertices >= UINT32_MAX || !farpool_has_values(call, args.offsets, args.vertices + 1, 8) ||
        args.limit > 1u << 27)
        return farpool_give_up(FARPOOL_BAD_ARGUMENTS);
    uint32_t slots = 4; /* the source is a member too, and heads the queue */
    while (slots < 2ull * args.limit) slots *= 2;
    uint64_t room = 4ull * (args.limit + 1ull + slots);
    if (room > call->output_capacity) return farpool_give_up(FARPOOL_OUTPUT_SHORT);

    farpool_u32_there *queue = (farpool_u32_there *)farpool_at(call->output);
    struct set set = {queue + args.limit + 1, slots - 1};
    for (uint32_t i = 0; i < slots; i++) set.slots[i] = 0;
    queue[0] = (uint32_t)args.source;
    add(&set, queue[0]);

    uint32_t count = 1, level_begins = 0;
    for (uint32_t hop = 0; hop < args.hops && level_begins < count; hop++) {
        uint32_t level_ends = count;
        for (uint32_t i = level_begins; i < level_ends && count <= args.limit; i++) {
            uint64_t from = farpool_u64(call, args.offsets + 8ull * queue[i]);
            uint64_t to = farpool_u64(call, args.offsets + 8ull * queue[i] + 8);
            if (from > to || !farpool_has_values(call, args.targets, to, 4))
                return farpool_give_up(FARPOOL_BAD_DATA);
            for (uint64_t edge = from; edge < to && count <= args.limit; edge++) {
                uint32_t target = farpool_u32(call, args.targets + edge * 4);
                if (target >= args.vertices) return farpool_give_up(FARPOOL_BAD_DATA);
                if (add(&set, target)) queue[count++] = target;
            }
        }
        level_begins = level_ends;
    }
    for (uint32_t i = 1; i < count; i++) queue[i - 1] = queue[i]; /* drops the source */
    sort(queue, count - 1);
    return (count - 1) * 4ll;
}
