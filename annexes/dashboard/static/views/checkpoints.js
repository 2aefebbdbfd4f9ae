// The checkpoints in the model directory, where this page's machine has it.

import {h, SortedTable} from "../dom.js";
import {bytes, clock, count, duration} from "../format.js";

const EVERY_MS = 4000;

export class Checkpoints {
  constructor() {
    this.closed = false;
    this.about = h("p", {class: "soft"});
    this.table = new SortedTable("Checkpoints", [
      {name: "Step", right: true, value: (row) => row.step ?? -1, show: (row) => (row.step === undefined ? "?" : count(row.step))},
      {name: "Saved at", value: (row) => row.at ?? 0, show: (row) => (row.at ? clock(row.at) : "")},
      {name: "Size", right: true, value: (row) => row.bytes ?? 0, show: (row) => (row.bytes === undefined ? "" : bytes(row.bytes))},
      {name: "Variables", right: true, value: (row) => row.variables ?? 0},
      {name: "Tables", right: true, value: (row) => row.tables ?? 0},
      {name: "Kind", value: kind},
      {name: "Path", class: "wide", value: (row) => row.path, show: (row) => (row.problem ? row.problem : row.path)},
    ], {sort: 0, down: true});
    this.element = h("div", {}, h("h1", {class: "unseen"}, "Checkpoints"), this.about, this.table.element);
    this.read();
  }

  async read() {
    if (this.closed) return;
    try {
      const answer = await fetch("api/checkpoints");
      if (answer.ok) {
        const {folder, checkpoints} = await answer.json();
        this.folder = folder;
        this.table.show(checkpoints);
      }
    } catch {
      // the next try follows
    }
    this.timer = setTimeout(() => this.read(), EVERY_MS);
  }

  update({status}) {
    const {cuts} = status;
    const moments = cuts.taken || cuts.void
      ? ` ${cuts.taken} moments of all ps were taken, the last in ${duration(cuts.last_s)}; ${cuts.void} came to nothing${cuts.last_void ? `, the last since ${cuts.last_void}` : ""}.` : "";
    const last = status.last_checkpoint ? `The last one is of step ${count(status.last_checkpoint_step)}: ${status.last_checkpoint}.` : "There is none yet.";
    this.about.textContent = `${last}${moments}${this.folder === "" ? " The model directory is not on the machine of this page." : ""}`;
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }
}

function kind(row) {
  if (row.problem) return "damaged";
  return [row.base ? "delta" : "whole", row.moment ? "of one moment" : "", row.final ? "final" : ""].filter(Boolean).join(", ");
}
