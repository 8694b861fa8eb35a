"""Benchmarks: each a command, each against a baseline in the same run.

`python -m benchmarks` measures the overhead of a job. The others are in folders, by what they
measure, and docs/performance.md has their tables:

- `job_path`: what a job costs from the client to its answer
- `redis`: what jobs cost inside Redis
- `batching`: when batches run, and what a bad input in one costs
- `models`: models on a CPU, and models that are loaded while jobs run
- `gpu`: models on a GPU
- `generation`: language models and streams
- `runs`: offline runs
- `torchserve`: TorchServe's URLs, and TorchServe itself
- `operation`: kills, scrapes, and the load generator of `headrace bench`
- `case_study`: the case studies of docs/performance-guide.md and docs/case-study.md
- `pictures`: no benchmarks, but pictures of a deployment under load

They share `common`. No folder imports another one besides.
"""
