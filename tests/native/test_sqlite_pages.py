"""Pages that SQLite refuses are not decoded, and no offset points outside of the file."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bubbleviz.native import library as native
from bubbleviz.sources.sqlite.pages import (
    UNUSUAL,
    FileShape,
    PackedRows,
    Pages,
    PageTable,
    unpack_rows,
)
from tests.support.compiled import build_library, read_texts
from tests.support.places import CHECKOUT

PAGE = 512
ROOT = 2
EVERYTHING = (-(1 << 63), (1 << 63) - 1)
NUMBER = np.array([(0, UNUSUAL, -1, 0)], np.int64)


def _write_file(
    folder: Path, texts: list[str], edit: Callable[[bytearray], None] | None = None
) -> Path:
    """Write a table with a number column and a text column on page 2, then change its bytes."""
    path = folder / "table.sqlite"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"PRAGMA page_size = {PAGE}")
        db.execute("CREATE TABLE t (number INT, text TEXT)")
        db.executemany("INSERT INTO t VALUES (?, ?)", [(200 + n, t) for n, t in enumerate(texts)])
    if edit:
        raw = bytearray(path.read_bytes())
        edit(raw)
        path.write_bytes(raw)
    return path


@pytest.fixture(autouse=True, scope="module")
def compiled() -> Iterator[None]:
    """Decode with a library that is compiled from the current C source."""
    functions = build_library()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(native.SWITCH, raising=False)
        patch.setattr(native, "_load_once", lambda: functions)
        yield


@contextmanager
def _open_table(path: Path) -> Iterator[PageTable | None]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        file = FileShape(descriptor, PAGE, PAGE, path.stat().st_size // PAGE)
        yield PageTable.from_root(Pages(file), ROOT, NUMBER, {})
    finally:
        os.close(descriptor)


def _decode_columns(path: Path) -> list[tuple[int, str | None]] | None:
    with _open_table(path) as table:
        rows = None if table is None else table.read_named(1, ("*",))
        return _list_rows(rows) if rows else None


def _list_rows(packed: PackedRows) -> list[tuple[int, str | None]]:
    rows = unpack_rows(packed)
    return list(zip(rows[0][0].tolist(), read_texts(rows), strict=True))


def _read_by_sqlite(path: Path) -> list[tuple[int, str]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as db:
        return db.execute("SELECT number, text FROM t").fetchall()


def _get_offset(page: int, byte: int = 0) -> int:
    return (page - 1) * PAGE + byte


def _make_patch(page: int, byte: int, value: bytes) -> Callable[[bytearray], None]:
    def edit(raw: bytearray) -> None:
        raw[_get_offset(page, byte) : _get_offset(page, byte) + len(value)] = value

    return edit


def _shorten_text(raw: bytearray) -> None:
    """Shorten the declared text length of the last record of the root by one byte."""
    cell = _get_offset(
        ROOT, int.from_bytes(raw[_get_offset(ROOT, 5) : _get_offset(ROOT, 7)], "big")
    )
    # The bytes are payload size, row, header size, type of the number, type of the text.
    assert raw[cell + 4] == 13 + 2 * len("forward")
    raw[cell + 4] -= 2


def _clear_leaf(raw: bytearray) -> None:
    child = int.from_bytes(raw[_get_offset(ROOT, 8) : _get_offset(ROOT, 12)], "big")
    _make_patch(child, 3, b"\0\0")(raw)


def _overlap_cells(raw: bytearray) -> None:
    """Write 100 overlapping cells into a page that fits 84 cells of the minimum size."""
    _make_patch(ROOT, 3, (100).to_bytes(2, "big"))(raw)
    for n in range(100):
        pointer_offset = 208 + 3 * n
        # A cell contains the payload size, the row, and the header.
        # The payload of three bytes is only the header.
        cell = bytes((3, n + 1, 3, 9, 13))
        _make_patch(ROOT, 8 + 2 * n, pointer_offset.to_bytes(2, "big"))(raw)
        _make_patch(ROOT, pointer_offset, cell)(raw)


def _lengthen_header(raw: bytearray) -> None:
    cell = _get_offset(
        ROOT, int.from_bytes(raw[_get_offset(ROOT, 5) : _get_offset(ROOT, 7)], "big")
    )
    # The header length of 100,000 takes three bytes.
    # The types of two columns follow.
    raw[cell + 4 : cell + 9] = bytes((0x86, 0x8D, 0x20, 9, 13))


def _repeat_child(raw: bytearray) -> None:
    first = int.from_bytes(raw[_get_offset(ROOT, 12) : _get_offset(ROOT, 14)], "big")
    _make_patch(ROOT, 8, bytes(raw[_get_offset(ROOT, first) : _get_offset(ROOT, first + 4)]))(raw)


MANY = ["forward " * 9] * 30
#: Texts of a table, and changes of its pages that SQLite refuses.
REFUSED: dict[str, tuple[list[str], Callable[[bytearray], None]]] = {
    "a record longer than its columns": (["forward"], _shorten_text),
    "an empty leaf": (MANY, _clear_leaf),
    "a root without keys": (MANY, _make_patch(ROOT, 3, b"\0\0")),
    "more cells than fit": (["forward"], _overlap_cells),
    "a header of 100,000 bytes": (["x" * 120_000], _lengthen_header),
    "a tree that contains itself": (MANY, _make_patch(ROOT, 8, ROOT.to_bytes(4, "big"))),
    "a leaf twice": (MANY, _repeat_child),
    "a page after the last": (MANY, _make_patch(ROOT, 8, b"\xff\xff\xff\xff")),
    "no page": (MANY, _make_patch(ROOT, 8, b"\0\0\0\0")),
    "a page of an index": (["forward"], _make_patch(ROOT, 0, b"\x0a")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_pages_that_sqlite_refuses_are_not_decoded(name: str, tmp_path: Path) -> None:
    texts, edit = REFUSED[name]
    path = _write_file(tmp_path, texts, edit)

    assert _decode_columns(path) is None
    # SQLite accepts the rows of a repeated leaf, but the row numbers are not ascending.
    if name != "a leaf twice":
        with pytest.raises(sqlite3.DatabaseError):
            _read_by_sqlite(path)


@pytest.mark.parametrize("texts", [[], ["forward"], MANY, ["x" * 120_000]], ids=len)
def test_intact_pages_are_decoded(texts: list[str], tmp_path: Path) -> None:
    path = _write_file(tmp_path, texts)

    assert _decode_columns(path) == _read_by_sqlite(path)


#: JSON texts, each with the string that it contains, or None if only SQLite can decode it.
MEMBERS = {
    '{"message": "forward 1 [~]"}': "forward 1 [~]",
    '{"message":"F"}': "F",
    '{"message": " "}': " ",
    f'{{"message": "{"x" * 2_000}"}}': "x" * 2_000,
    **dict.fromkeys(
        (
            "",
            "{}",
            "null",
            '"}',
            '{"message":',
            '{"message":"}',
            '{"message": "}',
            '{"message": ""}',
            '{"message":""}',
            '{"message": 3}',
            '{"message": F"}',
            '{"message": "F"} ',
            ' {"message": "F"}',
            '{"message":  "F"}',
            '{"Message": "F"}',
            '{"message": "F", "other": "B"}',
            '{"message": "F"F"}',
            r'{"message": "F\n"}',
            '{"message": "\t"}',
            '{"message": "\x7f"}',
            '{"message": "é"}',
            '{"message": "\0"}',
        )
    ),
}


def test_the_string_in_json_of_one_member_is_decoded(tmp_path: Path) -> None:
    with _open_table(_write_file(tmp_path, [*MEMBERS])) as table:
        rows = table and table.read_named(1, (), before='{"message":')

    assert rows
    assert [text for _, text in _list_rows(rows)] == [*MEMBERS.values()]


@given(st.lists(st.none() | st.text("aé\0", max_size=20)), st.integers(1, 40))
@example([None], 1)
@example(["", "a", "a" * 8, "a" * 9, "a" * 8 + "\0"], 3)
def test_texts_are_numbered(texts: list[str | None], times: int) -> None:
    raw = [None if text is None else text.encode() for text in texts] * times
    length = np.array([-1 if text is None else len(text) for text in raw], np.int64)
    rows = unpack_rows((length[None], b"".join(filter(None, raw))))

    assert read_texts(rows) == texts * times
    assert len(rows[2]) == len({*texts} - {None})


@pytest.mark.parametrize("form", ["fwd_mb{:02}", "forward_step {}", "F{}.0.0", "layers.{}.fwd"])
def test_names_that_differ_only_in_numbers_are_returned_once(form: str) -> None:
    raw = [form.format(number % 200).encode() for number in range(30_000)]
    length = np.array([len(text) for text in raw], np.int64)

    assert len(unpack_rows((length[None], b"".join(raw)))[2]) == 200


_PIECES = ("abc", "bcd", "a", "b", "-", "]", "^", "é", "\U0010ffff", "\n")
_NAMES = st.lists(st.sampled_from(_PIECES), max_size=6).map("".join)
_WILD = (*_PIECES, "*", "*", "?", "[", "[a-c]", "[^b", "[c-a", "[]-a]", "[^]", "[é-]")


@given(
    st.lists(st.lists(st.sampled_from(_WILD), max_size=6).map("".join), max_size=5),
    st.lists(_NAMES, max_size=9),
)
@example([f"*abc{n}" for n in range(70)], ["abc", "abc40", "abc69", "abc70", "a abc6"])
@example(["*abc*bcd*", "*bcd?abc"], ["abcbcd", "abbcabcdbcd", "bcdabc", "bcdéabc", "bcd"])
@example(["[]x]"], ["]", "x", "[]x]"])
@example(["[]x]*", "[^]F]*"], ["]", "xF", "F", "^"])
def test_patterns_match_as_in_sqlite(globs: list[str], names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = _write_file(Path(folder), names)
        with _open_table(path) as table:
            assert table is not None
            packed = table.read_named(1, globs)
    assert packed is not None
    # Each row contains its row number, from 200 on.
    matching = (packed[0][0] - 200).tolist()

    with closing(sqlite3.connect(":memory:")) as db:
        fits = [[db.execute("SELECT ? GLOB ?", (n, g)).fetchone()[0] for g in globs] for n in names]
    assert matching == [row for row, of_name in enumerate(fits) if any(of_name)]


def test_a_file_that_shrinks_is_not_decoded(tmp_path: Path) -> None:
    path = _write_file(tmp_path, MANY)
    with _open_table(path) as table:
        assert table is not None
        os.truncate(path, 4 * PAGE + 100)
        assert table.read_rows(*EVERYTHING) is None


def test_pages_beyond_four_gigabytes_are_decoded(tmp_path: Path) -> None:
    """The file is sparse.

    Its last page is the only leaf, except for the first child of the root.
    """
    path = _write_file(tmp_path, ["forward"])
    far = (5 << 30) // PAGE
    with path.open("r+b") as file:
        file.seek(_get_offset(ROOT))
        leaf = file.read(PAGE)
        file.seek(_get_offset(far))
        file.write(leaf)
        # The root has one key, smaller than any row, followed by the leaf.
        other = _get_offset(far - 1)
        file.seek(other)
        empty = bytearray(leaf)
        empty[int.from_bytes(leaf[5:7], "big") + 1] = 0
        file.write(empty)
        root = bytearray(PAGE)
        root[:12] = b"\x05\0\0\0\1\1\xfb\0" + far.to_bytes(4, "big")
        root[12:14] = (PAGE - 5).to_bytes(2, "big")
        root[PAGE - 5 :] = (far - 1).to_bytes(4, "big") + b"\0"
        file.seek(_get_offset(ROOT))
        file.write(root)
        file.seek(28)
        file.write(far.to_bytes(4, "big"))

    rows = _decode_columns(path)

    assert rows == _read_by_sqlite(path)
    assert [text for _, text in rows] == ["forward", "forward"]


@pytest.mark.thorough
def test_damaged_pages_are_safe_under_sanitizers() -> None:
    """``python scripts/fuzz_pages.py`` runs the same test for a longer time."""
    build_library()
    done = subprocess.run(
        [sys.executable, str(CHECKOUT / "scripts/fuzz_pages.py"), "1"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "files" in done.stdout
