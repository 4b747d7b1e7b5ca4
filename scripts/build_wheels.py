"""Build all files of a release on any machine: source archive, pure wheel, platform wheels.

Zig compiles the C part for each platform in :data:`TARGETS`. The wheels are built from the source
archive, as users would build them. The script checks that every library is for the right machine
and does not require a newer system. Everything is built twice, and both builds must be identical.
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
#: (Zig's name for the platform, description of the library), keyed by wheel tag.
TARGETS: Mapping[str, tuple[str, str]] = {
    "manylinux_2_17_x86_64": ("x86_64-linux-gnu.2.17", "ELF x86_64, glibc 2.17"),
    "manylinux_2_17_aarch64": ("aarch64-linux-gnu.2.17", "ELF aarch64, glibc 2.17"),
    "musllinux_1_2_x86_64": ("x86_64-linux-musl", "ELF x86_64, musl"),
    "musllinux_1_2_aarch64": ("aarch64-linux-musl", "ELF aarch64, musl"),
    "macosx_11_0_arm64": ("aarch64-macos.11.0", "Mach-O arm64, macOS 11.0, signed"),
    # Only Apple's own processors require libraries to be signed.
    "macosx_11_0_x86_64": ("x86_64-macos.11.0", "Mach-O x86_64, macOS 11.0"),
}
#: Maximum size of a release file, in bytes.
MAX_BYTES = 3_000_000
_PURE = "any"
_ELF, _ELF_MACHINES = b"\x7fELF\x02\x01", {62: "x86_64", 183: "aarch64"}
_GLIBC = re.compile(rb"\0GLIBC_2\.([0-9]+)(?:\.[0-9]+)?(?=\0)")
#: Name of the C library that a library for musl requires.
#: With glibc, the name includes a version.
_MUSL = b"\0libc.so\0"
_MACH_O, _MACH_O_MACHINES = 0xFEEDFACF, {0x01000007: "x86_64", 0x0100000C: "arm64"}
#: Mach-O load commands of the required system version and of the signature.
_BUILD_VERSION, _CODE_SIGNATURE, _MACOS = 0x32, 0x1D, 1


class ReleaseError(Exception):
    """Raised if a release cannot be built or is wrong. The message gives the reason."""


def kind_of(library: bytes) -> str:
    """Describe where a shared library runs, as in :data:`TARGETS`, or return "" if unknown."""
    if library.startswith(_ELF):
        machine = _ELF_MACHINES.get(int.from_bytes(library[18:20], "little"), "")
        needed = max(map(int, _GLIBC.findall(library)), default=0)
        if machine and _MUSL in library:
            return f"ELF {machine}, musl"
        # The first glibc for aarch64 is 2.17.
        # A library that was built for 2.17 may require an older version.
        return f"ELF {machine}, glibc 2.{max(needed, 17)}" if machine else ""
    magic, processor = struct.unpack_from("<2I", library.ljust(8, b"\0"))
    if len(library) < 32 or magic != _MACH_O or processor not in _MACH_O_MACHINES:
        return ""
    offset, words = 32, [f"Mach-O {_MACH_O_MACHINES[processor]}"]
    for _ in range(int.from_bytes(library[16:20], "little")):
        command, length, system, min_version = struct.unpack_from("<4I", library, offset)
        if command == _BUILD_VERSION and system == _MACOS:
            words.append(f"macOS {min_version >> 16}.{min_version >> 8 & 0xFF}")
        words += ["signed"] if command == _CODE_SIGNATURE else []
        offset += length
    return ", ".join(words)


def check_wheel(wheel: Path) -> str:
    """Describe where the library in a wheel runs, or return "" for a pure wheel.

    Raises:
        ReleaseError: The wheel does not contain a library, or the library's platform differs from
            the one in the wheel's name.
    """
    platform = wheel.stem.rpartition("-")[2]
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if "libbubbleviz." in name]
        kinds = [kind_of(archive.read(name)) for name in names]
    expected = [] if platform == _PURE else [TARGETS[platform][1]]
    if kinds != expected:
        raise ReleaseError(f"{wheel.name}: its libraries are {kinds}, not {expected}")
    return "".join(kinds)


def build(into: Path) -> list[Path]:
    """Build the source archive and all wheels into a folder, and return them.

    Raises:
        ReleaseError: A build fails, a file is wrong or too large, or a second build differs.
    """
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        first, second = (_build_once(Path(name) / turn) for turn in ("first", "again"))
        for file, other in zip(first, second, strict=True):
            if file.read_bytes() != other.read_bytes():
                raise ReleaseError(f"{file.name}: a second build differs")
            if file.stat().st_size > MAX_BYTES:
                raise ReleaseError(f"{file.name}: larger than {MAX_BYTES} bytes")
        return [Path(shutil.move(file, into / file.name)) for file in first]


def _build_once(folder: Path) -> list[Path]:
    """Build everything into subfolders, and return the source archive followed by the wheels."""
    folder.mkdir()
    (archive,) = _build("sdist", ROOT, folder / "sdist", {})
    shutil.unpack_archive(archive, folder)
    source = folder / archive.name.removesuffix(".tar.gz")
    if any(source.rglob("libbubbleviz.*")):
        raise ReleaseError(f"{archive.name}: contains a compiled library")
    files = [archive]
    for platform in (_PURE, *TARGETS):
        wheels = _build("wheel", source, folder / platform, _build_environment(platform, folder))
        if [wheel.stem.rpartition("-")[2] for wheel in wheels] != [platform]:
            raise ReleaseError(f"{wheels} is not a wheel for {platform}")
        check_wheel(wheels[0])
        files += wheels
    return files


def _build_environment(platform: str, folder: Path) -> Mapping[str, str]:
    """Return the environment variables for building a wheel for a platform."""
    if platform == _PURE:
        return {"BUBBLEVIZ_PLATFORM": platform}
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", TARGETS[platform][0], "-s"]
    if platform.startswith("macosx"):
        # The library contains its own path, which must be the same in every build.
        zig += [f"-Wl,-install_name,@rpath/{library_name(platform)}"]
    return {
        "BUBBLEVIZ_PLATFORM": platform,
        "CC": shlex.join(zig),
        "ZIG_GLOBAL_CACHE_DIR": str(folder / "zig"),
    }


def _build(kind: str, source: Path, into: Path, variables: Mapping[str, str]) -> list[Path]:
    """Build a source archive or a wheel, and return the files."""
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
    """Build all files, print their sizes, and return the exit code."""
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
