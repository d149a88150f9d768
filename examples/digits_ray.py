"""Reads handwritten digits and embeds them on all nodes of a Ray cluster, by Ray Data, while workers are killed.

    python examples/digits_ray.py images.npy                      # on this machine, without GPUs
    python examples/digits_ray.py images.npy --kills 3            # and kill a worker three times
    python examples/digits_ray.py images.npy --vectors v.npy      # and turn each image into a vector
    python examples/digits_ray.py images.npy --address auto --nodes 4 --backend cuda

The images are n by 64 values from 0 (blank) to 16 (ink), in a .npy file. A digit for each is printed, in order.
`docs/ray.md` says more.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.data

import atomr_mp.ray

ACTOR = Path(__file__).with_name("digits.py")
BATCH = 16


def main() -> int:
    """Read and embed the images of a file; return the exit status."""
    parser = argparse.ArgumentParser(description="Read handwritten digits by Ray Data.", allow_abbrev=False)
    parser.add_argument("images", type=Path, help="images, n by 64 values, in a .npy file")
    parser.add_argument("--vectors", type=Path, help="where to write the images' embeddings, n by 32, as a .npy file")
    parser.add_argument("--address", default="local", help="Ray's cluster; by default one for this program")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--backend", choices=["cuda", "host"], default="host")
    parser.add_argument("--kills", type=int, default=0, help="how often a worker is killed while the job runs")
    options = parser.parse_args()
    images = np.load(options.images, allow_pickle=False).astype(np.float64)
    own = {"num_cpus": 4, "include_dashboard": False} if options.address == "local" else {}
    ray.init(address=options.address, log_to_driver=False, **own)
    try:
        with atomr_mp.ray.Cluster(
            actors=f"{ACTOR}:Digits", nodes=options.nodes, backend=options.backend, max_restarts=100
        ) as cluster:
            done = threading.Event()
            killing = threading.Thread(target=kill, args=(cluster, options.kills, done))
            killing.start()
            try:
                rows = read(cluster, images, vectors=options.vectors is not None)
            finally:
                done.set()
                killing.join()
            for row in rows:
                print(row["digit"])
            if options.vectors is not None:
                np.save(options.vectors, np.stack([row["vector"] for row in rows]))
    except atomr_mp.errors.AtomrError as error:
        print(f"digits_ray: {error}", file=sys.stderr)
        return 1
    finally:
        ray.shutdown()
    return 0


def called(data: ray.data.Dataset, cluster: atomr_mp.ray.Cluster, method: str, output: str) -> ray.data.Dataset:
    """Return the rows with a column more: the method's results for their images."""
    return data.map_batches(
        atomr_mp.ray.Caller,
        fn_constructor_kwargs={"cluster": cluster, "method": method, "columns": ["image"], "output": output},
        batch_size=BATCH,
        zero_copy_batch=True,
        compute=ray.data.ActorPoolStrategy(size=1),
    )


def read(cluster: atomr_mp.ray.Cluster, images: np.ndarray, *, vectors: bool) -> list[dict[str, Any]]:
    """Return a row for each image, in order, with its digit, and with its vector if that is wanted."""
    numbered = [{"index": index, "image": image} for index, image in enumerate(images)]
    data = called(ray.data.from_items(numbered, override_num_blocks=4), cluster, "Digits.predict_many", "digit")
    if vectors:
        data = called(data, cluster, "Digits.embed_many", "vector")
    return sorted(data.take_all(), key=lambda row: row["index"])


def kill(cluster: atomr_mp.ray.Cluster, times: int, done: threading.Event) -> None:
    """Kill the workers of this machine's pool, every half a second."""
    for _ in range(times):
        for node in cluster.status():
            for device in node.pool.devices if node.info.local and node.pool else ():
                if (pid := device.pid) is not None:
                    with contextlib.suppress(ProcessLookupError):  # it has ended just now
                        os.kill(pid, signal.SIGKILL)
                        print(f"digits_ray: killed worker {pid}", file=sys.stderr)
        if done.wait(0.5):
            return


if __name__ == "__main__":
    sys.exit(main())
