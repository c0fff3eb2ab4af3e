// A small picture of a graph that takes several screens: where one is, and a way to go elsewhere.

// Screens that are looked through without getting lost; the small picture's share of one, and the height at which a part is seen in it.
const SCREENS = 3;
const SMALL = { across: 0.16, down: 0.6, least: 1.5 };

class Minimap {
  constructor(/** @type {Canvas} */ canvas) {
    this.canvas = canvas;
    this.waits = false;
    this.parts = svg("g");
    this.sight = svg("rect", { class: "sight" });
    // For the pointer alone: the keyboard goes from part to part.
    this.svg = svg("svg", { class: "minimap", "aria-hidden": "true" }, [this.parts, this.sight]);
    this.svg.addEventListener("pointerdown", (/** @type {PointerEvent} */ e) => {
      this.svg.setPointerCapture(e.pointerId);
      this.jump(e);
    });
    this.svg.addEventListener("pointermove", (/** @type {PointerEvent} */ e) => e.buttons && this.jump(e));
  }

  /** Draw it before the next frame, once for all that changes until then. */
  renew() {
    if (!this.waits) requestAnimationFrame(() => this.draw());
    this.waits = true;
  }

  draw() {
    this.waits = false;
    const { host, at, model } = this.canvas;
    const { clientWidth, clientHeight } = host;
    const { w, h } = this.canvas.layout(model.root);
    const screens = Math.max(1, w * at.k / clientWidth) * Math.max(1, h * at.k / clientHeight);
    // Of a page that is hidden there is nothing to measure.
    if (!clientWidth || !(screens > SCREENS)) {
      this.svg.remove();
      return;
    }
    const k = Math.min(SMALL.across * clientWidth / w, SMALL.down * clientHeight / h);
    for (const [key, value] of Object.entries({ viewBox: `0 0 ${w} ${h}`, width: w * k, height: h * k })) this.svg.setAttribute(key, String(value));
    this.parts.replaceChildren(...[...this.outlines(k)].map(([fill, d]) => svg("path", { d, style: fill && `fill: ${fill}` })));
    const [x, y] = [Math.max(0, -at.x / at.k), Math.max(0, -at.y / at.k)];
    const [right, low] = [Math.min(w, (clientWidth - at.x) / at.k), Math.min(h, (clientHeight - at.y) / at.k)];
    const sight = { x, y, width: Math.max(0, right - x), height: Math.max(0, low - y) };
    for (const [key, value] of Object.entries(sight)) this.sight.setAttribute(key, String(value));
    if (!this.svg.parentNode) host.append(this.svg);
  }

  /** Outlines of what is in the picture by their colours, the outer ones first; what would be too small is left out. @returns {Map<string, string>} */
  outlines(/** @type {number} */ k) {
    /** @type {Map<string, string>} */ const ways = new Map([["", ""]]);
    const add = (/** @type {Item} */ item, /** @type {number} */ x, /** @type {number} */ y) => {
      const { inside, dx, dy, children } = item.layout;
      children.forEach((/** @type {Item} */ child, /** @type {number} */ i) => {
        const { w, h } = child.layout;
        const [left, top] = [x + dx + inside.spots[i].x - inside.spots[i].w / 2, y + dy + inside.spots[i].y];
        if (h * k < SMALL.least) return;
        // What is open shows its colours inside.
        const fill = child.layout.inside ? "" : child.view.frame.find((/** @type {any} */ part) => part.matches("rect.frame:not(.behind)")).style.fill;
        ways.set(fill, `${ways.get(fill) || ""}M${left} ${top}h${w}v${h}h${-w}z`);
        if (child.layout.inside) add(child, left, top);
      });
    };
    add(this.canvas.model.root, 0, 0);
    return ways;
  }

  /** Bring what was pointed at into the middle. */
  jump(/** @type {PointerEvent} */ e) {
    const { host, at, model } = this.canvas;
    const box = this.svg.getBoundingClientRect();
    const { w, h } = model.root.layout;
    const k = box.height / h;
    this.canvas.go({ k: at.k, x: host.clientWidth / 2 - Math.min(Math.max((e.clientX - box.left) / k, 0), w) * at.k,
      y: host.clientHeight / 2 - Math.min(Math.max((e.clientY - box.top) / k, 0), h) * at.k });
  }
}
