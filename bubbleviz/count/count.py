"""Counting: compute the bubble ratios of every iteration and rank, and summarize them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.count import completeness, rank_iterations, rank_slices
from bubbleviz.count.busy_times import USES, measure_use, measure_within_windows
from bubbleviz.count.iterations import Iteration, Ratio
from bubbleviz.count.ratios import CountedWork, Extents, RatioDefinition, Windows, list_ratios
from bubbleviz.count.statistics import compute_median
from bubbleviz.count.summary import Summary, choose_headline, summarize
from bubbleviz.count.window_bounds import WindowBounds, bound_windows
from bubbleviz.errors import ProfileError
from bubbleviz.interpret.start_skew import find_common_starts
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints, make_mask
from bubbleviz.model.grouping import find_distinct, list_rows_by_value
from bubbleviz.model.operations import Operations, RankIntervals
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMPUTE, COUNTED, WORK, Phase
from bubbleviz.model.run_kinds import INFERENCE, TRAINING
from bubbleviz.model.window import Window

#: Maximum time that ranks may wait for another rank's recording to start, as a fraction of the
#: median iteration length. Iterations with longer waits are excluded.
_LONG_WAIT = 0.05
#: Maximum time between two operations of a rank: one year, in ns. No capture is that long, and sums
#: of longer times over many ranks would overflow 64 bits.
_YEAR_NS = 365 * 86_400 * 10**9


#: Reason given for a missing ratio if none of the rank's forwards and backwards is missing.
_INCOMPLETE = "the capture does not contain all of the iteration"


@dataclass(frozen=True)
class Counts:
    """Iterations with their ratios, a summary of the ratios, and the ratio to quote.

    Attributes:
        iterations: All iterations.
        summary: Statistics over the averaged iterations.
        headline: Name of the ratio to quote.
        headline_reason: Clause that explains why this ratio is quoted.
        extents: First start and last end of each rank's work in each iteration.
        windows: Windows for each ratio, keyed by ratio name.
        one_clock: Mask of the iterations in which all ranks' clocks can be compared.
        is_in_window: Mask of the iterations in the requested window. Iterations outside the window
            have no ranks.
        is_uniform: Mask of the iterations in which it is certain that no rank lacks a forward or
            backward.
        awaited_ns: Start of the latest recording for which other ranks had to wait, or None if no
            rank waited.
    """

    iterations: tuple[Iteration, ...]
    summary: Summary
    headline: str
    headline_reason: str
    extents: Extents
    windows: Mapping[str, Windows]
    one_clock: Bools
    is_in_window: Bools
    is_uniform: Bools
    awaited_ns: int | None = None


def count(run: Run, *, skip: int = 0, window: Window | None = None) -> Counts:
    """Compute the ratios for every iteration and summarize them.

    The summary averages the iterations selected by :func:`_choose_averaged`.

    Args:
        run: The run, merged from all its profiles.
        skip: Number of iterations at the start of the run or window that the summary leaves out.
        window: Part of the run to analyze, or None for the whole run.

    Raises:
        InputError: No iteration is in the window.
        ProfileError: Times on one rank are more than a year apart.
    """
    _refuse_far_times(run)
    measured = _measure_iterations(run)
    is_in_window = _mask_in_window(measured.iterations, window)
    in_window = [measured.iterations[k] for k in np.flatnonzero(is_in_window).tolist()]
    averaged = _choose_averaged(in_window, skip)
    iterations = []
    for iteration, is_inside in zip(measured.iterations, is_in_window.tolist(), strict=True):
        if is_inside:
            iterations.append(replace(iteration, averaged=iteration.index in averaged))
        else:
            no_ranks = iteration.ranks.select_ranks(iteration.ranks.rank[:0])
            iterations.append(replace(iteration, ranks=no_ranks))
    headline, reason = choose_headline(iterations)
    return Counts(
        iterations=tuple(iterations),
        summary=summarize(iterations),
        headline=headline,
        headline_reason=reason,
        extents=measured.extents,
        windows=measured.windows,
        one_clock=measured.one_clock,
        is_in_window=is_in_window,
        is_uniform=measured.is_uniform,
        awaited_ns=measured.awaited_ns,
    )


def _mask_in_window(iterations: Sequence[Iteration], window: Window | None) -> Bools:
    """Return a mask of the iterations in a window. If ``window`` is None, it is all True.

    Raises:
        InputError: No iteration is in the window.
    """
    if window is None:
        return np.ones(len(iterations), bool)
    start_ns = np.array([iteration.start_ns for iteration in iterations], np.int64)
    end_ns = np.array([iteration.end_ns for iteration in iterations], np.int64)
    return window.mask_iterations([iteration.name for iteration in iterations], start_ns, end_ns)


def _choose_averaged(candidates: Sequence[Iteration], skip: int) -> set[int]:
    """Return the indices of the iterations that the summary averages.

    Complete inference iterations are averaged. Complete training iterations are averaged if they
    have the usual number of microbatches, which is the most common number among complete training
    iterations, including skipped ones. If several numbers are equally frequent, the largest wins.

    Args:
        candidates: Iterations in the window.
        skip: Number of iterations at the start that are left out.
    """
    training = [i.microbatches for i in candidates if i.complete and i.kind == TRAINING]
    numbers = [number for number in training if number is not None]
    usual = max(numbers, key=lambda number: (numbers.count(number), number), default=None)
    averaged = set()
    for candidate in candidates[skip:]:
        is_usual = candidate.kind == TRAINING and candidate.microbatches == usual
        # The sizes of inference batches depend on the requests, so all sizes are averaged.
        if candidate.complete and (candidate.kind == INFERENCE or is_usual):
            averaged.add(candidate.index)
    return averaged


def _refuse_far_times(run: Run) -> None:
    """Raise an error if any rank's operations span more than a year.

    Raises:
        ProfileError: Times on one rank are more than a year apart.
    """
    operations = run.operations
    spanned = operations.has_span == 1
    if not spanned.any():
        return
    columns = (operations.rank, operations.start_ns, operations.end_ns)
    rank_of, start_ns, end_ns = (column[spanned] for column in columns)
    low_ns, high_ns = intervals.group_extents(rank_of, len(run.ranks), start_ns, end_ns)
    span_ns = high_ns.astype(float) - low_ns.astype(float)
    rank = int(span_ns.argmax())
    if span_ns[rank] > _YEAR_NS:
        years = span_ns[rank] / _YEAR_NS
        raise ProfileError(
            f"the times of {run.ranks[rank].label} span {years:,.1f} years, so some are damaged; "
            "copy the profiles again, or record again",
            hosts=[run.ranks[rank].host],
        )


@dataclass(frozen=True)
class _Measurements:
    """Iterations with ``averaged`` still unset, and further columns of :class:`Counts`."""

    iterations: tuple[Iteration, ...]
    extents: Extents
    windows: Mapping[str, Windows]
    one_clock: Bools
    is_uniform: Bools
    awaited_ns: int | None


def _measure_iterations(run: Run) -> _Measurements:
    """Measure all iterations of a run. The averaged iterations are chosen later.

    If ranks had to wait for another rank's recording to start, all iterations of this capture that
    began before that start are incomplete.
    """
    extents, evidence, may_have_run, has_stepped = _collect_presence(run)
    starts_ns = find_iteration_starts(extents)
    statuses = completeness.classify_iterations(
        evidence,
        run.operations.phase,
        can_idle=_find_possibly_idle(run, extents) & ~may_have_run,
        is_recorded=has_stepped & (_find_capture_starts(run, starts_ns) <= starts_ns),
    )
    awaited_ns = _find_awaited_recordings(run, extents)
    began_unrecorded = np.zeros(len(extents.present), bool)
    for start_ns in awaited_ns:
        paused_ns = run.pauses.start_ns[run.pauses.start_ns < start_ns]
        is_in_capture = starts_ns[:, 0] > paused_ns.max(initial=np.iinfo(np.int64).min)
        began_unrecorded |= is_in_capture & (starts_ns[:, 0] < start_ns)
    statuses = replace(statuses, complete=statuses.complete & ~began_unrecorded)
    extents = add_idle_ranks(extents, statuses.idle)
    bounds = {
        ratio.name: bound_windows(ratio, extents, run.timebase)
        for ratio in list_ratios()
        if ratio.common_clock
    }
    windows, ranks = _make_accounts(run, extents, statuses, bounds)
    iterations = [
        _make_iteration(run, extents, statuses, ranks, k) for k in range(len(run.iteration_names))
    ]
    return _Measurements(
        iterations=tuple(
            replace(iteration, began_unrecorded=bool(began_unrecorded[iteration.index]))
            for iteration in iterations
        ),
        extents=extents,
        windows=windows,
        one_clock=np.logical_and.reduce([b.comparable for b in bounds.values()]) & run.paired,
        is_uniform=statuses.is_uniform,
        awaited_ns=awaited_ns[-1] if awaited_ns else None,
    )


def _find_capture_starts(run: Run, times_ns: Ints) -> Ints:
    """Return the start of each rank's capture that contains a time, in ns.

    Args:
        run: The run, merged from all its profiles.
        times_ns: Times, shape (iterations, 1).

    Returns:
        Starts, shape (iterations, ranks). If a rank is not captured at a time, its latest earlier
        capture is used, or its first capture if there is none.
    """
    start_ns = np.repeat(run.recorded_start_ns[None, :], len(times_ns), axis=0)
    for rank, rows in list_rows_by_value(run.pauses.rank):
        ends_ns = run.pauses.end_ns[rows]
        n_ended = np.searchsorted(run.pauses.start_ns[rows], times_ns[:, 0])
        start_ns[:, rank] = np.where(n_ended > 0, ends_ns[n_ended - 1], start_ns[:, rank])
    return start_ns


def _collect_presence(run: Run) -> tuple[Extents, completeness.Evidence, Bools, Bools]:
    """Collect the results of :func:`find_presence` over all slices of a run.

    Returns:
        extents: First start and last end of all ranks in all iterations.
        evidence: Evidence of whether the iterations are complete.
        may_have_run: Mask of the ranks that may have run a forward or backward in the iteration,
            shape (iterations, ranks).
        has_stepped: Mask of the ranks that ran an Optimizer in the iteration to its end, shape
            (iterations, ranks).
    """
    parts = [find_presence(part) for part in rank_slices.split_ranks(run)]
    columns = rank_slices.join_ranks([columns for columns, _ in parts])
    first_ns, last_ns, step_last_ns, present, may_have_run, has_stepped = columns
    paused = _find_paused_iterations(run.pauses, first_ns, present)
    extents = Extents(first_ns, last_ns, step_last_ns, present, paused)
    evidence = completeness.join_evidence([evidence for _, evidence in parts])
    if paused is not None and run.has_kernels:
        # Recorders pause only between complete iterations, but profilers may pause at any time.
        is_resumed = np.append(False, paused[:-1])[:, None]
        evidence = replace(evidence, is_resumed=np.broadcast_to(is_resumed, present.shape))
    return extents, evidence, may_have_run, has_stepped


def _make_accounts(
    run: Run,
    extents: Extents,
    statuses: completeness.IterationStatuses,
    bounds: Mapping[str, WindowBounds],
) -> tuple[dict[str, Windows], rank_iterations.RankColumns]:
    """Measure how each rank spent the time in the windows of all ratios.

    A window is marked as unknown in two cases:

    - The window depends on clocks that cannot be compared.
    - The window depends on several ranks, and the iterations of the ranks are not paired.

    Args:
        run: The run, merged from all its profiles.
        extents: First start and last end of each rank's work in each iteration.
        statuses: The kind of each iteration, and whether it is complete.
        bounds: Window bounds for each ratio that needs a common clock, keyed by ratio name.

    Returns:
        windows: Windows for each ratio, keyed by ratio name.
        ranks: Measurements of all ranks in all iterations.
    """
    windows = {ratio.name: ratio.windows(extents) for ratio in list_ratios()}
    parts = [measure_use(part, windows) for part in rank_slices.split_ranks(run)]
    times = dict(zip(parts[0], rank_slices.join_ranks(parts), strict=True))
    accounts = {}
    for ratio in list_ratios():
        name, window = ratio.name, windows[ratio.name]
        is_known = window.is_known & (run.paired or not ratio.across_ranks)
        if name in bounds:
            is_known = is_known & bounds[name].comparable
        windows[name] = replace(window, is_known=is_known)
        uses = {use: times[name, use] for use in USES}
        accounts[name] = _make_account(run, ratio, windows[name], bounds.get(name), uses)
    # In an incomplete iteration, the reason given for all other ranks is that it is incomplete.
    has_reason = statuses.complete[:, None] | (statuses.missing > 0)
    ranks = rank_iterations.RankColumns(
        phase_ns=times["", "phase_ns"],
        compute_ns=times["", "compute_ns"],
        active_ns=run.active_ns,
        first_ns=extents.first_ns,
        last_ns=extents.last_ns,
        kernel_ns=run.kernel_ns,
        gap_ns=run.gap_ns,
        missing=np.where(has_reason, statuses.missing, len(completeness.LACKS)),
        reasons=(*completeness.LACKS, _INCOMPLETE),
        accounts=accounts,
    )
    return windows, ranks


def _make_account(
    run: Run,
    ratio: RatioDefinition,
    window: Windows,
    bounds: WindowBounds | None,
    uses: Mapping[str, Ints],
) -> rank_iterations.AccountColumns:
    """Build the account for one ratio: how the ranks spent the time in its windows.

    ``work_ns`` is the iteration's compute time. If the ratio counts the Optimizer as work,
    ``optimizer_ns`` is added. If the ratio counts everything as work, ``overlap_ns`` (time spent on
    other iterations) is also added.

    Args:
        run: The run, merged from all its profiles.
        ratio: Definition of the ratio.
        window: Windows of the ratio.
        bounds: Bounds of the windows, or None if the ratio needs no common clock.
        uses: Time spent on each use in the windows, keyed by use, shape (iterations, ranks).
    """
    is_known = window.is_known[:, None]
    low_ns = np.where(is_known, window.start_ns, 0)
    high_ns = np.maximum(np.where(is_known, window.end_ns, 0), low_ns)
    work_ns = uses["compute_ns"]
    if ratio.work is not CountedWork.ITERATION:
        work_ns = work_ns + uses["optimizer_ns"]
    if ratio.work is CountedWork.EVERYTHING:
        work_ns = work_ns + uses["overlap_ns"]
    return rank_iterations.AccountColumns(
        start_ns=window.start_ns,
        end_ns=window.end_ns,
        **uses,
        running_ns=measure_within_windows(run.running, run.running.running_ns, low_ns, high_ns),
        work_ns=work_ns,
        is_known=tuple(window.is_known.tolist()),
        bounds=bounds,
    )


def _make_iteration(
    run: Run,
    extents: Extents,
    statuses: completeness.IterationStatuses,
    ranks: rank_iterations.RankColumns,
    k: int,
) -> Iteration:
    """Build one iteration with its ratios and ranks, without setting ``averaged``.

    The iteration lasts from the first start to the last end of all ranks, including the Optimizer.
    If no rank takes part, both times are 0.

    Args:
        run: The run, merged from all its profiles.
        extents: First start and last end of each rank's work in each iteration. Idle ranks are
            included.
        statuses: The kind of each iteration, and whether it is complete.
        ranks: Measurements of all ranks in all iterations.
        k: Index of the iteration.
    """
    present = np.flatnonzero(extents.present[k])
    has_ranks = len(present) > 0
    return Iteration(
        index=k,
        name=run.iteration_names[k],
        kind=statuses.kind[k],
        complete=bool(statuses.complete[k]),
        unmatched=bool(statuses.unmatched[k]),
        averaged=False,
        microbatches=statuses.microbatches[k],
        start_ns=int(extents.first_ns[k, present].min()) if has_ranks else 0,
        end_ns=int(extents.step_last_ns[k, present].max()) if has_ranks else 0,
        ratios={
            ratio.name: _compute_ratio(run, ratio, ranks.accounts[ratio.name], statuses, k, present)
            for ratio in list_ratios()
        },
        ranks=rank_iterations.RankIterations(ranks, k, present),
    )


def find_presence(
    part: rank_slices.RankSlice,
) -> tuple[dict[str, Ints | Bools], completeness.Evidence]:
    """Determine when each rank in a slice worked in each iteration, and collect evidence.

    A rank takes part in an iteration if an F, B, W, BW or FB of the iteration has GPU work.

    Args:
        part: Consecutive ranks of the run, along with their operations.

    Returns:
        columns: Arrays of shape (iterations, ranks), keyed by name: the columns of :class:`Extents`
            and two masks. The mask ``may_have_run`` contains the ranks that may have run a forward
            or backward in the iteration. The mask ``has_stepped`` contains the ranks that ran an
            Optimizer in the iteration to its end.
        evidence: Evidence of whether the iterations are complete.
    """
    operations, shape = part.operations, part.shape
    cell = operations.iteration * shape[1] + operations.rank
    usable = (operations.has_span == 1) & (operations.iteration >= 0)

    def find_extents(phases: Sequence[Phase]) -> tuple[Ints, Ints]:
        """Return the phases' first start and last end in each cell, shape (iterations, ranks)."""
        is_selected = usable & mask_phases(operations.phase, phases)
        rows = slice(None) if is_selected.all() else np.flatnonzero(is_selected)
        start_ns, end_ns = operations.start_ns[rows], operations.end_ns[rows]
        first, last = intervals.group_extents(cell[rows], shape[0] * shape[1], start_ns, end_ns)
        return first.reshape(shape), last.reshape(shape)

    first_ns, last_ns = find_extents(WORK)
    is_pass = mask_phases(operations.phase, COUNTED)
    present = make_mask(shape[0] * shape[1], cell[usable & is_pass]).reshape(shape)
    may_have_run = make_mask(present.size, cell[find_possible_work(operations, cell)])
    whole_steps = usable & (operations.phase == Phase.OPTIMIZER) & (operations.cut == 0)
    columns: dict[str, Ints | Bools] = {
        "first_ns": first_ns,
        "last_ns": last_ns,
        "step_last_ns": find_extents(COMPUTE)[1],
        "present": present,
        "may_have_run": may_have_run.reshape(shape),
        "has_stepped": make_mask(present.size, cell[whole_steps]).reshape(shape),
    }
    return columns, completeness.collect_evidence(operations, present)


