/* Links: finds the call that launched each kernel or copy, and the range around the call.
 *
 * A call and its kernels have the same process and correlation id. Correlation ids are sorted, and
 * calls are almost sorted by id. Therefore, each search starts at the result of the previous
 * search. The search for ranges works in the same way. Only the lengths that the caller passes are
 * trusted. State is kept between calls only in the caller's columns.
 */
#include <stddef.h>
#include <stdint.h>

#ifndef EXPORTED
#define EXPORTED __attribute__((visibility("default")))
#endif

enum { NONE = -1 };

/* --- ranges --------------------------------------------------------------------------------- */

/* Ranges, stored in layers. Ranges in the same layer do not overlap, and later layers are nested
 * deeper.
 *
 *     layer 0    |-0----------|  |-3-----|
 *     layer 1      |-1--|   |-2-----|
 */
struct ranges {
    const int64_t *begin; /* index of each layer's first range, followed by the number of ranges */
    int64_t *near;        /* index of the last range found in each layer, initially -1 (modified) */
    const int64_t *start;
    const int64_t *end; /* inclusive end of each range */
    const int64_t *depth;
    const int64_t *row;
};

int64_t last_at(const int64_t *values, int64_t count, int64_t near, int64_t wanted);

/* Return the row of the innermost range around an interval, or -1 if there is none. Only the layers
 * from `layer` to `end_layer` (exclusive) are searched. */
static inline int64_t innermost(const struct ranges *ranges, int64_t layer, int64_t end_layer,
                                int64_t start, int64_t end)
{
    int64_t deepest = NONE, found = NONE;

    for (; layer < end_layer; layer++) {
        int64_t begin = ranges->begin[layer];
        int64_t at = last_at(ranges->start + begin, ranges->begin[layer + 1] - begin,
                             ranges->near[layer], start);
        ranges->near[layer] = at;
        if (at == NONE || end > ranges->end[begin + at] || ranges->depth[begin + at] <= deepest)
            continue;
        deepest = ranges->depth[begin + at], found = ranges->row[begin + at];
    }
    return found;
}

/* Find the row of the innermost range around each query interval, or -1 if there is none. */
EXPORTED int64_t bubbleviz_innermost(const struct ranges *ranges, int64_t layers,
                                     const int64_t *start, const int64_t *end, int64_t queries,
                                     int64_t *row)
{
    for (int64_t query = 0; query < queries; query++)
        row[query] = innermost(ranges, 0, layers, start[query], end[query]);
    return 0;
}

/* --- numbers -------------------------------------------------------------------------------- */

/* Known values in ascending order, and the number of each value. */
struct numbers {
    const int64_t *known;
    const int32_t *number;
    int64_t count;
};

enum { LATELY = 256 };

/* Return the number of a value, or -1 if the value is unknown. There are few distinct values, so a
 * small cache contains the index of the value that was last found in each slot. */
static inline int32_t number_of(const struct numbers *numbers, int64_t lately[LATELY],
                                int64_t value)
{
    /* Threads differ in their lowest 24 bits, and processes differ in the bits above. */
    int64_t *near = lately + ((value ^ value >> 24) & (LATELY - 1));

    if (*near >= numbers->count || numbers->known[*near] != value) {
        int64_t at = last_at(numbers->known, numbers->count, NONE, value);
        if (at == NONE || numbers->known[at] != value)
            return NONE;
        *near = at;
    }
    return numbers->number[*near];
}

/* Look up the number of each value. Return whether all values are known. */
EXPORTED int64_t bubbleviz_numbers(const struct numbers *numbers, const int64_t *values,
                                   int64_t count, int32_t *number)
{
    int64_t lately[LATELY] = {0};

    for (int64_t i = 0; i < count; i++)
        if ((number[i] = number_of(numbers, lately, values[i])) == NONE)
            return 0;
    return 1;
}

