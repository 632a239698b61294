"use strict";
// Draws the document: asked for every second, or frozen in the page. Names and texts of users are set as text, never as
// markup.

(() => {
  const WORDS = { good: "No", fair: "A little", bad: "Yes", unknown: "Not known" };
  const EVERY_MS = 1000;
  const byId = (id) => document.getElementById(id);
  const frozen = byId("frozen");
  let wanted = "";
  let latest = null;

  const known = (value) => value !== null && value !== undefined;
  const figure = (value, digits = 1) => (known(value) ? value.toFixed(value >= 99.95 ? 0 : digits) : "–");
  const percent = (value) => (known(value) ? `${(100 * value).toFixed(value < 0.1 && value > 0 ? 1 : 0)} %` : "–");
  const bytes = (value) => {
    if (!known(value)) return "–";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
    return `${value.toFixed(at && value < 99.95 ? 1 : 0)} ${units[at]}`;
  };
  const duration = (value) => {
    if (!known(value)) return "–";
    if (value < 1) return `${Math.round(1000 * value)} ms`;
    if (value < 100) return `${value.toFixed(1)} s`;
    return value < 6000 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
  };

  function element(tag, text, kind) {
    const made = document.createElement(tag);
    if (known(text)) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  }

  function table(heads, rows, nothing) {
    if (!rows.length) return element("p", nothing, "quiet");
    const made = element("table");
    const head = made.createTHead().insertRow();
    for (const each of heads) {
      const cell = element("th", each);
      cell.scope = "col";
      head.append(cell);
    }
    const body = made.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      for (const each of row) line.append(typeof each === "number" ? element("td", String(each), "number") : element("td", each));
    }
    return made;
  }

  function list(place, texts, nothing) {
    place.replaceChildren(...(texts.length ? texts : [nothing]).map((each) => element("li", each)));
  }

  function showHead(found) {
    const { colour, word, text } = found.headline;
    byId("headline").className = colour;
    byId("word").textContent = word;
    byId("question").hidden = Boolean(found.compare);
    byId("answer").textContent = text;
    const facts = [];
    if (found.daemon) facts.push(`daemon ${found.state}, pid ${found.daemon.pid}, version ${found.daemon.software}`);
    if (found.workers) facts.push(`${found.workers.busy} of ${found.workers.running} workers busy, ${found.workers.cpus} CPUs`);
    if (found.load) facts.push(`CPUs in use: ${figure(found.load.own)} by prefetchd, ${figure(found.load.trainers)} by trainers, ${figure(found.load.others)} by others`);
    byId("facts").textContent = facts.join(" · ");
    byId("when").textContent = `${found.report ? "report of" : "at"} ${new Date(found.made_unix_s * 1000).toLocaleString()}`;
    byId("problems").hidden = !found.problems.length;
    list(byId("problems").querySelector("ul"), found.problems, "");
  }

  function showStreams(found) {
    byId("streams").hidden = found.streams.length + found.ended.length < 2;
    const body = byId("streams").querySelector("tbody");
    const focused = document.activeElement?.dataset?.stream;
    const lines = found.streams.map((each) => {
      const line = element("tr");
      if (Object.hasOwn(found.details, each.name)) line.setAttribute("aria-current", "true");
      const name = element("td");
      name.append(choice(each.name));
      const times = known(each.perfect_speedup) ? `${each.perfect_speedup.toFixed(2)}x` : "–";
      line.append(name, element("td", WORDS[each.colour], each.colour));
      for (const text of [percent(each.stalled_share), times, percent(each.ready_share), figure(each.made_per_s), figure(each.used_per_s), duration(each.runway_s)]) {
        line.append(element("td", text, "number"));
      }
      return line;
    });
    for (const name of found.ended) {
      const line = element("tr");
      const cell = element("td");
      cell.append(choice(name));
      const said = element("td", "has ended");
      said.colSpan = 7;
      line.append(cell, said);
      lines.push(line);
    }
    body.replaceChildren(...lines);
    if (focused) [...body.querySelectorAll("button")].find((each) => each.dataset.stream === focused)?.focus();
    byId("left-out").textContent = found.streams_left_out ? `and ${found.streams_left_out} more streams, for which the status has no room` : "";
  }

  function choice(name) {
    const made = element("button", name);
    made.type = "button";
    made.dataset.stream = name;
    made.addEventListener("click", () => {
      wanted = name;
      Charts.forget();
      if (frozen) show(latest); else poll();
    });
    return made;
  }

  function showNumbers(stream) {
    const recent = stream.recent ?? {};
    const ring = stream.ring;
    const facts = [
      ["runway", duration(stream.runway_s)],
      ["ready", ring ? `${ring.ready} of ${ring.slots} slots` : "no ring yet"],
      ["made", `${figure(recent.produced_batches_per_s)}/s`],
      ["used", `${figure(recent.consumed_batches_per_s)}/s`],
      ["waited, last minute", percent(stream.verdict.stalled_share)],
      ["waited in all", duration(stream.stalled_s)],
      ["limit", stream.verdict.limit],
      ["stage", stream.stage],
      ["order", `${stream.order}, batch ${stream.batch_size}`],
      ["ring", ring ? bytes(ring.segment_bytes) : "–"],
      ["failed batches", String(stream.failed_batches)],
      ["worker deaths", String(stream.worker_deaths)],
    ];
    byId("numbers").replaceChildren(...facts.map(([name, value]) => {
      const made = element("div");
      made.append(element("dt", name), element("dd", value));
      return made;
    }));
  }

  const range = (values, format) => {
    const some = values.filter(known);
    if (!some.length) return "not measured yet";
    return `now ${format(some[some.length - 1])}, between ${format(Math.min(...some))} and ${format(Math.max(...some))}`;
  };

  // A hole of more than three points' distance is drawn as one.
  function columns(found, history) {
    const rows = [];
    history.forEach((row, at) => {
      if (at && row[0] - history[at - 1][0] > 50) rows.push([(row[0] + history[at - 1][0]) / 2, ...row.slice(1).map(() => null)]);
      rows.push(row);
    });
    return Object.fromEntries(found.columns.map((name, at) => [name, rows.map((row) => row[at])]));
  }

  function showCharts(found, detail) {
    const kept = columns(found, detail.history);
    const times = kept.at_unix_s ?? [];
    const span = times.length > 1 ? `In the last ${duration(times[times.length - 1] - times[0])}: ` : "";
    Charts.lines("chart-ready", times, [{ label: "ready", values: kept.ready, colour: "first" }],
      { top: 1, format: percent, text: `${span}${range(kept.ready, percent)} of the ring's slots.` });
    Charts.lines("chart-rates", times, [
      { label: "made", values: kept.made, colour: "first" },
      { label: "used", values: kept.used, colour: "second", dash: [6, 4] },
    ], { format: figure, text: `${span}made ${range(kept.made, figure)}; used ${range(kept.used, figure)} batches a second.` });
    Charts.lines("chart-stalled", times, [{ label: "waited", values: kept.stalled, colour: "second" }],
      { top: 1, format: percent, text: `${span}${range(kept.stalled, percent)} of the trainer's time.` });
    Charts.lines("chart-workers", times, [{ label: "workers", values: kept.workers, colour: "third" }],
      { format: (value) => (Number.isInteger(value) ? String(value) : ""), text: `${span}${range(kept.workers, (value) => String(Math.round(value)))} worker processes.` });
    Charts.lines("chart-memory", times, [{ label: "ring", values: kept.ring_bytes, colour: "fourth" }],
      { format: bytes, text: `${span}${range(kept.ring_bytes, bytes)} of shared memory.` });
    Charts.bands("chart-verdict", times, kept.limit ?? [], `${span}${shares(kept.limit ?? [])}.`);
    const waits = detail.lanes.filter((bar) => bar[0] === "wait");
    const tasks = detail.lanes.length - waits.length;
    const total = (bars) => bars.reduce((sum, bar) => sum + bar[3], 0);
    Charts.lanes("lanes", detail.lanes, detail.lanes.length
      ? `${tasks} tasks of workers; trainers waited ${waits.length} times, ${duration(total(waits))} in all (orange).`
      : found.report ? "Not recorded in a report; `prefetchd trace` records it." : "Recorded while this page is open: nothing yet.");
  }

  function shares(limits) {
    const counts = new Map();
    for (const each of limits.filter(known)) counts.set(each, (counts.get(each) ?? 0) + 1);
    const sorted = [...counts].sort((one, other) => other[1] - one[1]);
    const all = sorted.reduce((sum, [, count]) => sum + count, 0);
    return sorted.map(([name, count]) => `"${name}" in ${percent(count / all)} of the points`).join(", ") || "not measured yet";
  }

  function showTables(found, stream) {
    const slowest = (stream.slowest_samples ?? []).map((each) => [
      each.index < 0 ? "all of a batch" : String(each.index), each.phase, duration(each.lasted_s), `worker ${each.worker}`, `${duration(each.ago_s)} ago`]);
    byId("slowest").replaceChildren(table(["index", "phase", "took at least", "by", "seen"], slowest, "None seen yet."));
    list(byId("tuning"), (stream.tuning ?? []).slice().reverse().map((each) =>
      `${duration(each.ago_s)} ago: ${each.before} to ${known(each.workers) ? `${each.workers} workers` : `${each.batches} batches`}: ${each.why}`),
      stream.tuned || stream.buffer_tuned ? "Nothing was changed so far." : "The loader has fixed both numbers.");
    const workers = stream.workers.map((each) => [
      `worker ${each.number}`, each.pid, percent(each.busy_share), each.phase, each.index < 0 ? "–" : String(each.index), duration(each.phase_s)]);
    byId("workers").replaceChildren(table(["worker", "pid", "busy", "phase", "index", "for"], workers, "No worker runs."));
    const processes = found.processes.map((each) => [
      each.stream ? `${each.what} of ${each.stream}` : each.what, each.pid, percent(each.cpu), bytes(each.memory_bytes)]);
    byId("processes").replaceChildren(table(["process", "pid", "CPU", "memory"], processes, "Not measured."));
    byId("remote").hidden = !stream.remote;
    if (stream.remote) {
      const nodes = stream.remote.nodes.map((each) => [
        each.name, each.workers, each.batches, bytes(each.bytes), each.distrusted ? "not used: other batches" : each.proved ? "proved" : "not proved yet"]);
      byId("remote").querySelector("div").replaceChildren(
        element("p", stream.remote.why_not || `${stream.remote.ready} of ${stream.remote.wanted} remote workers ready`),
        table(["node", "workers", "batches", "bytes", "state"], nodes, "No node yet."));
    }
  }

  function showComparison(found) {
    byId("compare").hidden = !found.compare;
    if (!found.compare) return;
    const { names, rows } = found.compare;
    const place = element("div", null, "scroll");
    place.append(table(["stream", "what", `A: ${names[0]}`, `B: ${names[1]}`], rows, "The two runs have no stream in common."));
    for (const cell of place.querySelectorAll("td:nth-child(n + 3)")) cell.className = "wide";
    byId("compare").replaceChildren(element("h2", "Side by side"), place);
  }

  function showReport(found) {
    byId("report").hidden = !found.report;
    if (!found.report) return;
    const { versions, options, findings } = found.report;
    const bad = findings.filter((each) => each.state !== "ok");
    byId("report").replaceChildren(
      element("h2", "Versions and settings"),
      table(["what", "value"], [...Object.entries(versions), ...Object.entries(options).map(([name, value]) => [`option ${name}`, String(value)])], ""),
      element("h2", "What the doctor found"),
      table(["state", "check", "found", "fix"], bad.map((each) => [each.state, each.check, each.found, each.fix]), "Nothing to mend."));
  }

  function show(found) {
    latest = found;
    showHead(found);
    showStreams(found);
    showComparison(found);
    showReport(found);
    const names = Object.keys(found.details);
    const name = names.includes(wanted) ? wanted : names.includes(found.first) ? found.first : names[0];
    byId("stream").hidden = !name;
    if (!name) return;
    const detail = found.details[name];
    const stream = detail.status;
    byId("name").textContent = name;
    byId("gone").hidden = !detail.ended;
    byId("gone").textContent = "This stream has ended. What follows is its last status.";
    byId("stream-answer").textContent = stream.verdict.answer;
    byId("verdict").textContent = stream.failure ? `failed: ${stream.failure}` : stream.verdict.text;
    showNumbers(stream);
    showCharts(found, detail);
    showTables(found, stream);
  }

  function lost(why) {
    byId("headline").className = "unknown";
    byId("word").textContent = "Not known";
    byId("answer").textContent = why;
  }

  async function poll() {
    const token = new URLSearchParams(location.search).get("token") ?? "";
    const query = new URLSearchParams({ token, stream: wanted });
    try {
      const answer = await fetch(`state?${query}`, { cache: "no-store" });
      if (!answer.ok) lost(`The dashboard answers ${answer.status}: open the URL that it printed.`);
      else show(await answer.json());
    } catch (error) {
      lost(`The dashboard process does not answer: ${error.message}. Start \`prefetchd dashboard\` again.`);
    }
  }

  function again() {
    Charts.forget();
    if (latest) show(latest);
  }

  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  let resizing = 0;
  window.addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(again, 150);
  });
  if (frozen) {
    show(JSON.parse(frozen.textContent));
  } else {
    const turn = async () => {
      if (!document.hidden) await poll();
      setTimeout(turn, EVERY_MS);
    };
    turn();
  }
})();
