/* Links: which call launched what, by process and correlation id, and which range is around it.
 *
 * Ids are handed out one by one and calls come almost in their order, so that the place of the
 * next id is near that of the last one, as that of the next range is. Nothing here is trusted
 * beyond the lengths that the caller gives; no state is kept between calls but in its columns.
 */
#include <stddef.h>
#include <stdint.h>

#ifndef EXPORTED
#define EXPORTED __attribute__((visibility("default")))
#endif

enum { NONE = -1 };

/* --- ranges --------------------------------------------------------------------------------- */

/* Ranges in layers, in each of which no two share a point; the later ones are deeper inside:
 *
 *     layer 0    |-0----------|  |-3-----|
 *     layer 1      |-1--|   |-2-----|
 */
struct ranges {
    const int64_t *begin; /* by layer: of its ranges; one more: the end */
    int64_t *near;        /* by layer: where the last one was found, -1 at first; changed */
    const int64_t *start;
    const int64_t *end; /* inclusive */
    const int64_t *depth;
    const int64_t *row;
};

int64_t last_at(const int64_t *values, int64_t count, int64_t near, int64_t wanted);

/* The row of the innermost range of some layers around a time; -1 none. */
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

/* The row of the innermost range around each query; -1 none. */
EXPORTED int64_t bubbleviz_innermost(const struct ranges *ranges, int64_t layers,
                                     const int64_t *start, const int64_t *end, int64_t queries,
                                     int64_t *row)
{
    for (int64_t query = 0; query < queries; query++)
        row[query] = innermost(ranges, 0, layers, start[query], end[query]);
    return 0;
}

/* --- numbers -------------------------------------------------------------------------------- */

/* Known values, which ascend, and the number of each. */
struct numbers {
    const int64_t *known;
    const int32_t *number;
    int64_t count;
};

enum { LATELY = 256 };

/* The number of a value; -1: unknown. Few values come again and again, so that what was found last
 * for one with the same lowest bits is looked at first. */
static inline int32_t number_of(const struct numbers *numbers, int64_t lately[LATELY],
                                int64_t value)
{
    /* Threads differ in their lowest bits, and processes in those above 24. */
    int64_t *near = lately + ((value ^ value >> 24) & (LATELY - 1));

    if (*near >= numbers->count || numbers->known[*near] != value) {
        int64_t at = last_at(numbers->known, numbers->count, NONE, value);
        if (at == NONE || numbers->known[at] != value)
            return NONE;
        *near = at;
    }
    return numbers->number[*near];
}

/* Number some values; returns whether all are known. */
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

/* What was launched: rows of each process in the order of their ids.
 *
 *     process     |    17    |  23  |
 *     rows        | 0  2  3  | 1  4 |
 *     ids of rows | 5  5  9  | 5  6 |      5: two kernels of one call
 */
struct index {
    const int64_t *begin; /* of the rows of each process; one more: the end */
    const int64_t *known; /* how many of its rows have an id; they come first */
    int64_t *near;        /* where its last id was found; changed */
    const int32_t *rows;
    const uint32_t *ids; /* by row */
};

struct calls {
    const int64_t *row; /* ascending, and behind those of earlier blocks */
    const int64_t *start;
    const int64_t *end;
    const int32_t *thread; /* its number */
    const uint32_t *id;
    int64_t count;
};

/* What is known of threads, by their numbers. */
struct threads {
    const int64_t *process; /* its place in the index; -1: it launched nothing */
    const uint8_t *helper; /* not 0: it never runs backward */
    const int64_t *others; /* where its own groups begin in the list that follows; one more: end */
    const int64_t *listed; /* groups of backward of other threads */
    const int64_t *groups; /* of ranges, those around each thread's own calls first: first layer,
                              first of those that count where no other does, end */
};

/* By what was launched: its call, and how it is linked. Of a call's rows the first alone has a call
 * until the end of a block. */
struct links {
    int32_t *call; /* -1: unknown so far */
    int64_t *start;
    int16_t *thread;
    int32_t *range;
    int8_t *rule;
};

/* As bubbleviz.interpret.linking.LinkRule has them. */
enum { OUTSIDE = 1, OWN_THREAD, CROSS_THREAD, AMBIGUOUS, HELPER_THREAD };

/* What a block of calls launched, and what it took from calls of earlier blocks: start and thread
 * of each of these. */
struct found {
    int32_t *place; /* of the first row that each call of the block launched; -1 none */
    int64_t *lost_start;
    int32_t *lost_thread; /* room for as many as there are calls */
};

static inline uint32_t id_at(const struct index *index, int64_t place)
{
    return index->ids[index->rows[place]];
}

/* The first place from low on whose id is not below one; steps double from where the last was. */
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

/* The first row that a call launched; -1 none. */
static int64_t place_of(const struct index *index, int64_t process, uint32_t id)
{
    int64_t begin = index->begin[process], end = begin + index->known[process];
    int64_t place = lower_bound(index, begin, end, index->near[process], id);

    index->near[process] = place;
    return place < end && id_at(index, place) == id ? place : NONE;
}

/* The place of a call in its block, by the number of its row; -1: it came in an earlier one. */
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

/* Give each call what it launched, as long as no other call of the same id has it by right; returns
 * how many calls of earlier blocks lost theirs. */
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

/* The range of a call: around it on its own thread, or the only backward open on another one. */
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

/* Link what a block of calls launched to them, and to ranges. Of several calls with one id the one
 * counts that began first, and of these the one that comes first.
 *
 * Returns how many calls of earlier blocks lost what they had launched.
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
