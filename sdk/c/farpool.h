/* What a shipped function gets and leaves: spec/function.md, in C. For wasm32 and for shared objects alike.
 *
 *   #include "farpool.h"
 *
 *   FARPOOL_FUNCTION(sum) {
 *       uint64_t total = 0;
 *       for (uint64_t at = 0; farpool_has(call, at, 8); at += 8) total += farpool_u64(call, at);
 *       return farpool_put(call, &total, sizeof total);
 *   }
 *
 * Nothing of a C library is needed, and nothing here allocates. Offsets are bytes of the window. Whatever
 * takes an offset and gives bytes ends the call (as `Unreachable`) where they are not inside: an address of
 * wasm32 has 32 bits, so that a load far behind the window would otherwise come round to the function's own
 * heap, and beside a shared object lies all that its process has. Ask `farpool_has` first to give up with a
 * code instead. */
#ifndef FARPOOL_H
#define FARPOOL_H

#include <stdint.h>

#define FARPOOL_VERSION 1
#define FARPOOL_GOES_ON 1u
#define FARPOOL_STAYS UINT64_MAX
#define FARPOOL_STATE_BYTES_MAX 65536

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

/* Before a loop over many values. A module that can be interrupted looks in each turn whether it is to go on: with
 * this, once for eight values. One with vectors, which is not interrupted, has four of them under way at once. */
#ifdef __wasm_simd128__
#define FARPOOL_MANY _Pragma("clang loop interleave_count(4)")
#elif defined __wasm__
#define FARPOOL_MANY _Pragma("clang loop unroll_count(8)")
#else
#define FARPOOL_MANY
#endif

/* Begins a function; `call` is its record. */
#define FARPOOL_FUNCTION(name) FARPOOL_EXPORT(name) int64_t name(struct farpool_call *call)

/* Codes to give up with. They are a habit of the examples: a function may have its own, up to 2^31. */
enum farpool_code {
    FARPOOL_BAD_ARGUMENTS = 1, /* too few bytes of them, or a value that is not permitted */
    FARPOOL_OUTPUT_SHORT = 2,  /* the output's capacity is too small */
    FARPOOL_BAD_DATA = 3,      /* bytes of the window are not what they should be */
    FARPOOL_NO_COLUMN = 4,     /* no far table, or no such column, or it has another type */
};

static inline int64_t farpool_give_up(uint32_t code) {
    return -(int64_t)code;
}

/* Values wherever they lie: of any alignment, and whatever else the same bytes are read as. */
typedef uint16_t farpool_u16_there __attribute__((aligned(1), may_alias));
typedef uint32_t farpool_u32_there __attribute__((aligned(1), may_alias));
typedef uint64_t farpool_u64_there __attribute__((aligned(1), may_alias));
typedef float farpool_f32_there __attribute__((aligned(1), may_alias));
typedef double farpool_f64_there __attribute__((aligned(1), may_alias));

/* The memory that an address of the record leads to. */
static inline uint8_t *farpool_at(uint64_t address) {
    return (uint8_t *)(uintptr_t)address;
}

/* The window */

/* Whether so many bytes from this one on are inside the window, here or elsewhere. */
static inline int farpool_has(const struct farpool_call *call, uint64_t byte, uint64_t bytes) {
    return bytes <= call->window_bytes && byte <= call->window_bytes - bytes;
}

/* Whether `count` values of `width` bytes from this byte on are inside the window. */
static inline int farpool_has_values(const struct farpool_call *call, uint64_t byte, uint64_t count,
                                     uint64_t width) {
    return count <= call->window_bytes / width && farpool_has(call, byte, count * width);
}

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

