"""Drafts naming conventions by interpreting the words and numbers in unrecognized range names.

``name_words.toml`` lists words for phases (``fwd``, ``wgrad``) and words before numbers (``mb``,
``chunk``). All names that differ only in their numbers form a *shape*. A draft is a convention file
with one pattern for each shape that looks like a forward, a backward, communication or an
iteration. Names are often ambiguous, so several drafts are generated, most likely first. The caller
tries the drafts in turn.
"""

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
#: Exclusive upper bound of microbatch numbers. Larger numbers must have another meaning.
_MICROBATCH_LIMIT = 10_000


@cache
def _load_words() -> dict[str, Any]:
    """Load ``name_words.toml`` on first use. Most runs never need the file."""
    return toml_files.load(toml_files.read_built_in("name_words.toml"))


def _build_regex(text: str) -> re.Pattern[str]:
    """Compile a regex from ``name_words.toml``, replacing each ``<name>`` with a shared regex."""
    for name, shared in _load_words()["shared"].items():
        text = text.replace(f"<{name}>", shared)
    return re.compile(text)


@cache
def _load_phase_regexes() -> list[tuple[re.Pattern[str], Phase | None]]:
    """Load (word regex, phase) pairs, most specific regex first.

    The phase is None if the words describe ranges that span several operations.
    """
    return [
        (_build_regex(row["match"]), parse_phase_label(row.get("phase", "")))
        for row in _load_words()["phase"]
    ]


@cache
def _load_number_regexes() -> dict[str, re.Pattern[str]]:
    """Load the regexes for words that precede a number, keyed by group, such as ``microbatch``."""
    return {group: _build_regex(text) for group, text in _load_words()["numbers"].items()}


@cache
def _get_regex(name: str) -> re.Pattern[str]:
    """Return the regex with this name from the table ``regexes`` in ``name_words.toml``."""
    return _build_regex(_load_words()["regexes"][name])


def guess_phase(name: str) -> Phase | None:
    """Return the phase that the words of a range name imply, or None if they imply no phase.

    The first regex in the phase table that matches decides. Case is ignored.
    """
    text = name.lower()
    return next((phase for words, phase in _load_phase_regexes() if words.search(text)), None)


