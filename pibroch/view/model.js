// The plan and its runs, decoded from the compact columns that the page carries.
// A run is one set of times (simulated or measured) over the same tasks; times are in the run's own unit.

const DATA = JSON.parse(document.getElementById("data").textContent);
const N = DATA.count;
const column = (name) => {
  const given = DATA.tasks[name];
  return typeof given === "number" ? new Int32Array(N).fill(given) : Int32Array.from(given);
};
const T = Object.fromEntries(Object.keys(DATA.tasks).map((name) => [name, column(name)]));
const op = (i) => DATA.ops[T.op[i]];
const stream = (i) => DATA.streams[T.stream[i]];
const payload = (i) => (T.payload[i] === 1 ? "F" : T.payload[i] === 2 ? "B" : "");
const chunk = (stage, part) => (part ? `${stage}.${part}` : `${stage}`);
const waits = (i) => DATA.waits.slice(DATA.waitsAt[i], DATA.waitsAt[i + 1]);

function action(i) {
  const kind = op(i);
  if (kind === "REDUCE") return "R" + T.bucket[i];
  if (kind === "UPDATE") return "U" + T.stage[i];
  const here = chunk(T.stage[i], T.part[i]);
  if (kind !== "SEND" && kind !== "RECV") return here + kind + T.mb[i];
  return here + (kind === "SEND" ? ">" : "<") + chunk(T.peerStage[i], T.peerPart[i]) + payload(i) + T.mb[i];
}

function meaning(i) {
  const what = `stage ${chunk(T.stage[i], T.part[i])}, microbatch ${T.mb[i]}`;
  const load = payload(i) === "F" ? "activation" : "input gradient";
  return {
    F: () => `Forward of ${what}`, B: () => `Backward of ${what}`,
    BI: () => `Backward for inputs of ${what}`, BW: () => `Backward for weights of ${what}`,
    SEND: () => `Send of the ${load} of microbatch ${T.mb[i]} to device ${T.peer[i]}`,
    RECV: () => `Receive of the ${load} of microbatch ${T.mb[i]} from device ${T.peer[i]}`,
    REDUCE: () => `All-reduce of gradient bucket ${T.bucket[i]}`, UPDATE: () => `Optimizer update of stage ${T.stage[i]}`,
  }[op(i)]();
}

const RUNS = DATA.runs.map((run, index) => {
  const start = Float64Array.from(run.start, (v) => v * run.tick), end = Float64Array.from(run.end, (v) => v * run.tick);
  // A receive is posted early, a send waits for its receive, a collective for its last member: what a task occupies
  // of the link starts when all sides have started.
  const from = start.slice(), ready = new Map();
  for (let i = 0; i < N; i++) if (op(i) === "REDUCE" && run.start[i] >= 0) ready.set(T.bucket[i], Math.max(start[i], ready.get(T.bucket[i]) || 0));
  for (let i = 0; i < N; i++) {
    const other = T.pair[i];
    if (other >= 0 && run.start[other] >= 0) from[i] = Math.min(Math.max(start[i], start[other]), end[i]);
    if (op(i) === "REDUCE" && run.start[i] >= 0) from[i] = Math.min(ready.get(T.bucket[i]), end[i]);
  }
  const bubbles = run.bubbles.map(([device, a, b, cause, task, on]) =>
    ({ device, start: a * run.tick, end: b * run.tick, cause: DATA.causes[cause], task, on }));
  const before = new Map();
  for (const bubble of bubbles) {
    if (bubble.task >= 0) before.set(bubble.task, [...(before.get(bubble.task) || []), bubble]);
  }
  const ran = (i) => run.start[i] >= 0;
  return { ...run, index, start, end, from, bubbles, before, ran };
});
const longest = Math.max(...RUNS.map((run) => run.makespan), 0);
// Runs in different units (unit costs against seconds) are each drawn over their own length.
const COMMON = RUNS.every((run) => run.unit === RUNS[0].unit);
for (const run of RUNS) run.scale = COMMON || !run.makespan ? 1 : longest / run.makespan;

const UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const plain = (value) => String(Number(value.toPrecision(4)));
function duration(value, unit) {
  if (unit !== "s") return `${plain(value)} ${DATA.unitName}`;
  const [size, name] = UNITS.find(([one]) => Math.abs(value) >= one) || (value ? UNITS[3] : UNITS[0]);
  return `${plain(value / size)} ${name}`;
}

// What the stages of one device are told apart by: the first in its full colour, later ones lighter.
const SHADES = [0, 0.32, 0.52, 0.64];
const SHADE = new Float64Array(N);
{
  const seen = new Map();
  for (let i = 0; i < N; i++) {
    if (T.stage[i] < 0 || op(i) === "REDUCE" || op(i) === "UPDATE") continue;
    const stages = seen.get(T.device[i]) || new Set();
    seen.set(T.device[i], stages.add(T.stage[i]));
  }
  const ranks = new Map([...seen].map(([d, s]) => [d, [...s].sort((a, b) => a - b)]));
  for (let i = 0; i < N; i++) {
    const rank = (ranks.get(T.device[i]) || []).indexOf(T.stage[i]);
    SHADE[i] = DATA.ops[T.op[i]] === "F" || DATA.ops[T.op[i]][0] === "B" ? SHADES[Math.min(Math.max(rank, 0), 3)] : 0;
  }
}
