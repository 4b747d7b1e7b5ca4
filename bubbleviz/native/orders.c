/* Orders: simulates a pipeline with given orders of operations, searches for faster orders, and
 * runs trials, in which each device chooses its next operation whenever it is free. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef EXPORTED
#define EXPORTED __attribute__((visibility("default")))
#endif

/* Phases. The code of an operation is 3 * virtual_stage + phase. */
enum { FORWARD, BACKWARD, WEIGHT };
enum { UNKNOWN = -1, WAIT = -1 };

/* A time that is later than the end of any schedule. */
#define NEVER ((int64_t)1 << 62)

/* The fields of bubbleviz.schedules.search.problem.Problem. */
struct pipeline {
    const int32_t *placement; /* device of each virtual stage */
    const int64_t *length;    /* durations of F, B and W of each virtual stage */
    const int64_t *down;      /* transfer time of activations from each stage to the next stage */
    const int64_t *up;        /* transfer time of gradients from each stage to the previous stage */
    const int64_t *held;      /* memory that each virtual stage needs from F to B */
    const int64_t *kept;      /* part of `held` that is needed from B to W */
    const int64_t *limit;     /* memory limit of each device */
    int64_t devices;
    int64_t stages;
    int64_t microbatches;
    int64_t of_cost; /* 0: minimize the common window; else: minimize the longest device window */
};

struct orders {
    int32_t *code;         /* operations of all devices, concatenated */
    const int32_t *offset; /* index of each device's first operation, followed by the total */
};

/* Scratch memory for one simulation of all operations. "Index" means an index into orders.code. */
struct timing {
    int64_t *f_end; /* end of each F, indexed by (virtual stage, microbatch) */
    int64_t *b_end; /* end of each B, indexed like f_end */
    int64_t *start; /* start of each operation */
    int64_t *end;   /* end of each operation */
    int32_t *cause;  /* index of the operation whose end each operation waited for, or -1 */
    int32_t *f_at;   /* index of each F, indexed by (virtual stage, microbatch) */
    int32_t *b_at;   /* index of each B, indexed like f_at */
    int32_t *count;  /* number of operations with each code that have run */
    int32_t *at;     /* index of each device's next operation */
    int32_t *stack;  /* devices that may be able to continue running */
    uint8_t *queued; /* whether each device is on the stack */
    int64_t length;  /* iteration length to minimize */
    int64_t total;   /* sum of the end times of all devices */
    int32_t last;    /* index of the operation that ends last */
};

static uint64_t next_random(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return (x * 2685821657736338717u) >> 33;
}

/* Run a device's operations until the device has to wait. Return 0 if a B comes before its F or a W
 * before its B. */
static int run_device(const struct pipeline *p, const struct orders *orders, struct timing *t,
                      int32_t device, int32_t *queue, int32_t *waiting)
{
    const int64_t m = p->microbatches;
    const int32_t first = orders->offset[device];
    const int32_t stop = orders->offset[device + 1];
    int32_t at = t->at[device];

    for (; at < stop; at++) {
        const int32_t code = orders->code[at], stage = code / 3, phase = code % 3;
        const int32_t mb = t->count[code];
        const int64_t own = stage * m + mb;
        int64_t ready = 0;
        int32_t cause = -1;
        if (phase == FORWARD) {
            if (stage) {
                ready = t->f_end[own - m];
                if (ready == UNKNOWN)
                    break;
                ready += p->down[stage - 1], cause = t->f_at[own - m];
            }
        } else if (phase == BACKWARD) {
            if (t->f_end[own] == UNKNOWN)
                return 0;
            if (stage + 1 < p->stages) {
                ready = t->b_end[own + m];
                if (ready == UNKNOWN)
                    break;
                ready += p->up[stage + 1], cause = t->b_at[own + m];
            }
        } else if (t->b_end[own] == UNKNOWN) {
            return 0;
        }
        if (at > first && t->end[at - 1] >= ready)
            ready = t->end[at - 1], cause = at - 1;
        t->start[at] = ready, t->cause[at] = cause;
        const int64_t end = t->end[at] = ready + p->length[code];
        t->count[code]++;
        int32_t other = -1;
        if (phase == FORWARD) {
            t->f_end[own] = end, t->f_at[own] = at;
            if (stage + 1 < p->stages)
                other = p->placement[stage + 1];
        } else if (phase == BACKWARD) {
            t->b_end[own] = end, t->b_at[own] = at;
            if (stage)
                other = p->placement[stage - 1];
        }
        if (other >= 0 && other != device && !t->queued[other])
            t->queued[other] = 1, queue[(*waiting)++] = other;
    }
    t->at[device] = at;
    return 1;
}

