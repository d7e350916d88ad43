// Puts the page together from its data.

function main() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const state = { measure: data.measure, view: "accuracy" };
  const redraws = [];
  const changed = () => redraws.forEach((redraw) => redraw());

  const results = section("Results");
  const table = resultsTable(data, state);
  results.append(
    element(
      "div",
      { class: "controls" },
      radios(
        "Measure",
        "measure",
        [
          ["top5", "top-5"],
          ["top1", "top-1"],
        ],
        state.measure,
        (value) => {
          state.measure = value;
          changed();
        },
      ),
      radios(
        "Show",
        "view",
        [
          ["accuracy", "accuracy"],
          ["difference", `difference to ${data.reference}`],
        ],
        state.view,
        (value) => {
          state.view = value;
          table.draw();
        },
      ),
    ),
    ...table.nodes,
  );
  redraws.push(table.draw);

  const accuracy = accuracyFigures(data, state);
  section("Accuracy against shots", `Mean over trials; bars are 95 % intervals. ${accuracy.note}`).append(
    ...accuracy.nodes,
  );
  redraws.push(accuracy.redraw);

  if (data.ablation.length) {
    const ablation = ablationFigures(data, state);
    section(
      "Neighbourhood ablation",
      "What translating from related base classes gains over translating from all alike, paired over trials.",
    ).append(...ablation.nodes);
    redraws.push(ablation.redraw);
  }
  if (data.diversity.length) {
    const diversity = diversityFigures(data, state);
    section(
      "Accuracy against diversity",
      "How much the synthetic examples of a class differ; the dashed line is how much real ones do.",
    ).append(...diversity.nodes);
    redraws.push(diversity.redraw);
  }
  mapsSection(data);
  alphaSection(data);
  if (data.losses.length) {
    const losses = section("Losses", "Means between logging steps of training.");
    chosenOf(
      losses,
      "run",
      data.losses,
      (each) => each.run,
      (each) => lossFigures(data, each),
    );
  }
  madeSection(data);
  document.getElementById("theme").addEventListener("click", turnTheme);
  labelTheme();
}

// Shows one of several at a time, with a choice where there are more than one.
function chosenOf(parent, label, all, title, make) {
  const holder = element("div");
  const show = (index) => holder.replaceChildren(...make(all[index]));
  if (all.length > 1)
    parent.append(
      element(
        "div",
        { class: "controls" },
        choice(
          label,
          all.map((each, i) => [String(i), title(each)]),
          "0",
          (value) => show(Number(value)),
        ),
      ),
    );
  parent.append(holder);
  show(0);
}

function mapsSection(data) {
  if (!data.maps.length) return;
  const shots = data.maps[0].shots_per_class;
  const maps = section(
    "Maps of features",
    `Novel classes in the plane (t-SNE, one layout for all panels of a run), with ${shots} shot${shots > 1 ? "s" : ""} of each. Point at a sign to see its class; arrow keys work as well.`,
  );
  chosenOf(
    maps,
    "run",
    data.maps,
    (map) => map.run,
    (map) => mapFigures(data, map),
  );
}

function alphaSection(data) {
  if (!data.alphas.length) return;
  const alpha = section(
    "Neighbourhood",
    "How much each base class (columns) lends to a novel class (rows): α, the stronger the colour the more. Only base classes among the first three of some novel class are shown.",
  );
  chosenOf(
    alpha,
    "model",
    data.alphas,
    (each) => (data.runs.length > 1 ? `${each.method}, ${each.run}` : each.method),
    heatmapFigure,
  );
}

function madeSection(data) {
  const made = section("How it was made");
  for (const run of data.runs) {
    made.append(element("h3", {}, named(run.label)));
    if (!run.has_sample)
      made.append(
        element(
          "p",
          { class: "quiet" },
          "This run kept no sample of features, so there is no map of it; run cpaan bench on its folder again to add one.",
        ),
      );
    made.append(
      element("p", {}, "To make it again, on the same data:"),
      element("pre", { tabindex: 0 }, `${run.install}\n${run.command}`),
      element(
        "p",
        { class: "quiet" },
        `Fingerprint of the data: ${run.config.data ?? "not known"}; folder ${run.folder}${run.finished ? "" : "; not finished"}.`,
      ),
      element(
        "details",
        {},
        element("summary", {}, "Configuration and versions"),
        element(
          "pre",
          { tabindex: 0 },
          JSON.stringify({ config: run.config, versions: run.versions, origin: run.origin }, null, 1),
        ),
      ),
    );
  }
  const { shots, rows } = data.published;
  made.append(
    dataTable(
      "The published table (Gao et al., NeurIPS 2018, top-5 on ImageNet)",
      ["method", "representation", "generation", ...shots.map((k) => `LSL K=${k}`), ...shots.map((k) => `GLSL K=${k}`)],
      rows.map(([method, representation, generation, lsl, glsl]) => [
        method,
        representation,
        generation,
        ...[...lsl, ...glsl].map((value) => (value === null ? "–" : value.toFixed(1))),
      ]),
    ),
  );
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function turnTheme() {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  labelTheme();
}

function labelTheme() {
  document.getElementById("theme").textContent = isDark() ? "Light" : "Dark";
}

main();
