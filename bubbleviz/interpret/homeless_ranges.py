"""Ranges that launched nothing and have no rank: their process has several devices, or none.

A process that names a backward, or several forwards, and has no kernel, ran a stage whose GPU work
was not recorded: a profile of it cannot be told from one without the stage, but for these ranges.
One forward may be a helper's, which names what it tries or prepares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from bubbleviz.conventions.kinds import is_nccl
from bubbleviz.conventions.range_names import NameMeanings
from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE, Bools, Codes, Ints
from bubbleviz.model.grouping import distinct, found_in
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED, Phase
from bubbleviz.model.profile import Profile, Ranges, pid_of, process_of
from bubbleviz.model.texts import listed, shell_word
from bubbleviz.sources.readers import OpenFile

#: Processes that a sentence lists; all are counted.
_LISTED = 8


def limitations_of_homeless(
    profile: Profile, named: Ranges, names: NameMeanings, rows: Ints
) -> tuple[Limitation, ...]:
    """Return why ranges have no rank.

    Args:
        profile: with the kernels and copies that make ranks.
        named: its ranges that name operations.
        names: what the names of ranges mean.
        rows: of ``named``, those that have no rank.
    """
    process = process_of(named.thread[rows])
    at_work = found_in(distinct(profile.activities.ranks[:, 0]), process) != NONE
    phase = names.phase[named.name_id[rows]]
    stages = _stages(process[~at_work], phase[~at_work])
    unknown = at_work | (found_in(stages, process) == NONE)
    return (*_without_gpu_work(profile, stages), *_without_device(profile, at_work[unknown]))


def _stages(process: Ints, phase: Codes) -> Ints:
    """Return the processes, ascending, that name a backward or several forwards.

    Args:
        process: of each range.
        phase: of each range.
    """
    counted = among(phase, COUNTED)
    numbers, of_row = np.unique(process[counted], return_inverse=True)
    # A forward counts once, and two are enough; a backward is alone.
    passes = np.where(phase[counted] == Phase.F, 1, 2)
    return numbers[group_sum(of_row.reshape(-1), len(numbers), passes) >= 2]


def _without_gpu_work(profile: Profile, process: Ints) -> Iterator[Limitation]:
    """Yield the limitation of processes that ran forward or backward, and have no kernel."""
    if len(process) == 0:
        return
    pids = listed((str(pid_of(number)) for number in process.tolist()), _LISTED)
    yield Limitation(
        "stages without GPU work",
        f"{profile.source.path}: it holds ranges of forward or backward of "
        f"process{'' if len(process) == 1 else 'es'} {pids}, and no kernel of them, so their "
        f"stages are missing in every number; record {profile.source.api} in all processes of "
        "the run",
        len(process),
        LimitationKind.STAGES_WITHOUT_GPU_WORK,
    )


def _without_device(profile: Profile, at_work: Bools) -> Iterator[Limitation]:
    """Yield the limitations of single ranges, by whether their process has any GPU work."""
    for reason, count in (
        ("their process uses several devices", int(at_work.sum())),
        ("their process has no GPU work", int((~at_work).sum())),
    ):
        if count:
            what = "ranges without GPU work whose device is unknown"
            yield Limitation(what, f"{profile.source.path}: {reason}", count)


# Other commands: what tells something of a profile that an analysis refuses.
#
# A refusal must lead somewhere, and never to a command that refuses the same profile.


#: What names of instructions hold, as XLA writes them.
_INSTRUCTION = "hlo_op="


def work_in(file: OpenFile) -> Profile | None:
    """Return the profile of an open file without its ranges; None where it has no work."""
    try:
        return file.read((), partial=True)
    except ProfileError:
        return None


def other_commands(profile: Profile | None, path: str, names: Iterable[str] = ()) -> str:
    """Return a clause on the commands that need no operations; "" where none has enough.

    Args:
        profile: with its work; None without any.
        path: that it goes by.
        names: of its ranges.
    """
    if profile is None:
        return ""
    activities, file = profile.activities, shell_word(path)
    working = activities.end_ns > activities.start_ns
    if not working.any() or np.bincount(activities.rank[working]).max() < 2:
        # Between the start of the first and the end of the last there is no idle time.
        return ""
    clauses = [f"bubbleviz idle {file} breaks down idle time"]
    used = distinct(activities.name_id[: activities.kernels]).tolist()
    kernels = [activities.names[number] for number in used]
    if any(map(is_nccl, kernels)):
        clauses.append(f"bubbleviz nccl {file} shows what NCCL did")
    if any(_INSTRUCTION in name for name in names):
        clauses.append(f"bubbleviz pgle {file} measures each instruction of XLA")
    *first, last = clauses
    return f"{', '.join(first)}, and {last}" if first else last
