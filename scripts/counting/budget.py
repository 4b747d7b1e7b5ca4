"""The budget of instructions: what each stage may take, and what a count says of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("budget.toml")
RENEW = "scripts/instructions --renew"
#: How far a count may be above its budget, as a factor: where Python and all packages are those of
#: the budget, and where they are not. Of the same program in the same place, counts differ by less
#: than 0.007; with other versions of Python and numpy they did by 0.2.
_SAME, _OTHER = 1.05, 1.30
#: A count so far below its budget would leave room for the next regression, unseen.
_LOOSE = 0.75
#: Smaller differences are nothing, whatever they are a part of.
_LEAST = 1_000_000
_HEAD = """\
# Millions of instructions that each stage of an analysis takes. scripts/instructions compares, and
# scripts/instructions --renew writes this file; a change that needs more raises it, knowingly.
"""


@dataclass(frozen=True)
class Budget:
    """What each stage may take.

    Attributes:
        environment: Python, the machine and packages with which it was counted.
        stages: instructions of each.
    """

    environment: tuple[str, ...]
    stages: Mapping[str, int]

    def complaints(self, counts: Mapping[str, int], environment: tuple[str, ...]) -> list[str]:
        """Return a sentence on each stage that does not keep to it.

        Args:
            counts: instructions of each stage.
            environment: with which they were counted.
        """
        same = environment == self.environment
        found = [f"{name}: has no budget" for name in counts if name not in self.stages]
        for name, budget in self.stages.items():
            if name not in counts:
                found.append(f"{name}: was not counted")
                continue
            count = counts[name]
            change = f"{count / 1e6:,.1f} million instructions, {_change(count, budget)}"
            if count > max(budget * (_SAME if same else _OTHER), budget + _LEAST):
                found.append(f"{name}: {change}")
            elif same and count < min(budget * _LOOSE, budget - _LEAST):
                found.append(f"{name}: {change}; hold what was won")
        return found

    def table(self, counts: Mapping[str, int]) -> str:
        """Return one line per stage: its count, and how far that is from the budget."""
        lines = []
        for name, count in counts.items():
            change = _change(count, self.stages[name]) if name in self.stages else "no budget"
            lines.append(f"{count / 1e6:>10,.1f} M  {name:<40}{change}")
        return "\n".join(lines)

    def toml(self) -> str:
        """Return the file that holds it."""
        stages = (f"{json.dumps(name)} = {n / 1e6:.1f}" for name, n in self.stages.items())
        environment = (f"    {json.dumps(part)}," for part in self.environment)
        lines = [_HEAD, "environment = [", *environment, "]", "", "[stages]", *stages, ""]
        return "\n".join(lines)


def _change(count: int, budget: int) -> str:
    """Return by how much a count differs from a budget."""
    percent = 100 * (count / budget - 1)
    return f"{abs(percent):.1f} % {'more' if percent > 0 else 'less'} than {budget / 1e6:,.1f}"


def read_budget(file: Path = FILE) -> Budget:
    """Return the budget in a file."""
    held = tomllib.loads(file.read_text(encoding="utf-8"))
    stages = {str(name): round(millions * 1e6) for name, millions in held["stages"].items()}
    return Budget(tuple(map(str, held["environment"])), stages)


def verdict(complaints: list[str], *, same: bool) -> str:
    """Return complaints as one message, with what to do."""
    other = "" if same else "\n(Python or packages are not those of the budget: 30 % are allowed)"
    listed = "\n".join(f"  {each}" for each in complaints)
    return (
        f"instructions are not within {FILE.name}:{other}\n{listed}\n"
        f"mend what takes them, or renew the budget and say why in the commit: {RENEW}"
    )
