"""The supported input formats, and functions that recognize and open files in these formats.

To support another format, add an entry to ``READERS``. All later stages of the analysis are
independent of the format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model.pointers import refuse_pointer
from bubbleviz.model.texts import quote_for_shell
from bubbleviz.progress import Watch
from bubbleviz.recording_layout import SUFFIX
from bubbleviz.sources.foreign_formats import (
    ForeignFormat,
    find_foreign_database,
    find_foreign_format,
)
from bubbleviz.sources.gzip_files import GZIP, is_json, read_head
from bubbleviz.sources.in_memory import DecodedFile
from bubbleviz.sources.nccl.formats import detect_format
from bubbleviz.sources.nccl.inspector import is_metrics_file
from bubbleviz.sources.nsys.files import REPORT_SUFFIXES, STREAM_SUFFIX, TABLES, is_columnar
from bubbleviz.sources.operations.csv import read_header
from bubbleviz.sources.operations.jsonl import refuse_binary
from bubbleviz.sources.operations.schema import list_missing
from bubbleviz.sources.sqlite.database import list_relations
from bubbleviz.sources.sqlite.queries import SQLITE
from bubbleviz.sources.xla import FOLDER

if TYPE_CHECKING:
    from bubbleviz.model.operation_table import OperationTable
    from bubbleviz.model.profile import Contents, Profile


#: Matches the start of a recording by :mod:`bubbleviz.annotate`, of any version.
_RECORDING = re.compile(rb'^\s*\{\s*"schema"\s*:\s*"bubbleviz\.recording/')
#: Matches the start of a report that bubbleviz saved.
_REPORT = re.compile(rb'^\s*\{\s*"schema"\s*:\s*"bubbleviz\.(?!recording/)')
#: Matches the start of a trace that bubbleviz wrote for trace viewers.
_OWN_TRACE = re.compile(rb'^\s*\{[^\[\]]*"otherData"\s*:\s*\{[^{}]*"headline_reason"\s*:')
#: Matches the start of an instruction cost file for XLA's latency-hiding scheduler.
_COSTS = re.compile(rb"\s*(?:#[^\n]*\s*)*costs\s*:?\s*\{")


#: Matches a table definition in an SQLite file.
_TABLE_DEFINITION = re.compile(
    rb'CREATE TABLE (?:IF NOT EXISTS\s+)?["`]?([A-Za-z]\w{3,200})', re.ASCII
)
#: Folders that contain special files, whose size is reported as 0. Some special files never end.
_SPECIAL_FOLDERS = ("/proc", "/sys")
#: Suffixes of profiles. If a file has one of these suffixes but is not recognized, it is damaged.
_PROFILE_SUFFIXES = (".sqlite", ".db", ".rpd", ".nsys-rep", ".qdrep", ".json", ".gz", ".pb")
#: The first bytes of ZIP, XZ, Zstandard and bzip2 archives.
_ARCHIVE_MAGIC = (b"PK\x03\x04", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"BZh")


class OpenFile(Protocol):
    """An open file in any input format.

    The methods take GLOB patterns, so that a reader can skip most ranges by name. The patterns
    match every range name that the analysis needs, and possibly other names. All methods raise
    ProfileError if the file cannot be read.
    """

    def sample(self, globs: Sequence[str], rows: int = ..., /) -> Mapping[str, int]:
        """Read a sample of the ranges, and count the occurrences of each matching name.

        Args:
            globs: GLOB patterns. Names that do not match any pattern are not counted.
            rows: Approximate number of ranges to sample. Ignored by formats that are always read
                completely.

        Returns:
            Number of sampled ranges, keyed by name.
        """

    def read(self, globs: Sequence[str], *, partial: bool = False) -> Profile:
        """Return the profile. Its calls can be read only while the file is open.

        Args:
            globs: GLOB patterns. Ranges whose names do not match any pattern are left out.
            partial: Whether to accept an incomplete file, that is, a file that lacks calls or
                ranges, or contains copies but no kernels. In that case, missing tables are empty
                and are not reported as limitations. As an exception, a limitation reports that
                launches or GPU work were not recorded if the profile's ``launches_known`` is False.

        Raises:
            NothingToAnalyzeError: No device work was recorded. Also raised if ``partial`` is False
                and a table that an analysis needs is missing.
        """

    def inspect(self, globs: Sequence[str]) -> Contents:
        """Return a summary of the file's contents.

        Args:
            globs: GLOB patterns that select the range names to count in ``candidates``.
        """


@runtime_checkable
class OpenOperations(OpenFile, Protocol):
    """An open file that contains pipeline operations instead of kernels and ranges."""

    def operations(self) -> OperationTable:
        """Return the operations.

        Raises:
            ProfileError: The file cannot be read, or contains no operations.
        """


Opened: TypeAlias = AbstractContextManager[OpenFile]
#: Function that opens a file, given a path, a number of threads, and a progress callback.
Opener: TypeAlias = Callable[[str, int, Watch], Opened]


@dataclass(frozen=True)
class Reader:
    """An input format.

    Attributes:
        name: Name of the format, as shown in reports.
        suffixes: Suffixes of the files to read in a directory.
        recognizes: Function that decides from the first 64 KiB of a file (unpacked if the file is
            gzipped) whether it has this format. At most one reader accepts a file, except that
            several readers accept every SQLite file.
        recognizes_tables: Function that decides from the names of all tables and views whether an
            SQLite file has this format. At most one reader accepts a file. None for formats that
            are not based on SQLite.
        open_file: Function that opens a file.
        is_decoded_at_once: Whether the file is decoded completely before it is used.
        possible_suffixes: Suffixes that other formats use too. In a directory, files with these
            suffixes are read only if the reader recognizes them.
        names: Shell pattern of file names that only this format uses, or "" if there is none. In a
            directory, files with these names are read even if they are damaged.
        is_possible: Function that decides from the first 64 KiB whether a file that no reader
            recognizes may have this format.
        superseded_by: Suffixes of files in which a tool stores more data about the same run. If a
            directory contains such a file, the file in this format with the same stem is not read.
        table_suffixes: Suffixes of operation tables. Operation tables are read only in directories
            without profiles.
        operations: Name for a file that contains operations, used in messages, such as "a table of
            operations". The text is "" if the format contains profiles.
        sessions: Name of the module that finds a run's files, or "" if each file is a separate run.
            The module has two functions: ``select_first_parts`` removes files that are read
            together with another file, and ``select_newest_run`` selects the files of the newest
            run in a directory. The second function is used only if the reader has ``suffixes``.
        recognizes_directory: Function that decides from the path whether a directory is a single
            profile in this format.
        folder: Name of the folder in which a tool creates one folder per run, or "" if there is no
            such folder.
        folder_by_host: Whether the tool creates a folder for each host of a run.
        rank_folder: Name of the folder with the profile, inside a folder that the tool creates for
            each rank, or "" if the tool creates no such folders.
    """

    name: str
    recognizes: Callable[[bytes], bool]
    open_file: Opener
    suffixes: tuple[str, ...] = ()
    is_decoded_at_once: bool = True
    possible_suffixes: tuple[str, ...] = ()
    names: str = ""
    is_possible: Callable[[bytes], bool] = lambda _: False
    superseded_by: tuple[str, ...] = ()
    table_suffixes: tuple[str, ...] = ()
    operations: str = ""
    sessions: str = ""
    folder: str = ""
    recognizes_directory: Callable[[str], bool] = lambda _: False
    recognizes_tables: Callable[[frozenset[str]], bool] | None = None
    folder_by_host: bool = False
    rank_folder: str = ""


def make_opener(function: str, *more: str) -> Opener:
    """Return an opener that imports a function's module and calls the function.

    The module is imported only when a file is opened, so that other formats start faster.

    Args:
        function: Function below ``bubbleviz.sources``, written as ``module:function``. The
            function's arguments are a path, a number of threads and a progress callback.
        more: Additional arguments to pass to the function.
    """

    def open_file(path: str, jobs: int, watch: Watch) -> Opened:
        opened: Opened = _import_function(function)(path, jobs, watch, *more)
        return opened

    return open_file


def make_decoding_opener(function: str) -> Opener:
    """Return an opener for files that are decoded completely when they are first used.

    Args:
        function: Function below ``bubbleviz.sources``, written as ``module:function``, that decodes
            a file. The function's arguments are a path and a progress callback.
    """

    def open_file(path: str, _jobs: int, watch: Watch) -> Opened:

        return nullcontext(DecodedFile(partial(_import_function(function), path, watch)))

    return open_file


def _import_function(path: str) -> Callable[..., Any]:
    module, _, function = f"bubbleviz.sources.{path}".partition(":")
    imported: Callable[..., Any] = getattr(import_module(module), function)
    return imported


#: Minimum sizes of a Parquet file, and of an Arrow file or stream, in bytes.
_MIN_PARQUET_BYTES, _MIN_ARROW_BYTES = 12, 16
#: The first bytes of an Arrow file, and of an Arrow stream.
_ARROW_MAGIC = (b"ARROW1", b"\xff\xff\xff\xff")
#: Matches table names in rocprofv3 files, with or without a process GUID.
_ROCPD_TABLE = re.compile(r"rocpd_(?:region|kernel_dispatch|info_process)(?:_[0-9A-Fa-f_]{16,})?")
#: Table names in rocmProfileData files. Every rocmProfileData file contains at least one of these
#: names.
_RPD_TABLES = frozenset(("rocpd_api", "rocpd_op"))
#: Table names in every database of Ascend's profilers.
_ASCEND_TABLES = frozenset(("STRING_IDS", "TASK"))
#: Matches document keys and event categories that only PyTorch's profiler writes.
_PYTORCH_MARKS = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds)"\s*:'
    rb'|"cat"\s*:\s*"(?:cpu_op|user_annotation|python_function|cuda_runtime|cuda_driver|'
    rb'gpu_mem(?:cpy|set)|kernel|ac2g|Operator|Runtime|Kernel)"'
)
#: Matches an operation's microbatch number in a trace that the training program itself wrote.
_TRACER_MARK = re.compile(rb'"args"\s*:\s*\{[^{}]*"microbatch"\s*:\s*[0-9]')
#: Matches the start of a pipeline dump from Primus: an iteration number, and the first key.
_PRIMUS_DUMP = re.compile(
    rb'\s*\{\s*"[0-9]{1,9}"\s*:\s*\{\s*"(?:total|memory|(?:fwd|bwd|wgrad)_(?:start|end))"\s*:'
)
#: Matches the time unit or a process name in a trace from XLA's profiler.
_XLA_MARKS = re.compile(rb'"highres-ticks"|"args"\s*:\s*\{\s*"name"\s*:\s*"/(?:device|host):')
#: Matches the first plane of an XSpace protocol buffer, from its tag to the start of its name.
_PLANE = re.compile(
    rb"\x0a[\x80-\xff]{0,9}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])*"
    rb"\x12[\x80-\xff]{0,9}[\x00-\x7f](?:/host:|/device:|Task Environment)"
)


def _parse_columns(head: bytes) -> list[str]:
    """Return the column names in a file's first line, or [] if the file has no header line."""
    line = head.split(b"\n", 1)[0]
    if not any(delimiter in line for delimiter in (b",", b";", b"\t")) or line[:1] in b"{[<":
        return []

    return read_header(head)


