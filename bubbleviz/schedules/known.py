"""Pipeline schedules from papers and frameworks, as functions that build plans.

Add a new schedule to ``SCHEDULES``. A closed formula that does not define an order of operations
belongs in ``FORMULAS``. If a schedule has no fixed order, :mod:`bubbleviz.schedules.search`
searches for an order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import format_count, suggest_word
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.plan import (
    Memory,
    Order,
    Plan,
    PlannedOperation,
    PlanSearch,
    Schedule,
    make_looped_placement,
    make_v_placement,
    make_wave_placement,
)
from bubbleviz.schedules.search.makespan_bound import compute_lower_bound
from bubbleviz.schedules.search.orders import find_shortest_orders
from bubbleviz.schedules.search.problem import build_problem, decode_plan, encode_plan
from bubbleviz.schedules.workload import Workload, build_device_workload

_F, _B, _W, _BW = Phase.F, Phase.B, Phase.W, Phase.BW
#: Ratio M_W / M_B of the models in the Zero Bubble paper.
#: The ratio is 32 h / (34 h + 5 a s), where h = 128 a and s = 1024.
_ZERO_BUBBLE_WEIGHT_MEMORY = 32 / 74


def schedules() -> tuple[Schedule, ...]:
    """Return all schedules, in the order of ``SCHEDULES``."""
    return SCHEDULES


def find_schedule(name: str) -> Schedule:
    """Return the schedule with the given name.

    Raises:
        UsageError: No schedule has this name.
    """
    by_name = {schedule.name: schedule for schedule in SCHEDULES}
    if name not in by_name:
        raise make_unknown_schedule_error(name, sorted(by_name))
    return by_name[name]


def make_unknown_schedule_error(name: str, names: Sequence[str]) -> UsageError:
    """Return the error for an unknown schedule name.

    The error message lists all ``names``, and suggests the most similar one, if any.
    """
    hint = suggest_word(name, names)
    return UsageError(
        f"unknown schedule {name[:60]!r}; the known schedules are {', '.join(names)}{hint}"
    )


def list_plans(placement: tuple[int, ...], microbatches: int) -> list[Plan]:
    """Return the plans of all schedules that have a fixed order and the given placement.

    The plans are in the order of ``SCHEDULES``. Schedules that have several replicas, or that do
    not allow this number of microbatches, are left out.

    Args:
        placement: Device index of each virtual stage.
        microbatches: Number of microbatches, m.
    """
    stages = max(placement) + 1
    plans = []
    for rule in SCHEDULES:
        if rule.has_one_order:
            try:
                plan = rule.plan(stages, microbatches, len(placement) // stages)
            except UsageError:
                continue
            if plan.placement == placement and plan.replicas == 1:
                plans.append(plan)
    return plans


def get_searched_placement(rule: Schedule, stages: int, chunks: int) -> tuple[int, ...]:
    """Return the device of each virtual stage in a searched schedule.

    With one chunk per device, virtual stage s is on device s. With two chunks, the placement is a V
    (see :func:`.make_v_placement`).

    Raises:
        UsageError: ``chunks`` differs from ``rule.chunks``.
    """
    _check_chunks(rule.name, chunks, rule.chunks)
    return make_looped_placement(stages, 1) if chunks == 1 else make_v_placement(stages)


def search_plan(
    name: str, workload: Workload, *, makespan: bool = False, watch: Watch = unwatched
) -> Plan:
    """Search for the shortest plan given a workload's times and memory limits.

    :func:`.find_shortest_orders` improves several starting orders by local search. The starting
    orders include the plans that :func:`list_plans` returns for the workload's placement. The
    search ends early if the plan is as short as the lower bound from :func:`.compute_lower_bound`.
    In the plan, B and W are separate, and each phase of a virtual stage runs the microbatches in
    ascending order.

    Args:
        name: Name to give the plan.
        workload: Times, memory limits and placement. For named schedules, the placement comes from
            :func:`get_searched_placement`.
        makespan: Whether to minimize the makespan. If False, the search minimizes the longest
            window of any device (the time from its first start to its last end).
        watch: Callback that receives the completed fraction of the search.

    Raises:
        UsageError: A device's memory limit is too small for one microbatch.
    """
    problem = build_problem(workload, makespan=makespan)
    _, codes = find_shortest_orders(
        problem,
        lambda microbatches: map(encode_plan, list_plans(workload.placement, microbatches)),
        enough=compute_lower_bound(problem),
        watch=watch,
    )
    return decode_plan(name, problem, codes)


def _check_chunks(name: str, chunks: int, required: int, per: str = "device") -> None:
    """Raise a ``UsageError`` if ``chunks`` is not the number that the schedule allows."""
    if chunks != required:
        required_text = "one chunk" if required == 1 else "two chunks"
        raise UsageError(f"{name} needs exactly {required_text} per {per}, not {chunks}")


def _make_order(
    forwards: Sequence[PlannedOperation],
    backwards: Sequence[PlannedOperation],
    weights: Sequence[PlannedOperation],
    ahead: int,
    lag: int,
) -> Order:
    """Interleave the operations of a device so that F runs ahead of B and W runs after B.

    ::

        ahead 3, lag 1      F0 F1 F2 B0 F3 B1 W0 F4 B2 W1 ... B4 W3 W4

    Args:
        forwards: Forwards of the device, in order.
        backwards: Backwards of the device, in order. There is one for each forward.
        weights: W operations of the device, in order, or empty if backwards are fused.
        ahead: Number of forwards before the first backward.
        lag: Number of other Bs between a B and its W. The remaining Ws follow the last B.
    """
    order = list(forwards[:ahead])
    for n, backward in enumerate(backwards):
        order.append(backward)
        order += weights[n - lag : n - lag + 1] if n >= lag else ()
        order += forwards[n + ahead : n + ahead + 1]
    order += weights[max(0, len(weights) - lag) :]
    return tuple(order)


def _make_line_builder(
    name: str,
    ahead: Callable[[int, int], int],
    lag: Callable[[int], int] | None = None,
    hint: str = "",
) -> Callable[[int, int, int], Plan]:
    """Return the ``plan`` function of a schedule with one chunk per device.

    The papers define ZB-H1 and ZB-H2 for m >= 2p. With fewer microbatches, the same rule still
    gives a valid order, but devices may idle longer than in an order that was searched for. The
    searched schedules zb-1p and zb-2p are never worse.

    Args:
        name: Name of the schedule.
        ahead: Function that returns the number of forwards before the first backward. Its arguments
            are p - d and m, where d is the device index.
        lag: Function that returns the number of other backwards between a B and its W, given the
            device index. None if backwards are fused.
        hint: Suffix for the error message if several chunks are requested. The suffix names another
            schedule.
    """

    def plan(stages: int, microbatches: int, chunks: int = 1) -> Plan:
        """Build the plan for these sizes. The order of each device comes from :func:`_make_order`.

        Raises:
            UsageError: ``chunks`` is not 1.
        """
        if chunks != 1 and hint:
            raise UsageError(f"{name} needs exactly one chunk per device, not {chunks}{hint}")
        _check_chunks(name, chunks, 1)
        orders = []
        for device in range(stages):
            forwards, backwards, weights = (
                [PlannedOperation(device, phase, mb) for mb in range(microbatches)]
                for phase in (_F, _B if lag else _BW, _W)
            )
            n_ahead = ahead(stages - device, microbatches)
            if lag:
                order = _make_order(forwards, backwards, weights, n_ahead, lag(device))
            else:
                order = _make_order(forwards, backwards, (), n_ahead, 0)
            orders.append(order)
        placement = make_looped_placement(stages, 1)
        return Plan(name, stages, microbatches, 1, placement, tuple(orders))

    return plan


def build_interleaved_plan(
    name: str, stages: int, microbatches: int, chunks: int, group: int, backward: Phase
) -> Plan:
    """Build the plan of an interleaved schedule, with fused or split backwards.

    The microbatches are divided into groups. A device runs all microbatches in a group through one
    chunk, then through the next chunk, and so on, before it starts the next group. Backwards take
    the chunks in reverse order.

    Before its first backward, device d runs ``(v-1) group + 1 + 2(p-d-1)`` forwards if backwards
    are fused, and ``(v-1) group + 1 + (p-d-1)`` if they are split.

    Args:
        name: Name of the plan.
        stages: Number of devices, p.
        microbatches: Number of microbatches, m, a multiple of ``group``.
        chunks: Number of model chunks per device, v.
        group: Number of microbatches in a group.
        backward: ``Phase.BW`` for fused backwards, or ``Phase.B`` for split backwards. With split
            backwards, device d runs d other Bs between a B and its W.
    """

    def nth_operation(device: int, n: int, phase: Phase) -> PlannedOperation:
        """Return the n-th operation of a phase on a device. Backwards start with the last chunk."""
        group_number, position = divmod(n, group * chunks)
        chunk, microbatch = divmod(position, group)
        if phase is not _F:
            chunk = chunks - 1 - chunk
        return PlannedOperation(chunk * stages + device, phase, group_number * group + microbatch)

    is_split = backward is _B
    orders = []
    for device in range(stages):
        forwards, backwards, weights = (
            [nth_operation(device, n, phase) for n in range(microbatches * chunks)]
            for phase in (_F, backward, _W)
        )
        stages_after = stages - device - 1
        ahead = (chunks - 1) * group + 1 + (1 if is_split else 2) * stages_after
        if is_split:
            orders.append(_make_order(forwards, backwards, weights, ahead, device))
        else:
            orders.append(_make_order(forwards, backwards, (), ahead, 0))
    placement = make_looped_placement(stages, chunks)
    return Plan(name, stages, microbatches, chunks, placement, tuple(orders))


def _build_interleaved(
    name: str, backward: Phase, stages: int, microbatches: int, chunks: int
) -> Plan:
    """Build an interleaved plan with groups of p microbatches; m must be a multiple of p."""
    _check_groups(name, stages, microbatches)
    return build_interleaved_plan(name, stages, microbatches, chunks, stages, backward)


def _build_combined(stages: int, microbatches: int, chunks: int) -> Plan:
    """Build combined 1F1B: interleaved 1F1B with one more forward before the first backward.

    The last forward before the first backward, as well as every later forward, runs together with
    the backward that follows it.

    Raises:
        UsageError: There are fewer than two chunks, or m is not a multiple of p.
    """
    if chunks < 2:
        raise UsageError(
            "combined-1f1b needs at least two chunks per device; for one chunk, use 1f1b"
        )
    plan = _build_interleaved("combined-1f1b", _BW, stages, microbatches, chunks)
    orders, together = [], set[PlannedOperation]()
    for order in plan.orders:
        forwards, backwards = ([op for op in order if op.phase is phase] for phase in (_F, _BW))
        first_backward = next((n for n, op in enumerate(order) if op.phase is _BW), 0)
        ahead = first_backward + 1
        orders.append(_make_order(forwards, backwards, (), ahead, 0))
        together.update(forwards[ahead - 1 :])
    return replace(plan, orders=tuple(orders), together=frozenset(together))


def _check_groups(name: str, stages: int, microbatches: int) -> None:
    """Raise a ``UsageError`` if m is not a multiple of p."""
    if microbatches % stages:
        raise UsageError(
            f"{name} needs a number of microbatches that is a multiple of the {stages} stages, "
            f"not {microbatches}"
        )


def _build_looped_bfs(stages: int, microbatches: int, chunks: int) -> Plan:
    """Build looped BFS: all forwards, chunk by chunk, then all backwards in reverse order."""
    orders = []
    for device in range(stages):
        pairs = [(c * stages + device, mb) for c in range(chunks) for mb in range(microbatches)]
        forwards = [PlannedOperation(stage, _F, mb) for stage, mb in pairs]
        backwards = [PlannedOperation(stage, _BW, mb) for stage, mb in reversed(pairs)]
        orders.append((*forwards, *backwards))
    placement = make_looped_placement(stages, chunks)
    return Plan("looped-bfs", stages, microbatches, chunks, placement, tuple(orders))


def _build_zb_v(stages: int, microbatches: int, chunks: int = 2) -> Plan:
    """Build ZB-V, which has 2p virtual stages in a V.

    Virtual stage s is on device s if s < p (down), and on device 2p-1-s otherwise (up). With m <
    2p-1 microbatches, the order for 2p-1 microbatches is used, leaving out the operations of
    microbatches m and higher.

    Raises:
        UsageError: ``chunks`` is not 2.
    """
    _check_chunks("zb-v", chunks, 2)
    n_built = max(microbatches, 2 * stages - 1)
    orders = []
    for device in range(stages):
        order = _order_zb_v(stages, n_built, device)
        orders.append(tuple(op for op in order if op.microbatch < microbatches))
    return Plan("zb-v", stages, microbatches, 2, make_v_placement(stages), tuple(orders))


def _order_zb_v(stages: int, microbatches: int, device: int) -> list[PlannedOperation]:
    """Return the order of a single device in ZB-V with at least 2p-1 microbatches.

    The order consists of patterns, each repeated as often as the table says. Each step in a
    pattern, such as F_D, runs the next microbatch of the step's phase on the step's virtual stage.
    A step is skipped once all microbatches of its phase and virtual stage have run. Device d has
    the virtual stages D = d (down) and U = 2p-1-d (up)::

        repeats      pattern                    repeats      pattern
        2(p-d)-1     F_D                        d            B_D B_U
        d            F_U F_D                    p-d          B_D W_D
        p-d          F_U B_U W_U                m            W_U
        m-p          F_D B_D W_D F_U B_U W_U    m            W_D
    """
    up = 2 * stages - 1 - device
    down_f, down_b, down_w = (device, _F), (device, _B), (device, _W)
    up_f, up_b, up_w = (up, _F), (up, _B), (up, _W)
    order: list[PlannedOperation] = []
    n_run: Counter[tuple[int, Phase]] = Counter()
    for repeats, steps in (
        (2 * (stages - device) - 1, (down_f,)),
        (device, (up_f, down_f)),
        (stages - device, (up_f, up_b, up_w)),
        (microbatches - stages, (down_f, down_b, down_w, up_f, up_b, up_w)),
        (device, (down_b, up_b)),
        (stages - device, (down_b, down_w)),
        (microbatches, (up_w,)),
        (microbatches, (down_w,)),
    ):
        for step in steps * repeats:
            if n_run[step] < microbatches:
                order.append(PlannedOperation(*step, n_run[step]))
                n_run[step] += 1
    return order


def _build_hanayo(stages: int, microbatches: int, chunks: int) -> Plan:
    """Build Hanayo: virtual stages in w waves, each of which passes all devices down and up again.

    Raises:
        UsageError: ``chunks`` is not two per wave.
    """
    if chunks < 2 or chunks % 2:
        raise UsageError(
            f"hanayo needs two chunks per device for each wave, such as 2 or 4, not {chunks}"
        )
    waves = chunks // 2
    orders = tuple(_order_hanayo(stages, microbatches, waves, device) for device in range(stages))
    placement = make_wave_placement(stages, waves)
    return Plan("hanayo", stages, microbatches, chunks, placement, orders)


def _order_hanayo(stages: int, microbatches: int, waves: int, device: int) -> Order:
    """Return the order of a single device in Hanayo.

    The device alternates between operations that pass the devices upwards and operations that pass
    them downwards. Each wave runs all microbatches. After ``p - d`` forwards downwards (fewer if
    there are fewer microbatches), the order is up, down, up, down and so on::

        down    forwards of even chunks, first wave first; then backwards of odd chunks in reverse
        up      forwards of odd chunks, first wave first; then backwards of even chunks in reverse

    Args:
        stages: Number of devices, p.
        microbatches: Number of microbatches, m.
        waves: Number of waves, w.
        device: Index of the device, d.
    """
    placement = make_wave_placement(stages, waves)
    down_stages, up_stages = (
        [stage for stage, at in enumerate(placement) if at == device and stage // stages % 2 == up]
        for up in (0, 1)
    )

    def run_all(virtual_stages: Iterable[int], phase: Phase) -> list[PlannedOperation]:
        """Return the operations of all microbatches, one virtual stage after another."""
        return [
            PlannedOperation(stage, phase, mb)
            for stage in virtual_stages
            for mb in range(microbatches)
        ]

    down = run_all(down_stages, _F) + run_all(reversed(up_stages), _BW)
    up = run_all(up_stages, _F) + run_all(reversed(down_stages), _BW)
    ahead = min(stages - device, microbatches)
    order = down[:ahead]
    for n, operation in enumerate(up, ahead):
        order += [operation, *down[n : n + 1]]
    return tuple(order)


def _build_chimera(stages: int, microbatches: int, chunks: int = 1) -> Plan:
    """Build Chimera: two replicas in opposite directions, each with half of the microbatches.

    Stage s is on device s in the first replica, and on device p-1-s in the second replica. Virtual
    stages 0 to p-1 belong to the first replica, and p to 2p-1 to the second. Groups of p
    microbatches (p/2 per direction) follow each other without a flush (the paper's direct
    concatenation, section 3.5).

    Raises:
        UsageError: The number of stages p is odd, m is not a multiple of p, or ``chunks`` is not 1.
    """
    _check_chunks("chimera", chunks, 1, "device and direction")
    if stages % 2 or microbatches % stages:
        raise UsageError(
            "chimera needs an even number of stages, and a number of microbatches that is a "
            f"multiple of the number of stages, not {format_count(stages, 'stage')} and "
            f"{format_count(microbatches, 'microbatch', 'microbatches')}"
        )
    orders = tuple(_order_chimera(stages, microbatches, device) for device in range(stages))
    placement = make_v_placement(stages)
    return Plan("chimera", stages, microbatches, 1, placement, orders, replicas=2)


def _order_chimera(stages: int, microbatches: int, device: int) -> Order:
    """Return the order of a single device in Chimera.

    Every operation gets its time slot from a 1F1B schedule in which each operation takes one slot.
    A device runs its operations in the order of their slots::

        slot      0   1   2   3   4   5   6   7   8   9       p = 4, device 0
        down      F0      F1                  B0      B1      s + 2i and 2p-1-s + 2i
        up                    F0  B0  F1  B1                  the same with s = p-1

    The two directions (down and up) use slots of different parity, so no slot is used twice. The
    next group of p microbatches starts 2p slots later, in the slots that the previous group leaves
    free.
    """
    slots: list[tuple[int, PlannedOperation]] = []
    for stage, first_stage in ((device, 0), (stages - 1 - device, stages)):
        for microbatch in range(microbatches // 2):
            group, position = divmod(microbatch, stages // 2)
            first_slot = 2 * stages * group + 2 * position
            for phase, slot in ((_F, stage), (_BW, 2 * stages - 1 - stage)):
                operation = PlannedOperation(first_stage + stage, phase, microbatch)
                slots.append((first_slot + slot, operation))
    return tuple(operation for _, operation in sorted(slots))


def _build_dualpipe(stages: int, microbatches: int, chunks: int = 1) -> Plan:
    """Build DualPipe: two replicas in opposite directions, each with half of the microbatches.

    Raises:
        UsageError: The number of stages or of microbatches is odd, there are fewer than two
            microbatches per stage, or ``chunks`` is not 1.
    """
    _check_chunks("dualpipe", chunks, 1, "device and direction")
    if stages % 2 or microbatches % 2:
        raise UsageError(
            "dualpipe needs an even number of stages and an even number of microbatches, "
            f"not {stages} and {microbatches}"
        )
    half = stages // 2
    devices = []
    for device in range(stages):
        near, far = device, 2 * stages - 1 - device
        virtual_stages = (near, far) if device < half else (far, near)
        n_before = min(device, stages - 1 - device)
        devices.append(
            _BidirectionalDevice(
                virtual_stages, microbatches // 2, n_before, half, n_before == half - 1
            )
        )
    return _build_bidirectional("dualpipe", stages, microbatches, 1, devices, 2)


def _build_dualpipe_v(stages: int, microbatches: int, chunks: int = 2) -> Plan:
    """Build DualPipeV, which has 2p virtual stages in a V.

    Virtual stage s is on device s if s < p (down), and on device 2p-1-s otherwise (up).

    Raises:
        UsageError: ``chunks`` is not 2, or there are fewer than two microbatches per stage.
    """
    _check_chunks("dualpipev", chunks, 2)
    devices = [
        _BidirectionalDevice(
            (device, 2 * stages - 1 - device), microbatches, device, stages, device == stages - 1
        )
        for device in range(stages)
    ]
    return _build_bidirectional("dualpipev", stages, microbatches, 2, devices)


class _BidirectionalDevice(NamedTuple):
    """A device with two virtual stages, from one V-shaped pipeline or from two opposite pipelines.

    Attributes:
        virtual_stages: The two virtual stages of the device, called stage 0 and stage 1. A
            microbatch of a V-shaped pipeline reaches stage 0 first.
        microbatches: Number of microbatches that each virtual stage runs.
        n_before: Number of devices that a microbatch of stage 0 passes before it reaches this
            device.
        depth: Number of devices that a microbatch passes before it turns around (in a V), or before
            it reaches the middle (in opposite pipelines).
        first_is_separate: Whether the first forward of the steady state runs before the next
            backward. If False, both run together.
    """

    virtual_stages: tuple[int, int]
    microbatches: int
    n_before: int
    depth: int
    first_is_separate: bool


def _build_bidirectional(
    name: str,
    stages: int,
    microbatches: int,
    chunks: int,
    devices: Iterable[_BidirectionalDevice],
    replicas: int = 1,
) -> Plan:
    """Build the plan of a schedule that places two virtual stages on every device.

    Raises:
        UsageError: There are fewer than two microbatches per stage.
    """
    if microbatches < 2 * stages:
        raise UsageError(
            f"{name} needs at least two microbatches per stage ({2 * stages} in total), not "
            f"{microbatches}"
        )
    together: set[PlannedOperation] = set()
    orders = tuple(tuple(_make_bidirectional_order(device, together)) for device in devices)
    placement = make_v_placement(stages)
    return Plan(
        name, stages, microbatches, chunks, placement, orders, replicas, frozenset(together)
    )


class _BidirectionalOrder:
    """The order of a device with two virtual stages, 0 and 1, while it is being built.

    Attributes:
        operations: Operations that have been appended so far, in order.
        pending_weights: W operations of split backwards that are not yet in ``operations``, oldest
            first.
    """

    def __init__(self, virtual_stages: tuple[int, int]) -> None:
        self.operations: list[PlannedOperation] = []
        self.pending_weights: list[PlannedOperation] = []
        self._virtual_stages = virtual_stages
        self._n_run: Counter[tuple[int, bool]] = Counter()

    def run(self, stage: int, phase: Phase) -> None:
        """Append an operation for the next microbatch of a stage.

        Forwards and backwards of a stage are counted separately. Appending a B also adds its W to
        :attr:`pending_weights`.

        Args:
            stage: Index of the virtual stage on the device, 0 or 1.
            phase: Phase of the operation.
        """
        virtual_stage, is_forward = self._virtual_stages[stage], phase is _F
        microbatch = self._n_run[stage, is_forward]
        self._n_run[stage, is_forward] += 1
        self.operations.append(PlannedOperation(virtual_stage, phase, microbatch))
        if phase is _B:
            self.pending_weights.append(PlannedOperation(virtual_stage, _W, microbatch))

    def run_weight(self) -> None:
        """Append the oldest pending W."""
        self.operations.append(self.pending_weights.pop(0))

    def run_pair(self, forward: int, backward: int) -> PlannedOperation:
        """Append a forward of one stage and a fused backward of the other. Return the forward."""
        self.run(forward, _F)
        operation = self.operations[-1]
        self.run(backward, _BW)
        return operation


def _make_bidirectional_order(
    device: _BidirectionalDevice, together: set[PlannedOperation]
) -> list[PlannedOperation]:
    """Return the order of a device with two virtual stages (the eight steps of DualPipe).

    Below, F0 is a forward of stage 0, ``&`` joins operations that run together, W is the oldest
    pending W, and n_after = depth - n_before - 1. The order is::

        step   repeats                                operations
        1      n_after                                F0 F0
        2      n_before + 1                           F0 F1
        3      n_after                                B1 W F1
        4      microbatches - 2 depth + n_before + 1  F0&BW1 F1&BW0
        5      n_after                                BW1 F1&BW0
        6      n_before + 1                           BW1 BW0 (the second half: B1 or B0)
        7      n_after                                W B0
        8      n_before + 1                           W

    Args:
        device: The device.
        together: Set to which the forwards that run together with a backward are added.
    """
    n_before, n_after = device.n_before, device.depth - device.n_before - 1
    order = _BidirectionalOrder(device.virtual_stages)
    for stage in [0, 0] * n_after + [0, 1] * (n_before + 1):
        order.run(stage, _F)
    for _ in range(n_after):
        order.run(1, _B)
        order.run_weight()
        order.run(1, _F)
    for number in range(device.microbatches - 2 * device.depth + n_before + 1):
        forward = order.run_pair(0, 1)
        if number > 0 or not device.first_is_separate:
            together.add(forward)
        together.add(order.run_pair(1, 0))
    for _ in range(n_after):
        order.run(1, _BW)
        together.add(order.run_pair(1, 0))
    # The second half of these 2 (n_before + 1) backwards is split.
    for number in range(2 * (n_before + 1)):
        order.run(1 - number % 2, _B if number > n_before else _BW)
    for _ in range(n_after):
        order.run_weight()
        order.run(0, _B)
    return order.operations + order.pending_weights[: n_before + 1]


def _plan_at_equal_times(name: str, stages: int, microbatches: int, chunks: int) -> Plan:
    """Search for a schedule's plan at equal times, within the schedule's default memory limit.

    F, B and W take equally long on all stages, and transfers take no time.
    """
    rule = find_schedule(name)
    searched, ones = rule.searched, (1,) * stages
    assert searched is not None
    assert searched.limit is not None
    memory = Memory(searched.limit(stages), 1.0, searched.weight_memory)
    placement = get_searched_placement(rule, stages, chunks)
    workload = build_device_workload(placement, microbatches, (ones,) * 3, memory=memory)
    return search_plan(name, workload)


def _make_searched_schedule(
    name: str,
    summary: str,
    source: str,
    chunks: int,
    limit: Callable[[int], float],
    peak: Callable[[int], float] | None = None,
    weight_memory: float = 1.0,
) -> Schedule:
    """Return a schedule whose order is always found by a search.

    Args:
        name: Name that users see.
        summary: A sentence that describes the schedule to users.
        source: The paper and the section that define the schedule.
        chunks: Number of model chunks per device.
        limit: Default memory limit as a function of p, in units of M_B.
        peak: See :attr:`.PlanSearch.peak`; the default is ``limit``.
        weight_memory: Default of M_W, in units of M_B.
    """
    searched = PlanSearch(limit, peak or limit, weight_memory)
    return Schedule(name, summary, source, chunks, partial(_plan_at_equal_times, name), searched)


_ZERO_BUBBLE = "Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241"
_CONTROLLABLE = "Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362"
_DEEPSEEK = "DeepSeek-V3, arXiv 2412.19437, section 3.2.1"

SCHEDULES = (
    Schedule(
        "chimera",
        "Two replicas, fed from both ends. Bubble: (p-2)/(3m/2+p-2) for a group of m = p.",
        "Li and Hoefler, Chimera, arXiv 2107.06925, section 3 and figure 2",
        1,
        _build_chimera,
        replicas=2,
    ),
    Schedule(
        "combined-1f1b",
        "Interleaved 1F1B with one more forward at the start. Later forwards overlap backwards.",
        "NVIDIA, Megatron-Core, megatron/core/pipeline_parallel/combined_1f1b.py",
        2,
        _build_combined,
    ),
    Schedule(
        "dualpipe",
        "Two replicas, fed from both ends. Bubble: (p/2-1)(F&B + B - 3W).",
        f"DeepSeek-AI, {_DEEPSEEK}",
        1,
        _build_dualpipe,
        replicas=2,
    ),
    Schedule(
        "dualpipev",
        "Two chunks per device, in a V. In the steady state, forwards overlap with backwards.",
        f"DeepSeek-AI, DualPipe repository; {_DEEPSEEK}",
        2,
        _build_dualpipe_v,
    ),
    Schedule(
        "gpipe",
        "All forwards, then all backwards. Bubble: (p-1)/(m+p-1).",
        "Huang et al., GPipe, arXiv 1811.06965, section 2.3",
        1,
        _make_line_builder("gpipe", lambda _, m: m),
    ),
    Schedule(
        "hanayo",
        "v = 2w chunks per device, in w waves down and up. Bubble at T_F = T_B: (p-1)/(v m+p-1).",
        "Liu et al., Hanayo, arXiv 2308.15762, section 3",
        2,
        _build_hanayo,
    ),
    Schedule(
        "interleaved-1f1b",
        "1F1B with v chunks per device. Bubble: (p-1)/(v m+p-1).",
        "Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters "
        "Using Megatron-LM, arXiv 2104.04473, section 2.2",
        2,
        partial(_build_interleaved, "interleaved-1f1b", _BW),
    ),
    Schedule(
        "interleaved-zb",
        "Interleaved 1F1B, with weight gradients filling part of the bubble.",
        f"{_ZERO_BUBBLE}; order as torch.distributed.pipelining's ScheduleInterleavedZeroBubble",
        2,
        partial(_build_interleaved, "interleaved-zb", _B),
    ),
    Schedule(
        "looped-bfs",
        "GPipe with v chunks per device, one chunk after another.",
        "Lamy-Poirier, Breadth-First Pipeline Parallelism, arXiv 2211.05953, section 4",
        2,
        _build_looped_bfs,
        # GPipe can run its backwards in either order. torchgpipe starts with the last microbatch.
        # (See torchgpipe/pipeline.py: batches[i-1] depends on batches[i] in backpropagation.)
        with_one_chunk="gpipe",
    ),
    Schedule(
        "1f1b",
        "Forwards and backwards alternate. Bubble: (p-1)/(m+p-1). At most p activations.",
        "Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training (PipeDream-Flush), "
        "arXiv 2006.09503, section 3.2",
        1,
        _make_line_builder(
            "1f1b", lambda left, _: left, hint="; for more chunks, use interleaved-1f1b"
        ),
    ),
    _make_searched_schedule(
        "v-half",
        "Two chunks per device, in a V. The order is searched for the given times, within "
        "--memory-limit or the memory of (p+2)/2 microbatches, half that of 1F1B.",
        f"{_CONTROLLABLE}, section 4",
        2,
        lambda p: (p + 2) / 2,
    ),
    _make_searched_schedule(
        "v-min",
        "Two chunks per device, in a V. The order is searched for the given times, within "
        "--memory-limit or the memory of (p+4)/3 whole microbatches, a third of that of 1F1B.",
        f"{_CONTROLLABLE}, section 4",
        2,
        # The limit is a whole number of microbatches. For some p, the orders in the paper need half
        # a microbatch more.
        lambda p: float((p + 4) // 3),
        lambda p: (p + 4) / 3,
    ),
    _make_searched_schedule(
        "zb-1p",
        "Searched for the given times, within --memory-limit or the memory of p microbatches.",
        f"{_ZERO_BUBBLE}, sections 3 and 5",
        1,
        float,
        weight_memory=_ZERO_BUBBLE_WEIGHT_MEMORY,
    ),
    _make_searched_schedule(
        "zb-2p",
        "Searched for the given times, within --memory-limit or the memory of 2p microbatches.",
        f"{_ZERO_BUBBLE}, sections 3 and 5",
        1,
        lambda p: 2.0 * p,
        weight_memory=_ZERO_BUBBLE_WEIGHT_MEMORY,
    ),
    Schedule(
        "zb-h1",
        "Like 1F1B, with weight gradients filling part of the bubble. Same memory as 1F1B.",
        f"{_ZERO_BUBBLE}, section 2.1",
        1,
        _make_line_builder("zb-h1", lambda left, _: left, lambda device: device),
    ),
    Schedule(
        "zb-h2",
        "At equal times, no bubble within each device's own window. Keeps 2p-1 activations.",
        f"{_ZERO_BUBBLE}, section 2.2",
        1,
        _make_line_builder("zb-h2", lambda left, _: 2 * left - 1, lambda device: 2 * device),
    ),
    Schedule(
        "zb-v",
        "Two chunks per device, in a V. No bubble at equal times, and the same memory as 1F1B. "
        "With --memory-limit, the order is searched for the given times.",
        f"{_ZERO_BUBBLE}, section 6",
        2,
        _build_zb_v,
        PlanSearch(None, float),
    ),
)


@dataclass(frozen=True)
class Formula:
    """A closed formula for the cost of a schedule, which is the longest window of any device.

    Attributes:
        name: Name that users see.
        summary: A sentence that describes the formula to users.
        source: The paper and the section that define the schedule.
        chunks: Default number of model chunks per device.
        cost: Function of p, m, v, T and c that returns the cost. T is the time that a stage spends
            on the forward and backward of one microbatch. c is the duration of one transfer, in the
            same unit. The function raises :class:`bubbleviz.errors.UsageError` for sizes that the
            formula does not allow.
        text: The formula in the form shown to users.
        similar_schedule: Name of a similar schedule that defines an order.
    """

    name: str
    summary: str
    source: str
    chunks: int
    cost: Callable[[int, int, int, float, float], float]
    text: str
    similar_schedule: str


def _estimate_1f1b_i(p: int, m: int, v: int, work: float, transfer: float) -> float:
    """Return the cost m T + (p-1) T/v + ((2v-1)p-2) c; the last term is 0 for a single stage.

    In a simulation of interleaved 1F1B, the last term is (2vp-2) c instead.

    Raises:
        UsageError: m is not a multiple of p.
    """
    _check_groups("1f1b-i", p, m)
    n_transfers = (2 * v - 1) * p - 2 if p > 1 else 0
    return m * work + (p - 1) * work / v + n_transfers * transfer


FORMULAS = (
    Formula(
        "1f1b-i",
        "Interleaved 1F1B as the closed formula in Table 5 of the Zero Bubble paper, without an "
        "order. To simulate the order, use interleaved-1f1b.",
        f"{_ZERO_BUBBLE}, section 5.3, table 5",
        2,
        _estimate_1f1b_i,
        "m T + (p-1) T/v + ((2v-1)p-2) c",
        "interleaved-1f1b",
    ),
)


def find_formula(name: str) -> Formula | None:
    """Return the formula with the given name, or None if there is none."""
    return next((formula for formula in FORMULAS if formula.name == name), None)
