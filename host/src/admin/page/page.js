// The page of a tenuto daemon. It only asks for what the admin interface shows to everybody:
// status, history, events. What comes from there is written as text, never as markup.
"use strict";

const FAST_MS = 2000;
// A status of a thousand volumes is some megabytes.
const SLOW_MS = 5000;
const MANY_VOLUMES = 250;
const ROWS_MAX = 1200;
const EVENTS_SHOWN = 200;
const EVENTS_KEPT = 4096;
const TOKEN = "tenuto-token";

const at = (id) => document.getElementById(id);
const make = (name, className, text) => {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
};
const write = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

// ---- Units ------------------------------------------------------------------------------------

const NOTHING = "–";
const bytes = (value) => {
  if (value === null || value === undefined) return NOTHING;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    unit += 1;
  }
  return `${short(value)} ${units[unit]}`;
};
const short = (value) => {
  if (value === null || value === undefined) return NOTHING;
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
};
const rate = (value) => (value === null || value === undefined ? NOTHING : `${bytes(value)}/s`);
const each = (value) => (value === null || value === undefined ? NOTHING : `${short(value)}/s`);
const micros = (value) => {
  if (value === null || value === undefined) return NOTHING;
  if (value >= 1e6) return `${short(value / 1e6)} s`;
  return value >= 1000 ? `${short(value / 1000)} ms` : `${short(value)} µs`;
};
const percent = (value) => (value === null || value === undefined ? NOTHING : `${short(value)} %`);
const seconds = (value) => {
  if (value === null || value === undefined) return NOTHING;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.floor(value / 60)} min`;
  return value < 172800 ? `${Math.floor(value / 3600)} h` : `${Math.floor(value / 86400)} d`;
};
const share = (part, parts) => {
  const whole = parts.reduce((sum, value) => sum + (value || 0), 0);
  return whole > 0 ? (100 * (part || 0)) / whole : null;
};

// ---- Asking -----------------------------------------------------------------------------------

class Refused extends Error {}

function takeToken() {
  const hash = new URLSearchParams(location.hash.slice(1));
  const query = new URLSearchParams(location.search);
  const token = hash.get("token") || query.get("token");
  if (!token) return;
  sessionStorage.setItem(TOKEN, token);
  // It shall neither stay in the address nor in the list of pages that were visited.
  hash.delete("token");
  query.delete("token");
  const rest = hash.toString();
  const asked = query.toString();
  history.replaceState(null, "", `/${asked ? `?${asked}` : ""}${rest ? `#${rest}` : ""}`);
}

async function ask(path) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const reply = await fetch(path, { headers, cache: "no-store" });
  if (reply.status === 401) throw new Refused();
  const document = await reply.json();
  if (!reply.ok) throw new Error(document.error ? document.error.message : `status ${reply.status}`);
  return document;
}

function shut(words) {
  at("main").hidden = true;
  at("door").hidden = false;
  write(at("door-word"), words);
  at("token").focus();
}

// ---- Charts -----------------------------------------------------------------------------------

const HIT_PARTS = ["ram_hits_per_second", "ssd_hits_per_second", "origin_hits_per_second"];
const hits = (name) => (columns) =>
  columns[name].map((value, row) => share(value, HIT_PARTS.map((part) => columns[part][row])));
const plain = (name) => (columns) => columns[name];

// Title, what the axis shows, and up to four lines: words, colour, values.
const CHARTS = [
  ["Dirty data", bytes, [["not at the origin", "a", plain("dirty_bytes")]]],
  ["Bytes per second", rate, [
    ["read", "a", plain("read_bytes_per_second")],
    ["written", "b", plain("write_bytes_per_second")],
    ["destaged", "c", plain("destage_bytes_per_second")],
  ]],
  ["Requests of guests", each, [
    ["reads", "a", plain("reads_per_second")],
    ["writes", "b", plain("writes_per_second")],
    ["flushes", "d", plain("flushes_per_second")],
  ]],
  ["Reads served from", percent, [
    ["RAM", "a", hits("ram_hits_per_second")],
    ["SSD", "c", hits("ssd_hits_per_second")],
    ["origin", "b", hits("origin_hits_per_second")],
  ]],
  ["Latency, 99 % are faster", micros, [
    ["origin", "b", plain("origin_p99_us")],
    ["read", "a", plain("read_p99_us")],
    ["write", "c", plain("write_p99_us")],
    ["flush", "d", plain("flush_p99_us")],
  ]],
  ["Delay of flow control", micros, [["a write is held", "b", plain("flow_delay_us")]]],
];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// Steps of an axis of bytes, so that its labels are round.
const BINARY = Array.from({ length: 120 }, (_, at) => [1, 2, 5][at % 3] * 10 ** (Math.floor(at / 3) % 3)
  * 1024 ** Math.floor(at / 9)).sort((one, other) => one - other);
const isBytes = (unit) => unit === bytes || unit === rate;

const two = (value) => String(value).padStart(2, "0");
function clock(unix, place, all) {
  const time = new Date(unix * 1000);
  const short = `${two(time.getHours())}:${two(time.getMinutes())}`;
  return all.some((tick) => tick % 60 !== 0) ? `${short}:${two(time.getSeconds())}` : short;
}

class Chart {
  constructor(place, [title, unit, lines]) {
    this.unit = unit;
    this.lines = lines;
    this.box = make("figure", "chart");
    this.box.style.margin = "0";
    this.box.append(make("h3", "", title));
    const legend = make("ul", "legend");
    this.values = lines.map(([words, name]) => {
      const item = make("li");
      const value = make("b");
      item.append(make("i", name), `${words} `, value);
      legend.append(item);
      return value;
    });
    this.title = title;
    this.body = make("div");
    this.body.setAttribute("role", "img");
    this.box.append(legend, this.body);
    place.append(this.box);
    this.plot = null;
    new ResizeObserver(() => this.fit()).observe(this.box);
  }

  width() {
    return Math.max(160, this.box.clientWidth - 20);
  }

  fit() {
    if (this.plot && this.plot.width !== this.width()) {
      this.plot.setSize({ width: this.width(), height: 150 });
    }
  }

  show(columns) {
    const rows = this.lines.map(([, , values]) => values(columns));
    const last = rows.map((row) => row[row.length - 1]);
    this.values.forEach((node, line) => write(node, this.unit(last[line])));
    const words = this.lines.map(([name], line) => `${name} ${this.unit(last[line])}`);
    this.body.setAttribute("aria-label", `${this.title}, now: ${words.join(", ")}`);
    const data = [columns.time, ...rows];
    if (this.plot) {
      this.plot.setData(data);
    } else {
      this.plot = new uPlot(this.options(), data, this.body);
    }
  }

  // Colours are part of a plot, so another scheme needs another plot.
  forget() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
  }

  options() {
    const axis = { stroke: colour("faint"), grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false } };
    const percents = this.unit === percent;
    return {
      width: this.width(),
      height: 150,
      legend: { show: false },
      cursor: { drag: { x: false, y: false } },
      scales: {
        x: { time: true },
        y: { range: percents ? [0, 100] : (_, low, high) => [0, high > 0 ? high * 1.1 : 1] },
      },
      axes: [
        { ...axis, space: 64, size: 24, values: (_, ticks) => ticks.map(clock) },
        { ...axis, size: 74, ...(isBytes(this.unit) ? { incrs: BINARY } : {}), space: 28, values: (_, ticks) => ticks.map((tick) => this.unit(tick)) },
      ],
      series: [
        {},
        ...this.lines.map(([label, name]) => ({
          label,
          stroke: colour(name),
          width: 1.6,
          spanGaps: false,
          points: { show: (plot, line) => lonely(plot.data[line]), size: 4, fill: colour(name) },
        })),
      ],
      hooks: {
        // What was drawn can be told from outside without looking at pixels.
        draw: [(plot) => {
          const drawn = plot.data.slice(1).flat().filter((value) => value !== null).length;
          this.box.dataset.points = String(drawn);
        }],
      },
    };
  }
}

// A value between two gaps is no line, and would not be seen.
function lonely(values) {
  return values.some((value, row) => value !== null && (values[row - 1] ?? null) === null
    && (values[row + 1] ?? null) === null);
}

// ---- Volumes ----------------------------------------------------------------------------------

const TROUBLED = new Set(["stalled", "held", "damaged", "degraded"]);
const isTroubled = (volume) => TROUBLED.has(volume.state) || volume.flags.includes("orphan");
const hitRate = (volume) => {
  const reads = volume.reads;
  const origin = share(reads.origin, [reads.ram_hits, reads.ssd_hits, reads.remote, reads.origin]);
  return origin === null ? null : 100 - origin;
};

// What a column is called, its value for sorting, and its words.
const COLUMNS = [
  { id: "name", title: "Name", value: (volume) => volume.name },
  { id: "state", title: "State", value: (volume) => volume.state },
  { id: "policy", title: "Policy", value: (volume) => volume.policy, words: policyWords },
  { id: "clients", title: "Clients", value: (volume) => volume.clients, words: short },
  { id: "dirty", title: "Dirty", value: (volume) => volume.dirty_bytes, words: dirtyWords },
  { id: "age", title: "Oldest", value: (volume) => volume.oldest_dirty_seconds, words: seconds },
  { id: "hits", title: "Read hits", value: hitRate, words: percent },
  { id: "reads", title: "Reads", value: (volume) => volume.reads.requests, words: short },
  { id: "writes", title: "Writes", value: (volume) => volume.writes.requests, words: short },
  { id: "latency", title: "Origin p99", value: (volume) => volume.origin.latency_us.p99, words: micros },
  { id: "delay", title: "Delay", value: (volume) => volume.flow_control.delay_us, words: delayWords },
  { id: "now", title: "Now", value: (volume) => busy.get(volume.name)?.rate ?? null, words: rate },
];

function policyWords(value, volume) {
  return volume.effective_policy === value ? value : `${volume.effective_policy} (${value} is ordered)`;
}

// An overlay is owed to nobody.
const owes = (volume) => volume.overlay === null;

function dirtyWords(value, volume) {
  if (value === null) return NOTHING;
  return owes(volume) ? bytes(value) : `overlay ${bytes(value)}`;
}

function copiesWords(volume) {
  const copies = volume.replication;
  if (!copies) return `0 of ${volume.replicas} on other hosts`;
  const others = copies.members.filter((member) => member.state !== "here");
  const words = others.map((member) => `${member.host} ${member.state}`);
  if (copies.learner) words.push(`${copies.learner.host} has ${copies.learner.percent} %`);
  return [`${copies.real} of ${copies.wanted} on other hosts`, ...words].join("; ");
}

function delayWords(value) {
  return value > 0 ? micros(value) : NOTHING;
}

const view = { sort: "name", down: false, find: "", which: "all", volumes: [], rows: new Map() };
// Counters of the last status, to know who is at work.
let busy = new Map();

function headings() {
  for (const column of COLUMNS) {
    const head = make("th", column.words && column.id !== "policy" ? "number" : "");
    head.scope = "col";
    head.id = `head-${column.id}`;
    const button = make("button", "", column.title);
    button.type = "button";
    button.addEventListener("click", () => {
      view.down = view.sort === column.id ? !view.down : column.words !== undefined;
      view.sort = column.id;
      showVolumes();
    });
    head.append(button);
    at("heads").append(head);
  }
}

function wanted(volume) {
  const { name, state, policy, origin, group } = volume;
  const text = `${name} ${state} ${policy} ${origin.path} ${group}`.toLowerCase();
  if (!text.includes(view.find)) return false;
  switch (view.which) {
    case "wrong": return isTroubled(volume);
    case "dirty": return owes(volume) && volume.dirty_bytes > 0;
    case "slowed": return volume.flow_control.active;
    case "busy": return busy.get(volume.name)?.working === true;
    default: return true;
  }
}

const collator = new Intl.Collator("en", { numeric: true });

function sorted(volumes) {
  const column = COLUMNS.find((known) => known.id === view.sort);
  const turn = view.down ? -1 : 1;
  return volumes.sort((one, other) => {
    const [a, b] = [column.value(one), column.value(other)];
    const order = typeof a === "string" ? collator.compare(a, b) : (a ?? -1) - (b ?? -1);
    return order === 0 ? collator.compare(one.name, other.name) : turn * order;
  });
}

function stateClass(volume) {
  if (isTroubled(volume)) return "state bad";
  return volume.state === "dirty" ? "state work" : "state good";
}

function rowOf(volume) {
  let known = view.rows.get(volume.name);
  if (!known) {
    const row = make("tr");
    const cells = COLUMNS.map((column) => {
      const name = column.id === "name";
      const cell = make(name ? "th" : "td", column.words && column.id !== "policy" ? "number" : "");
      if (name) {
        cell.scope = "row";
        const link = make("a", "", volume.name);
        link.href = `#${new URLSearchParams({ volume: volume.name })}`;
        cell.append(link);
      }
      row.append(cell);
      return cell;
    });
    cells[1].append(make("span"));
    row.dataset.volume = volume.name;
    known = { row, cells };
    view.rows.set(volume.name, known);
  }
  COLUMNS.forEach((column, place) => {
    if (column.id === "name") return;
    const cell = known.cells[place];
    const value = column.value(volume);
    const words = column.words ? column.words(value, volume) : String(value);
    cell.dataset.value = String(value);
    if (column.id === "state") {
      const flags = volume.flags.filter((flag) => flag !== "destaging");
      write(cell.firstChild, [words, ...flags].join(", "));
      cell.firstChild.className = stateClass(volume);
    } else {
      write(cell, words);
    }
  });
  return known.row;
}

