"""Runs of JAX on CPUs: a host is called a host, and no advice is for GPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine

DATA = os.environ.get("BUBBLEVIZ_DATA")


@pytest.mark.skipif(DATA is None, reason="BUBBLEVIZ_DATA is not set")
@pytest.mark.parametrize("suffix", ["xplane.pb", "trace.json.gz"])
@pytest.mark.parametrize("command", ["idle", "pgle", "analyze"])
def test_no_advice_for_gpus(command: str, suffix: str, cli: CommandLine) -> None:
    assert DATA is not None
    _, printed, complained = cli(command, str(Path(DATA, "jax", f"jax_cpu4.{suffix}")))
    shown = " ".join((printed + complained).split())
    for word in ("GPU ms", "--xla_gpu", "ProfilerActivity", "idle or pgle"):
        assert word not in shown
    assert {"idle": "jax.devices()", "pgle": "CPU ms", "analyze": "a CPU run"}[command] in shown
