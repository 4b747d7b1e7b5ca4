"""A shell reads the path in a suggested command as the path that the user gave."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.edited_databases import edit_database
from tests.support.nsys_exports import C, K, R, write_profile
from tests.support.xla_runs import make_steps

STEMS = (
    "a b",
    "--output=x",
    "$(touch zq)",
    "it's zq",
    "two  blanks\nand a line",
    "'\"\\",
    "日本 ; rm zq",
    "~",
)


def write_unrecognized_profile(path: Path) -> None:
    """Write a profile that contains a range which no convention recognizes."""
    kernels, calls = [K(30, 50, 0), K(60, 80, 1)], [C(10, 15, 0), C(15, 20, 1)]
    profile = write_profile(path.parent, kernels, calls, [R(0, 90, "embed tokens")])
    profile.rename(path)


def write_profile_without_work(path: Path) -> None:
    """Write a profile whose range names describe no work."""
    write_unrecognized_profile(path)
    edit_database(path, "UPDATE NVTX_EVENTS SET text = 'x'")


def write_raw_report(path: Path) -> None:
    path.write_bytes(b"no report")


def write_pytorch_trace(path: Path) -> None:
    """Write a compressed PyTorch trace with two kernels, a call and an annotation."""
    args = {"device": 0, "stream": 7, "correlation": 1}
    times = {"ph": "X", "ts": 1, "dur": 2, "pid": 0, "tid": 7, "args": args}
    names = {"kernel": "gemm", "cuda_runtime": "cudaLaunchKernel", "user_annotation": "step"}
    events = [{"cat": cat, "name": name, **times} for cat, name in names.items()]
    events.append({**events[0], "ts": 5})
    document = {"schemaVersion": 1, "traceEvents": events}
    path.write_bytes(gzip.compress(json.dumps(document).encode()))


CASES: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "analyze": ("analyze", ".sqlite", write_unrecognized_profile),
    "inspect": ("inspect", ".sqlite", write_profile_without_work),
    "pgle": ("pgle", ".pt.trace.json.gz", write_pytorch_trace),
    "nsys": ("idle", ".nsys-rep", write_raw_report),
}


def read_suggested_words(text: str) -> list[str]:
    """Return the words of the command in a message, as bash reads them."""
    match = re.search(r"((?:bubbleviz idle|nsys export) .*?)(?: breaks down.*)?$", text, re.M)
    assert match is not None, text
    line = "for word in " + match[1] + '; do printf "%s\\0" "$word"; done'
    read = subprocess.run(["bash", "-c", line], capture_output=True, check=True, text=True)
    return read.stdout.split("\0")[:-1]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("stem", STEMS)
def test_a_shell_reads_the_path_that_was_given(
    case: str, stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    command, suffix, write = CASES[case]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    write(tmp_path / f"{stem}{suffix}")

    _, out, err = cli(command, "--", f"{stem}{suffix}")

    words = read_suggested_words(out + err)
    expected_path = f"./{stem}{suffix}" if stem.startswith("-") else f"{stem}{suffix}"
    assert words[-1] == expected_path
    assert not any(word.startswith("-") for word in words[2:] if word not in ("--type", "--output"))
    assert {file.name for file in tmp_path.iterdir()} == {f"{stem}{suffix}"}


def test_a_costs_file_with_blanks_in_its_name_is_one_flag(tmp_path: Path, cli: CommandLine) -> None:
    path = make_steps(3).written(tmp_path)
    costs = tmp_path / 'the "costs" of\\step.pbtxt'

    out = cli.printed("pgle", str(path), "-o", str(costs))

    flag = "--xla_gpu_pgle_profile_file_or_directory_path="
    escaped = str(costs).replace("\\", "\\\\").replace('"', '\\"')
    assert f'{flag}"{escaped}"\n' in out
