// The figures of each policy, and of each user, as tables.

const FIGURES = [
  ["Jobs finished", (f) => `${count(f.finished)} of ${count(f.jobs)}`, null],
  ["Mean JCT", (f) => duration(f.avg_jct_s), (f) => f.avg_jct_s],
  ["Median JCT", (f) => duration(f.median_jct_s), (f) => f.median_jct_s],
  ["99th percentile of the JCT", (f) => duration(f.p99_jct_s), (f) => f.p99_jct_s],
  ["Mean waiting, all of it", (f) => duration(f.avg_queue_s), (f) => f.avg_queue_s],
  ["Mean wait for the first start", (f) => duration(f.avg_wait_s), (f) => f.avg_wait_s],
  ["Makespan", (f) => duration(f.makespan_s), (f) => f.makespan_s],
  ["GPUs in use", (f) => percent(f.utilisation_frac), (f) => -f.utilisation_frac],
  ["Preemptions", (f) => count(f.preemptions), (f) => f.preemptions],
  ["GPU time lost", (f) => gpuTime(f.gpu_s_lost), (f) => f.gpu_s_lost],
  ["Mean finish-time fairness (rho)", (f) => number(f.avg_rho), (f) => f.avg_rho],
  ["Jobs with rho above 1.05", (f) => percent(f.unfair_frac), (f) => f.unfair_frac],
  ["Jain's index over users", (f) => number(f.jain), (f) => -f.jain],
];

function headed(table, names) {
  const row = element("tr");
  for (const name of names) {
    const cell = element("th", name);
    cell.scope = "col";
    row.append(cell);
  }
  const head = element("thead");
  head.append(row);
  const body = element("tbody");
  table.replaceChildren(head, body);
  return body;
}

function rowOf(body, name) {
  const row = element("tr");
  const head = element("th", name);
  head.scope = "row";
  head.title = name;  // A long one is cut.
  row.append(head);
  body.append(row);
  return row;
}

function showFigures(table, schedules) {
  const body = headed(table, ["", ...schedules.map((s) => s.label)]);
  for (const [name, write, order] of FIGURES) {
    const row = rowOf(body, name);
    const told = schedules.map((s) => write(s.figures));
    const keys = schedules.map((s) => (order ? order(s.figures) : NaN));
    const known = told.map((text) => text !== NONE);
    const best = Math.min(...keys.filter((k, i) => known[i] && Number.isFinite(k)));
    const winner = told[keys.findIndex((k, i) => known[i] && k === best)];
    const differ = order && new Set(told).size > 1;
    told.forEach((text) => {
      const cell = element("td", text, schedules.length > 1 ? (differ && text === winner ? "best" : "other") : "");
      row.append(cell);
    });
  }
}

const OWNERS = { user: { one: "User", many: "users" }, account: { one: "Account", many: "accounts" } };

// How users or accounts (`by`) fared under one policy.
function showFairness(table, note, schedule, by) {
  const { one, many } = OWNERS[by];
  const { shown, in_all: all, jain, service_gpu_s: whole } = schedule[many];
  const most = shown.length < all ? ` The ${count(shown.length)} of ${count(all)} with the most GPU time are shown.` : "";
  note.textContent = `Under ${schedule.label}; Jain's index over ${many}: ${number(jain)}. rho is a job's completion time over `
    + "what it would have taken with an equal share of the cluster of its own (Themis, NSDI'20): above 1 sharing "
    + `cost it time.${most}`;
  const body = headed(table, [one, "Jobs", "GPU time", "Share", "Mean JCT", "Mean waiting", "Mean rho", "Largest rho", "rho above 1.05"]);
  for (const owner of shown) {
    const row = rowOf(body, owner.name || NONE);
    const share = whole > 0 ? owner.service_gpu_s / whole : 0;
    row.append(element("td", count(owner.jobs)), element("td", gpuTime(owner.service_gpu_s)), shareCell(percent(share), share));
    for (const time of [owner.avg_jct_s, owner.avg_queue_s]) row.append(element("td", duration(time)));
    for (const rho of [owner.avg_rho, owner.max_rho]) row.append(element("td", number(rho)));
    row.append(element("td", percent(owner.unfair_frac)));
  }
}

function shareCell(text, share) {
  const cell = element("td", text);
  const room = element("span", undefined, "room");
  const bar = element("span", undefined, "share");
  bar.style.width = `${5.5 * share}em`;
  room.append(bar);
  cell.append(room);
  return cell;
}
