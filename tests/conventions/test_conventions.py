"""Conventions: parsing of names, recognition in a profile, and files written by users."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bubbleviz.conventions.convention_file import built_in, find_convention, load_convention
from bubbleviz.conventions.globs import is_glob_match
from bubbleviz.conventions.range_names import parse_range_names
from bubbleviz.errors import InputError, UsageError
from bubbleviz.model.phases import Phase


def write(folder: Path, text: str) -> Path:
    file = folder / "mine.toml"
    file.write_text(text, encoding="utf-8")
    return file


WORD = "[[pattern]]\nmatch = '^word$'\nphase = 'F'\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pattern = 3", "[[pattern]]"),
        ("", "[[pattern]]"),
        ("[[pattern]]\nglob = '*'", "match"),
        ("[[pattern]]\nmatch = '('", "regular expression"),
        ("[[pattern]]\nmatch = '^x$'", "sets no phase; add"),
        ("[[pattern]]\nmatch = '^x$'\nphase = 'forward'", "unknown phase 'forward'"),
        ("[[pattern]]\nmatch = '^(?P<micro>.)$'\nphase = 'F'", "unknown group 'micro'"),
        ("= =", "is not valid TOML"),
        (f"{WORD}part = 'yes'", "mine.toml: pattern 1: part must be true or false"),
        (f"{WORD}receives = 1", "pattern 1: receives must be true or false"),
        (f"{WORD}post_validation = 'true'", "post_validation must be true or false"),
        ("[[pattern]]\nmatch = '^x$'\niteration = 'by_order'", "iteration must be 'by order'"),
        ("[[pattern]]\nmatch = '^x$'\niteration = [1]", "iteration must be a string, not [1]"),
        (f"examples = ['word', 'wort']\n{WORD}", "mine.toml: examples: no pattern matches 'wort'"),
        (
            "examples = ['x']\n[[pattern]]\nmatch = '^(?P<phase>x)$'",
            "examples: no pattern matches 'x'",
        ),
        (
            f"examples = ['word']\n{WORD}glob = 'Word'",
            "pattern 1: its glob 'Word' excludes the example 'word', although",
        ),
        (f"counter_examples = ['word']\n{WORD}", "counter_examples: pattern 1 matches 'word'"),
        (
            "examples = ['fast']\n[[pattern]]\nmatch = '^f(?P<microbatch>.+)$'\nphase = 'F'",
            "mine.toml: examples: the pattern",
        ),
    ],
)
def test_an_invalid_convention_file_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r".*") as error:
        load_convention(write(tmp_path, text))

    assert expected in str(error.value)
    assert "\n" not in str(error.value)


GLOBS = (
    "a*b",
    "?",
    "[a-c]x",
    "[^a-c]x",
    "[]x]",
    "[^]x]",
    "[!a]",
    "[a",
    "[]",
    "[^]",
    "*[*]",
    "a.c",
    "\\",
    "[\\]",
    "[c-a]",
    "",
    "[a-]",
    "*a*b",
    "a*b*c",
    "a*a",
    "*",
    "**",
    "?*?",
    "*.(*",
    "*[0-9]*[!x]",
    "*ab*ab*",
)
TEXTS = ["", *"x]^!a-\\", "ab", "a\nb", "bx", "dx", "[a", "[]", "a*", "abc", "a.c", "xaxb", "xbxa"]
TEXTS += ["abbc", "abbcd", "aa", "\n", "a1!", "abab", "abb", "a.(b"]


@pytest.mark.parametrize("glob", GLOBS)
def test_a_glob_is_read_as_sqlite_reads_it(glob: str) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        expected = [bool(db.execute("SELECT ? GLOB ?", (t, glob)).fetchone()[0]) for t in TEXTS]

    assert [is_glob_match(glob, text) for text in TEXTS] == expected


@pytest.mark.parametrize(
    ("error", "name", "expected"),
    [
        (UsageError, "zerobubble", "did you mean zero-bubble"),
        (InputError, "mine.toml", r"mine\.toml"),
    ],
)
def test_an_unknown_convention_is_refused(error: type[Exception], name: str, expected: str) -> None:
    with pytest.raises(error, match=expected):
        find_convention(name)


def test_invalid_numbers_are_reported_or_left_out(tmp_path: Path) -> None:
    mine = load_convention(
        write(tmp_path, "[[pattern]]\nmatch = '^f(?P<microbatch>.+)$'\nphase = 'F'\n")
    )

    with pytest.raises(UsageError, match="digits"):
        parse_range_names(["fast"], mine)
    long = parse_range_names([f"F{'9' * 5000}.0.0"], built_in()["zero-bubble"])
    assert long.phase.tolist() == [-1]


def test_a_jax_path_may_contain_a_hash() -> None:
    """Paths number repeated parts (``dot#1``), so only the last ``#`` ends the thunk."""
    thunk = "Thunk:#name=jit(step)/{}/dot#1,hlo_op=fusion.11,unique_hlo_op_id=4#"
    names = parse_range_names(
        [thunk.format("jvp(a)"), thunk.format("transpose(jvp(a))"), thunk.format("add")],
        built_in()["jax-xla"],
    )

    assert names.phase.tolist() == [Phase.F, Phase.BW, -1]


def test_a_range_known_by_its_second_number_keeps_its_chunk() -> None:
    names = parse_range_names(
        ["SEND_FORWARD_RECV_BACKWARD.3.1.0", "W_clear.1.0"], built_in()["zero-bubble"]
    )

    assert names.microbatch.tolist() == [3, -1]
    assert names.chunk.tolist() == [1, 1]
