"""Content of the interactive report as a file, and escaping of hostile names."""

from __future__ import annotations

import base64
import json
import os
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bubbleviz.api.analysis import analyze
from bubbleviz.cli.app import main
from bubbleviz.errors import InputError, OutputError
from bubbleviz.render.extras import check_installed
from bubbleviz.render.json_document import make_document
from bubbleviz.render.web import page as html
from bubbleviz.render.web import page as web_page
from bubbleviz.render.web.shards import LENGTHS
from bubbleviz.report.published_paths import make_paths_relative
from bubbleviz.report.report import Report
from bubbleviz.report.saved import read_summary
from bubbleviz.report.summarizing import summarize
from bubbleviz.report.summary import RunSummary
from bubbleviz.report.timeline import MAX_SAVED_OPERATIONS, read_timeline
from bubbleviz.report.view import View
from tests.support.drawn_reports import make_report, rename_all
from tests.support.hostile import HOSTILE
from tests.support.pipeline_jobs import Job, simulate_job
from tests.support.places import FIXTURES

EMPTY = make_report([])
ONE = FIXTURES / "1f1b"
SMALL = analyze(ONE)


class Elements(HTMLParser):
    """The elements of a page, and the text of elements that have an id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._id = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._id = dict(attrs).get("id") or ""

    def handle_data(self, data: str) -> None:
        self.texts[self._id] = self.texts.get(self._id, "") + data


def unpack_page(page: str) -> tuple[dict[str, Any], dict[str, tuple[int, dict[str, list[int]]]]]:
    """Return the JSON document of a page, and the (number of rows, columns) of its tables."""
    texts = Elements(page).texts
    parts = (zlib.decompress(base64.b64decode(texts[name])) for name in ("document", "columns"))
    text, columns = parts
    offset = 4 + int.from_bytes(columns[:4], "little")
    tables: dict[str, tuple[int, dict[str, list[int]]]] = {}
    for table, (rows, widths) in json.loads(columns[4:offset]).items():
        tables[table] = rows, {}
        for name, width in widths.items():
            planes = np.frombuffer(columns, np.uint8, rows * width, offset).reshape(width, rows)
            folded = (planes.astype(np.int64).T << 8 * np.arange(width)).sum(axis=1)
            steps = (folded >> 1) ^ -(folded & 1)
            tables[table][1][name] = (steps if name in LENGTHS else np.cumsum(steps)).tolist()
            offset += rows * width
    assert offset == len(columns)
    return json.loads(text), tables


# Tests of empty reports.


def test_an_empty_report_is_a_page() -> None:
    page = html.render(EMPTY, View())
    document, tables = unpack_page(page)

    assert page.startswith("<!doctype html>")
    assert tables["operations"][0] == 0
    assert document["shown"] is None


def test_a_page_opens_where_the_ranks_of_the_advice_are_slow(tmp_path: Path) -> None:
    slow = Job(slows={2: (1.5, 2)}, iterations=4)
    report = analyze(simulate_job(slow).written(tmp_path / "operations.csv"))
    saved = summarize(report)

    assert saved.typical_iteration in {0, 1}
    for page in (html.render(report, View()), html.render_saved("saved", saved)):
        assert unpack_page(page)[0]["shown"] in {2, 3}


# Tests of the content.


def test_the_numbers_are_those_of_the_json() -> None:
    document, _ = unpack_page(html.render(SMALL, View()))
    expected = json.loads(json.dumps(make_document(make_paths_relative(SMALL))))

    assert document["report"].pop("timeline") is None
    assert expected.pop("timeline") is not None
    if expected["critical_path"]:
        expected["critical_path"]["slack"] = None
    assert document["report"] == expected


def test_the_columns_are_those_of_the_operations() -> None:
    document, tables = unpack_page(html.render(SMALL, View()))
    (_, operations), expected = tables["operations"], SMALL.operations

    assert operations["rank"] == expected.rank.tolist()
    assert operations["phase"] == expected.phase.tolist()
    base_ns = int(document["base_ns"])
    assert [time + base_ns for time in operations["start_ns"]] == expected.start_ns.tolist()
    assert operations["length_ns"] == (expected.end_ns - expected.start_ns).tolist()


# Tests of hostile names.


@pytest.mark.parametrize("text", [*HOSTILE, "</script><script>alert(1)</script>", "\ud800"])
def test_names_are_not_markup(text: str) -> None:
    plain, hostile = (
        Elements(html.render(report, View())) for report in (SMALL, rename_all(SMALL, text))
    )

    assert hostile.tags == plain.tags


def test_the_page_requests_nothing_from_the_network() -> None:
    page = html.render(SMALL, View())
    elements = Elements(page)
    addresses = [
        attributes[name]
        for _, attributes in elements.tags
        for name in ("src", "href")
        if name in attributes
    ]

    assert {address for address in addresses if not str(address).startswith("#")} == {"data:,"}
    assert "default-src 'none'" in page
    assert "@import" not in page
    assert not re.search(r"url\((?!data:|#)", elements.texts[""][:20_000])


# Tests of the command line.


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    file = tmp_path / "r.html"

    with pytest.raises(OutputError, match=r"pip install '\.\[html\]'"):
        check_installed("vl_convert")
    assert main(["analyze", str(ONE), "--html", str(file)]) == 1
    assert not file.exists()


def test_the_command_is_in_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Run near the page, because a relative path from elsewhere may contain the whole folder path.
    working_folder = tmp_path / "here"
    working_folder.mkdir()
    monkeypatch.chdir(working_folder)
    file = tmp_path / "a page.html"
    assert main(["analyze", str(ONE), "--html", str(file)]) == 0
    capsys.readouterr()

    document, _ = unpack_page(file.read_text(encoding="utf-8"))
    profile, page = os.path.relpath(ONE), os.path.relpath(file)
    assert document["command"] == f"bubbleviz analyze {profile} --html '{page}'"
    assert str(tmp_path) not in document["command"]


# Tests of saved reports.


def written_and_read(tmp_path: Path, report: Report) -> tuple[str, RunSummary]:
    from bubbleviz.render import json_document as json_renderer

    file = tmp_path / "report.json"
    file.write_text(json_renderer.render(report, View()), encoding="utf-8")
    return str(file), read_summary(str(file))


def test_a_saved_report_is_the_same_page(tmp_path: Path) -> None:
    from_saved, direct = (
        unpack_page(page)
        for page in (
            html.render_saved(*written_and_read(tmp_path, make_paths_relative(SMALL))),
            html.render(SMALL, View()),
        )
    )
    assert from_saved == direct


def test_a_large_report_is_saved_without_its_timeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "bubbleviz.report.summarizing.MAX_SAVED_OPERATIONS", len(SMALL.operations) - 1
    )
    path, saved = written_and_read(tmp_path, SMALL)

    assert MAX_SAVED_OPERATIONS >= 20_000
    assert saved.timeline is None
    assert unpack_page(html.render_saved(path, saved))[1]["operations"][0] == 0


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("operations", "rank", [99]),
        ("bubbles", "cause", [99]),
        ("compute", "operation", [-2]),
        ("operations", "start_ns", [2**70]),
        ("operations", "phase", None),
        ("operations", "rank", ["0"]),
    ],
)
def test_a_timeline_that_contradicts_itself_is_refused(
    table: str, column: str, value: list[int] | None, tmp_path: Path
) -> None:
    path, _ = written_and_read(tmp_path, SMALL)
    values = json.loads(Path(path).read_text(encoding="utf-8"))
    tables = values["timeline"]["tables"]
    if value is None:
        del tables[table][column]
    else:
        tables[table][column] = value * len(tables[table][column])
        assert tables[table][column]
    Path(path).write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(
        InputError,
        match=r"its timeline .*; write the report again with|report \(timeline.tables",
    ):
        read_timeline(path, read_summary(path))


@pytest.mark.parametrize(
    "notice",
    [
        "vega-lite (BSD-3-Clause)",
        "vega-embed (BSD-3-Clause)",
        "Mike Bostock",
        "semver (ISC)",
        "Simon Lydell",
    ],
)
def test_the_page_contains_the_licenses_of_its_libraries(notice: str) -> None:
    page = web_page.fill_template("", "")

    assert notice in page
    assert page.index(notice) < page.index("vegaEmbed")
