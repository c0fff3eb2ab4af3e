// Graphs side by side: which parts correspond, what differs, and a table of the differences.

/** How a difference is called beside the part. @type {Record<string, string>} */
const MARKS = { missing: "missing", new: "new", copied: "copied", narrower: "narrower", wider: "wider", changed: "changed", inside: "differs inside" };
// What says more than the mark behind it.
const RANK = ["missing", "new", "copied", "narrower", "wider", "changed"];

/**
 * What one graph has of a part: its operators, and how it is there; null: it lacks the part.
 * @typedef {{text: string|number, copied: boolean, ops: number[]}|null} Share
 */

/**
 * Panes beside the first one. Graphs correspond through the first graph of the page: the data tell
 * of every other one how it differs from that, and two others differ where that is not the same.
 */
class Comparison {
  constructor(/** @type {Record<string, any>} */ pairs, /** @type {Canvas[]} */ panes) {
    this.panes = panes;
    const data = panes.map((pane) => pairs[`0 ${pane.model.index}`] || null);
    this.exact = data.every((one) => !one || one.exact);
    /** @type {Array<(op: number) => number|undefined>} operators of the first graph, by those of each pane */
    this.to = data.map((one) => (op) => one ? (one.partner[op] < 0 ? undefined : one.partner[op]) : op);
    /** @type {Array<(op: number) => number|undefined>} operators of each pane, by those of the first graph */
    this.from = data.map((one) => {
      if (!one) return (op) => op;
      const known = new Map();
      one.partner.forEach((/** @type {number} */ a, /** @type {number} */ b) => a >= 0 && !known.has(a) && known.set(a, b));
      return (op) => known.get(op);
    });
    /** Whether no part of another pane corresponds to one of the first. */
    this.unrelated = data.every((one) => one === data[0] ? true : !one || one.partner.every((/** @type {number} */ a) => a < 0)) && panes.length > 1;
    this.rows = this.unrelated ? [] : this.differing(data);
    /** @type {Array<Map<number, string>>} kinds of differences, by operators of each pane */ this.marks = panes.map(() => new Map());
    /** @type {Map<number, Set<string>>} names of the panes that lack an operator of the first one */ this.lacking = new Map();
    for (const { shares } of this.rows) {
      shares.slice(1).forEach((share, i) => this.note(shares[0], share, i + 1));
    }
  }

  /** Parts that panes have unlike, each with what every pane has of it. */
  differing(/** @type {any[]} */ data) {
    /** @type {Map<string, {level: string, part: string, ops: number[]|null, text: string|number, own: Map<number, Share>}>} */ const parts = new Map();
    data.forEach((one, pane) => {
      for (const [kind, level, a, b, before, after, inA, inB] of one ? one.differences : []) {
        const fresh = kind === "new" || kind === "copied";
        let key = `${level} ${fresh ? "new" : ""} ${fresh ? b : a}`;
        if (parts.get(key)?.own.has(pane)) key += ` ${b}`;
        const part = parts.get(key) || { level, part: fresh ? b : a, ops: fresh ? null : inA, text: a, own: new Map() };
        part.text = before ?? part.text;
        part.own.set(pane, kind === "missing" ? null : { text: after ?? b, copied: kind === "copied", ops: inB });
        parts.set(key, part);
      }
    });
    /** Whether two panes have parts that the first graph lacks: nothing tells how these differ. */
    this.unsure = [...parts.values()].some(({ ops, own }) => ops === null && own.size > 1);
    const rows = [...parts.values()].map(({ level, part, ops, text, own }) =>
      ({ level, part, shares: data.map((_, pane) => own.has(pane) ? own.get(pane) || null : this.shared(pane, ops, text)) }));
    return rows.filter(({ shares }) => shares.some((share) => share?.text !== shares[0]?.text));
  }

  /** The marks that are in the picture, as a legend. @returns {any[]} */
  legend() {
    const used = new Set(this.panes.flatMap((pane) => pane.visible().map((item) => this.mark(pane, item))));
    return Object.entries(MARKS).filter(([mark]) => used.has(mark)).map(([mark, text]) => h("span", { class: "swatch" }, h("i", { class: "mark", "data-mark": mark }), text));
  }

  /** What a pane has of a part in which it does not differ from the first graph. @returns {Share} */
  shared(/** @type {number} */ pane, /** @type {number[]|null} */ ops, /** @type {string|number} */ text) {
    const own = (ops || []).map((op) => this.from[pane](op)).filter((op) => op !== undefined);
    return ops && (own.length || !ops.length) ? { text, copied: false, ops: /** @type {number[]} */ (own) } : null;
  }

  /** How what a pane has differs from what the first one has; empty: it does not. */
  kind(/** @type {Share} */ first, /** @type {Share} */ share) {
    if (!first || !share) return share ? (share.copied ? "copied" : "new") : first ? "missing" : "";
    if (first.text === share.text) return "";
    const sizes = typeof first.text === "number" && typeof share.text === "number";
    return !sizes ? "changed" : share.text < first.text ? "narrower" : "wider";
  }

