"""Runs the inputs for a list of seeds in one process, one after the other.

``python -m scripts.fuzzing.worker REQUEST`` takes a request in JSON. The worker prints one line of
JSON before and one after each input, so that its parent process knows which input ended it. If an
input takes too long, all stacks go to standard error and the process ends.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import shlex
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TextIO

from bubbleviz.cli.app import main as run_bubbleviz
from scripts.fuzzing.drawing import DrawnInput, draw_input
from scripts.fuzzing.judging import Ended, list_contents, list_problems
from scripts.fuzzing.kinds import KINDS

#: Maximum memory that a worker may reserve, in bytes. A valid input takes a tenth of this.
_MAX_MEMORY = 12 << 30


@dataclass(frozen=True)
class Request:
    """A request to a worker: the inputs to run and their limits.

    Attributes:
        inputs: Folder that contains the valid inputs.
        folder: Folder that the worker may write to.
        failures: Folder to which inputs with a problem are copied.
        seeds: Seeds of the inputs, in order.
        kinds: Names of the kinds to draw from.
        max_s: Maximum wall time per input, in seconds.
        max_cpu_s: Maximum processor time per input, in seconds.
        damaged: Whether inputs are damaged.
    """

    inputs: str
    folder: str
    failures: str
    seeds: tuple[int, ...]
    kinds: tuple[str, ...]
    max_s: float
    max_cpu_s: float
    damaged: bool = True


@dataclass(frozen=True)
class Started:
    """An input that is about to be run.

    Attributes:
        seed: Seed of the input.
        kind: Kind of the input.
        command: The command line, with paths relative to the folder of the input.
    """

    seed: int
    kind: str
    command: str


@dataclass(frozen=True)
class Answer(Started):
    """The outcome of an input.

    Attributes:
        code: Exit code, or None if an exception escaped or the process died.
        problems: Problems with the outcome, each described in a few words.
        cpu_s: Processor time in seconds.
    """

    code: int | None
    problems: tuple[str, ...]
    cpu_s: float


def main() -> None:
    """Run the inputs in a request."""
    request = Request(**json.loads(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    stacks = os.fdopen(os.dup(2), "w", encoding="utf-8")
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    # Report a warning as a problem every time, not only the first time.
    warnings.simplefilter("always")
    faulthandler.enable(stacks)
    # The handler writes the stack of the running thread, and then the signal ends the process. A
    # watchdog thread could crash while reading a stack that is changing.
    faulthandler.register(signal.SIGALRM, file=stacks, chain=True)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for seed in request.seeds:
        try:
            input_ = _draw_seed(request, seed)
        except Exception as error:  # an error in the fuzzer must not end the run
            problems = (f"not drawn: {_describe(error)}",)
            failed = Answer(seed, "fuzzer", "", code=None, problems=problems, cpu_s=0.0)
            print(json.dumps(asdict(failed)), file=answers, flush=True)
            continue
        started = Started(seed, input_.kind, _format_command_line(request, input_))
        print(json.dumps(asdict(started)), file=answers, flush=True)
        signal.setitimer(signal.ITIMER_REAL, request.max_s)
        answer = _run_input(request, started, input_)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        print(json.dumps(asdict(answer)), file=answers, flush=True)


def _draw_seed(request: Request, seed: int) -> DrawnInput:
    folder = Path(request.folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    kinds = [KINDS[name] for name in request.kinds]
    return draw_input(seed, kinds, Path(request.inputs), folder, damaged=request.damaged)


def _format_command_line(request: Request, input_: DrawnInput) -> str:
    """Return a command line without the folders of this run."""
    command = shlex.join(["bubbleviz", *input_.words])
    return command.replace(f"{request.folder}/", "").replace(request.inputs, "inputs")


def _run_input(request: Request, started: Started, input_: DrawnInput) -> Answer:
    """Run the command on a damaged input, and return the result with all problems found.

    The input is kept if there are problems.
    """
    folder = Path(request.folder)
    existing_files = list_contents(input_.path.parent)
    process = run_captured(input_.words, folder)
    problems = list_problems(process, input_.outputs, request.max_cpu_s)
    if list_contents(input_.path.parent) != existing_files:
        problems.append("changed its input")
    problems += _check_unexpected_outputs(input_, folder / "out")
    if problems:
        keep_failure(request, started, problems)
    return Answer(
        **asdict(started), code=process.code, problems=tuple(problems), cpu_s=process.cpu_s
    )


def keep_failure(request: Request, started: Started, problems: Sequence[str]) -> None:
    """Copy an input, its outputs and its problems to the folder of failures."""
    failure_folder = Path(request.failures) / f"seed-{started.seed}"
    shutil.rmtree(failure_folder, ignore_errors=True)
    shutil.copytree(request.folder, failure_folder)
    lines = [f"{started.kind}: {started.command}", *problems]
    (failure_folder / "problems.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _check_unexpected_outputs(input_: DrawnInput, folder: Path) -> list[str]:
    unasked = {path for path in folder.rglob("*") if path.is_file()} - {*input_.outputs}
    return [f"left a file: {sorted(unasked)[0].suffix}"] if unasked else []


def run_captured(
    words: Sequence[str], folder: Path, run: Callable[[list[str]], int] = run_bubbleviz
) -> Ended:
    """Run a command with standard output and error in files, and return how it ended.

    Args:
        words: Arguments of the command line.
        folder: Folder for the files ``stdout`` and ``stderr``.
        run: Function that runs the arguments and returns an exit code.
    """
    code, escaped = None, ""
    with (folder / "stdout").open("w+b") as out, (folder / "stderr").open("w+b") as err:
        begin_s = time.process_time()
        with _redirect(1, out) as stdout, _redirect(2, err) as stderr:
            try:
                with redirect_stdout(stdout), redirect_stderr(stderr):
                    code = run([*words])
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            except BaseException as error:
                escaped = _describe(error)
                traceback.print_exc(file=stderr)
        cpu_s = time.process_time() - begin_s
        return Ended(words[0], code, escaped, _read(out), _read(err), cpu_s)


@contextmanager
def _redirect(number: int, file: IO[bytes]) -> Iterator[TextIO]:
    """Redirect a standard stream to a file, including output of libraries, and yield the stream."""
    saved = os.dup(number)
    os.dup2(file.fileno(), number)
    try:
        with open(number, "w", encoding="utf-8", closefd=False) as stream:
            yield stream
    finally:
        os.dup2(saved, number)
        os.close(saved)


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _describe(error: BaseException) -> str:
    """Return the type of an exception, and the innermost location in the package that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    own_frames = [frame for frame in frames if "/bubbleviz/" in frame.filename]
    frame = (own_frames or frames)[-1]
    location = frame.filename.rpartition("/bubbleviz/")[2]
    return f"{type(error).__name__} at {location}:{frame.name}"


if __name__ == "__main__":
    main()
