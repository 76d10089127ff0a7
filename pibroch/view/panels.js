// Around the timeline: details, legend, table of tasks, copying, saving, printing; and the start of the page.

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  Object.assign(made, attributes);
  made.append(...children);
  return made;
}

function jump(run, id, note) {
  const button = element("button", { type: "button", className: "mono", title: meaning(id) }, action(id));
  button.addEventListener("click", () => { select({ run, task: id, bubble: null }); scroller.focus({ preventScroll: true }); });
  return note ? [button, note] : [button];
}

function showDetails() {
  const box = $("details"), chosen = state.selected;
  if (!chosen) {
    box.replaceChildren(element("p", { className: "muted" }, "Select a task, or an idle interval, to see what it is and what it waited for."));
    return;
  }
  const list = (pairs) => element("dl", {}, ...pairs.flatMap(([term, ...values]) => [element("dt", {}, term), element("dd", {}, ...values)]));
  const { run, task, bubble } = chosen;
  if (bubble) {
    const title = element("h3", {}, element("span", { className: "mono" }, "idle"), `Device ${bubble.device}: ${DATA.causeText[bubble.cause]}`);
    const rows = [["Run", run.label], ["From", duration(bubble.start, run.unit)], ["To", duration(bubble.end, run.unit)], ["Duration", duration(bubble.end - bubble.start, run.unit)]];
    if (bubble.on >= 0) rows.push(["Waits for", ...jump(run, bubble.on)]);
    if (bubble.task >= 0) rows.push(["Then runs", ...jump(run, bubble.task)]);
    box.replaceChildren(title, list(rows));
    return;
  }
  const title = element("h3", {}, element("span", { className: "mono" }, action(task)), meaning(task));
  const facts = [["Device", `${T.device[task]}, ${stream(task)} stream`]];
  if (T.stage[task] >= 0 && op(task) !== "REDUCE") facts.push(["Stage", chunk(T.stage[task], T.part[task])]);
  if (T.mb[task] >= 0) facts.push(["Microbatch", String(T.mb[task]) + (DATA.replicas > 1 ? ` of replica ${T.replica[task]}` : "")]);
  const before = waits(task);
  facts.push(["Waits for", ...(before.length ? before.flatMap((id) => jump(run, id)) : ["its stream only"])]);
  if (T.pair[task] >= 0) facts.push([op(task) === "SEND" ? "Received as" : "Sent as", ...jump(run, T.pair[task], ` on device ${T.device[T.pair[task]]}`)]);
  const head = element("tr", {}, ...["", "Start", "End", "Duration", "Idle before"].map((text) => element("th", { scope: "col" }, text)));
  const body = RUNS.filter((one) => one.ran(task)).map((one) => {
    const idle = one.before.get(task) || [];
    return element("tr", {}, element("th", { scope: "row" }, one.label), ...[one.start[task], one.end[task], one.end[task] - one.start[task]]
      .map((value) => element("td", {}, duration(value, one.unit))),
    element("td", {}, ...(idle.length ? idle.map((b) => element("span", {}, `${duration(b.end - b.start, one.unit)} ${b.cause}`)) : ["none"])));
  });
  const table = element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
  box.replaceChildren(title, element("div", { className: "cols" }, list(facts), element("div", { className: "wide" }, table)));
}

function drawLegend(theme) {
  for (const swatch of document.querySelectorAll("canvas[data-kind]")) {
    const S = new CanvasSurface(swatch, 22, 13, window.devicePixelRatio || 1), { kind, payload: load } = swatch.dataset;
    if (kind in CAUSE_TEXTURE) paintBubble(S, theme, kind, 0, 0, 22, 13);
    else {
      S.rect(0, 0, 22, 13, taskStyle(theme, kind, load, 0));
      if (kind === "SEND") S.rect(0, 0, 2, 13, { fill: theme.ink, alpha: 0.55 });
      if (kind === "RECV") S.rect(20, 0, 2, 13, { fill: theme.ink, alpha: 0.55 });
    }
  }
}

