// The chart that people move about in: what is visible, the pointer, the keyboard, what is marked.

const LEAST_TICKS = 20;

class Gantt {
  // `told` has functions: hovered(run, x, y, tick), picked(job), moved(frame), switched(index).
  constructor(canvas, data, jobs, told) {
    this.canvas = canvas;
    this.jobs = jobs;
    this.told = told;
    this.tickS = data.tick_s;
    this.end = data.end_s / data.tick_s;
    this.nodes = nodesOf(data.nodes);
    this.gpus = data.gpus;
    this.pinned = -1;
    this.hovered = -1;
    this.by = jobs.users.length > 1 ? "user" : "gpus";
    this.pointers = new Map();
    this.base = document.createElement("canvas");
    this.listen();
  }

  show(schedule) {
    const first = !this.schedule;
    this.schedule = schedule;
    this.hovered = -1;
    if (first) this.view = this.whole();
    else this.settle(this.view);
    this.redraw();
  }

  whole() {
    return { t0: -0.004 * this.end, t1: 1.004 * this.end, r0: 0, r1: this.schedule.rows };
  }

  // Keeps a view within the chart, and no narrower than can be told apart.
  settle(view) {
    const all = this.whole();
    const clamp = (low, high, span, from, to) => {
      const kept = Math.min(span, to - from);
      const start = Math.min(Math.max(low, from), to - kept);
      return [start, start + kept];
    };
    const least = Math.min(LEAST_TICKS, this.end / 4);
    const [t0, t1] = clamp(view.t0, view.t1, Math.max(least, view.t1 - view.t0), all.t0, all.t1);
    const rows = Math.max(Math.min(2, all.r1), view.r1 - view.r0);
    const [r0, r1] = clamp(view.r0, view.r1, rows, all.r0, all.r1);
    this.view = { t0, t1, r0, r1 };
  }

  move(view) {
    this.settle({ ...this.view, ...view });
    this.redrawSoon();
  }

  zoomTime(factor, at = (this.view.t0 + this.view.t1) / 2) {
    this.move({ t0: at - (at - this.view.t0) * factor, t1: at + (this.view.t1 - at) * factor });
  }

  zoomRows(factor, at = (this.view.r0 + this.view.r1) / 2) {
    this.move({ r0: at - (at - this.view.r0) * factor, r1: at + (this.view.r1 - at) * factor });
  }

  pan(timeShare, rowShare) {
    const { t0, t1, r0, r1 } = this.view;
    const [t, r] = [timeShare * (t1 - t0), rowShare * (r1 - r0)];
    this.move({ t0: t0 + t, t1: t1 + t, r0: r0 + r, r1: r1 + r });
  }

  pin(job) {
    this.pinned = job;
    this.overlay();
    this.told.picked(job);
  }

  // Shows all of a job's life, with some room.
  seek(job) {
    const runs = this.schedule.runsOf(job);
    const from = this.jobs.submit[job];
    const to = runs.length ? this.schedule.runEnd[runs[runs.length - 1]] : this.end;
    const room = Math.max(0.15 * (to - from), 2 * LEAST_TICKS, 0.005 * this.end);
    const rows = Array.from(runs, (r) => this.schedule.blockFirst[this.schedule.blocksFrom[r]]);
    const { r0, r1 } = this.view;
    const inside = rows.every((row) => row >= r0 && row < r1);
    const half = (r1 - r0) / 2;
    this.move({ t0: from - room, t1: to + room, ...(inside ? {} : { r0: rows[0] - half, r1: rows[0] + half }) });
    this.pin(job);
  }

  redrawSoon() {
    if (this.asked) return;
    this.asked = requestAnimationFrame(() => {
      this.asked = 0;
      this.redraw();
    });
  }

