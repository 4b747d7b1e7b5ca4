r"""Reads naming conventions, each of which is defined in a TOML file.

The built-in conventions are in ``frameworks/``. To support another framework, add a file there.
Tests check the examples and counter-examples of each file against all other files. A user's file is
rejected if its patterns fail to match any of its examples, or if they match any of its
counter-examples.

.. code-block:: toml

    name = "mine"
    summary = "how our trainer names its ranges"
    source = "train/profile.py"
    examples = ["fwd mb=3"]
    counter_examples = ["fwd"]

    [[pattern]]
    glob = "fwd mb=*"                       # SQLite GLOB, at least as permissive as match
    match = '^fwd mb=(?P<microbatch>\d+)$'  # Python regex for the bare name
    phase = "F"                             # or a group (?P<phase>...), with [pattern.phases]

The named groups are ``phase, microbatch, chunk, stage, sequence, iteration, rank, tokens``. A range
that fuses two operations can also have ``second_microbatch, second_chunk, second_stage`` and
``second_tokens``. ``tokens`` is the number of tokens that the operation processes, and
``second_tokens`` is added to that number. ``layer`` is the number of the layer that a part of an
operation runs. A pattern with the group ``iteration`` and no phase marks
iterations. With ``iteration = "by order"``, a matching range that contains both a forward and a
backward is an iteration. Iterations found this way are numbered in chronological order on each
thread.

- ``post_validation = true``: The range is optimizer work that belongs to the previous iteration.
- ``receives = false`` (or ``true``): States whether a communication range waits for data from a
  peer. By default, the phase of the range decides.
- ``part = true``: The range is only one part of an operation. Consecutive ranges with the same
  phase are joined into one operation. If names contain a ``layer``, an operation ends before a
  smaller layer in a forward, and before a larger layer in a backward.
- ``stands_in = true``: The range counts as an operation only if no other convention names complete
  operations. If another convention does, the range may be nested inside a range of that convention.

``communication`` and ``helper_threads`` at the top level list additional regexes for kernels and
threads. A file may contain only ``communication`` and ``helper_threads``. The range names are then
recognized by the built-in conventions.

``explicit = true`` at the top level marks names written for bubbleviz. If explicit names mark
forwards or backwards, all other recognized conventions are ignored.

``evidence`` at the top level lists regexes for names that only this framework uses. A built-in
convention with ``evidence`` is recognized only in profiles that contain such a name.

Before a name is matched, the NVTX domain of the convention (``domain = "TSL"``) and the tail that
PyTorch's ``emit_nvtx`` appends (``, op_id = 3``) are removed. A ``glob``, however, must match the
name with its domain and tail.
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
#: Types of the top-level fields of a convention file.
_FIELD_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("name", "summary", "source", "domain"), str),
    **dict.fromkeys(("examples", "counter_examples", "communication", "helper_threads"), list),
    "evidence": list,
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
    """Return the built-in conventions, keyed by name and sorted by name.

    Raises:
        UsageError: A built-in file is invalid, which is a bug in this package.
    """
    conventions = [
        parse_convention(entry.read_text(encoding="utf-8"), entry.name, is_trusted=True)
        for entry in Path(__file__).with_name("frameworks").iterdir()
        if entry.name.endswith(".toml")
    ]
    return {convention.name: convention for convention in sorted(conventions, key=lambda c: c.name)}


def find_convention(name_or_path: str) -> Convention:
    """Return the built-in convention with this name, or load the TOML file at this path.

    A built-in name takes precedence over a file of the same name.

    Raises:
        InputError: The file cannot be read.
        UsageError: No convention has this name, or the file is not a valid convention.
    """
    if name_or_path in built_in():
        return built_in()[name_or_path]
    if not Path(name_or_path).exists() and Path(name_or_path).suffix != ".toml":
        suggestion = find_nearest_word(name_or_path, built_in())
        hint = f"did you mean {suggestion}?" if suggestion else "pass the path of a TOML file"
        raise UsageError(
            f"--convention {name_or_path}: there is no such convention; {hint} (built in: "
            f"{', '.join(sorted(built_in()))})"
        )
    return load_convention(name_or_path)


def find_conventions(names_or_paths: str | Path | Sequence[str | Path]) -> tuple[Convention, ...]:
    """Return the conventions with these names or paths, in the given order.

    A single name or path is accepted in place of a sequence.

    Raises:
        InputError: A file cannot be read.
        UsageError: No convention has one of the names, or a file is not a valid convention.
    """
    names = [names_or_paths] if isinstance(names_or_paths, (str, Path)) else names_or_paths
    return tuple(find_convention(str(name)) for name in names)


def collect_kinds(conventions: Sequence[Convention]) -> Kinds:
    """Return the built-in kernel and thread lists, extended by the regexes in the conventions."""
    kinds = default_kinds()
    for convention in conventions:
        kinds = kinds.add_regexes(convention.communication, convention.helper_threads)
    return kinds


def load_convention(path: str | Path) -> Convention:
    """Load and check a convention from a TOML file.

    Raises:
        InputError: The file cannot be read.
        UsageError: The file is not a valid convention. The message names the key.
    """
    built_in_names = ", ".join(sorted(built_in()))
    text = toml_files.read(
        path, "an NVTX convention", f"pass a TOML file or one of: {built_in_names}"
    )
    convention = parse_convention(text, str(path))
    _check_examples(convention, str(path))
    return convention


def _check_examples(convention: Convention, source: str) -> None:
    """Check that the patterns match every example and no counter-example.

    If a pattern matches an example, the pattern's GLOB must match the example too.

    Raises:
        UsageError: No pattern matches an example, a pattern matches a counter-example, or a GLOB
            does not match an example.
    """
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
                raise UsageError(
                    f"{source}: {key}: no pattern matches {quoted}; add or widen a pattern"
                )
            continue
        number, glob = numbers[id(match[0])], match[0].glob
        if key == "counter_examples":
            raise UsageError(
                f"{source}: {key}: pattern {number} matches {quoted}; narrow the pattern"
            )
        if not is_glob_match(glob, text):
            raise UsageError(
                f"{source}: pattern {number}: its glob {glob!r} excludes the example {quoted}, "
                "although its regular expression matches it; widen the glob"
            )


def parse_convention(text: str, source: str, *, is_trusted: bool = False) -> Convention:
    """Parse the TOML text of a convention.

    If the text has no ``name``, the convention is named after the file, without its suffix. The
    examples are not checked here.

    Args:
        text: Content of the file.
        source: Path to the file, used in messages and for the default name.
        is_trusted: Whether to skip checking the regexes of the patterns, which saves the time
            needed to compile them. True for the built-in files, because tests check them.

    Raises:
        UsageError: The text is not a valid convention. The message names the key.
    """
    try:
        data = toml_files.load(text)
    except ValueError as error:
        raise UsageError(
            f"{source}: is not valid TOML ({error}); see bubbleviz guide conventions"
        ) from error
    additions = data.get("communication") or data.get("helper_threads")
    patterns = data.pop("pattern", [] if additions else None)
    if not isinstance(patterns, list) or not (patterns or additions):
        raise UsageError(
            f"{source}: must contain at least one [[pattern]] table with glob and match, or "
            "regular expressions under communication or helper_threads"
        )
    fields = toml_files.check_fields(data, _FIELD_TYPES, source)
    fields |= {key: tuple(fields[key]) for key in ("examples", "counter_examples") if key in fields}
    for key in ("communication", "helper_threads", "evidence"):
        fields[key] = toml_files.check_regexes(fields.get(key, ()), f"{source}: {key}")
    parsed = (
        _parse_pattern(p, f"{source}: pattern {i}", is_trusted=is_trusted)
        for i, p in enumerate(patterns, 1)
    )
    return Convention(**{"name": Path(source).stem} | fields, patterns=tuple(parsed))


def _parse_pattern(data: object, source: str, *, is_trusted: bool) -> Pattern:
    """Parse one ``[[pattern]]`` table.

    If ``glob`` is missing, it is ``*``. A pattern must have a fixed phase, ``iteration = "by
    order"``, or at least one of the groups ``phase``, ``iteration`` and ``rank``.

    Args:
        data: The table.
        source: Path to the file and number of the pattern, used in messages.
        is_trusted: Whether to skip the check of the regex.

    Raises:
        UsageError: The table is invalid. The message names the offending key.
    """
    fields = toml_files.check_fields(data, _PATTERN_FIELD_TYPES, source)
    if "match" not in fields:
        raise UsageError(f"{source}: match is missing; set it to a regular expression")
    regex = fields.pop("match")
    unknown_groups = (
        []
        if is_trusted
        else sorted(set(toml_files.parse_regex(regex, source).groupindex) - _GROUPS)
    )
    if unknown_groups:
        raise UsageError(
            f"{source}: unknown group {unknown_groups[0]!r} in match; valid groups are "
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
        raise UsageError(
            f"{source}: sets no phase; add phase = ..., iteration = 'by order', or a group named "
            "phase, iteration or rank"
        )
    return pattern


def _parse_phase(label: object, source: str) -> Phase:
    """Return the phase with this label.

    Raises:
        UsageError: No phase has this label.
    """
    phase = parse_phase_label(str(label))
    if phase is None:
        phase_labels = ", ".join(p.label for p in Phase)
        raise UsageError(f"{source}: unknown phase {label!r}; valid phases are {phase_labels}")
    return phase
