// Sections, made when they are first looked at.

const SECTIONS = {
  overview: ["Overview", overviewSection],
  curves: ["Curves", curvesSection],
  timing: ["Timing", timingSection],
  timeline: ["Timeline", timelineSection],
  distributions: ["Distributions", distributionsSection],
  samples: ["Samples", samplesSection],
  configuration: ["Configuration", configSection],
};
const made = {};
const main = document.getElementById("main");

function open(name) {
  if (!(name in SECTIONS)) name = "overview";
  if (!made[name]) {
    made[name] = SECTIONS[name][1]();
    main.append(made[name].element);
  }
  for (const [each, { element }] of Object.entries(made)) element.hidden = each !== name;
  for (const tab of document.querySelectorAll("#tabs a"))
    tab.setAttribute("aria-selected", String(tab.dataset.section === name));
  hideTip();
  hideRuns();
  updateControls(document);
}

function drawLegend() {
  const host = document.getElementById("legend");
  host.hidden = data.runs.length < 2;
  host.replaceChildren(
    ...data.runs.map((run, i) =>
      el(
        "button",
        {
          type: "button",
          "aria-pressed": String(!state.hidden.has(i)),
          title: "Show or hide this run",
          onclick: () => {
            const hidden = new Set(state.hidden);
            if (!hidden.delete(i)) hidden.add(i);
            choose({ hidden });
          },
        },
        svg(
          "svg",
          { width: 22, height: 10 },
          svg("line", {
            x1: 1,
            x2: 21,
            y1: 5,
            y2: 5,
            class: "line",
            stroke: runColour(i),
            "stroke-dasharray": runDash(i),
          }),
        ),
        run.name,
      ),
    ),
  );
}

function hideRuns() {
  for (const element of document.querySelectorAll("[data-run]"))
    element.hidden = state.hidden.has(Number(element.dataset.run));
}

function redrawAll() {
  for (const { cards } of Object.values(made)) for (const card of cards) card.invalidate();
}

function remembered() {
  try {
    return localStorage.getItem("corerl-theme");
  } catch {
    return null;
  }
}

function applyTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const button = document.getElementById("theme");
  button.textContent = dark ? "Light" : "Dark";
  button.onclick = () => {
    const other = dark ? "light" : "dark";
    try {
      localStorage.setItem("corerl-theme", other);
    } catch {
      /* of a page without storage */
    }
    applyTheme(other);
  };
  redrawAll();
}

async function start() {
  data = await unpack("data");
  document.getElementById("title").textContent = document.title.replace(/ · CoreRL$/, "");
  document.getElementById("loading").remove();
  document
    .getElementById("tabs")
    .append(
      ...Object.entries(SECTIONS).map(([name, [title]]) =>
        el("a", { href: `#${name}`, role: "tab", "data-section": name }, title),
      ),
    );
  listeners.push(drawLegend, redrawAll, hideRuns, () => updateControls(document));
  drawLegend();
  applyTheme(remembered());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => applyTheme(remembered()));
  window.addEventListener("hashchange", () => open(location.hash.slice(1)));
  open(location.hash.slice(1));
  requestAnimationFrame(() =>
    requestAnimationFrame(() => {
      document.documentElement.dataset.ready = String(Math.round(performance.now()));
    }),
  );
}

start().catch((error) => {
  main.replaceChildren(
    el("p", { class: "error" }, `This page could not be unpacked (${error}); it needs a browser of 2024 or later.`),
  );
  throw error;
});
