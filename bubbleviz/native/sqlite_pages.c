/* SQLite pages: decodes rows of ordinary SQLite tables directly from the leaf pages of B-trees.
 *
 * SQLite returns one row per step. Decoding the pages here takes half the time for columns with
 * millions of rows. The contents of the file are not trusted: every number is checked against the
 * bounds of its cell, its page and the file. If the file uses an unsupported feature, the result is
 * UNUSUAL. In that case, the caller reads the file with SQLite, which is the reference
 * implementation.
 *
 *     page      | header | cell offsets --> |    free    | <-- cells ... |  reserved  |
 *     cell      | bytes of payload | row number | payload, maybe continued on overflow pages |
 *     payload   | bytes of header | a type for each column | a value for each column |
 *
 * The format is described at https://sqlite.org/fileformat2.html, sections 1.6 (B-tree pages) and
 * 2.1 (records). No state is kept between calls, so several threads may call at the same time.
 */
#define _GNU_SOURCE /* memmem */
#define _DARWIN_C_SOURCE
#define _FILE_OFFSET_BITS 64
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef EXPORTED
#define EXPORTED __attribute__((visibility("default")))
#endif

/* Marks functions that are inlined at every call, so that the compiler specializes each copy. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum status { OK = 0, UNUSUAL = 1, NO_MEMORY = 2 };

enum {
    INTERIOR = 0x05,    /* page types of a table's B-tree */
    LEAF = 0x0d,
    LEAF_HEADER = 8,    /* size of a leaf page header in bytes */
    INTERIOR_HEADER = 12,
    MOST_DEPTH = 20,    /* maximum depth of a tree (SQLite's limit for a cursor) */
    MOST_COLUMNS = 64,  /* maximum number of columns up to the last column that is read */
    MOST_PAYLOAD = 1000000000, /* maximum size of a row in bytes (SQLite's limit) */
    MOST_HEADER = 98307,       /* maximum size of a record header in bytes (SQLite's limit) */
    LEAST_CELL = 6,            /* minimum total size of a cell and its offset in bytes */
    RUN_BYTES = 1 << 18, /* number of bytes read at once */
    SPARE = 8            /* number of readable bytes after the pages */
};

/* SQLite uses the page that contains this byte for locks, so the page never contains data. */
static const uint64_t LOCK_BYTE = 1u << 30;

struct file {
    int32_t descriptor;
    uint32_t page_bytes;
    uint32_t usable; /* bytes per page, excluding the reserved bytes at its end */
    uint32_t pages;
};

/* All arguments of exported functions are pointers and 64-bit integers. */

/* Convert a file description: descriptor, page size, usable bytes per page, number of pages. */
static struct file file_of(const int64_t shape[4])
{
    struct file file = {(int32_t)shape[0], (uint32_t)shape[1], (uint32_t)shape[2],
                        (uint32_t)shape[3]};

    return file;
}

/* A column of integers, and how NULL is read. */
struct column {
    int64_t index;    /* index of the column in the table */
    int64_t nullable; /* 0: NULL is unusual; 1: NULL is read as `missing`; 2: like 1, but a stored
                         value equal to `missing` is unusual */
    int64_t missing;  /* value that replaces NULL */
    int64_t alias; /* nonzero if the column is an alias of the row number (NULL is then stored) */
};

struct leaves {
    const uint32_t *page;
    const int64_t *last_row; /* last row number that each page may contain */
    uint64_t from, to;       /* half-open range of the leaves to read */
    int64_t first, last;     /* first and last row number to read, both inclusive */
    const int64_t *wanted;   /* row numbers to read, ascending, or NULL to read all rows */
    int64_t wanted_count;
    struct extent *extents;  /* extent of each leaf, or NULL if extents are unused */
    int64_t start, end;      /* indices of the columns with start and end times */
    int64_t shortest;        /* minimum duration: leaves that contain only shorter rows are
                                skipped. If it is -1, no leaf is skipped, and extents are written */
    int64_t until;           /* leaves whose rows all start at this time or later are skipped */
};

/* Summary of the times of all rows on a leaf. Rows without a start or an end are ignored. */
struct extent {
    int64_t longest;  /* maximum duration of a row, or -1 if the leaf was not read */
    int64_t earliest; /* earliest start of a row */
};

static inline uint32_t big2(const uint8_t *at) { return (uint32_t)at[0] << 8 | at[1]; }

