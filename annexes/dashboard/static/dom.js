// Elements, made with text and never with markup: names and lines of a job are anybody's.

/** Make an element: h("td", {class: "right", title: "…"}, "text", child, …). */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Make an element of a picture. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    } else if (name === "style") {
      for (const [property, to] of Object.entries(value)) element.style.setProperty(property, to);
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, String(value));
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Change a text only if it differs, so that a reader of the screen hears no repeats. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A table whose columns sort it: columns are {name, title?, right?, value(row), show?(row)}. */
export class SortedTable {
  constructor(label, columns, {sort = 0, down = false, key = (row) => columns[0].value(row)} = {}) {
    this.columns = columns;
    this.sort = sort;
    this.down = down;
    this.key = key;
    this.rows = new Map();
    this.heads = columns.map((column, place) =>
      h("th", {scope: "col", class: column.right ? "right" : null},
        h("button", {type: "button", title: column.title, on: {click: () => this.by(place)}},
          column.name)));
    this.body = h("tbody");
    this.element = h("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": label},
      h("table", {}, h("thead", {}, h("tr", {}, this.heads)), this.body));
    this.data = [];
  }

  by(place) {
    this.down = this.sort === place ? !this.down : Boolean(this.columns[place].right);
    this.sort = place;
    this.show(this.data);
  }

  show(data) {
    this.data = data;
    const {value} = this.columns[this.sort];
    const sorted = [...data].sort((a, b) => compare(value(a), value(b)) * (this.down ? -1 : 1));
    this.heads.forEach((head, place) => {
      const order = place === this.sort ? (this.down ? "descending" : "ascending") : null;
      if (order) head.setAttribute("aria-sort", order);
      else head.removeAttribute("aria-sort");
    });
    this.body.replaceChildren(...sorted.map((row) =>
      h("tr", {}, this.columns.map((column, place) =>
        h(place === 0 ? "th" : "td", {scope: place === 0 ? "row" : null, class: column.right ? "right" : column.class},
          column.show ? column.show(row) : column.value(row))))));
  }
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a ?? "").localeCompare(String(b ?? ""), undefined, {numeric: true});
}