  redraw(printing = false) {
    const began = performance.now();
    const { context, width, height, ratio } = prepared(this.canvas);
    const theme = new Theme(printing);
    const frame = new Frame(this.view, width, height);
    const paint = colouring(this.by, this.jobs, this.schedule, theme.kind);
    Object.assign(this, { context, theme, frame, paint, ratio });
    context.font = theme.font;
    context.fillStyle = theme.ground;
    context.fillRect(0, 0, width, height);
    drawNodes(context, frame, this.nodes, this.schedule, theme);
    const step = drawTimes(context, frame, this.tickS, theme);
    const marks = drawBars(context, frame, this.schedule, this.jobs, paint, theme);
    drawBorders(context, frame, this.nodes, theme);
    keepPicture(this.canvas, this.base);
    if (this.pinned >= 0 || this.hovered >= 0) this.overlay();
    Object.assign(this.canvas.dataset, {
      marks,
      drawMs: (performance.now() - began).toFixed(2),
      fromS: frame.t0 * this.tickS,
      toS: frame.t1 * this.tickS,
      firstRow: frame.r0,
      lastRow: frame.r1,
      plot: [frame.left, frame.top, frame.width, frame.height].join(" "),
      policy: this.schedule.label,
    });
    this.told.moved(frame, step);
  }

  // The picture as it was drawn, with the marked jobs over it.
  overlay() {
    const { context, frame, theme } = this;
    context.save();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(this.base, 0, 0);
    context.restore();
    context.save();
    context.beginPath();
    context.rect(frame.left, frame.top, frame.width, frame.height);
    context.clip();
    if (this.pinned >= 0) {
      context.globalAlpha = 0.72;
      context.fillStyle = theme.ground;
      context.fillRect(frame.left, frame.top, frame.width, frame.height);
      context.globalAlpha = 1;
      this.outline(this.pinned, theme.mark, true);
    }
    const job = this.hovered < 0 ? -1 : this.schedule.runJob[this.hovered];
    if (job >= 0 && job !== this.pinned) this.outline(job, theme.text, false);
    context.restore();
  }

  outline(job, colour, filled) {
    const { context, frame, schedule, jobs } = this;
    const fill = this.paint.colours[this.paint.group[job]];
    const waits = frame.x(jobs.submit[job]);
    let marks = 0;
    context.strokeStyle = colour;
    context.lineWidth = 2;
    let before = null;
    for (const run of schedule.runsOf(job)) {
      const x0 = frame.x(schedule.runStart[run]);
      const x1 = Math.max(x0 + 2, frame.x(schedule.runEnd[run]));
      for (let b = schedule.blocksFrom[run]; b < schedule.blocksFrom[run + 1]; b++) {
        const y0 = frame.y(schedule.blockFirst[b]);
        const high = Math.max(3, schedule.blockCount[b] * frame.perRow - 1);
        if (b === schedule.blocksFrom[run]) {
          const middle = y0 + Math.min(high, 12) / 2;
          if (filled) this.link(before ?? { x: waits, y: middle }, { x: x0, y: middle });
          before = { x: x1, y: middle };
        }
        if (x1 < frame.left || x0 > frame.right) continue;
        if (filled) {
          context.fillStyle = fill;
          context.fillRect(x0, y0, x1 - x0, high);
        }
        context.strokeRect(x0, y0, x1 - x0, high);
        if (filled && schedule.how[run] !== ENDED) drawEnd(context, schedule.how[run], x1, y0, high, inkOn(fill));
        marks++;
      }
    }
    this.canvas.dataset.outlined = marks;
  }

  // A dashed line for the time that a job waits.
  link(from, to) {
    const { context } = this;
    context.save();
    context.setLineDash([3, 3]);
    context.lineWidth = 1.25;
    context.beginPath();
    context.moveTo(from.x, from.y);
    context.lineTo(to.x, to.y);
    context.stroke();
    context.restore();
  }

  runUnder(x, y) {
    const { frame, schedule } = this;
    if (!frame.holds(x, y)) return -1;
    const near = 1.5 / frame.perTick;
    const first = Math.floor(frame.row(y));
    // Where rows are thinner than a pixel, any of those that are in it.
    const last = frame.isDense ? Math.min(first + 256, Math.floor(frame.row(y + 1))) : first;
    for (let row = first; row <= last; row++) {
      const run = schedule.runAt(row, frame.tick(x), near);
      if (run >= 0) return run;
    }
    return -1;
  }

