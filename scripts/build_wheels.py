"""Build all files of a release, on any machine: the source, the pure wheel, those of platforms.

The C part of each platform's wheel is compiled by Zig, which needs no other machine; which
platforms, :data:`TARGETS` says. The wheels are built from the source archive, as users build
theirs, and every library is looked at: it must be of its machine, and ask for no newer system.
All is built twice, and must be the same to the byte.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.build_native import library_name

ROOT = Path(__file__).resolve().parents[1]
#: Of each platform's tag, what Zig calls it, and what its library is.
TARGETS: Mapping[str, tuple[str, str]] = {
    "manylinux_2_17_x86_64": ("x86_64-linux-gnu.2.17", "ELF x86_64, glibc 2.17"),
    "manylinux_2_17_aarch64": ("aarch64-linux-gnu.2.17", "ELF aarch64, glibc 2.17"),
    "musllinux_1_2_x86_64": ("x86_64-linux-musl", "ELF x86_64, musl"),
    "musllinux_1_2_aarch64": ("aarch64-linux-musl", "ELF aarch64, musl"),
    "macosx_11_0_arm64": ("aarch64-macos.11.0", "Mach-O arm64, macOS 11.0, signed"),
    # Only the processors of Apple refuse a library that is not signed.
    "macosx_11_0_x86_64": ("x86_64-macos.11.0", "Mach-O x86_64, macOS 11.0"),
}
#: No file of a release is larger.
MOST_BYTES = 3_000_000
_PURE = "any"
_ELF, _ELF_MACHINES = b"\x7fELF\x02\x01", {62: "x86_64", 183: "aarch64"}
_GLIBC = re.compile(rb"\0GLIBC_2\.([0-9]+)(?:\.[0-9]+)?(?=\0)")
#: The C library that a library asks for, by name: glibc's has a version.
_MUSL = b"\0libc.so\0"
_MACH_O, _MACH_O_MACHINES = 0xFEEDFACF, {0x01000007: "x86_64", 0x0100000C: "arm64"}
#: Load commands of a Mach-O file: the system it is built for, and its signature.
_BUILD_VERSION, _CODE_SIGNATURE, _MACOS = 0x32, 0x1D, 1


class ReleaseError(Exception):
    """A release cannot be built, or is not what it must be."""


def kind_of(library: bytes) -> str:
    """Return what a shared library runs on, in the words of :data:`TARGETS`; "" if unknown."""
    if library.startswith(_ELF):
        machine = _ELF_MACHINES.get(int.from_bytes(library[18:20], "little"), "")
        needed = max(map(int, _GLIBC.findall(library)), default=0)
        if machine and _MUSL in library:
            return f"ELF {machine}, musl"
        # A target older than its machine's first glibc is that one, which 2.17 is of aarch64.
        return f"ELF {machine}, glibc 2.{max(needed, 17)}" if machine else ""
    magic, processor = struct.unpack_from("<2I", library.ljust(8, b"\0"))
    if len(library) < 32 or magic != _MACH_O or processor not in _MACH_O_MACHINES:
        return ""
    at, words = 32, [f"Mach-O {_MACH_O_MACHINES[processor]}"]
    for _ in range(int.from_bytes(library[16:20], "little")):
        command, length, system, least = struct.unpack_from("<4I", library, at)
        if command == _BUILD_VERSION and system == _MACOS:
            words.append(f"macOS {least >> 16}.{least >> 8 & 0xFF}")
        words += ["signed"] if command == _CODE_SIGNATURE else []
        at += length
    return ", ".join(words)


def check_wheel(wheel: Path) -> str:
    """Return what the library in a wheel runs on; "" of a pure wheel.

    Raises:
        ReleaseError: the wheel holds another library than its name says, or none.
    """
    platform = wheel.stem.rpartition("-")[2]
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if "libbubbleviz." in name]
        kinds = [kind_of(archive.read(name)) for name in names]
    wanted = [] if platform == _PURE else [TARGETS[platform][1]]
    if kinds != wanted:
        raise ReleaseError(f"{wheel.name}: its libraries are {kinds}, not {wanted}")
    return "".join(kinds)


def build(into: Path) -> list[Path]:
    """Build the source archive and all wheels into a folder, and return them.

    Raises:
        ReleaseError: a build fails, gives something else, something too large, or not the same
            again.
    """
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        first, again = (_build_once(Path(name) / turn) for turn in ("first", "again"))
        for file, other in zip(first, again, strict=True):
            if file.read_bytes() != other.read_bytes():
                raise ReleaseError(f"{file.name}: a second build gives other bytes")
            if file.stat().st_size > MOST_BYTES:
                raise ReleaseError(f"{file.name}: is larger than {MOST_BYTES} bytes")
        return [Path(shutil.move(file, into / file.name)) for file in first]


def _build_once(folder: Path) -> list[Path]:
    """Build everything into folders of a folder, and return the source archive, then wheels."""
    folder.mkdir()
    (archive,) = _built("sdist", ROOT, folder / "sdist", {})
    shutil.unpack_archive(archive, folder)
    source = folder / archive.name.removesuffix(".tar.gz")
    if any(source.rglob("libbubbleviz.*")):
        raise ReleaseError(f"{archive.name}: holds a compiled library")
    files = [archive]
    for platform in (_PURE, *TARGETS):
        wheels = _built("wheel", source, folder / platform, _environment(platform, folder))
        if [wheel.stem.rpartition("-")[2] for wheel in wheels] != [platform]:
            raise ReleaseError(f"{wheels} is no wheel of {platform}")
        check_wheel(wheels[0])
        files += wheels
    return files


def _environment(platform: str, folder: Path) -> Mapping[str, str]:
    """Return the variables by which the build of a wheel is one of a platform."""
    if platform == _PURE:
        return {"BUBBLEVIZ_PLATFORM": platform}
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", TARGETS[platform][0], "-s"]
    if platform.startswith("macosx"):
        # Such a library carries its own path, which must be the same in every build.
        zig += [f"-Wl,-install_name,@rpath/{library_name(platform)}"]
    return {
        "BUBBLEVIZ_PLATFORM": platform,
        "CC": shlex.join(zig),
        "ZIG_GLOBAL_CACHE_DIR": str(folder / "zig"),
    }


def _built(kind: str, source: Path, into: Path, variables: Mapping[str, str]) -> list[Path]:
    """Build a source archive or a wheel, and return what was built."""
    run = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(into)],
        cwd=source,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise ReleaseError(f"the {kind} cannot be built: {run.stderr.strip()}")
    return sorted(into.iterdir())


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, and print what was built with its size; return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/wheels", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist", help="default: dist")
    try:
        files = build(parser.parse_args(arguments).folder.resolve())
    except ReleaseError as error:
        print(f"wheels: {error}", file=sys.stderr)
        return 1
    for file in files:
        kind = check_wheel(file) if file.suffix == ".whl" else ""
        print(f"{file.stat().st_size / 1000:>8.0f} kB  {file.name}  {kind}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
