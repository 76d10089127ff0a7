// Layout and painting of the timeline: rows per run, device and stream; pure functions of their arguments.

const AXIS = 26, COMPUTE = 28, LANE = 14, GAP = 2, DEVICE_GAP = 10, HEADER = 30, END_PAD = 14;

// The row of a device that shows a task: its stream, but all transfers of a device share one row per direction.
const laneOf = (i) => (op(i) === "SEND" ? "send" : op(i) === "RECV" ? "receive" : stream(i));
const LANES = ["compute", "send", "receive"];

// Rows top to bottom: {kind: "header"|"tasks", y, h, run, device, lane, ids, last, half, label, bubbles}.
function layout({ group, comm }) {
  const rows = [], lanes = new Map(); // device -> lane -> ids
  for (let i = 0; i < N; i++) {
    if (!lanes.has(T.device[i])) lanes.set(T.device[i], new Map());
    const mine = lanes.get(T.device[i]), lane = laneOf(i);
    if (!mine.has(lane)) mine.set(lane, []);
    mine.get(lane).push(i);
  }
  const rank = (lane) => (LANES.indexOf(lane) + 1 || 9);
  let y = AXIS;
  const header = (label) => { rows.push({ kind: "header", y, h: HEADER, label }); y += HEADER; };
  const device = (run, d, label) => {
    for (const [lane, ids] of [...lanes.get(d)].sort(([a], [b]) => rank(a) - rank(b) || (a < b ? -1 : 1))) {
      const compute = lane === "compute";
      if (!compute && !comm) continue;
      const h = compute ? COMPUTE : LANE;
      const mine = Int32Array.from(ids.filter(run.ran)).sort((a, b) => run.from[a] - run.from[b] || a - b);
      // The latest end so far: what is visible begins where it passes the left edge. Tasks at one time share the height.
      const last = new Float64Array(mine.length), half = new Int8Array(mine.length);
      mine.forEach((id, k) => {
        last[k] = Math.max(run.end[id], k ? last[k - 1] : 0);
        if (k && run.from[id] < last[k - 1] - 1e-9 * longest) {
          half[k - 1] = half[k - 1] || 1;
          half[k] = 3 - half[k - 1];
        }
      });
      const bubbles = compute ? run.bubbles.filter((b) => b.device === d) : [];
      rows.push({ kind: "tasks", y, h, run, device: d, lane, ids: mine, last, half, label: compute ? label : lane, bubbles });
      y += h + GAP;
    }
    y += DEVICE_GAP - GAP;
  };
  const devices = [...lanes.keys()].sort((a, b) => a - b);
  if (group === "device" && RUNS.length > 1) {
    for (const d of devices) {
      header(`Device ${d}`);
      for (const run of RUNS) device(run, d, run.label);
    }
  } else {
    for (const run of RUNS) {
      header(run.label);
      for (const d of devices) device(run, d, `Device ${d}`);
    }
  }
  return { rows, height: y };
}

function firstVisible(row, time) { // index of the first task of the row that ends at or after `time`
  let low = 0, high = row.ids.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.last[middle] < time) low = middle + 1; else high = middle;
  }
  return low;
}

function niceStep(raw) {
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].find((k) => k * power >= raw * 0.999) * power;
}

// view: {width, height, left, top, scale (pixels per unit of time), gutter, rows, selected: {run, task}|null, hover, follow,
// full (whether names are whole actions or microbatches only: one rule for all of a view, so that a row reads evenly)}
function paint(S, theme, view) {
  const { width, height, gutter, scale } = view;
  const x = (time) => gutter + time * scale - view.left;
  const t0 = view.left / scale, t1 = (view.left + width - gutter) / scale;
  S.rect(0, 0, width, height, { fill: theme.paper });
  const ticks = axisTicks(view, t0, t1);
  S.clip(gutter, AXIS, width - gutter, height - AXIS, () => {
    for (const [time] of ticks) S.rect(Math.round(x(time)), AXIS, 1, height - AXIS, { fill: theme.grid });
    for (const row of view.rows) {
      const y = row.y - view.top;
      if (row.kind === "tasks" && y + row.h >= AXIS && y <= height) paintRow(S, theme, view, row, y, x, t0, t1);
    }
    if (view.selected) paintArrows(S, theme, view, x);
  });
  S.clip(0, AXIS, width, height - AXIS, () => paintLabels(S, theme, view));
  S.rect(0, 0, width, AXIS, { fill: theme.paper });
  S.rect(0, AXIS - 1, width, 1, { fill: theme.line });
  S.clip(gutter - 4, 0, width - gutter + 4, AXIS, () => {
    for (const [time, label] of ticks) {
      S.rect(Math.round(x(time)), AXIS - 6, 1, 5, { fill: theme.muted });
      if (x(time) + S.measure(label, 11.5, 400, false) + 6 < width) S.text(x(time) + 4, 12, label, { fill: theme.muted, size: 11.5 });
    }
  });
}

