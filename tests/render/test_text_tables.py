"""Tables and lists of a terminal, against those of rich."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from bubbleviz.render.text.tables import BulletList, Table

CELLS = st.text("aé宽 1", max_size=6).map(str.strip)


def printed(part: RenderableType, width: int = 10_000) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, emoji=False, highlight=False, markup=False).print(
        part, crop=False
    )
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_table_without_rows_is_its_headers() -> None:
    assert printed(Table("a", "bc")) == ["a  bc", "─────"]


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=4))
def test_a_table_is_what_rich_would_print(rows: list[tuple[str, str, str]]) -> None:
    headers = ("name", "two\nlines", "ms")
    table = Table(*headers, left=("name",))
    expected = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    expected.add_column(headers[0], no_wrap=True)
    for header in headers[1:]:
        expected.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
        expected.add_row(*row)
        table.add_section()
        expected.add_section()
    # Behind the last section rich leaves no blank line.
    assert printed(table) == printed(expected) + [""] * bool(rows)


WORDS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=12).map(" ".join)


@given(st.lists(WORDS, max_size=3), st.integers(8, 30))
def test_a_list_is_what_rich_would_print(lines: list[str], width: int) -> None:
    grid = RichTable.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for line in lines:
        grid.add_row("  -", Text(line))
    assert printed(BulletList(lines), width) == printed(grid, width)


def wide_table() -> Table:
    table = Table(
        *("name", "first", "second", "meaning"),
        left=("name", "meaning"),
        wrap=("meaning",),
        giving_way=("second",),
    )
    table.add_row("a" * 30, "1.25", "2.50", "some words that say what it means")
    return table


@pytest.mark.parametrize("width", range(20, 120))
def test_a_table_fits_and_no_number_is_cut(width: int) -> None:
    lines = printed(wide_table().fitted(width), width)

    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines if "a" * 30 in line)
    words = {word for line in lines for word in line.split()}
    assert "2.50" not in words or "1.25" in words
    gone = "no room for" in " ".join(lines)
    assert gone == ("2.50" not in words)


def test_what_matters_least_gives_way_first() -> None:
    header, *_, note = printed(wide_table().fitted(50), 80)

    assert header.split() == ["name", "first", "meaning"]
    assert note == "no room for second in 50 columns; COLUMNS=53 shows it"


def test_the_width_that_is_named_shows_all_columns() -> None:
    note = printed(wide_table().fitted(20), 200)[-1]
    named = int(note.partition("COLUMNS=")[2].split()[0])

    assert len(printed(wide_table().fitted(named), named)[0].split()) == 4
    assert "no room" in printed(wide_table().fitted(named - 1), named)[-1]


def test_words_are_wrapped_between_them_or_shortened() -> None:
    lines = printed(wide_table().fitted(60), 60)

    assert [line.split()[-2:] for line in lines[2:]] == [["say", "what"], ["it", "means"]]
    assert "…" in lines[2]


def test_a_table_that_fits_stays_as_it_is() -> None:
    assert printed(wide_table().fitted(100)) == printed(wide_table())


def test_an_empty_table_fits() -> None:
    assert printed(Table("a", "bc").fitted(3))[:2] == ["a", "─"]
    assert printed(Table("a", "bc").fitted(5)) == printed(Table("a", "bc"))


def test_a_table_in_ascii() -> None:
    table = Table("± µs", "of …", left=("of …",))
    table.add_row("1", "a…b 宽")

    assert printed(table.in_ascii()) == ["+- us  of ~", "------------", "    1  a~b ?"]


def test_no_line_is_wider_than_the_console_unless_a_table_is() -> None:
    wide = Table("n" * 50, "ms")
    wide.add_row("one cell")
    assert max(map(len, printed(wide, 20))) == 54
    assert max(map(len, printed(BulletList(["word " * 20]), 20))) <= 20
