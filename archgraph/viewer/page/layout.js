// Where the children of one container stand: a straight trunk from top to bottom, shortcuts in lanes beside it.

const GAP = { x: 26, y: 36, pad: 14, head: 24, lane: 14, clear: 9, column: 64, top: 10, tip: 12, end: 22, drop: 17, run: 8 };
const PASSES = 7; // the last one down: a branch stands below its beginning
// Columns, and those beside which skips can be followed; blocks that an edge passes and is not long.
const MOST = { columns: 8, beside: 2, obstacles: 300, blocks: 1, names: 2 };

/**
 * @typedef {{tail: number, head: number, label: string, quiet: boolean, sources: string[], labels: Record<string, string>, exit?: number, port?: number, room?: number}} Edge
 * tail: child, or -1, -3, … for entries of the container; head: child, or -2, -4, … for its exits; quiet: only masks or only trains;
 * sources: boxes of its values, each with its label; exit, port: exit of an open tail, entry of an open head; room: width of its label
 * @typedef {{w: number, h: number, entries: number[], exits: number[], entry: number, exit: number, open: boolean, blocks: number, name: string, reach: number}} Size
 * entries, exits: where arrows enter and leave an open item, from the centre; entry, exit: the main ones; blocks: number of blocks; name: in words of skips; reach: of its mark, to the right of its centre
 */

/**
 * @typedef {Size & {x: number, y: number, layer: number, up: Spot[], down: Spot[], near: {up: Array<[Spot, number, number, number]>, down: Array<[Spot, number, number, number]>}}} Spot
 * x: centre, y: upper edge; up, down: neighbours in the next layers; near: ends of its edges, how much they pull, ports and exits
 */

/**
 * @typedef {Object} Path
 * @property {Edge} edge
 * @property {Spot} from
 * @property {Spot} to
 * @property {number|null} lane x of its way past the layers between; null: there are none
 * @property {number} x where it enters
 * @property {boolean} before whether its label stands left of it
 * @property {[number, number]|null} sides on which it leaves and comes, if it turns at right angles; -1: left
 * @property {number[]} ways gutters that it runs in, then where it does: left of a column, and right of one
 * @property {[number, number, number]} level y of its way to the side, to its head, and above the columns between; from an entry, how far its bend is from rows
 * @property {Array<[number, number]>} points from its tail to its head
 */

/**
 * What stands at an end of long skips: one for all that leave or enter an item (head: 1) on one side; it takes the room from low to high.
 * @typedef {{at: Spot, head: number, side: number, text: string, x: number, y: number, low: number, high: number}} Word
 */

/** @typedef {{top: number, bottom: number, low: number, high: number, end: number}} Band a row; arrows bend below `low` and above `high`, and nothing is below `end` */
/** @typedef {(rows: Array<{w: number, h: number}>, most: number) => number[]} Columns the first row of each column */

/** @returns {Spot} */
function spot(/** @type {Partial<Size>} */ size, /** @type {number} */ layer = 0) {
  return { w: 2, h: 0, entries: [], exits: [], entry: 0, exit: 0, open: true, blocks: 0, name: "", reach: 0, ...size, x: 0, y: 0, layer, up: [], down: [], near: { up: [], down: [] } };
}

/** An order in which all that feeds a child comes before it; of a cycle the first child goes first. @returns {number[]} */
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

