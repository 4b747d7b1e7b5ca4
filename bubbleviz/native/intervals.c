/* Sets of intervals. These functions need one pass over the data, where numpy needs many.
 *
 * A set is stored in two columns, starts and ends. The intervals in a set are sorted, disjoint, and
 * do not touch. Only the lengths that the caller passes are trusted. No state is kept between
 * calls.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#ifndef EXPORTED
#define EXPORTED __attribute__((visibility("default")))
#endif

enum { UNSORTED = -1, SHORT_OF_MEMORY = -1, NO_GROUP = -1 };

/* Compute the union of intervals that are sorted by start. Empty intervals are ignored. Return the
 * number of intervals in the union, or UNSORTED.
 *
 *     intervals   |------|   |--|
 *                    |--|
 *     union       |------|   |--|
 *
 * chosen: Mask of the rows to use, or NULL to use all rows.
 */
EXPORTED int64_t bubbleviz_union(const int64_t *start, const int64_t *end, const uint8_t *chosen,
                                 int64_t count, int64_t *out_start, int64_t *out_end)
{
    int64_t before = INT64_MIN, from = 0, to = 0;
    int64_t made = 0;
    int open = 0;

    for (int64_t i = 0; i < count; i++) {
        if ((chosen && !chosen[i]) || end[i] <= start[i])
            continue;
        if (start[i] < before)
            return UNSORTED;
        before = start[i];
        if (open && start[i] <= to) {
            to = end[i] > to ? end[i] : to;
            continue;
        }
        if (open)
            out_start[made] = from, out_end[made++] = to;
        open = 1, from = start[i], to = end[i];
    }
    if (open)
        out_start[made] = from, out_end[made++] = to;
    return made;
}

/* Return the index of the last value that is not greater than `wanted`, or -1 if there is none. The
 * values must be in ascending order.
 *
 * This is an exponential search that starts at `near`, the index that an earlier search returned.
 * The step doubles until it passes the wanted value, so a close value is found quickly.
 */
int64_t last_at(const int64_t *values, int64_t count, int64_t near, int64_t wanted)
{
    int64_t low, high, step = 1;

    if (near >= 0 && values[near] > wanted) {
        for (high = near; (low = high - step) >= 0 && values[low] > wanted; step *= 2)
            high = low;
        low = low < -1 ? -1 : low;
    } else {
        for (low = near; (high = low + step) < count && values[high] <= wanted; step *= 2)
            low = high;
        high = high > count ? count : high;
    }
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (values[middle] <= wanted)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Compute the intervals that set a covers but set b does not. Return the number of intervals. The
 * output must have room for all intervals of both sets.
 *
 *     a           |--------------|   |---|
 *     b              |--|   |----------|
 *     difference  |--|  |---|          |-|
 */
EXPORTED int64_t bubbleviz_difference(const int64_t *a_start, const int64_t *a_end, int64_t a_count,
                                      const int64_t *b_start, const int64_t *b_end, int64_t b_count,
                                      int64_t *out_start, int64_t *out_end)
{
    int64_t made = 0, b = 0;

    for (int64_t a = 0; a < a_count; a++) {
        int64_t from = a_start[a], to = a_end[a];
        if (b < b_count && b_start[b] <= from && to <= b_end[b]) {
            a = last_at(a_end, a_count, a, b_end[b]);
            continue;
        }
        while (b < b_count && b_end[b] <= from)
            b++;
        for (int64_t cut = b; cut < b_count && b_start[cut] < to; cut++) {
            if (b_start[cut] > from)
                out_start[made] = from, out_end[made++] = b_start[cut];
            if (b_end[cut] > from)
                from = b_end[cut];
            /* The last interval of b may also overlap the next interval of a. */
            if (from < to)
                b = cut + 1;
        }
        if (from < to)
            out_start[made] = from, out_end[made++] = to;
    }
    return made;
}

/* Compute the union of the intervals in each group, sorted by group. Return the number of
 * intervals, or UNSORTED if the starts within a group are not in ascending order or a group is out
 * of range.
 *
 * chosen: Mask of the rows to use, or NULL to use all rows.
 * latest, reach, place: Scratch memory, one number per group.
 */
EXPORTED int64_t bubbleviz_group_union(const int32_t *group, const int64_t *start,
                                       const int64_t *end, const uint8_t *chosen, int64_t count,
                                       int64_t groups, int64_t *latest, int64_t *reach,
                                       int64_t *place, int64_t *out_group, int64_t *out_start,
                                       int64_t *out_end)
{
    int64_t made = 0;

    for (int64_t g = 0; g < groups; g++)
        latest[g] = reach[g] = INT64_MIN, place[g] = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t g = group[i];
        if ((chosen && !chosen[i]) || end[i] <= start[i])
            continue;
        if (g < 0 || g >= groups || start[i] < latest[g])
            return UNSORTED;
        place[g] += start[i] > reach[g] || latest[g] == INT64_MIN;
        latest[g] = start[i];
        reach[g] = end[i] > reach[g] ? end[i] : reach[g];
    }
    /* Convert the number of intervals in each group to the index before the first interval. */
    for (int64_t g = 0; g < groups; g++) {
        int64_t of_group = place[g];
        place[g] = made - 1;
        made += of_group;
        reach[g] = latest[g] = INT64_MIN;
    }
    for (int64_t i = 0; i < count; i++) {
        int32_t g = group[i];
        if ((chosen && !chosen[i]) || end[i] <= start[i])
            continue;
        if (start[i] > reach[g] || latest[g] == INT64_MIN) {
            place[g]++;
            out_group[place[g]] = g;
            out_start[place[g]] = latest[g] = start[i];
            out_end[place[g]] = reach[g] = end[i];
        } else if (end[i] > reach[g]) {
            out_end[place[g]] = reach[g] = end[i];
        }
    }
    return made;
}

