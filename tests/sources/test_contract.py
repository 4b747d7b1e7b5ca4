"""The contract with databases: a lost, renamed or added column is reported or has no effect.

A full profile loses each of its tables and columns, one at a time. Afterwards, the report is
unchanged, or a limitation or an error names the missing table or column. There is never a
traceback, and no number changes without a limitation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import bubbleviz
from bubbleviz.errors import BubblevizError
from bubbleviz.report.report import Report
from bubbleviz.sources.nsys.queries import QUERIES
from tests.planting import plant
from tests.planting.options import Planting
from tests.support import planted_runs
from tests.support.ascend_profiles import write_ascend
from tests.support.edited_databases import edit_database, read_columns, rebuild_table
from tests.support.processes import read_processes
from tests.support.rocm_profiles import write_rocpd, write_rpd

pytestmark = pytest.mark.thorough

NVTX, KERNEL = "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME, MEMCPY = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY"

FULL = replace(planted_runs.FULL, library_depth=3, first_iteration=5, files="rank")
#: Tables whose absence means that their data was not recorded.
#: The user must record again.
RECORDED = (KERNEL, RUNTIME, NVTX)


#: Other words in messages about an empty table.
EMPTY = {
    "TARGET_INFO_SESSION_START_TIME": ("does not record when its session started",),
    "TARGET_INFO_SYSTEM_ENV": ("hostname",),
    "StringIds": ("string",),
}
#: Columns in which NULL is a valid value.
SHOWN_AS_NONE: dict[tuple[str, str], tuple[str, ...]] = {
    **{("TARGET_INFO_GPU", column): ("gpus",) for column in ("name", "uuid", "busLocation")},
    (NVTX, "endGlobalTid"): ("coverage",),
    # Without thread names, no kernel is known to belong to another thread.
    **dict.fromkeys(
        [(f"rocpd_{table}", "tid") for table in ("info_thread", "region", "api")], ("coverage",)
    ),
}


#: Part of the sentence that advises to record again, for each format.
AGAIN = {"nsys": "-t cuda,nvtx", "rocpd": "again", "rpd": "again", "ascend": "again"}


@cache
def plant_full_profile(form: str = "nsys") -> tuple[dict[str, bytes], dict[str, tuple[str, ...]]]:
    """Return the files of the full profile in some format, and the columns of the first file."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        files = [folder / file.path for file in plant(FULL, folder).files]
        # One thread ends the backward range of another thread.
        backward = (
            "text GLOB 'B[0-9]*' OR textId IN (SELECT id FROM StringIds WHERE value GLOB 'B[0-9]*')"
        )
        if form == "nsys":
            end_assignment = "endGlobalTid = globalTid + 17, eventType = 60"
            edit_database(files[0], f"UPDATE {NVTX} SET {end_assignment} WHERE {backward}")
        elif form == "rocpd":
            files = [write_rocpd(folder / "1_results.db", read_processes(files[0]))]
        elif form == "rpd":
            files = [write_rpd(folder / "trace.rpd", [p for f in files for p in read_processes(f)])]
        else:
            processes = [process for file in files for process in read_processes(file)]
            files = write_ascend(folder, processes, is_queued=True)
        return {file.name: file.read_bytes() for file in files}, read_columns(files[0])


def write_full_profile(folder: Path, form: str = "nsys") -> list[Path]:
    """Write the full profile, and return its files. Tests change the first file."""
    paths = []
    for name, content in plant_full_profile(form)[0].items():
        paths.append(folder / name)
        paths[-1].write_bytes(content)
    return paths


@dataclass(frozen=True)
class Facts:
    """The content of a report, independent of the order of rows."""

    operations: tuple[tuple[object, ...], ...]
    ratios: tuple[object, ...]
    coverage: tuple[object, ...]
    ranks: tuple[object, ...]
    clocks: tuple[object, ...]


