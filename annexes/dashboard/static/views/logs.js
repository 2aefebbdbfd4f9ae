// What the tasks print, followed, where it is in the model directory on the machine of this page.

import {h} from "../dom.js";

const MOST_LINES = 5000;
const EVERY_MS = 1000;
const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR"];

export class Logs {
  constructor() {
    this.lines = [];
    this.after = "";
    this.closed = false;
    const again = {on: {input: () => this.show()}};
    this.task = h("select", {id: "log-task", ...again}, h("option", {value: ""}, "all tasks"));
    this.level = h("select", {id: "log-level", ...again}, h("option", {value: "0"}, "all lines"),
      h("option", {value: "2"}, "warnings and errors"), h("option", {value: "3"}, "errors"));
    this.text = h("input", {type: "search", id: "log-text", placeholder: "text", ...again});
    this.follow = h("input", {type: "checkbox", id: "log-follow", checked: true, on: {input: () => this.show()}});
    this.where = h("p", {class: "soft where"});
    this.list = h("ol", {class: "lines"});
    this.box = h("div", {class: "scroll log", tabindex: 0, role: "log", "aria-live": "off", "aria-label": "Lines"}, this.list);
    this.element = h("div", {}, h("h1", {class: "unseen"}, "Logs"),
      h("p", {class: "tools"},
        h("span", {}, h("label", {for: "log-task"}, "Task "), this.task),
        h("span", {}, h("label", {for: "log-level"}, "Level "), this.level),
        h("span", {}, h("label", {for: "log-text"}, "Find "), this.text),
        h("span", {}, this.follow, h("label", {for: "log-follow"}, " follow"))),
      this.box, this.where);
    this.read();
  }

  async read() {
    if (this.closed) return;
    try {
      const answer = await fetch(`api/logs?after=${encodeURIComponent(this.after)}`);
      if (answer.ok) this.take(await answer.json());
    } catch {
      // the head says that the connection is lost; the next try follows
    }
    this.timer = setTimeout(() => this.read(), EVERY_MS);
  }

  take({lines, after, folder}) {
    this.after = after;
    this.where.textContent = folder ? `From ${folder}; the last ${MOST_LINES} lines since this view was opened.`
      : "No log files are known on the machine of this page. `ropewalk local` writes them to logs in the model directory; elsewhere whoever starts the tasks has their lines.";
    if (!lines.length) return;
    for (const [task, line] of lines) this.lines.push({task, line, level: levelOf(line)});
    this.lines.splice(0, this.lines.length - MOST_LINES);
    const known = new Set([...this.task.options].map((each) => each.value));
    for (const task of new Set(lines.map(([each]) => each))) {
      if (!known.has(task)) this.task.append(h("option", {value: task}, task.replace(/-(\d+)$/, ":$1")));
    }
    this.show();
  }

  show() {
    const text = this.text.value.toLowerCase();
    const least = Number(this.level.value);
    const shown = this.lines.filter((each) => (!this.task.value || each.task === this.task.value) &&
      each.level >= least && (!text || each.line.toLowerCase().includes(text))).slice(-1000);
    this.list.replaceChildren(...shown.map(({task, line, level}) => h("li", {class: `level-${level}`},
      h("span", {class: "soft"}, line.slice(11, 23)), h("span", {class: "who"}, task.replace(/-(\d+)$/, ":$1")), h("span", {}, line.slice(24)))));
    if (this.follow.checked) this.box.scrollTop = this.box.scrollHeight;
  }

  update() {}

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }
}

function levelOf(line) {
  const begin = line.slice(24, 64);
  const level = LEVELS.findIndex((each) => begin.startsWith(each) || begin.includes(` ${each} `));
  if (level >= 0) return level;
  return /^(Traceback|\w*(Error|Exception)\b)/.test(begin) ? 3 : 1;
}
