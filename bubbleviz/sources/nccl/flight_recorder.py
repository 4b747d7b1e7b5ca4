"""Reads PyTorch's flight recorder dumps, which contain a rank's latest communication operations.

Each process records its operations and their progress in a ring buffer
(``TORCH_FR_BUFFER_SIZE``). When a collective times out, or on request, the process dumps the buffer
as a pickle or as JSON (torch/csrc/distributed/c10d/FlightRecorderDetail.hpp)::

    pg_config   {group: {name, desc, ranks: "[0, 1]"}}
    entries     [{process_group: (group, desc), profiling_name: "nccl:send 0->1", state, ...}]

The entries of sends and receives in a batch contain neither states nor times. The state and the
times are in the entry ``coalesced``, which ends the batch and has the same sequence number. The
recorder polls the GPU, so the recorded end of an operation is inexact. ``duration_ms`` is measured
on the GPU (``TORCH_NCCL_ENABLE_TIMING``).
"""

from __future__ import annotations

import io
import pickle
import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from bubbleviz.conventions.kinds import get_nccl_operation
from bubbleviz.errors import InputError, ProfileError
from bubbleviz.model.collectives import Group
from bubbleviz.model.columns import NONE
from bubbleviz.model.texts import replace_surrogates, to_one_line
from bubbleviz.progress import Watch
from bubbleviz.sources.gzip_files import UnpackedFile, is_json
from bubbleviz.sources.kineto.collectives import parse_members
from bubbleviz.sources.kineto.events import to_text
from bubbleviz.sources.nccl import events

FLIGHT_RECORDER = "flight recorder"
#: Matches the rank at the end of a file name, before the suffixes.
_RANK = re.compile(r"([0-9]{1,7})(?:\.[a-z]+)*$")
#: Splits names such as ``nccl:all_reduce``, ``nccl:send 0->1`` and ``nccl:recv 1<-0``.
#: Every text matches this expression.
_NAME = re.compile(r"(?:\w+:)?(?P<name>\S*)(?: (?P<own>[0-9]{1,7})(?:->|<-)(?P<peer>[0-9]{1,7}))?")
#: Match the start of a pickled dump, and the keys in a JSON dump.
_PICKLE = re.compile(rb"\x80[\x02-\x05](?s:.){0,200}?(?:version|pg_config|entries)")
_JSON = re.compile(rb'"(?:collective_seq_id|pg_status)"\s*:')
_COALESCED = "coalesced"
#: Operations whose element count is the output size instead of the input size.
_COUNTS_OUTPUT = frozenset(("Recv", "ReduceScatter", "Scatter"))
_BLOCK = 1 << 20


class _Entry(msgspec.Struct):
    """An entry in a dump. The fields have the same names as in the dump."""

    record_id: int = 0
    process_group: tuple[str, str] = ("", "")
    profiling_name: str = ""
    collective_seq_id: int = NONE
    p2p_seq_id: int = NONE
    is_p2p: bool = False
    state: str = ""
    retired: bool = False
    time_created_ns: int | None = None
    time_discovered_completed_ns: int | None = None
    duration_ms: float | None = None
    input_sizes: list[list[int]] = []
    output_sizes: list[list[int]] = []
    input_dtypes: list[str] = []

    @property
    def sequence(self) -> int:
        """Sequence number of the operation in its process group, or -1 if unknown.

        Point-to-point operations and collectives are numbered separately.
        """
        return events.parse_number(self.p2p_seq_id if self.is_p2p else self.collective_seq_id)

    @property
    def progress(self) -> int:
        """Progress as an index into ``events.PROGRESS``.

        Without GPU timing, only the completion is recorded, and "started" does not occur.
        """
        if self.state == "completed" or self.retired:
            return events.PROGRESS.index("completed")
        return int(self.state == "started")


def is_dump(head: bytes) -> bool:
    """Return whether a file's first bytes look like the start of a dump."""
    if is_json(head):
        return b'"traceEvents"' not in head and _JSON.search(head) is not None
    return _PICKLE.match(head) is not None


def _refuse_object(module: str, name: str) -> NoReturn:
    """Reject a pickle that refers to a class or function, because dumps never do."""
    raise pickle.UnpicklingError(f"it refers to {module}.{name}, which never occurs in a dump")