def _has_operation_columns(head: bytes) -> bool:
    """Return whether the first line contains all columns that an operation table must have."""
    if not (columns := _parse_columns(head)):
        return False

    return not list_missing(columns)


def _is_tracer_file(head: bytes) -> bool:
    has_count = is_json(head) and _TRACER_MARK.search(head) is not None
    return has_count and not (_PYTORCH_MARKS.search(head) or _XLA_MARKS.search(head))


def _is_database(head: bytes) -> bool:
    return head.startswith(SQLITE)


def _has_nsys_tables(tables: frozenset[str]) -> bool:
    """Return whether a database is an nsys export. nvprof uses some of the same table names."""
    return not tables.isdisjoint(TABLES) and find_foreign_database(tables) is None


READERS = (
    Reader(
        name="arrow",
        recognizes=lambda head: head.startswith(_ARROW_MAGIC) and len(head) >= _MIN_ARROW_BYTES,
        open_file=make_opener("operations.open_table:open_table", "arrow"),
        table_suffixes=(".arrow", ".feather", ".ipc", ".arrows"),
        operations="a table of operations",
    ),
    Reader(
        name="csv",
        recognizes=_has_operation_columns,
        is_possible=lambda head: len(columns := _parse_columns(head)) > 1 and all(columns),
        open_file=make_opener("operations.open_table:open_table", "csv"),
        table_suffixes=(".csv", ".csv.gz", ".tsv", ".tsv.gz"),
        operations="a table of operations",
    ),
    Reader(
        name="kineto",
        suffixes=(".pt.trace.json", ".pt.trace.json.gz", ".json.gz"),
        possible_suffixes=(".json",),
        recognizes=lambda head: is_json(head) and _PYTORCH_MARKS.search(head) is not None,
        # A trace that was filtered or merged by hand may not match any of the PyTorch patterns.
        is_possible=is_json,
        open_file=make_decoding_opener("kineto.profile:read_profile"),
    ),
    Reader(
        name="nsys",
        suffixes=(".sqlite",),
        recognizes=_is_database,
        recognizes_tables=_has_nsys_tables,
        open_file=make_opener("nsys.profile_file:open_file"),
        is_decoded_at_once=False,
    ),
    Reader(
        name="nsys_columns",
        recognizes=lambda _: False,
        recognizes_directory=is_columnar,
        open_file=make_opener("nsys.profile_file:open_directory"),
        is_decoded_at_once=False,
    ),
    Reader(
        name="parquet",
        recognizes=lambda head: head.startswith(b"PAR1") and len(head) >= _MIN_PARQUET_BYTES,
        open_file=make_opener("operations.open_table:open_table", "parquet"),
        table_suffixes=(".parquet", ".pq"),
        operations="a table of operations",
    ),
    Reader(
        name="primus",
        possible_suffixes=(".json",),
        recognizes=lambda head: _PRIMUS_DUMP.match(head) is not None,
        open_file=make_opener("operations.primus.table:open_dump"),
        operations="a pipeline dump from Primus",
        sessions="bubbleviz.sources.operations.primus.companions",
    ),
    Reader(
        name="recording",
        suffixes=(SUFFIX,),
        recognizes=lambda head: _RECORDING.match(head) is not None,
        open_file=make_opener("operations.jsonl.recording:open_recording"),
        operations="a recording from bubbleviz.annotate",
        sessions="bubbleviz.sources.operations.jsonl.sessions",
    ),
    Reader(
        name="rocpd",
        suffixes=("_results.db",),
        possible_suffixes=(".db",),
        recognizes=_is_database,
        recognizes_tables=lambda tables: any(map(_ROCPD_TABLE.fullmatch, tables)),
        open_file=make_opener("rocm.profile_file:open_file", "rocpd"),
        folder_by_host=True,
    ),
    Reader(
        name="rpd",
        suffixes=(".rpd",),
        recognizes=_is_database,
        recognizes_tables=lambda tables: bool(_RPD_TABLES & tables),
        open_file=make_opener("rocm.profile_file:open_file", "rpd"),
    ),
    # After the readers for ROCm, because the first reader for a suffix reports a damaged database.
    Reader(
        name="ascend",
        possible_suffixes=(".db",),
        names="ascend_*_profiler_*.db",
        recognizes=_is_database,
        recognizes_tables=lambda tables: tables >= _ASCEND_TABLES,
        open_file=make_opener("ascend.profile_file:open_file"),
        rank_folder="ASCEND_PROFILER_OUTPUT",
    ),
    Reader(
        name="traced",
        possible_suffixes=(".json",),
        recognizes=_is_tracer_file,
        open_file=make_opener("operations.open_table:open_table", "traced"),
        operations="a trace of operations",
    ),
    # Traces written by jax.profiler have at most a million events, and no UTC times.
    Reader(
        name="xla-trace",
        # Names used by jax.profiler, and by the trace viewer of XProf.
        suffixes=(".trace.json.gz", ".trace.json", ".trace_viewer.json.gz", ".trace_viewer.json"),
        superseded_by=(".xplane.pb",),
        recognizes=lambda head: is_json(head) and _XLA_MARKS.search(head) is not None,
        open_file=make_decoding_opener("xla.trace_json:read_profile"),
        folder=FOLDER,
    ),
    Reader(
        name="xplane",
        suffixes=(".xplane.pb",),
        recognizes=lambda head: _PLANE.match(head) is not None,
        open_file=make_decoding_opener("xla.xspace:read_profile"),
        folder=FOLDER,
    ),
)


