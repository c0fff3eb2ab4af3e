// The page as a whole: panes, tools, search, the state in the address.

// Results of a search that are listed.
const LISTED = 30;

/** The element with an identifier. @returns {any} */
const $ = (/** @type {string} */ id) => document.getElementById(id);

class App {
  constructor(/** @type {any} */ data) {
    this.data = data;
    this.overlays = overlays(data);
    this.state = { by: "none", names: false, as: "whole", much: 0 };
    /** @type {Map<number, Model>} */ this.models = new Map();
    /** @type {Canvas[]} */ this.panes = [];
    /** @type {Record<string, () => void>} */ this.actions = {};
    /** @type {Comparison|null} of the panes; null: there is one only */ this.comparison = null;
    this.panel = new Panel($("panel"), this);
    this.quiet = true;
    $("title").textContent = data.title;
    this.tools();
    this.restore();
    window.addEventListener("hashchange", () => {
      if (location.hash !== this.written) this.restore();
    });
    // A frame within another page gets its size late: until somebody does something, all fits anew.
    let touched = false;
    for (const act of ["pointerdown", "keydown", "wheel"]) window.addEventListener(act, () => (touched = true), { capture: true, once: true, passive: true });
    // An observer is told of every size; the event "resize" of a hidden frame may not come.
    const size = () => `${document.body.clientWidth} ${document.body.clientHeight}`;
    let fitted = size();
    new ResizeObserver(() => {
      if (!document.body.clientWidth || size() === fitted) return;
      fitted = size();
      if (!touched) this.restore();
      else for (const pane of this.panes) if (pane.fitted) pane.fit(false);
    }).observe(document.body);
  }

  model(/** @type {number} */ i) {
    let model = this.models.get(i);
    if (!model) this.models.set(i, (model = new Model(this.data.graphs[i], i)));
    return model;
  }

  tools() {
    const graphs = this.data.graphs.map((/** @type {any} */ g, /** @type {number} */ i) => h("option", { value: i }, g.name));
    $("graph").append(...graphs);
    $("by").append(h("option", { value: "none" }, "nothing"), ...Object.entries(this.overlays).map(([key, { name }]) => h("option", { value: key }, name)));
    for (const id of ["graph", "beside"]) $(id).closest("label").hidden = this.data.graphs.length < 2;
    const shown = () => this.panes.map((pane) => pane.model.index);
    // A graph that stands beside the first one takes its place; another one replaces it.
    $("graph").addEventListener("change", () => {
      const [chosen, row] = [Number($("graph").value), shown()];
      this.arrange([chosen, ...(row.includes(chosen) ? row : row.slice(1)).filter((i) => i !== chosen)]);
    });
    $("beside").addEventListener("change", () => this.arrange([...shown(), Number($("beside").value)]));
    $("by").addEventListener("change", () => this.tint($("by").value));
    $("round").addEventListener("input", () => this.turn(Number($("round").value)));
    const several = choices(this.data.graphs);
    $("as").append(...several.map(([key, text]) => h("option", { value: key }, text)));
    $("as").closest("label").hidden = several.length < 2;
    $("as").addEventListener("change", () => this.shape($("as").value));
    $("much").addEventListener("input", () => this.shape(this.state.as, Number($("much").value)));
    this.actions = { fit: () => this.fit(), in: () => this.panes[0].zoom(1.25), out: () => this.panes[0].zoom(0.8),
      more: () => this.panes.forEach((p) => this.deeper(p)), less: () => this.panes.forEach((p) => this.closed(p)), names: () => this.name(),
      svg: () => saveAs(this.panes[0], "svg"), png: () => saveAs(this.panes[0], "png"), help: () => $("helping").showModal() };
    for (const [id, act] of Object.entries(this.actions)) $(id).addEventListener("click", act);
    Object.assign(this.actions, { back: () => this.turn(this.stops().at - 1), on: () => this.turn(this.stops().at + 1) });
    /** @type {Record<string, string>} */
    const keys = { f: "fit", "+": "in", "=": "in", "-": "out", o: "more", c: "less", m: "names", ",": "back", ".": "on", "?": "help" };
    for (const on of [true, false]) window.addEventListener(on ? "beforeprint" : "afterprint", () => this.panes.forEach((pane) => pane.print(on)));
    document.addEventListener("keydown", (e) => {
      const writing = e.target instanceof HTMLInputElement || e.target instanceof HTMLSelectElement;
      if (e.key === "Escape") this.cancel();
      else if (!writing && !e.ctrlKey && !e.metaKey && !e.altKey) {
        if (e.key === "/") {
          e.preventDefault();
          $("search").focus();
        } else if (keys[e.key]) this.actions[keys[e.key]]();
      }
    });
    this.seek();
  }

