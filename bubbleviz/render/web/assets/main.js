// The page opens: the run is unpacked, the timeline drawn, then all the rest.

const byId = (id) => document.getElementById(id);

// --- descriptions of an operation or a bubble

function describeOperation(run, row) {
  const own = run.operations;
  const lines = [run.label(row)];
  const chunk = own.chunk[row] >= 0 && !run.several ? `, chunk ${own.chunk[row]}` : "";
  lines.push(`${run.rankLabel(own.rank[row])}${chunk}, iteration ${iterationName(run, own.iteration[row])}`);
  lines.push(`at ${duration(own.start_ns[row] - run.startNs)} for ${duration(own.length_ns[row])}`);
  lines.push(`${own.kernels[row]} compute kernels, running for ${duration(own.active_ns[row])}`);
  if (own.thousandths[row] > 0) lines.push(`${(own.thousandths[row] / 1000).toFixed(2)} times the median of its kind`);
  if (own.name[row] >= 0) lines.push(`range ${run.name(own.name[row])}`);
  return lines;
}

function iterationName(run, index) {
  return index < 0 ? "–" : clean(run.report.iterations[index].name, 40);
}

function describeBubble(run, bubble) {
  const own = run.bubbleRows;
  const cause = run.data.causes[own.cause[bubble]];
  const lines = [`idle: ${cause.name}`, cause.meaning];
  lines.push(`${run.rankLabel(own.rank[bubble])}, iteration ${iterationName(run, own.iteration[bubble])}`);
  lines.push(`at ${duration(own.start_ns[bubble] - run.startNs)} for ${duration(own.length_ns[bubble])}`);
  if (own.after[bubble] >= 0) lines.push(`before ${run.label(own.after[bubble])}`);
  if (own.peer_operation[bubble] >= 0) lines.push(`input: the result of ${run.label(own.peer_operation[bubble])} of ${run.rankLabel(run.operations.rank[own.peer_operation[bubble]])}`);
  if (cause.name === "host") {
    if (own.call[bubble] >= 0) lines.push(`host in ${run.name(own.call[bubble])}`);
    if (own.around[bubble] >= 0) lines.push(`inside ${run.name(own.around[bubble])}`);
  }
  return lines;
}

// The idle intervals right before an operation, cause by cause, in words.
function idleBefore(run, row) {
  const own = run.bubbleRows;
  const parts = new Map();
  for (let i = 0; i < own.rows; i += 1) {
    if (own.after[i] === row) parts.set(own.cause[i], (parts.get(own.cause[i]) ?? 0) + own.length_ns[i]);
  }
  return [...parts].map(([cause, ns]) => `${run.data.causes[cause].name} ${duration(ns)} (${run.data.causes[cause].meaning})`).join("; ");
}

// --- the panel of the selected operation

function showOperation(run, timeline, row) {
  const place = byId("operation");
  if (row < 0) {
    place.replaceChildren(element("p", { class: "quiet" }, "Click an operation to see it, its microbatch on the other stages, and the idle time before it."));
    return;
  }
  const go = (target, text) => target < 0 ? null : element("button", { type: "button", onclick: () => timeline.select(target, { reveal: true }) }, text);
  const lines = describeOperation(run, row);
  const idle = idleBefore(run, row);
  const chain = [...timeline.chain];
  const shown = chain.slice(0, 512);
  place.replaceChildren(...[
    element("h3", {}, lines[0]), ...lines.slice(1).map((line) => element("p", {}, line)),
    idle ? element("p", {}, `Idle before it: ${idle}.`) : null,
    element("p", { class: "buttons" }, go(run.neighbour(row, -1), "previous on its rank"), go(run.neighbour(row, 1), "next on its rank")),
    element("h3", {}, "The same microbatch"),
    run.pipelineKnown(row) ? null : element("p", { class: "quiet" }, "Its pipeline is unknown: only this rank is shown."),
    element("ol", { class: "chain" }, ...shown.map((own) => element("li", { "aria-current": own === row ? "true" : null },
      go(own, `${run.label(own)}, ${run.rankLabel(run.operations.rank[own])}, at ${duration(run.operations.start_ns[own] - run.startNs)}`)))),
    chain.length > shown.length ? element("p", { class: "quiet" }, `and ${chain.length - shown.length} more`) : null,
  ].filter(Boolean));
  byId("live").textContent = lines.join("; ");
}

// --- the ratios of a window

