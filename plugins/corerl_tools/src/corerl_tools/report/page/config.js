// The configuration of the runs side by side.

function configSection() {
  const single = data.runs.length === 1;
  const columns = [...(single ? [["default", data.defaults]] : []), ...data.runs.map((run) => [run.name, run.config])];
  const keys = [...new Set(data.runs.flatMap((run) => Object.keys(run.config)))].sort();
  const parts = [...new Set(data.runs.flatMap((run) => Object.keys(run.parts)))].sort();
  const changed = (key) => new Set(columns.map(([, values]) => values[key])).size > 1;
  const row = (key, values, different) =>
    el(
      "tr",
      { class: different ? "different" : "" },
      el("th", { scope: "row" }, key),
      values.map((value, i) =>
        el(
          "td",
          {
            class:
              single && i === 0
                ? "default"
                : data.defaults[key] !== undefined && value !== data.defaults[key]
                  ? "own"
                  : "",
          },
          value ?? "–",
        ),
      ),
    );
  const body = el("tbody"),
    none = el(
      "p",
      { class: "note", hidden: true },
      single ? "Nothing differs from the defaults." : "Nothing differs between the runs.",
    );
  const search = el("input", {
    type: "search",
    placeholder: "Find keys and values",
    "aria-label": "Find keys and values",
    oninput: () => draw(),
  });
  const only = el("input", { type: "checkbox", checked: true, onchange: () => draw() });
  function draw() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (key, values) => words.every((word) => `${key} ${values.join(" ")}`.toLowerCase().includes(word));
    const rows = keys
      .map((key) => [key, columns.map(([, values]) => values[key]), changed(key)])
      .filter(([key, values, different]) => fits(key, values) && (different || !only.checked))
      .map((each) => row(...each));
    const used = parts
      .map((part) => [part, data.runs.map((run) => run.parts[part])])
      .map(([part, values]) => [part, values, new Set(values).size > 1])
      .filter(([part, values, different]) => fits(part, values) && (different || single || !only.checked))
      .map(([part, values, different]) => row(part, single ? ["", ...values] : values, different));
    body.replaceChildren(
      ...rows,
      ...(used.length
        ? [el("tr", { class: "heading" }, el("th", { colspan: columns.length + 1 }, "Parts and their versions"))]
        : []),
      ...used,
    );
    none.hidden = rows.length > 0;
  }
  draw();
  return {
    element: el(
      "div",
      {},
      el(
        "div",
        { class: "controls" },
        search,
        el("label", { class: "field check" }, only, single ? "Only what is not the default" : "Only differences"),
      ),
      none,
      el(
        "div",
        { class: "scroll" },
        el(
          "table",
          { class: "config" },
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              el("th", {}, "key"),
              columns.map(([name], i) =>
                el("th", {}, single ? null : el("i", { class: "swatch", style: { background: runColour(i) } }), name),
              ),
            ),
          ),
          body,
        ),
      ),
    ),
    cards: [],
  };
}
