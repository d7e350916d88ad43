// The neighbourhood α: which base class lends how much to which novel class.

function heatmapFigure(alpha) {
  // Base classes in the order of the novel class to which they lend most, so that what belongs together lies together.
  const strongest = alpha.base.map((_, column) => {
    const values = alpha.values.map((row) => row[column]);
    return values.indexOf(Math.max(...values));
  });
  const order = alpha.base.map((_, column) => column).sort((a, b) => strongest[a] - strongest[b]);
  const holder = element("div", { class: "scroller" });
  const letters = (names) => Math.min(24, Math.max(...names.map((name) => [...name].length)));
  const cell = 15,
    left = letters(alpha.novel) * 6.8 + 12,
    top = letters(alpha.base) * 5.6 + 14;
  const width = left + order.length * cell + letters(alpha.base) * 4 + 10,
    height = top + alpha.novel.length * cell + 8;
  const svg = plot(width, height, "Neighbourhood of novel and base classes");
  svg.classList.remove("plot");
  const most = Math.max(...alpha.values.flat(), 1e-9);
  const points = [];
  alpha.novel.forEach((novel, row) => {
    const y = top + row * cell;
    svg.append(drawn("text", { x: left - 6, y: y + cell - 4, "text-anchor": "end" }, clipped(novel)));
    order.forEach((column, place) => {
      const value = alpha.values[row][column],
        x = left + place * cell;
      svg.append(drawn("rect", { class: "cell-ground", x, y, width: cell - 1, height: cell - 1 }));
      if (value > most / 500)
        svg.append(
          drawn("rect", {
            class: "cell",
            x,
            y,
            width: cell - 1,
            height: cell - 1,
            "fill-opacity": Math.sqrt(value / most).toFixed(3),
          }),
        );
      points.push({ x: x + cell / 2, y: y + cell / 2, group: row, novel, base: alpha.base[column], value });
    });
  });
  order.forEach((column, place) => {
    const x = left + place * cell + cell / 2 + 3,
      y = top - 6;
    svg.append(drawn("text", { x, y, transform: `rotate(-55 ${x} ${y})` }, clipped(alpha.base[column])));
  });
  answering(
    svg,
    points,
    (p) => ({ title: p.novel, lines: [["lent by ", p.base], `α = ${p.value.toPrecision(3)}`] }),
    cell,
  );
  holder.append(svg);
  const rows = alpha.novel.map((name, row) => {
    const lenders = order
      .filter((column) => alpha.values[row][column] > 0)
      .sort((a, b) => alpha.values[row][b] - alpha.values[row][a])
      .slice(0, 3);
    return [
      name,
      lenders.map((column) => `${alpha.base[column]} (${alpha.values[row][column].toPrecision(2)})`).join(", "),
    ];
  });
  return [holder, dataTable("The three largest of each class as a table", ["novel class", "base classes"], rows)];
}

function clipped(name, most = 24) {
  const letters = [...name];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : name;
}
