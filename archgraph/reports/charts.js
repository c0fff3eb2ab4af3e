// Reads values off the pictures of a page: pointer, finger and arrow keys; a name hides its line.
// Every picture is complete without it. Texts and ticks are the page's: nothing is formatted here.
(function () {
"use strict";
const SVG = "http://www.w3.org/2000/svg";
// By the name of a picture: a page that is renewed exchanges its pictures.
const states = new Map();

function node(parent, name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  return parent.appendChild(element);
}

function at(axis, value) {
  const [start, end, low, high] = axis.forms[axis.log];
  const f = axis.log ? Math.log : v => v;
  return start + (end - start) * (f(value) - f(low)) / (f(high) - f(low));
}

// A box beside the pointer: a title, and rows of a colour, a name and a value.
function tip(figure) {
  const box = figure.appendChild(document.createElement("div"));
  box.className = "tip";
  box.hidden = true;
  return (x, y, title, rows) => {
    box.hidden = title === undefined;
    if (box.hidden) return;
    box.replaceChildren();
    box.appendChild(document.createElement("b")).textContent = title;
    for (const [colour, name, value] of rows) {
      const row = box.appendChild(document.createElement("div"));
      const mark = row.appendChild(document.createElement("i"));
      if (colour) mark.style.background = colour;
      row.appendChild(document.createElement("span")).textContent = name;
      row.appendChild(document.createElement("b")).textContent = value;
    }
    const left = figure.getBoundingClientRect().left, wide = document.documentElement.clientWidth - left;
    const at = x + 14 + box.offsetWidth < wide ? x + 14 : x - 14 - box.offsetWidth;
    box.style.left = Math.max(-left, at) + "px";
    box.style.top = y + "px";
  };
}

// A part of a picture that is read by pointer, finger and arrow keys.
function reader(figure, svg, box, label, read, move, hide) {
  const area = node(svg, "rect", {x: box[0], y: box[1], width: box[2] - box[0], height: box[3] - box[1],
    fill: "transparent", tabindex: 0, role: "slider", class: "reader", "aria-label": label,
    "aria-valuemin": 0, "aria-valuemax": 1, "aria-valuenow": 0});
  const place = event => {
    const on = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / on.width;
    return [(event.clientX - on.left) * scale, (event.clientY - on.top) * scale];
  };
  const say = ([now, most, words]) => {
    area.setAttribute("aria-valuenow", now);
    area.setAttribute("aria-valuemax", most);
    area.setAttribute("aria-valuetext", words);
  };
  area.addEventListener("pointermove", event => say(read(...place(event))));
  area.addEventListener("pointerdown", event => say(read(...place(event))));
  area.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") hide(); });
  area.addEventListener("focus", () => say(move(0, 0)));
  area.addEventListener("blur", hide);
  area.addEventListener("keydown", event => {
    const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
      Home: [-1e9, 0], End: [1e9, 0]}[event.key];
    if (event.key === "Escape") hide();
    if (!step) return;
    event.preventDefault();
    say(move(...step));
  });
  // The picture was one image; now it has parts.
  svg.setAttribute("role", "group");
}

function button(figure, label, pressed, press) {
  const one = document.createElement("button");
  one.type = "button";
  one.textContent = label;
  one.setAttribute("aria-pressed", pressed);
  one.addEventListener("click", () => one.setAttribute("aria-pressed", press()));
  figure.querySelector("figcaption").append(one);
}

function curves(figure) {
  const data = JSON.parse(figure.dataset.curves), svg = figure.querySelector("svg");
  const {x, y} = data, [left, right] = x.forms[0], [bottom, top] = y.forms[0];
  const state = states.get(data.name) ?? {hidden: new Set(), x: x.log, y: y.log};
  states.set(data.name, state);
  const groups = new Map([...svg.querySelectorAll(".line")].map(g => [+g.dataset.line, g]));
  const colour = i => getComputedStyle(groups.get(i).querySelector(".curve")).stroke;

  function place() {
    for (const [which, axis] of [["x", x], ["y", y]]) {
      axis.log = Math.min(state[which], axis.forms.length - 1);
      for (const log of [0, 1])
        svg.querySelector(`[data-axis="${which}${log}"]`)?.setAttribute("display", log === axis.log ? "inline" : "none");
    }
    for (const [i, group] of groups) {
      const line = data.lines[i], px = line.x.map(v => at(x, v)), py = line.y.map(v => at(y, v));
      group.querySelector(".curve").setAttribute("d", "M" + px.map((v, k) => v.toFixed(1) + " " + py[k].toFixed(1)).join("L"));
      group.querySelectorAll("circle").forEach((mark, k) => { mark.setAttribute("cx", px[k]); mark.setAttribute("cy", py[k]); });
      const lowest = y.forms[y.log][2];
      const edge = sign => line.y.map((v, k) => px[k].toFixed(1) + " " + at(y, Math.max(v + sign * line.spread[k], lowest)).toFixed(1));
      group.querySelector(".band")?.setAttribute("d", "M" + [...edge(1), ...edge(-1).reverse()].join("L") + "Z");
      group.setAttribute("display", state.hidden.has(data.lines[i].name) ? "none" : "inline");
    }
  }

  const rule = node(svg, "path", {class: "rule", display: "none"});
  const dots = node(svg, "g", {"pointer-events": "none"});
  const show = tip(figure);
  let now = data.places.length - 1;
  function look(i) {
    now = Math.max(0, Math.min(i, data.places.length - 1));
    const value = data.places[now], px = at(x, value), rows = [];
    rule.setAttribute("display", "inline");
    rule.setAttribute("d", `M${px} ${top}V${bottom}`);
    dots.replaceChildren();
    for (const [i] of groups) {
      const line = data.lines[i];
      // What was reached by then: curves over costs have points of their own.
      const k = line.x.findLastIndex(v => v <= value);
      if (state.hidden.has(line.name) || k < 0) continue;
      rows.push([line.y[k], colour(i), line.name, line.text[k]]);
      node(dots, "circle", {cx: at(x, line.x[k]), cy: at(y, line.y[k]), r: 4, fill: colour(i)});
    }
    rows.sort((a, b) => b[0] - a[0]);
    const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    show(px * scale, top * scale, data.texts[now], rows.slice(0, 16).map(row => row.slice(1)));
    return [now, data.places.length - 1, `${data.texts[now]}: ${rows.map(row => `${row[2]} ${row[3]}`).join(", ")}`];
  }
  function hide() { show(); rule.setAttribute("display", "none"); dots.replaceChildren(); }
  if (data.places.length)
    reader(figure, svg, [left, top, right, bottom], data.name, px => {
      let best = 0;
      data.places.forEach((v, i) => { if (Math.abs(at(x, v) - px) < Math.abs(at(x, data.places[best]) - px)) best = i; });
      return look(best);
    }, step => look(now + step), hide);

  for (const entry of svg.querySelectorAll(".entry")) {
    const i = +entry.dataset.line, {name} = data.lines[i];
    if (!groups.has(i)) continue;
    const mark = () => entry.setAttribute("aria-pressed", !state.hidden.has(name));
    const toggle = () => {
      if (!state.hidden.delete(name)) state.hidden.add(name);
      mark();
      hide();
      place();
    };
    for (const [key, value] of [["tabindex", 0], ["role", "button"], ["aria-label", name]]) entry.setAttribute(key, value);
    mark();
    entry.addEventListener("click", toggle);
    entry.addEventListener("keydown", event => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      toggle();
    });
  }
  for (const [which, axis] of [["x", x], ["y", y]])
    if (axis.forms.length > 1)
      button(figure, `log ${which}`, Boolean(axis.log = Math.min(state[which], 1)), () => {
        state[which] = 1 - state[which];
        hide();
        place();
        return Boolean(state[which]);
      });
  place();
}

