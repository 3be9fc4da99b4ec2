// Draws every picture, and redraws it when the page's width changes. On paper each is shown whole and as wide as the paper.
const views = [], redraws = [];
for (const section of document.querySelectorAll("section.graph")) {
  const data = JSON.parse(section.querySelector("script.data").textContent);
  for (const [kind, draw] of [["gantt", drawGantt], ["drawing", drawGraph]]) {
    const figure = section.querySelector(`figure.${kind}`);
    if (!figure) continue;
    const { view, redraw } = draw(figure, data);
    views.push(view);
    redraws.push(redraw);
  }
  for (const figure of section.querySelectorAll("figure.chart")) redraws.push(drawChart(figure, data.charts[figure.dataset.chart]));
}
const redrawAll = () => redraws.forEach((redraw) => redraw());
redrawAll();
window.addEventListener("resize", redrawAll);

// Browsers count the pages right after this event. If an element changed its height later, the last pages would be lost.
const PAPER_WIDTH = 688;
let before = [], opened = [];
window.addEventListener("beforeprint", () => {
  before = views.map(({ scale, x, y }) => ({ scale, x, y }));
  opened = [...document.querySelectorAll("details[data-print]:not([open])")];
  views.forEach((view) => view.all());
  opened.forEach((details) => { details.open = true; });
  paperWidth = PAPER_WIDTH;
  redrawAll();
});
window.addEventListener("afterprint", () => {
  views.forEach((view, i) => Object.assign(view, before[i]));
  opened.forEach((details) => { details.open = false; });
  paperWidth = 0;
  redrawAll();
});
