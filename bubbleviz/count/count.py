"""Count: the bubble ratios of every iteration, rank and window, and their summary."""

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
from bubbleviz.count.window_bounds import bound_windows
from bubbleviz.errors import ProfileError
from bubbleviz.interpret.start_skew import find_common_start
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints, make_mask
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.operations import Operations, RankIntervals
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMPUTE, COUNTED, WORK, Phase
from bubbleviz.model.run_kinds import INFERENCE, TRAINING
from bubbleviz.model.window import Window

#: Minimum wait for a recording that is excluded, as a fraction of the median iteration length.
_LONG_WAIT = 0.05
#: Maximum time between two operations of a rank, in ns: one year. No capture is as long, and sums
#: of longer times over many ranks would exceed 64 bits.
_YEAR_NS = 365 * 86_400 * 10**9


#: What a rank lacks that ran all of what the capture holds of an iteration.
_INCOMPLETE = "the capture does not hold all of the iteration"


@dataclass(frozen=True)
class Counts:
    """What counting gives: iterations, their summary, and the ratio to quote.

    Attributes:
        iterations: every iteration.
        summary: over the averaged ones.
        headline: name of the ratio to quote.
        headline_reason: why that one.
        extents: first starts and last ends.
        windows: of each ratio, by name.
        one_clock: of each iteration, whether the clocks of all its ranks can be compared.
        is_in_window: of each iteration, whether it lies in the requested window; the others have no
            ranks.
        is_uniform: of each iteration, whether no rank lacks a forward or a backward for sure.
        awaited_ns: Latest start of a recording that other ranks waited for, or None if none waited.
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
    """Return the ratios of every iteration and their summary.

    Args:
        run: the merged profiles.
        skip: how many of the first iterations (of the window) the summary leaves out.
        window: the part of the run to analyse; None for all of it.

    Raises:
        InputError: no iteration lies in the window.
        ProfileError: Times of a rank are more than a year apart.
    """
    _refuse_far_times(run)
    iterations, extents, windows, one_clock, alike, awaited_ns = _measure_iterations(run)
    inside = np.ones(len(iterations), bool)
    if window is not None:
        start_ns = np.array([i.start_ns for i in iterations], np.int64)
        end_ns = np.array([i.end_ns for i in iterations], np.int64)
        inside = window.mask_iterations([i.name for i in iterations], start_ns, end_ns)
    candidates = [iterations[k] for k in np.flatnonzero(inside).tolist()]
    # The most frequent number of microbatches of complete training iterations, of several the
    # largest.
    training = [i.microbatches for i in candidates if i.complete and i.kind == TRAINING]
    counts = [c for c in training if c is not None]
    usual = max(counts, key=lambda c: (counts.count(c), c), default=None)
    averaged = set()
    for candidate in candidates[skip:]:
        is_usual = candidate.kind == TRAINING and candidate.microbatches == usual
        # Batches of requests are as long as they happen to be.
        if candidate.complete and (candidate.kind == INFERENCE or is_usual):
            averaged.add(candidate.index)
    marked_iterations = []
    for iteration, is_inside in zip(iterations, inside.tolist(), strict=True):
        if is_inside:
            is_averaged = iteration.index in averaged
            marked_iterations.append(replace(iteration, averaged=is_averaged))
        else:
            no_ranks = iteration.ranks.select_ranks(iteration.ranks.rank[:0])
            marked_iterations.append(replace(iteration, ranks=no_ranks))
    iterations = tuple(marked_iterations)
    headline, reason = choose_headline(iterations)
    summary = summarize(iterations)
    measured = extents, windows, one_clock, inside, alike, awaited_ns
    return Counts(iterations, summary, headline, reason, *measured)


def _refuse_far_times(run: Run) -> None:
    """Refuse a run with damaged times.

    Raises:
        ProfileError: Times of a rank are more than a year apart.
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
            f"times of {run.ranks[rank].label} lie {years:,.1f} years apart, so some are damaged; "
            "copy the profiles again, or record again",
            hosts=[run.ranks[rank].host],
        )


