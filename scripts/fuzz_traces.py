"""Damage traces of PyTorch at random, and hold what the C part reads against msgspec.

The C part is compiled with the address and undefined-behaviour sanitizers of gcc, which end the run
at the first access out of bounds. With it and without it the profile, or the error, is the same.

    python scripts/fuzz_traces.py TRACE.json[.gz]... [--seconds S] [--seed N]
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bubbleviz.errors import BubblevizError  # the path comes first
from bubbleviz.native import library
from bubbleviz.progress import unwatched
from bubbleviz.sources import trace_events
from bubbleviz.sources.in_memory import DecodedFile
from bubbleviz.sources.kineto.profile import read_profile
from scripts.fuzz_pages import sanitized

#: Values that scanners of JSON trip over.
_ODD = (
    *("NaN", "-Infinity", "1e5", "1E-7", "-0", "-0.0", "1.5e3", "9" * 30, "01", "1.", "-", "+1"),
    *("null", "true", "[]", "{}", "[[[[]]]]", '{"a":{"b":[1,{"c":"}, {"}]}}', '""', '" 7"', '"7"'),
    *(r'"\u0041"', r'"\ud83d\ude00"', r'"\ud800"', r'"a\"b"', '"a\nb"', '"\xff"', '"\xc3\xa9"'),
    *("18446744073709551615", "-9223372036854775809", "1712195495519695.8125", "0.0005", "0.0015"),
    *("8796093022208.0005", "4503599627370496.5", '"kernel"', '"cuda_sync"', '"X"', '"M"'),
)
_KEYS = (
    *("ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "correlation", "device", "stream"),
    *("External id", "Collective name", "dtype", "Seq", "event_id", r"\u0070h", "x"),
)
_VALUE = re.compile(rb'(?<=:)\s*("(?:[^"\\]|\\.)*"|[-0-9.eE+]+|null|true|false)')
_KEY = re.compile(rb'"(?:[^"\\]|\\.)*"(?=\s*:)')


def _part(traces: Sequence[Mapping[str, Any]], chance: random.Random) -> bytes:
    """Return some events of a trace as a trace."""
    events = chance.choice(traces)["traceEvents"]
    count = chance.choice([3, 10, 40, 150])
    first = chance.randrange(max(len(events) - count, 1))
    layout: dict[str, Any] = chance.choice([{}, {"indent": 1}, {"separators": (",", ":")}])
    part = {"schemaVersion": 1, "traceEvents": events[first : first + count]}
    return json.dumps(part, ensure_ascii=chance.random() < 0.5, **layout).encode()


def _damaged(raw: bytes, chance: random.Random) -> bytes:
    data = bytearray(raw)
    for _ in range(chance.choice([0, 1, 1, 1, 2, 5, 20])):
        at = chance.randrange(len(data))
        value, key = _VALUE.search(data, at), _KEY.search(data, at)
        odd = chance.choice(_ODD).encode("latin-1")
        name = b'"%s"' % chance.choice(_KEYS).encode()
        kind = chance.randrange(6)
        if kind < 2 and value:
            data[value.start(1) : value.end(1)] = odd
        elif kind == 2 and key:
            data[key.start() : key.end()] = name
        elif kind == 3 and key:
            data[key.start() : key.start()] = b"%s:%s," % (name, odd)
        elif kind == 4:
            data[at] = chance.choice([*b'"\\{}[],: \n\x00\x1f\x80\xff0e.-', chance.randrange(256)])
        else:
            del data[at : at + chance.randrange(30)]
        data = data or bytearray(b"[")
    return bytes(data)


def _read(path: Path, switch: str) -> str:
    """Return all that a trace says, with the C part (1) or without it (0), or why it is refused."""
    os.environ[library.SWITCH] = switch
    try:
        file = DecodedFile(lambda: read_profile(str(path), unwatched))
        read = file.read(("*",), partial=True)
        tables = (read.activities, read.ranges, read.collectives, read.memory and read.memory())
        columns = [
            {n: c.tolist() if hasattr(c, "tolist") else c for n, c in vars(table).items()}
            for table in tables
            if table is not None
        ]
        return repr((columns, read.threads, read.limitations, read.source))
    except BubblevizError as error:
        return str(error)


def main() -> None:
    """Fuzz for some seconds from a seed on."""
    options = ArgumentParser()
    options.add_argument("traces", nargs="+", type=Path)
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    functions, counts, seed = sanitized(), Counter[str](), given.seed
    # The library asks this for the compiled part; another one than the installed.
    library._loaded = lambda: functions  # type: ignore[assignment]  # a plain function will do
    raw = [t.read_bytes() for t in given.traces]
    unpacked = [gzip.decompress(r) if r.startswith(b"\x1f\x8b") else r for r in raw]
    traces = [json.JSONDecoder(strict=False).decode(u.decode()) for u in unpacked]
    until = time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.json"
        while time.monotonic() < until:
            chance = random.Random(seed)
            trace_events.BLOCK = chance.choice([1 << 21, 2000])
            path.write_bytes(_damaged(_part(traces, chance), chance))
            decoded, scanned = (_read(path, switch) for switch in "01")
            counts["traces"] += 1
            counts["refused"] += not decoded.startswith("([{")
            if decoded != scanned:
                kept = Path(tempfile.gettempdir()) / f"fuzz-{seed}.json"
                kept.write_bytes(path.read_bytes())
                sys.exit(f"seed {seed}: what is read differs; see {kept}")
            seed += 1
    for what, count in counts.items():
        print(f"{count:10,} {what}")


if __name__ == "__main__":
    main()
