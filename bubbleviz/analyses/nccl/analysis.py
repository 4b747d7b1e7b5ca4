"""The analysis of communication: reads event files and profiles, and returns a report."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bubbleviz.align.profile_clocks import build_session_clocks, find_machines
from bubbleviz.analyses.nccl import hangs, members
from bubbleviz.analyses.nccl.alignment import align_events
from bubbleviz.analyses.nccl.communications import (
    Alignment,
    Communications,
    Communicator,
    RecordingClock,
    Split,
    Timing,
    format_communicator,
)
from bubbleviz.analyses.nccl.inputs import find_inputs
from bubbleviz.analyses.nccl.inspector_notes import list_inspector_limitations
from bubbleviz.analyses.nccl.kernels import Kernels, pool_kernels
from bubbleviz.analyses.nccl.late_devices import measure_late_devices
from bubbleviz.analyses.nccl.profiles import NcclProfile, number_gpus, read_profile
from bubbleviz.conventions.convention_file import collect_kinds, find_conventions
from bubbleviz.errors import NothingToAnalyzeError, UsageError
from bubbleviz.explain.late_arrivals import Lateness
from bubbleviz.interpret.start_skew import describe_skew, find_common_start, find_unclear_waits
from bubbleviz.model import texts
from bubbleviz.model.collectives import format_number_ranges
from bubbleviz.model.columns import NONE, Ints, make_constant
from bubbleviz.model.grouping import find_distinct, find_distinct_rows, group_rows
from bubbleviz.model.limitations import Limitation, LimitationKind, add_up_counts
from bubbleviz.model.numbering import merge_tables
from bubbleviz.model.profile import Source
from bubbleviz.model.restrictions import Restriction
from bubbleviz.model.window import Window
from bubbleviz.progress import Progress, Watch
from bubbleviz.report.late_ranks import describe_lateness
from bubbleviz.report.restrictions import list_restrictions
from bubbleviz.sources.nccl.events import (
    ROOTED_OPERATIONS,
    UNKNOWN,
    EventFile,
    OperationKind,
)
from bubbleviz.sources.nccl.formats import read_events
from bubbleviz.sources.nccl.inspector import INSPECTOR
from bubbleviz.sources.paths import read_each


@dataclass(frozen=True)
class Communication:
    """Communication operations of all ranks.

    Attributes:
        operations: Table of the operations, one row per operation and rank.
        ranks: Number of ranks in each communicator, or None if unknown.
        clocks: Clocks to which ``operations.clock`` refers by index. The first one is the report's
            clock.
        files: For each file, a tuple (path as given, format such as ``nsys``, number of events by
            category). The last element is empty for profiles.
        limitations: What could not be measured, and why.
        faults: Operations at which the run hangs, according to flight recorders.
        window: The analyzed part of the run as the user wrote it, or None for the complete run.
        hosts: Hostnames of all profiles, including profiles that could not be read.
        lateness: Which GPUs arrive last at collectives, or None if unknown.
        gpu_names: Display name of each GPU in the profiles.
        gpu_hosts: Host of each GPU in the profiles.
    """

    operations: Communications
    ranks: tuple[int | None, ...]
    clocks: tuple[RecordingClock, ...]
    files: tuple[tuple[str, str, tuple[tuple[str, int], ...]], ...]
    limitations: tuple[Limitation, ...]
    faults: tuple[hangs.Fault, ...] = ()
    window: str | None = None
    hosts: tuple[str, ...] = ()
    lateness: Lateness | None = None
    gpu_names: tuple[str, ...] = ()
    gpu_hosts: tuple[str, ...] = ()

    @property
    def late_sentence(self) -> str:
        """Description of the GPU for which others usually wait, or "" if there is none."""
        return describe_lateness(self.lateness, self.gpu_names.__getitem__, self.gpu_hosts)

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the files."""
        return tuple(path for path, _, _ in self.files)

    @property
    def paths_of_processes(self) -> tuple[str, ...]:
        """For each file, its path if it is known to belong to a single process, otherwise ""."""
        return tuple(path if kind == INSPECTOR else "" for path, kind, _ in self.files)

    @property
    def restrictions(self) -> tuple[Restriction, ...]:
        """Reasons why operations are missing from the sums, most severe first."""
        kinds = {LimitationKind.FILE_DAMAGED, LimitationKind.OPERATIONS_DROPPED}
        damage = [note for note in self.limitations if note.kind in kinds]
        return list_restrictions(None, damage, ranks_missing=False)

    @property
    def counts(self) -> list[int]:
        """Number of operations per file within the window."""
        source = self.operations.source
        return [int(n) for n in np.bincount(source, minlength=len(self.files))]

    @property
    def communicators(self) -> tuple[tuple[Communicator, int | None], ...]:
        """Number of ranks of each communicator that occurs, or None if unknown."""
        communicators = self.operations.communicators
        used = find_distinct(self.operations.communicator)
        return tuple((communicators[row], self.ranks[row]) for row in used[used != NONE].tolist())