function showVolumes() {
  const shown = sorted(view.volumes.filter(wanted));
  for (const column of COLUMNS) {
    const order = view.down ? "descending" : "ascending";
    at(`head-${column.id}`).setAttribute("aria-sort", column.id === view.sort ? order : "none");
    const arrow = view.down ? " ▼" : " ▲";
    write(at(`head-${column.id}`).firstChild, column.title + (column.id === view.sort ? arrow : ""));
  }
  const rows = shown.slice(0, ROWS_MAX).map(rowOf);
  const body = at("rows");
  // Rows that stand where they stood are left alone, so that focus and selection stay.
  const same = rows.length === body.children.length && rows.every((row, place) => body.children[place] === row);
  if (!same) {
    const focus = document.activeElement;
    body.replaceChildren(...rows);
    if (focus && body.contains(focus)) focus.focus({ preventScroll: true });
  }
  const all = view.volumes.length;
  write(at("count"), shown.length === all ? `${all}` : `${shown.length} of ${all}`);
  const left = shown.length - rows.length;
  write(at("more"), left > 0 ? `${left} more; find them by name` : "");
}

function noteWork(volumes) {
  const next = new Map();
  const now = performance.now();
  for (const volume of volumes) {
    const { reads, writes } = volume;
    const [done, moved] = [reads.requests + writes.requests, reads.bytes + writes.bytes];
    const before = busy.get(volume.name);
    const working = before !== undefined && done > before.done;
    // Counters of a daemon that was started anew are smaller than before.
    const known = before !== undefined && moved >= before.moved && now > before.now;
    const rate = known ? (1000 * (moved - before.moved)) / (now - before.now) : null;
    next.set(volume.name, { done, moved, now, working, rate });
  }
  busy = next;
  for (const name of view.rows.keys()) {
    if (!next.has(name)) view.rows.delete(name);
  }
}

