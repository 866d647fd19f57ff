// The time line: asks the server for the window that is shown, draws it, and shows a task's numbers.
import { AXIS, JOB, clock, colourOf, draw, grouped, layout, palette, rectangle, square, stepOf } from "./draw.js";
import { panel as memoryPanel } from "./memory.js";
import { aged, onRefresh } from "./live.js";

const root = document.getElementById("timeline");
const canvas = document.getElementById("picture");
const said = document.getElementById("said");
const jobsSaid = document.getElementById("jobs-said");
const legend = document.getElementById("legend");
const panel = document.getElementById("task");
const controls = document.getElementById("controls");
const context = canvas.getContext("2d");
const data = root.dataset;

let view = { from: Number(data.from), to: Number(data.to), lane: Number(data.lane) };
let selected = data.task === "" ? null : Number(data.task);
let colour = controls.elements.colour.value;
let colours = palette();
let answer = null;
/** What the answer was made for. */
let answered = null;
let groups = null;
let sizes = null;
let asked = null;
let isAsking = false;
let isDrawn = true;
let isMoved = false;
let resting = 0;
/** Milliseconds without a change after which a picture rests. */
const REST = 120;

/** What the picture's tasks are filtered by: names and values of the fields that are not empty. */
const FILTERS = ["stage", "host", "status", "longer", "straggler", "speculative"];
const chosen = () => {
  const all = FILTERS.map((name) => [name, controls.elements[name].value.trim()]);
  return Object.fromEntries(all.filter(([, value]) => value !== ""));
};
let filter = chosen();
const isSame = (left, right) => JSON.stringify(left) === JSON.stringify(right);

const address = (path, parameters) => {
  const query = new URLSearchParams(parameters);
  if (data.attempt) query.set("attempt", data.attempt);
  return data.api + path + "?" + query;
};

/** Asks for what is around the view; one question at a time, the newest view wins. */
async function ask() {
  const width = Math.round((canvas.clientWidth || 800) * 1.5);
  const [from, to] = around(view);
  asked = { from, to, lane: view.lane, width, ...filter };
  if (isAsking) return;
  isAsking = true;
  data.state = "asking";
  try {
    while (asked) {
      const now = asked;
      asked = null;
      const response = await fetch(address("/timeline", now));
      if (!response.ok) throw new Error(response.status + " " + (await response.text()).slice(0, 200));
      answer = await response.json();
      answered = now;
      aged(answer.ageMs);
      // A newer question has lanes of its own, which an older answer must not change.
      if (!asked) view.lane = answer.lane;
      view.to = Math.min(view.to, answer.end + 1);
      groups = grouped(answer, colour);
      data.tasksTotal = String(answer.tasksTotal);
      data.lanes = String(answer.lanes.length);
      key();
      paint();
    }
    // A view that has moved since asks again when it rests.
    data.state = isCurrent() ? "ready" : "moving";
  } catch (error) {
    said.textContent = "The server did not answer: " + error.message;
    data.state = "failed";
  }
  isAsking = false;
}

/** Asks again for what is shown. A view that ends with the application goes on to its new end. */
async function refresh() {
  if (!answer || isAsking) return;
  const [end, isLast, isAll] = [answer.end, view.to >= answer.end, view.from <= 0 && view.to >= answer.end];
  const [from, to] = [view.from, view.to];
  await ask();
  memory.refresh();
  const later = answer.end - end;
  // The reader may have moved meanwhile.
  const rests = view.from === from && view.to === to;
  if (rests && isLast && later > 0) move(isAll ? 0 : view.from + later, isAll ? answer.end + 1 : view.to + later, view.lane);
  else show();
}
onRefresh(refresh);

/** Draws with the next frame of the screen. */
function show() {
  if (!isDrawn) return;
  isDrawn = false;
  requestAnimationFrame(() => {
    isDrawn = true;
    paint();
  });
}

