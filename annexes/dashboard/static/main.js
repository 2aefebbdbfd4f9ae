// The page: the head with the job in numbers, and one view at a time, named by the address's fragment.

import {h, say} from "./dom.js";
import {clock, count, duration, name, rate} from "./format.js";
import {Store} from "./store.js";
import {themeButton} from "./theme.js";
import {Checkpoints} from "./views/checkpoints.js";
import {Events} from "./views/events.js";
import {Logs} from "./views/logs.js";
import {Overview} from "./views/overview.js";
import {Replicas} from "./views/replicas.js";
import {Tasks} from "./views/tasks.js";
import {Topology} from "./views/topology.js";
import {Variables} from "./views/variables.js";

const VIEWS = [
  ["overview", "Overview", Overview],
  ["tasks", "Tasks", Tasks],
  ["topology", "Topology", Topology],
  ["variables", "Variables", Variables],
  ["replicas", "Replicas", Replicas],
  ["events", "Events", Events],
  ["logs", "Logs", Logs],
  ["checkpoints", "Checkpoints", Checkpoints],
];
const RATE_S = 10; // over which the head's rate is a mean
const store = new Store();
const byId = (id) => document.getElementById(id);
let view = null;
let shown = "";

themeButton(byId("theme"), () => open(true));
byId("jobs").hidden = !location.pathname.startsWith("/job/");

// -- Views -------------------------------------------------------------------------------------

const links = new Map(VIEWS.map(([id, title]) => [id, h("a", {href: `#${id}`}, title)]));
byId("views").append(...[...links.values()].map((link) => h("li", {}, link)));

function open(again = false) {
  const asked = location.hash.slice(1);
  const [id, title, View] = VIEWS.find(([each]) => each === asked) ?? VIEWS[0];
  if (id === shown && !again) return;
  view?.close();
  shown = id;
  for (const [each, link] of links) {
    if (each === id) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${title} · Ropewalk`;
  view = new View(store);
  byId("view").replaceChildren(view.element);
  update();
}

function update() {
  if (store.status) view.update(store);
}

addEventListener("hashchange", () => {
  open();
  byId("view").focus({preventScroll: true});
});

// -- The head ----------------------------------------------------------------------------------

const PHASES = {running: "good", stopping: "warn", done: "good", stopped: "warn", failed: "bad"};
const facts = new Map();

function fact(title, text, hint = "") {
  let value = facts.get(title);
  if (!value) {
    value = h("dd");
    facts.set(title, value);
    byId("numbers").append(h("div", {}, h("dt", {}, title), value));
  }
  say(value, text);
  value.title = hint;
}

function head() {
  const {status} = store;
  if (!status) return;
  const phase = byId("phase");
  say(phase, status.phase);
  phase.className = `pill ${PHASES[status.phase] ?? ""}`;
  const chief = status.tasks.find((each) => each.task.type === "chief") ?? status.tasks[0];
  say(byId("job"), chief?.address ? `${name(chief.task)} at ${chief.address}` : "");
  const reason = [store.note, status.reason].filter(Boolean).join(" · ");
  say(byId("reason"), reason);
  byId("reason").hidden = !reason;
  say(byId("link"), store.connected ? "" : "not connected: trying again");
  numbers(status);
}

function numbers(status) {
  const running = status.phase === "running";
  const speed = running ? store.recent("job/steps_per_second", RATE_S) : NaN;
  const goal = status.total_steps;
  fact("Global step", goal ? `${count(status.global_step)} / ${count(goal)}` : count(status.global_step));
  fact("Rate", Number.isFinite(speed) ? `${rate(speed)} steps/s` : "–", `mean over ${RATE_S} s`);
  const left = goal && speed > 0 ? (goal - status.global_step) / speed : NaN;
  fact("Time left", Number.isFinite(left) && left >= 0 ? duration(left) : "–");
  const there = status.tasks.filter((each) => each.state === "alive" || each.state === "done").length;
  fact("Tasks", `${there} of ${status.tasks.length}`, "alive or done, of all that the job knows");
  fact("Checkpoint", status.last_checkpoint ? `step ${count(status.last_checkpoint_step)}` : "none", status.last_checkpoint);
  fact(status.phase === "running" ? "Runs for" : "Took", duration(status.age_s), `as of ${clock(store.at)}`);
  const part = goal ? Math.min(100, (100 * status.global_step) / goal) : 0;
  const progress = byId("progress");
  progress.hidden = !goal;
  progress.setAttribute("aria-valuenow", part.toFixed(0));
  progress.firstElementChild.style.width = `${part}%`;
}

store.addEventListener("job", () => {
  head();
  update();
});
store.addEventListener("samples", () => {
  head();
  update();
});
open();
store.start();
