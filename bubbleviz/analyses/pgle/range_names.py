"""Parses the names of XLA ranges, which mark instructions, modules and compilations.

The names are written by ``xla/service/gpu/nvtx_annotations`` (openxla/xla). All known formats::

    Thunk:#hlo_op=fusion.3#
    Thunk:#hlo_op=fusion.3,hlo_module=jit_step,program_id=7#
    Thunk:#name=jit(step)/jvp(layer)/dot,hlo_op=fusion.3#
    Thunk:#name=jit(step)/jvp(layer)/dot,hlo_op=fusion.3,unique_hlo_op_id=41#
    XlaModule:#prefix=jit(step)/jit(main),hlo_module=jit_step,program_id=7#
    XlaCompile:#module=jit_step#

nsys exports store the NVTX domain in a separate column. Some tools write it before the name:
``TSL:Thunk``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from bubbleviz.model.columns import Ints, Table, scatter
from bubbleviz.model.numbering import Numbering

#: SQLite GLOB patterns that match the names of XLA ranges.
GLOBS = ("*Thunk:#*hlo_op=*", "*XlaModule:#*hlo_module=*", "*XlaCompile*")
_DOMAIN = "TSL:"
# A name path may contain any text, even "#" and ",hlo_op=", so the last "hlo_op=" is used.
_THUNK = re.compile(r"^Thunk:#(?:.*,)?hlo_op=([^,#]+)((?:,(?!hlo_op=)[^,#]*)*)#\Z", re.DOTALL)
_MODULE = re.compile(
    r"^XlaModule:#(?:prefix=.*,)?hlo_module=([^,#]+)(?:,program_id=([0-9]+))?#\Z", re.DOTALL
)
_OF_MODULE = re.compile(r",hlo_module=([^,]+)(?:,program_id=([0-9]+))?")
_HALF = re.compile(
    r"^(async|(?:ragged-)?all-to-all|all-reduce|all-gather|reduce-scatter|collective-permute"
    r"|collective-broadcast)-(start|done)\b"
)


class RangeKind(IntEnum):
    """Kind of an XLA range."""

    OTHER = 0
    INSTRUCTION = 1
    MODULE = 2
    COMPILATION = 3


@dataclass(frozen=True, eq=False, repr=False)
class XlaNames(Table):
    """The parsed names of XLA's ranges, one row per name.

    Attributes:
        kind: Kind of range, a code of :class:`RangeKind`.
        instruction: The instruction, as an index into ``instructions``, or -1 if the name contains
            none.
        module: The module, as an index into ``modules``, or -1 if the name contains none.
        instructions: Distinct names of instructions.
        modules: Distinct labels of modules, such as ``jit_step(7)``. The program number is left out
            if it was not recorded.
    """

    kind: Ints
    instruction: Ints
    module: Ints
    instructions: tuple[str, ...] = field(metadata={"shared": True})
    modules: tuple[str, ...] = field(metadata={"shared": True})


def parse_range_names(names: Sequence[str]) -> XlaNames:
    """Parse the names of ranges, with one row per name. Unknown formats become ``OTHER``."""
    rows = scatter((3, len(names)), 0, RangeKind.OTHER)
    instructions, modules = Numbering[str](), Numbering[str]()
    for row, name in enumerate(names):
        plain, module = name.removeprefix(_DOMAIN), None
        if thunk := _THUNK.match(plain):
            rows[0, row] = RangeKind.INSTRUCTION
            rows[1, row] = instructions.number(thunk[1])
            module = _OF_MODULE.match(thunk[2])
        elif module := _MODULE.match(plain):
            rows[0, row] = RangeKind.MODULE
        elif plain.startswith("XlaCompile"):
            rows[0, row] = RangeKind.COMPILATION
        if module:
            label = module[1] if module[2] is None else f"{module[1]}({module[2]})"
            rows[2, row] = modules.number(label)
    kind, instruction, module_id = (column.copy() for column in rows)
    return XlaNames(kind, instruction, module_id, instructions.values, modules.values)