/* --- launches ------------------------------------------------------------------------------- */

/* Kernels and copies: each process's rows, sorted by correlation id.
 *
 *     process     |    17    |  23  |
 *     rows        | 0  2  3  | 1  4 |
 *     ids of rows | 5  5  9  | 5  6 |      5: two kernels of one call
 */
struct index {
    const int64_t *begin; /* index of each process's first row, followed by the number of rows */
    const int64_t *known; /* number of each process's rows that have an id; these rows come first */
    int64_t *near;        /* index of the last id found in each process (modified) */
    const int32_t *rows;
    const uint32_t *ids; /* correlation ids, indexed by row */
};

struct calls {
    const int64_t *row; /* row numbers, ascending and larger than in earlier blocks */
    const int64_t *start;
    const int64_t *end;
    const int32_t *thread; /* thread number */
    const uint32_t *id;
    int64_t count;
};

/* Threads, indexed by thread number. */
struct threads {
    const int64_t *process; /* index of the process in struct index, or -1 if it has no kernels */
    const uint8_t *helper; /* nonzero if the thread never runs a backward pass */
    const int64_t *others; /* index of the thread's first entry in `listed`, then the total */
    const int64_t *listed; /* numbers of the groups with other threads' backward ranges */
    const int64_t *groups; /* three layer numbers per group of ranges. The first groups contain
                              the ranges around each thread's calls. The first number is the first
                              layer. The second number is the first layer that is used only if no
                              range in an earlier layer matches. The third number is the end */
};

/* The call of each kernel or copy, and how the kernel or copy is linked. While a block is being
 * processed, the call is stored only for the first row that the call launched. */
struct links {
    int32_t *call; /* row of the call, or -1 if still unknown */
    int64_t *start;
    int16_t *thread;
    int32_t *range;
    int8_t *rule;
};

/* The values of bubbleviz.interpret.linking.LinkRule. */
enum { OUTSIDE = 1, OWN_THREAD, CROSS_THREAD, AMBIGUOUS, HELPER_THREAD };

/* Results for a block of calls. `lost_start` and `lost_thread` are the start and thread of the
 * calls in earlier blocks whose kernels were reassigned to a call in this block. */
struct found {
    int32_t *place; /* index of the first row that each call launched, or -1 if there is none */
    int64_t *lost_start;
    int32_t *lost_thread; /* has room for one entry per call in the block, like lost_start */
};

static inline uint32_t id_at(const struct index *index, int64_t place)
{
    return index->ids[index->rows[place]];
}

/* Return the first index in the half-open range from `low` to `high` whose id is not less than
 * `wanted` (lower bound). This is an exponential search that starts at `near`. */
