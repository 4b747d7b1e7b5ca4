"""Data-parallel ranks whose gradient synchronization was not recorded."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.report.sentences import write_all_advice
from bubbleviz.report.summary import AdviceEntry
from tests.support.operation_tables import write_csv

Row = dict[str, int | str]
RANKS, ITERATIONS = 4, 10


@dataclass(frozen=True)
class Training:
    """Parameters of a data-parallel job; times are in ms.

    Attributes:
        late: Additional time of each rank's data loader, keyed by rank.
        slow: Factor of the compute times of each rank, keyed by rank.
        microbatches: Number of microbatches per iteration.
        synchronizes: Whether no rank ends an iteration before all have reduced their gradients.
        noise: Relative standard deviation of every time.
    """

    late: tuple[int, float] = (0, 0.0)
    slow: tuple[int, float] = (0, 1.0)
    microbatches: int = 1
    synchronizes: bool = True
    noise: float = 0.03

    def simulate(self) -> tuple[list[Row], float]:
        """Return the rows of a table without collectives, and the mean length of an iteration."""
        drawn = random.Random(0)
        rows: list[Row] = []
        free_ms = [1000.0] * RANKS
        lengths_ms = []
        for iteration in range(ITERATIONS):
            loaded_ms = [
                free + 0.3 * drawn.gauss(1, self.noise) + (rank == self.late[0]) * self.late[1]
                for rank, free in enumerate(free_ms)
            ]
            spans = [
                self._compute(drawn, start_ms, rank) for rank, start_ms in enumerate(loaded_ms)
            ]
            all_end_ms = max(span[-1][2] for span in spans)
            for rank, span in enumerate(spans):
                phase, start_ms, end_ms = span[-1]
                synchronized_ms = all_end_ms + abs(drawn.gauss(0, 0.05))
                span[-1] = phase, start_ms, synchronized_ms if self.synchronizes else end_ms
                updated_ms = span[-1][2] + 2 * drawn.gauss(1, self.noise)
                span.append(("Optimizer", span[-1][2], updated_ms))
                for number, (phase, start_ms, end_ms) in enumerate(span):
                    row: Row = {"rank": rank, "phase": phase, "iteration": iteration}
                    row |= {"start_ns": round(1e6 * start_ms), "end_ns": round(1e6 * end_ms)}
                    row["microbatch"] = "" if phase == "Optimizer" else number // 2
                    rows.append(row)
                free_ms[rank] = updated_ms
            lengths_ms.append(max(free_ms) - min(loaded_ms))
        return rows, sum(lengths_ms) / len(lengths_ms)

    def _compute(
        self, drawn: random.Random, start_ms: float, rank: int
    ) -> list[tuple[str, float, float]]:
        """Return the phase, start and end of each forward and backward of a rank."""
        factor = self.slow[1] if rank == self.slow[0] else 1.0
        span = []
        for _ in range(self.microbatches):
            for phase, length_ms in (("F", 10.0), ("BW", 20.0)):
                end_ms = start_ms + length_ms * factor * drawn.gauss(1, self.noise)
                span.append((phase, start_ms, end_ms))
                start_ms = end_ms
        return span

    def advise(self, folder: Path) -> tuple[AdviceEntry, ...]:
        rows, _ = self.simulate()
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        path = write_csv(folder / "operations.csv", columns)
        return write_all_advice(bubbleviz.analyze(path))


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("late_ms", [12.0, 40.0])
def test_a_late_data_loader_is_named_although_the_others_wait_in_their_backward(
    late_ms: float, microbatches: int, tmp_path: Path
) -> None:
    training = Training(late=(1, late_ms), microbatches=microbatches)
    first = training.advise(tmp_path)[0]
    saved = 1 - Training(microbatches=microbatches).simulate()[1] / training.simulate()[1]

    assert (first.kind, first.ranks) == ("late-start", (1,))
    assert first.saving_ratio == pytest.approx(saved, abs=0.02)


def test_a_slow_rank_is_named_with_what_the_others_lose(tmp_path: Path) -> None:
    training = Training(slow=(2, 1.4))
    first = training.advise(tmp_path)[0]
    saved = 1 - Training().simulate()[1] / training.simulate()[1]

    assert (first.kind, first.ranks) == ("rank", (2,))
    assert first.saving_ratio == pytest.approx(saved, abs=0.02)


@pytest.mark.parametrize("microbatches", [1, 4])
def test_ranks_that_only_synchronize_need_no_advice(microbatches: int, tmp_path: Path) -> None:
    advice = Training(microbatches=microbatches).advise(tmp_path)

    assert not [entry for entry in advice if entry.saving_ratio is None]
    assert not [entry for entry in advice if (entry.saving_ratio or 0) > 0.01]


def test_independent_ranks_do_not_wait_for_a_late_one(tmp_path: Path) -> None:
    advice = Training(late=(1, 40.0), synchronizes=False).advise(tmp_path)

    assert not [entry for entry in advice if entry.kind == "late-start"]