function paint() {
  if (!answer) return;
  const begin = performance.now();
  const width = canvas.clientWidth;
  sizes = layout(answer, width);
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(sizes.height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(sizes.height * ratio);
    canvas.style.height = sizes.height + "px";
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  draw(context, answer, groups, sizes, view, colours, colour, selected);
  data.drawMs = (performance.now() - begin).toFixed(2);
  data.drawn = String(Number(data.drawn || 0) + 1);
  if (!data.pictureMs) data.pictureMs = performance.now().toFixed(1);
  data.viewFrom = String(Math.round(view.from));
  data.viewTo = String(Math.round(view.to));
  memory.show(view);
  clearTimeout(resting);
  resting = setTimeout(rest, REST);
}

/**
 * Says and remembers what is shown when the picture rests: browsers refuse an address that changes with each frame, and
 * a screen reader would read each of them.
 */
function rest() {
  tell();
  if (isCurrent()) data.state = "ready"; else ask();
  memory.rest();
  if (isMoved) remember();
  isMoved = false;
}

/** What the picture shows, in words. */
function tell() {
  const step = stepOf(view.to - view.from, 1000);
  const few = Math.min(step, 999);
  const last = answer.lane + answer.lanes.length;
  const hidden = answer.leftOut ? "; " + answer.leftOut + " more tasks are not on the time line" : "";
  said.textContent = clock(view.from, few) + " to " + clock(view.to, few) + ", lanes " + (answer.lane + 1) + " to " + last +
    " of " + answer.lanesTotal + ", " + answer.tasksTotal.toLocaleString("en") + (Object.keys(filter).length ? " tasks of the filter" : " tasks") + " here and beside" + hidden;
  const jobs = [];
  const count = (number, text) => number && jobs.push(number.toLocaleString("en") + (number === 1 ? " job" : " jobs") + text);
  count(answer.jobsLeftOut, " not drawn (short, or more than " + data.jobRows + " at a time)");
  count(answer.pathsLeftOut, " without a critical path (no room for it)");
  jobsSaid.textContent = jobs.length ? jobs.join("; ") + ": " : "";
}

/** The meaning of the colours that the picture has. */
function key() {
  const seen = new Map();
  const names = { part: answer.parts, outcome: answer.outcomes, locality: answer.localities };
  for (const columns of [answer.tasks, answer.cells]) {
    for (const value of columns[colour]) {
      if (seen.has(value)) continue;
      const stage = answer.stages[value];
      const name = colour === "stage" ? "stage " + stage.id + (stage.attempt ? "." + stage.attempt : "") + " " + stage.name
        : names[colour][value];
      seen.set(value, name);
    }
  }
  const all = [...seen].sort((left, right) => left[0] - right[0]);
  legend.replaceChildren(...all.slice(0, 24).map(([value, name]) => {
    const item = document.createElement("li");
    item.append(square(colour[0] + colourOf(answer, colour, value)), name);
    return item;
  }));
  if (all.length > 24) {
    const item = document.createElement("li");
    item.textContent = (all.length - 24) + " more";
    legend.append(item);
  }
}

/** Keeps the address at what is shown. */
function remember() {
  const url = new URL(location.href);
  const set = (name, value) => url.searchParams.set(name, value);
  for (const name of FILTERS) if (filter[name] === undefined) url.searchParams.delete(name); else set(name, filter[name]);
  set("from", Math.round(view.from));
  set("to", Math.round(view.to));
  set("lane", view.lane);
  set("colour", colour);
  memory.remember(url.searchParams);
  if (selected === null) url.searchParams.delete("task"); else set("task", selected);
  history.replaceState(null, "", url);
  document.getElementById("as-table").href = data.tasks + "?" +
    new URLSearchParams({ from: Math.round(view.from), to: Math.round(view.to), ...filter });
}

/** Shows another window. */
function move(from, to, lane) {
  const end = answer ? answer.end + 1 : to;
  const span = Math.max(20, Math.min(to - from, end));
  from = Math.max(0, Math.min(from, end - span));
  view = { from, to: from + span, lane: Math.max(0, lane) };
  isMoved = true;
  show();
  data.state = "moving";
  if (!covers()) ask();
}

/** Whether the last answer has all of the view, and cells that are fine enough for it. */
function covers() {
  return answer !== null && view.lane === answer.lane && view.from >= answer.from && view.to <= answer.to &&
    (view.to - view.from) * 3 >= answer.to - answer.from;
}

/** Whether the last answer was made for the view. */
function isCurrent() {
  const [from, to] = around(view);
  return answered !== null && view.lane === answer.lane && from === answered.from && to === answered.to &&
    FILTERS.every((name) => answered[name] === filter[name]);
}

/** The window that is asked for: the view and a quarter on either side. */
function around({ from, to }) {
  const margin = (to - from) / 4;
  return [Math.floor(from - margin), Math.ceil(to + margin)];
}

const zoom = (factor, at) => {
  const middle = at === undefined ? (view.from + view.to) / 2 : at;
  move(middle - (middle - view.from) * factor, middle + (view.to - middle) * factor, view.lane);
};
const pan = (share) => {
  const by = (view.to - view.from) * share;
  move(view.from + by, view.to + by, view.lane);
};
const lanes = (pages) => {
  const count = answer ? answer.lanes.length : 0;
  const last = answer ? Math.max(0, answer.lanesTotal - count) : 0;
  move(view.from, view.to, Math.min(last, view.lane + Math.round(pages * count)));
};
const ACTIONS = {
  in: () => zoom(0.5), out: () => zoom(2), left: () => pan(-0.25), right: () => pan(0.25),
  up: () => lanes(-0.5), down: () => lanes(0.5), all: () => move(0, answer ? answer.end + 1 : view.to, 0),
};
const KEYS = {
  "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down",
  PageUp: "up", PageDown: "down", Home: "all",
};

/** Does what a key stands for; false where it stands for nothing. */
function pressed(key) {
  if (KEYS[key]) ACTIONS[KEYS[key]]();
  return KEYS[key] !== undefined;
}

const memory = memoryPanel({
  address, around, pressed,
  moved() {
    isMoved = true;
    show();
  },
});

controls.addEventListener("submit", (event) => {
  event.preventDefault();
  refilter();
});
controls.addEventListener("click", (event) => {
  const action = event.target instanceof HTMLButtonElement && ACTIONS[event.target.name];
  if (action) action();
});
controls.elements.colour.addEventListener("change", () => {
  colour = controls.elements.colour.value;
  if (answer) {
    groups = grouped(answer, colour);
    key();
    show();
  }
  isMoved = true;
});
controls.addEventListener("change", (event) => {
  if (FILTERS.includes(event.target.name)) refilter();
});
/** Asks for the tasks that the fields choose. */
function refilter() {
  const wanted = chosen();
  if (isSame(wanted, filter)) return;
  filter = wanted;
  isMoved = true;
  data.state = "moving";
  ask();
}
canvas.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !answer) return;
  if (pressed(event.key)) { /* It moved. */ }
  else if (event.key === "n" || event.key === "p") step(event.key === "n" ? 1 : -1);
  else if (event.key === "Enter" && selected !== null) select(selected);
  else if (event.key === "Escape") select(null);
  else return;
  event.preventDefault();
});

