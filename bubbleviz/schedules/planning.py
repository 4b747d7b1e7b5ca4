"""Planning: find the shortest order of operations within a workload's memory limits.

The candidates are the orders of all known schedules, as well as orders from a local search. A lower
bound shows how much shorter an order could be at best.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.known import build_interleaved_plan, list_plans
from bubbleviz.schedules.plan import Order, Plan, PlannedOperation, make_looped_placement
from bubbleviz.schedules.search.makespan_bound import compute_lower_bound
from bubbleviz.schedules.search.orders import find_shortest_orders
from bubbleviz.schedules.search.problem import Codes, build_problem, decode_plan, encode_plan
from bubbleviz.schedules.simulation import Outcome, simulate_outcome
from bubbleviz.schedules.workload import Workload

#: Name of the order that ``interleaved-1f1b`` has with one chunk per device: 1F1B that starts with
#: up to twice as many forwards.
EAGER = "eager-1f1b"


def list_fixed_plans(workload: Workload) -> list[Plan]:
    """Return the plans of all schedules that have a fixed order and a workload's placement.

    - The plans are sorted by name.
    - If several plans differ only in how microbatches are numbered, only one of them is returned.
    - With one chunk per device, an interleaved schedule can have the same order as another
      schedule. The plan then has the name of the other schedule. Otherwise, the name of
      ``interleaved-1f1b`` is ``EAGER``, because the same name stands for two chunks elsewhere.
    - Operations that a schedule would overlap run one after the other instead.
    """
    placement, m = workload.placement, workload.microbatches
    plans = [*list_plans(placement, m), *_list_torch_plans(placement, m)]
    # With one chunk per device, prefer the names of schedules that are not interleaved.
    plans.sort(key=lambda plan: workload.chunks == 1 and plan.name.startswith("interleaved"))
    unique: dict[tuple[tuple[tuple[int, Phase], ...], ...], Plan] = {}
    for plan in plans:
        # All microbatches take the same time, so their order does not matter.
        key = tuple(tuple((op.virtual_stage, op.phase) for op in order) for order in plan.orders)
        is_eager = workload.chunks == 1 and plan.name == "interleaved-1f1b"
        name = EAGER if is_eager else plan.name
        unique.setdefault(key, replace(plan, name=name, together=frozenset()))
    return sorted(unique.values(), key=lambda plan: plan.name)


def _list_torch_plans(placement: tuple[int, ...], microbatches: int) -> list[Plan]:
    """Return the interleaved plans that PyTorch builds if m is not a multiple of p.

    PyTorch divides the microbatches into m // p rounds of equal size, or into one round if m < p
    (``ScheduleInterleaved1F1B`` and ``ScheduleInterleavedZeroBubble`` in
    torch.distributed.pipelining.schedules). The result is empty in any of these cases:

    - m is not divisible by the number of rounds.
    - Each round has p microbatches, as in other interleaved plans.
    - The placement is not a looped placement with several chunks.
    """
    stages = max(placement) + 1
    chunks = len(placement) // stages
    group, rest = divmod(microbatches, max(1, microbatches // stages))
    if rest or group == stages or chunks == 1 or placement != make_looped_placement(stages, chunks):
        return []
    backward_of_name = {"interleaved-1f1b": Phase.BW, "interleaved-zb": Phase.B}
    return [
        build_interleaved_plan(name, stages, microbatches, chunks, group, backward)
        for name, backward in backward_of_name.items()
    ]


#: Names of the orders from the search: with fused backwards, and with backwards split into B and W.
SEARCHED, SEARCHED_SPLIT = "searched", "searched-split"
#: Maximum number of operations in a plan.
_MAX_OPERATIONS = 200_000
#: Maximum number of operations that a search simulates, in total over all orders that it tries.
_MAX_TIMED = 400_000_000


@dataclass(frozen=True)
class BestPlan:
    """The best order for a workload, along with the alternatives.

    Attributes:
        workload: Times and memory of the virtual stages.
        split: Whether orders may split the backward into B and W.
        best: The shortest order within the memory limits. Callers may replace it with another
            candidate.
        candidates: All orders that were considered, named by their schedule, ``searched`` or
            ``searched-split``. Allowed orders come first. Within each group, shorter orders come
            first.
        lower_bound_ns: Lower bound on the length of all orders within the memory limits.
        best_split: If the run's backward is fused, the best order that splits it, assuming that B
            and W take equally long. Otherwise None.
        by_makespan: Whether orders are compared by their makespan. If False, they are compared by
            the longest window of any device.
    """

    workload: Workload
    split: bool
    best: Outcome
    candidates: tuple[Outcome, ...]
    lower_bound_ns: int
    best_split: Outcome | None = None
    by_makespan: bool = True

    def length_ns(self, order: Outcome) -> int:
        """Return the length used to compare an order with others; see ``by_makespan``."""
        return _get_length_ns(order, self.by_makespan)

    def bubble_ratio(self, order: Outcome) -> float | None:
        """Return an order's bubble ratio in the window used to compare orders."""
        ran = order.simulation
        return ran.schedule_ratio if self.by_makespan else ran.stage_ratio

    @property
    def is_proven(self) -> bool:
        """Whether the best order reaches the lower bound, which means that no order is shorter."""
        return self.length_ns(self.best) <= self.lower_bound_ns

    @property
    def max_improvement(self) -> float:
        """Upper bound on the fraction of the best order's length that a better order could save."""
        length = self.length_ns(self.best)
        return (length - self.lower_bound_ns) / length if length else 0.0


