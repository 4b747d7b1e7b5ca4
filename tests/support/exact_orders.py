"""Solves small ordering problems exactly with CP-SAT, to check the heuristic search.

Every operation is an interval, and the intervals of a device do not overlap. Activation memory is a
cumulative resource: an F allocates it, and the end of its B or W frees it. Results are reproducible
because there is one worker, a fixed seed, and a limit on deterministic time.
"""

from __future__ import annotations

from typing import NamedTuple

from ortools.sat.python import cp_model

from bubbleviz.schedules.search.problem import Codes, Problem


class ExactSolution(NamedTuple):
    """Result of the solver within its time limit.

    Attributes:
        lower_bound: Proven lower bound on the makespan of any order, in ticks.
        makespan: The makespan of ``codes``, in ticks. It equals ``lower_bound`` if it is optimal.
        codes: Operation codes of each device in execution order, or empty if no solution was found.
    """

    lower_bound: int
    makespan: int
    codes: Codes

    @property
    def is_optimal(self) -> bool:
        """Whether the orders are proven to be the shortest."""
        return bool(self.codes) and self.makespan == self.lower_bound


def solve_exactly(problem: Problem, *, weights: bool, deterministic_time: float) -> ExactSolution:
    """Return the shortest orders of a small problem, and a proven lower bound.

    Args:
        problem: Durations and memory limits. The makespan is minimized.
        weights: Whether backwards are split into B and W. If False, B is the whole backward.
        deterministic_time: CP-SAT's limit on deterministic time. One unit is roughly a second.
    """
    model = _Model(problem, phases=3 if weights else 2)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    solver.parameters.max_deterministic_time = deterministic_time
    status = solver.solve(model.model)
    bound = int(solver.best_objective_bound)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return ExactSolution(bound, 0, [])
    return ExactSolution(bound, int(solver.objective_value), model.read_codes(solver))


class _Model:
    """CP-SAT variables for the start times of all operations, and the constraints between them."""

    def __init__(self, problem: Problem, phases: int) -> None:
        self.problem = problem
        self.phases = phases
        self.model = cp_model.CpModel()
        ticks_of_microbatch = sum(problem.lengths) + sum(problem.down) + sum(problem.up)
        self.horizon = ticks_of_microbatch * problem.microbatches
        self.starts = {
            (code, microbatch): self.model.new_int_var(0, self.horizon, f"{code}.{microbatch}")
            for code in range(len(problem.lengths))
            if code % 3 < phases
            for microbatch in range(problem.microbatches)
        }
        self._add_precedence()
        for device in range(problem.devices):
            self._add_device(device)

    def _end(self, code: int, microbatch: int) -> cp_model.LinearExprT:
        return self.starts[code, microbatch] + self.problem.lengths[code]

    def _add_precedence(self) -> None:
        """Make every operation start after its inputs, and minimize the makespan."""
        problem = self.problem
        makespan = self.model.new_int_var(0, self.horizon, "makespan")
        last = len(problem.placement) - 1
        for (code, microbatch), start in self.starts.items():
            stage, phase = divmod(code, 3)
            self.model.add(makespan >= self._end(code, microbatch))
            if microbatch:
                # All microbatches take the same time, so running them in order is never worse.
                self.model.add(start >= self._end(code, microbatch - 1))
            if phase:
                self.model.add(start >= self._end(code - 1, microbatch))
            if phase == 0 and stage:
                arrival = self._end(code - 3, microbatch) + problem.down[stage - 1]
                self.model.add(start >= arrival)
            if phase == 1 and stage < last:
                arrival = self._end(code + 3, microbatch) + problem.up[stage + 1]
                self.model.add(start >= arrival)
        self.model.minimize(makespan)

    def _add_device(self, device: int) -> None:
        """Make a device run one operation at a time without exceeding its memory limit.

        An F allocates the activation of its stage, and its B frees it. If backwards are split, B
        frees only a part, and W frees the rest.
        """
        problem = self.problem
        intervals: list[cp_model.IntervalVar] = []
        lifetimes: list[cp_model.IntervalVar] = []
        sizes: list[int] = []
        for stage in problem.stages[device]:
            weight_memory = problem.weight_activation[stage] if self.phases == 3 else 0
            size_until = {1: problem.activation[stage] - weight_memory, 2: weight_memory}
            for microbatch in range(problem.microbatches):
                for code in range(3 * stage, 3 * stage + self.phases):
                    length = problem.lengths[code]
                    if length:
                        start = self.starts[code, microbatch]
                        interval = self.model.new_fixed_size_interval_var(start, length, "")
                        intervals.append(interval)
                for phase, size in size_until.items():
                    if size:
                        lifetimes.append(self._make_lifetime(stage, phase, microbatch))
                        sizes.append(size)
        self.model.add_no_overlap(intervals)
        self.model.add_cumulative(lifetimes, sizes, problem.limit[device])

    def _make_lifetime(self, stage: int, phase: int, microbatch: int) -> cp_model.IntervalVar:
        """Return the time from the start of an F to the end of its B or W."""
        length = self.model.new_int_var(0, self.horizon, "")
        end = self.model.new_int_var(0, self.horizon, "")
        self.model.add(end == self._end(3 * stage + phase, microbatch))
        return self.model.new_interval_var(self.starts[3 * stage, microbatch], length, end, "")

    def read_codes(self, solver: cp_model.CpSolver) -> Codes:
        """Return the operation codes of each device, sorted by their start in the solution.

        If operations start together, W precedes B, and B precedes F.
        """

        def place(key: tuple[int, int]) -> tuple[int, int, tuple[int, int]]:
            # If two operations start together, one of them takes no time and frees a resource that
            # the other one needs. Therefore, the operation of zero length comes first.
            return solver.value(self.starts[key]), -(key[0] % 3), key

        rows: Codes = []
        for stages in self.problem.stages:
            of_device = [key for key in self.starts if key[0] // 3 in stages]
            rows.append([code for code, _ in sorted(of_device, key=place)])
        return rows
