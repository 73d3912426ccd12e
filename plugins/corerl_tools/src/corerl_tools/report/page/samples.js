// A browser of samples: a list of all, of which only the rows in view exist, and one in full.

const ROW = 58;
const ORDERS = {
  "by step": (a, b) => a.step - b.step || a.run - b.run || a.i - b.i,
  "latest first": (a, b) => b.step - a.step || a.run - b.run || a.i - b.i,
  "best first": (a, b) => (b.score ?? -Infinity) - (a.score ?? -Infinity) || a.i - b.i,
  "worst first": (a, b) => (a.score ?? Infinity) - (b.score ?? Infinity) || a.i - b.i,
  "longest first": (a, b) => b.length - a.length || a.i - b.i,
};

function select(label, options, change) {
  return el(
    "select",
    { "aria-label": label, onchange: (event) => change(event.target.value) },
    options.map(([value, text]) => el("option", { value }, text)),
  );
}

class SampleBrowser {
  constructor(index) {
    this.index = index.map((entry, i) => ({ ...entry, i }));
    this.wanted = { run: "", source: "", order: "by step", from: -Infinity, to: Infinity, failed: false, words: "" };
    this.kind = "log_probs";
    this.current = null;
    this.searching = 0;
    this.rows = el("div", { class: "rows" });
    this.list = el(
      "div",
      {
        class: "list",
        tabindex: 0,
        role: "listbox",
        "aria-label": "Samples",
        onscroll: onceAFrame(() => this.drawRows()),
        onkeydown: (event) => this.key(event),
      },
      this.rows,
    );
    this.count = el("span", { class: "count" });
    this.detail = el("article", { class: "detail" });
    this.element = el("div", {}, this.tools(), el("div", { class: "browser" }, this.list, this.detail));
    new ResizeObserver(() => this.drawRows()).observe(this.list);
    this.filter();
  }

  tools() {
    const set = (changes) => {
      Object.assign(this.wanted, changes);
      this.filter();
    };
    const sources = [...new Set(this.index.map(({ source }) => source))];
    const step = (label, name, none) =>
      el("input", {
        type: "number",
        min: 0,
        placeholder: label,
        "aria-label": `${label} step`,
        class: "step",
        oninput: (event) => set({ [name]: event.target.value === "" ? none : Number(event.target.value) }),
      });
    return el(
      "div",
      { class: "controls" },
      el("input", {
        type: "search",
        placeholder: "Find in prompts and responses",
        "aria-label": "Find in prompts and responses",
        oninput: (event) => set({ words: event.target.value.trim().toLowerCase() }),
      }),
      data.runs.length > 1
        ? select("Run", [["", "all runs"], ...data.runs.map((run, i) => [i, run.name])], (run) => set({ run }))
        : null,
      sources.length > 1
        ? select("Data source", [["", "all sources"], ...sources.map((each) => [each, each])], (source) =>
            set({ source }),
          )
        : null,
      select(
        "Order",
        Object.keys(ORDERS).map((name) => [name, name]),
        (order) => set({ order }),
      ),
      el("span", { class: "field" }, "steps", step("from", "from", -Infinity), step("to", "to", Infinity)),
      this.index.some(({ failed }) => failed)
        ? el(
            "label",
            { class: "field check" },
            el("input", { type: "checkbox", onchange: (event) => set({ failed: event.target.checked }) }),
            "Scoring failed",
          )
        : null,
      this.count,
    );
  }

  async filter() {
    const { run, source, order, from, to, failed, words } = this.wanted;
    let shown = this.index.filter(
      (each) =>
        (run === "" || each.run === Number(run)) &&
        (source === "" || each.source === source) &&
        each.step >= from &&
        each.step <= to &&
        (!failed || each.failed),
    );
    const search = ++this.searching;
    if (words) {
      const found = [];
      for (const each of shown) {
        const sample = await sampleAt(each.i);
        if (search !== this.searching) return;
        if (
          sample.response.toLowerCase().includes(words) ||
          [...sample.messages, ...sample.items].some(([, text]) => text.toLowerCase().includes(words))
        )
          found.push(each);
      }
      shown = found;
    }
    this.shown = shown.sort(ORDERS[order]);
    this.count.textContent = shown.length === 1 ? "1 sample" : `${number(shown.length)} samples`;
    this.rows.style.height = `${shown.length * ROW}px`;
    this.list.scrollTop = 0;
    this.drawRows();
    if (wanted) this.showWanted();
    else if (shown.length) this.show(0);
    else this.detail.replaceChildren(el("p", { class: "note" }, "No sample fits."));
  }

