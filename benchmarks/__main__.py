"""`python -m benchmarks`: the overhead of a job (`job_path/overhead.py`)."""

from benchmarks.job_path.overhead import main

if __name__ == "__main__":
    main()
