// The page: state, events, details, tables. Everything that changes what is shown goes through `refresh`.

const $ = (id) => document.getElementById(id);
const scroller = $("timeline"), space = $("space"), canvas = $("canvas");
const state = { group: "run", comm: DATA.devices <= 8, follow: false, scale: 0, selected: null, hover: null, rows: [], height: 0, theme: readTheme(), fitted: true };
let queued = false;

function gutter() { return scroller.clientWidth < 520 ? 62 : 96; }
function fitScale() { return Math.max(1, scroller.clientWidth - gutter() - END_PAD) / (longest || 1); }
function maxScale() { return Math.max(fitScale(), Math.min(6e6 / (longest || 1), 260 / shortest)); }
const shortest = (() => {
  const spans = [];
  for (const run of RUNS) for (let i = 0; i < N; i++) if (run.end[i] > run.start[i] && stream(i) === "compute") spans.push((run.end[i] - run.start[i]) * run.scale);
  spans.sort((a, b) => a - b);
  return spans[Math.floor(spans.length / 20)] || longest || 1;
})();

function view(extra) {
  return {
    width: scroller.clientWidth, height: scroller.clientHeight, left: scroller.scrollLeft, top: scroller.scrollTop, scale: state.scale,
    gutter: gutter(), rows: state.rows, selected: state.selected, hover: state.hover, follow: state.follow,
    full: shortest * (extra?.scale ?? state.scale) > 46, ...extra,
  };
}

let surface = null;
function refresh() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => { queued = false; draw(); });
}
function draw() {
  const now = view(), dpr = window.devicePixelRatio || 1;
  if (!surface || surface.scale !== dpr || surface.theme !== state.theme || canvas.width !== Math.round(now.width * dpr) || canvas.height !== Math.round(now.height * dpr)) {
    surface = new CanvasSurface(canvas, now.width, now.height, dpr);
    surface.theme = state.theme;
  }
  paint(surface, state.theme, now);
  drawOverview(now);
}

function relayout() {
  Object.assign(state, layout(state));
  scroller.style.height = `${state.height + 18}px`;
  if (state.fitted) state.scale = fitScale();
  resize();
}
function resize() {
  space.style.height = `${state.height}px`;
  space.style.width = state.fitted ? "100%" : `${gutter() + longest * state.scale + END_PAD}px`;
  $("zoom-out").disabled = $("zoom-fit").disabled = state.fitted;
  $("zoom-in").disabled = state.scale >= maxScale() * 0.999;
  refresh();
}

function zoom(factor, anchor) { // `anchor` is an x of the view that keeps its time
  const least = fitScale(), scale = Math.min(Math.max(state.scale * factor, least), maxScale());
  const at = anchor ?? focusX();
  const time = (at - gutter() + scroller.scrollLeft) / state.scale;
  state.scale = scale;
  state.fitted = scale <= least * 1.001;
  resize();
  scroller.scrollLeft = state.fitted ? 0 : time * scale - (at - gutter());
}
function focusX() {
  const { selected } = state;
  if (selected) {
    const [a, b] = span(selected), middle = gutter() + ((a + b) / 2) * state.scale - scroller.scrollLeft;
    if (middle > gutter() && middle < scroller.clientWidth) return middle;
  }
  return gutter() + (scroller.clientWidth - gutter()) / 2;
}
function fit() { state.fitted = true; state.scale = fitScale(); scroller.scrollLeft = 0; resize(); }
function span({ run, task, bubble }) {
  return bubble ? [bubble.start * run.scale, bubble.end * run.scale] : [run.from[task] * run.scale, run.end[task] * run.scale];
}

