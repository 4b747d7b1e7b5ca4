"""Protobuf's encoding: what Google's library writes is read, and any bytes are read or refused."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.sources.xla.wire import Field, MalformedError, Messages, Walk
from tests.support.xla_files import space_type

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
STATS = st.fixed_dictionaries(
    {"metadata_id": INT64},
    optional={
        "int64_value": INT64,
        "double_value": st.floats(allow_nan=False),
        "str_value": st.binary(max_size=200),
        "bytes_value": st.binary(max_size=5),
    },
)
EVENTS = st.lists(
    st.tuples(INT64, INT64, st.none() | INT64, st.lists(STATS, max_size=4)), max_size=8
)


def line(events: list[tuple[int, int, int | None, list[dict[str, object]]]]) -> bytes:
    """Return an XLine with a number, these events, and a name behind them."""
    whole = space_type()().planes.add().lines.add(id=7, display_name=b"behind")
    for kind, offset, duration, stats in events:
        event = whole.events.add(metadata_id=kind, offset_ps=offset)
        if duration is not None:
            event.duration_ps = duration
        for stat in stats:
            event.stats.add(**stat)
    return bytes(whole.SerializeToString())


@given(EVENTS)
def test_columns_are_what_was_written(
    events: list[tuple[int, int, int | None, list[dict[str, object]]]],
) -> None:
    content = line(events)
    walk = Walk(content)
    fields = list(walk.stretches(0, len(content), 4))
    found = [walk.messages(field) for field in fields if field.number == 4]

    assert not walk.cut
    assert [field.value for field in fields if field.number == 1] == [7]
    assert [walk.text(field) for field in fields if field.number == 11] == ["behind"]
    assert sum(map(len, found)) == len(events)
    for messages in found:
        numbers, inner = messages.decoded((1, 2, 3), (4,))
        assert numbers[1].tolist() == [kind for kind, *_ in events]
        assert numbers[2].tolist() == [offset for _, offset, *_ in events]
        assert numbers[3].tolist() == [duration or 0 for _, _, duration, _ in events]
        row, stats = inner[4]
        # One after the other of each event, as they are looked at: by place, then by event.
        order = np.argsort(row, kind="stable").tolist()
        written = [(at, stat) for at, event in enumerate(events) for stat in event[3]]
        names, texts = stats.decoded((1, 4), (5,))
        assert [int(row[at]) for at in order] == [at for at, _ in written]
        assert [int(names[1][at]) for at in order] == [stat["metadata_id"] for _, stat in written]
        assert [int(names[4][at]) for at in order] == [
            stat.get("int64_value", 0) for _, stat in written
        ]
        strings = {int(at): texts[5][1].text(i) for i, at in enumerate(texts[5][0].tolist())}
        expected = [
            bytes(stat["str_value"]).decode("utf-8", "replace") if "str_value" in stat else None  # type: ignore[call-overload]  # it is bytes
            for _, stat in written
        ]
        assert [strings.get(at) for at in order] == expected


@given(EVENTS, st.integers(0, 10_000))
def test_what_is_cut_is_read_up_to_there(
    events: list[tuple[int, int, int | None, list[dict[str, object]]]], length: int
) -> None:
    content = line(events)
    walk = Walk(content[: length % (len(content) + 1)])
    found = 0
    for field in walk.stretches(0, len(walk.content), 4):
        if field.number == 4:
            messages = walk.messages(field)
            found += len(messages)
            messages.decoded((1, 2, 3), (4,))

    behind = len(line([])) - len(b"\x08\x07")
    ends = [len(line(events[: k + 1])) - behind for k in range(len(events))]
    assert found == sum(end <= len(walk.content) for end in ends)


@given(st.binary(max_size=80), st.lists(st.integers(0, 80), max_size=6))
def test_any_bytes_are_read_or_refused(content: bytes, places: list[int]) -> None:
    begin = np.array([min(at, len(content)) for at in places], np.int64)
    end = np.minimum(begin + 20, len(content))
    with suppress(MalformedError):
        Messages(np.frombuffer(content, np.uint8), begin, end).decoded((1, 2), (3, 4))
    with suppress(MalformedError):
        list(Walk(content).stretches(0, len(content), 4))


@pytest.mark.parametrize(
    "content",
    [
        b"\x08" + b"\xff" * 11,  # a number without an end
        b"\x0b",  # a group
        b"\x00\x01",  # a field without a number
        b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a length below 0
        b"\x12\x05a",  # a length over the end
        b"\x09aaa",  # a double cut short
        b"\x08",  # no number
    ],
)
def test_what_is_no_message_is_refused(content: bytes) -> None:
    data = np.frombuffer(content + b"\x08" * 50, np.uint8)
    messages = Messages(data, np.array([0]), np.array([len(content)]))
    with pytest.raises(MalformedError):
        messages.decoded((1,), (2,))
    # Within a file that goes on, a message must end where it says.
    with pytest.raises(MalformedError):
        list(Walk(data.tobytes()).fields(0, len(content)))


def test_long_numbers_and_long_messages() -> None:
    inner = b"\x08\x85\x80\x80\x00" + b"\x10" + b"\xff" * 9 + b"\x01"
    content = b"\x22" + bytes([0x80 | len(inner), 0]) + inner
    walk = Walk(content)
    (field,) = walk.stretches(0, len(content), 4)
    numbers, _ = walk.messages(field).decoded((1, 2), ())

    assert field == Field(4 << 3 | 2, 0, 0, len(content), whole=True)
    assert (numbers[1].tolist(), numbers[2].tolist()) == ([5], [-1])
