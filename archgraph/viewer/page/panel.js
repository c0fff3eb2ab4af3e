// What the side panel tells of an item: figures, axes, clients; nothing is set as markup.

/** An element of the page. @returns {any} */
function h(/** @type {string} */ tag, /** @type {Record<string, any>} */ attributes = {}, /** @type {any[]} */ ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== false && value !== undefined) element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** A table; numbers stand to the right. */
function table(/** @type {string} */ title, /** @type {any[]} */ heads, /** @type {any[][]} */ rows) {
  if (!rows.length) return null;
  const head = h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text)));
  const body = rows.map((row) => h("tr", {}, row.map((cell) => h("td", typeof cell === "number" ? { class: "number" } : {},
    typeof cell === "number" ? cell.toLocaleString("en") : cell))));
  return h("section", {}, h("h3", {}, title), h("div", { class: "wide" }, h("table", {}, h("thead", {}, head), h("tbody", {}, body))));
}

/** A share as the library writes it: rounding never reaches 0 % or 100 %. */
function percent(/** @type {number} */ share) {
  const text = `${Math.round(100 * share)} %`;
  if (text === "0 %" && share > 0) return "<1 %";
  return text === "100 %" && share < 1 ? ">99 %" : text;
}

/** Name and value pairs. */
function facts(/** @type {Array<[string, any]>} */ rows) {
  return h("dl", {}, rows.filter(([, value]) => value !== "" && value !== null)
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, typeof value === "number" ? value.toLocaleString("en") : value))));
}

/** A name that may break behind its points and dashes. @returns {any[]} */
function soft(/** @type {string} */ name) {
  return name.split(/(?<=[._])/).flatMap((part, i) => (i ? [h("wbr"), part] : [part]));
}

/** A list of which the first few are shown. */
function few(/** @type {any[]} */ rows, /** @type {(part: any[]) => any} */ make, most = 12) {
  const part = h("div", {}, make(rows.slice(0, most)));
  if (rows.length > most) {
    part.append(h("button", { class: "more", onclick: () => part.replaceChildren(make(rows)) }, `show all ${rows.length}`));
  }
  return part;
}

/** Of a row of shares: how many clients there are, and which kinds lack it. */
function feeders(/** @type {any} */ feeding, /** @type {any} */ row) {
  const total = feeding.clients.reduce((/** @type {number} */ sum, /** @type {any} */ c) => sum + c[1], 0);
  const lacking = feeding.clients.filter((/** @type {any} */ _, /** @type {number} */ i) => !row[2][i]).map((/** @type {any} */ c) => c[0]);
  return { total, lacking };
}

/** What the panel shows of one graph. */
class Panel {
  constructor(/** @type {HTMLElement} */ host, /** @type {any} */ app) {
    this.host = host;
    this.app = app;
    this.turn = () => {};
  }

  show(/** @type {Canvas} */ canvas, /** @type {Item} */ item, fresh = true) {
    const parts = item.kind === "graph" ? this.whole(canvas) : this.part(canvas, item);
    this.host.replaceChildren(...parts.filter(Boolean));
    if (fresh) this.host.scrollTop = 0;
  }

  /** What the round that is shown changed of an item; `turn` tells it of another round. */
  changed(/** @type {Canvas} */ canvas, /** @type {Item} */ item) {
    const { model } = canvas;
    const host = h("section", { id: "changed" });
    const farthest = () => item.kind === "graph" ? table("Moved farthest", ["block", "update norm", "coverage"], moved(model).map(([i, one]) =>
      [this.block(canvas, i), length(one.norm), one.coverage === null ? "unknown" : percent(one.coverage)])) : null;
    this.turn = () => host.replaceChildren(...[...changedFacts(model, item), farthest()].filter(Boolean));
    this.turn();
    return host;
  }

  /** A button that leads to an item. */
  to(/** @type {Canvas} */ canvas, /** @type {() => Item} */ find, /** @type {string} */ text) {
    return h("button", { class: "link", onclick: () => this.app.visit(canvas, find()) }, soft(text));
  }

