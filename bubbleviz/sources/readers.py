"""Input formats: recognizes the format of a file, and opens it.

To support another format, add a row to ``READERS``. All later stages are the same for all formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model.pointers import refuse_pointer
from bubbleviz.progress import Watch
from bubbleviz.recording_layout import SUFFIX
from bubbleviz.sources.gzip_files import GZIP, is_json, read_head
from bubbleviz.sources.in_memory import DecodedFile
from bubbleviz.sources.nccl.formats import detect_format
from bubbleviz.sources.nsys.files import TABLES, is_columnar
from bubbleviz.sources.operations.csv import read_header
from bubbleviz.sources.operations.jsonl import refuse_binary
from bubbleviz.sources.operations.schema import list_missing
from bubbleviz.sources.sqlite.database import list_relations
from bubbleviz.sources.sqlite.queries import SQLITE
from bubbleviz.sources.xla import FOLDER

if TYPE_CHECKING:
    from bubbleviz.model.operation_table import OperationTable
    from bubbleviz.model.profile import Contents, Profile


#: Matches the start of a recording of any version.
_RECORDING = re.compile(rb'^\s*\{\s*"schema"\s*:\s*"bubbleviz\.recording/')
#: Matches the start of a report of this program.
_REPORT = re.compile(rb'^\s*\{\s*"schema"\s*:\s*"bubbleviz\.(?!recording/)')
#: Matches the start of a trace that this program wrote for trace viewers.
_OWN_TRACE = re.compile(rb'^\s*\{[^\[\]]*"otherData"\s*:\s*\{[^{}]*"headline_reason"\s*:')
#: Matches the start of a file of instruction costs for XLA's latency-hiding scheduler.
_COSTS = re.compile(rb"\s*(?:#[^\n]*\s*)*costs\s*:?\s*\{")


#: Matches the definition of a table in an SQLite file.
_TABLE_DEFINITION = re.compile(
    rb'CREATE TABLE (?:IF NOT EXISTS\s+)?["`]?([A-Za-z]\w{3,200})', re.ASCII
)
#: Folders of special files, which have size 0. Some of them, such as the kernel log, never end.
_SPECIAL_FOLDERS = ("/proc", "/sys")
#: Suffixes of profiles. A file with such a suffix that is not recognized must be damaged.
_PROFILE_SUFFIXES = (".sqlite", ".db", ".rpd", ".nsys-rep", ".qdrep", ".json", ".gz", ".pb")
#: The first bytes of ZIP, XZ, Zstandard and bzip2 archives.
_ARCHIVE_MAGIC = (b"PK\x03\x04", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"BZh")


class OpenFile(Protocol):
    """An open file of any format.

    The methods take GLOB patterns as prefilters of range names: a name that an analysis needs
    matches one of them, but not every name that matches is needed. They raise ProfileError if the
    file cannot be read.
    """

    def sample(self, globs: Sequence[str], rows: int = ..., /) -> Mapping[str, int]:
        """Count the names that match in a sample of the ranges.

        Args:
            globs: GLOB patterns.
            rows: Approximate number of ranges to read, if the format allows to read a part.
        """

    def read(self, globs: Sequence[str], *, partial: bool = False) -> Profile:
        """Return the profile. Its calls can be read as long as the file is open.

        Args:
            globs: GLOB patterns. Ranges whose name matches none of them are left out.
            partial: Whether to read the file even if it is incomplete: without calls, without
                ranges, or with copies but without kernels. The missing tables are then empty, and
                no limitation reports it. If kernels stand for their own launches
                (``launches_known`` is false), a limitation always reports that launches or GPU work
                were not recorded.

        Raises:
            NothingToAnalyseError: No work of a device was recorded, or, without ``partial``, a
                table that an analysis needs is missing.
        """

    def inspect(self, globs: Sequence[str]) -> Contents:
        """Return a summary of the contents of the file. ``globs`` select the ranges it counts."""


@runtime_checkable
class OpenOperations(OpenFile, Protocol):
    """An open file that contains operations, not the kernels and ranges to derive them from."""

    def operations(self) -> OperationTable:
        """Return the operations.

        Raises:
            ProfileError: The file cannot be read, or contains no operations.
        """


Opened: TypeAlias = AbstractContextManager[OpenFile]
#: Opens a file: its arguments are a path, a number of threads, and the receiver of the progress.
Opener: TypeAlias = Callable[[str, int, Watch], Opened]


@dataclass(frozen=True)
class Reader:
    """An input format.

    Attributes:
        name: Name of the format, for reports.
        suffixes: Suffixes of the files to look for in a directory.
        recognises: ``recognises(head)`` returns whether a file is of this format, from its first
            64 KiB (unpacked if the file is gzipped). For SQLite files it returns True in several
            readers; otherwise at most one reader recognizes a file.
        recognises_tables: For SQLite files, ``recognises_tables(names)`` returns whether a file is
            of this format from the names of its tables and views. At most one reader does.
        open_file: Opens a file.
        is_decoded_at_once: Whether opening the file decodes all of it.
        possible_suffixes: Suffixes of further files to look for, which are read if recognized.
        is_possible: ``is_possible(head)`` returns whether a file that no reader recognizes may be
            of this format.
        superseded_by: Suffixes of files that contain more of the same run. In a directory, they
            are read instead of a file of this format with the same name.
        table_suffixes: Suffixes of tables of operations, which are read in directories without
            profiles.
        operations: Noun for a file of operations, for messages, or "" for profiles.
        sessions: Module that finds the files of one run, or "" if each file is a separate run.
            Its function ``select_first_parts`` removes files that are read together with others
            from a list of paths, and ``select_newest_run`` selects the files of the newest run in a
            directory.
        recognises_directory: ``recognises_directory(path)`` returns whether a directory as a whole
            is a profile of this format.
        folder: Name of the folder in which a tool creates a folder for each run, or "".
        folder_by_host: Whether the tool creates a folder for each host of a run.
    """

    name: str
    recognises: Callable[[bytes], bool]
    open_file: Opener
    suffixes: tuple[str, ...] = ()
    is_decoded_at_once: bool = True
    possible_suffixes: tuple[str, ...] = ()
    is_possible: Callable[[bytes], bool] = lambda _: False
    superseded_by: tuple[str, ...] = ()
    table_suffixes: tuple[str, ...] = ()
    operations: str = ""
    sessions: str = ""
    folder: str = ""
    recognises_directory: Callable[[str], bool] = lambda _: False
    recognises_tables: Callable[[frozenset[str]], bool] | None = None
    folder_by_host: bool = False


def make_opener(function: str, *more: str) -> Opener:
    """Return an opener that calls a function, and imports its module only then.

    Importing a module when a file is opened lets other formats start faster.

    Args:
        function: Path of the function below ``bubbleviz.sources``, as ``module:function``. It takes
            a path, a number of threads and the receiver of the progress.
        more: Further arguments of the function.
    """

    def open_file(path: str, jobs: int, watch: Watch) -> Opened:
        opened: Opened = _import_function(function)(path, jobs, watch, *more)
        return opened

    return open_file


def make_decoding_opener(function: str) -> Opener:
    """Return an opener for files that are decoded completely on the first access.

    Args:
        function: Path of the function, as in :func:`make_opener`. It takes a path and the receiver
            of the progress, and returns the decoded file.
    """

    def open_file(path: str, _jobs: int, watch: Watch) -> Opened:

        return nullcontext(DecodedFile(partial(_import_function(function), path, watch)))

    return open_file


def _import_function(path: str) -> Callable[..., Any]:
    module, _, function = f"bubbleviz.sources.{path}".partition(":")
    imported: Callable[..., Any] = getattr(import_module(module), function)
    return imported


#: Minimum size in bytes of a Parquet file and of an Arrow file or stream. Shorter files were cut.
_MIN_PARQUET_BYTES, _MIN_ARROW_BYTES = 12, 16
#: First bytes of an Arrow file, and of an Arrow stream.
_ARROW_MAGIC = (b"ARROW1", b"\xff\xff\xff\xff")
#: Matches tables that every file of rocprofv3 has, with or without the GUID of a process.
_ROCPD_TABLE = re.compile(r"rocpd_(?:region|kernel_dispatch|info_process)(?:_[0-9A-Fa-f_]{16,})?")
#: Tables of which every file of rocmProfileData has at least one.
_RPD_TABLES = frozenset(("rocpd_api", "rocpd_op"))
#: Matches keys of the document and categories that only PyTorch's profiler writes.
_PYTORCH_MARKS = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds)"\s*:'
    rb'|"cat"\s*:\s*"(?:cpu_op|user_annotation|python_function|cuda_runtime|cuda_driver|'
    rb'gpu_mem(?:cpy|set)|kernel|ac2g|Operator|Runtime|Kernel)"'
)
#: Matches the microbatch of an operation, in traces that the training program itself wrote.
_TRACER_MARK = re.compile(rb'"args"\s*:\s*\{[^{}]*"microbatch"\s*:\s*[0-9]')
#: Matches the time unit or a process name in a trace from XLA's profiler.
_XLA_MARKS = re.compile(rb'"highres-ticks"|"args"\s*:\s*\{\s*"name"\s*:\s*"/(?:device|host):')
#: Matches the first plane of an XSpace protocol buffer, from its tag to the start of its name.
_PLANE = re.compile(
    rb"\x0a[\x80-\xff]{0,9}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])*"
    rb"\x12[\x80-\xff]{0,9}[\x00-\x7f](?:/host:|/device:|Task Environment)"
)


def _parse_columns(head: bytes) -> list[str]:
    """Return the column names in the first line, or [] if the line is not a header."""
    line = head.split(b"\n", 1)[0]
    if not any(delimiter in line for delimiter in (b",", b";", b"\t")) or line[:1] in b"{[<":
        return []

    return read_header(head)


def _has_operation_columns(head: bytes) -> bool:
    """Return whether the first line names all columns that a table of operations requires."""
    if not (columns := _parse_columns(head)):
        return False

    return not list_missing(columns)


def _is_tracer_file(head: bytes) -> bool:
    has_count = is_json(head) and _TRACER_MARK.search(head) is not None
    return has_count and not (_PYTORCH_MARKS.search(head) or _XLA_MARKS.search(head))


def _is_database(head: bytes) -> bool:
    return head.startswith(SQLITE)


READERS = (
    Reader(
        name="arrow",
        recognises=lambda head: head.startswith(_ARROW_MAGIC) and len(head) >= _MIN_ARROW_BYTES,
        open_file=make_opener("operations.open_table:open_table", "arrow"),
        table_suffixes=(".arrow", ".feather", ".ipc", ".arrows"),
        operations="a table of operations",
    ),
    Reader(
        name="csv",
        recognises=_has_operation_columns,
        is_possible=lambda head: len(columns := _parse_columns(head)) > 1 and all(columns),
        open_file=make_opener("operations.open_table:open_table", "csv"),
        table_suffixes=(".csv", ".csv.gz", ".tsv", ".tsv.gz"),
        operations="a table of operations",
    ),
    Reader(
        name="kineto",
        suffixes=(".pt.trace.json", ".pt.trace.json.gz", ".json.gz"),
        possible_suffixes=(".json",),
        recognises=lambda head: is_json(head) and _PYTORCH_MARKS.search(head) is not None,
        # A trace that was filtered or merged by hand may contain no mark of PyTorch.
        is_possible=is_json,
        open_file=make_decoding_opener("kineto.profile:read_profile"),
    ),
    Reader(
        name="nsys",
        suffixes=(".sqlite",),
        recognises=_is_database,
        recognises_tables=lambda tables: not tables.isdisjoint(TABLES),
        open_file=make_opener("nsys.profile_file:open_file"),
        is_decoded_at_once=False,
    ),
    Reader(
        name="nsys_columns",
        recognises=lambda _: False,
        recognises_directory=is_columnar,
        open_file=make_opener("nsys.profile_file:open_directory"),
        is_decoded_at_once=False,
    ),
    Reader(
        name="parquet",
        recognises=lambda head: head.startswith(b"PAR1") and len(head) >= _MIN_PARQUET_BYTES,
        open_file=make_opener("operations.open_table:open_table", "parquet"),
        table_suffixes=(".parquet", ".pq"),
        operations="a table of operations",
    ),
    Reader(
        name="recording",
        suffixes=(SUFFIX,),
        recognises=lambda head: _RECORDING.match(head) is not None,
        open_file=make_opener("operations.jsonl.recording:open_recording"),
        operations="a recording of bubbleviz.annotate",
        sessions="bubbleviz.sources.operations.jsonl.sessions",
    ),
    Reader(
        name="rocpd",
        suffixes=("_results.db",),
        possible_suffixes=(".db",),
        recognises=_is_database,
        recognises_tables=lambda tables: any(map(_ROCPD_TABLE.fullmatch, tables)),
        open_file=make_opener("rocm.profile_file:open_file", "rocpd"),
        folder_by_host=True,
    ),
    Reader(
        name="rpd",
        suffixes=(".rpd",),
        recognises=_is_database,
        recognises_tables=lambda tables: bool(_RPD_TABLES & tables),
        open_file=make_opener("rocm.profile_file:open_file", "rpd"),
    ),
    Reader(
        name="traced",
        possible_suffixes=(".json",),
        recognises=_is_tracer_file,
        open_file=make_opener("operations.open_table:open_table", "traced"),
        operations="a trace of operations",
    ),
    # A trace of jax.profiler has at most a million events, and no UTC times.
    Reader(
        name="xla-trace",
        # Names used by jax.profiler, and by the trace viewer of XProf.
        suffixes=(".trace.json.gz", ".trace.json", ".trace_viewer.json.gz", ".trace_viewer.json"),
        superseded_by=(".xplane.pb",),
        recognises=lambda head: is_json(head) and _XLA_MARKS.search(head) is not None,
        open_file=make_decoding_opener("xla.trace_json:read_profile"),
        folder=FOLDER,
    ),
    Reader(
        name="xplane",
        suffixes=(".xplane.pb",),
        recognises=lambda head: _PLANE.match(head) is not None,
        open_file=make_decoding_opener("xla.xspace:read_profile"),
        folder=FOLDER,
    ),
)


def is_own_trace(head: bytes) -> bool:
    """Return whether a file is a trace that this program wrote for viewers, by its first bytes."""
    return _OWN_TRACE.search(head) is not None


def _recognize(path: str, head: bytes) -> Reader | None:
    """Return the reader that recognizes a file, or None if no reader does.

    Raises:
        ProfileError: The file contains events of NCCL or a timeline of Ascend, or is an unknown
            database.
    """
    if head.startswith(SQLITE):
        return _find_database_reader(path, head)
    recognised = next((reader for reader in READERS if reader.recognises(head)), None)
    if recognised is not None and not is_json(head):
        return recognised

    if detect_format(head):
        raise ProfileError(
            f"{path}: contains recorded NCCL operations and is not a profile; use bubbleviz "
            "nccl, alone or together with profiles"
        )
    if is_json(head) and ("trace_view." in Path(path).name or b'"Ascend Hardware"' in head):
        raise ProfileError(
            f"{path}: is a timeline of Ascend's profiler, which does not mark kernels; write a "
            "table of operations instead (bubbleviz guide tables)"
        )
    return recognised


def _refuse_own_files(path: str, head: bytes) -> None:
    """Refuse files that this program wrote and does not analyze.

    Args:
        path: The file, for messages.
        head: Its first bytes.

    Raises:
        ProfileError: The file is a report, a trace for viewers, or a recording of an old format.
    """
    refuse_binary(path, head)
    if _REPORT.search(head):
        packed = "unpack it with gunzip, and " if path.endswith(".gz") else ""
        raise ProfileError(
            f"{path}: is a report of bubbleviz, not a profile; give the profiles, or {packed}give "
            "the report to bubbleviz compare, gate, plan or view"
        )
    if is_own_trace(head):
        raise ProfileError(
            f"{path}: is a trace that bubbleviz wrote, not a profile; give the profiles, or open "
            "it in a trace viewer"
        )


def find_reader(path: str) -> Reader:
    """Return the reader for a file, or for a directory that as a whole is one profile.

    The file is recognized by its first bytes. If no reader recognizes it, the first reader whose
    ``is_possible`` accepts these bytes is returned. Readers of tables are skipped if the file has a
    suffix of profiles that is not one of their own suffixes.

    Raises:
        ProfileError: The file is empty, cannot be read, or has no format that can be read.
    """
    if of_directory := [reader for reader in READERS if reader.recognises_directory(path)]:
        return of_directory[0]
    head = read_head(path)
    if not head.strip():
        raise ProfileError(f"{path}: {describe_empty_file(path)}")
    refuse_pointer(path, head)
    if path.endswith(".pbtxt") or _COSTS.match(head):
        raise ProfileError(
            f"{path}: contains instruction costs for XLA and is not a profile; use bubbleviz pgle "
            "with --against, together with the profile of a JAX run"
        )
    _refuse_own_files(path, head)
    if (recognised := _recognize(path, head)) is not None:
        return recognised
    for reader in READERS:
        has_possible_name = path.endswith(reader.table_suffixes) or not path.endswith(
            _PROFILE_SUFFIXES
        )
        if reader.is_possible(head) and (has_possible_name or not reader.table_suffixes):
            return reader
    if path.endswith(_PROFILE_SUFFIXES):
        raise ProfileError(
            f"{path}: is not an SQLite database (or it is encrypted) and not a trace of PyTorch or "
            f"XLA; "
            f"{suggest_next_step(path)}"
        )
    archive = "; unpack it, or" if head.startswith(_ARCHIVE_MAGIC) else ";"
    raise ProfileError(
        f"{path}: is not a profile{archive} give an SQLite export of nsys, a profile of "
        "rocprofv3 (.db, .rpd), a trace of PyTorch (.json, .json.gz), one of XLA (.xplane.pb, "
        ".trace.json.gz), or a table of operations (.csv, .parquet, .arrow)"
    )


def is_recognized(reader: Reader, path: str) -> bool:
    """Return whether a reader recognizes a file by its first bytes.

    If the reader has a test of tables, it must also recognize the file by the names of its tables.

    Raises:
        ProfileError: The file cannot be read.
    """
    head = read_head(path)
    if not reader.recognises(head):
        return False
    if reader.recognises_tables is None:
        return True

    return reader.recognises_tables(list_relations(path))


def _find_database_reader(path: str, head: bytes) -> Reader:
    """Return the reader for an SQLite file.

    The file is recognized by its tables. A damaged file, or a file without any tables, is
    recognized by its suffix, so that the reader reports what is wrong. If no reader has the suffix,
    the first reader of databases is returned.

    Args:
        path: Path of the file.
        head: Its first 64 KiB.

    Raises:
        ProfileError: The file has tables that no reader recognizes, or it is gzipped.
    """
    if _is_gzipped(path):
        raise ProfileError(f"{path}: is a gzipped SQLite database; unpack it with gunzip first")
    kinds = [reader for reader in READERS if reader.recognises_tables is not None]
    created = frozenset(name.decode() for name in _TABLE_DEFINITION.findall(head))
    at_once = [
        reader for reader in kinds if reader.recognises_tables and reader.recognises_tables(created)
    ]
    if len(at_once) == 1:
        return at_once[0]
    # The definitions are not in the first 64 KiB, or texts there look like definitions.

    relations = list_relations(path)
    by_tables = (
        reader
        for reader in kinds
        if reader.recognises_tables and reader.recognises_tables(relations)
    )
    by_ending = (r for r in kinds if path.endswith((*r.suffixes, *r.possible_suffixes)))
    by_relations = next(by_tables, None)
    if by_relations is None and relations:
        raise ProfileError(
            f"{path}: is an SQLite database, but neither an nsys export nor a ROCm profile: it has "
            f"none of their tables ({', '.join(TABLES)}; rocpd_region; rocpd_api); "
            f"{suggest_next_step(path)}"
        )
    return by_relations or next(by_ending, kinds[0])


def describe_empty_file(path: str) -> str:
    """Return why a file has no content (or only blanks), with advice, as a part of a message.

    Special files, empty gzip data, empty recordings and other empty files have different reasons.
    """
    resolved = Path(path).resolve()
    if any(resolved.is_relative_to(mounted) for mounted in _SPECIAL_FOLDERS):
        return "a special file, which its system writes as it is read; name a profile"
    if resolved.stat().st_size and _is_gzipped(path):
        return f"cut short: gzip data without any content; {suggest_next_step(path)}"
    if path.endswith(SUFFIX):
        return f"the file is empty: its process recorded nothing; {suggest_next_step(path)}"
    return f"the file is empty; {suggest_next_step(path)}"


def _is_gzipped(path: str) -> bool:
    with Path(path).open("rb") as file:
        return file.read(len(GZIP)) == GZIP


def suggest_next_step(path: str) -> str:
    """Return advice for a file that contains no profile, by the suffix of its name."""
    if any(path.endswith(reader.table_suffixes) for reader in READERS):
        return "write a row for each operation (bubbleviz guide tables)"
    if path.endswith(SUFFIX):
        return "record again (bubbleviz guide record)"
    if path.endswith((".json", ".jsonl", ".txt", ".gz", ".pb", ".db", ".rpd")):
        return "give the file that the profiler wrote, or copy it again"
    return EXPORT_AGAIN