function axisTicks(view, t0, t1) {
  const ticks = [];
  if (!COMMON) { // runs of different units share only the fraction of their step
    const step = niceStep((90 / view.scale / longest) * 100);
    for (let p = Math.ceil((t0 / longest) * 100 / step) * step; p <= Math.min((t1 / longest) * 100, 100.001); p += step) ticks.push([(p / 100) * longest, `${plain(p)}%`]);
    return ticks;
  }
  const step = niceStep(90 / view.scale);
  for (let k = Math.ceil(t0 / step - 1e-9); k * step <= t1; k++) ticks.push([k * step, k ? duration(k * step, RUNS[0].unit) : "0"]);
  return ticks;
}

function paintLabels(S, theme, view) {
  S.rect(0, 0, view.gutter, view.height, { fill: theme.paper });
  for (const row of view.rows) {
    const y = row.y - view.top;
    if (y + row.h < AXIS || y > view.height) continue;
    if (row.kind === "header") {
      S.rect(0, y + 2, S.measure(row.label, 13, 650, false) + 24, row.h - 4, { fill: theme.paper });
      S.text(12, y + row.h / 2 + 1, row.label, { fill: theme.ink, size: 13, bold: 650 });
    } else {
      const compute = row.lane === "compute";
      const text = compute && view.gutter < 80 ? row.label.replace("Device ", "D") : row.label;
      S.text(view.gutter - 8, y + row.h / 2, text, { fill: compute ? theme.ink : theme.muted, size: compute ? 12.5 : 10.5, align: "right" });
    }
  }
}

function paintRow(S, theme, view, row, y, x, t0, t1) {
  const { run } = row, k = run.scale, compute = row.lane === "compute";
  for (const bubble of row.bubbles) {
    if (bubble.end * k < t0 || bubble.start * k > t1) continue;
    const left = Math.max(x(bubble.start * k), -50), w = Math.min(x(bubble.end * k), view.width + 50) - left;
    if (w < 0.4) continue;
    paintBubble(S, theme, bubble.cause, left, y, w, row.h);
    const hovered = view.hover && view.hover.bubble === bubble;
    if (hovered || (view.selected && view.selected.bubble === bubble)) S.rect(left, y, w, row.h, { stroke: theme.ink, weight: hovered ? 1 : 2 });
  }
  const mb = view.follow && view.selected && view.selected.task >= 0 ? T.mb[view.selected.task] : -1;
  const replica = mb >= 0 ? T.replica[view.selected.task] : -1;
  let drawn = -Infinity;
  const marked = [];
  for (let n = firstVisible(row, t0 / k); n < row.ids.length; n++) {
    const id = row.ids[n];
    if (run.from[id] * k > t1) break;
    let left = x(run.from[id] * k), right = x(run.end[id] * k);
    if (right - drawn < 0.35) continue; // nothing of it would show
    const selected = view.selected && view.selected.task === id;
    const half = row.half[n], h = half ? row.h / 2 - 0.5 : row.h, up = y;
    y += half === 2 ? row.h / 2 + 0.5 : 0;
    if (selected) { // ready, or posted, before it could start
      const early = Math.max(x(run.start[id] * k), 0);
      if (left - early > 2) S.rect(early, y + h / 2 - 0.5, left - early, 1, { fill: theme.ink });
    }
    drawn = right;
    left = Math.max(left, -50); right = Math.min(right, view.width + 50);
    const w = Math.max(right - left, 0.7), kind = op(id), gap = w > 4 ? 0.6 : 0;
    const dim = mb >= 0 && (T.mb[id] !== mb || T.replica[id] !== replica) ? 0.22 : 1;
    const style = taskStyle(theme, kind, payload(id), SHADE[id]);
    S.rect(left + gap, y, w - gap, h, { ...style, alpha: dim });
    if (kind === "SEND" && w > 3) S.rect(left + gap, y, 2, h, { fill: theme.ink, alpha: 0.55 * dim });
    if (kind === "RECV" && w > 3) S.rect(right - 2, y, 2, h, { fill: theme.ink, alpha: 0.55 * dim });
    if (w > 9 && dim === 1 && !half) paintName(S, theme, id, Math.max(left, view.gutter), y, Math.min(right, view.width) - Math.max(left, view.gutter), h, compute, view.full);
    if (selected || (view.hover && view.hover.task === id && view.hover.run === run)) marked.push([left, y, w, h, selected, selected && view.selected.run === run]);
    y = up;
  }
  for (const [left, top, w, h, selected, strong] of marked) {
    S.rect(left - 2, top - 2, w + 4, h + 4, { stroke: theme.paper, weight: 2 });
    S.rect(left - 1, top - 1, w + 2, h + 2, { stroke: theme.ink, weight: strong ? 2.5 : selected ? 1.5 : 1.2, dash: selected && !strong ? [3, 2] : undefined });
  }
}

