"""XLA's profiler: its two formats, and their planes as tables.

::

    xspace (*.xplane.pb)          ─┐
                                   ├─ planes ─ device_work ─ profile
    trace_json (*.trace.json.gz)  ─┘
"""

#: Where JAX and TensorBoard put profiles, below the directory that they are given.
FOLDER = "plugins/profile"
