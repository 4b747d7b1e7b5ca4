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
from bubbleviz.conventions.convention_file import built_in, parse_convention
from bubbleviz.conventions.range_names import bare_name, match_name, parse_range_names
from bubbleviz.model.phases import COUNTED, TRANSFERS, Phase, parse_phase_label
from bubbleviz.model.texts import format_count

_DIGITS = re.compile(r"[0-9]+")
#: A number of a microbatch is smaller.
_MICROBATCH_LIMIT = 10_000


@cache
def _load_words() -> dict[str, Any]:
    """Return the file of words; it is read on first use, as most runs need none of them."""
    return toml_files.load(toml_files.read_built_in("name_words.toml"))


def _build_regex(text: str) -> re.Pattern[str]:
    """Return a regex of the file, in which words that several share are put in."""
    for name, shared in _load_words()["shared"].items():
        text = text.replace(f"<{name}>", shared)
    return re.compile(text)


@cache
def _load_phase_regexes() -> list[tuple[re.Pattern[str], Phase | None]]:
    """Return words for what a range does, the most specific first.

    The phase is None for words of ranges around operations.
    """
    return [
        (_build_regex(row["match"]), parse_phase_label(row.get("phase", "")))
        for row in _load_words()["phase"]
    ]


@cache
def _load_number_regexes() -> dict[str, re.Pattern[str]]:
    """Return words in front of a number, by what the number counts."""
    return {group: _build_regex(text) for group, text in _load_words()["numbers"].items()}


@cache
def _get_regex(name: str) -> re.Pattern[str]:
    """Return a regex of the file by its name."""
    return _build_regex(_load_words()["regexes"][name])


def guess_phase(name: str) -> Phase | None:
    """Return the phase that a word of a name implies; None where none does."""
    text = name.lower()
    return next((phase for words, phase in _load_phase_regexes() if words.search(text)), None)


@dataclass(frozen=True)
class NameShape:
    """Names that differ in their numbers only.

    Attributes:
        pieces: the text between the numbers.
        example: one of the names.
        count: how often they occur.
        has_tail: whether ``emit_nvtx`` wrote something behind one.
        n_distinct: how many values each number has.
        largest: the largest of each.
        is_measure: whether each is a decimal, or stands in front of a unit, and so counts nothing.
    """

    pieces: tuple[str, ...]
    example: str
    count: int
    has_tail: bool
    n_distinct: tuple[int, ...]
    largest: tuple[int, ...]
    is_measure: tuple[bool, ...]

    @cached_property
    def phase(self) -> Phase | None:
        """The phase that a word of the names implies."""
        return guess_phase("".join(self.pieces))

    @cached_property
    def part(self) -> bool:
        """Whether the names are those of parts of an operation, such as layers."""
        numbered = any(map(self.is_part_number, range(len(self.pieces) - 1)))
        return numbered or bool(_get_regex("part").search("".join(self.pieces).lower()))

    @cached_property
    def batch_index(self) -> int | None:
        """Which number counts batches."""
        words = [
            bool(_get_regex("batch").search(self._get_prefix(index)))
            for index in range(len(self.pieces) - 1)
        ]
        return words.index(True) if True in words else None

    def is_part_number(self, index: int) -> bool:
        """Whether a number counts parts of a stage, such as layers, and so no microbatches."""
        if _get_regex("numbered_part").search(self._get_prefix(index)):
            return True
        next_piece = self.pieces[index + 1].lower()
        names_next_number = index + 2 < len(self.pieces) and _get_regex("numbered_part").search(
            next_piece
        )
        return not names_next_number and _get_regex("part_behind").match(next_piece) is not None

    def infer_groups(self, *, batch: str) -> list[str]:
        """Return what each number counts, empty for unknown.

        Without a word of its own, the first that follows the name of a pass is the microbatch;
        others count layers, lines of source code, or what else there is.

        Args:
            batch: what numbers of batches count.
        """
        groups = [self._infer_group(index, batch) for index in range(len(self.pieces) - 1)]
        groups = [group * (groups.index(group) == index) for index, group in enumerate(groups)]
        if "microbatch" not in groups and not self.part:
            candidates = [
                index
                for index, group in enumerate(groups)
                if not group and self._has_pass_prefix(index)
            ]
            if candidates:
                groups[candidates[0]] = "microbatch"
        return groups

    def _get_prefix(self, index: int) -> str:
        """Return what stands in front of a number; a letter right behind a number is no word."""
        return "x" * (index > 0) + self.pieces[index].lower()

    def _infer_group(self, index: int, batch: str) -> str:
        piece = self._get_prefix(index)
        if self.is_measure[index] or self.is_part_number(index):
            return ""
        if index == self.batch_index and self.n_distinct[index] > 1:
            return batch
        group = next(
            (group for group, words in _load_number_regexes().items() if words.search(piece)), ""
        )
        if group == "iteration" and _get_regex("pass").search(piece):
            return ""
        return "" if group == "microbatch" and self.largest[index] >= _MICROBATCH_LIMIT else group

    def _has_pass_prefix(self, index: int) -> bool:
        """Whether a number follows the name of a pass, and is no part of a word or an address."""
        if self.is_part_number(index):
            return False
        can_be_microbatch = (
            not self.pieces[index + 1][:1].isalpha() and self.largest[index] < _MICROBATCH_LIMIT
        )
        return (
            can_be_microbatch
            and not self.is_measure[index]
            and bool(_get_regex("pass").search(self._get_prefix(index)))
        )