def is_plannable(workload: Workload) -> bool:
    """Return whether a workload's number of operations is positive and within the limit."""
    return 0 < 3 * workload.virtual_stages * workload.microbatches <= _MAX_OPERATIONS


def find_best_plan(
    workload: Workload,
    initial_orders: Sequence[Outcome] = (),
    *,
    split: bool | None = None,
    by_makespan: bool = True,
    watch: Watch = unwatched,
) -> BestPlan:
    """Find the best order for a workload among fixed plans and the results of a search.

    If the run's backward is fused and ``split`` is None, the function also searches for orders that
    split the backward, but only as candidates for :attr:`BestPlan.best_split`.

    Args:
        workload: Times of the virtual stages, and the memory of devices.
        initial_orders: Additional orders from which to start the search.
        split: Whether orders may split the backward into B and W, or None to do the same as the
            run.
        by_makespan: Whether to minimize the makespan. If False, the longest window of any device is
            minimized, which is the shortest possible period of a run whose iterations overlap.
        watch: Callback that receives the completed fraction of the search.

    Raises:
        UsageError: There are no operations or too many of them, or there is too little memory for
            one microbatch.
    """
    _check_size(workload)
    may_report_split = split is not False
    split = workload.split if split is None else split
    orders = [simulate_outcome(plan, workload) for plan in list_fixed_plans(workload)]
    kinds = _list_search_kinds(workload, split=split, report_split=split or may_report_split)
    lower_bound_ns = 0
    for n_done, is_fused in enumerate(kinds):
        outcome, bound_ns = _search_orders(
            workload,
            [*initial_orders, *orders],
            fused=is_fused,
            by_makespan=by_makespan,
            watch=partial(_report_part_progress, watch, n_done, len(kinds)),
        )
        orders.append(outcome)
        if is_fused is not split:
            lower_bound_ns = bound_ns
    candidates = [
        replace(order, allowed=order.fits and (split or not order.plan.splits)) for order in orders
    ]
    candidates.sort(key=partial(_make_sort_key, by_makespan=by_makespan))
    best_split = None
    if may_report_split and not split:
        fitting_splits = (order for order in candidates if order.plan.splits and order.fits)
        best_split = next(fitting_splits, None)
    return BestPlan(
        workload,
        split,
        candidates[0],
        tuple(candidates),
        lower_bound_ns,
        best_split=best_split,
        by_makespan=by_makespan,
    )


def _check_size(workload: Workload) -> None:
    """Raise a ``UsageError`` if a workload has no operations or too many."""
    n_operations = 3 * workload.virtual_stages * workload.microbatches
    if n_operations < 1:
        raise UsageError(f"{workload.microbatches} microbatches: must be at least 1")
    if not is_plannable(workload):
        raise UsageError(
            f"{n_operations:,} operations are too many to plan (the maximum is "
            f"{_MAX_OPERATIONS:,}); use fewer microbatches"
        )


def _list_search_kinds(workload: Workload, *, split: bool, report_split: bool) -> list[bool]:
    """Return which searches to run: True for orders with fused backwards, False for split ones.

    There are up to two searches. The search for fused orders comes first. It is skipped if orders
    may split the backward, and on every virtual stage B and W together take no longer than the
    fused backward.

    Args:
        workload: Times of the virtual stages.
        split: Whether orders may split the backward.
        report_split: Whether to search for orders with split backwards. This can be true even if
            ``split`` is false, because the result is also shown to users as a comparison.
    """
    times = zip(workload.fused_ns, workload.backward_ns, workload.weight_ns, strict=True)
    fusing_pays = any(fused < backward + weight for fused, backward, weight in times)
    kinds = []
    if not split or fusing_pays:
        kinds.append(True)
    if report_split:
        kinds.append(False)
    return kinds


