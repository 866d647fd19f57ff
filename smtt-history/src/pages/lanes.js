// The lanes of a task's functions: zooms and moves them. The server draws the window of the address and gives every span with
// its times; this script draws other windows of the same spans, as window.rs and axis.rs do.
/** Shortest window in nanoseconds, smallest width of a span, and the place from which on a mark has no label. */
const LEAST = 1e5;
const NARROWEST = 0.1;
const LAST = 88;
/** Milliseconds without a change after which the address follows. */
const REST = 120;
const MINUTE = 6e10;
const DAY = 1440 * MINUTE;
const TENTHS = [80, 60, 50, 40, 30, 25, 20, 15, 10];
const HALF_MINUTES = [2880, 2160, 1440, 960, 720, 480, 360, 240, 180, 120, 90, 60, 40, 30, 20, 12, 10, 8, 6, 4, 3, 2];

/** The lanes of a task. */
function lanes(root) {
  const said = root.querySelector(".lanes-said");
  const data = root.dataset;
  const total = Number(data.total);
  const SHORTEST = Math.min(LEAST, total);
  let view = { from: Number(data.from), to: Number(data.to) };
  const spans = [...root.querySelectorAll("rect[data-begin]")].map((shape) => {
    const [begin, ns] = [Number(shape.dataset.begin), Number(shape.dataset.ns)];
    return { shape, link: shape.parentNode, begin, end: begin + ns };
  });
  const grids = [...root.querySelectorAll("path.grid")].map((path) => [path, path.ownerSVGElement.getAttribute("height")]);
  const axis = root.querySelector("svg.axis");
  const SVG = "http://www.w3.org/2000/svg";
  let isDrawn = true;
  let resting = 0;

  /** Where a time is, in hundredths of the width. */
  const place = (ns) => (Math.max(view.from, Math.min(view.to, ns)) - view.from) * 100 / (view.to - view.from);

  /** Distance of the axis' marks. */
  function stepOf(span) {
    const most = Math.max(1, Math.floor(span / 4));
    if (most >= DAY) return Math.floor(most / DAY) * DAY;
    if (most >= MINUTE) return (HALF_MINUTES.find((step) => step * MINUTE / 2 <= most) || 2) * MINUTE / 2;
    const decade = 10 ** (String(most).length - 1);
    return TENTHS.map((step) => Math.floor(step * decade / 10)).find((step) => step <= most) || 1;
  }

  /** A duration as the server writes it. */
  function duration(ns) {
    if (ns < 1e3) return ns + " ns";
    if (ns < 1e6) return (ns / 1e3).toFixed(1) + " us";
    if (ns < 1e9) return (ns / 1e6).toFixed(1) + " ms";
    if (ns < MINUTE) return (ns / 1e9).toFixed(1) + " s";
    const two = (number) => String(Math.floor(number)).padStart(2, "0");
    const s = Math.floor(ns / 1e9);
    return s < 3600 ? Math.floor(s / 60) + "m" + two(s % 60) + "s" : Math.floor(s / 3600) + "h" + two(s / 60 % 60) + "m";
  }

  const isAll = () => view.from === 0 && view.to === total;

  function label(ns, step) {
    if (ns === 0) return "0";
    if (isAll() || step >= MINUTE) return duration(ns);
    let digits = 0;
    while (digits < 9 && step % 10 ** (9 - digits) !== 0) digits += 1;
    return (ns / 1e9).toFixed(digits) + " s";
  }

  function element(name, attributes) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  /** Draws with the next frame of the screen. */
  function show() {
    clearTimeout(resting);
    resting = setTimeout(rest, REST);
    data.state = "moving";
    if (!isDrawn) return;
    isDrawn = false;
    requestAnimationFrame(() => {
      isDrawn = true;
      paint();
    });
  }

  function paint() {
    let shown = 0;
    for (const { shape, link, begin, end } of spans) {
      const isHere = begin < view.to && end >= view.from;
      link.classList.toggle("out", !isHere);
      if (!isHere) continue;
      shown += 1;
      const left = place(begin);
      shape.setAttribute("x", left);
      shape.setAttribute("width", Math.max(NARROWEST, place(end) - left));
    }
    const step = stepOf(view.to - view.from);
    const marks = [];
    for (let ns = Math.ceil(view.from / step) * step; ns <= view.to; ns += step) marks.push(ns);
    axis.replaceChildren(...marks.flatMap((ns) => {
      const at = place(ns).toFixed(3) + "%";
      const line = element("line", { x1: at, x2: at, y1: 0, y2: "100%" });
      if (place(ns) > LAST) return [line];
      const text = element("text", { x: at, dx: 4, y: 12 });
      text.textContent = label(ns, step);
      return [line, text];
    }));
    const lines = marks.filter((ns) => ns > view.from).map((ns) => "M" + place(ns).toFixed(3) + " 0V");
    for (const [path, height] of grids) path.setAttribute("d", lines.map((line) => line + height).join(""));
    said.textContent = "From " + duration(view.from) + " to " + duration(view.to) + ", " + shown.toLocaleString("en") + " of " +
      spans.length.toLocaleString("en") + " spans and requests";
  }

  /** The address, and those of spans and tables, keep what is shown. */
  function rest() {
    const kept = (query, { from, to }) => {
      const all = new URLSearchParams(query);
      if (from === 0 && to === total) { all.delete("from"); all.delete("to"); }
      else { all.set("from", from); all.set("to", to); }
      return "?" + all;
    };
    data.from = view.from;
    data.to = view.to;
    data.state = "ready";
    // A report has the lanes of several tasks, and no address for them.
    if (root.id !== "lanes") return;
    history.replaceState(null, "", location.pathname + kept(location.search, view) + location.hash);
    for (const link of document.querySelectorAll("main a[href^='?']")) {
      const [query, hash] = link.getAttribute("href").split("#");
      const own = link.dataset.do ? WINDOWS[link.dataset.do]() : view;
      link.setAttribute("href", kept(query, own) + (hash ? "#" + hash : ""));
    }
  }

  /** A window of so many nanoseconds from a time, within the task. */
  function within(from, span) {
    span = Math.round(Math.max(SHORTEST, Math.min(total, span)));
    from = Math.round(Math.max(0, Math.min(from, total - span)));
    return { from, to: from + span };
  }
  const zoomed = (factor, at = (view.from + view.to) / 2) => {
    const span = view.to - view.from;
    const wanted = Math.max(SHORTEST, Math.min(total, span * factor));
    return within(at - (at - view.from) * wanted / span, wanted);
  };
  const moved = (share) => within(view.from + (view.to - view.from) * share, view.to - view.from);
  const WINDOWS = {
    in: () => zoomed(0.5), out: () => zoomed(2), left: () => moved(-0.25), right: () => moved(0.25), all: () => within(0, total),
  };
  const KEYS = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", Home: "all" };
  function go(next) {
    view = next;
    show();
  }

  root.querySelector(".lanes-window").addEventListener("click", (event) => {
    const name = event.target.dataset.do;
    if (!name || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(WINDOWS[name]());
  });
  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
    event.preventDefault();
    go(WINDOWS[KEYS[event.key]]());
  });

  // Pointers: one drags, two zoom; a short one is a click on a span's link.
  const lane = (event) => event.target instanceof Element && event.target.closest("svg.lanes");
  const perPixel = () => (view.to - view.from) / axis.getBoundingClientRect().width;
  const time = (x) => view.from + (x - axis.getBoundingClientRect().left) * perPixel();
  const pointers = new Map();
  let dragged = 0;
  root.addEventListener("pointerdown", (event) => {
    if (!lane(event) || event.button !== 0) return;
    pointers.set(event.pointerId, event.clientX);
    dragged = 0;
  });
  root.addEventListener("pointermove", (event) => {
    if (!pointers.has(event.pointerId)) return;
    const before = [...pointers.values()];
    pointers.set(event.pointerId, event.clientX);
    const after = [...pointers.values()];
    if (after.length === 1) {
      dragged += Math.abs(before[0] - after[0]);
      if (dragged <= 3) return;
      // From here on it is no click.
      root.setPointerCapture(event.pointerId);
      root.classList.add("moving");
      go(within(view.from + (before[0] - after[0]) * perPixel(), view.to - view.from));
    } else if (after.length === 2) {
      dragged = 9;
      const distance = ([left, right]) => Math.max(10, Math.abs(left - right));
      go(zoomed(distance(before) / distance(after), time((after[0] + after[1]) / 2)));
    }
  });
  const release = (event) => {
    pointers.delete(event.pointerId);
    root.classList.remove("moving");
    // The click that ends a drag comes before; those of keys have no pointer.
    setTimeout(() => { dragged = 0; });
  };
  root.addEventListener("pointerup", release);
  root.addEventListener("pointercancel", release);
  root.addEventListener("click", (event) => {
    if (lane(event) && dragged > 3) event.preventDefault();
  }, true);
  root.addEventListener("dragstart", (event) => event.preventDefault());
  root.addEventListener("wheel", (event) => {
    if (!lane(event)) return;
    if (event.ctrlKey || event.metaKey) go(zoomed(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 200))), time(event.clientX)));
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) go(moved(event.deltaX / 1000));
    else return;
    event.preventDefault();
  }, { passive: false });
  data.state = "ready";
}
for (const root of document.querySelectorAll(".lane-set")) lanes(root);
