// One picture of a graph: items as SVG, what is open, pan and zoom.

const LINE = 17;
// How far the frames behind an item that stands for several look out.
const STACK = 8;
const SVG = "http://www.w3.org/2000/svg";
// Boxes that are opened at first, and the scale at which their words can be read.
const FEW = 80;
const READABLE = 0.85;
// At first the costliest block may be opened at a smaller one; blocks of a kind with a smaller share of the MACs stay closed.
const [TIGHT, SLIGHT] = [0.6, 0.05];
// From this share of the readable scale on, the first look is at the whole picture.
const NEARLY = 0.78;
const ZOOM = { least: 0.03, most: 3 };

/** An element of the picture; attributes that are undefined are skipped. @returns {any} */
function svg(/** @type {string} */ tag, /** @type {Record<string, any>} */ attributes = {}, /** @type {any[]} */ children = []) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined) element.setAttribute(key, String(value));
  element.append(...children);
  return element;
}

const pen = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
/** @type {Map<string, number>} */ const known = new Map();

/** Width of a text in the picture's type. */
function wide(/** @type {string} */ text, /** @type {boolean} */ strong) {
  const key = `${strong}${text}`;
  if (!known.has(key)) {
    pen.font = `${strong ? 600 : 400} 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif`;
    known.set(key, pen.measureText(text).width);
  }
  return known.get(key) ?? 0;
}