def _load_content(path: str, watch: Watch) -> tuple[dict[str, dict[str, Any]], list[Any]]:
    """Load a pickled or JSON dump.

    Returns:
        configs: Configurations of the process groups, keyed by group name.
        entries: Entries of the ring buffer in the order of the dump, not yet validated.

    Raises:
        ProfileError: The dump cannot be read, is damaged, or contains pickled objects.
    """
    content = b"".join(UnpackedFile(path, watch, _BLOCK))
    # For a damaged file, the C unpickler may allocate a lot of memory. The Python unpickler does
    # not.
    unpickler = pickle._Unpickler(io.BytesIO(content))
    unpickler.find_class = _refuse_object  # type: ignore[method-assign]  # a dump holds no objects
    try:
        document = msgspec.json.decode(content) if is_json(content) else unpickler.load()
        return (
            msgspec.convert(document.get("pg_config") or {}, dict[str, dict[str, Any]]),
            msgspec.convert(document.get("entries") or [], list[Any]),
        )
    # Damaged data can raise any exception.
    except Exception as error:
        is_complete = content.rstrip().endswith((b".", b"}"))
        reason = (is_complete and to_one_line(str(error), 80)) or "cut short"
        raise ProfileError(
            f"{path}: the flight recorder dump is damaged ({reason}); copy it again, or leave it "
            "out"
        ) from error


def read_dump(path: str, watch: Watch) -> events.EventFile:
    """Read the operations in a dump.

    Invalid entries are counted as unreadable. Entries with the same process group, kind
    (point-to-point or collective) and sequence number form a batch, see :func:`_add_batch`. The
    communicators of the result include process groups without operations.

    Raises:
        InputError: The file name does not end in a rank.
        ProfileError: The file cannot be read.
    """
    rank = _parse_rank(path)
    configs, content = _load_content(path, watch)
    builder = events.NcclEventBuilder()
    groups = _read_groups(configs)
    for group in groups.values():
        # Groups without operations are added too, because they help to identify the pipeline
        # stages.
        builder.number_communicator(group)
    entries = _parse_entries(content)
    batches: defaultdict[tuple[object, ...], list[_Entry]] = defaultdict(list)
    for entry in entries:
        batches[(*entry.process_group, entry.is_p2p, entry.sequence)].append(entry)
        builder.category_counts[events.PROGRESS[entry.progress]] += 1
    for batch in batches.values():
        _add_batch(builder, batch, _find_group(groups, batch[0]), rank)
    file = builder.build_event_file(path, FLIGHT_RECORDER, len(content) - len(entries))
    return replace(file, rank=rank, rolled_over=bool(entries and entries[0].record_id))


def _parse_rank(path: str) -> int:
    """Return the rank at the end of a dump's file name, such as 3 in ``nccl_trace_rank_3.json``.

    Raises:
        InputError: The file name does not end in a rank.
    """
    match = _RANK.search(Path(path).name)
    if match is None:
        raise InputError(
            f"{path}: the name of a flight recorder dump must end in its rank; rename the file, "
            "for example to nccl_trace_rank_0"
        )
    return int(match[1])


def _find_group(groups: Mapping[str, Group], entry: _Entry) -> Group:
    """Return an entry's process group, with unknown ranks if the dump does not describe the group.

    Args:
        groups: Process groups that the dump describes, keyed by name.
        entry: Entry of the dump.
    """
    name, description = map(replace_surrogates, entry.process_group)
    return groups.get(name) or Group(name, description=description)


def _read_groups(configs: dict[str, dict[str, Any]]) -> dict[str, Group]:
    """Convert process group configurations to groups, keyed by name."""
    groups: dict[str, Group] = {}
    for name, config in configs.items():
        ranks = parse_members(config.get("ranks"), 0)
        groups[name] = Group(
            replace_surrogates(name), "", ranks, len(ranks), to_text(config.get("desc"))
        )
    return groups


def _parse_entries(content: list[Any]) -> list[_Entry]:
    """Return the valid entries in a dump, in the same order. Invalid entries are skipped."""
    entries: list[_Entry] = []
    for raw_entry in content:
        with suppress(msgspec.ValidationError):
            entries.append(msgspec.convert(raw_entry, _Entry, strict=False))
    return entries


