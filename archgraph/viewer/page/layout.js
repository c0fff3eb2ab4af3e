// Where the children of one container stand: a straight trunk from top to bottom, shortcuts in lanes beside it.

const GAP = { x: 26, y: 36, pad: 14, head: 24, lane: 14, clear: 9, column: 64, top: 22, tip: 12, end: 22, drop: 17 };
const PASSES = 6;
const MOST = { columns: 8, obstacles: 300, labels: 300 };

/**
 * @typedef {Object} Edge
 * @property {number} tail child; -1: the container's entry
 * @property {number} head child; -2: the container's exit
 * @property {string} label
 * @property {boolean} quiet whether it only masks or only trains
 * @property {number} [room] width of its label
 */

/**
 * @typedef {Object} Size
 * @property {number} w
 * @property {number} h
 * @property {number} entry where arrows enter, from the centre
 * @property {number} exit where they leave
 * @property {boolean} open whether all arrows enter at one place
 */

/**
 * @typedef {Size & {x: number, y: number, layer: number, up: Spot[], down: Spot[], near: {up: Array<[Spot, number]>, down: Array<[Spot, number]>}}} Spot
 * x: centre, y: upper edge; up, down: neighbours in the next layers; near: ends of its edges, and how much they pull
 */

/**
 * @typedef {Object} Path
 * @property {Edge} edge
 * @property {Spot} from
 * @property {Spot} to
 * @property {number|null} lane x of its way past the layers between; null: there are none
 * @property {number} x where it enters
 * @property {boolean} before whether its label stands left of it
 * @property {Array<[number, number]>|null} turns corners of its way to another column
 */

/** @returns {Spot} */
function spot(/** @type {Partial<Size>} */ size, /** @type {number} */ layer = 0) {
  return { w: 2, h: 0, entry: 0, exit: 0, open: true, ...size, x: 0, y: 0, layer, up: [], down: [], near: { up: [], down: [] } };
}

/**
 * An order in which all that feeds a child comes before it; of a cycle the first child goes first.
 * @returns {number[]}
 */
function sorted(/** @type {number} */ many, /** @type {Edge[]} */ edges) {
  const into = Array.from({ length: many }, () => new Set());
  for (const e of edges) if (e.tail >= 0 && e.head >= 0) into[e.head].add(e.tail);
  const left = new Set(into.keys());
  const order = [];
  while (left.size) {
    const next = [...left].find((i) => [...into[i]].every((tail) => !left.has(tail))) ?? Math.min(...left);
    left.delete(next);
    order.push(next);
  }
  return order;
}

/**
 * Layout of the children of a container, in whatever order they are.
 * @param {Size[]} sizes of the children
 * @param {Edge[]} edges
 * @param {(rows: Array<{w: number, h: number}>) => number[]} columns first row of each column
 * @param {number[]|null} tops where the rows of a single column begin; null: one below the other
 */
function layered(sizes, edges, columns = () => [0], tops = null) {
  if (edges.every((e) => e.tail < 0 || e.head < 0 || e.tail < e.head)) return stacked(sizes, edges, columns, tops);
  const order = sorted(sizes.length, edges);
  /** @type {number[]} */ const rank = [];
  order.forEach((child, i) => (rank[child] = i));
  const originals = new Map(edges.map((e) => [{ ...e, tail: rank[e.tail] ?? e.tail, head: rank[e.head] ?? e.head }, e]));
  const found = stacked(order.map((child) => sizes[child]), [...originals.keys()], columns, tops);
  const paths = found.paths.map((path) => ({ ...path, edge: /** @type {Edge} */ (originals.get(path.edge)) }));
  return { ...found, spots: rank.map((i) => found.spots[i]), paths };
}