def _measure_iterations(
    run: Run,
) -> tuple[tuple[Iteration, ...], Extents, dict[str, Windows], Bools, Bools, int | None]:
    """Return all iterations, none averaged, and of :class:`Counts` what they rest on."""
    ratios = list_ratios()
    present = [find_presence(part) for part in rank_slices.split_ranks(run)]
    columns = rank_slices.join_ranks([of_ranks for of_ranks, _ in present])
    first_ns, last_ns, step_last_ns, takes_part, may_have_run, has_stepped = columns
    paused = _find_paused_iterations(run.pauses, first_ns, takes_part)
    extents = Extents(first_ns, last_ns, step_last_ns, takes_part, paused)
    evidence = completeness.join_evidence([own for _, own in present])
    is_running = run.recorded_start_ns <= find_iteration_starts(extents)
    statuses = completeness.classify_iterations(
        evidence,
        run.operations.phase,
        can_idle=_find_possibly_idle(run, extents) & ~may_have_run,
        is_recorded=has_stepped & is_running,
    )
    awaited_ns = _find_awaited_recording(run, extents)
    began_unrecorded = np.zeros(len(extents.present), bool)
    if awaited_ns is not None:
        began_unrecorded = find_iteration_starts(extents)[:, 0] < awaited_ns
    statuses = replace(statuses, complete=statuses.complete & ~began_unrecorded)
    extents = add_idle_ranks(extents, statuses.idle)
    first_ns, last_ns, step_last_ns = extents.first_ns, extents.last_ns, extents.step_last_ns
    takes_part = extents.present
    windows = {ratio.name: ratio.windows(extents) for ratio in ratios}
    parts = [measure_use(part, windows) for part in rank_slices.split_ranks(run)]
    times = dict(zip(parts[0], rank_slices.join_ranks(parts), strict=True))
    bounds = {r.name: bound_windows(r, extents, run.timebase) for r in ratios if r.common_clock}
    accounts = {}
    for ratio in ratios:
        name, clocks = ratio.name, bounds.get(ratio.name)
        # Windows are known only where the clocks of the ranks can measure them. Where ranks'
        # iterations are not known to be the same, only a rank's own window is.
        known = windows[name].known & (run.paired or not ratio.across_ranks)
        known = known if clocks is None else known & clocks.comparable
        window = windows[name] = replace(windows[name], known=known)
        uses = {use: times[name, use] for use in USES}
        low_ns = np.where(known[:, None], window.start_ns, 0)
        high_ns = np.maximum(np.where(known[:, None], window.end_ns, 0), low_ns)
        work_ns = uses["compute_ns"]
        if ratio.work is not CountedWork.ITERATION:
            work_ns = work_ns + uses["optimizer_ns"]
        if ratio.work is CountedWork.EVERYTHING:
            work_ns = work_ns + uses["overlap_ns"]
        accounts[name] = rank_iterations.AccountColumns(
            start_ns=window.start_ns,
            end_ns=window.end_ns,
            **uses,
            running_ns=measure_within_windows(run.running, run.running.running_ns, low_ns, high_ns),
            work_ns=work_ns,
            known=tuple(known.tolist()),
            bounds=clocks,
        )
    # Of an incomplete iteration a rank lacks something in any case.
    whole = statuses.complete[:, None] | (statuses.missing > 0)
    ranks = rank_iterations.RankColumns(
        phase_ns=times["", "phase_ns"],
        compute_ns=times["", "compute_ns"],
        active_ns=run.active_ns,
        first_ns=first_ns,
        last_ns=last_ns,
        kernel_ns=run.kernel_ns,
        gap_ns=run.gap_ns,
        missing=np.where(whole, statuses.missing, len(completeness.LACKS)),
        reasons=(*completeness.LACKS, _INCOMPLETE),
        accounts=accounts,
    )
    comparable = np.logical_and.reduce([b.comparable for b in bounds.values()]) & run.paired
    iterations = []
    for k, name in enumerate(run.iteration_names):
        at = np.flatnonzero(takes_part[k])
        iterations.append(
            Iteration(
                index=k,
                name=name,
                kind=statuses.kind[k],
                complete=bool(statuses.complete[k]),
                unmatched=bool(statuses.unmatched[k]),
                began_unrecorded=bool(began_unrecorded[k]),
                averaged=False,
                microbatches=statuses.microbatches[k],
                start_ns=int(first_ns[k, at].min()) if len(at) else 0,
                end_ns=int(step_last_ns[k, at].max()) if len(at) else 0,
                ratios={
                    r.name: _compute_ratio(run, r, accounts[r.name], statuses, k, at)
                    for r in ratios
                },
                ranks=rank_iterations.RankIterations(ranks, k, at),
            )
        )
    return tuple(iterations), extents, windows, comparable, statuses.is_uniform, awaited_ns


