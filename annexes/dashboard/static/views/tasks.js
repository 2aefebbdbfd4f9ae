// Every task: its state, its pace, where a step's time goes, and what it is.

import {SortedTable, h} from "../dom.js";
import {bytes, count, duration, name, rate, short, value} from "../format.js";

const TONES = {alive: "good", done: "good", missing: "warn", left: "warn", lost: "bad", failed: "bad"};
const WINDOW = 12; // looks at the job, of which the oldest is taken off
const PARTS = ["data", "pull", "compute", "push", "others", "checkpoint"];

export class Tasks {
  constructor(store) {
    this.store = store;
    this.past = [];
    this.table = new SortedTable("Tasks", [
      {name: "Task", value: (row) => name(row.task)},
      {name: "State", value: (row) => row.state, show: (row) => state(row, this.store.status.phase)},
      {name: "For", right: true, title: "How long it has been in that state", value: (row) => row.since_s, show: (row) => duration(row.since_s)},
      {name: "Steps/s", right: true, value: (row) => this.speed(row), show: (row) => (row.report.steps ? rate(this.speed(row)) : "")},
      {name: "Steps", right: true, value: (row) => row.report.steps, show: (row) => (row.report.steps ? count(row.report.steps) : "")},
      {name: "A step's time", title: "Where it went in the last seconds", value: (row) => this.times(row)?.step ?? 0, show: (row) => parts(this.times(row))},
      {name: "Stale", right: true, title: "Mean staleness of its pushes, in steps", value: (row) => row.report.staleness, show: (row) => (row.report.pushes ? value(row.report.staleness) : "")},
      {name: "Sent", right: true, value: sent, show: (row) => (sent(row) ? bytes(sent(row)) : "")},
      {name: "Received", right: true, value: received, show: (row) => (received(row) ? bytes(received(row)) : "")},
      {name: "Memory", right: true, title: "Resident, of what it can have at most", value: (row) => usage(row).memory_bytes, show: memory},
      {name: "Cores", right: true, title: "Processors that it keeps busy", value: (row) => usage(row).cores, show: (row) => (usage(row).memory_bytes ? usage(row).cores.toFixed(1) : "")},
      {name: "GPU", right: true, title: "How busy each of its GPUs is, and their memory", value: (row) => Math.max(-1, ...usage(row).gpus.map((gpu) => gpu.busy)), show: gpus},
      {name: "Gen.", right: true, title: "Generation: each process of a task has a higher one than the one before", value: (row) => (row.counters ? 0 : row.generation), show: (row) => (row.generation && row.task.type !== "ps" ? String(row.generation) : "")},
      {name: "Where", value: (row) => row.host, show: (row) => (row.host ? `${row.host} · ${row.pid}` : row.address)},
      {name: "Says", class: "wide", value: says},
    ]);
    this.key = h("p", {class: "key"}, PARTS.map((part, place) => [h("span", {class: `swatch part-${place}`}), part, " "]).flat());
    this.element = h("div", {}, h("h1", {class: "unseen"}, "Tasks"), this.table.element, this.key);
  }

  speed(row) {
    return this.store.recent(`tasks/${row.task.type}-${row.task.index}/steps_per_second`, 10);
  }

  /** Times of a task's steps in the last seconds, by part; of all its steps, if there are no others. */
  times(row) {
    const now = totals(row);
    const before = this.past[0].get(name(row.task));
    const since = {};
    for (const part of Object.keys(now)) since[part] = now[part] - (before?.[part] ?? 0);
    return since.steps > 0 ? since : now.steps ? now : null;
  }

  update(store) {
    if (store.at !== this.at) {
      this.at = store.at;
      this.past.push(new Map(store.status.tasks.map((row) => [name(row.task), totals(row)])));
      if (this.past.length > WINDOW) this.past.shift();
    }
    this.table.show(store.status.tasks);
    this.key.hidden = !store.status.tasks.some((row) => row.report.step_parts?.length);
  }

  close() {}
}

/** The last status is taken while the ps still serve. */
function state(row, phase) {
  const ended = row.state === "alive" && ["done", "stopped", "failed"].includes(phase);
  return [h("span", {class: `dot ${ended ? "" : TONES[row.state] ?? ""}`}), ended ? "ended" : row.state];
}

function sent(row) {
  return row.counters ? row.counters.bytes_out : row.report.bytes_pushed;
}

function received(row) {
  return row.counters ? row.counters.bytes_in : row.report.bytes_pulled;
}

const NONE = {memory_bytes: 0, cores: 0, gpus: []}; // of a status that an earlier version wrote

export function usage(row) {
  return (row.counters ?? row.report).usage ?? NONE;
}

/** Memory, with a mark where little is left. */
function memory(row) {
  const {memory_bytes: used, memory_limit_bytes: most, memory_left_bytes: left} = usage(row);
  if (!used) return "";
  const title = `${bytes(used)} of ${bytes(most)}; ${bytes(left)} of it are left`;
  return h("span", {title}, left < most / 20 ? h("span", {class: "dot warn"}) : "", bytes(used));
}

function gpus(row) {
  const all = usage(row).gpus;
  const each = all.map((gpu) => `${gpu.name}: ${bytes(gpu.own_bytes || gpu.used_bytes)} of ${bytes(gpu.total_bytes)}`);
  return h("span", {title: each.join(", ")}, all.map((gpu) => (gpu.busy < 0 ? "?" : `${Math.round(100 * gpu.busy)} %`)).join(", "));
}

function says(row) {
  const metrics = Object.entries(row.report.metrics).map(([id, number]) => `${id} ${value(number)}`);
  return row.detail || metrics.join(" · ");
}

function totals(row) {
  const all = row.report.step_parts ?? [];
  const steps = all.find((each) => each.name === "step")?.buckets.reduce((sum, each) => sum + each, 0) ?? 0;
  return {steps, ...Object.fromEntries(all.map((each) => [each.name, each.seconds]))};
}

/** A bar of a step's parts, in words too. */
function parts(times) {
  if (!times?.step) return "";
  const known = PARTS.map((part, place) => [part, place, times[part] ?? 0]);
  const words = known.filter(([, , seconds]) => seconds > 0)
    .map(([part, , seconds]) => `${part} ${Math.round((100 * seconds) / times.step)} %`);
  return h("span", {class: "parts", title: words.join(", "), role: "img", "aria-label": words.join(", ")},
    h("span", {class: "stack"}, known.map(([, place, seconds]) =>
      h("span", {class: `part part-${place}`, style: {width: `${(100 * seconds) / times.step}%`}}))),
    short(times.step / times.steps));
}
