// The data, decoded: jobs, and for each policy runs, the blocks they are drawn as, and where a row's are.

const NEVER = 2 ** 32 - 1;
const [ENDED, PREEMPTED, MOVED] = [0, 1, 2];

// The first index in [low, high) for which `holds` is true; `high` if none is. `holds` is false, then true.
function firstWhere(low, high, holds) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

class Jobs {
  constructor(data) {
    this.id = data.id;
    this.count = data.id.length;
    this.user = column(data.user, Uint32Array);
    this.users = data.users;
    this.name = column(data.name, Uint32Array);
    this.names = data.names;
    this.account = column(data.account, Uint32Array);
    this.accounts = data.accounts;
    this.gpus = column(data.gpus, Float32Array);
    this.submit = column(data.submit, Uint32Array);
  }

  nameOf(job) {
    return this.name.length ? this.names[this.name[job]] : "";
  }

  // Undefined where no job has one.
  accountOf(job) {
    return this.knowsAccounts ? this.accounts[this.account[job]] || NONE : undefined;
  }

  get knowsAccounts() {
    return this.accounts.some(Boolean);
  }

  userOf(job) {
    return this.users[this.user[job]] || NONE;
  }
}

class Schedule {
  constructor(data, rows) {
    this.label = data.label;
    this.about = data.about;
    this.figures = data.figures;
    this.users = data.users;
    this.accounts = data.accounts;
    this.nodesKnown = data.nodes_known;
    this.start = column(data.start, Uint32Array);
    this.end = column(data.end, Uint32Array);
    this.preemptions = column(data.preemptions, Uint32Array);
    this.service = column(data.service_gpu_s, Float32Array);
    this.lost = column(data.lost_gpu_s, Float32Array);
    this.queue = column(data.queue_s, Float32Array);
    this.success = column(data.success, Uint8Array);
    this.runJob = column(data.runs.job, Uint32Array);
    this.runStart = column(data.runs.start, Uint32Array);
    this.runEnd = column(data.runs.end, Uint32Array);
    this.how = column(data.runs.how, Uint8Array);
    this.blockRun = column(data.blocks.run, Uint32Array);
    this.blockFirst = column(data.blocks.first, Uint32Array);
    this.blockCount = column(data.blocks.count, Uint32Array);
    this.rows = rows + data.extra_rows;
    this.over = {
      from: data.over_time.from_s,
      step: data.over_time.step_s,
      used: column(data.over_time.gpus_used, Float32Array),
      waiting: column(data.over_time.jobs_waiting, Float32Array),
    };
    this.indexRows();
    this.indexJobs();
  }

  // Blocks of each row, in the order of time: runs are in it, and so are blocks.
  indexRows() {
    const { blockFirst, blockCount } = this;
    const from = new Uint32Array(this.rows + 1);
    for (let b = 0; b < blockFirst.length; b++) {
      for (let i = 0; i < blockCount[b]; i++) from[blockFirst[b] + i + 1]++;
    }
    for (let row = 0; row < this.rows; row++) from[row + 1] += from[row];
    const next = from.slice();
    const blocks = new Uint32Array(from[this.rows]);
    for (let b = 0; b < blockFirst.length; b++) {
      for (let i = 0; i < blockCount[b]; i++) blocks[next[blockFirst[b] + i]++] = b;
    }
    this.rowFrom = from;
    this.rowBlocks = blocks;
  }

  // Runs of each job, and blocks of each run.
  indexJobs() {
    const runs = this.runJob.length;
    const from = new Uint32Array(this.start.length + 1);
    for (let r = 0; r < runs; r++) from[this.runJob[r] + 1]++;
    for (let j = 0; j < this.start.length; j++) from[j + 1] += from[j];
    const next = from.slice();
    this.jobRuns = new Uint32Array(runs);
    for (let r = 0; r < runs; r++) this.jobRuns[next[this.runJob[r]]++] = r;
    this.jobFrom = from;
    this.blocksFrom = new Uint32Array(runs + 1);
    for (const r of this.blockRun) this.blocksFrom[r + 1]++;
    for (let r = 0; r < runs; r++) this.blocksFrom[r + 1] += this.blocksFrom[r];
  }

  runsOf(job) {
    return this.jobRuns.subarray(this.jobFrom[job], this.jobFrom[job + 1]);
  }

  startOf(block) {
    return this.runStart[this.blockRun[block]];
  }

  endOf(block) {
    return this.runEnd[this.blockRun[block]];
  }

  // Where in `rowBlocks` a row's first block is that ends after the tick.
  firstEndingAfter(row, tick, low = this.rowFrom[row]) {
    return firstWhere(low, this.rowFrom[row + 1], (i) => this.endOf(this.rowBlocks[i]) > tick);
  }

  // The run on a row at a tick, or one that is at most `near` ticks away; -1 if there is none.
  runAt(row, tick, near) {
    if (row < 0 || row >= this.rows) return -1;
    const last = this.rowFrom[row + 1];
    const at = this.firstEndingAfter(row, tick);
    let found = -1;
    let least = near;
    for (const i of [at - 1, at]) {
      if (i < this.rowFrom[row] || i >= last) continue;
      const block = this.rowBlocks[i];
      const away = Math.max(0, this.startOf(block) - tick, tick - this.endOf(block));
      if (away <= least) {
        found = this.blockRun[block];
        least = away;
      }
    }
    return found;
  }

  // GPU-ticks that a job has had by a tick, over all its runs.
  attainedBy(job, tick, gpus) {
    let sum = 0;
    for (const r of this.runsOf(job)) {
      sum += Math.max(0, Math.min(tick, this.runEnd[r]) - this.runStart[r]);
    }
    return sum * gpus;
  }

  // Ticks, or NaN, from the submission to the end of each job.
  jct(jobs) {
    return Float64Array.from(this.end, (end, j) => (end === NEVER ? NaN : end - jobs.submit[j]));
  }
}
