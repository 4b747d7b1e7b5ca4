"""Jobs: what each virtual stage of a pipeline takes, on which rank it is, and slow links."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Milliseconds by virtual stage.
Times = tuple[float, ...]


@dataclass(frozen=True)
class Job:
    """A training job of stages that sleep.

    Attributes:
        name: for people and files.
        placement: rank of each virtual stage.
        microbatches: m.
        forward_ms: T_F of each virtual stage.
        backward_ms: T_B, the backward for the input.
        weight_ms: T_W, the backward for the weights.
        links: (sender, receiver, milliseconds) of each slow link between two ranks.
        streams: whether transfers between two ranks run one after the other, as NCCL's on a stream.
        lengths: how many times as long each microbatch takes; empty where all are alike.
        replicas: pipelines that train side by side and average their gradients.
        slow: (stage, replica, how many times as long it takes) of each slow rank.
    """

    name: str
    placement: tuple[int, ...]
    microbatches: int
    forward_ms: Times
    backward_ms: Times
    weight_ms: Times
    links: tuple[tuple[int, int, float], ...] = ()
    streams: bool = False
    lengths: tuple[float, ...] = ()
    replicas: int = 1
    slow: tuple[tuple[int, int, float], ...] = ()

    @property
    def ranks(self) -> int:
        """Number of ranks of a pipeline, p."""
        return max(self.placement) + 1

    @property
    def layout(self) -> str:
        """How virtual stages lie on ranks: one each, looped, or a V."""
        if len(self.placement) == self.ranks:
            return "one"
        return "v" if self.placement[self.ranks] == self.ranks - 1 else "looped"

    @property
    def shipped(self) -> tuple[str, ...]:
        """PyTorch's schedules for this layout; the first splits backwards, so it is measured."""
        return {
            "one": ("InterleavedZeroBubble", "1F1B", "GPipe"),
            "looped": ("InterleavedZeroBubble", "Interleaved1F1B", "LoopedBFS"),
            "v": ("ZBVZeroBubble", "DualPipeV"),
        }[self.layout]


def scaled(job: Job, factor: float) -> Job:
    """Return the job with all its times so many times as long."""
    forward, backward, weight = (
        tuple(ms * factor for ms in each)
        for each in (job.forward_ms, job.backward_ms, job.weight_ms)
    )
    links = tuple((sender, receiver, ms * factor) for sender, receiver, ms in job.links)
    return replace(job, forward_ms=forward, backward_ms=backward, weight_ms=weight, links=links)


def cut(job: Job, placement: tuple[int, ...]) -> Job:
    """Return a job of one stage a rank with each cut into parts, which are placed so on ranks."""
    parts = len(placement) // job.ranks
    forward, backward, weight = (
        tuple(each[rank] / parts for rank in placement)
        for each in (job.forward_ms, job.backward_ms, job.weight_ms)
    )
    return replace(
        job, placement=placement, forward_ms=forward, backward_ms=backward, weight_ms=weight
    )


def repaired(job: Job, kind: str) -> Job:
    """Return a job without the faults of an advice's kind.

    Stages and microbatches do as much work together as before; slow ranks work as the others do.
    """
    if "stage" in kind.split("+"):
        forward, backward, weight = (
            _even(ms) for ms in (job.forward_ms, job.backward_ms, job.weight_ms)
        )
        job = replace(job, forward_ms=forward, backward_ms=backward, weight_ms=weight)
    if "microbatch" in kind.split("+"):
        job = replace(job, lengths=(sum(job.lengths) / job.microbatches,) * job.microbatches)
    return replace(job, slow=()) if "rank" in kind.split("+") else job


def _even(times: Times) -> Times:
    return (sum(times) / len(times),) * len(times)


def _one(p: int) -> tuple[int, ...]:
    return tuple(range(p))


def _looped(p: int) -> tuple[int, ...]:
    return (*range(p), *range(p))


def _v(p: int) -> tuple[int, ...]:
    return (*range(p), *reversed(range(p)))


JOBS = (
    Job("even-4", _one(4), 8, (20.0,) * 4, (20.0,) * 4, (20.0,) * 4),
    Job(
        "uneven-4",
        _one(4),
        8,
        (20.0, 30.0, 24.0, 45.0),
        (22.0, 34.0, 26.0, 50.0),
        (16.0, 20.0, 18.0, 35.0),
    ),
    Job(
        "slow-link-4",
        _one(4),
        12,
        (20.0,) * 4,
        (24.0,) * 4,
        (20.0,) * 4,
        ((1, 2, 30.0), (2, 1, 30.0)),
    ),
    Job("one-way-2", _one(2), 4, (30.0, 20.0), (30.0, 40.0), (20.0, 30.0), ((0, 1, 45.0),)),
    Job(
        "last-stage-8",
        _one(8),
        16,
        (20.0,) * 7 + (40.0,),
        (20.0,) * 7 + (44.0,),
        (16.0,) * 7 + (36.0,),
    ),
    Job(
        "looped-4",
        _looped(4),
        8,
        (20.0, 24.0, 20.0, 20.0, 20.0, 28.0, 20.0, 40.0),
        (20.0, 24.0, 20.0, 20.0, 20.0, 28.0, 20.0, 44.0),
        (16.0, 20.0, 16.0, 16.0, 16.0, 20.0, 16.0, 30.0),
    ),
    Job(
        "v-4",
        _v(4),
        8,
        (28.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0, 36.0),
        (30.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0, 40.0),
        (20.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0),
        ((1, 2, 20.0), (2, 1, 20.0)),
    ),
    Job(
        "v-2",
        _v(2),
        6,
        (20.0, 35.0, 25.0, 40.0),
        (25.0, 35.0, 25.0, 45.0),
        (20.0, 25.0, 15.0, 25.0),
    ),
    Job(
        "stream-4",
        _one(4),
        8,
        (20.0, 30.0, 20.0, 30.0),
        (20.0, 30.0, 20.0, 30.0),
        (20.0, 20.0, 20.0, 20.0),
        tuple((a, b, 12.0) for a, b in ((0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2))),
        streams=True,
    ),
)
