"""GrabCut of OpenCV and the random walker of scikit-image on photographs with strokes; masks of the object as PNG."""

import json
import sys
import time
from pathlib import Path

import cv2
import numpy as np
from PIL import Image
from skimage.segmentation import random_walker

OBJECT, GROUND = 1, 2


def grab_cut(rgb, strokes):
    """Five rounds, as in its documentation; pixels without a stroke are probably ground."""
    mask = np.full(strokes.shape, cv2.GC_PR_BGD, np.uint8)
    mask[strokes == OBJECT] = cv2.GC_FGD
    mask[strokes == GROUND] = cv2.GC_BGD
    cv2.setRNGSeed(0)
    bgr = np.ascontiguousarray(rgb[..., ::-1])
    cv2.grabCut(bgr, mask, None, np.zeros((1, 65)), np.zeros((1, 65)), 5, cv2.GC_INIT_WITH_MASK)
    return (mask == cv2.GC_FGD) | (mask == cv2.GC_PR_FGD)


def walker(beta):
    def run(rgb, strokes):
        return random_walker(rgb / 255.0, strokes.astype(int), beta=beta, mode="cg_j", channel_axis=-1) == OBJECT

    return run


METHODS = {"grabcut": grab_cut, "walker": walker(130), "walker-1000": walker(1000)}


def main():
    asked = json.loads(Path(sys.argv[1]).read_text())
    folder, out = Path(asked["folder"]), Path(asked["out"])
    seconds = {method: [] for method in METHODS}
    for name, strokes_name in asked["pictures"]:
        rgb = np.array(Image.open(folder / f"{name}.jpg").convert("RGB"))
        strokes = np.array(Image.open(folder / strokes_name))
        for method, run in METHODS.items():
            begin = time.process_time()
            found = run(rgb, strokes)
            seconds[method].append(time.process_time() - begin)
            Image.fromarray(255 * found.astype(np.uint8)).save(out / f"{method}-{strokes_name}")
    print(json.dumps(seconds))


main()