// Clients by classes: each row a client, each column a class.
function cells(figure) {
  const data = JSON.parse(figure.dataset.cells), svg = figure.querySelector("svg");
  const [x0, x1, top, high, xc, wide] = data.box, classes = data.classes;
  const show = tip(figure), frame = node(svg, "rect", {class: "rule", fill: "none", display: "none"});
  let row = 0, column = -1;
  function look(r, c) {
    row = Math.max(0, Math.min(r, data.rows.length - 1));
    column = Math.max(-1, Math.min(c, classes - 1));
    const [name, examples, counts] = data.rows[row], rows = [["", "examples", String(examples)]];
    if (column >= 0) {
      const many = counts[column] ?? 0;
      rows.push(["", `class ${column}`, `${many} (${(100 * many / Math.max(examples, 1)).toFixed(1)} %)`]);
    }
    const [x, w] = column < 0 ? [x0, x1 - x0] : [xc + column * wide, wide];
    for (const [key, value] of Object.entries({x, y: top + row * high, width: w, height: high, display: "inline"}))
      frame.setAttribute(key, value);
    const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    show((x + w) * scale, (top + (row + 1) * high) * scale, name, rows);
    return [row, data.rows.length - 1, `${name}: ${rows.map(one => `${one[1]} ${one[2]}`).join(", ")}`];
  }
  const hide = () => { show(); frame.setAttribute("display", "none"); };
  reader(figure, svg, [x0, top, xc + classes * wide || x1, top + high * data.rows.length], data.name,
    (x, y) => look(Math.floor((y - top) / high), x < xc || !classes ? -1 : Math.floor((x - xc) / wide)),
    (across, down) => look(row + down, column + across), hide);
}

window.archgraphCharts = root => {
  root.querySelectorAll("figure[data-curves]").forEach(curves);
  root.querySelectorAll("figure[data-cells]").forEach(cells);
};
document.addEventListener("DOMContentLoaded", () => {
  window.archgraphCharts(document);
  for (const frame of document.querySelectorAll("iframe.viewer")) {
    const wide = document.createElement("button");
    wide.type = "button";
    wide.textContent = "Full screen";
    wide.addEventListener("click", () => frame.requestFullscreen());
    if (document.fullscreenEnabled) frame.after(wide);
  }
});
})();
