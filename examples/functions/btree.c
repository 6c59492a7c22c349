/* Looks keys up in a B+-tree.
 *
 * Arguments: u64 byte of the root, then the keys, u64 each.
 * Window:    nodes of 4,096 bytes at multiples of 4,096:
 *
 *              offset  bytes  field
 *                   0      2  kind: 1 inner, 2 leaf
 *                   2      2  number of entries, 0 to 255; at least 1 in an inner node
 *                   4     12  reserved, 0
 *                  16   2040  u64 keys, ascending: in a leaf, those of its values; in an inner node, the least
 *                             key below each child (the first one is not read)
 *                2056   2040  in a leaf, i64 values; in an inner node, u64 offsets of its children
 *
 * Output:    i64 for each key, in their order: its value, or 0 if there is none. Then a bit for each key, least
 *            significant first: 1 if it was found.
 *
 * Gives up with FARPOOL_BAD_DATA if a node has an unknown kind, or if the tree is higher than 16. */
#include "farpool.h"

#define NODE_BYTES 4096
#define ENTRIES_MAX 255
#define HEIGHT_MAX 16

enum node_kind { INNER = 1, LEAF = 2 };

struct node {
    uint16_t kind;
    uint16_t entry_count;
    uint32_t reserved[3];
    uint64_t keys[ENTRIES_MAX];
    uint64_t entries[ENTRIES_MAX];
};

_Static_assert(sizeof(struct node) == NODE_BYTES, "a node fills its bytes");

/* Returns how many of the ascending keys are at most `key`. Each round halves the range without a
 * branch, so the processor has none to mispredict. */
static uint32_t count_up_to(const uint64_t *keys, uint32_t count, uint64_t key) {
    const uint64_t *base = keys;
    while (count > 1) {
        uint32_t half = count / 2;
        base += base[half - 1] <= key ? half : 0;
        count -= half;
    }
    return (uint32_t)(base - keys) + (count && *base <= key);
}

enum answer { MISSING, FOUND, BROKEN };

static enum answer look_up(const struct farpool_call *call, uint64_t at, uint64_t key, uint64_t *value) {
    for (int level = 0; level < HEIGHT_MAX; level++) {
        if (at % NODE_BYTES || !farpool_has(call, at, NODE_BYTES)) return BROKEN;
        const struct node *node = (const struct node *)farpool_window(call, at, NODE_BYTES);
        if (node->entry_count > ENTRIES_MAX) return BROKEN;
        if (node->kind == LEAF) {
            uint32_t behind = count_up_to(node->keys, node->entry_count, key);
            if (!behind || node->keys[behind - 1] != key) return MISSING;
            *value = node->entries[behind - 1];
            return FOUND;
        }
        if (node->kind != INNER || !node->entry_count) return BROKEN;
        at = node->entries[count_up_to(node->keys + 1, node->entry_count - 1u, key)];
    }
    return BROKEN;
}

FARPOOL_FUNCTION(btree) {
    uint64_t root;
    if (!farpool_args(call, &root, sizeof root) || call->args_bytes % 8)
        return farpool_give_up(FARPOOL_BAD_ARGUMENTS);
    const farpool_u64_there *keys = (const farpool_u64_there *)farpool_at(call->args + sizeof root);
    uint64_t count = call->args_bytes / 8 - 1;
    uint64_t bytes = count * 8 + (count + 7) / 8;
    if (bytes > call->output_capacity) return farpool_give_up(FARPOOL_OUTPUT_SHORT);
    farpool_u64_there *values = (farpool_u64_there *)farpool_at(call->output);
    uint8_t *bits = farpool_at(call->output + count * 8);

    for (uint64_t first = 0; first < count; first += 8) {
        uint8_t found = 0;
        for (uint64_t i = first; i < count && i < first + 8; i++) {
            uint64_t value = 0;
            enum answer answer = look_up(call, root, keys[i], &value);
            if (answer == BROKEN) return farpool_give_up(FARPOOL_BAD_DATA);
            found |= (uint8_t)((answer == FOUND) << (i - first));
            values[i] = value;
        }
        bits[first / 8] = found;
    }
    return (int64_t)bytes;
}