/**
 * Layered layout after Sugiyama, Tagawa and Toda (1981).
 * 1. Layers: an item stands below all that feeds it.
 * 2. Order in a layer: by the mean of the neighbours; edges that pass a layer count there.
 * 3. The trunk, a longest path, is straight; other items stand near their neighbours (isotonic regression).
 * 4. Rows are broken into columns where `columns` says so.
 * 5. An edge that passes layers runs in a lane: the nearest that no item and no other lane is in.
 * 6. An edge that closes a cycle runs up on the left of its column.
 * @param {Size[]} sizes of the children, in topological order but for cycles
 * @param {Edge[]} edges
 * @param {(rows: Array<{w: number, h: number}>) => number[]} columns first row of each column
 * @param {number[]|null} tops where the rows of a single column begin; null: one below the other
 */
function stacked(sizes, edges, columns, tops) {
  const spots = sizes.map((size) => spot(size));
  const entry = edges.some((e) => e.tail === -1) ? spot({}) : null;
  const exit = edges.some((e) => e.head === -2) ? spot({}) : null;
  const at = (/** @type {number} */ i) => /** @type {Spot} */ (i === -1 ? entry : i === -2 ? exit : spots[i]);
  const forward = edges.filter((e) => e.tail === -1 || e.head === -2 || e.tail < e.head);
  rank(spots, forward, entry, exit);
  const trunk = longest(spots.length, forward);
  const fixed = new Set(trunk.flatMap((e) => [at(e.tail), at(e.head)]));
  const bends = new Set();
  const all = new Set([...spots, ...(entry ? [entry] : []), ...(exit ? [exit] : [])]);
  for (const edge of forward) {
    for (const bend of bent(at(edge.tail), at(edge.head), edge.quiet)) {
      all.add(bend);
      // The trunk passes a layer as if an item stood there.
      if (trunk.includes(edge)) fixed.add(bend);
      else bends.add(bend);
    }
  }
  /** @type {Spot[][]} */ const layers = [];
  for (const one of all) (layers[one.layer] = layers[one.layer] || []).push(one);
  const filled = layers.filter(Boolean);
  order(filled);
  const rows = filled.map((row) => row.filter((s) => !bends.has(s)));
  rows.forEach((row, i) => row.forEach((s) => (s.layer = i)));
  place(rows, fixed);
  const tall = rows.map((row) => Math.max(0, ...row.map((s) => s.h)));
  const starts = columns(rows.map((row, i) => ({ w: Math.max(...row.map(right)) - Math.min(...row.map(left)), h: tall[i] + GAP.y })));
  const column = rows.map((_, i) => starts.filter((start) => start <= i).length - 1);
  let y = 0;
  // Nothing stands in the rows of entry and exit.
  // Where arrows with labels turn, they turn below the labels.
  const drops = rows.map((_, i) => (forward.some((e) => e.room && e.tail >= 0 && at(e.tail).layer === i && (at(e.head).layer > i + 1
    || Math.abs(at(e.head).x + at(e.head).entry - at(e.tail).x - at(e.tail).exit) > GAP.tip)) ? GAP.drop : 0));
  const gap = (/** @type {number} */ i) => ((entry && !i) || (exit && i === rows.length - 2) ? GAP.end : GAP.y) + (drops[i] && GAP.drop - 4);
  const bands = rows.map((row, i) => {
    if (starts.includes(i)) y = starts.length > 1 ? GAP.top : 0;
    if (tops && starts.length === 1) y = tops[i];
    const top = y;
    for (const s of row) s.y = top + (tall[i] - s.h) / 2;
    y += tall[i] + gap(i);
    return { top, bottom: top + tall[i], low: top + tall[i] + drops[i] };
  });
  const paths = forward.map((edge) => /** @type {Path} */ ({ edge, from: at(edge.tail), to: at(edge.head), lane: null, x: 0, before: false, turns: null }));
  const inside = paths.filter((p) => column[p.from.layer] === column[p.to.layer]);
  lanes(inside, rows, new Set(trunk));
  for (const p of paths) p.before = turned(p, paths, column);
  const back = edges.filter((e) => !forward.includes(e)).map((edge) => /** @type {Path} */ ({ edge, from: at(edge.tail), to: at(edge.head), lane: null, x: 0, before: false, turns: null }));
  const loops = starts.map((_, c) => back.filter((p) => column[p.from.layer] === c && column[p.to.layer] === c));
  const spans = starts.map((_, c) => {
    const xs = [...rows.flatMap((row, i) => (column[i] === c ? row.flatMap((s) => [left(s), right(s)]) : [])),
      ...inside.flatMap((p) => (p.lane !== null && column[p.to.layer] === c ? [p.lane] : [])),
      ...paths.flatMap((p) => (p.edge.tail >= 0 && column[p.from.layer] === c ? [p.from.x + p.from.exit + (p.before ? -1 : 1) * (p.edge.room || 0)] : []))];
    return [Math.min(...xs) - GAP.lane * loops[c].length, Math.max(...xs)];
  });
  let from = 0;
  const shifts = spans.map(([low, high]) => {
    const shift = from - low;
    from += high - low + GAP.column;
    return shift;
  });
  for (const s of all) if (!bends.has(s)) s.x += shifts[column[s.layer]];
  for (const p of inside) if (p.lane !== null) p.lane += shifts[column[p.to.layer]];
  const gutter = (/** @type {number} */ c) => spans[c][0] + shifts[c] - GAP.column / 2;
  paths.forEach((p) => (p.x = p.to.x + p.to.entry));
  paths.filter((p) => !inside.includes(p)).forEach((p, i) => (p.turns = turns(p, column, bands, gutter, i)));
  tips(paths, trunk);
  for (const p of back) {
    const c = column[p.to.layer];
    p.x = p.to.x + p.to.entry - (p.to.open ? 0 : Math.min(GAP.tip, p.to.w / 4));
    const loop = loops[c].indexOf(p);
    const low = bands[p.from.layer].bottom + GAP.tip;
    const high = bands[p.to.layer].top - GAP.tip;
    const start = p.from.x + p.from.exit;
    if (loop >= 0) {
      const side = spans[c][0] + shifts[c] + GAP.lane * loop;
      p.turns = [[start, low], [side, low], [side, high], [p.x, high]];
    } else p.turns = turns(p, column, bands, gutter, 0);
  }
  clear([...paths, ...back], bands, from - GAP.column);
  return { spots, entry, exit, bands, columns: starts.length, paths: [...paths, ...back], w: Math.max(0, from - GAP.column), h: Math.max(0, ...bands.map((b) => b.bottom)) + (starts.length > 1 ? GAP.y : 0) };
}

