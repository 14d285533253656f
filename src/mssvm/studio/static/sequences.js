// Marks on ranges of words or of sites: drag over them to give them the chosen class. Or go from one prediction to the
// next by keys, and accept or reject each.
import { getJson } from "./api.js";

export class SequenceStage {
  constructor(stage, tools, record) {
    this.stage = stage;
    this.record = record;
    this.range = null;
    this.cursor = null; // a site without a label, whose prediction is accepted or rejected
    this.labels = [];
    this.prediction = null;
    tools.innerHTML = `<h2>Marking</h2><p class="note">Drag over words or sites. j and k go from one prediction to the
      next, y accepts it, x rejects it. Enter accepts all of this item; a marks everything without a label as the
      first class.</p>`;
    document.addEventListener("pointerup", () => this.finish());
  }

  keys() {
    return [
      ["j, k", "next, previous prediction"],
      ["y, x", "accept, reject it"],
      ["Enter", "accept all predictions of this item"],
      ["a", "what has no label gets the first class"],
    ];
  }

  key(event) {
    const actions = {
      Enter: () => this.acceptAll(),
      a: () => this.fill(),
      j: () => this.step(1),
      k: () => this.step(-1),
      y: () => this.decide(false),
      x: () => this.decide(true),
    };
    const action = actions[event.key];
    const onButton = event.key === "Enter" && event.target instanceof HTMLButtonElement;
    if (!action || onButton) return false;
    action();
    return true;
  }

  // Predictions to decide on, [start, stop, class]: whole spans, and single words outside of them.
  units() {
    const single = (run) => this.described.words && run[2] === 0;
    return this.runs().flatMap((run) => {
      if (!single(run)) return [run];
      return Array.from({ length: run[1] - run[0] }, (_, k) => [run[0] + k, run[0] + k + 1, run[2]]);
    });
  }

  unitAtCursor() {
    return this.units().find(([start, stop]) => start <= this.cursor && this.cursor < stop);
  }

  step(direction) {
    const starts = this.units().map(([start]) => start);
    const here = this.cursor ?? (direction > 0 ? -1 : this.length);
    const ahead = direction > 0 ? starts.find((start) => start > here) : starts.findLast((start) => start < here);
    this.moveTo(ahead ?? (direction > 0 ? starts[0] : starts.at(-1)) ?? null);
  }

  moveTo(site) {
    this.cursor = site;
    const unit = site === null ? undefined : this.unitAtCursor();
    this.range = unit ? { from: unit[0], to: unit[1] - 1, open: false } : null;
    this.draw();
    if (unit && this.words) this.words[site].focus({ focusVisible: true });
  }

  async decide(rejects) {
    const unit = this.cursor === null ? undefined : this.unitAtCursor();
    if (!unit) {
      this.step(1);
      return;
    }
    const [start, stop, label] = unit;
    const next = this.units().find((other) => other[0] >= stop)?.[0] ?? null;
    const mark = { kind: "mark", item: this.item, class: label, start, stop };
    this.pending = next;
    await this.record(rejects ? { ...mark, not: true } : mark);
  }

  pointAtDisagreement() {
    const [site] = this.described.disputed;
    if (site !== undefined) this.point({ site });
  }

  choose(index) {
    this.label = index;
  }

  async show(item, described, state) {
    this.item = item;
    this.described = described;
    this.prediction = null;
    this.range = null;
    this.cursor = null;
    this.pending = undefined;
    this.build(state);
    await this.refresh(state);
  }

  update(described, state) {
    this.described = described;
    this.state = state;
    this.draw();
    this.goOn();
  }

  // After a decision: go to the next prediction, once the server has the mark.
  goOn() {
    if (this.pending === undefined) return;
    const site = this.pending;
    this.pending = undefined;
    this.moveTo(site);
  }

  async refresh(state) {
    this.state = state;
    const { item } = this;
    this.asked = (this.asked ?? 0) + 1;
    const turn = this.asked;
    if (state.answered[item] === undefined) {
      this.prediction = null;
    } else {
      const [found, doubt] = await Promise.all([
        getJson(`/api/items/${item}/labels`),
        getJson(`/api/items/${item}/uncertainty`),
      ]);
      if (turn !== this.asked) return;
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
    box.setAttribute("role", "listbox");
    box.setAttribute("aria-label", "words; j and k move, y accepts, x rejects");
    this.words = this.described.words.map((text, k) => {
      const word = document.createElement("span");
      word.className = "word";
      word.setAttribute("role", "option");
      word.tabIndex = -1;
      word.textContent = text;
      word.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        this.begin(k);
      });
      word.addEventListener("pointerenter", () => this.extend(k));
      return word;
    });
    box.append(...this.words.flatMap((word) => [word, " "]));
    this.people = document.createElement("div");
    this.people.className = "votes";
    this.stage.replaceChildren(box, this.people);
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
    this.cursor = found.site;
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

