// Where the children of one container stand: layers from top to bottom, few crossings, straight lines.

const GAP = { x: 26, y: 34, pad: 14, head: 24, bend: 12 };
const PASSES = 6;

/**
 * @typedef {Object} Edge
 * @property {number} tail child; -1: the container's entry
 * @property {number} head child; -2: the container's exit
 * @property {string} label
 * @property {boolean} quiet whether it only masks or only trains
 */

/**
 * @typedef {Object} Spot
 * @property {number} w width
 * @property {number} h height
 * @property {number} x centre
 * @property {number} y upper edge
 * @property {number} layer
 * @property {number} weight how much it resists being moved
 * @property {Array<[Spot, number]>} up
 * @property {Array<[Spot, number]>} down
 */

/** @returns {Spot} */
function spot(/** @type {number} */ w, /** @type {number} */ h, /** @type {number} */ layer, /** @type {number} */ weight) {
  return { w, h, x: 0, y: 0, layer, weight, up: [], down: [] };
}

/**
 * Layered layout (Sugiyama, Tagawa, Toda 1981): longest-path layers, bends where an edge passes a
 * layer, order by the mean of the neighbours, positions by isotonic regression of wished places.
 * @param {Array<{w: number, h: number}>} sizes of the children, in topological order
 * @param {Edge[]} edges
 */
function layered(sizes, edges) {
  const spots = sizes.map((size) => spot(size.w, size.h, 0, 4));
  const entry = edges.some((e) => e.tail === -1) ? spot(2, 0, 0, 2) : null;
  const exit = edges.some((e) => e.head === -2) ? spot(2, 0, 0, 2) : null;
  const at = (/** @type {number} */ i) => /** @type {Spot} */ (i === -1 ? entry : i === -2 ? exit : spots[i]);
  const forward = edges.filter((e) => e.tail === -1 || e.head === -2 || e.tail < e.head);
  rank(spots, forward, entry, exit);
  const chains = forward.map((e) => bent(at(e.tail), at(e.head)));
  const all = new Set([...spots, ...(entry ? [entry] : []), ...(exit ? [exit] : []), ...chains.flat()]);
  const bends = new Set(chains.flatMap((chain) => chain.slice(1, -1)));
  /** @type {Spot[][]} */ const layers = [];
  for (const one of all) (layers[one.layer] = layers[one.layer] || []).push(one);
  const rows = layers.filter(Boolean);
  order(rows);
  place(rows);
  let y = 0;
  for (const row of rows) {
    const tall = Math.max(...row.map((s) => s.h));
    for (const s of row) {
      // A bend passes the whole row beside what stands in it.
      if (bends.has(s)) s.h = tall;
      s.y = y + (tall - s.h) / 2;
    }
    y += tall + GAP.y;
  }
  const left = Math.min(...[...all].map((s) => s.x - s.w / 2), 0);
  const right = Math.max(...[...all].map((s) => s.x + s.w / 2), 0);
  for (const s of all) s.x -= left;
  const back = edges.filter((e) => !forward.includes(e)).map((e) => ({ edge: e, spots: [at(e.tail), at(e.head)] }));
  return { spots, entry, exit, w: right - left, h: y - GAP.y,
    paths: [...forward.map((edge, i) => ({ edge, spots: chains[i] })), ...back] };
}

/** Layers: below all that feeds it; what nothing feeds stands just above its first user. */
function rank(/** @type {Spot[]} */ spots, /** @type {Edge[]} */ edges, /** @type {Spot|null} */ entry, /** @type {Spot|null} */ exit) {
  const low = entry ? 1 : 0;
  const into = spots.map(() => /** @type {number[]} */ ([]));
  const out = spots.map(() => /** @type {number[]} */ ([]));
  for (const e of edges) {
    if (e.tail >= 0 && e.head >= 0) {
      into[e.head].push(e.tail);
      out[e.tail].push(e.head);
    }
  }
  spots.forEach((s, i) => {
    s.layer = Math.max(low, ...into[i].map((t) => spots[t].layer + 1));
  });
  const fed = new Set(edges.filter((e) => e.tail === -1).map((e) => e.head));
  for (let i = spots.length - 1; i >= 0; i--) {
    if (!into[i].length && !fed.has(i) && out[i].length) {
      spots[i].layer = Math.max(low, Math.min(...out[i].map((h) => spots[h].layer)) - 1);
    }
  }
  if (exit) exit.layer = Math.max(low, ...spots.map((s) => s.layer + 1));
}

/** An edge as the spots that it passes; bends stand in the layers between. */
function bent(/** @type {Spot} */ tail, /** @type {Spot} */ head) {
  const chain = [tail];
  for (let layer = tail.layer + 1; layer < head.layer; layer++) chain.push(spot(GAP.bend, 0, layer, 1));
  chain.push(head);
  // What passes a layer gives way, so that the main path is straight.
  const pull = chain.length > 2 ? 1 : 8;
  for (let i = 1; i < chain.length; i++) {
    chain[i - 1].down.push([chain[i], pull]);
    chain[i].up.push([chain[i - 1], pull]);
  }
  return chain;
}

