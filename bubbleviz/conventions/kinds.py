"""Classifies kernels, threads, API calls and collectives by their names, using ``kinds.toml``."""

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

#: Matches the qualifiers and the return type that precede a kernel name.
_RETURN_TYPE = re.compile(r"^(?:static |void |int )+")
#: Matches generic names, such as ``kernel``, whose template arguments describe the kernel.
_GENERIC_NAME = re.compile(r"^$|(^|_|:)kernel_?\d*$", re.IGNORECASE)
#: Matches the start of the template or function arguments of a kernel.
_ARGUMENTS = re.compile(r"[<(]")
#: Matches wrapper kernels of CUTLASS, CK, CUB and others.
#: A template argument of a wrapper kernel is the function that does the work.
_WRAPPER = re.compile(
    r"(?:^|::)(?:Kernel2?|device_kernel|kentry\d*|trampoline_kernel|_kernel_agent|static_kernel)$"
)
#: Matches the anonymous namespace, as spelled by compilers and Nsight Systems.
_ANONYMOUS = re.compile(r"(?:\(anonymous namespace\)|<unnamed>)::")
#: Matches one level of a namespace, and a word in the arguments of a kernel.
_NAMESPACE, _WORD = re.compile(r"\b[A-Za-z_]\w*::"), re.compile(r"\w+")
#: Matches the start of HCCL's operation names, such as ``hcom_allReduce_``.
_HCCL = re.compile(r"^hcom_([A-Za-z]+)")


@dataclass(frozen=True)
class Kinds:
    """Lists of regexes for kernel and thread names, searched for anywhere in a name, ignoring case.

    Attributes:
        communication: Regexes for communication kernels, matched against demangled names.
        candidates: Regexes for kernels whose names look like communication, matched against names
            without arguments.
        compute: Regexes for compute kernels, including kernels whose names look like communication.
        receives: Regexes for communication kernels that wait for data from one peer.
        point_to_point: Regexes for communication kernels that send data from one rank to another.
        collective_kinds: Pairs (NCCL's name of a collective, regex for its kernels).
        helper_threads: Regexes for threads that never launch backward passes.
        added_communication: The regexes in ``communication`` that the user added.
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
        """Return a copy in which the user's regexes are appended to the lists."""
        return replace(
            self,
            communication=(*self.communication, *communication),
            helper_threads=(*self.helper_threads, *helper_threads),
            added_communication=(*self.added_communication, *communication),
        )


@cache
def default_kinds() -> Kinds:
    """Return the regex lists from ``kinds.toml``."""
    data = _load_kinds()
    lists = {kind: tuple(names) for kind, names in data.items() if isinstance(names, list)}
    lists["communication"] = (data["nccl"], *lists["communication"])
    return Kinds(**lists, collective_kinds=tuple(data["collective_kinds"].items()))


@cache
def _load_kinds() -> Mapping[str, Any]:
    return toml_files.load(toml_files.read_built_in("kinds.toml"))


def match_any(names: Sequence[str], regexes: Sequence[str]) -> Bools:
    """Return a mask of the names in which at least one of the regexes is found, ignoring case.

    Long names are truncated first; see :func:`~bubbleviz.model.texts.truncate_for_matching`.
    """
    any_of = combine_regexes(regexes)
    return np.array([_is_found(any_of, truncate_for_matching(name)) for name in names], bool)


@lru_cache(maxsize=1 << 15)
def _is_found(regex: re.Pattern[str], text: str) -> bool:
    """Return whether a regex is found in a text. Caching helps because analyses repeat names."""
    return regex.search(text) is not None


def combine_regexes(regexes: Sequence[str]) -> re.Pattern[str]:
    """Combine regexes into one case-insensitive regex. If there are none, it never matches."""
    return re.compile("|".join(f"(?:{r})" for r in regexes) or r"(?!)", re.IGNORECASE)


