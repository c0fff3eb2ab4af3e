/** A text that the page holds compressed. */
window.unpack = async (/** @type {string} */ id) => {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
};
window.unpack("script").then((/** @type {string} */ text) => document.body.append(Object.assign(document.createElement("script"), { textContent: text })));
