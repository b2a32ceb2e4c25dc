"""What `make docs` adds to the files of docs/: a page per method, the notebooks, the results, and the files of the root.

mkdocs calls `on_files` and `on_page_markdown`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

from fedkeel.core.algorithm import algorithms
from method_page import index, page

ROOT = Path(__file__).parents[2]
# Pages outside of docs/, and where the site has them.
ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, config: Any) -> Files:
    files.append(File.generated(config, "methods/index.md", content=index()))
    for name in algorithms():
        files.append(File.generated(config, f"methods/{name}.md", content=page(name)))
    for source, target in ROOT_PAGES.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text()))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        _add_notebook(path, files, config)
    for path in sorted((ROOT / "results").rglob("*")):
        if path.suffix in (".md", ".svg", ".csv", ".tex", ".toml") and "findings" not in path.name:
            here = path.relative_to(ROOT).as_posix()
            files.append(File(here, str(ROOT), config["site_dir"], config["use_directory_urls"]))
    return files


def _add_notebook(path: Path, files: Files, config: Any) -> None:
    """A notebook as a page with its outputs, and its pictures beside it."""
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata.language_info = {"name": "python"}  # so that the page colours its code
    text, resources = MarkdownExporter().from_notebook_node(notebook, resources={"unique_key": path.stem})
    files.append(File.generated(config, f"tutorials/{path.stem}.md", content=text))
    for name, picture in resources["outputs"].items():
        files.append(File.generated(config, f"tutorials/{name}", content=picture))


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links of files in the repository become links of the site."""
    base = config["repo_url"].rstrip("/") + "/blob/main/"
    source = page.file.src_uri
    if source in ROOT_PAGES.values():
        return _root_links(markdown, base)
    if source.startswith("tutorials/"):
        return re.sub(r"\]\((\w+)\.ipynb\)", r"](\1.md)", markdown.replace("](../docs/", "](../"))
    if source.startswith("results/"):
        return markdown.replace("../docs/", "../")
    if "/" in source:  # generated for the site
        return markdown
    markdown = markdown.replace("](../results/", "](results/")
    markdown = markdown.replace("] [", "]&nbsp;[")  # two abbreviations of papers, not a link
    for name, target in ROOT_PAGES.items():
        markdown = markdown.replace(f"](../{name}", f"]({target}")
    return re.sub(r"\]\(\.\./((?:src|benchmarks|tests|examples)/[^)]*)\)", rf"]({base}\1)", markdown)


def _root_links(markdown: str, base: str) -> str:
    markdown = markdown.replace("](docs/", "](")
    return re.sub(r"\]\(((?:src|benchmarks|tests|examples)/[^)]*)\)", rf"]({base}\1)", markdown)
