"""Tables of ROCm's profilers, in the numbers of the model: kernels, copies, calls, ranges."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import Numbering, distinct, found_in, groups_of
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.profile import PID_MASK, Device, Thread

#: Bits of a thread's number below that of its process, and of a process's below that of its part.
_TID_BITS, _PID_BITS = 24, 24
#: Correlation ids take 32 bits, of which the largest stands for none.
_MOST_IDS = (1 << 32) - 1
#: How the runtime (ROCm/clr) names the kernels by which it copies and fills.
BLIT_KERNELS = "__amd_rocclr_"


@dataclass
class RocmTables:
    """What a file holds; blocks of columns, one for each of its parts.

    Attributes:
        kernels: start_ns, end_ns, device, process, correlation id, row of ``kernel_names``.
        copies: the same without a name, of copies and fills.
        calls: start_ns, end_ns, thread, correlation id, row of ``call_names``.
        ranges: start_ns, end_ns, thread, whether it is no push/pop range, row of ``range_names``.
        kernel_names: distinct names of kernels.
        call_names: distinct names of functions.
        range_names: distinct texts of ranges.
        copied: how many copies were recorded as such.
        nameless: how many ranges were left out as they have no text.
        unnamed_calls: how many calls and ranges have functions without a name.
        threads: named threads.
        devices: the GPUs.
        limitations: what the file lacks.
    """

    kernels: list[Ints] = field(default_factory=list)
    copies: list[Ints] = field(default_factory=list)
    calls: list[Ints] = field(default_factory=list)
    ranges: list[Ints] = field(default_factory=list)
    kernel_names: Numbering[str] = field(default_factory=Numbering)
    call_names: Numbering[str] = field(default_factory=Numbering)
    range_names: Numbering[str] = field(default_factory=Numbering)
    copied: int = 0
    nameless: int = 0
    unnamed_calls: int = 0
    threads: list[Thread] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    limitations: list[Limitation] = field(default_factory=list)

    def add_work(self, work: Ints, names: Sequence[str], name: Ints) -> None:
        """Add kernels; those by which the runtime copies and fills are copies.

        Args:
            work: start_ns, end_ns, device, process, correlation id.
            names: distinct names.
            name: row of them of each kernel.
        """
        blit = np.array([text.startswith(BLIT_KERNELS) for text in names], bool)
        copying = blit[name] if len(name) else np.empty(0, bool)
        numbers = self.kernel_names.numbers(
            text for text, is_blit in zip(names, blit, strict=True) if not is_blit
        )
        number = np.full(len(names), NONE, np.int64)
        number[~blit] = numbers
        self.kernels.append(np.vstack((work, number[name]))[:, ~copying])
        self.copies.append(work[:, copying])


def joined_columns(blocks: Sequence[Ints], columns: int) -> Ints:
    """Return blocks of columns as one, shape (columns, rows)."""
    return np.concatenate([np.empty((columns, 0), np.int64), *blocks], axis=1)


def mapped(values: Ints, table: Mapping[int, int]) -> tuple[Ints, int]:
    """Return what a table gives for each value, itself where it gives nothing, and how often."""
    keys = np.array(sorted(table), np.int64)
    results = np.array([table[key] for key in keys.tolist()], np.int64)
    at = found_in(keys, values)
    lacking = at == NONE
    found = values.copy()
    found[~lacking] = results[at[~lacking]]
    return found, int((lacking & (values != NONE)).sum())


def named(
    ids: Ints, texts: Mapping[int, str], unknown: Callable[[int], str]
) -> tuple[tuple[str, ...], Ints]:
    """Return distinct names, and the row of each id's name among them."""
    values = distinct(ids)
    numbering = Numbering[str]()
    number = numbering.numbers(
        texts[value] if value in texts else unknown(value) for value in values.tolist()
    )
    return numbering.values, number[found_in(values, ids)] if len(values) else ids


def threads_of(process: Ints, tid: Ints) -> Ints:
    """Return the numbers of threads; -1 where the process is unknown."""
    return np.where(process == NONE, NONE, (process << _TID_BITS) + (tid & PID_MASK))


def fits(numbers: Ints) -> bool:
    """Tell whether all numbers of processes or threads are such, or -1."""
    return len(numbers) == 0 or bool(numbers.min() >= NONE and numbers.max() <= PID_MASK)


