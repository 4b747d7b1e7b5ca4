"""Reads and validates TOML files. Error messages name the file and the key."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bubbleviz.errors import InputError, UsageError
from bubbleviz.model.files import read_bounded
from bubbleviz.model.texts import to_one_line

# Part of the standard library since Python 3.11.
if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Maximum size of a file in bytes. No list of names that was written by hand is larger.
_MAX_BYTES = 1 << 22
#: Maximum number of dots per line. Parsing a dotted key takes time quadratic in the number of its
#: dots.
_MAX_DOTS = 200
#: Exceptions that ``re.compile`` raises for regexes that are invalid or nested too deeply.
COMPILE_ERRORS = (re.error, OverflowError, RecursionError)
#: Matches a numbered group reference. Group numbers change when regexes are combined.
_REFERENCE = re.compile(r"(?<!\\)(?:\\\\)*\\[1-9]|\(\?\(\d")
#: Names of field types, as shown in messages.
_TYPE_NAMES = {
    str: "a string",
    bool: "true or false",
    int: "an integer",
    list: "a list of strings",
    dict: "a table",
}
#: Maximum number of regex characters shown in a message.
_MAX_SHOWN = 100


def read(path: str | Path, kind: str, hint: str) -> str:
    """Read a TOML file as text.

    Args:
        path: Path to the file.
        kind: What the file should contain, with an article if needed, for messages.
        hint: What the user can do if the file cannot be read, used in messages.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        return read_bounded(str(path), _MAX_BYTES, kind, hint).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read as {kind} (not UTF-8); {hint}") from error


def load(text: str) -> dict[str, Any]:
    """Parse a TOML text.

    Raises:
        ValueError: The text is not valid TOML.
    """
    if any(line.count(".") > _MAX_DOTS for line in text.splitlines()):
        raise ValueError(f"a line contains more than {_MAX_DOTS} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_built_in(name: str) -> str:
    """Return the text of a built-in TOML file in this package, given its file name."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def check_fields(table: object, types: Mapping[str, type], source: str) -> dict[str, Any]:
    """Check the keys and value types of a TOML table, and return the table.

    All keys are optional. Lists may contain only strings.

    Args:
        table: A TOML value, which must be a table.
        types: Maps each allowed key to the type of its value.
        source: Path to the file and name of the table, used in messages.

    Raises:
        UsageError: ``table`` is not a table, has an unknown key, or contains a value of the wrong
            type.
    """
    if not isinstance(table, dict):
        raise UsageError(f"{source}: must be a table with the keys {', '.join(types)}")
    for key, value in table.items():
        if key not in types:
            raise UsageError(
                f"{source}: unknown key {key!r}; valid keys are {', '.join(sorted(types))}"
            )
        has_only_texts = not isinstance(value, list) or all(isinstance(text, str) for text in value)
        if type(value) is not types[key] or not has_only_texts:
            raise UsageError(
                f"{source}: {key} must be {_TYPE_NAMES[types[key]]}, not {value!r:.40}"
            )
    return table


def compile_pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression that the user wrote.

    Raises:
        FutureWarning: The regex contains a set, such as ``[[a]``, that later Python versions may
            read differently. The warning is raised as an exception so that callers can turn it into
            a message.
        re.error: The text is not a regular expression.
        OverflowError: A repeat count is too large.
        RecursionError: The expression is nested too deeply.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        return re.compile(text)


def describe_ambiguity(text: str, warning: FutureWarning) -> str:
    """Return a clause that says that later Python versions may read a set differently, and the fix.

    Args:
        text: The regular expression that contains the set.
        warning: The warning raised by :func:`compile_pattern`.
    """
    reason = str(warning).lower()
    return (
        f"{to_one_line(text, _MAX_SHOWN)!r} is ambiguous ({reason}), and later versions of Python "
        "may read it differently; put a backslash before the [, -, &, | or ~ inside the set"
    )


def parse_regex(text: str, source: str) -> re.Pattern[str]:
    """Compile a regular expression from a TOML file.

    Args:
        text: The regular expression.
        source: Path to the file and name of the key, used in messages.

    Raises:
        UsageError: The text is not a regular expression, or later Python versions may read it
            differently.
    """
    try:
        return compile_pattern(text)
    except FutureWarning as warning:
        raise UsageError(f"{source}: {describe_ambiguity(text, warning)}") from warning
    except COMPILE_ERRORS as error:
        raise UsageError(
            f"{source}: {to_one_line(text, _MAX_SHOWN)!r} is not a valid regular expression "
            f"({error}); correct it"
        ) from error


def check_regexes(texts: Sequence[str], source: str) -> tuple[str, ...]:
    """Check that each text is a regex that can be combined with others.

    Args:
        texts: The regular expressions.
        source: Path to the file and name of the key, used in messages.

    Returns:
        The texts, unchanged.

    Raises:
        UsageError: A text is not a regex, or has global flags, named groups or group references.
    """
    for text in texts:
        parse_regex(text, source)
        try:
            re.compile(f"(?:{text})|(?:{text})")
            not_combinable = _REFERENCE.search(text) is not None
        except COMPILE_ERRORS:
            not_combinable = True
        if not_combinable:
            raise UsageError(
                f"{source}: {to_one_line(text, _MAX_SHOWN)!r} cannot be combined with other "
                "regular expressions; remove (?i), (?P<name>...) and references such as \\1"
            )
    return tuple(texts)