def group_by_shape(counts: Mapping[str, int]) -> list[NameShape]:
    """Return the shapes of names that can be operations, the most frequent first.

    Args:
        counts: how often each name occurs.
    """
    names: dict[tuple[str, ...], list[str]] = {}
    total: Counter[tuple[str, ...]] = Counter()
    shapes_with_tail: set[tuple[str, ...]] = set()
    for text, count in counts.items():
        name = bare_name(text)
        if (
            0 < len(name) <= 100
            and "\0" not in name
            and not _get_regex("no_operation").search(name)
        ):
            pieces = tuple(_DIGITS.split(name))
            total[pieces] += count
            names.setdefault(pieces, []).append(name)
            if name != text:
                shapes_with_tail.add(pieces)
    ordered = sorted(total, key=lambda pieces: (-total[pieces], pieces))
    return [_build_shape(p, names[p], total[p], has_tail=p in shapes_with_tail) for p in ordered]


def _build_shape(
    pieces: tuple[str, ...], names: Sequence[str], count: int, *, has_tail: bool
) -> NameShape:
    numbers = [set(map(int, column)) for column in zip(*map(_DIGITS.findall, names), strict=True)]
    last = len(pieces) - 2
    # Numbers that stand in front of a unit, and those that are decimals.
    has_unit = [
        _get_regex("unit").match(pieces[index + 1]) is not None
        and (index == last or _get_regex("label").match(pieces[index + 1]) is None)
        for index in range(last + 1)
    ]

    def is_fraction(at: int) -> bool:
        places = (([m.start() for m in _DIGITS.finditer(name)][at - 1], name) for name in names)
        return has_unit[at] or all(
            _get_regex("decimal").match(name, start) for start, name in places
        )

    is_fraction_part = [
        pieces[index] == "." and index > 0 and is_fraction(index) for index in range(last + 1)
    ]
    return NameShape(
        pieces,
        example=min(names),
        count=count,
        has_tail=has_tail,
        n_distinct=tuple(map(len, numbers)),
        largest=tuple(map(max, numbers)),
        is_measure=tuple(
            map(any, zip(has_unit, is_fraction_part, [*is_fraction_part, False][1:], strict=True))
        ),
    )


# Drafts of a convention, for ranges that no known one names.


#: How many shapes of names a draft holds at most.
_MAX_SHAPES = 12
#: How many drafts are made at most.
_MAX_DRAFTS = 10
#: What unnamed numbers behind the name of a pass may count, in this order.
_NUMBER_ORDERS = (("microbatch", "chunk", "sequence"), ("chunk", "microbatch", "sequence"))


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
    def is_work(self) -> bool:
        """Whether they name forward or backward."""
        return self.phase in COUNTED


def generate_drafts(counts: Mapping[str, int]) -> Mapping[str, Convention]:
    """Return the drafts for the names by their TOML, the likeliest first, to be tried in turn.

    They differ where names leave it open: ranges of one phase may lie in each other (a trainer's
    forward around a library's), several numbers in a row may be microbatch and chunk or the other
    way round, a chunk alone may be what others call a microbatch, and numbers of a mark may be an
    iteration's, or a rank's.

    Args:
        counts: how often each name occurs.
    """
    shapes = group_by_shape(counts)
    texts_of_variants = (
        _format_draft(_copy_groups_to_transfers(variant))
        for variant in _generate_variants(shapes)
        if variant
    )
    texts = list(dict.fromkeys(texts_of_variants))[:_MAX_DRAFTS]
    return {text: parse_convention(text, "the draft") for text in texts}


