"""Selects NCCL kernels in profiles, and reads operations from the kernel names."""

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
    make_communications,
)
from bubbleviz.conventions import kinds as naming
from bubbleviz.model.columns import NONE, Ints, Table, make_mask
from bubbleviz.model.numbering import Numbering, merge_tables
from bubbleviz.model.profile import Activities, get_pid
from bubbleviz.model.texts import truncate_for_matching
from bubbleviz.sources.nccl.events import OperationKind

#: Matches the operation in a kernel's name. Names without the prefix "nccl" start with it.
_FAMILY = re.compile(r"(?:nccl(?:(?!nccl)\w)*?Kernel_?|^)([A-Z][A-Za-z]*)")
#: Operations that are carried out by kernels named SendRecv.
_SEND_RECV_OPERATIONS = frozenset(
    ("Send", "Recv", "SendRecv", "AlltoAll", "AllToAll", "Gather", "Scatter")
)
_ALGORITHM = re.compile(r"_(TREE|RING|COLLNET_DIRECT|COLLNET_CHAIN|NVLS_TREE|NVLS|PAT)(?=_|\(|$)")
_PROTOCOL = re.compile(r"_(LL128|LL|SIMPLE)(?=_|\(|$)")


def get_family(name: str) -> str:
    """Return the kernel family of an operation.

    Send, Recv and operations that consist of sends and receives share the family ``SendRecv``. The
    family of any other operation is its name, except that ``Bcast`` becomes ``Broadcast``.
    """
    name = {"Bcast": "Broadcast"}.get(name, name)
    return "SendRecv" if name in _SEND_RECV_OPERATIONS else name


def parse_kernel_name(kernel: str) -> tuple[str, str, str]:
    """Return the operation, algorithm and protocol in a kernel's name, or "" for unknown parts.

    Operations of HCCL have the names of the same operations of NCCL. For other libraries, the
    operation is the kernel's name without its signature.
    """
    if not naming.is_nccl(kernel):
        return naming.parse_hccl_operation(kernel) or naming.trim_signature(kernel), "", ""
    matches = (
        part.search(truncate_for_matching(kernel)) for part in (_FAMILY, _ALGORITHM, _PROTOCOL)
    )
    operation, algorithm, protocol = (match[1] if match else "" for match in matches)
    return "" if operation == "Generic" else operation, algorithm, protocol


@dataclass(frozen=True, eq=False, repr=False)
class Starts(Table):
    """Start times of recorded operations or profiled kernels on one clock, in ascending order.

    Attributes:
        start_ns: Start times.
        family: Kernel family, or -1 if unknown. An unknown family matches any family.
        length_ns: Duration, or -1 if unknown.
    """

    start_ns: Ints
    family: Ints
    length_ns: Ints


@dataclass(frozen=True, eq=False, repr=False)
class Kernels(Table):
    """Kernels of NCCL and HCCL, and those that the user listed, sorted by GPU and start.

    Attributes:
        start_ns: Start on the profile's clock, or on the report's clock after :func:`pool_kernels`.
        end_ns: End on the same clock.
        gpu_index: The GPU, as an index into ``places``.
        name: Kernel name, as an index into ``names``.
        family: Kernel family, as an index into ``families``, or -1 if unknown.
        names: Kernel names.
        families: Kernel families, as returned by :func:`get_family`.
        places: For each GPU, a tuple (process id, device number, hostname).
    """

    start_ns: Ints
    end_ns: Ints
    gpu_index: Ints
    name: Ints
    family: Ints
    names: tuple[str, ...] = field(default=(), metadata={"shared": True})
    families: tuple[str, ...] = field(default=(), metadata={"shared": True})
    places: tuple[tuple[int, int, str], ...] = field(default=(), metadata={"shared": True})

    def select_starts(self, gpu_index: int) -> Starts:
        """Return the kernel starts for a GPU, given as an index into ``places``."""
        kernels = self.take(self.gpu_index == gpu_index)
        return Starts(kernels.start_ns, kernels.family, kernels.end_ns - kernels.start_ns)