/** Order within each layer by the mean place of the neighbours, down and up in turn. */
function order(/** @type {Spot[][]} */ rows) {
  const place = new Map();
  const number = (/** @type {Spot[]} */ row) => row.forEach((s, i) => place.set(s, i - (row.length - 1) / 2));
  rows.forEach(number);
  for (let pass = 0; pass < PASSES; pass++) {
    const down = pass % 2 === 0;
    for (const row of down ? rows : [...rows].reverse()) {
      const wish = new Map(row.map((s) => {
        const near = down ? s.up : s.down;
        return [s, near.length ? near.reduce((sum, [n]) => sum + place.get(n), 0) / near.length : place.get(s)];
      }));
      row.sort((a, b) => wish.get(a) - wish.get(b) || b.weight - a.weight);
      number(row);
    }
  }
}

/** Places: near the neighbours, in order, without overlap. */
function place(/** @type {Spot[][]} */ rows) {
  rows.forEach((row) => spread(row, row.map(() => 0)));
  for (let pass = 0; pass < PASSES; pass++) {
    const down = pass % 2 === 0;
    for (const row of down ? rows : [...rows].reverse()) {
      spread(row, row.map((s) => {
        const near = (down ? s.up : s.down).length ? (down ? s.up : s.down) : down ? s.down : s.up;
        const total = near.reduce((sum, [, pull]) => sum + pull, 0);
        return total ? near.reduce((sum, [n, pull]) => sum + pull * n.x, 0) / total : s.x;
      }));
    }
  }
}

/** Nearest places to the wished ones that keep order and distance (pool adjacent violators). */
function spread(/** @type {Spot[]} */ row, /** @type {number[]} */ wishes) {
  let offset = 0;
  /** @type {Array<{sum: number, weight: number, from: number}>} */ const pools = [];
  const offsets = row.map((s, i) => {
    if (i) offset += (row[i - 1].w + s.w) / 2 + GAP.x;
    return offset;
  });
  row.forEach((s, i) => {
    pools.push({ sum: s.weight * (wishes[i] - offsets[i]), weight: s.weight, from: i });
    while (pools.length > 1) {
      const [a, b] = pools.slice(-2);
      if (a.sum / a.weight <= b.sum / b.weight) break;
      pools.splice(-2, 2, { sum: a.sum + b.sum, weight: a.weight + b.weight, from: a.from });
    }
  });
  pools.forEach((pool, n) => {
    const to = n + 1 < pools.length ? pools[n + 1].from : row.length;
    for (let i = pool.from; i < to; i++) row[i].x = pool.sum / pool.weight + offsets[i];
  });
}

/** Links between the children of a container, entry and exit included. @returns {Edge[]} */
function edgesIn(/** @type {Model} */ model, /** @type {Item} */ item, /** @type {Item[]} */ children) {
  return children.length && children[0].kind === "operator" ? wires(model, item, children) : arrows(model, item, children);
}

/** Values that pass between the operators of a box. @returns {Edge[]} */
function wires(/** @type {Model} */ model, /** @type {Item} */ item, /** @type {Item[]} */ children) {
  const child = new Map(children.map((c, i) => [c.number, i]));
  const { kinds, operators } = model.data;
  const used = new Set();
  const found = new Map();
  const add = (/** @type {number} */ tail, /** @type {number} */ head, /** @type {string} */ label) => {
    if (tail !== head && !found.has(`${tail} ${head}`)) found.set(`${tail} ${head}`, { tail, head, label, quiet: false });
  };
  for (const [op, head] of child) {
    for (const source of model.feeds[op]) {
      const tail = child.get(source);
      if (tail !== undefined) used.add(tail);
      add(tail ?? -1, head, kinds[operators.kind[source]][2]);
    }
  }
  // What nothing uses only counts, unless it is all that there is.
  const ends = children.map((_, i) => i).filter((i) => !used.has(i));
  const needed = ends.filter((i) => model.used.has(children[i].number));
  for (const i of needed.length ? needed : ends) add(i, -2, "");
  return [...found.values()];
}

/** Arrows between boxes, raised to the children that hold them. @returns {Edge[]} */
function arrows(/** @type {Model} */ model, /** @type {Item} */ item, /** @type {Item[]} */ children) {
  const child = new Map();
  children.forEach((c, i) => c.boxes.forEach((b) => child.set(b, i)));
  const twin = new Map();
  const own = new Set(item.boxes);
  if (item.times > 1) item.boxes.forEach((b, i) => twin.set(b, item.shown[i % item.shown.length]));
  const found = new Map();
  const add = (/** @type {number} */ tail, /** @type {number} */ head, /** @type {any} */ arrow) => {
    const key = `${tail} ${head}`;
    if (tail !== head && !found.has(key)) found.set(key, { tail, head, label: arrow[1], quiet: arrow[2] > 0 });
  };
  for (const [box, head] of child) {
    for (const [tail, arrow] of model.into[box]) {
      if (child.has(tail)) add(child.get(tail), head, arrow);
      else if (!own.has(tail)) add(-1, head, arrow);
    }
  }
  for (const box of item.boxes) {
    for (const [head, arrow] of model.from[box]) {
      if (own.has(head)) continue;
      const tail = twin.get(box) ?? box;
      // What the last repetition hands on may be wider than what the one that is shown does.
      const ours = tail === box ? undefined : model.from[tail].find(([next]) => !child.has(next));
      add(child.get(tail), -2, ours ? ours[1] : arrow);
    }
  }
  return [...found.values()].filter((e) => e.tail !== undefined && e.head !== undefined);
}
