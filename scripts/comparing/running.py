"""Runs the cases with the commands of a tree, and stores the results.

Results are keyed by the content of the tree's package, so an unchanged tree is not run again. Each
file is written under a temporary name and then renamed, so several comparisons may share one work
folder::

    work/inputs-KEY/in/              what both trees read
         inputs-KEY/recordings-KEY/  made by one tree, keyed like its results
         results/KEY/                one JSON file per case: exit codes, and digests of the files
         contents/DIGEST             the files, each content once
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.comparing.cases import Case

_HERE = Path(__file__).parent
#: Paths in a tree that determine what its commands write.
_PRODUCT = ("bubbleviz", "sql", "pyproject.toml")
#: Part of the keys of results. Change it when commands are run in a different way.
_WAY_OF_RUNNING = b"1"
#: Matches names of TensorBoard's files, which contain a time, a host and a process id.
_EVENT_FILE = re.compile(r"events\.out\.tfevents\.\S+")
#: Maximum time that one command may take, in seconds.
_MAX_SECONDS = 300
#: Environment variables that change what commands print.
_REMOVED_VARIABLES = ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "PYTHONPATH", "BUBBLEVIZ_DATA")


class ComparisonError(Exception):
    """Raised if the comparison cannot be made. The message gives the reason."""


@dataclass(frozen=True)
class Result:
    """The results of the commands of a case.

    Attributes:
        codes: Exit code of each command.
        files: Digest of each file that was written, keyed by file name. The output of command n is
            in ``stdout.n`` and ``stderr.n``.
    """

    codes: list[int]
    files: dict[str, str]


def digest(*parts: bytes) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 digest of some bytes."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, and then rename the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)


class Store:
    """The stored results of all trees.

    A result depends on the commands of a case and on the content of their inputs. It therefore
    stays valid when other inputs change.

    Args:
        work: Folder that contains everything that is stored.
        inputs: Folder that contains the inputs, below the work folder.
    """

    def __init__(self, work: Path, inputs: Path) -> None:
        self.work, self.inputs = work, inputs
        self._input_digest = functools.cache(self._compute_input_digest)

    def read_result(self, key: str, case: Case) -> Result | None:
        """Return the result of a case, or None if it is not stored."""
        try:
            return Result(**json.loads(self._path(key, case).read_bytes()))
        except FileNotFoundError:
            return None

    def write_result(self, key: str, case: Case, codes: list[int], folder: Path) -> None:
        """Store the files that the commands of a case wrote into their folder."""
        files = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                name = digest(content)
                files[_EVENT_FILE.sub("scalars.tfevents", path.relative_to(folder).as_posix())] = (
                    name
                )
                if not (self.work / "contents" / name).exists():
                    write_atomically(self.work / "contents" / name, content)
        result = json.dumps(asdict(Result(codes, files))).encode()
        write_atomically(self._path(key, case), result)

    def read_content(self, name: str) -> bytes:
        """Return the content of a file, given its digest."""
        return (self.work / "contents" / name).read_bytes()

    def forget(self, key: str) -> None:
        """Remove all results of a tree."""
        shutil.rmtree(self.work / "results" / key, ignore_errors=True)

    def _path(self, key: str, case: Case) -> Path:
        words = {word for command in case.commands for word in command.split()}
        read = sorted(word for word in words if word.startswith(("in/", "rec/")))
        parts = [repr(case.commands).encode(), *map(self._input_digest, read)]
        return self.work / "results" / key / f"{case.name.replace('/', '+')}.{digest(*parts)}.json"

    def _compute_input_digest(self, word: str) -> bytes:
        """Return a digest of the names and contents of an input's files.

        Args:
            word: Path of the input on a command line. ``rec/NAME`` is recorded from a JSON file.
        """
        path = self.inputs / word
        if word.startswith("rec/"):
            path = self.inputs / "in" / "operations" / f"{word.removeprefix('rec/')}.json"
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        names = [file.relative_to(self.inputs).as_posix().encode() for file in files]
        return digest(*names, *(file.read_bytes() for file in files)).encode()


@dataclass(frozen=True)
class Tree:
    """A clone or worktree of bubbleviz, with its Python environment.

    Attributes:
        folder: Root of the tree.
        key: Digest of everything that affects the results of the tree.
    """

    folder: Path
    key: str

    @property
    def python(self) -> Path:
        """The Python in the tree's environment."""
        return self.folder / ".venv" / "bin" / "python"


def open_tree(folder: Path) -> Tree:
    """Return a tree after creating or updating its environment.

    Raises:
        ComparisonError: The folder is not a tree, or its environment cannot be created.
    """
    folder = folder.resolve()
    if not (folder / "scripts" / "environment").exists():
        raise ComparisonError(f"{folder}: no clone or worktree of bubbleviz")
    command = ("scripts/environment", ".venv", "--group", "dev", "--editable", ".")
    if subprocess.run(command, cwd=folder, check=False).returncode:
        raise ComparisonError(f"{folder}: the environment cannot be made")
    return Tree(folder, key_of_tree(folder))


