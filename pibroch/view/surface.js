// Drawing surfaces: the same calls paint a canvas or write an SVG figure.
// A style is {fill, ink, texture, stroke, dash, alpha}; textures tell kinds apart without colour.

const MONO = 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';
const SANS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';
const TILE = 6;
const TEXTURES = { // one tile, as an SVG path and how it is painted
  diagonal: ["M-1 1L1 -1M0 6L6 0M5 7L7 5", "stroke"],
  back: ["M-1 5L1 7M0 0L6 6M5 -1L7 1", "stroke"],
  cross: ["M0 0L6 6M0 6L6 0", "stroke"],
  vertical: ["M3 0V6", "stroke"],
  dots: ["M1.5 0.5a1 1 0 1 0 .01 0M4.5 3.5a1 1 0 1 0 .01 0", "fill"],
};
const OP_TEXTURE = { F: "", B: "", BI: "diagonal", BW: "dots", UPDATE: "cross", REDUCE: "vertical", SEND: "", RECV: "back" };
const CAUSE_TEXTURE = { "warm-up": "", receive: "diagonal", transfer: "", reduction: "vertical", dispatch: "dots", drain: "" };

function readTheme() {
  const css = getComputedStyle(document.documentElement);
  const names = ["paper", "raised", "ink", "muted", "line", "grid", "accent", "task-ink", "task-line", "F", "B", "BI", "BW",
    "UPDATE", "REDUCE", "COMM-F", "COMM-B", "warm-up", "receive", "transfer", "reduction", "dispatch", "drain"];
  return Object.fromEntries(names.map((name) => [name, css.getPropertyValue("--" + name).trim()]));
}

function taskStyle(theme, op, payload, shade) {
  const comm = op === "SEND" || op === "RECV";
  const fill = comm ? theme["COMM-" + payload] || theme["COMM-F"] : theme[op];
  return { fill: shade ? mix(fill, theme.paper, shade) : fill, texture: OP_TEXTURE[op], ink: theme["task-ink"] };
}

const mixed = new Map();
function mix(one, two, part) {
  const key = one + two + part;
  if (!mixed.has(key)) {
    const [a, b] = [one, two].map((c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16)));
    mixed.set(key, "#" + a.map((v, i) => Math.round(v + (b[i] - v) * part).toString(16).padStart(2, "0")).join(""));
  }
  return mixed.get(key);
}

class CanvasSurface {
  constructor(canvas, width, height, scale) {
    this.context = canvas.getContext("2d");
    this.scale = scale;
    const [w, h] = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
    if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.patterns = new Map();
    this.widths = new Map();
  }
  pattern(texture, ink, strength) {
    const key = texture + ink + strength;
    if (!this.patterns.has(key)) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = Math.max(1, Math.round(TILE * this.scale));
      const context = tile.getContext("2d");
      context.scale(tile.width / TILE, tile.width / TILE);
      const [path, how] = TEXTURES[texture];
      context.strokeStyle = context.fillStyle = ink;
      context.lineWidth = 0.9;
      context.globalAlpha = strength;
      context[how](new Path2D(path));
      const pattern = this.context.createPattern(tile, "repeat");
      pattern.setTransform(new DOMMatrix().scale(TILE / tile.width));
      this.patterns.set(key, pattern);
    }
    return this.patterns.get(key);
  }
  rect(x, y, w, h, { fill, texture, ink, stroke, dash, alpha = 1, weight = 1, strength = 0.34 }) {
    const c = this.context;
    c.globalAlpha = alpha;
    if (fill) { c.fillStyle = fill; c.fillRect(x, y, w, h); }
    if (texture && w > 3) {
      c.fillStyle = this.pattern(texture, ink, strength);
      c.fillRect(x, y, w, h);
    }
    if (stroke) {
      c.strokeStyle = stroke; c.lineWidth = weight; c.setLineDash(dash || []);
      c.strokeRect(x + weight / 2, y + weight / 2, Math.max(0, w - weight), Math.max(0, h - weight));
    }
    c.globalAlpha = 1;
  }
  text(x, y, text, { fill, size = 12, bold = 400, align = "left", mono = false, alpha = 1 }) {
    const c = this.context;
    c.globalAlpha = alpha;
    c.font = `${bold} ${size}px ${mono ? MONO : SANS}`;
    c.textAlign = align; c.textBaseline = "middle"; c.fillStyle = fill;
    c.fillText(text, x, y + 0.5);
    c.globalAlpha = 1;
  }
  measure(text, size, bold, mono) {
    const key = size + "|" + bold + mono + text;
    if (!this.widths.has(key)) {
      this.context.font = `${bold} ${size}px ${mono ? MONO : SANS}`;
      this.widths.set(key, this.context.measureText(text).width);
    }
    return this.widths.get(key);
  }
  path(data, { stroke, weight = 1, dash, fill, alpha = 1 }) {
    const c = this.context, path = new Path2D(data);
    c.globalAlpha = alpha;
    if (fill) { c.fillStyle = fill; c.fill(path); }
    if (stroke) { c.strokeStyle = stroke; c.lineWidth = weight; c.setLineDash(dash || []); c.stroke(path); }
    c.globalAlpha = 1;
  }
  clip(x, y, w, h, draw) {
    const c = this.context;
    c.save(); c.beginPath(); c.rect(x, y, w, h); c.clip(); draw(); c.restore();
  }
}

