"""Range names: what each means under some conventions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field

import numpy as np

from bubbleviz.conventions.convention import NUMBER_GROUPS, Convention, Pattern
from bubbleviz.errors import UsageError
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.phases import RECEIVING, Phase, phase_of_label
from bubbleviz.model.values import frozen

#: A number of more digits is none: JSON and spreadsheets would not hold it exactly.
_MOST_DIGITS = 15
#: What PyTorch's emit_nvtx writes behind a name.
_EMIT_NVTX_TAIL = re.compile(r", (?:op_id|seq|sizes|input_op_ids) ?= ?.*\Z", re.DOTALL)


@frozen
class NameMeanings(Table):
    """What each distinct name means; one row a name, -1 where the name does not say.

    ``phase`` is -1 for a name that is not an operation's; such a row can still mark an iteration.
    ``convention`` is the index of the convention that knows it.
    """

    convention: Ints
    phase: Ints
    microbatch: Ints
    chunk: Ints
    stage: Ints
    sequence: Ints
    iteration: Ints
    rank: Ints
    second_microbatch: Ints
    second_chunk: Ints
    second_stage: Ints
    post_validation: Bools
    receives: Bools
    part: Bools
    by_order: Bools
    texts: tuple[str, ...] = field(metadata={"shared": True})

    @property
    def understood(self) -> Bools:
        """Which names mean anything."""
        return (self.phase >= 0) | (self.iteration >= 0) | (self.rank >= 0) | self.by_order


@frozen
class NameMatch:
    """A pattern that a name matches, and the phase and numbers that the name holds.

    ``numbers`` are in the order of :data:`NUMBER_GROUPS`, -1 for none.
    """

    pattern: Pattern
    phase: Phase | None
    numbers: tuple[int, ...]


def bare_name(text: str, domain: str = "") -> str:
    """Return a name without its domain in front and PyTorch's ``emit_nvtx`` tail behind it.

    Exports hold the NVTX domain in a column; some tools write it in front, as ``TSL:Thunk``.
    """
    return _EMIT_NVTX_TAIL.sub("", text.removeprefix(f"{domain}:") if domain else text)


def understand(texts: Sequence[str], *conventions: Convention) -> NameMeanings:
    """Return the meaning of each name; the first convention that knows a name decides.

    Raises:
        UsageError: a pattern takes something else for a number.
    """
    rows = np.full((len(texts), len(NUMBER_GROUPS) + 1), NONE, np.int64)
    post_validation, receives = np.zeros(len(texts), bool), np.zeros(len(texts), bool)
    part, by_order = np.zeros(len(texts), bool), np.zeros(len(texts), bool)
    deciding = np.full(len(texts), NONE, np.int64)
    for row, text in enumerate(texts):
        matches = ((i, match_of(text, convention)) for i, convention in enumerate(conventions))
        index, match = next(((i, m) for i, m in matches if m is not None), (NONE, None))
        if match is None:
            continue
        pattern, phase = match.pattern, match.phase
        deciding[row] = index
        rows[row] = (NONE if phase is None else phase, *match.numbers)
        if rows[row, 1] == NONE and rows[row, 7] != NONE:
            # Of two operations only the second is numbered: the name counts as that one's.
            rows[row, [1, 2]], rows[row, [7, 8]] = rows[row, [7, 8]], NONE
        post_validation[row] = pattern.post_validation
        receives[row] = phase in RECEIVING if pattern.receives is None else pattern.receives
        part[row], by_order[row] = pattern.part, pattern.by_order
    columns = np.ascontiguousarray(rows.T)
    return NameMeanings(
        convention=deciding,
        phase=columns[0],
        **{name: columns[i] for i, name in enumerate(NUMBER_GROUPS, 1)},
        post_validation=post_validation,
        receives=receives,
        part=part,
        by_order=by_order,
        texts=tuple(texts),
    )


def match_of(text: str, convention: Convention) -> NameMatch | None:
    """Return how a convention reads a name; None where it does not know it.

    Raises:
        UsageError: the pattern takes something else for a number.
    """
    text = bare_name(text, convention.domain)
    for pattern in convention.patterns:
        match = pattern.match.search(text)
        if match is None:
            continue
        groups = match.groupdict()
        label = groups.get("phase")
        phase = pattern.phase
        if label is not None:
            phase = pattern.phases[label] if label in pattern.phases else phase_of_label(label)
        digits = [groups.get(name) for name in NUMBER_GROUPS]
        if any(d is not None and len(d) > _MOST_DIGITS for d in digits):
            return None
        return NameMatch(pattern, phase, tuple(_number(d, pattern) for d in digits))
    return None


def _number(digits: str | None, pattern: Pattern) -> int:
    """Return the number that a group matched; -1 where it matched nothing.

    Raises:
        UsageError: it matched something else; the pattern is wrong.
    """
    if digits is None:
        return NONE
    if not (digits.isascii() and digits.isdigit()):
        raise UsageError(
            f"the pattern {pattern.match.pattern!r} takes {digits[:40]!r} for a number; let its "
            "groups match digits only, as in (?P<microbatch>[0-9]+)"
        )
    return int(digits)
