/* Sorting: rows in the order of integers, which numpy sorts by comparing, and of groups; numbers of
 * rows that agree.
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

enum { SHORT_OF_MEMORY = -1, DIGIT = 11, BUCKETS = 1 << DIGIT };

struct row {
    uint64_t key;
    int64_t number;
};

/* Whether rows are in the order of some columns, the first one first. */
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

/* Put the numbers of rows in the order of their keys; those with equal keys keep theirs.
 *
 * There is at least one row. order holds each number below count once, and is changed. Returns 0, or
 * SHORT_OF_MEMORY.
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
        /* No key has such a digit. */
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

/* Put the values of a column in the order of their groups; those of a group keep theirs.
 *
 *     group  1 0 1 0
 *     from   a b c d    to  b d a c
 *
 * next: room for as many as there are groups, from 0 on; -1 first of all, or where the last column
 * of the same rows left it: at the ends of groups. bytes: of a value, 2, 4 or 8. Returns 0.
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
/* A digit has fewer values than the first, a code than the second. */
#define MOST_VALUES ((uint64_t)1 << 31)
#define MOST_CODES ((uint64_t)1 << 62)

/* Pack columns into one code a row, digit by digit, so that codes are in the order of rows.
 *
 *     columns  5 2   5 4   7 2
 *     code      0     2     3
 *
 * Returns what all codes lie below, or NO_ROOM.
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

/* Number the distinct codes of rows, in their order; returns how many there are.
 *
 * number: room for a number of each possible code. first: the first row of each distinct one.
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

/* --- levels --------------------------------------------------------------------------------- */

/* Rows in lists, one behind the other, and where that of each group begins. */
struct lists {
    const int64_t *rows;
    const int64_t *begin; /* one more: the end */
};

/* Put the values of rows in lists, group by group; those of a group keep their order.
 *
 * begin: where the list of each group begins, and the end of the last one; zeros first of all.
 */
EXPORTED int64_t bubbleviz_listed(const int64_t *group, const int64_t *value, int64_t rows,
                                  int64_t groups, int64_t *begin, int64_t *listed)
{
    for (int64_t row = 0; row < rows; row++)
        begin[group[row]]++;
    for (int64_t i = 1; i <= groups; i++)
        begin[i] += begin[i - 1];
    for (int64_t row = rows - 1; row >= 0; row--)
        listed[--begin[group[row]]] = value[row];
    return 0;
}

/* Number the levels in which rows start and end: each starts in the level behind the last one that
 * a row it follows ends in, and ends in that in which the last row of its meeting starts.
 *
 *     row      0   1   2   3     1 and 2 follow 0, and 3 follows 1; 2 and 3 meet
 *     starts   0   1   1   2
 *     ends     0   1   2   2
 *
 * missing: by meeting, how many of its rows have not started; waiting: by row, how many rows that
 * it follows have not ended; both are used up. queue has room for all rows.
 */
EXPORTED int64_t bubbleviz_levels(int64_t rows, const int64_t *meeting, int64_t *missing,
                                  int64_t *waiting, const struct lists *members,
                                  const struct lists *followers, int64_t *queue, int64_t *starts,
                                  int64_t *ends)
{
    int64_t done = 0, ready = 0;

    for (int64_t row = 0; row < rows; row++)
        if (!waiting[row])
            queue[ready++] = row;
    for (int64_t level = 0; done < ready; level++) {
        for (int64_t end = ready; done < end; done++) {
            int64_t of = meeting[queue[done]];
            starts[queue[done]] = level;
            if (--missing[of])
                continue;
            for (int64_t i = members->begin[of]; i < members->begin[of + 1]; i++) {
                int64_t row = members->rows[i];
                ends[row] = level;
                for (int64_t j = followers->begin[row]; j < followers->begin[row + 1]; j++)
                    if (!--waiting[followers->rows[j]])
                        queue[ready++] = followers->rows[j];
            }
        }
    }
    return 0;
}

/* How long rows take, and how long after all that they follow each starts; of each row there is a
 * number for each scenario, of delays maybe one for all. */
struct times {
    int64_t scenarios;
    const int64_t *own;
    int64_t delays;
    const int64_t *delay;
};

static void latest(int64_t *into, const int64_t *other, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        into[i] = into[i] < other[i] ? other[i] : into[i];
}

/* Set when rows end that stand level by level: each starts once all that it follows have ended, and
 * ends its own time after the last row of its meeting has started.
 *
 * level: by level, the first row and the first meeting that it completes; ends: when each row
 * starts at the earliest, and behind the last row when those end that nothing comes before. */
EXPORTED int64_t bubbleviz_replayed(int64_t levels, const int64_t (*level)[2],
                                    const struct lists *followed, const struct lists *members,
                                    const struct times *times, int64_t *ends)
{
    const int64_t count = times->scenarios;

    for (; levels; levels--, level++) {
        for (int64_t row = level[0][0]; row < level[1][0]; row++) {
            const int64_t *delay = times->delay + row * times->delays;
            int64_t *here = ends + row * count;
            for (int64_t i = followed->begin[row]; i < followed->begin[row + 1]; i++)
                latest(here, ends + followed->rows[i] * count, count);
            for (int64_t i = 0; i < count; i++)
                here[i] += delay[times->delays > 1 ? i : 0];
        }
        for (int64_t meeting = level[0][1]; meeting < level[1][1]; meeting++) {
            const int64_t begin = members->begin[meeting], end = members->begin[meeting + 1];
            int64_t *last = ends + members->rows[begin] * count;
            for (int64_t i = begin + 1; i < end; i++)
                latest(last, ends + members->rows[i] * count, count);
            /* The first comes last: until then it holds when they start. */
            for (int64_t i = end - 1; i >= begin; i--)
                for (int64_t k = 0, at = members->rows[i] * count; k < count; k++)
                    ends[at + k] = last[k] + times->own[at + k];
        }
    }
    return 0;
}
