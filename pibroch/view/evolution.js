// The page of a run: choosing a candidate in any figure. Data-blind: all text comes from the data block, as text.

const ITEMS = JSON.parse(document.getElementById("data").textContent).candidates;
const panel = document.getElementById("chosen"), hint = panel.firstElementChild;
const nodes = [...document.querySelectorAll("#lineage .pick")];
const marks = new Map();
for (const mark of document.querySelectorAll("[data-i]")) marks.set(+mark.dataset.i, [...(marks.get(+mark.dataset.i) || []), mark]);
let chosen = -1;

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  Object.assign(made, attributes);
  made.append(...children);
  return made;
}

function choose(index) {
  for (const mark of marks.get(chosen) || []) mark.classList.remove("chosen");
  chosen = ITEMS[index] ? index : -1;
  for (const mark of marks.get(chosen) || []) mark.classList.add("chosen");
  if (chosen < 0) { panel.replaceChildren(hint); return; }
  const item = ITEMS[chosen];
  const close = element("button", { type: "button", ariaLabel: "Close" }, "×");
  close.addEventListener("click", () => choose(-1));
  const list = element("dl", {}, ...item.rows.flatMap(([term, text]) => [element("dt", {}, term), element("dd", {}, text)]));
  const edit = item.edit ? [element("div", {}, element("p", { className: "muted" }, "Edit"), element("pre", { id: "edit", tabIndex: 0 }, item.edit))] : [];
  panel.replaceChildren(close, element("h3", {}, element("span", { className: "mono" }, item.name)), element("div", { className: "cols" }, list, ...edit));
  panel.scrollTop = 0;
}

function enter(node) { // one stop for the Tab key in each figure
  for (const one of node.ownerSVGElement.querySelectorAll(".pick")) one.setAttribute("tabindex", one === node ? "0" : "-1");
}

for (const figure of document.querySelectorAll(".figure")) {
  const inside = [...figure.querySelectorAll(".pick")];
  if (inside.length) enter(inside[0]);
  figure.addEventListener("click", (event) => {
    const mark = event.target.closest(".pick");
    if (mark) { enter(mark); choose(+mark.dataset.i); }
  });
  figure.addEventListener("keydown", (event) => {
    const mark = event.target.closest(".pick");
    if (!mark || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = inside.indexOf(mark);
    const parent = ITEMS[+mark.dataset.i].parent;
    const to = { ArrowRight: inside[at + 1], ArrowLeft: inside[at - 1], Home: inside[0], End: inside.at(-1), Enter: mark, " ": mark,
      ArrowUp: inside.find((one) => +one.dataset.i === parent) }[event.key];
    if (event.key === "Escape") choose(-1);
    else if (!to) return;
    else { enter(to); to.focus(); choose(+to.dataset.i); }
    event.preventDefault();
  });
}

// The timeline is a page of its own in a frame; it takes the height that it needs.
for (const frame of document.querySelectorAll("iframe.embedded")) {
  const fit = () => {
    const inner = frame.contentDocument?.documentElement;
    if (inner) frame.style.height = `${Math.min(inner.querySelector("body").scrollHeight + 4, 6000)}px`;
  };
  const watch = () => {
    const body = frame.contentDocument?.body;
    if (!body) return;
    fit();
    new ResizeObserver(fit).observe(body);
  };
  frame.addEventListener("load", watch);
  if (frame.contentDocument?.readyState === "complete") watch();
}
