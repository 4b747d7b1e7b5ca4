"""Randomly damage pages of small SQLite files, and compare what the C part and SQLite read.

The C part is compiled with gcc's address and undefined-behavior sanitizers, which end the run at
the first access out of bounds. If SQLite can read a damaged table, the C part must either return
the same rows or leave the file to SQLite. If SQLite rejects the file, the C part must leave it to
SQLite.

    python scripts/fuzz_pages.py [SECONDS] [SEED]
"""

from __future__ import annotations

import os
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bubbleviz.native import library  # imported after the path is set
from bubbleviz.native.library import Library, load
from bubbleviz.sources.sqlite.pages import MISSING, FileShape, Pages, PageTable, unpack_rows
from scripts.build_native import compile_library
from scripts.fuzzing.byte_damage import replace_byte

_ROWS = 400
_SANITIZED = "BUBBLEVIZ_SANITIZED"
_ALL_ROWIDS = (-(1 << 63), (1 << 63) - 1)
_NULL = -(1 << 62)
#: Start of a text that is a JSON object with one member.
#: The pattern matches the texts that the C part unpacks.
_JSON_START = '{"message":'
_PLAIN_JSON = re.compile(_JSON_START + r' ?"([ !#-\[\]-~]+)"\}')
#: Values of the column ``kind`` that the C part selects.
_KINDS = (59, 60, 61, 62)
_SELECTED: Any = {"kind": 2, "kinds": _KINDS}


def _write_database(path: Path, page_bytes: int, chance: random.Random) -> None:
    """Write a file with one table: numbers of all sizes, overflowing texts and deleted rows."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"PRAGMA page_size = {page_bytes}")
        database.execute("CREATE TABLE t (a INT, x BLOB, kind INT, name TEXT, b INT)")
        for _ in range(_ROWS):
            text = "forward " * chance.choice([0, 1, 2, 3, 40, 300])
            text = chance.choice([text, f'{{"message": "{text}"}}'])
            bits = chance.choice([1, 7, 8, 16, 24, 32, 48, 62])
            first, blob = chance.getrandbits(bits), b"x" * chance.randrange(9)
            row = (first, blob, chance.randrange(59, 63), text, -chance.getrandbits(bits))
            database.execute("INSERT INTO t VALUES (?, ?, ?, ?, ?)", row)
        database.execute("DELETE FROM t WHERE rowid % 7 = 3")


def _damage_pages(raw: bytes, page_bytes: int, chance: random.Random) -> bytes:
    """Replace bytes in any page except the first, whose schema only SQLite reads."""
    damaged = bytearray(raw)
    for _ in range(chance.choice([1, 1, 1, 2, 3, 8])):
        page = page_bytes * chance.randrange(1, len(raw) // page_bytes)
        offset = chance.choice([chance.randrange(page_bytes), chance.randrange(40)])
        replace_byte(damaged, page + offset, chance)
    return bytes(damaged)


def _query(path: Path, sql: str) -> list[tuple[Any, ...]] | None:
    """Return the rows that SQLite reads, or None if it rejects the file."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
        database.text_factory = lambda raw: raw.decode("utf-8", "replace")
        try:
            return database.execute(sql).fetchall()
        except sqlite3.DatabaseError:
            return None


