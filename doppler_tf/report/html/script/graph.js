// The graph from left to right by depth: each vertex is a circle with its device's colour and number.
const LEAST_STEP = 13, MOST_STEP = 130, MOST_ROW_STEP = 24, MARGIN = 18, MOST_HEIGHT = 620, NAME_SIZE = 3.2, LEAST_TEXT = 7;

function drawGraph(figure, data) {
  const { graph } = data, { column, row, vertex, device, edges } = graph, count = vertex.length;
  const plot = figure.querySelector(".plot"), status = figure.querySelector(".status");
  const columns = Math.max(...column), least = Math.min(...row), rows = Math.max(...row) - least;
  const order = [...column.keys()].sort((a, b) => column[a] - column[b] || row[a] - row[b]);
  const between = (value, low, high) => Math.min(Math.max(value, low), high);
  const stepY = between((MOST_HEIGHT - 2 * MARGIN) / Math.max(rows, 1), LEAST_STEP, MOST_ROW_STEP), high = rows * stepY + 2 * MARGIN;
  const ys = row.map((r) => MARGIN + (r - least) * stepY), view = new View(20), marked = svg("g");
  const picture = svg("svg", { "aria-hidden": "true" });
  plot.append(picture);
  let selected = -1, stepX = 0, radius = 0, wide = 0, xs = [], names = null;

  const line = ([u, v]) => {
    const bend = Math.max((xs[v] - xs[u]) * 0.45, 6);
    return `M${xs[u].toFixed(1)} ${ys[u]}C${(xs[u] + bend).toFixed(1)} ${ys[u]} ${(xs[v] - bend).toFixed(1)} ${ys[v]} ${xs[v].toFixed(1)} ${ys[v]}`;
  };
  const lines = (wanted, look) => svg("path", { d: edges.filter(wanted).map(line).join(""), fill: "none", ...look });
  const crosses = ([u, v]) => device[u] !== device[v];

  // Places columns as far apart as the page is wide, within limits.
  function layOut(width) {
    const room = width / Math.min(MOST_HEIGHT / high, 1), step = between((room - 2 * MARGIN) / Math.max(columns, 1), LEAST_STEP, MOST_STEP);
    if (step === stepX) return;
    stepX = step;
    radius = Math.min(9, stepX * 0.46, stepY * 0.46);
    wide = columns * stepX + 2 * MARGIN;
    xs = column.map((c) => MARGIN + c * stepX);
    const circles = svg("g", { "font-size": Math.min(9.5, radius * 1.45), "text-anchor": "middle" });
    const below = stepY >= 2 * (radius + NAME_SIZE);  // names, else beside the circles
    names = svg("g", { class: "names", "font-size": NAME_SIZE, "text-anchor": below ? "middle" : "start", "dominant-baseline": "central" });
    for (let i = 0; i < count; i++) {
      const look = data.devices[device[i]], text = { x: xs[i], "pointer-events": "none" };
      circles.append(svg("circle", { cx: xs[i], cy: ys[i], r: radius, fill: look.colour, stroke: "#fff", "stroke-width": 0.5, "data-vertex": i }),
        svg("text", { ...text, y: ys[i], "dominant-baseline": "central", style: `fill: ${look.dark ? "#fff" : INK}` }, String(device[i])));
      const place = below ? { y: ys[i] + radius + 0.7 * NAME_SIZE } : { x: xs[i] + radius + 1, y: ys[i] };
      names.append(svg("text", { ...text, ...place }, fitted(data.names[vertex[i]], stepX - 1 - (below ? 0 : 2 * radius), NAME_SIZE)));
    }
    picture.replaceChildren(lines((edge) => !crosses(edge), { stroke: "#b9bec7" }), lines(crosses, { stroke: "#4a4f59", "stroke-opacity": 0.75 }),
      marked, circles, names);
  }

  function vertexText(i) {
    const v = vertex[i], kind = data.kinds[v];
    return `${data.vertices[v]}: ${kind ? kind + " " : ""}on ${data.devices[device[i]].name}`;
  }

  function mark(i) {
    marked.replaceChildren();
    if (i < 0) return;
    marked.append(lines(([u, v]) => u === i || v === i, { stroke: "#000", "stroke-width": 2.2 }),
      svg("circle", { cx: xs[i], cy: ys[i], r: radius + 3, fill: "none", stroke: "#000", "stroke-width": 2.5 }));
  }

  function draw() {
    const width = widthOf(plot);
    layOut(width);
    const fit = Math.min(width / wide, MOST_HEIGHT / high, 1.5), scale = view.scale;
    picture.setAttribute("viewBox", `${view.x * wide} ${view.y * high} ${wide / scale} ${high / scale}`);
    picture.style.aspectRatio = `${width} / ${Math.max(high * fit, 120)}`;
    names.setAttribute("visibility", fit * scale * NAME_SIZE >= LEAST_TEXT ? "visible" : "hidden");
    plot.dataset.scale = scale;
    mark(selected);
  }

  plot.addEventListener("pointermove", (event) => {
    const i = event.target.dataset && event.target.dataset.vertex, over = i !== undefined && !plot.classList.contains("held");
    showTip(plot, over ? vertexText(Number(i)) : "", event);
    mark(over ? Number(i) : selected);
  });
  plot.addEventListener("pointerleave", () => {
    showTip(plot, "");
    mark(selected);
  });
  const select = (i) => {
    selected = i;
    status.textContent = vertexText(i);
  };
  const redraw = control(figure, {
    plot, view, draw, across: false,
    range: () => `${view.scale.toFixed(1)} times enlarged`,
    area: () => picture.getBoundingClientRect(),
    step: (by) => {
      const at = order.indexOf(selected);
      select(order[at < 0 ? (by > 0 ? 0 : count - 1) : (at + by + count) % count]);
      view.bring(xs[selected] / wide, ys[selected] / high);
    },
  });
  plot.addEventListener("click", (event) => {
    if (event.target.dataset.vertex === undefined) return;
    select(Number(event.target.dataset.vertex));
    redraw();
  });
  return { view, redraw };
}
