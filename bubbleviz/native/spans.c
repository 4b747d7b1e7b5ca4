/* Spans: from when to when operations kept their device busy, by the work they own. */
#include <stddef.h>
#include <stdint.h>

#ifndef EXPORTED
#define EXPORTED __attribute__((visibility("default")))
#endif

/* How well some work tells when an operation ran; the best that an operation has decides. */
enum { OWN, OTHER, COPIES, NOTHING };

struct work {
    const int32_t *owner; /* -1: none */
    const uint8_t *compute;
    const uint8_t *communication; /* neither: a copy */
    const int64_t *start;
    const int64_t *end;
    int64_t count;
};

struct spans {
    int64_t *start; /* 0 without work */
    int64_t *end;   /* -1 without work */
    int64_t *kernels;
    int32_t *first; /* -1 without work */
    uint8_t *best;
    int64_t count;
};

static inline uint8_t worth_of(const struct work *work, int64_t row, int communicates)
{
    if (communicates)
        return work->communication[row] ? OWN : work->compute[row] ? OTHER : COPIES;
    return work->compute[row] ? OWN : work->communication[row] ? NOTHING : COPIES;
}

/* The span of each operation, its compute kernels, and the first row that begins with it.
 *
 *     compute            |--|  |----|
 *     copies       |---|
 *     span               |----------|
 *
 * communicates: which operations are communication, whose own kernels come before others. Returns
 * how many rows have an owner that there is not; -1 is none.
 */
EXPORTED int64_t bubbleviz_spans(const struct work *work, const uint8_t *communicates,
                                 struct spans *spans)
{
    int64_t strays = 0;

    for (int64_t operation = 0; operation < spans->count; operation++) {
        spans->best[operation] = NOTHING;
        spans->start[operation] = 0, spans->end[operation] = -1;
        spans->kernels[operation] = 0, spans->first[operation] = -1;
    }
    for (int64_t row = 0; row < work->count; row++) {
        int32_t owner = work->owner[row];
        if (owner < 0 || owner >= spans->count) {
            strays += owner != -1;
            continue;
        }
        spans->kernels[owner] += work->compute[row];
        uint8_t worth = worth_of(work, row, communicates[owner]);
        if (worth > spans->best[owner] || worth == NOTHING)
            continue;
        if (worth < spans->best[owner] || work->start[row] < spans->start[owner])
            spans->start[owner] = work->start[row], spans->first[owner] = (int32_t)row;
        if (worth < spans->best[owner] || work->end[row] > spans->end[owner])
            spans->end[owner] = work->end[row];
        spans->best[owner] = worth;
    }
    return strays;
}
