// A report: pages of an application in one file. In place of a server this script answers what the time line and its memory
// ask for, from the data of the file, as detail.rs does; and it sorts the tables.
const DATA = JSON.parse(document.getElementById("report-data").textContent);
const TIMELINE = DATA.timeline;
/** Cells of an answer, pixels of one, shortest window and most lanes, as in detail.rs. */
const CELLS = 30000;
const CELL_PIXELS = 2;
const SHORTEST_MS = 20;
const MOST_LANES = 256;
const PARTS_COUNT = TIMELINE.parts.length - 1;
/** Lanes as a server's answer has them. */
const LANES = TIMELINE.lanes.executor.map((at, lane) => {
  const { id, host } = TIMELINE.executors[at];
  return { executor: id, host, core: TIMELINE.lanes.core[lane] };
});

/** First task of each lane, and of the lane after the last. */
const firsts = (() => {
  const all = new Array(LANES.length + 1).fill(TIMELINE.tasks.id.length);
  for (let at = TIMELINE.tasks.id.length - 1; at >= 0; at -= 1) all[TIMELINE.tasks.lane[at]] = at;
  for (let lane = all.length - 2; lane >= 0; lane -= 1) all[lane] = Math.min(all[lane], all[lane + 1]);
  return all;
})();

/** Whether a task fulfils the conditions of a question, as in filter.rs. */
function chooser(query) {
  const of = (name) => (query.get(name) || "").trim();
  const [stage, host, status, longer] = [of("stage"), of("host"), of("status"), Number(of("longer") || 0)];
  const [id, attempt] = stage.split(".");
  const { tasks, stages, outcomes } = TIMELINE;
  const is = (wanted, value) => wanted === "" || (wanted === "yes") === value;
  return (at) => {
    const own = stages[tasks.stage[at]];
    return (stage === "" || (own.id === Number(id) && (attempt === undefined || own.attempt === Number(attempt)))) &&
      (host === "" || LANES[tasks.lane[at]].host === host) && (status === "" || outcomes[tasks.outcome[at]] === status) &&
      is(of("straggler"), (tasks.marks[at] & 1) !== 0) && is(of("speculative"), (tasks.marks[at] & 2) !== 0) &&
      is(of("critical"), (tasks.marks[at] & 8) !== 0) && tasks.ms[at] >= longer;
  };
}

/** Index of the largest sum; the first of several. */
const mostOf = (sums) => sums.indexOf(Math.max(...sums));

/** The part with most of a task's time; one more where Spark has no metrics. */
function partOf(at) {
  let found = PARTS_COUNT;
  let most = 0;
  for (let part = 0; part < PARTS_COUNT; part += 1) {
    const ms = TIMELINE.tasks.parts[part][at];
    if (ms > 0 && ms >= most) { most = ms; found = part; }
  }
  return found;
}

