"""Compile the C part of bubbleviz, as a build hook of hatchling or as a command.

If there is a compiler (``CC``, or ``cc``, ``gcc``, ``clang``), the wheel contains the compiled
library and is specific to one platform. Otherwise the wheel is pure, and bubbleviz reads files
through SQLite. ``BUBBLEVIZ_PLATFORM`` names the platform of a wheel if ``CC`` compiles for a
different machine. With the value ``any``, the wheel is pure even if there is a compiler.

    python scripts/build_native.py FILE [FLAG...]
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # this file runs as a command
    BuildHookInterface = object

_FOLDER = Path(__file__).resolve().parents[1] / "bubbleviz" / "native"
_FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden")


def library_name(platform: str) -> str:
    """Return the file name that bubbleviz/native/library.py expects for the library."""
    return "libbubbleviz.dylib" if platform.startswith("macosx") else "libbubbleviz.so"


def compiler() -> list[str] | None:
    """Return the command that runs a C compiler, or None if there is no compiler."""
    configured = shlex.split(os.environ.get("CC", ""))
    commands = [configured] if configured else [["cc"], ["gcc"], ["clang"]]
    return next((command for command in commands if shutil.which(command[0])), None)


def checksum(sources: Sequence[Path]) -> int:
    """Return the checksum of the sources, which library.py uses to detect changes."""
    return zlib.crc32(b"".join(source.read_bytes() for source in sources))


def compile_library(target: Path, flags: Sequence[str] = ()) -> str:
    """Compile the library.

    Args:
        target: File to write.
        flags: Additional flags for the compiler.

    Returns:
        The reason why the library could not be compiled, or "" on success.
    """
    command = compiler()
    if command is None or sys.platform == "win32":
        return "no C compiler was found"
    sources = sorted(_FOLDER.glob("*.c"))
    # The library appears only once it is complete.
    # Another process may have the previous library open.
    with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as folder:
        part = Path(folder) / target.name
        run = subprocess.run(
            [
                *command,
                *_FLAGS,
                f"-DBUBBLEVIZ_SOURCE={checksum(sources)}u",
                *flags,
                *map(str, sources),
                "-o",
                str(part),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            return f"{shlex.join(command)} failed: {(run.stderr.splitlines() or ['no reason'])[0]}"
        part.replace(target)
    return ""


class NativeBuild(BuildHookInterface):  # type: ignore[misc]  # hatchling is there in builds only
    """Adds the library to a wheel, or to the checkout for an editable install."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library before hatchling collects files."""
        platform = os.environ.get("BUBBLEVIZ_PLATFORM") or sysconfig.get_platform()
        if platform == "any":
            return
        name = library_name(platform)
        if version == "editable":
            target = _FOLDER / name
        else:
            self._folder = tempfile.TemporaryDirectory()
            target = Path(self._folder.name) / name
        if reason := compile_library(target):
            self.app.display_warning(f"{reason}; bubbleviz reads profiles through SQLite")
            return
        if version != "editable":
            build_data["force_include"][str(target)] = f"bubbleviz/native/{name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform.replace('-', '_').replace('.', '_')}"

    def finalize(self, *_: object) -> None:
        """Remove the compiled library after the build."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def main(arguments: Sequence[str]) -> int:
    """Compile the library to the path in the first argument, and return the exit code.

    All other arguments are compiler flags.
    """
    if not arguments or arguments[0].startswith("-"):
        example = f"bubbleviz/native/{library_name(sysconfig.get_platform())}"
        print(
            f"usage: python scripts/build_native.py FILE [FLAG...]; name the library to write, as "
            f"{example}",
            file=sys.stderr,
        )
        return 2
    reason = compile_library(Path(arguments[0]), arguments[1:])
    if reason:
        print(reason, file=sys.stderr)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