def collect_facts(report: Report) -> Facts:
    t = report.operations
    columns = [getattr(t, name).tolist() for name in sorted(t.column_names()) if name != "name_id"]
    names = [t.names[i] for i in t.name_id.tolist()]
    return Facts(
        operations=tuple(sorted(zip(*columns, names, strict=True))),
        ratios=(
            report.headline,
            report.convention,
            *(
                (i.name, i.kind, i.complete, i.microbatches, i.start_ns, i.end_ns, i.ratios)
                for i in report.iterations
            ),
        ),
        coverage=(
            report.coverage,
            report.unattributed_kernels,
            *(
                (
                    p.kernels,
                    p.linked_kernels,
                    p.attributed_kernels,
                    p.cross_thread_kernels,
                    p.ambiguous_kernels,
                    p.gpu_ns,
                    p.attributed_gpu_ns,
                    p.comm_ns,
                    p.copy_ns,
                )
                for p in report.profiles
            ),
        ),
        ranks=tuple((r.index, r.label, r.host, r.pid, r.device_id, r.stage) for r in report.ranks),
        clocks=tuple(
            (p.host, p.clock_offset_ns, p.clock_drift_ppm, p.clock_uncertainty_ns)
            for p in report.profiles
        ),
    )


def list_gpus(report: Report) -> list[tuple[object, ...]]:
    return [(r.uuid, r.gpu, r.pci) for r in report.ranks]


@cache
def analyze_full_profile(form: str = "nsys") -> Report:
    with TemporaryDirectory() as folder:
        return bubbleviz.analyze(write_full_profile(Path(folder), form))


@cache
def collect_full_facts(form: str) -> Facts:
    return collect_facts(analyze_full_profile(form))


def check(
    paths: list[Path],
    form: str,
    words: tuple[str, ...],
    *,
    remedy: bool = False,
    but: tuple[str, ...] = (),
) -> str:
    """Analyze profiles, check that the outcome is allowed, and return the outcome.

    Args:
        paths: Profiles to analyze.
        form: Format of the profiles.
        words: Words that identify the lost table or column in a message.
        remedy: Whether an error may explain how to record again instead.
        but: Facts that may change without a message.
    """
    try:
        report = bubbleviz.analyze(paths)
    except BubblevizError as error:
        message = str(error)
        assert "\n" not in message
        assert "Traceback" not in message
        assert any(w in message for w in words) or (remedy and AGAIN[form] in message), message
        return "error"
    expected = {(note.what, note.count) for note in analyze_full_profile(form).limitations}
    news = [
        f"{n.what}: {n.reason}" for n in report.limitations if (n.what, n.count) not in expected
    ]
    matching_news = [line for line in news if any(word in line for word in words)]
    now, then = collect_facts(report), collect_full_facts(form)
    changed = [
        name for name in Facts.__dataclass_fields__ if getattr(now, name) != getattr(then, name)
    ]
    if list_gpus(report) != list_gpus(analyze_full_profile(form)):
        changed.append("gpus")
    changed = [name for name in changed if name not in but]
    assert matching_news or not changed, f"changed without a word: {changed}; said: {news}"
    return "told" if matching_news else "same"


def remove_guid(name: str) -> str:
    """Return the name of a table without the identifier of the process."""
    return name[:-37] if name[-37:-36] == "_" and name.count("_") > 4 else name


#: Tables whose absence shows that the run had no such events, or that options left them out.
OPTIONAL = {"COMMUNICATION_OP", "MEMCPY_INFO", "MSTX_EVENTS"}
TABLES = [
    (form, table)
    for form in AGAIN
    for table in plant_full_profile(form)[1]
    if table not in OPTIONAL
]
#: Columns of nsys exports that no query reads, keyed by table.
UNREAD = {
    table: tuple(c for c in columns if c not in QUERIES.columns_read.get(table, ()))
    for table, columns in plant_full_profile()[1].items()
}
COLUMNS = [
    (way, form, table, column)
    for form, table in TABLES
    for column in plant_full_profile(form)[1][table]
    for way in (("dropped", "nulls") if form == "nsys" else ("dropped",))
    if form != "nsys" or column not in UNREAD[table]
]


