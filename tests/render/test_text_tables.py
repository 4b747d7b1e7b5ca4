"""Tables in a terminal fit its width, and no number is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.render.document import Block, Table, truncate_all
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


@pytest.mark.parametrize("width", [60, 40, 30])
def test_different_names_stay_different_if_they_are_shortened(width: int) -> None:
    names = [f"elementwise_kernel<128, Functor_{n}, Array<char*, 3>, Loader>" for n in range(12)]
    rows = [{"kernel": name, "ms": "1.000"} for name in (*names, names[0])]

    lines = printed(Table("", rows, left=("kernel",)), width)[2:]

    assert max(map(len, lines)) <= width
    assert len(set(lines)) == len(names)
    assert not any("#" in line for line in lines)


def test_shortened_names_keep_both_brackets() -> None:
    add = "at::native::vectorized_elementwise_kernel<threshold_kernel_impl Base lambda 1 3>"
    names = [add, add.replace("lambda 1", "lambda 2"), "a_function_without_template_arguments"]

    shortened = truncate_all(names, 30)

    assert shortened[0] == "at::nati…<…pl Base lambda 1 3>"
    for name in shortened:
        assert name.count("<") == name.count(">"), name


@given(
    st.lists(st.text("ab<:>", max_size=60), unique=True, max_size=12),
    st.integers(min_value=8, max_value=40),
)
def test_shortened_texts_are_as_different_as_the_texts(names: list[str], width: int) -> None:
    shortened = truncate_all(names, width)

    assert len(set(shortened)) == len(names)
    assert all(len(text) <= width for text in shortened)
    assert all(
        text == name for text, name in zip(shortened, names, strict=True) if len(name) <= width
    )