  whole(/** @type {Canvas} */ canvas) {
    const { data } = canvas.model;
    const t = data.totals;
    const axes = data.axes;
    return [
      h("h2", {}, data.name),
      canvas.small ? h("p", { class: "small" }, h("strong", {}, `${canvas.small.name}: `), spent(t, canvas.small)) : null,
      facts([["parameters", t.parameters], ["MACs per example", t.macs], ["operators", t.operators],
        ["state", `${t.bytes.toLocaleString("en")} bytes`], ["activations per example", `${t.activations.toLocaleString("en")} bytes`],
        ["parameters on a free axis", `${Math.floor(1000 * t.reach) / 10} %`],
        ["axes (free: can be cut)", `${axes.filter((/** @type {any} */ a) => !a[7]).length} free, ${axes.filter((/** @type {any} */ a) => a[7]).length} pinned`],
        ["counted at", t.at], ...this.told(canvas.model, canvas.model.root)]),
      this.changed(canvas, canvas.model.root),
      this.app.comparison && this.app.comparison.table(this.app),
      clientMap(this.app, canvas),
      this.clients(canvas, canvas.model.root),
      this.least(canvas),
      this.largest(canvas),
    ];
  }

  /** The outermost parts and their shares of parameters and MACs, the largest first. */
  largest(/** @type {Canvas} */ canvas) {
    const { model } = canvas;
    const t = model.data.totals;
    const rows = model.children(model.root).map((item) => ({ item, parameters: model.sum(item, "parameters"), macs: model.sum(item, "macs") }))
      .filter((one) => one.parameters).sort((a, b) => b.parameters - a.parameters);
    return few(rows, (part) => table("Where the parameters are", ["part", "parameters", "MACs"], part.map(({ item, parameters, macs }) =>
      [this.to(canvas, () => item, canvas.title(item) + (item.times > 1 ? ` ×${item.times}` : "")), `${percent(parameters / t.parameters)}, ${brief(parameters)}`,
        h("span", { class: "whole" }, t.macs ? percent(macs / t.macs) : "")])) || "");
  }

  /** Blocks that are fed least, one button each. */
  least(/** @type {Canvas} */ canvas) {
    const { model } = canvas;
    const feeding = model.data.feeding;
    if (!feeding) return null;
    const rows = model.data.blocks.map((/** @type {any} */ block, /** @type {number} */ i) => ({ i, block, row: feeding.rows[feeding.blocks[i]] }))
      .filter((/** @type {any} */ one) => one.row)
      .sort((/** @type {any} */ a, /** @type {any} */ b) => a.row[1] - b.row[1]).slice(0, 5);
    return table("Fed least", ["block", "clients", "weights, over all"], rows.map((/** @type {any} */ { i, row }) => {
      const { total, lacking } = feeders(feeding, row);
      return [this.block(canvas, i), [h("span", { class: "whole" }, `${row[0]} of ${total}`), lacking.length ? h("small", {}, `not ${lacking.join(", ")}`) : null], percent(row[1])];
    }));
  }

  /** A button that leads to a block. */
  block(/** @type {Canvas} */ canvas, /** @type {number} */ i) {
    const { model } = canvas;
    return this.to(canvas, () => model.holder(model.blockOps[i][0], "block"), model.data.blocks[i][0]);
  }

