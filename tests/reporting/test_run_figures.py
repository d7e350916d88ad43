import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("matplotlib", reason="needs the extra 'report'")

from matplotlib.figure import Figure

from cpaan.cli.app import app
from cpaan.errors import InputError
from cpaan.reporting.class_figures import class_view, draw_ellipse
from cpaan.reporting.figure import COLORS, MARKERS, look, new_figure, write_figure
from cpaan.reporting.figures import accuracy_figure, diversity_figure, map_figure, similarity_figure
from cpaan.reporting.results import Results, read_runs
from cpaan.reporting.run_figures import write_run_figures

WRITTEN = {"accuracy", "diversity", "losses", "maps", "neighborhood", "concept-covariance", "concept-translation"}


def test_a_run_gives_all_figures_as_vectors_and_pixels(results: Results, tmp_path: Path) -> None:
    written = write_run_figures(results, tmp_path / "figures")
    assert {path.stem for path in written} == WRITTEN
    for path in written:
        head = path.read_bytes()[:5]
        assert head == (b"%PDF-" if path.suffix == ".pdf" else b"\x89PNG\r")
    # Vectors, not a picture in a PDF; and the same bytes when it is written again.
    accuracy = tmp_path / "figures" / "accuracy.pdf"
    assert b"/Subtype /Image" not in accuracy.read_bytes()
    write_figure(accuracy_figure(results), tmp_path / "again.pdf")
    assert (tmp_path / "again.pdf").read_bytes() == write_figure(accuracy_figure(results), accuracy).read_bytes()


def test_several_runs_and_old_ones_give_what_they_can(
    ablation: list[Path], old_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_quickly(figure: Figure, folder: Path, name: str) -> list[Path]:
        """Write a figure small and once: how figures are written is tested above."""
        return [write_figure(figure, folder / f"{name}.png", resolution=20)]

    monkeypatch.setattr("cpaan.reporting.run_figures.write_both", write_quickly)
    names = {path.stem for path in write_run_figures(Results.of(read_runs(ablation)), tmp_path / "several")}
    assert {"accuracy", "neighborhood-ablation", "hard-maps", "soft-losses"} <= names
    assert {path.stem for path in write_run_figures(Results.of(read_runs([old_run])), tmp_path / "old")} == {"accuracy"}


def test_the_accuracy_figure_shows_the_means(results: Results) -> None:
    figure = accuracy_figure(results, "top1")
    found = results.accuracy("top1")
    for ax, setting in zip(figure.axes, ("LSL", "GLSL"), strict=True):
        assert setting in ax.get_title()
        for container, entry in zip(ax.containers, results.entries, strict=True):
            line: Any = container[0]
            assert list(line.get_ydata()) == [found[entry, setting, k].mean for k in results.shots]
            assert container.get_label() == entry[0]


def test_the_diversity_of_real_examples_is_marked(results: Results, old_run: Path) -> None:
    run = results.runs[0]
    figure = diversity_figure(results, run, 1)
    assert figure is not None
    real = next(iter(results.diversity().values())).real
    marks = [line for line in figure.axes[0].lines if line.get_label() == "real examples"]
    assert list(np.asarray(marks[0].get_xdata())) == [real, real]
    old = Results.of(read_runs([old_run]))
    assert diversity_figure(old, old.runs[0], 1) is None


def test_names_are_no_formulas(results: Results) -> None:
    run = results.runs[0]
    assert run.sample is not None
    assert run.feature_map is not None
    figure = map_figure(run.sample, run.feature_map)
    assert figure is not None
    legend = figure.legends[0]
    shown = [text.get_text() for text in legend.get_texts()]
    assert "6  {{data}} \\$x^2\\$ \\u003c" in shown
    assert "4  ⟨U+202E⟩right to left" in shown


def test_the_heat_map_keeps_rows_and_columns_together() -> None:
    alpha = np.array([[0.0, 0.9, 0.1], [0.8, 0.0, 0.2]])
    ax = similarity_figure(alpha, ["yew", "elm"], ["oak", "fir", "ash"]).axes[0]
    shown = np.asarray(ax.images[0].get_array()) ** 2
    columns = [label.get_text() for label in ax.get_xticklabels()]
    assert columns == ["fir", "oak", "ash"]
    np.testing.assert_allclose(shown, alpha[:, [1, 0, 2]])


def test_an_ellipse_encloses_what_it_should() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(20_000, 2)) @ np.array([[3.0, 1.0], [0.0, 0.5]]) + [5, -2]
    ax = new_figure(2, 2).subplots()
    draw_ellipse(ax, points)
    inside = ax.patches[0].contains_points(ax.transData.transform(points))
    assert inside.mean() == pytest.approx(1 - np.exp(-2), abs=0.01)


def test_a_view_is_of_the_class_that_was_asked_for(results: Results) -> None:
    sample = results.runs[0].sample
    assert sample is not None
    name = sample.real.classes[2]
    view = class_view(sample, name)
    assert view.name == name
    assert len(view.real) == (sample.real.real_labels == 2).sum()
    assert view.base_names == tuple(sample.real.base_classes[base] for base in sample.real.nearest[2])
    with pytest.raises(InputError, match="no class 'zebra'"):
        class_view(sample, "zebra")


def test_series_are_told_apart_without_colour() -> None:
    looks = {(look(i).color, look(i).marker) for i in range(len(COLORS) * len(MARKERS))}
    assert len(looks) == len(COLORS) * len(MARKERS)
    assert len({look(i).marker for i in range(len(MARKERS))}) == len(MARKERS)


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must end in"):
        write_figure(Figure(), tmp_path / "figure.doc")


def test_without_matplotlib_the_page_is_written_and_figures_say_what_to_install(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_import = builtins.__import__

    def without(name: str, *others: Any) -> Any:
        if name.startswith(("matplotlib", "cpaan.reporting.run_figures")):
            raise ImportError(name)
        return real_import(name, *others)

    monkeypatch.setattr(builtins, "__import__", without)
    plain = CliRunner().invoke(app, ["report", str(run), "-o", str(tmp_path / "a.html")])
    assert plain.exit_code == 0, plain.output
    both = ["report", str(run), "-o", str(tmp_path / "b.html"), "--figures", str(tmp_path / "f")]
    refused = CliRunner().invoke(app, both)
    assert refused.exit_code == 2
    assert "pip install 'cpaan[report]'" in refused.stderr
    assert not (tmp_path / "b.html").exists()
