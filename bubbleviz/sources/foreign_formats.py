"""Recognizes the output of other profilers and tools, to name the export that can be read instead.

None of these files contains what an analysis needs, or another output of the same tool contains
more. To add a format, add an entry to ``FOREIGN_FORMATS``. A file is recognized by its content,
never by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from bubbleviz.errors import RECORD_WITH_NSYS, RECORD_WITH_ROCPROF, ProfileError
from bubbleviz.sources.gzip_files import is_json

_PASS_TORCH_TRACE = (
    "pass the trace that torch.profiler writes with export_chrome_trace or "
    "tensorboard_trace_handler (bubbleviz guide traces)"
)
_RECORD_XPU = "record the run with torch.profiler, including ProfilerActivity.XPU"
_WRITE_TABLE = "write a table of operations (bubbleviz guide tables)"
_EXPORT_REPORT = "export the report with: nsys export --type sqlite REPORT.nsys-rep"
#: Number of lines at the start of a file that may contain the header of a table. Programs that
#: write a table to the standard output print other lines first.
_MAX_HEADER_LINES = 40
#: Number of bytes at the start of JSON that may contain the distinctive keys.
_MAX_KEY_BYTES = 4096
#: Match keys of traces from PyTorch, and of all traces in the Trace Event Format. Names in these
#: traces may be the same as in files of other tools.
_TORCH_KEY, _EVENT_KEY = b'"schemaVersion"', rb'"traceEvents"|"ph"\s*:'
#: Separates the columns of a table in text.
_DELIMITERS = re.compile(rb"[,;\t]")


@dataclass(frozen=True)
class ForeignFormat:
    """A file format that is recognized, but not read.

    Attributes:
        name: Noun phrase with the tool and the kind of output, such as "a report of Nsight Compute
            (ncu)".
        reason: Relative clause that says why the file is not read, such as "which contains only
            sums", or "".
        remedy: Clause with the next step, such as the command that writes a readable file.
        recognizes: Function that decides from the first 64 KiB of a file (unpacked if the file is
            gzipped) whether it has this format. SQLite files are not passed to this function.
        recognizes_tables: Function that decides from the names of all tables and views whether an
            SQLite file has this format.
    """

    name: str
    reason: str
    remedy: str
    recognizes: Callable[[bytes], bool] = lambda _: False
    recognizes_tables: Callable[[frozenset[str]], bool] = lambda _: False

    def make_error(self, path: str) -> ProfileError:
        """Return the error for a file in this format."""
        reason = f", {self.reason}" if self.reason else ""
        return ProfileError(f"{path}: is {self.name}{reason}; {self.remedy}")


def find_foreign_format(head: bytes) -> ForeignFormat | None:
    """Return the format of a file that is not an SQLite database, or None if it is unknown.

    Args:
        head: The first 64 KiB of the file, unpacked if the file is gzipped.
    """
    return next((each for each in FOREIGN_FORMATS if each.recognizes(head)), None)


def find_foreign_database(tables: frozenset[str]) -> ForeignFormat | None:
    """Return the format of an SQLite database, or None if it is unknown.

    Args:
        tables: Names of all tables and views in the database.
    """
    return next((each for each in FOREIGN_FORMATS if each.recognizes_tables(tables)), None)


def _starts_with(*beginnings: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(beginnings)


def _is_text(head: bytes) -> bool:
    """Return whether a file may be text other than JSON. A log may start with a bracket."""
    return b"\0" not in head and re.match(rb"\s*(?:\{|\[\s*[\[{\]])", head) is None


def _list_first_lines(head: bytes) -> list[bytes]:
    return head.split(b"\n", _MAX_HEADER_LINES)[:_MAX_HEADER_LINES]


def _contains(pattern: bytes) -> Callable[[bytes], bool]:
    """Return a test for texts other than JSON that match a regular expression."""
    # The expression is compiled on first use, because most files need none of them.
    return lambda head: _is_text(head) and re.search(pattern, head) is not None


def _is_json_with(pattern: bytes, without: bytes = b"(?!)") -> Callable[[bytes], bool]:
    """Return a test for JSON whose first bytes match a regular expression.

    Args:
        pattern: The regular expression.
        without: Regular expression that the first bytes must not match. The default matches
            nothing.
    """

    def is_json_with(head: bytes) -> bool:
        beginning = head[:_MAX_KEY_BYTES]
        has_pattern = is_json(head) and re.search(pattern, beginning) is not None
        return has_pattern and re.search(without, beginning) is None

    return is_json_with


def _passes_any(*tests: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
    return lambda head: any(test(head) for test in tests)


def _has_columns(*alternatives: str) -> Callable[[bytes], bool]:
    """Return a test for tables in text.

    Args:
        alternatives: Sets of column names, separated by ``|``. A table passes the test if one line
            near its start contains all names of at least one set.
    """
    sets = [frozenset(names.encode().split(b"|")) for names in alternatives]

    def has_columns(head: bytes) -> bool:
        if not _is_text(head):
            return False
        for line in _list_first_lines(head):
            columns = {cell.strip(b' "\r') for cell in _DELIMITERS.split(line)}
            if any(names <= columns for names in sets):
                return True
        return False

    return has_columns


#: Matches the title of a table that ``nsys stats`` prints.
_NSYS_TITLE = rb"(?m)^ \*\* .{1,80} \(\w+\):"
#: Matches columns of the tables of ``nsys stats``. The option ``--timeunit`` changes the units.
_NSYS_COLUMN = (
    rb"Time ?\(%\)|(?:Total|[QTKA]?(?:Avg|Med|Min|Max|StdDev)) (?:Proj )?(?:Time )?\(\S{1,5}\)"
    rb"|(?:Projected |API |Queue |Kernel |Orig )?(?:Start|Dur|Duration)(?: \(\S{1,5}\))?"
    rb"|CorrI[dD]|GrdX|T-Pri|DurChild \(\S{1,5}\)|NVTX Inst|Kern Inst|Thread Name|Strm"
)
#: Minimum number of such columns in a header. Other tables may have a column such as ``Start``.
_MIN_NSYS_COLUMNS = 3
#: Tag of the first packet in a Perfetto trace.
_FIRST_PACKET = b"\x0a"
#: Fields of a packet in a Perfetto trace: trusted user id, timestamp, sequence id.
_PERFETTO_FIELDS = frozenset((3, 8, 10))
#: Wire types of protocol buffers, and sizes of the fixed-size ones in bytes, keyed by wire type.
_VARINT, _BYTES = 0, 2
_FIXED_SIZES = {1: 8, 5: 4}


def _is_nsys_stats(head: bytes) -> bool:
    """Return whether a text is a report of ``nsys stats``: CSV, JSON, or aligned columns."""
    keys = re.findall(rb'"(' + _NSYS_COLUMN + rb')"\s*:', head[:_MAX_KEY_BYTES])
    if len(set(keys)) >= _MIN_NSYS_COLUMNS:
        return True
    if not _is_text(head):
        return False
    if re.search(_NSYS_TITLE, head):
        return True
    for line in _list_first_lines(head):
        cells = re.split(rb"[,;\t]|  +", line.strip())
        columns = {cell for cell in cells if re.fullmatch(_NSYS_COLUMN, cell.strip(b'" \r'))}
        if len(columns) >= _MIN_NSYS_COLUMNS:
            return True
    return False


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return a varint of a protocol buffer, and the offset after it.

    Raises:
        IndexError: The data ends inside the varint.
    """
    value = shift = 0
    while True:
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        offset += 1
        shift += 7
        if byte < 0x80:
            return value, offset


