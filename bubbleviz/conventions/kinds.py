"""Kinds of kernels and threads (``kinds.toml``), of launching calls and collectives, by name."""

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

#: What stands before the name of a kernel, and where its arguments begin.
_RETURN_TYPE = re.compile(r"^(?:static |void |int )+")
#: Names that say nothing: of kernels whose template's arguments are what they do.
_GENERIC_NAME = re.compile(r"^$|(^|_|:)kernel_?\d*$", re.IGNORECASE)
_ARGUMENTS = re.compile(r"[<(]")
#: Wrappers around the function in their template arguments (CUTLASS, CK, CUB, Thrust, rocPRIM).
_WRAPPER = re.compile(
    r"(?:^|::)(?:Kernel2?|device_kernel|kentry\d*|trampoline_kernel|_kernel_agent|static_kernel)$"
)
#: The anonymous namespace, as compilers and Nsight Systems write it.
_ANONYMOUS = re.compile(r"(?:\(anonymous namespace\)|<unnamed>)::")
#: How names of NCCL's kernels begin.
_NCCL = re.compile(r"^(?:void )?nccl")


@dataclass(frozen=True)
class Kinds:
    """Regexes, tried anywhere in a name and in any case.

    Attributes:
        communication: of communication kernels, on the demangled name.
        candidates: of kernels that look like communication, on the name without its arguments.
        compute: of kernels that compute, however they run.
        receives: of those among them that wait for one peer's data.
        point_to_point: of those among them that pass data from one rank to another.
        collective_kinds: NCCL's name of what others of them do, and the regex that finds it.
        helper_threads: of threads that never run backward.
        added_communication: those of ``communication`` that a user added.
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
        """Return the lists with a user's additions."""
        return replace(
            self,
            communication=(*self.communication, *communication),
            helper_threads=(*self.helper_threads, *helper_threads),
            added_communication=(*self.added_communication, *communication),
        )


@cache
def default_kinds() -> Kinds:
    """Return the lists that come with bubbleviz."""
    lists = {kind: tuple(names) for kind, names in _load_kinds().items() if isinstance(names, list)}
    return Kinds(**lists, collective_kinds=tuple(_load_kinds()["collective_kinds"].items()))


@cache
def _load_kinds() -> Mapping[str, Any]:
    return toml_files.load(toml_files.read_built_in("kinds.toml"))


def match_any(names: Sequence[str], regexes: Sequence[str]) -> Bools:
    """Return for each name whether any of the regexes is found in its matched part."""
    any_of = combine_regexes(regexes)
    return np.array([_is_found(any_of, truncate_for_matching(name)) for name in names], bool)


@lru_cache(maxsize=1 << 15)
def _is_found(regex: re.Pattern[str], text: str) -> bool:
    """Return whether a regex is found in a text; an analysis asks several times for each name."""
    return regex.search(text) is not None


def combine_regexes(regexes: Sequence[str]) -> re.Pattern[str]:
    """Return a regex in any case that is found where any of some is."""
    return re.compile("|".join(f"(?:{r})" for r in regexes) or r"(?!)", re.IGNORECASE)


def classify_collective(name: str, kinds: Sequence[tuple[str, str]]) -> int:
    """Return the number of the kind of collective that a kernel's name stands for; -1 none."""
    match = _combine_kinds(tuple(kinds)).search(truncate_for_matching(name))
    return NONE if match is None else int((match.lastgroup or "").removeprefix("k"))


@cache
def _combine_kinds(kinds: tuple[tuple[str, str], ...]) -> re.Pattern[str]:
    """Return an expression whose groups are the kinds': one is compiled faster than several."""
    groups = (f"(?P<k{number}>{regex})" for number, (_, regex) in enumerate(kinds))
    return re.compile("|".join(groups) or r"(?!)", re.IGNORECASE)


def classify_kernels(names: Sequence[str], kinds: Kinds) -> tuple[str, ...]:
    """Return what kernels of each name do: communication, or a class of compute; else "other"."""
    classes = np.full(len(names), "other", object)
    is_classed = np.zeros(len(names), bool)
    # Template arguments tell what the deciding part leaves open, and are long.
    for part_of in (_select_deciding_part, str):
        for kernel_class, regex in _load_kinds()["kernel_classes"].items():
            rows = np.flatnonzero(~is_classed)
            rows = rows[match_any([part_of(names[row]) for row in rows.tolist()], [regex])]
            classes[rows] = kernel_class
            is_classed[rows] = True
    classes[match_any(names, kinds.communication)] = "communication"
    return tuple(classes.tolist())


