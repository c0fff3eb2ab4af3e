// Colours: a figure of each part on one scale for all panes, with a legend.

/**
 * @typedef {Object} Overlay
 * @property {string} name
 * @property {string} means what its colours mean
 * @property {string[]} ticks at equal distances
 * @property {(model: Model, item: Item, kind?: string) => number|null} at the place on the scale, 0 to 1, of a kind of client if `of` has it; null: a part has none
 * @property {(model: Model, kind: string) => boolean} [of] whether there are figures of a kind of client alone
 * @property {Record<string, string>} [named] colours by name, instead of a scale
 * @property {(model: Model, item: Item) => string} [kind] the name of a part's colour
 * @property {(model: Model, item: Item) => string} told the figure in words, where the panel does not tell it anyway
 */

const SHARES = ["0 %", "25 %", "50 %", "75 %", "100 %"];
const SIDES = "a weight has two sides: at half width, a client has a quarter of a middle layer's weights and half of the stem's";
const silent = () => "";

/** A scale and the figures below it. */
function ramp(/** @type {string[]} */ scale, /** @type {string[]} */ ticks) {
  return h("div", { class: "ramp" }, h("span", { style: `background: linear-gradient(90deg, ${scale.join(", ")})` }), h("span", { class: "ticks" }, ticks.map((text) => h("span", {}, text))));
}

/** How clients feed a part. @returns {Overlay} */
function fed(/** @type {string} */ name, /** @type {string} */ means, /** @type {(row: any, clients: number) => number} */ share) {
  return { name, means, ticks: SHARES, told: silent, at: (model, item, kind) => {
    const row = model.fed(item), { clients } = model.data.feeding || {};
    if (row && kind) return row[2][clients.findIndex((/** @type {any} */ c) => c[0] === kind)];
    return row && share(row, clients.reduce((/** @type {number} */ sum, /** @type {any} */ c) => sum + c[1], 0));
  } };
}

/** Share of the whole, from a thousandth of it. @returns {Overlay} */
function amount(/** @type {string} */ key, /** @type {string} */ name) {
  return { name, means: "share of the whole network", ticks: ["≤ 0.1 %", "1 %", "10 %", "100 %"], told: silent, at: (model, item) => {
    const whole = model.sum(model.root, key);
    const part = whole ? model.sum(item, key) / whole : 0;
    return part ? Math.max(0, 1 + Math.log10(part) / 3) : 0;
  } };
}

/** Figures that stand in the data, between two ends. @returns {Overlay} */
function measured(/** @type {string} */ key, /** @type {any} */ [name, low, high]) {
  const ticks = [0, 1, 2, 3, 4].map((i) => String(Number((low + (high - low) * i / 4).toPrecision(3))));
  const figure = (/** @type {Model} */ model, /** @type {Item} */ item) => model.data.figures?.[key] ? model.figure(model.data.figures[key], item) : null;
  return { name, means: "", ticks, at: (model, item) => {
    const value = figure(model, item);
    return value === null ? null : (value - low) / (high - low || 1);
  }, told: (model, item) => {
    const value = figure(model, item);
    return value === null ? "" : String(Number(value.toPrecision(4)));
  } };
}

/** What the operators of a part do: of several kinds the one that comes first. @returns {Overlay} */
function kinds(/** @type {Record<string, string>} */ named) {
  const order = Object.keys(named);
  return { name: "kind of operator", means: "", ticks: [], at: () => null, told: silent, named, kind: (model, item) => {
    const { kinds, operators } = model.data;
    const inside = new Set(item.operators.map((o) => kinds[operators.kind[o]][5]));
    return order.find((name) => inside.has(name)) || "";
  } };
}

/** The overlays of a page by the words that stand for them in its address. @returns {Record<string, Overlay>} */
function overlays(/** @type {any} */ data) {
  const feeding = data.graphs.some((/** @type {any} */ g) => g.feeding);
  const own = Object.entries(data.overlays).map(([key, told]) => [key, measured(key, told)]);
  return {
    kinds: kinds(data.families),
    ...feeding && { weights: { ...fed("share of weights", `mean over all clients; thin border: no weights; ${SIDES}`, (row) => row[1]), of: (model) => Boolean(model.data.feeding) },
      clients: fed("share of clients", "clients that have any of a part; thin border: no weights", (row, clients) => row[0] / clients) },
    parameters: amount("parameters", "parameters"), macs: amount("macs", "MACs"), bytes: amount("bytes", "size of results"),
    ...Object.fromEntries(own), ...overRounds(data.graphs),
  };
}

/** Colour at a place between 0 and 1 of a scale. */
function blend(/** @type {string[]} */ colours, /** @type {number} */ share) {
  const at = Math.min(Math.max(share, 0), 1) * (colours.length - 1);
  const low = Math.min(Math.floor(at), colours.length - 2);
  const parts = (/** @type {string} */ c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16));
  const [a, b] = [parts(colours[low]), parts(colours[low + 1])];
  return `rgb(${a.map((v, i) => Math.round(v + (b[i] - v) * (at - low))).join(" ")})`;
}
