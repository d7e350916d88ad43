// Accuracy against diversity, with the diversity of real examples marked.

function diversityFigures(data, state) {
  const shots = [...new Set(data.diversity.map((point) => point.shots))].sort((a, b) => a - b);
  const chosen = { shots: String(shots[0]) };
  const runs = [...new Set(data.diversity.map((point) => point.run))];

  function pointsOf(run, setting) {
    const column = data.table.columns.findIndex(
      (each) => each.setting === setting && String(each.shots) === chosen.shots,
    );
    return data.diversity
      .filter((point) => point.run === run && String(point.shots) === chosen.shots)
      .map((point) => ({
        ...point,
        pair: data.table.measures[state.measure].columns[column].accuracy[point.entry],
        name: data.table.entries[point.entry].method,
      }))
      .filter((point) => point.pair !== null);
  }

  const figures = runs.flatMap((run) =>
    ["LSL", "GLSL"].map((setting) =>
      figure(runs.length > 1 ? `${setting}, ${run}` : setting, (width) =>
        diversityPanel(width, pointsOf(run, setting), setting, state, chosen),
      ),
    ),
  );
  const redraw = () => figures.forEach((each) => each.redraw());
  const controls = element(
    "div",
    { class: "controls" },
    choice(
      "shots K",
      shots.map((k) => [String(k), String(k)]),
      chosen.shots,
      (value) => {
        chosen.shots = value;
        redraw();
      },
    ),
  );
  const rows = data.diversity.map((point) => [
    entryName(data, point.entry),
    point.shots,
    point.made.toPrecision(3),
    point.real.toPrecision(3),
  ]);
  return {
    nodes: [
      controls,
      element("div", { class: "panels" }, figures),
      dataTable("Diversity as a table", ["method", "K", "synthetic", "real"], rows),
    ],
    redraw,
  };
}

function diversityPanel(width, found, setting, state, chosen) {
  const height = 300,
    svg = plot(width, height, `${setting} accuracy against diversity with ${chosen.shots} shots`);
  if (!found.length) return svg;
  const real = found[0].real;
  const highest = Math.max(real, ...found.map((p) => p.made));
  const xTicks = roundTicks(0, highest * 1.08);
  const ys = found.flatMap((p) => [p.pair[0] - (p.pair[1] || 0), p.pair[0] + (p.pair[1] || 0)]);
  const yTicks = roundTicks(Math.max(0, Math.min(...ys)), Math.min(100, Math.max(...ys)));
  const bottom = height - MARGIN.bottom;
  const x = {
    ticks: xTicks.map((tick) => [tick, tickText(tick)]),
    scale: scaled(0, xTicks.at(-1), MARGIN.left, width - MARGIN.right - 6),
    label: "diversity: mean distance of two examples of a class",
  };
  const y = {
    ticks: yTicks,
    scale: scaled(yTicks[0], yTicks.at(-1), bottom, MARGIN.top + 16),
    label: `${state.measure.replace("top", "top-")} accuracy, %`,
  };
  axes(svg, width, height, x, y);
  svg.append(drawn("line", { class: "mark", x1: x.scale(real), x2: x.scale(real), y1: MARGIN.top + 16, y2: bottom }));
  const points = found.map((p) => ({ ...p, group: p.name, x: x.scale(p.made), y: y.scale(p.pair[0]) }));
  for (const p of points) {
    const { colour, shape } = look(p.entry);
    const half = p.pair[1] || 0,
      clamp = (value) => Math.max(MARGIN.top, Math.min(bottom, y.scale(value)));
    svg.append(
      drawn(
        "g",
        { class: colour },
        drawn("line", { class: "bar", x1: p.x, x2: p.x, y1: clamp(p.pair[0] - half), y2: clamp(p.pair[0] + half) }),
        drawn("path", { class: "point", d: shapePath(shape, p.x, p.y, 5.5) }),
      ),
    );
  }
  const mark = { x: x.scale(real), y: bottom - 6, name: "real" };
  placeLabels(svg, width, [mark, ...points], points);
  return answering(svg, points, (p) => ({
    title: p.name,
    lines: [
      `${setting}, K = ${p.shots}: ${percent(p.pair)} %`,
      `diversity ${p.made.toPrecision(3)}; of real examples ${p.real.toPrecision(3)}`,
    ],
  }));
}

// Names beside points, each on the first side where it covers neither a point nor another name.
function placeLabels(svg, width, labels, points) {
  const taken = points.map((p) => ({ left: p.x - 6, right: p.x + 6, top: p.y - 6, bottom: p.y + 6 }));
  for (const label of labels) {
    const text = drawn("text", { class: "strong" }, label.name);
    svg.append(text);
    const long = label.name.length * 6.6;
    const sides = [
      [9, 4, "start"],
      [-9, 4, "end"],
      [0, -11, "middle"],
      [0, 19, "middle"],
      [9, -9, "start"],
      [9, 16, "start"],
      [-9, -9, "end"],
      [-9, 16, "end"],
    ];
    const boxes = sides.map(([dx, dy, anchor]) => {
      const left = label.x + dx - { start: 0, middle: long / 2, end: long }[anchor];
      return { left, right: left + long, top: label.y + dy - 10, bottom: label.y + dy + 3 };
    });
    const free = (box) =>
      box.left > MARGIN.left &&
      box.right < width - 2 &&
      box.top > 0 &&
      !taken.some((t) => t.left < box.right && t.right > box.left && t.top < box.bottom && t.bottom > box.top);
    const best = boxes.findIndex(free);
    if (best < 0) {
      text.remove();
      continue;
    } // the name is in the tooltip and in the table
    taken.push(boxes[best]);
    const [dx, dy, anchor] = sides[best];
    text.setAttribute("x", label.x + dx);
    text.setAttribute("y", label.y + dy);
    text.setAttribute("text-anchor", anchor);
  }
}
