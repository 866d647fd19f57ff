// Memory beneath the tasks: asks for the window that is shown and draws it on the same scale of time.
import { clock, fitted, gutterOf, hatched, palette, square, stepOf } from "./draw.js";

const HEIGHT = 190;
const TOP = 8;
/** Room for the marks of collections and the axis. */
const BOTTOM = 30;
/** A limit that is further above what is held does not shrink the picture. */
const FARTHEST = 4;
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Bytes as a person reads them. */
export function bytesOf(value) {
  let unit = 0;
  while (value >= 1023.95 && unit + 1 < UNITS.length) { value /= 1024; unit += 1; }
  return (unit ? value.toFixed(1) : Math.round(value)) + " " + UNITS[unit];
}

/** A round number at or above a value, and the distance of the lines below it. */
export function scaleOf(highest) {
  const unit = 1024 ** Math.floor(Math.log(Math.max(1, highest)) / Math.log(1024));
  const step = [0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 250, 500].map((part) => part * unit)
    .find((part) => highest / part <= 4) || unit * 1024;
  return [Math.max(step, Math.ceil(highest / step) * step), step];
}

const most = (values, from, to) => {
  let found = null;
  for (let at = from; at <= to; at += 1) if (values[at] !== null && (found === null || values[at] > found)) found = values[at];
  return found;
};

