// Opens the page: unpacks the run, draws the timeline, then fills all other sections.

const byId = (id) => document.getElementById(id);

// --- the head of the page

function showHead(run) {
  const { report } = run;
  const [mean, range] = describeHeadline(report);
  const exact = mean === null || mean === undefined ? null : `${(100 * mean).toPrecision(10)} %`;
  byId("headline").replaceChildren(element("strong", { title: exact }, percent(mean)), element("span", {}, range));
  const { name, idle } = run.data.measure;
  byId("headline-name").textContent = `${name[0].toUpperCase()}${name.slice(1)}`;
  byId("causes-title").textContent = `What the ${idle} is made of`;
  const words = run.ratioDefinitions.find((ratio) => ratio.name === report.headline)?.words;
  byId("definition").textContent = words ? `The ${words}.` : "";
  const hosts = new Set(report.ranks.map((rank) => rank.host)).size;
  // Iterations that have the primary ratio. The last iteration has no period.
  const averaged = report.summary.bubble_ratio[report.headline].n;
  const schedule = report.schedule?.name ? `, schedule ${cleanText(report.schedule.name, 60)}` : "";
  byId("about").textContent =
    `${formatCount(report.ranks.length, "rank")} on ${formatCount(hosts, "host")}, ${averaged} of ${formatCount(report.iterations.length, "iteration")} averaged${schedule}. ` +
    `Headline ratio: ${report.headline} (${cleanText(report.headline_reason, 400).replace(/\.$/, "")}).`;
  byId("advice").textContent = report.what_to_do_first ? cleanText(report.what_to_do_first, 800) : "No recommendations.";
  if (report.lateness?.sentence) {
    byId("advice").before(element("p", {}, `Late: ${cleanText(report.lateness.sentence, 600)}`));
  }
  const further = (report.then ?? []).map((index) => report.advice[index]);
  for (const advice of further.reverse()) {
    byId("advice").after(element("p", {}, `Then: ${cleanText(advice.sentence, 300)}`));
  }
  const [title, date] = nameReport(report);
  byId("run-title").textContent = title;
  byId("run-date").textContent = date;
  document.title = `${percent(mean)} ${idle}, ${title}`;
}

// The names of the profiles, and when they were recorded.
function nameReport(report) {
  const names = report.profiles.map((profile) => cleanText(profile.path, 300).split("/").at(-1));
  const more = names.length > 1 ? ` and ${formatCount(names.length - 1, "other profile")}` : "";
  const dates = report.profiles.map(formatDate).filter(Boolean).sort();
  return [cleanText(`${names[0] ?? "no profile"}${more}`, 120), dates.length ? `recorded ${dates[0]} UTC` : "recording date unknown"];
}

// Phase names in the legend.
const NAMES = { busy: "busy: compute, communication or copies", F: "F forward", B: "B backward, input", W: "W backward, weights", BW: "BW backward", R: "R recompute", FB: "FB forward and backward" };

function showLegend(run, timeline) {
  const running = listPaintsByPhase(run, run.data.compute_phases)
    .map(([name, shades]) => [NAMES[name] ?? name, shades])
    .map(([name, shades]) => element("li", {}, ...shades.map(makeBandedSwatch), shades.length > 1 ? `${name}, by chunk` : name));
  if (run.culprits.size) running.push(element("li", {}, run.outliers.length ? `► outlier: ${run.outliers.map((outlier) => `${cleanText(outlier.name, 60)}, ${cleanText(outlier.why, 120)}`).join("; ")}` : "► see What to do first"));
  if (run.unattributed.rows) running.push(element("li", {}, makeSwatch(run.data.unattributed_color), "unattributed compute"));
  if (timeline.lanes.communication && run.communication.rows) {
    const { paint } = run.operations;
    running.push(element("li", {}, makeBandedSwatch(run.data.paints[paint[run.communication.operation[0]]].bands), "communication kernels"));
  }
  if (timeline.lanes.critical && run.critical.size) running.push(element("li", {}, makeSwatch(timeline.ink.accent), "critical path"));
  const idle = [];
  if (timeline.lanes.causes) {
    const used = new Set(run.bubbleRows.cause);
    run.data.causes.forEach((cause, at) => {
      if (used.has(at) && cause.color !== run.data.rest) idle.push(element("li", { title: cause.meaning }, makeSwatch(cause.color), cause.name));
    });
    if (run.data.causes.some((cause, at) => used.has(at) && cause.color === run.data.rest)) idle.push(element("li", {}, makeSwatch(run.data.rest), "everything else"));
  } else {
    const hatched = makeSwatch("none");
    hatched.classList.add("hatched");
    idle.push(element("li", {}, hatched, "bubble"));
  }
  byId("legend").replaceChildren(...running);
  byId("legend-idle").replaceChildren(...idle);
}

