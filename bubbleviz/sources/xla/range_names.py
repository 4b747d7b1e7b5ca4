"""Names of the ranges of instructions, modules and steps, as XLA gives them in nsys.

They are those of :mod:`bubbleviz.analyses.pgle.range_names`, so that one convention reads both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.numbering import Numbering
from bubbleviz.sources.xla.planes import Label


class RangeNames:
    """Numbers names of ranges: first the texts of the file, then names made of them."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Take the texts of the file, which are distinct."""
        self._texts = texts
        self._numbering = Numbering(texts)
        self._of_module: dict[str, set[int]] = defaultdict(set)

    @property
    def all(self) -> tuple[str, ...]:
        """All names, by number."""
        return self._numbering.values

    def text(self, number: int) -> str:
        """Return a text of the file; "" for none."""
        return "" if number == NONE else self._texts[number]

    def thunks(self, labels: Sequence[Label]) -> Ints:
        """Return the names of the ranges of instructions; -1 for other labels, and at the end."""
        return np.array([*map(self._thunk, labels), NONE], np.int64)

    def _thunk(self, label: Label) -> int:
        if label.op == NONE:
            return NONE
        path = self.text(label.path)
        before = f"name={path}," if path else ""
        return self._numbering.number(f"Thunk:#{before}hlo_op={self.text(label.op)}#")

    def modules(self, labels: Sequence[Label]) -> Ints:
        """Return the names of the modules of instructions; -1 for none, and at the end."""
        numbers = [
            NONE if label.module == NONE else self.module(self.text(label.module), label.program)
            for label in labels
        ]
        return np.array([*numbers, NONE], np.int64)

    def module(self, module: str, program: int | str | None) -> int:
        """Return the name of the executions of a module."""
        suffix = "" if program in (None, NONE) else f",program_id={program}"
        number = self._numbering.number(f"XlaModule:#hlo_module={module}{suffix}#")
        self._of_module[module].add(number)
        return number

    def of_module(self, module: str) -> tuple[int, ...]:
        """Return the names of a module's executions, whatever its program."""
        return tuple(sorted(self._of_module.get(module, ())))

    def step(self, name: int, step: int, *, on_device: bool) -> int:
        """Return the name of a step, from the name of its event."""
        text = "Steps" if on_device else self.text(name)
        return self._numbering.number(f"{text}#step_num={step}#")
