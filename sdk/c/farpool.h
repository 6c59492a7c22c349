/* Call record of a shipped function, and helpers to read it: spec/function.md in C. It compiles to
 * wasm32 and to native shared objects.
 *
 *     #include "farpool.h"
 *
 *     FARPOOL_FUNCTION(sum) {
 *         uint64_t total = 0;
 *         for (uint64_t at = 0; farpool_has(call, at, 8); at += 8) total += farpool_u64(call, at);
 *         return farpool_put(call, &total, sizeof total);
 *     }
 *
 * No C library is needed and nothing here allocates. Offsets count from the first byte of the window.
 * Every helper that takes an offset and returns bytes checks that they are inside the window, and traps
 * (outcome `Unreachable`) if they are not. The check is needed in both forms: an address of wasm32 has
 * 32 bits, so a load far beyond the window would wrap around into the function's own heap; and a native
 * function shares its address space with the rest of its process. Call `farpool_has` first to end the
 * call with a code of your own instead. */
#ifndef FARPOOL_H
#define FARPOOL_H

#include <stdint.h>

#define FARPOOL_VERSION 1
#define FARPOOL_GOES_ON 1u
#define FARPOOL_STAYS UINT64_MAX
#define FARPOOL_STATE_BYTES_MAX 65536

/* Range of the window that is in the memory of the machine on which the function runs. A load from any
 * other byte first fetches it over the network. */
struct farpool_part {
    uint64_t first;
    uint64_t bytes;
};

/* Call record, 152 bytes. Addresses are those that the function loads from. `window`, `args`, `output`,
 * `columns`, `parts` and `state` are addresses; `columns` is 0 if the file is not a far table, and
 * `state` is 0 if no call hopped to this one (farpool_hop). Each is followed by its size: `parts` in
 * entries, all others in bytes. `flags` has FARPOOL_GOES_ON if another call hopped to this one. The
 * function may write only the output and `hop`, which is FARPOOL_STAYS at first. */
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

/* Place this before a loop over many values. A module that can be interrupted tests in every iteration
 * whether it should stop; with this macro, the test comes once for eight values. A module that uses
 * vectors is not interrupted; for it, this macro interleaves four iterations. */
#ifdef __wasm_simd128__
#define FARPOOL_MANY _Pragma("clang loop interleave_count(4)")
#elif defined __wasm__
#define FARPOOL_MANY _Pragma("clang loop unroll_count(8)")
#else
#define FARPOOL_MANY
#endif

/* Begins the definition of an exported function. `call` points to its call record. */
#define FARPOOL_FUNCTION(name) FARPOOL_EXPORT(name) int64_t name(struct farpool_call *call)

/* Codes for `farpool_give_up`. Only the examples rely on these meanings: a function may use its own
 * codes, 1 to 2^31. */
enum farpool_code {
    FARPOOL_BAD_ARGUMENTS = 1, /* too few bytes of arguments, or a value that is not permitted */
    FARPOOL_OUTPUT_SHORT = 2,  /* the output's capacity is too small */
    FARPOOL_BAD_DATA = 3,      /* the window's contents are malformed */
    FARPOOL_NO_COLUMN = 4,     /* not a far table, no such column, or a column of another type */
};

/* Returns what a function must return to end the call with this code. The caller sees outcome `GaveUp`. */
static inline int64_t farpool_give_up(uint32_t code) {
    return -(int64_t)code;
}

/* Numbers that may lie at any address: unaligned, and allowed to alias other types. */
typedef uint16_t farpool_u16_there __attribute__((aligned(1), may_alias));
typedef uint32_t farpool_u32_there __attribute__((aligned(1), may_alias));
typedef uint64_t farpool_u64_there __attribute__((aligned(1), may_alias));
typedef float farpool_f32_there __attribute__((aligned(1), may_alias));
typedef double farpool_f64_there __attribute__((aligned(1), may_alias));

/* Returns a pointer to an address of the call record. */
static inline uint8_t *farpool_at(uint64_t address) {
    return (uint8_t *)(uintptr_t)address;
}

/* The window */

