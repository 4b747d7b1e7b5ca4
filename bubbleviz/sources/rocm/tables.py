"""Tables of ROCm's profilers, in the numbers of the model: kernels, copies, calls, ranges."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import Numbering, distinct, found_in, groups_of
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import PID_MASK, Device, Thread

#: Bits of a thread's number below that of its process, and of a process's below that of its part.
_TID_BITS, _PID_BITS = 24, 24
#: Correlation ids take 32 bits, of which the largest stands for none.
_MOST_IDS = (1 << 32) - 1
#: How the runtime (ROCm/clr) names the kernels by which it copies and fills.
BLIT_KERNELS = "__amd_rocclr_"


@dataclass
class RocmRecording:
    """What a file of ROCm's profilers holds; blocks of columns, one for each of its parts.

    Attributes:
        path: as given.
        format: name of the input format.
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
        host: hostname; None where the file does not record it.
        machine: id of the machine; likewise.
        schema_version: version of the file's schema; None unknown.
    """

    path: str
    format: str
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
    host: str | None = None
    machine: str | None = None
    schema_version: str | None = None

    def lose(self, what: str, reason: str, count: int = 1) -> None:
        """Note what the file lacks, once."""
        note = Limitation(what, f"{self.path} {reason}", count, LimitationKind.OTHER)
        if note not in self.limitations:
            self.limitations.append(note)

    def add_work(self, work: Ints, names: Sequence[str], name: Ints) -> None:
        """Add kernels; those by which the runtime copies and fills are copies.

        Args:
            work: start_ns, end_ns, device, process, correlation id.
            names: distinct names.
            name: row of them of each kernel.
        """
        blit = flags(names, lambda text: text.startswith(BLIT_KERNELS))
        number = np.full(len(names), NONE, np.int64)
        number[~blit] = self.kernel_names.numbers(np.array(names, object)[~blit].tolist())
        self.kernels.append(np.vstack((work, number[name]))[:, ~blit[name]])
        self.copies.append(work[:, blit[name]])

    def check(self, numbers: Ints, again: str) -> None:
        """Raise ProfileError where processes or threads have numbers that none can have."""
        if len(numbers) and not NONE <= numbers.min() <= numbers.max() <= PID_MASK:
            raise ProfileError(
                f"{self.path}: a process or thread has a number below 0 or above 16,777,215, so "
                f"the file is damaged or was edited; {again}"
            )


def flags(texts: Sequence[str], test: Callable[[str], object]) -> Bools:
    """Tell of which texts a test holds."""
    return np.array([bool(test(text)) for text in texts], bool)


def renumbered(numbering: Numbering[str], texts: Sequence[str], text: Ints) -> Ints:
    """Return the number of each row's text in a numbering, to which those are added.

    Args:
        numbering: of texts.
        texts: distinct ones.
        text: row of them of each row.
    """
    used = distinct(text)
    numbers = numbering.numbers(texts[place] for place in used.tolist())
    return numbers[found_in(used, text)] if len(used) else text


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


def kinds_of(category: Ints, name: Ints, categories: Sequence[str], names: Sequence[str]) -> Ints:
    """Return what each event is, shape (events,).

    Args:
        category: row of ``categories`` of each event.
        name: row of ``names`` of each event.
        categories: names of kinds of events.
        names: of functions.
    """
    groups = groups_of(category, name)
    pairs = zip(category[groups.first].tolist(), name[groups.first].tolist(), strict=True)
    kinds = [_kind(categories[of], names[number]) for of, number in pairs]
    return np.array(kinds, np.int64)[groups.of_row]


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
