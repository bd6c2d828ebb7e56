// Numbers and times for people, columns from base64, and elements that hold text and no markup.

const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
const NONE = "-";

function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  const digits = size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3;
  if (value === 0) return "0";
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

function count(value) {
  return Number.isFinite(value) ? value.toLocaleString("en") : NONE;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
  const [sign, inS] = UNITS.find(([, s]) => Math.abs(seconds) >= 1.999 * s) ?? UNITS[3];
  return `${number(seconds / inS)} ${sign}`;
}

// An instant, seconds since the first submission: in whole units, as fine as `step` asks for.
function instant(seconds, step) {
  let left = Math.max(0, seconds);
  if (step < 1) return `${left.toFixed(Math.min(3, Math.ceil(-Math.log10(step) - 1e-9)))} s`;
  left = Math.round(left);
  const told = [];
  for (const [sign, inS] of UNITS) {
    const whole = Math.floor(left / inS);
    left -= whole * inS;
    if (whole) told.push(`${whole} ${sign}`);
    if (step >= inS) break;
  }
  return told.join(" ") || "0";
}

function percent(share) {
  return Number.isFinite(share) && share !== null ? `${(100 * share).toFixed(1)}%` : NONE;
}

function gpuTime(gpuSeconds) {
  if (!Number.isFinite(gpuSeconds) || gpuSeconds === null) return NONE;
  return gpuSeconds < 3600 ? `${number(gpuSeconds)} GPU-s` : `${number(gpuSeconds / 3600)} GPU-h`;
}

function column(text, Type) {
  const read = atob(text);
  const bytes = new Uint8Array(read.length);
  for (let i = 0; i < read.length; i++) bytes[i] = read.charCodeAt(i);
  return new Type(bytes.buffer);
}

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function byId(id) {
  return document.getElementById(id);
}

// A terms-and-values list.
function list(pairs) {
  const made = element("dl");
  for (const [term, value] of pairs) made.append(element("dt", term), element("dd", value));
  return made;
}

// Round steps of an axis of time, at most `most` of them within `span` seconds.
function timeStep(span, most) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
    86400, 172800, 432000, 864000, 1728000, 4320000, 8640000, 31536000, 315360000];
  const least = span / most;
  if (least < 1) return roundStep(span, most);
  return steps.find((step) => step >= least) ?? roundStep(span, most);
}

function roundStep(span, most) {
  const least = span / most;
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= least * 0.999999);
}
