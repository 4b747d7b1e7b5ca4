"""Tables and lists of a terminal, against those of rich."""

import io

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


@given(st.lists(st.text("ab c", max_size=40), max_size=3), st.integers(8, 30))
def test_a_list_is_what_rich_would_print(lines: list[str], width: int) -> None:
    grid = RichTable.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for line in lines:
        grid.add_row("  -", Text(line))
    assert printed(BulletList(lines), width) == printed(grid, width)


def test_no_line_is_wider_than_the_console_unless_a_table_is() -> None:
    wide = Table("n" * 50, "ms")
    wide.add_row("one cell")
    assert max(map(len, printed(wide, 20))) == 54
    assert max(map(len, printed(BulletList(["word " * 20]), 20))) <= 20
