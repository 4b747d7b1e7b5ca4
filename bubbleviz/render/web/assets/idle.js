// The page about idle time: converts its data to the structure of a run. Each device becomes four
// ranks, one per lane: compute, communication, copies and idle time. Intervals in which work of a
// lane ran become operations, and host activities become causes of bubbles.

const IDLE_LANE = "idle";

function makeIdleRun(whole) {
  const { idle, tables } = whole;
  const busy = { ...tables.busy, name: tables.busy.code };
  const gaps = { ...tables.gaps, cause: tables.gaps.code };
  const spans = { ...tables.spans, iteration: tables.spans.code };
  const column = (rows, value) => new Int32Array(rows).fill(value);
  const filled = (columns, names) => ({ ...Object.fromEntries(names.map((name) => [name, column(columns.rows, -1)])), ...columns });
  const lanes = [...idle.lanes.map(([name]) => name), IDLE_LANE];
  const laneOf = Int32Array.from(busy.rank, (rank) => rank % lanes.length);
  const empty = { rows: 0, rank: column(0), operation: column(0), start_ns: new Float64Array(0), length_ns: new Float64Array(0) };
  return {
    ...whole,
    report: {
      ranks: idle.devices.flatMap(([device, shares], index) => lanes.map((lane, at) => ({
        index: index * lanes.length + at, label: `${device} · ${lane}`, row_label: at ? lane : `${lane}, ${device}`, share: shares[at], stage: null, pipeline: null, global_rank: index,
      }))),
      iterations: idle.steps.map((name, index) => ({ index, name, ranks: [] })),
    },
    names: idle.works, ratios: [], phases: idle.lanes.map(([name]) => name), compute_phases: idle.lanes.map((_, code) => code), shown: null, rest: idle.rest, unattributed_color: idle.rest,
    paints: idle.lanes.map(([, color]) => ({ bands: [[1, color]], number: "#000000" })),
    causes: idle.activities.map(([name, meaning, color]) => ({ name, meaning, color })),
    tables: {
      operations: {
        ...filled(busy, ["iteration", "microbatch", "second_microbatch", "chunk", "second_chunk", "virtual_stage", "kernels", "thousandths"]),
        phase: laneOf, paint: laneOf, active_ns: busy.length_ns,
      },
      compute: { ...busy, operation: Int32Array.from({ length: busy.rows }, (_, row) => row) },
      communication: empty, unattributed: empty, critical: empty,
      bubbles: filled(gaps, ["iteration", "after", "peer_operation", "call", "around"]),
      windows: filled(spans, ["ratio"]),
    },
  };
}
