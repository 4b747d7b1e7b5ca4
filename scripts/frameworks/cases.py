"""Cases.

Each case consists of a framework's schedule, the job that it trains, and the expected result.

This module is imported in every environment, so it imports only the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scripts.proving.jobs import Job

#: File that signals that the ranks have trained a batch without annotations.
PLAIN = "plain"
MEGATRON, TORCH, DEEPSPEED = "megatron", "torch_pipelining", "deepspeed"


@dataclass(frozen=True)
class Case:
    """A schedule of a framework, and the job that it trains.

    Attributes:
        name: Name of the case, used on the command line, in the output, and for its folder.
        framework: Name of the framework in :mod:`bubbleviz.annotate`.
        job: Placement and times of the stages.
        recognized: Name of the schedule that bubbleviz must recognize, or "" if the order has no
            name.
        schedule: The framework's name for the schedule, or "" if it has only one schedule.
        forward_only: Whether the case has no backward passes.
        options: Options of the framework's schedule or configuration.
        since: First version of the framework that supports the case.
        planned: Schedule whose order bubbleviz writes to a file for the framework, or "" for none.
    """

    name: str
    framework: str
    job: Job
    recognized: str
    schedule: str = ""
    forward_only: bool = False
    options: tuple[tuple[str, object], ...] = ()
    since: tuple[int, ...] = ()
    planned: str = ""

    @property
    def chunks(self) -> int:
        """Number of virtual stages per rank."""
        return len(self.job.placement) // self.job.ranks


def _make_job(
    placement: tuple[int, ...], microbatches: int, *, uneven: bool = False, ms: float = 160.0
) -> Job:
    """Return a job whose stages take slightly different times.

    Args:
        placement: Rank of each stage.
        microbatches: Number of microbatches.
        uneven: Whether the first and the last stage take twice as long.
        ms: Time of a forward and its backward. It must be long compared with the framework's
            overhead.
    """
    count = len(placement)
    last = count - 1
    factors = [
        (2.0 if uneven and stage in {0, last} else 1.0) + 0.05 * (stage % 3)
        for stage in range(count)
    ]
    forward, backward, weight = (
        tuple(share * ms * factor for factor in factors) for share in (0.5, 0.6, 0.4)
    )
    return Job("frameworks", placement, microbatches, forward, backward, weight)


def _looped(ranks: int, chunks: int = 2) -> tuple[int, ...]:
    return tuple(range(ranks)) * chunks


def _v(ranks: int) -> tuple[int, ...]:
    return (*range(ranks), *reversed(range(ranks)))


_ONE, _TWO = (_make_job(p, 8) for p in (tuple(range(4)), _looped(4)))
_LONG, _LONG_TWO, _LONG_V = (
    _make_job(p, 8, ms=240.0) for p in (tuple(range(4)), _looped(4), _v(4))
)
_UNEVEN, _UNEVEN_TWO = (_make_job(p, 8, uneven=True) for p in (tuple(range(4)), _looped(4)))
_LONG_UNEVEN = _make_job(tuple(range(4)), 8, uneven=True, ms=240.0)
_P2P = (("overlap_p2p_comm", True), ("batch_p2p_comm", False))
#: Option of Megatron-Core that runs a forward and a backward together in one step.
OVERLAP = "overlap_moe_expert_parallel_comm"
#: Option of a case in which Megatron-Core opens NVTX ranges itself.
#: The ranges name warmup, steady state, cooldown and transfers.
OWN_RANGES = "nvtx_ranges"

_MEGATRON = (
    Case("1F1B", MEGATRON, _ONE, "1f1b"),
    Case("interleaved 1F1B", MEGATRON, _TWO, "interleaved-1f1b"),
    Case("interleaved 1F1B, P2P overlapped", MEGATRON, _TWO, "interleaved-1f1b", options=_P2P),
    Case(
        "interleaved 1F1B, with its own NVTX ranges",
        MEGATRON,
        _TWO,
        "interleaved-1f1b",
        options=((OWN_RANGES, True),),
        since=(0, 13),
    ),
    Case("1F1B, uneven ends", MEGATRON, _UNEVEN, "1f1b"),
    Case("interleaved 1F1B, uneven ends", MEGATRON, _UNEVEN_TWO, "interleaved-1f1b"),
    Case(
        "interleaved 1F1B, forward and backward overlapped",
        MEGATRON,
        _LONG_TWO,
        "combined-1f1b",
        options=(*_P2P, (OVERLAP, True)),
        # Version 0.16 supports only GPTModel.
        since=(0, 19),
    ),
    Case("1F1B, forward only", MEGATRON, _ONE, "", forward_only=True),
    Case("interleaved, forward only", MEGATRON, _TWO, "", forward_only=True),
)
_TORCH = (
    Case("GPipe", TORCH, _ONE, "gpipe", "GPipe"),
    Case("1F1B", TORCH, _ONE, "1f1b", "1F1B"),
    Case("1F1B, uneven ends", TORCH, _UNEVEN, "1f1b", "1F1B"),
    Case("interleaved 1F1B", TORCH, _TWO, "interleaved-1f1b", "Interleaved1F1B"),
    Case("looped BFS", TORCH, _TWO, "looped-bfs", "LoopedBFS"),
    Case("interleaved zero bubble", TORCH, _LONG_TWO, "interleaved-zb", "InterleavedZeroBubble"),
    # Up to version 2.10, a rank sends to itself at the turn of the V, which gloo rejects.
    Case("ZB-V", TORCH, _LONG_V, "zb-v", "ZBVZeroBubble", since=(2, 11)),
    Case("DualPipeV", TORCH, _LONG_V, "dualpipev", "DualPipeV", since=(2, 11)),
    Case("GPipe, forward only", TORCH, _ONE, "", "GPipe", forward_only=True, since=(2, 8)),
    Case("plan of ZB-H1 (CSV)", TORCH, _LONG, "zb-h1", "", planned="zb-h1", since=(2, 6)),
    Case(
        "interleaved 1F1B, receives deferred",
        TORCH,
        _TWO,
        "interleaved-1f1b",
        "Interleaved1F1B",
        options=(("defer_pp_recv", True),),
        since=(2, 13),
    ),
)
_DEEPSPEED = (
    Case("1F1B", DEEPSPEED, _LONG, "1f1b"),
    Case("1F1B, uneven ends", DEEPSPEED, _LONG_UNEVEN, "1f1b"),
    Case("forward only", DEEPSPEED, _LONG, "", forward_only=True),
)
CASES = (*_MEGATRON, *_TORCH, *_DEEPSPEED)
#: Cases with two ranks, which together take a minute. With two ranks, Megatron-Core interleaves
#: correctly only if P2P communication is overlapped.
_SHORT, _SHORT_TWO = _make_job((0, 1), 4, ms=200.0), _make_job(_looped(2), 4, ms=200.0)
QUICK = tuple(
    replace(case, job=_SHORT if case.chunks == 1 else _SHORT_TWO)
    for case in (_MEGATRON[0], _MEGATRON[2], _TORCH[1], _TORCH[3])
)
