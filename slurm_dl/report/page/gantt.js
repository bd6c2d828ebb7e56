// Drawing the chart: only what is visible, and of bars below a pixel one mark for each pixel of a row.

const GUTTER = 66;
const SHORTEST_LABEL = 5;
const AXIS = 26;
const TOP = 6;
const RIGHT = 12;
const DENSE_BELOW = 1.5;

// From ticks and rows to pixels and back, for a view {t0, t1, r0, r1} on a canvas of a size.
class Frame {
  constructor(view, width, height) {
    Object.assign(this, view);
    this.left = GUTTER;
    this.top = TOP;
    this.width = Math.max(1, width - GUTTER - RIGHT);
    this.height = Math.max(1, height - AXIS - TOP);
    this.right = this.left + this.width;
    this.bottom = this.top + this.height;
    this.perTick = this.width / (view.t1 - view.t0);
    this.perRow = this.height / (view.r1 - view.r0);
  }

  x(tick) { return this.left + (tick - this.t0) * this.perTick; }

  y(row) { return this.top + (row - this.r0) * this.perRow; }

  tick(x) { return this.t0 + (x - this.left) / this.perTick; }

  row(y) { return this.r0 + (y - this.top) / this.perRow; }

  holds(x, y) { return x >= this.left && x < this.right && y >= this.top && y < this.bottom; }

  get isDense() { return this.perRow < DENSE_BELOW; }
}

// Draws all but what is marked; gives back how many marks that took.
function drawBars(context, frame, schedule, jobs, paint, theme) {
  context.save();
  context.beginPath();
  context.rect(frame.left, frame.top, frame.width, frame.height);
  context.clip();
  const marks = frame.isDense
    ? drawDensity(context, frame, schedule, theme)
    : drawRows(context, frame, schedule, jobs, paint, theme);
  context.restore();
  return marks;
}

function drawRows(context, frame, schedule, jobs, paint, theme) {
  const { group } = paint;
  const colours = [...paint.colours, OTHERS[theme.kind]];
  const several = colours.length - 1;
  const inks = colours.map(inkOn);
  // x, y, width, height of the bars of each colour: to change the colour for each would cost more than they do.
  const bars = colours.map(() => []);
  const gap = frame.perRow >= 5 ? 1 : 0;
  const firstRow = Math.max(0, Math.floor(frame.r0));
  const lastRow = Math.min(schedule.rows, Math.ceil(frame.r1));
  const labels = [];
  const ends = [];
  let marks = 0;
  for (let row = firstRow; row < lastRow; row++) {
    const stop = schedule.rowFrom[row + 1];
    let i = schedule.firstEndingAfter(row, frame.t0);
    let free = -Infinity;
    while (i < stop) {
      const block = schedule.rowBlocks[i];
      const from = schedule.startOf(block);
      if (from >= frame.t1) break;
      const run = schedule.blockRun[block];
      const to = schedule.runEnd[run];
      const x0 = Math.max(frame.x(from), frame.left - 2);
      const x1 = Math.min(frame.x(to), frame.right + 2);
      const colour = group[schedule.runJob[run]];
      if (x1 - x0 < 1) {
        // All that is within this pixel is one mark, grey if it is several jobs.
        const pixel = Math.max(Math.floor(x0), free);
        free = pixel + 1;
        const next = schedule.firstEndingAfter(row, frame.tick(pixel + 1), i + 1);
        bars[next > i + 1 ? several : colour].push(pixel, frame.y(row), 1, frame.perRow - gap);
        marks++;
        i = next;
        continue;
      }
      i++;
      const top = Math.max(schedule.blockFirst[block], firstRow);
      if (top !== row) continue;
      const last = Math.min(schedule.blockFirst[block] + schedule.blockCount[block], lastRow);
      const [y0, high] = [frame.y(row), (last - row) * frame.perRow - gap];
      // Neighbours of one colour stay apart.
      bars[colour].push(x0, y0, x1 - x0 - (x1 - x0 >= 4 ? 0.75 : 0), high);
      marks++;
      if (x1 - x0 >= 26 && high >= 11) labels.push([run, x0, x1, y0, high, inks[colour]]);
      if (schedule.how[run] !== ENDED && x1 <= frame.right && x1 - x0 >= 7 && high >= 5) {
        ends.push([schedule.how[run], x1, y0, high, inks[colour]]);
      }
    }
  }
  bars.forEach((of, colour) => {
    if (of.length) context.fillStyle = colours[colour];
    for (let i = 0; i < of.length; i += 4) context.fillRect(of[i], of[i + 1], of[i + 2], of[i + 3]);
  });
  for (const end of ends) drawEnd(context, ...end);
  drawLabels(context, labels, schedule, jobs, frame);
  return marks;
}

