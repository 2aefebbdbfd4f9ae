// What is known of the job: its last status, and its numbers over time. News come as server-sent
// events; a page that has missed some asks for all of it again, so its memory is that of the server.

const MOST = 3000; // samples, until the whole history is asked for again: it is coarser then
const MOST_EVENTS = 1000;
const CHANNEL = `news of ${location.pathname}`;

export class Store extends EventTarget {
  status = null;
  note = "";
  at = 0;
  connected = false;
  names = [];
  events = []; // [time, name, fields], the oldest first
  samples = []; // [end, length, value or null or "NaN" by place of its name, …]

  start() {
    this.channel = new BroadcastChannel(CHANNEL);
    this.channel.addEventListener("message", ({data}) => this.take(...data));
    document.addEventListener("visibilitychange", () => this.turn());
    this.turn();
  }

  /** A tab that is seen has news. Of several one asks for them and tells the others, and one that is
      hidden asks for none: a browser has six connections to a host, for all tabs together. */
  turn() {
    this.leaving?.abort();
    if (document.hidden) return;
    this.leaving = new AbortController();
    const {signal} = this.leaving;
    this.load();
    if (!navigator.locks) this.listen(signal); // by http from another machine there are none
    else navigator.locks.request(CHANNEL, {signal}, () => this.listen(signal)).catch(() => {}); // hidden again
  }

  /** Listen, and tell other tabs, until this one is hidden. */
  listen(signal) {
    return new Promise((done) => {
      let news = null;
      let lost = false;
      const tell = (kind, data) => {
        this.take(kind, data);
        this.channel.postMessage([kind, data]);
      };
      const open = () => {
        if (signal.aborted) return;
        news = new EventSource("api/news");
        news.addEventListener("open", () => tell("link", {connected: true, again: lost}));
        news.addEventListener("error", () => {
          lost = true;
          tell("link", {connected: false});
          if (news.readyState === EventSource.CLOSED) setTimeout(open, 3000);
        });
        for (const kind of ["job", "samples"]) {
          news.addEventListener(kind, (event) => tell(kind, JSON.parse(event.data)));
        }
      };
      signal.addEventListener("abort", () => {
        news?.close();
        done();
      });
      open();
    });
  }

  take(kind, data) {
    if (kind === "job") this.hear(data);
    else if (kind === "samples") this.add(data);
    else this.linked(data);
  }

  linked({connected, again}) {
    this.connected = connected;
    if (again) this.load(); // what was missed meanwhile
    this.tell("job");
  }

  hear({status, note, at}) {
    this.connected = true;
    Object.assign(this, {status, note, at});
    this.tell("job");
  }

  async load() {
    const [job, history] = await Promise.all([ask("api/job"), ask("api/history")]);
    if (job) this.hear(job);
    if (!history) return;
    const {names, samples, events} = history;
    Object.assign(this, {names, samples, events});
    this.tell("samples");
  }

  add({names, samples, events}) {
    this.names = names;
    const newest = this.events.at(-1)?.[0] ?? 0;
    this.events.push(...events.filter(([at]) => at > newest));
    this.events.splice(0, this.events.length - MOST_EVENTS);
    const last = this.samples.at(-1)?.[0] ?? 0;
    this.samples.push(...samples.filter(([at]) => at > last));
    if (this.samples.length > MOST) this.load();
    else this.tell("samples");
  }

  /** Events that are worth a line across the curves. */
  marks() {
    return this.events.filter(([, name]) => tone(name) && !QUIET.has(name)).map(([at, name]) => ({at, colour: `--${tone(name)}`}));
  }

  tell(what) {
    this.dispatchEvent(new Event(what));
  }

  /** Times of the samples, with one more in a gap, where no line is drawn. */
  times() {
    const times = [];
    this.samples.forEach(([at, seconds], place) => {
      const before = this.samples[place - 1]?.[0];
      if (before !== undefined && isGap(before, at, seconds)) times.push(at - seconds);
      times.push(at);
    });
    return times;
  }

  /** The numbers of a name, for the times above; null where there is none, or none that is finite. */
  series(name) {
    const place = this.names.indexOf(name) + 2;
    const values = [];
    this.samples.forEach((sample, number) => {
      const before = this.samples[number - 1]?.[0];
      if (before !== undefined && isGap(before, sample[0], sample[1])) values.push(null);
      const value = place > 1 ? sample[place] : null;
      values.push(typeof value === "number" ? value : null);
    });
    return values;
  }

  last(name) {
    const place = this.names.indexOf(name) + 2;
    return place > 1 ? this.samples.at(-1)?.[place] : undefined;
  }

  /** The mean of a number over the last seconds. */
  recent(name, seconds) {
    const place = this.names.indexOf(name) + 2;
    if (place < 2 || !this.samples.length) return NaN;
    const from = this.samples.at(-1)[0] - seconds;
    let sum = 0;
    let length = 0;
    for (let number = this.samples.length - 1; number >= 0; number--) {
      const sample = this.samples[number];
      if (sample[0] <= from) break;
      if (typeof sample[place] !== "number") continue;
      sum += sample[place] * sample[1];
      length += sample[1];
    }
    return length ? sum / length : NaN;
  }
}

/** What is at a path; null: it is not reached, which the news say, too. */
async function ask(path) {
  try {
    const answer = await fetch(path);
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}

function isGap(before, at, seconds) {
  return at - seconds - before > Math.max(3, 2 * seconds);
}

const QUIET = new Set(["checkpoint.saved"]);
const BAD = /lost|failed|broken|damaged|silent|refused|gave_up|unusable|failover/;
const GOOD = /joined|reconnected|back|restored|saved|came|moved|resumed|over$/;
const WARN = /stopping|signal|slow|long|ended|led/;

/** How an event is to be taken: bad, warn, good or nothing of these. */
export function tone(name) {
  return BAD.test(name) ? "bad" : WARN.test(name) ? "warn" : GOOD.test(name) ? "good" : "";
}