  /** Show these graphs, one pane each; all are compared with the first one. */
  arrange(/** @type {number[]} */ wanted) {
    $("panes").replaceChildren();
    this.panes = wanted.map((i) => {
      const { name } = this.data.graphs[i];
      const area = h("div", { class: "area" });
      const without = h("button", { "aria-label": `Remove ${name}`, onclick: () => this.arrange(wanted.filter((one) => one !== i)) }, "×");
      $("panes").append(h("section", { class: "pane", "aria-label": name }, wanted.length > 1 ? h("h2", { class: "which" }, name, without) : null, area));
      return new Canvas(this.model(i), area, this);
    });
    for (const pane of this.panes) pane.small = chosen(pane.model.data, this.state.as, this.state.much);
    this.comparison = wanted.length > 1 ? new Comparison(this.data.pairs, this.panes) : null;
    $("graph").value = String(wanted[0]);
    const others = this.data.graphs.map((/** @type {any} */ g, /** @type {number} */ i) => wanted.includes(i) ? "" : h("option", { value: i }, g.name));
    $("beside").replaceChildren(h("option", { value: "" }, "add a graph"), ...others);
    $("beside").disabled = wanted.length === others.length;
    this.legend(true); // what opens depends on the room that it leaves
    this.panes.forEach((pane) => pane.settle());
    this.step(this.panes[0]);
    this.select(this.panes[0], this.panes[0].model.root);
    this.panes.forEach((pane) => pane.fit(false)); // in the room that panel and legend leave
  }

  /** The scale at which a pane shows all: one for panes whose rows are level. */
  scale(/** @type {Canvas} */ canvas) {
    return canvas.tops ? Math.min(...this.panes.map((pane) => pane.scale())) : canvas.scale();
  }

  /**
   * Rows of what corresponds begin at one height, where all panes have a single column.
   * 1. Rows as each pane would have them, and pairs of rows with counterparts, in the order of both.
   * 2. A row begins below the one before it, and not above its counterpart, until nothing moves.
   * @returns {Canvas[]} the panes whose rows move
   */
  level() {
    const { panes, comparison } = this;
    if (!comparison) return [];
    const before = panes.map((pane) => ({ tops: String(pane.tops), layout: pane.model.root.layout }));
    const bands = panes.map((pane) => {
      pane.tops = null;
      pane.model.root.layout = null;
      return pane.layout(pane.model.root).inside;
    });
    if (bands.every((one) => one.columns === 1) && !comparison.unrelated) {
      const rowOf = (/** @type {number} */ pane, /** @type {Item|null} */ item) => {
        for (let at = item; at; at = at.parent) {
          const child = panes[pane].model.root.layout.children.indexOf(at);
          if (child >= 0) return bands[pane].spots[child].layer;
        }
        return -1;
      };
      const tops = bands.map((one) => one.bands.map((/** @type {any} */ b) => b.top));
      const pairs = panes.map((pane, k) => {
        /** @type {Array<[number, number]>} */ const found = [];
        const children = k ? panes[0].model.root.layout.children : [];
        const rows = children.map((/** @type {Item} */ child) => [rowOf(0, child), rowOf(k, comparison.counterpart(panes[0], child, pane))]);
        for (const [a, b] of rows.sort((/** @type {number[]} */ x, /** @type {number[]} */ y) => x[0] - y[0])) {
          const last = found[found.length - 1] || [-1, -1];
          if (b > last[1] && a > last[0]) found.push([a, b]);
        }
        return found;
      });
      for (let moved = true; moved;) {
        moved = false;
        const raise = (/** @type {number} */ k, /** @type {number} */ row, /** @type {number} */ y) => {
          if (y > tops[k][row] + 0.01) {
            tops[k][row] = y;
            moved = true;
          }
        };
        bands.forEach((one, k) => {
          for (let r = 1; r < tops[k].length; r++) raise(k, r, tops[k][r - 1] + one.bands[r].top - one.bands[r - 1].top);
          for (const [a, b] of pairs[k]) {
            raise(k, b, tops[0][a]);
            raise(0, a, tops[k][b]);
          }
        });
      }
      panes.forEach((pane, k) => (pane.tops = tops[k]));
    }
    return panes.filter((pane, k) => {
      const same = String(pane.tops) === before[k].tops;
      pane.model.root.layout = same ? before[k].layout : null;
      pane.layout(pane.model.root);
      return !same;
    });
  }