def test_the_full_export_contains_everything() -> None:
    report, tables = analyze_full_profile(), plant_full_profile()[1]

    assert {KERNEL, RUNTIME, NVTX, MEMCPY, "ThreadNames", "META_DATA_EXPORT"} <= set(tables)
    assert sum(p.cross_thread_kernels for p in report.profiles) > 0
    assert sum(p.copy_ns for p in report.profiles) > 0
    assert report.limitations == ()
    assert report.summary.bubble_ratio[report.headline].mean is not None
    assert all(all(gpu) for gpu in list_gpus(report))


@pytest.mark.parametrize(("form", "table"), TABLES, ids=remove_guid)
@pytest.mark.parametrize("way", ["dropped", "emptied", "renamed"])
def test_a_lost_table_is_reported_or_changes_nothing(
    way: str, form: str, table: str, tmp_path: Path
) -> None:
    paths = write_full_profile(tmp_path, form)
    statements = {
        "dropped": f'DROP TABLE "{table}"',
        "emptied": f'DELETE FROM "{table}"',
        "renamed": f'ALTER TABLE "{table}" RENAME TO "{table[::-1]}"',
    }
    edit_database(paths[0], statements[way])

    if form == "nsys":
        words = (table, *EMPTY.get(table, ())) if way == "emptied" else (table,)
        outcome = check(paths, form, words, remedy=table in RECORDED)
        assert outcome == "error" if table in RECORDED else outcome != "error"
    else:
        words = (remove_guid(table), *(("hostname",) if "node" in table else ()))
        silent_columns = ("rocpd_string", "launch", "kernels") if way == "emptied" else ()
        check(paths, form, (*words, *silent_columns), remedy=True)


def test_columns_that_no_query_reads_change_nothing(tmp_path: Path) -> None:
    paths = write_full_profile(tmp_path)
    for table, columns in UNREAD.items():
        names = [f'"{c}"' for c in plant_full_profile()[1][table] if c not in columns] or [
            "1 AS one"
        ]
        edit_database(paths[0], *rebuild_table(table, ", ".join(names)))

    assert check(paths, "nsys", ("META_DATA",)) == "same"


@pytest.mark.parametrize(("way", "form", "table", "column"), COLUMNS, ids=remove_guid)
def test_a_lost_column_is_reported_or_changes_nothing(
    way: str, form: str, table: str, column: str, tmp_path: Path
) -> None:
    """A dropped column is named in the message. An empty column is reported in any words."""
    paths = write_full_profile(tmp_path, form)
    names = [f'"{name}"' for name in plant_full_profile(form)[1][table] if name != column]
    names += [f'NULL AS "{column}"'] if way == "nulls" else [] if names else ["1 AS one"]
    edit_database(paths[0], *rebuild_table(table, ", ".join(names)))

    but = SHOWN_AS_NONE.get((remove_guid(table), column), ()) if way == "nulls" else ()
    # Without a product name, the architecture is shown instead.
    but = ("gpus",) if column == "product_name" else but
    check(paths, form, ("" if way == "nulls" else column,), remedy=form != "nsys", but=but)


@pytest.mark.parametrize("value", ["'text'", "NULL", "1 << 61"])
@pytest.mark.parametrize(
    ("base", "column"),
    [
        *(("kernel_dispatch", name) for name in ("start", "end", "agent_id", "pid")),
        *(("region", name) for name in ("start", "end", "tid")),
        ("event", "stack_id"),
        ("info_process", "pid"),
        ("info_thread", "tid"),
        ("info_agent", "type_index"),
    ],
)
def test_an_impossible_value_is_reported(
    base: str, column: str, value: str, tmp_path: Path
) -> None:
    paths = write_full_profile(tmp_path, "rocpd")
    (table,) = (
        name for name in plant_full_profile("rocpd")[1] if remove_guid(name) == f"rocpd_{base}"
    )
    update = f'UPDATE "{table}" SET "{column}" = {value} WHERE rowid % 3 = 0'
    edit_database(paths[0], *rebuild_table(table), update)

    check(paths, "rocpd", ("",))


