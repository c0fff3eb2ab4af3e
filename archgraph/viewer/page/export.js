// The picture as a file: SVG and PNG, as it is seen.

/** Properties of the style sheet that a picture by itself needs. */
const LOOKS = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font", "font-weight", "text-anchor", "opacity", "paint-order", "stroke-linejoin"];

/** The whole picture of a pane as an element of its own, styles in its attributes. @returns {{picture: any, w: number, h: number}} */
function pictured(/** @type {Canvas} */ canvas) {
  const { w, h } = canvas.layout(canvas.model.root);
  const picture = canvas.svg.cloneNode(true);
  const pairs = [...canvas.svg.querySelectorAll("*")].map((one, i) => [one, picture.querySelectorAll("*")[i]]);
  for (const [from, to] of pairs) {
    const style = getComputedStyle(from);
    to.setAttribute("style", LOOKS.map((key) => `${key}:${style.getPropertyValue(key)}`).join(";"));
    for (const key of ["class", "tabindex", "role", "data-id", "aria-label", "aria-level", "aria-expanded", "aria-selected"]) to.removeAttribute(key);
  }
  picture.querySelectorAll("g[aria-hidden] > rect[width='32']").forEach((/** @type {any} */ one) => one.remove());
  const world = picture.lastChild;
  world.setAttribute("transform", "");
  Object.entries({ xmlns: SVG, width: w, height: h, viewBox: `0 0 ${w} ${h}` }).forEach(([key, value]) => picture.setAttribute(key, String(value)));
  picture.removeAttribute("style");
  return { picture, w, h };
}

/** Offer an address for saving. */
function offer(/** @type {string} */ address, /** @type {string} */ name) {
  const link = h("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}

/** Save the picture of a pane. */
async function saveAs(/** @type {Canvas} */ canvas, /** @type {"svg"|"png"} */ kind) {
  const { picture, w, h: height } = pictured(canvas);
  const text = new XMLSerializer().serializeToString(picture);
  const address = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  const name = `${canvas.model.data.name.replace(/[^\w.-]+/g, "-")}.${kind}`;
  if (kind === "svg") return offer(address, name);
  const image = new Image();
  image.src = address;
  await image.decode();
  // Twice the size for print, within what browsers can draw.
  const scale = Math.min(2, 16000 / Math.max(w, height));
  const sheet = Object.assign(document.createElement("canvas"), { width: Math.ceil(w * scale), height: Math.ceil(height * scale) });
  const paint = /** @type {CanvasRenderingContext2D} */ (sheet.getContext("2d"));
  paint.fillStyle = getComputedStyle(document.body).backgroundColor;
  paint.fillRect(0, 0, sheet.width, sheet.height);
  paint.drawImage(image, 0, 0, sheet.width, sheet.height);
  offer(sheet.toDataURL("image/png"), name);
}