/* Simulate all operations. Return whether all operations can run. If so, t contains their times. */
static int time_orders(const struct pipeline *p, const struct orders *orders, struct timing *t)
{
    const size_t cells = (size_t)p->stages * (size_t)p->microbatches;
    int32_t waiting = 0;

    memset(t->f_end, 0xff, cells * sizeof *t->f_end);
    memset(t->b_end, 0xff, cells * sizeof *t->b_end);
    memset(t->count, 0, 3 * (size_t)p->stages * sizeof *t->count);
    for (int32_t device = (int32_t)p->devices - 1; device >= 0; device--) {
        t->at[device] = orders->offset[device];
        t->queued[device] = 1, t->stack[waiting++] = device;
    }
    while (waiting) {
        const int32_t device = t->stack[--waiting];
        t->queued[device] = 0;
        if (!run_device(p, orders, t, device, t->stack, &waiting))
            return 0;
    }
    t->length = t->total = 0, t->last = -1;
    for (int32_t device = 0; device < p->devices; device++) {
        const int32_t first = orders->offset[device], stop = orders->offset[device + 1];
        if (t->at[device] < stop)
            return 0;
        if (first == stop)
            continue;
        const int64_t end = t->end[stop - 1] - (p->of_cost ? t->start[first] : 0);
        t->total += end;
        if (end > t->length || t->last < 0)
            t->length = end, t->last = stop - 1;
    }
    return 1;
}

/* Return whether a device's order is valid. F must come before B, and B before W. The memory limit
 * must never be exceeded. */
static int sound(const struct pipeline *p, const struct orders *orders, int32_t device,
                 int32_t *count)
{
    int64_t held = 0;

    for (int32_t at = orders->offset[device]; at < orders->offset[device + 1]; at++)
        count[orders->code[at]] = 0;
    for (int32_t at = orders->offset[device]; at < orders->offset[device + 1]; at++) {
        const int32_t code = orders->code[at], stage = code / 3, phase = code % 3;
        count[code]++;
        if (phase == FORWARD)
            held += p->held[stage];
        else if (count[code] > count[code - 1])
            return 0;
        else
            held -= phase == BACKWARD ? p->held[stage] - p->kept[stage] : p->kept[stage];
        if (held > p->limit[device])
            return 0;
    }
    return 1;
}

static void move(int32_t *code, int32_t from, int32_t to)
{
    const int32_t moved = code[from];
    if (from < to)
        memmove(code + from, code + from + 1, (size_t)(to - from) * sizeof *code);
    else
        memmove(code + to + 1, code + to, (size_t)(from - to) * sizeof *code);
    code[to] = moved;
}

static int64_t worth(const struct pipeline *p, const struct timing *t)
{
    return t->length * 4 * p->devices + t->total;
}

static int32_t critical_of(const struct timing *t, int32_t *critical)
{
    int32_t count = 0;
    for (int32_t at = t->last; at >= 0; at = t->cause[at])
        critical[count++] = at;
    return count;
}

static void *taken(char **room, size_t bytes)
{
    void *here = *room;
    *room += (bytes + 15) / 16 * 16;
    return here;
}

static size_t room_for(const struct pipeline *p, size_t operations)
{
    const size_t cells = (size_t)p->stages * (size_t)p->microbatches;
    return cells * 24 + operations * 28 + (size_t)p->stages * 12 + (size_t)p->devices * 32 + 1024;
}

static void divide(const struct pipeline *p, size_t operations, char *room, struct timing *t)
{
    const size_t cells = (size_t)p->stages * (size_t)p->microbatches;
    t->f_end = taken(&room, cells * sizeof *t->f_end);
    t->b_end = taken(&room, cells * sizeof *t->b_end);
    t->start = taken(&room, operations * sizeof *t->start);
    t->end = taken(&room, operations * sizeof *t->end);
    t->cause = taken(&room, operations * sizeof *t->cause);
    t->f_at = taken(&room, cells * sizeof *t->f_at);
    t->b_at = taken(&room, cells * sizeof *t->b_at);
    t->count = taken(&room, 3 * (size_t)p->stages * sizeof *t->count);
    t->at = taken(&room, (size_t)p->devices * sizeof *t->at);
    t->stack = taken(&room, (size_t)p->devices * sizeof *t->stack);
    t->queued = taken(&room, (size_t)p->devices);
}

