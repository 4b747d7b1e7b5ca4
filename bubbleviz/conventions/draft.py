"""A first draft of a convention, for ranges that no known one names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from bubbleviz.conventions.range_names import bare_name
from bubbleviz.model.phases import COUNTED, Phase

#: How many shapes of names a draft holds at most.
_MOST = 8
#: Words for what a range does, the most specific first.
_PHASES = (
    (r"recv.*(?:fwd|forward)|(?:fwd|forward).*recv", Phase.RECV_F),
    (r"send.*(?:fwd|forward)|(?:fwd|forward).*send", Phase.SEND_F),
    (r"recv.*(?:bwd|backward)|(?:bwd|backward).*recv", Phase.RECV_B),
    (r"send.*(?:bwd|backward)|(?:bwd|backward).*send", Phase.SEND_B),
    (r"all.?reduce|all.?gather|reduce.?scatter|all.?to.?all|broadcast", Phase.COLLECTIVE),
    (r"recompute|checkpoint", Phase.R),
    (r"wgrad|weight.?grad|grad.?weight", Phase.W),
    (r"dgrad|input.?grad|grad.?input", Phase.B),
    (r"backward|bwd|bprop|(?:^|[^a-z])b(?:[^a-z]|$)", Phase.BW),
    (r"(?<!feed)(?<!feed[^a-z])forward|fwd|fprop|(?:^|[^a-z])f(?:[^a-z]|$)", Phase.F),
    (r"optim|adam|sgd", Phase.OPTIMIZER),
)
#: Words in front of a number for what it counts.
_NUMBERS = (
    (r"(?:micro.?batch|micro|mb|mbs|batch)[^a-z0-9]*$", "microbatch"),
    (r"(?:stage|pp)[^a-z0-9]*$", "stage"),
    (r"(?:chunk|virtual|vpp?)[^a-z0-9]*$", "chunk"),
    (r"(?:iteration|iter|step)[^a-z0-9]*$", "iteration"),
    (r"rank[^a-z0-9]*$", "rank"),
)
#: What stands in front of a number that counts microbatches though no word says so.
_PASS = re.compile(
    r"(?:forward|fwd|fprop|backward|bwd|bprop|[wd]grad|recompute|(?:^|[^a-z])[fbw])"
    r"(?:[^a-z0-9]?(?:pass|microbatch))?[^a-z0-9]*$"
)
#: What stands in front of the number of a part of a stage.
_PART = re.compile(r"(?:layers?|blocks?|blk|modules?|h|mlp|ffn|attn|attention|experts?)[^a-z0-9]*$")
#: Names of operators, of libraries' functions, and of lines of source code: no operations.
_NO_OPERATION = re.compile(
    r"::|\.pyx?\(|\w+Backward[0-9]+$|zero_grad"
    r"|^(?:cudnn|cublas|cusparse|cufft|cuda|nccl|MPI_|void )"
)
_DIGITS = re.compile(r"[0-9]+")


@dataclass(frozen=True)
class NameShape:
    """Names that differ in their numbers only.

    Attributes:
        pieces: the text between the numbers.
        example: one of the names.
        count: how often they occur.
        tailed: whether ``emit_nvtx`` wrote something behind one.
    """

    pieces: tuple[str, ...]
    example: str
    count: int
    tailed: bool


def suggest(counts: Mapping[str, int]) -> str | None:
    """Return a TOML draft for the names, most frequent shapes first; None without any phase.

    Args:
        counts: how often each name occurs.
    """
    return next(iter(drafts(counts)), None)


def drafts(counts: Mapping[str, int]) -> tuple[str, ...]:
    """Return the TOML drafts for the names, to be tried in turn.

    The first holds every shape that a word implies a phase for. Ranges of one phase may lie in each
    other (a trainer's forward around a library's), so the second holds one shape a phase.

    Args:
        counts: how often each name occurs.
    """
    patterns = [(shape, p) for shape in _shapes(counts) if (p := _pattern(shape)) is not None]
    first: dict[Phase | None, str] = {}
    for shape, pattern in patterns:
        first.setdefault(_phase(shape), pattern)
    texts = ([pattern for _, pattern in patterns[:_MOST]], list(first.values()))
    written = ('name = "mine"\n\n' + "\n".join(draft) for draft in texts if draft)
    return tuple(dict.fromkeys(written))


def folded(counts: Mapping[str, int], most: int) -> tuple[tuple[str, int], ...]:
    """Return the most frequent shapes of names, numbers written as ``#``, and how often."""
    total: Counter[str] = Counter()
    for name, count in counts.items():
        total[_DIGITS.sub("#", name)] += count
    return tuple(sorted(total.items(), key=lambda item: (-item[1], item[0]))[:most])