function paintBubble(S, theme, cause, x, y, w, h) {
  const exposed = cause === "transfer" || cause === "reduction", loud = exposed || cause === "dispatch";
  const style = { fill: theme[cause], texture: CAUSE_TEXTURE[cause], ink: loud ? theme.paper : theme.ink };
  if (!loud) S.rect(x, y, w, h, { ...style, strength: 0.2 });
  else {
    S.rect(x, y, w, h, { fill: theme[cause], alpha: 0.16 });
    S.rect(x, y + h - 8, w, 8, { ...style, strength: 0.55 });
  }
}

function paintName(S, theme, id, x, y, w, h, compute, full) {
  const size = compute ? 11.5 : 9.5, bold = compute ? 600 : 500;
  const name = compute && !full && T.mb[id] >= 0 ? String(T.mb[id]) : action(id);
  if (S.measure(name, size, bold, true) + 6 > w) return;
  if (OP_TEXTURE[op(id)] && compute) { // a plate, so that the texture does not run through the letters
    const wide = S.measure(name, size, bold, true);
    S.rect(x + w / 2 - wide / 2 - 2, y + h / 2 - 7, wide + 4, 14, { fill: taskStyle(theme, op(id), payload(id), SHADE[id]).fill });
  }
  S.text(x + w / 2, y + h / 2, name, { fill: theme["task-ink"], size, bold, align: "center", mono: true });
}

// What the selected task waited for, and the other side of its transfer.
function paintArrows(S, theme, view, x) {
  const { run, task } = view.selected;
  if (task < 0) return;
  const rowOf = (id) => view.rows.find((r) => r.run === run && r.device === T.device[id] && r.lane === laneOf(id));
  const point = (id, time) => {
    const row = rowOf(id);
    return row && run.ran(id) ? [x(time * run.scale), row.y - view.top + row.h / 2] : null;
  };
  const arrow = (a, b) => {
    if (!a || !b) return;
    const [x1, y1, x2, y2] = [...a, ...b].map(round), across = x2 - x1;
    const bend = across < 24 ? 0 : Math.min(60, across / 2); // nearly above each other: a straight line
    const line = bend ? `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` : `M${x1} ${y1}L${x2} ${y2}`;
    const angle = bend ? 0 : Math.atan2(y2 - y1, across);
    const wing = (turn) => `${round(x2 - 8 * Math.cos(angle + turn))} ${round(y2 - 8 * Math.sin(angle + turn))}`;
    S.path(line, { stroke: theme.paper, weight: 4, alpha: 0.85 });
    S.path(line, { stroke: theme.ink, weight: 1.5 });
    S.path(`M${x2} ${y2}L${wing(0.45)}L${wing(-0.45)}z`, { fill: theme.ink });
  };
  for (const id of waits(task)) {
    arrow(point(id, run.end[id]), point(task, run.from[task]));
    if (op(id) === "RECV" && T.pair[id] >= 0) arrow(point(T.pair[id], run.start[T.pair[id]]), point(id, run.end[id]));
  }
  const other = T.pair[task];
  if (other >= 0) {
    const [send, recv] = op(task) === "SEND" ? [task, other] : [other, task];
    arrow(point(send, run.start[send]), point(recv, run.end[recv]));
  }
}

// What lies at a point of the view: {run, task, bubble} or null.
function hit(view, px, py) {
  if (px < view.gutter || py < AXIS) return null;
  const y = py + view.top;
  const row = view.rows.find((r) => r.kind === "tasks" && y >= r.y - 1 && y <= r.y + r.h + 1);
  if (!row) return null;
  const time = (px - view.gutter + view.left) / view.scale / row.run.scale, slack = 2 / view.scale / row.run.scale;
  let best = -1, distance = Infinity;
  for (let n = firstVisible(row, time - slack); n < row.ids.length; n++) {
    const id = row.ids[n];
    if (row.run.from[id] > time + slack) break;
    const off = Math.max(row.run.from[id] - time, time - row.run.end[id], 0);
    if (row.run.end[id] >= time - slack && off <= distance) { best = id; distance = off; }
  }
  if (best >= 0) return { run: row.run, task: best, bubble: null };
  const bubble = row.bubbles.find((b) => time >= b.start && time <= b.end);
  return bubble ? { run: row.run, task: -1, bubble } : null;
}