/** The panel; `line` is the time line: its view, its addresses, and what keys and pointers do there. */
export function panel(line) {
  const root = document.getElementById("memory");
  const canvas = document.getElementById("memory-picture");
  if (!canvas) return { show() {}, rest() {}, refresh() {}, point() {}, recolour() {}, remember() {}, canvas: null };
  const said = document.getElementById("memory-said");
  const legend = document.getElementById("memory-legend");
  const controls = document.getElementById("memory-controls");
  const link = document.getElementById("memory-as-table");
  const context = canvas.getContext("2d");
  const data = root.dataset;
  let colours = palette();
  let view = null;
  let answer = null;
  let answered = null;
  let asked = null;
  let isAsking = false;
  /** The time under the pointer, in milliseconds. */
  let cursor = null;
  /** Whether a key put it there: then its words name each part. */
  let isByKey = false;

  const chosen = () => {
    const { by, executor } = controls.elements;
    return executor.value === "" ? { by: by.value } : { by: by.value, executor: executor.value };
  };
  const wanted = () => {
    const [from, to] = line.around(view);
    return { from, to, width: Math.round((canvas.clientWidth || 800) * 1.5), ...chosen() };
  };
  const isSame = (left, right) => left !== null && JSON.stringify(left) === JSON.stringify(right);
  const covers = () => answer !== null && view.from >= answer.from && Math.min(view.to, answer.end + 1) <= answer.to &&
    (view.to - view.from) * 3 >= answer.to - answer.from;

  /** Asks one question at a time; the newest view wins. */
  async function ask() {
    asked = wanted();
    if (isAsking) return;
    isAsking = true;
    data.state = "asking";
    try {
      while (asked) {
        const now = asked;
        asked = null;
        const address = line.address("/timeline/memory", now);
        const response = await fetch(address);
        if (!response.ok) throw new Error(response.status + " " + (await response.text()).slice(0, 200));
        answer = await response.json();
        answered = now;
        data.asked = address;
        paint();
        items();
        tell(isByKey);
      }
      data.state = isSame(answered, wanted()) ? "ready" : "moving";
    } catch (error) {
      said.textContent = "The server did not answer: " + error.message;
      data.state = "failed";
    }
    isAsking = false;
  }

  const cellOf = (ms) => Math.max(0, Math.min(answer.total.length - 1, Math.floor((ms - answer.from) / answer.cellMs)));
  /** First and last cell of the view. */
  const cells = () => [cellOf(view.from), cellOf(Math.min(view.to, answer.end) - 1e-6)];
  const scale = () => {
    const gutter = gutterOf(canvas.clientWidth);
    const perMs = (canvas.clientWidth - gutter) / (view.to - view.from);
    return { gutter, x: (ms) => gutter + (ms - view.from) * perMs };
  };

  function paint() {
    if (!answer || !view) return;
    const begin = performance.now();
    const width = canvas.clientWidth;
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(HEIGHT * ratio);
      canvas.style.height = HEIGHT + "px";
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const { gutter, x } = scale();
    const [first, last] = cells();
    const held = most(answer.most, first, last) || 0;
    const lines = answer.limits.map((limit) => ({ limit, most: most(limit.values, first, last) }))
      .filter((found) => found.most !== null && found.most <= Math.max(1, held) * FARTHEST);
    const [top, step] = scaleOf(Math.max(held, ...lines.map((found) => found.most)));
    const base = HEIGHT - BOTTOM;
    const y = (bytes) => base - bytes / top * (base - TOP);
    const font = (size) => { context.font = size + 'px system-ui,"Liberation Sans","DejaVu Sans",sans-serif'; };
    context.fillStyle = colours.panel;
    context.fillRect(0, 0, width, HEIGHT);
    font(11);
    grid(width, gutter, x, y, top, step, base);
    context.save();
    context.beginPath();
    context.rect(gutter, 0, width - gutter, HEIGHT);
    context.clip();
    const edge = (cell) => Math.round(x(answer.from + cell * answer.cellMs));
    absent(first, last, edge, base);
    const below = new Array(last - first + 1).fill(0);
    for (const series of answer.series) {
      const colour = series.colour === null ? colours.part[0] : colours.stage[series.colour];
      for (let cell = first; cell <= last; cell += 1) {
        const value = series.values[cell];
        if (!value) continue;
        const low = y(below[cell - first]);
        below[cell - first] += value;
        const high = y(below[cell - first]);
        const left = edge(cell);
        const wide = Math.max(1, edge(cell + 1) - left);
        context.fillStyle = colour;
        context.fillRect(left, high, wide, low - high);
        // A seam between neighbours, so that they differ without their colours.
        if (low - high > 3) { context.fillStyle = colours.panel; context.fillRect(left, high, wide, 1); }
      }
    }
    // The most at one moment of each cell.
    context.fillStyle = colours.ink;
    for (let cell = first; cell <= last; cell += 1) {
      if (answer.most[cell] === null) continue;
      const left = edge(cell);
      context.fillRect(left, Math.round(y(answer.most[cell])) - 1, Math.max(1, edge(cell + 1) - left), 1);
    }
    limits(lines, first, last, edge, y, width);
    marks(first, last, edge, base, x);
    if (cursor !== null) {
      context.fillStyle = colours.link;
      context.fillRect(Math.round(x(cursor)), 0, 1, HEIGHT);
    }
    context.restore();
    data.drawMs = (performance.now() - begin).toFixed(2);
    data.top = String(top);
  }

  function grid(width, gutter, x, y, top, step, base) {
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let bytes = 0; bytes <= top * 1.001; bytes += step) {
      const at = Math.round(y(bytes));
      context.fillStyle = colours.rule;
      context.fillRect(gutter, at, width - gutter, 1);
      context.fillStyle = colours.soft;
      context.fillText(bytesOf(bytes).replace(".0 ", " "), gutter - 5, at);
    }
    context.textAlign = "left";
    context.textBaseline = "top";
    const every = stepOf(view.to - view.from, width - gutter);
    for (let ms = Math.ceil(view.from / every) * every; ms <= view.to; ms += every) {
      const at = Math.round(x(ms));
      context.fillStyle = colours.rule;
      context.fillRect(at, 0, 1, HEIGHT);
      context.fillStyle = colours.soft;
      const text = clock(ms, every);
      if (at + 4 + context.measureText(text).width < width) context.fillText(text, at + 4, base + 15);
    }
  }

  /** Times in which nothing was measured are hatched: they are not zero. */
  function absent(first, last, edge, base) {
    let begin = null;
    for (let cell = first; cell <= last + 1; cell += 1) {
      const isAbsent = cell <= last && !answer.measured[cell];
      if (isAbsent && begin === null) begin = cell;
      if (isAbsent || begin === null) continue;
      hatched(context, edge(begin), TOP, edge(cell) - edge(begin), base - TOP, colours.rule);
      begin = null;
    }
  }

  function limits(lines, first, last, edge, y, width) {
    context.setLineDash([5, 4]);
    context.lineWidth = 1;
    let under = -99;
    for (const { limit, most: highest } of lines.sort((left, right) => right.most - left.most)) {
      context.strokeStyle = colours.bad;
      context.beginPath();
      // One line while the limit stays: dashes begin anew with each line.
      let begin = first;
      for (let cell = first; cell <= last; cell += 1) {
        if (cell < last && limit.values[cell + 1] === limit.values[begin]) continue;
        if (limit.values[begin] !== null) {
          const at = Math.round(y(limit.values[begin])) + 0.5;
          context.moveTo(edge(begin), at);
          context.lineTo(edge(cell + 1), at);
        }
        begin = cell + 1;
      }
      context.stroke();
      // Names that would cover one another are in the legend only.
      const at = y(highest) + 3;
      if (at - under < 13) continue;
      under = at;
      const text = fitted(context, limit.title + " " + bytesOf(highest), width / 2);
      const wide = context.measureText(text).width;
      context.fillStyle = colours.panel;
      context.fillRect(width - wide - 8, at, wide + 8, 13);
      context.fillStyle = colours.bad;
      context.fillText(text, width - wide - 4, at + 1);
    }
    context.setLineDash([]);
  }

  /** Collections below the picture, and where another run of a daemon began. */
  function marks(first, last, edge, base, x) {
    const highest = most(answer.collections, first, last) || 0;
    context.fillStyle = colours.ink;
    for (let cell = first; cell <= last; cell += 1) {
      const count = answer.collections[cell];
      if (!count) continue;
      const tall = 4 + Math.round(7 * count / highest);
      context.fillRect(edge(cell), base + 2, Math.max(2, Math.min(3, edge(cell + 1) - edge(cell))), tall);
    }
    // A daemon of several executors began anew once.
    let named = null;
    for (const gap of answer.gaps) {
      if (gap.reason !== "restart") continue;
      const [left, right] = [x(gap.from), x(gap.to)];
      context.fillStyle = colours.link;
      context.fillRect(Math.round(right), TOP, 2, base - TOP);
      const text = "daemon restarted";
      const wide = context.measureText(text).width;
      if (right - left <= wide + 8 || (named !== null && left < named)) continue;
      context.fillStyle = colours.ink;
      context.fillText(text, left + 4, TOP + 2);
      named = left + 4 + wide;
    }
  }

  /** The legend, with the values under the pointer, else the most of the view. */
  function items() {
    if (!answer || !view) return;
    const [first, last] = cells();
    const at = cursor === null ? null : cellOf(cursor);
    const entry = (picture, name, values, key) => {
      const item = document.createElement("li");
      const value = at === null ? most(values, first, last) : values[at];
      const shown = document.createElement("b");
      shown.textContent = value === null ? "not measured" : (at === null ? "at most " : "") + bytesOf(value);
      const label = document.createElement("bdi");
      label.textContent = name;
      item.title = name;
      item.dataset.key = key;
      item.dataset.bytes = value === null ? "" : String(value);
      item.append(picture, label, " ", shown);
      return item;
    };
    const all = answer.series.map((series) =>
      entry(square(series.colour === null ? "p0" : "s" + series.colour), series.name, series.values, series.key));
    all.push(entry(square("line"), "all together, most at one moment", answer.most, "most"));
    all.push(...answer.limits.map((limit) => entry(square("dash"), "limit: " + limit.title, limit.values, limit.name)));
    if (answer.collections.some((count) => count !== null)) {
      const item = document.createElement("li");
      const count = at === null ? answer.collections.slice(first, last + 1).reduce((sum, more) => sum + (more || 0), 0)
        : answer.collections[at];
      item.dataset.key = "collections";
      item.append(square("mark"), count === null ? "collections: not counted" : "collections: " + count.toLocaleString("en"));
      all.push(item);
    }
    legend.replaceChildren(...all);
  }

  /** What is at the pointer, in words. Only keys make a screen reader say it. */
  function tell(isKey) {
    if (!answer) return;
    said.setAttribute("aria-live", isKey ? "polite" : "off");
    const text = words(isKey);
    // A screen reader would say the same text again.
    if (said.textContent !== text) said.textContent = text;
  }

  function words(isKey) {
    if (cursor === null) {
      return answer.statistic[0].toUpperCase() + answer.statistic.slice(1) + ", a cell is " +
        clock(answer.cellMs, answer.cellMs < 1000 ? 1 : 1000) + (answer.intervalMs
        ? "; a point every " + [...new Set(answer.intervalMs)].map((ms) => clock(ms, ms % 1000 ? 1 : 1000)).join(" to ") : "");
    }
    const at = cellOf(cursor);
    const count = answer.collections[at];
    const total = answer.total[at];
    return clock(cursor, Math.min(999, answer.cellMs)) + ": " + (total === null ? "not measured"
      : bytesOf(total) + " in " + answer.measured[at] + (answer.measured[at] === 1 ? " executor" : " executors") +
        ", at most " + bytesOf(answer.most[at]) + (count ? "; collections: " + count : "") +
        (isKey ? ". " + answer.series.filter((series) => series.values[at])
          .map((series) => series.name + " " + bytesOf(series.values[at])).join(", ") : ""));
  }

  /** Puts the cursor at a time, or takes it away. */
  function place(ms, isKey) {
    cursor = ms;
    isByKey = isKey && ms !== null;
    data.cursor = ms === null ? "" : String(ms);
    if (!answer) return;
    paint();
    items();
    tell(isKey);
  }

  /** The cursor goes to the next cell that was measured. */
  function step(by) {
    if (!answer) return;
    const [first, last] = cells();
    let at = cursor === null ? (by > 0 ? first - 1 : last + 1) : cellOf(cursor);
    do at += by; while (at >= first && at <= last && !answer.measured[at]);
    if (at >= first && at <= last) place(answer.from + (at + 0.5) * answer.cellMs, true);
  }

  controls.addEventListener("submit", (event) => event.preventDefault());
  controls.addEventListener("change", () => { line.moved(); rest(); });
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !answer) return;
    if (event.key === "n" || event.key === "p") step(event.key === "n" ? 1 : -1);
    else if (event.key === "Escape") place(null, true);
    else if (!line.pressed(event.key)) return;
    event.preventDefault();
  });

  /** Puts the cursor at a distance from the left edge, in pixels. */
  function point(pixels) {
    if (pixels === null || !view) { place(null, false); return; }
    const gutter = gutterOf(canvas.clientWidth);
    place(pixels < gutter ? null : view.from + (pixels - gutter) / (canvas.clientWidth - gutter) * (view.to - view.from), false);
  }

  /** The picture rests: asks for what is exactly there. */
  function rest() {
    if (!view) return;
    const query = new URLSearchParams({ from: Math.round(view.from), to: Math.round(view.to), ...chosen() });
    link.href = data.table + "?" + query;
    if (answer) { items(); tell(isByKey); }
    if (!isSame(answered, wanted())) ask(); else data.state = "ready";
  }

  return {
    canvas,
    refresh() { if (view) ask(); },
    /** Draws a view of the time line; from the last answer, until one for the view is there. */
    show(next) {
      view = next;
      paint();
      if (!covers()) ask();
    },
    rest,
    point,
    recolour() { colours = palette(); paint(); },
    /** What the address remembers. */
    remember(parameters) {
      const now = chosen();
      parameters.set("by", now.by);
      if (now.executor === undefined) parameters.delete("executor"); else parameters.set("executor", now.executor);
    },
  };
}