// ---- The host and one volume ------------------------------------------------------------------

function pairs(list, rows) {
  const known = [...list.children];
  const same = known.length === rows.length
    && rows.every(([name], place) => known[place].firstChild.textContent === name);
  if (!same) {
    list.replaceChildren(...rows.map(([name]) => {
      const row = make("div");
      row.append(make("dt", "", name), make("dd"));
      return row;
    }));
  }
  rows.forEach(([, words, more], place) => {
    const value = list.children[place].lastChild;
    const text = more === undefined ? words : `${words}\u0000${more}`;
    if (value.dataset.words === text) return;
    value.dataset.words = text;
    value.replaceChildren(words);
    if (more !== undefined) value.append(make("small", "", more));
  });
}

function showStatus(status) {
  write(at("host"), status.host);
  document.title = `${status.host} · tenuto`;
  write(at("about"), `version ${status.version}, up ${seconds(status.uptime_seconds)}`);
  const wrong = status.troubles.length;
  const health = at("health");
  health.className = wrong ? "bad" : "good";
  write(health, wrong ? `✖ ${wrong} ${wrong === 1 ? "thing is" : "things are"} wrong` : "✔ all is well");
  const list = at("troubles");
  const lines = status.troubles.slice(0, 8);
  if (wrong > lines.length) lines.push(`… and ${wrong - lines.length} more`);
  if ([...list.children].map((item) => item.textContent).join("\n") !== lines.join("\n")) {
    list.replaceChildren(...lines.map((line) => make("li", "", line)));
  }
  const volumes = status.volumes;
  const count = (test) => volumes.filter(test).length;
  const owing = volumes.filter(owes);
  const oldest = Math.max(...owing.map((volume) => volume.oldest_dirty_seconds ?? -1), -1);
  const dirty = owing.reduce((sum, volume) => sum + (volume.dirty_bytes ?? 0), 0);
  const { cache, ram } = status;
  const all = (part) => volumes.reduce((sum, volume) => sum + volume.reads[part], 0);
  const parts = [all("ram_hits"), all("ssd_hits"), all("origin")];
  pairs(at("tiles"), [
    ["Volumes", String(volumes.length), `${count((volume) => volume.clients > 0)} in use`],
    ["Dirty data", bytes(dirty), oldest >= 0 ? `oldest ${seconds(oldest)}` : "all is at the origins"],
    ["Read hits", percent(parts[0] + parts[1] > 0 ? 100 - share(parts[2], parts) : share(0, parts)),
      `RAM ${percent(share(parts[0], parts))}, SSD ${percent(share(parts[1], parts))}`],
    ["Slowed", String(count((volume) => volume.flow_control.active)), "by flow control"],
    ["Cache device", bytes(cache.used_bytes), `of ${bytes(cache.size_bytes)}, ${cache.state}`],
    ["Clean blocks", bytes(cache.clean.bytes), "on the cache device"],
    ["RAM", bytes(ram.used_bytes), `of ${bytes(ram.size_bytes)} for reads`],
  ]);
}

