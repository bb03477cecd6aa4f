"use strict";
// The desk works without this script, but for what moves: dropped files, the growing chart, busy buttons.

const byId = id => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;

for (const form of document.querySelectorAll("form[data-busy]")) {
  form.addEventListener("submit", () => {
    const button = form.querySelector("button.main");
    button.dataset.words = button.textContent;
    button.textContent = form.dataset.busy;
    button.disabled = true;
  });
}
// A page that comes back from the browser's memory must not stay busy.
addEventListener("pageshow", () => {
  for (const button of document.querySelectorAll("button[data-words]")) {
    button.textContent = button.dataset.words;
    button.disabled = false;
  }
});

const drop = document.querySelector(".drop");
if (drop) {
  const input = byId("file"), form = input.form, alert = form.querySelector(".alert");
  const size = bytes => bytes < 2 ** 20 ? `${Math.ceil(bytes / 1024)} KiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`;
  const chosen = () => {
    const [file] = input.files, large = file && file.size > Number(input.dataset.largest);
    drop.querySelector(".chosen").textContent = file ? `${file.name}, ${size(file.size)}` : "";
    alert.textContent = large ? `${file.name} is too large. ${input.dataset.tooLarge}` : "";
    alert.hidden = !large;
    return !large;
  };
  input.addEventListener("change", chosen);
  form.addEventListener("submit", event => {
    if (!chosen()) { event.preventDefault(); event.stopImmediatePropagation(); }
  }, true);
  for (const kind of ["dragenter", "dragover"]) drop.addEventListener(kind, () => drop.classList.add("over"));
  for (const kind of ["dragleave", "drop"]) drop.addEventListener(kind, () => drop.classList.remove("over"));
}

