"""Runs of JAX on CPUs: a host is called a host, and no advice is for GPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bubbleviz.cli.app import main

DATA = os.environ.get("BUBBLEVIZ_DATA")


@pytest.mark.skipif(DATA is None, reason="BUBBLEVIZ_DATA is not set")
@pytest.mark.parametrize("suffix", ["xplane.pb", "trace.json.gz"])
@pytest.mark.parametrize("command", ["idle", "pgle", "analyze"])
def test_no_advice_for_gpus(command: str, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert DATA is not None
    main([command, str(Path(DATA, "jax", f"jax_cpu4.{suffix}"))])

    printed, complained = capsys.readouterr()
    shown = " ".join((printed + complained).split())
    for word in ("GPU ms", "--xla_gpu", "ProfilerActivity", "idle or pgle"):
        assert word not in shown
    assert {"idle": "jax.devices()", "pgle": "CPU ms", "analyze": "a CPU run"}[command] in shown
