// The data of the page as a tree of items that open: sections, folds, blocks, boxes, operators.

/**
 * @typedef {Object} Item
 * @property {string} id unique in its graph: `s` section, `f` fold, `b` block, `x` box, `o` operator
 * @property {string} kind
 * @property {number} number of the section, block, box or operator
 * @property {string} name
 * @property {Array<[string, number]>} lines what it says; the second value tells a strong line
 * @property {number} times how often its contents follow one another
 * @property {number} fold number of the fold that it is or holds; -1: none
 * @property {number[]} boxes all boxes that it stands for, of every repetition
 * @property {number[]} shown boxes of the first repetition
 * @property {number[]} operators of the first repetition
 * @property {boolean} aside whether it takes part in training only
 * @property {Item|null} parent
 * @property {(() => Item[])|null} make what makes its children; null: it has none
 * @property {Item[]|null} children as made
 * @property {string[]} ports sources of the values that enter it, from left to right
 * @property {Map<string, number>} exits numbers of the exits by the sources of the values that leave it
 * @property {Edge[]|null} edges between the children, once they are known
 * @property {any} layout where its children stand; null: to be computed
 * @property {any} view what draws it
 * @property {number[]} [free] its free axes, once they are asked for
 */

/** Lists that count from the first number that no list before them has, as plain numbers. */
function unstepped(/** @type {number[]} */ column, /** @type {number[][]} */ lists) {
  let fresh = 0;
  return column.map((at) => {
    const numbers = lists[at].map((/** @type {number} */ n) => n + fresh);
    for (const n of numbers) if (n >= fresh) fresh = n + 1;
    return numbers;
  });
}

/** Lines that are not strong. @returns {Array<[string, number]>} */
const plain = (/** @type {string[]} */ words) => words.map((text) => [text, 0]);

/** One graph of the page: its data with every list decoded, and its tree. */
class Model {
  constructor(/** @type {any} */ data, /** @type {number} */ index) {
    this.data = data;
    this.index = index;
    const ops = data.operators;
    /** @type {number[][]} operators that each operator takes values from */
    this.feeds = ops.feeds.map((/** @type {number} */ at, /** @type {number} */ i) =>
      data.lists[at].map((/** @type {number} */ back) => i - back));
    /** @type {Set<number>} operators whose values nothing takes: counters of training steps */ this.idle = new Set(data.idle);
    this.leaves = unstepped(ops.leaves, data.lists);
    this.axes = unstepped(ops.axes, data.lists);
    /** @type {number[][]} */ this.inside = data.boxes.map(() => []);
    ops.box.forEach((/** @type {number} */ box, /** @type {number} */ op) => {
      if (box >= 0) this.inside[box].push(op);
    });
    /** @type {Array<Array<[number, any]>>} links by their head */ this.into = data.boxes.map(() => []);
    /** @type {Array<Array<[number, any]>>} links by their tail */ this.from = data.boxes.map(() => []);
    for (const [head, at] of data.links) {
      const arrow = data.arrows[at];
      this.into[head].push([head - arrow[0], arrow]);
      this.from[head - arrow[0]].push([head, arrow]);
    }
    /** @type {Set<number>} folds whose repetitions are all shown */ this.unfolded = new Set();
    /** @type {number[][]} operators of each block */ this.blockOps = [];
    /** @type {number[][]} boxes of each block */ this.blockBoxes = [];
    /** @type {number[]} section of each block */ this.sectionOf = [];
    /** @type {Map<number, number>} fold that begins at a block */ this.foldAt = new Map();
    this.range();
    /** @type {Map<string, Item>} */ this.items = new Map();
    this.root = this.plant();
  }

  /** Where the operators and boxes of each block begin and end. */
  range() {
    const { blocks, sections, operators } = this.data;
    const many = blocks.reduce((/** @type {number} */ sum, /** @type {any} */ b) => sum + b[2], 0);
    let start = operators.name.length - many;
    this.outside = start;
    for (const block of blocks) {
      const ops = Array.from({ length: block[2] }, (_, i) => start + i);
      start += block[2];
      this.blockOps.push(ops);
      this.blockBoxes.push([...new Set(ops.map((o) => operators.box[o]))].filter((b) => b >= 0).sort((a, b) => a - b));
    }
    let first = 0;
    this.sectionStart = sections.map((/** @type {any} */ section, /** @type {number} */ i) => {
      const at = first;
      first += section[1];
      for (let b = at; b < first; b++) this.sectionOf[b] = i;
      return at;
    });
    this.data.folds.forEach((/** @type {any} */ fold, /** @type {number} */ i) => this.foldAt.set(fold[0], i));
  }

