"""``watch`` on a running job: planted numbers, and reports of lost or late ranks."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console, Group

from bubbleviz.analyses.watch import measurement as watcher_module
from bubbleviz.analyses.watch.measurement import SILENT_S, Observation, Watcher
from bubbleviz.analyses.watch.outputs import Metrics, open_outputs
from bubbleviz.analyses.watch.text import format_line, format_page
from bubbleviz.analyses.watch.watched_iterations import WatchedIteration, make_limit_check
from bubbleviz.cli.app import main
from bubbleviz.cli.terminal import convert_to_rich
from bubbleviz.errors import OutputError
from tests.planting import plant
from tests.planting.options import Planting
from tests.planting.truth import Truth
from tests.support.command_line import CommandLine
from tests.support.hostile_profiles import DIRECTING, HOSTILE
from tests.support.live_runs import LiveRun
from tests.support.places import CHECKOUT, FIXTURES
from tests.support.recorded_runs import write_recording

MS = 1_000_000
BASE = Planting(
    jitter=0.02, transfer_ns=20_000, communication=False, kernels=1, iterations=6, optimizer_ns=MS
)


SLOW = replace(BASE, slow_stage=2, slow_factor=1.5)


@cache
def planted(planting: Planting = BASE) -> Truth:
    with tempfile.TemporaryDirectory() as folder:
        return plant(planting, Path(folder))


def run(live: LiveRun, *iterations: int, ranks: Sequence[int] | None = None) -> None:
    for iteration in iterations:
        live.run(iteration, ranks)


def whole(truth: Truth, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a finished run."""
    live = LiveRun(truth, folder, monkeypatch)
    run(live, *range(len(truth.iterations)))
    live.stop()
    return folder


def measured(rows: Sequence[WatchedIteration]) -> list[tuple[int, int]]:
    """Return the (number, rank count) of each iteration."""
    return [(row.number, row.ranks) for row in rows]


def page(sight: Observation, width: int = 120) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(Group(*map(convert_to_rich, format_page("run/", sight, sight.events, width))))
    return console.export_text()


#: A run that is being recorded, and the watcher of its folder.
Job = tuple[LiveRun, Watcher]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return LiveRun(planted(), tmp_path / "run", monkeypatch), Watcher(str(tmp_path / "run"))


@pytest.mark.parametrize("exists", [True, False])
def test_an_empty_folder_has_no_iterations(tmp_path: Path, exists: bool) -> None:
    folder = tmp_path / "run"
    if exists:
        folder.mkdir()
    sight = Watcher(str(folder)).look(0.0)

    assert (sight.iterations, sight.trend, sight.events) == ((), (), ())
    assert "waiting for it" in page(sight)


def test_iterations_have_the_planted_ratios_when_the_next_one_begins(
    job: Job, tmp_path: Path
) -> None:
    live, watcher = job
    iterations: list[WatchedIteration] = []
    for number in range(6):
        live.run(number)
        sight = watcher.look(float(number))
        assert len(sight.iterations) == (number > 0)
        iterations += sight.iterations
    live.stop()
    iterations += watcher.look(9.0).iterations
    at_once = Watcher(str(tmp_path / "run")).look(0.0).iterations

    assert watcher.look(10.0).iterations == ()
    assert iterations[0].ratios["period"] is None
    for rows in (iterations, at_once):
        assert [row.number for row in rows] == [0, 1, 2, 3, 4, 5]
        for iteration, true in zip(rows, planted().iterations, strict=True):
            assert iteration.ratios["schedule"] == pytest.approx(
                true.bubble_ratio["schedule"], abs=0.002
            )
            assert iteration.ratios["stage"] == pytest.approx(true.bubble_ratio["stage"], abs=1e-12)
            assert iteration.ranks == iteration.world_size == 4
            assert sum(part.share for part in iteration.parts) == pytest.approx(
                iteration.ratios[iteration.headline]
            )
    # The period is the one of the previous iteration, which ends when this iteration begins.
    for iteration, true in zip(iterations[1:], planted().iterations, strict=False):
        assert iteration.ratios["period"] == pytest.approx(true.bubble_ratio["period"], abs=0.002)