  hover(x, y) {
    const run = this.runUnder(x, y);
    const other = run !== this.hovered;
    this.hovered = run;
    if (other) this.overlay();
    this.told.hovered(run, x, y, this.frame.tick(x));
  }

  listen() {
    const { canvas } = this;
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    canvas.addEventListener("wheel", (event) => this.wheel(event, at(event)), { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, at(event));
      this.grip = { ...at(event), view: this.view, far: false };
    });
    canvas.addEventListener("pointermove", (event) => this.dragOrHover(event, at(event)));
    canvas.addEventListener("pointerup", (event) => {
      const held = this.pointers.delete(event.pointerId);
      canvas.classList.remove("moving");
      if (!held || this.pointers.size || this.grip.far) return;
      const { x, y } = at(event);
      const run = this.runUnder(x, y);
      this.pin(run < 0 ? -1 : this.schedule.runJob[run]);
    });
    canvas.addEventListener("pointercancel", (event) => {
      this.pointers.delete(event.pointerId);
      canvas.classList.remove("moving");
    });
    canvas.addEventListener("pointerleave", () => this.hover(-1, -1));
    canvas.addEventListener("dblclick", (event) => this.zoomTime(0.4, this.frame.tick(at(event).x)));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  wheel(event, { x, y }) {
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    const [dx, dy] = [event.deltaX * unit, event.deltaY * unit];
    const factor = Math.exp(Math.max(-1, Math.min(1, dy * (event.ctrlKey ? 0.01 : 0.002))));
    const { t0, t1 } = this.view;
    if (event.shiftKey) this.pan(0, (dy || dx) / this.frame.height);
    else if (event.altKey) this.zoomRows(factor, this.frame.row(y));
    else if (Math.abs(dx) > Math.abs(dy)) this.pan(dx / this.frame.width, 0);
    else {
      this.zoomTime(factor, this.frame.tick(x));
      // Nothing wider to show: the wheel is the page's, unless it is a pinch.
      if (!event.ctrlKey && this.view.t0 === t0 && this.view.t1 === t1) return;
    }
    event.preventDefault();
  }

  dragOrHover(event, point) {
    if (!this.pointers.has(event.pointerId)) {
      this.hover(point.x, point.y);
      return;
    }
    const before = this.pointers.get(event.pointerId);
    if (this.pointers.size === 2) {
      const [other] = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, p]) => p);
      const [was, is] = [before, point].map((p) => Math.max(20, Math.hypot(p.x - other.x, p.y - other.y)));
      this.pointers.set(event.pointerId, point);
      this.grip.far = true;
      this.zoomTime(was / is, this.frame.tick((point.x + other.x) / 2));
      return;
    }
    this.pointers.set(event.pointerId, point);
    const { x, y, view } = this.grip;
    if (!this.grip.far && Math.hypot(point.x - x, point.y - y) < 4) return;
    this.grip.far = true;
    this.canvas.classList.add("moving");
    const t = (x - point.x) / this.frame.perTick;
    const r = (y - point.y) / this.frame.perRow;
    this.move({ t0: view.t0 + t, t1: view.t1 + t, r0: view.r0 + r, r1: view.r1 + r });
    this.told.hovered(-1);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const next = (by) => {
      const job = Math.min(Math.max(this.pinned + by, 0), this.jobs.count - 1);
      if (job >= 0) this.seek(job);
    };
    const vertical = event.shiftKey ? (sign) => this.zoomRows(sign < 0 ? 0.7 : 1 / 0.7) : (sign) => this.pan(0, sign * 0.15);
    const acts = {
      "+": () => this.zoomTime(0.6), "=": () => this.zoomTime(0.6), "-": () => this.zoomTime(1 / 0.6),
      0: () => this.move(this.whole()), Home: () => this.move(this.whole()),
      ArrowLeft: () => this.pan(-0.15, 0), ArrowRight: () => this.pan(0.15, 0),
      ArrowUp: () => vertical(-1), ArrowDown: () => vertical(1),
      n: () => next(1), p: () => next(-1), Escape: () => this.pin(-1),
    };
    const act = Object.hasOwn(acts, event.key) ? acts[event.key] : null;
    if (act) act();
    else if (/^[1-9]$/.test(event.key)) this.told.switched(Number(event.key) - 1);
    else return;
    event.preventDefault();
  }
}

