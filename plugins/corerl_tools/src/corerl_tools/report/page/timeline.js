// Who waited for whom: the episodes of a step one below the other, and how many of them did what at each moment.

/** The numbers of a timeline that its heading needs. */
function timelineFacts({ episodes }) {
  const ends = episodes.map(({ slices }) => Math.max(...slices.map(([, start, long]) => start + long)));
  const order = ends.map((_, i) => i).sort((a, b) => ends[a] - ends[b]);
  const at = (share) => ends[order[Math.floor(share * (order.length - 1))]];
  return { ends, last: order.at(-1), end: at(1), half: at(0.5), most: at(0.9) };
}

function timelineNote(timeline, facts) {
  const { episodes, of, left_out } = timeline;
  const last = episodes[facts.last];
  const sums = KINDS.map((kind, k) => [
    kind,
    last.slices.filter(([each]) => each === k).reduce((sum, [, , long]) => sum + long, 0),
  ]).filter(([, ms]) => ms > 0);
  const seconds = (ms) => duration(ms / 1000);
  const own = sums.map(([kind, ms]) => `${kind} ${seconds(ms)}`).join(", ");
  return (
    `${number(of)} episodes in ${seconds(facts.end)}: half ended within ${seconds(facts.half)}, 90 % within ` +
    `${seconds(facts.most)}. The last was response ${last.row} of group ${last.group}: ${own}.` +
    (episodes.length < of ? ` Drawn: ${episodes.length}; left out: ${left_out}.` : "")
  );
}

/** Episodes at each moment, by kind, one upon the other. */
function drawCounts(card, { counts }, end) {
  const { host, height } = card,
    width = host.clientWidth;
  const moments = counts.flatMap((each, i) => (i ? [[each[0], i - 1], [each[0], i]] : [[each[0], 0]]));
  const xs = moments.map(([ms]) => ms / 1000);
  let below = xs.map(() => 0);
  const layers = KINDS.map((kind, k) => {
    const upper = below.map((value, i) => value + counts[moments[i][1]][k + 1]);
    const layer = { kind, lower: below, upper };
    below = upper;
    return layer;
  });
  const yTicks = linearTicks(0, Math.max(1, ...below), 4);
  const x = scale(0, end / 1000, TIMELINE_LEFT, width - RIGHT),
    y = scale(0, Math.max(1, ...below), height - BOTTOM, TOP);
  const picture = svg("svg", { width, height, role: "img", "aria-label": card.title });
  for (const { kind, lower, upper } of layers) {
    const d = bandPath(xs, lower, upper, x, y);
    picture.append(svg("path", { class: "area", style: { fill: kindColour(kind) }, d }));
  }
  picture.append(timelineFrame(x, y, yTicks, width, height));
  picture.addEventListener("pointermove", (event) => {
    const seconds = x.invert(event.clientX - picture.getBoundingClientRect().left);
    const now = counts.findLast(([ms]) => ms <= seconds * 1000);
    if (!now) return hideTip();
    showTip(event, `after ${duration(seconds)}`, KINDS.map((kind, k) => [kindColour(kind), kind, number(now[k + 1])]));
  });
  picture.addEventListener("pointerleave", hideTip);
  host.replaceChildren(picture);
}

const TIMELINE_LEFT = 64;

function timelineFrame(x, y, yTicks, width, height) {
  const xTicks = linearTicks(0, x.invert(width - RIGHT), width / 90);
  const sides = { width, height, left: TIMELINE_LEFT, right: RIGHT, top: TOP, bottom: BOTTOM };
  return frame({ x, y, xTicks, yTicks, ...sides, xLabel: "seconds" });
}

function rowHeight(episodes) {
  return Math.max(2, Math.min(18, Math.floor(900 / episodes.length)));
}

