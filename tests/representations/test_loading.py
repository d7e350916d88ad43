"""Batches of images: order, bad images under both policies, worker processes, and the cache."""

import io
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from cpaan.errors import InputError
from cpaan.representations.decoding import decode_image, decode_pil
from cpaan.representations.images import ImageIndex, index_images
from cpaan.representations.loading import Batch, ImageDataset, ImageLoader
from cpaan.representations.pixels import SHARE_OF_MEMORY, Part, PixelCache, StreamedPixels, open_pixels

SIZE = 8
BAD = ("elm/2.png", "oak/3.png")


def encoded(seed: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (SIZE, SIZE + seed, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def make_index(root: Path, bad: tuple[str, ...] = (), tar: bool = False) -> ImageIndex:
    """Ten images of two classes; bad ones lack their second half."""
    names = [f"{tree}/{number}.png" for tree in ("elm", "oak") for number in range(5)]
    contents = {name: encoded(seed) for seed, name in enumerate(names)}
    contents |= {name: contents[name][: len(contents[name]) // 2] for name in bad}
    if tar:
        with tarfile.open(root / "all.tar", "w") as archive:
            for name, content in contents.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return index_images(root / "all.tar")
    for name, content in contents.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(content)
    return index_images(root)


def expected_pixels(row: int) -> Tensor:
    return torch.from_numpy(decode_image(encoded(row), SIZE))


def assert_right(batch: Batch) -> None:
    assert batch.pixels.dtype == torch.uint8
    assert batch.rows.dtype == torch.int64
    for pixels, row in zip(batch.pixels, batch.rows.tolist(), strict=True):
        assert torch.equal(pixels, expected_pixels(row))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("tar", [False, True])
def test_batches_come_in_the_order_given(tmp_path: Path, tar: bool, workers: int) -> None:
    loader = ImageLoader(make_index(tmp_path, tar=tar), SIZE, workers=workers)
    for order in ([3, 9, 0, 0, 7], np.arange(10)[::-1], [4]):
        batches = list(loader.batches(order, batch_size=2))
        assert torch.cat([batch.rows for batch in batches]).tolist() == list(order)
        assert [len(batch.rows) for batch in batches[:-1]] == [2] * (len(batches) - 1)
        for batch in batches:
            assert_right(batch)
    assert list(loader.batches([], batch_size=2)) == []
    loader.close()


def test_passes_that_are_left_or_made_within_another(tmp_path: Path) -> None:
    loader = ImageLoader(make_index(tmp_path), SIZE, workers=1)
    for _ in range(2):
        for batch in loader.batches(range(10), batch_size=1):
            assert_right(batch)
            inner = torch.cat([batch.rows for batch in loader.batches([5, 2, 8], batch_size=2)])
            assert inner.tolist() == [5, 2, 8]
            if batch.rows.item() == 2:
                break
    rows = torch.cat([batch.rows for batch in loader.batches(range(10), batch_size=3)])
    assert rows.tolist() == list(range(10))


def test_workers_stay_from_pass_to_pass(tmp_path: Path) -> None:
    loader = ImageLoader(make_index(tmp_path), SIZE, workers=1, decode=process_of)
    passes = [[one for batch in loader.batches(range(3), batch_size=2) for one in batch.pixels] for _ in range(2)]
    assert len(set(passes[0] + passes[1])) == 1
    assert os.getpid() not in passes[0]


def process_of(_: bytes) -> int:
    return os.getpid()


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_refused_by_name(tmp_path: Path, workers: int) -> None:
    loader = ImageLoader(make_index(tmp_path, BAD), SIZE, workers=workers)
    message = r"elm/2\.png cannot be read: .*truncated.*--on-bad skip"
    with pytest.raises(InputError, match=message) as caught:
        list(loader.batches(range(10), batch_size=4))
    assert str(tmp_path) in str(caught.value)
    assert len(list(loader.batches([0, 1, 3], batch_size=4))) == 1
    assert loader.skipped == {}


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_skipped_and_noted_once(tmp_path: Path, workers: int) -> None:
    loader = ImageLoader(make_index(tmp_path, BAD), SIZE, workers=workers, on_bad="skip")
    for _ in range(2):
        batches = list(loader.batches(range(10), batch_size=4))
        assert [batch.rows.tolist() for batch in batches] == [[0, 1, 3], [4, 5, 6, 7], [9]]
        for batch in batches:
            assert_right(batch)
    assert list(loader.skipped) == list(BAD)
    assert all("truncated" in reason for reason in loader.skipped.values())
    assert [batch.rows.tolist() for batch in loader.batches([2, 8, 1], batch_size=2)] == [[], [1]]


def test_a_bad_member_of_a_tar_is_named_with_its_tar(tmp_path: Path) -> None:
    loader = ImageLoader(make_index(tmp_path, BAD, tar=True), SIZE)
    with pytest.raises(InputError, match=r"/all\.tar:elm/2\.png cannot be read"):
        list(loader.batches([2], batch_size=1))


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    loader = ImageLoader(make_index(tmp_path), SIZE)
    (tmp_path / "elm" / "1.png").unlink()
    with pytest.raises(InputError, match=r"elm/1\.png cannot be read: there is no file"):
        list(loader.batches([1], batch_size=1))


@pytest.mark.parametrize("workers", [0, 1])
def test_nothing_but_bad_images(tmp_path: Path, workers: int) -> None:
    loader = ImageLoader(make_index(tmp_path, BAD), SIZE, workers=workers, on_bad="skip")
    assert [len(batch.rows) for batch in loader.batches([8, 2, 8], batch_size=2)] == [0, 0]
    assert sorted(loader.skipped) == sorted(BAD)
    (tmp_path / "none").mkdir()
    nothing = make_index(tmp_path / "none", tuple(entry.name for entry in loader.index.entries))
    with pytest.raises(InputError, match=r"none of the 10 images .*elm/0\.png: .*truncated"):
        PixelCache.load(ImageLoader(nothing, SIZE, workers=workers, on_bad="skip"), "cpu")


def fail(_: bytes) -> None:
    raise KeyError


def die(_: bytes) -> None:
    os._exit(7)


def to_float(content: bytes) -> Tensor:
    return torch.from_numpy(decode_image(content, 4)).float()


def own_size(content: bytes) -> Tensor:
    return torch.zeros(decode_pil(content).size)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_decode_of_the_caller(tmp_path: Path, workers: int) -> None:
    index = make_index(tmp_path)
    (stacked,) = ImageLoader(index, SIZE, workers=workers, decode=to_float).batches([3, 1], 2)
    assert stacked.pixels.shape == (2, 3, 4, 4)
    assert stacked.pixels.dtype == torch.float32
    (images,) = ImageLoader(index, SIZE, workers=workers, decode=decode_pil).batches([3, 1], 2)
    assert [image.size for image in images.pixels] == [(SIZE + 3, SIZE), (SIZE + 1, SIZE)]
    with pytest.raises(
        InputError, match=r"decode gave torch\.float32 of shape \(11, 8\), .* give tensors of one shape"
    ):
        list(ImageLoader(index, SIZE, workers=workers, decode=own_size).batches([3, 1], 2))
    skipping = ImageLoader(index, SIZE, workers=workers, decode=fail, on_bad="skip")
    assert [len(batch.rows) for batch in skipping.batches([0], 1)] == [0]
    assert list(skipping.skipped.values()) == ["KeyError"]


def test_a_worker_that_dies(tmp_path: Path) -> None:
    loader = ImageLoader(make_index(tmp_path), SIZE, workers=1, decode=die)
    for _ in range(2):
        with pytest.raises(InputError, match=r"a process that decodes images died: .*fewer workers"):
            list(loader.batches(range(10), batch_size=2))


def test_the_shared_generator_is_left_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    list(ImageLoader(make_index(tmp_path), SIZE).batches(range(10), batch_size=2))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_dataset_is_small_and_can_go_to_a_new_process(tmp_path: Path) -> None:
    index = make_index(tmp_path, BAD)
    dataset = pickle.loads(pickle.dumps(ImageDataset(index, SIZE)))
    first = dataset[[0, 1, 2]]
    assert_right(first)
    assert first.rows.tolist() == [0, 1]
    assert [row for row, reason in first.bad if "truncated" in reason] == [2]
    rows = [list(range(5)), list(range(5, 10))]
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=None, sampler=rows, num_workers=1, multiprocessing_context="spawn"
    )
    batches = list(loader)
    assert [batch.rows.tolist() for batch in batches] == [[0, 1, 3, 4], [5, 6, 7, 9]]
    assert [row for batch in batches for row, _ in batch.bad] == [2, 8]
    assert_right(batches[1])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_cache_holds_every_image_once(tmp_path: Path, workers: int) -> None:
    told: list[tuple[int, int]] = []
    loader = ImageLoader(make_index(tmp_path, BAD), SIZE, workers=workers, on_bad="skip")
    cache = PixelCache.load(loader, torch.device("cpu"), tell=lambda done, total: told.append((done, total)))
    rows = [0, 1, 3, 4, 5, 6, 7, 9]
    assert cache.labels.tolist() == [row // 5 for row in rows]
    assert_right(Batch(cache.pixels, torch.tensor(rows), []))
    part = Part(np.array([7, 2, 2]), 0, 0)
    ((again, pixels),) = cache.take([part])
    assert again is part
    assert_right(Batch(pixels, torch.tensor([9, 3, 3]), []))
    assert told == [(10, 10)]
    assert list(loader.skipped) == list(BAD)


def test_a_cache_holds_only_pixels(tmp_path: Path) -> None:
    loader = ImageLoader(make_index(tmp_path), SIZE, decode=to_float)
    with pytest.raises(InputError, match="a cache holds only pixels; give a loader without decode"):
        PixelCache.load(loader, "cpu")


def test_pixels_are_streamed_where_they_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader, parts = ImageLoader(make_index(tmp_path), SIZE), [Part(np.array([3, 9]), 0, 0), Part(np.array([1]), 0, 0)]
    held = open_pixels(loader, torch.device("cpu"), "auto")
    monkeypatch.setitem(SHARE_OF_MEMORY, "cpu", 0.0)
    streamed = open_pixels(loader, torch.device("cpu"), "auto")
    assert (type(held), type(streamed)) == (PixelCache, StreamedPixels)
    assert held.labels.tolist() == streamed.labels.tolist() == [0] * 5 + [1] * 5
    for (one, pixels), (other, same) in zip(held.take(parts), streamed.take(parts), strict=True):
        assert one is other
        assert torch.equal(pixels, same)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_bad": "ignore"}, "on_bad must be 'refuse' or 'skip', got 'ignore'"),
        ({"workers": -1}, "workers .*-1"),
        ({"size": 0}, "size .*0"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ImageLoader(make_index(tmp_path), **{"size": SIZE, **options})


def test_wrong_orders_are_refused_at_once(tmp_path: Path) -> None:
    loader = ImageLoader(make_index(tmp_path), SIZE)
    for order in ([10], [-1], [0.5], [[1]]):
        with pytest.raises(InputError, match="order must be row numbers from 0 to 9"):
            loader.batches(order, batch_size=2)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"batch_size .*0"):
        loader.batches([1], batch_size=0)
    with pytest.raises(InputError, match="the index has no images"):
        ImageLoader(ImageIndex((), ()), SIZE)