@dataclass(frozen=True)
class NameShape:
    """A shape: a group of range names that differ only in their numbers.

    For example, ``fwd mb=0`` and ``fwd mb=1`` have the pieces ``("fwd mb=", "")`` and one number.

    Attributes:
        pieces: Texts before, between and after the numbers.
        example: The alphabetically first name with this shape.
        count: Number of ranges whose names have this shape.
        has_tail: Whether PyTorch's ``emit_nvtx`` appended a tail to any of the names.
        n_distinct: For each number, how many distinct values it takes.
        largest: For each number, the largest value it takes.
        is_measure: For each number, whether it is part of a decimal or is followed by a unit. Such
            a number is never an index.
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
        """The phase that the words of the shape imply, or None if they imply no phase."""
        return guess_phase("".join(self.pieces))

    @cached_property
    def part(self) -> bool:
        """Whether ranges of this shape are parts of operations, such as single layers."""
        numbered = any(map(self.is_part_number, range(len(self.pieces) - 1)))
        return numbered or bool(_get_regex("part").search("".join(self.pieces).lower()))

    @cached_property
    def batch_index(self) -> int | None:
        """Index of the first number that follows the word "batch", or None if no number does."""
        words = [
            bool(_get_regex("batch").search(self._get_prefix(index)))
            for index in range(len(self.pieces) - 1)
        ]
        return words.index(True) if True in words else None

    def is_part_number(self, index: int) -> bool:
        """Return whether a number counts layers or similar parts.

        A word such as ``layer`` must precede the number, or follow it without belonging to the next
        number.
        """
        if _get_regex("numbered_part").search(self._get_prefix(index)):
            return True
        next_piece = self.pieces[index + 1].lower()
        names_next_number = index + 2 < len(self.pieces) and _get_regex("numbered_part").search(
            next_piece
        )
        return not names_next_number and _get_regex("part_behind").match(next_piece) is not None

    def infer_groups(self, *, batch: str) -> list[str]:
        """Infer the regex group of each number, such as "microbatch", or "" if it needs no group.

        - The words before a number imply the number's group. If several numbers would get the same
          group, only the first one gets the group.
        - If no number is the microbatch, the first number directly after the name of a pass
          (``forward 3``) becomes the microbatch. This does not apply to parts of operations.
        - All other numbers, such as line numbers, get no group.

        Args:
            batch: Group for a number after the word "batch": "microbatch" or "iteration".
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
        """Return the text before a number, in lower case.

        If the text follows another number, an ``x`` is prepended, so that a letter directly after
        that number is not read as a word.
        """
        return "x" * (index > 0) + self.pieces[index].lower()

    def _infer_group(self, index: int, batch: str) -> str:
        """Return the group that the words before a number imply, or "" if unknown.

        Measurements have no group. The number of a part, such as a layer, has the group "layer". A
        number that reaches 10,000 cannot be a microbatch.
        """
        piece = self._get_prefix(index)
        if self.is_measure[index]:
            return ""
        if self.is_part_number(index):
            return "layer"
        if index == self.batch_index and self.n_distinct[index] > 1:
            return batch
        group = next(
            (group for group, words in _load_number_regexes().items() if words.search(piece)), ""
        )
        if group == "iteration" and _get_regex("pass").search(piece):
            return ""
        return "" if group == "microbatch" and self.largest[index] >= _MICROBATCH_LIMIT else group

    def _has_pass_prefix(self, index: int) -> bool:
        """Return whether a number directly follows the name of a pass and can be a microbatch.

        The number must be below 10,000 in all names, must not be a measurement or a part number,
        and must not be followed by a letter.
        """
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
    """Group range names by shape, omitting names that cannot be operations.

    Names of operators and library functions, empty names, and names longer than 100 characters are
    left out.

    Args:
        counts: Number of ranges per name.

    Returns:
        The shapes, most frequent first. Shapes with equal counts are sorted by their pieces.
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
    """Build a shape, and find out which of its numbers are measurements, such as the 5 in ``5 ms``.

    Args:
        pieces: Texts before, between and after the numbers.
        names: The names with this shape, without the tail that ``emit_nvtx`` appends.
        count: Number of ranges whose names have this shape.
        has_tail: Whether ``emit_nvtx`` appended a tail to any of the names.
    """
    numbers = [set(map(int, column)) for column in zip(*map(_DIGITS.findall, names), strict=True)]
    last = len(pieces) - 2
    # Both numbers around a decimal point are measurements. So is a number that is followed by a
    # unit.
    has_unit = [
        _get_regex("unit").match(pieces[index + 1]) is not None
        and (index == last or _get_regex("label").match(pieces[index + 1]) is None)
        for index in range(last + 1)
    ]

    def is_fraction(index: int) -> bool:
        """Return whether a number after a point is the fractional part of a decimal.

        The number is a fractional part if a unit follows it or all names match the regex for
        decimals.
        """
        integer_starts = (
            [number.start() for number in _DIGITS.finditer(name)][index - 1] for name in names
        )
        return has_unit[index] or all(
            _get_regex("decimal").match(name, start)
            for name, start in zip(names, integer_starts, strict=True)
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


#: Maximum number of name shapes in a draft.
_MAX_SHAPES = 12
#: Maximum number of drafts.
_MAX_DRAFTS = 10
#: Possible meanings of consecutive unnamed numbers that follow the name of a pass, in order.
_NUMBER_ORDERS = (("microbatch", "chunk", "sequence"), ("chunk", "microbatch", "sequence"))


@dataclass(frozen=True)
class ShapeMeaning:
    """A guess at the meaning of one name shape.

    Attributes:
        shape: The shape.
        phase: Phase of the ranges, or None if they only mark iterations.
        groups: For each number, its regex group, such as "microbatch", or "" if it has none.
        part: Whether the ranges are parts of operations, such as single layers.
    """

    shape: NameShape
    phase: Phase | None
    groups: tuple[str, ...]
    part: bool

    @property
    def is_work(self) -> bool:
        """Whether the ranges are forwards or backwards."""
        return self.phase in COUNTED


def generate_drafts(counts: Mapping[str, int]) -> Mapping[str, Convention]:
    """Generate up to ten draft conventions for unrecognized range names.

    The drafts differ in how they resolve ambiguous names:

    - Ranges with the same phase may be nested, such as a trainer's forward around a library's
      forward.
    - Consecutive numbers may be microbatch and chunk, or chunk and microbatch.
    - A chunk number without a microbatch number may really be the microbatch.
    - The number in an iteration name may be the iteration or the rank.

    Args:
        counts: Number of ranges per name.

    Returns:
        The drafts, keyed by their TOML text, most likely first. Duplicates are dropped.
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
    """Guess the meaning of each shape whose words indicate a phase or an iteration.

    - A built-in convention that matches a shape determines its phase and groups.
    - If no shape is a forward, shapes without a phase that match the regex ``trainer_forward``
      become forwards.
    - If the words of any shape imply W, every BW becomes a B. This also applies if a built-in
      convention reads BW.
    - Optimizer shapes lose their microbatch number.
    - A shape without a phase is kept only if it contains an iteration number that no built-in
      convention already recognizes.

    Args:
        shapes: The shapes, most frequent first.
        batch: Group for a number after the word "batch": "microbatch" or "iteration".

    Returns:
        The meanings, in the order of the shapes.
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
            # Every analysis reads iteration numbers with all built-in conventions, so drafts need
            # no patterns for the iteration names of those conventions.
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
    """Return the phase and the number groups that a built-in convention reads from a shape's names.

    Only patterns for complete forwards and backwards are considered, and only conventions that do
    not require evidence. If several conventions match,
    the alphabetically first convention wins.

    Returns:
        The phase and the group of each number, or None if no convention matches the shape. The
        group of a number is "" if the convention does not read the number.
    """
    for convention in built_in().values():
        if convention.evidence:
            # These names are ambiguous.
            continue
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
    """Yield alternative meanings of the shapes, one list per draft, most likely first.

    The variants are, in this order:

    1. The inferred meanings. Parts of operations are left out if there are shapes of complete
       operations. A number after the word "batch" is the microbatch. If the name of an optimizer
       step contains such a number, the number is the iteration instead.
    2. Variant 1 with only the groups that all forward and backward shapes share.
    3. Variant 1 in which consecutive numbers are microbatch, chunk and sequence.
    4. Variant 1 in which consecutive numbers are chunk, microbatch and sequence.
    5. Variant 1 in which a chunk number is the microbatch.
    6. The inferred meanings in which a number after "batch" is the iteration.
    7. Variant 2 without microbatches.
    8. Variant 2 with one shape per phase, preferably one that has a microbatch number.
    9. Variant 1 without shapes that only mark iterations.
    10. All inferred meanings, including parts of operations.

    Most variants are limited to the first ``_MAX_SHAPES`` shapes. A variant may be empty, and
    several variants may be equal.
    """
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
    # If a draft reads no microbatch numbers, the analysis numbers the operations in order.
    yield _intersect_groups(outer[:_MAX_SHAPES], excluded="microbatch")
    # Ranges of one phase may be nested. So keep one shape per phase, preferably one that has a
    # microbatch number.
    by_detail = sorted(outer, key=lambda m: "microbatch" not in m.groups)
    yield _intersect_groups(list({m.phase: m for m in reversed(by_detail)}.values())[::-1])
    yield [m for m in outer if m.phase is not None][:_MAX_SHAPES]
    yield meanings[:_MAX_SHAPES]


def _drop_covered_parts(meanings: Sequence[ShapeMeaning]) -> list[ShapeMeaning]:
    """Drop shapes of operation parts if their phase also has a shape of complete operations."""
    complete_phases = {m.phase for m in meanings if m.is_work and not m.part}
    return [m for m in meanings if not (m.part and m.phase in complete_phases)]


def _intersect_groups(meanings: Sequence[ShapeMeaning], excluded: str = "") -> list[ShapeMeaning]:
    """Keep only the groups that all forward and backward shapes share.

    Forwards and backwards then have the same numbers, so that they can be paired.

    Args:
        meanings: One meaning per shape. Shapes that are neither forward nor backward keep all
            groups.
        excluded: A group that is always removed from the forward and backward shapes, or "".
    """
    group_sets = [set(m.groups) for m in meanings if m.is_work]
    shared = set.intersection(*group_sets) - {excluded} if group_sets else set()
    shared_groups = [tuple(g * (g in shared or not m.is_work) for g in m.groups) for m in meanings]
    return [replace(m, groups=groups) for m, groups in zip(meanings, shared_groups, strict=True)]


def _use_chunk_as_microbatch(meaning: ShapeMeaning) -> ShapeMeaning:
    """Return a copy of the meaning in which one chunk number becomes the microbatch number.

    The first chunk number that takes more than one value is chosen. The meaning is returned
    unchanged if it already has a microbatch or if no chunk number varies. It is also unchanged if
    its ranges are not complete forwards or backwards.
    """
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
    """Return a copy of the meaning in which consecutive numbers get the groups in ``order``.

    - The affected numbers are the microbatch and the numbers after it that have no group, up to the
      next number that has one. Numbers that count parts, such as layers, are skipped.
    - Groups listed in ``order`` are also skipped if the shape already contains them, except for the
      microbatch.
    - If there are more numbers than groups, the remaining numbers get no group.

    The meaning is returned unchanged if fewer than two numbers are affected or if it has no
    microbatch. It is also unchanged if its ranges are neither forwards nor backwards.

    Args:
        meaning: Meaning of one shape.
        order: Groups in the order in which the program is assumed to write the numbers.
    """
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
    """Give a transfer's numbers the same meaning as the numbers of a similar forward or backward.

    A transfer shape gets the groups of the first forward or backward shape that has the same text
    after its first piece. For example, the numbers of ``RECV_BACKWARD.3.0.1`` and ``B3.0.1`` mean
    the same, although no word in the transfer's name identifies the chunk number.

    A shape is changed only if it is a transfer or a recomputation and has no group other than the
    microbatch. The copied groups must include the microbatch.
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
    """Return the TOML text of a draft."""
    return 'name = "mine"\n\n' + "\n".join(map(_format_pattern, meanings))


def _format_pattern(meaning: ShapeMeaning) -> str:
    """Format the TOML ``[[pattern]]`` table of one shape.

    The table has the keys ``glob`` and ``match`` and, if needed, ``phase`` and ``part``. Comments
    give the number of ranges and an example.
    """
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
        lines.append("part = true  # consecutive parts form one operation")
    return "\n".join(lines) + "\n"


def _quote_glob(text: str) -> str:
    """Return a GLOB that matches exactly this text."""
    return re.sub(r"([*?\[])", r"[\1]", text)


def _quote_toml(text: str) -> str:
    """Format a text as a TOML string: literal if possible, otherwise with escapes."""
    if "'" not in text and text.isprintable():
        return f"'{text}'"
    return '"' + "".join(map(_quote_character, text)) + '"'


def _quote_character(character: str) -> str:
    """Return a character as it appears in a basic TOML string, escaped if needed."""
    if character in '\\"':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def _quote_regex(text: str) -> str:
    """Return a regex that matches exactly this text. Spaces are not escaped."""
    return re.escape(text).replace("\\ ", " ")