  /** @returns {Item} */
  item(/** @type {Partial<Item>} */ values) {
    const base = { number: -1, name: "", lines: [], times: 1, fold: -1, boxes: [], operators: [], aside: false,
      parent: null, make: null, children: null, ports: [], exits: new Map(), edges: null, layout: null, view: null };
    const item = /** @type {Item} */ ({ ...base, ...values });
    item.shown = item.shown || item.boxes;
    this.items.set(item.id, item);
    return item;
  }

  /** Children, made when they are asked for. */
  children(/** @type {Item} */ item) {
    if (!item.children) {
      item.children = item.make ? item.make() : [];
      for (const child of item.children) child.parent = item;
    }
    return item.children;
  }

  plant() {
    const { data } = this;
    const framed = new Set(this.blockBoxes.flat());
    const all = data.boxes.map((/** @type {any} */ _, /** @type {number} */ i) => i);
    const alone = all.filter((/** @type {number} */ i) => !framed.has(i));
    return this.item({ id: "root", kind: "graph", name: data.name, boxes: all,
      operators: data.operators.name.map((/** @type {any} */ _, /** @type {number} */ i) => i),
      make: () => this.ordered([
        ...alone.map((/** @type {number} */ i) => this.box(i)),
        ...data.sections.map((/** @type {any} */ _, /** @type {number} */ i) => this.section(i)),
      ]) });
  }

  /** Items in the order of their first boxes, which is topological. */
  ordered(/** @type {Item[]} */ items) {
    return items.filter((item) => item.boxes.length || item.operators.length)
      .sort((a, b) => (a.shown[0] ?? 0) - (b.shown[0] ?? 0));
  }

  /** A section; one that holds a single block or fold stands for it. @returns {Item} */
  section(/** @type {number} */ i) {
    const [name, many, words] = this.data.sections[i];
    const start = this.sectionStart[i];
    const parts = this.parts(start, start + many);
    const boxes = parts.flatMap((part) => part.boxes).sort((a, b) => a - b);
    const only = parts.length === 1 ? parts[0] : null;
    if (only) {
      this.items.delete(only.id);
      return this.item({ ...only, id: `s${i}`, kind: "section", number: i, name });
    }
    return this.item({ id: `s${i}`, kind: "section", number: i, name, boxes,
      operators: parts.flatMap((p) => p.operators), lines: plain(words),
      make: () => this.ordered(this.parts(start, start + many)) });
  }

  /** Blocks and folds from one block to another. @returns {Item[]} */
  parts(/** @type {number} */ from, /** @type {number} */ to) {
    const found = [];
    for (let b = from; b < to;) {
      const fold = this.foldAt.get(b);
      if (fold === undefined || this.unfolded.has(fold)) {
        found.push(this.block(b));
        b += 1;
      } else {
        found.push(this.folded(fold));
        b += this.data.folds[fold][1] * this.data.folds[fold][2];
      }
    }
    return found;
  }

  /** @returns {Item} */
  folded(/** @type {number} */ fold) {
    const [first, period, times, name, , words] = this.data.folds[fold];
    const inside = Array.from({ length: period * times }, (_, i) => first + i);
    const shown = inside.slice(0, period);
    const boxesOf = (/** @type {number[]} */ bs) => bs.flatMap((b) => this.blockBoxes[b]).sort((x, y) => x - y);
    const operators = shown.flatMap((b) => this.blockOps[b]);
    return this.item({ id: `f${fold}`, kind: "fold", number: first, name, times, fold,
      boxes: boxesOf(inside), shown: boxesOf(shown), operators, lines: plain(words),
      make: () => period > 1 ? shown.map((b) => this.block(b)) : boxesOf(shown).map((i) => this.box(i)) });
  }

  /** @returns {Item} */
  block(/** @type {number} */ b) {
    const [name, , , , , words] = this.data.blocks[b];
    const boxes = this.blockBoxes[b];
    const operators = this.blockOps[b];
    const single = boxes.length === 1;
    return this.item({ id: `b${b}`, kind: "block", number: b, name, boxes, operators,
      lines: single ? this.data.labels[this.data.boxes[boxes[0]][1]] : plain(words),
      aside: boxes.every((i) => this.data.boxes[i][2]),
      make: single ? this.opsIn(boxes[0]) : () => boxes.map((i) => this.box(i)) });
  }

