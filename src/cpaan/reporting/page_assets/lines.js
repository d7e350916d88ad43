// Lines with intervals: accuracy against shots, losses against episodes, gains of a neighbourhood.

const MOST_LINES = 8;

// One panel. Series have a name, a number for their look, and points of x, y, half (of an interval) and text.
function linePanel(width, panel) {
  const height = panel.height || 300;
  const svg = plot(width, height, panel.title);
  const all = panel.series.flatMap((series) => series.points).filter((point) => point.y !== null);
  const lows = all.map((p) => p.y - (p.half || 0)),
    highs = all.map((p) => p.y + (p.half || 0));
  let low = Math.min(...lows, panel.zero ? 0 : Infinity),
    high = Math.max(...highs, panel.zero ? 0 : -Infinity);
  if (panel.most !== undefined) {
    high = Math.min(high, panel.most);
    low = Math.max(low, 0);
  }
  const ticks = roundTicks(low, high);
  if (panel.most !== undefined) while (ticks.at(-1) > panel.most) ticks.pop();
  const bottom = height - MARGIN.bottom;
  const y = { ticks, scale: scaled(ticks[0], Math.max(ticks.at(-1), high), bottom, MARGIN.top), label: panel.y };
  const places = panel.ticks.map(([place]) => place);
  const pad = panel.padded ? 24 : 0;
  const x = {
    ticks: panel.ticks,
    scale: scaled(Math.min(...places), Math.max(...places), MARGIN.left + pad, width - MARGIN.right - pad),
    label: panel.x,
  };
  if (places.length === 1) x.scale = () => (MARGIN.left + width - MARGIN.right) / 2;
  axes(svg, width, height, x, y);
  if (panel.zero)
    svg.append(
      drawn("line", { class: "zero", x1: MARGIN.left, x2: width - MARGIN.right, y1: y.scale(0), y2: y.scale(0) }),
    );
  const points = [];
  panel.series.forEach((series, i) => {
    const { colour, shape, dashes } = look(series.number);
    // Side by side, or intervals would cover one another.
    const shift = panel.padded ? (i - (panel.series.length - 1) / 2) * Math.min(4, 30 / panel.series.length) : 0;
    const group = drawn("g", { class: colour });
    const placed = series.points
      .filter((p) => p.y !== null)
      .map((p) => ({ ...p, series, group: series.name, x: x.scale(p.x) + shift, y: y.scale(p.y), value: p.y }));
    group.append(
      drawn("path", {
        class: "line",
        "stroke-dasharray": dashes,
        d: `M${placed.map((p) => `${p.x.toFixed(1)},${p.y.toFixed(1)}`).join("L")}`,
      }),
    );
    for (const p of placed) {
      if (p.half) {
        const clamp = (value) => Math.max(MARGIN.top, Math.min(bottom, y.scale(value)));
        group.append(
          drawn("line", { class: "bar", x1: p.x, x2: p.x, y1: clamp(p.value - p.half), y2: clamp(p.value + p.half) }),
        );
      }
      if (!panel.bare) group.append(drawn("path", { class: "point", d: shapePath(shape, p.x, p.y, 4) }));
    }
    svg.append(group);
    points.push(...placed);
  });
  return answering(svg, points, (p) => ({ title: p.series.name, lines: p.lines }));
}

function figure(title, draw) {
  const holder = element("div");
  const node = element("figure", {}, element("figcaption", {}, named(title)), holder);
  node.redraw = whenever(holder, (width) => holder.replaceChildren(draw(width)));
  return node;
}

function entryName(data, entry) {
  const { method, run } = data.table.entries[entry];
  return data.runs.length > 1 ? `${method}, ${run}` : method;
}

function accuracyFigures(data, state) {
  const { columns, entries } = data.table;
  const shots = [...new Set(columns.map((column) => column.shots))];
  const shown = shownFirst(data, state);
  const note =
    shown.size === entries.length
      ? "Press a method to hide it."
      : `Shown are the best ${MOST_LINES} of ${entries.length} methods on average, and the reference; press a method to show or hide it.`;
  const make = (setting) =>
    figure(setting === "LSL" ? "LSL: novel classes alone" : "GLSL: all classes", (width) =>
      linePanel(width, {
        title: `${setting} accuracy against shots`,
        x: "shots K",
        y: `${state.measure.replace("top", "top-")} accuracy, %`,
        padded: true,
        most: 100,
        ticks: shots.map((k, i) => [i, String(k)]),
        series: entries
          .map((_, i) => i)
          .filter((i) => shown.has(i))
          .map((entry) => ({
            name: entryName(data, entry),
            number: entry,
            points: columns
              .map((column, c) => [column, data.table.measures[state.measure].columns[c].accuracy[entry]])
              .filter(([column, pair]) => column.setting === setting && pair !== null)
              .map(([column, pair]) => ({
                x: shots.indexOf(column.shots),
                y: pair[0],
                half: pair[1],
                lines: [`${setting}, K = ${column.shots}: ${percent(pair)} %`],
              })),
          })),
      }),
    );
  const figures = ["LSL", "GLSL"].map(make);
  const redraw = () => figures.forEach((each) => each.redraw());
  const legend = toggles(
    "Methods, press to hide",
    entries.map((entry, i) => ({ key: i, text: entryName(data, i), sign: sign(i), title: data.methods[entry.method] })),
    shown,
    redraw,
  );
  return { nodes: [legend, element("div", { class: "panels" }, figures)], redraw, note };
}

