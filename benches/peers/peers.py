"""What others reach on the same machine: 8 linear layers of 8192 x 8192 in bf16, every weight offloaded.

    python3 benches/peers/peers.py

- uva: torch kernels on a CUDA view of pinned host memory, the mechanism of vLLM's UVA offloader;
- prefetch: two device buffers and a copy stream, written by hand, the mechanism of vLLM's prefetch offloader;
- accelerate: `accelerate.cpu_offload`, if it is installed.

Prints the share of the link's copy speed at which the weights passed, for passes back to back.
"""

import json
import statistics
import time

import torch

SIZE, LAYERS, PASSES = 8192, 8, 20
BYTES = SIZE * SIZE * 2 * LAYERS
ROWS = [1, 16, 64, 256, 1024, 4096]


def timed(run, passes, repeats=5):
    """Milliseconds a pass: the median, the least and the most of `repeats`."""
    run()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(passes):
            run()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3 / passes)
    return statistics.median(times), min(times), max(times)


class HostView:
    """Pinned host memory as CUDA sees it."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": "<i2",
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


def main():
    torch.manual_seed(0)
    host = [(torch.randn(SIZE, SIZE) * 0.01).bfloat16().pin_memory() for _ in range(LAYERS)]
    device = torch.empty(SIZE, SIZE, dtype=torch.bfloat16, device="cuda")

    def copy():
        for weight in host:
            device.copy_(weight, non_blocking=True)

    link = BYTES / (timed(copy, 1, 9)[0] / 1e3)
    print(f"link {link / 1e9:.2f} GB/s")

    views = [torch.as_tensor(HostView(w.view(torch.int16)), device="cuda").view(torch.bfloat16) for w in host]
    resident = [w.cuda() for w in host]
    buffers = [torch.empty_like(device) for _ in range(2)]
    copies = torch.cuda.Stream()
    filled = [torch.cuda.Event() for _ in range(2)]
    emptied = [torch.cuda.Event() for _ in range(2)]
    at = 0

    def fill(step):
        slot = step % 2
        copies.wait_event(emptied[slot])
        with torch.cuda.stream(copies):
            buffers[slot].copy_(host[step % LAYERS], non_blocking=True)
            filled[slot].record(copies)

    def prefetch(x):
        nonlocal at
        for _ in range(LAYERS):
            slot = at % 2
            torch.cuda.current_stream().wait_event(filled[slot])
            x = x @ buffers[slot]
            emptied[slot].record()
            fill(at + 2)
            at += 1
        return x

    fill(0)
    fill(1)

    def plain(weights):
        def run(x):
            for weight in weights:
                x = x @ weight
            return x

        return run

    modes = {"resident": plain(resident), "uva": plain(views), "prefetch": prefetch}
    try:
        import accelerate

        model = torch.nn.Sequential(*[torch.nn.Linear(SIZE, SIZE, bias=False, dtype=torch.bfloat16) for _ in host])
        modes["accelerate"] = accelerate.cpu_offload(model, torch.device("cuda"))
    except ImportError:
        print("accelerate is not installed")

    print("| rows | peer | ms a pass, median (least to most) | share of link |\n| --- | --- | --- | --- |")
    with torch.no_grad():
        for rows in ROWS:
            x = (torch.randn(rows, SIZE) * 0.1).bfloat16().cuda()
            for name, run in modes.items():
                if (name == "uva" and rows > 1024) or (name == "accelerate" and rows not in (1, 1024)):
                    continue
                passes = PASSES if name in ("resident", "prefetch") else 2
                median, least, most = timed(lambda: run(x), passes, 5 if passes > 2 else 3)
                share = "" if name == "resident" else f"{BYTES / (median / 1e3) / link:.3f}"
                print(f"| {rows} | {name} | {median:.3f} ({least:.3f} to {most:.3f}) | {share} |")
                print(json.dumps({"peer": name, "rows": rows, "ms": median, "link": link}), flush=True)


if __name__ == "__main__":
    main()
