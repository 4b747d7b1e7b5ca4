/* Trace events: a piece of a list of Chrome's trace events, walked once and written as columns.
 *
 *     {"ph": "X", "cat": "kernel", "name": "gemm", ... "args": {"correlation": 7, ...}}, {...
 *         |           |               |                         |
 *     text 0      text 1          text 2, where it stands       column of its own
 *
 * Whatever is unusual (numbers as texts, escapes in keys, more digits than 64 bits hold, anything
 * that is not valid JSON) makes the whole piece UNUSUAL: the caller has another way to read it.
 * Nothing in the piece is trusted, nothing is read beyond its length, and no state is kept.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef EXPORTED
#define EXPORTED __attribute__((visibility("default")))
#endif

enum { UNUSUAL = -1, NONE = -1, DEEPEST = 32, MOST_KEYS = 16, MOST_PROBES = 64, MOST_DIGITS = 300 };
/* No number, or no time; all others are far from it. */
#define MISSING INT64_MIN
/* In microseconds: from here on a double does not hold every nanosecond; no time is so long. */
#define LATE (INT64_C(1) << 43)
#define LONGEST (INT64_C(1) << 52)

/* By event: numbers of texts and of the thread, times in nanoseconds, where the arguments begin and
 * end (0: none); then the arguments that are numbers, and those that are texts. */
enum { PH, CATEGORY, NAME, THREAD, START, DURATION, ARGS, ARGS_END, FIRST_ARGUMENT };
/* By text: where it begins, its length, whether it has escapes. By thread: of process and thread,
 * whether it is ABSENT, a NUMBER or a TEXT, and which. */
enum { TEXT_BEGIN, TEXT_LENGTH, TEXT_ESCAPED, TEXT_COLUMNS };
enum { ABSENT, NUMBER, TEXT, THREAD_COLUMNS = 4 };
/* What is counted. */
enum { EVENTS, TEXTS, THREADS, IS_LATE };

struct piece {
    const uint8_t *bytes;
    int64_t length;
    const uint8_t *keys; /* of arguments, each with its zero: of numbers, then of texts */
    int64_t numbers;
    int64_t texts;
    int64_t exact; /* not 0: times of many digits are decimals, not doubles */
};

struct tables {
    int64_t *events; /* by column: of every event */
    int64_t event_room;
    int64_t *texts; /* by text: its columns */
    int64_t text_room; /* a power of two, as the next one is */
    int64_t *threads;
    int64_t thread_room;
    int64_t *counts;
};

struct key {
    const char *letters;
    size_t length;
};

struct scan {
    const uint8_t *begin;
    const uint8_t *end;
    struct tables tables;
    int64_t exact;
    struct key keys[MOST_KEYS];
    int64_t key_count;
    int64_t number_count;
    int32_t *text_slots; /* twice as many as there is room; 0 is free */
    uint64_t *text_hashes; /* by text */
    int32_t *thread_slots;
};

struct string {
    const uint8_t *begin;
    size_t length;
    int64_t escaped;
};

/* --- JSON: each takes a place and gives that behind what it read, or NULL where it is unusual --- */

static inline const uint8_t *behind_space(const uint8_t *at, const uint8_t *end)
{
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
        at++;
    return at;
}

/* Which of eight letters is the first that ends a string, begins an escape, or is a control
 * character; 8: none. */
