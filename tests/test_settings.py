"""Settings from every source, with every error that a wrong one deserves."""

from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.broker.settings import BrokerSettings
from halfmoon.errors import SettingError
from halfmoon.nameserver.settings import NameServerSettings
from halfmoon.settings import change, check, describe, forms, load, properties_text, setting, value_of
from halfmoon.store.settings import StoreSettings

ALL = {"broker": BrokerSettings, "store": StoreSettings, "nameserver": NameServerSettings}


class Colour(Enum):
    RED = 1
    GREEN = 2


@dataclass(frozen=True, kw_only=True)
class Lamp:
    watts: int = setting(40, java="lampWatts", low=1, high=100, why="Brightness.")
    is_on: bool = setting(False, java="lampOn", why="Light.")
    colour: Colour = setting(Colour.RED, java="lampColour", why="Hue.")
    mode: str = setting("steady", choices=("steady", "blinking"), why="Manner.")
    room: str = setting("", form=forms.PART, why="Place.")
    timer_ms: int = setting(1, low=1, why="When it goes off.")


@dataclass(frozen=True, kw_only=True)
class Fan:
    watts: int = setting(20, java="lampWatts", low=1, high=50, why="Speed.")
    blades: int = setting(3, why="Air.")


LAMP = {"lamp": Lamp}
BOTH = {"lamp": Lamp, "fan": Fan}


def lamp(**options: Any) -> Lamp:
    return load(LAMP, **options).of(Lamp)


def test_without_sources_everything_has_its_default() -> None:
    assert lamp() == Lamp()


def test_toml_sets_by_table_and_at_the_top() -> None:
    text = 'is_on = true\n[lamp]\nwatts = 60\ncolour = "green"\nmode = "BLINKING"\nroom = "attic"\ntimer_ms = 5'
    found = lamp(files=[("x.toml", text)])
    assert found == Lamp(watts=60, is_on=True, colour=Colour.GREEN, mode="blinking", room="attic", timer_ms=5)


def test_java_properties_set_by_the_original_keys() -> None:
    text = "# my lamp\nlampWatts = 60\nlampOn:true\nlampColour GREEN\nmode=blin\\\n   king\nroom=attic\n"
    found = lamp(files=[("broker.conf", text)])
    assert found == Lamp(watts=60, is_on=True, colour=Colour.GREEN, mode="blinking", room="attic")


def test_the_environment_sets_by_name_and_by_section_and_name() -> None:
    assert lamp(environment={"HALFMOON_WATTS": "7", "HALFMOON_LAMP_IS_ON": "yes", "PATH": "/bin"}) == Lamp(watts=7, is_on=True)


@pytest.mark.parametrize("variable", ["HALFMOON_DATA", "HALFMOON_CONFIG", "HALFMOON_DATABASE"])
def test_a_variable_that_another_command_reads_stops_no_server(variable: str) -> None:
    assert lamp(environment={variable: "x"}) == Lamp()


def test_later_sources_win() -> None:
    files = [("a.toml", "watts = 1\ntimer_ms = 9"), ("b.conf", "lampWatts=2")]
    assert lamp(files=files).watts == 2
    assert lamp(files=files, environment={"HALFMOON_WATTS": "3"}).watts == 3
    assert lamp(files=files, environment={"HALFMOON_WATTS": "3"}, assignments=["watts=4"]) == Lamp(watts=4, timer_ms=9)


@pytest.mark.parametrize("assignment", ["watts=61", "lampWatts=61", "lamp.watts = 61", "lamp.lampWatts=61"])
def test_an_assignment_takes_our_name_the_original_one_and_the_section_before_either(assignment: str) -> None:
    assert lamp(assignments=[assignment]).watts == 61


def test_a_name_of_two_sections_must_say_which() -> None:
    with pytest.raises(SettingError, match=r"lamp\.watts or fan\.watts"):
        load(BOTH, assignments=["watts=5"])
    assert load(BOTH, assignments=["fan.watts=5"]).values == {"lamp": Lamp(), "fan": Fan(watts=5)}


