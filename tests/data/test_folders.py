"""One process at a time writes to a folder."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpaan.data.folders import LOCK, locked, remove_leftovers, replacing, sync_folder, write_atomically
from cpaan.errors import InputError
from cpaan.evaluation.run_folder import RunFolder

HOLDER = """
import sys, time
from pathlib import Path
from cpaan.data.folders import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process, which holds the folder `run`."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_by_name_and_a_killed_one_keeps_nobody_out(
    tmp_path: Path, holder: "subprocess.Popen[str]"
) -> None:
    run = tmp_path / "run"
    with pytest.raises(InputError, match=f"{run} is being written to by process {holder.pid} on "), locked(run):
        pytest.fail("held by two")
    with pytest.raises(InputError, match="is being written to"), RunFolder(run).locked():
        pytest.fail("held by two")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (run / LOCK).exists()  # stale
    with RunFolder(run).locked():
        assert RunFolder(run).begin({"bank": "birds"}, {})
        assert (run / LOCK).read_text().startswith(f"{os.getpid()} on ")
    assert sorted(path.name for path in run.iterdir()) == ["config.json"]


def test_a_folder_that_was_made_for_the_lock_and_left_empty_goes_again(tmp_path: Path) -> None:
    with locked(tmp_path / "run"):
        assert (tmp_path / "run" / LOCK).exists()
    assert not (tmp_path / "run").exists()
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "run"):
        raise ZeroDivisionError
    assert not (tmp_path / "run").exists()
    with locked(tmp_path / "run"):
        (tmp_path / "run" / "result").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["result"]


def test_a_lock_that_its_holder_removed_in_between_is_not_taken_for_the_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    flock, calls = fcntl.flock, iter(range(10))

    def removed_first(descriptor: int, how: int) -> None:
        if next(calls) == 0:
            (tmp_path / LOCK).unlink()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    with locked(tmp_path):
        monkeypatch.undo()
        with pytest.raises(InputError, match="is being written to"), locked(tmp_path):
            pytest.fail("held by two")


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK])
def test_without_locks_there_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    import fcntl

    def unsupported(descriptor: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    message = rf"cannot be locked .*{os.strerror(number)}.*no other process"
    for _ in range(2):
        with pytest.warns(UserWarning, match=message), locked(tmp_path / "run"):
            (tmp_path / "run" / "result").touch()
    assert (tmp_path / "run" / "result").exists()


def test_where_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(InputError, match=f"cannot write to {folder}: "), locked(folder):
            pytest.fail("held")


def test_what_a_killed_process_left_unfinished_is_removed_and_nothing_else(tmp_path: Path) -> None:
    names = [".0123456789abcdef.part", "notes.part", ".config", "config.json"]
    for name in names:
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])
    with replacing(tmp_path / "config.json") as temporary:
        temporary.touch()
    temporary.touch()  # as a kill would have left it
    remove_leftovers(tmp_path)
    assert not list(tmp_path.glob(".*.part"))


def test_file_and_folder_are_on_disk_before_a_file_counts_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor: int) -> None:
        done.append("folder" if os.path.samestat(os.fstat(descriptor), tmp_path.stat()) else "file")
        fsync(descriptor)

    def noted_replace(source: Path, target: Path) -> None:
        done.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    write_atomically(tmp_path / "note", b"whole")
    assert done == ["file", "rename", "folder"]


def test_a_folder_that_cannot_be_synced_is_no_reason_to_stop_and_one_that_fails_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(number: int) -> None:
        def fsync(_: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fsync)

    failing(22)
    sync_folder(tmp_path)
    failing(5)
    with pytest.raises(InputError, match="Input/output error"):
        sync_folder(tmp_path)


def test_a_full_disk_in_a_benchmark_loses_one_cell_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path)
    row = {"method": "linear", "setting": "GLSL", "shots": 1, "trial": 0, "top1": 50.0, "top5": 80.0}
    run.append([row])

    def full(_: int) -> None:
        with run.results.open("r+") as file:
            file.truncate(run.results.stat().st_size - 9)  # what did not fit
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"results\.jsonl: No space left on device"):
        run.append([{**row, "trial": 1}])
    monkeypatch.undo()
    run.append([{**row, "trial": 2}])
    assert [found["trial"] for found in run.rows()] == [0, 2]