  drawRows() {
    if (!this.shown) return;
    const first = Math.max(0, Math.floor(this.list.scrollTop / ROW) - 4);
    const last = Math.min(this.shown.length, first + Math.ceil(this.list.clientHeight / ROW) + 8);
    const rows = [];
    for (let at = first; at < last; at++) {
      const entry = this.shown[at];
      rows.push(
        el(
          "div",
          {
            class: entry === this.current ? "row current" : "row",
            role: "option",
            style: { top: `${at * ROW}px`, height: `${ROW}px` },
            onclick: () => this.show(at),
          },
          el(
            "div",
            { class: "row-head" },
            data.runs.length > 1 ? el("i", { class: "swatch", style: { background: runColour(entry.run) } }) : null,
            `step ${entry.step}`,
            el("span", { class: "group" }, ` · ${number(entry.length)} tokens`),
            el(
              "b",
              { class: entry.failed ? "score failed" : "score" },
              entry.failed ? "no score" : number(entry.score),
            ),
          ),
          el("div", { class: "row-text" }, entry.text),
        ),
      );
    }
    this.rows.replaceChildren(...rows);
  }

  key(event) {
    const by = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (!by) return;
    event.preventDefault();
    const at = Math.max(0, Math.min(this.shown.length - 1, this.shown.indexOf(this.current) + by));
    this.show(at);
    if (at * ROW < this.list.scrollTop) this.list.scrollTop = at * ROW;
    if ((at + 1) * ROW > this.list.scrollTop + this.list.clientHeight)
      this.list.scrollTop = (at + 1) * ROW - this.list.clientHeight;
  }

  async show(at) {
    this.current = this.shown[at];
    this.drawRows();
    const entry = this.current,
      sample = await sampleAt(entry.i);
    if (entry === this.current) this.draw(entry, sample);
  }

  draw(entry, sample) {
    const kinds = Object.keys(COLOURINGS).filter(
      (kind) => kind === "none" || (sample.tokens && sample[kind] !== undefined),
    );
    const kind = kinds.includes(this.kind) ? this.kind : "none";
    const siblings = this.index.filter(
      (each) => each.run === entry.run && each.step === entry.step && each.group === entry.group,
    );
    this.detail.replaceChildren(
      el(
        "header",
        {},
        el(
          "h3",
          {},
          data.runs[sample.run].name,
          el("span", { class: "group" }, ` · step ${sample.step} · ${sample.source ?? ""}`),
        ),
      ),
      factsView(sample),
      sample.error ? el("p", { class: "error" }, sample.error) : "",
      siblings.length > 1
        ? el(
            "div",
            { class: "siblings" },
            el("span", { class: "label" }, "responses to this prompt"),
            siblings.map((each) =>
              el(
                "button",
                {
                  type: "button",
                  "aria-pressed": String(each.i === entry.i),
                  onclick: () => this.jump(each),
                },
                each.failed ? "–" : number(each.score),
              ),
            ),
          )
        : "",
      ...conversationView(sample, kind, this.colours(entry, sample, kinds, kind)),
    );
  }

  colours(entry, sample, kinds, kind) {
    if (kinds.length < 2) return "";
    const choose = (each) => {
      this.kind = each;
      this.draw(entry, sample);
    };
    const buttons = kinds.map((each) =>
      el(
        "button",
        { type: "button", "aria-pressed": String(each === kind), onclick: () => choose(each) },
        COLOURINGS[each].name,
      ),
    );
    return el(
      "header",
      { class: "colours" },
      colourLegend(kind),
      el("div", { class: "choice", role: "group", "aria-label": "Colour" }, buttons),
    );
  }

  /** Show the sample that was asked for elsewhere. */
  showWanted() {
    const { run, step, row } = wanted;
    const found = this.index.find((each) => each.run === run && each.step === step && each.row === row);
    wanted = null;
    if (found) this.jump(found);
    else {
      const note = `This page does not hold response ${row} of step ${step}.`;
      this.detail.replaceChildren(el("p", { class: "note" }, note));
    }
  }

  /** Show a sample that the filter may leave out. */
  async jump(entry) {
    this.current = entry;
    this.drawRows();
    this.draw(entry, await sampleAt(entry.i));
  }
}

let browser = null;
let wanted = null;

/** Open the sample of a run's step, if the page holds it. */
function openSample(run, step, row) {
  wanted = { run, step, row };
  location.hash = "samples";
  if (browser) browser.showWanted();
}

function samplesSection() {
  const element = el("div", {}, el("p", { class: "note" }, "Unpacking …"));
  unpack("index").then((index) => {
    if (index.length) browser = new SampleBrowser(index);
    element.replaceChildren(
      index.length
        ? browser.element
        : el("p", { class: "note" }, "The runs have no sample rollouts (trainer.log_rollouts_freq)."),
    );
  });
  return { element, cards: [] };
}