def processes_of(pid: Ints, part: Mapping[int, int]) -> Ints:
    """Return processes: their ids, and above these the number of those before that had it, too.

    Args:
        pid: of each row; -1 unknown.
        part: how many parts before had a process id.
    """
    before, _ = mapped(pid, {own: part.get(own, 0) for own in distinct(pid).tolist()})
    return np.where(pid == NONE, NONE, (before << _PID_BITS) + pid)


def narrowed(*columns: Ints) -> tuple[Ints, ...]:
    """Return ids (0 for none) that fit into 32 bits, with -1 for none; equal ones stay equal."""
    together = np.concatenate(columns)
    ids = np.where(together > 0, together, NONE)
    if ids.max(initial=0) >= _MOST_IDS:
        groups = groups_of(ids)
        # The lowest is that of none, where there is one.
        ids = groups.of_row + (0 if (ids == NONE).any() else 1)
        ids[together <= 0] = NONE
    ends = np.cumsum([len(column) for column in columns])[:-1]
    return tuple(np.split(ids, ends))


# Host events of rocpd: which are calls, which are ranges, and what these are named.
#
# A range of ROCTx is recorded under the name of a function (``roctxThreadRangeA``, or
# ``roctxRangePushA`` before ROCm 7), and its text stands in its event's ``extdata``, which is JSON
# with the key ``message``: ``insert_api_data`` in ``generateRocpd.cpp``, and ``marker_views.sql``,
# both of rocprofiler-sdk in ROCm/rocm-systems. Its category is ``MARKER_CORE_API`` in ROCm 6.4 and
# ``MARKER_CORE_RANGE_API`` from 7 on; ``rocprof-sys`` writes functions of the program, too, under
# categories of its own, and their names are those of ranges.


#: Functions of libraries below the program: HIP, HSA, RCCL, and what else calls itself an API.
_CALL = re.compile(r"(?:__)?(?:hip|hsa|amd_|nccl|mscclpp|roc)[A-Z_]")
#: Functions of RCCL, which other calls are nested in.
_COLLECTIVE = re.compile(r"nccl[A-Z]|mscclpp")
#: Functions of ROCTx that open ranges which need not nest (roctxRangeStartA).
_START_STOP = re.compile(r"roctx(?:ProcessRange|RangeStart)")
_ROCTX_RANGE = re.compile(r"roctx\w*Range")


class Kind(IntEnum):
    """What a host event is."""

    LEFT_OUT = 0  # marks, controls of the profiler, events of the driver
    CALL = 1
    COLLECTIVE = 2  # a call of RCCL, that names what its kernels do
    PUSHED = 3  # a range of ROCTx
    STARTED = 4  # one that need not nest
    FUNCTION = 5  # a range that is named as the function


def kinds_of(category: Ints, name: Ints, categories: list[str], names: list[str]) -> Ints:
    """Return what each event is, shape (events,).

    Args:
        category: row of ``categories`` of each event; -1 unknown.
        name: row of ``names`` of each event; -1 unknown.
        categories: names of kinds of events.
        names: of functions.
    """
    groups = groups_of(category, name)
    pairs = zip(category[groups.first].tolist(), name[groups.first].tolist(), strict=True)
    kinds = [
        _kind("" if of < 0 else categories[of], "" if own < 0 else names[own]) for of, own in pairs
    ]
    return np.array(kinds, np.int64)[groups.of_row] if kinds else np.empty(0, np.int64)


def _kind(category: str, name: str) -> Kind:
    category = category.lower()
    if "marker" in category or name.startswith("roctx"):
        if name.startswith("roctx") and not _ROCTX_RANGE.match(name):
            return Kind.LEFT_OUT
        return Kind.STARTED if _START_STOP.match(name) else Kind.PUSHED
    if category.startswith("kfd"):
        return Kind.LEFT_OUT
    if _COLLECTIVE.match(name):
        return Kind.COLLECTIVE
    if not name or _CALL.match(name) or "api" in category.split("_"):
        return Kind.CALL
    return Kind.FUNCTION


def is_roctx(names: list[str], name: Ints) -> Ints:
    """Return the rows whose function is one of ROCTx, so that its name is not that of a range."""
    known = np.array([text.startswith("roctx") for text in names], bool)
    return np.flatnonzero((name != NONE) & known[np.maximum(name, 0)]) if len(known) else name[:0]
