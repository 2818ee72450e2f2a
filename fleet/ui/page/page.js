// The page of `fleet ui`. Text from the cluster goes into the document as text, never as markup.
// Each answer is drawn anew: the page keeps only what the reader chose.
"use strict";

const EVERY = 2000, TIMELINE_EVERY = 10000, PATIENCE = 15000, SCREEN = 60;
const byId = (id) => document.getElementById(id);

// --- words -------------------------------------------------------------------------------------

const unknown = (value) => value === null || value === undefined;

function duration(seconds) {
  if (unknown(seconds)) return "-";
  if (seconds < 1) return `${+seconds.toFixed(2)} s`;
  if (seconds < 10) return `${+seconds.toFixed(1)} s`;
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]])
    if (seconds >= 2 * size) return `${Math.round(seconds / size)} ${unit}`;
  return `${Math.round(seconds)} s`;
}

// Made once: creating a formatter takes as long as formatting thirty figures.
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

function count(value) {
  if (unknown(value)) return "-";
  if (value > 0 && value < 10 && !Number.isInteger(value)) return value.toFixed(1);
  if (value < 10000) return Math.round(value).toLocaleString("en");
  return compact.format(value);
}

const percent = (ratio) => (unknown(ratio) ? "-" : `${Math.round(100 * ratio)} %`);
const clock = (at) => (unknown(at) ? "-" : `${new Date(at * 1000).toISOString().slice(11, 19)} UTC`);
const whole = (at) => (unknown(at) ? "-" : `${new Date(at * 1000).toISOString().slice(0, 19).replace("T", " ")}`);
const many = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
const named = (partition) => `${partition.topic}-${partition.partition}`;

// --- elements ----------------------------------------------------------------------------------

function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties))
    if (name in made) made[name] = value; else made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

const said = (text, kind = "") => (text ? make("p", { className: `said ${kind}` }, text) : null);

/** A table whose rows stay the same elements while their figures change. */
class Grid {
  constructor(columns, { sorts = null } = {}) {
    this.columns = columns;
    this.rows = new Map();
    this.heads = columns.map((column) => {
      const head = make("th", { scope: "col", className: column.number ? "number" : "" });
      if (sorts && column.sort) {
        const press = make("button", { type: "button" }, column.label);
        press.addEventListener("click", () => sorts(column.sort));
        head.append(press);
      } else head.append(column.label);
      return head;
    });
    this.body = make("tbody");
    this.table = make("table", {}, make("thead", {}, make("tr", {}, ...this.heads)), this.body);
  }

  /** [{key, cells: [text or {text, kind, href}]}] in order. */
  show(rows) {
    const kept = new Map();
    for (const { key, cells } of rows) {
      const row = this.rows.get(key) ?? this.added();
      cells.forEach((cell, place) => this.fill(row, place, cell));
      kept.set(key, row);
    }
    this.rows = kept;
    const wanted = [...kept.values()].map((row) => row.element);
    const there = this.body.children;
    const same = wanted.length === there.length && wanted.every((each, place) => each === there[place]);
    // A row that moves loses the focus, so rows stay in place while one of them has it.
    const held = this.body.contains(document.activeElement) && wanted.length === there.length;
    if (!same && !held) this.body.replaceChildren(...wanted);
  }

  added() {
    const cells = this.columns.map((column) =>
      make("td", { className: column.kind ?? (column.number ? "number" : ""), "data-label": column.label }));
    return { element: make("tr", {}, ...cells), cells, said: [] };
  }

  fill(row, place, cell) {
    const { text, kind = "", href = "" } = typeof cell === "object" && cell !== null ? cell : { text: cell ?? "" };
    const told = `${kind}\u0000${href}\u0000${text}`;
    if (row.said[place] === told) return;
    row.said[place] = told;
    const element = row.cells[place], column = this.columns[place];
    element.className = `${column.kind ?? (column.number ? "number" : "")} ${kind}`.trim();
    if (href) {
      const link = element.querySelector("a") ?? make("a");
      link.textContent = text;
      link.setAttribute("href", href);
      if (!link.isConnected) element.replaceChildren(link);
    } else element.textContent = text;
  }
}