static const int32_t steps[16] = {1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 8, 12, 20};

/* Improve orders by late acceptance hill climbing (Burke and Bykov, The late acceptance
 * hill-climbing heuristic, European Journal of Operational Research 258, 2017). A change is
 * accepted if the result is not worse than the current result, or not worse than the result
 * `memory` trials earlier. A change moves one operation within its device's order. The operation is
 * usually on the critical path.
 *
 * trials: Maximum number of changes to try.
 * rise: Initial tolerance in thousandths: how much longer orders may become at first.
 * enough: Length at which the search ends.
 *
 * The best orders are written to `orders`. Return their length, or -1 if the initial orders cannot
 * run or memory runs out.
 */
EXPORTED int64_t bubbleviz_orders_improved(const struct pipeline *p, struct orders *orders,
                                           int64_t trials, int64_t memory, int64_t rise,
                                           int64_t seed, int64_t enough)
{
    const size_t operations = (size_t)orders->offset[p->devices];
    const size_t bytes = operations * sizeof(int32_t);
    char *room = malloc(room_for(p, operations)), *more = malloc(3 * bytes + 16);
    int64_t *late = malloc((size_t)memory * sizeof *late);
    int64_t best_length = -1;
    struct timing t;

    if (!room || !more || !late)
        goto done;
    divide(p, operations, room, &t);
    int32_t *best = (int32_t *)more, *critical = best + operations;
    int32_t *device_of = critical + operations;
    for (int32_t device = 0; device < p->devices; device++) {
        if (!sound(p, orders, device, t.count))
            goto done;
        for (int32_t at = orders->offset[device]; at < orders->offset[device + 1]; at++)
            device_of[at] = device;
    }
    if (!time_orders(p, orders, &t))
        goto done;
    int64_t now = worth(p, &t), best_worth = now;
    int32_t path = critical_of(&t, critical);
    best_length = t.length;
    memcpy(best, orders->code, bytes);
    for (int64_t i = 0; i < memory; i++)
        late[i] = now + now / 1000 * rise;
    uint64_t state = (uint64_t)seed * 2654435761u + 88172645463325252u;
    for (int64_t trial = 0; trial < trials && best_length > enough; trial++) {
        const uint64_t r = next_random(&state);
        const uint64_t place = next_random(&state);
        const int32_t from = (r & 7) && path ? critical[place % (uint64_t)path]
                                             : (int32_t)(place % operations);
        const int32_t device = device_of[from];
        const int32_t step = steps[(r >> 4) & 15];
        int32_t to = (r >> 3) & 1 ? from + step : from - step;
        if (to < orders->offset[device])
            to = orders->offset[device];
        if (to >= orders->offset[device + 1])
            to = orders->offset[device + 1] - 1;
        int32_t *code = orders->code;
        /* Moving an operation only past equal operations would not change anything. */
        int32_t other = 0;
        for (int32_t at = from; at != to;) {
            at += from < to ? 1 : -1;
            other |= code[at] != code[from];
        }
        if (!other)
            continue;
        move(code, from, to);
        const int32_t slot = (int32_t)(trial % memory);
        if (sound(p, orders, device, t.count) && time_orders(p, orders, &t)) {
            const int64_t found = worth(p, &t);
            if (found <= now || found <= late[slot]) {
                now = found;
                path = critical_of(&t, critical);
                if (found < best_worth) {
                    best_worth = found, best_length = t.length;
                    memcpy(best, code, bytes);
                }
            } else {
                move(code, to, from);
            }
        } else {
            move(code, to, from);
        }
        if (now < late[slot])
            late[slot] = now;
    }
    memcpy(orders->code, best, bytes);
done:
    free(late);
    free(more);
    free(room);
    return best_length;
}

