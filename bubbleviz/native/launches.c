/* Launches: which call launched what, by process and correlation id.
 *
 * Ids are handed out one by one and calls come almost in their order, so that the place of the
 * next id is near that of the last one.
 */
#include <stddef.h>
#include <stdint.h>

#ifndef EXPORTED
#define EXPORTED __attribute__((visibility("default")))
#endif

enum { NONE = -1, PROCESS_SHIFT = 24 };

/* What was launched: rows of each process in the order of their ids.
 *
 *     process     |    17    |  23  |
 *     rows        | 0  2  3  | 1  4 |
 *     ids of rows | 5  5  9  | 5  6 |      5: two kernels of one call
 */
struct index {
    const int64_t *process; /* ascending */
    const int64_t *begin;   /* of its rows; one more: the end */
    const int64_t *known;   /* how many of its rows have an id; they come first */
    int64_t *near;          /* where its last id was found; changed */
    size_t processes;
    const int32_t *rows;
    const uint32_t *ids; /* by row */
};

struct calls {
    const int64_t *row; /* ascending */
    const int64_t *start;
    const int64_t *thread;
    const uint32_t *id;
    size_t count;
};

/* By what was launched: row and start of its call. Of a call's rows the first alone is kept until
 * the end of a block. */
struct launches {
    int32_t *call; /* -1: unknown so far */
    int64_t *start;
};

/* What a block of calls launched.
 *
 * Each pair is a row of what was launched and the place of its call in the block. What was taken
 * from calls of earlier blocks is told by the first row of each, with the start of that call.
 */
struct found {
    int32_t *place; /* of the first row that each call of the block launched; -1 none */
    int32_t *activity, *of_call;
    size_t pairs, room;
    int32_t *lost;
    int64_t *lost_start;
    size_t losses; /* room for as many as there are calls */
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
static int64_t place_of(const struct index *index, size_t process, uint32_t id)
{
    int64_t begin = index->begin[process], end = begin + index->known[process];
    int64_t place = lower_bound(index, begin, end, index->near[process], id);

    index->near[process] = place;
    return place < end && id_at(index, place) == id ? place : NONE;
}

/* The place of a call in its block, by the number of its row; -1: it came in an earlier one. */
static int64_t call_of(const struct calls *calls, int64_t row)
{
    size_t low = 0, high = calls->count;

    if (row < calls->row[0])
        return NONE;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (calls->row[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    return (int64_t)low;
}

static size_t process_of(const struct index *index, int64_t owner, size_t near)
{
    if (near < index->processes && index->process[near] == owner)
        return near;
    for (near = 0; near < index->processes && index->process[near] != owner;)
        near++;
    return near;
}

/* Give each call what it launched, as long as no other call of the same id has it by right. */
static void settle(const struct index *index, const struct calls *calls,
                   const struct launches *launches, struct found *found)
{
    size_t process = 0;

    for (size_t call = 0; call < calls->count; call++) {
        found->place[call] = NONE;
        process = process_of(index, calls->thread[call] >> PROCESS_SHIFT, process);
        if (process == index->processes)
            continue;
        int64_t place = place_of(index, process, calls->id[call]);
        if (place == NONE)
            continue;
        int32_t first = index->rows[place];
        if (launches->call[first] != NONE) {
            if (calls->start[call] >= launches->start[first])
                continue;
            int64_t loser = call_of(calls, launches->call[first]);
            if (loser != NONE) {
                found->place[loser] = NONE;
            } else {
                found->lost[found->losses] = first;
                found->lost_start[found->losses++] = launches->start[first];
            }
        }
        launches->call[first] = (int32_t)calls->row[call];
        launches->start[first] = calls->start[call];
        found->place[call] = (int32_t)place;
    }
}

/* Link what a block of calls launched. Of several calls with one id the one counts that began
 * first, and of these the one that comes first.
 *
 * Returns -1 where there is no room for the pairs, else 0.
 */
EXPORTED int bubbleviz_launches(const struct index *index, const struct calls *calls,
                                const struct launches *launches, struct found *found)
{
    size_t process = 0;

    found->pairs = found->losses = 0;
    settle(index, calls, launches, found);
    for (size_t call = 0; call < calls->count; call++) {
        int64_t place = found->place[call];
        if (place == NONE)
            continue;
        process = process_of(index, calls->thread[call] >> PROCESS_SHIFT, process);
        int64_t end = index->begin[process] + index->known[process];
        for (; place < end && id_at(index, place) == calls->id[call]; place++) {
            int32_t row = index->rows[place];
            if (found->pairs == found->room)
                return -1;
            launches->call[row] = (int32_t)calls->row[call];
            launches->start[row] = calls->start[call];
            found->activity[found->pairs] = row;
            found->of_call[found->pairs++] = (int32_t)call;
        }
    }
    return 0;
}

/* Bytes of the structures that callers pass: those of another source have others. */
EXPORTED void bubbleviz_launches_layout(uint32_t bytes[4])
{
    bytes[0] = sizeof(struct index);
    bytes[1] = sizeof(struct calls);
    bytes[2] = sizeof(struct launches);
    bytes[3] = sizeof(struct found);
}
