// The page about idle time: converts its data to the structure of a run. Devices become ranks,
// intervals in which a device was busy become operations, and host activities become causes of
// bubbles.

function runOfIdle(whole) {
  const { idle, tables } = whole;
  const busy = { ...tables.busy, name: tables.busy.code };
  const gaps = { ...tables.gaps, cause: tables.gaps.code };
  const spans = { ...tables.spans, iteration: tables.spans.code };
  const column = (rows, value) => new Int32Array(rows).fill(value);
  const filled = (own, names) => ({ ...Object.fromEntries(names.map((name) => [name, column(own.rows, -1)])), ...own });
  const empty = { rows: 0, rank: column(0), operation: column(0), start_ns: new Float64Array(0), length_ns: new Float64Array(0) };
  return {
    ...whole,
    report: {
      ranks: idle.devices.map(([label, share], index) => ({ index, label, share, stage: null, pipeline: null, global_rank: null })),
      iterations: idle.steps.map((name, index) => ({ index, name, ranks: [] })),
    },
    names: idle.works, ratios: [], phases: ["busy"], compute_phases: [0], shown: null, rest: idle.rest, unattributed_color: idle.rest,
    paints: [{ bands: [[1, idle.busy]], number: "#000000" }],
    causes: idle.activities.map(([name, meaning, color]) => ({ name, meaning, color })),
    tables: {
      operations: {
        ...filled(busy, ["iteration", "microbatch", "second_microbatch", "chunk", "second_chunk", "virtual_stage", "kernels", "thousandths"]),
        phase: column(busy.rows, 0), paint: column(busy.rows, 0), active_ns: busy.length_ns,
      },
      compute: { ...busy, operation: Int32Array.from({ length: busy.rows }, (_, row) => row) },
      communication: empty, unattributed: empty, critical: empty,
      bubbles: filled(gaps, ["iteration", "after", "peer_operation", "call", "around"]),
      windows: filled(spans, ["ratio"]),
    },
  };
}
