"""Results do not depend on the number of readers, on a cluster, or on lost processes."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import bubbleviz
from bubbleviz.cli.app import main
from bubbleviz.errors import InputError, MismatchError, ProfileError
from bubbleviz.interpret.fleet import dask_fleet, process_pool, run_recordings, silence
from bubbleviz.interpret.record import ReadOptions, record
from bubbleviz.interpret.recording import Recordings
from bubbleviz.model.columns import Ints
from bubbleviz.progress import Watch
from bubbleviz.render import json_document
from bubbleviz.render.formats.csv import render as csv_of
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from bubbleviz.sources.nsys import export, sqlite_export
from bubbleviz.sources.nsys.sqlite_export import SqliteExport
from bubbleviz.timing import Step
from tests.planting import plant
from tests.planting.options import Planting
from tests.support.command_line import CommandLine
from tests.support.places import CHECKOUT
from tests.support.planted_runs import RUNS

# One test forks on purpose, although pytest and libraries run threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

MANY = Planting(schedule="zb-h1", stages=4, servers=4, iterations=3, jitter=0.1, autograd="named")


def written(report: Report) -> bytes:
    """Return the JSON and CSV of a report."""
    view = View()
    return (json_document.render(report, view) + csv_of(report, view)).encode()


@pytest.fixture(scope="module")
def exports_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    plant(MANY, folder)
    return folder


@pytest.fixture
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read files in short stretches with odd boundaries, and read many stretches ahead."""
    monkeypatch.setattr(sqlite_export, "ROWS", 61)
    monkeypatch.setattr(export, "_MIN_POOL_ROWS", 0)


