"""The page as text; what it does in a browser is tested in test_page_in_a_browser."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cpaan.errors import InputError
from cpaan.reporting.page import asset_names, embedded_json, write_page
from cpaan.reporting.page_data import page_data
from cpaan.reporting.results import Results, read_runs
from cpaan.reporting.tables import readable
from cpaan.reporting.thumbnails import Album, parse_pixels, pixel_pictures


class Tags(HTMLParser):
    """Lists what a browser would make of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_page_holds_everything_and_names_are_never_markup(results: Results, tmp_path: Path) -> None:
    size = write_page(results, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert size == len(page.encode()) < 6_000_000
    seen = Tags()
    seen.feed(page)
    assert seen.tags.count("script") == 2
    assert "img" not in seen.tags
    assert all(link.startswith(("#", "data:")) for link in seen.links)
    assert "default-src 'none'" in page
    data = data_of(page)
    assert data["maps"][0]["classes"][0]["name"] == "<script>document.title = 'taken'</script>"
    assert data["maps"][0]["classes"][3]["name"] == "⟨U+202E⟩right to left"
    assert data["maps"][0]["classes"][5]["name"] == "{{data}} $x^2$ \\u003c"
    assert data["alphas"][0]["method"] == "c-gan, ccov-gan"
    assert {each["method"] for each in data["maps"][0]["made"]} == {
        "c-gan", "ccov-gan", "feature-hallucination", "smote",
    }  # fmt: skip


def test_the_table_of_the_page_is_that_of_the_run(results: Results, tmp_path: Path) -> None:
    write_page(results, tmp_path / "page.html", measure="top1")
    table = data_of((tmp_path / "page.html").read_text(encoding="utf-8"))["table"]
    accuracy, differences = results.accuracy("top1"), results.differences("top1")
    for column, found in zip(table["columns"], table["measures"]["top1"]["columns"], strict=True):
        for entry, pair, difference in zip(results.entries, found["accuracy"], found["difference"], strict=True):
            key = entry, column["setting"], column["shots"]
            assert pair == pytest.approx([accuracy[key].mean, accuracy[key].half_width], abs=1e-3)
            if entry[0] == "nearest-prototype":
                assert difference is None
            else:
                assert difference[0] == pytest.approx(differences[key].mean, abs=1e-3)
        best = found["rank"].index(1) if 1 in found["rank"] else None
        assert best is None or found["accuracy"][best][0] == max(pair[0] for pair in found["accuracy"])


def test_old_runs_and_single_trials_make_a_page_without_what_they_lack(old_run: Path, tmp_path: Path) -> None:
    write_page(Results.of(read_runs([old_run])), tmp_path / "page.html")
    data = data_of((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert (data["maps"], data["alphas"], data["losses"], data["diversity"]) == ([], [], [], [])
    assert data["table"]["measures"]["top5"]["columns"][0]["accuracy"] == [[70.0, None], [60.0, None]]


def test_the_page_needs_no_plotting_library(run: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from cpaan.reporting.page import write_page; "
        "from cpaan.reporting.results import Results; from cpaan.reporting.results import read_runs; "
        f"write_page(Results.of(read_runs([Path({str(run)!r})])), Path({str(tmp_path / 'page.html')!r})); "
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_every_part_of_the_page_is_in_the_package() -> None:
    folder = files("cpaan.reporting") / "page_assets"
    assert sorted(path.name for path in folder.iterdir()) == sorted(asset_names())


def test_nothing_in_the_data_can_end_its_script() -> None:
    text = embedded_json({"a": "</script><!--", "b": "\u2028&"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!--", "b": "\u2028&"}


def test_hidden_characters_are_made_visible_and_others_stay() -> None:
    assert readable(["\u202ea", "tab\t", "\x00", {"\u2066": float("inf")}]) == [
        "⟨U+202E⟩a",
        "tab\t",
        "⟨U+0000⟩",
        {"⟨U+2066⟩": "inf"},
    ]
    assert readable("مرحبا\u200f 👩\u200d🔬") == "مرحبا\u200f 👩\u200d🔬"


def test_features_that_are_pixels_are_shown(results: Results, tmp_path: Path) -> None:
    write_page(results, tmp_path / "page.html", pixels=(2, 3))
    data = data_of((tmp_path / "page.html").read_text(encoding="utf-8"))
    numbers = data["maps"][0]["made"][0]["pictures"]
    assert data["pictures"][numbers[0]].startswith("data:image/png;base64,")
    with pytest.raises(InputError, match="6 numbers, which are not 4 × 4 pixels"):
        write_page(results, tmp_path / "page.html", pixels=(4, 4))
    for wrong in ("24", "axb", "0x3"):
        with pytest.raises(InputError, match="HEIGHTxWIDTH"):
            parse_pixels(wrong)


def test_pictures_stop_before_the_page_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpaan.reporting.thumbnails.MOST_BYTES", 500)
    album = Album()
    numbers = pixel_pictures(np.random.default_rng(0).random((20, 64)), (8, 8), album)
    assert numbers[0] == 0
    assert numbers[-1] is None
    assert sum(map(len, album.pictures)) <= 500


def test_points_show_their_own_image_where_it_is_known(results: Results, tmp_path: Path) -> None:
    """Test images are in the order of the bank; of classes with another number of them any image is shown."""
    sample = results.runs[0].sample
    assert sample is not None
    name = "quoted \"double\" and 'single' & ampersand"
    for part, count in (("train", 2), ("val", 9)):
        folder = tmp_path / "images" / part / name
        folder.mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (20, 20), (20 * number, 0, 0)).save(folder / f"{number}.png")
    data = page_data(results, images=tmp_path / "images")
    label = sample.real.classes.index(name)
    shown = data["maps"][0]
    own = [p for p, c in zip(shown["real"]["pictures"], shown["real"]["class"], strict=True) if c == label]
    assert None not in own
    assert len({data["pictures"][number] for number in own}) == 9
    assert len(shown["classes"][label]["pictures"]) == 2
    others = [p for p, c in zip(shown["real"]["pictures"], shown["real"]["class"], strict=True) if c != label]
    assert set(others) == {None}
    for part in ("train", "val"):
        (tmp_path / "images" / part / name).rename(tmp_path / "images" / part / "zebra")
    with pytest.raises(InputError, match="images of other classes"):
        page_data(results, images=tmp_path / "images")
