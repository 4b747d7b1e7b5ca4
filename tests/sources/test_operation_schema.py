"""The schema of operations covers the documented columns and the columns of reports."""

from __future__ import annotations

import re

import polars

from bubbleviz.api.analysis import analyze
from bubbleviz.render.formats.csv import list_columns
from bubbleviz.report.operation_columns import build_operation_table
from bubbleviz.sources.operations.schema import COLUMNS, UNITS_NS, CellKind
from tests.support.places import CHECKOUT, FIXTURES

GUIDES = CHECKOUT / "bubbleviz" / "guides"
#: A derived column, which is written for users and ignored by readers.
DERIVED = {"busy_ns"}


def test_the_guide_names_every_column_and_no_other() -> None:
    text = (GUIDES / "tables.md").read_text(encoding="utf-8")
    sections = text.partition("## Columns")[2].partition("## Events of a tracer")[0]
    table = re.findall(r"^\| (`.+?) \|", sections, re.MULTILINE)
    table_columns = {name for cell in table for name in re.findall(r"`(\w+)`", cell)}
    mentioned_columns = set(re.findall(r"`(\w+)`", sections))

    assert table_columns <= set(COLUMNS)
    assert sorted(set(COLUMNS) - mentioned_columns) == []


def test_all_columns_that_reports_write_can_be_read() -> None:
    report = analyze(FIXTURES / "1f1b")

    assert set(list_columns(report)) - set(COLUMNS) == DERIVED
    assert {*polars.DataFrame(build_operation_table(report)).columns} - set(COLUMNS) == DERIVED


def test_names_of_times_end_in_their_unit() -> None:
    for name, column in COLUMNS.items():
        suffix = name.rpartition("_")[2]
        assert (column.unit == suffix) == (suffix in UNITS_NS)
        assert column.meaning
        if column.kind is CellKind.TIME:
            assert column.unit
