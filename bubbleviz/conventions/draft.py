"""Drafts of a convention, for ranges that no known one names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bubbleviz.conventions.convention import Convention
from bubbleviz.conventions.convention_file import built_in, convention_of
from bubbleviz.conventions.name_words import NameShape, shapes_of
from bubbleviz.conventions.range_names import understand
from bubbleviz.model.phases import COUNTED, TRANSFERS, Phase
from bubbleviz.model.texts import counted
from bubbleviz.model.values import frozen

#: How many shapes of names a draft holds at most.
_MOST_SHAPES = 12
#: How many drafts are made at most.
_MOST_DRAFTS = 9
#: What unnamed numbers behind the name of a pass may count, in this order.
_ORDERS = (("microbatch", "chunk", "sequence"), ("chunk", "microbatch", "sequence"))


@frozen
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
        phase, groups = shape.phase, shape.groups(batch=batch)
        if phase is None and without_forward and shape.holds_forward:
            phase = Phase.F
        if phase is Phase.BW and split:
            phase = Phase.B
        if phase is Phase.OPTIMIZER:
            groups = [group * (group != "microbatch") for group in groups]
        if phase is not None or ("iteration" in groups and not _marks_iterations(shape.example)):
            part = phase in COUNTED and shape.part
            meanings.append(ShapeMeaning(shape, phase, tuple(groups), part))
    return meanings


def _marks_iterations(name: str) -> bool:
    """Whether a built-in convention knows the name of an iteration; every analysis follows that."""
    names = understand([name], *built_in().values())
    return bool(names.phase[0] < 0 and names.iteration[0] >= 0)


def _variants(shapes: Sequence[NameShape]) -> Iterator[list[ShapeMeaning]]:
    """Yield the meanings that a draft may hold."""
    numbered = any(shape.phase is Phase.OPTIMIZER and shape.batch is not None for shape in shapes)
    meanings = _meanings(shapes, "iteration" if numbered else "microbatch")
    outer = _outer(meanings)
    yield outer[:_MOST_SHAPES]
    for order in _ORDERS:
        yield [_numbered(m, order) for m in outer[:_MOST_SHAPES]]
    yield [_alone(m) for m in outer[:_MOST_SHAPES]]
    yield _outer(_meanings(shapes, "iteration"))[:_MOST_SHAPES]
    yield [_by_order(m) for m in outer[:_MOST_SHAPES]]
    yield list({m.phase: m for m in reversed(outer)}.values())[::-1]
    yield [m for m in outer if m.phase is not None][:_MOST_SHAPES]
    yield meanings[:_MOST_SHAPES]


def _outer(meanings: Sequence[ShapeMeaning]) -> list[ShapeMeaning]:
    """Return the meanings without parts of operations that others name whole."""
    whole = {m.phase for m in meanings if m.works and not m.part}
    return [m for m in meanings if not (m.part and m.phase in whole)]


def _by_order(meaning: ShapeMeaning) -> ShapeMeaning:
    """Return a meaning without microbatches, which an analysis then numbers by order."""
    groups = tuple(group * (group != "microbatch") for group in meaning.groups)
    return replace(meaning, groups=groups) if meaning.works else meaning


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
