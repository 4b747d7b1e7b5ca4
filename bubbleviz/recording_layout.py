"""Layout of recordings: what their writer and their reader share.

A recording is a file of JSON Lines: a header, then one line per iteration. ``bubbleviz guide
record`` describes both kinds of lines with an example.

The training process imports this module, so it imports nothing.
"""

from __future__ import annotations

#: Name and version of the format, the first value of a header.
SCHEMA = "bubbleviz.recording/1"
#: Ending of the files.
SUFFIX = ".bvrec"
#: Between a line's other keys and its checksum, which is the last one.
CRC_KEY = ',"crc":'
#: Maximum length of a text in bytes of UTF-8; longer texts are cut.
LONGEST_TEXT = 1024
#: "None" in a column of times or numbers.
NONE = -1
