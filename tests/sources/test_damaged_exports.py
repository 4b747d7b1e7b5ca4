"""Exports with damaged pages: refused, or all of their kernels are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz.errors import BubblevizError, ProfileError
from tests.planting import Planting, plant

_PAGE = 4096


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    plant(Planting(stages=2, microbatches=8, iterations=4, kernels=6), folder)
    (path,) = folder.glob("*.sqlite")
    return path


def test_no_kernel_of_a_damaged_export_is_lost_without_a_word(export: Path, tmp_path: Path) -> None:
    whole = export.read_bytes()
    kernels = bubbleviz.analyze(export).profiles[0].kernels
    refused = set()
    path = tmp_path / "damaged.sqlite"
    for page in range(1, len(whole) // _PAGE):
        # Row numbers stand at the end of a page, before each row.
        damaged = bytearray(whole)
        random = np.random.default_rng(page)
        at = page * _PAGE + _PAGE // 2
        damaged[at : at + _PAGE // 2] = random.bytes(_PAGE // 2)
        path.write_bytes(damaged)
        try:
            report = bubbleviz.analyze(path)
        except ProfileError as error:
            refused.add("of its kernels can be read" in str(error) or "kernel_count" in str(error))
        except BubblevizError:
            pass
        else:
            assert report.profiles[0].kernels == kernels
    assert True in refused
