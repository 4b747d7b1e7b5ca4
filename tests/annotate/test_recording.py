"""Recordings written by a training script: their files, sizes and ends."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from bubbleviz import annotate
from bubbleviz import recording_layout as layout
from bubbleviz.annotate import ranges, wrapping
from bubbleviz.annotate.part_files import MAX_PARTS
from bubbleviz.annotate.recorder import Recorder
from bubbleviz.annotate.switch import EVERY_VARIABLE, FOLDER_VARIABLE
from bubbleviz.errors import UsageError
from bubbleviz.model.numbering import Numbering
from bubbleviz.sources.operations.jsonl.parts import PartReader
from bubbleviz.sources.operations.jsonl.sessions import RecordedSession, read_session
from tests.support.places import CHECKOUT
from tests.support.recorded_runs import Clock

NAMES = ("RECV_F mb=0", "F mb=0", "BW mb=0")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run each test as if its process had no earlier recordings and no launcher."""
    for variable in ("RANK", "WORLD_SIZE", "SLURM_PROCID", FOLDER_VARIABLE, EVERY_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    fresh = ranges.Recorders()
    monkeypatch.setattr(ranges, "_recorders", fresh)
    monkeypatch.setattr(ranges._recorders, "next_iteration", 0)
    yield
    if fresh.recorder is not None:
        fresh.recorder.stop()


def train(iterations: int) -> None:
    """Run iterations of two operations, followed by an optimizer step."""
    for _ in range(iterations):
        with annotate.iteration():
            with annotate.phase("F", microbatch=0, stage=1):
                pass
            with annotate.phase("BW", microbatch=0, stage=1):
                pass
        with annotate.phase("Optimizer"):
            pass


def session(folder: Path, name: str = "rank-00000.bvrec") -> RecordedSession:
    return read_session(str(folder / name), lambda _: None)


def names_of(recorded: RecordedSession) -> list[str]:
    return [
        recorded.names[number].removeprefix("bubbleviz:")
        for number in recorded.stretch.operations.name_id.tolist()
    ]


def test_every_operation_belongs_to_its_iteration(tmp_path: Path) -> None:
    with annotate.record(tmp_path):
        train(3)

    recorded = session(tmp_path)
    assert names_of(recorded) == ["F mb=0 stage=1", "BW mb=0 stage=1", "Optimizer"] * 3
    assert recorded.stretch.operations.iteration.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert recorded.stretch.iterations.number.tolist() == [0, 1, 2]
    assert (recorded.n_damaged, recorded.tail_bytes) == (0, 0)
    operations = recorded.stretch.operations
    assert (operations.host_end_ns >= operations.host_start_ns).all()
    assert (operations.start_ns == layout.NONE).all()
    assert not operations.times_lost.any()


def test_without_iteration_ranges_a_forward_after_an_optimizer_begins_an_iteration(
    tmp_path: Path,
) -> None:
    with annotate.record(tmp_path):
        for _ in range(3):
            for name in ("RECV_F", "F", "F", "BW", "BW", "Optimizer", "COLLECTIVE"):
                with annotate.phase(name):
                    pass

    recorded = session(tmp_path)
    assert recorded.stretch.iterations.number.tolist() == [-1, -1, -1]
    # A receive before the forward looks as if it belonged to the previous step.
    assert recorded.stretch.operations.iteration.tolist() == [0] * 8 + [1] * 7 + [2] * 6


def test_work_between_iterations_belongs_to_neither_once_a_forward_begins(tmp_path: Path) -> None:
    with annotate.record(tmp_path):
        train(1)
        with annotate.phase("F", microbatch=0, stage=1):
            pass
        train(1)

    assert session(tmp_path).stretch.iterations.number.tolist() == [0, -1, 1]


def test_only_some_iterations_of_every_period_are_recorded(tmp_path: Path) -> None:
    with annotate.record(tmp_path, every=5, iterations=2):
        train(12)

    iterations = session(tmp_path).stretch.iterations
    assert iterations.number.tolist() == [0, 1, 5, 6, 10, 11]
    assert iterations.after_gap.tolist() == [False, False, True, False, True, False]


def test_threads_record_concurrently(tmp_path: Path) -> None:
    def work(number: int) -> None:
        for microbatch in range(500):
            with annotate.phase("BW", microbatch=microbatch, chunk=number):
                pass

    with annotate.record(tmp_path), annotate.iteration():
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    recorded = session(tmp_path)
    assert sorted(names_of(recorded)) == sorted(
        f"BW mb={m} chunk={n}" for m in range(500) for n in range(4)
    )
    assert len(set(recorded.stretch.operations.thread.tolist())) >= 1


def test_operations_that_end_after_their_iteration_are_counted(tmp_path: Path) -> None:
    with annotate.record(tmp_path):
        late_range = annotate.phase("BW", microbatch=0)
        with annotate.iteration():
            late_range.__enter__()
        with annotate.iteration():
            late_range.__exit__(None, None, None)

    recorded = session(tmp_path)
    assert names_of(recorded) == []
    assert recorded.stretch.iterations.n_lost.tolist() == [0, 1]


def test_a_recording_says_which_rank_and_host_it_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    start_ns = time.time_ns()
    with annotate.record(tmp_path):
        train(1)

    recorded = session(tmp_path, "rank-00003.bvrec")
    header = recorded.header
    assert (header.rank, header.world_size, header.pid) == (3, 8, os.getpid())
    assert (header.run, header.host) == ("job/2", os.uname().nodename)
    assert start_ns <= header.clock.utc_ns <= time.time_ns()
    assert (
        abs(header.clock.utc_ns - header.clock.monotonic_ns - time.time_ns() + time.monotonic_ns())
        < 10**9
    )


def test_the_rank_of_torch_takes_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 5,
        get_world_size=lambda: 6,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    monkeypatch.setenv("RANK", "1")
    with annotate.record(tmp_path):
        train(1)

    assert session(tmp_path, "rank-00005.bvrec").header.world_size == 6


def test_a_restart_begins_a_new_file(tmp_path: Path) -> None:
    for world_size in (4, 2):
        ranges.append_recorder(None)
        with annotate.record(tmp_path, rank=1, world_size=world_size):
            train(2)

    files = sorted(path.name for path in tmp_path.iterdir())
    assert [name.removesuffix(layout.SUFFIX) for name in files] == ["rank-00001.1", "rank-00001"]
    sizes = [session(tmp_path, n).header.world_size for n in files]
    assert sizes == [2, 4]


def test_old_files_make_room_for_later_ones(tmp_path: Path) -> None:
    limit = 8_000
    with annotate.record(tmp_path, limit_bytes=limit):
        train(200)

    files = sorted(tmp_path.iterdir())
    assert len(files) == MAX_PARTS
    longest = max(len(line) for file in files for line in file.read_bytes().splitlines(True))
    assert sum(file.stat().st_size for file in files) <= limit + MAX_PARTS * longest
    recorded = session(tmp_path, files[0].name)
    numbers = recorded.stretch.iterations.number.tolist()
    assert numbers == list(range(numbers[0], 200))
    assert not recorded.stretch.iterations.after_gap.any()
    assert recorded.parts == MAX_PARTS
    ranges.append_recorder(None)
    with annotate.record(tmp_path, limit_bytes=limit):
        train(3)
    newest = max(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert session(tmp_path, newest.name).parts == 1
    assert session(tmp_path, files[0].name).parts == MAX_PARTS


def test_a_framework_is_recorded_until_its_annotations_are_removed(tmp_path: Path) -> None:
    with wrapping.wrap_once("nothing", lambda _: None, tmp_path) as handle:
        train(1)
        assert wrapping.wrap_once("nothing", lambda _: None, tmp_path) is handle
        train(1)
    train(1)

    assert session(tmp_path).stretch.iterations.number.tolist() == [0, 1]


def test_a_folder_is_recorded_once_and_a_new_folder_replaces_it(tmp_path: Path) -> None:
    first = annotate.record(tmp_path / "a")
    assert annotate.record(str(tmp_path / "a")) is first
    train(1)
    second = annotate.record(tmp_path / "b")
    assert not first.active
    train(1)
    second.stop()
    assert annotate.record(tmp_path / "b") is not second

    assert session(tmp_path / "a").stretch.iterations.number.tolist() == [0]
    assert session(tmp_path / "b").stretch.iterations.number.tolist() == [1]


@pytest.mark.parametrize(
    "arguments", [{"every": -1}, {"iterations": 0}, {"limit_bytes": 0}, {"every": 1.5}]
)
def test_meaningless_numbers_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=next(iter(arguments))):
        annotate.record("run", **arguments)


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from bubbleviz import annotate
import time
for number in range(int(sys.argv[2])):
    with annotate.iteration():
        for phase in ("F", "BW"):
            with annotate.phase(phase, microbatch=0, stage=0):
                pass
    with annotate.phase("Optimizer"):
        pass
    if number == 20 and "wait" in sys.argv:
        with annotate.iteration(), annotate.phase("F", microbatch=0, stage=0):
            print("ready", flush=True)
            time.sleep(60)
foreign = {m.split('.')[0] for m in sys.modules} - sys.stdlib_module_names
print(sorted(foreign - {'__main__', 'bubbleviz'}))
"""


def script(folder: Path, *lines: str, **environment: str) -> subprocess.Popen[str]:
    """Start a training script that does not know about its recording, without any packages."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", SCRIPT, str(CHECKOUT), *lines],
        env={**os.environ, "BUBBLEVIZ_RECORD": str(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_an_environment_variable_records_a_process_with_only_the_standard_library(
    tmp_path: Path,
) -> None:
    done = script(
        tmp_path, "6", BUBBLEVIZ_RECORD_EVERY="3", BUBBLEVIZ_RECORD_ITERATIONS="1", RANK="2"
    )
    out, error = done.communicate(timeout=300)

    assert (out, error) == ("[]\n", "")
    recorded = session(tmp_path, "rank-00002.bvrec")
    assert recorded.stretch.iterations.number.tolist() == [0, 3]


def test_a_wrong_environment_variable_does_not_end_the_process(tmp_path: Path) -> None:
    done = script(tmp_path, "3", BUBBLEVIZ_RECORD_EVERY="often")
    out, error = done.communicate(timeout=300)

    assert out == "[]\n"
    assert "nothing is recorded: BUBBLEVIZ_RECORD_EVERY" in error
    assert error.count("\n") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_forked_process_leaves_the_files_alone(tmp_path: Path) -> None:
    with annotate.record(tmp_path):
        train(2)
        child = os.fork()
        if child == 0:
            train(5)
            ranges._recorders.recorder.stop()  # type: ignore[union-attr]  # the recorder exists
            os._exit(0)
        os.waitpid(child, 0)
        train(1)

    assert session(tmp_path).stretch.iterations.number.tolist() == [0, 1, 2]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_killed_process_leaves_complete_iterations(tmp_path: Path) -> None:
    killed = script(tmp_path, "100", "wait")
    assert killed.stdout is not None
    assert killed.stdout.readline() == "ready\n"
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)

    recorded = session(tmp_path)
    assert recorded.stretch.iterations.number.tolist() == list(range(21))
    assert names_of(recorded) == ["F mb=0 stage=0", "BW mb=0 stage=0", "Optimizer"] * 21


KILLED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from bubbleviz import annotate
number = 0
while True:
    # Entering an iteration writes the line of the one before.
    with annotate.iteration(number):
        os.write(1, b"%d\\n" % (number - 1))
        for microbatch in range(20):
            for phase in ("F", "BW"):
                with annotate.phase(phase, microbatch=microbatch, stage=0):
                    pass
    number += 1
"""


@pytest.mark.parametrize("kills", [20, pytest.param(1_000, marks=pytest.mark.thorough)])
@pytest.mark.timeout(1_800)
def test_a_kill_at_any_time_loses_at_most_the_last_line(kills: int, tmp_path: Path) -> None:
    rng = random.Random(kills)
    for kill in range(kills):
        folder = tmp_path / str(kill)
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", KILLED, str(CHECKOUT)],
            env={**os.environ, "BUBBLEVIZ_RECORD": str(folder)},
            stdout=subprocess.PIPE,
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"-1\n"
            assert child.stdout.readline() == b"0\n"
            time.sleep(rng.uniform(0, 0.02))
            child.kill()
            acknowledged = [0, *map(int, child.stdout.read().splitlines())]

        (file,) = folder.iterdir()
        *lines, _ = file.read_bytes().split(b"\n")
        assert all(json.loads(line) for line in lines)
        recorded = session(folder)
        assert recorded.n_damaged == 0
        numbers = recorded.stretch.iterations.number.tolist()
        assert numbers == list(range(len(numbers)))
        assert len(numbers) == len(lines) - 1
        # The line may be complete before the process can acknowledge it.
        assert len(numbers) - len(acknowledged) in (0, 1)
        assert len(recorded.stretch.operations) == 40 * len(numbers)
        shutil.rmtree(folder)


def failing(max_bytes: int, partial: int = 0) -> Callable[[int, bytes], int]:
    """Return a write function that fails with a full disk after ``max_bytes`` bytes.

    The failing call first writes ``partial`` bytes.
    """
    n_written = [0]

    def write(file: int, data: bytes) -> int:
        if n_written[0] + len(data) > max_bytes:
            if partial and n_written[0] < max_bytes:
                n_written[0] += partial
                return os.write(file, data[:partial])
            raise OSError(errno.ENOSPC, "No space left on device")
        n_written[0] += len(data)
        return os.write(file, data)

    return write


@pytest.mark.parametrize("partial", [0, 100])
def test_a_full_disk_ends_the_recording_and_nothing_else(
    tmp_path: Path, partial: int, caplog: pytest.LogCaptureFixture
) -> None:
    ranges.append_recorder(
        Recorder(tmp_path, limit_bytes=1 << 20, place=(0, 1), write=failing(2_000, partial))
    )
    with caplog.at_level(logging.WARNING):
        train(50)

    (message,) = caplog.messages
    assert "the recording to" in message
    assert "No space left on device" in message
    assert "training continues" in message
    numbers = session(tmp_path).stretch.iterations.number.tolist()
    assert numbers == list(range(len(numbers)))
    assert 0 < len(numbers) < 10
    assert session(tmp_path).tail_bytes == 0
    recorder = ranges._recorders.recorder
    assert recorder is not None
    assert not recorder.active


def test_memory_stays_flat_over_thousands_of_iterations(tmp_path: Path) -> None:
    clock = Clock()
    with Recorder(
        tmp_path, limit_bytes=160_000, place=(0, 1), monotonic=clock.monotonic, utc=clock.utc
    ) as recorder:
        tracemalloc.start()
        try:
            peaks = []
            for rounds in range(4):
                tracemalloc.reset_peak()
                for number in range(1_000):
                    around = recorder.open("", iteration=rounds * 1_000 + number)
                    for name in NAMES:
                        clock.now_ns += 1_000
                        recorder.close(recorder.open(f"bubbleviz:{name}"))
                    recorder.close(around)
                peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()

    assert peaks[-1] < peaks[0] + 20_000
    assert max(peaks) < 200_000
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 170_000


def test_a_reader_follows_the_writer(tmp_path: Path) -> None:
    names: Numbering[str] = Numbering()
    with annotate.record(tmp_path):
        train(1)
        with annotate.iteration():
            reader = PartReader(str(tmp_path / "rank-00000.bvrec"), names)
            lines_read = []
            for _ in range(3):
                while (stretch := reader.read()) is not None:
                    lines_read += stretch.iterations.number.tolist()
        train(3)
        while (stretch := reader.read()) is not None:
            lines_read += stretch.iterations.number.tolist()

    assert lines_read == [0, 1, 2, 3]
    assert names.values == (
        "bubbleviz:F mb=0 stage=1",
        "bubbleviz:BW mb=0 stage=1",
        "bubbleviz:Optimizer",
    )


CHILD = """
import sys
from bubbleviz import annotate

begin, folder = sys.argv[1:]
if begin == "before it is forked":
    annotate.record(folder)
import multiprocessing

def train():
    if begin == "in it":
        annotate.record(folder)
    for number in range(3):
        with annotate.iteration(number), annotate.phase("F", microbatch=0):
            pass

if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=train)
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
@pytest.mark.parametrize("start_method", ["in it", "before it is forked"])
def test_a_child_of_multiprocessing_writes_its_last_iteration(
    start_method: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", CHILD, start_method, str(tmp_path / "run")]
    subprocess.run(command, cwd=CHECKOUT, check=True)

    assert session(tmp_path / "run").stretch.iterations.number.tolist() == [0, 1, 2]
