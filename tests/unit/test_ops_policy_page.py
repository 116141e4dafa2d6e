"""The page on policies says what the presets do now."""

import re

import numpy as np

from ops import policy_page
from workers.policies.presets import PRESETS


def test_the_page_and_its_picture_are_what_the_presets_do_to_the_recorded_window():
    lines = policy_page.recorded()
    found = policy_page.effects(lines)

    how = "run `python -m ops.policy_page` and commit ops/docs"
    assert policy_page.PAGE.read_text(encoding="utf-8") == policy_page.page(lines, found), how
    assert policy_page.PICTURE.read_text(encoding="utf-8") == policy_page.picture(lines, found), how


def test_every_preset_has_a_row_in_the_table():
    table = re.findall(
        r"^\| `(\S+)` \|", policy_page.PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )

    assert table == list(PRESETS)


def test_the_effect_of_a_selector_on_the_window():
    lines = policy_page.recorded()

    found = policy_page.effect("topk", lines)

    assert found.kept == 0.5
    assert np.isfinite(found.push_B).sum() == len(found.push_B) / 2
    assert found.shares == (0.5, 0.5)
