"""Ranges of instructions, executions of modules, and steps."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import NONE, Codes, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.profile import Ranges
from bubbleviz.sources.xla.names import module_of
from bubbleviz.sources.xla.planes import PlaneEvents, Planes
from bubbleviz.sources.xla.range_names import RangeNames
from bubbleviz.sources.xla.threads import PlaneThreads


def ranges_of(start_ns: Ints, end_ns: Ints, thread: Ints, name_id: Ints) -> Ranges:
    """Return ranges, without those that have no name (-1)."""
    if (name_id == NONE).any():
        rows = name_id != NONE
        start_ns, end_ns, thread, name_id = (c[rows] for c in (start_ns, end_ns, thread, name_id))
    none = np.zeros(len(name_id), bool)
    return Ranges(
        start_ns=start_ns,
        end_ns=end_ns,
        thread=thread,
        end_thread=np.full(len(none), NONE, np.int64),
        start_end=none,
        cut=none,
        name_id=name_id,
        names=(),
    )


def step_ranges(planes: Planes, threads: PlaneThreads, names: RangeNames) -> Ranges:
    """Return the ranges of steps, on devices and of the host."""
    steps = planes.steps
    on_device = steps.device != NONE
    thread = np.empty(len(steps), np.int64)
    thread[on_device] = threads.of_devices(steps.device[on_device])
    thread[~on_device] = threads.of_line[steps.line[~on_device]]
    groups = groups_of(
        steps.name.astype(np.int64), steps.step.astype(np.int64), on_device.astype(np.int64)
    )
    columns = (column[groups.first].tolist() for column in (steps.name, steps.step, on_device))
    numbers = [
        names.step(name, step, on_device=device)
        for name, step, device in zip(*columns, strict=True)
    ]
    name_id = np.array([*numbers, NONE], np.int64)[groups.of_row]
    return ranges_of(steps.start_ns, steps.end_ns, thread, name_id)


def module_ranges(
    planes: Planes, threads: PlaneThreads, names: RangeNames, events: PlaneEvents, thread: Ints
) -> Ranges:
    """Return the executions of modules: as devices record them, else by their instructions.

    Args:
        planes: of the profile.
        threads: of the planes.
        names: of ranges; extended.
        events: instructions.
        thread: that the range of each lies on.
    """
    recorded = planes.modules
    if len(recorded):
        used, number = np.unique(recorded.name, return_inverse=True)
        numbers = [names.module(*module_of(planes.texts[name])) for name in used.tolist()]
        name_id = np.array(numbers, np.int64)[number.reshape(-1)]
        thread = threads.of_devices(recorded.device)
        return ranges_of(recorded.start_ns, recorded.end_ns, thread, name_id)
    module = names.modules(planes.labels)[events.label]
    rows = np.flatnonzero(module != NONE)
    rows = rows[np.lexsort((events.start_ns[rows], events.device[rows], thread[rows]))]
    numbered = rows[events.run[rows] != NONE]
    # A few at the edges may lie outside of the recorded executions.
    if 2 * len(numbered) > len(rows):
        rows = numbered
        run = groups_of(
            thread[rows],
            events.device[rows].astype(np.int64),
            events.run[rows].astype(np.int64),
            module[rows],
        ).of_row
    else:
        run = _runs(thread[rows], events.device[rows], module[rows], events.label[rows])
    count = int(run.max(initial=NONE)) + 1
    start_ns = np.full(count, np.iinfo(np.int64).max)
    end_ns = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(start_ns, run, events.start_ns[rows])
    np.maximum.at(end_ns, run, events.end_ns[rows])
    first = np.unique(run, return_index=True)[1]
    return ranges_of(start_ns, end_ns, thread[rows[first]], module[rows[first]])


def _runs(thread: Ints, device: Codes, module: Ints, label: Codes) -> Ints:
    """Return the execution of its module that each launch belongs to; rows in order of time.

    Another begins where another module does, or where the instruction that began the last one
    comes again::

        modules       a  a  a  a  a  a  b  b  a  a
        instructions  x  y  z  x  y  z  p  q  x  y
        executions    0  0  0  1  1  1  2  2  3  3
    """
    fresh = np.ones(len(label), bool)
    for column in (thread, device, module):
        fresh[1:] &= column[1:] == column[:-1]
    fresh[:1] = False
    fresh = ~fresh
    begun = np.maximum.accumulate(np.where(fresh, np.arange(len(label)), 0))
    # An instruction may be several kernels one after the other.
    again = label == label[begun]
    again[1:] &= label[1:] != label[:-1]
    return np.cumsum(fresh | again) - 1
