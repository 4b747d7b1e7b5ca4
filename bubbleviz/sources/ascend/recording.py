"""Reads the databases of Ascend's profilers.

torch_npu's profiler writes one database per rank (``ascend_pytorch_profiler_RANK.db``), and
``msprof`` writes one per process (``msprof_*.db``). Both have the same tables. They are documented
in ``docs/en/user_guide/profile_data_file_references_db.md`` of Ascend/msprof, and those of PyTorch
are written by ``torch_npu/profiler/analysis/prof_view/prof_db_parse`` of Ascend/pytorch::

    TASK                  everything that devices executed
    COMPUTE_TASK_INFO     the compute tasks among them, with their names
    COMMUNICATION_OP      communication operations, from their first to their last task
    CANN_API              calls of the CANN libraries
    PYTORCH_API           operators, annotations, queue entries and functions of PyTorch
    CONNECTION_IDS        the launches of each operator
    MSTX_EVENTS           ranges, like those of NVTX

Names are ids in ``STRING_IDS``. Times are in nanoseconds of UTC. A task and the call that launched
it have the same ``connectionId``. PyTorch usually launches tasks on a separate thread, so the
operator that queued a task is found through ``CONNECTION_IDS``. ``META_DATA`` also contains the
environment of the process, which is never read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.errors import ProfileError, SchemaError
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import find_distinct, find_positions
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.texts import replace_surrogates
from bubbleviz.progress import Watch
from bubbleviz.sources.sqlite import database as sqlite
from bubbleviz.sources.sqlite.queries import Queries, find_missing

#: Advice in messages on how to record missing data.
RECORD_AGAIN = (
    "profile again with torch_npu.profiler.profile(activities=[ProfilerActivity.CPU, "
    "ProfilerActivity.NPU], experimental_config=torch_npu.profiler._ExperimentalConfig("
    "export_type=torch_npu.profiler.ExportType.Db))"
)
ASCEND = Queries(
    "the profiler", "ascend", "database of Ascend's profiler", f"copy it again, or {RECORD_AGAIN}"
)
#: Numbers of the columns that contain string ids, keyed by query.
_NAME_COLUMNS: Mapping[str, tuple[int, ...]] = {
    "gpu_work/compute": (4,),
    "gpu_work/communication": (4, 5),
    "calls/all": (4,),
    "calls/operators": (3,),
    "ranges/pytorch": (3,),
    "ranges/mstx": (3,),
}


#: Subject and kind of the limitation to report if a table or column of a query is missing.
_SUBJECTS = {
    "gpu_work/compute": ("kernels", LimitationKind.COSTS),
    "calls/operators": (
        "which operator launched which work, so work belongs to the thread that launched it",
        LimitationKind.COSTS,
    ),
    "target/host": (
        "the hostname, which shows which files share a clock (to join files, pass --same-clock)",
        LimitationKind.OTHER,
    ),
    "target/devices": ("models of devices", LimitationKind.DETAILS),
}


@dataclass(frozen=True, eq=False, repr=False)
class AscendRecording:
    """The contents of a database. Unknown numbers are -1, and times are in ns of UTC.

    Attributes:
        path: Path to the file, as given by the user.
        compute: Compute tasks, with the columns start, end, device, connection, name, and stream.
        communication: Communication operations, with the columns start, end, device, connection,
            name, communicator, data type, and number of elements.
        copies: Copies, with the columns start, end, device, connection, stream, number of bytes,
            and direction.
        calls: Calls of CANN, with the columns start, end, global thread id, connection, and name.
        operators: Launches by operators, with the columns start, global thread id, connection, and
            name.
        pytorch: Ranges of PyTorch, with the columns start, end, global thread id, name, and kind.
        mstx: Ranges of mstx, with the columns start, end, global thread id, name, and kind.
        collections: Garbage collections, with the columns start, end, and global thread id.
        names: Texts that all columns of names refer to by index.
        devices: (device number, model) pairs.
        ranks: (rank, device number) pairs.
        groups: JSON text with the ranks of each communicator, or "" if unknown.
        host: Hostname, or "" if unknown.
        machine: Id of the machine, or "" if unknown.
        schema_version: Version of the schema, or None if unknown.
        limitations: Limitations for data that the file lacks.
    """

    path: str
    compute: Ints
    communication: Ints
    copies: Ints
    calls: Ints
    operators: Ints
    pytorch: Ints
    mstx: Ints
    collections: Ints
    names: tuple[str, ...]
    devices: tuple[tuple[int, str], ...]
    ranks: tuple[tuple[int, int], ...]
    groups: str
    host: str
    machine: str
    schema_version: str | None
    limitations: tuple[Limitation, ...]


class _Tables:
    """The tables of an open database.

    Args:
        database: The open file.

    Attributes:
        path: Path to the file, as given by the user.
        limitations: Limitations for tables and columns that the file lacks.
    """

    def __init__(self, database: sqlite.Database) -> None:
        self._database, self.path = database, database.path
        self.limitations: list[Limitation] = []
        stored = sqlite.read_stored_columns(database)
        self.schema = sqlite.group_columns_by_table(stored)
        self._views = ASCEND.select_views(self.schema)
        statements = {
            name: f"CREATE TEMP VIEW {name} AS\n{view.text}" for name, view in self._views.items()
        }
        database.create_views(statements)

    def read(self, name: str) -> Ints:
        """Return the columns of a query, or no rows if the file lacks a table.

        A missing table is a limitation if it is in ``_SUBJECTS`` and the other tables exist.

        Raises:
            SchemaError: The file lacks a column.
            ProfileError: The file is damaged.
        """
        query = ASCEND.query(name)
        if ASCEND.has(name, self.schema, self._views):
            return self._database.query_columns(query)
        missing = find_missing(ASCEND.find_tables_read(name), self.schema)
        columns = [text for text in missing if "." in text]
        if columns:
            raise SchemaError(
                f"{self._database.path}: the file lacks {', '.join(columns)}, which the analysis "
                f"needs; {ASCEND.again}"
            )
        if len(missing) < len(ASCEND.find_tables_read(name)):
            self._report_missing(name, missing)
        return np.empty((len(query.columns), 0), np.int64)

    def read_rows(self, name: str) -> list[tuple[object, ...]]:
        """Return the rows of a query, or no rows if the file lacks a table or column.

        Raises:
            ProfileError: The file is damaged.
        """
        rows: list[tuple[object, ...]] = []
        missing = find_missing(ASCEND.find_tables_read(name), self.schema)
        if not missing:
            rows = self._database.query_rows(ASCEND.query(name))
        if not rows:
            self._report_missing(name, missing)
        return rows

    def _report_missing(self, name: str, missing: Sequence[str]) -> None:
        """Add a limitation for a query in ``_SUBJECTS`` that has no result.

        Args:
            name: Name of the query.
            missing: Missing tables and columns, or () if the tables have no rows.
        """
        if name in _SUBJECTS:
            subject, kind = _SUBJECTS[name]
            how = f"lacks {', '.join(missing)}" if missing else f"has no {ASCEND.find_table(name)}"
            self.limitations.append(Limitation(subject, f"{self.path} {how}", kind=kind))

    def read_texts(self, ids: Ints) -> dict[int, str]:
        """Return the texts with the given ids, keyed by id. Unknown ids are left out.

        Raises:
            SchemaError: The file lacks a column.
            ProfileError: The file is damaged.
        """
        query = ASCEND.query("strings/by_id")
        if missing := find_missing(query.requires, self.schema):
            raise SchemaError(
                f"{self.path}: the file lacks {', '.join(missing)}, which the analysis needs; "
                f"{ASCEND.again}"
            )
        binds = {"ids": json.dumps(ids.tolist())}
        rows = self._database.query_rows(query, binds)
        return {
            number: replace_surrogates(str(text))
            for number, text in rows
            if isinstance(number, int) and text is not None
        }


def read_recording(path: str, watch: Watch) -> AscendRecording:
    """Read a database of Ascend's profilers.

    Args:
        path: Path to the file.
        watch: Function that is called with the fraction of the file that has been read.

    Raises:
        ProfileError: The file is damaged.
        SchemaError: A required column is missing.
    """
    with sqlite.open_database(path, ASCEND) as database:
        tables = _Tables(database)
        blocks: dict[str, Ints] = {}
        for n_read, name in enumerate(_NAME_COLUMNS):
            blocks[name] = tables.read(name)
            watch(n_read / len(_NAME_COLUMNS))
        blocks["gpu_work/communication"] = _choose_names(tables, blocks["gpu_work/communication"])
        copies, collections = tables.read("gpu_work/copies"), tables.read("ranges/collections")
        names = _number_names(tables, blocks)
        hosts = tables.read_rows("target/host")
        hostname, machine = hosts[0] if hosts else (None, None)
        versions, groups = tables.read_rows("target/metadata"), tables.read_rows("target/groups")
        devices, ranks = _list_devices(tables), _list_ranks(tables)
        return AscendRecording(
            path=path,
            compute=blocks["gpu_work/compute"],
            communication=blocks["gpu_work/communication"],
            copies=copies,
            calls=blocks["calls/all"],
            operators=blocks["calls/operators"],
            pytorch=blocks["ranges/pytorch"],
            mstx=blocks["ranges/mstx"],
            collections=collections,
            names=names,
            devices=devices,
            ranks=ranks,
            groups=_to_text(groups[0][0]) if groups else "",
            host=_to_text(hostname),
            machine=_to_text(machine),
            schema_version=_to_text(versions[0][0]) or None if versions else None,
            limitations=tuple(tables.limitations),
        )


def _choose_names(tables: _Tables, operations: Ints) -> Ints:
    """Return communication operations whose column of names contains types if they are known.

    The name of an operation contains its number, but its type does not.

    Args:
        tables: Tables of the database.
        operations: Columns of ``gpu_work/communication.sql``.
    """
    name, kind = operations[4:6]
    known = np.array([*tables.read_texts(find_distinct(kind[kind >= 0]))], np.int64)
    best_name = np.where(np.isin(kind, known), kind, name)
    return np.vstack((operations[:4], best_name, operations[6:]))


def _number_names(tables: _Tables, blocks: dict[str, Ints]) -> tuple[str, ...]:
    """Replace string ids with indices, in place, and return the texts that they refer to.

    The text of an unknown id is "".

    Raises:
        ProfileError: No text is known.
    """
    columns = [
        blocks[query][column] for query, numbers in _NAME_COLUMNS.items() for column in numbers
    ]
    distinct = find_distinct(*columns)
    texts = tables.read_texts(distinct)
    n_unknown = int((distinct >= 0).sum()) - len(texts)
    if n_unknown and not texts:
        raise ProfileError(
            f"{tables.path}: STRING_IDS contains no names, so the file is incomplete; "
            f"{ASCEND.again}"
        )
    if n_unknown:
        reason = f"{tables.path}: STRING_IDS contains no text for some ids"
        kind = LimitationKind.RANGE_NAMES_LOST
        what = "names of kernels, calls or ranges"
        tables.limitations.append(Limitation(what, reason, n_unknown, kind))
    for column in columns:
        column[:] = find_positions(distinct, column)
    return tuple(texts.get(number, "") for number in distinct.tolist())


def _list_devices(tables: _Tables) -> tuple[tuple[int, str], ...]:
    """Return the number and model of each device."""
    rows = tables.read_rows("target/devices")
    return tuple(
        (number, _to_text(name)) for number, name in rows if isinstance(number, int) and number >= 0
    )


def _list_ranks(tables: _Tables) -> tuple[tuple[int, int], ...]:
    """Return the rank and the device number of each recorded rank."""
    rows: Sequence[tuple[object, ...]] = tables.read_rows("target/ranks")
    return tuple(
        (rank, device) for rank, device in rows if isinstance(rank, int) and isinstance(device, int)
    )


def _to_text(value: object) -> str:
    """Return a text from a database, or "" for NULL."""
    return "" if value is None else replace_surrogates(str(value))
