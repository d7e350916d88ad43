"""Finding images: folders, tars and shards, their order, and tars that were damaged or made to harm."""

import io
import os
import pickle
import random
import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from cpaan.errors import InputError
from cpaan.representations.images import ImageIndex, index_images

# The development data is next to the repository, or where the environment says.
SHARED = Path(os.environ.get("CPAAN_DATA", Path(__file__).parents[3] / "shared" / "data"))


def make_files(root: Path, names: Iterable[str]) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"bytes of {name}".encode())
    return root


def make_tar(path: Path, names: Iterable[str], mode: str = "w", form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, mode, format=form) as archive:  # type: ignore[call-overload]
        for name in names:
            content = f"bytes of {name}".encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def add_member(path: Path, member: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w") as archive:
        archive.addfile(member)
    return path


def names(index: ImageIndex) -> list[str]:
    return [entry.name for entry in index.entries]


IN_ORDER = [
    "train/elm/1.jpg",
    "train/elm/10.PNG",
    "train/elm/2.JPEG",
    "train/oak/B.jpg",
    "train/oak/a.jpg",
    "val/elm/0.jpg",
    "val/oak/0.tiff",
]


def test_folders_with_parts_are_sorted_by_part_class_and_name(tmp_path: Path) -> None:
    index = index_images(make_files(tmp_path, reversed(IN_ORDER)))
    assert index.classes == ("elm", "oak")
    assert names(index) == IN_ORDER
    assert index.labels.tolist() == [0, 0, 0, 1, 1, 0, 1]
    assert index.labels.dtype == np.int64
    assert index.is_test.tolist() == [False] * 5 + [True] * 2
    assert len(index) == 7
    assert repr(index) == "ImageIndex(2 classes, 7 images, 2 for testing)"
    assert [entry.read() for entry in index.entries] == [f"bytes of {name}".encode() for name in IN_ORDER]
    assert [entry.place for entry in index.entries] == [str(tmp_path / name) for name in IN_ORDER]
    assert pickle.loads(pickle.dumps(index)) == index


def test_a_tar_gives_the_same_as_its_folder(tmp_path: Path) -> None:
    folder = index_images(make_files(tmp_path / "folder", IN_ORDER))
    tar = index_images(make_tar(tmp_path / "all.tar", reversed(IN_ORDER)))
    assert names(tar) == [f"all.tar:{name}" for name in IN_ORDER]
    assert tar.classes == folder.classes
    assert tar.labels.tolist() == folder.labels.tolist()
    assert tar.is_test.tolist() == folder.is_test.tolist()
    assert [entry.read() for entry in tar.entries] == [entry.read() for entry in folder.entries]
    assert [entry.size for entry in tar.entries] == [len(entry.read()) for entry in folder.entries]
    assert tar.entries[0].place == f"{tmp_path}/all.tar:train/elm/1.jpg"


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_shards_in_any_format_next_to_other_files(tmp_path: Path, form: int) -> None:
    long = "train/" + "oak" * 20 + "/" + "x" * 60 + ".jpg"
    make_tar(tmp_path / "b.tar", ["./train/elm/2.jpg", long], form=form)
    make_tar(tmp_path / "a.tar", ["val/elm/1.jpg", "yew/3.jpg", "train/elm/notes.txt"], form=form)
    make_files(tmp_path, ["classes.json", ".cache/x.jpg", "._a.tar"])
    index = index_images(tmp_path)
    assert index.classes == ("elm", "oak" * 20, "yew")
    assert sorted(names(index)) == sorted(
        ["b.tar:train/elm/2.jpg", f"b.tar:{long}", "a.tar:yew/3.jpg", "a.tar:val/elm/1.jpg"]
    )
    assert index.is_test.tolist() == [False, False, False, True]
    assert index.entries[1].read() == f"bytes of {long}".encode()


def test_folders_without_parts_are_for_training(tmp_path: Path) -> None:
    make_files(tmp_path, ["oak/1.jpg", "elm/1.jpg", "oak/.DS_Store", "oak/._1.jpg", ".git/x.jpg", "notes.txt"])
    index = index_images(str(tmp_path))
    assert names(index) == ["elm/1.jpg", "oak/1.jpg"]
    assert not index.is_test.any()
    with pytest.raises(InputError, match="no images for testing; put them into val/CLASS/"):
        index.part("test")


def test_test_folder_and_other_folders(tmp_path: Path) -> None:
    index = index_images(make_files(tmp_path, ["train/oak/1.jpg", "test/oak/2.jpg", "devkit/notes/3.txt"]))
    assert names(index) == ["train/oak/1.jpg", "test/oak/2.jpg"]
    assert index.is_test.tolist() == [False, True]


def test_linked_files_and_folders(tmp_path: Path) -> None:
    make_files(tmp_path / "store", ["oak/1.jpg", "2.jpg"])
    (tmp_path / "set" / "elm").mkdir(parents=True)
    (tmp_path / "set" / "oak").symlink_to(tmp_path / "store" / "oak")
    (tmp_path / "set" / "elm" / "2.jpg").symlink_to(tmp_path / "store" / "2.jpg")
    index = index_images(tmp_path / "set")
    assert [entry.read() for entry in index.entries] == [b"bytes of 2.jpg", b"bytes of oak/1.jpg"]


def test_select_keeps_the_order_given(tmp_path: Path) -> None:
    index = index_images(make_files(tmp_path, [*IN_ORDER, "train/yew/1.jpg"]))
    chosen = index.select(["yew", "elm"])
    assert chosen.classes == ("yew", "elm")
    assert names(chosen) == ["train/yew/1.jpg", *IN_ORDER[:3], "val/elm/0.jpg"]
    assert chosen.labels.tolist() == [0, 1, 1, 1, 1]
    assert chosen.select(["elm", "yew"]).select(["yew", "elm"]) == chosen
    with pytest.raises(InputError, match="unknown class 'oka'; did you mean 'oak'"):
        index.select(["elm", "oka"])
    with pytest.raises(InputError, match="'elm' more than once"):
        index.select(["elm", "elm"])


def test_parts_keep_all_classes(tmp_path: Path) -> None:
    index = index_images(make_files(tmp_path, [*IN_ORDER, "train/yew/1.jpg"]))
    assert names(index.part("test")) == IN_ORDER[-2:]
    assert index.part("test").classes == ("elm", "oak", "yew")
    assert index.part("test").labels.tolist() == [0, 1]
    assert len(index.part("train")) == 6
    with pytest.raises(InputError, match="part must be 'train' or 'test', got 'val'"):
        index.part("val")


def test_fingerprint_tells_sets_apart_but_not_their_places(tmp_path: Path) -> None:
    one = index_images(make_files(tmp_path / "one", IN_ORDER))
    same = index_images(make_files(tmp_path / "two", IN_ORDER))
    assert one.fingerprint == same.fingerprint
    others = [
        index_images(make_files(tmp_path / "more", [*IN_ORDER, "train/elm/x.jpg"])),
        one.select(["oak", "elm"]),
        one.part("train"),
    ]
    prints = {index.fingerprint for index in [one, *others]}
    assert len(prints) == 4
    assert all(len(text) == 16 for text in prints)
    tar = index_images(make_tar(tmp_path / "a.tar", ["oak/1.jpg"])).fingerprint
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("oak/1.jpg"))
    assert index_images(tmp_path / "a.tar").fingerprint != tar