def find_presence(
    part: rank_slices.RankSlice,
) -> tuple[dict[str, Ints | Bools], completeness.Evidence]:
    """Return what the ranks of a slice ran in iterations, and when; no windows are needed for it.

    Args:
        part: some ranks of a run.

    Returns:
        columns: The columns of :class:`Extents` by name, and two masks. ``may_have_run``: the
            rank may have run a forward or backward of the iteration. ``has_stepped``: the rank ran
            its Optimizer to the end.
        evidence: Evidence on whether the iterations are complete.
    """
    operations, shape = part.operations, part.shape
    cell = operations.iteration * shape[1] + operations.rank
    usable = (operations.has_span == 1) & (operations.iteration >= 0)

    def over(phases: Sequence[Phase]) -> tuple[Ints, Ints]:
        rows = usable & mask_phases(operations.phase, phases)
        some = slice(None) if rows.all() else np.flatnonzero(rows)
        start_ns, end_ns = operations.start_ns[some], operations.end_ns[some]
        first, last = intervals.group_extents(cell[some], shape[0] * shape[1], start_ns, end_ns)
        return first.reshape(shape), last.reshape(shape)

    first_ns, last_ns = over(WORK)
    counted = mask_phases(operations.phase, COUNTED)
    present = make_mask(shape[0] * shape[1], cell[usable & counted]).reshape(shape)
    may_have_run = make_mask(present.size, cell[find_possible_work(operations, cell)])
    whole_steps = usable & (operations.phase == Phase.OPTIMIZER) & (operations.cut == 0)
    columns: dict[str, Ints | Bools] = {
        "first_ns": first_ns,
        "last_ns": last_ns,
        "step_last_ns": over(COMPUTE)[1],
        "present": present,
        "may_have_run": may_have_run.reshape(shape),
        "has_stepped": make_mask(present.size, cell[whole_steps]).reshape(shape),
    }
    return columns, completeness.collect_evidence(operations, present)


def find_possible_work(operations: Operations, cell: Ints) -> Bools:
    """Return a mask of the forwards and backwards that may have run on the device.

    A range that launched nothing ran nothing if the rank was recorded in the iteration, which
    other GPU work of the iteration shows, for example the Optimizer::

        launches      F0 B0   Optimizer   F0 B0       Optimizer   F0 B0   Optimizer
        recorded      F0 B0   Optimizer               Optimizer                         not recorded
                                          ran nothing             unknown

    Args:
        operations: Operations of some ranks.
        cell: Number of the iteration and rank of each operation.
    """
    is_work = (operations.iteration >= 0) & mask_phases(operations.phase, COUNTED)
    is_recorded = (operations.iteration >= 0) & (operations.has_span == 1)
    launched_nothing = (operations.has_span == 0) & (operations.launched_ns == NONE)
    is_empty = (
        launched_nothing & (operations.cut == 0) & np.isin(cell, find_distinct(cell[is_recorded]))
    )
    return np.asarray(is_work & ~is_empty, bool)


def find_iteration_starts(extents: Extents) -> Ints:
    """Return the earliest start of each iteration on any rank, shape (iterations, 1).

    The start of an iteration without work is the largest int64.
    """
    never = np.iinfo(np.int64).max
    first_ns = np.where(extents.present, extents.first_ns, never)
    starts_ns: Ints = first_ns.min(axis=1, keepdims=True, initial=never)
    return starts_ns


def _find_awaited_recording(run: Run, extents: Extents) -> int | None:
    """Return the latest start of a recording that other ranks waited for, or None if none waited.

    Such a wait does not count as a bubble, because the rank may be late only because its profiler
    was starting.
    """
    starts_ns = find_iteration_starts(extents)
    parts_ns = np.where(extents.present, extents.step_last_ns - starts_ns, 0)
    length_ns = parts_ns.max(axis=1, initial=0)
    usual_ns = compute_median(length_ns[extents.present.any(axis=1)])
    long_ns = 0 if np.isnan(usual_ns) else round(_LONG_WAIT * usual_ns)
    return find_common_start(run.recorded, long_ns)


