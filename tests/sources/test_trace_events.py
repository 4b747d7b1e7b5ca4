"""The stream of trace events does not depend on the file's layout, and tolerates damage."""

from __future__ import annotations

import gzip
import json
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bubbleviz.errors import ProfileError
from bubbleviz.sources import gzip_files, trace_events
from bubbleviz.sources.trace_events import MISSING, TraceFile, read_times_ns


class _Args(msgspec.Struct):
    correlation: int | None = None
    name: str | None = None


class _Event(NamedTuple):
    ph: str
    name: str
    start_ns: int | None
    duration_ns: int | None
    correlation: int | None


Read = tuple[list[_Event], TraceFile[_Args]]


def _read(path: Path) -> Read:
    events_read = []
    file = TraceFile(str(path), _Args)
    for events in file.blocks():
        texts = file.texts.values
        numbers = (events.start_ns, events.duration_ns, events.arguments["correlation"])
        optional_numbers = ([None if n == MISSING else n for n in c.tolist()] for c in numbers)
        words = ([texts[n] for n in column.tolist()] for column in (events.ph, events.name))
        events_read += [_Event(*event) for event in zip(*words, *optional_numbers, strict=True)]
    return events_read, file


def _read_content(tmp_path: Path, content: bytes) -> Read:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    return _read(path)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read files in small blocks, so that events cross the boundaries of blocks."""
    for name, size in {"BLOCK": 40, "_MAX_BOUNDARY_DISTANCE": 60}.items():
        monkeypatch.setattr(trace_events, name, size)
    monkeypatch.setattr(gzip_files, "_PACKED_BYTES", 10)


@pytest.mark.parametrize(
    "content", [b"[]", b"[ ]\n", b'{"traceEvents": []}', b'{"traceEvents":[{}]}']
)
def test_an_empty_trace_has_no_events(tmp_path: Path, content: bytes) -> None:
    events, file = _read_content(tmp_path, content)

    assert [e.ph for e in events] in ([], [""])
    assert (file._n_malformed, file.cut, [*file.limitations()]) == (0, False, [])


_NO_DOCUMENT, _NO_EVENT = (
    "JSON without traceEvents",
    "JSON without trace events, so it is not a trace",
)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        *((text, _NO_DOCUMENT) for text in (b"{}", b'{"events": []}', b'"traceEvents"')),
        (b"{", "the JSON is cut short before traceEvents"),
        *((text, _NO_EVENT) for text in (b"[1,2,3]", b"[null]", b'["a"]', b"[[]]", b"[[1], [2]]")),
        *((text, _NO_EVENT) for text in (b"[{}]", b'[{"id": 1}]', b'[{"name": "a", "ts": 1}, 2]')),
        *((text, _NO_EVENT) for text in (b"[", b"[1", b"[" * 10, b"[" * 200_000, b"[garbage")),
        *((text, _NO_EVENT) for text in (b'{"traceEvents": [1, 2]}', b'{"traceEvents": ["X"]}')),
        (b"[" + b"1," * 100_000 + b"1]", _NO_EVENT),
        *((text, "") for text in (b'[{"ph": "X"}]', b'[1, {"ph": "X"}]', b'[{}, {"ph": "X"}, {')),
    ],
)
def test_a_list_with_a_single_event_is_a_trace(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    if expected:
        with pytest.raises(ProfileError, match=expected):
            _read_content(tmp_path, content)
    else:
        assert _read_content(tmp_path, content)[0][-1].ph == "X"


_TRICKY = st.sampled_from(
    ["a", '"', "\\", "},{", '}, {"ph": "X"}', "]", "\n", "é😀", '{"name":', "[[", "\x00"]
)
_NAMES = st.lists(_TRICKY, max_size=3).map("".join)
_EVENTS = st.lists(
    st.fixed_dictionaries(
        {"ph": st.just("X"), "name": _NAMES},
        optional={
            "ts": st.integers(0, 1 << 42).map(lambda n: n / 1024),
            "dur": st.integers(0, 99),
            "args": st.fixed_dictionaries(
                {},
                optional={
                    "correlation": st.integers(0, 1 << 40),
                    "name": _NAMES,
                    "Input Dims": st.just([[1, 2], []]),
                    "list": st.just([{"name": "x"}, {"ph": "X"}]),
                },
            ),
        },
    ),
    max_size=12,
)


@pytest.mark.usefixtures("small_blocks")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=_EVENTS,
    indent=st.sampled_from([None, 1]),
    separators=st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :")]),
    tail=st.booleans(),
    zipped=st.booleans(),
)
def test_written_events_are_read_back(
    tmp_path: Path,
    events: list[dict[str, Any]],
    indent: int | None,
    separators: tuple[str, str],
    tail: bool,
    zipped: bool,
) -> None:
    document: dict[str, Any] = {"schemaVersion": 1, "traceEvents": events}
    if tail:
        document |= {"traceName": "},{", "x": [{"a": 1}, {"b": 2}], "baseTimeNanoseconds": 17}
    text = json.dumps(document, indent=indent, separators=separators).encode()

    events_read, file = _read_content(tmp_path, gzip.compress(text) if zipped else text)

    assert events_read == [
        _Event(
            "X",
            e["name"],
            round(Fraction(e["ts"]) * 1000) if "ts" in e else None,
            e["dur"] * 1000 if "dur" in e else None,
            e.get("args", {}).get("correlation"),
        )
        for e in events
    ]
    assert (file._n_malformed, file.cut) == (0, False)
    assert dict(file.metadata()) == {**document, "traceEvents": []}


_THREE = json.dumps(
    {
        "a": 1,
        "traceEvents": [{"ph": "X", "name": n, "ts": 1, "args": {"correlation": 2}} for n in "abc"],
        "z": {"q": 2},
    },
    indent=1,
).encode()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("zipped", [False, True])
def test_a_file_cut_anywhere_gives_its_complete_events(tmp_path: Path, zipped: bool) -> None:
    content = gzip.compress(_THREE) if zipped else _THREE
    n_names = -1
    for length in range(len(content)):
        try:
            events, file = _read_content(tmp_path, content[:length])
        except ProfileError:
            assert n_names == -1
            continue
        names = "".join(e.name for e in events)
        assert "abc".startswith(names)
        assert len(names) >= n_names
        n_names = len(names)
        has_list_end = b"]" in _THREE[: 1 if zipped else length]
        assert zipped or file.cut == (not has_list_end)
        assert file._n_malformed == 0
    assert n_names == 3


@pytest.mark.parametrize(
    ("broken", "names", "malformed"),
    [
        (b'{"ph":"X","name":"b" "ts":1}', "ac", 1),
        (b'{"ph":"X","name":"b","args":{"x":}}', "ac", 1),
        (b'{"ph":"X","name":"b\nc"}', "ab\ncc", 0),
        (b'{"ph":"X","name":"b","args":{"x":NaN,"y":-Infinity}}', "abc", 0),
        (b'{"ph":"X","name":"b\xff"}', "ab?c", 0),
        (b'{"ph":"X","name":"b\\ud800"}', "ab?c", 0),
        (b'{"ph":"X","name":"b\\x"}', "ac", 1),
        (b'{"ph":"X","name":7,"ts":"x","pid":[1]}', "ac", 0),
        (b'{"ph":"X","name":"b","args":{"correlation":"x"}}', "abc", 0),
        (b'{"ph":"X","name":"b","args":[1]}', "abc", 0),
        (b'{"ph":"X","name":"b","args":{"correlation":"3\xea"}}', "abc", 0),
        (b'{"ph":"X","name":"b","ts":"1\\udcea"}', "abc", 0),
        (b"17", "ac", 1),
        (b"null", "ac", 1),
        (b",", "ac", 0),
        (b'{"ph":"X","name":"b","args":' + b'{"a":' * 5000 + b"1" + b"}" * 5001, "ac", 1),
        (b'{"ph":"X","name":"b","ts":' + b"9" * 5000 + b"}", "ac", 1),
    ],
)
def test_an_unreadable_event_costs_no_other(
    tmp_path: Path, broken: bytes, names: str, malformed: int
) -> None:
    event = b'{"ph":"X","name":"%c","ts":1.5}'

    events, file = _read_content(
        tmp_path, b"[" + event % b"a" + b"," + broken + b"," + event % b"c" + b"]"
    )

    assert "".join(e.name.encode("utf-8", "replace").decode() for e in events) == names
    assert (file._n_malformed, file.cut) == (malformed, False)


@pytest.mark.parametrize("n_fields", [1, 3000])
@pytest.mark.parametrize(
    "broken",
    [
        '{"ph":"X","name":"b" "ts":1, "args": {"name": "x", "ts": 1}}',
        '{"ph":"X","name":"b\\x","args": {}, "cat": "kernel"}',
        '{"ph":"X","name":b,"args": {"id": 1, "s": {"name": 2}}, "ts": 1}',
        '{"ph":"X","args": {"name": "x"}, "ts": 1, "dur": }',
        '{"ph" "X","args": {"cat": {}, "name": [{"ph": 1}, 2]}, "ts": 1}',
        '{"ph":"X","name":"b","args": {"name": "x"}, "ts": 1',
        '{"ph":"X","name":"b","args" {"name": "x"}, "ts": 1}',
        '{"ph":"X","name":"b" lost\n',
    ],
)
def test_events_that_cannot_be_read_are_counted_once_each(
    broken: str, n_fields: int, tmp_path: Path
) -> None:
    """Objects inside a broken event are not events, and are not counted as further damage."""
    fields = ", ".join(f'"f{number}": {{"name": "x"}}' for number in range(n_fields))
    broken = broken.replace('"ph"', f'{fields}, "ph"', 1) if n_fields > 1 else broken
    readable_event = '{"ph":"X","name":"a","ts":1.5,"args": {"name": "y"}}'
    texts = [text for _ in range(5) for text in (readable_event, broken)]

    events, file = _read_content(
        tmp_path, ("[" + ",\n".join([*texts, readable_event]) + "]").encode()
    )

    assert [event.name for event in events] == ["a"] * 6
    assert file._n_malformed == 5


def test_an_extra_brace_costs_no_event(tmp_path: Path) -> None:
    events, file = _read_content(tmp_path, b'[{"ph":"X","name":"a"}},{"ph":"X","name":"b"}]')

    assert ["".join(event.name for event in events), file._n_malformed] == ["ab", 0]


def test_times_that_a_double_would_round_are_exact(tmp_path: Path) -> None:
    events, _ = _read_content(tmp_path, b'[{"ph":"X","ts":1712195495519695.812,"dur":0.001},{}]')

    assert [(e.start_ns, e.duration_ns) for e in events] == [
        (1712195495519695812, 1),
        (None, None),
    ]


#: Times in microseconds with up to three decimals, in the usual range.
_PLAIN = st.builds(
    lambda whole, decimals: f"{whole}.{decimals}" if decimals else str(whole),
    st.integers(0, (1 << 53) - 1),
    st.text("0123456789", max_size=3),
)
#: Times in rare formats that a double represents exactly.
_RARE = st.one_of(
    st.integers(-(1 << 40), 1 << 40).map(lambda n: str(n / 1024)),
    st.integers(-(1 << 40), 1 << 40).map(lambda n: f'"{n}"'),
    st.integers(0, 1 << 20).map(lambda n: f"{n}E2"),
)


def _round_to_ns(text: str) -> int:
    return MISSING if text == "null" else round(Fraction(text.strip('"')) * 1000)


#: Times that integer arithmetic can read, and times in formats that need a decoder.
_TEXTS = {"plain": _PLAIN, "any": st.one_of(st.integers(0, 1 << 42).map(str), _RARE)}


@pytest.mark.parametrize("form", _TEXTS)
@given(data=st.data())
def test_times_are_rounded_exactly(form: str, data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.just("null") | _TEXTS[form], min_size=1))
    times_us = [msgspec.Raw(text.encode()) for text in texts]

    assert read_times_ns(times_us).tolist() == [_round_to_ns(text) for text in texts]


@pytest.mark.parametrize(
    ("text", "is_time"),
    [
        (f"{(1 << 53) - 1}", True),
        (f"{(1 << 53) - 1}.999", True),
        (f"{1 << 53}", False),
        ("9" * 19, False),
        ("9" * 20, False),
        (str(1 << 64), False),
        ("1e300", False),
        ('"nan"', False),
        (f"-{1 << 53}", False),
        ("-5.25", True),
    ],
)
def test_numbers_beyond_all_times_are_impossible(text: str, is_time: bool) -> None:
    expected_ns = _round_to_ns(text) if is_time else trace_events._NO_TIME_NS

    assert read_times_ns([msgspec.Raw(text.encode())]).tolist() == [expected_ns]


@pytest.mark.parametrize("text", ['"x"', "[1]", "[1, 2]", "{}", '"1,2"', '"1.2.3"', "true", '""'])
@pytest.mark.parametrize("other_values", [[], ["1.5"], ["null"]])
def test_values_that_are_not_numbers_are_not_times(text: str, other_values: list[str]) -> None:
    with pytest.raises(msgspec.ValidationError):
        read_times_ns([msgspec.Raw(each.encode()) for each in (*other_values, text)])


def test_files_that_are_not_traces_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in {"BLOCK": 40, "_MAX_BYTES": 300}.items():
        monkeypatch.setattr(trace_events, name, size)

    with pytest.raises(ProfileError, match="without a complete event"):
        _read_content(tmp_path, b'[{"name": "' + b"endless " * 200)


@pytest.mark.usefixtures("small_blocks")
def test_a_damaged_gzipped_file_gives_what_comes_before_the_damage(tmp_path: Path) -> None:
    names = [f"{n * n:x}" for n in range(500)]
    content = bytearray(gzip.compress(json.dumps([{"name": name} for name in names]).encode()))
    content[1000:1100] = b"\x00" * 100

    events, file = _read_content(tmp_path, bytes(content))

    assert 0 < len(events) < 500
    assert (
        next(note.what for note in file.limitations()) == "the trace after its first damaged byte"
    )