function rowOf({ run, task, bubble }) {
  const device = bubble ? bubble.device : T.device[task], lane = bubble ? "compute" : laneOf(task);
  return state.rows.findIndex((r) => r.run === run && r.device === device && r.lane === lane);
}
function select(what, { reveal = true, speak = true } = {}) {
  if (what && !state.comm && what.task >= 0 && stream(what.task) !== "compute") { $("comm").checked = state.comm = true; relayout(); }
  state.selected = what;
  showDetails();
  if (what && reveal) revealSelected();
  if (speak) $("live").textContent = what ? spoken(what) : "Selection cleared";
  refresh();
}
function revealSelected() {
  const row = state.rows[rowOf(state.selected)];
  if (!row) return;
  const [a, b] = span(state.selected), g = gutter(), room = scroller.clientWidth - g;
  const left = a * state.scale, right = b * state.scale, now = scroller.scrollLeft;
  if (left < now + 8 || right > now + room - 8) scroller.scrollLeft = right - left > room ? left - 16 : (left + right) / 2 - room / 2;
  if (row.y < scroller.scrollTop + AXIS + 4) scroller.scrollTop = row.y - AXIS - HEADER;
  else if (row.y + row.h > scroller.scrollTop + scroller.clientHeight - 8) scroller.scrollTop = row.y + row.h - scroller.clientHeight + 24;
}
function spoken({ run, task, bubble }) {
  if (bubble) return `${run.label}: device ${bubble.device} idle, ${DATA.causeText[bubble.cause]}, for ${duration(bubble.end - bubble.start, run.unit)}`;
  const idle = (run.before.get(task) || []).map((b) => `${duration(b.end - b.start, run.unit)} of ${b.cause}`).join(", ");
  return `${action(task)}. ${meaning(task)}, device ${T.device[task]}, ${stream(task)} stream. ${run.label}: starts at ${duration(run.start[task], run.unit)}, ` +
    `takes ${duration(run.end[task] - run.start[task], run.unit)}${idle ? `, idle before: ${idle}` : ""}`;
}

// Keyboard: left and right within a row, up and down to the row's task nearest in time.
function move(rowStep, step) {
  const lines = state.rows.map((r, i) => [r, i]).filter(([r]) => r.kind === "tasks" && r.ids.length);
  if (!lines.length) return;
  if (!state.selected) { const [row] = lines[0]; return select({ run: row.run, task: row.ids[0], bubble: null }); }
  const at = lines.findIndex(([, i]) => i === rowOf(state.selected));
  const [a, b] = span(state.selected), middle = (a + b) / 2;
  const nearest = (row) => {
    const time = middle / row.run.scale;
    let best = 0;
    row.ids.forEach((id, n) => { if (gapTo(row, id, time) < gapTo(row, row.ids[best], time)) best = n; });
    return best;
  };
  if (rowStep) {
    const target = lines[at + rowStep];
    if (target) select({ run: target[0].run, task: target[0].ids[nearest(target[0])], bubble: null });
    return;
  }
  const row = lines[at][0];
  let n = state.selected.bubble ? nearest(row) : row.ids.indexOf(state.selected.task) + step;
  if (step === -Infinity) n = 0;
  if (step === Infinity) n = row.ids.length - 1;
  if (row.ids[n] !== undefined) select({ run: row.run, task: row.ids[n], bubble: null });
}
function gapTo(row, id, time) { return Math.max(row.run.from[id] - time, time - row.run.end[id], 0) + Math.abs((row.run.from[id] + row.run.end[id]) / 2 - time) * 1e-6; }

function blocker({ run, task, bubble }) { // the last to end of what it waited for, else the other side of its transfer
  if (bubble) return bubble.on >= 0 ? bubble.on : bubble.task;
  const list = waits(task).filter(run.ran).sort((a, b) => run.end[b] - run.end[a]);
  if (op(task) === "RECV" && T.pair[task] >= 0) return T.pair[task];
  return list.length ? list[0] : T.pair[task];
}

const KEYS = {
  ArrowLeft: () => move(0, -1), ArrowRight: () => move(0, 1), ArrowUp: () => move(-1, 0), ArrowDown: () => move(1, 0),
  Home: () => move(0, -Infinity), End: () => move(0, Infinity), "+": () => zoom(1.6), "=": () => zoom(1.6), "-": () => zoom(1 / 1.6), _: () => zoom(1 / 1.6),
  0: fit, m: () => { $("follow").click(); }, Escape: () => select(null),
  Enter: () => { const to = state.selected ? blocker(state.selected) : -1; if (to >= 0) select({ run: state.selected.run, task: to, bubble: null }); },
};
scroller.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const act = KEYS[event.key] || KEYS[event.key.toLowerCase()];
  if (act) { event.preventDefault(); act(); }
});

