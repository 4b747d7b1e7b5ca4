"""Arrow tables have the same rows as the columns and files, and null for unknown values."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import bubbleviz
from bubbleviz.count.iterations import make_iteration_records
from bubbleviz.model.arrow import ArrowTable, encode_dictionary
from bubbleviz.model.phases import Phase
from bubbleviz.render import json_document as json_renderer
from bubbleviz.render.formats import csv as csv_renderer
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.planting.options import Planting
from tests.support.drawn_reports import HOSTILE, Op, make_report
from tests.support.places import FIXTURES
from tests.support.planted_runs import analyze_planting

#: Columns whose Arrow values are row numbers, and whose ``--bubbles`` values are names.
LABELS = {"before", "after", "peer_operation"}


@pytest.fixture(scope="module", params=["1f1b", "zb-h2", "zb-v", "late"])
def report(request: pytest.FixtureRequest) -> Report:
    """Return the report of each fixture, and of a run with all causes and truncated iterations."""
    if request.param != "late":
        return bubbleviz.analyze([FIXTURES / request.param])
    run = Planting(
        schedule="1f1b",
        stages=4,
        microbatches=6,
        iterations=3,
        transfer_ns=300_000,
        kernel_gap_ns=3_000,
        jitter=0.3,
        library_depth=2,
        overhead=True,
        copies=True,
    )
    return analyze_planting(run)


def list_tables(report: Report) -> tuple[ArrowTable, ...]:
    return report.operations, report.bubbles, report.iterations


def rows_of_csv(text: str) -> dict[str, list[str]]:
    """Return the columns of a CSV file as text."""
    head, *rows = csv.reader(io.StringIO(text))
    return {name: [row[n] for row in rows] for n, name in enumerate(head)}


def format_cells(values: list[Any]) -> list[str]:
    """Return the text of each value in a CSV file."""
    return ["" if value is None else str(value) for value in values]


def test_an_empty_report_has_empty_tables_of_the_same_columns(report: Report) -> None:
    for empty, full in zip(list_tables(make_report([])), list_tables(report), strict=True):
        assert pa.table(empty).num_rows == 0
        assert pa.table(empty).schema == pa.table(full).schema
        assert pl.DataFrame(empty).shape == (0, pl.DataFrame(full).width)
    for empty_rows in (report.operations.take(slice(0, 0)), report.iterations[:0]):
        assert pa.table(empty_rows).num_rows == 0


def test_a_long_name_is_stored_once() -> None:
    names = pa.array(encode_dictionary(np.zeros(100_000, np.int64), ["n" * 10_000]))

    assert names.nbytes < 1_000_000


def test_whole_numbers_are_not_copied(report: Report) -> None:
    table = pa.table(report.operations)

    for name, attribute in (("host_start_ns", "host_start_ns"), ("active_ns", "active_ns")):
        (chunk,) = table[name].chunks
        assert chunk.buffers()[1].address == getattr(report.operations, attribute).ctypes.data


def test_operations_agree_with_the_csv(report: Report) -> None:
    file = rows_of_csv(csv_renderer.render(report, View()))
    table = pa.table(report.operations)

    columns = [*csv_renderer.list_columns(report)][:15]
    assert table.column_names[: len(columns)] == columns
    file = {name: file[name] for name in columns}
    assert {name: format_cells(table[name].to_pylist()) for name in file} == file


def test_gaps_agree_with_the_csv(report: Report) -> None:
    file = rows_of_csv(csv_renderer.render_bubbles(report, View()))
    table = pa.table(report.bubbles)
    renamed = list(csv_renderer.list_bubble_columns(report))
    shared_columns = {name: cells for name, cells in file.items() if name not in LABELS}

    assert sorted(table.column_names) == sorted(renamed)
    assert {
        name: format_cells(table[name].to_pylist()) for name in shared_columns
    } == shared_columns
    assert len(table) == len(report.bubbles)


def test_an_operation_without_work_has_no_times() -> None:
    report = make_report([Op(0, Phase.F, 0, 0, 10), Op(0, Phase.B, 0, 11, 12, busy=None)])

    table = pa.table(report.operations)

    assert table["start_ns"].to_pylist() == [0, None]
    assert table["end_ns"].to_pylist() == [10, None]
    assert table["host_end_ns"].to_pylist() == [10, 12]


def test_unknown_stages_are_null(report: Report) -> None:
    half = tuple(rank.stage if rank.index % 2 else None for rank in report.ranks)
    operations = replace(report.operations, stages=half)
    bubbles = replace(report.bubbles, operations=operations)

    for table in (operations, bubbles):
        frame = pl.DataFrame(table)
        assert frame["stage"].to_list() == [half[rank] for rank in frame["rank"]]
    assert pa.table(replace(operations, stages=()))["stage"].null_count == len(operations)


def test_iterations_agree_with_the_json(report: Report) -> None:
    iterations = json.loads(json_renderer.render(report, View()))["iterations"]
    table = pa.table(report.iterations)
    primary = table["bubble_ratio"].to_pylist()
    assert primary == table[f"bubble_ratio_{report.headline}"].to_pylist()

    expected = []
    for iteration in iterations:
        row = {}
        for key, value in iteration.items():
            if key in {"ranks", "cause_ns"}:
                continue
            if key == "bubble_interval":
                for name, bounds in value.items():
                    row[f"{key}_low_{name}"], row[f"{key}_high_{name}"] = bounds or (None, None)
            elif isinstance(value, dict):
                row |= {f"{key}_{name}": number for name, number in value.items()}
            else:
                row[key] = value
        expected.append(row)
    assert table.drop_columns("bubble_ratio").to_pylist() == expected


def test_hostile_names_are_values_like_others() -> None:
    report = make_report([Op(0, Phase.F, 0, 0, 10, name=HOSTILE)])
    hostile_iterations = make_iteration_records(replace(i, name=HOSTILE) for i in report.iterations)
    replaced = HOSTILE.replace("\ud800", "?")

    assert pa.table(report.operations)["name"].to_pylist() == [replaced]
    assert pl.DataFrame(report.operations)["name"].to_list() == [replaced]
    assert pa.table(hostile_iterations)["name"].to_pylist() == [replaced]


def test_polars_reads_the_same_as_pyarrow(report: Report) -> None:
    for table in list_tables(report):
        # A table may be read twice.
        assert pl.DataFrame(table).to_dicts() == pa.table(table).to_pylist()
        assert pa.table(table).equals(pa.table(table))


def test_a_requested_schema_is_used(report: Report) -> None:
    schema = pa.table(report.operations).schema
    requested = schema.set(schema.get_field_index("phase"), pa.field("phase", pa.string()))

    table = pa.table(report.operations, schema=requested)

    assert table.schema == requested
    assert table["phase"].to_pylist() == pa.table(report.operations)["phase"].to_pylist()


def test_iterations_are_a_sequence_of_iterations(report: Report) -> None:
    iterations = tuple(report.iterations)

    assert len(report.iterations) == len(iterations) >= 2
    assert report.iterations[0] is iterations[0]
    assert report.iterations[-1] is iterations[-1]
    assert report.iterations[1:] == make_iteration_records(iterations[1:]) == iterations[1:]
    assert iterations[1] in report.iterations
    assert report.iterations != iterations[1:]
    assert report.iterations != list(iterations)
    assert hash(make_iteration_records(())) == hash(make_iteration_records(()))
    assert list(reversed(report.iterations)) == list(reversed(iterations))
    assert not make_iteration_records(())
    with pytest.raises(IndexError):
        report.iterations[len(iterations)]


def test_a_report_and_its_tables_have_a_one_line_representation(report: Report) -> None:
    long_names = make_iteration_records(
        replace(i, name="\n" + "n" * 10_000) for i in report.iterations
    )

    for value in (
        report,
        make_report([]),
        report.operations,
        report.busy,
        report.bubbles,
        long_names,
    ):
        assert len(repr(value)) < 400
        assert repr(value).isprintable()
    assert repr(report).startswith("Report(")
    assert repr(make_report([])) == (
        "Report(schedule bubble ratio unknown, 0 ranks, 0 iterations, 0 operations, 0 limitations)"
    )
    assert f"{len(report.operations):,} operations" in repr(report)


def test_a_table_equals_only_itself(report: Report) -> None:
    for table in (report.operations, report.busy, report.bubbles):
        assert len({table, table.take(slice(0, 1))}) == 2


def test_only_arro3_is_loaded_and_nothing_that_draws() -> None:
    script = (
        "import sys, bubbleviz; report = bubbleviz.analyze(['fixtures/1f1b']);"
        "[t.__arrow_c_stream__() for t in (report.operations, report.bubbles, report.iterations)];"
        "heavy = {'pandas', 'polars', 'pyarrow', 'IPython', 'drawsvg'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=FIXTURES.parent,
    )

    assert done.stdout == "[]\n"
