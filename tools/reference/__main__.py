"""`python -m tools.reference`: write the generated parts of all pages."""

from tools.pages import ROOT
from tools.reference import pages, written


def main() -> None:
    for page in pages():
        page.write_text(written(page), encoding="utf-8")
        print(f"wrote {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
