// The page around the work: classes, items, undo, suggestions, and what the learner does.
import { getJson, listen, post } from "./api.js";
import { PictureStage } from "./pictures.js";
import { SequenceStage } from "./sequences.js";

const byId = (id) => document.getElementById(id);
const app = { state: null, item: 0, chosen: 1, stage: null };
const ERASER = null;

function say(text, isError = false) {
  const status = byId("status");
  status.textContent = text;
  status.classList.toggle("error", isError);
}

async function attempt(action) {
  try {
    return await action();
  } catch (error) {
    say(error.message, true);
    return undefined;
  }
}

function record(event) {
  return attempt(() => post("/api/events", event));
}

function choose(index) {
  app.chosen = index;
  drawClasses();
  app.stage?.choose(index);
}

function classButton(name, colour, key, pressed, onClick) {
  const button = document.createElement("button");
  button.type = "button";
  button.setAttribute("aria-pressed", String(pressed));
  const swatch = document.createElement("span");
  swatch.className = "swatch";
  swatch.style.background = colour;
  const keyboard = document.createElement("kbd");
  keyboard.textContent = key;
  button.append(swatch, name, keyboard);
  button.addEventListener("click", onClick);
  const entry = document.createElement("li");
  entry.append(button);
  return entry;
}

function drawClasses() {
  const entries = app.state.classes.map((info, k) =>
    classButton(info.name, info.colour, k < 9 ? String(k + 1) : "", app.chosen === k, () => choose(k)),
  );
  entries.push(classButton("eraser", "transparent", "e", app.chosen === ERASER, () => choose(ERASER)));
  byId("classes").replaceChildren(...entries);
}

function drawCurve(points) {
  const svg = byId("curve");
  const make = (name, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  svg.replaceChildren();
  byId("curve-note").textContent = points.length
    ? "Agreement with new labels before they are learned. Corrections are harder than other places."
    : "";
  if (!points.length) return;
  const most = Math.max(...points.map((point) => point[0]), 2);
  const x = (value) => 8 + (184 * value) / most;
  const y = (value) => 62 - 54 * value;
  svg.append(make("polyline", { points: points.map(([n, share]) => `${x(n)},${y(share)}`).join(" ") }));
  for (const [n, share] of points) svg.append(make("circle", { cx: x(n), cy: y(share), r: 1.8 }));
  for (const share of [0, 1]) {
    const text = make("text", { x: 2, y: y(share) + 3 });
    text.textContent = share ? "1" : "0";
    svg.append(text);
  }
}

function drawState() {
  const { state } = app;
  drawClasses();
  byId("undo").disabled = !state.marks;
  byId("redo").disabled = !state.undone;
  byId("counts").textContent = `${state.marks} ${state.marks === 1 ? "mark" : "marks"}, ${state.items} ${state.items === 1 ? "item" : "items"}`;
  byId("command").textContent = state.recipe.command;
  byId("python").textContent = state.recipe.python;
  drawCurve(state.progress.agreement);
  const { doing, seconds, status, error } = state.progress;
  if (error) say(error, true);
  else if (doing) say(doing);
  else if (status) say(`learned in ${seconds.toFixed(2)} s from ${state.marks} marks`);
}

async function show(item) {
  app.item = (item + app.state.items) % app.state.items;
  await attempt(async () => {
    await post("/api/look", { item: app.item });
    const described = await getJson(`/api/items/${app.item}`);
    byId("item-name").textContent = `${described.name}  (${app.item + 1} of ${app.state.items})`;
    await app.stage.show(app.item, described, app.state);
  });
}

async function onState(state) {
  const first = app.state === null;
  const before = app.state;
  app.state = state;
  if (first) {
    const Stage = state.kind === "pictures" ? PictureStage : SequenceStage;
    app.stage = new Stage(byId("stage"), byId("tools"), record, choose);
    app.chosen = state.classes.length > 1 ? 1 : 0;
    fillKeys();
    drawState();
    app.stage.choose(app.chosen);
    await show(0);
    return;
  }
  drawState();
  if (before.version !== state.version) {
    const described = await attempt(() => getJson(`/api/items/${app.item}`));
    if (described) app.stage.update(described, state);
  }
  if (before.answered[app.item] !== state.answered[app.item]) await attempt(() => app.stage.refresh(state));
}

async function goToSuggestion() {
  const found = await attempt(() => getJson("/api/suggest"));
  if (!found) return;
  await show(found.item);
  app.stage.point(found);
}

async function save() {
  const written = await attempt(() => post("/api/export"));
  if (written) say(`wrote ${written.files.length} files: ${written.files.slice(-3).join(", ")}`);
}

const KEYS = {
  ArrowLeft: () => show(app.item - 1),
  ArrowRight: () => show(app.item + 1),
  z: () => record({ kind: "undo" }),
  Z: () => record({ kind: "redo" }),
  n: goToSuggestion,
  s: save,
  e: () => choose(ERASER),
  "?": () => byId("keys").showModal(),
};

function fillKeys() {
  const common = [
    ["1 … 9", "class"],
    ["e", "eraser"],
    ["z, Z", "undo, redo"],
    ["n", "where a label helps most"],
    ["← →", "other items"],
    ["s", "write files beside the data"],
  ];
  const nodes = [];
  for (const [key, text] of [...common, ...app.stage.keys()]) {
    const term = document.createElement("dt");
    term.textContent = key;
    const meaning = document.createElement("dd");
    meaning.textContent = text;
    nodes.push(term, meaning);
  }
  byId("key-list").replaceChildren(...nodes);
}

document.addEventListener("keydown", (event) => {
  if (event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey || !app.state) return;
  if (app.stage.key(event)) {
    event.preventDefault();
    return;
  }
  const number = Number(event.key);
  if (number >= 1 && number <= app.state.classes.length) {
    choose(number - 1);
    return;
  }
  if (KEYS[event.key]) {
    event.preventDefault();
    KEYS[event.key]();
  }
});

byId("previous").addEventListener("click", KEYS.ArrowLeft);
byId("next").addEventListener("click", KEYS.ArrowRight);
byId("undo").addEventListener("click", KEYS.z);
byId("redo").addEventListener("click", KEYS.Z);
byId("suggest").addEventListener("click", goToSuggestion);
byId("export").addEventListener("click", save);
byId("help").addEventListener("click", KEYS["?"]);
byId("new-class").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = byId("class-name").value;
  if (await record({ kind: "class", name })) byId("class-name").value = "";
});

listen(onState, () => say("the studio does not answer; is the command still running?", true));