static inline int first_special(const uint8_t *at)
{
    const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
    uint64_t word, quote, slash;

    memcpy(&word, at, sizeof word);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    quote = word ^ ones * '"', slash = word ^ ones * '\\';
    word = ((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((word - ones * 0x20) & ~word);
    /* A letter behind the first one may be marked for nothing. */
    return word & tops ? __builtin_ctzll(word & tops) / 8 : 8;
}

static int is_hex(uint8_t letter)
{
    return (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'f') ||
           (letter >= 'A' && letter <= 'F');
}

static const uint8_t *escape(const uint8_t *at, const uint8_t *end)
{
    if (at >= end)
        return NULL;
    if (*at != 'u')
        return memchr("\"\\/bfnrt", *at, 8) ? at + 1 : NULL;
    if (end - at < 5)
        return NULL;
    for (int i = 1; i < 5; i++)
        if (!is_hex(at[i]))
            return NULL;
    /* Half of a pair of surrogates. */
    return (at[1] == 'd' || at[1] == 'D') && at[2] >= '8' ? NULL : at + 5;
}

static inline const uint8_t *string(const uint8_t *at, const uint8_t *end, struct string *found)
{
    if (at >= end || *at != '"')
        return NULL;
    found->begin = ++at, found->escaped = 0;
    for (;;) {
        for (int step = 8; step == 8 && end - at >= 8; at += step)
            step = first_special(at);
        while (at < end && *at != '"' && *at != '\\' && *at >= 0x20)
            at++;
        if (at >= end || *at < 0x20)
            return NULL;
        if (*at == '"')
            break;
        found->escaped = 1;
        if (!(at = escape(at + 1, end)))
            return NULL;
    }
    found->length = (size_t)(at - found->begin);
    return at + 1;
}

static inline const uint8_t *digits(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *first = at;

    while (at < end && *at >= '0' && *at <= '9')
        at++;
    return at > first ? at : NULL;
}

/* The digits in front of a number's point. */
static inline const uint8_t *whole(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *behind = digits(at, end);

    return behind && *at == '0' && behind > at + 1 ? NULL : behind;
}

static const uint8_t *number(const uint8_t *at, const uint8_t *end)
{
    at = whole(at + (at < end && *at == '-'), end);
    if (at && at < end && *at == '.')
        at = digits(at + 1, end);
    if (at && at < end && (*at == 'e' || *at == 'E')) {
        at++;
        at = digits(at + (at < end && (*at == '+' || *at == '-')), end);
    }
    return at;
}

static inline const uint8_t *word(const uint8_t *at, const uint8_t *end, const char *letters)
{
    size_t length = strlen(letters);

    return (size_t)(end - at) >= length && !memcmp(at, letters, length) ? at + length : NULL;
}

/* Go behind the bracket that opens an array or an object, to its first entry.
 *
 * ended says whether it is empty; then what is behind it is returned.
 */
static inline const uint8_t *first_entry(const uint8_t *at, const uint8_t *end, uint8_t close,
                                         int *ended)
{
    at = behind_space(at + 1, end);
    *ended = at < end && *at == close;
    return at + *ended;
}

/* Go on behind an entry, likewise; NULL where neither a comma nor the end of the list is there. */
static inline const uint8_t *next_entry(const uint8_t *at, const uint8_t *end, uint8_t close,
                                        int *ended)
{
    at = behind_space(at, end);
    *ended = at < end && *at == close;
    if (*ended)
        return at + 1;
    return at < end && *at == ',' ? behind_space(at + 1, end) : NULL;
}

/* Any value. */
static const uint8_t *value(const uint8_t *at, const uint8_t *end, int depth)
{
    struct string unused;
    uint8_t close;
    int ended;

    if (at >= end || depth > DEEPEST)
        return NULL;
    if (*at == '"')
        return string(at, end, &unused);
    if (*at == 't' || *at == 'f' || *at == 'n')
        return word(at, end, *at == 't' ? "true" : *at == 'f' ? "false" : "null");
    if (*at != '[' && *at != '{') {
        const uint8_t *behind = number(at, end);
        return behind && behind - at <= MOST_DIGITS ? behind : NULL;
    }
    close = *at == '[' ? ']' : '}';
    for (at = first_entry(at, end, close, &ended); at && !ended;) {
        if (close == '}') {
            if (!(at = string(at, end, &unused)))
                return NULL;
            at = behind_space(at, end);
            if (at >= end || *at != ':')
                return NULL;
            at = behind_space(at + 1, end);
        }
        if ((at = value(at, end, depth + 1)))
            at = next_entry(at, end, close, &ended);
    }
    return at;
}

/* A key that has no escapes, up to its value; at is that behind "{" or ",". */
static inline const uint8_t *key(const uint8_t *at, const uint8_t *end, struct string *found)
{
    if (!(at = string(behind_space(at, end), end, found)) || found->escaped)
        return NULL;
    at = behind_space(at, end);
    return at < end && *at == ':' ? behind_space(at + 1, end) : NULL;
}

static inline int is(const struct string *found, const char *letters, size_t length)
{
    return found->length == length && !memcmp(found->begin, letters, length);
}

/* A whole number, bare or as a text, or null. */
static const uint8_t *integer(const uint8_t *at, const uint8_t *end, int64_t *found)
{
    int quoted = at < end && *at == '"', negative;
    const uint8_t *first, *behind;
    int64_t sum = 0;

    if (at < end && *at == 'n')
        return *found = MISSING, word(at, end, "null");
    at += quoted;
    negative = at < end && *at == '-';
    first = at + negative;
    behind = whole(first, end);
    if (!behind || behind - first > 18 || behind >= end || *behind == '.' || *behind == 'e' ||
        *behind == 'E' || (quoted && *behind != '"'))
        return NULL;
    for (at = first; at < behind; at++)
        sum = 10 * sum + (*at - '0');
    *found = negative ? -sum : sum;
    return behind + quoted;
}

/* Microseconds as a double, in nanoseconds. */
static int64_t rounded(double us)
{
    int64_t whole_us = (int64_t)us;
    double part;

    whole_us -= (double)whole_us > us;
    /* Only the fraction is exact when it is multiplied; the sum leaves no room for less than 1. */
    part = (us - (double)whole_us) * 1000;
    part += 0x1p52;
    part -= 0x1p52;
    return whole_us * 1000 + (int64_t)part;
}

/* A time in microseconds, in nanoseconds, to the nearest even one, or null. */
static const uint8_t *time_of(const uint8_t *at, const uint8_t *end, int64_t exact, int64_t *late,
                              int64_t *found)
{
    int negative = at < end && *at == '-';
    const uint8_t *first = at + negative, *point = whole(first, end), *last, *behind;
    int64_t us = 0, part = 0, scale = 1;

    if (at < end && *at == 'n')
        return *found = MISSING, word(at, end, "null");
    if (!point || point >= end || point - first > 16)
        return NULL;
    last = behind = *point == '.' ? digits(point + 1, end) : point;
    int exponent = behind && behind < end && (*behind == 'e' || *behind == 'E');
    if (exponent)
        behind = number(at, end);
    if (!behind || behind >= end)
        return NULL;
    for (const uint8_t *digit = first; digit < point; digit++)
        us = 10 * us + (*digit - '0');
    if (us >= LONGEST)
        return NULL;
    *late |= us >= LATE;
    while (last > point && last[-1] == '0')
        last--;
    int64_t places = last > point ? last - point - 1 : 0;
    if (exact && (exponent || places > 9))
        return NULL;
    /* Late ones are read again, exactly. */
    if (!exact && (exponent || places > 3) && us < LATE) {
        char *stop;
        double value = strtod((const char *)at, &stop);
        /* A comma may stand for the point there; and an exponent may make it long. */
        if ((const uint8_t *)stop != behind || !(value < LATE && value > -LATE))
            return NULL;
        return *found = rounded(value), behind;
    }
    for (int64_t i = 1; i <= places && i <= 9; i++)
        part = 10 * part + (point[i] - '0');
    for (int64_t i = places; i < 3; i++)
        part *= 10;
    for (int64_t i = 3; i < places && i < 9; i++)
        scale *= 10;
    int64_t ns = us * 1000 + part / scale, rest = part % scale;
    ns += 2 * rest > scale || (2 * rest == scale && ns & 1);
    *found = negative ? -ns : ns;
    return behind;
}

/* --- distinct texts and threads -------------------------------------------------------------- */

static inline uint64_t mixed(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

/* The number of a text; UNUSUAL where there are too many, or too many that collide. */
static int64_t text_number(struct scan *scan, const struct string *text)
{
    struct tables *tables = &scan->tables;
    uint64_t hash = mixed((uint64_t)text->escaped, text->length), word;
    size_t at = 0;
    int64_t *count = tables->counts + TEXTS;

    for (; at + 8 <= text->length; at += 8) {
        memcpy(&word, text->begin + at, 8);
        hash = mixed(hash, word);
    }
    word = 0;
    memcpy(&word, text->begin + at, text->length - at);
    hash = mixed(hash, word);
    for (uint64_t probe = 0; probe < MOST_PROBES; probe++) {
        int32_t *slot = scan->text_slots + ((hash + probe) & (uint64_t)(2 * tables->text_room - 1));
        if (!*slot) {
            if (*count == tables->text_room)
                return UNUSUAL;
            int64_t *row = tables->texts + TEXT_COLUMNS * *count;
            row[TEXT_BEGIN] = text->begin - scan->begin;
            row[TEXT_LENGTH] = (int64_t)text->length;
            row[TEXT_ESCAPED] = text->escaped;
            scan->text_hashes[*count] = hash;
            *slot = (int32_t)++*count;
            return *count - 1;
        }
        const int64_t *row = tables->texts + TEXT_COLUMNS * (*slot - 1);
        if (scan->text_hashes[*slot - 1] == hash && row[TEXT_LENGTH] == (int64_t)text->length &&
            !memcmp(scan->begin + row[TEXT_BEGIN], text->begin, text->length))
            return *slot - 1;
    }
    return UNUSUAL;
}

static int64_t thread_number(struct scan *scan, const int64_t *thread)
{
    struct tables *tables = &scan->tables;
    uint64_t hash = 0;
    int64_t *count = tables->counts + THREADS;

    for (int i = 0; i < THREAD_COLUMNS; i++)
        hash = mixed(hash, (uint64_t)thread[i]);
    for (uint64_t probe = 0; probe < MOST_PROBES; probe++) {
        int32_t *slot = scan->thread_slots +
                        ((hash + probe) & (uint64_t)(2 * tables->thread_room - 1));
        if (!*slot) {
            if (*count == tables->thread_room)
                return UNUSUAL;
            memcpy(tables->threads + THREAD_COLUMNS * *count, thread, 4 * sizeof *thread);
            *slot = (int32_t)++*count;
            return *count - 1;
        }
        if (!memcmp(tables->threads + THREAD_COLUMNS * (*slot - 1), thread, 4 * sizeof *thread))
            return *slot - 1;
    }
    return UNUSUAL;
}

/* --- events ---------------------------------------------------------------------------------- */

/* A text, or null where that may be, as its number. */
static const uint8_t *text(struct scan *scan, const uint8_t *at, int nullable, int64_t *found)
{
    struct string letters;

    if (nullable && at < scan->end && *at == 'n')
        return *found = NONE, word(at, scan->end, "null");
    if (!(at = string(at, scan->end, &letters)))
        return NULL;
    *found = text_number(scan, &letters);
    return *found == UNUSUAL ? NULL : at;
}

/* A process or a thread. */
static const uint8_t *place(struct scan *scan, const uint8_t *at, int64_t *found)
{
    if (at < scan->end && *at == '"')
        return found[0] = TEXT, text(scan, at, 0, found + 1);
    at = integer(at, scan->end, found + 1);
    found[0] = found[1] == MISSING ? ABSENT : NUMBER;
    found[1] = found[0] == ABSENT ? 0 : found[1];
    return at;
}

static void forget_arguments(const struct scan *scan, int64_t *column)
{
    for (int64_t i = 0; i < scan->key_count; i++, column += scan->tables.event_room)
        *column = i < scan->number_count ? MISSING : NONE;
}

static const uint8_t *arguments(struct scan *scan, const uint8_t *at, int64_t *event)
{
    int64_t room = scan->tables.event_room, *column = event + FIRST_ARGUMENT * room;
    const uint8_t *begin = at, *end = scan->end;
    struct string name;
    int ended;

    forget_arguments(scan, column);
    event[ARGS * room] = event[ARGS_END * room] = 0;
    if (at < end && *at == 'n')
        return word(at, end, "null");
    if (at >= end || *at != '{')
        return NULL;
    for (at = first_entry(at, end, '}', &ended); at && !ended;) {
        int64_t i = 0;
        if (!(at = key(at, end, &name)))
            return NULL;
        while (i < scan->key_count && !is(&name, scan->keys[i].letters, scan->keys[i].length))
            i++;
        at = i == scan->key_count     ? value(at, end, 0)
             : i < scan->number_count ? integer(at, end, column + i * room)
                                      : text(scan, at, 1, column + i * room);
        if (at)
            at = next_entry(at, end, '}', &ended);
    }
    if (!at)
        return NULL;
    event[ARGS * room] = begin - scan->begin, event[ARGS_END * room] = at - scan->begin;
    return at;
}

static const uint8_t *field(struct scan *scan, const struct string *name, const uint8_t *at,
                            int64_t *event, int64_t *thread)
{
    int64_t room = scan->tables.event_room, *late = scan->tables.counts + IS_LATE;

    if (is(name, "ph", 2))
        return text(scan, at, 0, event + PH * room);
    if (is(name, "ts", 2))
        return time_of(at, scan->end, scan->exact, late, event + START * room);
    if (is(name, "dur", 3))
        return time_of(at, scan->end, scan->exact, late, event + DURATION * room);
    if (is(name, "pid", 3))
        return place(scan, at, thread);
    if (is(name, "tid", 3))
        return place(scan, at, thread + 2);
    if (is(name, "cat", 3))
        return text(scan, at, 1, event + CATEGORY * room);
    if (is(name, "name", 4))
        return text(scan, at, 0, event + NAME * room);
    if (is(name, "args", 4))
        return arguments(scan, at, event);
    return value(at, scan->end, 0);
}

static const uint8_t *event(struct scan *scan, const uint8_t *at, int64_t *row)
{
    int64_t room = scan->tables.event_room, thread[THREAD_COLUMNS] = {0};
    const uint8_t *end = scan->end;
    struct string name;
    int ended;

    row[PH * room] = row[CATEGORY * room] = row[NAME * room] = NONE;
    row[START * room] = row[DURATION * room] = MISSING;
    row[ARGS * room] = row[ARGS_END * room] = 0;
    forget_arguments(scan, row + FIRST_ARGUMENT * room);
    if (at >= end || *at != '{')
        return NULL;
    for (at = first_entry(at, end, '}', &ended); at && !ended;) {
        if (!(at = key(at, end, &name)) || !(at = field(scan, &name, at, row, thread)))
            return NULL;
        at = next_entry(at, end, '}', &ended);
    }
    if (!at)
        return NULL;
    row[THREAD * room] = thread_number(scan, thread);
    return row[THREAD * room] == UNUSUAL ? NULL : at;
}

static int64_t scanned(struct scan *scan)
{
    const uint8_t *at = behind_space(scan->begin, scan->end);
    int64_t *count = scan->tables.counts + EVENTS;

    for (;;) {
        if (*count == scan->tables.event_room)
            return UNUSUAL;
        if (!(at = event(scan, at, scan->tables.events + *count)))
            return UNUSUAL;
        ++*count;
        at = behind_space(at, scan->end);
        if (at == scan->end)
            return 0;
        if (*at != ',')
            return UNUSUAL;
        at = behind_space(at + 1, scan->end);
    }
}

/* Write the events of a piece, which begins and ends with one, as columns.
 *
 * Returns 0, or UNUSUAL where it holds anything else, or more than there is room for.
 */
EXPORTED int64_t bubbleviz_trace_events(const struct piece *piece, const struct tables *tables)
{
    struct scan scan = {
        .begin = piece->bytes,
        .end = piece->bytes + piece->length,
        .tables = *tables,
        .exact = piece->exact,
        .key_count = piece->numbers + piece->texts,
        .number_count = piece->numbers,
    };
    const char *letters = (const char *)piece->keys;
    int64_t status = UNUSUAL;

    if (scan.key_count > MOST_KEYS)
        return UNUSUAL;
    for (int64_t i = 0; i < scan.key_count; i++) {
        scan.keys[i] = (struct key){letters, strlen(letters)};
        letters += scan.keys[i].length + 1;
    }
    memset(tables->counts, 0, (IS_LATE + 1) * sizeof *tables->counts);
    scan.text_slots = calloc(2 * (size_t)tables->text_room, sizeof *scan.text_slots);
    scan.text_hashes = malloc((size_t)tables->text_room * sizeof *scan.text_hashes);
    scan.thread_slots = calloc(2 * (size_t)tables->thread_room, sizeof *scan.thread_slots);
    if (scan.text_slots && scan.text_hashes && scan.thread_slots)
        status = scanned(&scan);
    free(scan.text_slots), free(scan.text_hashes), free(scan.thread_slots);
    return status;
}
