"""Input formats: each module here turns one kind of file into a ``Profile``.

To add one, add a module with a ``READER`` constant; the same stages link, count and draw its
profiles.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model.pointers import refuse_pointer
from bubbleviz.progress import Watch, unwatched
from bubbleviz.registry import discover
from bubbleviz.sources.gzip_files import GZIP, head_of, is_json

if TYPE_CHECKING:
    from bubbleviz.model.operation_table import OperationTable
    from bubbleviz.model.profile import Contents, Profile


#: The beginning of a report of this program.
_REPORT = re.compile(rb'^\s*\{\s*"schema"\s*:\s*"bubbleviz\.')
#: The beginning of a trace that this program wrote for viewers.
_OWN_TRACE = re.compile(rb'^\s*\{[^\[\]]*"otherData"\s*:\s*\{[^{}]*"headline_reason"\s*:')
#: The beginning of a file of costs, as XLA's latency-hiding scheduler reads it.
_COSTS = re.compile(rb"\s*(?:#[^\n]*\s*)*costs\s*:?\s*\{")


#: How an SQLite file begins, whatever it holds.
SQLITE = b"SQLite format 3\0"
#: How it describes a table.
_CREATED = re.compile(rb'CREATE TABLE (?:IF NOT EXISTS\s+)?["`]?([A-Za-z]\w{3,200})', re.ASCII)
#: Tables of every database of Ascend's profilers (hiascend.com, "Data in
#: ascend_pytorch_profiler_{Rank_ID}.db", "Description of .db Data Exported by msprof").
_OF_ASCEND = frozenset(("STRING_IDS", "TASK"))
#: Where files look empty, and some, such as a kernel's log, never end.
_WITHOUT_DISK = ("/proc", "/sys")
#: Endings of files that a tool wrote as profiles, and whose content must be damaged.
_ENDINGS = (".sqlite", ".db", ".rpd", ".nsys-rep", ".qdrep", ".json", ".gz", ".pb")
#: The first bytes of files that people take for profiles, or keep beside them.
_OTHERS = (
    (b"PAR1", "a Parquet table"),
    (b"ARROW1", "an Arrow table"),
    (b"FEA1", "a table of Feather's first version; write it again as Parquet"),
    (b"\x89HDF", "an HDF5 file"),
    (b"PK\x03\x04", "a ZIP archive; unpack it"),
    (b"\xfd7zXZ", "an XZ archive; unpack it"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive; unpack it"),
    (b"BZh", "a bzip2 archive; unpack it"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "a picture"),
    (b"\x7fELF", "a program"),
)


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
    suffixes: tuple[str, ...]
    recognises: Callable[[bytes], bool]
    open_file: Opener
    decoded_whole: bool = False
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


def opened_by(place: str) -> Opener:
    """Return a reader's function that opens a file by one of a module, as ``module:function``.

    The module is imported only where a file is opened, so that other formats start faster.
    """

    def open_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Opened:
        module, _, function = place.partition(":")
        opened: Opened = getattr(import_module(module), function)(path, jobs, watch)
        return opened

    return open_file


def table_opened_by(name: str, read: str) -> Opener:
    """Return a reader's function that opens a table of operations.

    Args:
        name: of the format.
        read: function of :mod:`bubbleviz.sources.tables.files` that reads it.
    """

    def open_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Opened:  # noqa: ARG001 - pyarrow has threads of its own
        from bubbleviz.sources.tables import files, operations

        return operations.open_table(path, name, watch, getattr(files, read))

    return open_file


def readers() -> tuple[Reader, ...]:
    """Return every reader."""
    return discover(__name__, "READER", Reader)


def is_own_trace(head: bytes) -> bool:
    """Tell by its first bytes whether a file is a trace of a report, written for viewers."""
    return _OWN_TRACE.search(head) is not None


def reader_of_directory(path: str) -> Reader | None:
    """Return the reader for a directory that is one profile; None for any other path."""
    if not Path(path).is_dir():
        return None
    return next((reader for reader in readers() if reader.recognises_directory(path)), None)


def _recognised_as(path: str, head: bytes) -> Reader | None:
    """Return the reader that recognises a file for sure.

    Raises:
        ProfileError: it is events of NCCL, or a database that no reader knows.
    """
    if head.startswith(SQLITE):
        return _reader_of_database(path, head)
    recognised = next((reader for reader in readers() if reader.recognises(head)), None)
    if recognised is not None and not is_json(head):
        return recognised
    from bubbleviz.sources.nccl.formats import format_of

    if format_of(head) is not None:
        raise ProfileError(
            f"{path}: events of NCCL's profiler, not a profile; give them to bubbleviz nccl, alone "
            "or together with profiles"
        )
    return recognised


def reader_of(path: str) -> Reader:
    """Return the reader for a file, by its first bytes.

    Raises:
        ProfileError: no reader knows the file.
    """
    if (directory := reader_of_directory(path)) is not None:
        return directory
    head = head_of(path)
    if not head.strip():
        raise ProfileError(f"{path}: {emptiness(path)}")
    refuse_pointer(path, head)
    if path.endswith(".pbtxt") or _COSTS.match(head):
        raise ProfileError(
            f"{path}: costs of XLA's instructions, not a profile; give them to bubbleviz pgle "
            "with --against, beside the profile of a JAX run"
        )
    if _REPORT.search(head):
        raise ProfileError(
            f"{path}: a report of bubbleviz, not a profile; give the profiles, or give the report "
            "to bubbleviz compare, gate or view"
        )
    if is_own_trace(head):
        raise ProfileError(
            f"{path}: a trace that bubbleviz wrote, not a profile; give the profiles, or open it "
            "in a viewer of traces"
        )
    if (recognised := _recognised_as(path, head)) is not None:
        return recognised
    for reader in readers():
        # A table has not the name of a profile.
        named = path.endswith(reader.table_suffixes) or not path.endswith(_ENDINGS)
        if reader.is_possible(head) and (named or not reader.table_suffixes):
            return reader
    if path.endswith(_ENDINGS):
        raise ProfileError(
            f"{path}: not an SQLite database (or encrypted), nor a trace of PyTorch or XLA; "
            f"{next_step(path)}"
        )
    raise ProfileError(
        f"{path}: no profile, but {_kind_of(head)}; give an SQLite export of nsys, a profile of "
        "rocprofv3 (.db, .rpd), a trace of PyTorch (.json, .json.gz), one of XLA (.xplane.pb, "
        ".trace.json.gz), or a table of operations (.csv, .parquet, .arrow)"
    )


def is_of(reader: Reader, path: str) -> bool:
    """Tell whether a file is of a kind, by its first bytes and, in a database, its tables.

    Raises:
        ProfileError: the file cannot be read.
    """
    head = head_of(path)
    if not reader.recognises(head):
        return False
    if reader.holds is None:
        return True
    from bubbleviz.sources.sqlite.database import relations_in

    return reader.holds(relations_in(path))


def _reader_of_database(path: str, head: bytes) -> Reader:
    """Return the reader of an SQLite file: by its tables, else by its ending, to say what lacks.

    Raises:
        ProfileError: no reader knows it.
    """
    kinds = [reader for reader in readers() if reader.holds is not None]
    created = frozenset(name.decode() for name in _CREATED.findall(head))
    at_once = [reader for reader in kinds if reader.holds and reader.holds(created)]
    if len(at_once) == 1:
        return at_once[0]
    # The tables are described elsewhere in the file, or texts in it look like their descriptions.
    from bubbleviz.sources.sqlite.database import relations_in

    relations = relations_in(path)
    by_tables = (reader for reader in kinds if reader.holds and reader.holds(relations))
    by_ending = (r for r in kinds if path.endswith((*r.suffixes, *r.possible_suffixes)))
    found = next(by_tables, None)
    if found is None and relations >= _OF_ASCEND:
        raise ProfileError(
            f"{path}: a database of Ascend's profiler (msprof, torch_npu), which is not read; "
            "write a row for each operation instead (bubbleviz guide tables)"
        )
    if found is None and relations:
        raise ProfileError(
            f"{path}: an SQLite database, but no nsys export, nor a profile of ROCm: it "
            "has none of their tables (StringIds, CUPTI_ACTIVITY_KIND_KERNEL, "
            "CUPTI_ACTIVITY_KIND_RUNTIME, NVTX_EVENTS; rocpd_region; rocpd_api); "
            f"{next_step(path)}"
        )
    return found or next(by_ending, kinds[0])


def emptiness(path: str) -> str:
    """Return what a file is that unpacks to nothing, or blanks, and what to do."""
    place = Path(path).resolve()
    if any(place.is_relative_to(mounted) for mounted in _WITHOUT_DISK):
        return "a special file, which its system writes as it is read; name a profile"
    if place.stat().st_size:
        with place.open("rb") as file:
            if file.read(len(GZIP)) == GZIP:
                return f"cut short: gzip data without any content; {next_step(path)}"
    return f"the file is empty; {next_step(path)}"


def _kind_of(head: bytes) -> str:
    """Return what a file is that no reader knows, as far as its first bytes say."""
    named = next((name for magic, name in _OTHERS if head.startswith(magic)), None)
    if named is not None:
        return named
    try:
        # The last character may be cut.
        text = getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return "a binary file of an unknown kind"
    return "a text" if "\0" not in text else "a binary file of an unknown kind"


def next_step(path: str) -> str:
    """Return the advice on a file without a profile, by the ending of its name."""
    if any(path.endswith(reader.table_suffixes) for reader in readers()):
        return "write a row for each operation (bubbleviz guide tables)"
    if path.endswith((".json", ".gz", ".pb", ".db", ".rpd")):
        return "give the file that the profiler wrote, or copy it again"
    return EXPORT_AGAIN
