// SPDX-License-Identifier: Apache-2.0
// What charts do beyond standing there: zoom, which those over time share, and telling what is looked at, by
// mouse and by keyboard. They are drawn as `charts/` draws them; text of a trace is only ever text.
"use strict";

(() => {
  // As in charts/path_chart.py and charts/steps_chart.py.
  const ROW = { label: 15, gap: 7 };
  const PLOT = { top: 16, height: 190, strip: 28, bar: 9, marker: 0.004 };
  const ONE_BY_ONE = 1200;
  const MOST_BINS = 400;
  const MOST_JUMPS = 300;
  const CLOSEST_NS = 1000;

  const S = 1e9;

  // --- Numbers for people, as in units.py and charts/scales.py ---------------------------------------------

  const whole = (number) => Math.round(number).toLocaleString("en-US");

  function milliseconds(ns) {
    if (ns < 999.5e3) return `${(ns / 1e3).toFixed(0)} us`;
    if (ns < 9.95e6) return `${(ns / 1e6).toFixed(1)} ms`;
    if (ns < 999.5e6) return `${(ns / 1e6).toFixed(0)} ms`;
    if (ns < 9.995e9) return `${(ns / S).toFixed(2)} s`;
    return `${(ns / S).toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 })} s`;
  }

  function percent(share) {
    const value = share * 100;
    if (value >= 9.95 || value === 0) return `${value.toFixed(0)} %`;
    return value >= 0.05 ? `${value.toFixed(1)} %` : "<0.1 %";
  }

  const plural = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;

  function stepBetween(length, most) {
    const least = Math.max(1, length / most);
    for (let power = 1; power < 10 * S; power *= 10) {
      for (const factor of [1, 2, 5]) if (factor * power >= least) return factor * power;
    }
    const coarse = [10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400];
    for (const seconds of coarse) if (seconds * S >= least) return seconds * S;
    for (let power = 86_400 * S; ; power *= 10) {
      for (const factor of [1, 2, 5]) if (factor * power >= least) return factor * power;
    }
  }

  /** A time on an axis whose ticks are `step` apart: 250 ms, 2.5 s, 40 s, 1 h 30 min. */
  function timeLabel(ns, step) {
    if (step < S) {
      const [unit, name] = ns >= S ? [S, "s"] : [1e6, "ms"];
      let digits = 0;
      while (digits < 9 && (step * 10 ** digits) % unit) digits += 1;
      return `${(ns / unit).toFixed(digits)} ${name}`;
    }
    let left = Math.floor(ns / S);
    const words = [];
    for (const [unit, name] of [[86_400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
      if (left >= unit) {
        words.push(`${Math.floor(left / unit)} ${name}`);
        left %= unit;
      }
    }
    return words.join(" ") || "0 s";
  }

  // --- Shapes ----------------------------------------------------------------------------------------------

  function shape(name, attributes) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  function group(kind, shapes) {
    const made = shape("g", { class: kind });
    made.append(...shapes);
    return made;
  }

  function label(x, y, text, kind, anchor) {
    const made = shape("text", { x, y, class: kind, "text-anchor": anchor });
    made.textContent = text;
    return made;
  }

  const share = (part) => `${+(100 * part).toFixed(4)}%`;

  /** A rectangle over the part of `[from, to)` that is in view, or null. */
  function box(view, from, to, y, height) {
    const low = Math.max(from, view.start);
    const high = Math.min(to, view.end);
    if (high < low || from >= view.end || to < view.start) return null;
    const length = view.end - view.start;
    return shape("rect", {
      x: share((low - view.start) / length), y, width: share((high - low) / length), height,
    });
  }

  function timeAxis(view, top, bottom) {
    const length = view.end - view.start;
    const step = stepBetween(length, 8);
    const made = [];
    let number = 0;
    for (let at = Math.ceil(view.start / step) * step; at <= view.end; at += step) {
      const place = (at - view.start) / length;
      const x = share(place);
      const anchor = place < 0.05 ? "start" : place > 0.95 ? "end" : "middle";
      made.push(shape("line", { x1: x, y1: top, x2: x, y2: bottom + 3 }));
      made.push(label(x, bottom + 14, timeLabel(at, step), number++ % 2 ? "odd" : "", anchor));
    }
    return made;
  }

  /** A moment, as precisely as the view can tell two apart. */
  function moment(view, ns) {
    return timeLabel(Math.max(0, ns), Math.min(S / 10, stepBetween((view.end - view.start) / 1000, 1)));
  }

  /** The finest of the levels of which few enough bins are in view; the coarsest, if there is none. */
  function levelFor(levels, view, total) {
    const seen = (view.end - view.start) / total;
    return levels.findLast((level) => level.bins * seen <= MOST_BINS) || levels[0];
  }

  // In whole numbers, as the bins were made: total * at may be more than a double holds.
  const edge = (total, at, bins) => Number((BigInt(total) * BigInt(at)) / BigInt(bins));

  /** The first place of a sorted array whose value is above `value`. */
  function above(values, value) {
    let low = 0;
    let high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] <= value) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // --- The critical path -----------------------------------------------------------------------------------

  const rowTop = (data, row) => row * (ROW.label + data.bar + ROW.gap) + ROW.label;

  function drawPath(data, view, show) {
    const height = rowTop(data, data.rows.length) - ROW.label;
    show("time", timeAxis(view, ROW.label, height));
    const boxes = data.parts.map(() => []);
    const items = [];
    const jumps = [];
    const put = (part, made, text) => {
      if (made === null) return;
      boxes[part].push(made);
      items.push({ node: made, text });
    };
    const { sections, total } = data;
    let first = 0;
    let end = Infinity;
    if (sections) {
      first = Math.max(0, above(sections.start, view.start) - 1);
      end = above(sections.start, view.end - 1);
    }
    if (end - first <= ONE_BY_ONE) {
      for (let at = first; at < end; at++) {
        const from = sections.start[at];
        const to = at + 1 < sections.start.length ? sections.start[at + 1] : total;
        const row = sections.row[at];
        const made = box(view, from, to, rowTop(data, row), data.bar);
        put(sections.part[at], made, () => ofSection(data, view, at, from, to));
        if (at > first && sections.row[at - 1] !== row) jumps.push([from, sections.row[at - 1], row]);
      }
    } else {
      drawCells(data, view, put);
    }
    const lines = jumps.length > MOST_JUMPS ? [] : jumps.map(([at, one, other]) => {
      const x = share((at - view.start) / (view.end - view.start));
      return shape("line", {
        x1: x, y1: rowTop(data, Math.min(one, other)) + data.bar, x2: x, y2: rowTop(data, Math.max(one, other)),
      });
    });
    show("behind", [group("jumps", lines)]);
    const groups = [];
    data.parts.forEach((part, at) => {
      groups.push(group(part.class, boxes[at]));
      if (part.wait) groups.push(group(`striped ${part.class}`, boxes[at].map((one) => one.cloneNode())));
    });
    show("marks", groups);
    return items;
  }

  /** How high a bar is filled is how much of the bin's time the path was in that lane. */
  function drawCells(data, view, put) {
    const level = levelFor(data.levels, view, data.total);
    const last = level.bin.length;
    const began = Math.floor((view.start / data.total) * level.bins) - 1;
    let bin = -1;
    let row = -1;
    let filled = 0;
    for (let at = above(level.bin, began - 1); at < last && level.bin[at] <= level.bins; at++) {
      const from = edge(data.total, level.bin[at], level.bins);
      if (from >= view.end) break;
      const to = edge(data.total, level.bin[at] + 1, level.bins);
      if (level.bin[at] !== bin || level.row[at] !== row) filled = 0;
      bin = level.bin[at];
      row = level.row[at];
      const which = bin;
      const high = (data.bar * level.ns[at]) / (to - from);
      filled += high;
      const made = box(view, from, to, rowTop(data, row) + data.bar - filled, high);
      put(level.part[at], made, () => ofBin(data, view, level, which));
    }
  }

  function inWords(part) {
    return part.kind && part.kind !== "work" ? `${part.phase} (${part.kind})` : part.phase;
  }

  function ofSection(data, view, at, from, to) {
    const { sections } = data;
    const step = sections.step[at] >= 0 ? `\nstep ${whole(sections.step[at])}` : "";
    return `${inWords(data.parts[sections.part[at]])}: ${milliseconds(to - from)}\n`
      + `${data.rows[sections.row[at]]}${step}\n`
      + `from ${moment(view, from)} to ${moment(view, to)}, ${percent((to - from) / data.total)} of the path`;
  }

  function ofBin(data, view, level, bin) {
    const from = edge(data.total, bin, level.bins);
    const to = edge(data.total, bin + 1, level.bins);
    const cells = [];
    for (let at = above(level.bin, bin - 1); at < level.bin.length && level.bin[at] === bin; at++) cells.push(at);
    cells.sort((one, other) => level.ns[other] - level.ns[one]);
    const lines = cells.slice(0, 8).map((at) => {
      const name = inWords(data.parts[level.part[at]]);
      return `${percent(level.ns[at] / (to - from))} ${name}, ${data.rows[level.row[at]]}`;
    });
    if (cells.length > 8) lines.push(`and ${cells.length - 8} more`);
    return `from ${moment(view, from)} to ${moment(view, to)}\n${lines.join("\n")}`;
  }

  // --- Durations and events --------------------------------------------------------------------------------

  function heightOf(axis, ns) {
    const part = axis.log
      ? Math.log(Math.max(ns, axis.low) / axis.low) / Math.log(axis.high / axis.low)
      : ns / axis.high;
    return PLOT.top + PLOT.height * (1 - part);
  }

  function drawSteps(data, view, show) {
    const bottom = PLOT.top + PLOT.height + data.bands.length * PLOT.strip + 2;
    show("time", timeAxis(view, PLOT.top, bottom));
    const items = [];
    const put = (into, made, text, column = false) => {
      if (made === null) return;
      into.push(made);
      items.push({ node: made, text, column });
    };
    const marks = data.levels.length ? drawBins(data, view, put) : [];
    show("marks", [...marks, ...drawPoints(data, view, put)]);
    const strips = [];
    const behind = [];
    data.bands.forEach((kind, number) => {
      const y = PLOT.top + PLOT.height + number * PLOT.strip + 19;
      const mine = [];
      const across = [];
      for (const [from, to, what] of kind.bands) {
        const least = to > from ? 0 : (view.end - view.start) * PLOT.marker;
        put(mine, box(view, to > from ? from : Math.max(0, to - least), Math.max(to, least), y, PLOT.bar), () => {
          const long = to > from ? `: ${milliseconds(to - from)}` : "";
          return `${what}${long}\nfrom ${moment(view, from)}${to > from ? ` to ${moment(view, to)}` : ""}`;
        });
        const made = box(view, from, to, PLOT.top, PLOT.height);
        if (made !== null) across.push(made);
      }
      strips.push(group(`band ${kind.kind.replaceAll(" ", "-")} ${kind.class}`, mine));
      if (["evaluation", "checkpoint", "missing"].includes(kind.kind)) {
        behind.push(group(`across ${kind.class}`, across));
      }
    });
    show("strips", strips);
    show("behind", behind);
    return items;
  }

  function drawPoints(data, view, put) {
    const { points } = data;
    const kinds = { "s-other": [], "s-steady": [] };
    points.start.forEach((start, at) => {
      if (start < view.start || start >= view.end) return;
      const cx = share((start - view.start) / (view.end - view.start));
      const made = shape("circle", { cx, cy: heightOf(data.axis, points.ns[at]), r: 2.4 });
      put(kinds[points.steady[at] ? "s-steady" : "s-other"], made, () => {
        const rank = data.ranks > 1 ? `, rank ${points.rank[at]}` : "";
        const left = points.steady[at] ? "" : "\nnot counted as steady";
        return `${data.noun} ${whole(points.number[at])}${rank}: ${milliseconds(points.ns[at])}\n`
          + `began at ${moment(view, start)}${left}`;
      });
    });
    return Object.entries(kinds).map(([kind, circles]) => group(kind, circles));
  }

  function drawBins(data, view, put) {
    const level = levelFor(data.levels, view, data.total);
    const made = { "s-spread": [], "s-usual": [], "s-median": [] };
    level.bin.forEach((bin, at) => {
      const from = edge(data.total, bin, level.bins);
      const to = edge(data.total, bin + 1, level.bins);
      if (to <= view.start || from >= view.end) return;
      const y = (name) => heightOf(data.axis, level[name][at]);
      const when = () => `from ${moment(view, from)} to ${moment(view, to)}`;
      const text = () => `${plural(level.count[at], data.noun)} ${when()}\n`
        + `${data.noun} ${whole(level.first[at])} to ${whole(level.last[at])}\n`
        + `median ${milliseconds(level.p50[at])}, 95 % ${milliseconds(level.p95[at])}\n`
        + `${milliseconds(level.least[at])} to ${milliseconds(level.most[at])}`;
      const high = Math.max(1, y("least") - y("most"));
      put(made["s-spread"], box(view, from, to, y("most"), high), text, true);
      const usual = box(view, from, to, y("p95"), Math.max(1, y("least") - y("p95")));
      const median = box(view, from, to, y("p50") - 0.7, 1.4);
      made["s-usual"].push(usual);
      made["s-median"].push(median);
    });
    return Object.entries(made).map(([kind, shapes]) => group(kind, shapes));
  }

  // --- What is looked at -----------------------------------------------------------------------------------

  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  document.body.append(tip);

  /** What it is shown for: {item, x, y}, the latter two where the mouse is. */
  let looked = null;

  function hideTip() {
    tip.hidden = true;
    looked?.item.node.classList.remove("looked-at");
    looked = null;
  }

  function showTip(item, x, y) {
    if (looked?.item !== item) {
      hideTip();
      item.node.classList.add("looked-at");
      tip.textContent = item.text();
      tip.hidden = false;
    }
    looked = { item, x, y };
    placeTip();
  }

  /** Put it beside the mouse, else below the item; above, where there is no room. */
  function placeTip() {
    const at = looked.item.node.getBoundingClientRect();
    const left = (looked.x ?? at.left + at.width / 2) + 12;
    const below = (looked.y ?? at.bottom) + 14;
    const above = (looked.y ?? at.top) - 14 - tip.offsetHeight;
    const most = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(8, Math.min(left, most))}px`;
    tip.style.top = `${below + tip.offsetHeight > innerHeight ? Math.max(8, above) : below}px`;
  }

  addEventListener("scroll", () => {
    if (looked?.x === undefined && looked) placeTip();
    else hideTip();
  }, { passive: true });

  /** A figure that can be looked at item by item; its items are in the order of their places. */
  class Figure {
    constructor(svg) {
      this.svg = svg;
      this.at = -1;
      const told = [...svg.querySelectorAll("[data-tip]")];
      this.look(told.map((node) => ({ node, text: () => node.dataset.tip })));
      svg.tabIndex = 0;
      svg.addEventListener("pointermove", (event) => this.point(event));
      svg.addEventListener("pointerdown", (event) => this.point(event));
      svg.addEventListener("pointerleave", hideTip);
      svg.addEventListener("blur", hideTip);
      svg.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        if (this.key(event.key)) event.preventDefault();
      });
      this.makeLegend();
    }

    look(items) {
      this.items = items;
      this.of = new Map(items.map((item) => [item.node, item]));
      this.at = -1;
    }

    point(event) {
      const item = this.of.get(event.target) || this.nearest(event);
      if (item) showTip(item, event.clientX, event.clientY);
      else hideTip();
    }

    /** Dots are small: the one within a few px. Else the column that the mouse is above or below of. */
    nearest({ clientX, clientY }) {
      let best = null;
      let least = 10;
      for (const item of this.items) {
        const at = item.node.getBoundingClientRect();
        if (item.node.tagName === "circle") {
          const away = Math.hypot(at.left + at.width / 2 - clientX, at.top + at.height / 2 - clientY);
          if (away < least) [best, least] = [item, away];
        } else if (item.column && least === 10 && at.left <= clientX && clientX < at.right) {
          const inPlot = clientY - this.svg.getBoundingClientRect().top < PLOT.top + PLOT.height;
          if (inPlot) best = item;
        }
      }
      return best;
    }

    key(key) {
      const last = this.items.length - 1;
      const next = { ArrowRight: this.at + 1, ArrowLeft: this.at - 1, Home: 0, End: last }[key];
      if (key === "Escape") hideTip();
      else if (next === undefined || last < 0) return false;
      else {
        this.at = Math.max(0, Math.min(last, next));
        showTip(this.items[this.at]);
      }
      return true;
    }

    /** Entries of the legend leave only what they name. */
    makeLegend() {
      const legend = this.svg.parentElement.querySelector(".legend");
      this.chosen = new Set();
      for (const entry of legend?.children ?? []) {
        const button = document.createElement("button");
        button.type = "button";
        button.setAttribute("aria-pressed", "false");
        button.title = "Show only this";
        button.append(...entry.childNodes);
        entry.append(button);
        button.addEventListener("click", () => {
          const kind = entry.dataset.class;
          if (!this.chosen.delete(kind)) this.chosen.add(kind);
          for (const other of legend.children) {
            other.firstElementChild.setAttribute("aria-pressed", this.chosen.has(other.dataset.class));
          }
          this.dim();
        });
      }
    }

    dim() {
      const chosen = [...this.chosen];
      const shown = (node) => !chosen.length || chosen.some((kind) => node.classList.contains(kind));
      for (const node of this.svg.querySelectorAll('.marks > g[class], svg > [class^="p-"], .striped')) {
        node.classList.toggle("dimmed", !shown(node));
      }
    }
  }

  // --- Zoom ------------------------------------------------------------------------------------------------

  const drawings = { path: drawPath, steps: drawSteps };

  /** The time that all figures show which are over time. */
  const view = {
    start: 0, end: 0, total: 0, figures: [],

    set(start, end) {
      const length = Math.min(this.total, Math.max(CLOSEST_NS, end - start));
      this.start = Math.round(Math.max(0, Math.min(start, this.total - length)));
      this.end = Math.round(this.start + length);
      hideTip();
      for (const figure of this.figures) figure.draw();
    },

    /** Zoom by a factor, so that what is at a part of the width stays there. */
    zoom(factor, part = 0.5) {
      const length = this.end - this.start;
      const start = this.start + length * part * (1 - factor);
      this.set(start, start + length * factor);
    },

    move(part) {
      const by = (this.end - this.start) * part;
      this.set(this.start + by, this.end + by);
    },
  };

  const actions = {
    in: () => view.zoom(0.5),
    out: () => view.zoom(2),
    left: () => view.move(-0.5),
    right: () => view.move(0.5),
    whole: () => view.set(0, view.total),
  };
  const keys = { "+": "in", "=": "in", "-": "out", _: "out", 0: "whole", PageUp: "left", PageDown: "right" };

  class TimeFigure extends Figure {
    constructor(svg, data, drawing) {
      super(svg);
      this.data = data;
      this.drawing = drawing;
      this.tools = svg.parentElement.querySelector(".zoom");
      this.tools.hidden = false;
      for (const button of this.tools.querySelectorAll("[data-zoom]")) {
        button.addEventListener("click", actions[button.dataset.zoom]);
      }
      svg.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      svg.addEventListener("dblclick", (event) => view.zoom(0.5, this.part(event)));
      svg.addEventListener("pointerdown", (event) => this.grab(event));
    }

    part({ clientX }) {
      const at = this.svg.getBoundingClientRect();
      return (clientX - at.left) / at.width;
    }

    wheel(event) {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      view.zoom(2 ** Math.max(-1, Math.min(1, event.deltaY / 200)), this.part(event));
    }

    grab(event) {
      if (event.button !== 0 || view.end - view.start === view.total) return;
      const { start, end } = view;
      const from = this.part(event);
      const drag = (moved) => {
        const by = (from - this.part(moved)) * (end - start);
        view.set(start + by, end + by);
      };
      const drop = () => {
        removeEventListener("pointermove", drag);
        removeEventListener("pointerup", drop);
        removeEventListener("pointercancel", drop);
      };
      addEventListener("pointermove", drag);
      addEventListener("pointerup", drop);
      addEventListener("pointercancel", drop);
    }

    key(key) {
      if (key in keys) {
        actions[keys[key]]();
        return true;
      }
      return super.key(key);
    }

    draw() {
      const show = (name, made) => {
        const into = this.svg.querySelector(`:scope > .${name}`);
        into.replaceChildren(...made.filter((one) => one.tagName !== "g" || one.childNodes.length));
      };
      const items = this.drawing(this.data, view, show).map((item) => {
        const { x, cx } = item.node.attributes;
        return [Number.parseFloat((x || cx).value), item];
      });
      this.look(items.sort(([one], [other]) => one - other).map(([, item]) => item));
      this.dim();
      const shown = `${moment(view, view.start)} to ${moment(view, view.end)}`;
      const of = moment({ start: 0, end: view.total }, view.total);
      this.tools.querySelector(".range").textContent = `${shown} of ${of}`;
      const all = view.end - view.start === view.total;
      for (const button of this.tools.querySelectorAll("[data-zoom]")) {
        const kind = button.dataset.zoom;
        button.disabled = kind === "in" ? view.end - view.start <= CLOSEST_NS : all;
      }
    }
  }

  const data = JSON.parse(document.getElementById("charts-data")?.textContent || "{}");
  view.total = data.path?.total ?? data.steps?.total ?? 0;
  view.end = view.total;
  for (const svg of document.querySelectorAll("svg.area")) {
    const key = svg.id.replace("-svg", "");
    const live = svg.classList.contains("live") && data[key];
    if (live) view.figures.push(new TimeFigure(svg, data[key], drawings[key]));
    else new Figure(svg);
  }
  if (view.total) view.set(0, view.total);
})();