// --- where we are --------------------------------------------------------------------------------

const address = (group) => `#/groups/${encodeURIComponent(group)}`;

/** The group of the address; null: all. Spaces may come as + (Prometheus' urlquery). */
function chosen() {
  const match = /^#\/groups\/(.*)$/s.exec(location.hash);
  if (!match) return null;
  const plain = match[1].replaceAll("+", " ");
  try { return decodeURIComponent(plain); } catch { return plain; }
}

const view = { sort: "notes", turned: false, group: undefined, seconds: 3600 };

// --- all groups ------------------------------------------------------------------------------------

const LEVELS = { ERR: 0, WARN: 1, OK: 2 };
const GRAVITY = ["bad", "warn", "good"];
const gravest = (r) => Math.min(GRAVITY.length, ...r.concerns.map(([, kind]) => GRAVITY.indexOf(kind)));
// As of `fleet status --problems`: a pause or a running change is no problem.
const isProblem = (r) => gravest(r) === 0 || r.level < LEVELS.OK;
const high = (value) => -(value ?? -1);
// Records that waited before the first refresh have no age: they are older than all others.
const oldest = (r) => high(r.lag_seconds === null && r.lag > 0 ? Infinity : r.lag_seconds);
const rate = (r) => [high(unknown(r.in_per_second) && unknown(r.out_per_second) ? null : (r.in_per_second ?? 0) + (r.out_per_second ?? 0))];
/** By a column's key; others by their figure, the highest first. */
const ORDERS = {
  notes: (r) => [r.storm ? 0 : 1, gravest(r), r.level, oldest(r), high(r.rebalances_per_hour), high(r.lag)],
  group: () => [],
  state: (r) => [r.state],
  lag: (r) => [high(r.lag), oldest(r)],
  lag_seconds: (r) => [oldest(r), high(r.lag)],
  in_per_second: rate,
  out_per_second: rate,
  rebalances_per_hour: (r) => [high(r.rebalances_per_hour), oldest(r)],
  last_rebalance: (r) => [high(r.last_rebalance?.at)],
  "managed.slots": (r) => [r.managed ? 0 : 1, high(r.managed?.slots.open)],
};

/** How a figure of COLUMNS is shown: (figure, its row, what else its table knows) to a cell. */
const FORMS = {
  plain: (value) => value ?? "-",
  count,
  seconds: duration,
  percent: (value) => (unknown(value) ? "" : percent(value)),
  bad: (value) => ({ text: value ?? "", kind: "bad" }),
  group: (group) => ({ text: group || "(no name)", href: address(group) }),
  state: (state) => ({ text: state, kind: state === "Stable" ? "" : state === "Dead" ? "bad" : "faint" }),
  cause: (last, r, now) => (last ? `${last.cause} ${duration(Math.max(0, now - last.at))} ago` : "-"),
  slots: (slots) => (slots?.open ? `${slots.active}/${slots.open}` : ""),
  notes: ([first, ...others]) => first ? { text: [first[0], ...others.map((each) => each[0])].join(" · "), kind: first[1] } : "",
  phase: (phase, slot) => ({ text: phase + (slot.open ? "" : " (closed)"), kind: phase === "active" ? "good" : "" }),
  busy: (number, slot, load) => percent(load.slots[number]),
  partition: (topic, partition) => named(partition),
  owner: (owner, partition, ours) => ours.get(owner) ?? owner ?? "-",
  case: (text) => (text === "ok" ? "" : { text, kind: "warn" }),
};
const KINDS = { group: "name", state: "plain", slots: "plain", notes: "note" };
const figure = (row, key) => key.split(".").reduce((value, part) => value?.[part], row);
const cellsOf = (columns, row, known) => columns.map((c) => FORMS[c.form](figure(row, c.key), row, known));