  /** The colour of an item; empty for its own. */
  colour(/** @type {Canvas} */ canvas, /** @type {Item} */ item) {
    const overlay = this.overlays[this.state.by];
    if (canvas.opened(item) || item.kind === "graph") return ""; // what is open shows its parts
    if (overlay?.kind) return this.data.families[overlay.kind(canvas.model, item)] || "";
    const at = overlay && item.kind !== "input" && item.kind !== "output" ? overlay.at(canvas.model, item, this.kind(canvas, overlay)) : null;
    return at === null ? "" : blend(this.data.scale, at);
  }

  /** The kind of client that a pane shows, if the colours have figures of it alone; empty: they are of all. @returns {string} */
  kind(/** @type {Canvas} */ canvas, /** @type {Overlay} */ overlay) {
    const name = this.state.as.startsWith("client") ? canvas.small?.name : "";
    return name && overlay.of?.(canvas.model, name) ? name : "";
  }

  tint(/** @type {string} */ by) {
    this.state.by = by;
    $("by").value = by;
    this.panes.forEach((pane) => pane.paint());
    const room = $("legend").offsetHeight;
    this.legend();
    this.refit(room);
    this.panel.turn();
    this.write();
  }

  /** Fit panes that nobody has moved where the legend takes more or less room than before. */
  refit(/** @type {number} */ room) {
    if ($("legend").offsetHeight !== room) for (const pane of this.panes) if (pane.fitted) pane.fit(false);
  }

  /** What the colours mean: one scale, or the kinds of operator in sight; all kinds while nothing is drawn yet. */
  legend(all = false) {
    const overlay = this.overlays[this.state.by];
    const { numbers, at } = this.stops();
    $("key").hidden = !overlay;
    $("rounds").hidden = !numbers.length;
    Object.assign($("round"), { max: numbers.length - 1, value: at });
    $("told").textContent = `${numbers[at]} of ${numbers[numbers.length - 1]}`;
    $("track").replaceChildren(...tested(this.data.graphs, numbers[at]));
    $("round").setAttribute("aria-valuetext", `round ${$("told").textContent}`);
    $("marks").replaceChildren(...this.comparison ? this.comparison.legend() : []);
    $("marks").hidden = !$("marks").children.length;
    if (!overlay) return;
    if (overlay.named) {
      const used = new Set(this.panes.flatMap((pane) => all ? pane.model.data.kinds.map((/** @type {any} */ kind) => kind[5])
        : pane.visible().map((item) => overlay.kind?.(pane.model, item))));
      const dashed = document.querySelector(".edge.quiet, .item.aside");
      $("key").replaceChildren(...Object.entries(overlay.named).filter(([name]) => used.has(name)).map(([name, colour]) =>
        h("span", { class: "swatch" }, h("i", { style: `background: ${colour}` }), name)),
        ...dashed ? [h("span", { class: "swatch" }, h("i", { class: "dashed" }), "mask, or only in training")] : []);
      return;
    }
    const pane = this.panes.find((one) => one.small);
    const alone = pane && this.kind(pane, overlay);
    const client = this.state.as.startsWith("client") && pane?.small?.name;
    $("key").replaceChildren(h("span", {}, overlay.name, alone ? [" of ", h("strong", {}, alone)]
      : client && this.byRound() ? h("strong", {}, `, of all clients and not of ${client} alone`) : null),
    ramp(this.data.scale, overlay.ticks), h("span", { class: "means" }, alone ? SIDES : overlay.means));
  }

  stops() {
    return stops(this.data.graphs.find((/** @type {any} */ g) => g.rounds)?.rounds);
  }

  /** Whether the colours are of a round. */
  byRound() {
    return ["norm", "coverage"].includes(this.state.by);
  }

  /** Show another round, in its colours; the last one is shown as such, so that a run that goes on moves it. */
  turn(/** @type {number} */ at) {
    const { numbers } = this.stops();
    if (!numbers.length) return;
    slide.until = at < numbers.length - 1 ? numbers[Math.max(at, 0)] : Infinity;
    this.tint(this.byRound() ? this.state.by : "norm");
  }

