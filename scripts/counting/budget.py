"""The instruction budget that new counts are compared with."""

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
#: Factor by which a stage may exceed its budget. In the same environment, counts of the same
#: program differ by less than 0.7 %.
_TOLERANCE = 1.15
#: Number of instructions by which even a small stage may exceed its budget.
_MIN_INCREASE = 1_000_000
_HEAD = """\
# Millions of instructions that each stage of an analysis takes. scripts/instructions compares new
# counts with these, and scripts/instructions --renew replaces these by new counts.
"""


@dataclass(frozen=True)
class Budget:
    """The number of instructions that each stage may execute.

    Attributes:
        environment: Versions of Python, the machine and the packages used for the counts.
        stages: Number of instructions of each stage.
    """

    environment: tuple[str, ...]
    stages: Mapping[str, int]

    def regressions(self, counts: Mapping[str, int], environment: tuple[str, ...]) -> list[str]:
        """Return a line for each stage that became more expensive.

        Counts from different versions of Python or numpy differ by up to 20 %, so such counts are
        not compared.

        Args:
            counts: Number of instructions of each stage.
            environment: Versions of Python, the machine and the packages used for the counts.
        """
        if environment != self.environment:
            return []
        return [
            f"{name}: {count / 1e6:,.1f} million instructions, {_format_change(count, budget)}"
            for name, count in counts.items()
            if (budget := self.stages.get(name)) is not None
            and count > max(budget * _TOLERANCE, budget + _MIN_INCREASE)
        ]

    def table(self, counts: Mapping[str, int]) -> str:
        """Return one line per stage: its count, and the difference from its budget."""
        lines = []
        for name, count in counts.items():
            budget = self.stages.get(name)
            change = "no budget" if budget is None else _format_change(count, budget)
            lines.append(f"{count / 1e6:>10,.1f} M  {name:<40}{change}")
        return "\n".join(lines)

    def toml(self) -> str:
        """Return the text of the file that stores the budget."""
        stages = (f"{json.dumps(name)} = {n / 1e6:.1f}" for name, n in self.stages.items())
        environment = (f"    {json.dumps(part)}," for part in self.environment)
        lines = [_HEAD, "environment = [", *environment, "]", "", "[stages]", *stages, ""]
        return "\n".join(lines)


def _format_change(count: int, budget: int) -> str:
    """Return the difference between a count and its budget, in percent."""
    percent = 100 * (count / budget - 1)
    return f"{abs(percent):.1f} % {'more' if percent > 0 else 'less'} than {budget / 1e6:,.1f}"


def read_budget(file: Path = FILE) -> Budget:
    """Return the budget in a file."""
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    stages = {str(name): round(millions * 1e6) for name, millions in content["stages"].items()}
    return Budget(tuple(map(str, content["environment"])), stages)


def format_failure(regressions: list[str]) -> str:
    """Return the regressions as one message, with advice on what to do."""
    lines = "\n".join(f"  {regression}" for regression in regressions)
    return (
        f"stages take over {_TOLERANCE - 1:.0%} more instructions than in {FILE.name}:\n{lines}\n"
        f"make them cheaper, or renew the budget and give the reason in the commit: {RENEW}"
    )