@pytest.mark.usefixtures("short_stretches")
@pytest.mark.parametrize(
    "name",
    [
        "mixed ranges",
        "unnamed autograd thread",
        "receive inside F, backward thread",
        "missing calls",
        "double calls",
        "cut, split backward",
    ],
)
def test_a_file_read_in_stretches_by_several_threads_gives_the_same_report(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(RUNS[name], tmp_path)
    file = min(tmp_path.glob("*.sqlite"))
    several = bubbleviz.analyze(file, jobs=2)
    monkeypatch.undo()

    assert written(several) == written(bubbleviz.analyze(file))


@pytest.mark.usefixtures("short_stretches")
@pytest.mark.parametrize("started", [0, 1])
def test_a_file_is_read_in_this_thread_if_no_other_can_be_started(
    started: int, exports_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = exports_folder / "node0.sqlite"
    whole = written(bubbleviz.analyze(file))
    start, count = threading.Thread.start, 0

    def refuse(thread: threading.Thread) -> None:
        nonlocal count
        count += 1
        if count > started:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)

    assert written(bubbleviz.analyze(file, jobs=3)) == whole


@pytest.mark.usefixtures("short_stretches")
def test_damage_found_by_a_thread_ends_the_run(
    exports_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = SqliteExport.read_range

    def columns(export: SqliteExport, name: str, first: int, last: int) -> Ints:
        if first > 61:
            raise ProfileError("damaged")
        return read(export, name, first, last)

    monkeypatch.setattr(SqliteExport, "read_range", columns)
    with pytest.raises(ProfileError, match="damaged"):
        bubbleviz.analyze(exports_folder / "node0.sqlite", jobs=3)

    assert not [thread for thread in threading.enumerate() if "bubbleviz-read" in thread.name]


def test_many_files_read_at_once_give_the_same_report(exports_folder: Path) -> None:
    assert written(bubbleviz.analyze(exports_folder, jobs=9)) == written(
        bubbleviz.analyze(exports_folder)
    )


@contextmanager
def dying(path: str, times: int, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the process that reads a file die, ``times`` times in a row."""
    parent_pid = os.getpid()

    def dies(one: str, how: ReadOptions, watch: Watch) -> tuple[Recordings, tuple[Step, ...]]:
        deaths = len(list(folder.glob("death*")))
        if os.getpid() != parent_pid and one == path and deaths < times:
            (folder / f"death{deaths}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return record(one, how, watch)

    with patch.context() as patched:
        patched.setattr(run_recordings, "record", dies)
        # Only a forked process inherits the patched function.
        patched.setattr(process_pool, "_is_single_threaded", lambda: True)
        yield


def test_a_file_whose_process_dies_is_read_again(
    exports_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = written(bubbleviz.analyze(exports_folder))
    with dying(str(exports_folder / "node1.sqlite"), 2, tmp_path, monkeypatch):
        assert written(bubbleviz.analyze(exports_folder, jobs=3)) == whole
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_kills_every_process_is_named(
    exports_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = sorted(str(path) for path in exports_folder.glob("*.sqlite"))
    with dying(named[1], 99, tmp_path, monkeypatch):
        with pytest.raises(ProfileError, match=r"node1\.sqlite: 3 processes died .* --jobs"):
            bubbleviz.analyze(named, jobs=2)
        report = bubbleviz.analyze(exports_folder, jobs=2)
    assert [n.reason for n in report.limitations if "processes died" in n.reason]
    assert len(report.profiles) == 3


def test_the_first_of_several_unreadable_files_is_named(
    exports_folder: Path, tmp_path: Path
) -> None:
    bad = [tmp_path / f"bad{number}.sqlite" for number in range(3)]
    for path in bad:
        path.write_bytes(b"SQLite format 3\0" + path.name.encode() + bytes(200))
    files = [
        exports_folder / "node0.sqlite",
        bad[1],
        exports_folder / "node1.sqlite",
        bad[0],
        bad[2],
    ]
    for jobs in (1, 2):
        with pytest.raises(ProfileError, match=r"bad1\.sqlite"):
            bubbleviz.analyze(files, jobs=jobs)


def test_two_runs_at_once_do_not_disturb_each_other(exports_folder: Path) -> None:
    whole = written(bubbleviz.analyze(exports_folder))
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(bubbleviz.analyze, exports_folder, jobs=2) for _ in range(2)]

    assert [written(run.result()) for run in runs] == [whole] * 2


def test_everything_is_done_in_this_process_if_no_other_can_be_started(
    exports_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = written(bubbleviz.analyze(exports_folder))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", refuse)

    assert written(bubbleviz.analyze(exports_folder, jobs=2)) == whole


class Noted:
    """Records the progress events of a run."""

    def __init__(self) -> None:
        self.sizes: Mapping[str, int] = {}
        self.shares: dict[str, list[float]] = {}

    def files(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes

    def read(self, path: str, share: float) -> None:
        self.shares.setdefault(path, []).append(share)


@pytest.mark.parametrize("jobs", [1, 3])
def test_progress_reports_every_file(jobs: int, exports_folder: Path) -> None:
    noted = Noted()
    bubbleviz.analyze(exports_folder, jobs=jobs, progress=noted)
    files = {str(path): path.stat().st_size for path in exports_folder.glob("*.sqlite")}

    assert noted.sizes == files
    assert set(noted.shares) == set(files)
    for shares in noted.shares.values():
        assert shares[-1] == 1.0
        assert shares == sorted(shares)


#: A program that analyzes a run.
#: It shows progress after the number of seconds in the first argument.
_AFTER_SECONDS = """
import sys
from bubbleviz.cli import app, terminal
terminal._LATE_S = float(sys.argv.pop(1))
sys.exit(app.main())
"""


@pytest.mark.parametrize("seconds", ["0", "1000"])
def test_progress_on_a_terminal_has_names_and_sizes(seconds: str, exports_folder: Path) -> None:
    pty = pytest.importorskip("pty", reason="there are no pseudo-terminals here")
    master, slave = pty.openpty()
    command = [
        sys.executable,
        "-c",
        _AFTER_SECONDS,
        seconds,
        "analyze",
        str(exports_folder),
        "-j",
        "1",
    ]
    pieces = []
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=slave) as run:
        os.close(slave)
        # A terminal buffers 4 kB, and a slow run draws more.
        # On Linux, reading from a closed terminal ends with an error.
        with suppress(OSError):
            while piece := os.read(master, 1 << 16):
                pieces.append(piece)
    os.close(master)
    seen = b"".join(pieces).decode(errors="replace")

    assert run.returncode == 0
    # Shorter runs show no progress.
    assert ("4 profiles" in seen) == (seconds == "0")
    assert ("MB" in seen) == (seconds == "0")


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_timings_name_steps_and_rows(jobs: str, exports_folder: Path, cli: CommandLine) -> None:
    code, out, err = cli("analyze", str(exports_folder), "--json", "-", "--timings", "-j", jobs)
    assert code == 0

    assert out.startswith("{")
    for name in ("read kernels", "read calls", "merge ranks", "count", "render"):
        assert name in err
    calls = next(line for line in err.splitlines() if "read calls" in line)
    assert calls.endswith("rows")


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("afresh", [False, True])
def test_a_signal_ends_all_processes_at_once(
    number: signal.Signals, afresh: bool, exports_folder: Path, tmp_path: Path
) -> None:
    begun, output = tmp_path / "begun", tmp_path / "output"
    begun.mkdir()
    output.mkdir()
    (tmp_path / "endless.py").write_text(
        "import pathlib, time\n"
        "def work(path, watch):\n"
        f"    pathlib.Path({str(begun)!r}, pathlib.Path(path).name).touch()\n"
        "    time.sleep(600)\n"
    )
    program = (
        "import sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import endless\n"
        "from bubbleviz.interpret.fleet import process_pool\n"
        f"process_pool._is_single_threaded = lambda: {not afresh}\n"
        "before = process_pool.run_in_processes\n"
        "process_pool.run_in_processes = lambda work, *given: before(endless.work, *given)\n"
        "from bubbleviz.cli.app import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    arguments = ["analyze", str(exports_folder), "--json", str(output / "r.json"), "-j", "2"]
    # Background processes ignore Ctrl-C, and child processes would inherit this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as running:
        _until(lambda: len(list(begun.iterdir())) == 2)
        children = _children(running.pid)
        os.killpg(running.pid, number) if number == signal.SIGINT else running.terminate()
        # The processes sleep for ten minutes unless they get the signal.
        _, message = running.communicate(timeout=300)

    assert running.returncode in {130, 143, -signal.SIGTERM}
    assert running.returncode == 130 or number == signal.SIGTERM
    if number == signal.SIGINT:
        assert message == (
            "bubbleviz: interrupted, so the results are incomplete; run the command again\n"
        )
    assert list(output.iterdir()) == []
    _until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))


def _children(pid: int) -> list[int]:
    """Return the child processes of a process, or none if the system cannot list them."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listed.read_text().split()] if listed.exists() else []


def _until(true: Callable[[], object]) -> None:
    """Wait until a condition is true, for at most five minutes."""
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


needs_stopping = pytest.mark.skipif(
    not hasattr(signal, "SIGSTOP"), reason="processes cannot be frozen here"
)


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat workers as frozen after a short silence."""
    monkeypatch.setattr(dask_fleet, "POLL_S", 0.3)
    monkeypatch.setattr(dask_fleet, "PATIENCE_S", 5.0)


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run a Dask scheduler without workers, and yield its scheduler file."""
    file = tmp_path_factory.mktemp("dask") / "scheduler.json"
    with running_scheduler(file):
        yield file


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run a Dask scheduler with two workers, and yield its scheduler file."""
    file = tmp_path_factory.mktemp("cluster") / "scheduler.json"
    with running_scheduler(file), workers(file, 2):
        yield file


@contextmanager
def running_scheduler(file: Path, first: str = "") -> Iterator[subprocess.Popen[bytes]]:
    options = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file")
    with dask("scheduler", *options, str(file), first=first) as process:
        _until(lambda: file.exists() and file.stat().st_size > 0)
        yield process


@contextmanager
def dask(*arguments: str, first: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Run a Dask command in a process that first runs start-up code."""
    module = f"distributed.cli.dask_{arguments[0]}"
    program = f"{first}\nimport runpy\nrunpy.run_module({module!r}, run_name='__main__')"
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments[1:]],
        cwd=CHECKOUT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={
            **os.environ,
            "PYTHONPATH": str(CHECKOUT),
            "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": os.environ.get("TEST_WORKER_TTL", "5s"),
        },
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _client(scheduler: Path) -> Any:
    from distributed import Client

    return Client(  # type: ignore[no-untyped-call]  # distributed annotates little
        scheduler_file=str(scheduler), set_as_default=False
    )


#: Options of a worker without a nanny, which would restart a killed worker.
_ALONE = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1")


@contextmanager
def workers(
    scheduler: Path, count: int = 1, first: str = "", *, last: bool = False
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run workers with start-up code. With ``last``, their scheduler may end before them."""
    options = ("worker", "--scheduler-file", str(scheduler), *_ALONE)
    with ExitStack() as stack:
        with _client(scheduler) as client:
            others = len(client.nthreads())
            running = [stack.enter_context(dask(*options, first=first)) for _ in range(count)]
            client.wait_for_workers(others + count, timeout=300)
        yield running
    if not last:
        with _client(scheduler) as client:
            _until(lambda: len(client.nthreads()) == others)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Freeze a process, and wait until it has stopped."""
    process.send_signal(signal.SIGSTOP)
    _until(lambda: os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG) is not None)


#: Ways to lose a process.
LOST: Mapping[str, Callable[[subprocess.Popen[bytes]], None]] = {
    "killed": subprocess.Popen.kill,
    "frozen": _stop,
}


class Losing(Noted):
    """Ends processes after a given number of files was read."""

    def __init__(
        self, processes: Sequence[subprocess.Popen[bytes]], after: int, how: str = "frozen"
    ) -> None:
        super().__init__()
        self._processes, self._after, self._lose = list(processes), after, LOST[how]

    def files(self, sizes: Mapping[str, int]) -> None:
        super().files(sizes)
        self._look()

    def read(self, path: str, share: float) -> None:
        super().read(path, share)
        self._look()

    def _look(self) -> None:
        while self._processes and len(self.shares) == self._after:
            self._lose(self._processes.pop())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "after"), [("killed", 0), pytest.param("frozen", 1, marks=needs_stopping)]
)
def test_a_worker_lost_during_the_run_costs_nothing(
    how: str, after: int, scheduler: Path, exports_folder: Path
) -> None:
    with workers(scheduler, 2) as running:
        noted = Losing(running[:1], after, how)
        report = bubbleviz.analyze(exports_folder, dask=str(scheduler), progress=noted)
    assert len(noted.shares) == 4
    assert written(report) == written(bubbleviz.analyze(exports_folder))


