// Where an item's values come from and go to.

/** Items in the picture that an item takes values from, or gives values to. @returns {Item[]} */
function neighbours(/** @type {Canvas} */ canvas, /** @type {Item} */ item, /** @type {"sources"|"users"} */ way) {
  const { model } = canvas;
  const own = new Set(model.every(item));
  const next = way === "sources" ? model.feeds : model.users();
  const others = new Set([...own].flatMap((o) => next[o]).filter((o) => !own.has(o)));
  return [...new Set([...others].map((o) => canvas.showing(o)))].filter((one) => one.kind !== "graph");
}

/** What the panel says of an item's neighbours. */
function traced(/** @type {App} */ app, /** @type {Canvas} */ canvas, /** @type {Item} */ item) {
  const list = (/** @type {"sources"|"users"} */ way) => {
    const some = neighbours(canvas, item, way);
    return some.length ? few(some, (part) => h("span", {}, part.flatMap((one, i) => [i ? ", " : "", app.panel.to(canvas, () => one, canvas.title(one))])), 6) : "nothing";
  };
  return h("section", {}, facts([["takes values from", list("sources")], ["gives values to", list("users")]]));
}