/* The parameters of a trial, see bubbleviz.schedules.search.trials. */
struct trial {
    const int32_t *stage;        /* virtual stages of all devices, concatenated */
    const int32_t *stage_offset; /* index of each device's first virtual stage, then the total */
    const int64_t *max_wait;     /* longest wait that is preferred to W, per virtual stage */
    int64_t *excess;             /* excess of each device so far */
    int64_t target;              /* excess at which the trial fails */
    const int64_t *max_memory;   /* memory in use up to which an F may start, per virtual stage */
    const int64_t *cap;    /* greedy: microbatches between F and B, per virtual stage; or NULL */
    int64_t *slot;         /* squeezed: slot of the next operation with each code; or NULL */
    const int64_t *pause;  /* squeezed: longest wait before a new microbatch, per virtual stage */
    int64_t period;        /* squeezed: number of slots from one microbatch to the next */
    int64_t forward_first; /* greedy: whether F comes before B */
    int64_t lazy;          /* greedy: whether W waits until memory is short or no F is left */
};

/* Scratch memory for one trial. */
struct state {
    int64_t *arrival;    /* arrival of each input, indexed by (code, microbatch) */
    int64_t *next_input; /* arrival of the next input for each code, or NEVER if it is unknown */
    int64_t *free_at;    /* time at which each device is free */
    int64_t *wake;       /* time at which each device chooses next */
    int64_t *memory;     /* memory in use on each device */
    int64_t *first_b;    /* squeezed: slot of the first B of each device's first virtual stage */
    int32_t *sent;       /* number of inputs that are known for each code */
    int32_t *done;       /* number of operations with each code that have run */
    int32_t *forwards;   /* number of Fs that each device still has to run */
    int32_t *at;         /* index of each device's next operation */
    int32_t *pending;    /* virtual stages of the Bs of each device, in order */
    int32_t *head;       /* index in `pending` of each device's oldest B without W */
    int32_t *tail;       /* index in `pending` after each device's last B */
};

static int should_wait(const struct trial *t, int32_t device, int32_t stage, int64_t wait)
{
    return wait < t->max_wait[stage] && t->excess[device] + wait < t->target;
}

/* Greedy.choose */
static int32_t choose_greedy(const struct pipeline *p, const struct trial *t,
                             const struct state *s, int32_t device, int64_t now)
{
    const int32_t first = t->stage_offset[device], stop = t->stage_offset[device + 1];
    int64_t next = NEVER, largest = 0;
    int32_t backward = WAIT;

    for (int32_t i = first; i < stop && backward == WAIT; i++) {
        const int32_t code = 3 * t->stage[i] + BACKWARD;
        if (s->next_input[code] <= now)
            backward = code;
        else if (s->next_input[code] < next)
            next = s->next_input[code];
    }
    if (backward != WAIT && !t->forward_first)
        return backward;
    for (int32_t i = stop; i-- > first;) {
        const int32_t stage = t->stage[i], code = 3 * stage + FORWARD;
        if (s->memory[device] > t->max_memory[stage] ||
            s->done[code] - s->done[3 * stage + BACKWARD] >= t->cap[stage])
            continue;
        if (s->next_input[code] <= now)
            return code;
        if (s->next_input[code] < next)
            next = s->next_input[code];
    }
    if (backward != WAIT || s->head[device] == s->tail[device])
        return backward;
    const int32_t stage = s->pending[s->head[device]];
    const int64_t wait = next - now;
    if (should_wait(t, device, stage, wait))
        return WAIT;
    if (t->lazy && next < NEVER && s->forwards[device]) {
        for (int32_t i = first; i < stop; i++)
            if (p->held[t->stage[i]] > largest)
                largest = p->held[t->stage[i]];
        if (s->memory[device] <= p->limit[device] - largest &&
            t->excess[device] + wait < t->target)
            return WAIT;
    }
    return 3 * stage + WEIGHT;
}

/* Squeezed._choose_weight_or_wait */
static int32_t choose_weight(const struct trial *t, int32_t device, int32_t weight, int64_t wait)
{
    return weight == WAIT || should_wait(t, device, weight / 3, wait) ? WAIT : weight;
}

/* Squeezed._find_arrival */
static int64_t arrival_of(const struct trial *t, const struct state *s, int32_t device,
                          int32_t code)
{
    if (code % 3 == FORWARD && s->memory[device] > t->max_memory[code / 3])
        return NEVER;
    return s->next_input[code];
}

