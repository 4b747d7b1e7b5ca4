"""Files of instruction costs, as XLA's profile-guided latency estimator reads them.

The format is chosen by the suffix of a file, as XLA does
(``xla/service/gpu/gpu_hlo_schedule.cc``, ``ReadPGLEProfile``). Both hold one message,
``tensorflow.profiler.ProfiledInstructionsProto`` of ``profiled_instructions.proto``, as protobuf's
text or as its wire format.

Latencies between instructions are not measured here: they are not written, and ignored when read.
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

#: No file of costs is larger: a million instructions take a tenth of it.
_MOST_BYTES = 1 << 30


@cache
def _message() -> Any:
    messages = {"Costs": "1 costs Cost*", "Cost": "1 name bytes, 2 cost_us double"}
    return build_message_types("pgle", **messages)["Costs"]


def _as_text(message: Any) -> bytes:
    """Return one line an instruction, as JAX's ``pgo_nsys_converter.py`` writes them."""
    lines = (f"costs {{ {MessageToString(c, as_one_line=True)} }}\n" for c in message.costs)
    return "".join(lines).encode("ascii")


def _of_text(content: bytes) -> Any:

    return Parse(content, _message()(), allow_unknown_field=True)


#: What encodes a message of costs, and what decodes one; files of another suffix are text.
FORMATS: Mapping[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "pbtxt": (_as_text, _of_text),
    "pb": (lambda costs: costs.SerializeToString(), lambda c: _message().FromString(c)),
}


def written_costs(costs: Mapping[str, float], form: str) -> bytes:
    """Return instructions with their microseconds, in their order, in a format."""
    message = _message()()
    for name, cost_us in costs.items():
        message.costs.add(name=name.encode("utf-8", errors="replace"), cost_us=cost_us)
    return FORMATS[form][0](message)


def read_costs(path: str) -> Mapping[str, float]:
    """Return the microseconds of each instruction of a file; of two entries the last counts.

    So it does in ``xla/service/profile_guided_latency_estimator.cc``.

    Raises:
        InputError: it cannot be read, or is not a cost file.
    """
    content = read_bounded(
        path, _MOST_BYTES, "instruction costs", "name a file that bubbleviz pgle wrote"
    )

    try:
        message = FORMATS.get(Path(path).suffix[1:].lower(), FORMATS["pbtxt"])[1](content)
    except (DecodeError, ParseError, ValueError) as error:
        raise InputError(
            f"{path}: holds no instruction costs ({str(error)[:200]}); write one with bubbleviz "
            "pgle, as .pbtxt (text) or .pb (binary)"
        ) from error
    costs = {}
    for cost in message.costs:
        name = cost.name.decode("utf-8", errors="replace")
        if not math.isfinite(cost.cost_us) or cost.cost_us < 0:
            raise InputError(
                f"{path}: {name[:60]!r} costs {cost.cost_us} us, which is not a time; write the "
                "file again"
            )
        costs[name] = cost.cost_us
    return costs
