"""Damage pages of small SQLite files at random, and hold what the C part reads against SQLite.

The C part is compiled with the address and undefined-behaviour sanitizers of gcc, which end the run
at the first access out of bounds. Where SQLite reads a damaged table without complaint, the C part
must give the same rows or nothing; where SQLite refuses, nothing.

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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bubbleviz.native import library  # the path comes first
from bubbleviz.native.library import Library, load
from bubbleviz.sources.sqlite.pages import MISSING, FileShape, Pages, PageTable, unpacked
from scripts.build_native import compile_library
from scripts.fuzzing.byte_damage import replace_byte

_ROWS = 400
_SANITIZED = "BUBBLEVIZ_SANITIZED"
_EVERYTHING = (-(1 << 63), (1 << 63) - 1)
_MISSING = -(1 << 62)
#: How texts begin that are JSON of one member, and what such a text is where it is plain.
_BEFORE = '{"message":'
_PLAIN = re.compile(_BEFORE + r' ?"([ !#-\[\]-~]+)"\}')


def _made(path: Path, page_bytes: int, chance: random.Random) -> None:
    """Write a file of one table: numbers of all sizes, texts that overflow, deleted rows."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"PRAGMA page_size = {page_bytes}")
        database.execute("CREATE TABLE t (a INT, x BLOB, kind INT, name TEXT, b INT)")
        for _ in range(_ROWS):
            text = "forward " * chance.choice([0, 1, 2, 3, 40, 300])
            text = chance.choice([text, f'{{"message": "{text}"}}'])
            bits = chance.choice([1, 7, 8, 16, 24, 32, 48, 62])
            values = (
                chance.getrandbits(bits),
                b"x" * chance.randrange(9),
                chance.randrange(59, 63),
            )
            database.execute(
                "INSERT INTO t VALUES (?, ?, ?, ?, ?)", (*values, text, -chance.getrandbits(bits))
            )
        database.execute("DELETE FROM t WHERE rowid % 7 = 3")


def _damaged(raw: bytes, page_bytes: int, chance: random.Random) -> bytes:
    damaged = bytearray(raw)
    for _ in range(chance.choice([1, 1, 1, 2, 3, 8])):
        # The first page holds the schema; SQLite alone reads that.
        page = page_bytes * chance.randrange(1, len(raw) // page_bytes)
        at = page + chance.choice([chance.randrange(page_bytes), chance.randrange(40)])
        replace_byte(damaged, at, chance)
    return bytes(damaged)


def _by_sqlite(path: Path) -> list[tuple[object, ...]] | None:
    """Return the rows; None where SQLite refuses."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
        database.text_factory = lambda raw: raw.decode("utf-8", "replace")
        try:
            query = "SELECT a, kind, b, name FROM t ORDER BY rowid"
            return database.execute(query).fetchall()
        except sqlite3.DatabaseError:
            return None


def _some_by_sqlite(path: Path) -> list[list[object]]:
    """Return the numbers of each fifth row."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
        query = "SELECT a, kind, b FROM t WHERE rowid % 5 IN (2, -3) ORDER BY rowid"
        rows = database.execute(query).fetchall()
    return [[_MISSING if value is None else value for value in row] for row in rows]


def _directly(path: Path, page_bytes: int) -> list[list[Any]] | None:
    """Return what is to be expected of these rows as the C part reads it, or None."""
    columns = np.array([(i, MISSING, _MISSING, 0) for i in (0, 2, 4)], np.int64)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        file = FileShape(descriptor, page_bytes, page_bytes, path.stat().st_size // page_bytes)
        pages = PageTable.of(Pages(file), 2, columns, {})
        if pages is None:
            return None
        numbers = pages.rows(*_EVERYTHING)
        some = pages.chosen(np.arange(-3, _ROWS + 9, 5))
        if numbers is not None and (some is None or some.T.tolist() != _some_by_sqlite(path)):
            sys.exit(f"{path}: rows that are chosen by their numbers are others")
        table = partial(pages.named, 3)
        kinds: Any = {"kind": 2, "kinds": (59, 60, 61, 62)}
        lengths: Any = {"start": 0, "end": 4}
        times: Any = lengths | {"thread": 0, "threads": tuple(range(-200, 200))}
        times |= {"shortest": 1, "times": ([-1000, 30], [20, 1000], (0, 2) * 400)}
        every_leaf = table(("*",), **kinds, **times)
        if table(("*ward*", "f*x"), **lengths) and every_leaf:
            long_leaves = table(("*",), **kinds, **times)
            if long_leaves is None or long_leaves[1] != every_leaf[1]:
                sys.exit(f"{path}: leaves with rows that last are skipped")
        table(("*",), **kinds, id=0, ids=None)
        every = table((), before=_BEFORE), table(("*",), **kinds)
    finally:
        os.close(descriptor)
    if numbers is None or None in every:
        return None
    decoded = [unpacked(rows) for rows in every if rows]
    return [
        [
            (*row, None if text < 0 else texts[text])
            for *row, text in zip(*values.tolist(), number.tolist(), strict=True)
        ]
        for values, number, texts in decoded
    ]


def _expected(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Return what the C part must give of rows: plain members of all; those of four kinds."""
    rows = [(*(_MISSING if value is None else value for value in row[:3]), row[3]) for row in rows]
    plain = [_PLAIN.fullmatch(row[3]) if isinstance(row[3], str) else None for row in rows]
    return [
        [(*row[:3], found and found[1]) for row, found in zip(rows, plain, strict=True)],
        [row for row in rows if row[1] in {59, 60, 61, 62} and row[3] is not None],
    ]


def _fuzz(seconds: float, seed: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.sqlite"
        while time.monotonic() < until:
            chance = random.Random(seed)
            page_bytes = chance.choice([512, 512, 1024, 4096, 65536])
            path.unlink(missing_ok=True)
            _made(path, page_bytes, chance)
            raw = path.read_bytes()
            for _ in range(200):
                path.write_bytes(_damaged(raw, page_bytes, chance))
                decoded, rows = _directly(path, page_bytes), _by_sqlite(path)
                counts["files"] += 1
                counts["left to SQLite"] += decoded is None
                counts["refused by SQLite"] += rows is None
                if decoded is not None and decoded != (rows and _expected(rows)):
                    kept = Path(tempfile.gettempdir()) / f"fuzz-{seed}.sqlite"
                    kept.write_bytes(path.read_bytes())
                    sys.exit(f"seed {seed}: what is decoded differs; see {kept}")
            seed += 1
    return counts


def sanitized() -> Library:
    """Return the C part under the sanitizers: compile it, and start the script again with them."""
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
    """Fuzz for some seconds from a seed on."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    functions = sanitized()
    # Decode with this library instead of the installed one.
    library._loaded = lambda: functions  # type: ignore[assignment]  # a plain function will do
    for what, count in _fuzz(seconds, seed).items():
        print(f"{count:10,} {what}")


if __name__ == "__main__":
    main()
