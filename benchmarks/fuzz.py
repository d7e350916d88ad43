"""Spoil valid files of every kind that is read, and look for anything but success or an InputError.

Each input follows from its number alone. A child process reads it, which may take a few seconds and no more than a
gigabyte beyond what it begins with; a crash, a hang, much memory or another exception is a finding, which is saved with
its files and its number: ``python benchmarks/fuzz.py --only NUMBER`` reads that one again.

    python benchmarks/fuzz.py --minutes 60
"""

import argparse
import collections
import json
import multiprocessing
import os
import random
import resource
import shutil
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from cpaan.errors import InputError
from fuzz_mutations import BLIND, KNOWING, flip_bits, mend_checksum
from fuzz_targets import Target, targets

MEMORY_BYTES = 2**30
RESIDENT_KILOBYTES = 400 * 2**10
SECONDS = 10.0
INPUTS_OF_A_CHILD = 300
SHOWN = 5


@dataclass(frozen=True)
class Finding:
    """What should not have happened."""

    number: int  # of the input
    target: str
    what: str  # the exception and where it came from, or how the process ended


def spoil(folder: Path, number: int, target: Target, template: Path) -> None:
    """Write the files of an input."""
    draw = random.Random(number)
    shutil.copytree(template, folder, dirs_exist_ok=True)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = draw.choice(files)
    content = path.read_bytes()
    for _ in range(draw.choice((1, 1, 2, 4))):
        knowing = KNOWING.get(path.suffix)
        use = knowing if knowing is not None and draw.random() < 0.7 else draw.choice(BLIND)
        try:
            content = use(content, draw)
        except Exception:  # what was spoilt before can be too far gone to be edited
            content = flip_bits(content, draw)
    path.write_bytes(content)
    config = path.parent / "config.json"
    if path.suffix == ".safetensors" and config.exists():
        config.write_bytes(mend_checksum(content, config.read_bytes()))


def read(target: Target, folder: Path) -> str | None:
    """Read the files of an input, and tell what was wrong, if anything."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        target.read(folder)
    except InputError as error:
        if _is_short_of_memory(error):
            return f"asked for too much memory: {_where(error.__cause__ or error)}"
    except MemoryError as error:
        return f"asked for too much memory: {_where(error)}"
    except Exception as error:
        return f"{type(error).__name__}: {_where(error)}: {str(error)[:100]}"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return f"took {grown // 1024} MiB" if grown > RESIDENT_KILOBYTES else None


def _is_short_of_memory(error: BaseException) -> bool:
    cause = error.__cause__
    return isinstance(cause, MemoryError) or "allocate" in str(cause) or "alloc failed" in str(cause)


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "cpaan" in frame.filename and "fuzz" not in frame.filename] or frames
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno} {ours[-1].name}" if ours else "?"


def choose(known: tuple[Target, ...], number: int) -> Target:
    """Choose the reader of an input."""
    return random.Random(number + 10**12).choices(known, [target.share for target in known])[0]


def work(known: tuple[Target, ...], templates: Path, numbers: list[int], pipe: Connection) -> None:
    """Read inputs one after the other, and report before and after each."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    here = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (here + MEMORY_BYTES, here + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in numbers:
        target = choose(known, number)
        pipe.send((number, target.name, None, False))
        with tempfile.TemporaryDirectory() as temporary:
            spoil(Path(temporary), number, target, templates / target.name)
            pipe.send((number, target.name, read(target, Path(temporary)), True))
    pipe.close()


def read_in_child(
    known: tuple[Target, ...], templates: Path, numbers: list[int]
) -> tuple[list[Finding], "collections.Counter[str]"]:
    """Read inputs in child processes; if one dies or hangs, another takes the inputs that follow."""
    findings: list[Finding] = []
    done: collections.Counter[str] = collections.Counter()
    context = multiprocessing.get_context("fork")
    while numbers:
        receiving, sending = context.Pipe(duplex=False)
        child = context.Process(target=work, args=(known, templates, numbers, sending))
        child.start()
        sending.close()
        number, name, finished = numbers[0], "?", False
        ended = ""
        while not ended:
            if not receiving.poll(SECONDS):
                child.kill()
                ended = f"took more than {SECONDS:.0f} seconds"
                break
            try:
                number, name, what, finished = receiving.recv()
            except EOFError:
                child.join()
                ended = f"ended with code {child.exitcode}"
                break
            if finished:
                done[name] += 1
            if what is not None:
                findings.append(Finding(number, name, what))
        child.join()
        receiving.close()
        if finished and number == numbers[-1]:
            return findings, done
        done[name] += 1
        findings.append(Finding(number, name, ended))
        numbers = numbers[numbers.index(number) + 1 :]
    return findings, done


def keep(finding: Finding, known: tuple[Target, ...], templates: Path, out: Path) -> None:
    """Save the files of a finding."""
    folder = out / f"{finding.number}"
    target = next(target for target in known if target.name == finding.target)
    spoil(folder, finding.number, target, templates / target.name)
    (folder / "finding.txt").write_text(f"{finding.target}: {finding.what}\n", encoding="utf-8")


def main() -> None:
    """Spoil and read files for some minutes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="number of the first input")
    parser.add_argument("--only", type=int, help="read this input alone, in this process")
    parser.add_argument("--target", help="only readers whose name has this in it; numbers then mean other inputs")
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"))
    options = parser.parse_args()
    known = tuple(target for target in targets() if options.target is None or options.target in target.name)
    with tempfile.TemporaryDirectory() as temporary:
        templates = Path(temporary)
        for target in known:
            (templates / target.name).mkdir()
            target.make(templates / target.name)
            target.read(shutil.copytree(templates / target.name, templates / "copy"))
            shutil.rmtree(templates / "copy")
        if options.only is not None:
            target = choose(known, options.only)
            with tempfile.TemporaryDirectory() as folder:
                spoil(Path(folder), options.only, target, templates / target.name)
                target.read(Path(folder))
            return
        run(known, templates, options.minutes, options.seed, options.out)


def run(known: tuple[Target, ...], templates: Path, minutes: float, seed: int, out: Path) -> None:
    """Go on until the time is over, and report each kind of finding once, with the numbers of some inputs."""
    kinds: dict[tuple[str, str], list[int]] = {}
    done: collections.Counter[str] = collections.Counter()
    start, number = time.monotonic(), seed
    while time.monotonic() - start < 60 * minutes:
        findings, read_now = read_in_child(known, templates, [*range(number, number + INPUTS_OF_A_CHILD)])
        number += INPUTS_OF_A_CHILD
        done += read_now
        for finding in findings:
            numbers = kinds.setdefault((finding.target, finding.what[:90]), [])
            if not numbers:
                keep(finding, known, templates, out)
                print(f"{finding.number}: {finding.target}: {finding.what}", flush=True)
            numbers.append(finding.number)
    spent = (time.monotonic() - start) / 60
    facts = {"minutes": round(spent, 1), "inputs": sum(done.values()), "findings": len(kinds), "by reader": dict(done)}
    print(json.dumps(facts))
    for (target, what), numbers in kinds.items():
        print(f"{target}: {what} ({len(numbers)} times, inputs {', '.join(map(str, numbers[:SHOWN]))})")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
