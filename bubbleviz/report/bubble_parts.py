"""Parts of the bubble and of a step: idle time by cause, and time by phase.

The shares of the bubble's parts add up to the bubble ratio. The bubble ratio is a mean over
iterations, so each share is a mean over iterations as well. Dividing the total idle time by the
total window length would give a different value if iterations differ in length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_iterations import get_account_column, get_rank_column, has_account
from bubbleviz.count.ratios import CountedWork, list_ratios
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.columns import Ints
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.phases import COMPUTE, WORK, Phase
from bubbleviz.report.report import Report

#: Meaning of each part of the bubble during which the GPU was busy, keyed by name.
NOT_WORK = {
    "unattributed": "compute outside all operations",
    "next iterations": "compute of other iterations",
    "optimizer": "the optimizer, which does not count as work in this ratio",
}


#: Meaning of each part of the work, keyed by name, in display order.
_WORK_MEANINGS = dict.fromkeys((phase.label for phase in COMPUTE), "compute kernels") | {
    "in operations": "communication or copies in operations while no compute kernel ran",
    "launch gaps": "time in operations while no kernel ran",
    "other iterations": "work of other iterations",
}


@dataclass(frozen=True)
class BubblePart:
    """One part of the bubble, or of a step.

    Attributes:
        name: Name of the part, for example the label of a cause of idle time.
        meaning: What the name means.
        share: Fraction of the window, averaged over the averaged iterations.
        time_ns: Mean time per rank and averaged iteration.
    """

    name: str
    meaning: str
    share: float
    time_ns: float


def compute_bubble_parts(report: Report) -> tuple[BubblePart, ...]:
    """Return the parts of the bubble, largest first.

    The shares add up to the mean of the ratio ``report.explanation.listed_ratio``. The result is
    empty if no iterations are averaged.
    """
    return list_parts(report, [iteration for iteration in report.iterations if iteration.averaged])


def choose_step_window(report: Report) -> str:
    """Return the name of the ratio whose window counts as a step.

    The first ratio that was measured in any averaged iteration is used: ``period`` or ``step``. If
    neither was measured, the result is ``report.explanation.listed_ratio``.
    """
    measured_names = (name for name in ("period", "step") if report.summary.bubble_ratio[name].n)
    return next(measured_names, report.explanation.listed_ratio)


def compute_step_parts(report: Report) -> tuple[BubblePart, ...]:
    """Return the parts of a step's time: parts of the work first, then parts of the bubble.

    The window is chosen by :func:`choose_step_window`. The shares of all parts add up to 1::

        operation   ├────── F0 ──────┤   ├─ F1 ─┤
        kernels     ████▒▒▒ ████ ████     ██████
                    F   in  gap          bubble
    """
    averaged = [iteration for iteration in report.iterations if iteration.averaged]
    return list_parts(report, averaged, choose_step_window(report), with_work=True)


def compute_flops_use(report: Report) -> float | None:
    """Return the model FLOPs utilization (MFU) of a step, or None if FLOPs or times are unknown.

    The MFU is the number of model FLOPs in an iteration, divided by the number of FLOPs that all
    GPUs could execute in a step's mean window. As in PaLM (arXiv 2204.02311, appendix B), model
    FLOPs do not include recomputation.
    """
    window_ns = report.summary.window_ns[choose_step_window(report)].mean
    if report.flops is None or not window_ns:
        return None
    flops, peak = report.flops
    return flops / (peak * len(report.ranks) * window_ns / 1e9)


def list_parts(
    report: Report, iterations: Sequence[Iteration], ratio: str = "", *, with_work: bool = False
) -> tuple[BubblePart, ...]:
    """Return the parts of the bubble in the given iterations, largest first.

    Each part is averaged over the iterations whose ratio is known. Parts whose time is 0 are left
    out. If requested, the parts of the work come first, in a fixed order.

    Args:
        report: The run's report.
        iterations: Iterations to average.
        ratio: Name of the ratio whose windows are divided into parts, or "" for
            ``report.explanation.listed_ratio``.
        with_work: Whether to include the parts of the work; see :func:`compute_step_parts`.
    """
    name = ratio or report.explanation.listed_ratio
    windows = [
        (iteration, window_ns)
        for iteration in iterations
        if iteration.ratios[name].value is not None
        and (window_ns := _sum_account(iteration, name, "window_ns"))
    ]
    ranks = sum(len(i.ranks) for i, _ in windows if has_account(i.ranks, name))
    meanings = (
        (_WORK_MEANINGS if with_work else {})
        | {cause.label: cause.meaning for cause in Cause}
        | NOT_WORK
    )
    time_of_part, share_of_part = dict.fromkeys(meanings, 0.0), dict.fromkeys(meanings, 0.0)
    active_ns = _sum_active_ns(report) if with_work else None
    for iteration, window_ns in windows:
        parts = _list_idle_parts(report, iteration, name)
        if active_ns is None:
            parts |= _list_non_work(iteration, name)
        else:  # everything that ran counts as work
            parts |= _list_work(iteration, name, active_ns[iteration.index])
        for part, part_ns in parts.items():
            time_of_part[part] += part_ns
            share_of_part[part] += part_ns / window_ns / len(windows)
    return _sort_parts(
        [
            BubblePart(part, meaning, share_of_part[part], time_of_part[part] / ranks)
            for part, meaning in meanings.items()
            if time_of_part[part]
        ]
    )


def _sort_parts(parts: Sequence[BubblePart]) -> tuple[BubblePart, ...]:
    """Sort the parts of the bubble by decreasing share. Parts of the work remain at the start.

    Args:
        parts: Parts of the work, followed by parts of the bubble.
    """
    work = [part for part in parts if part.name in _WORK_MEANINGS]
    return (*work, *sorted(parts[len(work) :], key=lambda part: -part.share))


def _list_idle_parts(report: Report, iteration: Iteration, name: str) -> dict[str, float]:
    """Return the idle time by cause, and the unattributed compute, in an iteration's windows.

    Times are in ns, summed over the iteration's ranks, and keyed by the name of the part.

    Args:
        report: The run's report.
        iteration: The iteration.
        name: Name of the ratio that defines the windows.
    """
    idle_ns = report.explanation.causes.of_iteration(name, iteration.index)
    return {**idle_ns, "unattributed": _sum_account(iteration, name, "unattributed_ns")}


def _sum_active_ns(report: Report) -> Ints:
    """Return how long kernels of operations ran, as an array of shape (iterations, phases)."""
    operations, shape = report.operations, (len(report.iterations) + 1, len(Phase))
    # The last row contains the operations without an iteration.
    cell = (operations.iteration % shape[0]) * shape[1] + operations.phase
    return group_sum(cell, prod(shape), operations.active_ns).reshape(shape)[:-1]


def _list_work(iteration: Iteration, name: str, active_ns: Ints) -> dict[str, float]:
    """Return the time that each part of the work takes in an iteration's windows, keyed by part.

    The keys are the labels of the phases F, B, W, BW, R and FB, and the names in
    ``_WORK_MEANINGS``. Times are in ns, summed over the iteration's ranks. Two corrections are
    made:

    - Operations may extend beyond the window. Their times are therefore multiplied by the fraction
      of compute time within the window.
    - Operations may overlap. The times of phases are therefore scaled to add up to the time during
      which at least one kernel of an operation ran.

    Args:
        iteration: The iteration.
        name: Name of the ratio that defines the windows.
        active_ns: Time during which the iteration's operations ran kernels, for each phase.
    """
    compute_ns = int(get_rank_column(iteration.ranks, "compute_ns").sum())
    in_window_ns = _sum_account(iteration, name, "compute_ns")
    phases = {phase.label: int(active_ns[phase]) for phase in WORK}
    gap_ns, kernel_ns = (
        int(get_rank_column(iteration.ranks, column).sum()) for column in ("gap_ns", "active_ns")
    )
    share_in_window = in_window_ns / compute_ns if compute_ns else 0.0
    scale = share_in_window * kernel_ns / max(sum(phases.values()), 1)
    return {
        **{label: scale * time_ns for label, time_ns in phases.items()},
        "in operations": max(share_in_window * (compute_ns - kernel_ns - gap_ns), 0.0),
        "launch gaps": share_in_window * gap_ns,
        "Optimizer": _sum_account(iteration, name, "optimizer_ns"),
        "other iterations": _sum_account(iteration, name, "overlap_ns"),
    }


def round_shares(shares: Sequence[float], digits: int = 2) -> list[str]:
    """Format shares as percentages without a percent sign, for example ``12.34``.

    The rounded percentages add up to the rounded sum (largest remainder method).
    """
    scale = 100 * 10**digits
    return _format_units(_round_units(shares, round(sum(shares) * scale), scale), digits)


def divide_whole(parts: Sequence[float], rest: float, digits: int = 2) -> list[str]:
    """Format shares that add up to 1 as percentages that add up to exactly 100.

    The last share is rounded on its own, so it equals the same share elsewhere. The other
    percentages add up to the remainder (largest remainder method).

    Args:
        parts: All shares but the last one, as fractions of 1.
        rest: The last share.
        digits: Number of decimals.
    """
    scale = 100 * 10**digits
    rest_text = f"{100 * rest:.{digits}f}"
    total = scale - round(float(rest_text) * 10**digits)
    return [*_format_units(_round_units(parts, total, scale), digits), rest_text]


def _round_units(shares: Sequence[float], total: int, scale: int) -> list[int]:
    """Convert shares to integer units that add up to a total (largest remainder method).

    Args:
        shares: Shares, as fractions of 1.
        total: Sum of the units. If it is smaller than the sum of the rounded-down units, the
            rounded-down units are returned.
        scale: Number of units in a share of 1.
    """
    units = [int(share * scale) for share in shares]
    missing_units = total - sum(units)
    remainders = [share * scale - down for share, down in zip(shares, units, strict=True)]
    for index in sorted(range(len(remainders)), key=lambda index: (-remainders[index], index))[
        : max(missing_units, 0)
    ]:
        units[index] += 1
    return units


def _format_units(units: Sequence[int], digits: int) -> list[str]:
    return [f"{number / 10**digits:.{digits}f}" for number in units]


def _sum_account(iteration: Iteration, name: str, time: str) -> int:
    """Return the sum over all ranks of one of a ratio's times, such as ``overlap_ns``."""
    return int(get_account_column(iteration.ranks, name, time).sum())


def _list_non_work(iteration: Iteration, name: str) -> dict[str, int]:
    """Return the bubble time of the parts ``next iterations`` and ``optimizer``, in ns.

    Operations of other iterations are bubble time unless the ratio treats all operations as work.
    The optimizer is bubble time if the ratio treats only the iteration's own F, B and W as work.
    """
    work = next((r.work for r in list_ratios() if r.name == name), CountedWork.EVERYTHING)
    is_overlap_bubble = work is not CountedWork.EVERYTHING
    is_optimizer_bubble = work is CountedWork.ITERATION
    return {
        "next iterations": _sum_account(iteration, name, "overlap_ns") if is_overlap_bubble else 0,
        "optimizer": _sum_account(iteration, name, "optimizer_ns") if is_optimizer_bubble else 0,
    }
