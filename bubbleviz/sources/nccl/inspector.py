"""Reads the JSON lines that NCCL Inspector writes (since NCCL 2.28).

NCCL Inspector is a profiler plugin of NCCL (``plugins/profiler/inspector`` of NVIDIA/nccl, formerly
``ext-profiler/inspector``). Each process writes one file, ``HOST-pidPID.log``, with one object per
completed operation (``inspector_json.cc``)::

    header      id (communicator hash), comm_name, rank, n_ranks, nnodes
    metadata    inspector_output_format_version, dump_timestamp_us, hostname, pid
    coll_perf   coll, coll_sn, coll_msg_size_bytes, coll_exec_time_us, coll_timing_source,
                coll_algo, coll_proto (since v4.2)
    p2p_perf    p2p, p2p_sn, p2p_peer, p2p_msg_size_bytes, p2p_exec_time_us, p2p_timing_source
    dump_stats  number of records that follow, and number of dropped records (since v4.1)
    proxy_trace steps of proxy threads (since v4.3)

- Since v4.3, only the ``dump_stats`` object has a header and metadata. They apply to as many
  following objects as ``dump_stats`` announces.
- ``coll_sn`` counts the operations of a communicator with the same name. ``p2p_sn`` counts all
  sends and receives of a rank in a communicator, starting at 1.
- ``exec_time_us`` is the time of the slowest channel of the kernel, in whole microseconds. It
  includes the time that the kernel waited for the other members.
- ``dump_timestamp_us`` is the time at which the object was written, which can be long after the
  operation. With ``NCCL_INSPECTOR_DUMP_VERBOSE=1``, ``event_trace_ts`` has the times at which the
  host saw the kernel start and stop. Both are UTC.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgspec

from bubbleviz.model.collectives import Group
from bubbleviz.model.columns import NONE
from bubbleviz.model.texts import replace_surrogates
from bubbleviz.progress import Watch
from bubbleviz.sources.gzip_files import UnpackedFile, is_json
from bubbleviz.sources.nccl.events import (
    MAX_DURATION_NS,
    UNKNOWN,
    EventFile,
    NcclEventBuilder,
    OperationKind,
    parse_gpu_time,
    parse_number,
)

INSPECTOR = "NCCL Inspector"
#: Matches a key that occurs in every object of the inspector, and in no other event file.
_HEAD = re.compile(rb'"(?:coll_perf|p2p_perf|dump_stats|proxy_trace)"\s*:\s*\{')
#: Matches a metric that the inspector writes for Prometheus.
_METRIC = re.compile(rb'(?:^|\n)nccl_\w+\{[^{}\n]*\bcomm_(?:id|name)="')
_BLOCK = 1 << 20
#: Names of operations that differ from the names used by NCCL's other profilers.
_NAMES = {"All2All": "AlltoAll", "Invalid": ""}
#: Largest plausible operation in bytes. The inspector multiplies the number of elements by -1 if
#: the data type is unknown, which gives a larger number.
_MAX_BYTES = 1 << 50


class _Channel(msgspec.Struct, gc=False):
    """Times at which the host saw a kernel start and stop on one channel, in us of UTC."""

    kernel_start_ts: int = 0
    kernel_stop_ts: int = 0


class _Times(msgspec.Struct, gc=False):
    """Times of the calls that the profiler received, in us of UTC."""

    coll_start_ts: int = 0
    coll_stop_ts: int = 0
    p2p_start_ts: int = 0
    p2p_stop_ts: int = 0
    kernel_events: list[_Channel] = []


class _Collective(msgspec.Struct, gc=False):
    """A completed collective."""

    name: str = msgspec.field(default="", name="coll")
    sequence: int | None = msgspec.field(default=None, name="coll_sn")
    size: int | None = msgspec.field(default=None, name="coll_msg_size_bytes")
    length_us: float | None = msgspec.field(default=None, name="coll_exec_time_us")
    timing_source: str = msgspec.field(default="", name="coll_timing_source")
    algorithm: str = msgspec.field(default="", name="coll_algo")
    protocol: str = msgspec.field(default="", name="coll_proto")
    times: _Times | None = msgspec.field(default=None, name="event_trace_ts")
    peer: None = None


class _PointToPoint(msgspec.Struct, gc=False):
    """A completed send or receive."""

    name: str = msgspec.field(default="", name="p2p")
    sequence: int | None = msgspec.field(default=None, name="p2p_sn")
    peer: int | None = msgspec.field(default=None, name="p2p_peer")
    size: int | None = msgspec.field(default=None, name="p2p_msg_size_bytes")
    length_us: float | None = msgspec.field(default=None, name="p2p_exec_time_us")
    timing_source: str = msgspec.field(default="", name="p2p_timing_source")
    times: _Times | None = msgspec.field(default=None, name="event_trace_ts")
    algorithm: str = ""
    protocol: str = ""


class _Header(msgspec.Struct, frozen=True, gc=False):
    """The communicator of an operation, and the rank in it."""

    id: str = ""
    comm_name: str = ""
    rank: int = NONE
    n_ranks: int = 0


class _Metadata(msgspec.Struct, frozen=True, gc=False):
    """The process that wrote an object."""

    hostname: str = ""
    pid: int = NONE


class _Stats(msgspec.Struct, gc=False):
    """Numbers of records that follow, and of records that were dropped since the start."""

    coll_records: int = 0
    p2p_records: int = 0
    proxy_records: int = 0
    coll_dropped_total: int = 0
    p2p_dropped_total: int = 0


class _Record(msgspec.Struct, gc=False):
    """An object in a file, which has exactly one of the last four fields."""

    header: _Header | None = None
    metadata: _Metadata | None = None
    coll_perf: _Collective | None = None
    p2p_perf: _PointToPoint | None = None
    dump_stats: _Stats | None = None
    proxy_trace: msgspec.Raw | None = None


_decode = msgspec.json.Decoder(_Record).decode


def is_inspector_file(head: bytes) -> bool:
    """Return whether a file's first bytes look like lines of NCCL Inspector."""
    return is_json(head) and _HEAD.search(head) is not None