def list_missing_columns(path: str) -> tuple[str, ...]:
    """Return the columns that a table in text lacks to be a table of operations.

    The result is empty if the file is a table of operations, is no table in text, or cannot be
    read.
    """
    with suppress(ProfileError):
        columns = _parse_columns(read_head(path))
        return tuple(list_missing(columns)) if columns else ()
    return ()


def is_own_trace(head: bytes) -> bool:
    """Return whether a file is a trace written by bubbleviz, given its first bytes."""
    return _OWN_TRACE.search(head) is not None


def _recognize(path: str, head: bytes) -> Reader | None:
    """Return the reader that recognizes a file, or None if no reader recognizes it.

    An SQLite file is recognized by its tables, and any other file by its first bytes.

    Args:
        path: Path to the file.
        head: The first 64 KiB of the file, unpacked if the file is gzipped.

    Raises:
        ProfileError: The file contains NCCL operations or a timeline of Ascend's profiler, or is an
            SQLite database without known tables.
    """
    if head.startswith(SQLITE):
        return _find_database_reader(path, head)
    recognized = next((reader for reader in READERS if reader.recognizes(head)), None)
    if recognized is not None and not is_json(head):
        return recognized

    if detect_format(head):
        raise ProfileError(
            f"{path}: contains recorded NCCL operations and is not a profile; pass it to bubbleviz "
            "nccl, alone or together with profiles"
        )
    if is_metrics_file(head):
        raise ProfileError(
            f"{path}: contains metrics of NCCL Inspector for Prometheus, which are averages; "
            "record single operations with NCCL_INSPECTOR_PROM_DUMP=0 (bubbleviz guide nccl)"
        )
    if is_json(head) and ("trace_view." in Path(path).name or b'"Ascend Hardware"' in head):
        raise ProfileError(
            f"{path}: is a timeline from the Ascend profiler, which does not mark kernels; pass "
            "ascend_pytorch_profiler_*.db instead, which torch_npu.profiler writes with "
            "_ExperimentalConfig(export_type=torch_npu.profiler.ExportType.Db)"
        )
    return recognized


