"""The pipeline schedules of papers and frameworks: their orders, and how others are searched.

Adding one is adding it to ``SCHEDULES``; a closed form, without an order, to ``FORMULAS``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import suggest_word
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.plan import (
    Memory,
    Order,
    Plan,
    PlannedOperation,
    PlanSearch,
    Schedule,
    looped_placement,
    v_placement,
)
from bubbleviz.schedules.search.orders import shortest_orders
from bubbleviz.schedules.search.problem import codes_of, lower_bound, plan_of, problem_of
from bubbleviz.schedules.workload import Workload, device_workload

_F, _B, _W, _BW = Phase.F, Phase.B, Phase.W, Phase.BW
#: M_W over M_B of the Zero Bubble paper's models, 32 h / (34 h + 5 a s), with h = 128 a, s = 1024.
_KEPT = 32 / 74


def schedules() -> tuple[Schedule, ...]:
    """Return every schedule, in the order of their names in frameworks."""
    return SCHEDULES


def schedule_named(name: str) -> Schedule:
    """Return the schedule of that name.

    Raises:
        UsageError: there is none.
    """
    known = {schedule.name: schedule for schedule in SCHEDULES}
    if name not in known:
        raise unknown_schedule(name, sorted(known))
    return known[name]


def unknown_schedule(name: str, known: Sequence[str]) -> UsageError:
    """Return the refusal of a name that no schedule has."""
    near = suggest_word(name, known)
    return UsageError(f"no schedule is called {name[:60]!r}; known are {', '.join(known)}{near}")


def known_plans(placement: tuple[int, ...], microbatches: int) -> list[Plan]:
    """Return the plans of one pipeline with that placement, of every schedule with one order.

    Args:
        placement: device of each virtual stage.
        microbatches: m; a schedule that does not allow as many is left out.
    """
    stages = max(placement) + 1
    plans = []
    for rule in SCHEDULES:
        if rule.has_one_order:
            try:
                plan = rule.plan(stages, microbatches, len(placement) // stages)
            except UsageError:
                continue
            if plan.placement == placement and plan.replicas == 1:
                plans.append(plan)
    return plans


def placement_of(rule: Schedule, stages: int, chunks: int) -> tuple[int, ...]:
    """Return the placement of a searched schedule: one chunk per device, or two in a V.

    Raises:
        UsageError: it has another number of chunks.
    """
    where = "a device" if rule.chunks == 1 else "per device"
    _refuse_chunks(rule.name, chunks, rule.chunks, where)
    return looped_placement(stages, 1) if chunks == 1 else v_placement(stages)


def searched_plan(
    name: str, workload: Workload, *, makespan: bool = False, watch: Watch = unwatched
) -> Plan:
    """Return the plan that is searched for given times.

    Args:
        name: of the plan.
        workload: times and memory; see :func:`placement_of`.
        makespan: whether the window of all devices is to be short, rather than the longest of their
            own.
        watch: called with the share of the search that is done.

    Raises:
        UsageError: the memory holds not even one microbatch.
    """
    problem = problem_of(workload, makespan=makespan)
    _, codes = shortest_orders(
        problem,
        lambda microbatches: map(codes_of, known_plans(workload.placement, microbatches)),
        enough=lower_bound(problem),
        watch=watch,
    )
    return plan_of(name, problem, codes)


def _refuse_chunks(name: str, chunks: int, wanted: int, where: str = "a device") -> None:
    if chunks != wanted:
        has = "one chunk" if wanted == 1 else "two chunks"
        raise UsageError(f"{name} has {has} {where}, not {chunks}")


# Orders of one chunk per device, and of several in rounds: forwards ahead of B, W behind it.


def _delayed(
    forwards: Sequence[PlannedOperation],
    backwards: Sequence[PlannedOperation],
    weights: Sequence[PlannedOperation],
    ahead: int,
    lag: int,
) -> Order:
    """Return one device's order: forwards ahead of B, W behind it.

    ::

        ahead 3, lag 1      F0 F1 F2 B0 F3 B1 W0 F4 B2 W1 ... B4 W3 W4

    Args:
        forwards: those of the device, in order.
        backwards: as many.
        weights: as many, or none.
        ahead: forwards before the first B.
        lag: by how many operations W is behind B until the last B.
    """
    order = list(forwards[:ahead])
    for n, backward in enumerate(backwards):
        order.append(backward)
        order += weights[n - lag : n - lag + 1] if n >= lag else ()
        order += forwards[n + ahead : n + ahead + 1]
    order += weights[max(0, len(weights) - lag) :]
    return tuple(order)


def _line(
    name: str,
    ahead: Callable[[int, int], int],
    lag: Callable[[int], int] | None = None,
    hint: str = "",
) -> Callable[[int, int, int], Plan]:
    """Return the ``plan`` of a schedule with one chunk per device.

    ZB-H1 and ZB-H2 are drawn for m >= 2p; with fewer microbatches the same rule gives a valid
    order, which may idle longer than one that is searched: zb-1p and zb-2p are never worse.

    Args:
        name: of the schedule.
        ahead: forwards before the first backward, by how many devices follow one, and m.
        lag: by how many operations W is behind B, by device; None where backwards are whole.
        hint: what schedule has several chunks.
    """

    def plan(stages: int, microbatches: int, chunks: int = 1) -> Plan:
        if chunks != 1 and hint:
            raise UsageError(f"{name} has one chunk per device, not {chunks}{hint}")
        _refuse_chunks(name, chunks, 1)
        orders = []
        for d in range(stages):
            forwards, backwards, weights = (
                [PlannedOperation(d, phase, mb) for mb in range(microbatches)]
                for phase in (_F, _B if lag else _BW, _W)
            )
            behind = lag(d) if lag else 0
            first = ahead(stages - d, microbatches)
            orders.append(_delayed(forwards, backwards, weights if lag else (), first, behind))
        return Plan(name, stages, microbatches, 1, looped_placement(stages, 1), tuple(orders))

    return plan


def in_rounds(
    name: str, stages: int, microbatches: int, chunks: int, group: int, backward: Phase
) -> Plan:
    """Return the plan of interleaved microbatches, with W or without.

    Args:
        name: of the plan.
        stages: p.
        microbatches: m.
        chunks: v.
        group: microbatches of a group, all of which run one chunk before the next.
        backward: BW, or B and W as many operations behind it as there are devices before this one.
    """

    def nth(device: int, n: int, phase: Phase) -> PlannedOperation:
        number, place = divmod(n, group * chunks)
        chunk, microbatch = divmod(place, group)
        chunk = chunk if phase is _F else chunks - 1 - chunk
        return PlannedOperation(chunk * stages + device, phase, number * group + microbatch)

    orders = []
    for device in range(stages):
        forwards, backwards, weights = (
            [nth(device, n, phase) for n in range(microbatches * chunks)]
            for phase in (_F, backward, _W)
        )
        turns, lag = (1, device) if backward is _B else (2, 0)
        ahead = (chunks - 1) * group + 1 + turns * (stages - device - 1)
        orders.append(_delayed(forwards, backwards, weights if backward is _B else (), ahead, lag))
    placement = looped_placement(stages, chunks)
    return Plan(name, stages, microbatches, chunks, placement, tuple(orders))


def _interleaved(name: str, backward: Phase, stages: int, microbatches: int, chunks: int) -> Plan:
    _refuse_rests(name, stages, microbatches)
    return in_rounds(name, stages, microbatches, chunks, stages, backward)


def _combined(stages: int, microbatches: int, chunks: int) -> Plan:
    """Return interleaved 1F1B's plan with one forward more ahead; others run beside a backward."""
    if chunks < 2:
        raise UsageError("combined-1f1b has two chunks a device or more; see 1f1b")
    plan = _interleaved("combined-1f1b", _BW, stages, microbatches, chunks)
    orders, together = [], set[PlannedOperation]()
    for order in plan.orders:
        forwards, backwards = ([op for op in order if op.phase is phase] for phase in (_F, _BW))
        ahead = next((n for n, op in enumerate(order) if op.phase is _BW), 0) + 1
        orders.append(_delayed(forwards, backwards, (), ahead, 0))
        together.update(forwards[ahead - 1 :])
    return replace(plan, orders=tuple(orders), together=frozenset(together))