  /** Show a submodel in every pane whose graph has it. */
  shape(/** @type {string} */ as, much = this.state.as === as ? this.state.much : 0) {
    const { graphs } = this.data;
    const most = as === "share" || as === "macs" ? 100 : 0;
    Object.assign(this.state, { as, much: most ? Math.min(Math.max(much || Math.ceil(most / 2), 1), most) : 0 });
    $("as").value = as;
    const room = $("legend").offsetHeight;
    $("much").hidden = !most;
    $("submodel").hidden = as === "whole";
    Object.assign($("much"), { max: most, value: this.state.much });
    for (const pane of this.panes) {
      pane.small = chosen(pane.model.data, as, this.state.much);
      pane.paint();
    }
    const pane = this.panes.find((one) => one.small);
    $("left").textContent = pane ? `${as.startsWith("client") ? "" : `${pane.small.name}: `}${spent(pane.model.data.totals, pane.small)}` : "";
    $("much").setAttribute("aria-valuetext", $("left").textContent);
    this.legend();
    this.refit(room);
    const first = this.panes[0];
    const item = first && first.model.items.get(first.selected);
    if (item) this.panel.show(first, item, false);
    this.write();
  }

  /** Items of the other panes that correspond to one. */
  across(/** @type {Canvas} */ canvas, /** @type {Item} */ item) {
    return this.comparison ? this.comparison.across(canvas, item) : [];
  }

  /** Open and close in the other panes what is open and closed in this one. */
  step(/** @type {Canvas} */ canvas) {
    const row = canvas.visible().filter((item) => item.make);
    for (const item of row.sort((a, b) => Number(canvas.opened(a)) - Number(canvas.opened(b)))) {
      for (const [pane, one] of this.across(canvas, item)) {
        if (!canvas.opened(item)) pane.open.delete(one.id);
        else for (let at = /** @type {Item|null} */ (one); at; at = at.parent) pane.open.add(at.id);
      }
    }
    for (const pane of this.panes) if (pane !== canvas) pane.fresh();
  }

  select(/** @type {Canvas} */ canvas, /** @type {Item} */ item) {
    const room = canvas.host.clientHeight;
    canvas.focused = item.id;
    this.panel.show(canvas, item);
    document.body.classList.toggle("detailed", item.kind !== "graph");
    this.crumbs(canvas, item);
    const less = room !== canvas.host.clientHeight; // on a telephone the panel takes some
    const partners = new Map(this.across(canvas, item)).set(canvas, item);
    for (const pane of this.panes) {
      const one = item.kind === "graph" && pane !== canvas ? undefined : partners.get(pane);
      pane.selected = one ? one.id : "";
      if (less && pane.fitted) pane.fit(false);
      if (one && (less || pane !== canvas)) pane.reveal(one, false);
      pane.mark();
    }
    this.legend();
    this.write();
  }

  toggle(/** @type {Canvas} */ canvas, /** @type {Item} */ item) {
    if (!item.make) return;
    const { fitted } = canvas;
    canvas.toggle(item);
    for (const [pane, one] of this.across(canvas, item)) {
      for (let at = one.parent; at; at = at.parent) pane.open.add(at.id);
      pane.stale(one);
      pane.toggle(one, canvas.opened(item));
    }
    this.legend();
    canvas.focused = item.id;
    canvas.mark();
    // Nothing that was in sight slips under the panel.
    const [low, high] = [canvas.at.x, canvas.at.x + canvas.at.k * canvas.layout(canvas.model.root).w];
    if (fitted && (low < 0 || high > canvas.host.clientWidth)) {
      this.panes.forEach((pane) => pane.fit(false));
      canvas.show(item);
    }
    canvas.fitted = fitted;
    const g = canvas.find(item.id);
    if (g && document.activeElement && document.activeElement !== $("search")) g.focus({ preventScroll: true });
    if (canvas.selected === item.id) this.panel.show(canvas, item);
    this.write();
  }

  /** Show every repetition of a fold. */
  unfold(/** @type {Canvas} */ canvas, /** @type {Item} */ item) {
    for (const [pane, { fold }] of [.../** @type {Array<[Canvas, Item]>} */ ([[canvas, item]]), ...this.across(canvas, item)]) {
      if (fold < 0) continue;
      const { model } = pane;
      model.unfolded.add(fold);
      model.again();
      pane.open.add(`s${model.sectionOf[model.data.folds[fold][0]]}`);
      pane.fresh();
    }
    this.visit(canvas, /** @type {Item} */ (canvas.model.find(`b${canvas.model.data.folds[item.fold][0]}`)));
  }

