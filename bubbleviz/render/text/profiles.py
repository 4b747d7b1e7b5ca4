"""Profiles: the clock of each host, and the coverage of each profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bubbleviz.model.texts import one_line
from bubbleviz.render.text.cells import MOST_ROWS, milliseconds, titled
from bubbleviz.render.text.display import shortened
from bubbleviz.render.text.tables import BulletList, Table
from bubbleviz.report.rank_means import many_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from bubbleviz.model.operations import ProfileSummary
    from bubbleviz.report.report import Report


def clocks(report: Report) -> Iterator[RenderableType]:
    """Yield the offset of each host's clock, where there are several."""
    first: dict[tuple[str, float, int | None], ProfileSummary] = {}
    for number, profile in enumerate(report.profiles):
        first.setdefault(report.clock(number), profile)
    if len(first) < 2:
        return
    table = Table("host", "offset ms", "± us", "drift ppm", left=("host",))
    shown = list(first.values())
    if many_ranks(len(report.ranks)):
        shown.sort(key=lambda own: -_unbounded(own.clock_uncertainty_ns))
    for profile in shown[:MOST_ROWS]:
        uncertainty_ns = profile.clock_uncertainty_ns
        table.add_row(
            shortened(one_line(profile.host, 200), 28),
            milliseconds(profile.clock_offset_ns),
            "-" if uncertainty_ns is None else f"{uncertainty_ns / 1e3:,.1f}",
            f"{profile.clock_drift_ppm:.3f}" if profile.clock_drift_ppm else "-",
        )
    if len(first) > MOST_ROWS:
        table.add_row(f"… and {len(first) - MOST_ROWS} more")
    yield from titled("Clocks: offset of each host to the first, and its uncertainty", table)


def _unbounded(uncertainty_ns: int | None) -> float:
    return float("inf") if uncertainty_ns is None else float(uncertainty_ns)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f}" if whole else "-"


def coverage(report: Report) -> Iterator[RenderableType]:
    """Yield how many kernels of each profile are attributed, and the largest that are not."""
    table = Table(
        "profile",
        "kernels",
        "linked %",
        "attributed %",
        "cross-thread",
        "attributed time %",
        "comm. ms",
        "copies ms",
        left=("profile",),
        giving_way=("cross-thread", "copies ms", "comm. ms", "attributed %", "linked %", "kernels"),
    )
    profiles = list(report.profiles)
    if many_ranks(len(report.ranks)):
        # Of very many, those of which least is explained.
        profiles.sort(key=lambda own: own.attributed_gpu_ns / own.gpu_ns if own.gpu_ns else 0.0)
    for profile in profiles[:MOST_ROWS]:
        table.add_row(
            shortened(one_line(Path(profile.path).name, 200), 28),
            f"{profile.kernels:,}",
            _share(profile.linked_kernels, profile.kernels),
            _share(profile.attributed_kernels, profile.kernels),
            f"{profile.cross_thread_kernels:,}",
            _share(profile.attributed_gpu_ns, profile.gpu_ns),
            milliseconds(profile.comm_ns),
            milliseconds(profile.copy_ns),
        )
    if len(report.profiles) > MOST_ROWS:
        table.add_row(f"… and {len(report.profiles) - MOST_ROWS} more")
    yield from titled("Coverage: kernels, and compute time attributed to operations", table)
    largest = sorted(report.unattributed_kernels, key=lambda k: (-k.gpu_ns, k.rank, k.name))[:5]
    if largest:
        yield BulletList(
            f"unattributed: {milliseconds(k.gpu_ns)} ms in {k.count:,} x {one_line(k.name, 60)} "
            f"on {one_line(report.ranks[k.rank].label, 40)}, {one_line(k.where, 80)}"
            for k in largest
        )
