"""Reads and writes files of instruction costs for XLA's profile-guided latency estimator.

The suffix determines the format, as in XLA (``ReadPGLEProfile`` in
``xla/service/gpu/gpu_hlo_schedule.cc``). Both formats contain one message,
``tensorflow.profiler.ProfiledInstructionsProto`` of ``profiled_instructions.proto``, in protobuf's
text format or wire format.

Latencies between instructions are not measured, so they are neither written nor read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.text_format import MessageToString, Parse, ParseError

from bubbleviz.errors import InputError
from bubbleviz.model.files import read_bounded
from bubbleviz.sources.xla.xspace import build_message_types

#: Maximum size of a cost file in bytes, about ten times the size of a file with a million
#: instructions.
_MAX_BYTES = 1 << 30


@cache
def _make_message() -> Any:
    messages = {"Costs": "1 costs Cost*", "Cost": "1 name bytes, 2 cost_us double"}
    return build_message_types("pgle", **messages)["Costs"]


def _encode_text(message: Any) -> bytes:
    """Encode a message as text with one line per instruction, like ``pgo_nsys_converter.py``."""
    lines = (f"costs {{ {MessageToString(c, as_one_line=True)} }}\n" for c in message.costs)
    return "".join(lines).encode("ascii")


def _decode_text(content: bytes) -> Any:

    return Parse(content, _make_message()(), allow_unknown_field=True)


#: Encoder and decoder of each format, keyed by suffix. Files with any other suffix contain text.
FORMATS: Mapping[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "pbtxt": (_encode_text, _decode_text),
    "pb": (lambda costs: costs.SerializeToString(), lambda c: _make_message().FromString(c)),
}


def encode_costs(costs: Mapping[str, float], form: str) -> bytes:
    """Encode costs as file content, keeping the order of the instructions.

    Args:
        costs: Costs in microseconds, keyed by instruction.
        form: Format of the file, a key of :data:`FORMATS`.
    """
    message = _make_message()()
    for name, cost_us in costs.items():
        message.costs.add(name=name.encode("utf-8", errors="replace"), cost_us=cost_us)
    return FORMATS[form][0](message)


def read_costs(path: str) -> Mapping[str, float]:
    """Read the cost of each instruction in microseconds.

    If an instruction has several entries, the last entry is used, as in
    ``xla/service/profile_guided_latency_estimator.cc``.

    Raises:
        InputError: The file cannot be read, or is not a cost file.
    """
    content = read_bounded(
        path, _MAX_BYTES, "instruction costs", "pass a file written by bubbleviz pgle"
    )

    try:
        message = FORMATS.get(Path(path).suffix[1:].lower(), FORMATS["pbtxt"])[1](content)
    except (DecodeError, ParseError, ValueError) as error:
        raise InputError(
            f"{path}: contains no instruction costs ({str(error)[:200]}); write a cost file with "
            "bubbleviz pgle, as .pbtxt (text) or .pb (binary)"
        ) from error
    costs = {}
    for cost in message.costs:
        name = cost.name.decode("utf-8", errors="replace")
        if not math.isfinite(cost.cost_us) or cost.cost_us < 0:
            raise InputError(
                f"{path}: {name[:60]!r} has a cost of {cost.cost_us} us, which is not a valid "
                "time; write the file again"
            )
        costs[name] = cost.cost_us
    return costs
