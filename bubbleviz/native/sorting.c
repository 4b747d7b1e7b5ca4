/* Sorting: rows in the order of integers, which numpy sorts by comparing, and of groups.
 *
 * Digits are sorted from the last to the first, each keeping the order of the one before:
 *
 *     21 13 12    by the last digit   21 12 13    by the first   12 13 21
 *
 * Nothing here is trusted beyond the lengths that the caller gives; no state is kept between calls.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef EXPORTED
#define EXPORTED __attribute__((visibility("default")))
#endif

enum { SHORT_OF_MEMORY = -1, DIGIT = 11, BUCKETS = 1 << DIGIT, DIGITS = (64 + DIGIT - 1) / DIGIT };

struct row {
    uint64_t key;
    int64_t number;
};

/* Whether rows are in order already. */
static int ascending(const uint64_t *key, const int64_t *order, size_t count)
{
    for (size_t i = 1; i < count; i++)
        if (key[order[i]] < key[order[i - 1]])
            return 0;
    return 1;
}

/* Put the numbers of rows in the order of their keys; those with equal keys keep theirs.
 *
 * order holds each number below count once, and is changed. Returns 0, or SHORT_OF_MEMORY.
 */
EXPORTED int64_t bubbleviz_sort(const uint64_t *key, int64_t rows, int64_t *order)
{
    size_t count = (size_t)rows;

    if (ascending(key, order, count))
        return 0;
    struct row *from = malloc(count * sizeof *from), *to = malloc(count * sizeof *to);
    size_t (*begin)[BUCKETS] = calloc(DIGITS, sizeof *begin);

    if (!from || !to || !begin) {
        free(from), free(to), free(begin);
        return SHORT_OF_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t value = key[order[i]];
        from[i] = (struct row){value, order[i]};
        for (int digit = 0; digit < DIGITS; digit++)
            begin[digit][value >> (digit * DIGIT) & (BUCKETS - 1)]++;
    }
    for (int digit = 0; digit < DIGITS; digit++) {
        size_t *place = begin[digit], sum = 0;
        int shift = digit * DIGIT;
        /* All keys have this digit in common. */
        if (place[from[0].key >> shift & (BUCKETS - 1)] == count)
            continue;
        for (size_t bucket = 0; bucket < BUCKETS; bucket++) {
            size_t held = place[bucket];
            place[bucket] = sum;
            sum += held;
        }
        for (size_t i = 0; i < count; i++)
            to[place[from[i].key >> shift & (BUCKETS - 1)]++] = from[i];
        struct row *sorted = to;
        to = from, from = sorted;
    }
    for (size_t i = 0; i < count; i++)
        order[i] = from[i].number;
    free(from), free(to), free(begin);
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

/* Put the values of a column in the order of their groups; those of a group keep theirs.
 *
 *     group  1 0 1 0
 *     from   a b c d    to  b d a c
 *
 * next: room for as many as there are groups, from 0 on. bytes: of a value, 2, 4 or 8. Returns 0.
 */
EXPORTED int64_t bubbleviz_grouped(const int16_t *group, int64_t rows, int64_t *next, int64_t groups,
                                   const void *from, int64_t bytes, void *to)
{
    int64_t sum = 0;

    memset(next, 0, (size_t)groups * sizeof *next);
    for (int64_t row = 0; row < rows; row++)
        next[group[row]]++;
    for (int64_t i = 0; i < groups; i++) {
        int64_t held = next[i];
        next[i] = sum;
        sum += held;
    }
    if (bytes == 8)
        place(group, rows, next, from, 8, to);
    else if (bytes == 4)
        place(group, rows, next, from, 4, to);
    else
        place(group, rows, next, from, 2, to);
    return 0;
}
