"""Real exports of many versions: each one is analyzed, or refused with the right message.

The exports are not part of the project. ``BUBBLEVIZ_DATA`` names the folder that contains the
exports.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.cli.app import main
from tests.support.command_line import CommandLine
from tests.support.needs import get_real_file

#: Beginnings of error messages of ``analyze``.
NO_KERNELS = "no CUDA kernels were recorded; profile again with: nsys profile -t cuda,nvtx"
NO_KERNELS_REASON = (
    "no CUDA kernels were recorded (nsys reported: CUDA profiling might have not been started "
    "correctly. No CUDA events collected. Does the process use CUDA?); profile a part"
)
CALLS_ONLY = "no CUDA kernels were recorded, although 23 CUDA API calls were; profile a part"
NO_RANGES = "no NVTX ranges were recorded; enable NVTX ranges in the framework, and profile again"
NO_CONVENTION = "no range name is recognized as "


@dataclass(frozen=True)
class Expected:
    """Known facts about an export.

    Attributes:
        refusal: Start of the message with which ``analyze`` refuses the export.
        version: Schema version, as ``inspect`` prints it.
        kernels: Number of rows of the kernel table, or None if there is no kernel table.
        names: Range names that both commands show.
    """

    refusal: str
    version: str
    kernels: int | None
    names: tuple[str, ...] = ()


EXPECTED = {
    "aws_gpu_report2": Expected(NO_RANGES, "3.17.2", 1),
    "dynamicvit_no_kernels": Expected(NO_KERNELS, "none", None),
    "easycuda_nsys_easy": Expected(NO_RANGES, "3.7.2", 1),
    "gomory_report10": Expected(NO_RANGES, "3.23.3", 97),
    "jacc_cg_trace_no_kernels": Expected(NO_KERNELS_REASON, "3.25.0", None),
    "mordred_report1": Expected(NO_RANGES, "none", 12),
    "nsightful_power_iteration": Expected(
        NO_CONVENTION, "3.20.2", 3_689, ("Compute & Residual 0",)
    ),
    "nsys-ai_h100_2gpu_1s": Expected(NO_CONVENTION, "3.25.0", 3_442, ("aten::as_strided",)),
    "nsys-ai_healthy_1pct": Expected(NO_RANGES, "3.24.14", 400),
    "nsys-ai_mfu_2gpu_before": Expected(NO_CONVENTION, "3.25.0", 4_010, ("aten::copy_",)),
    "nsys-ai_mock": Expected(NO_RANGES, "3.24.14", 2),
    "pipit_cloverleaf": Expected(NO_RANGES, "3.13.2", 1_312),
    "pipit_saxpy-mpi": Expected(NO_CONVENTION, "2.9.1", 5, ("MPI_Init", "saxpy")),
    "rodinia_report3": Expected(NO_RANGES, "3.0.0", 8_190),
    "trixi_report1": Expected(NO_RANGES, "3.1.2", 1),
    "weatherbench2_no_kernels": Expected(CALLS_ONLY, "3.23.3", None),
    "yoon_poolformer_no_kernels": Expected(NO_KERNELS, "3.0.0", None),
}


pytestmark = pytest.mark.real_files


@pytest.fixture(scope="module")
def exports() -> Path:
    return get_real_file("nsys")


def hash_content(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_analyze_says_what_is_missing(
    exports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    for name, expected in EXPECTED.items():
        with subtests.test(name=name):
            folder = tmp_path / name
            folder.mkdir()
            path, content_of_exports = exports / f"{name}.sqlite", hash_content(exports)
            outputs = [f"--{kind}={folder / kind}" for kind in ("svg", "csv", "json", "text")]
            code = main(["analyze", str(path), *outputs])
            printed = capsys.readouterr()

            assert (code, printed.out) == (1, "")
            assert printed.err.startswith(f"bubbleviz: {path}: {expected.refusal}")
            assert printed.err.count("\n") == 1
            assert len(printed.err) < 1000
            assert all(re.sub("[0-9]+", "#", shown) in printed.err for shown in expected.names)
            assert list(folder.iterdir()) == []
            assert hash_content(exports) == content_of_exports


def test_inspect_shows_what_is_there(
    exports: Path, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    for name, expected in EXPECTED.items():
        with subtests.test(name=name):
            content_of_exports = hash_content(exports)
            code = main(["inspect", str(exports / f"{name}.sqlite"), "-v"])
            printed = capsys.readouterr()
            kernels = "no table" if expected.kernels is None else f"{expected.kernels:,}"

            assert (code, printed.err) == (0, "")
            assert f"schema {expected.version}\n" in printed.out
            assert re.search(rf"^ +kernels +{kernels}$", printed.out, re.MULTILINE)
            assert "analyze cannot compute bubble ratios" in printed.out
            assert all(re.sub("[0-9]+", "#", shown) in printed.out for shown in expected.names)
            assert name != "nsys-ai_healthy_1pct" or "globalPid" in printed.out
            for word in ("LD_LIBRARY_PATH", "TOKEN", "PASSWORD", "--trace", "/home/", "HOME="):
                assert word not in printed.out.replace(str(exports), "")
            assert hash_content(exports) == content_of_exports


def test_a_folder_of_unusable_exports_is_refused_in_one_sentence(
    exports: Path, cli: CommandLine
) -> None:
    assert cli.refused("analyze", str(exports), code=1).count("\n") == 1


STEPS = """
name = "steps"
[[pattern]]
glob = "Compute [0-9]*"
match = '^Compute (?P<microbatch>[0-9]+)$'
phase = "F"
[[pattern]]
glob = "Compute & Residual [0-9]*"
match = '^Compute & Residual (?P<microbatch>[0-9]+)$'
phase = "BW"
"""


def test_a_late_host_of_a_real_run_is_named(exports: Path, tmp_path: Path) -> None:
    (tmp_path / "naming.toml").write_text(STEPS)
    path = exports / "nsightful_power_iteration.sqlite"
    report = bubbleviz.analyze(path, convention=tmp_path / "naming.toml")
    around = {report.operations.names[i] for i in report.bubbles.host_range if i >= 0}

    assert any(name.startswith("IO ") for name in around)