// Where each node's rows begin; its name is n1, n2, ...
function nodesOf(stretches) {
  const first = [0];
  for (const [nodes, gpus] of stretches) {
    for (let i = 0; i < nodes; i++) first.push(first[first.length - 1] + gpus);
  }
  return first;
}

// Node names and the numbers of their GPUs, as many as there is room for, and what is below the last node.
function drawNodes(context, frame, nodes, schedule, theme) {
  const { rows } = schedule;
  const numbered = schedule.nodesKnown && frame.perRow >= 11;
  context.fillStyle = theme.faint;
  context.textAlign = "right";
  context.textBaseline = "middle";
  let free = frame.top - 6;
  for (let n = 0; n < nodes.length; n++) {
    const last = n + 1 < nodes.length ? nodes[n + 1] : rows;
    if (last <= frame.r0 || nodes[n] >= frame.r1 || last === nodes[n]) continue;
    const middle = (Math.max(frame.y(nodes[n]), frame.top) + Math.min(frame.y(last), frame.bottom)) / 2;
    if (middle - 7 < free) continue;
    const isNode = n + 1 < nodes.length;
    context.fillText(isNode ? `n${n + 1}` : "more", frame.left - (numbered && isNode ? 24 : 8), middle);
    free = middle + 7;
    if (!numbered || !isNode) continue;
    for (let row = Math.max(nodes[n], Math.ceil(frame.r0 - 0.4)); row < Math.min(last, frame.r1 - 0.6); row++) {
      context.fillText(`${row - nodes[n]}`, frame.left - 6, frame.y(row + 0.5) + 0.5);
    }
  }
}

function drawBorders(context, frame, nodes, theme) {
  context.lineWidth = 1;
  context.beginPath();
  const each = frame.height / Math.max(1, nodes.filter((r) => r > frame.r0 && r < frame.r1).length);
  // Many lines must not hide what is between them.
  context.strokeStyle = each < 24 ? theme.line : theme.faint;
  for (const row of each < 5 ? [nodes[nodes.length - 1]] : nodes.slice(1)) {
    const y = Math.round(frame.y(row)) - 0.5;
    if (y <= frame.top || y >= frame.bottom) continue;
    context.moveTo(frame.left, y);
    context.lineTo(frame.right, y);
  }
  context.stroke();
  context.strokeStyle = theme.faint;
  context.strokeRect(frame.left - 0.5, frame.top - 0.5, frame.width + 1, frame.height + 1);
}

// The axis of time; gives back its step, seconds.
function drawTimes(context, frame, tickS, theme) {
  const span = (frame.t1 - frame.t0) * tickS;
  const step = timeStep(span, Math.max(2, Math.floor(frame.width / 100)));
  context.textBaseline = "top";
  context.textAlign = "center";
  context.lineWidth = 1;
  for (let i = Math.ceil((frame.t0 * tickS) / step); i * step <= frame.t1 * tickS; i++) {
    const x = Math.round(frame.x((i * step) / tickS)) + 0.5;
    context.strokeStyle = theme.line;
    context.beginPath();
    context.moveTo(x, frame.top);
    context.lineTo(x, frame.bottom + 4);
    context.stroke();
    context.fillStyle = theme.faint;
    if (i >= 0) context.fillText(instant(i * step, step), x, frame.bottom + 7);
  }
  return step;
}
