"""XLA's profiler: its two formats, and their planes as tables.

::

    wire, xspace, xspace_planes (*.xplane.pb)  ─┐
                                                ├─ collector ─ planes ─ device_work ─ profile
    trace_json_planes (*.trace.json.gz)        ─┘

``names`` shows what planes and lines are; ``threads``, ``range_names`` and ``ranges`` make them
threads and ranges.
"""