/* The part that a byte of the window lies in, or 0 if it is elsewhere. */
static inline const struct farpool_part *farpool_part_of(const struct farpool_call *call, uint64_t byte) {
    const struct farpool_part *part = (const struct farpool_part *)farpool_at(call->parts);
    uint64_t low = 0, high = call->part_count;
    while (low < high) { /* the first part that begins behind the byte */
        uint64_t middle = low + (high - low) / 2;
        if (part[middle].first <= byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low && byte - part[low - 1].first < part[low - 1].bytes ? &part[low - 1] : 0;
}

/* Whether a range of the window is here, so that loads in it do not travel. */
static inline int farpool_is_here(const struct farpool_call *call, uint64_t byte, uint64_t bytes) {
    const struct farpool_part *part;
    while (bytes) {
        if (!(part = farpool_part_of(call, byte))) return 0;
        uint64_t left = part->bytes - (byte - part->first); /* parts may touch one another */
        if (bytes <= left) return 1;
        byte += left, bytes -= left;
    }
    return 1;
}

/* Arguments, state, output */

/* Copies by loads and stores: bulk instructions do not reach the window. Volatile, or compilers make such. */
static inline void farpool_copy(void *to, const void *from, uint64_t bytes) {
    uint8_t *target = (uint8_t *)to;
    const uint8_t *source = (const uint8_t *)from;
    for (; bytes >= 8; target += 8, source += 8, bytes -= 8)
        *(volatile farpool_u64_there *)target = *(const farpool_u64_there *)source;
    while (bytes--) *(volatile uint8_t *)target++ = *source++;
}

/* Copies the first bytes of the arguments to a struct; 0 if there are fewer. */
static inline int farpool_args(const struct farpool_call *call, void *to, uint64_t bytes) {
    if (call->args_bytes < bytes) return 0;
    farpool_copy(to, farpool_at(call->args), bytes);
    return 1;
}

/* Copies what the call that hopped here has left; 0 if none has, or if it left another number of bytes. */
static inline int farpool_state(const struct farpool_call *call, void *to, uint64_t bytes) {
    if (!(call->flags & FARPOOL_GOES_ON) || call->state_bytes != bytes) return 0;
    farpool_copy(to, farpool_at(call->state), bytes);
    return 1;
}

/* Writes bytes as the whole output; what the function is to return. */
static inline int64_t farpool_put(struct farpool_call *call, const void *from, uint64_t bytes) {
    if (bytes > call->output_capacity) return farpool_give_up(FARPOOL_OUTPUT_SHORT);
    farpool_copy(farpool_at(call->output), from, bytes);
    return (int64_t)bytes;
}

/* Goes on where a byte of the window lies, with this state; what the function is to return. */
static inline int64_t farpool_hop(struct farpool_call *call, uint64_t byte, const void *state,
                                  uint64_t bytes) {
    int64_t written = farpool_put(call, state, bytes);
    if (written >= 0) call->hop = byte;
    return written;
}

/* Columns of a far table */

/* The byte of a column's type, as in spec/table.md. */
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
    uint32_t width; /* bytes of a value; 0 of Boolean, Utf8 and Binary */
    uint64_t reserved;
};

struct farpool_buffer {
    uint64_t offset;
    uint64_t bytes;
};

struct farpool_chunk {
    uint8_t encoding;
    uint8_t reserved[7];
    uint64_t nulls;
    struct farpool_buffer buffer[4];
};

struct farpool_group {
    uint64_t rows;
    uint64_t first_row;
    struct farpool_chunk chunk[]; /* one for each column */
};

_Static_assert(sizeof(struct farpool_column) == 16, "a column has 16 bytes");
_Static_assert(sizeof(struct farpool_group) == 16, "a row group has 16 bytes before its chunks");
_Static_assert(sizeof(struct farpool_chunk) == 80, "a chunk has 80 bytes");

struct farpool_columns {
    uint32_t column_count;
    uint32_t group_count;
    const struct farpool_column *column;
    const uint8_t *groups;
};

/* Looks at the columns; 0 if the file is no far table. */
static inline int farpool_columns(const struct farpool_call *call, struct farpool_columns *columns) {
    if (!call->columns || call->columns_bytes < 8) return 0;
    const uint8_t *table = farpool_at(call->columns);
    columns->column_count = *(const farpool_u32_there *)table;
    columns->group_count = *(const farpool_u32_there *)(table + 4);
    columns->column = (const struct farpool_column *)(table + 8);
    columns->groups = table + 8 + (uintptr_t)columns->column_count * sizeof(struct farpool_column);
    return 1;
}

/* A row group, of which there are group_count. */
static inline const struct farpool_group *farpool_group(const struct farpool_columns *columns,
                                                        uint32_t index) {
    uintptr_t bytes = sizeof(struct farpool_group) + columns->column_count * sizeof(struct farpool_chunk);
    return (const struct farpool_group *)(columns->groups + index * bytes);
}

/* The values of a column in a row group. Rows are counted from the group's first one. */
struct farpool_values {
    uint64_t rows;
    uint64_t nulls;
    const uint8_t *validity; /* 0: there are no nulls */
    const uint8_t *values;   /* of fixed width, or bits */
    uint64_t stride;         /* bytes from a value of fixed width to that of the next row */
    const uint8_t *keys;     /* 0: no dictionary */
    const uint8_t *offsets;  /* of text */
    const uint8_t *text;
    uint64_t distinct; /* how many texts there are: of a dictionary, or all rows */
    uint64_t text_bytes;
    uint8_t type;
    uint32_t width;
};

/* Finds the values of a column in a row group; 0 if there is none, or if a buffer is not as it should be. */
static inline int farpool_values(const struct farpool_call *call, const struct farpool_columns *columns,
                                 uint32_t group_index, uint32_t column_index, struct farpool_values *values) {
    if (column_index >= columns->column_count || group_index >= columns->group_count) return 0;
    const struct farpool_group *group = farpool_group(columns, group_index);
    const struct farpool_column *column = &columns->column[column_index];
    const struct farpool_chunk *chunk = &group->chunk[column_index];
    const struct farpool_buffer *buffer = chunk->buffer;
    const uint8_t *memory[4];
    for (int i = 0; i < 4; i++) {
        /* In rows, buffer 2 is no range of the window. */
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

static inline int farpool_is_valid(const struct farpool_values *values, uint64_t row) {
    return !values->validity || values->validity[row / 8] >> row % 8 & 1;
}

/* The bytes of a value of fixed width. */
static inline const uint8_t *farpool_value(const struct farpool_values *values, uint64_t row) {
    return values->values + row * values->stride;
}

static inline int farpool_boolean(const struct farpool_values *values, uint64_t row) {
    return values->values[row / 8] >> row % 8 & 1;
}

/* A value of an integer type, Date32 or Timestamp; of UInt64 its bits; of anything else 0. */
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

/* A value of Float32, Float64 or any of `farpool_integer`. */
static inline double farpool_number(const struct farpool_values *values, uint64_t row) {
    if (values->type == FARPOOL_FLOAT32) return *(const farpool_f32_there *)farpool_value(values, row);
    if (values->type == FARPOOL_FLOAT64) return *(const farpool_f64_there *)farpool_value(values, row);
    if (values->type == FARPOOL_UINT64) return (double)(uint64_t)farpool_integer(values, row);
    return (double)farpool_integer(values, row);
}

struct farpool_text {
    const uint8_t *bytes; /* 0: the column's offsets or keys are wrong there */
    uint32_t length;
};

/* A value of Utf8 or Binary, plain or of a dictionary; none of a row without a value. */
static inline struct farpool_text farpool_text(const struct farpool_values *values, uint64_t row) {
    const struct farpool_text none = {0, 0};
    uint64_t index = values->keys ? ((const farpool_u16_there *)values->keys)[row] : row;
    if (index >= values->distinct) return none;
    uint32_t from = ((const farpool_u32_there *)values->offsets)[index];
    uint32_t to = ((const farpool_u32_there *)values->offsets)[index + 1];
    if (from > to || to > values->text_bytes) return none;
    return (struct farpool_text){values->text + from, to - from};
}

/* What compilers may call without being asked to, for modules that no library is linked to. By loads and
 * stores, so that they reach the window; volatile, so that they do not become calls of themselves. */
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
