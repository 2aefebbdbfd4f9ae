// Which ps leads each share of the variables, which follows it, and what has moved.

import {h, SortedTable} from "../dom.js";
import {bytes, duration, name} from "../format.js";

export class Replicas {
  constructor() {
    this.about = h("p", {class: "soft"});
    this.move = h("p");
    this.table = new SortedTable("Shares", [
      {name: "Share", right: true, value: (row) => row.share},
      {name: "Led by", value: (row) => name(row.leader)},
      {name: "At", value: (row) => row.address},
      {name: "Followed by", value: (row) => row.followers.map(name).join(", "), show: (row) => this.followers(row)},
      {name: "Epoch", right: true, title: "How often its leader was chosen", value: (row) => row.epoch},
    ]);
    this.element = h("div", {}, h("h1", {class: "unseen"}, "Replicas"), this.about, this.move, this.table.element);
  }

  followers(row) {
    const lacking = 1 + row.followers.length < this.wanted;
    return [lacking ? h("span", {class: "dot warn"}) : "", row.followers.map(name).join(", ") || (this.wanted > 1 ? "none yet" : "")];
  }

  update({status}) {
    this.wanted = status.ps_replicas;
    this.about.textContent = status.shares.length
      ? `${status.shares.length} shares, each on ${status.ps_replicas} ps. ${status.failovers} failovers${status.failovers ? `, the last took ${duration(status.last_failover_s)}` : ""}; ${status.handovers} handed over in order.`
      : "Shares of this job do not move: each ps leads its own for as long as the job lasts. With ps_replicas 2, or ps_shares, they do.";
    this.move.textContent = status.move ? moveText(status.move) : "";
    this.table.element.hidden = !status.shares.length;
    this.table.show(status.shares);
  }

  close() {}
}

function moveText(move) {
  const way = `share ${move.share} from ${name(move.source)} to ${name(move.to)}`;
  const phase = String(move.phase).toLowerCase().replaceAll("_", " ");
  const copied = move.total_bytes ? `, copied ${bytes(move.copied_bytes)} of ${bytes(move.total_bytes)}` : "";
  return `The last move: ${way}, ${phase}${copied}, ${duration(move.seconds)}${move.reason ? `: ${move.reason}` : ""}.`;
}
