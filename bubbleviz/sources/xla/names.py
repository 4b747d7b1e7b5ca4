"""Names in profiles of XLA: what planes, lines and events are called, and what that makes them.

JAX, TensorBoard and TensorFlow write the same thing in two formats (``*.xplane.pb`` and
``*.trace.json.gz``): planes (a device, or a host), in them lines (a stream, a thread, or something
derived), on them events. Sources: ``tsl/profiler/protobuf/xplane.proto`` and
``xla/tsl/profiler/utils/xplane_schema.cc`` (openxla/xla)::

    /device:TPU:0   XLA Modules     ├─jit_step(7)──────────────────┤
                    XLA Ops         ├─fusion.1─┤├─while.2──────────┤
                                                 ├─dot.3─┤├─add.4─┤
                    Async XLA Ops         ├─all-gather-start.5─┤
    /device:GPU:0   Stream #16(Kernel)    ├─gemm──┤├─loop_fusion─┤
    /host:CPU       python          ├─train──────────────────────────┤
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

import numpy as np

from bubbleviz.model.columns import Bools

#: Where JAX and TensorBoard put profiles, below the directory that they are given.
FOLDER = "plugins/profile"
#: Numbers of devices are below this.
MOST_DEVICES = 10_000
_DEVICE = re.compile(r"/device:(GPU|TPU):([0-9]{1,4})(?: \(.*\))?\Z", re.DOTALL)
_STREAM = re.compile(r"Stream #")
#: Lines of a device; all others there are derived from these.
_LINES = {"XLA Ops": "OPS", "Async XLA Ops": "ASYNC", "XLA Modules": "MODULES", "Steps": "STEPS"}
#: Copies and memsets on a GPU's streams, by the names that XLA's profiler gives CUPTI's.
_COPY = re.compile(r"(?:Memcpy|Memset)")
#: An execution of a module: ``jit_step(7)``.
_MODULE = re.compile(r"(.*?)(?:\(([0-9]{1,20})\))?\Z", re.DOTALL)
#: Stands in ``tf_op`` where there is no path.
_NO_PATH = "XlaModule:"
#: Planes of the host that hold no threads.
_NO_THREADS = frozenset(("/host:metadata",))


class Role(Enum):
    """What the events of a line are."""

    NOTHING = "derived, or unknown"
    STREAM = "kernels and copies of a GPU"
    OPS = "instructions, nested ones inside their loops"
    ASYNC = "transfers that run beside instructions"
    MODULES = "executions of modules"
    STEPS = "steps of the training"
    HOST = "events of a thread of the host"


def device_of(plane: str) -> int | None:
    """Return the number of a device's plane; None for others."""
    match = _DEVICE.match(plane)
    return None if match is None else int(match[2])


def accelerator_of(plane: str) -> str:
    """Return what a device's plane is of: ``GPU`` or ``TPU``."""
    match = _DEVICE.match(plane)
    return "GPU" if match is None else match[1]


def roles_of(plane: str, lines: Sequence[str]) -> tuple[Role, ...]:
    """Return the role of each line of a plane.

    A GPU's own records are its streams; ``XLA Ops`` and ``XLA Modules`` of a GPU are made from
    them, and would count everything twice.
    """
    if device_of(plane) is None:
        host = plane.startswith("/host:") and plane not in _NO_THREADS
        return (Role.HOST if host else Role.NOTHING,) * len(lines)
    streams = [_STREAM.match(line) is not None for line in lines]
    if any(streams):
        return tuple(Role.STREAM if stream else Role.NOTHING for stream in streams)
    return tuple(Role[_LINES.get(line, "NOTHING")] for line in lines)


def are_copies(names: Sequence[str]) -> Bools:
    """Tell which names are those of copies and memsets on a GPU's streams."""
    return np.array([_COPY.match(name) is not None for name in names], bool)


def module_of(name: str) -> tuple[str, str | None]:
    """Return the module and the number of its program in the name of an execution."""
    match = _MODULE.match(name)
    return (name, None) if match is None else (match[1], match[2])


def instruction_of(text: str) -> str:
    """Return the name in an instruction's text, ``%fusion.3 = f32[8] fusion(...)``."""
    return text.partition(" = ")[0].removeprefix("%")


def path_of(tf_op: str) -> str:
    """Return the path of an instruction in its ``tf_op``; "" where there is none.

    Behind the path TensorFlow's kind of operation may stand: ``jit(step)/dot_general:``.
    """
    return "" if tf_op == _NO_PATH else tf_op.rpartition(":")[0] or tf_op
