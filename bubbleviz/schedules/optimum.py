"""The optimum of small problems, by OR-tools' CP-SAT: orders that are proven to be the shortest.

Every operation is an interval; those of a device do not overlap; activations are a cumulative
resource from F to the end of B or W. One worker, a fixed seed and a limit of deterministic time
make the same call give the same orders.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from bubbleviz.schedules.search.orders import Improvement, Orders, improve
from bubbleviz.schedules.search.problem import Codes, Problem

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

#: Operations, F, B and W counted, up to which problems are solved.
MOST_OPERATIONS = 120
#: CP-SAT's deterministic time: about as many seconds.
_TIME = 10.0


def is_solvable() -> bool:
    """Return whether OR-tools is installed."""
    from importlib.util import find_spec

    return find_spec("ortools") is not None


def optimum(
    problem: Problem, codes: Codes, *, weights: bool = True, time: float = _TIME
) -> Orders | None:
    """Return the optimum of a small problem; None for a large one, and without OR-tools.

    That is a makespan, in ticks, that no order is shorter than, and the shortest orders, no longer
    than those it began with.

    Args:
        problem: times and memory.
        codes: orders to begin with, which can be run.
        weights: whether orders have W; else B is the whole backward.
        time: how long to solve, about seconds.
    """
    if sum(map(len, codes)) > MOST_OPERATIONS or not is_solvable():
        return None
    from ortools.sat.python import cp_model

    model = _Model(problem, 3 if weights else 2)
    model.hint(codes)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    solver.parameters.max_deterministic_time = time
    status = solver.solve(model.model)
    bound = int(solver.best_objective_bound)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return bound, codes
    # Hints are no promise: what it found in its time may be longer.
    found = improve(problem, model.codes(solver), 0), improve(problem, codes, 0)
    return bound, min((each for each in found if each), key=lambda each: each[0])[1]


class _Model:
    """The model: starts of all operations, and what must hold between them."""

    def __init__(self, problem: Problem, phases: int) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.phases = problem, phases
        self.model = cp_model.CpModel()
        self.longest = sum(problem.lengths) * problem.microbatches
        self.longest += (sum(problem.down) + sum(problem.up)) * problem.microbatches
        self.starts = {
            (code, mb): self.model.new_int_var(0, self.longest, f"{code}.{mb}")
            for code in range(len(problem.lengths))
            if code % 3 < phases
            for mb in range(problem.microbatches)
        }
        self.makespan = self.model.new_int_var(0, self.longest, "makespan")
        self._precede()
        for device in range(problem.devices):
            self._share(device)
        self.model.minimize(self.makespan)

    def end(self, code: int, mb: int) -> cp_model.LinearExprT:
        """Return when an operation ends."""
        return self.starts[code, mb] + self.problem.lengths[code]

    def _precede(self) -> None:
        last = len(self.problem.placement) - 1
        for (code, mb), start in self.starts.items():
            stage, phase = divmod(code, 3)
            self.model.add(self.makespan >= self.end(code, mb))
            if mb:
                # Microbatches are alike: each phase takes them in order.
                self.model.add(start >= self.end(code, mb - 1))
            if phase:
                self.model.add(start >= self.end(code - 1, mb))
            if phase == 0 and stage:
                way = self.problem.down[stage - 1]
                self.model.add(start >= self.end(code - 3, mb) + way)
            if phase == 1 and stage < last:
                self.model.add(start >= self.end(code + 3, mb) + self.problem.up[stage + 1])

    def _share(self, device: int) -> None:
        """Let a device run one operation at a time, and hold what it has memory for."""
        intervals, held, sizes = [], [], []
        for stage in self.problem.stages[device]:
            kept = self.problem.kept[stage] if self.phases == 3 else 0
            for mb in range(self.problem.microbatches):
                for code in range(3 * stage, 3 * stage + self.phases):
                    length = self.problem.lengths[code]
                    if length:
                        start = self.starts[code, mb]
                        intervals.append(self.model.new_fixed_size_interval_var(start, length, ""))
                ends = {1: self.problem.held[stage] - kept, 2: kept}
                for phase, size in ends.items():
                    if size:
                        held.append(self._life(stage, phase, mb))
                        sizes.append(size)
        self.model.add_no_overlap(intervals)
        if sum(sizes) > self.problem.limit[device]:
            self.model.add_cumulative(held, sizes, self.problem.limit[device])

    def _life(self, stage: int, phase: int, mb: int) -> cp_model.IntervalVar:
        """Return the time from an F to the end of its B or W."""
        length = self.model.new_int_var(0, self.longest, "")
        end = self.model.new_int_var(0, self.longest, "")
        self.model.add(end == self.end(3 * stage + phase, mb))
        return self.model.new_interval_var(self.starts[3 * stage, mb], length, end, "")

    def hint(self, codes: Codes) -> None:
        """Begin with orders."""
        ran = Improvement(self.problem, codes).ran()
        assert ran is not None
        ends, taken = iter(ran[0]), Counter[int]()
        for code in (code for row in codes for code in row):
            start = next(ends) - self.problem.lengths[code]
            self.model.add_hint(self.starts[code, taken[code]], start)
            taken[code] += 1

    def codes(self, solver: cp_model.CpSolver) -> Codes:
        """Return the orders of the solution."""
        rows: Codes = []
        for stages in self.problem.stages:
            of_device = [key for key in self.starts if key[0] // 3 in stages]
            # Of operations that start together one takes no time; it frees what others need.
            of_device.sort(key=lambda key: (solver.value(self.starts[key]), -(key[0] % 3), key))
            rows.append([code for code, _ in of_device])
        return rows
