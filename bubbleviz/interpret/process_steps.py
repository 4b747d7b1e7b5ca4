"""Find the steps of the processes in a profile, and the times that a window of steps spans."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bubbleviz.conventions.host_activities import ActivityList
from bubbleviz.errors import InputError, UsageError
from bubbleviz.interpret.steps import Steps, find_steps, list_frequent_names
from bubbleviz.model import profile as model
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.window import Window

#: Maximum ratio between a device's span and the length of a step.
_SHORTEST_STEP = 20_000
#: Matches XLA's names for the thread that runs the program, whose thread id XLA does not record.
_PYTHON = re.compile(r"(?:python[0-9.]*|main(?:[ _]?thread)?)\Z", re.IGNORECASE)


def find_main_thread(process: int, threads: Iterable[model.Thread]) -> int:
    """Return the main thread of a process: the thread whose id equals the process id.

    If ``threads`` does not contain this thread, the process's first thread with a name typical of
    Python's main thread (see ``_PYTHON``) is used instead. If there is no such thread either, the
    id of the main thread is assumed to equal the process id.
    """
    main_thread = (process << 24) + model.get_pid(process)
    names = {thread.thread: thread.name for thread in threads if thread.thread >> 24 == process}
    python_threads = sorted(thread for thread, name in names.items() if _PYTHON.match(name))
    return python_threads[0] if python_threads and main_thread not in names else main_thread


def find_extent(
    profile: model.Profile, window: Window, steps: Mapping[int, Steps], remedy: str
) -> tuple[int, int]:
    """Return the start and end of a window on the profile's clock, in ns.

    A window that selects iterations extends from the first start to the last end of the selected
    steps, over all processes.

    Args:
        profile: The profile.
        window: The window.
        steps: Steps of the training loop, keyed by process.
        remedy: Clause for the error message, saying what to do if there are no steps.

    Raises:
        InputError: There are no steps, or none of the steps is in the window.
    """
    if window.times_ns is not None:
        return window.times_ns
    tables = tuple(steps.values())
    if not any(map(len, tables)):
        raise InputError(
            f"{profile.source.path}: --window {window.text}: no ranges were recognized as steps; "
            f"{remedy}"
        )
    numbers = [number for table in tables for number in table.numbers()]
    start_ns = np.concatenate([table.start_ns for table in tables])
    end_ns = np.concatenate([table.end_ns for table in tables])
    try:
        is_inside = window.mask_iterations(numbers, start_ns, end_ns)
    except InputError as error:
        raise InputError(f"{profile.source.path}: {error}") from error
    return int(start_ns[is_inside].min()), int(end_ns[is_inside].max())


def find_process_steps(
    profile: model.Profile,
    spans_ns: Sequence[tuple[int, int, int]],
    threads: Ints,
    lookup: ActivityList,
    pattern: re.Pattern[str] | None,
) -> dict[int, Steps]:
    """Find the steps of each process.

    Ranges shorter than the shortest device span divided by ``_SHORTEST_STEP`` are ignored.

    Args:
        profile: The profile.
        spans_ns: Process, start of the first work and end of the last work of each device. Must not
            be empty.
        threads: Launching threads and main threads.
        lookup: Rules that classify ranges by name.
        pattern: Pattern for step names that the user gave, or None to recognize steps
            automatically.

    Raises:
        UsageError: No range name matches the pattern.
    """
    process_of_device, first_ns, last_ns = np.array(spans_ns, np.int64).T
    shortest_ns = max(int((last_ns - first_ns).min()) // _SHORTEST_STEP, 1)
    first, last = np.array([first_ns.min()]), np.array([last_ns.max()])
    ranges = profile.all_ranges.lasting(shortest_ns, threads, first, last, None)
    steps = {
        process: find_steps(ranges, process, int(first[0]), int(last[0]), lookup, pattern)
        for process in find_distinct(process_of_device).tolist()
    }
    if pattern is not None and not any(len(table) for table in steps.values()):
        raise UsageError(
            f"--step: no range on a launching thread in {profile.source.path} has this name; the "
            f"longest ranges are {list_frequent_names(ranges)}"
        )
    return steps