def _shapes(counts: Mapping[str, int]) -> list[NameShape]:
    total: Counter[tuple[str, ...]] = Counter()
    examples: dict[tuple[str, ...], str] = {}
    tailed: set[tuple[str, ...]] = set()
    for text, count in counts.items():
        name = bare_name(text)
        if name.isprintable() and 0 < len(name) <= 100 and not _NO_OPERATION.search(name):
            pieces = tuple(_DIGITS.split(name))
            total[pieces] += count
            examples[pieces] = min(examples.get(pieces, name), name)
            if name != text:
                tailed.add(pieces)
    ordered = sorted(total, key=lambda pieces: (-total[pieces], pieces))
    return [NameShape(p, examples[p], total[p], p in tailed) for p in ordered]


def _phase(shape: NameShape) -> Phase | None:
    """Return the phase that a word of the names implies."""
    text = "".join(shape.pieces).lower()
    return next((phase for words, phase in _PHASES if re.search(words, text)), None)


def _pattern(shape: NameShape) -> str | None:
    """Return the TOML of one pattern; None where no word implies a phase or an iteration."""
    phase = _phase(shape)
    groups = _groups(shape.pieces)
    if phase is None and "iteration" not in groups:
        return None
    match = _escaped(shape.pieces[0])
    glob = _literal(shape.pieces[0])
    for group, piece in zip(groups, shape.pieces[1:], strict=True):
        match += (f"(?P<{group}>[0-9]+)" if group else "[0-9]+") + _escaped(piece)
        glob += "[0-9]*" + _literal(piece)
    if shape.tailed:
        glob += "*"
    lines = [
        f"[[pattern]]  # {shape.count:,} ranges such as {shape.example!r}",
        f"glob = {_quoted(glob)}",
        f"match = {_quoted(f'^{match}$')}",
    ]
    if phase is not None:
        lines.append(f'phase = "{phase.label}"  # a guess: F, B, W, BW, R, FB, Optimizer, ...')
    if phase in COUNTED and any(_PART.search(piece.lower()) for piece in shape.pieces[:-1]):
        lines.append("part = true  # the parts in a row are one operation")
    return "\n".join(lines) + "\n"


def _groups(pieces: tuple[str, ...]) -> list[str]:
    """Return the group of each number, empty for none.

    The first without a word of its own that follows the name of a pass is the microbatch; others
    count layers, lines of source code, or what else there is.
    """
    groups: list[str] = []
    for piece in pieces[:-1]:
        group = next((g for words, g in _NUMBERS if re.search(words, piece.lower())), "")
        groups.append("" if group in groups else group)
    if "microbatch" not in groups and "iteration" not in groups:
        passes = [bool(_PASS.search(piece.lower())) for piece in pieces[:-1]]
        free = [i for i, group in enumerate(groups) if not group and passes[i]]
        if free:
            groups[free[0]] = "microbatch"
    return groups


def _literal(text: str) -> str:
    """Return a GLOB that matches exactly this text."""
    return re.sub(r"([*?\[])", r"[\1]", text)


def _quoted(text: str) -> str:
    """Return a TOML string that needs no escapes, or one with them."""
    if "'" not in text:
        return f"'{text}'"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _escaped(text: str) -> str:
    """Return a regular expression that matches exactly this text, blanks left as they are."""
    return re.escape(text).replace("\\ ", " ")
