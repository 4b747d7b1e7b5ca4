"""File formats of instruction costs, as XLA's profile-guided latency estimator reads them.

Each module here defines one ``FORMAT``, chosen by the suffix of a file, as XLA does
(``xla/service/gpu/gpu_hlo_schedule.cc``, ``ReadPGLEProfile``). All hold one message,
``tensorflow.profiler.ProfiledInstructionsProto`` of ``profiled_instructions.proto``::

    costs     = 1, repeated: name = 1 (bytes), cost_us = 2 (double)
    latencies = 2, repeated: source = 1, target = 2 (bytes), latency_us = 3 (double)

Latencies between instructions are not measured here: they are not written, and ignored when read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bubbleviz.errors import InputError
from bubbleviz.model.files import read_bounded
from bubbleviz.registry import discover

#: No file of costs is larger: a million instructions take a tenth of it.
_MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class CostFormat:
    """A file format of costs.

    Attributes:
        suffix: of its files.
        binary: whether it must not go to a terminal.
        write: encodes instructions with their microseconds, in their order.
        read: decodes them, in the order of the file; raises ValueError on other content.
    """

    suffix: str
    binary: bool
    write: Callable[[Mapping[str, float]], bytes]
    read: Callable[[bytes], list[tuple[str, float]]]


def formats() -> tuple[CostFormat, ...]:
    """Return every format."""
    return discover(__name__, "FORMAT", CostFormat)


def format_of(path: str) -> CostFormat:
    """Return the format of a file by its suffix; text for an unknown one."""
    known = {file_format.suffix: file_format for file_format in formats()}
    return known.get(Path(path).suffix, known[".pbtxt"])


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
        costs = format_of(path).read(content)
    except ValueError as error:
        raise InputError(
            f"{path}: holds no instruction costs ({str(error)[:200]}); write one with bubbleviz "
            "pgle, as .pbtxt (text) or .pb (binary)"
        ) from error
    for name, cost_us in costs:
        if not math.isfinite(cost_us) or cost_us < 0:
            raise InputError(
                f"{path}: {name[:60]!r} costs {cost_us} us, which is not a time; write the "
                "file again"
            )
    return dict(costs)
