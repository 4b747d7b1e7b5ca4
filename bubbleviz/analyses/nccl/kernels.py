"""Kernels of NCCL in a profile, and the operations that their names give."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bubbleviz.align.profile_clocks import ProfileClock
from bubbleviz.analyses.nccl.communications import (
    Communications,
    Communicator,
    Timing,
    communications,
)
from bubbleviz.conventions import kinds as naming
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.numbering import Numbering, merge_tables
from bubbleviz.model.profile import Activities, get_pid
from bubbleviz.model.texts import truncate_for_matching
from bubbleviz.sources.nccl.events import OperationKind

_FAMILY = re.compile(r"nccl(?:(?!nccl)\w)*?Kernel_?([A-Z][A-Za-z]*)")
#: Operations that kernels named SendRecv carry out.
_PASSING = frozenset(("Send", "Recv", "SendRecv", "AlltoAll", "AllToAll", "Gather", "Scatter"))
_ALGORITHM = re.compile(r"_(TREE|RING|COLLNET_DIRECT|COLLNET_CHAIN|NVLS_TREE|NVLS|PAT)(?=_|\(|$)")
_PROTOCOL = re.compile(r"_(LL128|LL|SIMPLE)(?=_|\(|$)")


def family_of(name: str) -> str:
    """Return the family of an operation's kernels; sends, receives and the like share one."""
    name = {"Bcast": "Broadcast"}.get(name, name)
    return "SendRecv" if name in _PASSING else name


def parse_kernel_name(kernel: str) -> tuple[str, str, str]:
    """Return operation, algorithm and protocol from a kernel's name; "" unknown.

    The operation of a kernel that is none of NCCL's is its plain name.
    """
    if not naming.is_nccl(kernel):
        return naming.trim_signature(kernel), "", ""
    found = (
        part.search(truncate_for_matching(kernel)) for part in (_FAMILY, _ALGORITHM, _PROTOCOL)
    )
    operation, algorithm, protocol = (match[1] if match else "" for match in found)
    return "" if operation == "Generic" else operation, algorithm, protocol


@dataclass(frozen=True, eq=False, repr=False)
class Starts(Table):
    """Where recorded operations or profiled kernels begin on some clock, ascending.

    Attributes:
        start_ns: start of each.
        family: number of what it does; -1 for anything.
        length_ns: how long it lasts; -1 unknown.
    """

    start_ns: Ints
    family: Ints
    length_ns: Ints


@dataclass(frozen=True, eq=False, repr=False)
class Kernels(Table):
    """Kernels of NCCL, and added ones: by (place, start).

    Attributes:
        start_ns: start on the device, or on the report's clock.
        end_ns: end there.
        place: row of ``places``.
        name: row of ``names``.
        family: row of ``families``: what it does; -1 anything.
        names: of kernels.
        families: as :func:`family_of` has them.
        places: process id, number of the device, and name of the host.
    """

    start_ns: Ints
    end_ns: Ints
    place: Ints
    name: Ints
    family: Ints
    names: tuple[str, ...] = field(default=(), metadata={"shared": True})
    families: tuple[str, ...] = field(default=(), metadata={"shared": True})
    places: tuple[tuple[int, int, str], ...] = field(default=(), metadata={"shared": True})

    def starts(self, place: int) -> Starts:
        """Return the kernels of a place."""
        own = self.take(self.place == place)
        return Starts(own.start_ns, own.family, own.end_ns - own.start_ns)


def kernels_of(activities: Activities, kinds: naming.Kinds, host: str) -> tuple[Kernels, Ints]:
    """Return the kernels of NCCL by place and time, and their rows of the activities.

    Args:
        activities: kernels, then copies.
        kinds: lists of what kernels are; what a user added to them counts as well.
        host: on which they were recorded.
    """
    listed = naming.match_any(activities.names, kinds.added_communication)
    listed |= np.array([naming.is_nccl(name) for name in activities.names], bool)
    rows = np.flatnonzero(listed[activities.name_id[: activities.kernels]])
    rows = rows[np.lexsort((activities.start_ns[rows], activities.rank[rows]))]
    used, name = np.unique(activities.name_id[rows], return_inverse=True)
    names = tuple(activities.names[number] for number in used.tolist())
    families = Numbering[str]()
    texts = (family_of(parse_kernel_name(kernel)[0]) for kernel in names)
    family = np.array([families.number(text) if text else NONE for text in texts], np.int64)
    kernels = Kernels(
        start_ns=activities.start_ns[rows],
        end_ns=activities.end_ns[rows],
        place=activities.rank[rows].astype(np.int64),
        name=name.reshape(-1).astype(np.int64),
        family=family[name.reshape(-1)],
        names=names,
        families=families.values,
        places=tuple((get_pid(process), gpu, host) for process, gpu in activities.ranks.tolist()),
    )
    return kernels, rows


def pooled(tables: Sequence[Kernels], clocks: Sequence[ProfileClock]) -> Kernels:
    """Return the kernels of all profiles on the clock of the report.

    Args:
        tables: Kernels of each profile.
        clocks: Clock of each profile.
    """
    places: list[tuple[int, int, str]] = []
    moved = [Kernels.make_empty()]
    for table, clock in zip(tables, clocks, strict=True):
        moved.append(
            replace(
                table,
                start_ns=clock.convert(table.start_ns),
                end_ns=clock.convert(table.end_ns),
                place=table.place + len(places),
            )
        )
        places += table.places
    every = merge_tables(moved, names=("name",), families=("family",))
    return replace(every, places=tuple(places))


def list_operations(
    kernels: Kernels,
    first: Ints,
    last: Ints,
    columns: Mapping[str, Ints],
    names: Sequence[str],
    communicators: tuple[Communicator, ...] = (),
) -> Communications:
    """Return the operations of a profile, on its clock, then kernels that carry out none.

    Args:
        kernels: that ran.
        first: of each operation its first kernel.
        last: its last kernel.
        columns: of the operations: ``name``, and what else is known of them.
        names: of operations and datatypes.
        communicators: of the operations.
    """
    carries = np.zeros(len(kernels), bool)
    carries[first] = carries[last] = True
    bare = np.flatnonzero(~carries)
    none = np.full(len(bare), NONE)
    fields = [parse_kernel_name(name) for name in kernels.names]
    numbers = Numbering[str]()
    of_names = np.append(numbers.numbers(names), NONE)
    # The name of a kernel's operation is "unknown" where it has none, other fields are empty.
    of_kernel = numbers.numbers(operation or "unknown" for operation, _, _ in fields)
    algorithm, protocol = (
        np.array([numbers.number(f[part]) if f[part] else NONE for f in fields], np.int64)
        for part in (1, 2)
    )
    every = {name: np.append(column, none) for name, column in columns.items()}
    every["name"] = np.append(of_names[columns["name"]], of_kernel[kernels.name[bare]])
    if "datatype" in columns:
        every["datatype"] = np.append(of_names[columns["datatype"]], none)
    first, last = np.append(first, bare), np.append(last, bare)
    pids = np.array([pid for pid, *_ in kernels.places], np.int64)
    every |= {
        "pid": pids[kernels.place[first]],
        "algorithm": algorithm[kernels.name[first]],
        "protocol": protocol[kernels.name[first]],
        "duration_ns": kernels.end_ns[last] - kernels.start_ns[first],
        "kernel": first,
        "gpu": kernels.place[first],
    }
    codes = {"kind": int(OperationKind.KERNEL), "timing": int(Timing.KERNEL)}
    return communications(len(first), {**every, **codes}, numbers.values, communicators)
