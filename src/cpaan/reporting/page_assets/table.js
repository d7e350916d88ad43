// The table of results: any column sorts, best and second best are marked, differences to the reference on request.

function resultsTable(data, state) {
  const holder = element("div", {
    class: "scroller",
    tabindex: 0,
    role: "region",
    "aria-label": "Table of results, scrolls sideways",
  });
  const caption = element("p", { class: "quiet", id: "table-note" });
  const { columns, entries } = data.table;
  const several = data.runs.length > 1;
  const names = several ? ["method", "run"] : ["method"];
  let sorting = { column: null, down: true };

  function value(entry, column) {
    if (typeof column === "string") return entries[entry][column];
    const pair = data.table.measures[state.measure].columns[column][state.view][entry];
    return pair === null ? null : pair[0];
  }

  function ordered() {
    const order = entries.map((_, i) => i);
    if (sorting.column === null) return order;
    const way = sorting.down ? -1 : 1;
    return order.sort((a, b) => {
      const x = value(a, sorting.column),
        y = value(b, sorting.column);
      if (x === null || y === null) return (x === null) - (y === null);
      return way * (typeof x === "string" ? x.localeCompare(y) : x - y) || a - b;
    });
  }

  function sortBy(column, text) {
    const down = sorting.column === column ? !sorting.down : typeof column !== "string";
    sorting = { column, down };
    draw();
    holder.querySelector(`button[data-column="${column}"]`).focus();
    announce(`Sorted by ${text}, ${down ? "highest" : "lowest"} first`);
  }

  function header(column, text, spoken, span) {
    const state = sorting.column === column ? (sorting.down ? "descending" : "ascending") : "none";
    const button = element(
      "button",
      { type: "button", "data-column": column, "aria-label": `${spoken}: sort`, click: () => sortBy(column, spoken) },
      text,
    );
    return element("th", { scope: "col", "aria-sort": state, rowspan: span, class: span ? "name" : null }, button);
  }

  function cell(entry, column) {
    const shown = data.table.measures[state.measure].columns[column];
    const pair = shown[state.view][entry];
    if (pair === null)
      return element(
        "td",
        {},
        state.view === "difference" && entries[entry].method === data.reference ? "reference" : "–",
      );
    const spread = pair[1] === null ? null : element("span", { class: "spread" }, ` ± ${rounded(pair[1])}`);
    if (state.view === "accuracy") {
      const rank = shown.rank[entry];
      return element(
        "td",
        { class: [null, "best", "second"][rank] },
        element("span", { class: "mean" }, rounded(pair[0])),
        spread,
        rank ? unseen([null, " best", " second best"][rank]) : null,
      );
    }
    const sure = pair[1] !== null && Math.abs(pair[0]) > pair[1];
    const way = pair[0] > 0 ? "up" : "down";
    return element(
      "td",
      { class: sure ? way : null },
      element("span", { class: "mean" }, (sure ? (way === "up" ? "▲ " : "▼ ") : "") + signed([pair[0], null])),
      spread,
    );
  }

  function draw() {
    const groups = ["LSL", "GLSL"].map((setting) =>
      element(
        "th",
        { class: "group", scope: "colgroup", colspan: columns.filter((c) => c.setting === setting).length },
        setting === "LSL" ? "LSL: among novel classes" : "GLSL: among all classes",
      ),
    );
    const top = element(
      "tr",
      {},
      names.map((name) => header(name, name, name, 2)),
      groups,
    );
    const bottom = element(
      "tr",
      {},
      columns.map((c, i) => header(i, `K = ${c.shots}`, `${c.setting} with ${c.shots} shots`)),
    );
    const rows = ordered().map((entry) =>
      element(
        "tr",
        {},
        element("th", { scope: "row", title: data.methods[entries[entry].method] }, named(entries[entry].method)),
        several ? element("td", { class: "name" }, named(entries[entry].run)) : null,
        columns.map((_, column) => cell(entry, column)),
      ),
    );
    const top_k = state.measure.replace("top", "top-");
    const note =
      state.view === "accuracy"
        ? `T${top_k.slice(1)} accuracy in percent, mean over trials ± 95 % interval; K real examples of each novel class. Best bold, second best underlined.`
        : `Difference of ${top_k} accuracy to ${data.reference} in points, paired over trials, ± 95 % interval; ▲ and ▼ where the interval leaves out zero.`;
    caption.textContent = note;
    holder.replaceChildren(
      element(
        "table",
        { id: "results-table", "aria-label": "Results", "aria-describedby": "table-note" },
        element("thead", {}, top, bottom),
        element("tbody", {}, rows),
      ),
    );
  }

  draw();
  return { nodes: [caption, holder], draw };
}
