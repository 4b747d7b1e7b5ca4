// Numbers and names as people read them, and the elements that hold them. Text from profiles only
// ever goes into text nodes.

const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

function grouped(number, digits) {
  return (number || 0).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// A duration in the unit that leaves one to three digits before the point.
function duration(ns) {
  const size = Math.abs(ns);
  const [unit, name] = UNITS.find(([own]) => size >= own) ?? UNITS.at(-1);
  return `${grouped(ns / unit, unit === 1 ? 0 : 3)} ${name}`;
}

function milliseconds(ns) {
  return ns === null || ns === undefined ? "–" : grouped(ns / 1e6, 3);
}

function percent(ratio, digits = 2) {
  return ratio === null || ratio === undefined ? "–" : `${(100 * ratio).toFixed(digits)} %`;
}

function counted(number, thing) {
  return `${number} ${thing}${number === 1 ? "" : "s"}`;
}

// One line, without characters that cannot be seen, and not too long.
function clean(text, longest = 160) {
  const flat = String(text).replace(/[\p{C}\p{Z}]+/gu, " ").trim();
  return flat.length <= longest ? flat : `${[...flat].slice(0, longest - 1).join("")}…`;
}

// element("td", {class: "number"}, "text", another element, ...)
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function table(caption, headers, rows, { left = 1 } = {}) {
  const cell = (kind) => (value, place) =>
    element(place < left && kind === "td" ? "th" : kind,
      { class: place < left ? "text" : "number", scope: kind === "th" ? "col" : place < left ? "row" : null },
      value instanceof Node ? value : String(value ?? "–"));
  return element("table", {},
    caption ? element("caption", {}, caption) : null,
    element("thead", {}, element("tr", {}, ...headers.map(cell("th")))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell("td"))))));
}

function list(items) {
  return element("ul", {}, ...items.map((item) => element("li", {}, item)));
}
