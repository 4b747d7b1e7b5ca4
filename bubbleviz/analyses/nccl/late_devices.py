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


def measure_late_devices(
    table: Communications, profiles: Sequence[NcclProfile], gpu_of_place: Ints
) -> Lateness | None:
    """Measure which GPUs arrive last at collectives.

    Args:
        table: Operations of all files, with their meetings.
        profiles: The profiles, in the order in which their kernels are numbered.
        gpu_of_place: Number of each GPU in the profiles, as returned by :func:`.number_gpus`.

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
    shifts_ns = _find_shifts(profiles)
    start_ns = np.concatenate(
        [
            profile.kernels.start_ns + shift_ns
            for profile, shift_ns in zip(profiles, shifts_ns, strict=True)
        ]
    )
    number, step_ns = _number_steps(profiles, _group_captures(profiles, gpu_of_place))
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
    parts = _join_parts(profiles, gpu_of_place, shifts_ns)
    lateness = measure_lateness(visits, parts, step_ns, np.ones(n_steps, bool))
    return lateness if len(lateness.arrivals) else None


def _find_shifts(profiles: Sequence[NcclProfile]) -> list[int]:
    """Return the time to add to the times of each profile, so that captures of a GPU share a clock.

    The shift is 0 if the profile does not record UTC.
    """
    utc_ns = [profile.source.session_utc_ns for profile in profiles]
    first_ns = min((start_ns for start_ns in utc_ns if start_ns is not None), default=0)
    return [0 if start_ns is None else start_ns - first_ns for start_ns in utc_ns]


def _group_captures(profiles: Sequence[NcclProfile], gpu_of_place: Ints) -> list[int]:
    """Return for each profile the number of the group of captures that were recorded together.

    Profiles whose kernels overlap in time form a group. If no GPU was captured several times, all
    profiles form one group. Profiles with unknown times belong to the first group.

    Args:
        profiles: The profiles.
        gpu_of_place: Number of each GPU in the profiles, as returned by :func:`.number_gpus`.
    """
    groups = [0] * len(profiles)
    if len(find_distinct(gpu_of_place)) == len(gpu_of_place):
        return groups
    spans = sorted(
        (
            int(profile.kernels.start_ns.min()) + profile.source.session_utc_ns,
            int(profile.kernels.end_ns.max()) + profile.source.session_utc_ns,
            index,
        )
        for index, profile in enumerate(profiles)
        if profile.source.session_utc_ns is not None and len(profile.kernels)
    )
    group, latest_ns = 0, spans[0][1]
    for start_ns, end_ns, index in spans:
        if start_ns > latest_ns:
            group += 1
        latest_ns = max(latest_ns, end_ns)
        groups[index] = group
    return groups


def _number_steps(
    profiles: Sequence[NcclProfile], group_of_profile: Sequence[int]
) -> tuple[Ints, float]:
    """Number the steps of all profiles, and find the step in which each kernel starts.

    Steps with the same number in their name are the same step, if they are in the same group of
    captures. A kernel belongs to the step that its process runs when the kernel starts. Between
    steps that do not follow each other, one index is left out.

    Args:
        profiles: The profiles.
        group_of_profile: Group of captures of each profile.

    Returns:
        step: Index of the step of each kernel, or -1 if unknown.
        step_ns: Mean length of the steps, or 0 if there are none.
    """
    numbers, groups, lengths_ns = [np.empty(0, np.int64)], [np.empty(0, np.int64)], []
    for profile, group in zip(profiles, group_of_profile, strict=True):
        number = np.full(len(profile.kernels), NONE, np.int64)
        if profile.steps is not None:
            process = profile.steps.process[profile.kernels.gpu_index]
            for of_process, steps in profile.steps.steps.items():
                step = find_covering(steps.start_ns, steps.end_ns, profile.kernels.start_ns)
                names = np.array([*map(int, steps.numbers()), NONE], np.int64)
                number = np.where(process == of_process, names[step], number)
                lengths_ns += (steps.end_ns - steps.start_ns).tolist()
        numbers.append(number)
        groups.append(np.full(len(number), group, np.int64))
    joined = np.concatenate(numbers)
    is_known = joined != NONE
    position = _compress(joined[is_known])
    # The positions of different groups differ by at least 2.
    stride = int(position.max(initial=0)) + 2
    index = np.full(len(joined), NONE, np.int64)
    index[is_known] = _compress(position + stride * np.concatenate(groups)[is_known])
    return index, sum(lengths_ns) / len(lengths_ns) if lengths_ns else 0.0


def _compress(numbers: Ints) -> Ints:
    """Return positions in the order of numbers, starting at 0.

    Numbers that differ by 1 have positions that differ by 1. If the next number is larger by more
    than 1, its position is larger by 2.
    """
    distinct = find_distinct(numbers)
    position = np.cumsum(np.minimum(np.diff(distinct, prepend=distinct[:1]), 2))
    return np.asarray(position[np.searchsorted(distinct, numbers)], np.int64)


def _join_parts(
    profiles: Sequence[NcclProfile], gpu_of_place: Ints, shifts_ns: Sequence[int]
) -> PartTimes:
    """Return the parts of all profiles' devices, numbered like the GPUs.

    Args:
        profiles: The profiles.
        gpu_of_place: Number of each GPU in the profiles.
        shifts_ns: Time to add to the times of each profile.
    """
    tables = [PartTimes.make_empty()]
    first_gpu = 0
    for profile, shift_ns in zip(profiles, shifts_ns, strict=True):
        if profile.steps is not None:
            parts = profile.steps.parts
            tables.append(
                parts.replace_columns(
                    rank=gpu_of_place[parts.rank + first_gpu],
                    start_ns=parts.start_ns + shift_ns,
                    end_ns=parts.end_ns + shift_ns,
                )
            )
        first_gpu += len(profile.kernels.places)
    joined = join_tables(tables)
    return PartTimes(joined.rank, joined.part, joined.start_ns, joined.end_ns, PARTS)