// Pointers: hover, click or tap, and pinch.
const local = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
const touches = new Map();
let pinch = 0;
scroller.addEventListener("pointermove", (event) => {
  if (touches.has(event.pointerId)) touches.set(event.pointerId, event);
  if (touches.size === 2) {
    const [a, b] = [...touches.values()], apart = Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
    if (pinch) zoom(apart / pinch, (local(a)[0] + local(b)[0]) / 2);
    pinch = apart;
    return;
  }
  if (event.pointerType !== "mouse") return;
  hover(hit(view(), ...local(event)), event);
});
scroller.addEventListener("pointerdown", (event) => { if (event.pointerType === "touch") touches.set(event.pointerId, event); });
for (const kind of ["pointerup", "pointercancel", "pointerleave"]) {
  scroller.addEventListener(kind, (event) => { touches.delete(event.pointerId); pinch = 0; if (kind === "pointerleave") hover(null); });
}
scroller.addEventListener("click", (event) => { const found = hit(view(), ...local(event)); if (found || state.selected) select(found, { reveal: false }); });
scroller.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  zoom(Math.exp(-event.deltaY * 0.01), local(event)[0]);
}, { passive: false });
scroller.addEventListener("scroll", refresh, { passive: true });

function hover(found, event) {
  const tip = $("tip"), same = (a, b) => a === b || (a && b && a.run === b.run && a.task === b.task && a.bubble === b.bubble);
  if (!same(found, state.hover)) { state.hover = found; refresh(); }
  tip.hidden = !found;
  canvas.style.cursor = found ? "pointer" : "default";
  if (!found) return;
  const { run, task, bubble } = found;
  const [name, rest] = bubble ? ["idle", `${duration(bubble.end - bubble.start, run.unit)}, ${DATA.causeText[bubble.cause]}`]
    : [action(task), `${duration(run.end[task] - run.from[task], run.unit)}. ${meaning(task)}`];
  const bold = document.createElement("b");
  bold.textContent = name;
  tip.replaceChildren(bold, ` ${rest}`);
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, window.innerWidth - box.width - 8))}px`;
  tip.style.top = `${event.clientY + 18 + box.height > window.innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
}

function drawOverview(now) {
  const strip = $("overview");
  strip.hidden = state.fitted;
  if (state.fitted) return;
  const width = strip.clientWidth, height = 34, S = new CanvasSurface(strip, width, height, window.devicePixelRatio || 1);
  strip.style.width = "";
  S.rect(0, 0, width, height, { fill: state.theme.raised });
  const lines = state.rows.filter((r) => r.lane === "compute" && r.run === RUNS[0]), h = Math.max(1, (height - 4) / lines.length);
  const k = (width / longest) * RUNS[0].scale;
  lines.forEach((row, n) => {
    let drawn = -1;
    for (const id of row.ids) {
      const right = RUNS[0].end[id] * k, left = Math.max(RUNS[0].start[id] * k, drawn);
      if (right - drawn < 0.4) continue;
      drawn = right;
      S.rect(left, 2 + n * h, Math.max(right - left, 0.6), h > 3 ? h - 1 : h, { fill: state.theme[op(id)] });
    }
  });
  const left = (now.left / state.scale / longest) * width, w = ((now.width - now.gutter) / state.scale / longest) * width;
  S.rect(0, 0, left, height, { fill: state.theme.paper, alpha: 0.65 });
  S.rect(left + w, 0, Math.max(0, width - left - w), height, { fill: state.theme.paper, alpha: 0.65 });
  S.rect(left, 0, Math.max(w, 3), height, { stroke: state.theme.ink, weight: 1.5 });
}
$("overview").addEventListener("pointerdown", (event) => event.currentTarget.setPointerCapture(event.pointerId));
for (const kind of ["pointerdown", "pointermove"]) {
  $("overview").addEventListener(kind, (event) => {
    if (!event.buttons) return;
    const at = (event.offsetX / event.currentTarget.clientWidth) * longest * state.scale;
    scroller.scrollLeft = at - (scroller.clientWidth - gutter()) / 2;
  });
}
