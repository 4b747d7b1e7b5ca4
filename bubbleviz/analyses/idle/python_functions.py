"""Python functions: divides the time of Python among the functions on a recorded call stack.

A profiler that records stacks writes one frame per function call. Frames nest deeply, and the
outermost ones contain almost all of the time. Therefore, the stack is followed from the outside as
long as a single function contains most of the time. The functions in which the time then divides
are named. A function that was followed is named as well if it takes time outside of them::

    main              ├───────────────────────────────────────┤   followed
    step              ├───────────────────────────────────────┤   followed and named: 5 % of its own
    schedule, prepare ├─ schedule ─┤   ├─ prepare ────────────┤   named: 40 % and 55 % of the time
    allocate              ├──┤              ├──┤                  part of schedule and prepare
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints, Table

#: Minimum fraction of the time for a function to be followed.
_MIN_FOLLOWED = 0.8
#: Minimum fraction of a followed function's time that the functions it calls must contain.
_MIN_CALLED = 0.5
#: Minimum fraction of the time for a function to be named, and maximum number of such functions.
_MIN_NAMED, _MAX_NAMED = 0.02, 10
#: Matches frames of PyTorch (``dir/file.py(12): function``) and JAX (``$file.py:12 function``).
_PYTORCH = re.compile(r"(?:.*[/\\])?(?P<file>[^/\\]+\.pyx?)\(\d+\): (?P<function>.+)")
_JAX = re.compile(r"\$(?:.*[/\\])?(?P<file>[^/\\: ]+)(?::\d+)? (?P<function>.+)")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def name_function(frame: str) -> str:
    """Return the display name of a frame's function: the function, and its file in parentheses.

    Line numbers and addresses are dropped. If the format of the frame is unknown, its name is
    returned.
    """
    match = _PYTORCH.fullmatch(frame) or _JAX.fullmatch(frame)
    return f"{match['function']} ({match['file']})" if match else _ADDRESS.sub("", frame)


@dataclass(frozen=True, eq=False, repr=False)
class Frames(Table):
    """Frames of Python on host threads.

    Attributes:
        thread: Thread of the frame.
        start_ns: Start of the frame.
        end_ns: End of the frame.
        function: Id of the frame's function.
        time_ns: Time in the frame that is to be divided among functions.
    """

    thread: Ints
    start_ns: Ints
    end_ns: Ints
    function: Ints
    time_ns: Ints


@dataclass(frozen=True, eq=False, repr=False)
class _CallTree(Table):
    """Frames sorted by thread and start, outer frames first.

    Attributes:
        row: Row of the frame in the original table.
        function: Id of the frame's function.
        time_ns: Time in the frame.
        depth: Number of frames around the frame.
        parent: Position of the frame directly around the frame, or -1 if there is none.
    """

    row: Ints
    function: Ints
    time_ns: Ints
    depth: Ints
    parent: Ints


def select_named(frames: Frames) -> Bools:
    """Return a mask of the frames whose functions are named, as described above.

    The time in a frame that is not named belongs to the innermost named frame around it.
    """
    tree = _build_tree(frames)
    is_named = np.zeros(len(frames), bool)
    level = np.flatnonzero(tree.depth == 0)
    total_ns = int(tree.time_ns[level].sum())
    min_ns = max(_MIN_NAMED * total_ns, 1)
    while total_ns:
        function = tree.function[level]
        spent_ns = intervals.group_sum(function, int(function.max()) + 1, tree.time_ns[level])
        main_function = int(spent_ns.argmax())
        main_ns = int(spent_ns[main_function])
        called = _find_called(tree, level[function == main_function])
        called_ns = int(tree.time_ns[called].sum())
        is_followed = main_ns >= _MIN_FOLLOWED * total_ns and called_ns >= _MIN_CALLED * main_ns
        is_large = spent_ns >= max(min_ns, np.sort(spent_ns)[-_MAX_NAMED:][0])
        if is_followed:
            # Functions that only call another function are not named.
            is_large[main_function] = main_ns - called_ns >= min_ns
        is_named[tree.row[level[is_large[function]]]] = True
        if not is_followed:
            break
        level = called
    return is_named


def _find_called(tree: _CallTree, positions: Ints) -> Ints:
    """Return the positions of the frames directly inside the frames at the given positions."""
    # The additional entry, at index -1, is for frames without a parent.
    is_around = np.zeros(len(tree) + 1, bool)
    is_around[positions] = True
    return np.flatnonzero(is_around[tree.parent])


def _build_tree(frames: Frames) -> _CallTree:
    """Sort the frames of all threads, and find the frame directly around each frame."""
    order = np.lexsort((-frames.end_ns, frames.start_ns, frames.thread))
    threads, group = np.unique(frames.thread[order], return_inverse=True)
    low_ns, high_ns = intervals.group_extents(
        group, len(threads), frames.start_ns[order], frames.end_ns[order]
    )
    # All threads are laid out on one line without overlaps.
    line = intervals.Packing.of(low_ns, high_ns)
    start = line.place(group, frames.start_ns[order])
    end = line.place(group, frames.end_ns[order])
    n_ended = np.searchsorted(np.sort(end), start, side="right")
    depth = np.maximum(np.arange(len(order)) - n_ended, 0)
    parent = np.full(len(order), NONE)
    by_depth = np.split(np.argsort(depth, kind="stable"), np.cumsum(np.bincount(depth))[:-1])
    # Stacks are at most a few hundred frames deep, so the loop is short.
    for outer, inner in pairwise(by_depth):
        parent[inner] = outer[np.searchsorted(outer, inner) - 1]
    return _CallTree(order, frames.function[order], frames.time_ns[order], depth, parent)
