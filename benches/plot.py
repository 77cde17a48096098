"""Draws benches/results/link.svg from the figures that scripts/gpu-bench left beside it.

    pip install matplotlib && python3 benches/plot.py
"""

import json
import pathlib

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "burn-offload"
import matplotlib.pyplot as plt  # noqa: E402

RESULTS = pathlib.Path(__file__).parent / "results"
ROWS = [1, 16, 64, 256, 1024, 4096]
BYTES = 8 * 8192 * 8192 * 2


def lines(name):
    path = RESULTS / name
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]


def ours(name):
    shares = {}
    for line in lines(name):
        rows = int(line["case"].split()[0])
        if line["case"].endswith("back to back") and line["mode"].endswith(", offloaded"):
            shares[rows] = line["offloaded_bytes"] / line["link"] * 1e3 / line["time"]["median"]
    return shares


def peer(name):
    found = [line for line in lines("peers.txt") if line["peer"] == name]
    return {line["rows"]: BYTES / line["link"] * 1e3 / line["ms"] for line in found}


def main():
    series = [
        ("burn-offload", ours("bench-linear-eager.txt"), "#d2691e"),
        ("burn-offload, with fusion", ours("bench-linear-fused.txt"), "#f4a460"),
        ("prefetch written by hand (torch)", peer("prefetch"), "#4682b4"),
        ("UVA view (torch, as vLLM)", peer("uva"), "#9fb8cf"),
        ("accelerate cpu_offload", peer("accelerate"), "#bbbbbb"),
    ]
    series = [(label, shares, colour) for label, shares, colour in series if shares]
    figure, axes = plt.subplots(figsize=(9, 4.6))
    width = 0.8 / len(series)
    for at, (label, shares, colour) in enumerate(series):
        x = [place + (at - (len(series) - 1) / 2) * width for place, rows in enumerate(ROWS) if rows in shares]
        y = [shares[rows] for rows in ROWS if rows in shares]
        axes.bar(x, y, width, label=label, color=colour)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(ROWS)), [f"{rows}" for rows in ROWS])
    axes.set_xlabel("rows of the input")
    axes.set_ylabel("share of the link's copy speed")
    axes.set_title("8 linear layers 8192 x 8192 in bf16, all weights in host memory (at 4096 rows Burn computes longer)")
    axes.title.set_fontsize(9)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    axes.set_ylim(0, 1.1)
    figure.tight_layout()
    figure.savefig(RESULTS / "link.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