  part(/** @type {Canvas} */ canvas, /** @type {Item} */ item) {
    const { model } = canvas;
    const { data } = model;
    const kind = item.kind === "operator" || item.operators.length === 1 ? data.kinds[data.operators.kind[item.operators[0]]][0] : item.kind === "box" ? canvas.title(item) : item.kind;
    const several = item.times > 1 ? ` ×${item.times}` : "";
    const figures = ["parameters", "macs", "bytes"].map((key) => {
      const [one, all] = [model.sum(item, key), model.sum(model.root, key)];
      return one ? `${one.toLocaleString("en")}${key === "bytes" ? " bytes" : ""} (${percent(one / all)})` : 0;
    });
    const at = item.operators.length === 1 ? item.operators[0] : -1;
    const place = at >= 0 ? data.places[data.operators.place[at]] : ["", ""];
    return [
      h("h2", {}, item.name + several),
      h("p", { class: "kind" }, kind),
      this.left(canvas, item),
      item.make ? h("p", {}, h("button", { class: "act", onclick: () => this.app.toggle(canvas, item) },
        canvas.opened(item) ? "Close" : "Open"),
      item.fold >= 0 && item.times > 1 ? h("button", { class: "act", onclick: () => this.app.unfold(canvas, item) }, `Show all ${item.times}`) : null) : null,
      facts([["module", place[0]], ["code", place[1]], ["parameters", figures[0]], ["MACs per example", figures[1]],
        ["results per example", figures[2]], ["operators", model.every(item).length], ...this.told(model, item), ...this.removal(model, item)]),
      traced(this.app, canvas, item),
      this.changed(canvas, item),
      this.clients(canvas, item),
      this.axes(canvas, item),
      this.shapes(canvas, item),
      this.leaves(canvas, item),
      this.app.comparison && this.app.comparison.beside(this.app, canvas, item),
    ];
  }

  /** What the submodel that is shown has of a part's blocks. */
  left(/** @type {Canvas} */ canvas, /** @type {Item} */ item) {
    const blocks = canvas.model.blocksOf(item);
    const gone = canvas.small ? blocks.filter((b) => canvas.small?.gone.has(b)).length : 0;
    return gone ? h("p", { class: "small" }, h("strong", {}, `${canvas.small?.name}: `),
      gone < blocks.length ? `${blocks.length - gone} of ${blocks.length} blocks` : "lacks it") : null;
  }

  /** Figures that were given or measured. @returns {Array<[string, string]>} */
  told(/** @type {Model} */ model, /** @type {Item} */ item) {
    return Object.values(this.app.overlays).map((/** @type {any} */ one) => [one.name, one.told(model, item)]);
  }

  /** Whether a block can be left out. @returns {Array<[string, any]>} */
  removal(/** @type {Model} */ model, /** @type {Item} */ item) {
    const at = item.kind === "block" ? item.number : item.fold >= 0 ? model.data.folds[item.fold][0] : -1;
    if (at < 0) return [];
    const [, kind, , reason, saving] = model.data.blocks[at];
    return [["block", kind], ["can be left out", reason ? `no: ${reason}`
      : saving ? `yes: ${item.times > 1 ? "each " : ""}saves ${saving[0].toLocaleString("en")} parameters, ${saving[1].toLocaleString("en")} MACs` : "yes"]];
  }

  /** Each kind of client and how much of the part it has. */
  clients(/** @type {Canvas} */ canvas, /** @type {Item} */ item) {
    const feeding = canvas.model.data.feeding;
    const row = canvas.model.fed(item);
    if (!feeding || !row) return null;
    const { total, lacking } = feeders(feeding, row);
    const all = item.kind === "graph" ? `${total} clients, which have ${percent(row[1])} of the weights on average. `
      : `${row[0]} of ${total} clients, ${percent(row[1])} of the weights over all. `;
    const said = h("p", {}, all,
      lacking.length ? h("strong", {}, `Lacking in ${lacking.join(", ")}.`) : item.kind === "graph" ? this.lacking(canvas) : "No client lacks it.");
    const made = table("Clients", ["kind", "clients", "share of the weights"], feeding.clients.map((/** @type {any} */ c, /** @type {number} */ i) =>
      [c[0], c[1], row[2][i] ? percent(row[2][i]) : "none"]));
    if (made) made.insertBefore(said, made.children[1]);
    return made;
  }

  /** Which kinds of clients lack which blocks. @returns {any} */
  lacking(/** @type {Canvas} */ canvas) {
    const { feeding, blocks } = canvas.model.data;
    const told = feeding.clients.flatMap((/** @type {any} */ c, /** @type {number} */ k) => {
      const gone = blocks.map((/** @type {any} */ _, /** @type {number} */ i) => i).filter((/** @type {number} */ i) => {
        const row = feeding.rows[feeding.blocks[i]];
        return row && !row[2][k];
      });
      const each = (/** @type {number[]} */ some) => h("span", {}, some.flatMap((i, at) => [at ? ", " : "", this.block(canvas, i)]));
      return gone.length ? [h("div", {}, h("strong", {}, `${c[0]} lacks `), few(gone, each, 6))] : [];
    });
    return told.length ? h("span", { class: "lacks" }, told) : "No client lacks a block.";
  }

