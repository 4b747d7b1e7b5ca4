"""Conventions: how a framework writes the names of its ranges, as values."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

from bubbleviz.errors import InputError, UsageError
from bubbleviz.model.files import read_bounded
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import one_line
from bubbleviz.model.values import frozen

_GROUP = re.compile(r"\(\?P<(\w+)>")
#: Named groups of a pattern that are numbers.
NUMBER_GROUPS = (
    "microbatch",
    "chunk",
    "stage",
    "sequence",
    "iteration",
    "rank",
    "second_microbatch",
    "second_chunk",
    "second_stage",
    "tokens",
    "second_tokens",
)


@frozen
class Pattern:
    """One shape of name.

    Attributes:
        glob: SQLite GLOB that matches at least every name that ``regex`` does.
        regex: on the whole name, with named groups.
        phase: the phase of every name that matches; None where a group holds it, or none is meant.
        phases: the phase of each text of the group ``phase`` that is not a phase's own name.
        post_validation: whether it is optimizer work for the iteration before.
        receives: whether communication under this name waits for a peer's data; None to go by the
            phase.
        part: whether it names a part of an operation only: ranges that follow under the same phase
            belong to the same operation, up to another phase.
        stands_in: whether it names operations only where no other name does: one of the same
            operation may be around it.
        by_order: whether it marks an iteration, if both passes run inside, numbered by order.
    """

    glob: str
    regex: str
    phase: Phase | None
    phases: Mapping[str, Phase]
    post_validation: bool
    receives: bool | None
    part: bool
    stands_in: bool
    by_order: bool

    @cached_property
    def match(self) -> re.Pattern[str]:
        """The regex, compiled when a name is held against it."""
        return re.compile(self.regex)

    @cached_property
    def groups(self) -> frozenset[str]:
        """The named groups of the regex."""
        return frozenset(_GROUP.findall(self.regex))

    @property
    def marks_iterations(self) -> bool:
        """Whether it names iterations and nothing else."""
        names_operation = self.phase is not None or "phase" in self.groups
        return not names_operation and (self.by_order or "iteration" in self.groups)


#: A pattern that a name matches, the phase that it holds, and its numbers in the order of
#: :data:`NUMBER_GROUPS`, -1 for none.
NameMatch: TypeAlias = tuple[Pattern, Phase | None, tuple[int, ...]]


@frozen
class Convention:
    """How one framework names its ranges.

    Attributes:
        name: what ``--convention`` takes.
        summary: one line.
        source: where the names were read.
        domain: NVTX domain that may stand in front of its names.
        patterns: tried in order; the first that matches decides.
        examples: names that it must understand.
        counter_examples: names that it must leave alone.
        communication: more regexes for communication kernels (a user's additions).
        helper_threads: more regexes for threads that never run backward.
        explicit: whether its names are written for bubbleviz, and so come before a framework's.
    """

    name: str
    summary: str
    source: str
    domain: str
    patterns: tuple[Pattern, ...]
    examples: tuple[str, ...]
    counter_examples: tuple[str, ...]
    communication: tuple[str, ...]
    helper_threads: tuple[str, ...]
    explicit: bool = False

    @property
    def globs(self) -> tuple[str, ...]:
        """The distinct prefilters of its patterns."""
        return tuple(dict.fromkeys(pattern.glob for pattern in self.patterns))

    @cached_property
    def known(self) -> dict[str, NameMatch | None]:
        """What names were found to mean; profiles of one run share most of their names.

        :mod:`bubbleviz.conventions.range_names` fills it.
        """
        return {}

    @cached_property
    def whole_operations(self) -> Convention:
        """The convention without its patterns for parts of operations, and those that stand in."""
        patterns = (p for p in self.patterns if not (p.part or p.stands_in))
        return replace(self, patterns=tuple(patterns))

    @cached_property
    def iterations(self) -> Convention:
        """The convention with only the patterns that name iterations and hold their numbers."""
        patterns = (p for p in self.patterns if p.marks_iterations and not p.by_order)
        return replace(self, patterns=tuple(patterns))

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields: what was worked out from them does not travel to other processes."""
        return {part.name: getattr(self, part.name) for part in fields(self)}


def globs_of(conventions: Sequence[Convention]) -> tuple[str, ...]:
    """Return the distinct prefilters of conventions."""
    return tuple(dict.fromkeys(glob for c in conventions for glob in c.globs))


# TOML, from the standard library where it has it (Python 3.11), else from tomli.


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: No list of names that a person wrote is larger.
_MOST_BYTES = 1 << 22
#: Dotted keys nest tables, in a time that grows with the square of their dots.
_MOST_DOTS = 200
#: What Python raises for texts that it cannot compile: also for counts and nesting beyond its own.
_UNCOMPILED = (re.error, OverflowError, RecursionError)
#: A reference to a group by its number, which is another one among further expressions.
_REFERENCE = re.compile(r"(?<!\\)(?:\\\\)*\\[1-9]|\(\?\(\d")
#: Characters of an expression in a message.
_LONGEST = 100


def read_toml_text(path: str | Path, kind: str, hint: str) -> str:
    """Return the text of a TOML file.

    Args:
        path: of the file.
        kind: of file it should be, with its article, for the message.
        hint: what to do where it cannot be read.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return read_bounded(str(path), _MOST_BYTES, kind, hint).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read as {kind} (not UTF-8); {hint}") from error


def load_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises:
        ValueError: it is not TOML.
    """
    if any(line.count(".") > _MOST_DOTS for line in text.splitlines()):
        raise ValueError(f"a line holds more than {_MOST_DOTS} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def built_in_text(name: str) -> str:
    """Return the text of a file that comes with bubbleviz."""
    return files("bubbleviz.conventions").joinpath(name).read_text(encoding="utf-8")


def texts_in(
    table: Mapping[str, object], key: str, where: str, what: str = "texts"
) -> tuple[str, ...]:
    """Return a list of texts of a TOML table, () for none.

    Raises:
        UsageError: it holds something else.
    """
    values = table.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise UsageError(f"{where}: {key} must be a list of {what}")
    return tuple(values)


def check_keys(table: Mapping[str, object], keys: Set[str], where: str) -> None:
    """Check that a table has no other keys than these.

    Raises:
        UsageError: it has.
    """
    unknown = sorted(set(table) - keys)
    if unknown:
        raise UsageError(
            f"{where}: unknown key {unknown[0]!r}; the keys are {', '.join(sorted(keys))}"
        )


def regex_of(text: str, where: str) -> re.Pattern[str]:
    """Return a compiled regular expression.

    Args:
        text: from a TOML file.
        where: the file and key, for the message.

    Raises:
        UsageError: it is not one.
    """
    try:
        return re.compile(text)
    except _UNCOMPILED as error:
        raise UsageError(
            f"{where}: {one_line(text, _LONGEST)!r} is not a regular expression ({error}); fix it"
        ) from error


def regexes_of(texts: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the texts, each checked to be a regular expression that can stand beside others.

    Raises:
        UsageError: one is not, or has flags for all, names of groups, or references to them.
    """
    for text in texts:
        regex_of(text, where)
        try:
            re.compile(f"(?:{text})|(?:{text})")
            alone = _REFERENCE.search(text) is not None
        except _UNCOMPILED:
            alone = True
        if alone:
            raise UsageError(
                f"{where}: {one_line(text, _LONGEST)!r} cannot stand beside other regular "
                "expressions; leave out its (?i), (?P<name>...) and references such as \\1"
            )
    return tuple(texts)