def _read_by_c_part(path: Path, page_bytes: int) -> list[list[Any]] | None:
    """Return the rows that the C part reads, or None if it leaves the file to SQLite.

    Returns:
        All rows with plain JSON texts unpacked, and the rows of the selected kinds with all texts.
    """
    columns = np.array([(column, MISSING, _NULL, 0) for column in (0, 2, 4)], np.int64)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        file = FileShape(descriptor, page_bytes, page_bytes, path.stat().st_size // page_bytes)
        pages = PageTable.from_root(Pages(file), 2, columns, {})
        if pages is None:
            return None
        numbers = pages.read_rows(*_ALL_ROWIDS)
        if numbers is not None:
            _check_chosen_rows(path, pages)
        _check_skipped_leaves(path, pages)
        results = (
            pages.read_named(3, (), before=_JSON_START),
            pages.read_named(3, ("*",), **_SELECTED),
        )
    finally:
        os.close(descriptor)
    if numbers is None or None in results:
        return None
    return [
        [
            (*row, None if text < 0 else texts[text])
            for *row, text in zip(*values.tolist(), text_ids.tolist(), strict=True)
        ]
        for values, text_ids, texts in (unpack_rows(rows) for rows in results if rows)
    ]


def _check_chosen_rows(path: Path, pages: PageTable) -> None:
    """Compare rows that are read by row number with SQLite's rows. End the run if they differ."""
    sql = "SELECT a, kind, b FROM t WHERE rowid % 5 IN (2, -3) ORDER BY rowid"
    expected = [
        [_NULL if value is None else value for value in row] for row in _query(path, sql) or ()
    ]
    selected = pages.read_selected(np.arange(-3, _ROWS + 9, 5))
    if selected is None or selected.T.tolist() != expected:
        sys.exit(f"{path}: rows that are chosen by their numbers differ")


def _check_skipped_leaves(path: Path, pages: PageTable) -> None:
    """Check that leaves with long rows are not skipped. End the run if a leaf is skipped."""
    lengths: Any = {"start": 0, "end": 4}
    times: Any = lengths | {"thread": 0, "threads": tuple(range(-200, 200))}
    times |= {"shortest": 1, "times": ([-1000, 30], [20, 1000], (0, 2) * 400)}
    every_leaf = pages.read_named(3, ("*",), **_SELECTED, **times)
    if pages.read_named(3, ("*ward*", "f*x"), **lengths) and every_leaf:
        long_leaves = pages.read_named(3, ("*",), **_SELECTED, **times)
        if long_leaves is None or long_leaves[1] != every_leaf[1]:
            sys.exit(f"{path}: leaves with long rows are skipped")
    pages.read_named(3, ("*",), **_SELECTED, id=0, ids=None)


def _expect(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Return SQLite's rows in the form that :func:`_read_by_c_part` returns."""
    numbers = [[_NULL if value is None else value for value in row[:3]] for row in rows]
    texts = [row[3] for row in rows]
    messages = [_PLAIN_JSON.fullmatch(text) if isinstance(text, str) else None for text in texts]
    return [
        [(*row, match and match[1]) for row, match in zip(numbers, messages, strict=True)],
        [
            (*row, text)
            for row, text in zip(numbers, texts, strict=True)
            if row[1] in _KINDS and text is not None
        ],
    ]


def _run_fuzzing(seconds: float, seed: int) -> Counter[str]:
    """Compare damaged files for a given time, and end the run at the first difference."""
    counts: Counter[str] = Counter()
    end_s = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.sqlite"
        while time.monotonic() < end_s:
            chance = random.Random(seed)
            page_bytes = chance.choice([512, 512, 1024, 4096, 65536])
            path.unlink(missing_ok=True)
            _write_database(path, page_bytes, chance)
            raw = path.read_bytes()
            for _ in range(200):
                path.write_bytes(_damage_pages(raw, page_bytes, chance))
                decoded = _read_by_c_part(path, page_bytes)
                rows = _query(path, "SELECT a, kind, b, name FROM t ORDER BY rowid")
                counts["files"] += 1
                counts["left to SQLite"] += decoded is None
                counts["refused by SQLite"] += rows is None
                if decoded is not None and decoded != (rows and _expect(rows)):
                    failing_file = Path(tempfile.gettempdir()) / f"fuzz-{seed}.sqlite"
                    failing_file.write_bytes(path.read_bytes())
                    sys.exit(f"seed {seed}: the C part and SQLite differ; see {failing_file}")
            seed += 1
    return counts


def _load_sanitized() -> Library:
    """Return the C part with sanitizers.

    If needed, compile it, and restart the script with them.
    """
    built = os.environ.get(_SANITIZED)
    if built is None:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "libbubbleviz.so"
            flags = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
            if reason := compile_library(target, flags):
                sys.exit(reason)
            command = ["gcc", "-print-file-name=libasan.so"]
            preload = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            environment = {
                **os.environ,
                _SANITIZED: str(target),
                "LD_PRELOAD": preload.strip(),
                "ASAN_OPTIONS": "detect_leaks=0",
            }
            sys.exit(
                subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode
            )
    functions = load(Path(built))
    if functions is None:
        sys.exit(f"{built} cannot be loaded")
    return functions


def main() -> None:
    """Fuzz for the given number of seconds, starting with the given seed."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    functions = _load_sanitized()
    # Decode with the sanitized library instead of the installed one.
    library._load_once = lambda: functions  # type: ignore[assignment]  # a function without a cache
    for outcome, count in _run_fuzzing(seconds, seed).items():
        print(f"{count:10,} {outcome}")


if __name__ == "__main__":
    main()