  shapes(/** @type {Canvas} */ canvas, /** @type {Item} */ item) {
    const { data } = canvas.model;
    const rows = item.operators.map((o) => {
      const [op, , , shapes, attributes] = data.kinds[data.operators.kind[o]];
      const told = attributes.map((/** @type {any} */ [key, value]) => `${key}=${value}`).join(", ");
      const sources = canvas.model.feeds[o].map((f) => data.operators.name[f]).join(", ");
      return [data.operators.name[o], op, shapes.join(", "), told, sources];
    });
    return few(rows, (part) => table("Operators", ["name", "operator", "result", "attributes", "takes"], part) || "");
  }

  /** Axes: size, role, and why they are pinned and what would free them. */
  axes(/** @type {Canvas} */ canvas, /** @type {Item} */ item) {
    const { data } = canvas.model;
    const numbers = [...new Set(item.operators.flatMap((o) => canvas.model.axes[o]))];
    // Widths first, then what would be one, then extents of kernels, which nothing frees.
    const last = (/** @type {any} */ pin) => (!pin ? 0 : pin.remedy.startsWith("nothing") ? 2 : 1);
    numbers.sort((a, b) => last(data.axes[a][7]) - last(data.axes[b][7]));
    const feeding = data.feeding;
    const rows = numbers.map((n) => {
      const [name, size, role, , spans, halved, saving, pin] = data.axes[n];
      const why = pin
        ? h("div", {}, h("strong", {}, "pinned: "), pin.why, pin.place ? ` (${[pin.operator, pin.place, pin.source].filter(Boolean).join(", ")})` : "",
          h("br"), `would free it: ${pin.remedy}`)
        : h("div", {}, "free", saving ? `: with ${halved} of them, ${saving[0].toLocaleString("en")} parameters and ${saving[1].toLocaleString("en")} MACs less` : "",
          spans.length > 2 ? h("details", {}, h("summary", {}, `${spans.length} operators run over it`), spans.join(", "))
            : spans.length ? h("span", {}, h("br"), `runs over it: ${spans.join(", ")}`) : null);
      const taken = feeding ? feeding.texts[feeding.axes[n]].map((/** @type {string} */ text, /** @type {number} */ i) =>
        h("div", {}, `${feeding.clients[i][0]}: ${text || "none"}`)) : [];
      return [h("div", {}, soft(name), h("small", {}, `${size.toLocaleString("en")} positions${last(pin) < 2 ? `, ${role}` : ""}`,
        canvas.small?.sizes.has(n) ? [h("br"), `${canvas.small.sizes.get(n)?.toLocaleString("en")} of them in ${canvas.small.name}`] : null)), h("div", {}, why, taken)];
    });
    return few(rows, (part) => table("Axes", ["axis", `can it be cut?${feeding ? " who has which positions?" : ""}`], part) || "");
  }

  leaves(/** @type {Canvas} */ canvas, /** @type {Item} */ item) {
    const { data } = canvas.model;
    const feeding = data.feeding;
    const numbers = [...new Set(item.operators.flatMap((o) => canvas.model.leaves[o]))];
    const rows = numbers.map((n) => {
      const [name, role, shape, layout] = data.leaves[n];
      const texts = feeding ? feeding.texts[feeding.positions[n]] : [];
      const taken = texts.map((/** @type {string} */ text, /** @type {number} */ i) => h("div", {}, `${feeding.clients[i][0]}: ${text || "none"}`));
      return [soft(name), role, shape.join(" × "), layout.join(" | "), ...(feeding ? [h("div", {}, taken)] : [])];
    });
    const heads = ["leaf", "role", "shape", "made of", ...(feeding ? ["what each client takes"] : [])];
    return few(rows, (part) => table("Parameters and buffers", heads, part) || "");
  }
}
