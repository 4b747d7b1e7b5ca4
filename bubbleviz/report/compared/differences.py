"""Describe how two reports differ: schedule, sizes, and times of stages, ranks and links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from bubbleviz.errors import BubblevizError
from bubbleviz.explain.slowness import group_by_stage, score_by_fastest
from bubbleviz.model.texts import format_percent, format_rank_name, to_one_line
from bubbleviz.report.compared.pair import (
    SAME_WORK,
    ReportPair,
    RunPair,
    StagePhase,
    count_stages,
    list_mean_stage_times,
    list_median_stage_times,
    sum_work_ns,
)
from bubbleviz.report.idle_summary import IdleSummary
from bubbleviz.report.ratio_summary import ReportSummary
from bubbleviz.report.restrictions import find_no_pipeline
from bubbleviz.report.run_times import measure_stage_times
from bubbleviz.report.summary import RunSummary
from bubbleviz.schedules.choices import Choice, compare_sizes

#: Minimum relative change in a time for it to be reported.
_MIN_CHANGE = 0.02
#: Minimum change in a slowdown and minimum saving of advice, as fractions. Smaller values are not
#: reported.
_MIN_COST = 0.01
#: Minimum change in a kernel's time for it to be reported, relative to the time of all kernels.
_MIN_KERNEL_CHANGE = 0.005
#: Maximum length of a kernel name, in characters.
_KERNEL_NAME_LENGTH = 100
#: Maximum relative difference between the largest and smallest factors in a uniform change.
_UNIFORM = 0.03

#: The size of a difference in ns, used for sorting, and a sentence about the difference.
_Difference: TypeAlias = tuple[float, str]


def describe_differences(pair: ReportPair) -> Iterator[str]:
    """Yield one line for each difference between two runs.

    The lines are in this order:

    1. Differences in the schedule and in sizes.
    2. The later run's time, as predicted from the earlier run's times.
    3. Changes in times, largest first.
    4. Advice that appears only in the later report.

    For reports on idle time, the lines describe changes in the number of ranks and in kernel times.
    """
    then_sizes, now_sizes = _list_sizes(pair.earlier), _list_sizes(pair.later)
    for name, then in then_sizes.items():
        now = now_sizes.get(name)
        if then is not None and now is not None and then != now:
            yield f"{name}: {then} -> {now}"
    if isinstance(pair, RunPair):
        yield from _describe_prediction(pair)
        yield from _order_by_size(_describe_times(pair))
        yield from _describe_new_advice(pair.earlier, pair.later)
    else:
        yield from _order_by_size(_describe_kernels(pair))


def _order_by_size(differences: Iterable[_Difference]) -> Iterator[str]:
    """Yield the sentences that describe differences, largest difference first."""
    ordered = sorted(differences, key=lambda difference: -difference[0])
    yield from (sentence for _, sentence in ordered)


def _describe_times(pair: RunPair) -> Iterator[_Difference]:
    """Yield the changes in times and slowdowns.

    The compute time of a batch is always compared. Times of stages, and slowdowns of ranks and
    links, are compared only if the runs may be of the same job.
    """
    yield from _describe_batch(pair)
    if pair.job_difference is None:
        # Stage, rank and link numbers identify the same hardware only within one job.
        yield from _describe_stage_times(pair)
        yield from _describe_slowdowns(pair.earlier, pair.later)


def _list_sizes(report: ReportSummary) -> dict[str, str | int | None]:
    """Return the schedule and the numbers of microbatches, ranks and stages of a run.

    Unknown values are None. A report on idle time provides only the number of ranks.
    """
    if isinstance(report, IdleSummary):
        return {"ranks": len(report.ranks)}
    return {
        "schedule": report.schedule_name,
        "microbatches": report.microbatches,
        "ranks": len(report.ranks),
        "stages": count_stages(report),
    }


def _describe_new_advice(earlier: RunSummary, later: RunSummary) -> Iterator[str]:
    """Yield one line for each piece of advice that appears only in the later report.

    Two pieces of advice are the same if they have the same place. Advice that promises to save less
    than ``_MIN_COST`` is left out.
    """
    earlier_places = {advice.place for advice in earlier.advice}
    for advice in later.advice:
        if advice.place in earlier_places or (advice.saving_ratio or 0.0) < _MIN_COST:
            continue
        yield f"new advice: {advice.short}"


def _describe_prediction(pair: RunPair) -> Iterator[str]:
    """Yield a line that says how well the earlier times predict the later run's length.

    The line is left out if both runs have the same schedule and sizes, or if either run is not a
    complete pipeline. It is also left out if the prediction or the later ``schedule`` window is
    unknown.
    """
    window_ns = pair.later.summary.window_ns.get("schedule")
    measured_ns = None if window_ns is None else window_ns.mean
    are_pipelines = all(
        find_no_pipeline(run.restrictions) is None for run in (pair.earlier, pair.later)
    )
    if not measured_ns or not are_pipelines:
        return
    try:
        predicted = _describe_predicted_change(pair)
    except BubblevizError:  # These times or sizes cannot be simulated.
        return
    if predicted is None or predicted.makespan_ns is None or predicted.error_ns is None:
        return
    error_percent = 100 * (predicted.makespan_ns / measured_ns - 1)
    yield (
        f"predicted from the earlier times: {predicted.makespan_ns / 1e6:,.3f} ± "
        f"{predicted.error_ns / 1e6:,.3f} ms (schedule window); measured "
        f"{measured_ns / 1e6:,.3f} ms ({error_percent:+.2f} % off)"
    )


def _describe_predicted_change(pair: RunPair) -> Choice | None:
    """Simulate the later run's schedule and sizes, using the earlier run's times.

    Returns:
        The prediction, or None in any of these cases:

        - Both runs have the same schedule and sizes.
        - The later schedule or the earlier window is unknown.
        - The runs have different numbers of stages and do not compute the same model.

    Raises:
        MismatchError: The time of a virtual stage is unknown.
        UsageError: The earlier schedule cannot be simulated with its sizes.
    """
    earlier, later = pair.earlier, pair.later
    if later.schedule_name is None:
        return None
    times, later_times = measure_stage_times(earlier), measure_stage_times(later)
    sizes = (times.stages, times.microbatches, times.chunks)
    later_sizes = (later_times.stages, later_times.microbatches, later_times.chunks)
    if times.stages != later_times.stages and not _is_same_model(earlier, later):
        return None
    is_same_plan = (earlier.schedule_name, sizes) == (later.schedule_name, later_sizes)
    if is_same_plan or times.window_ns is None:
        return None
    stages, microbatches, chunks = later_sizes
    (predicted,) = compare_sizes(
        times.times, times, [later.schedule_name], [stages], [microbatches], [chunks]
    )
    return predicted


def _is_same_model(earlier: RunSummary, later: RunSummary) -> bool:
    """Return whether a microbatch needs about the same compute time in both runs.

    The times are summed over all stages and may differ by at most ``SAME_WORK``.
    """
    then_ns, now_ns = sum_work_ns(earlier), sum_work_ns(later)
    return abs(then_ns - now_ns) <= SAME_WORK * min(then_ns, now_ns)


def _describe_batch(pair: RunPair) -> Iterator[_Difference]:
    """Yield the change in the compute time of a whole batch, if the number of microbatches changed.

    Nothing is yielded in any of these cases:

    - A number of microbatches is unknown.
    - Times per microbatch are compared, because the runs process different batches.
    - The time changed by less than ``_MIN_CHANGE``.
    """
    then, now = pair.earlier.microbatches or 0, pair.later.microbatches or 0
    if not then or not now or then == now or pair.is_per_microbatch:
        return
    then_ns, now_ns = then * sum_work_ns(pair.earlier), now * sum_work_ns(pair.later)
    if abs(now_ns / then_ns - 1) >= _MIN_CHANGE:
        yield (
            abs(now_ns - then_ns),
            f"work of a whole batch: {then_ns / 1e6:,.3f} ms in {then:,} microbatches, "
            f"{now_ns / 1e6:,.3f} ms in {now:,} ({now_ns / then_ns:.2f}x per token)",
        )


def _describe_kernels(pair: ReportPair) -> Iterator[_Difference]:
    """Yield the changes for all kernels whose time per step changed noticeably.

    The change must exceed ``_MIN_CHANGE`` times the kernel's earlier time, and
    ``_MIN_KERNEL_CHANGE`` times the earlier time of all kernels. A missing kernel counts as taking
    no time.
    """
    before_ns, after_ns = _average_kernels(pair.earlier), _average_kernels(pair.later)
    if not before_ns:
        return
    min_change_ns = _MIN_KERNEL_CHANGE * sum(before_ns.values())
    for name in {**before_ns, **after_ns}:
        then_ns, now_ns = before_ns.get(name, 0.0), after_ns.get(name, 0.0)
        change_ns = abs(now_ns - then_ns)
        if change_ns > max(min_change_ns, _MIN_CHANGE * then_ns):
            kernel = to_one_line(name.partition("(")[0], _KERNEL_NAME_LENGTH)
            yield change_ns, f"kernel {kernel}: {_format_change(then_ns, now_ns)}"


def _average_kernels(report: ReportSummary) -> dict[str, float]:
    """Return each kernel's time per step, or per device if there are no steps.

    Times are in ns, keyed by kernel name. For reports on bubbles, the result is empty.
    """
    if not isinstance(report, IdleSummary):
        return {}
    n_steps = max(report.summary.iterations, 1)
    return {kernels.name: kernels.time_ns / n_steps for kernels in report.kernels}


def _describe_stage_times(pair: RunPair) -> Iterator[_Difference]:
    """Yield the changes in the median times of stages.

    If a phase changed by about the same factor on all stages (:func:`_is_uniform`), a single line
    gives the times of the stage that has the median factor. Otherwise, there is one line per stage.
    Changes of less than ``_MIN_CHANGE`` are left out.

    A slow iteration changes the mean times of all stages by the same factor. It can change the
    median of a single stage, if that stage has a slow rank. A phase therefore also counts as
    changed on all stages if only its mean times changed by the same factor.
    """
    before_ns, after_ns = _match_backwards(
        list_median_stage_times(pair.earlier), list_median_stage_times(pair.later)
    )
    factors = _divide_times(before_ns, after_ns)
    mean_factors = _divide_times(
        *_match_backwards(list_mean_stage_times(pair.earlier), list_mean_stage_times(pair.later))
    )
    changed_keys: dict[int, list[StagePhase]] = {}
    for phase in dict.fromkeys(phase for _, phase in factors):
        keys = sorted(key for key in factors if key[1] == phase)
        known_mean_factors = [mean_factors[key] for key in keys if key in mean_factors]
        if _is_uniform([factors[key] for key in keys]) or _is_uniform(known_mean_factors):
            middle = sorted(keys, key=factors.__getitem__)[len(keys) // 2]
            if _is_changed(factors[middle]):
                change = _format_change(before_ns[middle], after_ns[middle])
                difference_ns = abs(after_ns[middle] - before_ns[middle])
                yield difference_ns, f"all {len(keys)} stages (median): {phase} {change}"
            continue
        for key in keys:
            if _is_changed(factors[key]):
                changed_keys.setdefault(key[0], []).append(key)
    for stage, keys in changed_keys.items():
        difference_ns = max(abs(after_ns[key] - before_ns[key]) for key in keys)
        changes = [f"{key[1]} {_format_change(before_ns[key], after_ns[key])}" for key in keys]
        yield difference_ns, f"stage {stage}: {', '.join(changes)}"


def _divide_times(
    before_ns: Mapping[StagePhase, float], after_ns: Mapping[StagePhase, float]
) -> dict[StagePhase, float]:
    """Return the later time of each stage and phase as a multiple of the earlier time.

    Stages and phases that have no time in one of the runs are left out.
    """
    return {
        key: after_ns[key] / then_ns
        for key, then_ns in before_ns.items()
        if then_ns and after_ns.get(key)
    }


def _is_uniform(factors: Sequence[float]) -> bool:
    """Return whether there are several factors and all of them are about the same."""
    return len(factors) > 1 and max(factors) <= (1 + _UNIFORM) * min(factors)


def _is_changed(factor: float) -> bool:
    return abs(factor - 1) >= _MIN_CHANGE


def _format_change(before_ns: float, after_ns: float) -> str:
    """Format two times in ms, followed by their ratio unless the first time is 0."""
    ratio = f" ({after_ns / before_ns:.2f}x)" if before_ns else ""
    return f"{before_ns / 1e6:,.3f} -> {after_ns / 1e6:,.3f} ms{ratio}"


def _match_backwards(
    before_ns: Mapping[StagePhase, float], after_ns: Mapping[StagePhase, float]
) -> tuple[Mapping[StagePhase, float], Mapping[StagePhase, float]]:
    """Make the backward times of two runs comparable, and return the times of both.

    If only one run has W operations, the backwards in both runs are merged; see
    :func:`_merge_backwards`. Otherwise, the times are returned unchanged.
    """
    was_split, is_split = (
        any(phase == "W" for _, phase in times_ns) for times_ns in (before_ns, after_ns)
    )
    if was_split == is_split:
        return before_ns, after_ns
    phases = ("BW", "B + W")
    label = f"{phases[was_split]} -> {phases[is_split]}"
    return _merge_backwards(before_ns, label), _merge_backwards(after_ns, label)


def _merge_backwards(times_ns: Mapping[StagePhase, float], label: str) -> dict[StagePhase, float]:
    """Return the stage times with a single backward instead of B, W and BW.

    The merged backward is B plus W if both are known, otherwise BW. If neither is known, the stage
    has no backward in the result.

    Args:
        times_ns: Times, keyed by stage and phase.
        label: Phase label for the merged backward.
    """
    merged = {key: ns for key, ns in times_ns.items() if key[1] not in {"B", "W", "BW"}}
    for stage in dict.fromkeys(stage for stage, _ in times_ns):
        input_ns, weight_ns = times_ns.get((stage, "B")), times_ns.get((stage, "W"))
        total_ns = times_ns.get((stage, "BW"))
        if input_ns is not None and weight_ns is not None:
            total_ns = input_ns + weight_ns
        if total_ns:
            merged[stage, label] = total_ns
    return merged


def _describe_slowdowns(earlier: RunSummary, later: RunSummary) -> Iterator[_Difference]:
    """Yield changes of at least ``_MIN_COST`` in the slowdowns of ranks and links.

    The slowdown of a rank also depends on the other ranks of its stage and replica. A rank is left
    out if its own work did not change relative to its stage, because other ranks are the cause. The
    size of a difference is the change in the slowdown multiplied by the mean window of the later
    run, in ns.
    """
    window_ns = later.summary.window_ns[later.headline].mean or 0.0
    then_slowdowns = _list_slowdowns(earlier)
    then_work, now_work = _compare_work_in_stages(earlier), _compare_work_in_stages(later)
    for name, now in _list_slowdowns(later).items():
        then = then_slowdowns.get(name)
        if then is None or abs(now - then) < _MIN_COST:
            continue
        is_known = name in then_work and name in now_work
        if is_known and abs(now_work[name] - then_work[name]) < _MIN_COST:
            continue
        cost, cost_before = format_percent(now - 1), format_percent(then - 1)
        change = f"cost {cost} of an iteration, compared with {cost_before} before"
        yield abs(now - then) * window_ns, f"{name}: {change}"


def _list_slowdowns(run: RunSummary) -> dict[str, float]:
    """Return the slowdowns of ranks and links, keyed by display name.

    The result is empty if the slowdowns are unknown. Ranks are left out if the run has only one
    replica.
    """
    slowdown = run.slowdown
    if slowdown is None:
        return {}
    ranks, links = slowdown.by_rank, slowdown.by_link
    by_name = {}
    if len(slowdown.by_replica.number) > 1:
        names = _list_rank_names(run)
        by_name = {
            names[index]: times
            for index, times in zip(ranks.number, ranks.slowdown, strict=True)
            if 0 <= index < len(names)
        }
    for source, target, times in zip(links.source, links.target, links.slowdown, strict=True):
        by_name[f"transfers between stages {source} and {target}"] = times
    return by_name


def _list_rank_names(run: RunSummary) -> list[str]:
    return [format_rank_name(rank.global_rank, rank.index, rank.label) for rank in run.ranks]


def _compare_work_in_stages(run: RunSummary) -> dict[str, float]:
    """Return the mean work of ranks, as a multiple of the least mean work on the same stage.

    The result is keyed by display name. Ranks are left out if their work is unknown, or if they are
    the only measured rank of their stage.
    """
    stage = group_by_stage([rank.stage for rank in run.ranks])
    work_ns = np.array([rank.work_ns or np.nan for rank in run.ranks])
    measured = np.flatnonzero(work_ns > 0)
    score = score_by_fastest(measured, stage[measured], work_ns[measured], len(run.ranks))
    has_peers = np.bincount(stage[measured], minlength=len(run.ranks))[stage] > 1
    names = _list_rank_names(run)
    return {names[rank]: float(1 / score[rank]) for rank in measured.tolist() if has_peers[rank]}