def test_an_original_key_of_two_sections_sets_both_or_those_it_is_meant_for() -> None:
    assert load(BOTH, assignments=["lampWatts=5"]).values == {"lamp": Lamp(watts=5), "fan": Fan(watts=5)}
    meant = load(BOTH, assignments=["lampWatts=5"], java_sections=["fan"])
    assert meant.values == {"lamp": Lamp(), "fan": Fan(watts=5)}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"assignments": ["wats=5"]}, r"command line: unknown setting 'wats'; did you mean 'watts'\?"),
        ({"assignments": ["lampwatts=5"]}, r"did you mean 'lampWatts'"),
        ({"assignments": ["lamp.lampWats=5"]}, r"did you mean 'lampWatts'"),
        ({"files": [("x.toml", "[lamp]\nis_onn = true")]}, r"x\.toml: unknown setting 'lamp\.is_onn'; did you mean 'is_on'"),
        ({"files": [("x.toml", "[lamb]\nis_on = true")]}, r"unknown table \[lamb\]; did you mean 'lamp'"),
        ({"files": [("b.conf", "\n\nlampOnn=true")]}, r"b\.conf:3: unknown setting 'lampOnn'; did you mean 'lampOn'"),
        ({"environment": {"HALFMOON_WATS": "5"}}, r"HALFMOON_WATS; did you mean 'HALFMOON_WATTS'"),
        ({"assignments": ["qqqqqqqq=5"]}, r"unknown setting 'qqqqqqqq'$"),
        ({"assignments": ["watts"]}, r"not of the form key=value: 'watts'"),
        ({"files": [("x.toml", "watts = ")]}, r"x\.toml: not TOML"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_it_its_place_and_the_nearest_right_one(options: Any, named: str) -> None:
    with pytest.raises(SettingError, match=named):
        lamp(**options)


@pytest.mark.parametrize(
    ("assignment", "named"),
    [
        ("watts=0", "must be a whole number, 1 to 100"),
        ("watts=101", "must be a whole number, 1 to 100"),
        ("watts=1e1", "whole number"),
        ("watts=9" + "9" * 5000, "whole number"),
        ("watts=", "whole number"),
        ("lampOn=maybe", "true or false"),
        ("colour=GREY", "one of RED, GREEN; did you mean 'GREEN'"),
        ("mode=steadi", "one of steady, blinking; did you mean 'steady'"),
        ("timer_ms=0", "at least 1"),
        ("room=a b", "no space"),
        ("room=a\x00b", "visible"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_that_says_what_would(assignment: str, named: str) -> None:
    with pytest.raises(SettingError, match=named):
        lamp(assignments=[assignment])


@pytest.mark.parametrize("text", ["watts = true", 'is_on = "perhaps"', "mode = 4", "room = 4", "room = []", "watts = 1.5"])
def test_a_toml_value_of_the_wrong_type_is_refused(text: str) -> None:
    with pytest.raises(SettingError):
        lamp(files=[("x.toml", text)])


def test_tables_and_variables_of_other_programs_are_left_alone() -> None:
    found = load(LAMP, files=[("x.toml", "[fan]\nblades = 4")], environment={"HALFMOON_BLADES": "4"}, others={"fan": Fan})
    assert found.values == {"lamp": Lamp()}


@pytest.mark.parametrize("cls", ALL.values())
def test_every_default_fits_its_own_bounds_and_every_setting_gives_a_reason(cls: Any) -> None:
    check(cls())
    for each in describe(cls):
        assert each.why.endswith("."), each.name
    assert [each.name for each in describe(cls)] == [each.name for each in fields(cls)]


def test_settings_built_by_hand_can_be_checked() -> None:
    for wrong in ({"watts": 0}, {"watts": "5"}, {"watts": True}, {"mode": "STEADY"}, {"colour": 1}):
        with pytest.raises(SettingError, match=f"Lamp: {next(iter(wrong))} = .*: must be"):
            check(Lamp(**wrong))


def test_what_need_not_be_given_may_be_none_and_fits_like_its_type() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Switch:
        on: bool | None = setting(None, why="Light.")

    assert [value_of(Switch, "on", text, "x") for text in ("yes", "false")] == [True, False]
    for fine in (None, True, False):
        check(Switch(on=fine))
    with pytest.raises(SettingError, match="Switch: on = 1: must be true or false"):
        check(Switch(on=1))  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="is_on = None"):
        check(Lamp(is_on=None))  # type: ignore[arg-type]
    assert [(each.kind, each.default) for each in describe(Switch)] == [("true or false", "")]


def test_a_running_server_changes_only_what_it_is_told() -> None:
    changed, ignored = change(Lamp(watts=3, timer_ms=9), "lampOn=true\nrocketmqHome=/opt\n", "a request")
    assert changed == Lamp(watts=3, timer_ms=9, is_on=True)
    assert [each.key for each in ignored] == ["rocketmqHome"]


@given(
    st.builds(
        Lamp,
        watts=st.integers(1, 100),
        is_on=st.booleans(),
        colour=st.sampled_from(Colour),
        mode=st.sampled_from(["steady", "blinking"]),
        room=st.text("abcé", max_size=128),
        timer_ms=st.integers(1, 2**63),
    )
)
def test_what_is_shown_as_properties_reads_back_as_the_same_settings(settings: Lamp) -> None:
    assert lamp(files=[("x.conf", properties_text(settings))]) == settings
