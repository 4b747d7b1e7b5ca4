// Details: describes an operation, a bubble or a window of time, on hover and when it is selected.

function nameIteration(run, index) {
  return index < 0 ? "–" : cleanText(run.report.iterations[index].name, 40);
}

function formatIteration(run, index) {
  return run.data.idle ? "" : `, iteration ${nameIteration(run, index)}`;
}

function describePosition(run, startNs, lengthNs) {
  return [`${duration(lengthNs)} long, starts at ${duration(startNs - run.startNs)}`,
    `exactly ${formatExact(lengthNs)}, starts at ${formatExact(startNs - run.startNs)}`];
}

function describeOperation(run, row) {
  const columns = run.operations;
  const lines = [run.label(row)];
  const chunk = columns.chunk[row] >= 0 && !run.several ? `, chunk ${columns.chunk[row]}` : "";
  lines.push(`${run.rankLabel(columns.rank[row])}${chunk}${formatIteration(run, columns.iteration[row])}`);
  lines.push(...describePosition(run, columns.start_ns[row], columns.length_ns[row]));
  if (columns.kernels[row] >= 0) lines.push(`${formatCount(columns.kernels[row], "compute kernel")}, running for ${duration(columns.active_ns[row])}`);
  if (columns.thousandths[row] > 0) lines.push(`${significant(columns.thousandths[row] / 1000)} times the median of its kind`);
  if (columns.name[row] >= 0) lines.push(`${run.data.idle ? "begins with" : "range"} ${run.name(columns.name[row])}`);
  return lines;
}

function describeBubble(run, bubble) {
  const columns = run.bubbleRows;
  const cause = run.data.causes[columns.cause[bubble]];
  const lines = [`idle: ${cause.name}`, ...(cause.meaning ? [`because ${cause.meaning}`] : [])];
  lines.push(`${run.rankLabel(columns.rank[bubble])}${formatIteration(run, columns.iteration[bubble])}`);
  lines.push(...describePosition(run, columns.start_ns[bubble], columns.length_ns[bubble]));
  lines.push(...describeWait(run, bubble));
  if (cause.name === "host") {
    if (columns.call[bubble] >= 0) lines.push(`host in ${run.name(columns.call[bubble])}`);
    if (columns.around[bubble] >= 0) lines.push(`inside ${run.name(columns.around[bubble])}`);
  }
  return lines;
}

// A description of the operation or bubble under the pointer, in two lines. The panel shows all details once it is selected.
function describeBriefly(run, { row, bubble }) {
  const columns = row >= 0 ? run.operations : run.bubbleRows, at = row >= 0 ? row : bubble;
  if (at < 0) return [];
  const what = row >= 0 ? run.label(row) : `idle: ${run.data.causes[columns.cause[at]].name}`;
  return [what, `${run.rankLabel(columns.rank[at])}, ${duration(columns.length_ns[at])}`];
}

// The operation that ends a bubble, and the operation that it was waiting for.
function describeWait(run, bubble) {
  const { after, cause, peer_operation: peer, peer_rank: beyond } = run.bubbleRows;
  const lines = [];
  if (after[bubble] >= 0) lines.push(`before ${run.label(after[bubble])}`);
  if (beyond?.[bubble] >= 0) lines.push(`waited for ${run.rankLabel(beyond[bubble])}, in another pipeline`);
  if (peer[bubble] >= 0) {
    const label = run.label(peer[bubble]), rank = run.rankLabel(run.operations.rank[peer[bubble]]);
    const ends = run.operations.start_ns[peer[bubble]] + run.operations.length_ns[peer[bubble]];
    // At the start and the end of an iteration, only collectives wait for other ranks.
    const edge = ["warmup", "drain"].includes(run.data.causes[cause[bubble]].name);
    lines.push(edge ? `waited in a collective for ${rank}, the last rank to enter, which did so after ${label}` : `waited for ${label} of ${rank}, which ended at ${duration(ends - run.startNs)}`);
  }
  return lines;
}

// Describes the idle time directly before an operation, by cause.
function describeIdleBefore(run, row) {
  const bubbles = run.bubbleRows;
  const parts = new Map();
  for (let i = 0; i < bubbles.rows; i += 1) {
    if (bubbles.after[i] === row) parts.set(bubbles.cause[i], (parts.get(bubbles.cause[i]) ?? 0) + bubbles.length_ns[i]);
  }
  return [...parts].map(([cause, ns]) => `${run.data.causes[cause].name} ${duration(ns)} (${run.data.causes[cause].meaning})`).join("; ");
}

// A button that selects an operation and brings it into view.
function makeGoToButton(timeline, row, text) {
  return row < 0 ? null : element("button", { type: "button", onclick: () => timeline.select(row, { reveal: true }) }, text);
}