def _refuse_own_files(path: str, head: bytes) -> None:
    """Raise an error for a file that bubbleviz wrote itself and cannot analyze.

    Args:
        path: Path to the file, for messages.
        head: First bytes of the file.

    Raises:
        ProfileError: The file is a report, a trace for viewers, or a recording of an old format.
    """
    refuse_binary(path, head)
    if _REPORT.search(head):
        packed = "unpack the report with gunzip and " if path.endswith(".gz") else ""
        raise ProfileError(
            f"{path}: is a bubbleviz report, not a profile; pass the profiles, or {packed}pass "
            "the report to bubbleviz compare, gate, plan or view, or draw it with bubbleviz "
            "analyze REPORT.json -o bubbles.svg"
        )
    if is_own_trace(head):
        raise ProfileError(
            f"{path}: is a trace that bubbleviz wrote, not a profile; pass the profiles, or open "
            "the trace in a trace viewer"
        )


_GZIPPED_DATABASE = ForeignFormat("a gzipped SQLite database", "", "unpack it with gunzip first")


def identify_foreign_file(path: str) -> ForeignFormat | None:
    """Return the format of a file that is known but not read, or None for any other file.

    The result is None if the file cannot be read.
    """
    with suppress(ProfileError):
        head = read_head(path)
        if not head.startswith(SQLITE):
            return _identify_foreign_head(head)
        return (
            _GZIPPED_DATABASE if _is_gzipped(path) else find_foreign_database(list_relations(path))
        )
    return None


