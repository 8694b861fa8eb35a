"""Reports of measurements: an HTML page in one file, a Markdown table, and a comparison of two.

`html` and `markdown` take measurements of the same or of several models. Start with wording.py, the
figures and words that all reports share. May import extensions.tuning.pages, headrace.text and
bench.measurement.
"""

from extensions.tuning.bench.report.compare import Difference, compare
from extensions.tuning.bench.report.markdown import differences_table, markdown
from extensions.tuning.bench.report.web import html

__all__ = ["Difference", "compare", "differences_table", "html", "markdown"]