def test_classes_without_training_images_are_named(tmp_path: Path) -> None:
    make_files(tmp_path, [*IN_ORDER, "val/yew/1.jpg"])
    with pytest.raises(InputError, match=r"no training images of the classes 'yew'; add some or remove them"):
        index_images(tmp_path)
    make_files(tmp_path, [f"val/{letter}/1.jpg" for letter in "abcde"])
    with pytest.raises(InputError, match=r"'e' and 1 more"):
        index_images(tmp_path)


def test_a_source_for_testing_only(tmp_path: Path) -> None:
    index = index_images(make_tar(tmp_path / "val.tar", ["val/oak/1.jpg", "val/elm/1.jpg"]))
    assert index.is_test.all()
    with pytest.raises(InputError, match="no images for training; put them into train/CLASS/"):
        index.part("train")


@pytest.mark.parametrize(
    ("files", "folders", "message"),
    [
        ([], [], "has no class folders; put images into train/CLASS/"),
        (["notes.txt"], [], "has no class folders"),
        (["1.jpg", "2.jpg"], [], r"[12]\.jpg is not in a class folder"),
        (["train/1.jpg"], [], r"1\.jpg is not in a class folder"),
        (["oak/1.jpg", "2.jpg"], [], r"2\.jpg is not in a class folder"),
        (["oak/1.jpg"], ["elm"], "no image in the class folders 'elm'; add images or remove"),
        (["oak/1.jpg", "elm/notes.txt"], [], "no image in the class folders 'elm'"),
        (["train/oak/1.jpg"], ["val/oak"], "no image in the class folders 'val/oak'"),
        (["train/oak/1.jpg"], ["val"], "val has no class folders"),
        (["oak/images/1.jpg"], [], "oak/images is a folder in a class folder"),
        (["a.tar", "oak/1.jpg"], [], r"holds both tars \('a\.tar'\) and folders \('oak'\)"),
        (["a.tar.gz", "b.tar"], [], r"holds compressed tars: 'a\.tar\.gz'; .* pack it again"),
    ],
)
def test_folders_in_another_layout(tmp_path: Path, files: list[str], folders: list[str], message: str) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(InputError, match=message):
        index_images(make_files(tmp_path, files))


