"""Every refusal of ``analyze`` names a command that can read the file."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.needs import get_real_file
from tests.support.nsys_exports import C, K, R, write_profile

#: One file for each kind of refusal, because all files would take a minute.
FILES = (
    "kineto/hta_sampled_rank-1.json.gz",  # this has sends and receives, but no pipeline
    "jax/tracelens_jax08_attention.xplane.pb",
    "jax/jax_cpu4.trace.json.gz",
    "nccl/nccl_readme_v5.jsonlines",
    "nccl/pha-z_sendrecv_v5.jsonlines",
    "nsys/pipit_saxpy-mpi.sqlite",  # this has ranges of another domain
    "nsys/yoon_poolformer_no_kernels.sqlite",  # this has only ranges
    "nsys/gomory_report10.sqlite",  # this has only kernels
    "nsys/dynamicvit_no_kernels.sqlite",  # this has neither ranges nor kernels
    "nsys/nsys-ai_healthy_1pct.sqlite",  # this has kernels without processes
    "nsys/nsys-ai_mock.sqlite",
)


def run_commands_of_refusal(path: str, cli: CommandLine) -> list[str]:
    """Run each command that the refusal of a file names, and return the commands."""
    return run_named_commands(cli.refused("analyze", path, code=1), path, cli)


def run_named_commands(text: str, path: str, cli: CommandLine) -> list[str]:
    """Run each command that a text names on the file, and return the commands."""
    sentence = " ".join(text.split())
    matches = re.findall(r"bubbleviz (idle|nccl|pgle|inspect)\b(?: (\S+))?", sentence)
    for command, word in matches:
        argument = shlex.split(word.rstrip(",;"))[0] if word and "/" in word else path
        assert argument == path
        assert cli.printed(command, argument), sentence
    return [command for command, _ in matches]


@pytest.mark.parametrize(
    ("kernels", "name", "command"),
    [(0, "F0", "inspect"), (1, "other", "inspect"), (2, "other", "idle")],
)
def test_a_refusal_names_commands_that_run(
    kernels: int, name: str, command: str, tmp_path: Path, cli: CommandLine
) -> None:
    work = [K(30 + 30 * n, 50 + 30 * n, n) for n in range(kernels)]
    calls = [C(10 + 5 * n, 15 + 5 * n, n) for n in range(max(kernels, 1))]

    assert run_commands_of_refusal(
        str(write_profile(tmp_path, work, calls, [R(0, 90, name)])), cli
    ) == [command]


def test_the_next_step_comes_first(tmp_path: Path, cli: CommandLine) -> None:
    """Programs without a pipeline are more common than pipelines without range names."""
    work = [K(30 + 30 * n, 50 + 30 * n, n) for n in range(2)]
    path = str(write_profile(tmp_path, work, [C(10, 15, 0), C(16, 19, 1)], [R(0, 90, "other")]))

    message = cli.refused("analyze", path, code=1)
    assert message.count("bubbleviz idle") == 1
    assert (
        message.index("bubbleviz idle") < message.index("--convention") < message.index("'other'")
    )

    next_steps = cli.printed("inspect", path).partition("Next\n")[2].splitlines()
    assert [line.split()[0] for line in next_steps if "convention" in line] == ["no"]
    assert sum("bubbleviz idle" in line for line in next_steps) == 1


@pytest.mark.real_files
def test_real_profiles(cli: CommandLine, subtests: pytest.Subtests) -> None:
    for file in FILES:
        with subtests.test(file=file):
            path = str(get_real_file(file))
            commands = run_commands_of_refusal(path, cli)
            assert commands
            # The output of these commands must also name a next step.
            for command in {*commands, "inspect"}:
                code, out, err = cli(command, path)
                if code == 0:
                    run_named_commands(out + err, path, cli)


@pytest.mark.real_files
def test_advice_for_gpus_is_not_given_for_other_devices(
    cli: CommandLine, subtests: pytest.Subtests
) -> None:
    for suffix in ["xplane.pb", "trace.json.gz"]:
        for command in ["idle", "pgle", "analyze"]:
            with subtests.test(command=command, suffix=suffix):
                _, printed, complained = cli(command, str(get_real_file(f"jax/jax_cpu4.{suffix}")))
                text = " ".join((printed + complained).split())
                for word in ("GPU ms", "--xla_gpu", "ProfilerActivity", "idle or pgle"):
                    assert word not in text
                assert {"idle": "jax.devices()", "pgle": "CPU ms", "analyze": "a CPU run"}[
                    command
                ] in text
