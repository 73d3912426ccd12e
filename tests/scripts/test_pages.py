"""Pages that scripts/pages/ writes are current."""

import pytest

from scripts.pages import models, reference
from scripts.pages.markdown import from_docstring, table


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_page_is_what_the_code_says(name: str) -> None:
    page = (reference.FOLDER / name).read_text()
    assert page == reference.PAGES[name](), "run make pages"


def test_the_tables_of_models_are_what_the_code_says() -> None:
    page = models.PAGE.read_text()
    assert page == models.render(page), "run make pages"


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
