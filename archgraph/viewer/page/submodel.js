// The submodel that the picture shows: a share of every width, or a client's.

/**
 * @typedef {Object} Submodel
 * @property {string} name
 * @property {number} parameters
 * @property {number} macs
 * @property {Map<number, number>} sizes of the axes that are narrower, by their numbers
 * @property {Set<number>} gone blocks of which nothing is left
 */

/** Positions that a share of an axis keeps, rounded as the library rounds: up, and one at least. */
function positions(/** @type {number} */ share, /** @type {number} */ size) {
  return Math.max(1, Math.ceil(Number((share * size).toFixed(9))));
}

/** Value of a cost at some sizes: a sum of products of sizes, exact below 2⁵³. */
function costAt(/** @type {number[][]} */ terms, /** @type {(axis: number) => number} */ size) {
  return terms.reduce((sum, [factor, ...axes]) => sum + axes.reduce((product, axis) => product * size(axis), factor), 0);
}

/** A share of a graph's widths: of those axes that one share cuts, as the library says. @returns {Submodel} */
function shared(/** @type {any} */ data, /** @type {number} */ share) {
  const sizes = new Map();
  data.costs.cut.forEach((/** @type {number} */ n) => {
    const narrow = positions(share, data.axes[n][1]);
    if (narrow < data.axes[n][1]) sizes.set(n, narrow);
  });
  const size = (/** @type {number} */ axis) => sizes.get(axis) ?? data.axes[axis][1];
  return { name: `${Math.round(100 * share)} % of every width`, parameters: costAt(data.costs.parameters, size), macs: costAt(data.costs.macs, size), sizes, gone: new Set() };
}

/** The largest share of every width within a share of the MACs, to one per cent. @returns {Submodel} */
function within(/** @type {any} */ data, /** @type {number} */ budget) {
  let percents = 100;
  while (percents > 1 && shared(data, percents / 100).macs > budget * data.totals.macs) percents -= 1;
  return shared(data, percents / 100);
}

/** What can be chosen of the graphs of a page, by the words that stand for it in the address. */
function choices(/** @type {any[]} */ graphs) {
  const free = graphs.some((g) => g.costs.cut.length);
  const clients = graphs.find((g) => g.clients)?.clients || [];
  return [["whole", "all of it"], ...free ? [["share", "a share of every width"], ["macs", "a share of the MACs"]] : [], ...clients.map((/** @type {any} */ c, /** @type {number} */ i) => [`client${i}`, c[0]])];
}

/** The submodel of a graph that was chosen; null: all of it is shown, or it has no such submodel. @returns {Submodel|null} */
function chosen(/** @type {any} */ data, /** @type {string} */ as, /** @type {number} */ step) {
  if (as === "share") return shared(data, step / 100);
  if (as === "macs") return within(data, step / 100);
  const client = data.clients && as.startsWith("client") ? data.clients[Number(as.slice(6))] : null;
  if (!client) return null;
  const [name, parameters, macs, sizes, gone] = client;
  return { name, parameters, macs, sizes: new Map(sizes), gone: new Set(gone) };
}

/** Mean share of its free widths that a submodel leaves an item. */
function narrowed(/** @type {Model} */ model, /** @type {Item} */ item, /** @type {Submodel} */ small) {
  const free = item.free || (item.free = [...new Set(model.every(item).flatMap((o) => model.axes[o]))].filter((n) => !model.data.axes[n][7]));
  if (!free.length) return 1;
  return free.reduce((/** @type {number} */ sum, /** @type {number} */ n) => sum + (small.sizes.get(n) ?? model.data.axes[n][1]) / model.data.axes[n][1], 0) / free.length;
}

/** Share of an item's blocks that a submodel lacks. */
function lacked(/** @type {Model} */ model, /** @type {Item} */ item, /** @type {Submodel} */ small) {
  if (!small.gone.size) return 0;
  const blocks = model.blocksOf(item);
  return blocks.length ? blocks.filter((b) => small.gone.has(b)).length / blocks.length : 0;
}

/** Parameters and MACs beside those of the whole, in words. */
function spent(/** @type {any} */ totals, /** @type {Submodel} */ small) {
  const part = (/** @type {"parameters"|"macs"} */ key, /** @type {string} */ name) =>
    `${small[key].toLocaleString("en")} ${name}${totals[key] ? ` (${percent(small[key] / totals[key])})` : ""}`;
  return `${part("parameters", "parameters")}, ${part("macs", "MACs")}`;
}

/** Who has which blocks: a row for each kind of client, a cell for each run of blocks that all of them have alike. */
function clientMap(/** @type {App} */ app, /** @type {Canvas} */ canvas) {
  const { data } = canvas.model;
  const { feeding, blocks, clients } = data;
  if (!clients || !blocks.length) return null;
  /** @type {Array<{first: number, many: number, row: any, section: number}>} */ const runs = [];
  blocks.forEach((/** @type {any} */ _, /** @type {number} */ b) => {
    const row = feeding.rows[feeding.blocks[b]];
    const last = runs[runs.length - 1];
    const section = canvas.model.sectionOf[b];
    if (!row) return;
    if (last && last.section === section && last.row === row) last.many += 1;
    else runs.push({ first: b, many: 1, row, section });
  });
  const called = ({ first, many } = { first: 0, many: 1 }) => blocks[first][0] + (many > 1 ? ` to ${blocks[first + many - 1][0]}` : "");
  const cells = (/** @type {number} */ i) => runs.map((run) => {
    const share = run.row[2][i];
    const text = `${clients[i][0]}, ${called(run)}: ${share ? `${percent(share)} of the weights` : "none"}`;
    return h("button", { class: `cell${share ? "" : " none"}`, tabindex: "-1", title: text, "aria-label": text,
      style: `flex-grow: ${run.many}; ${share ? `background: ${blend(app.data.scale, share)}` : ""}`,
      onclick: () => {
        app.shape(`client${i}`);
        app.visit(canvas, canvas.model.holder(canvas.model.blockOps[run.first][0], "block"));
      } });
  });
  const heads = runs.map((run) => h("span", { style: `flex-grow: ${run.many}`, title: called(run) }));
  return h("section", { class: "map" }, h("h3", {}, "Clients × blocks"),
    h("p", {}, `Share of each block's weights that a client of each kind has (${SIDES}); hatched: it lacks the block. A name shows that client's network, a cell its block.`),
    ramp(app.data.scale, SHARES),
    clients.map((/** @type {any} */ c, /** @type {number} */ i) => h("div", { class: "row" },
      h("button", { class: "link", title: c[0], onclick: () => app.shape(app.state.as === `client${i}` ? "whole" : `client${i}`), "aria-pressed": String(app.state.as === `client${i}`) }, c[0]),
      h("div", { class: "cells" }, cells(i)))),
    heads.length > 1 ? h("p", { class: "ends" }, h("span", {}, blocks[runs[0].first][0]), h("span", {}, called(runs[runs.length - 1]))) : null);
}
