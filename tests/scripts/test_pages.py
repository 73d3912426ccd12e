"""Pages that scripts/pages/ writes are current."""

import re
from pathlib import Path

import pytest

from scripts.pages import baselines, gallery, models, reference
from scripts.pages.markdown import from_docstring, table


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_page_is_what_the_code_says(name: str) -> None:
    page = (reference.FOLDER / name).read_text()
    assert page == reference.PAGES[name](), "run make pages"


def test_the_tables_of_models_are_what_the_code_says() -> None:
    page = models.PAGE.read_text()
    assert page == models.render(page), "run make pages"


def test_the_tables_of_baselines_are_those_of_the_curves() -> None:
    page = baselines.PAGE.read_text()
    assert page == baselines.render(page, baselines.curves()), "run python -m scripts.pages.baselines"


def test_no_other_page_is_in_the_folder() -> None:
    assert {path.name for path in reference.FOLDER.iterdir()} == set(reference.PAGES)


def test_a_docstring_becomes_markdown() -> None:
    text = """Sums ``a``, see :func:`math.fsum`; arXiv 2402.03300::

    a + b

    c

Args:
    a: one
        more
    b, c: two

Returns:
    a sum
"""
    assert (
        from_docstring(text, "python")
        == """Sums `a`, see `math.fsum`; [arXiv 2402.03300](https://arxiv.org/abs/2402.03300):

```python
a + b

c
```

Args:

* `a`: one
    more
* `b, c`: two

Returns: a sum
"""
    )


def test_a_cell_of_a_table_is_one_line_without_bars() -> None:
    assert table(("x",), [("a|b\nc",)]) == "| x |\n| --- |\n| a\\|b c |\n"


def test_the_gallery_has_a_section_for_every_command_and_for_no_other() -> None:
    text = gallery.PAGE.read_text()
    titles = [section.title for section in gallery.SECTIONS]
    assert sorted(set(titles) - {"Errors"}) == sorted(gallery.installed())
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Files", *titles], "run make gallery"
    for section in gallery.SECTIONS:
        assert section.title == "Errors" or section.lines[0].startswith(section.title)
        assert all(f"\n$ {line}\n" in text for line in section.lines), "run make gallery"
    for path, content in gallery.FILES.items():
        assert not path.startswith(("train.", "sft.")) or content in text, "run make gallery"


def test_the_gallery_shows_nothing_of_the_machine_and_the_moment(tmp_path: Path) -> None:
    text = f"\x1b[1mworking (4 s)\n{tmp_path}/a  \nrun 20261126-021405  12.5 s  3 GiB  tokens/s 4410, process 41\n"
    assert gallery.normalised(text, tmp_path) == "./a\nrun 20261201-090000  … s  … GiB  tokens/s …, process …"
    assert gallery.shortened("1\n2\n3\n4\n5\n6\n7", 6) == "1\n2\n3\n4\n… 1 lines …\n6\n7"
    assert not re.search(r"/tmp/|/home/|/root|working \(|\d+ tokens/s", gallery.PAGE.read_text())