def _find_possibly_idle(run: Run, extents: Extents) -> Bools:
    """Return a mask of the iterations in which each rank may have had nothing to run.

    The mask is False if the clocks of the ranks cannot be compared, or if the recording of the rank
    paused during the iteration. Its shape is (iterations, ranks).
    """
    can_idle = np.zeros(extents.present.shape, bool)
    is_comparable = run.timebase.comparable[run.timebase.machine]
    if not (run.paired and is_comparable.all()):
        return can_idle
    can_idle[:] = True
    starts_ns = find_iteration_starts(extents)
    ends_ns = np.where(extents.present, extents.step_last_ns, starts_ns).max(axis=1, keepdims=True)
    worked = np.flatnonzero(extents.present.any(axis=1))
    worked_ns = starts_ns[worked, 0], ends_ns[worked, 0]
    pauses_ns = run.pauses.start_ns, run.pauses.end_ns
    pause, index = intervals.find_overlaps(pauses_ns, worked_ns)
    can_idle[worked[index], run.pauses.rank[pause]] = False
    return can_idle


def add_idle_ranks(extents: Extents, is_idle: Bools) -> Extents:
    """Return extents in which idle ranks take part with work of zero length.

    The work of an idle rank is placed at the start of the iteration, so that its windows are the
    same as on the other ranks.

    Args:
        extents: Extents of all iterations.
        is_idle: Mask of idle ranks, shape (iterations, ranks).
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
    """Return behind which iterations the recording of some rank paused; None for none."""
    if len(pauses) == 0:
        return None
    paused = np.zeros(len(first_ns), bool)
    for rank in find_distinct(pauses.rank).tolist():
        iterations = np.flatnonzero(present[:, rank])
        begins_ns = pauses.start_ns[pauses.rank == rank]
        before = np.searchsorted(first_ns[iterations, rank], begins_ns, side="right") - 1
        paused[iterations[before[before >= 0]]] = True
    return paused


def _compute_idle_share(work_ns: int, window_ns: int) -> float | None:
    """Return the share of a window that is no work; None of an empty one."""
    return (window_ns - work_ns) / window_ns if window_ns > 0 else None


def _compute_ratio(
    run: Run,
    ratio: RatioDefinition,
    account: rank_iterations.AccountColumns,
    statuses: completeness.IterationStatuses,
    k: int,
    present: Ints,
) -> Ratio:
    """Return one ratio over the ranks; unknown where any of them lacks something.

    Args:
        run: the merged profiles.
        ratio: which one.
        account: how ranks used the time of its windows.
        statuses: of the iterations.
        k: its index.
        present: the ranks with work in it.
    """
    incomplete = run.stages_missing or run.ranks_missing or bool(statuses.ranks_missing[k])
    lacking = bool(statuses.missing[k, present].any()) or not statuses.complete[k]
    lacking = lacking or (ratio.work is CountedWork.STEP and not statuses.stepped[k])
    if lacking or not (account.known[k] and run.paired and len(present)):
        return Ratio(None, None, None, None, incomplete=incomplete)
    window_ns = int((account.end_ns[k, present] - account.start_ns[k, present]).sum())
    work_ns = int(account.work_ns[k, present].sum())
    unattributed_ns = int(account.unattributed_ns[k, present].sum())
    bounds = account.bounds
    return Ratio(
        value=_compute_idle_share(work_ns, window_ns),
        low=_compute_idle_share(work_ns + unattributed_ns, window_ns),
        overhead=(window_ns - work_ns) / work_ns if work_ns > 0 else None,
        window_ns=(2 * window_ns + len(present)) // (2 * len(present)),
        interval=None if bounds is None else bounds.compute_interval(k, work_ns, len(present)),
        incomplete=incomplete,
        contradicted=len(run.timebase.jump_ns) > 0
        or (bounds is not None and bool(bounds.contradicted[k])),
    )
