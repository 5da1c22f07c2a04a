"""Faults of command lines and plugins that people have reported in public, each by its number in the list followed.

Every case is a test elsewhere: ``ELSEWHERE`` names it.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ELSEWHERE = {
    # Callbacks of a configuration that are lost when one is appended.
    "D01": [
        "cli/test_configurations.py::test_a_later_list_replaces_and_the_append_form_adds",
        "accel/command/test_command_line.py::test_a_class_path_in_a_file_is_appended_to_the_callbacks_of_another",
    ],
    # A second configuration that replaces the callbacks of the first without a word: documented, and there is a form
    # that adds.
    "D02": [
        "cli/test_configurations.py::test_a_later_list_replaces_and_the_append_form_adds",
        "accel/command/test_command_line.py::test_a_packaged_configuration_appends",
    ],
    # Callbacks that a saved configuration brings twice.
    "D05": [
        "cli/test_configurations.py::test_a_saved_configuration_gives_the_same_run_again",
        "accel/command/test_command_line.py::test_a_printed_configuration_gives_the_same_again",
    ],
    # 1e-3 that is read as text.
    "D06": ["cli/test_configurations.py::test_numbers_in_scientific_notation_are_numbers"],
    # A plugin that is half registered.
    "D08": ["cli/test_plugins.py::test_a_plugin_that_fails_half_way_keeps_none_of_its_hooks"],
    # One plugin under two names.
    "D10": [
        "cli/test_plugins.py::test_one_name_from_two_distributions_is_loaded_once",
        "cli/test_plugins.py::test_one_object_under_two_names_is_loaded_once",
    ],
    # An entry point that leads to a class.
    "D11": ["cli/test_plugins.py::test_an_entry_point_may_lead_to_a_module_a_class_or_an_object"],
    # Options that go to the wrong one of two appended callbacks.
    "D13": ["cli/test_configurations.py::test_options_follow_the_callback_before_them"],
    # Empty configurations, and a byte order mark.
    "D14": [
        "cli/test_configurations.py::test_an_empty_configuration_changes_nothing",
        "cli/test_configurations.py::test_a_byte_order_mark_is_read_over",
    ],
}

CASES = [f"D{n:02}" for n in (1, 2, 5, 6, 8, 10, 11, 13, 14)]


def test_every_case_has_a_place() -> None:
    assert sorted(ELSEWHERE) == CASES


@pytest.mark.parametrize("place", [place for places in ELSEWHERE.values() for place in places])
def test_a_case_is_where_it_is_said_to_be(place: str) -> None:
    file, _, name = place.partition("::")
    tree = ast.parse((Path(__file__).parents[1] / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
