r"""Naming conventions: how a framework writes the names of its ranges.

A convention is one TOML file, whether built in (beside this module) or a user's own. Adding a
framework is adding a file; its examples and counter-examples are tested against all others.
A user's own file is refused where it does not do to them what it says.

.. code-block:: toml

    name = "mine"
    summary = "how our trainer names its ranges"
    source = "train/profile.py"
    examples = ["fwd mb=3"]
    counter_examples = ["fwd"]

    [[pattern]]
    glob = "fwd mb=*"                          # SQLite GLOB, matches at least what the regex does
    match = '^fwd mb=(?P<microbatch>\d+)$'     # Python regex on the whole name
    phase = "F"                                # or a group (?P<phase>...), with [pattern.phases]

Named groups are ``phase, microbatch, chunk, stage, sequence, iteration, rank``, and
``second_microbatch, second_chunk, second_stage`` for a range that names two things. A pattern
with the group ``iteration`` and no phase marks iterations (or ``iteration = "by order"``: those
of its ranges that hold both forward and backward, counted on their thread).

- ``post_validation = true`` marks optimizer work that belongs to the iteration before.
- ``receives = false`` (or ``true``) says of a communication pattern whether it waits for a peer's
  data, where the phase does not tell.
- ``part = true`` names a part of an operation: what follows under the same phase belongs to the
  same one.

``explicit = true`` at the top level says that such names are written for us: where they name
forward or backward, no other naming that is recognised counts.

Before matching, the convention's NVTX domain in front (``domain = "TSL"``) and the tail of
PyTorch's ``emit_nvtx`` behind (``, op_id = 3``) are taken off; a ``glob`` must let them through.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from bubbleviz.conventions._toml import load_toml
from bubbleviz.conventions.globs import lets_through
from bubbleviz.errors import InputError, UsageError
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.phases import COUNTED, RECEIVING, Phase, phase_of_label

_NUMBERS = (
    "microbatch",
    "chunk",
    "stage",
    "sequence",
    "iteration",
    "rank",
    "second_microbatch",
    "second_chunk",
    "second_stage",
)
#: A convention that names work this many times less often than another one does not count.
_RARE = 10
#: An operation has fewer named parts (layers of a stage, forward or backward) than this.
_PARTS = 100
#: No count of microbatches or ranks has more; a name that says so is no name of ours.
_DIGITS = 9
_GROUPS = frozenset((*_NUMBERS, "phase"))
_KEYS = frozenset(
    (
        "name",
        "domain",
        "summary",
        "source",
        "explicit",
        "examples",
        "counter_examples",
        "pattern",
        "communication",
        "helper_threads",
    )
)
_PATTERN_KEYS = frozenset(
    ("glob", "match", "phase", "phases", "post_validation", "receives", "part", "iteration")
)


@dataclass(frozen=True)
class Pattern:
    """One shape of name.

    Attributes:
        glob: SQLite GLOB that matches at least every name that ``match`` does.
        match: regex on the whole name, with named groups.
        phase: the phase of every name that matches; None where a group tells, or none is meant.
        phases: what the text of the group ``phase`` means, where it is not our own word.
        post_validation: whether it is optimizer work for the iteration before.
        receives: whether communication under this name waits for a peer's data.
        part: whether it names a part of an operation only: what follows under the same phase
            belongs to the same one, up to another phase.
        by_order: whether it marks an iteration, if both passes run inside, numbered by order.
    """

    glob: str
    match: re.Pattern[str]
    phase: Phase | None
    phases: Mapping[str, Phase]
    post_validation: bool
    receives: bool | None
    part: bool
    by_order: bool

    @property
    def marks_iterations(self) -> bool:
        """Whether it names iterations and nothing else."""
        names_operation = self.phase is not None or "phase" in self.match.groupindex
        return not names_operation and (self.by_order or "iteration" in self.match.groupindex)


@dataclass(frozen=True)
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
        explicit: whether its names are written for us, and so come before a framework's.
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


@dataclass(frozen=True)
class Names(Table):
    """What each distinct name means; one row a name, -1 is "not said".

    ``phase`` is -1 for a name that is no operation; such a row can still mark an iteration.
    ``convention`` is the place of the convention that knows it.
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
        """Which names say anything."""
        return (self.phase >= 0) | (self.iteration >= 0) | (self.rank >= 0) | self.by_order


#: What PyTorch's emit_nvtx writes behind a name.
_TAIL = re.compile(r", (?:op_id|seq|sizes|input_op_ids) ?= ?.*\Z", re.DOTALL)