def is_metrics_file(head: bytes) -> bool:
    """Return whether a file's first bytes look like metrics that the inspector writes."""
    return _METRIC.search(head) is not None


def _split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file that are not blank. The last line may be truncated."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from filter(bytes.strip, lines)
    if rest.strip():
        yield rest


def _join_objects(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Join the lines of each indented object, as written by ``jq``, and yield all other lines.

    An indented object begins with a line ``{`` and ends with a line ``}``. An object without an end
    is yielded as far as it goes.
    """
    parts: list[bytes] = []
    for line in lines:
        text = line.strip(b"\r")
        if parts and text == b"{":
            yield b"\n".join(parts)
            parts = []
        if not parts and text != b"{":
            yield line
            continue
        parts.append(line)
        if text == b"}":
            yield b"\n".join(parts)
            parts = []
    if parts:
        yield b"\n".join(parts)


class _Reader:
    """Adds the operations in a file to a builder.

    Args:
        builder: Builder that receives the operations.

    Attributes:
        unreadable: Number of texts that are not objects of the inspector.
        sizes: Number of ranks in each communicator.
        host: Hostname, or "" if unknown.
        has_stats: Whether the file counts dropped operations.
        n_host_timed: Number of operations whose duration was measured on the host.
    """

    def __init__(self, builder: NcclEventBuilder) -> None:
        self.unreadable = self.n_host_timed = 0
        self.sizes: dict[int | Group, int] = {}
        self.host = ""
        self.has_stats = False
        self._builder = builder
        self._communicators: dict[_Header, int | Group | None] = {}
        self._sends: list[tuple[_Header, _Metadata, _PointToPoint]] = []
        self._dropped: Counter[tuple[_Header, bool]] = Counter()
        #: Number of objects without a header that the last ``dump_stats`` object still announces.
        self._n_announced = self._n_unwritten = 0
        self._context: tuple[_Header, _Metadata] | None = None

    @property
    def n_dropped(self) -> int:
        """Number of operations that the inspector dropped, or announced but did not write."""
        return sum(self._dropped.values()) + self._n_unwritten + self._n_announced

    def add_object(self, text: bytes) -> None:
        """Add the operation in an object, or count the text as unreadable."""
        try:
            record = _decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.unreadable += 1
            return
        if record.dump_stats is not None and record.header is not None:
            self._start_dump(record.header, record.metadata or _Metadata(), record.dump_stats)
            return
        header, metadata = record.header, record.metadata or _Metadata()
        if header is None and self._n_announced > 0 and self._context is not None:
            header, metadata = self._context
        # In versions before v4.3, objects count as announced and have their own header.
        self._n_announced = max(self._n_announced - 1, 0)
        if record.proxy_trace is not None:
            self._builder.category_counts["proxy_trace"] += 1
        elif header is None or (record.coll_perf is None and record.p2p_perf is None):
            self.unreadable += 1
        elif record.coll_perf is not None:
            self._builder.category_counts["coll_perf"] += 1
            self._add_operation(header, metadata, record.coll_perf)
        elif record.p2p_perf is not None:
            self._builder.category_counts["p2p_perf"] += 1
            self._sends.append((header, metadata, record.p2p_perf))

    def close(self) -> None:
        """Add the sends and receives, ordered by their numbers.

        They are written in the order in which they were completed. The k-th send from one rank to
        another belongs to the k-th receive in the order in which they were started.
        """
        self._sends.sort(key=lambda row: (row[0].id, row[0].rank, parse_number(row[2].sequence)))
        for header, metadata, operation in self._sends:
            self._add_operation(header, metadata, operation)

    def _start_dump(self, header: _Header, metadata: _Metadata, stats: _Stats) -> None:
        """Process the object at the start of a dump of one communicator."""
        self._builder.category_counts["dump_stats"] += 1
        self.has_stats = True
        self._n_unwritten += self._n_announced
        self._n_announced = stats.coll_records + stats.p2p_records + stats.proxy_records
        self._context = header, metadata
        for is_p2p, total in ((False, stats.coll_dropped_total), (True, stats.p2p_dropped_total)):
            self._dropped[header, is_p2p] = max(self._dropped[header, is_p2p], total)

    def _find_communicator(self, header: _Header) -> int | Group | None:
        """Return the communicator of a header, or None if its hash is unknown.

        A communicator without a name is represented by its hash, as in other event files.
        """
        if header not in self._communicators:
            communicator: int | Group | None = None
            if re.fullmatch(r"(?:0x)?[0-9a-fA-F]{1,16}", header.id):
                communicator = int(header.id, 16)
                size = header.n_ranks if 0 < header.n_ranks <= 1 << 30 else 0
                if header.comm_name not in {"", "unknown"}:
                    name = replace_surrogates(header.comm_name)
                    communicator = Group(name, f"0x{communicator:x}", size=size)
                if size:
                    self.sizes[communicator] = size
            self._communicators[header] = communicator
        return self._communicators[header]

    def _add_operation(
        self, header: _Header, metadata: _Metadata, operation: _Collective | _PointToPoint
    ) -> None:
        """Add a completed operation to the builder.

        The duration is known even if the times are unknown. If the times are known, the kernel
        start is the kernel end minus the duration.
        """
        builder, times = self._builder, operation.times or _Times()
        name = _NAMES.get(operation.name, operation.name)
        is_p2p = isinstance(operation, _PointToPoint)
        duration_ns = _parse_length(operation.length_us)
        is_host_timed = operation.timing_source in {"kernel_cpu", "collective_cpu"}
        self.n_host_timed += is_host_timed
        self.host = self.host or replace_surrogates(metadata.hostname)
        end_ns = _parse_utc(max((seen.kernel_stop_ts for seen in times.kernel_events), default=0))
        has_times = UNKNOWN != end_ns > duration_ns >= 0
        size = parse_number(operation.size)
        builder.add(
            kind=OperationKind.POINT_TO_POINT if is_p2p else OperationKind.COLLECTIVE,
            pid=parse_number(metadata.pid),
            name=builder.number_name(replace_surrogates(name)),
            communicator=builder.number_communicator(self._find_communicator(header)),
            rank=parse_number(header.rank),
            peer=parse_number(operation.peer),
            sequence=parse_number(operation.sequence),
            payload=size if size <= _MAX_BYTES else NONE,
            algorithm=builder.number_name(_to_known(operation.algorithm)),
            protocol=builder.number_name(_to_known(operation.protocol)),
            channels=len(times.kernel_events) or NONE,
            host_start_ns=_parse_utc(times.p2p_start_ts if is_p2p else times.coll_start_ts),
            host_end_ns=_parse_utc(times.p2p_stop_ts if is_p2p else times.coll_stop_ts),
            kernel_start_ns=end_ns - duration_ns if has_times else UNKNOWN,
            kernel_end_ns=end_ns if has_times else UNKNOWN,
            duration_ns=duration_ns,
            is_host_duration=int(is_host_timed),
        )


def _parse_utc(microseconds: int) -> int:
    """Convert a UTC time in us to ns. 0 and invalid times become ``UNKNOWN``."""
    return parse_gpu_time(1000 * microseconds)


def _parse_length(microseconds: float | None) -> int:
    """Convert a duration in us to ns, or return -1 if it is unknown or invalid."""
    if microseconds is None or not 0 <= microseconds <= MAX_DURATION_NS / 1000:
        return NONE
    return round(1000 * microseconds)


def _to_known(text: str) -> str:
    """Return a name, or "" if the inspector did not know it."""
    return "" if text == "unknown" else replace_surrogates(text)


def read_inspector_file(path: str, watch: Watch) -> EventFile:
    """Read the operations in a file of NCCL Inspector.

    A truncated last line, and lines that are not objects of the inspector, are counted as
    unreadable. Records of proxy threads are counted, but otherwise ignored.

    Args:
        path: Path to the file.
        watch: Callback that receives the fraction of the file that has been read.

    Raises:
        ProfileError: The file cannot be read.
    """
    builder = NcclEventBuilder()
    reader = _Reader(builder)
    chunks = UnpackedFile(path, watch, _BLOCK)
    for text in _join_objects(_split_lines(chunks)):
        reader.add_object(text)
    reader.close()
    is_packed_damaged = chunks.damaged or chunks.cut
    file = builder.build_event_file(path, INSPECTOR, reader.unreadable)
    return replace(
        file,
        host=reader.host,
        sizes=reader.sizes,
        n_dropped=reader.n_dropped,
        n_host_timed=reader.n_host_timed,
        counts_drops=reader.has_stats,
        is_packed_damaged=is_packed_damaged,
    )
