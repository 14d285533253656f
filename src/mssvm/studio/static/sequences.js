// Marks on ranges of words or of sites: drag over them, then the chosen class is theirs; a key gives another class.
import { getJson } from "./api.js";

export class SequenceStage {
  constructor(stage, tools, record, choose) {
    this.stage = stage;
    this.record = record;
    this.chooseClass = choose;
    this.range = null;
    this.labels = [];
    this.prediction = null;
    tools.innerHTML = `<h2>Marking</h2><p class="note">Drag over words or sites. Enter accepts the prediction
      of this item, a marks everything without a label as the first class.</p>`;
    document.addEventListener("pointerup", () => this.finish());
  }

  keys() {
    return [
      ["Enter", "accept the prediction of this item"],
      ["a", "what has no label gets the first class"],
    ];
  }

  key(event) {
    if (event.key === "Enter") this.accept();
    else if (event.key === "a") this.fill();
    else return false;
    return true;
  }

  choose(index) {
    this.label = index;
  }

  async show(item, described, state) {
    this.item = item;
    this.described = described;
    this.prediction = null;
    this.range = null;
    this.build(state);
    await this.refresh(state);
  }

  update(described, state) {
    this.described = described;
    this.state = state;
    this.draw();
  }

  async refresh(state) {
    this.state = state;
    const { item } = this;
    if (state.answered[item] === undefined) {
      this.prediction = null;
    } else {
      const [found, doubt] = await Promise.all([
        getJson(`/api/items/${item}/labels`),
        getJson(`/api/items/${item}/uncertainty`),
      ]);
      if (item !== this.item) return;
      this.prediction = { labels: found.labels, doubt: doubt.uncertainty };
    }
    this.draw();
  }

  build(state) {
    this.state = state;
    if (this.described.words) this.buildWords();
    else this.buildSeries();
    this.draw();
  }

