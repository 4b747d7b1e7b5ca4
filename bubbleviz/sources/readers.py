"""Input formats: how each kind of file is recognised, and what opens it.

To add one, add a row to ``READERS``; the same stages link, count and draw its profiles.
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
from bubbleviz.sources.operations.csv import header_in
from bubbleviz.sources.operations.jsonl import refuse_binary
from bubbleviz.sources.operations.schema import list_missing
from bubbleviz.sources.sqlite.database import list_relations
from bubbleviz.sources.sqlite.queries import SQLITE
from bubbleviz.sources.xla import FOLDER

if TYPE_CHECKING:
    from bubbleviz.model.operation_table import OperationTable
    from bubbleviz.model.profile import Contents, Profile


#: The beginning of a recording, of this version or another one.
_RECORDING = re.compile(rb'^\s*\{\s*"schema"\s*:\s*"bubbleviz\.recording/')
#: The beginning of a report of this program.
_REPORT = re.compile(rb'^\s*\{\s*"schema"\s*:\s*"bubbleviz\.(?!recording/)')
#: The beginning of a trace that this program wrote for viewers.
_OWN_TRACE = re.compile(rb'^\s*\{[^\[\]]*"otherData"\s*:\s*\{[^{}]*"headline_reason"\s*:')
#: The beginning of a file of costs, as XLA's latency-hiding scheduler reads it.
_COSTS = re.compile(rb"\s*(?:#[^\n]*\s*)*costs\s*:?\s*\{")


#: How an SQLite file describes a table.
_CREATED = re.compile(rb'CREATE TABLE (?:IF NOT EXISTS\s+)?["`]?([A-Za-z]\w{3,200})', re.ASCII)
#: Where files look empty, and some, such as a kernel's log, never end.
_WITHOUT_DISK = ("/proc", "/sys")
#: Endings of files that a tool wrote as profiles, and whose content must be damaged.
_ENDINGS = (".sqlite", ".db", ".rpd", ".nsys-rep", ".qdrep", ".json", ".gz", ".pb")
#: The first bytes of ZIP, XZ, Zstandard and bzip2 archives.
_ARCHIVES = (b"PK\x03\x04", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"BZh")


class OpenFile(Protocol):
    """An open file of some kind.

    All of its methods take GLOB prefilters of range names, and raise ProfileError where the file
    cannot be read.
    """

    def sample(self, globs: Sequence[str], rows: int = ..., /) -> Mapping[str, int]:
        """Return how often names that match occur in a sample of the ranges.

        Args:
            globs: prefilters of the names.
            rows: about so many ranges are looked at, where others need not be read.
        """

    def read(self, globs: Sequence[str], *, partial: bool = False) -> Profile:
        """Return the profile; its calls can be read while the file is open.

        Args:
            globs: prefilters of the ranges that are wanted by name.
            partial: read it even if it lacks calls, ranges, or kernels beside copies. These tables
                are then empty, without a limitation: the caller knows what follows. Work is never
                missing. Where the work stands for its own launches (``launches_known`` is false),
                a limitation says that launches, or GPU work, were not recorded, partial or not.

        Raises:
            NothingToAnalyseError: nothing ran; or, without ``partial``, one of these tables is
                missing that an analysis needs.
        """

    def inspect(self, globs: Sequence[str]) -> Contents:
        """Return the contents of the file, for a first look."""


@runtime_checkable
class OpenOperations(OpenFile, Protocol):
    """An open file that holds operations themselves, instead of what they are worked out from."""

    def operations(self) -> OperationTable:
        """Return them.

        Raises:
            ProfileError: the file cannot be read, or holds no operations.
        """


Opened: TypeAlias = AbstractContextManager[OpenFile]
#: Opens a path, to be read by so many threads at once; reports its progress.
Opener: TypeAlias = Callable[[str, int, Watch], Opened]


@dataclass(frozen=True)
class Reader:
    """A kind of file that can be read.

    Attributes:
        name: of the format, in reports.
        suffixes: endings of the files that a directory is searched for.
        recognises: whether a file's first 64 KiB (unpacked where it is gzipped) are of this kind,
            or of an SQLite file; no two kinds recognise the same file.
        holds: of kinds of SQLite files, whether one is of this kind by the names of its tables and
            views; no two kinds hold the same.
        open_file: opens a path, to be read by so many threads at once; reports its progress.
        decoded_whole: whether any look at a file decodes all of it.
        possible_suffixes: endings of further files, which are read if recognised.
        is_possible: whether the first 64 KiB of a file that no reader recognises may be of this
            kind.
        superseded_by: endings of files that hold more of the same run; of a directory such a file
            is read instead of one of this kind with the same name.
        table_suffixes: endings of tables of operations, which a directory stands for where it holds
            no profile.
        operations: what a file of operations themselves is, in words; "" for profiles.
        sessions: module that knows which files belong together, "" where each stands for itself:
            ``first_parts`` gives of some paths all but those that are read with others of them,
            ``newest_run`` of those of one directory the newest run's, without such.
        recognises_directory: whether a directory as a whole is a profile of this kind.
        folder: where a tool puts profiles below its directory, a folder for each run; "" for
            nowhere.
        folder_by_host: whether it makes a folder for each host, of one run, in its directory.
    """

    name: str
    recognises: Callable[[bytes], bool]
    open_file: Opener
    suffixes: tuple[str, ...] = ()
    decoded_whole: bool = True
    possible_suffixes: tuple[str, ...] = ()
    is_possible: Callable[[bytes], bool] = lambda _: False
    superseded_by: tuple[str, ...] = ()
    table_suffixes: tuple[str, ...] = ()
    operations: str = ""
    sessions: str = ""
    folder: str = ""
    recognises_directory: Callable[[str], bool] = lambda _: False
    holds: Callable[[frozenset[str]], bool] | None = None
    folder_by_host: bool = False


def opened_by(place: str, *more: str) -> Opener:
    """Return a reader's function that opens a file by one of a module, as ``module:function``.

    The module is imported only where a file is opened, so that other formats start faster.

    Args:
        place: of a function, which takes a path, a number of threads and what takes the progress.
        more: what else it takes.
    """

    def open_file(path: str, jobs: int, watch: Watch) -> Opened:
        opened: Opened = _function(place)(path, jobs, watch, *more)
        return opened

    return open_file


def decoded_by(place: str) -> Opener:
    """Return a reader's function for files that are decoded whole, once anything is asked of them.

    Args:
        place: of a function, as of :func:`opened_by`, which takes a path and what takes the
            progress, and returns what it decoded.
    """

    def open_file(path: str, _jobs: int, watch: Watch) -> Opened:

        return nullcontext(DecodedFile(partial(_function(place), path, watch)))

    return open_file


def _function(place: str) -> Callable[..., Any]:
    module, _, function = f"bubbleviz.sources.{place}".partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


#: Bytes of a Parquet or Arrow file with a footer, or of a stream with a schema, at least; what is
#: shorter was cut.
_SHORTEST_PARQUET, _SHORTEST_ARROW = 12, 16
#: An Arrow file, and a message of a stream, which follows the length of its schema.
_ARROW = (b"ARROW1", b"\xff\xff\xff\xff")
#: Of these every file of rocprofv3, where the GUID of a process stands behind the name, and of
#: rocmProfileData.
_OF_ROCPD = re.compile(r"rocpd_(?:region|kernel_dispatch|info_process)(?:_[0-9A-Fa-f_]{16,})?")
_OF_RPD = frozenset(("rocpd_api", "rocpd_op"))
#: Keys of the document, and categories, that no other profiler than PyTorch's writes.
_OF_PYTORCH = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds)"\s*:'
    rb'|"cat"\s*:\s*"(?:cpu_op|user_annotation|python_function|cuda_runtime|cuda_driver|'
    rb'gpu_mem(?:cpy|set)|kernel|ac2g|Operator|Runtime|Kernel)"'
)
#: A count of an operation, of a tracer inside the training program.
_OF_TRACER = re.compile(rb'"args"\s*:\s*\{[^{}]*"microbatch"\s*:\s*[0-9]')
#: The precision of times, and names of processes, as XLA's profiler writes them.
_OF_XLA = re.compile(rb'"highres-ticks"|"args"\s*:\s*\{\s*"name"\s*:\s*"/(?:device|host):')
#: A plane of which the name fits: its tag and length, its number, if any, and its name.
_PLANE = re.compile(
    rb"\x0a[\x80-\xff]{0,9}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])*"
    rb"\x12[\x80-\xff]{0,9}[\x00-\x7f](?:/host:|/device:|Task Environment)"
)


def _columns(head: bytes) -> list[str]:
    """Return the names of columns in the first line; none where it is no such line."""
    line = head.split(b"\n", 1)[0]
    if not any(delimiter in line for delimiter in (b",", b";", b"\t")) or line[:1] in b"{[<":
        return []

    return header_in(head)


def _names_operations(head: bytes) -> bool:
    """Tell whether the first line names the columns that operations need."""
    if not (columns := _columns(head)):
        return False

    return not list_missing(columns)


def _is_of_tracer(head: bytes) -> bool:
    counted = is_json(head) and _OF_TRACER.search(head) is not None
    return counted and not (_OF_PYTORCH.search(head) or _OF_XLA.search(head))


def _is_database(head: bytes) -> bool:
    return head.startswith(SQLITE)


READERS = (
    Reader(
        name="arrow",
        recognises=lambda head: head.startswith(_ARROW) and len(head) >= _SHORTEST_ARROW,
        open_file=opened_by("operations.open_table:open_table", "arrow"),
        table_suffixes=(".arrow", ".feather", ".ipc", ".arrows"),
        operations="a table of operations",
    ),
    Reader(
        name="csv",
        recognises=_names_operations,
        is_possible=lambda head: len(columns := _columns(head)) > 1 and all(columns),
        open_file=opened_by("operations.open_table:open_table", "csv"),
        table_suffixes=(".csv", ".csv.gz", ".tsv", ".tsv.gz"),
        operations="a table of operations",
    ),
    Reader(
        name="kineto",
        suffixes=(".pt.trace.json", ".pt.trace.json.gz", ".json.gz"),
        possible_suffixes=(".json",),
        recognises=lambda head: is_json(head) and _OF_PYTORCH.search(head) is not None,
        # A trace that was filtered or merged by hand may hold no mark of PyTorch.
        is_possible=is_json,
        open_file=decoded_by("kineto.profile:read_profile"),
    ),
    Reader(
        name="nsys",
        suffixes=(".sqlite",),
        recognises=_is_database,
        holds=lambda tables: not tables.isdisjoint(TABLES),
        open_file=opened_by("nsys.profile_file:open_file"),
        decoded_whole=False,
    ),
    Reader(
        name="nsys_columns",
        recognises=lambda _: False,
        recognises_directory=is_columnar,
        open_file=opened_by("nsys.profile_file:open_directory"),
        decoded_whole=False,
    ),
    Reader(
        name="parquet",
        recognises=lambda head: head.startswith(b"PAR1") and len(head) >= _SHORTEST_PARQUET,
        open_file=opened_by("operations.open_table:open_table", "parquet"),
        table_suffixes=(".parquet", ".pq"),
        operations="a table of operations",
    ),
    Reader(
        name="recording",
        suffixes=(SUFFIX,),
        recognises=lambda head: _RECORDING.match(head) is not None,
        open_file=opened_by("operations.jsonl.recording:open_recording"),
        operations="a recording of bubbleviz.annotate",
        sessions="bubbleviz.sources.operations.jsonl.sessions",
    ),
    Reader(
        name="rocpd",
        suffixes=("_results.db",),
        possible_suffixes=(".db",),
        recognises=_is_database,
        holds=lambda tables: any(map(_OF_ROCPD.fullmatch, tables)),
        open_file=opened_by("rocm.profile_file:open_file", "rocpd"),
        folder_by_host=True,
    ),
    Reader(
        name="rpd",
        suffixes=(".rpd",),
        recognises=_is_database,
        holds=lambda tables: bool(_OF_RPD & tables),
        open_file=opened_by("rocm.profile_file:open_file", "rpd"),
    ),
    Reader(
        name="traced",
        possible_suffixes=(".json",),
        recognises=_is_of_tracer,
        open_file=opened_by("operations.open_table:open_table", "traced"),
        operations="a trace of operations",
    ),
    # As jax.profiler writes it, it holds at most a million events, and no UTC.
    Reader(
        name="xla-trace",
        # As jax.profiler names it, and XProf's trace viewer.
        suffixes=(".trace.json.gz", ".trace.json", ".trace_viewer.json.gz", ".trace_viewer.json"),
        superseded_by=(".xplane.pb",),
        recognises=lambda head: is_json(head) and _OF_XLA.search(head) is not None,
        open_file=decoded_by("xla.trace_json:read_profile"),
        folder=FOLDER,
    ),
    Reader(
        name="xplane",
        suffixes=(".xplane.pb",),
        recognises=lambda head: _PLANE.match(head) is not None,
        open_file=decoded_by("xla.xspace:read_profile"),
        folder=FOLDER,
    ),
)


def is_own_trace(head: bytes) -> bool:
    """Tell by its first bytes whether a file is a trace of a report, written for viewers."""
    return _OWN_TRACE.search(head) is not None


def _recognised_as(path: str, head: bytes) -> Reader | None:
    """Return the reader that recognises a file for sure.

    Raises:
        ProfileError: it is events of NCCL, a timeline of Ascend, or an unknown database.
    """
    if head.startswith(SQLITE):
        return _reader_of_database(path, head)
    recognised = next((reader for reader in READERS if reader.recognises(head)), None)
    if recognised is not None and not is_json(head):
        return recognised

    if detect_format(head):
        raise ProfileError(
            f"{path}: recorded operations of NCCL, not a profile; give them to bubbleviz nccl, "
            "alone or together with profiles"
        )
    if is_json(head) and ("trace_view." in Path(path).name or b'"Ascend Hardware"' in head):
        raise ProfileError(
            f"{path}: a timeline of Ascend's profiler, which names no kernels as such; write a row "
            "for each operation (bubbleviz guide tables)"
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
            f"{path}: a report of bubbleviz, not a profile; give the profiles, or {packed}give the "
            "report to bubbleviz compare, gate, plan or view"
        )
    if is_own_trace(head):
        raise ProfileError(
            f"{path}: a trace that bubbleviz wrote, not a profile; give the profiles, or open it "
            "in a viewer of traces"
        )


def reader_of(path: str) -> Reader:
    """Return the reader for a file, by its first bytes, or for a directory that is one profile.

    Raises:
        ProfileError: no reader knows the file.
    """
    if of_directory := [reader for reader in READERS if reader.recognises_directory(path)]:
        return of_directory[0]
    head = read_head(path)
    if not head.strip():
        raise ProfileError(f"{path}: {emptiness(path)}")
    refuse_pointer(path, head)
    if path.endswith(".pbtxt") or _COSTS.match(head):
        raise ProfileError(
            f"{path}: costs of XLA's instructions, not a profile; give them to bubbleviz pgle "
            "with --against, beside the profile of a JAX run"
        )
    _refuse_own_files(path, head)
    if (recognised := _recognised_as(path, head)) is not None:
        return recognised
    for reader in READERS:
        # A table has not the name of a profile.
        named = path.endswith(reader.table_suffixes) or not path.endswith(_ENDINGS)
        if reader.is_possible(head) and (named or not reader.table_suffixes):
            return reader
    if path.endswith(_ENDINGS):
        raise ProfileError(
            f"{path}: not an SQLite database (or encrypted), nor a trace of PyTorch or XLA; "
            f"{next_step(path)}"
        )
    archive = "; unpack it, or" if head.startswith(_ARCHIVES) else ";"
    raise ProfileError(
        f"{path}: no profile{archive} give an SQLite export of nsys, a profile of "
        "rocprofv3 (.db, .rpd), a trace of PyTorch (.json, .json.gz), one of XLA (.xplane.pb, "
        ".trace.json.gz), or a table of operations (.csv, .parquet, .arrow)"
    )


def is_of(reader: Reader, path: str) -> bool:
    """Tell whether a file is of a kind, by its first bytes and, in a database, its tables.

    Raises:
        ProfileError: the file cannot be read.
    """
    head = read_head(path)
    if not reader.recognises(head):
        return False
    if reader.holds is None:
        return True

    return reader.holds(list_relations(path))


def _reader_of_database(path: str, head: bytes) -> Reader:
    """Return the reader of an SQLite file: by its tables, else by its ending, to say what lacks.

    Raises:
        ProfileError: no reader knows it, or it is gzipped.
    """
    if _is_packed(path):
        raise ProfileError(f"{path}: gzip of an SQLite database; unpack it with gunzip first")
    kinds = [reader for reader in READERS if reader.holds is not None]
    created = frozenset(name.decode() for name in _CREATED.findall(head))
    at_once = [reader for reader in kinds if reader.holds and reader.holds(created)]
    if len(at_once) == 1:
        return at_once[0]
    # The tables are described elsewhere in the file, or texts in it look like their descriptions.

    relations = list_relations(path)
    by_tables = (reader for reader in kinds if reader.holds and reader.holds(relations))
    by_ending = (r for r in kinds if path.endswith((*r.suffixes, *r.possible_suffixes)))
    found = next(by_tables, None)
    if found is None and relations:
        raise ProfileError(
            f"{path}: an SQLite database, but no nsys export, nor a profile of ROCm: it has none "
            f"of their tables ({', '.join(TABLES)}; rocpd_region; rocpd_api); {next_step(path)}"
        )
    return found or next(by_ending, kinds[0])


def emptiness(path: str) -> str:
    """Return what a file is that unpacks to nothing, or blanks, and what to do."""
    place = Path(path).resolve()
    if any(place.is_relative_to(mounted) for mounted in _WITHOUT_DISK):
        return "a special file, which its system writes as it is read; name a profile"
    if place.stat().st_size and _is_packed(path):
        return f"cut short: gzip data without any content; {next_step(path)}"
    if path.endswith(SUFFIX):
        return f"the file is empty: its process recorded nothing; {next_step(path)}"
    return f"the file is empty; {next_step(path)}"


def _is_packed(path: str) -> bool:
    with Path(path).open("rb") as file:
        return file.read(len(GZIP)) == GZIP


def next_step(path: str) -> str:
    """Return the advice on a file without a profile, by the ending of its name."""
    if any(path.endswith(reader.table_suffixes) for reader in READERS):
        return "write a row for each operation (bubbleviz guide tables)"
    if path.endswith(SUFFIX):
        return "record again (bubbleviz guide record)"
    if path.endswith((".json", ".jsonl", ".txt", ".gz", ".pb", ".db", ".rpd")):
        return "give the file that the profiler wrote, or copy it again"
    return EXPORT_AGAIN
