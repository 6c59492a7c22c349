/* Finds the vectors nearest to a given one, by squared Euclidean distance.
 *
 * Arguments: u64 byte of the first vector, u64 number of vectors, u32 dimensions (1 to 65,536), u32 k, then
 *            the given vector: f32 for each dimension.
 * Window:    adjacent f32 vectors, of any alignment.
 * Output:    16 bytes for each of the k nearest vectors, or for all if there are fewer: u64 number of the
 *            vector, f32 squared distance, u32 0. Ascending by distance, then by number. A vector whose
 *            distance is NaN is left out.
 *
 * The result of adding f32 depends on the order, so the order is fixed: dimension d goes to lane d modulo 16,
 * and `distance` adds the lanes up. Results are the same to the last bit with and without -msimd128, and on
 * every processor. */
#include "farpool.h"

#define LANES 16

/* Vector types of the compiler. They become instructions for four lanes, or one instruction per lane if
 * the processor has none. */
typedef float f32x4 __attribute__((vector_size(16)));
typedef float f32x4_there __attribute__((vector_size(16), aligned(1), may_alias));

struct near {
    uint64_t number;
    float distance;
    uint32_t reserved;
};

static float distance(const uint8_t *left, const uint8_t *right, uint32_t dimensions) {
    f32x4 sums[LANES / 4] = {{0}, {0}, {0}, {0}};
    uint32_t whole = dimensions / LANES * LANES;
    for (uint32_t d = 0; d < whole; d += LANES)
        for (uint32_t i = 0; i < LANES / 4; i++) {
            uint32_t byte = (d + 4 * i) * 4;
            f32x4 difference = *(const f32x4_there *)(left + byte) - *(const f32x4_there *)(right + byte);
            sums[i] += difference * difference;
        }
    float lanes[LANES];
    for (uint32_t i = 0; i < LANES; i++) lanes[i] = sums[i / 4][i % 4];
    for (uint32_t d = whole; d < dimensions; d++) {
        float difference =
            *(const farpool_f32_there *)(left + 4 * d) - *(const farpool_f32_there *)(right + 4 * d);
        lanes[d - whole] += difference * difference;
    }
    for (uint32_t width = LANES / 2; width; width /= 2)
        for (uint32_t i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

static int is_farther(const struct near *a, const struct near *b) {
    return a->distance > b->distance || (a->distance == b->distance && a->number > b->number);
}

/* Restores a heap that has the farthest vector on top. A nearer vector replaces the top. */
static void sift(struct near *heap, uint32_t at, uint32_t count) {
    struct near moved = heap[at];
    for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && is_farther(&heap[child + 1], &heap[child])) child++;
        if (!is_farther(&heap[child], &moved)) break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

FARPOOL_FUNCTION(knn) {
    struct {
        uint64_t first;
        uint64_t count;
        uint32_t dimensions;
        uint32_t k;
    } args;
    if (!farpool_args(call, &args, sizeof args) || !args.dimensions || args.dimensions > 65536 ||
        call->args_bytes != sizeof args + args.dimensions * 4ull ||
        !farpool_has_values(call, args.first, args.count, args.dimensions * 4ull))
        return farpool_give_up(FARPOOL_BAD_ARGUMENTS);
    uint64_t wanted = args.k < args.count ? args.k : args.count;
    if (wanted * sizeof(struct near) > call->output_capacity) return farpool_give_up(FARPOOL_OUTPUT_SHORT);

    const uint8_t *query = farpool_at(call->args + sizeof args);
    const uint8_t *vector = farpool_window(call, args.first, args.count * args.dimensions * 4);
    struct near *heap = (struct near *)farpool_at(call->output);
    uint32_t held = 0;
    for (uint64_t i = 0; wanted && i < args.count; i++, vector += args.dimensions * 4) {
        struct near one = {i, distance(vector, query, args.dimensions), 0};
        if (one.distance != one.distance) continue;
        if (held < wanted) {
            heap[held++] = one;
            if (held == wanted)
                for (uint32_t j = held / 2; j-- > 0;) sift(heap, j, held);
        } else if (is_farther(&heap[0], &one)) {
            heap[0] = one;
            sift(heap, 0, held);
        }
    }
    if (held < wanted)
        for (uint32_t j = held / 2; j-- > 0;) sift(heap, j, held);
    for (uint32_t last = held; last-- > 1;) {
        struct near farthest = heap[0];
        heap[0] = heap[last];
        heap[last] = farthest;
        sift(heap, 0, last);
    }
    return (int64_t)held * (int64_t)sizeof(struct near);
}
