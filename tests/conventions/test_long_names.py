"""Long names: whatever a profile calls its work, the time grows with the name's length alone."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from bubbleviz.analyses.nccl.kernels import _FAMILY
from bubbleviz.analyses.pgle import range_names as instructions
from bubbleviz.conventions.convention_file import built_in
from bubbleviz.conventions.globs import lets_through
from bubbleviz.conventions.host_activities import default_activities
from bubbleviz.conventions.kinds import default_kinds
from bubbleviz.model.texts import inert

#: Characters of a long name; seconds of a processor that a regex may take for it. One that tries
#: every pair of places takes ten times as long.
LONG, SOON_S = 30_000, 0.15


def patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    for convention in built_in().values():
        for pattern in convention.patterns:
            yield f"{convention.name}: {pattern.match.pattern}", pattern.match
    for activity in default_activities().all_of:
        for regex in activity.match:
            yield f"{activity.name}: {regex}", re.compile(regex, re.IGNORECASE)
    kinds = default_kinds()
    for regexes in (kinds.communication, kinds.receives, kinds.point_to_point, kinds.collectives):
        for regex in regexes:
            yield regex, re.compile(regex, re.IGNORECASE)
    for named in (_FAMILY, instructions._THUNK, instructions._MODULE, instructions._OF_MODULE):
        yield named.pattern, named


def words_of(regex: str) -> list[str]:
    """Return the texts that a regex looks for, as far as they are literal."""
    bare = re.sub(r"\(\?P<\w+>|\(\?[:=!<i-]+|\\[bdwsZ]|\\x00", "|", regex)
    words = (word.replace("\\", "") for word in re.split(r"[|)*+?\[\]{}^$]+|(?<!\\)\(", bare))
    return list(dict.fromkeys(word for word in words if word))


def long_names(regex: str) -> Iterator[str]:
    """Yield names that begin as the regex wants it, and repeat one or two of its words."""
    words = words_of(regex)[:12]
    repeated = [*words, *(a + b for a, b in pairwise(words)), " ", "a", "1"]
    for begin in {"", *words[:2], "".join(words[:2])}:
        for word in repeated:
            yield begin + word * (LONG // len(word)) + "!"


def took_s(match: Callable[[str], object], text: str) -> float:
    begin_s = time.thread_time()
    match(text)
    return time.thread_time() - begin_s


@pytest.mark.parametrize("regex", [pytest.param(p, id=name[:80]) for name, p in patterns()])
def test_regexes(regex: re.Pattern[str]) -> None:
    for name in long_names(regex.pattern):
        # A busy machine may take longer once.
        seconds = min(took_s(regex.search, name) for _ in range(3))
        assert seconds < SOON_S, name[:100]


@pytest.mark.parametrize(
    "match", ["transpose(", "jvp(", ",hlo_op=a", ",hlo_op=send", ",step_num=1"]
)
def test_names_of_xla(match: str) -> None:
    begins = ("Thunk:#", "Thunk:#name=", "Thunk:#name=transpose(", "a#")
    for pattern in built_in()["jax-xla"].patterns:
        for begin in begins:
            text = begin + match * (LONG // len(match)) + "\0"
            assert min(took_s(pattern.match.search, text) for _ in range(3)) < SOON_S


@pytest.mark.parametrize(
    "glob", ["*Thunk:#*hlo_op=*", "*a*a*a*a*b", "a*[b]*?*c*d", "*#*step*[0-9]*"]
)
def test_globs(glob: str) -> None:
    for word in ("Thunk:#", "a", "#step", "hlo_op"):
        text = word * (LONG // len(word))
        assert took_s(lambda text: lets_through(glob, text), text) < SOON_S


@pytest.mark.parametrize(
    ("glob", "text", "fits"),
    [
        ("*a*b", "xaxb", True),
        ("*a*b", "xbxa", False),
        ("a*b*c", "abbc", True),
        ("a*b*c", "abbcd", False),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("*", "", True),
        ("**", "\n", True),
        ("", "", True),
        ("", "a", False),
        ("?*?", "ab", True),
        ("?*?", "a", False),
        ("*[0-9]*[!x]", "a1!", True),
        ("*ab*ab*", "abab", True),
        ("*ab*ab*", "abb", False),
        ("*.(*", "a.(b", True),
    ],
)
def test_globs_fit_as_before(glob: str, text: str, *, fits: bool) -> None:
    assert lets_through(glob, text) is fits


@pytest.mark.parametrize("text", [";" + " " * 30_000, "; " * 15_000, ';" ' * 10_000])
def test_cells(text: str) -> None:
    assert took_s(inert, text) < SOON_S
