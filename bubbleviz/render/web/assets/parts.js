// Parts: the parts of the primary ratio in the order of the report, largest first.

function bubbleParts(run) {
  return (run.report.summary.bubble_parts ?? []).map((own) => ({ ...own, color: run.data.part_colors[own.name] }));
}

// A bar with one box per part, wide enough to be visible.
function partsBar(parts) {
  const total = parts.reduce((all, own) => all + own.share, 0);
  const words = parts.map((own) => `${own.name} ${percent(own.share)}`).join(", ");
  const bar = element("div", { class: "parts", role: "img", "aria-label": `Parts of the bubble, which is ${percent(total)} of the window: ${words}` });
  for (const own of parts) {
    const box = element("span", { title: `${own.name}: ${percent(own.share)} of the window, ${percent(own.share / total)} of the bubble. ${own.meaning}` });
    box.style.flexGrow = String(own.share / total);
    box.style.background = own.color;
    bar.append(box);
  }
  return bar;
}

function partsTable(parts) {
  const total = parts.reduce((all, own) => all + own.share, 0);
  const allNs = parts.reduce((all, own) => all + own.time_ns, 0);
  const unit = commonUnit([allNs]);
  const rows = parts.map((own) => [
    element("span", {}, swatch(own.color), own.name), share(own.share), share(own.share / total), time(own.time_ns, unit), own.meaning,
  ]);
  rows.push(["all", share(total), share(1), time(allNs, unit), ""]);
  return table(null, ["part", "% of window", "% of bubble", `time per rank, ${unit[1]}`, "meaning"], rows, { id: "parts", lastText: true });
}

function swatch(color) {
  const made = element("span", { class: "swatch", "aria-hidden": "true" });
  made.style.background = color;
  return made;
}
