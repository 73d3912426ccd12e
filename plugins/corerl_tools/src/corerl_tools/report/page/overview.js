// The runs at a glance, and the curves that one looks at first.

const SCORE = "critic/score/mean";
const FIRST = [
  ["Response length", ["response_length/mean"]],
  ["Entropy", ["actor/entropy"]],
  ["KL to the reference", ["actor/kl_loss", "actor/reward_kl_penalty"]],
  ["Loss", ["actor/pg_loss"]],
  ["Gradient norm", ["actor/grad_norm"]],
  ["Clipped tokens", ["actor/pg_clipfrac"]],
  ["Cut off by length", ["response_length/clip_ratio"]],
  ["Tokens per second", ["perf/throughput"]],
  ["Seconds a step", ["perf/time_per_step", "timing_s/step"]],
];

function validationNames() {
  return allMetrics().filter((name) => name.startsWith("val-core/"));
}

function runCard(run, number_) {
  const status = run.status,
    total = status?.total_steps ?? run.steps;
  const first = firstOf(run, SCORE),
    last = lastOf(run, SCORE);
  const validation = validationNames().find((name) => run.curves.metrics[name]);
  const hours = run.curves.grids.reduce((most, grid) => Math.max(most, grid.hours.at(-1) ?? 0), 0);
  const tokens = run.curves.grids.reduce((most, grid) => Math.max(most, grid.tokens.at(-1) ?? 0), 0);
  const facts = [
    ["step", `${run.steps} of ${total}`],
    ["time", duration(hours * 3600)],
    ["tokens", number(tokens)],
    ["tokens/s", number(meanOf(run, "perf/throughput"))],
  ];
  const differing =
    data.runs.length > 1
      ? differingKeys().filter((key) => !/^(tracking\.|trainer\.(output_dir|.*_freq|log_rollouts))/.test(key))
      : [];
  const figure = (label, value, from) =>
    el(
      "div",
      { class: "figure" },
      el("div", { class: "figure-label" }, label),
      el("div", { class: "figure-value" }, headline(value)),
      el("div", { class: "figure-from" }, from === null ? "" : `from ${headline(from)}`),
    );
  return el(
    "article",
    { class: "run-card", style: { "--colour": runColour(number_) } },
    el(
      "header",
      {},
      el("h2", {}, run.name),
      status ? el("span", { class: `badge ${status.state}` }, status.state) : null,
    ),
    el(
      "div",
      { class: "progress" },
      el("i", { style: { width: `${Math.min(100, (100 * run.steps) / Math.max(1, total))}%` } }),
    ),
    el(
      "div",
      { class: "figures" },
      figure("training score", last, first),
      validation ? figure("validation", lastOf(run, validation), firstOf(run, validation)) : null,
    ),
    el(
      "dl",
      {},
      facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
    ),
    differing.length
      ? el(
          "div",
          { class: "chips" },
          differing
            .slice(0, 4)
            .map((key) =>
              el(
                "span",
                { class: "chip", title: `${key} = ${run.config[key] ?? "–"}` },
                el("span", { class: "group" }, `${key.split(".").at(-1)} `),
                run.config[key] ?? "–",
              ),
            ),
        )
      : null,
    status?.error ? el("p", { class: "error" }, status.error) : null,
  );
}

function overviewSection() {
  const cards = [];
  const add = (name, options) => {
    const card = metricCard(name, options);
    cards.push(card);
    return card.element;
  };
  const present = new Set(allMetrics());
  const validation = validationNames().slice(0, 4);
  const large = [
    ...(present.has(SCORE) ? [add(SCORE, { title: "Training score", height: 280 })] : []),
    ...validation.map((name) =>
      add(name, {
        title: validation.length === 1 ? "Validation score" : `Validation: ${name.split("/").slice(1, -2).join("/")}`,
        height: 280,
      }),
    ),
  ];
  const small = FIRST.flatMap(([title, names]) => {
    const name = names.find((each) => present.has(each));
    return name ? [add(name, { title })] : [];
  });
  return {
    element: el(
      "div",
      {},
      el("div", { class: data.runs.length === 1 ? "run-cards single" : "run-cards" }, data.runs.map(runCard)),
      controls(),
      el("div", { class: "cards large" }, large),
      el("div", { class: "cards" }, small),
    ),
    cards,
  };
}