function chosen() {
  return new URLSearchParams(location.hash.slice(1)).get("volume");
}

function showDetail(status) {
  const name = chosen();
  const volume = name && status.volumes.find((known) => known.name === name);
  at("detail").hidden = !name;
  at("overview").hidden = Boolean(name);
  if (!name) return;
  write(at("detail-name"), name);
  if (!volume) {
    write(at("detail-promise"), "There is no such volume (any more).");
    pairs(at("detail-facts"), []);
    return;
  }
  write(at("detail-promise"), volume.promise);
  const { reads, writes, origin, ssd, flow_control: flow, latency_us: latency } = volume;
  const quantiles = (of) => `${micros(of.p50)} / ${micros(of.p99)} / ${micros(of.p999)}`;
  const parts = [reads.ram_hits, reads.ssd_hits, reads.origin];
  const rows = [
    ["State", [volume.state, ...volume.flags].join(", ")],
    ["Policy", policyWords(volume.policy, volume)],
    ["Reason", volume.effective_reason ?? NOTHING],
    ["Origin", origin.path],
    ["Size", bytes(volume.size_bytes)],
    ["Clients", String(volume.clients)],
    ["Dirty", `${dirtyWords(volume.dirty_bytes, volume)} in ${short(volume.dirty_writes)} writes`],
    ["Oldest dirty write", seconds(volume.oldest_dirty_seconds)],
    ["Destage", volume.effective_destage ?? NOTHING],
    ["Reads", `${short(reads.requests)}, ${bytes(reads.bytes)}`],
    ["From RAM / SSD / origin", parts.map((part) => percent(share(part, parts))).join(" / ")],
    ...(reads.remote > 0 ? [["From the host before", short(reads.remote)]] : []),
    ["Writes", `${short(writes.requests)}, ${bytes(writes.bytes)}`],
    ["Overwritten before destage", bytes(writes.elided_bytes)],
    ["Flushes", short(volume.flushes)],
    ["Read p50 / p99 / p99.9", quantiles(latency.read)],
    ["Write p50 / p99 / p99.9", quantiles(latency.write)],
    ["Flush p50 / p99 / p99.9", quantiles(latency.flush)],
    ["Origin p50 / p99", `${micros(origin.latency_us.p50)} / ${micros(origin.latency_us.p99)}`],
    ["Read at the origin", `${short(origin.reads)}, ${bytes(origin.read_bytes)}`],
    ["Written at the origin", `${short(origin.writes)}, ${bytes(origin.write_bytes)}`],
    ["Journal", bytes(origin.journal_bytes)],
    ["Errors of the origin", short(origin.errors)],
    ["Checksum errors", short(volume.checksum_errors)],
    ["SSD read / written", `${bytes(ssd.read_bytes)} / ${bytes(ssd.write_bytes)}`],
    ["Flow control", flow.active ? `${micros(flow.delay_us)}, by ${flow.reason}` : "not active"],
    ["Waiting requests", short(volume.waiting_requests)],
  ];
  if (volume.overlay) {
    rows.push(["Overlay", `${bytes(volume.overlay.ram_bytes)} in RAM, ${bytes(volume.overlay.ssd_bytes)} on SSD`]);
  }
  if (volume.replication?.state || volume.replicas > 0) rows.push(["Copies", copiesWords(volume)]);
  if (volume.held) rows.push(["Held", `${volume.held.reason}; ${volume.held.go_on}`]);
  pairs(at("detail-facts"), rows);
}