const overview = new Grid(
  COLUMNS.groups.map((column) => ({ ...column, kind: KINDS[column.form], sort: column.key })), { sorts: sortBy });
byId("overview").append(overview.table);

function sortBy(order) {
  view.turned = view.sort === order && !view.turned;
  view.sort = order;
  if (view.answer) showGroups(view.answer);
}

function summary(status, top, load) {
  const told = concerns(status, load);
  return {
    ...status, ...(status.exists ? {} : { state: "none yet", members: null }), concerns: told, notes: told,
    level: LEVELS[status.lag_status?.level] ?? 2, in_per_second: top?.in_per_second, out_per_second: top?.out_per_second, busy: load?.busy,
  };
}

/** [[text, kind]]: the problems of a group, the worst first. */
function concerns(status, load) {
  const told = [], change = status.managed?.last_change;
  if (status.storm) told.push([`storm: ${status.storm.summary}`, "bad"]);
  if (status.lag_status && status.lag_status.level !== "OK")
    told.push([`${status.lag_status.status}: ${status.lag_status.sentence}`, status.lag_status.level === "ERR" ? "bad" : "warn"]);
  for (const number of status.managed?.slots.quarantined ?? [])
    told.push([`another process uses the instance id ${status.group}-${number}: slot ${number} is quarantined`, "bad"]);
  if (change?.state === "running") told.push([`change runs: step ${Math.min(change.step + 1, change.steps)} of ${change.steps}`, "good"]);
  else if (change && change.state !== "done") told.push([`last change ${change.state}: ${change.sentence}`, "bad"]);
  if (status.paused) told.push(["paused", "warn"]);
  if (load?.too_many) told.push([`${many(load.too_many, "worker")} too many: ${load.sentence}`, "warn"]);
  return told;
}

function compared(a, b) {
  const order = ORDERS[view.sort] ?? ((r) => [high(figure(r, view.sort))]);
  const [mine, theirs] = [order(a), order(b)];
  for (let place = 0; place < mine.length; place++)
    if (mine[place] !== theirs[place]) return (mine[place] < theirs[place] ? -1 : 1) * (view.turned ? -1 : 1);
  const byName = a.group < b.group ? -1 : 1;
  return view.sort === "group" && view.turned ? -byName : byName;
}

const line = (r, now) => ({ key: r.group, cells: cellsOf(overview.columns, r, now) });

function showGroups(answer) {
  view.answer = answer;
  byId("groups").hidden = false;
  byId("group").hidden = true;
  document.title = `Fleet: ${answer.cluster}`;
  if (!answer.status) {
    byId("counts").textContent = "waiting for the first refresh of the cluster";
    return;
  }
  const tops = new Map(answer.top.groups.map((each) => [each.group, each]));
  const all = answer.status.groups.map((each) => summary(each, tops.get(each.group), answer.load[each.group]));
  const text = byId("filter").value.toLowerCase();
  const shown = all.filter((each) => each.group.toLowerCase().includes(text)).sort(compared);
  overview.columns.forEach((column, place) => {
    if (column.sort === view.sort) overview.heads[place].setAttribute("aria-sort", view.turned ? "ascending" : "descending");
    else overview.heads[place].removeAttribute("aria-sort");
  });
  const storms = all.filter((each) => each.storm).length, late = all.filter((each) => each.level === 0).length;
  const problems = all.filter(isProblem).length;
  byId("counts").textContent = all.length === 0
    ? `cluster ${answer.cluster} has no consumer groups`
    : [many(all.length, "group"), shown.length === all.length ? "" : `${count(shown.length)} shown`,
       problems ? `${problems} with a problem` : "", storms ? `${storms} in a storm` : "", late ? `${late} ${late === 1 ? "does" : "do"} not keep up` : ""].filter(Boolean).join(", ");
  overview.table.hidden = all.length === 0;
  // The first screen at once, the rest of a thousand rows behind it.
  overview.show(shown.slice(0, view.drawn ? Infinity : SCREEN).map((each) => line(each, answer.status.at)));
  if (!view.drawn) {
    view.drawn = true;
    performance.mark("groups drawn");
    setTimeout(() => view.answer === answer && chosen() === null && showGroups(answer), 50);
  }
}

