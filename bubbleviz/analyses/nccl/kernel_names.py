"""Kernel names: the operation, algorithm and protocol that a kernel of NCCL is named after."""

from __future__ import annotations

import re

from bubbleviz.conventions.kinds import is_nccl, plain_name

_FAMILY = re.compile(r"nccl(?:(?!nccl)\w)*?Kernel_?([A-Z][A-Za-z]*)")
#: Operations that kernels named SendRecv carry out.
_PASSING = frozenset(("Send", "Recv", "SendRecv", "AlltoAll", "AllToAll", "Gather", "Scatter"))
_ALGORITHM = re.compile(r"_(TREE|RING|COLLNET_DIRECT|COLLNET_CHAIN|NVLS_TREE|NVLS|PAT)(?=_|\(|$)")
_PROTOCOL = re.compile(r"_(LL128|LL|SIMPLE)(?=_|\(|$)")


def family_of(name: str) -> str:
    """Return the family of an operation's kernels; sends, receives and the like share one."""
    name = {"Bcast": "Broadcast"}.get(name, name)
    return "SendRecv" if name in _PASSING else name


def parse_kernel_name(kernel: str) -> tuple[str, str, str]:
    """Return operation, algorithm and protocol from a kernel's name; "" unknown.

    The operation of a kernel that is none of NCCL's is its plain name.
    """
    if not is_nccl(kernel):
        return plain_name(kernel), "", ""
    family = _FAMILY.search(kernel)
    algorithm, protocol = _ALGORITHM.search(kernel), _PROTOCOL.search(kernel)
    operation = family[1] if family else ""
    return (
        "" if operation == "Generic" else operation,
        algorithm[1] if algorithm else "",
        protocol[1] if protocol else "",
    )


def kernel_family(kernel: str) -> str:
    """Return the family of a kernel, as :func:`family_of` has it; "" unknown."""
    return family_of(parse_kernel_name(kernel)[0])
