"""Profile tables: host clocks, and how many kernels are attributed to operations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from bubbleviz.model.operations import ProfileSummary
from bubbleviz.model.texts import to_one_line
from bubbleviz.render import document as doc
from bubbleviz.report.rank_means import is_many_ranks
from bubbleviz.report.report import Report


def list_clocks(report: Report) -> Iterator[doc.Block]:
    """Yield a table of clock offsets with one row per clock, if there are several clocks.

    Each row is named after the host of the first profile that uses the clock. If there are very
    many ranks, clocks are sorted by uncertainty, most uncertain first.
    """
    first: dict[tuple[str, float, int | None], ProfileSummary] = {}
    for number, profile in enumerate(report.profiles):
        first.setdefault(report.clock(number), profile)
    if len(first) < 2:
        return
    profiles = list(first.values())
    if is_many_ranks(len(report.ranks)):
        profiles.sort(key=_get_clock_uncertainty_us, reverse=True)
    rows = [_make_clock_row(profile) for profile in profiles]
    title = "Clocks: offset of each host from the first host, and its uncertainty"
    yield doc.Table(title, doc.truncate_rows(rows, "host"), left=("host",))


def _get_clock_uncertainty_us(profile: ProfileSummary) -> float:
    """Return the uncertainty of a profile's clock in microseconds, or infinity if unknown."""
    uncertainty_ns = profile.clock_uncertainty_ns
    return math.inf if uncertainty_ns is None else uncertainty_ns / 1e3


def _make_clock_row(profile: ProfileSummary) -> dict[str, str]:
    """Return the table cells for a profile's clock: host, offset, uncertainty and drift.

    Cells are keyed by header. Unknown values, and a drift of 0, are dashes.
    """
    uncertainty_us, drift_ppm = _get_clock_uncertainty_us(profile), profile.clock_drift_ppm
    return {
        "host": _truncate(profile.host),
        "offset ms": doc.format_ms(profile.clock_offset_ns),
        "± us": "-" if uncertainty_us == math.inf else f"{uncertainty_us:,.1f}",
        "drift ppm": f"{drift_ppm:.3f}" if drift_ppm else "-",
    }


def _truncate(text: str) -> str:
    return doc.truncate_middle(to_one_line(text, 200), 28)


def list_coverage(report: Report) -> Iterator[doc.Block]:
    """Yield a table with one row per profile: how many kernels are attributed to operations.

    A list of the five unattributed kernels that took the most GPU time follows. If there are very
    many ranks, the profiles with the smallest attributed share of GPU time come first.
    """
    profiles = list(report.profiles)
    if is_many_ranks(len(report.ranks)):
        # Not all profiles are listed, so put those with the smallest attributed share first.
        profiles.sort(key=lambda p: p.attributed_gpu_ns / p.gpu_ns if p.gpu_ns else 0.0)
    rows = [_make_coverage_row(profile) for profile in profiles]
    yield doc.Table(
        "Coverage: kernels, and compute time attributed to operations",
        doc.truncate_rows(rows, "profile"),
        left=("profile",),
        drop_order=("cross-thread", "copies ms", "comm. ms", "attributed %", "linked %", "kernels"),
    )
    largest = sorted(report.unattributed_kernels, key=lambda k: (-k.gpu_ns, k.rank, k.name))[:5]
    lines = []
    for kernel in largest:
        name, rank = to_one_line(kernel.name, 60), to_one_line(report.ranks[kernel.rank].label, 40)
        lines.append(
            f"unattributed: {doc.format_ms(kernel.gpu_ns)} ms in {kernel.count:,} x {name} on "
            f"{rank}, {to_one_line(kernel.where, 80)}"
        )
    if lines:
        yield doc.make_bullets(lines)


def _make_coverage_row(profile: ProfileSummary) -> dict[str, str]:
    """Return the table cells for a profile: kernel counts, shares and times, keyed by header.

    Shares are in percent, and times in ms. A share is a dash if its total is 0.
    """
    return {
        "profile": _truncate(Path(profile.path).name),
        "kernels": f"{profile.kernels:,}",
        "linked %": _format_share(profile.linked_kernels, profile.kernels),
        "attributed %": _format_share(profile.attributed_kernels, profile.kernels),
        "cross-thread": f"{profile.cross_thread_kernels:,}",
        "attributed time %": _format_share(profile.attributed_gpu_ns, profile.gpu_ns),
        "comm. ms": doc.format_ms(profile.comm_ns),
        "copies ms": doc.format_ms(profile.copy_ns),
    }


def _format_share(part: int, total: int) -> str:
    return f"{100 * part / total:.2f}" if total else "-"
