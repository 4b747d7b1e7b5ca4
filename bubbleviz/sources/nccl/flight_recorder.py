"""PyTorch's flight recorder: the last operations of a rank's process groups, and how far they came.

A process keeps them in a ring buffer (``TORCH_FR_BUFFER_SIZE``), and dumps it as a pickle or as
JSON where a collective times out, or when it is asked to
(torch/csrc/distributed/c10d/FlightRecorderDetail.hpp)::

    pg_config   {group: {name, desc, ranks: "[0, 1]"}}
    entries     [{process_group: (group, desc), profiling_name: "nccl:send 0->1", state, ...}]

Sends and receives of a batch have neither state nor times: the entry ``coalesced`` that ends it has
those of all, under their number. The recorder looks at the GPU now and then, so that when it saw an
end is inexact; ``duration_ms`` is the GPU's own (``TORCH_NCCL_ENABLE_TIMING``).
"""

from __future__ import annotations

import io
import pickle
import re
from collections import defaultdict
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
from bubbleviz.sources.kineto.collectives import members_of
from bubbleviz.sources.kineto.events import text_of
from bubbleviz.sources.nccl import events

FLIGHT_RECORDER = "flight recorder"
#: The rank ends the name of the file, before its endings.
_RANK = re.compile(r"([0-9]{1,7})(?:\.[a-z]+)*$")
#: ``nccl:all_reduce``, ``nccl:send 0->1``, ``nccl:recv 1<-0``; it matches any text.
_NAME = re.compile(r"(?:\w+:)?(?P<name>\S*)(?: (?P<own>[0-9]{1,7})(?:->|<-)(?P<peer>[0-9]{1,7}))?")
#: The beginnings of pickles, and what JSON of them holds.
_PICKLE = re.compile(rb"\x80[\x02-\x05](?s:.){0,200}?(?:version|pg_config|entries)")
_JSON = re.compile(rb'"(?:collective_seq_id|pg_status)"\s*:')
_COALESCED = "coalesced"
#: Operations whose elements are those that a rank takes.
_TAKING = frozenset(("Recv", "ReduceScatter", "Scatter"))
_BLOCK = 1 << 20


class _Entry(msgspec.Struct):
    """An operation of a dump, in the dump's words."""

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
        """Its number among its group's transfers, or collectives."""
        return events.number_of(self.p2p_seq_id if self.is_p2p else self.collective_seq_id)

    @property
    def progress(self) -> int:
        """How far it came; recorders without times of GPUs tell only that it ended."""
        if self.state == "completed" or self.retired:
            return events.PROGRESS.index("completed")
        return int(self.state == "started")


def is_dump(head: bytes) -> bool:
    """Tell by its first bytes whether a file is a dump."""
    if is_json(head):
        return b'"traceEvents"' not in head and _JSON.search(head) is not None
    return _PICKLE.match(head) is not None


def _refused(module: str, name: str) -> NoReturn:
    raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no dump holds")


def _content(path: str, watch: Watch) -> tuple[dict[str, dict[str, Any]], list[Any]]:
    """Return the groups and the entries of a dump.

    Raises:
        ProfileError: it cannot be read, is damaged, or holds objects.
    """
    content = b"".join(UnpackedFile(path, watch, _BLOCK))
    # That in C gives memory for any index that a damaged file names.
    unpickler = pickle._Unpickler(io.BytesIO(content))
    unpickler.find_class = _refused  # type: ignore[method-assign]  # a dump holds no objects
    try:
        document = msgspec.json.decode(content) if is_json(content) else unpickler.load()
        return (
            msgspec.convert(document.get("pg_config") or {}, dict[str, dict[str, Any]]),
            msgspec.convert(document.get("entries") or [], list[Any]),
        )
    # Damage raises whatever its bytes ask for.
    except Exception as error:
        whole = content.rstrip().endswith((b".", b"}"))
        reason = (whole and to_one_line(str(error), 80)) or "cut short"
        raise ProfileError(
            f"{path}: a damaged dump of PyTorch's flight recorder ({reason}); copy it again, or "
            "leave it out"
        ) from error


