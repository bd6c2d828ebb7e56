// Charts of lines, one for each policy: shares of jobs by time, and means over time.

const CHART = { left: 46, right: 14, top: 8, bottom: 26 };
const LOG_TIMES = [1e-3, 1e-2, 0.1, 1, 10, 60, 600, 3600, 21600, 86400, 604800, 2592000, 31536000];
const FINE_LOG_TIMES = [1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800,
  3600, 7200, 10800, 21600, 43200, 86400, 172800, 345600, 604800, 1209600, 2592000, 7776000, 31536000, 63072000];

class Chart {
  // `lines`: {label, points(width) or values}. See the two kinds below.
  constructor(canvas, caption, lines) {
    Object.assign(this, { canvas, lines });
    this.key = element("div", undefined, "key");
    this.said = element("span", "", "note");
    canvas.after(this.key);
    canvas.previousElementSibling.append(" ", this.said);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${caption}: ${lines.map((l) => `${l.label} ${l.told}`).join("; ")}`);
    canvas.addEventListener("pointermove", (event) => this.read(event.offsetX));
    canvas.addEventListener("pointerleave", () => { this.said.textContent = ""; });
  }

  begin(printing) {
    const { context, width, height } = prepared(this.canvas);
    const theme = new Theme(printing);
    const box = { left: CHART.left, top: CHART.top, right: width - CHART.right, bottom: height - CHART.bottom };
    context.font = theme.font;
    context.fillStyle = theme.ground;
    context.fillRect(0, 0, width, height);
    Object.assign(this, { context, theme, box });
  }

  x(share) { return this.box.left + share * (this.box.right - this.box.left); }

  y(share) { return this.box.bottom - share * (this.box.bottom - this.box.top); }

  gridY(share, text) {
    const { context, theme, box } = this;
    const y = Math.round(this.y(share)) + 0.5;
    this.line([[box.left, y], [box.right, y]], theme.line, [], 1);
    context.fillStyle = theme.faint;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText(text, box.left - 6, y);
  }

  gridX(share, text) {
    const { context, theme, box } = this;
    const x = Math.round(this.x(share)) + 0.5;
    this.line([[x, box.top], [x, box.bottom + 4]], theme.line, [], 1);
    context.fillStyle = theme.faint;
    context.textAlign = "center";
    context.textBaseline = "top";
    context.fillText(text, Math.min(x, box.right + CHART.right - context.measureText(text).width / 2), box.bottom + 7);
  }

  line(points, colour, dash, width) {
    const { context } = this;
    context.save();
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.lineJoin = "round";
    context.setLineDash(dash);
    context.beginPath();
    points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.stroke();
    context.restore();
  }

  // What each line is, drawn as the line is.
  keys() {
    this.key.replaceChildren(...this.lines.map((line, i) => {
      const entry = element("span");
      const swatch = element("canvas");
      entry.append(swatch, element("span", `${line.label}, ${line.told}`));
      queueMicrotask(() => {
        const { context, width, height } = prepared(swatch);
        const { colour, dash } = this.theme.lineOf(i);
        context.strokeStyle = colour;
        context.lineWidth = 2;
        context.setLineDash(dash);
        context.beginPath();
        context.moveTo(0, height / 2);
        context.lineTo(width, height / 2);
        context.stroke();
      });
      return entry;
    }));
  }
}

// Share of values at most x, over a logarithmic x.
class Shares extends Chart {
  constructor(canvas, caption, lines) {
    for (const line of lines) {
      line.sorted = Float64Array.from(line.values.filter(Number.isFinite)).sort();
      line.told = line.sorted.length ? `median ${duration(median(line.sorted))}` : "no job finished";
    }
    super(canvas, caption, lines);
    const all = lines.flatMap((l) => (l.sorted.length ? [l.sorted[0], l.sorted[l.sorted.length - 1]] : []));
    const positive = lines.map((l) => l.sorted.find((v) => v > 0)).filter((v) => v !== undefined);
    this.most = Math.max(1, ...all) * 1.15;
    this.least = Math.max(this.most / 1e6, Math.min(this.most / 10, ...positive) / 1.15);
  }

  share(line, seconds) {
    const { sorted } = line;
    return firstWhere(0, sorted.length, (i) => sorted[i] > seconds) / sorted.length;
  }

  // Those of `times` that are shown and leave room for each other's words, with where they are.
  times(times) {
    const decades = Math.log(this.most / this.least);
    const room = 64 / (this.box.right - this.box.left);
    const found = [];
    for (const time of times) {
      const share = Math.log(time / this.least) / decades;
      const free = found.length ? found[found.length - 1][0] + room : 0;
      if (share >= free && share <= 1) found.push([share, time]);
    }
    return found;
  }

  at(share) { return this.least * (this.most / this.least) ** share; }

  draw(printing) {
    this.begin(printing);
    for (const share of [0, 0.25, 0.5, 0.75, 1]) this.gridY(share, `${100 * share}%`);
    const coarse = this.times(LOG_TIMES);
    const times = coarse.length < 3 ? this.times(FINE_LOG_TIMES) : coarse;
    for (const [share, time] of times) this.gridX(share, instant(time, time));
    this.lines.forEach((line, i) => {
      if (!line.sorted.length) return;
      const points = [];
      const wide = this.box.right - this.box.left;
      for (let px = 0; px <= wide; px++) {
        points.push([this.box.left + px, this.y(this.share(line, this.at(px / wide)))]);
      }
      const { colour, dash } = this.theme.lineOf(i);
      this.line(points, colour, dash, 2);
    });
    this.keys();
  }

  read(x) {
    const share = (x - this.box.left) / (this.box.right - this.box.left);
    const time = this.at(Math.min(1, Math.max(0, share)));
    const told = this.lines.filter((l) => l.sorted.length).map((l) => `${l.label} ${percent(this.share(l, time))}`);
    this.said.textContent = `at most ${duration(time)}: ${told.join(", ")}`;
  }
}

// Means over windows of one length.
class OverTime extends Chart {
  // `most`: what the top of the chart is; null: the largest value. `write` tells a value.
  constructor(canvas, caption, lines, { end, most, write }) {
    for (const line of lines) line.told = `mean ${write(mean(line.values))}`;
    super(canvas, caption, lines);
    const largest = lines.reduce((top, l) => l.values.reduce((a, b) => Math.max(a, b), top), 0);
    Object.assign(this, { end, write, most: most ?? Math.max(1, largest * 1.06), shown: null });
    this.base = document.createElement("canvas");
  }

  draw(printing) {
    this.begin(printing);
    const { box, theme } = this;
    const rise = Math.max(1, roundStep(this.most, 5));  // GPUs and jobs are whole.
    for (let v = 0; v <= this.most * 1.0001; v += rise) this.gridY(v / this.most, v.toLocaleString("en", { maximumFractionDigits: 2 }));
    const step = timeStep(this.end, Math.max(2, Math.floor((box.right - box.left) / 90)));
    for (let i = 0; i * step <= this.end; i++) this.gridX((i * step) / this.end, instant(i * step, step));
    this.lines.forEach((line, i) => {
      const { colour, dash } = theme.lineOf(i);
      this.line(this.points(line), colour, dash, 1.6);
    });
    this.keys();
    keepPicture(this.canvas, this.base);
    this.drawShade();
  }

  // Shades what is shown elsewhere, [from, to] in seconds or null, and draws nothing else anew.
  shade(shown) {
    this.shown = shown;
    if (!this.box) return;
    const { context } = this;
    context.save();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(this.base, 0, 0);
    context.restore();
    this.drawShade();
  }

  drawShade() {
    if (!this.shown) return;
    const { context, box, theme } = this;
    const [low, high] = this.shown.map((t) => this.x(Math.min(1, Math.max(0, t / this.end))));
    context.fillStyle = theme.accent;
    context.globalAlpha = 0.13;
    context.fillRect(low, box.top, Math.max(1, high - low), box.bottom - box.top);
    context.globalAlpha = 1;
  }

  // One for each window, in its middle.
  points(line) {
    const points = [];
    line.values.forEach((value, i) => {
      const time = line.from + (i + 0.5) * line.step;
      points.push([this.x(time / this.end), this.y(Math.min(1, value / this.most))]);
    });
    return points;
  }

  read(x) {
    const time = Math.max(0, (x - this.box.left) / (this.box.right - this.box.left)) * this.end;
    const told = this.lines.map((line) => {
      const value = line.values[Math.floor((time - line.from) / line.step)];
      return `${line.label} ${value === undefined ? NONE : this.write(value)}`;
    });
    this.said.textContent = `${instant(time, this.end / 200)}: ${told.join(", ")}`;
  }
}

// Of sorted values; between two in the middle their mean.
function median(sorted) {
  const half = sorted.length / 2;
  return (sorted[Math.ceil(half) - 1] + sorted[Math.floor(half)]) / 2;
}

function mean(values) {
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : NaN;
}