def _infer_meanings(shapes: Sequence[NameShape], batch: str) -> list[ShapeMeaning]:
    """Return what the shapes mean for which words imply a phase, or an iteration.

    Args:
        shapes: the shapes.
        batch: what numbers of batches count.
    """
    has_weight_pass = any(shape.phase is Phase.W for shape in shapes)
    lacks_forward = all(shape.phase is not Phase.F for shape in shapes)
    meanings = []
    for shape in shapes:
        phase, groups = _match_built_in(shape) or (shape.phase, shape.infer_groups(batch=batch))
        text = "".join(shape.pieces).lower()
        if phase is None and lacks_forward and _get_regex("trainer_forward").search(text):
            phase = Phase.F
        if phase is Phase.BW and has_weight_pass:
            phase = Phase.B
        if phase is Phase.OPTIMIZER:
            groups = [group * (group != "microbatch") for group in groups]
        if phase is None:
            # Every analysis follows what a built-in convention knows as the name of an iteration.
            marks_iterations = "iteration" in groups
            built_in_meaning = parse_range_names(
                [shape.example] if marks_iterations else [], *built_in().values()
            )
            marks_iterations &= not any(
                (built_in_meaning.phase < 0) & (built_in_meaning.iteration >= 0)
            )
        if phase is not None or marks_iterations:
            part = phase in COUNTED and shape.part
            meanings.append(ShapeMeaning(shape, phase, tuple(groups), part))
    return meanings


def _match_built_in(shape: NameShape) -> tuple[Phase, list[str]] | None:
    """Return phase and groups of names of work that a built-in convention knows whole."""
    for convention in built_in().values():
        pattern, phase, _ = match_name(shape.example, convention) or (None, None, ())
        if pattern is None or phase not in COUNTED or pattern.part or pattern.stands_in:
            continue
        if match := pattern.compiled.match(shape.example):
            group_of_span = {
                match.span(group): group for group in pattern.groups if group != "phase"
            }
            return phase, [group_of_span.get(m.span(), "") for m in _DIGITS.finditer(shape.example)]
    return None


def _generate_variants(shapes: Sequence[NameShape]) -> Iterator[list[ShapeMeaning]]:
    """Yield the meanings that a draft may hold."""
    optimizer_counts_batches = any(
        shape.phase is Phase.OPTIMIZER and shape.batch_index is not None for shape in shapes
    )
    meanings = _infer_meanings(shapes, "iteration" if optimizer_counts_batches else "microbatch")
    outer = _drop_covered_parts(meanings)
    yield outer[:_MAX_SHAPES]
    yield _intersect_groups(outer[:_MAX_SHAPES])
    for order in _NUMBER_ORDERS:
        yield [_order_numbers(m, order) for m in outer[:_MAX_SHAPES]]
    yield [_use_chunk_as_microbatch(m) for m in outer[:_MAX_SHAPES]]
    yield _drop_covered_parts(_infer_meanings(shapes, "iteration"))[:_MAX_SHAPES]
    # Without microbatches an analysis numbers them by order.
    yield _intersect_groups(outer[:_MAX_SHAPES], excluded="microbatch")
    # Of ranges inside each other, those that number microbatches tell more.
    by_detail = sorted(outer, key=lambda m: "microbatch" not in m.groups)
    yield _intersect_groups(list({m.phase: m for m in reversed(by_detail)}.values())[::-1])
    yield [m for m in outer if m.phase is not None][:_MAX_SHAPES]
    yield meanings[:_MAX_SHAPES]


def _drop_covered_parts(meanings: Sequence[ShapeMeaning]) -> list[ShapeMeaning]:
    """Return the meanings without parts of operations that others name whole."""
    complete_phases = {m.phase for m in meanings if m.is_work and not m.part}
    return [m for m in meanings if not (m.part and m.phase in complete_phases)]