/* Squeezed._choose_in_order */
static int32_t choose_in_order(const struct pipeline *p, const struct trial *t,
                               const struct state *s, int32_t device, int32_t pending,
                               int64_t now)
{
    int32_t best = pending;

    for (int32_t i = t->stage_offset[device]; i < t->stage_offset[device + 1]; i++)
        for (int32_t code = 3 * t->stage[i]; code <= 3 * t->stage[i] + BACKWARD; code++)
            if (s->done[code] < p->microbatches &&
                (best == WAIT || t->slot[code] < t->slot[best]))
                best = code;
    if (best == pending)
        return best;
    const int64_t arrival = arrival_of(t, s, device, best);
    return arrival <= now ? best : choose_weight(t, device, pending, arrival - now);
}

/* Squeezed._choose_by_arrival */
static int32_t choose_by_arrival(const struct trial *t, const struct state *s, int32_t device,
                                 int32_t pending, int64_t now)
{
    const int32_t first = t->stage_offset[device], stop = t->stage_offset[device + 1];
    int32_t forward = WAIT, backward = WAIT;
    int64_t next = NEVER;

    for (int32_t i = first; i < stop; i++) {
        int32_t code = 3 * t->stage[i] + BACKWARD;
        int64_t arrival = s->next_input[code];
        if (arrival <= now && (backward == WAIT || t->slot[code] > t->slot[backward]))
            backward = code;
        if (arrival > now && arrival < next)
            next = arrival;
        code = 3 * t->stage[i] + FORWARD;
        if (t->slot[code] >= s->first_b[device])
            continue;
        arrival = arrival_of(t, s, device, code);
        if (arrival <= now)
            forward = code;
        else if (arrival < next)
            next = arrival;
    }
    const int64_t wait = next - now;
    if (backward != WAIT)
        return backward;
    if (forward == WAIT)
        return choose_weight(t, device, pending, wait);
    const int32_t stage = t->stage[first];
    const int pauses = forward == 3 * stage + FORWARD && wait < t->pause[stage];
    return pauses && t->excess[device] + wait < t->target ? WAIT : forward;
}

/* Squeezed.choose */
static int32_t choose_squeezed(const struct pipeline *p, const struct trial *t,
                               const struct state *s, int32_t device, int64_t now)
{
    const int32_t first = t->stage_offset[device];
    int32_t pending = WAIT;

    for (int32_t i = first; i < t->stage_offset[device + 1]; i++) {
        const int32_t code = 3 * t->stage[i] + WEIGHT;
        if (s->done[code] < s->done[code - 1] &&
            (pending == WAIT || t->slot[code] < t->slot[pending]))
            pending = code;
    }
    const int in_order = s->forwards[device] && s->done[3 * t->stage[first] + BACKWARD];
    const int32_t code = in_order ? choose_in_order(p, t, s, device, pending, now)
                                  : choose_by_arrival(t, s, device, pending, now);
    if (code != WAIT)
        t->slot[code] += t->period;
    return code;
}

/* Record the arrival of an input, and wake the device that receives it. */
static void send_input(const struct pipeline *p, struct state *s, int32_t code, int64_t arrival)
{
    const int32_t device = p->placement[code / 3];
    s->arrival[code * p->microbatches + s->sent[code]++] = arrival;
    if (s->next_input[code] == NEVER)
        s->next_input[code] = arrival;
    if (arrival >= s->free_at[device] && arrival < s->wake[device])
        s->wake[device] = arrival;
}

/* Run an operation on a device and send its result. */
static void start_operation(const struct pipeline *p, struct state *s, int32_t device,
                            int32_t code, int64_t now)
{
    const int32_t stage = code / 3, phase = code % 3;
    const int64_t end = now + p->length[code];

    s->free_at[device] = s->wake[device] = end;
    const int32_t done = ++s->done[code];
    const int known = phase != WEIGHT && done < s->sent[code];
    s->next_input[code] = known ? s->arrival[code * p->microbatches + done] : NEVER;
    if (phase == FORWARD) {
        s->forwards[device]--;
        s->memory[device] += p->held[stage];
        if (stage + 1 < p->stages)
            send_input(p, s, code + 3, end + p->down[stage]);
        else /* The last stage starts the backward itself. */
            send_input(p, s, code + 1, end);
    } else if (phase == BACKWARD) {
        s->memory[device] -= p->held[stage] - p->kept[stage];
        s->pending[s->tail[device]++] = stage;
        if (stage)
            send_input(p, s, code - 3, end + p->up[stage]);
    } else {
        s->memory[device] -= p->kept[stage];
        s->head[device]++;
    }
}

