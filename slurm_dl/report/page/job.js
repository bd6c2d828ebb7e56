// What is said of one job: beside the pointer, and below the chart once it is marked.

const MOST_RUNS_TOLD = 100;
const MOST_NODES_TOLD = 8;
const ENDINGS = { [ENDED]: "end", [PREEMPTED]: "preempted", [MOVED]: "went on at once" };

class JobText {
  constructor(data, jobs) {
    this.jobs = jobs;
    this.nodes = nodesOf(data.nodes);
    this.tickS = data.tick_s;
    // Times that are seconds since 1970; other traces begin wherever they do.
    this.epoch = data.zero_s > 946684800 && data.zero_s < 4102444800 ? data.zero_s : null;
  }

  seconds(tick) { return tick === NEVER ? NaN : tick * this.tickS; }

  when(tick, step = 1) {
    if (tick === NEVER) return "never";
    // Where the date follows, minutes do.
    const told = instant(this.seconds(tick), this.epoch === null || this.seconds(tick) < 86400 ? step : 60);
    if (this.epoch === null) return told;
    const iso = new Date(1000 * (this.epoch + this.seconds(tick))).toISOString();
    return `${told} (${iso.slice(0, 19).replace("T", " ")} UTC)`;
  }

  pairs(schedule, job) {
    const { jobs } = this;
    const finished = schedule.end[job] !== NEVER;
    const jct = finished ? this.seconds(schedule.end[job]) - this.seconds(jobs.submit[job]) : NaN;
    const pairs = [["user", jobs.userOf(job)], ["GPUs", count(jobs.gpus[job])]];
    if (jobs.knowsAccounts) pairs.splice(1, 0, ["account", jobs.accountOf(job)]);
    if (jobs.nameOf(job)) pairs.unshift(["name", jobs.nameOf(job)]);
    pairs.push(
      ["submitted", this.when(jobs.submit[job])],
      ["started", this.when(schedule.start[job])],
      ["ended", finished ? this.when(schedule.end[job]) + (schedule.success[job] ? "" : ", without success") : "not yet"],
      ["JCT", duration(jct)],
      ["waited", duration(schedule.queue[job])],
      ["preemptions", count(schedule.preemptions[job])],
      ["GPU time", gpuTime(schedule.service[job]) + (schedule.lost[job] > 0 ? `, ${gpuTime(schedule.lost[job])} of it lost` : "")],
    );
    return pairs;
  }

  // On which GPUs of which nodes a run was; undefined where that is not known.
  place(schedule, run) {
    if (!schedule.nodesKnown) return undefined;
    const told = new Map();
    for (let b = schedule.blocksFrom[run]; b < schedule.blocksFrom[run + 1]; b++) {
      const first = schedule.blockFirst[b];
      const node = firstWhere(0, this.nodes.length, (n) => this.nodes[n] > first) - 1;
      const name = node + 1 < this.nodes.length ? `n${node + 1}` : "more";
      const low = first - this.nodes[node];
      const high = low + schedule.blockCount[b] - 1;
      told.set(name, [...(told.get(name) ?? []), low === high ? `${low}` : `${low}-${high}`]);
    }
    const places = [...told].map(([name, gpus]) => `${name}: ${gpus.join(", ")}`);
    const more = places.length - MOST_NODES_TOLD;
    return places.slice(0, MOST_NODES_TOLD).join("; ") + (more > 0 ? `; and ${count(more)} more nodes` : "");
  }

  tip(box, schedule, run, tick) {
    const job = schedule.runJob[run];
    const by = schedule.attainedBy(job, tick, this.jobs.gpus[job]) * this.tickS;
    const mine = schedule.runsOf(job);
    const pairs = this.pairs(schedule, job);
    const place = this.place(schedule, run);
    if (place) pairs.push(["on GPUs", place]);
    pairs.push(["run", `${mine.indexOf(run) + 1} of ${mine.length}`], ["attained by then", gpuTime(by)]);
    box.replaceChildren(element("h3", `Job ${this.jobs.id[job]}`), list(pairs));
  }

  details(box, schedule, job) {
    if (job < 0) {
      box.replaceChildren(element("h3", "Job"), element("p", "None is marked."));
      return;
    }
    const runs = schedule.runsOf(job);
    const table = element("table");
    const body = headed(table, ["Run", "from", "to", "for", "then", ...(schedule.nodesKnown ? ["on GPUs"] : [])]);
    runs.slice(0, MOST_RUNS_TOLD).forEach((run, i) => {
      const row = rowOf(body, `${i + 1}`);
      const [from, to] = [schedule.runStart[run], schedule.runEnd[run]];
      for (const text of [instant(this.seconds(from), 1), instant(this.seconds(to), 1),
        duration(this.seconds(to) - this.seconds(from)), ENDINGS[schedule.how[run]]]) row.append(element("td", text));
      if (schedule.nodesKnown) row.append(element("td", this.place(schedule, run)));
    });
    const scroll = element("div", undefined, "scroll");
    scroll.append(table);
    if (runs.length > MOST_RUNS_TOLD) scroll.append(element("p", `and ${count(runs.length - MOST_RUNS_TOLD)} more`, "note"));
    box.replaceChildren(
      element("h3", `Job ${this.jobs.id[job]} under ${schedule.label}`),
      list(this.pairs(schedule, job)),
      runs.length ? scroll : element("p", "It never ran."),
    );
  }
}
