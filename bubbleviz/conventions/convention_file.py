r"""Convention files: a convention is one TOML file, built in or a user's own.

The built-in conventions are in ``frameworks/``. To add a framework, add a file. Tests check the
examples and counter-examples of each file against all other files. A user's file is rejected if its
patterns do not match its examples, or match its counter-examples.

.. code-block:: toml

    name = "mine"
    summary = "how our trainer names its ranges"
    source = "train/profile.py"
    examples = ["fwd mb=3"]
    counter_examples = ["fwd"]

    [[pattern]]
    glob = "fwd mb=*"                       # SQLite GLOB; matches at least the same names as match
    match = '^fwd mb=(?P<microbatch>\d+)$'  # Python regex for the bare name
    phase = "F"                             # or a group (?P<phase>...), with [pattern.phases]

The named groups are ``phase, microbatch, chunk, stage, sequence, iteration, rank, tokens``. A range
that fuses two operations also has ``second_microbatch, second_chunk, second_stage`` and
``second_tokens``. ``tokens`` is the number of tokens that the operation processes;
``second_tokens`` is added to it. A pattern with the group ``iteration`` and no phase marks
iterations. With ``iteration = "by order"``, each range that contains both forward and backward is
an iteration, numbered in order per thread.

- ``post_validation = true``: The range is optimizer work of the previous iteration.
- ``receives = false`` (or ``true``): Whether a communication range waits for a peer's data, if the
  phase does not imply it.
- ``part = true``: The range is a part of an operation. Consecutive ranges with the same phase
  belong to the same operation.
- ``stands_in = true``: The range only counts as an operation if no other convention names the
  complete operation, since a range of that operation may enclose it.

``communication`` and ``helper_threads`` at the top level list additional regexes for kernels and
threads. A file may contain only these lists; the names of ranges are then recognized as usual.

``explicit = true`` at the top level marks names written for bubbleviz. If they name forward or
backward, all other recognized conventions are ignored.

Before a name is matched, the NVTX domain of the convention (``domain = "TSL"``) and the tail of
PyTorch's ``emit_nvtx`` (``, op_id = 3``) are removed. A ``glob`` must match names with them.
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
#: Types of the top-level fields of a file, and of the fields of a pattern.
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
    """Return the built-in conventions by name, sorted.

    Raises:
        UsageError: A built-in file is invalid, which is a defect of the package.
    """
    conventions = [
        parse_convention(entry.read_text(encoding="utf-8"), entry.name, is_trusted=True)
        for entry in Path(__file__).with_name("frameworks").iterdir()
        if entry.name.endswith(".toml")
    ]
    return {convention.name: convention for convention in sorted(conventions, key=lambda c: c.name)}


def find_convention(name_or_path: str) -> Convention:
    """Return the built-in convention with this name, or else load the TOML file at this path.

    Raises:
        InputError: The file cannot be read.
        UsageError: No convention has this name, or the file is not a valid convention.
    """
    if name_or_path in built_in():
        return built_in()[name_or_path]
    if not Path(name_or_path).exists() and Path(name_or_path).suffix != ".toml":
        suggestion = find_nearest_word(name_or_path, built_in())
        hint = f"did you mean {suggestion}?" if suggestion else "give a TOML file of your own"
        raise UsageError(
            f"--convention {name_or_path}: there is no such convention; {hint} (built in: "
            f"{', '.join(sorted(built_in()))})"
        )
    return load_convention(name_or_path)


def find_conventions(names_or_paths: str | Path | Sequence[str | Path]) -> tuple[Convention, ...]:
    """Return the conventions with these names or paths; a single name is accepted as well.

    Raises:
        InputError: A file cannot be read.
        UsageError: No convention has one of the names, or a file is not a valid convention.
    """
    names = [names_or_paths] if isinstance(names_or_paths, (str, Path)) else names_or_paths
    return tuple(find_convention(str(name)) for name in names)


def collect_kinds(conventions: Sequence[Convention]) -> Kinds:
    """Return the built-in lists of kernels and threads with the additions of the conventions."""
    kinds = default_kinds()
    for convention in conventions:
        kinds = kinds.add_regexes(convention.communication, convention.helper_threads)
    return kinds


def load_convention(path: str | Path) -> Convention:
    """Load and check a convention from a TOML file.

    Raises:
        InputError: The file cannot be read.
        UsageError: The file is not a valid convention; the message names the key.
    """
    built_in_names = ", ".join(sorted(built_in()))
    text = toml_files.read(
        path, "an NVTX convention", f"give a TOML file or one of: {built_in_names}"
    )
    convention = parse_convention(text, str(path))
    _check_examples(convention, str(path))
    return convention


def _check_examples(convention: Convention, source: str) -> None:
    """Check that the patterns match the examples and none of the counter-examples.

    Raises:
        UsageError: A pattern does not; the message names the key and the pattern.
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
                raise UsageError(f"{source}: {key}: no pattern matches {quoted}")
            continue
        number, glob = numbers[id(match[0])], match[0].glob
        if key == "counter_examples":
            raise UsageError(f"{source}: {key}: pattern {number} matches {quoted}")
        if not is_glob_match(glob, text):
            raise UsageError(
                f"{source}: pattern {number}: its glob {glob!r} excludes the example {quoted}, "
                "which match accepts; widen the glob"
            )


def parse_convention(text: str, source: str, *, is_trusted: bool = False) -> Convention:
    """Parse the TOML text of a convention.

    A convention without ``name`` is named after the file, without its suffix.

    Args:
        text: Content of the file.
        source: Path of the file, for messages.
        is_trusted: Skip the check of the regexes, which saves the time of compiling them. True for
            built-in files, which are tested.

    Raises:
        UsageError: The text is not a valid convention; the message names the key.
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
    """Parse one ``[[pattern]]`` table.

    A pattern without ``glob`` has no prefilter (``*``). A pattern needs a phase, a group for it, an
    iteration or a rank.

    Args:
        data: The table.
        source: Path of the file and index of the pattern, for messages.
        is_trusted: Skip the check of the regex.

    Raises:
        UsageError: The table is invalid; the message names the key.
    """
    fields = toml_files.check_fields(data, _PATTERN_FIELD_TYPES, source)
    if "match" not in fields:
        raise UsageError(f"{source}: needs match = a string")
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
        raise UsageError(
            f"{source}: names no phase; give phase = ..., a group named phase, or iteration"
        )
    return pattern


def _parse_phase(label: object, source: str) -> Phase:
    """Return the phase with this label.

    Raises:
        UsageError: There is no phase with this label.
    """
    phase = parse_phase_label(str(label))
    if phase is None:
        phase_labels = ", ".join(p.label for p in Phase)
        raise UsageError(f"{source}: unknown phase {label!r}; the phases are {phase_labels}")
    return phase
