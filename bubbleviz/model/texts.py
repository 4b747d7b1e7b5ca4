"""Format text and numbers, and make names from profiles safe for terminals and spreadsheets."""

from __future__ import annotations

import csv
import difflib
import io
import itertools
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from bubbleviz._version import __version__
from bubbleviz.errors import UsageError

#: Characters that a formula can start with. Spreadsheets in East Asian locales also convert the
#: full-width and small forms.
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b")
#: Matches a semicolon before a formula. In locales with decimal commas, semicolons separate cells.
_AFTER_SEMICOLON = re.compile(rf"(;\s*(?:\"\s*)?)(?=[{re.escape(''.join(_FORMULA))}])")
#: Minimum similarity (0 to 1) of a word that is suggested in place of an unknown word.
_MIN_SIMILARITY = 0.75
#: Matches control characters, line separators, direction marks, and lone surrogates.
_CONTROL = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)


def replace_unprintable(text: str) -> str:
    """Replace each unprintable character, including line breaks, with a space.

    Names in profiles and recordings can contain control characters, which a terminal would
    interpret. All printed text therefore passes through this function.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " for c in text)


def capitalize(text: str) -> str:
    """Return the text with its first character in upper case and the rest unchanged."""
    return text[:1].upper() + text[1:]


#: Length of the name prefix that regular expressions are matched against.
#: The start identifies a kernel. The template arguments that follow can take megabytes.
MATCHED_CHARACTERS = 2_048


#: Maximum length of a range name. Longer names match no pattern.
MAX_RANGE_NAME = 16_384


def truncate_for_matching(name: str) -> str:
    """Return the first ``MATCHED_CHARACTERS`` characters of a name."""
    return name[:MATCHED_CHARACTERS]


#: Maximum length of a name in JSON and CSV documents.
PRINTED_CHARACTERS = 10_000


def truncate_for_document(name: str) -> str:
    """Shorten a name longer than ``PRINTED_CHARACTERS``, ending it with an ellipsis."""
    return name if len(name) <= PRINTED_CHARACTERS else f"{name[: PRINTED_CHARACTERS - 1]}…"


def is_full_match(pattern: re.Pattern[str], name: str) -> bool:
    """Return whether a pattern matches the entire name.

    Names longer than ``MAX_RANGE_NAME`` characters never match.
    """
    return len(name) <= MAX_RANGE_NAME and pattern.fullmatch(name) is not None


def to_one_line(text: str, max_length: int | None = None) -> str:
    """Join text into one line, without unprintable characters or repeated spaces.

    If the text is longer than ``max_length``, it is cut and ends with an ellipsis.

    Args:
        text: Any text.
        max_length: Maximum number of characters, including the ellipsis, or None for no limit.
    """
    # Only the start of long text is processed. The factor 4 leaves room for repeated spaces.
    prefix = text if max_length is None else text[: 4 * max_length + 1]
    flat = " ".join(replace_unprintable(prefix).split())
    if max_length is None or len(flat) <= max_length:
        return flat
    return flat[: max_length - 1].rstrip() + "…"


def find_nearest_word(word: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate most similar to a word.

    The result is None if no candidate reaches the similarity ``_MIN_SIMILARITY`` of
    :func:`difflib.get_close_matches`. Case and leading dashes are ignored.
    """
    bare = {name.lstrip("-").lower(): name for name in candidates}
    matches = difflib.get_close_matches(word.lstrip("-").lower(), bare, n=1, cutoff=_MIN_SIMILARITY)
    return bare[matches[0]] if matches else None


def suggest_word(word: str, candidates: Iterable[str]) -> str:
    """Return a ``; did you mean ...?`` clause, or "" if no candidate is similar enough."""
    nearest_word = find_nearest_word(word, candidates)
    return f"; did you mean {nearest_word}?" if nearest_word else ""


def format_count(number: int, singular: str, plural: str = "") -> str:
    """Format a number with its noun: ``1 stage``, ``2 stages``, ``2,000 copies``.

    Args:
        number: The number.
        singular: Noun for 1.
        plural: Noun for all other numbers, by default the singular followed by "s".
    """
    return f"{number:,} {singular if number == 1 else plural or f'{singular}s'}"


def list_first(words: Iterable[str], max_words: int) -> str:
    """Join up to ``max_words`` words with commas, and add an ellipsis if there are more words."""
    first_words = list(itertools.islice(words, max_words + 1))
    return ", ".join(first_words[:max_words]) + (", …" if len(first_words) > max_words else "")