def is_nccl(kernel: str) -> bool:
    """Whether a kernel is one of NCCL's."""
    return _NCCL.search(kernel) is not None


def trim_signature(name: str) -> str:
    """Return the name of a kernel without what it returns and takes."""
    plain = _ANONYMOUS.sub("", _RETURN_TYPE.sub("", truncate_for_matching(name)))
    return _ARGUMENTS.split(plain, maxsplit=1)[0]


def _select_deciding_part(name: str) -> str:
    """Return the part of a kernel's name that tells its class: all of it for a generic wrapper."""
    plain = trim_signature(name)
    return name if _WRAPPER.search(plain) else plain


def mask_unknown_kernels(names: Sequence[str], kinds: Kinds) -> Bools:
    """Tell which kernels' names are in neither list: of communication, and of compute."""
    plain_names = [trim_signature(name) for name in names]
    texts = [
        whole if _GENERIC_NAME.search(name) else name
        for whole, name in zip(names, plain_names, strict=True)
    ]
    is_known = match_any(names, kinds.communication) | match_any(texts, kinds.compute)
    return np.asarray(~is_known, bool)


def mask_communication_candidates(names: Sequence[str], kinds: Kinds) -> Bools:
    """Tell which names are no communication by the lists, and look like it.

    Args:
        names: of kernels, demangled.
        kinds: the lists.
    """
    plain_names = [trim_signature(name) for name in names]
    is_communication = match_any(names, kinds.communication)
    return np.asarray(match_any(plain_names, kinds.candidates) & ~is_communication, bool)


# How the names begin of CUDA and HIP API calls that have work on a device.

#: Calls that make one kernel each.
KERNEL_LAUNCHES = tuple(
    f"{api}Launch{what}"
    for api in ("cuda", "cu", "hip", "hipModule", "hipExt", "hipExtModule", "hipHccModule")
    for what in ("Kernel", "CooperativeKernel")
)
#: Calls that launch all the work of a graph.
GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")
#: Calls that copies come from.
COPIES = ("cudaMemcpy", "cuMemcpy", "hipMemcpy")
#: Calls that memsets come from.
MEMSETS = ("cudaMemset", "cuMemset", "hipMemset")
#: All of these: calls whose work may not be recorded.
WORK_CALLS = (*KERNEL_LAUNCHES, *GRAPH_LAUNCHES, *COPIES, *MEMSETS)


# NCCL's names of what PyTorch and ranges call operations.

#: What PyTorch adds to an operation's name for the way it was called (ProcessGroupNCCL.cpp).
_CALL_AFFIXES = re.compile(r"^_|_(?:base|coalesced|oop|sparse|into_tensor|tensor|barrier)(?=_|$)")
#: Ranges around the launch of one operation: PyTorch's, ``nccl:send 0->1``, and NCCL's own of those
#: operations whose kernels are named after sends and receives.
_LAUNCH_RANGE = re.compile(
    r"nccl:(?P<pytorch>\w+)(?: .*)?|nccl(?P<own>All[Tt]oAllv?|Gather|Scatter)"
)
#: What is tried first on the names of ranges.
OPERATION_GLOBS = ("nccl:*", "ncclAll[Tt]oAll*", "ncclGather*", "ncclScatter*")
_NCCL_SPELLING = {"AllToAll": "AlltoAll", "AllToAllv": "AlltoAllv"}


def get_nccl_operation(name: str) -> str:
    """Return NCCL's name of an operation of PyTorch, or of itself; "" where it has none."""
    names = _load_kinds()["operations"]
    return name if name in names.values() else names.get(_CALL_AFFIXES.sub("", name), "")


def parse_launch_range(name: str) -> str:
    """Return the operation that a range around a launch names; "" where it names none."""
    match = _LAUNCH_RANGE.fullmatch(name)
    if match is None:
        return ""
    nccl_name = match["own"]
    return (
        get_nccl_operation(match["pytorch"])
        if nccl_name is None
        else _NCCL_SPELLING.get(nccl_name, nccl_name)
    )
