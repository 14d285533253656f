// Strokes on a picture: paint, erase, zoom, pan; the prediction and its uncertainty lie over the picture.
import { getPicture } from "./api.js";

const OPACITY = 0.45;

export class PictureStage {
  constructor(stage, tools, record) {
    this.stage = stage;
    this.record = record;
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("aria-label", "picture; paint with the pointer");
    stage.classList.add("pictures");
    stage.replaceChildren(this.canvas);
    this.context = this.canvas.getContext("2d");
    this.view = { scale: 1, x: 0, y: 0 };
    this.radius = 6;
    this.layers = {};
    this.events = [];
    this.stroke = null;
    this.panning = null;
    this.mark = null;
    this.shown = { prediction: true, uncertainty: false, strokes: true, disagreements: true };
    this.makeTools(tools);
    this.listen();
  }

  makeTools(tools) {
    tools.innerHTML = `<h2>Brush</h2>
      <label class="row">size <input id="brush" type="range" min="1" max="60" value="${this.radius}"></label>
      <h2>Show</h2>
      <label class="row"><input id="show-prediction" type="checkbox" checked> prediction <kbd>p</kbd></label>
      <label class="row"><input id="show-uncertainty" type="checkbox"> uncertainty <kbd>u</kbd></label>
      <label class="row"><input id="show-strokes" type="checkbox" checked> strokes <kbd>t</kbd></label>
      <label class="row"><input id="show-disagreements" type="checkbox" checked> disagreements <kbd>g</kbd></label>`;
    this.brush = tools.querySelector("#brush");
    this.brush.addEventListener("input", () => {
      this.radius = Number(this.brush.value);
      this.draw();
    });
    this.boxes = {};
    for (const name of Object.keys(this.shown)) {
      this.boxes[name] = tools.querySelector(`#show-${name}`);
      this.boxes[name].addEventListener("change", () => this.toggle(name, this.boxes[name].checked));
    }
  }

  toggle(name, value = !this.shown[name]) {
    this.shown[name] = value;
    this.boxes[name].checked = value;
    this.draw();
  }

  keys() {
    return [
      ["p, u, t, g", "prediction, uncertainty, strokes, disagreements on or off"],
      ["[ ]", "smaller and larger brush"],
      ["wheel", "zoom"],
      ["space + drag", "pan; also the middle button"],
      ["0", "whole picture"],
    ];
  }

  key(event) {
    const names = { p: "prediction", u: "uncertainty", t: "strokes", g: "disagreements" };
    if (names[event.key]) this.toggle(names[event.key]);
    else if (event.key === "[" || event.key === "]") this.resizeBrush(event.key === "]" ? 1.25 : 0.8);
    else if (event.key === "0") this.fit();
    else if (event.key === " ") this.stage.classList.add("panning");
    else return false;
    return true;
  }

  resizeBrush(factor) {
    this.radius = Math.min(Math.max(this.radius * factor, 1), 60);
    this.brush.value = this.radius;
    this.draw();
  }

  choose(index) {
    this.label = index;
  }

  async show(item, described, state) {
    this.item = item;
    this.size = { width: described.width, height: described.height };
    this.layers = { picture: await getPicture(`/api/items/${item}/picture`) };
    this.mark = null;
    await this.update(described, state);
    this.fit();
    await this.refresh(state);
  }

  async update(described, state) {
    this.classes = state.classes;
    this.events = described.events;
    await this.outline(state);
    this.draw();
  }

  // The outlines of the pixels to which people give different classes.
  async outline(state) {
    const { item } = this;
    const disputed = state.disputed.includes(item) ? await getPicture(`/api/items/${item}/disputed`) : null;
    if (item !== this.item) return;
    this.layers.disagreements = disputed ? asOutline(disputed) : undefined;
  }

  pointAtDisagreement() {
    this.toggle("disagreements", true);
  }

  async refresh(state) {
    const item = this.item;
    this.asked = (this.asked ?? 0) + 1;
    const turn = this.asked;
    if (state.answered[item] === undefined) {
      delete this.layers.prediction;
      delete this.layers.uncertainty;
    } else {
      const [prediction, uncertainty] = await Promise.all([
        getPicture(`/api/items/${item}/labels`),
        getPicture(`/api/items/${item}/uncertainty`),
      ]);
      if (turn !== this.asked) return;
      this.layers.prediction = prediction;
      this.layers.uncertainty = asHeat(uncertainty);
    }
    this.draw();
  }

  point(found) {
    this.mark = found;
    this.view.scale = Math.max(this.view.scale, Math.min(this.canvas.width, this.canvas.height) / 160);
    this.view.x = this.canvas.width / 2 - found.x * this.view.scale;
    this.view.y = this.canvas.height / 2 - found.y * this.view.scale;
    this.draw();
  }

  fit() {
    const box = this.stage.getBoundingClientRect();
    this.canvas.width = Math.max(box.width * devicePixelRatio, 1);
    this.canvas.height = Math.max(box.height * devicePixelRatio, 1);
    if (!this.size) return;
    const scale = 0.96 * Math.min(this.canvas.width / this.size.width, this.canvas.height / this.size.height);
    this.view = {
      scale,
      x: (this.canvas.width - scale * this.size.width) / 2,
      y: (this.canvas.height - scale * this.size.height) / 2,
    };
    this.draw();
  }

  toPicture(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = ((event.clientX - box.left) * this.canvas.width) / box.width;
    const y = ((event.clientY - box.top) * this.canvas.height) / box.height;
    return [(x - this.view.x) / this.view.scale, (y - this.view.y) / this.view.scale];
  }

