// Two graphs side by side: which parts correspond, what differs, and a table of the differences.

/** How a difference is called beside the part. @type {Record<string, string>} */
const MARKS = { missing: "missing in the other", new: "new", copied: "copied", narrower: "narrower", wider: "wider", changed: "changed", inside: "differs inside" };
// What says more than the mark behind it.
const RANK = ["missing", "new", "copied", "narrower", "wider", "changed"];

/**
 * The correspondence of two graphs: A's operators, B's operators, and how they differ.
 * Of an axis that is narrower in B, B's operators are marked; of what only one graph has, its own.
 */
class Pair {
  constructor(/** @type {any} */ data) {
    this.data = data;
    /** @type {[Map<number, number>, Map<number, number>]} partners of A's and of B's operators */
    this.partner = [new Map(), new Map()];
    data.partner.forEach((/** @type {number} */ a, /** @type {number} */ b) => {
      if (a < 0) return;
      this.partner[1].set(b, a);
      if (!this.partner[0].has(a)) this.partner[0].set(a, b);
    });
    /** @type {[Map<number, string>, Map<number, string>]} */ this.marks = [new Map(), new Map()];
    for (const [kind, , , , , , a, b] of data.differences) {
      const [side, ops] = kind === "missing" ? [0, a] : [1, b];
      for (const op of ops) this.mark(this.marks[/** @type {0|1} */ (side)], op, kind);
    }
  }

  mark(/** @type {Map<number, string>} */ marks, /** @type {number} */ op, /** @type {string} */ kind) {
    const old = marks.get(op);
    if (old === undefined || RANK.indexOf(kind) < RANK.indexOf(old)) marks.set(op, kind);
  }

  /** How a part differs: as all of it does, or `inside` where only some of it does. */
  of(/** @type {0|1} */ side, /** @type {number[]} */ operators) {
    const kinds = operators.map((op) => this.marks[side].get(op) || "");
    const first = RANK.find((kind) => kinds.includes(kind)) || "";
    if (!first || operators.length === 1) return first;
    const whole = ["missing", "new", "copied"].includes(first) ? kinds.every((kind) => kind === first) : true;
    return whole ? first : "inside";
  }
}

/** The item of another graph that corresponds to one: of the same kind, else as deep. @returns {Item|null} */
function counterpart(/** @type {Pair} */ pair, /** @type {0|1} */ side, /** @type {Model} */ from, /** @type {Item} */ item, /** @type {Model} */ other) {
  if (item.kind === "graph") return other.root;
  const op = from.every(item).find((o) => pair.partner[side].has(o));
  if (op === undefined) return null;
  const path = [];
  for (let at = /** @type {Item|null} */ (other.holder(/** @type {number} */ (pair.partner[side].get(op)))); at && at.kind !== "graph"; at = at.parent) path.unshift(at);
  const framed = (/** @type {Item} */ one) => one.kind === "fold" || one.kind === "block";
  return path.find((one) => one.kind === item.kind && one.operators.length === item.operators.length)
    || path.find((one) => one.kind === item.kind || (framed(one) && framed(item))) || path[path.length - 1] || null;
}

/** Every difference with buttons that lead to it. */
function differences(/** @type {App} */ app, /** @type {Pair} */ pair, /** @type {Canvas[]} */ panes) {
  const part = (/** @type {Canvas} */ pane, /** @type {string} */ name, /** @type {number[]} */ ops) => name && ops.length
    ? h("button", { class: "link", onclick: () => app.visit(pane, pane.model.holder(ops[0])) }, name) : name || "–";
  const rows = pair.data.differences.map((/** @type {any} */ [kind, level, a, b, before, after, inA, inB]) =>
    [kind, level, part(panes[0], a, inA), part(panes[1], b, inB), before === null ? "" : String(before), after === null ? "" : String(after)]);
  const source = pair.data.exact ? "read off the transfer between them" : "found by aligning their structure";
  const said = h("p", {}, rows.length ? `${rows.length} differences, ${source}.` : `The same architecture: ${source}.`);
  const heads = ["difference", "of", panes[0].model.data.name, panes[1].model.data.name, "before", "after"];
  return h("section", { id: "differences" }, h("h3", {}, "Side by side"), said, few(rows, (some) => table("Differences", heads, some) || "", 40));
}