/** A number in few signs: 25.6M. */
function brief(/** @type {number} */ value) {
  for (const [unit, size] of /** @type {Array<[string, number]>} */ ([["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]])) {
    if (value >= size) return `${Number((value / size).toPrecision(3))}${unit}`;
  }
  return String(value);
}

/** A way through points, upright in each of them. */
function way(/** @type {Array<[number, number]>} */ [[x, y], ...points]) {
  let d = "";
  for (const [x1, y1] of points) {
    if (Math.abs(x1 - x) > 0.5) d += `C${x} ${(y + y1) / 2} ${x1} ${(y + y1) / 2} ${x1} ${y1}`;
    else if (y1 !== y) d += `V${y1}`;
    [x, y] = [x1, y1];
  }
  return d;
}

/** A way around corners. */
function rounded(/** @type {Array<[number, number]>} */ points) {
  let d = "";
  for (let i = 1; i + 1 < points.length; i++) {
    const [[x0, y0], [x, y], [x1, y1]] = points.slice(i - 1, i + 2);
    const r = Math.min(8, Math.hypot(x - x0, y - y0) / 2, Math.hypot(x1 - x, y1 - y) / 2);
    d += `L${x - Math.sign(x - x0) * r} ${y - Math.sign(y - y0) * r}Q${x} ${y} ${x + Math.sign(x1 - x) * r} ${y + Math.sign(y1 - y) * r}`;
  }
  return `${d}L${points[points.length - 1].join(" ")}`;
}

/** Whether a mark begins right of the arrow that enters an item in the middle: it is long. */
function long(/** @type {string} */ mark, /** @type {number} */ width) {
  return wide(mark, true) > width / 2 - 8;
}

/** Whether an item holds blocks. */
function framed(/** @type {Item} */ item) {
  return ["section", "fold", "block"].includes(item.kind);
}

/** The picture of one graph in one pane. */
class Canvas {
  constructor(/** @type {Model} */ model, /** @type {HTMLElement} */ host, /** @type {any} */ app) {
    this.model = model;
    this.app = app;
    this.host = host;
    /** @type {Set<string>} */ this.open = new Set(["root"]);
    this.at = { x: 0, y: 0, k: 1 };
    this.count = 0; // columns; 0: not yet known
    /** @type {number[]|null} where rows begin that are level with those of other panes */ this.tops = null;
    this.fitted = false; // all of it is shown, and nobody has moved it since
    this.selected = "root";
    this.focused = "root";
    /** @type {Submodel|null} what of it is shown; null: all */ this.small = null;
    /** @type {any[]} */ this.marked = [];
    /** @type {Item[]} */ this.drawn = [];
    this.svg = svg("svg", { role: "tree", "aria-label": `${model.data.name}: parts`, tabindex: "-1" });
    this.svg.append(svg("defs", {}, [svg("marker", { id: `arrow${model.index}`, viewBox: "0 0 8 8", refX: 7, refY: 4,
      markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" }, [svg("path", { d: "M0 0L8 4L0 8z", class: "tip" })])]));
    this.world = svg("g", { class: "world" });
    this.svg.append(this.world);
    host.append(this.svg);
    this.map = new Minimap(this);
    this.listen();
  }

  /** Lines of an item's box, module names where they are asked for. @returns {Array<[string, number]>} */
  lines(/** @type {Item} */ item) {
    const block = framed(item);
    /** @type {Array<[string, number]>} */
    const lines = block ? [[item.name, 1], .../** @type {Array<[string, number]>} */ (item.lines.map(([t]) => [t, 0]))] : [...item.lines];
    if (this.app.state.names && !block && item.operators.length) {
      const place = this.model.data.places[this.model.data.operators.place[item.operators[0]]][0];
      if (place) lines.push([place, 0]);
    }
    const size = block ? this.model.sum(item, "parameters") : 0;
    if (size) lines.push([this.parameters(item, size), 0]);
    return lines;
  }

  /** How many parameters all repetitions have, and each if they have equally many. */
  parameters(/** @type {Item} */ item, /** @type {number} */ size) {
    const each = item.operators.reduce((sum, o) => sum + this.model.data.operators.parameters[o], 0);
    return `${item.times > 1 && each * item.times === size ? `${item.times} × ${brief(each)} = ` : ""}${brief(size)} parameters`;
  }

  /** What an item is called, open and closed. */
  title(/** @type {Item} */ item) {
    const [line] = item.lines.find(([, strong]) => strong) || item.lines[0] || [item.name];
    return item.kind === "box" ? line : item.name;
  }

  opened(/** @type {Item} */ item) {
    return Boolean(item.make) && this.open.has(item.id);
  }

  /** Size and, if it is open, inside of an item; kept until something in it opens or closes. */
  layout(/** @type {Item} */ item) {
    if (item.layout) return item.layout;
    const head = (item.make ? 26 : 0) + (item.times > 1 ? 14 + wide(`×${item.times}`, true) : 0);
    if (!this.opened(item)) {
      const lines = this.lines(item);
      const widths = lines.map(([text, strong], i) => wide(text, Boolean(strong)) + (i ? 0 : head));
      item.layout = { lines, w: Math.max(56, ...widths) + 24, h: lines.length * LINE + 13 };
      return item.layout;
    }
    const children = this.model.children(item);
    item.edges = item.edges || edgesIn(this.model, item, children);
    const bare = item.kind === "graph";
    const count = this.count, first = this.arranged(item, children);
    const crossed = children.filter((child, i) => this.opened(child) && this.reordered(child, first.paths.filter((p) => p.edge.head === i)));
    if (crossed.length) this.count = count;
    const found = crossed.length ? this.arranged(item, children) : first;
    const w = Math.max(found.w, bare ? 0 : wide(this.title(item), true) + head + 10) + 2 * GAP.pad;
    item.layout = { lines: [[this.title(item), 1]], w, h: found.h + (bare ? 2 : 1) * GAP.pad + (bare ? 0 : GAP.head + 4), inside: found,
      dx: (w - found.w) / 2, dy: bare ? GAP.pad : GAP.head + 4, children };
    return item.layout;
  }

  /** Where the children of an open item stand. */
  arranged(/** @type {Item} */ item, /** @type {Item[]} */ children) {
    const sizes = children.map((child) => {
      const { inside, w, h, dx } = this.layout(child);
      // Where arrows enter and leave it, from its centre.
      const port = (/** @type {Spot|null|undefined} */ one) => (one ? one.x + dx - w / 2 : 0);
      return { w, h: h + (child.times > 1 ? STACK : 0), open: Boolean(inside), entries: (inside?.entries || []).map(port), exits: (inside?.exits || []).map(port),
        entry: port(inside?.entries[0]), exit: port(inside?.exits[0]),
        reach: long(this.said(child), w) ? 10 + wide(this.said(child), true) : 0,
        blocks: framed(child) ? this.model.blocksOf(child).length : 0, name: child.kind === "output" ? "" : child.name };
    });
    const opened = (/** @type {number} */ i) => (i >= 0 && this.opened(children[i]) ? children[i] : null);
    const edges = (item.edges || []).flatMap((edge) => ported(edge, opened(edge.tail)?.exits || new Map(), opened(edge.head)?.ports || []));
    for (const edge of edges) edge.room = edge.label && !edge.quiet ? wide(edge.label, false) + 6 : 0;
    const bare = item.kind === "graph";
    return layered(sizes, edges, (rows, most) => bare ? this.columns(rows, most) : this.folded(rows, most), bare ? this.tops : null);
  }

  /** Bring the entries of an open item into the order in which arrows come; whether they were not. */
  reordered(/** @type {Item} */ item, /** @type {Path[]} */ paths) {
    const order = [...paths].sort((a, b) => coming(a) - coming(b)).map((p) => p.edge.port ?? 0);
    const crossed = order.some((port, i) => i && order[i - 1] > port);
    if (crossed) item.ports = [...new Set([...order, ...item.ports.keys()])].map((port) => item.ports[port]);
    if (crossed) item.edges = item.layout = null;
    return crossed;
  }

  /** Draw what has changed, in other panes too where rows have to be level. */
  draw(alone = false) {
    if (!alone) for (const pane of this.app.level()) if (pane !== this) pane.draw(true);
    this.layout(this.model.root);
    this.drawn = [];
    const g = this.element(this.model.root, 1);
    if (this.world.firstChild !== g) this.world.replaceChildren(g);
    this.paint(this.drawn);
    this.mark();
    this.app.legend(); // of what is drawn now
  }

  /** The element of an item; only what its layout changes is drawn anew. */
  element(/** @type {Item} */ item, /** @type {number} */ level) {
    const layout = item.layout;
    if (item.view && item.view.layout === layout) return item.view.g;
    const view = item.view || { g: svg("g"), frame: [], lines: null, held: null, children: [] };
    const open = Boolean(layout.inside);
    const said = [layout.lines.map((/** @type {any} */ l) => l[0]).join(", "), item.times > 1 ? `${item.times} times` : ""];
    const told = { class: `item ${item.kind}${open ? " open" : ""}${item.aside ? " aside" : ""}`, role: "treeitem",
      "data-id": item.id, tabindex: view.g.getAttribute("tabindex") || -1, "aria-label": said.filter(Boolean).join(", "), "aria-level": level };
    for (const [key, value] of Object.entries(told)) {
      if (view.g.getAttribute(key) !== String(value)) view.g.setAttribute(key, String(value));
    }
    if (item.make) view.g.setAttribute("aria-expanded", String(open));
    for (const part of view.frame) part.remove();
    view.frame = item.kind === "graph" ? [] : this.frame(item, layout, open);
    view.g.prepend(...view.frame);
    if (open) this.inside(item, view, level);
    else if (view.held) [view.lines, view.held].forEach((part) => part.remove());
    view.layout = layout;
    item.view = view;
    this.drawn.push(item);
    return view.g;
  }

  /** Rectangle, words and the sign that opens. */
  frame(/** @type {Item} */ item, /** @type {any} */ layout, /** @type {boolean} */ open) {
    const round = ["input", "output"].includes(item.kind) ? layout.h / 2 : 6;
    const parts = [svg("rect", { class: "frame", width: layout.w, height: layout.h, rx: round })];
    if (item.times > 1) {
      parts.unshift(...[STACK, STACK / 2].map((d) => svg("rect", { class: "frame behind", x: d, y: d, width: layout.w, height: layout.h, rx: round })));
    }
    const middle = item.make || open ? 12 + (item.make ? 22 : 0) : layout.w / 2;
    const anchor = item.make || open ? "start" : "middle";
    layout.lines.forEach((/** @type {any} */ [text, strong], /** @type {number} */ i) => {
      const x = item.make && i && !open ? 12 : middle;
      parts.push(svg("text", { x, y: 20 + i * LINE, "text-anchor": anchor, class: strong ? "strong" : "" }, [text]));
    });
    if (item.times > 1) parts.push(svg("text", { x: layout.w - 10, y: 20, "text-anchor": "end", class: "strong times" }, [`×${item.times}`]));
    if (item.make) {
      parts.push(svg("g", { class: "toggle", "aria-hidden": "true" }, [
        svg("rect", { x: 0, y: 0, width: 32, height: 28, class: "hit" }),
        svg("rect", { x: 11, y: 8, width: 14, height: 14, rx: 3, class: "sign" }),
        svg("path", { d: open ? "M14 15h8" : "M14 15h8M18 11v8", class: "sign" })]));
    }
    return parts;
  }

  /** Arrows and children of an open item; children that stay are only moved. */
  inside(/** @type {Item} */ item, /** @type {any} */ view, /** @type {number} */ level) {
    const { inside, dx, dy, children } = item.layout;
    view.lines = view.lines || svg("g", { class: "edges", "aria-hidden": "true" });
    view.held = view.held || svg("g", { role: "group" });
    for (const part of [view.lines, view.held]) {
      part.setAttribute("transform", `translate(${dx},${dy})`);
      if (!part.parentNode) view.g.append(part);
    }
    const elements = children.map((/** @type {Item} */ child) => this.element(child, level + 1));
    if (elements.some((/** @type {any} */ g, /** @type {number} */ i) => g !== view.children[i]) || elements.length !== view.children.length) {
      view.held.replaceChildren(...elements);
      view.children = elements;
    }
    elements.forEach((/** @type {any} */ g, /** @type {number} */ i) => {
      const { x, y, w } = inside.spots[i];
      const place = `translate(${x - w / 2},${y})`;
      if (g.getAttribute("transform") !== place) g.setAttribute("transform", place);
    });
    const named = new Set();
    const drawn = inside.paths.map((/** @type {Path} */ p, /** @type {number} */ i) => this.edge(p, i, inside, item.layout, named));
    // Words above all arrows: their halo interrupts what would strike them.
    const ends = inside.words.map((/** @type {Word} */ word) => this.flow(word.x, word.y, word.side, word.text));
    view.lines.replaceChildren(...drawn.map(([line]) => line), ...drawn.flatMap(([, ...labels]) => labels), ...ends);
  }

  /** First rows of the columns in which a tall picture is shown; their number stays until all is fitted anew. */
  columns(/** @type {Array<{w: number, h: number}>} */ rows, /** @type {number} */ most) {
    const heights = rows.map((row) => row.h);
    const options = Array.from({ length: most }, (_, i) => broken(heights, i + 1));
    if (this.count) return options[Math.min(this.count, most) - 1];
    // Best is all of it in letters that can be read; then such letters and little to scroll down.
    const score = (/** @type {number[]} */ starts) => {
      const parts = starts.map((start, i) => rows.slice(start, starts[i + 1]));
      const wide = parts.reduce((sum, part) => sum + Math.max(...part.map((row) => row.w)) + GAP.column, 0);
      const tall = Math.max(...parts.map((part) => part.reduce((sum, row) => sum + row.h, 0)));
      const [across, down] = [this.host.clientWidth / wide, this.host.clientHeight / (tall + 2 * GAP.pad)];
      const whole = Math.min(1, across, down);
      if (whole >= READABLE) return 1 + whole;
      return across >= READABLE ? down : across / 10;
    };
    const best = options.reduce((one, other) => (score(other) > 1.1 * score(one) ? other : one));
    this.count = best.length;
    return best;
  }

  /** First rows of the columns of a part that no screen could show in one. */
  folded(/** @type {Array<{w: number, h: number}>} */ rows, /** @type {number} */ most) {
    const heights = rows.map((row) => row.h);
    const tall = heights.reduce((a, b) => a + b, 0) / (this.host.clientHeight / READABLE || Infinity);
    return tall > 1 ? broken(heights, Math.min(Math.ceil(tall), most)) : [0];
  }

  /** An arrow, followed by its label if it has one. @returns {any[]} */
  edge(/** @type {Path} */ path, /** @type {number} */ number, /** @type {any} */ inside, /** @type {any} */ layout, /** @type {Set<string>} */ named) {
    const { edge, from, x } = path;
    const out = edge.head >= 0 && layout.children[edge.head].kind === "output"; // results leave apart, each with its label
    const middle = leaving(path);
    const start = middle + (out && !from.open ? Math.max(-from.w / 4, Math.min(from.w / 4, x - middle)) : 0);
    const points = /** @type {Array<[number, number]>} */ (path.points.map(([a, b], i) => [i < 2 ? start : a, b]));
    // Inside an open item all begins below its title.
    if (edge.tail < 0) points[0][1] = -4;
    if (edge.head < 0) points[points.length - 1][1] = layout.h - layout.dy;
    const d = `M${points[0].join(" ")}${path.sides ? rounded(points) : way(points)}`;
    const arrow = edge.head >= 0 ? `url(#arrow${this.model.index})` : undefined;
    const line = svg("path", { d, class: edge.quiet ? "edge quiet" : "edge", "marker-end": arrow, "data-path": number });
    const value = `${edge.tail} ${edge.exit}`;
    if (!edge.label || edge.tail < 0 || (named.has(value) && !out) || edge.quiet) return [line];
    named.add(value);
    const side = (out && Math.sign(x - start)) || (path.before ? -1 : 1);
    return [line, out ? this.flow(x, path.to.y - 9, side, edge.label) : this.flow(start, inside.bands[from.layer].bottom + 15, side, edge.label)];
  }

  /** A text beside an arrow. */
  flow(/** @type {number} */ x, /** @type {number} */ y, /** @type {number} */ side, /** @type {string} */ text) {
    return svg("text", { x: x + 6 * side, y, "text-anchor": side < 0 ? "end" : undefined, class: "flow" }, [text]);
  }

  /** Colours of the overlay, of some items or of all. */
  paint(/** @type {Iterable<Item>} */ items = this.model.items.values()) {
    for (const item of items) {
      const frame = item.view && item.view.frame.find((/** @type {any} */ part) => part.matches("rect.frame:not(.behind)"));
      if (!frame) continue;
      const gone = this.small ? lacked(this.model, item, this.small) : 0;
      const colour = gone < 1 ? this.app.colour(this, item) : "";
      frame.style.fill = colour;
      item.view.g.classList.toggle("tinted", Boolean(colour));
      this.narrow(item, gone);
      this.badge(item.view.g, frame, item);
    }
    this.map.renew();
  }

  /** Show which share of an item's widths and blocks the submodel has: a bar, and a count; what is gone is empty. */
  narrow(/** @type {Item} */ item, /** @type {number} */ gone) {
    const { g, frame, layout } = item.view;
    const share = this.small && !layout.inside && gone < 1 ? narrowed(this.model, item, this.small) : 1;
    for (const bar of g.querySelectorAll(":scope > .left")) bar.remove();
    if (share < 1) g.append(...[1, share].map((part) => svg("path", { class: "left", d: `M10 ${layout.h - 3}h${part * (layout.w - 20)}` })));
    g.classList.toggle("gone", gone === 1);
    const badge = frame.find((/** @type {any} */ part) => part.matches("text.times"));
    if (badge) badge.textContent = gone && gone < 1 ? `${Math.round(item.times * (1 - gone))} of ${item.times}` : `×${item.times}`;
    const many = this.model.blocksOf(item).length;
    if (item.kind === "section" && item.fold < 0 && many > 1 && !layout.inside) {
      const last = frame.findLast((/** @type {any} */ part) => part.matches("text"));
      last.textContent = gone && gone < 1 ? `${Math.round(many * (1 - gone))} of ${many} blocks` : layout.lines[layout.lines.length - 1][0];
    }
  }

  /** How an item differs from its counterpart, in words; empty for an open one that differs inside. */
  said(/** @type {Item} */ item) {
    const { comparison } = this.app;
    return !comparison || (this.opened(item) && comparison.mark(this, item) === "inside") ? "" : comparison.said(this, item);
  }

  /** A word and a border where an item differs from its counterpart. */
  badge(/** @type {any} */ g, /** @type {any} */ frame, /** @type {Item} */ item) {
    const mark = this.app.comparison?.mark(this, item);
    g.querySelector(":scope > text.badge")?.remove();
    if (mark) g.dataset.mark = mark;
    else delete g.dataset.mark;
    const said = this.said(item);
    if (!said) return;
    // Above its right corner: below stand shapes, on either side of their arrows.
    const width = Number(frame.getAttribute("width"));
    const place = long(said, width) ? { x: width / 2 + 10, "text-anchor": "start" } : { x: width, "text-anchor": "end" };
    g.append(svg("text", { ...place, y: -4, class: "badge" }, [said]));
  }

  /** What is selected, and where the keyboard stands; only what changes is touched, which costs a layout. */
  mark() {
    const selected = this.find(this.selected);
    const focus = this.find(this.focused) || this.world.querySelector("g.item");
    for (const g of new Set([...this.marked, selected, focus].filter(Boolean))) {
      g.classList.toggle("selected", g === selected);
      if (g === selected) g.setAttribute("aria-selected", "true");
      else g.removeAttribute("aria-selected");
      const stop = g === focus ? "0" : "-1";
      if (g.getAttribute("tabindex") !== stop) g.setAttribute("tabindex", stop);
    }
    this.marked = [selected, focus].filter(Boolean);
    this.connect();
  }

  /** Colour the arrows into and out of what is selected, up to where they begin and end. */
  connect() {
    for (const line of this.world.querySelectorAll(".edge.in, .edge.out")) line.classList.remove("in", "out");
    const item = this.model.items.get(this.selected);
    const follow = (/** @type {Item} */ one, /** @type {"in"|"out"} */ way, sources = [""]) => {
      const parent = one.parent;
      if (!parent || !parent.view || !parent.view.lines || !parent.layout?.inside) return;
      const at = parent.layout.children.indexOf(one);
      /** @type {string[]} */ const beyond = [];
      parent.layout.inside.paths.forEach((/** @type {Path} */ p, /** @type {number} */ i) => {
        const { head, tail } = p.edge;
        if ((way === "in" ? head : tail) !== at || !["", ...p.edge.sources].some((source) => sources.includes(source))) return;
        parent.view.lines.querySelector(`[data-path="${i}"]`)?.classList.add(way);
        if (way === "in" ? tail < 0 : head < 0) beyond.push(...p.edge.sources);
      });
      if (beyond.length) follow(parent, way, beyond);
    };
    if (item && item.kind !== "graph" && this.find(item.id)) for (const way of /** @type {const} */ (["in", "out"])) follow(item, way);
  }

  /** The smallest item in the picture that shows an operator. @returns {Item} */
  showing(/** @type {number} */ op) {
    let shown = this.model.holder(op);
    for (let at = shown; at.parent; at = at.parent) if (!this.opened(at.parent)) shown = at.parent;
    return shown;
  }

  find(/** @type {string} */ id) {
    const item = this.model.items.get(id);
    return item && item.view && this.world.contains(item.view.g) ? item.view.g : null;
  }

  /** Forget the layout of an item and of all that hold it. */
  stale(/** @type {Item|null} */ item) {
    for (let at = item; at; at = at.parent) at.layout = null;
  }

  /** Open or close an item; it stays where it is on the screen. */
  toggle(/** @type {Item} */ item, /** @type {boolean} */ open = !this.open.has(item.id)) {
    if (!item.make || item.kind === "graph" || open === this.open.has(item.id)) return;
    const before = this.place(item);
    if (open) this.open.add(item.id);
    else this.open.delete(item.id);
    this.stale(item);
    this.draw();
    const after = this.place(item);
    // Each pane keeps the part in its place.
    if (before && after) this.move(before.x - after.x, before.y - after.y, false);
  }

  /** Upper middle of an item on the screen as drawn; null: it is not. */
  place(/** @type {Item} */ item) {
    if (!this.find(item.id) || item.kind === "graph") return null;
    const at = { x: item.view.layout.w / 2, y: 0 };
    for (let child = item; child.parent; child = child.parent) {
      const { inside, dx, dy, children } = child.parent.view.layout;
      const spotted = inside.spots[children.indexOf(child)];
      at.x += spotted.x - spotted.w / 2 + dx;
      at.y += spotted.y + dy;
    }
    return { x: this.at.x + this.at.k * at.x, y: this.at.y + this.at.k * at.y };
  }

  /**
   * Open what costs most, as far as a screen shows it in a type that can be read.
   * 1. Of the blocks of each kind (the same operators, whatever their sizes), the one with the most MACs, of equal ones the first.
   * 2. The kinds that cost most in all come first; those that cost next to nothing (slices, patch merging) stay closed.
   * 3. Where a block does not fit, the section around it may; the first may be small. Then sections, while they fit.
   */
  settle() {
    this.open = new Set(["root"]);
    this.tops = null;
    const { model } = this;
    const macs = (/** @type {number[]} */ operators) => operators.reduce((sum, o) => sum + model.data.operators.macs[o], 0);
    const kind = (/** @type {Item} */ item) => item.operators.map((o) => model.data.kinds[model.data.operators.kind[o]][0]).join();
    const opens = (/** @type {Item} */ item) => item.make && item.kind !== "box" && item.boxes.length > 1;
    const below = (/** @type {Item} */ item) => model.children(item).filter(opens).flatMap((part) => [part, ...below(part)]);
    const around = (/** @type {Item} */ item) => item.parent && item.parent.kind !== "graph" ? [...around(item.parent), item] : [item];
    const shown = (/** @type {Item} */ item) => this.opened(item) ? model.children(item).reduce((/** @type {number} */ sum, /** @type {Item} */ part) => sum + 1 + shown(part), 0) : 0;
    const tried = (/** @type {Item[]} */ items, least = READABLE) => {
      const more = items.filter((item) => !this.open.has(item.id));
      more.forEach((item) => this.open.add(item.id));
      more.forEach((item) => this.stale(item));
      this.count = 0;
      const fits = shown(model.root) <= FEW && this.scale() >= least;
      if (!fits) more.forEach((item) => this.open.delete(item.id));
      more.forEach((item) => this.stale(item));
      return fits;
    };
    /** @type {Map<string, {first: Item, most: number, all: number}>} */ const kinds = new Map();
    const all = below(model.root);
    for (const item of all.filter((one) => !below(one).length)) { // 1
      const most = macs(item.operators), known = kinds.get(kind(item)) || { first: item, most: -1, all: 0 };
      kinds.set(kind(item), { first: most > known.most ? item : known.first, most: Math.max(most, known.most), all: known.all + macs(model.every(item)) });
    }
    const costly = [...kinds.values()].filter((one) => one.all >= SLIGHT * macs(model.root.operators)).sort((x, y) => y.all - x.all); // 2
    const results = (/** @type {Item} */ item) => new Set(item.boxes.flatMap((b) => model.from[b].map(([to]) => to).filter((to) => model.data.boxes[to][0] === 2))).size;
    tried(model.children(model.root).filter((item) => opens(item) && results(item) > 1), 0);
    costly.forEach(({ first }, i) => { // 3
      const path = around(first);
      while (path.length && !tried(path, i || this.app.panes.length > 1 ? READABLE : TIGHT)) path.pop();
    });
    const sections = model.children(model.root).filter((item) => opens(item) && below(item).length);
    sections.sort((x, y) => macs(model.every(y)) - macs(model.every(x))).forEach((item) => tried([item]));
    this.fresh();
  }

  /** How much the whole picture has to shrink. */
  scale() {
    const { w, h } = this.layout(this.model.root);
    return Math.min(1.1, this.host.clientWidth / (w + 16), this.host.clientHeight / (h + 16));
  }

  /** Every item anew, in as many columns as all of them need. */
  fresh() {
    this.count = 0;
    for (const item of this.model.items.values()) item.layout = item.view = null;
    this.draw();
  }

  move(/** @type {number} */ dx, /** @type {number} */ dy, told = true) {
    this.go({ ...this.at, x: this.at.x + dx, y: this.at.y + dy }, told);
  }

  go(/** @type {{x: number, y: number, k: number}} */ at, told = true) {
    const before = this.at;
    this.at = at;
    this.fitted = false;
    this.world.setAttribute("transform", `translate(${at.x},${at.y}) scale(${at.k})`);
    this.map.renew();
    if (told) this.app.moved(this, before);
  }

  zoom(/** @type {number} */ factor, /** @type {number} */ x = this.host.clientWidth / 2, /** @type {number} */ y = this.host.clientHeight / 2) {
    const k = Math.min(ZOOM.most, Math.max(ZOOM.least, this.at.k * factor));
    const f = k / this.at.k;
    this.go({ x: x - (x - this.at.x) * f, y: y - (y - this.at.y) * f, k });
  }

  /** The whole picture; one that is too large to be read so, from its beginning at a readable scale. */
  fit(whole = true) {
    if (whole) {
      this.count = 0;
      this.model.root.layout = null;
      this.draw();
    }
    const { w, h, dx, inside } = this.layout(this.model.root);
    const { clientWidth, clientHeight } = this.host;
    const k = this.app.scale(this);
    const least = whole || k >= NEARLY * READABLE ? k : Math.max(NEARLY * READABLE, Math.min(READABLE, clientWidth / (w + 16)));
    const y = this.tops ? 8 : Math.max(8, (clientHeight - h * least) / 2);
    const room = clientWidth - w * least;
    const begin = inside.spots.length ? clientWidth / 2 - least * (dx + inside.spots[0].x) : 0;
    this.go({ x: room < 0 ? Math.min(8, Math.max(room - 8, begin)) : room / 2, y, k: least }, false);
    this.fitted = true;
  }

  print(/** @type {boolean} */ on) {
    const { w, h } = this.layout(this.model.root); // all of the picture: the browser scales it to the paper
    on ? this.svg.setAttribute("viewBox", `-8 -8 ${w + 16} ${h + 16}`) : this.svg.removeAttribute("viewBox");
    this.world.setAttribute("transform", on ? "" : `translate(${this.at.x},${this.at.y}) scale(${this.at.k})`);
  }

  /** Move so that an item can be seen. */
  show(/** @type {Item} */ item, told = true) {
    const g = this.find(item.id);
    if (!g || item.kind === "graph") return;
    const box = g.querySelector("rect.frame:not(.behind)").getBoundingClientRect();
    const host = this.host.getBoundingClientRect();
    const inside = box.left >= host.left && box.right <= host.right && box.top >= host.top && box.bottom <= host.bottom;
    if (!inside) {
      const tall = box.height > host.height;
      this.move((host.left + host.right - box.left - box.right) / 2,
        tall ? host.top + 20 - box.top : (host.top + host.bottom - box.top - box.bottom) / 2, told);
    }
  }

  /** Open whatever holds an item. */
  reveal(/** @type {Item} */ item, told = true) {
    const many = this.open.size;
    for (let at = item.parent; at; at = at.parent) this.open.add(at.id);
    if (this.open.size > many) {
      this.stale(item);
      this.draw();
    }
    this.show(item, told);
  }

  listen() {
    /** @type {Map<number, {x: number, y: number}>} */ const held = new Map();
    let moved = 0;
    const root = this.svg;
    const itemOf = (/** @type {any} */ target) => {
      const g = target.closest && target.closest("g.item");
      return g ? this.model.items.get(g.dataset.id) || null : null;
    };
    root.addEventListener("pointerdown", (/** @type {PointerEvent} */ e) => {
      held.set(e.pointerId, { x: e.clientX, y: e.clientY });
      if (held.size === 1) moved = 0;
    });
    root.addEventListener("pointermove", (/** @type {PointerEvent} */ e) => {
      const old = held.get(e.pointerId);
      if (!old) return;
      const other = [...held].find(([id]) => id !== e.pointerId);
      const host = this.host.getBoundingClientRect();
      if (other) {
        const before = Math.hypot(old.x - other[1].x, old.y - other[1].y);
        const now = Math.hypot(e.clientX - other[1].x, e.clientY - other[1].y);
        this.zoom(now / Math.max(before, 1), (e.clientX + other[1].x) / 2 - host.left, (e.clientY + other[1].y) / 2 - host.top);
      } else {
        moved += Math.abs(e.clientX - old.x) + Math.abs(e.clientY - old.y);
        if (moved > 4) {
          if (!root.hasPointerCapture(e.pointerId)) root.setPointerCapture(e.pointerId);
          this.move(e.clientX - old.x, e.clientY - old.y);
        }
      }
      held.set(e.pointerId, { x: e.clientX, y: e.clientY });
    });
    for (const end of ["pointerup", "pointercancel"]) {
      root.addEventListener(end, (/** @type {PointerEvent} */ e) => held.delete(e.pointerId));
    }
    root.addEventListener("click", (/** @type {MouseEvent} */ e) => {
      if (moved > 4) return;
      const target = /** @type {Element} */ (e.target);
      const item = itemOf(target) || this.model.root;
      if (target.closest(".toggle")) this.app.toggle(this, item);
      else this.app.select(this, item);
    });
    root.addEventListener("dblclick", (/** @type {MouseEvent} */ e) => {
      const item = itemOf(e.target);
      if (item && !(/** @type {Element} */ (e.target).closest(".toggle"))) this.app.toggle(this, item);
    });
    root.addEventListener("wheel", (/** @type {WheelEvent} */ e) => {
      e.preventDefault();
      const host = this.host.getBoundingClientRect();
      if (e.ctrlKey || e.metaKey) this.zoom(Math.exp(-e.deltaY / 300), e.clientX - host.left, e.clientY - host.top);
      else this.move(-e.deltaX, -e.deltaY);
    }, { passive: false });
    root.addEventListener("focusin", (/** @type {FocusEvent} */ e) => {
      const item = itemOf(e.target);
      if (item && item.id !== this.focused) {
        this.focused = item.id;
        this.mark();
      }
    });
    root.addEventListener("keydown", (/** @type {KeyboardEvent} */ e) => this.key(e));
  }

  /** Items that can be seen, in reading order. @returns {Item[]} */
  visible(/** @type {Item} */ item = this.model.root) {
    const inside = item.layout && item.layout.inside;
    const below = inside ? this.model.children(item).flatMap((child) => this.visible(child)) : [];
    return item.kind === "graph" ? below : [item, ...below];
  }

  /** Keys of a tree (WAI-ARIA): arrows, Home, End, Enter, Space. */
  key(/** @type {KeyboardEvent} */ e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const row = this.visible();
    const item = this.model.items.get(this.focused) || row[0];
    const at = row.indexOf(item);
    const open = this.opened(item);
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowDown: () => this.focus(row[Math.min(at + 1, row.length - 1)]),
      ArrowUp: () => this.focus(row[Math.max(at - 1, 0)]),
      ArrowRight: () => (open ? this.focus(this.model.children(item)[0]) : this.app.toggle(this, item)),
      ArrowLeft: () => (open && item.kind !== "graph" ? this.app.toggle(this, item)
        : item.parent && item.parent.kind !== "graph" ? this.focus(item.parent) : undefined),
      Home: () => this.focus(row[0]),
      End: () => this.focus(row[row.length - 1]),
      Enter: () => this.app.select(this, item),
      " ": () => this.app.toggle(this, item),
    };
    if (keys[e.key]) {
      e.preventDefault();
      keys[e.key]();
    }
  }

  focus(/** @type {Item|undefined} */ item) {
    if (!item) return;
    this.focused = item.id;
    this.mark();
    this.show(item);
    const g = this.find(item.id);
    if (g) g.focus({ preventScroll: true });
  }
}
