// The visible part of a picture: enlarged `scale` times, with its corner at (x, y), in shares of the whole.
class View {
  constructor(most) {
    this.most = most;
    this.all();
  }

  all() {
    this.scale = 1;
    this.x = this.y = 0;
  }

  // Enlarges by `factor` around a point given as shares of what is shown.
  zoom(factor, atX = 0.5, atY = 0.5) {
    const scale = Math.min(Math.max(this.scale * factor, 1), this.most), gained = 1 / this.scale - 1 / scale;
    this.x += atX * gained;
    this.y += atY * gained;
    this.scale = scale;
    this.keepInside();
  }

  // Moves by shares of what is shown.
  move(x, y) {
    this.x += x / this.scale;
    this.y += y / this.scale;
    this.keepInside();
  }

  // Moves so that a point of the whole is shown.
  bring(x, y) {
    const shown = 1 / this.scale;
    if (x < this.x || x > this.x + shown) this.x = x - shown / 2;
    if (y < this.y || y > this.y + shown) this.y = y - shown / 2;
    this.keepInside();
  }

  keepInside() {
    const most = 1 - 1 / this.scale;
    this.x = Math.min(Math.max(this.x, 0), most);
    this.y = Math.min(Math.max(this.y, 0), most);
  }
}

// Lets mouse, buttons and keys move the view of a picture and walk through its vertices.
//
// picture: { plot, view, draw(), range(), area() -> rectangle on the screen, step(by), across: it moves left and right alone }
function control(figure, picture) {
  const { plot, view } = picture;
  const range = figure.querySelector(".range");
  const redraw = () => {
    picture.draw();
    range.textContent = picture.range();
  };
  const actions = {
    in: () => view.zoom(1.5), out: () => view.zoom(1 / 1.5), all: () => view.all(),
    left: () => view.move(-0.2, 0), right: () => view.move(0.2, 0), up: () => view.move(0, -0.2), down: () => view.move(0, 0.2),
    next: () => picture.step(1), previous: () => picture.step(-1),
  };
  const keys = { "+": "in", "=": "in", "-": "out", "_": "out", "−": "out", "0": "all", ArrowLeft: "left", ArrowRight: "right", n: "next",
    p: "previous", ...(picture.across ? {} : { ArrowUp: "up", ArrowDown: "down" }) };
  const act = (name) => {
    actions[name]();
    redraw();
  };

  for (const button of figure.querySelectorAll("button[data-do]")) button.addEventListener("click", () => act(button.dataset.do));
  plot.addEventListener("keydown", (event) => {
    const name = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!name || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act(name);
  });
  plot.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== plot) return;  // the page scrolls
    event.preventDefault();
    const area = picture.area();
    view.zoom(1.2 ** -Math.sign(event.deltaY), (event.clientX - area.left) / area.width, (event.clientY - area.top) / area.height);
    redraw();
  }, { passive: false });

  let held = null;
  plot.addEventListener("pointerdown", (event) => {
    if (event.button === 0) held = { x: event.clientX, y: event.clientY };
  });
  plot.addEventListener("pointermove", (event) => {
    if (!held) return;
    if (!plot.hasPointerCapture(event.pointerId)) {  // not with the first touch, which may be a click
      plot.setPointerCapture(event.pointerId);
      plot.classList.add("held");
    }
    const area = picture.area();
    view.move((held.x - event.clientX) / area.width, (held.y - event.clientY) / area.height);
    held = { x: event.clientX, y: event.clientY };
    redraw();
  });
  for (const end of ["pointerup", "pointercancel"]) {
    plot.addEventListener(end, () => {
      held = null;
      plot.classList.remove("held");
    });
  }
  return redraw;
}