  buildWords() {
    const box = document.createElement("p");
    box.className = "sentence";
    this.words = this.described.words.map((text, k) => {
      const word = document.createElement("span");
      word.className = "word";
      word.textContent = text;
      word.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        this.begin(k);
      });
      word.addEventListener("pointerenter", () => this.extend(k));
      return word;
    });
    box.append(...this.words.flatMap((word) => [word, " "]));
    this.stage.replaceChildren(box);
  }

  buildSeries() {
    const box = document.createElement("div");
    box.className = "series";
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("aria-label", "series; drag over sites to label them");
    box.append(this.canvas);
    this.stage.replaceChildren(box);
    const at = (event) => {
      const place = this.canvas.getBoundingClientRect();
      const share = (event.clientX - place.left) / place.width;
      return Math.min(Math.max(Math.floor(share * this.length), 0), this.length - 1);
    };
    this.canvas.addEventListener("pointerdown", (event) => this.begin(at(event)));
    this.canvas.addEventListener("pointermove", (event) => this.extend(at(event)));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  get length() {
    return this.described.labels.length;
  }

  begin(k) {
    this.range = { from: k, to: k, open: true };
    this.draw();
  }

  extend(k) {
    if (!this.range?.open) return;
    this.range.to = k;
    this.draw();
  }

  async finish() {
    if (!this.range?.open) return;
    const start = Math.min(this.range.from, this.range.to);
    const stop = Math.max(this.range.from, this.range.to) + 1;
    this.range = null;
    await this.record({ kind: "mark", item: this.item, class: this.label, start, stop });
  }

  point(found) {
    this.range = { from: found.site, to: found.site, open: false };
    this.draw();
    this.words?.[found.site]?.scrollIntoView({ block: "center" });
  }

  classOf(tag) {
    if (tag === null || tag === undefined) return -1;
    const name = this.described.words ? tag.replace(/^[BI]-/, "") : tag;
    return this.state.classes.findIndex((info) => info.name === name);
  }

  // Runs [start, stop, class] of what is predicted where no label is given.
  runs() {
    const out = [];
    const tags = this.prediction?.labels ?? [];
    for (let k = 0; k < tags.length; k += 1) {
      if (this.described.labels[k] !== null) continue;
      const last = out.at(-1);
      const goesOn = last && last[1] === k && last[2] === this.classOf(tags[k]) && !tags[k].startsWith("B-");
      if (goesOn) last[1] = k + 1;
      else out.push([k, k + 1, this.classOf(tags[k])]);
    }
    return out;
  }

  async accept() {
    for (const [start, stop, label] of this.runs()) {
      if (label >= 0) await this.record({ kind: "mark", item: this.item, class: label, start, stop });
    }
  }

  async fill() {
    const { labels } = this.described;
    for (let k = 0; k < labels.length; k += 1) {
      if (labels[k] === null) await this.record({ kind: "mark", item: this.item, class: 0, start: k, stop: k + 1 });
    }
  }

  isChosen(k) {
    if (!this.range) return false;
    return k >= Math.min(this.range.from, this.range.to) && k <= Math.max(this.range.from, this.range.to);
  }

  draw() {
    if (!this.described) return;
    if (this.described.words) this.drawWords();
    else this.drawSeries();
  }

  drawWords() {
    this.words.forEach((word, k) => {
      const given = this.described.labels[k];
      const tag = given ?? this.prediction?.labels[k] ?? null;
      const index = this.classOf(tag);
      const outside = tag === null || tag === "O" || index < 0;
      const doubt = given === null ? (this.prediction?.doubt[k] ?? 0) : 0;
      word.classList.toggle("given", given !== null);
      word.classList.toggle("chosen", this.isChosen(k));
      word.style.background = outside ? "" : `${this.state.classes[index].colour}${given === null ? "55" : "99"}`;
      word.style.textDecoration = doubt > 0.25 ? `underline wavy rgb(214 90 40 / ${Math.min(0.3 + doubt, 1)})` : "";
      word.title = given === null ? `doubt ${doubt.toFixed(2)}` : "given";
      if (outside) word.removeAttribute("data-tag");
      else word.dataset.tag = tag;
    });
  }

  drawSeries() {
    const { canvas } = this;
    canvas.width = Math.max(canvas.clientWidth * devicePixelRatio, 1);
    canvas.height = Math.max(canvas.clientHeight * devicePixelRatio, 1);
    const context = canvas.getContext("2d");
    const step = canvas.width / this.length;
    const strip = canvas.height / 12;
    const bottom = canvas.height - 2 * strip;
    const ink = getComputedStyle(document.body).color;
    this.described.values.forEach((row, f) => {
      const low = Math.min(...row);
      const high = Math.max(...row);
      context.strokeStyle = ink;
      context.globalAlpha = 0.75 - 0.07 * f;
      context.lineWidth = devicePixelRatio;
      context.beginPath();
      row.forEach((value, k) => {
        const y = bottom - 8 - ((value - low) / (high - low || 1)) * (bottom - 16);
        context.lineTo((k + 0.5) * step, y);
      });
      context.stroke();
    });
    for (let k = 0; k < this.length; k += 1) {
      const given = this.classOf(this.described.labels[k]);
      const found = this.classOf(this.prediction?.labels[k]);
      context.globalAlpha = 1;
      if (given >= 0) this.cell(context, given, k * step, bottom, step, strip);
      if (found >= 0) {
        context.globalAlpha = 1 - 0.8 * (this.prediction.doubt[k] ?? 0);
        this.cell(context, found, k * step, bottom + strip, step, strip);
      }
      if (this.isChosen(k)) {
        context.globalAlpha = 0.2;
        context.fillStyle = ink;
        context.fillRect(k * step, 0, step + 0.5, canvas.height);
      }
    }
  }

  cell(context, index, x, y, width, height) {
    context.fillStyle = this.state.classes[index].colour;
    context.fillRect(x, y, width + 0.5, height - 2);
  }
}
