"""`python -m tools.reference`: write the generated parts of all pages."""

from tools.pages import ROOT
from tools.reference import build_page, list_pages


def main() -> None:
    for page in list_pages():
        page.write_text(build_page(page), encoding="utf-8")
        print(f"wrote {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
