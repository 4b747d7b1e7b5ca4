"""Texts: what profiles hold, made fit for a terminal, a picture, a file and a spreadsheet."""

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

from bubbleviz._version import __version__
from bubbleviz.errors import UsageError

#: First characters of a formula, and their full-width and small forms, which spreadsheets of East
#: Asian languages convert.
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b")
#: Where commas are decimal points, a spreadsheet begins a new cell after each of these.
_AFTER_SEMICOLON = re.compile(rf"(;\s*(?:\"\s*)?)(?=[{re.escape(''.join(_FORMULA))}])")
#: How much of two words is alike where one may stand for the other (0 to 1).
_MIN_SIMILARITY = 0.75
#: Control characters, line and direction marks, and halves of surrogate pairs.
_CONTROL = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)


def replace_unprintable(text: str) -> str:
    """Return a text with a blank for each character that does not print, line ends included.

    Every text that is printed passes through this function: a terminal acts on control characters,
    and names in profiles and recordings can contain any.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " for c in text)


def capitalize(text: str) -> str:
    """Return a text that begins with a capital; the rest stays as it is."""
    return text[:1].upper() + text[1:]


#: Number of characters of a name that regular expressions are matched against. The front
#: of a kernel's name says what it does; template arguments can take megabytes.
MATCHED_CHARACTERS = 2_048


#: Maximum number of characters of a range name that patterns match as a whole.
MAX_RANGE_NAME = 16_384


def truncate_for_matching(name: str) -> str:
    """Return the front of a name: the part that regular expressions are matched against."""
    return name[:MATCHED_CHARACTERS]


#: Maximum number of characters of a name in a JSON or CSV document.
PRINTED_CHARACTERS = 10_000


def truncate_for_document(name: str) -> str:
    """Return a name for a document; one that is too long ends in an ellipsis."""
    return name if len(name) <= PRINTED_CHARACTERS else f"{name[: PRINTED_CHARACTERS - 1]}…"


def is_full_match(pattern: re.Pattern[str], name: str) -> bool:
    """Return whether a pattern matches a whole name; no pattern matches a name that is too long."""
    return len(name) <= MAX_RANGE_NAME and pattern.fullmatch(name) is not None


def to_one_line(text: str, max_length: int | None = None) -> str:
    """Return a text on one line: printable characters only, runs of blanks as one.

    Args:
        text: any text.
        max_length: how many characters it may have, the ellipsis of a cut one included; None for
            any number.
    """
    # Four times as many characters as are kept leave room for blanks that are folded.
    prefix = text if max_length is None else text[: 4 * max_length + 1]
    flat = " ".join(replace_unprintable(prefix).split())
    if max_length is None or len(flat) <= max_length:
        return flat
    return flat[: max_length - 1].rstrip() + "…"


def find_nearest_word(word: str, candidates: Iterable[str]) -> str | None:
    """Return the known word that another one was probably meant to be; None where none is near.

    Dashes in front, which all options share, count for nothing.
    """
    bare = {name.lstrip("-").lower(): name for name in candidates}
    matches = difflib.get_close_matches(word.lstrip("-").lower(), bare, n=1, cutoff=_MIN_SIMILARITY)
    return bare[matches[0]] if matches else None


def suggest_word(word: str, candidates: Iterable[str]) -> str:
    """Return a clause with the known word that was probably meant; "" where none is near."""
    nearest_word = find_nearest_word(word, candidates)
    return f"; did you mean {nearest_word}?" if nearest_word else ""


def format_count(number: int, singular: str, plural: str = "") -> str:
    """Return a number and what it counts: 1 stage, 2 stages, 1 copy, 2,000 copies."""
    return f"{number:,} {singular if number == 1 else plural or f'{singular}s'}"


def list_first(words: Iterable[str], max_words: int) -> str:
    """Return some words with commas between, and an ellipsis for those beyond the first few."""
    first_words = list(itertools.islice(words, max_words + 1))
    return ", ".join(first_words[:max_words]) + (", …" if len(first_words) > max_words else "")


def list_and_count(words: Sequence[str], max_words: int) -> str:
    """Return some words with commas between; those beyond the first few are counted."""
    n_more = len(words) - max_words
    return ", ".join(words[:max_words]) + (f" and {n_more:,} more" if n_more > 0 else "")


def format_percent(ratio: float | None) -> str:
    """Return a ratio as percent, or a dash."""
    return "-" if ratio is None else f"{100 * ratio:.2f} %"


def format_percent_bounds(
    bounds: tuple[float, float], min_digits: int, max_digits: int
) -> tuple[str, str]:
    """Return two ratios in percent without the sign, with enough digits to tell them apart.

    Args:
        bounds: The ratios, as fractions of 1.
        min_digits: Minimum number of decimals.
        max_digits: Maximum number of decimals, used also if the ratios are equal.
    """
    for digits in range(min_digits, max_digits + 1):
        low, high = (f"{100 * bound:.{digits}f}" for bound in bounds)
        if low != high:
            break
    return low, high


def format_rank_name(number: int | None, index: int, label: str) -> str:
    """Return the number of a rank in its job, and where it is: ``rank 6 (node1 GPU 1)``.

    Where that number is unknown, its place in pipeline order: ``node1 GPU 1 (pipeline order 6)``.
    """
    # Where nothing but the number tells devices apart, labels end with it.
    place = re.sub(r"rank \d+$", "", label).strip(" :")
    has_place = place not in {"", "table"}
    if number is None:
        return (
            f"{place} (pipeline order {index})" if has_place else f"rank {index} in pipeline order"
        )
    return f"rank {number} ({place})" if has_place else f"rank {number}"


def replace_control_characters(text: str) -> str:
    """Return a text with a blank for each control character and line or direction mark."""
    return _CONTROL.sub(" ", text)


def replace_surrogates(text: str) -> str:
    """Return a text that UTF-8 can hold: halves of surrogate pairs become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def escape_leading_dash(path: str) -> str:
    """Return a path so that no program takes it for an option."""
    return f"./{path}" if path.startswith("-") else path


