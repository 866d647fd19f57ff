// Draws an answer of the time line on a canvas. No state: everything is an argument.

export const JOB = 14;
export const AXIS = 22;

/** The colours of the page in the mode that the user prefers. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue("--" + name).trim();
  const list = (letter, count) => Array.from({ length: count }, (_, at) => get(letter + at));
  return {
    part: list("p", 10), stage: list("s", 12), outcome: list("o", 5), locality: list("l", 6),
    ink: get("ink"), soft: get("soft"), rule: get("rule"), panel: get("panel"), ground: get("ground"),
    bad: get("bad"), link: get("link"),
  };
}

/** Index of the colour of a value. */
export function colourOf(answer, colour, value) {
  return colour === "stage" ? answer.stages[value].colour % 12 : value;
}

/** Pixels of the names at the left. */
export const gutterOf = (width) => width < 600 ? 62 : 112;

/** Sizes of the picture for an answer and a width in pixels. */
export function layout(answer, width) {
  const gutter = gutterOf(width);
  const rows = answer.jobs.reduce((most, job) => Math.max(most, job.row + 1), 0);
  const lane = Math.max(7, Math.min(22, Math.floor(560 / Math.max(1, answer.lanes.length))));
  const top = AXIS + rows * JOB + (rows ? 6 : 0);
  return { gutter, lane, top, width, height: top + lane * answer.lanes.length + 4 };
}

/** Milliseconds as a person reads them, as fine as the distance between two of them needs. */
export function clock(ms, step) {
  const sign = ms < 0 ? "−" : "";
  ms = Math.abs(Math.round(ms));
  const two = (number) => String(number).padStart(2, "0");
  const fine = step < 1000 ? "." + String(ms % 1000).padStart(3, "0") : "";
  const s = Math.floor(ms / 1000);
  if (s < 60) return sign + s + fine + " s";
  const m = Math.floor(s / 60);
  if (m < 60) return sign + m + ":" + two(s % 60) + fine;
  const h = Math.floor(m / 60);
  if (h < 48) return sign + h + ":" + two(m % 60) + ":" + two(s % 60) + fine;
  return sign + Math.floor(h / 24) + " d " + two(h % 24) + ":" + two(m % 60) + ":" + two(s % 60) + fine;
}

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5,
  36e5, 72e5, 144e5, 216e5, 432e5, 864e5, 1728e5, 6048e5, 2592e6, 7776e6, 31536e6, 31536e7, 31536e8];

/** Distance of the axis' marks for a span in so many pixels. */
export function stepOf(span, pixels) {
  const wanted = span / Math.max(2, pixels / 110);
  return STEPS.find((step) => step >= wanted) || STEPS[STEPS.length - 1];
}

/** Entries by colour, so that a colour is set once for each picture. */
export function grouped(answer, colour) {
  const group = (columns) => {
    const groups = new Map();
    columns[colour].forEach((value, at) => {
      const index = colourOf(answer, colour, value);
      if (!groups.has(index)) groups.set(index, []);
      groups.get(index).push(at);
    });
    return groups;
  };
  return { tasks: group(answer.tasks), cells: group(answer.cells) };
}

/** The whole picture. `view` has from and to in milliseconds. */
export function draw(context, answer, groups, sizes, view, colours, colour, selected) {
  const { gutter, lane, top, width, height } = sizes;
  const scale = (width - gutter) / (view.to - view.from);
  const x = (ms) => gutter + (ms - view.from) * scale;
  const font = (size) => { context.font = size + 'px system-ui,"Liberation Sans","DejaVu Sans",sans-serif'; };
  context.fillStyle = colours.panel;
  context.fillRect(0, 0, width, height);
  stripes(context, answer, sizes, colours);
  axis(context, sizes, view, x, colours, font);
  context.save();
  context.beginPath();
  context.rect(gutter, 0, width - gutter, height);
  context.clip();
  jobs(context, answer, x, gutter, colours, font);
  const gap = lane > 9 ? 2 : 1;
  const thick = lane - gap;
  const { cells, tasks } = answer;
  const cell = answer.cellMs * scale;
  for (const [index, all] of groups.cells) {
    context.fillStyle = colours[colour][index];
    for (const at of all) {
      const left = x(answer.from + cells.at[at] * answer.cellMs);
      if (left > width || left + cell < gutter) continue;
      const tall = Math.max(2, thick * cells.busy[at] / 1000);
      context.fillRect(left, top + cells.lane[at] * lane + gap + thick - tall, Math.max(1, cell), tall);
    }
  }
  for (const [index, all] of groups.tasks) {
    context.fillStyle = colours[colour][index];
    for (const at of all) {
      const left = x(tasks.start[at]);
      const wide = tasks.ms[at] * scale;
      if (left > width || left + wide < gutter) continue;
      // A gap of a pixel between neighbours, where both have room.
      context.fillRect(left, top + tasks.lane[at] * lane + gap, Math.max(1, wide > 4 ? wide - 1 : wide), thick);
    }
  }
  marks(context, cells, (at) => x(answer.from + cells.at[at] * answer.cellMs), () => cell, sizes, colours);
  marks(context, tasks, (at) => x(tasks.start[at]), (at) => tasks.ms[at] * scale, sizes, colours);
  if (selected !== null) {
    const at = tasks.id.indexOf(selected);
    if (at >= 0) {
      context.strokeStyle = colours.ink;
      context.lineWidth = 2;
      context.strokeRect(x(tasks.start[at]), top + tasks.lane[at] * lane + gap,
        Math.max(3, tasks.ms[at] * scale - 1), thick);
    }
  }
  context.restore();
}