const left = (/** @type {Spot} */ s) => s.x - s.w / 2;
const right = (/** @type {Spot} */ s) => s.x + s.w / 2;

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

/** The edges of a longest path, from the entry and to the exit where there are such; of equal ways the middle one. @returns {Edge[]} */
function longest(/** @type {number} */ many, /** @type {Edge[]} */ edges) {
  const into = Array.from({ length: many }, () => /** @type {Edge[]} */ ([]));
  const out = edges.filter((e) => e.head === -2);
  for (const e of edges) if (e.head >= 0) into[e.head].push(e);
  /** @type {number[]} */ const length = [];
  const reach = (/** @type {Edge} */ e) => (e.tail < 0 ? 1 : length[e.tail] + (e.quiet ? 0.01 : 1));
  const best = (/** @type {Edge[]} */ some) => {
    const most = Math.max(...some.map(reach));
    const equal = some.filter((e) => reach(e) === most);
    return equal[(equal.length - 1) >> 1];
  };
  for (let i = 0; i < many; i++) length.push(into[i].length ? reach(best(into[i])) : 0);
  const path = [];
  let at = length.indexOf(Math.max(...length));
  if (out.length) {
    path.push(best(out));
    at = path[0].tail;
  }
  while (at >= 0 && into[at].length) {
    path.push(best(into[at]));
    at = path[path.length - 1].tail;
  }
  return path;
}

