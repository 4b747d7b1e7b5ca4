/* Spans: computes when operations ran on their device, based on their kernels and copies. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef EXPORTED
#define EXPORTED __attribute__((visibility("default")))
#endif

/* Kinds of work, ordered by how well they indicate when an operation ran. An operation's span is
 * determined by the best kind of work that it contains. */
enum { OWN, OTHER, COPIES, NOTHING };

enum { RUNNING, COMMUNICATING, COMPUTING, UNATTRIBUTED, SETS, KINDS = 5, UNSORTED = -1 };

struct work {
    const int32_t *owner; /* operation to which each row belongs, or -1 if there is none */
    const int32_t *range; /* range of each row, or -1 if there is none */
    const int32_t *rank;  /* rank of each row, or NULL if all rows belong to the first rank */
    const uint8_t *compute;
    const uint8_t *communication; /* rows that are neither compute nor communication are copies */
    const int64_t *start;
    const int64_t *end;
    int64_t count;
    const int64_t *order; /* row numbers sorted by start, or NULL if the rows are already sorted */
};

struct operations {
    const uint8_t *communicates;
    const int32_t *group; /* group of each operation, or -1 if there is none */
    int64_t count;
};

/* Results for each operation. In `length` and `reach`, the groups follow the operations. */
struct spans {
    int64_t *start; /* start of the span, or 0 if the operation has no span */
    int64_t *end;   /* end of the span, or -1 if the operation has no span */
    int64_t *kernels;
    int32_t *first; /* row that starts the span, or -1 if the operation has no span */
    uint8_t *best;
    int64_t *length; /* total length of the union of compute kernels */
    int64_t *reach;  /* scratch memory: latest end of a compute kernel so far */
    int64_t lengths;
};

struct whole {
    int64_t ranks;
    uint8_t *loose; /* mask of the compute kernels outside of compute operations */
    int64_t *spent; /* total duration of each kind of work, shape (ranks, KINDS) */
    int64_t *made;  /* number of intervals in each of the following sets */
    struct {
        int64_t *start, *end;
    } set[SETS];
};

/* Add an interval to a set. Intervals must be added in order of their starts. */
static inline void cover(const struct whole *whole, int set, int64_t start, int64_t end)
{
    int64_t *starts = whole->set[set].start, *ends = whole->set[set].end;
    int64_t last = whole->made[set] - 1;

    if (last >= 0 && start <= ends[last])
        ends[last] = end > ends[last] ? end : ends[last];
    else
        starts[last + 1] = start, ends[last + 1] = end, whole->made[set]++;
}

/* Add an interval to the length of a union. Intervals must be added in order of their starts. */
static inline void lengthen(const struct spans *spans, int64_t place, int64_t start, int64_t end)
{
    int64_t reach = spans->reach[place];

    if (end > reach) {
        spans->length[place] += end - (start > reach ? start : reach);
        spans->reach[place] = end;
    }
}

/* Determine the span of each operation, its number of compute kernels, and its first row.
 *
 *     compute            |--|  |----|
 *     copies       |---|
 *     span               |----------|
 *
 * Also determine how long the compute kernels in operations and groups ran, and when and how long
 * each kind of work ran.
 *
 * operations->communicates: Mask of the communication operations. Their spans are determined by
 *     their communication kernels, if there are any.
 *
 * Return the number of rows whose owner or rank does not exist, or UNSORTED.
 */
EXPORTED int64_t bubbleviz_spans(const struct work *work, const struct operations *operations,
                                 const struct spans *spans, const struct whole *whole)
{
    int64_t strays = 0, before = INT64_MIN;

    for (int64_t operation = 0; operation < operations->count; operation++) {
        spans->best[operation] = NOTHING;
        spans->start[operation] = 0, spans->end[operation] = -1;
        spans->kernels[operation] = 0, spans->first[operation] = -1;
    }
    for (int64_t place = 0; place < spans->lengths; place++)
        spans->length[place] = 0, spans->reach[place] = INT64_MIN;
    memset(whole->spent, 0, (size_t)(whole->ranks * KINDS) * sizeof *whole->spent);
    memset(whole->made, 0, SETS * sizeof *whole->made);
    for (int64_t i = 0; i < work->count; i++) {
        int64_t row = work->order ? work->order[i] : i;
        int64_t start = work->start[row], end = work->end[row];
        int32_t owner = work->owner[row], rank = work->rank ? work->rank[row] : 0;
        int compute = work->compute[row], communication = work->communication[row];
        if (start < before)
            return UNSORTED;
        before = start;
        if (owner < -1 || owner >= operations->count || rank < 0 || rank >= whole->ranks) {
            strays++;
            continue;
        }
        int loose = compute && (owner == -1 || operations->communicates[owner]);
        int kind = compute ? 3 + loose : communication ? 1 + (work->range[row] == -1) : 0;
        whole->loose[row] = (uint8_t)loose;
        whole->spent[rank * KINDS + kind] += end - start;
        if (end > start) {
            cover(whole, RUNNING, start, end);
            if (communication)
                cover(whole, COMMUNICATING, start, end);
            if (compute)
                cover(whole, COMPUTING, start, end);
            if (loose)
                cover(whole, UNATTRIBUTED, start, end);
        }
        if (owner == -1)
            continue;
        spans->kernels[owner] += compute;
        if (compute && end > start) {
            lengthen(spans, owner, start, end);
            if (operations->group[owner] >= 0)
                lengthen(spans, operations->count + operations->group[owner], start, end);
        }
        int own = operations->communicates[owner] ? communication : compute;
        int other = operations->communicates[owner] ? OTHER : NOTHING;
        uint8_t worth = (uint8_t)(own ? OWN : compute || communication ? other : COPIES);
        if (worth > spans->best[owner] || worth == NOTHING)
            continue;
        if (worth < spans->best[owner] || start < spans->start[owner])
            spans->start[owner] = start, spans->first[owner] = (int32_t)row;
        if (worth < spans->best[owner] || end > spans->end[owner])
            spans->end[owner] = end;
        spans->best[owner] = worth;
    }
    return strays;
}
