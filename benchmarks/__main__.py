"""`python -m benchmarks`: the overhead benchmark."""

from benchmarks.echo import main

if __name__ == "__main__":
    main()
