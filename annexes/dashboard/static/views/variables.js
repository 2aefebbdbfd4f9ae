// What the ps hold: shards of variables with their slots, and growing tables; and what they do.

import {h, SortedTable} from "../dom.js";
import {bytes, count, name, rate} from "../format.js";

const WINDOW = 12; // looks at the job, of which the oldest is taken off

export class Variables {
  constructor(store) {
    this.store = store;
    const per = (what) => (row) => store.recent(`ps/${row.task.index}/${what}`, 10);
    this.servers = new SortedTable("Parameter servers", [
      {name: "Ps", value: (row) => name(row.task)},
      {name: "Values", right: true, value: (row) => row.counters.value_bytes, show: (row) => bytes(row.counters.value_bytes)},
      {name: "Slots", right: true, value: (row) => row.counters.slot_bytes, show: (row) => bytes(row.counters.slot_bytes)},
      {name: "Share", value: (row) => this.share(row), show: (row) => bar(this.share(row))},
      {name: "Shards", right: true, value: (row) => row.counters.shards},
      {name: "Pushes/s", right: true, value: per("pushes_per_second"), show: (row) => rate(per("pushes_per_second")(row))},
      {name: "Received/s", right: true, value: per("received_mib_per_second"), show: (row) => speed(per("received_mib_per_second")(row))},
      {name: "Sent/s", right: true, value: per("sent_mib_per_second"), show: (row) => speed(per("sent_mib_per_second")(row))},
      {name: "Refused", right: true, value: (row) => row.counters.refused, show: (row) => count(row.counters.refused)},
      {name: "Repeated", right: true, title: "Pushes that came again and were not applied again", value: (row) => row.counters.duplicates, show: (row) => count(row.counters.duplicates)},
      {name: "Workers", right: true, title: "Connected now", value: (row) => row.counters.sessions},
      {name: "Its first shards", class: "wide", value: (row) => row.counters.labels.join(", ") + (row.counters.shards > row.counters.labels.length ? ", …" : "")},
    ]);
    this.tables = new SortedTable("Growing tables", [
      {name: "Table", value: (row) => row.name},
      {name: "On", value: (row) => row.on},
      {name: "Rows", right: true, value: (row) => row.rows, show: (row) => count(row.rows)},
      {name: "Memory", right: true, value: (row) => row.num_bytes, show: (row) => bytes(row.num_bytes)},
      {name: "On disk", right: true, value: (row) => row.disk_bytes, show: (row) => (row.disk_bytes ? bytes(row.disk_bytes) : "")},
      {name: "Admitted", right: true, value: (row) => row.admitted, show: (row) => count(row.admitted)},
      {name: "Not admitted", right: true, value: (row) => row.refused, show: (row) => count(row.refused)},
      {name: "No room", right: true, value: (row) => row.full, show: (row) => count(row.full)},
      {name: "Evicted", right: true, value: (row) => row.evicted, show: (row) => count(row.evicted)},
    ]);
    this.shards = new SortedTable("Busiest shards", [
      {name: "Shard", value: (row) => row.name},
      {name: "On", value: (row) => row.on},
      {name: "Size", right: true, value: (row) => row.num_bytes, show: (row) => (row.num_bytes ? bytes(row.num_bytes) : "")},
      {name: "Updates/s", right: true, value: (row) => row.rate, show: (row) => rate(row.rate)},
      {name: "Of them bytes/s", right: true, title: "If each changes all of the shard; less where a push has rows", value: (row) => row.moves, show: (row) => (row.num_bytes ? bytes(row.moves) : "")},
      {name: "Share", value: (row) => row.share, show: (row) => bar(row.share)},
    ], {sort: 4, down: true, key: (row) => `${row.on} ${row.name}`});
    this.shardsTitle = h("h2", {class: "above"}, "Busiest shards, over the last seconds");
    this.past = []; // of the last looks: their time, and the updates of each shard
    this.tablesTitle = h("h2", {class: "above"}, "Growing tables");
    this.element = h("div", {}, h("h1", {class: "unseen"}, "Variables"), this.servers.element, this.shardsTitle, this.shards.element, this.tablesTitle, this.tables.element);
  }

  share(row) {
    const size = (each) => each.counters.value_bytes + each.counters.slot_bytes;
    const all = this.rows.reduce((sum, each) => sum + size(each), 0);
    return all ? size(row) / all : 0;
  }

  update({status, at}) {
    this.rows = status.tasks.filter((row) => row.counters);
    this.servers.show(this.rows);
    const shards = this.rates(at);
    this.shards.show(shards);
    this.shardsTitle.hidden = this.shards.element.hidden = !shards.length;
    const tables = this.rows.flatMap((row) => row.counters.tables.map((table) => ({...table, on: name(row.task)})));
    this.tables.show(tables);
    this.tablesTitle.hidden = this.tables.element.hidden = !tables.length;
  }

  /** The shards that each ps names, with what has changed since the oldest look. */
  rates(at) {
    const all = this.rows.flatMap((row) => (row.counters.busiest ?? []).map((shard) => ({...shard, on: name(row.task)})));
    const key = (shard) => `${shard.on} ${shard.name}`;
    if (at !== this.past.at(-1)?.at) {
      this.past.push({at, updates: new Map(all.map((shard) => [key(shard), shard.updates]))});
      if (this.past.length > WINDOW) this.past.shift();
    }
    const [{at: since, updates}] = this.past;
    for (const shard of all) {
      const more = shard.updates - (updates.get(key(shard)) ?? shard.updates);
      shard.rate = at > since ? Math.max(0, more) / (at - since) : 0;
      shard.moves = shard.rate * shard.num_bytes;
    }
    const moved = all.reduce((sum, shard) => sum + shard.moves, 0);
    return all.map((shard) => ({...shard, share: moved ? shard.moves / moved : 0}));
  }

  close() {}
}

function speed(mib) {
  return Number.isFinite(mib) ? bytes(mib * 2 ** 20) : "–";
}

function bar(part) {
  const text = `${Math.round(100 * part)} %`;
  return h("span", {class: "parts"}, h("span", {class: "stack"}, h("span", {class: "part whole", style: {width: `${100 * part}%`}})), text);
}
