// Parts: the parts of the primary ratio in the order of the report, largest first.

function listBubbleParts(run) {
  return (run.report.summary.bubble_parts ?? []).map((part) => ({ ...part, color: run.data.part_colors[part.name] }));
}

// A bar with one box per part, wide enough to be visible.
function makePartsBar(parts) {
  const total = parts.reduce((all, part) => all + part.share, 0);
  const words = parts.map((part) => `${part.name} ${percent(part.share)}`).join(", ");
  const bar = element("div", { class: "parts", role: "img", "aria-label": `Parts of the bubble, which is ${percent(total)} of the window: ${words}` });
  for (const part of parts) {
    const box = element("span", { title: `${part.name}: ${percent(part.share)} of the window, ${percent(part.share / total)} of the bubble. ${part.meaning}` });
    box.style.flexGrow = String(part.share / total);
    box.style.background = part.color;
    bar.append(box);
  }
  return bar;
}

function makePartsTable(parts) {
  const total = parts.reduce((all, part) => all + part.share, 0);
  const allNs = parts.reduce((all, part) => all + part.time_ns, 0);
  const unit = chooseCommonUnit([allNs]);
  const rows = parts.map((part) => [
    element("span", {}, makeSwatch(part.color), part.name), makeShareCell(part.share), makeShareCell(part.share / total), makeTimeCell(part.time_ns, unit), part.meaning,
  ]);
  rows.push(["all", makeShareCell(total), makeShareCell(1), makeTimeCell(allNs, unit), ""]);
  return table(null, ["part", "% of window", "% of bubble", `time per rank, ${unit[1]}`, "meaning"], rows, { id: "parts", lastText: true });
}

function makeSwatch(color) {
  const made = element("span", { class: "swatch", "aria-hidden": "true" });
  made.style.background = color;
  return made;
}