ADDED = {
    "columns": [
        f'ALTER TABLE "{table}" ADD COLUMN {name}'
        for table in (KERNEL, RUNTIME, NVTX, "StringIds", "ThreadNames", "TARGET_INFO_GPU")
        for name in ("note TEXT DEFAULT 'mine'", "start_ns INTEGER DEFAULT 7", "process INTEGER")
    ],
    "columns named as row numbers": [
        f"ALTER TABLE {table} ADD COLUMN {name} TEXT DEFAULT 'x'"
        for table in (KERNEL, RUNTIME, NVTX, "StringIds")
        for name in ("RowID", "oid")
    ],
    "tables": [
        "CREATE TABLE mine (start INTEGER, end INTEGER, text TEXT)",
        "INSERT INTO mine VALUES (1, 2, 'F0.0.0')",
        'CREATE TABLE "odd ""name"";--" (x)',
        f"CREATE TABLE {KERNEL}_COPY AS SELECT * FROM {KERNEL}",
        f"CREATE TABLE kernels AS SELECT * FROM {KERNEL}",
    ],
    "indexes": [
        f"CREATE INDEX i1 ON {KERNEL} (correlationId, globalPid)",
        f"CREATE INDEX i2 ON {RUNTIME} (correlationId DESC)",
        f"CREATE INDEX i3 ON {NVTX} (end, start)",
        f"CREATE INDEX i4 ON {NVTX} (eventType, text)",
        f"CREATE UNIQUE INDEX i5 ON {KERNEL} (end DESC, start, streamId, globalPid, deviceId)",
        "CREATE INDEX i6 ON StringIds (value)",
        "ANALYZE",
    ],
    "views": [
        f"CREATE VIEW seen AS SELECT * FROM {KERNEL}",
        f"CREATE VIEW CUPTI_ACTIVITY_KIND_GRAPH_TRACE_V AS SELECT * FROM {RUNTIME}",
        "CREATE VIEW broken AS SELECT thing FROM nowhere",
        "CREATE VIEW endless AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
        "SELECT i FROM n",
        "CREATE VIRTUAL TABLE yours USING rtree(a, b, c)",
    ],
    "a trigger": [f"CREATE TRIGGER t AFTER INSERT ON {NVTX} BEGIN DELETE FROM {KERNEL}; END"],
    "other rows of the NVTX table": [
        f"INSERT INTO {NVTX} (start, end, eventType, text, globalTid) "
        f"SELECT start, NULL, {kind}, 'F0.0.0', globalTid FROM {NVTX} WHERE text IS NOT NULL"
        for kind in (33, 34, 39, 75, 76)
    ],
    "ranges without a name": [
        f"INSERT INTO {NVTX} (start, end, eventType, text, textId, globalTid) "
        f"SELECT start, end, 59, NULL, {text}, globalTid FROM {NVTX} WHERE text IS NOT NULL"
        for text in ("NULL", "-5", "999999999")
    ],
    "both text and textId": [
        "INSERT INTO StringIds VALUES (5, 'F9.9.9')",
        f"UPDATE {NVTX} SET textId = 5 WHERE text IS NOT NULL",
    ],
    "vacuum": ["PRAGMA page_size = 512", "VACUUM"],
}


@pytest.mark.parametrize("addition", ADDED)
def test_tables_and_columns_added_by_users_change_nothing(addition: str, tmp_path: Path) -> None:
    paths = write_full_profile(tmp_path)
    edit_database(paths[0], *ADDED[addition])

    report = bubbleviz.analyze(paths)

    assert collect_facts(report) == collect_facts(analyze_full_profile())
    assert list_gpus(report) == list_gpus(analyze_full_profile())
    assert report.limitations == ()


