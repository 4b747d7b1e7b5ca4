"""Tables in a terminal fit its width, and no number is cut."""

import pytest

from bubbleviz.render.document import Block, Table
from bubbleviz.render.text.terminal import Display, join_plain_lines, render_lines


def printed(block: Block, width: int | None = None, *, unicode: bool = True) -> list[str]:
    display = None if width is None else Display(width, unicode=unicode)
    return join_plain_lines(render_lines([block], display)).splitlines()


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
    drop_order=("second",),
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


def test_the_width_in_the_message_shows_all_columns() -> None:
    note = " ".join(printed(WIDE, 20)).partition("COLUMNS=")[2]
    suggested_width = int(note.split()[0])

    assert len(printed(WIDE, suggested_width)[0].split()) == 4
    assert "no room" in " ".join(printed(WIDE, suggested_width - 1))


def test_texts_are_wrapped_between_words_or_shortened() -> None:
    lines = printed(WIDE, 60)

    assert [line.split()[-2:] for line in lines[2:]] == [["say", "what"], ["it", "means"]]
    assert "…" in lines[2]


def test_a_table_can_be_written_in_ascii() -> None:
    table = Table("", [{"± µs": "1", "of …": "a…b 宽"}], left=("of …",))

    assert printed(table, 80, unicode=False) == ["+- us  of ~", "------------", "    1  a~b ?"]