/** Selects the next task of the picture. */
function step(by) {
  const all = answer.tasks.id;
  if (!all.length) return;
  const at = all.indexOf(selected);
  const next = at < 0 ? answer.tasks.start.findIndex((start) => start >= view.from) : at + by;
  const chosen = next < 0 ? all.length - 1 : Math.max(0, Math.min(all.length - 1, next));
  reveal(answer.tasks.start[chosen], answer.tasks.start[chosen] + answer.tasks.ms[chosen]);
  select(all[chosen]);
}

/** Moves the window to a task that lies outside of it. */
function reveal(start, end) {
  if (start < view.to && end > view.from) return;
  const span = view.to - view.from;
  move(start - span / 4, start - span / 4 + span, view.lane);
}

// Pointers: one drags, two zoom, a short one selects.
const time = (x) => view.from + (x - sizes.gutter) / (sizes.width - sizes.gutter) * (view.to - view.from);

/** Lets pointers move the time line on a canvas. */
function movable(surface, clicked) {
  const pointers = new Map();
  let dragged = 0;
  surface.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, event.offsetX);
    surface.setPointerCapture(event.pointerId);
    dragged = 0;
  });
  surface.addEventListener("pointermove", (event) => {
    if (!answer) return;
    if (!pointers.has(event.pointerId)) {
      memory.point(event.offsetX);
      return;
    }
    const before = [...pointers.values()];
    pointers.set(event.pointerId, event.offsetX);
    const after = [...pointers.values()];
    const perPixel = (view.to - view.from) / (sizes.width - sizes.gutter);
    if (after.length === 1) {
      const by = (before[0] - after[0]) * perPixel;
      dragged += Math.abs(before[0] - after[0]);
      if (dragged > 3) {
        surface.classList.add("moving");
        move(view.from + by, view.to + by, view.lane);
      }
    } else if (after.length === 2) {
      dragged = 9;
      const distance = ([left, right]) => Math.max(10, Math.abs(left - right));
      zoom(distance(before) / distance(after), time((after[0] + after[1]) / 2));
    }
  });
  const release = (event) => {
    const wasOne = pointers.size === 1;
    pointers.delete(event.pointerId);
    surface.classList.remove("moving");
    if (event.type === "pointerup" && wasOne && dragged <= 3) clicked(event.offsetX, event.offsetY);
  };
  surface.addEventListener("pointerup", release);
  surface.addEventListener("pointercancel", release);
  surface.addEventListener("pointerleave", () => memory.point(null));
  surface.addEventListener("wheel", (event) => {
    if (!answer) return;
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 200))), time(event.offsetX));
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / 1000);
    else return;
    event.preventDefault();
  }, { passive: false });
}
movable(canvas, click);
if (memory.canvas) movable(memory.canvas, (x) => {
  memory.canvas.focus();
  memory.point(x);
});

