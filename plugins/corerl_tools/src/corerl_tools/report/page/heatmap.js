// How the values of a step's responses were spread: a column for each few steps, darker where more responses are.

function drawHeat(card, spread, run) {
  const { host } = card,
    width = host.clientWidth,
    height = card.height;
  const { columns, rows, edges, shares, p10, p50, p90 } = spread;
  const count = edges ? rows.length - 1 : rows.length;
  const low = rows[0],
    high = rows[rows.length - 1];
  const yTicks = edges
    ? linearTicks(low, high === low ? low + 1 : high, Math.round(height / 48))
    : { values: rows.map((_, i) => i), step: 1, labels: (i) => number(rows[i]) };
  const left = labelWidth(yTicks),
    w = width - left - RIGHT,
    h = height - BOTTOM - TOP;
  const ratio = window.devicePixelRatio || 1;
  const canvas = el("canvas", { width: Math.round(w * ratio), height: Math.round(h * ratio) });
  canvas.style.cssText = `position:absolute;left:${left}px;top:${TOP}px;width:${w}px;height:${h}px`;
  const paint = canvas.getContext("2d");
  const probe = el("i", { style: { color: runColour(run) } });
  host.replaceChildren(probe);
  paint.fillStyle = getComputedStyle(probe).color;
  const largest = Math.max(...shares.flat());
  shares.forEach((column, i) => {
    const x0 = Math.round((i * canvas.width) / shares.length),
      x1 = Math.round(((i + 1) * canvas.width) / shares.length);
    column.forEach((share, row) => {
      if (!share) return;
      const y0 = Math.round(((count - row - 1) * canvas.height) / count),
        y1 = Math.round(((count - row) * canvas.height) / count);
      paint.globalAlpha = 0.06 + 0.94 * Math.sqrt(share / largest);
      const gap = edges ? 0 : ratio;
      paint.fillRect(x0, y0 + gap, x1 - x0, y1 - y0 - 2 * gap);
    });
  });
  const y = edges
    ? scale(low, high === low ? low + 1 : high, height - BOTTOM, TOP)
    : (i) => TOP + ((count - i - 0.5) * h) / count;
  const x = (i) => left + ((i + 0.5) * w) / columns.length;
  const wanted = Math.min(columns.length, Math.max(2, Math.floor(w / 90)));
  const places = [
    ...new Set(
      Array.from({ length: wanted }, (_, i) => Math.round((i * (columns.length - 1)) / Math.max(1, wanted - 1))),
    ),
  ];
  const picture = svg("svg", { width, height, role: "img", "aria-label": card.title, style: { position: "relative" } });
  const base = height - BOTTOM;
  for (const value of yTicks.values)
    picture.append(
      svg(
        "text",
        { class: "tick", x: left - 8, y: y(value), dy: "0.32em", "text-anchor": "end" },
        yTicks.labels ? yTicks.labels(value) : tickLabel(value, yTicks.step),
      ),
    );
  picture.append(svg("line", { class: "base", x1: left, x2: width - RIGHT, y1: base, y2: base }));
  for (const place of places)
    picture.append(
      svg("text", { class: "tick", x: x(place), y: base + 17, "text-anchor": "middle" }, number(columns[place][0])),
    );
  picture.append(svg("text", { class: "tick label", x: width - RIGHT, y: height - 4, "text-anchor": "end" }, "step"));
  if (edges && columns.length > 1) {
    const path = (values) =>
      values.map((value, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    picture.append(
      svg("path", { class: "quantile", d: path(p10) }),
      svg("path", { class: "quantile", d: path(p90) }),
      svg("path", { class: "median", d: path(p50) }),
    );
  }
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const i = Math.floor(((event.clientX - box.left - left) / w) * columns.length);
    if (i < 0 || i >= columns.length) return hideTip();
    const [first, last] = columns[i];
    const lines = edges
      ? [
          [null, "90 % below", number(p90[i])],
          [null, "median", number(p50[i])],
          [null, "10 % below", number(p10[i])],
        ]
      : rows.map((value, row) => [null, number(value), percent(shares[i][row] / 1000)]).reverse();
    showTip(event, first === last ? `step ${number(first)}` : `steps ${number(first)} … ${number(last)}`, lines);
  });
  picture.addEventListener("pointerleave", hideTip);
  host.append(canvas, picture);
  probe.remove();
}

function distributionsSection() {
  const cards = [];
  const elements = data.runs.flatMap((run, number_) =>
    [
      ["score", "Score"],
      ["length", "Response length, tokens"],
    ].flatMap(([key, title]) => {
      if (!run[key]) return [];
      const card = new Card(
        data.runs.length > 1 ? `${title}: ${run.name}` : title,
        (each) => drawHeat(each, run[key], number_),
        { height: 300, run: number_ },
      );
      cards.push(card);
      return [card.element];
    }),
  );
  const note = elements.length
    ? el(
        "p",
        { class: "note" },
        "The stronger the colour, the more of a step's responses. Lines: the median, and the range that holds 80 % of them.",
      )
    : el("p", { class: "note" }, "The runs have no sample rollouts (trainer.log_rollouts_freq).");
  return { element: el("div", {}, note, el("div", { class: "cards large" }, elements)), cards };
}
