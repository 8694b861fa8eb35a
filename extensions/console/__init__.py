"""The console: pages in a browser that show a deployment and mend it.

`api_part` serves the files of `static/`; everything else is in these. The pages use public routes
alone, so whatever they do can be scripted. Start at `static/app.js`. docs/console.md is for users.
"""