/** Make neighbours of an edge's ends; what stands for it in the layers between. @returns {Spot[]} */
function bent(/** @type {Spot} */ tail, /** @type {Spot} */ head, /** @type {boolean} */ quiet) {
  const bends = [];
  for (let layer = tail.layer + 1; layer < head.layer; layer++) bends.push(spot({}, layer));
  const chain = [tail, ...bends, head];
  for (let i = 1; i < chain.length; i++) {
    chain[i - 1].down.push(chain[i]);
    chain[i].up.push(chain[i - 1]);
  }
  const pull = bends.length || quiet ? 1 : 8;
  tail.near.down.push([head, pull]);
  head.near.up.push([tail, pull]);
  return bends;
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
        return [s, near.length ? near.reduce((sum, n) => sum + place.get(n), 0) / near.length : place.get(s)];
      }));
      row.sort((a, b) => wish.get(a) - wish.get(b) || b.w - a.w);
      number(row);
    }
  }
}

/** Places: the trunk on one line, the others near their neighbours, in order, without overlap. */
function place(/** @type {Spot[][]} */ rows, /** @type {Set<Spot>} */ trunk) {
  for (let pass = 0; pass < PASSES; pass++) {
    const down = pass % 2 === 0;
    for (const row of down ? rows : [...rows].reverse()) {
      spread(row, row.map((s) => {
        if (trunk.has(s)) return -s.entry;
        const above = down === Boolean(s.near.up.length) || !s.near.down.length;
        const near = above ? s.near.up : s.near.down;
        const total = near.reduce((sum, [, pull]) => sum + pull, 0);
        if (!total) return s.x;
        return near.reduce((sum, [n, pull]) => sum + pull * (n.x + (above ? n.exit - s.entry : n.entry - s.exit)), 0) / total;
      }), row.map((s) => (trunk.has(s) ? 1e6 : 1)));
      const main = row.find((s) => trunk.has(s));
      if (main) {
        const off = main.x + main.entry;
        for (const s of row) s.x -= off;
      }
    }
  }
}

