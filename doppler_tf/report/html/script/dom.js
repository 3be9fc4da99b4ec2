// Elements, numbers and the tooltip. Data enters the page as text, never as markup.
const INK = "#22252b", QUIET = "#555b66", GRID = "#dfe2e7";

// The width of the paper while printing. Pictures must be drawn while the layout is still that of the screen.
let paperWidth = 0;

function widthOf(plot) {
  return Math.max(paperWidth || plot.clientWidth, 280);
}

function svg(name, attributes, children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (children !== undefined) element.append(...[].concat(children));
  return element;
}

function timeText(unit, seconds) {
  const digits = { minimumFractionDigits: unit.decimals, maximumFractionDigits: unit.decimals };
  return (seconds * unit.factor).toLocaleString("en-US", digits) + unit.suffix;
}

// Round values that part [from, to] into about `count` pieces.
function ticks(from, to, count) {
  const span = to - from;
  if (!(span > 0)) return [from];
  const raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9; i++) found.push(i * step);
  return found;
}

function tickText(value) {
  return Number(value.toPrecision(10)).toLocaleString("en-US", { maximumFractionDigits: 9 });
}

// `text` in at most `room` pixels of about `size` high letters; empty where not even a few letters fit.
function fitted(text, room, size) {
  const letters = Math.floor(room / (size * 0.58));
  return text.length <= letters ? text : letters < 4 ? "" : text.slice(0, letters - 1) + "…";
}

// Shows `text` beside the pointer within `plot`; nothing for an empty text.
function showTip(plot, text, event) {
  let tip = plot.querySelector(".tip");
  if (!text) {
    if (tip) tip.remove();
    return;
  }
  if (!tip) {
    tip = document.createElement("div");
    tip.className = "tip";
    plot.append(tip);
  }
  tip.textContent = text;
  const box = plot.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  tip.style.left = `${Math.max(0, Math.min(x + 14, box.width - tip.offsetWidth - 2))}px`;
  tip.style.top = `${y + 18}px`;
}
