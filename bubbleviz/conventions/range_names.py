"""Range names: what each means under some conventions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bubbleviz.conventions.convention import NUMBER_GROUPS, Convention, NameMatch, Pattern
from bubbleviz.conventions.globs import fitting
from bubbleviz.errors import UsageError
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.phases import RECEIVING, phase_of_label
from bubbleviz.model.texts import MAX_RANGE_NAME

#: A number of more digits is none: JSON and spreadsheets would not hold it exactly.
_MOST_DIGITS = 15
#: A convention keeps the meaning of so many names, of so many characters each.
_MOST_KEPT = 1 << 15
_LONGEST_KEPT = 256
#: What PyTorch's emit_nvtx writes behind a name.
_EMIT_NVTX_TAIL = re.compile(r", (?:op_id|seq|sizes|input_op_ids) ?= ?.*\Z", re.DOTALL)


@dataclass(frozen=True, eq=False, repr=False)
class NameMeanings(Table):
    """What each distinct name means; one row per name, -1 where the name does not say.

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
    tokens: Ints
    second_tokens: Ints
    post_validation: Bools
    receives: Bools
    part: Bools
    stands_in: Bools
    by_order: Bools
    texts: tuple[str, ...] = field(metadata={"shared": True})

    @property
    def understood(self) -> Bools:
        """Which names mean anything."""
        return (self.phase >= 0) | (self.iteration >= 0) | (self.rank >= 0) | self.by_order

    @property
    def all_tokens(self) -> Ints:
        """How many tokens each names in all."""
        return np.where(self.tokens >= 0, self.tokens + np.maximum(self.second_tokens, 0), NONE)


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
    convention = np.full(len(texts), NONE, np.int64)
    rows, matches = [], []
    for row, text in enumerate(texts):
        for index, each in enumerate(conventions):
            match = match_of(text, each)
            if match is not None:
                convention[row] = index
                rows.append(row)
                matches.append(match)
                break
    columns = np.full((len(NUMBER_GROUPS) + 1, len(texts)), NONE, np.int64)
    columns[0, rows] = [NONE if phase is None else phase for _, phase, _ in matches]
    numbers = np.array([of_match for _, _, of_match in matches], np.int64)
    columns[1:, rows] = numbers.reshape(-1, len(NUMBER_GROUPS)).T
    # Of two operations only the second is numbered: the name counts as that one's.
    second = np.flatnonzero((columns[1] == NONE) & (columns[7] != NONE))
    columns[1:3, second], columns[7:9, second] = columns[7:9, second], NONE
    told = {
        name: [getattr(pattern, name) for pattern, _, _ in matches]
        for name in ("post_validation", "part", "stands_in", "by_order")
    }
    told["receives"] = [
        phase in RECEIVING if pattern.receives is None else pattern.receives
        for pattern, phase, _ in matches
    ]
    marks = {name: np.zeros(len(texts), bool) for name in told}
    for name, column in marks.items():
        column[rows] = told[name]
    return NameMeanings(
        convention=convention,
        phase=columns[0],
        **{name: columns[i] for i, name in enumerate(NUMBER_GROUPS, 1)},
        **marks,
        texts=tuple(texts),
    )


def named_by(convention: Convention, texts: Collection[str]) -> list[str]:
    """Return the texts that a convention may know; most conventions know none of a profile."""
    known = convention.known
    new = [text for text in texts if text not in known]
    for text, fits in zip(new, fitting(convention.globs, new), strict=True):
        if not fits:
            _keep(convention, text, None)
    missing = object()
    return [text for text in texts if known.get(text, missing) is not None]


def match_of(text: str, convention: Convention) -> NameMatch | None:
    """Return how a convention reads a name; None where it does not know it.

    Raises:
        UsageError: the pattern takes something else for a number.
    """
    if text in convention.known:
        return convention.known[text]
    bare = bare_name(text, convention.domain)
    if len(bare) > MAX_RANGE_NAME:
        # No framework writes one, and its end, which patterns look at, would be cut off.
        return None
    matches = ((pattern, pattern.match.search(bare)) for pattern in convention.patterns)
    for pattern, found in matches:
        if found is not None:
            return _keep(convention, text, _read(pattern, found.groupdict()))
    return _keep(convention, text, None)


def _keep(convention: Convention, text: str, match: NameMatch | None) -> NameMatch | None:
    """Keep what a name means for the profiles that follow, within bounds, and return it."""
    known = convention.known
    if len(known) >= _MOST_KEPT:
        known.clear()
    if len(text) <= _LONGEST_KEPT:
        known[text] = match
    return match


def _read(pattern: Pattern, groups: Mapping[str, str | None]) -> NameMatch | None:
    """Return what the groups of a pattern say; None where a number is too long for one.

    Raises:
        UsageError: a group matched something else than a number; the pattern is wrong.
    """
    label, phase = groups.get("phase"), pattern.phase
    if label is not None:
        phase = pattern.phases[label] if label in pattern.phases else phase_of_label(label)
    digits = [groups.get(name) for name in NUMBER_GROUPS]
    told = [text for text in digits if text is not None]
    if any(len(text) > _MOST_DIGITS for text in told):
        return None
    wrong = next((text for text in told if not (text.isascii() and text.isdigit())), None)
    if wrong is not None:
        raise UsageError(
            f"the pattern {pattern.match.pattern!r} takes {wrong[:40]!r} for a number; let its "
            "groups match digits only, as in (?P<microbatch>[0-9]+)"
        )
    return pattern, phase, tuple(NONE if text is None else int(text) for text in digits)
