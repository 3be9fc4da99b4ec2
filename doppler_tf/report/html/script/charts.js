// Lines over episodes or runs. Lines differ by dashes as well as by colour.
const LOOKS = [["#cc6677", ""], ["#332288", ""], ["#117733", "7 4"], ["#882255", "2 3"]];
const CHART_HEIGHT = 300;

function drawChart(figure, chart) {
  const plot = figure.querySelector(".plot"), { series, unit } = chart;
  const xs = series.flatMap((line) => line.points.map((point) => point[0])), ys = series.flatMap((line) => line.points.map((point) => point[1]));
  const low = Math.min(...ys), high = Math.max(...ys), bound = chart.bound_s && chart.bound_s >= low / 2 ? chart.bound_s : null;
  const from = Math.min(low, bound === null ? low : bound), pad = (high - from || Math.abs(high) || 1) * 0.05;
  const shown = series.map((line, i) => ({ ...line, colour: LOOKS[i % LOOKS.length][0], dash: LOOKS[i % LOOKS.length][1] }));
  const legend = figure.querySelector(".lines");
  for (const line of [...shown, ...(bound === null ? [] : [{ name: "lower bound", colour: INK, dash: "5 4" }])]) {
    const stroke = { x1: 0, x2: 36, y1: 6, y2: 6, stroke: line.colour, "stroke-width": 3, "stroke-dasharray": line.dash };
    const entry = document.createElement("span");
    entry.append(svg("svg", { viewBox: "0 0 36 12", "aria-hidden": "true" }, svg("line", stroke)), ` ${line.name}`);
    legend.append(entry);
  }
  const picture = svg("svg", { "aria-hidden": "true" });
  plot.append(picture);

  return function redraw() {
    const width = widthOf(plot), left = 64, right = 16, top = 10, bottom = 46;
    const first = Math.min(...xs), last = Math.max(...xs), begin = first === last ? first - 1 : first;
    const x = (value) => left + (value - begin) / (last - begin) * (width - left - right);
    const y = (value) => CHART_HEIGHT - bottom - (value - from + pad) / (high - from + 2 * pad) * (CHART_HEIGHT - top - bottom);
    const axis = svg("g", { class: "axis", "font-size": 11 });
    for (const value of ticks((from - pad) * unit.factor, (high + pad) * unit.factor, 6)) {
      const at = y(value / unit.factor);
      axis.append(svg("line", { x1: left, x2: width - right, y1: at, y2: at, stroke: GRID }),
        svg("text", { x: left - 6, y: at, "text-anchor": "end", "dominant-baseline": "central" }, tickText(value)));
    }
    for (const value of ticks(begin, last, Math.max(2, (width - left) / 80)).filter(Number.isInteger)) {
      axis.append(svg("text", { x: Math.min(x(value), width - 22), y: CHART_HEIGHT - bottom + 16, "text-anchor": "middle" }, tickText(value)));
    }
    const middle = (CHART_HEIGHT - bottom + top) / 2;
    axis.append(svg("line", { x1: left, x2: width - right, y1: CHART_HEIGHT - bottom, y2: CHART_HEIGHT - bottom, stroke: QUIET }),
      svg("text", { x: (left + width - right) / 2, y: CHART_HEIGHT - 8, "text-anchor": "middle" }, chart.x),
      svg("text", { x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, unit.axis ? `${chart.y} (${unit.axis})` : chart.y));
    const lines = shown.map((line) => line.points.length === 1
      ? svg("circle", { cx: x(line.points[0][0]), cy: y(line.points[0][1]), r: 3.5, fill: line.colour })
      : svg("polyline", { points: line.points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" "), fill: "none", stroke: line.colour,
        "stroke-width": 2, "stroke-dasharray": line.dash, "stroke-linejoin": "round" }));
    if (bound !== null) {
      lines.push(svg("line", { x1: left, x2: width - right, y1: y(bound), y2: y(bound), stroke: INK, "stroke-dasharray": "5 4" }));
    }
    picture.setAttribute("viewBox", `0 0 ${width} ${CHART_HEIGHT}`);
    picture.replaceChildren(axis, ...lines);
  };
}