def quote_for_shell(path: str) -> str:
    r"""Return a path as a word of a command line, on one line and never taken for an option.

    Characters that do not print, and blanks that a sentence would fold, are written as bash and zsh
    read them: ``$'a\x0ab'``.
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
    """Return a text on one line that no spreadsheet takes for a formula."""
    flat = _AFTER_SEMICOLON.sub(r"\1'", replace_control_characters(text))
    return f"'{flat}" if flat.lstrip().startswith(_FORMULA) else flat


def format_json(document: Mapping[str, object]) -> str:
    """Return values as indented JSON in ASCII, ended by a line feed.

    Raises:
        ValueError: a number is not finite, which JSON does not know.
    """
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def format_document(schema: str, values: Mapping[str, object]) -> str:
    """Return a document as JSON: its schema, the version that wrote it, and values."""
    return format_json({"schema": schema, "version": __version__, **values})


def format_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as CSV with a header and line feeds; None is an empty cell.

    Texts are written as they are: those that come from a profile must be :func:`quote_formula`.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


# The order in which people list names.


def make_natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts ``rank2`` before ``rank10``."""
    return tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.split(r"([0-9]+)", text)
        if part
    )


#: The option that a sentence begins with, or asks for; of -o, that a file follows.
_OPTION = re.compile(r"^-o (?=\S)|(?:^|(?<=give ))--([a-z][a-z-]*)")


@contextmanager
def name_python_arguments() -> Iterator[None]:
    """Tell of arguments, where what is called tells of the options of the command line.

    Raises:
        UsageError: one was raised inside.
    """
    try:
        yield
    except UsageError as error:
        message = _OPTION.sub(lambda option: (option[1] or "").replace("-", "_"), str(error))
        raise UsageError(message) from error