const live = byId("live");
if (live) {
  const kinds = { client: "Mark found", several: "Marks found", federation: "Ours, though not whose", nobody: "Nobody", inconclusive: "Inconclusive",
    unbounded: "A hint, not a proof" };
  const plot = { names: [], lines: [], low: [], high: [], needed: 7, questions: 1 };
  const waiting = [];
  let timer = 0, count = 0;

  const superscript = n => String(n).replace(/[-0-9]/g, c => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]);
  const power = p => {
    if (p < 4 && p > -2) return (10 ** p).toLocaleString("en", { maximumSignificantDigits: 2 });
    const whole = Math.floor(p), front = (10 ** (p - whole)).toFixed(1);
    return (front === "1.0" ? "" : `${front} × `) + `10${superscript(whole)}`;
  };

  const draw = () => {
    const width = byId("chart").clientWidth, height = width < 560 ? 300 : 380, left = width < 560 ? 46 : 64, right = 14;
    const values = plot.names.length ? plot.lines.flat() : [...plot.low, ...plot.high, 0];
    const top = Math.max(plot.needed, ...values) + 1, bottom = Math.max(Math.min(0, ...values) - .5, -5);
    const asked = Math.max(plot.questions, count);
    const x = q => left + (width - left - right) * q / asked;
    const y = p => 14 + (height - 64) * (top - Math.max(p, bottom)) / (top - bottom);
    const path = line => "M" + line.map((p, q) => `${x(q).toFixed(1)} ${y(p).toFixed(1)}`).join("L");
    const parts = [], step = Math.max(1, Math.ceil((top - bottom) / 8));
    const label = (kind, at, up, anchor, words) => parts.push(["text", { class: kind, x: at, y: up, "text-anchor": anchor }, words]);
    for (let p = Math.ceil(bottom / step) * step; p <= top; p += step) {
      parts.push(["path", { class: "grid", d: `M${left} ${y(p)}H${width - right}` }]);
      label("", left - 8, y(p) + 5, "end", p >= 0 && p < 4 ? (10 ** p).toLocaleString("en") : `10${superscript(p)}`);
    }
    const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find(n => asked / n <= (width < 560 ? 6 : 12)) || 5000;
    for (let q = 0; q <= asked; q += every) label("", x(q), height - 28, "middle", q.toLocaleString("en"));
    label("", left + (width - left - right) / 2, height - 6, "middle", "queries asked");
    const late = count > asked / 2, names = [];
    parts.push(["path", { class: "limit", d: `M${left} ${y(plot.needed)}H${width - right}` }]);
    label("limit-label", late ? left + 8 : width - right, y(plot.needed) + (width < 560 ? 18 : -8), late ? "start" : "end", "accused from here on");
    if (plot.names.length) {
      const last = plot.lines.map(line => line[line.length - 1]), leader = last.indexOf(Math.max(...last));
      plot.lines.forEach((line, i) => { if (i !== leader && last[i] < plot.needed) parts.push(["path", { class: "other", d: path(line) }]); });
      plot.lines.forEach((line, i) => {
        if (!count || (i !== leader && last[i] < plot.needed)) return;
        const q = line.length - 1;
        parts.push(["path", { class: last[i] >= plot.needed ? "crossed" : "leader", d: path(line) }]);
        parts.push(["circle", { class: "tip", cx: x(q), cy: y(last[i]), r: 4.5 }]);
        names.push(["text", { class: "tip-label", x: x(q) + (late ? -10 : 10), y: y(last[i]) - 9,
          "text-anchor": late ? "end" : "start" }, plot.names[i]]);
      });
    } else if (plot.high.length) {
      parts.push(["path", { class: "band", d: path(plot.high) + "L" + plot.low.map((p, q) => `${x(q)} ${y(p)}`).reverse().join("L") + "z" }]);
      parts.push(["path", { class: "leader", d: path(plot.high) }]);
    }
    parts.push(...names);
    const make = (name, attributes) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      return made;
    };
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `Everybody’s e-values after ${count} queries. ${byId("leader").textContent} leads with ${byId("value").textContent}.` });
    for (const [name, attributes, words] of parts) {
      const made = make(name, attributes);
      if (words !== undefined) made.textContent = words;
      svg.append(made);
    }
    byId("chart").replaceChildren(svg);
  };

  const show = {
    begin(event) {
      Object.assign(plot, { names: event.clients, needed: event.needed, questions: event.questions });
      plot.lines = event.values.map(value => [value]);
      byId("needed").textContent = power(event.needed);
    },
    step(event) {
      count = event.query;
      byId("count").textContent = count.toLocaleString("en");
      byId("answer").textContent = event.answer < 0 ? "no answer" : `label ${event.answer}`;
      if (event.picture) byId("picture").src = `data:image/png;base64,${event.picture}`;
      byId("picture").hidden = !event.picture;
      byId("numbers").textContent = event.numbers || "";
      byId("numbers").hidden = !event.numbers;
      if (event.high === undefined) return;
      event.values.forEach((value, i) => plot.lines[i].push(value));
      plot.low.push(event.low);
      plot.high.push(event.high);
      byId("leader").textContent = event.leader;
      byId("value").textContent = power(event.high);
      if (count % 10 === 0) byId("status").textContent = `${count} asked; ${event.leader} leads with ${power(event.high)}`;
    },
    ended(kind, headline, lead, body) {
      document.body.className = body;
      byId("kind").textContent = kind;
      byId("headline").textContent = headline;
      byId("lead").textContent = lead;
      document.title = `${headline} · tramark`;
      byId("after").hidden = false;
      if (byId("stop")) byId("stop").hidden = true;
      if (live.dataset.state === "running") byId("headline").focus();
    },
    done(event) {
      byId("open").href = `/cases/${event.case}`;
      byId("open").textContent = "Read the report";
      show.ended(kinds[event.kind], event.headline, event.lead, event.kind);
    },
    failed(event) {
      byId("open").href = event.case ? `/cases/${event.case}` : "/cases";
      byId("open").textContent = event.case ? "To the case" : "To the cases";
      show.ended("Stopped", "The trace did not come to an end.", event.words, "inconclusive");
    },
  };

  // A file answers faster than anybody can watch: its answers are shown one after the other.
  const next = () => {
    const atOnce = calm || live.dataset.state !== "running" ? waiting.length : Math.ceil(waiting.length / 60);
    for (const event of waiting.splice(0, atOnce)) show[event.event](event);
    draw();
    timer = waiting.length ? setTimeout(next, 60) : 0;
  };
  const events = new EventSource(live.dataset.events);
  for (const kind of ["begin", "step", "done", "failed"]) {
    events.addEventListener(kind, message => {
      waiting.push(JSON.parse(message.data));
      if (kind === "done" || kind === "failed") events.close();
      timer ||= setTimeout(next, 0);
    });
  }
  addEventListener("resize", draw);
  draw();
}