// --- one group -------------------------------------------------------------------------------------

/** The parts of a group's page, made once for each group. */
function groupPage(group) {
  const part = {
    group,
    head: make("div"), figures: make("dl", { className: "figures" }), change: make("section"),
    steps: new Grid([
      { label: "Step", number: true }, { label: "Kind" }, { label: "Slots" }, { label: "What" },
      { label: "Expected", number: true }, { label: "Recorded", number: true },
      { label: "Downtime", number: true }, { label: "Took", number: true }, { label: "Receipt" }]),
    slots: new Grid(COLUMNS.slots),
    members: new Grid([
      { label: "Member" }, { label: "Client" }, { label: "Host" }, { label: "Owns", number: true }, { label: "Partitions" }]),
    partitions: new Grid(COLUMNS.partitions),
    rounds: new Grid([
      { label: "When (UTC)", kind: "plain" }, { label: "No", number: true }, { label: "Cause" }, { label: "Who" },
      { label: "Moved", number: true }, { label: "Took", number: true }]),
    scaling: make("section", { hidden: true }), scaled: make("div"),
    decisions: new Grid([
      { label: "When (UTC)", kind: "plain" }, { label: "Wanted", number: true }, { label: "Slots", number: true },
      { label: "Members", number: true }, { label: "Lag", number: true }, { label: "Oldest", number: true },
      { label: "Member hours", number: true }, { label: "Why" }]),
    picture: make("div"), timelineSaid: make("p", { className: "faint" }), spans: make("span", { className: "spans" }),
  };
  for (const [label, seconds] of [["10 min", 600], ["1 h", 3600], ["6 h", 21600], ["24 h", 86400]]) {
    const press = make("button", { type: "button" }, label);
    press.setAttribute("aria-pressed", String(seconds === view.seconds));
    press.addEventListener("click", () => {
      view.seconds = seconds;
      for (const each of part.spans.children) each.setAttribute("aria-pressed", String(each === press));
      askTimeline(group);
    });
    part.spans.append(press);
  }
  const section = (title, grid) => make("section", {}, make("h2", {}, title), make("div", { className: "scrolls" }, grid.table));
  part.sections = {
    slots: section("Slots", part.slots), members: section("Members", part.members), partitions: section("Partitions", part.partitions),
  };
  part.scaling.append(make("h2", {}, "Scaling"), part.scaled,
    make("details", {}, make("summary", {}, "decisions as a table"), make("div", { className: "scrolls" }, part.decisions.table)));
  byId("group").replaceChildren(
    make("p", {}, make("a", { href: "#/" }, "← all groups")), part.head, part.figures, part.change, part.sections.slots, part.scaling,
    make("section", {}, make("h2", {}, "Rebalances", part.spans), part.picture, part.timelineSaid,
      make("details", {}, make("summary", {}, "as a table"), make("div", { className: "scrolls" }, part.rounds.table))),
    part.sections.members, part.sections.partitions);
  return part;
}

function showGroup(group, answer) {
  byId("groups").hidden = true;
  byId("group").hidden = false;
  document.title = `${group}: Fleet`;
  if (!view.part || view.part.group !== group) view.part = groupPage(group);
  const part = view.part;
  if (!answer.status) {
    const told = answer.error ? `cluster ${view.cluster ?? ""} has no group of this name, and fleet.yaml declares none` : "waiting for the first refresh of the cluster";
    part.head.replaceChildren(make("h1", {}, group || "(no name)"), said(told, "faint"));
    part.figures.replaceChildren();
    part.change.replaceChildren();
    for (const each of Object.values(part.sections)) each.hidden = true;
    return;
  }
  const [status] = answer.status.groups, top = answer.top.groups[0];
  showHead(part, status, answer.load, answer.status);
  showFigures(part, status, top, answer.load);
  showChange(part, answer, status);
  showSlots(part, status, answer.load);
  showMembers(part, status);
}

