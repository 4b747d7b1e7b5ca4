"""Bubble rates from the zero-bubble paper, and the stage times from which they were computed.

The source is Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241. The rates are from
Table 5, and the times are from Table 9. They are for the models with 1.5 and 6.2 billion parameters
on 8 stages.
"""

from __future__ import annotations

from dataclasses import dataclass

STAGES = 8


@dataclass(frozen=True)
class PublishedRun:
    """A model and a number of microbatches that the paper measured.

    Attributes:
        model: Number of parameters, in the paper's notation.
        microbatches: Number of microbatches per iteration.
        times_us: T_F, T_B, T_W and T_comm of a stage and microbatch, in microseconds.
        chunks: Model chunks per rank under interleaved 1F1B.
        rates: Bubble rate of each schedule, rounded to four decimals.
    """

    model: str
    microbatches: int
    times_us: tuple[int, int, int, int]
    chunks: int
    rates: dict[str, float]


_SCHEDULES = ("1F1B", "1F1B-I", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p")


def _make_run(
    model: str,
    microbatches: int,
    times_us: tuple[int, int, int, int],
    chunks: int,
    rates: tuple[float, ...],
) -> PublishedRun:
    by_schedule = dict(zip(_SCHEDULES, rates, strict=True))
    return PublishedRun(model, microbatches, times_us, chunks, by_schedule)


PUBLISHED_RUNS = (
    _make_run(
        "1.5B", 24, (18522, 18086, 9337, 601), 3, (0.2431, 0.1055, 0.1585, 0.1083, 0.1585, 0.0433)
    ),
    _make_run(
        "1.5B", 32, (18513, 18086, 9331, 626), 3, (0.1985, 0.0818, 0.1242, 0.0837, 0.1242, 0.0039)
    ),
    _make_run(
        "1.5B", 64, (18546, 18097, 9321, 762), 3, (0.1240, 0.0443, 0.0674, 0.0444, 0.0674, 0.0026)
    ),
    _make_run(
        "6.2B", 24, (29718, 29444, 19927, 527), 4, (0.2347, 0.0808, 0.1323, 0.0698, 0.1323, 0.0029)
    ),
    _make_run(
        "6.2B", 32, (29802, 29428, 19530, 577), 4, (0.1898, 0.0628, 0.1045, 0.0559, 0.1045, 0.0022)
    ),
    _make_run(
        "6.2B", 64, (29935, 29621, 19388, 535), 4, (0.1091, 0.0320, 0.0554, 0.0294, 0.0554, 0.0010)
    ),
)
