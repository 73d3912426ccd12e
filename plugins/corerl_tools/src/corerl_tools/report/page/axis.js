// Scales, ticks and the lines behind a chart.

function niceStep(span, count) {
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) * power;
}

function linearTicks(low, high, count) {
  if (!(high > low)) return { values: [low], step: Math.abs(low) || 1 };
  const step = niceStep(high - low, count);
  const values = [];
  for (let k = Math.ceil(low / step - 1e-9); k <= high / step + 1e-9; k++) values.push(k * step);
  return { values, step };
}

function logTicks(low, high) {
  const first = Math.floor(Math.log10(low)),
    last = Math.ceil(Math.log10(high));
  const every = Math.max(1, Math.ceil((last - first) / 5));
  const factors = last - first <= 2 ? [1, 2, 5] : [1];
  const values = [];
  for (let power = first; power <= last; power += every)
    for (const factor of factors) values.push(factor * 10 ** power);
  const inside = values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  return inside.length > 1 ? { values: inside, step: null } : { values: linearTicks(low, high, 4).values, step: null };
}

/** From values to pixels. */
function scale(low, high, from, to, log = false) {
  const f = log ? Math.log10 : (value) => value;
  const a = f(low),
    span = f(high) - a || 1;
  const map = (value) => from + ((f(value) - a) / span) * (to - from);
  map.invert = (pixel) => {
    const value = a + ((pixel - from) / (to - from)) * span;
    return log ? 10 ** value : value;
  };
  return map;
}

/** A range with room around it; one value has a range of its own. */
function padded(low, high, log) {
  if (log) return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.05, high * (high / low) ** 0.05];
  if (low === high) return low === 0 ? [-1, 1] : [low - Math.abs(low) * 0.5, high + Math.abs(high) * 0.5];
  const room = (high - low) * 0.06;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

/** Grid lines and labels of both axes as one SVG group. */
function frame({ x, y, xTicks, yTicks, width, height, left, right, top, bottom, xLabel }) {
  const group = svg("g", { class: "frame" });
  for (const value of yTicks.values) {
    const at = y(value);
    group.append(
      svg("line", { class: "grid", x1: left, x2: width - right, y1: at, y2: at }),
      svg(
        "text",
        { class: "tick", x: left - 8, y: at, dy: "0.32em", "text-anchor": "end" },
        yTicks.labels ? yTicks.labels(value) : yTicks.step === null ? number(value) : tickLabel(value, yTicks.step),
      ),
    );
  }
  const base = height - bottom;
  group.append(svg("line", { class: "base", x1: left, x2: width - right, y1: base, y2: base }));
  for (const value of xTicks.values) {
    const at = x(value);
    group.append(
      svg("line", { class: "base", x1: at, x2: at, y1: base, y2: base + 4 }),
      svg("text", { class: "tick", x: at, y: base + 17, "text-anchor": "middle" }, tickLabel(value, xTicks.step)),
    );
  }
  if (xLabel)
    group.append(svg("text", { class: "tick label", x: width - right, y: height - 4, "text-anchor": "end" }, xLabel));
  return group;
}

/** Room for the labels of the y axis. */
function labelWidth(ticks) {
  const texts = ticks.values.map((value) =>
    ticks.labels ? ticks.labels(value) : ticks.step === null ? number(value) : tickLabel(value, ticks.step),
  );
  return Math.max(28, 14 + 6.6 * Math.max(...texts.map((text) => text.length)));
}