def list_and_count(words: Sequence[str], max_words: int) -> str:
    """Join up to ``max_words`` words with commas, and add ``and 5 more`` if there are 5 more."""
    n_more = len(words) - max_words
    return ", ".join(words[:max_words]) + (f" and {n_more:,} more" if n_more > 0 else "")


def format_percent(ratio: float | None) -> str:
    """Format a ratio as a percentage with two decimals, or as ``-`` if it is None."""
    return "-" if ratio is None else f"{100 * ratio:.2f} %"


def format_percent_bounds(
    bounds: tuple[float, float], min_digits: int, max_digits: int
) -> tuple[str, str]:
    """Format two ratios as percentages, with enough decimals to tell them apart.

    The percent sign is not included.

    Args:
        bounds: The ratios, as fractions of 1.
        min_digits: Minimum number of decimals.
        max_digits: Maximum number of decimals. Also used if the ratios are equal.
    """
    for digits in range(min_digits, max_digits + 1):
        low, high = (f"{100 * bound:.{digits}f}" for bound in bounds)
        if low != high:
            break
    return low, high


def format_rank_name(number: int | None, index: int, label: str) -> str:
    """Return the display name of a rank, such as ``rank 6 (node1 GPU 1)``.

    If the global rank is unknown, the name is ``node1 GPU 1 (pipeline order 6)``. If the label
    names no device, the name is ``rank 6`` or ``rank 6 in pipeline order``.

    Args:
        number: Global rank, or None if unknown.
        index: Index of the rank in pipeline order.
        label: Label of the rank's device, such as ``node1 GPU 1``.
    """
    # A label ends with the rank number if nothing else distinguishes the devices.
    device = re.sub(r"rank \d+$", "", label).strip(" :")
    has_device = device not in {"", "table"}
    if number is None:
        return (
            f"{device} (pipeline order {index})"
            if has_device
            else f"rank {index} in pipeline order"
        )
    return f"rank {number} ({device})" if has_device else f"rank {number}"


def replace_control_characters(text: str) -> str:
    """Replace each control character, line separator, direction mark and surrogate with a space."""
    return _CONTROL.sub(" ", text)


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, with question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def escape_leading_dash(path: str) -> str:
    """Prefix a path with ``./`` if it starts with a dash, so that it is not parsed as an option."""
    return f"./{path}" if path.startswith("-") else path


def quote_for_shell(path: str) -> str:
    r"""Quote a path so that a shell reads it as one argument and never as an option.

    The quoted path is on one line. A path with unprintable characters or repeated spaces is quoted
    in a form that only bash and zsh understand: ``$'a\x0ab'``.
    """
    path = escape_leading_dash(path)
    if to_one_line(path) == path:
        return shlex.quote(path)
    return "$'" + "".join(map(_quote_character, path)) + "'"


def _quote_character(character: str) -> str:
    if character.isprintable() and character not in " \\'":
        return character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def quote_formula(text: str) -> str:
    """Put text on one line, and ensure that no spreadsheet interprets it as a formula.

    An apostrophe is inserted wherever a formula could start: at the start of the text and after
    semicolons.
    """
    flat = _AFTER_SEMICOLON.sub(r"\1'", replace_control_characters(text))
    return f"'{flat}" if flat.lstrip().startswith(_FORMULA) else flat


def format_json(document: Mapping[str, object]) -> str:
    """Format values as indented ASCII JSON, followed by a newline.

    Raises:
        ValueError: A number is NaN or infinite.
    """
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def label_document(schema: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON document with the schema and the bubbleviz version as the first keys."""
    return {"schema": schema, "version": __version__, **values}


def format_document(schema: str, values: Mapping[str, object]) -> str:
    """Format a document as JSON, with the schema and the bubbleviz version as the first keys."""
    return format_json(label_document(schema, values))


def format_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format a table as CSV, with a header line and Unix line endings. None becomes an empty cell.

    Strings are written unchanged, so strings from profiles must pass through :func:`quote_formula`
    first.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def make_natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts ``rank2`` before ``rank10``."""
    return tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.split(r"([0-9]+)", text)
        if part
    )


#: Matches an option at the start of a message or after "give" or "pass", and ``-o`` before a file
#: name.
_OPTION = re.compile(r"^-o (?=\S)|(?:^|(?<=give |pass ))--([a-z][a-z-]*)")


@contextmanager
def name_python_arguments() -> Iterator[None]:
    """Replace command-line options in the messages of usage errors with Python argument names.

    Raises:
        UsageError: The ``with`` block raised a usage error. For example, ``--skip-first`` in the
            message becomes ``skip_first``.
    """
    try:
        yield
    except UsageError as error:
        message = _OPTION.sub(lambda option: (option[1] or "").replace("-", "_"), str(error))
        raise UsageError(message) from error
