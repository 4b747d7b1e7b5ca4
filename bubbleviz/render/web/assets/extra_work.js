// Extra work: how many pieces of a given job fit into the bubbles of each stage.

const EXTRA_WORK_HEADERS = ["stage", "in warm-up", "between operations", "in drain", "pieces", "fits, ms", "rest, ms"];

function makeExtraWorkPanel(run) {
  const { extra_work: extra } = run.report;
  const ms = [1e6, "ms"];
  const makeRow = (name, kinds, fittingNs, restNs) => [
    name, ...kinds.map(formatPieces), formatPieces(kinds.reduce((sum, count) => sum + count, 0)), makeTimeCell(fittingNs, ms), makeTimeCell(restNs, ms),
  ];
  const listKinds = (slots) => [slots.warm_up_pieces, slots.between_pieces, slots.drain_pieces];
  const rows = extra.stages.slice(0, MAX_LISTED).map((slots) => makeRow(slots.stage ?? run.rankLabel(slots.rank), listKinds(slots), slots.fitting_ns, slots.rest_ns));
  const totals = [0, 1, 2].map((kind) => extra.stages.reduce((sum, slots) => sum + listKinds(slots)[kind], 0));
  const made = table(null, EXTRA_WORK_HEADERS, [...rows, makeRow("all, shared", totals, extra.fitting_ns, extra.rest_ns)], { id: "extra-work" });
  const job = `${formatInUnit(extra.work_ns, ms)} ms in pieces of ${formatInUnit(extra.piece_ns, ms)} ms`;
  return [
    makeNote(`A job of ${job} in each iteration: what fits into the bubbles of the ${extra.ratio} window, mean of ${formatCount(extra.iterations, "iteration")}. The longest bubble lasts ${formatInUnit(extra.longest_ns, ms)} ms. Each stage is represented by its rank with the fewest pieces, and runs the whole job; in the last row, the stages share its pieces. Memory, kernel contention and data dependencies are ignored.`),
    ...explainTable("extra work", made),
  ];
}

function formatPieces(count) {
  return Number.isInteger(count) ? formatNumber(count) : count.toFixed(1);
}
