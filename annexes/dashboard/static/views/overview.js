// What a user looks at first: what needs a look, and the curves.

import {Chart} from "../charts.js";
import {h} from "../dom.js";
import {bytes, duration, name, rate, value} from "../format.js";

const MOST_METRICS = 12;
const MOST_LINES = 16;
const mib = (number) => (Number.isFinite(number) ? bytes(number * 2 ** 20) : "–");

export class Overview {
  constructor(store) {
    this.store = store;
    this.look = h("section", {class: "card look", "aria-label": "What needs a look"});
    this.grid = h("div", {class: "charts"});
    this.charts = new Map();
    this.element = h("div", {}, h("h1", {class: "unseen"}, "Overview"), this.look, this.grid);
  }

  update(store) {
    this.showLook(store.status);
    for (const [key, make] of this.wanted(store)) {
      if (!this.charts.has(key)) {
        const chart = make();
        this.charts.set(key, chart);
        this.place(key, chart);
      }
    }
    for (const chart of this.charts.values()) chart.update(store);
  }

  place(key, chart) {
    // In the order in which they are wanted, whenever they come.
    const keys = [...this.wanted(this.store)].map(([each]) => each);
    const after = keys.slice(keys.indexOf(key) + 1).find((each) => this.charts.get(each)?.element.isConnected);
    this.grid.insertBefore(chart.element, after ? this.charts.get(after).element : null);
  }

  *wanted({names}) {
    const marks = () => this.store.marks();
    const one = (title, id, options) => () => new Chart(title, [{name: id, label: title}], {...options, marks});
    if (names.includes("job/steps_per_second")) {
      yield ["rate", one("Steps per second", "job/steps_per_second", {show: rate})];
    }
    const metrics = names.filter((each) => each.startsWith("metrics/")).sort(byImportance);
    for (const each of metrics.slice(0, MOST_METRICS)) yield [each, one(each.slice(8), each, {show: value})];
    const groups = [
      ["tasks", "Steps per second of each task", /^tasks\/(.+)\/steps_per_second$/, rate],
      ["staleness", "Staleness", /^job\/(staleness.*)$/, value],
      ["received", "Received by each ps, per second", /^ps\/(\d+)\/received_mib_per_second$/, mib],
      ["sent", "Sent by each ps, per second", /^ps\/(\d+)\/sent_mib_per_second$/, mib],
      ["memory", "Values and slots of each ps", /^ps\/(\d+)\/memory_mib$/, mib],
    ];
    for (const [key, title, pattern, show] of groups) {
      const found = names.map((each) => [each, each.match(pattern)]).filter(([, match]) => match);
      if (!found.length) continue;
      const series = found.slice(0, MOST_LINES).map(([id, match]) => ({name: id, label: label(key, match[1])}));
      yield [`${key} ${series.length}`, () => this.grouped(key, title, series, show, marks)];
    }
  }

  grouped(key, title, series, show, marks) {
    for (const [other, chart] of this.charts) {
      if (other.startsWith(`${key} `)) { // a task has come: its line joins the others
        chart.close();
        chart.element.remove();
        this.charts.delete(other);
      }
    }
    return new Chart(title, series, {show, marks});
  }

  showLook(status) {
    const items = [...looks(status)];
    const list = items.map(({tone, who, text}) =>
      h("li", {}, h("span", {class: `dot ${tone}`}), h("strong", {}, who), " ", text));
    const body = list.length ? h("ul", {}, list) : h("p", {class: "calm"}, "Nothing stands out.");
    const key = items.map((each) => Object.values(each).join()).join("\n");
    if (this.lookShown !== key) this.look.replaceChildren(h("h2", {}, "Needs a look"), body);
    this.lookShown = key;
  }

  close() {
    for (const chart of this.charts.values()) chart.close();
  }
}

function label(key, text) {
  if (key === "staleness") return text === "staleness" ? "mean" : "worst task";
  return key === "tasks" ? text.replace(/-(\d+)$/, ":$1") : `ps:${text}`;
}

function byImportance(one, other) {
  const order = (id) => (/loss/.test(id) ? 0 : 1);
  return order(one) - order(other) || one.localeCompare(other);
}

/** What a user should know at once: findings, tasks that are not there, what the job is short of. */
function* looks(status) {
  for (const each of status.findings ?? []) yield {tone: "warn", who: each.subject || each.kind, text: each.text};
  const over = ["done", "stopped", "failed"].includes(status.phase);
  for (const each of status.tasks) {
    const since = `for ${duration(each.since_s)}`;
    if (each.state === "failed") yield {tone: "bad", who: name(each.task), text: `failed: ${each.detail || "no reason known"}`};
    if (each.state === "lost") yield {tone: "bad", who: name(each.task), text: `lost ${since}. ${each.detail}`};
    if (each.state === "left" && each.detail && !over) yield {tone: "warn", who: name(each.task), text: `left ${duration(each.since_s)} ago: ${each.detail}`};
    if (each.state === "missing" && !over && each.since_s > 5) yield {tone: "warn", who: name(each.task), text: `has not come ${since}`};
    if (each.report.refused_pushes) yield {tone: "warn", who: name(each.task), text: `${each.report.refused_pushes} steps refused: gradients that are no numbers`};
    for (const [metric, number] of Object.entries(each.report.metrics)) {
      if (typeof number === "string") yield {tone: "bad", who: name(each.task), text: `reports ${metric} ${number}`};
    }
  }
  if (over) return;
  for (const each of status.shares) {
    if (1 + each.followers.length < status.ps_replicas) {
      yield {tone: "warn", who: `share ${each.share}`, text: `has ${1 + each.followers.length} of ${status.ps_replicas} replicas`};
    }
  }
  if (status.failovers) yield {tone: "warn", who: "replicas", text: `${status.failovers} failovers, the last took ${duration(status.last_failover_s)}`};
}