/* Reports whether the range of `bytes` bytes that starts at offset `byte` is inside the window. It need
 * not be in memory here. */
static inline int farpool_has(const struct farpool_call *call, uint64_t byte, uint64_t bytes) {
    return bytes <= call->window_bytes && byte <= call->window_bytes - bytes;
}

/* Reports whether `count` values of `width` bytes each, starting at offset `byte`, are inside the
 * window. */
static inline int farpool_has_values(const struct farpool_call *call, uint64_t byte, uint64_t count,
                                     uint64_t width) {
    return count <= call->window_bytes / width && farpool_has(call, byte, count * width);
}

/* Returns a pointer to `bytes` bytes at offset `byte`. Traps if they are not inside the window. */
static inline const uint8_t *farpool_window(const struct farpool_call *call, uint64_t byte, uint64_t bytes) {
    if (!farpool_has(call, byte, bytes)) __builtin_trap();
    return farpool_at(call->window + byte);
}

static inline uint8_t farpool_u8(const struct farpool_call *call, uint64_t byte) {
    return *farpool_window(call, byte, 1);
}

static inline uint16_t farpool_u16(const struct farpool_call *call, uint64_t byte) {
    return *(const farpool_u16_there *)farpool_window(call, byte, 2);
}

static inline uint32_t farpool_u32(const struct farpool_call *call, uint64_t byte) {
    return *(const farpool_u32_there *)farpool_window(call, byte, 4);
}

static inline uint64_t farpool_u64(const struct farpool_call *call, uint64_t byte) {
    return *(const farpool_u64_there *)farpool_window(call, byte, 8);
}

static inline int64_t farpool_i64(const struct farpool_call *call, uint64_t byte) {
    return (int64_t)farpool_u64(call, byte);
}