/** The job whose bar is at a place; of jobs that overlap there the one that is drawn last. */
function jobAt(x, y) {
  if (!answer || x < sizes.gutter || y < AXIS || y >= sizes.top) return undefined;
  const row = Math.floor((y - AXIS) / JOB);
  const ms = time(x);
  // A short job has a bar of 2 pixels.
  const least = (view.to - view.from) / (sizes.width - sizes.gutter) * 3;
  return answer.jobs.findLast((job) => job.row === row && job.start <= ms && ms <= Math.max(job.end, job.start + least));
}
canvas.addEventListener("pointermove", (event) =>
  canvas.classList.toggle("job", jobAt(event.offsetX, event.offsetY) !== undefined));

/** A click on a job opens its stages, on a task shows it; on a cell of short tasks it zooms in. */
function click(x, y) {
  canvas.focus();
  const job = jobAt(x, y);
  if (job) {
    location.href = data.stages + "?job=" + job.id;
    return;
  }
  if (!answer || x < sizes.gutter || y < sizes.top) return;
  const lane = Math.floor((y - sizes.top) / sizes.lane);
  const ms = time(x);
  const slack = (view.to - view.from) / sizes.width * 2;
  const { tasks, cells } = answer;
  const hit = tasks.id.findIndex((_, at) => tasks.lane[at] === lane && tasks.start[at] - slack <= ms &&
    ms <= tasks.start[at] + tasks.ms[at] + slack);
  if (hit >= 0) {
    select(tasks.id[hit]);
    return;
  }
  const at = Math.floor((ms - answer.from) / answer.cellMs);
  const cell = cells.at.findIndex((known, index) => cells.lane[index] === lane && Math.abs(known - at) <= 1);
  if (cell >= 0) zoom(0.2, ms);
}

/** Shows the numbers of a task and a bar of its parts. */
async function select(id) {
  selected = id;
  isMoved = true;
  show();
  if (id === null) {
    panel.hidden = true;
    return;
  }
  const response = await fetch(address("/tasks/" + id, {}));
  if (selected !== id) return;
  panel.hidden = false;
  if (!response.ok) {
    panel.textContent = "Task " + id + ": " + (await response.text()).slice(0, 200);
    return;
  }
  describe(await response.json());
}

