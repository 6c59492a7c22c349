/* Function that returns what farpool.h reads, for tests to compare. Arguments: u32 what, u32 column, u64
 * byte, u64 bytes. The output depends on `what`:
 *
 *   0  for each row of all row groups: u64 1 if the row has a value, i64 value as integer, f64 value as number,
 *      u64 length of the text plus 256 times its first byte, or the Boolean
 *   1  the u64 at this byte of the window
 *   2  u64 1 if so many bytes, starting at this byte, are in memory here
 *   3  so many bytes of the window, read with farpool_window and memcpy */
#include "farpool.h"

#ifndef __wasm__
void *memcpy(void *to, const void *from, __SIZE_TYPE__ bytes);
#endif

static int64_t values_of(struct farpool_call *call, uint32_t column) {
    struct farpool_columns columns;
    if (!farpool_columns(call, &columns)) return farpool_give_up(FARPOOL_NO_COLUMN);
    farpool_u64_there *output = (farpool_u64_there *)farpool_at(call->output);
    uint64_t written = 0;
    for (uint32_t group = 0; group < columns.group_count; group++) {
        struct farpool_values values;
        if (!farpool_values(call, &columns, group, column, &values)) return farpool_give_up(FARPOOL_BAD_DATA);
        for (uint64_t row = 0; row < values.rows; row++, written += 32, output += 4) {
            if (written + 32 > call->output_capacity) return farpool_give_up(FARPOOL_OUTPUT_SHORT);
            output[0] = (uint64_t)farpool_is_valid(&values, row);
            output[1] = output[2] = output[3] = 0;
            if (!output[0]) continue;
            if (values.type == FARPOOL_UTF8 || values.type == FARPOOL_BINARY) {
                struct farpool_text text = farpool_text(&values, row);
                output[3] = text.length + (text.length ? 256ull * *text.bytes : 0);
            } else if (values.type == FARPOOL_BOOLEAN) {
                output[3] = (uint64_t)farpool_boolean(&values, row);
            } else {
                output[1] = (uint64_t)farpool_integer(&values, row);
                *(farpool_f64_there *)&output[2] = farpool_number(&values, row);
            }
        }
    }
    return (int64_t)written;
}

FARPOOL_FUNCTION(header_test) {
    struct {
        uint32_t what;
        uint32_t column;
        uint64_t byte;
        uint64_t bytes;
    } args;
    if (!farpool_args(call, &args, sizeof args)) return farpool_give_up(FARPOOL_BAD_ARGUMENTS);
    uint64_t answer = 0;
    switch (args.what) {
    case 0: return values_of(call, args.column);
    case 1: answer = farpool_u64(call, args.byte); break;
    case 2: answer = (uint64_t)farpool_is_here(call, args.byte, args.bytes); break;
    case 3:
        if (args.bytes > call->output_capacity) return farpool_give_up(FARPOOL_OUTPUT_SHORT);
        memcpy(farpool_at(call->output), farpool_window(call, args.byte, args.bytes), (uintptr_t)args.bytes);
        return (int64_t)args.bytes;
    default: return farpool_give_up(FARPOOL_BAD_ARGUMENTS);
    }
    return farpool_put(call, &answer, sizeof answer);
}
