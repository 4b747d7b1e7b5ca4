r"""Convention files: a convention is one TOML file, built in or a user's own.

Built-in ones stand in ``frameworks/``. Adding a framework is adding a file; its examples and
counter-examples are tested against all others. A user's own file is refused where it does not read
its examples as it should.

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
``second_microbatch, second_chunk, second_stage`` for a range that names two operations; and
``tokens, second_tokens``. A pattern
with the group ``iteration`` and no phase marks iterations (or ``iteration = "by order"``: those
of its ranges that hold both forward and backward, counted on their thread).

- ``post_validation = true`` marks optimizer work that belongs to the iteration before.
- ``receives = false`` (or ``true``) sets whether a communication pattern waits for a peer's data,
  where the phase does not imply it.
- ``part = true`` names a part of an operation: ranges that follow under the same phase belong to
  the same operation.
- ``stands_in = true`` names operations only where no other convention names them whole, since one
  of its names may be around this one.

``tokens`` is how many tokens the operation takes; ``second_tokens`` adds to it.

``communication`` and ``helper_threads`` at the top level list regexes of further kernels and
threads. A file that holds nothing else adds these, and leaves the naming of ranges to be
recognised.

``explicit = true`` at the top level marks names written for bubbleviz: where they name forward or
backward, no other recognised convention counts.

Before matching, the convention's NVTX domain in front (``domain = "TSL"``) and the tail of
PyTorch's ``emit_nvtx`` behind (``, op_id = 3``) are taken off; a ``glob`` must let them through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from bubbleviz.conventions import toml_files
from bubbleviz.conventions.convention import NUMBER_GROUPS, Convention, Pattern
from bubbleviz.conventions.globs import is_glob_match
from bubbleviz.conventions.kinds import Kinds, default_kinds
from bubbleviz.conventions.range_names import match_name, parse_range_names
from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase, parse_phase_label
from bubbleviz.model.texts import find_nearest_word

_GROUPS = frozenset((*NUMBER_GROUPS, "phase"))
#: Types of the fields of a file beside its patterns, and of a pattern.
_FIELD_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("name", "summary", "source", "domain"), str),
    **dict.fromkeys(("examples", "counter_examples", "communication", "helper_threads"), list),
    "explicit": bool,
}
_PATTERN_FIELD_TYPES: Mapping[str, type] = {
    "glob": str,
    "match": str,
    "phase": str,
    "phases": dict,
    "iteration": str,
    **dict.fromkeys(("post_validation", "receives", "part", "stands_in"), bool),
}


@cache
def built_in() -> Mapping[str, Convention]:
    """Return the conventions that come with bubbleviz, by name.

    Raises:
        UsageError: a file of one is wrong, which is a defect of the package.
    """
    conventions = [
        parse_convention(entry.read_text(encoding="utf-8"), entry.name, is_trusted=True)
        for entry in Path(__file__).with_name("frameworks").iterdir()
        if entry.name.endswith(".toml")
    ]
    return {convention.name: convention for convention in sorted(conventions, key=lambda c: c.name)}


def find_convention(name_or_path: str) -> Convention:
    """Return the built-in convention of that name, else the one in that TOML file.

    Raises:
        InputError: the file cannot be read.
        UsageError: there is no such convention, or the file does not hold one.
    """
    if name_or_path in built_in():
        return built_in()[name_or_path]
    if not Path(name_or_path).exists() and Path(name_or_path).suffix != ".toml":
        suggestion = find_nearest_word(name_or_path, built_in())
        hint = f"did you mean {suggestion}?" if suggestion else "give a TOML file of your own"
        raise UsageError(
            f"--convention {name_or_path}: no such convention; {hint} (known: "
            f"{', '.join(sorted(built_in()))})"
        )
    return load_convention(name_or_path)


def find_conventions(names_or_paths: str | Path | Sequence[str | Path]) -> tuple[Convention, ...]:
    """Return the conventions of some names or paths, or of one.

    Raises:
        InputError: a file cannot be read.
        UsageError: there is no such convention, or a file does not hold one.
    """
    names = [names_or_paths] if isinstance(names_or_paths, (str, Path)) else names_or_paths
    return tuple(find_convention(str(name)) for name in names)


def collect_kinds(conventions: Sequence[Convention]) -> Kinds:
    """Return the lists of what kernels and threads are, with the additions of some conventions."""
    kinds = default_kinds()
    for convention in conventions:
        kinds = kinds.add_regexes(convention.communication, convention.helper_threads)
    return kinds


def load_convention(path: str | Path) -> Convention:
    """Return the convention in a TOML file.

    Raises:
        InputError: the file cannot be read.
        UsageError: it is not a convention; the message names the key.
    """
    built_in_names = ", ".join(sorted(built_in()))
    text = toml_files.read(
        path, "an NVTX convention", f"give a TOML file or one of: {built_in_names}"
    )
    convention = parse_convention(text, str(path))
    _check_examples(convention, str(path))
    return convention


def _check_examples(convention: Convention, source: str) -> None:
    """Raise UsageError where a convention does not read its examples as it should."""
    numbers = {id(pattern): i for i, pattern in enumerate(convention.patterns, 1)}
    pairs = [("examples", text) for text in convention.examples]
    pairs += [("counter_examples", text) for text in convention.counter_examples]
    for key, text in pairs:
        quoted = repr(text[:60])
        try:
            is_understood = bool(parse_range_names([text], convention).is_understood[0])
            match = match_name(text, convention)
        except UsageError as error:
            raise UsageError(f"{source}: {key}: {error}") from error
        if match is None or not is_understood:
            if key == "examples":
                raise UsageError(f"{source}: {key}: no pattern takes {quoted}")
            continue
        number, glob = numbers[id(match[0])], match[0].glob
        if key == "counter_examples":
            raise UsageError(f"{source}: {key}: pattern {number} takes {quoted}")
        if not is_glob_match(glob, text):
            raise UsageError(
                f"{source}: pattern {number}: glob {glob!r} holds the example {quoted} back, "
                "which match takes; widen it"
            )


def parse_convention(text: str, source: str, *, is_trusted: bool = False) -> Convention:
    """Return the convention that a TOML text holds.

    Args:
        text: of the file.
        source: the file, for messages.
        is_trusted: whether tests hold its regexes, which takes the time of compiling them.

    Raises:
        UsageError: it holds none; the message names the key.
    """
    try:
        data = toml_files.load(text)
    except ValueError as error:
        raise UsageError(
            f"{source}: not TOML ({error}); see bubbleviz guide conventions"
        ) from error
    additions = data.get("communication") or data.get("helper_threads")
    patterns = data.pop("pattern", [] if additions else None)
    if not isinstance(patterns, list) or not (patterns or additions):
        raise UsageError(
            f"{source}: needs at least one [[pattern]] with glob and match, or names under "
            "communication or helper_threads"
        )
    fields = toml_files.check_fields(data, _FIELD_TYPES, source)
    fields |= {key: tuple(fields[key]) for key in ("examples", "counter_examples") if key in fields}
    for key in ("communication", "helper_threads"):
        fields[key] = toml_files.check_regexes(fields.get(key, ()), f"{source}: {key}")
    parsed = (
        _parse_pattern(p, f"{source}: pattern {i}", is_trusted=is_trusted)
        for i, p in enumerate(patterns, 1)
    )
    return Convention(**{"name": Path(source).stem} | fields, patterns=tuple(parsed))


def _parse_pattern(data: object, source: str, *, is_trusted: bool) -> Pattern:
    fields = toml_files.check_fields(data, _PATTERN_FIELD_TYPES, source)
    if "match" not in fields:
        raise UsageError(f"{source}: needs match, a text")
    regex = fields.pop("match")
    unknown_groups = (
        []
        if is_trusted
        else sorted(set(toml_files.parse_regex(regex, source).groupindex) - _GROUPS)
    )
    if unknown_groups:
        raise UsageError(
            f"{source}: unknown group {unknown_groups[0]!r}; the groups are "
            f"{', '.join(sorted(_GROUPS))}"
        )
    by_order = "iteration" in fields
    iteration = fields.pop("iteration", "by order")
    if iteration != "by order":
        raise UsageError(f"{source}: iteration must be 'by order', not {iteration!r}")
    phase, phases = fields.pop("phase", None), fields.pop("phases", {}).items()
    pattern = Pattern(
        glob=fields.pop("glob", "*"),
        regex=regex,
        phase=None if phase is None else _parse_phase(phase, source),
        phases={str(theirs): _parse_phase(ours, source) for theirs, ours in phases},
        by_order=by_order,
        **fields,
    )
    meaningful = pattern.phase is not None or pattern.by_order
    if not meaningful and not {"phase", "iteration", "rank"} & pattern.groups:
        raise UsageError(f"{source}: no phase; give phase = ..., a group phase, or iteration")
    return pattern


def _parse_phase(label: object, source: str) -> Phase:
    phase = parse_phase_label(str(label))
    if phase is None:
        phase_labels = ", ".join(p.label for p in Phase)
        raise UsageError(f"{source}: no phase {label!r}; the phases are {phase_labels}")
    return phase
