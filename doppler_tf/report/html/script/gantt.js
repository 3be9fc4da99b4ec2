// The Gantt chart: one row per device, one for its memory, one thin row per link, as wide as the page.
const ROW = 34, LINK_ROW = 16, MEMORY = "#a9b8c9", AXIS = 38, TOP = 8, RIGHT = 14, LEAST_LABEL = 22;

function drawGantt(figure, data) {
  const { gantt, unit } = data, { rows, bars, groups } = gantt, count = bars.row.length;
  const plot = figure.querySelector(".plot"), status = figure.querySelector(".status");
  const span = gantt.makespan_s || 1, view = new View(2000);
  const longest = Math.max(...rows.map((row) => row.label.length * (row.link ? 6 : 7.2)));
  const tops = [];
  let bottom = TOP;
  for (const row of rows) {
    tops.push(bottom);
    bottom += row.link ? LINK_ROW : ROW;
  }
  const order = [...bars.row.keys()].filter((i) => !rows[bars.row[i]].link).sort((a, b) => bars.start_s[a] - bars.start_s[b]);
  let selected = -1, width = 0, gutter = 0;
  const picture = svg("svg", { "aria-hidden": "true" });
  plot.append(picture);

  function barText(i) {
    const v = bars.vertex[i], from = data.devices[bars.source[i]].name, to = data.devices[bars.destination[i]].name;
    const place = rows[bars.row[i]].link ? `sent from ${from} to ${to}` : `${data.kinds[v] ? data.kinds[v] + " " : ""}on ${from}`;
    return `${data.vertices[v]} ${place}, ${timeText(unit, bars.start_s[i])} to ${timeText(unit, bars.end_s[i])}, `
      + `takes ${timeText(unit, bars.end_s[i] - bars.start_s[i])}`;
  }

  function draw() {
    width = widthOf(plot);
    gutter = Math.min(longest + 14, width * 0.32);
    const inner = width - gutter - RIGHT, from = view.x * span, shown = span / view.scale;
    const x = (seconds) => gutter + (seconds - from) / shown * inner;
    const parts = [];
    rows.forEach((row, r) => {
      const height = row.link ? LINK_ROW : ROW, size = row.link ? 10 : 12;
      const label = svg("text", { x: gutter - 8, y: tops[r] + height / 2, "text-anchor": "end", "dominant-baseline": "central", "font-size": size },
        fitted(row.label, gutter - 10, size * 0.95));
      label.append(svg("title", {}, row.label));
      parts.push(svg("rect", { x: gutter, y: tops[r] + 1.5, width: inner, height: height - 3, fill: "#f4f5f7" }), label);
    });
    const axis = svg("g", { class: "axis", "font-size": 11, "text-anchor": "middle" });
    for (const value of ticks(from * unit.factor, (from + shown) * unit.factor, Math.max(2, inner / 75))) {
      const at = x(value / unit.factor);
      axis.append(svg("line", { x1: at, x2: at, y1: TOP, y2: bottom, stroke: GRID }),
        svg("text", { x: Math.min(at, width - 18), y: bottom + 14 }, tickText(value)));
    }
    axis.append(svg("text", { x: gutter + inner / 2, y: bottom + 31 }, `time (${unit.axis})`));
    const inside = svg("svg", { x: gutter, y: 0, width: inner, height: bottom, viewBox: `${gutter} 0 ${inner} ${bottom}` });
    rows.forEach((row, r) => row.memory && inside.append(...memory(row.memory, tops[r], x)));
    for (let i = 0; i < count; i++) inside.append(...bar(i, x, from, shown));
    if (selected >= 0) inside.append(...bar(selected, x, from, shown));  // again, before all others
    if (gantt.lower_bound_s) {
      const at = x(gantt.lower_bound_s);
      inside.append(svg("line", { x1: at, x2: at, y1: TOP, y2: bottom, stroke: INK, "stroke-dasharray": "5 4", "pointer-events": "none" }));
    }
    picture.setAttribute("viewBox", `0 0 ${width} ${bottom + AXIS}`);
    picture.replaceChildren(...parts, axis, inside);
    plot.dataset.from_s = from;
    plot.dataset.to_s = from + shown;
  }

  // The area under a curve of bytes; a line at the limit.
  function memory({ time_s, height, limit }, top, x) {
    const low = top + ROW - 1.5, high = top + 1.5;
    const corners = time_s.map((seconds, i) => `${x(seconds).toFixed(1)},${(low - height[i] * (low - high)).toFixed(1)}`);
    const area = svg("polygon", { points: [`${x(time_s[0])},${low}`, ...corners, `${x(span)},${low}`].join(" "), fill: MEMORY });
    return limit ? [area, svg("line", { x1: x(0), x2: x(span), y1: high, y2: high, stroke: INK })] : [area];
  }

  // The rectangle of a bar and a vertex's name, if they are in sight and there is room; transfers may overlap and have none.
  function bar(i, x, from, shown) {
    if (bars.end_s[i] < from || bars.start_s[i] > from + shown) return [];
    const row = rows[bars.row[i]], group = groups[bars.group[i]], height = ((row.link ? LINK_ROW : ROW) - 4) / row.lanes;
    const left = x(bars.start_s[i]), wide = Math.max(x(bars.end_s[i]) - left, 0.5), top = tops[bars.row[i]] + 2 + bars.lane[i] * height;
    const chosen = i === selected;
    const box = svg("rect", { x: left, y: top, width: wide, height, fill: group.colour, "data-bar": i, "fill-opacity": row.link ? 0.7 : 1,
      stroke: chosen ? "#000" : "#fff", "stroke-width": chosen ? 3 : wide > 3 ? 0.6 : 0 });
    const begin = Math.max(left, gutter), room = Math.min(left + wide, width - RIGHT) - begin - 4;
    const name = row.link || room < LEAST_LABEL || height < 9 ? "" : fitted(data.names[bars.vertex[i]], room, 10.5);
    if (!name) return [box];
    return [box, svg("text", { x: begin + room / 2 + 2, y: top + height / 2, "text-anchor": "middle", "dominant-baseline": "central",
      "font-size": Math.min(10.5, height), style: `fill: ${group.dark ? "#fff" : INK}`, "pointer-events": "none" }, name)];
  }

  function select(i) {
    selected = i;
    status.textContent = i < 0 ? "" : barText(i);
  }

  plot.addEventListener("pointermove", (event) => {
    const i = event.target.dataset && event.target.dataset.bar;
    showTip(plot, i === undefined || plot.classList.contains("held") ? "" : barText(Number(i)), event);
  });
  plot.addEventListener("pointerleave", () => showTip(plot, ""));
  const redraw = control(figure, {
    plot, view, draw, across: true,
    range: () => `${timeText(unit, view.x * span)} to ${timeText(unit, (view.x + 1 / view.scale) * span)}`,
    area: () => {
      const box = picture.getBoundingClientRect(), factor = box.width / width;
      return { left: box.left + gutter * factor, top: box.top, width: box.width - (gutter + RIGHT) * factor, height: box.height };
    },
    step: (by) => {
      const at = order.indexOf(selected), next = at < 0 ? (by > 0 ? 0 : order.length - 1) : (at + by + order.length) % order.length;
      select(order[next]);
      view.bring((bars.start_s[selected] + bars.end_s[selected]) / 2 / span, 0);
    },
  });
  plot.addEventListener("click", (event) => {
    if (event.target.dataset.bar === undefined) return;
    select(Number(event.target.dataset.bar));
    redraw();
  });
  return { view, redraw };
}