def find_possible_work(operations: Operations, cell: Ints) -> Bools:
    """Return a mask of the forwards and backwards that may have run on the device.

    The mask contains the F, B, W, BW and FB operations of iterations, except those that certainly
    ran nothing. An operation certainly ran nothing if it launched nothing, if it was not cut off,
    and if its rank was recorded. Other GPU work in the same cell (iteration and rank), such as an
    Optimizer, shows that the rank was recorded::

        launches      F0 B0   Optimizer   F0 B0       Optimizer   F0 B0   Optimizer
        recorded      F0 B0   Optimizer               Optimizer                         not recorded
                                          ran nothing             unknown

    Args:
        operations: Operations of some ranks.
        cell: Number of the cell (iteration and rank) of each operation.
    """
    is_work = (operations.iteration >= 0) & mask_phases(operations.phase, COUNTED)
    is_recorded = (operations.iteration >= 0) & (operations.has_span == 1)
    launched_nothing = (operations.has_span == 0) & (operations.launched_ns == NONE)
    is_empty = (
        launched_nothing & (operations.cut == 0) & np.isin(cell, find_distinct(cell[is_recorded]))
    )
    return np.asarray(is_work & ~is_empty, bool)


def find_iteration_starts(extents: Extents) -> Ints:
    """Return each iteration's earliest start on any rank, shape (iterations, 1).

    The result is the largest int64 for an iteration in which no rank takes part.
    """
    never = np.iinfo(np.int64).max
    first_ns = np.where(extents.present, extents.first_ns, never)
    starts_ns: Ints = first_ns.min(axis=1, keepdims=True, initial=never)
    return starts_ns