  async acceptAll() {
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
      word.classList.toggle("disputed", this.described.disputed.includes(k));
      word.setAttribute("aria-selected", String(this.isChosen(k)));
      word.tabIndex = k === (this.cursor ?? 0) ? 0 : -1;
      word.style.background = outside ? "" : `${this.state.classes[index].colour}${given === null ? "55" : "99"}`;
      word.style.textDecoration = doubt > 0.25 ? `underline wavy rgb(214 90 40 / ${Math.min(0.3 + doubt, 1)})` : "";
      word.title = this.about(k, doubt);
      word.setAttribute("aria-label", `${this.described.words[k]}: ${tag ?? "no label"}, ${word.title}`);
      if (outside) word.removeAttribute("data-tag");
      else word.dataset.tag = tag;
    });
    this.drawVotes();
  }

  // What is known of a word, in words.
  about(k, doubt) {
    if (this.described.disputed.includes(k)) return "people disagree";
    if (this.described.labels[k] !== null) return "given";
    const rejected = this.described.rejected[k];
    const doubtful = `predicted, doubt ${doubt.toFixed(2)}`;
    return rejected.length ? `not ${rejected.join(", not ")}; ${doubtful}` : doubtful;
  }

  // A row for everyone, and a column for every word on which they disagree.
  drawVotes() {
    const { disputed, votes, words } = this.described;
    this.people.replaceChildren();
    if (!disputed.length) return;
    const table = document.createElement("table");
    const row = (kind, texts) => {
      const line = document.createElement("tr");
      texts.forEach((text, k) => {
        const cell = document.createElement(kind === "head" || k === 0 ? "th" : "td");
        cell.scope = kind === "head" ? "col" : "row";
        cell.textContent = text;
        const index = kind === "head" || k === 0 ? -1 : this.classOf(text);
        if (index > 0) cell.style.background = `${this.state.classes[index].colour}66`;
        line.append(cell);
      });
      table.append(line);
    };
    table.createCaption().textContent = "Where people disagree";
    row("head", ["", ...disputed.map((k) => words[k])]);
    for (const [name, labels] of Object.entries(votes)) row("body", [name, ...disputed.map((k) => asText(labels[k]))]);
    if (this.prediction) row("body", ["model", ...disputed.map((k) => this.prediction.labels[k])]);
    this.people.append(table);
  }

  drawSeries() {
    const { canvas } = this;
    canvas.width = Math.max(canvas.clientWidth * devicePixelRatio, 1);
    canvas.height = Math.max(canvas.clientHeight * devicePixelRatio, 1);
    const context = canvas.getContext("2d");
    const step = canvas.width / this.length;
    const people = this.described.disputed.length ? Object.entries(this.described.votes) : [];
    const strip = canvas.height / (12 + people.length);
    const bottom = canvas.height - (2 + people.length) * strip;
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
    this.drawPeople(context, people, step, bottom + 2 * strip, strip, ink);
  }

  // A strip for everyone, with the name at its left.
  drawPeople(context, people, step, top, strip, ink) {
    people.forEach(([name, labels], row) => {
      const y = top + row * strip;
      context.globalAlpha = 1;
      labels.forEach((label, k) => {
        const index = typeof label === "string" ? this.classOf(label) : -1;
        if (index >= 0) this.cell(context, index, k * step, y, step, strip);
      });
      context.fillStyle = ink;
      context.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
      context.fillText(name, 4, y + strip - 6);
    });
    context.fillStyle = getComputedStyle(document.body).getPropertyValue("--warn");
    for (const k of this.described.disputed) context.fillRect(k * step, top - 2 * devicePixelRatio, step + 0.5, 2 * devicePixelRatio);
  }

  cell(context, index, x, y, width, height) {
    context.fillStyle = this.state.classes[index].colour;
    context.fillRect(x, y, width + 0.5, height - 2);
  }
}

// A person's entry for a word: a tag, the tags not rejected, or nothing.
function asText(label) {
  if (label === null) return "·";
  return typeof label === "string" ? label : label.join(" | ");
}
