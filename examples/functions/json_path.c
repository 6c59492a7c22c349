/* Extracts the value at a path from a column of JSON documents.
 *
 * Arguments: u32 number of the column, u32 0, then the path: names and positions, as in `a.b[2].c`. A name
 *            with special characters is written `["..."]`, as in `["a.b"][0]`; there are no escapes. An empty
 *            path is the whole document.
 * Window:    a far table whose column is Utf8 or Binary, with or without dictionary.
 * Output:    one text for each row of the row groups that the call was given, laid out as an Arrow column:
 *
 *              u64 rows, u64 number of NULLs
 *              i32 offsets, one more than rows, the first 0; padded with zeros to a multiple of 8 bytes
 *              validity, a bit for each row, 1 where there is a text; padded with zeros to a multiple of 8 bytes
 *              bytes of the texts
 *
 * The text of a string is its characters, without quotes and escapes. The text of any other value is the bytes
 * of the document, unchanged. The result is NULL for a row without a document, a path that leads nowhere,
 * JSON's null, and a document that is found malformed. A document is read only up to the value; in values
 * before it, only strings and nesting are checked. If a name occurs twice in an object, the first one counts.
 * Half of a surrogate pair becomes U+FFFD. */
#include "farpool.h"
#include "json.h"

/* Reads one step of a path. Returns 0 if it is malformed. `name` is empty if the step is a position. */
static int take_step(struct text *path, int is_first, struct text *name, uint64_t *position) {
    name->at = name->end = 0;
    *position = 0;
    if (take(path, '[')) {
        if (take(path, '"')) {
            name->at = path->at;
            while (path->at < path->end && *path->at != '"') path->at++;
            name->end = path->at;
            return take(path, '"') && take(path, ']');
        }
        const uint8_t *digits = path->at;
        for (int c; (c = peek(path)) >= '0' && c <= '9' && path->at - digits < 18; path->at++)
            *position = *position * 10 + (uint64_t)(c - '0');
        return path->at > digits && take(path, ']');
    }
    if (!is_first && !take(path, '.')) return 0;
    name->at = path->at;
    while (path->at < path->end && *path->at != '.' && *path->at != '[') path->at++;
    name->end = path->at;
    return name->at < name->end;
}

static int is_path(struct text path) {
    struct text name;
    uint64_t position;
    for (int is_first = 1; path.at < path.end; is_first = 0)
        if (!take_step(&path, is_first, &name, &position)) return 0;
    return 1;
}

/* Reports whether the text is a number, true or false. For a number, only its characters are checked. */
static int is_scalar(struct text text) {
    static const char words[2][6] = {"true", "false"};
    for (int i = 0; i < 2; i++) {
        struct text rest = text;
        const char *word = words[i];
        while (*word && take(&rest, (uint8_t)*word)) word++;
        if (!*word && rest.at == rest.end) return 1;
    }
    int c = peek(&text);
    if (c != '-' && (c < '0' || c > '9')) return 0;
    for (; (c = peek(&text)) >= 0; text.at++)
        if ((c < '0' || c > '9') && c != '-' && c != '+' && c != '.' && c != 'e' && c != 'E') return 0;
    return 1;
}

/* Unused rest of the output. */
struct room {
    uint8_t *at;
    uint64_t bytes;
};

enum answer { NOTHING, TEXT, NO_ROOM };

/* Appends the value that a path leads to. If it returns NOTHING or NO_ROOM, some bytes may have been
 * written, but `room` is unchanged. */
static enum answer evaluate(struct text document, struct text path, struct room *room) {
    struct text name;
    uint64_t position;
    for (int is_first = 1; path.at < path.end; is_first = 0) {
        take_step(&path, is_first, &name, &position);
        if (!enter(&document, name.at ? &name : 0, position)) return NOTHING;
    }
    skip_space(&document);
    struct room left = *room;
    if (take(&document, '"')) {
        uint8_t bytes[4];
        for (int count; (count = take_character(&document, bytes));) {
            if (count < 0) return NOTHING;
            if ((uint64_t)count > left.bytes) return NO_ROOM;
            for (int i = 0; i < count; i++) *left.at++ = bytes[i];
            left.bytes -= (uint64_t)count;
        }
        *room = left;
        return TEXT;
    }
    struct text value = {document.at, document.at};
    if (!skip_value(&document)) return NOTHING;
    value.end = document.at;
    int c = peek(&value);
    if (c != '{' && c != '[' && !is_scalar(value)) return NOTHING;
    uint64_t bytes = (uint64_t)(value.end - value.at);
    if (bytes > left.bytes) return NO_ROOM;
    farpool_copy(left.at, value.at, bytes);
    *room = (struct room){left.at + bytes, left.bytes - bytes};
    return TEXT;
}

FARPOOL_FUNCTION(json_path) {
    uint32_t args[2];
    struct farpool_columns columns;
    if (!farpool_args(call, args, sizeof args)) return farpool_give_up(FARPOOL_BAD_ARGUMENTS);
    const uint8_t *path_begins = farpool_at(call->args + sizeof args);
    struct text path = {path_begins, path_begins + (call->args_bytes - sizeof args)};
    if (!is_path(path)) return farpool_give_up(FARPOOL_BAD_ARGUMENTS);
    if (!farpool_columns(call, &columns) || args[0] >= columns.column_count)
        return farpool_give_up(FARPOOL_NO_COLUMN);
    uint8_t type = columns.column[args[0]].type;
    if (type != FARPOOL_UTF8 && type != FARPOOL_BINARY) return farpool_give_up(FARPOOL_NO_COLUMN);

    uint64_t rows = 0, row = 0, nulls = 0;
    for (uint32_t group = 0; group < columns.group_count; group++)
        rows += farpool_group(&columns, group)->rows;
    uint64_t validity_at = 16 + ((rows + 1) * 4 + 7) / 8 * 8;
    uint64_t texts_at = validity_at + (rows + 63) / 64 * 8;
    if (texts_at > call->output_capacity) return farpool_give_up(FARPOOL_OUTPUT_SHORT);
    uint8_t *output = farpool_at(call->output);
    for (uint64_t byte = 0; byte < texts_at; byte++) output[byte] = 0;
    farpool_u32_there *offsets = (farpool_u32_there *)(output + 16);
    uint8_t *validity = output + validity_at, *texts = output + texts_at;
    struct room room = {texts, call->output_capacity - texts_at};
    if (room.bytes > INT32_MAX) room.bytes = INT32_MAX; /* the offsets are i32 */

    for (uint32_t group = 0; group < columns.group_count; group++) {
        struct farpool_values values;
        if (!farpool_values(call, &columns, group, args[0], &values))
            return farpool_give_up(FARPOOL_BAD_DATA);
        for (uint64_t i = 0; i < values.rows; i++, row++) {
            enum answer answer = NOTHING;
            if (farpool_is_valid(&values, i)) {
                struct farpool_text document = farpool_text(&values, i);
                if (!document.bytes) return farpool_give_up(FARPOOL_BAD_DATA);
                answer =
                    evaluate((struct text){document.bytes, document.bytes + document.length}, path, &room);
            }
            if (answer == NO_ROOM) return farpool_give_up(FARPOOL_OUTPUT_SHORT);
            if (answer == TEXT)
                validity[row / 8] |= (uint8_t)(1u << row % 8);
            else
                nulls++;
            offsets[row + 1] = (uint32_t)(room.at - texts);
        }
    }
    ((farpool_u64_there *)output)[0] = rows;
    ((farpool_u64_there *)output)[1] = nulls;
    return room.at - output;
}
