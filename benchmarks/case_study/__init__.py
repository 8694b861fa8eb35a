"""From the first version of a model to a fast one, a step at a time: docs/performance-guide.md.

`python -m benchmarks.case_study --write` serves each step with a `headrace up` of its own, and
measures it with `headrace bench`. detector.py has the detector.
`python -m benchmarks.case_study.drawings` compares the forms of the models of docs/case-study.md.
"""