/** Layout of the children of a container, in whatever order they are; rows of a single column begin at `tops`, if there are any. */
function layered(/** @type {Size[]} */ sizes, /** @type {Edge[]} */ edges, columns = /** @type {Columns} */ (() => [0]), tops = /** @type {number[]|null} */ (null)) {
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
 * Layered layout after Sugiyama, Tagawa and Toda (1981), of children in topological order but for cycles.
 * 1. Layers: an item stands below all that feeds it.
 * 2. Order in a layer: by the mean of the neighbours; edges that pass a layer count there.
 * 3. The trunk, a longest path, is straight but for branches; other items stand near their neighbours (isotonic regression).
 * 4. Rows are broken into columns where `columns` says so.
 * 5. An edge that passes layers runs in a lane: the nearest that no item and no other lane is in. One that passes many
 *    blocks (a long skip), closes a cycle or leads to another column turns at right angles.
 * 6. Between two rows stand, from above: labels, ways out to the side, bends, words of long skips, ways in.
 * 7. Between two columns run those that turn there.
 */
function stacked(/** @type {Size[]} */ sizes, /** @type {Edge[]} */ edges, /** @type {Columns} */ columns, /** @type {number[]|null} */ tops) {
  const spots = sizes.map((size) => spot(size));
  /** @type {Spot[]} */ const entries = [];
  /** @type {Spot[]} */ const exits = [];
  const beyond = (/** @type {number} */ end) => (end % 2 ? entries : exits);
  for (const end of edges.flatMap((e) => [e.tail, e.head])) if (end < 0) beyond(end)[(-1 - end) >> 1] ??= spot({});
  const at = (/** @type {number} */ i) => (i < 0 ? beyond(i)[(-1 - i) >> 1] : spots[i]);
  const forward = edges.filter((e) => e.tail < 0 || e.head < 0 || e.tail < e.head);
  rank(spots, forward, entries.length, exits); // 1
  const longer = longest(spots.length, forward, new Set(edges.map((e) => e.tail)));
  const loose = branched(spots.length, forward, longer);
  const trunk = new Set(longer.filter((e) => !loose.has(e.tail) && !loose.has(e.head)));
  const fixed = new Set(longer.flatMap((e) => [e.tail, e.head]).filter((i) => !loose.has(i)).map(at));
  for (const e of longer) {
    at(e.head).entry = enter(at(e.head), e.port);
    at(e.tail).exit = leave(at(e.tail), e.exit);
  }
  const bends = new Set();
  const all = new Set([...spots, ...entries, ...exits]);
  for (const edge of forward) {
    for (const bend of bent(at(edge.tail), at(edge.head), edge)) {
      all.add(bend);
      // The trunk passes a layer as if an item stood there.
      if (trunk.has(edge)) fixed.add(bend);
      else bends.add(bend);
    }
  }
  /** @type {Spot[][]} */ const layers = [];
  for (const one of all) (layers[one.layer] = layers[one.layer] || []).push(one);
  const filled = layers.filter(Boolean);
  order(filled, entries); // 2
  const rows = filled.map((row) => row.filter((s) => !bends.has(s)));
  rows.forEach((row, i) => row.forEach((s) => (s.layer = i)));
  place(rows, fixed); // 3
  const paths = edges.map((edge) => /** @type {Path} */ ({ edge, from: at(edge.tail), to: at(edge.head), lane: null, x: 0, before: false, sides: null, ways: [], level: [0, 0, 0], points: [] }));
  const long = skips(paths, rows, trunk);
  const areas = rows.map((row) => ({ w: Math.max(...row.map(right)) - Math.min(...row.map(left)), h: tallest(row) + GAP.y }));
  const starts = columns(areas, long.length ? MOST.beside : MOST.columns); // 4
  const column = rows.map((_, i) => starts.filter((start) => start <= i).length - 1);
  const words = worded(paths, long, column); // 5
  lanes(paths.filter((p) => !p.ways.length), rows, trunk, words);
  label(paths, words);
  const bands = banded(rows, paths, words, starts, tops); // 6
  const w = spaced(paths, rows, words, column); // 7
  tips(paths, trunk);
  paths.forEach((p) => route(p, bands));
  return { spots, entries, exits, bands, paths, words, columns: starts.length, w, h: Math.max(0, ...bands.map((b) => b.end)) };
}

const tallest = (/** @type {Spot[]} */ row) => Math.max(0, ...row.map((s) => s.h));
const left = (/** @type {Spot} */ s) => s.x - s.w / 2;
const right = (/** @type {Spot} */ s) => s.x + s.w / 2;
const enter = (/** @type {Spot} */ s, port = 0) => s.entries[port] ?? s.entry;
const leave = (/** @type {Spot} */ s, exit = 0) => s.exits[exit] ?? s.exit;
const entering = (/** @type {Path} */ { edge, to }) => to.x + enter(to, edge.port);
const leaving = (/** @type {Path} */ { edge, from }) => from.x + leave(from, edge.exit);
/** Where it comes from, from left to right; of those from one side, the highest goes farthest. */
const coming = (/** @type {Path} */ p) => (p.sides ? p.sides[1] * (1e6 + p.level[1]) : p.lane ?? leaving(p));

/** Layers: below all that feeds it; what nothing feeds stands just above its first user. */
function rank(/** @type {Spot[]} */ spots, /** @type {Edge[]} */ edges, /** @type {number} */ entries, /** @type {Spot[]} */ exits) {
  const low = entries ? 1 : 0;
  const into = spots.map(() => /** @type {number[]} */ ([]));
  const out = spots.map(() => /** @type {number[]} */ ([]));
  for (const { tail, head } of edges.filter((e) => e.tail >= 0 && e.head >= 0)) {
    into[head].push(tail);
    out[tail].push(head);
  }
  spots.forEach((s, i) => (s.layer = Math.max(low, ...into[i].map((t) => spots[t].layer + 1))));
  const fed = new Set(edges.filter((e) => e.tail < 0).map((e) => e.head));
  for (let i = spots.length - 1; i >= 0; i--) {
    if (!into[i].length && !fed.has(i) && out[i].length) {
      spots[i].layer = Math.max(low, Math.min(...out[i].map((h) => spots[h].layer)) - 1);
    }
  }
  for (const exit of exits) exit.layer = Math.max(low, ...spots.map((s) => s.layer + 1));
}

/** The edges of a longest path, from the entry and to the exit where there are such; of equal ways the middle one. @returns {Edge[]} */
function longest(/** @type {number} */ many, /** @type {Edge[]} */ edges, /** @type {Set<number>} */ tails) {
  const into = Array.from({ length: many }, () => /** @type {Edge[]} */ ([]));
  const out = edges.filter((e) => e.head < 0);
  for (const e of edges) if (e.head >= 0) into[e.head].push(e);
  /** @type {number[]} */ const length = [];
  const reach = (/** @type {Edge} */ e) => (e.tail < 0 ? 1 : length[e.tail] + (e.quiet ? 0.01 : 1));
  const best = (/** @type {Edge[]} */ some) => {
    const most = Math.max(...some.map(reach));
    const equal = some.filter((e) => reach(e) === most);
    return equal[(equal.length - 1) >> 1];
  };
  for (let i = 0; i < many; i++) length.push(into[i].length ? reach(best(into[i])) : 0);
  // It ends where nothing goes on.
  const ends = length.map((far, i) => (tails.has(i) ? far / many : far));
  const path = out.length ? [best(out)] : [];
  let at = out.length ? path[0].tail : ends.indexOf(Math.max(...ends));
  while (at >= 0 && into[at].length) {
    path.push(best(into[at]));
    at = path[path.length - 1].tail;
  }
  return path;
}

/** Items of the trunk beside which others stand between the same fork and merge: none of them is the straight way. @returns {Set<number>} */
function branched(/** @type {number} */ many, /** @type {Edge[]} */ edges, /** @type {Edge[]} */ trunk) {
  const rank = new Map(trunk.map((e, i) => [e.head, trunk.length - i]));
  if (trunk.length) rank.set(trunk[trunk.length - 1].tail, 0);
  const ways = edges.filter((e) => !e.quiet);
  const [fork, merge] = [new Map(rank), new Map(rank)];
  for (let i = 0; i < many; i++) {
    if (!rank.has(i)) fork.set(i, Math.max(...ways.filter((e) => e.head === i).map((e) => fork.get(e.tail) ?? -Infinity)));
  }
  for (let i = many - 1; i >= 0; i--) {
    if (!rank.has(i)) merge.set(i, Math.min(...ways.filter((e) => e.tail === i).map((e) => merge.get(e.head) ?? Infinity)));
  }
  const beside = [...fork.keys()].filter((i) => !rank.has(i) && fork.get(i) >= 0 && merge.get(i) <= trunk.length);
  return new Set([...rank.keys()].filter((i) => beside.some((other) => fork.get(other) < rank.get(i) && rank.get(i) < merge.get(other))));
}

/** Make neighbours of an edge's ends; what stands for it in the layers between. @returns {Spot[]} */
function bent(/** @type {Spot} */ tail, /** @type {Spot} */ head, /** @type {Edge} */ { quiet, port = 0, exit = 0 }) {
  const bends = [];
  for (let layer = tail.layer + 1; layer < head.layer; layer++) bends.push(spot({}, layer));
  const chain = [tail, ...bends, head];
  for (let i = 1; i < chain.length; i++) {
    chain[i - 1].down.push(chain[i]);
    chain[i].up.push(chain[i - 1]);
  }
  const pull = bends.length || quiet ? 1 : 8;
  tail.near.down.push([head, pull, port, exit]);
  head.near.up.push([tail, pull, port, exit]);
  return bends;
}

/** Order within each layer by the mean place of the neighbours, down and up in turn; that of entries is given. */
function order(/** @type {Spot[][]} */ rows, /** @type {Spot[]} */ entries) {
  const place = new Map();
  // Those from one item stand in the order of its exits.
  const outlet = (/** @type {Spot} */ s) => s.near.up.reduce((sum, [n, , , exit]) => sum + leave(n, exit), 0);
  const number = (/** @type {Spot[]} */ row) => row.forEach((s, i) => place.set(s, i - (row.length - 1) / 2));
  rows.forEach(number);
  const free = rows.filter((row) => row[0] !== entries[0]);
  for (let pass = 0; pass < PASSES; pass++) {
    const down = pass % 2 === 0;
    for (const row of down ? free : [...free].reverse()) {
      const wish = new Map(row.map((s) => {
        const near = down ? s.up : s.down;
        return [s, near.length ? near.reduce((sum, n) => sum + place.get(n), 0) / near.length : place.get(s)];
      }));
      row.sort((a, b) => wish.get(a) - wish.get(b) || outlet(a) - outlet(b) || b.w - a.w);
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
        return near.reduce((sum, [n, pull, port, exit]) => sum + pull * (n.x + (above ? leave(n, exit) - enter(s, port) : enter(n, port) - leave(s, exit))), 0) / total;
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

/** Edges that pass more than `MOST.blocks` blocks. @returns {Path[]} */
function skips(/** @type {Path[]} */ paths, /** @type {Spot[][]} */ rows, /** @type {Set<Edge>} */ trunk) {
  const passed = rows.map((row) => Math.max(0, ...row.map((s) => s.blocks)));
  const blocks = (/** @type {Path} */ { from, to }) => passed.slice(from.layer + 1, to.layer).reduce((sum, many) => sum + many, 0);
  return paths.filter((p) => !p.edge.quiet && !trunk.has(p.edge) && p.from.name && p.to.name && blocks(p) > MOST.blocks);
}

/** Where paths turn, and the words at the ends of long skips. @returns {Word[]} */
function worded(/** @type {Path[]} */ paths, /** @type {Path[]} */ long, /** @type {number[]} */ column) {
  /** @type {Map<string, {at: Spot, head: number, side: number, names: string[]}>} */ const ends = new Map();
  for (const p of paths) {
    const { edge, from, to } = p;
    const [a, b] = [column[from.layer], column[to.layer]];
    // To the left where an edge closes a cycle.
    if (a !== b) [p.sides, p.ways] = a < b ? [[1, -1], [a + 1, b]] : [[-1, 1], [a, b + 1]];
    else if (from.layer >= to.layer) [p.sides, p.ways] = [[-1, -1], [a, a]];
    else if (long.includes(p)) p.sides = [1, 1];
    for (const head of long.includes(p) ? [0, 1] : []) {
      const side = /** @type {number[]} */ (p.sides)[head];
      const key = `${[edge.tail, edge.head][head]} ${head} ${side}`;
      ends.set(key, { at: [from, to][head], head, side, names: [...ends.get(key)?.names || [], [to, from][head].name] });
    }
  }
  return [...ends.values()].map(({ at, head, side, names }) => {
    const text = `${["to", "skip from"][head]} ${names.slice(0, MOST.names).join(", ")}${names.length > MOST.names ? ` and ${names.length - MOST.names} more` : ""}`;
    // Beside the arrows that enter there.
    const arrows = head && !at.open ? paths.filter((p) => p.to === at).length - names.length - 1 : 0;
    const [own, main] = [[at.exits, at.exit], [at.entries, at.entry]][head];
    const ports = /** @type {number[]} */ (own).length ? /** @type {number[]} */ (own) : [main];
    const x = at.x + side * Math.max(...ports.map((port) => side * port)) + side * Math.min(GAP.tip * Math.max(0, arrows), at.w / 2);
    const end = x + side * (wide(text, false) + 2 * GAP.tip);
    return { at, head, side, text, x, y: 0, low: Math.min(x, end), high: Math.max(x, end) };
  });
}

/** Lanes of edges that pass layers within a column, the shortest first; edges of one value may share one, dashed ones apart. */
function lanes(/** @type {Path[]} */ paths, /** @type {Spot[][]} */ rows, /** @type {Set<Edge>} */ trunk, /** @type {Word[]} */ words) {
  const valueOf = (/** @type {Edge} */ { tail, exit = 0, quiet }) => `${tail} ${exit} ${quiet}`;
  /** @type {Array<Array<{low: number, high: number, value: string}>>} */
  const blocked = rows.flatMap((row) => [row.map((s) => ({ low: left(s), high: right(s), value: "" })), []]); // rows, and the gaps below them
  for (const { at, head, low, high } of words) blocked[2 * (at.layer - head) + 1].push({ low, high, value: "" });
  for (const p of paths) {
    const start = leaving(p);
    if (p.edge.room && p.edge.tail >= 0) blocked[2 * p.from.layer + 1].push({ low: start, high: start + p.edge.room, value: valueOf(p.edge) });
  }
  const long = paths.filter((p) => p.to.layer - p.from.layer > 1).sort((a, b) => a.to.layer - a.from.layer - b.to.layer + b.from.layer);
  for (const path of long) {
    const value = valueOf(path.edge);
    const between = blocked.slice(2 * path.from.layer + 1, 2 * path.to.layer);
    const [x, y] = [leaving(path), entering(path)];
    if (trunk.has(path.edge)) path.lane = x;
    else {
      const near = between.flat();
      const others = near.filter((o) => o.value !== value);
      const shared = near.filter((o) => o.value === value && o.low === o.high).map((o) => o.low);
      const sides = others.length > MOST.obstacles
        ? [Math.min(...others.map((o) => o.low)) - GAP.lane, Math.max(...others.map((o) => o.high)) + GAP.lane]
        : [x, y, ...others.flatMap((o) => [o.low - GAP.lane, o.high + GAP.lane])];
      // To the right where both sides are as near; long skips all on the right, with their words.
      const cost = (/** @type {number} */ at) => Math.abs(at - x) + Math.abs(at - y) + (at < Math.min(x, y) ? 2 : 0) - (shared.includes(at) ? 4 * GAP.lane : 0);
      const free = [...new Set([...shared, ...sides])].filter((at) => (!path.sides || at > Math.max(x, y)) && others.every((o) => at <= o.low - GAP.clear || at >= o.high + GAP.clear));
      path.lane = free.reduce((best, at) => (cost(at) < cost(best) ? at : best));
    }
    for (const slot of between) slot.push({ low: path.lane, high: path.lane, value });
  }
}

/** Put labels to the left of their arrows where fewer other arrows run, or fewer of their own turn. */
function label(/** @type {Path[]} */ paths, /** @type {Word[]} */ words) {
  for (const first of paths.filter((p) => p.edge.room && p.edge.tail >= 0)) {
    const { from } = first;
    const start = leaving(first);
    const own = paths.filter((p) => p.from === from && leaving(p) === start);
    const room = Math.max(...own.map((p) => p.edge.room || 0));
    /** @type {Array<[number, number]>} */ const beside = paths.flatMap((p) => {
      const [mine, here, there] = [own.includes(p), leaving(p) - start, (p.lane ?? entering(p)) - start];
      const through = p.from.layer === from.layer ? here : p.from.layer < from.layer && from.layer < p.to.layer && p.lane !== null ? there : 0;
      // What turns below, away from here or into where its own arrows lead, is drawn close to it.
      const aside = p.sides ? p.sides[mine ? 0 : 1] * room : mine || p.lane !== null ? there : here;
      return [[Math.abs(through) < room ? through : 0, 1000], [Math.abs(aside) > 4 && (mine || own.some((one) => one.to === p.to)) ? aside : 0, mine ? 2 : 1]];
    });
    for (const word of words) if (word.at === from && !word.head) beside.push([word.side, 1000]);
    for (const p of own) p.before = beside.reduce((sum, [x, weight]) => sum + Math.sign(x) * weight, 0) > 0;
  }
}

/** Levels of rows, and of what turns between them. @returns {Band[]} */
function banded(/** @type {Spot[][]} */ rows, /** @type {Path[]} */ paths, /** @type {Word[]} */ words, /** @type {number[]} */ starts, /** @type {number[]|null} */ tops) {
  const turning = paths.filter((p) => p.sides);
  const over = turning.filter((p) => p.ways[0] !== p.ways[1]); // above the columns between
  over.forEach((p, k) => (p.level[2] = GAP.run * k));
  const aside = paths.filter((p) => p.edge.room && p.edge.tail >= 0 && (p.sides || p.lane !== null || Math.abs(entering(p) - leaving(p)) > GAP.tip));
  const labelled = new Set(aside.map((p) => p.from.layer));
  // Of entries, the nearer to the trunk bends lower: it does not run along another.
  const entries = [...new Set(paths.filter((p) => p.edge.tail < 0).map((p) => p.from))].sort((a, b) => Math.abs(b.x) - Math.abs(a.x));
  for (const p of paths) if (p.edge.tail < 0 && !p.sides) p.level = [GAP.lane * entries.indexOf(p.from), GAP.lane * (entries.length - 1 - entries.indexOf(p.from)), 0];
  let y = 0;
  const bands = rows.map((row, i) => {
    // The outer ones lower: they do not cross the others.
    const into = turning.filter((p) => p.to.layer === i).sort((a, b) => (b.lane ?? 0) - (a.lane ?? 0));
    const out = [...new Set(turning.filter((p) => p.from.layer === i).map(leaving))].sort((a, b) => b - a);
    const said = words.filter((word) => word.at.layer === i);
    // Results have their labels above them.
    const result = aside.some((p) => p.to.layer === i && !p.to.name && p.to.h) ? GAP.drop + 4 : 0;
    const above = Math.max(result, into.length && GAP.tip + GAP.run * (into.length - 1) + (said.some((word) => word.head) ? GAP.drop : GAP.run));
    if (starts.includes(i)) y = starts.length > 1 ? GAP.top + GAP.run * over.length : 0;
    const top = tops && starts.length === 1 ? tops[i] : y + above;
    const bottom = top + tallest(row);
    // Where arrows with labels turn, they turn below the labels.
    const drop = labelled.has(i) ? GAP.drop : out.length && GAP.run;
    const low = bottom + drop + GAP.run * out.length;
    for (const s of row) s.y = (top + bottom - s.h) / 2;
    for (const word of said) word.y = [bottom + GAP.drop - 2, top - above + GAP.tip][word.head];
    for (const p of turning) if (p.from.layer === i) p.level[0] = bottom + drop + GAP.run * (out.indexOf(leaving(p)) + 0.5);
    into.forEach((p, k) => (p.level[1] = top - GAP.tip - GAP.run * k));
    // Nothing stands in the rows of entry and exit.
    y = low + (tallest(row) && (!rows[i + 1] || tallest(rows[i + 1])) ? GAP.y : GAP.end) - (labelled.has(i) ? 4 : 0) + (i ? 0 : GAP.lane * Math.max(0, entries.length - 1));
    return { top, bottom, low, high: top - above, end: out.length || starts.length > 1 ? low + GAP.run : bottom };
  });
  // What comes out of one column is not level with what goes into another, as if it went on.
  for (const { level } of turning) level[0] = Math.max(level[0], ...turning.map((p) => p.level[1] + 4).filter((y) => Math.abs(y - 4 - level[0]) < 4));
  return bands;
}

/** Put columns side by side, with room between them for what turns there. @returns {number} width of all */
function spaced(/** @type {Path[]} */ paths, /** @type {Spot[][]} */ rows, /** @type {Word[]} */ words, /** @type {number[]} */ column) {
  const many = column.map(() => 0);
  const turns = paths.map((p) => [...new Set(p.ways)].map((c) => [c, many[c]++]));
  let from = 0;
  const places = [...new Set(column)].map((c) => {
    const own = (/** @type {Spot} */ s) => column[s.layer] === c;
    const xs = [...rows.flat().filter(own).flatMap((s) => [left(s), right(s), s.x + s.reach]), ...words.filter(({ at }) => own(at)).flatMap(({ low, high }) => [low, high]),
      ...paths.flatMap((p) => (p.lane !== null && own(p.to) ? [p.lane] : [])),
      ...paths.flatMap((p) => (p.edge.tail >= 0 && own(p.from) ? [leaving(p) + (p.before ? -1 : 1) * (p.edge.room || 0)] : []))];
    const room = c ? Math.max(GAP.column, GAP.run * (many[c] + 4)) : GAP.run * many[c];
    const gutter = from + (room - GAP.run * (many[c] - 1)) / 2;
    const shift = from + room - Math.min(...xs);
    from = Math.max(...xs) + shift;
    return { gutter, shift };
  });
  for (const row of rows) for (const s of row) s.x += places[column[s.layer]].shift;
  for (const word of words) word.x += places[column[word.at.layer]].shift;
  paths.forEach((p, i) => {
    if (p.lane !== null) p.lane += places[column[p.to.layer]].shift;
    p.ways = turns[i].map(([c, k]) => places[c].gutter + GAP.run * k);
  });
  return from;
}

/** The corners of an edge's way. */
function route(/** @type {Path} */ p, /** @type {Band[]} */ bands) {
  const { from, to, lane, x, level } = p;
  const start = leaving(p);
  const ways = lane === null ? p.ways : [lane];
  const [low, high] = p.sides ? level : [bands[from.layer].low + level[0], bands[to.layer].high - (lane === null ? level[1] : 0)];
  /** @type {Array<[number, number]>} */ let between = [];
  if (p.sides) between = ways.flatMap((at, i) => [[at, i ? level[2] : low], [at, i + 1 < ways.length ? level[2] : high]]);
  else if (lane !== null) between = [[lane, bands[from.layer + 1].high - level[1]], [lane, bands[to.layer - 1].low]];
  p.points = [[start, from.y + from.h], [start, low], ...between, [x, high], [x, to.y]];
}

/** Where arrows enter a closed item: the trunk in the middle, the others beside it, on their sides. */
function tips(/** @type {Path[]} */ paths, /** @type {Set<Edge>} */ trunk) {
  /** @type {Map<Spot, Path[]>} */ const into = new Map();
  for (const path of paths) {
    path.x = entering(path);
    if (!path.to.open) into.set(path.to, [...(into.get(path.to) || []), path]);
  }
  for (const [to, some] of into) {
    if (some.length < 2) continue;
    some.sort((a, b) => coming(a) - coming(b));
    const main = some.findIndex((p) => trunk.has(p.edge));
    const middle = main < 0 ? (some.length - 1) / 2 : main;
    const step = Math.min(GAP.tip, (to.w - 16) / 2 / Math.max(middle, some.length - 1 - middle));
    some.forEach((p, i) => (p.x = to.x + (i - middle) * step));
  }
}

/** First rows of so many columns that the tallest is about as low as can be. @returns {number[]} */
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
  let most = heights.reduce((a, b) => a + b, 0) / columns;
  while (starts(most).length > columns) most *= 1.01;
  return starts(most);
}

/** Links between the children of a container, its entries and exits included: one for each value that passes. @returns {Edge[]} */
function edgesIn(/** @type {Model} */ model, /** @type {Item} */ item, /** @type {Item[]} */ children) {
  const found = new Map();
  /** @type {string[]} */ const exits = [];
  const add = (/** @type {number|undefined} */ tail, /** @type {number} */ head, /** @type {string} */ label, quiet = false, source = "", shown = source) => {
    if (tail === undefined || tail === head) return;
    if (tail === -1 && !item.ports.includes(source)) item.ports.push(source);
    if (head === -2 && !exits.includes(shown)) exits.push(shown);
    if (head === -2) item.exits.set(source, exits.indexOf(shown));
    const from = tail === -1 ? -1 - 2 * item.ports.indexOf(source) : tail;
    const to = head === -2 ? -2 - 2 * exits.indexOf(shown) : head;
    const edge = found.get(`${from} ${to}`) || { tail: from, head: to, label, quiet, sources: [], labels: {} };
    found.set(`${from} ${to}`, edge);
    edge.sources.push(source);
    edge.labels[source] = label;
  };
  (children[0]?.kind === "operator" ? wires : arrows)(model, item, children, add);
  return [...found.values()];
}

/** An edge, or one for each pair of exit of an open tail and entry of an open head. @returns {Edge[]} */
function ported(/** @type {Edge} */ edge, /** @type {Map<string, number>} */ exits, /** @type {string[]} */ ports) {
  if (ports.length < 2 && new Set(exits.values()).size < 2) return [edge];
  /** @type {Map<string, Edge>} */ const found = new Map();
  for (const source of edge.sources) {
    const quiet = masks(source);
    // What only a later repetition takes enters where the first one takes its like.
    const port = Math.max(0, ports.includes(source) ? ports.indexOf(source) : ports.findIndex((other) => masks(other) === quiet));
    const exit = exits.get(source) ?? 0;
    const key = `${exit} ${port}`;
    if (!found.has(key)) found.set(key, { ...edge, label: edge.labels[source], quiet, exit, port, sources: [] });
    found.get(key)?.sources.push(source);
  }
  return [...found.values()];
}

const masks = (/** @type {string} */ source) => source.startsWith("quiet");
const sourceOf = (/** @type {number} */ box, /** @type {boolean} */ quiet) => `${quiet ? "quiet " : ""}${box}`;

/** Values that pass between the operators of a box. */
function wires(/** @type {Model} */ model, /** @type {Item} */ item, /** @type {Item[]} */ children, /** @type {Function} */ add) {
  const child = new Map(children.map((c, i) => [c.number, i]));
  const { kinds, operators } = model.data;
  const used = new Set();
  for (const [op, head] of child) {
    for (const source of model.feeds[op]) {
      const tail = child.get(source);
      if (tail !== undefined) used.add(tail);
      const arrow = model.into[item.boxes[0]].find(([from]) => from === operators.box[source]);
      add(tail ?? -1, head, kinds[operators.kind[source]][2], false, arrow && sourceOf(arrow[0], arrow[1][2] > 0));
    }
  }
  children.forEach((_, i) => used.has(i) || add(i, -2, ""));
}

/** Arrows between boxes, raised to the children that hold them. */
function arrows(/** @type {Model} */ model, /** @type {Item} */ item, /** @type {Item[]} */ children, /** @type {Function} */ add) {
  const child = new Map();
  children.forEach((c, i) => c.boxes.forEach((b) => child.set(b, i)));
  const twin = new Map();
  const own = new Set(item.boxes);
  if (item.times > 1) item.boxes.forEach((b, i) => twin.set(b, item.shown[i % item.shown.length]));
  for (const [box, head] of child) {
    for (const [tail, [, label, quiet]] of model.into[box]) {
      if (child.has(tail) || !own.has(tail)) add(child.get(tail) ?? -1, head, label, quiet > 0, sourceOf(tail, quiet > 0));
    }
  }
  for (const box of item.boxes) {
    for (const [head, arrow] of model.from[box]) {
      if (own.has(head)) continue;
      const tail = twin.get(box) ?? box;
      // What the last repetition hands on may be wider than what the one that is shown does.
      const ours = tail === box ? undefined : model.from[tail].find(([next]) => !child.has(next));
      const [, label, quiet] = ours ? ours[1] : arrow;
      add(child.get(tail), -2, label, quiet > 0, sourceOf(box, quiet > 0), String(tail));
    }
  }
}