def key_of_tree(folder: Path) -> str:
    """Return a digest of a tree's package, including uncommitted changes."""

    def git(*words: str) -> bytes:
        return subprocess.run(("git", *words), cwd=folder, check=True, capture_output=True).stdout

    try:
        committed = git("ls-tree", "HEAD", *_PRODUCT)
        changed = git("diff", "HEAD", "--", *_PRODUCT)
        new = git("ls-files", "--others", "--exclude-standard", "--", *_PRODUCT).decode()
    except subprocess.CalledProcessError as error:
        raise ComparisonError(f"{folder}: {error.stderr.decode().strip()}") from None
    contents = [(folder / name).read_bytes() for name in new.splitlines()]
    return digest(_WAY_OF_RUNNING, committed, changed, new.encode(), *contents)


def record_with(tree: Tree, inputs: Path) -> Path:
    """Return the folder that contains a tree's recordings, after creating any missing ones."""
    folder = inputs / f"recordings-{tree.key}"
    if folder.exists():
        return folder
    with tempfile.TemporaryDirectory(dir=inputs) as unfinished:
        words = (tree.python, _HERE / "recording.py", inputs / "in" / "operations", unfinished)
        process = subprocess.run(words, check=False, env=_build_environment())
        if process.returncode:
            print(f"{tree.folder}: operations cannot be recorded", file=sys.stderr)
        shutil.copytree(unfinished, folder, dirs_exist_ok=True)
    return folder


def run_cases(
    trees: Sequence[Tree],
    cases: Sequence[Case],
    store: Store,
    *,
    real: Path | None,
    jobs: int,
    show_progress: Callable[[int, int], None],
) -> None:
    """Run the cases whose results are missing.

    Args:
        trees: Trees in which each case runs.
        cases: Cases to run.
        store: Store for the results.
        real: Folder that contains real files, or None.
        jobs: Number of commands that run at the same time.
        show_progress: Callback that receives the number of finished cases and the number of cases
            to run.

    Raises:
        ComparisonError: A worker ended unexpectedly.
    """
    missing = [(t, c) for c in cases for t in trees if store.read_result(t.key, c) is None]
    links = {
        tree.key: {"in": store.inputs / "in", "rec": record_with(tree, store.inputs)}
        | ({"real": real} if real else {})
        for tree in trees
        if any(tree is other for other, _ in missing)
    }
    waiting = iter(missing)
    lock = threading.Lock()
    n_ended = 0

    def run_waiting() -> None:
        """Run cases until none are left, with one worker per tree."""
        nonlocal n_ended
        with ExitStack() as stack:
            workers: dict[str, _Worker] = {}
            while True:
                with lock:
                    tree, case = next(waiting, (None, None))
                if tree is None or case is None:
                    return
                if tree.key not in workers:
                    workers[tree.key] = stack.enter_context(_Worker(tree))
                _run_case(workers[tree.key], case, links[tree.key], store)
                with lock:
                    n_ended += 1
                    show_progress(n_ended, len(missing))

    with ThreadPoolExecutor(jobs) as pool:
        for future in [pool.submit(run_waiting) for _ in range(jobs)]:
            future.result()


def _run_case(worker: _Worker, case: Case, links: Mapping[str, Path], store: Store) -> None:
    """Run the commands of a case in a new folder with links, and store their outputs."""
    with tempfile.TemporaryDirectory(dir=store.inputs) as name:
        folder = Path(name)
        for link, target in links.items():
            (folder / link).symlink_to(target)
        codes = worker.run(case, folder)
        for link in links:
            (folder / link).unlink()
        store.write_result(worker.tree.key, case, codes, folder)


class _Worker:
    """A process that runs the commands of one tree; see :mod:`scripts.comparing.worker`."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._process = subprocess.Popen(
            (tree.python, _HERE / "worker.py"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_build_environment(),
        )

    def run(self, case: Case, folder: Path) -> list[int]:
        """Run the commands of a case and return their exit codes.

        Raises:
            ComparisonError: The process ended unexpectedly.
        """
        if case.is_interactive:
            return [self._run_interactively(case, folder)]
        pipes = self._process.stdin, self._process.stdout
        commands = [command.split() for command in case.commands]
        request = {"commands": commands, "folder": str(folder), "seconds": _MAX_SECONDS}
        assert pipes[0] is not None
        assert pipes[1] is not None
        print(json.dumps(request), file=pipes[0], flush=True)
        answer = pipes[1].readline()
        if not answer:
            raise ComparisonError(f"{self.tree.folder}: the worker ended at {case.name}")
        return [int(code) for code in json.loads(answer)]

    def _run_interactively(self, case: Case, folder: Path) -> int:
        """Run a command that answers requests; see :mod:`scripts.comparing.interactive`."""
        words = [str(self.tree.python), str(_HERE / "interactive.py"), *case.commands[0].split()]
        files = folder / "stdout.0", folder / "stderr.0"
        with files[0].open("wb") as output, files[1].open("wb") as errors:
            try:
                process = subprocess.run(
                    words,
                    cwd=folder,
                    check=False,
                    env=_build_environment(),
                    stdout=output,
                    stderr=errors,
                    timeout=_MAX_SECONDS,
                )
            except subprocess.TimeoutExpired:
                return -signal.SIGALRM
        return process.returncode

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _build_environment() -> dict[str, str]:
    """Return the environment for commands, without the variables that change their output."""
    environment = {name: os.environ[name] for name in os.environ if name not in _REMOVED_VARIABLES}
    return environment | {
        "OPENBLAS_NUM_THREADS": "1",
        "TZ": "UTC",
        "LC_ALL": "C.UTF-8",
        "TERM": "dumb",
    }
