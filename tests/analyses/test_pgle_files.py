"""Files of instruction costs: what protobuf reads and writes, hostile names, broken files."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.analyses.pgle.files import format_of, formats, pb, pbtxt, read_costs
from bubbleviz.errors import InputError

HOSTILE = {
    'a" cost_us: 1 } costs { name: "b': 1.0,
    "new\nline\r\ttab": 2.0,
    "nul\x00byte": 3.0,
    "back\\slash'\"": 4.0,
    "<script>alert(1)</script>": 5.0,
    "=1+1": 6.0,
    "größe 漢字 😀": 7.0,
    "x" * 10_000: 8.0,
    "\x7f\x1b[2J": 9.0,
    "": 10.0,
}


#: As profiled_instructions.proto has it.
FILE = """
name: "profiled_instructions.proto" package: "tensorflow.profiler" syntax: "proto3"
message_type {
  name: "ProfiledInstructionsProto"
  nested_type { name: "InstructionCost"
    field { name: "name" number: 1 type: TYPE_BYTES label: LABEL_OPTIONAL }
    field { name: "cost_us" number: 2 type: TYPE_DOUBLE label: LABEL_OPTIONAL } }
  nested_type { name: "Latency"
    field { name: "source" number: 1 type: TYPE_BYTES label: LABEL_OPTIONAL }
    field { name: "target" number: 2 type: TYPE_BYTES label: LABEL_OPTIONAL }
    field { name: "latency_us" number: 3 type: TYPE_DOUBLE label: LABEL_OPTIONAL } }
  field { name: "costs" number: 1 type: TYPE_MESSAGE label: LABEL_REPEATED
    type_name: ".tensorflow.profiler.ProfiledInstructionsProto.InstructionCost" }
  field { name: "latencies" number: 2 type: TYPE_MESSAGE label: LABEL_REPEATED
    type_name: ".tensorflow.profiler.ProfiledInstructionsProto.Latency" }
}
"""


def message() -> Any:
    """Return an empty ProfiledInstructionsProto."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(FILE, descriptor_pb2.FileDescriptorProto()))
    found = pool.FindMessageTypeByName("tensorflow.profiler.ProfiledInstructionsProto")
    return message_factory.GetMessageClass(found)()


def filled(costs: dict[str, float]) -> Any:
    whole = message()
    for name, cost_us in costs.items():
        whole.costs.add(name=name.encode(), cost_us=cost_us)
    return whole


def told(whole: Any) -> list[tuple[str, float]]:
    return [(cost.name.decode(), cost.cost_us) for cost in whole.costs]


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
costs_of_any_name = st.dictionaries(names, st.floats(0, allow_infinity=False), max_size=6)


@given(costs_of_any_name)
def test_protobuf_reads_what_is_written(costs: dict[str, float]) -> None:
    as_text, as_bytes = message(), message()

    text_format.Parse(pbtxt.write(costs), as_text)
    as_bytes.ParseFromString(pb.write(costs))

    assert told(as_text) == told(as_bytes) == list(costs.items())
    assert pb.write(costs) == filled(costs).SerializeToString()


@given(costs_of_any_name)
def test_what_protobuf_writes_is_read(costs: dict[str, float]) -> None:
    whole = filled(costs)
    whole.latencies.add(source=b"a }", target=b"<b", latency_us=2.5)

    for one_line in (False, True):
        text = text_format.MessageToString(whole, as_one_line=one_line).encode()
        assert pbtxt.read(text) == list(costs.items())
    assert pbtxt.read(text_format.MessageToString(whole, as_utf8=True).encode()) == list(
        costs.items()
    )
    assert pb.read(whole.SerializeToString()) == list(costs.items())


def test_hostile_names_stay_names() -> None:
    text = pbtxt.write(HOSTILE)
    whole = message()
    text_format.Parse(text, whole)

    assert format_of("a.pb") is pb.FORMAT
    assert format_of("a.pbtxt") is format_of("a.txt") is format_of("-") is pbtxt.FORMAT
    assert told(whole) == list(HOSTILE.items())
    assert pbtxt.read(text) == pb.read(pb.write(HOSTILE)) == list(HOSTILE.items())
    assert text.count(b"\n") == len(HOSTILE)
    assert text.isascii()
    assert all(byte == 10 or 32 <= byte < 127 for byte in text)


@pytest.mark.parametrize(
    "text",
    [
        'costs { name: "a" cost_us: 1.5 }',
        'costs: { name: "a", cost_us: 1.5; };',
        "costs < name: 'a' cost_us: 15e-1 >",
        '# a comment }\ncosts {\n  name: "" "\\x61"  # more\n  cost_us: 1.5f\n}\n',
        'costs { cost_us: 0.015e+2 name: "\\141" other: [1, -2] more { x: "}" "{" } }',
        'latencies { source: "a" latency_us: -1 } costs { name: "\\u0061" cost_us:1.5 }',
    ],
)
def test_text_may_be_written_otherwise(text: str) -> None:
    assert pbtxt.read(text.encode()) == [("a", 1.5)]
    # Protobuf writes no default.
    assert pbtxt.read(text.encode() + b" costs { }") == [("a", 1.5), ("", 0.0)]


@pytest.mark.parametrize(
    "text",
    [
        *("costs", "costs {", "costs { cost_us: }", "costs { cost_us: -", "other", "other: }"),
        *("other: {", "{}", "1: 2", "\x00", '{"schema": "bubbleviz.report/1"}'),
        "costs { name: a cost_us: 1 }",
        *(f"costs {{ name: {name} cost_us: 1 }}" for name in ("a", '"a', '"\\q"')),
        'costs { name: "a" cost_us: 1 } }',
        *(f'costs {{ name: "a" cost_us: {us} }}' for us in ('"1"', "nan", "inf", "-1")),
    ],
)
def test_what_is_no_such_text_is_refused_in_a_sentence(text: str, tmp_path: Path) -> None:
    file = tmp_path / "a.pbtxt"
    with pytest.raises(InputError, match="no such file"):
        read_costs(str(file))
    file.write_bytes(text.encode())

    with pytest.raises(InputError, match=r"; write ") as refusal:
        read_costs(str(file))

    assert str(refusal.value).startswith(f"{file}: ")
    assert "\n" not in str(refusal.value)
    for content in (b"\x0a", b"\x0a\x05\x0a", b"\xff" * 12, b"\x03", b"\x02\x00", b"\x09\x00"):
        (tmp_path / "a.pb").write_bytes(content)
        with pytest.raises(InputError, match="holds no instruction costs"):
            read_costs(str(tmp_path / "a.pb"))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    for own in formats():
        with suppress(ValueError):
            assert all(isinstance(name, str) for name, _ in own.read(content))


def test_a_published_file_is_read_as_protobuf_reads_it() -> None:
    data = os.environ.get("BUBBLEVIZ_DATA")
    if not data:
        pytest.skip("BUBBLEVIZ_DATA is not set: no real files here")
    file = Path(data) / "pgle" / "bf16_pgle_16vm.pbtxt"
    whole = message()
    text_format.Parse(file.read_bytes(), whole)

    entries = pbtxt.read(file.read_bytes())
    costs = read_costs(str(file))

    assert entries == told(whole)
    assert (len(entries), len(costs)) == (824, 714)
    assert costs == dict(entries)
    assert b"".join(pbtxt.write(dict([entry])) for entry in entries) == file.read_bytes()