def read_dump(path: str, watch: Watch) -> events.EventFile:
    """Return the operations of a dump.

    Raises:
        InputError: the file's name holds no rank.
        ProfileError: it cannot be read.
    """
    match = _RANK.search(Path(path).name)
    if match is None:
        raise InputError(
            f"{path}: a dump of PyTorch's flight recorder, whose name should end in its rank; "
            "rename it, such as to nccl_trace_rank_0"
        )
    rank, (configs, content) = int(match[1]), _content(path, watch)
    builder, groups, entries = events.NcclEventBuilder(), dict[str, Group](), list[_Entry]()
    for name, config in configs.items():
        ranks = members_of(config.get("ranks"), 0)
        groups[name] = Group(
            replace_surrogates(name), "", ranks, len(ranks), text_of(config.get("desc"))
        )
        # Groups tell stages, without operations, too.
        builder.communicator(groups[name])
    batches: defaultdict[tuple[object, ...], list[_Entry]] = defaultdict(list)
    for written in content:
        with suppress(msgspec.ValidationError):
            entries.append(msgspec.convert(written, _Entry, strict=False))
    for entry in entries:
        batches[(*entry.process_group, entry.is_p2p, entry.sequence)].append(entry)
        builder.seen[events.PROGRESS[entry.progress]] += 1
    for batch in batches.values():
        name, description = map(replace_surrogates, batch[0].process_group)
        group = groups.get(name) or Group(name, description=description)
        ends = [entry for entry in batch if _named(entry)["name"] == _COALESCED]
        for entry in batch:
            end = (ends or [entry])[-1]
            # Which of its peers a batch waited for cannot be known.
            if len({_named(each)["peer"] for each in batch} - {None}) > 1:
                end = msgspec.structs.replace(end, duration_ms=None)
            if len(batch) == 1 or _named(entry)["name"] != _COALESCED:
                _add(builder, entry, end, group, rank)
    file = builder.event_file(path, FLIGHT_RECORDER, len(content) - len(entries))
    return replace(file, rank=rank, rolled_over=bool(entries and entries[0].record_id))


def _named(entry: _Entry) -> re.Match[str]:
    match = _NAME.match(replace_surrogates(entry.profiling_name))
    assert match is not None
    return match


def _add(
    builder: events.NcclEventBuilder, entry: _Entry, end: _Entry, group: Group, rank: int
) -> None:
    """Add an operation.

    Args:
        builder: takes it.
        entry: the operation.
        end: the entry with its progress and times.
        group: whose it is; of unknown members ranks go by their numbers in the run.
        rank: of the process, in the run.
    """
    match = _named(entry)
    name, point = get_nccl_operation(match["name"]) or match["name"], match["peer"] is not None
    sizes = entry.output_sizes if name in _TAKING else entry.input_sizes
    elements = sum(map(prod, sizes)) // (max(group.size, 1) if name == "AlltoAll" else 1)
    own = group.ranks.index(rank) if rank in group.ranks else rank
    length_ms, end_ns = end.duration_ms, events.clock_of(end.time_discovered_completed_ns)
    known = end_ns > 0 and length_ms is not None and 0 <= length_ms < 1e10
    builder.add(
        kind=events.OperationKind.POINT_TO_POINT if point else events.OperationKind.COLLECTIVE,
        name=builder.name(name),
        communicator=builder.communicator(group),
        rank=int(match["own"]) if point else own,
        peer=int(match["peer"]) if point else NONE,
        sequence=entry.sequence,
        count=events.number_of(elements),
        datatype=builder.name("".join(map(replace_surrogates, entry.input_dtypes[:1]))),
        progress=end.progress,
        host_start_ns=events.clock_of(entry.time_created_ns),
        kernel_start_ns=end_ns - round(1e6 * (length_ms or 0)) if known else events.UNKNOWN,
        kernel_end_ns=end_ns,
    )
