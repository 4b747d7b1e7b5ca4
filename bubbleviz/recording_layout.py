"""File layout of recordings, shared by the code that writes them and the code that reads them.

A recording is a JSON Lines file: a header, followed by one line per iteration. ``bubbleviz guide
record`` describes both kinds of lines and shows an example.

Training processes import this module, so it does not import anything itself.
"""

from __future__ import annotations

#: Name and version of the file format, which are the first value in a recording's header.
SCHEMA = "bubbleviz.recording/1"
#: File name suffix of recordings.
SUFFIX = ".bvrec"
#: Text that precedes the checksum of a line. The checksum is the last value of a line.
CRC_KEY = ',"crc":'
#: Maximum length of a string in bytes of UTF-8. Longer strings are truncated.
LONGEST_TEXT = 1024
#: Placeholder for a missing time or number.
NONE = -1