class SvgSurface {
  constructor(width, height, meter) {
    this.width = width; this.height = height; this.meter = meter;
    this.parts = []; this.defs = new Map();
  }
  static escape(text) { return String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`); }
  rect(x, y, w, h, { fill, texture, ink, stroke, dash, alpha = 1, weight = 1, strength = 0.34 }) {
    const box = `x="${round(x)}" y="${round(y)}" width="${round(w)}" height="${round(h)}"`;
    const line = stroke ? ` stroke="${stroke}" stroke-width="${weight}"${dash ? ` stroke-dasharray="${dash}"` : ""}` : "";
    this.parts.push(`<rect ${box} fill="${fill || "none"}"${line} opacity="${alpha}"/>`);
    if (texture && w > 3) {
      const id = `t-${texture}-${ink.slice(1)}`, [path, how] = TEXTURES[texture];
      this.defs.set(id, `<pattern id="${id}" width="${TILE}" height="${TILE}" patternUnits="userSpaceOnUse"><path d="${path}" ${
        how === "fill" ? `fill="${ink}"` : `fill="none" stroke="${ink}" stroke-width=".9"`}/></pattern>`);
      this.parts.push(`<rect ${box} fill="url(#${id})" opacity="${alpha * strength}"/>`);
    }
  }
  text(x, y, text, { fill, size = 12, bold = 400, align = "left", mono = false, alpha = 1 }) {
    const anchor = { left: "start", center: "middle", right: "end" }[align];
    const font = SvgSurface.escape(mono ? MONO : SANS);
    this.parts.push(`<text x="${round(x)}" y="${round(y + size * 0.36)}" font-family="${font}" font-size="${size}" font-weight="${bold}"` +
      ` text-anchor="${anchor}" fill="${fill}" opacity="${alpha}">${SvgSurface.escape(text)}</text>`);
  }
  measure(...given) { return this.meter.measure(...given); }
  path(data, { stroke = "none", weight = 1, dash, fill = "none", alpha = 1 }) {
    this.parts.push(`<path d="${data}" fill="${fill}" stroke="${stroke}" stroke-width="${weight}" stroke-dasharray="${dash || "none"}" opacity="${alpha}"/>`);
  }
  clip(x, y, w, h, draw) {
    const id = `c${this.defs.size}`;
    this.defs.set(id, `<clipPath id="${id}"><rect x="${x}" y="${y}" width="${w}" height="${h}"/></clipPath>`);
    this.parts.push(`<g clip-path="url(#${id})">`); draw(); this.parts.push("</g>");
  }
  toString() {
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}">` +
      `<defs>${[...this.defs.values()].join("")}</defs>${this.parts.join("")}</svg>`;
  }
}

function round(value) { return Math.round(value * 100) / 100; }
