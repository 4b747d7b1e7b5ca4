"""Record the host and the device of one rank in the same way as a profiler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.phases import Phase
from tests.planting import host
from tests.planting.options import Planting
from tests.planting.units import Unit

#: Kinds of device rows: compute kernel, communication kernel, copy and fill.
KERNEL, COMMUNICATION, COPIED, FILLED = 0, 1, 2, 3

#: Names of kernels in exports: demangled, short and mangled.
KERNEL_NAMES = (
    (
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    ),
    (
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>,"
        " std::array<char *, (unsigned long)3>>(int, T2, T3)",
        "vectorized_elementwise_kernel",
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_",
    ),
    (
        "void multi_tensor_apply_kernel<TensorListMetadata<(int)4>, AdamFunctor<float>>(long, T1)",
        "multi_tensor_apply_kernel",
        "_Z25multi_tensor_apply_kernelI18TensorListMetadataILi4EE11AdamFunctorIfEEvlT_",
    ),
    (
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)",
        "ncclDevKernel_SendRecv",
        "_Z22ncclDevKernel_SendRecv24ncclDevKernelArgsStorageILm4096EE",
    ),
    (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE",
    ),
    (
        "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"
        "(ncclDevKernelArgsStorage<(unsigned long)4096>)",
        "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL",
        "_Z43ncclDevKernel_ReduceScatter_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE",
    ),
)
_GEMM, _ADD, _ADAM, _SEND_RECV, _ALL_REDUCE, _REDUCE_SCATTER = range(6)
#: Number of the names above that are in every export.
USUAL_KERNELS = _REDUCE_SCATTER

#: Number of operations per stray kernel, and length of a stray kernel in ns.
_STRAY_EVERY, _STRAY_NS = 4, 20_000


class Recorder:
    """Records the host and the device of one rank."""

    def __init__(self, planting: Planting, rank: int) -> None:
        self.planting = planting
        self.rank = rank
        self.host = host.Host(planting.library_depth, 4)
        self.device = host.Columns(
            ("start", "end", "stream", "name", "kind", "operation", "thread", "ranged")
        )
        self.rows = 0
        self.planned: list[int] = []  # number of kernels of each unit
        self.span: list[tuple[int, int]] = []  # push and pop instants of each unit
        self.overheads: list[tuple[int, int]] = []
        self.iteration: tuple[int, int] | None = None  # number and push of the open range

    def record(self, units: Sequence[Unit]) -> None:
        """Record everything, in host order."""
        for number, unit in enumerate(units):
            self._update_iteration_range(unit)
            self._record_stray(number, unit)
            if unit.receives and not self._is_nested(unit):
                self._record_receive(number, unit)
            self._record_operation(number, unit)
            if unit.sends:
                end = unit.end_ns + max(self.planting.transfer_ns, host.TRANSFER_KERNEL_NS)
                self._record_transfer(unit.sends, unit.end_ns, end, self._get_lead(unit))
        self._close_iteration()
        self.host.instant(units[-1].end_ns + 50_000)
        if self.planting.overhead:
            self._record_overheads(units)

    def _get_lead(self, unit: Unit) -> int:
        return 0 if unit.late else self.planting.run_ahead_ns

    def _update_iteration_range(self, unit: Unit) -> None:
        """Open and close ``iter_{rank}_{n}``, which ends before the optimizer."""
        if not self.planting.iteration_ranges:
            return
        if self.iteration and (unit.name == "Optimizer" or self.iteration[0] < unit.iteration):
            self._close_iteration()
        if self.iteration is None and unit.phase is not Phase.OPTIMIZER:
            self.iteration = unit.iteration, self.host.instant()

    def _close_iteration(self) -> None:
        if self.iteration is not None:
            number = self.iteration[0] + self.planting.first_iteration
            pop = self.host.instant(closing=True)
            self.host.range(f"iter_{self.rank}_{number}", self.iteration[1], pop)
            self.iteration = None

    def _add(self, start_ns: Ints, end_ns: Ints, **values: Ints | int) -> Ints:
        """Append device rows, and return their row numbers."""
        count = len(start_ns)
        self.device.add(count, start=start_ns, end=end_ns, **values)
        self.rows += count
        return np.arange(self.rows - count, self.rows, dtype=np.int64)

    def _record_activity(self, start: int, end: int, lead: int, **values: Ints | int) -> None:
        """Append one device row and its launching call on the main thread."""
        bounds = np.array([[start], [end]], dtype=np.int64)
        values = {"operation": NONE, "thread": host.MAIN, "ranged": 1, **values}
        rows = self._add(bounds[0], bounds[1], **values)
        self.host.launch(rows, bounds[0] - host.LATENCY_NS - lead, nested=False)

    def _record_transfer(self, name: str, start: int, end: int, lead: int) -> None:
        """Record a transfer in a separate range."""
        push = self.host.instant()
        stream = host.STREAM_OF[name.partition(".")[0]]
        self._record_activity(start, end, lead, stream=stream, name=_SEND_RECV, kind=COMMUNICATION)
        self.host.range(name, push, self.host.instant(closing=True))

    def _record_receive(self, number: int, unit: Unit) -> None:
        """Record a receive that spins from the end of the previous unit until its data arrives."""
        end = max(unit.arrival_ns, unit.previous_ns)
        start = min(unit.previous_ns, end - host.TRANSFER_KERNEL_NS)
        name = unit.receives or ""
        push = self.host.instant()
        stream = host.STREAM_OF[name.partition(".")[0]]
        lead = self.planting.run_ahead_ns
        self._record_activity(start, end, lead, stream=stream, name=_SEND_RECV, kind=COMMUNICATION)
        if self.planting.stray == "recv":
            self._record_stray_in_gap(number, unit)
        self.host.range(name, push, self.host.instant(closing=True))

    def _record_operation(self, number: int, unit: Unit) -> None:
        """Record an operation: its range, its launches, and copies that overlap the operation."""
        push = self.host.instant()
        if unit.name == "Optimizer":
            self._record_reductions(unit)
        rows = self._record_kernels(number, unit)
        if self.planting.copies and unit.phase is Phase.F:
            times = unit.end_ns - 1_000, unit.end_ns + 4_000
            self._record_activity(
                *times, self._get_lead(unit), stream=host.COPY, name=0, kind=COPIED
            )
        if self.planting.copies and unit.phase in (Phase.B, Phase.BW):
            middle = (unit.start_ns + unit.end_ns) // 2
            self._record_activity(
                middle, middle + 800, self._get_lead(unit), stream=host.COPY, name=0, kind=FILLED
            )
        pop = self.host.instant(closing=True)
        self.host.range(unit.name, push, pop)
        self.planned.append(rows)
        self.span.append((push, pop))

    def _record_reductions(self, unit: Unit) -> None:
        """Record the reduce-scatter and the gradient norm before an optimizer, if planted.

        Odd ranks run the reduce-scatter in ``reduce_pieces`` kernels. A late rank stalls first and
        launches its reduce-scatter late.
        """
        planting, done_ns = self.planting, unit.previous_ns
        if planting.reduce_ns:
            is_late = self.rank == planting.late_reducer
            start = done_ns + (planting.late_reduce_ns if is_late else 0)
            pieces = planting.reduce_pieces if self.rank % 2 else 1
            if is_late:
                self._record_stall(done_ns)
            start_ns, end_ns = host.place_kernels(start, unit.reduced_ns, pieces, 0, overlap=False)
            for low, high in zip(start_ns.tolist(), end_ns.tolist(), strict=True):
                self._record_collective(
                    _REDUCE_SCATTER, low, high, 0 if is_late else self._get_lead(unit)
                )
            done_ns = unit.reduced_ns
        if planting.barrier:
            end = unit.start_ns - (planting.late_optimizer_ns if unit.late else 0)
            start = min(done_ns, end - host.TRANSFER_KERNEL_NS)
            self._record_collective(_ALL_REDUCE, start, end, planting.run_ahead_ns)

    def _record_collective(self, name: int, start: int, end: int, lead: int) -> None:
        values = {"stream": host.COLLECTIVE_STREAM, "name": name, "kind": COMMUNICATION}
        self._record_activity(start, end, lead, **values)

    def _record_kernels(self, number: int, unit: Unit) -> int:
        """Record the compute kernels of an operation, and return their number.

        In a paused operation, kernels run before and after the stall. In a nested operation,
        kernels run before and after the receive.
        """
        if unit.end_ns == unit.start_ns:
            return 0
        if unit.paused_ns:
            return self._record_kernels_around_stall(number, unit)
        if not self._is_nested(unit):
            return self._record_launches(
                number, unit, unit.start_ns, unit.end_ns, self.planting.kernels
            )
        return self._record_kernels_around_receive(number, unit)

    def _record_kernels_around_stall(self, number: int, unit: Unit) -> int:
        """Record one kernel, the stall of the host, and the kernels launched after the stall."""
        worked_ns = unit.end_ns - unit.start_ns - unit.paused_ns
        dry_ns = unit.start_ns + worked_ns // 2
        first = self._record_launches(number, unit, unit.start_ns, dry_ns, 1)
        self._record_stall(dry_ns)
        rest = max(1, self.planting.kernels - 1)
        return first + self._record_launches(
            number, unit, dry_ns + unit.paused_ns, unit.end_ns, rest, 0
        )

    def _record_stall(self, since_ns: int) -> None:
        """Record the range around the host's stall, from the given time until the next launch."""
        if self.planting.stall_range:
            push = self.host.instant(since_ns)
            self.host.range(self.planting.stall_range, push, self.host.instant())

    def _is_nested(self, unit: Unit) -> bool:
        """Return whether the unit receives its input inside its own range."""
        nested = self.planting.nested_receive_ns > 0 and unit.phase is Phase.F
        return nested and unit.receives is not None

    def _record_kernels_around_receive(self, number: int, unit: Unit) -> int:
        """Record one kernel that needs no input, the receive, and the kernels that need the data.

        If the data arrived in time, the receive overlaps the first kernel and leaves no hole in the
        operation.
        """
        waits = unit.resume_ns > unit.pause_ns
        ready = unit.start_ns + self.planting.nested_receive_ns
        first = self._record_launches(number, unit, unit.start_ns, ready, 1)
        posted, end = unit.pause_ns, unit.resume_ns
        if not waits:
            end = min(max(unit.arrival_ns, posted + host.TRANSFER_KERNEL_NS), ready)
        self._record_transfer(unit.receives or "", posted, end, self._get_lead(unit))
        rest = max(1, self.planting.kernels - 1)
        return first + self._record_launches(
            number, unit, max(unit.resume_ns, ready), unit.end_ns, rest
        )

    def _record_launches(
        self, number: int, unit: Unit, start: int, end: int, count: int, lead: int | None = None
    ) -> int:
        """Record kernels that fill [start, end], and return their number."""
        if self.planting.layers and unit.virtual_stage is not None:
            return self._record_layers(number, unit, start, end)
        return self._record_piece(number, unit, (start, end), count, lead)

    def _record_layers(self, number: int, unit: Unit, start: int, end: int) -> int:
        """Record the kernels of each layer, launched inside a range with the name of the layer."""
        planting = self.planting
        layers = list(planting.layers_of(unit.virtual_stage or 0))
        backward = unit.phase is not Phase.F
        layers = layers[::-1] if backward else layers
        total = sum(planting.layers[layer] for layer in layers)
        done, count = 0, 0
        autograd = unit.phase in (Phase.B, Phase.BW) and planting.autograd != "none"
        for layer in layers:
            low = start + (end - start) * done // total
            done += planting.layers[layer]
            high = start + (end - start) * done // total
            push = self.host.instant()
            count += self._record_piece(number, unit, (low, high), planting.kernels, None)
            pop = self.host.instant(closing=True)
            if planting.layer_backward or not backward:
                name = planting.layer_names.format(layer)
                self.host.range(name, push, pop, host.AUTOGRAD if autograd else host.MAIN)
        return count

    def _record_piece(
        self, number: int, unit: Unit, span: tuple[int, int], count: int, lead: int | None
    ) -> int:
        """Record kernels that fill a span, and return their number."""
        start, end = span
        two = self.planting.two_streams
        start_ns, end_ns = host.place_kernels(start, end, count, self.planting.kernel_gap_ns, two)
        order = np.arange(len(start_ns), dtype=np.int64)
        backward = unit.phase in (Phase.B, Phase.BW)
        thread = host.AUTOGRAD if backward and self.planting.autograd != "none" else host.MAIN
        rows = self._add(
            start_ns,
            end_ns,
            stream=np.where(order % 2 == 1, host.COMPUTE_2, host.COMPUTE) if two else host.COMPUTE,
            name=_ADAM if unit.phase is Phase.OPTIMIZER else np.where(order % 3 == 1, _ADD, _GEMM),
            kind=KERNEL,
            operation=number,
            thread=thread,
            ranged=1,
        )
        lead = self._get_lead(unit) if lead is None else lead
        self.host.launch(rows, start_ns - host.LATENCY_NS - lead, thread)
        return len(rows)

    def _record_stray(self, number: int, unit: Unit) -> None:
        """Record a compute kernel outside every range, if the planting asks for it."""
        if self.planting.stray == "idle":
            self._record_stray_in_gap(number, unit)
        elif self.planting.stray == "busy" and number % _STRAY_EVERY == 0:
            start = unit.start_ns + (unit.end_ns - unit.start_ns) // 4
            self._record_stray_at(start, min(start + _STRAY_NS, unit.end_ns), ranged=0)

    def _record_stray_in_gap(self, number: int, unit: Unit) -> None:
        gap = unit.start_ns - unit.previous_ns
        if number % _STRAY_EVERY == 0 and gap > 2 * _STRAY_NS:
            start = unit.previous_ns + gap // 4
            in_range = int(self.planting.stray == "recv")
            self._record_stray_at(start, start + _STRAY_NS, ranged=in_range)

    def _record_stray_at(self, start: int, end: int, ranged: int) -> None:
        values = {"stream": host.COMPUTE_2, "name": _ADD, "kind": KERNEL, "ranged": ranged}
        self._record_activity(start, end, self.planting.run_ahead_ns, **values)

    def _record_overheads(self, units: Sequence[Unit]) -> None:
        """Place an interval of profiler overhead into the longest gap of each iteration."""
        longest: dict[int, Unit] = {}
        for unit in units:
            best = longest.setdefault(unit.iteration, unit)
            if unit.start_ns - unit.previous_ns > best.start_ns - best.previous_ns:
                longest[unit.iteration] = unit
        for unit in longest.values():
            quarter = (unit.start_ns - unit.previous_ns) // 4
            if quarter > 0:
                self.overheads.append((unit.previous_ns + quarter, unit.start_ns - quarter))
