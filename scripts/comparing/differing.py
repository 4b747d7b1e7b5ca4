"""Finds the differences between two results, and decides which of them are allowed."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from scripts.comparing.normalizing import lines_of
from scripts.comparing.running import Result, Store

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Maximum number of differing lines for an aligned diff. Files with more differing lines are
#: compared as sets of lines.
_MAX_ALIGNED_LINES = 4_000
#: Name of the file that represents the exit codes of a case.
CODES = "exit-codes"


@dataclass(frozen=True)
class Difference:
    """One output that differs between two trees.

    Attributes:
        case: Name of the case.
        file: Name of the output, or ``exit-codes``.
        diff: Lines of a unified diff without its header.
    """

    case: str
    file: str
    diff: list[str]

    @property
    def changed(self) -> list[str]:
        """The lines that were removed or added, with their signs."""
        return [line for line in self.diff if line[:1] in {"-", "+"}]


@dataclass
class Rule:
    """An entry of ``allowed.toml``.

    Attributes:
        cases: Glob for case names.
        files: Glob for output names.
        lines: Regular expression that is searched for in changed lines, which start with ``-`` or
            ``+``.
        reason: Reason why the difference is intended.
        uses: Number of lines that the rule has explained so far.
    """

    cases: str
    reason: str
    files: str = "*"
    lines: str = ""
    uses: int = field(default=0, compare=False)

    def explains(self, case: str, file: str, line: str) -> bool:
        """Return whether this rule allows a changed line of an output."""
        matches_names = fnmatchcase(case, self.cases) and fnmatchcase(file, self.files)
        return matches_names and re.search(self.lines, line) is not None


def read_rules(path: Path) -> list[Rule]:
    """Return the rules in a file of allowed differences.

    Raises:
        TypeError: A rule has no reason, or has an unknown key.
    """
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Rule(**entry) for entry in document.get("allowed", ())]


def unexplained_lines(difference: Difference, rules: Sequence[Rule]) -> list[str]:
    """Return the changed lines that no rule allows, and count the uses of each rule."""
    left = []
    for line in difference.changed:
        explaining = [r for r in rules if r.explains(difference.case, difference.file, line)]
        for rule in explaining:
            rule.uses += 1
        if not explaining:
            left.append(line)
    return left


def differences_of(case: str, old: Result, new: Result, store: Store) -> Iterator[Difference]:
    """Yield the differences between the results of a case in two trees.

    Different exit codes come first. Files follow, sorted by name. If the bytes of a file differ but
    its normalized lines are equal, there is no difference. A file that only one tree wrote is
    compared with the line ``no such file``.
    """
    if old.codes != new.codes:
        yield Difference(case, CODES, diff_of([str(old.codes)], [str(new.codes)]))
    for file in sorted(old.files.keys() | new.files.keys()):
        contents = old.files.get(file), new.files.get(file)
        if contents[0] == contents[1]:
            continue
        sides = [
            ["no such file"] if name is None else lines_of(file, store.read_content(name))
            for name in contents
        ]
        if sides[0] != sides[1]:
            yield Difference(case, file, diff_of(*sides))


def diff_of(old: list[str], new: list[str]) -> list[str]:
    """Return the lines of a unified diff, without its header.

    Aligning takes quadratic time. If very many lines differ, the diff therefore just lists the
    lines that are only on one side.
    """
    first = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
                 min(len(old), len(new)))  # fmt: skip
    if max(len(old), len(new)) - first > _MAX_ALIGNED_LINES:
        sides = set(old), set(new)
        removed = [f"-{line}" for line in old if line not in sides[1]]
        added = [f"+{line}" for line in new if line not in sides[0]]
        return [*removed, *added] or ["-lines in another order", "+lines in another order"]
    aligned = difflib.unified_diff(old, new, lineterm="", n=2)
    return list(aligned)[2:]
