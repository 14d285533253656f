"""MSRC images in both forms, and the features of their patches."""

import os
from pathlib import Path

import numpy as np
import pytest

from mssvm.core.errors import InputError
from mssvm.experiments import table4
from mssvm.experiments.collect import Trials
from mssvm.experiments.msrc import CATEGORIES, COLOURS, UNKNOWN, Patches, codebook, features, load_patches, read_msrc
from mssvm.experiments.protocol import Protocol
from mssvm.experiments.trials import Trial

cv2 = pytest.importorskip("cv2", reason="needs the extra vision")

DATA = Path(os.environ.get("MSSVM_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))


def write_pair(folder: Path, name: str, shape: tuple[int, int], channels: int) -> np.ndarray:
    """An image as Microsoft distributes it: its left third is sky, the middle a car, the right of no category."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
    truth = np.zeros((*shape, 3), dtype=np.uint8)
    third = shape[1] // 3
    truth[:, :third] = COLOURS["sky"]
    truth[:, third : 2 * third] = COLOURS["car"]
    truth[:, 2 * third :] = (192, 128, 0)
    pixels = truth[:, :, ::-1]
    if channels == 4:
        pixels = np.concatenate([pixels, np.full((*shape, 1), 255, dtype=np.uint8)], axis=2)
    cv2.imwrite(str(folder / f"{name}.bmp"), image[:, :, ::-1])
    cv2.imwrite(str(folder / f"{name}_GT.bmp"), pixels)
    return image


@pytest.mark.parametrize("channels", [3, 4])
def test_colours_bits_and_orientation_of_the_distributed_form(tmp_path, channels):
    image = write_pair(tmp_path, "10_2_s", (60, 90), channels)
    write_pair(tmp_path, "2_30_s", (90, 60), channels)
    first, second = read_msrc(tmp_path)
    assert (first.name, second.name) == ("2_30_s", "10_2_s")
    assert np.array_equal(second.image, image)
    assert second.labels[5, [5, 45, 85]].tolist() == [CATEGORIES.index("sky"), CATEGORIES.index("car"), UNKNOWN]
    assert first.labels.shape == (90, 60)


def test_grey_pictures_of_indices_follow_the_list_of_classes(tmp_path):
    for name in ("images", "labels"):
        (tmp_path / name).mkdir()
    (tmp_path / "classes.txt").write_text("0 void 0 0 0\n7 sky 128 128 128\n4 cow 0 0 128\n")
    cv2.imwrite(str(tmp_path / "images" / "1_1_s.png"), np.zeros((2, 3, 3), dtype=np.uint8))
    cv2.imwrite(str(tmp_path / "labels" / "1_1_s_GT.png"), np.array([[0, 7, 4], [7, 7, 0]], dtype=np.uint8))
    sky = CATEGORIES.index("sky")
    assert read_msrc(tmp_path)[0].labels.tolist() == [[UNKNOWN, sky, UNKNOWN], [sky, sky, UNKNOWN]]


def test_a_folder_without_images_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"neither .*_GT\.bmp"):
        read_msrc(tmp_path)
    (tmp_path / "1_1_s_GT.bmp").write_bytes(b"no image")
    with pytest.raises(InputError, match="missing or not an image"):
        read_msrc(tmp_path)


@pytest.mark.slow
def test_patches_have_the_paper_s_grid_and_majority_labels(tmp_path):
    write_pair(tmp_path, "1_1_s", (213, 320), 3)
    write_pair(tmp_path, "1_2_s", (320, 213), 3)
    wide, tall = (Patches.of(p) for p in read_msrc(tmp_path))
    assert (wide.shape, tall.shape) == ((20, 31), (31, 20))
    labels = wide.labels.reshape(wide.shape)
    assert labels[0, 0] == CATEGORIES.index("sky") and labels[0, 15] == CATEGORIES.index("car")
    assert labels[0, 30] == UNKNOWN
    assert np.allclose(wide.colour.reshape(620, 3, 16).sum(axis=2), 1.0)
    words = codebook([wide], 8, seed=0).predict(wide.sift.astype(np.float64))
    rows = features(wide, words, 8)
    assert rows.shape == (620, 8 + 48 + 1) and np.allclose(rows.sum(axis=1), 5.0)


def test_cached_patches_are_those_computed(tmp_path):
    write_pair(tmp_path, "1_1_s", (60, 90), 3)
    pictures = read_msrc(tmp_path)
    fresh, kept = (load_patches(pictures, tmp_path / "cache")[0] for _ in range(2))
    assert fresh.shape == kept.shape
    for name in ("sift", "colour", "labels"):
        assert np.array_equal(getattr(fresh, name), getattr(kept, name))


@pytest.mark.slow
def test_table4_counts_every_labelled_patch_and_says_why_it_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for k in range(6):
        write_pair(tmp_path, f"1_{k}_s", (60, 90), 3)
    protocol = Protocol.load(quick=True, data=[tmp_path])
    protocol.tree["table4"]["quick"] |= {"words": 4, "resamples": 20}
    trials = [Trial(p, table4.run(protocol, p), 0.0) for p in table4.tasks(protocol)]
    assert table4.run(protocol, trials[-1].params) == trials[-1].result
    patches = [Patches.of(p) for p in read_msrc(tmp_path)]
    for trial in trials:
        mine = [p for k, p in enumerate(patches) if k % 2 == trial.params["fold"]]
        for member in ("M", "L", "H", "patch"):
            total = np.array(trial.result[member]["total"])
            assert total.sum() == sum(int(np.sum(p.labels != UNKNOWN)) for p in mine)
            assert np.all(np.array(trial.result[member]["right"]) <= total)
    section = table4.section(protocol, Trials(trials, 0.95))
    assert [c.number for c in section.claims] == ["8a", "8b"] and len(section.items) == 3
    assert "--data" in table4.skip(Protocol.load(quick=True)) and table4.tasks(Protocol.load(quick=True)) == []


@pytest.mark.skipif(not (DATA / "msrc_v1_original_layout").is_dir(), reason="no MSRC data; set MSSVM_DATA")
def test_both_forms_of_the_same_images_agree():
    distributed = {p.name: p for p in read_msrc(DATA / "msrc_v1_original_layout")}
    png = {p.name: p for p in read_msrc(DATA / "msrc_v1")}
    shared = sorted(set(distributed) & set(png))
    assert len(distributed) == 8 and len(png) == 120 and shared
    for name in shared:
        assert np.array_equal(distributed[name].labels, png[name].labels)
        assert np.array_equal(distributed[name].image, png[name].image)
