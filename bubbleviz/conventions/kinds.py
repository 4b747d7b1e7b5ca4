"""Classification of kernels, threads, launching calls and collectives by name (``kinds.toml``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from bubbleviz.conventions import toml_files
from bubbleviz.model.columns import NONE, Bools
from bubbleviz.model.texts import truncate_for_matching

#: Qualifiers and return type before the name of a kernel.
_RETURN_TYPE = re.compile(r"^(?:static |void |int )+")
#: Generic names, such as ``kernel``; only the template arguments describe these kernels.
_GENERIC_NAME = re.compile(r"^$|(^|_|:)kernel_?\d*$", re.IGNORECASE)
#: Start of the template or function arguments of a kernel.
_ARGUMENTS = re.compile(r"[<(]")
#: Wrappers that get the real function as a template argument (CUTLASS, CK, CUB, Thrust, rocPRIM).
_WRAPPER = re.compile(
    r"(?:^|::)(?:Kernel2?|device_kernel|kentry\d*|trampoline_kernel|_kernel_agent|static_kernel)$"
)
#: The anonymous namespace, as spelled by compilers and Nsight Systems.
_ANONYMOUS = re.compile(r"(?:\(anonymous namespace\)|<unnamed>)::")
#: Start of the names of NCCL's kernels.
_NCCL = re.compile(r"^(?:void )?nccl")


@dataclass(frozen=True)
class Kinds:
    """Lists of regexes, searched anywhere in a name and ignoring case.

    Attributes:
        communication: Communication kernels; matched against demangled names.
        candidates: Kernels that look like communication; matched against names without arguments.
        compute: Kernels that compute, even if they look like communication.
        receives: Communication kernels that wait for the data of one peer.
        point_to_point: Communication kernels that send data from one rank to another.
        collective_kinds: Pairs of NCCL's name of a collective and the regex of its kernels.
        helper_threads: Threads that never launch backward passes.
        added_communication: The regexes of ``communication`` that the user added.
    """

    communication: tuple[str, ...]
    candidates: tuple[str, ...]
    compute: tuple[str, ...]
    receives: tuple[str, ...]
    point_to_point: tuple[str, ...]
    collective_kinds: tuple[tuple[str, str], ...]
    helper_threads: tuple[str, ...]
    added_communication: tuple[str, ...] = ()

    def add_regexes(self, communication: Sequence[str], helper_threads: Sequence[str]) -> Kinds:
        """Return a copy with a user's regexes appended."""
        return replace(
            self,
            communication=(*self.communication, *communication),
            helper_threads=(*self.helper_threads, *helper_threads),
            added_communication=(*self.added_communication, *communication),
        )


@cache
def default_kinds() -> Kinds:
    """Return the built-in lists."""
    lists = {kind: tuple(names) for kind, names in _load_kinds().items() if isinstance(names, list)}
    return Kinds(**lists, collective_kinds=tuple(_load_kinds()["collective_kinds"].items()))


@cache
def _load_kinds() -> Mapping[str, Any]:
    return toml_files.load(toml_files.read_built_in("kinds.toml"))


def match_any(names: Sequence[str], regexes: Sequence[str]) -> Bools:
    """Return a mask of the names in which any of the regexes is found.

    Long names are truncated, see :func:`~bubbleviz.model.texts.truncate_for_matching`.
    """
    any_of = combine_regexes(regexes)
    return np.array([_is_found(any_of, truncate_for_matching(name)) for name in names], bool)


@lru_cache(maxsize=1 << 15)
def _is_found(regex: re.Pattern[str], text: str) -> bool:
    """Return whether a regex is found in a text. Cached: an analysis repeats this for each name."""
    return regex.search(text) is not None


def combine_regexes(regexes: Sequence[str]) -> re.Pattern[str]:
    """Combine regexes by alternation, ignoring case. Without any, the result never matches."""
    return re.compile("|".join(f"(?:{r})" for r in regexes) or r"(?!)", re.IGNORECASE)


def classify_collective(name: str, kinds: Sequence[tuple[str, str]]) -> int:
    """Return the index of the first kind whose regex is found in a kernel name, or -1 if none is.

    Args:
        name: Name of a kernel.
        kinds: Pairs of NCCL's name and regex, as in :attr:`Kinds.collective_kinds`.
    """
    match = _combine_kinds(tuple(kinds)).search(truncate_for_matching(name))
    return NONE if match is None else int((match.lastgroup or "").removeprefix("k"))


@cache
def _combine_kinds(kinds: tuple[tuple[str, str], ...]) -> re.Pattern[str]:
    """Combine the regexes into one with a group ``k<index>`` per kind, which compiles faster."""
    groups = (f"(?P<k{number}>{regex})" for number, (_, regex) in enumerate(kinds))
    return re.compile("|".join(groups) or r"(?!)", re.IGNORECASE)


