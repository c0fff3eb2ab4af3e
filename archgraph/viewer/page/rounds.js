// What each round of a run changed: two ways to colour, and a slider that chooses the round.

// The slider is one for the whole page; the last round is the latest that there is.
const slide = { until: Infinity };

/** Rounds at which the slider stops, and the place of the one that is shown. @returns {{numbers: number[], at: number}} */
function stops(/** @type {any} */ rounds) {
  const numbers = rounds ? rounds.numbers : [];
  return { numbers, at: numbers.filter((/** @type {number} */ n) => n <= slide.until).length - 1 };
}

/** Columns of the parameters of a part; none before a round has ended. @returns {number[]} */
function columnsOf(/** @type {Model} */ model, /** @type {{operators: number[]}|Item} */ part) {
  const { rounds, leaves } = model.data;
  const inside = new Set(rounds?.numbers.length ? ("kind" in part ? model.every(part) : part.operators).flatMap((o) => model.leaves[o]) : []);
  return inside.size ? rounds.leaves.flatMap((/** @type {number} */ leaf, /** @type {number} */ i) => inside.has(leaf) ? [i] : []) : [];
}

/** The round that is shown, and what it changed of a part; null: no round has ended, or the part has no parameters. */
function changed(/** @type {Model} */ model, /** @type {{operators: number[]}|Item} */ part) {
  const { rounds, leaves } = model.data;
  const { numbers, at } = stops(rounds);
  const columns = columnsOf(model, part);
  if (!columns.length) return null;
  const norms = columns.map((i) => rounds.norm[at][i]);
  const reached = rounds.rows[rounds.coverage[at]];
  const sizes = columns.map((i) => leaves[rounds.leaves[i]][2].reduce((/** @type {number} */ a, /** @type {number} */ b) => a * b, 1));
  const sum = (/** @type {number[]} */ values) => values.reduce((a, b) => a + b, 0);
  return { round: numbers[at], norm: norms.includes(null) ? null : Math.hypot(...norms),
    coverage: reached ? sum(columns.map((column, i) => sizes[i] * reached[column])) / sum(sizes) : null };
}

/** How to colour by it, where the page tells it. @returns {Record<string, Overlay>} */
function overRounds(/** @type {any[]} */ graphs) {
  const top = () => Math.max(...graphs.map((g) => g.rounds ? g.rounds.top : 0)) || 1;
  if (!graphs.some((g) => g.rounds)) return {};
  return {
    norm: { name: "update norm", means: "how far the round moved the weights", told: silent,
      get ticks() {
        return [1000, 100, 10, 1].map((d, i) => `${i ? "" : "≤ "}${Number((top() / d).toPrecision(2))}`);
      }, at: (model, item) => {
        const norm = changed(model, item)?.norm ?? null;
        return norm && Math.max(0, 1 + Math.log10(norm / top()) / 3);
      } },
    coverage: { name: "coverage", means: "share of the weights that the round's updates reached", ticks: SHARES, told: silent,
      at: (model, item) => changed(model, item)?.coverage ?? null },
  };
}

/** The test of a round as a curve over all of them, and its value. @returns {any[]} */
function tested(/** @type {any[]} */ graphs, /** @type {number} */ round) {
  const tests = graphs.find((g) => g.rounds)?.rounds.tests;
  if (!tests || tests.rounds.length < 2) return [];
  const { name, rounds, values, texts } = tests;
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const last = rounds[rounds.length - 1];
  const x = (/** @type {number} */ i) => 2 + 140 * (rounds[i] - rounds[0]) / (last - rounds[0]);
  const y = (/** @type {number} */ i) => 28 - 24 * (values[i] - low) / (high - low || 1);
  const at = Math.max(0, rounds.filter((/** @type {number} */ n) => n <= round).length - 1);
  const curve = svg("svg", { class: "track", viewBox: "0 0 144 32", role: "img", "aria-label": `${name} by round, from ${texts[values.indexOf(low)]} to ${texts[values.indexOf(high)]}` }, [
    svg("path", { d: rounds.map((/** @type {number} */ _, /** @type {number} */ i) => `${i ? "L" : "M"}${x(i)} ${y(i)}`).join("") }),
    svg("circle", { cx: x(at), cy: y(at), r: 3.5 })]);
  return [curve, h("span", {}, `${name} ${texts[at]}`)];
}

/** An update norm in words. */
function length(/** @type {number|null} */ norm) {
  return norm === null ? "not finite" : String(Number(norm.toPrecision(4)));
}

/** What the panel says of it. */
function changedFacts(/** @type {Model} */ model, /** @type {Item} */ item) {
  const found = changed(model, item);
  return found ? [h("h3", {}, `Round ${found.round}`), facts([["update norm", length(found.norm)],
    ["coverage", found.coverage === null ? "unknown" : `${percent(found.coverage)} of the weights`]])] : [];
}

/** The blocks that the round moved farthest, their numbers first. @returns {Array<[number, any]>} */
function moved(/** @type {Model} */ model) {
  return model.blockOps.map((operators, i) => /** @type {[number, any]} */ ([i, changed(model, { operators })])).filter(([, one]) => one)
    .sort(([, a], [, b]) => (b.norm ?? Infinity) - (a.norm ?? Infinity)).slice(0, 5);
}
