"""Wheels contain the compiled library if possible, and release files match their names."""

from __future__ import annotations

import struct
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.build_native import NativeBuild, compile_library, compiler, library_name
from scripts.build_wheels import TARGETS, ReleaseError, check_wheel


class _App:
    """Collects the messages that hatchling would show."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def display_warning(self, message: str) -> None:
        self.warnings.append(message)


Build = Callable[[], tuple[dict[str, Any], list[str]]]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Build:
    """Return a function that runs the build hook as hatchling does for a wheel."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("BUBBLEVIZ_PLATFORM", raising=False)

    def run() -> tuple[dict[str, Any], list[str]]:
        data: dict[str, Any] = {"force_include": {}}
        app, hook = _App(), NativeBuild.__new__(NativeBuild)
        monkeypatch.setattr(NativeBuild, "app", app, raising=False)
        hook.initialize("standard", data)
        for file in data["force_include"]:
            assert Path(file).stat().st_size > 0
        hook.finalize()
        return data, app.warnings

    return run


def test_without_a_compiler_the_wheel_is_pure_and_one_line_says_so(
    build: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert build() == (
        {"force_include": {}},
        ["no C compiler was found; bubbleviz reads profiles through SQLite"],
    )


def test_a_compiler_that_fails_leaves_the_wheel_pure(
    build: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken cc"
    broken.write_text("#!/bin/sh\necho 'cc1: no licence' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", f"'{broken}'")

    data, (warning,) = build()

    assert data == {"force_include": {}}
    assert warning.endswith("failed: cc1: no licence; bubbleviz reads profiles through SQLite")
    assert compile_library(tmp_path / "library.so")
    assert [path.name for path in tmp_path.iterdir()] == ["broken cc"]


def test_a_pure_wheel_can_be_requested(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUBBLEVIZ_PLATFORM", "any")

    assert build() == ({"force_include": {}}, [])


@pytest.mark.thorough
@pytest.mark.parametrize("platform", ["", "macosx_11_0_arm64"])
def test_a_wheel_with_the_c_part_is_of_its_platform(
    platform: str, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiler() is None:
        pytest.skip("there is no C compiler here")
    monkeypatch.setenv("BUBBLEVIZ_PLATFORM", platform)

    data, warnings = build()

    platform_name = platform or sysconfig.get_platform()
    tag = f"py3-none-{platform_name.replace('-', '_').replace('.', '_')}"
    assert (data["tag"], data["pure_python"], warnings) == (tag, False, [])
    assert list(data["force_include"].values()) == [
        f"bubbleviz/native/{library_name(platform_name)}"
    ]


def elf(machine: int, *versions: str) -> bytes:
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<2H", 3, machine)
    return head.ljust(64, b"\0") + b"".join(b"\0" + v.encode() for v in versions) + b"\0"


def mach_o(*commands: bytes, cpu: int = 0x0100000C) -> bytes:
    head = struct.pack("<8I", 0xFEEDFACF, cpu, 0, 6, len(commands), sum(map(len, commands)), 0, 0)
    return head + b"".join(commands)


MACOS_11 = struct.pack("<6I", 0x32, 24, 1, 11 << 16, 11 << 16, 0)
SIGNATURE = struct.pack("<4I", 0x1D, 16, 4096, 64)


@pytest.mark.parametrize(
    ("platform", "library", "fits"),
    [
        ("any", None, True),
        ("any", elf(62), False),
        ("manylinux_2_17_x86_64", elf(62), True),
        ("manylinux_2_17_x86_64", elf(183), False),
        ("manylinux_2_17_x86_64", None, False),
        ("manylinux_2_17_aarch64", elf(183, "GLIBC_2.28"), False),
        ("macosx_11_0_arm64", mach_o(MACOS_11, SIGNATURE), True),
        ("macosx_11_0_arm64", mach_o(MACOS_11), False),
        ("macosx_11_0_x86_64", mach_o(MACOS_11, cpu=0x01000007), True),
        ("musllinux_1_2_x86_64", elf(62, "libc.so"), True),
        ("musllinux_1_2_x86_64", elf(62, "libc.so.6"), False),
    ],
)
def test_a_wheel_contains_the_library_of_its_name(
    platform: str, library: bytes | None, fits: bool, tmp_path: Path
) -> None:
    wheel = tmp_path / f"bubbleviz-1.0-py3-none-{platform}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("bubbleviz/native/library.py", "")
        if library is not None:
            archive.writestr(f"bubbleviz/native/{library_name(platform)}", library)

    if fits:
        assert check_wheel(wheel) == (TARGETS[platform][1] if library else "")
    else:
        with pytest.raises(ReleaseError, match=f"{platform}.whl: its libraries are"):
            check_wheel(wheel)
