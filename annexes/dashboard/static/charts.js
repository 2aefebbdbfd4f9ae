// Curves over time: uPlot, with our colours, a cursor that all charts share, and a table for those who
// do not see them.

import {h} from "./dom.js";
import {clock, value} from "./format.js";

const SYNC = "job";
const HEIGHT = 168;

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const COLOURS = 8;

export class Chart {
  /** series: [{name, label}]; show: how a value reads. */
  constructor(title, series, {show = value, marks = () => []} = {}) {
    this.series = series;
    this.show = show;
    this.marks = marks;
    this.place = h("div", {class: series.length === 1 ? "plot one" : "plot"});
    this.summary = h("p", {class: "unseen"});
    this.now = h("span", {class: "now"});
    this.element = h("figure", {class: "card"},
      h("figcaption", {}, title, this.now), this.place, this.summary);
    this.title = title;
    this.plot = null;
    this.watcher = new ResizeObserver(() => this.resize());
    this.watcher.observe(this.place);
  }

  resize() {
    const width = this.place.clientWidth;
    if (this.plot && width && this.plot.width !== width) this.plot.setSize({width, height: HEIGHT});
  }

  update(store) {
    const data = [store.times(), ...this.series.map(({name}) => store.series(name))];
    if (!this.plot) this.draw(data);
    else this.plot.setData(data);
    this.rest();
    const last = this.series.map(({name, label}) => `${label} ${this.show(store.last(name) ?? NaN)}`);
    this.summary.textContent = `${this.title}, now: ${last.join(", ")}`;
  }

  /** Without a cursor on it the legend has the last values. */
  rest() {
    const {plot} = this;
    if (!hovers(plot) && this.series.length > 1) plot.setLegend({idx: plot.data[0].length - 1}, false);
    this.caption(plot);
  }

  draw(data) {
    const ink = css("--soft");
    const grid = {stroke: css("--line"), width: 1};
    const axis = {stroke: ink, grid, ticks: {show: false}, font: "11px system-ui, sans-serif"};
    const show = (_, number) => (number === null || number === undefined ? "–" : this.show(number));
    this.plot = new window.uPlot({
      width: this.place.clientWidth || 300,
      height: HEIGHT,
      cursor: {sync: {key: SYNC}, points: {size: 6}, drag: {x: true, y: false}},
      legend: {show: this.series.length > 1, live: true, markers: {width: 2}},
      scales: {x: {time: true}},
      axes: [
        {...axis, size: 24, values: (_, splits) => splits.map((at) => at === null ? "" : clock(at))
            .map((text) => text.slice(0, span(data[0]) > 7200 ? 5 : 8)), space: 80},
        {...axis, size: 60, space: 28, gap: 4, values: (_, splits) => splits.map((number) => this.show(number))},
      ],
      series: [
        {label: "time", value: (_, at) => (at === null ? "–" : clock(at))},
        ...this.series.map(({label}, place) => ({
          label, value: show, stroke: css(`--series-${place % COLOURS}`), width: 1.5,
          dash: place >= COLOURS ? [5, 3] : [], points: {show: data[0].length < 3},
          fill: this.series.length === 1 ? css("--fill") : undefined,
        })),
      ],
      hooks: {
        setCursor: [() => this.plot && this.rest()],
        draw: [(plot) => this.drawMarks(plot)],
      },
    }, data, this.place);
  }

  /** Beside the title: the time under the cursor, and the value if there is one curve. */
  caption(plot) {
    const idx = hovers(plot) ? plot.cursor.idx : plot.data[0].length - 1;
    const at = plot.data[0][idx];
    const own = this.series.length === 1 ? [this.show(plot.data[1][idx] ?? NaN)] : [];
    this.now.replaceChildren(
      hovers(plot) && at ? h("span", {class: "time"}, clock(at)) : "", ...own.map((text) => h("b", {}, text)));
  }

  /** Events across the curves. */
  drawMarks(plot) {
    const {ctx, bbox} = plot;
    ctx.save();
    ctx.lineWidth = 1;
    ctx.setLineDash([2, 3]);
    for (const {at, colour} of this.marks()) {
      const x = Math.round(plot.valToPos(at, "x", true)) + 0.5;
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = css(colour);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  close() {
    this.watcher.disconnect();
    this.plot?.destroy();
    this.plot = null;
  }
}

function hovers(plot) {
  return plot.cursor.idx !== null && plot.cursor.idx !== undefined;
}

function span(times) {
  return times.length ? times.at(-1) - times[0] : 0;
}