def _add_batch(
    builder: events.NcclEventBuilder, batch: list[_Entry], group: Group, rank: int
) -> None:
    """Add the operations in one batch to the builder.

    - If the batch has an entry named ``coalesced``, its progress and times apply to all operations
      in the batch. Otherwise, each operation's own entry gives its progress and times.
    - A ``coalesced`` entry is added as an operation only if it is the only entry in the batch.
    - In a batch with several peers, the duration of every operation is unknown, because the batch
      may have waited for any of the peers.

    Args:
        builder: Builder that receives the operations.
        batch: Entries with the same process group, kind and sequence number.
        group: Process group of the batch.
        rank: The process's rank in the run.
    """
    batch_ends = [entry for entry in batch if _parse_name(entry)["name"] == _COALESCED]
    peers = {_parse_name(entry)["peer"] for entry in batch} - {None}
    for entry in batch:
        timed_entry = (batch_ends or [entry])[-1]
        # A batch with several peers may have waited for any of the peers.
        if len(peers) > 1:
            timed_entry = msgspec.structs.replace(timed_entry, duration_ms=None)
        if len(batch) == 1 or _parse_name(entry)["name"] != _COALESCED:
            _add_operation(builder, entry, timed_entry, group, rank)


def _parse_name(entry: _Entry) -> re.Match[str]:
    """Split the name of an entry into the groups ``name``, ``own`` and ``peer``.

    ``own`` is the calling rank, and ``peer`` is the rank of the peer. ``own`` and ``peer`` are None
    if the operation is not point-to-point.
    """
    match = _NAME.match(replace_surrogates(entry.profiling_name))
    assert match is not None
    return match


def _add_operation(
    builder: events.NcclEventBuilder, entry: _Entry, timed_entry: _Entry, group: Group, rank: int
) -> None:
    """Add an operation to the builder.

    - The operation is point-to-point if its name contains a peer.
    - The count is the number of elements in the input, or in the output for operations in
      ``_COUNTS_OUTPUT``. For AlltoAll, the count is divided by the group size.
    - The kernel end is the time at which the recorder noticed that the operation had completed.
    - The kernel start is the kernel end minus the duration. If the duration is unknown, the kernel
      start is unknown as well.

    Args:
        builder: Builder that receives the operation.
        entry: Entry of the operation.
        timed_entry: Entry that contains the operation's progress and times: the last ``coalesced``
            entry in the batch, or ``entry`` itself.
        group: Process group of the operation. If the group does not contain ``rank``, the rank in
            the run is used as the rank in the group.
        rank: The process's rank in the run.
    """
    match = _parse_name(entry)
    name = get_nccl_operation(match["name"]) or match["name"]
    is_point_to_point = match["peer"] is not None
    sizes = entry.output_sizes if name in _COUNTS_OUTPUT else entry.input_sizes
    elements = sum(map(prod, sizes)) // (max(group.size, 1) if name == "AlltoAll" else 1)
    group_rank = group.ranks.index(rank) if rank in group.ranks else rank
    length_ms = timed_entry.duration_ms
    end_ns = events.parse_gpu_time(timed_entry.time_discovered_completed_ns)
    has_duration = end_ns > 0 and length_ms is not None and 0 <= length_ms < 1e10
    builder.add(
        kind=events.OperationKind.POINT_TO_POINT
        if is_point_to_point
        else events.OperationKind.COLLECTIVE,
        name=builder.number_name(name),
        communicator=builder.number_communicator(group),
        rank=int(match["own"]) if is_point_to_point else group_rank,
        peer=int(match["peer"]) if is_point_to_point else NONE,
        sequence=entry.sequence,
        count=events.parse_number(elements),
        datatype=builder.number_name("".join(map(replace_surrogates, entry.input_dtypes[:1]))),
        progress=timed_entry.progress,
        host_start_ns=events.parse_gpu_time(entry.time_created_ns),
        kernel_start_ns=end_ns - round(1e6 * (length_ms or 0)) if has_duration else events.UNKNOWN,
        kernel_end_ns=end_ns,
    )
