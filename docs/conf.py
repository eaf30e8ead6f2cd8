"""The site: `make docs` builds it into .cache/site with Sphinx, from the pages as they are.

The source folder is the repository, so that links between pages, which are those of files, work on
the site too. Nothing is fetched from elsewhere when a page is read.
"""

project = "Embedrock"
copyright = "the Embedrock authors, Apache-2.0"
extensions = ["myst_parser"]
root_doc = "docs/contents"
include_patterns = ["docs/**", "examples/README.md", "lab/README.md", "lab/peers/README.md", "*.md"]
exclude_patterns = ["docs/index.md", "README.md"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

html_theme = "furo"
html_title = "Embedrock"
html_extra_path = ["index.html"]  # leads on to the first page
html_copy_source = False
html_show_sphinx = False