/** A row for each episode; groups have a line between them. */
function drawEpisodes(card, { episodes }, facts, open) {
  const { host, height } = card,
    width = host.clientWidth,
    row = rowHeight(episodes),
    gap = row > 6 ? 2 : row > 3 ? 1 : 0;
  const x = scale(0, facts.end / 1000, TIMELINE_LEFT, width - RIGHT),
    y = (i) => TOP + i * row;
  const bars = KINDS.map(() => "");
  episodes.forEach(({ slices }, i) => {
    for (const [kind, start, long] of slices) {
      const wide = Math.max(0.4, x((start + long) / 1000) - x(start / 1000));
      const corner = `M${x(start / 1000).toFixed(1)} ${y(i) + gap / 2}`;
      bars[kind] += `${corner}h${wide.toFixed(1)}v${row - gap}h${-wide.toFixed(1)}z`;
    }
  });
  const begins = episodes.map((_, i) => i).filter((i) => i === 0 || episodes[i].group !== episodes[i - 1].group);
  const every = Math.max(1, Math.ceil(18 / ((row * episodes.length) / begins.length)));
  const yTicks = { values: begins.filter((_, n) => n % every === 0), labels: (i) => `group ${episodes[i].group}` };
  const picture = svg("svg", { width, height, role: "img", "aria-label": card.title });
  picture.append(timelineFrame(x, y, yTicks, width, height));
  bars.forEach((d, k) => picture.append(svg("path", { class: "bars", style: { fill: kindColour(KINDS[k]) }, d })));
  const found = (event) => {
    const box = picture.getBoundingClientRect();
    return [episodes[Math.floor((event.clientY - box.top - TOP) / row)], x.invert(event.clientX - box.left) * 1000];
  };
  picture.addEventListener("pointermove", (event) => {
    const [episode, ms] = found(event);
    if (!episode) return hideTip();
    const now = episode.slices.filter(([, start, long]) => start <= ms && ms <= start + long);
    const score = episode.error ? "failed" : `score ${number(episode.score)}`;
    const heading = `group ${episode.group}, response ${episode.row}: ${score}`;
    showTip(event, heading, now.flatMap(sliceLines));
  });
  picture.addEventListener("pointerleave", hideTip);
  picture.addEventListener("click", (event) => found(event)[0] && open(found(event)[0].row));
  host.replaceChildren(picture);
}

function sliceLines([kind, , long, request, continues, read, sampled, waited]) {
  const lines = [[kindColour(KINDS[kind]), KINDS[kind], duration(long / 1000)]];
  if (request !== undefined)
    lines.push(
      [null, continues < 0 ? `turn ${request + 1}` : `turn ${request + 1}, after turn ${continues + 1}`, ""],
      [null, "read + sampled tokens", `${number(read)} + ${number(sampled)}`],
      [null, "waited before", duration(waited / 1000)],
    );
  return lines;
}

function timelineSection() {
  const steps = data.runs.flatMap((run, i) => run.timelines.map((step) => ({ run: i, step })));
  const section = { element: el("div"), cards: [] };
  if (!steps.length) {
    const note = "The runs have no timelines: a step gets one with its sample rollouts.";
    section.element.append(el("p", { class: "note" }, note));
    return section;
  }
  const host = el("div");
  const show = async (place) => {
    const { run, step } = steps[place];
    const timeline = await unpack(`timeline-${run}-${step}`);
    const facts = timelineFacts(timeline);
    const open = (row) => openSample(run, step, row);
    const height = TOP + BOTTOM + rowHeight(timeline.episodes) * timeline.episodes.length;
    section.cards = [
      new Card("Episodes at work", (card) => drawCounts(card, timeline, facts.end), { height: 170, wide: true }),
      new Card("Episodes", (card) => drawEpisodes(card, timeline, facts, open), { height, wide: true }),
    ];
    host.replaceChildren(
      el("p", { class: "note" }, timelineNote(timeline, facts)),
      el("div", { class: "cards wide" }, section.cards.map((card) => card.element)),
    );
  };
  const name = ({ run, step }) => (data.runs.length > 1 ? `${data.runs[run].name} · step ${step}` : `step ${step}`);
  const choice = select("Step", steps.map((each, i) => [i, name(each)]), (place) => show(Number(place)));
  choice.value = steps.length - 1;
  const names = KINDS.map((kind) => el("span", { class: "field" }, kindSwatch(kind), kind));
  section.element.append(el("div", { class: "controls" }, choice, names), host);
  show(steps.length - 1);
  return section;
}
