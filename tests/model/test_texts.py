"""Texts from profiles: on one line, printable, cut, and inert in a spreadsheet."""

from __future__ import annotations

import csv
import io
import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.model.texts import csv_text, encodable, inert, one_line, printable, shell_word


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
def test_a_line_of_at_most_eight(text: str, expected: str) -> None:
    assert one_line(text, 8) == expected


@given(st.text(), st.integers(min_value=1, max_value=30))
def test_a_line_is_printable_and_short(text: str, longest: int) -> None:
    found = one_line(text, longest)

    assert len(found) <= longest
    assert found.isprintable()
    assert one_line(found, longest) == found


def test_what_prints_keeps_its_place() -> None:
    assert printable("  a\tb\x1b") == "  a b "


def test_a_line_of_any_length() -> None:
    assert one_line("x" * 100_000) == "x" * 100_000


@given(st.text())
def test_what_is_encodable_is_kept(text: str) -> None:
    assert encodable(text) == text
    assert encodable(text + "\ud800") == text + "?"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", " =1", "\t=1"])
def test_a_formula_is_made_inert(text: str) -> None:
    assert inert(text).startswith("'")


def test_the_empty_table_is_its_header() -> None:
    assert csv_text(("a", "b"), ()) == "a,b\n"


def test_a_table_reads_back() -> None:
    rows = [("1,2", 'say "x"'), (None, 3)]

    assert list(csv.reader(io.StringIO(csv_text(("a", "b"), rows)))) == [
        ["a", "b"],
        ["1,2", 'say "x"'],
        ["", "3"],
    ]


@pytest.mark.parametrize("formula", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)"])
@pytest.mark.parametrize("before", ["", ";", "name;", 'name; "', "a;b; "])
def test_no_part_of_a_cell_is_a_formula(formula: str, before: str) -> None:
    cell = inert(f"{before}{formula}")

    assert cell == f"{before}'{formula}"
    assert inert("a-b; c = d; e<-1>") == "a-b; c = d; e<-1>"


def test_direction_marks_are_no_part_of_a_cell() -> None:
    assert inert("a\u200eb\u200fc\u061cd") == "a b c d"


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("a.sqlite", "a.sqlite"),
        ("a b.sqlite", "'a b.sqlite'"),
        ("--output=x.sqlite", "./--output=x.sqlite"),
        ("-", "./-"),
        ("", "''"),
        ("a  b\n'\\.sqlite", r"$'a\x20\x20b\x0a\x27\x5c.sqlite'"),
        ("a\u202e\udcff", r"$'a\xe2\x80\xae\xff'"),
    ],
)
def test_a_path_is_one_word_on_one_line(path: str, word: str) -> None:
    assert shell_word(path) == word


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
    line = f"printf %s {shell_word(name)}"
    read = subprocess.run(["bash", "-c", os.fsencode(line)], capture_output=True, check=True).stdout
    assert read.removeprefix(b"./") == os.fsencode(name)
    assert one_line(line) == line