// Returns the distinct fills of each phase that occurs, in the order of chunks.
function listPaintsByPhase(run, phases) {
  const { paint, phase, chunk, rows } = run.operations;
  const found = new Map(phases.map((code) => [code, new Map()]));
  for (let i = 0; i < rows; i += 1) found.get(phase[i])?.set(paint[i], chunk[i]);
  return [...found].filter(([, paints]) => paints.size).map(([code, paints]) => [
    run.data.phases[code],
    [...paints].sort((a, b) => a[1] - b[1]).map(([id]) => run.data.paints[id].bands),
  ]);
}

function makeBandedSwatch(bands) {
  let at = 0;
  const stops = bands.map(([share, color]) => {
    const from = at;
    at += 100 * share;
    return `${color} ${from}% ${at}%`;
  });
  const made = makeSwatch("none");
  made.style.background = `linear-gradient(${stops.join(", ")})`;
  return made;
}

// --- controls

function fillControls(run, timeline, charts) {
  const chosen = byId("iteration");
  chosen.append(element("option", { value: "" }, "whole run"), ...timeline.bands.map((band) => element("option", { value: band.index }, band.name)));
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
  byId("find").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    const words = event.currentTarget.value.trim();
    const found = words && timeline.find(words);
    byId("live").textContent = found ? `${found} is selected.` : "Nothing found.";
    event.currentTarget.setAttribute("aria-invalid", String(Boolean(words) && !found));
  });
  // On narrow screens, most controls are hidden until they are requested.
  byId("more-controls").addEventListener("click", (event) => {
    const open = byId("controls").classList.toggle("open");
    event.currentTarget.setAttribute("aria-expanded", String(open));
    event.currentTarget.textContent = open ? "Less" : "More";
  });
  const recolored = () => {
    timeline.resize();
    showLegend(run, timeline);
  };
  byId("theme").addEventListener("click", () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    recolored();
  });
  for (const media of ["(prefers-color-scheme: dark)", "print"]) matchMedia(media).addEventListener("change", recolored);
  if (run.data.idle) {
    for (const control of document.querySelectorAll('#rows, [data-lane="communication"], [data-lane="critical"]')) control.parentElement.hidden = true;
    byId("find").placeholder = "device or kernel";
    document.querySelector(".skip").href = "#Devices";
    return;
  }
  byId("chunk-stage")?.addEventListener("change", (event) => charts.chunks(Number(event.currentTarget.value)));
  const phases = byId("heat-phase");
  phases.append(...charts.phases.map((phase) => element("option", { value: phase }, phase)));
  const measures = byId("heat-measure");
  for (const chosen of [phases, measures]) {
    chosen.addEventListener("change", () => charts.heat(phases.value, measures.value));
    chosen.parentElement.hidden = charts.phases.length === 0;
  }
}

function fillPanels(run, timeline) {
  const fill = (id, ...parts) => byId(`${id}-panel`).append(...parts.filter(Boolean));
  const parts = listBubbleParts(run);
  byId("parts-panel").append(...parts.length ? [makePartsBar(parts), ...explainTable("causes", makePartsTable(parts))] : [makeNote(run.report.summary.bubble_parts ? "No averaged iteration has a bubble." : "This report was written by an older version and does not contain the parts of the bubble.")]);
  fill("ratios", ...explainTable("bubble ratios", makeRatiosTable(run)), listDefinitions(run));
  fill("bubbles", makeBubblesList(run, timeline));
  const changes = makeChangesTable(run);
  const hint = run.report.what_if ? null : makeNote("To compare other schedules, pass --what-if to bubbleviz analyze.");
  fill("changes", ...(changes ? [...explainTable("changes", changes), hint] : [makeNote("Unknown for this run.")]));
  fillIf(run.report.what_if, "what-if", () => compareSchedules(run));
  fill("times", ...explainTable("phase times by stage", makePhaseTimesTable(run)));
  fillIf(run.report.first_step?.stages.length, "first-step", () => makeFirstStepPanel(run));
  fill("slowdown", ...makeSlowdownPanel(run));
  fillIf(run.report.chunk_costs?.length, "chunks", () => makeChunksPanel(run));
  fillIf(run.report.extra_work, "extra-work", () => makeExtraWorkPanel(run));
  fillIf(run.report.memory, "memory", () => makeMemoryPanel(run));
  fillRanks(run);
  fill("clocks", ...explainTable("clocks", makeClocksTable(run)));
  fill("limitations", listLimitations(run));
  fill("provenance", ...describeProvenance(run));
}

