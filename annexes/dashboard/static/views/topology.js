// Tasks as they are connected: those that run the program, the ps, and by what each reaches each.

import {h, svg} from "../dom.js";
import {bytes, name, rate} from "../format.js";

const ROW = 46;
const BOX = {width: 200, height: 34};
const GAP = 260;
const MOST = 64;
const KINDS = ["shm", "unix", "tcp", "tls", "grpc"];
const TONES = {alive: "good", done: "good", missing: "warn", left: "warn", lost: "bad", failed: "bad"};

export class Topology {
  constructor(store) {
    this.store = store;
    this.picture = h("div", {class: "card scroll topology", tabindex: 0, role: "region", "aria-label": "Tasks and connections"});
    this.key = h("p", {class: "key"});
    this.more = h("p", {class: "soft"});
    this.element = h("div", {}, h("h1", {class: "unseen"}, "Topology"), this.key, this.picture, this.more);
  }

  update({status}) {
    const programs = status.tasks.filter((row) => row.task.type !== "ps").slice(0, MOST);
    const servers = status.tasks.filter((row) => row.task.type === "ps").slice(0, MOST);
    const rows = Math.max(programs.length, servers.length);
    const width = 2 * BOX.width + GAP;
    const height = rows * ROW + 8;
    const top = (list, place) => 8 + ((rows - list.length) * ROW) / 2 + place * ROW;
    const edges = [];
    const kinds = new Set();
    programs.forEach((row, place) => row.report.transports.forEach((text) => {
      const [to, kind, ...why] = text.split(" ");
      const server = servers.findIndex((each) => name(each.task) === to);
      if (server < 0) return;
      kinds.add(kind);
      const [y, other] = [top(programs, place) + BOX.height / 2, top(servers, server) + BOX.height / 2];
      edges.push(svg("path", {class: `edge kind-${KINDS.indexOf(kind)}`, d: `M${BOX.width} ${y}C${BOX.width + GAP / 2} ${y} ${BOX.width + GAP / 2} ${other} ${BOX.width + GAP} ${other}`},
        svg("title", {}, `${name(row.task)} to ${to}: ${kind} ${why.join(" ")}`)));
    }));
    this.picture.replaceChildren(svg("svg", {viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": words(programs)},
      edges,
      programs.map((row, place) => this.box(row, 0, top(programs, place))),
      servers.map((row, place) => this.box(row, BOX.width + GAP, top(servers, place)))));
    this.key.replaceChildren(...[...kinds].flatMap((kind) => [h("span", {class: `swatch kind-${KINDS.indexOf(kind)}`}), kind]));
    this.more.textContent = [...reasons(programs)].join(" · ");
  }

  box(row, x, y) {
    const {counters, report} = row;
    const busy = counters ? `${bytes(counters.bytes_in)} in, ${bytes(counters.bytes_out)} out`
      : report.steps ? `${rate(this.store.recent(`tasks/${row.task.type}-${row.task.index}/steps_per_second`, 10))} steps/s, ${bytes(report.bytes_pushed)} sent` : row.state;
    return svg("g", {transform: `translate(${x} ${y})`, class: "node"},
      svg("rect", {width: BOX.width, height: BOX.height, rx: 5}),
      svg("circle", {cx: 13, cy: 17, r: 4, class: TONES[row.state] ?? ""}),
      svg("text", {x: 24, y: 15, class: "title"}, name(row.task)),
      svg("text", {x: 24, y: 28}, busy),
      svg("title", {}, `${row.address || row.host} ${row.state} ${row.detail}`));
  }

  close() {}
}

/** Why a connection is not the fastest one, once each. */
function reasons(programs) {
  return new Set(programs.flatMap((row) => row.report.transports)
    .filter((text) => text.includes("(")).map((text) => text.slice(text.indexOf(" ") + 1)));
}

function words(programs) {
  return programs.map((row) => `${name(row.task)}: ${row.report.transports.join(", ") || "no connection"}`).join("; ");
}
