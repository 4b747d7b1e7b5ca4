"""Naming conventions: every phase, wrong files, and names that nearly fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from bubbleviz.conventions import built_in, find_convention, load_convention, understand
from bubbleviz.errors import InputError, UsageError
from bubbleviz.phases import Phase


def write(folder: Path, text: str) -> Path:
    file = folder / "mine.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_no_names_are_no_rows() -> None:
    assert len(understand([], built_in()["zero-bubble"])) == 0


@pytest.mark.parametrize("phase", list(Phase), ids=lambda p: p.label)
def test_every_phase_can_be_a_users_own_word(phase: Phase, tmp_path: Path) -> None:
    mine = load_convention(
        write(
            tmp_path,
            f"[[pattern]]\nmatch = '^(?P<phase>word)$'\n[pattern.phases]\nword = '{phase.label}'\n",
        )
    )

    assert understand(["word"], mine).phase.tolist() == [phase]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pattern = 3", "[[pattern]]"),
        ("", "[[pattern]]"),
        ("[[pattern]]\nglob = '*'", "match"),
        ("[[pattern]]\nmatch = '('", "regular expression"),
        ("[[pattern]]\nmatch = '^x$'", "say the phase"),
        ("[[pattern]]\nmatch = '^x$'\nphase = 'forward'", "no phase 'forward'"),
        ("[[pattern]]\nmatch = '^(?P<micro>.)$'\nphase = 'F'", "unknown group 'micro'"),
        ("= =", "not TOML"),
    ],
)
def test_a_wrong_file_is_told(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r".*") as error:
        load_convention(write(tmp_path, text))

    assert said in str(error.value)


def test_a_group_that_takes_no_number_is_told(tmp_path: Path) -> None:
    mine = load_convention(
        write(tmp_path, "[[pattern]]\nmatch = '^f(?P<microbatch>.+)$'\nphase = 'F'\n")
    )

    with pytest.raises(UsageError, match="digits"):
        understand(["fast"], mine)


def test_a_name_with_thousands_of_digits_is_no_name() -> None:
    names = understand([f"F{'9' * 5000}.0.0"], built_in()["zero-bubble"])

    assert names.phase.tolist() == [-1]


def test_a_name_nearly_right_gets_a_hint() -> None:
    with pytest.raises(UsageError, match="did you mean zero-bubble"):
        find_convention("zerobubble")


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(InputError, match=r"mine\.toml"):
        find_convention("mine.toml")


def test_a_path_of_jax_may_hold_a_hash() -> None:
    """Paths number what occurs twice (``dot#1``); the thunk ends at the last ``#`` alone."""
    thunk = "Thunk:#name=jit(step)/{}/dot#1,hlo_op=fusion.11,unique_hlo_op_id=4#"
    names = understand(
        [thunk.format("jvp(a)"), thunk.format("transpose(jvp(a))"), thunk.format("add")],
        built_in()["jax-xla"],
    )

    assert names.phase.tolist() == [Phase.F, Phase.BW, -1]


def test_a_range_known_by_its_second_number_keeps_its_chunk() -> None:
    names = understand(
        ["SEND_FORWARD_RECV_BACKWARD.3.1.0", "W_clear.1.0"], built_in()["zero-bubble"]
    )

    assert names.microbatch.tolist() == [3, -1]
    assert names.chunk.tolist() == [1, 1]
