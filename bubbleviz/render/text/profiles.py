"""Tables of profiles: the clock of each host, and the coverage of each profile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bubbleviz.model.operations import ProfileSummary
from bubbleviz.model.texts import one_line
from bubbleviz.render import document as doc
from bubbleviz.report.rank_means import many_ranks
from bubbleviz.report.report import Report


def clocks(report: Report) -> Iterator[doc.Block]:
    """Yield the offset of each host's clock, where there are several."""
    first: dict[tuple[str, float, int | None], ProfileSummary] = {}
    for number, profile in enumerate(report.profiles):
        first.setdefault(report.clock(number), profile)
    if len(first) < 2:
        return
    shown = [
        (float("inf") if p.clock_uncertainty_ns is None else p.clock_uncertainty_ns / 1e3, p)
        for p in first.values()
    ]
    if many_ranks(len(report.ranks)):
        shown.sort(key=lambda pair: -pair[0])
    rows = [
        {
            "host": doc.shortened(one_line(profile.host, 200), 28),
            "offset ms": doc.milliseconds(profile.clock_offset_ns),
            "± us": "-" if profile.clock_uncertainty_ns is None else f"{uncertainty:,.1f}",
            "drift ppm": f"{profile.clock_drift_ppm:.3f}" if profile.clock_drift_ppm else "-",
        }
        for uncertainty, profile in shown
    ]
    title = "Clocks: offset of each host to the first, and its uncertainty"
    yield doc.Table(title, doc.first_rows(rows, "host"), left=("host",))


def coverage(report: Report) -> Iterator[doc.Block]:
    """Yield how many kernels of each profile are attributed, and the largest that are not."""

    def share(part: int, whole: int) -> str:
        return f"{100 * part / whole:.2f}" if whole else "-"

    profiles = list(report.profiles)
    if many_ranks(len(report.ranks)):
        # Of very many, those of which least is explained.
        profiles.sort(key=lambda p: p.attributed_gpu_ns / p.gpu_ns if p.gpu_ns else 0.0)
    rows = [
        {
            "profile": doc.shortened(one_line(Path(profile.path).name, 200), 28),
            "kernels": f"{profile.kernels:,}",
            "linked %": share(profile.linked_kernels, profile.kernels),
            "attributed %": share(profile.attributed_kernels, profile.kernels),
            "cross-thread": f"{profile.cross_thread_kernels:,}",
            "attributed time %": share(profile.attributed_gpu_ns, profile.gpu_ns),
            "comm. ms": doc.milliseconds(profile.comm_ns),
            "copies ms": doc.milliseconds(profile.copy_ns),
        }
        for profile in profiles
    ]
    yield doc.Table(
        "Coverage: kernels, and compute time attributed to operations",
        doc.first_rows(rows, "profile"),
        left=("profile",),
        giving_way=("cross-thread", "copies ms", "comm. ms", "attributed %", "linked %", "kernels"),
    )
    largest = sorted(report.unattributed_kernels, key=lambda k: (-k.gpu_ns, k.rank, k.name))[:5]
    if largest:
        yield doc.bullets(
            [
                f"unattributed: {doc.milliseconds(k.gpu_ns)} ms in {k.count:,} x "
                f"{one_line(k.name, 60)} on {one_line(report.ranks[k.rank].label, 40)}, "
                f"{one_line(k.where, 80)}"
                for k in largest
            ]
        )
