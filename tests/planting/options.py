"""What can be planted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Planting:
    """What to plant; times in integer nanoseconds. What one option says of others is all of them.

    Attributes:
        schedule: name of a schedule of :mod:`tests.planting.orders`, or an order as PyTorch's CSV.
        stages: devices, p.
        microbatches: m.
        replicas: data-parallel pipelines, with durations of their own.
        tensor: tensor-parallel copies of each device, which do the same at the same time.
        chunks: model chunks per device; 0 for the schedule's own number.
        iterations: training iterations, back to back.
        forward_ns: T_F of a whole stage; a chunk takes its share.
        backward_ns: T_B, for the input alone.
        weight_ns: T_W; a fused backward takes both.
        transfer_ns: latency of every edge between devices, T_comm.
        transfer_back_ns: the same for gradients; -1 for equally long.
        transfer_jitter: each transfer takes up to so much of its length longer.
        optimizer_ns: length of the optimizer; 0 gives a range without device work, -1 no range.
        jitter: each duration is scaled by a number in [1 - jitter, 1 + jitter].
        slow_stage: device whose operations all take ``slow_factor`` longer; -1 for none.
        slow_rank: device, counted over all pipelines, whose operations take ``slow_rank_factor``
            longer; -1 for none.
        slow_rank_from: iteration from which on it is slow.
        slow_microbatch: microbatch that takes half as long again on every stage,
            in every iteration; -1 for none.
        slow_iteration: iteration in which all operations take half as long again;
            -1 for none.
        pause_device: device, counted over all pipelines, of which one F of every ``pause_every``-
           th iteration takes ``pause_ns`` longer; -1 for none.
        pause_dry: the GPU runs dry in the pause, since the host launches the rest so much later.
        stall_range: name of a range in which a host is before it launches late, in a dry pause or
            before a reduce-scatter; empty for none.
        swapped_device: device, counted over all pipelines, that runs the operation at place
            ``swapped_at`` of every iteration after the one that the schedule has next; -1 for none.
        slow_link: stage whose transfers from and to the next one take ``slow_link_factor`` longer;
            -1 for none.
        drift: device-independent growth of all operations from the first iteration to the last.
        late_stage: device whose host launches every F ``late_ns`` late; -1 for none.
        late_optimizer: device, counted over all pipelines, whose host launches every optimizer
            ``late_optimizer_ns`` late; -1 for none.
        barrier: a gradient-norm all-reduce holds every optimizer until all devices are done.
        norm_ns: how long data moves in it; 0 for none that takes any time.
        reduce_ns: how long data moves in the reduce-scatter of the replicas of each device, after
            the last backward of an iteration; 0 for no reduce-scatter.
        reduce_pieces: kernels of it in a row, on every other rank.
        late_reducer: rank whose host launches it ``late_reduce_ns`` late; -1 for none.
        slow_pipeline: pipeline whose operations all take ``slow_factor`` longer; -1 for none.
        postponed_ns: optimizer work that runs as POST_VALIDATION inside the next iteration; 0
            for none.
        idle_stage: Stage that runs no forward or backward in ``idle_iterations``, as a vision
            encoder does in text-only steps, or -1 for none. It still runs its optimizer.
        idle_iterations: Iterations in which ``idle_stage`` is idle, counted from 0.
        evaluation_at: number of an iteration that only goes forward; -1 for none.
        inference: whether all iterations only go forward.
        lengths: how many times as long as usual each microbatch takes, in turn; empty for none.
        layers: how long each layer of the model takes, in per cent of ``forward_ns`` and so on;
            empty for stages without layers. A range with its name is around its launches.
        layer_counts: layers of each virtual stage.
        layer_backward: whether ranges of layers are in backwards, too, from the last to the first.
        layer_names: how layers are named, with {} for the number.
        kernels: compute kernels an operation, or a layer.
        kernel_gap_ns: idle time between the kernels of an operation.
        two_streams: kernels alternate between two streams and overlap.
        communication: plant send and receive ranges with their kernels.
        nested_receive_ns: F starts with one kernel of that length that needs no input, then
            receives inside its own range; 0 for a receive before F.
        run_ahead_ns: how much earlier than needed the host launches.
        autograd: ``none``, ``named`` (backward launched by a thread pt_autograd_0) or
            ``unnamed``.
        library_depth: nested library ranges around launches; 0 for none.
        names: ``numbered`` (F3.0.0) or ``constant`` (F0.0.0 for every microbatch).
        text: ``text``, ``registered`` (textId) or ``mixed``.
        ranges: ``push_pop``, ``start_end`` or ``mixed``.
        iteration_ranges: plant iter_{rank}_{n} around the work of each iteration.
        first_iteration: the n of the first one.
        w_clear: the W at the end of an iteration run in one range W_clear.{chunk}.0.
        servers: number of hosts, which the ranks are spread over in blocks, tensor-parallel ones
            next to each other and stages farthest apart, as Megatron numbers them.
        absent: files that are not written.
        files: one export a ``server`` or a ``rank``.
        devices: ``local`` (0, 1, .. on each host) or ``zero`` (CUDA_VISIBLE_DEVICES a process).
        correlation: ids of two processes are ``colliding`` or ``disjoint``.
        session_gap_ns: how much later each file's session starts than the one before.
        clock_error_ns: error of each host's UTC; missing ones are 0.
        drift_ppb: how much each host's clock is fast, in 1e-9, UTC included; missing ones are 0.
        step_ns: how far each host's clock is set forward at ``step_at_ns``; missing ones are 0.
        step_at_ns: instant after the start of training.
        copies: plant a copy that ends after F's kernels, and a fill inside B.
        stray: compute kernels of no operation: ``none``, ``busy`` (while an operation runs),
            ``idle``, or ``recv`` (idle, launched inside a receive's range).
        drop_calls_every: leave out the launching call of every so many kernels, never of the
            first or last of an operation; 0 for none.
        double_calls: every kernel launch is a runtime row and a driver row of one correlation id.
        watchdog: a thread without ranges that makes calls which launch nothing.
        overhead: plant PROFILER_OVERHEAD inside each rank's longest gap of each iteration.
        cut_ns: instant after the start of training at which the capture stops; 0 for none.
        seed: of the jitter.
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
        """Refuse words that mean nothing, and options that no export can hold together.

        A typo would otherwise plant the default, and the truth would tell what is not planted.
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
            raise ValueError("layer_counts are as many layers as there are in layers")
        if self.servers > self.ranks:
            raise ValueError(f"{self.servers} servers are too many for {self.ranks} ranks")

    def layers_of(self, virtual_stage: int) -> range:
        """Return the numbers of the layers of a virtual stage."""
        first = sum(self.layer_counts[:virtual_stage])
        return range(first, first + self.layer_counts[virtual_stage])

    @property
    def gated(self) -> bool:
        """Whether collectives take time before the optimizer."""
        return bool(self.norm_ns or self.reduce_ns)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.stages * self.replicas * self.tensor


#: The words that the options of that type take.
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
