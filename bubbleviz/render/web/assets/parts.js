// Parts: what the primary ratio is made of. It is a mean over iterations of their ratios, so each
// part is a mean of shares, too, and the parts add up to it.

// Time that counts as bubble though something ran in it: its part, its meaning, its column.
const NO_WORK = [
  ["unattributed", "compute outside every operation", "unattributed_ns", () => true],
  ["next iterations", "compute of other iterations", "overlap_ns", (work) => work !== "everything"],
  ["optimizer", "the Optimizer, which this ratio does not count as work", "optimizer_ns", (work) => work === "iteration"],
];

// The parts with their share of the window and mean time a rank, the largest first.
function bubbleParts(run) {
  const { report, data } = run;
  const name = report.headline;
  const work = data.ratios.find((own) => own.name === name)?.work;
  const found = new Map();
  const add = (own, ns, windowNs, iterations) => {
    if (!ns) return;
    const part = found.get(own.name) ?? found.set(own.name, { ...own, share: 0, ns: 0 }).get(own.name);
    part.share += ns / windowNs / iterations;
    part.ns += ns;
  };
  const shown = report.iterations.filter((own) => own.averaged && own.bubble_ratio[name] !== null && own.bubble_ratio[name] !== undefined)
    .map((own) => [own, own.ranks.map((rank) => rank.windows[name]).filter(Boolean)]).filter(([, windows]) => sum(windows, "window_ns") > 0);
  let ranks = 0;
  for (const [iteration, windows] of shown) {
    const windowNs = sum(windows, "window_ns");
    ranks += windows.length;
    for (const cause of data.causes) add(cause, iteration.cause_ns[name]?.[cause.name] ?? 0, windowNs, shown.length);
    for (const [part, meaning, column, counts] of NO_WORK) {
      if (counts(work)) add({ name: part, meaning, colour: data.part_colours[part] }, sum(windows, column), windowNs, shown.length);
    }
  }
  return [...found.values()].map((own) => ({ ...own, ns: own.ns / ranks })).sort((a, b) => b.share - a.share);
}

function sum(windows, column) {
  return windows.reduce((total, own) => total + own[column], 0);
}

// A bar as wide as the bubble, a box a part, wide enough to be seen.
function partsBar(parts) {
  const total = parts.reduce((all, own) => all + own.share, 0);
  const words = parts.map((own) => `${own.name} ${percent(own.share)}`).join(", ");
  const bar = element("div", { class: "parts", role: "img", "aria-label": `The bubble of ${percent(total)} of the window: ${words}` });
  for (const own of parts) {
    const box = element("span", { title: `${own.name}: ${percent(own.share)} of the window, ${percent(own.share / total)} of the bubble. ${own.meaning}` });
    box.style.flexGrow = String(own.share / total);
    box.style.background = own.colour;
    bar.append(box);
  }
  return bar;
}

function partsTable(parts) {
  const total = parts.reduce((all, own) => all + own.share, 0);
  const allNs = parts.reduce((all, own) => all + own.ns, 0);
  const unit = commonUnit([allNs]);
  const rows = parts.map((own) => [
    element("span", {}, swatch(own.colour), own.name), share(own.share), share(own.share / total), time(own.ns, unit), own.meaning,
  ]);
  rows.push(["all", share(total), share(1), time(allNs, unit), ""]);
  return table(null, ["part", "% of window", "% of bubble", `time a rank, ${unit[1]}`, "meaning"], rows, { id: "parts", lastText: true });
}

function swatch(colour) {
  const made = element("span", { class: "swatch", "aria-hidden": "true" });
  made.style.background = colour;
  return made;
}
