/* Sorting: sorts rows by integer keys or by groups, and numbers distinct rows.
 *
 * numpy's sort compares values. This is a radix sort that starts at the least significant digit:
 * rows are sorted stably by each digit, from the last digit to the first.
 *
 *     21 13 12    by the last digit   21 12 13    by the first   12 13 21
 *
 * Only the lengths that the caller passes are trusted. No state is kept between calls.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef EXPORTED
#define EXPORTED __attribute__((visibility("default")))
#endif

enum { SHORT_OF_MEMORY = -1, DIGIT = 11, BUCKETS = 1 << DIGIT };

struct row {
    uint64_t key;
    int64_t number;
};

/* Return whether rows are sorted by the columns in lexicographic order, first column first. */
EXPORTED int64_t bubbleviz_in_order(const int64_t *const *columns, int64_t count, int64_t rows)
{
    for (int64_t row = 1; row < rows; row++)
        for (int64_t i = 0; i < count; i++) {
            if (columns[i][row] > columns[i][row - 1])
                break;
            if (columns[i][row] < columns[i][row - 1])
                return 0;
        }
    return 1;
}

/* Sort row numbers by key, in ascending order. The sort is stable.
 *
 * order: Permutation of the row numbers, sorted in place. There must be at least one row.
 *
 * Return 0, or SHORT_OF_MEMORY.
 */
EXPORTED int64_t bubbleviz_sort(const uint64_t *key, int64_t rows, int64_t *order)
{
    size_t count = (size_t)rows;
    struct row *from = malloc(count * sizeof *from), *to = malloc(count * sizeof *to);
    uint64_t used = 0;

    if (!from || !to) {
        free(from), free(to);
        return SHORT_OF_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        from[i] = (struct row){key[order[i]], order[i]};
        used |= from[i].key;
    }
    for (int shift = 0; shift < 64; shift += DIGIT) {
        size_t begin[BUCKETS] = {0}, sum = 0;
        struct row *sorted = to;
        /* If this digit is 0 in all keys, no sorting is needed. */
        if (!(used >> shift & (BUCKETS - 1)))
            continue;
        for (size_t i = 0; i < count; i++)
            begin[from[i].key >> shift & (BUCKETS - 1)]++;
        for (size_t bucket = 0; bucket < BUCKETS; bucket++) {
            size_t held = begin[bucket];
            begin[bucket] = sum;
            sum += held;
        }
        for (size_t i = 0; i < count; i++)
            to[begin[from[i].key >> shift & (BUCKETS - 1)]++] = from[i];
        to = from, from = sorted;
    }
    for (size_t i = 0; i < count; i++)
        order[i] = from[i].number;
    free(from), free(to);
    return 0;
}

/* --- groups --------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) void place(const int16_t *group, int64_t rows,
                                                        int64_t *next, const char *from,
                                                        size_t bytes, char *to)
{
    for (int64_t row = 0; row < rows; row++)
        memcpy(to + bytes * (size_t)next[group[row]]++, from + bytes * (size_t)row, bytes);
}

/* Sort the values of a column by group. The sort is stable.
 *
 *     group  1 0 1 0
 *     from   a b c d    to  b d a c
 *
 * next: Scratch memory, one number per group. The first number must be -1 before the first column
 *     of these rows is sorted. Afterwards, the memory contains the ends of the groups, which are
 *     reused for further columns.
 * bytes: Size of a value in bytes: 2, 4 or 8.
 *
 * Return 0.
 */
EXPORTED int64_t bubbleviz_grouped(const int16_t *group, int64_t rows, int64_t *next, int64_t groups,
                                   const void *from, int64_t bytes, void *to)
{
    if (groups > 0 && next[0] < 0) {
        memset(next, 0, (size_t)groups * sizeof *next);
        for (int64_t row = 0; row < rows; row++)
            next[group[row]]++;
        for (int64_t i = 1; i < groups; i++)
            next[i] += next[i - 1];
    }
    for (int64_t i = groups - 1; i >= 0; i--)
        next[i] = i ? next[i - 1] : 0;
    if (bytes == 8)
        place(group, rows, next, from, 8, to);
    else if (bytes == 4)
        place(group, rows, next, from, 4, to);
    else
        place(group, rows, next, from, 2, to);
    return 0;
}

/* --- numbers -------------------------------------------------------------------------------- */

enum { NO_ROOM = -1 };
/* Upper bounds on the number of distinct values in a column and of distinct codes. */
#define MOST_VALUES ((uint64_t)1 << 31)
#define MOST_CODES ((uint64_t)1 << 62)

/* Pack columns into one code per row. The codes sort in the same order as the rows
 * (lexicographically).
 *
 *     columns  5 2   5 4   7 2
 *     code      0     2     3
 *
 * Return the exclusive upper bound of the codes, or NO_ROOM if the codes do not fit.
 */
EXPORTED int64_t bubbleviz_packed(const int64_t *const *columns, int64_t count, int64_t rows,
                                  int64_t *code)
{
    uint64_t base = 1;

    for (int64_t i = 0; i < count; i++) {
        const int64_t *column = columns[i];
        int64_t least = rows ? column[0] : 0, most = least;
        for (int64_t row = 1; row < rows; row++) {
            least = column[row] < least ? column[row] : least;
            most = column[row] > most ? column[row] : most;
        }
        uint64_t size = (uint64_t)most - (uint64_t)least + 1;
        if (size - 1 >= MOST_VALUES || base > MOST_CODES / size)
            return NO_ROOM;
        if (size == 1)
            continue;
        if (base == 1)
            for (int64_t row = 0; row < rows; row++)
                code[row] = column[row] - least;
        else
            for (int64_t row = 0; row < rows; row++)
                code[row] = code[row] * (int64_t)size + (column[row] - least);
        base *= size;
    }
    if (base == 1)
        memset(code, 0, (size_t)rows * sizeof *code);
    return (int64_t)base;
}

/* Number the distinct codes of rows in ascending order. Return the number of distinct codes.
 *
 * base: Exclusive upper bound of the codes.
 * number: Scratch memory, one number per possible code.
 * first: Output: first row of each distinct code.
 * of_row: Output: number of the code of each row.
 */
EXPORTED int64_t bubbleviz_numbered(const int64_t *code, int64_t rows, int64_t base,
                                    int64_t *number, int64_t *first, int64_t *of_row)
{
    int64_t made = 0;

    memset(number, -1, (size_t)base * sizeof *number);
    for (int64_t row = 0; row < rows; row++)
        if (number[code[row]] < 0)
            number[code[row]] = row;
    for (int64_t i = 0; i < base; i++)
        if (number[i] >= 0) {
            first[made] = number[i];
            number[i] = made++;
        }
    for (int64_t row = 0; row < rows; row++)
        of_row[row] = number[code[row]];
    return made;
}