def plain(text: str, domain: str = "") -> str:
    """Return a name without its domain in front and PyTorch's ``emit_nvtx`` tail behind it.

    Exports hold the NVTX domain in a column; some tools write it in front, as ``TSL:Thunk``.
    """
    return _TAIL.sub("", text.removeprefix(f"{domain}:") if domain else text)


def understand(texts: Sequence[str], *conventions: Convention) -> Names:
    """Return what the conventions say of each name; the first that knows it decides."""
    rows = np.full((len(texts), len(_NUMBERS) + 1), NONE, np.int64)
    post_validation, receives = np.zeros(len(texts), bool), np.zeros(len(texts), bool)
    part, by_order = np.zeros(len(texts), bool), np.zeros(len(texts), bool)
    deciding = np.full(len(texts), NONE, np.int64)
    for row, text in enumerate(texts):
        parsed = ((i, _parse(plain(text, c.domain), c.patterns)) for i, c in enumerate(conventions))
        place, found = next(((i, f) for i, f in parsed if f is not None), (NONE, None))
        if found is not None:
            pattern, phase, numbers = found
            deciding[row] = place
            rows[row] = (NONE if phase is None else phase, *numbers)
            if rows[row, 1] == NONE and rows[row, 7] != NONE:
                # Of two things only the second is numbered: that is the one to be known by.
                rows[row, [1, 2]], rows[row, [7, 8]] = rows[row, [7, 8]], NONE
            post_validation[row] = pattern.post_validation
            receives[row] = phase in RECEIVING if pattern.receives is None else pattern.receives
            part[row], by_order[row] = pattern.part, pattern.by_order
    columns = np.ascontiguousarray(rows.T)
    return Names(
        convention=deciding,
        phase=columns[0],
        **{name: columns[i] for i, name in enumerate(_NUMBERS, 1)},
        post_validation=post_validation,
        receives=receives,
        part=part,
        by_order=by_order,
        texts=tuple(texts),
    )


def _parse(
    text: str, patterns: Sequence[Pattern]
) -> tuple[Pattern, Phase | None, tuple[int, ...]] | None:
    for pattern in patterns:
        match = pattern.match.search(text)
        if match is None:
            continue
        groups = match.groupdict()
        said = groups.get("phase")
        phase = pattern.phase
        if said is not None:
            phase = pattern.phases[said] if said in pattern.phases else phase_of_label(said)
        texts = [groups.get(name) for name in _NUMBERS]
        if any(t is not None and len(t) > _DIGITS for t in texts):
            return None
        return pattern, phase, tuple(_number(t, pattern) for t in texts)
    return None


def _number(text: str | None, pattern: Pattern) -> int:
    """Return the number a group matched; -1 where it matched nothing.

    Raises:
        UsageError: it matched something else; the pattern is wrong.
    """
    if text is None:
        return NONE
    if not (text.isascii() and text.isdigit()):
        raise UsageError(
            f"the pattern {pattern.match.pattern!r} takes {text[:40]!r} for a number; let its "
            "groups match digits only, as in (?P<microbatch>[0-9]+)"
        )
    return int(text)


@dataclass(frozen=True)
class Evidence:
    """How much of a profile one convention understands.

    Attributes:
        convention: the convention.
        work: ranges that it names F, B, W, BW or FB.
        whole: those of them that are not parts of an operation.
        other: other ranges that it names: Optimizer, communication, iterations.
    """

    convention: Convention
    work: int
    whole: int
    other: int


def weigh(counts: Mapping[str, int], conventions: Sequence[Convention]) -> tuple[Evidence, ...]:
    """Return the evidence for each convention, the strongest first.

    Args:
        counts: how often each name occurs.
        conventions: the candidates; of equal ones the first stays first.
    """
    number = np.array(list(counts.values()), np.int64)
    found = []
    for convention in conventions:
        names = understand(list(counts), convention)
        work = np.isin(names.phase, COUNTED)
        found.append(
            Evidence(
                convention,
                work=int(number[work].sum()),
                whole=int(number[work & ~names.part].sum()),
                other=int(number[names.understood & ~work].sum()),
            )
        )
    return tuple(sorted(found, key=lambda e: (-e.work, -e.other)))


