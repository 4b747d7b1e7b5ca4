"""The fuzzer of the command line is reproducible, and detects all kinds of failures."""

from __future__ import annotations

import random
import sqlite3
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.fuzzing.campaign import Counts, run_campaign
from scripts.fuzzing.drawing import draw_input
from scripts.fuzzing.judging import Ended, list_contents, list_problems
from scripts.fuzzing.kinds import KINDS, write_inputs
from scripts.fuzzing.sqlite_damage import damage_database
from scripts.fuzzing.worker import Answer, Request, run_captured
from tests.support.edited_databases import read_columns
from tests.support.places import EXAMPLE

DONE = Ended("analyze", 0, "", b"a table\n", b"bubbleviz: warning: something\n", 0.1)
REFUSED = Ended(
    "analyze", 1, "", b"", b"bubbleviz: a.sqlite: the file is empty; copy it again\n", 0.1
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the undamaged inputs."""
    folder = tmp_path_factory.mktemp("fuzzing") / "inputs"
    write_inputs(folder)
    return folder


def make_request(inputs: Path, folder: Path, count: int, max_s: float = 60.0) -> Request:
    """Return a request to fuzz all kinds of inputs with the first ``count`` seeds."""
    (folder / "work").mkdir()
    return Request(
        inputs=str(inputs),
        folder=str(folder / "work"),
        failures=str(folder / "failures"),
        seeds=tuple(range(count)),
        kinds=tuple(KINDS),
        max_s=max_s,
        max_cpu_s=10.0,
    )


def run_request(request: Request) -> tuple[Counts, list[Answer]]:
    """Run a campaign with one worker, and return its counts and answers."""
    answers: list[Answer] = []
    run_campaign(request, 1, answers.append)
    counts = Counts()
    for answer in answers:
        counts.add(answer)
    return counts, answers


@pytest.mark.thorough
def test_damaged_inputs_end_in_a_report_or_a_sentence(inputs: Path, tmp_path: Path) -> None:
    counts, answers = run_request(make_request(inputs, tmp_path, 300))

    assert counts.seeds == {}
    assert sum(counts.outcomes.values()) == len(answers) == 300
    assert {kind for kind, _ in counts.outcomes} == set(KINDS)


def test_most_good_inputs_are_read(inputs: Path, tmp_path: Path) -> None:
    counts, answers = run_request(replace(make_request(inputs, tmp_path, 40), damaged=False))

    assert not counts.problems
    assert sum(answer.code == 0 for answer in answers) > 32


def test_a_command_that_never_ends_is_a_problem(inputs: Path, tmp_path: Path) -> None:
    counts, answers = run_request(make_request(inputs, tmp_path, 3, max_s=0.001))

    assert [answer.problems for answer in answers] == [("no end within 0.001 s",)] * 3
    assert sum(counts.problems.values()) == 3
    assert sorted(path.name for path in (tmp_path / "failures").iterdir()) == [
        "seed-0",
        "seed-1",
        "seed-2",
    ]
    assert any((tmp_path / "failures" / "seed-0" / "in").iterdir())


def test_a_mistake_of_the_fuzzer_is_a_problem_and_ends_no_run(inputs: Path, tmp_path: Path) -> None:
    request = replace(make_request(inputs, tmp_path, 2), inputs=str(tmp_path / "missing"))
    _, answers = run_request(request)

    assert [answer.seed for answer in answers] == [0, 1]
    assert all(answer.problems[0].startswith("not drawn: File") for answer in answers)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_draws_the_same_input_again(kind: str, inputs: Path, tmp_path: Path) -> None:
    inputs_drawn = []
    for name in ("one", "again"):
        folder = tmp_path / name
        folder.mkdir()
        case = draw_input(11, [KINDS[kind]], inputs, folder)
        words = [word.replace(str(folder), "") for word in case.words]
        inputs_drawn.append((list_contents(folder), words))

    assert inputs_drawn[0] == inputs_drawn[1]


@pytest.mark.parametrize("kind", KINDS)
def test_each_seed_damages_the_input(kind: str, inputs: Path, tmp_path: Path) -> None:
    contents = []
    for damaged in (False, True):
        folder = tmp_path / str(damaged)
        folder.mkdir()
        draw_input(5, [KINDS[kind]], inputs, folder, damaged=damaged)
        contents.append(list_contents(folder / "in"))

    assert contents[0] != contents[1]


def test_damaged_databases_can_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    opened = changed = 0
    for seed in range(40):
        path.write_bytes(EXAMPLE.read_bytes())
        damage_database(path, random.Random(seed))
        with suppress(sqlite3.DatabaseError):  # a few seeds damage the schema itself
            changed += read_columns(path) != read_columns(EXAMPLE)
            opened += 1

    assert opened > 30
    assert changed > 2


def test_good_outcomes_are_no_problem() -> None:
    assert list_problems(DONE, [], 10.0) == []
    assert list_problems(REFUSED, [], 10.0) == []
    assert list_problems(replace(REFUSED, command="watch", err=2 * REFUSED.err), [], 10.0) == []
    door = b"bubbleviz: running idle, because no range names an operation\n" + REFUSED.err
    assert list_problems(replace(REFUSED, err=door), [], 10.0) == []


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (replace(DONE, code=None, escaped="KeyError at a.py:f"), "traceback: KeyError at a.py:f"),
        (replace(DONE, code=-9), "exit code -9"),
        (replace(DONE, cpu_s=11.0), "took more than 10 s"),
        (replace(DONE, out=b"a \x1b[31mname"), "standard output contains '\\x1b'"),
        (replace(DONE, out="a \u202ename".encode()), "standard output contains '\\u202e'"),
        (replace(DONE, out="a \x9bname".encode()), "standard output contains '\\x9b'"),
        (replace(DONE, out=b"\xff"), "standard output is not UTF-8"),
        (replace(DONE, err=b"a.py:3: FutureWarning: x\n"), "without a prefix"),
        (replace(REFUSED, err=b""), "refused without a sentence"),
        (replace(REFUSED, err=2 * REFUSED.err), "refused in 2 sentences"),
        (replace(REFUSED, err=b"bubbleviz: " + 1_000 * b"x"), "too long"),
        (replace(REFUSED, err=b"bubbleviz: out of memory; use --dask\n"), "out of memory"),
    ],
)
def test_bad_outcomes_are_problems(outcome: Ended, problem: str) -> None:
    problems = list_problems(outcome, [], 10.0)

    assert len(problems) == 1
    assert problem in problems[0]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("r.json", b'{"a": NaN}', "is not valid JSON"),
        ("r.json", b'{"a": 1e999}', "is not valid JSON"),
        ("r.json", b"[]", "is not an object"),
        ("r.svg", b"<svg>", "is not well-formed"),
        ("r.csv", b"a\x1b,b\n", ".csv contains"),
        ("r.csv", None, "did not write .csv"),
    ],
)
def test_bad_outputs_are_problems(
    name: str, content: bytes | None, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)

    assert problem in list_problems(DONE, [path], 10.0)[0]


def test_an_output_of_a_command_that_refuses_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    assert list_problems(REFUSED, [path], 10.0) == []
    path.write_text("{}")

    assert list_problems(REFUSED, [path], 10.0) == ["refused, but wrote .json"]


def test_an_exception_is_named_after_where_it_passed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: list[str]) -> int:
        empty: dict[str, int] = {}
        return empty["missing"]

    outcome = run_captured(["analyze"], tmp_path, fail)

    assert outcome.code is None
    assert outcome.escaped.startswith("KeyError at ")
    assert b"KeyError: 'missing'" in outcome.err
    assert capfd.readouterr() == ("", "")


def test_good_inputs_are_the_same_each_time(inputs: Path, tmp_path: Path) -> None:
    second_folder = tmp_path / "another folder" / "inputs"
    write_inputs(second_folder)

    assert list_contents(second_folder) == list_contents(inputs)