enum { STRIDE = 64 };

/* Return the total length of a set before a time. `before` contains the total length before every
 * STRIDE-th interval. */
static int64_t measure_before(const int64_t *start, const int64_t *end, int64_t count,
                              const int64_t *before, int64_t *near, int64_t time)
{
    int64_t at = *near = last_at(start, count, *near, time);

    if (at < 0)
        return 0;
    int64_t sum = before[at / STRIDE] + (time < end[at] ? time : end[at]) - start[at];
    for (int64_t i = at / STRIDE * STRIDE; i < at; i++)
        sum += end[i] - start[i];
    return sum;
}

/* Compute how much of each window a set covers. Return 0, or SHORT_OF_MEMORY. */
EXPORTED int64_t bubbleviz_measure_within(const int64_t *start, const int64_t *end, int64_t count,
                                          const int64_t *low, const int64_t *high, int64_t windows,
                                          int64_t *covered)
{
    int64_t *before = malloc(((size_t)count / STRIDE + 1) * sizeof *before), sum = 0, near = -1;

    if (!before)
        return SHORT_OF_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        if (i % STRIDE == 0)
            before[i / STRIDE] = sum;
        sum += end[i] - start[i];
    }
    for (int64_t i = 0; i < windows; i++) {
        int64_t until = measure_before(start, end, count, before, &near, low[i]);
        covered[i] = measure_before(start, end, count, before, &near, high[i]) - until;
    }
    free(before);
    return 0;
}

/* Find the last row before each query's time in its group, or -1 if there is none.
 *
 * wanted, until: Group and time of each query.
 * at: Whether a row with the same time as the query counts.
 *
 * Return 0, or UNSORTED if the rows or the queries are not sorted by (group, time).
 */
EXPORTED int64_t bubbleviz_last_before(const int64_t *group, const int64_t *time, int64_t rows,
                                       const int64_t *wanted, const int64_t *until, int64_t count,
                                       int64_t at, int64_t *found)
{
    int64_t row = 0;

    for (int64_t i = 1; i < rows; i++)
        if (group[i] < group[i - 1] || (group[i] == group[i - 1] && time[i] < time[i - 1]))
            return UNSORTED;
    for (int64_t i = 0; i < count; i++) {
        int64_t g = wanted[i];
        if (i && (g < wanted[i - 1] || (g == wanted[i - 1] && until[i] < until[i - 1])))
            return UNSORTED;
        while (row < rows && (group[row] < g || (group[row] == g && (time[row] < until[i] ||
                                                                     (at && time[row] == until[i])))))
            row++;
        found[i] = row && group[row - 1] == g ? row - 1 : -1;
    }
    return 0;
}

/* Compute how much of each window the intervals of its group cover. Return 0.
 *
 * The intervals in each group must form a set.
 *
 * begin: Index of each group's first interval, followed by the number of intervals.
 */
EXPORTED int64_t bubbleviz_measure_groups(const int64_t *begin, const int64_t *start,
                                          const int64_t *end, const int64_t *group,
                                          const int64_t *low, const int64_t *high, int64_t windows,
                                          int64_t *covered)
{
    for (int64_t i = 0; i < windows; i++) {
        int64_t first = begin[group[i]], last = begin[group[i] + 1];
        int64_t at = first + last_at(end + first, last - first, -1, low[i]) + 1;
        covered[i] = 0;
        for (; at < last && start[at] < high[i]; at++)
            covered[i] += (end[at] < high[i] ? end[at] : high[i]) -
                          (start[at] > low[i] ? start[at] : low[i]);
    }
    return 0;
}

/* Find the minimum of `from` and the maximum of `to` in each group. For a group without rows, the
 * results are 0 and -1.
 *
 * Return 0, or NO_GROUP if a group is out of range. Negative groups count from the end.
 */
EXPORTED int64_t bubbleviz_extents(const int64_t *group, const int64_t *from, const int64_t *to,
                                   int64_t count, int64_t groups, int64_t *low, int64_t *high)
{
    for (int64_t g = 0; g < groups; g++)
        low[g] = INT64_MAX, high[g] = INT64_MIN;
    for (int64_t i = 0; i < count; i++) {
        int64_t g = group[i] < 0 ? group[i] + groups : group[i];
        if (g < 0 || g >= groups)
            return NO_GROUP;
        low[g] = from[i] < low[g] ? from[i] : low[g];
        high[g] = to[i] > high[g] ? to[i] : high[g];
    }
    for (int64_t g = 0; g < groups; g++)
        if (low[g] > high[g])
            low[g] = 0, high[g] = -1;
    return 0;
}
