"""Windows, time accounts and ratios, computed with slow but exact code.

The reference implementation and the expected results of synthetic runs use this code. Every
function implements one rule, and its docstring states that rule. ``bubbleviz guide ratios``
explains the same rules to users.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

#: A half-open interval of time.
Span = tuple[int, int]

WORK = ("F", "B", "W", "BW", "R", "FB")
COMPUTE = (*WORK, "Optimizer")
COUNTED = ("F", "B", "W", "BW", "FB")
WINDOWS = ("schedule", "stage", "step", "period")


class Ran(Protocol):
    """An operation on one rank. ``span`` is None if the operation has no GPU work."""

    @property
    def rank(self) -> Any:
        """Identity of the rank. Any hashable value is allowed."""

    @property
    def iteration(self) -> int: ...

    @property
    def phase(self) -> str: ...

    @property
    def span(self) -> Span | None: ...

    @property
    def busy(self) -> Sequence[Span]: ...


def unite(spans: Iterable[Span]) -> list[Span]:
    """Return the union of spans as sorted, disjoint, non-touching, non-empty spans."""
    result: list[Span] = []
    for start, end in sorted(s for s in spans if s[0] < s[1]):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def measure_union(spans: Iterable[Span]) -> int:
    """Return the length of the union of spans."""
    return sum(end - start for start, end in unite(spans))


def clip(spans: Iterable[Span], window: Span) -> list[Span]:
    """Return the parts of spans inside a window."""
    cut = ((max(start, window[0]), min(end, window[1])) for start, end in spans)
    return [(start, end) for start, end in cut if start < end]


def subtract(spans: Iterable[Span], holes: Iterable[Span]) -> list[Span]:
    """Return the parts of ``spans`` that lie outside ``holes``."""
    result = unite(spans)
    for low, high in holes:
        pieces = ((s, min(e, low), max(s, high), e) for s, e in result)
        result = [p for s, cut, on, e in pieces for p in ((s, cut), (on, e)) if p[0] < p[1]]
    return result


def find_extent(spans: Iterable[Span]) -> Span | None:
    """Return the earliest start and the latest end, or None if there are no spans."""
    nonempty = list(spans)
    return (min(s for s, _ in nonempty), max(e for _, e in nonempty)) if nonempty else None


class Account(NamedTuple):
    """How a rank spent its window, as the durations of disjoint parts in ns.

    The parts, in order of priority, are compute, the iteration's Optimizer, work of other
    iterations (``overlap``), and unattributed kernels. Time that belongs to several parts is
    assigned to the one with the highest priority. The remaining time is bubble.
    """

    window: Span
    compute: int
    optimizer: int
    overlap: int
    unattributed: int
    bubble: int

    @property
    def length(self) -> int:
        """Length of the window."""
        return self.window[1] - self.window[0]

    def work(self, ratio: str) -> int:
        """Return how long a rank worked according to the given ratio, in ns.

        Every ratio includes compute. ``step`` and ``period`` also include Optimizers, and
        ``period`` also includes the work of other iterations.
        """
        work = self.compute
        work += self.optimizer if ratio in ("step", "period") else 0
        return work + (self.overlap if ratio == "period" else 0)


class RankIteration(NamedTuple):
    """One rank in one iteration. A rank that lacks F or B (``missing``) has no ratios."""

    first: int
    last: int
    accounts: dict[str, Account]
    ratios: dict[str, float | None]
    missing: bool


def compute_idle_share(work: int, window: int) -> float | None:
    """Return 1 - work / window with a single rounding, or None if the window is empty."""
    return float(1 - Fraction(work, window)) if window else None


def make_account(window: Span, *sets: Iterable[Span]) -> Account:
    """Assign every instant in the window to the first set that contains it. The rest is bubble."""
    counted_ns: list[Span] = []
    lengths = [0]
    for spans in sets:
        counted_ns = unite([*counted_ns, *clip(spans, window)])
        lengths.append(measure_union(counted_ns))
    lengths.append(window[1] - window[0])
    return Account(window, *(b - a for a, b in pairwise(lengths)))


def select_parts(operations: Iterable[Ran], number: int | None) -> dict[Any, list[Ran]]:
    """Return the operations of an iteration, keyed by rank.

    Only ranks that have at least one F, B, W, BW or FB with a span in this iteration are included.
    """
    operations_of_rank: dict[Any, list[Ran]] = {}
    for o in operations:
        if o.iteration == number:
            operations_of_rank.setdefault(o.rank, []).append(o)
    return {
        rank: operations_of_rank[rank]
        for rank in sorted(operations_of_rank)
        if any(o.phase in COUNTED and o.span is not None for o in operations_of_rank[rank])
    }


def select_spans(operations: Iterable[Ran], *phases: str) -> list[Span]:
    """Return the spans of the operations in the given phases."""
    return [o.span for o in operations if o.phase in phases and o.span is not None]


def find_idle_ranks(operations: Sequence[Ran], number: int) -> set[Any]:
    """Return the ranks without work in this iteration, although the profiler was recording.

    Such a rank works before and after the iteration, or runs its Optimizer.
    """
    working = {(o.iteration, o.rank) for o in operations if o.phase in COUNTED}
    works_earlier = {rank for k, rank in working if k < number}
    works_later = {rank for k, rank in working if k > number}
    stepped = {o.rank for o in operations if o.iteration == number and o.phase == "Optimizer"}
    candidates = (works_earlier & works_later) | ((works_earlier | works_later) & stepped)
    return {rank for rank in candidates if (number, rank) not in working}


def find_windows(
    parts: dict[Any, list[Ran]], following: dict[Any, list[Ran]]
) -> dict[str, dict[Any, Span]]:
    """Return the time window of each rank, keyed by ratio.

    The schedule window lasts from the first start to the last end over all ranks. The step window
    also includes the Optimizers. The stage window starts when the rank starts, and is as long as
    the longest work time of any rank. The period window lasts from a rank's start to its next
    start. It is omitted unless all ranks have a next start.
    """
    extent_of_rank = {r: find_extent(select_spans(p, *WORK)) for r, p in parts.items()}
    begin_ns = min(times[0] for times in extent_of_rank.values() if times)
    # A rank that has no work has an empty window at the start of the iteration.
    own_window = {r: times or (begin_ns, begin_ns) for r, times in extent_of_rank.items()}
    end = max(last for _, last in own_window.values())
    cost = max(last - first for first, last in own_window.values())
    step_end = max([end, *(e for p in parts.values() for _, e in select_spans(p, "Optimizer"))])
    after_worked = {r: find_extent(select_spans(p, *WORK)) for r, p in following.items()}
    next_begin = min((times[0] for times in after_worked.values() if times), default=0)
    next_start = {r: times[0] if times else next_begin for r, times in after_worked.items()}
    result = {
        "schedule": dict.fromkeys(parts, (begin_ns, end)),
        "stage": {r: (first, first + cost) for r, (first, _) in own_window.items()},
        "step": dict.fromkeys(parts, (begin_ns, step_end)),
    }
    if all(r in next_start and first < next_start[r] for r, (first, _) in own_window.items()):
        result["period"] = {r: (first, next_start[r]) for r, (first, _) in own_window.items()}
    return result


def _select_parts_with_idle(operations: Sequence[Ran], number: int) -> dict[Any, list[Ran]]:
    """Return the operations of all ranks that are active or idle in an iteration, keyed by rank."""
    parts = select_parts(operations, number)
    if not parts:
        return {}
    idle = find_idle_ranks(operations, number)
    of_idle = {r: [o for o in operations if (o.iteration, o.rank) == (number, r)] for r in idle}
    together = parts | of_idle
    return {rank: together[rank] for rank in sorted(together)}


def compute_numbers(
    number: int,
    following: int | None,
    operations: Sequence[Ran],
    unattributed: Mapping[Any, Sequence[Span]],
) -> dict[Any, RankIteration]:
    """Return the windows, accounts and ratios of one iteration, keyed by rank.

    An iteration that contains a backward is a training iteration. In a training iteration, a rank
    without F or without B is marked as ``missing`` that work.
    """
    parts = _select_parts_with_idle(operations, number)
    if not parts:
        return {}
    windows = find_windows(
        parts, {} if following is None else _select_parts_with_idle(operations, following)
    )
    idle = find_idle_ranks(operations, number)
    training = any(o.phase in ("B", "BW", "W") for p in parts.values() for o in p)
    result = {}
    for rank, part in parts.items():
        sets = (
            [b for o in part if o.phase in WORK for b in o.busy],
            [b for o in part if o.phase == "Optimizer" for b in o.busy],
            [
                b
                for o in operations
                if o.rank == rank and o.iteration != number and o.phase in COMPUTE
                for b in o.busy
            ],
            unattributed.get(rank, ()),
        )
        accounts = {name: make_account(own[rank], *sets) for name, own in windows.items()}
        lacks_work = not (select_spans(part, "F") and select_spans(part, "B", "BW"))
        missing = training and lacks_work and rank not in idle
        begin_ns = windows["stage"][rank][0]
        first, last = find_extent(select_spans(part, *WORK)) or (begin_ns, begin_ns)
        ratios = {
            name: None
            if missing or name not in accounts
            else compute_idle_share(accounts[name].work(name), accounts[name].length)
            for name in WINDOWS
        }
        result[rank] = RankIteration(first, last, accounts, ratios, missing)
    return result