  /** What makes the operators of a box; null where there is only one. */
  opsIn(/** @type {number} */ i) {
    const useful = this.inside[i].filter((o) => !this.idle.has(o));
    const ops = useful.length ? useful : this.inside[i];
    return ops.length > 1 ? () => ops.map((o) => this.operator(o)) : null;
  }

  /** @returns {Item} */
  box(/** @type {number} */ i) {
    const [kind, label, training] = this.data.boxes[i];
    const lines = this.data.labels[label];
    const ops = this.inside[i];
    const name = ops.length ? this.data.operators.name[ops[0]] : lines[0][0];
    return this.item({ id: `x${i}`, kind: ["box", "input", "output"][kind], number: i, name, lines, boxes: [i],
      operators: ops, aside: Boolean(training), make: this.opsIn(i) });
  }

  /** @returns {Item} */
  operator(/** @type {number} */ o) {
    const { operators, kinds } = this.data;
    return this.item({ id: `o${o}`, kind: "operator", number: o, name: operators.name[o],
      lines: [[kinds[operators.kind[o]][1], 0]], boxes: [], shown: [], operators: [o] });
  }

  /** Operators of an item in every repetition. */
  every(/** @type {Item} */ item) {
    const several = item.kind === "section" || (item.fold >= 0 && item.times > 1);
    return several ? this.blocksOf(item).flatMap((b) => this.blockOps[b]) : item.operators;
  }

  /** Operators that take values from each operator, once they are asked for. @returns {number[][]} */
  users() {
    if (!this.usedBy) {
      /** @type {number[][]} */ const users = (this.usedBy = this.feeds.map(() => []));
      this.feeds.forEach((sources, o) => sources.forEach((s) => users[s].push(o)));
    }
    return this.usedBy;
  }

  /** Blocks that an item holds, of every repetition. */
  blocksOf(/** @type {Item} */ item) {
    const { sections, folds } = this.data;
    const from = (/** @type {number} */ first, /** @type {number} */ many) => Array.from({ length: many }, (_, i) => first + i);
    if (item.kind === "section") return from(this.sectionStart[item.number], sections[item.number][1]);
    if (item.fold >= 0 && item.times > 1) return from(folds[item.fold][0], folds[item.fold][1] * folds[item.fold][2]);
    if (item.kind === "block") return [item.number];
    return item.parent && item.kind !== "graph" ? this.blocksOf(item.parent).filter((b) => this.blockOps[b].includes(item.operators[0])) : [];
  }

  /** Sum of a column of figures over all operators of an item. */
  sum(/** @type {Item} */ item, /** @type {string} */ key) {
    const column = this.data.operators[key];
    return this.every(item).reduce((total, o) => total + column[o], 0);
  }

  /** A figure of an item, of a fold over all of its blocks; null: it has none. @returns {number|null} */
  figure(/** @type {any} */ columns, /** @type {Item} */ item) {
    if (item.kind === "graph") return columns.whole;
    if (item.kind === "fold") return columns.folds[item.fold];
    const column = columns[{ section: "sections", block: "blocks", box: "boxes", operator: "operators" }[item.kind] || ""] || [];
    return column[item.number] ?? null;
  }

  /** How clients feed an item: [clients, share of weights, share of each kind]; null: nobody does. */
  fed(/** @type {Item} */ item) {
    const at = this.data.feeding ? this.figure(this.data.feeding, item) : null;
    return at === null || at < 0 ? null : this.data.feeding.rows[at];
  }

  /** The item of an identifier, which is made if necessary; null if there is none. @returns {Item|null} */
  find(/** @type {string} */ id) {
    const number = Number(id.slice(1));
    const block = id[0] === "f" ? this.data.folds[number]?.[0] : number;
    const op = id[0] === "o" ? number : id[0] === "x" ? this.inside[number]?.[0] : this.blockOps[block]?.[0];
    if (op === undefined) this.children(this.root); // results have no operator
    else if (!this.items.has(id)) this.holder(op);
    return this.items.get(id) || null;
  }

  /** The smallest item that shows an operator, no smaller than a block where one is asked for. @returns {Item} */
  holder(/** @type {number} */ op, /** @type {string} */ until = "operator") {
    let at = this.root;
    for (;;) {
      if (until === "block" && (at.kind === "block" || at.fold >= 0 || (at.kind === "section" && this.data.sections[at.number][1] === 1))) return at;
      const next = this.children(at).find((child) => this.every(child).includes(op));
      if (!next) return at;
      if (next.times > 1 && !next.operators.includes(op)) return next;
      at = next;
    }
  }

  /** Forget what was made below an item, whose folds changed. */
  again() {
    this.items.clear();
    this.root = this.plant();
  }
}
