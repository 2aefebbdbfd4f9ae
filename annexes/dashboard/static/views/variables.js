// What the ps hold: shards of variables with their slots, and growing tables; and what they do.

import {h, SortedTable} from "../dom.js";
import {bytes, count, name, rate} from "../format.js";

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
    this.tablesTitle = h("h2", {class: "above"}, "Growing tables");
    this.element = h("div", {}, h("h1", {class: "unseen"}, "Variables"), this.servers.element, this.tablesTitle, this.tables.element);
  }

  share(row) {
    const size = (each) => each.counters.value_bytes + each.counters.slot_bytes;
    const all = this.rows.reduce((sum, each) => sum + size(each), 0);
    return all ? size(row) / all : 0;
  }

  update({status}) {
    this.rows = status.tasks.filter((row) => row.counters);
    this.servers.show(this.rows);
    const tables = this.rows.flatMap((row) => row.counters.tables.map((table) => ({...table, on: name(row.task)})));
    this.tables.show(tables);
    this.tablesTitle.hidden = this.tables.element.hidden = !tables.length;
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
