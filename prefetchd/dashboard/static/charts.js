"use strict";
// Draws charts: lines by uPlot, bands and lanes on a canvas. Each has a text that says the same.

const Charts = (() => {
  const plots = new Map();
  // Marks of a longer time are minutes apart.
  const WITH_SECONDS_S = 300;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  const clock = (unix, withSeconds) => new Date(unix * 1000).toLocaleTimeString([], {
    hour: "2-digit", minute: "2-digit", second: withSeconds ? "2-digit" : undefined,
  });

  function forget() {
    for (const { plot } of plots.values()) plot.destroy();
    plots.clear();
  }

  function lines(id, times, series, { top, format, text }) {
    const figure = document.getElementById(id);
    const place = figure.querySelector(".plot");
    figure.querySelector(".alt").textContent = text;
    if (times.length < 2) {
      plots.get(id)?.plot.destroy();
      plots.delete(id);
      return;
    }
    const data = [times, ...series.map((each) => each.values)];
    const width = Math.max(200, place.clientWidth);
    const former = plots.get(id);
    if (former) {
      if (former.width !== width) former.plot.setSize({ width, height: 180 });
      former.width = width;
      former.plot.setData(data);
      return;
    }
    const axis = { stroke: colour("quiet"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid") } };
    const plot = new uPlot({
      width, height: 180,
      legend: { show: series.length > 1, live: false },
      cursor: { show: false },
      scales: { y: { range: (self, low, high) => [0, top ?? Math.max(high || 0, 1e-9) * 1.1] } },
      axes: [
        { ...axis, space: 100, values: (self, splits) => splits.map((each) => clock(each, splits[splits.length - 1] - splits[0] < WITH_SECONDS_S)) },
        { ...axis, size: 72, values: (self, splits) => splits.map((each) => format(each)) },
      ],
      series: [{}, ...series.map((each) => ({
        label: each.label, stroke: colour(each.colour), width: 2, dash: each.dash, points: { show: false },
      }))],
    }, data, place);
    plots.set(id, { plot, width });
    place.querySelector("canvas").setAttribute("aria-hidden", "true");
  }

  function canvas(place, height, paint) {
    let found = place.querySelector("canvas");
    if (!found) {
      found = document.createElement("canvas");
      found.setAttribute("aria-hidden", "true");
      place.append(found);
    }
    const scale = window.devicePixelRatio || 1;
    const width = Math.max(200, place.clientWidth);
    found.width = width * scale;
    found.height = height * scale;
    found.style.height = `${height}px`;
    const context = found.getContext("2d");
    context.scale(scale, scale);
    context.font = "12px system-ui, sans-serif";
    paint(context, width);
  }

  // One band for each stretch of time in which the limit stayed the same. Names are written where they fit.
  function bands(id, times, limits, text) {
    const figure = document.getElementById(id);
    figure.querySelector(".alt").textContent = text;
    const kinds = { trainer: "third", none: "line" };
    canvas(figure.querySelector(".bands"), 60, (context, width) => {
      if (times.length < 2) return;
      const begin = times[0];
      const span = times[times.length - 1] - begin || 1;
      let from = 0;
      for (let at = 1; at <= times.length; at += 1) {
        if (at < times.length && limits[at] === limits[from]) continue;
        if (limits[from] === null) {
          from = at;
          continue;
        }
        const left = ((times[from] - begin) / span) * width;
        const right = (((times[at] ?? times[times.length - 1]) - begin) / span) * width;
        context.fillStyle = colour(kinds[limits[from]] ?? "second");
        context.fillRect(left, 4, Math.max(1, right - left - 1), 32);
        if (right - left > context.measureText(limits[from]).width + 8) {
          context.fillStyle = limits[from] === "none" ? colour("ink") : colour("ground");
          context.fillText(limits[from], left + 4, 24);
        }
        from = at;
      }
      context.fillStyle = colour("quiet");
      context.fillText(clock(begin, span < WITH_SECONDS_S), 0, 54);
      const end = clock(times[times.length - 1], span < WITH_SECONDS_S);
      context.fillText(end, width - context.measureText(end).width, 54);
    });
  }

  // A lane for each worker and trainer; bars are [kind, lane, seconds ago at the begin, seconds, label].
  function lanes(id, bars, text) {
    const figure = document.getElementById(id);
    figure.querySelector(".alt").textContent = text;
    const names = [...new Set(bars.map((bar) => bar[1]))].sort((one, other) =>
      one.localeCompare(other, undefined, { numeric: true }));
    const place = figure.querySelector(".lanes");
    if (!bars.length) {
      place.replaceChildren();
      return;
    }
    const left = 110;
    const row = 20;
    canvas(place, names.length * row + 20, (context, width) => {
      const room = width - left;
      names.forEach((name, at) => {
        context.fillStyle = colour("quiet");
        context.fillText(name, 0, at * row + 14, left - 8);
        context.fillStyle = colour("grid");
        context.fillRect(left, at * row + 1, room, row - 4);
      });
      for (const [kind, lane, ago, lasted] of bars) {
        const at = names.indexOf(lane);
        const from = left + Math.max(0, 1 - ago / 60) * room;
        const to = left + Math.max(0, 1 - (ago - lasted) / 60) * room;
        context.fillStyle = colour(kind === "wait" ? "second" : "first");
        context.fillRect(from, at * row + 1, Math.max(1, to - from - 0.5), row - 4);
      }
      context.fillStyle = colour("quiet");
      context.fillText("60 s ago", left, names.length * row + 14);
      context.fillText("now", width - 26, names.length * row + 14);
    });
  }

  return { lines, bands, lanes, forget, clock };
})();