def _iter_varint_fields(message: bytes) -> Iterator[int]:
    """Yield the numbers of the fields with varints in a protocol buffer, up to an invalid field.

    Raises:
        IndexError: The message is cut short.
    """
    offset = 0
    while offset < len(message):
        tag, offset = _read_varint(message, offset)
        field, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            _, offset = _read_varint(message, offset)
            yield field
        elif wire_type == _BYTES:
            length, offset = _read_varint(message, offset)
            offset += length
        elif wire_type in _FIXED_SIZES:
            offset += _FIXED_SIZES[wire_type]
        else:
            return


def _is_perfetto(head: bytes) -> bool:
    """Return whether a file is a Perfetto trace.

    A Perfetto trace is a sequence of packets, each in field 1 of the message ``Trace``. The service
    that writes the trace adds at least one of ``_PERFETTO_FIELDS`` to each packet
    (protos/perfetto/trace/trace_packet.proto).
    """
    if not head.startswith(_FIRST_PACKET):
        return False
    with suppress(IndexError):
        length, offset = _read_varint(head, len(_FIRST_PACKET))
        packet = head[offset : offset + length]
        return any(field in _PERFETTO_FIELDS for field in _iter_varint_fields(packet))
    return False


#: Tables of rocprof v1. It writes only the tables of the recorded domains.
_ROCPROF_TABLES = frozenset(("HIP", "HSA", "COPY", "OPS", "KERN", "rocTX"))


