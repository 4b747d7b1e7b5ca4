/* Sets of intervals: what numpy needs many passes for, in one.
 *
 * A set is two columns, starts and ends, ascending, disjoint and not touching. Nothing here is
 * trusted beyond the lengths that the caller gives; no state is kept between calls.
 */
#include <stddef.h>
#include <stdint.h>

#ifndef EXPORTED
#define EXPORTED __attribute__((visibility("default")))
#endif

enum { UNSORTED = -1 };

/* The union of intervals in order of their starts; returns how many it has, or UNSORTED.
 *
 *     intervals   |------|   |--|
 *                    |--|
 *     union       |------|   |--|
 *
 * chosen says of which rows; NULL: all.
 */
EXPORTED int64_t bubbleviz_union(const int64_t *start, const int64_t *end, const uint8_t *chosen,
                                 size_t count, int64_t *out_start, int64_t *out_end)
{
    int64_t before = INT64_MIN, from = 0, to = 0;
    size_t made = 0;
    int open = 0;

    for (size_t i = 0; i < count; i++) {
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
    return (int64_t)made;
}

/* What a set covers and another does not; there is room for as many as both have together.
 *
 *     a           |--------------|   |---|
 *     b              |--|   |----------|
 *     difference  |--|  |---|          |-|
 */
EXPORTED int64_t bubbleviz_difference(const int64_t *a_start, const int64_t *a_end, size_t a_count,
                                      const int64_t *b_start, const int64_t *b_end, size_t b_count,
                                      int64_t *out_start, int64_t *out_end)
{
    size_t made = 0, b = 0;

    for (size_t a = 0; a < a_count; a++) {
        int64_t from = a_start[a], to = a_end[a];
        while (b < b_count && b_end[b] <= from)
            b++;
        for (size_t cut = b; cut < b_count && b_start[cut] < to; cut++) {
            if (b_start[cut] > from)
                out_start[made] = from, out_end[made++] = b_start[cut];
            if (b_end[cut] > from)
                from = b_end[cut];
            /* The last one may cut the next interval too. */
            if (from < to)
                b = cut + 1;
        }
        if (from < to)
            out_start[made] = from, out_end[made++] = to;
    }
    return (int64_t)made;
}

/* The place of the last of ascending values at or below one, from where another was; -1 none.
 * Steps double, so that what lies near is found at once.
 */
static inline int64_t last_at(const int64_t *values, int64_t count, int64_t near, int64_t wanted)
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

/* Of intervals that overlap in no point: the one around each query, where it lies deeper than the
 * one that was found before.
 *
 * Args: starts, ends (inclusive), depths and rows of the intervals, ascending; starts and ends of
 * the queries; the deepest so far of each, and its row, which are changed.
 */
EXPORTED void bubbleviz_deeper(const int64_t *start, const int64_t *end, const int64_t *depth,
                               const int64_t *row, size_t count, const int64_t *query_start,
                               const int64_t *query_end, size_t queries, int64_t *deepest,
                               int64_t *found)
{
    int64_t at = -1;

    for (size_t query = 0; query < queries; query++) {
        at = last_at(start, (int64_t)count, at, query_start[query]);
        if (at >= 0 && query_end[query] <= end[at] && depth[at] > deepest[query])
            deepest[query] = depth[at], found[query] = row[at];
    }
}

/* The union of the intervals of each group, in the order of groups; returns how many there are, or
 * UNSORTED where the starts of a group do not ascend, or a group has a number that it cannot have.
 *
 * chosen says of which rows; NULL: all. latest, reach and place have room for a number of each group.
 */
EXPORTED int64_t bubbleviz_group_union(const int32_t *group, const int64_t *start,
                                       const int64_t *end, const uint8_t *chosen, size_t count,
                                       size_t groups,
                                       int64_t *latest, int64_t *reach, int64_t *place,
                                       int64_t *out_group, int64_t *out_start, int64_t *out_end)
{
    int64_t made = 0;

    for (size_t g = 0; g < groups; g++)
        latest[g] = reach[g] = INT64_MIN, place[g] = 0;
    for (size_t i = 0; i < count; i++) {
        size_t g = (size_t)group[i];
        if ((chosen && !chosen[i]) || end[i] <= start[i])
            continue;
        if (g >= groups || start[i] < latest[g])
            return UNSORTED;
        place[g] += start[i] > reach[g] || latest[g] == INT64_MIN;
        latest[g] = start[i];
        reach[g] = end[i] > reach[g] ? end[i] : reach[g];
    }
    /* From how many there are to where the last one before each group's first lies. */
    for (size_t g = 0; g < groups; g++) {
        int64_t of_group = place[g];
        place[g] = made - 1;
        made += of_group;
        reach[g] = latest[g] = INT64_MIN;
    }
    for (size_t i = 0; i < count; i++) {
        size_t g = (size_t)group[i];
        if ((chosen && !chosen[i]) || end[i] <= start[i])
            continue;
        if (start[i] > reach[g] || latest[g] == INT64_MIN) {
            place[g]++;
            out_group[place[g]] = (int64_t)g;
            out_start[place[g]] = latest[g] = start[i];
            out_end[place[g]] = reach[g] = end[i];
        } else if (end[i] > reach[g]) {
            out_end[place[g]] = reach[g] = end[i];
        }
    }
    return made;
}

/* The places of values among ascending ones; returns how many were found before one that is not
 * among them. */
EXPORTED int64_t bubbleviz_places(const int64_t *known, size_t count, const int64_t *values,
                                  size_t wanted, int64_t *place)
{
    size_t low = 0;

    for (size_t i = 0; i < wanted; i++) {
        if (low >= count || known[low] != values[i]) {
            size_t high = count;
            low = 0;
            while (high - low > 1) {
                size_t middle = low + (high - low) / 2;
                if (known[middle] <= values[i])
                    low = middle;
                else
                    high = middle;
            }
            if (low >= count || known[low] != values[i])
                return (int64_t)i;
        }
        place[i] = (int64_t)low;
    }
    return (int64_t)wanted;
}