  /** Mark what differs: in the pane itself, and in the first one what the pane lacks. */
  note(/** @type {Share} */ first, /** @type {Share} */ share, /** @type {number} */ pane) {
    const kind = this.kind(first, share);
    const marks = this.marks[kind === "missing" ? 0 : pane];
    for (const op of kind ? (kind === "missing" ? first : share)?.ops || [] : []) {
      const old = marks.get(op);
      if (old === undefined || RANK.indexOf(kind) < RANK.indexOf(old)) marks.set(op, kind);
      if (kind === "missing") this.lacking.set(op, (this.lacking.get(op) || new Set()).add(this.panes[pane].model.data.name));
    }
  }

  /** How a part differs: as all of it does, or `inside` where only some of it does. */
  mark(/** @type {Canvas} */ canvas, /** @type {Item} */ item) {
    if (item.kind === "graph") return "";
    const marks = this.marks[this.panes.indexOf(canvas)];
    const kinds = canvas.model.every(item).map((op) => marks.get(op) || "");
    const first = RANK.find((kind) => kinds.includes(kind)) || "";
    return ["missing", "new", "copied"].includes(first) && kinds.some((kind) => kind !== first) ? "inside" : first;
  }

  /** The mark in words: which panes lack what the first one has. */
  said(/** @type {Canvas} */ canvas, /** @type {Item} */ item) {
    const mark = this.mark(canvas, item);
    const lacking = new Set(canvas.model.every(item).flatMap((op) => [...(this.lacking.get(op) || [])]));
    return mark === "missing" ? `missing in ${this.panes.length > 2 ? [...lacking].join(", ") : "the other"}` : MARKS[mark] || "";
  }

  /** Items of the other panes that correspond to one. @returns {Array<[Canvas, Item]>} */
  across(/** @type {Canvas} */ canvas, /** @type {Item} */ item) {
    /** @type {Array<[Canvas, Item]>} */ const found = [];
    for (const pane of this.panes) {
      const one = pane === canvas ? null : this.counterpart(canvas, item, pane);
      if (one) found.push([pane, one]);
    }
    return found;
  }

  /** The item of another pane that corresponds to one: of the same kind, else as deep. @returns {Item|null} */
  counterpart(/** @type {Canvas} */ canvas, /** @type {Item} */ item, /** @type {Canvas} */ pane) {
    if (item.kind === "graph") return pane.model.root;
    const [here, there] = [canvas, pane].map((one) => this.panes.indexOf(one));
    for (const op of canvas.model.every(item)) {
      const origin = this.to[here](op);
      const other = origin === undefined ? undefined : this.from[there](origin);
      if (other !== undefined) return this.alike(item, pane.model.holder(other));
    }
    return null;
  }

  /** Of an item and all that hold it, the one that is most like another graph's item. @returns {Item|null} */
  alike(/** @type {Item} */ item, /** @type {Item} */ deepest) {
    const path = [];
    for (let at = /** @type {Item|null} */ (deepest); at && at.kind !== "graph"; at = at.parent) path.unshift(at);
    const framed = (/** @type {Item} */ one) => one.kind === "fold" || one.kind === "block";
    return path.find((one) => one.kind === item.kind && one.operators.length === item.operators.length)
      || path.find((one) => one.kind === item.kind || (framed(one) && framed(item))) || path[path.length - 1] || null;
  }

  /** What corresponds to an item in each other pane, and how it differs. */
  beside(/** @type {App} */ app, /** @type {Canvas} */ canvas, /** @type {Item} */ item) {
    const found = new Map(this.across(canvas, item));
    const told = this.panes.filter((pane) => pane !== canvas).map((pane) => {
      const one = found.get(pane);
      const differs = one && this.said(pane, one);
      return [`corresponds to, in ${pane.model.data.name}`, one ? [app.panel.to(pane, () => one, one.name), differs ? ` (${differs})` : ""] : "nothing"];
    });
    return h("section", {}, h("h3", {}, "Side by side"), facts([.../** @type {Array<[string, any]>} */ (told), ["differs", this.said(canvas, item) || "no"]]));
  }

  /** Every difference, with a column for each pane whose buttons lead to the part. */
  table(/** @type {App} */ app) {
    const { panes, rows } = this;
    const source = this.exact ? `read off the transfer${panes.length > 2 ? "s" : ""} between them` : "found by aligning their structure";
    const cell = (/** @type {string} */ part, /** @type {Share} */ share, /** @type {string} */ kind, /** @type {string} */ level, /** @type {Canvas} */ pane) => {
      if (!share) return kind || "–";
      const text = String(share.text) === part ? "there" : String(share.text);
      const [op] = share.ops;
      return [op === undefined ? text : app.panel.to(pane, () => pane.model.holder(op, level), text), h("small", {}, kind)];
    };
    const line = (/** @type {{level: string, part: string, shares: Share[]}} */ { level, part, shares }) =>
      [[soft(part), h("small", {}, level)], ...shares.map((share, i) => cell(part, share, this.kind(shares[0], share), level, panes[i]))];
    const heads = ["part", ...panes.map((pane) => soft(pane.model.data.name))];
    return h("section", { id: "differences" }, h("h3", {}, "Side by side"),
      this.unrelated ? h("p", {}, h("strong", {}, "These networks have nothing in common"), ": no part of one corresponds to a part of another.") :
      h("p", {}, rows.length ? `${rows.length} differences, ${source}.` : this.unsure ? "" : `The same architecture: ${source}.`,
        this.unsure ? ` Parts that ${app.data.graphs[0].name} lacks are not compared with each other.` : ""),
      few(rows, (some) => table("Differences", heads, some.map(line)) || "", 40));
  }
}