// The table of tasks, a page of rows at a time.
const PAGE = 50;
const table = { device: -1, at: 0, ids: [] };
function fillTable() {
  table.ids = [];
  for (let i = 0; i < N; i++) if (table.device < 0 || T.device[i] === table.device) table.ids.push(i);
  const by = RUNS[0];
  table.ids.sort((a, b) => T.device[a] - T.device[b] || by.start[a] - by.start[b] || a - b);
  table.at = 0;
  showTable();
}
function showTable() {
  const columns = ["Task", "Meaning", "Device", "Stream", ...RUNS.flatMap((run) => [`${run.label} start`, `${run.label} duration`]), "Waits for"];
  $("table").tHead.replaceChildren(element("tr", {}, ...columns.map((text, n) => element("th", { scope: "col", className: [0, 1, 3, columns.length - 1].includes(n) ? "text" : "" }, text))));
  const rows = table.ids.slice(table.at, table.at + PAGE).map((id) => {
    const show = element("button", { type: "button", className: "mono", title: "Show in the timeline" }, action(id));
    show.addEventListener("click", () => {
      select({ run: RUNS.find((run) => run.ran(id)) || RUNS[0], task: id, bubble: null });
      scroller.focus();
    });
    const times = RUNS.flatMap((run) => (run.ran(id) ? [duration(run.start[id], run.unit), duration(run.end[id] - run.start[id], run.unit)] : ["–", "–"]));
    return element("tr", {}, element("th", { scope: "row" }, show), element("td", { className: "text" }, meaning(id)), element("td", {}, String(T.device[id])),
      element("td", { className: "text" }, stream(id)), ...times.map((text) => element("td", {}, text)), element("td", { className: "text mono" }, waits(id).map(action).join(" ")));
  });
  $("table").tBodies[0].replaceChildren(...rows);
  const end = Math.min(table.at + PAGE, table.ids.length);
  $("table-where").textContent = `${table.ids.length ? table.at + 1 : 0} to ${end} of ${table.ids.length}`;
  $("table-back").disabled = table.at === 0;
  $("table-next").disabled = end >= table.ids.length;
}
$("table-back").addEventListener("click", () => { table.at = Math.max(0, table.at - PAGE); showTable(); });
$("table-next").addEventListener("click", () => { table.at += PAGE; showTable(); });
$("table-device").append(...[...new Set(T.device)].sort((a, b) => a - b).map((d) => element("option", { value: String(d) }, String(d))));
$("table-device").addEventListener("change", (event) => { table.device = +event.target.value; fillTable(); });

$("zoom-in").addEventListener("click", () => zoom(1.6));
$("zoom-out").addEventListener("click", () => zoom(1 / 1.6));
$("zoom-fit").addEventListener("click", fit);
$("group-label").hidden = RUNS.length < 2;
$("group").addEventListener("change", (event) => { state.group = event.target.value; relayout(); });
$("comm").checked = state.comm;
$("comm").addEventListener("change", (event) => { state.comm = event.target.checked; relayout(); });
$("follow").addEventListener("change", (event) => { state.follow = event.target.checked; refresh(); });

$("copy").addEventListener("click", async () => {
  const text = $("json-text").textContent, button = $("copy");
  let copied = true;
  try { await navigator.clipboard.writeText(text); } catch {
    const range = document.createRange();
    range.selectNodeContents($("json-text"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    copied = document.execCommand("copy");
  }
  button.textContent = copied ? "Copied" : "Selected: press Ctrl+C";
  $("live").textContent = button.textContent;
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
});

function lightTheme(draw) { // figures and prints are on paper
  document.documentElement.classList.add("printing");
  const result = draw(readTheme());
  document.documentElement.classList.remove("printing");
  return result;
}
function figure() {
  const width = Math.max(640, scroller.clientWidth), height = state.height;
  return lightTheme((theme) => {
    const S = new SvgSurface(width, height, surface);
    paint(S, theme, view({ width, height, top: 0, hover: null, gutter: 96, scale: state.fitted ? (width - 96 - END_PAD) / longest : state.scale }));
    return S.toString();
  });
}
$("save-svg").addEventListener("click", () => {
  const link = element("a", { href: URL.createObjectURL(new Blob([figure()], { type: "image/svg+xml" })), download: `${DATA.file}.svg` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});
window.addEventListener("beforeprint", () => {
  const width = 1000;
  document.documentElement.classList.add("printing");
  const S = new CanvasSurface(canvas, width, Math.min(state.height, 8000), 2);
  drawLegend(readTheme());
  paint(S, readTheme(), view({ width, height: state.height, top: 0, left: 0, gutter: 96, hover: null, scale: (width - 96 - END_PAD) / (longest || 1) }));
});
window.addEventListener("afterprint", () => { document.documentElement.classList.remove("printing"); retheme(); });

function retheme() { state.theme = readTheme(); surface = null; drawLegend(state.theme); refresh(); }
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", retheme);
new ResizeObserver(() => { if (state.fitted) state.scale = fitScale(); resize(); }).observe(scroller);
relayout();
drawLegend(state.theme);
fillTable();
