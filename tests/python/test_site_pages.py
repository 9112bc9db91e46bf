"""tools/site_pages.py: links of pages that lie outside of docs/."""

from site_pages import OUTER_PAGES, ROOT, bend_links


def test_a_link_to_an_outer_page_leads_to_its_copy_in_the_site() -> None:
    text = "[how](../bench/README.md) and [when](../CHANGELOG.md#unreleased)"
    assert bend_links(text, "tuning.md") == (
        "[how](measurements.md) and [when](changelog.md#unreleased)"
    )
    assert bend_links("[how](../../bench/README.md)", "adr/0001.md") == "[how](../measurements.md)"


def test_other_links_stay_as_they_are() -> None:
    text = "[a](doctor.md#the-gpu) [b](https://example.org/x.md) [c](#here) ![d](images/e.svg)"
    assert bend_links(text, "tuning.md") == text


def test_links_of_an_outer_page_start_where_it_lies_in_the_repository() -> None:
    assert bend_links("[t](../docs/tuning.md#the-disk)", "measurements.md") == (
        "[t](tuning.md#the-disk)"
    )
    assert bend_links("[d](docs/doctor.md)", "changelog.md") == "[d](doctor.md)"


def test_the_outer_pages_are_there() -> None:
    assert all((ROOT / name).is_file() for name in OUTER_PAGES)
