// Maps of features: real ones translucent, shots as crosses, synthetic ones as stars; a panel for each generator.

const KINDS = { shots: "shot", made: "synthetic", real: "real" };

function mapFigures(data, map) {
  const shown = new Set(map.classes.map((_, i) => i));
  const panels = [
    { title: "real examples alone", made: null },
    ...map.made.map((made) => ({ title: made.method, made })),
  ];
  const figures = panels.map((panel) => figure(panel.title, (width) => mapPanel(width, data, map, panel, shown)));
  const redraw = () => figures.forEach((each) => each.redraw());
  const dot = (number) =>
    drawn(
      "svg",
      { class: look(number).colour, width: 14, height: 14, "aria-hidden": "true" },
      drawn("path", { class: "made", d: shapePath(0, 7, 7, 5) }),
    );
  const classes = toggles(
    "Classes, press to hide",
    map.classes.map((each, i) => ({
      key: i,
      text: each.name,
      sign: element("span", { class: "number" }, dot(i), String(i + 1)),
    })),
    shown,
    redraw,
  );
  const kinds = element(
    "ul",
    { class: "legend", "aria-label": "Signs" },
    Object.entries(KINDS).map(([kind, text]) =>
      element(
        "li",
        { class: "plain" },
        drawn("svg", { class: "s7", width: 16, height: 16, "aria-hidden": "true" }, kindSigns(kind, 8, 8, 1.25)),
        text,
      ),
    ),
  );
  const rows = map.classes.map((each) => [
    each.name,
    each.nearest.map(([name, distance]) => `${name} (${distance})`).join(", "),
  ]);
  return [
    kinds,
    classes,
    element("div", { class: "panels small maps" }, figures),
    dataTable("Nearest base classes as a table", ["novel class", "nearest base classes, and how far"], rows),
  ];
}

function kindSigns(kind, x, y, size = 1) {
  if (kind === "real") return [drawn("path", { class: "real", d: shapePath(0, x, y, 4.2 * size) })];
  if (kind === "made") return [drawn("path", { class: "made", d: starPath(x, y, 5.4 * size) })];
  const d = crossPath(x, y, 4.6 * size);
  return [drawn("path", { class: "shot", d }), drawn("path", { class: "shot inner", d })];
}

function mapPanel(width, data, map, panel, shown) {
  const size = Math.min(width, 460),
    margin = 10;
  const svg = plot(width, size, `Map of ${panel.title}`);
  svg.append(drawn("rect", { class: "box", x: 0.5, y: 0.5, width: width - 1, height: size - 1 }));
  const x = scaled(0, 1, margin, width - margin),
    y = scaled(0, 1, size - margin, margin);
  const groups = map.classes.map((_, i) => drawn("g", { class: `${look(i).colour}${shown.has(i) ? "" : " faded"}` }));
  const points = [];
  for (const [kind, source] of [
    ["real", map.real],
    ["made", panel.made],
    ["shots", map.shots],
  ]) {
    if (!source) continue;
    source.x.forEach((_, i) => {
      const point = {
        x: x(source.x[i]),
        y: y(source.y[i]),
        group: source.class[i],
        kind,
        method: panel.title,
        picture: source.pictures ? source.pictures[i] : null,
      };
      groups[point.group].append(...kindSigns(kind, point.x, point.y));
      if (shown.has(point.group)) points.push(point);
    });
  }
  svg.append(...groups);
  // The number of the class beside its first shot, for readers without colours.
  map.classes.forEach((_, i) => {
    const first = map.shots.class.indexOf(i);
    if (first >= 0 && shown.has(i))
      svg.append(
        drawn("text", { class: "number", x: x(map.shots.x[first]) + 8, y: y(map.shots.y[first]) - 5 }, String(i + 1)),
      );
  });
  // Shots first in a class, for those who go by keys.
  const order = Object.keys(KINDS);
  points.sort((a, b) => a.group - b.group || order.indexOf(a.kind) - order.indexOf(b.kind));
  return answering(svg, points, (point) => describePoint(data, map, point), 16);
}

function describePoint(data, map, point) {
  const { name, nearest, pictures } = map.classes[point.group];
  const kind = point.kind === "made" ? `synthetic, by ${point.method}` : KINDS[point.kind];
  const own = point.picture === null ? null : [data.pictures[point.picture]];
  return {
    title: name,
    lines: [
      ["kind: ", kind],
      ["nearest base classes: ", nearest.map(([base]) => base).join(", ")],
    ],
    pictures: own || pictures.map((number) => data.pictures[number]),
    note: own ? map.picture_note : "images of this class",
  };
}