def measure_communication(
    paths: str | Path | Sequence[str | Path],
    *,
    convention: str | Path | Sequence[str | Path] = (),
    window: Window | None = None,
    keep_export: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Communication:
    """Measure the communication operations of all ranks, using NCCL's event files and profiles.

    Args:
        paths: Event files and profiles of one run, directories that contain them, or glob patterns.
            Files are recognized by their content.
        convention: Names of conventions, or paths to TOML files. The communication kernels that
            they list are added to NCCL's kernels.
        window: Part of the run to analyze: iterations, numbered as in the first profile, or times
            on the first profile's clock. None selects the complete run.
        keep_export: Whether to keep the files exported from ``.nsys-rep`` reports, next to the
            reports.
        jobs: Number of threads used to read a profile.
        progress: Callback that receives the progress of reading each file.

    Raises:
        BubblevizError: An input is invalid; see :mod:`bubbleviz.errors`.
    """
    kinds = collect_kinds(find_conventions(convention))
    inputs = [paths] if isinstance(paths, (str, Path)) else paths
    files = find_inputs([str(path) for path in inputs])
    formats = {file.path: events for file, events in files.items()}
    profiles: list[NcclProfile] = []
    iterations = window if window is not None and window.times_ns is None else None

    def read(path: str, watch: Watch) -> EventFile | NcclProfile:
        """Read one file in the format that was recognized."""
        events = formats[path]
        if events:
            return read_events(path, watch, events)
        # Iterations are numbered as in the first profile.
        of_first = None if profiles else iterations
        profiles.append(
            read_profile(path, jobs, watch, kinds=kinds, keep_export=keep_export, window=of_first)
        )
        return profiles[-1]

    contents, unreadable = read_each(list(files), read, progress)
    recorded = [content for content in contents if isinstance(content, EventFile)]
    communication = merge_communication(recorded, profiles)
    communication = replace(
        communication,
        limitations=(*unreadable, *communication.limitations),
        hosts=(
            *(profile.source.host for profile in profiles),
            *(file.host for file in recorded if file.host),
            *(host for note in unreadable for host in note.hosts),
        ),
    )
    if window is None:
        return _add_lateness(communication, profiles)
    extent_ns = window.times_ns or (profiles[0].window_ns if profiles else None)
    if extent_ns is None:
        raise UsageError(
            f"--window {window.text}: NCCL event files contain no iterations; add a profile of the "
            "run, or select by time"
        )
    return _add_lateness(_select_window(communication, window, extent_ns), profiles)


def _add_lateness(communication: Communication, profiles: Sequence[NcclProfile]) -> Communication:
    """Add the GPUs that arrive last at collectives, and the names of all GPUs.

    A GPU is named after its rank in the run if the files contain it, otherwise after its host and
    device. The process is added if names would be equal.
    """
    table = communication.operations
    all_places = [place for profile in profiles for place in profile.kernels.places]
    gpu_of_place = number_gpus(profiles)
    _, first_place = np.unique(gpu_of_place, return_index=True)
    places = [all_places[index] for index in first_place.tolist()]
    names = [f"{host} GPU {gpu}" for _, gpu, host in places]
    if len(set(names)) < len(names):
        names = [f"{host} pid {pid} GPU {gpu}" for pid, gpu, host in places]
    is_known = (table.timing == Timing.KERNEL) & (table.gpu != NONE) & (table.run_rank != NONE)
    pairs = find_distinct_rows(table.gpu, table.run_rank, mask=is_known)
    for gpu, rank in pairs.T.tolist():
        names[gpu] = f"rank {rank} ({places[gpu][2]})"
    lateness = None
    if len(places) > 1:
        lateness = measure_late_devices(table, profiles, gpu_of_place)
    hosts = tuple(host for _, _, host in places)
    return replace(communication, lateness=lateness, gpu_names=tuple(names), gpu_hosts=hosts)


def merge_communication(
    recorded: Sequence[EventFile], profiles: Sequence[NcclProfile]
) -> Communication:
    """Merge communication operations from event files and profiles, and measure who waited.

    Clocks are aligned by kernels and UTC first, and then by the ends of common operations. Each
    operation's duration is then split into waiting and moving data, at the start of the operation's
    last member.

    Raises:
        NothingToAnalyzeError: There are no communication operations.
    """
    sources = [profile.source for profile in profiles]
    profile_clocks, machines = _make_profile_clocks(sources)
    sessions = build_session_clocks(sources, find_machines(sources))
    pool = pool_kernels([profile.kernels for profile in profiles], sessions)
    events, event_clocks, n_ambiguous = align_events(recorded, pool)
    table = collect_operations(recorded, events, profiles, pool)
    gpu_of_place = number_gpus(profiles)
    table = replace(table, gpu=_join_gpus(table.gpu, gpu_of_place))
    pool = replace(pool, gpu_index=gpu_of_place[pool.gpu_index])
    is_dump_file = [*(file.rank != NONE for file in recorded), *(False for _ in profiles)]
    is_dumped = np.array(is_dump_file)[table.source]
    dump_clocks = {*find_distinct(table.clock[is_dumped]).tolist()}
    event_clocks, event_bases = _find_clock_bases(
        event_clocks, table, machines, profiles, dump_clocks, [file.host for file in recorded]
    )
    instance, n_unpaired = _number_instances(table, recorded)
    is_inspector_file = [file.format == INSPECTOR for file in recorded]
    is_inspected = np.isin(table.source, np.flatnonzero(is_inspector_file))
    table = hangs.add_run_ranks(table, is_dumped, is_inspected)
    table = members.align_member_ends(table, instance, is_dumped)
    table, clocks = members.align_clocks_by_ends(
        table, instance, (*profile_clocks, *event_clocks), (*machines, *event_bases)
    )
    table = _split_waiting(table, instance, clocks, pool, recorded)
    table = hangs.add_awaited_times(table, instance)
    files = (
        *((file.path, file.format, file.category_counts) for file in recorded),
        *((profile.source.path, profile.source.format, ()) for profile in profiles),
    )
    faults = hangs.find_faults(table, {file.rank for file in recorded})
    sizes = [*(profile.sizes for profile in profiles), *(file.sizes for file in recorded)]
    communication = Communication(table, _count_ranks(table, sizes), clocks, files, (), faults)
    limitations = _list_limitations(
        recorded, profiles, communication, n_ambiguous, instance, n_unpaired
    )
    return replace(communication, limitations=tuple(limitations))


def _join_gpus(gpu: Ints, gpu_of_place: Ints) -> Ints:
    """Return the GPU of each operation, with one number for all captures of a GPU.

    Args:
        gpu: For each operation, the index of its GPU in the profiles, or -1 if unknown. GPUs that
            only event files contain have larger numbers.
        gpu_of_place: Number of the distinct GPU of each GPU in the profiles.
    """
    n_gpus = int(gpu_of_place.max(initial=NONE)) + 1
    is_profiled = (gpu >= 0) & (gpu < len(gpu_of_place))
    joined = np.where(gpu == NONE, NONE, gpu - len(gpu_of_place) + n_gpus)
    joined[is_profiled] = gpu_of_place[gpu[is_profiled]]
    return joined


def _number_instances(table: Communications, recorded: Sequence[EventFile]) -> tuple[Ints, int]:
    """Group the rows that record the same operation on different ranks.

    If a flight recorder has dropped its oldest entries, sends and receives are counted from the
    last collective of the largest communicator; see :func:`.members.find_epochs`. Sends and
    receives before the first such collective cannot be paired.

    Returns the instance number of each row (-1 if unknown), and the number of unpaired sends and
    receives.
    """
    is_unpaired = members.mask_incomplete(table, [file.format == INSPECTOR for file in recorded])
    if not any(file.rolled_over for file in recorded):
        instance = members.number_instances(table)
    else:
        epoch = members.find_epochs(table)
        is_unpaired |= (epoch == NONE) & (table.peer != NONE)
        instance = members.number_instances(table, epoch)
    return np.where(is_unpaired, NONE, instance), int(is_unpaired.sum())


def _split_waiting(
    table: Communications,
    instance: Ints,
    clocks: Sequence[RecordingClock],
    pool: Kernels,
    recorded: Sequence[EventFile],
) -> Communications:
    """Split the duration of each operation into waiting and moving data.

    The work is done by :func:`.members.split_waiting`. All aligned clocks form one group of
    comparable clocks, and each unaligned clock forms a separate group. Proxy times are known only
    for operations in event files.
    """
    clock_group = [0 if clock.aligned else 1 + index for index, clock in enumerate(clocks)]
    gpu_index, family = (
        np.append(column, NONE)[table.kernel] for column in (pool.gpu_index, pool.family)
    )
    order_instance = members.pair_by_order(table, gpu_index, family)
    peer_wait_ns, transfer_ns = np.zeros((2, len(table)), np.int64)
    has_exact_duration = np.zeros(len(table), bool)
    # Operations from event files come first.
    first = 0
    for file in recorded:
        rows = slice(first, first + len(file.events))
        peer_wait_ns[rows], transfer_ns[rows] = file.events.peer_wait_ns, file.events.transfer_ns
        is_on_gpu = table.timing[rows] == Timing.GPU
        has_exact_duration[rows] = (file.events.duration_ns >= 0) & is_on_gpu
        first = rows.stop
    meeting = np.where(instance == NONE, order_instance + instance.max(initial=0) + 1, instance)
    is_paired = (instance != NONE) | (order_instance != NONE)
    table = replace(table, meeting=np.where(is_paired, meeting, NONE))
    return members.split_waiting(
        count_shared(table),
        instance,
        order_instance,
        clock_group,
        peer_wait_ns,
        transfer_ns,
        has_exact_duration,
    )


def collect_operations(
    recorded: Sequence[EventFile],
    events: Sequence[Communications],
    profiles: Sequence[NcclProfile],
    pool: Kernels,
) -> Communications:
    """Concatenate the operations in event files with the operations that only profiles contain.

    An operation in a profile is left out if an operation in an event file has the same kernel.
    Proxy operations of event files are ignored in this comparison.

    Args:
        recorded: Event files.
        events: Operations in each event file, with zero-based clock numbers.
        profiles: Profiles.
        pool: Kernels of all profiles, on the report's clock.

    Raises:
        NothingToAnalyzeError: There are no operations.
    """
    tables = [replace(table, clock=table.clock + len(profiles)) for table in events]
    matched = [table.kernel[table.kind != OperationKind.PROXY] for table in tables]
    recorded_kernels = np.concatenate([np.empty(0, np.int64), *matched])
    first_kernel, first_gpu = 0, 0
    for clock, profile in enumerate(profiles):
        table = profile.operations
        kernel = first_kernel + table.kernel
        table = replace(
            table,
            source=make_constant(len(recorded) + clock, len(table)),
            clock=make_constant(clock, len(table)),
            kernel=kernel,
            gpu=first_gpu + table.gpu,
            start_ns=pool.start_ns[kernel],
            end_ns=pool.start_ns[kernel] + table.duration_ns,
        )
        tables.append(table.take(~np.isin(kernel, recorded_kernels)))
        first_kernel += len(profile.kernels)
        first_gpu += len(profile.kernels.places)
    if sum(map(len, tables)) == 0:
        raise _make_nothing_error(recorded, profiles)
    return merge_tables(
        tables,
        names=("name", "datatype", "algorithm", "protocol"),
        communicators=("communicator",),
    )


def _make_nothing_error(
    recorded: Sequence[EventFile], profiles: Sequence[NcclProfile]
) -> NothingToAnalyzeError:
    """Return the error for inputs without communication operations."""
    paths = [file.path for file in recorded] + [profile.source.path for profile in profiles]
    clauses = (profile.alternatives for profile in profiles if profile.alternatives)
    alternatives = next((f"; {clause}" for clause in clauses), "")
    return NothingToAnalyzeError(
        f"{paths[0]}: no NCCL operation was recorded. Record events with "
        "NCCL_PROFILE_EVENT_MASK=4095, or a profile with nsys profile -t cuda,nvtx or "
        "rocprofv3 --runtime-trace. For another library, list its kernels under communication in "
        f"a TOML file, and pass the file with --convention{alternatives}"
    )


def count_shared(table: Communications) -> Communications:
    """Fill in ``shared``: the number of operations with the same kernel, clock, start and end.

    If an operation's start or end is unknown, its value is 1.
    """
    shared = np.ones(len(table), np.int64)
    timed = np.flatnonzero((table.start_ns != UNKNOWN) & (table.end_ns != UNKNOWN))
    if len(timed):
        columns = (table.clock, table.kernel, table.start_ns, table.end_ns)
        groups = group_rows(*(column[timed] for column in columns))
        shared[timed] = np.bincount(groups.of_row)[groups.of_row]
    return replace(table, shared=shared)


def _make_profile_clocks(
    sources: Sequence[Source],
) -> tuple[list[RecordingClock], list[int]]:
    """Return the clock of each profile, and the zero-based index of the profile's machine.

    The first profile's machine defines the report's clock. Any other machine is aligned by UTC if
    its first profile and the first profile of the run recorded UTC. Otherwise, it is not aligned.
    """
    machines = find_machines(sources)
    clocks = []
    for source, machine in zip(sources, machines, strict=True):
        first_of_machine = sources[machines.index(machine)]
        if machine == machines[0]:
            aligned_by = Alignment.REFERENCE
        elif None in (first_of_machine.session_utc_ns, sources[0].session_utc_ns):
            aligned_by = Alignment.UNALIGNED
        else:
            aligned_by = Alignment.UTC
        clocks.append(RecordingClock(Path(source.path).name, aligned_by))
    index = {machine: number for number, machine in enumerate(dict.fromkeys(machines))}
    return clocks, [index[machine] for machine in machines]


def _find_clock_bases(
    event_clocks: Sequence[RecordingClock],
    table: Communications,
    machines: Sequence[int],
    profiles: Sequence[NcclProfile],
    dump_clocks: Collection[int],
    hosts: Sequence[str],
) -> tuple[list[RecordingClock], list[int]]:
    """Find out which clocks of event files already agree.

    Clocks that agree get the same number, called their base. A clock's base is:

    - The number of the matching profile's machine, if the clock was aligned by kernels.
    - 0, if there are no profiles and the clock is the first one or the clock of a flight recorder.
      The clock then becomes a reference. Flight recorders can share a base because they record UTC,
      and because their operations are compared by duration. The same holds for clocks of files that
      contain a hostname and durations without times.
    - The base of an earlier clock of the same host, if the files contain the hostname, because
      these files record UTC.
    - An unused number otherwise.

    Args:
        event_clocks: Clocks used in the event files.
        table: Operations. In the column ``clock``, the clocks of profiles have the lowest numbers.
        machines: Machine on which each profile was recorded.
        profiles: The profiles.
        dump_clocks: Clocks of the flight recorders, as indices in the list of all clocks.
        hosts: Hostname in each event file, or "" if the file does not contain it.

    Returns:
        clocks: The clocks, with ``aligned_by`` set for the reference clocks.
        bases: Base of each clock.
    """
    last_kernel = np.cumsum([len(profile.kernels) for profile in profiles])
    unused_base = itertools.count(max(machines, default=0) + 1)
    clocks, bases = list(event_clocks), []
    base_of_host: dict[str, int] = {}
    for index, clock in enumerate(event_clocks):
        rows = np.flatnonzero(table.clock == len(profiles) + index)
        kernels = table.kernel[rows][table.kernel[rows] != NONE]
        host = hosts[table.source[rows[0]]] if len(rows) else ""
        is_untimed = host != "" and bool((table.start_ns[rows] == UNKNOWN).all())
        if len(kernels):
            profile = int(np.searchsorted(last_kernel, kernels[0], side="right"))
            bases.append(machines[profile])
        elif not profiles and (not bases or index in dump_clocks or is_untimed):
            bases.append(0)
        else:
            bases.append(base_of_host[host] if host in base_of_host else next(unused_base))
        if bases[-1] == 0 and not profiles:
            clocks[index] = replace(clock, aligned_by=Alignment.REFERENCE)
        if host and not is_untimed:
            base_of_host.setdefault(host, bases[-1])
    return clocks, bases


def _count_ranks(
    table: Communications, sizes: Sequence[Mapping[Communicator, int]]
) -> tuple[int | None, ...]:
    """Return each communicator's number of ranks, or None if unknown.

    If the number was not recorded, it is the highest rank or peer in the table plus one, or None if
    that is 1.

    Args:
        table: Operations from all files.
        sizes: For each file, the recorded numbers of ranks.
    """
    recorded = {key: ranks for of_file in sizes for key, ranks in of_file.items()}
    n_ranks = np.zeros(len(table.communicators), np.int64)
    has_communicator = table.communicator != NONE
    communicator = table.communicator[has_communicator]
    for column in (table.rank, table.peer):
        np.maximum.at(n_ranks, communicator, column[has_communicator] + 1)
    return tuple(
        recorded.get(communicator) or (ranks if ranks > 1 else None)
        for communicator, ranks in zip(table.communicators, n_ranks.tolist(), strict=True)
    )


#: Maximum number of characters in a list of missing ranks.
_MAX_RANK_TEXT = 60
#: Exclusive upper bound on the size of communicators whose missing ranks are listed.
_MAX_RANKS = 1 << 20
#: Text about the effect of recordings that start at different times. ``{}`` is a duration.
_SKEW = "{} of the waiting time is not that device's fault and should be excluded with --window"


def _list_limitations(
    recorded: Sequence[EventFile],
    profiles: Sequence[NcclProfile],
    communication: Communication,
    n_ambiguous: int,
    instance: Ints,
    n_unpaired: int,
) -> Iterator[Limitation]:
    """Yield limitations, which say what the files do not show about communication, and why.

    Args:
        recorded: Event files.
        profiles: Profiles.
        communication: The measured operations and clocks.
        n_ambiguous: Number of operations that several clock offsets match equally well.
        instance: Instance number of each operation, or -1 if unknown.
        n_unpaired: Number of sends and receives that cannot be paired.
    """
    for file in recorded:
        yield from _list_file_limitations(file)
    yield from list_inspector_limitations(recorded)
    profile_limitations = [note for profile in profiles for note in profile.limitations]
    yield from add_up_counts(profile_limitations, (LimitationKind.PROFILER_WARNING,))
    recorded_devices = [device for profile in profiles for device in profile.recorded]
    start_ns = find_common_start(recorded_devices)
    if start_ns is not None:
        yield describe_skew(recorded_devices, start_ns, _SKEW)
    yield from find_unclear_waits(recorded_devices)
    table = communication.operations
    alignments = [clock.aligned_by for clock in communication.clocks]
    event_clocks = communication.clocks[len(profiles) :] if profiles else ()
    unaligned = [clock.label for clock in event_clocks if not clock.aligned]
    is_unsplit = (table.split == Split.UNKNOWN) & (table.duration_ns >= 0)
    has_communicator = table.communicator != NONE
    is_rooted = np.array([name in ROOTED_OPERATIONS for name in (*table.names, "")])[table.name]
    incomplete = _find_incomplete(communication, instance)
    is_incomparable = is_unsplit & has_communicator & is_rooted & (table.start_ns == UNKNOWN)
    for subject, count, reason in (
        (
            "operations of unknown duration",
            (table.duration_ns < 0).sum(),
            "their end was not recorded; record kernel events (NCCL_PROFILE_EVENT_MASK=4095, or "
            "TORCH_NCCL_ENABLE_TIMING=1 for flight recorders) until the job ends, or add a profile",
        ),
        (
            "operations that match kernels at several clock offsets",
            n_ambiguous,
            "they are too few or too regular for a unique match; record more of the run",
        ),
        (
            "clocks that could not be aligned",
            alignments.count(Alignment.UNALIGNED) if len(alignments) > 1 else 0,
            "their ranks share no kernel or operation with another clock; add profiles of these "
            "ranks",
        ),
        (
            "hosts aligned only by UTC",
            alignments.count(Alignment.UTC),
            "waiting between these hosts is accurate to milliseconds at best",
        ),
        (
            "clocks aligned by the ends of operations",
            alignments.count(Alignment.OPERATIONS),
            "all members of an operation are assumed to end together",
        ),
        (
            "event files that may belong to another run",
            len(unaligned),
            f"{texts.list_first(unaligned, 3)}: no operation matches a kernel in the profiles, so "
            "the totals count both; measure the files and the profiles separately",
        ),
        (
            "operations compared by their durations",
            (table.split == Split.DURATION).sum(),
            "all members of an operation are assumed to end together, so the member with the "
            "shortest duration started last",
        ),
        (
            "operations with a root whose waiting is unknown",
            is_incomparable.sum(),
            "their members end at different times, so durations do not show who started last; "
            "record times with NCCL_INSPECTOR_DUMP_VERBOSE=1",
        ),
        (
            "operations whose waiting is unknown",
            (is_unsplit & has_communicator & ~is_incomparable).sum(),
            "no other member was recorded on an aligned clock, and no proxy thread was recorded; "
            "pass the files of all ranks",
        ),
        (
            "operations whose members are unknown",
            (is_unsplit & ~has_communicator).sum(),
            "no communicators were recorded, so waiting is unknown; add NCCL event files",
        ),
        (
            "sends and receives that cannot be paired",
            n_unpaired,
            "other sends and receives of the same ranks were dropped; set a larger "
            "TORCH_FR_BUFFER_SIZE or NCCL_INSPECTOR_DUMP_P2P_RING_SIZE",
        ),
        (
            "operations paired by their order only",
            (table.split == Split.ORDER).sum(),
            "the profiles contain no communicators, but all GPUs ran the same number of kernels, "
            "so the n-th kernels of all GPUs count as one operation",
        ),
        (
            "operations with missing members",
            len(incomplete),
            f"{_describe_absent_members(communication, incomplete)}a member that was not recorded "
            "may have started last, so the others waited at least as long as reported",
        ),
    ):
        if count:
            yield Limitation(subject, reason, int(count))


def _list_file_limitations(file: EventFile) -> Iterator[Limitation]:
    """Yield limitations about events in a file that are damaged, incomplete or left out."""
    for subject, count, reason in (
        ("damaged events", file.unreadable, "these events are cut off or damaged, and are ignored"),
        (
            "events without an end",
            file.n_without_end,
            "the job or the file ended before these events did",
        ),
        (
            "ends without a start",
            file.n_without_begin,
            "the start was not recorded, so the end is ignored",
        ),
        ("operations recorded twice", file.n_duplicates, "each operation counts once"),
        ("events of unknown categories", file.n_unknown, "these events are ignored"),
        (
            "GPU timestamps far from all others",
            file.n_clock_conflicts,
            "the times on the host are used instead",
        ),
    ):
        if count:
            is_damage = subject == "damaged events" and file.is_damaged
            kind = LimitationKind.FILE_DAMAGED if is_damage else LimitationKind.OTHER
            yield Limitation(subject, f"{file.path}: {reason}", count, kind)


def _find_incomplete(communication: Communication, instance: Ints) -> Ints:
    """Return the rows of collectives that have fewer recorded members than ranks.

    Collectives are left out if the number of ranks of their communicator is unknown.
    """
    table = communication.operations
    is_compared = (table.split == Split.MEMBERS) | (table.split == Split.DURATION)
    rows = np.flatnonzero((instance != NONE) & is_compared & (table.peer < 0))
    sizes = np.array([size or 0 for size in communication.ranks], np.int64)
    operation = group_rows(instance[rows]).of_row
    n_members = np.bincount(operation)[operation]
    return rows[n_members < sizes[table.communicator[rows]]]


def _describe_absent_members(communication: Communication, incomplete: Ints) -> str:
    """Return a clause on the ranks without operations in a communicator, or "" if there are none.

    The clause describes the communicator with the most incomplete operations. On ties, the smallest
    index wins.

    Args:
        communication: The measured operations.
        incomplete: Rows of collectives with missing members.
    """
    table = communication.operations
    if len(incomplete) == 0:
        return ""
    communicator = int(np.bincount(table.communicator[incomplete]).argmax())
    # Damaged files may contain any size.
    size = min(communication.ranks[communicator] or 0, _MAX_RANKS)
    recorded = find_distinct(table.rank[table.communicator == communicator])
    absent = np.setdiff1d(np.arange(size), recorded).tolist()
    if not absent or size == _MAX_RANKS or NONE in recorded:
        return ""
    noun = "rank" if len(absent) == 1 else "ranks"
    label = format_communicator(table.communicators[communicator])
    ranks = texts.to_one_line(format_number_ranges(absent), _MAX_RANK_TEXT)
    return f"no operation of {noun} {ranks} of {size:,} was found in communicator {label}; "


def _select_window(
    communication: Communication, window: Window, extent_ns: tuple[int, int]
) -> Communication:
    """Select the operations that start within a window.

    Args:
        communication: Operations of the complete run, because all members are needed to distinguish
            waiting from moving.
        window: The window as the user gave it.
        extent_ns: Start and end (exclusive) of the window on the report's clock.

    Returns:
        The selected operations. Operations whose start on the report's clock is unknown are left
        out, which the report lists as a limitation.

    Raises:
        NothingToAnalyzeError: No operation starts in the window.
    """
    table = communication.operations
    is_aligned = np.array([clock.aligned for clock in communication.clocks], bool)[table.clock]
    has_start = is_aligned & (table.start_ns != UNKNOWN)
    is_inside = (table.start_ns >= extent_ns[0]) & (table.start_ns < extent_ns[1]) & has_start
    if not is_inside.any():
        raise _make_empty_window_error(window, table.start_ns[has_start])
    limitations = communication.limitations
    n_left_out = int((~has_start).sum())
    if n_left_out:
        reason = "their times are unknown or on an unaligned clock, so the window excludes them"
        limitations += (Limitation("operations outside the window", reason, n_left_out),)
    return replace(
        communication,
        operations=table.take(is_inside),
        limitations=limitations,
        window=window.text,
    )


def _make_empty_window_error(window: Window, start_ns: Ints) -> NothingToAnalyzeError:
    """Return the error for a window without operations, which names the first and last start."""
    first_ns, last_ns = (start_ns.min(), start_ns.max()) if len(start_ns) else (0, 0)
    return NothingToAnalyzeError(
        f"--window {window.text}: no operation starts in this window; operations start between "
        f"{int(first_ns) / 1e9:.6f} s and {int(last_ns) / 1e9:.6f} s on the report's clock"
    )