@pytest.mark.parametrize("order", ["rowid DESC", "(rowid * 7919) % 1009, rowid"])
def test_the_order_of_rows_changes_nothing(order: str, tmp_path: Path) -> None:
    paths = write_full_profile(tmp_path)
    for path in paths:
        for table in (KERNEL, RUNTIME, NVTX, MEMCPY):
            edit_database(path, *rebuild_table(table, order=order))
        for table in ("StringIds", "ThreadNames", "TARGET_INFO_GPU", "TARGET_INFO_SYSTEM_ENV"):
            edit_database(path, *rebuild_table(table, order="rowid DESC"))
    report = bubbleviz.analyze(paths)
    assert collect_facts(report) == collect_facts(analyze_full_profile())
    assert list_gpus(report) == list_gpus(analyze_full_profile())


def analyze_edited_files(folder: Path, *statements: str) -> Report:
    paths = write_full_profile(folder)
    for path in paths:
        edit_database(path, *statements)
    return bubbleviz.analyze(paths)


def test_other_codes_in_an_enum_table_are_used(tmp_path: Path) -> None:
    report = analyze_edited_files(
        tmp_path,
        "UPDATE ENUM_NSYS_EVENT_TYPE SET id = id + 1000",
        f"UPDATE {NVTX} SET eventType = eventType + 1000",
    )

    assert collect_facts(report) == collect_facts(analyze_full_profile())


@pytest.mark.parametrize("name", ["EXPORT_META_DATA", "META_DATA_EXPORT", None])
def test_metadata_is_read_under_either_name(name: str | None, tmp_path: Path) -> None:
    statement = (
        "DROP TABLE META_DATA_EXPORT"
        if name is None
        else f"ALTER TABLE META_DATA_EXPORT RENAME TO {name}"
    )
    if name == "META_DATA_EXPORT":
        statement = "DROP TABLE META_DATA_CAPTURE"
    report = analyze_edited_files(tmp_path, statement)

    assert collect_facts(report) == collect_facts(analyze_full_profile())
    assert {p.schema_version for p in report.profiles} == {None if name is None else "3.25.0"}
    assert {p.nsys_version for p in report.profiles} == {None if name is None else "2026.2.1.210"}


def list_old_exports() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the year of each older export, and statements that give the example its schema."""
    metadata = ("DROP TABLE META_DATA_EXPORT", "DROP TABLE META_DATA_CAPTURE")
    enums = tuple(f"DROP TABLE {t}" for t in plant_full_profile()[1] if t.startswith("ENUM_"))
    kernel = tuple(
        f"ALTER TABLE {KERNEL} DROP COLUMN {c}"
        for c in ("mangledName", "greenContextId", "graphId", "graphNodeId")
    )
    yield (
        "2020",
        (
            *metadata,
            *enums,
            *kernel,
            "DROP TABLE TARGET_INFO_CUDA_DEVICE",
            "ALTER TABLE TARGET_INFO_GPU RENAME COLUMN id TO deviceId",
            *(f"ALTER TABLE TARGET_INFO_GPU DROP COLUMN {c}" for c in ("uuid", "cuDevice")),
            "ALTER TABLE TARGET_INFO_GPU DROP COLUMN busLocation",
            "DROP TABLE TARGET_INFO_SESSION_START_TIME",
        ),
    )
    yield (
        "2022",
        (
            "ALTER TABLE META_DATA_EXPORT RENAME TO EXPORT_META_DATA",
            *enums,
            *kernel,
            "DROP TABLE TARGET_INFO_CUDA_DEVICE",
            "ALTER TABLE TARGET_INFO_SESSION_START_TIME DROP COLUMN systemClockNs",
        ),
    )
    yield "2024", (*kernel[1:], "DROP TABLE META_DATA_CAPTURE")


@pytest.mark.parametrize("year", ["2020", "2022", "2024"])
def test_exports_of_other_years_give_the_same_ratios(year: str, tmp_path: Path) -> None:
    truth = plant(Planting(stages=2, microbatches=3, text="mixed"), tmp_path)
    path = tmp_path / truth.files[0].path
    then = bubbleviz.analyze([path])
    now = bubbleviz.analyze([edit_database(path, *dict(list_old_exports())[year])])

    assert collect_facts(now).operations == collect_facts(then).operations
    assert collect_facts(now).ratios == collect_facts(then).ratios
    assert collect_facts(now).coverage[2:] == collect_facts(then).coverage[2:]
