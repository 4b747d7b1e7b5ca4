"""Layout: the bytes of a recording; ``bubbleviz guide record`` describes them one by one.

A file is a header of two records, then blocks, one an iteration. All records have 40 bytes, and all
numbers are little-endian::

    HEADER │ TEXT TEXT … OPERATION OPERATION … CLOCK END │ OPERATION … CLOCK END │ …
           └─ a block, written at once ─────────────────┘
"""

from __future__ import annotations

from struct import Struct

#: The first bytes of a file; the line ends show when it was copied as a text.
MAGIC = b"bvrec\r\n\x1a"
VERSION = 1
#: Ending of the files.
SUFFIX = ".bvrec"
#: Length of every record; the header is two.
RECORD_BYTES = 40

#: Magic, version, record bytes, rank, world size, process, part, device, three spare bytes, every,
#: iterations; session, UTC, monotonic and half width in nanoseconds; CRC-32 of all before, spare.
HEADER = Struct("<8sHHiiIIBxxxIIqqqqII")
#: Bytes of the header that its CRC covers.
HEADER_CHECKED = HEADER.size - 8

#: Kind, what it is of, bytes that are used, number, 32 bytes of UTF-8.
TEXT = Struct("<BBHI32s")
#: Kind, flags, thread, number of the name; start and end on the host, then on the device.
OPERATION = Struct("<BBHIqqqq")
#: Kind, three spare bytes, half width; monotonic, UTC, host's clock less the device's, spare.
CLOCK = Struct("<BxxxIqqqq")
#: Kind, flags, two spare bytes, CRC-32; number, start, end; records of the block, operations lost.
END = Struct("<BBxxIqqqII")
#: Where the CRC of an END stands; it covers the block, but for these bytes.
END_CRC = slice(4, 8)

KIND_TEXT, KIND_OPERATION, KIND_CLOCK, KIND_END = b"TOCE"

#: What a TEXT is of: the host, the device, the run's name, or the name of a range.
TEXT_HOST, TEXT_DEVICE, TEXT_RUN, TEXT_NAME = range(4)
#: Bytes of a text that one record holds.
TEXT_BYTES = 32
#: A text is cut to so many bytes.
LONGEST_TEXT = 1024

#: Devices: none, so that times are those of the host; or a GPU of CUDA or ROCm.
DEVICE_HOST, DEVICE_GPU = range(2)

#: Flags of an OPERATION: it only started transfers, which go on; its times on the device are lost.
LAUNCHES, TIMES_LOST = 1, 2
#: Flags of an END: a range named the iteration; iterations before it were left out on purpose.
NAMED, AFTER_PAUSE = 1, 2

#: "None" in a column of times or numbers.
NONE = -1