def test_a_file_that_a_worker_cannot_read_is_named_and_the_rest_is_read(
    cluster: Path, exports_folder: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.sqlite"
    bad.write_bytes(b"SQLite format 3\0" + bytes(200))
    files = sorted(str(path) for path in exports_folder.glob("*.sqlite"))
    report = bubbleviz.analyze([*files, bad], dask=str(cluster))
    with pytest.raises(ProfileError, match=r"bad\.sqlite"):
        bubbleviz.analyze(bad, dask=str(cluster))
    assert len(report.profiles) == len(files)
    assert any(str(bad) in note.reason for note in report.limitations)


#: Start-up code of a worker that dies while it reads a file.
MORTAL = """
import os
from bubbleviz.interpret.fleet import run_recordings
before = run_recordings.record
def record(path, *given):
    if 'node5' in path:
        os._exit(1)
    return before(path, *given)
run_recordings.record = record
"""


@pytest.mark.thorough
def test_only_files_that_kill_workers_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Planting(stages=8, servers=8, iterations=2, microbatches=2)
    run, file = tmp_path / "run", tmp_path / "scheduler.json"
    run.mkdir()
    plant(planted, run)
    monkeypatch.setattr(dask_fleet, "_MIN_TASKS", 1)
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "0")
    with running_scheduler(file), workers(file, 3, MORTAL, last=True):
        report = bubbleviz.analyze(run, dask=str(file))
    dead = [note.reason for note in report.limitations if "every worker that read" in note.reason]
    # A task that waits for the same worker may also be suspected of killing it.
    assert 1 <= len(dead) <= 2
    assert any("node5.sqlite" in reason for reason in dead)
    assert len(report.profiles) == 8 - len(dead)


