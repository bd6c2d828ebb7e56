// The page: decodes the data, and lets the parts know of each other.

const began = performance.now();
const data = JSON.parse(byId("data").textContent);
const jobs = new Jobs(data.jobs);
const schedules = data.schedules.map((one) => new Schedule(one, data.gpus));
const text = new JobText(data, jobs);
const labels = schedules.map((s) => s.label);
let current = 0;

document.title = `${data.title}: ${labels.join(", ")}`;
byId("title").textContent = data.title;
byId("subtitle").textContent = `${count(jobs.count)} ${jobs.count === 1 ? "job" : "jobs"} on ${count(data.gpus)} GPUs (${data.cluster}), `
  + `${duration(data.end_s)} from the first submission to the last end`;

if (data.manifest) {
  byId("how").hidden = false;
  byId("manifest").textContent = JSON.stringify(data.manifest, null, 2);
}

const gantt = new Gantt(byId("gantt"), data, jobs, { hovered, picked, moved, switched });
const charts = [
  new OverTime(byId("used"), "GPUs in use over time", linesOf("used"), { end: data.end_s, most: data.gpus * 1.02, write: number }),
  new OverTime(byId("waiting"), "Jobs waiting over time", linesOf("waiting"), { end: data.end_s, most: null, write: number }),
  new Shares(byId("jct"), "Job completion times", schedules.map((s) => (
    { label: s.label, values: s.jct(jobs).map((t) => t * data.tick_s) }))),
  new Shares(byId("queue"), "Waiting times", schedules.map((s) => ({ label: s.label, values: s.queue }))),
];

function linesOf(what) {
  return schedules.map((s) => ({ label: s.label, values: s.over[what], from: s.over.from, step: s.over.step }));
}

function hovered(run, x, y, tick) {
  const tip = byId("tip");
  tip.hidden = run < 0 || run === undefined;
  if (tip.hidden) return;
  text.tip(tip, schedules[current], run, tick);
  const box = byId("gantt-box");
  const beside = x + 16 + tip.offsetWidth < box.clientWidth ? x + 16 : x - 16 - tip.offsetWidth;
  const below = Math.min(y + 12, box.clientHeight - tip.offsetHeight - 4);
  tip.style.transform = `translate(${Math.max(4, beside)}px, ${Math.max(4, below)}px)`;
}

function picked(job) {
  text.details(byId("details"), schedules[current], job);
  byId("gantt").dataset.pinned = job < 0 ? "" : jobs.id[job];
}

function moved(frame) {
  const shown = [frame.t0 * data.tick_s, frame.t1 * data.tick_s];
  const part = shown[0] <= 0 && shown[1] >= data.end_s ? null : shown;
  for (const chart of charts.slice(0, 2)) chart.shade(part);
  const dense = frame.isDense ? " There are more GPUs than lines: the darker (in the dark: the lighter), the more of them are in use; zoom into them for single jobs." : "";
  const extra = schedules[current].rows > data.gpus ? " Runs that find no GPU free are on the rows below the nodes: jobs share GPUs, or there were more GPUs than these." : "";
  const how = schedules[current].nodesKnown
    ? "A row is a GPU of a node. A run is on the nodes that it held; of the GPUs of a node it has the lowest that were free."
    : "A row is a GPU. On which nodes a run was is not recorded, only how many GPUs it held: runs are put on rows by a fixed rule, and keep theirs where they can.";
  say(byId("rows-note"), `${how}${extra}${dense}`);
  showKey();
}

// Text that is the same as before costs no layout.
function say(box, text) {
  if (box.textContent !== text) box.textContent = text;
}

