"""The comparison of two versions finds changed numbers and ignores paths and ids."""

from __future__ import annotations

import base64
import io
import json
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from scripts.comparing.cases import Case, list_cases
from scripts.comparing.differing import (
    CODES,
    Difference,
    Rule,
    diff_of,
    differences_of,
    unexplained_lines,
)
from scripts.comparing.normalizing import lines_of
from scripts.comparing.running import Result, Store

FOLDER = "/home/someone/compared/inputs-00ff00ff/tmpab12_x"
OTHER_FOLDER = "/srv/elsewhere/inputs-1234abcd/tmpqqqqqqqq"


def make_page(document: object) -> bytes:
    """Return a page that contains data and a script, like the HTML output of ``analyze``."""
    packed = base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()
    data = f'<script type="application/octet-stream" id="document">{packed}</script>'
    return f"<html><body><p>text</p>{data}<script>let a = {id(document)}</script></body>".encode()


def make_table(ratio: float) -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(pa.table({"rank": [0, 1], "ratio": [0.25, ratio]}), buffer)
    return buffer.getvalue()


def make_svg(folder: str, number: str) -> bytes:
    return f"<svg><title>{folder}/in/run</title><text>{number}</text></svg>".encode()


#: Two outputs with the same meaning and one with a changed number, for each suffix.
OUTPUTS = {
    "txt": (
        f"bubbleviz 0.1.0 read {FOLDER}/in/a at 2026-01-02 03:04:05\nratio 27.27 %\n".encode(),
        f"bubbleviz 0.2.0 read {OTHER_FOLDER}/in/a at 2027-11-12 13:14:15\nratio 27.27 %".encode(),
        f"bubbleviz 0.1.0 read {FOLDER}/in/a at 2026-01-02 03:04:05\nratio 27.28 %\n".encode(),
    ),
    "json": (
        b'{"version": "0.1.0", "ratio": 0.272727272727272, "path": "a"}',
        b'{"path": "a", "ratio": 0.272727272727273, "version": "0.2.0"}',
        b'{"version": "0.1.0", "ratio": 0.2727273, "path": "a"}',
    ),
    "svg": (make_svg(FOLDER, "27.27"), make_svg(OTHER_FOLDER, "27.27"), make_svg(FOLDER, "27.28")),
    "html": (make_page({"a": 1, "b": 2}), make_page({"b": 2, "a": 1}), make_page({"a": 1, "b": 3})),
    "parquet": (make_table(0.5), make_table(0.5 + 1e-12), make_table(0.5001)),
}


@pytest.mark.parametrize("suffix", OUTPUTS)
def test_a_changed_number_is_found_and_a_changed_path_is_not(suffix: str) -> None:
    first, other_path, other_number = (
        lines_of(f"r.{suffix}", content) for content in OUTPUTS[suffix]
    )

    assert first == other_path
    assert first != other_number
    assert len([line for line in diff_of(first, other_number) if line[0] in "+-"]) == 2


def test_an_output_that_cannot_be_parsed_differs_from_one_that_can() -> None:
    assert lines_of("r.json", b"{") != lines_of("r.json", b"{}")
    assert lines_of("r.html", b"\xff") == lines_of("r.html", b"\xff")


@pytest.mark.parametrize("lines", [10, 10_000])
def test_a_diff_lists_the_changed_lines(lines: int) -> None:
    """Long outputs are compared line by line, because an alignment takes quadratic time."""
    old = [f"line {n}" for n in range(lines)]
    new = [*old[:5], "line five", *old[6:]]

    changed = Difference("case", "file", diff_of(old, new)).changed

    assert changed == ["-line 5", "+line five"]
    assert diff_of(old, [*old[:-2], old[-1], old[-2]])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "work", tmp_path / "work" / "inputs")


def store_result(store: Store, key: str, folder: Path, code: int, **files: bytes) -> Result:
    """Store the result of a case with the given files, and return it."""
    case = Case("analyze/run", ("analyze run",))
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    store.write_result(key, case, [code], folder)
    result = store.read_result(key, case)
    assert result is not None
    return result


def test_exit_codes_and_missing_files_are_differences(store: Store, tmp_path: Path) -> None:
    old = store_result(store, "old", tmp_path / "old", 0, same=b"1", changed=b"2", gone=b"3")
    new = store_result(store, "new", tmp_path / "new", 1, same=b"1", changed=b"9")

    changes = {d.file: d.changed for d in differences_of("analyze/run", old, new, store)}

    assert changes == {
        CODES: ["-[0]", "+[1]"],
        "changed": ["-2", "+9"],
        "gone": ["-3", "+no such file"],
    }
    assert store.read_result("old", Case("analyze/run", ("analyze other",))) is None


def test_a_rule_explains_the_lines_it_names_and_no_others() -> None:
    difference = Difference("analyze/run", "r.txt", [" a", "-ratio 1", "+ratio 2", "-other"])
    rules = [
        Rule(cases="analyze/*", lines="ratio", reason="corrected"),
        Rule(cases="idle/*", reason="of another command"),
        Rule(cases="*", files="*.svg", reason="of another file"),
    ]

    assert unexplained_lines(difference, rules) == ["-other"]
    assert [rule.uses for rule in rules] == [2, 0, 0]


def test_names_of_cases_are_unique_and_real_files_are_optional(tmp_path: Path) -> None:
    for name in ("nsys/plain", "nccl/ring", "operations"):
        (tmp_path / "in" / name).mkdir(parents=True)
    (tmp_path / "real" / "nccl").mkdir(parents=True)
    (tmp_path / "real" / "cases" / "run").mkdir(parents=True)

    planted = [case.name for case in list_cases(tmp_path / "in", None)]
    all_names = [case.name for case in list_cases(tmp_path / "in", tmp_path / "real")]

    assert len(set(all_names)) == len(all_names)
    assert "analyze/real/cases/run" in all_names
    assert "analyze/in/nsys/plain" in planted
    assert not [name for name in planted if "real/" in name]