def classify_collective(name: str, kinds: Sequence[tuple[str, str]]) -> int:
    """Return the index in ``kinds`` of the collective that a kernel name describes, or -1.

    The leftmost match in the name decides. If several regexes match at that position, the first one
    wins.

    Args:
        name: Name of a kernel.
        kinds: Pairs of a collective's name and its regex, as in :attr:`Kinds.collective_kinds`.
    """
    match = _combine_kinds(tuple(kinds)).search(truncate_for_matching(name))
    return NONE if match is None else int((match.lastgroup or "").removeprefix("k"))


@cache
def _combine_kinds(kinds: tuple[tuple[str, str], ...]) -> re.Pattern[str]:
    """Combine the regexes into one regex with a group ``k<index>`` per kind.

    Compiling one regex is faster than compiling one per kind.
    """
    groups = (f"(?P<k{number}>{regex})" for number, (_, regex) in enumerate(kinds))
    return re.compile("|".join(groups) or r"(?!)", re.IGNORECASE)


def classify_kernels(names: Sequence[str], kinds: Kinds) -> tuple[str, ...]:
    """Return the class of each kernel: "communication", a class of ``kernel_classes``, or "other".

    The first rule that applies decides:

    - A kernel that matches ``kinds.communication`` is in the class "communication".
    - The first class in ``kernel_classes`` (``kinds.toml``) whose regex matches the name without
      arguments. For wrapper kernels, whose arguments name the real function, the complete name is
      matched.
    - The first class whose regex matches the complete name.
    - Otherwise, the class is "other".

    Args:
        names: Demangled kernel names.
        kinds: The lists of regexes.

    Returns:
        One class per name.
    """
    classes = np.full(len(names), "other", object)
    is_classed = np.zeros(len(names), bool)
    # Names with template arguments are long, so they are searched only if needed.
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
    return _compile_nccl().search(truncate_for_matching(kernel)) is not None


@cache
def _compile_nccl() -> re.Pattern[str]:
    return re.compile(_load_kinds()["nccl"])


def is_hccl(kernel: str) -> bool:
    """Return whether a kernel is a communication operation of HCCL, Ascend's library."""
    return _HCCL.match(kernel) is not None


def trim_signature(name: str) -> str:
    """Return a kernel name without its return type, arguments and anonymous namespaces.

    Everything from the first ``<`` or ``(`` is dropped. Long names are truncated first.
    """
    return _ARGUMENTS.split(drop_qualifiers(name), maxsplit=1)[0]


def drop_qualifiers(name: str) -> str:
    """Return a kernel name without its return type and anonymous namespaces.

    Long names are truncated first.
    """
    return _ANONYMOUS.sub("", _RETURN_TYPE.sub("", truncate_for_matching(name)))


def list_short_names(names: Sequence[str]) -> list[str]:
    """Return short names of kernels, which differ if the kernels' names differ.

    A short name has no return type and no arguments. If several names would then be equal, each
    gets the words of its arguments that the other names do not all contain::

        void at::fill_kernel<float>(float*)                     at::fill_kernel
        void at::add_kernel<4, at::native::Add<float> >(int)    at::add_kernel<Add>
        void at::add_kernel<4, at::native::Mul<float> >(int)    at::add_kernel<Mul>

    If even these names are equal, the names keep their arguments.
    """
    full_names = {name: drop_qualifiers(name) for name in names}
    groups: dict[str, list[str]] = {}
    for name in full_names:
        groups.setdefault(trim_signature(name), []).append(name)
    short_names: dict[str, str] = {}
    for plain, group in groups.items():
        words = _list_differing_words([full_names[name][len(plain) :] for name in group])
        labels = [f"{plain}<{text}>" if text else plain for text in words]
        is_distinct = len(set(labels)) == len(group)
        short_names |= (
            zip(group, labels, strict=True)
            if is_distinct
            else {name: full_names[name] for name in group}
        )
    return [short_names[name] for name in names]