/* Let a device that waits choose again when its next input arrives. */
static void sleep_until_input(const struct trial *t, struct state *s, int32_t device, int64_t now)
{
    s->wake[device] = NEVER;
    for (int32_t i = t->stage_offset[device]; i < t->stage_offset[device + 1]; i++)
        for (int32_t code = 3 * t->stage[i]; code <= 3 * t->stage[i] + BACKWARD; code++)
            if (s->next_input[code] > now && s->next_input[code] < s->wake[device])
                s->wake[device] = s->next_input[code];
}

static void prepare(const struct pipeline *p, const struct trial *t, const struct orders *orders,
                    struct state *s, char *room)
{
    const size_t codes = 3 * (size_t)p->stages, devices = (size_t)p->devices;
    s->arrival = taken(&room, codes * (size_t)p->microbatches * sizeof *s->arrival);
    s->next_input = taken(&room, codes * sizeof *s->next_input);
    s->free_at = taken(&room, devices * sizeof *s->free_at);
    s->wake = taken(&room, devices * sizeof *s->wake);
    s->memory = taken(&room, devices * sizeof *s->memory);
    s->first_b = taken(&room, devices * sizeof *s->first_b);
    s->sent = taken(&room, codes * sizeof *s->sent);
    s->done = taken(&room, codes * sizeof *s->done);
    s->forwards = taken(&room, devices * sizeof *s->forwards);
    s->at = taken(&room, devices * sizeof *s->at);
    s->pending = taken(&room, (size_t)orders->offset[devices] * sizeof *s->pending);
    s->head = taken(&room, devices * sizeof *s->head);
    s->tail = taken(&room, devices * sizeof *s->tail);
    for (size_t code = 0; code < codes; code++)
        s->next_input[code] = NEVER;
    /* The inputs of the first virtual stage have arrived at time 0, which calloc wrote. */
    s->sent[FORWARD] = (int32_t)p->microbatches;
    s->next_input[FORWARD] = 0;
    for (size_t device = 0; device < devices; device++) {
        const int32_t first = t->stage_offset[device], stop = t->stage_offset[device + 1];
        s->forwards[device] = (stop - first) * (int32_t)p->microbatches;
        s->at[device] = s->head[device] = s->tail[device] = orders->offset[device];
        if (t->slot)
            s->first_b[device] = t->slot[3 * t->stage[first] + BACKWARD];
    }
}

/* Run a trial, and write the order of each device to `orders`. Return 1 if all operations have run,
 * or 0 if the excess of a device reached the target, the devices deadlocked, or memory ran out.
 * There must be at least one microbatch. */
EXPORTED int64_t bubbleviz_trial_run(const struct pipeline *p, const struct trial *t,
                                     struct orders *orders)
{
    const size_t operations = (size_t)orders->offset[p->devices];
    const size_t codes = 3 * (size_t)p->stages;
    char *room = calloc(1, operations * 12 + codes * 16 + (size_t)p->devices * 48 + 1024);
    struct state s;
    size_t left = operations;

    if (!room)
        return 0;
    prepare(p, t, orders, &s, room);
    while (left) {
        int32_t device = 0;
        for (int32_t other = 1; other < p->devices; other++)
            if (s.wake[other] < s.wake[device])
                device = other;
        const int64_t now = s.wake[device];
        if (now == NEVER)
            break;
        const int32_t code = t->slot ? choose_squeezed(p, t, &s, device, now)
                                     : choose_greedy(p, t, &s, device, now);
        if (code == WAIT) {
            sleep_until_input(t, &s, device, now);
            continue;
        }
        const int64_t idle = now - s.free_at[device];
        if (idle && (s.at[device] > orders->offset[device] || !p->of_cost)) {
            t->excess[device] += idle;
            if (t->excess[device] >= t->target)
                break;
        }
        orders->code[s.at[device]++] = code;
        start_operation(p, &s, device, code, now);
        left--;
    }
    free(room);
    return !left;
}