function showOperation(run, timeline, row) {
  const place = byId("operation");
  byId("operation-part").hidden = row < 0;
  if (row < 0) return;
  byId("operation-title").textContent = "Operation";
  const lines = describeOperation(run, row);
  const idle = describeIdleBefore(run, row);
  const chain = [...timeline.chain];
  const shown = chain.slice(0, 512);
  place.replaceChildren(...[
    element("h4", {}, lines[0]), ...lines.slice(1).map((line) => element("p", {}, line)),
    idle ? element("p", {}, `Idle before it: ${idle}.`) : null,
    element("p", { class: "buttons" }, makeGoToButton(timeline, run.neighbor(row, -1), "previous on this rank"), makeGoToButton(timeline, run.neighbor(row, 1), "next on this rank")),
    run.data.idle ? null : element("h4", {}, "The same microbatch"),
    run.data.idle || run.pipelineKnown(row) ? null : makeNote("Its pipeline is unknown, so only operations of this rank are listed."),
    run.data.idle ? null : element("ol", { class: "chain", tabindex: 0, "aria-label": "operations of the same microbatch" }, ...shown.map((operation) => element("li", { "aria-current": operation === row ? "true" : null },
      makeGoToButton(timeline, operation, `${run.label(operation)}, ${run.rankLabel(run.operations.rank[operation])}, at ${duration(run.operations.start_ns[operation] - run.startNs)}`)))),
    chain.length > shown.length ? makeNote(`and ${chain.length - shown.length} more`) : null,
  ].filter(Boolean));
  byId("live").textContent = lines.join("; ");
}

function showBubble(run, timeline, bubble) {
  const lines = describeBubble(run, bubble);
  const { after, peer_operation: peer } = run.bubbleRows;
  byId("operation-part").hidden = false;
  byId("operation-title").textContent = "Bubble";
  byId("operation").replaceChildren(
    element("h4", {}, lines[0]), ...lines.slice(1).map((line) => element("p", {}, line)),
    element("p", { class: "buttons" }, ...[
      after[bubble] < 0 ? null : makeGoToButton(timeline, after[bubble], `show ${run.label(after[bubble])}, the next operation`),
      peer[bubble] < 0 ? null : makeGoToButton(timeline, peer[bubble], `show ${run.label(peer[bubble])}, which it waited for`),
    ].filter(Boolean)));
  byId("live").textContent = lines.join("; ");
}

// --- the ratios of a window

function showWindow(run, range) {
  const place = byId("window");
  byId("window-part").hidden = !range;
  if (!range) return;
  const [fromNs, untilNs] = range;
  const whole = run.wholeIterations(fromNs, untilNs);
  const sums = run.idle(fromNs, untilNs);
  const idle = run.data.causes.map((cause, at) => [cause, sums[at]]).filter(([, ns]) => ns > 0).sort((a, b) => b[1] - a[1]);
  const found = run.ratios(fromNs, untilNs);
  const unit = chooseCommonUnit(found.flatMap((ratio) => [ratio.workNs, ratio.windowNs]));
  const ratios = table(null, ["definition", "ratio", `work, summed over ranks, ${unit[1]}`, `windows, summed over ranks, ${unit[1]}`],
    found.map((ratio) => [ratio.name, makeShareCell(ratio.ratio), makeTimeCell(ratio.workNs, unit), makeTimeCell(ratio.windowNs, unit)]), { id: "window-ratios" });
  const idleUnit = chooseCommonUnit(sums);
  const coverage = run.data.idle ? "" : whole.length
    ? `Complete iterations in this window: ${whole.slice(0, 12).map((index) => nameIteration(run, index)).join(", ")}${whole.length > 12 ? ", …" : ""}. The ratios cover ${whole.length > 1 ? "the windows of these iterations together" : "the windows of this iteration, as in the report"}.`
    : "No complete iteration in this window: the ratios cover the part of each window that is selected.";
  const shown = run.data.shards ? " Only the ranks in the timeline are counted." : "";
  place.replaceChildren(...[
    element("p", {}, `${duration(untilNs - fromNs)} of wall time, from ${duration(fromNs - run.startNs)} to ${duration(untilNs - run.startNs)}. ${coverage}${shown}`),
    ...(found.length ? explainTable("selected window", ratios) : []),
    ...(idle.length ? explainTable("idle time in the selected window", table(run.data.idle ? "Idle time in this window" : "Idle time in this window, within the windows of the primary ratio", ["cause", `idle, summed over ranks, ${idleUnit[1]}`], idle.map(([cause, ns]) => [element("span", {}, makeSwatch(cause.color), cause.name), makeTimeCell(ns, idleUnit)]))) : []),
    element("p", { class: "buttons" }, element("button", { type: "button", onclick: () => run.timeline.setWindow(null) }, "clear")),
  ]);
  byId("live").textContent = found.map((ratio) => `${ratio.name} ${percent(ratio.ratio)}`).join("; ");
}