def _identify_foreign_head(head: bytes) -> ForeignFormat | None:
    """Return the format of a file that is known but not read, or None for any other file.

    The result is None for SQLite databases, which are recognized by their tables, and for complete
    tables of operations, which may contain further columns of any tool.

    Args:
        head: The first 64 KiB of the file, unpacked if the file is gzipped.
    """
    if head.startswith(SQLITE) or _has_operation_columns(head):
        return None
    return find_foreign_format(head)


def find_reader(path: str) -> Reader:
    """Return the reader for a file, or for a directory that is a single profile.

    A file is recognized by its first bytes. If no reader recognizes the file, the first reader
    whose ``is_possible`` accepts the first bytes is returned. Table readers are skipped if the file
    has a profile suffix (``_PROFILE_SUFFIXES``), because such a file is a damaged profile. A suffix
    that is also in the reader's ``table_suffixes`` does not count as a profile suffix.

    Raises:
        ProfileError: The file is empty, cannot be read, or has an unsupported format.
    """
    if of_directory := [reader for reader in READERS if reader.recognizes_directory(path)]:
        return of_directory[0]
    head = read_head(path)
    if not head.strip():
        raise ProfileError(f"{path}: {describe_empty_file(path)}")
    refuse_pointer(path, head)
    if path.endswith(".pbtxt") or _COSTS.match(head):
        raise ProfileError(
            f"{path}: contains instruction costs for XLA and is not a profile; pass it to "
            "bubbleviz pgle with --against, together with the profile of a JAX run"
        )
    _refuse_own_files(path, head)
    if (foreign := _identify_foreign_head(head)) is not None:
        raise foreign.make_error(path)
    if (recognized := _recognize(path, head)) is not None:
        return recognized
    for reader in READERS:
        has_possible_name = path.endswith(reader.table_suffixes) or not path.endswith(
            _PROFILE_SUFFIXES
        )
        if reader.is_possible(head) and (has_possible_name or not reader.table_suffixes):
            return reader
    if path.endswith(_PROFILE_SUFFIXES):
        raise ProfileError(
            f"{path}: is neither a trace from PyTorch or XLA nor an SQLite database (unless it is "
            f"encrypted); {suggest_next_step(path)}"
        )
    if path.endswith(STREAM_SUFFIX):
        raise ProfileError(
            f"{path}: is a recording that nsys has not converted to a report; convert it with: "
            f"QdstrmImporter -i {quote_for_shell(path)}"
        )
    archive = "; unpack it, or" if head.startswith(_ARCHIVE_MAGIC) else ";"
    raise ProfileError(
        f"{path}: is not a profile{archive} pass an SQLite export from nsys, a profile from "
        "rocprofv3 (.db, .rpd) or Ascend (.db), a PyTorch trace (.json, .json.gz), an XLA trace "
        "(.xplane.pb, .trace.json.gz), or a table of operations (.csv, .parquet, .arrow)"
    )


