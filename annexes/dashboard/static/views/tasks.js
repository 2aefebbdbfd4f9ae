// Every task: its state, its pace, where a step's time goes, and what it is.

import {SortedTable, h} from "../dom.js";
import {bytes, count, duration, name, rate, short, value} from "../format.js";

const TONES = {alive: "good", done: "good", missing: "warn", left: "warn", lost: "bad", failed: "bad"};
const PARTS = ["data", "pull", "compute", "push", "others", "checkpoint"];

export class Tasks {
  constructor(store) {
    this.store = store;
    this.table = new SortedTable("Tasks", [
      {name: "Task", value: (row) => name(row.task)},
      {name: "State", value: (row) => row.state, show: state},
      {name: "For", right: true, title: "How long it has been in that state", value: (row) => row.since_s, show: (row) => duration(row.since_s)},
      {name: "Steps/s", right: true, value: (row) => this.speed(row), show: (row) => (row.report.steps ? rate(this.speed(row)) : "")},
      {name: "Steps", right: true, value: (row) => row.report.steps, show: (row) => (row.report.steps ? count(row.report.steps) : "")},
      {name: "A step's time", value: (row) => total(row), show: (row) => parts(row)},
      {name: "Stale", right: true, title: "Mean staleness of its pushes, in steps", value: (row) => row.report.staleness, show: (row) => (row.report.pushes ? value(row.report.staleness) : "")},
      {name: "Sent", right: true, value: sent, show: (row) => (sent(row) ? bytes(sent(row)) : "")},
      {name: "Received", right: true, value: received, show: (row) => (received(row) ? bytes(received(row)) : "")},
      {name: "Memory", right: true, title: "Of the process; of a ps its values and slots, if it does not say", value: memory, show: (row) => (memory(row) ? bytes(memory(row)) : "")},
      {name: "Gen.", right: true, title: "Generation: how often a process has taken this place", value: (row) => row.generation, show: (row) => (row.generation ? String(row.generation % 1_000_000 || row.generation) : "")},
      {name: "Where", value: (row) => row.host, show: (row) => (row.host ? `${row.host} · ${row.pid}` : row.address)},
      {name: "Says", class: "wide", value: says},
    ]);
    this.key = h("p", {class: "key"}, PARTS.map((part, place) => [h("span", {class: `swatch part-${place}`}), part, " "]).flat());
    this.element = h("div", {}, h("h1", {class: "unseen"}, "Tasks"), this.table.element, this.key);
  }

  speed(row) {
    return this.store.recent(`tasks/${row.task.type}-${row.task.index}/steps_per_second`, 10);
  }

  update(store) {
    this.table.show(store.status.tasks);
    this.key.hidden = !store.status.tasks.some((row) => row.report.step_parts?.length);
  }

  close() {}
}

function state(row) {
  return [h("span", {class: `dot ${TONES[row.state] ?? ""}`}), row.state];
}

function sent(row) {
  return row.counters ? row.counters.bytes_out : row.report.bytes_pushed;
}

function received(row) {
  return row.counters ? row.counters.bytes_in : row.report.bytes_pulled;
}

function memory(row) {
  if (row.report.memory_bytes) return row.report.memory_bytes;
  return row.counters ? row.counters.value_bytes + row.counters.slot_bytes : 0;
}

function says(row) {
  const metrics = Object.entries(row.report.metrics).map(([id, number]) => `${id} ${value(number)}`);
  return row.detail || metrics.join(" · ");
}

function total(row) {
  return (row.report.step_parts ?? []).find((each) => each.name === "step")?.seconds ?? 0;
}

/** A bar of a step's parts, in words too. */
function parts(row) {
  const all = row.report.step_parts ?? [];
  const step = all.find((each) => each.name === "step");
  if (!step?.count || !step.seconds) return "";
  const known = PARTS.map((part, place) => [part, place, all.find((each) => each.name === part)?.seconds ?? 0]);
  const words = known.filter(([, , seconds]) => seconds > 0)
    .map(([part, , seconds]) => `${part} ${Math.round((100 * seconds) / step.seconds)} %`);
  return h("span", {class: "parts", title: words.join(", "), role: "img", "aria-label": words.join(", ")},
    h("span", {class: "stack"}, known.map(([, place, seconds]) =>
      h("span", {class: `part part-${place}`, style: {width: `${(100 * seconds) / step.seconds}%`}}))),
    short(step.seconds / step.count));
}