def _is_nvprof(tables: frozenset[str]) -> bool:
    has_activities = any(name.startswith("CUPTI_ACTIVITY_KIND_") for name in tables)
    return has_activities and "StringTable" in tables and "StringIds" not in tables


def _is_rocprof(tables: frozenset[str]) -> bool:
    return bool(tables) and tables <= _ROCPROF_TABLES


#: The formats, with the more specific test first where two tests accept the same file.
FOREIGN_FORMATS = (
    ForeignFormat(
        "JSON output of rocprofv3",
        "which cannot be converted to rocpd",
        RECORD_WITH_ROCPROF,
        _is_json_with(rb'^\s*\{\s*"rocprofiler-sdk-tool"\s*:'),
    ),
    ForeignFormat(
        "a CSV table of rocprofv3 or rocprof",
        "which contains only a part of the profile",
        RECORD_WITH_ROCPROF,
        _has_columns(
            "Start_Timestamp|End_Timestamp",
            "TotalDurationNs|AverageNs",
            "Node_Id|Logical_Node_Id",
            "Counter_Name|Counter_Value",
            "KernelName|gpu-id",
            "Index|KernelName",
            "Sample_Timestamp|Exec_Mask",
        ),
    ),
    ForeignFormat(
        "JSON output of rocprof, the predecessor of rocprofv3",
        "",
        RECORD_WITH_ROCPROF,
        _is_json_with(rb'^\s*\{ "traceEvents":\[\{\}\s*,\{"args":\{"name":"'),
    ),
    ForeignFormat(
        "a database of rocprof, the predecessor of rocprofv3",
        "",
        RECORD_WITH_ROCPROF,
        recognizes_tables=_is_rocprof,
    ),
    ForeignFormat(
        "the configuration of a Primus run",
        "which contains no times",
        "pass the folder, or the pp_rank_N.json files in it",
        _is_json_with(rb'^\s*\{[^{}\[\]]*"pp_size"\s*:\s*[0-9]+[^{}\[\]]*\}\s*$'),
    ),
    ForeignFormat(
        "JSON output of rpd2tracing",
        "which was made from an .rpd file",
        "pass the .rpd file",
        _is_json_with(rb'^\s*(?:\{"traceEvents": )?\[ \{\}\s*,\{"name": "process_name", "ph": "M"'),
    ),
    ForeignFormat(
        "JSON output of unitrace",
        "whose kernels are not linked to the calls that launched them",
        f"{_RECORD_XPU}, or {_WRITE_TABLE}",
        _is_json_with(
            rb'"cat": "gpu_op"|^\s*\{ "traceEvents":\[\s*\{"ph": "\w", "tid": \d', _TORCH_KEY
        ),
    ),
    ForeignFormat(
        "a text report of unitrace",
        "which contains only sums",
        _RECORD_XPU,
        _passes_any(
            _contains(rb"(?m)^=== (?:API|Device) Timing (?:Summary|Results)"),
            _has_columns("Calls|Time (ns)|Average (ns)"),
        ),
    ),
    ForeignFormat(
        "a Perfetto trace (protocol buffer), such as a .pftrace file of rocprofv3",
        "",
        f"if rocprofv3 wrote it, {RECORD_WITH_ROCPROF}",
        _is_perfetto,
    ),
    ForeignFormat(
        "a trace in OTF2 (Open Trace Format)",
        "",
        f"if rocprofv3 wrote it, {RECORD_WITH_ROCPROF}",
        # The header of the first chunk precedes the magic string.
        lambda head: b"OTF2" in head[:64] and b"\0" in head[:64],
    ),
    ForeignFormat(
        "a JSON summary of rocprof-sys (Omnitrace)",
        "which contains only sums",
        f"record rocpd with rocprof-sys, or {RECORD_WITH_ROCPROF}",
        _is_json_with(rb'^\s*\{\s*"(?:timemory|omnitrace|rocprofiler-systems|rocprof-sys)"\s*:'),
    ),
    ForeignFormat(
        "a database of nvprof",
        "whose tables differ from those of Nsight Systems",
        RECORD_WITH_NSYS,
        recognizes_tables=_is_nvprof,
    ),
    ForeignFormat(
        "a text or CSV report of nvprof",
        "",
        RECORD_WITH_NSYS,
        _passes_any(
            _contains(rb"(?m)^==\d+== (?:NVPROF|Profiling)"),
            _has_columns("Time(%)|Time|Calls", "Start|Duration|Grid X"),
        ),
    ),
    ForeignFormat(
        "a report of Nsight Compute (ncu)",
        "which measures single kernels instead of the whole run",
        RECORD_WITH_NSYS,
        _passes_any(
            _starts_with(b"NVR\0"),
            _contains(rb"(?m)^==PROF== |^\[\d+\] \S.*@\S+\s*$"),
            _has_columns("ID|Process ID|Kernel Name"),
        ),
    ),
    ForeignFormat(
        "a report of nsys stats",
        "which contains only a part of the profile",
        _EXPORT_REPORT,
        # Before 2021, few columns had units.
        _passes_any(_is_nsys_stats, _has_columns("Time(%)|Total Time (ns)")),
    ),
    ForeignFormat(
        "a JSON export of nsys",
        "",
        _EXPORT_REPORT,
        _is_json_with(
            rb'^\s*\{"Type":\d+,"\w+"|^\s*\{"type":"(?:String|ThreadName)"'
            rb'|^\s*\{"data":\s*\["\[Unknown\]"'
            rb'|"(?:CUPTI_ACTIVITY_KIND_|TARGET_INFO_|META_DATA_|ANALYSIS_|ENUM_NSYS_|NVTX_)[A-Z0-9_]+"'
            rb'|"StringIds"',
            _EVENT_KEY,
        ),
    ),
    ForeignFormat(
        "an HDF5 file, such as an HDF5 export of nsys",
        "",
        f"if nsys wrote it, {_EXPORT_REPORT}",
        _starts_with(b"\x89HDF\r\n\x1a\n"),
    ),
    ForeignFormat(
        "a memory snapshot of PyTorch",
        "which contains allocations but no kernels",
        f"{_PASS_TORCH_TRACE}; with profile_memory=True, it contains allocations too",
        lambda head: head.startswith(b"\x80") and b"segments" in head[:256],
    ),
    ForeignFormat(
        "an execution trace of PyTorch (Chakra)",
        "which contains operators but no kernel times",
        _PASS_TORCH_TRACE,
        _is_json_with(rb'^\s*\{\s*"schema"\s*:\s*"[0-9.]+(?:-chakra[^"]*)?"\s*,\s*"pid"\s*:'),
    ),
    ForeignFormat(
        "a TensorBoard event file",
        "",
        "pass the .xplane.pb or .pt.trace.json files that were written next to it",
        lambda head: b"brain.Event:" in head[:64],
    ),
    ForeignFormat(
        "a recording of perf",
        "which contains no GPU work",
        RECORD_WITH_NSYS,
        _starts_with(b"PERFILE2"),
    ),
    ForeignFormat(
        "a speedscope profile",
        "which contains no GPU work",
        _PASS_TORCH_TRACE,
        _is_json_with(rb'"\$schema"\s*:\s*"https://www\.speedscope\.app/'),
    ),
)
