"""File formats of instruction costs, as XLA's profile-guided latency estimator reads them.

Each module here defines one ``FORMAT``, told by the ending of a file, as XLA does
(``xla/service/gpu/gpu_hlo_schedule.cc``, ``ReadPGLEProfile``). What they hold is one message,
``tensorflow.profiler.ProfiledInstructionsProto`` of ``profiled_instructions.proto``::

    costs     = 1, repeated: name = 1 (bytes), cost_us = 2 (double)
    latencies = 2, repeated: source = 1, target = 2 (bytes), latency_us = 3 (double)

Latencies between instructions are not measured here: they are not written, and passed over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bubbleviz.errors import InputError
from bubbleviz.registry import discover


@dataclass(frozen=True)
class Format:
    """How costs are written.

    Attributes:
        suffix: ending of its files.
        binary: whether it is nothing for a terminal.
        write: instructions with their microseconds to the content of a file, in their order.
        read: the content of a file to its instructions and microseconds, in its order; raises
            ValueError where it is none.
    """

    suffix: str
    binary: bool
    write: Callable[[Mapping[str, float]], bytes]
    read: Callable[[bytes], list[tuple[str, float]]]


def formats() -> tuple[Format, ...]:
    """Return every format."""
    return discover(__name__, "FORMAT", Format)


def format_of(path: str) -> Format:
    """Return the format of a file by its ending; text where that tells none."""
    known = {own.suffix: own for own in formats()}
    return known.get(Path(path).suffix, known[".pbtxt"])


def read_costs(path: str) -> Mapping[str, float]:
    """Return the microseconds of each instruction of a file; of two entries the last counts.

    That is what ``xla/service/profile_guided_latency_estimator.cc`` takes, too.

    Raises:
        InputError: it cannot be read, or is no such file.
    """
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"{path}: cannot be read ({reason}); name a file of instruction costs"
        ) from error
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
                f"{path}: {name[:60]!r} costs {cost_us} us, which is no time; write the file again"
            )
    return dict(costs)