  listen() {
    const { canvas } = this;
    new ResizeObserver(() => this.fit()).observe(this.stage);
    document.addEventListener("keyup", (event) => {
      if (event.key === " ") this.stage.classList.remove("panning");
    });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      if (event.button === 1 || this.stage.classList.contains("panning")) {
        this.panning = { x: event.clientX, y: event.clientY };
      } else if (event.button === 0) {
        this.mark = null;
        this.stroke = { class: this.label, radius: this.radius, points: [this.toPicture(event)] };
      }
      this.draw();
    });
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", () => this.finish());
    canvas.addEventListener("pointercancel", () => {
      this.stroke = null;
      this.panning = null;
    });
    canvas.addEventListener("wheel", (event) => this.zoom(event), { passive: false });
  }

  move(event) {
    this.pointer = this.toPicture(event);
    if (this.panning) {
      this.view.x += (event.clientX - this.panning.x) * devicePixelRatio;
      this.view.y += (event.clientY - this.panning.y) * devicePixelRatio;
      this.panning = { x: event.clientX, y: event.clientY };
    } else if (this.stroke && this.stroke.points.length < 4000) {
      this.stroke.points.push(this.pointer);
    }
    this.draw();
  }

  async finish() {
    this.panning = null;
    const { stroke } = this;
    this.stroke = null;
    if (!stroke) return;
    const inside = (value, size) => Math.min(Math.max(value, -size), 2 * size);
    const points = stroke.points.map(([x, y]) => [
      Math.round(10 * inside(x, this.size.width)) / 10,
      Math.round(10 * inside(y, this.size.height)) / 10,
    ]);
    this.events = [...this.events, { ...stroke, points }];
    this.draw();
    await this.record({ kind: "mark", item: this.item, class: stroke.class, points, radius: stroke.radius });
  }

  zoom(event) {
    event.preventDefault();
    const [x, y] = this.toPicture(event);
    const factor = Math.exp(-event.deltaY / 400);
    const scale = Math.min(Math.max(this.view.scale * factor, 0.05), 60);
    this.view.x += x * (this.view.scale - scale);
    this.view.y += y * (this.view.scale - scale);
    this.view.scale = scale;
    this.draw();
  }

  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.paint();
    });
  }

  paint() {
    const { context, canvas, view, layers, shown } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (!layers.picture) return;
    context.setTransform(view.scale, 0, 0, view.scale, view.x, view.y);
    context.imageSmoothingEnabled = view.scale < 2;
    context.drawImage(layers.picture, 0, 0);
    if (shown.prediction && layers.prediction) {
      context.globalAlpha = OPACITY;
      context.drawImage(layers.prediction, 0, 0);
    }
    context.globalAlpha = 1;
    if (shown.uncertainty && layers.uncertainty) context.drawImage(layers.uncertainty, 0, 0);
    if (shown.strokes) for (const event of this.events) this.paintStroke(event);
    if (this.stroke) this.paintStroke(this.stroke);
    if (shown.disagreements && layers.disagreements) context.drawImage(layers.disagreements, 0, 0);
    if (this.pointer && !this.panning) this.ring(...this.pointer, this.radius, 1);
    if (this.mark) for (const radius of [12, 16]) this.ring(this.mark.x, this.mark.y, radius, 2);
  }

  paintStroke(event) {
    const { context } = this;
    context.lineCap = "round";
    context.lineJoin = "round";
    context.lineWidth = 2 * event.radius;
    context.strokeStyle = event.class === null ? "rgb(255 255 255 / .55)" : this.classes[event.class].colour;
    context.globalAlpha = event.class === null ? 0.5 : 0.85;
    context.beginPath();
    const [first, ...rest] = event.points;
    context.moveTo(...first);
    for (const point of rest.length ? rest : [first]) context.lineTo(...point);
    context.stroke();
    context.globalAlpha = 1;
  }

  ring(x, y, radius, width) {
    const { context, view } = this;
    for (const [colour, factor] of [["#000", 3], ["#fff", 1]]) {
      context.strokeStyle = colour;
      context.lineWidth = (width * factor) / view.scale;
      context.beginPath();
      context.arc(x, y, radius, 0, 7);
      context.stroke();
    }
  }
}

// The border of a mask: alternating white and magenta pixels, visible on every picture.
function asOutline(mask) {
  const { width, height } = mask;
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  context.drawImage(mask, 0, 0);
  const pixels = context.getImageData(0, 0, width, height);
  const inside = (x, y) => x >= 0 && y >= 0 && x < width && y < height && pixels.data[4 * (y * width + x)] > 0;
  const border = new ImageData(width, height);
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      const inner = inside(x - 1, y) && inside(x + 1, y) && inside(x, y - 1) && inside(x, y + 1);
      if (!inside(x, y) || inner) continue;
      border.data.set((x + y) % 4 < 2 ? [255, 255, 255, 255] : [214, 0, 150, 255], 4 * (y * width + x));
    }
  }
  context.putImageData(border, 0, 0);
  return canvas;
}

// Uncertainty as a veil: clear where the model is sure, bright where it is not.
function asHeat(grey) {
  const canvas = new OffscreenCanvas(grey.width, grey.height);
  const context = canvas.getContext("2d");
  context.drawImage(grey, 0, 0);
  const pixels = context.getImageData(0, 0, grey.width, grey.height);
  for (let i = 0; i < pixels.data.length; i += 4) {
    const value = pixels.data[i];
    pixels.data[i] = 255;
    pixels.data[i + 1] = 255;
    pixels.data[i + 2] = 255;
    pixels.data[i + 3] = value;
  }
  context.putImageData(pixels, 0, 0);
  return canvas;
}
