// Where an item's values come from and go to.

/** Operators from which some take values, or that take values from them, over any number of steps. @returns {Set<number>} */
function reached(/** @type {Model} */ model, /** @type {number[]} */ from, /** @type {"sources"|"users"} */ way) {
  const next = way === "sources" ? model.feeds : model.users();
  const seen = new Set(from);
  const pending = [...from];
  for (let o = pending.pop(); o !== undefined; o = pending.pop()) {
    for (const other of next[o]) {
      if (!seen.has(other)) {
        seen.add(other);
        pending.push(other);
      }
    }
  }
  return seen;
}

/** Items in the picture that an item takes values from, or gives values to. @returns {Item[]} */
function neighbours(/** @type {Canvas} */ canvas, /** @type {Item} */ item, /** @type {"sources"|"users"} */ way) {
  const { model } = canvas;
  const own = new Set(model.every(item));
  const next = way === "sources" ? model.feeds : model.users();
  const others = new Set([...own].flatMap((o) => next[o]).filter((o) => !own.has(o)));
  return [...new Set([...others].map((o) => canvas.showing(o)))].filter((one) => one.kind !== "graph");
}

/** What the panel says of an item's neighbours, and buttons that show only what leads there. */
function traced(/** @type {App} */ app, /** @type {Canvas} */ canvas, /** @type {Item} */ item) {
  const list = (/** @type {"sources"|"users"} */ way) => {
    const some = neighbours(canvas, item, way);
    return some.length ? few(some, (part) => h("span", {}, part.flatMap((one, i) => [i ? ", " : "", app.panel.to(canvas, () => one, canvas.title(one))])), 6) : "nothing";
  };
  const only = (/** @type {"sources"|"users"} */ way, /** @type {string} */ text) =>
    h("button", { class: "act", "aria-pressed": "false", onclick: (/** @type {any} */ e) => {
      const on = e.target.getAttribute("aria-pressed") === "false";
      for (const other of e.target.parentElement.children) other.setAttribute("aria-pressed", String(on && other === e.target));
      canvas.trace(on ? reached(canvas.model, canvas.model.every(item), way) : null);
    } }, text);
  return h("section", {}, facts([["takes values from", list("sources")], ["gives values to", list("users")]]),
    h("p", {}, only("sources", "Show what leads here"), only("users", "Show what it reaches")));
}
