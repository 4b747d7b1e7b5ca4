"""Devices side by side: shares of each one's span, as a table and as bars."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import bubbleviz
from bubbleviz.analyses.idle.picture import draw_idle
from bubbleviz.analyses.idle.report import BUSY, REST, IdleReport
from bubbleviz.analyses.idle.text import sections
from bubbleviz.render.text.terminal import plain_text
from tests.support.idle_runs import US, c, k, r
from tests.support.nsys_exports import K, profile

TITLE = "Devices side by side"


def device(tmp_path: Path, name: str, idle_us: int, activity: str = "DataLoader") -> Path:
    """Return a profile of 1 ms: compute, then idle inside a range of the host, then compute."""
    return profile(
        tmp_path,
        [k(0, 1000 - idle_us - 10, 1), k(990, 1000, 2)],
        [c(0, 1, 1), c(990, 991, 2)],
        [r(500 - idle_us // 2, 990, activity)],
        name=f"{name}.sqlite",
        hostname=name,
    )


def texts(report: IdleReport, top: int = 12) -> str:
    return plain_text(sections(report, top))


def test_one_device_has_nothing_beside_it(tmp_path: Path) -> None:
    report = bubbleviz.idle(device(tmp_path, "a", 200))

    assert TITLE not in texts(report)
    assert TITLE not in draw_idle(report)
    assert len(report.device_shares(3)[0]) == 1


def test_shares_add_up_and_the_idlest_goes_first(tmp_path: Path) -> None:
    files = [device(tmp_path, name, us) for name, us in (("a", 200), ("b", 500), ("c", 200))]
    report = bubbleviz.idle([str(file) for file in files])

    _, names, shares = report.device_shares(5)
    assert names[: len(BUSY)] == BUSY
    assert np.allclose(shares.sum(axis=1), 1)
    assert shares[:, len(BUSY) :].sum(axis=1).tolist() == [0.2, 0.5, 0.2]
    lines = texts(report).partition(TITLE)[2].splitlines()
    # Devices that are equally idle keep their order.
    assert [line[0] for line in lines[3:6]] == ["b", "a", "c"]
    assert lines[6].startswith("idle: 20.00 % (c ")
    assert "median 20.00 % of 3 devices" in lines[6]


def test_activities_that_are_not_named_are_summed(tmp_path: Path) -> None:
    files = [
        device(tmp_path, "a", 300),
        device(tmp_path, "b", 200, "tokeniser"),
        device(tmp_path, "c", 100, "other range"),
    ]
    report = bubbleviz.idle([str(file) for file in files])

    _, names, shares = report.device_shares(1)
    assert names == (*BUSY, "data loading", REST)
    assert np.allclose(shares[:, -2], [0.3, 0, 0])
    assert np.allclose(shares[:, -1], [0, 0.2, 0.1])


def test_a_device_with_a_single_kernel_is_left_out(tmp_path: Path) -> None:
    single = profile(tmp_path, [K(0, 5 * US, 1)], name="single.sqlite")
    report = bubbleviz.idle([str(single), *(str(device(tmp_path, n, 100)) for n in "ab")])

    assert report.device_shares(3)[0] == (1, 2)


def test_every_device_has_a_bar_with_its_idle_share(tmp_path: Path) -> None:
    files = [device(tmp_path, name, us) for name, us in (("a", 200), ("b", 500))]
    drawn = draw_idle(bubbleviz.idle([str(file) for file in files]))

    bars = drawn.partition(TITLE)[2]
    assert all(label in bars for label in (">a ", ">b ", "20.0\u00a0%", "50.0\u00a0%"))
