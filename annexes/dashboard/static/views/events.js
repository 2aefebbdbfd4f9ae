// What has happened, the newest first, as the chief has recorded it.

import {h} from "../dom.js";
import {clock} from "../format.js";
import {tone} from "../store.js";

export class Events {
  constructor() {
    this.filter = h("input", {type: "search", id: "event-filter", placeholder: "name, task or text", on: {input: () => this.shown && this.update(this.shown)}});
    this.list = h("tbody");
    this.count = h("span", {class: "soft", role: "status"});
    this.element = h("div", {}, h("h1", {class: "unseen"}, "Events"),
      h("p", {class: "tools"}, h("label", {for: "event-filter"}, "Find"), this.filter, this.count),
      h("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": "Events"},
        h("table", {}, h("thead", {}, h("tr", {}, ["When", "What", "About"].map((name) => h("th", {scope: "col"}, name)))), this.list)));
  }

  update(store) {
    this.shown = store;
    const wanted = this.filter.value.toLowerCase();
    const rows = store.events
      .map(([at, name, fields]) => ({at, name, about: Object.entries(fields).map(([key, text]) => (key === "of" ? text : `${key} ${text}`)).join(" · ")}))
      .filter(({name, about}) => `${name} ${about}`.toLowerCase().includes(wanted))
      .reverse();
    const key = `${wanted} ${rows.length} ${rows[0]?.at}`;
    if (key === this.key) return;
    this.key = key;
    this.count.textContent = rows.length ? `${rows.length} events` : "none";
    this.list.replaceChildren(...rows.map(({at, name, about}) => h("tr", {},
      h("td", {class: "soft", title: new Date(at * 1000).toLocaleString("en-GB")}, clock(at)),
      h("td", {}, h("span", {class: `dot ${tone(name)}`}), name),
      h("td", {class: "wide"}, about))));
  }

  close() {}
}
