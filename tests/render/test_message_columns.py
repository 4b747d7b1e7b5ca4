"""Messages written in columns are what protobuf's own library reads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import DebugAnnotation, TrackEvent

from bubbleviz.render.trace.packets import (
    Part,
    eight_bytes,
    message,
    number,
    same_number,
    side_by_side,
)

ANNOTATIONS = TrackEvent.DEBUG_ANNOTATIONS_FIELD_NUMBER
INT = DebugAnnotation.INT_VALUE_FIELD_NUMBER
DOUBLE = DebugAnnotation.DOUBLE_VALUE_FIELD_NUMBER
NAME = DebugAnnotation.NAME_IID_FIELD_NUMBER
INTS = st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300)


def ints(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def read(part: Part) -> TrackEvent:
    event = TrackEvent()
    event.ParseFromString(bytes(part))
    return event


def test_no_messages() -> None:
    for part in (number(1, ints()), same_number(1, 300, 0), eight_bytes(1, ints())):
        assert bytes(part) == b""
        assert bytes(message(7, part)) == b""
        assert bytes(part.where(np.empty(0, bool))) == b""


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**14 - 1, 2**14, 2**63 - 1, -1, -(2**63)])
def test_numbers_of_every_length(value: int) -> None:
    told = DebugAnnotation(int_value=value).SerializeToString()

    assert bytes(number(INT, ints(value))) == told
    if value >= 0:
        assert bytes(same_number(INT, value, 2)) == told + told


@pytest.mark.parametrize("length", [0, 124, 125, 20_000])
def test_messages_of_every_length(length: int) -> None:
    annotation = DebugAnnotation(string_value="a" * length)
    content = np.frombuffer(annotation.SerializeToString(), np.uint8)[None, :]
    part = Part((content,), (np.ones(content.shape, bool),), ints(content.size))

    assert read(message(ANNOTATIONS, part)) == TrackEvent(debug_annotations=[annotation])


@given(st.lists(st.tuples(INTS, st.floats(allow_nan=False), st.booleans(), st.booleans())))
def test_what_the_library_reads(rows: list[tuple[int, float, bool, bool]]) -> None:
    whole = ints(*(row[0] for row in rows))
    fractions = np.array([row[1] for row in rows], np.float64)
    first, second = (np.array([row[n] for row in rows], bool) for n in (2, 3))
    part = side_by_side(
        message(ANNOTATIONS, same_number(NAME, 300, len(rows)), number(INT, whole)).where(first),
        message(ANNOTATIONS, eight_bytes(DOUBLE, fractions).where(second)),
        number(TrackEvent.TRACK_UUID_FIELD_NUMBER, np.arange(len(rows))),
        eight_bytes(TrackEvent.FLOW_IDS_FIELD_NUMBER, np.arange(len(rows))),
    )

    told = TrackEvent()
    for place, (value, fraction, with_value, with_fraction) in enumerate(rows):
        if with_value:
            told.debug_annotations.add(name_iid=300, int_value=value)
        told.debug_annotations.add(**({"double_value": fraction} if with_fraction else {}))
        told.track_uuid = place
        told.flow_ids.append(place)
    assert read(part) == told
