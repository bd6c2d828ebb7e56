// Colours of the canvases, light or dark as the page is, and what bars are coloured by.

// Okabe and Ito (2008) and a brown: colour-blind people tell any two of them apart, on white and on black.
const BARS = ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#0072b2", "#d55e00", "#663311"];
const LINES = {
  light: ["#0072b2", "#d55e00", "#00805d", "#b0417e", "#9a6b00", "#5b55c9", "#000000"],
  dark: ["#62b3ea", "#f59151", "#4fd0a5", "#e59cc6", "#f0c24d", "#a9a5ff", "#ffffff"],
};
const RAMP = {
  light: ["#bfd9ee", "#9cc6e6", "#78b0da", "#5599cb", "#3a80b8", "#2567a2", "#164d86", "#0a3466"],
  dark: ["#1f3850", "#264b6e", "#2e5f8d", "#3a76ad", "#4e8fc9", "#6da9de", "#97c5ee", "#c8e1f9"],
};
// How much of a pixel is in use, from little to all.
const SHARES = { light: RAMP.light.slice(0, 6), dark: RAMP.dark.slice(1, 7) };
const OTHERS = { light: "#c3c8ce", dark: "#5b646e" };
const DASHES = [[], [7, 3], [2, 2.5], [9, 3, 2, 3]];
const GPU_CLASSES = [1, 2, 4, 8, 16, 32, 64];
const PREEMPTION_CLASSES = [0, 1, 2, 5, 10, 20, 50];

const dark = matchMedia("(prefers-color-scheme: dark)");

class Theme {
  constructor(printing) {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(`--${name}`).trim();
    this.kind = dark.matches && !printing ? "dark" : "light";
    const paper = { ground: "#ffffff", text: "#000000", faint: "#444444", line: "#bbbbbb", accent: "#0b5cad",
      mark: "#b3261e" };
    for (const name of Object.keys(paper)) this[name] = printing ? paper[name] : of(name);
    this.font = '12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';
  }

  lineOf(index) {
    const colours = LINES[this.kind];
    return { colour: colours[index % colours.length], dash: DASHES[index % DASHES.length] };
  }
}

// Black or white, whichever can be read on a colour (WCAG's relative luminance).
function inkOn(colour) {
  const parts = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16) / 255);
  const [r, g, b] = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

function classes(limits, values, kind) {
  const names = limits.map((limit, i) => (i && limit > limits[i - 1] + 1 ? `${limits[i - 1] + 1}-${limit}` : `${limit}`));
  names.push(`more than ${limits[limits.length - 1]}`);
  const group = Uint8Array.from(values, (v) => {
    const at = limits.findIndex((limit) => v <= limit);
    return at < 0 ? limits.length : at;
  });
  // A colour means the same under each policy; what is larger than anything here is not told.
  const most = group.reduce((a, b) => Math.max(a, b), 0) + 1;
  return { group, colours: RAMP[kind].slice(0, most), names: names.slice(0, most) };
}

// The group of each job, with the groups' colours and names: users or accounts with most jobs have one of their own.
function colouring(by, jobs, schedule, kind) {
  if (by === "gpus") return classes(GPU_CLASSES, jobs.gpus, kind);
  if (by === "preemptions") return classes(PREEMPTION_CLASSES, schedule.preemptions, kind);
  const [owner, owners] = by === "account" ? [jobs.account, jobs.accounts] : [jobs.user, jobs.users];
  const counts = new Uint32Array(owners.length);
  for (const one of owner) counts[one]++;
  const ranked = [...counts.keys()].filter((o) => counts[o]).sort((a, b) => counts[b] - counts[a] || a - b);
  const own = ranked.length > BARS.length ? BARS.length - 1 : ranked.length;
  const place = new Uint8Array(owners.length).fill(own);
  ranked.slice(0, own).forEach((one, i) => { place[one] = i; });
  const names = ranked.slice(0, own).map((one) => owners[one] || NONE);
  const colours = BARS.slice(0, own);
  if (ranked.length > own) {
    names.push(`${count(ranked.length - own)} others`);
    colours.push(OTHERS[kind]);
  }
  return { group: Uint8Array.from(owner, (one) => place[one]), colours, names };
}

// A canvas made as fine as the screen; its context in CSS pixels, with its size.
function prepared(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(1, canvas.clientWidth);
  const height = Math.max(1, canvas.clientHeight);
  sized(canvas, Math.round(width * ratio), Math.round(height * ratio));
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { context, width, height, ratio };
}

// To set a size, even the same, makes the whole canvas anew.
function sized(canvas, width, height) {
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
}

// What is on a canvas now, for later.
function keepPicture(canvas, kept) {
  sized(kept, canvas.width, canvas.height);
  kept.getContext("2d").drawImage(canvas, 0, 0);
}
