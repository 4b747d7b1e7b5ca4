"""TOML files: read, and checked with messages that name the file and the key."""

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

# From the standard library where it has it (Python 3.11), else from tomli.
if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: No list of names that a person wrote is larger.
_MAX_BYTES = 1 << 22
#: Dotted keys nest tables, in a time that grows with the square of their dots.
_MAX_DOTS = 200
#: What Python raises for texts that it cannot compile: also for counts and nesting beyond its own.
COMPILE_ERRORS = (re.error, OverflowError, RecursionError)
#: A reference to a group by its number, which is another one among further expressions.
_REFERENCE = re.compile(r"(?<!\\)(?:\\\\)*\\[1-9]|\(\?\(\d")
#: Types of fields, in words.
_TYPE_NAMES = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    list: "a list of texts",
    dict: "a table",
}
#: Characters of an expression in a message.
_MAX_SHOWN = 100


def read(path: str | Path, kind: str, hint: str) -> str:
    """Return the text of a TOML file.

    Args:
        path: of the file.
        kind: of file it should be, with its article, for the message.
        hint: what to do where it cannot be read.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return read_bounded(str(path), _MAX_BYTES, kind, hint).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read as {kind} (not UTF-8); {hint}") from error


def load(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises:
        ValueError: it is not TOML.
    """
    if any(line.count(".") > _MAX_DOTS for line in text.splitlines()):
        raise ValueError(f"a line holds more than {_MAX_DOTS} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_built_in(name: str) -> str:
    """Return the text of a file that comes with bubbleviz."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def check_fields(table: object, types: Mapping[str, type], source: str) -> dict[str, Any]:
    """Return the fields of a TOML table, which may be missing.

    Args:
        table: with its fields by key.
        types: type of each field; a list is one of texts.
        source: the file and table, for messages.

    Raises:
        UsageError: it is no table, has another key, or one with a value of another type.
    """
    if not isinstance(table, dict):
        raise UsageError(f"{source}: must be a table with {', '.join(types)}")
    for key, value in table.items():
        if key not in types:
            raise UsageError(
                f"{source}: unknown key {key!r}; the keys are {', '.join(sorted(types))}"
            )
        has_only_texts = not isinstance(value, list) or all(isinstance(text, str) for text in value)
        if type(value) is not types[key] or not has_only_texts:
            raise UsageError(
                f"{source}: {key} must be {_TYPE_NAMES[types[key]]}, not {value!r:.40}"
            )
    return table


def compile_pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression that a user gives.

    Raises:
        FutureWarning: Python reads a set of it, such as ``[[a]``, and warns that it will read it
            differently. Raised, it reaches the user as a sentence, once.
        re.error: It is not a regular expression. ``OverflowError`` and ``RecursionError`` also say
            so.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        return re.compile(text)


def describe_ambiguity(text: str, warning: FutureWarning) -> str:
    """Return a clause on a set that later versions of Python may read differently, and its remedy.

    Args:
        text: The regular expression.
        warning: What :func:`compile_pattern` raised.
    """
    reason = str(warning).lower()
    return (
        f"{to_one_line(text, _MAX_SHOWN)!r} is ambiguous ({reason}); later versions of Python may "
        "read it differently; put a backslash before the [, -, &, | or ~ inside the set"
    )


def parse_regex(text: str, source: str) -> re.Pattern[str]:
    """Return a compiled regular expression.

    Args:
        text: from a TOML file.
        source: the file and key, for the message.

    Raises:
        UsageError: it is not one.
    """
    try:
        return compile_pattern(text)
    except FutureWarning as warning:
        raise UsageError(f"{source}: {describe_ambiguity(text, warning)}") from warning
    except COMPILE_ERRORS as error:
        raise UsageError(
            f"{source}: {to_one_line(text, _MAX_SHOWN)!r} is not a regular expression ({error}); "
            "fix it"
        ) from error


def check_regexes(texts: Sequence[str], source: str) -> tuple[str, ...]:
    """Return the texts, each checked to be a regular expression that can stand beside others.

    Raises:
        UsageError: one is not, or has flags for all, names of groups, or references to them.
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
                f"{source}: {to_one_line(text, _MAX_SHOWN)!r} cannot stand beside other regular "
                "expressions; leave out its (?i), (?P<name>...) and references such as \\1"
            )
    return tuple(texts)