def classify_kernels(names: Sequence[str], kinds: Kinds) -> tuple[str, ...]:
    """Return the class of each kernel: "communication", a class of ``kernel_classes``, or "other".

    The first class that matches the name without its arguments wins. If none matches, the complete
    name decides. Kernels that match ``kinds.communication`` are always communication.
    """
    classes = np.full(len(names), "other", object)
    is_classed = np.zeros(len(names), bool)
    # Names with template arguments are long, so they are only searched if needed.
    for part_of in (_select_deciding_part, str):
        for kernel_class, regex in _load_kinds()["kernel_classes"].items():
            rows = np.flatnonzero(~is_classed)
            rows = rows[match_any([part_of(names[row]) for row in rows.tolist()], [regex])]
            classes[rows] = kernel_class
            is_classed[rows] = True
    classes[match_any(names, kinds.communication)] = "communication"
    return tuple(classes.tolist())


def is_nccl(kernel: str) -> bool:
    """Return whether a kernel belongs to NCCL."""
    return _NCCL.search(kernel) is not None


def trim_signature(name: str) -> str:
    """Return the name of a kernel without its return type, arguments and anonymous namespaces."""
    plain = _ANONYMOUS.sub("", _RETURN_TYPE.sub("", truncate_for_matching(name)))
    return _ARGUMENTS.split(plain, maxsplit=1)[0]


def _select_deciding_part(name: str) -> str:
    """Return the part of a kernel name that decides its class.

    This is the name without arguments, or all of it for generic wrappers, whose template arguments
    name the wrapped function.
    """
    plain = trim_signature(name)
    return name if _WRAPPER.search(plain) else plain


def mask_unknown_kernels(names: Sequence[str], kinds: Kinds) -> Bools:
    """Return a mask of the kernels that match neither the communication nor the compute list."""
    plain_names = [trim_signature(name) for name in names]
    texts = [
        name if _GENERIC_NAME.search(plain_name) else plain_name
        for name, plain_name in zip(names, plain_names, strict=True)
    ]
    is_known = match_any(names, kinds.communication) | match_any(texts, kinds.compute)
    return np.asarray(~is_known, bool)


def mask_communication_candidates(names: Sequence[str], kinds: Kinds) -> Bools:
    """Return a mask of the kernels that look like communication but are not listed as such.

    Args:
        names: Demangled kernel names.
        kinds: The lists.
    """
    plain_names = [trim_signature(name) for name in names]
    is_communication = match_any(names, kinds.communication)
    return np.asarray(match_any(plain_names, kinds.candidates) & ~is_communication, bool)


# Prefixes of the names of CUDA and HIP API calls that start work on a device.

#: Calls that launch a single kernel.
KERNEL_LAUNCHES = tuple(
    f"{api}Launch{what}"
    for api in ("cuda", "cu", "hip", "hipModule", "hipExt", "hipExtModule", "hipHccModule")
    for what in ("Kernel", "CooperativeKernel")
)
#: Calls that launch a graph.
GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")
#: Calls that copy memory.
COPIES = ("cudaMemcpy", "cuMemcpy", "hipMemcpy")
#: Calls that fill memory.
MEMSETS = ("cudaMemset", "cuMemset", "hipMemset")
#: All calls that start work on a device.
WORK_CALLS = (*KERNEL_LAUNCHES, *GRAPH_LAUNCHES, *COPIES, *MEMSETS)


# Names of operations in PyTorch, in ranges, and in NCCL.

#: Affixes of PyTorch's operation names that describe how the operation was called
#: (ProcessGroupNCCL.cpp).
_CALL_AFFIXES = re.compile(r"^_|_(?:base|coalesced|oop|sparse|into_tensor|tensor|barrier)(?=_|$)")
#: A range around the launch of one operation, by PyTorch (``nccl:send 0->1``) or by NCCL. NCCL's
#: ranges are only needed for operations whose kernels are named after sends and receives.
_LAUNCH_RANGE = re.compile(
    r"nccl:(?P<pytorch>\w+)(?: .*)?|nccl(?P<own>All[Tt]oAllv?|Gather|Scatter)"
)
#: GLOBs that match at least the names that ``_LAUNCH_RANGE`` matches.
OPERATION_GLOBS = ("nccl:*", "ncclAll[Tt]oAll*", "ncclGather*", "ncclScatter*")
_NCCL_SPELLING = {"AllToAll": "AlltoAll", "AllToAllv": "AlltoAllv"}


def get_nccl_operation(name: str) -> str:
    """Return NCCL's name of an operation of PyTorch or NCCL, or "" if unknown.

    Affixes that describe the call, such as ``_base`` or ``_coalesced``, are ignored in PyTorch's
    names.
    """
    names = _load_kinds()["operations"]
    return name if name in names.values() else names.get(_CALL_AFFIXES.sub("", name), "")


def parse_launch_range(name: str) -> str:
    """Return NCCL's name of the operation that a launch range names, or "" if it names none.

    The range is PyTorch's (``nccl:send 0->1``) or NCCL's own (``ncclAlltoAll``).
    """
    match = _LAUNCH_RANGE.fullmatch(name)
    if match is None:
        return ""
    nccl_name = match["own"]
    return (
        get_nccl_operation(match["pytorch"])
        if nccl_name is None
        else _NCCL_SPELLING.get(nccl_name, nccl_name)
    )