// ---- Events -----------------------------------------------------------------------------------

const SEVERITIES = ["info", "warning", "error"];
const log = { events: [], next: 0 };

function showEvents() {
  const least = SEVERITIES.indexOf(at("severity").value);
  const name = chosen();
  const shown = log.events.filter((event) => SEVERITIES.indexOf(event.severity) >= least
    && (!name || event.volume === name));
  const rows = shown.slice(-EVENTS_SHOWN).reverse().map((event) => {
    const row = make("tr");
    const time = make("td", "", new Date(event.time).toLocaleString());
    time.title = event.time;
    const count = event.count > 1 ? ` (${event.count} times)` : "";
    row.append(time, make("td", event.severity, event.severity), make("td", "", event.volume ?? ""),
      make("td", "words", event.message + count));
    row.dataset.seq = String(event.seq);
    return row;
  });
  if (!rows.length) {
    const cell = make("td", "empty", "none");
    cell.colSpan = 4;
    rows.push(make("tr"));
    rows[0].append(cell);
  }
  at("events").replaceChildren(...rows);
}

async function followEvents() {
  for (;;) {
    try {
      const wait = log.next === 0 ? 0 : 30;
      const page = await ask(`/v1/events?after=${log.next}&wait=${wait}`);
      log.next = page.next;
      if (page.events.length) {
        log.events = log.events.concat(page.events).slice(-EVENTS_KEPT);
        showEvents();
      }
    } catch (error) {
      if (error instanceof Refused) return;
      await new Promise((done) => setTimeout(done, FAST_MS));
    }
  }
}

