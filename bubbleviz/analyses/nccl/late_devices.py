"""Measure which rank arrives last at the collectives of a run, and which part of its step is long.

Only the kernels of profiles are measured, because event files do not show what ran before them.
Ranks are numbered by their GPUs, in the order of the profiles.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.analyses.nccl.communications import Communications, Timing
from bubbleviz.analyses.nccl.profiles import NcclProfile
from bubbleviz.analyses.nccl.step_parts import PARTS
from bubbleviz.explain.late_arrivals import Lateness, PartTimes, Visits, measure_lateness
from bubbleviz.model.columns import NONE, Ints, join_tables
from bubbleviz.model.grouping import find_distinct, find_first_rows, group_rows
from bubbleviz.model.intervals import find_covering

#: Names of operations between two ranks.
_POINT_TO_POINT = frozenset(("Send", "Recv", "SendRecv"))


def measure_late_devices(table: Communications, profiles: Sequence[NcclProfile]) -> Lateness | None:
    """Measure which GPUs arrive last at collectives.

    Args:
        table: Operations of all files, with their meetings.
        profiles: The profiles, in the order in which their GPUs and kernels are numbered.

    Returns:
        The lateness, or None if no collective of several GPUs is known, or if GPUs also send and
        receive, as in a pipeline. If steps are known, collectives outside of all steps are left
        out.
    """
    is_p2p = np.array([*(name in _POINT_TO_POINT for name in table.names), False], bool)
    if is_p2p[table.name].any():
        return None
    is_barrier = (table.meeting != NONE) & (table.timing == Timing.KERNEL) & (table.kernel != NONE)
    is_barrier &= table.duration_ns >= 0
    rows = np.flatnonzero(is_barrier)
    # Operations that share a kernel are one visit.
    rows = rows[find_first_rows(group_rows(table.kernel[rows]).of_row)]
    if not len(rows):
        return None
    start_ns = np.concatenate([profile.kernels.start_ns for profile in profiles])
    number, step_ns = _number_steps(profiles)
    enter_ns = start_ns[table.kernel[rows]]
    step = number[table.kernel[rows]]
    has_steps = bool((step != NONE).any())
    visits = Visits(
        barrier=table.meeting[rows],
        rank=table.gpu[rows],
        step=step if has_steps else np.zeros(len(rows), np.int64),
        enter_ns=enter_ns,
        leave_ns=enter_ns + table.duration_ns[rows],
        begin_ns=np.full(len(rows), NONE, np.int64),
    )
    n_steps = int(visits.step.max()) + 1
    lateness = measure_lateness(visits, _join_parts(profiles), step_ns, np.ones(n_steps, bool))
    return lateness if len(lateness.arrivals) else None


def _number_steps(profiles: Sequence[NcclProfile]) -> tuple[Ints, float]:
    """Number the steps of all profiles, and find the step in which each kernel starts.

    Steps with the same number in their name are the same step. A kernel belongs to the step that
    its process runs when the kernel starts.

    Returns:
        step: Index of the step of each kernel, or -1 if unknown.
        step_ns: Mean length of the steps, or 0 if there are none.
    """
    numbers, lengths_ns = [np.empty(0, np.int64)], []
    for profile in profiles:
        number = np.full(len(profile.kernels), NONE, np.int64)
        if profile.steps is not None:
            process = profile.steps.process[profile.kernels.gpu_index]
            for of_process, steps in profile.steps.steps.items():
                step = find_covering(steps.start_ns, steps.end_ns, profile.kernels.start_ns)
                names = np.array([*map(int, steps.numbers()), NONE], np.int64)
                number = np.where(process == of_process, names[step], number)
                lengths_ns += (steps.end_ns - steps.start_ns).tolist()
        numbers.append(number)
    joined = np.concatenate(numbers)
    distinct = find_distinct(joined[joined != NONE])
    index = np.where(joined == NONE, NONE, np.searchsorted(distinct, joined))
    return index, sum(lengths_ns) / len(lengths_ns) if lengths_ns else 0.0


def _join_parts(profiles: Sequence[NcclProfile]) -> PartTimes:
    """Return the parts of all profiles' devices, numbered like the GPUs."""
    tables = [PartTimes.make_empty()]
    first_gpu = 0
    for profile in profiles:
        if profile.steps is not None:
            parts = profile.steps.parts
            tables.append(parts.replace_columns(rank=parts.rank + first_gpu))
        first_gpu += len(profile.kernels.places)
    joined = join_tables(tables)
    return PartTimes(joined.rank, joined.part, joined.start_ns, joined.end_ns, PARTS)