  /** Open the way to an item, select it and bring it into sight. */
  visit(/** @type {Canvas} */ canvas, /** @type {Item} */ item) {
    canvas.host.scrollIntoView({ block: "nearest", inline: "nearest" });
    canvas.reveal(item);
    this.step(canvas);
    this.select(canvas, item);
  }

  crumbs(/** @type {Canvas} */ canvas, /** @type {Item} */ item) {
    const path = [];
    for (let at = /** @type {Item|null} */ (item); at; at = at.parent) path.unshift(at);
    $("crumbs").replaceChildren(...path.map((one, i) => h("button",
      { class: "link", "aria-current": i === path.length - 1 ? "location" : undefined, onclick: () => this.visit(canvas, one) }, one.name)));
  }

  /** Open what is closed in the last row, or close all. */
  deeper(/** @type {Canvas} */ pane) {
    const closed = pane.visible().filter((item) => item.make && !pane.opened(item));
    const depth = (/** @type {Item} */ item) => ["section", "fold", "block", "box"].indexOf(item.kind);
    const least = Math.min(...closed.map(depth));
    for (const item of closed) if (depth(item) === least) pane.open.add(item.id);
    pane.fresh();
    this.legend();
    pane.fit(false);
    this.write();
  }

  closed(/** @type {Canvas} */ pane) {
    pane.open = new Set(["root"]);
    if (pane.model.unfolded.size) {
      pane.model.unfolded.clear();
      pane.model.again();
    }
    pane.fresh();
    this.legend();
    pane.fit(false);
    this.write();
  }

  fit() {
    this.panes.forEach((pane) => pane.fit());
    this.write();
  }

  name() {
    this.state.names = !this.state.names;
    $("names").setAttribute("aria-pressed", String(this.state.names));
    this.panes.forEach((pane) => pane.fresh());
    this.write();
  }

  cancel() {
    $("search").blur();
    if (!$("results").hidden || $("search").value) {
      $("search").value = "";
      this.found([]);
    } else if (this.panes.length) this.select(this.panes[0], this.panes[0].model.root);
  }

  /** Search: names, module names, operators, shapes, axes; arrows and Enter choose. */
  seek() {
    const input = $("search");
    let at = -1;
    const mark = () => [...$("results").children].forEach((row, i) => row.setAttribute("aria-selected", String(i === at)));
    input.addEventListener("input", () => {
      at = -1;
      const word = input.value.trim().toLowerCase();
      const rows = this.matches(word);
      this.found(rows);
      if (word && !rows.length) {
        $("results").replaceChildren(h("li", { "aria-disabled": "true", role: "option" }, "nothing is called that"));
        $("results").hidden = false;
      }
    });
    input.addEventListener("keydown", (/** @type {KeyboardEvent} */ e) => {
      const rows = $("results").children;
      if (e.key === "ArrowDown" || e.key === "ArrowUp") {
        e.preventDefault();
        at = Math.max(0, Math.min(rows.length - 1, at + (e.key === "ArrowDown" ? 1 : -1)));
        mark();
        if (rows[at]) {
          input.setAttribute("aria-activedescendant", rows[at].id);
          rows[at].scrollIntoView({ block: "nearest" });
        }
      } else if (e.key === "Enter" && rows.length) rows[Math.max(at, 0)].click();
    });
  }

  /** @returns {Array<{text: string, note: string, go: () => void}>} */
  matches(/** @type {string} */ word) {
    const pane = this.panes[0];
    if (!word || !pane) return [];
    const { model } = pane;
    const { data } = model;
    /** @type {any[]} */ const found = [];
    const has = (/** @type {string} */ text) => text.toLowerCase().includes(word);
    const add = (/** @type {string} */ text, /** @type {string} */ note, /** @type {() => Item|null} */ item) => {
      if (found.length < LISTED) found.push({ text, note, go: () => {
        const one = item();
        if (one) this.visit(pane, one);
      } });
    };
    data.sections.forEach((/** @type {any} */ s, /** @type {number} */ i) => has(s[0]) && add(s[0], "section", () => model.find(`s${i}`)));
    data.blocks.forEach((/** @type {any} */ b, /** @type {number} */ i) => has(b[0]) && add(b[0], `block, ${b[1]}`, () => model.holder(model.blockOps[i][0], "block")));
    data.operators.name.forEach((/** @type {string} */ name, /** @type {number} */ o) => {
      if (found.length >= LISTED) return;
      const [op, label, flow, shapes] = data.kinds[data.operators.kind[o]];
      const place = data.places[data.operators.place[o]][0];
      if ([name, place, op, label, flow, ...shapes].some(has)) add(place ? `${place} · ${name}` : name, `${label} → ${flow}`, () => model.holder(o));
    });
    data.axes.forEach((/** @type {any} */ [name, , role, , , , , pin], /** @type {number} */ n) => {
      const state = pin ? "pinned" : "free";
      if ([name, role, state].some(has)) add(name, `axis, ${state}`, () => model.holder(model.axes.findIndex((/** @type {number[]} */ all) => all.includes(n))));
    });
    return found;
  }