def _intersect_groups(meanings: Sequence[ShapeMeaning], excluded: str = "") -> list[ShapeMeaning]:
    """Return meanings in which forward and backward have the same groups, so that they pair.

    Args:
        meanings: the meanings.
        excluded: a group that none has.
    """
    group_sets = [set(m.groups) for m in meanings if m.is_work]
    shared = set.intersection(*group_sets) - {excluded} if group_sets else set()
    shared_groups = [tuple(g * (g in shared or not m.is_work) for g in m.groups) for m in meanings]
    return [replace(m, groups=groups) for m, groups in zip(meanings, shared_groups, strict=True)]


def _use_chunk_as_microbatch(meaning: ShapeMeaning) -> ShapeMeaning:
    """Return a meaning in which a chunk's number, if it varies, is the microbatch, if none is."""
    if not meaning.is_work or meaning.part or "microbatch" in meaning.groups:
        return meaning
    numbers = zip(meaning.shape.n_distinct, meaning.groups, strict=True)
    varying = [at for at, (n, group) in enumerate(numbers) if n > 1 and group == "chunk"]
    if not varying:
        return meaning
    groups = list(meaning.groups)
    groups[varying[0]] = "microbatch"
    return replace(meaning, groups=tuple(groups))


def _order_numbers(meaning: ShapeMeaning, order: Sequence[str]) -> ShapeMeaning:
    """Return a meaning in which the numbers from the microbatch on have this order."""
    groups = list(meaning.groups)
    if "microbatch" not in groups or not meaning.is_work:
        return meaning
    first = groups.index("microbatch")
    stop = next((i for i, group in enumerate(groups) if i > first and group), len(groups))
    available = [name for name in order if name == "microbatch" or name not in groups]
    slots = [i for i in range(first, stop) if not meaning.shape.is_part_number(i)]
    if len(slots) < 2:
        return meaning
    for number, slot in enumerate(slots):
        groups[slot] = available[number] if number < len(available) else ""
    return replace(meaning, groups=tuple(groups))


def _copy_groups_to_transfers(meanings: Sequence[ShapeMeaning]) -> list[ShapeMeaning]:
    """Return meanings in which transfers' numbers mean what those of work in their shape do.

    ``RECV_BACKWARD.3.0.1`` counts what ``B3.0.1`` counts; words alone tell no chunk of a transfer.
    """
    groups_of_shape = {m.shape.pieces[1:]: m.groups for m in reversed(meanings) if m.is_work}
    return [
        replace(m, groups=groups)
        if m.phase in (*TRANSFERS, Phase.R)
        and set(m.groups) <= {"", "microbatch"}
        and "microbatch" in (groups := groups_of_shape.get(m.shape.pieces[1:], ()))
        else m
        for m in meanings
    ]


def _format_draft(meanings: Sequence[ShapeMeaning]) -> str:
    return 'name = "mine"\n\n' + "\n".join(map(_format_pattern, meanings))


def _format_pattern(meaning: ShapeMeaning) -> str:
    """Return the TOML of one pattern."""
    shape = meaning.shape
    match = _quote_regex(shape.pieces[0])
    glob = _quote_glob(shape.pieces[0])
    for group, piece in zip(meaning.groups, shape.pieces[1:], strict=True):
        match += (f"(?P<{group}>[0-9]+)" if group else "[0-9]+") + _quote_regex(piece)
        glob += "[0-9]*" + _quote_glob(piece)
    if shape.has_tail:
        glob += "*"
    lines = [
        f"[[pattern]]  # {format_count(shape.count, 'range')} such as {shape.example!r}",
        f"glob = {_quote_toml(glob)}",
        f"match = {_quote_toml(f'^{match}$')}",
    ]
    if meaning.phase is not None:
        label = meaning.phase.label
        lines.append(f'phase = "{label}"  # a guess: F, B, W, BW, R, FB, Optimizer, ...')
    if meaning.part:
        lines.append("part = true  # the parts in a row are one operation")
    return "\n".join(lines) + "\n"


def _quote_glob(text: str) -> str:
    """Return a GLOB that matches exactly this text."""
    return re.sub(r"([*?\[])", r"[\1]", text)


def _quote_toml(text: str) -> str:
    """Return a TOML string that needs no escapes, or one with them."""
    if "'" not in text and text.isprintable():
        return f"'{text}'"
    return '"' + "".join(map(_quote_character, text)) + '"'


def _quote_character(character: str) -> str:
    """Return a character of a TOML string, as an escape where it would end or garble it."""
    if character in '\\"':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def _quote_regex(text: str) -> str:
    """Return a regular expression that matches exactly this text, blanks left as they are."""
    return re.escape(text).replace("\\ ", " ")