def _list_differing_words(texts: Sequence[str]) -> list[str]:
    """Return, for each text, its words that not all texts contain, in their original order."""
    words = [list(dict.fromkeys(_WORD.findall(_NAMESPACE.sub("", text)))) for text in texts]
    shared = set[str].intersection(*map(set, words))
    return [" ".join(word for word in own if word not in shared) for own in words]


def _select_deciding_part(name: str) -> str:
    """Return the part of a kernel name that determines the kernel's class.

    Usually, this part is the name without arguments. For wrapper kernels, whose template arguments
    name the real function, it is the complete name.
    """
    plain = trim_signature(name)
    return name if _WRAPPER.search(plain) else plain


def mask_unknown_kernels(names: Sequence[str], kinds: Kinds) -> Bools:
    """Return a mask of the kernels that match neither the communication nor the compute list.

    The communication list is matched against the complete name. The compute list is matched against
    the name without arguments, or against the complete name if it is generic, such as ``kernel``.
    """
    plain_names = [trim_signature(name) for name in names]
    texts = [
        name if _GENERIC_NAME.search(plain_name) else plain_name
        for name, plain_name in zip(names, plain_names, strict=True)
    ]
    is_known = match_any(names, kinds.communication) | match_any(texts, kinds.compute)
    return np.asarray(~is_known, bool)


def mask_communication_candidates(names: Sequence[str], kinds: Kinds) -> Bools:
    """Return a mask of the kernels that look like communication but are not listed as such.

    A kernel qualifies if its name without arguments matches ``kinds.candidates`` and its complete
    name does not match ``kinds.communication``.

    Args:
        names: Demangled kernel names.
        kinds: The lists of regexes.
    """
    plain_names = [trim_signature(name) for name in names]
    is_communication = match_any(names, kinds.communication)
    return np.asarray(match_any(plain_names, kinds.candidates) & ~is_communication, bool)


# Name prefixes of the CUDA and HIP API calls that start work on a device.

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


# Names of collectives and transfers in PyTorch, in ranges, and in NCCL.

#: Matches affixes of PyTorch's names in ProcessGroupNCCL.cpp that only indicate how a call was
#: made.
_CALL_AFFIXES = re.compile(r"^_|_(?:base|coalesced|oop|sparse|into_tensor|tensor|barrier)(?=_|$)")
#: Matches a range that PyTorch (``nccl:send 0->1``) or NCCL opens around the launch of an NCCL
#: operation. NCCL's ranges are needed only for operations whose kernels have the names of sends and
#: receives.
_LAUNCH_RANGE = re.compile(
    r"nccl:(?P<pytorch>\w+)(?: .*)?|nccl(?P<own>All[Tt]oAllv?|Gather|Scatter)"
)
#: GLOBs that match at least all names that ``_LAUNCH_RANGE`` matches.
OPERATION_GLOBS = ("nccl:*", "ncclAll[Tt]oAll*", "ncclGather*", "ncclScatter*")
_NCCL_SPELLING = {"AllToAll": "AlltoAll", "AllToAllv": "AlltoAllv"}


def get_nccl_operation(name: str) -> str:
    """Return the NCCL name of an operation, given its NCCL or PyTorch name, or "" if unknown.

    Affixes of PyTorch names that describe the call, such as ``_base`` or ``_coalesced``, are
    ignored.
    """
    names = _load_kinds()["operations"]
    return name if name in names.values() else names.get(_CALL_AFFIXES.sub("", name), "")


def parse_hccl_operation(name: str) -> str:
    """Return the NCCL name of an operation of HCCL, or "" if it is unknown.

    Args:
        name: Name of the operation, such as ``hcom_allReduce_``.
    """
    match = _HCCL.match(name)
    return _load_kinds()["hccl_operations"].get(match[1], "") if match else ""


def parse_launch_range(name: str) -> str:
    """Return the NCCL name of the operation that a launch range launches, or "" if unknown.

    Args:
        name: Name of a range opened by PyTorch (``nccl:send 0->1``) or NCCL (``ncclAlltoAll``).
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
