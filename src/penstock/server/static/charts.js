// Draws the charts of a page with uPlot: axes, values under the pointer, lines that can be switched off, ranges.
"use strict";

(() => {
  const section = document.querySelector("[data-charts]");
  if (!section) return;

  const RANGES = { "15m": 900, "1h": 3600, "24h": 86400, "7d": 604800 };
  const EVERY = { "15m": 5000, "1h": 30000, "24h": 60000, "7d": 60000 };
  const HEIGHT = 170;
  const query = new URLSearchParams(location.search);
  let range = [query.get("range"), localStorage.getItem("penstock-range"), "15m"].find((name) => name in RANGES);
  const hidden = new Set();

  // ── numbers ───────────────────────────────────────────────────────────────────────────────────────────────────────
  function tenths(value, wanted) { return value.toFixed(wanted && Math.abs(value % 1) > 0.04 ? 1 : 0); }
  function seconds(value) {
    if (value < 1) return Math.round(value * 1000) + " ms";
    if (value < 60) return tenths(value, value < 10) + " s";
    if (value < 3600) return tenths(value / 60, value < 600) + " min";
    if (value < 86400) return tenths(value / 3600, true) + " h";
    return tenths(value / 86400, true) + " d";
  }
  function size(value) {
    const units = ["B", "KiB", "MiB", "GiB"];
    let at = 0;
    while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
    return value.toFixed(at && value < 10 ? 1 : 0) + " " + units[at];
  }
  const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
  // Marks of an axis lie where its unit is round: at 5 min and not at 8.3 min, at 64 KiB and not at 50,000 bytes.
  const DURATIONS = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600,
    7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000, 2592000, 8640000, 31536000,
  ];
  const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);
  const WRITE = {
    rate: { axis: (value) => short.format(value), full: (value) => whole.format(value) + "/s" },
    count: { axis: (value) => short.format(value), full: (value) => whole.format(value) },
    bytes: { axis: (value) => (value === 0 ? "0" : size(value)), full: (value) => size(value) + "/s", steps: POWERS },
    seconds: { axis: (value) => (value === 0 ? "0" : seconds(value)), full: seconds, steps: DURATIONS },
  };

  function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

  // ── one chart ─────────────────────────────────────────────────────────────────────────────────────────────────────
  class TimeChart {
    constructor(figure) {
      this.figure = figure;
      this.id = figure.dataset.chart;
      this.write = WRITE[figure.dataset.unit] ?? WRITE.count;
      this.stacked = Boolean(figure.dataset.stacked);
      this.tiles = JSON.parse(figure.dataset.tiles ?? "{}");
      this.place = figure.querySelector(".plot");
      this.legend = figure.querySelector(".legend");
      this.labels = [];
      new ResizeObserver(() => {
        const width = this.place.clientWidth;
        if (this.plot && width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
      }).observe(this.place);
    }

    isShown(at) { return !hidden.has(this.id + "/" + this.labels[at]); }

    show(data) {
      this.data = data;
      const labels = data.series.map((line) => line.label);
      if (labels.join("\n") !== this.labels.join("\n") || !this.plot) {
        this.labels = labels;
        this.build();
      } else {
        this.plot.setData(this.columns(), false);
        this.setRange();
      }
      this.figure.dataset.points = String(data.times.length);
      this.place.classList.toggle("none", data.times.length === 0);
      this.values(null);
    }

    // Stacked charts draw sums, the top one first, so that each colour covers what is below it.
    columns() {
      const lines = this.data.series.map((line) => line.values);
      if (!this.stacked) return [this.data.times, ...lines];
      const sums = this.data.times.map(() => 0);
      const stacked = lines.map((values, at) => values.map((value, row) => {
        if (value === null) return null;
        if (this.isShown(at)) sums[row] += value;
        return sums[row];
      }));
      return [this.data.times, ...stacked.reverse()];
    }

    // Of a past that is shorter than the range, all of it, over the whole width.
    setRange() {
      const now = Date.now() / 1000, first = this.data.times[0] ?? 0;
      this.plot.setScale("x", { min: Math.max(now - RANGES[range], Math.min(first, now - 60)), max: now });
    }

    build() {
      this.plot?.destroy();
      const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
      const order = this.labels.map((_, at) => at);
      if (this.stacked) order.reverse();
      const series = order.map((at) => ({
        label: this.labels[at], show: this.isShown(at), width: 1.5, spanGaps: false, stroke: colour("--line" + (at % 8)),
        fill: this.stacked ? colour("--line" + (at % 8)) : undefined, points: { show: () => this.data.times.length < 4, size: 5 },
      }));
      const options = {
        width: Math.max(200, this.place.clientWidth), height: HEIGHT,
        legend: { show: false },
        cursor: { drag: { x: false, y: false }, points: { size: 6 } },
        scales: { x: { time: true, auto: false }, y: { range: (_, low, high) => [0, Math.max(1, (high ?? 0) * 1.08)] } },
        axes: [
          { ...axis, space: 80, values: (_, marks, __, ___, gap) => marks.map((mark) => this.clock(mark, gap)) },
          { ...axis, size: 62, values: (_, marks) => marks.map(this.write.axis), ...(this.write.steps && { incrs: this.write.steps }) },
        ],
        series: [{}, ...series],
        hooks: { setCursor: [(plot) => this.values(plot.cursor.idx ?? null)] },
      };
      this.place.replaceChildren();
      this.plot = new uPlot(options, this.columns(), this.place);
      this.setRange();
      this.buildLegend();
    }

    clock(mark, gap) {
      const moment = new Date(mark * 1000);
      if (gap >= 86400) return moment.toLocaleDateString([], { month: "short", day: "numeric" });
      const second = gap < 60 ? "2-digit" : undefined;
      return moment.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second, hour12: false });
    }

    buildLegend() {
      this.buttons = this.labels.map((label, at) => {
        const button = document.createElement("button");
        button.type = "button";
        button.title = label;
        button.setAttribute("aria-pressed", String(this.isShown(at)));
        const parts = ["swatch swatch" + (at % 8), "name", "value"].map((name) => {
          const part = document.createElement("span");
          part.className = name;
          return part;
        });
        parts[1].textContent = label;
        button.append(...parts);
        button.addEventListener("click", () => {
          const key = this.id + "/" + label;
          if (!hidden.delete(key)) hidden.add(key);
          this.build();
          this.values(null);
          this.buttons[at].focus();
        });
        return button;
      });
      this.legend.replaceChildren(...this.buttons);
    }

    // The values under the pointer; without one, the newest: where a tile says what a line is now, the tile's.
    values(row) {
      const at = row ?? this.data.times.length - 1;
      this.pointed = row;
      this.data.series.forEach((line, index) => {
        const value = line.values[at];
        const place = this.buttons?.[index]?.querySelector(".value");
        const tile = row === null ? document.getElementById(this.tiles[line.label] ?? "") : null;
        if (place && tile) place.textContent = tile.textContent;
        else if (place) place.textContent = value === null || value === undefined ? "–" : this.write.full(value);
      });
    }
  }

  const charts = [...section.querySelectorAll("[data-chart]")].map((figure) => new TimeChart(figure));

  // ── data ──────────────────────────────────────────────────────────────────────────────────────────────────────────
  let timer;
  let asked = 0;
  async function load() {
    clearTimeout(timer);
    timer = setTimeout(load, EVERY[range]);
    if (document.hidden) return;
    const turn = ++asked;
    const source = section.dataset.charts;
    try {
      const answer = await fetch(`${source}${source.includes("?") ? "&" : "?"}range=${range}`);
      if (!answer.ok || turn !== asked) return;
      const said = await answer.json();
      for (const chart of charts) if (said.charts[chart.id]) chart.show(said.charts[chart.id]);
    } catch { /* the line at the top says that the server is away */ }
  }

  const buttons = [...section.querySelectorAll("[data-range]")];
  function choose(name, tell) {
    range = name;
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.range === name));
    if (tell) {
      localStorage.setItem("penstock-range", name);
      const now = new URLSearchParams(location.search);
      now.set("range", name);
      history.replaceState(null, "", "?" + now + location.hash);
    }
    load();
  }
  for (const button of buttons) button.addEventListener("click", () => choose(button.dataset.range, true));
  addEventListener("penstock-theme", () => { for (const chart of charts) if (chart.data) chart.build(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const chart of charts) if (chart.data) chart.build(); });
  addEventListener("penstock-live", () => {
    for (const chart of charts) if (chart.data && chart.pointed === null) chart.values(null);
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) load(); });
  choose(range, false);
})();
