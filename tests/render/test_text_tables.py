"""Tables, lists and sentences of a terminal, against those of rich."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table as RichTable

from bubbleviz.render.document import Block, Table
from bubbleviz.render.text.terminal import Display, lines_of, plain_lines

CELLS = st.text("aé宽 1", max_size=6).map(str.strip)


def printed(
    block: Block, width: int | None = None, *, unicode: bool = True, of_file: int = 110
) -> list[str]:
    display = None if width is None else Display(width, unicode=unicode)
    return plain_lines(lines_of([block], display, of_file)).splitlines()


def as_rich_prints(part: RenderableType, width: int = 10_000, **options: str) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, emoji=False, highlight=False, markup=False).print(
        part,
        crop=False,
        **options,  # type: ignore[arg-type]  # the name of an overflow
    )
    return [line.rstrip() for line in out.getvalue().splitlines()]


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=4))
def test_a_table_is_what_rich_would_print(rows: list[tuple[str, str, str]]) -> None:
    headers = ("name", "two\nlines", "ms")
    expected = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    expected.add_column(headers[0], no_wrap=True)
    for header in headers[1:]:
        expected.add_column(header, justify="right", no_wrap=True)
    filled: list[dict[str, str]] = []
    for row in rows:
        filled += [dict(zip(headers, row, strict=True)), {}]
        expected.add_row(*row)
        expected.add_section()
    table = Table("", filled, left=("name",), headers=headers)
    # Behind the last section rich leaves no blank line.
    assert printed(table) == as_rich_prints(expected) + [""] * bool(rows)


WIDE = Table(
    "",
    [
        {
            "name": "a" * 30,
            "first": "1.25",
            "second": "2.50",
            "meaning": "some words that say what it means",
        }
    ],
    left=("name", "meaning"),
    wrap=("meaning",),
    giving_way=("second",),
)


@pytest.mark.parametrize("width", range(20, 120))
def test_a_table_fits_and_no_number_is_cut(width: int) -> None:
    lines = printed(WIDE, width)

    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines if "a" * 30 in line)
    words = {word for line in lines for word in line.split()}
    assert "2.50" not in words or "1.25" in words
    gone = "no room for" in " ".join(lines)
    assert gone == ("2.50" not in words)


def test_the_width_that_is_named_shows_all_columns() -> None:
    note = " ".join(printed(WIDE, 20)).partition("COLUMNS=")[2]
    named = int(note.split()[0])

    assert len(printed(WIDE, named)[0].split()) == 4
    assert "no room" in " ".join(printed(WIDE, named - 1))


def test_words_are_wrapped_between_them_or_shortened() -> None:
    lines = printed(WIDE, 60)

    assert [line.split()[-2:] for line in lines[2:]] == [["say", "what"], ["it", "means"]]
    assert "…" in lines[2]


def test_a_table_in_ascii() -> None:
    table = Table("", [{"± µs": "1", "of …": "a…b 宽"}], left=("of …",))

    assert printed(table, 80, unicode=False) == ["+- us  of ~", "------------", "    1  a~b ?"]
