/* Reads JSON in place: a cursor that steps over values, enters them and decodes strings. It copies
 * nothing, allocates nothing, and reads no further than it must. In values that are stepped over, only
 * strings and nesting are checked. */
#ifndef JSON_H
#define JSON_H

#include <stdint.h>

/* Unread rest of a document or of a path. */
struct text {
    const uint8_t *at;
    const uint8_t *end;
};

static inline int peek(const struct text *text) {
    return text->at < text->end ? *text->at : -1;
}

static inline int take(struct text *text, uint8_t byte) {
    if (peek(text) != byte) return 0;
    text->at++;
    return 1;
}

static inline void skip_space(struct text *text) {
    for (int c; (c = peek(text)) == ' ' || c == '\n' || c == '\r' || c == '\t';) text->at++;
}

/* Reads four hexadecimal digits. Returns -1 if there are none. */
static inline int32_t take_hex(struct text *text) {
    int32_t value = 0;
    for (int i = 0; i < 4; i++, text->at++) {
        int c = peek(text), letter = c | 0x20;
        if (c >= '0' && c <= '9')
            value = value * 16 + c - '0';
        else if (letter >= 'a' && letter <= 'f')
            value = value * 16 + letter - 'a' + 10;
        else
            return -1;
    }
    return value;
}

static inline int put_utf8(uint32_t point, uint8_t out[4]) {
    int more = point < 0x80 ? 0 : point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    static const uint8_t head[4] = {0, 0xc0, 0xe0, 0xf0};
    out[0] = (uint8_t)(head[more] | point >> 6 * more);
    for (int i = 1; i <= more; i++) out[i] = (uint8_t)(0x80 | (point >> 6 * (more - i) & 0x3f));
    return more + 1;
}

/* Reads the next character inside a string. Stores 1 to 4 bytes of UTF-8 and returns their number; a
 * character that is not escaped is returned byte by byte. Returns 0 at the closing quote, which it
 * consumes, and -1 if the string is malformed. */
static inline int take_character(struct text *text, uint8_t out[4]) {
    int c = peek(text);
    if (c < 0) return -1;
    text->at++;
    if (c == '"') return 0;
    out[0] = (uint8_t)c;
    if (c != '\\') return 1;
    c = peek(text);
    if (c < 0) return -1;
    text->at++;
    switch (c) {
    case '"':
    case '\\':
    case '/': out[0] = (uint8_t)c; return 1;
    case 'b': out[0] = '\b'; return 1;
    case 'f': out[0] = '\f'; return 1;
    case 'n': out[0] = '\n'; return 1;
    case 'r': out[0] = '\r'; return 1;
    case 't': out[0] = '\t'; return 1;
    case 'u': break;
    default: return -1;
    }
    int32_t point = take_hex(text);
    if (point < 0) return -1;
    if (point >= 0xd800 && point < 0xe000) {
        struct text ahead = *text;
        int32_t low = point < 0xdc00 && take(&ahead, '\\') && take(&ahead, 'u') ? take_hex(&ahead) : -1;
        if (low >= 0xdc00 && low < 0xe000) {
            *text = ahead;
            point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
        } else {
            point = 0xfffd;
        }
    }
    return put_utf8((uint32_t)point, out);
}

static inline int skip_string(struct text *text) { /* from after its opening quote */
    while (text->at < text->end) {
        uint8_t c = *text->at++;
        if (c == '"') return 1;
        if (c == '\\' && text->at < text->end) text->at++;
    }
    return 0;
}

/* Steps over a value. Nesting is counted instead of recursed into, so that no document overflows the
 * stack. */
static inline int skip_value(struct text *text) {
    uint64_t depth = 0;
    do {
        skip_space(text);
        int c = peek(text);
        if (c < 0) return 0;
        text->at++;
        if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            if (!depth) return 0;
            depth--;
        } else if (c == '"') {
            if (!skip_string(text)) return 0;
        } else if (c == ',' || c == ':') {
            if (!depth) return 0;
        } else {
            while ((c = peek(text)) > ' ' && c != ',' && c != ':' && c != ']' && c != '}') text->at++;
        }
    } while (depth);
    return 1;
}

/* Reads a name within an object, up to and including its closing quote. Returns 1 if it equals `name`. */
static inline int take_name(struct text *text, const struct text *name) {
    const uint8_t *expected = name->at;
    uint8_t bytes[4];
    for (int count, same = 1; (count = take_character(text, bytes)) >= 0;) {
        if (!count) return same && expected == name->end;
        for (int i = 0; i < count; i++) same = same && expected < name->end && *expected++ == bytes[i];
    }
    text->at = text->end;
    return 0;
}

/* Enters an object or array, up to the wanted value: the one called `name`, or the one at `position` if
 * `name` is 0. */
static inline int enter(struct text *text, const struct text *name, uint64_t position) {
    uint8_t close = name ? '}' : ']';
    skip_space(text);
    if (!take(text, name ? '{' : '[')) return 0;
    skip_space(text);
    if (peek(text) == close) return 0;
    for (uint64_t i = 0;; i++) {
        int wanted = i == position;
        if (name) {
            skip_space(text);
            if (!take(text, '"')) return 0;
            wanted = take_name(text, name);
            skip_space(text);
            if (!take(text, ':')) return 0;
        }
        if (wanted) return 1;
        if (!skip_value(text)) return 0;
        skip_space(text);
        if (!take(text, ',')) return 0;
    }
}

#endif