def _refuse_rests(name: str, stages: int, microbatches: int) -> None:
    if microbatches % stages:
        raise UsageError(
            f"{name} needs microbatches in groups of the {stages} stages, not {microbatches}"
        )


def _looped_bfs(stages: int, microbatches: int, chunks: int) -> Plan:
    """Return the plan; the backwards go the way of the forwards, back to front."""
    orders = []
    for device in range(stages):
        there = [(c * stages + device, mb) for c in range(chunks) for mb in range(microbatches)]
        order = [PlannedOperation(stage, _F, mb) for stage, mb in there]
        order += [PlannedOperation(stage, _BW, mb) for stage, mb in reversed(there)]
        orders.append(tuple(order))
    placement = looped_placement(stages, chunks)
    return Plan("looped-bfs", stages, microbatches, chunks, placement, tuple(orders))


# Orders of two virtual stages a device: a V, or two pipelines fed from both ends.


def _zb_v(stages: int, microbatches: int, chunks: int = 2) -> Plan:
    """Return the plan: virtual stage v of 2p is on device v on the way down, 2p-1-v on the way up.

    With few microbatches the order is that of 2p-1, less what does not exist.
    """
    _refuse_chunks("zb-v", chunks, 2, "per device")
    total, orders = max(microbatches, 2 * stages - 1), []
    for device in range(stages):
        down, up = device, 2 * stages - 1 - device
        order: list[PlannedOperation] = []
        taken: Counter[tuple[int, Phase]] = Counter()
        steady = ((down, _F), (down, _B), (down, _W), (up, _F), (up, _B), (up, _W))
        for times, steps in (
            (2 * (stages - device) - 1, ((down, _F),)),
            (device, ((up, _F), (down, _F))),
            (stages - device, ((up, _F), (up, _B), (up, _W))),
            (total - stages, steady),
            (device, ((down, _B), (up, _B))),
            (stages - device, ((down, _B), (down, _W))),
            (total, ((up, _W),)),
            (total, ((down, _W),)),
        ):
            # Each step takes its next microbatch; one that has none is passed over.
            for step in steps * times:
                if taken[step] < total:
                    order.append(PlannedOperation(*step, taken[step]))
                    taken[step] += 1
        orders.append(tuple(op for op in order if op.microbatch < microbatches))
    return Plan("zb-v", stages, microbatches, 2, v_placement(stages), tuple(orders))