function showWindow(run, range) {
  const place = byId("window");
  if (!range) {
    place.replaceChildren(element("p", { class: "quiet" }, "Drag with Shift held (or with “Select window” on) to read the ratios of a part; S takes what is in view."));
    return;
  }
  const [fromNs, untilNs] = range;
  const whole = run.wholeIterations(fromNs, untilNs);
  const sums = run.idle(fromNs, untilNs);
  const idle = run.data.causes.map((own, at) => [own, sums[at]]).filter(([, ns]) => ns > 0).sort((a, b) => b[1] - a[1]);
  const ratios = table(null, ["definition", "ratio", "work, ms", "windows, ms"],
    run.ratios(fromNs, untilNs).map((own) => [own.name, percent(own.ratio, 4), milliseconds(own.workNs), milliseconds(own.windowNs)]));
  ratios.id = "window-ratios";
  const counted = whole.length
    ? `Whole in here: iteration ${whole.slice(0, 12).map((index) => iterationName(run, index)).join(", ")}${whole.length > 12 ? ", …" : ""}. The ratios are of ${whole.length > 1 ? "their windows together" : "its windows, as in the report"}.`
    : "No whole iteration in here: the ratios are of the part of each window that is.";
  place.replaceChildren(...[
    element("p", {}, `${duration(fromNs - run.startNs)} to ${duration(untilNs - run.startNs)} (${duration(untilNs - fromNs)}). ${counted}`),
    ratios,
    idle.length ? table("Idle in here, in the windows of the primary ratio", ["cause", "ms"], idle.map(([own, ns]) => [element("span", {}, swatch(own.colour), own.name), milliseconds(ns)])) : null,
    element("p", { class: "buttons" }, element("button", { type: "button", onclick: () => run.timeline.setWindow(null) }, "clear")),
  ].filter(Boolean));
  byId("live").textContent = run.ratios(fromNs, untilNs).map((own) => `${own.name} ${percent(own.ratio)}`).join("; ");
}

// --- the head of the page

function showHead(run) {
  const { report } = run;
  const [ratio, range] = headlineOf(report);
  byId("headline").replaceChildren(element("strong", {}, ratio), element("span", {}, range));
  byId("headline-name").textContent = `bubble ratio (${report.headline})`;
  const hosts = new Set(report.ranks.map((rank) => rank.host)).size;
  const schedule = report.schedule?.name ? `, schedule ${clean(report.schedule.name, 60)}` : "";
  byId("about").textContent =
    `${counted(report.ranks.length, "rank")} on ${counted(hosts, "host")}, ${report.summary.iterations} of ${counted(report.iterations.length, "iteration")} averaged${schedule}. ` +
    `Primary ratio: ${report.headline} (${clean(report.headline_reason, 400).replace(/\.$/, "")}).`;
  byId("advice").textContent = report.advice ? clean(report.advice, 800) : "";
  byId("advice").hidden = !report.advice;
}

function showLegend(run, timeline) {
  const entries = paintsByPhase(run, run.data.compute_phases)
    .map(([name, shades]) => element("li", {}, ...shades.map(banded), shades.length > 1 ? `${name} by chunk` : name));
  if (run.unattributed.rows) entries.push(element("li", {}, swatch(run.data.unattributed_colour), "unattributed compute"));
  if (timeline.lanes.communication && run.communication.rows) {
    const { paint } = run.operations;
    entries.push(element("li", {}, banded(run.data.paints[paint[run.communication.operation[0]]].bands), "communication"));
  }
  if (timeline.lanes.critical && run.critical.size) entries.push(element("li", {}, swatch(timeline.ink.accent), "critical path"));
  if (timeline.lanes.causes) {
    const used = new Set(run.bubbleRows.cause);
    run.data.causes.forEach((own, at) => {
      if (used.has(at)) entries.push(element("li", { title: own.meaning }, swatch(own.colour), own.name));
    });
  } else {
    const idle = swatch("none");
    idle.classList.add("hatched");
    entries.push(element("li", {}, idle, "bubble"));
  }
  byId("legend").replaceChildren(...entries);
}

// The different fills of each phase that occurs, chunk by chunk.
function paintsByPhase(run, phases) {
  const { paint, phase, chunk, rows } = run.operations;
  const found = new Map(phases.map((code) => [code, new Map()]));
  for (let i = 0; i < rows; i += 1) found.get(phase[i])?.set(paint[i], chunk[i]);
  return [...found].filter(([, own]) => own.size).map(([code, own]) => [
    run.data.phases[code],
    [...own].sort((a, b) => a[1] - b[1]).map(([id]) => run.data.paints[id].bands),
  ]);
}

function banded(bands) {
  let at = 0;
  const stops = bands.map(([share, colour]) => {
    const from = at;
    at += 100 * share;
    return `${colour} ${from}% ${at}%`;
  });
  const made = swatch("none");
  made.style.background = `linear-gradient(${stops.join(", ")})`;
  return made;
}

// --- controls

