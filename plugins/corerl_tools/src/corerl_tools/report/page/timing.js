// Where the time goes: seconds of each part of a step, on average and over steps.

const PHASES = [
  "wait",
  "gen",
  "reward",
  "handover",
  "old_log_prob",
  "ref",
  "values",
  "adv",
  "update_critic",
  "update_actor",
  "update_weights",
];

/** The parts of a step that pass one after the other. */
function phasesOf(run) {
  const names = Object.keys(run.seconds);
  const ahead = names.includes("wait") ? ["gen", "reward"] : []; // they pass during earlier steps
  const kept = names.filter((name) => !["step", ...ahead].includes(name));
  return kept.sort((a, b) => ((PHASES.indexOf(a) + 99) % 99) - ((PHASES.indexOf(b) + 99) % 99));
}

function phaseColour(name) {
  const place = PHASES.indexOf(name);
  return name === "other" ? "var(--rest)" : `var(--phase-${(place < 0 ? name.length : place) % 11})`;
}

function meanSeconds(run) {
  const phases = phasesOf(run).map((name) => [name, run.seconds[name]]);
  const rest = run.seconds.step - phases.reduce((sum, [, seconds]) => sum + seconds, 0);
  return rest > 0 ? [...phases, ["other", rest]] : phases;
}

/** Parts [name, seconds] of a whole, side by side. */
function stackBar(parts, colour, label) {
  const total = parts.reduce((sum, [, seconds]) => sum + seconds, 0) || 1;
  return el(
    "div",
    { class: "stack", role: "img", "aria-label": label },
    parts.map(([name, seconds]) =>
      el("i", {
        style: { width: `${(100 * seconds) / total}%`, background: colour(name) },
        onpointermove: (event) => showTip(event, name, [[colour(name), percent(seconds / total), duration(seconds)]]),
        onpointerleave: hideTip,
      }),
    ),
  );
}

function breakdown(run, number_) {
  const parts = meanSeconds(run),
    total = parts.reduce((sum, [, seconds]) => sum + seconds, 0) || 1;
  const bar = stackBar(parts, phaseColour, `Parts of a step of ${run.name}`);
  const rows = parts
    .filter(([, seconds]) => seconds > 0)
    .sort((a, b) => b[1] - a[1])
    .map(([name, seconds]) =>
      el(
        "tr",
        {},
        el("td", {}, el("i", { class: "swatch", style: { background: phaseColour(name) } }), name),
        el("td", { class: "num" }, duration(seconds)),
        el("td", { class: "num" }, percent(seconds / total)),
      ),
    );
  return el(
    "section",
    { class: "card timing", "data-run": number_ },
    el(
      "header",
      {},
      el(
        "h3",
        {},
        data.runs.length > 1 ? el("i", { class: "swatch", style: { background: runColour(number_) } }) : null,
        run.name,
      ),
      el("span", { class: "card-value" }, `${duration(total)} a step`),
    ),
    bar,
    el("table", { class: "parts" }, el("tbody", {}, rows)),
    run.allowed ? el("p", { class: "note" }, run.allowed) : null,
  );
}

/** The parts of each step one upon the other. */
function drawAreas(card, run) {
  const { host } = card,
    width = host.clientWidth,
    height = card.height;
  const step = run.curves.metrics["timing_s/step"];
  if (!step) return host.replaceChildren(el("p", { class: "note" }, "no timing"));
  const xs = run.curves.grids[step.grid].step;
  const phases = phasesOf(run).filter((name) => run.curves.metrics[`timing_s/${name}`].grid === step.grid);
  let below = xs.map(() => 0);
  const layers = phases.map((name) => {
    const values = run.curves.metrics[`timing_s/${name}`].mean;
    const upper = below.map((value, i) => value + (values[i] ?? 0));
    const layer = { name, lower: below, upper, values };
    below = upper;
    return layer;
  });
  const rest = step.mean.map((value, i) => Math.max(0, (value ?? 0) - below[i]));
  layers.push({ name: "other", lower: below, upper: below.map((value, i) => value + rest[i]), values: rest });
  const sorted = layers
    .at(-1)
    .upper.slice()
    .sort((a, b) => a - b);
  const high = Math.min(sorted.at(-1), 3 * sorted[Math.floor(0.98 * (sorted.length - 1))]) * 1.04 || 1;
  const yTicks = linearTicks(0, high, 5),
    left = labelWidth(yTicks);
  const [x0, x1] = xs.length > 1 ? [xs[0], xs.at(-1)] : [xs[0] - 0.5, xs[0] + 0.5];
  const x = scale(x0, x1, left, width - RIGHT),
    y = scale(0, high, height - BOTTOM, TOP);
  const picture = svg("svg", { width, height, role: "img", "aria-label": card.title });
  const clip = `clip-${clips++}`;
  picture.append(
    svg(
      "clipPath",
      { id: clip },
      svg("rect", { x: left, y: TOP, width: Math.max(0, width - left - RIGHT), height: height - BOTTOM - TOP }),
    ),
  );
  picture.append(
    svg(
      "g",
      { "clip-path": `url(#${clip})` },
      layers.map((layer) =>
        svg("path", { class: "area", fill: phaseColour(layer.name), d: bandPath(xs, layer.lower, layer.upper, x, y) }),
      ),
    ),
  );
  picture.append(
    frame({
      x,
      y,
      xTicks: linearTicks(x0, x1, width / 90),
      yTicks,
      width,
      height,
      left,
      right: RIGHT,
      top: TOP,
      bottom: BOTTOM,
      xLabel: "step",
    }),
  );
  picture.addEventListener("pointermove", (event) => {
    const i = nearest(xs, x.invert(event.clientX - picture.getBoundingClientRect().left));
    showTip(
      event,
      `step ${number(xs[i])}: ${duration(step.mean[i])}`,
      layers
        .slice()
        .reverse()
        .filter((layer) => layer.values[i] > 0.002 * step.mean[i])
        .map((layer) => [phaseColour(layer.name), layer.name, duration(layer.values[i])]),
    );
  });
  picture.addEventListener("pointerleave", hideTip);
  host.replaceChildren(picture);
}

function timingSection() {
  const timed = data.runs.map((run, number_) => [run, number_]).filter(([run]) => run.curves.metrics["timing_s/step"]);
  const cards = timed.map(
    ([run, number_]) =>
      new Card(
        timed.length > 1 ? `Seconds of a step: ${run.name}` : "Seconds of a step",
        (card) => drawAreas(card, run),
        { height: 300, wide: true, run: number_ },
      ),
  );
  return {
    element: el(
      "div",
      {},
      el(
        "div",
        { class: "cards timings" },
        timed.map(([run, number_]) => breakdown(run, number_)),
      ),
      el(
        "div",
        { class: "cards wide" },
        cards.map((card) => card.element),
      ),
    ),
    cards,
  };
}