def _chimera(stages: int, microbatches: int, chunks: int = 1) -> Plan:
    """Return the plan of two replicas, each with half of the microbatches.

    Stage s of the first is on device s, of the second on device p-1-s; the virtual stages of the
    second follow those of the first. Groups of p microbatches, p/2 for each direction, follow each
    other without a flush (the paper's direct concatenation, section 3.5). Both directions go by the
    slots of a 1F1B of single slots::

        slot      0   1   2   3   4   5   6   7   8   9       p = 4, device 0
        down      F0      F1                  B0      B1      s + 2i and 2p-1-s + 2i
        up                    F0  B0  F1  B1                  the same with s = p-1

    Down and up take turns in slots of either parity, so that no two are in one slot; the next
    group begins 2p slots later, in what the one before leaves free.
    """
    _refuse_chunks("chimera", chunks, 1, "per device and direction")
    if stages % 2 or microbatches % stages:
        raise UsageError(
            "chimera needs an even number of stages and microbatches in groups of them, "
            f"not {stages} and {microbatches}"
        )
    orders = []
    for device in range(stages):
        slots: list[tuple[int, PlannedOperation]] = []
        for stage, first in ((device, 0), (stages - 1 - device, stages)):
            for number in range(microbatches // 2):
                group, place = divmod(number, stages // 2)
                begin = 2 * stages * group + 2 * place
                for phase, slot in ((_F, stage), (_BW, 2 * stages - 1 - stage)):
                    slots.append((begin + slot, PlannedOperation(first + stage, phase, number)))
        orders.append(tuple(operation for _, operation in sorted(slots)))
    placement = v_placement(stages)
    return Plan("chimera", stages, microbatches, 1, placement, tuple(orders), replicas=2)


def _dualpipe(stages: int, microbatches: int, chunks: int = 1) -> Plan:
    """Return the plan of two replicas, as Chimera has them, each with half of the microbatches."""
    _refuse_chunks("dualpipe", chunks, 1, "per device and direction")
    if stages % 2 or microbatches % 2:
        raise UsageError(
            "dualpipe needs an even number of stages and of microbatches, "
            f"not {stages} and {microbatches}"
        )
    half, ways = stages // 2, []
    for device in range(stages):
        both, before = (device, 2 * stages - 1 - device), min(device, stages - 1 - device)
        both = both if device < half else both[::-1]
        ways.append((both, microbatches // 2, before, half, before == half - 1))
    return _two_ways("dualpipe", stages, microbatches, 1, ways, 2)


def _dualpipe_v(stages: int, microbatches: int, chunks: int = 2) -> Plan:
    """Return the plan: virtual stage v of 2p is on device v on the way down, 2p-1-v on that up."""
    _refuse_chunks("dualpipev", chunks, 2, "per device")
    ways = [
        ((d, 2 * stages - 1 - d), microbatches, d, stages, d == stages - 1) for d in range(stages)
    ]
    return _two_ways("dualpipev", stages, microbatches, 2, ways)


def _two_ways(
    name: str,
    stages: int,
    microbatches: int,
    chunks: int,
    ways: Iterable[tuple[tuple[int, int], int, int, int, bool]],
    replicas: int = 1,
) -> Plan:
    """Return the plan of devices that hold two virtual stages, by arguments of :func:`_both`."""
    if microbatches < 2 * stages:
        raise UsageError(
            f"{name} needs two microbatches per stage, {2 * stages} or more, not {microbatches}"
        )
    together: set[PlannedOperation] = set()
    orders = tuple(tuple(_both(together, *each)) for each in ways)
    placement, beside = v_placement(stages), frozenset(together)
    return Plan(name, stages, microbatches, chunks, placement, orders, replicas, beside)


def _both(
    together: set[PlannedOperation],
    stages: tuple[int, int],
    microbatches: int,
    before: int,
    depth: int,
    apart: bool,
) -> list[PlannedOperation]:
    """Return the order of a device that holds two virtual stages, of one pipeline or of two.

    ::

        F0 F0 .. | F0 F1 .. | B1 W F1 .. | F0&B1 F1&B0 .. | B1 F1&B0 .. | B1 B0 .. | W B0 .. | W ..

    Args:
        together: takes the forwards that run beside a backward.
        stages: the virtual stages 0 and 1; the microbatches come first to 0.
        microbatches: of each of them.
        before: how many devices the microbatches of stage 0 have passed.
        depth: after how many they come back (to stage 1, of one pipeline or of the other).
        apart: whether the first forward beside a backward stands alone here.
    """
    order: list[PlannedOperation] = []
    owed: list[PlannedOperation] = []
    begun: Counter[tuple[int, bool]] = Counter()

    def write(way: int, phase: Phase) -> None:
        number = begun[way, phase is _F]
        begun[way, phase is _F] += 1
        order.append(PlannedOperation(stages[way], phase, number))
        if phase is _B:
            owed.append(PlannedOperation(stages[way], _W, number))

    def beside(forward: int, backward: int, alone: bool = False) -> None:
        write(forward, _F)
        together.update(() if alone else order[-1:])
        write(backward, _BW)

    behind = depth - before - 1
    for way in [0, 0] * behind + [0, 1] * (before + 1):
        write(way, _F)
    for _ in range(behind):
        write(1, _B)
        order.append(owed.pop(0))
        write(1, _F)
    for number in range(microbatches - 2 * depth + before + 1):
        beside(0, 1, apart and number == 0)
        beside(1, 0)
    for _ in range(behind):
        write(1, _BW)
        beside(1, 0)
    # The second half of these 2 (before + 1) backwards is split.
    for number in range(2 * (before + 1)):
        write(1 - number % 2, _B if number > before else _BW)
    for _ in range(behind):
        order.append(owed.pop(0))
        write(0, _B)
    return order + owed[: before + 1]


def _at_equal_times(name: str, stages: int, microbatches: int, chunks: int) -> Plan:
    """Return the plan of a schedule that is always searched."""
    rule = schedule_named(name)
    searched, ones = rule.searched, (1,) * stages
    assert searched is not None
    assert searched.limit is not None
    memory = Memory(searched.limit(stages), 1.0, searched.kept)
    placement = placement_of(rule, stages, chunks)
    workload = device_workload(placement, microbatches, (ones,) * 3, memory=memory)
    return searched_plan(name, workload)


def _always_searched(
    name: str,
    summary: str,
    source: str,
    chunks: int,
    limit: Callable[[int], float],
    peak: Callable[[int], float] | None = None,
    kept: float = 1.0,
) -> Schedule:
    searched = PlanSearch(limit, peak or limit, kept)
    return Schedule(name, summary, source, chunks, partial(_at_equal_times, name), searched)


_ZERO_BUBBLE = "Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241"
_CONTROLLABLE = "Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362"
_DEEPSEEK = "DeepSeek-V3, arXiv 2412.19437, section 3.2.1"

SCHEDULES = (
    Schedule(
        "chimera",
        "Two replicas fed from both ends; bubble (p-2)/(3m/2+p-2) of one group of m = p.",
        "Li and Hoefler, Chimera, arXiv 2107.06925, section 3 and figure 2",
        1,
        _chimera,
        replicas=2,
    ),
    Schedule(
        "combined-1f1b",
        "Interleaved 1F1B with one more forward ahead, each of the steady ones beside a backward.",
        "NVIDIA, Megatron-Core, megatron/core/pipeline_parallel/combined_1f1b.py",
        2,
        _combined,
    ),
    Schedule(
        "dualpipe",
        "Two replicas fed from both ends; bubble (p/2-1)(F&B + B - 3W).",
        f"DeepSeek-AI, {_DEEPSEEK}",
        1,
        _dualpipe,
        replicas=2,
    ),
    Schedule(
        "dualpipev",
        "Two chunks per device in a V; in the steady state forwards run beside backwards.",
        f"DeepSeek-AI, DualPipe repository; {_DEEPSEEK}",
        2,
        _dualpipe_v,
    ),
    Schedule(
        "gpipe",
        "All forwards, then all backwards; bubble (p-1)/(m+p-1).",
        "Huang et al., GPipe, arXiv 1811.06965, section 2.3",
        1,
        _line("gpipe", lambda _, m: m),
    ),
    Schedule(
        "interleaved-1f1b",
        "1F1B over v chunks per device; bubble (p-1)/(v m+p-1).",
        "Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters "
        "Using Megatron-LM, arXiv 2104.04473, section 2.2",
        2,
        partial(_interleaved, "interleaved-1f1b", _BW),
    ),
    Schedule(
        "interleaved-zb",
        "Interleaved 1F1B whose bubble is partly filled with weight gradients.",
        f"{_ZERO_BUBBLE}; order as torch.distributed.pipelining's ScheduleInterleavedZeroBubble",
        2,
        partial(_interleaved, "interleaved-zb", _B),
    ),
    Schedule(
        "looped-bfs",
        "GPipe over v chunks per device, one chunk after the other.",
        "Lamy-Poirier, Breadth-First Pipeline Parallelism, arXiv 2211.05953, section 4",
        2,
        _looped_bfs,
        # GPipe's backwards may go either way: torchgpipe runs the last microbatch's first
        # (torchgpipe/pipeline.py, where batches[i-1] depends on batches[i] in backpropagation).
        with_one_chunk="gpipe",
    ),
    Schedule(
        "1f1b",
        "One forward, one backward in turn; bubble (p-1)/(m+p-1), p activations at most.",
        "Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training (PipeDream-Flush), "
        "arXiv 2006.09503, section 3.2",
        1,
        _line("1f1b", lambda left, _: left, hint="; see interleaved-1f1b"),
    ),
    _always_searched(
        "v-half",
        "Searched for the times given, two chunks in a V, in the memory of (p+2)/2 "
        "microbatches, half of 1F1B's, or in --memory-limit.",
        f"{_CONTROLLABLE}, section 4",
        2,
        lambda p: (p + 2) / 2,
    ),
    _always_searched(
        "v-min",
        "Searched for the times given, two chunks in a V, in the memory of (p+4)/3 "
        "whole microbatches, a third of 1F1B's, or in --memory-limit.",
        f"{_CONTROLLABLE}, section 4",
        2,
        # Searched within whole microbatches; the paper's orders hold half of one more at some p.
        lambda p: float((p + 4) // 3),
        lambda p: (p + 4) / 3,
    ),
    _always_searched(
        "zb-1p",
        "Searched for the times given, in the memory of p microbatches, or in --memory-limit.",
        f"{_ZERO_BUBBLE}, sections 3 and 5",
        1,
        float,
        kept=_KEPT,
    ),
    _always_searched(
        "zb-2p",
        "Searched for the times given, in the memory of 2p microbatches, or in --memory-limit.",
        f"{_ZERO_BUBBLE}, sections 3 and 5",
        1,
        lambda p: 2.0 * p,
        kept=_KEPT,
    ),
    Schedule(
        "zb-h1",
        "Weight gradients fill a part of 1F1B's bubble at 1F1B's memory.",
        f"{_ZERO_BUBBLE}, section 2.1",
        1,
        _line("zb-h1", lambda left, _: left, lambda device: device),
    ),
    Schedule(
        "zb-h2",
        "No bubble at equal times within each device's own window; 2p-1 activations.",
        f"{_ZERO_BUBBLE}, section 2.2",
        1,
        _line("zb-h2", lambda left, _: 2 * left - 1, lambda device: 2 * device),
    ),
    Schedule(
        "zb-v",
        "Two chunks per device in a V; no bubble at equal times, with 1F1B's memory; "
        "searched for the times given where there is a --memory-limit.",
        f"{_ZERO_BUBBLE}, section 6",
        2,
        _zb_v,
        PlanSearch(None, float),
    ),
)


@dataclass(frozen=True)
class Formula:
    """A closed form of the cost, the longest of the devices' own windows.

    Attributes:
        name: what users call it.
        summary: one sentence for people.
        source: paper and section that define it.
        chunks: default number of model chunks per device.
        cost: the cost by stages p, microbatches m, chunks v, and the times of a whole stage in one
            unit: T, F and both parts of the backward of one microbatch, and c, the latency of every
            edge between two devices. It raises :class:`bubbleviz.errors.UsageError` for sizes that
            the formula does not allow.
        text: the same, as people write it.
        drawn: name of a similar schedule that has an order.
    """

    name: str
    summary: str
    source: str
    chunks: int
    cost: Callable[[int, int, int, float, float], float]
    text: str
    drawn: str


def _cost_of_1f1b_i(p: int, m: int, v: int, work: float, transfer: float) -> float:
    """Return m T + (p-1) T/v + ((2v-1)p-2) c; one stage has no transfers.

    Those of the order of interleaved 1F1B, simulated, are (2vp-2) c.
    """
    _refuse_rests("1f1b-i", p, m)
    transfers = (2 * v - 1) * p - 2 if p > 1 else 0
    return m * work + (p - 1) * work / v + transfers * transfer


FORMULAS = (
    Formula(
        "1f1b-i",
        "Interleaved 1F1B by the closed form of the Zero Bubble paper's Table 5; it has no "
        "order. interleaved-1f1b is the order, simulated.",
        f"{_ZERO_BUBBLE}, section 5.3, table 5",
        2,
        _cost_of_1f1b_i,
        "m T + (p-1) T/v + ((2v-1)p-2) c",
        "interleaved-1f1b",
    ),
)


def formula_named(name: str) -> Formula | None:
    """Return the formula of that name, or None."""
    return next((formula for formula in FORMULAS if formula.name == name), None)