function showHead(part, status, load, whole_) {
  const kind = [status.exists ? `${status.type} group, ${status.state}` : "declared, not on the cluster yet",
    status.assignor ? `assignor ${status.assignor}` : "", status.managed ? `mode ${status.managed.mode}` : "",
    status.managed?.owner ? `owner ${status.managed.owner}` : ""].filter(Boolean).join(" · ");
  const told = concerns(status, load).map(([text, how]) => said(text, how));
  const pauses = (whole_.pauses || []).filter((each) => each.group === null || each.group === status.group)
    .map((each) => said(`changes paused by ${each.by} since ${clock(each.at)}: ${each.reason}`, "warn"));
  const well = status.lag_status && status.lag_status.level === "OK" ? said(status.lag_status.sentence, "faint") : null;
  part.head.replaceChildren(...[make("h1", {}, status.group || "(no name)"), said(kind, "faint"), ...told, ...pauses, well].filter(Boolean));
}

function showFigures(part, status, top, load) {
  const figures = [
    ["members", status.exists ? count(status.members) : "-"], ["lag", count(status.lag)], ["behind", duration(status.lag_seconds)],
    ["in/s", count(top?.in_per_second)], ["out/s", count(top?.out_per_second)],
    ["rebalances/h", count(status.rebalances_per_hour)], [top?.type === "classic" ? "generation" : "epoch", count(top?.generation)],
  ];
  if (status.managed) figures.push(
    ["slots active/open", `${status.managed.slots.active}/${status.managed.slots.open}`],
    ["workers + standby", `${status.managed.workers.running - status.managed.workers.standby} + ${status.managed.workers.standby}`],
    ["busy", percent(load.busy)]);
  figures.push(["workers too many", count(load.too_many)]);
  part.figures.replaceChildren(...figures.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

function showChange(part, answer, status) {
  const { change, plan } = answer;
  if (!change) { part.change.replaceChildren(); return; }
  const running = change.state === "running";
  const slots = status.slots.filter((slot) => slot.open);
  const fresh = slots.filter((slot) => slot.revision === plan.revision && slot.phase === "active").length;
  const rolls = plan.steps.some((step) => step.kind === "roll");
  // The slots show the progress of a roll, the steps that of other changes.
  const [done, all] = rolls ? [fresh, slots.length] : [change.step, change.steps];
  const ago = running ? `for ${duration(answer.now - change.started_at)}` : `${duration(answer.now - (change.ended_at ?? change.started_at))} ago`;
  const text = running
    ? `change runs ${ago}: step ${Math.min(change.step + 1, change.steps)} of ${change.steps}${rolls ? `, ${fresh} of ${slots.length} slots on revision ${plan.revision}` : ""}`
    : `last change ${change.state} ${ago}`;
  const bar = running ? make("progress", { max: Math.max(all, 1), value: done, ariaLabel: text }) : null;
  part.steps.show(plan.steps.map((step, place) => {
    const receipt = change.receipts.find((each) => each.step === place);
    const cost = step.expected_cost.rebalances_min === step.expected_cost.rebalances_max
      ? `${step.expected_cost.rebalances_max}` : `${step.expected_cost.rebalances_min}-${step.expected_cost.rebalances_max}`;
    const now = running && place === change.step ? "running" : receipt?.result ?? (place < change.step ? "done" : "");
    return { key: place, cells: [place + 1, step.kind, step.slots.join(", "), step.sentence, cost,
      receipt ? count(receipt.ours) : "", receipt ? duration(receipt.longest_downtime_seconds) : "",
      receipt ? duration(receipt.seconds) : "", { text: now, kind: now === "differs" ? "bad" : now === "equal" ? "good" : "" }] };
  }));
  const kind = { running: "", done: "good" }[change.state] ?? "bad";
  const sentence = make("p", { className: `said ${kind}` }, ...(bar ? [bar] : []), text);
  const parts = [said(change.sentence), said(`plan ${change.plan_id} by ${change.actor}`, "faint")].filter(Boolean);
  if (!part.change.firstChild)
    part.change.append(make("h2", {}, "Change"), make("div"), make("div", { className: "scrolls" }, part.steps.table));
  part.change.children[1].replaceChildren(sentence, ...parts);
}

function showSlots(part, status, load) {
  part.sections.slots.hidden = status.slots.length === 0;
  part.slots.show(status.slots.map((slot) => ({ key: slot.number, cells: cellsOf(COLUMNS.slots, slot, load) })));
}

function showMembers(part, status) {
  const ours = new Map(status.member_list.map((each) => [each.member_id, each.instance_id ?? each.client_id]));
  part.sections.members.hidden = status.member_list.length === 0;
  const inOrder = status.member_list.toSorted((one, other) =>
    ours.get(one.member_id).localeCompare(ours.get(other.member_id), undefined, { numeric: true }));
  part.members.show(inOrder.map((each) => ({ key: each.member_id, cells: [
    each.instance_id ?? each.member_id, each.client_id, each.host,
    { text: each.partitions.length, kind: each.partitions.length === 0 && status.state === "Stable" ? "warn" : "" },
    each.partitions.slice(0, 12).map(named).join(", ") + (each.partitions.length > 12 ? ` and ${each.partitions.length - 12} more` : "")] })));
  part.sections.partitions.hidden = status.partitions.length === 0;
  part.partitions.show(status.partitions.map((each) => ({ key: named(each), cells: cellsOf(COLUMNS.partitions, each, ours) })));
}

// --- the timeline ------------------------------------------------------------------------------------

function drawn(svg) {
  const parsed = new DOMParser().parseFromString(svg, "image/svg+xml");
  return document.importNode(parsed.documentElement, true);
}

function showScaling(part, scaling) {
  part.scaling.hidden = !scaling;
  if (!scaling) return;
  part.scaled.replaceChildren(drawn(scaling.svg));
  part.decisions.show(scaling.decisions.toReversed().map((each) => ({ key: each.at, cells: [
    whole(each.at), each.wanted, each.current, each.members, count(each.lag), duration(each.lag_seconds),
    each.member_hours.toFixed(1), { text: each.reason + (each.refused && `; refused: ${each.refused}`), kind: each.refused && "warn" }] })));
}

function showTimeline(part, answer) {
  const told = answer.rebalances;
  showScaling(part, answer.scaling);
  if (!told) {
    part.timelineSaid.textContent = "rebalances are unknown";
    part.picture.replaceChildren();
    part.rounds.show([]);
    return;
  }
  if (answer.svg) part.picture.replaceChildren(drawn(answer.svg));
  else part.picture.replaceChildren(make("p", { className: "empty" }, "no rebalance in this time"));
  const back = told.source.reaches_back_to;
  part.timelineSaid.textContent = `from ${told.source.place}${back === null ? "" : `; it reaches back to ${whole(back)} UTC`}`;
  part.rounds.show(told.rebalances.toReversed().map((each) => ({ key: `${each.log_partition}/${each.log_offset}/${each.number}`, cells: [
    whole(each.ended_at), each.number,
    { text: [each.cause, ...each.also].join(", ") + (each.confidence === "certain" ? "" : ` (${each.confidence})`), kind: each.confidence === "certain" ? "" : "warn" },
    [...each.joined.map((name) => `+${name}`), ...each.left.map((name) => `-${name}`), ...each.replaced.map((name) => `~${name}`)].join(" "),
    each.moved.length, duration(each.seconds)] })));
}

async function askTimeline(group) {
  view.timelineAt = Date.now();
  const width = Math.max(300, Math.min(1600, byId("group").clientWidth - 32));
  const seconds = view.seconds; // the reader may press another span before the answer arrives
  const query = new URLSearchParams({ name: group, seconds, width: Math.round(width) });
  const answer = await asked(`/api/timeline?${query}`);
  if (answer && view.part?.group === group && view.seconds === seconds) showTimeline(view.part, answer);
}

// --- asking, again and again ---------------------------------------------------------------------------

/** An answer, or null if the page's own server does not answer. */
async function asked(path) {
  try {
    const response = await fetch(path, { signal: AbortSignal.timeout(PATIENCE) });
    if (response.status !== 404 && !response.ok) throw new Error(await response.text());
    const answer = await response.json();
    view.silentSince = null;
    return answer;
  } catch (error) {
    view.silentSince ??= Date.now() / 1000;
    view.silentWhy = String(error.message ?? error).trim();
    return null;
  }
}

async function look() {
  clearTimeout(view.timer);
  const group = chosen(), turn = (view.turn = (view.turn ?? 0) + 1);
  const path = group === null ? "/api/groups" : `/api/group?${new URLSearchParams({ name: group })}`;
  const answer = await asked(path);
  if (turn !== view.turn) return; // a newer request has started
  if (answer) {
    view.cluster = answer.cluster ?? view.cluster;
    // Ages use the server's clock: the reader's may differ.
    if (!answer.error) Object.assign(view, { told: answer, skew: Date.now() / 1000 - answer.now });
    if (group === null) showGroups(answer); else showGroup(group, answer);
    const old = Date.now() - (view.timelineAt ?? 0) > TIMELINE_EVERY;
    if (group !== null && answer.status && (view.group !== group || old)) askTimeline(group);
    view.group = group;
  }
  showAge();
  if (!document.hidden) view.timer = setTimeout(look, EVERY);
}

/** How old the figures are, and what is wrong with them. */
function showAge() {
  const told = view.told, now = Date.now() / 1000 - (view.skew ?? 0);
  const at = told?.status?.at ?? null, problem = told?.problem ?? null;
  byId("cluster").textContent = view.cluster ? `cluster ${view.cluster}` : "";
  byId("age").textContent = at === null ? "" : `as of ${clock(at)}, ${duration(Math.max(0, Math.round(now - at)))} ago`;
  const silent = view.silentSince ? `fleet ui has not answered since ${clock(view.silentSince)} (${view.silentWhy})` : "";
  const away = problem ? `fleet has not read the cluster since ${clock(problem.since)}: ${problem.sentence}` : "";
  const figures = (silent || away) && at !== null ? `; the figures are from ${clock(at)}` : "";
  const words = silent || away ? `${silent || away}${figures}` : "";
  const trouble = byId("trouble");
  if (trouble.textContent !== words) trouble.textContent = words;
  trouble.hidden = !words;
  document.body.classList.toggle("old", Boolean(words) && at !== null);
  const notices = [...(told?.status?.problems ?? [])];
  if (told?.status && told.status.rebalances_from.kind === "none") notices.push(`rebalances are unknown: ${told.status.rebalances_from.sentence}`);
  byId("notices").hidden = notices.length === 0;
  byId("notices").replaceChildren(...notices.map((each) => make("li", {}, each)));
}

byId("choice").addEventListener("submit", (event) => event.preventDefault());
byId("filter").addEventListener("input", () => view.answer && showGroups(view.answer));
window.addEventListener("hashchange", () => { window.scrollTo(0, 0); look(); });
window.addEventListener("resize", () => { view.timelineAt = 0; });
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target instanceof HTMLInputElement;
  if (event.key === "/" && !typing && chosen() === null) { event.preventDefault(); byId("filter").focus(); }
  else if (event.key === "Escape" && typing) { byId("filter").value = ""; byId("filter").dispatchEvent(new Event("input")); }
  else if (event.key === "Escape" && chosen() !== null) location.hash = "#/";
});
setInterval(showAge, 1000);
look();
