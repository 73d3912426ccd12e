// A response, token by token.

const COLOURINGS = {
  none: { name: "Plain" },
  log_probs: { name: "Log-prob", low: "certain", high: "surprising" },
  advantages: { name: "Advantage", low: "negative", high: "positive", signed: true },
  kl: { name: "Log-ratio to reference", low: "less likely than before", high: "more likely than before", signed: true },
};

function valueAt(sample, kind, i) {
  const values = sample[kind];
  if (values === undefined) return null;
  const value = Array.isArray(values) ? values[i] : values;
  return value === null || value === undefined ? null : kind === "advantages" ? value : value / 100;
}

/** Between -1 and 1: how strong the colour is, and on which side. */
function strength(sample, kind, i, largest) {
  const value = valueAt(sample, kind, i);
  if (value === null) return 0;
  return kind === "log_probs" ? Math.min(1, -value / 5) : Math.max(-1, Math.min(1, value / largest));
}

function largestOf(sample, kind) {
  if (kind === "kl") return 1;
  let largest = 1;
  for (let i = 0; i < sample.tokens.length; i++) largest = Math.max(largest, Math.abs(valueAt(sample, kind, i) ?? 0));
  return largest;
}

function tokenElement(sample, kind, i, largest) {
  const text = sample.tokens[i];
  const shown = text === "" ? "" : text.replace(/\n/g, "↵\n");
  const token = el("span", { class: "token", "data-i": i }, shown);
  const much = kind === "none" ? 0 : strength(sample, kind, i, largest);
  if (Math.abs(much) > 0.02) {
    const hue = kind === "log_probs" ? "var(--surprise)" : much > 0 ? "var(--positive)" : "var(--negative)";
    token.style.background = `color-mix(in srgb, ${hue} ${Math.round(8 + 62 * Math.abs(much))}%, transparent)`;
  }
  return token;
}

/** Tokens ``from`` to ``to`` of a sample or a branch, coloured; what follows the tokens that the page holds is plain. */
function tokensView(sample, kind, from, to) {
  const view = el("div", { class: "response" });
  const { tokens, response } = sample;
  const largest = kind === "none" ? 1 : largestOf(sample, kind);
  const end = Math.min(to, tokens.length);
  for (let i = from; i < end; i++) view.append(tokenElement(sample, kind, i, largest));
  const left = Math.min(to, sample.length ?? 0) - tokens.length;
  if (left > 0) {
    const shown = tokens.join("");
    const rest = to === Infinity && response.startsWith(shown) ? response.slice(shown.length) : "";
    view.append(el("span", { class: "rest" }, rest || ` … ${left} more tokens`));
  }
  view.addEventListener("pointermove", (event) => {
    const i = event.target.dataset?.i;
    if (i === undefined) return hideTip();
    const logProb = valueAt(sample, "log_probs", i),
      advantage = valueAt(sample, "advantages", i),
      kl = valueAt(sample, "kl", i);
    const lines = [
      [null, "log-prob", number(logProb)],
      [null, "probability", logProb === null ? "–" : percent(Math.exp(logProb))],
    ];
    if (advantage !== null) lines.push([null, "advantage", number(advantage)]);
    if (kl !== null) lines.push([null, "log-ratio to reference", number(kl)]);
    showTip(event, `${JSON.stringify(sample.tokens[i])} · token ${Number(i) + 1} of ${sample.length}`, lines);
  });
  view.addEventListener("pointerleave", hideTip);
  return view;
}

function colourLegend(kind) {
  const { low, high, signed } = COLOURINGS[kind];
  if (!low) return el("span");
  return el("span", { class: "ramp" }, low, el("i", { class: signed ? "signed" : "single" }), high);
}