// Fills a section that only some runs have. If there is no content, removes the section and its link.
function fillIf(known, id, content) {
  if (known) byId(`${id}-panel`).append(...content());
  else for (const part of [byId(`${id}-section`), document.querySelector(`#contents a[href="#${id}-section"]`).parentElement]) part.remove();
}

// Fills the tables that list ranks: all ranks, or the ranks in the timeline.
function fillRanks(run) {
  const fill = (id, ...parts) => byId(`${id}-panel`).replaceChildren(...parts.filter(Boolean));
  const which = () => run.data.many ? [makeNote(`${namePart(run)}: to show another part of the run, choose it in section Pipelines.`)] : [];
  fill("ranks", ...which(), ...explainTable("ranks", makeRanksTable(run)));
  const communications = makeCommunicationTable(run);
  fill("communication", ...(communications ? [...which(), ...explainTable("communication", communications)] : [makeNote("No communication was recorded.")]));
  fill("coverage", ...which(), ...explainTable("coverage", makeCoverageTable(run)), ...listUnattributed(run));
}

// The longest bubbles in words. A click on one shows it in the timeline.
function makeBubblesList(run, timeline) {
  const { longest_bubbles: all } = run.report;
  if (!all?.length) return makeNote("No idle interval stands out.");
  const { rank, start_ns: start } = run.bubbleRows;
  return list(all.map((longBubble) => {
    const at = BigInt(longBubble.start_ns) - BigInt(run.data.base_ns);
    const words = cleanText(longBubble.sentence, 500);
    if (run.data.shards) return element("button", { type: "button", class: "link", onclick: () => run.showBubble(longBubble.rank, Number(at)) }, words);
    const row = start.findIndex((ns, i) => ns === Number(at) && rank[i] === longBubble.rank);
    return row < 0 ? words : element("button", { type: "button", class: "link", onclick: () => timeline.selectBubble(row, { reveal: true }) }, words);
  }));
}

