"""Range names are matched in linear time, and prefiltered in SQLite."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import duckdb
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bubbleviz.analyses.nccl.kernels import _FAMILY
from bubbleviz.analyses.pgle import range_names as xla_names
from bubbleviz.conventions.convention import collect_globs
from bubbleviz.conventions.convention_file import built_in
from bubbleviz.conventions.globs import NameShapes, PackedNames, convert_to_duckdb, is_glob_match
from bubbleviz.conventions.host_activities import default_activities
from bubbleviz.conventions.kinds import default_kinds
from bubbleviz.model.columns import Bools
from bubbleviz.sources.nsys.profile_file import open_file
from tests.support.command_line import CommandLine
from tests.support.nsys_exports import C, K, R, write_profile
from tests.support.places import CHECKOUT

#: Length of a long name, and the CPU seconds that a regex may take to match it.
#: A regex with quadratic run time takes ten times as long.
LONG, SOON_S = 30_000, 0.15


def list_patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    for convention in built_in().values():
        for pattern in convention.patterns:
            yield f"{convention.name}: {pattern.regex}", pattern.compiled
    for activity in default_activities().activities:
        for regex in activity.match:
            yield f"{activity.name}: {regex}", re.compile(regex, re.IGNORECASE)
    kinds = default_kinds()
    for regexes in (kinds.communication, kinds.receives, kinds.point_to_point):
        for regex in regexes:
            yield regex, re.compile(regex, re.IGNORECASE)
    for pattern_of_names in (_FAMILY, xla_names._THUNK, xla_names._MODULE, xla_names._OF_MODULE):
        yield pattern_of_names.pattern, pattern_of_names


def split_into_words(regex: str) -> list[str]:
    """Return the literal parts of a regex."""
    bare = re.sub(r"\(\?P<\w+>|\(\?[:=!<i-]+|\\[bdwsZ]|\\x00", "|", regex)
    words = (word.replace("\\", "") for word in re.split(r"[|)*+?\[\]{}^$]+|(?<!\\)\(", bare))
    return list(dict.fromkeys(word for word in words if word))


def make_long_names(regex: str) -> Iterator[str]:
    """Yield long names that start like a match and repeat one or two words of the regex."""
    words = split_into_words(regex)[:12]
    repeated = [*words, *(a + b for a, b in pairwise(words)), " ", "a", "1"]
    for prefix in {"", *words[:2], "".join(words[:2])}:
        for word in repeated:
            yield prefix + word * (LONG // len(word)) + "!"


def measure_match_s(match: Callable[[str], object], text: str) -> float:
    begin_s = time.thread_time()
    match(text)
    return time.thread_time() - begin_s


@pytest.mark.parametrize("regex", [pytest.param(p, id=name[:80]) for name, p in list_patterns()])
def test_regexes_take_linear_time(regex: re.Pattern[str]) -> None:
    for name in make_long_names(regex.pattern):
        # On a busy machine, a single measurement may take longer.
        seconds = min(measure_match_s(regex.search, name) for _ in range(3))
        assert seconds < SOON_S, name[:100]


# Every option that reads TOML or regular expressions refuses invalid ones with a message.
# Examples are deeply nested TOML, and regexes that Python cannot compile, alone or combined.


ONE = str(CHECKOUT / "fixtures" / "1f1b")
FILES = {
    "match": ("analyze", "--convention", "name = 'mine'\n[[pattern]]\nmatch = '{}'\nphase = 'F'\n"),
    "communication": ("analyze", "--convention", "communication = ['{}']\n"),
    "helper_threads": ("analyze", "--convention", "helper_threads = ['{}']\n"),
    "of idle": ("idle", "--convention", "communication = ['{}']\n"),
    "activities": ("idle", "--activities", "[[activity]]\nname = 'a'\nmatch = ['{}']\n"),
}
NESTED: tuple[str, ...] = (f"a = {'[' * 2000}{']' * 2000}", f"a = {'{a=' * 2000}1{'}' * 2000}")
NESTED += (f"{'a.' * 20_000}b = 1", f"[{'a.' * 20_000}b]", f"a = {'[' * 100_000}")
#: Regexes with too many repetitions, too deep nesting, no end, or that cannot be combined.
ODD = ("a{99999999999999999999}", "a{4294967296}", "(?:" * 5000 + ")" * 5000, "[a", "(?P<1>a)")
#: Sets that Python will read differently in the future, according to its warnings.
AMBIGUOUS = ("[[a]", "x[^a--b]", "[a||b]", "[[:alpha:]]")
FLAGGED = ("(?i)acme", "(?P<a>x)", r"(x)\1")
WRONG = [
    *((file, text, "is not valid TOML (") for file in ("match", "activities") for text in NESTED),
    *(
        (file, FILES[file][2].replace("{}", odd), "is not a valid regular expression")
        for file in FILES
        for odd in ODD
    ),
    *(
        (file, FILES[file][2].replace("{}", odd), "is ambiguous (possible ")
        for file in FILES
        for odd in AMBIGUOUS
    ),
    *(
        (file, FILES[file][2].replace("{}", odd), "cannot be combined with")
        for file in FILES
        for odd in FLAGGED
        if file != "match"
    ),
]


@pytest.mark.parametrize(("file", "text", "reason"), WRONG, ids=range(len(WRONG)))
def test_patterns_that_cannot_be_compiled_are_refused(
    file: str, text: str, reason: str, tmp_path: Path, cli: CommandLine
) -> None:
    command, option, _ = FILES[file]
    path = tmp_path / "names.toml"
    path.write_text(text)

    message = cli.refused(command, ONE, option, str(path), code=2)
    assert message.startswith(f"bubbleviz: {path}: ")
    assert reason in message
    assert message.count("\n") == 1


KNOWN = ["F0.0.0", "B0.0.0", "Optimizer", "PP:0F3", "forward chunk 3 (phase0)", "ProfilerStep#3"]
LIBRARY = ["aten::mm, op_id = 3", "aten::add_", "f0", "[x]"]


def write_named_ranges(
    folder: Path, names: list[str], *, registered: bool, without: tuple[str, ...]
) -> str:
    ranges = [R(10 * i, 10 * i + 5, n, registered=registered) for i, n in enumerate(names)]
    path = write_profile(folder, [K(100, 200, 1)], [C(0, 5, 1)], ranges, without=without)
    return str(path)


MANY = [f"name {i}" for i in range(100)]
#: Texts with quotes, brackets and non-ASCII characters that the array of patterns must preserve.
WRITTEN = ['it\'s "so"', "a\\b", "[x]", "Vorwärts 1", "前向 2", "x"]
ANYTHING = ["Engine.forward 1", "an Engine.step", "Engine.back", "x#step_num=3", "#step_num=x"]
ANYTHING += ["pre_forward", "abc", "xbc", "x0c", "]", "zebra", "F1", "Ünï", "d", "#step"]
#: (names, patterns, names that match).
PREFILTERED: list[tuple[list[str], list[str], list[str]]] = [
    ([*LIBRARY, *KNOWN], [*collect_globs(tuple(built_in().values()))], KNOWN),
    # The number of patterns is not limited.
    (MANY, MANY[1:] * 2, MANY[1:]),
    (WRITTEN, ['it\'s "so"', "a\\b", "[[]x]", "Vorw?rts [0-9]", "前向*"], WRITTEN[:-1]),
    *(
        (ANYTHING, globs, [n for n in ANYTHING if any(is_glob_match(glob, n) for glob in globs)])
        for globs in (
            ["*step_num=*"],
            ["*Engine.forward*", "*Engine.step*", "*#*step_num=[0-9]*", "*pre_*"],
            ["*Engine.f*", "*Engine.s*", "*Engine.b?ck*", "*", "*#step*"],
            ["*a*", "*b*", "*c*", "*d*", "F*"],
            ["[Eex]*", "[^E]*ba*", "p*", "[a-d]"],
            ["?bc*", "[^x]b*", "*[0-9]c", "[]z]*", "*[^]]"],
        )
    ),
]


@pytest.mark.parametrize(
    ("registered", "without"), [(False, ()), (True, ()), (False, ("StringIds",))]
)
@pytest.mark.parametrize(("names", "globs", "expected"), PREFILTERED, ids=range(len(PREFILTERED)))
def test_only_names_that_match_a_pattern_are_read(
    names: list[str],
    globs: list[str],
    expected: list[str],
    registered: bool,
    without: tuple[str, ...],
    tmp_path: Path,
) -> None:
    path = write_named_ranges(tmp_path, names, registered=registered, without=without)

    with open_file(path, 1) as file:
        ranges = file.read(globs).ranges
        sample, candidates = file.sample(globs), file.inspect(globs).candidates

    assert [ranges.names[i] for i in ranges.name_id] == expected
    assert set(sample) == set(candidates) == set(expected)


def match_in_duckdb(globs: list[str], names: list[str]) -> Bools:
    """Return whether DuckDB matches each name with one of the loosened patterns."""
    loose = [convert_to_duckdb(glob) for glob in globs]
    with duckdb.connect(":memory:") as connection:
        return np.array(
            [
                any(
                    connection.execute("SELECT $1 GLOB $2", [name, glob]).fetchall() == [(True,)]
                    for glob in loose
                    if glob is not None
                )
                for name in names
            ],
            bool,
        )


@given(
    st.lists(st.text("aF*?[]^-0-9.é\n!\\", max_size=6), max_size=4),
    st.lists(st.text("aF[]^-0.9é\n#!\\", max_size=6), max_size=8),
)
@example(["[z-a]", "[", "[]a]*", "[^F]?"], ["z", "[", "]a", "é\n"])
@example(["a[0-9]9"], ["a09", "a08", "a99"])
@example(["F0-9", "[+-0-9]"], ["F0-9", "5"])
@example(["[!a]", "[#*?]*", "a\\"], ["!", "a", "#x", "?", "*", "a\\"])
def test_patterns_match_names_together_as_they_match_each_one(
    globs: list[str], names: list[str]
) -> None:
    likely = match_in_duckdb(globs, names)
    expected = [any(is_glob_match(glob, name) for glob in globs) for name in names]

    assert not np.any(np.array(expected, bool) & ~likely)
    assert NameShapes(names).match_globs(globs).tolist() == expected
    packed = PackedNames()
    # Add the names twice, like two parts of a file.
    # No name in the second part is packed.
    for odd in ([row for row, name in enumerate(names) if not name.isascii() or not name], names):
        rows = np.arange(len(names)) if odd is names else np.array(odd, np.int64)
        plain = ["" if row in rows else name for row, name in enumerate(names)]
        packed_texts = "".join(plain).encode(), rows, [names[row] for row in rows.tolist()]
        first, requested_rows = packed.n_ids, np.arange(-1, len(names))
        numbers = packed.add(np.array([*map(len, plain)], np.int64), *packed_texts, requested_rows)
        assert numbers.tolist() == [-1, *range(first, packed.n_ids)]
    assert packed.match_globs(globs).tolist() == 2 * expected
    assert packed.get_texts(np.arange(2 * len(names))) == 2 * names
    if not globs:
        assert not likely.any()
