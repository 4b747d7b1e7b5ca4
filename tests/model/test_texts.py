"""Texts escaped for messages and files, and formatted amounts of memory."""

from __future__ import annotations

import csv
import io
import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.model.texts import (
    format_csv,
    quote_for_shell,
    quote_formula,
    replace_surrogates,
    to_one_line,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("F0", "F0"),
        ("  two\n\tword\x00 ", "two word"),
        ("a\u202eb\u2028c\ud800d", "a b c d"),
        ("12345678", "12345678"),
        ("123456789", "1234567…"),
        ("123456  89", "123456…"),
        (" " * 1_000 + "late", ""),
    ],
)
def test_a_line_is_shortened_to_eight_characters(text: str, expected: str) -> None:
    assert to_one_line(text, 8) == expected


@given(st.text(), st.integers(min_value=1, max_value=30))
def test_a_line_is_printable_and_short(text: str, longest: int) -> None:
    line = to_one_line(text, longest)

    assert len(line) <= longest
    assert line.isprintable()
    assert to_one_line(line, longest) == line


@given(st.text())
def test_encodable_characters_are_kept(text: str) -> None:
    assert replace_surrogates(text) == text
    assert replace_surrogates(text + "\ud800") == text + "?"


def test_a_table_reads_back() -> None:
    rows = [("1,2", 'say "x"'), (None, 3)]

    assert list(csv.reader(io.StringIO(format_csv(("a", "b"), rows)))) == [
        ["a", "b"],
        ["1,2", 'say "x"'],
        ["", "3"],
    ]


@pytest.mark.parametrize(
    "formula",
    [
        "=cmd|' /C calc'!A0",
        "+1",
        "-1",
        "@SUM(A1)",
        # Full-width and small variants of special characters.
        "\uff1dcmd",
        "\uff0b1",
        "\uff0d1",
        "\uff20SUM(A1)",
        "\ufe66cmd",
        "\ufe621",
        "\ufe631",
        "\ufe6bSUM(A1)",
    ],
)
@pytest.mark.parametrize("prefix", ["", ";", "name;", 'name; "', "a;b; "])
def test_no_part_of_a_cell_is_a_formula(formula: str, prefix: str) -> None:
    cell = quote_formula(f"{prefix}{formula}")

    assert cell == f"{prefix}'{formula}"
    assert quote_formula("a-b; c = d; e<-1>") == "a-b; c = d; e<-1>"
    assert quote_formula("a\u200eb\u200fc\u061cd") == "a b c d"


NAMES = [
    "a b",
    "$(touch y)",
    "it's",
    "--rcfile=x",
    "a\n\nb",
    " a  b ",
    "-",
    "a\tb\x1b[2J",
    "日 本",
    "`x`;",
]


@pytest.mark.parametrize("name", [*NAMES, "a\udcff\\'x", "!$HOME", "*?[a]", "~", "#", "a\\"])
def test_a_shell_reads_a_word_as_the_path(name: str) -> None:
    line = f"printf %s {quote_for_shell(name)}"
    read = subprocess.run(["bash", "-c", os.fsencode(line)], capture_output=True, check=True).stdout
    assert read.removeprefix(b"./") == os.fsencode(name)
    assert to_one_line(line) == line
    assert not quote_for_shell(name).startswith("-")