// Marks the current section in the table of contents.
function followContents() {
  const links = new Map([...document.querySelectorAll("#contents a")].map((link) => [link.getAttribute("href").slice(1), link]));
  const sections = [...links.keys()].map(byId);
  const mark = () => {
    const line = byId("contents").getBoundingClientRect().bottom + 40;
    const current = sections.filter((section) => section.getBoundingClientRect().top <= line).at(-1) ?? sections[0];
    for (const [id, link] of links) {
      if (id === current.id) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };
  addEventListener("scroll", mark, { passive: true });
  mark();
}

// --- runs with many ranks: one pipeline at a time

// The name of the pipelines or ranks that the timeline shows if there are many ranks.
function namePart(run) {
  const shown = listRanks(run);
  const numbers = [...new Set(shown.map((rank) => rank.pipeline))].filter((pipeline) => pipeline !== null);
  if (!numbers.length) return `Ranks ${run.listed[0]} to ${run.listed[1] - 1}`;
  return numbers.length === 1 ? `Pipeline p${numbers[0]}` : `Pipelines p${numbers[0]} to p${numbers.at(-1)}`;
}

// Loads the ranks of a shard into the run, and updates the titles. The caller redraws the page.
async function takeShard(run, shards, place) {
  const { first, last } = shards.all[place];
  run.take(await shards.tables(place), first, last);
  byId("timeline-title").textContent = `Timeline: ${namePart(run)}`;
  byId("heat-title").textContent = `Operations: phase times by microbatch, ${namePart(run).toLowerCase()}`;
}

// The first shard to show: the one with the requested rank, or else with a rank that the first advice
// is about, or else with the median bubble ratio.
function chooseFirstShard(run, shards) {
  for (const rank of [run.data.shown_rank, ...run.culprits]) {
    const place = rank === null ? -1 : shards.of(rank);
    if (place >= 0) return place;
  }
  const means = shards.all.map(({ first, last }) => computeMean(run.means.ratio.slice(first, last), (value) => value));
  const known = means.map((mean, at) => [mean, at]).filter(([mean]) => mean !== null).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  return known.length ? known[(known.length - 1) >> 1][1] : 0;
}

// Shows the overview of pipelines, and handles the selection of a pipeline.
function fillOverview(run, shards, shown, drawn) {
  const { content } = byId("overview-parts");
  document.querySelector("#contents ul").prepend(content.querySelector("li"));
  byId("timeline-section").before(content.querySelector("section"));
  const latest = { wanted: 0 };
  const show = async (rank) => {
    const place = shards ? shards.of(rank) : -1;
    const missing = byId("overview-missing");
    missing.hidden = place >= 0;
    if (place < 0) {
      if (!shards) {
        run.listed = run.findPipelineRange(rank);
        fillRanks(run);
      }
      missing.textContent = `This page does not contain the operations of ${run.rankLabel(rank)}. To draw them, run: bubbleviz analyze -o FILE.svg --ranks ${rank}.`;
      return false;
    }
    latest.wanted += 1;
    const request = latest.wanted;
    if (run.first !== shards.all[place].first) {
      await takeShard(run, shards, place);
      if (request !== latest.wanted) return false;
      drawn();
    }
    overview.mark(place);
    byId("live").textContent = `${namePart(run)} is shown in the timeline.`;
    byId("timeline-section").scrollIntoView({ block: "start" });
    return true;
  };
  const overview = new Overview(run, shards, show);
  if (shards) overview.mark(shown);
  const left = shards?.data.shards.left_out ?? 0;
  byId("overview-panel").append(
    element("div", { class: "pair" },
      element("div", {}, element("h3", {}, "Outliers"), ...listOutliers(run, show)),
      element("div", {}, element("h3", {}, "Distribution over ranks"), ...explainTable("distribution over ranks", makeSpreadTable(run)))),
    ...(left ? [makeNote(`This page does not contain the operations of ${formatCount(left, "part")} of the run. These are the parts most similar to the others.`)] : []),
    ...(shards && shards.unitNs > 1 ? [makeNote(`Times of operations are rounded to ${duration(shards.unitNs)}. Use -o FILE.parquet for exact times.`)] : []));
  run.showBubble = async (rank, atNs) => {
    if (!(await show(rank))) return;
    const { start_ns: start, rank: ranks } = run.bubbleRows;
    const row = start.findIndex((ns, i) => ranks[i] === rank && Math.abs(ns - atNs) < shards.unitNs);
    if (row >= 0) run.timeline.selectBubble(row, { reveal: true });
  };
  return { overview, show };
}

async function main() {
  const carried = await loadPage();
  const whole = carried.idle ? makeIdleRun(carried) : carried;
  const run = new Run(whole);
  const shards = whole.shards ? new Shards(whole) : null;
  const shown = shards ? chooseFirstShard(run, shards) : -1;
  if (shards) await takeShard(run, shards, shown);
  // A page about idle time has devices instead of ranks, and a different head and tables.
  const { idle } = whole;
  if (!idle) showHead(run);
  const callbacks = {
    describe: (found) => describeBriefly(run, found),
    selected: (row, bubble) => bubble >= 0 ? showBubble(run, timeline, bubble) : showOperation(run, timeline, row),
    windowed: (range) => showWindow(run, range),
    wholeShown: () => { byId("iteration").value = ""; },
    iteration: (index) => {
      timeline.showIteration(index);
      timeline.setWindow(run.workSpan(index));
      byId("iteration").value = String(index);
    },
  };
  callbacks.ratioOf = idle ? (rank) => run.report.ranks[rank].share : (rank, index) => run.rankRatio(rank, index);
  callbacks.ratioTitles = idle ? () => ["share of time", "share"] : (index) => run.ratioTitles(index);
  // The charts are created later.
  const parts = { charts: null };
  const timeline = new Timeline(run, byId("timeline"), callbacks);
  run.timeline = timeline;
  timeline.lanes.causes = Boolean(idle);
  if (run.data.shown === null) timeline.whole();
  else timeline.showIteration(run.data.shown);
  byId("no-operations").hidden = run.operations.rows > 0;
  for (const part of document.querySelectorAll("#timeline, #minimap, #timeline-section :is(.legends, .controls, .keys)")) part.hidden = run.operations.rows === 0;
  showLegend(run, timeline);
  const redrawn = () => {
    timeline.reload();
    showLegend(run, timeline);
    fillRanks(run);
    parts.charts?.heat(parts.charts.phase, parts.charts.measure);
    const { value } = byId("iteration");
    if (value === "") timeline.whole();
    else timeline.showIteration(Number(value));
  };
  const many = whole.many ? fillOverview(run, shards, shown, redrawn) : null;
  if (!idle) fillPanels(run, timeline);
  followContents();
  document.body.dataset.painted = performance.now().toFixed(0);
  const charts = idle ? { all() {} } : new Charts(run, timeline);
  parts.charts = charts;
  fillControls(run, timeline, charts);
  if (run.data.shown !== null) byId("iteration").value = String(run.data.shown);
  await new Promise((next) => setTimeout(next, 30));
  await charts.all();
  document.body.dataset.ready = performance.now().toFixed(0);
  return { run, timeline, charts, parts: idle ? [] : listBubbleParts(run), significant, percent, many, shards };
}

window.bubbleviz = main().catch((error) => {
  const place = byId("failed");
  place.hidden = false;
  place.textContent = `This page cannot be shown (${error.message}). Open it in a current browser, or write it again with bubbleviz analyze -o FILE.html.`;
  throw error;
});
