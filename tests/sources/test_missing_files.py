"""Missing files: which a directory lacks by the numbers of the others."""

from __future__ import annotations

import pytest

from bubbleviz.sources.paths import InputFile, missing_files


def lacking(names: list[str], *, named: bool = False) -> list[tuple[int, str]]:
    """Return how many files are missing, and which, among some of a directory."""
    notes = missing_files([InputFile(f"/runs/{name}", named=named) for name in names])
    return [(note.count, note.reason) for note in notes]


def numbered(*without: int, form: str = "node{:05}.sqlite", count: int = 64) -> list[str]:
    return [form.format(n) for n in range(count) if n not in without]


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ("node{:05}.sqlite", "node00007.sqlite, node00025.sqlite"),
        ("h100-{}.sqlite", "h100-7.sqlite, h100-25.sqlite"),
        ("rank{}_trace2.json.gz", "rank7_trace2.json.gz, rank25_trace2.json.gz"),
    ],
)
def test_gaps_are_named(form: str, names: str) -> None:
    assert lacking(numbered(25, 7, form=form)) == [
        (
            2,
            f"/runs: lacks {names} of the files numbered 0 to 63; "
            "what they hold is not in the results",
        )
    ]


@pytest.mark.parametrize(
    "names",
    [
        [],
        numbered(),
        numbered(0, 63),  # nothing says where numbers begin and end
        numbered(3, count=8),  # too few
        numbered(*range(1, 64, 8)),  # too many are missing
        [f"{10**15 * n}.json.gz" for n in range(64)],  # as times are
        [*numbered(3), "other.sqlite"],
        [f"a{n}-{n}.sqlite" for n in range(64) if n != 3],  # several numbers vary
        [*numbered(3), "node7.sqlite"],  # a number stands twice
    ],
)
def test_other_names_show_no_gap(names: list[str]) -> None:
    assert lacking(names) == []


def test_files_that_were_named_are_those_that_were_meant() -> None:
    assert lacking(numbered(3), named=True) == []
