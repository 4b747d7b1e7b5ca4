"""Parameters of a planted run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Planting:
    """Parameters of a planted run; all times are integer nanoseconds.

    Attributes:
        schedule: Name of a schedule in :mod:`tests.planting.orders`, or an order in PyTorch's CSV.
        stages: Number of devices per pipeline, p.
        microbatches: Number of microbatches, m.
        replicas: Number of data-parallel pipelines, each with its own durations.
        tensor: Number of tensor-parallel copies of each device. The copies run in lockstep.
        chunks: Number of model chunks per device, or 0 for the schedule's usual number.
        iterations: Number of consecutive training iterations.
        forward_ns: T_F of a complete stage. Each chunk takes an equal share of it.
        backward_ns: T_B, the backward for the input only.
        weight_ns: T_W, the backward for the weights only. A fused backward takes T_B + T_W.
        transfer_ns: Latency of every transfer between devices, T_comm.
        transfer_back_ns: Latency of gradient transfers, or -1 if it equals ``transfer_ns``.
        transfer_jitter: Maximum random increase of a transfer, as a fraction of its length.
        optimizer_ns: Length of the optimizer. 0 gives a range without device work, and -1 gives no
            range.
        jitter: Relative jitter. Each duration is multiplied by a random number in [1 - jitter, 1 +
            jitter].
        slow_stage: Position in the pipeline of the device whose operations take ``slow_factor``
            times as long in every pipeline, or -1 for none.
        slow_rank: Device, counted over all pipelines, whose operations take ``slow_rank_factor``
            times as long, or -1 for none.
        slow_rank_from: First iteration in which ``slow_rank`` is slow.
        slow_microbatch: Microbatch that takes 1.5 times as long on every stage and in every
            iteration, or -1 for none.
        slow_iteration: Iteration in which all operations take 1.5 times as long, or -1 for none.
        pause_device: Device, counted over all pipelines, that pauses for ``pause_ns`` during one F
            in every ``pause_every``-th iteration, or -1 for none.
        pause_dry: Whether the host launches late, so that the GPU has no work during the pause.
        stall_range: Name of the range that encloses the host's stall during a dry pause or before a
            late reduce-scatter, or "" for no range.
        swapped_device: Device, counted over all pipelines, that swaps the operations
            ``swapped_at`` and ``swapped_at + 1`` of every iteration, or -1 for none.
        slow_link: Stage whose transfers to and from the next stage take ``slow_link_factor`` times
            as long, or -1 for none.
        drift: Relative growth of all durations from the first iteration to the last.
        late_stage: Device whose host launches every F ``late_ns`` late, or -1 for none.
        late_optimizer: Device, counted over all pipelines, whose host launches every optimizer
            ``late_optimizer_ns`` late, or -1 for none.
        barrier: Whether a gradient-norm all-reduce delays every optimizer until all devices are
            done.
        norm_ns: Transfer time of the gradient-norm all-reduce.
        reduce_ns: Transfer time of the reduce-scatter among the replicas of each device after the
            last backward of an iteration, or 0 for no reduce-scatter.
        reduce_pieces: Number of consecutive kernels of the reduce-scatter on odd ranks. On even
            ranks it is a single kernel.
        late_reducer: Rank whose host launches the reduce-scatter ``late_reduce_ns`` late, or -1 for
            none.
        slow_pipeline: Pipeline whose operations all take ``slow_factor`` times as long, or -1 for
            none.
        postponed_ns: Length of the optimizer work that runs as POST_VALIDATION in the next
            iteration, or 0 for none.
        idle_stage: Stage that runs no forward or backward in ``idle_iterations``, as a vision
            encoder does in text-only steps, or -1 for none. It still runs its optimizer.
        idle_iterations: Iterations in which ``idle_stage`` is idle, counted from 0.
        evaluation_at: Iteration that runs forward passes only, or -1 for none.
        inference: Whether all iterations run forward passes only.
        lengths: Relative lengths of the microbatches, repeated as needed; empty if all are equal.
        layers: Length of each layer of the model, in percent of ``forward_ns`` and the other times,
            or empty for stages without layers. A range with the layer's name encloses its launches.
        layer_counts: Number of layers of each virtual stage.
        layer_backward: Whether backwards contain ranges of layers as well, from the last layer to
            the first.
        layer_names: Format of the layer names, with {} for the number.
        kernels: Number of compute kernels per operation, or per layer.
        kernel_gap_ns: Idle time between the kernels of an operation.
        two_streams: Whether kernels alternate between two streams and overlap.
        communication: Whether to plant send and receive ranges with their kernels.
        nested_receive_ns: Length of the first kernel of F, which needs no input. F then receives
            inside its range. 0 plants the receive before F.
        run_ahead_ns: Time by which the host launches work earlier than necessary.
        autograd: Thread that launches backwards: ``none`` (the main thread), ``named``
            (pt_autograd_0) or ``unnamed``.
        library_depth: Number of nested library ranges around launches.
        names: ``numbered`` (F3.0.0) or ``constant`` (F0.0.0 for every microbatch).
        text: ``text``, ``registered`` (textId) or ``mixed``.
        ranges: ``push_pop``, ``start_end`` or ``mixed``.
        iteration_ranges: Whether to plant iter_{rank}_{n} around the work of each iteration.
        first_iteration: Number n of the first iteration in ``iter_{rank}_{n}``.
        w_clear: Whether all W at the end of an iteration run in one range ``W_clear.{chunk}.0``.
        servers: Number of hosts. Ranks are assigned to hosts in blocks, in Megatron's order:
            tensor-parallel ranks are adjacent, and stages are farthest apart.
        absent: Indices of the files that are not written.
        files: ``server`` for one export per server, or ``rank`` for one export per rank.
        devices: ``local`` (0, 1, ... on each host) or ``zero`` (CUDA_VISIBLE_DEVICES per process).
        correlation: Whether the correlation ids of two processes are ``colliding`` or ``disjoint``.
        session_gap_ns: Time between the session starts of consecutive files.
        clock_error_ns: Error of each host's UTC clock; 0 for hosts that are not listed.
        drift_ppb: Drift of each host's clocks, UTC included, in parts per billion; 0 for hosts that
            are not listed.
        step_ns: Time by which each host's clock is set forward at ``step_at_ns``, or 0 for hosts
            that are not listed.
        step_at_ns: Time of the clock step, after the start of training.
        copies: Whether to plant a copy that ends after F's kernels, and a fill inside B.
        stray: Compute kernels outside operations: ``none``, ``busy`` (while an operation runs),
            ``idle``, or ``recv`` (idle, launched inside a receive's range).
        drop_calls_every: Omit the launching call of every n-th kernel, except the first and last
            kernels of operations; 0 omits none.
        double_calls: Whether a kernel launch has both a runtime row and a driver row, with the same
            id.
        watchdog: Whether a thread without ranges makes calls that launch no work.
        overhead: Whether to plant PROFILER_OVERHEAD in the longest gap of each rank and iteration.
        cut_ns: Time after the start of training at which the capture stops, or 0 for no cut.
        seed: Seed of the jitter.
    """

    schedule: str = "1f1b"
    stages: int = 4
    microbatches: int = 8
    replicas: int = 1
    tensor: int = 1
    chunks: int = 0
    iterations: int = 2
    forward_ns: int = 1_000_000
    backward_ns: int = 1_000_000
    weight_ns: int = 1_000_000
    transfer_ns: int = 0
    transfer_back_ns: int = -1
    transfer_jitter: float = 0.0
    optimizer_ns: int = 500_000
    jitter: float = 0.0
    slow_stage: int = -1
    slow_factor: float = 2.0
    slow_rank: int = -1
    slow_rank_factor: float = 1.5
    slow_rank_from: int = 0
    slow_microbatch: int = -1
    slow_iteration: int = -1
    pause_device: int = -1
    pause_every: int = 3
    pause_ns: int = 5_000_000
    pause_dry: bool = False
    stall_range: str = ""
    swapped_device: int = -1
    swapped_at: int = 0
    slow_link: int = -1
    slow_link_factor: float = 5.0
    drift: float = 0.0
    late_stage: int = -1
    late_ns: int = 0
    late_optimizer: int = -1
    late_optimizer_ns: int = 0
    barrier: bool = False
    norm_ns: int = 0
    reduce_ns: int = 0
    reduce_pieces: int = 1
    late_reducer: int = -1
    late_reduce_ns: int = 0
    slow_pipeline: int = -1
    postponed_ns: int = 0
    idle_stage: int = -1
    idle_iterations: tuple[int, ...] = ()
    evaluation_at: int = -1
    inference: bool = False
    lengths: tuple[float, ...] = ()
    layers: tuple[int, ...] = ()
    layer_counts: tuple[int, ...] = ()
    layer_backward: bool = True
    layer_names: str = "decoder.layers.{}"
    kernels: int = 2
    kernel_gap_ns: int = 0
    two_streams: bool = False
    communication: bool = True
    nested_receive_ns: int = 0
    run_ahead_ns: int = 50_000
    autograd: str = "none"
    library_depth: int = 0
    names: str = "numbered"
    text: str = "text"
    ranges: str = "push_pop"
    iteration_ranges: bool = False
    first_iteration: int = 0
    w_clear: bool = False
    servers: int = 1
    absent: tuple[int, ...] = ()
    files: str = "server"
    devices: str = "local"
    correlation: str = "colliding"
    session_gap_ns: int = 40_000_000
    clock_error_ns: tuple[int, ...] = ()
    drift_ppb: tuple[int, ...] = ()
    step_ns: tuple[int, ...] = ()
    step_at_ns: int = 0
    copies: bool = False
    stray: str = "none"
    drop_calls_every: int = 0
    double_calls: bool = False
    watchdog: bool = False
    overhead: bool = False
    cut_ns: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the option values and their combinations.

        Otherwise, a typo in a value would plant the default, and the truth would describe a
        different run.
        """
        for name, words in CHOICES.items():
            if getattr(self, name) not in words:
                raise ValueError(f"{name} is one of {', '.join(words)}, not {getattr(self, name)}")
        if self.nested_receive_ns and not 2_000 <= self.nested_receive_ns < self.forward_ns // 4:
            raise ValueError("nested_receive_ns is at least 2000, and well below forward_ns")
        if self.nested_receive_ns and not self.communication:
            raise ValueError("nested_receive_ns needs communication, which plants receives")
        if self.norm_ns and not self.barrier:
            raise ValueError("norm_ns needs barrier, which plants the gradient norm")
        if sum(self.layer_counts) != len(self.layers):
            raise ValueError("layer_counts must add up to the number of layers")
        if self.servers > self.ranks:
            raise ValueError(f"{self.servers} servers are too many for {self.ranks} ranks")

    def layers_of(self, virtual_stage: int) -> range:
        """Return the layer numbers of a virtual stage."""
        first = sum(self.layer_counts[:virtual_stage])
        return range(first, first + self.layer_counts[virtual_stage])

    @property
    def gated(self) -> bool:
        """Whether collectives before the optimizer take any time."""
        return bool(self.norm_ns or self.reduce_ns)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.stages * self.replicas * self.tensor


#: Valid values of each option that takes a keyword.
CHOICES = {
    "autograd": ("none", "named", "unnamed"),
    "names": ("numbered", "constant"),
    "text": ("text", "registered", "mixed"),
    "ranges": ("push_pop", "start_end", "mixed"),
    "files": ("server", "rank"),
    "devices": ("local", "zero"),
    "correlation": ("colliding", "disjoint"),
    "stray": ("none", "busy", "idle", "recv"),
}