def test_places_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no file or folder .*missing"):
        index_images(tmp_path / "missing")
    with pytest.raises(InputError, match="cannot be read"):
        index_images(tmp_path / "a\0b")
    make_files(tmp_path, ["1.jpg", "empty.tar"])
    (tmp_path / "empty.tar").write_bytes(b"")
    for name in ("1.jpg", "empty.tar"):
        with pytest.raises(InputError, match=rf"{name} is not a tar, is damaged"):
            index_images(tmp_path / name)


@pytest.mark.parametrize(
    "name", ["../x.jpg", "train/oak/../../../x.jpg", "/etc/x.jpg", "train/..", "..\\x.jpg", "C:\\oak\\x.jpg", "/oak"]
)
def test_members_that_would_leave_the_folder(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("train/oak/1.jpg"))
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(InputError, match=r"a\.tar: the member .* would leave its folder") as caught:
        index_images(tmp_path)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_links_in_tars_are_refused(tmp_path: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("train/oak/1.jpg")
    member.type, member.linkname = kind, "/etc/passwd"
    with pytest.raises(InputError, match=r"'train/oak/1\.jpg' is a link to '/etc/passwd'.* would leave its folder"):
        index_images(add_member(tmp_path / "a.tar", member))


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_in_tars_are_refused(tmp_path: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("train/oak/1.jpg")
    member.type = kind
    with pytest.raises(InputError, match=r"'train/oak/1\.jpg' is a device"):
        index_images(add_member(tmp_path / "a.tar", member))


@pytest.mark.parametrize("size", [1, 1_000, 2**40, 2**60, -512])
def test_members_that_claim_more_than_the_tar_has(tmp_path: Path, size: int) -> None:
    # Later versions of tarfile refuse a negative size themselves.
    member = tarfile.TarInfo("train/oak/1.jpg")
    member.size = size
    (tmp_path / "a.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(InputError, match=rf"'train/oak/1\.jpg' claims {size} bytes|damaged.*invalid offset"):
        index_images(tmp_path / "a.tar")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
@pytest.mark.parametrize("size", [2**62, 2**40, -512])
def test_headers_that_claim_more_than_the_tar_has(tmp_path: Path, kind: bytes, size: int) -> None:
    member = tarfile.TarInfo("train/oak/1.jpg")
    member.size, member.type = size, kind
    (tmp_path / "a.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    with pytest.raises(InputError, match=r"a\.tar"):
        index_images(tmp_path / "a.tar")


def test_a_truncated_tar_is_refused_wherever_it_was_cut(tmp_path: Path) -> None:
    whole = make_tar(tmp_path / "whole.tar", IN_ORDER).read_bytes()
    end = 2 * 512 * len(IN_ORDER)
    for length in [*range(1, end, 300), 512, 1024, end, end + 511]:
        (tmp_path / "cut.tar").write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"cut\.tar.*(damaged|truncated)"):
            index_images(tmp_path / "cut.tar")


def test_a_damaged_header_does_not_end_the_list_unseen(tmp_path: Path) -> None:
    whole = bytearray(make_tar(tmp_path / "a.tar", IN_ORDER).read_bytes())
    whole[3 * 1024] ^= 0xFF
    (tmp_path / "a.tar").write_bytes(whole)
    with pytest.raises(InputError, match="its end mark is missing"):
        index_images(tmp_path / "a.tar")
    joined = b"".join(make_tar(tmp_path / f"{name}.tar", [f"{name}/1.jpg"]).read_bytes() for name in ("oak", "elm"))
    (tmp_path / "a.tar").write_bytes(joined)
    with pytest.raises(InputError, match="continues after its end mark"):
        index_images(tmp_path / "a.tar")


def test_random_damage_gives_an_index_or_an_input_error(tmp_path: Path) -> None:
    whole = make_tar(tmp_path / "a.tar", [*IN_ORDER, "train/" + "x" * 120 + "/1.jpg"]).read_bytes()
    generator = random.Random(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(generator.choice((1, 5, 50))):
            damaged[generator.randrange(len(IN_ORDER) * 1024 + 2048)] = generator.randrange(256)
        (tmp_path / "a.tar").write_bytes(damaged)
        try:
            index = index_images(tmp_path / "a.tar")
        except InputError:
            refused += 1
        else:
            assert all(len(entry.read()) == entry.size for entry in index.entries)
    assert refused > 100


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_compressed_tars_are_refused(tmp_path: Path, mode: str) -> None:
    make_tar(tmp_path / "a.tar", IN_ORDER, mode)
    with pytest.raises(InputError, match=r"a\.tar is compressed; .*unpack it, or pack it again without compression"):
        index_images(tmp_path)


def test_sparse_files_are_refused(tmp_path: Path) -> None:
    member = tarfile.TarInfo("oak/1.jpg")
    member.type = tarfile.GNUTYPE_SPARSE
    with pytest.raises(InputError, match=r"'oak/1\.jpg' is a device or a sparse file|damaged"):
        index_images(add_member(tmp_path / "a.tar", member))


def test_the_same_image_twice(tmp_path: Path) -> None:
    make_tar(tmp_path / "a.tar", ["train/oak/1.jpg"])
    make_tar(tmp_path / "b.tar", ["./train/oak/1.jpg"])
    with pytest.raises(InputError, match=r"twice: a\.tar:train/oak/1\.jpg and b\.tar:train/oak/1\.jpg"):
        index_images(tmp_path)
    make_tar(tmp_path / "c.tar", ["oak/1.jpg", "oak/1.jpg"])
    with pytest.raises(InputError, match="twice"):
        index_images(tmp_path / "c.tar")


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ("1.jpg", r"'1\.jpg' is not in a class folder"),
        ("train/1.jpg", "is not in a class folder"),
        ("set/train/oak/1.jpg", "is not in a class folder; put images into train/CLASS/"),
        ("oak/notes.txt", "holds no images"),
    ],
)
def test_tars_in_another_layout(tmp_path: Path, member: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        index_images(make_tar(tmp_path / "a.tar", [member]))


def test_class_folders_without_an_image_in_a_tar(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("train/oak/1.jpg"))
        for name in ("./", "./train", "train/oak", "train/elm", "train/.hidden"):
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE
            archive.addfile(member)
    with pytest.raises(InputError, match="no image in the class folders 'train/elm';"):
        index_images(tmp_path / "a.tar")


def test_a_tar_that_became_shorter(tmp_path: Path) -> None:
    index = index_images(make_tar(tmp_path / "a.tar", ["oak/1.jpg"]))
    os.truncate(tmp_path / "a.tar", 515)
    with pytest.raises(OSError, match=r"a\.tar has become shorter"):
        index.entries[0].read()


def test_a_shard_of_the_development_data() -> None:
    path = SHARED / "tiny-imagenet-lowshot" / "base-val.tar"
    if not path.is_file():
        pytest.skip(f"no file {path}; set CPAAN_DATA to the folder with the development data")
    index = index_images(path)
    assert len(index.classes) == 76
    assert np.bincount(index.labels).tolist() == [50] * 76
    assert index.is_test.all()
    assert all(entry.read().startswith(b"\xff\xd8\xff") for entry in index.entries[::500])