// All methods, or of many the best on average together with the reference: more lines than that hide one another.
function shownFirst(data, state) {
  const { entries, measures } = data.table;
  const numbers = entries.map((_, i) => i);
  if (entries.length <= MOST_LINES + 2) return new Set(numbers);
  const average = numbers.map((entry) => {
    const found = measures[state.measure].columns
      .map((column) => column.accuracy[entry])
      .filter((pair) => pair !== null);
    return found.reduce((sum, pair) => sum + pair[0], 0) / (found.length || 1);
  });
  const best = [...numbers].sort((a, b) => average[b] - average[a]).slice(0, MOST_LINES);
  return new Set([...best, entries.findIndex((entry) => entry.method === data.reference)]);
}

function lossFigures(data, losses) {
  const numbers = new Map(data.table.entries.map((entry, i) => [`${entry.method} ${entry.run}`, i]));
  const methods = [
    ...new Set(
      Object.values(losses.terms)
        .flat()
        .map((line) => line.method),
    ),
  ];
  const number = (method) => numbers.get(`${method} ${losses.run}`) ?? 0;
  const figures = Object.entries(losses.terms).map(([term, lines]) =>
    figure(term.replaceAll("_", " "), (width) => {
      const last = Math.max(...lines.flatMap((line) => line.steps));
      return linePanel(width, {
        title: `Loss ${term}`,
        x: "training step",
        y: "loss",
        height: 210,
        bare: true,
        ticks: roundTicks(0, last, 4)
          .filter((tick) => tick <= last)
          .map((tick) => [tick, tickText(tick)])
          .concat(last > 0 ? [[last, ""]] : []),
        series: lines.map((line) => ({
          name: line.method,
          number: number(line.method),
          points: line.steps.map((step, i) => ({
            x: step,
            y: line.values[i],
            lines: [`${term.replaceAll("_", " ")} at step ${step}: ${line.values[i]}`],
          })),
        })),
      });
    }),
  );
  const legend = element(
    "ul",
    { class: "legend" },
    methods.map((method) => element("li", { class: "plain" }, sign(number(method)), named(method))),
  );
  const finals = Object.entries(losses.terms).flatMap(([term, lines]) =>
    lines.map((line) => [line.method, term.replaceAll("_", " "), line.values[0], line.values.at(-1)]),
  );
  return [
    legend,
    element("div", { class: "panels small" }, figures),
    dataTable("First and last losses as a table", ["method", "loss", "first", "last"], finals),
  ];
}

function ablationFigures(data, state) {
  const strategies = [...new Set(data.ablation.map((gain) => gain.strategy))];
  const panels = new Map(
    data.ablation.map((gain) => [`${gain.method}, ${gain.representation}, ${gain.setting}`, gain]),
  );
  const shots = [...new Set(data.ablation.map((gain) => gain.shots))].sort((a, b) => a - b);
  const figures = [...panels].map(([title, { method, representation, setting }]) =>
    figure(title, (width) =>
      linePanel(width, {
        title: `Gain by neighbourhood, ${title}`,
        x: "shots K",
        y: "gain, points",
        padded: true,
        zero: true,
        ticks: shots.map((k, i) => [i, String(k)]),
        series: strategies.map((name, number) => ({
          name,
          number,
          points: data.ablation
            .filter(
              (g) =>
                g.strategy === name &&
                g.method === method &&
                g.representation === representation &&
                g.setting === setting &&
                g.measure === state.measure,
            )
            .map((g) => ({
              x: shots.indexOf(g.shots),
              y: g.mean,
              half: g.half_width,
              lines: [`${setting}, K = ${g.shots}: ${signed([g.mean, g.half_width])} points over uniform`],
            })),
        })),
      }),
    ),
  );
  const legend = element(
    "ul",
    { class: "legend" },
    strategies.map((name, i) => element("li", { class: "plain" }, sign(i), named(name))),
  );
  return {
    nodes: [legend, element("div", { class: "panels" }, figures)],
    redraw: () => figures.forEach((each) => each.redraw()),
  };
}
