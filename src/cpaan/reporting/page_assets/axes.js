// Scales, axes and signs that all figures share.

const MARGIN = { left: 46, right: 14, top: 10, bottom: 40 };
const SHAPES = 6;

function scaled(low, high, from, to) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

// Round numbers that cover a range, about `wanted` of them.
function roundTicks(low, high, wanted = 5) {
  if (!(high > low)) {
    const pad = Math.abs(low) * 0.1 || 1;
    low -= pad;
    high += pad;
  }
  const rough = (high - low) / wanted,
    power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
  const first = Math.floor(low / size),
    last = Math.ceil(high / size - 1e-9);
  const ticks = [];
  for (let i = first; i <= last; i += 1) ticks.push(Number((i * size).toPrecision(12)));
  return ticks;
}

function tickText(value) {
  const size = Math.abs(value);
  if (size >= 1e5 || (size && size < 1e-3)) return value.toExponential(0);
  return String(Number(value.toPrecision(4)));
}

// Draws both axes; `x.ticks` are pairs of a place in data units and a text.
function axes(svg, width, height, x, y) {
  const bottom = height - MARGIN.bottom;
  for (const tick of y.ticks) {
    const place = y.scale(tick);
    svg.append(drawn("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: place, y2: place }));
    svg.append(drawn("text", { x: MARGIN.left - 7, y: place + 4, "text-anchor": "end" }, tickText(tick)));
  }
  svg.append(drawn("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }));
  for (const [value, text] of x.ticks) {
    svg.append(drawn("text", { x: x.scale(value), y: bottom + 17, "text-anchor": "middle" }, text));
  }
  svg.append(
    drawn("text", { x: (MARGIN.left + width - MARGIN.right) / 2, y: height - 5, "text-anchor": "middle" }, x.label),
  );
  svg.append(
    drawn(
      "text",
      {
        x: 12,
        y: (MARGIN.top + bottom) / 2,
        "text-anchor": "middle",
        transform: `rotate(-90 12 ${(MARGIN.top + bottom) / 2})`,
      },
      y.label,
    ),
  );
}

function shapePath(shape, x, y, r) {
  const at = (points) =>
    `M${points.map(([dx, dy]) => `${(x + dx * r).toFixed(1)},${(y + dy * r).toFixed(1)}`).join("L")}Z`;
  switch (shape % SHAPES) {
    case 1:
      return at([
        [-0.9, -0.9],
        [0.9, -0.9],
        [0.9, 0.9],
        [-0.9, 0.9],
      ]);
    case 2:
      return at([
        [0, -1.15],
        [1.1, 0.85],
        [-1.1, 0.85],
      ]);
    case 3:
      return at([
        [0, -1.25],
        [1.25, 0],
        [0, 1.25],
        [-1.25, 0],
      ]);
    case 4:
      return at([
        [0, 1.15],
        [1.1, -0.85],
        [-1.1, -0.85],
      ]);
    case 5:
      return starPath(x, y, r * 1.35);
    default:
      return `M${x - r},${y}a${r},${r} 0 1 0 ${2 * r},0a${r},${r} 0 1 0 ${-2 * r},0Z`;
  }
}

function starPath(x, y, r) {
  const corners = [];
  for (let i = 0; i < 10; i += 1) {
    const length = i % 2 ? r * 0.42 : r,
      angle = Math.PI * (i / 5 - 0.5);
    corners.push(`${(x + length * Math.cos(angle)).toFixed(1)},${(y + length * Math.sin(angle)).toFixed(1)}`);
  }
  return `M${corners.join("L")}Z`;
}

function crossPath(x, y, r) {
  return `M${x - r},${y - r}L${x + r},${y + r}M${x - r},${y + r}L${x + r},${y - r}`;
}

// Colour, shape and dashes of a series by its number: told apart without colour too.
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];

function look(number) {
  return { colour: `s${number % 8}`, shape: number % SHAPES, dashes: DASHES[number % DASHES.length] };
}

function sign(number) {
  const { colour, shape, dashes } = look(number);
  return drawn(
    "svg",
    { class: colour, width: 30, height: 14, "aria-hidden": "true" },
    drawn("line", { class: "line", x1: 1, x2: 29, y1: 7, y2: 7, "stroke-dasharray": dashes }),
    drawn("path", { class: "point", d: shapePath(shape, 15, 7, 4.5) }),
  );
}