def _report_part_progress(watch: Watch, n_done: int, n_parts: int, fraction: float) -> None:
    """Report the progress of one search as a part of the overall progress."""
    watch((n_done + fraction) / n_parts)


def _get_length_ns(order: Outcome, by_makespan: bool) -> int:
    return order.makespan_ns if by_makespan else order.simulation.cost_ns


def _make_sort_key(order: Outcome, by_makespan: bool) -> tuple[bool, int, bool, float, bool, str]:
    """Return a key that sorts orders from best to worst.

    Allowed orders come first, and shorter orders come before longer ones. Ties are broken by
    preferring orders that do not split the backward, then orders that need less memory, then known
    schedules. Remaining ties are broken by name.
    """
    name = order.plan.name
    return (
        not order.allowed,
        _get_length_ns(order, by_makespan),
        order.plan.splits,
        max(order.peak_memory, default=0.0),
        name in {SEARCHED, SEARCHED_SPLIT},
        name,
    )


def _search_orders(
    workload: Workload,
    initial_orders: Sequence[Outcome],
    *,
    fused: bool,
    by_makespan: bool,
    watch: Watch,
) -> tuple[Outcome, int]:
    """Search for the shortest order with fused or with split backwards.

    Args:
        workload: Times of the virtual stages, and the memory of devices.
        initial_orders: Orders to start the search from. Orders that do not fit in memory are
            skipped.
        fused: Whether each backward is a single operation.
        by_makespan: Whether to minimize the makespan. If False, the longest window of any device is
            minimized.
        watch: Callback that receives the completed fraction of the search.

    Returns:
        outcome: The best order found. If B and W take longer than the fused backward, each B that
            is immediately followed by its W may be fused.
        lower_bound_ns: Lower bound on the length of all orders of this kind.
    """
    problem = build_problem(workload, fused=fused, makespan=by_makespan)
    relaxed = workload if fused else _relax_workload(workload)
    lower_bound_ns = compute_lower_bound(build_problem(relaxed, fused=fused, makespan=by_makespan))

    def starts(microbatches: int) -> Iterable[Codes]:
        """Return the codes of the starting orders for a number of microbatches."""
        if microbatches == workload.microbatches:
            plans = [order.plan for order in initial_orders if order.fits]
        else:
            plans = list_fixed_plans(replace(workload, microbatches=microbatches))
        return map(encode_plan, plans)

    _, codes = find_shortest_orders(
        problem, starts, enough=lower_bound_ns, weights=not fused, budget=_MAX_TIMED, watch=watch
    )
    plan = decode_plan(SEARCHED if fused else SEARCHED_SPLIT, problem, codes, fused=fused)
    outcome = simulate_outcome(plan, workload)
    if not fused and relaxed != workload:
        fused_plan = replace(plan, orders=tuple(map(_fuse_backwards, plan.orders)))
        fused_outcome = simulate_outcome(fused_plan, workload)
        outcome = min(outcome, fused_outcome, key=lambda order: _get_length_ns(order, by_makespan))
    return outcome, lower_bound_ns


def _relax_workload(workload: Workload) -> Workload:
    """Shorten B and W so that they take no longer together than the fused backward.

    The lower bound for the resulting workload is also valid for orders that mix split and fused
    backwards.
    """
    backward_and_fused = zip(workload.backward_ns, workload.fused_ns, strict=True)
    backward_ns = tuple(min(backward, fused) for backward, fused in backward_and_fused)
    times = zip(workload.weight_ns, workload.fused_ns, backward_ns, strict=True)
    weight_ns = tuple(min(weight, fused - backward) for weight, fused, backward in times)
    return replace(workload, backward_ns=backward_ns, weight_ns=weight_ns)


def _fuse_backwards(order: Order) -> Order:
    """Return the order in which each B that is immediately followed by its W becomes a BW."""
    fused: list[PlannedOperation] = []
    for op in order:
        if op.phase is Phase.W and fused and fused[-1] == replace(op, phase=Phase.B):
            fused[-1] = replace(op, phase=Phase.BW)
        else:
            fused.append(op)
    return tuple(fused)