def _deadly(number: int) -> int:
    """Return twice the number. In a worker, the number 3 ends the process."""
    if number == 3 and "distributed.worker" in sys.modules and os.environ.get("MORTAL"):
        os._exit(1)
    return 2 * number


@pytest.mark.thorough
def test_parts_that_kill_workers_are_done_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "scheduler.json"
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "0")
    first = "import os; os.environ['MORTAL'] = '1'"
    with (
        running_scheduler(file),
        workers(file, 2, first, last=True),
        dask_fleet.dask_fleet(str(file)) as fleet,
    ):
        assert fleet.map(_deadly, range(6)) == [0, 2, 4, 6, 8, 10]


def test_a_path_that_no_worker_can_see_is_an_error(cluster: Path, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.sqlite")
    with pytest.raises(InputError, match=r"missing\.sqlite.*no worker"):
        bubbleviz.analyze(missing, dask=str(cluster))


def test_a_cluster_without_workers_is_an_error(scheduler: Path, exports_folder: Path) -> None:
    with pytest.raises(InputError, match="has no workers"):
        bubbleviz.analyze(exports_folder, dask=str(scheduler))


@pytest.mark.parametrize(
    "address",
    ["garbage", "", "tcp://", "tcp://a..b:8786", "inproc://127.0.0.1/4/1", "tcp://[::1]:9"],
)
def test_an_impossible_scheduler_address_is_an_error(
    address: str, exports_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_fleet, "PATIENCE_S", 0.5)
    with pytest.raises(InputError, match="no scheduler answers there"):
        bubbleviz.analyze(exports_folder, dask=address)
    # An open client is closed when it is garbage-collected, perhaps while another loop starts.
    # This would be a deadlock.
    clients = [known for known in gc.get_objects() if isinstance(known, Client)]
    assert {client.status for client in clients} <= {"closed", "newly-created"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not a valid scheduler file"),
        ("[]", "not a valid scheduler file"),
        ('{"address": null}', "no scheduler answers there"),
    ],
)
def test_a_scheduler_file_without_an_address_is_an_error(
    content: str, message: str, exports_folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "scheduler.json"
    file.write_text(content)
    with pytest.raises(InputError, match=message):
        bubbleviz.analyze(exports_folder, dask=str(file))


def _server(answer: bytes | None) -> tuple[socket.socket, threading.Thread]:
    """Return a listening socket, and a thread that sends ``answer`` to clients (None: nothing)."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connections = []
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                connections.append(connection)
                if answer is not None:
                    connection.sendall(answer)
        for connection in connections:
            connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return listening, thread


@pytest.mark.thorough
@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        bytes(64),
        b"\x00\x00\x00\x40" + bytes(4) + b"half a gigabyte",
    ],
    ids=["silent", "http", "zeros", "promises"],
)
def test_a_port_of_another_program_is_an_error_within_seconds(
    answer: bytes | None,
    exports_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(dask_fleet, "PATIENCE_S", 1.5)
    listening, thread = _server(answer)
    address = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
    assert main(["analyze", str(exports_folder), "--dask", address]) == 1
    # A pending accept call continues after its socket is closed.
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(300)
    out, err = capfd.readouterr()

    assert out == ""
    assert err.count("\n") == 1
    assert "no scheduler answers there" in err


#: Start-up code of a worker that cannot run tasks, and the expected message.
UNFIT = {
    "absent": (
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'bubbleviz':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Without())\n",
        "cannot load bubbleviz",
    ),
    "old": ("import bubbleviz._version as v; v.__version__ = '0.0.1'", "has bubbleviz 0.0.1"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", UNFIT)
def test_a_worker_with_another_bubbleviz_is_an_error(
    name: str, scheduler: Path, exports_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, message = UNFIT[name]
    with workers(scheduler), workers(scheduler, 1, first):
        capfd.readouterr()
        assert main(["analyze", str(exports_folder), "--dask", str(scheduler)]) == 1
        out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err
    assert "install the same version everywhere" in err


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["absent", "old"])
def test_a_scheduler_with_another_bubbleviz_is_an_error(
    name: str, exports_folder: Path, tmp_path: Path
) -> None:
    first, message = UNFIT[name]
    file = tmp_path / "scheduler.json"
    refusal = pytest.raises(MismatchError, match=f"the scheduler {message}")
    with running_scheduler(file, first), workers(file, 1), refusal:
        bubbleviz.analyze(exports_folder, dask=str(file))


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["killed", pytest.param("frozen", marks=needs_stopping)])
def test_losing_the_last_worker_is_an_error(
    how: str, scheduler: Path, exports_folder: Path
) -> None:
    with workers(scheduler, 2) as running:
        losing = Losing(running, 0, how)
        with pytest.raises(ProfileError, match="no worker that can read it is still running"):
            bubbleviz.analyze(exports_folder, dask=str(scheduler), progress=losing)


@pytest.fixture
def patient_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Run a scheduler that waits for silent workers for Dask's default time."""
    monkeypatch.setenv("TEST_WORKER_TTL", "300s")
    file = tmp_path / "scheduler.json"
    with running_scheduler(file):
        yield file


@pytest.mark.thorough
@needs_stopping
@pytest.mark.parametrize("moment", ["before the run", "while files are read"])
def test_a_frozen_worker_is_named_after_ten_seconds_and_given_up_after_the_limit(
    moment: str, patient_scheduler: Path, exports_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with workers(patient_scheduler, 2, last=True) as running:
        stopping = threading.Thread(target=_stop, args=running[:1])
        arguments = [
            "analyze",
            str(exports_folder),
            "--dask",
            str(patient_scheduler),
            "--dask-timeout",
            "14",
        ]
        begin_s = time.monotonic()
        with pytest.MonkeyPatch.context() as patch:
            if moment == "before the run":
                stopping.start()
                stopping.join()
            else:
                found = dask_fleet.DaskFleet.find

                def find(fleet: dask_fleet.DaskFleet, paths: Sequence[str]) -> Any:
                    files = found(fleet, paths)
                    stopping.start()
                    stopping.join()
                    return files

                patch.setattr(dask_fleet.DaskFleet, "find", find)
            code = main(arguments)
        out, err = capfd.readouterr()

    assert (code, out) == (1, "")
    warning, sentence = err.splitlines()
    assert re.match(
        r"bubbleviz: warning: worker tcp://\S+ has not answered for 10 s; waiting up to ", warning
    )
    assert re.match(
        r"bubbleviz: --dask \S+: worker tcp://\S+ has not answered for 14 s; ", sentence
    )
    assert warning.split()[3] == sentence.split()[4]
    assert 13 < time.monotonic() - begin_s < 60


@pytest.mark.thorough
@needs_stopping
def test_a_frozen_worker_that_continues_costs_nothing(
    patient_scheduler: Path,
    exports_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(silence, "SILENT_S", 3.0)
    with workers(patient_scheduler, 2, last=True) as running:
        _stop(running[0])
        threading.Timer(6.0, running[0].send_signal, (signal.SIGCONT,)).start()
        code = main(
            ["analyze", str(exports_folder), "--dask", str(patient_scheduler), "--json", "-"]
        )
    out, err = capfd.readouterr()

    assert code == 0
    assert len(json.loads(out)["profiles"]) == 4
    assert err.count("has not answered for") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dask-timeout", "5"], "--dask-timeout only applies to a Dask"),
        (["--dask", "x", "--dask-timeout", "0"], "--dask-timeout 0: must be a number of seconds"),
        (
            ["--dask", "x", "--dask-timeout", "nan"],
            "--dask-timeout nan: must be a number of seconds",
        ),
    ],
)
def test_invalid_timeouts_are_refused(
    options: list[str], message: str, exports_folder: Path, cli: CommandLine
) -> None:
    assert message in cli.refused("analyze", exports_folder, *options, code=2)


@pytest.mark.thorough
@needs_stopping
def test_a_frozen_scheduler_is_an_error(exports_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    with running_scheduler(file) as process, workers(file, last=True):
        with pytest.raises(InputError, match="the scheduler stopped or no longer answers"):
            bubbleviz.analyze(exports_folder, dask=str(file), progress=Losing([process], 0))
        with pytest.raises(InputError, match="no scheduler answers there"):
            bubbleviz.analyze(exports_folder, dask=str(file))


@pytest.mark.thorough
@needs_stopping
@pytest.mark.parametrize("moment", ["check_versions", "_check_version"])
def test_a_scheduler_that_freezes_before_versions_are_known_is_an_error(
    moment: str, exports_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "scheduler.json"
    where: Any = dask_fleet.DaskFleet if moment == "check_versions" else dask_fleet
    check = getattr(where, moment)
    with running_scheduler(file) as process, workers(file, last=True):

        def freeze(*arguments: Any) -> None:
            if not frozen:
                _stop(process)
                frozen.append(process.pid)
            check(*arguments)

        frozen: list[int] = []
        monkeypatch.setattr(where, moment, freeze)
        with pytest.raises(InputError, match="the scheduler stopped or no longer answers"):
            bubbleviz.analyze(exports_folder, dask=str(file))


@pytest.mark.thorough
def test_a_scheduler_that_dies_prints_one_sentence(exports_folder: Path, tmp_path: Path) -> None:
    """The test runs a separate process, because Dask may log until the end of the process."""
    file, output = tmp_path / "scheduler.json", tmp_path / "r.json"
    with running_scheduler(file) as process, workers(file, last=True):
        program = (
            "import os, sys\n"
            "from bubbleviz.interpret.fleet.dask_fleet import DaskFleet\n"
            "before = DaskFleet._get_result\n"
            "def kill(*given):\n"
            f"    os.system('kill -9 {process.pid} 2>/dev/null')\n"
            "    return before(*given)\n"
            "DaskFleet._get_result = kill\n"
            "from bubbleviz.cli.app import main\n"
            "sys.exit(main(sys.argv[1:]))\n"
        )
        arguments = ["analyze", str(exports_folder), "--json", str(output), "--dask", str(file)]
        run = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1
    assert "the scheduler stopped" in run.stderr
    assert not output.exists()