def _find_awaited_recordings(run: Run, extents: Extents) -> list[int]:
    """Return the starts of the recordings for which other ranks had to wait, ascending.

    Such a wait is not a bubble, because the awaited rank may be late only because its profiler was
    starting. Only waits longer than ``_LONG_WAIT`` times the median iteration length are
    considered.
    """
    starts_ns = find_iteration_starts(extents)
    parts_ns = np.where(extents.present, extents.step_last_ns - starts_ns, 0)
    length_ns = parts_ns.max(axis=1, initial=0)
    usual_ns = compute_median(length_ns[extents.present.any(axis=1)])
    long_ns = 0 if np.isnan(usual_ns) else round(_LONG_WAIT * usual_ns)
    return find_common_starts(run.recorded, long_ns)


def _find_possibly_idle(run: Run, extents: Extents) -> Bools:
    """Return a mask of the ranks that may have had nothing to run in each iteration.

    The mask has the shape (iterations, ranks), and is False where the rank's recording paused
    during the iteration. If the ranks' iterations are not paired, or if the clocks of any ranks
    cannot be compared, the mask is all False.
    """
    can_idle = np.zeros(extents.present.shape, bool)
    is_comparable = run.timebase.comparable[run.timebase.machine]
    if not (run.paired and is_comparable.all()):
        return can_idle
    can_idle[:] = True
    starts_ns = find_iteration_starts(extents)
    ends_ns = np.where(extents.present, extents.step_last_ns, starts_ns).max(axis=1, keepdims=True)
    with_work = np.flatnonzero(extents.present.any(axis=1))
    worked_ns = starts_ns[with_work, 0], ends_ns[with_work, 0]
    pauses_ns = run.pauses.start_ns, run.pauses.end_ns
    pause, index = intervals.find_overlaps(pauses_ns, worked_ns)
    can_idle[with_work[index], run.pauses.rank[pause]] = False
    return can_idle