/** Nearest places to the wished ones that keep order and distance (pool adjacent violators). */
function spread(/** @type {Spot[]} */ row, /** @type {number[]} */ wishes, /** @type {number[]} */ weights) {
  let offset = 0;
  /** @type {Array<{sum: number, weight: number, from: number}>} */ const pools = [];
  const offsets = row.map((s, i) => {
    if (i) offset += (row[i - 1].w + s.w) / 2 + GAP.x;
    return offset;
  });
  row.forEach((s, i) => {
    pools.push({ sum: weights[i] * (wishes[i] - offsets[i]), weight: weights[i], from: i });
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

/** Lanes of edges that pass layers, the shortest first; edges of one tail may share one. */
function lanes(/** @type {Path[]} */ paths, /** @type {Spot[][]} */ rows, /** @type {Set<Edge>} */ trunk) {
  const blocked = rows.map((row) => row.map((s) => ({ low: left(s), high: right(s), tail: /** @type {number|null} */ (null) })));
  const long = paths.filter((p) => p.to.layer - p.from.layer > 1).sort((a, b) => a.to.layer - a.from.layer - b.to.layer + b.from.layer);
  for (const path of long) {
    const between = blocked.slice(path.from.layer + 1, path.to.layer);
    const [x, y] = [path.from.x + path.from.exit, path.to.x + path.to.entry];
    if (trunk.has(path.edge)) path.lane = x;
    else {
      const near = between.flat();
      const others = near.filter((o) => o.tail !== path.edge.tail);
      const shared = near.filter((o) => o.tail === path.edge.tail).map((o) => o.low);
      const sides = others.length > MOST.obstacles
        ? [Math.min(...others.map((o) => o.low)) - GAP.lane, Math.max(...others.map((o) => o.high)) + GAP.lane]
        : [x, y, ...others.flatMap((o) => [o.low - GAP.lane, o.high + GAP.lane])];
      // To the right where both sides are as near.
      const cost = (/** @type {number} */ at) => Math.abs(at - x) + Math.abs(at - y) + (at < Math.min(x, y) ? 2 : 0) - (shared.includes(at) ? 4 * GAP.lane : 0);
      const free = [...new Set([...shared, ...sides])].filter((at) => others.every((o) => at <= o.low - GAP.clear || at >= o.high + GAP.clear));
      path.lane = free.reduce((best, at) => (cost(at) < cost(best) ? at : best));
    }
    for (const row of between) row.push({ low: path.lane, high: path.lane, tail: path.edge.tail });
  }
}

/** Whether fewer arrows turn to the left than to the right where an edge leaves an item. */
function turned(/** @type {Path} */ path, /** @type {Path[]} */ paths, /** @type {number[]} */ column) {
  const start = path.from.x + path.from.exit;
  const sides = [0, 0];
  for (const p of paths) {
    const leaves = p.from === path.from;
    const crosses = column[p.from.layer] !== column[p.to.layer];
    if (!leaves && (p.to !== path.to || crosses)) continue;
    const far = crosses ? 1e6 : (p.lane ?? (leaves ? p.to.x + p.to.entry : p.from.x + p.from.exit)) - start;
    // What enters below comes near the arrow further down than what leaves.
    if (Math.abs(far) > 4) sides[Number(far > 0)] += leaves ? 2 : 1;
  }
  return sides[0] < sides[1];
}

/** Points along an edge, as it is drawn, in the gaps between rows that it passes. @returns {Array<[number, number]>} */
function along(/** @type {Path} */ path, /** @type {Array<{top: number, bottom: number, low: number}>} */ bands) {
  const { from, to, lane, x } = path;
  const start = from.x + from.exit;
  const top = Math.max(from.y + from.h, bands[from.layer].low);
  const last = bands[to.layer].top;
  /** @type {Array<[number, number, number, number]>} */ let parts;
  if (path.turns) {
    const corners = [[start, from.y + from.h], ...path.turns, [x, to.y]];
    parts = corners.slice(1).map(([x1, y1], i) => [corners[i][0], corners[i][1], x1, y1]);
  } else if (lane === null) parts = [[start, from.y + from.h, start, top], [start, top, x, last], [x, last, x, to.y]];
  else {
    const [first, end] = [bands[from.layer + 1].top, bands[to.layer - 1].low];
    parts = [[start, top, lane, first], [lane, first, lane, end], [lane, end, x, last], [x, last, x, to.y]];
  }
  return parts.flatMap(([x0, y0, x1, y1]) => {
    const many = Math.max(2, Math.ceil((Math.abs(x1 - x0) + Math.abs(y1 - y0)) / 6));
    return Array.from({ length: many + 1 }, (_, i) => {
      const t = i / many;
      const s = path.turns ? t : t * t * (3 - 2 * t);
      const y = path.turns ? t : 0.5 * (3 * t * (1 - t)) + t * t * t;
      return /** @type {[number, number]} */ ([x0 + (x1 - x0) * s, y0 + (y1 - y0) * y]);
    });
  });
}

/** Put a label on the other side of its arrow where fewer arrows, and none more, run through it. */
function clear(/** @type {Path[]} */ paths, /** @type {Array<{top: number, bottom: number, low: number}>} */ bands, /** @type {number} */ wide) {
  const labelled = paths.filter((p) => p.edge.room && p.edge.tail >= 0);
  if (labelled.length > MOST.labels) return;
  const points = paths.map((p) => along(p, bands));
  for (const from of new Set(labelled.map((p) => p.from))) {
    const room = Math.max(...labelled.filter((p) => p.from === from).map((p) => p.edge.room || 0));
    const start = from.x + from.exit;
    const [top, bottom] = [from.y + from.h + 3, from.y + from.h + 18];
    const struck = (/** @type {boolean} */ before) => {
      const [low, high] = before ? [start - room, start - 4] : [start + 4, start + room];
      if (low < -GAP.pad / 2 || high > wide + GAP.pad / 2) return Infinity;
      return points.reduce((sum, some) => sum + Number(some.some(([x, y]) => x > low && x < high && y > top && y < bottom)), 0);
    };
    const own = paths.filter((p) => p.from === from);
    if (struck(!own[0].before) < struck(own[0].before)) for (const p of own) p.before = !p.before;
  }
}

/** The way to another column: below the tail, up between the columns, from above into the head. @returns {Array<[number, number]>} */
function turns(/** @type {Path} */ path, /** @type {number[]} */ column, /** @type {Array<{top: number, bottom: number, low: number}>} */ bands,
  /** @type {(c: number) => number} */ gutter, /** @type {number} */ i) {
  const { from, to } = path;
  const [a, b] = [column[from.layer], column[to.layer]];
  const aside = (i % 4) * 5 - 8; // several of them run beside one another
  // Above the next row of its column, if there is one: below an entry there is less room.
  const next = column[from.layer + 1] === a ? bands[from.layer + 1].top - 8 : Infinity;
  const low = Math.min(bands[from.layer].bottom + 28 + aside / 2, next);
  const high = bands[to.layer].top - GAP.y / 2 + (to.y === bands[to.layer].top ? 4 : 0) + aside / 2;
  const x = from.x + from.exit;
  // To the left where an edge closes a cycle.
  const [out, into] = b > a ? [a + 1, b] : [a, b + 1];
  /** @type {Array<[number, number]>} */ const way = [[x, low], [gutter(out) + aside, low]];
  if (into !== out) way.push([gutter(out) + aside, aside / 2], [gutter(into) + aside, aside / 2]);
  return [...way, [gutter(into) + aside, high], [to.x + to.entry, high]];
}

/** Where arrows enter a closed item: the trunk in the middle, the others beside it, on their sides. */
function tips(/** @type {Path[]} */ paths, /** @type {Edge[]} */ trunk) {
  /** @type {Map<Spot, Path[]>} */ const into = new Map();
  for (const path of paths) if (!path.to.open && !path.turns) into.set(path.to, [...(into.get(path.to) || []), path]);
  for (const [to, some] of into) {
    if (some.length < 2) continue;
    const from = (/** @type {Path} */ p) => p.lane ?? p.from.x + p.from.exit;
    some.sort((a, b) => from(a) - from(b));
    const main = some.findIndex((p) => trunk.includes(p.edge));
    const middle = main < 0 ? (some.length - 1) / 2 : main;
    const step = Math.min(GAP.tip, (to.w - 16) / 2 / Math.max(middle, some.length - 1 - middle));
    some.forEach((p, i) => (p.x = to.x + (i - middle) * step));
  }
}

/** First rows of so many columns that the tallest is as low as can be. @returns {number[]} */
function broken(/** @type {number[]} */ heights, /** @type {number} */ columns) {
  const starts = (/** @type {number} */ most) => {
    const found = [0];
    let sum = 0;
    heights.forEach((h, i) => {
      if (i && sum + h > most) {
        found.push(i);
        sum = 0;
      }
      sum += h;
    });
    return found;
  };
  let [low, high] = [Math.max(0, ...heights), heights.reduce((a, b) => a + b, 0)];
  while (high - low > 1) {
    const middle = (low + high) / 2;
    if (starts(middle).length <= columns) high = middle;
    else low = middle;
  }
  return starts(high);
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
  children.forEach((_, i) => used.has(i) || add(i, -2, ""));
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