  found(/** @type {Array<{text: string, note: string, go: () => void}>} */ rows) {
    const list = $("results");
    list.hidden = !rows.length;
    $("search").setAttribute("aria-expanded", String(rows.length > 0));
    $("search").removeAttribute("aria-activedescendant");
    list.replaceChildren(...rows.map((row, i) => h("li", { role: "option", id: `result${i}`, "aria-selected": "false", onclick: () => {
      this.found([]);
      row.go();
    } }, row.text, h("small", {}, row.note))));
  }

  moved(/** @type {Canvas} */ canvas, /** @type {{x: number, y: number, k: number}} */ before) {
    const { x, y, k } = canvas.at;
    for (const pane of this.panes) {
      if (pane === canvas || this.quiet) continue;
      const f = k / before.k;
      pane.go({ x: x + (pane.at.x - before.x) * f, y: y + (pane.at.y - before.y) * f, k: pane.at.k * f }, false);
    }
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.write(), 200);
  }

  /** The state in the address: it can be sent with the file. */
  write() {
    if (this.quiet || !this.panes.length) return;
    const pane = this.panes[0];
    const { x, y, k } = pane.at;
    const words = { g: this.panes.map((p) => p.model.index).join("."), open: [...pane.open].filter((id) => id !== "root").join("."),
      all: [...pane.model.unfolded].join("."), at: pane.selected, by: this.state.by, names: this.state.names ? "1" : "",
      round: Number.isFinite(slide.until) ? slide.until : "",
      as: this.state.as === "whole" ? "" : this.state.as, much: this.state.much || "",
      view: `${Math.round(x)},${Math.round(y)},${k.toFixed(3)}` };
    const hash = `#${Object.entries(words).filter(([key, v]) => v || key === "open").map(([key, v]) => `${key}=${v}`).join("&")}`;
    this.written = hash;
    if (location.protocol !== "about:") history.replaceState(null, "", hash); // inside another page
  }

  /** The state that the address tells; what it does not know is left out. */
  restore() {
    this.quiet = true;
    const told = new URLSearchParams(location.hash.slice(1));
    const all = this.data.graphs.map((/** @type {any} */ _, /** @type {number} */ i) => i);
    const row = [...new Set((told.get("g") || "").split(".").filter(Boolean).map(Number))].filter((i) => all.includes(i));
    const graphs = row.length ? row : this.data.start;
    const by = told.get("by") || "";
    const first = Object.keys(this.data.overlays)[0] || (this.overlays.weights ? "weights" : "kinds");
    this.state.by = by === "none" || Object.hasOwn(this.overlays, by) ? by : first;
    this.state.names = told.get("names") === "1";
    slide.until = Number(told.get("round")) || Infinity;
    $("by").value = this.state.by;
    $("names").setAttribute("aria-pressed", String(this.state.names));
    this.arrange(graphs);
    const pane = this.panes[0];
    if (told.has("open") || told.has("all")) {
      for (const fold of (told.get("all") || "").split(".").filter(Boolean)) {
        const item = pane.model.find(`f${fold}`);
        if (item) this.unfold(pane, item);
      }
      pane.open = new Set(["root", ...(told.get("open") || "").split(".").filter(Boolean)]);
      pane.fresh();
      this.step(pane);
    }
    const as = told.get("as") || "whole";
    this.shape(choices(this.data.graphs).some(([key]) => key === as) ? as : "whole", Number(told.get("much")) || 0);
    const item = pane.model.find(told.get("at") || "root");
    if (item) this.select(pane, item);
    const [x, y, k] = (told.get("view") || "").split(",").map(Number);
    if (k > 0 && Number.isFinite(x) && Number.isFinite(y)) pane.go({ x, y, k });
    this.quiet = false;
  }
}

/** @type {any} */ (window).unpack("data").then((/** @type {string} */ text) => {
  const app = new App(JSON.parse(text));
  Object.assign(window, { archgraph: { data: app.data, app, changed } });
  document.body.dataset.ready = String(Math.round(performance.now()));
});