def is_recognized(reader: Reader, path: str) -> bool:
    """Return whether a reader recognizes a file by its first bytes.

    If the reader has the function ``recognizes_tables``, that function must also accept the file.
    A file in one of ``FOREIGN_FORMATS`` is not recognized, even if it resembles a reader's files.

    Raises:
        ProfileError: The file cannot be read.
    """
    head = read_head(path)
    if not reader.recognizes(head) or _identify_foreign_head(head) is not None:
        return False
    if reader.recognizes_tables is None:
        return True

    return reader.recognizes_tables(list_relations(path))


def _find_database_reader(path: str, head: bytes) -> Reader:
    """Return the reader for an SQLite file, which is recognized by its table names.

    If no tables can be found because the file is damaged or empty, the file's suffix determines the
    reader, which will report the error. If no reader has this suffix, the first reader for SQLite
    files is returned.

    Args:
        path: Path to the file.
        head: The first 64 KiB of the file.

    Raises:
        ProfileError: The file is gzipped, or no reader recognizes its tables.
    """
    if _is_gzipped(path):
        raise _GZIPPED_DATABASE.make_error(path)
    kinds = [reader for reader in READERS if reader.recognizes_tables is not None]
    created = frozenset(name.decode() for name in _TABLE_DEFINITION.findall(head))
    at_once = [
        reader for reader in kinds if reader.recognizes_tables and reader.recognizes_tables(created)
    ]
    if len(at_once) == 1:
        return at_once[0]
    # The table definitions are not in the first 64 KiB, or other texts look like definitions.

    relations = list_relations(path)
    by_tables = (
        reader
        for reader in kinds
        if reader.recognizes_tables and reader.recognizes_tables(relations)
    )
    by_ending = (r for r in kinds if path.endswith((*r.suffixes, *r.possible_suffixes)))
    by_relations = next(by_tables, None)
    if by_relations is None and (foreign := find_foreign_database(relations)) is not None:
        raise foreign.make_error(path)
    if by_relations is None and relations:
        raise ProfileError(
            f"{path}: is an SQLite database, but neither an nsys export nor a profile from ROCm or "
            f"Ascend, because it has none of their tables ({', '.join(TABLES)}; rocpd_region; "
            f"rocpd_api; STRING_IDS); {suggest_next_step(path)}"
        )
    return by_relations or next(by_ending, kinds[0])


