// Numbers, durations and elements.

/** Four significant digits at most; thousands as k, M, G. */
function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  for (const [unit, factor] of [
    ["G", 1e9],
    ["M", 1e6],
    ["k", 1e5],
  ])
    if (size >= factor) return `${trimmed(value / (unit === "k" ? 1e3 : factor), 4)} ${unit}`;
  if (size < 1e-3) return value.toExponential(2).replace("e-", "e−").replace(/^-/, "−");
  return trimmed(value, 4);
}

function trimmed(value, digits) {
  const text = Number(value.toPrecision(digits)).toString();
  return text.replace(/^-/, "−");
}

/** A score or another headline. */
function headline(value) {
  return value !== null && Math.abs(value) < 10 ? value.toFixed(3).replace(/^-/, "−") : number(value);
}

/** As many digits as tell ticks so far apart from each other. */
function tickLabel(value, step) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5) return number(value);
  if (size < 1e-3 && step < 1e-3)
    return value
      .toExponential(Math.max(0, Math.ceil(Math.log10(size / step) - 1e-9)))
      .replace("e-", "e−")
      .replace(/^-/, "−");
  const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9)));
  return value.toFixed(digits).replace(/^-/, "−");
}

function duration(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return "–";
  if (seconds < 0.0005) return "0 ms";
  if (seconds < 1) return `${trimmed(1000 * seconds, 2)} ms`;
  if (seconds < 10) return `${trimmed(seconds, 2)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  const hours = Math.floor(seconds / 3600);
  if (hours < 48) return `${hours} h ${Math.round((seconds % 3600) / 60)} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

function percent(share) {
  return `${share < 0.0995 ? (100 * share).toFixed(1) : Math.round(100 * share)} %`;
}

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element; what is not an element among its children becomes text. */
function el(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

function svg(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const tip = document.getElementById("tip");

/** Show lines near the pointer: [colour or null, label, value]. */
function showTip(event, heading, lines) {
  tip.replaceChildren(
    el("div", { class: "tip-head" }, heading),
    ...lines.map(([colour, label, value]) =>
      el(
        "div",
        { class: "tip-line" },
        colour ? el("i", { class: "swatch", style: { background: colour } }) : null,
        el("span", {}, label),
        el("b", {}, value),
      ),
    ),
  );
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const right = event.clientX + 18 + box.width < window.innerWidth;
  tip.style.left = `${right ? event.clientX + 18 : Math.max(4, event.clientX - box.width - 18)}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY - box.height / 2, window.innerHeight - box.height - 4))}px`;
}

function hideTip() {
  tip.hidden = true;
}

/** At most one call a frame. */
function onceAFrame(call) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      call();
    });
  };
}
