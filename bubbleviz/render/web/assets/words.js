// Formatting: numbers and names as text, and HTML elements. Text from profiles is only ever put
// into text nodes.
//
// Numbers have three significant digits: 27.3 %, 4.50 ms, 0.0123. Counts are integers. The exact
// value of a number is in its title, and in --json. Times in a table have more digits, so that times
// that differ by 0.01 % look different.

const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
const DIGITS = 3;
// Number of significant digits of the longest time in a table.
const TIME_DIGITS = 5;
// Minimum percentage that is printed as a number. Smaller ones are printed as "< 0.01 %".
const MIN_PERCENTAGE = 0.01;

function formatNumber(number, digits = 0) {
  return (number || 0).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// Number of decimals with which a number has the given number of significant digits.
function countDecimals(number, digits = DIGITS) {
  const rounded = Math.abs(Number(number.toPrecision(digits)));
  return Math.max(0, digits - Math.floor(Math.log10(rounded) + 1e-9) - 1);
}

// A number with three significant digits, but no more than `decimals` decimals.
function significant(number, decimals = 12) {
  if (!number) return "0";
  return formatNumber(Number(number.toPrecision(DIGITS)), Math.min(decimals, countDecimals(number)));
}

// The largest unit in which a duration is at least 1, as [nanoseconds, name].
function chooseUnit(ns) {
  const size = Math.abs(Number((ns || 0).toPrecision(DIGITS)));
  return UNITS.find(([unitNs]) => size >= unitNs) ?? UNITS.at(-1);
}

function duration(ns) {
  const [unit, name] = chooseUnit(ns);
  return `${significant(ns / unit)} ${name}`;
}

function formatExact(ns) {
  return `${formatNumber(ns, Number.isInteger(ns) ? 0 : 1)} ns`;
}

function percent(ratio) {
  if (ratio === null || ratio === undefined) return "–";
  const size = Math.abs(100 * ratio);
  if (size > 0 && size < MIN_PERCENTAGE) return `${ratio < 0 ? "> −" : "< "}${MIN_PERCENTAGE} %`;
  return `${significant(100 * ratio, 2)} %`;
}

function formatCount(number, thing) {
  return `${formatNumber(number)} ${thing}${number === 1 ? "" : "s"}`;
}

// --- table cells: a rounded value with the exact value as title

function makeShareCell(ratio) {
  return ratio === null || ratio === undefined ? "–" : element("span", { title: `${(100 * ratio).toPrecision(10)} %` }, percent(ratio));
}

function makeTimeCell(ns, unit) {
  return ns === null || ns === undefined ? "–" : element("span", { title: formatExact(ns) }, formatInUnit(ns, unit));
}

// A time in the unit of its table, with at least the table's number of decimals. A short time has
// three significant digits, but no more than four decimals.
function formatInUnit(ns, [size, , decimals = 0]) {
  if (!ns) return "0";
  return formatNumber(ns / size, Math.max(decimals, Math.min(4, countDecimals(ns / size))));
}

// Returns the unit for a column or table of durations, as [nanoseconds, name, decimals]. It is the
// unit of the longest duration, but ms if that duration is between 1 s and 100 s. With the decimals,
// the longest duration has TIME_DIGITS significant digits.
function chooseCommonUnit(durations) {
  const most = durations.reduce((longest, ns) => Math.max(longest, Math.abs(ns ?? 0)), 0);
  const [size, name] = chooseUnit(most >= 1e9 && most < 1e11 ? 1e6 : most);
  return [size, name, most ? countDecimals(most / size, TIME_DIGITS) : 0];
}

// Text on one line, without invisible characters, and truncated to `longest` characters.
function cleanText(text, longest = 160) {
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

function makeNote(text) {
  return element("p", { class: "quiet" }, text);
}

function list(items) {
  return element("ul", {}, ...items.map((item) => element("li", {}, item)));
}

// A table: `left` columns of text, followed by columns of numbers. A header's title explains its column.
function table(caption, headers, rows, { left = 1, id = null, lastText = false } = {}) {
  const body = (value, place) => element(place < left ? "th" : "td",
    { class: place < left ? "text" : "number", scope: place < left ? "row" : null },
    value instanceof Node ? value : String(value ?? "–"));
  const head = (name, place) => {
    const meaning = findMeaning(name);
    return name === "" ? element("td")
      : element("th", { class: place < left ? "text" : "number", scope: "col", title: meaning },
        meaning ? element("span", { class: "defined" }, name) : name);
  };
  return element("table", { id, class: lastText ? "last-text" : null },
    caption ? element("caption", {}, caption) : null,
    element("thead", {}, element("tr", {}, ...headers.map(head))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(body)))));
}

// A table that scrolls if it is too wide, and the meanings of its columns, shown on demand and in print.
function explainTable(name, made) {
  const names = [...made.querySelectorAll("thead th")].map((header) => header.textContent);
  const meanings = names.filter((header) => findMeaning(header));
  const box = element("div", { class: "wide", tabindex: 0, role: "region", "aria-label": `table: ${name}` }, made);
  if (!meanings.length) return [box];
  const terms = element("dl", { class: "meanings" }, ...meanings.flatMap((header) => [element("dt", {}, header), element("dd", {}, findMeaning(header))]));
  const button = element("button", { type: "button", class: "link", "aria-expanded": "false", "aria-label": `What the columns mean: ${name}` }, "What the columns mean");
  button.addEventListener("click", () => button.setAttribute("aria-expanded", String(terms.classList.toggle("open"))));
  return [box, button, terms];
}
