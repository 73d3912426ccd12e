// A chart of lines, one a run, with a band from least to largest where a curve was cut into parts.

const TOP = 8,
  RIGHT = 20,
  BOTTOM = 36;
const MARKED = 30; // curves of so few points show them

/** Cards draw themselves when they come into view, and again when something changes. */
const seen = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      target.card.visible = isIntersecting;
      if (isIntersecting) target.card.refresh();
    }
  },
  { rootMargin: "200px" },
);

const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) target.card.invalidate();
});

class Card {
  /** draw(card) fills card.host; whether there is something to draw, it says. */
  constructor(title, draw, { height = 190, wide = false, note = "", metric = false, run = null } = {}) {
    this.draw = draw;
    this.height = height;
    this.dirty = true;
    this.visible = false;
    this.host = el("div", { class: "plot" });
    this.host.style.height = `${height}px`;
    this.value = el("span", { class: "card-value" });
    const save = el(
      "button",
      { class: "quiet save", type: "button", title: "Save this chart as SVG", onclick: () => saveSvg(this) },
      "SVG",
    );
    this.element = el(
      "section",
      { class: wide ? "card wide" : "card", "data-run": run },
      el(
        "header",
        {},
        el("h3", { title }, ...(metric ? split(title) : [title])),
        note ? el("small", {}, note) : null,
        this.value,
        save,
      ),
      this.host,
    );
    this.title = title;
    this.element.card = this;
    this.host.card = this;
    seen.observe(this.element);
    resized.observe(this.host);
    this.redraw = onceAFrame(() => this.refresh());
  }
  invalidate() {
    this.dirty = true;
    if (this.visible) this.redraw();
  }
  refresh() {
    if (!this.dirty || !this.host.clientWidth) return;
    this.dirty = false;
    this.draw(this);
  }
}

/** A metric's name, its group quieter than its own part. */
function split(name) {
  const at = name.indexOf("/");
  return at < 0 ? [name] : [el("span", { class: "group" }, name.slice(0, at + 1)), name.slice(at + 1)];
}

/** The ranges of what is drawn; without outliers that of the middle 98 %. */
function bounds(series, zoom, log) {
  let x0 = Infinity,
    x1 = -Infinity,
    y0 = Infinity,
    y1 = -Infinity;
  const all = [];
  for (const { x, mean } of series)
    for (let i = 0; i < x.length; i++) {
      const value = mean[i];
      if (value === null || (log && value <= 0) || (zoom && (x[i] < zoom[0] || x[i] > zoom[1]))) continue;
      if (x[i] < x0) x0 = x[i];
      if (x[i] > x1) x1 = x[i];
      if (value < y0) y0 = value;
      if (value > y1) y1 = value;
      if (state.robust) all.push(value);
    }
  if (all.length > 20) {
    all.sort((a, b) => a - b);
    [y0, y1] = [0.01, 0.99].map((share) => all[Math.round(share * (all.length - 1))]);
  }
  return { x0, x1, y0, y1 };
}

/** An SVG path through the points; what is missing is a gap. */
function linePath(xs, ys, x, y, log) {
  let path = "",
    pen = "M";
  for (let i = 0; i < xs.length; i++) {
    if (ys[i] === null || (log && ys[i] <= 0)) {
      pen = "M";
      continue;
    }
    path += `${pen}${x(xs[i]).toFixed(1)} ${y(ys[i]).toFixed(1)}`;
    pen = "L";
  }
  return path;
}

function bandPath(xs, low, high, x, y) {
  const points = xs.map((_, i) => i).filter((i) => low[i] !== null && high[i] !== null);
  const line = (ys, order) => order.map((i) => `${x(xs[i]).toFixed(1)} ${y(ys[i]).toFixed(1)}`).join("L");
  return points.length ? `M${line(high, points)}L${line(low, points.slice().reverse())}Z` : "";
}

let clips = 0;