def add_idle_ranks(extents: Extents, is_idle: Bools) -> Extents:
    """Mark idle ranks as present, with zero-length work at the start of the iteration.

    Idle ranks then have the same windows as all other ranks.

    Args:
        extents: First start and last end of each rank's work in each iteration.
        is_idle: Mask of the idle ranks, shape (iterations, ranks).

    Returns:
        The extents, with idle ranks marked as present.
    """
    if not is_idle.any():
        return extents
    starts_ns = np.broadcast_to(find_iteration_starts(extents), is_idle.shape)
    step_last_ns = np.maximum(extents.step_last_ns, starts_ns)
    return replace(
        extents,
        first_ns=np.where(is_idle, starts_ns, extents.first_ns),
        last_ns=np.where(is_idle, starts_ns, extents.last_ns),
        step_last_ns=np.where(is_idle, step_last_ns, extents.step_last_ns),
        present=extents.present | is_idle,
    )


def _find_paused_iterations(pauses: RankIntervals, first_ns: Ints, present: Bools) -> Bools | None:
    """Return a mask of the iterations with a pause in any recording, or None if nothing paused.

    A pause belongs to the last iteration that its rank had started when the pause began, even if
    the rank had already finished that iteration.

    Args:
        pauses: Pauses in the recordings of ranks.
        first_ns: First start of each rank's work in each iteration, shape (iterations, ranks).
        present: Mask of the ranks that take part, shape (iterations, ranks).

    Returns:
        Mask, shape (iterations,), or None.
    """
    if len(pauses) == 0:
        return None
    is_paused = np.zeros(len(first_ns), bool)
    for rank in find_distinct(pauses.rank).tolist():
        iterations = np.flatnonzero(present[:, rank])
        starts_ns = pauses.start_ns[pauses.rank == rank]
        last = np.searchsorted(first_ns[iterations, rank], starts_ns, side="right") - 1
        is_paused[iterations[last[last >= 0]]] = True
    return is_paused


