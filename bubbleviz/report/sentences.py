"""Sentences of advice: what to do about each fault, what shows it, and what that saves.

A new kind of fault gets its sentence in ``_SENTENCES``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from bubbleviz.model.columns import NONE
from bubbleviz.model.texts import counted, listed, percent
from bubbleviz.report.bubbles import latest_host, thread_state
from bubbleviz.report.labels import (
    in_ms,
    name_ranks,
    numbered_rank,
    shortened,
    subject,
)
from bubbleviz.report.promise import at_most, saved_share
from bubbleviz.report.report import Report

if TYPE_CHECKING:
    from bubbleviz.explain.diagnosis.faults import Fault

#: Maximum number of names in a sentence.
_NAMED = 3
#: What to do where nothing is slow against its like, but transfers, or the profiler, take time.
_FASTER_TRANSFERS = "Make transfers between stages faster, or overlap them with other microbatches"
_RECORD_LESS = "Record less (fewer traces, larger buffers): profiler overhead delays the GPUs"
#: What to do, as the beginning of a sentence; what shows the fault, as one without its end, empty
#: where the action tells; and what to look at, likewise.
_Text: TypeAlias = "tuple[str, str, str]"


def describe_faults(report: Report, faults: Sequence[Fault], seen: str) -> list[_Text]:
    """Return for each fault what to do, what shows it, and what to look at next.

    Several slow ranks share one text.

    Args:
        report: Report of the run.
        faults: Faults that are removed together.
        seen: Clause with the number of iterations in which the faults cost time.
    """
    if len(faults) > 1 and all(f.kind == "rank" and len(f.ranks) == 1 for f in faults):
        return [_several_ranks(report, faults, seen)]
    return [_SENTENCES[fault.kind](report, fault, seen) for fault in faults]


def _rank(report: Report, fault: Fault, seen: str) -> _Text:
    if len(fault.ranks) > 1:
        return (
            f"Find out why replica {report.ranks[fault.ranks[0]].pipeline} is slow, all of its "
            f"{counted(len(fault.ranks), 'rank')}",
            f"{_phases(fault)} the other replicas, in {seen}",
            "Check what its hosts have in common",
        )
    others = f"the other ranks of stage {fault.stage}" if fault.stage is not None else "its peers"
    return (
        f"Find out why {numbered_rank(report, fault.ranks[0])} is slow",
        f"{_phases(fault)} {others}, in {seen}",
        "Check its clocks, temperature and other jobs",
    )


def _several_ranks(report: Report, faults: Sequence[Fault], seen: str) -> _Text:
    """Return the sentence on ranks that save more together, as those of one tensor group do."""
    stages = {fault.stage for fault in faults}
    one = faults[0].stage if len(stages) == 1 else None
    others = "the other ranks of their stages" if one is None else f"the other ranks of stage {one}"
    times: dict[str, list[float]] = {}
    for phase, ratio in (pair for fault in faults for pair in fault.phases[:_NAMED]):
        times.setdefault(phase, []).append(ratio)
    ends = {phase: (f"{min(own):.2f}x", f"{max(own):.2f}x") for phase, own in times.items()}
    phases = ", ".join(f"{phase} {' to '.join(dict.fromkeys(own))}" for phase, own in ends.items())
    names = " and ".join(numbered_rank(report, fault.ranks[0]) for fault in faults)
    return (
        f"Find out why {names} are slow",
        f"{phases} {others}, in {seen}",
        "Check their clocks, temperatures and other jobs",
    )


def _stage(report: Report, fault: Fault, seen: str) -> _Text:
    numbers = listed([str(stage) for stage in fault.stages], _NAMED)
    moves = f"Move {listed(list(fault.moves), _NAMED)}" if fault.moves else ""
    if len(fault.stages) > 1:
        action, who = f"Move layers off stages {numbers}", "These stages take"
    else:
        alone = sum(rank.stage == fault.stage for rank in report.ranks) == 1
        action = f"Move layers off stage {numbers}"
        who = subject(numbered_rank(report, fault.ranks[0])) if alone else "That stage"
        who += " takes"
    return action, f"{who} {_phases(fault)} the others, in {seen}", moves


def _microbatch(_: Report, fault: Fault, __: str) -> _Text:
    times = f"{fault.phases[0][1]:.2f} times"
    action = "Spread tokens evenly over the microbatches"
    if fault.what:
        evidence = f"On every stage the longest 5 % take {times} as long as the shortest"
        return action, evidence, ""
    numbers = sorted({microbatch for _, microbatch in fault.microbatches})
    are_long = "microbatch {} is too long" if len(numbers) == 1 else "microbatches {} are too long"
    return (
        f"{action}: {are_long.format(listed(list(map(str, numbers)), _NAMED))}",
        f"On every stage, {times} as long as the others ({len(fault.microbatches):,} in all)",
        "",
    )


def _iteration(report: Report, fault: Fault, _: str) -> _Text:
    named = listed([shortened(report.iterations[k].name) for k in fault.iterations], _NAMED)
    times = f"{fault.phases[0][1]:.2f}x the usual time"
    share = f"{counted(len(fault.iterations), 'iteration')} ({named})"
    state = _thread(report, fault)
    during = f"; in the longest{state}" if state else ""
    if not fault.what:
        return (f"Find out what slows all ranks in {share}", f"Operations take {times}{during}", "")
    some = counted(len(fault.ranks), "rank")
    who = numbered_rank(report, fault.ranks[0]) if len(fault.ranks) == 1 else some
    look = "Check garbage collection, checkpoints and data loading then"
    paced, slow = fault.what == "pace", f"single operations of {who} are"
    if paced and len(fault.ranks) == 1:
        slow = f"{who} is"
        look = "Check its clocks, its temperature and what else ran on its host then"
    elif paced:
        slow = f"{who} are"
        look = "Check their clocks, their temperatures and what else ran on their hosts then"
    return (
        f"Find out why {slow} slow in {share}",
        f"{'Operations' if paced else 'They'} take {times}{during}",
        "" if fault.host != (NONE, NONE) else look,
    )


def _link(_: Report, fault: Fault, seen: str) -> _Text:
    if fault.link is None:
        return _FASTER_TRANSFERS, "", ""
    low, high = fault.link
    where = f" of {fault.what}" if fault.what else ""
    return (
        f"Find out why the link between stages {low} and {high}{where} is slow",
        f"Transfers take {fault.phases[0][1]:.2f}x the time of other links, in {seen}",
        "",
    )


def _launch(report: Report, fault: Fault, seen: str) -> _Text:
    if fault.what == "profiler":
        return _RECORD_LESS, "", ""
    if fault.what:
        return (
            f"Begin iterations earlier on {name_ranks(report, fault.ranks)}"
            f"{_thread(report, fault)}",
            f"No rank computes between iterations, in {seen}",
            ""
            if fault.host != (NONE, NONE)
            else "Check data loading, checkpoints and evaluation there",
        )
    where = f" on {name_ranks(report, fault.ranks)}{_thread(report, fault)}"
    if fault.collective:
        return (
            f"Launch {fault.collective} earlier{where}",
            f"The other members wait for it, in {seen}",
            "",
        )
    # Optimizers can be late outside the windows that bubbles are counted in.
    return (
        f"Launch earlier{latest_host(report, fault.ranks) or where}",
        f"Operations start late although their input is ready, in {seen}",
        "",
    )


def _launch_gaps(report: Report, fault: Fault, _: str) -> _Text:
    """Return what to do about gaps between kernels, and what shows them."""
    of_few = (
        f" of {name_ranks(report, fault.ranks)}" if len(fault.ranks) < len(report.ranks) else ""
    )
    running = f"ernels run for {percent(1 - fault.phases[0][1])} of their time"
    if fault.what:
        return (
            f"Launch fewer, larger kernels inside operations{of_few}, or overlap communication",
            f"Compute k{running}; a table of operations does not tell launch gaps from "
            "communication",
            "",
        )
    action = f"Launch fewer, larger kernels inside operations{of_few} (fused, or as CUDA graphs)"
    return action, f"K{running}", ""


_SENTENCES: Mapping[str, Callable[[Report, Fault, str], _Text]] = {
    "rank": _rank,
    "host": lambda report, fault, seen: (
        f"Find out why host {report.ranks[fault.ranks[0]].host} is slow",
        f"{_phases(fault)} the other hosts on all of its {counted(len(fault.ranks), 'rank')}, "
        f"in {seen}",
        "Check its clocks, cooling and other jobs",
    ),
    "stage": _stage,
    "microbatch": _microbatch,
    "iteration": _iteration,
    "link": _link,
    "collective": lambda _, fault, __: (
        f"Overlap {fault.what.rsplit(' ', 1)[0] or 'collectives'} with compute, or shorten it",
        "Its data moves while ranks are idle",
        "",
    ),
    "drift": lambda report, fault, _: (
        f"Find out why {_who(report, fault)} "
        f"{'becomes' if len(fault.ranks) == 1 and not fault.what else 'become'} slower and slower",
        f"Operations take {fault.phases[0][1]:.2f}x as long in the last iteration as in the first",
        "Check temperature and clocks",
    ),
    "slowed": lambda report, fault, _: (
        f"Find out what changed on {_who(report, fault)} before iteration "
        f"{shortened(report.iterations[fault.iterations[0]].name)}",
        f"From then on operations take {fault.phases[0][1]:.2f}x as long",
        "Check clocks, temperature and other jobs there",
    ),
    "launch": _launch,
    "launch-gaps": _launch_gaps,
    "queue": lambda report, fault, seen: (
        f"Post receives of {name_ranks(report, fault.ranks)} in the order in which data comes, or "
        "defer them",
        f"{' and '.join(counted(int(n), what) for what, n in fault.phases if n)} wait behind one "
        f"whose data has not arrived, in {seen}",
        "",
    ),
    "token": lambda _, fault, seen: (
        f"Keep {'one chunk more' if fault.what == 'one' else 'more chunks'} in flight",
        "The first stage waits for the token of an earlier step, with "
        f"{counted(int(fault.phases[0][1]), 'chunk')} in the pipeline, in {seen}",
        "Let the scheduler run ahead, or divide the requests into more batches",
    ),
}


def _thread(report: Report, fault: Fault) -> str:
    """Return what the host did in the longest of a fault; empty where that is unknown."""
    return thread_state(*(None if at < 0 else report.operations.names[at] for at in fault.host))


def _who(report: Report, fault: Fault) -> str:
    return "all ranks" if fault.what else name_ranks(report, fault.ranks)


def _phases(fault: Fault) -> str:
    """Return how much longer each phase takes: ``F 2.50x, BW 2.27x``."""
    return ", ".join(f"{phase} {ratio:.2f}x" for phase, ratio in fault.phases[:_NAMED])


def describe_saving(
    report: Report,
    what: tuple[str, str],
    length_ns: float,
    saving_ns: float,
    error: float | None,
    *,
    is_period: bool = False,
) -> str:
    """Describe a saving: its share, the remaining length of iterations, and GPU-hours per day.

    Args:
        report: Report of the run.
        what: Kind and place of the advice.
        length_ns: Length of an iteration in the replay.
        saving_ns: Time saved per iteration in the replay.
        error: Maximum error of the share, or None if unknown.
        is_period: Whether the length is the measured time from one iteration to the next.
    """
    share = saving_ns / length_ns if length_ns else 0.0
    gpu_hours = f"{24 * len(report.ranks) * share:,.1f} GPU-hours per day saved"
    saved = saved_share(*what, share, error)
    if is_period:
        left = in_ms(round(length_ns - saving_ns))
        before = in_ms(round(length_ns))
        return f"{saved}: {left} from one iteration to the next instead of {before}, {gpu_hours}"
    at_least = "at least " if at_most(*what) else ""
    left_ns = _measure_remaining(report, length_ns - saving_ns, share)
    return f"{saved}: iterations of {at_least}{in_ms(round(left_ns))}, {gpu_hours}"


def _measure_remaining(report: Report, replayed_ns: float, share: float) -> float:
    """Return the length of iterations after a saving, which is at most the measured length.

    The replay also contains collectives outside the window of ``step``, so it may take longer than
    the measured iterations. The share is then applied to the measured length.

    Args:
        report: Report of the run.
        replayed_ns: Length of an iteration in the replay, after the saving.
        share: Share of the replayed length that is saved.
    """
    windows = report.summary.window_ns
    means = [windows[name].mean for name in ("step", "period") if name in windows]
    measured_ns = max((mean for mean in means if mean is not None), default=None)
    if measured_ns is None or replayed_ns <= measured_ns:
        return replayed_ns
    return measured_ns * (1 - share)