/** Draw the curves of a metric into a card. */
function drawLines(card, series, { xLabel = AXES[state.axis] } = {}) {
  const { host } = card,
    width = host.clientWidth,
    height = card.height,
    log = state.log;
  let { x0, x1, y0, y1 } = bounds(series, state.zoom, log);
  if (!Number.isFinite(y0)) {
    host.replaceChildren(el("p", { class: "note" }, log ? "nothing above zero" : "nothing here"));
    return;
  }
  if (state.zoom) [x0, x1] = state.zoom;
  if (x0 === x1) [x0, x1] = [x0 - 0.5, x1 + 0.5];
  const [low, high] = padded(y0, y1, log);
  const yTicks = log ? logTicks(low, high) : linearTicks(low, high, Math.round(height / 40));
  const left = labelWidth(yTicks);
  const x = scale(x0, x1, left, width - RIGHT),
    y = scale(low, high, height - BOTTOM, TOP, log);
  const picture = svg("svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": card.title,
  });
  const clip = `clip-${clips++}`;
  picture.append(
    svg(
      "clipPath",
      { id: clip },
      svg("rect", {
        x: left - 4,
        y: TOP - 4,
        width: Math.max(0, width - left - RIGHT + 8),
        height: height - BOTTOM - TOP + 8,
      }),
    ),
    frame({
      x,
      y,
      xTicks: linearTicks(x0, x1, width / 80),
      yTicks,
      width,
      height,
      left,
      right: RIGHT,
      top: TOP,
      bottom: BOTTOM,
      xLabel,
    }),
  );
  const inside = svg("g", { "clip-path": `url(#${clip})` });
  for (const each of series) {
    const colour = runColour(each.run),
      drawn = smoothed(each.mean, state.smoothing);
    const stroke = { stroke: colour, "stroke-dasharray": runDash(each.run) };
    if (each.min && !log)
      inside.append(svg("path", { class: "band", fill: colour, d: bandPath(each.x, each.min, each.max, x, y) }));
    if (state.smoothing)
      inside.append(svg("path", { class: "line faint", ...stroke, d: linePath(each.x, each.mean, x, y, log) }));
    inside.append(svg("path", { class: "line", ...stroke, d: linePath(each.x, drawn, x, y, log) }));
    if (each.x.length <= MARKED)
      drawn.forEach(
        (value, i) =>
          value !== null &&
          !(log && value <= 0) &&
          inside.append(svg("circle", { class: "dot", fill: colour, cx: x(each.x[i]), cy: y(value), r: 2.6 })),
      );
  }
  picture.append(inside);
  host.replaceChildren(picture);
  follow(picture, card, series, { x, y, left, width, height });
}

function nearest(xs, at) {
  let low = 0,
    high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < at) low = middle;
    else high = middle;
  }
  return Math.abs(xs[low] - at) <= Math.abs(xs[high] - at) ? low : high;
}

/** Values under the pointer; a drag zooms every chart, a double click shows all again. */
function follow(picture, card, series, { x, y, left, width, height }) {
  const cross = svg("line", { class: "cross", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
  const dots = series.map((each) =>
    svg("circle", { class: "dot at", r: 3.6, fill: runColour(each.run), visibility: "hidden" }),
  );
  const box = svg("rect", { class: "zoom", y: TOP, height: height - BOTTOM - TOP, visibility: "hidden" });
  picture.append(box, cross, ...dots);
  let start = null;
  const place = (event) =>
    Math.min(width - RIGHT, Math.max(left, event.clientX - picture.getBoundingClientRect().left));
  const leave = () => {
    for (const each of [cross, box, ...dots]) each.setAttribute("visibility", "hidden");
    hideTip();
  };
  picture.addEventListener("pointermove", (event) => {
    const pixel = place(event),
      at = x.invert(pixel);
    (cross.setAttribute("x1", pixel), cross.setAttribute("x2", pixel), cross.setAttribute("visibility", "visible"));
    if (start !== null) {
      (box.setAttribute("x", Math.min(start, pixel)), box.setAttribute("width", Math.abs(pixel - start)));
      box.setAttribute("visibility", "visible");
    }
    const lines = [];
    let heading = "";
    series.forEach((each, number_) => {
      const i = nearest(each.x, at),
        value = each.mean[i];
      if (value === null || value === undefined || (state.log && value <= 0)) return;
      (dots[number_].setAttribute("cx", x(each.x[i])), dots[number_].setAttribute("cy", y(value)));
      dots[number_].setAttribute("visibility", "visible");
      heading ||= state.axis === "step" ? `step ${number(each.step[i])}` : `${number(each.x[i])} ${AXES[state.axis]}`;
      const spread = each.min ? `  (${number(each.min[i])} … ${number(each.max[i])})` : "";
      lines.push([runColour(each.run), each.label, number(value) + spread]);
    });
    showTip(event, heading, lines);
  });
  picture.addEventListener("pointerdown", (event) => {
    start = place(event);
  });
  picture.addEventListener("pointerup", (event) => {
    const end = place(event);
    if (start !== null && Math.abs(end - start) > 6) {
      leave();
      choose({ zoom: [Math.min(start, end), Math.max(start, end)].map(x.invert) });
    }
    start = null;
  });
  picture.addEventListener("pointerleave", () => {
    start = null;
    leave();
  });
  picture.addEventListener("dblclick", () => choose({ zoom: null }));
}

const SAVED = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-opacity",
  "fill-opacity",
  "opacity",
  "font-family",
  "font-size",
  "visibility",
];

/** A chart as a file of its own, with the colours that it has now. */
function saveSvg(card) {
  const picture = card.host.querySelector("svg");
  if (!picture) return;
  const copy = picture.cloneNode(true),
    from = picture.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((element, i) => {
    const style = getComputedStyle(from[i]);
    for (const name of SAVED) element.setAttribute(name, style.getPropertyValue(name));
  });
  copy.setAttribute("xmlns", SVG);
  const link = el("a", {
    download: `${card.title.replace(/[^\w@.-]+/g, "_")}.svg`,
    href: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(copy.outerHTML)}`,
  });
  link.click();
}
