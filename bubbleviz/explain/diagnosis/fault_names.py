"""Names of faults and values of their details that several modules compare.

The name of a fault is also the place of its advice (:attr:`.Advice.place`). Saved reports contain
places, so the texts must stay the same in all versions.
"""

from __future__ import annotations

#: Name of the fault for the pause between iterations, during which no rank computes.
BETWEEN_ITERATIONS = "between-iterations"
#: Name of the fault for layers that are on the wrong stages.
WHOLE_LAYERS = "layers"
#: Place of the advice to divide prompts into chunks of equal time.
EVEN_CHUNKS = "even-chunks"

#: Values of ``detail`` for late launches: the profiler delays them, or they follow a pause between
#: iterations.
PROFILER, ITERATION_PAUSE = "profiler", "iterations"
#: Values of ``detail`` for slow microbatches: only the first one of the run is slow, or the lengths
#: of all microbatches vary.
FIRST_MICROBATCH, VARYING_LENGTHS = "first", "lengths"
#: Values of ``detail`` for slow iterations of certain ranks: all of their operations are slow, or
#: single ones.
PACE, PAUSE = "pace", "pause"
#: Value of ``detail`` if all ranks became slower during the run.
ALL_RANKS = "all"
#: Values of ``detail`` for a slow stage that runs on a single rank.
#: A stage with more kernels than other stages has more layers.
#: If a slow stage has the same number of kernels as other stages, its GPU may be slow.
MORE_KERNELS, SAME_KERNELS = "more-kernels", "same-kernels"
#: Value of ``detail`` for the slow stage that also runs the output layer and the loss.
OUTPUT_LAYER = "output-layer"
#: Value of ``detail`` for a slow stage if moving its layers saves nothing, but repairing its GPU
#: would save time.
ONLY_REPAIR = "only-repair"
#: Value of ``detail`` if it is unknown whether launch gaps contain communication.
COMPUTE_GAPS = "compute"
#: Values of ``detail`` for waits for tokens: the number of additional chunks in flight in a replay,
#: which is one, or enough to never wait for a token. The latter can exceed the number of chunks in
#: the requests.
ONE_MORE, ENOUGH = "one", "enough"
