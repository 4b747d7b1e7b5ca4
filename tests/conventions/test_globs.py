"""The prefilter of range names: in SQLite, for any number of patterns and each way to name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bubbleviz.conventions.convention import globs_of
from bubbleviz.conventions.convention_file import built_in
from bubbleviz.conventions.globs import lets_through, loose_regex
from bubbleviz.sources.nsys.arrow_tables import may_match
from bubbleviz.sources.nsys.profile_file import open_file
from tests.support.nsys_exports import C, K, R, profile

KNOWN = ["F0.0.0", "B0.0.0", "Optimizer", "PP:0F3", "forward chunk 3 (phase0)", "ProfilerStep#3"]
LIBRARY = ["aten::mm, op_id = 3", "aten::add_", "f0", "[x]"]


def named(folder: Path, names: list[str], *, registered: bool, without: tuple[str, ...]) -> str:
    ranges = [R(10 * i, 10 * i + 5, n, registered=registered) for i, n in enumerate(names)]
    path = profile(folder, [K(100, 200, 1)], [C(0, 5, 1)], ranges, without=without)
    return str(path)


@pytest.mark.parametrize(
    ("registered", "without"), [(False, ()), (True, ()), (False, ("StringIds",))]
)
def test_only_names_that_some_convention_may_know_are_read(
    registered: bool, without: tuple[str, ...], tmp_path: Path
) -> None:
    path = named(tmp_path, [*LIBRARY, *KNOWN], registered=registered, without=without)
    globs = globs_of(tuple(built_in().values()))

    with open_file(path, 1) as file:
        assert {c.name for c in file.inspect(globs).candidates} == set(KNOWN)
        assert set(file.read(globs).ranges.names) == set(KNOWN)


@pytest.mark.parametrize("registered", [False, True])
def test_the_number_of_patterns_is_not_limited(registered: bool, tmp_path: Path) -> None:
    names = [f"name {i}" for i in range(100)]
    path = named(tmp_path, names, registered=registered, without=())
    wanted = [f"name {i}" for i in range(1, 100)]

    with open_file(path, 1) as file:
        ranges = file.read([*wanted, *wanted]).ranges

    assert [ranges.names[i] for i in ranges.name_id] == wanted


def test_a_pattern_is_taken_as_it_is_written(tmp_path: Path) -> None:
    """Quotes, brackets and characters beyond ASCII pass through the array of patterns."""
    names = ['it\'s "so"', "a\\b", "[x]", "Vorwärts 1", "前向 2", "x"]
    path = named(tmp_path, names, registered=False, without=())
    globs = ['it\'s "so"', "a\\b", "[[]x]", "Vorw?rts [0-9]", "前向*"]

    with open_file(path, 1) as file:
        assert list(file.read(globs).ranges.names) == names[:-1]


@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize(
    "globs",
    [
        ["*step_num=*"],
        ["*pre_*", "*#*step_num=[0-9]*"],
        ["*Engine.forward*", "*Engine.step*", "*#*step_num=[0-9]*", "*pre_*"],
        ["*Engine.f*", "*Engine.s*", "*Engine.b?ck*", "*", "*#step*"],
        ["*a*", "*b*", "*c*", "*d*", "F*"],
        ["[Eex]*", "[^E]*ba*", "p*", "[a-d]"],
        ["?bc*", "[^x]b*", "*[0-9]c", "[]z]*", "*[^]]"],
    ],
)
def test_patterns_that_begin_with_anything(
    globs: list[str], registered: bool, tmp_path: Path
) -> None:
    names = ["Engine.forward 1", "an Engine.step", "Engine.back", "x#step_num=3", "#step_num=x"]
    names += ["pre_forward", "abc", "xbc", "x0c", "]", "zebra", "F1", "Ünï", "d", "#step"]
    path = named(tmp_path, names, registered=registered, without=())

    with open_file(path, 1) as file:
        ranges, sample = file.read(globs).ranges, file.sample(globs)

    expected = [name for name in names if any(lets_through(glob, name) for glob in globs)]
    assert [ranges.names[i] for i in ranges.name_id] == expected
    assert list(sample) == expected


@given(
    st.lists(st.text("aF*?[]^-0-9.é\n", max_size=6), max_size=4),
    st.lists(st.text("aF[]^-0.9é\n#", max_size=6), max_size=8),
)
@example(["[z-a]", "[", "[]a]*", "[^F]?"], ["z", "[", "]a", "é\n"])
def test_a_loose_regex_matches_whatever_a_pattern_does(globs: list[str], names: list[str]) -> None:
    likely = may_match(pa.array(names, pa.string()), loose_regex(globs))
    expected = [any(lets_through(glob, name) for glob in globs) for name in names]

    assert likely is not None
    assert not np.any(np.array(expected, bool) & ~likely)
    if not globs:
        assert not likely.any()


def test_a_loose_regex_matches_what_is_no_utf_8() -> None:
    names = pa.array([b"F\xff0", b"\xffF"], pa.binary()).view(pa.string())
    likely = may_match(names, loose_regex(["F*0", "?F"]))

    assert likely is not None
    assert likely.all()
