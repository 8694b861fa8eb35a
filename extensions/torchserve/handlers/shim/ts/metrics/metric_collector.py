"""Prints the metrics of the host, then the memory of processes: `python -m … --gpu 1 < pids`."""

from __future__ import annotations

import argparse
import logging
import sys

from ts.metrics import system_metrics
from ts.metrics.process_memory_metric import check_process_mem_usage


def main() -> None:
    """Run the script; the ids of the processes are a line of the input, with commas between."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", type=int, help="number of GPUs")
    options = parser.parse_args()
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    system_metrics.collect_all(system_metrics, options.gpu)
    check_process_mem_usage(sys.stdin)


if __name__ == "__main__":
    main()
