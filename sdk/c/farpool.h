/* What a shipped function gets and leaves: spec/function.md, in C. For wasm32 and for shared objects alike.
 *
 *   #include "farpool.h"
 *
 *   FARPOOL_FUNCTION(sum) {
 *       uint64_t total = 0;
 *       for (uint64_t at = 0; at + 8 <= call->window_bytes; at += 8) total += farpool_u64(call, at);
 *       return farpool_put(call, &total, sizeof total);
 *   }
 */
#ifndef FARPOOL_H
#define FARPOOL_H

#include <stdint.h>

#define FARPOOL_VERSION 1
#define FARPOOL_GOES_ON 1u
#define FARPOOL_STAYS UINT64_MAX

/* Which bytes of the window are here. */
struct farpool_part {
    uint64_t first;
    uint64_t bytes;
};

struct farpool_call {
    uint32_t version;
    uint32_t flags;
    uint64_t window;
    uint64_t window_bytes;
    uint64_t args;
    uint64_t args_bytes;
    uint64_t output;
    uint64_t output_capacity;
    uint64_t columns;
    uint64_t columns_bytes;
    uint64_t parts;
    uint64_t part_count;
    uint64_t state;
    uint64_t state_bytes;
    uint64_t hop;
    uint64_t reserved[5];
};

_Static_assert(sizeof(struct farpool_call) == 152, "the call record has 152 bytes");

#ifdef __wasm__
#define FARPOOL_EXPORT(name) __attribute__((export_name(#name), visibility("default"), used))
#else
#define FARPOOL_EXPORT(name) __attribute__((visibility("default"), used))
#endif

/* Begins a function; `call` is its record. */
#define FARPOOL_FUNCTION(name) FARPOOL_EXPORT(name) int64_t name(struct farpool_call *call)

/* The memory that an address of the record leads to. */
static inline const uint8_t *farpool_at(uint64_t address) { return (const uint8_t *)(uintptr_t)address; }

/* The window from a byte on. Whether it is inside, the memory itself checks. */
static inline const uint8_t *farpool_window(const struct farpool_call *call, uint64_t byte) {
    return farpool_at(call->window + byte);
}

static inline uint64_t farpool_u64(const struct farpool_call *call, uint64_t byte) {
    return *(const uint64_t *)farpool_window(call, byte);
}

static inline uint32_t farpool_u32(const struct farpool_call *call, uint64_t byte) {
    return *(const uint32_t *)farpool_window(call, byte);
}

/* Whether a range of the window is here, so that loads in it do not travel. */
static inline int farpool_is_here(const struct farpool_call *call, uint64_t byte, uint64_t bytes) {
    const struct farpool_part *part = (const struct farpool_part *)farpool_at(call->parts);
    for (uint64_t i = 0; i < call->part_count; i++)
        if (byte >= part[i].first && byte + bytes <= part[i].first + part[i].bytes) return 1;
    return 0;
}

/* Copies, by loads and stores: bulk instructions do not reach the window. */
static inline void farpool_copy(uint8_t *to, const uint8_t *from, uint64_t bytes) {
    while (bytes >= 8) {
        *(volatile uint64_t *)to = *(const uint64_t *)from;
        to += 8, from += 8, bytes -= 8;
    }
    while (bytes--) *(volatile uint8_t *)to++ = *from++;
}

/* Writes bytes as the whole output; what the function is to return. */
static inline int64_t farpool_put(struct farpool_call *call, const void *from, uint64_t bytes) {
    farpool_copy((uint8_t *)(uintptr_t)call->output, (const uint8_t *)from, bytes);
    return (int64_t)bytes;
}

/* Goes on where a byte of the window lies, with this state; what the function is to return. */
static inline int64_t farpool_hop(struct farpool_call *call, uint64_t byte, const void *state, uint64_t bytes) {
    call->hop = byte;
    return farpool_put(call, state, bytes);
}

#endif