// A triangle where a job was preempted, a diamond where it went on at once in another run.
function drawEnd(context, how, x, y, high, ink) {
  const half = Math.min(5, high / 2 - 0.5);
  const middle = y + high / 2;
  context.fillStyle = ink;
  context.beginPath();
  if (how === PREEMPTED) {
    context.moveTo(x - 1, middle - half);
    context.lineTo(x - 1, middle + half);
    context.lineTo(x - 1 - half, middle);
  } else {
    const r = Math.min(4, half);
    context.moveTo(x - 1, middle);
    context.lineTo(x - 1 - r, middle - r);
    context.lineTo(x - 1 - 2 * r, middle);
    context.lineTo(x - 1 - r, middle + r);
  }
  context.closePath();
  context.fill();
}

function drawLabels(context, labels, schedule, jobs, frame) {
  context.textBaseline = "middle";
  context.textAlign = "left";
  const wide = context.measureText("0").width;
  let before = null;
  for (const [run, x0, x1, y0, high, ink] of labels) {
    const from = Math.max(x0, frame.left) + 4;
    const room = Math.floor((Math.min(x1, frame.right) - from - 9) / wide);
    const id = jobs.id[schedule.runJob[run]];
    // One or two characters of an id tell nothing.
    if (room < Math.min(SHORTEST_LABEL, id.length)) continue;
    if (ink !== before) context.fillStyle = before = ink;
    const text = id.length > room ? `${id.slice(0, room - 1)}…` : id;
    context.fillText(text, from, y0 + high / 2 + 0.5);
  }
}

// Where rows are thinner than a line: the share of each pixel that is in use.
function drawDensity(context, frame, schedule, theme) {
  const wide = Math.ceil(frame.width);
  const high = Math.ceil(frame.height);
  const change = new Float32Array((wide + 1) * high);
  const low = Math.max(0, Math.floor(frame.r0));
  const stop = Math.min(schedule.rows, Math.ceil(frame.r1));
  for (let b = 0; b < schedule.blockRun.length; b++) {
    const from = schedule.startOf(b);
    if (from >= frame.t1) break;
    const x0 = Math.max(0, (from - frame.t0) * frame.perTick);
    const x1 = Math.min(wide, (schedule.endOf(b) - frame.t0) * frame.perTick);
    if (x1 <= x0) continue;
    const lastRow = Math.min(stop, schedule.blockFirst[b] + schedule.blockCount[b]);
    for (let row = Math.max(low, schedule.blockFirst[b]); row < lastRow; row++) {
      const y = Math.min(high - 1, Math.floor((row - frame.r0) * frame.perRow));
      if (y >= 0) addSpan(change, y * (wide + 1), x0, x1);
    }
  }
  const image = context.createImageData(wide, high);
  const pixels = new Uint32Array(image.data.buffer);
  const ramp = SHARES[theme.kind].map((c) => {
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16));
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  });
  let marks = 0;
  for (let y = 0; y < high; y++) {
    const first = Math.floor(frame.row(frame.top + y));
    const rows = Math.max(1, Math.min(stop, Math.floor(frame.row(frame.top + y + 1))) - Math.max(low, first));
    let used = 0;
    for (let x = 0; x < wide; x++) {
      used += change[y * (wide + 1) + x];
      const share = Math.min(1, used / rows);
      if (share < 0.004) continue;
      pixels[y * wide + x] = ramp[Math.min(ramp.length - 1, Math.floor(share * ramp.length))];
      marks++;
    }
  }
  const aside = document.createElement("canvas");
  aside.width = wide;
  aside.height = high;
  aside.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(aside, frame.left, frame.top, wide, high);
  return marks;
}

// Adds to the changes of a line of pixels that [x0, x1) is covered; of pixels in part, that part.
function addSpan(change, base, x0, x1) {
  const a = Math.floor(x0);
  const b = Math.floor(x1);
  if (a === b) {
    change[base + a] += x1 - x0;
    change[base + a + 1] -= x1 - x0;
    return;
  }
  const head = a + 1 - x0;
  const tail = x1 - b;
  change[base + a] += head;
  change[base + a + 1] += 1 - head;
  change[base + b] += tail - 1;
  if (tail > 0) change[base + b + 1] -= tail;
}
