// The page around the work: classes, items, undo, suggestions, and what the learner does.
import { getJson, listen, post } from "./api.js";
import { PictureStage } from "./pictures.js";
import { SequenceStage } from "./sequences.js";

const byId = (id) => document.getElementById(id);
const app = { state: null, item: 0, drawn: 0, drawnAnswer: -1, chosen: 1, stage: null };
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

const NAME_KEY = "mssvm-studio-name";

// Marks carry the name of the person at this page, if there is one.
function record(event) {
  const by = byId("annotator").value.trim();
  return attempt(() => post("/api/events", event.kind === "mark" && by ? { ...event, by } : event));
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

function drawPeople() {
  const { annotators, disputed } = app.state;
  const named = annotators.length > 1 || annotators.some((person) => person.name !== "unnamed");
  const entries = named ? annotators : [];
  byId("people").replaceChildren(
    ...entries.map(({ name, marks, accuracy }) => {
      const entry = document.createElement("li");
      const about = document.createElement("span");
      about.textContent = `${marks} ${marks === 1 ? "mark" : "marks"}${accuracy === null ? "" : `, about ${Math.round(100 * accuracy)}% right`}`;
      entry.append(name, about);
      return entry;
    }),
  );
  const button = byId("disagreement");
  button.hidden = !disputed.length;
  button.textContent = `${disputed.length} ${disputed.length === 1 ? "item" : "items"} with disagreements`;
}

function drawState() {
  const { state } = app;
  drawClasses();
  byId("undo").disabled = !state.marks;
  byId("redo").disabled = !state.undone;
  byId("counts").textContent = `${state.marks} ${state.marks === 1 ? "mark" : "marks"}, ${state.items} ${state.items === 1 ? "item" : "items"}`;
  byId("command").textContent = state.recipe.command;
  byId("python").textContent = state.recipe.python;
  drawPeople();
  drawCurve(state.progress.agreement);
  sayProgress();
}

// The page says "learned" once it shows the prediction of the present marks, which keys can then accept.
function sayProgress() {
  const { progress, marks, version } = app.state;
  const { doing, seconds, status, error } = progress;
  if (error) say(error, true);
  else if (doing) say(doing);
  else if (status && app.drawnAnswer !== version) say("learning");
  else if (status) say(`learned in ${seconds.toFixed(2)} s from ${marks} marks`);
}

// The prediction of an item is drawn: remember its version.
function rememberAnswer(item, state) {
  if (item !== app.item) return;
  app.drawnAnswer = Math.max(app.drawnAnswer, state.answered[item] ?? -1);
  sayProgress();
}

async function show(item) {
  app.item = (item + app.state.items) % app.state.items;
  await attempt(async () => {
    await post("/api/shown", { item: app.item });
    const described = await getJson(`/api/items/${app.item}`);
    app.drawn = described.version;
    app.drawnAnswer = -1;
    const { item: shown, state } = app;
    byId("item-name").textContent = `${described.name}  (${app.item + 1} of ${app.state.items})`;
    await app.stage.show(shown, described, state);
    rememberAnswer(shown, state);
  });
}

// Draw the marks of the present item again, unless a later answer came first.
async function update() {
  const { item } = app;
  const described = await attempt(() => getJson(`/api/items/${item}`));
  if (!described || item !== app.item || described.version < app.drawn) return;
  app.drawn = described.version;
  await app.stage.update(described, app.state);
}

async function onState(state) {
  const first = app.state === null;
  const before = app.state;
  app.state = state;
  if (first) {
    const Stage = state.kind === "pictures" ? PictureStage : SequenceStage;
    app.stage = new Stage(byId("stage"), byId("tools"), record);
    app.chosen = state.classes.length > 1 ? 1 : 0;
    fillKeys();
    drawState();
    app.stage.choose(app.chosen);
    await show(0);
    return;
  }
  drawState();
  if (before.version !== state.version) {
    await update();
  }
  const { item } = app;
  if (before.answered[item] === state.answered[item]) return;
  await attempt(async () => {
    await app.stage.refresh(state);
    rememberAnswer(item, state);
  });
}

async function goToSuggestion() {
  const found = await attempt(() => getJson("/api/suggest"));
  if (!found) return;
  await show(found.item);
  app.stage.point(found);
}

async function goToDisagreement() {
  const { disputed } = app.state;
  if (!disputed.length) {
    say("nobody disagrees");
    return;
  }
  await show(disputed.find((item) => item > app.item) ?? disputed[0]);
  app.stage.pointAtDisagreement();
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
  d: goToDisagreement,
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
    ["d", "next item on which people disagree"],
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
byId("disagreement").addEventListener("click", goToDisagreement);
byId("annotator").value = localStorage.getItem(NAME_KEY) ?? "";
byId("annotator").addEventListener("change", (event) => localStorage.setItem(NAME_KEY, event.target.value.trim()));
byId("annotator").addEventListener("keydown", (event) => {
  if (event.key === "Enter") event.target.blur();
});
byId("export").addEventListener("click", save);
byId("help").addEventListener("click", KEYS["?"]);
byId("new-class").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = byId("class-name").value;
  if (await record({ kind: "class", name })) byId("class-name").value = "";
});

listen(onState, () => say("the studio does not answer; is the command still running?", true));