static inline uint32_t big4(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Read a variable-length integer of one to nine bytes. Return the address after the integer, or
 * NULL if the integer does not end before `end`. */
static inline const uint8_t *varint(const uint8_t *at, const uint8_t *end, uint64_t *value)
{
    uint64_t sum = 0;

    for (int byte = 0; byte < 8; byte++) {
        if (at >= end)
            return NULL;
        sum = sum << 7 | (*at & 0x7f);
        if (*at++ < 0x80) {
            *value = sum;
            return at;
        }
    }
    if (at >= end)
        return NULL;
    *value = sum << 8 | *at++;
    return at;
}

static int plain_page(const struct file *file, uint32_t number)
{
    return number > 1 && number <= file->pages && number != LOCK_BYTE / file->page_bytes + 1;
}

/* Return whether a page may contain this number of cells. Only a leaf that is the root (`lone`) may
 * be empty. */
static inline int plain_count(const struct file *file, uint32_t cells, int lone)
{
    return (cells > 0 || lone) && cells <= (file->page_bytes - LEAF_HEADER) / LEAST_CELL;
}

static int read_pages(const struct file *file, uint32_t number, size_t count, uint8_t *into)
{
    size_t wanted = count * file->page_bytes;
    uint64_t at = (uint64_t)(number - 1) * file->page_bytes;

    while (wanted > 0) {
        ssize_t got = pread(file->descriptor, into, wanted, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return UNUSUAL;
        into += got, at += (uint64_t)got, wanted -= (size_t)got;
    }
    return OK;
}

/* --- the tree ------------------------------------------------------------------------------- */

struct walk {
    const struct file *file;
    uint8_t *seen; /* one bit per page, because a page that occurs twice is unusual */
    uint8_t *pages;
    uint32_t *leaf;
    int64_t *last_row;
    size_t room, count;
    int depth; /* depth of the leaves (the root has depth 0) */
};

static int visit(struct walk *walk, uint32_t number)
{
    uint8_t bit = (uint8_t)(1 << (number & 7));

    if (!plain_page(walk->file, number) || walk->seen[number >> 3] & bit)
        return UNUSUAL;
    walk->seen[number >> 3] |= bit;
    return OK;
}

/* Find the depth of the leftmost leaf. All leaves have the same depth. */
static int find_depth(struct walk *walk, uint32_t number)
{
    for (walk->depth = 0; walk->depth < MOST_DEPTH; walk->depth++) {
        if (!plain_page(walk->file, number) || read_pages(walk->file, number, 1, walk->pages))
            return UNUSUAL;
        if (walk->pages[0] == LEAF)
            return OK;
        if (walk->pages[0] != INTERIOR)
            return UNUSUAL;
        uint32_t cells = big2(walk->pages + 3);
        uint32_t at = cells ? big2(walk->pages + INTERIOR_HEADER) : 8;
        if (at > walk->file->usable - 4)
            return UNUSUAL;
        number = big4(walk->pages + at);
    }
    return UNUSUAL;
}

static int walk_below(struct walk *walk, uint32_t number, int depth, int64_t *after, int64_t last)
{
    int status = visit(walk, number);

    if (status)
        return status;
    if (depth == walk->depth) {
        if (walk->count == walk->room)
            return UNUSUAL;
        walk->leaf[walk->count] = number;
        walk->last_row[walk->count++] = last;
        *after = last;
        return OK;
    }
    const uint8_t *page = walk->pages + (size_t)depth * walk->file->page_bytes;
    const uint8_t *end = page + walk->file->usable;
    if (read_pages(walk->file, number, 1, (uint8_t *)page) || page[0] != INTERIOR)
        return UNUSUAL;
    uint32_t cells = big2(page + 3);
    if (!plain_count(walk->file, cells, 0))
        return UNUSUAL;
    for (uint32_t cell = 0; cell < cells; cell++) {
        uint32_t at = big2(page + INTERIOR_HEADER + 2 * cell);
        uint64_t key;
        if (at < INTERIOR_HEADER + 2 * cells || at > walk->file->usable - 4)
            return UNUSUAL;
        if (!varint(page + at + 4, end, &key))
            return UNUSUAL;
        /* Row numbers are in ascending order. Each child contains the rows after the previous key,
         * up to and including its own key. The last child contains the rows after the last key. */
        if ((int64_t)key <= *after || (int64_t)key >= last)
            return UNUSUAL;
        status = walk_below(walk, big4(page + at), depth + 1, after, (int64_t)key);
        if (status)
            return status;
        *after = (int64_t)key;
    }
    return walk_below(walk, big4(page + 8), depth + 1, after, last);
}

/* Find the leaf pages of a table in row order, and the last row number that each leaf may contain.
 * Return the number of leaves, or -1 if a page is unusual or memory runs out. */
EXPORTED int64_t bubbleviz_leaves(const int64_t shape[4], int64_t root, uint32_t *leaf,
                                  int64_t *last_row, int64_t room)
{
    struct file file = file_of(shape);
    struct walk walk = {&file, NULL, NULL, leaf, last_row, (size_t)room, 0, 0};
    int64_t after = INT64_MIN;
    int status = NO_MEMORY;

    walk.seen = calloc(1, (size_t)(file.pages >> 3) + 1);
    walk.pages = malloc((size_t)(MOST_DEPTH + 1) * file.page_bytes);
    if (walk.seen && walk.pages)
        status = find_depth(&walk, (uint32_t)root);
    if (!status)
        status = walk_below(&walk, (uint32_t)root, 0, &after, INT64_MAX);
    free(walk.seen);
    free(walk.pages);
    return status ? -1 : (int64_t)walk.count;
}

/* --- records -------------------------------------------------------------------------------- */

struct buffer {
    uint8_t *bytes;
    size_t room;
};

/* Buffer for payloads that continue on overflow pages. */
struct overflow {
    struct buffer whole;
    uint32_t pages; /* number of overflow pages read so far, limited by the number of pages */
};

static int grow(struct buffer *buffer, size_t bytes)
{
    if (bytes <= buffer->room)
        return OK;
    size_t more = bytes / 2, room = bytes > SIZE_MAX - more ? bytes : bytes + more;
    uint8_t *moved = realloc(buffer->bytes, room);
    if (!moved)
        return NO_MEMORY;
    buffer->bytes = moved;
    buffer->room = room;
    return OK;
}

struct record {
    int64_t row;
    uint64_t type[MOST_COLUMNS];
    const uint8_t *value[MOST_COLUMNS];
};

/* Copy a payload that continues on overflow pages to overflow->whole. */
static int follow(const struct file *file, struct overflow *overflow, const uint8_t *local,
                  const uint8_t *page_end, uint64_t bytes)
{
    uint64_t usable = file->usable, least = (usable - 12) * 32 / 255 - 23;
    uint64_t here = least + (bytes - least) % (usable - 4);
    struct buffer *whole = &overflow->whole;
    uint64_t at;

    if (here > usable - 35)
        here = least;
    if (bytes > MOST_PAYLOAD || bytes > (uint64_t)file->pages * file->page_bytes ||
        here + 4 > (size_t)(page_end - local))
        return UNUSUAL;
    /* Complete pages are read, so the buffer needs room for one more page than the payload. */
    if (grow(whole, (size_t)bytes + file->page_bytes))
        return NO_MEMORY;
    memcpy(whole->bytes, local, (size_t)here);
    uint32_t next = big4(local + here);
    for (at = here; at < bytes; at += usable - 4) {
        uint8_t *into = whole->bytes + at;
        uint8_t kept[4];
        /* An overflow page starts with the number of the next page. Reading the page overwrites the
         * last four bytes of the payload so far, so these bytes are restored afterwards. */
        memcpy(kept, into - 4, 4);
        if (overflow->pages++ == file->pages || !plain_page(file, next) ||
            read_pages(file, next, 1, into - 4))
            return UNUSUAL;
        next = big4(into - 4);
        memcpy(into - 4, kept, 4);
    }
    return next ? UNUSUAL : OK;
}

static const uint8_t SIZES[12] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0};

static inline int is_integer(uint64_t type) { return (type >= 1 && type <= 6) || (type | 1) == 9; }

static inline int is_text(uint64_t type) { return type >= 13 && type & 1; }

/* Read the payload length and the row number of a cell. Return the address of the payload, or NULL
 * if the page ends before the payload. */
ALWAYS_INLINE const uint8_t *read_head(const struct file *file, const uint8_t *page, uint32_t cell,
                                       uint64_t *bytes, int64_t *row)
{
    const uint8_t *end = page + file->usable, *at = varint(page + cell, end, bytes);
    uint64_t number;

    if (!at || !(at = varint(at, end, &number)))
        return NULL;
    *row = (int64_t)number;
    return at;
}

/* Read the types and values of the first columns of the record in a cell. */
ALWAYS_INLINE int read_record(const struct file *file, const uint8_t *page, uint32_t cell,
                              int columns, struct overflow *overflow, struct record *record)
{
    const uint8_t *end = page + file->usable, *header_end, *value;
    uint64_t bytes, header;
    const uint8_t *at = read_head(file, page, cell, &bytes, &record->row);

    if (!at)
        return UNUSUAL;
    if (bytes > file->usable - 35) {
        int status = follow(file, overflow, at, end, bytes);
        if (status)
            return status;
        at = overflow->whole.bytes;
    } else if (bytes > (size_t)(end - at)) {
        return UNUSUAL;
    }
    end = at + bytes;
    const uint8_t *begin = at;
    if (!(at = varint(at, end, &header)) || header > bytes || header > MOST_HEADER)
        return UNUSUAL;
    header_end = begin + header, value = header_end;
    for (int column = 0; column < columns; column++) {
        uint64_t type, size;
        if (at >= header_end)
            return UNUSUAL;
        if (*at < 0x80)
            type = *at++;
        else if (!(at = varint(at, header_end, &type)))
            return UNUSUAL;
        if (type == 10 || type == 11)
            return UNUSUAL;
        size = type < 12 ? SIZES[type] : (type - 12) >> 1;
        if (size > (size_t)(end - value))
            return UNUSUAL;
        record->type[column] = type;
        record->value[column] = value;
        value += size;
    }
    /* If the record has no further columns, it must end after the last value. */
    return at == header_end && value != end ? UNUSUAL : OK;
}

/* Number of bits by which eight bytes are shifted right to get an integer, indexed by its type. */
static const uint8_t SHIFTS[8] = {0, 56, 48, 40, 32, 16, 0, 0};

/* Decode an integer. Eight bytes are read regardless of the size of the integer. This is safe
 * because there are SPARE bytes after the last page. */
static inline int64_t integer(uint64_t type, const uint8_t *at)
{
    uint64_t bytes;

    if (type >= 8)
        return type == 9;
    memcpy(&bytes, at, sizeof bytes);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    bytes = __builtin_bswap64(bytes);
#endif
    return (int64_t)bytes >> SHIFTS[type];
}

ALWAYS_INLINE int read_integer(const struct record *record, const struct column *column,
                               int64_t *value)
{
    uint64_t type = record->type[column->index];

    if (column->alias) {
        *value = record->row;
        return type ? UNUSUAL : OK;
    }
    if (is_integer(type)) {
        *value = integer(type, record->value[column->index]);
        return column->nullable == 2 && *value == column->missing ? UNUSUAL : OK;
    }
    *value = column->missing;
    return type || !column->nullable ? UNUSUAL : OK;
}

/* --- leaves --------------------------------------------------------------------------------- */

/* Callback for each record. Reading ends if it returns anything other than OK. */
typedef int use(void *, const struct record *);

/* Update a leaf's extent to include a row. A leaf with unusual times is never skipped. */
static void extend(struct extent *extent, const struct record *record, const struct leaves *leaves)
{
    uint64_t start_type = record->type[leaves->start], end_type = record->type[leaves->end];
    int64_t start, length;

    if (!start_type || !end_type)
        return;
    if (!is_integer(start_type) || !is_integer(end_type)) {
        extent->longest = INT64_MAX, extent->earliest = INT64_MIN;
        return;
    }
    start = integer(start_type, record->value[leaves->start]);
    if (__builtin_sub_overflow(integer(end_type, record->value[leaves->end]), start, &length))
        length = INT64_MAX;
    extent->longest = length > extent->longest ? length : extent->longest;
    extent->earliest = start < extent->earliest ? start : extent->earliest;
}

static inline int plain_leaf(const struct file *file, const uint8_t *page,
                             const struct leaves *leaves, size_t leaf)
{
    int lone = leaf == 0 && leaves->last_row[0] == INT64_MAX;

    return page[0] == LEAF && plain_count(file, big2(page + 3), lone);
}

ALWAYS_INLINE int read_leaf(const struct file *file, const uint8_t *page, int columns,
                            const struct leaves *leaves, size_t leaf, struct overflow *overflow,
                            use *use, void *with)
{
    int64_t after = leaf ? leaves->last_row[leaf - 1] : INT64_MIN;
    struct extent extent = {0, INT64_MAX};
    int first = leaf == 0, noting = leaves->extents && leaves->shortest < 0;
    struct record record;

    uint32_t cells = big2(page + 3);
    if (!plain_leaf(file, page, leaves, leaf))
        return UNUSUAL;
    for (uint32_t cell = 0; cell < cells; cell++) {
        uint32_t at = big2(page + LEAF_HEADER + 2 * cell);
        if (at < LEAF_HEADER + 2 * cells || at > file->usable - 4)
            return UNUSUAL;
        int status = read_record(file, page, at, columns, overflow, &record);
        if (status)
            return status;
        /* Row numbers must be in ascending order and within the bounds that the tree gives for this
         * leaf. */
        if ((record.row <= after && !first) || record.row > leaves->last_row[leaf])
            return UNUSUAL;
        first = 0;
        after = record.row;
        if (noting)
            extend(&extent, &record, leaves);
        if (record.row < leaves->first || record.row > leaves->last)
            continue;
        status = use(with, &record);
        if (status)
            return status;
    }
    /* All rows of the leaf were read, even if only some were used. If another thread reads this
     * leaf, that thread writes the same extent. */
    if (noting)
        leaves->extents[leaf] = extent;
    return OK;
}

/* Find the wanted rows that are on a leaf by binary search, as SQLite does. Start at index *wanted
 * of the list of wanted rows, and advance it. */
static int read_wanted(const struct file *file, const uint8_t *page, int columns,
                       const struct leaves *leaves, size_t leaf, int64_t *wanted,
                       struct overflow *overflow, use *use, void *with)
{
    struct record record;

    uint32_t cells = big2(page + 3);
    if (!plain_leaf(file, page, leaves, leaf))
        return UNUSUAL;
    for (; *wanted < leaves->wanted_count; (*wanted)++) {
        int64_t row = leaves->wanted[*wanted];
        uint32_t low = 0, high = cells;
        if (row > leaves->last_row[leaf])
            break;
        while (low < high) {
            uint32_t middle = low + (high - low) / 2, at = big2(page + LEAF_HEADER + 2 * middle);
            uint64_t bytes;
            if (at < LEAF_HEADER + 2 * cells || at > file->usable - 4)
                return UNUSUAL;
            if (!read_head(file, page, at, &bytes, &record.row))
                return UNUSUAL;
            if (record.row < row) {
                low = middle + 1;
            } else if (record.row > row) {
                high = middle;
            } else {
                int status = read_record(file, page, at, columns, overflow, &record);
                status = status ? status : use(with, &record);
                if (status)
                    return status;
                break;
            }
        }
    }
    return OK;
}

static inline int skipped(const struct leaves *leaves, size_t leaf)
{
    if (!leaves->extents || leaves->shortest < 0 || leaves->extents[leaf].longest < 0)
        return 0;
    return leaves->extents[leaf].longest < leaves->shortest ||
           leaves->extents[leaf].earliest >= leaves->until;
}

ALWAYS_INLINE int read_leaves(const struct file *file, int columns, const struct leaves *leaves,
                              use *use, void *with)
{
    size_t most = RUN_BYTES / file->page_bytes + 1;
    struct overflow overflow = {{NULL, 0}, 0};
    int64_t wanted = 0;

    if (columns > MOST_COLUMNS)
        return UNUSUAL;
    uint8_t *pages = malloc(most * file->page_bytes + SPARE);
    int status = pages ? OK : NO_MEMORY;

    for (size_t leaf = leaves->from; leaf < leaves->to && !status;) {
        if (skipped(leaves, leaf)) {
            leaf++;
            continue;
        }
        /* The leaves of a table are usually consecutive pages, so several are read at once. */
        size_t run = 1;
        while (run < most && leaf + run < leaves->to && !skipped(leaves, leaf + run) &&
               leaves->page[leaf + run] == leaves->page[leaf] + run)
            run++;
        status = read_pages(file, leaves->page[leaf], run, pages);
        for (size_t of_run = 0; of_run < run && !status; of_run++, leaf++)
            status = leaves->wanted
                         ? read_wanted(file, pages + of_run * file->page_bytes, columns, leaves,
                                       leaf, &wanted, &overflow, use, with)
                         : read_leaf(file, pages + of_run * file->page_bytes, columns, leaves, leaf,
                                     &overflow, use, with);
    }
    free(overflow.whole.bytes);
    free(pages);
    return status;
}

static int columns_to_read(const struct column *columns, int count)
{
    int most = 0;

    for (int i = 0; i < count; i++)
        if (columns[i].index >= most)
            most = (int)columns[i].index + 1;
    return most;
}

/* --- columns of integers -------------------------------------------------------------------- */

struct table {
    const struct column *columns;
    int count;
    int64_t *out; /* shape (count, room) */
    size_t room, rows;
};

ALWAYS_INLINE int keep_integers(void *with, const struct record *record)
{
    struct table *table = with;
    int status = OK;

    if (table->rows == table->room)
        return UNUSUAL;
    for (int i = 0; i < table->count; i++)
        status |= read_integer(record, table->columns + i,
                               table->out + (size_t)i * table->room + table->rows);
    table->rows++;
    return status;
}

/* Read integer columns of the rows selected by `leaves` to `out`, shape (count, room). Return the
 * number of rows, or -1 if a page is unusual or memory runs out. */
EXPORTED int64_t bubbleviz_integers(const int64_t shape[4], const struct leaves *leaves,
                                    const struct column *columns, int64_t count, int64_t *out,
                                    int64_t room)
{
    struct file file = file_of(shape);
    struct table table = {columns, (int)count, out, (size_t)room, 0};
    int most = columns_to_read(columns, table.count);

    return read_leaves(&file, most, leaves, keep_integers, &table) ? -1 : (int64_t)table.rows;
}

/* --- names ---------------------------------------------------------------------------------- */

enum { MOST_PATTERNS = 256, TRIGRAMS = 1 << 16 };

struct pattern {
    const uint8_t *text, *end;
    const uint8_t *literal; /* longest text that every matching name contains */
    size_t literal_bytes;
};

/* SQLite GLOB patterns. A name must match at least one pattern. */
struct patterns {
    /* Anchored patterns start with a fixed ASCII character or a set of letters. All other patterns
     * are floating. */
    size_t anchored, floating;              /* number of patterns of each kind */
    struct pattern begins[MOST_PATTERNS];   /* anchored patterns */
    struct pattern contains[MOST_PATTERNS]; /* floating patterns */
    uint64_t by_first[256][MOST_PATTERNS / 64]; /* mask of the anchored patterns that a name with
                                                   this first byte may match */
    size_t step; /* distance between the trigrams in a name that are looked up. Every match of a
                    literal contains at least one of them. 0 if trigrams cannot be used */
    uint64_t having[TRIGRAMS]; /* mask of the floating patterns, modulo 64, whose literal contains
                                  a trigram with this hash */
};

/* Hash the first three bytes at an address. Four bytes must be readable. */
static inline uint32_t trigram_of(const uint8_t *at)
{
    return (big4(at) >> 8) * 2654435761u >> 16;
}

/* Decode a character like SQLite, which treats a byte that is not valid UTF-8 as one character or
 * as U+FFFD. */
static const uint8_t *character(const uint8_t *at, const uint8_t *end, uint32_t *value)
{
    uint32_t c = *at++;

    if (c >= 0xc0) {
        c = c < 0xe0   ? c & 0x1f
            : c < 0xf0 ? c & 0x0f
            : c < 0xf8 ? c & 0x07
            : c < 0xfc ? c & 0x03
            : c < 0xfe ? c & 0x01
                       : 0;
        while (at < end && (*at & 0xc0) == 0x80)
            c = c << 6 | (*at++ & 0x3f);
        if (c < 0x80 || (c & 0xfffff800) == 0xd800 || (c & 0xfffffffe) == 0xfffe)
            c = 0xfffd;
    }
    *value = c;
    return at;
}

/* Return whether a character is in the set that follows "[". Set *behind to the address after "]",
 * or to NULL if there is no "]". */
static int in_set(const uint8_t *at, const uint8_t *end, uint32_t wanted, const uint8_t **behind)
{
    uint32_t c = 0, before = 0;
    int inverted = 0, seen = 0;

    *behind = NULL;
    if (at < end && *at == '^')
        inverted = 1, at++;
    if (at < end && *at == ']')
        seen = wanted == ']', at++;
    while (at < end && *at != ']') {
        at = character(at, end, &c);
        if (c == '-' && before > 0 && at < end && *at != ']') {
            at = character(at, end, &c);
            seen |= wanted >= before && wanted <= c;
            before = 0;
        } else {
            seen |= wanted == c;
            before = c;
        }
    }
    if (at >= end)
        return 0;
    *behind = at + 1;
    return seen ^ inverted;
}

/* Find the next address at which the pattern after a star may match. If the pattern continues with
 * an ASCII character, which is a single byte, this byte is searched for. */
static inline const uint8_t *next_place(const uint8_t *glob, const uint8_t *at, const uint8_t *end)
{
    if (*glob >= 0x80 || *glob == '*' || *glob == '?' || *glob == '[')
        return at;
    const uint8_t *found = memchr(at, *glob, (size_t)(end - at));
    return found ? found : end;
}

/* Return whether a name matches a pattern. Once a star is reached, backtracking to earlier stars is
 * no longer necessary. */
static int fits(const uint8_t *glob, const uint8_t *glob_end, const uint8_t *at, const uint8_t *end)
{
    const uint8_t *star = NULL, *retry = NULL, *behind;
    uint32_t c, wanted;

    for (;;) {
        if (glob < glob_end && *glob == '*') {
            star = ++glob;
            if (glob == glob_end)
                return 1;
            at = retry = next_place(glob, at, end);
            continue;
        }
        if (at < end) {
            const uint8_t *next = character(at, end, &c);
            if (glob < glob_end && *glob == '[') {
                if (in_set(glob + 1, glob_end, c, &behind)) {
                    glob = behind, at = next;
                    continue;
                }
            } else if (glob < glob_end) {
                const uint8_t *rest = character(glob, glob_end, &wanted);
                if (*glob == '?' || wanted == c) {
                    glob = rest, at = next;
                    continue;
                }
            }
        } else if (glob == glob_end) {
            return 1;
        }
        if (!star || retry >= end)
            return 0;
        retry = next_place(star, character(retry, end, &c), end);
        at = retry, glob = star;
    }
}

/* Find the longest part of a pattern that is ASCII and contains no wildcards. Other characters are
 * excluded because they may be encoded in several ways. */
static void find_literal(struct pattern *pattern)
{
    const uint8_t *begin = pattern->text;

    pattern->literal = begin, pattern->literal_bytes = 0;
    for (const uint8_t *at = begin; at <= pattern->end; at++) {
        if (at < pattern->end && *at < 0x80 && *at != '*' && *at != '?' && *at != '[')
            continue;
        if ((size_t)(at - begin) > pattern->literal_bytes)
            pattern->literal = begin, pattern->literal_bytes = (size_t)(at - begin);
        if (at < pattern->end && *at == '[') {
            const uint8_t *behind;
            in_set(at + 1, pattern->end, 0, &behind);
            at = behind ? behind - 1 : pattern->end;
        }
        begin = at + 1;
    }
}

static int first_bytes(const uint8_t *text, const uint8_t *end, uint8_t *set)
{
    if (text < end && *text < 0x80 && *text != '*' && *text != '?' && *text != '[') {
        set[*text] = 1;
        return 1;
    }
    if (text == end || *text != '[')
        return 0;
    /* Only sets of single letters are supported. A "]" directly after "[" belongs to the set. */
    if (++text < end && *text == ']')
        return 0;
    for (; text < end && *text != ']'; text++) {
        if ((*text | 32) < 'a' || (*text | 32) > 'z')
            return 0;
        set[*text] = 1;
    }
    return text < end;
}

/* Prepare concatenated patterns, each terminated by NUL. The texts must outlive the result. */
static struct patterns *prepared(const uint8_t *texts, int64_t count)
{
    struct patterns *all = count <= MOST_PATTERNS ? calloc(1, sizeof *all) : NULL;
    size_t shortest = SIZE_MAX;

    if (!all)
        return NULL;
    for (int64_t i = 0; i < count; i++) {
        struct pattern pattern = {texts, texts + strlen((const char *)texts), NULL, 0};
        uint8_t set[256] = {0};
        texts = pattern.end + 1;
        find_literal(&pattern);
        if (first_bytes(pattern.text, pattern.end, set)) {
            for (int byte = 0; byte < 256; byte++)
                if (set[byte])
                    all->by_first[byte][all->anchored / 64] |= (uint64_t)1 << all->anchored % 64;
            all->begins[all->anchored++] = pattern;
            continue;
        }
        if (pattern.literal_bytes < shortest)
            shortest = pattern.literal_bytes;
        for (size_t at = 0; at + 3 <= pattern.literal_bytes; at++)
            all->having[trigram_of(pattern.literal + at)] |= (uint64_t)1 << all->floating % 64;
        all->contains[all->floating++] = pattern;
    }
    all->step = all->floating && shortest >= 3 ? shortest - 2 : 0;
    return all;
}

static int fits_any(const struct patterns *patterns, const uint8_t *at, const uint8_t *end)
{
    if (at < end) {
        const uint64_t *may = patterns->by_first[*at];
        for (size_t word = 0; word * 64 < patterns->anchored; word++)
            for (uint64_t left = may[word]; left; left &= left - 1) {
                const struct pattern *pattern =
                    patterns->begins + word * 64 + (size_t)__builtin_ctzll(left);
                if (fits(pattern->text, pattern->end, at, end))
                    return 1;
            }
    }
    size_t step = patterns->step;
    uint64_t some = step ? 0 : UINT64_MAX;
    if (step)
        for (const uint8_t *look = at + step - 1; end - look >= 3; look += step)
            some |= patterns->having[trigram_of(look)];
    for (size_t i = 0; some && i < patterns->floating; i++) {
        const struct pattern *pattern = patterns->contains + i;
        if (!(some >> i % 64 & 1))
            continue;
        if (pattern->literal_bytes && !step &&
            !memmem(at, (size_t)(end - at), pattern->literal, pattern->literal_bytes))
            continue;
        if (fits(pattern->text, pattern->end, at, end))
            return 1;
    }
    return 0;
}

/* --- rows with names ------------------------------------------------------------------------ */

/* Rows to select. A row must have one of the kinds. The row's text must match a pattern, or the
 * text must be NULL and the row must have one of the ids. If a column of threads is given, the row
 * must also last long enough and overlap an interval of its thread. In that case, rows without a
 * text do not need an id. */
struct selection {
    const uint8_t *globs; /* SQLite GLOB patterns, each terminated by NUL */
    int64_t glob_count;
    int64_t text; /* index of the column of texts */
    const char *before; /* start of texts that are JSON objects with one member, or NULL to use
                           patterns. If it is given, all rows are selected, and the text of a row
                           is the member's value */
    int64_t kind; /* index of the column of kinds, or -1 to select rows of any kind */
    int64_t kinds[4];
    int64_t id;         /* index of the column of text ids, or -1 if there is none */
    int64_t id_count;   /* number of ids, or -1 to accept any id */
    const int64_t *ids; /* accepted ids, ascending */
    int64_t start, end, thread; /* indices of columns, or -1 if times are not checked */
    int64_t thread_count;
    const int64_t *threads; /* thread ids, ascending */
    int64_t shortest;             /* minimum duration of a row */
    const int64_t *since, *until; /* intervals, disjoint and ascending on each thread */
    const int64_t (*bounds)[2];   /* half-open index range of each thread's intervals */
};

struct naming {
    const struct column *columns;
    int count;
    const struct selection *selection;
    struct patterns *patterns; /* the prepared patterns for the selection */
    struct buffer values, texts;
    size_t rows, bytes;
};

/* Return the index of the first number that is not less than `value` (lower bound). The numbers
 * must be in ascending order. */
static int64_t first_from(const int64_t *ascending, int64_t count, int64_t value)
{
    int64_t low = 0, high = count;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (ascending[middle] < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int is_among(const int64_t *ascending, int64_t count, int64_t value)
{
    int64_t at = first_from(ascending, count, value);

    return at < count && ascending[at] == value;
}

/* Set *kept if a row lasts long enough and overlaps an interval of its thread. Return OK or
 * UNUSUAL. */
static int select_times(const struct selection *selection, const struct record *record, int *kept)
{
    const int64_t places[3] = {selection->start, selection->end, selection->thread};
    int64_t value[3], length;

    for (int i = 0; i < 3; i++) {
        uint64_t type = record->type[places[i]];
        /* The row lacks a start, an end or a thread. */
        if (!type)
            return OK;
        if (!is_integer(type))
            return UNUSUAL;
        value[i] = integer(type, record->value[places[i]]);
    }
    /* On overflow, SQLite continues with a floating-point number, which compares the same way. */
    if (__builtin_sub_overflow(value[1], value[0], &length))
        length = value[1] > value[0] ? INT64_MAX : INT64_MIN;
    if (length < selection->shortest || value[0] == INT64_MAX)
        return OK;
    int64_t thread = first_from(selection->threads, selection->thread_count, value[2]);
    if (thread == selection->thread_count || selection->threads[thread] != value[2])
        return OK;
    int64_t time = selection->bounds[thread][0], end = selection->bounds[thread][1];
    /* Find the first interval that ends after the row starts. */
    time += first_from(selection->until + time, end - time, value[0] + 1);
    *kept = time < end && selection->since[time] < value[1];
    return OK;
}

/* Set *kept to whether a row is selected. Return OK or UNUSUAL. */
static inline int select_row(const struct selection *selection, const struct patterns *patterns,
                             const struct record *record, int *kept)
{
    uint64_t type = record->type[selection->text];
    const uint8_t *text = record->value[selection->text];

    *kept = 0;
    if (selection->kind >= 0) {
        uint64_t kind_type = record->type[selection->kind];
        if (kind_type && !is_integer(kind_type))
            return UNUSUAL;
        int64_t kind = integer(kind_type, record->value[selection->kind]);
        int known = 0;
        for (int i = 0; i < 4; i++)
            known |= kind == selection->kinds[i];
        if (!kind_type || !known)
            return OK;
    }
    if (selection->thread >= 0) {
        int status = select_times(selection, record, kept);
        if (status || !*kept)
            return status;
    }
    if (is_text(type)) {
        size_t bytes = (size_t)((type - 13) >> 1);
        *kept = fits_any(patterns, text, text + bytes);
        /* SQLite matches patterns only up to the first NUL of a text. */
        return memchr(text, 0, bytes) ? UNUSUAL : OK;
    }
    if (type)
        return UNUSUAL;
    if (selection->id >= 0 && selection->thread < 0) {
        uint64_t id_type = record->type[selection->id];
        if (id_type && !is_integer(id_type))
            return UNUSUAL;
        *kept = selection->id_count < 0 ||
                (id_type && is_among(selection->ids, selection->id_count,
                                     integer(id_type, record->value[selection->id])));
    }
    return OK;
}

/* Bytes that must be escaped in a JSON string, or that are not printable ASCII. */
static const uint8_t ODD[256] = {
    [0 ... 0x1f] = 1, ['"'] = 1, ['\\'] = 1, [0x7f ... 0xff] = 1};

/* Find the string value in a JSON object with one member. Return the address of the value and set
 * *bytes to its length. Return NULL if the value is empty or contains anything other than unescaped
 * printable ASCII characters. */
static const uint8_t *member(const char *before, const uint8_t *at, size_t *bytes)
{
    size_t begin = strlen(before);
    int odd = 0;

    if (*bytes < begin + 4 || memcmp(at, before, begin) || memcmp(at + *bytes - 2, "\"}", 2))
        return NULL;
    const uint8_t *text = at + begin, *end = at + *bytes - 2;
    text += *text == ' ';
    if (*text++ != '"' || text >= end)
        return NULL;
    for (at = text; at < end; at++)
        odd |= ODD[*at];
    *bytes = (size_t)(end - text);
    return odd ? NULL : text;
}

static int keep_named(void *with, const struct record *record)
{
    struct naming *naming = with;
    const struct selection *selection = naming->selection;
    uint64_t type = record->type[selection->text];
    const uint8_t *text = is_text(type) ? record->value[selection->text] : NULL;
    size_t bytes = text ? (size_t)((type - 13) >> 1) : 0, width = (size_t)naming->count + 1;
    int kept = 1, status = OK;

    if (!selection->before)
        status = select_row(selection, naming->patterns, record, &kept);
    else if (text && !(text = member(selection->before, text, &bytes)))
        bytes = 0;
    if (status || !kept)
        return status;
    if (grow(&naming->values, (naming->rows + 1) * width * sizeof(int64_t)) ||
        grow(&naming->texts, naming->bytes + bytes))
        return NO_MEMORY;
    int64_t *values = (int64_t *)naming->values.bytes + naming->rows * width;
    for (int i = 0; i < naming->count; i++)
        status |= read_integer(record, naming->columns + i, values + i);
    values[naming->count] = text ? (int64_t)bytes : -1;
    if (bytes)
        memcpy(naming->texts.bytes + naming->bytes, text, bytes);
    naming->bytes += bytes;
    naming->rows++;
    return status;
}

/* Read integer columns and the texts of selected rows. Return a status.
 *
 * result: Four outputs. The first output is the address of the integers, shape (rows, count + 1).
 *     The last integer in a row is the length of its text, or -1 for NULL. The second output is the
 *     address of the concatenated texts. The third output is the number of rows, and the fourth
 *     output is the total size of the texts in bytes. bubbleviz_named_free frees both memory areas.
 */
EXPORTED int64_t bubbleviz_named(const int64_t shape[4], const struct leaves *leaves,
                                 const struct column *columns, int64_t count,
                                 const struct selection *selection, int64_t result[4])
{
    struct file file = file_of(shape);
    struct naming naming = {columns, (int)count, selection, NULL, {NULL, 0}, {NULL, 0}, 0, 0};
    int most = columns_to_read(columns, naming.count);

    const int64_t places[6] = {selection->text,  selection->kind, selection->id,
                               selection->start, selection->end,  selection->thread};
    for (int i = 0; i < 6; i++)
        if (places[i] >= most)
            most = (int)places[i] + 1;
    naming.patterns = prepared(selection->globs, selection->glob_count);
    int status =
        naming.patterns ? read_leaves(&file, most, leaves, keep_named, &naming) : NO_MEMORY;
    free(naming.patterns);
    result[0] = (intptr_t)naming.values.bytes;
    result[1] = (intptr_t)naming.texts.bytes;
    result[2] = (int64_t)naming.rows, result[3] = (int64_t)naming.bytes;
    return status;
}

/* Number distinct texts with a hash table. Equal texts get the same number, unless very many texts
 * have the same hash.
 *
 * texts: Concatenated texts.
 * length: Length of each text in bytes, or -1 for NULL.
 * slots: Hash table, filled with 0. Its size is a power of two, at least 2, and larger than `rows`.
 * number: Output: number of each text, or -1 for NULL.
 * found: Output: offset and length of each distinct text, indexed by number.
 *
 * Return the number of distinct texts. */
EXPORTED int64_t bubbleviz_distinct(const uint8_t *texts, const int64_t *length, int64_t rows,
                                    uint32_t *slots, int64_t slot_count, int64_t *number,
                                    int64_t (*found)[2])
{
    enum { MOST_PROBES = 64 };
    const uint8_t *text = texts;
    uint32_t count = 0;
    int shift = __builtin_clzll((uint64_t)slot_count) + 1;

    for (int64_t row = 0; row < rows; row++) {
        number[row] = -1;
        if (length[row] < 0)
            continue;
        size_t bytes = (size_t)length[row], at = 0;
        uint64_t hash = bytes, word;
        for (; at < bytes; at += sizeof word) {
            word = 0;
            memcpy(&word, text + at, bytes - at < sizeof word ? bytes - at : sizeof word);
            hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
            hash ^= hash >> 32;
        }
        for (uint64_t probe = 0; number[row] < 0; probe++) {
            /* The high bits depend on all bytes of a word. */
            uint32_t *slot = slots + (((hash >> shift) + probe) & (uint64_t)(slot_count - 1));
            if (!*slot || probe == MOST_PROBES) {
                found[count][0] = text - texts, found[count][1] = length[row];
                number[row] = count++;
                *slot = count;
            } else if (found[*slot - 1][1] == length[row] &&
                       !memcmp(texts + found[*slot - 1][0], text, bytes)) {
                number[row] = *slot - 1;
            }
        }
        text += bytes;
    }
    return count;
}

EXPORTED void bubbleviz_named_free(const int64_t result[4])
{
    free((void *)(intptr_t)result[0]);
    free((void *)(intptr_t)result[1]);
}
