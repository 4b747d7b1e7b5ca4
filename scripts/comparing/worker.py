"""Runs bubbleviz commands of one tree. The tree's Python runs this script, which is never imported.

Each line of standard input is a request in JSON: ``{"commands": [[...], ...], "folder": ...,
"seconds": ...}``. The answer is one line with the exit code of each command. The output of command
n goes to the files ``stdout.n`` and ``stderr.n`` in the folder.

All modules of bubbleviz are imported once. Each command runs in a fork of this process. Therefore,
commands do not affect each other and do not spend time on imports. The drawback is that imports are
not tested, so a missing or late import goes unnoticed.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import signal
import sys
import traceback
import warnings
from pathlib import Path

#: Modules that commands import only when they need them.
_LATE_IMPORTS = (
    *("adbc_driver_sqlite.dbapi", "drawsvg", "duckdb", "google.protobuf.message", "intervaltree"),
    *("mcp", "msgspec", "perfetto.protos.perfetto.trace.perfetto_trace_pb2", "prometheus_client"),
    *("pyarrow.parquet", "scipy.optimize", "scipy.stats", "sqlalchemy", "typst", "vl_convert"),
)


def main() -> None:
    """Answer requests until standard input ends."""
    # Modules must not be imported from the folder of this file.
    sys.path.pop(0)
    _import_all()
    for line in sys.stdin:
        request = json.loads(line)
        folder = Path(request["folder"])
        codes = [
            _run(words, folder, number, request["seconds"])
            for number, words in enumerate(request["commands"])
        ]
        print(json.dumps(codes), flush=True)


def _import_all() -> None:
    """Import all modules of bubbleviz and exclude their objects from garbage collection.

    Commands that run in forks of this process then start faster.
    """
    import bubbleviz

    modules = pkgutil.walk_packages(bubbleviz.__path__, "bubbleviz.", onerror=lambda _: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in [*_LATE_IMPORTS, *(module.name for module in modules)]:
            # Optional packages may be missing, as may modules that exist only in other versions.
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _run(words: list[str], folder: Path, number: int, seconds: int) -> int:
    """Run one command in a fork of this process and return its exit code.

    Returns:
        The exit code, or the negated number of the signal that ended the command. The value -14
        means that the command was still running after the given number of seconds.
    """
    sys.stdout.flush()
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)
    code = 1
    try:
        signal.alarm(seconds)
        os.chdir(folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(f"stdout.{number}", flags, 0o644), 1)
        os.dup2(os.open(f"stderr.{number}", flags, 0o644), 2)
        sys.argv = ["bubbleviz", *words]
        code = _run_command()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _run_command() -> int:
    """Run the command line in ``sys.argv``. Return its exit code, or 1 after an exception."""
    from bubbleviz.__main__ import main as run_bubbleviz

    try:
        return run_bubbleviz()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1


if __name__ == "__main__":
    main()