// Made anew only if it changes: its swatches are canvases, and each asks for a layout.
function showKey() {
  const { colours, names } = gantt.paint;
  const wanted = JSON.stringify([colours, names, gantt.frame.isDense, current, window.devicePixelRatio]);
  if (byId("key").dataset.of === wanted) return;
  byId("key").dataset.of = wanted;
  const entries = gantt.frame.isDense ? [] : names.map((name, i) => keyEntry(name, (context) => {
    context.fillStyle = colours[i];
    context.fillRect(0, 1, 16, 12);
  }));
  const end = (how) => (context) => {
    context.fillStyle = OTHERS[gantt.theme.kind];
    context.fillRect(0, 1, 16, 12);
    drawEnd(context, how, 13, 1, 12, inkOn(OTHERS[gantt.theme.kind]));
  };
  if (gantt.frame.isDense) {
    const shares = SHARES[gantt.theme.kind];
    [["some of the GPUs in use", 0], ["half of them", shares.length / 2], ["all", shares.length - 1]].forEach(([name, i]) => {
      entries.push(keyEntry(name, (context) => {
        context.fillStyle = shares[i];
        context.fillRect(0, 1, 16, 12);
      }));
    });
  } else {
    if (schedules[current].how.includes(PREEMPTED)) entries.push(keyEntry("preempted", end(PREEMPTED)));
    if (schedules[current].how.includes(MOVED)) entries.push(keyEntry("went on at once", end(MOVED)));
  }
  byId("key").replaceChildren(...entries.map(([entry]) => entry));
  for (const [, draw] of entries) draw();
}

function keyEntry(name, paint) {
  const entry = element("span");
  const swatch = element("canvas");
  entry.append(swatch, element("span", name));
  return [entry, () => paint(prepared(swatch).context)];
}

function switched(index) {
  if (index >= schedules.length) return;
  current = index;
  byId(`policy-${index}`).checked = true;
  gantt.show(schedules[index]);
  picked(gantt.pinned);
  showOwners();
  byId("policies").title = schedules[index].about.join("\n");
}

function showOwners() {
  const by = byId("owners").querySelector("input:checked").value;
  showFairness(byId("fairness"), byId("fairness-note"), schedules[current], by);
}

function drawAll(printing) {
  gantt.redraw(printing);
  for (const chart of charts) chart.draw(printing);
}

schedules.forEach((schedule, i) => {
  const label = element("label");
  const radio = element("input");
  Object.assign(radio, { type: "radio", name: "policy", id: `policy-${i}`, checked: i === 0 });
  radio.addEventListener("change", () => switched(i));
  label.append(radio, ` ${schedule.label}`);
  byId("policies").append(label);
});
byId("zoom-in").addEventListener("click", () => gantt.zoomTime(0.6));
byId("zoom-out").addEventListener("click", () => gantt.zoomTime(1 / 0.6));
byId("zoom-all").addEventListener("click", () => gantt.move(gantt.whole()));
byId("save-png").addEventListener("click", () => {
  gantt.redraw(true); // Dark on white, as it is printed.
  byId("gantt").toBlob((picture) => {
    const link = element("a");
    link.href = URL.createObjectURL(picture);
    link.download = `${schedules[current].label}.png`;
    link.click();
    URL.revokeObjectURL(link.href);
  });
  gantt.redraw();
});
if (!jobs.knowsAccounts) {
  byId("colour").querySelector("[value=account]").remove();
  byId("owners").hidden = true;
}
byId("owners").addEventListener("change", showOwners);
byId("colour").value = gantt.by;
byId("colour").addEventListener("change", (event) => {
  gantt.by = event.target.value;
  gantt.redraw();
});
byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const wanted = byId("job").value.trim();
  const job = wanted ? jobs.id.indexOf(wanted) : -1;
  byId("found").textContent = job < 0 && wanted ? "There is no such job." : "";
  if (job >= 0) gantt.seek(job);
  else gantt.pin(-1);
});

showFigures(byId("figures"), schedules);
switched(0);
for (const chart of charts) chart.draw();
let width = 0;
new ResizeObserver(() => {
  if (width && width !== document.documentElement.clientWidth) drawAll(false);
  width = document.documentElement.clientWidth;
}).observe(document.documentElement);
dark.addEventListener("change", () => drawAll(false));
window.addEventListener("beforeprint", () => drawAll(true));
window.addEventListener("afterprint", () => drawAll(false));
document.documentElement.dataset.readyMs = (performance.now() - began).toFixed(1);
