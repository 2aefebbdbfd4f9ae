// The jobs of a cluster, each a link to its page; asked for once a second.

import {h, say, SortedTable} from "./dom.js";
import {clock, count, duration} from "./format.js";
import {themeButton} from "./theme.js";

const EVERY_MS = 1000;
const TONES = {running: "good", stopping: "warn", queued: "warn", Running: "good", Failed: "bad"};
const byId = (id) => document.getElementById(id);
const took = (row) => (row.began ? (row.ended || Date.now() / 1000) - row.began : 0);
const table = new SortedTable("Jobs", [
  {name: "Job", value: (row) => row.id, show: (row) => h("a", {href: `job/${encodeURIComponent(row.id)}/`}, row.id)},
  {name: "State", value: (row) => row.state, show: (row) => [h("span", {class: `dot ${TONES[row.state] ?? ""}`}), row.state]},
  {name: "Tasks", right: true, title: "That run, of all", value: (row) => row.tasks},
  {name: "Began", right: true, value: (row) => row.began, show: (row) => (row.began ? clock(row.began) : "")},
  {name: "Took", right: true, value: took, show: (row) => (row.began ? duration(took(row)) : "")},
  {name: "Owner", value: (row) => row.owner},
  {name: "Why", class: "wide", value: (row) => row.why},
], {sort: 3, down: true});
const empty = h("p", {class: "empty"}, "This cluster has no jobs yet.");
byId("view").append(h("h1", {class: "unseen"}, "Jobs"), table.element, empty);
themeButton(byId("theme"), () => {});

function show({where, jobs, note}) {
  say(byId("job"), `cluster at ${where}`);
  say(byId("link"), "");
  say(byId("reason"), note);
  byId("reason").hidden = !note;
  const having = (state) => String(jobs.filter((job) => job.state.toLowerCase() === state).length);
  const facts = [["Jobs", count(jobs.length)], ["Running", having("running")], ["Waiting", having("queued")]];
  byId("numbers").replaceChildren(...facts.map(([title, text]) => h("div", {}, h("dt", {}, title), h("dd", {}, text))));
  table.element.hidden = !jobs.length;
  empty.hidden = Boolean(jobs.length);
  const focus = document.activeElement?.getAttribute?.("href");
  table.show(jobs);
  if (focus) table.element.querySelector(`a[href="${CSS.escape(focus)}"]`)?.focus();
}

async function read() {
  try {
    const answer = await fetch("api/jobs");
    if (answer.ok) show(await answer.json());
  } catch {
    say(byId("link"), "not connected: trying again");
  }
  setTimeout(read, EVERY_MS);
}

read();
