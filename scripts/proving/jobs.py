"""Jobs: pipelines whose virtual stages take given times, with slow links and slow ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Times in milliseconds, indexed by virtual stage.
Times = tuple[float, ...]


@dataclass(frozen=True)
class Job:
    """A training job whose stages sleep.

    Attributes:
        name: Name on the command line and in the output.
        placement: Rank of each virtual stage.
        microbatches: Number of microbatches, m.
        forward_ms: T_F of each virtual stage.
        backward_ms: T_B of each virtual stage: the duration of the backward pass that computes the
            input gradient.
        weight_ms: T_W of each virtual stage: the duration of the backward pass that computes the
            weight gradients.
        links: (sender, receiver, delay in milliseconds) of each slow link.
        streams: Whether transfers between two ranks run one after the other, as with NCCL.
        lengths: Relative length of each microbatch, or () if all microbatches are equal.
        replicas: Number of pipelines that train together and average their gradients.
        slow: (stage, replica, slowdown factor) of each slow rank.
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
        """Number of ranks in a pipeline, p."""
        return max(self.placement) + 1

    @property
    def layout(self) -> str:
        """Layout of virtual stages: ``one`` (one per rank), ``looped`` or ``v``."""
        if len(self.placement) == self.ranks:
            return "one"
        return "v" if self.placement[self.ranks] == self.ranks - 1 else "looped"

    @property
    def shipped(self) -> tuple[str, ...]:
        """PyTorch's schedules for the layout.

        The first schedule is the one that is recorded, because it splits backward passes.
        """
        return {
            "one": ("InterleavedZeroBubble", "1F1B", "GPipe"),
            "looped": ("InterleavedZeroBubble", "Interleaved1F1B", "LoopedBFS"),
            "v": ("ZBVZeroBubble", "DualPipeV"),
        }[self.layout]


def scaled(job: Job, factor: float) -> Job:
    """Return the job with all times multiplied by a factor."""
    links = tuple((sender, receiver, ms * factor) for sender, receiver, ms in job.links)
    scaled_times = [[ms * factor for ms in times] for times in _list_times(job)]
    return _replace_times(replace(job, links=links), scaled_times)


def cut(job: Job, placement: tuple[int, ...]) -> Job:
    """Split each stage of a job with one stage per rank into equal parts.

    Args:
        job: The job.
        placement: Rank of each part.
    """
    n_parts = len(placement) // job.ranks
    parts = [[times[rank] / n_parts for rank in placement] for times in _list_times(job)]
    return _replace_times(replace(job, placement=placement), parts)


def repaired(job: Job, kind: str) -> Job:
    """Return a copy of a job without the faults that one kind of advice is about.

    The work of stages and microbatches is distributed evenly. Slow ranks become as fast as the
    other ranks.
    """
    kinds = kind.split("+")
    if "stage" in kinds:
        even = [[sum(times) / len(times)] * len(times) for times in _list_times(job)]
        job = _replace_times(job, even)
    if "microbatch" in kinds:
        job = replace(job, lengths=(sum(job.lengths) / job.microbatches,) * job.microbatches)
    return replace(job, slow=()) if "rank" in kinds else job


def job_without_times(
    placement: tuple[int, ...], microbatches: int, *, streams: bool = False
) -> Job:
    """Return a job whose stages take no time."""
    none = (0.0,) * len(placement)
    return Job("no times", placement, microbatches, none, none, none, streams=streams)


def _list_times(job: Job) -> tuple[Times, Times, Times]:
    return job.forward_ms, job.backward_ms, job.weight_ms


def _replace_times(job: Job, times: list[list[float]]) -> Job:
    forward, backward, weight = map(tuple, times)
    return replace(job, forward_ms=forward, backward_ms=backward, weight_ms=weight)


def _make_two_way_links(ms: float, *pairs: tuple[int, int]) -> tuple[tuple[int, int, float], ...]:
    """Return slow links in both directions between the given pairs of ranks."""
    return tuple((*ends, ms) for a, b in pairs for ends in ((a, b), (b, a)))


_LOOPED_4, _V_4, _V_2 = (0, 1, 2, 3) * 2, (0, 1, 2, 3, 3, 2, 1, 0), (0, 1, 1, 0)
_EVEN = (20.0,) * 4
JOBS = (
    Job("even-4", (0, 1, 2, 3), 8, _EVEN, _EVEN, _EVEN),
    Job("uneven-4", (0, 1, 2, 3), 8, (20, 30, 24, 45), (22, 34, 26, 50), (16, 20, 18, 35)),
    Job(
        "slow-link-4", (0, 1, 2, 3), 12, _EVEN, (24.0,) * 4, _EVEN, _make_two_way_links(30, (1, 2))
    ),
    Job("one-way-2", (0, 1), 4, (30, 20), (30, 40), (20, 30), ((0, 1, 45),)),
    Job(
        *("last-stage-8", tuple(range(8)), 16),
        forward_ms=(20,) * 7 + (40,),
        backward_ms=(20,) * 7 + (44,),
        weight_ms=(16,) * 7 + (36,),
    ),
    Job(
        *("looped-4", _LOOPED_4, 8),
        forward_ms=(20, 24, 20, 20, 20, 28, 20, 40),
        backward_ms=(20, 24, 20, 20, 20, 28, 20, 44),
        weight_ms=(16, 20, 16, 16, 16, 20, 16, 30),
    ),
    Job(
        *("v-4", _V_4, 8),
        forward_ms=(28, 20, 20, 20, 20, 20, 20, 36),
        backward_ms=(30, 20, 20, 20, 20, 20, 20, 40),
        weight_ms=(20,) * 8,
        links=_make_two_way_links(20, (1, 2)),
    ),
    Job("v-2", _V_2, 6, (20, 35, 25, 40), (25, 35, 25, 45), (20, 25, 15, 25)),
    Job(
        *("stream-4", (0, 1, 2, 3), 8, (20, 30, 20, 30), (20, 30, 20, 30), _EVEN),
        links=_make_two_way_links(12, (0, 1), (1, 2), (2, 3)),
        streams=True,
    ),
)