def recognise(counts: Mapping[str, int]) -> tuple[Convention, ...]:
    """Return the built-in conventions that a sample of names follows, the strongest first.

    That is the one that names most forward and backward ranges; others join that name forward
    and backward in at least a tenth as many. Beside one that names whole operations, such as
    microbatches, the parts that another one names (layers) lie inside them: the innermost range
    would take the kernels of an operation, so of that other one only the rest holds.

    Explicit names lead alone where they are among these: a framework's own around or inside them
    tell the same twice. Where they name little or no work, they stand beside the others.
    """
    weighed = weigh(counts, tuple(built_in().values()))
    followed = _followed([e for e in weighed if e.work > 0])
    explicit = tuple(e.convention for e in weighed if e.convention.explicit and e.work + e.other)
    alone = tuple(c for c in followed if c.explicit)
    return alone or (followed and (*followed, *explicit))


def _followed(evidence: Sequence[Evidence]) -> tuple[Convention, ...]:
    """Return the conventions that name enough work, the strongest first."""
    whole = [e for e in evidence if e.whole > 0]
    most = max((e.work for e in evidence), default=0)
    if not any(_PARTS * e.work >= most for e in whole):
        return tuple(e.convention for e in evidence if _RARE * e.work >= most)
    most = max(e.work for e in whole)
    frequent = [e for e in evidence if _RARE * e.work >= most]
    chosen = (e.convention for e in frequent if e.whole > 0)
    rest = (without_parts(e.convention) for e in frequent if e.whole == 0)
    return (*chosen, *(c for c in rest if c.patterns))


def without_parts(convention: Convention) -> Convention:
    """Return a convention without its patterns for parts of operations."""
    return replace(convention, patterns=tuple(p for p in convention.patterns if not p.part))


def rounds(candidates: Sequence[Convention]) -> tuple[tuple[Convention, ...], ...]:
    """Return which conventions to try together, in turn, until one names forward or backward.

    What a sample shows is tried first; ranges too rare for a sample are looked for one convention
    at a time, since every prefilter costs a look at every name.
    """
    first = (tuple(candidates),) if candidates else ()
    return (*first, *((c,) for c in built_in().values()))


def with_iterations(conventions: Sequence[Convention]) -> tuple[Convention, ...]:
    """Return the conventions, and of the other built-in ones what names iterations."""
    others = [c for c in built_in().values() if c not in conventions]
    cut = (
        replace(c, patterns=tuple(p for p in c.patterns if p.marks_iterations and not p.by_order))
        for c in others
    )
    return (*conventions, *(c for c in cut if c.patterns))


def globs_of(conventions: Sequence[Convention]) -> tuple[str, ...]:
    """Return the distinct prefilters of conventions."""
    return tuple(dict.fromkeys(glob for c in conventions for glob in c.globs))