// ---- The round --------------------------------------------------------------------------------

let status = null;
let hostCharts = [];
let volumeCharts = [];
let chartsOf = null;
let timer = 0;
let round = 0;

async function showHistory() {
  const span = at("span").value;
  const name = chosen();
  if (!name) {
    const { columns } = await ask(`/v1/history?seconds=${span}`);
    if (chosen() === name) hostCharts.forEach((chart) => chart.show(columns));
    return;
  }
  const query = new URLSearchParams({ seconds: span, volume: name });
  const { columns } = await ask(`/v1/history?${query}`);
  if (chosen() !== name) return;
  if (chartsOf !== name) {
    volumeCharts.forEach((chart) => chart.forget());
    chartsOf = name;
  }
  volumeCharts.forEach((chart) => chart.show(columns));
}

async function look() {
  clearTimeout(timer);
  round += 1;
  const mine = round;
  let pause = FAST_MS;
  try {
    if (!document.hidden) {
      status = await ask("/v1/status");
      at("door").hidden = true;
      at("main").hidden = false;
      view.volumes = status.volumes;
      noteWork(status.volumes);
      showStatus(status);
      showDetail(status);
      showVolumes();
      await showHistory().catch((error) => {
        // A volume that has just come has no history yet, one that is gone has none any more.
        if (error instanceof Refused || !chosen()) throw error;
      });
      if (status.volumes.length > MANY_VOLUMES) pause = SLOW_MS;
    }
  } catch (error) {
    if (error instanceof Refused) {
      const had = sessionStorage.getItem(TOKEN);
      sessionStorage.removeItem(TOKEN);
      shut(had ? "The token is wrong." : "");
      return;
    }
    at("health").className = "bad";
    write(at("health"), "✖ the daemon does not answer");
  }
  if (mine === round) timer = setTimeout(look, pause);
}