/** The answer for a window of the time line. */
export function timelineOf(query) {
  const number = (name, other) => query.has(name) ? Math.trunc(Number(query.get(name))) : other;
  const clamp = (value, least, most) => Math.max(least, Math.min(most, value));
  const { tasks, stages, end } = TIMELINE;
  const lanes = LANES;
  const last = Math.max(end + 1, SHORTEST_MS);
  const from = clamp(number("from", 0), 0, last - SHORTEST_MS);
  const to = clamp(number("to", last), from + SHORTEST_MS, last);
  const lane = clamp(number("lane", 0), 0, Math.max(0, lanes.length - 1));
  const shown = lanes.slice(lane, lane + clamp(number("lanes", 64), 1, MOST_LANES));
  const width = clamp(number("width", 1000), 50, 8000);
  const room = Math.floor(CELLS / Math.max(1, shown.length));
  const cellMs = Math.max(1, (to - from) / Math.max(1, Math.min(Math.floor(width / CELL_PIXELS), room)));
  const has = chooser(query);
  const columns = (...names) => Object.fromEntries(names.map((name) => [name, []]));
  const single = columns("lane", "id", "start", "ms", "stage", "outcome", "locality", "part", "marks");
  const cells = columns("lane", "at", "tasks", "busy", "stage", "outcome", "locality", "part", "marks");
  const known = new Map();
  const index = (stage) => {
    if (!known.has(stage)) known.set(stage, known.size);
    return known.get(stage);
  };
  let tasksTotal = 0;
  shown.forEach((_, at) => {
    let cell = null;
    const close = () => {
      if (!cell) return;
      let longest = null;
      for (const [stage, ms] of cell.stages) {
        if (longest === null || ms > longest[1] || (ms === longest[1] && stage > longest[0])) longest = [stage, ms];
      }
      cells.lane.push(at);
      cells.at.push(cell.at);
      cells.tasks.push(cell.tasks);
      cells.busy.push(Math.floor(Math.min(1000, cell.time / cellMs * 1000)));
      cells.stage.push(index(longest[0]));
      cells.outcome.push(mostOf(cell.outcomes));
      cells.locality.push(mostOf(cell.localities));
      cells.part.push(mostOf(cell.parts));
      cells.marks.push(cell.marks);
      cell = null;
    };
    for (let task = firsts[lane + at]; task < firsts[lane + at + 1] && tasks.start[task] <= to; task += 1) {
      if (tasks.start[task] + tasks.ms[task] < from || !has(task)) continue;
      tasksTotal += 1;
      if (tasks.ms[task] >= cellMs) {
        single.lane.push(at);
        single.id.push(tasks.id[task]);
        single.start.push(tasks.start[task]);
        single.ms.push(tasks.ms[task]);
        single.stage.push(index(tasks.stage[task]));
        single.outcome.push(tasks.outcome[task]);
        single.locality.push(tasks.locality[task]);
        single.part.push(partOf(task));
        single.marks.push(tasks.marks[task]);
        continue;
      }
      const place = Math.floor(Math.max(0, tasks.start[task] - from) / cellMs);
      if (cell && cell.at !== place) close();
      cell ??= {
        at: place, tasks: 0, time: 0, marks: 0, stages: new Map(), outcomes: TIMELINE.outcomes.map(() => 0),
        localities: TIMELINE.localities.map(() => 0), parts: TIMELINE.parts.map(() => 0),
      };
      const weight = Math.max(1, tasks.ms[task]);
      cell.tasks += 1;
      cell.time += tasks.ms[task];
      cell.marks |= tasks.marks[task];
      cell.stages.set(tasks.stage[task], (cell.stages.get(tasks.stage[task]) || 0) + weight);
      cell.outcomes[tasks.outcome[task]] += weight;
      cell.localities[tasks.locality[task]] += weight;
      const parts = tasks.parts.map((column) => column[task]);
      if (parts.every((ms) => ms === 0)) cell.parts[PARTS_COUNT] += weight;
      else parts.forEach((ms, part) => { cell.parts[part] += ms; });
    }
    close();
  });
  let jobsLeftOut = TIMELINE.jobsLeftOut;
  const bars = [];
  const before = [];
  for (const job of TIMELINE.jobs) {
    if (job.end < from || job.start > to) continue;
    const place = Math.floor(Math.max(0, job.start - from) / cellMs);
    if (job.end - job.start < cellMs && before[job.row] === place) { jobsLeftOut += 1; continue; }
    before[job.row] = place;
    bars.push(job.path ? { ...job, path: job.path.filter((stage) => stage.to - stage.from >= cellMs) } : job);
  }
  return {
    start: TIMELINE.start, end, from, to, cellMs, lanesTotal: lanes.length, lane, lanes: shown, tasksTotal,
    leftOut: TIMELINE.leftOut,
    stages: [...known.keys()].map((at) => ({ id: stages[at].id, attempt: stages[at].attempt, name: stages[at].name, colour: stages[at].colour })),
    outcomes: TIMELINE.outcomes, localities: TIMELINE.localities, parts: TIMELINE.parts, tasks: single, cells, jobs: bars,
    jobsLeftOut, pathsLeftOut: TIMELINE.pathsLeftOut,
  };
}

/** What the file knows of a task. */
function taskOf(id) {
  const { tasks, stages } = TIMELINE;
  const at = tasks.id.indexOf(Number(id));
  if (at < 0) return null;
  const [stage, lane] = [stages[tasks.stage[at]], LANES[tasks.lane[at]]];
  const parts = tasks.parts.map((column, part) => ({ title: TIMELINE.parts[part], microseconds: column[at] * 1000 }));
  return {
    task: {
      taskId: tasks.id[at], status: TIMELINE.outcomes[tasks.outcome[at]], taskLocality: TIMELINE.localities[tasks.locality[at]],
      speculative: (tasks.marks[at] & 2) !== 0, executorId: lane.executor, host: lane.host,
    },
    stageId: stage.id, stageAttempt: stage.attempt, stageName: stage.name, stageMedianMilliseconds: stage.median,
    isStraggler: (tasks.marks[at] & 1) !== 0, isCritical: (tasks.marks[at] & 8) !== 0, core: lane.core,
    start: tasks.start[at], milliseconds: tasks.ms[at], parts: parts.some((part) => part.microseconds) ? parts : [],
  };
}