/** Marks of tasks: above them stragglers dark and unsuccessful ones red, below them those that bound the end of a job. */
function marks(context, columns, left, wide, { gutter, lane, top, width }, colours) {
  const tall = lane > 9 ? 3 : 2;
  columns.marks.forEach((mark, at) => {
    if (!(mark & 13)) return;
    const from = left(at);
    const length = Math.max(2, wide(at) - 1);
    if (from > width || from + length < gutter) return;
    const y = top + columns.lane[at] * lane;
    if (mark & 5) {
      context.fillStyle = mark & 4 ? colours.bad : colours.ink;
      context.fillRect(from, y, length, tall);
    }
    if (mark & 8) {
      context.fillStyle = colours.ink;
      context.fillRect(from, y + lane - tall, length, tall);
      // An arrow at its end: what waited for it begins there.
      context.beginPath();
      context.moveTo(from + length - lane / 2, y + lane);
      context.lineTo(from + length, y + lane / 2);
      context.lineTo(from + length, y + lane);
      context.fill();
    }
  });
}

/** The ground of the lanes, and the executors' names. */
function stripes(context, answer, { gutter, lane, top, width }, colours) {
  context.font = '11px system-ui,"Liberation Sans","DejaVu Sans",sans-serif';
  context.textBaseline = "top";
  let first = 0;
  let number = 0;
  while (first < answer.lanes.length) {
    const executor = answer.lanes[first].executor;
    let next = first;
    while (next < answer.lanes.length && answer.lanes[next].executor === executor) next += 1;
    const tall = (next - first) * lane;
    if (number % 2 === 0) {
      context.fillStyle = colours.ground;
      context.fillRect(0, top + first * lane, width, tall);
    }
    context.fillStyle = colours.rule;
    context.fillRect(0, top + first * lane, width, 1);
    if (tall >= 11) {
      context.fillStyle = colours.soft;
      context.fillText(fitted(context, (gutter > 80 ? "executor " : "") + executor, gutter - 8), 4, top + first * lane + 2);
      const { host } = answer.lanes[first];
      if (tall >= 26) context.fillText(fitted(context, host, gutter - 8), 4, top + first * lane + 14);
    }
    first = next;
    number += 1;
  }
}

/** A text that is not wider than so many pixels. */
export function fitted(context, text, pixels) {
  text = text.slice(0, 80);
  if (context.measureText(text).width <= pixels) return text;
  while (text.length > 1 && context.measureText(text + "…").width > pixels) text = text.slice(0, -1);
  return text + "…";
}

function axis(context, { gutter, width, height }, view, x, colours, font) {
  const step = stepOf(view.to - view.from, width - gutter);
  font(11);
  context.textBaseline = "top";
  context.fillStyle = colours.soft;
  for (let ms = Math.ceil(view.from / step) * step; ms <= view.to; ms += step) {
    const at = Math.round(x(ms));
    context.fillStyle = colours.rule;
    context.fillRect(at, 0, 1, height);
    context.fillStyle = colours.soft;
    const text = clock(ms, step);
    if (at + 4 + context.measureText(text).width < width) context.fillText(text, at + 4, 4);
  }
}

function jobs(context, answer, x, gutter, colours, font) {
  font(10);
  context.textBaseline = "middle";
  for (const job of answer.jobs) {
    const left = x(job.start);
    const wide = Math.max(2, x(job.end) - left - 1);
    const top = AXIS + job.row * JOB;
    context.fillStyle = job.status === "FAILED" ? colours.outcome[1] : colours.stage[0];
    context.fillRect(left, top, wide, JOB - 2);
    // Its critical path: a line for each stage, with gaps where stages follow one another.
    context.fillStyle = colours.ink;
    for (const stage of job.path ?? []) {
      context.fillRect(x(stage.from), top + JOB - 4, Math.max(1, x(stage.to) - x(stage.from) - 2), 2);
    }
    // The name of a job that began before the window is at the window's start.
    const from = Math.max(left, gutter);
    const room = left + wide - from - 8;
    if (room > 32) {
      context.fillStyle = colours.ground;
      context.fillText(fitted(context, "job " + job.id + " " + job.name, room), from + 4, top + JOB / 2 - 1);
    }
  }
}

/** A hatched rectangle: nothing is known there. */
export function hatched(context, left, top, width, height, colour) {
  context.save();
  context.beginPath();
  context.rect(left, top, width, height);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.beginPath();
  // On a grid of the whole picture, so that neighbours join.
  for (let at = Math.floor((left - height) / 8) * 8; at < left + width; at += 8) {
    context.moveTo(at, top + height);
    context.lineTo(at + height, top);
  }
  context.stroke();
  context.restore();
}

const SVG = "http://www.w3.org/2000/svg";

/** A rectangle of a bar or a key. */
export function rectangle(name, x, width, height) {
  const shape = document.createElementNS(SVG, "rect");
  shape.setAttribute("class", name);
  shape.setAttribute("x", x);
  shape.setAttribute("width", width);
  shape.setAttribute("height", height);
  return shape;
}

/** The key of a colour. */
export function square(name) {
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("viewBox", "0 0 1 1");
  picture.setAttribute("preserveAspectRatio", "none");
  picture.setAttribute("aria-hidden", "true");
  picture.setAttribute("class", "key " + name);
  picture.append(rectangle(name, 0, 1, 1));
  return picture;
}