def _compute_idle_share(work_ns: int, window_ns: int) -> float | None:
    """Return the fraction of a window not spent on work, or None if the window is empty."""
    return (window_ns - work_ns) / window_ns if window_ns > 0 else None


def _compute_ratio(
    run: Run,
    ratio: RatioDefinition,
    account: rank_iterations.AccountColumns,
    statuses: completeness.IterationStatuses,
    k: int,
    present: Ints,
) -> Ratio:
    """Compute one ratio for one iteration over its ranks.

    The values are None in each of the following cases:

    - The iteration is incomplete, or no rank takes part.
    - A rank lacks a forward or backward.
    - The window is unknown, or the ranks' iterations are not paired.
    - The ratio counts the iteration's Optimizer as work, and a rank did not finish its Optimizer.

    Args:
        run: The run, merged from all its profiles.
        ratio: Definition of the ratio.
        account: How the ranks spent the time in the windows of the ratio.
        statuses: The kind of each iteration, and whether it is complete.
        k: Index of the iteration.
        present: Indices of the ranks that take part in the iteration.
    """
    incomplete = run.stages_missing or run.ranks_missing or bool(statuses.ranks_missing[k])
    is_unknown = bool(statuses.missing[k, present].any()) or not statuses.complete[k]
    is_unknown = is_unknown or (ratio.work is CountedWork.STEP and not statuses.stepped[k])
    if is_unknown or not (account.is_known[k] and run.paired and len(present)):
        return Ratio(None, None, None, None, incomplete=incomplete)
    n_ranks, bounds = len(present), account.bounds
    window_ns = int((account.end_ns[k, present] - account.start_ns[k, present]).sum())
    work_ns = int(account.work_ns[k, present].sum())
    unattributed_ns = int(account.unattributed_ns[k, present].sum())
    is_contradicted = bounds is not None and bool(bounds.contradicted[k])
    return Ratio(
        value=_compute_idle_share(work_ns, window_ns),
        low=_compute_idle_share(work_ns + unattributed_ns, window_ns),
        overhead=(window_ns - work_ns) / work_ns if work_ns > 0 else None,
        # The mean is rounded to the nearest integer, with halves rounded up.
        window_ns=(2 * window_ns + n_ranks) // (2 * n_ranks),
        interval=None if bounds is None else bounds.compute_interval(k, work_ns, n_ranks),
        incomplete=incomplete,
        contradicted=len(run.timebase.jump_ns) > 0 or is_contradicted,
    )