def test_a_slow_rank_is_named_once_it_is_slow(job: Job) -> None:
    live, watcher = job
    run(live, 0, 1, 2)
    live.continue_as(planted(SLOW))
    run(live, 3, 4, 5)
    sight = watcher.look(0.0)

    newest = sight.trend[-1]
    assert newest.number == 4
    assert [(entry.rank, entry.host, entry.slow_since) for entry in newest.slow] == [
        (2, "node2", 3)
    ]
    assert newest.slow[0].excess == pytest.approx(0.5, abs=0.05)
    assert [len(entry.slow) for entry in sight.trend] == [0, 0, 0, 1, 1]
    # The slow rank is visible in two of the three newest iterations.
    assert "stage 2" in sight.advice
    assert "rank 2 (stage 2, node2) has computed" in format_line(newest)
    assert "Slow: rank 2" in page(sight)


@pytest.mark.parametrize("text", HOSTILE, ids=list(HOSTILE))
def test_host_names_do_not_control_the_terminal(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    live = LiveRun(planted(), tmp_path / "run", monkeypatch, host_ending=HOSTILE[text])
    run(live, 0, 1, 2)
    live.continue_as(planted(SLOW))
    run(live, 3, 4, 5)
    live.stop()
    sight = Watcher(str(tmp_path / "run")).look(0.0)
    out = cli.printed("watch", tmp_path / "run", "--plain", "--stop-after", 0.01)

    assert "Slow: rank 2 (stage 2, node2" in page(sight)
    assert "slow: rank 2 (stage 2, node2" in out
    assert DIRECTING.isdisjoint(out + page(sight))
    assert all(line.startswith("iteration ") for line in out.splitlines())
    assert max(map(len, out.splitlines())) < 400


def test_a_long_pause_before_an_iteration_is_reported(job: Job) -> None:
    live, watcher = job
    for iteration, later_ns in enumerate((0, 0, 0, 30 * MS, 30 * MS, 60 * MS)):
        live.begin_at(0, later_ns)
        live.run(iteration)
    live.stop()
    iterations = watcher.look(0.0).iterations

    assert [own.number for own in iterations if own.usual_pause_ns >= 0] == [3, 5]
    assert iterations[0].pause_ns == -1
    assert iterations[3].pause_ns == pytest.approx(iterations[2].pause_ns + 30 * MS, abs=MS)
    assert "after a pause of 3" in format_line(iterations[3])
    assert "data loading" in format_line(iterations[5])
    assert "a pause of" not in format_line(iterations[4])
    assert "Iteration 5 started after a pause" in page(watcher.look(1.0))


def test_a_rank_that_stops_writing_is_silent_and_the_others_continue(job: Job) -> None:
    live, watcher = job
    run(live, 0)
    run(live, 1, ranks=[0, 1, 2])
    assert watcher.look(0.0).iterations == ()
    run(live, 1, ranks=[3])
    # All ranks have written the iteration.
    assert measured(watcher.look(0.0).iterations) == [(0, 4)]
    run(live, 2, 3, 4, 5, ranks=[0, 1, 2])
    assert watcher.look(1.0).events == ()
    sight = watcher.look(SILENT_S + 1.0)

    assert sight.events == ("rank 3 has written nothing since iteration 0",)
    assert sight.silent == (3,)
    assert measured(sight.iterations) == [(1, 3), (2, 3), (3, 3), (4, 3)]
    assert "3 of 4 ranks" in format_line(sight.iterations[-1])
    assert "Silent: rank 3" in page(sight)
    assert watcher.look(SILENT_S + 2.0).events == ()


def test_a_rank_that_appears_late_is_measured_from_then_on(job: Job) -> None:
    live, watcher = job
    run(live, 0, 1, 2, ranks=[0, 1, 2])
    assert watcher.look(0.0).iterations == ()
    sight = watcher.look(SILENT_S + 1.0)
    assert measured(sight.iterations) == [(0, 3), (1, 3)]
    assert sight.silent == (3,)
    run(live, 3, 4)
    sight = watcher.look(SILENT_S + 2.0)

    assert sight.events == ("rank 3 has started writing",)
    assert measured(sight.iterations) == [(2, 3), (3, 4)]
    assert sight.silent == ()


@pytest.mark.parametrize("stages", [4, 2])
def test_a_run_that_begins_again_is_followed(
    stages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    live, watcher = LiveRun(planted(), folder, monkeypatch), Watcher(str(folder))
    run(live, 0, 1, 2)
    assert len(watcher.look(0.0).iterations) == 2
    second_truth = planted(replace(BASE, stages=stages))
    run(LiveRun(second_truth, folder, monkeypatch, first=1, later_ns=600_000_000_000), 0, 1, 2)
    sight = watcher.look(1.0)

    assert sight.events == (f"the run restarted with {stages} ranks",)
    # A watcher that starts later sees only the new run.
    for rows in (sight.iterations, sight.trend, Watcher(str(folder)).look(0.0).trend):
        assert measured(rows) == [(1, stages), (2, stages)]


def test_a_clock_step_is_reported(job: Job) -> None:
    live, watcher = job
    run(live, 0, 1, 2)
    watcher.look(0.0)
    live.clocks[1].error_ns -= 7_000_000_000
    run(live, 3, 4)
    sight = watcher.look(1.0)

    (event,) = sight.events
    assert event.startswith("the UTC clock of node1 jumped by -7.000 s")
    for iteration in sight.iterations:
        true = planted().iterations[iteration.number].bubble_ratio["stage"]
        assert iteration.ratios["stage"] == pytest.approx(true, abs=1e-12)


def test_memory_does_not_grow_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = planted(replace(BASE, stages=2, microbatches=2, iterations=1))
    monkeypatch.setattr(watcher_module, "TREND", 4)
    live, watcher = LiveRun(truth, tmp_path / "run", monkeypatch), Watcher(str(tmp_path / "run"))
    for number in range(12):
        live.begin_at(number, number * 50 * MS)
        live.run(0)
        sight = watcher.look(float(number))
        assert len(sight.trend) == min(number, 4)
        for rank in watcher.ranks.values():
            assert len(rank.numbers) <= watcher_module.CONTEXT + 1


def ratio(number: int, value: float | None) -> WatchedIteration:
    return WatchedIteration(number, 0, MS, -1, 1, 1, "schedule", {"schedule": value}, (), ())


def test_the_trend_distinguishes_small_changes_and_names_its_scale() -> None:
    trend = tuple(ratio(n, value) for n, value in enumerate([0.28, None, 0.28, 0.35]))
    page_text = page(Observation((), trend, (), "", (), 4), 50)

    assert "\n▁ ▁█  ▁ 28.00 % to █ 35.00 %, 3 iterations\n" in page_text
    assert max(map(len, page_text.splitlines())) <= 50


def test_limits_are_exceeded_by_one_iteration_or_by_several_in_a_row() -> None:
    exceeded = make_limit_check(["20%"], 3)
    values = [0.3, 0.3, 0.1, 0.3, None, 0.3, 0.3, 0.3, 0.2, 0.3, 0.3, 0.3]

    sentences = [exceeded(ratio(n, value)) for n, value in enumerate(values)]

    assert [n for n, text in enumerate(sentences) if text] == [6, 11]
    assert sentences[6] == (
        "schedule is 30.00 % in iteration 6, and has been above 20.00 % for 3 iterations"
    )


@pytest.fixture
def sight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Observation:
    return Watcher(str(whole(planted(SLOW), tmp_path / "run", monkeypatch))).look(0.0)


def test_a_scrape_contains_the_newest_iteration(sight: Observation) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client")
    metrics = Metrics("127.0.0.1:0", "big")
    try:
        with pytest.raises(OutputError, match="cannot listen"):
            Metrics(f"127.0.0.1:{metrics.port}", "big")
        url = f"http://127.0.0.1:{metrics.port}/metrics"
        scrapes: list[dict[str, list[tuple[dict[str, str], float]]]] = []
        for state in (None, sight):
            if state:
                metrics.take(state)
            with urllib.request.urlopen(url, timeout=20) as answer:
                text = answer.read().decode()
            families = parser.text_string_to_metric_families(text)
            scrapes.append({s.name: [] for f in families for s in f.samples})
            for family in parser.text_string_to_metric_families(text):
                for sample in family.samples:
                    scrapes[-1][sample.name].append((dict(sample.labels), sample.value))
    finally:
        metrics.close()

    newest = sight.trend[-1]
    assert scrapes[0] == {"bubbleviz_iterations_total": [({"run": "big"}, 0.0)]}
    assert scrapes[1]["bubbleviz_iterations_total"] == [({"run": "big"}, 6.0)]
    ratios = {labels["ratio"]: value for labels, value in scrapes[1]["bubbleviz_bubble_ratio"]}
    assert ratios == {n: value for n, value in newest.ratios.items() if value is not None}
    assert scrapes[1]["bubbleviz_iteration_duration_seconds"] == [
        ({"run": "big"}, newest.length_ns / 1e9)
    ]
    causes = {labels["cause"]: value for labels, value in scrapes[1]["bubbleviz_bubble_part_ratio"]}
    assert causes == {part.name: part.share for part in newest.parts}
    slow = scrapes[1]["bubbleviz_rank_compute_excess_ratio"]
    assert [labels for labels, _ in slow] == [
        {"run": "big", "rank": "2", "host": "node2", "stage": "2"}
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_the_scalars(sight: Observation, tmp_path: Path) -> None:
    loader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_file_loader", reason="tensorboard"
    )
    with open_outputs(str(tmp_path), None, None, str(tmp_path / "board")) as outputs:
        for take in outputs:
            take(sight)
    (file,) = (tmp_path / "board").iterdir()
    values = {
        (event.step, value.tag): value.tensor.float_val[0]
        for event in loader.EventFileLoader(str(file)).Load()
        for value in event.summary.value
    }

    for iteration in sight.iterations:
        scalar = values[iteration.number, "bubbleviz/bubble_ratio/schedule"]
        assert scalar == pytest.approx(iteration.ratios["schedule"], rel=1e-6)
        assert (iteration.number, "bubbleviz/iteration_duration_seconds") in values


def test_json_lines_are_appended(sight: Observation, tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    for _ in range(2):
        with open_outputs(str(tmp_path), str(path), None, None) as outputs:
            outputs[0](sight)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    assert [line["iteration"] for line in lines] == [0, 1, 2, 3, 4, 5] * 2
    assert lines[0]["ratios"]["stage"] == sight.iterations[0].ratios["stage"]
    assert lines[0]["slowest"][0]["rank"] == 2


def watch(folder: Path, *options: str) -> int:
    return main(["watch", str(folder), *options])


@pytest.mark.parametrize("runs", [False, True])
def test_the_command_prints_iterations_and_checks_limits(
    runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = whole(planted(), tmp_path / "run", monkeypatch)
    assert watch(folder, "--interval", "0.01", "--stop-after", "0.02") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(";")[0] for line in lines] == [f"iteration {n}" for n in range(6)]

    mark = tmp_path / "mark"
    code = f"import os; open({str(mark)!r}, 'a').write(os.environ['BUBBLEVIZ_LIMIT'] + chr(10))"
    command = ["--run", f'{sys.executable} -c "{code}"'] if runs else []
    options = ("--interval", "0.01", "--stop-after", "2", "--max-bubble", "schedule=1%")
    assert watch(folder, *options, "--for", "2", *command) == (0 if runs else 3)
    error = capsys.readouterr().err
    assert "in iteration 1, and has been above 1.00 % for 2 iterations" in error
    # If one file disappears, the data from the other files is kept.
    next(folder.glob("*.bvrec")).unlink()
    assert watch(folder, "--stop-after", "0.01", "--max-bubble", "schedule=1%") == 3
    if runs:
        (line,) = mark.read_text(encoding="utf-8").splitlines()
        assert line.startswith("schedule is ")


def test_only_what_was_written_since_the_last_look_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    live, seconds, rest = LiveRun(planted(), tmp_path / "run", monkeypatch), count(), iter((2, 3))
    run(live, 0, 1)
    clock = SimpleNamespace(
        monotonic=lambda: next(seconds), sleep=lambda _: run(live, *islice(rest, 1))
    )
    monkeypatch.setattr("bubbleviz.cli.commands.watch.time", clock)
    assert watch(tmp_path / "run", "--stop-after", "0.5") == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize(
    ("options", "complaint", "code"),
    [
        (["--interval", "0"], "--interval 0", 2),
        (["--stop-after", "-1"], "--stop-after -1", 2),
        (["--run", "true"], "--run has no effect without a limit", 2),
        (["--for", "0", "--max-bubble", "schedule=1%"], "--for 0", 2),
        (["--for", "3"], "--for has no effect without a limit", 2),
        (["--max-bubble", "schedule"], "schedule", 2),
        (["--max-bubble", "shedule=20%"], "no ratio has this name; the ratios are schedule", 2),
        (["--run", "echo 'a", "--max-bubble", "schedule=1%"], "a: No closing quotation", 2),
        (["--run", " ", "--max-bubble", "schedule=1%"], "--run: the command is empty", 2),
        *((["--listen", at], "HOST:PORT", 2) for at in ("9100", "127.0.0.1:99999", ":9100")),
        (["--jsonl", "none/o.jsonl"], "none/o.jsonl: cannot be written", 1),
        (["--interval", "0.01", "--stop-after", "0.05"], "contains no recording yet", 1),
    ],
)
def test_the_command_ends_with_a_message_and_a_code(
    options: list[str],
    complaint: str,
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert watch(tmp_path, *options) == code
    assert complaint in capsys.readouterr().err.replace("\n", " ")


def test_a_folder_is_waited_for_and_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert watch(tmp_path / "run", "--interval", "0.01", "--stop-after", "0.05") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "does not exist yet" in line
    for file, is_profile in (("page.html", False), ("node0.sqlite", True)):
        (tmp_path / file).touch()
        assert watch(tmp_path / file) == 1
        line = capsys.readouterr().err
        assert (
            "not a directory, but watch reads recordings that ranks write with "
            "bubbleviz.annotate" in line
        )
        assert ("bubbleviz analyze" in line) == is_profile
    assert watch(FIXTURES / "1f1b", "--interval", "0.01", "--stop-after", "0.05") == 1
    line = capsys.readouterr().err
    assert "contains no recording yet; watch reads" in line
    assert f"For profiles, run: bubbleviz analyze {FIXTURES / '1f1b'}" in line


def start_watching(folder: Path) -> subprocess.Popen[str]:
    """Start ``bubbleviz watch`` on a folder, with its error stream as a pipe."""
    # A process that was started in the background may ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(
        [sys.executable, "-m", "bubbleviz", "watch", str(folder), "--plain"],
        cwd=CHECKOUT,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_watching_succeeds(number: signal.Signals, tmp_path: Path) -> None:
    with start_watching(tmp_path) as running:
        assert running.stderr is not None
        # The process is watching once the waiting message appears.
        assert str(tmp_path) in running.stderr.readline()
        running.send_signal(number)
        _, err = running.communicate(timeout=60)

    assert (running.returncode, err) == (0, "")


@pytest.mark.parametrize("content", [b"", b"no recording\n"])
def test_ctrl_c_without_any_readable_recording_is_an_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "rank-00000.bvrec").write_bytes(content)
    with start_watching(tmp_path) as running:
        assert running.stderr is not None
        first = running.stderr.readline()
        running.send_signal(signal.SIGINT)
        _, rest = running.communicate(timeout=60)

    assert running.returncode == 1
    reason = "is not a recording from bubbleviz.annotate" if content else "the file is empty"
    assert reason in first + rest


def test_only_empty_recordings_end_in_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(2):
        (tmp_path / f"rank-0000{rank}.bvrec").touch()

    assert watch(tmp_path, "--interval", "0.01", "--stop-after", "0.05") == 1
    assert (
        capsys.readouterr().err.count("the file is empty because its process recorded nothing") == 2
    )


def test_a_recording_without_a_complete_header_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rank-00000.bvrec").write_bytes(b'{"schema":')
    (tmp_path / "rank-00001.bvrec").touch()

    assert watch(tmp_path, "--interval", "0.01", "--stop-after", "0.05") == 1
    assert "the file is empty" not in capsys.readouterr().err


def test_a_folder_that_may_not_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)

    assert watch(tmp_path, "--interval", "0.01", "--stop-after", "0.05") == 1
    assert "cannot be read (Permission denied)" in capsys.readouterr().err.replace("\n", " ")


#: Contents of a recording that cannot be read, and the reason.
UNREADABLE = {
    "no recording": (b"no recording\n", "is not a recording from bubbleviz.annotate"),
    "binary": (
        b"bvrec\r\n\x1a\x01\x00",
        "is a recording in the binary format of an early development version",
    ),
    "newer": (b'{"schema":"bubbleviz.recording/9"}\n', "has schema bubbleviz.recording/9"),
    "too many ranks": (
        b'{"schema":"bubbleviz.recording/1","rank":0,"began_ns":0,"clock":{"monotonic_ns":0,'
        b'"utc_ns":0},"world_size":1000000000000}\n',
        "the header of the recording is invalid (Expected `int` <= 1000000",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_recordings_that_cannot_be_read_end_in_the_reason(
    name: str, tmp_path: Path, cli: CommandLine
) -> None:
    content, reason = UNREADABLE[name]
    (tmp_path / "rank-00000.bvrec").write_bytes(content)
    output = tmp_path / "o.jsonl"
    options = ("--interval", 0.01, "--stop-after", 0.03, "--jsonl", output)
    code, out, err = cli("watch", tmp_path, *options)

    assert (code, out) == (1, "")
    assert not output.exists()
    output.write_text("earlier\n")
    assert cli("watch", tmp_path, *options)[0] == 1
    assert output.read_text() == "earlier\n"
    assert err.count("\n") == 1
    assert f"rank-00000.bvrec: {reason}" in err
    assert "no complete iteration yet" not in err


def test_recordings_with_only_damaged_lines_end_in_the_reason(
    tmp_path: Path, cli: CommandLine
) -> None:
    path = write_recording(tmp_path, 3)
    header, *lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header + b"".join(line.replace(b"crc", b"crd") for line in lines))
    code, out, err = cli("watch", tmp_path, "--interval", 0.01, "--stop-after", 0.03)

    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "rank-00000.bvrec: every line of the recording is damaged (line 2: " in err


def test_damaged_lines_are_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    folder = whole(planted(), tmp_path / "run", monkeypatch)
    path = folder / "rank-00001.bvrec"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b"1", b"7", 1)
    path.write_bytes(b"".join(lines))
    code, out, err = cli("watch", folder, "--interval", 0.01, "--stop-after", 0.05)

    assert code == 0
    assert "iteration 2; schedule unknown" in out
    (line,) = (line for line in err.splitlines() if "damaged" in line)
    assert "rank-00001.bvrec: contains damaged lines (line 4: the checksum does not match)" in line