function element(name, text, ...children) {
  const made = document.createElement(name);
  if (text !== "") made.textContent = text;
  made.append(...children);
  return made;
}

function table(rows) {
  return element("table", "", element("tbody", "", ...rows.map(([name, ...values]) => {
    const head = element("th", "", ...(Array.isArray(name) ? name : [name]));
    head.className = "words";
    return element("tr", "", head, ...values.map((value) => element("td", String(value))));
  })));
}

const milliseconds = (us) => (us / 1000).toLocaleString("en", { maximumFractionDigits: 3 }) + " ms";

function describe(found) {
  const { task, parts } = found;
  const link = element("a", "Task " + task.taskId);
  link.href = data.tasks + "/" + task.taskId;
  const stage = element("a", "stage " + found.stageId + (found.stageAttempt ? "." + found.stageAttempt : ""));
  stage.href = data.stages + "/" + found.stageId + "/" + found.stageAttempt;
  const kinds = [task.status, task.taskLocality, found.isCritical ? "on the critical path" : "", found.isStraggler ? "straggler" : "", task.speculative ? "speculative" : ""];
  const line = element("p", "", stage, (task.partitionId === undefined ? "" : ", partition " + task.partitionId + ", attempt " + task.attempt) + ", executor " +
    task.executorId + " on " + task.host + ", core " + found.core + ": " + kinds.filter(Boolean).join(", "));
  const total = parts.reduce((sum, part) => sum + part.microseconds, 0);
  const bar = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  bar.setAttribute("class", "bar");
  bar.setAttribute("viewBox", "0 0 100 4");
  bar.setAttribute("preserveAspectRatio", "none");
  let left = 0;
  parts.forEach((part, at) => {
    const wide = part.microseconds * 100 / Math.max(1, total);
    bar.append(rectangle("p" + at, left, wide, 4));
    left += wide;
  });
  const shares = parts.map((part, at) => [[square("p" + at), part.title], milliseconds(part.microseconds),
    (part.microseconds * 100 / Math.max(1, total)).toFixed(1) + " %"]);
  const metrics = task.taskMetrics || {};
  const read = metrics.shuffleReadMetrics || {};
  const bytes = (value) => value === undefined ? "–" : value.toLocaleString("en") + " B";
  const numbers = [
    ["duration", milliseconds(found.milliseconds * 1000)],
    ["median of the stage", found.stageMedianMilliseconds === null ? "–" : milliseconds(found.stageMedianMilliseconds * 1000)],
    ["input", bytes(metrics.inputMetrics && metrics.inputMetrics.bytesRead)],
    ["output", bytes(metrics.outputMetrics && metrics.outputMetrics.bytesWritten)],
    ["shuffle read, remote", bytes(read.remoteBytesRead)],
    ["shuffle read, local", bytes(read.localBytesRead)],
    ["shuffle write", bytes(metrics.shuffleWriteMetrics && metrics.shuffleWriteMetrics.bytesWritten)],
    ["spilled from memory", bytes(metrics.memoryBytesSpilled)],
    ["spilled to disk", bytes(metrics.diskBytesSpilled)],
    ["peak execution memory", bytes(metrics.peakExecutionMemory)],
  ];
  const columns = element("div", "", parts.length ? table(shares) : element("p", "Spark has no metrics of this task."), table(numbers));
  columns.className = "columns";
  const name = element("p", found.stageName);
  name.className = "soft";
  const functions = element("a", "Functions, fetches and spans of this task");
  const user = new URLSearchParams(location.search).get("user");
  functions.href = link.href + (user === null ? "" : `?user=${encodeURIComponent(user)}`) + "#functions";
  panel.replaceChildren(element("h2", "", link), line, name, element("p", "", functions), ...(total ? [bar] : []), columns,
    ...(task.errorMessage ? [element("pre", task.errorMessage.slice(0, 4000))] : []));
  data.shownTask = String(task.taskId);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  colours = palette();
  memory.recolour();
  show();
});
new ResizeObserver(() => { if (answer) { show(); ask(); } }).observe(root);
ask().then(() => { if (selected !== null) select(selected); });
