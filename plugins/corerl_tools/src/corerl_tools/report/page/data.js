// What the page holds, and what the reader chose.

async function unpack(name) {
  const element = document.getElementById(name);
  const coded = atob(element.textContent);
  const bytes = new Uint8Array(coded.length);
  for (let i = 0; i < coded.length; i++) bytes[i] = coded.charCodeAt(i);
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(plain).json();
}

const SAMPLES_IN_PART = 200;
const unpackedParts = new Map();

/** Sample number i, as the list counts them. */
async function sampleAt(i) {
  const part = Math.floor(i / SAMPLES_IN_PART);
  if (!unpackedParts.has(part)) unpackedParts.set(part, unpack(`samples-${part}`));
  return (await unpackedParts.get(part))[i % SAMPLES_IN_PART];
}

let data = null;

const state = { hidden: new Set(), smoothing: 0, log: false, robust: false, axis: "step", zoom: null };
const listeners = [];

/** Change what the reader chose and redraw what shows it. */
function choose(changes) {
  Object.assign(state, changes);
  for (const listener of listeners) listener();
}

const AXES = { step: "step", hours: "hours", tokens: "tokens" };

function runColour(run) {
  return `var(--run-${run % 8})`;
}

function runDash(run) {
  return ["", "6 3", "2 3"][Math.floor(run / 8) % 3];
}

/** The curves of a metric: of each visible run x, mean, and min and max where it was cut into parts. */
function seriesOf(name, axis = state.axis) {
  const found = [];
  data.runs.forEach((run, number) => {
    const metric = run.curves.metrics[name];
    if (!metric || state.hidden.has(number)) return;
    const grid = run.curves.grids[metric.grid];
    found.push({ run: number, label: run.name, x: grid[axis], step: grid.step, ...metric });
  });
  return found;
}

function allMetrics() {
  return [...new Set(data.runs.flatMap((run) => Object.keys(run.curves.metrics)))].sort();
}

function lastOf(run, name) {
  const metric = run.curves.metrics[name];
  if (!metric) return null;
  for (let i = metric.mean.length - 1; i >= 0; i--) if (metric.mean[i] !== null) return metric.mean[i];
  return null;
}

function firstOf(run, name) {
  const metric = run.curves.metrics[name];
  const found = metric && metric.mean.find((value) => value !== null);
  return found === undefined ? null : found;
}

/** Mean over the run of a metric, over the parts that it was cut into. */
function meanOf(run, name) {
  const values = (run.curves.metrics[name]?.mean ?? []).filter((value) => value !== null);
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : 0;
}

/** Exponential moving average, its start corrected: weight 0 is the curve itself. */
function smoothed(values, weight) {
  if (!weight) return values;
  let sum = 0,
    total = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

/** The keys whose values differ between the runs. */
function differingKeys() {
  const keys = [...new Set(data.runs.flatMap((run) => Object.keys(run.config)))].sort();
  return keys.filter((key) => new Set(data.runs.map((run) => run.config[key])).size > 1);
}
