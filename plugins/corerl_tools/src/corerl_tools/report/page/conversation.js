// A sample as a conversation: messages, the times of its turns, tool calls, branches and artifacts.

const KINDS = ["waiting", "generating", "tool", "scoring"];

function kindColour(kind) {
  return `var(--time-${kind})`;
}

function kindSwatch(kind) {
  return el("i", { class: "swatch", style: { background: kindColour(kind) } });
}

/** Scores, lengths and other values of a sample, without those that it lacks. */
function factsView(sample) {
  const components = Object.entries(sample.components).map(([name, value]) => [
    name,
    typeof value === "number" ? number(value) : String(value),
  ]);
  const facts = [
    ["score", number(sample.score)],
    ...components,
    ["expected", sample.truth],
    ["extracted", sample.extracted],
    ["turns", sample.requests],
    ["branches", sample.branches?.length],
    ["tokens", `${sample.prompt_length ?? "–"} + ${sample.length ?? "–"}`],
    ["ended by", sample.finish],
    ["weights", sample.version === null ? null : `version ${sample.version}`],
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  const view = ([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { title: value }, value));
  return el("dl", { class: "facts" }, facts.map(view));
}

/** Seconds of an episode, by kind. */
function timesView(seconds) {
  const parts = KINDS.map((kind) => [kind, seconds[kind] ?? 0]).filter(([, value]) => value > 0);
  return el(
    "div",
    { class: "times" },
    stackBar(parts, kindColour, "Times of the episode"),
    parts.map(([kind, value]) => el("span", {}, kindSwatch(kind), `${kind} `, duration(value))),
  );
}

/** What is known of a request: [tool, waiting, generating] are seconds, the first of them before the request. */
function turnFacts({ turn, sampled, times = [], finish, reward }) {
  if (turn === undefined) return null;
  const names = ["after tool", "waited", "generated"];
  const facts = [
    `turn ${turn + 1}`,
    ...times.map((value, i) => (value >= 0.0005 ? `${names[i]} ${duration(value)}` : null)),
    `${number(sampled)} tokens`,
    finish && finish !== "stop" ? `ended by ${finish}` : null,
  ];
  const text = facts.filter((each) => each !== null).join(" · ");
  return el("span", { class: "turn" }, text, reward === undefined ? null : el("b", {}, `reward ${number(reward)}`));
}

/** A message; ``holder``, a sample or a branch, has the tokens. Coloured, the policy's messages are their tokens. */
function messageView([role, given, more = {}], holder, kind) {
  const text = given || (role === "response" ? holder.response : "");
  const [from, to] = more.at ?? (role === "response" ? [0, Infinity] : [0, 0]);
  const own = role === "assistant" || role === "response";
  const asTokens = holder.tokens && from < Math.min(to, holder.tokens.length) && (kind !== "none" || !text || !own);
  const plain = () => [
    more.reasoning
      ? el("details", {}, el("summary", {}, "reasoning"), el("div", { class: "text" }, more.reasoning))
      : null,
    text ? el("div", { class: own ? "response" : "text" }, text) : null,
    (more.calls ?? []).map(([name, given]) => el("div", { class: "call" }, el("b", {}, name), ` ${given}`)),
    text || more.calls || more.reasoning || to - from < 1 || to === Infinity
      ? null
      : el("p", { class: "note" }, `${number(to - from)} tokens that this page does not hold`),
  ];
  return el(
    "section",
    { class: own ? "message policy" : "message" },
    el("header", {}, el("h4", {}, more.name ? `${role} · ${more.name}` : role), turnFacts(more)),
    ...(asTokens ? [tokensView(holder, kind, from, to)] : plain().flat()),
  );
}

function branchView(branch, place, kind) {
  const begin = branch.after === null ? "begins anew" : `continues turn ${branch.after + 1}`;
  return el(
    "details",
    { class: "branch", open: true },
    el(
      "summary",
      {},
      `branch ${place + 1}`,
      el("span", { class: "count" }, `${begin} · tokens: ${branch.shared} shared, ${branch.length} further`),
    ),
    branch.items.map((item) => messageView(item, branch, kind)),
  );
}

function artifactView([name, text]) {
  return el("details", { class: "branch" }, el("summary", {}, name), el("div", { class: "text" }, text));
}

/** All parts of a sample after its facts; ``colours`` chooses the colouring. */
function conversationView(sample, kind, colours) {
  const branches = sample.branches ?? [],
    artifacts = Object.entries(sample.artifacts ?? {});
  return [
    sample.seconds ? timesView(sample.seconds) : "",
    ...sample.messages.map((message) => messageView(message, {}, kind)),
    colours,
    ...sample.items.map((item) => messageView(item, sample, kind)),
    ...branches.map((branch, i) => branchView(branch, i, kind)),
    sample.left_out ? el("p", { class: "note" }, sample.left_out) : "",
    ...artifacts.map(artifactView),
  ];
}