def describe_empty_file(path: str) -> str:
    """Explain why a file is empty or contains only white space, and give advice.

    The text is part of a message. The text depends on whether the file is a special file, gzipped,
    a recording, or another kind of file.
    """
    resolved = Path(path).resolve()
    if any(resolved.is_relative_to(mounted) for mounted in _SPECIAL_FOLDERS):
        return "is a special file of the operating system; pass a profile"
    if resolved.stat().st_size and _is_gzipped(path):
        return f"the gzip data is cut short and has no content; {suggest_next_step(path)}"
    if path.endswith(SUFFIX):
        return f"the file is empty because its process recorded nothing; {suggest_next_step(path)}"
    return f"the file is empty; {suggest_next_step(path)}"


def _is_gzipped(path: str) -> bool:
    with Path(path).open("rb") as file:
        return file.read(len(GZIP)) == GZIP


def suggest_next_step(path: str) -> str:
    """Return advice for a file that contains no profile. The advice depends on the suffix."""
    if any(path.endswith(reader.table_suffixes) for reader in READERS):
        return "write one row per operation (bubbleviz guide tables)"
    if path.endswith(SUFFIX):
        return "record the run again (bubbleviz guide record)"
    if path.endswith((".sqlite", *REPORT_SUFFIXES)):
        return EXPORT_AGAIN
    return "if a profiler wrote it, copy it again; otherwise pass a profile"
