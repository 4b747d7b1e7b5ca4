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
const LEAST = 0.01;

function grouped(number, digits = 0) {
  return (number || 0).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// Number of decimals with which a number has the given number of significant digits.
function decimalsOf(number, digits = DIGITS) {
  const rounded = Math.abs(Number(number.toPrecision(digits)));
  return Math.max(0, digits - Math.floor(Math.log10(rounded) + 1e-9) - 1);
}

// A number with three significant digits, but no more than `decimals` decimals.
function significant(number, decimals = 12) {
  if (!number) return "0";
  return grouped(Number(number.toPrecision(DIGITS)), Math.min(decimals, decimalsOf(number)));
}

// The largest unit in which a duration is at least 1, as [nanoseconds, name].
function unitOf(ns) {
  const size = Math.abs(Number((ns || 0).toPrecision(DIGITS)));
  return UNITS.find(([own]) => size >= own) ?? UNITS.at(-1);
}

function duration(ns) {
  const [unit, name] = unitOf(ns);
  return `${significant(ns / unit)} ${name}`;
}

function exactly(ns) {
  return `${grouped(ns, Number.isInteger(ns) ? 0 : 1)} ns`;
}

function percent(ratio) {
  if (ratio === null || ratio === undefined) return "–";
  const size = Math.abs(100 * ratio);
  if (size > 0 && size < LEAST) return `${ratio < 0 ? "> −" : "< "}${LEAST} %`;
  return `${significant(100 * ratio, 2)} %`;
}

function counted(number, thing) {
  return `${grouped(number)} ${thing}${number === 1 ? "" : "s"}`;
}

// --- table cells: a rounded value with the exact value as title

function share(ratio) {
  return ratio === null || ratio === undefined ? "–" : element("span", { title: `${(100 * ratio).toPrecision(10)} %` }, percent(ratio));
}

function time(ns, unit) {
  return ns === null || ns === undefined ? "–" : element("span", { title: exactly(ns) }, inUnit(ns, unit));
}

// A time in the unit of its table, with at least the table's number of decimals. A short time has
// three significant digits, but no more than four decimals.
function inUnit(ns, [size, , decimals = 0]) {
  if (!ns) return "0";
  return grouped(ns / size, Math.max(decimals, Math.min(4, decimalsOf(ns / size))));
}

// Returns the unit for a column or table of durations, as [nanoseconds, name, decimals]. It is the
// unit of the longest duration, but ms if that duration is between 1 s and 100 s. With the decimals,
// the longest duration has TIME_DIGITS significant digits.
function commonUnit(durations) {
  const most = durations.reduce((longest, ns) => Math.max(longest, Math.abs(ns ?? 0)), 0);
  const [size, name] = unitOf(most >= 1e9 && most < 1e11 ? 1e6 : most);
  return [size, name, most ? decimalsOf(most / size, TIME_DIGITS) : 0];
}

// Text on one line, without invisible characters, and truncated to `longest` characters.
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

function quiet(text) {
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
    const meaning = meaningOf(name);
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
function explained(name, made) {
  const names = [...made.querySelectorAll("thead th")].map((own) => own.textContent);
  const meanings = names.filter((own) => meaningOf(own));
  const box = element("div", { class: "wide", tabindex: 0, role: "region", "aria-label": `table: ${name}` }, made);
  if (!meanings.length) return [box];
  const terms = element("dl", { class: "meanings" }, ...meanings.flatMap((own) => [element("dt", {}, own), element("dd", {}, meaningOf(own))]));
  const button = element("button", { type: "button", class: "link", "aria-expanded": "false", "aria-label": `What the columns mean: ${name}` }, "What the columns mean");
  button.addEventListener("click", () => button.setAttribute("aria-expanded", String(terms.classList.toggle("open"))));
  return [box, button, terms];
}
