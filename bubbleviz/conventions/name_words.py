"""Words of range names: what they imply for a convention that is still to be written."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from bubbleviz.conventions import toml_files
from bubbleviz.conventions.convention import Convention
from bubbleviz.conventions.convention_file import built_in, convention_of
from bubbleviz.conventions.range_names import bare_name, match_of, understand
from bubbleviz.model.phases import COUNTED, TRANSFERS, Phase, phase_of_label
from bubbleviz.model.texts import counted

_DIGITS = re.compile(r"[0-9]+")
#: A number of a microbatch is smaller.
_MICROBATCHES = 10_000


@cache
def _file() -> dict[str, Any]:
    """Return the file of words; it is read on first use, as most runs need none of them."""
    return toml_files.load(toml_files.built_in("name_words.toml"))


def _compiled(text: str) -> re.Pattern[str]:
    """Return a regex of the file, in which words that several share are put in."""
    for name, shared in _file()["shared"].items():
        text = text.replace(f"<{name}>", shared)
    return re.compile(text)


@cache
def _phases() -> list[tuple[re.Pattern[str], Phase | None]]:
    """Return words for what a range does, the most specific first.

    The phase is None for words of ranges around operations.
    """
    return [
        (_compiled(row["match"]), phase_of_label(row.get("phase", ""))) for row in _file()["phase"]
    ]


@cache
def _numbers() -> dict[str, re.Pattern[str]]:
    """Return words in front of a number, by what the number counts."""
    return {group: _compiled(text) for group, text in _file()["numbers"].items()}


@cache
def _regex(name: str) -> re.Pattern[str]:
    """Return a regex of the file by its name."""
    return _compiled(_file()["regexes"][name])


def phase_in(name: str) -> Phase | None:
    """Return the phase that a word of a name implies; None where none does."""
    text = name.lower()
    return next((phase for words, phase in _phases() if words.search(text)), None)


@dataclass(frozen=True)
class NameShape:
    """Names that differ in their numbers only.

    Attributes:
        pieces: the text between the numbers.
        example: one of the names.
        count: how often they occur.
        tailed: whether ``emit_nvtx`` wrote something behind one.
        distinct: how many values each number has.
        largest: the largest of each.
        measures: whether each is a decimal, or stands in front of a unit, and so counts nothing.
    """

    pieces: tuple[str, ...]
    example: str
    count: int
    tailed: bool
    distinct: tuple[int, ...]
    largest: tuple[int, ...]
    measures: tuple[bool, ...]

    @cached_property
    def phase(self) -> Phase | None:
        """The phase that a word of the names implies."""
        return phase_in("".join(self.pieces))

    @cached_property
    def part(self) -> bool:
        """Whether the names are those of parts of an operation, such as layers."""
        numbered = any(map(self.counts_parts, range(len(self.pieces) - 1)))
        return numbered or bool(_regex("part").search("".join(self.pieces).lower()))

    @cached_property
    def batch(self) -> int | None:
        """Which number counts batches."""
        words = [
            bool(_regex("batch").search(self._before(at))) for at in range(len(self.pieces) - 1)
        ]
        return words.index(True) if True in words else None

    def counts_parts(self, at: int) -> bool:
        """Whether a number counts parts of a stage, such as layers, and so no microbatches."""
        if _regex("numbered_part").search(self._before(at)):
            return True
        behind = self.pieces[at + 1].lower()
        of_next = at + 2 < len(self.pieces) and _regex("numbered_part").search(behind)
        return not of_next and _regex("part_behind").match(behind) is not None

    def groups(self, *, batch: str) -> list[str]:
        """Return what each number counts, empty for unknown.

        Without a word of its own, the first that follows the name of a pass is the microbatch;
        others count layers, lines of source code, or what else there is.

        Args:
            batch: what numbers of batches count.
        """
        groups = [self._group(at, batch) for at in range(len(self.pieces) - 1)]
        groups = [group * (groups.index(group) == at) for at, group in enumerate(groups)]
        if "microbatch" not in groups and not self.part:
            free = [at for at, group in enumerate(groups) if not group and self._follows_pass(at)]
            if free:
                groups[free[0]] = "microbatch"
        return groups

    def _before(self, at: int) -> str:
        """Return what stands in front of a number; a letter right behind a number is no word."""
        return "x" * (at > 0) + self.pieces[at].lower()

    def _group(self, at: int, batch: str) -> str:
        piece = self._before(at)
        if self.measures[at] or self.counts_parts(at):
            return ""
        if at == self.batch and self.distinct[at] > 1:
            return batch
        group = next((group for group, words in _numbers().items() if words.search(piece)), "")
        if group == "iteration" and _regex("pass").search(piece):
            return ""
        return "" if group == "microbatch" and self.largest[at] >= _MICROBATCHES else group

    def _follows_pass(self, at: int) -> bool:
        """Whether a number follows the name of a pass, and is no part of a word or an address."""
        if self.counts_parts(at):
            return False
        alone = not self.pieces[at + 1][:1].isalpha() and self.largest[at] < _MICROBATCHES
        return alone and not self.measures[at] and bool(_regex("pass").search(self._before(at)))


def shapes_of(counts: Mapping[str, int]) -> list[NameShape]:
    """Return the shapes of names that can be operations, the most frequent first.

    Args:
        counts: how often each name occurs.
    """
    names: dict[tuple[str, ...], list[str]] = {}
    total: Counter[tuple[str, ...]] = Counter()
    tailed: set[tuple[str, ...]] = set()
    for text, count in counts.items():
        name = bare_name(text)
        if 0 < len(name) <= 100 and "\0" not in name and not _regex("no_operation").search(name):
            pieces = tuple(_DIGITS.split(name))
            total[pieces] += count
            names.setdefault(pieces, []).append(name)
            if name != text:
                tailed.add(pieces)
    ordered = sorted(total, key=lambda pieces: (-total[pieces], pieces))
    return [_shape(p, names[p], total[p], tailed=p in tailed) for p in ordered]


def _shape(pieces: tuple[str, ...], names: Sequence[str], count: int, *, tailed: bool) -> NameShape:
    numbers = [set(map(int, column)) for column in zip(*map(_DIGITS.findall, names), strict=True)]
    last = len(pieces) - 2
    # Numbers that stand in front of a unit, and those that are decimals.
    units = [
        _regex("unit").match(pieces[at + 1]) is not None
        and (at == last or _regex("label").match(pieces[at + 1]) is None)
        for at in range(last + 1)
    ]

    def is_fraction(at: int) -> bool:
        places = (([m.start() for m in _DIGITS.finditer(name)][at - 1], name) for name in names)
        return units[at] or all(_regex("decimal").match(name, start) for start, name in places)

    fractions = [pieces[at] == "." and at > 0 and is_fraction(at) for at in range(last + 1)]
    return NameShape(
        pieces,
        example=min(names),
        count=count,
        tailed=tailed,
        distinct=tuple(map(len, numbers)),
        largest=tuple(map(max, numbers)),
        measures=tuple(map(any, zip(units, fractions, [*fractions, False][1:], strict=True))),
    )


# Drafts of a convention, for ranges that no known one names.


#: How many shapes of names a draft holds at most.
_MOST_SHAPES = 12
#: How many drafts are made at most.
_MOST_DRAFTS = 10
#: What unnamed numbers behind the name of a pass may count, in this order.
_ORDERS = (("microbatch", "chunk", "sequence"), ("chunk", "microbatch", "sequence"))


@dataclass(frozen=True)
class ShapeMeaning:
    """What names of one shape may mean.

    Attributes:
        shape: the shape.
        phase: their phase; None where they mark iterations alone.
        groups: what each number counts; "" for nothing that is needed.
        part: whether they name parts of an operation.
    """

    shape: NameShape
    phase: Phase | None
    groups: tuple[str, ...]
    part: bool

    @property
    def works(self) -> bool:
        """Whether they name forward or backward."""
        return self.phase in COUNTED


def drafts(counts: Mapping[str, int]) -> Mapping[str, Convention]:
    """Return the drafts for the names by their TOML, the likeliest first, to be tried in turn.

    They differ where names leave it open: ranges of one phase may lie in each other (a trainer's
    forward around a library's), several numbers in a row may be microbatch and chunk or the other
    way round, a chunk alone may be what others call a microbatch, and numbers of a mark may be an
    iteration's, or a rank's.

    Args:
        counts: how often each name occurs.
    """
    shapes = shapes_of(counts)
    written = (_written(_alike(variant)) for variant in _variants(shapes) if variant)
    texts = list(dict.fromkeys(written))[:_MOST_DRAFTS]
    return {text: convention_of(text, "the draft") for text in texts}


def _meanings(shapes: Sequence[NameShape], batch: str) -> list[ShapeMeaning]:
    """Return what the shapes mean for which words imply a phase, or an iteration.

    Args:
        shapes: the shapes.
        batch: what numbers of batches count.
    """
    split = any(shape.phase is Phase.W for shape in shapes)
    without_forward = all(shape.phase is not Phase.F for shape in shapes)
    meanings = []
    for shape in shapes:
        phase, groups = _known(shape) or (shape.phase, shape.groups(batch=batch))
        text = "".join(shape.pieces).lower()
        if phase is None and without_forward and _regex("trainer_forward").search(text):
            phase = Phase.F
        if phase is Phase.BW and split:
            phase = Phase.B
        if phase is Phase.OPTIMIZER:
            groups = [group * (group != "microbatch") for group in groups]
        if phase is None:
            # Every analysis follows what a built-in convention knows as the name of an iteration.
            marks = "iteration" in groups
            names = understand([shape.example] if marks else [], *built_in().values())
            marks &= not any((names.phase < 0) & (names.iteration >= 0))
        if phase is not None or marks:
            part = phase in COUNTED and shape.part
            meanings.append(ShapeMeaning(shape, phase, tuple(groups), part))
    return meanings


def _known(shape: NameShape) -> tuple[Phase, list[str]] | None:
    """Return phase and groups of names of work that a built-in convention knows whole."""
    for convention in built_in().values():
        pattern, phase, _ = match_of(shape.example, convention) or (None, None, ())
        if pattern is None or phase not in COUNTED or pattern.part or pattern.stands_in:
            continue
        if found := pattern.match.match(shape.example):
            spans = {found.span(group): group for group in pattern.groups if group != "phase"}
            return phase, [spans.get(m.span(), "") for m in _DIGITS.finditer(shape.example)]
    return None


def _variants(shapes: Sequence[NameShape]) -> Iterator[list[ShapeMeaning]]:
    """Yield the meanings that a draft may hold."""
    numbered = any(shape.phase is Phase.OPTIMIZER and shape.batch is not None for shape in shapes)
    meanings = _meanings(shapes, "iteration" if numbered else "microbatch")
    outer = _outer(meanings)
    yield outer[:_MOST_SHAPES]
    yield _sharing(outer[:_MOST_SHAPES])
    for order in _ORDERS:
        yield [_numbered(m, order) for m in outer[:_MOST_SHAPES]]
    yield [_alone(m) for m in outer[:_MOST_SHAPES]]
    yield _outer(_meanings(shapes, "iteration"))[:_MOST_SHAPES]
    # Without microbatches an analysis numbers them by order.
    yield _sharing(outer[:_MOST_SHAPES], without="microbatch")
    # Of ranges inside each other, those that number microbatches tell more.
    telling = sorted(outer, key=lambda m: "microbatch" not in m.groups)
    yield _sharing(list({m.phase: m for m in reversed(telling)}.values())[::-1])
    yield [m for m in outer if m.phase is not None][:_MOST_SHAPES]
    yield meanings[:_MOST_SHAPES]


def _outer(meanings: Sequence[ShapeMeaning]) -> list[ShapeMeaning]:
    """Return the meanings without parts of operations that others name whole."""
    whole = {m.phase for m in meanings if m.works and not m.part}
    return [m for m in meanings if not (m.part and m.phase in whole)]


def _sharing(meanings: Sequence[ShapeMeaning], without: str = "") -> list[ShapeMeaning]:
    """Return meanings in which forward and backward have the same groups, so that they pair.

    Args:
        meanings: the meanings.
        without: a group that none has.
    """
    every = [set(m.groups) for m in meanings if m.works]
    shared = set.intersection(*every) - {without} if every else set()
    kept = [tuple(g * (g in shared or not m.works) for g in m.groups) for m in meanings]
    return [replace(m, groups=groups) for m, groups in zip(meanings, kept, strict=True)]


def _alone(meaning: ShapeMeaning) -> ShapeMeaning:
    """Return a meaning in which a chunk's number, if it varies, is the microbatch, if none is."""
    if not meaning.works or meaning.part or "microbatch" in meaning.groups:
        return meaning
    numbers = zip(meaning.shape.distinct, meaning.groups, strict=True)
    varying = [at for at, (n, group) in enumerate(numbers) if n > 1 and group == "chunk"]
    if not varying:
        return meaning
    groups = list(meaning.groups)
    groups[varying[0]] = "microbatch"
    return replace(meaning, groups=tuple(groups))


def _numbered(meaning: ShapeMeaning, order: Sequence[str]) -> ShapeMeaning:
    """Return a meaning in which the numbers from the microbatch on have this order."""
    groups = list(meaning.groups)
    if "microbatch" not in groups or not meaning.works:
        return meaning
    at = groups.index("microbatch")
    free = next((i for i, group in enumerate(groups) if i > at and group), len(groups))
    names = [name for name in order if name == "microbatch" or name not in groups]
    slots = [i for i in range(at, free) if not meaning.shape.counts_parts(i)]
    if len(slots) < 2:
        return meaning
    for number, slot in enumerate(slots):
        groups[slot] = names[number] if number < len(names) else ""
    return replace(meaning, groups=tuple(groups))


def _alike(meanings: Sequence[ShapeMeaning]) -> list[ShapeMeaning]:
    """Return meanings in which transfers' numbers mean what those of work in their shape do.

    ``RECV_BACKWARD.3.0.1`` counts what ``B3.0.1`` counts; words alone tell no chunk of a transfer.
    """
    groups_of_shape = {m.shape.pieces[1:]: m.groups for m in reversed(meanings) if m.works}
    return [
        replace(m, groups=groups)
        if m.phase in (*TRANSFERS, Phase.R)
        and set(m.groups) <= {"", "microbatch"}
        and "microbatch" in (groups := groups_of_shape.get(m.shape.pieces[1:], ()))
        else m
        for m in meanings
    ]


def _written(meanings: Sequence[ShapeMeaning]) -> str:
    return 'name = "mine"\n\n' + "\n".join(map(_pattern, meanings))


def _pattern(meaning: ShapeMeaning) -> str:
    """Return the TOML of one pattern."""
    shape = meaning.shape
    match = _escaped(shape.pieces[0])
    glob = _literal(shape.pieces[0])
    for group, piece in zip(meaning.groups, shape.pieces[1:], strict=True):
        match += (f"(?P<{group}>[0-9]+)" if group else "[0-9]+") + _escaped(piece)
        glob += "[0-9]*" + _literal(piece)
    if shape.tailed:
        glob += "*"
    lines = [
        f"[[pattern]]  # {counted(shape.count, 'range')} such as {shape.example!r}",
        f"glob = {_quoted(glob)}",
        f"match = {_quoted(f'^{match}$')}",
    ]
    if meaning.phase is not None:
        label = meaning.phase.label
        lines.append(f'phase = "{label}"  # a guess: F, B, W, BW, R, FB, Optimizer, ...')
    if meaning.part:
        lines.append("part = true  # the parts in a row are one operation")
    return "\n".join(lines) + "\n"


def _literal(text: str) -> str:
    """Return a GLOB that matches exactly this text."""
    return re.sub(r"([*?\[])", r"[\1]", text)


def _quoted(text: str) -> str:
    """Return a TOML string that needs no escapes, or one with them."""
    if "'" not in text and text.isprintable():
        return f"'{text}'"
    return '"' + "".join(map(_character, text)) + '"'


def _character(character: str) -> str:
    """Return a character of a TOML string, as an escape where it would end or garble it."""
    if character in '\\"':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def _escaped(text: str) -> str:
    """Return a regular expression that matches exactly this text, blanks left as they are."""
    return re.escape(text).replace("\\ ", " ")