def select_kernels(activities: Activities, kinds: naming.Kinds, host: str) -> tuple[Kernels, Ints]:
    """Select the communication kernels of a profile.

    Args:
        activities: All kernels in the profile, followed by all copies.
        kinds: Kernel lists. Kernels that the user added as communication kernels are also selected.
        host: Name of the host that recorded the profile.

    Returns:
        kernels: The communication kernels, sorted by GPU and start.
        rows: For each of the returned kernels, its row in ``activities``.
    """
    is_listed = naming.match_any(activities.names, kinds.added_communication)
    is_listed |= np.array(
        [naming.is_nccl(name) or naming.is_hccl(name) for name in activities.names], bool
    )
    rows = np.flatnonzero(is_listed[activities.name_id[: activities.kernels]])
    rows = rows[np.lexsort((activities.start_ns[rows], activities.rank[rows]))]
    used, name = np.unique(activities.name_id[rows], return_inverse=True)
    names = tuple(activities.names[number] for number in used.tolist())
    families = Numbering[str]()
    texts = (get_family(parse_kernel_name(kernel)[0]) for kernel in names)
    family = np.array([families.number(text) if text else NONE for text in texts], np.int64)
    kernels = Kernels(
        start_ns=activities.start_ns[rows],
        end_ns=activities.end_ns[rows],
        gpu_index=activities.rank[rows].astype(np.int64),
        name=name.reshape(-1).astype(np.int64),
        family=family[name.reshape(-1)],
        names=names,
        families=families.values,
        places=tuple((get_pid(process), gpu, host) for process, gpu in activities.ranks.tolist()),
    )
    return kernels, rows


def pool_kernels(tables: Sequence[Kernels], clocks: Sequence[ProfileClock]) -> Kernels:
    """Concatenate the kernels of all profiles, converted to the report's clock.

    Args:
        tables: Kernels in each profile.
        clocks: Clock of each profile.
    """
    places: list[tuple[int, int, str]] = []
    pooled = [Kernels.make_empty()]
    for table, clock in zip(tables, clocks, strict=True):
        pooled.append(
            replace(
                table,
                start_ns=clock.convert(table.start_ns),
                end_ns=clock.convert(table.end_ns),
                gpu_index=table.gpu_index + len(places),
            )
        )
        places += table.places
    merged = merge_tables(pooled, names=("name",), families=("family",))
    return replace(merged, places=tuple(places))


def list_operations(
    kernels: Kernels,
    first: Ints,
    last: Ints,
    columns: Mapping[str, Ints],
    names: Sequence[str],
    communicators: tuple[Communicator, ...] = (),
) -> Communications:
    """Build a profile's operation table: the given operations, then one row per remaining kernel.

    A kernel is added as a separate operation unless it is the first or last kernel of a given
    operation. The operation is then read from the kernel's name, or is "unknown" if the name
    contains no operation.

    Args:
        kernels: Communication kernels in the profile.
        first: Row of the first kernel of each operation.
        last: Row of the last kernel of each operation.
        columns: Other columns of the operations, keyed by column name. ``name`` is required.
        names: Operation and datatype names. ``columns`` contains indices into these names.
        communicators: Communicators, to which ``columns`` refer by index.
    """
    bare = np.flatnonzero(~make_mask(len(kernels), np.append(first, last)))
    unknown = np.full(len(bare), NONE)
    numbers = Numbering[str]()
    number_of_name = np.append(numbers.numbers(names), NONE)
    operation, algorithm, protocol = _number_name_parts(kernels.names, numbers)
    all_columns = {name: np.append(column, unknown) for name, column in columns.items()}
    all_columns["name"] = np.append(number_of_name[columns["name"]], operation[kernels.name[bare]])
    if "datatype" in columns:
        all_columns["datatype"] = np.append(number_of_name[columns["datatype"]], unknown)
    first, last = np.append(first, bare), np.append(last, bare)
    pids = np.array([pid for pid, *_ in kernels.places], np.int64)
    all_columns |= {
        "pid": pids[kernels.gpu_index[first]],
        "algorithm": algorithm[kernels.name[first]],
        "protocol": protocol[kernels.name[first]],
        "duration_ns": kernels.end_ns[last] - kernels.start_ns[first],
        "kernel": first,
        "gpu": kernels.gpu_index[first],
    }
    codes = {"kind": int(OperationKind.KERNEL), "timing": int(Timing.KERNEL)}
    return make_communications(len(first), {**all_columns, **codes}, numbers.values, communicators)


def _number_name_parts(names: Sequence[str], numbers: Numbering[str]) -> tuple[Ints, Ints, Ints]:
    """Assign integer ids to the operation, algorithm and protocol in each kernel name.

    If the name contains no operation, the id of "unknown" is used. The id of a missing algorithm or
    protocol is -1.

    Args:
        names: Kernel names.
        numbers: Maps texts to integer ids. A new text gets the next free id.
    """
    parsed = [parse_kernel_name(name) for name in names]
    operation = numbers.numbers(operation or "unknown" for operation, _, _ in parsed)
    algorithm, protocol = (
        np.array([numbers.number(text) if text else NONE for text in texts], np.int64)
        for texts in ([text for _, text, _ in parsed], [text for _, _, text in parsed])
    )
    return operation, algorithm, protocol