static int64_t lower_bound(const struct index *index, int64_t low, int64_t high, int64_t near,
                           uint32_t wanted)
{
    int64_t step = 1, end = high;

    if (near < end && id_at(index, near) < wanted) {
        for (low = near + 1; near + step < end && id_at(index, near + step) < wanted; step *= 2)
            low = near + step + 1;
        high = near + step < end ? near + step : end;
    } else {
        for (high = near; near - step >= low && id_at(index, near - step) >= wanted; step *= 2)
            high = near - step;
        low = near - step >= low ? near - step + 1 : low;
    }
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (id_at(index, middle) < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Return the index of the first row with the process and id of a call, or -1 if there is none. */
static int64_t place_of(const struct index *index, int64_t process, uint32_t id)
{
    int64_t begin = index->begin[process], end = begin + index->known[process];
    int64_t place = lower_bound(index, begin, end, index->near[process], id);

    index->near[process] = place;
    return place < end && id_at(index, place) == id ? place : NONE;
}

/* Return the index of the call with this row in the block, or -1 if the call was in an earlier
 * block. */
static int64_t call_of(const struct calls *calls, int64_t row)
{
    int64_t low = 0, high = calls->count;

    if (row < calls->row[0])
        return NONE;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (calls->row[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Determine which kernels and copies each call launched. If several calls have the same id, the
 * call that started first wins. Return the number of calls in earlier blocks that lost kernels. */
static int64_t settle(const struct index *index, const struct calls *calls,
                      const struct threads *threads, const struct links *links,
                      const struct found *found)
{
    int64_t losses = 0;

    for (int64_t call = 0; call < calls->count; call++) {
        int64_t process = threads->process[calls->thread[call]];
        int64_t place = process == NONE ? NONE : place_of(index, process, calls->id[call]);
        found->place[call] = NONE;
        if (place == NONE)
            continue;
        int32_t first = index->rows[place];
        if (links->call[first] != NONE) {
            if (calls->start[call] >= links->start[first])
                continue;
            int64_t loser = call_of(calls, links->call[first]);
            if (loser != NONE) {
                found->place[loser] = NONE;
            } else {
                found->lost_start[losses] = links->start[first];
                found->lost_thread[losses++] = links->thread[first];
            }
        }
        links->call[first] = (int32_t)calls->row[call];
        links->start[first] = calls->start[call];
        found->place[call] = (int32_t)place;
    }
    return losses;
}

static inline int64_t around(const struct ranges *ranges, const int64_t *group, int64_t start,
                             int64_t end)
{
    int64_t row = innermost(ranges, group[0], group[1], start, end);

    return row == NONE ? innermost(ranges, group[1], group[2], start, end) : row;
}

/* Return the row of the range to which a call belongs, or -1, and set the rule that applied. The
 * range is the innermost range around the call on its own thread. If there is none, the range is
 * the backward range that is open on another thread, provided that only one other thread has an
 * open backward range. */
static int64_t range_of(const struct ranges *ranges, const struct threads *threads,
                        const struct calls *calls, int64_t call, int8_t *rule)
{
    int32_t thread = calls->thread[call];
    int64_t start = calls->start[call], open = 0, found = NONE;
    int64_t own = around(ranges, threads->groups + 3 * thread, start, calls->end[call]);

    *rule = own == NONE ? OUTSIDE : OWN_THREAD;
    if (own != NONE)
        return own;
    for (int64_t i = threads->others[thread]; i < threads->others[thread + 1]; i++) {
        int64_t row = around(ranges, threads->groups + 3 * threads->listed[i], start, start);
        if (row != NONE)
            found = row, open++;
    }
    if (!open)
        return NONE;
    *rule = threads->helper[thread] ? HELPER_THREAD : open > 1 ? AMBIGUOUS : CROSS_THREAD;
    return *rule == CROSS_THREAD ? found : NONE;
}

/* Link kernels and copies to the calls in a block that launched them, and to ranges. If several
 * calls have the same id, the call that started first wins. Ties are broken in favor of the smaller
 * row.
 *
 * Return the number of calls in earlier blocks whose kernels were reassigned to a call in this
 * block.
 */
EXPORTED int64_t bubbleviz_link(const struct index *index, const struct calls *calls,
                                const struct threads *threads, const struct ranges *ranges,
                                const struct links *links, const struct found *found)
{
    int64_t losses = settle(index, calls, threads, links, found);

    for (int64_t call = 0; call < calls->count; call++) {
        int64_t place = found->place[call];
        int8_t rule;
        if (place == NONE)
            continue;
        int64_t process = threads->process[calls->thread[call]];
        int64_t range = range_of(ranges, threads, calls, call, &rule);
        int64_t end = index->begin[process] + index->known[process];
        for (; place < end && id_at(index, place) == calls->id[call]; place++) {
            int32_t row = index->rows[place];
            links->call[row] = (int32_t)calls->row[call];
            links->start[row] = calls->start[call];
            links->thread[row] = (int16_t)calls->thread[call];
            links->range[row] = (int32_t)range;
            links->rule[row] = rule;
        }
    }
    return losses;
}