function theme(dark) {
  document.documentElement.classList.toggle("dark", dark);
  write(at("theme"), dark ? "Light" : "Dark");
  [...hostCharts, ...volumeCharts].forEach((chart) => chart.forget());
  if (status) showHistory().catch(() => {});
}

function start() {
  takeToken();
  headings();
  hostCharts = CHARTS.map((chart) => new Chart(at("charts"), chart));
  volumeCharts = CHARTS.map((chart) => new Chart(at("detail-charts"), chart));
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const kept = localStorage.getItem("tenuto-theme");
  theme(kept ? kept === "dark" : scheme.matches);
  scheme.addEventListener("change", () => {
    if (!localStorage.getItem("tenuto-theme")) theme(scheme.matches);
  });
  at("theme").addEventListener("click", () => {
    const dark = !document.documentElement.classList.contains("dark");
    localStorage.setItem("tenuto-theme", dark ? "dark" : "light");
    theme(dark);
  });
  at("find").addEventListener("input", () => {
    view.find = at("find").value.trim().toLowerCase();
    showVolumes();
  });
  at("which").addEventListener("change", () => {
    view.which = at("which").value;
    showVolumes();
  });
  at("severity").addEventListener("change", showEvents);
  at("span").addEventListener("change", look);
  at("door").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, at("token").value.trim());
    at("token").value = "";
    look();
    followEvents();
  });
  addEventListener("hashchange", () => {
    takeToken();
    if (!status) return;
    showDetail(status);
    showEvents();
    if (chosen()) {
      at("detail-name").focus({ preventScroll: true });
      at("detail").scrollIntoView({ block: "start" });
    }
    look();
  });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && chosen()) location.hash = "";
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) look();
  });
  look();
  followEvents();
}

start();