/** Answers from the file what a server would. */
async function fetch(address) {
  const [path, query] = address.split("?");
  const parameters = new URLSearchParams(query);
  const found = path === "/timeline" ? timelineOf(parameters)
    : path === "/timeline/memory" ? DATA.memory[parameters.get("by") || "rdd"]
      : path.startsWith("/tasks/") ? taskOf(path.slice(7)) : null;
  return { ok: Boolean(found), status: found ? 200 : 404, json: async () => found, text: async () => "the report has no such task" };
}

/** A browser may refuse other addresses of a file. */
const history = {
  replaceState(...all) {
    try { window.history.replaceState(...all); } catch { /* The address stays. */ }
  },
};
window.smttReport = { timelineOf, keyOf };

/** A number or a text by which a cell is sorted: counts, sizes, durations and shares as the pages write them. */
function keyOf(text) {
  text = text.trim();
  if (text === "" || text === "–") return null;
  const units = {
    B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, PiB: 2 ** 50, EiB: 2 ** 60, ns: 1, us: 1e3, ms: 1e6, s: 1e9,
    M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18, "%": 1,
  };
  const one = /^(-?[\d,]+(?:\.\d+)?)(?: ([A-Za-z%]+))?$/.exec(text);
  if (one && (one[2] === undefined || Object.hasOwn(units, one[2]))) return Number(one[1].replaceAll(",", "")) * (one[2] ? units[one[2]] : 1);
  const long = /^(\d+)(m|h)(\d+)[sm]$/.exec(text);
  if (long) return (Number(long[1]) * 60 + Number(long[3])) * (long[2] === "m" ? 1e9 : 6e10);
  return text;
}

/** Sorts the rows of a table by a column; numbers have the largest first, then the other way. */
function sort(head) {
  const rows = head.closest("table").tBodies[0];
  const at = [...head.parentNode.cells].indexOf(head);
  const keys = new Map([...rows.rows].map((row) => [row, row.cells[at] ? keyOf(row.cells[at].textContent) : null]));
  const isText = [...keys.values()].some((key) => typeof key === "string");
  const down = head.ariaSort ? head.ariaSort === "ascending" : !isText;
  const compare = (left, right) => {
    const [one, other] = [keys.get(left), keys.get(right)];
    if (one === null || other === null) return (one === null) - (other === null);
    const by = typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other), "en");
    return down ? -by : by;
  };
  rows.append(...[...rows.rows].sort(compare));
  for (const other of head.parentNode.cells) other.ariaSort = null;
  head.ariaSort = down ? "descending" : "ascending";
}
for (const row of document.querySelectorAll("table.data thead tr:last-child")) {
  for (const head of row.cells) head.tabIndex = 0;
  row.addEventListener("click", (event) => { const head = event.target.closest("th"); if (head) sort(head); });
  row.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.target.tagName !== "TH") return;
    event.preventDefault();
    sort(event.target);
  });
}

/** Above a table that is long enough: a field for a text that its rows must have. */
for (const table of document.querySelectorAll("details.part table.data")) {
  const rows = table.tBodies[0] ? [...table.tBodies[0].rows] : [];
  if (rows.length < 10) continue;
  const label = document.createElement("label");
  const field = document.createElement("input");
  field.type = "search";
  field.addEventListener("input", () => {
    const wanted = field.value.trim().toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
  label.className = "soft";
  label.append("Rows with ", field);
  (table.closest(".wide") || table).before(label);
}

/** Opens the part that an address names, or the one that has it. */
function reveal() {
  let id = location.hash.slice(1);
  try { id = decodeURIComponent(id); } catch { /* It is no encoded text: the part has the name as it is. */ }
  id = id.split("?")[0];
  let found = document.getElementById(id);
  while (!found && id.includes("/")) {
    id = id.slice(0, Math.max(id.lastIndexOf("/"), id.lastIndexOf("#"), 0));
    found = document.getElementById(id);
  }
  for (let part = found; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  if (found) found.scrollIntoView();
}
window.addEventListener("hashchange", reveal);
if (location.hash) reveal();