function fillControls(run, timeline, charts) {
  const chosen = byId("iteration");
  chosen.append(element("option", { value: "" }, "whole run"), ...timeline.bands.map((own) => element("option", { value: own.index }, own.name)));
  chosen.addEventListener("change", () => chosen.value === "" ? timeline.whole() : timeline.callbacks.iteration(Number(chosen.value)));
  byId("rows").value = timeline.by;
  byId("rows").addEventListener("change", (event) => timeline.setRows(event.target.value));
  for (const box of document.querySelectorAll("input[data-lane]")) {
    box.checked = timeline.lanes[box.dataset.lane];
    box.addEventListener("change", () => {
      timeline.setLane(box.dataset.lane, box.checked);
      showLegend(run, timeline);
    });
  }
  byId("zoom-in").addEventListener("click", () => timeline.zoom(1 / 1.5));
  byId("zoom-out").addEventListener("click", () => timeline.zoom(1.5));
  byId("whole").addEventListener("click", () => timeline.whole());
  byId("select").addEventListener("click", (event) => {
    timeline.selecting = !timeline.selecting;
    event.currentTarget.setAttribute("aria-pressed", String(timeline.selecting));
  });
  const recoloured = () => {
    timeline.resize();
    showLegend(run, timeline);
  };
  byId("theme").addEventListener("click", () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    recoloured();
  });
  for (const media of ["(prefers-color-scheme: dark)", "print"]) matchMedia(media).addEventListener("change", recoloured);
  const phases = byId("heat-phase");
  phases.append(...charts.phases.map((phase) => element("option", { value: phase }, phase)));
  const measures = byId("heat-measure");
  for (const chosen of [phases, measures]) {
    chosen.addEventListener("change", () => charts.heat(phases.value, measures.value));
    chosen.parentElement.hidden = charts.phases.length === 0;
  }
}

function describe(run, timeline) {
  const means = run.report.ranks.map((rank) => {
    const own = run.report.iterations.filter((iteration) => iteration.averaged)
      .flatMap((iteration) => iteration.ranks.filter((entry) => entry.rank === rank.index))
      .map((entry) => entry.bubble_ratio[run.report.headline]).filter((ratio) => ratio !== null && ratio !== undefined);
    return own.length ? own.reduce((a, b) => a + b, 0) / own.length : null;
  });
  timeline.callbacks.ratioOf = (ranks) => {
    const known = ranks.map((rank) => means[rank]).filter((mean) => mean !== null);
    return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
  };
}

function fillPanels(run) {
  byId("ratios-panel").append(element("div", { class: "wide" }, ratiosTable(run)), definitions(run));
  byId("causes-panel").append(element("div", { class: "wide" }, causesTable(run)));
  byId("bubbles-panel").append(bubblesList(run));
  byId("what-if-panel").append(element("div", { class: "wide" }, whatIfTable(run)), ...alternatives(run));
  byId("times-panel").append(element("div", { class: "wide" }, phaseTimesTable(run)));
  byId("ranks-panel").append(ranksTable(run));
  byId("coverage-panel").append(element("div", { class: "wide" }, coverageTable(run)), ...outside(run), element("h3", {}, "Limitations"), limitations(run));
  byId("provenance-panel").append(...provenance(run).filter(Boolean));
}

async function main() {
  const run = new Run(await loaded());
  showHead(run);
  const callbacks = {
    describe: (found) => found.row >= 0 ? describeOperation(run, found.row) : found.bubble >= 0 ? describeBubble(run, found.bubble) : [],
    selected: (row) => showOperation(run, timeline, row),
    windowed: (range) => showWindow(run, range),
    wholeShown: () => { byId("iteration").value = ""; },
    iteration: (index) => {
      timeline.showIteration(index);
      timeline.setWindow(run.workSpan(index));
      byId("iteration").value = String(index);
    },
  };
  const timeline = new Timeline(run, byId("timeline"), callbacks);
  run.timeline = timeline;
  describe(run, timeline);
  if (run.data.shown === null) timeline.whole();
  else timeline.showIteration(run.data.shown);
  byId("no-operations").hidden = run.operations.rows > 0;
  for (const part of document.querySelectorAll("#timeline, #legend, .controls, .keys, .pair")) part.hidden = run.operations.rows === 0;
  showLegend(run, timeline);
  showOperation(run, timeline, -1);
  showWindow(run, null);
  fillPanels(run);
  document.body.dataset.painted = performance.now().toFixed(0);
  const charts = new Charts(run, timeline);
  fillControls(run, timeline, charts);
  if (run.data.shown !== null) byId("iteration").value = String(run.data.shown);
  await new Promise((next) => setTimeout(next, 30));
  await charts.all();
  document.body.dataset.ready = performance.now().toFixed(0);
  return { run, timeline, charts };
}

window.bubbleviz = main().catch((error) => {
  const place = byId("failed");
  place.hidden = false;
  place.textContent = `This page cannot be shown (${error.message}); open it in a current browser, or write it again with bubbleviz analyze --html.`;
  throw error;
});
