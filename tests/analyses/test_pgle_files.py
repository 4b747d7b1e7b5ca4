"""Files of instruction costs: protobuf compatibility, hostile names, broken files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.analyses.pgle.files import FORMATS, encode_costs, read_costs
from bubbleviz.errors import InputError
from tests.support.needs import get_real_file

HOSTILE = {
    'a" cost_us: 1 } costs { name: "b': 1.0,
    "new\nline\r\ttab": 2.0,
    "nul\x00byte": 3.0,
    "back\\slash'\"": 4.0,
    "=1+1": 6.0,
    "größe 漢字 😀": 7.0,
    "x" * 10_000: 8.0,
    "\x7f\x1b[2J": 9.0,
    "": 0.0,
}
#: Protobuf descriptor of profiled_instructions.proto.
FILE = """
name: "profiled_instructions.proto" package: "tensorflow.profiler" syntax: "proto3"
message_type {
  name: "ProfiledInstructionsProto"
  nested_type { name: "InstructionCost"
    field { name: "name" number: 1 type: TYPE_BYTES label: LABEL_OPTIONAL }
    field { name: "cost_us" number: 2 type: TYPE_DOUBLE label: LABEL_OPTIONAL } }
  nested_type { name: "Latency"
    field { name: "source" number: 1 type: TYPE_BYTES label: LABEL_OPTIONAL } }
  field { name: "costs" number: 1 type: TYPE_MESSAGE label: LABEL_REPEATED
    type_name: ".tensorflow.profiler.ProfiledInstructionsProto.InstructionCost" }
  field { name: "latencies" number: 2 type: TYPE_MESSAGE label: LABEL_REPEATED
    type_name: ".tensorflow.profiler.ProfiledInstructionsProto.Latency" }
}
"""


def test_hostile_names_stay_names_for_xla_and_in_files_with_latencies(tmp_path: Path) -> None:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(FILE, descriptor_pb2.FileDescriptorProto()))
    kind = message_factory.GetMessageClass(
        pool.FindMessageTypeByName("tensorflow.profiler.ProfiledInstructionsProto")
    )
    for form in FORMATS:
        file = tmp_path / f"a.{form.upper()}"  # -o also accepts this suffix
        content = encode_costs(HOSTILE, form)
        message = kind()
        if form == "pb":
            message.ParseFromString(content)
        else:
            text_format.Parse(content, message)
            assert content.count(b"\n") == len(HOSTILE)
            assert all(byte == 10 or 32 <= byte < 127 for byte in content)
        assert {cost.name.decode(): cost.cost_us for cost in message.costs} == HOSTILE
        message.latencies.add(source=b"a }")
        as_text = text_format.MessageToString(message, as_utf8=True).encode()
        file.write_bytes(message.SerializeToString() if form == "pb" else as_text)
        assert read_costs(str(file)) == HOSTILE


@pytest.mark.parametrize(
    "text",
    [
        "costs",
        "costs {",
        "costs { cost_us: }",
        "costs { cost_us: -",
        "other",
        "other: }",
        "{}",
        "\x00",
        '{"schema": "bubbleviz.report/1"}',
        *(f"costs {{ name: {name} cost_us: 1 }}" for name in ("a", '"a')),
        *(f'costs {{ name: "a" cost_us: {us} }}' for us in ('"1"', "nan", "inf", "-1")),
    ],
)
def test_other_texts_are_refused_in_a_sentence(text: str, tmp_path: Path) -> None:
    file = tmp_path / "a.pbtxt"
    with pytest.raises(InputError, match="no such file"):
        read_costs(str(file))
    file.write_bytes(text.encode())

    with pytest.raises(InputError, match=r"; write ") as refusal:
        read_costs(str(file))

    assert str(refusal.value).startswith(f"{file}: ")
    assert "\n" not in str(refusal.value)


@given(st.binary(max_size=60), st.sampled_from([".pb", ".pbtxt"]))
def test_any_bytes_are_read_or_refused(content: bytes, suffix: str) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"a{suffix}"
        file.write_bytes(content)
        with suppress(InputError):
            assert all(cost_us >= 0 for cost_us in read_costs(str(file)).values())


@pytest.mark.real_files
def test_a_published_file_is_read_and_written_again(tmp_path: Path) -> None:
    file = get_real_file("pgle/bf16_pgle_16vm.pbtxt")

    costs = read_costs(str(file))

    assert (file.read_bytes().count(b"\n"), len(costs)) == (824, 714)
    assert set(encode_costs(costs, "pbtxt").splitlines()) <= set(file.read_bytes().splitlines())
    copy = tmp_path / "costs.pb"
    copy.write_bytes(encode_costs(costs, "pb"))
    assert read_costs(str(copy)) == costs