/* Returns the part that contains a byte of the window, or 0 if the byte is not in this machine's memory. */
static inline const struct farpool_part *farpool_part_of(const struct farpool_call *call, uint64_t byte) {
    const struct farpool_part *part = (const struct farpool_part *)farpool_at(call->parts);
    uint64_t low = 0, high = call->part_count;
    while (low < high) { /* binary search for the first part that begins after the byte */
        uint64_t middle = low + (high - low) / 2;
        if (part[middle].first <= byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low && byte - part[low - 1].first < part[low - 1].bytes ? &part[low - 1] : 0;
}

/* Reports whether a range of the window is in the memory of this machine, so that reading it needs no
 * network round trip. */
static inline int farpool_is_here(const struct farpool_call *call, uint64_t byte, uint64_t bytes) {
    const struct farpool_part *part;
    while (bytes) {
        if (!(part = farpool_part_of(call, byte))) return 0;
        uint64_t left = part->bytes - (byte - part->first); /* the range may continue in an adjacent part */
        if (bytes <= left) return 1;
        byte += left, bytes -= left;
    }
    return 1;
}

/* Arguments, state, output */

/* Copies with single loads and stores, because bulk memory instructions of Wasm do not reach the window.
 * The stores are volatile, or compilers would turn the loop into such an instruction. */
static inline void farpool_copy(void *to, const void *from, uint64_t bytes) {
    uint8_t *target = (uint8_t *)to;
    const uint8_t *source = (const uint8_t *)from;
    for (; bytes >= 8; target += 8, source += 8, bytes -= 8)
        *(volatile farpool_u64_there *)target = *(const farpool_u64_there *)source;
    while (bytes--) *(volatile uint8_t *)target++ = *source++;
}

/* Copies the first `bytes` bytes of the arguments to `to`. Returns 0 if there are fewer, else 1. */
static inline int farpool_args(const struct farpool_call *call, void *to, uint64_t bytes) {
    if (call->args_bytes < bytes) return 0;
    farpool_copy(to, farpool_at(call->args), bytes);
    return 1;
}

/* Copies the state left by the call that hopped to this one (farpool_hop) to `to`. Returns 0 if no call
 * did, or if its state has another size; else 1. */
static inline int farpool_state(const struct farpool_call *call, void *to, uint64_t bytes) {
    if (!(call->flags & FARPOOL_GOES_ON) || call->state_bytes != bytes) return 0;
    farpool_copy(to, farpool_at(call->state), bytes);
    return 1;
}

/* Writes these bytes as the whole output. Returns what the function must return. */
static inline int64_t farpool_put(struct farpool_call *call, const void *from, uint64_t bytes) {
    if (bytes > call->output_capacity) return farpool_give_up(FARPOOL_OUTPUT_SHORT);
    farpool_copy(farpool_at(call->output), from, bytes);
    return (int64_t)bytes;
}

/* Asks for the function to be called again, with this state, on the node that holds byte `byte` of the
 * window. Returns what the function must return. The state is at most FARPOOL_STATE_BYTES_MAX bytes and
 * must fit the output's capacity. */
static inline int64_t farpool_hop(struct farpool_call *call, uint64_t byte, const void *state,
                                  uint64_t bytes) {
    int64_t written = farpool_put(call, state, bytes);
    if (written >= 0) call->hop = byte;
    return written;
}

/* Columns of a far table */

/* Type of a column, with the numbers of spec/table.md. */
enum farpool_type {
    FARPOOL_BOOLEAN = 1,
    FARPOOL_INT8 = 2,
    FARPOOL_INT16 = 3,
    FARPOOL_INT32 = 4,
    FARPOOL_INT64 = 5,
    FARPOOL_UINT8 = 6,
    FARPOOL_UINT16 = 7,
    FARPOOL_UINT32 = 8,
    FARPOOL_UINT64 = 9,
    FARPOOL_FLOAT32 = 10,
    FARPOOL_FLOAT64 = 11,
    FARPOOL_DECIMAL128 = 12,
    FARPOOL_DATE32 = 13,
    FARPOOL_TIMESTAMP = 14,
    FARPOOL_UTF8 = 15,
    FARPOOL_BINARY = 16,
    FARPOOL_FIXED_SIZE_BINARY = 17,
};

enum farpool_encoding { FARPOOL_PLAIN = 0, FARPOOL_DICTIONARY = 1, FARPOOL_ROWS = 2 };

struct farpool_column {
    uint8_t type;
    uint8_t precision;
    int8_t scale;
    uint8_t unit;
    uint32_t width; /* bytes of a value; 0 for Boolean, Utf8 and Binary */
    uint64_t reserved;
};

/* Range of the window, in bytes. */
struct farpool_buffer {
    uint64_t offset;
    uint64_t bytes;
};

/* Values of one column in one row group. Buffer 0 is the validity bitmap; spec/function.md lists the
 * others for each encoding. An absent buffer is all zero. */
struct farpool_chunk {
    uint8_t encoding;
    uint8_t reserved[7];
    uint64_t nulls;
    struct farpool_buffer buffer[4];
};

struct farpool_group {
    uint64_t rows;
    uint64_t first_row;
    struct farpool_chunk chunk[]; /* one per column */
};

_Static_assert(sizeof(struct farpool_column) == 16, "a column has 16 bytes");
_Static_assert(sizeof(struct farpool_group) == 16, "a row group has 16 bytes before its chunks");
_Static_assert(sizeof(struct farpool_chunk) == 80, "a chunk has 80 bytes");

/* Header of the table of columns, filled in by `farpool_columns`. */
struct farpool_columns {
    uint32_t column_count;
    uint32_t group_count;
    const struct farpool_column *column;
    const uint8_t *groups;
};

/* Fills in `columns` from the call record. Returns 0 if the file is not a far table, else 1. */
static inline int farpool_columns(const struct farpool_call *call, struct farpool_columns *columns) {
    if (!call->columns || call->columns_bytes < 8) return 0;
    const uint8_t *table = farpool_at(call->columns);
    columns->column_count = *(const farpool_u32_there *)table;
    columns->group_count = *(const farpool_u32_there *)(table + 4);
    columns->column = (const struct farpool_column *)(table + 8);
    columns->groups = table + 8 + (uintptr_t)columns->column_count * sizeof(struct farpool_column);
    return 1;
}

/* Returns row group `index`, which must be less than `columns->group_count`. */
static inline const struct farpool_group *farpool_group(const struct farpool_columns *columns,
                                                        uint32_t index) {
    uintptr_t bytes = sizeof(struct farpool_group) + columns->column_count * sizeof(struct farpool_chunk);
    return (const struct farpool_group *)(columns->groups + index * bytes);
}

/* Values of one column in one row group, filled in by `farpool_values`. Row numbers count from the first
 * row of the group. */
struct farpool_values {
    uint64_t rows;
    uint64_t nulls;
    const uint8_t *validity; /* validity bitmap; 0 if there are no nulls */
    const uint8_t *values;   /* values of fixed width, or the bits of a Boolean column */
    uint64_t stride;         /* bytes from one value of fixed width to the next */
    const uint8_t *keys;     /* u16 indices into the dictionary; 0 without a dictionary */
    const uint8_t *offsets;  /* offsets of the texts, for Utf8 and Binary */
    const uint8_t *text;
    uint64_t distinct; /* number of texts: of the dictionary, or at least one per row */
    uint64_t text_bytes;
    uint8_t type;
    uint32_t width;
};

/* Fills in `values` for one column of one row group. Returns 0 if there is no such column or group, or
 * if a buffer is too short or outside the window; else 1. */
static inline int farpool_values(const struct farpool_call *call, const struct farpool_columns *columns,
                                 uint32_t group_index, uint32_t column_index, struct farpool_values *values) {
    if (column_index >= columns->column_count || group_index >= columns->group_count) return 0;
    const struct farpool_group *group = farpool_group(columns, group_index);
    const struct farpool_column *column = &columns->column[column_index];
    const struct farpool_chunk *chunk = &group->chunk[column_index];
    const struct farpool_buffer *buffer = chunk->buffer;
    const uint8_t *memory[4];
    for (int i = 0; i < 4; i++) {
        /* Buffer 2 of FARPOOL_ROWS holds an offset within a row and the bytes of a row, not a range
         * of the window. */
        int range = chunk->encoding != FARPOOL_ROWS || i < 2;
        if (range && !farpool_has(call, buffer[i].offset, buffer[i].bytes)) return 0;
        memory[i] = range ? farpool_at(call->window + buffer[i].offset) : 0;
    }
    uint64_t rows = group->rows;
    int is_text = column->type == FARPOOL_UTF8 || column->type == FARPOOL_BINARY;
    *values = (struct farpool_values){.rows = rows, .nulls = chunk->nulls, .type = column->type};
    values->width = column->width;
    if (chunk->nulls) {
        values->validity = memory[0];
        if (buffer[0].bytes < (rows + 7) / 8) return 0;
    }
    if (is_text) {
        int offsets = chunk->encoding == FARPOOL_DICTIONARY ? 2 : 1;
        if (chunk->encoding == FARPOOL_ROWS || buffer[offsets].bytes < 4) return 0;
        if (offsets == 2) values->keys = memory[1];
        values->offsets = memory[offsets];
        values->text = memory[offsets + 1];
        values->distinct = buffer[offsets].bytes / 4 - 1;
        values->text_bytes = buffer[offsets + 1].bytes;
        return offsets == 2 ? buffer[1].bytes / 2 >= rows : values->distinct >= rows;
    }
    if (chunk->encoding == FARPOOL_ROWS) {
        values->values = memory[1] + buffer[2].offset;
        values->stride = buffer[2].bytes;
        return buffer[2].offset <= values->stride && column->width <= values->stride - buffer[2].offset &&
               (!rows || buffer[1].bytes / rows >= values->stride);
    }
    values->values = memory[1];
    values->stride = column->width;
    if (column->type == FARPOOL_BOOLEAN) return buffer[1].bytes >= (rows + 7) / 8;
    return chunk->encoding == FARPOOL_PLAIN && column->width && buffer[1].bytes / column->width >= rows;
}

/* Reports whether a row has a value, that is, is not null. */
static inline int farpool_is_valid(const struct farpool_values *values, uint64_t row) {
    return !values->validity || values->validity[row / 8] >> row % 8 & 1;
}

/* Returns a pointer to a value of fixed width. */
static inline const uint8_t *farpool_value(const struct farpool_values *values, uint64_t row) {
    return values->values + row * values->stride;
}

/* Returns a value of a Boolean column: 0 or 1. */
static inline int farpool_boolean(const struct farpool_values *values, uint64_t row) {
    return values->values[row / 8] >> row % 8 & 1;
}

/* Returns a value of an integer, Date32 or Timestamp column. A UInt64 value above INT64_MAX comes out
 * negative, with the same bits. Returns 0 for any other type. */
static inline int64_t farpool_integer(const struct farpool_values *values, uint64_t row) {
    const uint8_t *value = farpool_value(values, row);
    switch (values->type) {
    case FARPOOL_INT8: return (int8_t)*value;
    case FARPOOL_INT16: return (int16_t)*(const farpool_u16_there *)value;
    case FARPOOL_DATE32:
    case FARPOOL_INT32: return (int32_t)*(const farpool_u32_there *)value;
    case FARPOOL_UINT8: return *value;
    case FARPOOL_UINT16: return *(const farpool_u16_there *)value;
    case FARPOOL_UINT32: return *(const farpool_u32_there *)value;
    case FARPOOL_INT64:
    case FARPOOL_UINT64:
    case FARPOOL_TIMESTAMP: return (int64_t)*(const farpool_u64_there *)value;
    }
    return 0;
}

/* Returns a value of a Float32 or Float64 column, or of any type that `farpool_integer` reads. */
static inline double farpool_number(const struct farpool_values *values, uint64_t row) {
    if (values->type == FARPOOL_FLOAT32) return *(const farpool_f32_there *)farpool_value(values, row);
    if (values->type == FARPOOL_FLOAT64) return *(const farpool_f64_there *)farpool_value(values, row);
    if (values->type == FARPOOL_UINT64) return (double)(uint64_t)farpool_integer(values, row);
    return (double)farpool_integer(values, row);
}

/* Bytes of a Utf8 or Binary value. They are not terminated by a 0. */
struct farpool_text {
    const uint8_t *bytes; /* 0 if the column's offsets or keys are out of range */
    uint32_t length;
};

/* Returns a value of a Utf8 or Binary column. The row must have a value (see `farpool_is_valid`). */
static inline struct farpool_text farpool_text(const struct farpool_values *values, uint64_t row) {
    const struct farpool_text none = {0, 0};
    uint64_t index = values->keys ? ((const farpool_u16_there *)values->keys)[row] : row;
    if (index >= values->distinct) return none;
    uint32_t from = ((const farpool_u32_there *)values->offsets)[index];
    uint32_t to = ((const farpool_u32_there *)values->offsets)[index + 1];
    if (from > to || to > values->text_bytes) return none;
    return (struct farpool_text){values->text + from, to - from};
}

/* Functions that compilers call on their own, for modules that no C library is linked to. They use loads
 * and stores, which reach the window, and volatile accesses, so that compilers do not turn them into
 * calls of themselves. */
#ifdef __wasm__
#define FARPOOL_LIBRARY __attribute__((weak, visibility("hidden")))

FARPOOL_LIBRARY void *memcpy(void *to, const void *from, __SIZE_TYPE__ bytes) {
    farpool_copy(to, from, bytes);
    return to;
}

FARPOOL_LIBRARY void *memmove(void *to, const void *from, __SIZE_TYPE__ bytes) {
    if ((uintptr_t)to <= (uintptr_t)from)
        farpool_copy(to, from, bytes);
    else
        while (bytes--) ((volatile uint8_t *)to)[bytes] = ((const uint8_t *)from)[bytes];
    return to;
}

FARPOOL_LIBRARY void *memset(void *to, int byte, __SIZE_TYPE__ bytes) {
    while (bytes--) ((volatile uint8_t *)to)[bytes] = (uint8_t)byte;
    return to;
}

FARPOOL_LIBRARY int memcmp(const void *left, const void *right, __SIZE_TYPE__ bytes) {
    const volatile uint8_t *a = (const uint8_t *)left, *b = (const uint8_t *)right;
    for (; bytes; bytes--, a++, b++)
        if (*a != *b) return *a < *b ? -1 : 1;
    return 0;
}
#endif

#endif
