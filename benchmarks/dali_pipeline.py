"""Runs DALI's fused pipeline for the CPU over a directory of pictures, for benchmarks.images: in an interpreter that
has DALI, and none of ours.

    PYTHON benchmarks/dali_pipeline.py DIRECTORY BATCH BATCHES THREADS uint8|float32 train|validate

Training is the fused decoder's random crop and a flip; validation decodes whole pictures, resizes their shorter edge to
256 and takes the middle, as DALI's own example for ImageNet does. Prints the pictures a CPU-second, as JSON.
"""

from __future__ import annotations

import json
import sys
import time

from nvidia.dali import fn, pipeline_def, types  # type: ignore[import-not-found]

WARM_BATCHES = 9
PIXELS = 224
SHORTER_EDGE = 256


def main() -> None:
    directory, (batch, batches, threads), (kind, task) = sys.argv[1], map(int, sys.argv[2:5]), sys.argv[5:7]
    validates = task == "validate"
    scale = 255 if kind == "float32" else 0
    mean = [scale * part for part in (0.485, 0.456, 0.406)]
    std = [scale * part for part in (0.229, 0.224, 0.225)] if scale else [1, 1, 1]

    @pipeline_def(batch_size=batch, num_threads=threads, device_id=None, seed=1)  # type: ignore[untyped-decorator]
    def pictures():  # type: ignore[no-untyped-def]
        encoded, label = fn.readers.file(file_root=directory, random_shuffle=True)
        if validates:
            decoded = fn.decoders.image(encoded, output_type=types.RGB)
            resized = fn.resize(decoded, size=SHORTER_EDGE, mode="not_smaller")
        else:
            decoded = fn.decoders.image_random_crop(
                encoded, output_type=types.RGB, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
            )
            resized = fn.resize(decoded, resize_x=PIXELS, resize_y=PIXELS)
        finished = fn.crop_mirror_normalize(
            resized,
            dtype=types.FLOAT if scale else types.UINT8,
            output_layout="CHW",
            crop=(PIXELS, PIXELS) if validates else None,
            mirror=0 if validates else fn.random.coin_flip(),
            mean=mean,
            std=std,
        )
        return finished, label

    pipeline = pictures()
    pipeline.build()
    for _ in range(WARM_BATCHES):
        pipeline.run()
    before_s = time.process_time()
    for _ in range(batches):
        pipeline.run()
    print(json.dumps({"pictures_a_cpu_second": batch * batches / (time.process_time() - before_s)}))


if __name__ == "__main__":
    main()
