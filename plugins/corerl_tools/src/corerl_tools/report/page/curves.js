// Every metric of every run, grouped by the first word of its name.

const GROUPS = [
  "val-core",
  "critic",
  "reward",
  "response_length",
  "actor",
  "rollout_corr",
  "training",
  "val-aux",
  "prompt_length",
  "global_seqlen",
  "perf",
  "timing_s",
  "timing_per_token_ms",
];
const OPEN = 6; // groups that are open at first

function metricCard(name, options = {}) {
  return new Card(
    options.title ?? name,
    (card) => {
      const series = seriesOf(name);
      card.value.textContent = series.length === 1 ? number(lastOf(data.runs[series[0].run], name)) : "";
      drawLines(card, series);
    },
    { ...options, note: options.title ? name : "", metric: !options.title },
  );
}

function controls() {
  const weight = el("output", {}, "0");
  return el(
    "div",
    { class: "controls" },
    el(
      "label",
      { class: "field" },
      "Smoothing",
      el("input", {
        type: "range",
        min: 0,
        max: 0.99,
        step: 0.01,
        value: state.smoothing,
        "aria-label": "Smoothing",
        oninput: (event) => {
          weight.textContent = event.target.value;
          choose({ smoothing: Number(event.target.value) });
        },
      }),
      weight,
    ),
    el(
      "div",
      { class: "choice", role: "group", "aria-label": "Horizontal axis" },
      Object.keys(AXES).map((axis) =>
        el(
          "button",
          {
            type: "button",
            "aria-pressed": String(state.axis === axis),
            "data-axis": axis,
            onclick: () => choose({ axis, zoom: null }),
          },
          AXES[axis],
        ),
      ),
    ),
    el(
      "label",
      { class: "field check log" },
      el("input", { type: "checkbox", onchange: (event) => choose({ log: event.target.checked }) }),
      "Log scale",
    ),
    el(
      "label",
      { class: "field check robust", title: "The vertical axis holds the middle 98 % of the values" },
      el("input", { type: "checkbox", onchange: (event) => choose({ robust: event.target.checked }) }),
      "Leave outliers out",
    ),
    el(
      "button",
      { type: "button", class: "quiet reset", hidden: true, onclick: () => choose({ zoom: null }) },
      "Show all steps",
    ),
  );
}

function updateControls(host) {
  for (const button of host.querySelectorAll("[data-axis]"))
    button.setAttribute("aria-pressed", String(button.dataset.axis === state.axis));
  for (const reset of host.querySelectorAll(".reset")) reset.hidden = !state.zoom;
  for (const box of host.querySelectorAll(".log input")) box.checked = state.log;
  for (const box of host.querySelectorAll(".robust input")) box.checked = state.robust;
  for (const range of host.querySelectorAll("input[type=range]")) {
    range.value = state.smoothing;
    range.nextElementSibling.textContent = state.smoothing;
  }
}

function curvesSection() {
  const byGroup = new Map();
  for (const name of allMetrics()) {
    const group = name.split("/")[0];
    byGroup.set(group, [...(byGroup.get(group) ?? []), name]);
  }
  const place = (group) => (GROUPS.indexOf(group) + GROUPS.length + 1) % (GROUPS.length + 1);
  const ordered = [...byGroup.keys()].sort((a, b) => place(a) - place(b) || a.localeCompare(b));
  const cards = [];
  const groups = ordered.map((group, number_) => {
    const own = byGroup.get(group).map((name) => ({ name, card: metricCard(name) }));
    cards.push(...own.map(({ card }) => card));
    const count = el("span", { class: "count" }, String(own.length));
    const element = el(
      "details",
      { class: "metrics", open: number_ < OPEN },
      el("summary", {}, group, count),
      el(
        "div",
        { class: "cards" },
        own.map(({ card }) => card.element),
      ),
    );
    return { element, own, count, open: number_ < OPEN };
  });
  const none = el("p", { class: "note", hidden: true }, "No metric has these words in its name.");
  const search = el("input", {
    type: "search",
    placeholder: "Find metrics, e.g. kl or response mean",
    "aria-label": "Find metrics",
  });
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { element, own, count, open } of groups) {
      const found = own.filter(({ name, card }) => {
        const fits = words.every((word) => name.toLowerCase().includes(word));
        card.element.hidden = !fits;
        return fits;
      }).length;
      element.hidden = !found;
      element.open = words.length ? true : open;
      count.textContent = String(found);
      shown += found;
    }
    none.hidden = shown > 0;
  });
  const tools = controls();
  tools.prepend(search);
  return {
    element: el(
      "div",
      {},
      tools,
      none,
      groups.map(({ element }) => element),
    ),
    cards,
  };
}