def load_convention(path: str | Path) -> Convention:
    """Return the convention of a TOML file.

    Raises:
        InputError: the file cannot be read.
        UsageError: it is no convention; the message names the key.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: cannot be read as a naming convention ({type(error).__name__}); "
            "give a TOML file or one of: " + ", ".join(sorted(built_in()))
        ) from error
    convention = _from_text(text, str(path))
    _refuse_wrong_examples(convention, str(path))
    return convention


def _refuse_wrong_examples(convention: Convention, where: str) -> None:
    """Raise UsageError where a convention does not do to its examples what it says.

    Built-in ones are held to theirs by tests, which keeps the start fast.
    """
    numbers = {id(pattern): i for i, pattern in enumerate(convention.patterns, 1)}
    for key, texts in (
        ("examples", convention.examples),
        ("counter_examples", convention.counter_examples),
    ):
        for text in texts:
            shown = repr(text[:60])
            try:
                taken = bool(understand([text], convention).understood[0])
                found = _parse(plain(text, convention.domain), convention.patterns)
            except UsageError as error:
                raise UsageError(f"{where}: {key}: {error}") from error
            if found is None or not taken:
                if key == "examples":
                    raise UsageError(f"{where}: {key}: no pattern takes {shown}")
                continue
            number, glob = numbers[id(found[0])], found[0].glob
            if key == "counter_examples":
                raise UsageError(f"{where}: {key}: pattern {number} takes {shown}")
            if not lets_through(glob, text):
                raise UsageError(
                    f"{where}: pattern {number}: glob {glob!r} holds the example {shown} back, "
                    "which match takes; widen it"
                )


@cache
def built_in() -> Mapping[str, Convention]:
    """Return the conventions that come with bubbleviz, by name."""
    found = [
        _from_text(entry.read_text(encoding="utf-8"), entry.name)
        for entry in (files("bubbleviz.conventions") / "frameworks").iterdir()
        if entry.name.endswith(".toml")
    ]
    return {convention.name: convention for convention in sorted(found, key=lambda c: c.name)}


def find_convention(name_or_path: str) -> Convention:
    """Return the built-in convention of that name, else the one in that TOML file."""
    if name_or_path in built_in():
        return built_in()[name_or_path]
    if not Path(name_or_path).exists() and Path(name_or_path).suffix != ".toml":
        near = difflib.get_close_matches(name_or_path, built_in(), n=1, cutoff=0.3)
        hint = f"did you mean {near[0]}?" if near else "give a TOML file of your own"
        raise UsageError(
            f"--convention {name_or_path}: no such naming; {hint} (known: "
            f"{', '.join(sorted(built_in()))})"
        )
    return load_convention(name_or_path)


def _from_text(text: str, where: str) -> Convention:
    try:
        data = load_toml(text)
    except ValueError as error:
        raise UsageError(f"{where}: not TOML ({error}); see the README for a convention") from error
    strange = sorted(set(data) - _KEYS)
    if strange:
        raise UsageError(
            f"{where}: unknown key {strange[0]!r}; the keys are {', '.join(sorted(_KEYS))}"
        )
    patterns = data.get("pattern")
    if not isinstance(patterns, list) or not patterns:
        raise UsageError(f"{where}: needs at least one [[pattern]] with glob and match")
    return Convention(
        name=_text(data, "name", where, Path(where).stem),
        summary=_text(data, "summary", where, ""),
        source=_text(data, "source", where, ""),
        domain=_text(data, "domain", where, ""),
        patterns=tuple(_pattern(p, f"{where}: pattern {i}") for i, p in enumerate(patterns, 1)),
        examples=_texts(data, "examples", where),
        counter_examples=_texts(data, "counter_examples", where),
        communication=_regexes(data, "communication", where),
        helper_threads=_regexes(data, "helper_threads", where),
        explicit=_switch(data, "explicit", where) is True,
    )


def _pattern(data: object, where: str) -> Pattern:
    if not isinstance(data, dict):
        raise UsageError(f"{where}: must be a table with glob and match")
    match = _regex(_text(data, "match", where, None), where)
    strange = sorted(set(match.groupindex) - _GROUPS)
    if strange:
        raise UsageError(
            f"{where}: unknown group {strange[0]!r}; the groups are {', '.join(sorted(_GROUPS))}"
        )
    unknown = sorted(set(data) - _PATTERN_KEYS)
    if unknown:
        raise UsageError(
            f"{where}: unknown key {unknown[0]!r}; the keys are {', '.join(sorted(_PATTERN_KEYS))}"
        )
    phases = data.get("phases", {})
    if not isinstance(phases, dict):
        raise UsageError(f"{where}: phases must be a table of your word = our phase")
    fixed = data.get("phase")
    iteration = data.get("iteration")
    if iteration is not None and iteration != "by order":
        raise UsageError(f"{where}: iteration must be 'by order', not {iteration!r}")
    pattern = Pattern(
        glob=_text(data, "glob", where, "*"),
        match=match,
        phase=None if fixed is None else _phase(fixed, where),
        phases={str(theirs): _phase(ours, where) for theirs, ours in phases.items()},
        post_validation=_switch(data, "post_validation", where) is True,
        receives=_switch(data, "receives", where),
        part=_switch(data, "part", where) is True,
        by_order=iteration is not None,
    )
    told = pattern.phase is not None or pattern.by_order
    if not told and not {"phase", "iteration", "rank"} & set(match.groupindex):
        raise UsageError(f"{where}: say the phase: phase = ..., a group phase, or iteration")
    return pattern


def _switch(data: Mapping[str, object], key: str, where: str) -> bool | None:
    value = data.get(key)
    if value is not None and not isinstance(value, bool):
        raise UsageError(f"{where}: {key} must be true or false, not {value!r}")
    return value


def _phase(label: object, where: str) -> Phase:
    phase = phase_of_label(str(label))
    if phase is None:
        known = ", ".join(p.label for p in Phase)
        raise UsageError(f"{where}: no phase {label!r}; the phases are {known}")
    return phase


def _regex(text: str, where: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"{where}: {text!r} is no regular expression ({error})") from error


def _text(data: Mapping[str, object], key: str, where: str, default: str | None) -> str:
    value = data.get(key, default)
    if not isinstance(value, str):
        raise UsageError(f"{where}: needs {key}, a text")
    return value


def _texts(data: Mapping[str, object], key: str, where: str) -> tuple[str, ...]:
    values = data.get(key, [])
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise UsageError(f"{where}: {key} must be a list of texts")
    return tuple(values)


def _regexes(data: Mapping[str, object], key: str, where: str) -> tuple[str, ...]:
    texts = _texts(data, key, where)
    for text in texts:
        _regex(text, f"{where}: {key}")
    return texts
