import json
import shutil
from pathlib import Path

import pytest

from cpaan.errors import InputError
from cpaan.reporting.page_data import bench_command, headline, install_command
from cpaan.reporting.results import Results, ranks, read_runs, run_labels


def test_a_run_is_read_with_all_that_it_kept(run: Path) -> None:
    [record] = read_runs([run, run])
    assert record.label == "toy"
    assert record.methods == ("nearest-prototype", "c-gan", "ccov-gan", "feature-hallucination", "smote")
    assert record.finished
    assert {"c-gan", "ccov-gan", "feature-hallucination"} == set(record.histories)
    assert len(record.histories["ccov-gan"]["covariance"]) == len(record.histories["ccov-gan"]["episode"]) == 3
    assert record.sample is not None
    assert list(record.alphas) == ["c-gan, ccov-gan"]  # both draw from the same neighbourhood


def test_an_old_run_gives_what_it_has(old_run: Path) -> None:
    [record] = read_runs([old_run])
    assert (record.sample, record.feature_map, record.histories, record.alphas) == (None, None, {}, {})
    assert not record.finished
    [sentence] = headline(Results.of([record]))
    assert "linear reaches 70.0 %" in sentence
    assert "one trial" in sentence
    assert "not finished" in sentence
    assert "cpaan bench BANK --setup SETUP" in bench_command(record)


def test_what_is_no_run_is_refused(tmp_path: Path, old_run: Path) -> None:
    with pytest.raises(InputError, match="holds no benchmark run"):
        read_runs([tmp_path / "nothing"])
    (old_run / "results.jsonl").write_text("")
    with pytest.raises(InputError, match="no cell is finished yet"):
        read_runs([old_run])
    (old_run / "config.json").write_text(json.dumps({"config": {}}))
    with pytest.raises(InputError, match="no benchmark run"):
        read_runs([old_run])


def test_runs_are_named_by_what_differs() -> None:
    birds = {"representation": "birds", "trials": 5, "methods": ["linear"]}
    assert run_labels([birds, {**birds, "representation": "trees"}], ["a", "b"]) == ["birds", "trees"]
    assert run_labels([birds, {**birds, "trials": 3}], ["a", "b"]) == ["birds, trials 5", "birds, trials 3"]
    assert run_labels([birds, {**birds, "methods": ["maml"]}], ["a", "b"]) == ["birds (a)", "birds (b)"]


def test_a_model_that_was_never_finished_has_no_history(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "models" / "c-gan" / "config.json").unlink()
    assert "c-gan" not in read_runs([tmp_path / "run"])[0].histories


def test_rows_that_cannot_be_used_are_left_out(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    with (tmp_path / "run" / "results.jsonl").open("a") as file:
        file.write('{"method": "stranger", "setting": "LSL", "shots": 1, "trial": 0, "top1": 1, "top5": 1}\n{"meth')
    assert len(read_runs([tmp_path / "run"])[0].rows) == len(read_runs([run])[0].rows)


def test_the_headline_names_the_best_and_what_it_gains(run: Path, ablation: list[Path]) -> None:
    results = Results.of(read_runs([run]), "c-gan")
    [sentence] = headline(results)
    accuracy = results.accuracy("top5")
    best = max(results.entries, key=lambda entry: accuracy[entry, "LSL", 1].mean)
    assert f"among novel classes {best[0]} reaches {accuracy[best, 'LSL', 1]} %" in sentence
    assert "c-gan" in sentence
    [several] = headline(Results.of(read_runs(ablation)))
    assert several.startswith("3 runs are compared")
    with pytest.raises(InputError, match="'maml' is not one of the methods nearest-prototype"):
        Results.of(read_runs([run]), "maml")


def test_equal_figures_share_a_rank() -> None:
    assert ranks([1.0, 1.04, 0.5]) == [1, 1, 2]
    assert ranks([1.0, None]) == [0, 0]


def test_the_commands_make_the_run_again(run: Path) -> None:
    [record] = read_runs([run])
    command = bench_command(record)
    assert command.startswith("cpaan bench 'my bank.npz' --setup setup.json --methods nearest-prototype,c-gan,")
    for part in ("--shots 1,3", "--trials 3", "--set episodes=3", "--device cpu", "--representation toy"):
        assert part in command
    assert f"torch=={record.versions['torch'].split('+')[0]}" in install_command(record).split()
